/* IO500's ior-hard: transfers of 47008 bytes in which the ranks take turns, each written
 * independently by its rank. No transfer is aligned to anything, and each has transfers of other
 * ranks on both sides. */
#include "kernel.h"

enum { TRANSFER, TRANSFERS };

static void plan(struct plan *plan, const long *value, int rank, int ranks) {
    MPI_Offset size[2] = {ranks * value[TRANSFERS], value[TRANSFER]};
    for (long t = 0; t < value[TRANSFERS]; t++) {
        struct piece *piece = t == 0 ? plan_array(plan, "transfers", 1, 2, size) : plan_more(plan);
        piece_rows(piece, t * ranks + rank, 1);
    }
}

const struct kernel ior_hard = {
    "ior_hard",
    "47008 bytes from each rank in turn",
    {{"transfer", 47008, 47008, "bytes of a transfer"},
     {"transfers", 12, 2000, "transfers of a rank (at least 1)"}},
    INDEPENDENT,
    true,
    plan,
};
