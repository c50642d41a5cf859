// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/job_dirs.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/base/mountinfo.h"
#include "runtime/base/os.h"
#include "runtime/base/patience.h"
#include "runtime/base/paths.h"
#include "runtime/hierarchy/discovery.h"
#include "runtime/metadata/run_file.h"
#include "runtime/node/acl.h"
#include "runtime/node/memory_tier.h"
#include "runtime/node/life.h"
#include "runtime/node/state.h"

namespace monarch {

namespace {

constexpr char kJobs[] = "monarch";  // in the tier's directory
constexpr int kTries = 8;

std::string path_by(const Fd& fd) { return "/proc/self/fd/" + std::to_string(fd.get()); }

// Whether a user has mounted a FUSE file system at `path`, told without asking that file system.
bool is_users_mount(const std::string& path) {
  std::ifstream in("/proc/self/mountinfo");
  bool users = false;
  for (std::string line; std::getline(in, line);) {  // the last one is on top
    MountLine m;
    if (parse_mount_line(line, &m) && m.point == path)
      users = m.type.starts_with("fuse") && !has_mount_option(m.super_options, "user_id=0");
  }
  return users;
}

// What is not root's has our name in the directory `base`: it gets another one, and stays its owner's.
// `fresh` is ours, and empty. The two are exchanged at once, so that nobody can take the name in between.
Status take_place(const Fd& base, const std::string& fresh, const std::string& path) {
  const auto exchange = [&] {
    return os::renameat(base.get(), fresh.c_str(), base.get(), kJobs, RENAME_EXCHANGE);
  };
  const auto look = [&](const char* name, struct stat* st) {
    return os::fstatat(base.get(), name, st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT);
  };
  struct stat st {};
  if (look(kJobs, &st) != 0) return errno_error(path);
  if (st.st_uid == 0) return Error{EPERM, path + ": not a directory that root alone can write; remove it"};
  if (exchange() != 0 || look(fresh.c_str(), &st) != 0) return errno_error(path);
  if (st.st_uid == 0) {  // it was root's by then
    exchange();
    return {};
  }
  const std::string aside = fmt::format("{}.of-{}{}", kJobs, st.st_uid, fresh.substr(fresh.rfind('.')));
  if (os::renameat(base.get(), fresh.c_str(), base.get(), aside.c_str(), RENAME_NOREPLACE) != 0)
    return errno_error(path);
  spdlog::warn("{} was user {}'s: it is called {} now", path, st.st_uid, aside);
  return {};
}

// A new directory in the tier's that is root's. There is none where root is another user, as with
// root_squash.
Status make_roots_own(const Fd& base, const std::string& name, const std::string& path, mode_t mode = 0711) {
  if (os::mkdirat(base.get(), name.c_str(), mode) != 0) return errno_error(path);
  struct stat made {};
  Status own;
  if (os::fstatat(base.get(), name.c_str(), &made, AT_SYMLINK_NOFOLLOW) != 0)
    own = errno_error(path);
  else if (made.st_uid != 0)
    own = Error{EPERM, path + ": root is mapped to user " + std::to_string(made.st_uid) +
                           " on this file system, which cannot be a tier"};
  if (!own.ok()) os::unlinkat(base.get(), name.c_str(), AT_REMOVEDIR);
  return own;
}

// The directory of a tier, where root may make something.
Result<Fd> open_tier(const TierConfig& tier) {
  const std::string what = "tier " + tier.name + ": ";
  Fd base(os::openat(AT_FDCWD, tier.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat st;
  if (!base || os::fstat(base.get(), &st) != 0) return errno_error(what + tier.path);
  if (const Status safe = safe_for_jobs(tier.path, st); !safe.ok())
    return Error{safe.error().code, what + safe.error().text};
  return base;
}

// One for each tier's directory: who holds it may hang, so it is not the ledger's.
Result<Fd> lock_tier(const StateDir& state, const Fd& base) {
  struct stat st;
  if (os::fstat(base.get(), &st) != 0) return errno_error("a tier's directory");
  return state.lock_file(fmt::format("tier.{:x}.{:x}.lock", st.st_dev, st.st_ino), patience::kBriefMs);
}

// make_tier_jobs(), by a child: who has the tier's directory locked in the kernel keeps nobody else.
Status make_tier_jobs_in_time(const StateDir& state, const TierConfig& tier) {
  const Result<std::string> why = said_in_time(state, patience::kBriefMs, {}, [&]() -> std::string {
    const Status made = make_tier_jobs(state, tier);
    return made.ok() ? "" : std::to_string(made.error().code) + " " + made.error().text;
  });
  if (!why.ok())
    return Error{ETIMEDOUT, fmt::format("tier {}: {}/{} cannot be made within {} ms", tier.name, tier.path,
                                        kJobs, patience::kBriefMs)};
  return why->empty() ? Status() : Error{std::stoi(*why), why->substr(why->find(' ') + 1)};
}

// Copies are linked from files without names.
Status has_hard_links(const Fd& dir, const std::string& path) {
  constexpr char kOne[] = "probe", kOther[] = "link";
  const Fd file(os::openat(dir.get(), kOne, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) return errno_error(path);
  const int linked = os::linkat(dir.get(), kOne, dir.get(), kOther, 0), error = errno;
  os::unlinkat(dir.get(), kOther, 0);
  os::unlinkat(dir.get(), kOne, 0);
  if (linked == 0) return {};
  return Error{error, path + ": its file system makes no hard links (" + std::strerror(error) +
                          "), and cannot be a tier; name another directory"};
}

// Whether that is a job's, as make_job_dir() says.
Status is_of_job(const Fd& dir, const std::string& path, uid_t uid) {
  const std::string own = path_by(dir);
  (void)::removexattr(own.c_str(), "system.posix_acl_default");  // of a directory above
  if (!let_in(own, uid, LetIn::kEnter))
    return Error{errno,
                 path + ": no access control list can be set (" + std::strerror(errno) +
                     "), which keeps copies from other users; mount its file system with ACLs (acl(5))"};
  struct stat st {};
  if (os::fstat(dir.get(), &st) != 0) return errno_error(path);
  if (st.st_uid != 0 || (st.st_mode & 0777) != 0710)  // the group's bits are the list's mask
    return Error{EPERM, path + ": this file system does not keep owners and modes; it cannot be a tier"};
  return has_hard_links(dir, path);
}

// `name` in the directory of all jobs, which is root's alone still, for the user.
Result<Fd> give_job_dir(const Fd& all, const TierConfig& tier, const std::string& name,
                        const std::string& path, uid_t uid) {
  constexpr int kList = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  Fd dir(os::open_beneath(all.get(), name.c_str(), kList));
  if (!dir) return errno_error(path);
  const bool memory = tier.kind == TierConfig::Kind::kTmpfs;
  if (memory) {
    MONARCH_TRY(mount_tmpfs(dir, tier.quota.bytes));
    dir = Fd(os::openat(all.get(), name.c_str(), kList | O_NOFOLLOW));
  }
  const Status given = dir ? is_of_job(dir, path, uid) : Status(errno_error(path));
  if (given.ok()) return dir;
  if (memory) ::umount2((path_by(all) + "/" + name).c_str(), MNT_DETACH);
  return given.error();
}

}  // namespace

// The lock keeps two helpers from taking each other's away.
Status make_tier_jobs(const StateDir& state, const TierConfig& tier) {
  const Result<Fd> base = open_tier(tier);
  if (!base.ok()) return base.error();
  // What is there is not made: mkdir(2) waits for whoever has the tier's directory locked in the kernel.
  if (open_tier_jobs(tier.path).ok()) return {};
  const std::string path = tier.path + "/" + kJobs;
  const Result<Fd> lock = lock_tier(state, *base);
  if (!lock.ok()) return lock.error();
  if (const Status made = make_roots_own(*base, kJobs, path); !made.ok() && made.error().code != EEXIST)
    return made.error();
  Result<Fd> all = open_tier_jobs(tier.path);
  if (all.ok()) return {};
  const Result<std::string> real = real_path(tier.path);
  const std::string fresh = fmt::format(".{}.{}", kJobs, os::clock_ns(CLOCK_REALTIME));
  MONARCH_TRY(make_roots_own(*base, fresh, path));
  for (int i = 0; i < kTries && !all.ok(); ++i) {
    const std::string mounted = fmt::format("/proc/self/fd/{}/{}", base->get(), kJobs);
    if (real.ok() && is_users_mount(*real + "/" + kJobs))
      (void)::umount2(mounted.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW);
    const Status taken = take_place(*base, fresh, path);
    if (!taken.ok() && taken.error().code == ENOENT)
      (void)os::renameat(base->get(), fresh.c_str(), base->get(), kJobs, RENAME_NOREPLACE);
    all = open_tier_jobs(tier.path);
    if (!taken.ok() && taken.error().code == EPERM) break;
  }
  os::unlinkat(base->get(), fresh.c_str(), AT_REMOVEDIR);  // where it was not needed
  return all.ok() ? Status() : Status(all.error());
}

Result<Fd> make_job_dir(const StateDir& state, const TierConfig& tier, const std::string& name, uid_t uid) {
  const std::string what = "tier " + tier.name + ": " + tier.path;
  if (const Result<Fd> base = open_tier(tier); !base.ok()) return base.error();
  MONARCH_TRY(check_keeps_copies(tier));
  Result<Fd> all = open_tier_jobs(tier.path);
  if (!all.ok()) {
    MONARCH_TRY(make_tier_jobs_in_time(state, tier));
    all = open_tier_jobs(tier.path);
  }
  if (!all.ok()) return all.error();
  if (os::fchmod(all->get(), 0711) != 0) return errno_error(what + "/monarch");
  const std::string path = what + "/monarch/" + name;
  MONARCH_TRY(make_roots_own(*all, name, path, 0700));
  Result<Fd> dir = give_job_dir(*all, tier, name, path, uid);
  if (!dir.ok()) os::unlinkat(all->get(), name.c_str(), AT_REMOVEDIR);
  return dir;
}

namespace {

// A file that is the user's, and nobody else can read.
bool put(const Fd& dir, const std::string& name, const std::string& text, const User& user) {
  const Fd file(os::openat(dir.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  return file && os::fchmod(file.get(), kRunFileMode) == 0 &&
         ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
         os::fchown(file.get(), user.uid, user.gid) == 0;
}

}  // namespace

Status make_run_dir(const std::string& path, uint64_t bytes, const RunFiles& files, const User& user) {
  constexpr int kList = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  if (::mkdir(path.c_str(), 0700) != 0) return errno_error("make " + path);
  Fd dir(::open(path.c_str(), kList));
  if (dir && bytes != 0) {
    const Status mounted = mount_run_tmpfs(dir, bytes);
    if (!mounted.ok()) spdlog::warn("run directories are not bounded: {}", mounted.error().text);
    if (mounted.ok()) dir = Fd(::open(path.c_str(), kList));
  }
  bool filled = static_cast<bool>(dir);
  for (const std::string& name : run_file_names()) filled = filled && put(dir, name, "", user);
  for (const auto& [name, text] : files) filled = filled && put(dir, name, text, user);
  if (!filled) return errno_error("fill " + path);
  (void)removexattr(path_by(dir).c_str(), "system.posix_acl_default");  // of a directory above
  if (!let_in(path_by(dir), user.uid, LetIn::kEnter) && os::fchmod(dir.get(), 0711) != 0)
    return errno_error("fill " + path);
  return {};
}

}  // namespace monarch
