// SPDX-License-Identifier: Apache-2.0
#include "runtime/placement/placement.h"

#include <dirent.h>
#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <string>

#include "runtime/base/memory.h"
#include "runtime/base/os.h"
#include "runtime/hierarchy/locality.h"
#include "runtime/placement/copying.h"

namespace monarch {
namespace {

constexpr int64_t kShortMemoryNs = 1000000000;  // how often a thread looks whether there is memory again
constexpr int kMisfitsToStop = 8;
// How many prefetched files are copied at a time that have several pieces in flight each, and how many more
// are opened meanwhile.
constexpr int kTurns = 2;
constexpr size_t kMostInLine = 4;
constexpr int64_t kFirstShortageNs = 1000000000, kMostShortageNs = 300 * kFirstShortageNs;

}  // namespace

PlacementHandler::PlacementHandler(Catalog* catalog, Hierarchy* hierarchy, const Dataset* dataset,
                                   Board* board, const AgentConfig& config, Rates* rates)
    : catalog_(catalog),
      hierarchy_(hierarchy),
      dataset_(dataset),
      board_(board),
      config_(config),
      rates_(rates),
      prefetching_(config.prefetch != AgentConfig::Prefetch::kOff) {
  for (int i = 0; i < static_cast<int>(hierarchy->tiers().size()); ++i)
    write_back_.push_back(std::make_unique<WriteBack>(
        [this, i](Ref ref, uint64_t bytes, const Error& error) { copy_lost(ref, i, bytes, error); }));
}

void PlacementHandler::start() {
  for (int i = 0; i < config_.threads; ++i) {
    workers_.push_back(std::make_unique<Worker>(board_, rates_, &stopping_));
    Worker* worker = workers_.back().get();
    worker->thread = std::thread([this, worker] { run(worker); });
  }
}

void PlacementHandler::move_to(const std::string& processors) {
  const std::lock_guard<std::mutex> hold(lock_);
  for (const auto& worker : workers_) worker->move_to = processors;
}

void PlacementHandler::stop() {
  {
    std::lock_guard<std::mutex> hold(lock_);
    stopping_ = true;
  }
  work_.notify_all();
  for (const auto& write_back : write_back_) write_back->stop();
  for (const auto& worker : workers_)
    if (worker->thread.joinable()) worker->thread.join();
}

void PlacementHandler::demand(const RelPath& path) {
  const Ref ref = catalog_->add(path, DT_UNKNOWN);
  if (!ref) return;  // the catalog is full: the task sees that there is no entry and reads the PFS
  const bool queued = catalog_->move(ref, state_word(State::kKnown), state_word(State::kQueued));
  {
    std::lock_guard<std::mutex> hold(lock_);
    if (!queued) return hurry(ref);  // in work, or settled
    demanded_.push_back({ref, Why::kDemand});
  }
  work_.notify_one();
}

void PlacementHandler::hurry(Ref ref) {
  const auto at = std::find_if(in_line_.begin(), in_line_.end(), [&](const Work& w) { return w.ref == ref; });
  if (at != in_line_.end()) {
    at->why = Why::kDemand;
    demanded_.push_back(std::move(*at));
    in_line_.erase(at);
    return work_.notify_one();
  }
  for (const auto& worker : workers_)
    if (worker->ref == ref) worker->copier.hurry();
}

void PlacementHandler::catalog_grew() {
  {
    std::lock_guard<std::mutex> hold(lock_);
    if (!prefetching_) return;
  }
  work_.notify_all();
}

void PlacementHandler::demand_chunk(const RelPath& path, uint32_t chunk) {
  const Ref ref = catalog_->reader().find(path).ref;
  if (!ref || state_of(catalog_->entry(ref).state.load(std::memory_order_acquire)) != State::kLarge) return;
  {
    std::lock_guard<std::mutex> hold(lock_);
    if (chunk == kReadNatively) {
      native_[ref] = true;
      if (const auto at = large_.find(ref); at != large_.end()) at->second->native = true;
      return;
    }
    demanded_chunks_.emplace_back(ref, chunk);
  }
  work_.notify_one();
}

bool PlacementHandler::next(Work* work) {
  if (!demanded_.empty()) {
    *work = std::move(demanded_.front());
    demanded_.pop_front();
    return true;
  }
  if (!demanded_chunks_.empty()) {
    *work = {demanded_chunks_.front().first, Why::kChunk, demanded_chunks_.front().second};
    demanded_chunks_.pop_front();
    return true;
  }
  // Two threads are kept free for demand, so that it never waits for a large background copy.
  return background_ < std::max(1, config_.threads - 2) && next_background(work);
}

bool PlacementHandler::next_background(Work* work) {
  while (!filling_.empty()) {
    LargeFile& f = *filling_.front();
    while (f.next < f.count && f.claimed[f.next]) ++f.next;
    if (!f.native && !f.failed && f.begun < f.allowed && f.next < f.count) {
      *work = {f.ref, Why::kFill, f.next};
      return true;
    }
    filling_.pop_front();
  }
  if ((!prefetching_ && in_line_.empty()) || memory_is_short()) return false;
  if (!in_line_.empty() && turns_ < kTurns) {
    ++turns_;
    *work = std::move(in_line_.front());
    in_line_.pop_front();
    return true;
  }
  if (!prefetching_ || short_until_ns_ != 0 || in_line_.size() >= kMostInLine) return false;
  bool found = false;
  cursor_ = catalog_->walk(cursor_, [&](Ref ref) {
    if (found) return false;
    if (catalog_->move(ref, state_word(State::kKnown), state_word(State::kStaging))) {
      *work = {ref, Why::kPrefetch};
      found = true;
    }
    return true;
  });
  return found;
}

// An idle agent sleeps without a limit. It looks again by itself only while a tier is closed, or memory or
// descriptors are short.
void PlacementHandler::wait_for_work(std::unique_lock<std::mutex>* hold) {
  int64_t due = INT64_MAX;
  for (const Tier& t : hierarchy_->tiers())
    if (t.may_recover()) due = std::min(due, t.next_probe_ns());
  if (const int64_t until = short_until_ns_; until != 0) due = std::min(due, until);
  const int64_t now = os::clock_ns(CLOCK_MONOTONIC);
  if ((prefetching_ || !in_line_.empty()) && memory_is_short()) due = std::min(due, now + kShortMemoryNs);
  if (due == INT64_MAX || probing_) return work_.wait(*hold);
  if (due > now) {
    work_.wait_for(*hold, std::chrono::nanoseconds(due - now));
  } else {
    probe_tiers(hold);
  }
}

// Of the tiers that were closed, those that work again take files again: also those that found them closed,
// and those for which descriptors or memory were short.
void PlacementHandler::probe_tiers(std::unique_lock<std::mutex>* hold) {
  probing_ = true;
  hold->unlock();
  bool opened = false;
  for (size_t i = 0; i < hierarchy_->tiers().size(); ++i) {
    if (!hierarchy_->tiers()[i].probe()) continue;
    catalog_->set_tier_failed(static_cast<uint32_t>(i), false);
    opened = true;
  }
  if (opened) {
    board_->header.full.store(0, std::memory_order_relaxed);
    misfits_ = 0;
  }
  int64_t until = short_until_ns_;
  const bool rested = until != 0 && until <= os::clock_ns(CLOCK_MONOTONIC) &&
                      short_until_ns_.compare_exchange_strong(until, 0);
  if (opened || rested) {
    catalog_->walk(0, [&](Ref ref) {
      catalog_->move(ref, state_word(State::kNoFit, Reason::kTierError), state_word(State::kKnown));
      return true;
    });
  }
  hold->lock();
  probing_ = false;
  if (!opened && !rested) return;
  if (opened) prefetching_ = config_.prefetch != AgentConfig::Prefetch::kOff;
  cursor_ = 0;
  work_.notify_all();
}

void PlacementHandler::run(Worker* worker) {
  std::unique_lock<std::mutex> hold(lock_);
  for (;;) {
    Work work;
    while (!stopping_ && !next(&work)) wait_for_work(&hold);
    if (stopping_) return;
    worker->ref = work.ref;
    worker->copier.begin();
    background_ += background(work);
    const std::string move_to = std::exchange(worker->move_to, {});
    hold.unlock();
    if (!move_to.empty()) (void)run_on(move_to).ok();  // where the job may not run it is no loss
    set_io_priority(background(work) ? config_.background_io : AgentConfig::Io::kNormal);
    do_work(work, worker);
    work.opened.reset();  // a close may take its time, too
    hold.lock();
    worker->ref = 0;
    background_ -= background(work);
    if (background(work)) work_.notify_one();  // a place for background work is free again
  }
}

void PlacementHandler::do_work(const Work& work, Worker* worker) {
  if (work.why == Why::kChunk || work.why == Why::kFill) {
    stage_chunks(work, worker);
  } else if (work.opened) {
    if (is_invalid(*board_, catalog_->entry(work.ref).hash)) {
      settle(work.ref, state_word(State::kDropped, Reason::kWritten));
    } else {
      place(work, work.opened->source, work.opened->st, worker);
    }
    if (work.why == Why::kPrefetch) end_turn();
  } else if (work.why == Why::kPrefetch ||
             catalog_->move(work.ref, state_word(State::kQueued), state_word(State::kStaging))) {
    stage(work, worker);
  }
}

void PlacementHandler::settle(Ref ref, uint64_t word) {
  Entry& e = catalog_->entry(ref);
  e.state.store(word, std::memory_order_release);
  wake_parked(board_, e.hash);
}

Fd PlacementHandler::open_source(const Entry& e, const std::string& path, bool paced, Worker* worker) {
  const auto give_up = [&] { return worker->copier.hurried() || stopping_; };
  if (!paced || !rates_->pfs_opens.wait(1, give_up)) rates_->pfs_opens.take(1);
  add(board_, AgentCounter::agent_opens_pfs);
  return Fd(os::open_beneath(dataset_->roots[e.root].fd.get(), path.c_str(),
                             O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

void PlacementHandler::stage(const Work& work, Worker* worker) {
  Entry& e = catalog_->entry(work.ref);
  const std::string path = catalog_->path_of(work.ref);
  const DatasetRoot& root = dataset_->roots[e.root];
  if (is_invalid(*board_, e.hash)) return settle(work.ref, state_word(State::kDropped, Reason::kWritten));

  if (e.type != DT_REG) {  // no open of a device or FIFO, not even to look at it
    Fd look(os::open_beneath(root.fd.get(), path.c_str(), O_PATH | O_CLOEXEC));
    struct stat st;
    if (!look || os::fstat(look.get(), &st) != 0) {
      if (is_shortage(errno)) return put_off(work.ref, errno);
      add(board_, AgentCounter::pass_files);
      return settle(work.ref, verdict_on_open(errno));
    }
    if (!S_ISREG(st.st_mode)) {
      add(board_, AgentCounter::pass_files);
      return settle(work.ref, state_word(State::kPass, Reason::kNotRegular));
    }
  }
  Fd source = open_source(e, path, work.why == Why::kPrefetch, worker);
  struct stat st;
  if (!source || os::fstat(source.get(), &st) != 0) {
    const int error = errno;
    if (is_shortage(error)) return put_off(work.ref, error);
    add(board_, error == ENOENT || error == EACCES ? AgentCounter::pass_files : AgentCounter::source_errors);
    if (error != ENOENT) spdlog::warn("stage {}/{}: {}", root.path, path, std::strerror(error));
    return settle(work.ref, verdict_on_open(error));
  }
  if (!S_ISREG(st.st_mode)) return settle(work.ref, state_word(State::kPass, Reason::kNotRegular));
  const uint64_t bytes = static_cast<uint64_t>(st.st_size);
  e.mtime.store(time_of(st.st_mtim), std::memory_order_relaxed);
  if (e.size.exchange(bytes, std::memory_order_release) == 0) {  // else: tried before
    add(board_, AgentCounter::dataset_bytes, bytes);
    bytes_seen_ += bytes;
    ++files_seen_;
  }
  if (bytes <= config_.stage_wait_max) {
    const bool turn = work.why == Why::kPrefetch && bytes >= Copier::kSeveralPieces;
    if (turn && !take_turn(work, &source, st, *worker)) return;
    place(work, source, st, worker);
    if (turn) end_turn();
    return;
  }
  const std::lock_guard<std::mutex> one(starting_large_);  // before any task can ask for a chunk
  settle(work.ref, large_word(0));                         // opens do not wait for it
  if (work.why == Why::kDemand) return;                    // staged once it is known to be read in chunks
  if (const Large file = start_large(work, std::move(source), st)) {
    const std::lock_guard<std::mutex> hold(lock_);
    file->filling = true;
    filling_.push_back(file);
    work_.notify_all();
  }
}

bool PlacementHandler::take_turn(const Work& work, Fd* source, const struct stat& st, const Worker& worker) {
  const std::lock_guard<std::mutex> hold(lock_);
  if (turns_ < kTurns || worker.copier.hurried()) {
    ++turns_;
    return true;
  }
  in_line_.push_back({work.ref, work.why, 0, std::make_shared<Opened>(Opened{std::move(*source), st})});
  return false;
}

void PlacementHandler::end_turn() {
  const std::lock_guard<std::mutex> hold(lock_);
  --turns_;  // run() tells the next one
}

// No tier had room for a file. After some in a row, and with no room for one of usual size, the tiers count
// as full: nothing is prefetched any more, and opens of what is not placed go to the PFS without asking. A
// tier that is closed may take files later, so nothing is final then.
void PlacementHandler::no_room(const Work& work) {
  add(board_, AgentCounter::no_fit_files);
  const auto& tiers = hierarchy_->tiers();
  const bool for_now = std::any_of(tiers.begin(), tiers.end(), [](const Tier& t) { return t.may_recover(); });
  settle(work.ref, for_now ? state_word(State::kNoFit, Reason::kTierError) : state_word(State::kNoFit));
  const uint64_t usual = bytes_seen_ / std::max<uint64_t>(1, files_seen_);
  if (++misfits_ < kMisfitsToStop || hierarchy_->room() >= usual) return;
  if (board_->header.full.exchange(1, std::memory_order_relaxed) == 0)
    spdlog::info(for_now ? "no tier takes files now"
                         : "the tiers are full; the rest of the dataset stays on the PFS");
  const std::lock_guard<std::mutex> hold(lock_);
  prefetching_ = false;
}

void PlacementHandler::ran_short(int error) {
  add(board_, AgentCounter::put_off_files);
  const int64_t pause = std::clamp(2 * shortage_ns_.load(), kFirstShortageNs, kMostShortageNs);
  int64_t none = 0;
  if (!short_until_ns_.compare_exchange_strong(none, os::clock_ns(CLOCK_MONOTONIC) + pause)) return;
  shortage_ns_ = pause;
  spdlog::warn("prefetch rests for {} s, and files are read from the PFS: {}", pause / kFirstShortageNs,
               std::strerror(error));
  work_.notify_all();  // somebody has to wait for its end
}

// Settled first: who ends the pause then finds it.
void PlacementHandler::put_off(Ref ref, int error) {
  settle(ref, state_word(State::kNoFit, Reason::kTierError));
  ran_short(error);
}

// A device that fails is not read either.
void PlacementHandler::tier_failed(int number, const Error& error) {
  tier(number).close(error.text);
  if (error.code == EIO) catalog_->set_tier_failed(static_cast<uint32_t>(number), true);
  add(board_, AgentCounter::tier_errors);
  work_.notify_all();  // somebody has to wait for the time to try it again
}

// What was published did not reach its device. Whoever opens it from now on gets the PFS; its pages are still
// in the page cache for who has it open.
void PlacementHandler::copy_lost(Ref ref, int number, uint64_t bytes, const Error& error) {
  spdlog::error("{}: {}", catalog_->path_of(ref), error.text);
  catalog_->drop(ref, State::kNoFit, Reason::kTierError);
  tier_failed(number, Error{EIO, error.text});
  tier(number).remove(ref);
  tier(number).release(bytes);
  board_->placed_bytes[number].fetch_sub(bytes, std::memory_order_relaxed);
}

Status PlacementHandler::make_copy(const Work& work, const Fd& source, const struct stat& st, Tier* tier,
                                   const Fd& copy, Writing writing, Worker* worker) {
  const auto bytes = static_cast<uint64_t>(st.st_size);
  const MemoryPolicy spread(writing == Writing::kMemory);
  MONARCH_TRY(
      worker->copier.copy({source.get(), copy.get(), bytes, 0, bytes, writing, work.why == Why::kPrefetch}));
  if (!unchanged(source.get(), st))
    return Error{ESTALE, std::string(kSource) + "it changed while it was copied"};
  if (!take_times(copy.get(), st)) return errno_error("set the copy's times");
  return tier->publish(copy, work.ref);
}

void PlacementHandler::place(const Work& work, const Fd& source, const struct stat& st, Worker* worker) {
  const Ref ref = work.ref;
  const uint64_t bytes = static_cast<uint64_t>(st.st_size);
  const int number = hierarchy_->reserve(bytes);
  if (number < 0) return no_room(work);
  Tier& tier = this->tier(number);
  Result<Fd> file = tier.create(ref, bytes);
  const Writing writing =
      file.ok() ? tier.driver().prepare(file->get(), bytes, work.why == Why::kDemand) : Writing::kMemory;
  const Status made =
      file.ok() ? make_copy(work, source, st, &tier, *file, writing, worker) : Status(file.error());
  struct stat copy;
  if (!made.ok() || os::fstat(file->get(), &copy) != 0) {
    if (file.ok()) file->reset();  // its space counts as used until it is free
    tier.discard(ref);
    tier.release(bytes);
    if (stopping_) return;
    if (!made.ok() && is_shortage(made.error().code)) return put_off(ref, made.error().code);
    if (made.ok() || !is_source_error(made.error())) {
      tier_failed(number, made.ok() ? errno_error("look at the copy") : made.error());
      return settle(ref, state_word(State::kNoFit, Reason::kTierError));
    }
    spdlog::warn("stage {}: {}", catalog_->path_of(ref), made.error().text);
    const Verdict v = verdict_on_read(made.error());
    add(board_, v.counter);
    return settle(ref, v.word);
  }
  if (!catalog_->place(ref, static_cast<uint32_t>(number), copy.st_ino, st)) {
    tier.remove(ref);
    file->reset();
    tier.release(bytes);
    add(board_, AgentCounter::no_fit_files);
    return settle(ref, state_word(State::kNoFit));
  }
  misfits_ = 0;
  shortage_ns_ = 0;
  board_->header.stalled_until_ns.store(0, std::memory_order_relaxed);
  // Counted before anyone is woken: who sees the file placed sees it counted.
  add(board_, AgentCounter::staged_files);
  add(board_, AgentCounter::staged_bytes, bytes);
  add(board_, work.why == Why::kPrefetch ? AgentCounter::prefetch_files : AgentCounter::demand_files);
  board_->placed_bytes[number].fetch_add(bytes, std::memory_order_relaxed);
  wake_parked(board_, catalog_->entry(ref).hash);
  if (writing == Writing::kBuffered) write_back_[static_cast<size_t>(number)]->add(ref, file.take(), bytes);
}

}  // namespace monarch
