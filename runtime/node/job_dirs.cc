// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/job_dirs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/fd.h"
#include "runtime/base/os.h"
#include "runtime/node/memory_tier.h"
#include "runtime/node/state.h"

namespace monarch {

Status make_job_dir(const TierConfig& tier, const std::string& name, const User& user) {
  const std::string what = "tier " + tier.name + ": " + tier.path;
  const Fd base(os::openat(AT_FDCWD, tier.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat st;
  if (!base || os::fstat(base.get(), &st) != 0) return errno_error(what);
  if ((st.st_mode & S_IWOTH) && !(st.st_mode & S_ISVTX))
    return Error{EPERM, what + ": all can write it and rename what is in it; run chmod +t " + tier.path};
  if (os::mkdirat(base.get(), "monarch", 0711) != 0 && errno != EEXIST) return errno_error(what + "/monarch");
  const Result<Fd> all = open_tier_jobs(tier.path);
  if (!all.ok()) return all.error();
  if (::fchmod(all->get(), 0711) != 0) return errno_error(what + "/monarch");
  if (os::mkdirat(all->get(), name.c_str(), 0700) != 0) return errno_error(what + "/monarch/" + name);
  const Fd own(os::open_beneath(all->get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!own || ::fchown(own.get(), user.uid, user.gid) != 0) return errno_error(what + "/monarch/" + name);
  if (tier.kind == TierConfig::Kind::kTmpfs) return mount_tmpfs(own, tier.quota.bytes, user);
  return {};
}

Status make_run_dir(const std::string& path, const std::string& conf, const User& user) {
  if (::mkdir(path.c_str(), 0700) != 0) return errno_error("make " + path);  // its parent is root's
  const Fd dir(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  const Fd file(::openat(dir.get(), "agent.conf", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!dir || !file || ::fchmod(file.get(), 0644) != 0 ||
      ::write(file.get(), conf.data(), conf.size()) != static_cast<ssize_t>(conf.size()) ||
      ::fchown(dir.get(), user.uid, user.gid) != 0)
    return errno_error("fill " + path);
  return {};
}

}  // namespace monarch
