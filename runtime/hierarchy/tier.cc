// SPDX-License-Identifier: Apache-2.0
#include "runtime/hierarchy/tier.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/os.h"
#include "runtime/base/patience.h"
#include "runtime/base/remove_tree.h"
#include "runtime/store/local_store.h"

namespace monarch {
namespace {

constexpr int64_t kNsPerSecond = 1000000000;
constexpr Ref kNobody = 0;  // whose file is for a probe

}  // namespace

Tier::Tier(Tier&& other) noexcept
    : clock_(other.clock_),
      config_(std::move(other.config_)),
      driver_(std::move(other.driver_)),
      copies_path_(std::move(other.copies_path_)),
      directory_(std::move(other.directory_)),
      store_(std::move(other.store_)),
      name_space_(other.name_space_),
      device_(other.device_),
      inode_(other.inode_),
      quota_(other.quota_.load()),
      unsafe_(other.unsafe_),
      floor_(other.floor_),
      used_(other.used_.load()),
      promised_(other.promised_.load()),
      closed_(other.closed_.load()),
      crowded_(other.crowded_.load()),
      wanted_(other.wanted_.load()),
      next_probe_ns_(other.next_probe_ns_.load()),
      patience_ns_(other.patience_ns_.load()) {}

Result<Fd> Tier::own_directory(const Fd& base, const TierConfig& config, const std::string& job_dir) {
  const std::string what = "tier " + config.name + ": ", path = config.path + "/" + job_dir;
  if (os::mkdirat(base.get(), job_dir.c_str(), is_run_of_user(job_dir) ? kUserDirMode : 0700) != 0 &&
      errno != EEXIST)
    return errno_error(what + "make " + path);
  Fd copies(os::openat(base.get(), job_dir.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat st;
  if (!copies || os::fstat(copies.get(), &st) != 0) return errno_error(what + "open " + path);
  if (st.st_uid != ::geteuid() || (st.st_mode & 077) != 0)
    return Error{EPERM, what + path + " is there already and others have access to it"};
  if (is_run_of_user(job_dir) && !is_user_dir(st))
    return Error{
        EPERM, what + path +
                   ": this run has not made it, or its file system does not keep modes and cannot be a tier"};
  if (os::flock(copies.get(), LOCK_SH | LOCK_NB) != 0) return errno_error(what + "lock " + path);
  return copies;
}

// The user may only pass through it.
Result<Fd> Tier::roots_directory(const Fd& base, const TierConfig& config, const std::string& job_dir) {
  Fd copies(os::openat(base.get(), job_dir.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!copies) return errno_error("tier " + config.name + ": open " + config.path + "/" + job_dir);
  return copies;
}

Result<Tier> Tier::open(const TierConfig& config, const std::string& job_dir, Clock& clock,
                        const StoreEnds* root) {
  Tier tier;
  tier.clock_ = &clock;
  tier.config_ = config;
  tier.copies_path_ = config.path + "/" + job_dir;
  const std::string what = "tier " + config.name + ": ";
  Fd base(os::openat(AT_FDCWD, config.path.c_str(), (root ? O_PATH : O_RDONLY) | O_DIRECTORY | O_CLOEXEC));
  if (!base) return errno_error(what + "open " + config.path);
  if (tier.copies_path_.size() + kCopyNameBytes > kPathBytes)
    return Error{ENAMETOOLONG, what + "the path " + tier.copies_path_ + " is too long"};
  Result<Fd> copies = (root ? roots_directory : own_directory)(base, config, job_dir);
  if (!copies.ok()) return copies.error();
  tier.directory_ = copies.take();
  struct stat st, above;
  if (os::fstat(tier.directory_.get(), &st) != 0) return errno_error(what + "look at " + tier.copies_path_);
  tier.device_ = st.st_dev;
  tier.inode_ = st.st_ino;
  const bool looked = os::fstatat(tier.directory_.get(), "..", &above, AT_SYMLINK_NOFOLLOW) == 0;
  const bool keeps = looked && (above.st_uid == 0 || above.st_uid == ::geteuid()) &&
                     ((above.st_mode & S_ISVTX) != 0 || (above.st_mode & (S_IWGRP | S_IWOTH)) == 0);
  tier.unsafe_ = !keeps;
  tier.driver_ = driver_of(tier.directory_.get());
  uint64_t size = 0;
  tier.driver_->free_bytes(tier.directory_.get(), &size);
  if (size == 0) return errno_error(what + "statvfs " + tier.copies_path_);
  tier.quota_ = config.quota.of(size);
  tier.floor_ = config.min_free.of(size);
  Result<std::unique_ptr<Store>> store =
      root ? StoreClient::open(*root)
           : LocalStore::open(tier.directory_.get(), tier.copies_path_, config.name);
  if (!store.ok()) return store.error();
  tier.store_ = store.take();
  if (!root) return tier;
  tier.name_space_ = kSpaceBlock;
  const Result<std::optional<Store::Room>> room = tier.store_->room();
  if (!room.ok()) return room.error();
  tier.quota_ = (*room)->granted;
  return tier;
}

// What is written after the first look counts twice, rather than not at all.
uint64_t Tier::headroom() const {
  const uint64_t kept = floor_ + promised_;
  uint64_t size = 0;
  const uint64_t free = driver_->free_bytes(directory_.get(), &size);
  return free > kept ? free - kept : 0;
}

uint64_t Tier::file_system_bytes() const {
  struct statvfs fs;
  return os::fstatvfs(directory_.get(), &fs) == 0 ? uint64_t{fs.f_bavail} * fs.f_frsize : 0;
}

bool Tier::set_quota(uint64_t quota) { return quota_.exchange(quota) < quota; }

bool Tier::reserve(uint64_t bytes) {
  if (closed()) return false;
  const uint64_t space = space_of(bytes);
  uint64_t used = used_.load(std::memory_order_relaxed);
  do {
    if (used + space > quota_) return false;
  } while (!used_.compare_exchange_weak(used, used + space));
  // It may have been lowered just now: whoever did so saw this use, or this sees the new quota.
  if (used + space > quota_) {
    release(bytes);
    return false;
  }
  {
    const MutexLock one(reserving_);
    if (headroom() >= space) {
      promised_ += space;
      return true;
    }
  }
  release(bytes);
  // By its quota there is room: others fill the file system. That may pass.
  wanted_.store(space, std::memory_order_relaxed);
  if (!crowded_.exchange(true)) {
    spdlog::info("tier {}: {}", name(),
                 space + floor_ + promised_ <= file_system_bytes()
                     ? "the memory that the agent may use leaves less than min_free"
                     : "others have filled its file system");
    leave_alone();
  }
  return false;
}

Error Tier::no_space_for(uint64_t bytes) const {
  return errno_error("tier " + name() + ": allocate " + std::to_string(bytes) + " bytes");
}

bool Tier::allocate(const Fd& file, uint64_t bytes, uint64_t* promised) {
  if (bytes == 0) return true;
  const int64_t allocated = driver_->allocate(file.get(), bytes);
  if (allocated > 0 && promised) took(std::exchange(*promised, 0));
  return allocated >= 0;
}

Result<Fd> Tier::create(Ref entry, uint64_t bytes, uint64_t* promised) {
  Result<Fd> file = store_->create(entry);
  if (file.ok() && !allocate(*file, bytes, promised)) {
    const Error error = no_space_for(bytes);
    file->reset();
    store_->discard(entry);
    return error;
  }
  return file;
}

Result<Fd> Tier::create_part(Ref entry, uint64_t reserved, uint64_t bytes, uint64_t* promised) {
  Result<Fd> file = store_->create_part(entry, reserved);
  if (file.ok() && !allocate(*file, bytes, promised)) {
    const Error error = no_space_for(bytes);
    file->reset();
    store_->remove(entry);
    return error;
  }
  return file;
}

Status Tier::publish(const Fd& file, Ref entry, const struct stat& source, struct stat* made) {
  Status published = store_->publish(file, entry, source, made);
  if (!published.ok() && published.error().code == EDQUOT)
    wanted_.store(space_of(static_cast<uint64_t>(source.st_size)), std::memory_order_relaxed);
  return published;
}

bool Tier::link(Ref copy, Ref entry) {
  if (!store_->link(copy, entry)) return false;
  used_ += name_space_;
  return true;
}

Fd Tier::open_copy(Ref entry) const {
  char copy[kCopyNameBytes];
  copy_name(entry, copy);
  return Fd(os::openat(directory_.get(), copy, O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
}

uint64_t Tier::room() const {
  if (closed()) return 0;
  const uint64_t used = used_.load(std::memory_order_relaxed), quota = this->quota();
  return std::min(quota > used ? quota - used : 0, headroom());
}

int64_t Tier::leave_alone() {
  const int64_t before = patience_ns_.load(std::memory_order_relaxed);
  const int64_t patience = before == 0 ? patience::kIdleLookNs : std::min(2 * before, patience::kMostPauseNs);
  patience_ns_.store(patience, std::memory_order_relaxed);
  next_probe_ns_.store(clock_->now_ns() + patience, std::memory_order_relaxed);
  return patience / kNsPerSecond;
}

void Tier::close(const std::string& why) {
  if (closed_.exchange(true) || has_ended()) return;  // by another thread, or a copy that was under way
  spdlog::warn("tier {} closed to new copies for {} s: {}", name(), leave_alone(), why);
}

uint64_t Tier::release_holes(const struct stat& copy, uint64_t bytes) {
  constexpr uint64_t kBytesPerBlock = 512;
  const uint64_t occupied =
      std::min(space_of(bytes), space_of(static_cast<uint64_t>(copy.st_blocks) * kBytesPerBlock));
  release_space(space_of(bytes) - occupied);
  return occupied;
}

Status Tier::write_and_read() {
  const uint64_t wanted = wanted_.load(std::memory_order_relaxed);
  if (headroom() < wanted) return Error{ENOSPC, "its file system is full"};
  const Result<std::optional<Store::Room>> room = store_->room();
  if (!room.ok()) return room.error();
  if (*room && (*room)->used + wanted > (*room)->granted)
    return Error{EDQUOT, "the job's share of it is full"};
  Result<Fd> file = store_->create(kNobody);
  if (!file.ok()) return file.error();
  Status works = write_and_read(*file);
  file->reset();
  store_->discard(kNobody);
  return works;
}

Status Tier::write_and_read(const Fd& file) const {
  alignas(kSpaceBlock) char block[kSpaceBlock] = "monarch", back[kSpaceBlock];
  if (driver_->allocate(file.get(), kSpaceBlock) < 0) return errno_error("allocate");
  const auto whole = [](ssize_t bytes, const char* what) -> Status {
    if (bytes < 0) return errno_error(what);
    return bytes == kSpaceBlock ? Status() : Error{EIO, std::string(what) + ": not the whole of a block"};
  };
  MONARCH_TRY(whole(os::pwrite(file.get(), block, kSpaceBlock, 0), "write"));
  if (driver_->prepare(file.get(), kSpaceBlock, true) == Writing::kBuffered &&
      os::sync_range(file.get(), 0, kSpaceBlock, Sync::kFinish) != 0 && is_write_back_error(errno))
    return errno_error("write-back");
  MONARCH_TRY(whole(os::pread(file.get(), back, kSpaceBlock, 0), "read"));
  if (std::memcmp(block, back, kSpaceBlock) != 0)
    return Error{EIO, "it returns other bytes than were written"};
  return {};
}

bool Tier::probe() {
  const int64_t due = next_probe_ns();
  if (due == 0 || clock_->now_ns() < due) return false;
  const Status works = write_and_read();
  if (!works.ok() && is_shortage(works.error().code)) {  // the agent's: nothing was learned about the tier
    next_probe_ns_.store(clock_->now_ns() + patience::kIdleLookNs, std::memory_order_relaxed);
    return false;
  }
  if (has_ended()) return false;
  if (!works.ok()) {
    spdlog::warn("tier {} is left alone for {} s: {}", name(), leave_alone(), works.error().text);
    return false;
  }
  next_probe_ns_.store(0, std::memory_order_relaxed);
  crowded_ = false;
  if (closed_.exchange(false)) spdlog::info("tier {}: opened again", name());
  return true;
}

// One that hands its group down has given the directory that bit, too.
bool is_user_dir(const struct stat& st) {
  constexpr mode_t kMode = 07777 & ~mode_t{S_ISGID};
  return S_ISDIR(st.st_mode) && st.st_uid == ::geteuid() && (st.st_mode & kMode) == kUserDirMode;
}

// By descriptor, since others may rename what is there.
Status remove_user_dir(int base, const std::string& name) {
  const Fd dir(os::openat(base, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!dir && errno == ENOENT) return {};
  struct stat st {};
  if (!dir || os::fstat(dir.get(), &st) != 0) return errno_error("open " + name);
  if (is_user_dir(st)) MONARCH_TRY(empty_directory(dir.get()));
  if (os::unlinkat(base, name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return {};
  return is_user_dir(st)
             ? Status(errno_error("remove " + name))
             : Status(
                   Error{EPERM, name + ": not a directory that monarchctl run has made; it is left alone"});
}

}  // namespace monarch
