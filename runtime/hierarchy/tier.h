// SPDX-License-Identifier: Apache-2.0
// One level of the storage hierarchy: a directory with a quota (MONARCH, section III: "storage tier").
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/mutex.h"
#include "runtime/base/result.h"
#include "runtime/base/size.h"
#include "runtime/config/config.h"
#include "runtime/hierarchy/driver.h"
#include "runtime/layout/catalog_layout.h"
#include "runtime/store/client.h"
#include "runtime/store/store.h"

namespace monarch {

// The job's directory of copies on one tier. All members may be called from any thread.
//
// The directory is the user's own, with a store in this process, or root's, with root's store (monarchd
// --store).
//
// A copy comes to be in three steps: reserve() counts its space, create() opens a file that has no name
// yet, publish() names it. What was reserved is given back by release(), unless the copy was published:
// then its space stays counted until the job's directory is removed.
//
// What the file system says is free does not tell what is reserved and not written yet. That is promised, and
// nobody else's, until create() has it allocated or took() says that it is written, or will not be.
class Tier {
 public:
  Tier() = default;
  Tier(Tier&& other) noexcept;  // only before it is shared between threads

  // Makes the job's directory `job_dir` (a name) below config.path, mode 0700, and locks it for this
  // process (flock(2), shared) so that no sweep takes it for a left-over. With `root`, root's store of the
  // tier, it is there already, and its quota is what root grants.
  static Result<Tier> open(const TierConfig& config, const std::string& job_dir,
                           Clock& clock = system_clock(), const StoreEnds* root = nullptr);

  const std::string& name() const { return config_.name; }
  Medium medium() const { return config_.medium; }
  const Driver& driver() const { return *driver_; }
  const std::string& copies_path() const { return copies_path_; }  // where the copies are
  uint64_t device() const { return device_; }                      // st_dev of the copies
  uint64_t inode() const { return inode_; }                        // st_ino of that directory
  uint64_t quota() const { return quota_.load(std::memory_order_relaxed); }
  // The job may use that much from now on; what is used beyond it stays, and nothing more is reserved until
  // enough is released. True: it is more than before.
  bool set_quota(uint64_t quota);
  // Others can put another directory in the place of the job's: all can write the one above, and it is not
  // sticky, or it is another user's.
  bool unsafe() const { return unsafe_; }
  uint64_t used() const { return used_.load(); }

  // Space that a file of `bytes` takes: whole blocks, and what a name counts.
  uint64_t space_of(uint64_t bytes) const {
    return std::max(name_space_, (bytes + kSpaceBlock - 1) / kSpaceBlock * kSpaceBlock);
  }
  // Space that a further name of a copy takes.
  uint64_t name_space() const { return name_space_; }

  // Counts space_of(bytes) as used, and as promised. False, and nothing counted: the quota or the free-space
  // floor of the file system would be passed, or the tier is closed.
  bool reserve(uint64_t bytes) EXCLUDES(reserving_);
  // Counts a copy that an agent before this one has made.
  void adopt(uint64_t bytes) { used_ += space_of(bytes); }
  // `space`, of what was promised, is so no longer.
  void took(uint64_t space) { promised_.fetch_sub(space); }
  uint64_t promised() const { return promised_.load(); }
  // What a finished copy with holes does not occupy of `bytes` that were reserved for it is given back;
  // returns the space that stays counted.
  uint64_t release_holes(const struct stat& copy, uint64_t bytes);
  void release(uint64_t bytes) { release_space(space_of(bytes)); }
  void release_space(uint64_t space) { used_.fetch_sub(space, std::memory_order_relaxed); }

  // An empty file with `bytes` allocated (on a tmpfs, where that takes as long as writing and writing tells
  // by itself that it is full, with nothing allocated), for reading and writing, not visible to anyone.
  // `promised`: what is promised for it; 0 once it is allocated. Of a partial copy, for which `reserved`
  // bytes are, `bytes` is 0 if only a part will be kept: then each chunk is allocated when written.
  Result<Fd> create(Ref entry, uint64_t bytes, uint64_t* promised = nullptr);
  Result<Fd> create_part(Ref entry, uint64_t reserved, uint64_t bytes, uint64_t* promised = nullptr);
  // What else is done with copies, as Store says.
  void discard(Ref entry) { store_->discard(entry); }
  Status publish(const Fd& file, Ref entry, const struct stat& source, struct stat* made);
  Result<Fd> open_part(Ref entry) { return store_->open_part(entry); }
  Status publish_part(const Fd& file, Ref entry, const struct stat& source, struct stat* made) {
    return store_->publish_part(file, entry, source, made);
  }
  // Counts name_space(), too.
  bool link(Ref copy, Ref entry);
  bool remove(Ref entry) { return store_->remove(entry); }
  Fd hold(Fd file) const { return store_->hold(std::move(file)); }
  bool is_open(Ref entry, const Fd& held) { return store_->is_open(entry, held); }
  // A published copy, for reading. Empty: errno says why.
  Fd open_copy(Ref entry) const;

  // How many bytes can be reserved now, by the quota and the free-space floor; 0 if the tier is closed.
  uint64_t room() const;

  // After a fault of the device: no new copies until a probe succeeds.
  void close(const std::string& why);
  bool closed() const { return closed_.load(std::memory_order_relaxed) || has_ended(); }
  // Its store has: it is closed for good.
  bool has_ended() const { return store_->has_ended(); }
  // Closed, or refused a file because others fill the file system: what did not fit may fit later.
  bool may_recover() const { return next_probe_ns() != 0; }
  // When the next probe is due, by the clock: the first after 10 s, each further one after twice the
  // time, at most 5 minutes. 0: none.
  int64_t next_probe_ns() const { return has_ended() ? 0 : next_probe_ns_.load(std::memory_order_relaxed); }
  // If one is due: writes and reads a block of a nameless file, and looks for the space that lacked. True:
  // the tier takes files again. One thread at a time.
  bool probe();

 private:
  // How many more bytes the file system can take before its free-space floor, beyond what is promised.
  uint64_t headroom() const;
  uint64_t file_system_bytes() const;  // free for users, whatever memory there is
  // False: errno says why.
  bool allocate(const Fd& file, uint64_t bytes, uint64_t* promised);
  Error no_space_for(uint64_t bytes) const;

  // The directory that Tier::open() is about.
  static Result<Fd> own_directory(const Fd& base, const TierConfig& config, const std::string& job_dir);
  static Result<Fd> roots_directory(const Fd& base, const TierConfig& config, const std::string& job_dir);
  Status write_and_read();
  Status write_and_read(const Fd& file) const;
  int64_t leave_alone();  // until the next probe; returns for how many seconds

  Clock* clock_ = &system_clock();
  TierConfig config_;
  std::unique_ptr<Driver> driver_;
  std::string copies_path_;
  Fd directory_;
  std::unique_ptr<Store> store_;
  uint64_t name_space_ = 0;
  uint64_t device_ = 0, inode_ = 0;
  std::atomic<uint64_t> quota_{0};
  bool unsafe_ = false;
  uint64_t floor_ = 0;
  std::atomic<uint64_t> used_{0};
  Mutex reserving_;  // from a look at what is free until it is promised
  std::atomic<uint64_t> promised_{0};
  std::atomic<bool> closed_{false}, crowded_{false};
  std::atomic<uint64_t> wanted_{0};  // what a file that did not fit needs
  std::atomic<int64_t> next_probe_ns_{0};
  std::atomic<int64_t> patience_ns_{0};  // how long it was closed the last time; 0: never
};

// The name of a job's directory on each tier in user mode, and how a sweep recognises it.
inline constexpr char kUserDirPrefix[] = "monarch-run.";
// Its mode. Nobody but its owner can give a directory the sticky bit, which has no other use on one that
// nobody else may enter: so it is not a directory that another user has given such a name, where others can
// rename.
inline constexpr mode_t kUserDirMode = 01700;

inline bool is_run_of_user(std::string_view job_dir) {
  return job_dir.substr(0, sizeof kUserDirPrefix - 1) == kUserDirPrefix;
}

// Whether a directory has been made for the caller's run in user mode.
bool is_user_dir(const struct stat& st);
// Removes one with all that is in it; one of another kind only if it is empty: EPERM else.
Status remove_user_dir(int base, const std::string& name);

}  // namespace monarch
