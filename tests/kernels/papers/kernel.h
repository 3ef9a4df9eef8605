/* Declarations that all kernels share.
 *
 * A kernel only defines its plan: which arrays its file has and which part of each belongs to a
 * rank. Options, content, timing, the library used (MPI-IO, HDF5 or PnetCDF) and checking are the
 * same for all kernels, so every kernel runs through every library, and any rank can check the part
 * of any other rank.
 */
#ifndef FOREBAY_KERNEL_H
#define FOREBAY_KERNEL_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAX_DIMS = 4, MAX_PARAMS = 8 };

/* The block of one array that a rank owns. All ranks have the same arrays in the same order; a rank
 * that has no part of an array has a count of 0 for it. */
struct piece {
    char name[24];
    MPI_Offset base; /* offset of the array in a plain file, and position of its content */
    int elem;        /* bytes in an element: 1, 4 (int) or 8 (double) */
    int ndims;
    MPI_Offset size[MAX_DIMS], start[MAX_DIMS], count[MAX_DIMS];
    MPI_Offset chunk[MAX_DIMS]; /* chunk of an HDF5 dataset; 0: not chunked */
    int guard;                  /* cells around the block in memory, in the last three dimensions */
    int record;                 /* time step, or -1 */
    bool contiguous;            /* each rank's part is one run of bytes: written by offset */
};

struct plan {
    struct piece *pieces;
    int count, room;
    MPI_Offset end; /* where the file ends */
    bool packed;    /* arrays follow each other without regard for alignment */
};

enum mode { COLLECTIVE, INDEPENDENT, SPLIT, NONBLOCKING };

/* A size that the user chooses. */
struct param {
    const char *name;
    long small, paper;
    const char *what;
};

struct kernel {
    const char *name, *what;
    struct param params[MAX_PARAMS];
    enum mode mode; /* as in the paper */
    bool plain;     /* its file is a format of its own: MPI-IO only */
    void (*plan)(struct plan *plan, const long *value, int rank, int ranks);
};

extern const struct kernel coll_perf, flash_io, s3d, gcrm, vorpal, chombo, nekcem, ior_hard;

/* Adds an array of `ndims` dimensions after the others and returns an empty piece of it: the kernel
 * sets `start` and `count`. Valid until the next one is added. */
struct piece *plan_array(struct plan *plan, const char *name, int elem, int ndims,
                         const MPI_Offset *size);
/* Adds another piece of the array that was added last. */
struct piece *plan_more(struct plan *plan);
/* Sets the piece to rows `from` .. `from + count` of the first dimension and all of the other
 * dimensions. */
void piece_rows(struct piece *piece, MPI_Offset from, MPI_Offset count);
void plan_free(struct plan *plan);

/* Computes the rank's place in a grid of ranks that is as cubic as possible, first dimension
 * slowest. */
void grid3(int rank, int ranks, int dims[3], int at[3]);

struct options {
    const char *path;
    uint64_t seed;
    enum mode mode;
    bool write, verify, sync, rbio;
    int groups, files;
    double compute;
    MPI_Info info;
};

/* Times in seconds, reported for the slowest rank. */
struct times {
    double open, write, close;
    double hand_off; /* rbIO: until the workers had sent their data */
};

/* The first byte that is wrong; `offset` < 0 if none is. */
struct wrong {
    MPI_Offset offset;
    unsigned char is, expected;
    char where[32];
};

/* The library used: one of io_mpiio.c, io_hdf5.c, io_pnetcdf.c is linked. */
extern const char *const io_name;
void io_write(const char *path, MPI_Comm comm, const struct plan *plan,
              const struct options *options, struct times *times);
/* Reads `plan`, which is another rank's, and whatever else the library makes it possible to check. */
void io_check(const char *path, MPI_Comm comm, const struct plan *plan,
              const struct options *options, struct wrong *wrong);
/* rbIO: workers send their data to rank 0 of `comm`, which alone writes. `plans` has one plan for
 * each rank. */
void io_write_rbio(const char *path, MPI_Comm comm, const struct plan *plans,
                   const struct options *options, struct times *times);

/* Pieces in memory, with guard cells around them if they have any. */
size_t piece_bytes(const struct piece *piece);
size_t piece_memory(const struct piece *piece);
MPI_Offset piece_memory_dim(const struct piece *piece, int dim);
MPI_Offset piece_first(const struct piece *piece);
bool piece_same_array(const struct piece *a, const struct piece *b);
void *piece_filled(const struct piece *piece, uint64_t seed);
void *piece_blank(const struct piece *piece);
void piece_check(const struct piece *piece, uint64_t seed, const void *memory,
                 struct wrong *wrong);

void wrong_note(struct wrong *wrong, MPI_Offset offset, unsigned char is, unsigned char expected,
                const char *where);

#endif
