/* Sizes, and the ways to open and remove a file. A change of the size counts as a write: other
 * ranks see it after sync, barrier, sync. The bytes between an old end and a new one are undefined
 * in MPI, and are not checked. */
#include "conform.h"

#include <stdlib.h>

enum { SIZE = 90001 };

static void resize(MPI_File file, MPI_Offset size) {
    must(MPI_File_set_size(file, size), "MPI_File_set_size");
    sync_barrier_sync(file);
    expect_size(file, size);
    barrier();
}

static void set_size(const char *path) {
    MPI_File file = create_file(path);
    int share = SIZE / ranks;
    write_at(file, (MPI_Offset)rank * share, 70, rank == ranks - 1 ? SIZE - rank * share : share);
    sync_barrier_sync(file);
    resize(file, SIZE / 2);
    resize(file, 3 * SIZE);
    read_expecting(file, 0, 70, SIZE / 2);
    barrier();
    resize(file, SIZE);
    if (rank == ranks - 1)
        write_at(file, SIZE / 2, 70, SIZE - SIZE / 2);
    close_file(&file);
    expect_file(path, 70, SIZE);
}

static void preallocate(const char *path) {
    MPI_File file = create_file(path);
    if (rank == 0)
        write_at(file, 0, 71, 1000);
    sync_barrier_sync(file);
    must(MPI_File_preallocate(file, SIZE), "MPI_File_preallocate");
    sync_barrier_sync(file);
    expect_size(file, SIZE);
    read_expecting(file, 0, 71, 1000);
    barrier();
    must(MPI_File_preallocate(file, 10), "MPI_File_preallocate");
    sync_barrier_sync(file);
    expect_size(file, SIZE);
    barrier();
    if (rank == ranks - 1)
        write_at(file, 1000, 71, SIZE - 1000);
    close_file(&file);
    expect_file(path, 71, SIZE);
}

static int class_of(int code) {
    int class = MPI_SUCCESS;
    MPI_Error_class(code, &class);
    return class;
}

static void modes(const char *path) {
    MPI_File file;
    int code = MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDONLY, MPI_INFO_NULL, &file);
    if (class_of(code) != MPI_ERR_NO_SUCH_FILE)
        fail("opening a file that is not there gave class %d, expected MPI_ERR_NO_SUCH_FILE",
             class_of(code));
    file = open_file(path, MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_WRONLY, MPI_INFO_NULL);
    write_at(file, (MPI_Offset)rank * 1000, 72, 1000);
    close_file(&file);
    barrier();
    code = MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_WRONLY,
                         MPI_INFO_NULL, &file);
    if (code == MPI_SUCCESS)
        fail("MPI_MODE_EXCL opened a file that was there");

    file = open_file(path, MPI_MODE_APPEND | MPI_MODE_WRONLY, MPI_INFO_NULL);
    MPI_Offset at;
    must(MPI_File_get_position(file, &at), "MPI_File_get_position");
    if (at != (MPI_Offset)1000 * ranks)
        fail("MPI_MODE_APPEND begins at %lld, expected %d", (long long)at, 1000 * ranks);
    barrier();
    if (rank == ranks - 1) {
        void *bytes = content(72, at, 500);
        must(MPI_File_write(file, bytes, 500, MPI_BYTE, MPI_STATUS_IGNORE), "MPI_File_write");
        free(bytes);
    }
    close_file(&file);
    expect_file(path, 72, (MPI_Offset)1000 * ranks + 500);
}

/* The file is removed by a rank, or with the close, and made again: no old content may be visible. */
static void removal(const char *path) {
    MPI_File file = create_file(path);
    write_at(file, (MPI_Offset)rank * 5000, 73, 5000);
    close_file(&file);
    barrier();
    if (rank == ranks - 1)
        must(MPI_File_delete(path, MPI_INFO_NULL), "MPI_File_delete");
    barrier();
    file = open_file(path, MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_RDWR |
                               MPI_MODE_DELETE_ON_CLOSE,
                     MPI_INFO_NULL);
    expect_size(file, 0);
    barrier();
    write_at(file, (MPI_Offset)rank * 100, 74, 100);
    close_file(&file);
    barrier();
    file = open_file(path, MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_RDWR, MPI_INFO_NULL);
    expect_size(file, 0);
    barrier();
    write_at(file, (MPI_Offset)rank * 900, 75, 900);
    close_file(&file);
    expect_file(path, 75, (MPI_Offset)900 * ranks);
}

const struct test size_tests[] = {
    {"size_set", set_size},
    {"size_preallocate", preallocate},
    {"size_modes", modes},
    {"size_removal", removal},
    {0},
};
