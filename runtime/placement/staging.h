// SPDX-License-Identifier: Apache-2.0
// A file on its way to a tier, or a chunk of a large one: one object, which the queue makes and a copy thread
// takes through its steps. Where the copy's pages are written back, the watch over that ends it.
//
//   step        is set since then          goes on to
//   kAsked      ref, why                   kOpened; or its entry is settled, or it is put off
//   kOpened     source, st                 kNamed, or a large file's chunks, perhaps after a time in line;
//                                          or its entry is settled
//   kNamed      tier, copy, space, inode   kPublished or kRefused, once its pages are on the device, or
//                                          somebody waits for it; or it was lost before
//   kPublished  the catalog has it         its end; or it is lost on its device, and retired
//   kRefused    its entry is settled       its end: the copy is given back
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "runtime/base/fd.h"
#include "runtime/layout/catalog_layout.h"
#include "runtime/placement/source.h"

namespace monarch {

enum class Why {
  kDemand,    // an open waits for the file
  kPrefetch,  // nobody does
  kChunk,     // a read waits for a chunk of a large file
  kFill,      // a large file was begun; nobody waits for this chunk of it
  kAgain,     // the job wrote the file, and has left it alone since
  kLook,      // no file: it is time to try tiers, or what was put off, again
};
// Whether nobody waits.
inline bool is_background(Why why) {
  return why == Why::kPrefetch || why == Why::kFill || why == Why::kAgain;
}

// What prefetch has reserved for a file; see PrefetchCredit::reserve(). Given back with this.
class Reserved {
 public:
  Reserved() = default;
  Reserved(class PrefetchCredit* credit, uint64_t bytes) : credit_(credit), bytes_(bytes) {}
  Reserved(Reserved&& other) noexcept : credit_(other.credit_), bytes_(std::exchange(other.bytes_, 0)) {}
  Reserved& operator=(Reserved&& other) noexcept {
    std::swap(credit_, other.credit_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Reserved();
  explicit operator bool() const { return bytes_ != 0; }

 private:
  friend class PrefetchCredit;
  PrefetchCredit* credit_ = nullptr;
  uint64_t bytes_ = 0;  // 0: nothing
};

// One thread at a time has it.
struct Staging {
  enum class Step { kAsked, kOpened, kNamed, kPublished, kRefused };
  Ref ref = 0;  // the entry
  Why why = Why::kDemand;
  uint32_t chunk = 0;
  uint32_t change = 0;     // kAgain: the number of the last change of the file; see Catalog::place()
  Ref before = 0;          // kAgain, once it is opened: the entry that `ref` is to replace
  bool hinted = false;     // kPrefetch: the job has told that it will use the file
  bool paid = false;       // see PrefetchCredit::take()
  Reserved reserved = {};  // kPrefetch, kFill, until then
  Step step = Step::kAsked;

  std::unique_ptr<SourceFile> source = nullptr;
  struct stat st {};  // the file's on the PFS

  int tier = -1;
  Fd copy{};
  uint64_t space = 0;  // that it takes there: less than bytes() if it has holes
  uint64_t inode = 0;  // the copy's

  uint64_t bytes() const { return static_cast<uint64_t>(st.st_size); }
  bool background() const { return is_background(why); }
  Need need() const { return why == Why::kAgain ? Need::kAnew : background() ? Need::kLater : Need::kNow; }
};

}  // namespace monarch
