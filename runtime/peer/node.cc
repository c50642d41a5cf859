// SPDX-License-Identifier: Apache-2.0
#include "runtime/peer/node.h"

#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "runtime/base/log.h"
#include "runtime/base/os.h"
#include "runtime/peer/changes.h"
#include "runtime/peer/handshake.h"
#include "runtime/peer/holdings.h"
#include "runtime/peer/peer_source.h"
#include "runtime/peer/peers.h"
#include "runtime/peer/report.h"
#include "runtime/peer/serve.h"
#include "runtime/peer/share_walk.h"
#include "runtime/peer/socket.h"
#include "runtime/peer/told_values.h"

namespace monarch {
namespace {

template <typename T>
uint64_t digest(const std::vector<T>& values) {
  return XXH3_64bits(values.data(), values.size() * sizeof values[0]);
}

// Nodes on which a root is another directory do not get each other's files. Device numbers may differ from
// node to node.
uint64_t dataset_digest(const Dataset& dataset) {
  std::vector<uint64_t> all;
  for (const DatasetRoot& root : dataset.roots) {
    struct stat st {};
    struct statfs fs {};
    (void)os::fstat(root.fd.get(), &st);
    (void)os::fstatfs(root.fd.get(), &fs);
    all.push_back(XXH3_64bits(root.path.data(), root.path.size()));
    all.push_back(st.st_ino);
    all.push_back(static_cast<uint64_t>(fs.f_type));
  }
  return digest(all);
}

uint64_t settings_digest(const PeerNodeOptions& job, const AgentConfig& config) {
  return digest(std::vector<uint64_t>{config.stage_wait_max, kPieceBytes, kBoardVersion, kNodeWords,
                                      job.encrypt, job.nodes.size()});
}

// Agents that went on after each other on one board have numbers in a row; what they count is on that board.
constexpr uint64_t kOfOneBoard = 256;

Result<uint64_t> next_incarnation(Board* board) {
  uint64_t n = 0;
  if (board->incarnation.load() == 0) {
    if (::getrandom(&n, sizeof n, 0) != sizeof n) return errno_error("getrandom");
    board->incarnation = std::max(n - n % kOfOneBoard, kOfOneBoard);
  }
  return board->incarnation.fetch_add(1);
}

uint64_t counted_by(uint64_t incarnation) { return incarnation / kOfOneBoard; }

class Node final : public PeerNode, public PeersHandler {
 public:
  Node(const Parts& parts, Clock& clock) : parts_(parts), clock_(clock), changes_(parts.board) {}
  ~Node() override { end(); }
  Status create(const PeerNodeOptions& job, const AgentConfig& config);

  Source* source() override { return &*source_; }
  Status start(Handlers handlers) override;
  void stop() override { end(); }
  uint16_t port() const override { return peers_->port(); }
  void walk(Walker* walker, int threads) override { walk_->start(walker, threads); }
  void tell_changes() override;
  void saw(Ref ref) override { told_->learned(ref); }
  std::vector<NodeTold> told() const override { return report_->told(); }
  void account(int64_t until_ns) override;

 private:
  HeldPage held(const Gather& gather, const std::function<bool(const FileKey&)>& takes) override {
    return holdings_->page(gather, takes);
  }
  void changed(const Mark& mark) override { changes_.take(mark); }
  std::vector<Mark> changes() override { return changes_.all(); }
  bool has_changes() override { return changes_.any(); }
  void doubted(const FileKey& key) override {
    holdings_->doubt(key);
    holdings_->look();
  }
  List walked(const Walk& question) override { return walk_->answer(question); }
  void data(Fd socket, Tls tls) override { serve_->add(std::move(socket), std::move(tls)); }
  void met(NodeIndex node, uint64_t incarnation) override {
    report_->met(node, counted_by(incarnation));
    told_->met(node, incarnation);
  }
  void gone(NodeIndex node) override {
    report_->gone(node);
    told_->gone(node);
  }
  void counted(NodeIndex from, const Count& count) override { report_->take(from, count); }
  bool take(const Told& told) override { return told_->take(told); }
  void heard(NodeIndex from, const Heard& heard) override { told_->heard(from, heard); }
  void unreachable(NodeIndex node) override { told_->gone(node); }
  void unheard(uint32_t nodes) override {
    parts_.board->header.unheard.fetch_add(nodes - unheard_.exchange(nodes), std::memory_order_acq_rel);
  }
  void rings() override { told_->rings(); }

  void tell_counts();
  void note_counts();
  void end();

  const Parts parts_;
  Clock& clock_;
  NodeIndex own_ = 0;
  uint32_t count_ = 0;
  bool resumes_ = false;
  std::atomic<uint32_t> unheard_{0};
  PeerTls tls_;
  Handlers handlers_;
  Changes changes_;
  Mutex noting_;
  std::map<AgentCounter, uint64_t> noted_ GUARDED_BY(noting_);
  std::optional<Report> report_;
  std::optional<Holdings> holdings_;
  std::optional<ToldValues> told_;
  std::optional<Serve> serve_;
  std::optional<Peers> peers_;
  std::optional<PeerSource> source_;
  std::optional<ShareWalk> walk_;
};

Status Node::create(const PeerNodeOptions& job, const AgentConfig& config) {
  Result<PeerTls> tls = PeerTls::create(job.identity, job.key);
  if (!tls.ok()) return tls.error();
  tls_ = tls.take();
  own_ = job.own;
  count_ = static_cast<uint32_t>(job.nodes.size());
  resumes_ = job.resumes;

  ControlOptions options;
  options.nodes = job.nodes;
  options.tls = &tls_;
  options.waits = &parts_.board->header.progress;
  options.after = job.encrypt ? Handshake::After::kEncrypted : Handshake::After::kClear;
  Hello& hello = options.hello;
  hello.node = job.own;
  hello.dataset = dataset_digest(*parts_.dataset);
  hello.settings = settings_digest(job, config);
  if (!job.network.empty()) {
    const std::optional<std::string> own = own_address_in(job.network);
    if (!own)
      spdlog::warn("peers: this node has no address in {}: data goes by {}", job.network,
                   job.nodes.at(job.own).host);
    if (own && *own != job.nodes.at(job.own).host) hello.data_address = *own;
  }
  const Result<uint64_t> incarnation = next_incarnation(parts_.board);
  if (!incarnation.ok()) return incarnation.error();
  hello.incarnation = *incarnation;

  std::vector<Medium> tiers;
  for (const Tier& tier : parts_.hierarchy->tiers()) tiers.push_back(tier.medium());
  report_.emplace(ReportOptions{parts_.board, std::move(tiers), own_, count_, counted_by(hello.incarnation)},
                  clock_);
  holdings_.emplace(
      HoldingsOptions{parts_.catalog, parts_.hierarchy, parts_.board,
                      static_cast<uint32_t>(parts_.dataset->roots.size()), count_,
                      [this](const RelPath& path, uint32_t piece) { handlers_.wanted(path, piece); },
                      [this](Ref ref, Fd copy) { handlers_.spoilt(ref, std::move(copy)); }},
      clock_);
  constexpr size_t kFromEach = 4;  // what one of them keeps is with all others
  serve_.emplace(
      ServeOptions{.open = [this](const Get& get, GetResult* why) { return holdings_->open(get, why); },
                   .most_connections = kFromEach * kept_connections(count_, descriptor_limit())},
      clock_);
  ShareWalkOptions walk;
  walk.own = job.own;
  walk.nodes = static_cast<uint32_t>(job.nodes.size());
  walk.log = hello.incarnation;
  walk.ask = [this](NodeIndex node, const Walk& question) { return peers_->ask_walk(node, question); };
  walk.wrong = [this](NodeIndex node) { peers_->wrong(node); };
  walk_.emplace(std::move(walk), clock_);
  ToldValuesOptions told;
  told.catalog = parts_.catalog;
  told.dataset = parts_.dataset;
  told.board = parts_.board;
  told.own = job.own;
  told.nodes = count_;
  told.tell = [this](NodeIndex node, std::string message) { peers_->tell(node, std::move(message)); };
  told.ring_after = [this](int ms) { peers_->ring_after(ms); };
  told_.emplace(std::move(told), clock_);
  peers_.emplace(std::move(options), this, clock_);
  source_.emplace(parts_.catalog, parts_.dataset, parts_.board, parts_.pfs, &*peers_, &*holdings_, &*told_,
                  job.bandwidth, config.threads, clock_);
  return {};
}

Status Node::start(Handlers handlers) {
  handlers_ = std::move(handlers);
  MONARCH_TRY(serve_->start());
  MONARCH_TRY(peers_->start());
  if (resumes_) peers_->resume();
  parts_.board->nodes.store(count_, std::memory_order_relaxed);
  return {};
}

// Nobody is asked any more before those who ask are hung up on.
void Node::end() {
  if (peers_) peers_->stop();
  if (walk_) walk_->stop();
  if (serve_) serve_->stop();
  if (holdings_) holdings_->stop();
}

void Node::tell_changes() {
  while (const std::optional<Mark> mark = changes_.next()) peers_->changed(*mark);
  peers_->remind();
  tell_counts();
}

void Node::tell_counts() {
  const int64_t now = clock_.now_ns();
  if (!report_->is_due(now)) return;
  note_counts();
  if (const std::optional<Count> count = report_->news(now)) peers_->count(*count);
}

// What others count by themselves.
void Node::note_counts() {
  const MutexLock hold(noting_);
  const PeerCounts counts = peers_->counts();
  const std::pair<AgentCounter, uint64_t> now[] = {{AgentCounter::peer_errors, counts.errors},
                                                   {AgentCounter::peer_timeouts, counts.timeouts},
                                                   {AgentCounter::peer_bad, counts.wrong},
                                                   {AgentCounter::served_files, serve_->sent_files()},
                                                   {AgentCounter::served_bytes, serve_->sent_bytes()},
                                                   {AgentCounter::dup_files, counts.read_again}};
  for (const auto& [counter, n] : now) add(parts_.board, counter, n - std::exchange(noted_[counter], n));
}

void Node::account(int64_t until_ns) {
  note_counts();
  if (own_ != Report::kFirst) return peers_->count(report_->last());
  const int64_t left_ms = (until_ns - clock_.now_ns()) / 1000000;
  const int patience_ms = static_cast<int>(std::max<int64_t>(left_ms, 0));
  report_->wait(patience_ms, std::min(patience_ms, patience::kPeerLastMs));
  note_counts();  // of what these still got
}

}  // namespace

Result<std::unique_ptr<PeerNode>> PeerNode::create(const PeerNodeOptions& options, const AgentConfig& config,
                                                   const Parts& parts, Clock& clock) {
  auto node = std::make_unique<Node>(parts, clock);
  MONARCH_TRY(node->create(options, config));
  return std::unique_ptr<PeerNode>(std::move(node));
}

}  // namespace monarch
