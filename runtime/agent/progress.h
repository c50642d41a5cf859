// SPDX-License-Identifier: Apache-2.0
// How far this node's staging is, in a small file of the run directory for the job's scripts and for
// --monarch-wait (monarch(7), MONARCH_IO_STATE).
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include "runtime/agent/nodes_file.h"
#include "runtime/agent/series_file.h"
#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/base/result.h"
#include "runtime/metadata/board.h"
#include "runtime/metadata/catalog.h"
#include "runtime/metadata/walker.h"
#include "runtime/placement/placement.h"

namespace monarch {

inline constexpr char kStateFile[] = "state";

struct Progress {
  // As Slurm calls those of its burst buffers.
  enum class State {
    kAllocated,  // nothing is staged ahead: what programs open is staged
    kStagingIn,
    kSuspended,  // prefetch rests until programs have read more
    kStagedIn,   // nothing is left to stage ahead; what was not staged had no room, or could not be read
    kTeardown,
  } state = State::kStagingIn;
  // Of the bytes; 100: all files; 0 as long as not all directories are listed. In the file it never falls.
  int percent = 0;
  // Regular files that are this node's to stage, as far as listed, and what they hold, as far as known.
  uint64_t files = 0, bytes = 0;
  uint64_t all_bytes = 0;  // once all are listed, with those of unknown size taken for as large as the others
  uint64_t staged_files = 0, staged_bytes = 0;
  bool listed = false;               // all directories are
  uint64_t rate = 0;                 // bytes staged in a second, lately; 0 but in kStagingIn
  uint64_t no_room = 0, failed = 0;  // files that are not staged
  bool unused = false;               // prefetch was told to rest, since no program uses the dataset
  bool operator==(const Progress&) const = default;
};
// Lines KEY=VALUE, always of one length: nobody finds the end of the last text behind a shorter one.
std::string progress_text(const Progress& progress);

// How many bytes a second come, by the last 10 to 20 seconds.
class StagingRate {
 public:
  explicit StagingRate(int64_t began_ns) : from_{began_ns, 0}, next_(from_) {}
  uint64_t look(int64_t now_ns, uint64_t bytes);

 private:
  struct Point {
    int64_t ns;
    uint64_t bytes;
  } from_, next_;
};

class ProgressFile {
 public:
  // What it looks at; all outlive stop(). `prefetch`: as the agent does it.
  struct Parts {
    int run_dir = -1;
    int64_t began_ns = 0;    // before anything was read or staged, by the clock
    Board* board = nullptr;  // AgentCounter::no_fit_files is set right at each look
    Catalog* catalog = nullptr;
    Source* source = nullptr;
    Walker* walker = nullptr;
    PlacementHandler* placement = nullptr;
    AgentConfig::Prefetch prefetch = AgentConfig::Prefetch::kAuto;
    size_t tiers = 0;
    NodesFile* nodes = nullptr;  // kept as well; nullptr: the job has one node
  };
  explicit ProgressFile(const Parts& parts, Clock& clock = system_clock())
      : parts_(parts),
        clock_(clock),
        series_(parts.run_dir, parts.board, parts.began_ns, clock),
        rate_(parts.began_ns) {}
  ~ProgressFile() { stop(); }

  // Makes the file, and keeps it true by a thread of its own: at most once a second while something changes,
  // and when the state does. What cannot be written is left as it was.
  void start() EXCLUDES(lock_);
  // Says kTeardown, and how far it came.
  void stop() EXCLUDES(lock_);
  // What it says of Progress::unused from now on. Any thread.
  void set_unused(bool unused) { unused_ = unused; }

 private:
  void run() EXCLUDES(lock_);
  Progress look();
  void write(const Progress& progress);
  bool goes_on(int64_t rest) EXCLUDES(lock_);
  bool sleep(int64_t ns) EXCLUDES(lock_);  // false: it is to stop

  const Parts parts_;
  Clock& clock_;
  // The thread's.
  SeriesFile series_;
  StagingRate rate_;
  Progress told_;
  uint64_t seen_ = 0;  // activity() before what was told
  std::thread thread_;
  bool written_ = false;  // ever
  std::atomic<bool> stopping_{false}, unused_{false};
  Mutex lock_;
  Condition stopped_;
};

}  // namespace monarch
