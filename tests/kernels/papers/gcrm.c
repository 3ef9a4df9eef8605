/* GCRM, the global cloud resolving model: for each time step, cell-centred variables (cell x
 * height) and edge-centred variables (cell x height x 6) of a geodesic grid whose cells are in
 * Morton order, so that a rank has one run of cells. Howison et al.: 1.6 MB and 9.6 MB for each
 * rank and step, written independently by all ranks. Through HDF5 each rank has a chunk, and the
 * index of the chunks is the expensive part. Son et al. write 38 such variables as records through
 * PnetCDF. */
#include "kernel.h"

#include <stdio.h>

enum { CELLS, HEIGHTS, CELL_VARIABLES, EDGE_VARIABLES, STEPS };

static void variable(struct plan *plan, const char *kind, long number, int edges, int step,
                     const long *value, int rank, int ranks) {
    char name[24];
    snprintf(name, sizeof name, "%s%ld", kind, number);
    MPI_Offset size[3] = {ranks * value[CELLS], value[HEIGHTS], edges};
    struct piece *piece = plan_array(plan, name, 8, edges == 1 ? 2 : 3, size);
    piece_rows(piece, rank * value[CELLS], value[CELLS]);
    piece->record = step;
    for (int d = 0; d < piece->ndims; d++)
        piece->chunk[d] = piece->count[d];
}

static void plan(struct plan *plan, const long *value, int rank, int ranks) {
    for (int step = 0; step < value[STEPS]; step++) {
        for (long v = 0; v < value[CELL_VARIABLES]; v++)
            variable(plan, "cell", v, 1, step, value, rank, ranks);
        for (long v = 0; v < value[EDGE_VARIABLES]; v++)
            variable(plan, "edge", v, 6, step, value, rank, ranks);
    }
}

const struct kernel gcrm = {
    "gcrm",
    "cell- and edge-centred variables, step by step, a chunk for each rank",
    {{"cells", 160, 8192, "cells of a rank"},
     {"heights", 25, 25, "layers above a cell"},
     {"cell-variables", 3, 3, "cell-centred variables"},
     {"edge-variables", 1, 1, "edge-centred variables"},
     {"steps", 2, 8, "time steps"}},
    INDEPENDENT,
    false,
    plan,
};
