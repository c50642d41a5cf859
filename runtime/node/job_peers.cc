// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/job_peers.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <vector>

#include "runtime/base/log.h"

namespace monarch {
namespace {

constexpr size_t kMostBytes = 16 << 20;  // of the list: 65,536 nodes with long names

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

std::string identity_of(const JobOnNode& job, uint32_t restart) {
  return fmt::format("{}.{}.{}", job.cluster, job.job, restart);
}

}  // namespace

std::string take_told(const char* variable) {
  char* value = ::getenv(variable);
  if (!value) return "";
  std::string taken = value;
  ::explicit_bzero(value, taken.size());  // /proc/PID/environ shows that memory
  ::unsetenv(variable);
  return taken;
}

bool has_key(const ToldOfPeers& told) {
  std::array<unsigned char, 32> key;
  return parse_key(told.key, &key);
}

std::optional<AgentPeers> peers_of(const JobRecord& record) {
  AgentPeers peers;
  peers.own = record.peer_index;
  peers.identity = identity_of(record.job, record.restart);
  if (!record.peers || !parse_key(record.notes.peers.key, &peers.key)) return {};
  return peers;
}

PeerSearch::PeerSearch(const PeerConfig& config, ToldOfPeers told, uint32_t nodes, const std::string& program,
                       const std::string& slurm_conf)
    : told_(std::move(told)), begun_(begin(config, nodes, program, slurm_conf)) {}

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
  listing_.emplace(std::vector<std::string>{program, "--nodes", told_.nodes}, slurm_conf);
  return listing_->started();
}

Result<std::string> PeerSearch::listed(int patience_ms, Clock& clock) {
  Result<std::string> text = listing_->output(patience_ms, kMostBytes, clock);
  if (text.ok()) return text;
  switch (text.error().code) {
    case ETIMEDOUT:
      return Error{ETIMEDOUT, "the addresses of the job's nodes could not be had in " +
                                  std::to_string(patience_ms) + " ms"};
    case EFBIG:
      return bad_input("the list of the job's nodes has no end");
    default:
      return Error{ECHILD, "monarch_account --nodes has failed; run it by hand to see why"};
  }
}

Result<AgentPeers> PeerSearch::finish(const JobOnNode& job, uint32_t restart, int patience_ms, Clock& clock) {
  if (!begun_.ok()) return begun_.error();
  const Result<std::string> text = listed(patience_ms, clock);
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
  peers.identity = identity_of(job, restart);
  return peers;
}

}  // namespace monarch
