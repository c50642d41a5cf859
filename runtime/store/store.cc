// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/store.h"

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

Store::Store(Fd directory, std::string path, const std::string& tier)
    : directory_(std::move(directory)), path_(std::move(path)), tier_(tier) {
  tmpfile_ = static_cast<bool>(open_nameless());
}

Store::Store(Store&& other) noexcept { *this = std::move(other); }

Store& Store::operator=(Store&& other) noexcept {
  directory_ = std::move(other.directory_);
  path_ = std::move(other.path_);
  tier_ = std::move(other.tier_);
  tmpfile_ = other.tmpfile_;
  for (int i = 0; i < 4; ++i) buckets_[i] = other.buckets_[i].load();
  return *this;
}

Fd Store::open_nameless() const {
  Fd file(tmpfile_ ? os::openat(directory_.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)
                   : os::openat(directory_.get(), "probe", O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600));
  if (file && !tmpfile_) os::unlinkat(directory_.get(), "probe", 0);
  return file;
}

Status Store::ensure_bucket(Ref entry) {
  const uint32_t bucket = entry & 255;
  const uint64_t bit = uint64_t{1} << (bucket % 64);
  if (buckets_[bucket / 64].load(std::memory_order_acquire) & bit) return {};
  char name[3];
  std::snprintf(name, sizeof name, "%02x", bucket);
  if (os::mkdirat(directory_.get(), name, 0700) != 0 && errno != EEXIST)
    return failed("make " + path_ + "/" + name);
  buckets_[bucket / 64].fetch_or(bit, std::memory_order_release);
  return {};
}

bool Store::restore_bucket(Ref entry) {
  if (errno != ENOENT) return false;
  const uint32_t bucket = entry & 255;
  buckets_[bucket / 64].fetch_and(~(uint64_t{1} << (bucket % 64)), std::memory_order_relaxed);
  const bool restored = ensure_bucket(entry).ok();
  if (!restored) errno = ENOENT;
  return restored;
}

Fd Store::open_new(Ref entry) {
  char copy[kCopyNameBytes];
  copy_name(entry, copy);
  return Fd(tmpfile_ ? os::openat(directory_.get(), std::string(copy, 2).c_str(),
                                  O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)
                     : os::openat(directory_.get(), UnfinishedName(copy).text,
                                  O_CREAT | O_TRUNC | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0600));
}

Result<Fd> Store::create(Ref entry) {
  MONARCH_TRY(ensure_bucket(entry));
  Fd file = open_new(entry);
  if (!file && restore_bucket(entry)) file = open_new(entry);
  if (!file) return failed("create a copy");
  return file;
}

void Store::discard(Ref entry) {
  if (tmpfile_) return;  // it ends with its descriptor
  char copy[kCopyNameBytes];
  copy_name(entry, copy);
  os::unlinkat(directory_.get(), UnfinishedName(copy).text, 0);
}

int Store::name_copy(const Fd& file, const char* name) {
  if (!tmpfile_) return os::renameat(directory_.get(), UnfinishedName(name).text, directory_.get(), name);
  char self[64];
  std::snprintf(self, sizeof self, "/proc/self/fd/%d", file.get());
  return os::linkat(AT_FDCWD, self, directory_.get(), name, AT_SYMLINK_FOLLOW);
}

// linkat(2) does not replace: what could not be removed is renamed over. The name meanwhile has the number of
// the descriptor, so that no other thread has it.
int Store::name_over(const Fd& file, const char* name) {
  const std::string fresh = std::string(name) + "." + std::to_string(file.get());
  os::unlinkat(directory_.get(), fresh.c_str(), 0);
  if (name_copy(file, fresh.c_str()) != 0) return -1;
  if (os::renameat(directory_.get(), fresh.c_str(), directory_.get(), name) == 0) return 0;
  const int error = errno;
  os::unlinkat(directory_.get(), fresh.c_str(), 0);
  errno = error;
  return -1;
}

Status Store::publish(const Fd& file, Ref entry) {
  char copy[kCopyNameBytes];
  copy_name(entry, copy);
  int rc = name_copy(file, copy);
  if (rc != 0 && restore_bucket(entry)) rc = name_copy(file, copy);
  if (rc != 0 && errno == EEXIST) rc = name_over(file, copy);
  if (rc != 0) return failed("publish " + path_ + "/" + copy);
  return {};
}

bool Store::link(Ref copy, Ref entry) {
  if (!ensure_bucket(entry).ok()) return false;
  char from[kCopyNameBytes], to[kCopyNameBytes];
  copy_name(copy, from);
  copy_name(entry, to);
  const auto name = [&] { return os::linkat(directory_.get(), from, directory_.get(), to, 0) == 0; };
  return name() || (errno == EEXIST && os::unlinkat(directory_.get(), to, 0) == 0 && name());
}

Fd Store::open_copy(Ref entry) const {
  char copy[kCopyNameBytes];
  copy_name(entry, copy);
  return Fd(os::openat(directory_.get(), copy, O_RDONLY | O_NOFOLLOW | O_CLOEXEC, 0));
}

bool Store::remove(Ref entry) {
  char copy[kCopyNameBytes];
  copy_name(entry, copy);
  return os::unlinkat(directory_.get(), copy, 0) == 0 || errno == ENOENT;
}

// A left-over of the name is no use to anyone: who may still write it has it open.
Fd Store::open_new_part(const char* name) {
  constexpr int kFlags = O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW | O_CLOEXEC;
  Fd file(os::openat(directory_.get(), name, kFlags, 0600));
  if (!file && errno == EEXIST && os::unlinkat(directory_.get(), name, 0) == 0)
    file = Fd(os::openat(directory_.get(), name, kFlags, 0600));
  return file;
}

Result<Fd> Store::create_part(Ref entry) {
  MONARCH_TRY(ensure_bucket(entry));  // where it will go
  if (os::mkdirat(directory_.get(), "part", 0700) != 0 && errno != EEXIST)
    return failed("make " + path_ + "/part");
  char part[kPartNameBytes];
  part_name(entry, part);
  Fd file = open_new_part(part);
  if (!file) return failed("create a partial copy");
  return file;
}

Result<Fd> Store::open_part(Ref entry) {
  char part[kPartNameBytes];
  monarch::part_name(entry, part);
  Fd file(os::openat(directory_.get(), part, O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  if (!file) return failed("open a partial copy");
  return file;
}

Status Store::publish_part(Ref entry) {
  char part[kPartNameBytes], copy[kCopyNameBytes];
  part_name(entry, part);
  copy_name(entry, copy);
  int rc = os::renameat(directory_.get(), part, directory_.get(), copy);
  if (rc != 0 && restore_bucket(entry)) rc = os::renameat(directory_.get(), part, directory_.get(), copy);
  if (rc != 0) return failed("publish " + path_ + "/" + copy);
  return {};
}

bool Store::remove_part(Ref entry) {
  char part[kPartNameBytes];
  part_name(entry, part);
  return os::unlinkat(directory_.get(), part, 0) == 0 || errno == ENOENT;
}

}  // namespace monarch
