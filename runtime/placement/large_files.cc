// SPDX-License-Identifier: Apache-2.0
// The placement handler's work on files larger than stage_wait_max: staged in chunks, which reads with an
// offset are served from before the file is whole.
#include <fcntl.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>

#include "runtime/base/os.h"
#include "runtime/hierarchy/locality.h"
#include "runtime/placement/copying.h"
#include "runtime/placement/placement.h"

namespace monarch {
namespace {

// Of each, source and copy are open. Files beyond that are parked: what is placed stays in use, and they are
// opened again when more of them is wanted.
constexpr size_t kMaxOpenLarge = 128;
constexpr uint32_t kRun = Copier::kPieces;  // chunks in a row that are filled at a time
static_assert(kChunkBytes == Copier::kPiece);

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_size == b.st_size &&
         same_time(a.st_mtim, b.st_mtim);
}

}  // namespace

PlacementHandler::Large PlacementHandler::large_file(const Work& work, Worker* worker) {
  bool open = false;
  const auto known = [&]() -> Large {
    const std::lock_guard<std::mutex> hold(lock_);
    const auto at = large_.find(work.ref);
    if (at == large_.end()) return nullptr;
    open = at->second->ends != nullptr;
    return at->second;
  };
  Large file = known();
  if (file && open) return file;
  const std::lock_guard<std::mutex> one(starting_large_);
  file = known();
  if (file) return unpark(file, work, worker) ? file : nullptr;
  Entry& e = catalog_->entry(work.ref);
  const uint64_t word = e.state.load(std::memory_order_acquire);
  if (state_of(word) != State::kLarge || chunks_of(word) != 0) return nullptr;  // settled, or given up
  struct stat st;
  Fd source = open_large_source(work, worker, &st);
  if (!source) {
    const int error = errno;
    if (is_shortage(error)) {
      put_off(work.ref, error);
      return nullptr;
    }
    spdlog::warn("stage {}: {}", catalog_->path_of(work.ref), std::strerror(error));
    add(board_, AgentCounter::source_errors);
    settle(work.ref, verdict_on_open(error));
    return nullptr;
  }
  if (static_cast<uint64_t>(st.st_size) != e.size.load(std::memory_order_relaxed) ||
      time_of(st.st_mtim) != e.mtime.load(std::memory_order_relaxed)) {
    add(board_, AgentCounter::dropped_files);
    settle(work.ref, state_word(State::kDropped, Reason::kChanged));
    return nullptr;
  }
  return start_large(work, std::move(source), st);
}

Fd PlacementHandler::open_large_source(const Work& work, Worker* worker, struct stat* st) {
  const Entry& e = catalog_->entry(work.ref);
  Fd source = open_source(e, catalog_->path_of(work.ref), background(work), worker);
  if (source && os::fstat(source.get(), st) != 0) {
    const int error = errno;
    source.reset();
    errno = error;
  }
  return source;
}

PlacementHandler::Large PlacementHandler::start_large(const Work& work, Fd source, const struct stat& st) {
  auto file = std::make_shared<LargeFile>();
  const uint64_t bytes = static_cast<uint64_t>(st.st_size);
  const Ref ref = work.ref;
  file->ref = ref;
  file->st = st;
  file->count = chunk_count(bytes);
  file->reserved = bytes;
  file->tier = hierarchy_->reserve(bytes);
  if (file->tier < 0) file->tier = hierarchy_->reserve_part(bytes, kChunkBytes, &file->reserved);
  if (file->tier < 0) {
    no_room(work);
    return nullptr;
  }
  file->allowed = file->reserved == bytes ? file->count : static_cast<uint32_t>(file->reserved / kChunkBytes);
  file->claimed.resize(file->count);
  Tier& tier = this->tier(file->tier);
  Result<Fd> copy = tier.create_part(ref, file->reserved == bytes ? bytes : 0);
  if (!copy.ok()) {
    tier.release(file->reserved);
    if (is_shortage(copy.error().code)) {
      put_off(ref, copy.error().code);
      return nullptr;
    }
    tier_failed(file->tier, copy.error());
    settle(ref, state_word(State::kNoFit, Reason::kTierError));
    return nullptr;
  }
  file->writing = tier.driver().prepare(copy->get(), bytes, false);
  const std::lock_guard<std::mutex> hold(lock_);
  file->chunks = catalog_->start_chunks(ref, static_cast<uint32_t>(file->tier), st);
  if (!file->chunks) {
    tier.remove_part(ref);
    tier.release(file->reserved);
    settle(ref, state_word(State::kNoFit));
    return nullptr;
  }
  if (const auto at = native_.find(ref); at != native_.end()) file->native = true;
  large_[ref] = file;
  hold_ends(file, std::make_shared<Ends>(Ends{std::move(source), copy.take()}));
  return file;
}

// Opens both ends again. False: that failed, and the file has been given up.
bool PlacementHandler::unpark(const Large& file, const Work& work, Worker* worker) {
  {
    const std::lock_guard<std::mutex> hold(lock_);
    if (file->ends || file->failed) return !file->failed;
  }
  struct stat st;
  Fd source = open_large_source(work, worker, &st);
  if (!source && is_shortage(errno)) return put_off_large(file, errno);
  if (!source || !same_file(st, file->st)) {
    give_up_large(file, AgentCounter::dropped_files, state_word(State::kDropped, Reason::kChanged));
    return false;
  }
  Result<Fd> copy = tier(file->tier).open_part(file->ref);
  if (!copy.ok() && is_shortage(copy.error().code)) return put_off_large(file, copy.error().code);
  if (!copy.ok()) {
    tier_failed(file->tier, copy.error());
    give_up_large(file, AgentCounter::tier_errors, state_word(State::kNoFit, Reason::kTierError));
    return false;
  }
  if (file->writing == Writing::kDirect) os::set_direct(copy->get(), true);
  const std::lock_guard<std::mutex> hold(lock_);
  hold_ends(file, std::make_shared<Ends>(Ends{std::move(source), copy.take()}));
  return true;
}

void PlacementHandler::hold_ends(const Large& file, std::shared_ptr<Ends> ends) {
  file->ends = std::move(ends);
  opened_.push_back(file);
  park_some();
}

void PlacementHandler::park_some() {
  for (size_t tried = opened_.size(); tried > 0 && opened_.size() > kMaxOpenLarge; --tried) {
    const Large oldest = opened_.front();
    opened_.pop_front();
    if (!oldest->ends) continue;
    if (oldest->in_flight > 0) {
      opened_.push_back(oldest);
    } else {
      oldest->ends.reset();
    }
  }
}

// The chunk that was asked for, or several in a row where nobody waits.
bool PlacementHandler::claim(const Large& file, const Work& work, Run* run) {
  LargeFile& f = *file;
  const bool asked = work.why == Why::kChunk;
  if (!f.ends && !f.failed) {  // it was parked just now; filling comes back by itself
    if (asked) demanded_chunks_.emplace_back(work.ref, work.chunk);
    return false;
  }
  run->first = work.chunk;
  const uint32_t most = asked ? 1 : kRun;
  while (run->count < most && !f.failed && f.begun < f.allowed) {
    const uint32_t n = run->first + run->count;
    if (n >= f.count || f.claimed[n]) break;
    f.claimed[n] = true;
    ++f.begun;
    ++run->count;
  }
  if (run->count == 0) {
    if (asked) hurry(f.ref);  // somebody waits for what another thread copies
    return false;
  }
  ++f.in_flight;
  run->ends = f.ends;
  return true;
}

void PlacementHandler::stage_chunks(const Work& work, Worker* worker) {
  const Large file = large_file(work, worker);
  if (!file) return;
  Run run;
  {
    const std::lock_guard<std::mutex> hold(lock_);
    const bool claimed = claim(file, work, &run);
    if (!std::exchange(file->filling, true)) {  // after the chunk that was asked for
      filling_.push_front(file);                // what is being read comes before what may be
      work_.notify_all();
    }
    if (!claimed) return;
  }
  const Status copied = copy_run(file, run, background(work), worker);
  if (copied.ok()) {
    board_->header.stalled_until_ns.store(0, std::memory_order_relaxed);
    publish_run(file, run);
  } else if (is_invalid(*board_, catalog_->entry(file->ref).hash)) {
    give_up_large(file, AgentCounter::dropped_files, state_word(State::kDropped, Reason::kWritten));
  } else if (is_shortage(copied.error().code)) {
    put_off_large(file, copied.error().code);
  } else if (is_source_error(copied.error())) {
    spdlog::warn("stage {}: {}", catalog_->path_of(file->ref), copied.error().text);
    const Verdict v = verdict_on_read(copied.error());
    give_up_large(file, v.counter, v.word);
  } else if (!stopping_) {
    tier_failed(file->tier, copied.error());
    give_up_large(file, AgentCounter::tier_errors, state_word(State::kNoFit, Reason::kTierError));
  }
  end_run(file);
}

Status PlacementHandler::copy_run(const Large& file, const Run& run, bool paced, Worker* worker) {
  if (is_invalid(*board_, catalog_->entry(file->ref).hash)) return Error{ESTALE, "the job wrote it"};
  const auto size = static_cast<uint64_t>(file->st.st_size);
  const uint64_t offset = uint64_t{run.first} * kChunkBytes;
  const uint64_t bytes = std::min<uint64_t>(run.count * kChunkBytes, size - offset);
  const Ends& ends = *run.ends;
  const MemoryPolicy spread(file->writing == Writing::kMemory);
  MONARCH_TRY(
      worker->copier.copy({ends.source.get(), ends.copy.get(), size, offset, bytes, file->writing, paced}));
  // Chunks are read as soon as they are published, so theirs cannot be told later that they were lost.
  if (file->writing == Writing::kBuffered &&
      os::sync_range(ends.copy.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes), Sync::kFinish) !=
          0 &&
      is_write_back_error(errno))
    return errno_error("write-back at " + std::to_string(offset));
  if (!unchanged(ends.source.get(), file->st))
    return Error{ESTALE, std::string(kSource) + "it changed while it was copied"};
  return {};
}

void PlacementHandler::publish_run(const Large& file, const Run& run) {
  const auto size = static_cast<uint64_t>(file->st.st_size);
  const uint64_t offset = uint64_t{run.first} * kChunkBytes;
  const uint64_t bytes = std::min<uint64_t>(run.count * kChunkBytes, size - offset);
  bool whole = false, closed = false;
  {
    const std::lock_guard<std::mutex> hold(lock_);
    if (file->failed) return;
    file->done += run.count;
    file->placed += bytes;
    whole = file->done == file->count;
    // The last ones are told by the whole file: who reads the end of it and opens it again gets the copy.
    for (uint32_t i = 0; i < run.count && !whole; ++i) catalog_->set_chunk(file->chunks, run.first + i);
    closed = file->done == file->allowed && !whole;
    if (closed) large_.erase(file->ref);  // nothing more to do; its ends are closed with its last run
  }
  add(board_, AgentCounter::staged_chunks, run.count);
  add(board_, AgentCounter::staged_bytes, bytes);
  board_->placed_bytes[file->tier].fetch_add(bytes, std::memory_order_relaxed);
  if (closed) catalog_->close_chunks(file->chunks);
  if (whole) finish_large(file, run);
  const uint32_t hash = catalog_->entry(file->ref).hash;
  for (uint32_t i = 0; i < run.count; ++i) wake_parked(board_, hash, run.first + i);
}

// The last thread that copies for a file closes what is not needed any more.
void PlacementHandler::end_run(const Large& file) {
  bool release = false;
  {
    const std::lock_guard<std::mutex> hold(lock_);
    if (--file->in_flight > 0) return;
    release = file->failed;
    if (large_.find(file->ref) == large_.end() || file->failed) file->ends.reset();
  }
  if (release) release_large(file);
}

void PlacementHandler::finish_large(const Large& file, const Run& last) {
  Tier& tier = this->tier(file->tier);
  std::shared_ptr<Ends> ends;
  {
    const std::lock_guard<std::mutex> hold(lock_);
    ends = file->ends;
  }
  struct stat made;
  if (!ends || !take_times(ends->copy.get(), file->st) || os::fstat(ends->copy.get(), &made) != 0 ||
      !tier.publish_part(file->ref).ok()) {
    tier_failed(file->tier, errno_error("finish a large copy"));
    return give_up_large(file, AgentCounter::tier_errors, state_word(State::kNoFit, Reason::kTierError));
  }
  // A full run directory: what is staged in chunks stays in use as such.
  if (catalog_->place(file->ref, static_cast<uint32_t>(file->tier), made.st_ino, file->st)) {
    add(board_, AgentCounter::staged_files);
  } else {
    for (uint32_t i = 0; i < last.count; ++i) catalog_->set_chunk(file->chunks, last.first + i);
  }
  const std::lock_guard<std::mutex> hold(lock_);
  large_.erase(file->ref);
}

// Other threads may still be copying for it: the last one to end gives its space back.
void PlacementHandler::give_up_large(const Large& file, AgentCounter counter, uint64_t word) {
  bool release = false;
  {
    const std::lock_guard<std::mutex> hold(lock_);
    if (std::exchange(file->failed, true)) return;
    large_.erase(file->ref);
    release = file->in_flight == 0;
  }
  settle(file->ref, word);
  // tier_failed and ran_short count those.
  if (counter != AgentCounter::tier_errors && counter != AgentCounter::put_off_files) add(board_, counter);
  const Entry& e = catalog_->entry(file->ref);
  for (uint32_t n = 0; n < file->count && n < kParking; ++n) wake_parked(board_, e.hash, n);
  if (release) release_large(file);
}

bool PlacementHandler::put_off_large(const Large& file, int error) {
  give_up_large(file, AgentCounter::put_off_files, state_word(State::kNoFit, Reason::kTierError));
  ran_short(error);
  return false;
}

void PlacementHandler::release_large(const Large& file) {
  Tier& tier = this->tier(file->tier);
  tier.remove_part(file->ref);
  tier.release(file->reserved);
  board_->placed_bytes[file->tier].fetch_sub(file->placed, std::memory_order_relaxed);
}

}  // namespace monarch
