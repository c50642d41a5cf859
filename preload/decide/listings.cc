// SPDX-License-Identifier: Apache-2.0
// The kernel's own values say whether the listing still holds: when a stream is opened, the directory has to
// be the one that the walk read, with the same mtime and ctime. So what static programs and other nodes did
// to it shows as soon as the kernel knows, for one call to the PFS at most. One that is rewound is libc's
// from then on.
//
// A stream is a slot of a static table, told from libc's by its address; none is free: libc's is used. It
// holds a descriptor, as libc's do: O_PATH, which costs the PFS no open, until dirfd(3) asks for it.
#include "preload/decide/listings.h"

#include <stddef.h>

#include "preload/decide/attributes.h"
#include "preload/decide/descriptors.h"
#include "preload/next/kernel.h"
#include "preload/next/next.h"
#include "preload/resolve/paths.h"

namespace monarch::preload {

constexpr uint32_t kStreams = 64;
constexpr uint32_t kRecent = 4;  // threads that share a stream without a lock each get a name

// What glibc's own functions find where they look for a stream of theirs, as those of a library that was
// opened with RTLD_DEEPBIND: no lock that is held, no names, no descriptor. So they say EBADF.
struct AsOfLibc {
  int fd = 0, lock = 0;
  size_t allocation = 0, bytes = 0, offset = 0;
  off_t position = 0;
  int error = 0;
};

struct Stream {
  AsOfLibc as_of_libc;
  std::atomic<uint32_t> taken{0};
  int fd = 0;
  bool path_only = false;            // fd is O_PATH
  DIR* real = nullptr;               // once it was rewound: libc's
  const Listing* listing = nullptr;  // nullptr: neither of them is to be had any more
  std::atomic<uint32_t> next{0};
  std::atomic<Ref> block{0};  // where the last name was
  struct dirent64 recent[kRecent] = {};
};

namespace {

// A constructor would write to 19 pages at each start of a process.
constinit Stream streams[kStreams];
std::atomic<uint32_t> next_stream{0};

static_assert(sizeof(struct dirent) == sizeof(struct dirent64));
static_assert(offsetof(struct dirent, d_name) == offsetof(struct dirent64, d_name));

Stream* slot_of(DIR* dir) {
  const auto at = reinterpret_cast<uintptr_t>(dir), first = reinterpret_cast<uintptr_t>(streams);
  return __builtin_expect(at - first < sizeof streams, 0) ? reinterpret_cast<Stream*>(dir) : nullptr;
}

Stream* take_stream() {
  const uint32_t first = next_stream.fetch_add(1, std::memory_order_relaxed);
  for (uint32_t i = 0; i < kStreams; ++i) {
    Stream* s = &streams[(first + i) % kStreams];
    uint32_t no = 0;
    if (s->taken.load(std::memory_order_relaxed) == 0 &&
        s->taken.compare_exchange_strong(no, 1, std::memory_order_acquire))
      return s;
  }
  return nullptr;
}

bool still_as_listed(int fd, const Listing& listing) {
  struct statx st;
  return ask_statx(fd, "", AT_EMPTY_PATH, STATX_INO | STATX_MTIME | STATX_CTIME, &st) &&
         st.stx_ino == listing.ino && device_of(st) == listing.dev && ns_of(st.stx_mtime) == listing.mtime &&
         ns_of(st.stx_ctime) == listing.ctime;
}

DIR* start(const Listing* listing, int fd, bool path_only) {
  Stream* s = take_stream();
  if (!s) return nullptr;
  s->as_of_libc = {.fd = -1};
  s->fd = fd;
  s->path_only = path_only;
  s->real = nullptr;
  s->listing = listing;
  s->next.store(0, std::memory_order_relaxed);
  s->block.store(0, std::memory_order_relaxed);
  return reinterpret_cast<DIR*>(s);
}

// `fd` -1: what the path leads to is opened.
APART DIR* open_known(Client* c, const char* path, int fd) {
  Room room;
  RelPath rel;
  const Relation where = locate(*c, AT_FDCWD, path, &room, &rel);
  if (where == Relation::kOutside || where == Relation::kAbove) return nullptr;
  const Listing* listing = may_be_told(*c, rel) ? c->catalog.listing(rel) : nullptr;
  const bool path_only = fd < 0;
  if (path_only && listing) fd = open_own(AT_FDCWD, path, O_PATH | O_DIRECTORY);
  DIR* dir = listing && fd >= 0 && still_as_listed(fd, *listing) ? start(listing, fd, path_only) : nullptr;
  if (path_only && fd >= 0 && !dir) syscall(SYS_close, fd);
  if (dir && path_only) opened_elsewhere(fd);
  count(c->board, dir ? TaskCounter::meta_served : TaskCounter::meta_pfs);
  return dir;
}

// Whether fdopendir(3) would take it, and its first name would be the directory's first.
bool is_fresh_directory(int fd) {
  const long flags = syscall(SYS_fcntl, fd, F_GETFL);
  return flags >= 0 && (flags & (O_PATH | O_ACCMODE)) == O_RDONLY && syscall(SYS_lseek, fd, 0, SEEK_CUR) == 0;
}

APART DIR* open_descriptor(Client* c, int fd) {
  Room path;
  const bool named = is_fresh_directory(fd) && path_of_descriptor(fd, &path) != 0;
  DIR* const dir = named ? open_known(c, path.text(), fd) : nullptr;
  if (dir) syscall(SYS_fcntl, fd, F_SETFD, FD_CLOEXEC);  // as fdopendir(3) does
  return dir;
}

// The kernel's layout of a name of `len` bytes.
unsigned short record_bytes(size_t len) {
  constexpr size_t kAlign = alignof(struct dirent64);
  return static_cast<unsigned short>((offsetof(struct dirent64, d_name) + len + 1 + kAlign - 1) &
                                     ~(kAlign - 1));
}

// False: there is no such entry, which the agent never lets happen.
bool fill(const CatalogReader& catalog, const ListedName& name, uint32_t number, struct dirent64* out) {
  const Ref ref = read_once(name.entry);
  const bool dots = ref == kDot || ref == kDotDot;
  uint32_t len = ref == kDot ? 1 : 2;
  const Entry* e = dots ? nullptr : catalog.named_entry(ref, &len);
  const char* text = dots ? ".." : e ? e->name : nullptr;
  if (!text || len >= sizeof out->d_name) return false;
  out->d_ino = uint64_t{name.ino[1]} << 32 | name.ino[0];
  out->d_off = number + 1;
  out->d_reclen = record_bytes(len);
  out->d_type = dots ? uint8_t{DT_DIR} : e->type.load(std::memory_order_relaxed);
  memcpy(out->d_name, text, len);
  out->d_name[len] = '\0';
  if (!dots) catalog.expect(*e);  // who reads a directory mostly stats or opens its files next
  return true;
}

// The number of the next name; false: there is none.
bool advance(Stream* s, uint32_t* number) {
  *number = s->next.load(std::memory_order_relaxed);
  do {
    if (*number >= s->listing->count) return false;
  } while (!s->next.compare_exchange_weak(*number, *number + 1, std::memory_order_relaxed));
  return true;
}

// Makes the descriptor one that open(2) of the directory gives.
void open_fully(Stream* s) {
  if (!s->path_only) return;
  const KeepErrno errno_stays;
  const Own full(open_own(s->fd, ".", O_RDONLY | O_NONBLOCK | O_DIRECTORY));
  const long flags = syscall(SYS_fcntl, s->fd, F_GETFD);
  const int keep = flags >= 0 && (flags & FD_CLOEXEC) == 0 ? 0 : O_CLOEXEC;
  if (full.fd >= 0 && syscall(SYS_dup3, full.fd, s->fd, keep) >= 0) s->path_only = false;
}

}  // namespace

DIR* open_listed(const char* path) {
  if (unreadable(path)) return nullptr;
  Client* c = client();
  if (!c || !may_be_below(*c, path)) return nullptr;
  const KeepErrno errno_stays;
  return open_known(c, path, -1);
}

DIR* open_listed(int fd) {
  Client* c = client();
  const KeepErrno errno_stays;
  return c && c->program == Program::kServed ? open_descriptor(c, fd) : nullptr;
}

Stream* stream_of(DIR** dir) {
  Stream* s = slot_of(*dir);
  if (!s || !s->real) return s;
  *dir = s->real;
  return nullptr;
}

struct dirent64* next_name(Stream* s, struct dirent64* out) {
  uint32_t number;
  if (!s->listing) {
    errno = ENOMEM;
    return nullptr;
  }
  if (!advance(s, &number)) return nullptr;
  const CatalogReader& catalog = client()->catalog;
  if (!out) out = &s->recent[number % kRecent];
  Ref block = s->block.load(std::memory_order_relaxed);
  const ListedName* name = catalog.listed_name(*s->listing, &block, number);
  s->block.store(block, std::memory_order_relaxed);
  if (name && fill(catalog, *name, number, out)) return out;
  errno = EIO;
  return nullptr;
}

long position_of(const Stream& s) { return s.next.load(std::memory_order_relaxed); }

void seek(Stream* s, long position) {
  const long end = s->listing ? s->listing->count : 0;
  s->next.store(static_cast<uint32_t>(position < 0 || position > end ? end : position),
                std::memory_order_relaxed);
}

void rewind(Stream* s) {
  const KeepErrno errno_stays;
  open_fully(s);
  s->listing = nullptr;
  syscall(SYS_lseek, s->fd, 0, SEEK_SET);
  s->real = call_next<DIR*>(Hook::fdopendir, s->fd);
}

int descriptor_of(Stream* s) {
  open_fully(s);
  return s->fd;
}

int close_directory(DIR* dir) {
  Stream* s = slot_of(dir);
  if (!s) return call_next<int>(Hook::closedir, dir);
  const int fd = s->fd;
  DIR* real = s->real;
  s->taken.store(0, std::memory_order_release);
  if (real) return call_next<int>(Hook::closedir, real);
  opened_elsewhere(fd);
  return static_cast<int>(syscall(SYS_close, fd));
}

}  // namespace monarch::preload
