/* FLASH-IO's checkpoint: small arrays that describe the tree of blocks, then 24 variables. Each
 * rank has about the same number of blocks, in memory with four guard cells around each; a variable
 * consists of the blocks of all ranks one after another, without the guard cells. Congiu et al.,
 * Nisar et al., Son et al.: 80 blocks on a rank, 16^3 zones in a block. */
#include "kernel.h"

#include <stdio.h>

enum { BLOCKS, ZONES, VARIABLES };

/* "A variation in block numbers per process is used to generate a slightly unbalanced I/O load." */
static MPI_Offset blocks_of(int rank, long blocks) {
    long here = blocks + rank % 3 - 1;
    return here > 0 ? here : 0;
}

static void plan(struct plan *plan, const long *value, int rank, int ranks) {
    MPI_Offset before = 0, total = 0;
    for (int r = 0; r < ranks; r++) {
        before += r < rank ? blocks_of(r, value[BLOCKS]) : 0;
        total += blocks_of(r, value[BLOCKS]);
    }
    MPI_Offset here = blocks_of(rank, value[BLOCKS]);

    static const struct {
        const char *name;
        int elem;
        MPI_Offset each[2];
    } tree[] = {
        {"lrefine", 4, {1, 1}},     {"nodetype", 4, {1, 1}},   {"gid", 4, {15, 1}},
        {"coordinates", 8, {3, 1}}, {"blocksize", 8, {3, 1}}, {"bndbox", 8, {3, 2}},
    };
    for (size_t i = 0; i < sizeof tree / sizeof *tree; i++) {
        MPI_Offset size[3] = {total, tree[i].each[0], tree[i].each[1]};
        piece_rows(plan_array(plan, tree[i].name, tree[i].elem, 3, size), before, here);
    }
    for (long v = 0; v < value[VARIABLES]; v++) {
        char name[24];
        snprintf(name, sizeof name, "unk%02ld", v + 1);
        MPI_Offset size[4] = {total, value[ZONES], value[ZONES], value[ZONES]};
        struct piece *piece = plan_array(plan, name, 8, 4, size);
        piece_rows(piece, before, here);
        piece->guard = 4;
    }
}

const struct kernel flash_io = {
    "flash_io",
    "the tree of blocks and 24 variables, blocks with guard cells in memory",
    {{"blocks", 3, 80, "blocks of a rank, one more or less"},
     {"zones", 8, 16, "zones of a block in each dimension"},
     {"variables", 24, 24, "variables"}},
    COLLECTIVE,
    false,
    plan,
};
