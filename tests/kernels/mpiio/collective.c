/* Collective writes and reads: the data of all ranks in one call is in the file afterwards. */
#include "conform.h"

#include <stdlib.h>

enum { RUN = 1013, RUNS = 40 };

/* Blocks of odd sizes that touch each other, by explicit offset; every third rank has no data. */
static void blocks(const char *path) {
    MPI_File file = create_file(path);
    MPI_Offset round_starts = 0;
    for (int round = 0; round < 3; round++) {
        MPI_Offset at = round_starts, mine = 0;
        int length = 0;
        for (int r = 0; r < ranks; r++) {
            int of_r = 3001 + (int)draw(1, (uint64_t)(round * 100 + r), 9000);
            if (r % 3 == 2)
                of_r = 0;
            if (r == rank)
                mine = at, length = of_r;
            at += of_r;
        }
        round_starts = at;
        void *bytes = content(1, mine, (size_t)length);
        must(MPI_File_write_at_all(file, mine, bytes, length, MPI_BYTE, MPI_STATUS_IGNORE),
             "MPI_File_write_at_all");
        free(bytes);
    }
    close_file(&file);
    expect_file(path, 1, round_starts);
}

static MPI_Datatype turns(int run) {
    MPI_Datatype type, whole;
    must(MPI_Type_contiguous(run, MPI_BYTE, &type), "MPI_Type_contiguous");
    must(MPI_Type_create_resized(type, 0, (MPI_Aint)run * ranks, &whole),
         "MPI_Type_create_resized");
    must(MPI_Type_commit(&whole), "MPI_Type_commit");
    free_type(&type);
    return whole;
}

/* Returns the rank's share when ranks take turns in runs of RUN bytes, with content of `seed`. */
static unsigned char *share_of(int owner, uint64_t seed) {
    unsigned char *bytes = blank((size_t)RUN * RUNS);
    for (int i = 0; i < RUNS; i++)
        content_fill(seed, ((uint64_t)i * (uint64_t)ranks + (uint64_t)owner) * RUN,
                     bytes + i * RUN, RUN);
    return bytes;
}

static void write_turns(MPI_File file, uint64_t seed) {
    MPI_Datatype type = turns(RUN);
    unsigned char *bytes = share_of(rank, seed);
    view_bytes(file, (MPI_Offset)rank * RUN, type);
    /* Written in three calls that do not end where a run ends. */
    int cuts[] = {0, 7 * RUN + 100, 23 * RUN - 1, RUNS * RUN};
    for (int c = 0; c < 3; c++)
        must(MPI_File_write_all(file, bytes + cuts[c], cuts[c + 1] - cuts[c], MPI_BYTE,
                                MPI_STATUS_IGNORE),
             "MPI_File_write_all");
    free(bytes);
    free_type(&type);
}

/* Ranks take turns; through its view each rank sees one sequence. */
static void interleaved(const char *path) {
    MPI_File file = create_file(path);
    write_turns(file, 2);
    close_file(&file);
    expect_file(path, 2, (MPI_Offset)RUN * RUNS * ranks);
}

/* Writes over an older file that is opened again: none of its content may be left. */
static void rewritten(const char *path) {
    for (uint64_t seed = 3; seed < 6; seed++) {
        MPI_File file = create_file(path);
        write_turns(file, seed);
        close_file(&file);
    }
    expect_file(path, 5, (MPI_Offset)RUN * RUNS * ranks);
}

/* Another rank's data is read collectively through the same handle after sync, barrier, sync. */
static void read_all(const char *path) {
    MPI_File file = create_file(path);
    write_turns(file, 6);
    sync_barrier_sync(file);
    int other = (rank + ranks / 2 + 1) % ranks;
    MPI_Datatype type = turns(RUN);
    unsigned char *expected = share_of(other, 6), *bytes = blank((size_t)RUN * RUNS);
    view_bytes(file, (MPI_Offset)other * RUN, type);
    must(MPI_File_read_all(file, bytes, RUN * RUNS, MPI_BYTE, MPI_STATUS_IGNORE),
         "MPI_File_read_all");
    for (int i = 0; i < RUN * RUNS; i++)
        if (bytes[i] != expected[i])
            fail("byte %d of the share of rank %d is 0x%02x, expected 0x%02x", i, other, bytes[i],
                 expected[i]);
    free(bytes);
    free(expected);
    free_type(&type);
    close_file(&file);
    expect_file(path, 6, (MPI_Offset)RUN * RUNS * ranks);
}

const struct test collective_tests[] = {
    {"collective_blocks", blocks},
    {"collective_interleaved", interleaved},
    {"collective_rewritten", rewritten},
    {"collective_read", read_all},
    {0},
};
