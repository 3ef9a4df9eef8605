/* mpiio DIR [CASE...] [--except CASE...]: runs the conformance cases, each on a file of its name in
 * DIR. A case runs if its name begins with one of the given names, or if none is given, and if it
 * does not begin with one of the exceptions. Ends at the first case that fails, with a message. */
#include <stdio.h>
#include <string.h>

#include "conform.h"

static const struct test *const lists[] = {
    collective_tests, independent_tests, noncontiguous_tests, shared_tests,
    atomic_tests,     nonblocking_tests, size_tests,          turn_tests,
};

static bool wanted(const char *name, int argc, char **argv) {
    bool chosen = argc == 2 || strcmp(argv[2], "--except") == 0, excepting = false;
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--except") == 0)
            excepting = true;
        else if (strncmp(name, argv[i], strlen(argv[i])) == 0)
            chosen = !excepting;
    }
    return chosen;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    fail_context("mpiio");
    if (argc < 2 || argv[1][0] == '-')
        usage_error("give a directory, and the beginnings of names of cases, if not all");
    int run = 0;
    for (size_t l = 0; l < sizeof lists / sizeof *lists; l++)
        for (const struct test *test = lists[l]; test->name; test++) {
            if (!wanted(test->name, argc, argv))
                continue;
            char path[4096], context[128];
            snprintf(path, sizeof path, "%s/%s", argv[1], test->name);
            snprintf(context, sizeof context, "mpiio %s", test->name);
            fail_context(context);
            barrier();
            double began = MPI_Wtime();
            test->run(path);
            barrier();
            run++;
            if (rank == 0) {
                printf("ok %s %.3f s\n", test->name, MPI_Wtime() - began);
                fflush(stdout);
            }
        }
    fail_context("mpiio");
    if (run == 0)
        usage_error("there is no case that begins so");
    MPI_Finalize();
    return 0;
}
