// SPDX-License-Identifier: Apache-2.0
// A ladder of early returns, each to the PFS.
#include "preload/decide/opens.h"

#include "preload/decide/changes.h"
#include "preload/decide/descriptors.h"
#include "preload/decide/waiting.h"
#include "preload/next/kernel.h"
#include "preload/resolve/names.h"
#include "preload/resolve/originals.h"
#include "preload/resolve/paths.h"
#include "preload/resolve/roots.h"

namespace monarch::preload {
namespace {

// The counter that says why an open goes to the PFS although the file's state is settled.
TaskCounter reason_for_pfs(State state) {
  return state == State::kNoFit     ? TaskCounter::fallback_no_fit
         : state == State::kLarge   ? TaskCounter::fallback_large
         : state == State::kDropped ? TaskCounter::fallback_dropped
                                    : TaskCounter::fallback_pass;
}

TaskCounter reason_for_pfs(WaitEnd end) {
  return end == WaitEnd::kNoAgent    ? TaskCounter::fallback_no_agent
         : end == WaitEnd::kTimeout  ? TaskCounter::fallback_timeout
         : end == WaitEnd::kRingFull ? TaskCounter::fallback_ring_full
                                     : TaskCounter::fallback_pass;
}

RARE int64_t time_now() {
  const KeepErrno errno_stays;
  return monotonic_ns();
}

// A wait in vain is part of the open's time; else it is the PFS's alone.
void goes_to_pfs(OpenTime* time) {
  if (time->kind != OpenKind::kWaited) *time = {time_now(), OpenKind::kPfs};
}

void has_waited(int64_t since_ns, OpenTime* time) {
  *time = {time->kind == OpenKind::kWaited ? time->since_ns : since_ns, OpenKind::kWaited};
}

WaitEnd wait_for(Client* client, const RelPath& path, Found* found, OpenTime* time) {
  const KeepErrno errno_stays;
  const int64_t start = monotonic_ns();
  has_waited(start, time);
  const WaitEnd end = request_and_wait(client->board, client->catalog, path, found);
  count(client->board, TaskCounter::waits);
  count(client->board, TaskCounter::wait_ns, static_cast<uint64_t>(monotonic_ns() - start));
  return end;
}

// Whether the file on the PFS still is the one that was copied (see compares()).
APART bool is_as_copied(const Client& client, const RelPath& path, const Entry& e) {
  const KeepErrno errno_stays;
  Room room;
  const char* full = pfs_path(client, path, &room);
  struct statx st;
  if (!full) return false;
  count(client.board, TaskCounter::meta_pfs);
  return ask_statx(AT_FDCWD, full, AT_SYMLINK_NOFOLLOW | AT_STATX_FORCE_SYNC,
                   STATX_INO | STATX_SIZE | STATX_MTIME | STATX_CTIME, &st) &&
         is_unchanged_file_of(client, e, st);
}

// Whether there is nothing of this name: then the agent need not be asked, and keeps no entry of it.
APART bool is_absent(const Client& client, const RelPath& path) {
  const KeepErrno errno_stays;
  Room room;
  const char* full = pfs_path(client, path, &room);
  return full && syscall(SYS_faccessat, AT_FDCWD, full, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

// Whether the PFS would let this process read the file, whose groups are not the agent's.
RARE bool may_read(const Client& client, const RelPath& path) {
  constexpr long kFaccessat2 = 439;  // which older headers lack
  const KeepErrno errno_stays;
  Room room;
  const char* full = pfs_path(client, path, &room);
  if (!full) return false;
  count(client.board, TaskCounter::meta_pfs);
  return syscall(kFaccessat2, AT_FDCWD, full, R_OK, AT_EACCESS) == 0;
}

// Whether a copy's descriptor will be known as such, also when there is no descriptor or memory left for
// that.
bool will_be_known(const CatalogReader& catalog) {
  const KeepErrno errno_stays;
  return catalog.map_identities();
}

// Whether the file, or a directory above it, has an entry for which `is` holds.
template <typename Is>
bool is_at_or_below(const CatalogReader& catalog, const RelPath& path, Is is) {
  const auto has = [&](const RelPath& name) {
    const Found found = catalog.find(name);
    return found && is(*found.entry);
  };
  return has(path) || any_above(path, has);
}

// The walk follows no symbolic link, and goes into no other file system.
bool is_link(const Entry& e) { return e.type.load(std::memory_order_relaxed) == DT_LNK; }
bool is_other_device(const Entry& e) {
  return reason_of(e.state.load(std::memory_order_relaxed)) == Reason::kOtherDevice;
}

Answer decide(Client* client, const RelPath& path, Room* copy, Opening opening, OpenTime time);

// Of the file to which a symbolic link leads.
APART bool decide_real(Client* client, const RelPath& path, Room* copy, bool stream, Answer* answer) {
  Room room;
  RelPath real;
  if (!follow_links(*client, path, &room, &real)) return false;
  *answer = decide(client, real, copy, {.follows = false, .stream = stream}, answer->time);
  return true;
}

// The agent is told of what the job opens after it wrote it, or after its copy was removed, by each process
// once a second.
RARE void ask_again(Client* client, const RelPath& path) {
  static std::atomic<uint64_t> asked[64];
  constexpr int kSecond = 30;  // as a shift
  const auto now = static_cast<uint32_t>(monotonic_ns() >> kSecond);
  const uint64_t ask = uint64_t{path.hash} << 32 | now;
  if (client->catalog.facts().stages_again == 0 || asked[path.hash % 64].exchange(ask) == ask) return;
  const KeepErrno errno_stays;
  (void)post_request(client->board, path);
}

Answer decide(Client* client, const RelPath& path, Room* copy, Opening opening, OpenTime time) {
  Answer answer;
  answer.time = time;
  answer.marks = client->board->header.marks.load(std::memory_order_acquire);
  const auto to_pfs = [&](TaskCounter why) {
    count(client->board, why);
    count(client->board, TaskCounter::opens_pfs);
    answer.why = why;
    goes_to_pfs(&answer.time);
    return answer;
  };
  Board* board = client->board;
  const Program program = client->program;
  if (__builtin_expect(opening.native || program == Program::kRestricted, 0))
    return to_pfs(TaskCounter::fallback_pass);
  if (__builtin_expect(program == Program::kExcluded || client->exclude, 0) &&
      (program == Program::kExcluded || excludes_file(*client, path)))
    return to_pfs(TaskCounter::fallback_excluded);
  if (__builtin_expect(is_closed(*board), 0)) return to_pfs(TaskCounter::fallback_no_agent);
  if (may_be_hidden(*client, path)) return to_pfs(TaskCounter::fallback_mount);
  const auto changed = [&] {
    ask_again(client, path);
    return to_pfs(TaskCounter::fallback_invalid);
  };
  // What the job wrote once it may write again, and a stream would not see that.
  const auto staged_since = [&] { return opening.stream ? Found{} : staged_again(*client, path); };
  Found again;
  if (__builtin_expect(is_changed(*client, path, nullptr), 0)) {
    again = staged_since();
    if (!again) return changed();
  }
  Found found = again ? again : client->catalog.newest(client->catalog.find(path), path);
  const CatalogFacts& facts = client->catalog.facts();
  if (!found && client->catalog.walked(path.root)) {
    const bool other = opening.follows && is_at_or_below(client->catalog, path, is_link);
    if (other && decide_real(client, path, copy, opening.stream, &answer)) return answer;
    return to_pfs(is_at_or_below(client->catalog, path, is_other_device) ? TaskCounter::fallback_pass
                                                                         : TaskCounter::fallback_absent);
  }
  uint64_t word = found ? found.entry->state.load(std::memory_order_acquire) : state_word(State::kKnown);
  if (state_of(word) == State::kKnown && board->header.full.load(std::memory_order_relaxed) != 0)
    return to_pfs(TaskCounter::fallback_no_fit);
  if (!found && board->header.look_first.load(std::memory_order_relaxed) != 0 && is_absent(*client, path))
    return to_pfs(TaskCounter::fallback_absent);
  const bool waited = unsettled(state_of(word));
  if (waited) {
    const WaitEnd end = wait_for(client, path, &found, &answer.time);
    if (end != WaitEnd::kSettled) return to_pfs(reason_for_pfs(end));
    word = found.entry->state.load(std::memory_order_acquire);
  }
  if (!again && is_changed(*client, path, found.entry)) {
    found = staged_since();
    if (!found) return changed();
    word = found.entry->state.load(std::memory_order_acquire);
  }
  if (opening.stream && state_of(word) == State::kLarge) {
    const KeepErrno errno_stays;
    const int64_t start = monotonic_ns();
    const Whole whole = request_whole(board, client->catalog, path, *found.entry);
    if (whole != Whole::kNotWaitedFor) has_waited(start, &answer.time);
    if (whole == Whole::kThere) word = found.entry->state.load(std::memory_order_acquire);
  }
  answer.bytes = found.entry->size.load(std::memory_order_relaxed);
  if (state_of(word) == State::kLarge) answer.large = found.ref;
  if (reason_of(word) == Reason::kSymlink && opening.follows &&
      decide_real(client, path, copy, opening.stream, &answer))
    return answer;
  // A directory or a device is not a file of the dataset's: nothing to count.
  if (reason_of(word) == Reason::kNotRegular || found.entry->type == DT_DIR) {
    if (answer.time.kind != OpenKind::kWaited) answer.time.since_ns = 0;
    return answer;
  }
  if (state_of(word) != State::kPlaced) return to_pfs(reason_for_pfs(state_of(word)));
  answer.tier = tier_of(word);
  if (answer.tier >= facts.tier_count || client->catalog.tier_failed(answer.tier))
    return to_pfs(TaskCounter::fallback_tier_error);
  if (__builtin_expect(compares(*client), 0) && !is_as_copied(*client, path, *found.entry)) {
    set_invalid(board, path.hash);
    tell_change(board);
    count(board, TaskCounter::invalidations);
    return to_pfs(TaskCounter::fallback_dropped);
  }
  if (__builtin_expect(!same_groups(*client), 0) && !may_read(*client, path))
    return to_pfs(TaskCounter::fallback_pass);
  if (!will_be_known(client->catalog)) return to_pfs(TaskCounter::fallback_pass);
  const auto& where = facts.tiers[answer.tier];
  char* name = copy->take(where.len + 1 + kCopyNameBytes);
  if (!name) return to_pfs(TaskCounter::fallback_pass);
  memcpy(name, where.path, where.len);
  name[where.len] = '/';
  copy_name(found.ref, name + where.len + 1);
  if (waited) count(board, TaskCounter::waited_hits);
  answer.copy = found.ref;
  answer.placed = true;
  return answer;
}

const char* name_of(TaskCounter counter) {
  constexpr const char* kNames[] = {
#define X(name, doc) #name,
      MONARCH_TASK_COUNTERS(X)
#undef X
  };
  return kNames[static_cast<uint32_t>(counter)];
}

// One line per open, once it is known what became of it.
APART void write_open(const Client& c, const RelPath& path, const Answer& answer) {
  const char* root = root_path(c, path.root);
  write_line(c.log, {root ? root : "",
                     "/",
                     {path.path, path.len},
                     answer.placed ? ": tier " : ": PFS, ",
                     answer.placed ? c.catalog.facts().tiers[answer.tier].name : name_of(answer.why)});
}

void log_open(const Client& c, const RelPath& path, const Answer& answer) {
  if (__builtin_expect(c.log != nullptr, 0)) write_open(c, path, answer);
}

// While the agent lives, its directories are there, and nobody else can take their names; but in a mount
// namespace of his own the job's owner may show other directories there.
bool names_hold(const Client& client, uint32_t tier) {
  return __builtin_expect(client.board->header.closed.load(std::memory_order_acquire) == kServes &&
                              agent_lives(*client.board) && client.catalog.facts().tiers[tier].unsafe == 0 &&
                              sees_agents_mounts(),
                          1);
}

// Why a copy did not open. Where its directory is there, another program has removed it. A program may be
// denied what is its user's (Landlock), or have no descriptor left.
TaskCounter reason_of_failure(const Client& client, const Answer& answer, int error) {
  const KeepErrno errno_stays;
  const CatalogFacts& facts = client.catalog.facts();
  const Entry* e = client.catalog.entry(answer.copy);
  const uint64_t word = e ? e->state.load(std::memory_order_acquire) : 0;
  const bool evicted = state_of(word) == State::kNoFit && reason_of(word) != Reason::kTierError;
  const bool programs = error == EACCES || error == EMFILE || error == ENFILE;
  return evicted                                                ? TaskCounter::fallback_no_fit
         : programs                                             ? TaskCounter::fallback_pass
         : error == ENOENT && is_tier_there(facts, answer.tier) ? TaskCounter::fallback_dropped
                                                                : TaskCounter::fallback_tier_error;
}

// In a job of Slurm's a copy is root's, whom a user namespace shows as nobody, in `monarchctl run` the task's
// user's. Neither can be made, or written, by another user.
bool is_copys_owner(const struct statx& st) {
  constexpr uint32_t kNobody = 65534;
  const bool roots = st.stx_uid == 0 || st.stx_uid == kNobody;
  return is_own(st, S_IFREG, 077) || (roots && S_ISREG(st.stx_mode) && (st.stx_mode & 022) == 0);
}

// `copy` 0: one that need not be known by its inode, as partial ones are not: by its directory.
RARE bool prove(const Client& client, uint32_t tier, Ref copy, int fd) {
  const KeepErrno errno_stays;
  struct statx st;
  if (!look_at(fd, STATX_BASIC_STATS, &st) || !is_copys_owner(st) ||
      device_of(st) != client.catalog.facts().tiers[tier].dev)
    return false;
  Original original;
  if (copy == 0) return is_tier_there(client.catalog.facts(), tier);
  if (!is_copy(st, &original)) return false;
  choose_name(fd, &original);
  return original.entry == client.catalog.entry(copy);
}

}  // namespace

Answer find_copy(Client* client, const RelPath& path, Room* copy, Opening opening) {
  const bool is_timed = is_open_timed(my_shard(client->board), client->catalog.facts().tier_count);
  const OpenTime time{__builtin_expect(is_timed, 0) ? time_now() : 0, OpenKind::kTier};
  const Answer answer = decide(client, path, copy, opening, time);
  if (!answer.placed) log_open(*client, path, answer);
  return answer;
}

bool is_the_copy(const Client& client, const Answer& answer, int fd) {
  return static_cast<unsigned>(fd) < kDescriptors &&
         (names_hold(client, answer.tier) || prove(client, answer.tier, answer.copy, fd));
}

int open_copy(const Client& client, Ref ref, uint32_t tier, bool whole) {
  const CatalogFacts& facts = client.catalog.facts();
  if (tier >= facts.tier_count || (whole && !will_be_known(client.catalog))) return -1;
  const auto& where = facts.tiers[tier];
  Room room;
  char* path = room.take(where.len + 1 + kPartNameBytes);
  if (!path) return -1;
  memcpy(path, where.path, where.len);
  path[where.len] = '/';
  (whole ? copy_name : part_name)(ref, path + where.len + 1);
  const int fd = open_own(AT_FDCWD, path, O_RDONLY | O_NOFOLLOW);
  return fd < 0 || names_hold(client, tier) || prove(client, tier, 0, fd) ? fd : not_opened(fd);
}

void count_copy_opened(Client* client, const RelPath& path, const Answer& answer) {
  log_open(*client, path, answer);
  my_shard(client->board).opens_tier[answer.tier].fetch_add(1, std::memory_order_relaxed);
  count_open_time(client, answer.time);
}

void count_copy_failed(Client* client, const RelPath& path, int error, Answer* answer) {
  goes_to_pfs(&answer->time);
  answer->placed = false;
  answer->why = reason_of_failure(*client, *answer, error);
  if (answer->why == TaskCounter::fallback_dropped) ask_again(client, path);
  count(client->board, answer->why);
  count(client->board, TaskCounter::opens_pfs);
  log_open(*client, path, *answer);
}

void count_undecided(Client* client, const RelPath& path) {
  constexpr Answer kAnswer = {.why = TaskCounter::fallback_pass};
  count(client->board, kAnswer.why);
  count(client->board, TaskCounter::opens_pfs);
  log_open(*client, path, kAnswer);
}

RARE void add_open_time(Client* client, const OpenTime& time) {
  const KeepErrno errno_stays;
  const int64_t ns = monotonic_ns() - time.since_ns;
  count_open(client->board, time.kind, ns > 0 ? static_cast<uint64_t>(ns) : 0);
}

}  // namespace monarch::preload
