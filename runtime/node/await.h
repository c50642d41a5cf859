// SPDX-License-Identifier: Apache-2.0
// Waiting for what the kernel does not tell: a lock, a state, the end of a child. Times are milliseconds of
// the clock.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "runtime/base/clock.h"

namespace monarch {

// Looks until `condition` holds. False: it is `until_ms`, and it did not hold at the last look, of which
// there is one at least.
bool poll_until(Clock& clock, int64_t until_ms, const std::function<bool()>& condition);

// Returns when `fd` can be read; false: it is `until_ms`.
inline bool readable_until(Clock& clock, int64_t until_ms, int fd) {
  return clock.poll_until(fd, POLLIN, until_ms * 1'000'000);
}

// The wait status of a child once it has ended, exit status 1 if it is none; nothing: it has not by
// `until_ms`.
std::optional<int> await_child(Clock& clock, pid_t child, int64_t until_ms);

// Kills a child. False: it is there still, hangs in the kernel, and is left to init.
bool kill_child(Clock& clock, pid_t child);

}  // namespace monarch
