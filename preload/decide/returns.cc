// SPDX-License-Identifier: Apache-2.0
#include "preload/decide/returns.h"

#include <sys/file.h>
#include <sys/resource.h>

#include "preload/decide/duplicates.h"
#include "preload/decide/opens.h"
#include "preload/next/kernel.h"
#include "preload/resolve/names.h"
#include "preload/resolve/paths.h"
#include "preload/resolve/words.h"

namespace monarch::preload {
namespace {

// A call was made on the descriptor, or all are looked through.
enum class Why { kUsed, kSwept };

struct Return {
  const Client& client;
  const int fd;
  const Original& original;
  const Hints hints;
  const Why why;
  const Threads threads;
};

// Of a range, by F_SETLK or F_OFD_SETLK. Whether it is taken.
bool take_range(int fd, int command, const Lock& lock) {
  struct flock range = {};
  range.l_type = lock.writes ? F_WRLCK : F_RDLCK;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(lock.first);
  range.l_len = lock.last != 0 ? static_cast<off_t>(lock.last - lock.first + 1) : 0;
  return syscall(SYS_fcntl, fd, command, &range) == 0;
}

// One that belongs to what is open, not to the process.
void take_lock_of_file(int fd, const Lock& lock) {
  if (lock.kind == 'F') syscall(SYS_flock, fd, (lock.writes ? LOCK_EX : LOCK_SH) | LOCK_NB);
  if (lock.kind == 'O') (void)take_range(fd, F_OFD_SETLK, lock);
}

// The process's own, of ranges: all go when it closes any descriptor of the file.
struct Ranges {
  static constexpr size_t kMost = 16;
  Lock locks[kMost];
  size_t n = 0;
  void add(const Lock& lock) {
    if (lock.kind == 'P' && n < kMost) locks[n++] = lock;
  }
};

bool is_open_on(int fd, const struct statx& file) {
  struct statx st;
  return look_at(fd, STATX_INO, &st) && is_same_file(st, file);
}

// Locks of what is open are taken on the PFS before those on the copy go. Those of ranges go with any
// descriptor of the copy, and with `own`, whichever they were taken by.
void take_locks(int fd, int own, Ranges* ranges) {
  (void)each_lock(fd, [&](const Lock& lock) { take_lock_of_file(own, lock); });
  struct statx copy, file, st;
  if (!look_at(fd, STATX_INO, &copy) || !look_at(own, STATX_INO, &file)) return;
  if (!may_be_locked(copy.stx_ino, file.stx_ino)) return;
  each_descriptor([&](int other) {
    if (look_at(other, STATX_INO, &st) && (is_same_file(st, copy) || is_same_file(st, file)))
      (void)each_lock(other, [&](const Lock& lock) { ranges->add(lock); });
  });
}

// Closes `own`, and takes them again, by whichever descriptor of the file can.
void close_and_take(int own, int fd, const Ranges& ranges) {
  struct statx file;
  const bool known = look_at(own, STATX_INO, &file);
  syscall(SYS_close, own);
  for (size_t i = 0; known && i < ranges.n; ++i) {
    bool taken = is_open_on(fd, file) && take_range(fd, F_SETLK, ranges.locks[i]);
    if (taken) continue;
    each_descriptor([&](int other) {
      taken = taken || (is_open_on(other, file) && take_range(other, F_SETLK, ranges.locks[i]));
    });
  }
}

// Calls `use` with each duplicate of `fd` but those two.
template <typename Use>
void each_duplicate(int fd, int but, Comparison how, Use use) {
  each_descriptor([&](int other) {
    if (other != fd && other != but && are_duplicates(fd, other, how)) use(other);
  });
}

// Whether no other thread uses the descriptor or a duplicate. What was only swept stays then, and if that
// cannot be known; what a call is made on does not, after a second.
bool is_at_rest(const Return& r, Comparison how) {
  bool rests = true;
  const auto wait = [&](int fd) {
    if (!has_come_to_rest(fd)) r.why == Why::kUsed ? forget_calls(fd) : void(rests = false);
    rests &= r.why == Why::kUsed || is_in_sight(fd);
  };
  wait(r.fd);
  if (rests) each_duplicate(r.fd, r.fd, how, wait);
  return rests;
}

void put(int own, int to, Hints hints) {
  const long flags = syscall(SYS_fcntl, to, F_GETFD);
  if (flags < 0 || syscall(SYS_dup3, own, to, (flags & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0) < 0) return;
  if (hints == Hints::kSet && class_of(to) != kNone) opened_on_pfs(to, 0);
}

// Puts what is open as `own` in the place of the descriptor and of its duplicates here, however they came.
// What hooks see has come to rest. Else a number may be another file's by now, so each is compared at the
// last moment; and the position may move, which is made up for. `held` (-1: none was to be had) is one more.
void replace(const Return& r, int own, int held, Comparison how) {
  const int from = held >= 0 ? held : r.fd;
  const long at = syscall(SYS_lseek, from, off_t{0}, SEEK_CUR);
  syscall(SYS_fcntl, own, F_SETFL, syscall(SYS_fcntl, from, F_GETFL));
  syscall(SYS_lseek, own, at, SEEK_SET);
  each_duplicate(from, r.fd, how, [&](int other) { put(own, other, r.hints); });
  if (are_duplicates(from, r.fd, how)) put(own, r.fd, r.hints);
  const long moved = held >= 0 && at >= 0 ? syscall(SYS_lseek, held, off_t{0}, SEEK_CUR) - at : 0;
  if (moved != 0) syscall(SYS_lseek, own, moved, SEEK_CUR);
}

bool is_copy_of(int fd, const Original& original, Original* now) {
  return original_of_descriptor(fd, now) && now->identity->tier_ino == original.identity->tier_ino;
}

// While other calls are kept away. 0: the descriptor is the PFS's, or another thread has closed it. *held is
// the caller's to close.
int replace_at_rest(const Return& r, int own, int* held) {
  const Comparison how = comparison();
  Original now;
  if (!is_copy_of(r.fd, r.original, &now)) return 0;
  if (r.threads == Threads::kSeveral && !is_at_rest(r, how)) return EBUSY;
  *held = static_cast<int>(syscall(SYS_fcntl, r.fd, F_DUPFD_CLOEXEC, 0));
  replace(r, own, *held, how);
  count(r.client.board, TaskCounter::returned);
  return 0;
}

// 0: done; ESTALE: the copy is what the descriptor is open on, as long as nothing else changes; else: not
// now. The PFS may take long: meanwhile calls go on, and the number may become another file's.
APART int try_to_go_back(const Return& r) {
  const long flags = syscall(SYS_fcntl, r.fd, F_GETFL);
  if (flags < 0 || ((flags & O_PATH) == 0 && (flags & O_ACCMODE) != O_RDONLY)) return ESTALE;
  const int own = open_original(r.original, (flags & O_PATH) != 0 ? O_PATH : O_RDONLY | O_NONBLOCK);
  if (own < 0) return errno;
  Ranges ranges;
  take_locks(r.fd, own, &ranges);
  int held = -1, error;
  {
    const Returns others_wait(r.threads);
    error = replace_at_rest(r, own, &held);
    if (ranges.n > 0) close_and_take(own, r.fd, ranges);
  }
  if (ranges.n == 0) syscall(SYS_close, own);
  (void)not_opened(held);
  return error;
}

// A program that has all the descriptors that it may have lends some for the moment.
int go_back_alone(const Return& r) {
  constexpr rlim64_t kLent = 4;
  int error = try_to_go_back(r);
  struct rlimit64 limit;
  if (error == EMFILE && syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, nullptr, &limit) == 0 &&
      limit.rlim_max - limit.rlim_cur >= kLent) {
    const struct rlimit64 more = {limit.rlim_cur + kLent, limit.rlim_max};
    syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, &more, nullptr);
    error = try_to_go_back(r);
    syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, &limit, nullptr);
  }
  return error;
}

// One thread opens the file on the PFS, the others wait for that. A child of vfork(2) has one thread, and
// descriptors of its own: it writes nothing in its parent's memory.
int go_back(int fd, const Original& original, Hints hints = Hints::kSet, Why why = Why::kUsed) {
  const Client* c = client();
  if (!c) return ESTALE;
  const KeepErrno errno_stays;
  Original now;  // which knows when the copy was made
  const Return r = {*c, fd, now, hints, why, threads()};
  const bool shared = r.threads == Threads::kSeveral && static_cast<unsigned>(fd) < kDescriptors;
  if (shared) wait_to_return(fd);
  const int error = is_copy_of(fd, original, &now) ? go_back_alone(r) : 0;
  if (shared) end_return(fd);
  if (error == EBUSY && why == Why::kSwept) used_by_stream(fd);  // else each sweep would ask the PFS for it
  return error;
}

bool stays_parents(int fd, Given given) {
  return (given == Given::kOwn || syscall(SYS_lseek, fd, off_t{0}, SEEK_CUR) > 0) && may_be_parents(fd);
}

// A program without the library that gets it may do so, and nothing tells of that in time.
bool may_write(int fd) {
  struct statx st;
  char link[kFdLinkBytes];
  fd_link(fd, link);
  return look_at(fd, STATX_TYPE | STATX_UID, &st) && S_ISREG(st.stx_mode) &&
         (st.stx_uid == static_cast<uint32_t>(syscall(SYS_geteuid)) ||
          syscall(SYS_faccessat, AT_FDCWD, link, W_OK) == 0);
}

// It may have come unseen: by a socket, over exec, as a shell's redirection, as a stream.
void note_copy(int fd) {
  Original original;
  if (class_of(fd) == kNone && original_of_descriptor(fd, &original))
    found_on_tier(fd, original.identity->tier.load(std::memory_order_relaxed));
}

bool has_hooked_parent() {
  constexpr char kProc[] = "/proc/", kMaps[] = "/maps", kLibrary[] = "/libmonarch_preload.so";
  char file[sizeof kProc + kFdLinkBytes + sizeof kMaps];
  memcpy(file, kProc, sizeof kProc - 1);
  memcpy(put_number(file + sizeof kProc - 1, syscall(SYS_getppid)), kMaps, sizeof kMaps);
  bool found = false;
  (void)each_word(file, [&](int, const char* word) { found |= strstr(word, kLibrary) != nullptr; });
  return found;
}

// A dataset's file that is open on the PFS for reading.
template <typename Counted>
void note_file(Client* c, int fd, Counted counted) {
  Room room;
  RelPath path;
  struct statx st;
  if (class_of(fd) != kNone || !look_at(fd, STATX_TYPE, &st) || !S_ISREG(st.stx_mode) ||
      (syscall(SYS_fcntl, fd, F_GETFL) & (O_ACCMODE | O_PATH)) != O_RDONLY ||
      !resolve_open(*c, fd, &room, &path))
    return;
  opened_on_pfs(fd, 0);
  Decision to = {.why = TaskCounter::fallback_pass};
  if (!counted()) count_on_pfs(c, path, &to);
}

// Of a descriptor that may be another thread's.
void sweep(int fd, uint32_t marks, Hints hints) {
  const bool known = hints == Hints::kSet && is_tier(class_of(fd));
  const uint32_t seen = known ? descriptor_marks[fd].load(std::memory_order_relaxed) : kNeverLooked;
  Original original;
  if (!original_of_descriptor(fd, &original)) return;
  if (has_changed(original) && go_back(fd, original, hints, Why::kSwept) != ESTALE) return;
  if (seen != kNeverLooked) set_marks(fd, seen, marks);
}

void mark_original(Change change, const Original& original) {
  Room room;
  if (const char* path = path_of_original(original, &room))
    (void)will_change(change, AT_FDCWD, path, AT_SYMLINK_NOFOLLOW);
}

bool lead_to_original(Change change, const Original& copied, const char** path, Instead* instead) {
  mark_original(change, copied);
  instead->fd = open_original(copied);
  if (instead->fd < 0) return false;
  changes_descriptor(change, instead->fd);  // by the name that it has now
  fd_link(instead->fd, instead->link);
  *path = instead->link;
  return true;
}

bool will_change_copy(Change change, int fd, const Original& original) {
  mark_original(change, original);
  const int error = go_back(fd, original);
  if (error != 0) errno = error;
  return error == 0;
}

}  // namespace

bool has_changed(const Original& original) {
  const Client* c = client();
  return c && is_changed_in_place(*c, *original.entry);
}

bool follow_change(int fd, const Original& original) {
  return has_changed(original) && go_back(fd, original) == 0;
}

void look_for_change(int fd) {
  const uint32_t marks = the_client.board->header.marks.load(std::memory_order_acquire);
  const uint32_t seen = descriptor_marks[fd].load(std::memory_order_relaxed);
  Original original;
  const bool is_copy = original_of_descriptor(fd, &original);
  if (!is_copy && seen == kNeverLooked) return opened_elsewhere(fd);
  if (!is_copy || !has_changed(original) || go_back(fd, original) == ESTALE) set_marks(fd, seen, marks);
}

void opened_undecided(int fd) {
  Client* c = client();
  if (!c || c->program == Program::kRestricted) return;
  const KeepErrno errno_stays;
  Original original;
  Room room;
  RelPath path;
  if (!original_of_descriptor(fd, &original)) return note_file(c, fd, [] { return false; });
  const Decision to = {.placed = true, .tier = original.identity->tier.load(std::memory_order_relaxed)};
  found_on_tier(fd, to.tier);
  const bool reads = (syscall(SYS_fcntl, fd, F_GETFL) & O_PATH) == 0;
  if (reads && path_of(c->catalog, *original.entry, &room, &path)) count_copy_opened(c, path, to);
  follow_changes(fd);
}

void follow_changes_to_lock(int fd) {
  static std::atomic<uint32_t> followed{0};
  const Client* c = is_attached() ? client() : nullptr;
  const uint32_t marks =
      c && c->program != Program::kRestricted ? c->board->header.marks.load(std::memory_order_acquire) : 0;
  if (marks == followed.load(std::memory_order_relaxed)) return;
  const KeepErrno errno_stays;
  struct statx st;
  if (!look_at(fd, STATX_INO, &st)) return;
  const Threads now = threads();
  bool others = false;  // of other files, for which the PFS is not asked now
  each_descriptor([&](int other) {
    Original original;
    if (!may_have_changed(other, marks) || (now == Threads::kSeveral && !is_in_sight(other))) return;
    const bool changed = original_of_descriptor(other, &original) && has_changed(original);
    const bool same =
        changed && original.identity->pfs_ino == st.stx_ino && original.attributes->dev == device_of(st);
    if (changed && !same) others = true;
    if (!changed || same) sweep(other, marks, Hints::kSet);
  });
  if (!others && !is_vfork_child()) followed.store(marks, std::memory_order_relaxed);
}

// What the job wrote before it was copied it may write again.
void follow_changes_to_map(int fd) {
  follow_changes(fd);
  Original original;
  if (is_tier(class_of(fd)) && the_client.board->header.changed.load(std::memory_order_relaxed) != 0 &&
      original_of_descriptor(fd, &original) &&
      change_of(original.entry->state.load(std::memory_order_acquire)) != 0)
    (void)go_back(fd, original);
}

void follow_all_changes(Hints hints) {
  stop_moves();
  const Client* c = is_attached() ? client() : nullptr;
  const uint32_t marks = c ? c->board->header.marks.load(std::memory_order_acquire) : 0;
  if (marks == 0) return;
  const KeepErrno errno_stays;
  const Threads now = threads();
  each_descriptor([=](int fd) {
    if (now == Threads::kSeveral && !is_in_sight(fd)) return;
    if (now == Threads::kOne && hints == Hints::kSet) note_copy(fd);
    const bool kept = (syscall(SYS_fcntl, fd, F_GETFD) & FD_CLOEXEC) == 0;
    if (kept || (hints == Hints::kSet && may_have_changed(fd, marks))) sweep(fd, marks, hints);
  });
}

void give_all_back(Given given, Hints hints) {
  if (!is_attached() || !client()) return;
  const KeepErrno errno_stays;
  each_descriptor([=](int fd) {
    if (given == Given::kKept && (syscall(SYS_fcntl, fd, F_GETFD) & FD_CLOEXEC) != 0) return;
    Original original;
    if (original_of_descriptor(fd, &original) &&
        (stays_parents(fd, given) || go_back(fd, original, hints, Why::kSwept) != 0))
      return;
    if (given == Given::kKept && fd <= STDERR_FILENO && may_write(fd))
      changes_descriptor(Change::kContent, fd);
  });
}

bool will_change_open(Change change, int fd) {
  Original original;
  if (original_of_descriptor(fd, &original) && !will_change_copy(change, fd, original)) return false;
  changes_descriptor(change, fd);
  return true;
}

bool may_change(Change change, int dirfd, const char** path, int flags, Instead* instead) {
  if (is_empty_path(*path, flags)) return will_change_open(change, dirfd);
  const Original copied = will_change(change, dirfd, *path, flags);
  return __builtin_expect(!copied.entry, 1) || lead_to_original(change, copied, path, instead);
}

RARE bool write_instead(int dirfd, const char** path, Instead* instead) {
  const Original copied = copy_led_to(dirfd, *path);
  return !copied.entry || lead_to_original(Change::kContent, copied, path, instead);
}

void give_back(int fd) {
  Original original;
  if (original_of_descriptor(fd, &original)) (void)go_back(fd, original);
}

void give_back_meant(int dirfd, const char* path, int flags, Hints hints) {
  Original meant, open;
  if (!original_meant(dirfd, path, flags, &meant)) return;
  const KeepErrno errno_stays;
  each_descriptor([&](int fd) {
    if (is_copy_of(fd, meant, &open)) (void)go_back(fd, open, hints);
  });
}

void give_back_beside(int fd, int beside) {
  Original original;
  struct statx st;
  if (original_of_descriptor(fd, &original) && look_at(beside, STATX_INO, &st) &&
      device_of(st) == original.attributes->dev)
    (void)go_back(fd, original);
}

// What the process itself opened before exec(2), or inherited then, is counted, and so is what its parent
// did.
APART void find_open_files() {
  const int self = static_cast<int>(syscall(SYS_getpid));
  int counted = the_client.board->attached[self % kAttached].exchange(self) == self ? 1 : -1;
  each_descriptor([&](int fd) {
    note_copy(fd);
    note_file(&the_client, fd, [&] {
      if (counted < 0) counted = has_hooked_parent() ? 1 : 0;
      return counted != 0;
    });
  });
}

}  // namespace monarch::preload
