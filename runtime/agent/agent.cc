// SPDX-License-Identifier: Apache-2.0
#include "runtime/agent/agent.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <future>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "build_config.h"
#include "runtime/agent/load_peers.h"
#include "runtime/agent/nodes_file.h"
#include "runtime/agent/order_watch.h"
#include "runtime/agent/progress.h"
#include "runtime/agent/take_over.h"
#include "runtime/agent/use_watch.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/base/os.h"
#include "runtime/base/patience.h"
#include "runtime/base/remove_tree.h"
#include "runtime/base/size.h"
#include "runtime/config/dataset_rules.h"
#include "runtime/hierarchy/grant.h"
#include "runtime/hierarchy/hierarchy.h"
#include "runtime/hierarchy/job_room.h"
#include "runtime/hierarchy/locality.h"
#include "runtime/metadata/board.h"
#include "runtime/metadata/catalog.h"
#include "runtime/metadata/dataset.h"
#include "runtime/metadata/run_file.h"
#include "runtime/metadata/walker.h"
#include "runtime/peer/node.h"
#include "runtime/placement/pfs_source.h"
#include "runtime/placement/placement.h"

namespace monarch {
namespace {

constexpr int milliseconds(int64_t ns) { return static_cast<int>(ns / 1'000'000); }

// All that serves one job. Members are destroyed in reverse order: threads before what they use.
struct Service {
  std::optional<Rates> rates;
  std::optional<Dataset> dataset;
  std::optional<Hierarchy> hierarchy;
  std::optional<BoardFile> board;
  std::unique_ptr<ChangeWatch> watch;
  std::unique_ptr<Catalog> catalog;
  std::unique_ptr<PfsSource> pfs;
  std::unique_ptr<PeerNode> peers;
  std::string why_alone;  // though the job has other nodes
  std::unique_ptr<PlacementHandler> placement;
  std::unique_ptr<Walker> walker;
  std::optional<NodesFile> nodes;  // if it has peers
  std::unique_ptr<ProgressFile> progress;
  std::atomic<bool> stopping{false};
  std::thread requests, locality, comparing;
};

void serve_requests(Service* service) {
  Board* shared = service->board->get();
  RequestRing ring(shared);
  SeenSlots seen(shared);
  int64_t last_seen = 0;
  const auto roots = static_cast<uint32_t>(service->dataset->roots.size());
  while (!service->stopping) {
    ring.drain(roots, [service](const RelPath& path, uint32_t chunk) {
      if (chunk == kWholeFile) {
        service->placement->demand(path);
      } else {
        service->placement->demand_chunk(path, chunk);
      }
    });
    if (service->peers) service->peers->tell_changes();
    const int64_t now = system_clock().now_ns();
    const auto take = [service](const Seen& file) {
      if (service->catalog->add_seen(file) && service->peers) service->peers->saw(file.entry);
    };
    if (seen.drain(take)) last_seen = now;
    const bool more = last_seen != 0 && now - last_seen < patience::kSeenNs;
    ring.wait(milliseconds(more ? patience::kSeenNapNs : patience::kIdleLookNs), more ? kNaps : kSleeps,
              [&] { return more || seen.is_drained(); });
  }
}

void go_alone(std::string why, Service* service) {
  spdlog::warn("no peers: {}", why);
  service->why_alone = std::move(why);
}

// Without the library, or a port to listen at, the job goes on as on one node.
Status join_peers(const AgentOptions& agent, LoadingPeers* library, Service* service) {
  const PeerMembership& job = *agent.peers;
  const Config& config = agent.config;
  const Result<CreatePeerNode*> create = library->get();
  if (!create.ok()) {
    go_alone(create.error().text, service);
    return {};
  }
  Board* board = service->board->get();
  PeerNodeOptions options;
  for (const NodeAddress& node : job.nodes) options.nodes.push_back({node.host, node.ports});
  options.own = job.own;
  options.key = job.key;
  options.identity = job.identity;
  options.network = config.peer.network;
  options.encrypt = config.peer.encrypt;
  options.bandwidth = config.peer.bandwidth;
  options.resumes = agent.resume;
  Result<std::unique_ptr<PeerNode>> node(nullptr);
  if (!(*create)(
          PACKAGE_VERSION, options, config.agent,
          {service->catalog.get(), &*service->hierarchy, &*service->dataset, board, service->pfs.get()},
          system_clock(), &node)) {
    go_alone(agent.peers_library + " is of another version than " PACKAGE_VERSION "; install both anew",
             service);
    return {};
  }
  if (!node.ok()) return node.error();
  service->peers = node.take();
  // Nobody can want a piece, or be sent one, before the placement has begun a file.
  const Status listens = service->peers->start(
      {[service](const RelPath& path, uint32_t piece) { service->placement->demand_chunk(path, piece); },
       [service](Ref ref, Fd copy) { service->placement->withdraw(ref, std::move(copy)); }});
  if (!listens.ok()) {
    go_alone(listens.error().text, service);
    service->peers.reset();
    return {};
  }
  board->header.wakes_on_change.store(1, std::memory_order_release);
  return {};
}

Source* source_of(const Service& service) {
  return service.peers ? service.peers->source() : service.pfs.get();
}

void start_walk(int threads, Service* service) {
  if (service->peers)
    service->peers->walk(service->walker.get(), threads);
  else
    service->walker->start(threads);
}

void tell_granted(const Service& service) {
  size_t i = 0;
  for (const Tier& tier : service.hierarchy->tiers())
    service.board->get()->granted[i++].store(tier.quota(), std::memory_order_release);
}

// By where they are, now that they are open: nobody can put another directory in their place.
Status check_roots(const Config& config, const Dataset& dataset) {
  DatasetRules rules = config.datasets;
  for (const PolicySection& section : config.policies) {
    if (section.of != PolicySection::Of::kAll) continue;
    if (section.keys.allow_datasets) rules.allow = *section.keys.allow_datasets;
    if (section.keys.deny_datasets) rules.deny = *section.keys.deny_datasets;
  }
  if (rules.allow.empty() && rules.deny.empty()) return {};
  for (const DatasetRoot& root : dataset.roots) {
    char real[PATH_MAX];
    const ssize_t n =
        ::readlink(("/proc/self/fd/" + std::to_string(root.fd.get())).c_str(), real, sizeof real);
    if (n < 0) return errno_error("dataset " + root.path);
    MONARCH_TRY(check_rules(rules, std::string(real, static_cast<size_t>(n)), root.path));
  }
  return {};
}

// Whether files can be proved by their inode numbers; says of which dataset they cannot.
bool numbers_stay(const Dataset& dataset) {
  bool all = true;
  for (const DatasetRoot& root : dataset.roots) {
    if (root.numbers_stay) continue;
    spdlog::warn("dataset {}: its inode numbers do not stay (FUSE), so that it is read on the PFS",
                 root.path);
    all = false;
  }
  return all;
}

// A line for each directory that the job's tasks have to see to be served: for the plugin, in a task whose
// mount namespace is the job's own. Without it nobody is told.
void note_directories(int run_dir, const Service& service) {
  std::string text;
  for (const PrefixView& p : service.dataset->prefixes) text += p.path + "\n";
  for (const Tier& t : service.hierarchy->tiers()) text += t.copies_path() + "\n";
  if (const Status written = write_plain(run_dir, "directories", text); !written.ok())
    spdlog::warn("{}", written.error().text);
}

// For its life, so that no sweep takes the directory for a left-over; in one of root's, its board, by which
// the plugin knows that it lives.
Fd lock_run_dir(int run_dir) {
  Fd lock(::openat(run_dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock) lock = Fd(::openat(run_dir, "board", O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  ::flock(lock.get(), LOCK_SH | LOCK_NB);
  return lock;
}

Result<std::unique_ptr<Catalog>> make_catalog(const AgentOptions& options, const std::vector<TierView>& views,
                                              const Service& service) {
  const AgentConfig& config = options.config.agent;
  const bool once = config.consistency == AgentConfig::Consistency::kOpen;
  const bool proves = numbers_stay(*service.dataset);
  const ReadPolicy policy = {config.stage_wait_max,
                             static_cast<uint64_t>(config.stage_wait) * 1000000000,
                             once,
                             config.metadata == AgentConfig::Metadata::kServe && !once && proves,
                             config.stage_again > 0,
                             config.max_files == 0 ? UINT64_MAX : config.max_files};
  const std::vector<RootView> roots = service.dataset->root_views();
  return options.resume ? Catalog::resume(options.run_dir, roots, views, policy)
                        : Catalog::create(options.run_dir, roots, service.dataset->prefixes, views, policy);
}

Status start(const AgentOptions& options, int run_dir, Service* service) {
  const int64_t began_ns = system_clock().now_ns();
  std::optional<LoadingPeers> library;
  if (options.peers) library.emplace(options.peers_library);
  Result<Dataset> dataset = Dataset::open(options.datasets);
  if (!dataset.ok()) return dataset.error();
  dataset->exclude = options.config.agent.exclude;
  MONARCH_TRY(check_roots(options.config, *dataset));
  service->rates.emplace(options.config.agent);
  service->dataset.emplace(dataset.take());
  Result<Hierarchy> hierarchy =
      Hierarchy::open(options.config.tiers, options.job_dir, system_clock(), options.stores);
  if (!hierarchy.ok()) return hierarchy.error();
  service->hierarchy.emplace(hierarchy.take());
  Result<BoardFile> board = (options.resume ? BoardFile::open : BoardFile::create)(options.run_dir);
  if (!board.ok()) return board.error();
  service->board.emplace(board.take());
  Board* shared = service->board->get();
  if (options.resume) MONARCH_TRY(may_take_over(*shared));
  tell_granted(*service);
  std::vector<TierView> views;
  for (const Tier& t : service->hierarchy->tiers())
    views.push_back({t.name(), t.copies_path(), t.device(), t.unsafe(), t.inode()});
  if (options.watched) shared->header.resumes_until_ns = kIsWatched;
  if (!options.resume) MONARCH_TRY(declare_alive(shared));
  Result<std::unique_ptr<Catalog>> catalog = make_catalog(options, views, *service);
  if (!catalog.ok()) return catalog.error();
  service->catalog = catalog.take();
  if (options.resume) {
    take_over(&*service->catalog, &*service->hierarchy, shared);
    MONARCH_TRY(declare_alive(shared));
    shared->header.resumes_until_ns = 0;  // for this one no other goes on
  }
  note_directories(run_dir, *service);

  // From here on tasks find the agent.
  const int64_t began = options.resume ? -1 : began_ms(run_dir);
  if (began >= 0 && began <= system_clock().now_ms()) add(shared, AgentCounter::late_nodes);
  service->watch = std::make_unique<ChangeWatch>(
      &*service->dataset, shared, static_cast<uint64_t>(options.config.agent.watch_directories));
  service->watch->start();
  service->pfs =
      std::make_unique<PfsSource>(service->catalog.get(), &*service->dataset, shared, &*service->rates);
  if (library) MONARCH_TRY(join_peers(options, &*library, service));
  AgentConfig config = options.config.agent;
  // Nodes that do not know of each other would each read all of the dataset.
  if (!service->why_alone.empty() && config.prefetch == AgentConfig::Prefetch::kAuto)
    config.prefetch = AgentConfig::Prefetch::kOff;
  if (service->peers) config.nodes = static_cast<uint32_t>(options.peers->nodes.size());
  service->placement = std::make_unique<PlacementHandler>(
      service->catalog.get(), &*service->hierarchy, &*service->dataset, shared, config, &*service->rates,
      source_of(*service), service->watch.get());
  service->walker = std::make_unique<Walker>(
      service->catalog.get(), &*service->dataset, shared, &service->rates->pfs_stats,
      [p = service->placement.get()] { p->catalog_grew(); }, service->watch.get());
  MONARCH_TRY(service->placement->start());
  if (config.prefetch != AgentConfig::Prefetch::kOff) start_walk(config.walk_threads, service);
  if (const int error = os::start_thread(&service->requests, [service] { serve_requests(service); });
      error != 0)
    return errno_error("start the thread that serves requests", error);
  if (service->peers) {
    std::vector<std::string> names;
    for (const NodeAddress& node : options.peers->nodes) names.push_back(node.name);
    service->nodes.emplace(run_dir, service->peers.get(), std::move(names));
  }
  service->progress = std::make_unique<ProgressFile>(
      ProgressFile::Parts{run_dir, began_ns, shared, service->catalog.get(), source_of(*service),
                          service->walker.get(), service->placement.get(), config.prefetch,
                          service->hierarchy->tiers().size(), service->nodes ? &*service->nodes : nullptr});
  service->progress->start();
  // Where there can be no such thread, or no peers any more, opens go on comparing.
  if (options.resume && service->why_alone.empty())
    (void)os::start_thread(&service->comparing, [service] {
      compare_placed(service->catalog.get(), *service->dataset, service->watch.get(), service->board->get(),
                     &service->rates->pfs_stats, [service] { return service->stopping.load(); });
    });
  // Not before the agent is ready: it takes longer than all else. Without it the agent is slower.
  (void)os::start_thread(&service->locality, [service, &options] {
    const std::string processors = processors_near(options.config.tiers, Sources{});
    if (!processors.empty()) service->placement->move_to(processors);
  });
  return {};
}

// What the job may use of its tiers: what root has granted and, of the tier that is charged to the job, no
// more than the job's own memory leaves.
class Quotas {
 public:
  Quotas(const AgentOptions& options, Service* service) : file_(options.grants), service_(service) {
    for (const TierConfig& tier : options.config.tiers)
      if (tier.charge == TierConfig::Charge::kJob) charged_ = tier.name;
  }
  // How long to wait before look() is called again, as poll(2) takes it.
  int wait_ms() const { return file_.empty() ? -1 : milliseconds(patience::kLookNs); }
  void look() {
    if (!file_.empty()) granted_ = read_grants(file_);
    bool grew = false;
    for (const Grant& grant : granted_.tiers) {
      const uint64_t quota = grant.tier == charged_ ? room_of(grant.quota) : grant.quota;
      for (size_t i = 0; i < tiers().size(); ++i)
        if (tiers()[i].name() == grant.tier && tiers()[i].quota() != quota) grew |= set(i, quota);
    }
    if (grew) service_->placement->room_grew();
    service_->placement->keep_to_quotas();
  }

 private:
  std::vector<Tier>& tiers() const { return service_->hierarchy->tiers(); }
  bool follows_memory() const { return !charged_.empty() && !granted_.memory_group.empty(); }

  // As long as nothing is known of the job's memory, as between two steps, it stays as it is.
  uint64_t room_of(uint64_t granted) {
    if (!follows_memory()) return room_.bytes;
    const Result<uint64_t> used = memory_used(granted_.memory_group);
    if (used.ok())
      room_ = next_room(room_, granted_.memory, *used, granted, system_clock().now_ns() / 1'000'000'000);
    return room_.bytes;
  }

  bool set(size_t number, uint64_t quota) {
    const Tier& tier = tiers()[number];
    spdlog::info("tier {}: the job may use {} now{}", tier.name(), format_size(quota),
                 tier.name() == charged_ ? ", as its own memory leaves it" : "");
    return service_->placement->set_quota(number, quota);
  }

  const std::string file_;  // as AgentOptions::grants
  Service* const service_;
  std::string charged_;  // the tier's name; empty: none is
  Grants granted_;
  MemoryRoom room_;
};

// Whether the run directory is still where tasks look for it. An inotify watch would not tell: what is open
// is only unlinked.
bool is_at(const std::string& path, const Fd& dir) {
  struct stat held, now;
  return ::fstat(dir.get(), &held) != 0 ||
         (::stat(path.c_str(), &now) == 0 && now.st_dev == held.st_dev && now.st_ino == held.st_ino);
}

// Prefetch, and the walk that it needs, go on only as long as the dataset may be used. The walk of several
// nodes is one, and goes on.
void follow_use(bool unused, bool* rests, Service* service) {
  if (unused == *rests) return;
  *rests = unused;
  service->placement->rest(unused);
  if (!service->peers) service->walker->rest(unused);
  service->progress->set_unused(unused);
  if (unused)
    spdlog::warn("no program has used the dataset: prefetch stops until one does");
  else
    spdlog::info("the dataset is used: prefetch goes on");
}

void follow_order(OrderWatch* order, bool* full, Service* service) {
  for (OrderPiece& piece : order->take()) {
    if (service->placement->hint(std::move(piece)) || std::exchange(*full, true)) continue;
    spdlog::warn("the order of accesses is too long: what was told behind {} files is not used",
                 Order::kMostRefs);
  }
}

// Waits for a signal, the end of the lifeline or that of the run directory; says which.
std::string serve(int signals, int lifeline, const std::string& run_dir, const Fd& dir, int patience_s,
                  Quotas* quotas, Service* service) {
  UseWatch use(service->board->get(), dir.get(), patience_s);
  OrderWatch order(dir.get());
  bool rests = false, full = false;
  for (;;) {
    quotas->look();
    follow_use(use.is_unused(), &rests, service);
    follow_order(&order, &full, service);
    pollfd fds[3] = {{signals, POLLIN, 0}, {lifeline, POLLIN, 0}, {order.fd(), POLLIN, 0}};
    int wait = milliseconds(patience::kIdleLookNs);
    for (const int wanted : {quotas->wait_ms(), use.wait_ms()})
      if (wanted >= 0) wait = std::min(wait, wanted);
    if (::poll(fds, 3, wait) < 0 && errno != EINTR) return std::string("poll: ") + std::strerror(errno);
    if (!is_at(run_dir, dir)) return "the run directory is gone";
    if (fds[0].revents) return "signal";
    if (fds[1].revents) {  // nobody writes to it: it is readable at its end
      char byte;
      if (::read(lifeline, &byte, 1) <= 0) return "monarchctl is gone";
    }
  }
}

void stop(Service* service) {
  Board* board = service->board->get();
  service->stopping = true;
  uint32_t serves = kServes;  // a root that was renamed stays so for the other nodes
  board->header.closed.compare_exchange_strong(serves, kEnding, std::memory_order_acq_rel);
  board->header.doorbell.fetch_add(1);
  futex_wake(&board->header.doorbell, 1);
  // Threads that hang in a PFS call are not waited for: the process ends without them.
  const int64_t until = system_clock().now_ns() + patience::kLookNs;
  struct Steps {
    std::promise<void> quiet, accounted, done;
  };
  const auto steps = std::make_shared<Steps>();
  std::future<void> quiet = steps->quiet.get_future(), finished = steps->done.get_future();
  std::thread ending;
  const int error = os::start_thread(&ending, [service, steps] {
    service->progress->stop();
    service->walker->stop();
    service->placement->stop();
    steps->quiet.set_value();
    steps->accounted.get_future().wait();
    if (service->peers) service->peers->stop();
    service->watch->stop();
    service->requests.join();
    for (std::thread* one : {&service->locality, &service->comparing})
      if (one->joinable()) one->join();
    steps->done.set_value();
  });
  if (error == 0) ending.detach();
  if (service->peers) {
    if (error == 0) quiet.wait_for(std::chrono::nanoseconds(patience::kLastCopiesNs));
    service->peers->account(until);
    service->nodes->end();
  }
  steps->accounted.set_value();
  if (error != 0) return;  // as if all hung
  if (finished.wait_for(std::chrono::nanoseconds(patience::kStopNs)) != std::future_status::ready)
    spdlog::warn("a thread still waits for the PFS; ending without it");
}

// Tries again where a thread that was left behind makes another file meanwhile.
template <typename Remove>
void remove_at_last(const Remove& remove) {
  for (int attempt = 0; attempt < 5; ++attempt) {
    const Status s = remove();
    if (s.ok()) return;
    if (attempt == 4) spdlog::error("clean up: {}", s.error().text);
    system_clock().sleep_ns(patience::kRateSliceNs);
  }
}

// Removes what the agent made.
void remove_all(const AgentOptions& options) {
  if (options.leave) return;
  std::vector<TierConfig> own = options.config.tiers;
  for (const StoreEnds& roots : options.stores)
    std::erase_if(own, [&](const TierConfig& tier) { return tier.name == roots.tier; });
  remove_at_last([&] { return remove_job_dirs(own, options.job_dir); });
  const bool users = is_run_of_user(std::string_view(options.run_dir).substr(options.run_dir.rfind('/') + 1));
  remove_at_last([&] {
    return users ? remove_user_dir(AT_FDCWD, options.run_dir) : remove_tree(AT_FDCWD, options.run_dir);
  });
}

// Sources, copies and their write-back take some hundred descriptors; the soft limit often is 1024 for the
// sake of programs that use select(2).
void raise_descriptor_limit() {
  rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

void tell_ready(int fd, const std::string& text) {
  if (fd < 0) return;
  const std::string line = text + "\n";
  if (::write(fd, line.data(), line.size()) < 0)
    spdlog::warn("tell that the agent is ready: {}", std::strerror(errno));
  ::close(fd);
}

int run_agent(const AgentOptions& options) {
  for (const int s : {SIGPIPE, SIGXFSZ, SIGIO}) ::signal(s, SIG_IGN);  // calls tell
  raise_descriptor_limit();
  sigset_t ends;
  sigemptyset(&ends);
  for (const int s : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&ends, s);
  ::pthread_sigmask(SIG_BLOCK, &ends, nullptr);  // before any thread is made
  const Fd signals(::signalfd(-1, &ends, SFD_CLOEXEC));

  const std::string& log = options.config.agent.log;
  if (const Status s =
          open_log(log.empty() ? options.run_dir + "/monarchd.log" : log, options.config.agent.log_level);
      !s.ok()) {
    tell_ready(options.ready_fd, s.error().text);
    return 1;
  }
  RunDirectory dir{options.run_dir.c_str()};
  int opened = -1;
  if (open_run_directory(&dir, &opened) != RunDirectoryIs::kOwn) {
    tell_ready(options.ready_fd, options.run_dir + ": not a directory that its owner alone has access to");
    return 1;
  }
  const Fd run_dir(opened), lock = lock_run_dir(opened);

  auto service = std::make_unique<Service>();
  const Status started = start(options, run_dir.get(), service.get());
  if (!started.ok()) {
    spdlog::error("{}", started.error().text);
    const bool refused = started.error().code == kRefused && !options.grants.empty();  // root wants to know
    tell_ready(options.ready_fd, (refused ? kRefusedWord : "") + started.error().text);
    if (!options.resume) remove_all(options);
    return 1;
  }
  for (const Tier& t : service->hierarchy->tiers())
    spdlog::info("tier {} ({}): {} at {}", t.name(), name_of(t.medium()), format_size(t.quota()),
                 t.copies_path());
  for (const DatasetRoot& r : service->dataset->roots) spdlog::info("dataset {}", r.path);
  if (service->peers)
    spdlog::info("node {} of {}, port {}", options.peers->own, options.peers->nodes.size(),
                 service->peers->port());
  constexpr size_t kMostReason = 1000;  // bytes; who waits reads no more than 4096
  const std::string& alone = service->why_alone;
  tell_ready(options.ready_fd, alone.empty() ? "ready" : "ready\t" + alone.substr(0, kMostReason));

  Quotas quotas(options, service.get());
  const std::string why = serve(signals.get(), options.lifeline_fd, options.run_dir, run_dir,
                                options.config.agent.prefetch_patience, &quotas, service.get());
  stop(service.get());
  const Board& board = *service->board->get();
  spdlog::info("ending ({}): {} files, {} staged, {} from other nodes, {} errors", why,
               total(board, AgentCounter::staged_files),
               format_size(total(board, AgentCounter::staged_bytes)),
               format_size(total(board, AgentCounter::peer_bytes)),
               total(board, AgentCounter::source_errors) + total(board, AgentCounter::tier_errors));
  remove_all(options);
  ::_exit(0);  // threads that hang in a PFS call end here; until then they may log
}

}  // namespace monarch
