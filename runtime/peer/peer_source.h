// SPDX-License-Identifier: Apache-2.0
// The nodes of a job as a source: a file comes from a node that has it or is reading it; else from the PFS,
// and the others get it from here. What no node gives in time is read from the PFS within the same copy().
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/base/throttle.h"
#include "runtime/metadata/board.h"
#include "runtime/metadata/catalog.h"
#include "runtime/metadata/dataset.h"
#include "runtime/peer/holdings.h"
#include "runtime/peer/peers.h"
#include "runtime/peer/told_values.h"
#include "runtime/placement/pfs_source.h"
#include "runtime/placement/source.h"

namespace monarch {

class PeerSource : public Source {
 public:
  // All outlive it. `bandwidth`: bytes per second of what nobody waits for; 0: no limit. `readers`: so many
  // files are read on the PFS at a time.
  PeerSource(Catalog* catalog, const Dataset* dataset, Board* board, PfsSource* pfs, Peers* peers,
             Holdings* holdings, ToldValues* told, uint64_t bandwidth, int readers,
             Clock& clock = system_clock())
      : catalog_(catalog),
        dataset_(dataset),
        board_(board),
        pfs_(pfs),
        peers_(peers),
        holdings_(holdings),
        told_(told),
        readers_(readers),
        clock_(clock),
        rate_(bandwidth) {}

  std::unique_ptr<SourceFile> open(Ref ref, const std::string& path, Need need,
                                   const Copier& copier) override;
  int more_at_a_time() const override { return 8; }
  // A node prefetches what it is the home of.
  bool is_ours(Ref ref) override;
  void copied(Ref ref, int tier) override;
  void given_up(Ref ref) override;

 private:
  class File;
  class Reader;
  // What the others say of a file that is being copied here. Several threads may copy parts of it: one of
  // them asks for all, without the lock.
  struct Transfer {
    FileKey key;
    Mutex lock;
    Condition answered;
    bool asks GUARDED_BY(lock) = false;
    bool ended GUARDED_BY(lock) = false;  // it has a copy, or was given up
    std::optional<Peers::Route> route GUARDED_BY(lock);
    uint64_t lease GUARDED_BY(lock) = 0;
    bool read_here GUARDED_BY(lock) = false;            // a part of it, on the PFS
    int64_t told_ns GUARDED_BY(lock) = 0;               // when the home was told last that it is being read
    std::optional<FileIdentity> held GUARDED_BY(lock);  // once it has ended
  };
  class Asking;
  FileKey key_of(Ref ref);
  std::shared_ptr<Transfer> transfer_of(Ref ref, const FileKey& key) REQUIRES(lock_);
  // Its home is to be told. nullptr: there was none.
  std::shared_ptr<Transfer> end_transfer(Ref ref, const std::optional<FileIdentity>& held) REQUIRES(lock_);
  void tell_end(Transfer* transfer);
  // Nothing: the file was given up.
  std::optional<Peers::Route> route(Transfer* transfer);
  // No node gave the file: the home is asked anew.
  static void forget(Transfer* transfer);
  // It is read on the PFS, although this node was not sent there.
  void note_again(Transfer* transfer);
  void tell_values(Ref ref);
  // The file on the PFS, by O_PATH.
  Fd look_up(Ref ref, const std::string& path) const;
  // A piece was read on the PFS, or waits for a rate: the PFS does not hang.
  void note_progress(Transfer* transfer);

  Catalog* const catalog_;
  const Dataset* const dataset_;
  Board* const board_;
  PfsSource* const pfs_;
  Peers* const peers_;
  Holdings* const holdings_;
  ToldValues* const told_;
  const int readers_;
  Clock& clock_;
  Throttle rate_;
  Mutex reading_;
  Condition read_;  // one of them has
  int reads_ GUARDED_BY(reading_) = 0;
  std::atomic<uint64_t> moves_{0};  // pieces that were read on the PFS, and looks at a rate
  Mutex lock_;                      // taken before Holdings' own and a Transfer's
  std::map<Ref, std::shared_ptr<Transfer>> transfers_ GUARDED_BY(lock_);
  std::set<std::pair<Ref, const File*>> open_ GUARDED_BY(lock_);  // that have not been given up
};

}  // namespace monarch
