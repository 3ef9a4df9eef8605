/* Ranks write one file collectively, block by block in turn, and read each other's blocks back.
 *
 *   shared FILE BLOCK COUNT
 *
 * Every rank prints `rank R of S on HOST`. The byte at offset o is (o * 7 + o / 251) mod 256,
 * whichever rank writes it. Exits with 0 if every call worked and every byte that was read is
 * right.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int rank, size;

static void check(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING];
    int length;
    if (code == MPI_SUCCESS)
        return;
    MPI_Error_string(code, text, &length);
    fprintf(stderr, "rank %d: %s: %s\n", rank, what, text);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static unsigned char expected(MPI_Offset at)
{
    return (unsigned char)(at * 7 + at / 251);
}

int main(int argc, char **argv)
{
    char host[MPI_MAX_PROCESSOR_NAME];
    int length;
    MPI_File file;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc != 4) {
        fprintf(stderr, "shared FILE BLOCK COUNT\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int block = atoi(argv[2]), count = atoi(argv[3]);
    MPI_Get_processor_name(host, &length);
    printf("rank %d of %d on %s\n", rank, size, host);
    fflush(stdout);

    unsigned char *buffer = malloc(block);
    if (!buffer)
        MPI_Abort(MPI_COMM_WORLD, 3);
    check(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL,
                        &file),
          "open to write");
    for (int i = 0; i < count; i++) {
        MPI_Offset at = ((MPI_Offset)i * size + rank) * block;
        for (int k = 0; k < block; k++)
            buffer[k] = expected(at + k);
        /* All blocks but the last are written collectively, for which an MPI may let one rank do
         * all the I/O; the last one is written independently. */
        if (i + 1 < count)
            check(MPI_File_write_at_all(file, at, buffer, block, MPI_BYTE, MPI_STATUS_IGNORE),
                  "write together");
        else
            check(MPI_File_write_at(file, at, buffer, block, MPI_BYTE, MPI_STATUS_IGNORE), "write");
    }
    check(MPI_File_close(&file), "close");
    MPI_Barrier(MPI_COMM_WORLD);

    /* Read the next rank's blocks: ranks are placed round robin, so these blocks come from another
     * node. */
    int other = (rank + 1) % size;
    check(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_RDONLY, MPI_INFO_NULL, &file),
          "open to read");
    for (int i = 0; i < count; i++) {
        MPI_Offset at = ((MPI_Offset)i * size + other) * block;
        check(MPI_File_read_at(file, at, buffer, block, MPI_BYTE, MPI_STATUS_IGNORE), "read");
        for (int k = 0; k < block; k++) {
            if (buffer[k] == expected(at + k))
                continue;
            fprintf(stderr, "rank %d on %s: byte %lld is %d and not %d\n", rank, host,
                    (long long)(at + k), buffer[k], expected(at + k));
            MPI_Abort(MPI_COMM_WORLD, 4);
        }
    }
    check(MPI_File_close(&file), "close");
    free(buffer);
    MPI_Finalize();
    return 0;
}
