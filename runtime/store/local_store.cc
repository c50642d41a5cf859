// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/local_store.h"

#include <fcntl.h>

#include <cstdio>
#include <utility>

#include "runtime/base/os.h"

namespace monarch {
namespace {

// Without O_TMPFILE: the name of a copy that is being made, which no reader looks for.
struct UnfinishedName {
  explicit UnfinishedName(const char* copy) { std::snprintf(text, sizeof text, "%s.part", copy); }
  char text[kCopyNameBytes + sizeof ".part"];
};

}  // namespace

Result<std::unique_ptr<Store>> LocalStore::open(int directory, const std::string& path,
                                                const std::string& tier) {
  std::unique_ptr<LocalStore> store(new LocalStore(directory, path, tier));
  store->tmpfile_ = static_cast<bool>(store->open_nameless());
  MONARCH_TRY(store->keeps_what_tells_copies());
  return std::unique_ptr<Store>(std::move(store));
}

// They know it by its device, inode, size and mtime. What is not taken for a copy has other values than its
// file, and stays what it is when the job changes that.
Status LocalStore::keeps_what_tells_copies() const {
  constexpr timespec kTime = {1, 123456789};
  const timespec times[2] = {kTime, kTime};
  struct stat st, above;
  const Fd file = open_nameless();
  if (!file || os::futimens(file.get(), times) != 0 || os::fstat(file.get(), &st) != 0 ||
      os::fstat(directory_, &above) != 0)
    return {};
  const std::string place = "tier " + tier_ + ": " + path_;
  if (st.st_dev != above.st_dev) return no_tier(place, EXDEV);
  if (!same_time(st.st_mtim, kTime)) return no_tier(place, EOPNOTSUPP);
  return {};
}

Fd LocalStore::open_nameless() const {
  Fd file(tmpfile_ ? os::openat(directory_, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)
                   : os::openat(directory_, "probe", O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600));
  if (file && !tmpfile_) os::unlinkat(directory_, "probe", 0);
  return file;
}

Status LocalStore::ensure_bucket(Ref entry) {
  const uint32_t bucket = entry & 255;
  const uint64_t bit = uint64_t{1} << (bucket % 64);
  if (buckets_[bucket / 64].load(std::memory_order_acquire) & bit) return {};
  char name[3];
  std::snprintf(name, sizeof name, "%02x", bucket);
  if (os::mkdirat(directory_, name, 0700) != 0 && errno != EEXIST)
    return failed("make " + path_ + "/" + name);
  buckets_[bucket / 64].fetch_or(bit, std::memory_order_release);
  return {};
}

bool LocalStore::restore_bucket(Ref entry) {
  if (errno != ENOENT) return false;
  const uint32_t bucket = entry & 255;
  buckets_[bucket / 64].fetch_and(~(uint64_t{1} << (bucket % 64)), std::memory_order_relaxed);
  const bool restored = ensure_bucket(entry).ok();
  if (!restored) errno = ENOENT;
  return restored;
}

Fd LocalStore::open_new(Ref entry) {
  char copy[kCopyNameBytes];
  copy_name(entry, copy);
  return Fd(tmpfile_
                ? os::openat(directory_, std::string(copy, 2).c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)
                : os::openat(directory_, UnfinishedName(copy).text,
                             O_CREAT | O_TRUNC | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0600));
}

Result<Fd> LocalStore::create(Ref entry) {
  MONARCH_TRY(ensure_bucket(entry));
  Fd file = open_new(entry);
  if (!file && restore_bucket(entry)) file = open_new(entry);
  if (!file) return failed("create a copy");
  return file;
}

void LocalStore::discard(Ref entry) {
  if (tmpfile_) return;  // it ends with its descriptor
  char copy[kCopyNameBytes];
  copy_name(entry, copy);
  os::unlinkat(directory_, UnfinishedName(copy).text, 0);
}

int LocalStore::name_copy(const Fd& file, const char* name) {
  if (!tmpfile_) return os::renameat(directory_, UnfinishedName(name).text, directory_, name);
  char self[64];
  std::snprintf(self, sizeof self, "/proc/self/fd/%d", file.get());
  return os::linkat(AT_FDCWD, self, directory_, name, AT_SYMLINK_FOLLOW);
}

// linkat(2) does not replace: what could not be removed is renamed over. The name meanwhile has the number of
// the descriptor, so that no other thread has it.
int LocalStore::name_over(const Fd& file, const char* name) {
  const std::string fresh = std::string(name) + "." + std::to_string(file.get());
  os::unlinkat(directory_, fresh.c_str(), 0);
  if (name_copy(file, fresh.c_str()) != 0) return -1;
  if (os::renameat(directory_, fresh.c_str(), directory_, name) == 0) return 0;
  const int error = errno;
  os::unlinkat(directory_, fresh.c_str(), 0);
  errno = error;
  return -1;
}

Status LocalStore::seal(const Fd& file, const struct stat& source, struct stat* made) const {
  constexpr mode_t kReadOnly = 0400;
  const timespec times[2] = {source.st_atim, source.st_mtim};
  if (os::fchmod(file.get(), kReadOnly) != 0 || os::futimens(file.get(), times) != 0 ||
      os::fstat(file.get(), made) != 0)
    return failed("set the copy's times");
  if (same_time(made->st_mtim, source.st_mtim)) return {};
  errno = EOVERFLOW;
  return failed("set the copy's times");
}

Status LocalStore::publish(const Fd& file, Ref entry, const struct stat& source, struct stat* made) {
  MONARCH_TRY(seal(file, source, made));
  char copy[kCopyNameBytes];
  copy_name(entry, copy);
  int rc = name_copy(file, copy);
  if (rc != 0 && restore_bucket(entry)) rc = name_copy(file, copy);
  if (rc != 0 && errno == EEXIST) rc = name_over(file, copy);
  if (rc != 0) return failed("publish " + path_ + "/" + copy);
  return {};
}

bool LocalStore::link(Ref copy, Ref entry) {
  if (!ensure_bucket(entry).ok()) return false;
  char from[kCopyNameBytes], to[kCopyNameBytes];
  copy_name(copy, from);
  copy_name(entry, to);
  const auto name = [&] { return os::linkat(directory_, from, directory_, to, 0) == 0; };
  return name() || (errno == EEXIST && os::unlinkat(directory_, to, 0) == 0 && name());
}

bool LocalStore::unlink(const char* name) {
  return os::unlinkat(directory_, name, 0) == 0 || errno == ENOENT;
}

bool LocalStore::remove(Ref entry) {
  char part[kPartNameBytes], copy[kCopyNameBytes];
  part_name(entry, part);
  copy_name(entry, copy);
  return unlink(part) && unlink(copy);
}

bool LocalStore::is_open(Ref, const Fd& held) { return held && os::is_open_elsewhere(held.get()); }

// A left-over of the name is no use to anyone: who may still write it has it open.
Fd LocalStore::open_new_part(const char* name) {
  constexpr int kFlags = O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW | O_CLOEXEC;
  Fd file(os::openat(directory_, name, kFlags, 0600));
  if (!file && errno == EEXIST && os::unlinkat(directory_, name, 0) == 0)
    file = Fd(os::openat(directory_, name, kFlags, 0600));
  return file;
}

Result<Fd> LocalStore::create_part(Ref entry, uint64_t) {
  MONARCH_TRY(ensure_bucket(entry));  // where it will go
  if (os::mkdirat(directory_, "part", 0700) != 0 && errno != EEXIST) return failed("make " + path_ + "/part");
  char part[kPartNameBytes];
  part_name(entry, part);
  Fd file = open_new_part(part);
  if (!file) return failed("create a partial copy");
  return file;
}

Result<Fd> LocalStore::open_part(Ref entry) {
  char part[kPartNameBytes];
  part_name(entry, part);
  Fd file(os::openat(directory_, part, O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  if (!file) return failed("open a partial copy");
  return file;
}

Status LocalStore::publish_part(const Fd& file, Ref entry, const struct stat& source, struct stat* made) {
  MONARCH_TRY(seal(file, source, made));
  char part[kPartNameBytes], copy[kCopyNameBytes];
  part_name(entry, part);
  copy_name(entry, copy);
  int rc = os::renameat(directory_, part, directory_, copy);
  if (rc != 0 && restore_bucket(entry)) rc = os::renameat(directory_, part, directory_, copy);
  if (rc != 0) return failed("publish " + path_ + "/" + copy);
  return {};
}

}  // namespace monarch
