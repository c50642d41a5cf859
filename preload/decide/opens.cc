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

constexpr TaskCounter kNoReason = TaskCounter::opens_pfs;

// Why the program gets no copy of the file, wherever that is.
TaskCounter withheld(const Client& c, const RelPath& path, const Opening& opening) {
  const Program program = c.program;
  if (__builtin_expect(opening.native || program == Program::kRestricted, 0))
    return TaskCounter::fallback_pass;
  if (__builtin_expect(program == Program::kExcluded || (c.exclude && excludes_file(c, path)), 0))
    return TaskCounter::fallback_excluded;
  if (__builtin_expect(is_closed(*c.board), 0)) return TaskCounter::fallback_no_agent;
  return may_be_hidden(c, path) ? TaskCounter::fallback_mount : kNoReason;
}

// Of a placed file, all that may still be in the way.
TaskCounter take(const Client& c, const RelPath& path, const Found& found, uint32_t tier) {
  if (tier >= c.catalog.facts().tier_count || c.catalog.tier_failed(tier))
    return TaskCounter::fallback_tier_error;
  if (__builtin_expect(compares(c), 0) && !is_as_copied(c, path, *found.entry)) {
    set_invalid(c.board, path.hash);
    tell_change(c.board);
    count(c.board, TaskCounter::invalidations);
    return TaskCounter::fallback_dropped;
  }
  if (__builtin_expect(!same_groups(c), 0) && !may_read(c, path)) return TaskCounter::fallback_pass;
  return will_be_known(c.catalog) ? kNoReason : TaskCounter::fallback_pass;
}

// A stream of a large file may wait for the whole.
APART void wait_for_whole(const Client& c, const RelPath& path, const Entry& entry, OpenTime* time) {
  const KeepErrno errno_stays;
  const int64_t start = monotonic_ns();
  if (request_whole(c.board, c.catalog, path, entry) != Whole::kNotWaitedFor) has_waited(start, time);
}

uint64_t word_of(const Entry& e) { return e.state.load(std::memory_order_acquire); }

TaskCounter decide(Client* client, const RelPath& path, Opening opening, Decision* d);

// Of the file to which a symbolic link leads.
APART bool decide_real(Client* client, const RelPath& path, Opening opening, Decision* d, TaskCounter* why) {
  Room room;
  RelPath real;
  if (!opening.follows || !follow_links(*client, path, &room, &real)) return false;
  opening.follows = false;
  *why = decide(client, real, opening, d);
  return true;
}

// Where it goes, and the reason if that is the PFS; kNoReason: what is no file is not counted.
TaskCounter decide(Client* client, const RelPath& path, Opening opening, Decision* d) {
  const CatalogReader& catalog = client->catalog;
  const BoardHeader& board = client->board->header;
  d->marks = board.marks.load(std::memory_order_acquire);
  TaskCounter why = withheld(*client, path, opening);
  if (why != kNoReason) return why;
  // What the job wrote once it may write again, and a stream would not see that.
  const bool written = is_changed(*client, path, nullptr);
  Found found;
  const auto is_gone = [&](bool changed) {
    if (__builtin_expect(!changed, 1)) return false;
    found = opening.stream ? Found{} : staged_again(*client, path);
    if (!found) ask_again(client, path);
    return !found;
  };
  if (is_gone(written)) return TaskCounter::fallback_invalid;
  if (!written) found = catalog.newest(catalog.find(path), path);
  if (!found && catalog.walked(path.root)) {
    if (is_at_or_below(catalog, path, is_link) && decide_real(client, path, opening, d, &why)) return why;
    return is_at_or_below(catalog, path, is_other_device) ? TaskCounter::fallback_pass
                                                          : TaskCounter::fallback_absent;
  }
  const State first = found ? state_of(word_of(*found.entry)) : State::kKnown;
  if (first == State::kKnown && board.full.load(std::memory_order_relaxed) != 0)
    return TaskCounter::fallback_no_fit;
  if (!found && board.stat_before_asking.load(std::memory_order_relaxed) != 0 && is_absent(*client, path))
    return TaskCounter::fallback_absent;
  const bool waited = unsettled(first);
  if (waited) {
    const WaitEnd end = wait_for(client, path, &found, &d->time);
    if (end != WaitEnd::kSettled) return reason_for_pfs(end);
  }
  if (is_gone(!written && is_changed(*client, path, found.entry))) return TaskCounter::fallback_invalid;
  if (opening.stream && state_of(word_of(*found.entry)) == State::kLarge)
    wait_for_whole(*client, path, *found.entry, &d->time);
  const uint64_t word = word_of(*found.entry);
  const State state = state_of(word);
  if (reason_of(word) == Reason::kSymlink && decide_real(client, path, opening, d, &why)) return why;
  d->bytes = found.entry->size.load(std::memory_order_relaxed);
  d->large = state == State::kLarge ? found.ref : 0;
  if (reason_of(word) == Reason::kNotRegular || found.entry->type == DT_DIR) return kNoReason;
  if (state != State::kPlaced) return reason_for_pfs(state);
  d->tier = tier_of(word);
  why = take(*client, path, found, d->tier);
  d->placed = why == kNoReason;
  d->copy = found.ref;
  if (waited && d->placed) count(client->board, TaskCounter::waited_hits);
  return why;
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
APART void write_open(const Client& c, const RelPath& path, const Decision& d) {
  const char* root = root_path(c, path.root);
  write_line(c.log, {root ? root : "",
                     "/",
                     {path.path, path.len},
                     d.placed ? ": tier " : ": PFS, ",
                     d.placed ? c.catalog.facts().tiers[d.tier].name : name_of(d.why)});
}

void log_open(const Client& c, const RelPath& path, const Decision& d) {
  if (__builtin_expect(c.log != nullptr, 0)) write_open(c, path, d);
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
TaskCounter reason_of_failure(const Client& client, const Decision& d, int error) {
  const KeepErrno errno_stays;
  const CatalogFacts& facts = client.catalog.facts();
  const Entry* e = client.catalog.entry(d.copy);
  const uint64_t word = e ? e->state.load(std::memory_order_acquire) : 0;
  const bool evicted = state_of(word) == State::kNoFit && reason_of(word) != Reason::kTierError;
  const bool programs = error == EACCES || error == EMFILE || error == ENFILE;
  return evicted                                           ? TaskCounter::fallback_no_fit
         : programs                                        ? TaskCounter::fallback_pass
         : error == ENOENT && is_tier_there(facts, d.tier) ? TaskCounter::fallback_dropped
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

// Of a copy, whole or partial; nullptr: there is no such tier, or no memory.
const char* path_of_copy(const CatalogFacts& facts, uint32_t tier, Ref ref, bool whole, Room* room) {
  if (tier >= facts.tier_count) return nullptr;
  const auto& where = facts.tiers[tier];
  char* const path = room->take(where.len + 1 + kPartNameBytes);
  if (!path) return nullptr;
  memcpy(path, where.path, where.len);
  path[where.len] = '/';
  (whole ? copy_name : part_name)(ref, path + where.len + 1);
  return path;
}

}  // namespace

APART Reading::Reading(Client* client, int dirfd, const char* path, Opening opening) : client_(client) {
  RelPath file;
  const bool is_below = opening.follows ? resolve_to_read(*client, dirfd, path, &text_, &file)
                                        : resolve(*client, dirfd, path, &text_, &file);
  if (!is_below) return;
  path_ = file;
  const CatalogFacts& facts = client->catalog.facts();
  if (__builtin_expect(is_open_timed(my_shard(client->board), facts.tier_count), 0))
    decision_.time.since_ns = time_now();
  decision_.why = decide(client, path_, opening, &decision_);
  if (__builtin_expect(decision_.placed, 1))
    copy_ = path_of_copy(facts, decision_.tier, decision_.copy, true, &copy_text_);
  if (__builtin_expect(copy_ != nullptr, 1)) return;
  if (decision_.placed) decision_.why = TaskCounter::fallback_pass;
  count_on_pfs(client, path_, &decision_);
}

bool Reading::has_copy(int fd) {
  const Decision& d = decision_;
  if (__builtin_expect(static_cast<unsigned>(fd) < kDescriptors, 1) &&
      (names_hold(*client_, d.tier) || prove(*client_, d.tier, d.copy, fd))) {
    count_copy_opened(client_, path_, d);
    if (__builtin_expect(d.time.since_ns != 0, 0)) ends();
    return true;
  }
  decision_.why = reason_of_failure(*client_, d, fd < 0 ? errno : 0);
  if (d.why == TaskCounter::fallback_dropped) ask_again(client_, path_);
  count_on_pfs(client_, path_, &decision_);
  return false;
}

RARE void Reading::ends() const {
  if (decision_.time.since_ns == 0) return;
  const KeepErrno errno_stays;
  const int64_t ns = monotonic_ns() - decision_.time.since_ns;
  count_open(client_->board, decision_.time.kind, ns > 0 ? static_cast<uint64_t>(ns) : 0);
}

int open_copy(const Client& client, Ref ref, uint32_t tier, bool whole) {
  if (whole && !will_be_known(client.catalog)) return -1;
  Room room;
  const char* const path = path_of_copy(client.catalog.facts(), tier, ref, whole, &room);
  const int fd = path ? open_own(AT_FDCWD, path, O_RDONLY | O_NOFOLLOW) : -1;
  return fd < 0 || names_hold(client, tier) || prove(client, tier, 0, fd) ? fd : not_opened(fd);
}

void count_copy_opened(Client* client, const RelPath& path, const Decision& d) {
  log_open(*client, path, d);
  my_shard(client->board).opens_tier[d.tier].fetch_add(1, std::memory_order_relaxed);
}

void count_on_pfs(Client* client, const RelPath& path, Decision* d) {
  d->placed = false;
  log_open(*client, path, *d);
  if (d->why != kNoReason) {
    count(client->board, d->why);
    count(client->board, TaskCounter::opens_pfs);
    goes_to_pfs(&d->time);
  } else if (d->time.kind != OpenKind::kWaited) {
    d->time.since_ns = 0;
  }
}

}  // namespace monarch::preload
