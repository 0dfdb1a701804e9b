/* A process's own wall clock: off by the nanoseconds that are in the file of the variable SOAK_CLOCK, as of any moment.
 *
 * Only what Python and delta-rs ask for is changed. The clocks that only go forwards stay as they are, and so do others'
 * libraries, which would compare their time with that of the kernel when they wait.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static volatile int64_t *shift;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void open_clock(void) {
    const char *name = getenv("SOAK_CLOCK");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    void *place = file >= 0 ? mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
    shift = place == MAP_FAILED ? NULL : place;
    real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!real) open_clock();
    int failed = real(clock, now);
    Dl_info caller;
    if (failed || clock != CLOCK_REALTIME || !shift || !*shift) return failed;
    if (!dladdr(__builtin_return_address(0), &caller) || !caller.dli_fname) return 0;
    if (!strstr(caller.dli_fname, "python") && !strstr(caller.dli_fname, "deltalake")) return 0;
    int64_t total = now->tv_sec * 1000000000LL + now->tv_nsec + *shift;
    now->tv_sec = total / 1000000000LL;
    now->tv_nsec = total % 1000000000LL;
    return 0;
}
