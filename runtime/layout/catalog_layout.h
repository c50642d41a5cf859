// SPDX-License-Identifier: Apache-2.0
// The catalog's shared layout: every byte that the agent writes and the tasks map read-only.
//
// The catalog is a set of files in the job's run directory. Only the agent writes them; a task maps
// them PROT_READ and MAP_SHARED, each when it first follows a reference into it, and never unmaps one.
// Each byte is allocated (fallocate) before it is used, of an index the whole file, of a segment piece by
// piece, so reading a published reference never faults, and nothing published ever moves or is freed.
//
//   catalog            one CatalogHeader: version, dataset roots, tiers, the newest index generations
//   entries.K          segment K of the space of Entry records: one per path below a root, in the
//                      order they were found, so that the agent can walk them as a log
//   dirs.K             segment K of the space of DirPath and Attributes records
//   idents.K           segment K of the space of Identity records
//   chunks.K           segment K of the space of Chunks records
//   lists.K            segment K of the space of Listing and ListBlock records
//   index.K            generation K of the path index: hash of (root, relative path) -> Entry
//   inodes.K           generation K of the inode index: (tier, inode of the copy) -> Identity
//
// Segments. Segment K of a space is kFirstSegmentBytes << K bytes long, and the segments follow each
// other in the space's offsets: segment K starts at offset kFirstSegmentBytes * (2^K - 1). A Ref is an
// offset divided by 8; Ref 0 means "none" (the first 8 bytes of each space are not used). No record
// crosses the end of a segment.
//
// Indexes. Generation K is an open-addressing table of kFirstIndexSlots << K slots with linear
// probing; empty slots are 0. The path index has 8-byte slots, (hash32 << 32 | Ref of the Entry), and
// starts probing at hash32 mod slots. The inode index has 4-byte slots, the Ref of an Identity, and
// starts at hash of (tier, inode) mod slots. When a table is 3/4 full the agent fills a larger
// generation and then publishes its number in the header (release); the old one stays as it was. A slot
// of the inode index whose copy is gone is kDeadSlot, or another copy's by now.
//
// Memory order. A record is complete before the release-store of the slot that leads to it. A state
// word is the one part of an Entry that changes: agent threads change it by compare-and-swap
// (release), readers load it with acquire. A Placed state is stored after the copy's linkat(2), so
// whoever sees it can open the copy.
#pragma once

#include <stdint.h>
#include <sys/stat.h>

#include <atomic>
#include <cstddef>

namespace monarch {

inline constexpr char kCatalogMagic[8] = {'M', 'O', 'N', 'A', 'R', 'C', 'H', 'C'};
inline constexpr uint32_t kCatalogVersion = 7;  // readers refuse any other

inline constexpr uint32_t kMaxRoots = 16;     // dataset roots of one job
inline constexpr uint32_t kMaxPrefixes = 32;  // absolute paths under which a root is known
inline constexpr uint32_t kMaxTiers = 8;      // the PFS not counted
inline constexpr uint32_t kPathBytes = 4096;  // PATH_MAX, with the terminating NUL

inline constexpr uint64_t kFirstSegmentBytes = 64 << 10;
inline constexpr uint32_t kMaxSegments = 19;  // 64 KiB * (2^19 - 1) is just below 2^32 Refs of 8 bytes
inline constexpr uint64_t kFirstIndexSlots = 4096;
inline constexpr uint32_t kMaxGenerations = 20;

using Ref = uint32_t;  // offset in a space / 8; 0 is "none"

// Nanoseconds since the epoch, of a timespec or a statx_timestamp. Of a time before 1678 or after 2261, the
// first or the last that can be told.
template <typename Time>
constexpr int64_t ns_of(const Time& t) {
  int64_t ns = 0;
  const bool far = __builtin_mul_overflow(int64_t{t.tv_sec}, int64_t{1000000000}, &ns) ||
                   __builtin_add_overflow(ns, int64_t{t.tv_nsec}, &ns);
  return !far ? ns : t.tv_sec < 0 ? INT64_MIN : INT64_MAX;
}
// Whether the file has such a time: what the catalog would tell of it is not true.
inline bool has_far_time(const struct stat& st) {
  for (const timespec& t : {st.st_atim, st.st_mtim, st.st_ctim})
    if (const int64_t ns = ns_of(t); ns == INT64_MIN || ns == INT64_MAX) return true;
  return false;
}

// Whether a later change of a file that was last changed then would show in a time: not if the PFS's clock
// tells seconds only, and that was since the agent began (`boot_time`, in seconds), so perhaps in the second
// in which the file is copied.
template <typename Time>
constexpr bool tells_changes(const Time& changed, uint64_t boot_time) {
  constexpr uint64_t kTicks = 2;
  return changed.tv_nsec != 0 || static_cast<uint64_t>(changed.tv_sec) + kTicks < boot_time;
}

enum class Space : uint32_t { kEntries = 0, kDirs = 1, kIdents = 2, kChunks = 3, kLists = 4 };
inline constexpr uint32_t kSpaces = 5;
inline constexpr const char* kSpaceNames[kSpaces] = {"entries", "dirs", "idents", "chunks", "lists"};

// What an entry's state word says. Numbers are part of the layout.
enum class State : uint8_t {
  kKnown = 0,    // found, nothing done yet
  kQueued = 1,   // a task waits for it
  kStaging = 2,  // being copied
  kPlaced = 3,   // whole on the tier that the word names
  kNoFit = 4,    // no tier has room: stays on the PFS for this job
  kPass = 5,     // never staged (Reason says why): the PFS serves it
  kLarge = 6,    // larger than stage_wait_max, not yet placed: opens do not wait for it
  kDropped = 7,  // the copy was given up (the source changed): the PFS serves it
};

// Why a file is not (or no longer) served from a tier. Part of the layout.
enum class Reason : uint8_t {
  kNone = 0,
  kNotRegular = 1,   // FIFO, device, socket, directory
  kSymlink = 2,      // the path leads through a symbolic link
  kUnreadable = 3,   // the PFS refused the agent's open
  kOtherDevice = 4,  // on another file system than the root
  kMissing = 5,      // ENOENT when staged
  kChanged = 6,      // size or mtime changed while or after it was copied
  kSourceError = 7,  // the PFS failed while it was read
  kTierError = 8,    // the tier failed while it was written
  kWritten = 9,      // the job opened it for writing (its invalid bit is set)
  kEvicted = 10,     // its copy was removed, and somebody has that open still
  kExcluded = 11,    // the job is to read it on the PFS
  kFarTime = 12,     // has_far_time()
  kNoNumber = 13,    // its inode number does not stay (DatasetRoot::numbers_stay)
};

// The state word: bits 0-7 State, 8-15 Reason, 16-23 tier number (kPlaced only), 24-31 zero, 32-63
//   kLarge    Ref of the Chunks record, 0: none yet
//   kStaging  the Entry that this one is to replace; 0: none
//   kPlaced   the number of the last change (BoardHeader::changes) before the file was copied; 0: any change
//   kDropped  the Entry that the file has instead: since it was staged again, or because this one, which was
//             to replace that, came to nothing; 0: none
constexpr uint64_t state_word(State s, Reason r = Reason::kNone, uint32_t tier = 0) {
  return static_cast<uint64_t>(s) | static_cast<uint64_t>(r) << 8 | static_cast<uint64_t>(tier) << 16;
}
constexpr uint64_t large_word(Ref chunks) { return state_word(State::kLarge) | uint64_t{chunks} << 32; }
constexpr uint64_t placed_word(uint32_t tier, uint32_t change) {
  return state_word(State::kPlaced, Reason::kNone, tier) | uint64_t{change} << 32;
}
constexpr uint64_t again_word(Ref next) {
  return state_word(State::kDropped, Reason::kWritten) | uint64_t{next} << 32;
}
constexpr uint64_t anew_word(Ref before) { return state_word(State::kStaging) | uint64_t{before} << 32; }
constexpr Ref chunks_of(uint64_t word) { return static_cast<Ref>(word >> 32); }
constexpr State state_of(uint64_t word) { return static_cast<State>(word & 0xff); }
constexpr Reason reason_of(uint64_t word) { return static_cast<Reason>(word >> 8 & 0xff); }
constexpr uint32_t tier_of(uint64_t word) { return static_cast<uint32_t>(word >> 16 & 0xff); }
constexpr uint32_t change_of(uint64_t word) {
  return state_of(word) == State::kPlaced ? static_cast<uint32_t>(word >> 32) : 0;
}
constexpr Ref again_of(uint64_t word) {
  return state_of(word) == State::kDropped ? static_cast<Ref>(word >> 32) : 0;
}
constexpr Ref replaced_by(uint64_t word) {
  return state_of(word) == State::kStaging ? static_cast<Ref>(word >> 32) : 0;
}
// A file is staged again so many times at most: each copy takes its space until the job ends.
inline constexpr int kMostAgain = 4;

// One path below a root. Size: 40 bytes and the name, rounded up to 8.
struct Entry {
  std::atomic<uint64_t> state;  // see state_word
  std::atomic<uint64_t> size;   // bytes; valid from kStaging on
  std::atomic<int64_t> mtime;   // ns since the epoch, as the PFS had it; valid from kStaging on
  Ref dir;                      // DirPath of the directory it is in
  std::atomic<Ref> identity;    // Identity, 0 until placed or seen; of a directory: Listing, 0 if it has none
  uint32_t hash;                // hash32 of (root, relative path)
  uint16_t name_len;
  uint8_t root;  // number of the root
  std::atomic<uint8_t>
      type;     // DT_* of readdir(3) where the walk saw it, else DT_UNKNOWN; set before `identity`
  char name[];  // name_len bytes, no NUL
};
static_assert(offsetof(Entry, name) == 40);

// A directory's path relative to its root, without leading or trailing slash; empty for the root.
struct DirPath {
  uint32_t len;
  uint32_t root;
  char path[];  // len bytes, no NUL
};
static_assert(offsetof(DirPath, path) == 8);

// What many files share, stored once per distinct value.
struct Attributes {
  uint64_t dev;
  uint32_t mode;
  uint32_t uid;
  uint32_t gid;
  uint32_t nlink;
  uint32_t blksize;
  uint32_t reserved;
};
static_assert(sizeof(Attributes) == 32);

// The PFS identity of a placed file, and what recognises its copy.
struct Identity {
  uint64_t tier_ino;           // inode of the copy
  uint64_t pfs_ino;            // inode on the PFS
  int64_t atime;               // ns since the epoch, PFS
  int64_t ctime;               // ns since the epoch, PFS
  Ref entry;                   // Entry: size and mtime stand there
  Ref attributes;              // Attributes: device, mode, owner ...
  uint32_t blocks;             // st_blocks on the PFS (512-byte units), saturated
  std::atomic<uint32_t> tier;  // tier number of the copy; kNoTier once the copy was dropped
};
static_assert(sizeof(Identity) == 48);
inline constexpr Ref kDeadSlot = 0xffffffff;  // of the inode index: no record is there
inline constexpr uint32_t kNoTier = 0xffffffff;
inline constexpr uint32_t kNoCopy = 0xfffffffe;  // the Identity is a SeenFile's

// What a task saw of a file that is not placed, or of a symbolic link. It answers tasks, and nothing else: no
// copy is compared with it.
struct SeenFile {
  Identity identity;  // `tier` is kNoCopy, for good; `tier_ino` is not used
  uint64_t size;
  int64_t mtime;  // ns since the epoch
};
static_assert(sizeof(SeenFile) == 64);

// Which chunks of a large file are in its partial copy, which is <tier's path>/part/RRRRRRRR (R: the Entry's
// Ref) until it is whole and gets its final name. A bit is stored (release) after its chunk was written.
inline constexpr uint64_t kChunkBytes = 1 << 20;
struct Chunks {
  Ref entry;
  uint32_t tier;
  uint32_t count;                // of the file; the last one may be short
  std::atomic<uint32_t> closed;  // 1: what is not there by now will not come (the tiers are full)
  std::atomic<uint64_t> bits[];  // bit N % 64 of word N / 64: chunk N is there
};
static_assert(sizeof(Chunks) == 16);
constexpr uint32_t chunk_count(uint64_t bytes) {
  return static_cast<uint32_t>((bytes + kChunkBytes - 1) / kChunkBytes);
}

// What the walk read of a directory whose entries all have a known type. It holds while the directory has
// these values: it had had them for quiet_ns() when it was read, so a later change shows in its times.
struct Listing {
  uint64_t dev;
  uint64_t ino;
  int64_t mtime;   // ns since the epoch
  int64_t ctime;   // ns since the epoch
  uint32_t count;  // names, "." and ".." among them if readdir(3) gave them
  Ref blocks;      // the first ListBlock
};
static_assert(sizeof(Listing) == 40);

// A name in a directory. Its type is the Entry's.
struct ListedName {
  Ref entry;        // or kDot, kDotDot
  uint32_t ino[2];  // d_ino: low half, high half
};
static_assert(sizeof(ListedName) == 12);
inline constexpr Ref kDot = 0xffffffff, kDotDot = 0xfffffffe;

// Names in the order in which readdir(3) gave them.
struct ListBlock {
  Ref next;        // the next block, 0 after the last
  uint32_t first;  // how many names are before it
  uint32_t count;
  uint32_t reserved;
  ListedName names[];
};
static_assert(sizeof(ListBlock) == 16);
inline constexpr uint32_t kNamesInBlock = 1024;

// A dataset root.
struct Root {
  uint64_t dev;                  // st_dev of the root directory
  std::atomic<uint32_t> walked;  // 1: the walk reached every directory, so an absent path is not there
  std::atomic<Ref> listing;      // Listing of the root directory, 0 if it has none
};

// An absolute path, without trailing slash, under which (a part of) a root is reached. A task uses it only
// while the directory there has this st_dev and st_ino: in another mount namespace it may be another one.
struct Prefix {
  uint64_t dev;
  uint64_t ino;
  uint32_t root;       // number of the root
  uint32_t len;        // bytes of `path`
  uint32_t below_len;  // bytes of `below`
  uint32_t reserved;
  char path[kPathBytes];   // as the user gave it, or its realpath(3); NUL-terminated
  char below[kPathBytes];  // path of that place relative to the root; empty for the root itself
};

// A tier as tasks see it. The copy of the Entry with Ref R is <path>/RR/RRRRRRRR: R in eight lower-case
// hexadecimal digits, in a directory named by the last two of them.
struct TierPath {
  uint64_t dev, ino;  // st_dev and st_ino of the job's directory of copies
  uint32_t len;
  uint32_t unsafe;  // 1: others can put another directory in its place: each copy is to be proved
  uint32_t reserved;
  std::atomic<uint32_t> failed;  // 1: its device has failed, open no copy on it until that has passed
  char name[32];                 // as configured; NUL-terminated
  char path[kPathBytes];         // the job's directory of copies on the tier; NUL-terminated
};

struct CatalogHeader {
  char magic[8];            // kCatalogMagic
  uint32_t version;         // kCatalogVersion
  uint32_t bytes;           // sizeof(CatalogHeader)
  uint64_t boot_time;       // CLOCK_REALTIME seconds at which the agent made it
  uint64_t stage_wait_max;  // bytes: an open waits for files up to this size
  uint64_t stage_wait_ns;   // how long what reads a larger one whole waits for it
  uint32_t check_at_open;   // 1: an open compares size, mtime and ctime with the PFS before it takes a copy
  uint32_t serve_metadata;  // 1: tasks answer stat(2) and readdir(3) from here
  uint32_t stages_again;    // 1: the agent stages what the job wrote again, once that is quiet
  uint64_t user_namespace;  // inode of the agent's /proc/self/ns/user: where its user and group ids hold
  uint64_t space;           // its space_hash(): where its paths hold; 0: not known
  uint32_t user;            // the agent's effective user id
  uint32_t groups;          // group_hash() of the groups whose files the agent may read
  std::atomic<uint32_t> ready;  // 1 once roots, prefixes and tiers are filled in
  std::atomic<uint32_t> index_generation;
  std::atomic<uint32_t> inode_generation;
  uint32_t root_count;
  uint32_t prefix_count;
  uint32_t tier_count;
  std::atomic<uint64_t> entry_count;          // Entries published
  std::atomic<uint64_t> used_bytes[kSpaces];  // of each space, for statistics and the agent's log walk
  Root roots[kMaxRoots];
  TierPath tiers[kMaxTiers];
  Prefix prefixes[kMaxPrefixes];
};

constexpr uint64_t segment_bytes(uint32_t k) { return kFirstSegmentBytes << k; }
constexpr uint64_t segment_start(uint32_t k) { return kFirstSegmentBytes * ((uint64_t{1} << k) - 1); }
// The segment that holds `offset`; kMaxSegments or more: there is none.
constexpr uint32_t segment_of(uint64_t offset) {
  return 63u - static_cast<uint32_t>(__builtin_clzll(offset / kFirstSegmentBytes + 1));
}
constexpr uint64_t index_slots(uint32_t generation) { return kFirstIndexSlots << generation; }
constexpr uint64_t index_slot(uint32_t hash, Ref entry) { return uint64_t{hash} << 32 | entry; }

// Where an inode is looked for in the inode index (a finaliser of splitmix64).
constexpr uint32_t inode_hash(uint32_t tier, uint64_t ino) {
  uint64_t x = ino + (uint64_t{tier} + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return static_cast<uint32_t>(x ^ x >> 31);
}

// Writes the name of a copy below its tier's directory, with a NUL: "5f/0000a15f". `out` holds 12 bytes.
inline void copy_name(Ref entry, char* out) {
  const char* digits = "0123456789abcdef";
  out[0] = digits[entry >> 4 & 15];
  out[1] = digits[entry & 15];
  out[2] = '/';
  for (int i = 0; i < 8; ++i) out[3 + i] = digits[entry >> (28 - 4 * i) & 15];
  out[11] = '\0';
}
inline constexpr size_t kCopyNameBytes = 12;
// The entry whose copy has this name; 0: it is no copy's.
inline Ref entry_of_copy(const char* name) {
  Ref entry = 0;
  for (int i = 3; i < 11; ++i) {
    const char digit = name[i];
    const bool letter = digit >= 'a' && digit <= 'f';
    if (!letter && (digit < '0' || digit > '9')) return 0;
    entry = entry << 4 | static_cast<Ref>(letter ? digit - 'a' + 10 : digit - '0');
  }
  char named[kCopyNameBytes];
  copy_name(entry, named);
  for (size_t i = 0; i < kCopyNameBytes; ++i)
    if (name[i] != named[i]) return 0;
  return entry;
}
// The same for a partial copy: "part/0000a15f". `out` holds kPartNameBytes.
inline constexpr size_t kPartNameBytes = 14;
inline void part_name(Ref entry, char* out) {
  char copy[kCopyNameBytes];
  copy_name(entry, copy);
  for (int i = 0; i < 5; ++i) out[i] = "part/"[i];
  for (int i = 0; i < 9; ++i) out[5 + i] = copy[3 + i];
}

}  // namespace monarch
