// SPDX-License-Identifier: Apache-2.0
#include "runtime/agent/take_over.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/base/os.h"
#include "runtime/layout/board_client.h"

namespace monarch {
namespace {

// The tier whose copy an entry leads to, also a copy that was replaced since and may be open; kNoTier: none.
// A further name of a copy goes: its inode leads to the first one alone.
uint32_t tier_of_copy(const CatalogReader& catalog, Ref ref, const Entry& e) {
  const uint64_t word = e.state.load(std::memory_order_acquire);
  const Identity* id = catalog.identity_of(e);
  if (!id || (state_of(word) != State::kPlaced && again_of(word) == 0)) return kNoTier;
  const uint32_t tier = id->tier.load(std::memory_order_relaxed);
  const Identity* known = catalog.find_copy(tier, read_once(id->tier_ino));
  return known && read_once(known->entry) == ref ? tier : kNoTier;
}

// Whether the agent before may have left a copy that no entry leads to any more, or not yet.
bool may_be_left(uint64_t word) {
  const State state = state_of(word);
  return state != State::kKnown && state != State::kPass && word != state_word(State::kNoFit);
}

void begin_anew(Catalog* catalog, std::vector<Tier>* tiers, Ref ref, uint64_t word) {
  const State state = state_of(word);
  if (state == State::kLarge) catalog->move(ref, word, large_word(0));
  if (state == State::kQueued || state == State::kStaging || state == State::kPlaced)
    catalog->move(ref, word, state_word(State::kKnown));
  for (Tier& tier : *tiers) (void)tier.remove(ref);
}

// What tasks are told of a file, and read, without a look at the PFS.
struct Told {
  const Identity* identity = nullptr;  // nullptr: nothing
  uint64_t size = 0;
  int64_t mtime = 0;
};

Told told_of(const CatalogReader& catalog, const Entry& e) {
  const State state = state_of(e.state.load(std::memory_order_acquire));
  if (const SeenFile* seen = state == State::kDropped ? nullptr : catalog.seen_file(e))
    return {&seen->identity, seen->size, seen->mtime};
  if (state != State::kPlaced && state != State::kLarge) return {};
  return {catalog.identity_of(e), e.size.load(std::memory_order_relaxed),
          e.mtime.load(std::memory_order_relaxed)};
}

// Tasks tell the agent of such files, and may take them for watched.
bool is_watched(const Entry& e) {
  const State state = state_of(e.state.load(std::memory_order_acquire));
  const uint8_t type = e.type.load(std::memory_order_relaxed);
  return state == State::kPlaced || state == State::kLarge || type == DT_REG || type == DT_LNK;
}

enum class Compared { kSame, kChanged, kUnknown };

Compared compare(const Catalog& catalog, const Told& told, int root, const std::string& path) {
  const Fd there(os::open_beneath(root, path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  struct stat st;
  if (!there || os::fstat(there.get(), &st) != 0) {
    const bool gone = errno == ENOENT || errno == ENOTDIR || errno == ELOOP || errno == EXDEV;
    return gone ? Compared::kChanged : Compared::kUnknown;
  }
  const bool same = st.st_ino == told.identity->pfs_ino && static_cast<uint64_t>(st.st_size) == told.size &&
                    ns_of(st.st_mtim) == told.mtime && ns_of(st.st_ctim) == told.identity->ctime &&
                    tells_changes(st.st_ctim, catalog.header().boot_time);
  return same ? Compared::kSame : Compared::kChanged;
}

}  // namespace

Status may_take_over(const Board& board) {
  if (agent_lives(board)) return Error{EBUSY, "another agent serves this job"};
  if (board.header.closed.load(std::memory_order_acquire) == kEnding)
    return Error{ESHUTDOWN, "the agent before this one has ended in order"};
  return {};
}

void take_over(Catalog* catalog, Hierarchy* hierarchy, Board* board) {
  std::vector<Tier>& tiers = hierarchy->tiers();
  for (size_t i = 0; i < tiers.size(); ++i) {
    board->placed_bytes[i] = 0;
    if (catalog->header().tiers[i].failed != 0) tiers[i].close("its device has failed");
  }
  catalog->walk(0, [&](Ref ref) {
    const Entry& e = catalog->entry(ref);
    const uint64_t word = e.state.load(std::memory_order_acquire);
    const uint64_t bytes = e.size.load(std::memory_order_relaxed);
    if (const uint32_t tier = tier_of_copy(catalog->reader(), ref, e); tier < tiers.size()) {
      tiers[tier].adopt(bytes);
      board->placed_bytes[tier] += bytes;
    } else if (may_be_left(word)) {
      begin_anew(catalog, &tiers, ref, word);
    }
    return true;
  });
  // These it counts anew.
  for (const AgentCounter counter :
       {AgentCounter::walk_dirs, AgentCounter::walk_files, AgentCounter::walk_errors})
    board->agent[static_cast<uint32_t>(counter)] = 0;
  board->header.full = 0;
  board->header.stalled_until_ns = 0;
  board->header.unheard = 1;
}

void compare_placed(Catalog* catalog, const Dataset& dataset, ChangeWatch* watch, Board* board,
                    Throttle* stats, const std::function<bool()>& stopping) {
  uint64_t changed = 0, unknown = 0;
  Ref watched = 0;
  catalog->walk(0, [&](Ref ref) {
    const Entry& e = catalog->entry(ref);
    if (!is_watched(e)) return true;
    const std::string path = catalog->path_of(ref);
    const uint32_t root = catalog->root_of(ref);
    if (const Ref dir = read_once(e.dir); std::exchange(watched, dir) != dir) {
      const size_t slash = path.rfind('/');
      if (!stats->wait(1, stopping)) return false;
      watch->add(root, std::string_view(path).substr(0, slash == std::string::npos ? 0 : slash));
    }
    const Told told = told_of(catalog->reader(), e);
    if (!told.identity) return true;
    if (!stats->wait(1, stopping) || stopping()) return false;
    const Compared found = compare(*catalog, told, dataset.roots[root].fd.get(), path);
    unknown += found == Compared::kUnknown;
    if (found != Compared::kChanged) return true;
    set_invalid(board, path_hash(root, path.data(), path.size()));
    tell_change(board);
    count(board, TaskCounter::invalidations);
    return ++changed > 0;
  });
  if (stopping()) return;
  if (unknown > 0)
    return spdlog::warn("the PFS does not tell whether {} placed files have changed: each open asks it",
                        unknown);
  board->header.unheard.fetch_sub(1, std::memory_order_release);
  spdlog::info("all placed files were compared with the PFS: {} have changed", changed);
}

}  // namespace monarch
