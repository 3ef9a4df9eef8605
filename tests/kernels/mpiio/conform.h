/* Functions that the conformance cases share. A case writes one file and checks only what the MPI
 * standard promises about it. It leaves the file as it is. Every byte of the file is known, so that
 * it can be compared with that of another run, except where the standard leaves open which rank
 * came first. */
#ifndef FOREBAY_CONFORM_H
#define FOREBAY_CONFORM_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../common/content.h"
#include "../common/fail.h"

/* Rank and number of ranks of MPI_COMM_WORLD. */
extern int rank, ranks;

struct test {
    const char *name;
    void (*run)(const char *path);
};

/* Each list ends with an element without a name. */
extern const struct test collective_tests[], independent_tests[], noncontiguous_tests[],
    shared_tests[], atomic_tests[], nonblocking_tests[], size_tests[], turn_tests[];

/* Opens the file on all ranks, without hints unless `info` has some. */
MPI_File open_file(const char *path, int mode, MPI_Info info);
MPI_File create_file(const char *path);
void close_file(MPI_File *file);
void barrier(void);

/* The construct of the standard that makes data visible between ranks that keep a file open in
 * nonatomic mode. */
void sync_barrier_sync(MPI_File file);

void view_bytes(MPI_File file, MPI_Offset displacement, MPI_Datatype type);
void free_type(MPI_Datatype *type);

/* Returns `length` bytes of content; the caller frees them. */
void *content(uint64_t seed, MPI_Offset position, size_t length);
void *blank(size_t length);

void write_at(MPI_File file, MPI_Offset position, uint64_t seed, int length);
/* Reads through this handle and fails at the first byte that is not the content. */
void read_expecting(MPI_File file, MPI_Offset position, uint64_t seed, int length);
void expect(const void *bytes, MPI_Offset position, uint64_t seed, size_t length,
            const char *where);

/* Must be called after all ranks have closed the file: every rank opens it alone, checks that it is
 * `size` bytes long, and returns its bytes. The caller frees them. */
unsigned char *read_file(const char *path, MPI_Offset size);
/* The same; the bytes must be content. */
void expect_file(const char *path, uint64_t seed, MPI_Offset size);
void expect_size(MPI_File file, MPI_Offset size);

/* Returns a reproducible number below `limit`. */
unsigned draw(uint64_t a, uint64_t b, unsigned limit);

#endif
