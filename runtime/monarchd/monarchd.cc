// SPDX-License-Identifier: Apache-2.0
// monarchd: the node agent, and the helpers that root runs at a job's beginning and end. This file only
// reads the command line; see runtime/agent/ and runtime/node/.
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "build_config.h"
#include "runtime/agent/agent.h"
#include "runtime/base/command_line.h"
#include "runtime/base/escape.h"
#include "runtime/base/log.h"
#include "runtime/base/number.h"
#include "runtime/base/paths.h"
#include "runtime/config/dataset_rules.h"
#include "runtime/hierarchy/grant.h"
#include "runtime/node/boot.h"
#include "runtime/node/closing.h"
#include "runtime/node/epilog.h"
#include "runtime/node/keeper.h"
#include "runtime/node/root_log.h"
#include "runtime/node/spool.h"
#include "runtime/node/start.h"
#include "runtime/store/server.h"

namespace {

using monarch::Error;
using monarch::Result;
using monarch::Status;

constexpr int kUsage = 2;

int fail(const Error& error) {
  std::fprintf(stderr, "monarchd: %s\n", monarch::escaped(error.text).c_str());
  return 1;
}

struct Options {
  monarch::AgentOptions agent;
  monarch::PeerArguments peers;
  std::vector<std::string> tiers, stores;
  int tier_fd = -1, request_fd = -1, answer_fd = -1;
  std::string config, log, datasets_file, exclude_file;

  bool as_user = false;  // the agent becomes request.user first
  bool prolog = false, start = false, epilog = false, flush = false, keep = false, sweep = false,
       tell = false, close = false;
  monarch::StartRequest request;
  std::string account = PKGLIBEXECDIR "/monarch_account", account_instead;
  int reply_fd = -1;

  monarch::KeeperRequest keeper() const { return {request.state_dir, config, log, account}; }
};

// As the user's helper the agent is what the kernel should kill first, not the training.
void prefer_for_oom() { std::ofstream("/proc/self/oom_score_adj") << "1000\n"; }

// As the owner of a job's directory on a tier, which nobody but this process and its like can write.
int run_as_store(Options& o) {
  monarch::end_without_memory("monarchd", "a job's store ends, and its tier takes no more copies");
  const std::string tier = o.stores.front();
  monarch::Fd directory(o.tier_fd);
  const monarch::Fd requests(o.request_fd), answers(o.answer_fd);
  if (!o.log.empty() && !monarch::open_log(o.log, "info").ok()) return 1;
  if (const Status s = monarch::confine_store(); !s.ok()) return fail(s.error());
  monarch::StoreServer server(std::move(directory), tier,
                              [&] { return monarch::granted_by(o.agent.grants, tier); });
  return server.serve(requests.get(), answers.get()) ? 0 : 1;
}

// "TIER:REQUEST_FD:ANSWER_FD".
bool parse_store(const std::string& text, std::vector<monarch::StoreEnds>* stores) {
  const size_t second = text.rfind(':'), first = second == 0 ? second : text.rfind(':', second - 1);
  if (second == std::string::npos || first == std::string::npos || first == 0) return false;
  const auto request = monarch::to_number<int>(text.substr(first + 1, second - first - 1));
  const auto answer = monarch::to_number<int>(text.substr(second + 1));
  if (!request || !answer || *request <= STDERR_FILENO || *answer <= STDERR_FILENO || *request == *answer)
    return false;
  for (const int fd : {*request, *answer}) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  stores->push_back({text.substr(0, first), *request, *answer});
  return true;
}

int run_as_agent(Options& o) {
  monarch::end_without_memory("monarchd", "the agent ends, and the job reads on without it");
  const auto fail = [&](const Error& error) {  // told to who waits, too
    monarch::tell_ready(o.agent.ready_fd, error.text);
    return ::fail(error);
  };
  if (o.as_user)
    if (const Status s = monarch::become(o.request.user); !s.ok()) return fail(s.error());
  if (!o.config.empty()) {
    Result<monarch::Config> loaded =
        o.agent.grants.empty() ? monarch::load_config(o.config) : monarch::load_agent_conf(o.config);
    if (!loaded.ok()) return fail(loaded.error());
    o.agent.config = loaded.take();
  }
  for (const std::string& text : o.tiers) {
    Result<monarch::TierConfig> tier = monarch::parse_tier_option(text);
    if (!tier.ok()) return fail(tier.error());
    if (const Status s = monarch::add_tier(&o.agent.config, tier.take()); !s.ok()) return fail(s.error());
  }
  if (!o.datasets_file.empty()) {
    std::ifstream in(o.datasets_file, std::ios::binary);
    for (std::string path; std::getline(in, path, ':');)
      if (!path.empty()) o.agent.datasets.push_back(path);
    if (in.bad() || o.agent.datasets.empty()) return fail({EINVAL, o.datasets_file + ": no dataset in it"});
  }
  if (!o.exclude_file.empty()) {
    std::ifstream in(o.exclude_file, std::ios::binary);
    if (!std::getline(in, o.agent.config.agent.exclude))
      return fail({EINVAL, o.exclude_file + ": no pattern in it"});
  }
  if (!o.peers.file.empty()) {
    Result<monarch::PeerMembership> peers = monarch::read_membership(o.peers, o.agent.config.peer);
    if (!peers.ok()) return fail(peers.error());
    o.agent.peers = peers.take();
    o.agent.config.agent.stage_again = 0;  // what one node has copied again another one may write
    o.agent.peers_library = monarch::part_of_monarch("libmonarch_peers.so", "lib/monarch", PKGLIBDIR);
  }
  Result<std::vector<std::string>> roots = monarch::check_paths(o.agent.config, o.agent.datasets);
  if (!roots.ok()) return fail(roots.error());
  o.agent.datasets = roots.take();
  for (const std::string& text : o.stores)
    if (!parse_store(text, &o.agent.stores)) return fail({EINVAL, text + ": not TIER:REQUEST_FD:ANSWER_FD"});
  prefer_for_oom();
  return monarch::run_agent(o.agent);
}

// What the user is to be told of an agent that serves, or "".
std::string remark(const Options& o, const monarch::Started& started) {
  if (!started.unserved.empty() || !o.tell) return started.unserved;
  std::string text = started.remark;
  if (!started.alone.empty())
    text += (text.empty() ? "" : "; ") + o.request.job.node +
            " gets no files from the job's other nodes: " + started.alone;
  return !text.empty() && monarch::is_to_be_told(o.request, text) == monarch::Tell::kYes ? text : "";
}

// Tells the plugin in one line: "ready RUN_DIR PRELOAD", with a tab and a text for the user if there is one,
// after another one the percentage and the seconds that the step's tasks are to wait for, and after a third
// one the directory for their PYTHONPATH if they are to give hints, or "off" and the reason, or, if the user
// is to be told, "tell", or "once" in the job's first step, and the reason, or "fail" and the reason, if the
// job is to fail.
int reply(const Options& o, const Result<monarch::Started>& started) {
  const bool fails = !started.ok() && o.request.tasks && monarch::is_required(o.request);
  const auto tell = o.tell && !started.ok() && !fails
                        ? monarch::is_to_be_told(o.request, started.error().text)
                        : monarch::Tell::kNo;
  const std::string said = started.ok() ? remark(o, *started) : "";
  std::string more;
  if (started.ok() && (started->wait_percent > 0 || started->hints))
    more = "\t" + std::to_string(started->wait_percent) + " " + std::to_string(started->wait_seconds);
  if (started.ok() && started->hints) more += "\t" PKGDATADIR "/python";
  const std::string line =
      started.ok() ? "ready " + started->run_dir + " " PKGLIBDIR "/libmonarch_preload.so" +
                         (said.empty() && more.empty() ? "" : "\t") + monarch::escaped(said) + more + "\n"
                   : (fails                                 ? "fail "
                      : tell == monarch::Tell::kYes         ? "tell "
                      : tell == monarch::Tell::kInFirstStep ? "once "
                                                            : "off ") +
                         monarch::escaped(started.error().text) + "\n";
  if (o.reply_fd >= 0 && ::write(o.reply_fd, line.data(), line.size()) < 0) return 1;
  if (started.ok()) {
    if (started->fresh)
      monarch::spdlog::info("JobId={} node={} agent started; {}", o.request.job.job, o.request.job.node,
                            started->peers);
    return 0;
  }
  if (started.error().code == ENOENT && o.request.datasets.empty()) return 0;  // nothing wanted
  if (started.error().code == EALREADY) return 1;                              // it is in the log
  const bool refused = started.error().code == monarch::kRefused;
  monarch::spdlog::log(refused ? monarch::spdlog::Level::kInfo : monarch::spdlog::Level::kError,
                       "JobId={} node={} runs without Monarch: {}", o.request.job.job, o.request.job.node,
                       started.error().text);
  return 1;
}

// Tells the plugin what the job's output ends with, in one line.
int close_job(const Options& o) {
  const Result<monarch::StateDir> state = monarch::StateDir::open(o.request.state_dir);
  if (!state.ok()) return fail(state.error());
  const std::string line = monarch::escaped(monarch::closing_of_job(*state, o.request.job, o.config)) + "\n";
  return ::write(o.reply_fd, line.data(), line.size()) == static_cast<ssize_t>(line.size()) ? 0 : 1;
}

int run_as_root(Options& o) {
  if (::geteuid() != 0)
    return fail({EPERM, "--prolog, --start, --close, --epilog, --flush, --keep and --sweep are for root"});
  monarch::end_without_memory("monarchd", o.start ? "root's helper ends, and the job runs without Monarch"
                                                  : "root's helper ends, and the next one goes on");
  monarch::RootLog log(o.request.state_dir, o.log);
  if (o.keep) return monarch::keep(o.keeper(), &log);
  if (o.sweep) {
    const Status swept = monarch::sweep_at_boot(o.request.state_dir, o.config);
    if (!swept.ok()) monarch::spdlog::error("{}", swept.error().text);
    return swept.ok() ? 0 : 1;
  }
  const Status named = monarch::check_names(o.request.job);
  if (o.close) return named.ok() ? close_job(o) : 1;
  if (o.start) {
    const int status = reply(o, named.ok() ? monarch::start_agent(o.request) : named.error());
    monarch::ensure_keeper(o.keeper());
    return status;
  }
  Status done;
  if (o.prolog) done = named.ok() ? monarch::note_wanted(o.request) : named;
  if (o.epilog && named.ok())  // else it has nothing here
    done = monarch::end_job({o.request.state_dir, o.request.job, o.account, o.config});
  if (o.prolog || o.epilog) monarch::ensure_keeper(o.keeper());
  if (o.flush) {
    const Result<monarch::StateDir> state = monarch::StateDir::open(o.request.state_dir);
    const monarch::SpoolConfig spool = monarch::load_config_or_defaults(o.config).spool;
    done = state.ok() ? monarch::flush(*state, {o.account_instead, o.account}, spool, monarch::Lines::kAll)
                      : Status(state.error());
    if (!done.ok()) monarch::spdlog::error("{}", done.error().text);
    return done.ok() ? 0 : done.error().code == ENODATA ? monarch::kExitNoRow : 1;
  }
  if (done.ok()) return 0;
  monarch::spdlog::error("JobId={} node={}: {}", o.request.job.job, o.request.job.node, done.error().text);
  return 1;
}

bool parse_groups(const std::string& text, std::vector<gid_t>* groups) {
  for (const char* at = text.c_str(); *at;) {
    char* end;
    const unsigned long id = std::strtoul(at, &end, 10);
    if (end == at || (*end != ',' && *end != '\0')) return false;
    groups->push_back(static_cast<gid_t>(id));
    at = *end ? end + 1 : end;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  monarch::end_without_memory("monarchd", "monarchd ends, and the job runs without it");
  ::prctl(PR_SET_NAME, "monarchd");  // the agent is executed by descriptor: it would be "exe" in ps(1)
  monarch::CommandLine app("Monarch's node agent: stages one job's dataset into this node's tiers.",
                           "monarchd", std::string("monarchd ") + PACKAGE_VERSION);
  Options o;
  std::string groups;
  std::vector<std::string> words;
  uint32_t node_id = 0;
  uint64_t memory_mib = 0;
  app.add_option("--config", o.config, "configuration, monarch.conf(5)");
  app.add_option("--set", words, "SECTION.KEY=VALUE, which goes before what the configuration says")
      .takes_one();

  app.add_option("--dataset", o.agent.datasets, "directory of the dataset; may be given several times")
      .takes_one()
      .group("Agent");
  app.add_option("--datasets-file", o.datasets_file,
                 "file with PATH[:PATH...], since a command line is seen by all")
      .group("Agent");
  app.add_option("--exclude-file", o.exclude_file,
                 "file with PATTERN[:PATTERN...] of files that are not staged")
      .group("Agent");
  app.add_option("--grants", o.agent.grants, "file by which root tells quotas").group("Agent");
  app.add_option("--tier", o.tiers, "NAME:PATH:SIZE, added after the configuration's tiers")
      .takes_one()
      .group("Agent");
  app.add_option("--store", o.stores,
                 "TIER:REQUEST_FD:ANSWER_FD, root's store of a tier; with --tier-fd TIER, to be that store")
      .takes_one()
      .group("Agent");
  app.add_option("--run-dir", o.agent.run_dir, "directory for the catalog, the board and the log")
      .group("Agent");
  app.add_option("--job-dir", o.agent.job_dir, "name of the job's directory on each tier").group("Agent");
  app.add_option("--ready-fd", o.agent.ready_fd, "descriptor that is told \"ready\" or an error")
      .group("Agent");
  app.add_option("--lifeline-fd", o.agent.lifeline_fd, "descriptor whose end of file ends the agent")
      .group("Agent");
  app.add_option("--peers", o.peers.file,
                 "file with the job's nodes, a line NAME ADDRESS or ADDRESS:PORT for each, node 0 first")
      .group("Agent");
  app.add_option("--peer-index", o.peers.index, "this node's place in it, from 0").group("Agent");
  app.add_option("--peer-identity", o.peers.identity, "what names the key among the job's agents")
      .group("Agent");
  app.add_option("--peer-key-fd", o.peers.key_fd, "descriptor that has the job's key, 32 bytes")
      .group("Agent");
  app.add_flag("--watched", o.agent.watched, "another agent will go on for this one when it is killed")
      .group("Agent");
  app.add_flag("--resume", o.agent.resume, "go on for an agent that was killed, with what it has left")
      .group("Agent");
  app.add_flag("--leave", o.agent.leave, "remove nothing at the end: the epilog does").group("Agent");

  app.add_option("--tier-fd", o.tier_fd, "descriptor of the job's directory on the tier").group("Store");
  app.add_option("--request-fd", o.request_fd, "descriptor of the pipe by which its agent asks")
      .group("Store");
  app.add_option("--answer-fd", o.answer_fd, "descriptor of the socket by which it is answered")
      .group("Store");

  app.add_flag("--prolog", o.prolog, "note the job's datasets for the extern step").group("Root");
  app.add_flag("--start", o.start, "start the job's agent unless it runs").group("Root");
  app.add_flag("--close", o.close, "tell what the output of the job ends with").group("Root");
  app.add_flag("--epilog", o.epilog, "end the job's agent, clean up, account").group("Root");
  app.add_flag("--flush", o.flush, "write the spooled lines for sacct").group("Root");
  app.add_flag("--keep", o.keep, "watch over what the helpers leave to do, until nothing is left")
      .group("Root");
  app.add_flag("--sweep", o.sweep, "at boot: remove what jobs of earlier boots left on the tiers")
      .group("Root");
  app.add_option("--state-dir", o.request.state_dir, "root's state directory")
      .default_val(RUNSTATEDIR "/monarch")
      .group("Root");
  app.add_option("--job", o.request.job.job, "job id").group("Root");
  app.add_option("--cluster", o.request.job.cluster, "name of the cluster in Slurm")
      .default_val("cluster")
      .group("Root");
  app.add_option("--node", o.request.job.node, "name of this node in Slurm").group("Root");
  app.add_option("--restart", o.request.restart, "how often the job was restarted").group("Root");
  app.add_option("--uid", o.request.user.uid, "the job's user; root's agent becomes that user").group("Root");
  app.add_option("--gid", o.request.user.gid, "the job's group").group("Root");
  app.add_option("--groups", groups, "the user's supplementary groups, by number, with commas").group("Root");
  app.add_option("--datasets", o.request.datasets,
                 "PATH[:PATH...], else those of MONARCH_JOB_DATASETS, else what the prolog noted")
      .group("Root");
  app.add_option("--options", o.request.options,
                 "KEY=VALUE ..., else those of MONARCH_JOB_OPTIONS: what else the job's user asked for")
      .group("Root");
  app.add_option("--nodes", o.request.nodes, "number of the job's nodes").group("Root");
  app.add_option("--node-id", node_id, "this node's number in the job").group("Root");
  app.add_option("--cores", o.request.part.cores, "cores of this node that the job has").group("Root");
  app.add_option("--memory", memory_mib, "memory of this node that the job has, in MiB").group("Root");
  app.add_option("--account-program", o.account, "writes the line for sacct; empty: none").group("Root");
  app.add_option("--log", o.log, "log file of root's helpers, or syslog; default standard error")
      .group("Root");
  app.add_flag("--tell", o.tell, "with --start: this step can tell the user why there is no agent")
      .group("Root");
  app.add_flag("--tasks", o.request.tasks, "with --start: the step has tasks, which can wait").group("Root");
  app.add_flag("--own-mounts", o.request.own_mounts, "with --start: the job has a mount namespace of its own")
      .group("Root");
  app.add_option("--reply-fd", o.reply_fd, "descriptor that is told what --start did, or what --close tells")
      .group("Root");
  if (const std::optional<int> status = app.parse(argc, argv, kUsage)) return *status;

  o.config = monarch::with_words(o.config, words);
  o.request.peers = {monarch::take_told("MONARCH_JOB_KEY"), monarch::take_told("MONARCH_JOB_NODES")};
  const std::string datasets = monarch::take_told("MONARCH_JOB_DATASETS");
  const std::string options = monarch::take_told("MONARCH_JOB_OPTIONS");
  if (o.request.datasets.empty()) o.request.datasets = datasets;
  if (o.request.options.empty()) o.request.options = options;
  o.as_user = app.has("--uid");
  o.request.first_node = node_id == 0;
  o.request.part.memory = std::min(memory_mib, UINT64_MAX >> 20) << 20;
  const char* slurm_conf = std::getenv("SLURM_CONF");
  o.request.of_cluster = {slurm_conf ? slurm_conf : "", o.config, o.account};
  if (app.has("--account-program")) o.account_instead = o.account;
  const bool of_job = o.prolog || o.start || o.close || o.epilog,
             root = of_job || o.flush || o.keep || o.sweep;
  const bool job = o.request.job.job != 0 && monarch::is_plain_name(o.request.job.node) &&
                   monarch::is_plain_name(o.request.job.cluster);
  if (!parse_groups(groups, &o.request.user.groups) || (of_job && !job)) {
    std::fprintf(stderr,
                 "monarchd: --job, --node, --cluster or --groups missing or bad; see monarchd --help\n");
    return kUsage;
  }
  if (app.has("--tier-fd")) {
    if (o.stores.size() == 1 && o.tier_fd >= 0 && o.request_fd >= 0 && o.answer_fd >= 0 && !root)
      return run_as_store(o);
    std::fprintf(stderr, "monarchd: one --store, --request-fd and --answer-fd are needed with --tier-fd\n");
    return kUsage;
  }
  if (!root && ((o.agent.datasets.empty() && o.datasets_file.empty()) || o.agent.run_dir.empty() ||
                o.agent.job_dir.empty())) {
    std::fprintf(
        stderr,
        "monarchd: --dataset or --datasets-file, --run-dir and --job-dir are needed; see monarchd --help\n");
    return kUsage;
  }
  return root ? run_as_root(o) : run_as_agent(o);
}
