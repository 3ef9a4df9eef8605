/* What the conformance cases share. A case writes one file and checks what the MPI standard promises
 * about it, and nothing more. It leaves what it wrote so, and every byte of that is known, so that it
 * can be compared with that of another run; but for who came first, where the standard leaves that
 * open. */
#ifndef FOREBAY_CONFORM_H
#define FOREBAY_CONFORM_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../common/content.h"
#include "../common/fail.h"

/* Of MPI_COMM_WORLD. */
extern int rank, ranks;

struct test {
    const char *name;
    void (*run)(const char *path);
};

/* Each list ends with an empty name. */
extern const struct test collective_tests[], independent_tests[], noncontiguous_tests[],
    shared_tests[], atomic_tests[], nonblocking_tests[], size_tests[], turn_tests[];

/* Opens on all ranks, without hints unless `info` has some. */
MPI_File open_file(const char *path, int mode, MPI_Info info);
MPI_File create_file(const char *path);
void close_file(MPI_File *file);
void barrier(void);

/* The construct that the standard has for making data visible between ranks that keep a file open
 * in nonatomic mode. */
void sync_barrier_sync(MPI_File file);

void view_bytes(MPI_File file, MPI_Offset displacement, MPI_Datatype type);
void free_type(MPI_Datatype *type);

/* `length` bytes of content; the caller frees them. */
void *content(uint64_t seed, MPI_Offset position, size_t length);
void *blank(size_t length);

void write_at(MPI_File file, MPI_Offset position, uint64_t seed, int length);
/* Reads through this handle and fails at the first byte that is not the content. */
void read_expecting(MPI_File file, MPI_Offset position, uint64_t seed, int length);
void expect(const void *bytes, MPI_Offset position, uint64_t seed, size_t length,
            const char *where);

/* After all ranks have closed the file: every rank opens it by itself, and it is `size` bytes long.
 * The caller frees them. */
unsigned char *read_file(const char *path, MPI_Offset size);
/* The same, and they are content. */
void expect_file(const char *path, uint64_t seed, MPI_Offset size);
void expect_size(MPI_File file, MPI_Offset size);

/* A reproducible number below `limit`. */
unsigned draw(uint64_t a, uint64_t b, unsigned limit);

#endif
