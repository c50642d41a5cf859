// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/job_facts.h"

#include <grp.h>
#include <pwd.h>

#include <algorithm>
#include <cerrno>
#include <sstream>

#include "runtime/base/log.h"
#include "runtime/base/patience.h"

namespace monarch {
namespace {

constexpr size_t kMostBytes = 65536;

// Of getpwuid_r(3) and kin: these, too, mean that there is none.
bool is_answer(int error) {
  return error == 0 || error == ENOENT || error == ESRCH || error == EBADF || error == EPERM;
}

bool is_group_of(const User& user, gid_t gid) {
  return gid == user.gid || std::find(user.groups.begin(), user.groups.end(), gid) != user.groups.end();
}

// A line for the name, and one for each of the groups that is the user's; "": nobody answers.
std::string look_up(const User& user, const std::vector<std::string>& groups) {
  std::vector<char> room(1 << 20);  // a group may have many members
  passwd entry{}, *found = nullptr;
  if (!is_answer(::getpwuid_r(user.uid, &entry, room.data(), room.size(), &found))) return "";
  std::string text = found ? found->pw_name : "";
  text += "\n";
  for (const std::string& name : groups) {
    group one{}, *is = nullptr;
    if (!is_answer(::getgrnam_r(name.c_str(), &one, room.data(), room.size(), &is))) return "";
    if (is && is_group_of(user, is->gr_gid)) text += name + "\n";
  }
  return text;
}

void add_names(const PolicyKeys::List& list, std::vector<std::string>* names) {
  if (!list) return;
  for (const std::string& word : *list)
    if (!is_number(word) && std::find(names->begin(), names->end(), word) == names->end())
      names->push_back(word);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace

bool is_number(const std::string& word) {
  return !word.empty() && word.find_first_not_of("0123456789") == std::string::npos;
}

JobQuestion::JobQuestion(const StateDir& state, const JobOnNode& job, const std::string& run,
                         const User& user, const Config& config, const OfCluster& cluster)
    : state_(state), job_(job), run_(run), end_ms_(state.clock().now_ms() + patience::kHookWaitMs) {
  facts_.user = user;
  std::vector<std::string> users, groups;
  for (const PolicySection& section : config.policies) {
    facts_.asked |= section.of != PolicySection::Of::kAll;
    add_names(section.keys.allow_users, &users);
    add_names(section.keys.deny_users, &users);
    add_names(section.keys.allow_groups, &groups);
    add_names(section.keys.deny_groups, &groups);
  }
  if (!users.empty() || !groups.empty())
    names_.emplace([&](int tell) { return say(tell, look_up(user, groups)); });
  if (!facts_.asked) return;
  const std::string noted = state.read_notes(job.key()).facts;
  if (noted.starts_with(run_) && take(noted.substr(run_.size()))) return;
  if (!cluster.account_program.empty())
    program_.emplace(std::vector<std::string>{cluster.account_program, "--facts", "--job",
                                              std::to_string(job.job), "--uid", std::to_string(user.uid)},
                     cluster.slurm_conf);
}

// Three lines: partition, account, QOS.
bool JobQuestion::take(const std::string& text) {
  const std::vector<std::string> lines = lines_of(text);
  if (lines.size() != 3) return false;
  facts_.known = true;
  facts_.partition = lines[0];
  facts_.account = lines[1];
  facts_.qos = lines[2];
  return true;
}

void JobQuestion::take_names(const std::string& text) {
  const std::vector<std::string> lines = lines_of(text);
  if (lines.empty()) return;
  facts_.named = true;
  facts_.user_name = lines.front();
  facts_.groups.assign(lines.begin() + 1, lines.end());
}

const JobFacts& JobQuestion::answer() {
  const auto left = [this] {
    return static_cast<int>(std::max<int64_t>(0, end_ms_ - state_.clock().now_ms()));
  };
  if (answered_) return facts_;
  answered_ = true;
  if (program_) {
    const Result<std::string> said = program_->output(left(), kMostBytes, state_.clock());
    is_new_ = said.ok() && take(*said);
    if (!is_new_)
      spdlog::warn(
          "JobId={} its partition, account and QOS are not known: [policy] holds for it alone; "
          "monarch_account "
          "--facts: {}",
          job_.job, said.ok() ? "prints something else" : said.error().text);
    program_.reset();
  } else if (facts_.asked && !facts_.known) {
    spdlog::warn(
        "JobId={} there is no --account-program to ask for its partition, account and QOS: [policy] "
        "holds for it alone",
        job_.job);
  }
  if (names_)
    if (const Result<std::string> said = names_->output(left(), kMostBytes, state_.clock()); said.ok())
      take_names(*said);
  if (names_ && !facts_.named)
    spdlog::warn("JobId={} the names of user {} and its groups are not known", job_.job, facts_.user.uid);
  names_.reset();
  return facts_;
}

void JobQuestion::note(JobNotes* notes) const {
  if (is_new_) notes->facts = run_ + facts_.partition + "\n" + facts_.account + "\n" + facts_.qos + "\n";
}

}  // namespace monarch
