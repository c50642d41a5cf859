// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/job_memory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <sstream>

#include "runtime/hierarchy/job_room.h"
#include "runtime/node/slurmstepds.h"

namespace monarch {
namespace {

// Where memory is counted; nullptr: nowhere. A controller is in one hierarchy only.
const CgroupHierarchy* memory_hierarchy(const Cgroups& groups) {
  const CgroupHierarchy* unified = nullptr;
  for (const CgroupHierarchy& h : groups.hierarchies()) {
    if (h.has("memory")) return &h;
    if (h.unified) unified = &h;
  }
  return unified;
}

// Up to the part of the path that is the job's; empty: there is none.
std::string job_path(const std::string& path, uint32_t job) {
  const std::string wanted = "/job_" + std::to_string(job);
  for (size_t at = path.find(wanted); at != std::string::npos; at = path.find(wanted, at + 1)) {
    const size_t end = at + wanted.size();
    if (end == path.size() || path[end] == '/') return path.substr(0, end);
  }
  return "";
}

std::string lines_of(int pid) {
  const Result<std::string> lines = read_group_file("/proc/" + std::to_string(pid) + "/cgroup");
  return lines.ok() ? *lines : "";
}

}  // namespace

bool memory_is_counted(const Cgroups& groups) {
  const CgroupHierarchy* h = memory_hierarchy(groups);
  if (!h || !h->unified) return h != nullptr;
  const Result<std::string> controllers = read_group_file(h->mount + "/cgroup.controllers");
  std::istringstream in(controllers.ok() ? *controllers : "");
  return std::find(std::istream_iterator<std::string>(in), {}, "memory") !=
         std::istream_iterator<std::string>();
}

std::string why_not_charged(bool tracked, const Cgroups& groups) {
  if (!tracked) return "Slurm does not track memory; set SelectTypeParameters=CR_Core_Memory in slurm.conf";
  return memory_is_counted(groups) ? "" : "no control groups count memory on this node; mount them";
}

std::string memory_group_of(const Cgroups& groups, uint32_t job, const std::string& lines) {
  const CgroupHierarchy* h = memory_hierarchy(groups);
  std::istringstream in(lines);
  for (std::string line; h && std::getline(in, line);) {  // ID:CONTROLLERS:PATH
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (line.substr(first + 1, second - first - 1) != h->controllers) continue;
    const std::string path = job_path(line.substr(second + 1), job);
    std::string group = h->mount + path;
    struct stat st;
    if (path.empty() || ::lstat(group.c_str(), &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != 0) continue;
    if (::access(memory_usage_file(group).c_str(), F_OK) == 0) return group;
  }
  return "";
}

std::string find_memory_group(uint32_t job) {
  const Result<std::vector<Slurmstepd>> all = slurmstepds();
  if (!all.ok()) return "";
  const Cgroups groups;
  std::string found;
  for (const Slurmstepd& stepd : *all) {
    if (stepd.job != job) continue;
    std::vector<int> pids = children(stepd.pid);
    pids.push_back(stepd.pid);
    for (const int pid : pids) {
      const std::string group = memory_group_of(groups, job, lines_of(pid));
      if (!group.empty() && !found.empty() && group != found) return "";
      if (!group.empty()) found = group;
    }
  }
  return found;
}

}  // namespace monarch
