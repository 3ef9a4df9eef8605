#include "conform.h"

#include <stdlib.h>
#include <string.h>

int rank, ranks;

MPI_File open_file(const char *path, int mode, MPI_Info info) {
    MPI_File file;
    must(MPI_File_open(MPI_COMM_WORLD, path, mode, info, &file), "MPI_File_open");
    return file;
}

MPI_File create_file(const char *path) {
    return open_file(path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL);
}

void close_file(MPI_File *file) {
    must(MPI_File_close(file), "MPI_File_close");
}

void barrier(void) {
    must(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
}

void sync_barrier_sync(MPI_File file) {
    must(MPI_File_sync(file), "MPI_File_sync");
    barrier();
    must(MPI_File_sync(file), "MPI_File_sync");
}

void view_bytes(MPI_File file, MPI_Offset displacement, MPI_Datatype type) {
    must(MPI_File_set_view(file, displacement, MPI_BYTE, type, "native", MPI_INFO_NULL),
         "MPI_File_set_view");
}

void free_type(MPI_Datatype *type) {
    must(MPI_Type_free(type), "MPI_Type_free");
}

void *blank(size_t length) {
    void *bytes = malloc(length ? length : 1);
    if (!bytes)
        fail("there is no memory for %zu bytes", length);
    memset(bytes, 0xee, length);
    return bytes;
}

void *content(uint64_t seed, MPI_Offset position, size_t length) {
    void *bytes = blank(length);
    content_fill(seed, (uint64_t)position, bytes, length);
    return bytes;
}

void expect(const void *bytes, MPI_Offset position, uint64_t seed, size_t length,
            const char *where) {
    size_t good = content_check(seed, (uint64_t)position, bytes, length);
    if (good < length)
        fail("%s: offset %lld is 0x%02x, expected 0x%02x", where,
             (long long)position + (long long)good, ((const unsigned char *)bytes)[good],
             content_byte(seed, (uint64_t)position + good));
}

void write_at(MPI_File file, MPI_Offset position, uint64_t seed, int length) {
    void *bytes = content(seed, position, (size_t)length);
    must(MPI_File_write_at(file, position, bytes, length, MPI_BYTE, MPI_STATUS_IGNORE),
         "MPI_File_write_at");
    free(bytes);
}

static unsigned char *read_bytes(MPI_File file, MPI_Offset position, int length) {
    unsigned char *bytes = blank((size_t)length);
    MPI_Status status;
    int got;
    must(MPI_File_read_at(file, position, bytes, length, MPI_BYTE, &status), "MPI_File_read_at");
    must(MPI_Get_count(&status, MPI_BYTE, &got), "MPI_Get_count");
    if (got != length)
        fail("a read of %d bytes at offset %lld got %d", length, (long long)position, got);
    return bytes;
}

void read_expecting(MPI_File file, MPI_Offset position, uint64_t seed, int length) {
    unsigned char *bytes = read_bytes(file, position, length);
    expect(bytes, position, seed, (size_t)length, "read through the open handle");
    free(bytes);
}

void expect_size(MPI_File file, MPI_Offset size) {
    MPI_Offset is;
    must(MPI_File_get_size(file, &is), "MPI_File_get_size");
    if (is != size)
        fail("the file is %lld bytes long, expected %lld", (long long)is, (long long)size);
}

unsigned char *read_file(const char *path, MPI_Offset size) {
    MPI_File file;
    barrier();
    must(MPI_File_open(MPI_COMM_SELF, path, MPI_MODE_RDONLY, MPI_INFO_NULL, &file),
         "MPI_File_open");
    expect_size(file, size);
    unsigned char *bytes = read_bytes(file, 0, (int)size);
    close_file(&file);
    barrier();
    return bytes;
}

void expect_file(const char *path, uint64_t seed, MPI_Offset size) {
    unsigned char *bytes = read_file(path, size);
    expect(bytes, 0, seed, (size_t)size, "read after the close");
    free(bytes);
}

unsigned draw(uint64_t a, uint64_t b, unsigned limit) {
    return (unsigned)(content_word(a, b) >> 11) % limit;
}
