/* One sentence for what went wrong, and an exit code. */
#ifndef FOREBAY_FAIL_H
#define FOREBAY_FAIL_H

#include <mpi.h>

/* 1: the bytes or the behaviour are wrong, or a call failed. 2: the command line makes no sense. */
enum { EXIT_WRONG = 1, EXIT_USAGE = 2 };

/* Says it with the program's name and rank, and ends all ranks with EXIT_WRONG. */
void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* Rank 0 says it; all ranks end with EXIT_USAGE. Every rank must come here. */
void usage_error(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* Fails with the name of `what` and MPI's own words unless `code` is MPI_SUCCESS. File handles
 * return errors by default, and a code that nobody looks at is a lost write. */
void must(int code, const char *what);

/* What the messages begin with: program, kernel or case. */
void fail_context(const char *context);

#endif
