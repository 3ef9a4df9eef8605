/* IO500's ior-hard: transfers of 47008 bytes that the ranks take turns in, each written by its rank
 * alone. No transfer is aligned to anything and every one has two strangers as neighbours. */
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
