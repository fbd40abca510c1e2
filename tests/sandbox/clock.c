/* Copyright: Contributors to the autopilot.gpu collection
 * GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Preloaded, it makes the wall clock of a process and of its forks wrong by SANDBOX_CLOCK_OFFSET seconds: the kernel's time
 * namespaces cover the monotonic clocks only, and a host of the sandbox shares the wall clock of this machine.
 * Other programs that the process starts keep the kernel's clock: fping, for one, compares its own with the kernel's time of a packet.
 * Times of files, and waits until an absolute wall-clock time, are the kernel's and stay right.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static long long offset; /* nanoseconds */

__attribute__((constructor)) static void read_offset(void)
{
    const char *text = getenv("SANDBOX_CLOCK_OFFSET");
    offset = text ? (long long)(strtod(text, NULL) * SECOND) : 0;
    unsetenv("LD_PRELOAD");
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (syscall(SYS_clock_gettime, clock, now) != 0)
        return -1;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) {
        long long shifted = now->tv_sec * SECOND + now->tv_nsec + offset;
        now->tv_sec = shifted / SECOND;
        now->tv_nsec = shifted % SECOND;
    }
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now)
{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (now)
        *now = exact.tv_sec;
    return exact.tv_sec;
}
