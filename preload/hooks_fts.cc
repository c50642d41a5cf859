// SPDX-License-Identifier: Apache-2.0
// fts(3) of directories that the catalog lists. libc's reads directories and asks for files' values inside
// libc, so a walk that starts at such a directory is done anew here, on top of this library's opendir,
// readdir, stat and lstat, call for call as glibc until 2.42 does it: also where that is odd, such as paths
// that end in a slash after fts_children(3) of a walk that does not change directory.
//
// Records and paths are in memory from malloc(3), as libc's are, and laid out as its. Beside what is open for
// the directory being read, a walk holds the descriptors that libc's would: of the directory where it starts,
// unless it is FTS_NOCHDIR, and of those from which it followed a symbolic link.
//
// A stream is told from libc's by a table of those that live; none is free there: libc's is used. So it is
// where the next fts_open is not glibc's: that of other libraries (musl-fts) gives other records.
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "preload/preload.h"

// See init.cc.
#if defined(__x86_64__)
__asm__(".symver dladdr, dladdr@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver dladdr, dladdr@GLIBC_2.17");
#endif

namespace monarch::preload {
namespace {

using Compare = int (*)(const FTSENT**, const FTSENT**);
static_assert(sizeof(FTS) == sizeof(FTS64) && offsetof(FTS, fts_options) == offsetof(FTS64, fts_options));
static_assert(sizeof(FTSENT) == sizeof(FTSENT64) &&
              offsetof(FTSENT, fts_name) == offsetof(FTSENT64, fts_name));
static_assert(sizeof(struct stat) == sizeof(struct stat64));

constexpr size_t kLongestPath = USHRT_MAX;  // fts_pathlen is an unsigned short

// Frees a list of records.
void drop(FTSENT* p) {
  while (p) {
    FTSENT* next = p->fts_link;
    free(p);
    p = next;
  }
}

bool is_dot(const char* name) { return strcmp(name, ".") == 0 || strcmp(name, "..") == 0; }

// ".", as libc opens it: a program that is started meanwhile has it too.
int open_here() {
  const int fd = static_cast<int>(syscall(SYS_openat, AT_FDCWD, ".", O_RDONLY, 0));
  if (fd >= 0) opened_elsewhere(fd);
  return fd;
}

// errno stays as it is.
void close_quietly(int fd) {
  const int saved = errno;
  opened_elsewhere(fd);
  syscall(SYS_close, fd);
  errno = saved;
}
void close_quietly(DIR* dir) {
  const int saved = errno;
  closedir(dir);
  errno = saved;
}

bool change_directory(int fd) { return syscall(SYS_fchdir, fd) == 0; }

bool may_read(int fd) {
#ifdef SYS_faccessat2
  return syscall(SYS_faccessat2, fd, "", R_OK, AT_EMPTY_PATH | AT_EACCESS) == 0;
#else
  return false;
#endif
}

// For a change of directory. libc opens the directory for reading; O_PATH spares the PFS that where it would
// succeed.
int open_to_enter(const char* path) {
  const int fd = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, O_PATH | O_CLOEXEC, 0));
  if (fd < 0) return fd;
  opened_elsewhere(fd);
  if (may_read(fd)) return fd;
  close_quietly(fd);
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0));
}

class Walk {
 public:
  explicit Walk(FTS* fts) : fts_(fts) {}

  // False: errno says why, and end() is due.
  bool begin(char* const* paths) {
    if (has(FTS_LOGICAL)) fts_->fts_options |= FTS_NOCHDIR;
    if (!grow(first_room(paths), nullptr) || !add_roots(paths)) {
      fts_->fts_options |= FTS_NOCHDIR;  // nothing to go back to
      return false;
    }
    if (!has(FTS_NOCHDIR)) {
      fts_->fts_rfd = open_here();
      if (fts_->fts_rfd < 0) fts_->fts_options |= FTS_NOCHDIR;
    }
    return true;
  }

  FTSENT* read() {
    FTSENT* p = fts_->fts_cur;
    if (!p || has(FTS_STOP)) return nullptr;
    const int instruction = p->fts_instr;
    p->fts_instr = FTS_NOINSTR;
    if (instruction == FTS_AGAIN) {
      p->fts_info = look(p, false);
      return p;
    }
    if (instruction == FTS_FOLLOW && (p->fts_info == FTS_SL || p->fts_info == FTS_SLNONE)) {
      follow(p);
      return p;
    }
    return p->fts_info == FTS_D ? descend(p, instruction == FTS_SKIP) : go_on(p);
  }

  FTSENT* children(int instruction) {
    if (instruction != 0 && instruction != FTS_NAMEONLY) {
      errno = EINVAL;
      return nullptr;
    }
    FTSENT* p = fts_->fts_cur;
    errno = 0;  // nullptr: an empty directory
    if (has(FTS_STOP) || !p) return nullptr;
    if (p->fts_info == FTS_INIT) return p->fts_link;
    if (p->fts_info != FTS_D) return nullptr;
    drop_children();
    if (instruction == FTS_NAMEONLY) fts_->fts_options |= FTS_NAMEONLY;
    return list_children(*p, instruction == FTS_NAMEONLY ? For::kNames : For::kChildren);
  }

  int end() {
    release();
    int error = 0;
    if (!has(FTS_NOCHDIR)) {
      error = change_directory(fts_->fts_rfd) ? 0 : errno;
      close_quietly(fts_->fts_rfd);
    }
    free(fts_);
    if (error != 0) errno = error;
    return error != 0 ? -1 : 0;
  }

 private:
  enum class For { kRead, kChildren, kNames };
  struct List {
    FTSENT* first = nullptr;
    FTSENT** end = &first;
    int count = 0;
  };
  // The directory that is being read.
  struct Reading {
    int links;     // directories that are still to come; 0: nothing is asked for, -1: all is
    bool by_type;  // what is no directory by its name's type is not asked for
    size_t len;    // of the path before a name
    List list;
  };

  bool has(int option) const { return (fts_->fts_options & option) != 0; }

  // ---- memory

  static size_t first_room(char* const* paths) {
    size_t most = PATH_MAX;
    for (; *paths; ++paths) {
      const size_t bytes = strlen(*paths) + 1;
      if (bytes > most) most = bytes;
    }
    return most;
  }

  static void move(FTSENT* p, const char* from, char* to) {
    if (p->fts_accpath == from) p->fts_accpath = to;
    p->fts_path = to;
  }

  // More room for paths; `list`: records that the stream does not know yet.
  bool grow(size_t more, FTSENT* list) {
    constexpr size_t kSpare = 256;
    const size_t had = static_cast<size_t>(fts_->fts_pathlen), room = had + more + kSpare;
    if (room >= kLongestPath) {
      errno = ENAMETOOLONG;
      return false;
    }
    char *old = fts_->fts_path, *path = static_cast<char*>(malloc(room));
    if (!path) return false;
    path[0] = '\0';
    if (old) memcpy(path, old, had);
    for (FTSENT* p = list; p; p = p->fts_link) move(p, old, path);
    for (FTSENT* p = fts_->fts_child; p; p = p->fts_link) move(p, old, path);
    for (FTSENT* p = fts_->fts_cur; p && p->fts_level >= FTS_ROOTLEVEL;
         p = p->fts_link ? p->fts_link : p->fts_parent)
      move(p, old, path);
    free(old);
    fts_->fts_path = path;
    fts_->fts_pathlen = static_cast<int>(room);
    return true;
  }

  // A record, its name and its values.
  FTSENT* make(const char* name, size_t bytes) const {
    constexpr size_t kAlign = alignof(max_align_t);
    const size_t values = (offsetof(FTSENT, fts_name) + bytes + 1 + kAlign - 1) & ~(kAlign - 1);
    const size_t all = values + (has(FTS_NOSTAT) ? 0 : sizeof(struct stat));
    auto* p = static_cast<FTSENT*>(calloc(1, all < sizeof(FTSENT) ? sizeof(FTSENT) : all));
    if (!p) return nullptr;
    if (!has(FTS_NOSTAT)) p->fts_statp = reinterpret_cast<struct stat*>(reinterpret_cast<char*>(p) + values);
    memcpy(p->fts_name, name, bytes);
    p->fts_namelen = static_cast<unsigned short>(bytes);
    p->fts_path = fts_->fts_path;
    p->fts_instr = FTS_NOINSTR;
    return p;
  }

  void drop_children() {
    drop(fts_->fts_child);
    fts_->fts_child = nullptr;
  }

  void release() {
    FTSENT* p = fts_->fts_cur;
    while (p && p->fts_level >= FTS_ROOTLEVEL) {
      FTSENT* next = p->fts_link ? p->fts_link : p->fts_parent;
      free(p);
      p = next;
    }
    free(p);
    drop_children();
    free(fts_->fts_array);
    free(fts_->fts_path);
  }

  // The list in the caller's order; as it is if there is no memory.
  FTSENT* sorted(FTSENT* first, int count) {
    constexpr int kSpare = 40;
    if (count > fts_->fts_nitems) {
      free(fts_->fts_array);
      fts_->fts_nitems = count + kSpare;
      fts_->fts_array =
          static_cast<FTSENT**>(malloc(static_cast<size_t>(fts_->fts_nitems) * sizeof(FTSENT*)));
      if (!fts_->fts_array) {
        fts_->fts_nitems = 0;
        return first;
      }
    }
    FTSENT** in = fts_->fts_array;
    for (FTSENT* p = first; p; p = p->fts_link) *in++ = p;
    in = fts_->fts_array;
    qsort(in, static_cast<size_t>(count), sizeof(FTSENT*), fts_->fts_compar);
    for (int i = 0; i < count; ++i) in[i]->fts_link = i + 1 < count ? in[i + 1] : nullptr;
    return in[0];
  }

  // ---- values

  static unsigned short unknown(FTSENT* p, struct stat* st, int error) {
    p->fts_errno = error;
    *st = {};
    return FTS_NS;
  }

  // What the record's path leads to, for fts_info; its values.
  unsigned short look(FTSENT* p, bool follow) const {
    struct stat own;
    struct stat* st = has(FTS_NOSTAT) ? &own : p->fts_statp;
    if (!follow && !has(FTS_LOGICAL)) {
      if (lstat(p->fts_accpath, st) != 0) return unknown(p, st, errno);
    } else if (stat(p->fts_accpath, st) != 0) {
      const int error = errno;
      if (lstat(p->fts_accpath, st) != 0) return unknown(p, st, error);
      errno = 0;
      return FTS_SLNONE;
    }
    if (S_ISDIR(st->st_mode)) return look_at_directory(p, *st);
    return S_ISLNK(st->st_mode) ? FTS_SL : S_ISREG(st->st_mode) ? FTS_F : FTS_DEFAULT;
  }

  static unsigned short look_at_directory(FTSENT* p, const struct stat& st) {
    p->fts_dev = st.st_dev;
    p->fts_ino = st.st_ino;
    p->fts_nlink = st.st_nlink;
    if (is_dot(p->fts_name)) return FTS_DOT;
    for (FTSENT* above = p->fts_parent; above->fts_level >= FTS_ROOTLEVEL; above = above->fts_parent) {
      if (above->fts_ino != st.st_ino || above->fts_dev != st.st_dev) continue;
      p->fts_cycle = above;
      return FTS_DC;
    }
    return FTS_D;
  }

  void follow(FTSENT* p) const {
    p->fts_info = look(p, true);
    if (p->fts_info != FTS_D || has(FTS_NOCHDIR)) return;
    p->fts_symfd = open_here();  // the way back
    if (p->fts_symfd >= 0) {
      p->fts_flags |= FTS_SYMFOLLOW;
    } else {
      p->fts_errno = errno;
      p->fts_info = FTS_ERR;
    }
  }

  // ---- the working directory

  bool go(int fd) const { return has(FTS_NOCHDIR) || change_directory(fd); }

  // To the directory that `p` was when it was looked at.
  bool enter(const FTSENT& p, int fd) const {
    if (has(FTS_NOCHDIR)) return true;
    struct statx st;  // these never change, so the PFS is not asked
    if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO, &st) != 0) return false;
    if (st.stx_ino == p.fts_ino && gnu_dev_makedev(st.stx_dev_major, st.stx_dev_minor) == p.fts_dev)
      return change_directory(fd);
    errno = ENOENT;
    return false;
  }
  bool enter(const FTSENT& p, const char* path) const {
    if (has(FTS_NOCHDIR)) return true;
    const int fd = open_to_enter(path);
    if (fd < 0) return false;
    const bool entered = enter(p, fd);
    close_quietly(fd);
    return entered;
  }

  // From the directory `p`, whose names have all been read, to where it was entered from.
  bool leave(const FTSENT& p) const {
    return p.fts_level == FTS_ROOTLEVEL ? go(fts_->fts_rfd) : enter(*p.fts_parent, "..");
  }
  // From the directory `p`, whose names have all been visited.
  bool leave_visited(const FTSENT& p) const {
    if (p.fts_level != FTS_ROOTLEVEL && (p.fts_flags & FTS_SYMFOLLOW) != 0) {
      const bool went = go(p.fts_symfd);
      close_quietly(p.fts_symfd);
      return went;
    }
    return (p.fts_level != FTS_ROOTLEVEL && (p.fts_flags & FTS_DONTCHDIR) != 0) || leave(p);
  }

  // ---- the roots

  // Sets the current record: one before the first root.
  bool add_roots(char* const* paths) {
    FTSENT* before = make("", 0);
    if (!before) return false;
    before->fts_info = FTS_INIT;
    fts_->fts_cur = before;
    FTSENT* parent = before->fts_parent = make("", 0);
    if (!parent) return false;
    parent->fts_level = FTS_ROOTPARENTLEVEL;
    int count = 0;
    for (FTSENT** end = &before->fts_link; *paths; ++paths, ++count) {
      FTSENT* p = make_root(*paths, parent);
      if (!p) return false;
      if (fts_->fts_compar) {  // in reverse, which shows where some are equal
        p->fts_link = before->fts_link;
        before->fts_link = p;
      } else {
        *end = p;
        end = &p->fts_link;
      }
    }
    if (fts_->fts_compar && count > 1) before->fts_link = sorted(before->fts_link, count);
    return true;
  }

  FTSENT* make_root(const char* path, FTSENT* parent) const {
    FTSENT* p = make(path, strlen(path));
    if (!p) return nullptr;
    p->fts_parent = parent;
    p->fts_level = FTS_ROOTLEVEL;
    p->fts_accpath = p->fts_name;
    p->fts_info = look(p, has(FTS_COMFOLLOW));
    if (p->fts_info == FTS_DOT) p->fts_info = FTS_D;
    return p;
  }

  FTSENT* start_root(FTSENT* p) {
    if (!go(fts_->fts_rfd)) return stop();
    memcpy(fts_->fts_path, p->fts_name, p->fts_namelen + size_t{1});
    p->fts_pathlen = p->fts_namelen;
    const char* slash = strrchr(p->fts_name, '/');
    if (slash && (slash != p->fts_name || slash[1] != '\0')) {
      p->fts_namelen = static_cast<unsigned short>(strlen(slash + 1));
      memmove(p->fts_name, slash + 1, p->fts_namelen + size_t{1});
    }
    p->fts_accpath = p->fts_path = fts_->fts_path;
    fts_->fts_dev = p->fts_dev;
    return p;
  }

  // ---- from record to record

  FTSENT* stop() {
    fts_->fts_options |= FTS_STOP;
    return nullptr;
  }

  // What comes before a name below `p`, without the slash.
  static size_t length_below(const FTSENT& p) {
    return p.fts_path[p.fts_pathlen - 1] == '/' ? p.fts_pathlen - size_t{1} : p.fts_pathlen;
  }

  // `p`, with its path.
  FTSENT* named(FTSENT* p) const {
    char* at = fts_->fts_path + length_below(*p->fts_parent);
    *at++ = '/';
    memcpy(at, p->fts_name, p->fts_namelen + size_t{1});
    return p;
  }

  FTSENT* pass_by(FTSENT* p) {
    if ((p->fts_flags & FTS_SYMFOLLOW) != 0) close_quietly(p->fts_symfd);
    drop_children();
    p->fts_info = FTS_DP;
    return p;
  }

  // From a directory to what is in it.
  FTSENT* descend(FTSENT* p, bool skip) {
    if (skip || (has(FTS_XDEV) && p->fts_dev != fts_->fts_dev)) return pass_by(p);
    if (fts_->fts_child && has(FTS_NAMEONLY)) {
      fts_->fts_options &= ~FTS_NAMEONLY;
      drop_children();
    }
    if (!fts_->fts_child) {
      fts_->fts_child = list(For::kRead);
      if (!fts_->fts_child) return has(FTS_STOP) ? nullptr : p;
    } else if (!enter(*p, p->fts_accpath)) {
      p->fts_errno = errno;
      p->fts_flags |= FTS_DONTCHDIR;
      for (FTSENT* child = fts_->fts_child; child; child = child->fts_link)
        child->fts_accpath = p->fts_accpath;
    }
    fts_->fts_cur = fts_->fts_child;
    fts_->fts_child = nullptr;
    return named(fts_->fts_cur);
  }

  FTSENT* go_on(FTSENT* p) {
    // Of what FTS_AGAIN has made a link, or a dot, again; libc's would take them for the next directory's.
    drop_children();
    while (p->fts_link) {
      FTSENT* done = p;
      fts_->fts_cur = p = p->fts_link;
      free(done);
      if (p->fts_level == FTS_ROOTLEVEL) return start_root(p);
      if (p->fts_instr == FTS_SKIP) continue;
      if (p->fts_instr == FTS_FOLLOW) {
        follow(p);
        p->fts_instr = FTS_NOINSTR;
      }
      return named(p);
    }
    return go_up(p);
  }

  FTSENT* go_up(FTSENT* last) {
    FTSENT* p = fts_->fts_cur = last->fts_parent;
    free(last);
    if (p->fts_level == FTS_ROOTPARENTLEVEL) {
      free(p);
      fts_->fts_cur = nullptr;
      errno = 0;
      return nullptr;
    }
    fts_->fts_path[p->fts_pathlen] = '\0';
    if (!leave_visited(*p)) return stop();
    p->fts_info = p->fts_errno != 0 ? FTS_ERR : FTS_DP;
    return p;
  }

  // ---- what is in a directory

  FTSENT* list_children(const FTSENT& p, For purpose) {
    const bool may_get_lost = p.fts_level == FTS_ROOTLEVEL && p.fts_accpath[0] != '/' && !has(FTS_NOCHDIR);
    if (!may_get_lost) return fts_->fts_child = list(purpose);
    const int here = open_here();
    if (here < 0) return nullptr;
    fts_->fts_child = list(purpose);
    const bool back = change_directory(here);
    close_quietly(here);
    return back ? fts_->fts_child : nullptr;
  }

  // How much is asked for in the current directory.
  Reading reading_for(For purpose) const {
    const FTSENT& current = *fts_->fts_cur;
    if (purpose == For::kNames) return {0, false, 0, {}};
    if (!has(FTS_NOSTAT) || !has(FTS_PHYSICAL)) return {-1, false, 0, {}};
    return {static_cast<int>(current.fts_nlink) - (has(FTS_SEEDOT) ? 0 : 2), true, 0, {}};
  }

  // What is in the current directory; nullptr: nothing, or an error.
  FTSENT* list(For purpose) {
    FTSENT* current = fts_->fts_cur;
    DIR* dir = opendir(current->fts_accpath);
    if (!dir) {
      if (purpose != For::kRead) return nullptr;
      current->fts_info = FTS_DNR;
      current->fts_errno = errno;
      return nullptr;
    }
    Reading r = reading_for(purpose);
    const bool enters = r.links != 0 || purpose == For::kRead;
    const bool entered = enters && enter(*current, ListedDirectory(dir).place());
    if (enters && !entered) {
      if (r.links != 0 && purpose == For::kRead) current->fts_errno = errno;
      current->fts_flags |= FTS_DONTCHDIR;
      close_quietly(dir);
      dir = nullptr;
    }
    if (!read_names(dir, &r)) return failed(&r);
    const bool returns = entered && (purpose == For::kChildren || r.list.count == 0);
    if (returns && !leave(*current)) return failed(&r);
    if (r.list.count == 0 && purpose == For::kRead) current->fts_info = FTS_DP;
    return fts_->fts_compar && r.list.count > 1 ? sorted(r.list.first, r.list.count) : r.list.first;
  }

  FTSENT* failed(Reading* r) {
    fts_->fts_cur->fts_info = FTS_ERR;
    drop(r->list.first);
    return stop();
  }

  // Closes `dir`, which may be nullptr.
  bool read_names(DIR* dir, Reading* r) {
    r->len = length_below(*fts_->fts_cur) + 1;
    if (has(FTS_NOCHDIR)) fts_->fts_path[r->len - 1] = '/';
    bool good = true;
    while (const struct dirent* name = dir && good ? readdir(dir) : nullptr)
      good = (!has(FTS_SEEDOT) && is_dot(name->d_name)) || add(*name, r);
    if (dir) close_quietly(dir);
    if (good && has(FTS_NOCHDIR)) {
      const bool whole = r->len < static_cast<size_t>(fts_->fts_pathlen) && r->list.count != 0;
      fts_->fts_path[whole ? r->len : r->len - 1] = '\0';
    }
    return good;
  }

  bool add(const struct dirent& name, Reading* r) {
    const size_t bytes = strlen(name.d_name);
    if (bytes >= static_cast<size_t>(fts_->fts_pathlen) - r->len && !grow(r->len + bytes + 1, r->list.first))
      return false;
    if (r->len + bytes >= kLongestPath) {
      errno = ENAMETOOLONG;
      return false;
    }
    FTSENT* p = make(name.d_name, bytes);
    if (!p) return false;
    p->fts_parent = fts_->fts_cur;
    p->fts_level = static_cast<short>(fts_->fts_cur->fts_level + 1);
    p->fts_pathlen = static_cast<unsigned short>(r->len + bytes);
    p->fts_accpath = has(FTS_NOCHDIR) ? p->fts_path : p->fts_name;
    p->fts_info = look_at_name(p, name.d_type, r);
    *r->list.end = p;
    r->list.end = &p->fts_link;
    ++r->list.count;
    return true;
  }

  unsigned short look_at_name(FTSENT* p, unsigned char type, Reading* r) const {
    if (r->links == 0 || (r->by_type && type != DT_DIR && type != DT_UNKNOWN)) return FTS_NSOK;
    if (has(FTS_NOCHDIR)) memcpy(fts_->fts_path + r->len, p->fts_name, p->fts_namelen + size_t{1});
    const unsigned short what = look(p, false);
    if (r->links > 0 && (what == FTS_D || what == FTS_DC || what == FTS_DOT)) --r->links;
    return what;
  }

  FTS* const fts_;
};

// ---- streams

constexpr int kWalks = 32;
std::atomic<FTS*> walks[kWalks];

bool replace_walk(FTS* from, FTS* to) {
  for (std::atomic<FTS*>& walk : walks) {
    FTS* found = from;
    if (walk.load(std::memory_order_relaxed) == from &&
        walk.compare_exchange_strong(found, to, std::memory_order_acq_rel))
      return true;
  }
  return false;
}

bool is_ours(const FTS* fts) {
  if (!fts) return false;
  for (const std::atomic<FTS*>& walk : walks)
    if (walk.load(std::memory_order_relaxed) == fts) return true;
  return false;
}

// Whether a directory that is listed is among the paths, and the call is one that libc would take.
bool is_for_us(char* const* paths, int options) {
  if ((options & ~FTS_OPTIONMASK) != 0 || !client() || unreadable(reinterpret_cast<const char*>(paths)))
    return false;
  bool listed = false;
  for (; *paths; ++paths) {
    if (unreadable(*paths) || **paths == '\0') return false;
    listed = listed || is_listed(*paths);
  }
  return listed;
}

// Whether it is in the same library as nftw(3), the C library.
bool is_libcs(void* function) {
  Dl_info its, libcs;
  void* libc = next_symbol(Hook::nftw);
  return function && libc && dladdr(function, &its) != 0 && dladdr(libc, &libcs) != 0 &&
         its.dli_fbase == libcs.dli_fbase;
}

// False: it is for the next one, `real`, to do.
bool open_walk(void* real, char* const* paths, int options, Compare compare, FTS** result) {
  *result = nullptr;
  if (!is_for_us(paths, options) || !is_libcs(real)) return false;
  auto* fts = static_cast<FTS*>(calloc(1, sizeof(FTS)));
  if (!fts) return true;
  if (!replace_walk(nullptr, fts)) {
    free(fts);
    return false;
  }
  fts->fts_compar = reinterpret_cast<int (*)(const void*, const void*)>(compare);
  fts->fts_options = options;
  if (Walk(fts).begin(paths)) {
    *result = fts;
    return true;
  }
  const int saved = errno;
  replace_walk(fts, nullptr);
  Walk(fts).end();
  errno = saved;
  return true;
}

int close_walk(FTS* fts) {
  replace_walk(fts, nullptr);
  return Walk(fts).end();
}

int instruct(FTSENT* p, int instruction) {
  if (instruction != 0 && instruction != FTS_AGAIN && instruction != FTS_FOLLOW &&
      instruction != FTS_NOINSTR && instruction != FTS_SKIP) {
    errno = EINVAL;
    return 1;
  }
  p->fts_instr = static_cast<unsigned short>(instruction);
  return 0;
}

FTS* any_open(Hook hook, char* const* paths, int options, Compare compare) {
  FTS* ours;
  const int saved = errno;
  if (open_walk(next_symbol(hook), paths, options, compare, &ours)) return ours;
  errno = saved;
  return next<FTS*(char* const*, int, Compare)>(hook)(paths, options, compare);
}
FTSENT* any_read(Hook hook, FTS* fts) {
  return is_ours(fts) ? Walk(fts).read() : next<FTSENT*(FTS*)>(hook)(fts);
}
FTSENT* any_children(Hook hook, FTS* fts, int instruction) {
  return is_ours(fts) ? Walk(fts).children(instruction) : next<FTSENT*(FTS*, int)>(hook)(fts, instruction);
}
int any_set(Hook hook, FTS* fts, FTSENT* p, int instruction) {
  return is_ours(fts) ? instruct(p, instruction) : next<int(FTS*, FTSENT*, int)>(hook)(fts, p, instruction);
}
int any_close(Hook hook, FTS* fts) { return is_ours(fts) ? close_walk(fts) : next<int(FTS*)>(hook)(fts); }

using Compare64 = int (*)(const FTSENT64**, const FTSENT64**);
FTS* plain(FTS64* fts) { return reinterpret_cast<FTS*>(fts); }
FTSENT* plain(FTSENT64* p) { return reinterpret_cast<FTSENT*>(p); }
FTSENT64* large(FTSENT* p) { return reinterpret_cast<FTSENT64*>(p); }

}  // namespace
}  // namespace monarch::preload

using namespace monarch::preload;

MONARCH_EXPORT FTS* fts_open(char* const* paths, int options, Compare compare) {
  return any_open(Hook::fts_open, paths, options, compare);
}
MONARCH_EXPORT FTSENT* fts_read(FTS* fts) { return any_read(Hook::fts_read, fts); }
MONARCH_EXPORT FTSENT* fts_children(FTS* fts, int instruction) {
  return any_children(Hook::fts_children, fts, instruction);
}
MONARCH_EXPORT int fts_set(FTS* fts, FTSENT* p, int instruction) noexcept {
  return any_set(Hook::fts_set, fts, p, instruction);
}
MONARCH_EXPORT int fts_close(FTS* fts) { return any_close(Hook::fts_close, fts); }

MONARCH_EXPORT FTS64* fts64_open(char* const* paths, int options, Compare64 compare) {
  return reinterpret_cast<FTS64*>(
      any_open(Hook::fts64_open, paths, options, reinterpret_cast<Compare>(compare)));
}
MONARCH_EXPORT FTSENT64* fts64_read(FTS64* fts) { return large(any_read(Hook::fts64_read, plain(fts))); }
MONARCH_EXPORT FTSENT64* fts64_children(FTS64* fts, int instruction) {
  return large(any_children(Hook::fts64_children, plain(fts), instruction));
}
MONARCH_EXPORT int fts64_set(FTS64* fts, FTSENT64* p, int instruction) noexcept {
  return any_set(Hook::fts64_set, plain(fts), plain(p), instruction);
}
MONARCH_EXPORT int fts64_close(FTS64* fts) { return any_close(Hook::fts64_close, plain(fts)); }
