// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/spool.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <tuple>

#include "runtime/base/fd.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/os.h"
#include "runtime/base/patience.h"
#include "runtime/node/await.h"
#include "runtime/node/child.h"

extern char** environ;

namespace monarch {
namespace {

constexpr int64_t kLongSeconds = 3600;  // a line that waits longer is worth a warning, that often
constexpr size_t kMostSaid = 400;       // more is no answer
constexpr int64_t kTidySeconds = 600;   // how often lines are looked at that wait for a person

// What monarch_account's exit status says; kBroken: nothing, it cannot run.
enum class Answer { kDone = 0, kAway = 1, kNoDatabase = 3, kNoRow = 4, kNone = -1, kBroken = -2 };

// What a helper answered, and what is wrong with it if it is kBroken.
struct Asked {
  Answer answer = Answer::kNone;
  std::string trouble;
};

std::string path_of(const StateDir& state, const std::string& below) { return state.path() + "/" + below; }

// -1: there is no such file.
int64_t mtime_of(const std::string& path) {
  struct stat st;
  return ::lstat(path.c_str(), &st) == 0 ? st.st_mtim.tv_sec : -1;
}
void set_mtime(const std::string& path, int64_t when) {
  const timespec times[2] = {{when, 0}, {when, 0}};
  (void)!::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW);
}

// A time that lies further ahead than any pause was set before the clock was.
bool has_come(int64_t when, int64_t now) { return when <= now || when > now + 2 * patience::kFailedSeconds; }

// Whether that was last done `seconds` ago or more; then it counts as done now.
bool once_in(const StateDir& state, const std::string& mark, int64_t seconds) {
  const int64_t last = mtime_of(path_of(state, mark)), now = os::realtime_s();
  if (last >= 0 && last <= now && now - last < seconds) return false;
  return state.write(mark, "").ok();
}

std::string no_database_mark(const std::string& cluster) { return "no_database." + cluster; }
bool has_no_database(const StateDir& state, const std::string& cluster) {
  const int64_t since = mtime_of(path_of(state, no_database_mark(cluster))), now = os::realtime_s();
  return since >= 0 && since <= now && now - since < patience::kBelievedSeconds;
}
void note_no_database(const StateDir& state, const std::string& cluster) {
  if (once_in(state, no_database_mark(cluster), patience::kBelievedSeconds))
    spdlog::info("cluster {} has no slurmdbd: its jobs' lines are in this log alone", cluster);
}

bool is_line(const std::string& name) { return name.ends_with(".json"); }

std::vector<Spooled> lines_in(const StateDir& state) {
  std::vector<Spooled> lines;
  for (const std::string& name : state.spooled()) {
    struct stat st;
    if (::lstat(path_of(state, "spool/" + name).c_str(), &st) != 0) continue;
    const size_t end = name.rfind('.'), begin = end == std::string::npos ? end : name.rfind('.', end - 1);
    const int64_t since =
        begin == std::string::npos ? 0 : std::strtoll(name.c_str() + begin + 1, nullptr, 10);
    lines.push_back({name, since, st.st_mtim.tv_sec});
  }
  return lines;
}

Asked answer_of(const std::string& program, int status) {
  if (WIFEXITED(status)) {
    const auto answer = static_cast<Answer>(WEXITSTATUS(status));
    for (const Answer known : {Answer::kDone, Answer::kAway, Answer::kNoDatabase, Answer::kNoRow})
      if (answer == known) return {answer, ""};
    return {Answer::kBroken, program + " ended with status " + std::to_string(WEXITSTATUS(status))};
  }
  return {Answer::kBroken, program + " was ended by signal " + std::to_string(WTERMSIG(status))};
}

// Runs the helper, bounded; `slurm_conf` goes into its environment; *said: what it prints.
Asked ask(Clock& clock, const std::vector<std::string>& words, const std::string& slurm_conf,
          std::string* said) {
  Child program(words, slurm_conf);
  const int64_t until_ms = clock.now_ms() + int64_t{patience::kAccountSeconds} * 1000;
  const Result<int> status = program.end(until_ms, kMostSaid, said, clock);
  if (status.ok()) return answer_of(words[0], *status);
  if (!program.started().ok() && !is_shortage(status.error().code))
    return {Answer::kBroken, status.error().text};
  spdlog::debug("{}: {}", words[0], status.error().text);
  return {};
}

std::string remedy(const std::string& trouble) {
  return trouble + "; run it by hand to see why: after an update of Slurm, build Monarch anew for that";
}

void warn_of_trouble(const StateDir& state, const std::string& trouble) {
  if (once_in(state, "account_warned", kLongSeconds)) spdlog::warn("no lines for sacct: {}", remedy(trouble));
}

std::string program_of(const std::string& own, const std::string& otherwise) {
  return own.empty() || ::access(own.c_str(), X_OK) != 0 ? otherwise : own;
}

struct WaitingLine {
  uint32_t job = 0, restart = 0;
  uint64_t uid = 0;
  int64_t begin = 0, end = 0;     // of the agent, by this node's clock
  int64_t submit = 0, start = 0;  // of the run, as Slurm says; 0: not known
  bool only_if_there = false;     // account = auto: no database, no line
  std::string cluster, slurm_conf, program, line;
};

template <typename Members>
void list_members(WaitingLine* e, Members* m) {
  m->need("job", &e->job);
  m->need("cluster", &e->cluster);
  m->need("uid", &e->uid);
  m->may("restart", &e->restart);
  m->need("begin", &e->begin);
  m->need("end", &e->end);
  m->may("submit", &e->submit);
  m->may("start", &e->start);
  m->may("auto", &e->only_if_there);
  m->may("slurm_conf", &e->slurm_conf);
  m->may("account_program", &e->program);
  m->need("line", &e->line);
}

bool parse(const std::string& text, WaitingLine* e) {
  const std::optional<Json> json = Json::parse(text);
  if (!json) return false;
  JsonReader members(*json);
  list_members(e, &members);
  return members.fault().empty();
}

Asked write_line(Clock& clock, const WaitingLine& e, const std::string& program) {
  const auto number = [](auto n) { return std::to_string(n); };
  std::string said;
  return ask(clock,
             {program, "--job", number(e.job), "--cluster", e.cluster, "--uid", number(e.uid), "--restart",
              number(e.restart), "--begin", number(e.begin), "--end", number(e.end), "--submit",
              number(e.submit), "--start", number(e.start), e.line},
             e.slurm_conf, &said);
}

// One time that the lines are gone through.
struct Pass {
  const StateDir& state;
  const AccountPrograms& programs;
  // Clusters, with their slurm.conf, from which no answer comes, and when the line that was tried comes
  // again: their other lines are not tried.
  std::map<std::pair<std::string, std::string>, int64_t> away;
  std::string trouble;  // why a helper cannot run
};

// Whether no answer came: the cluster's slurmdbd is away, or this line is more than the helper can take.
bool is_silent(Answer answer) {
  return answer == Answer::kAway || answer == Answer::kNone || answer == Answer::kBroken;
}

// When the line is to be tried next; nothing: it is done with. One that got no answer comes after those which
// were not tried for its sake, so that it does not keep them waiting again.
std::optional<int64_t> deal_with(Pass* pass, const Spooled& line) {
  const StateDir& state = pass->state;
  const std::string& name = line.name;
  const Result<std::string> text = state.read("spool/" + name);
  if (!text.ok() && (is_shortage(text.error().code) || text.error().code == EIO))
    return next_try(line.since, os::realtime_s());
  WaitingLine entry;
  if (!text.ok() || !parse(*text, &entry)) {
    spdlog::warn("{}/spool/{} is no line for sacct: removed", state.path(), name);
    return {};
  }
  if (entry.only_if_there && has_no_database(state, entry.cluster)) return {};
  const std::pair<std::string, std::string> cluster = {entry.cluster, entry.slurm_conf};
  if (const auto tried = pass->away.find(cluster); tried != pass->away.end())
    return std::min(next_try(line.since, os::realtime_s()), tried->second - 1);
  const AccountPrograms& programs = pass->programs;
  const Asked asked =
      write_line(state.clock(), entry,
                 programs.instead.empty() ? program_of(entry.program, programs.otherwise) : programs.instead);
  if (asked.answer == Answer::kNoDatabase) note_no_database(state, entry.cluster);
  if (asked.answer == Answer::kBroken) pass->trouble = asked.trouble;
  if (asked.answer == Answer::kDone || (asked.answer == Answer::kNoDatabase && entry.only_if_there))
    return {};
  const int64_t next = next_try(line.since, os::realtime_s());
  if (!is_silent(asked.answer)) return next;
  pass->away.emplace(cluster, next + 1);
  return next + 1;
}

// "1 line for sacct waits", "2 lines for sacct wait"
std::string lines_that(size_t n, const char* one, const char* several) {
  return fmt::format("{} {} for sacct {}", n, n == 1 ? "line" : "lines", n == 1 ? one : several);
}

void drop_excess(const StateDir& state, std::vector<Spooled>* lines, const SpoolConfig& config) {
  const std::vector<Spooled> out = excess(*lines, config, os::realtime_s());
  if (out.empty()) return;
  for (const Spooled& s : out) {
    ::unlink(path_of(state, "spool/" + s.name).c_str());
    std::erase_if(*lines, [&](const Spooled& l) { return l.name == s.name; });
  }
  spdlog::error("{}, the oldest {}: no row was found in the database for {} days, or more than {} wait",
                lines_that(out.size(), "is given up", "are given up"), out.front().name, config.spool_days,
                config.spool_lines);
}

void warn_of_long_waits(const StateDir& state, const std::vector<Spooled>& lines) {
  int64_t oldest = os::realtime_s();
  size_t waiting = 0;
  for (const Spooled& l : lines) {
    if (!is_line(l.name)) continue;
    ++waiting;
    oldest = std::min(oldest, l.since);
  }
  const int64_t age = os::realtime_s() - oldest;
  if (age > kLongSeconds && once_in(state, "spool_warned", kLongSeconds))
    spdlog::warn("{} in {}/spool, the oldest for {} h; is slurmdbd up?", lines_that(waiting, "waits", "wait"),
                 state.path(), age / 3600);
}

}  // namespace

Status spool(const StateDir& state, const JobRecord& record, const std::string& line, Accounting accounting) {
  if (accounting == Accounting::kLog || accounting == Accounting::kOff) return {};
  WaitingLine entry;
  entry.job = record.job.job;
  entry.cluster = record.job.cluster;
  entry.uid = record.user.uid;
  entry.restart = record.restart;
  entry.begin = static_cast<int64_t>(record.serial / 1000000000);
  entry.end = os::realtime_s();
  entry.only_if_there = accounting == Accounting::kAuto;
  entry.slurm_conf = record.of_cluster.slurm_conf;
  entry.program = record.of_cluster.account_program;
  entry.line = line;
  entry.submit = record.submit;
  entry.start = record.start;
  JsonWriter members;
  list_members(&entry, &members);
  const std::optional<std::string> text = members.object().dump_if_utf8();
  if (!text) return Error{EINVAL, "line for sacct: a path is not UTF-8"};
  // Of one that was killed before the record was gone: what could be read then may be gone by now.
  const std::vector<std::string> lines = state.spooled();
  if (std::any_of(lines.begin(), lines.end(),
                  [&](const std::string& other) { return other.starts_with(record.removal() + "."); }))
    return {};
  const std::string name = record.removal() + "." + std::to_string(os::realtime_s()) +
                           (accounting == Accounting::kSpool ? ".kept" : ".json");
  if (!is_plain_name(name))
    return Error{ENAMETOOLONG, "line for sacct: " + name + " cannot be a file's name"};
  return state.write("spool/" + name, *text + "\n");
}

int64_t next_try(int64_t since, int64_t now) {
  return now + std::clamp(now - since, int64_t{1}, patience::kFailedSeconds);
}

std::vector<Spooled> excess(std::vector<Spooled> lines, const SpoolConfig& config, int64_t now) {
  std::sort(lines.begin(), lines.end(), [](const Spooled& a, const Spooled& b) { return a.since < b.since; });
  const int64_t oldest = now - int64_t{config.spool_days} * 86400;
  size_t out = 0;
  while (out < lines.size() && lines[out].since < oldest) ++out;
  const size_t most = static_cast<size_t>(config.spool_lines);
  if (lines.size() - out > most) out = lines.size() - (most - most / 20);
  lines.resize(out);
  return lines;
}

bool lines_wait(const StateDir& state) {
  const std::vector<std::string> names = state.spooled();
  return std::any_of(names.begin(), names.end(), &is_line);
}

bool flush_is_due(const StateDir& state) {
  const int64_t now = os::realtime_s();
  const std::vector<Spooled> lines = lines_in(state);
  if (std::any_of(lines.begin(), lines.end(),
                  [&](const Spooled& l) { return is_line(l.name) && has_come(l.next, now); }))
    return true;
  return !lines.empty() && mtime_of(path_of(state, "spool_tidied")) + kTidySeconds <= now;
}

Status flush(const StateDir& state, const AccountPrograms& programs, const SpoolConfig& config, Lines which) {
  const std::string dir = path_of(state, "spool");
  const Result<Fd> lock = state.lock_in_time(Fd(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)), dir,
                                             patience::kSpoolLockSeconds * 1000);
  if (!lock.ok()) return lock.error();
  (void)once_in(state, "spool_tidied", kTidySeconds);
  std::vector<Spooled> lines = lines_in(state);
  drop_excess(state, &lines, config);
  warn_of_long_waits(state, lines);
  std::sort(lines.begin(), lines.end(), [](const Spooled& a, const Spooled& b) {
    return std::tie(a.next, a.name) < std::tie(b.next, b.name);
  });
  const int64_t until_ms = state.clock().now_ms() + int64_t{patience::kPassSeconds} * 1000;
  size_t left = 0;
  Pass pass{state, programs, {}, ""};
  for (const Spooled& l : lines) {
    const std::string path = dir + "/" + l.name;
    const bool mine = which == Lines::kAll || (is_line(l.name) && has_come(l.next, os::realtime_s()));
    if (mine && (which == Lines::kAll || state.clock().now_ms() < until_ms)) {
      const std::optional<int64_t> next = deal_with(&pass, l);
      if (!next) {
        ::unlink(path.c_str());
        continue;
      }
      set_mtime(path, *next);
    }
    ++left;
  }
  if (!pass.trouble.empty() && which == Lines::kDue) warn_of_trouble(state, pass.trouble);
  if (left == 0) return {};
  if (which == Lines::kAll && pass.away.empty())
    return Error{ENODATA, lines_that(left, "waits", "wait") + " in " + dir +
                              ": slurmdbd answers, and has no row of their jobs yet; run it again later"};
  return Error{EAGAIN, lines_that(left, "waits", "wait") + " in " + dir + "; " +
                           (pass.trouble.empty() ? "is slurmdbd up?" : remedy(pass.trouble))};
}

namespace {

// The job's record, if Slurm's times for it are not known yet, and are to be asked for now.
std::optional<JobRecord> lacks_times(const StateDir& state, const std::string& key) {
  Result<JobRecord> record = state.read_record(key);
  if (!record.ok() || record->next_ask < 0 || !has_come(record->next_ask, os::realtime_s())) return {};
  return record.take();
}

// Sets what Slurm says; or when it is asked again.
void ask_of(const StateDir& state, const std::string& program, JobRecord* record) {
  const OfCluster& own = record->of_cluster;
  const int64_t since = static_cast<int64_t>(record->serial / 1000000000);
  record->next_ask = -1;
  if (!record->first_node || own.account_program.empty() || has_no_database(state, record->job.cluster))
    return;  // nobody will ask
  std::string said;
  const auto [answer, trouble] =
      ask(state.clock(),
          {program_of(own.account_program, program), "--times", "--job", std::to_string(record->job.job),
           "--uid", std::to_string(record->user.uid), "--restart", std::to_string(record->restart), "--begin",
           std::to_string(since)},
          own.slurm_conf, &said);
  long long submit = 0, start = 0;
  if (answer == Answer::kNoDatabase) note_no_database(state, record->job.cluster);
  if (answer == Answer::kDone && std::sscanf(said.c_str(), "%lld %lld", &submit, &start) == 2) {
    record->submit = submit;
    record->start = start;
  }
  if (answer == Answer::kBroken) warn_of_trouble(state, trouble);
  if (answer == Answer::kAway || answer == Answer::kNone || answer == Answer::kBroken)
    record->next_ask = next_try(since, os::realtime_s());
}

}  // namespace

bool times_are_due(const StateDir& state) {
  const std::vector<std::string> jobs = state.jobs();
  return std::any_of(jobs.begin(), jobs.end(),
                     [&](const std::string& key) { return lacks_times(state, key).has_value(); });
}

void ask_times(const StateDir& state, const std::string& program) {
  for (const std::string& key : state.jobs()) {
    std::optional<JobRecord> asked = lacks_times(state, key);
    if (!asked) continue;
    ask_of(state, program, &*asked);
    std::optional<LockedJob> now = state.lock_run(*asked);  // another run is asked for anew
    if (!now) continue;
    now->record.submit = asked->submit;
    now->record.start = asked->start;
    now->record.next_ask = asked->next_ask;
    (void)state.write_record(now->record).ok();
  }
}

}  // namespace monarch
