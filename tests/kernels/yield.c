/* For ranks that share processors: MPICH's wait by asking UCX again and again, and give the others
 * their turn only when the kernel takes it from them, some milliseconds later. Loaded before it
 * (LD_PRELOAD), this gives the processor away when there was nothing to do. Nothing that has to do with
 * files is touched. */
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
