/* Chombo's adaptive mesh: rank 0 alone writes small arrays that say which rank owns which box and
 * where its data begins. Then all ranks write the data, one array of doubles in which each rank has
 * one run of very different length, or nothing at all. Howison et al.: 18,680 KB on an average
 * rank. */
#include "kernel.h"

#include "../common/content.h"

enum { BOXES, BOX, COMPONENTS };

/* From zero to twice the average; the same in every run. */
static MPI_Offset boxes_of(int rank, long boxes) {
    if (rank % 4 == 2)
        return 0;
    return (MPI_Offset)(content_word(20, (uint64_t)rank) % (uint64_t)(2 * boxes + 1));
}

static void plan(struct plan *plan, const long *value, int rank, int ranks) {
    MPI_Offset before = 0, total = 0;
    for (int r = 0; r < ranks; r++) {
        before += r < rank ? boxes_of(r, value[BOXES]) : 0;
        total += boxes_of(r, value[BOXES]);
    }
    MPI_Offset here = boxes_of(rank, value[BOXES]);
    if (total == 0) { /* an array must not be empty: one box, of rank 0 */
        total = 1;
        here = rank == 0;
    }

    MPI_Offset boxes[2] = {total, 6}, offsets[1] = {total + 1}, owners[1] = {total};
    MPI_Offset of_rank_0 = rank == 0;
    piece_rows(plan_array(plan, "offsets", 8, 1, offsets), 0, of_rank_0 * offsets[0]);
    piece_rows(plan_array(plan, "boxes", 4, 2, boxes), 0, of_rank_0 * boxes[0]);
    piece_rows(plan_array(plan, "processors", 4, 1, owners), 0, of_rank_0 * owners[0]);

    MPI_Offset each = value[BOX] * value[BOX] * value[BOX] * value[COMPONENTS];
    MPI_Offset data[1] = {total * each};
    piece_rows(plan_array(plan, "data", 8, 1, data), before * each, here * each);
}

const struct kernel chombo = {
    "chombo",
    "boxes of an adaptive mesh: some ranks have many, some none",
    {{"boxes", 6, 73, "average number of boxes of a rank"},
     {"box", 8, 16, "cells of a box in each dimension"},
     {"components", 3, 8, "components of a cell"}},
    COLLECTIVE,
    false,
    plan,
};
