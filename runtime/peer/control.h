// SPDX-License-Identifier: Apache-2.0
// The control connections of a node's agent with those of the job's other nodes. One thread listens, dials
// when there is something to say, and carries messages; it sleeps while nobody says anything. What a message
// means is for others to know.
//
// A machine that vanishes is noticed by what its kernel does not confirm; an agent that hangs by nothing but
// time: every question has its own limit. The process ignores SIGPIPE.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/patience.h"
#include "runtime/base/result.h"
#include "runtime/peer/handshake.h"
#include "runtime/peer/job.h"
#include "runtime/peer/messages.h"

namespace monarch {

struct Reply {
  MessageHeader header;
  std::string body;
};

// Why a node cannot be reached.
enum class Away {
  kRefused,  // its machine says at once that no agent is there
  kAbsent,   // nobody answers, or speaks
  kSilent,   // its machine confirms nothing, but the connection is kept: nothing that was told is lost yet
};

// Called in the control thread, which waits for them meanwhile: they are short, and do not ask.
class ControlHandler {
 public:
  virtual ~ControlHandler() = default;
  // A message of another node, which has said that it is `from`. Returns the answer, by encode(); empty:
  // none.
  virtual std::string message(NodeIndex, const MessageHeader&, std::string_view) { return {}; }
  // Another agent than before, or the first one, is at that node; or the same one again, after gone().
  virtual void met(const Hello&) {}
  // There is no connection with the node any more.
  virtual void gone(NodeIndex) {}
  // The node cannot be reached: what was to be told is dropped, unless it is kSilent.
  virtual void unreachable(NodeIndex, Away) {}
  // It answered a question for which nobody waits any more.
  virtual void late(NodeIndex) {}
  // It sent what is no message.
  virtual void wrong(NodeIndex) {}
  // The node has made a connection for data.
  virtual void data(NodeIndex, Fd, Tls) {}
  // The time that ring_after() was given has passed.
  virtual void rings() {}
};

struct ControlOptions {
  // This node's; the port is filled in. `data_address` becomes empty where there is no listening.
  Hello hello;
  std::vector<PeerAddress> nodes;  // by index; this one's own among them
  const PeerTls* tls = nullptr;    // outlives the control
  Handshake::After after = Handshake::After::kClear;
  // Counts up while somebody waits for a node that may be slow: tasks that wait for this agent see that it
  // moves.
  std::atomic<uint64_t>* waits = nullptr;
  void note_wait() const {
    if (waits) waits->fetch_add(1, std::memory_order_relaxed);
  }
};

class Control {
 public:
  // `handler` outlives it.
  Control(ControlOptions options, ControlHandler* handler, Clock& clock = system_clock());
  ~Control();

  // Listens on the first free one of the own ports, and at `data_address` on the same; starts the thread.
  Status start();
  // Ends the thread, and all connections; who waits for an answer gets an error. `gone` is not called.
  void stop();
  // Where it listens.
  uint16_t port() const { return port_; }

  // Any thread. Sends a message made by encode(), after those of before. What cannot be sent is dropped.
  void tell(NodeIndex node, std::string message);
  // Likewise, unless there is no connection by then: nobody is dialled for it.
  void tell_if_met(NodeIndex node, std::string message);
  // Any thread. Rings once, so much later; sooner if it is to ring sooner anyway.
  void ring_after(int ms);
  // Any thread. Calls `work` in the control's thread, as a handler, after what that has to do now.
  void soon(std::function<void()> work);
  // Any thread but the control's own. Sends `message`, with a number, and waits for the answer; meanwhile it
  // looks. ETIMEDOUT: there was none; another error: the node cannot be reached.
  Result<Reply> ask(NodeIndex node, std::string message, int patience_ms);
  // Any thread. For who has waited for the node for kPeerLookMs, each kPeerLookMs: if its machine is gone,
  // unreachable() is called within kPeerConfirmMs.
  void look(NodeIndex node);

 private:
  class Loop;
  const std::unique_ptr<Loop> loop_;
  std::atomic<uint16_t> port_{0};
};

}  // namespace monarch
