// SPDX-License-Identifier: Apache-2.0
// The other nodes of a job, for an agent: which of them has a file that this node needs, or that this node is
// to read it; and the file. It puts together who is there (members.h), who has what (directory.h), what is
// said (control.h) and what is sent (fetch.h).
//
// Nothing here decides which bytes are right: a file that no peer gives in time is read from the PFS.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/base/patience.h"
#include "runtime/base/result.h"
#include "runtime/peer/control.h"
#include "runtime/peer/directory.h"
#include "runtime/peer/fetch.h"
#include "runtime/peer/gathering.h"
#include "runtime/peer/members.h"

namespace monarch {

// What the node itself is asked; any thread. The calls are short, and do not call Peers.
class PeersHandler {
 public:
  virtual ~PeersHandler() = default;
  // What this node holds of what is asked for, those files that are taken.
  virtual HeldPage held(const Gather& gather, const std::function<bool(const FileKey&)>& takes) = 0;
  // The job has changed files on another node.
  virtual void changed(const Mark&) {}
  // All changes that this node knows of.
  virtual std::vector<Mark> changes() { return {}; }
  // Whether there are any, at once.
  virtual bool has_changes() { return false; }
  // A peer says that this node's copy is not what it should be.
  virtual void doubted(const FileKey&) {}
  // What this node knows of the dataset's directories.
  virtual List walked(const Walk&) { return {}; }
  // A connection on which another node asks for files.
  virtual void data(Fd, Tls) {}
  // What becomes of a node's agent, and what it has counted; see report.h.
  virtual void met(NodeIndex, uint64_t /*incarnation*/) {}
  virtual void gone(NodeIndex) {}
  virtual void counted(NodeIndex, const Count&) {}
  // What the PFS says of files; see told_values.h. False: no node says that.
  virtual bool take(const Told&) { return true; }
  virtual void heard(NodeIndex, const Heard&) {}
  virtual void unreachable(NodeIndex) {}
  // So many nodes that were met are not heard now: what their tasks change is not told.
  virtual void unheard(uint32_t) {}
  // The time that ring_after() was given has passed.
  virtual void rings() {}
};

struct PeerCounts {
  uint64_t errors = 0, timeouts = 0;  // peers that could not, or did not in time
  uint64_t wrong = 0;                 // pieces whose bytes were wrong
  uint64_t alone = 0;                 // questions that neither home nor deputy answered
  uint64_t read_again = 0;            // see Directory
};

class Peers : private Whereabouts, private ControlHandler {
 public:
  // `handler` outlives it.
  Peers(ControlOptions options, PeersHandler* handler, Clock& clock = system_clock());
  ~Peers() override { stop(); }

  Status start();
  void stop();
  // An agent before this one has met the others: until they have told all changes, they are not heard.
  void resume();

  // Where a file is to come from.
  struct Route {
    enum class How {
      kRead,  // from the PFS, by this node, which keeps it and says done()
      kGet,   // from one of `holders`
      kPass,  // from the PFS, and nobody shares it
    };
    How how = How::kRead;
    uint64_t lease = 0;
    std::vector<NodeIndex> holders;
    bool follow = false;    // the holder is still reading it
    FileIdentity identity;  // kGet, unless it is followed
  };
  // Of a file that this node needs and has room for. Waits for an answer, bounded. Any thread, as all below.
  Route locate(const FileKey& key) EXCLUDES(lock_);

  // Gets what `get` names from one of the holders, or goes on with another one; `key` is that of the file.
  // `get.follow` counts where the holder is still reading. kOk: all is there, and as it was when it was read
  // on the PFS. kBusy, kNotYet: the rest may come later. kWrong: nothing of what came counts. `buffer` has
  // room for kPieceBytes.
  Fetched get(const FileKey& key, const Route& route, const Get& get, char* buffer, const Receiver& receiver)
      EXCLUDES(lock_);

  // This node is still reading what it was told to read.
  void progress(const FileKey& key) EXCLUDES(lock_);
  // To be called after each locate(). It has read it, or got it: others may get it from here from now on; or
  // it could not.
  void done(const Done& done) EXCLUDES(lock_);
  // It has lost its copy.
  void lost(const FileKey& key) EXCLUDES(lock_);
  // The job has changed files on this node.
  void changed(const Mark& mark);
  // Looks for the nodes that may have missed a change, or whose changes this one may have missed, as it does
  // by itself from time to time.
  void remind() EXCLUDES(lock_);
  // Sends a message to a node; what cannot be sent is dropped.
  void tell(NodeIndex node, std::string message) { control_->tell(node, std::move(message)); }
  void ring_after(int ms) { control_->ring_after(ms); }
  // Tells the job's first node what was counted here, unless it is not there; waits until it has it, if this
  // agent is ending.
  void count(const Count& count) EXCLUDES(lock_);

  // What a node knows of the dataset's directories. ETIMEDOUT, EAGAIN: it may answer later; another error: it
  // is not there.
  Result<List> ask_walk(NodeIndex node, const Walk& question) EXCLUDES(lock_);
  // The node has sent what none sends.
  void wrong(NodeIndex node) override EXCLUDES(lock_);

  // Whether this node is the file's home: who prefetches reads what is homed on it.
  bool is_home(const FileKey& key) const { return home_of(key, count_) == own_; }
  PeerCounts counts() EXCLUDES(lock_);
  uint16_t port() const { return control_->port(); }

 private:
  int64_t now_ns() { return clock_.now_ns(); }
  uint16_t port(NodeIndex node) override EXCLUDES(lock_);
  std::string data_address(NodeIndex node) override EXCLUDES(lock_);
  void look(NodeIndex node) override {
    options_.note_wait();
    control_->look(node);
  }
  void nap(int64_t* ns);  // for an answer; each time for longer
  std::string message(NodeIndex from, const MessageHeader& header, std::string_view body) override
      EXCLUDES(lock_);
  std::string wanted(NodeIndex from, const Want& want) EXCLUDES(lock_);
  void met(const Hello& hello) override EXCLUDES(lock_);
  void set_unheard(NodeIndex node, bool unheard) EXCLUDES(lock_);
  void gone(NodeIndex node) override EXCLUDES(lock_);
  void unreachable(NodeIndex node, Away why) override EXCLUDES(lock_);
  void late(NodeIndex node) override EXCLUDES(lock_);
  void data(NodeIndex, Fd socket, Tls tls) override { handler_.data(std::move(socket), std::move(tls)); }
  void rings() override;
  void remind_later() EXCLUDES(lock_);
  Gathered gathered_for(NodeIndex asks, const Gather& gather) EXCLUDES(lock_);
  // What a node holds has been told: false, if none says that.
  bool take(NodeIndex from, const Gathered& gathered) EXCLUDES(lock_);
  void gather_from(NodeIndex node, NodeIndex home) EXCLUDES(lock_);
  bool is_of(const FileKey& key, NodeIndex home, NodeIndex keeper) const;
  // Whether this node is the home or the deputy: of other files no node asks or tells it.
  bool keeps(const FileKey& key) const { return is_of(key, home_of(key, count_), own_); }

  Route ask(const FileKey& key) EXCLUDES(lock_);
  Route locate_here(const FileKey& key) EXCLUDES(lock_);
  // Nothing: others are being asked, and who asks waits.
  std::optional<Directory::Answer> answer_to(const FileKey& key, NodeIndex asks, Waits waits) EXCLUDES(lock_);
  // Who is to be asked about the file now; notes the home that does not hear of it.
  std::optional<NodeIndex> keeper_of(const FileKey& key) REQUIRES(lock_);
  // The home is done without.
  void note_missed(NodeIndex home) REQUIRES(lock_);
  // Tells it so, once it can be asked again.
  void tell_missed(NodeIndex home) EXCLUDES(lock_);
  void tell_keeper(const FileKey& key, const std::string& text) EXCLUDES(lock_);
  // To the home of a file, from its deputy.
  void pass_on(const HeldFile& file) EXCLUDES(lock_);
  std::optional<Route> meaning_of(const Reply& reply) const;
  Route meaning_of(const Directory::Answer& answer) const;
  std::vector<NodeIndex> in_turn(const Route& route) EXCLUDES(lock_);
  // Notes how a node did; false: there is no use in asking another one.
  bool note(const FileKey& key, NodeIndex holder, Fetched fetched) EXCLUDES(lock_);

  const ControlOptions options_;
  PeersHandler& handler_;
  Clock& clock_;
  const int64_t began_ns_;
  const NodeIndex own_;
  const uint32_t count_;
  std::unique_ptr<Control> control_;
  std::unique_ptr<Fetch> fetch_;

  Mutex lock_;
  Directory directory_ GUARDED_BY(lock_);
  Members members_ GUARDED_BY(lock_);
  Gathering gathering_ GUARDED_BY(lock_);
  std::minstd_rand random_ GUARDED_BY(lock_);
  std::vector<uint16_t> ports_ GUARDED_BY(lock_);                      // 0: not met yet
  std::map<NodeIndex, std::string> data_addresses_ GUARDED_BY(lock_);  // of those met that have one
  // A home that missed something.
  struct Uninformed {
    bool untold = false;  // it has not been told that it did
    bool acted = false;   // this node was its deputy
  };
  std::map<NodeIndex, Uninformed> uninformed_ GUARDED_BY(lock_);
  std::set<NodeIndex> disconnected_ GUARDED_BY(lock_);  // nodes with which there is no connection
  // Nodes whose changes this one may miss: from gone() until they have told all.
  std::vector<bool> unheard_ GUARDED_BY(lock_);
  // Who is gone is looked for after a while, or a job's end would be full of agents that look for others.
  static constexpr int64_t kToHearNs = patience::kPeerSilenceMs * int64_t{1'000'000};
  int64_t reminded_ns_ GUARDED_BY(lock_) = 0, gone_ns_ GUARDED_BY(lock_) = 0;
  std::unordered_map<FileKey, uint64_t> reading_ GUARDED_BY(lock_);  // what this node reads, and its leases
  PeerCounts counts_ GUARDED_BY(lock_);
};

}  // namespace monarch
