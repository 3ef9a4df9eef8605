/* ROMIO's coll_perf: a three-dimensional array of ints, split among the ranks in all three
 * dimensions (block, block, block), written with one collective call. Each rank's block consists of
 * many short runs far from each other. Congiu et al. (64 MB in a block), Nisar et al. (100^3), Son
 * et al. (128^3, four variables). */
#include "kernel.h"

#include <stdio.h>

enum { BLOCK, VARIABLES };

static void plan(struct plan *plan, const long *value, int rank, int ranks) {
    int dims[3], at[3];
    grid3(rank, ranks, dims, at);
    MPI_Offset size[3];
    for (int d = 0; d < 3; d++)
        size[d] = dims[d] * value[BLOCK];
    for (long v = 0; v < value[VARIABLES]; v++) {
        char name[24];
        snprintf(name, sizeof name, "array%ld", v);
        struct piece *piece = plan_array(plan, name, 4, 3, size);
        for (int d = 0; d < 3; d++) {
            piece->start[d] = at[d] * value[BLOCK];
            piece->count[d] = value[BLOCK];
        }
    }
}

const struct kernel coll_perf = {
    "coll_perf",
    "block-block-block arrays of ints",
    {{"block", 24, 128, "elements of a rank's block in each dimension"},
     {"variables", 2, 4, "arrays"}},
    COLLECTIVE,
    false,
    plan,
};
