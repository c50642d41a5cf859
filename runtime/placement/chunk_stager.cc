// SPDX-License-Identifier: Apache-2.0
#include "runtime/placement/chunk_stager.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/os.h"
#include "runtime/hierarchy/locality.h"
#include "runtime/placement/copying.h"

namespace monarch {
namespace {

// Of each, source and copy are open. Files beyond that are parked: what is placed stays in use, and they are
// opened again when more of them is wanted.
constexpr size_t kMaxOpenLarge = 128;
// Of a file: the agent has some bytes of each in memory, where other nodes follow. Whoever owns the dataset
// can make a file as large as they like, with nothing in it.
constexpr uint64_t kMostChunks = 16 << 20;
constexpr uint32_t kRun = Copier::kPieces;  // chunks in a row that are filled at a time
static_assert(kChunkBytes == Copier::kPiece);

// What else may have changed is found once a chunk was copied.
bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// `copy` with a hole as long as the file.
Result<Fd> as_hole(Fd copy, off_t bytes) {
  if (os::ftruncate(copy.get(), bytes) != 0) return errno_error("make a sparse copy");
  return copy;
}

}  // namespace

void ChunkStager::begin(Staging* work) {
  const MutexLock one(starting_);              // before any task can ask for a chunk
  context_->settle(work->ref, large_word(0));  // opens do not wait for it
  // Staged once it is known to be read in chunks, or by prefetch: of a hinted one, by its home's.
  if (work->why == Why::kDemand || (work->hinted && !context_->source->is_ours(work->ref)))
    return queue_->prefetch_large(work->ref);
  std::shared_ptr<Ends> ends;
  const Large file = start(work, &ends);
  if (!file) return;
  {
    const MutexLock hold(lock_);
    progress(file).filling = true;
  }
  queue_->fill(file->ref, WorkQueue::Place::kLast);
}

void ChunkStager::demand(Ref ref, uint32_t chunk) {
  if (chunk != kReadNatively) return queue_->demand_chunk(ref, chunk);
  {
    const MutexLock hold(lock_);
    native_.insert(ref);
    if (const auto at = large_.find(ref); at != large_.end() && progress(at->second).filling) return;
  }
  queue_->demand_chunk(ref, 0);  // which begins the rest
}

void ChunkStager::demand_whole(Ref ref) {
  bool filling = false;
  {
    const MutexLock hold(lock_);
    const auto at = large_.find(ref);
    if (!wanted_.insert(ref).second && at != large_.end()) return;
    filling = at != large_.end() && progress(at->second).filling;
  }
  if (filling)
    queue_->fill(ref, WorkQueue::Place::kWanted);
  else
    queue_->demand_chunk(ref, 0);  // which begins the rest
}

std::optional<uint32_t> ChunkStager::next_chunk(Ref ref) {
  const MutexLock hold(lock_);
  const Large file = known(ref);
  if (!file) return {};
  Progress& p = progress(file);
  while (p.next < file->count && p.claimed[p.next]) ++p.next;
  if (p.begun >= file->allowed || p.next >= file->count) return {};
  return p.next;
}

ChunkStager::Large ChunkStager::known(Ref ref) {
  const auto at = large_.find(ref);
  return at == large_.end() ? nullptr : at->second;
}

ChunkStager::Large ChunkStager::known(Ref ref, std::shared_ptr<Ends>* ends) {
  const MutexLock hold(lock_);
  Large file = known(ref);
  if (file) *ends = progress(file).ends;
  return file;
}

// Where the ends are open nobody waits for another file's to be opened.
ChunkStager::Large ChunkStager::large_file(Staging* work, Copier* copier, std::shared_ptr<Ends>* ends) {
  Large file = known(work->ref, ends);
  if (*ends) return file;
  const MutexLock one(starting_);
  file = known(work->ref, ends);
  if (*ends) return file;
  if (!file) return open(work, copier, ends);
  return unpark(file, work, copier, ends) ? file : nullptr;
}

ChunkStager::Large ChunkStager::open(Staging* work, Copier* copier, std::shared_ptr<Ends>* ends) {
  Entry& e = context_->catalog->entry(work->ref);
  const uint64_t word = e.state.load(std::memory_order_acquire);
  if (state_of(word) != State::kLarge || chunks_of(word) != 0) return nullptr;  // settled, or given up
  if (!open_source(work, *copier)) {
    const int error = errno;
    if (is_shortage(error)) {
      health_->put_off(work->ref, error);
      return nullptr;
    }
    spdlog::warn("stage {}: {}", context_->catalog->path_of(work->ref), std::strerror(error));
    add(context_->board, AgentCounter::source_errors);
    context_->settle(work->ref, verdict_on_open(error));
    return nullptr;
  }
  if (work->bytes() != e.size.load(std::memory_order_relaxed) ||
      ns_of(work->st.st_mtim) != e.mtime.load(std::memory_order_relaxed)) {
    add(context_->board, AgentCounter::dropped_files);
    context_->settle(work->ref, state_word(State::kDropped, Reason::kChanged));
    return nullptr;
  }
  return start(work, ends);
}

bool ChunkStager::open_source(Staging* work, const Copier& copier) {
  const std::string path = context_->catalog->path_of(work->ref);
  work->source = context_->source->open(work->ref, path, work->need(), copier);
  return work->source && work->source->values(&work->st);
}

ChunkStager::Large ChunkStager::start(Staging* work, std::shared_ptr<Ends>* ends) {
  const uint64_t bytes = work->bytes();
  if (bytes / kChunkBytes >= kMostChunks) {
    health_->no_room(work->ref);
    return nullptr;
  }
  auto file = std::make_shared<LargeFile>();
  const auto opened = std::make_shared<Ends>();
  const Ref ref = work->ref;
  file->ref = ref;
  file->st = work->st;
  file->count = chunk_count(bytes);
  file->paid = work->paid;
  file->reserved = bytes;
  file->tier = context_->hierarchy->reserve(bytes);
  if (file->tier < 0) file->tier = context_->hierarchy->reserve_part(bytes, kChunkBytes, &file->reserved);
  if (file->tier < 0) {
    health_->no_room(ref);
    return nullptr;
  }
  file->allowed = file->reserved == bytes ? file->count : static_cast<uint32_t>(file->reserved / kChunkBytes);
  Tier& tier = context_->tier(file->tier);
  const bool sparse = is_sparse(file->st);
  uint64_t promised = tier.space_of(file->reserved);
  Result<Fd> copy =
      tier.create_part(ref, file->reserved, file->reserved == bytes && !sparse ? bytes : 0, &promised);
  if (copy.ok() && sparse) {
    copy = as_hole(copy.take(), file->st.st_size);
    if (!copy.ok()) tier.remove(ref);
  }
  if (!copy.ok()) {
    tier.took(promised);
    tier.release(file->reserved);
    if (is_shortage(copy.error().code)) {
      health_->put_off(ref, copy.error().code);
      return nullptr;
    }
    health_->failed(file->tier, copy.error());
    context_->settle(ref, state_word(State::kNoFit, Reason::kTierError));
    return nullptr;
  }
  file->writing = tier.driver().prepare(copy->get(), bytes, false);
  *opened = Ends{std::move(work->source), copy.take()};
  {
    const MutexLock hold(lock_);
    progress(file).promised = promised;
    enter(file, opened);
  }
  if (!file->chunks) {
    tier.remove(ref);
    tier.took(promised);
    tier.release(file->reserved);
    context_->settle(ref, state_word(State::kNoFit));
    return nullptr;
  }
  *ends = opened;
  return file;
}

// Without chunks: the catalog has no room for them.
void ChunkStager::enter(const Large& file, std::shared_ptr<Ends> ends) {
  file->chunks = context_->catalog->start_chunks(file->ref, static_cast<uint32_t>(file->tier), file->st);
  if (!file->chunks) return;
  progress(file).claimed.resize(file->count);
  large_[file->ref] = file;
  hold_ends(file, std::move(ends));
}

// Opens both ends again. False: that failed, and the file has been given up.
bool ChunkStager::unpark(const Large& file, Staging* work, Copier* copier, std::shared_ptr<Ends>* ends) {
  const bool opened = open_source(work, *copier);
  if (!opened && is_shortage(errno)) return put_off(file, errno);
  if (!opened || !same_file(work->st, file->st)) {
    give_up(file, AgentCounter::dropped_files, state_word(State::kDropped, Reason::kChanged));
    return false;
  }
  Result<Fd> copy = context_->tier(file->tier).open_part(file->ref);
  if (!copy.ok() && is_shortage(copy.error().code)) return put_off(file, copy.error().code);
  if (!copy.ok()) {
    // Somebody has removed it: that says nothing about the tier.
    if (copy.error().code != ENOENT) health_->failed(file->tier, copy.error());
    give_up(file, AgentCounter::tier_errors, state_word(State::kNoFit, Reason::kTierError));
    return false;
  }
  if (file->writing == Writing::kDirect) os::set_direct(copy->get(), true);
  const MutexLock hold(lock_);
  if (progress(file).failed) return false;
  *ends = std::make_shared<Ends>(Ends{std::move(work->source), copy.take()});
  hold_ends(file, *ends);
  return true;
}

// Who copies from those that are parked meanwhile has them until the end of the run. The others' sources are
// closed without the lock: a PFS may let that wait.
void ChunkStager::hold_ends(const Large& file, std::shared_ptr<Ends> ends) {
  progress(file).ends = std::move(ends);
  opened_.push_back(file);
  while (opened_.size() > kMaxOpenLarge) {
    std::shared_ptr<Ends>& parked = progress(opened_.front()).ends;
    if (parked.use_count() == 1) to_close_.push_back(std::move(parked->source));
    parked.reset();
    opened_.pop_front();
  }
}

// The chunk that was asked for, or several in a row where nobody waits. False: another thread copies it, or
// it is not to be copied.
bool ChunkStager::claim(const Large& file, const Staging& work, Run* run) {
  Progress& p = progress(file);
  run->first = work.chunk;
  const uint32_t most = work.why == Why::kChunk ? 1 : kRun;
  while (run->count < most && !p.failed && p.begun < file->allowed) {
    const uint32_t n = run->first + run->count;
    if (n >= file->count || p.claimed[n]) break;
    p.claimed[n] = true;
    ++p.begun;
    ++run->count;
  }
  if (run->count == 0) return false;
  ++p.in_flight;
  return true;
}

void ChunkStager::close_sources() {
  std::vector<std::unique_ptr<SourceFile>> sources;
  const MutexLock hold(lock_);
  sources.swap(to_close_);
}

void ChunkStager::stage(Staging* work, Copier* copier) {
  Run run;
  const Large file = large_file(work, copier, &run.ends);
  close_sources();
  if (!file) return;
  bool claimed = false, known = true;
  {
    const MutexLock hold(lock_);
    claimed = claim(file, *work, &run);
    known = std::exchange(progress(file).filling, true);
  }
  // After the chunk that was asked for: what is being read comes before what may be.
  if (!known)
    queue_->fill(file->ref, is_wanted(work->ref) ? WorkQueue::Place::kWanted : WorkQueue::Place::kFirst);
  if (!claimed) {
    if (work->why == Why::kChunk) queue_->hurry(work->ref);  // filling comes back by itself
    return;
  }
  copy_and_publish(file, run, *work, copier);
  end(file);
}

void ChunkStager::copy_and_publish(const Large& file, const Run& run, const Staging& work, Copier* copier) {
  const Status copied = copy(file, run, work.background() && !is_wanted(work.ref), copier);
  if (copied.ok()) {
    context_->board->header.stalled_until_ns.store(0, std::memory_order_relaxed);
    publish(file, run);
  } else if (is_invalid(*context_->board, context_->catalog->entry(file->ref).hash)) {
    give_up(file, AgentCounter::dropped_files, state_word(State::kDropped, Reason::kWritten));
  } else if (context_->stopping || copied.error().code == ECANCELED) {
    // Nothing is known of the tier, and nobody asks any more.
  } else if (is_shortage(copied.error().code)) {
    put_off(file, copied.error().code);
  } else if (is_source_error(copied.error())) {
    spdlog::warn("stage {}: {}", context_->catalog->path_of(file->ref), copied.error().text);
    const Verdict v = verdict_on_read(copied.error());
    give_up(file, v.counter, v.word);
  } else {
    health_->failed(file->tier, copied.error());
    give_up(file, AgentCounter::tier_errors, state_word(State::kNoFit, Reason::kTierError));
  }
}

bool ChunkStager::is_wanted(Ref ref) {
  const MutexLock hold(lock_);
  return wanted_.count(ref) != 0;
}

bool ChunkStager::is_native(Ref ref) {
  const MutexLock hold(lock_);
  return native_.count(ref) != 0;
}

Status ChunkStager::copy(const Large& file, const Run& run, bool paced, Copier* copier) {
  if (is_invalid(*context_->board, context_->catalog->entry(file->ref).hash))
    return Error{ESTALE, "the job wrote it"};
  const auto size = static_cast<uint64_t>(file->st.st_size);
  const uint64_t offset = uint64_t{run.first} * kChunkBytes;
  const uint64_t bytes = std::min<uint64_t>(run.count * kChunkBytes, size - offset);
  const Ends& ends = *run.ends;
  const MemoryPolicy spread(file->writing == Writing::kMemory);
  MONARCH_TRY(ends.source->copy({.copy = ends.copy.get(),
                                 .file_bytes = size,
                                 .offset = offset,
                                 .bytes = bytes,
                                 .writing = file->writing,
                                 .paced = paced,
                                 .keep_pages = is_native(file->ref) || is_wanted(file->ref),
                                 .sparse = is_sparse(file->st)},
                                copier));
  // Chunks are read as soon as they are published, so theirs cannot be told later that they were lost.
  if (file->writing == Writing::kBuffered &&
      os::sync_range(ends.copy.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes), Sync::kFinish) !=
          0 &&
      is_write_back_error(errno))
    return errno_error("write-back at " + std::to_string(offset));
  if (!unchanged(*ends.source, file->st))
    return Error{ESTALE, std::string(kSource) + "it changed while it was copied"};
  return {};
}

void ChunkStager::publish(const Large& file, const Run& run) {
  const auto size = static_cast<uint64_t>(file->st.st_size);
  const uint64_t offset = uint64_t{run.first} * kChunkBytes;
  const uint64_t bytes = std::min<uint64_t>(run.count * kChunkBytes, size - offset);
  bool whole = false, closed = false;
  {
    const MutexLock hold(lock_);
    Progress& p = progress(file);
    if (p.failed) return;
    p.done += run.count;
    p.placed += bytes;
    whole = p.done == file->count;
    // The last ones are told by the whole file: who reads the end of it and opens it again gets the copy.
    for (uint32_t i = 0; i < run.count && !whole; ++i)
      context_->catalog->set_chunk(file->chunks, run.first + i);
    closed = p.done == file->allowed && !whole;
    if (closed) kept_.insert(large_.extract(file->ref));  // its ends are closed with its last run
  }
  take_promise(file, whole || closed ? UINT64_MAX : bytes);
  add(context_->board, AgentCounter::staged_chunks, run.count);
  context_->count_staged(bytes, file->paid);
  context_->board->placed_bytes[file->tier].fetch_add(bytes, std::memory_order_relaxed);
  if (closed) context_->catalog->close_chunks(file->chunks);
  if (closed) context_->source->given_up(file->ref);
  if (whole) finish(file, run);
  if (whole || closed) wake_parked(context_->board, context_->catalog->entry(file->ref).hash);
  const uint32_t hash = context_->catalog->entry(file->ref).hash;
  for (uint32_t i = 0; i < run.count; ++i) wake_parked(context_->board, hash, run.first + i);
}

// The last thread that copies for a file closes what is not needed any more.
void ChunkStager::end(const Large& file) {
  uint64_t placed = 0;
  {
    const MutexLock hold(lock_);
    Progress& p = progress(file);
    if (--p.in_flight > 0) return;
    if (large_.find(file->ref) == large_.end() || p.failed) p.ends.reset();
    if (!p.failed) return;
    placed = p.placed;
  }
  release(file, placed);
}

void ChunkStager::finish(const Large& file, const Run& last) {
  Tier& tier = context_->tier(file->tier);
  struct stat made;
  const Status done = tier.publish_part(last.ends->copy, file->ref, file->st, &made);
  if (!done.ok() && is_shortage(done.error().code)) {
    (void)put_off(file, done.error().code);
    return;
  }
  if (!done.ok()) {
    if (done.error().code != ENOENT) health_->failed(file->tier, done.error());  // else: somebody removed it
    return give_up(file, AgentCounter::tier_errors, state_word(State::kNoFit, Reason::kTierError));
  }
  // Before anyone can take it away again.
  if (is_sparse(file->st)) context_->sparse.add(&tier, file->ref, made, file->reserved);
  // A full run directory: nobody would find the copy under the name that it has now.
  if (!context_->catalog->place(file->ref, static_cast<uint32_t>(file->tier), made.st_ino, file->st)) {
    file->reserved = context_->sparse.remove(tier, file->ref, file->reserved);
    return give_up(file, AgentCounter::no_fit_files, state_word(State::kNoFit));
  }
  context_->source->copied(file->ref, file->tier);
  add(context_->board, AgentCounter::staged_files);
  bool kept = false;
  {
    const MutexLock hold(lock_);
    large_.erase(file->ref);
    kept = wanted_.erase(file->ref) != 0 && native_.count(file->ref) == 0;
  }
  // Nobody had to read the PFS instead, and now nobody will.
  if (kept) os::drop_pages(last.ends->source->fd(), 0, file->st.st_size);
}

// Other threads may still be copying for it: the last one to end, who may be this one, gives its space back,
// once it is known whether the copy is gone. The name is free at once, for another attempt.
void ChunkStager::give_up(const Large& file, AgentCounter counter, uint64_t word) {
  {
    const MutexLock hold(lock_);
    Progress& p = progress(file);
    if (std::exchange(p.failed, true)) return;
    large_.erase(file->ref);
    wanted_.erase(file->ref);  // who asks again is heard
    ++p.in_flight;
  }
  context_->source->given_up(file->ref);
  Tier& tier = context_->tier(file->tier);
  file->removed = tier.remove(file->ref);
  context_->settle(file->ref, word);
  // TierHealth counts those.
  if (counter != AgentCounter::tier_errors && counter != AgentCounter::put_off_files)
    add(context_->board, counter);
  wake_all(file->ref, file->count);
  end(file);
}

void ChunkStager::wake_all(Ref ref, uint32_t chunks) const {
  const uint32_t hash = context_->catalog->entry(ref).hash;
  for (uint32_t n = 0; n < std::min(chunks, kParking); ++n) wake_parked(context_->board, hash, n);
}

// Tasks are told before the caller removes the copy: who opened a partial copy and finds that it still counts
// has the one that his chunks are in.
std::optional<uint64_t> ChunkStager::evict(Ref ref, int tier, uint64_t word) {
  Large file;
  bool last = false;
  uint64_t placed = 0;
  {
    const MutexLock hold(lock_);
    file = known(ref);
    if (const auto kept = kept_.find(ref); !file && kept != kept_.end()) file = kept->second;
    if (!file || file->tier != tier || progress(file).failed || progress(file).done == file->count) return {};
    Progress& p = progress(file);
    last = p.in_flight == 0;
    placed = p.placed;
    if (last && p.ends) {
      to_close_.push_back(std::move(p.ends->source));
      p.ends->copy.reset();
    }
    p.failed = true;
    p.ends.reset();
    kept_.erase(ref);
    large_.erase(ref);
    std::erase(opened_, file);
    wanted_.erase(ref);
  }
  // Whoever takes it closes the source; what is being copied ends soon, whatever the admin's rate.
  if (last)
    queue_->demand_chunk(ref, 0);
  else
    queue_->hurry(ref);
  context_->source->given_up(ref);
  context_->settle(ref, word);
  wake_all(ref, file->count);
  if (last) release(file, placed);
  return file->reserved;
}

bool ChunkStager::put_off(const Large& file, int error) {
  give_up(file, AgentCounter::put_off_files, state_word(State::kNoFit, Reason::kTierError));
  health_->ran_short(error);
  return false;
}

// The file system has taken so much more of what is promised for the file, or will not be asked for it: it
// may be holes.
void ChunkStager::take_promise(const Large& file, uint64_t space) {
  {
    const MutexLock hold(lock_);
    space = std::min(space, progress(file).promised);
    progress(file).promised -= space;
  }
  context_->tier(file->tier).took(space);
}

void ChunkStager::release(const Large& file, uint64_t placed) {
  take_promise(file, UINT64_MAX);
  if (file->removed) context_->tier(file->tier).release(file->reserved);  // else it takes its space still
  context_->board->placed_bytes[file->tier].fetch_sub(placed, std::memory_order_relaxed);
}

}  // namespace monarch
