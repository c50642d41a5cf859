// SPDX-License-Identifier: Apache-2.0
// What the files of the preload library share. Everything here is callable from any thread and signal
// handler: no allocation, no lock, no descriptor kept.
#pragma once

#include <dirent.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <atomic>

#include "preload/hooks.h"
#include "runtime/layout/board_client.h"
#include "runtime/layout/catalog_reader.h"

namespace monarch::preload {

// The next definition of each hooked symbol in the process: another preloaded wrapper's, or libc's.
enum class Hook : int {
#define X(symbol, family) symbol,
  MONARCH_HOOKS(X)
#undef X
      kCount
};
inline constexpr int kHooks = static_cast<int>(Hook::kCount);
extern void* next_symbols[kHooks];  // nullptr: not looked up yet. Only by __atomic built-ins
void* find_next(Hook hook);
// nullptr if there is none (an old libc).
__attribute__((always_inline)) inline void* next_symbol(Hook hook) {
  void* function = __atomic_load_n(&next_symbols[static_cast<int>(hook)], __ATOMIC_RELAXED);
  return __builtin_expect(function != nullptr, 1) ? function : find_next(hook);
}
template <typename Function>
Function* next(Hook hook) {
  return reinterpret_cast<Function*>(next_symbol(hook));
}

// Calls the next definition, or makes the system call where a libc lacks the symbol.
template <typename Result, typename... Arguments>
Result call(Hook hook, long number, Arguments... arguments) {
  auto* real = next<Result(Arguments...)>(hook);
  return real ? real(arguments...) : static_cast<Result>(syscall(number, arguments...));
}

// The job's catalog and board, mapped.
struct Client {
  CatalogReader catalog;
  Board* board = nullptr;
  // What the environment said; nullptr: nothing.
  const char* exclude = nullptr;  // globs
  const char* log = nullptr;      // "stderr" or a file
  bool program_excluded = false;  // every open goes to the PFS; what it changes is marked nevertheless
};
enum class Phase : int { kNew, kStarting, kOff, kOn };
extern std::atomic<Phase> phase;
extern Client the_client;
Client* start_client();
// The process's client; nullptr if this process is not to be redirected (no job, switched off, a stale
// run directory, another version). The first call maps the two files.
inline Client* client() {
  const Phase now = phase.load(std::memory_order_acquire);
  if (__builtin_expect(now == Phase::kOn, 1)) return &the_client;
  return now == Phase::kOff ? nullptr : start_client();
}

// No text: NULL, or an offset from it. The kernel says EFAULT, where reading it would end the program.
inline bool unreadable(const char* path) {
  constexpr uintptr_t kNullPage = 4096;
  return reinterpret_cast<uintptr_t>(path) < kNullPage;
}

// Where `path`, relative to the directory `dirfd`, leads, read as text. Costs no system call for absolute
// paths outside the roots. "..", and what is too long for the kernel, is kOutside: not to be known as text.
inline constexpr size_t kRelPathBytes = kPathBytes;
enum class Where {
  kOutside,
  kBelow,       // below a root: *result, whose text is in `buffer` (kRelPathBytes)
  kBelowSlash,  // the same with a slash at the end: a directory, or an error
  kRoot,        // a directory that the job declared: *result, whose path is empty unless it is inside a root
  kAbove,       // a directory that leads to one
};
Where locate(const Client& client, int dirfd, const char* path, char* buffer, RelPath* result);
// Whether it is kBelow.
bool resolve(const Client& client, int dirfd, const char* path, char* buffer, RelPath* result);
// Whether it is a directory's name: all but kOutside and kAbove.
bool resolve_directory(const Client& client, int dirfd, const char* path, char* buffer, RelPath* result);
// False: resolve() would say false. True: it may say either. Without a system call or much stack.
bool may_be_below(const Client& client, const char* path);
// The absolute path of a root; nullptr: this process does not see it.
const char* root_path(const Client& client, uint32_t root);
// Whether the process runs as the agent's user, in its user namespace.
bool same_user(const Client& client);
// What statx(2) says of any file below the root beside its own values. False: the file system tells more of
// single files, or the root is reached by several mounts.
struct MountValues {
  uint32_t mask;  // stx_mask where STATX_BASIC_STATS is asked for
  uint64_t attributes_mask;
  uint64_t mount;
  bool lazy_times;  // without STATX_MTIME or STATX_CTIME in the mask it says less
};
bool mount_values(const Client& client, uint32_t root, MountValues* values);
// The process may see other directories from now on under the roots' paths.
void forget_directories();

// Whether files of a dataset can be on the device.
bool on_root_device(const CatalogHeader& header, uint64_t dev);
// "/proc/self/fd/FD"; `out` holds kFdLinkBytes.
inline constexpr char kFdLinks[] = "/proc/self/fd/";
inline constexpr size_t kFdLinkBytes = sizeof kFdLinks + 10;
void fd_link(int fd, char* out);
// The absolute path of an open file, as this mount namespace names it, without symbolic links; its length, 0
// if it has none. Changes errno.
size_t path_of_descriptor(int fd, char* out, size_t room);

// Where a read-only open of `path` goes. May wait, bounded, while the agent stages the file.
struct Answer {
  bool placed = false;  // a whole copy is on tier number `tier`; else the PFS
  uint32_t tier = 0;
  uint64_t bytes = 0;                        // the file's size; 0 if it is not known
  Ref large = 0;                             // the Entry, if reads with an offset may be served from chunks
  TaskCounter why = TaskCounter::opens_pfs;  // not placed: the reason
};
// `copy` (kCopyPathBytes) receives the path of a whole copy.
inline constexpr size_t kCopyPathBytes = kPathBytes + kPartNameBytes + 1;
Answer find_copy(Client* client, const RelPath& path, char* copy);

// metadata.cc: what the catalog knows of a file.
struct Values : FileValues {
  uint32_t root;
  bool opened;  // the agent could open it for reading
  MountValues mount;
};
// What the record of a file says: all but size and mtime, which stand in its entry.
inline void take_record(const Identity& id, const Attributes& a, FileValues* v) {
  v->dev = a.dev;
  v->ino = id.pfs_ino;
  v->blocks = id.blocks;
  v->atime = id.atime;
  v->ctime = id.ctime;
  v->mode = a.mode;
  v->uid = a.uid;
  v->gid = a.gid;
  v->nlink = a.nlink;
  v->blksize = a.blksize;
}
// A file of which no task has told yet what the PFS says.
struct Unknown {
  Ref entry = 0;  // 0: nothing is to be told
  uint32_t hash = 0;
};
// What an answer takes beside the values themselves.
enum Need : unsigned {
  kMountKnown = 1,      // values->mount
  kTimesNotNeeded = 2,  // and stx_mask is the same where times are not asked for
  kRealUser = 4,        // the real user id is the effective one
  kReadable = 8,        // the agent could open the file for reading
};
// Whether the path leads to a file that is known; else the PFS is to be asked. Counts which of the two, below
// a root. `flags`: AT_SYMLINK_NOFOLLOW; `needs`: Need. errno stays as it is.
bool known_values(int dirfd, const char* path, int flags, unsigned needs, Values* values, Unknown* unknown);
// Tells the agent what the PFS said. Does not wait.
void tell(const Unknown& unknown, const struct stat& st);
// What the directory holds; nullptr: not known. True for as long as is_as_listed().
const Listing* known_listing(Client* client, const RelPath& path);
bool is_as_listed(const Listing& listing, const struct statx& st);

// directories.cc: a directory stream whose names come from the catalog, for opendir(3) of `path` or
// fdopendir(3) of `fd`. nullptr: libc is to make one; errno is then as it was.
DIR* open_listed(int dirfd, const char* path);
DIR* open_listed(int fd);
// closedir(3), of any stream.
int close_directory(DIR* dir);
// What a DIR is: such a stream, or libc's.
class ListedDirectory {
 public:
  explicit ListedDirectory(DIR* dir);
  explicit operator bool() const { return stream_ != nullptr; }
  // libc's, if this is none of ours.
  DIR* real() const { return dir_; }
  // As readdir(3), or into `out`.
  struct dirent64* read(struct dirent64* out) const;
  long position() const;
  void seek(long position) const;
  // Afterwards it may be libc's.
  void rewind() const;
  // As dirfd(3): from then on a descriptor as open(2) gives.
  int descriptor() const;

 private:
  DIR* dir_;
  void* stream_;
};

// exclude.cc
bool excludes_program(const char* globs);
bool excludes_file(const Client& client, const RelPath& path);

// log.cc
void log_process(const char* log, const char* what);
void log_open(const Client& client, const RelPath& path, const Answer& answer);
// A counter's name.
const char* name_of(TaskCounter counter);

// Counts what became of the open of a copy. On failure the PFS is tried next.
void count_copy_opened(Client* client, uint32_t tier);
void count_copy_failed(Client* client);

// hooks_count.cc: under which heading reads of a descriptor that open returned are counted.
void opened_on_tier(int fd, uint32_t tier);
void opened_on_pfs(int fd, Ref large);
void opened_elsewhere(int fd);
// Counts a whole file as read by a stream; `tier` -1 is the PFS.
void count_stream(int tier, uint64_t bytes);

// large_reads.cc: pread(2) of a large file that was opened on the PFS, from the chunks that are staged.
// Waits, bounded, for one that is not yet. -1: ask the PFS, as for everything in doubt. errno stays as it is.
ssize_t read_chunks(Client* client, int fd, Ref entry, void* buffer, size_t bytes, off_t offset);
// Tells the agent that the job reads the file by calls that chunks cannot serve.
void read_natively(Client* client, Ref entry);

// changes.cc: a call is about to change what a path leads to. Sets what keeps later opens from being served
// what was there before; the caller then goes to the PFS. Any process, any path; errno stays as it is.
enum class Change {
  kContent,   // bytes, times, attributes
  kAccess,    // mode, owner, access control list: of a directory, they decide about all that is below
  kReplaced,  // the file there is removed, or another takes its name
  kName,      // the file or directory there gets another name
};
// After a call that gave the path's name to something, or took it away: its directory is to be listed anew.
void changed_names(int dirfd, const char* path);
// `flags`: AT_SYMLINK_NOFOLLOW where the call does not follow a symbolic link at the end.
void will_change(Change change, int dirfd, const char* path, int flags);
// Before an open for writing: marks what the text of the path tells, without a call to the PFS. After it,
// changes_descriptor() marks what the text did not tell.
void will_write(int dirfd, const char* path);
// What is open as `fd` is changed.
void changes_descriptor(Change change, int fd);

// originals.cc: the dataset's file whose copy on a tier a descriptor is open on.
struct Original {
  const Entry* entry;
  const Identity* identity;
  const Attributes* attributes;
};
// By what the kernel says of the descriptor. Nothing is remembered, so it is right after dup, fork, exec and
// SCM_RIGHTS. False: no copy. Costs no system call.
bool original_of(uint64_t dev, uint64_t ino, uint64_t size, int64_t mtime, Original* original);
// The same by a call of its own; errno stays as it is.
bool original_of_descriptor(int fd, Original* original);
// If `path` is /proc/self/fd/N or /dev/fd/N: the original of descriptor N.
bool original_of_link(const char* path, Original* original);
// What to write to in place of `path`: the PFS's file, for a link to a copy's descriptor (/proc/self/fd/N);
// else `path`. `buffer` holds kFullPathBytes.
const char* path_to_write(const char* path, char* buffer);
// Whether `st` (STATX_INO, STATX_SIZE, STATX_MTIME) is that of the very file on the PFS that `e` was when it
// was copied, or its copying began.
bool is_file_of(const CatalogReader& catalog, const Entry& e, const struct statx& st);
// The absolute path on the PFS of a path below a root; `out` holds kFullPathBytes. False: the root is not to
// be had in this mount namespace.
bool pfs_path(const Client& c, const RelPath& path, char* out);
// The file's absolute path on the PFS; `out` holds kFullPathBytes. False: it is not to be had.
inline constexpr size_t kFullPathBytes = 2 * kPathBytes;
bool path_of_original(const Original& original, char* out);
bool is_copy(int fd);
int fchmodat_original(int fd, mode_t mode, int flags);
// A descriptor (O_PATH) of the file on the PFS, proved to be the one that was copied; -1 with errno
// (ESTALE: another one has its name by now).
int open_original(const Original& original);

// Whether an open of `path`, found as `entry` (nullptr: not yet), must go to the PFS because the job
// changed the file.
bool is_changed(const Client& client, const RelPath& path, const Entry* entry);
// Of these reasons, those that concern the file itself: for a descriptor that is open on it.
bool is_changed_in_place(const Client& client, const Entry& entry);
// Whether the job changed what names are in the directory.
bool has_changed_names(const Client& client, const RelPath& directory);

}  // namespace monarch::preload

#define MONARCH_EXPORT extern "C" __attribute__((visibility("default")))
