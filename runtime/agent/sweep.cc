// SPDX-License-Identifier: Apache-2.0
#include "runtime/agent/sweep.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>

#include "runtime/base/fd.h"
#include "runtime/base/os.h"
#include "runtime/base/remove_tree.h"
#include "runtime/hierarchy/tier.h"

namespace monarch {
namespace {

constexpr int64_t kYoungSeconds = 10;  // it may not be locked yet by who made it

bool is_left_over(int base, const char* name) {
  const Fd dir(::openat(base, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat st {};
  if (::fstat(dir.get(), &st) != 0 || st.st_uid != ::geteuid()) return false;
  const int64_t age = os::clock_ns(CLOCK_REALTIME) / 1000000000 - st.st_ctim.tv_sec;
  return age >= kYoungSeconds && ::flock(dir.get(), LOCK_EX | LOCK_NB) == 0;
}

}  // namespace

Result<int> sweep_user_dirs(const std::string& base) {
  const std::string prefix = kUserDirPrefix + std::to_string(::geteuid()) + ".";
  std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(base.c_str()), &::closedir);
  if (!dir) return errno_error("list " + base);
  int removed = 0;
  while (const dirent* e = ::readdir(dir.get())) {
    const std::string name = e->d_name;
    if (name.compare(0, prefix.size(), prefix) != 0 || !is_left_over(::dirfd(dir.get()), name.c_str()))
      continue;
    if (remove_tree(::dirfd(dir.get()), name).ok()) ++removed;
  }
  return removed;
}

}  // namespace monarch
