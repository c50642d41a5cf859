// SPDX-License-Identifier: Apache-2.0
// Root's store of one job on one tier (monarchd --store). It alone makes and names files in the job's
// directory, which is root's, and counts them; the agent gets descriptors. Nothing that the agent says is
// believed.
#pragma once

#include <sys/stat.h>

#include <array>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/result.h"
#include "runtime/layout/catalog_layout.h"
#include "runtime/store/protocol.h"

namespace monarch {

// One thread's.
class StoreServer {
 public:
  // Bytes that root grants now.
  using Granted = std::function<uint64_t()>;
  // In the job's directory, which is empty.
  StoreServer(Fd directory, std::string tier, Granted granted, Clock& clock = system_clock());

  // Until the end of `requests`, or a fault of the agent, which is logged: false.
  bool serve(int requests, int answers);

  struct Answer {
    StoreTold told;
    int fd = -1;  // goes with it; the server's until the next request
  };
  Answer answer(const StoreAsk& ask);
  // When files without a name are looked at next, by the clock.
  int64_t next_look_ns() const { return next_look_ns_; }
  // False: they take more than is granted, and are emptied.
  bool look();

 private:
  static constexpr size_t kMostLeaving = 256;
  struct Name {
    Ref ref;
    uint32_t blocks;  // counted for it, of kSpaceBlock
  };
  using Names = std::vector<Name>;
  // A file without a name that somebody has open.
  struct Leaving {
    Ref ref = 0;
    uint64_t blocks = 0;
    Fd file;
  };

  int prepare();
  int handle(const StoreAsk& ask, int* fd);
  // Each returns 0 or an errno value.
  int renew(uint32_t slot);
  int publish(const StoreAsk& ask);
  int part(const StoreAsk& ask);
  int finish(const StoreAsk& ask);
  int reopen(Ref ref);
  int link(Ref ref, Ref other);
  int look_at(Ref ref);
  int remove(Ref ref);

  Names& copies(Ref ref) { return copies_[ref & 255]; }
  // The list that has the entry's name, and what it is; nullptr: it has none.
  Names* find(Ref ref, std::string* name);
  bool has_room(uint64_t blocks);
  void read_granted();
  // Counts the file of a slot, which gets the name, instead of one that the entry had.
  int name_slot(const StoreAsk& ask, const char* name, uint64_t blocks, Names* names);
  void leave(Ref ref, uint64_t blocks, Fd file);
  // Forgets removed files, of an entry or (0) all, that nobody has open any more. Whether one is left.
  bool is_left(Ref ref);
  uint64_t used_blocks() const { return named_ + leaving_blocks_; }

  const Fd directory_;
  const std::string tier_;
  const Granted grant_;
  Clock& clock_;
  int64_t next_look_ns_ = 0;
  int refuses_ = 0;      // errno: the tier is none
  bool tmpfile_ = true;  // the file system has O_TMPFILE
  std::array<Fd, kStoreSlots> slots_;
  Fd reopened_;
  std::array<Names, 256> copies_;  // by bucket
  Names parts_;
  std::map<ino_t, uint64_t> shared_;  // blocks that removed names counted, by files that have others
  std::vector<Leaving> leaving_;
  uint64_t granted_ = 0;                     // bytes
  uint64_t named_ = 0, leaving_blocks_ = 0;  // blocks
};

// Gives up what root can do but own files. Error: that could not be.
Status confine_store();

}  // namespace monarch
