// SPDX-License-Identifier: Apache-2.0
// What is read from elsewhere must be the same bytes, so at each call it is proved which file the descriptor
// is open on, and every doubt means the PFS.
#include "preload/decide/large.h"

#include <limits.h>
#include "preload/decide/changes.h"
#include "preload/decide/descriptors.h"
#include "preload/decide/duplicates.h"
#include "preload/decide/opens.h"
#include "preload/decide/waiting.h"
#include "preload/next/kernel.h"
#include "preload/resolve/originals.h"
#include "preload/resolve/paths.h"
#include "preload/resolve/words.h"

namespace monarch::preload {
namespace {

struct File {
  explicit File(int number) : fd(number), ref(large_file(number)), entry(the_client.catalog.entry(ref)) {}
  State state() const { return state_of(entry->state.load(std::memory_order_acquire)); }

  const int fd;
  const Ref ref;
  const Entry* const entry;  // nullptr: it is not to be had
};

bool is_given_up(const File& file) {
  return !file.entry || is_closed(*the_client.board) || is_changed_in_place(the_client, *file.entry);
}

// Whether the descriptor is open on the very file of the PFS that the entry was when its staging began; with
// compares(), as unchanged as an open of a whole copy wants it.
bool is_source(const File& file) {
  struct statx st;
  if (!look_at(file.fd, STATX_INO | STATX_SIZE | STATX_MTIME | STATX_CTIME, &st)) return false;
  return compares(the_client) ? is_unchanged_file_of(the_client, *file.entry, st)
                              : is_file_of(the_client.catalog, *file.entry, st);
}

// Whether it seems so: before its staging there is no identity to compare with.
bool seems_source(const File& file) {
  if (the_client.catalog.identity_of(*file.entry)) return is_source(file);
  struct statx st;
  return look_at(file.fd, STATX_SIZE | STATX_MTIME, &st) &&
         st.stx_size == file.entry->size.load(std::memory_order_relaxed) &&
         ns_of(st.stx_mtime) == file.entry->mtime.load(std::memory_order_relaxed);
}

struct Source {
  uint32_t tier = 0;
  bool whole = false;  // else: the chunks asked for are there
  uint64_t word = 0;   // the entry's state that said so
};

// Makes sure that bytes [offset, offset + bytes) are on a tier. False: not, or not in time.
bool ensure(const File& file, uint64_t offset, uint64_t bytes, Source* source) {
  const CatalogReader& catalog = the_client.catalog;
  Board* board = the_client.board;
  const auto last = static_cast<uint32_t>((offset + bytes - 1) / kChunkBytes);
  for (auto n = static_cast<uint32_t>(offset / kChunkBytes); n <= last; ++n) {
    uint64_t word = file.entry->state.load(std::memory_order_acquire);
    const bool large = state_of(word) == State::kLarge;
    const Chunks* chunks = large ? catalog.chunks(chunks_of(word)) : nullptr;
    if (large && (!chunks || !catalog.has_chunk(chunks_of(word), n))) {
      if (is_closed(*board)) return false;
      count(board, TaskCounter::chunk_waits);
      if (request_chunk(board, catalog, *file.entry, n, &chunks) != WaitEnd::kSettled) return false;
      word = file.entry->state.load(std::memory_order_acquire);  // whole by now, or it may not come
      if (state_of(word) == State::kLarge && catalog.chunks(chunks_of(word)) != chunks) return false;
    }
    if (state_of(word) == State::kPlaced) return *source = {tier_of(word), true, word}, true;
    if (!chunks || state_of(word) != State::kLarge || (source->word != 0 && source->word != word))
      return false;
    *source = {read_once(chunks->tier), false, word};
  }
  return true;
}

// Calls `use` with a descriptor of the copy, whose bytes [offset, offset + bytes) are there; -1: there is
// none.
template <typename Use>
ssize_t on_copy(const File& file, size_t bytes, off_t offset, Use use) {
  Source source;
  if (!ensure(file, static_cast<uint64_t>(offset), bytes, &source)) return -1;
  int fd = open_copy(the_client, file.ref, source.tier, source.whole);
  if (fd < 0 && !source.whole)
    fd = open_copy(the_client, file.ref, source.tier);  // it came to be whole just now
  if (fd < 0) return -1;
  const Own copy(fd);
  // Else it may be a later partial copy, in which other chunks are.
  const uint64_t now = file.entry->state.load(std::memory_order_acquire);
  if (!source.whole && now != source.word && state_of(now) != State::kPlaced) return -1;
  const ssize_t got = use(fd);
  if (got > 0) add_read(static_cast<unsigned char>(1 + source.tier), static_cast<uint64_t>(got));
  return got;
}

// Whether bytes at `offset` may be read from the copy; *bytes then ends with the file. Else the PFS knows, as
// it does at the end.
bool serves(const File& file, off_t offset, size_t* bytes) {
  if (*bytes == 0 || offset < 0 || is_given_up(file)) return false;
  const State state = file.state();
  const uint64_t size = file.entry->size.load(std::memory_order_relaxed), at = static_cast<uint64_t>(offset);
  if ((state != State::kLarge && state != State::kPlaced) || at >= size) return false;
  if (*bytes > size - at) *bytes = static_cast<size_t>(size - at);
  return true;
}

// Before the first chunk is asked for there is no identity to compare with: asks first.
bool proved(const File& file, off_t offset) {
  Source unused;
  return (the_client.catalog.identity_of(*file.entry) ||
          ensure(file, static_cast<uint64_t>(offset), 1, &unused)) &&
         is_source(file);
}

// As pread(2); -1: ask the PFS. errno stays as it is.
ssize_t read_part(const File& file, void* buffer, size_t bytes, off_t offset) {
  const KeepErrno errno_stays;
  if (!serves(file, offset, &bytes)) return -1;
  const auto read = [&](int copy) {
    const long n = syscall(SYS_pread64, copy, buffer, bytes, offset);
    return n == static_cast<long>(bytes) ? n : -1;
  };
  const ssize_t got = proved(file, offset) ? on_copy(file, bytes, offset, read) : -1;
  if (got < 0) count(the_client.board, TaskCounter::chunk_fallbacks);
  return got;
}

constexpr size_t kMostBytes = 0x7ffff000;  // of one call (read(2))
constexpr int kMostParts = 1024;           // likewise (readv(2))

// All bytes that are asked for; 0: none, or what the kernel refuses.
size_t bytes_of(const struct iovec* parts, int n) {
  size_t sum = 0;
  if (unreadable(parts)) return 0;
  for (int i = 0; i < n && n <= kMostParts; ++i) {
    const bool nowhere = parts[i].iov_base && unreadable(parts[i].iov_base);
    if (nowhere || parts[i].iov_len > SSIZE_MAX - sum) return 0;
    sum += parts[i].iov_len;
  }
  return sum < kMostBytes ? sum : kMostBytes;
}

// Into `parts`, as far as `bytes` go, from chunks or else from the descriptor.
ssize_t read_parts(const File& file, const struct iovec* parts, size_t bytes, off_t at) {
  size_t sum = 0;
  for (; sum < bytes; ++parts) {
    const size_t len = parts->iov_len < bytes - sum ? parts->iov_len : bytes - sum;
    const off_t from = at + static_cast<off_t>(sum);
    ssize_t got = read_part(file, parts->iov_base, len, from);
    if (got < 0) {
      got = syscall(SYS_pread64, file.fd, parts->iov_base, len, from);
      if (got > 0) add_read(kPfs, static_cast<uint64_t>(got));
    }
    if (got < 0 && sum == 0) return -1;
    if (got > 0) sum += static_cast<size_t>(got);
    if (got < static_cast<ssize_t>(len)) break;
  }
  return static_cast<ssize_t>(sum);
}

bool has_duplicate(int fd) {
  bool found = false;
  each_descriptor([&](int other) { found |= other != fd && may_be_duplicates(fd, other); });
  return found;
}

// A lock of what is open, which /proc/locks may not show: that of a process of another pid namespace, or that
// is gone. True also if it cannot be told.
bool has_lock(int fd) {
  bool found = false;
  return !each_lock(fd, [&](const Lock&) { found = true; }) || found;
}

bool is_movable(const File& file, bool stream) {
  return file.entry && file.state() == State::kPlaced && is_alone(file.fd) &&
         is_used_by_stream(file.fd) == stream;
}

// With calls on the position kept away.
bool move(const File& file, int copy, uint32_t marks) {
  const int fd = file.fd;
  const Identity* identity = the_client.catalog.identity_of(*file.entry);
  const long flags = syscall(SYS_fcntl, fd, F_GETFL), kept = syscall(SYS_fcntl, fd, F_GETFD);
  if (!identity || copy < 0 || !is_source(file) || flags < 0 || kept < 0 ||
      (flags & (O_ACCMODE | O_PATH)) != O_RDONLY || (flags & (O_DIRECT | O_ASYNC)) != 0 || !is_unfiltered() ||
      has_duplicate(fd) || may_be_locked(identity->pfs_ino, identity->tier_ino) || has_lock(fd))
    return false;
  const long at = syscall(SYS_lseek, fd, off_t{0}, SEEK_CUR);
  if (at < 0 || syscall(SYS_fcntl, copy, F_SETFL, flags) != 0 ||
      syscall(SYS_lseek, copy, at, SEEK_SET) != at ||
      syscall(SYS_dup3, copy, fd, (kept & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0) != fd)
    return false;
  opened_on_tier(fd, tier_of(file.entry->state.load(std::memory_order_acquire)), marks);
  count(the_client.board, TaskCounter::moved);
  return true;
}

}  // namespace

bool read_at(int fd, const struct iovec* parts, int n, off_t offset, ssize_t* got) {
  const size_t bytes = offset < 0 ? 0 : bytes_of(parts, n);
  if (bytes == 0) return false;
  *got = read_parts(File(fd), parts, bytes, offset);
  return true;
}

// The range is taken by moving the position beyond it, which the kernel does at once, and read with an
// offset. What could not be read is given back by a move relative to where the others have brought it
// meanwhile.
bool read_on(int fd, const struct iovec* parts, int n, ssize_t* got) {
  const File file(fd);
  const int saved = errno;
  if (is_given_up(file) || !seems_source(file)) return errno = saved, false;
  const auto size = static_cast<off_t>(file.entry->size.load(std::memory_order_relaxed));
  size_t bytes = bytes_of(parts, n);
  const off_t now = syscall(SYS_lseek, fd, off_t{0}, SEEK_CUR);
  errno = saved;
  if (bytes == 0 || now < 0) return false;
  if (now >= size) {  // the PFS knows whether there is more by now
    *got = syscall(SYS_readv, fd, parts, n);
    return true;
  }
  if (bytes > static_cast<size_t>(size - now)) bytes = static_cast<size_t>(size - now);
  const off_t end = syscall(SYS_lseek, fd, static_cast<off_t>(bytes), SEEK_CUR);
  if (end < 0) return errno = saved, false;
  *got = read_parts(file, parts, bytes, end - static_cast<off_t>(bytes));
  const ssize_t taken = *got < 0 ? 0 : *got;
  if (taken < static_cast<ssize_t>(bytes)) {
    const int error = errno;
    syscall(SYS_lseek, fd, taken - static_cast<off_t>(bytes), SEEK_CUR);
    errno = error;
  }
  return true;
}

// As sendfile(2), which does not take its range beforehand: who shares the position sends the same bytes.
bool send_on(int to, int fd, off_t* offset, size_t bytes, ssize_t* sent) {
  const File file(fd);
  const int saved = errno;
  // Nothing of nothing: the kernel looks at the arguments.
  const bool right = bytes <= SSIZE_MAX && syscall(SYS_sendfile, to, fd, offset, size_t{0}) == 0;
  off_t at = !right ? -1 : offset ? *offset : syscall(SYS_lseek, fd, off_t{0}, SEEK_CUR);
  size_t left = bytes < kMostBytes ? bytes : kMostBytes;
  if (!serves(file, at, &left)) return errno = saved, false;
  const off_t begin = at, end = at + static_cast<off_t>(left);
  int error = 0;
  for (long got = 1; at < end && got > 0 && error == 0;) {
    const auto most = static_cast<off_t>(kChunkBytes - static_cast<uint64_t>(at) % kChunkBytes);
    auto len = static_cast<size_t>(most < end - at ? most : end - at);
    off_t from = at;
    got = !serves(file, at, &len) || !proved(file, at) ? -1 : on_copy(file, len, at, [&](int copy) {
      errno = 0;
      const long n = syscall(SYS_sendfile, to, copy, &from, len);
      // The copy's fault, perhaps; else the receiver's.
      if (n < 0 && errno != EIO && errno != EINVAL) error = errno;
      return n;
    });
    if (got <= 0 && error == 0) {
      got = syscall(SYS_sendfile, to, fd, &from, len);
      if (got < 0) error = errno;
      if (got > 0) add_read(kPfs, static_cast<uint64_t>(got));
    }
    if (got > 0) at += got;
    if (got < static_cast<long>(len)) break;
  }
  if (offset)
    *offset = at;
  else
    syscall(SYS_lseek, fd, at - begin, SEEK_CUR);
  *sent = at > begin || error == 0 ? at - begin : -1;
  errno = *sent < 0 ? error : saved;
  return true;
}

void read_natively(int fd) {
  const KeepErrno errno_stays;
  const File file(fd);
  Room room;
  RelPath path;
  if (file.entry && seems_source(file) && path_of(the_client.catalog, *file.entry, &room, &path))
    post_request(the_client.board, path, kReadNatively);
}

bool wait_for_whole(int fd) {
  const KeepErrno errno_stays;
  const File file(fd);
  Room room;
  RelPath path;
  return file.entry && seems_source(file) && path_of(the_client.catalog, *file.entry, &room, &path) &&
         request_whole(the_client.board, the_client.catalog, path, *file.entry) == Whole::kThere;
}

int open_whole(int fd) {
  const File file(fd);
  const uint64_t word = file.entry ? file.entry->state.load(std::memory_order_acquire) : 0;
  if (state_of(word) != State::kPlaced || is_given_up(file)) return -1;
  const KeepErrno errno_stays;
  Original original;
  const int copy = is_source(file) ? open_copy(the_client, file.ref, tier_of(word)) : -1;
  const bool same = copy >= 0 && original_of_descriptor(copy, &original) && original.entry == file.entry;
  return same ? copy : not_opened(copy);
}

bool move_to_copy(int fd, bool stream) {
  const File file(fd);
  if (!is_movable(file, stream)) return false;
  const KeepErrno errno_stays;
  const uint32_t marks = the_client.board->header.marks.load(std::memory_order_acquire);
  const Own copy(open_whole(fd));
  const Returns others_wait(threads());
  if (!is_movable(file, stream)) return false;
  const bool moved = move(file, copy.fd, marks);
  if (!moved) never_moves(fd);
  return moved;
}

void move_stream(FILE* stream) {
  const KeepErrno errno_stays;  // a stream in memory has no descriptor
  const int fd = fileno_unlocked(stream);
  if (__builtin_expect(fd < 0 || class_of(fd) != kLarge, 1) || ftrylockfile(stream) != 0) return;
  (void)move_to_copy(fd, true);
  funlockfile(stream);
}

}  // namespace monarch::preload
