/* Independent writes: ranks do not wait for each other, and write places that touch but do not
 * overlap. The standard promises every byte after the close, and after sync, barrier, sync. */
#include "conform.h"

#include <stdlib.h>

/* Each rank has its own region, written in pieces of any size, last piece first. */
static void regions(const char *path) {
    enum { REGION = 30011 };
    MPI_File file = create_file(path);
    MPI_Offset low = (MPI_Offset)rank * REGION, high = low + REGION;
    for (unsigned i = 0; high > low; i++) {
        int length = 1 + (int)draw(10, (uint64_t)rank * 1000 + i, 4000);
        if (length > high - low)
            length = (int)(high - low);
        high -= length;
        write_at(file, high, 10, length);
    }
    close_file(&file);
    expect_file(path, 10, (MPI_Offset)REGION * ranks);
}

/* Every rank writes every `ranks`-th group of three bytes, so all ranks write to every page. */
static void neighbours(const char *path) {
    enum { GROUP = 3, GROUPS = 60 };
    MPI_File file = create_file(path);
    for (int i = 0; i < GROUPS; i++)
        write_at(file, ((MPI_Offset)i * ranks + rank) * GROUP, 11, GROUP);
    close_file(&file);
    expect_file(path, 11, (MPI_Offset)GROUP * GROUPS * ranks);
}

/* Individual file pointers: each rank has its own, which moves by the amount that was written. */
static void pointers(const char *path) {
    enum { STEP = 2003, STEPS = 9 };
    MPI_File file = create_file(path);
    MPI_Offset base = (MPI_Offset)rank * STEP * STEPS, at;
    must(MPI_File_seek(file, base, MPI_SEEK_SET), "MPI_File_seek");
    for (int i = 0; i < STEPS; i++) {
        must(MPI_File_get_position(file, &at), "MPI_File_get_position");
        if (at != base + (MPI_Offset)i * STEP)
            fail("the file pointer is at %lld, expected %lld", (long long)at,
                 (long long)(base + (MPI_Offset)i * STEP));
        void *bytes = content(12, at, STEP);
        must(MPI_File_write(file, bytes, STEP, MPI_BYTE, MPI_STATUS_IGNORE), "MPI_File_write");
        free(bytes);
    }
    sync_barrier_sync(file);
    int other = (rank + ranks / 2 + 1) % ranks;
    read_expecting(file, (MPI_Offset)other * STEP * STEPS, 12, STEP * STEPS);
    close_file(&file);
    expect_file(path, 12, (MPI_Offset)STEP * STEPS * ranks);
}

/* One rank alone opens, writes and closes (MPI_COMM_SELF), then the next one: close-to-open. */
static void one_after_another(const char *path) {
    enum { PART = 10007 };
    for (int turn = 0; turn < ranks; turn++) {
        if (turn == rank) {
            MPI_File file;
            must(MPI_File_open(MPI_COMM_SELF, path, MPI_MODE_CREATE | MPI_MODE_RDWR,
                               MPI_INFO_NULL, &file),
                 "MPI_File_open");
            if (turn > 0)
                read_expecting(file, 0, 13, turn * PART);
            write_at(file, (MPI_Offset)turn * PART, 13, PART);
            close_file(&file);
        }
        barrier();
    }
    expect_file(path, 13, (MPI_Offset)PART * ranks);
}

const struct test independent_tests[] = {
    {"independent_regions", regions},
    {"independent_neighbours", neighbours},
    {"independent_pointers", pointers},
    {"independent_turns", one_after_another},
    {0},
};
