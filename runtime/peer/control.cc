// SPDX-License-Identifier: Apache-2.0
#include "runtime/peer/control.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/event.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "runtime/base/log.h"
#include "runtime/base/mutex.h"
#include "runtime/base/os.h"
#include "runtime/peer/socket.h"

namespace monarch {
namespace {

constexpr size_t kMostStrangers = 64;  // handshakes that others have begun: more wait to be accepted
constexpr int64_t kMsNs = 1'000'000;
constexpr int64_t kStrangerNs = patience::kPeerSilenceMs * kMsNs;  // for each of them
constexpr int64_t kLookNs = patience::kPeerLookMs * kMsNs, kConfirmNs = patience::kPeerConfirmMs * kMsNs;
constexpr int64_t kRestNs = patience::kPeerRestMs * kMsNs;  // where descriptors are short
constexpr size_t kMostUnsent = 4 << 20;  // bytes for a node that does not read: then it is hung up on
constexpr size_t kMostConnections = 4;   // with a node: it has left the older ones
constexpr size_t kMostInLine = 4096;     // messages for a node that is not reached yet
constexpr size_t kNumberAt = 8;          // of a message's header
constexpr std::string_view kBroken = "the connection is broken";

template <typename T, void (*kFree)(T*)>
struct Freed {
  void operator()(T* p) const { kFree(p); }
};
using Event = std::unique_ptr<event, Freed<event, ::event_free>>;
using Base = std::unique_ptr<event_base, Freed<event_base, ::event_base_free>>;
using Stream = std::unique_ptr<bufferevent, Freed<bufferevent, ::bufferevent_free>>;

timeval after(int64_t ns) {
  const int64_t us = (std::max<int64_t>(ns, 0) + 999) / 1000;
  return {us / 1'000'000, us % 1'000'000};
}

// The node is not there, or not yet.
bool is_absent(int error) {
  return error == ECONNREFUSED || error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH;
}

bool is_answer(MessageType type) {
  return type == MessageType::kHave || type == MessageType::kRead || type == MessageType::kBusy ||
         type == MessageType::kPass || type == MessageType::kLater || type == MessageType::kPong ||
         type == MessageType::kList;
}

void set_number(std::string* message, uint64_t number) {
  std::memcpy(message->data() + kNumberAt, &number, sizeof number);
}

}  // namespace

// All that the control thread has; other threads only post to it and wait.
class Control::Loop {
 public:
  Loop(ControlOptions options, ControlHandler* handler, Clock& clock)
      : options_(std::move(options)), handler_(*handler), clock_(clock), nodes_(options_.nodes.size()) {}

  Status open(uint16_t* port);
  void run() {
    id_ = std::this_thread::get_id();
    ::event_base_dispatch(base_.get());
  }

  void post(std::function<void()> work) EXCLUDES(lock_);
  // Whose message it is: a handler's goes before those that wait for a connection.
  enum class By { kHandler, kOther };
  By caller() const { return std::this_thread::get_id() == id_ ? By::kHandler : By::kOther; }
  void send(NodeIndex node, std::string message, By by = By::kOther);
  bool is_met(NodeIndex node) const { return node < nodes_.size() && !nodes_[node].connections.empty(); }
  void ring_after(int ms);
  Result<Reply> ask(NodeIndex node, std::string message, int patience_ms) EXCLUDES(lock_);
  void look(NodeIndex node);
  void stop();
  std::thread thread;

 private:
  // One of the places for strangers.
  class Place {
   public:
    explicit Place(Loop* loop) : loop_(loop) { ++loop_->strangers_; }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    ~Place() {
      if (loop_->strangers_-- == kMostStrangers) loop_->go_on_accepting();
    }

   private:
    Loop* const loop_;
  };
  // A connection that is being made, by this node or another one.
  struct Making {
    Loop* loop = nullptr;
    std::optional<NodeIndex> node;  // whom this node dials
    uint16_t port = 0;              // where
    std::optional<Place> place;     // of another one that dials
    Fd socket;                      // until it is connected
    std::unique_ptr<Handshake> handshake;
    Event event;
    short what = 0;  // it waits for
    int64_t until_ns = 0;
  };
  // What is called at a time of the clock, which may not be the one of libevent.
  struct Timer {
    Loop* loop = nullptr;
    void (Loop::*rings)() = nullptr;
    Event event;
    std::optional<int64_t> due_ns;
  };
  struct Connection {
    Loop* loop = nullptr;
    NodeIndex node = 0;
    Stream stream;
  };
  struct Node {
    std::list<Connection> connections;  // the newest first: the other end may have left an older one
    Hello theirs;                       // of the newest
    std::deque<std::string> in_line;
    bool holds = false;  // it is met, and what is in line has not been sent yet
    bool dialing = false;
    size_t port = 0;  // the number of the one that is dialled
    Error why;        // of the last port that was tried
    // Since when something was seen to be under way of which nothing was confirmed; what came later counts.
    std::optional<int64_t> unconfirmed_ns;
    std::optional<uint64_t> incarnation;
    std::set<std::string> told;  // what the log has of it
  };
  struct Waiting {
    NodeIndex node = 0;
    std::optional<Result<Reply>> result;
  };

  Result<Fd> listen(uint16_t* port) const;
  bool make(Timer* timer, void (Loop::*rings)());
  void arm(Timer* timer, int64_t due_ns);
  void come_round(Timer* timer);
  timeval until(int64_t due_ns) {
    return after(std::min(due_ns - clock_.now_ns(), clock_.longest_wait_ns()));
  }
  Event accepting(const Fd& listener);
  void accept_all(int listener);
  void stop_accepting();
  void go_on_accepting();
  void take_posted() EXCLUDES(lock_);
  void ring();

  void dial(NodeIndex node);
  void next_port(NodeIndex node, Error why);
  void unreachable(NodeIndex node, const Error& why);
  void goes_on(Making* making);
  void wait_for(Making* making, short what);
  void failed(Making* making, Error why);
  void finished(Making* making);
  std::optional<Error> refusal(const Making& making, const Hello& theirs) const;
  void forget(const Making* making);

  void connected(const Hello& theirs, Fd socket, Tls tls);
  void read(Connection* connection);
  // False: the other end does not read what it asks for.
  bool received(Connection* connection, const MessageHeader& header, std::string_view body);
  void hang_up(Connection* connection);
  void answer(const MessageHeader& header, NodeIndex node, Result<Reply> reply) EXCLUDES(lock_);
  void fail_waiting(std::optional<NodeIndex> node, int code, std::string_view why) EXCLUDES(lock_);
  void log_once(NodeIndex node, const std::string& text);
  void log_absent(NodeIndex node, const std::string& text);

  // libevent calls these.
  static void on_accept(int listener, short, void* loop) { static_cast<Loop*>(loop)->accept_all(listener); }
  static void on_posted(int, short, void* loop) { static_cast<Loop*>(loop)->take_posted(); }
  static void on_timer(int, short, void* timer) {
    auto* t = static_cast<Timer*>(timer);
    t->loop->come_round(t);
  }
  static void on_making(int, short what, void* making);
  static void on_read(bufferevent*, void* connection) {
    auto* c = static_cast<Connection*>(connection);
    c->loop->read(c);
  }
  static void on_end(bufferevent*, short, void* connection) {
    auto* c = static_cast<Connection*>(connection);
    c->loop->hang_up(c);
  }

  ControlOptions options_;
  ControlHandler& handler_;
  Clock& clock_;
  Base base_;
  Fd listener_, data_listener_, wake_;
  Event accepts_, accepts_data_, posts_;
  Timer rests_, rings_;
  std::atomic<std::thread::id> id_;
  int64_t began_ns_ = 0;
  std::vector<Node> nodes_;
  std::list<Making> making_;
  size_t strangers_ = 0;

  Mutex lock_;
  Condition answered_;
  std::vector<std::function<void()>> posted_ GUARDED_BY(lock_);
  std::map<uint64_t, Waiting*> waiting_ GUARDED_BY(lock_);
  uint64_t numbers_ GUARDED_BY(lock_) = 0;
  bool stopped_ GUARDED_BY(lock_) = false;
};

// ---- threads

Status Control::Loop::open(uint16_t* port) {
  if (options_.hello.node >= nodes_.size()) return bad_input("this node is not among the job's nodes");
  Result<Fd> listener = listen(port);
  if (!listener.ok()) return listener.error();
  listener_ = listener.take();
  options_.hello.port = *port;
  if (const std::string host = std::exchange(options_.hello.data_address, {}); !host.empty()) {
    Result<Fd> data = listen_at(host, *port);
    if (data.ok()) {
      data_listener_ = data.take();
      options_.hello.data_address = host;
    } else {
      spdlog::warn("peers: {}: data goes by {}", data.error().text, options_.nodes[options_.hello.node].host);
    }
  }
  wake_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const std::unique_ptr<event_config, Freed<event_config, ::event_config_free>> config(::event_config_new());
  if (!wake_ || !config || ::event_config_set_flag(config.get(), EVENT_BASE_FLAG_NOLOCK) != 0)
    return errno_error("prepare the peers' thread", ENOMEM);
  base_.reset(::event_base_new_with_config(config.get()));
  if (!base_) return errno_error("prepare the peers' thread", ENOMEM);
  accepts_ = accepting(listener_);
  if (data_listener_) accepts_data_ = accepting(data_listener_);
  began_ns_ = clock_.now_ns();
  posts_.reset(::event_new(base_.get(), wake_.get(), EV_READ | EV_PERSIST, &on_posted, this));
  const bool timers = make(&rests_, &Loop::go_on_accepting) && make(&rings_, &Loop::ring);
  if (!accepts_ || !timers || !posts_ || (data_listener_ && !accepts_data_) ||
      ::event_add(posts_.get(), nullptr) != 0)
    return errno_error("prepare the peers' thread", ENOMEM);
  return {};
}

bool Control::Loop::make(Timer* timer, void (Loop::*rings)()) {
  timer->loop = this;
  timer->rings = rings;
  timer->event.reset(::event_new(base_.get(), -1, 0, &on_timer, timer));
  return timer->event != nullptr;
}

void Control::Loop::arm(Timer* timer, int64_t due_ns) {
  timer->due_ns = due_ns;
  const timeval later = until(due_ns);
  (void)::event_add(timer->event.get(), &later);
}

void Control::Loop::come_round(Timer* timer) {
  if (!timer->due_ns) return;
  if (clock_.now_ns() < *timer->due_ns) return arm(timer, *timer->due_ns);
  timer->due_ns.reset();
  (this->*timer->rings)();
}

Event Control::Loop::accepting(const Fd& listener) {
  Event event(::event_new(base_.get(), listener.get(), EV_READ | EV_PERSIST, &on_accept, this));
  if (event && ::event_add(event.get(), nullptr) != 0) event.reset();
  return event;
}

Result<Fd> Control::Loop::listen(uint16_t* port) const {
  const PeerAddress& own = options_.nodes[options_.hello.node];
  Error why = bad_input("no port is given for this node");
  for (const uint16_t candidate : own.ports) {
    Result<Fd> fd = listen_at(own.host, candidate);
    if (fd.ok()) {
      *port = candidate;
      return fd;
    }
    why = fd.error();
  }
  return why;
}

void Control::Loop::post(std::function<void()> work) {
  const MutexLock hold(lock_);
  if (stopped_) return;
  posted_.push_back(std::move(work));
  (void)::eventfd_write(wake_.get(), 1);
}

void Control::Loop::take_posted() {
  eventfd_t count;
  (void)::eventfd_read(wake_.get(), &count);
  std::vector<std::function<void()>> posted;
  bool stopped = false;
  {
    const MutexLock hold(lock_);
    posted.swap(posted_);
    stopped = stopped_;
  }
  for (const auto& work : posted) work();
  if (stopped) ::event_base_loopbreak(base_.get());
}

Result<Reply> Control::Loop::ask(NodeIndex node, std::string message, int patience_ms) {
  const int64_t began_ns = clock_.now_ns(), until_ns = began_ns + patience_ms * kMsNs;
  Waiting waiting;
  waiting.node = node;
  MutexLock hold(lock_);
  if (stopped_) return Error{ESHUTDOWN, "the agent is ending"};
  const uint64_t number = ++numbers_;
  waiting_.emplace(number, &waiting);
  hold.unlock();
  set_number(&message, number);
  post([this, node, text = std::move(message)]() mutable { send(node, std::move(text)); });
  hold.lock();
  for (int64_t look_ns = began_ns + kLookNs; !waiting.result;) {
    const int64_t now = clock_.now_ns();
    if (now >= until_ns) {
      waiting.result = Error{ETIMEDOUT, "no answer within " + std::to_string(patience_ms) + " ms"};
    } else if (now >= look_ns) {
      look_ns = now + kLookNs;
      options_.note_wait();
      hold.unlock();
      post([this, node] { look(node); });
      hold.lock();
    } else {
      clock_.wait_until(&answered_, &hold, std::min(until_ns, look_ns));
    }
  }
  waiting_.erase(number);
  return std::move(*waiting.result);
}

void Control::Loop::answer(const MessageHeader& header, NodeIndex node, Result<Reply> reply) {
  if (header.number == 0) return;  // to what was no question: it is not late
  {
    const MutexLock hold(lock_);
    const auto at = waiting_.find(header.number);
    if (at != waiting_.end() && at->second->node == node && !at->second->result) {
      at->second->result.emplace(std::move(reply));
      answered_.notify_all();
      return;
    }
  }
  handler_.late(node);
}

// The kernel of an agent that is stopped, or has no processor, confirms what comes. Two packets that were
// lost one after the other do not end a connection: that takes kPeerUnackedMs.
void Control::Loop::look(NodeIndex index) {
  if (index >= nodes_.size() || index == options_.hello.node) return;
  Node& node = nodes_[index];
  if (node.connections.empty()) return node.dialing ? void() : send(index, encode(Ping()));
  tcp_info info = {};
  if (os::connection_info(::bufferevent_getfd(node.connections.front().stream.get()), &info) != 0) return;
  const int64_t now = clock_.now_ns(), confirmed_ns = info.tcpi_last_ack_recv * kMsNs;
  if (info.tcpi_unacked == 0) {
    if (confirmed_ns < kLookNs) return node.unconfirmed_ns.reset();
    node.unconfirmed_ns = now;
    return send(index, encode(Ping()));  // there is to be something to confirm
  }
  // What is kept of another look may be of long ago; the kernel counts in steps of some milliseconds.
  if (!node.unconfirmed_ns || confirmed_ns < now - *node.unconfirmed_ns + kLookNs / 2)
    node.unconfirmed_ns = now;
  if (now - *node.unconfirmed_ns < kConfirmNs) return;
  constexpr std::string_view kSilent = "its machine confirms nothing";
  log_once(index, "cannot be reached: " + std::string(kSilent));
  handler_.unreachable(index, Away::kSilent);
  fail_waiting(index, EHOSTUNREACH, kSilent);
}

void Control::Loop::fail_waiting(std::optional<NodeIndex> node, int code, std::string_view why) {
  const MutexLock hold(lock_);
  for (const auto& [number, waiting] : waiting_)
    if ((!node || waiting->node == *node) && !waiting->result)
      waiting->result.emplace(Error{code, std::string(why)});
  answered_.notify_all();
}

void Control::Loop::stop() {
  {
    const MutexLock hold(lock_);
    stopped_ = true;
    if (wake_) (void)::eventfd_write(wake_.get(), 1);
  }
  if (thread.joinable()) thread.join();
  fail_waiting({}, ESHUTDOWN, "the agent is ending");
  making_.clear();
  nodes_.clear();
  for (Event* event : {&accepts_, &accepts_data_, &rests_.event, &rings_.event, &posts_}) event->reset();
  base_.reset();  // which closes what it was to close
}

void Control::Loop::ring_after(int ms) {
  const int64_t due_ns = clock_.now_ns() + ms * kMsNs;
  if (!rings_.due_ns || due_ns < *rings_.due_ns) arm(&rings_, due_ns);
}

void Control::Loop::ring() { handler_.rings(); }

void Control::Loop::log_once(NodeIndex node, const std::string& text) {
  if (nodes_[node].told.insert(text).second) spdlog::warn("node {}: {}", node, text);
}

// A job's nodes do not begin at the same moment. Who still is not there when it is dialled again is logged
// then.
void Control::Loop::log_absent(NodeIndex index, const std::string& text) {
  const int64_t until_ns = began_ns_ + patience::kPeerSilenceMs * kMsNs;
  if (nodes_[index].incarnation || clock_.now_ns() >= until_ns) log_once(index, text);
}

// ---- connections that are being made

void Control::Loop::wait_for(Making* making, short what) {
  const int fd = making->handshake ? making->handshake->socket() : making->socket.get();
  const timeval limit = until(making->until_ns);
  making->what = what;
  if (!making->event) making->event.reset(::event_new(base_.get(), -1, 0, &on_making, making));
  if (!making->event || ::event_assign(making->event.get(), base_.get(), fd, what, &on_making, making) != 0 ||
      ::event_add(making->event.get(), &limit) != 0)
    failed(making, Error{ENOMEM, "out of memory"});
}

void Control::Loop::on_making(int, short what, void* pointer) {
  auto* making = static_cast<Making*>(pointer);
  Loop* const loop = making->loop;
  if (what != EV_TIMEOUT)  // else this process may have been the slow one
    loop->goes_on(making);
  else if (loop->clock_.now_ns() < making->until_ns)
    loop->wait_for(making, making->what);
  else
    loop->failed(making, Error{ETIMEDOUT, making->handshake ? "it does not speak" : "it does not answer"});
}

void Control::Loop::forget(const Making* making) {
  making_.remove_if([making](const Making& m) { return &m == making; });
}

void Control::Loop::failed(Making* making, Error why) {  // by value: it may be the handshake's own
  const std::optional<NodeIndex> node = making->node;
  // Its other ports are on the same machine.
  if (node && !making->handshake && why.code == ETIMEDOUT)
    nodes_[*node].port = options_.nodes[*node].ports.size() - 1;
  forget(making);
  if (node) next_port(*node, std::move(why));
}

void Control::Loop::dial(NodeIndex index) {
  Node& node = nodes_[index];
  const PeerAddress& to = options_.nodes[index];
  if (node.port >= to.ports.size()) return unreachable(index, node.why);
  node.dialing = true;
  Result<Fd> socket = begin_to_connect(to.host, to.ports[node.port]);
  if (!socket.ok()) return next_port(index, socket.error());
  Making& making = making_.emplace_back();
  making.loop = this;
  making.node = index;
  making.port = to.ports[node.port];
  making.socket = socket.take();
  making.until_ns = clock_.now_ns() + patience::kPeerConnectMs * kMsNs;
  wait_for(&making, EV_WRITE);
}

void Control::Loop::next_port(NodeIndex index, Error why) {
  Node& node = nodes_[index];
  if (!node.connections.empty()) return;  // it has dialled meanwhile
  // That nobody is at one port says less than what somebody at another one did.
  if (node.port == 0 || why.code != ECONNREFUSED) node.why = std::move(why);
  ++node.port;
  dial(index);
}

void Control::Loop::unreachable(NodeIndex index, const Error& why) {
  Node& node = nodes_[index];
  node.dialing = false;
  node.port = 0;
  node.in_line.clear();
  if (is_absent(why.code))
    log_absent(index, "cannot be reached: " + why.text);
  else
    log_once(index, "cannot be reached: " + why.text);
  // Before who waits asks somebody else.
  handler_.unreachable(index, why.code == ECONNREFUSED ? Away::kRefused : Away::kAbsent);
  fail_waiting(index, why.code == ETIMEDOUT ? EHOSTUNREACH : why.code, why.text);
}

// The socket can be read or written.
void Control::Loop::goes_on(Making* making) {
  if (!making->handshake) {
    const Status ended = end_connecting(making->socket.get());
    if (!ended.ok()) return failed(making, ended.error());
    making->handshake = std::make_unique<Handshake>(*options_.tls, std::move(making->socket),
                                                    Handshake::Side::kDials, options_.hello, options_.after,
                                                    Handshake::Dialled{*making->node, making->port});
    making->until_ns = clock_.now_ns() + patience::kPeerSlowMs * kMsNs;
  }
  switch (making->handshake->step()) {
    case Handshake::Step::kWantsRead:
      return wait_for(making, EV_READ);
    case Handshake::Step::kWantsWrite:
      return wait_for(making, EV_WRITE);
    case Handshake::Step::kFailed:
      return failed(making, making->handshake->error());
    case Handshake::Step::kDone:
      return finished(making);
  }
}

// Why the two do not go together.
std::optional<Error> Control::Loop::refusal(const Making& making, const Hello& theirs) const {
  if (theirs.node >= nodes_.size() || theirs.node == options_.hello.node)
    return Error{EPROTO, "it says that it is node " + std::to_string(theirs.node)};
  if (making.node && theirs.lane != Lane::kControl) return Error{EPROTO, "it answers for data"};
  if (theirs.dataset != options_.hello.dataset) return Error{EPROTO, "it has other datasets, or another PFS"};
  if (theirs.settings != options_.hello.settings) return Error{EPROTO, "it has other settings"};
  return {};
}

void Control::Loop::finished(Making* making) {
  const Hello theirs = making->handshake->theirs();
  if (const std::optional<Error> why = refusal(*making, theirs)) {
    if (!making->node && theirs.node < nodes_.size()) log_once(theirs.node, why->text);
    return failed(making, *why);
  }
  Fd socket = making->handshake->take_socket();
  Tls tls = making->handshake->take_tls();
  forget(making);
  if (theirs.lane == Lane::kData) return handler_.data(theirs.node, std::move(socket), std::move(tls));
  Node& node = nodes_[theirs.node];
  const bool another = node.incarnation != theirs.incarnation;
  if (another && !node.connections.empty()) {  // with an agent that is gone
    node.connections.clear();
    fail_waiting(theirs.node, ECONNRESET, kBroken);
  }
  node.incarnation = theirs.incarnation;
  node.theirs = theirs;
  connected(theirs, std::move(socket), std::move(tls));
}

void Control::Loop::stop_accepting() {
  for (const Event* event : {&accepts_, &accepts_data_})
    if (*event) (void)::event_del(event->get());
}

void Control::Loop::go_on_accepting() {
  for (const Event* event : {&accepts_, &accepts_data_})
    if (*event) (void)::event_add(event->get(), nullptr);
}

void Control::Loop::accept_all(int listener) {
  for (;;) {
    if (strangers_ >= kMostStrangers) return stop_accepting();
    Fd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (errno != EAGAIN && is_shortage(errno)) {  // it would be told again at once
        stop_accepting();
        arm(&rests_, clock_.now_ns() + kRestNs);
      }
      return;
    }
    set_peer_options(fd.get());
    Making& making = making_.emplace_back();
    making.loop = this;
    making.place.emplace(this);
    making.until_ns = clock_.now_ns() + kStrangerNs;
    making.handshake = std::make_unique<Handshake>(*options_.tls, std::move(fd), Handshake::Side::kListens,
                                                   options_.hello, options_.after);
    goes_on(&making);
  }
}

// ---- connections

void Control::Loop::connected(const Hello& theirs, Fd socket, Tls tls) {
  Node& node = nodes_[theirs.node];
  bufferevent* stream = tls ? ::bufferevent_openssl_socket_new(base_.get(), socket.get(), tls.get(),
                                                               BUFFEREVENT_SSL_OPEN, BEV_OPT_CLOSE_ON_FREE)
                            : ::bufferevent_socket_new(base_.get(), socket.get(), BEV_OPT_CLOSE_ON_FREE);
  if (!stream) no_memory_is_left();
  (void)socket.release();
  (void)tls.release();
  if (node.connections.empty()) handler_.met(theirs);
  Connection& connection = node.connections.emplace_front();
  connection.loop = this;
  connection.node = theirs.node;
  connection.stream.reset(stream);
  ::bufferevent_setcb(stream, &on_read, nullptr, &on_end, &connection);
  ::bufferevent_setwatermark(stream, EV_READ, MessageHeader::kBytes, MessageHeader::kBytes + kMostBody);
  ::bufferevent_enable(stream, EV_READ | EV_WRITE);
  node.dialing = false;
  node.port = 0;
  node.told.clear();
  node.holds = true;
  post([this, index = theirs.node] {  // after all that the handler has said to it
    nodes_[index].holds = false;
    std::deque<std::string> in_line;
    in_line.swap(nodes_[index].in_line);
    for (std::string& message : in_line) send(index, std::move(message));
  });
  while (node.connections.size() > kMostConnections) hang_up(&node.connections.back());
}

void Control::Loop::send(NodeIndex index, std::string message, By by) {
  if (index >= nodes_.size() || index == options_.hello.node) return;
  Node& node = nodes_[index];
  const bool holds = node.holds && by == By::kOther;
  if (node.connections.empty() || holds) {
    if (node.in_line.size() < kMostInLine) node.in_line.push_back(std::move(message));
    if (!node.connections.empty()) return;
    if (!node.dialing) dial(index);
    return;
  }
  Connection& connection = node.connections.front();
  evbuffer* out = ::bufferevent_get_output(connection.stream.get());
  if (::evbuffer_get_length(out) > kMostUnsent) return hang_up(&connection);
  if (::bufferevent_write(connection.stream.get(), message.data(), message.size()) != 0) hang_up(&connection);
}

void Control::Loop::read(Connection* connection) {
  evbuffer* in = ::bufferevent_get_input(connection->stream.get());
  while (::evbuffer_get_length(in) >= MessageHeader::kBytes) {
    char bytes[MessageHeader::kBytes];
    ::evbuffer_copyout(in, bytes, sizeof bytes);
    const std::optional<MessageHeader> header = decode_header({bytes, sizeof bytes});
    if (!header) {
      handler_.wrong(connection->node);
      return hang_up(connection);
    }
    const size_t whole = MessageHeader::kBytes + header->body_bytes;
    if (::evbuffer_get_length(in) < whole) return;
    ::evbuffer_drain(in, MessageHeader::kBytes);
    std::string body(header->body_bytes, '\0');
    ::evbuffer_remove(in, body.data(), body.size());
    if (!received(connection, *header, body)) return hang_up(connection);
  }
}

bool Control::Loop::received(Connection* connection, const MessageHeader& header, std::string_view body) {
  if (is_answer(header.type)) {
    answer(header, connection->node, Reply{header, std::string(body)});
    return true;
  }
  if (header.type == MessageType::kPing) {
    std::string pong = encode(Pong());
    set_number(&pong, header.number);
    // After what was told before: who has the answer has that, too.
    post([this, node = connection->node, text = std::move(pong)]() mutable { send(node, std::move(text)); });
    return true;
  }
  std::string reply = handler_.message(connection->node, header, body);
  if (reply.empty()) return true;
  set_number(&reply, header.number);
  if (::evbuffer_get_length(::bufferevent_get_output(connection->stream.get())) > kMostUnsent) return false;
  return ::bufferevent_write(connection->stream.get(), reply.data(), reply.size()) == 0;
}

// What was sent on this one may be lost: it is as if the node had been gone for a moment.
void Control::Loop::hang_up(Connection* connection) {
  const NodeIndex index = connection->node;
  Node& node = nodes_[index];
  node.connections.remove_if([connection](const Connection& c) { return &c == connection; });
  if (!node.connections.empty()) return handler_.met(node.theirs);
  handler_.gone(index);
  fail_waiting(index, ECONNRESET, kBroken);
}

// ---- outside

Control::Control(ControlOptions options, ControlHandler* handler, Clock& clock)
    : loop_(std::make_unique<Loop>(std::move(options), handler, clock)) {}

Control::~Control() { stop(); }

Status Control::start() {
  uint16_t port = 0;
  MONARCH_TRY(loop_->open(&port));
  port_ = port;
  if (const int error = os::start_thread(&loop_->thread, [this] { loop_->run(); }); error != 0)
    return errno_error("start the peers' thread", error);
  return {};
}

void Control::stop() { loop_->stop(); }

void Control::tell(NodeIndex node, std::string message) {
  loop_->post([loop = loop_.get(), node, by = loop_->caller(), text = std::move(message)]() mutable {
    loop->send(node, std::move(text), by);
  });
}

void Control::tell_if_met(NodeIndex node, std::string message) {
  loop_->post([loop = loop_.get(), node, by = loop_->caller(), text = std::move(message)]() mutable {
    if (loop->is_met(node)) loop->send(node, std::move(text), by);
  });
}

void Control::ring_after(int ms) {
  loop_->post([loop = loop_.get(), ms] { loop->ring_after(ms); });
}

void Control::soon(std::function<void()> work) { loop_->post(std::move(work)); }

Result<Reply> Control::ask(NodeIndex node, std::string message, int patience_ms) {
  return loop_->ask(node, std::move(message), patience_ms);
}

void Control::look(NodeIndex node) {
  loop_->post([loop = loop_.get(), node] { loop->look(node); });
}

}  // namespace monarch
