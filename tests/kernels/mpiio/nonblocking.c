/* Nonblocking and split collective writes and reads: they are complete once they have been waited
 * for. */
#include "conform.h"

#include <stdlib.h>

enum { PART = 5003, PARTS = 12 };

static MPI_Offset place(int part, int of_rank) {
    return ((MPI_Offset)part * ranks + of_rank) * PART;
}

static MPI_Offset whole(void) {
    return (MPI_Offset)PART * PARTS * ranks;
}

/* Starts many writes at once; the buffers must not change until the wait. */
static void write_at_once(MPI_File file, uint64_t seed) {
    void *bytes[PARTS];
    MPI_Request requests[PARTS];
    for (int i = 0; i < PARTS; i++) {
        bytes[i] = content(seed, place(i, rank), PART);
        must(MPI_File_iwrite_at(file, place(i, rank), bytes[i], PART, MPI_BYTE, &requests[i]),
             "MPI_File_iwrite_at");
    }
    for (int i = 0; i < PARTS; i++) {
        /* MPI_Testall is not used: MPICH 4.0.2 fails an assertion when it is called again. */
        for (int done = 0; !done;)
            must(MPI_Test(&requests[i], &done, MPI_STATUS_IGNORE), "MPI_Test");
        free(bytes[i]);
    }
}

static void read_at_once(MPI_File file, uint64_t seed) {
    void *bytes[PARTS];
    MPI_Request requests[PARTS];
    int other = (rank + ranks / 2 + 1) % ranks;
    for (int i = 0; i < PARTS; i++) {
        bytes[i] = blank(PART);
        must(MPI_File_iread_at(file, place(i, other), bytes[i], PART, MPI_BYTE, &requests[i]),
             "MPI_File_iread_at");
    }
    must(MPI_Waitall(PARTS, requests, MPI_STATUSES_IGNORE), "MPI_Waitall");
    for (int i = 0; i < PARTS; i++) {
        expect(bytes[i], place(i, other), seed, PART, "iread_at");
        free(bytes[i]);
    }
}

/* The data is visible from a close to an open. */
static void at_once(const char *path) {
    MPI_File file = create_file(path);
    write_at_once(file, 60);
    close_file(&file);
    barrier();
    file = open_file(path, MPI_MODE_RDONLY, MPI_INFO_NULL);
    read_at_once(file, 60);
    close_file(&file);
    expect_file(path, 60, whole());
}

/* The data is visible through handles that stay open. */
static void synced(const char *path) {
    MPI_File file = create_file(path);
    write_at_once(file, 66);
    sync_barrier_sync(file);
    read_at_once(file, 66);
    close_file(&file);
    expect_file(path, 66, whole());
}

static MPI_Datatype turns(void) {
    MPI_Datatype part, type;
    must(MPI_Type_contiguous(PART, MPI_BYTE, &part), "MPI_Type_contiguous");
    must(MPI_Type_create_resized(part, 0, (MPI_Aint)PART * ranks, &type),
         "MPI_Type_create_resized");
    must(MPI_Type_commit(&type), "MPI_Type_commit");
    free_type(&part);
    return type;
}

static unsigned char *share(uint64_t seed) {
    unsigned char *bytes = blank((size_t)PART * PARTS);
    for (int i = 0; i < PARTS; i++)
        content_fill(seed, (uint64_t)place(i, rank), bytes + i * PART, PART);
    return bytes;
}

enum way { POINTER, ALL, AT_ALL, BEGIN_END, AT_BEGIN_END };

/* Through a view in which ranks take turns, in two accesses. */
static void through_view(const char *path, enum way way, uint64_t seed) {
    MPI_File file = create_file(path);
    MPI_Datatype type = turns();
    unsigned char *bytes = share(seed);
    view_bytes(file, place(0, rank), type);
    MPI_Request request;
    int cuts[] = {0, PART * 5 + 77, PART * PARTS};
    for (int c = 0; c < 2; c++) {
        const void *from = bytes + cuts[c];
        int count = cuts[c + 1] - cuts[c];
        switch (way) {
        case POINTER:
            must(MPI_File_iwrite(file, from, count, MPI_BYTE, &request), "MPI_File_iwrite");
            break;
        case ALL:
            must(MPI_File_iwrite_all(file, from, count, MPI_BYTE, &request),
                 "MPI_File_iwrite_all");
            break;
        case AT_ALL:
            must(MPI_File_iwrite_at_all(file, cuts[c], from, count, MPI_BYTE, &request),
                 "MPI_File_iwrite_at_all");
            break;
        case BEGIN_END:
            must(MPI_File_write_all_begin(file, from, count, MPI_BYTE),
                 "MPI_File_write_all_begin");
            must(MPI_File_write_all_end(file, from, MPI_STATUS_IGNORE), "MPI_File_write_all_end");
            break;
        case AT_BEGIN_END:
            must(MPI_File_write_at_all_begin(file, cuts[c], from, count, MPI_BYTE),
                 "MPI_File_write_at_all_begin");
            must(MPI_File_write_at_all_end(file, from, MPI_STATUS_IGNORE),
                 "MPI_File_write_at_all_end");
            break;
        }
        if (way == POINTER || way == ALL || way == AT_ALL)
            must(MPI_Wait(&request, MPI_STATUS_IGNORE), "MPI_Wait");
    }
    free(bytes);
    free_type(&type);
    close_file(&file);
    expect_file(path, seed, whole());
}

static void pointer(const char *path) {
    through_view(path, POINTER, 61);
}
static void all(const char *path) {
    through_view(path, ALL, 62);
}
static void at_all(const char *path) {
    through_view(path, AT_ALL, 63);
}
static void begin_end(const char *path) {
    through_view(path, BEGIN_END, 64);
}
static void at_begin_end(const char *path) {
    through_view(path, AT_BEGIN_END, 65);
}

const struct test nonblocking_tests[] = {
    {"nonblocking_at_once", at_once},
    {"nonblocking_synced", synced},
    {"nonblocking_pointer", pointer},
    {"nonblocking_all", all},
    {"nonblocking_at_all", at_all},
    {"split_all", begin_end},
    {"split_at_all", at_begin_end},
    {0},
};
