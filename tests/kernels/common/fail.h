/* Reports an error as one sentence, and ends with an exit code. */
#ifndef FOREBAY_FAIL_H
#define FOREBAY_FAIL_H

#include <mpi.h>

/* 1: the bytes or the behaviour are wrong, or a call failed. 2: the command line is invalid. */
enum { EXIT_WRONG = 1, EXIT_USAGE = 2 };

/* Prints the message with the program's name and the rank, and ends all ranks with EXIT_WRONG. */
void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* Rank 0 prints the message; all ranks end with EXIT_USAGE. Every rank must call this. */
void usage_error(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* Fails with the text in `what` and MPI's message unless `code` is MPI_SUCCESS. File handles return
 * errors by default, and a code that is not checked is a lost write. */
void must(int code, const char *what);

/* Sets the beginning of the messages: the program, kernel or case. */
void fail_context(const char *context);

#endif
