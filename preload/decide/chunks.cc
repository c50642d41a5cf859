// SPDX-License-Identifier: Apache-2.0
// The descriptor is the PFS's; what is read from elsewhere must be the same bytes, so the descriptor's
// identity is proved at each call, and every doubt means the PFS.
#include "preload/decide/chunks.h"

#include <limits.h>

#include "preload/decide/changes.h"
#include "preload/decide/descriptors.h"
#include "preload/decide/opens.h"
#include "preload/decide/waiting.h"
#include "preload/next/kernel.h"
#include "preload/resolve/originals.h"

namespace monarch::preload {
namespace {

struct Source {
  uint32_t tier = 0;
  bool whole = false;  // else: the chunks asked for are there
};

// Makes sure that bytes [offset, offset + bytes) are on a tier. False: not, or not in time.
bool ensure(Client* client, const Entry& e, uint64_t offset, uint64_t bytes, Source* source) {
  const auto last = static_cast<uint32_t>((offset + bytes - 1) / kChunkBytes);
  for (auto n = static_cast<uint32_t>(offset / kChunkBytes); n <= last; ++n) {
    uint64_t word = e.state.load(std::memory_order_acquire);
    const bool large = state_of(word) == State::kLarge;
    const Chunks* chunks = large ? client->catalog.chunks(chunks_of(word)) : nullptr;
    if (large && (!chunks || !client->catalog.has_chunk(chunks_of(word), n))) {
      if (client->board->header.closed.load(std::memory_order_relaxed) != 0) return false;
      count(client->board, TaskCounter::chunk_waits);
      if (request_chunk(client->board, client->catalog, e, n, &chunks) != WaitEnd::kSettled) return false;
      if (!chunks) word = e.state.load(std::memory_order_acquire);  // it came to be whole, or will not come
    }
    if (state_of(word) == State::kPlaced) return *source = {tier_of(word), true}, true;
    if (!chunks) return false;
    *source = {read_once(chunks->tier), false};
  }
  return true;
}

// Calls `use` with a descriptor of the copy, whose bytes [offset, offset + bytes) are there; -1: there is
// none.
template <typename Use>
ssize_t on_copy(Client* client, const Entry& e, Ref ref, size_t bytes, off_t offset, Use use) {
  Source source;
  if (!ensure(client, e, static_cast<uint64_t>(offset), bytes, &source)) return -1;
  int fd = open_copy(*client, source.tier, ref, source.whole);
  if (fd < 0 && !source.whole)
    fd = open_copy(*client, source.tier, ref, true);  // it came to be whole just now
  if (fd < 0) return -1;
  const Own copy(fd);
  const ssize_t got = use(fd);
  if (got > 0) add_read(static_cast<unsigned char>(1 + source.tier), static_cast<uint64_t>(got));
  return got;
}

// The entry, if bytes at `offset` of it may be read from its copy; *bytes then ends with the file. Else
// nullptr: the PFS knows, as it does at the end.
const Entry* served(const Client& client, Ref ref, off_t offset, size_t* bytes) {
  const Entry* e = client.catalog.entry(ref);
  if (!e || *bytes == 0 || offset < 0) return nullptr;
  if (is_changed_in_place(client, *e)) return nullptr;
  const State state = state_of(e->state.load(std::memory_order_acquire));
  const uint64_t size = e->size.load(std::memory_order_relaxed), at = static_cast<uint64_t>(offset);
  if ((state != State::kLarge && state != State::kPlaced) || at >= size) return nullptr;
  if (*bytes > size - at) *bytes = static_cast<size_t>(size - at);
  return e;
}

// Before the first chunk is asked for there is no identity to compare with: asks first.
bool proved(Client* client, const Entry& e, int fd, off_t offset) {
  Source unused;
  return (client->catalog.identity_of(e) || ensure(client, e, static_cast<uint64_t>(offset), 1, &unused)) &&
         is_source(client->catalog, e, fd);
}

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

bool is_source(const CatalogReader& catalog, const Entry& e, int fd) {
  struct statx st;
  return look_at(fd, STATX_INO | STATX_SIZE | STATX_MTIME, &st) && is_file_of(catalog, e, st);
}

bool seems_source(const CatalogReader& catalog, const Entry& e, int fd) {
  if (catalog.identity_of(e)) return is_source(catalog, e, fd);
  struct statx st;
  return look_at(fd, STATX_SIZE | STATX_MTIME, &st) &&
         st.stx_size == e.size.load(std::memory_order_relaxed) &&
         ns_of(st.stx_mtime) == e.mtime.load(std::memory_order_relaxed);
}

int open_copy(const Client& client, uint32_t tier, Ref entry, bool whole) {
  const JobFacts& facts = client.catalog.facts();
  if (tier >= facts.tier_count) return -1;
  const auto& where = facts.tiers[tier];
  Room room;
  char* path = room.take(where.len + 1 + kPartNameBytes);
  if (!path) return -1;
  memcpy(path, where.path, where.len);
  path[where.len] = '/';
  (whole ? copy_name : part_name)(entry, path + where.len + 1);
  const int fd = open_own(AT_FDCWD, path, O_RDONLY | O_NOFOLLOW);
  if (fd < 0 || is_own_part(client, tier, fd)) return fd;
  return not_opened(fd);
}

ssize_t read_chunks(Client* client, int fd, Ref ref, void* buffer, size_t bytes, off_t offset) {
  const Entry* e = served(*client, ref, offset, &bytes);
  if (!e) return -1;
  const KeepErrno errno_stays;
  const auto read = [&](int copy) {
    const long n = syscall(SYS_pread64, copy, buffer, bytes, offset);
    return n == static_cast<long>(bytes) ? n : -1;
  };
  const ssize_t got = proved(client, *e, fd, offset) ? on_copy(client, *e, ref, bytes, offset, read) : -1;
  if (got < 0) count(client->board, TaskCounter::chunk_fallbacks);
  return got;
}

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

// As sendfile(2), which does not take its range beforehand: who shares the position sends the same bytes.
bool send_on(Client* client, int to, int fd, Ref ref, off_t* offset, size_t bytes, ssize_t* sent) {
  const int saved = errno;
  // Nothing of nothing: the kernel looks at the arguments.
  const bool right = syscall(SYS_sendfile, to, fd, offset, size_t{0}) == 0;
  off_t at = !right ? -1 : offset ? *offset : syscall(SYS_lseek, fd, off_t{0}, SEEK_CUR);
  size_t left = bytes < kMostBytes ? bytes : kMostBytes;
  const bool closed = client->board->header.closed.load(std::memory_order_relaxed) != 0;
  if (closed || !served(*client, ref, at, &left)) return errno = saved, false;
  const off_t begin = at, end = at + static_cast<off_t>(left);
  int error = 0;
  for (long got = 1; at < end && got > 0 && error == 0;) {
    const auto most = static_cast<off_t>(kChunkBytes - static_cast<uint64_t>(at) % kChunkBytes);
    auto len = static_cast<size_t>(most < end - at ? most : end - at);
    const Entry* e = served(*client, ref, at, &len);
    off_t from = at;
    got = !e || !proved(client, *e, fd, at) ? -1 : on_copy(client, *e, ref, len, at, [&](int copy) {
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

void read_natively(Client* client, int fd, Ref ref) {
  const Entry* e = client->catalog.entry(ref);
  if (!e) return;
  const KeepErrno errno_stays;
  Room room;
  RelPath path;
  if (seems_source(client->catalog, *e, fd) && path_of(client->catalog, *e, &room, &path))
    post_request(client->board, path, kReadNatively);
}

}  // namespace monarch::preload
