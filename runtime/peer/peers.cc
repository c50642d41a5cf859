// SPDX-License-Identifier: Apache-2.0
#include "runtime/peer/peers.h"

#include <algorithm>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/peer/report.h"
#include "runtime/peer/socket.h"

namespace monarch {
namespace {

// A job's nodes do not begin at the same moment: that one is not there yet is no error.
constexpr int64_t kMsNs = 1'000'000, kBeginNs = patience::kPeerBeginMs * kMsNs;
constexpr int kAnswerMs = patience::kPeerSilenceMs;  // for whatever a node is asked
constexpr int64_t kAnswerNs = kAnswerMs * kMsNs;
constexpr size_t kEntries = 4 << 20;  // of the directory

// Between two questions to a node that asks others itself.
constexpr int64_t kFirstNapNs = patience::kFirstPollNs, kLongestNapNs = patience::kPeerNapMs * kMsNs;

}  // namespace

Peers::Peers(ControlOptions options, PeersHandler* handler, Clock& clock)
    : options_(std::move(options)),
      handler_(*handler),
      clock_(clock),
      began_ns_(now_ns()),
      own_(options_.hello.node),
      count_(static_cast<uint32_t>(options_.nodes.size())),
      directory_(kEntries, options_.hello.incarnation),
      members_(own_, count_),
      gathering_(&members_),
      random_(static_cast<std::minstd_rand::result_type>(options_.hello.incarnation)),
      ports_(count_),
      unheard_(count_) {
  ControlHandler* const hears = this;
  control_ = std::make_unique<Control>(options_, hears, clock_);
  FetchOptions fetches;
  fetches.peers = options_;
  fetches.most_idle = kept_connections(count_, descriptor_limit());
  Whereabouts* const nodes = this;
  fetch_ = std::make_unique<Fetch>(std::move(fetches), nodes, clock_);
}

void Peers::rings() {
  remind();
  remind_later();
  handler_.rings();
}

Status Peers::start() { return control_->start(); }
void Peers::stop() { control_->stop(); }

void Peers::resume() {
  for (NodeIndex node = 0; node < count_; ++node)
    if (node != own_) gone(node);
}

PeerCounts Peers::counts() {
  const MutexLock hold(lock_);
  PeerCounts counts = counts_;
  counts.read_again = directory_.read_again();
  return counts;
}

// ---- where a file is

std::optional<NodeIndex> Peers::keeper_of(const FileKey& key) {
  const std::optional<NodeIndex> keeper = members_.keeper_of(key, now_ns());
  if (const NodeIndex home = home_of(key, count_); keeper != home) note_missed(home);
  return keeper;
}

void Peers::note_missed(NodeIndex home) { uninformed_[home].untold |= !members_.can_ask(home, now_ns()); }

// One that was only late has not been gone for anybody: nothing else would tell it.
void Peers::tell_missed(NodeIndex home) {
  Missed missed;
  {
    const MutexLock hold(lock_);
    const auto at = uninformed_.find(home);
    if (at == uninformed_.end() || !at->second.untold || !members_.can_ask(home, now_ns())) return;
    at->second.untold = false;
    missed.acted = at->second.acted ? 1 : 0;
  }
  control_->tell(home, encode(missed));
}

Peers::Route Peers::meaning_of(const Directory::Answer& answer) const {
  Route route;
  if (const Read* read = std::get_if<Read>(&answer)) {
    route.lease = read->lease;
  } else if (const Have* have = std::get_if<Have>(&answer)) {
    route.how = Route::How::kGet;
    route.holders = have->holders;
    route.identity = have->identity;
  } else if (const Busy* busy = std::get_if<Busy>(&answer)) {
    route.how = Route::How::kGet;
    route.holders = {busy->reader};
    route.follow = true;
  } else {
    route.how = Route::How::kPass;
  }
  // Of nodes that are none, and of this one, nothing can be got.
  std::erase_if(route.holders, [this](NodeIndex node) { return node >= count_ || node == own_; });
  if (route.how == Route::How::kGet && route.holders.empty()) route.how = Route::How::kRead;
  return route;
}

std::optional<Peers::Route> Peers::meaning_of(const Reply& reply) const {
  const auto as = [&](const auto& message) -> std::optional<Route> {
    if (!message) return {};
    return meaning_of(Directory::Answer(*message));
  };
  switch (reply.header.type) {
    case MessageType::kRead:
      return as(decode<Read>(reply.body));
    case MessageType::kHave:
      return as(decode<Have>(reply.body));
    case MessageType::kBusy:
      return as(decode<Busy>(reply.body));
    case MessageType::kPass:
      return as(decode<Pass>(reply.body));
    default:
      return {};
  }
}

std::optional<Directory::Answer> Peers::answer_to(const FileKey& key, NodeIndex asks, Waits waits) {
  const NodeIndex home = home_of(key, count_), deputy = deputy_of(key, count_);
  const int64_t now = now_ns();
  std::vector<NodeIndex> ask, looks;
  std::optional<Directory::Answer> answer;
  {
    const MutexLock hold(lock_);
    NodeIndex reader = 0;
    int64_t until_ns = 0;
    const Directory::Known known = directory_.known(key, now, &reader, &until_ns);
    const bool silent = known == Directory::Known::kSilent && home != own_;
    if (silent) gathering_.doubt(home, reader, until_ns);
    const bool asks_others = known == Directory::Known::kNo || silent;
    const bool later = asks_others && gathering_.waits(home, deputy, now, kAnswerNs, &ask, &looks);
    if (!later || waits == Waits::kNo) answer = directory_.want(key, asks, now);
    if (home != own_) {
      note_missed(home);
      uninformed_[home].acted = true;
    }
  }
  for (const NodeIndex node : ask) gather_from(node, home);
  if (const Busy* busy = answer ? std::get_if<Busy>(&*answer) : nullptr) looks.push_back(busy->reader);
  for (const NodeIndex node : looks) control_->look(node);
  return answer;
}

void Peers::nap(int64_t* ns) {
  options_.note_wait();
  clock_.sleep_ns(*ns);
  *ns = std::min(2 * *ns, kLongestNapNs);
}

Peers::Route Peers::locate_here(const FileKey& key) {
  const int64_t until_ns = now_ns() + kAnswerNs;
  for (int64_t nap_ns = kFirstNapNs; now_ns() < until_ns; nap(&nap_ns))
    if (const std::optional<Directory::Answer> answer = answer_to(key, own_, Waits::kYes))
      return meaning_of(*answer);
  return meaning_of(*answer_to(key, own_, Waits::kNo));
}

Peers::Route Peers::locate(const FileKey& key) {
  Route route = ask(key);
  const MutexLock hold(lock_);
  if (route.how == Route::How::kRead)
    reading_[key] = route.lease;
  else
    reading_.erase(key);  // by what others know, if it was
  return route;
}

Peers::Route Peers::ask(const FileKey& key) {
  constexpr int kMostAttempts = 3;  // the home, once more if a connection was broken, and its deputy
  int64_t nap_ns = kFirstNapNs, until_ns = now_ns() + kAnswerNs;
  for (int attempt = 0; attempt < kMostAttempts;) {
    NodeIndex keeper = own_;
    {
      const MutexLock hold(lock_);
      const std::optional<NodeIndex> found = keeper_of(key);
      if (!found) break;
      keeper = *found;
    }
    if (keeper == own_) return locate_here(key);
    const Waits waits = now_ns() < until_ns ? Waits::kYes : Waits::kNo;
    const Result<Reply> reply = control_->ask(keeper, encode(Want{key, waits}), kAnswerMs);
    const std::optional<Route> route = reply.ok() ? meaning_of(*reply) : std::nullopt;
    const bool later = reply.ok() && reply->header.type == MessageType::kLater;
    {
      const MutexLock hold(lock_);
      if (route || later) {
        members_.answered(keeper);
      } else if (reply.ok()) {
        members_.wrong(keeper);
      } else if (reply.error().code == ETIMEDOUT) {
        ++counts_.timeouts;
        members_.late(keeper, now_ns());
      }
    }
    if (route || later) tell_missed(keeper);
    if (route) return *route;
    if (!later) {
      ++attempt;
      until_ns = now_ns() + kAnswerNs;  // for whoever is asked next
    } else if (waits == Waits::kYes) {
      nap(&nap_ns);
    } else {
      break;  // no home answers so
    }
  }
  const MutexLock hold(lock_);
  ++counts_.alone;
  return Route();
}

// ---- what other nodes ask and tell

std::string Peers::wanted(NodeIndex from, const Want& want) {
  const NodeIndex home = home_of(want.key, count_);
  if (!keeps(want.key)) return encode(Read{0});
  const std::optional<Directory::Answer> answer = answer_to(want.key, from, want.waits);
  if (!answer) return encode(Later());
  std::string reply = std::visit([](const auto& message) { return encode(message); }, *answer);
  {
    const MutexLock hold(lock_);
    if (home == own_ || !members_.can_ask(home, now_ns())) return reply;
  }
  // As its deputy, this node looks after the home: it hears of all once it can be reached. Others may be
  // asking it meanwhile, if it was only late: it sends nobody else to read the file.
  const Read* read = std::get_if<Read>(&*answer);
  const bool leased = read && read->lease != 0;
  control_->tell(home, leased ? encode(Reading{{want.key, from, read->lease}}) : encode(Ping()));
  return reply;
}

std::string Peers::message(NodeIndex from, const MessageHeader& header, std::string_view body) {
  const auto on = [&](const auto& message, const auto& use) {
    if (message) use(*message);
    const MutexLock hold(lock_);
    if (!message) members_.wrong(from);
  };
  std::string reply;
  switch (header.type) {
    case MessageType::kWant:
      on(decode<Want>(body), [&](const Want& want) { reply = wanted(from, want); });
      break;
    case MessageType::kProgress:
      on(decode<ReadProgress>(body), [&](const ReadProgress& p) {
        const MutexLock hold(lock_);
        directory_.progress(p.key, from, now_ns());
      });
      break;
    case MessageType::kDone:
      on(decode<Done>(body), [&](const Done& done) {
        {
          const MutexLock hold(lock_);
          if (keeps(done.key)) directory_.done(done, from);
        }
        if (done.result == ReadResult::kHeld) pass_on({done.key, from, done.identity});
      });
      break;
    case MessageType::kAnnounce:
      on(decode<Announce>(body), [&](const Announce& announce) {
        const MutexLock hold(lock_);
        const HeldFile& file = announce.file;
        if (file.holder < count_ && keeps(file.key)) directory_.announce(file);
      });
      break;
    case MessageType::kReading:
      on(decode<Reading>(body), [&](const Reading& reading) {
        const MutexLock hold(lock_);
        const FileInReading& file = reading.file;
        if (file.reader < count_ && keeps(file.key)) directory_.reading(file, now_ns());
      });
      break;
    case MessageType::kGather:
      on(decode<Gather>(body), [&](const Gather& gather) { reply = encode(gathered_for(from, gather)); });
      break;
    case MessageType::kGathered:
      on(decode<Gathered>(body), [&](const Gathered& gathered) {
        if (!take(from, gathered)) wrong(from);
      });
      break;
    case MessageType::kMissed:
      on(decode<Missed>(body), [&](const Missed& missed) {
        const MutexLock hold(lock_);
        gathering_.missed(from, missed.acted != 0, now_ns());
      });
      break;
    case MessageType::kLost:
      on(decode<Lost>(body), [&](const Lost& lost) {
        if (lost.holder == own_ && from != own_) handler_.doubted(lost.key);
        const MutexLock hold(lock_);
        directory_.lost(lost.key, lost.holder);
      });
      break;
    case MessageType::kMark:
      on(decode<Mark>(body), [&](const Mark& mark) {
        if (mark.ends_all()) return set_unheard(from, false);
        handler_.changed(mark);
      });
      break;
    case MessageType::kWalk:
      on(decode<Walk>(body), [&](const Walk& question) { reply = encode(handler_.walked(question)); });
      break;
    case MessageType::kCount:
      on(decode<Count>(body), [&](const Count& count) {
        handler_.counted(from, count);
        reply = encode(Pong());
      });
      break;
    case MessageType::kTold:
      on(decode<Told>(body), [&](const Told& told) {
        if (!handler_.take(told)) return wrong(from);
        reply = encode(Heard{told.turn});
      });
      break;
    case MessageType::kHeard:
      on(decode<Heard>(body), [&](const Heard& heard) { handler_.heard(from, heard); });
      break;
    default:
      break;  // of a later version, or out of place
  }
  return reply;
}

void Peers::met(const Hello& hello) {
  std::optional<Missed> missed;
  {
    const MutexLock hold(lock_);
    if (members_.met(hello.node, hello.incarnation)) {
      directory_.gone(hello.node);
      gathering_.gone(hello.node);
      uninformed_.try_emplace(hello.node);
    }
    members_.answered(hello.node);
    ports_[hello.node] = hello.port;
    data_addresses_.erase(hello.node);
    if (!hello.data_address.empty()) data_addresses_[hello.node] = hello.data_address;
    if (const auto at = uninformed_.find(hello.node); at != uninformed_.end()) {
      at->second.untold = false;
      missed = Missed{at->second.acted ? uint8_t{1} : uint8_t{0}};
    }
    disconnected_.erase(hello.node);
  }
  // At an agent's end one connection goes after the other: it is not dialled for these.
  for (const Mark& mark : handler_.changes()) control_->tell_if_met(hello.node, encode(mark));
  control_->tell_if_met(hello.node, encode(Mark()));
  handler_.met(hello.node, hello.incarnation);
  if (missed) control_->tell(hello.node, encode(*missed));
}

void Peers::set_unheard(NodeIndex node, bool unheard) {
  std::ptrdiff_t nodes = 0;
  {
    const MutexLock hold(lock_);
    if (unheard_[node] == unheard) return;
    unheard_[node] = unheard;
    nodes = std::count(unheard_.begin(), unheard_.end(), true);
  }
  handler_.unheard(static_cast<uint32_t>(nodes));
}

// Whatever it was: its leases end at once, and what it held is read again by who asks first. If it is there
// still, it announces that.
void Peers::gone(NodeIndex node) {
  set_unheard(node, true);
  fetch_->forget(node);
  handler_.gone(node);
  {
    const MutexLock hold(lock_);
    directory_.gone(node);
    gathering_.gone(node);
    uninformed_.try_emplace(node);
    disconnected_.insert(node);
    gone_ns_ = now_ns();
  }
  remind_later();
}

void Peers::unreachable(NodeIndex node, Away why) {
  fetch_->forget(node);
  {
    const MutexLock hold(lock_);
    counts_.errors += ports_[node] != 0 || now_ns() - began_ns_ > kBeginNs;
    members_.unreachable(node, now_ns(), why == Away::kRefused);
    directory_.silent(node, now_ns());
    gathering_.disconnected(node);
    if (why == Away::kSilent) return;  // what it is told it still gets, or it will be gone
    uninformed_.try_emplace(node);
    disconnected_.insert(node);
  }
  handler_.unreachable(node);
  remind_later();
}

void Peers::late(NodeIndex node) {
  {
    const MutexLock hold(lock_);
    members_.answered_late(node);
  }
  tell_missed(node);
}

// A connection that is late on a busy machine is as lost as any other: changes are not to wait for long.
void Peers::remind_later() {
  constexpr int64_t kToTellMs = patience::kPeerRestMs;  // not at once: a job's agents end one after the other
  const bool tells = handler_.has_changes();
  int64_t due = Members::kNever;
  {
    const MutexLock hold(lock_);
    for (const NodeIndex node : disconnected_)
      if (tells || unheard_[node]) due = std::min(due, members_.alone_until(node));
  }
  if (due == Members::kNever) return;
  const int64_t soon_ms = tells ? kToTellMs : kToHearNs / 1000000;
  control_->ring_after(static_cast<int>(std::max((due - now_ns()) / 1000000 + 1, soon_ms)));
}

void Peers::pass_on(const HeldFile& file) {
  const NodeIndex home = home_of(file.key, count_);
  if (home == own_) return;
  {
    const MutexLock hold(lock_);
    if (!members_.can_ask(home, now_ns())) return note_missed(home);
  }
  control_->tell(home, encode(Announce{file}));
}

// ---- who holds what

bool Peers::is_of(const FileKey& key, NodeIndex home, NodeIndex keeper) const {
  return home_of(key, count_) == home && (keeper == home || deputy_of(key, count_) == keeper);
}

// What is being read comes first: it is held before it is not read any more.
Gathered Peers::gathered_for(NodeIndex asks, const Gather& gather) {
  Gathered gathered;
  gathered.share = gather.share;
  const auto takes = [&](const FileKey& key) { return is_of(key, gather.share, asks); };
  {
    const MutexLock hold(lock_);
    for (const auto& [key, lease] : reading_)
      if (takes(key) && gathered.reading.size() < Gathered::kMost)
        gathered.reading.push_back({key, own_, lease});
  }
  HeldPage page = handler_.held(gather, takes);
  gathered.log = page.log;
  gathered.from = page.from;
  gathered.next = page.next;
  gathered.ended = page.ended ? 1 : 0;
  gathered.files = std::move(page.files);
  for (HeldFile& file : gathered.files) file.holder = own_;
  if (asks != gather.share) return gathered;
  const MutexLock hold(lock_);
  const bool missed = uninformed_.erase(asks) > 0;
  const int64_t older_ns = now_ns() - began_ns_ - static_cast<int64_t>(gather.age_ms) * 1000000;
  gathered.earlier = missed || older_ns > kBeginNs ? 1 : 0;
  return gathered;
}

bool Peers::take(NodeIndex from, const Gathered& gathered) {
  const int64_t now = now_ns();
  const auto is_sent = [&](const FileKey& key, NodeIndex who) {
    return who == from && is_of(key, gathered.share, own_);
  };
  for (const HeldFile& file : gathered.files)
    if (!is_sent(file.key, file.holder)) return false;
  for (const FileInReading& file : gathered.reading)
    if (!is_sent(file.key, file.reader)) return false;
  bool more = false, right = false;
  {
    const MutexLock hold(lock_);
    for (const HeldFile& file : gathered.files) directory_.announce(file);
    for (const FileInReading& file : gathered.reading) directory_.reading(file, now);
    right = gathering_.heard(from, gathered, now, &more);
  }
  if (more) gather_from(from, gathered.share);
  late(from);
  return right;
}

void Peers::gather_from(NodeIndex node, NodeIndex home) {
  Gather question;
  {
    const MutexLock hold(lock_);
    question = gathering_.question(home, node);
    question.age_ms = static_cast<uint64_t>((now_ns() - began_ns_) / 1000000);
  }
  if (node != own_) return control_->tell(node, encode(question));
  control_->soon([this, question] { (void)take(own_, gathered_for(own_, question)); });
}

// ---- what this node tells

void Peers::tell_keeper(const FileKey& key, const std::string& text) {
  std::optional<NodeIndex> keeper;
  {
    const MutexLock hold(lock_);
    keeper = keeper_of(key);
  }
  if (!keeper) return;  // the home is told that it missed something
  if (*keeper != own_) return control_->tell(*keeper, text);
  (void)message(own_, *decode_header(text), std::string_view(text).substr(MessageHeader::kBytes));
}

void Peers::progress(const FileKey& key) { tell_keeper(key, encode(ReadProgress{key})); }

void Peers::done(const Done& done) {
  {
    const MutexLock hold(lock_);
    const auto at = reading_.find(done.key);
    // It may be read anew since, by another lease.
    if (at != reading_.end() && (at->second == done.lease || done.result == ReadResult::kHeld))
      reading_.erase(at);
  }
  tell_keeper(done.key, encode(done));
}

void Peers::lost(const FileKey& key) { tell_keeper(key, encode(Lost{key, own_})); }

void Peers::changed(const Mark& mark) {
  for (NodeIndex node = 0; node < count_; ++node)
    if (node != own_) control_->tell(node, encode(mark));
}

// Once it is met, it is told all.
void Peers::remind() {
  constexpr int64_t kRestNs =
      patience::kPeerRestMs * kMsNs;  // a host that does not answer is dialled for longer
  const bool tells = handler_.has_changes();
  std::vector<NodeIndex> missed;
  {
    const MutexLock hold(lock_);
    if (disconnected_.empty() || now_ns() - reminded_ns_ < kRestNs) return;
    const bool hears = now_ns() - gone_ns_ >= kToHearNs;
    for (const NodeIndex node : disconnected_)
      if ((tells || (hears && unheard_[node])) && members_.can_ask(node, now_ns())) missed.push_back(node);
    if (!missed.empty()) reminded_ns_ = now_ns();
  }
  for (const NodeIndex node : missed) control_->tell(node, encode(Ping()));
}

// ---- the walk

Result<List> Peers::ask_walk(NodeIndex node, const Walk& question) {
  {
    const MutexLock hold(lock_);
    if (!members_.can_ask(node, now_ns())) return Error{EAGAIN, "it is left alone for a while"};
  }
  Result<Reply> reply = control_->ask(node, encode(question), kAnswerMs);
  std::optional<List> list;
  if (reply.ok() && reply->header.type == List::kType) list = decode<List>(reply->body);
  if (list) {
    {
      const MutexLock hold(lock_);
      members_.answered(node);
    }
    tell_missed(node);
    return std::move(*list);
  }
  const MutexLock hold(lock_);
  if (reply.ok()) {
    members_.wrong(node);
    return Error{EAGAIN, "it gave no answer"};
  }
  if (reply.error().code == ETIMEDOUT) {
    ++counts_.timeouts;
    members_.late(node, now_ns());
  }
  return reply.error();
}

void Peers::wrong(NodeIndex node) {
  const MutexLock hold(lock_);
  members_.wrong(node);
}

void Peers::count(const Count& count) {
  if (count.last == 0) {
    bool there = false;
    {
      const MutexLock hold(lock_);
      there = members_.can_ask(Report::kFirst, now_ns());
    }
    if (there) control_->tell(Report::kFirst, encode(count));
    return;
  }
  const int64_t until = now_ns() + patience::kPeerLastMs * kMsNs;
  for (int64_t left = until - now_ns(); left > 0; left = until - now_ns()) {
    const Result<Reply> reply =
        control_->ask(Report::kFirst, encode(count), static_cast<int>(left / 1000000) + 1);
    // A connection that is broken was with an agent that has left meanwhile, or with one that is there anew.
    if (reply.ok() || reply.error().code != ECONNRESET) return;
  }
}

// ---- the file

uint16_t Peers::port(NodeIndex node) {
  {
    const MutexLock hold(lock_);
    if (ports_[node] != 0) return ports_[node];
  }
  (void)control_->ask(node, encode(Ping()), kAnswerMs).ok();
  const MutexLock hold(lock_);
  return ports_[node];
}

std::string Peers::data_address(NodeIndex node) {
  const MutexLock hold(lock_);
  const auto at = data_addresses_.find(node);
  return at == data_addresses_.end() ? "" : at->second;
}

// Holders that can be asked, each as likely to be the first; two at most.
std::vector<NodeIndex> Peers::in_turn(const Route& route) {
  constexpr size_t kMostTries = 2;
  std::vector<NodeIndex> holders;
  const MutexLock hold(lock_);
  for (const NodeIndex node : route.holders)
    if (members_.can_ask(node, now_ns())) holders.push_back(node);
  std::shuffle(holders.begin(), holders.end(), random_);
  if (holders.size() > kMostTries) holders.resize(kMostTries);
  return holders;
}

bool Peers::note(const FileKey& key, NodeIndex holder, Fetched fetched) {
  bool lost = false, doubted = false, goes_on = true;
  {
    const MutexLock hold(lock_);
    switch (fetched) {
      case Fetched::kOk:
        members_.answered(holder);
        goes_on = false;
        break;
      case Fetched::kGone:
        lost = true;
        break;
      case Fetched::kWrong:
        ++counts_.wrong;
        lost = doubted = true;
        if (members_.wrong(holder))
          spdlog::warn("node {} sent wrong bytes again: it is not asked any more", holder);
        break;
      case Fetched::kLate:
        ++counts_.timeouts;
        members_.late(holder, now_ns());
        break;
      case Fetched::kUnreachable:
        ++counts_.errors;
        members_.unreachable(holder, now_ns());
        break;
      case Fetched::kBroken:
        ++counts_.errors;
        break;
      case Fetched::kBusy:
      case Fetched::kNotYet:
        break;
      case Fetched::kChanged:
      case Fetched::kRefused:
        goes_on = false;
        break;
    }
  }
  if (doubted) control_->tell(holder, encode(Lost{key, holder}));
  if (lost) tell_keeper(key, encode(Lost{key, holder}));
  return goes_on;
}

Fetched Peers::get(const FileKey& key, const Route& route, const Get& get, char* buffer,
                   const Receiver& receiver) {
  Get left = get;
  if (!route.follow) left.follow = Follow::kNo;
  // What the home says that it is; else what the first holder says. Another holder goes on with the same
  // file.
  std::optional<FileIdentity> identity;
  if (!route.follow) identity = route.identity;
  std::vector<uint64_t> checks;
  const Receiver counted = {[&](const FileIdentity& now) {
                              if (!identity) identity = now;
                              identity->check = now.check;
                              return *identity == now && receiver.begin(now);
                            },
                            [&](uint64_t offset, const char* bytes, size_t n, uint64_t check) {
                              if (!receiver.piece(offset, bytes, n, check)) return false;
                              checks.push_back(check);
                              left.offset = offset + kPieceBytes;
                              left.bytes -= std::min(left.bytes, kPieceBytes);
                              return true;
                            }};
  Fetched fetched = Fetched::kUnreachable;
  for (const NodeIndex holder : in_turn(route)) {
    fetched = fetch_->get(holder, left, buffer, counted);
    const bool whole = get.offset == 0 && get.bytes == 0 && route.identity.check != 0;
    const bool ended = fetched == Fetched::kOk;
    if (ended && whole && check_of(checks) != route.identity.check) fetched = Fetched::kWrong;
    if (!note(key, holder, fetched) || ended) break;
  }
  return fetched;
}

}  // namespace monarch
