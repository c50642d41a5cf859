// SPDX-License-Identifier: Apache-2.0
#include "runtime/agent/progress.h"

#include <dirent.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/os.h"
#include "runtime/base/patience.h"
#include "runtime/base/size.h"
#include "runtime/metadata/run_file.h"

namespace monarch {
namespace {

using Is = Progress::State;

// Looking at a large catalog takes a while: so much longer it is left alone.
constexpr int64_t kRest = 50;

const char* name_of(Is state) {
  switch (state) {
    case Is::kAllocated:
      return "allocated";
    case Is::kStagingIn:
      return "staging-in";
    case Is::kSuspended:
      return "suspended";
    case Is::kStagedIn:
      return "staged-in";
    case Is::kTeardown:
      return "teardown";
  }
  return "";
}

// Changes whenever a file is found, placed or given up.
uint64_t activity(const Board& board) {
  uint64_t sum = board.header.full.load(std::memory_order_relaxed);
  for (const std::atomic<uint64_t>& counter : board.agent) sum += counter.load(std::memory_order_relaxed);
  return sum;
}

// What a pass over the catalog has found.
struct Counted {
  Progress progress;
  uint64_t waiting = 0;  // files that are to be staged
  uint64_t unsized = 0;  // those of them whose size nobody knows yet
  uint64_t others = 0;   // of other nodes: a program wanted them here, and there was no room
};

bool is_closed(const Catalog& catalog, uint64_t word) {
  const Chunks* chunks = catalog.reader().chunks(chunks_of(word));
  return chunks && chunks->closed.load(std::memory_order_acquire) != 0;
}

void count(const Catalog& catalog, const Entry& e, uint64_t word, bool full, Counted* found) {
  Progress& p = found->progress;
  const uint64_t bytes = e.size.load(std::memory_order_relaxed);
  const State state = state_of(word);
  if (reason_of(word) == Reason::kExcluded) return;
  ++p.files;
  p.bytes += bytes;
  found->unsized += state == State::kKnown && bytes == 0;
  if (state == State::kPlaced) {
    ++p.staged_files;
    p.staged_bytes += bytes;
  } else if (state == State::kNoFit) {
    ++(reason_of(word) == Reason::kTierError ? p.failed : p.no_room);
  } else if (state == State::kPass || state == State::kDropped) {
    ++p.failed;
  } else if ((full && (state == State::kKnown || word == large_word(0))) ||
             (state == State::kLarge && is_closed(catalog, word))) {
    ++p.no_room;
  } else {
    ++found->waiting;
  }
}

uint64_t all_bytes(const Counted& found) {
  const Progress& p = found.progress;
  return bytes_of_all(p.bytes, p.files - found.unsized, p.files);
}

int percent_of(const Progress& p, uint64_t placed_bytes, bool over) {
  if (over && p.staged_files == p.files) return 100;
  // Of files that are not whole the board alone knows what is there.
  const auto staged = static_cast<double>(std::max(p.staged_bytes, placed_bytes));
  const double part = p.all_bytes > 0 ? staged / static_cast<double>(p.all_bytes)
                                      : static_cast<double>(p.staged_files) / static_cast<double>(p.files);
  return static_cast<int>(std::clamp(100 * part, 0.0, 99.0));
}

}  // namespace

std::string progress_text(const Progress& p) {
  constexpr size_t kBytes = 512;
  std::string text = fmt::format(
      "state={}\npercent={}\nfiles={}\nstaged_files={}\nbytes={}\nstaged_bytes={}\nall_bytes={}\nrate={}\n"
      "no_room={}\nfailed={}\n{}",
      name_of(p.state), p.percent, p.files, p.staged_files, p.bytes, p.staged_bytes,
      p.listed ? p.all_bytes : 0, p.rate, p.no_room, p.failed, p.unused ? "unused=1\n" : "");
  text += "pad=";
  text.resize(std::max(kBytes, text.size()), ' ');
  return text + "\n";
}

uint64_t StagingRate::look(int64_t now_ns, uint64_t bytes) {
  if (now_ns - next_.ns >= patience::kIdleLookNs) from_ = std::exchange(next_, {now_ns, bytes});
  const int64_t ms = (now_ns - from_.ns) / 1'000'000;
  return ms > 0 ? sub_sat(bytes, from_.bytes) * 1000 / static_cast<uint64_t>(ms) : 0;
}

// Its own catalog is the user's to write, too: what it says may be wrong, and stays a number.
Progress ProgressFile::look() {
  Counted found;
  const bool walked = parts_.walker->has_ended();  // before the files are counted
  const bool full = parts_.board->header.full.load(std::memory_order_relaxed) != 0;
  parts_.catalog->walk(0, [&](Ref ref) {
    const Entry& e = parts_.catalog->entry(ref);
    const uint64_t word = e.state.load(std::memory_order_acquire);
    const bool is_other = again_of(word) != 0 || replaced_by(word) != 0;  // the file counts by another entry
    if (e.type.load(std::memory_order_relaxed) != DT_REG || is_other) return true;
    if (parts_.source->is_ours(ref))
      count(*parts_.catalog, e, word, full, &found);
    else
      found.others += word == state_word(State::kNoFit);
    return true;
  });
  // As it is counted while files are tried, one that is tried again counts twice, and the rest not at all.
  parts_.board->agent[static_cast<uint32_t>(AgentCounter::no_fit_files)] =
      found.progress.no_room + found.others;
  Progress& p = found.progress;
  uint64_t placed = 0;
  for (size_t i = 0; i < parts_.tiers; ++i)
    placed += parts_.board->placed_bytes[i].load(std::memory_order_relaxed);
  const bool over = walked && found.waiting == 0;
  p.listed = walked;
  p.all_bytes = walked ? all_bytes(found) : p.bytes;
  if (walked) p.percent = percent_of(p, placed, over);
  if (parts_.prefetch == AgentConfig::Prefetch::kOff)
    p.state = Is::kAllocated;
  else if (over)
    p.state = Is::kStagedIn;
  else
    p.state = parts_.placement->prefetch_rests() ? Is::kSuspended : Is::kStagingIn;
  p.staged_bytes = std::max(p.staged_bytes, std::min(placed, p.bytes));
  p.unused = unused_;
  return p;
}

void ProgressFile::write(const Progress& progress) {
  const std::string text = progress_text(progress);
  const Status written = write_plain(parts_.run_dir, kStateFile, text);
  if (!written.ok() && !written_) spdlog::warn("{}", written.error().text);
  written_ |= written.ok();
}

void ProgressFile::start() {
  const int error = os::start_thread(&thread_, [this] { run(); });
  if (error == 0) return;
  spdlog::warn("{} tells nothing: {}", kStateFile, std::strerror(error));
  Progress nothing;
  nothing.state = Is::kAllocated;  // who waits goes on
  write(nothing);
}

void ProgressFile::stop() {
  {
    const MutexLock hold(lock_);
    if (stopping_.exchange(true)) return;
  }
  stopped_.notify_all();
  if (thread_.joinable()) thread_.join();
  Progress last = written_ && activity(*parts_.board) != seen_ ? look() : told_;
  last.percent = std::max(last.percent, told_.percent);
  last.state = Is::kTeardown;
  last.rate = 0;
  last.unused = unused_;
  write(last);
}

bool ProgressFile::sleep(int64_t ns) {
  MutexLock hold(lock_);
  const int64_t end = clock_.now_ns() + ns;
  while (!stopping_ && clock_.now_ns() < end) clock_.wait_until(&stopped_, &hold, end);
  return !stopping_;
}

void ProgressFile::run() {
  Progress& told = told_;
  int64_t told_ns = 0, rest = 0;
  bool first = true;
  do {
    const int64_t begin = clock_.now_ns();
    const uint64_t now = activity(*parts_.board);
    const bool is_moving = told.state == Is::kStagingIn;
    rest = is_moving ? patience::kShortLookNs : patience::kLookNs;
    if (!first && !is_moving && now == seen_ && told.unused == unused_) continue;
    const int64_t computed = os::clock_ns(CLOCK_THREAD_CPUTIME_ID);  // the agent can be stopped meanwhile
    Progress progress = look();
    progress.percent = std::max(progress.percent, told.percent);
    if (const uint64_t rate = rate_.look(begin, progress.staged_bytes); progress.state == Is::kStagingIn)
      progress.rate = rate;
    rest = std::max(rest, kRest * (os::clock_ns(CLOCK_THREAD_CPUTIME_ID) - computed));
    if (stopping_) return;
    const bool is_due = first || progress.state != told.state || progress.unused != told.unused ||
                        begin - told_ns >= patience::kLookNs;
    if (!first && progress != told && !is_due) continue;  // looked at once more, soon
    seen_ = now;
    if (first || progress != told) {
      write(progress);
      told = progress;
      told_ns = begin;
      first = false;
    }
  } while (goes_on(rest));
}

// What was told is taken down along with what tasks have read meanwhile.
bool ProgressFile::goes_on(int64_t rest) {
  const Progress& told = told_;
  series_.look({told.staged_bytes, told.all_bytes, told.state == Is::kStagedIn,
                told.state == Is::kStagedIn && told.staged_files == told.files});
  if (parts_.nodes) parts_.nodes->look();
  return sleep(rest);
}

}  // namespace monarch
