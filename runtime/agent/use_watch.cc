// SPDX-License-Identifier: Apache-2.0
#include "runtime/agent/use_watch.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "runtime/base/fd.h"
#include "runtime/base/patience.h"

namespace monarch {
namespace {

constexpr int kLookMs = patience::kLookNs / 1'000'000;             // for the first task
constexpr int kUnusedLookMs = patience::kShortLookNs / 1'000'000;  // for a use that makes prefetch go on

}  // namespace

int64_t began_ms(int run_dir) {
  const Fd file(::openat(run_dir, kBeganFile, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  char text[24];
  const ssize_t n = file ? ::read(file.get(), text, sizeof text) : -1;
  int64_t ms = -1;
  if (n > 0) std::from_chars(text, text + n, ms);
  return ms;
}

bool UseWatch::is_unused() {
  wait_ms_ = -1;
  if (patience_ms_ == 0 || has_been_used(*board_)) return false;
  wait_ms_ = kLookMs;
  const int64_t now = clock_.now_ms();
  const int64_t began = began_ms(run_dir_);  // a task that waited begins later, or sooner, than was noted
  if (began < 0) return false;
  const int64_t left = std::min(began, now + INT32_MAX) + patience_ms_ - now;
  wait_ms_ = static_cast<int>(left <= 0 ? kUnusedLookMs : std::min<int64_t>(left, kLookMs));
  return left <= 0;
}

}  // namespace monarch
