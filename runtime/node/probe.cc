// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/probe.h"

#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/fsuid.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <sstream>
#include <thread>

#include "runtime/base/fd.h"
#include "runtime/base/os.h"
#include "runtime/node/child.h"
#include "runtime/node/job_dirs.h"
#include "runtime/node/life.h"

namespace monarch {
namespace {

// What root is about to do on a tier, but for changes.
bool look_at(const std::string& tier) {
  const Fd base(os::openat(AT_FDCWD, tier.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct statvfs fs;
  (void)os::fstatvfs(base.get(), &fs);
  const Fd jobs(
      os::openat(base.get(), "monarch", O_PATH | O_NOFOLLOW | O_CLOEXEC));  // not what a user mounted
  return true;
}

// Who may enter a directory can lock it in the kernel, by a rename(2) into it that waits for another one:
// then this hangs.
void list(Fd directory) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(os::fdopendir(directory.get()), &::closedir);
  if (dir) (void)directory.release(), (void)os::readdir(dir.get());
}

// Calls `work` with each number below `count`, in a process with a thread for each; which are through in
// time, and true.
std::vector<bool> in_threads(const StateDir& state, size_t count, int patience_ms,
                             const std::function<bool(size_t)>& work) {
  std::vector<bool> answered(count, false);
  if (count == 0) return answered;
  Child child([&](int tell) {
    std::vector<std::thread> threads(count);
    for (size_t i = 0; i < count; ++i) {
      const auto answers = [&, i] { (void)(work(i) && say(tell, std::to_string(i) + "\n")); };
      if (os::start_thread(&threads[i], answers) != 0) (void)say(tell, std::to_string(i) + "\n");
    }
    for (std::thread& thread : threads)
      if (thread.joinable()) thread.join();
    return true;
  });
  if (!child.started().ok()) return std::vector<bool>(count, true);  // none is known to hang
  constexpr size_t kLine = 21;
  std::string said;
  (void)child.end(state.clock().now_ms() + patience_ms, count * kLine, &said, state.clock()).ok();
  if (child.left_behind() > 0) leave_behind(state, child.left_behind());
  std::istringstream numbers(said);
  for (size_t number; numbers >> number;) answered.at(number) = true;
  return answered;
}

}  // namespace

std::vector<std::string> paths_of(const std::vector<TierConfig>& tiers) {
  std::vector<std::string> paths;
  for (const TierConfig& tier : tiers) paths.push_back(tier.path);
  return paths;
}

std::vector<bool> probe(const StateDir& state, const std::vector<std::string>& tiers, int patience_ms) {
  return in_threads(state, tiers.size(), patience_ms, [&](size_t i) { return look_at(tiers[i]); });
}

Prepared prepare(const StateDir& state, const std::vector<TierConfig>& tiers, int patience_ms) {
  const auto list_state = [&] {
    for (const char* place : {"", "/run", "/grants"})
      list(Fd(::open((state.path() + place).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
    return true;
  };
  const auto prepare_tier = [&](const TierConfig& tier) {
    look_at(tier.path);
    const Status made = make_tier_jobs(state, tier);
    if (!made.ok()) return made.error().code != ETIMEDOUT;  // another one hangs there
    if (Result<Fd> jobs = open_tier_jobs(tier.path); jobs.ok()) list(jobs.take());
    return true;
  };
  const std::vector<bool> answered = in_threads(state, 1 + tiers.size(), patience_ms, [&](size_t i) {
    return i == 0 ? list_state() : prepare_tier(tiers[i - 1]);
  });
  return {{answered.begin() + 1, answered.end()}, answered[0]};
}

std::vector<bool> can_enter(const User& user, const std::vector<std::string>& tiers) {
  std::vector<gid_t> own(static_cast<size_t>(std::max(::getgroups(0, nullptr), 0)));
  (void)!::getgroups(static_cast<int>(own.size()), own.data());
  (void)!::setgroups(user.groups.size(), user.groups.data());
  ::setfsgid(user.gid);
  ::setfsuid(user.uid);
  std::vector<bool> enters;
  for (const std::string& path : tiers)
    enters.push_back(Fd(os::openat(AT_FDCWD, (path + "/.").c_str(), O_PATH | O_CLOEXEC)) || errno != EACCES);
  ::setfsuid(::geteuid());
  ::setfsgid(::getegid());
  (void)!::setgroups(own.size(), own.data());
  return enters;
}

}  // namespace monarch
