// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/job_peers.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <vector>

#include "runtime/base/argv.h"
#include "runtime/base/os.h"

namespace monarch {
namespace {

constexpr size_t kMostBytes = 16 << 20;  // of the list: 65,536 nodes with long names

int64_t now_ms() { return os::clock_ns(CLOCK_MONOTONIC) / 1000000; }

std::string take(const char* name) {
  char* value = ::getenv(name);
  if (!value) return "";
  std::string taken = value;
  ::explicit_bzero(value, taken.size());  // /proc/PID/environ shows that memory
  ::unsetenv(name);
  return taken;
}

int digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

bool parse_key(const std::string& text, std::array<unsigned char, 32>* key) {
  if (text.size() != 2 * key->size()) return false;
  for (size_t i = 0; i < key->size(); ++i) {
    const int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    (*key)[i] = static_cast<unsigned char>(high << 4 | low);
  }
  return true;
}

bool has_key(const ToldOfPeers& told) {
  std::array<unsigned char, 32> key;
  return parse_key(told.key, &key);
}

std::string note_of(const JobOnNode& job) { return "jobs/" + job.key() + "/peers"; }

// AF_INET or AF_INET6; 0: it is no numeric address.
int family_of(const std::string& address) {
  unsigned char bytes[sizeof(in6_addr)];
  for (const int family : {AF_INET, AF_INET6})
    if (::inet_pton(family, address.c_str(), bytes) == 1) return family;
  return 0;
}

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

struct Line {
  std::string name, address;  // "-": it is not known
};

Result<std::vector<Line>> parse_lines(const std::string& text) {
  std::vector<Line> lines;
  std::istringstream in(text);
  for (std::string whole; std::getline(in, whole);) {
    const size_t blank = whole.find(' ');
    Line line;
    line.name = whole.substr(0, blank);
    if (blank != std::string::npos) line.address = whole.substr(blank + 1);
    if (!is_plain_name(line.name) || (line.address != "-" && family_of(line.address) == 0))
      return bad_input("the list of the job's nodes cannot be read");
    lines.push_back(std::move(line));
  }
  return lines;
}

// A machine's own name is often one of its loopback in /etc/hosts, where no other can reach it.
void listen_for_others(std::vector<Line>* lines, size_t own) {
  Line& mine = (*lines)[own];
  if (!is_loopback(mine.address)) return;
  for (const Line& other : *lines)
    if (other.address != "-" && !is_loopback(other.address))
      mine.address = family_of(other.address) == AF_INET ? "0.0.0.0" : "::";
}

}  // namespace

ToldOfPeers take_told_of_peers() { return {take("MONARCH_JOB_KEY"), take("MONARCH_JOB_NODES")}; }

Status note_peers(const StateDir& state, const JobOnNode& job, const ToldOfPeers& told) {
  if (has_key(told)) return state.write(note_of(job), told.key + "\n" + told.nodes);
  ::unlink((state.path() + "/" + note_of(job)).c_str());  // of an earlier run
  return {};
}

ToldOfPeers noted_peers(const StateDir& state, const JobOnNode& job, const ToldOfPeers& told) {
  const Result<std::string> note = state.read(note_of(job));
  if (!note.ok()) return told;
  const size_t end = std::min(note->find('\n'), note->size());
  return {note->substr(0, end), note->substr(std::min(end + 1, note->size()))};
}

PeerSearch::PeerSearch(const PeerConfig& config, ToldOfPeers told, uint32_t nodes, const std::string& program,
                       const std::string& slurm_conf)
    : told_(std::move(told)), begun_(begin(config, nodes, program, slurm_conf)) {}

PeerSearch::~PeerSearch() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

Status PeerSearch::begin(const PeerConfig& config, uint32_t nodes, const std::string& program,
                         const std::string& slurm_conf) {
  if (!config.enabled) return bad_input("[peer] enabled = off");
  const bool one = told_.nodes.empty() ? nodes <= 1 : told_.nodes.find_first_of("[,") == std::string::npos;
  if (one) return bad_input("the job has one node");
  wanted_ = true;
  if (!has_key(told_))
    return bad_input("no key has come with the job; give --monarch-dataset when the job is submitted");
  if (told_.nodes.empty()) return bad_input("Slurm has not told which nodes the job has");
  if (program.empty()) return bad_input("there is no --account-program to list the job's nodes");
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno_error("pipe");
  output_ = Fd(ends[0]);
  const Fd out(ends[1]);
  std::vector<std::string> words = {program, "--nodes", told_.nodes};
  std::vector<std::string> variables = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin"};
  if (!slurm_conf.empty()) variables.push_back("SLURM_CONF=" + slurm_conf);
  const std::vector<char*> argv = argv_of(words), env = argv_of(variables);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, out.get(), 1);
  pid_t pid = -1;
  const int failed = ::posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), env.data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return errno_error("run " + program, failed);
  pid_ = pid;
  return {};
}

// What the program prints, if it ends well in time.
Result<std::string> PeerSearch::listed(int patience_ms) {
  const int64_t end = now_ms() + patience_ms;
  std::string text;
  for (;;) {
    const int64_t left = end - now_ms();
    pollfd p = {output_.get(), POLLIN, 0};
    if (left <= 0)
      return Error{ETIMEDOUT, "the addresses of the job's nodes could not be had in " +
                                  std::to_string(patience_ms) + " ms"};
    if (::poll(&p, 1, static_cast<int>(left)) <= 0) continue;
    char buffer[65536];
    const ssize_t n = ::read(output_.get(), buffer, sizeof buffer);
    if (n <= 0 || text.size() > kMostBytes) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  if (text.size() > kMostBytes) return bad_input("the list of the job's nodes has no end");
  int status = 0;
  pid_t ended = 0;
  while ((ended = ::waitpid(pid_, &status, WNOHANG)) == 0 && now_ms() < end) ::usleep(500);
  if (ended != 0) pid_ = -1;
  if (ended <= 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return Error{ECHILD, "monarch_account --nodes has failed; run it by hand to see why"};
  return text;
}

Result<AgentPeers> PeerSearch::finish(const JobOnNode& job, uint32_t restart, int patience_ms) {
  if (!begun_.ok()) return begun_.error();
  const Result<std::string> text = listed(patience_ms);
  if (!text.ok()) return text.error();
  Result<std::vector<Line>> lines = parse_lines(*text);
  if (!lines.ok()) return lines.error();
  const auto own =
      std::find_if(lines->begin(), lines->end(), [&](const Line& line) { return line.name == job.node; });
  if (own == lines->end()) return bad_input("this node is not on the list of the job's nodes");
  if (own->address == "-") return bad_input("this node has no address");
  if (lines->size() < 2) return bad_input("the job has one node");
  AgentPeers peers;
  peers.count = static_cast<uint32_t>(lines->size());
  peers.own = static_cast<uint32_t>(own - lines->begin());
  listen_for_others(&*lines, peers.own);
  for (const Line& line : *lines) peers.nodes += line.name + " " + line.address + "\n";
  (void)parse_key(told_.key, &peers.key);  // begin() has
  peers.identity = job.cluster + "." + std::to_string(job.job) + "." + std::to_string(restart);
  return peers;
}

}  // namespace monarch
