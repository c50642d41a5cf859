// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/mounts.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "runtime/base/fd.h"
#include "runtime/base/mountinfo.h"
#include "runtime/base/os.h"
#include "runtime/node/memory_tier.h"

namespace monarch {
namespace {

constexpr int kMostRounds = 8;         // through all mounts; one suffices where none are made meanwhile
constexpr int kMostAtOnePlace = 5000;  // on top of each other

using Mount = MountLine;
using Mounts = std::map<int64_t, Mount>;

Mounts read_mounts() {
  Mounts mounts;
  std::ifstream in("/proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    Mount m;
    if (parse_mount_line(line, &m)) mounts[m.id] = m;
  }
  return mounts;
}

const Mount* find(const Mounts& mounts, int64_t id) {
  const auto found = mounts.find(id);
  return found == mounts.end() ? nullptr : &found->second;
}

// `path` without what leads to `above`, as "/a/b", or "" if it is `above`. `path` is below it.
std::string rest_of(const std::string& path, const std::string& above) {
  return above == "/" ? path : path.substr(above.size());
}

bool is_at_or_below(const std::string& path, const std::string& above) {
  return path.compare(0, above.size(), above) == 0 &&
         (path.size() == above.size() || path[above.size()] == '/' || above == "/");
}

// Where in its file system a path lies that `mount` shows.
std::string place(const Mount& mount, const std::string& path) {
  const std::string rest = rest_of(path, mount.point);
  return mount.root == "/" ? rest : mount.root + rest;
}

bool is_of_owner(const Mount& m, uid_t owner) {
  return m.type.rfind("fuse", 0) == 0 &&
         has_mount_option(m.super_options, "user_id=" + std::to_string(owner));
}

// On the job's directory itself, which is root's to give away.
bool is_of_job(const Mount& m, Detach what) {
  if (m.type == "tmpfs") return what == Detach::kAll && m.source == kTmpfsSource;
  return m.type.rfind("fuse", 0) == 0 && !is_of_owner(m, 0);
}

// Detaches what is wanted of what lies at the path `point`, topmost first. The way there is by `parent`
// alone, without symbolic links.
template <typename Wanted>
int detach_at(const Mounts& mounts, const Mount& parent, const std::string& point, Wanted wanted) {
  Fd dir(os::openat(AT_FDCWD, parent.point.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  std::istringstream names(rest_of(point, parent.point));
  std::string name, last;
  while (std::getline(names, name, '/')) {
    if (name.empty()) continue;
    if (!dir || os::mount_id(dir.get()) != parent.id) return 0;
    if (!last.empty())
      dir = Fd(os::openat(dir.get(), last.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    last = name;
  }
  if (!dir || last.empty() || os::mount_id(dir.get()) != parent.id) return 0;
  int detached = 0;
  for (; detached < kMostAtOnePlace; ++detached) {
    const Fd top(os::openat(dir.get(), last.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    const Mount* mount = top ? find(mounts, os::mount_id(top.get())) : nullptr;
    if (!mount || mount->id == parent.id || !wanted(*mount)) break;
    if (::umount2(("/proc/self/fd/" + std::to_string(top.get())).c_str(), MNT_DETACH) != 0) break;
  }
  return detached;
}

int detach_once(int jobs, const std::string& name, uid_t owner, Detach what) {
  const Mounts mounts = read_mounts();
  const Mount* home = find(mounts, os::mount_id(jobs));
  char path[PATH_MAX];
  const ssize_t n = ::readlink(("/proc/self/fd/" + std::to_string(jobs)).c_str(), path, sizeof path);
  if (!home || n <= 0 || n == sizeof path) return 0;
  const std::string jobs_path(path, static_cast<size_t>(n));
  if (!is_at_or_below(jobs_path, home->point)) return 0;
  const std::string job = place(*home, jobs_path) + "/" + name;
  int detached = 0;
  for (const auto& [id, mount] : mounts) {
    const Mount* parent = find(mounts, mount.parent);
    if (!parent || parent->device != home->device || !is_at_or_below(mount.point, parent->point)) continue;
    const std::string there = place(*parent, mount.point);
    if (!is_at_or_below(there, job)) continue;
    detached += detach_at(mounts, *parent, mount.point, [&](const Mount& m) {
      return is_of_owner(m, owner) || (there == job && is_of_job(m, what));
    });
  }
  return detached;
}

}  // namespace

bool is_of_job_tmpfs(int fd) {
  Mount mount;
  return find_mount(os::mount_id(fd), &mount) && mount.type == "tmpfs" && mount.source == kTmpfsSource;
}

int detach_mounts(int jobs, const std::string& name, uid_t owner, Detach what) {
  int all = 0;
  for (int round = 0; round < kMostRounds; ++round) {
    const int detached = detach_once(jobs, name, owner, what);
    if (detached == 0) break;
    all += detached;
  }
  return all;
}

}  // namespace monarch
