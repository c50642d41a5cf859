// SPDX-License-Identifier: Apache-2.0
#include "runtime/agent/sweep.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "runtime/base/fd.h"
#include "runtime/base/os.h"
#include "runtime/base/remove_tree.h"
#include "runtime/hierarchy/tier.h"

namespace monarch {
namespace {

// Its lock, if it is one. Anybody may have made one of that name, and mounted what hangs there: that is not
// asked.
Fd lock_left_over(int base, const char* name, int* young) {
  Fd dir(os::open_beneath(base, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat st {};
  if (os::fstat(dir.get(), &st) != 0 || !is_user_dir(st)) return Fd();
  if (os::realtime_s() - st.st_ctim.tv_sec < kYoungSeconds) return ++*young, Fd();
  return os::flock(dir.get(), LOCK_EX | LOCK_NB) == 0 ? std::move(dir) : Fd();
}

}  // namespace

Result<int> for_left_overs(const std::string& base, int* young,
                           const std::function<bool(const LeftOver&)>& handle) {
  const std::string prefix = kUserDirPrefix + std::to_string(::geteuid()) + ".";
  Fd fd(os::openat(AT_FDCWD, base.c_str(), O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC));
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(fd ? os::fdopendir(fd.get()) : nullptr, &::closedir);
  if (!dir) return errno_error("list " + base);
  fd.release();
  int handled = 0;
  while (const dirent* e = os::readdir(dir.get())) {
    const std::string name = e->d_name;
    if (name.compare(0, prefix.size(), prefix) != 0) continue;
    const Fd lock = lock_left_over(::dirfd(dir.get()), name.c_str(), young);
    if (lock && handle({lock.get(), ::dirfd(dir.get()), name})) ++handled;
  }
  return handled;
}

Status remove_left_over(const LeftOver& left) {
  MONARCH_TRY(empty_directory(left.dir));
  if (os::unlinkat(left.base, left.name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return {};
  return errno_error("remove " + left.name);
}

Result<int> sweep_user_dirs(const std::string& base) {
  int young = 0;
  return for_left_overs(base, &young, [](const LeftOver& left) { return remove_left_over(left).ok(); });
}

}  // namespace monarch
