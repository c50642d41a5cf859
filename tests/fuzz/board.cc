// SPDX-License-Identifier: Apache-2.0
// What a hostile task can write in the board's rings, drained into a catalog as the agent does.
#include "runtime/metadata/board.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>

#include "runtime/metadata/catalog.h"
#include "tests/fuzz/targets.h"

namespace monarch::fuzz {
namespace {

constexpr uint32_t kRoots = 2, kKnown = 64;

// The agent's memory; anew when the inputs have filled it.
struct Agent {
  Agent() {
    std::filesystem::create_directory(run_dir);
    std::filesystem::permissions(run_dir, std::filesystem::perms::owner_all);
    Result<std::unique_ptr<Catalog>> made =
        Catalog::create(run_dir, {{42}, {43}}, {{0, "/d", "", 42, 1}, {1, "/e", "", 43, 2}},
                        {{"t", "/t/x", 7}}, {1 << 20, false, true});
    FUZZ_CHECK(made.ok());
    catalog = made.take();
    for (uint32_t i = 0; i < kKnown; ++i) {
      const std::string path = "a/f" + std::to_string(i);
      known[i] = catalog->add(rel_path(i % kRoots, path.data(), path.size()), i % 3 ? DT_REG : DT_UNKNOWN);
    }
  }
  Directory at;
  const std::string run_dir = at.path() + "/run";
  std::unique_ptr<Catalog> catalog;
  Ref known[kKnown];
  int entries = 0;
};

struct Free {
  void operator()(Board* board) const { std::free(board); }
};

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : at_(data), left_(size) {}
  // What is not there any more is zero.
  void take(void* to, size_t n) {
    std::memset(to, 0, n);
    n = std::min(n, left_);
    std::memcpy(to, at_, n);
    at_ += n;
    left_ -= n;
  }
  uint8_t byte() {
    uint8_t b = 0;
    take(&b, 1);
    return b;
  }
  bool empty() const { return left_ == 0; }

 private:
  const uint8_t* at_;
  size_t left_;
};

uint32_t length(uint8_t kind) {
  switch (kind) {
    case 251:
      return 4095;
    case 252:
      return 4096;
    case 253:
      return 4097;
    case 254:
      return 0x7fffffff;
    case 255:
      return 0xffffffff;
    default:
      return kind % 64;
  }
}

}  // namespace

void board(const uint8_t* data, size_t size) {
  static std::unique_ptr<Agent> agent;
  static const std::unique_ptr<Board, Free> board(static_cast<Board*>(std::calloc(1, sizeof(Board))));
  FUZZ_CHECK(board);
  if (!agent || agent->entries > 20000) {
    agent.reset();
    agent = std::make_unique<Agent>();
  }
  Bytes in(data, size);
  for (uint32_t i = 0; i < kSlots; ++i) board->slots[i].word.store(0);
  for (SeenSlot& s : board->seen) s.state.store(0);
  for (int i = 0; i < 4 && !in.empty(); ++i) {
    RequestSlot& s = board->slots[i];
    const uint8_t ticket = in.byte(), state = in.byte();
    s.word = slot_word(ticket, static_cast<SlotState>(state % 4 == 3 ? state : 2));
    in.take(&s.hash, sizeof s.hash);
    s.root = in.byte() % (kRoots + 1);
    s.len = length(in.byte());
    in.take(&s.chunk, sizeof s.chunk);
    in.take(s.path, 64);
  }
  for (int i = 0; i < 4 && !in.empty(); ++i) {
    SeenSlot& s = board->seen[i];
    s.state = 2;
    const uint8_t kind = in.byte();
    in.take(&s.seen, sizeof s.seen);
    if (kind & 128) {  // of an entry that is there
      s.seen.entry = agent->known[kind % kKnown];
      s.seen.hash = agent->catalog->entry(s.seen.entry).hash;
    }
    if (kind & 64) {
      s.seen.values.dev = 42 + kind % 2;
      s.seen.values.mode = S_IFREG | 0644;
    }
  }
  board->header.seen.fetch_add(1);
  RequestRing ring(board.get());
  ring.drain(kRoots, [&](const RelPath& path, uint32_t chunk) {
    FUZZ_CHECK(path.root < kRoots && is_clean_relative(path.path, path.len));
    FUZZ_CHECK(path.hash == rel_path(path.root, path.path, path.len).hash);
    const Ref ref = agent->catalog->add(path, DT_UNKNOWN);
    if (!ref) return;
    ++agent->entries;
    FUZZ_CHECK(agent->catalog->path_of(ref) == std::string(path.path, path.len));
    (void)parking_of(path.hash, chunk);
  });
  SeenSlots seen(board.get());
  seen.drain([&](const Seen& fact) { agent->catalog->add_seen(fact); });
}

}  // namespace monarch::fuzz
