// SPDX-License-Identifier: Apache-2.0
// The placement handler's work on files larger than stage_wait_max: staged in chunks, which reads with an
// offset are served from before the file is whole.
#include <fcntl.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>

#include "runtime/base/os.h"
#include "runtime/placement/copying.h"
#include "runtime/placement/placement.h"

namespace monarch {

PlacementHandler::Large PlacementHandler::large_file(Ref ref) {
  const auto known = [&]() -> Large {
    const std::lock_guard<std::mutex> hold(lock_);
    const auto at = large_.find(ref);
    return at == large_.end() ? nullptr : at->second;
  };
  if (Large file = known()) return file;
  const std::lock_guard<std::mutex> one(starting_large_);
  if (Large file = known()) return file;
  Entry& e = catalog_->entry(ref);
  const uint64_t word = e.state.load(std::memory_order_acquire);
  if (state_of(word) != State::kLarge || chunks_of(word) != 0) return nullptr;  // settled, or given up
  const DatasetRoot& root = dataset_->roots[e.root];
  add(board_, AgentCounter::agent_opens_pfs);
  Fd source(os::open_beneath(root.fd.get(), catalog_->path_of(ref).c_str(),
                             O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat st;
  if (!source || os::fstat(source.get(), &st) != 0) {
    add(board_, AgentCounter::source_errors);
    settle(ref, state_word(State::kPass, Reason::kSourceError));
    return nullptr;
  }
  if (static_cast<uint64_t>(st.st_size) != e.size.load(std::memory_order_relaxed) ||
      time_of(st.st_mtim) != e.mtime.load(std::memory_order_relaxed)) {
    add(board_, AgentCounter::dropped_files);
    settle(ref, state_word(State::kDropped, Reason::kChanged));
    return nullptr;
  }
  return start_large(ref, std::move(source), st);
}

PlacementHandler::Large PlacementHandler::start_large(Ref ref, Fd source, const struct stat& st) {
  auto file = std::make_shared<LargeFile>();
  const uint64_t bytes = static_cast<uint64_t>(st.st_size);
  file->ref = ref;
  file->source = std::move(source);
  file->st = st;
  file->count = chunk_count(bytes);
  file->reserved = bytes;
  file->tier = hierarchy_->reserve(bytes);
  if (file->tier < 0) file->tier = hierarchy_->reserve_part(bytes, kChunkBytes, &file->reserved);
  if (file->tier < 0) {
    no_room({ref, Why::kPrefetch, 0});
    return nullptr;
  }
  file->allowed = file->reserved == bytes ? file->count : static_cast<uint32_t>(file->reserved / kChunkBytes);
  file->claimed.resize(file->count);
  Tier& tier = hierarchy_->tiers()[static_cast<size_t>(file->tier)];
  Result<Fd> copy = tier.create_part(ref, file->reserved == bytes ? bytes : 0);
  if (!copy.ok()) {
    tier.close(copy.error().text);
    tier.release(file->reserved);
    add(board_, AgentCounter::tier_errors);
    settle(ref, state_word(State::kNoFit, Reason::kTierError));
    return nullptr;
  }
  file->copy = copy.take();
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
  return file;
}

void PlacementHandler::stage_chunk(const Work& work, std::vector<char>* buffer) {
  const Large file = large_file(work.ref);
  const uint32_t n = work.chunk;
  if (!file) return;
  Entry& e = catalog_->entry(file->ref);
  {
    const std::lock_guard<std::mutex> hold(lock_);
    const bool take = n < file->count && !file->failed && !file->claimed[n] && file->begun < file->allowed;
    if (take) {
      file->claimed[n] = true;
      ++file->begun;
    }
    if (!std::exchange(file->filling, true)) {  // after the chunk that was asked for
      filling_.push_front(file);                // what is being read comes before what may be
      work_.notify_all();
    }
    if (!take) return;
  }
  if (is_invalid(*board_, e.hash))
    return give_up_large(file, AgentCounter::dropped_files, state_word(State::kDropped, Reason::kWritten));
  const uint64_t offset = uint64_t{n} * kChunkBytes;
  const uint64_t bytes = std::min<uint64_t>(kChunkBytes, static_cast<uint64_t>(file->st.st_size) - offset);
  const int64_t start = monotonic_ns();
  Tier& tier = hierarchy_->tiers()[static_cast<size_t>(file->tier)];
  if (const Status copied = copy(file->source.get(), file->copy, offset, bytes, buffer); !copied.ok()) {
    if (stopping_) return;
    if (is_source_error(copied.error())) {
      const Verdict v = verdict_on_read(copied.error());
      return give_up_large(file, v.counter, v.word);
    }
    tier.close(copied.error().text);
    return give_up_large(file, AgentCounter::tier_errors, state_word(State::kNoFit, Reason::kTierError));
  }
  if (!unchanged(file->source.get(), file->st))
    return give_up_large(file, AgentCounter::dropped_files, state_word(State::kDropped, Reason::kChanged));
  bool whole, closed;
  {
    const std::lock_guard<std::mutex> hold(lock_);
    if (file->failed) return;
    catalog_->set_chunk(file->chunks, n);
    ++file->done;
    whole = file->done == file->count;
    closed = file->done == file->allowed && !whole;
  }
  note_rate(bytes, monotonic_ns() - start);
  add(board_, AgentCounter::staged_chunks);
  add(board_, AgentCounter::staged_bytes, bytes);
  board_->placed_bytes[file->tier].fetch_add(bytes, std::memory_order_relaxed);
  if (closed) catalog_->close_chunks(file->chunks);
  wake_parked(board_, e.hash, n);
  if (whole) finish_large(file);
}

void PlacementHandler::finish_large(const Large& file) {
  Tier& tier = hierarchy_->tiers()[static_cast<size_t>(file->tier)];
  struct stat made;
  if (!take_times(file->copy.get(), file->st) || os::fstat(file->copy.get(), &made) != 0 ||
      !tier.publish_part(file->ref).ok()) {
    tier.close("finish a large copy");
    return give_up_large(file, AgentCounter::tier_errors, state_word(State::kNoFit, Reason::kTierError));
  }
  // A full run directory: what is staged in chunks stays in use as such.
  if (catalog_->place(file->ref, static_cast<uint32_t>(file->tier), made.st_ino, file->st))
    add(board_, AgentCounter::staged_files);
  const std::lock_guard<std::mutex> hold(lock_);
  large_.erase(file->ref);
}

void PlacementHandler::give_up_large(const Large& file, AgentCounter counter, uint64_t word) {
  {
    const std::lock_guard<std::mutex> hold(lock_);
    if (std::exchange(file->failed, true)) return;
    large_.erase(file->ref);
  }
  settle(file->ref, word);
  add(board_, counter);
  Tier& tier = hierarchy_->tiers()[static_cast<size_t>(file->tier)];
  tier.remove_part(file->ref);
  tier.release(file->reserved);
  Entry& e = catalog_->entry(file->ref);
  for (uint32_t n = 0; n < file->count && n < kParking; ++n) wake_parked(board_, e.hash, n);
}

}  // namespace monarch
