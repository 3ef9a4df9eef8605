/* NekCEM's checkpoint, in the vtk legacy format: a master header by rank 0, then field by field a
 * block header and the data of all ranks one after another. Nothing is aligned, because the headers
 * are text. Fu et al.: 16,785 points on a rank, about 142 bytes each; nf files. They are written
 * with split collective calls (coIO, --groups), by one writer in each group to which the others
 * send their data (rbIO, --groups and --rbio), or as one file for each rank (1PFPP, --groups as
 * many as ranks). */
#include "kernel.h"

#include <stdio.h>

enum { POINTS };

static void header(struct plan *plan, const char *name, MPI_Offset bytes, int rank) {
    char label[24];
    snprintf(label, sizeof label, "%.8s_header", name);
    piece_rows(plan_array(plan, label, 1, 1, &bytes), 0, rank == 0 ? bytes : 0);
}

static void plan(struct plan *plan, const long *value, int rank, int ranks) {
    static const struct {
        const char *name;
        int elem;
        MPI_Offset each, header;
    } fields[] = {
        {"points", 8, 3, 26}, {"cells", 4, 9, 23},  {"celltype", 4, 1, 19}, {"E", 8, 3, 53},
        {"H", 8, 3, 37},      {"S", 8, 3, 37},
    };
    plan->packed = true;
    header(plan, "master", 263, rank);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        header(plan, fields[i].name, fields[i].header, rank);
        MPI_Offset size[2] = {ranks * value[POINTS], fields[i].each};
        piece_rows(plan_array(plan, fields[i].name, fields[i].elem, 2, size), rank * value[POINTS],
                   value[POINTS]);
    }
}

const struct kernel nekcem = {
    "nekcem",
    "headers as text and data field by field; nf files",
    {{"points", 1500, 16785, "grid points of a rank"}},
    SPLIT,
    true,
    plan,
};
