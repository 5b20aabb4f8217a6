/* A wall clock that stands still, loaded with LD_PRELOAD. With ALL_CLOCKS, all other clocks stand still, too.
 *
 * Tests say what time it is, but Redis expires keys by its own wall clock, and memcached by the time since boot. A machine that
 * stalls for a second would then lose states that still count by the time of the test. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const time_t NOON = 1700000000;

int clock_gettime(clockid_t clock, struct timespec *time) {
#ifndef ALL_CLOCKS
  if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) return syscall(SYS_clock_gettime, clock, time);
#else
  (void)clock;
#endif
  time->tv_sec = NOON;
  time->tv_nsec = 0;
  return 0;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
  (void)zone;
  time->tv_sec = NOON;
  time->tv_usec = 0;
  return 0;
}

time_t time(time_t *time) {
  if (time) *time = NOON;
  return NOON;
}
