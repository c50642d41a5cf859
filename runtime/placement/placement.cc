// SPDX-License-Identifier: Apache-2.0
#include "runtime/placement/placement.h"

#include <dirent.h>
#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <string>

#include "runtime/base/os.h"
#include "runtime/placement/copying.h"

namespace monarch {
namespace {

constexpr size_t kBufferBytes = 1 << 20;
constexpr int kMisfitsToStop = 8;

// Why an open of the source that failed with `error` makes the file one that is never staged.
uint64_t verdict_on_open(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return state_word(State::kPass, Reason::kMissing);
    case ELOOP:
      return state_word(State::kPass, Reason::kSymlink);
    case EXDEV:
      return state_word(State::kPass, Reason::kOtherDevice);
    case EACCES:
    case EPERM:
      return state_word(State::kPass, Reason::kUnreadable);
    default:
      return state_word(State::kPass, Reason::kSourceError);
  }
}

}  // namespace

PlacementHandler::PlacementHandler(Catalog* catalog, Hierarchy* hierarchy, const Dataset* dataset,
                                   Board* board, const AgentConfig& config)
    : catalog_(catalog),
      hierarchy_(hierarchy),
      dataset_(dataset),
      board_(board),
      config_(config),
      prefetching_(config.prefetch != AgentConfig::Prefetch::kOff) {}

void PlacementHandler::start() {
  for (int i = 0; i < config_.threads; ++i) threads_.emplace_back([this] { run(); });
}

void PlacementHandler::stop() {
  {
    std::lock_guard<std::mutex> hold(lock_);
    stopping_ = true;
  }
  work_.notify_all();
  for (std::thread& t : threads_) t.join();
  threads_.clear();
}

void PlacementHandler::demand(const RelPath& path) {
  const Ref ref = catalog_->add(path, DT_UNKNOWN);
  if (!ref) return;  // the catalog is full: the task sees that there is no entry and reads the PFS
  if (!catalog_->move(ref, state_word(State::kKnown), state_word(State::kQueued)))
    return;  // in work, or settled
  {
    std::lock_guard<std::mutex> hold(lock_);
    demanded_.push_back(ref);
  }
  work_.notify_one();
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
    *work = {demanded_.front(), Why::kDemand, 0};
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
  if (!prefetching_) return false;
  bool found = false;
  cursor_ = catalog_->walk(cursor_, [&](Ref ref) {
    if (found) return false;
    if (catalog_->move(ref, state_word(State::kKnown), state_word(State::kStaging))) {
      *work = {ref, Why::kPrefetch, 0};
      found = true;
    }
    return true;
  });
  return found;
}

void PlacementHandler::run() {
  std::vector<char> buffer(kBufferBytes);
  std::unique_lock<std::mutex> hold(lock_);
  for (;;) {
    Work work;
    while (!stopping_ && !next(&work)) work_.wait(hold);
    if (stopping_) return;
    const bool background = work.why == Why::kPrefetch || work.why == Why::kFill;
    background_ += background;
    hold.unlock();
    if (work.why == Why::kChunk || work.why == Why::kFill) {
      stage_chunk(work, &buffer);
    } else if (work.why == Why::kPrefetch ||
               catalog_->move(work.ref, state_word(State::kQueued), state_word(State::kStaging))) {
      stage(work, &buffer);
    }
    hold.lock();
    background_ -= background;
    if (background) work_.notify_one();  // a place for background work is free again
  }
}

void PlacementHandler::settle(Ref ref, uint64_t word) {
  Entry& e = catalog_->entry(ref);
  e.state.store(word, std::memory_order_release);
  wake_parked(board_, e.hash);
}

void PlacementHandler::stage(const Work& work, std::vector<char>* buffer) {
  Entry& e = catalog_->entry(work.ref);
  const std::string path = catalog_->path_of(work.ref);
  const DatasetRoot& root = dataset_->roots[e.root];
  if (is_invalid(*board_, e.hash)) return settle(work.ref, state_word(State::kDropped, Reason::kWritten));

  if (e.type == DT_UNKNOWN) {  // no open of a device or FIFO, not even to look at it
    Fd look(os::open_beneath(root.fd.get(), path.c_str(), O_PATH | O_CLOEXEC));
    struct stat st;
    if (!look || os::fstat(look.get(), &st) != 0) {
      add(board_, AgentCounter::pass_files);
      return settle(work.ref, verdict_on_open(errno));
    }
    if (!S_ISREG(st.st_mode)) {
      add(board_, AgentCounter::pass_files);
      return settle(work.ref, state_word(State::kPass, Reason::kNotRegular));
    }
  }
  add(board_, AgentCounter::agent_opens_pfs);
  Fd source(os::open_beneath(root.fd.get(), path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat st;
  if (!source || os::fstat(source.get(), &st) != 0) {
    const int error = errno;
    add(board_, error == ENOENT || error == EACCES ? AgentCounter::pass_files : AgentCounter::source_errors);
    if (error != ENOENT) spdlog::warn("stage {}/{}: {}", root.path, path, std::strerror(error));
    return settle(work.ref, verdict_on_open(error));
  }
  if (!S_ISREG(st.st_mode)) return settle(work.ref, state_word(State::kPass, Reason::kNotRegular));
  const uint64_t bytes = static_cast<uint64_t>(st.st_size);
  e.mtime.store(time_of(st.st_mtim), std::memory_order_relaxed);
  e.size.store(bytes, std::memory_order_release);
  add(board_, AgentCounter::dataset_bytes, bytes);
  bytes_seen_ += bytes;
  ++files_seen_;
  if (bytes <= config_.stage_wait_max) return place(work, source, st, buffer);
  const std::lock_guard<std::mutex> one(starting_large_);  // before any task can ask for a chunk
  settle(work.ref, large_word(0));                         // opens do not wait for it
  if (work.why == Why::kDemand) return;                    // staged once it is known to be read in chunks
  if (const Large file = start_large(work.ref, std::move(source), st)) {
    const std::lock_guard<std::mutex> hold(lock_);
    file->filling = true;
    filling_.push_back(file);
    work_.notify_all();
  }
}

// No tier had room for a file. After some in a row, and with no room for one of usual size, the tiers count
// as full: nothing is prefetched any more, and opens of what is not placed go to the PFS without asking.
void PlacementHandler::no_room(const Work& work) {
  add(board_, AgentCounter::no_fit_files);
  const auto& tiers = hierarchy_->tiers();
  const bool for_now = std::any_of(tiers.begin(), tiers.end(), [](const Tier& t) { return t.closed(); });
  if (for_now) return settle(work.ref, state_word(State::kNoFit, Reason::kTierError));
  settle(work.ref, state_word(State::kNoFit));
  const uint64_t usual = bytes_seen_ / std::max<uint64_t>(1, files_seen_);
  if (++misfits_ < kMisfitsToStop || hierarchy_->room() >= usual) return;
  if (board_->header.full.exchange(1, std::memory_order_relaxed) == 0)
    spdlog::info("the tiers are full; the rest of the dataset stays on the PFS");
  const std::lock_guard<std::mutex> hold(lock_);
  prefetching_ = false;
}

void PlacementHandler::place(const Work& work, const Fd& source, const struct stat& st,
                             std::vector<char>* buffer) {
  const Ref ref = work.ref;
  const std::string path = dataset_->roots[catalog_->entry(ref).root].path + "/" + catalog_->path_of(ref);
  const uint64_t bytes = static_cast<uint64_t>(st.st_size);
  const int number = hierarchy_->reserve(bytes);
  if (number < 0) return no_room(work);
  Tier& tier = hierarchy_->tiers()[static_cast<size_t>(number)];
  const int64_t start = monotonic_ns();
  Result<Fd> file = tier.create(ref, bytes);
  const auto discard = [&] {
    if (file.ok()) file->reset();  // its space counts as used until it is free
    tier.discard(ref);
    tier.release(bytes);
  };
  const auto give_up = [&](AgentCounter counter, uint64_t word) {
    discard();
    add(board_, counter);
    settle(ref, word);
  };
  const auto tier_failed = [&](const Error& error) {
    tier.close(error.text);
    give_up(AgentCounter::tier_errors, state_word(State::kNoFit, Reason::kTierError));
  };
  if (!file.ok()) return tier_failed(file.error());
  if (const Status copied = copy(source.get(), *file, 0, bytes, buffer); !copied.ok()) {
    if (stopping_) return discard();
    if (!is_source_error(copied.error())) return tier_failed(copied.error());
    spdlog::warn("stage {}: {}", path, copied.error().text);
    const Verdict v = verdict_on_read(copied.error());
    return give_up(v.counter, v.word);
  }
  struct stat made;
  if (!unchanged(source.get(), st)) {
    spdlog::warn("stage {}: it changed while it was copied", path);
    return give_up(AgentCounter::dropped_files, state_word(State::kDropped, Reason::kChanged));
  }
  if (!take_times(file->get(), st) || os::fstat(file->get(), &made) != 0)
    return tier_failed(errno_error("finish a copy"));
  if (const Status published = tier.publish(*file, ref); !published.ok())
    return tier_failed(published.error());
  if (!catalog_->place(ref, static_cast<uint32_t>(number), made.st_ino, st)) {
    tier.remove(ref);
    return give_up(AgentCounter::no_fit_files, state_word(State::kNoFit));
  }
  misfits_ = 0;
  // Counted before anyone is woken: who sees the file placed sees it counted.
  note_rate(bytes, monotonic_ns() - start);
  add(board_, AgentCounter::staged_files);
  add(board_, AgentCounter::staged_bytes, bytes);
  add(board_, work.why == Why::kPrefetch ? AgentCounter::prefetch_files : AgentCounter::demand_files);
  board_->placed_bytes[number].fetch_add(bytes, std::memory_order_relaxed);
  wake_parked(board_, catalog_->entry(ref).hash);
}

Status PlacementHandler::copy(int source, const Fd& copy, uint64_t offset, uint64_t size,
                              std::vector<char>* buffer) {
  const uint64_t end = offset + size;
  while (offset < end) {
    if (stopping_) return Error{EINTR, "stopping"};
    const size_t want = static_cast<size_t>(std::min<uint64_t>(buffer->size(), end - offset));
    const ssize_t got = os::pread(source, buffer->data(), want, static_cast<off_t>(offset));
    add(board_, AgentCounter::agent_reads_pfs);
    if (got < 0) return errno_error(std::string(kSource) + "read at " + std::to_string(offset));
    if (got == 0) return Error{ENODATA, std::string(kSource) + "shorter than its size says"};
    add(board_, AgentCounter::agent_bytes_pfs, static_cast<uint64_t>(got));
    for (ssize_t put = 0; put < got;) {
      const ssize_t n = os::pwrite(copy.get(), buffer->data() + put, static_cast<size_t>(got - put),
                                   static_cast<off_t>(offset) + put);
      if (n <= 0) return errno_error("write at " + std::to_string(offset), n < 0 ? errno : ENOSPC);
      put += n;
    }
    offset += static_cast<uint64_t>(got);
  }
  return {};
}

void PlacementHandler::note_rate(uint64_t bytes, int64_t ns) {
  if (bytes < (256 << 10) || ns <= 0) return;
  const double now = static_cast<double>(bytes) * 1e9 / static_cast<double>(ns);
  const auto old = static_cast<double>(board_->header.bytes_per_second.load(std::memory_order_relaxed));
  board_->header.bytes_per_second.store(static_cast<uint64_t>(old == 0 ? now : old * 0.8 + now * 0.2),
                                        std::memory_order_relaxed);
}

}  // namespace monarch
