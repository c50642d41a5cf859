// SPDX-License-Identifier: Apache-2.0
// The descriptor is the PFS's; what is read from elsewhere must be the same bytes, so the descriptor's
// identity is proved at each call, and every doubt means the PFS.
#include "preload/decide/chunks.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include "preload/decide/changes.h"
#include "preload/decide/descriptors.h"
#include "preload/decide/opens.h"
#include "preload/decide/waiting.h"
#include "preload/resolve/originals.h"

namespace monarch::preload {
namespace {

// Whether `fd` is open on the very file of the PFS that `e` was when its staging began. Without a call to the
// PFS where the kernel knows the answer (AT_STATX_DONT_SYNC).
bool is_source(const CatalogReader& catalog, const Entry& e, int fd) {
  struct statx st;
  return syscall(SYS_statx, fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO | STATX_SIZE | STATX_MTIME,
                 &st) == 0 &&
         is_file_of(catalog, e, st);
}

// Opens the copy, partial or whole; -1 if it cannot be.
int open_partial(const JobFacts& facts, uint32_t tier, Ref entry, bool whole) {
  if (tier >= facts.tier_count) return -1;
  const auto& where = facts.tiers[tier];
  Room room;
  char* path = room.take(where.len + 1 + kPartNameBytes);
  if (!path) return -1;
  memcpy(path, where.path, where.len);
  path[where.len] = '/';
  if (whole) {
    copy_name(entry, path + where.len + 1);
  } else {
    part_name(entry, path + where.len + 1);
  }
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0));
}

struct Source {
  uint32_t tier = 0;
  bool whole = false;  // else: the chunks asked for are there
};

// Makes sure that bytes [offset, offset + bytes) are on a tier. False: not, or not in time.
bool ensure(Client* client, const Entry& e, uint64_t offset, uint64_t bytes, Source* source) {
  const auto last = static_cast<uint32_t>((offset + bytes - 1) / kChunkBytes);
  for (auto n = static_cast<uint32_t>(offset / kChunkBytes); n <= last; ++n) {
    const uint64_t word = e.state.load(std::memory_order_acquire);
    if (state_of(word) == State::kPlaced) {
      *source = {tier_of(word), true};
      return true;
    }
    if (state_of(word) != State::kLarge) return false;
    const Chunks* chunks = client->catalog.chunks(chunks_of(word));
    if (!chunks || !client->catalog.has_chunk(chunks_of(word), n)) {
      if (client->board->header.closed.load(std::memory_order_relaxed) != 0) return false;
      count(client->board, TaskCounter::chunk_waits);
      const WaitEnd end = request_chunk(client->board, client->catalog, e, n, &chunks);
      if (end != WaitEnd::kSettled) return false;
      if (!chunks) {  // it came to be whole, or will not come
        const uint64_t now = e.state.load(std::memory_order_acquire);
        if (state_of(now) != State::kPlaced) return false;
        *source = {tier_of(now), true};
        return true;
      }
    }
    *source = {read_once(chunks->tier), false};
  }
  return true;
}

// Whether `fd` seems to be open on it: before its staging there is no identity to compare with.
bool seems_source(const CatalogReader& catalog, const Entry& e, int fd) {
  if (catalog.identity_of(e)) return is_source(catalog, e, fd);
  struct statx st;
  return syscall(SYS_statx, fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_SIZE | STATX_MTIME, &st) == 0 &&
         st.stx_size == e.size.load(std::memory_order_relaxed) &&
         ns_of(st.stx_mtime) == e.mtime.load(std::memory_order_relaxed);
}

ssize_t read_copy(Client* client, const Entry& e, Ref ref, void* buffer, size_t bytes, off_t offset) {
  Source source;
  if (!ensure(client, e, static_cast<uint64_t>(offset), bytes, &source)) return -1;
  const JobFacts& facts = client->catalog.facts();
  int fd = open_partial(facts, source.tier, ref, source.whole);
  if (fd < 0 && !source.whole)
    fd = open_partial(facts, source.tier, ref, true);  // it came to be whole just now
  if (fd < 0) return -1;
  const long got =
      is_own_part(*client, source.tier, fd) ? syscall(SYS_pread64, fd, buffer, bytes, offset) : -1;
  syscall(SYS_close, fd);
  if (got != static_cast<long>(bytes)) return -1;
  CounterShard& shard = my_shard(client->board);
  shard.read_bytes_tier[source.tier].fetch_add(static_cast<uint64_t>(got), std::memory_order_relaxed);
  shard.read_calls_tier[source.tier].fetch_add(1, std::memory_order_relaxed);
  return got;
}

}  // namespace

ssize_t read_chunks(Client* client, int fd, Ref ref, void* buffer, size_t bytes, off_t offset) {
  const Entry* e = client->catalog.entry(ref);
  if (!e || bytes == 0 || offset < 0 || is_changed_in_place(*client, *e)) return -1;
  const State state = state_of(e->state.load(std::memory_order_acquire));
  const uint64_t size = e->size.load(std::memory_order_relaxed), at = static_cast<uint64_t>(offset);
  if ((state != State::kLarge && state != State::kPlaced) || at >= size)
    return -1;  // at the end: the PFS knows
  const int saved = errno;
  if (bytes > size - at) bytes = static_cast<size_t>(size - at);
  ssize_t got = -1;
  // Before the first chunk is asked for there is no identity to compare with: ask first.
  if (!client->catalog.identity_of(*e)) {
    Source unused;
    if (ensure(client, *e, at, 1, &unused) && is_source(client->catalog, *e, fd))
      got = read_copy(client, *e, ref, buffer, bytes, offset);
  } else if (is_source(client->catalog, *e, fd)) {
    got = read_copy(client, *e, ref, buffer, bytes, offset);
  }
  if (got < 0) count(client->board, TaskCounter::chunk_fallbacks);
  errno = saved;
  return got;
}

namespace {

constexpr size_t kMostBytes = 0x7ffff000;  // of one call (read(2))
constexpr int kMostParts = 1024;           // likewise (readv(2))

// All bytes that are asked for; 0: none, or what the kernel refuses.
size_t bytes_of(const struct iovec* parts, int n) {
  size_t sum = 0;
  for (int i = 0; i < n && n <= kMostParts; ++i) {
    if (parts[i].iov_len > SSIZE_MAX - sum) return 0;
    sum += parts[i].iov_len;
  }
  return sum < kMostBytes ? sum : kMostBytes;
}

// Into `parts`, as far as `bytes` go, from chunks or else from the descriptor.
ssize_t read_parts(Client* client, int fd, Ref ref, const struct iovec* parts, size_t bytes, off_t at) {
  size_t sum = 0;
  for (; sum < bytes; ++parts) {
    const size_t len = parts->iov_len < bytes - sum ? parts->iov_len : bytes - sum;
    const off_t from = at + static_cast<off_t>(sum);
    ssize_t got = read_chunks(client, fd, ref, parts->iov_base, len, from);
    if (got < 0) {
      got = syscall(SYS_pread64, fd, parts->iov_base, len, from);
      if (got > 0) add_read(kPfs, static_cast<uint64_t>(got));
    }
    if (got < 0 && sum == 0) return -1;
    if (got > 0) sum += static_cast<size_t>(got);
    if (got < static_cast<ssize_t>(len)) break;
  }
  return static_cast<ssize_t>(sum);
}

}  // namespace

// The range is taken by moving the position beyond it, which the kernel does at once, and read with an
// offset. What could not be read is given back by a move relative to where the others have brought it
// meanwhile.
bool read_on(Client* client, int fd, Ref ref, const struct iovec* parts, int n, ssize_t* got) {
  const Entry* e = client->catalog.entry(ref);
  const int saved = errno;
  if (!e || client->board->header.closed.load(std::memory_order_relaxed) != 0 ||
      is_changed_in_place(*client, *e) || !seems_source(client->catalog, *e, fd))
    return errno = saved, false;
  const auto size = static_cast<off_t>(e->size.load(std::memory_order_relaxed));
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
  *got = read_parts(client, fd, ref, parts, bytes, end - static_cast<off_t>(bytes));
  const ssize_t taken = *got < 0 ? 0 : *got;
  if (taken < static_cast<ssize_t>(bytes)) {
    const int error = errno;
    syscall(SYS_lseek, fd, taken - static_cast<off_t>(bytes), SEEK_CUR);
    errno = error;
  }
  return true;
}

void read_natively(Client* client, int fd, Ref ref) {
  const Entry* e = client->catalog.entry(ref);
  if (!e) return;
  const int saved = errno;
  Room room;
  RelPath path;
  if (seems_source(client->catalog, *e, fd) && path_of(client->catalog, *e, &room, &path))
    post_request(client->board, path, kReadNatively);
  errno = saved;
}

}  // namespace monarch::preload
