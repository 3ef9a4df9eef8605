#include "fail.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static char context[128] = "kernels";

void fail_context(const char *text) {
    snprintf(context, sizeof context, "%s", text);
}

void fail(const char *format, ...) {
    int rank = 0;
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    fprintf(stderr, "%s: rank %d: %s\n", context, rank, text);
    fflush(NULL);
    MPI_Abort(MPI_COMM_WORLD, EXIT_WRONG);
    abort();
}

void usage_error(const char *format, ...) {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0) {
        va_list args;
        va_start(args, format);
        fprintf(stderr, "%s: ", context);
        vfprintf(stderr, format, args);
        fputc('\n', stderr);
        va_end(args);
    }
    MPI_Finalize();
    exit(EXIT_USAGE);
}

void must(int code, const char *what) {
    if (code == MPI_SUCCESS)
        return;
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(code, text, &length);
    fail("%s failed: %.*s", what, length, text);
}
