// SPDX-License-Identifier: Apache-2.0
// What the agents of a job say to each other. A message is a header of 24 bytes and a body, little-endian;
// what comes from a peer is checked field by field before anybody looks at it.
//
// A control connection carries all but Get, Got and what follows them. A request is answered by a message
// with the same number; what is no request has number 0.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/layout/board_layout.h"
#include "runtime/peer/key.h"

namespace monarch {

constexpr uint16_t kPeerVersion = 9;  // agents of another one do not talk to each other

// Numbers are not used again. 32 and more: connections of data.
enum class MessageType : uint16_t {
  kHello = 1,
  kPing = 3,
  kPong = 4,
  kWant = 8,
  kHave = 9,
  kRead = 10,
  kBusy = 11,
  kPass = 12,
  kLater = 13,
  kProgress = 16,
  kDone = 17,
  kAnnounce = 18,
  kLost = 19,
  kMark = 20,
  kList = 21,
  kWalk = 22,
  kCount = 24,
  kReading = 26,
  kMissed = 27,
  kTold = 28,
  kHeard = 29,
  kGather = 30,
  kGathered = 31,
  kGet = 32,
  kGot = 33,
};

struct MessageHeader {
  static constexpr size_t kBytes = 24;
  MessageType type = MessageType::kPing;
  uint32_t body_bytes = 0;
  uint64_t number = 0;
};

// What a file was when it was read on the PFS.
struct FileIdentity {
  uint64_t bytes = 0;
  int64_t mtime_ns = 0, ctime_ns = 0;
  uint64_t inode = 0;
  uint64_t check = 0;  // XXH3-64 of the check values of its pieces, in their order (see Got)
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
  static void fields(auto& field, auto& m) {
    field(m.bytes), field(m.mtime_ns), field(m.ctime_ns), field(m.inode), field(m.check);
  }
};

// ---- who is there

// What a connection is for.
enum class Lane : uint8_t { kControl, kData };

constexpr size_t kMostAddress = 64;  // of a numeric address

// The first message of each side, inside the TLS session that has proved the job's key.
struct Hello {
  static constexpr MessageType kType = MessageType::kHello;
  uint16_t version = kPeerVersion;
  Lane lane = Lane::kControl;
  NodeIndex node = 0;
  uint64_t incarnation = 0;  // random for each agent: tells a restarted one from the one before
  uint64_t dataset = 0;      // digest of the roots: their paths, and which file system they are on
  uint64_t settings = 0;     // digest of what all must agree on
  uint16_t port = 0;         // where it listens
  std::string data_address;  // numeric: there, too, for connections of data; empty: nowhere else
  static void fields(auto& field, auto& m) {
    field(m.version), field(m.lane, Lane::kData), field(m.node), field(m.incarnation), field(m.dataset);
    field(m.settings), field(m.port), field(m.data_address, kMostAddress);
  }
};

struct Ping {
  static constexpr MessageType kType = MessageType::kPing;
  static void fields(auto&, auto&) {}
};
struct Pong {
  static constexpr MessageType kType = MessageType::kPong;
  static void fields(auto&, auto&) {}
};

// ---- the directory

// Whether Later is an answer; else what is known counts.
enum class Waits : uint8_t { kYes, kNo };

// "I need this file and have room for it": to its home, which answers with one of the next five at once.
struct Want {
  static constexpr MessageType kType = MessageType::kWant;
  FileKey key;
  Waits waits = Waits::kYes;
  static void fields(auto& field, auto& m) { field(m.key), field(m.waits, Waits::kNo); }
};

// Get it from one of these.
struct Have {
  static constexpr MessageType kType = MessageType::kHave;
  static constexpr size_t kMostHolders = 4;
  std::vector<NodeIndex> holders;
  FileIdentity identity;
  static void fields(auto& field, auto& m) { field(m.holders, kMostHolders), field(m.identity); }
};

// Read it from the PFS, and keep it. The lease is lost without a sign of progress; 0: nobody keeps an entry.
struct Read {
  static constexpr MessageType kType = MessageType::kRead;
  uint64_t lease = 0;
  static void fields(auto& field, auto& m) { field(m.lease); }
};

// This node is reading it: follow it.
struct Busy {
  static constexpr MessageType kType = MessageType::kBusy;
  NodeIndex reader = 0;
  static void fields(auto& field, auto& m) { field(m.reader); }
};

// It is not shared, since holders do not agree what it is: read it from the PFS.
struct Pass {
  static constexpr MessageType kType = MessageType::kPass;
  static void fields(auto&, auto&) {}
};

// Who has it is just being asked: ask again, a few milliseconds later; and, after a while, once more for what
// is known then, so that one node reads it.
struct Later {
  static constexpr MessageType kType = MessageType::kLater;
  static void fields(auto&, auto&) {}
};

// A reader to the home: it goes on, and how it ended.
struct ReadProgress {
  static constexpr MessageType kType = MessageType::kProgress;
  FileKey key;
  static void fields(auto& field, auto& m) { field(m.key); }
};
enum class ReadResult : uint8_t {
  kHeld,     // the node has it
  kNotHeld,  // it has not: no room, an error of its tier or of the PFS, or the file changed
};
struct Done {
  static constexpr MessageType kType = MessageType::kDone;
  FileKey key;
  uint64_t lease = 0;
  ReadResult result = ReadResult::kNotHeld;
  FileIdentity identity;
  static void fields(auto& field, auto& m) {
    field(m.key), field(m.lease), field(m.result, ReadResult::kNotHeld), field(m.identity);
  }
};

struct HeldFile {
  FileKey key;
  NodeIndex holder = 0;
  FileIdentity identity;
  static void fields(auto& field, auto& m) { field(m.key), field(m.holder), field(m.identity); }
};
// To a home: who holds a file of its share, from the deputy.
struct Announce {
  static constexpr MessageType kType = MessageType::kAnnounce;
  HeldFile file;
  static void fields(auto& field, auto& m) { field(m.file); }
};

// A file that is being read, with the reader's lease; one of 0 was given by nobody.
struct FileInReading {
  FileKey key;
  NodeIndex reader = 0;
  uint64_t lease = 0;
  static void fields(auto& field, auto& m) { field(m.key), field(m.reader), field(m.lease); }
};
// To a home: who reads a file of its share, from the deputy that has given the lease.
struct Reading {
  static constexpr MessageType kType = MessageType::kReading;
  FileInReading file;
  static void fields(auto& field, auto& m) { field(m.file); }
};

// "What do you hold of the share of `share`?": that node itself asks, or one that is its deputy, which means
// those files whose deputy it is.
struct Gather {
  static constexpr MessageType kType = MessageType::kGather;
  NodeIndex share = 0;
  uint64_t log = 0, from = 0;  // as it was told to go on; 0: from the beginning
  uint64_t age_ms = 0;         // how long the agent that asks has been there
  static constexpr uint64_t kMostAgeMs = uint64_t{1} << 40;
  static void fields(auto& field, auto& m) {
    field(m.share), field(m.log), field(m.from), field(m.age_ms, kMostAgeMs);
  }
};
// The answer. All holders and readers are the sender itself.
struct Gathered {
  static constexpr MessageType kType = MessageType::kGathered;
  static constexpr size_t kMost = 256;  // of each
  NodeIndex share = 0;
  uint64_t log = 0, from = 0;  // where this begins
  uint64_t next = 0;           // to go on from
  uint8_t ended = 0;           // 1: there is no more at the moment
  uint8_t earlier = 0;         // 1: the home was away, or is anew: all are to be asked
  std::vector<HeldFile> files;
  std::vector<FileInReading> reading;
  static void fields(auto& field, auto& m) {
    field(m.share), field(m.log), field(m.from), field(m.next), field(m.ended, uint8_t{1}),
        field(m.earlier, uint8_t{1});
    field(m.files, kMost), field(m.reading, kMost);
  }
};
// No message: what is held, as Gathered has it.
struct HeldPage {
  uint64_t log = 0, from = 0, next = 0;
  bool ended = true;
  std::vector<HeldFile> files;  // Gathered::kMost at most; the holder is not filled in
};
// To a home: the sender had to do without it for a while.
struct Missed {
  static constexpr MessageType kType = MessageType::kMissed;
  uint8_t acted = 0;  // 1: and others, whose deputy it was
  static void fields(auto& field, auto& m) { field(m.acted, uint8_t{1}); }
};

// A node to the home: that holder has it no longer, or what it sent was wrong.
struct Lost {
  static constexpr MessageType kType = MessageType::kLost;
  FileKey key;
  NodeIndex holder = 0;
  static void fields(auto& field, auto& m) { field(m.key), field(m.holder); }
};

// The job has changed files: from any node to all. Each node sets the marks on its own board.
struct Mark {
  static constexpr MessageType kType = MessageType::kMark;
  static constexpr size_t kMost = 4096;
  static constexpr uint8_t kKinds = 7;
  uint8_t kinds = 0;            // of all marks that there are on the sender's board: Changed, or-ed
  uint8_t closed = 0;           // 1: nothing is served from copies any more
  std::vector<uint32_t> marks;  // numbers of bits; none: the kinds, or that it is closed, are news
  // Where there are very many: bits from number 64 * first_word on.
  uint32_t first_word = 0;
  std::vector<uint64_t> words = {};
  // After all that a node which is met anew knows of.
  bool ends_all() const { return kinds == 0 && closed == 0 && marks.empty() && words.empty(); }
  static void fields(auto& field, auto& m) {
    field(m.kinds, kKinds), field(m.closed, uint8_t{1}), field(m.marks, kMost);
    field(m.first_word), field(m.words, kMost);
  }
};

// ---- accounting

// What an agent has counted since it began: to the first node, which answers with Pong.
struct Count {
  static constexpr MessageType kType = MessageType::kCount;
  uint64_t incarnation = 0;  // the agent's
  uint64_t turn = 0;         // of what it tells, from 1
  uint8_t last = 0;          // 1: it is ending
  NodeCounts counts;
  static void fields(auto& field, auto& m) {
    field(m.incarnation), field(m.turn), field(m.last, uint8_t{1});
    for (auto& n : m.counts.task) field(n, kMostCount);
    for (auto& n : m.counts.agent) field(n, kMostCount);
    for (auto& n : m.counts.placed_bytes) field(n, kMostCount);
    field(m.counts.opens_tier, kMostCount), field(m.counts.read_bytes_tier, kMostCount);
    field(m.counts.read_calls_tier, kMostCount);
    for (auto& kind : m.counts.open_times.counts)
      for (auto& n : kind) field(n, kMostCount);
  }
};

// ---- the walk

constexpr size_t kMostPeerPath = 4096;  // PATH_MAX, see pathconf(3)

// Asks a node what it knows of the directories, from a place in its log on.
struct Walk {
  static constexpr MessageType kType = MessageType::kWalk;
  uint64_t log = 0;   // what it said; another one begins at place 0
  uint64_t from = 0;  // 0: the beginning
  static void fields(auto& field, auto& m) { field(m.log), field(m.from); }
};
enum class WalkState : uint8_t {
  kNone,     // the node has no walk
  kFollows,  // it waits for what another one tells
  kWalks,    // it reads directories
  kEnded,    // nothing will come after this
};
// The answer.
struct List {
  static constexpr MessageType kType = MessageType::kList;
  static constexpr size_t kMostParts = 60 << 10;
  uint64_t log = 0;
  uint64_t next = 0;      // the place to go on from
  uint64_t progress = 0;  // another number than before: the walk goes on
  WalkState state = WalkState::kNone;
  std::string parts;  // ListParts, as bytes; empty: there is no more at the moment
  static void fields(auto& field, auto& m) {
    field(m.log), field(m.next), field(m.progress), field(m.state, WalkState::kEnded);
    field(m.parts, kMostParts);
  }
};

struct NameInList {
  static constexpr size_t kMostBytes = 255;  // NAME_MAX
  static constexpr uint8_t kLastType = 14;   // DT_WHT
  std::string name;
  uint8_t type = 0;  // DT_*
  uint64_t inode = 0;
  static void fields(auto& field, auto& m) {
    field(m.name, kMostBytes), field(m.type, kLastType), field(m.inode);
  }
};
// Names of a directory. Its parts follow each other.
struct ListPart {
  static constexpr size_t kMost = 8192;
  uint32_t root = 0;
  std::string path;
  uint8_t listing = 0;  // a WalkedDirectory::Listed
  uint64_t inode = 0;
  int64_t mtime_ns = 0, ctime_ns = 0;
  uint64_t before = 0;  // names that the parts before had
  uint8_t last = 0;     // 1: it is the directory's last
  std::vector<NameInList> names;
  static void fields(auto& field, auto& m) {
    field(m.root), field(m.path, kMostPeerPath), field(m.listing, uint8_t{2}), field(m.inode);
    field(m.mtime_ns), field(m.ctime_ns), field(m.before), field(m.last, uint8_t{1}), field(m.names, kMost);
  }
};
// No message: what List carries.
struct ListParts {
  static constexpr size_t kMost = 4096;
  std::vector<ListPart> parts;
  static void fields(auto& field, auto& m) { field(m.parts, kMost); }
};

// ---- what the PFS says of files

// What a node was told by the PFS of a file, or of a symbolic link.
struct ToldFile {
  static constexpr uint64_t kMostBytes = INT64_MAX;
  uint32_t root = 0;
  std::string path;
  uint8_t read = 0;  // 1: the agent has read all of it there, and this is what it was
  uint32_t mode = 0, user = 0, group = 0, links = 0, block_bytes = 0;
  uint64_t inode = 0, bytes = 0, blocks = 0;
  int64_t atime_ns = 0, mtime_ns = 0, ctime_ns = 0;
  static void fields(auto& field, auto& m) {
    field(m.root), field(m.path, kMostPeerPath), field(m.read, uint8_t{1}), field(m.mode), field(m.user);
    field(m.group), field(m.links), field(m.block_bytes), field(m.inode), field(m.bytes, kMostBytes);
    field(m.blocks, kMostBytes), field(m.atime_ns), field(m.mtime_ns), field(m.ctime_ns);
  }
};
// To all nodes, some at a time: the next ones come once these were heard.
struct Told {
  static constexpr MessageType kType = MessageType::kTold;
  static constexpr size_t kMost = 512;
  uint64_t turn = 0;
  std::vector<ToldFile> files;
  static void fields(auto& field, auto& m) { field(m.turn), field(m.files, kMost); }
};
struct Heard {
  static constexpr MessageType kType = MessageType::kHeard;
  uint64_t turn = 0;
  static void fields(auto& field, auto& m) { field(m.turn); }
};

// ---- data

enum class Purpose : uint8_t { kDemand, kPrefetch };

// Whether the pieces of a file that the node is still reading are of use; then it says which is not there
// yet.
enum class Follow : uint8_t { kNo, kYes };
// Asks for `bytes` of a file from `offset` on (0: all that follow), in whole pieces but for the end.
struct Get {
  static constexpr MessageType kType = MessageType::kGet;
  uint32_t root = 0;
  std::string path;
  uint64_t offset = 0, bytes = 0;
  Follow follow = Follow::kNo;
  uint64_t inode = 0;  // of a file with several names, which may be there by another one; 0: it has one
  // kDemand: a task waits. There are places for it, and a piece that is followed is read next.
  Purpose purpose = Purpose::kDemand;
  static void fields(auto& field, auto& m) {
    field(m.root), field(m.path, kMostPeerPath), field(m.offset), field(m.bytes);
    field(m.follow, Follow::kYes), field(m.inode), field(m.purpose, Purpose::kPrefetch);
  }
};
enum class GetResult : uint8_t {
  kOk,
  kGone,     // it is not here, or not any more
  kChanged,  // the job has changed it
  kBusy,     // too many are served: another holder may have a place
};
// The answer. After kOk come the pieces that were asked for, each of PieceHeader::kBytes and its bytes; all
// but a file's last have kPieceBytes.
struct Got {
  static constexpr MessageType kType = MessageType::kGot;
  GetResult result = GetResult::kGone;
  FileIdentity identity;  // `check` is 0 while the file is being read
  static void fields(auto& field, auto& m) { field(m.result, GetResult::kBusy), field(m.identity); }
};
constexpr uint64_t kPieceBytes = 1 << 20;
// Where the pieces of a file of `file_bytes` that are asked for end; nothing: they are none.
std::optional<uint64_t> end_of(const Get& get, uint64_t file_bytes);
struct PieceHeader {
  static constexpr size_t kBytes = 16;
  uint32_t bytes = 0;  // 0: the sender has not more of the file, or not yet
  uint64_t check = 0;  // XXH3-64, as computed where the PFS was read
};

// ---- as bytes

// A header whose body is `body`.
std::string encode_message(MessageHeader header, std::string_view body);
// What the first MessageHeader::kBytes of `bytes` say. Nothing: they are no header of this version.
std::optional<MessageHeader> decode_header(std::string_view bytes);
std::string encode_piece(const PieceHeader& header);
// Nothing: no piece has so many bytes.
std::optional<PieceHeader> decode_piece(std::string_view bytes);

// The most that a body may have.
constexpr uint32_t kMostBody = 64 << 10;

class BodyWriter {
 public:
  void operator()(uint8_t v) { put(&v, sizeof v); }
  void operator()(uint16_t v) { put(&v, sizeof v); }
  void operator()(uint32_t v) { put(&v, sizeof v); }
  void operator()(uint64_t v) { put(&v, sizeof v); }
  void operator()(int64_t v) { put(&v, sizeof v); }
  void operator()(const FileKey& v) { (*this)(v.high), (*this)(v.low); }
  void operator()(uint8_t v, uint8_t) { (*this)(v); }
  void operator()(uint64_t v, uint64_t) { (*this)(v); }
  void operator()(const std::string& v, size_t) {
    (*this)(static_cast<uint16_t>(v.size()));
    put(v.data(), v.size());
  }
  template <typename T>
  void operator()(const std::vector<T>& v, size_t) {
    (*this)(static_cast<uint16_t>(v.size()));
    for (const T& one : v) (*this)(one);
  }
  template <typename E>
  requires std::is_enum_v<E>
  void operator()(E v, E) { (*this)(static_cast<uint8_t>(v)); }
  template <typename M>
  requires requires(BodyWriter& w, const M& m) { M::fields(w, m); }
  void operator()(const M& m) { M::fields(*this, m); }
  const std::string& bytes() const { return bytes_; }

 private:
  void put(const void* from, size_t n) { bytes_.append(static_cast<const char*>(from), n); }
  std::string bytes_;
};

// Once a field is out of its range, or there are no bytes for it, all that follow stay as they are.
class BodyReader {
 public:
  explicit BodyReader(std::string_view bytes) : left_(bytes) {}
  void operator()(uint8_t& v) { get(&v, sizeof v); }
  void operator()(uint16_t& v) { get(&v, sizeof v); }
  void operator()(uint32_t& v) { get(&v, sizeof v); }
  void operator()(uint64_t& v) { get(&v, sizeof v); }
  void operator()(int64_t& v) { get(&v, sizeof v); }
  void operator()(FileKey& v) { (*this)(v.high), (*this)(v.low); }
  void operator()(uint8_t& v, uint8_t most) {
    (*this)(v);
    ok_ &= v <= most;
  }
  void operator()(uint64_t& v, uint64_t most) {
    (*this)(v);
    ok_ &= v <= most;
  }
  void operator()(std::string& v, size_t most) {
    const size_t n = count(most);
    v.resize(n);
    get(v.data(), n);
  }
  template <typename T>
  void operator()(std::vector<T>& v, size_t most) {
    v.resize(count(most));
    for (T& one : v) (*this)(one);
  }
  template <typename E>
  requires std::is_enum_v<E>
  void operator()(E& v, E most) {
    uint8_t value = 0;
    (*this)(value, static_cast<uint8_t>(most));
    if (ok_) v = static_cast<E>(value);
  }
  template <typename M>
  requires requires(BodyReader& r, M& m) { M::fields(r, m); }
  void operator()(M& m) { M::fields(*this, m); }
  // All were in their ranges, and nothing is left.
  bool ok() const { return ok_ && left_.empty(); }

 private:
  void get(void* to, size_t n);
  size_t count(size_t most);
  std::string_view left_;
  bool ok_ = true;
};

template <typename M>
std::string encode_body(const M& message) {
  BodyWriter writer;
  M::fields(writer, message);
  return writer.bytes();
}

template <typename M>
std::string encode(const M& message, MessageHeader header = {}) {
  header.type = M::kType;
  return encode_message(header, encode_body(message));
}

// Nothing: it is no such message.
template <typename M>
std::optional<M> decode(std::string_view body) {
  BodyReader reader(body);
  M message;
  M::fields(reader, message);
  if (!reader.ok()) return {};
  return message;
}

}  // namespace monarch
