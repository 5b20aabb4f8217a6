/* A wall clock that stands still, loaded with LD_PRELOAD.
 *
 * Tests tell scripts what time it is, but Redis expires keys by its own clock. A machine that stalls for a second would
 * then lose states that still count by the time of the test. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const time_t NOON = 1700000000;

int clock_gettime(clockid_t clock, struct timespec *time) {
  if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) return syscall(SYS_clock_gettime, clock, time);
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
