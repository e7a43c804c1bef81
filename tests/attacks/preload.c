/* A library that is loaded before a hub. The hub's wall clock jumps by JUMP_S seconds, forward and back in turn, each time
 * it is read. The hub's disk does not answer while the file STALL exists. Name servers give no answer for names that end in
 * .silent while the file SILENT exists. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long jump(void) {
    static atomic_uint looks;
    const char *seconds = getenv("JUMP_S");
    return (atomic_fetch_add(&looks, 1) % 2 ? 1 : -1) * (seconds ? atol(seconds) : 0);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += jump();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *into) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (into) *into = precise.tv_sec;
    return precise.tv_sec;
}

int getaddrinfo(const char *restrict name, const char *restrict service, const struct addrinfo *restrict hints,
                struct addrinfo **restrict found) {
    int (*others)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    size_t length = name ? strlen(name) : 0;
    if (length > 7 && strcmp(name + length - 7, ".silent") == 0) {
        const char *file = getenv("SILENT");
        while (file && access(file, F_OK) == 0) usleep(10000);
        return EAI_NONAME;
    }
    *(void **)&others = dlsym(RTLD_NEXT, "getaddrinfo");
    return others(name, service, hints, found);
}

static void stall(void) {
    const char *file = getenv("STALL");
    while (file && access(file, F_OK) == 0) usleep(10000);
}

int fsync(int file) {
    stall();
    return (int)syscall(SYS_fsync, file);
}

int fdatasync(int file) {
    stall();
    return (int)syscall(SYS_fdatasync, file);
}
