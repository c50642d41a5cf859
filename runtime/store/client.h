// SPDX-License-Identifier: Apache-2.0
// The store of an agent whose job's directory is root's: asks root's store (server.h).
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/store/protocol.h"
#include "runtime/store/store.h"

namespace monarch {

// The agent's descriptors of root's store of a tier, which are the client's to close.
struct StoreEnds {
  std::string tier;
  int requests = -1, answers = -1;
};

// Each call waits for its answer, one at a time: for as long as a call on the tier takes.
class StoreClient final : public Store {
 public:
  // Error: the store has ended, or its file system cannot be a tier.
  static Result<std::unique_ptr<Store>> open(const StoreEnds& ends);

  Result<Fd> create(Ref entry) override EXCLUDES(lock_);
  void discard(Ref entry) override EXCLUDES(lock_);
  Status publish(const Fd& file, Ref entry, const struct stat& source, struct stat* made) override
      EXCLUDES(lock_);
  Result<Fd> create_part(Ref entry, uint64_t space) override EXCLUDES(lock_);
  Result<Fd> open_part(Ref entry) override EXCLUDES(lock_);
  Status publish_part(const Fd& file, Ref entry, const struct stat& source, struct stat* made) override
      EXCLUDES(lock_);
  bool link(Ref copy, Ref entry) override EXCLUDES(lock_);
  bool remove(Ref entry) override EXCLUDES(lock_);
  Fd hold(Fd file) const override;
  bool is_open(Ref entry, const Fd& held) override EXCLUDES(lock_);
  Result<std::optional<Room>> room() override EXCLUDES(lock_);
  bool has_ended() const override { return ended_; }

 private:
  explicit StoreClient(const StoreEnds& ends)
      : tier_(ends.tier), requests_(ends.requests), answers_(ends.answers) {}
  // The answer, and the file that came with it, if there is one.
  StoreTold ask(const StoreAsk& ask, Fd* file = nullptr) REQUIRES(lock_);
  // The same for a request that may be followed by kNew: the slot's file of before is the store's no more.
  int ask_for_slot(const StoreAsk& ask) REQUIRES(lock_);
  bool exchange(const StoreAsk& ask, StoreTold* told, Fd* file) const;
  Error failed(const std::string& what, int error) const;

  const std::string tier_;
  const Fd requests_, answers_;
  std::atomic<bool> ended_{false};
  Mutex lock_;
  std::array<Fd, kStoreSlots> pool_ GUARDED_BY(lock_);  // nameless files, by slot; empty: none, or in use
  std::map<Ref, uint32_t> in_use_ GUARDED_BY(lock_);    // slots
  std::vector<uint32_t> unused_ GUARDED_BY(lock_);      // slots; the next one is the last
};

}  // namespace monarch
