/* checkpoint DIR [options]: a job that computes, writes a checkpoint of its state, and computes on;
 * with --restart it continues from the newest checkpoint that was finished.
 *
 * The state is an array of words. Every step changes each word in its own way, so the state of any
 * step can be computed without a file, and a restart can check every byte that it reads and may
 * have another number of ranks. A checkpoint is written under another name and renamed when all
 * ranks have closed it: so a job knows which checkpoints are complete.
 *
 *   --steps N        number of steps in all (4)
 *   --words N        words of state (200000)
 *   --compute MS     duration of a step (50)
 *   --restart        continue from the newest checkpoint; fails if there is none or it is not complete
 *   --pause-in K --pace DIR   in checkpoint K, when half of it is written, rank 0 makes DIR/paused
 *                    and all ranks wait for DIR/go
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/content.h"
#include "common/fail.h"

struct job {
    const char *dir, *pace;
    long steps, words, compute, pause_in;
    bool restart;
    int rank, ranks;
    long first, count; /* words of this rank */
    uint64_t *state;
};

struct header {
    char magic[16];
    int64_t step, words;
    char text[96 - 32];
};

static const char magic[16] = "forebay-restart";

static long number(const char *option, const char *text) {
    char *end;
    errno = 0;
    long value = text ? strtol(text, &end, 10) : -1;
    if (!text || errno || end == text || *end || value < 0)
        usage_error("%s %s: give a whole number", option, text ? text : "");
    return value;
}

static void parse(struct job *job, int argc, char **argv) {
    if (argc < 2 || argv[1][0] == '-')
        usage_error("give the directory for the checkpoints");
    job->dir = argv[1];
    for (int i = 2; i < argc; i++) {
        const char *option = argv[i];
        if (strcmp(option, "--restart") == 0) {
            job->restart = true;
            continue;
        }
        const char *value = i + 1 < argc ? argv[++i] : NULL;
        if (strcmp(option, "--steps") == 0)
            job->steps = number(option, value);
        else if (strcmp(option, "--words") == 0)
            job->words = number(option, value);
        else if (strcmp(option, "--compute") == 0)
            job->compute = number(option, value);
        else if (strcmp(option, "--pause-in") == 0)
            job->pause_in = number(option, value);
        else if (strcmp(option, "--pace") == 0 && value)
            job->pace = value;
        else
            usage_error("%s: it is no option, or its value is missing", option);
    }
    if (job->pause_in != 0 && !job->pace)
        usage_error("--pause-in needs --pace");
}

static uint64_t next_word(uint64_t word, long step) {
    return content_word(word, (uint64_t)step);
}

static void sleep_ms(long ms) {
    struct timespec rest = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&rest, &rest) != 0 && errno == EINTR)
        ;
}

static void compute(struct job *job, long step) {
    for (long i = 0; i < job->count; i++)
        job->state[i] = next_word(job->state[i], step);
    sleep_ms(job->compute);
}

static void barrier(void) {
    must(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
}

/* Not part of the test: the process that watches the job makes DIR/go when the job may continue. */
static void pause_here(const struct job *job) {
    char path[4096];
    barrier();
    if (job->rank == 0) {
        snprintf(path, sizeof path, "%s/paused", job->pace);
        int file = open(path, O_CREAT | O_WRONLY, 0644);
        if (file < 0)
            fail("%s: %s", path, strerror(errno));
        close(file);
    }
    snprintf(path, sizeof path, "%s/go", job->pace);
    while (access(path, F_OK) != 0)
        sleep_ms(10);
    barrier();
}

/* Writes some of the rank's words to their place. */
static void put(MPI_File file, const struct job *job, long from, long until) {
    MPI_Offset at = (MPI_Offset)(sizeof(struct header) + (size_t)(job->first + from) * 8);
    must(MPI_File_write_at_all(file, at, job->state + from, (int)(until - from), MPI_INT64_T,
                               MPI_STATUS_IGNORE),
         "MPI_File_write_at_all");
}

static void checkpoint(const struct job *job, long step) {
    char path[4096], final[4096];
    snprintf(path, sizeof path, "%s/writing.%ld", job->dir, step);
    snprintf(final, sizeof final, "%s/checkpoint.%ld", job->dir, step);
    MPI_File file;
    barrier();
    double began = MPI_Wtime();
    must(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL,
                       &file),
         path);
    if (job->rank == 0) {
        struct header header = {.step = step, .words = job->words};
        memcpy(header.magic, magic, sizeof magic);
        must(MPI_File_write_at(file, 0, &header, sizeof header, MPI_BYTE, MPI_STATUS_IGNORE),
             "MPI_File_write_at");
    }
    put(file, job, 0, job->count / 2);
    if (job->pause_in == step)
        pause_here(job);
    put(file, job, job->count / 2, job->count);
    must(MPI_File_close(&file), "MPI_File_close");
    barrier();
    double took = MPI_Wtime() - began;
    if (job->rank == 0) {
        if (rename(path, final) != 0)
            fail("rename %s: %s", path, strerror(errno));
        printf("{\"checkpoint\":%ld,\"bytes\":%zu,\"seconds\":%.6f}\n", step,
               sizeof(struct header) + (size_t)job->words * 8, took);
        fflush(stdout);
    }
    barrier();
}

/* Returns the highest number of a checkpoint that has its final name, or 0. Rank 0 searches for all
 * ranks, and removes files that a killed job left incomplete. */
static long newest(const struct job *job) {
    long best = 0;
    if (job->rank == 0) {
        DIR *dir = opendir(job->dir);
        if (!dir)
            fail("%s: %s", job->dir, strerror(errno));
        for (struct dirent *entry; (entry = readdir(dir));) {
            long step;
            char rest;
            if (sscanf(entry->d_name, "checkpoint.%ld%c", &step, &rest) == 1 && step > best)
                best = step;
            if (strncmp(entry->d_name, "writing.", 8) == 0 &&
                unlinkat(dirfd(dir), entry->d_name, 0) != 0)
                fail("remove %s/%s: %s", job->dir, entry->d_name, strerror(errno));
        }
        closedir(dir);
    }
    must(MPI_Bcast(&best, 1, MPI_LONG, 0, MPI_COMM_WORLD), "MPI_Bcast");
    return best;
}

static void read_exactly(MPI_File file, MPI_Offset at, void *into, int bytes) {
    MPI_Status status;
    int got;
    must(MPI_File_read_at_all(file, at, into, bytes, MPI_BYTE, &status), "MPI_File_read_at_all");
    must(MPI_Get_count(&status, MPI_BYTE, &got), "MPI_Get_count");
    if (got != bytes)
        fail("a read of %d bytes at offset %lld got %d", bytes, (long long)at, got);
}

/* Reads the newest checkpoint into the state, which must equal the state computed from the start. */
static long restore(struct job *job) {
    long step = newest(job);
    if (step == 0)
        fail("there is no checkpoint in %s", job->dir);
    for (long s = 1; s <= step; s++)
        for (long i = 0; i < job->count; i++)
            job->state[i] = next_word(job->state[i], s);

    char path[4096];
    snprintf(path, sizeof path, "%s/checkpoint.%ld", job->dir, step);
    MPI_File file;
    must(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDONLY, MPI_INFO_NULL, &file), path);
    struct header header;
    read_exactly(file, 0, &header, sizeof header);
    if (memcmp(header.magic, magic, sizeof magic) != 0 || header.step != step ||
        header.words != job->words)
        fail("%s is no checkpoint of step %ld with %ld words", path, step, job->words);
    uint64_t *words = malloc((size_t)job->count * 8 + 1);
    if (!words)
        fail("there is no memory for %ld words", job->count);
    MPI_Offset at = (MPI_Offset)(sizeof header + (size_t)job->first * 8);
    read_exactly(file, at, words, (int)job->count * 8);
    for (long i = 0; i < job->count; i++)
        if (words[i] != job->state[i])
            fail("%s: the word at offset %lld is %016" PRIx64 ", expected %016" PRIx64, path,
                 (long long)at + i * 8, words[i], job->state[i]);
    must(MPI_File_close(&file), "MPI_File_close");
    free(job->state);
    job->state = words;
    if (job->rank == 0)
        printf("{\"restored\":%ld}\n", step);
    return step;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    fail_context("checkpoint");
    struct job job = {.steps = 4, .words = 200000, .compute = 50};
    MPI_Comm_rank(MPI_COMM_WORLD, &job.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &job.ranks);
    parse(&job, argc, argv);
    job.first = job.words / job.ranks * job.rank;
    job.count = (job.rank == job.ranks - 1 ? job.words : job.words / job.ranks * (job.rank + 1)) -
                job.first;
    job.state = malloc((size_t)job.count * 8 + 1);
    if (!job.state)
        fail("there is no memory for %ld words", job.count);
    content_fill(0, (uint64_t)job.first * 8, job.state, (size_t)job.count * 8);

    long step = job.restart ? restore(&job) : 0;
    while (step < job.steps) {
        step++;
        compute(&job, step);
        checkpoint(&job, step);
    }
    uint64_t mine = 0, all = 0;
    for (long i = 0; i < job.count; i++)
        mine ^= content_word(job.state[i], (uint64_t)(job.first + i));
    must(MPI_Reduce(&mine, &all, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD), "MPI_Reduce");
    if (job.rank == 0)
        printf("{\"steps\":%ld,\"state\":\"%016" PRIx64 "\"}\n", step, all);
    free(job.state);
    MPI_Finalize();
    return 0;
}
