/* Non-contiguous types in the file and in memory, written independently and collectively, with each
 * setting of ROMIO's data sieving. Sieving reads a range, changes the rank's bytes and writes the
 * whole range back under a lock: so every rank rewrites the bytes of all other ranks, and no byte
 * may be lost. */
#include "conform.h"

#include <stdlib.h>
#include <string.h>

enum { VECTOR, INDEXED, SUBARRAY, DARRAY, KINDS };
enum { AREA = 12000 }; /* average bytes for each rank, in each kind's region */

struct share {
    MPI_Datatype type;     /* in the file, from the region's start */
    unsigned char *owned;  /* for each byte of the region: does this rank own it? */
    int bytes;             /* number of bytes that it owns */
    MPI_Offset region;     /* bytes of all ranks */
};

static void own(struct share *share, MPI_Offset from, MPI_Offset length) {
    memset(share->owned + from, 1, (size_t)length);
    share->bytes += (int)length;
}

static void begin(struct share *share, MPI_Offset region) {
    share->region = region;
    share->bytes = 0;
    share->owned = calloc(1, (size_t)region);
    if (!share->owned)
        fail("there is no memory for %lld bytes", (long long)region);
}

/* Runs of 37 bytes in turn. */
static void vector(struct share *share) {
    enum { RUN = 37, RUNS = AREA / RUN };
    begin(share, (MPI_Offset)RUN * RUNS * ranks);
    for (int i = 0; i < RUNS; i++)
        own(share, ((MPI_Offset)i * ranks + rank) * RUN, RUN);
    MPI_Datatype runs;
    must(MPI_Type_vector(RUNS, RUN, RUN * ranks, MPI_BYTE, &runs), "MPI_Type_vector");
    int one = 1;
    MPI_Aint at = (MPI_Aint)rank * RUN;
    must(MPI_Type_create_hindexed(1, &one, &at, runs, &share->type), "MPI_Type_create_hindexed");
    free_type(&runs);
}

/* Runs of 0 to 97 bytes in turn. */
static void indexed(struct share *share) {
    enum { RUNS = AREA / 50 };
    static int lengths[RUNS];
    static MPI_Aint places[RUNS];
    MPI_Offset end = 0;
    for (int i = 0; i < RUNS; i++)
        for (int r = 0; r < ranks; r++) {
            int length = (int)draw(30, (uint64_t)(i * 1000 + r), 98);
            if (r == rank)
                lengths[i] = length, places[i] = (MPI_Aint)end;
            end += length;
        }
    begin(share, end);
    for (int i = 0; i < RUNS; i++)
        own(share, places[i], lengths[i]);
    must(MPI_Type_create_hindexed(RUNS, lengths, places, MPI_BYTE, &share->type),
         "MPI_Type_create_hindexed");
}

/* Columns of a matrix of bytes. */
static void columns(struct share *share) {
    enum { ROWS = 100, COLUMNS = AREA / ROWS };
    begin(share, (MPI_Offset)ROWS * COLUMNS * ranks);
    for (int row = 0; row < ROWS; row++)
        own(share, ((MPI_Offset)row * ranks + rank) * COLUMNS, COLUMNS);
    int size[] = {ROWS, COLUMNS * ranks}, count[] = {ROWS, COLUMNS}, start[] = {0, rank * COLUMNS};
    must(MPI_Type_create_subarray(2, size, count, start, MPI_ORDER_C, MPI_BYTE, &share->type),
         "MPI_Type_create_subarray");
}

/* A matrix distributed in both dimensions, in blocks of 7 x 11. */
static void dealt(struct share *share) {
    enum { DEAL_ROWS = 7, DEAL_COLUMNS = 11 };
    int grid[2] = {0, 0};
    MPI_Dims_create(ranks, 2, grid);
    int rows = 6 * DEAL_ROWS * grid[0], columns = 10 * DEAL_COLUMNS * grid[1];
    begin(share, (MPI_Offset)rows * columns);
    for (int row = 0; row < rows; row++)
        for (int column = 0; column < columns; column++)
            if (row / DEAL_ROWS % grid[0] * grid[1] + column / DEAL_COLUMNS % grid[1] == rank)
                own(share, (MPI_Offset)row * columns + column, 1);
    int size[] = {rows, columns}, how[] = {MPI_DISTRIBUTE_CYCLIC, MPI_DISTRIBUTE_CYCLIC};
    int blocks[] = {DEAL_ROWS, DEAL_COLUMNS};
    must(MPI_Type_create_darray(ranks, rank, 2, size, how, blocks, grid, MPI_ORDER_C, MPI_BYTE,
                                &share->type),
         "MPI_Type_create_darray");
}

static void describe(struct share *share, int kind) {
    static void (*const how[KINDS])(struct share *) = {vector, indexed, columns, dealt};
    how[kind](share);
    must(MPI_Type_commit(&share->type), "MPI_Type_commit");
}

/* Returns the rank's bytes of a region in file order, `spread` bytes apart. */
static unsigned char *gather(const struct share *share, MPI_Offset region_starts, uint64_t seed,
                             int spread) {
    unsigned char *bytes = blank((size_t)share->bytes * (size_t)spread);
    size_t n = 0;
    for (MPI_Offset i = 0; i < share->region; i++)
        if (share->owned[i])
            bytes[n++ * (size_t)spread] = content_byte(seed, (uint64_t)(region_starts + i));
    return bytes;
}

static void write_region(MPI_File file, const struct share *share, MPI_Offset region_starts,
                         uint64_t seed, int spread, bool together) {
    unsigned char *bytes = gather(share, region_starts, seed, spread);
    view_bytes(file, region_starts, share->type);
    /* Written in two calls, so that the second begins inside the type. */
    int cuts[] = {0, share->bytes / 3, share->bytes};
    for (int c = 0; c < 2; c++) {
        int count = cuts[c + 1] - cuts[c];
        MPI_Datatype memory;
        must(MPI_Type_vector(count, 1, spread, MPI_BYTE, &memory), "MPI_Type_vector");
        must(MPI_Type_commit(&memory), "MPI_Type_commit");
        const void *from = bytes + (size_t)cuts[c] * (size_t)spread;
        if (together)
            must(MPI_File_write_all(file, from, 1, memory, MPI_STATUS_IGNORE),
                 "MPI_File_write_all");
        else
            must(MPI_File_write(file, from, 1, memory, MPI_STATUS_IGNORE), "MPI_File_write");
        free_type(&memory);
    }
    free(bytes);
}

/* All kinds of types in one file, region by region, over older bytes, which sieving reads. */
static void all_kinds(const char *path, const char *key, const char *value, bool together) {
    MPI_Info info = MPI_INFO_NULL;
    if (key) {
        must(MPI_Info_create(&info), "MPI_Info_create");
        must(MPI_Info_set(info, key, value), "MPI_Info_set");
    }
    struct share shares[KINDS];
    MPI_Offset end = 0;
    for (int kind = 0; kind < KINDS; kind++) {
        describe(&shares[kind], kind);
        end += shares[kind].region;
    }
    MPI_File file = open_file(path, MPI_MODE_CREATE | MPI_MODE_RDWR, info);
    if (rank == ranks - 1)
        write_at(file, 0, 29, (int)end);
    sync_barrier_sync(file);
    MPI_Offset at = 0;
    for (int kind = 0; kind < KINDS; kind++) {
        write_region(file, &shares[kind], at, 30, 1 + kind % 2, together);
        at += shares[kind].region;
        free_type(&shares[kind].type);
        free(shares[kind].owned);
    }
    close_file(&file);
    if (info != MPI_INFO_NULL)
        MPI_Info_free(&info);
    expect_file(path, 30, end);
}

static void independent(const char *path) {
    all_kinds(path, NULL, NULL, false);
}
static void independent_sieving(const char *path) {
    all_kinds(path, "romio_ds_write", "enable", false);
}
static void independent_no_sieving(const char *path) {
    all_kinds(path, "romio_ds_write", "disable", false);
}
static void independent_automatic(const char *path) {
    all_kinds(path, "romio_ds_write", "automatic", false);
}
static void collective(const char *path) {
    all_kinds(path, NULL, NULL, true);
}
static void collective_sieving(const char *path) {
    all_kinds(path, "romio_ds_write", "enable", true);
}
static void collective_no_sieving(const char *path) {
    all_kinds(path, "romio_ds_write", "disable", true);
}
/* Collective calls that are carried out independently. */
static void collective_apart(const char *path) {
    all_kinds(path, "romio_cb_write", "disable", true);
}

const struct test noncontiguous_tests[] = {
    {"noncontiguous_independent", independent},
    {"noncontiguous_independent_sieving", independent_sieving},
    {"noncontiguous_independent_no_sieving", independent_no_sieving},
    {"noncontiguous_independent_automatic", independent_automatic},
    {"noncontiguous_collective", collective},
    {"noncontiguous_collective_sieving", collective_sieving},
    {"noncontiguous_collective_no_sieving", collective_no_sieving},
    {"noncontiguous_collective_apart", collective_apart},
    {0},
};
