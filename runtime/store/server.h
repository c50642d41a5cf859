// SPDX-License-Identifier: Apache-2.0
// Root's store of one job on one tier (monarchd --store). It alone makes and names files in the job's
// directory, which is root's, and counts them; the agent gets descriptors. Nothing that the agent says is
// believed.
#pragma once

#include <sys/stat.h>

#include <array>
#include <functional>
#include <map>
#include <set>
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
  // In the job's directory. What a store before this one has named there counts; its partial copies go.
  // `granted`: bytes that root grants now.
  StoreServer(Fd directory, std::string tier, std::function<uint64_t()> granted,
              Clock& clock = system_clock());

  // Until the end of `requests`, or, false, a fault of the agent's, which is logged.
  bool serve(int requests, int answers);

  struct Answer {
    StoreTold told;
    int fd = -1;  // goes with it; the server's own until the next request
  };
  Answer answer(const StoreAsk& ask);
  // Once a second: whether files without a name take no more than is granted. Else they are emptied.
  bool look();

 private:
  static constexpr size_t kMostLeaving = 256;
  struct Name {
    Ref ref;
    uint32_t blocks;  // counted for it, of kBlockBytes
  };
  using Names = std::vector<Name>;
  // A file without a name that somebody has open.
  struct Leaving {
    Ref ref = 0;
    uint64_t blocks = 0;
    Fd file;
  };

  // These return 0 or an errno value.
  int prepare();
  int take_over(uint32_t bucket, std::set<ino_t>* files);
  int handle(const StoreAsk& ask);
  int renew(uint32_t slot);
  int publish(const StoreAsk& ask);
  int name_slot(const StoreAsk& ask, uint64_t blocks, Names* names);
  // Names a file so, in place of one that the entry has left there.
  struct From {
    int directory;
    std::string name;
    int flags = 0;  // of linkat(2)
  };
  int give_name(const From& from, Names* names, Ref ref, uint64_t blocks);
  int finish(const StoreAsk& ask);
  int reopen(Ref ref);
  int link(Ref ref, Ref other);
  int look_at(Ref ref);
  int remove(Ref ref);

  std::string path(const Names* names, Ref ref) const;
  Names* copies(Ref ref) { return &copies_[ref & 255]; }
  // What has the entry's name as its last; nullptr: it has none.
  Names* find(Ref ref);
  bool has_room(uint64_t blocks);
  void read_granted();
  // Forgets those of an entry, or (0) of all, that nobody has open any more. Whether there are others.
  bool is_leaving(Ref ref);

  const Fd directory_;
  const std::string tier_;
  const std::function<uint64_t()> grant_;
  Clock& clock_;
  int64_t next_look_ns_ = 0;
  int refuses_ = 0;      // an errno value: the tier is none
  bool tmpfile_ = true;  // the file system has O_TMPFILE
  std::array<Fd, kStoreSlots> slots_;
  Fd reopened_;
  std::array<Names, 256> copies_;  // by bucket
  Names parts_;
  std::map<ino_t, uint64_t> shared_;  // blocks that removed names counted, of files that have other names
  std::vector<Leaving> leaving_;
  uint64_t granted_ = 0;                     // bytes
  uint64_t named_ = 0, leaving_blocks_ = 0;  // blocks
};

// Gives up what root can do, but to own files. Error: that could not be.
Status confine_store();

}  // namespace monarch
