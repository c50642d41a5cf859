// SPDX-License-Identifier: Apache-2.0
// The count family: what programs read from dataset files is added up by the table in descriptors.h; reads of
// large ones come from their chunks. What stdio reads inside libc is estimated at fopen, what is mapped at
// mmap.
#include <aio.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "preload/decide/descriptors.h"
#include "preload/decide/large.h"
#include "preload/decide/returns.h"
#include "preload/next/kernel.h"
#include "preload/next/next.h"

namespace monarch::preload {
namespace {

// A large file is sent, or it is in doubt that the descriptor is open on it: chunks cannot serve that.
RARE void turn_native(int fd) {
  read_natively(fd);
  opened_on_pfs(fd, 0);
}

// What `read` gives, by the position of `fd`.
template <typename Read>
ssize_t counted(int fd, Read read) {
  follow_changes(fd);
  const UsesDescriptor now(fd);
  const ssize_t got = read();
  unsigned char c = class_of(fd);
  if (__builtin_expect(c == kNone, 1) || got <= 0) return got;
  if (__builtin_expect(c == kLarge, 0)) {
    turn_native(fd);
    c = kPfs;
  }
  add_read(c, static_cast<uint64_t>(got));
  return got;
}

// Whether it is a large file's descriptor, which cannot be moved to the copy now.
bool in_chunks(int fd) { return __builtin_expect(class_of(fd) == kLarge, 0) && !move_to_copy(fd); }

// For reads from the descriptor's own position: from the chunks. False: from the descriptor.
bool from_chunks_on(int fd, const struct iovec* parts, int n, ssize_t* got) {
  if (!in_chunks(fd)) return false;
  const UsesDescriptor now(fd);
  return read_on(fd, parts, n, got);
}

// What a read with an offset gives: from the chunks, or by `read`, from the descriptor.
template <typename Read>
ssize_t counted_at(int fd, const struct iovec* parts, int n, off_t offset, Read read) {
  ssize_t got;
  if (in_chunks(fd) && read_at(fd, parts, n, offset, &got)) return got;
  follow_changes(fd);
  got = read();
  const unsigned char c = class_of(fd);
  if (__builtin_expect(c != kNone, 0) && got > 0)
    add_read(c == kLarge ? kPfs : c, static_cast<uint64_t>(got));
  return got;
}

// `room`: of the buffer, where the caller says it (__pread_chk), and libc ends the program.
template <typename... Room>
ssize_t read_at(Hook hook, int fd, void* buffer, size_t bytes, off_t offset, Room... room) {
  const struct iovec part = {buffer, bytes};
  const int parts = ((bytes <= room) && ...) ? 1 : 0;
  return counted_at(fd, &part, parts, offset,
                    [&] { return call_next<ssize_t>(hook, fd, buffer, bytes, offset, room...); });
}
ssize_t read_at(Hook hook, int fd, const struct iovec* parts, int n, off_t offset) {
  return counted_at(fd, parts, n, offset, [&] { return call_next<ssize_t>(hook, fd, parts, n, offset); });
}
// With flags no chunk serves it, and the tier's file system may not know them; the offset -1 is the
// descriptor's own position.
ssize_t read_at(Hook hook, int fd, const struct iovec* parts, int n, off_t offset, int flags) {
  const auto itself = [&] {
    const ssize_t got = call_next<ssize_t>(hook, fd, parts, n, offset, flags);
    if (__builtin_expect(got >= 0 || errno != EOPNOTSUPP || !is_tier(class_of(fd)), 1)) return got;
    give_back(fd);
    return call_next<ssize_t>(hook, fd, parts, n, offset, flags);
  };
  if (ssize_t got; offset == -1 && !flags && from_chunks_on(fd, parts, n, &got)) return got;
  return offset < 0 ? counted(fd, itself) : counted_at(fd, flags ? nullptr : parts, n, offset, itself);
}

ssize_t send(Hook hook, int to, int from, off_t* offset, size_t bytes) {
  if (in_chunks(from)) {
    const UsesDescriptor now(from);
    if (ssize_t sent; send_on(to, from, offset, bytes, &sent)) return sent;
  }
  return counted(from, [&] { return call_next<ssize_t>(hook, to, from, offset, bytes); });
}

// A number that is given to another file may be the standard input's, or a stream's.
template <typename... Flags>
int put_over(Hook hook, int from, int to, Flags... flags) {
  const UsesDescriptor now(from), as_well(to);
  const int put = call_next<int>(hook, from, to, flags...);
  if (put < 0) return put;
  duplicated(from, to);
  if (from != to && is_tier(class_of(to))) used_by_stream(to);
  return put;
}

APART int close_known(int fd) {
  const UsesDescriptor now(fd);
  closes_known(fd);
  return call_next<int>(Hook::close, fd);
}

// A descriptor of the whole copy of a large file, which is waited for once if it comes soon; -1: there is
// none.
RARE int copy_to_map(int fd) {
  const bool first = is_first_map(fd);
  if (first) (void)wait_for_whole(fd);
  const int copy = open_whole(fd);
  if (first && copy < 0) read_natively(fd);
  return copy;
}

void* map(Hook hook, void* address, size_t bytes, int protection, int flags, int fd, off_t offset) {
  const bool runs = fd >= 0 && (protection & PROT_EXEC) != 0;  // a tier's file system may refuse that
  if (runs) give_back(fd);
  if (fd >= 0 && !runs) follow_changes_to_map(fd);
  const Own copy(fd >= 0 && !runs && __builtin_expect(class_of(fd) == kLarge, 0) ? copy_to_map(fd) : -1);
  auto* real = next<void*(void*, size_t, int, int, int, off_t)>(hook);
  void* mapped = real(address, bytes, protection, flags, copy.fd >= 0 ? copy.fd : fd, offset);
  if (fd >= 0 && __builtin_expect(class_of(fd) != kNone, 0) && mapped != reinterpret_cast<void*>(-1))
    if (Client* k = client()) count(k->board, TaskCounter::mmap_bytes, bytes);
  return mapped;
}

// Before threads of libc's read it (aio(7)).
void will_read(int fd) {
  if (in_chunks(fd)) turn_native(fd);
  follow_changes(fd);
}

int read_later(Hook hook, struct aiocb* request) {
  if (!unreadable(request)) will_read(request->aio_fildes);
  return call_next<int>(hook, request);
}

int read_list(Hook hook, int mode, struct aiocb* const list[], int n, struct sigevent* done) {
  for (int i = 0; i < n && !unreadable(list); ++i)
    if (!unreadable(list[i]) && list[i]->aio_lio_opcode == LIO_READ) will_read(list[i]->aio_fildes);
  return call_next<int>(hook, mode, list, n, done);
}

}  // namespace

EXPORT ssize_t read(int fd, void* buffer, size_t bytes) {
  const struct iovec part = {buffer, bytes};
  if (ssize_t got; from_chunks_on(fd, &part, 1, &got)) return got;
  return counted(fd, [&] { return call_next<ssize_t>(Hook::read, fd, buffer, bytes); });
}
EXPORT ssize_t __read_chk(int fd, void* buffer, size_t bytes, size_t room) {
  const struct iovec part = {buffer, bytes};
  if (ssize_t got; bytes <= room && from_chunks_on(fd, &part, 1, &got)) return got;
  return counted(fd, [&] { return call_next<ssize_t>(Hook::__read_chk, fd, buffer, bytes, room); });
}
EXPORT ssize_t readv(int fd, const struct iovec* parts, int n) {
  if (ssize_t got; from_chunks_on(fd, parts, n, &got)) return got;
  return counted(fd, [&] { return call_next<ssize_t>(Hook::readv, fd, parts, n); });
}
#define PREAD_HOOKS(Offset, plain, checked, vector, flagged)                                                \
  HOOK(ssize_t, plain, (int fd, void* buffer, size_t bytes, Offset at), read_at, fd, buffer, bytes, at)     \
  HOOK(ssize_t, checked, (int fd, void* buffer, size_t bytes, Offset at, size_t room), read_at, fd, buffer, \
       bytes, at, room)                                                                                     \
  HOOK(ssize_t, vector, (int fd, const struct iovec* parts, int n, Offset at), read_at, fd, parts, n, at)   \
  HOOK(ssize_t, flagged, (int fd, const struct iovec* parts, int n, Offset at, int flags), read_at, fd,     \
       parts, n, at, flags)
PREAD_HOOKS(off_t, pread, __pread_chk, preadv, preadv2)
PREAD_HOOKS(off64_t, pread64, __pread64_chk, preadv64, preadv64v2)
HOOK(ssize_t, sendfile, (int to, int from, off_t* at, size_t bytes) noexcept, send, to, from, at, bytes)
HOOK(ssize_t, sendfile64, (int to, int from, off64_t* at, size_t bytes) noexcept, send, to, from, at, bytes)
EXPORT ssize_t copy_file_range(int from, off64_t* from_at, int to, off64_t* to_at, size_t bytes,
                               unsigned flags) {
  give_back_beside(from, to);  // else EXDEV
  return counted(from, [&] {
    return call_next<ssize_t>(Hook::copy_file_range, from, from_at, to, to_at, bytes, flags);
  });
}

EXPORT ssize_t splice(int from, off64_t* from_at, int to, off64_t* to_at, size_t bytes, unsigned flags) {
  (void)in_chunks(from);
  return counted(from,
                 [&] { return call_next<ssize_t>(Hook::splice, from, from_at, to, to_at, bytes, flags); });
}

static_assert(sizeof(struct aiocb) == sizeof(struct aiocb64));
EXPORT int aio_read(struct aiocb* request) noexcept { return read_later(Hook::aio_read, request); }
EXPORT int aio_read64(struct aiocb64* request) noexcept {
  return read_later(Hook::aio_read64, reinterpret_cast<struct aiocb*>(request));
}
EXPORT int lio_listio(int mode, struct aiocb* const list[], int n, struct sigevent* done) noexcept {
  return read_list(Hook::lio_listio, mode, list, n, done);
}
EXPORT int lio_listio64(int mode, struct aiocb64* const list[], int n, struct sigevent* done) noexcept {
  return read_list(Hook::lio_listio64, mode, reinterpret_cast<struct aiocb* const*>(list), n, done);
}

HOOK(void*, mmap, (void* address, size_t bytes, int protection, int flags, int fd, off_t at) noexcept, map,
     address, bytes, protection, flags, fd, at)
HOOK(void*, mmap64, (void* address, size_t bytes, int protection, int flags, int fd, off64_t at) noexcept,
     map, address, bytes, protection, flags, fd, at)

EXPORT __attribute__((hot)) int close(int fd) {
  if (__builtin_expect(class_of(fd) != kNone, 0)) return close_known(fd);
  return call_next<int>(Hook::close, fd);
}
EXPORT int dup(int fd) noexcept {
  const UsesDescriptor now(fd);
  const int other = call_next<int>(Hook::dup, fd);
  if (other >= 0) duplicated(fd, other);
  return other;
}
HOOK(int, dup2, (int fd, int to) noexcept, put_over, fd, to)
HOOK(int, dup3, (int fd, int to, int flags) noexcept, put_over, fd, to, flags)

}  // namespace monarch::preload
