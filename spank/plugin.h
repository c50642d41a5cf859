// SPDX-License-Identifier: Apache-2.0
// What the files of the SPANK plugin share. The plugin runs inside sbatch, srun, salloc, slurmd and
// slurmstepd: libc and spank symbols only, no exception, no exit but at submission, where the user's own
// command is refused.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

extern "C" {
#include <slurm/spank.h>
}

namespace monarch::spank {

inline constexpr size_t kDatasetBytes = 16384;
inline constexpr size_t kTiersBytes = 512;
inline constexpr size_t kExcludeBytes = 1024;
inline constexpr size_t kReportBytes = 1024;
inline constexpr size_t kOptionsBytes = kTiersBytes + kExcludeBytes + kReportBytes + 256;
inline constexpr int kMostDatasets = 16;             // kMaxRoots of the runtime
inline constexpr int kPathBytes = 4096;              // with the final 0
inline constexpr uint32_t kExternStep = 0xfffffffc;  // SLURM_EXTERN_CONT

enum class Check { kError, kWarn, kOff };

// What the user asked for, by option or by environment.
struct Request {
  // PATH[:PATH...], each absolute and of less than kPathBytes; empty: no Monarch
  char datasets[kDatasetBytes];
  bool refused;  // --no-monarch
  Check check;   // --monarch-check
  // The values of --monarch-prefetch, --monarch-consistency and --monarch-tiers; "": not given.
  char prefetch[8], consistency[8], tiers[kTiersBytes];
  char wait[8], wait_timeout[8];              // --monarch-wait and --monarch-wait-timeout, likewise
  char capacity[64], exclude[kExcludeBytes];  // --monarch-capacity and --monarch-exclude
  char hints[8], report[kReportBytes];        // --monarch-hints and --monarch-report
};
Request& request();
// Whether the job is to have Monarch.
bool wanted();

constexpr int kMostWords = 32;
// What plugstack.conf says: config=FILE state_dir=DIR monarchd=FILE log=FILE, and words SECTION.KEY=VALUE,
// which go before what FILE says.
struct Settings {
  const char* config;
  const char* state_dir;
  const char* monarchd;
  const char* log;
  const char* words[kMostWords];
  int word_count;
};
const Settings& settings();
void read_settings(int argc, char** argv);

// options.cc. To be called in each context's init; in prolog and epilog ask_options() instead.
void register_options(spank_t sp);
void ask_options(spank_t sp);
// What `monarchd --options` is told: "KEY=VALUE ..."; "" if nothing was asked for.
const char* job_options();
// The environment twins (MONARCH_IO_OPT_...): handed to Slurm as if they were options.
void take_options_from_environment();
void drop_options_from_environment();
// Whether there were any.
bool has_options_from_environment();
void hide_options(spank_t sp);  // the same, from a task

// submit.cc: in sbatch, salloc and srun.
void check_at_submit();
// A job whose other options may have no effect, as no dataset is named.
void warn_of_no_dataset();

// key.cc. The job's key: 64 hexadecimal digits, or what else stands in its place. Without one, or where it is
// none, nothing but the agents' knowledge of each other is missing.
void make_job_key(spank_t sp);  // in sbatch, salloc and srun
struct JobNodes {
  const char* key;
  const char* list;  // the job's nodes, as Slurm abbreviates them
};
// Each is "" where Slurm does not tell it; in a step it is what the job's user can have changed.
JobNodes nodes_in_prolog();
JobNodes nodes_in_step(spank_t sp);
void hide_job_key(spank_t sp);  // from a task

// node.cc: in slurmd's prolog and slurmstepd.
void note_in_prolog();
void start_in_extern_step(spank_t sp);
void start_in_step(spank_t sp);
// In a step that was given no dataset, nor --no-monarch: by what the prolog noted, or what the administrator
// has for such jobs.
void start_without_option(spank_t sp);

// What the start told, for the tasks; empty without an agent.
const char* started_run_dir();
const char* preload_library();
const char* hints_directory();  // for the tasks' PYTHONPATH; "": they are to give none
// What a step's tasks are to wait for on this node: so many percent, for so many seconds at most.
struct Wait {
  int percent;  // 0: nothing
  int seconds;
};
Wait wait_of_step();
// For the user, of an agent that serves: that a dataset of this step's is not one of its, since an earlier
// step started it; or, once, why it has no peers.
const char* agents_remark();
// For the user, if the job runs without Monarch on this node, and nobody has told so yet.
const char* why_without();
// Whether the user wants the tasks to fail then.
bool is_required();
// Of the steps that have the job's output: the batch script, or without one the first.
bool is_jobs_first_step(spank_t sp);

// task.cc: in slurmstepd, before a plugin such as pyxis starts a container for the step's tasks: sets what
// enroot's hook needs of the step's environment.
void tell_containers(spank_t sp);
// In a task, as root, before any plugin enters a container.
void keep_run_dir();
// In a task, as the user; and in a task's sbatch or salloc, whose job is another.
// The run directory, as the task sees it; nullptr: it goes without an agent.
const char* set_task_environment(spank_t sp);
void tell_user(spank_t sp);
void drop_task_environment();

// wait.cc: in a task, as the user.
void wait_until_staged(spank_t sp, const char* run_dir, Wait wait);
// The job's first task has begun, or will have within so many seconds: in a step, as the user. What an
// earlier step has noted stays.
void note_begin(const char* run_dir, int seconds);
// As root, after that: the child that noted it may hang in the kernel.
void leave_hanging_behind();
// When a task has ended, as root: the last one of the job's first step on its first node tells the user what
// the PFS was spared, or why it was not.
void tell_at_end(spank_t sp);

// defaults.cc: whether monarch.conf, or a word of plugstack.conf, has datasets for jobs that name none.
bool may_have_default();
// What stands behind "KEY =" in a line of monarch.conf; nullptr: it is another line.
const char* value_in(const char* line, const char* key);

// epilog.cc: in slurmd's epilog; and at the end of a step, if it is the extern step and stands for the
// epilog.
void end_in_epilog();
void end_with_extern_step(spank_t sp);

// helper.cc
// What a hook calls monarchd with. Holds pointers only; what does not fit is left out.
constexpr int kMostArguments = 48 + 2 * kMostWords;
class Arguments {
 public:
  // `hook`, such as "--start", and what each has: the settings, the job and the node.
  Arguments(const char* hook, const char* job);
  void add(const char* word);
  void add(const char* option, const char* value) { add(option), add(value); }
  // What no other user may see, as a command line is seen: by variables of the environment, MONARCH_JOB_KEY,
  // _NODES, _DATASETS and _OPTIONS. An empty one is not told.
  void tell(const JobNodes& nodes) { nodes_ = nodes; }
  void tell(const char* datasets, const char* options) { datasets_ = datasets, options_ = options; }
  const char* const* words() const { return words_; }  // nullptr-terminated
  const JobNodes& nodes() const { return nodes_; }
  const char* datasets() const { return datasets_; }
  const char* options() const { return options_; }

 private:
  const char* words_[kMostArguments + 1] = {};
  int count_ = 0;
  JobNodes nodes_ = {"", ""};
  const char *datasets_ = "", *options_ = "";
};
// Runs monarchd with `arguments`: empty environment but PATH, SLURM_CONF and what it is told, a session of
// its own, cwd /, descriptors 0 to 2 on /dev/null, no other but, if `answer` is not nullptr, one whose number
// is added as the last argument; default signals. Reads one line of less than `room` bytes from it, which
// stays empty if it does not come. Waits at most `patience_ms`, then kills it.
void run_monarchd(const Arguments& arguments, int patience_ms, char* answer, size_t room);
// Milliseconds of CLOCK_MONOTONIC.
int64_t now_ms();
// In a child: closes that descriptor and all above it.
void close_from(int first);
// What hangs in the kernel leaves the step's control groups for those of root's helpers
// (runtime/node/life.h): Slurm waits until a step's are empty, and then drains the node. Where Monarch has no
// groups it stays.
void leave_behind(pid_t process);
// A trusted variable of slurmd's or slurmstepd's own environment; "" if it is not set.
const char* trusted(const char* name);
// The cluster's name, as Slurm understood it.
const char* cluster_name();
// Whether slurmstepd runs prolog and epilog (PrologFlags=RunInJob): then Slurm calls no plugin's.
bool runs_prolog_in_job();
// Whether slurm.conf gives each job a mount namespace (job_container/tmpfs): what is mounted later may not be
// seen there.
bool jobs_have_own_mounts();

// mounts.cc: how the tasks of such a job see the run directory's file system all the same.
// In slurmd, whose environment slurmstepd has: notes its mount namespace there.
void note_namespace();
// Whether that is slurmstepd's, too.
bool can_hand_on_mounts();
void clone_run_dir_mount(const char* run_dir);   // in slurmstepd, as root
void attach_run_dir_mount(const char* run_dir);  // in the task, as root
// Whether the state directory has something of that job's on this node; and whether its record there has a
// member of that name.
bool is_known(const char* job);
bool is_noted(const char* job, const char* member);
// Decimal text; `out` holds 24 bytes. Returns out.
char* decimal(uint64_t n, char* out);

}  // namespace monarch::spank
