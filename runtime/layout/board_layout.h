// SPDX-License-Identifier: Apache-2.0
// The board's shared layout: the one file in the job's run directory that tasks write.
//
// The board is a file of fixed size, `board`, allocated before use and mapped MAP_SHARED by the agent
// and by every task. Nothing in it is trusted: a task's own owner can write anything into it, so the
// agent range-checks what it reads, a wrong value costs at most speed, and root never maps it.
//
//   BoardHeader     version, whether the agent lives, what it asks of tasks
//   CounterShard[]  counters, and how long opens took, one shard per CPU (modulo kShards): a hit writes no
//                   line that another CPU writes. They survive _exit(2), SIGKILL and the agent.
//   OtherNodes[]    on the first of several nodes: what the agents of the others have told of their counters
//   parking[]       futex words: who waits for an entry sleeps on parking[hash mod kParking]
//   RequestSlot[]   the request ring: what tasks ask of the agent
//   SeenSlot[]      what tasks saw of files that are not placed, for the catalog
//   invalid[]       one bit per hash of a path, an inode or a directory: the job changed it, serve it
//                   from the PFS
//   changed_at[]    when that was, as the number of the change: what was copied since then serves again
//
// A request. A task claims a slot (kFree -> kClaimed), fills it in, publishes it (kReady) and rings
// the doorbell. The agent copies the path out, enters the path into the catalog as kQueued, frees the
// slot, stages the file and wakes parking[hash mod kParking]. So a slot is held for microseconds, and
// what a task acts on is never the slot but the catalog, looked up with the path it asked for: no entry
// and no slot of its own left means that the agent refused. Each state word carries the slot's turn in
// its upper half, so that a task that comes back late (stopped, swapped out) publishes nothing; the
// agent frees a slot that stays kClaimed for kStaleSeconds.
#pragma once

#include <pthread.h>
#include <stdint.h>

#include <atomic>
#include <bit>
#include <cstddef>

#include "runtime/layout/catalog_layout.h"

namespace monarch {

inline constexpr uint64_t kBoardMagic = 0x42484352414e4f4d;  // "MONARCHB", little-endian
inline constexpr uint32_t kBoardVersion = 18;                // readers refuse any other

inline constexpr uint32_t kShards = 64;
inline constexpr uint32_t kParking = 1024;
inline constexpr uint32_t kSlots = 128;
inline constexpr uint32_t kSeenSlots = 1024;
inline constexpr uint64_t kInvalidBits = uint64_t{1} << 23;
inline constexpr uint32_t kChangeSlots = 1 << 16;
inline constexpr int kAttached = 1024;
inline constexpr int kStaleSeconds = 60;

// Counters that tasks keep, per shard. X(name, what it counts). The order is part of the layout; the
// per-tier ones follow in CounterShard.
#define MONARCH_TASK_COUNTERS(X)                                                                \
  X(opens_pfs, "opens of dataset files that went to the PFS")                                   \
  X(read_bytes_pfs, "bytes that read(2) and kin returned from dataset files opened on the PFS") \
  X(read_calls_pfs, "read(2) and kin on dataset files opened on the PFS")                       \
  X(waits, "opens that waited for the agent to stage a file")                                   \
  X(waited_hits, "opens that returned a tier's copy after they had waited for it")              \
  X(wait_ns, "nanoseconds that opens waited for the agent")                                     \
  X(fallback_no_agent, "opens on the PFS because the agent was gone")                           \
  X(fallback_timeout, "opens on the PFS because staging took longer than an open waits")        \
  X(fallback_ring_full, "opens on the PFS because the request ring was full")                   \
  X(fallback_no_fit, "opens on the PFS because no tier has room for the file")                  \
  X(fallback_pass, "opens on the PFS of what is never staged, or the program may not take")     \
  X(fallback_large, "opens on the PFS of files larger than stage_wait_max and not yet placed")  \
  X(fallback_dropped, "opens on the PFS because the source had changed, or the copy was gone")  \
  X(fallback_invalid, "opens on the PFS of files that the job wrote")                           \
  X(fallback_absent, "opens on the PFS of paths that are not there, as far as known")           \
  X(fallback_tier_error, "opens on the PFS because the tier's copy did not open")               \
  X(invalidations, "marks set because the job changed a file or directory")                     \
  X(chunk_waits, "reads that waited for the agent to stage a chunk of a large file")            \
  X(chunk_fallbacks, "reads of large files from the PFS because a chunk did not come in time")  \
  X(mmap_bytes, "bytes of dataset files mapped (an estimate of what is read through them)")     \
  X(meta_pfs, "metadata calls below a root that went to the PFS")                               \
  X(meta_served, "metadata calls below a root that Monarch answered")                           \
  X(fallback_excluded, "opens on the PFS because MONARCH_IO_EXCLUDE names the file or program") \
  X(fallback_mount, "opens on the PFS of a dataset below which the task itself has mounts")     \
  X(returned, "open descriptors of copies that went back to the PFS because the file changed")  \
  X(moved, "descriptors, opened before a large file was whole, that are its copy's since")

// Counters that the agent keeps, once.
#define MONARCH_AGENT_COUNTERS(X)                                                             \
  X(walk_dirs, "directories that the walk listed")                                            \
  X(walk_files, "regular files that the walk found, but excluded ones")                       \
  X(walk_errors, "directories that the walk could not list")                                  \
  X(agent_opens_pfs, "opens that the agent made on the PFS")                                  \
  X(agent_reads_pfs, "reads that the agent made on the PFS")                                  \
  X(agent_bytes_pfs, "bytes that the agent read from the PFS")                                \
  X(staged_files, "files placed on a tier")                                                   \
  X(staged_bytes, "bytes placed on tiers")                                                    \
  X(staged_chunks, "chunks of large files placed on tiers")                                   \
  X(demand_files, "files placed because an open waited for them")                             \
  X(prefetch_files, "files placed by prefetch")                                               \
  X(no_fit_files, "files for which no tier had room")                                         \
  X(pass_files, "paths asked for that are never staged")                                      \
  X(dropped_files, "copies given up because the source changed")                              \
  X(staged_again, "files staged again after the job wrote them")                              \
  X(source_errors, "files given up because the PFS failed")                                   \
  X(tier_errors, "files given up because a tier failed")                                      \
  X(requests, "requests taken from the ring")                                                 \
  X(dataset_bytes, "bytes of dataset files, as far as known")                                 \
  X(put_off_files, "files tried again later: the agent ran short of descriptors or memory")   \
  X(peer_files, "files that came from other nodes of the job")                                \
  X(peer_bytes, "bytes that came from other nodes of the job")                                \
  X(peer_errors, "nodes that could not be reached, or broke off")                             \
  X(peer_timeouts, "nodes that did not answer in time")                                       \
  X(peer_bad, "pieces of files that came from other nodes with wrong bytes")                  \
  X(served_files, "files, or parts of them, that other nodes got from this one")              \
  X(served_bytes, "bytes that other nodes got from this one")                                 \
  X(dup_files, "files read from the PFS though another node had them, as far as known")       \
  X(evicted_files, "copies removed because root lowered a tier's quota")                      \
  X(hinted_files, "files that prefetch took in the order of hints")                           \
  X(late_nodes, "nodes whose tasks began before their agent was ready, and were not counted") \
  X(sized_files, "files whose size is in dataset_bytes")                                      \
  X(pfs_ns, "time that copy threads, all together, took for files of the PFS")                \
  X(peer_ns, "and for bytes that came from other nodes of the job")

enum class TaskCounter : uint32_t {
#define X(name, doc) name,
  MONARCH_TASK_COUNTERS(X)
#undef X
      kCount
};
enum class AgentCounter : uint32_t {
#define X(name, doc) name,
  MONARCH_AGENT_COUNTERS(X)
#undef X
      kCount
};
inline constexpr uint32_t kTaskCounters = static_cast<uint32_t>(TaskCounter::kCount);
inline constexpr uint32_t kAgentCounters = static_cast<uint32_t>(AgentCounter::kCount);

// How long opens of dataset files took, as histograms. An open belongs to one of these.
enum class OpenKind : uint32_t {
  kTier,    // it returned a tier's copy and did not wait
  kWaited,  // it waited for the agent, whatever it returned then
  kPfs,     // it went to the PFS and did not wait
  kCount
};
inline constexpr uint32_t kOpenKinds = static_cast<uint32_t>(OpenKind::kCount);
// Of tiers' copies, whose opens are the fast ones, on each processor the first open and then one of so many
// is timed; of the other kinds all are.
inline constexpr uint64_t kOneTimedOf = 64;
// A bucket has what took less than its bound and no less than the bound before it: 0.5 us, and each twice the
// one before. The last one has no bound; it begins at 2.1 s.
inline constexpr uint32_t kOpenBuckets = 24;
inline constexpr uint64_t kFirstBoundNs = 500;
constexpr uint64_t bound_ns(uint32_t bucket) { return kFirstBoundNs << bucket; }
constexpr uint32_t bucket_of(uint64_t ns) {
  const auto bucket = static_cast<uint32_t>(std::bit_width(ns / kFirstBoundNs));
  return bucket < kOpenBuckets ? bucket : kOpenBuckets - 1;
}
struct OpenTimes {
  uint64_t counts[kOpenKinds][kOpenBuckets]{};
  uint64_t* of(OpenKind kind) { return counts[static_cast<uint32_t>(kind)]; }
  const uint64_t* of(OpenKind kind) const { return counts[static_cast<uint32_t>(kind)]; }
};

// What a node counts, without its tiers' names, so that it can be summed over the nodes of a job.
inline constexpr uint32_t kMedia = 4;  // what a tier is made of (Medium, runtime/config/config.h)
struct NodeCounts {
  uint64_t task[kTaskCounters]{};
  uint64_t agent[kAgentCounters]{};
  uint64_t opens_tier = 0, read_bytes_tier = 0, read_calls_tier = 0;  // of all tiers together
  uint64_t placed_bytes[kMedia]{};                                    // on the tiers of each medium
  OpenTimes open_times;

  uint64_t operator[](TaskCounter c) const { return task[static_cast<uint32_t>(c)]; }
  uint64_t operator[](AgentCounter c) const { return agent[static_cast<uint32_t>(c)]; }
};
inline constexpr uint32_t kNodeWords = sizeof(NodeCounts) / sizeof(uint64_t);
inline constexpr uint64_t kMostCount = (uint64_t{1} << 60) - 1;  // that a job can have
// Of counts that anybody may have written: at most that.
constexpr uint64_t sum_of_counts(uint64_t a, uint64_t b) {
  return a < kMostCount && b < kMostCount - a ? a + b : kMostCount;
}

// What the job's other nodes have told the first one, summed.
struct alignas(64) OtherNodes {
  std::atomic<uint64_t> words[kNodeWords];  // of NodeCounts
  std::atomic<uint64_t> ended;              // of these nodes all is in it, since their agents have ended
};

struct alignas(64) CounterShard {
  std::atomic<uint64_t> task[32];                    // by TaskCounter
  std::atomic<uint64_t> opens_tier[kMaxTiers];       // opens that returned the tier's copy
  std::atomic<uint64_t> read_bytes_tier[kMaxTiers];  // bytes that read(2) and kin returned from it
  std::atomic<uint64_t> read_calls_tier[kMaxTiers];
  std::atomic<uint64_t> open_times[kOpenKinds][kOpenBuckets];
};
static_assert(kTaskCounters <= 32 && sizeof(CounterShard) == 1024);

enum class SlotState : uint32_t { kFree = 0, kClaimed = 1, kReady = 2 };
// A slot's state word: SlotState in bits 0-31, the slot's turn in bits 32-63.
constexpr uint64_t slot_word(uint32_t turn, SlotState s) {
  return uint64_t{turn} << 32 | static_cast<uint32_t>(s);
}
constexpr SlotState slot_state(uint64_t word) { return static_cast<SlotState>(word & 0xffffffff); }
constexpr uint32_t slot_turn(uint64_t word) { return static_cast<uint32_t>(word >> 32); }

inline constexpr uint32_t kWholeFile = 0xffffffff;
// No request for data: the file is read from the PFS by calls that chunks cannot serve, but by the next open.
inline constexpr uint32_t kReadNatively = 0xfffffffe;

struct alignas(64) RequestSlot {
  std::atomic<uint64_t> word;  // see slot_word
  uint32_t hash;               // path_hash of (root, path)
  uint32_t root;               // number of the root
  uint32_t len;                // bytes of path
  uint32_t chunk;              // which chunk of it, or kWholeFile, or kReadNatively
  uint32_t reserved[10];
  char path[kPathBytes];  // relative to the root, no NUL needed
};
static_assert(sizeof(RequestSlot) == 64 + kPathBytes);

// What stat(2) tells of a file.
struct FileValues {
  uint64_t dev;
  uint64_t ino;
  uint64_t size;
  uint64_t blocks;
  int64_t atime;  // ns since the epoch
  int64_t mtime;
  int64_t ctime;
  uint32_t mode;
  uint32_t uid;
  uint32_t gid;
  uint32_t nlink;
  uint32_t blksize;
  uint32_t reserved;
};

// What a task saw of a file by stat(2).
struct Seen {
  Ref entry;
  uint32_t hash;  // the entry's
  FileValues values;
};
static_assert(sizeof(Seen) == 88);

// Nobody waits for it: who finds the slot of his turn taken passes it over, and the file is told another
// time.
struct alignas(64) SeenSlot {
  std::atomic<uint32_t> state;  // SlotState
  uint32_t reserved;
  Seen seen;
};
static_assert(sizeof(SeenSlot) == 128);

// How the agent waits on the doorbell.
enum AgentSleep : uint32_t {
  kAwake = 0,
  kSleeps = 1,  // wake it
  kNaps = 2,    // wake it for a request only: it looks for what was seen by itself, soon
};

// Whether copies are served.
enum Serving : uint32_t {
  kServes = 0,
  kRootChanged = 1,  // a root, or a directory above it, was renamed on some node of the job
  kEnding = 2,       // the agent of this node ends
};

inline constexpr int64_t kIsWatched = 1;

struct BoardHeader {
  std::atomic<uint64_t> magic;  // kBoardMagic, stored (release) after all that is made with the board
  uint32_t version;             // kBoardVersion
  uint32_t bytes;               // sizeof(Board)
  // A robust mutex that the agent's main thread holds while it serves: when that thread dies, of
  // whatever cause, the kernel sets FUTEX_OWNER_DIED in its first word (set_robust_list(2)). So "does
  // the agent live" is one load, in any PID namespace.
  alignas(64) pthread_mutex_t agent_lives;
  alignas(64) std::atomic<uint32_t> doorbell;  // futex: tasks add 1 after publishing a request
  std::atomic<uint32_t> agent_sleeps;          // AgentSleep
  alignas(64) std::atomic<uint32_t> closed;    // Serving: else than kServes, redirect nothing more
  // 1: no tier has room for a file of usual size: opens of what is not placed do not ask.
  std::atomic<uint32_t> full;
  std::atomic<uint32_t> changed;  // which kinds of marks there are: Changed, or-ed
  std::atomic<uint32_t> marks;    // how often one was set: what is open since before is to be looked at again
  std::atomic<uint64_t> changes;  // the number of the last mark
  // The highest number that a copy has which was made since its file was marked (placed_word()).
  std::atomic<uint32_t> copied_at;
  std::atomic<uint32_t> wakes_on_change;  // 1: the agent is to be woken for a mark
  // So many of the job's other nodes do not tell what their tasks change, having done so before, and 1 while
  // an agent that goes on for a killed one has not compared what is placed: what is opened is compared with
  // the PFS.
  std::atomic<uint32_t> unheard;
  // 1: many paths that were asked for are not there: look whether one is, before the agent is asked for it.
  std::atomic<uint32_t> stat_before_asking;
  // What a hit reads stands above; below is what changes all the time.
  alignas(64) std::atomic<uint32_t> next_slot;  // where tasks begin to look for a free slot
  std::atomic<uint32_t> next_seen;              // whose turn it is of the SeenSlots
  std::atomic<uint32_t> seen;                   // how many of them were published
  std::atomic<uint64_t> bytes_per_second;       // measured rate of staging, for how long an open waits
  std::atomic<uint64_t> progress;               // pieces copied by the agent: while it grows, the queue moves
  // CLOCK_MONOTONIC: until then opens do not wait, since one waited in vain; 0 again once a copy succeeds.
  std::atomic<int64_t> stalled_until_ns;
  // Whether another agent will go on for this one: 0, no; kIsWatched, as soon as it is killed; else until
  // when (CLOCK_MONOTONIC) who needs one waits for it, as the first who missed it has said.
  std::atomic<int64_t> resumes_until_ns;
  // Of which files somebody has wanted an exclusive lock by flock(2): bit mark_of_inode % 64
  // (preload/decide/locks.h).
  std::atomic<uint64_t> locked;
};

struct Board {
  BoardHeader header;
  alignas(64) std::atomic<uint64_t> agent[40];    // by AgentCounter
  std::atomic<uint64_t> placed_bytes[kMaxTiers];  // bytes now on each tier, this job's
  std::atomic<uint64_t> granted[kMaxTiers];       // bytes that the job may use of each tier now
  std::atomic<int> attached[kAttached];           // by pid: the last process that attached
  std::atomic<uint64_t> nodes;                    // of the job, if this one has peers
  std::atomic<uint64_t> incarnation;              // of the next agent on this board, if it has peers
  std::atomic<uint64_t> others_at;                // which of these is whole: the agent may die at any time
  OtherNodes others[2];
  CounterShard shards[kShards];
  std::atomic<uint32_t> parking[kParking];
  RequestSlot slots[kSlots];
  SeenSlot seen[kSeenSlots];
  std::atomic<uint64_t> invalid[kInvalidBits / 64];
  std::atomic<uint32_t>
      changed_at[kChangeSlots];  // by mark % kChangeSlots: the highest number of such a mark
};
static_assert(kAgentCounters <= 40);

// Whether the agent's main thread holds its mutex; see BoardHeader::agent_lives. Any thread, no call.
inline bool agent_lives(const Board& board) {
  constexpr uint32_t kOwnerDied = 0x40000000, kTidMask = 0x3fffffff;  // <linux/futex.h>
  const auto* word = reinterpret_cast<const std::atomic<uint32_t>*>(&board.header.agent_lives);
  const uint32_t v = word->load(std::memory_order_acquire);
  return (v & kTidMask) != 0 && (v & kOwnerDied) == 0;
}

// Who waits for a chunk sleeps on another parking word than who waits for the file.
constexpr uint32_t parking_of(uint32_t hash, uint32_t chunk) {
  return (chunk == kWholeFile ? hash : hash + (chunk + 1) * 0x9e3779b1u) % kParking;
}

// Whether the board was made and an agent has ever held its mutex: until then it holds nothing yet. The two
// are stored by different functions, and a processor may show them in any order: whoever sees one of them
// only looks again. An agent that ends does not give the mutex back, so its board counts as made.
inline bool is_made(const Board& board) {
  const auto* word = reinterpret_cast<const std::atomic<uint32_t>*>(&board.header.agent_lives);
  return board.header.magic.load(std::memory_order_acquire) != 0 &&
         word->load(std::memory_order_acquire) != 0;
}
// Of one that is made: whether it is of this version.
inline bool is_this_board(const Board& board) {
  return board.header.magic.load(std::memory_order_acquire) == kBoardMagic &&
         board.header.version == kBoardVersion && board.header.bytes == sizeof(Board);
}

// What an invalid bit may stand for. A hit looks only for those kinds of marks of which the job has set one:
// the bits are many, and seldom in a processor's cache.
enum Changed : uint32_t {
  kChangedFiles = 1,        // path_hash of a file: it was changed under its own name
  kChangedInodes = 2,       // mark_of_inode: the file was changed under a name that is not its path
  kChangedDirectories = 4,  // path_hash of a directory: nothing below its path is what it was
};
// Without the device, which each node of a job may number in its own way: two files on different devices of
// the datasets may share a mark, and are both read from the PFS then.
constexpr uint32_t mark_of_inode(uint64_t ino) { return inode_hash(0, ino); }

inline bool is_invalid(const Board& board, uint32_t hash) {
  const uint64_t bit = hash % kInvalidBits;
  return board.invalid[bit / 64].load(std::memory_order_acquire) >> (bit % 64) & 1;
}

// Marks have numbers, from 1, so that a file can be staged again (doc/design.md, "Staged again"): the copy
// serves as long as there is no mark with a higher number than the last one before it was copied. Numbers end
// at kLastChange, which is never before a copy.
inline constexpr uint32_t kLastChange = 0xffffffff;
inline uint32_t last_change(const Board& board) {
  const uint64_t n = board.header.changes.load(std::memory_order_seq_cst);
  return n < kLastChange ? static_cast<uint32_t>(n) : kLastChange;
}
// The number of the last mark like this one, or a higher one.
inline uint32_t changed_at(const Board& board, uint32_t mark) {
  return board.changed_at[mark % kChangeSlots].load(std::memory_order_seq_cst);
}
inline void raise_to(std::atomic<uint32_t>* number, uint32_t to) {
  for (uint32_t seen = number->load(); seen < to && !number->compare_exchange_weak(seen, to);) {
  }
}
inline bool is_changed_since(const Board& board, uint32_t mark, uint32_t change) {
  return is_invalid(board, mark) && (changed_at(board, mark) > change || change == kLastChange);
}
inline void set_invalid(Board* board, uint32_t mark, Changed kind = kChangedFiles) {
  const uint64_t bit = mark % kInvalidBits;
  const uint64_t n = board->header.changes.fetch_add(1, std::memory_order_seq_cst) + 1;
  const auto number = n < kLastChange ? static_cast<uint32_t>(n) : kLastChange;
  raise_to(&board->changed_at[mark % kChangeSlots], number);
  board->header.changed.fetch_or(kind, std::memory_order_release);
  board->invalid[bit / 64].fetch_or(uint64_t{1} << (bit % 64), std::memory_order_release);
  board->header.marks.fetch_add(1, std::memory_order_release);
}

}  // namespace monarch
