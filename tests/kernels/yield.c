/* For ranks that share processors: MPICH's ranks wait by polling UCX, and other ranks run only when
 * the kernel preempts the waiting one, some milliseconds later. Loaded with LD_PRELOAD, this
 * library yields the processor after several polls without work. It touches nothing that has to do
 * with files. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdlib.h>

typedef unsigned progress_fn(void *worker);

unsigned ucp_worker_progress(void *worker) {
    static progress_fn *real;
    static unsigned idle;
    if (!real) {
        *(void **)&real = dlsym(RTLD_NEXT, "ucp_worker_progress");
        if (!real)
            abort();
    }
    unsigned done = real(worker);
    if (done)
        idle = 0;
    else if (++idle > 10)
        sched_yield();
    return done;
}
