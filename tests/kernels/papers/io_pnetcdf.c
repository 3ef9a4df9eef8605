/* The kernels through PnetCDF: a variable for each array. Variables with time steps are records of
 * an unlimited dimension, so that one step of all of them is in one place in the file. */
#include <pnetcdf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/fail.h"
#include "kernel.h"

const char *const io_name = "pnetcdf";

static void good(int code, const char *what) {
    if (code != NC_NOERR)
        fail("%s failed: %s", what, ncmpi_strerror(code));
}

static nc_type stored(const struct piece *piece) {
    return piece->elem == 8 ? NC_DOUBLE : piece->elem == 4 ? NC_INT : NC_UBYTE;
}

static MPI_Datatype element(const struct piece *piece) {
    return piece->elem == 8   ? MPI_DOUBLE
           : piece->elem == 4 ? MPI_INT
                              : MPI_UNSIGNED_CHAR;
}

static void define(int file, const struct plan *plan) {
    int record = -1;
    for (int i = 0; i < plan->count; i++) {
        const struct piece *piece = &plan->pieces[i];
        int variable, dims[MAX_DIMS + 1], n = 0;
        if (ncmpi_inq_varid(file, piece->name, &variable) == NC_NOERR)
            continue;
        if (piece->record >= 0) {
            if (record < 0)
                good(ncmpi_def_dim(file, "step", NC_UNLIMITED, &record), "ncmpi_def_dim");
            dims[n++] = record;
        }
        for (int d = 0; d < piece->ndims; d++) {
            char name[40];
            snprintf(name, sizeof name, "%s_%d", piece->name, d);
            good(ncmpi_def_dim(file, name, piece->size[d], &dims[n++]), "ncmpi_def_dim");
        }
        good(ncmpi_def_var(file, piece->name, stored(piece), n, dims, &variable), piece->name);
    }
    good(ncmpi_enddef(file), "ncmpi_enddef");
}

/* Returns the variable of the piece and its place in it, with the record in front. */
static int place(int file, const struct piece *piece, MPI_Offset *start, MPI_Offset *count) {
    int variable, n = 0;
    good(ncmpi_inq_varid(file, piece->name, &variable), piece->name);
    bool empty = piece_bytes(piece) == 0;
    if (piece->record >= 0) {
        start[n] = piece->record;
        count[n++] = empty ? 0 : 1;
    }
    for (int d = 0; d < piece->ndims; d++) {
        start[n] = empty ? 0 : piece->start[d];
        count[n++] = empty ? 0 : piece->count[d];
    }
    return variable;
}

/* Makes one MPI type of the part inside the guard cells. */
static MPI_Datatype inside(const struct piece *piece) {
    int size[MAX_DIMS], count[MAX_DIMS], start[MAX_DIMS];
    for (int d = 0; d < piece->ndims; d++) {
        size[d] = (int)piece_memory_dim(piece, d);
        count[d] = (int)piece->count[d];
        start[d] = (size[d] - count[d]) / 2;
    }
    MPI_Datatype type;
    must(MPI_Type_create_subarray(piece->ndims, size, count, start, MPI_ORDER_C, element(piece),
                                  &type),
         "MPI_Type_create_subarray");
    must(MPI_Type_commit(&type), "MPI_Type_commit");
    return type;
}

static void transfer(int file, const struct piece *piece, void *data, bool together, bool write) {
    MPI_Offset start[MAX_DIMS + 1], count[MAX_DIMS + 1];
    int variable = place(file, piece, start, count);
    bool guarded = piece->guard != 0 && piece_bytes(piece) != 0;
    MPI_Datatype type = guarded ? inside(piece) : element(piece);
    MPI_Offset n = guarded ? 1 : (MPI_Offset)(piece_bytes(piece) / (size_t)piece->elem);
    int code;
    if (write)
        code = together ? ncmpi_put_vara_all(file, variable, start, count, data, n, type)
                        : ncmpi_put_vara(file, variable, start, count, data, n, type);
    else
        code = together ? ncmpi_get_vara_all(file, variable, start, count, data, n, type)
                        : ncmpi_get_vara(file, variable, start, count, data, n, type);
    good(code, piece->name);
    if (guarded)
        must(MPI_Type_free(&type), "MPI_Type_free");
}

static void transfer_all(int file, const struct plan *plan, void **data,
                         const struct options *options, bool write) {
    bool together = options->mode != INDEPENDENT;
    if (!together)
        good(ncmpi_begin_indep_data(file), "ncmpi_begin_indep_data");
    for (int i = 0; i < plan->count; i++)
        transfer(file, &plan->pieces[i], data[i], together, write);
    if (!together)
        good(ncmpi_end_indep_data(file), "ncmpi_end_indep_data");
}

void io_write(const char *path, MPI_Comm comm, const struct plan *plan,
              const struct options *options, struct times *times) {
    void **data = malloc((size_t)plan->count * sizeof *data);
    if (!data)
        fail("there is no memory for %d pieces", plan->count);
    for (int i = 0; i < plan->count; i++)
        data[i] = piece_filled(&plan->pieces[i], options->seed);

    int file;
    must(MPI_Barrier(comm), "MPI_Barrier");
    double began = MPI_Wtime();
    good(ncmpi_create(comm, path, NC_CLOBBER | NC_64BIT_DATA, options->info, &file), path);
    define(file, plan);
    double opened = MPI_Wtime();
    transfer_all(file, plan, data, options, true);
    if (options->sync)
        good(ncmpi_sync(file), "ncmpi_sync");
    double written = MPI_Wtime();
    good(ncmpi_close(file), "ncmpi_close");
    double closed = MPI_Wtime();
    *times = (struct times){opened - began, written - opened, closed - written, 0};

    for (int i = 0; i < plan->count; i++)
        free(data[i]);
    free(data);
}

void io_check(const char *path, MPI_Comm comm, const struct plan *plan,
              const struct options *options, struct wrong *wrong) {
    void **data = malloc((size_t)plan->count * sizeof *data);
    if (!data)
        fail("there is no memory for %d pieces", plan->count);
    for (int i = 0; i < plan->count; i++)
        data[i] = piece_blank(&plan->pieces[i]);
    int file;
    good(ncmpi_open(comm, path, NC_NOWRITE, options->info, &file), path);
    transfer_all(file, plan, data, options, false);
    good(ncmpi_close(file), "ncmpi_close");
    for (int i = 0; i < plan->count; i++) {
        piece_check(&plan->pieces[i], options->seed, data[i], wrong);
        free(data[i]);
    }
    free(data);
}

void io_write_rbio(const char *path, MPI_Comm comm, const struct plan *plans,
                   const struct options *options, struct times *times) {
    (void)path, (void)comm, (void)plans, (void)options, (void)times;
    usage_error("--rbio: only with MPI-IO");
}
