/* VORPAL's fields: three components of a vector field on a 3D grid, for each time step. Load
 * balancing has made the blocks of neighbouring ranks differ by one in each dimension. Howison et
 * al.: 40^3 or 80^3, 1390 to 1615 KB or 11556 to 12456 KB on a rank. */
#include "kernel.h"

#include <stdio.h>

enum { BLOCK, STEPS };

/* Blocks along one dimension: block, block + 1, block - 1, block, … */
static MPI_Offset width(int at, long block) {
    static const int difference[] = {0, 1, -1};
    return block + difference[at % 3];
}

static void plan(struct plan *plan, const long *value, int rank, int ranks) {
    int dims[3], at[3];
    grid3(rank, ranks, dims, at);
    MPI_Offset size[3] = {0}, start[3] = {0};
    for (int d = 0; d < 3; d++)
        for (int i = 0; i < dims[d]; i++) {
            size[d] += width(i, value[BLOCK]);
            start[d] += i < at[d] ? width(i, value[BLOCK]) : 0;
        }
    for (int step = 0; step < value[STEPS]; step++)
        for (int component = 0; component < 3; component++) {
            char name[24];
            snprintf(name, sizeof name, "field%d", component);
            struct piece *piece = plan_array(plan, name, 8, 3, size);
            piece->record = step;
            for (int d = 0; d < 3; d++) {
                piece->start[d] = start[d];
                piece->count[d] = width(at[d], value[BLOCK]);
            }
        }
}

const struct kernel vorpal = {
    "vorpal",
    "vector fields on an unevenly divided 3D grid",
    {{"block", 15, 40, "points of a rank in each dimension, one more or less (at least 2)"},
     {"steps", 2, 8, "time steps"}},
    COLLECTIVE,
    false,
    plan,
};
