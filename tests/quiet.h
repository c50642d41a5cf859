// SPDX-License-Identifier: Apache-2.0
// Whether the threads have done what they can do now, without a guess at how long that takes; and time that
// goes on only then.
#pragma once

#include <sys/types.h>

#include "tests/manual_clock.h"
#include "tests/scratch.h"

namespace monarch {

// Whether all other threads of this process sleep, and none has done anything while this was found out but to
// look once more for what it polls for, as eventually() does. One that waits for a disk, or for the end of
// asynchronous calls, does not sleep.
bool others_sleep();

// Waits until they do.
inline bool quiet() { return eventually(others_sleep); }

// How often a thread of this process has gone to sleep.
int64_t sleeps_of(pid_t thread);

// Waits until `condition` holds. Time goes on to the next moment that somebody waits for, but only once all
// threads sleep: what does not need time is done before, however slow the machine is.
inline bool eventually(ManualClock* clock, const std::function<bool()>& condition) {
  int times = 0;
  return eventually([&] {
    if (condition()) return true;
    if (++times > 2 && others_sleep() && !condition()) clock->advance_to_next();
    return false;
  });
}

// Lets time pass, and all that is due by then be done. Of 0: all that can be done now.
inline void pass(ManualClock* clock, int64_t ms) {
  const int64_t until = clock->now_ns() + ms * 1'000'000;
  EXPECT_TRUE(quiet());
  for (int64_t next = clock->next_ns(); next >= 0 && next <= until; next = clock->next_ns()) {
    clock->advance_to_next();
    EXPECT_TRUE(quiet());
  }
  clock->advance(until - clock->now_ns());
}

}  // namespace monarch
