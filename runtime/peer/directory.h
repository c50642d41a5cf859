// SPDX-License-Identifier: Apache-2.0
// The part of the job's directory that a node keeps as the home of some files, or as their deputy: who has
// each, and who is reading it. It is soft: what is lost with a node is told anew by the holders, and
// agreement is needed for few bytes, never for right ones.
//
// It knows neither clocks nor connections; one thread uses it.
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <unordered_map>
#include <variant>

#include "runtime/base/patience.h"
#include "runtime/peer/key.h"
#include "runtime/peer/messages.h"

namespace monarch {

class Directory {
 public:
  // A reader that has told nothing for so long does not read any more.
  static constexpr int64_t kLeaseNs = patience::kPeerSilenceMs * int64_t{1'000'000};

  // `most`: the entries that it has room for. What has none is read by whoever asks.
  Directory(size_t most, uint64_t seed) : most_(most), random_(seed) {}

  using Answer = std::variant<Have, Read, Busy, Pass>;
  // A node needs the file, and has room for it. The first one is to read it; `now_ns` is CLOCK_MONOTONIC.
  Answer want(const FileKey& key, NodeIndex asks, int64_t now_ns);

  // What there is to say of the file without asking anybody.
  enum class Known {
    kNo,
    kSilent,  // a node was sent to read it, whose lease has ended
    kYes,
  };
  // `*reader`, `*until_ns`: of kSilent.
  Known known(const FileKey& key, int64_t now_ns, NodeIndex* reader, int64_t* until_ns) const;

  // A reader tells that it moves, by whichever lease: it may have got a second one, of the deputy's, where
  // the answer was late. One that another reader has been given since stays lost.
  void progress(const FileKey& key, NodeIndex reader, int64_t now_ns);
  // A reader has ended; also without a lease, or with one that it has lost.
  void done(const Done& done, NodeIndex reader);

  // A node holds the file. Where the holders do not agree what it is, nobody shares it.
  void announce(const HeldFile& file);
  // A node reads the file, by a lease of another node's or none. Of a file that is known it changes nothing.
  void reading(const FileInReading& file, int64_t now_ns);
  // The holder has it no longer.
  void lost(const FileKey& key, NodeIndex holder);
  // The node cannot be reached: its leases end, but it may go on.
  void silent(NodeIndex reader, int64_t now_ns);
  // The node is gone, with what it held and read.
  void gone(NodeIndex node);

  size_t size() const { return entries_.size(); }
  // Files that somebody was sent to read since another one's lease had ended.
  uint64_t read_again() const { return read_again_; }

 private:
  enum class State : uint8_t { kRead, kHeld, kNotShared };
  struct Entry {
    State state = State::kRead;
    uint8_t holders = 0;   // of those below
    uint16_t ever = 0;     // holders that there were, for a fair choice among them
    NodeIndex reader = 0;  // kRead
    uint64_t lease = 0;    // kRead
    int64_t until_ns = 0;  // kRead: when the lease ends
    std::array<NodeIndex, Have::kMostHolders> holder{};
    FileIdentity identity;  // kHeld
  };
  using Entries = std::unordered_map<FileKey, Entry>;

  Answer grant(Entry* entry, NodeIndex reader, int64_t now_ns);
  void hold(Entry* entry, NodeIndex holder, const FileIdentity& identity);
  // False: there is none left.
  static bool remove_holder(Entry* entry, NodeIndex holder);

  const size_t most_;
  std::minstd_rand random_;
  Entries entries_;
  uint64_t leases_ = 0, read_again_ = 0;
};

}  // namespace monarch
