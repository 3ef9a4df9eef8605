/* Plans and their pieces: their place in the file and in memory, and their content. */
#include "kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/content.h"
#include "../common/fail.h"

/* Content of guard cells. If a library writes them, or reads into them, it is noticed. */
enum { GUARD_BYTE = 0xee };

static struct piece *append(struct plan *plan) {
    if (plan->count == plan->room) {
        plan->room = plan->room ? plan->room * 2 : 16;
        plan->pieces = realloc(plan->pieces, (size_t)plan->room * sizeof *plan->pieces);
        if (!plan->pieces)
            fail("there is no memory for a plan of %d pieces", plan->room);
    }
    return &plan->pieces[plan->count++];
}

struct piece *plan_array(struct plan *plan, const char *name, int elem, int ndims,
                         const MPI_Offset *size) {
    struct piece *piece = append(plan);
    memset(piece, 0, sizeof *piece);
    snprintf(piece->name, sizeof piece->name, "%s", name);
    piece->elem = elem;
    piece->ndims = ndims;
    piece->record = -1;
    MPI_Offset bytes = elem;
    for (int d = 0; d < ndims; d++) {
        piece->size[d] = size[d];
        bytes *= size[d];
    }
    piece->base = plan->packed ? plan->end : (plan->end + elem - 1) / elem * elem;
    plan->end = piece->base + bytes;
    return piece;
}

struct piece *plan_more(struct plan *plan) {
    struct piece *piece = append(plan);
    *piece = piece[-1];
    return piece;
}

void piece_rows(struct piece *piece, MPI_Offset from, MPI_Offset count) {
    memset(piece->start, 0, sizeof piece->start);
    memcpy(piece->count, piece->size, sizeof piece->count);
    piece->start[0] = from;
    piece->count[0] = count;
    piece->contiguous = true;
}

void plan_free(struct plan *plan) {
    free(plan->pieces);
    memset(plan, 0, sizeof *plan);
}

void grid3(int rank, int ranks, int dims[3], int at[3]) {
    dims[0] = dims[1] = dims[2] = 0;
    MPI_Dims_create(ranks, 3, dims);
    at[0] = rank / (dims[1] * dims[2]);
    at[1] = rank / dims[2] % dims[1];
    at[2] = rank % dims[2];
}

size_t piece_bytes(const struct piece *piece) {
    size_t bytes = (size_t)piece->elem;
    for (int d = 0; d < piece->ndims; d++)
        bytes *= (size_t)piece->count[d];
    return bytes;
}

MPI_Offset piece_memory_dim(const struct piece *piece, int dim) {
    bool spatial = dim >= piece->ndims - 3;
    return piece->count[dim] + (spatial ? 2 * piece->guard : 0);
}

size_t piece_memory(const struct piece *piece) {
    size_t bytes = (size_t)piece->elem;
    for (int d = 0; d < piece->ndims; d++)
        bytes *= (size_t)piece_memory_dim(piece, d);
    return bytes;
}

/* Return the place of the element `at` (relative to the piece's start): in the file, and in memory.
 */
static MPI_Offset in_file(const struct piece *piece, const MPI_Offset *at) {
    MPI_Offset linear = 0;
    for (int d = 0; d < piece->ndims; d++)
        linear = linear * piece->size[d] + piece->start[d] + at[d];
    return piece->base + linear * piece->elem;
}

static size_t in_memory(const struct piece *piece, const MPI_Offset *at) {
    MPI_Offset linear = 0;
    for (int d = 0; d < piece->ndims; d++) {
        MPI_Offset dim = piece_memory_dim(piece, d);
        linear = linear * dim + at[d] + (dim - piece->count[d]) / 2;
    }
    return (size_t)linear * (size_t)piece->elem;
}

MPI_Offset piece_first(const struct piece *piece) {
    static const MPI_Offset zero[MAX_DIMS];
    return in_file(piece, zero);
}

bool piece_same_array(const struct piece *a, const struct piece *b) {
    return a->base == b->base && strcmp(a->name, b->name) == 0;
}

/* Calls `row` for each run of the last dimension. */
typedef void row_fn(const struct piece *piece, MPI_Offset offset, size_t memory, size_t length,
                    void *context);

static void each_row(const struct piece *piece, row_fn *row, void *context) {
    if (piece_bytes(piece) == 0)
        return;
    MPI_Offset at[MAX_DIMS] = {0};
    size_t length = (size_t)(piece->count[piece->ndims - 1] * piece->elem);
    for (;;) {
        row(piece, in_file(piece, at), in_memory(piece, at), length, context);
        int d = piece->ndims - 2;
        while (d >= 0 && ++at[d] == piece->count[d])
            at[d--] = 0;
        if (d < 0)
            return;
    }
}

struct filling {
    uint64_t seed;
    unsigned char *memory;
};

static void fill_row(const struct piece *piece, MPI_Offset offset, size_t memory, size_t length,
                     void *context) {
    (void)piece;
    struct filling *filling = context;
    content_fill(filling->seed, (uint64_t)offset, filling->memory + memory, length);
}

void *piece_blank(const struct piece *piece) {
    size_t bytes = piece_memory(piece);
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory)
        fail("there is no memory for %zu bytes of %s", bytes, piece->name);
    memset(memory, GUARD_BYTE, bytes);
    return memory;
}

void *piece_filled(const struct piece *piece, uint64_t seed) {
    struct filling filling = {seed, piece_blank(piece)};
    each_row(piece, fill_row, &filling);
    return filling.memory;
}

struct checking {
    uint64_t seed;
    const unsigned char *memory;
    size_t seen; /* memory has been checked up to here */
    struct wrong *wrong;
};

static void check_guards(struct checking *checking, const struct piece *piece, size_t until) {
    for (; checking->seen < until; checking->seen++)
        if (checking->memory[checking->seen] != GUARD_BYTE)
            wrong_note(checking->wrong, piece_first(piece), checking->memory[checking->seen],
                       GUARD_BYTE, "a guard cell of it");
}

static void check_row(const struct piece *piece, MPI_Offset offset, size_t memory, size_t length,
                      void *context) {
    struct checking *checking = context;
    check_guards(checking, piece, memory);
    const unsigned char *bytes = checking->memory + memory;
    size_t good = content_check(checking->seed, (uint64_t)offset, bytes, length);
    if (good < length) {
        MPI_Offset at = offset + (MPI_Offset)good;
        wrong_note(checking->wrong, at, bytes[good], content_byte(checking->seed, (uint64_t)at),
                   piece->name);
    }
    checking->seen = memory + length;
}

void piece_check(const struct piece *piece, uint64_t seed, const void *memory,
                 struct wrong *wrong) {
    struct checking checking = {seed, memory, 0, wrong};
    each_row(piece, check_row, &checking);
    if (piece_bytes(piece) != 0)
        check_guards(&checking, piece, piece_memory(piece));
}

void wrong_note(struct wrong *wrong, MPI_Offset offset, unsigned char is, unsigned char expected,
                const char *where) {
    if (wrong->offset >= 0 && wrong->offset <= offset)
        return;
    wrong->offset = offset;
    wrong->is = is;
    wrong->expected = expected;
    snprintf(wrong->where, sizeof wrong->where, "%s", where);
}
