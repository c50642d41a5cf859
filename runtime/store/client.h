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

  Result<Fd> create(Ref entry) override;
  void discard(Ref entry) override;
  Status publish(const Fd& file, Ref entry, const struct stat& source, struct stat* made) override;
  Result<Fd> create_part(Ref entry, uint64_t space) override;
  Result<Fd> open_part(Ref entry) override;
  Status publish_part(const Fd& file, Ref entry, const struct stat& source, struct stat* made) override;
  bool link(Ref copy, Ref entry) override;
  bool remove(Ref entry) override;
  Fd hold(Fd file) const override;
  bool is_open(Ref entry, const Fd& held) override;
  Result<std::optional<Room>> room() override;
  bool has_ended() const override { return ended_; }

 private:
  explicit StoreClient(const StoreEnds& ends)
      : tier_(ends.tier), requests_(ends.requests), answers_(ends.answers) {
    for (uint32_t slot = kStoreSlots; slot-- > 0;) unused_.push_back(slot);
  }
  // 0, or the error, which is EPIPE if it has ended. *file: what came with the answer, if anything did.
  int ask(const StoreAsk& ask, Fd* file, Room* room = nullptr) REQUIRES(lock_);
  Status ask_alone(const char* what, const StoreAsk& ask, Fd* file = nullptr, Room* room = nullptr);
  // Names the file that the entry has in use, or gives it up, by which its slot is free.
  Status end_slot(const char* what, Ref entry, StoreAsk ask);
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
