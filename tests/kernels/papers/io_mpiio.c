/* The kernels through MPI-IO: one plain file in which each array begins at its base. */
#include "kernel.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "../common/content.h"
#include "../common/fail.h"

const char *const io_name = "mpiio";

enum { SLICE = 1 << 20 };

static MPI_Datatype element(const struct piece *piece) {
    return piece->elem == 8 ? MPI_DOUBLE : piece->elem == 4 ? MPI_INT : MPI_BYTE;
}

static MPI_Datatype subarray(const struct piece *piece, const MPI_Offset *size,
                             const MPI_Offset *start) {
    int sizes[MAX_DIMS], subsizes[MAX_DIMS], starts[MAX_DIMS];
    for (int d = 0; d < piece->ndims; d++) {
        if (size[d] > INT_MAX)
            fail("%s has a dimension of %lld elements; MPI takes %d", piece->name,
                 (long long)size[d], INT_MAX);
        sizes[d] = (int)size[d];
        subsizes[d] = (int)piece->count[d];
        starts[d] = (int)start[d];
    }
    MPI_Datatype type;
    must(MPI_Type_create_subarray(piece->ndims, sizes, subsizes, starts, MPI_ORDER_C,
                                  element(piece), &type),
         "MPI_Type_create_subarray");
    must(MPI_Type_commit(&type), "MPI_Type_commit");
    return type;
}

/* The piece in memory as `count` of `type`: plain elements, or the part inside its guard cells. */
struct memory {
    MPI_Datatype type;
    int count;
    bool made;
};

static struct memory memory_of(const struct piece *piece) {
    size_t elements = piece_bytes(piece) / (size_t)piece->elem;
    if (elements == 0 || piece->guard == 0) {
        if (elements > INT_MAX)
            fail("a rank has %zu elements of %s; MPI takes %d at a time", elements, piece->name,
                 INT_MAX);
        return (struct memory){element(piece), (int)elements, false};
    }
    MPI_Offset size[MAX_DIMS], start[MAX_DIMS];
    for (int d = 0; d < piece->ndims; d++) {
        size[d] = piece_memory_dim(piece, d);
        start[d] = (size[d] - piece->count[d]) / 2;
    }
    return (struct memory){subarray(piece, size, start), 1, true};
}

static void memory_done(struct memory *memory) {
    if (memory->made)
        must(MPI_Type_free(&memory->type), "MPI_Type_free");
}

/* Sets the view through which the piece is one sequence. */
static void view(MPI_File file, const struct piece *piece) {
    bool some = piece_bytes(piece) != 0;
    MPI_Datatype type = some ? subarray(piece, piece->size, piece->start) : element(piece);
    must(MPI_File_set_view(file, piece->base, element(piece), type, "native", MPI_INFO_NULL),
         "MPI_File_set_view");
    if (some)
        must(MPI_Type_free(&type), "MPI_Type_free");
}

static void put_run(MPI_File file, const struct piece *piece, const void *data,
                    struct memory *memory, enum mode mode, MPI_Request *request) {
    MPI_Offset at = piece_first(piece);
    int count = memory->count;
    MPI_Datatype type = memory->type;
    switch (mode) {
    case COLLECTIVE:
        must(MPI_File_write_at_all(file, at, data, count, type, MPI_STATUS_IGNORE),
             "MPI_File_write_at_all");
        break;
    case INDEPENDENT:
        if (count != 0)
            must(MPI_File_write_at(file, at, data, count, type, MPI_STATUS_IGNORE),
                 "MPI_File_write_at");
        break;
    case SPLIT:
        must(MPI_File_write_at_all_begin(file, at, data, count, type),
             "MPI_File_write_at_all_begin");
        must(MPI_File_write_at_all_end(file, data, MPI_STATUS_IGNORE),
             "MPI_File_write_at_all_end");
        break;
    case NONBLOCKING:
        must(MPI_File_iwrite_at(file, at, data, count, type, request), "MPI_File_iwrite_at");
        break;
    }
}

static void put_view(MPI_File file, const struct piece *piece, const void *data,
                     struct memory *memory, enum mode mode) {
    int count = memory->count;
    MPI_Datatype type = memory->type;
    MPI_Request request;
    view(file, piece);
    switch (mode) {
    case COLLECTIVE:
        must(MPI_File_write_all(file, data, count, type, MPI_STATUS_IGNORE), "MPI_File_write_all");
        break;
    case INDEPENDENT:
        must(MPI_File_write(file, data, count, type, MPI_STATUS_IGNORE), "MPI_File_write");
        break;
    case SPLIT:
        must(MPI_File_write_all_begin(file, data, count, type), "MPI_File_write_all_begin");
        must(MPI_File_write_all_end(file, data, MPI_STATUS_IGNORE), "MPI_File_write_all_end");
        break;
    case NONBLOCKING:
        must(MPI_File_iwrite(file, data, count, type, &request), "MPI_File_iwrite");
        must(MPI_Wait(&request, MPI_STATUS_IGNORE), "MPI_Wait"); /* before the next view */
        break;
    }
}

static MPI_File open_for_writing(const char *path, MPI_Comm comm, const struct options *options) {
    MPI_File file;
    must(MPI_File_open(comm, path, MPI_MODE_CREATE | MPI_MODE_WRONLY, options->info, &file), path);
    return file;
}

static void finish(MPI_File *file, const struct options *options) {
    if (options->sync)
        must(MPI_File_sync(*file), "MPI_File_sync");
    must(MPI_File_close(file), "MPI_File_close");
}

void io_write(const char *path, MPI_Comm comm, const struct plan *plan,
              const struct options *options, struct times *times) {
    void **data = malloc((size_t)plan->count * sizeof *data);
    struct memory *memory = malloc((size_t)plan->count * sizeof *memory);
    MPI_Request *requests = malloc((size_t)plan->count * sizeof *requests);
    if (!data || !memory || !requests)
        fail("there is no memory for %d pieces", plan->count);
    for (int i = 0; i < plan->count; i++) {
        data[i] = piece_filled(&plan->pieces[i], options->seed);
        memory[i] = memory_of(&plan->pieces[i]);
        requests[i] = MPI_REQUEST_NULL;
    }

    must(MPI_Barrier(comm), "MPI_Barrier");
    double began = MPI_Wtime();
    MPI_File file = open_for_writing(path, comm, options);
    double opened = MPI_Wtime();
    for (int i = 0; i < plan->count; i++) {
        const struct piece *piece = &plan->pieces[i];
        if (piece->contiguous)
            put_run(file, piece, data[i], &memory[i], options->mode, &requests[i]);
        else
            put_view(file, piece, data[i], &memory[i], options->mode);
    }
    must(MPI_Waitall(plan->count, requests, MPI_STATUSES_IGNORE), "MPI_Waitall");
    double written = MPI_Wtime();
    finish(&file, options);
    double closed = MPI_Wtime();
    *times = (struct times){opened - began, written - opened, closed - written, 0};

    for (int i = 0; i < plan->count; i++) {
        memory_done(&memory[i]);
        free(data[i]);
    }
    free(data);
    free(memory);
    free(requests);
}

/* A worker's part: every piece is sent before the first one is waited for. */
static void hand_off(MPI_Comm comm, const struct plan *plan, const struct options *options,
                     struct times *times) {
    void **data = malloc((size_t)plan->count * sizeof *data);
    MPI_Request *requests = malloc((size_t)plan->count * sizeof *requests);
    if (!data || !requests)
        fail("there is no memory for %d pieces", plan->count);
    for (int i = 0; i < plan->count; i++)
        data[i] = piece_filled(&plan->pieces[i], options->seed);
    must(MPI_Barrier(comm), "MPI_Barrier");
    double began = MPI_Wtime();
    for (int i = 0; i < plan->count; i++)
        must(MPI_Isend(data[i], (int)piece_bytes(&plan->pieces[i]), MPI_BYTE, 0, i, comm,
                       &requests[i]),
             "MPI_Isend");
    must(MPI_Waitall(plan->count, requests, MPI_STATUSES_IGNORE), "MPI_Waitall");
    *times = (struct times){0, 0, 0, MPI_Wtime() - began};
    for (int i = 0; i < plan->count; i++)
        free(data[i]);
    free(data);
    free(requests);
}

void io_write_rbio(const char *path, MPI_Comm comm, const struct plan *plans,
                   const struct options *options, struct times *times) {
    int rank, ranks;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &ranks);
    for (int i = 0; i < plans[0].count; i++)
        if (!plans[0].pieces[i].contiguous || plans[0].pieces[i].guard)
            fail("rbIO takes kernels whose ranks write runs of bytes, and %s is not one",
                 plans[0].pieces[i].name);
    if (rank != 0) {
        hand_off(comm, &plans[rank], options, times);
        return;
    }
    must(MPI_Barrier(comm), "MPI_Barrier");
    double began = MPI_Wtime();
    MPI_File file = open_for_writing(path, MPI_COMM_SELF, options);
    double opened = MPI_Wtime();
    for (int i = 0; i < plans[0].count; i++)
        for (int r = 0; r < ranks; r++) {
            const struct piece *piece = &plans[r].pieces[i];
            int bytes = (int)piece_bytes(piece);
            void *data = r == 0 ? piece_filled(piece, options->seed) : piece_blank(piece);
            if (r != 0)
                must(MPI_Recv(data, bytes, MPI_BYTE, r, i, comm, MPI_STATUS_IGNORE), "MPI_Recv");
            must(MPI_File_write_at(file, piece_first(piece), data, bytes, MPI_BYTE,
                                   MPI_STATUS_IGNORE),
                 "MPI_File_write_at");
            free(data);
        }
    double written = MPI_Wtime();
    finish(&file, options);
    *times = (struct times){opened - began, written - opened, MPI_Wtime() - written, 0};
}

/* Computes what the plain file must hold: the arrays, and zeros between them. */
static void expect(const struct plan *plan, uint64_t seed, MPI_Offset from, unsigned char *bytes,
                   MPI_Offset length) {
    memset(bytes, 0, (size_t)length);
    for (int i = 0; i < plan->count; i++) {
        const struct piece *piece = &plan->pieces[i];
        MPI_Offset end = piece->elem;
        for (int d = 0; d < piece->ndims; d++)
            end *= piece->size[d];
        end += piece->base;
        MPI_Offset low = piece->base > from ? piece->base : from;
        MPI_Offset high = end < from + length ? end : from + length;
        if (low < high && (i == 0 || !piece_same_array(piece, piece - 1)))
            content_fill(seed, (uint64_t)low, bytes + (low - from), (size_t)(high - low));
    }
}

/* Checks all bytes of the file; each rank checks an even share. */
static void check_bytes(MPI_File file, MPI_Comm comm, const struct plan *plan, uint64_t seed,
                        struct wrong *wrong) {
    int rank, ranks;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &ranks);
    unsigned char *is = malloc(SLICE), *expected = malloc(SLICE);
    if (!is || !expected)
        fail("there is no memory for %d bytes", SLICE);
    MPI_Offset from = plan->end / ranks * rank;
    MPI_Offset until = rank == ranks - 1 ? plan->end : plan->end / ranks * (rank + 1);
    while (from < until) {
        int want = until - from < SLICE ? (int)(until - from) : SLICE, got = 0;
        MPI_Status status;
        must(MPI_File_read_at(file, from, is, want, MPI_BYTE, &status), "MPI_File_read_at");
        must(MPI_Get_count(&status, MPI_BYTE, &got), "MPI_Get_count");
        if (got != want)
            fail("a read of %d bytes at offset %lld got %d", want, (long long)from, got);
        expect(plan, seed, from, expected, want);
        for (int i = 0; i < want; i++)
            if (is[i] != expected[i]) {
                wrong_note(wrong, from + i, is[i], expected[i], "a plain read");
                break;
            }
        from += want;
    }
    free(is);
    free(expected);
}

void io_check(const char *path, MPI_Comm comm, const struct plan *plan,
              const struct options *options, struct wrong *wrong) {
    MPI_File file;
    MPI_Offset size;
    must(MPI_File_open(comm, path, MPI_MODE_RDONLY, options->info, &file), path);
    must(MPI_File_get_size(file, &size), "MPI_File_get_size");
    if (size != plan->end)
        fail("%s is %lld bytes long, expected %lld", path, (long long)size, (long long)plan->end);
    bool together = options->mode != INDEPENDENT;
    for (int i = 0; i < plan->count; i++) {
        const struct piece *piece = &plan->pieces[i];
        struct memory memory = memory_of(piece);
        void *data = piece_blank(piece);
        view(file, piece);
        if (together)
            must(MPI_File_read_all(file, data, memory.count, memory.type, MPI_STATUS_IGNORE),
                 "MPI_File_read_all");
        else
            must(MPI_File_read(file, data, memory.count, memory.type, MPI_STATUS_IGNORE),
                 "MPI_File_read");
        piece_check(piece, options->seed, data, wrong);
        memory_done(&memory);
        free(data);
    }
    must(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL),
         "MPI_File_set_view");
    check_bytes(file, comm, plan, options->seed, wrong);
    must(MPI_File_close(&file), "MPI_File_close");
}
