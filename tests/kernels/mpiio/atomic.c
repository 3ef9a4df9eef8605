/* Atomic mode: accesses of all ranks take effect as if they were made one after another, also where
 * they overlap, and without any sync. The file then holds the last of the writes, whichever rank
 * made it. */
#include "conform.h"

#include <stdlib.h>

enum { AREA = 40009, ROUNDS = 4 };

/* Returns the seed whose content all the bytes are; fails if there is none. */
static int whose(const unsigned char *bytes, int low, int high) {
    for (int seed = low; seed < high; seed++)
        if (content_check((uint64_t)seed, 0, bytes, AREA) == AREA)
            return seed;
    for (int seed = low; seed < high; seed++) {
        size_t good = content_check((uint64_t)seed, 0, bytes, AREA);
        if (good > 0)
            fail("the bytes up to offset %zu are those of write %d, the next is 0x%02x of another: "
                 "torn",
                 good, seed - low, bytes[good]);
    }
    fail("the first byte is 0x%02x, which nobody wrote", bytes[0]);
}

/* Returns the seed, which must be the same on all ranks. */
static int agree(int seed) {
    int low, high;
    must(MPI_Allreduce(&seed, &low, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD), "MPI_Allreduce");
    must(MPI_Allreduce(&seed, &high, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD), "MPI_Allreduce");
    if (low != high)
        fail("after the barrier one rank reads write %d and another write %d", low, high);
    return seed;
}

static void require_atomic(MPI_File file) {
    int flag = 0;
    must(MPI_File_set_atomicity(file, 1), "MPI_File_set_atomicity");
    must(MPI_File_get_atomicity(file, &flag), "MPI_File_get_atomicity");
    if (!flag)
        fail("atomic mode was set and is not");
}

/* All ranks write the same range at once, then half of them write while the others read, then the
 * other half, then all again. Each read must return one complete write; after a barrier all ranks
 * must see the same one. Returns the seed of the write that is left. */
static int overlap(MPI_File file, MPI_Datatype type) {
    view_bytes(file, 0, type);
    unsigned char *read = blank(AREA);
    int newest = 1000; /* seeds of the previous round begin here */
    int left = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int low = 1000 + round * ranks, high = low + ranks;
        bool writes = round % 3 == 0 || rank % 2 == round % 2 || ranks == 1;
        if (writes) {
            void *bytes = content((uint64_t)(low + rank), 0, AREA);
            must(MPI_File_write_at(file, 0, bytes, AREA, MPI_BYTE, MPI_STATUS_IGNORE),
                 "MPI_File_write_at");
            free(bytes);
        } else {
            for (int i = 0; i < 2; i++) {
                must(MPI_File_read_at(file, 0, read, AREA, MPI_BYTE, MPI_STATUS_IGNORE),
                     "MPI_File_read_at");
                whose(read, newest, high);
            }
        }
        barrier();
        must(MPI_File_read_at(file, 0, read, AREA, MPI_BYTE, MPI_STATUS_IGNORE),
             "MPI_File_read_at");
        left = agree(whose(read, low, high));
        barrier();
        newest = low;
    }
    free(read);
    return left;
}

static void contiguous(const char *path) {
    MPI_File file = create_file(path);
    require_atomic(file);
    int left = overlap(file, MPI_BYTE);
    close_file(&file);
    expect_file(path, (uint64_t)left, AREA);
}

/* The same through a view with holes: a write consists of many pieces and is still atomic, and the
 * bytes in the holes are not changed. */
static void strided(const char *path) {
    enum { RUN = 101, STRIDE = 150, SIZE = AREA / RUN * STRIDE + RUN, BEFORE = 51 };
    MPI_Datatype run, type;
    must(MPI_Type_contiguous(RUN, MPI_BYTE, &run), "MPI_Type_contiguous");
    must(MPI_Type_create_resized(run, 0, STRIDE, &type), "MPI_Type_create_resized");
    must(MPI_Type_commit(&type), "MPI_Type_commit");
    free_type(&run);
    MPI_File file = create_file(path);
    require_atomic(file);
    if (rank == ranks - 1)
        write_at(file, 0, BEFORE, SIZE);
    barrier();
    int left = overlap(file, type);
    close_file(&file);
    free_type(&type);

    unsigned char *bytes = read_file(path, SIZE), *expected = content(BEFORE, 0, SIZE);
    for (int at = 0; at < AREA; at += RUN) {
        int length = AREA - at < RUN ? AREA - at : RUN;
        content_fill((uint64_t)left, (uint64_t)at, expected + at / RUN * STRIDE, (size_t)length);
    }
    for (int i = 0; i < SIZE; i++)
        if (bytes[i] != expected[i])
            fail("after the close offset %d is 0x%02x, expected 0x%02x", i, bytes[i], expected[i]);
    free(bytes);
    free(expected);
}

/* A counter that ranks pass on by message: they read, add and write, without any sync. */
static void counter(const char *path) {
    enum { NUMBERS = 500, TURNS = 3 };
    MPI_File file = create_file(path);
    require_atomic(file);
    int64_t numbers[NUMBERS] = {0};
    if (rank == 0)
        must(MPI_File_write_at(file, 0, numbers, NUMBERS, MPI_INT64_T, MPI_STATUS_IGNORE),
             "MPI_File_write_at");
    barrier();
    int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
    for (int turn = 0; turn < TURNS; turn++) {
        if ((turn > 0 || rank > 0) && ranks > 1)
            must(MPI_Recv(NULL, 0, MPI_BYTE, left, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
                 "MPI_Recv");
        must(MPI_File_read_at(file, 0, numbers, NUMBERS, MPI_INT64_T, MPI_STATUS_IGNORE),
             "MPI_File_read_at");
        for (int i = 0; i < NUMBERS; i++) {
            int64_t expected = (int64_t)(turn * ranks + rank) * (i + 1);
            if (numbers[i] != expected)
                fail("counter %d is %lld, expected %lld: a change was lost", i,
                     (long long)numbers[i], (long long)expected);
            numbers[i] += i + 1;
        }
        must(MPI_File_write_at(file, 0, numbers, NUMBERS, MPI_INT64_T, MPI_STATUS_IGNORE),
             "MPI_File_write_at");
        if (ranks > 1 && (turn < TURNS - 1 || rank < ranks - 1))
            must(MPI_Send(NULL, 0, MPI_BYTE, right, 0, MPI_COMM_WORLD), "MPI_Send");
    }
    close_file(&file);
    barrier();
}

const struct test atomic_tests[] = {
    {"atomic_contiguous", contiguous},
    {"atomic_strided", strided},
    {"atomic_counter", counter},
    {0},
};
