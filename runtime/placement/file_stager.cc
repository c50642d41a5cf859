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
  for (size_t i = 0; i < context->hierarchy->tiers().size(); ++i)
    write_back_.push_back(std::make_unique<WriteBack>(WriteBack::Events{
        [this](Staging* file) { publish(file); },
        [this](std::unique_ptr<Staging> file, const Status& status) { written(file.get(), status); }}));
}

void FileStager::stop() {
  for (const auto& write_back : write_back_) write_back->stop();
}

void FileStager::stage(std::unique_ptr<Staging> file, Copier* copier) {
  Catalog* catalog = context_->catalog;
  const Ref ref = file->ref;
  const bool opened = file->step == Staging::Step::kOpened;
  const Turn turn{opened && file->why == Why::kPrefetch ? queue_ : nullptr};
  if (!opened && file->why == Why::kDemand &&
      !catalog->move(ref, state_word(State::kQueued), state_word(State::kStaging)))
    return;
  if (context_->dataset->excludes(catalog->root_of(ref), catalog->path_of(ref))) {
    context_->settle(ref, state_word(State::kPass, Reason::kExcluded));
  } else if (is_invalid(*context_->board, catalog->entry(ref).hash)) {
    context_->settle(ref, state_word(State::kDropped, Reason::kWritten));
    const std::string path = catalog->path_of(ref);
    ask_again(rel_path(catalog->root_of(ref), path.data(), path.size()));
  } else if (opened) {
    place(std::move(file), copier);
  } else {
    open_and_place(std::move(file), copier);
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

bool FileStager::replace(const Staging& file) {
  Catalog* catalog = context_->catalog;
  const uint64_t word = context_->word_of(file.before);
  if (may_be_replaced(word) && catalog->move(file.before, word, again_word(file.ref))) {
    if (state_of(word) == State::kPlaced) add(context_->board, AgentCounter::staged_again);
    return true;
  }
  const uint64_t placed = placed_word(static_cast<uint32_t>(file.tier), file.change);
  if (!catalog->move(file.ref, placed, anew_word(file.before))) return true;  // it was evicted just now
  catalog->retire(file.ref);
  return false;
}

// The number of the last change is read before the file is looked at, and compared after it was copied: then
// nobody has changed it in between, as far as hooks see, nor has it open for writing.
void FileStager::stage_again(std::unique_ptr<Staging> file, Copier* copier) {
  Catalog* catalog = context_->catalog;
  struct stat& st = file->st;
  const Ref before = file->ref;
  const uint32_t wanted = std::exchange(file->change, last_change(*context_->board));
  if (file->change == kLastChange || !may_be_replaced(catalog->entry(before).state.load()) ||
      changed_at(*context_->board, catalog->entry(before).hash) != wanted || serves(before))
    return;  // whoever opens it next asks again
  raise_to(&context_->board->header.copied_at, file->change);
  const std::string path = catalog->path_of(before);
  watch_directory(before, path);
  if (!look(before, path, &st) || !S_ISREG(st.st_mode) || st.st_nlink > 1) return;
  file->source = context_->source->open(before, path, file->need(), *copier);
  if (!file->source || os::fstat(file->source->fd(), &st) != 0 || !S_ISREG(st.st_mode) || has_far_time(st) ||
      is_being_changed(*file))
    return;
  file->before = before;
  file->ref = catalog->add_again(before);
  if (!file->ref) return;  // or the last one is not settled yet
  file->step = Staging::Step::kOpened;
  Entry& e = catalog->entry(file->ref);
  e.size.store(file->bytes(), std::memory_order_release);
  e.mtime.store(ns_of(st.st_mtim), std::memory_order_release);
  place(std::move(file), copier);
}

bool FileStager::is_being_changed(const Staging& file) const {
  const Board& board = *context_->board;
  if (is_changed_since(board, context_->catalog->entry(file.ref).hash, file.change)) return true;
  return file.why == Why::kAgain && (is_changed_since(board, mark_of_inode(file.st.st_ino), file.change) ||
                                     os::is_written_elsewhere(file.source->fd()));
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

bool FileStager::put_back(Staging* file, const Copier& copier) {
  if (file->hinted || copier.hurried()) return false;
  file->paid = credit_->take(file->bytes(), &file->reserved);
  if (file->paid) return false;
  queue_->pass_over(file->bytes());
  context_->settle(file->ref, state_word(State::kKnown));
  // Who has come since then found it in work.
  if (copier.hurried() &&
      context_->catalog->move(file->ref, state_word(State::kKnown), state_word(State::kQueued)))
    queue_->demand(file->ref);
  return true;
}

void FileStager::open_and_place(std::unique_ptr<Staging> file, Copier* copier) {
  const Ref ref = file->ref;
  struct stat& st = file->st;
  Entry& e = context_->catalog->entry(ref);
  const std::string path = context_->catalog->path_of(ref);
  watch_directory(ref, path);
  if (e.type != DT_REG && !is_regular(ref, path)) return;
  if (!context_->root_of(ref).numbers_stay) {
    add(context_->board, AgentCounter::pass_files);
    return context_->settle(ref, state_word(State::kPass, Reason::kNoNumber));
  }
  file->source = context_->source->open(ref, path, file->need(), *copier);
  if (!file->source || !file->source->values(&st)) {
    const int error = errno;
    if (is_shortage(error)) return health_->put_off(ref, error);
    if (error == ENOENT || error == ENOTDIR) note_absent();
    add(context_->board,
        error == ENOENT || error == EACCES ? AgentCounter::pass_files : AgentCounter::source_errors);
    if (error != ENOENT)
      spdlog::warn("stage {}/{}: {}", context_->root_of(ref).path, path, std::strerror(error));
    return context_->settle(ref, verdict_on_open(error));
  }
  if (!S_ISREG(st.st_mode)) return context_->settle(ref, state_word(State::kPass, Reason::kNotRegular));
  if (has_far_time(st)) {
    add(context_->board, AgentCounter::pass_files);
    return context_->settle(ref, state_word(State::kPass, Reason::kFarTime));
  }
  file->step = Staging::Step::kOpened;
  const uint64_t bytes = file->bytes();
  e.mtime.store(ns_of(st.st_mtim), std::memory_order_release);   // after the state that took it back
  if (e.size.exchange(bytes, std::memory_order_release) == 0) {  // else: tried before
    health_->note_size(bytes);
    note_found();
  }
  if (file->why == Why::kPrefetch && put_back(file.get(), *copier)) return;
  file->reserved = {};  // it was taken, or somebody waits
  if (bytes > context_->config.stage_wait_max) return chunks_->begin(file.get());
  const bool in_turn = file->why == Why::kPrefetch && bytes >= Copier::kSeveralPieces;
  if (in_turn && !queue_->take_turn(&file, *copier)) return;
  const Turn turn{in_turn ? queue_ : nullptr};
  place(std::move(file), copier);
}

Status FileStager::make_copy(Staging* file, Tier* tier, Writing writing, Copier* copier, struct stat* made) {
  const struct stat& st = file->st;
  const int copy = file->copy.get();
  const MemoryPolicy spread(writing == Writing::kMemory);
  if (is_sparse(st) && os::ftruncate(copy, st.st_size) != 0) return errno_error("make a sparse copy");
  MONARCH_TRY(file->source->copy({.copy = copy,
                                  .file_bytes = file->bytes(),
                                  .offset = 0,
                                  .bytes = file->bytes(),
                                  .writing = writing,
                                  .paced = file->background(),
                                  .sparse = is_sparse(st)},
                                 copier));
  if (!unchanged(*file->source, st))
    return Error{ESTALE, std::string(kSource) + "it changed while it was copied"};
  if (is_being_changed(*file))  // no task would open the copy
    return Error{ESTALE, std::string(kSource) + "the job wrote it while it was copied"};
  MONARCH_TRY(tier->publish(file->copy, file->ref, st, made));
  file->step = Staging::Step::kNamed;
  return {};
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

void FileStager::place(std::unique_ptr<Staging> file, Copier* copier) {
  const Ref ref = file->ref;
  if (!shares_copy(*file, *copier) && !place_copy(std::move(file), copier)) (void)end_sharing(ref);
}

bool FileStager::shares_copy(const Staging& file, const Copier& copier) {
  const struct stat& st = file.st;
  if (st.st_nlink < 2 || file.why == Why::kAgain ||
      !tells_changes(st.st_ctim, context_->catalog->header().boot_time))
    return false;
  const HardLinks::Turn turn = links_.begin(file.ref, st, [&](Ref ref, const HardLinks::Copy& copy) {
    return link(ref, copy, st, file.background());
  });
  if (turn == HardLinks::Turn::kWaits && (file.why == Why::kDemand || copier.hurried())) hurry(file.ref);
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

bool FileStager::place_copy(std::unique_ptr<Staging> file, Copier* copier) {
  const Ref ref = file->ref;
  const uint64_t bytes = file->bytes();
  const bool sparse = is_sparse(file->st);
  context_->uses.begun(ref);
  file->tier = context_->hierarchy->reserve(bytes, health_->before(context_->uses.of(ref)));
  if (file->tier < 0) {
    health_->no_room(ref);
    return false;
  }
  health_->found_room();
  Tier& tier = context_->tier(file->tier);
  uint64_t promised = tier.space_of(bytes);
  Result<Fd> empty = tier.create(ref, sparse ? 0 : bytes, &promised);
  const bool created = empty.ok();
  if (created) file->copy = empty.take();
  const Writing writing =
      created ? tier.driver().prepare(file->copy.get(), bytes, file->why == Why::kDemand) : Writing::kMemory;
  struct stat copy = {};
  const Status made = created ? make_copy(file.get(), &tier, writing, copier, &copy) : Status(empty.error());
  tier.took(promised);
  if (!made.ok()) {
    file->copy.reset();  // its space counts as used until it is free
    tier.discard(ref);
    tier.release(bytes);
    context_->source->given_up(ref);
    copying_failed(ref, file->tier, made.error());
    return false;
  }
  context_->source->copied(ref, file->tier);
  file->space = sparse ? context_->sparse.add(&tier, ref, copy, bytes) : tier.space_of(bytes);
  file->inode = copy.st_ino;
  const bool watched = writing == Writing::kBuffered;
  if (!watched || !file->background() || copier->hurried()) publish(file.get());
  if (file->step == Staging::Step::kRefused) {
    give_back(file.get());
    return false;
  }
  if (!watched) return true;
  file->source.reset();
  WriteBack& write_back = *write_back_[static_cast<size_t>(file->tier)];
  write_back.add(std::move(file));
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

bool FileStager::enter(const Staging& file) {
  const MutexLock hold(refusing_);
  const auto refused = refused_.extract(file.ref);
  const bool is_refused = refused && refused.mapped() == file.inode;
  if (!is_refused &&
      context_->catalog->place(file.ref, static_cast<uint32_t>(file.tier), file.inode, file.st, file.change))
    return true;
  if (file.before) return false;  // give_back() settles it
  if (!is_refused) add(context_->board, AgentCounter::no_fit_files);
  context_->settle(file.ref, state_word(State::kNoFit, is_refused ? Reason::kTierError : Reason::kNone));
  return false;
}

void FileStager::publish(Staging* file) {
  Board* board = context_->board;
  if (!enter(*file) || (file->before && !replace(*file))) {
    file->step = Staging::Step::kRefused;
    return;
  }
  file->step = Staging::Step::kPublished;
  health_->placed();
  // Counted before anyone is woken: who sees the file placed sees it counted.
  add(board, AgentCounter::staged_files);
  context_->count_staged(file->bytes(), file->paid);
  add(board, file->background() ? AgentCounter::prefetch_files : AgentCounter::demand_files);
  board->placed_bytes[file->tier].fetch_add(file->bytes(), std::memory_order_relaxed);
  wake_parked(board, context_->catalog->entry(file->ref).hash);
  if (file->st.st_nlink > 1) publish_links(*file);
}

void FileStager::publish_links(const Staging& file) {
  const auto refused = links_.published(
      {file.ref, file.tier, file.inode},
      [&](Ref ref, const HardLinks::Copy& made) { return link(ref, made, file.st, file.background()); });
  for (const Ref ref : refused)  // each gets a copy of its own
    if (context_->catalog->move(ref, state_word(State::kStaging), state_word(State::kQueued)))
      queue_->demand(ref);
}

// Who opens a lost copy from now on gets the PFS. What was published because somebody waited may be open:
// that one reads zeros as soon as the pages make way (doc/design.md, "Faults").
void FileStager::written(Staging* file, const Status& written) {
  if (!written.ok()) {
    const Error error = lost(file->ref, written);
    if (file->step == Staging::Step::kPublished) {
      // Where it was evicted or replaced meanwhile, who evicts gives its space back.
      const uint64_t placed = placed_word(static_cast<uint32_t>(file->tier), file->change);
      if (!context_->catalog->move(file->ref, placed, state_word(State::kNoFit, Reason::kTierError)))
        return health_->failed(file->tier, error);
      context_->catalog->retire(file->ref);
      context_->board->placed_bytes[file->tier].fetch_sub(file->bytes(), std::memory_order_relaxed);
    } else if (file->step == Staging::Step::kNamed && !file->before) {
      context_->settle(file->ref, state_word(State::kNoFit, Reason::kTierError));
    }
    health_->failed(file->tier, error);
    return give_back(file);
  }
  if (file->step == Staging::Step::kNamed) publish(file);
  if (file->step == Staging::Step::kRefused) give_back(file);
}

Error FileStager::lost(Ref ref, const Status& written) const {
  spdlog::error("{}: {}", context_->catalog->path_of(ref), written.error().text);
  return Error{EIO, written.error().text};
}

// Its space counts as used until it is free: for this job's life, if its name cannot be removed, or if a task
// has it open.
void FileStager::give_back(Staging* file) {
  Tier& tier = context_->tier(file->tier);
  context_->source->given_up(file->ref);
  const bool links_are_gone = end_sharing(file->ref);
  Fd held = tier.hold(std::move(file->copy));
  const bool free = tier.remove(file->ref) && links_are_gone && !tier.is_open(file->ref, held);
  held.reset();
  (void)context_->sparse.remove(tier, file->ref, 0);
  {
    const MutexLock hold(refusing_);
    refused_.erase(file->ref);
  }
  if (free) tier.release_space(file->space);
  // Its name is free for the next copy.
  if (file->before) context_->catalog->move(file->ref, anew_word(file->before), again_word(file->before));
}

}  // namespace monarch
