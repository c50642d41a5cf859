// SPDX-License-Identifier: Apache-2.0
// Room for a text: on the stack, which may be a signal handler's of 8 KiB, or, for the few that are longer,
// in pages that are given back at the end of the block.
#pragma once

#include <stddef.h>
#include <sys/mman.h>

#include <atomic>

#include "preload/next/kernel.h"
#include "runtime/layout/catalog_reader.h"

namespace monarch::preload {

// The pages that one thread gives back may be the next that another gets. The kernel orders this;
// ThreadSanitizer does not see that, since the calls here are not those of mmap(2) that it watches; nor that
// pages which the program has unmapped are others than those that are mapped there next.
#ifdef __SANITIZE_THREAD__
extern "C" void AnnotateBenignRaceSized(const char* file, int line, const volatile void* memory, size_t bytes,
                                        const char* why) __attribute__((weak));
inline std::atomic<uint32_t> times_pages_changed_hands;
inline void pages_change_hands(char* pages, size_t bytes) {
  times_pages_changed_hands.fetch_add(1, std::memory_order_acq_rel);
  if (AnnotateBenignRaceSized) AnnotateBenignRaceSized(__FILE__, __LINE__, pages, bytes, "new pages");
}
#else
inline void pages_change_hands(char*, size_t) {}
#endif

class Room {
 public:
  static constexpr size_t kNearBytes = 384;

  // near_ is the caller's to fill: clearing it would cost each open as much as using it.
  // cppcheck-suppress uninitMemberVar
  Room() = default;
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  ~Room() { give_back(); }

  // At least so many bytes; what was there before is lost. nullptr: there is no memory. errno may change.
  char* take(size_t bytes) {
    give_back();
    if (bytes <= kNearBytes) return near_;
    const long pages =
        syscall(SYS_mmap, nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
    if (pages == -1) return nullptr;
    far_ = reinterpret_cast<char*>(pages);
    far_bytes_ = bytes;
    pages_change_hands(far_, far_bytes_);
    return far_;
  }
  // What take() returned last.
  char* text() { return far_ ? far_ : near_; }

 private:
  void give_back() {
    if (__builtin_expect(far_ == nullptr, 1)) return;
    pages_change_hands(far_, far_bytes_);
    syscall(SYS_munmap, far_, far_bytes_);
    far_ = nullptr;
  }

  char* far_ = nullptr;
  size_t far_bytes_ = 0;
  char near_[kNearBytes];
};

// The absolute path of a path below a root that has this name, in `room`; nullptr: there is no memory.
inline const char* path_below(const char* root, size_t len, const RelPath& path, Room* room) {
  char* out = room->take(len + 1 + path.len + 1);
  if (!out) return nullptr;
  memcpy(out, root, len);
  out[len] = '/';
  memcpy(out + len + 1, path.path, path.len);
  out[len + 1 + path.len] = '\0';
  return out;
}

// The path of an entry, relative to its root, in `room`, with a NUL. False: it has none, or there is no
// memory.
inline bool path_of(const CatalogReader& catalog, const Entry& entry, Room* room, RelPath* path) {
  const size_t bytes = catalog.path_bytes(entry);
  char* text = bytes > 0 ? room->take(bytes) : nullptr;
  if (!text || !catalog.path_of(entry, text, bytes, path)) return false;
  text[path->len] = '\0';
  return true;
}

}  // namespace monarch::preload
