/* The kernels through parallel HDF5: a dataset for each array, in a group "Step#n" for each time
 * step (as H5Part does). Everything else has the library's defaults: metadata in small, unaligned
 * pieces that are rewritten, and a truncate at the close. */
#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/fail.h"
#include "kernel.h"

const char *const io_name = "hdf5";

/* HDF5 prints its own stack of errors before it returns a negative number. */
static hid_t good(hid_t result, const char *what) {
    if (result < 0)
        fail("%s failed; HDF5 says why above", what);
    return result;
}

static hid_t element(const struct piece *piece) {
    return piece->elem == 8   ? H5T_NATIVE_DOUBLE
           : piece->elem == 4 ? H5T_NATIVE_INT
                              : H5T_NATIVE_UCHAR;
}

static void dataset_name(const struct piece *piece, char *name, size_t room) {
    if (piece->record < 0)
        snprintf(name, room, "/%s", piece->name);
    else
        snprintf(name, room, "/Step#%d/%s", piece->record, piece->name);
}

static void dims_of(const struct piece *piece, const MPI_Offset *from, hsize_t *to) {
    for (int d = 0; d < piece->ndims; d++)
        to[d] = (hsize_t)from[d];
}

static hid_t create(hid_t file, const struct piece *piece) {
    char name[64];
    hsize_t size[MAX_DIMS], chunk[MAX_DIMS];
    dataset_name(piece, name, sizeof name);
    dims_of(piece, piece->size, size);
    dims_of(piece, piece->chunk, chunk);
    hid_t links = good(H5Pcreate(H5P_LINK_CREATE), "H5Pcreate");
    good(H5Pset_create_intermediate_group(links, 1), "H5Pset_create_intermediate_group");
    hid_t how = good(H5Pcreate(H5P_DATASET_CREATE), "H5Pcreate");
    /* Times are not stored in the file, so that two runs give the same bytes. */
    good(H5Pset_obj_track_times(how, false), "H5Pset_obj_track_times");
    if (chunk[0] != 0)
        good(H5Pset_chunk(how, piece->ndims, chunk), "H5Pset_chunk");
    hid_t space = good(H5Screate_simple(piece->ndims, size, NULL), "H5Screate_simple");
    hid_t set = good(H5Dcreate2(file, name, element(piece), space, links, how, H5P_DEFAULT), name);
    good(H5Sclose(space), "H5Sclose");
    good(H5Pclose(how), "H5Pclose");
    good(H5Pclose(links), "H5Pclose");
    return set;
}

/* Selects the piece in the dataset and in memory (inside its guard cells); selects nothing if it is
 * empty. */
static void select_piece(const struct piece *piece, hid_t set, hid_t *in_file, hid_t *in_memory) {
    hsize_t start[MAX_DIMS], count[MAX_DIMS], room[MAX_DIMS], inside[MAX_DIMS];
    bool empty = piece_bytes(piece) == 0;
    dims_of(piece, piece->start, start);
    dims_of(piece, piece->count, count);
    for (int d = 0; d < piece->ndims; d++) {
        room[d] = empty ? 1 : (hsize_t)piece_memory_dim(piece, d);
        inside[d] = empty ? 0 : (room[d] - count[d]) / 2;
    }
    *in_file = good(H5Dget_space(set), "H5Dget_space");
    *in_memory = good(H5Screate_simple(piece->ndims, room, NULL), "H5Screate_simple");
    if (empty) {
        good(H5Sselect_none(*in_file), "H5Sselect_none");
        good(H5Sselect_none(*in_memory), "H5Sselect_none");
        return;
    }
    good(H5Sselect_hyperslab(*in_file, H5S_SELECT_SET, start, NULL, count, NULL),
         "H5Sselect_hyperslab");
    good(H5Sselect_hyperslab(*in_memory, H5S_SELECT_SET, inside, NULL, count, NULL),
         "H5Sselect_hyperslab");
}

static hid_t access_list(MPI_Comm comm, const struct options *options) {
    hid_t access = good(H5Pcreate(H5P_FILE_ACCESS), "H5Pcreate");
    good(H5Pset_fapl_mpio(access, comm, options->info), "H5Pset_fapl_mpio");
    return access;
}

static hid_t transfer_list(const struct options *options) {
    hid_t transfer = good(H5Pcreate(H5P_DATASET_XFER), "H5Pcreate");
    good(H5Pset_dxpl_mpio(transfer, options->mode == INDEPENDENT ? H5FD_MPIO_INDEPENDENT
                                                                 : H5FD_MPIO_COLLECTIVE),
         "H5Pset_dxpl_mpio");
    return transfer;
}

void io_write(const char *path, MPI_Comm comm, const struct plan *plan,
              const struct options *options, struct times *times) {
    void **data = malloc((size_t)plan->count * sizeof *data);
    if (!data)
        fail("there is no memory for %d pieces", plan->count);
    for (int i = 0; i < plan->count; i++)
        data[i] = piece_filled(&plan->pieces[i], options->seed);
    hid_t access = access_list(comm, options), transfer = transfer_list(options);

    must(MPI_Barrier(comm), "MPI_Barrier");
    double began = MPI_Wtime();
    hid_t file = good(H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access), path);
    double opened = MPI_Wtime();
    for (int i = 0; i < plan->count; i++) {
        hid_t set = create(file, &plan->pieces[i]), in_file, in_memory;
        select_piece(&plan->pieces[i], set, &in_file, &in_memory);
        good(H5Dwrite(set, element(&plan->pieces[i]), in_memory, in_file, transfer, data[i]),
             plan->pieces[i].name);
        good(H5Sclose(in_file), "H5Sclose");
        good(H5Sclose(in_memory), "H5Sclose");
        good(H5Dclose(set), "H5Dclose");
    }
    if (options->sync)
        good(H5Fflush(file, H5F_SCOPE_GLOBAL), "H5Fflush");
    double written = MPI_Wtime();
    good(H5Fclose(file), "H5Fclose");
    double closed = MPI_Wtime();
    *times = (struct times){opened - began, written - opened, closed - written, 0};

    good(H5Pclose(transfer), "H5Pclose");
    good(H5Pclose(access), "H5Pclose");
    for (int i = 0; i < plan->count; i++)
        free(data[i]);
    free(data);
}

void io_check(const char *path, MPI_Comm comm, const struct plan *plan,
              const struct options *options, struct wrong *wrong) {
    hid_t access = access_list(comm, options), transfer = transfer_list(options);
    hid_t file = good(H5Fopen(path, H5F_ACC_RDONLY, access), path);
    for (int i = 0; i < plan->count; i++) {
        const struct piece *piece = &plan->pieces[i];
        char name[64];
        dataset_name(piece, name, sizeof name);
        hid_t set = good(H5Dopen2(file, name, H5P_DEFAULT), name), in_file, in_memory;
        select_piece(piece, set, &in_file, &in_memory);
        void *data = piece_blank(piece);
        good(H5Dread(set, element(piece), in_memory, in_file, transfer, data), name);
        piece_check(piece, options->seed, data, wrong);
        free(data);
        good(H5Sclose(in_file), "H5Sclose");
        good(H5Sclose(in_memory), "H5Sclose");
        good(H5Dclose(set), "H5Dclose");
    }
    good(H5Fclose(file), "H5Fclose");
    good(H5Pclose(transfer), "H5Pclose");
    good(H5Pclose(access), "H5Pclose");
}

void io_write_rbio(const char *path, MPI_Comm comm, const struct plan *plans,
                   const struct options *options, struct times *times) {
    (void)path, (void)comm, (void)plans, (void)options, (void)times;
    usage_error("--rbio: only with MPI-IO");
}
