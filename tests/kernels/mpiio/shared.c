/* The shared file pointer: all ranks have one, so every access reads and moves it under a lock
 * between nodes. Records follow each other, none is lost and none is there twice, in an order that
 * only the ordered calls define. The records stay in the file: two runs leave the same ones in
 * different orders. */
#include "conform.h"

#include <stdlib.h>
#include <string.h>

enum { RECORD = 311, EACH = 6 };

/* A record begins with its owner and number; the rest is content. */
static void make_record(unsigned char *bytes, int owner, int number) {
    int32_t id[2] = {owner, number};
    memcpy(bytes, id, sizeof id);
    content_fill(1000 + (uint64_t)(owner * EACH + number), sizeof id, bytes + sizeof id,
                 RECORD - sizeof id);
}

/* Returns which record it is, as owner * EACH + number. Fails if it is no record, or incomplete. */
static int which_record(const unsigned char *bytes, MPI_Offset at) {
    int32_t id[2];
    unsigned char expected[RECORD];
    memcpy(id, bytes, sizeof id);
    if (id[0] < 0 || id[0] >= ranks || id[1] < 0 || id[1] >= EACH)
        fail("at offset %lld there is no record", (long long)at);
    make_record(expected, id[0], id[1]);
    for (int i = 0; i < RECORD; i++)
        if (bytes[i] != expected[i])
            fail("the record of rank %d at offset %lld is torn: byte %d is 0x%02x, expected 0x%02x",
                 id[0], (long long)at, i, bytes[i], expected[i]);
    return id[0] * EACH + id[1];
}

/* Each record must be there once, and each rank's own records in the order in which it wrote them. */
static void expect_records(const unsigned char *bytes, const char *where) {
    int total = ranks * EACH, *next = calloc((size_t)ranks, sizeof *next);
    if (!next)
        fail("there is no memory for %d numbers", ranks);
    for (int i = 0; i < total; i++) {
        int record = which_record(bytes + i * RECORD, (MPI_Offset)i * RECORD);
        if (record % EACH != next[record / EACH]++)
            fail("%s: record %d of rank %d is there twice, or before one written earlier", where,
                 record % EACH, record / EACH);
    }
    free(next);
}

static void close_with_records(MPI_File *file, const char *path) {
    close_file(file);
    unsigned char *bytes = read_file(path, (MPI_Offset)ranks * EACH * RECORD);
    expect_records(bytes, "after the close");
    free(bytes);
}

static void expect_shared_position(MPI_File file, MPI_Offset expected) {
    MPI_Offset at;
    barrier();
    must(MPI_File_get_position_shared(file, &at), "MPI_File_get_position_shared");
    if (at != expected)
        fail("the shared file pointer is at %lld, expected %lld", (long long)at,
             (long long)expected);
    barrier();
}

static void write_shared(const char *path) {
    int total = ranks * EACH * RECORD;
    MPI_File file = create_file(path);
    unsigned char record[RECORD];
    for (int i = 0; i < EACH; i++) {
        make_record(record, rank, i);
        must(MPI_File_write_shared(file, record, RECORD, MPI_BYTE, MPI_STATUS_IGNORE),
             "MPI_File_write_shared");
    }
    expect_shared_position(file, total);
    sync_barrier_sync(file);
    unsigned char *bytes = blank((size_t)total);
    must(MPI_File_read_at(file, 0, bytes, total, MPI_BYTE, MPI_STATUS_IGNORE),
         "MPI_File_read_at");
    expect_records(bytes, "write_shared");
    free(bytes);
    close_with_records(&file, path);
}

/* Every record is read by exactly one rank. */
static void read_shared(const char *path) {
    int total = ranks * EACH;
    MPI_File file = create_file(path);
    unsigned char record[RECORD];
    for (int i = 0; i < EACH; i++) {
        make_record(record, rank, i);
        must(MPI_File_write_at(file, (MPI_Offset)(rank * EACH + i) * RECORD, record, RECORD,
                               MPI_BYTE, MPI_STATUS_IGNORE),
             "MPI_File_write_at");
    }
    sync_barrier_sync(file);
    must(MPI_File_seek_shared(file, 0, MPI_SEEK_SET), "MPI_File_seek_shared");
    int *seen = calloc((size_t)total, sizeof *seen), *all = calloc((size_t)total, sizeof *all);
    if (!seen || !all)
        fail("there is no memory for %d numbers", total);
    for (int i = 0; i < EACH; i++) {
        must(MPI_File_read_shared(file, record, RECORD, MPI_BYTE, MPI_STATUS_IGNORE),
             "MPI_File_read_shared");
        seen[which_record(record, -1)]++;
    }
    must(MPI_Allreduce(seen, all, total, MPI_INT, MPI_SUM, MPI_COMM_WORLD), "MPI_Allreduce");
    for (int i = 0; i < total; i++)
        if (all[i] != 1)
            fail("record %d of rank %d was read %d times", i % EACH, i / EACH, all[i]);
    free(seen);
    free(all);
    expect_shared_position(file, (MPI_Offset)total * RECORD);
    close_with_records(&file, path);
}

/* Size of a rank's record in a round. Records are in the order of the ranks; some are empty. */
static int ordered_size(int round, int of_rank) {
    return (round + of_rank) % 4 == 3 ? 0 : 700 + 37 * of_rank + round;
}

static void ordered(const char *path) {
    MPI_File file = create_file(path);
    MPI_Offset end = 0;
    for (int round = 0; round < 4; round++) {
        MPI_Offset mine = end;
        for (int r = 0; r < ranks; r++) {
            mine += r < rank ? ordered_size(round, r) : 0;
            end += ordered_size(round, r);
        }
        int size = ordered_size(round, rank);
        void *bytes = content(42, mine, (size_t)size);
        if (round % 2 == 0) {
            must(MPI_File_write_ordered(file, bytes, size, MPI_BYTE, MPI_STATUS_IGNORE),
                 "MPI_File_write_ordered");
        } else {
            must(MPI_File_write_ordered_begin(file, bytes, size, MPI_BYTE),
                 "MPI_File_write_ordered_begin");
            must(MPI_File_write_ordered_end(file, bytes, MPI_STATUS_IGNORE),
                 "MPI_File_write_ordered_end");
        }
        free(bytes);
    }
    expect_shared_position(file, end);
    sync_barrier_sync(file);
    must(MPI_File_seek_shared(file, 0, MPI_SEEK_SET), "MPI_File_seek_shared");
    int share = (int)(end / ranks);
    void *bytes = blank((size_t)share);
    must(MPI_File_read_ordered(file, bytes, share, MPI_BYTE, MPI_STATUS_IGNORE),
         "MPI_File_read_ordered");
    expect(bytes, (MPI_Offset)rank * share, 42, (size_t)share, "read_ordered");
    free(bytes);
    close_file(&file);
    expect_file(path, 42, end);
}

const struct test shared_tests[] = {
    {"shared_write", write_shared},
    {"shared_read", read_shared},
    {"shared_ordered", ordered},
    {0},
};
