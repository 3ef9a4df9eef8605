/* Ranks change what other ranks wrote, one after another, in nonatomic mode: with the construct of
 * the standard (sync, barrier, sync) while the file stays open, and from a close to an open. */
#include "conform.h"

#include <stdlib.h>

enum { NUMBERS = 3000 };

/* Reads the result of the previous turns, and adds to it. */
static void change(MPI_File file, int turn) {
    static int64_t numbers[NUMBERS];
    if (turn > 0)
        must(MPI_File_read_at(file, 0, numbers, NUMBERS, MPI_INT64_T, MPI_STATUS_IGNORE),
             "MPI_File_read_at");
    for (int i = 0; i < NUMBERS; i++) {
        int64_t expected = turn == 0 ? 0 : (int64_t)turn * (i + 1);
        if (turn > 0 && numbers[i] != expected)
            fail("turn %d: number %d is %lld, expected %lld", turn, i, (long long)numbers[i],
                 (long long)expected);
        numbers[i] = expected + i + 1;
    }
    must(MPI_File_write_at(file, 0, numbers, NUMBERS, MPI_INT64_T, MPI_STATUS_IGNORE),
         "MPI_File_write_at");
}

static void synced(const char *path) {
    MPI_File file = create_file(path);
    for (int turn = 0; turn < 2 * ranks; turn++) {
        if (turn % ranks == rank)
            change(file, turn);
        sync_barrier_sync(file);
    }
    close_file(&file);
}

static void closed(const char *path) {
    for (int turn = 0; turn < 2 * ranks; turn++) {
        MPI_File file = create_file(path);
        if (turn % ranks == rank)
            change(file, turn);
        close_file(&file);
        barrier();
    }
}

/* One rank writes while the others wait; then all read the data through the handles that they have.
 */
static void told(const char *path) {
    enum { PART = 20011 };
    MPI_File file = create_file(path);
    for (int writer = 0; writer < ranks; writer++) {
        if (writer == rank)
            write_at(file, (MPI_Offset)writer * PART, 80, PART);
        sync_barrier_sync(file);
        read_expecting(file, (MPI_Offset)writer * PART, 80, PART);
        barrier();
    }
    close_file(&file);
    expect_file(path, 80, (MPI_Offset)PART * ranks);
}

const struct test turn_tests[] = {
    {"turns_synced", synced},
    {"turns_closed", closed},
    {"turns_told", told},
    {0},
};
