// SPDX-License-Identifier: Apache-2.0
// monarch_account: writes a job's line into Slurm's accounting database, as SystemComment, or tells when
// Slurm says that a job began, or where nodes are, or how many cores one has. The one program of Monarch's
// that links libslurm, so that no other has to be rebuilt with Slurm.
//
//   monarch_account --job N --uid U --restart R --begin T --end T
//                   [--submit T --start T] [--cluster NAME] LINE
//   monarch_account --times --job N --uid U --restart R [--begin T]
//   monarch_account --nodes LIST
//   monarch_account --cores NODE
//   monarch_account --facts --job N --uid U
//
// --begin and --end: of the run, by the node's clock; --submit and --start: by Slurm's, 0 if not known.
// --times prints both of the run that began then (without --begin: that runs now), while slurmctld knows it.
// --restart: how often Slurm told that the job was restarted; 0: it does not tell, as none does up to 26.05.
// --nodes prints a line NAME ADDRESS for each node that the list, such as n[1-4], names, in its order: what
// slurm.conf says, else what the name resolves to, else -. slurmctld is not asked.
// --cores prints how many cores slurm.conf says that a node has.
// --facts prints a line each for the partition that a job runs in, its account, and its QOS; empty: it has
// none.
//
// Exit status: 0 done; 1 not now (slurmdbd, or slurmctld, is away); 2 usage; 3 the cluster has no slurmdbd; 4
// no row, or no job, of that run (yet).
//
// SystemComment, since the job's owner cannot change it, since slurmctld does not overwrite it at the job's
// end as it does AdminComment, and since AdminComment is taken by other tools.
extern "C" {
#include <slurm/slurm_errno.h>
#include <slurm/slurmdb.h>
// Exported by libslurm, and filled by slurm_init(), though no header for users names it.
extern slurm_conf_t slurm_conf;
// Likewise: what slurm.conf says, from 20.11 on.
int slurm_conf_get_addr(const char* node, slurm_addr_t* address, uint16_t flags) __attribute__((weak));
int slurm_conf_get_cpus_bsct(const char* node, uint16_t* cpus, uint16_t* boards, uint16_t* sockets,
                             uint16_t* cores, uint16_t* threads) __attribute__((weak));
}

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include "runtime/base/patience.h"
#include "spank/slurm_release.h"

namespace {

using monarch::slurm_release::load_job;

enum Exit { kDone = 0, kAway = 1, kUsage = 2, kNoDatabase = 3, kNoRow = 4 };

// By how much the node's clock and Slurm's may differ.
constexpr time_t kSkew = 5;

constexpr int kMostNodes = 65536;

struct Request {
  bool times = false, facts = false;
  std::string nodes, node;
  uint32_t job = 0, uid = 0, restart = 0;
  time_t begin = 0, end = 0, submit = 0, start = 0;
  std::string cluster, line;
};

Exit fail(const Request& r, Exit code, const char* why) {
  std::fprintf(stderr, "monarch_account: job %u: %s\n", r.job, why);
  return code;
}

// A row of the database, as far as it is needed to tell it from others.
struct Row {
  uint32_t array_job, array_task, het_job, het_offset;
  time_t submit, start, end;
};

// A condition that only rows meet which are of that job id and ran at some time from `from` to `to`.
class Condition {
 public:
  Condition(const std::string& cluster, uint32_t job, time_t from, time_t to) : cluster_(cluster) {
    std::memset(&step_, 0, sizeof step_);
    step_.array_task_id = NO_VAL;
    step_.het_job_offset = NO_VAL;
    step_.step_id.job_id = job;
    step_.step_id.step_id = NO_VAL;
    step_.step_id.step_het_comp = NO_VAL;
    std::memset(&cond_, 0, sizeof cond_);
    cond_.db_flags = SLURMDB_JOB_FLAG_NOTSET;
    cond_.flags = JOBCOND_FLAG_NO_DEFAULT_USAGE | JOBCOND_FLAG_NO_STEP | JOBCOND_FLAG_NO_TRUNC |
                  JOBCOND_FLAG_NO_WHOLE_HETJOB;
    cond_.step_list = slurm_list_create(nullptr);
    slurm_list_append(cond_.step_list, &step_);
    cond_.cluster_list = slurm_list_create(nullptr);
    slurm_list_append(cond_.cluster_list, cluster_.data());
    // Together with this state the times count, though jobs are named: it means that a row's own begin before
    // usage_end, and end after usage_start or not at all.
    cond_.state_list = slurm_list_create(nullptr);
    slurm_list_append(cond_.state_list, running_.data());
    cond_.usage_start = from - 1;
    cond_.usage_end = to + 1;
  }
  Condition(const Condition&) = delete;
  Condition& operator=(const Condition&) = delete;
  ~Condition() {
    slurm_list_destroy(cond_.step_list);
    slurm_list_destroy(cond_.cluster_list);
    slurm_list_destroy(cond_.state_list);
  }

  // The job's id alone would mean all tasks of an array, or all components of a job, that it is the first of.
  void name_part(const Row& row) {
    if (row.array_job != 0 && row.array_task != NO_VAL) {
      step_.step_id.job_id = row.array_job;
      step_.array_task_id = row.array_task;
    } else if (row.het_job != 0 && row.het_offset != NO_VAL) {
      step_.step_id.job_id = row.het_job;
      step_.het_job_offset = row.het_offset;
    }
  }
  void with_older_rows() { cond_.flags |= JOBCOND_FLAG_DUP; }
  slurmdb_job_cond_t* get() { return &cond_; }

 private:
  slurm_selected_step_t step_;
  slurmdb_job_cond_t cond_;
  std::string cluster_, running_ = std::to_string(JOB_RUNNING);
};

// The rows of that job and user that meet the condition; false if they cannot be had.
bool find(void* connection, Condition* condition, const Request& r, std::vector<Row>* rows) {
  auto list = slurmdb_jobs_get(connection, condition->get());
  if (!list) return false;
  auto at = slurm_list_iterator_create(list);
  while (const auto* job = static_cast<const slurmdb_job_rec_t*>(slurm_list_next(at)))
    if (job->jobid == r.job && job->uid == r.uid)
      rows->push_back({job->array_job_id, job->array_task_id, job->het_job_id, job->het_job_offset,
                       job->submit, job->start, job->end});
  slurm_list_iterator_destroy(at);
  slurm_list_destroy(list);
  return true;
}

// Slurm's own times decide. Without them, the row must have begun before the agent ended, have ended, and
// have run for at least half of the time that the node knows of, and must be the only one: a row of another
// run with the same id, when that of this one is not in the database yet, did not.
bool is_of_run(const Request& r, const Row& row) {
  if (row.start == 0) return false;
  if (r.submit != 0) return row.submit == r.submit && row.start == r.start;
  return row.end != 0 && row.start <= std::min(r.begin + kSkew, r.end) &&
         row.end >= r.begin + (r.end - r.begin) / 2;
}

// Whether what slurmctld knows of the job is this run, and not a later one, or another job that got its id. A
// job that is requeued has its old times until it has left its nodes; while it waits then, its start is a
// guess. A later run began after this one, and no doubt about clocks may make the two one.
bool is_this_run(const Request& r, const job_info_t& job) {
  if (job.job_id != r.job || job.user_id != r.uid || job.start_time == 0) return false;
  if (r.restart != 0 && job.restart_cnt != r.restart) return false;
  const bool waits = (job.job_state & JOB_STATE_BASE) == JOB_PENDING && !(job.job_state & JOB_COMPLETING);
  const bool began_later = r.begin != 0 && job.start_time > r.begin + (job.restart_cnt > 0 ? 0 : kSkew);
  return !waits && !began_later;
}

// Sets submit and start from what slurmctld knows of the run.
Exit ask_slurmctld(Request* r) {
  job_info_msg_t* jobs = nullptr;
  if (load_job(slurm_load_job, r->job, &jobs) != SLURM_SUCCESS)
    return errno == ESLURM_INVALID_JOB_ID ? kNoRow : kAway;
  Exit found = kNoRow;
  for (uint32_t i = 0; i < jobs->record_count; ++i) {
    const job_info_t& job = jobs->job_array[i];
    if (!is_this_run(*r, job)) continue;
    r->submit = job.submit_time;
    r->start = job.start_time;
    found = kDone;
  }
  slurm_free_job_info_msg(jobs);
  return found;
}

Exit modify(void* connection, Request* r, const Row& row) {
  Condition condition(r->cluster, r->job, row.start, row.start);
  condition.name_part(row);
  // What the change would hit: nothing is changed unless it is that row alone.
  std::vector<Row> hit;
  if (!find(connection, &condition, *r, &hit)) return fail(*r, kAway, slurm_strerror(errno));
  if (hit.size() != 1 || hit[0].submit != row.submit)
    return fail(*r, kNoRow, "its row cannot be told from others");
  slurmdb_job_rec_t change;
  std::memset(&change, 0, sizeof change);
  change.derived_ec = NO_VAL;  // 0 would be written
  change.system_comment = r->line.data();
  errno = 0;
  auto changed = slurmdb_job_modify(connection, condition.get(), &change);
  const int error = errno;
  const int count = changed ? slurm_list_count(changed) : -1;
  if (changed) slurm_list_destroy(changed);
  if (count != 1) {
    slurmdb_connection_commit(connection, false);
    if (count < 0 && error != SLURM_NO_CHANGE_IN_DATA && error != ESLURM_INVALID_JOB_ID)
      return fail(*r, kAway, slurm_strerror(error));
    // This row's own trouble: others can be changed.
    return fail(*r, kNoRow, count > 1 ? "more than one row: none is changed" : "its row is not changed");
  }
  return slurmdb_connection_commit(connection, true) == SLURM_SUCCESS ? kDone : kAway;
}

Exit write_line(void* connection, Request* r) {
  if (r->submit == 0) (void)ask_slurmctld(r);
  Condition condition(r->cluster, r->job, std::min(r->begin, r->start != 0 ? r->start : r->begin) - kSkew,
                      std::max(r->end, r->start) + kSkew);
  condition.with_older_rows();
  std::vector<Row> rows;
  if (!find(connection, &condition, *r, &rows)) return fail(*r, kAway, slurm_strerror(errno));
  rows.erase(std::remove_if(rows.begin(), rows.end(), [&](const Row& row) { return !is_of_run(*r, row); }),
             rows.end());
  if (rows.empty()) return fail(*r, kNoRow, "no row of this run (yet)");
  if (rows.size() > 1) return fail(*r, kNoRow, "more than one row may be of this run");
  return modify(connection, r, rows[0]);
}

// Numeric, of version 4 or 6; "-": there is none.
std::string text_of(const void* address, size_t bytes) {
  char text[NI_MAXHOST];
  const auto* at = static_cast<const sockaddr*>(address);
  const bool is_one = at->sa_family == AF_INET || at->sa_family == AF_INET6;
  return is_one && ::getnameinfo(at, static_cast<socklen_t>(bytes), text, sizeof text, nullptr, 0,
                                 NI_NUMERICHOST) == 0
             ? text
             : "-";
}

std::string address_of(const char* node) {
  slurm_addr_t configured;
  std::memset(&configured, 0, sizeof configured);
  if (&slurm_conf_get_addr && slurm_conf_get_addr(node, &configured, 0) == SLURM_SUCCESS) {
    const auto family = reinterpret_cast<const sockaddr*>(&configured)->sa_family;
    return text_of(&configured, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  }
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(node, nullptr, &hints, &found) != 0) return "-";
  std::string text = text_of(found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  return text;
}

Exit list_nodes(const std::string& expression) {
  auto list = slurm_hostlist_create(expression.c_str());
  if (!list) return kUsage;
  if (slurm_hostlist_count(list) > kMostNodes) {
    std::fprintf(stderr, "monarch_account: more than %d nodes\n", kMostNodes);
    return kUsage;
  }
  while (char* node = slurm_hostlist_shift(list)) {
    std::printf("%s %s\n", node, address_of(node).c_str());
    std::free(node);
  }
  slurm_hostlist_destroy(list);
  return std::fflush(stdout) == 0 ? kDone : kAway;
}

// A job's credential counts cores, not processors.
Exit count_cores(const std::string& node) {
  uint16_t cpus = 0, boards = 0, sockets = 0, cores = 0, threads = 0;
  if (!&slurm_conf_get_cpus_bsct ||
      slurm_conf_get_cpus_bsct(node.c_str(), &cpus, &boards, &sockets, &cores, &threads) != SLURM_SUCCESS) {
    node_info_msg_t* nodes = nullptr;  // newer libraries have no such function
    if (slurm_load_node_single(&nodes, std::string(node).data(), SHOW_ALL) != SLURM_SUCCESS) {
      std::fprintf(stderr, "monarch_account: %s\n", slurm_strerror(errno));
      return kAway;
    }
    if (nodes->record_count == 1) {
      sockets = nodes->node_array[0].sockets;
      cores = nodes->node_array[0].cores;
    }
    slurm_free_node_info_msg(nodes);
  }
  if (sockets == 0 || cores == 0) return kNoRow;
  std::printf("%u\n", unsigned{sockets} * cores);
  return std::fflush(stdout) == 0 ? kDone : kAway;
}

// A line of its own: where nothing checks accounts, the user has chosen the name.
void print_line(const char* name) {
  for (const char* at = name ? name : ""; *at; ++at)
    std::putchar(static_cast<unsigned char>(*at) < ' ' ? '?' : *at);
  std::putchar('\n');
}

Exit print_facts(const Request& r) {
  job_info_msg_t* jobs = nullptr;
  if (load_job(slurm_load_job, r.job, &jobs) != SLURM_SUCCESS)
    return fail(r, errno == ESLURM_INVALID_JOB_ID ? kNoRow : kAway, slurm_strerror(errno));
  Exit found = kNoRow;
  for (uint32_t i = 0; found == kNoRow && i < jobs->record_count; ++i) {  // with an array's other tasks
    const job_info_t& job = jobs->job_array[i];
    if (job.job_id != r.job || job.user_id != r.uid) continue;
    print_line(job.partition);
    print_line(job.account);
    print_line(job.qos);
    found = std::fflush(stdout) == 0 ? kDone : kAway;
  }
  slurm_free_job_info_msg(jobs);
  return found == kNoRow ? fail(r, kNoRow, "slurmctld knows no such job of that user") : found;
}

bool parse(int argc, char** argv, Request* r) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool option = word.starts_with("--");
    const bool has_value = option && word != "--times" && word != "--facts";
    if (has_value && i + 1 == argc) return false;
    const auto number = [&] { return std::strtoll(argv[++i], nullptr, 10); };
    if (word == "--times") {
      r->times = true;
    } else if (word == "--facts") {
      r->facts = true;
    } else if (word == "--nodes") {
      r->nodes = argv[++i];
    } else if (word == "--cores") {
      r->node = argv[++i];
    } else if (!option) {
      if (!r->line.empty()) return false;
      r->line = word;
    } else if (word == "--job") {
      r->job = static_cast<uint32_t>(number());
    } else if (word == "--uid") {
      r->uid = static_cast<uint32_t>(number());
    } else if (word == "--restart") {
      r->restart = static_cast<uint32_t>(number());
    } else if (word == "--begin") {
      r->begin = number();
    } else if (word == "--end") {
      r->end = number();
    } else if (word == "--submit") {
      r->submit = number();
    } else if (word == "--start") {
      r->start = number();
    } else if (word == "--cluster") {
      r->cluster = argv[++i];
    } else {
      return false;
    }
  }
  if (!r->nodes.empty() || !r->node.empty()) return true;
  if (r->facts) return r->job != 0 && r->line.empty();
  return r->job != 0 && r->uid != 0 && (r->times ? r->line.empty() : !r->line.empty() && r->begin != 0);
}

}  // namespace

int main(int argc, char** argv) {
  Request r;
  if (!parse(argc, argv, &r)) {
    std::fprintf(
        stderr,
        "usage: monarch_account --job N --uid U --restart R --begin T --end T [--submit T --start T]\n"
        "                       [--cluster NAME] LINE\n"
        "       monarch_account --times --job N --uid U --restart R [--begin T]\n"
        "       monarch_account --nodes LIST\n"
        "       monarch_account --cores NODE\n"
        "       monarch_account --facts --job N --uid U\n");
    return kUsage;
  }
  ::alarm(monarch::patience::kAccountSeconds + 5);  // who waits for it gives up before, or is gone
  slurm_init(nullptr);
  if (!r.nodes.empty()) return list_nodes(r.nodes);
  if (!r.node.empty()) return count_cores(r.node);
  if (r.facts) return print_facts(r);
  const char* storage = slurm_conf.accounting_storage_type;
  if (!storage || !std::strstr(storage, "slurmdbd"))
    return fail(r, kNoDatabase, "the cluster has no slurmdbd");
  if (r.cluster.empty() && slurm_conf.cluster_name) r.cluster = slurm_conf.cluster_name;
  if (r.times) {
    const Exit asked = ask_slurmctld(&r);
    if (asked != kDone)
      return fail(r, asked, asked == kAway ? slurm_strerror(errno) : "slurmctld knows no such run");
    std::printf("%lld %lld\n", static_cast<long long>(r.submit), static_cast<long long>(r.start));
    return kDone;
  }
  uint16_t flags = 0;
  void* connection = slurmdb_connection_get(&flags);
  if (!connection) return fail(r, kAway, slurm_strerror(errno));
  const Exit done = write_line(connection, &r);
  slurmdb_connection_close(&connection);
  return done;
}
