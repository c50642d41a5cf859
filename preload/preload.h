// SPDX-License-Identifier: Apache-2.0
// What the files of the preload library share. Everything here is callable from any thread and signal
// handler: no allocation, no lock, no descriptor kept.
#pragma once

#include <stddef.h>
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
// nullptr if there is none (an old libc).
void* next_symbol(Hook hook);
template <typename Function>
Function* next(Hook hook) {
  return reinterpret_cast<Function*>(next_symbol(hook));
}

// The job's catalog and board, mapped.
struct Client {
  CatalogReader catalog;
  Board* board = nullptr;
};
// The process's client; nullptr if this process is not to be redirected (no job, switched off, a stale
// run directory, another version). The first call maps the two files.
Client* client();

// `path`, relative to the directory `dirfd`, as a path below a dataset root. `buffer` receives the text
// that the result points to. False: outside, the root itself, or not to be resolved as text ("..",
// trailing slash). Costs no system call for absolute paths outside the roots.
inline constexpr size_t kRelPathBytes = kPathBytes;
bool resolve(const Client& client, int dirfd, const char* path, char* buffer, RelPath* result);

// Where a read-only open of `path` goes. May wait, bounded, while the agent stages the file.
struct Answer {
  bool placed = false;  // a whole copy is on tier number `tier`; else the PFS
  uint32_t tier = 0;
  uint64_t bytes = 0;  // the file's size; 0 if it is not known
  Ref large = 0;       // the Entry, if reads with an offset may be served from chunks
};
// `copy` (kCopyPathBytes) receives the path of a whole copy.
inline constexpr size_t kCopyPathBytes = kPathBytes + kPartNameBytes + 1;
Answer find_copy(Client* client, const RelPath& path, char* copy);

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

// The file is about to be written: from now on every open goes to the PFS.
void invalidate(Client* client, const RelPath& path);

}  // namespace monarch::preload

#define MONARCH_EXPORT extern "C" __attribute__((visibility("default")))
