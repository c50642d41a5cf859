// SPDX-License-Identifier: Apache-2.0
#include "runtime/metadata/board.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <array>
#include <bit>
#include <climits>
#include <cstring>

#include "runtime/base/fd.h"
#include "runtime/metadata/run_file.h"

namespace monarch {

Result<BoardFile> BoardFile::create(const std::string& run_dir) {
  const std::string path = run_dir + "/board";
  Result<Fd> fd = begin_run_file(path);
  if (!fd.ok()) return fd.error();
  const auto failed = [&](const char* what, int error) {
    drop_run_file(*fd, path);
    return errno_error(what + path, error);
  };
  if (const int rc = ::posix_fallocate(fd->get(), 0, sizeof(Board)); rc != 0) return failed("allocate ", rc);
  void* address = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, fd->get(), 0);
  if (address == MAP_FAILED) return failed("map ", errno);
  auto* board = static_cast<Board*>(address);
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutex_init(&board->header.agent_lives, &attributes);
  pthread_mutexattr_destroy(&attributes);
  board->header.version = kBoardVersion;
  board->header.bytes = sizeof(Board);
  board->header.magic.store(kBoardMagic, std::memory_order_release);
  return BoardFile(board);
}

Result<BoardFile> BoardFile::open(const std::string& run_dir) {
  RunDirectory dir{run_dir.c_str()};
  void* address = map_shared(&dir, "board", sizeof(Board), true);
  if (!address) return Error{ENOENT, run_dir + "/board: missing, too short, or not this user's alone"};
  BoardFile file(static_cast<Board*>(address));
  if (!is_this_board(*file.get()))
    return Error{EPROTO, run_dir + "/board: made by another version of Monarch"};
  return file;
}

BoardFile::~BoardFile() {
  if (board_) ::munmap(board_, sizeof(Board));
}

Status declare_alive(Board* board) {
  int rc = pthread_mutex_trylock(&board->header.agent_lives);
  if (rc == EOWNERDEAD) rc = pthread_mutex_consistent(&board->header.agent_lives);
  return rc == 0 ? Status() : Status(errno_error("lock the board", rc));
}

void wake_parked(Board* board, uint32_t hash, uint32_t chunk) {
  std::atomic<uint32_t>* parking = &board->parking[parking_of(hash, chunk)];
  parking->fetch_add(1, std::memory_order_release);
  futex_wake(parking, INT_MAX);
}

void RequestRing::wait(int timeout_ms, AgentSleep how, const std::function<bool()>& drained) {
  BoardHeader& h = board_->header;
  h.agent_sleeps.store(how, std::memory_order_seq_cst);
  if (h.doorbell.load(std::memory_order_seq_cst) == seen_ && drained())
    futex_wait(&h.doorbell, seen_, timeout_ms * 1000000ll);
  h.agent_sleeps.store(kAwake, std::memory_order_seq_cst);
}

void RequestRing::drain(uint32_t roots, const std::function<void(const RelPath&, uint32_t)>& take) {
  seen_ = board_->header.doorbell.load(std::memory_order_seq_cst);
  char path[kPathBytes];
  for (uint32_t i = 0; i < kSlots; ++i) {
    RequestSlot& slot = board_->slots[i];
    uint64_t word = slot.word.load(std::memory_order_acquire);
    if (slot_state(word) == SlotState::kClaimed) free_stale(i, word);
    if (slot_state(word) != SlotState::kReady) continue;
    const uint32_t len = slot.len, root = slot.root,
                   chunk = slot.chunk;  // once: the owner may write what it likes
    if (len > 0 && len < kPathBytes && root < roots) {
      std::memcpy(path, slot.path, len);
      if (is_clean_relative(path, len)) take(rel_path(root, path, len), chunk);
    }
    slot.word.compare_exchange_strong(word, slot_word(slot_turn(word), SlotState::kFree),
                                      std::memory_order_acq_rel);
    add(board_, AgentCounter::requests);
  }
}

void RequestRing::free_stale(uint32_t i, uint64_t word) {
  Claim& claim = claimed_[i];
  const int64_t now = clock_.now_ns();
  if (claim.word != word) {
    claim = Claim{word, now};
  } else if (now - claim.since_ns > int64_t{kStaleSeconds} * 1000000000) {
    board_->slots[i].word.compare_exchange_strong(word, slot_word(slot_turn(word) + 1, SlotState::kFree),
                                                  std::memory_order_acq_rel);
  }
}

bool SeenSlots::drain(const std::function<void(const Seen&)>& take) {
  const uint32_t now = board_->header.seen.load(std::memory_order_seq_cst);
  if (now == seen_) return false;
  seen_ = now;
  for (SeenSlot& slot : board_->seen) {
    if (slot.state.load(std::memory_order_acquire) != static_cast<uint32_t>(SlotState::kReady)) continue;
    const Seen copy = slot.seen;
    slot.state.store(static_cast<uint32_t>(SlotState::kFree), std::memory_order_release);
    take(copy);
  }
  return true;
}

uint64_t total(const Board& board, TaskCounter counter) {
  uint64_t sum = 0;
  for (const CounterShard& s : board.shards)
    sum += s.task[static_cast<uint32_t>(counter)].load(std::memory_order_relaxed);
  return sum;
}

uint64_t total(const Board& board, AgentCounter counter) {
  return board.agent[static_cast<uint32_t>(counter)].load(std::memory_order_relaxed);
}

TierTotals tier_totals(const Board& board, uint32_t tier) {
  TierTotals sum{0, 0, 0, board.placed_bytes[tier].load(std::memory_order_relaxed),
                 board.granted[tier].load(std::memory_order_acquire)};
  for (const CounterShard& s : board.shards) {
    sum.opens += s.opens_tier[tier].load(std::memory_order_relaxed);
    sum.read_calls += s.read_calls_tier[tier].load(std::memory_order_relaxed);
    sum.read_bytes += s.read_bytes_tier[tier].load(std::memory_order_relaxed);
  }
  return sum;
}

OpenTimes open_times(const Board& board) {
  OpenTimes sum;
  for (const CounterShard& s : board.shards)
    for (uint32_t kind = 0; kind < kOpenKinds; ++kind)
      for (uint32_t bucket = 0; bucket < kOpenBuckets; ++bucket)
        sum.counts[kind][bucket] += s.open_times[kind][bucket].load(std::memory_order_relaxed);
  return sum;
}

NodeCounts node_counts(const Board& board, const std::vector<Medium>& tiers) {
  NodeCounts c;
  for (uint32_t i = 0; i < kTaskCounters; ++i) c.task[i] = total(board, static_cast<TaskCounter>(i));
  for (uint32_t i = 0; i < kAgentCounters; ++i) c.agent[i] = total(board, static_cast<AgentCounter>(i));
  for (uint32_t i = 0; i < kMaxTiers; ++i) {
    const TierTotals tier = tier_totals(board, i);
    c.opens_tier += tier.opens;
    c.read_bytes_tier += tier.read_bytes;
    c.read_calls_tier += tier.read_calls;
    if (i < tiers.size()) c.placed_bytes[static_cast<uint32_t>(tiers[i])] += tier.placed_bytes;
  }
  c.open_times = open_times(board);
  return c;
}

namespace {

using NodeWords = std::array<uint64_t, kNodeWords>;

}  // namespace

void add(NodeCounts* sum, const NodeCounts& more) {
  auto words = std::bit_cast<NodeWords>(*sum);
  const auto added = std::bit_cast<NodeWords>(more);
  for (uint32_t i = 0; i < kNodeWords; ++i) words[i] += added[i];
  *sum = std::bit_cast<NodeCounts>(words);
}

uint64_t placed_files(const NodeCounts& c) {
  const uint64_t gone = c[AgentCounter::evicted_files] + c[AgentCounter::staged_again];
  return c[AgentCounter::staged_files] - std::min(gone, c[AgentCounter::staged_files]);
}

uint64_t bytes_from_pfs(const NodeCounts& c) {
  return c[AgentCounter::agent_bytes_pfs] + c[TaskCounter::read_bytes_pfs];
}

void set_others(Board* board, const OthersTotals& others) {
  const uint64_t next = 1 - (board->others_at.load(std::memory_order_relaxed) & 1);
  OtherNodes& to = board->others[next];
  const auto words = std::bit_cast<NodeWords>(others.counts);
  for (uint32_t i = 0; i < kNodeWords; ++i) to.words[i].store(words[i], std::memory_order_relaxed);
  to.ended.store(others.ended, std::memory_order_relaxed);
  board->others_at.store(next, std::memory_order_release);
}

OthersTotals others_of(const Board& board) {
  const OtherNodes& from = board.others[board.others_at.load(std::memory_order_acquire) & 1];
  NodeWords words;
  for (uint32_t i = 0; i < kNodeWords; ++i) words[i] = from.words[i].load(std::memory_order_relaxed);
  return {std::bit_cast<NodeCounts>(words), from.ended.load(std::memory_order_relaxed)};
}

bool has_used(const NodeCounts& c) {
  constexpr uint64_t kFewLooks = 64;
  return c.opens_tier + c[TaskCounter::opens_pfs] + c[TaskCounter::mmap_bytes] + c[TaskCounter::waits] != 0 ||
         c[TaskCounter::meta_pfs] + c[TaskCounter::meta_served] > kFewLooks ||
         // What other nodes got from this one their tasks have opened: each node prefetches for itself.
         c[AgentCounter::served_files] != 0;
}

bool has_been_used(const Board& board) {
  return has_used(node_counts(board, {})) ||
         (board.nodes.load(std::memory_order_relaxed) > 1 && has_used(others_of(board).counts));
}

bool is_clean_relative(const char* path, size_t len) {
  size_t start = 0;
  for (size_t i = 0; i <= len; ++i) {
    if (i < len && path[i] == '\0') return false;
    if (i < len && path[i] != '/') continue;
    const size_t n = i - start;
    if (n == 0 || (n == 1 && path[start] == '.') || (n == 2 && path[start] == '.' && path[start + 1] == '.'))
      return false;
    start = i + 1;
  }
  return true;
}

}  // namespace monarch
