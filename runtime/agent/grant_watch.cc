// SPDX-License-Identifier: Apache-2.0
#include "runtime/agent/grant_watch.h"

#include <fcntl.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace monarch {
namespace {

constexpr size_t kMostBytes = 4096;

}  // namespace

GrantWatch::GrantWatch(std::string file) : file_(std::move(file)) {
  if (!file_.empty()) notify_ = Fd(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
}

std::optional<Grants> GrantWatch::look() {
  if (file_.empty()) return {};
  char text[kMostBytes];
  while (notify_ && ::read(notify_.get(), text, sizeof text) > 0) continue;
  // Before it is read, so that no change falls between. A new file takes the name: the old one's links
  // change.
  watching_ = notify_ && ::inotify_add_watch(notify_.get(), file_.c_str(), IN_ATTRIB | IN_CLOSE_WRITE) >= 0;
  const Fd fd(::open(file_.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  const ssize_t n = fd ? ::read(fd.get(), text, sizeof text) : -1;
  std::string now(text, static_cast<size_t>(std::max<ssize_t>(n, 0)));
  if (n < 0 || now == seen_) return {};
  seen_ = now;
  return parse_grants(now);
}

}  // namespace monarch
