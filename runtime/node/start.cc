// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/log.h"
#include "runtime/config/dataset_rules.h"
#include "runtime/node/start.h"

#include <sys/file.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <numeric>
#include <optional>
#include <sstream>

#include "runtime/base/escape.h"
#include "runtime/base/memory.h"
#include "runtime/base/os.h"
#include "runtime/base/paths.h"
#include "runtime/base/patience.h"
#include "runtime/base/size.h"
#include "runtime/config/config.h"
#include "runtime/node/account_for.h"
#include "runtime/node/agent_conf.h"
#include "runtime/node/cgroup.h"
#include "runtime/node/closing.h"
#include "runtime/node/job_dirs.h"
#include "runtime/node/job_facts.h"
#include "runtime/node/job_memory.h"
#include "runtime/node/job_options.h"
#include "runtime/node/job_peers.h"
#include "runtime/node/launch.h"
#include "runtime/node/ledger.h"
#include "runtime/node/life.h"
#include "runtime/node/policy.h"
#include "runtime/node/probe.h"
#include "runtime/node/owners_report.h"
#include "runtime/node/removal.h"
#include "runtime/node/sweep.h"
#include "runtime/node/watch.h"

namespace monarch {
namespace {

// At the end, for a child, too, that has got no further than its fork: an agent on a busy node.
struct Unlocks {
  const Fd& lock;
  ~Unlocks() { ::flock(lock.get(), LOCK_UN); }
};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(separator, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

struct Patience {
  int ledger_ms, ready_ms;
};

// For the user.
void add_remark(const std::string& text, std::string* remark) {
  *remark += (remark->empty() ? "" : "; ") + text;
}

// The job goes without a tier that is configured, as the log tells, too.
void leave_out(const StartRequest& request, const TierConfig& tier, std::string why, std::string* remark) {
  const std::string named = "tier " + tier.name + ": ";
  if (why.starts_with(named)) why.erase(0, named.size());
  spdlog::warn("JobId={} tier {} ({}): {}: the job goes without it", request.job.job, tier.name, tier.path,
               why);
  add_remark(fmt::format("{} goes without tier {}: {}", request.job.node, tier.name, why), remark);
}

// The agent is the job owner's: with a tier that it cannot enter it would not start.
std::vector<TierConfig> those_entered(const StartRequest& request, const std::vector<TierConfig>& tiers,
                                      std::string* remark) {
  const std::vector<bool> enters = can_enter(request.user, paths_of(tiers));
  std::vector<TierConfig> kept;
  for (size_t i = 0; i < tiers.size(); ++i) {
    if (enters[i])
      kept.push_back(tiers[i]);
    else
      leave_out(request, tiers[i],
                fmt::format("it cannot be entered by user {}; run chmod o+x", request.user.uid), remark);
  }
  return kept;
}

// A tier is charged only to a job whose memory is known: what Slurm allocated, and what is used of that.
// `without`: why the job goes without it.
std::vector<TierConfig> those_charged(std::vector<TierConfig> tiers, const NodePart& part, JobRecord* record,
                                      std::string* without) {
  const auto charged = [](const TierConfig& t) { return t.charge == TierConfig::Charge::kJob; };
  const auto tier = std::find_if(tiers.begin(), tiers.end(), charged);
  if (tier == tiers.end()) return tiers;
  if (const std::string why = why_not_charged(part.memory != 0, Cgroups()); !why.empty()) {
    *without = fmt::format("tier {} is charged to the job's memory, but {}, or charge = node in monarch.conf",
                           tier->name, why);
    spdlog::warn("JobId={} goes without it: {}", record->job.job, *without);
    std::erase_if(tiers, charged);
    return tiers;
  }
  look_for_memory_group(record);
  return tiers;
}

// Why the job can have nothing of the tier for now; "": it can. `capacity`: its share as far as it is free.
std::string why_nothing(const TierConfig& tier, uint64_t limit, uint64_t capacity) {
  if (capacity == 0) return "other jobs have its " + format_size(limit);
  struct statvfs fs;
  if (tier.kind == TierConfig::Kind::kTmpfs || ::statvfs(tier.path.c_str(), &fs) != 0) return "";
  const uint64_t free = uint64_t{fs.f_bavail} * fs.f_frsize,
                 kept = tier.min_free.of(uint64_t{fs.f_blocks} * fs.f_frsize);
  return free >= kept + kSpaceBlock ? ""
                                    : fmt::format("{} has {} free, and min_free = {} is not for jobs",
                                                  tier.path, format_size(free), format_size(kept));
}

void tell_of_nothing(const std::vector<TierConfig>& tiers, const JobRecord& record,
                     const std::vector<uint64_t>& capacity, std::string* remark) {
  for (size_t i = 0; i < capacity.size(); ++i)
    if (const std::string why = why_nothing(tiers[i], record.tiers[i].limit, capacity[i]); !why.empty())
      add_remark(
          fmt::format("{} has nothing of tier {} for the job now: {}", record.job.node, tiers[i].name, why),
          remark);
}

Status check_capacity(const JobOnNode& job, uint64_t bytes, const JobOptions& options) {
  if (bytes >= options.least) return {};
  return Error{kRefused, fmt::format("{} has {} of its tiers for the job now, less than the {} that "
                                     "--monarch-capacity asks for",
                                     job.node, format_size(bytes), format_size(options.least))};
}

// The directories and the agent of a job that has none yet; waits no longer than that for the ledger, and for
// the agent. `record` says what was made, also on an error; `started`, what is to be said of its peers.
Status start_fresh(const StateDir& state, const StartRequest& request, const Config& config,
                   const JobOptions& options, const std::string& datasets, PeerSearch* search,
                   Patience patience, JobRecord* record, Started* started) {
  std::vector<TierConfig> tiers = tiers_for(request.job, config);
  std::vector<Removal> unrecorded = take_unrecorded(state, request.job, paths_of(tiers));
  remove_in_background(state, std::move(unrecorded), 0);
  std::string left_out;  // which tiers, and why
  tiers = those_entered(request, tiers, &left_out);
  std::string without;
  tiers = those_charged(std::move(tiers), request.part, record, &without);
  if (tiers.empty() && !without.empty()) return Error{ENODEV, without};
  if (!without.empty()) add_remark(request.job.node + " goes without a tier: " + without, &started->remark);
  limit_capacity(options.most, request.part, &tiers);
  // Also for what may be granted later.
  const uint64_t memory = agent_memory(config.agent, tiers, request.part.memory);
  // Recorded before anything is made, so that the epilog finds it whatever happens to this process.
  const Result<std::vector<uint64_t>> capacity =
      grant_shares(state, request.part, &tiers, record, patience.ledger_ms);
  if (!capacity.ok()) return capacity.error();
  MONARCH_TRY(
      check_capacity(record->job, std::accumulate(capacity->begin(), capacity->end(), uint64_t{0}), options));
  tell_of_nothing(tiers, *record, *capacity, &started->remark);
  std::vector<TierConfig> usable;
  std::vector<JobDir> dirs;
  for (const TierConfig& tier : tiers) {
    Result<Fd> made = make_job_dir(state, tier, record->on_tier(), request.user.uid);
    if (made.ok()) {
      usable.push_back(tier);
      dirs.push_back({tier.name, made.take()});
    } else {
      leave_out(request, tier, made.error().text, &left_out);
      std::erase_if(record->tiers, [&](const TierRecord& t) { return t.name == tier.name; });
    }
  }
  if (usable.empty())
    return Error{ENOSPC, "no tier can be used on this node" +
                             (left_out.empty() ? "; monarchctl tiers tells why" : ": " + left_out)};
  if (!left_out.empty()) add_remark(left_out, &started->remark);
  MONARCH_TRY(tell_granted(state, *record));
  std::vector<StartedStore> stores = start_stores(state, memory, dirs, *record);
  std::erase_if(usable, [&](const TierConfig& tier) {
    return std::none_of(stores.begin(), stores.end(),
                        [&](const StartedStore& s) { return s.tier == tier.name; });
  });
  if (usable.empty()) return Error{ECHILD, "no store can be started on this node; root's log tells why"};
  const int64_t begin = state.clock().now_ms();
  const Result<AgentPeers> found =
      search->finish(request.job, request.restart, patience::kAnswersMs, state.clock());
  const int ready_ms =
      std::max(patience::kLeastMs, patience.ready_ms - static_cast<int>(state.clock().now_ms() - begin));
  RunFiles files = {{kAgentConf, agent_conf(config, usable, {request.nodes, found.ok()})},
                    {kDatasets, datasets}};
  if (found.ok()) files.emplace_back(kPeers, found->nodes);
  if (!options.exclude.empty()) files.emplace_back(kExclude, options.exclude);
  record->peers = found.ok();
  if (found.ok()) record->peer_index = found->own;
  record->agent_memory = memory;
  const uint64_t run_size = request.own_mounts ? 0 : config.agent.run_size;
  MONARCH_TRY(make_run_dir(record->run_dir, run_size, files, request.user));
  const Result<std::string> launched =
      launch_agent(state, memory, ready_ms, found.ok() ? &*found : nullptr, std::move(stores), record);
  if (!launched.ok()) return launched.error();
  const std::string& why = found.ok() ? *launched : found.error().text;
  started->peers = why.empty() ? fmt::format("node {} of {}", found->own, found->count) : "no peers: " + why;
  if (search->is_wanted()) started->alone = why;
  return {};
}

// Leaves out the tiers whose file systems do not answer, or where TIER/monarch cannot be made in time; true:
// none. Before anything is locked: it takes a moment.
bool keep_answering(const StateDir& state, const StartRequest& request, Result<Config>* config,
                    std::string* remark) {
  if (!config->ok() || (*config)->tiers.empty()) return true;
  std::vector<TierConfig>& tiers = (*config)->tiers;
  const Prepared answers = prepare(state, tiers, patience::kHookStepMs);
  std::vector<TierConfig> kept;
  for (size_t i = 0; i < tiers.size(); ++i) {
    if (answers.tiers[i])
      kept.push_back(tiers[i]);
    else
      leave_out(request, tiers[i], fmt::format("it does not answer within {} ms", patience::kHookStepMs),
                remark);
  }
  const bool all = answers.state && kept.size() == tiers.size();
  tiers = std::move(kept);
  if (!answers.state)
    *config =
        Error{ETIMEDOUT, fmt::format("{} does not answer within {} ms", state.path(), patience::kHookStepMs)};
  else if (tiers.empty())
    *config = Error{ETIMEDOUT, "no tier of this node answers"};
  return all;
}

// What the prolog noted, for a step that does not say. ENOENT: nothing is wanted.
Status add_noted(const JobNotes& notes, const StartRequest& asked, StartRequest* request) {
  if (!notes.peers.key.empty()) request->peers = notes.peers;
  if (!asked.datasets.empty()) return {};
  if (notes.datasets.empty()) return errno_error("datasets", ENOENT);
  request->datasets = notes.datasets;
  request->options = notes.options;
  return {};
}

// Without the file no job has Monarch; the code is not that of "nothing is wanted".
Result<Config> load_existing(const std::string& source) {
  Result<Config> config = load_config(source);
  if (!config.ok()) return Error{EINVAL, config.error().text};
  return config;
}

bool is_of_this_run(const StartRequest& request, const JobRecord& last) {
  return last.has_run() && last.restart == request.restart && last.boot == boot_id() &&
         !is_of_earlier_run(last);
}

// Whether it has its agent; else it is what a helper left that was killed in the middle.
bool is_started(const StartRequest& request, const JobRecord& last) {
  return is_of_this_run(request, last) && !last.serves.empty();
}

JobRecord new_record(const StateDir& state, const StartRequest& request) {
  JobRecord record;
  record.job = request.job;
  record.restart = request.restart;
  record.name = request.job.cluster + "." + std::to_string(request.job.job) + "." +
                std::to_string(request.restart) + "." + request.job.node;
  record.serial = static_cast<uint64_t>(os::clock_ns(CLOCK_REALTIME));
  record.layout = 2;
  record.user = request.user;
  record.boot = boot_id();
  record.run_dir = state.run_dir(record);
  record.nodes = request.nodes;
  record.first_node = request.first_node;
  record.of_cluster = request.of_cluster;
  return record;
}

// The job was requeued before its epilog was through with the last run, or the node was rebooted, or a start
// was killed in the middle. The job's lock is held meanwhile: another step of the new run would start it,
// too. Another run of this boot is accounted for, as its epilog would have; a start that was killed has none.
Status clear_last_run(const StateDir& state, JobRecord* last, bool of_this_run) {
  const AgentEnd agent = look_at_agent(state, last);
  if (last->boot == boot_id()) end_agent(state, *last, patience::kHookStepMs);
  if (last->boot == boot_id() && !of_this_run)
    if (const Status kept = finish(state, *last, account_for(state, last, kShortPatience, agent)); !kept.ok())
      spdlog::warn("JobId={} {}", last->job.job, kept.error().text);
  Result<std::vector<Removal>> aside = set_run_aside(state, *last);
  if (!aside.ok()) return aside.error();
  remove_in_background(state, aside.take(), 0);
  return {};
}

// What this request wants and the job's agent does not serve, as a text for the user; or "".
std::string not_served(const StartRequest& request, const std::string& serves) {
  const std::vector<std::string> roots = split(serves, ':');
  std::string missing;
  for (const std::string& given : split(request.datasets, ':')) {
    const Result<std::string> path = absolute_path(given);
    if (path.ok() && std::none_of(roots.begin(), roots.end(), [&](const std::string& root) {
          const Result<std::string> clean = absolute_path(root);
          return clean.ok() && is_below(*path, *clean);
        }))
      missing += (missing.empty() ? "" : ":") + given;
  }
  if (missing.empty()) return "";
  return missing + " is not staged: this job's agent on " + request.job.node + " serves " + serves +
         " since an earlier step; name all of them when the job is submitted: --monarch-dataset=" + serves +
         ":" + missing;
}

// The job's first try on this node, by another step; its first line is for this run and boot only.
std::string run_of(const StartRequest& request) { return std::to_string(request.restart) + " " + boot_id(); }

// Another step may ask for something else, and get it.
std::string tried_with(const StartRequest& request) {
  return request.datasets + (request.options.empty() ? "" : "\n" + request.options);
}

Status failed_before(const JobNotes& notes, const StartRequest& request) {
  const NotedFailure& failure = notes.failure;
  if (failure.run != run_of(request) || failure.tried != tried_with(request)) return {};
  return Error{EALREADY, failure.reason};
}

// Leaves nothing but that note, which goes with the job's epilog. Before a tier is recorded nothing is made.
void note_failure(const StateDir& state, const StartRequest& request, const Error& error, JobRecord* record) {
  record->notes.failure = {run_of(request), error.code == kRefused, escaped(error.text), tried_with(request)};
  Status noted;
  if (record->tiers.empty()) {
    noted = state.forget_run(*record);
  } else {
    Result<std::vector<Removal>> aside = set_run_aside(state, *record);
    if (aside.ok()) return (void)remove_in_background(state, aside.take(), patience::kHookStepMs);
    spdlog::warn("JobId={} clean up is left to the next job: {}", record->job.job, aside.error().text);
    noted = state.write_record(*record);
  }
  if (!noted.ok()) spdlog::warn("JobId={} {}", record->job.job, noted.error().text);
}

// For the first step with tasks.
void take_wait(const StateDir& state, const StartRequest& request, JobRecord* record, Started* started) {
  if (!request.tasks || record->wait_percent == 0) return;
  started->wait_percent = static_cast<int>(std::exchange(record->wait_percent, 0));
  const int64_t left_ms = record->wait_until_ms - state.clock().now_ms();
  started->wait_seconds = static_cast<int>(std::clamp<int64_t>((left_ms + 999) / 1000, 0, INT_MAX));
}

// A step finds the agent there.
Started join(const StateDir& state, const StartRequest& asked, JobRecord* record) {
  Started joined{record->run_dir,  false,         "", not_served(asked, record->serves),
                 record->no_peers, record->remark};
  take_wait(state, asked, record, &joined);
  joined.hints = record->hints;
  note_asker(record, ::getppid());
  (void)state.write_record(*record).ok();
  return joined;
}

// What is known of a start that has come to its end.
void note_started(const StateDir& state, const StartRequest& request, const JobOptions& options,
                  const Config& config, const Started& fresh, JobRecord* record) {
  note_anchor(record);
  record->serves = request.datasets;
  record->no_peers = fresh.alone;
  record->remark = fresh.remark;
  record->closing_line = config.closing_line;
  record->wait_percent = static_cast<uint32_t>(options.wait_percent);
  record->wait_until_ms = state.clock().now_ms() + int64_t{options.wait_seconds} * 1000;
  record->hints = options.hints;
  record->report_file = owners_report(options.report, request.job);
}

// What is asked of others when a job begins; each question takes as long as all else, so all begin first.
class Questions {
 public:
  Questions(const StateDir& state, const StartRequest& request) : state_(state), request_(request) {}
  // Does nothing if they were asked.
  void ask(const Result<Config>& config) {
    const JobOnNode& job = request_.job;
    if (!cores_ && request_.part.cores > 0) cores_.emplace(state_, job, request_.of_cluster);
    if (search_ || !config.ok()) return;
    search_.emplace(config->peer, request_.peers, request_.nodes, request_.of_cluster.account_program,
                    request_.of_cluster.slurm_conf);
    facts_.emplace(state_, job, run_of(request_) + "\n", request_.user, *config, request_.of_cluster);
  }
  // What the job is to run with: what it may have of what is configured, and of that what its user asked for.
  // Shortens the wait for the agent by what the answer takes. `remark`: for the user.
  Result<Config> decide(Result<Config> config, const std::string& datasets, int* ready_ms,
                        std::string* remark) {
    if (!config.ok()) return config;
    const JobFacts& facts = answer(ready_ms);
    if (config->tiers.empty()) config->tiers = discovered_tiers(request_.job);
    Result<Config> mine = apply_policy(*config, facts, datasets);
    Result<JobOptions> options = bound_options(*config, facts, request_.options, remark);
    if (!mine.ok() || !options.ok()) return mine.ok() ? options.error() : mine.error();
    if (mine->tiers.empty()) return mine;  // the user is told of that
    options_ = options.take();
    const Result<std::string> applied = apply_options(options_, request_.job.node, &*mine, request_.nodes);
    if (!applied.ok()) return applied.error();
    if (!applied->empty()) add_remark(*applied, remark);
    if (mine->agent.prefetch == AgentConfig::Prefetch::kOff) options_.wait_percent = 0;  // the user is told
    return mine;
  }
  // For a job that names no dataset; "": it has none.
  std::string default_dataset(const Config& config, int* ready_ms) {
    return monarch::default_dataset(config, answer(ready_ms));
  }
  const JobOptions& options() const { return options_; }  // as decided
  uint32_t cores() { return cores_ ? cores_->answer(patience::kBriefMs) : 0; }
  void note(JobNotes* notes) const {
    if (facts_) facts_->note(notes);
  }
  PeerSearch* search() { return &*search_; }

 private:
  const JobFacts& answer(int* ready_ms) {
    const int64_t begin = state_.clock().now_ms();
    const JobFacts& facts = facts_->answer();
    *ready_ms -= static_cast<int>(state_.clock().now_ms() - begin);
    return facts;
  }

  const StateDir& state_;
  const StartRequest& request_;
  std::optional<PeerSearch> search_;
  std::optional<CoresQuestion> cores_;
  std::optional<JobQuestion> facts_;
  JobOptions options_;
};

// Notes for a job that names no dataset, nor declines, what it has by default, or that it has none, so that
// this is asked once in a run.
Status note_default(const StateDir& state, const StartRequest& request, const std::string& datasets) {
  const Result<Fd> lock = state.lock_job(request.job, true, patience::kStartLockMs);
  if (!lock.ok()) return lock.error();
  Result<JobRecord> record = state.read_job(request.job);
  if (!record.ok()) return record.error();
  JobNotes& notes = record->notes;
  notes.datasets = datasets;
  notes.no_default = datasets.empty();
  notes.by_default = !datasets.empty();
  if (notes.by_default) notes.options = request.options;
  return state.write_record(*record);
}

}  // namespace

Status note_wanted(const StartRequest& request) {
  Result<StateDir> state = StateDir::open(request.state_dir, *request.clock);
  if (!state.ok()) return state.error();
  sweep(*state, request.job);
  Result<Fd> lock = state->lock_job(request.job, true, patience::kStartLockMs);
  if (!lock.ok()) return lock.error();
  Result<JobRecord> record = state->read_job(request.job);
  if (!record.ok()) return record.error();
  record->notes = {request.datasets, request.options, {}, false, false, "", {}, record->notes.told};
  if (has_key(request.peers)) record->notes.peers = request.peers;
  return state->write_record(*record);
}

bool is_required(const StartRequest& asked) {
  const Result<StateDir> state = StateDir::open(asked.state_dir, *asked.clock);
  if (!state.ok()) return false;
  StartRequest request = asked;
  (void)add_noted(state->read_notes(asked.job.key()), asked, &request).ok();
  const Result<JobOptions> options = parse_job_options(request.options);
  return options.ok() && options->require;
}

Tell is_to_be_told(const StartRequest& request, const std::string& reason) {
  const Result<StateDir> state = StateDir::open(request.state_dir, *request.clock);
  const std::string text = run_of(request) + "\n" + escaped(reason);
  if (!state.ok()) return Tell::kInFirstStep;
  const Result<Fd> lock = state->lock_job(request.job, false, patience::kStartLockMs);
  Result<JobRecord> record = state->read_job(request.job);
  if (!record.ok()) return Tell::kInFirstStep;
  std::string& told = record->notes.told;
  if (record->notes.by_default || told == text) return Tell::kNo;  // nobody has asked for it
  told = text;
  return lock.ok() && state->write_record(*record).ok() ? Tell::kYes : Tell::kInFirstStep;
}

Result<Started> start_agent(const StartRequest& asked) {
  StartRequest request = asked;
  Result<StateDir> state = StateDir::open(request.state_dir, *request.clock);
  if (!state.ok()) return state.error();
  Result<JobRecord> last = state->read_job(request.job);
  if (!last.ok()) return last.error();
  const bool known = is_started(request, *last);
  std::string remark;
  Result<Config> config = load_existing(request.of_cluster.config);
  int ready_ms = patience::kReadyMs;
  Questions questions(*state, request);
  if (!known) {
    Status wanted = add_noted(last->notes, asked, &request);
    if (!wanted.ok() && request.tasks && config.ok() && has_default_dataset(*config)) {
      questions.ask(config);
      MONARCH_TRY(note_default(*state, request, questions.default_dataset(*config, &ready_ms)));
      wanted = add_noted(state->read_notes(request.job.key()), asked, &request);
    }
    if (!wanted.ok()) return wanted.error();
    MONARCH_TRY(check_state_room(state->path()));
    // Also here: what keeps a start from its end may keep its lock.
    MONARCH_TRY(failed_before(last->notes, request));
    questions.ask(config);
    if (!keep_answering(*state, request, &config, &remark)) ready_ms -= patience::kHookStepMs;
    sweep(*state, request.job);
    (void)questions.cores();
    config = questions.decide(std::move(config), request.datasets, &ready_ms, &remark);
  }
  const int64_t begin = state->clock().now_ms();
  const Result<Fd> lock = state->lock_job(request.job, !asked.datasets.empty(), patience::kStartLockMs);
  if (!lock.ok()) return lock.error();
  const Unlocks unlocks{*lock};
  last = state->read_job(request.job);
  if (!last.ok()) return last.error();
  MONARCH_TRY(add_noted(last->notes, asked, &request));
  if (is_started(request, *last)) return join(*state, asked, &*last);
  if (last->has_run()) MONARCH_TRY(clear_last_run(*state, &*last, is_of_this_run(request, *last)));
  MONARCH_TRY(failed_before(last->notes, request));
  if (known) {  // and is not any more
    questions.ask(config);
    config = questions.decide(std::move(config), request.datasets, &ready_ms, &remark);
  }
  request.part.node_cores = questions.cores();
  request.part.node_memory = total_memory();

  JobRecord record = new_record(*state, request);
  record.notes = last->notes;
  if (has_key(request.peers)) record.notes.peers = request.peers;
  questions.note(&record.notes);
  const int ledger_ms = std::max(patience::kLeastMs,
                                 patience::kStartLockMs - static_cast<int>(state->clock().now_ms() - begin));
  Started fresh{record.run_dir, true, "", "", "", remark};
  Status started = config.ok() ? start_fresh(*state, request, *config, questions.options(), request.datasets,
                                             questions.search(), {ledger_ms, ready_ms}, &record, &fresh)
                               : Status(config.error());
  if (started.ok()) {
    note_started(*state, request, questions.options(), *config, fresh, &record);
    take_wait(*state, request, &record, &fresh);
    fresh.hints = record.hints;
    started = state->write_record(record);
  }
  if (started.ok()) return fresh;
  note_failure(*state, request, started.error(), &record);
  return started.error();
}

}  // namespace monarch
