// SPDX-License-Identifier: Apache-2.0
#include "runtime/placement/file_stager.h"

#include <dirent.h>
#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/os.h"
#include "runtime/hierarchy/locality.h"
#include "runtime/placement/copying.h"

namespace monarch {
namespace {

// So many names that are not there may be in the catalog, and one for each four files that are.
constexpr uint64_t kFewAbsent = 64, kFilesPerAbsent = 4;

// Nothing more becomes of an entry in this state by itself, and no other has its place.
bool may_be_replaced(uint64_t word) {
  const State state = state_of(word);
  return (state == State::kPlaced || state == State::kDropped || reason_of(word) == Reason::kMissing) &&
         again_of(word) == 0;
}

// Ends a turn of prefetch.
struct Turn {
  WorkQueue* queue;  // nullptr: none was taken
  ~Turn() {
    if (queue) queue->end_turn();
  }
};

}  // namespace

FileStager::FileStager(PlacementContext* context, WorkQueue* queue, TierHealth* health,
                       PrefetchCredit* credit, ChunkStager* chunks)
    : context_(context), queue_(queue), health_(health), credit_(credit), chunks_(chunks) {
  for (int i = 0; i < static_cast<int>(context->hierarchy->tiers().size()); ++i)
    write_back_.push_back(std::make_unique<WriteBack>(WriteBack::Events{
        [this, i](NamedCopy& copy) { publish(i, &copy); },
        [this, i](NamedCopy copy, const Status& status) { written(i, std::move(copy), status); }}));
}

void FileStager::stop() {
  for (const auto& write_back : write_back_) write_back->stop();
}

void FileStager::stage(const Work& work, Copier* copier) {
  Catalog* catalog = context_->catalog;
  const Turn turn{work.opened && work.why == Why::kPrefetch ? queue_ : nullptr};
  PrefetchCredit::Held held(credit_, work.reserved);
  if (!work.opened && work.why == Why::kDemand &&
      !catalog->move(work.ref, state_word(State::kQueued), state_word(State::kStaging)))
    return;
  if (context_->dataset->excludes(catalog->root_of(work.ref), catalog->path_of(work.ref))) {
    context_->settle(work.ref, state_word(State::kPass, Reason::kExcluded));
  } else if (is_invalid(*context_->board, catalog->entry(work.ref).hash)) {
    context_->settle(work.ref, state_word(State::kDropped, Reason::kWritten));
    const std::string path = catalog->path_of(work.ref);
    ask_again(rel_path(catalog->root_of(work.ref), path.data(), path.size()));
  } else if (work.opened) {
    place(work, work.opened->source.get(), work.opened->st, copier);
  } else {
    open_and_place(work, &held, copier);
  }
}

void FileStager::ask_again(const RelPath& path) {
  const CatalogReader& reader = context_->catalog->reader();
  const Found found = reader.newest(reader.find(path), path);
  if (found && may_be_replaced(found.entry->state.load(std::memory_order_acquire)))
    queue_->stage_again(found.ref, changed_at(*context_->board, path.hash));
}

bool FileStager::serves(Ref ref) {
  const uint64_t word = context_->word_of(ref);
  if (state_of(word) != State::kPlaced ||
      is_changed_since(*context_->board, context_->catalog->entry(ref).hash, change_of(word)))
    return false;
  const Tier& tier = context_->tier(static_cast<int>(tier_of(word)));
  if (tier.open_copy(ref) || errno != ENOENT) return true;
  if (!told_removed_.exchange(true))
    spdlog::warn("tier {}: another program removes copies, such as that of {}; they are staged again",
                 tier.name(), context_->catalog->path_of(ref));
  return false;
}

bool FileStager::replace(int tier, const NamedCopy& copy) {
  Catalog* catalog = context_->catalog;
  const uint64_t word = context_->word_of(copy.before);
  if (may_be_replaced(word) && catalog->move(copy.before, word, again_word(copy.entry))) {
    if (state_of(word) == State::kPlaced) add(context_->board, AgentCounter::staged_again);
    return true;
  }
  const uint64_t placed = placed_word(static_cast<uint32_t>(tier), copy.change);
  if (!catalog->move(copy.entry, placed, anew_word(copy.before))) return true;  // it was evicted just now
  catalog->retire(copy.entry);
  return false;
}

// The number of the last change is read before the file is looked at, and compared after it was copied: then
// nobody has changed it in between, as far as hooks see, nor has it open for writing.
void FileStager::stage_again(const Work& work, Copier* copier) {
  Catalog* catalog = context_->catalog;
  Work again = work;
  again.change = last_change(*context_->board);
  if (again.change == kLastChange || !may_be_replaced(catalog->entry(work.ref).state.load()) ||
      changed_at(*context_->board, catalog->entry(work.ref).hash) != work.change || serves(work.ref))
    return;  // whoever opens it next asks again
  raise_to(&context_->board->header.copied_at, again.change);
  const std::string path = catalog->path_of(work.ref);
  watch_directory(work.ref, path);
  struct stat st;
  if (!look(work.ref, path, &st) || !S_ISREG(st.st_mode) || st.st_nlink > 1) return;
  const std::unique_ptr<SourceFile> source = context_->source->open(work.ref, path, work.need(), *copier);
  if (!source || os::fstat(source->fd(), &st) != 0 || !S_ISREG(st.st_mode) || has_far_time(st) ||
      is_being_changed(again, source->fd(), st))
    return;
  again.before = work.ref;
  again.ref = catalog->add_again(work.ref);
  if (!again.ref) return;  // or the last one is not settled yet
  Entry& e = catalog->entry(again.ref);
  e.size.store(static_cast<uint64_t>(st.st_size), std::memory_order_release);
  e.mtime.store(ns_of(st.st_mtim), std::memory_order_release);
  place(again, source.get(), st, copier);
}

bool FileStager::is_being_changed(const Work& work, int source, const struct stat& st) const {
  const Board& board = *context_->board;
  if (is_changed_since(board, context_->catalog->entry(work.ref).hash, work.change)) return true;
  return work.why == Why::kAgain &&
         (is_changed_since(board, mark_of_inode(st.st_ino), work.change) || os::is_written_elsewhere(source));
}

void FileStager::note_found() {
  const bool many = absent_ > kFewAbsent + ++found_ / kFilesPerAbsent;
  context_->board->header.stat_before_asking.store(many ? 1 : 0, std::memory_order_relaxed);
}

void FileStager::note_absent() {
  if (++absent_ > kFewAbsent + found_ / kFilesPerAbsent)
    context_->board->header.stat_before_asking.store(1, std::memory_order_relaxed);
}

bool FileStager::look(Ref ref, const std::string& path, struct stat* st) const {
  const Fd there(os::open_beneath(context_->root_of(ref).fd.get(), path.c_str(), O_PATH | O_CLOEXEC));
  return there && os::fstat(there.get(), st) == 0;
}

bool FileStager::is_regular(Ref ref, const std::string& path) {
  struct stat st;
  if (!look(ref, path, &st)) {
    const int error = errno;
    if (is_shortage(error)) {
      health_->put_off(ref, error);
      return false;
    }
    add(context_->board, AgentCounter::pass_files);
    if (error == ENOENT || error == ENOTDIR) note_absent();
    context_->settle(ref, verdict_on_open(error));
    return false;
  }
  if (S_ISREG(st.st_mode)) return true;
  add(context_->board, AgentCounter::pass_files);
  context_->settle(ref, state_word(State::kPass, Reason::kNotRegular));
  return false;
}

void FileStager::watch_directory(Ref ref, const std::string& path) {
  const size_t slash = path.rfind('/');
  if (context_->watch)
    context_->watch->add(context_->catalog->root_of(ref),
                         std::string_view(path).substr(0, slash == std::string::npos ? 0 : slash));
}

bool FileStager::put_back(const Work& work, uint64_t bytes, PrefetchCredit::Held* held, const Copier& copier,
                          bool* paid) {
  if (work.hinted || copier.hurried() || (*paid = credit_->take(bytes, held))) return false;
  queue_->pass_over(bytes);
  context_->settle(work.ref, state_word(State::kKnown));
  // Who has come since then found it in work.
  if (copier.hurried() &&
      context_->catalog->move(work.ref, state_word(State::kKnown), state_word(State::kQueued)))
    queue_->demand(work.ref);
  return true;
}

void FileStager::open_and_place(Work work, PrefetchCredit::Held* held, Copier* copier) {
  Entry& e = context_->catalog->entry(work.ref);
  const std::string path = context_->catalog->path_of(work.ref);
  watch_directory(work.ref, path);
  if (e.type != DT_REG && !is_regular(work.ref, path)) return;
  if (!context_->root_of(work.ref).numbers_stay) {
    add(context_->board, AgentCounter::pass_files);
    return context_->settle(work.ref, state_word(State::kPass, Reason::kNoNumber));
  }
  std::unique_ptr<SourceFile> source = context_->source->open(work.ref, path, work.need(), *copier);
  struct stat st;
  if (!source || !source->values(&st)) {
    const int error = errno;
    if (is_shortage(error)) return health_->put_off(work.ref, error);
    if (error == ENOENT || error == ENOTDIR) note_absent();
    add(context_->board,
        error == ENOENT || error == EACCES ? AgentCounter::pass_files : AgentCounter::source_errors);
    if (error != ENOENT)
      spdlog::warn("stage {}/{}: {}", context_->root_of(work.ref).path, path, std::strerror(error));
    return context_->settle(work.ref, verdict_on_open(error));
  }
  if (!S_ISREG(st.st_mode)) return context_->settle(work.ref, state_word(State::kPass, Reason::kNotRegular));
  if (has_far_time(st)) {
    add(context_->board, AgentCounter::pass_files);
    return context_->settle(work.ref, state_word(State::kPass, Reason::kFarTime));
  }
  const uint64_t bytes = static_cast<uint64_t>(st.st_size);
  e.mtime.store(ns_of(st.st_mtim), std::memory_order_release);   // after the state that took it back
  if (e.size.exchange(bytes, std::memory_order_release) == 0) {  // else: tried before
    health_->note_size(bytes);
    note_found();
  }
  if (work.why == Why::kPrefetch && put_back(work, bytes, held, *copier, &work.paid)) return;
  if (bytes > context_->config.stage_wait_max) return chunks_->begin(work, std::move(source), st);
  const bool in_turn = work.why == Why::kPrefetch && bytes >= Copier::kSeveralPieces;
  if (in_turn && !queue_->take_turn(work, *copier, &source, st)) return;
  const Turn turn{in_turn ? queue_ : nullptr};
  place(work, source.get(), st, copier);
}

Status FileStager::make_copy(const Work& work, SourceFile* source, const struct stat& st, Tier* tier,
                             const Fd& copy, Writing writing, Copier* copier, struct stat* made) {
  const auto bytes = static_cast<uint64_t>(st.st_size);
  const MemoryPolicy spread(writing == Writing::kMemory);
  if (is_sparse(st) && os::ftruncate(copy.get(), st.st_size) != 0) return errno_error("make a sparse copy");
  MONARCH_TRY(source->copy({.copy = copy.get(),
                            .file_bytes = bytes,
                            .offset = 0,
                            .bytes = bytes,
                            .writing = writing,
                            .paced = work.background(),
                            .sparse = is_sparse(st)},
                           copier));
  if (!unchanged(*source, st)) return Error{ESTALE, std::string(kSource) + "it changed while it was copied"};
  if (is_being_changed(work, source->fd(), st))  // no task would open the copy
    return Error{ESTALE, std::string(kSource) + "the job wrote it while it was copied"};
  return tier->publish(copy, work.ref, st, made);
}

void FileStager::copying_failed(Ref ref, int tier, const Error& error) {
  if (context_->stopping) return;
  if (is_shortage(error.code) || error.code == ECANCELED) return health_->put_off(ref, error.code);
  if (!is_source_error(error)) {
    health_->failed(tier, error);
    return context_->settle(ref, state_word(State::kNoFit, Reason::kTierError));
  }
  spdlog::warn("stage {}: {}", context_->catalog->path_of(ref), error.text);
  const Verdict v = verdict_on_read(error);
  context_->count(ref, v.counter);
  context_->settle(ref, v.word);
}

void FileStager::place(const Work& work, SourceFile* source, const struct stat& st, Copier* copier) {
  if (!shares_copy(work, st, *copier) && !place_copy(work, source, st, copier)) (void)end_sharing(work.ref);
}

bool FileStager::shares_copy(const Work& work, const struct stat& st, const Copier& copier) {
  if (st.st_nlink < 2 || work.why == Why::kAgain ||
      !tells_changes(st.st_ctim, context_->catalog->header().boot_time))
    return false;
  const HardLinks::Turn turn = links_.begin(work.ref, st, [&](Ref ref, const HardLinks::Copy& copy) {
    return link(ref, copy, st, work.background());
  });
  if (turn == HardLinks::Turn::kWaits && (work.why == Why::kDemand || copier.hurried())) hurry(work.ref);
  return turn != HardLinks::Turn::kCopy;
}

bool FileStager::link(Ref ref, const HardLinks::Copy& copy, const struct stat& source, bool prefetched) {
  Tier& tier = context_->tier(copy.tier);
  if (!tier.link(copy.maker, ref)) return false;
  if (!context_->catalog->place_link(ref, static_cast<uint32_t>(copy.tier), copy.inode, source)) {
    if (tier.remove(ref)) tier.release_space(tier.name_space());
    return false;
  }
  add(context_->board, AgentCounter::staged_files);
  add(context_->board, prefetched ? AgentCounter::prefetch_files : AgentCounter::demand_files);
  context_->wake(ref);
  return true;
}

bool FileStager::end_sharing(Ref maker) {
  const HardLinks::Names names = links_.ended(maker, [this](Ref name) {
    const uint64_t now = context_->word_of(name);
    const bool is_settled = state_of(now) != State::kPlaced && state_of(now) != State::kStaging;
    if (!is_settled && context_->catalog->move(name, now, state_word(State::kNoFit, Reason::kTierError)))
      context_->catalog->retire(name);
  });
  const uint64_t word = context_->catalog->entry(maker).state.load(std::memory_order_acquire);
  const bool settled =
      state_of(word) == State::kNoFit || state_of(word) == State::kPass || state_of(word) == State::kDropped;
  for (const Ref name : names.waiting)
    context_->settle(name, settled ? word : state_word(State::kNoFit, Reason::kTierError));
  bool removed = true;
  Tier& tier = context_->tier(names.tier);
  for (const Ref name : names.linked) {
    if (tier.remove(name))
      tier.release_space(tier.name_space());
    else
      removed = false;
  }
  return removed;
}

std::vector<Ref> FileStager::take_links(Ref maker, uint64_t word) {
  HardLinks::Names names = links_.ended(maker, [&](Ref name) {
    const uint64_t now = context_->word_of(name);
    if (state_of(now) == State::kPlaced) context_->catalog->move(name, now, word);
  });
  for (const Ref name : names.waiting) context_->settle(name, state_word(State::kNoFit));
  return std::move(names.linked);
}

bool FileStager::place_copy(const Work& work, SourceFile* source, const struct stat& st, Copier* copier) {
  const Ref ref = work.ref;
  const uint64_t bytes = static_cast<uint64_t>(st.st_size);
  context_->uses.begun(ref);
  const int number = context_->hierarchy->reserve(bytes, health_->before(context_->uses.of(ref)));
  if (number < 0) {
    health_->no_room(ref);
    return false;
  }
  health_->found_room();
  Tier& tier = context_->tier(number);
  uint64_t promised = tier.space_of(bytes);
  Result<Fd> file = tier.create(ref, is_sparse(st) ? 0 : bytes, &promised);
  const Writing writing =
      file.ok() ? tier.driver().prepare(file->get(), bytes, work.why == Why::kDemand) : Writing::kMemory;
  struct stat copy = {};
  const Status made =
      file.ok() ? make_copy(work, source, st, &tier, *file, writing, copier, &copy) : Status();
  tier.took(promised);
  if (!file.ok() || !made.ok()) {
    if (file.ok()) file->reset();  // its space counts as used until it is free
    tier.discard(ref);
    tier.release(bytes);
    context_->source->given_up(ref);
    copying_failed(ref, number, file.ok() ? made.error() : file.error());
    return false;
  }
  context_->source->copied(ref, number);
  const bool prefetched = work.background();
  const uint64_t space = is_sparse(st) ? context_->sparse.add(&tier, ref, copy, bytes) : tier.space_of(bytes);
  NamedCopy named{.entry = ref,
                  .fd = file.take(),
                  .bytes = bytes,
                  .space = space,
                  .prefetched = prefetched,
                  .paid = work.paid,
                  .change = work.why == Why::kAgain ? work.change : 0,
                  .before = work.before,
                  .inode = copy.st_ino,
                  .source = st};
  const bool watched = writing == Writing::kBuffered;
  if (!watched || !prefetched || copier->hurried()) publish(number, &named);
  if (named.stage == NamedCopy::Stage::kRefused) {
    give_back(number, &named);
    return false;
  }
  if (!watched) return true;
  WriteBack& write_back = *write_back_[static_cast<size_t>(number)];
  write_back.add(std::move(named));
  if (copier->hurried()) write_back.hurry(ref);  // it was, just before
  return true;
}

void FileStager::hurry(Ref ref) {
  const Ref maker = links_.awaited_by(ref);
  if (maker) queue_->hurry(maker);
  for (const auto& write_back : write_back_) write_back->hurry(maker ? maker : ref);
}

bool FileStager::refuse(Ref ref, uint64_t inode, Fd* copy) {
  const MutexLock hold(refusing_);
  const uint64_t word = context_->catalog->entry(ref).state.load(std::memory_order_acquire);
  if (state_of(word) != State::kStaging) return false;
  refused_[ref] = inode;
  copy->reset();  // before its space is given back
  return true;
}

bool FileStager::enter(int number, const NamedCopy& copy) {
  const MutexLock hold(refusing_);
  const auto refused = refused_.extract(copy.entry);
  const bool is_refused = refused && refused.mapped() == copy.inode;
  if (!is_refused && context_->catalog->place(copy.entry, static_cast<uint32_t>(number), copy.inode,
                                              copy.source, copy.change))
    return true;
  if (copy.before) return false;  // give_back() settles it
  if (!is_refused) add(context_->board, AgentCounter::no_fit_files);
  context_->settle(copy.entry, state_word(State::kNoFit, is_refused ? Reason::kTierError : Reason::kNone));
  return false;
}

void FileStager::publish(int number, NamedCopy* copy) {
  Board* board = context_->board;
  if (!enter(number, *copy) || (copy->before && !replace(number, *copy))) {
    copy->stage = NamedCopy::Stage::kRefused;
    return;
  }
  copy->stage = NamedCopy::Stage::kPublished;
  health_->placed();
  // Counted before anyone is woken: who sees the file placed sees it counted.
  add(board, AgentCounter::staged_files);
  context_->count_staged(copy->bytes, copy->paid);
  add(board, copy->prefetched ? AgentCounter::prefetch_files : AgentCounter::demand_files);
  board->placed_bytes[number].fetch_add(copy->bytes, std::memory_order_relaxed);
  wake_parked(board, context_->catalog->entry(copy->entry).hash);
  if (copy->source.st_nlink > 1) publish_links(number, *copy);
}

void FileStager::publish_links(int number, const NamedCopy& copy) {
  const auto refused = links_.published(
      {copy.entry, number, copy.inode},
      [&](Ref ref, const HardLinks::Copy& made) { return link(ref, made, copy.source, copy.prefetched); });
  for (const Ref ref : refused)  // each gets a copy of its own
    if (context_->catalog->move(ref, state_word(State::kStaging), state_word(State::kQueued)))
      queue_->demand(ref);
}

// Who opens a lost copy from now on gets the PFS. What was published because somebody waited may be open:
// that one reads zeros as soon as the pages make way (doc/design.md, "Faults").
void FileStager::written(int number, NamedCopy copy, const Status& written) {
  if (!written.ok()) {
    const Error error = lost(copy.entry, written);
    if (copy.stage == NamedCopy::Stage::kPublished) {
      // Where it was evicted or replaced meanwhile, who evicts gives its space back.
      const uint64_t placed = placed_word(static_cast<uint32_t>(number), copy.change);
      if (!context_->catalog->move(copy.entry, placed, state_word(State::kNoFit, Reason::kTierError)))
        return health_->failed(number, error);
      context_->catalog->retire(copy.entry);
      context_->board->placed_bytes[number].fetch_sub(copy.bytes, std::memory_order_relaxed);
    } else if (copy.stage == NamedCopy::Stage::kNamed && !copy.before) {
      context_->settle(copy.entry, state_word(State::kNoFit, Reason::kTierError));
    }
    health_->failed(number, error);
    return give_back(number, &copy);
  }
  if (copy.stage == NamedCopy::Stage::kNamed) publish(number, &copy);
  if (copy.stage == NamedCopy::Stage::kRefused) give_back(number, &copy);
}

Error FileStager::lost(Ref ref, const Status& written) const {
  spdlog::error("{}: {}", context_->catalog->path_of(ref), written.error().text);
  return Error{EIO, written.error().text};
}

// Its space counts as used until it is free: for this job's life, if its name cannot be removed, or if a task
// has it open.
void FileStager::give_back(int number, NamedCopy* copy) {
  Tier& tier = context_->tier(number);
  context_->source->given_up(copy->entry);
  const bool links_are_gone = end_sharing(copy->entry);
  Fd held = tier.hold(std::move(copy->fd));
  const bool free = tier.remove(copy->entry) && links_are_gone && !tier.is_open(copy->entry, held);
  held.reset();
  (void)context_->sparse.remove(tier, copy->entry, 0);
  {
    const MutexLock hold(refusing_);
    refused_.erase(copy->entry);
  }
  if (free) tier.release_space(copy->space);
  // Its name is free for the next copy.
  if (copy->before) context_->catalog->move(copy->entry, anew_word(copy->before), again_word(copy->before));
}

}  // namespace monarch
