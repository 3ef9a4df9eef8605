/* kernels NAME FILE [options]: writes FILE in the pattern of NAME, prints the times as one line of
 * JSON, and checks the file on request. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../common/fail.h"
#include "kernel.h"

static const struct kernel *const kernels[] = {&coll_perf, &flash_io, &s3d,    &gcrm,
                                               &vorpal,    &chombo,   &nekcem, &ior_hard};
enum { KERNELS = sizeof kernels / sizeof *kernels };

static const char *const mode_names[] = {"collective", "independent", "split", "nonblocking"};
enum { MODES = sizeof mode_names / sizeof *mode_names };

/* The kernels to run, and their options. Without --mode each runs in the mode of its paper. */
struct command {
    bool wanted[KERNELS];
    bool directory; /* several kernels, each to a file of its name */
    bool mode_given, paper;
    long value[KERNELS][MAX_PARAMS];
    struct options options;
};

static void print_help(void) {
    printf("kernels NAME FILE [options]   writes FILE in the pattern of NAME (through %s)\n"
           "kernels NAME,NAME DIR [options]   several, each to a file of its name; all: every one\n\n"
           "  --verify             then reads it back and checks every byte\n"
           "  --check              only checks a file that is there (same sizes and ranks)\n"
           "  --mode MODE          collective, independent, split, nonblocking\n"
           "  --seed N             other content (1)\n"
           "  --sync               MPI_File_sync (HDF5: flush) before the close\n"
           "  --groups N           N files FILE.0, FILE.1 ..., each by its share of the ranks\n"
           "  --rbio               in each group one rank writes what the others hand it (MPI-IO)\n"
           "  --files N            one after another, FILE.f0, FILE.f1 ...\n"
           "  --compute SECONDS    pause between files\n"
           "  --hint KEY=VALUE     MPI hint; may be repeated\n"
           "  --paper              the paper's sizes\n",
           io_name);
    for (int k = 0; k < KERNELS; k++) {
        printf("\n%s: %s\n", kernels[k]->name, kernels[k]->what);
        for (const struct param *param = kernels[k]->params; param->name; param++)
            printf("  --%-18s %s (%ld; paper %ld)\n", param->name, param->what, param->small,
                   param->paper);
    }
}

static long number(const char *option, const char *text, long least) {
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < least)
        usage_error("%s %s: give a whole number of at least %ld", option, text, least);
    return value;
}

static void set_hint(struct options *options, const char *text) {
    char key[MPI_MAX_INFO_KEY + 1];
    const char *equals = strchr(text, '=');
    if (!equals || equals == text || (size_t)(equals - text) >= sizeof key)
        usage_error("--hint %s: give it as KEY=VALUE", text);
    snprintf(key, sizeof key, "%.*s", (int)(equals - text), text);
    if (options->info == MPI_INFO_NULL)
        must(MPI_Info_create(&options->info), "MPI_Info_create");
    must(MPI_Info_set(options->info, key, equals + 1), "MPI_Info_set");
}

/* Sets a size of every chosen kernel that has it. */
static bool set_param(struct command *command, const char *option, const char *text) {
    bool found = false;
    for (int k = 0; k < KERNELS; k++) {
        if (!command->wanted[k])
            continue;
        for (int p = 0; kernels[k]->params[p].name; p++)
            if (strcmp(option + 2, kernels[k]->params[p].name) == 0) {
                command->value[k][p] = number(option, text, 1);
                found = true;
            }
    }
    return found;
}

static enum mode mode_of(const char *text) {
    for (int m = 0; m < MODES; m++)
        if (strcmp(text, mode_names[m]) == 0)
            return (enum mode)m;
    usage_error("--mode %s: it is one of collective, independent, split, nonblocking", text);
}

/* Parses "all", or names with commas between them. */
static void choose(struct command *command, const char *names) {
    bool all = strcmp(names, "all") == 0;
    command->directory = all || strchr(names, ',');
    for (const char *name = names; *name;) {
        size_t length = strcspn(name, ",");
        bool found = all;
        for (int k = 0; k < KERNELS; k++)
            if (all || (strlen(kernels[k]->name) == length &&
                        strncmp(name, kernels[k]->name, length) == 0))
                command->wanted[k] = found = true;
        if (!found)
            usage_error("there is no kernel %.*s; --help lists them", (int)length, name);
        name += length + (name[length] == ',');
    }
}

static void parse(struct command *command, int argc, char **argv) {
    struct options *options = &command->options;
    *options = (struct options){.seed = 1, .write = true, .groups = 1, .files = 1};
    options->info = MPI_INFO_NULL;
    if (argc < 3 || argv[1][0] == '-' || argv[2][0] == '-')
        usage_error("give the name of a kernel and a file; --help lists the kernels");
    choose(command, argv[1]);
    options->path = argv[2];
    for (int i = 3; i < argc; i++)
        command->paper = command->paper || strcmp(argv[i], "--paper") == 0;
    for (int k = 0; k < KERNELS; k++)
        for (int p = 0; p < MAX_PARAMS; p++)
            command->value[k][p] =
                command->paper ? kernels[k]->params[p].paper : kernels[k]->params[p].small;

    for (int i = 3; i < argc; i++) {
        const char *option = argv[i];
        if (strcmp(option, "--paper") == 0)
            continue;
        else if (strcmp(option, "--verify") == 0)
            options->verify = true;
        else if (strcmp(option, "--check") == 0)
            options->verify = true, options->write = false;
        else if (strcmp(option, "--sync") == 0)
            options->sync = true;
        else if (strcmp(option, "--rbio") == 0)
            options->rbio = true;
        else if (strncmp(option, "--", 2) != 0 || i + 1 == argc)
            usage_error("%s: it is no option, or its value is missing; see --help", option);
        else if (strcmp(option, "--mode") == 0)
            options->mode = mode_of(argv[++i]), command->mode_given = true;
        else if (strcmp(option, "--seed") == 0)
            options->seed = (uint64_t)number(option, argv[++i], 0);
        else if (strcmp(option, "--groups") == 0)
            options->groups = (int)number(option, argv[++i], 1);
        else if (strcmp(option, "--files") == 0)
            options->files = (int)number(option, argv[++i], 1);
        else if (strcmp(option, "--compute") == 0)
            options->compute = (double)number(option, argv[++i], 0);
        else if (strcmp(option, "--hint") == 0)
            set_hint(options, argv[++i]);
        else if (set_param(command, option, argv[i + 1]))
            i++;
        else
            usage_error("%s: neither an option nor a size of the kernel; see --help", option);
    }
}

static void compute(double seconds) {
    struct timespec rest = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&rest, &rest) != 0 && errno == EINTR)
        ;
}

static void report(const struct kernel *kernel, const struct options *options, const char *path,
                   double bytes, const struct times *mine) {
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    double seconds[5] = {mine->open + mine->write + mine->close, mine->open, mine->write,
                         mine->close, mine->hand_off};
    double worst[5], total;
    must(MPI_Reduce(seconds, worst, 5, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD), "MPI_Reduce");
    must(MPI_Reduce(&bytes, &total, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD), "MPI_Reduce");
    if (rank != 0)
        return;
#ifdef OPEN_MPI
    const char *mpi = "openmpi";
#else
    const char *mpi = "mpich";
#endif
    printf("{\"kernel\":\"%s\",\"api\":\"%s\",\"mpi\":\"%s\",\"ranks\":%d,\"mode\":\"%s\","
           "\"groups\":%d,\"rbio\":%s,\"file\":\"%s\",\"bytes\":%.0f,\"seconds\":%.6f,"
           "\"open\":%.6f,\"write\":%.6f,\"close\":%.6f,\"hand_off\":%.6f}\n",
           kernel->name, io_name, mpi, ranks, mode_names[options->mode], options->groups,
           options->rbio ? "true" : "false", path, total, worst[0], worst[1], worst[2], worst[3],
           worst[4]);
    fflush(stdout);
}

/* The rank that found the lowest wrong byte reports it; all ranks learn the result. */
static bool judge(const char *path, const struct wrong *wrong) {
    long long mine = wrong->offset < 0 ? LLONG_MAX : (long long)wrong->offset, lowest;
    int rank, first;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    must(MPI_Allreduce(&mine, &lowest, 1, MPI_LONG_LONG, MPI_MIN, MPI_COMM_WORLD),
         "MPI_Allreduce");
    if (lowest == LLONG_MAX)
        return true;
    int candidate = mine == lowest ? rank : INT_MAX;
    must(MPI_Allreduce(&candidate, &first, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD), "MPI_Allreduce");
    if (rank == first)
        fprintf(stderr, "%s: offset %lld is 0x%02x, expected 0x%02x (%s, read by rank %d)\n", path,
                lowest, wrong->is, wrong->expected, wrong->where, rank);
    return false;
}

struct group {
    MPI_Comm comm;
    int rank, ranks;
    char path[4096];
};

static bool one_file(const struct kernel *kernel, const long *value, const struct group *group,
                     const struct options *options) {
    struct plan *plans = calloc((size_t)group->ranks, sizeof *plans);
    if (!plans)
        fail("there is no memory for %d plans", group->ranks);
    for (int r = 0; r < group->ranks; r++)
        kernel->plan(&plans[r], value, r, group->ranks);

    if (options->write) {
        double bytes = 0;
        for (int i = 0; i < plans[group->rank].count; i++)
            bytes += (double)piece_bytes(&plans[group->rank].pieces[i]);
        struct times times;
        must(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
        if (options->rbio)
            io_write_rbio(group->path, group->comm, plans, options, &times);
        else
            io_write(group->path, group->comm, &plans[group->rank], options, &times);
        report(kernel, options, group->path, bytes, &times);
    }
    bool good = true;
    if (options->verify) {
        struct wrong wrong = {.offset = -1};
        must(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
        /* Checks the part of a rank that is most likely on another node, however ranks are placed. */
        int other = (group->rank + group->ranks / 2 + 1) % group->ranks;
        io_check(group->path, group->comm, &plans[other], options, &wrong);
        good = judge(group->path, &wrong);
    }
    for (int r = 0; r < group->ranks; r++)
        plan_free(&plans[r]);
    free(plans);
    return good;
}

static bool run(const struct kernel *kernel, const long *value, const struct options *options,
                const char *path) {
    char context[64];
    snprintf(context, sizeof context, "%s (%s)", kernel->name, io_name);
    fail_context(context);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (options->groups > ranks)
        usage_error("--groups %d: there are only %d ranks", options->groups, ranks);
    int number = (int)((long long)rank * options->groups / ranks);
    struct group group;
    must(MPI_Comm_split(MPI_COMM_WORLD, number, rank, &group.comm), "MPI_Comm_split");
    MPI_Comm_rank(group.comm, &group.rank);
    MPI_Comm_size(group.comm, &group.ranks);

    bool good = true;
    for (int f = 0; good && f < options->files; f++) {
        int used = snprintf(group.path, sizeof group.path, "%s", path);
        if (options->groups > 1)
            used += snprintf(group.path + used, sizeof group.path - (size_t)used, ".%d", number);
        if (options->files > 1)
            used += snprintf(group.path + used, sizeof group.path - (size_t)used, ".f%d", f);
        if (used >= (int)sizeof group.path - 32)
            usage_error("the path is too long: %s", path);
        if (f > 0)
            compute(options->compute);
        struct options of_file = *options;
        of_file.seed += (uint64_t)f * 1000 + (uint64_t)number;
        good = one_file(kernel, value, &group, &of_file);
    }
    must(MPI_Comm_free(&group.comm), "MPI_Comm_free");
    return good;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        int rank;
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        if (rank == 0)
            print_help();
        MPI_Finalize();
        return 0;
    }
    struct command command = {0};
    parse(&command, argc, argv);
    bool by_name = strcmp(io_name, "mpiio") != 0;
    bool good = true;
    for (int k = 0; good && k < KERNELS; k++) {
        const struct kernel *kernel = kernels[k];
        if (!command.wanted[k])
            continue;
        if (kernel->plain && by_name) {
            if (!command.directory)
                usage_error("%s has a file format of its own: run it with MPI-IO", kernel->name);
            continue;
        }
        struct options options = command.options;
        if (!command.mode_given)
            options.mode = kernel->mode;
        char path[4096];
        if (command.directory)
            snprintf(path, sizeof path, "%s/%s", options.path, kernel->name);
        else
            snprintf(path, sizeof path, "%s", options.path);
        good = run(kernel, command.value[k], &options, path);
    }
    if (command.options.info != MPI_INFO_NULL)
        MPI_Info_free(&command.options.info);
    MPI_Finalize();
    return good ? 0 : EXIT_WRONG;
}
