// SPDX-License-Identifier: Apache-2.0
#include "admin/slurm_ids.h"

#include <algorithm>
#include <sstream>

#include "admin/bounded.h"

namespace monarch::admin {
namespace {

constexpr int kPartsPatienceMs = 2000, kSacctPatienceMs = 10000;

// As ask_sacct().
Result<std::string> ask(std::vector<std::string> words, const std::string& name, int patience_ms) {
  const size_t at = name.find('@');
  words.insert(words.end(), {"-j", name.substr(0, at)});
  if (at != std::string::npos) words.insert(words.end(), {"-M", name.substr(at + 1)});
  Question asked([&] {
    int status;
    const std::string said = run_program(words, &status);
    if (status == 127 << 8) return "!there is no " + words[0] + " here";
    return (status == 0 ? "=" : "!") + said;
  });
  return asked.answer(patience_ms);
}

bool knows(const Result<std::string>& answer) {
  return answer.ok() && answer->starts_with("=") && answer->size() > 1;
}

// Of lines NAME|NUMBER those whose name is a part's of that job.
std::vector<JobPart> parts_in(const Result<std::string>& answer, const std::string& job) {
  std::vector<JobPart> parts;
  if (!knows(answer)) return parts;
  std::istringstream in(answer->substr(1));
  for (std::string line; std::getline(in, line);) {
    const size_t end = line.find('|');
    const std::string name = line.substr(0, end), number = end < line.size() ? line.substr(end + 1) : "";
    const bool is_part = name.find_first_of("_+") != std::string::npos && name.starts_with(job) &&
                         (name.size() == job.size() || name[job.size()] == '_' || name[job.size()] == '+');
    if (is_part && !number.empty() && number.find_first_not_of("0123456789") == std::string::npos)
      parts.push_back({name, number});
  }
  return parts;
}

}  // namespace

Result<std::string> ask_sacct(const std::string& name, const char* fields) {
  return ask({"sacct", "-nPX", "-o", fields}, name, kSacctPatienceMs);
}

std::vector<JobPart> parts_of(const std::string& name) {
  const std::string job = name.substr(0, name.find('@'));
  Result<std::string> answer = ask({"squeue", "-hr", "-t", "all", "-o", "%i|%A"}, name, kPartsPatienceMs);
  if (!knows(answer)) answer = ask({"sacct", "-nPX", "-o", "JobID,JobIDRaw"}, name, kPartsPatienceMs);
  return parts_in(answer, job);
}

std::string names_of(const std::vector<JobPart>& parts) {
  constexpr size_t kMost = 16;
  std::string names;
  for (size_t i = 0; i < std::min(kMost, parts.size()); ++i) names += (i ? ", " : "") + parts[i].name;
  return names + (parts.size() > kMost ? " ..." : "");
}

std::string by_own_number(const std::string& name) {
  const size_t at = std::min(name.find('@'), name.size());
  const std::string own = name.substr(0, at);
  if (own.find_first_of("_+") == std::string::npos) return name;
  for (const JobPart& part : parts_of(name))
    if (part.name == own) return part.number + name.substr(at);
  return name;
}

}  // namespace monarch::admin
