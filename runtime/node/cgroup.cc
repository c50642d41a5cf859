// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/cgroup.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <sstream>
#include <utility>

#include "runtime/base/fd.h"
#include "runtime/base/mountinfo.h"

namespace monarch {
namespace {

constexpr char kParent[] = "/monarch";
constexpr int kMakeAttempts = 10;  // who leaves the last group removes the parent, too
constexpr useconds_t kPollUs = 2000;

int64_t now_ms() {
  timespec t;
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1000 + t.tv_nsec / 1000000;
}

std::string parent(const CgroupHierarchy& h) { return h.mount + kParent; }
std::string group(const CgroupHierarchy& h, const std::string& name) { return parent(h) + "/" + name; }

// One write(2): the kernel takes the text as a whole.
bool put(const std::string& path, const std::string& text) {
  const Fd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  return fd && ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

std::set<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  return {std::istream_iterator<std::string>(in), {}};
}

// The value of "NAME:\tVALUE" in /proc/self/status.
std::string own_status(const std::string& name) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.rfind(name + ":\t", 0) == 0) return line.substr(name.size() + 2);
  return "";
}

// What is not a controller among the options of a mounted hierarchy of version 1.
bool is_mount_option(const std::string& word) {
  static const std::set<std::string> kOptions = {
      "rw", "ro", "noprefix", "clone_children", "xattr", "cpuset_v2_mode", "favordynmods"};
  return kOptions.count(word) || word.rfind("release_agent=", 0) == 0;
}

std::string controllers_in(const std::string& options) {
  std::istringstream in(options);
  std::string all;
  for (std::string word; std::getline(in, word, ',');)
    if (!is_mount_option(word)) all += (all.empty() ? "" : ",") + word;
  return all;
}

// A process in a cpuset of version 1 needs both, and a new one has neither.
void share_cpuset(const std::string& from, const std::string& to) {
  for (const char* file : {"/cpuset.cpus", "/cpuset.mems"})
    if (first_line(to + file).empty()) put(to + file, first_line(from + file));
}

// Controllers are given to the groups only as far as the root gives them to its own, which is its manager's
// decision. Version 1 has no such files.
void delegate(const CgroupHierarchy& h) {
  const std::set<std::string> given = words_of(first_line(parent(h) + "/cgroup.subtree_control"));
  const std::set<std::string> there = words_of(first_line(parent(h) + "/cgroup.controllers"));
  for (const char* controller : {"memory", "cpuset"})
    if (there.count(controller) && !given.count(controller))
      put(parent(h) + "/cgroup.subtree_control", std::string("+") + controller);
}

void limit(const CgroupHierarchy& h, const std::string& dir, uint64_t memory) {
  if (h.unified || h.has("cpuset")) {
    put(dir + "/cpuset.cpus", own_status("Cpus_allowed_list"));
    put(dir + "/cpuset.mems", own_status("Mems_allowed_list"));
  }
  const std::string most = memory ? std::to_string(memory) : h.unified ? "max" : "-1";
  put(dir + (h.unified ? "/memory.max" : "/memory.limit_in_bytes"), most);  // where there is such a file
}

Status make_in(const CgroupHierarchy& h, const std::string& name, uint64_t memory) {
  const std::string dir = group(h, name);
  for (int attempt = 0;; ++attempt) {
    if (::mkdir(parent(h).c_str(), 0755) != 0 && errno != EEXIST) return errno_error("make " + parent(h));
    if (h.has("cpuset")) share_cpuset(h.mount, parent(h));
    delegate(h);
    if (::mkdir(dir.c_str(), 0755) == 0 || errno == EEXIST) break;
    if (errno != ENOENT || attempt == kMakeAttempts) return errno_error("make " + dir);
  }
  if (h.has("cpuset")) share_cpuset(parent(h), dir);
  limit(h, dir, memory);
  return {};
}

std::vector<int> processes_in(const std::string& dir) {
  std::ifstream in(dir + "/cgroup.procs");
  std::vector<int> pids;
  for (int pid; in >> pid;)
    if (pid > 0) pids.push_back(pid);  // 0: of a namespace that is not seen from here
  return pids;
}

bool is_in_group(int pid, const std::string& name) {
  const std::string tail = std::string(kParent) + "/" + name;
  std::ifstream in("/proc/" + std::to_string(pid) + "/cgroup");
  for (std::string line; std::getline(in, line);)
    if (line.size() >= tail.size() && line.compare(line.size() - tail.size(), tail.size(), tail) == 0)
      return true;
  return false;
}

// The descriptor pins the process: what is looked at afterwards is what is killed.
void kill_member(int pid, const std::string& name) {
  const Fd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!is_in_group(pid, name)) return;
  if (!fd || ::syscall(SYS_pidfd_send_signal, fd.get(), SIGKILL, nullptr, 0) != 0) ::kill(pid, SIGKILL);
}

// Frozen, they cannot fork meanwhile; of version 1, they die when they thaw.
void kill_all_in(const CgroupHierarchy& h, const std::string& name) {
  const std::string dir = group(h, name);
  if (h.unified && put(dir + "/cgroup.kill", "1")) return;  // from Linux 5.14 on
  const std::string freezer = dir + (h.unified ? "/cgroup.freeze" : "/freezer.state");
  const bool can_freeze = h.unified || h.has("freezer");
  if (can_freeze) put(freezer, h.unified ? "1" : "FROZEN");
  for (const int pid : processes_in(dir)) kill_member(pid, name);
  if (can_freeze) put(freezer, h.unified ? "0" : "THAWED");
}

// An empty parent goes with its last group; while there are others this is refused.
bool remove_from(const CgroupHierarchy& h, const std::string& name) {
  const bool gone = ::rmdir(group(h, name).c_str()) == 0 || errno == ENOENT || errno == ENOTDIR;
  if (gone) (void)::rmdir(parent(h).c_str());
  return gone;
}

// The directory of the group that the process of this file of /proc is in; "": it is not below the mount. The
// path of one outside of a control group namespace begins with "/..".
std::string group_in(const std::string& file, const CgroupHierarchy& h) {
  const std::string before = ":" + h.controllers + ":";
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {  // ID:CONTROLLERS:PATH
    const size_t at = std::min(line.find(':'), line.size());
    if (line.compare(at, before.size(), before) != 0 || line.find("/..") != std::string::npos) continue;
    return h.mount + line.substr(at + before.size());
  }
  return "";
}

// "make /sys/fs/cgroup/x/monarch: Read-only file system (and in 3 more)"
Status summary(const std::vector<Error>& errors) {
  if (errors.empty()) return {};
  Error all = errors.front();
  if (errors.size() > 1) all.text += " (and in " + std::to_string(errors.size() - 1) + " more)";
  return all;
}

}  // namespace

bool CgroupHierarchy::has(const std::string& controller) const {
  return !unified && ("," + controllers + ",").find("," + controller + ",") != std::string::npos;
}

Cgroups::Cgroups(const std::string& mountinfo, std::string of_first) : of_first_(std::move(of_first)) {
  std::ifstream in(mountinfo);
  for (std::string line; std::getline(in, line);) {
    MountLine m;
    if (!parse_mount_line(line, &m) || (m.type != "cgroup" && m.type != "cgroup2") || m.root != "/") continue;
    CgroupHierarchy h{m.point, m.type == "cgroup2",
                      m.type == "cgroup" ? controllers_in(m.super_options) : ""};
    const bool known = std::any_of(hierarchies_.begin(), hierarchies_.end(), [&](const CgroupHierarchy& o) {
      return o.unified == h.unified && o.controllers == h.controllers;
    });
    if (!known) hierarchies_.push_back(std::move(h));
  }
}

Status Cgroups::make(const std::string& name, uint64_t memory) const {
  if (hierarchies_.empty()) return Error{ENOENT, "no control groups are mounted"};
  std::vector<Error> errors;
  for (const CgroupHierarchy& h : hierarchies_)
    if (const Status s = make_in(h, name, memory); !s.ok()) errors.push_back(s.error());
  return summary(errors);
}

Status Cgroups::enter(const std::string& name) const {
  cpu_set_t own;
  CPU_ZERO(&own);  // which is refused below, should it not be told
  (void)::sched_getaffinity(0, sizeof own, &own);
  std::vector<Error> errors;
  for (const CgroupHierarchy& h : hierarchies_)
    if (!put(group(h, name) + "/cgroup.procs", "0")) errors.push_back(errno_error("enter " + group(h, name)));
  (void)::sched_setaffinity(0, sizeof own, &own);  // a cpuset's processors replaced it
  return summary(errors);
}

void Cgroups::move(int process, const std::string& name) const {
  for (const CgroupHierarchy& h : hierarchies_)
    put(group(h, name) + "/cgroup.procs", std::to_string(process));
}

bool Cgroups::end(const std::string& name, int patience_ms) const {
  for (const int64_t until = now_ms() + patience_ms;;) {
    bool gone = true;
    for (const CgroupHierarchy& h : hierarchies_) {
      if (remove_from(h, name)) continue;
      kill_all_in(h, name);
      gone = remove_from(h, name) && gone;
    }
    if (gone || now_ms() >= until) return gone;
    ::usleep(kPollUs);
  }
}

void Cgroups::leave(const std::string& name) const {
  for (const CgroupHierarchy& h : hierarchies_) {
    if (::access(group(h, name).c_str(), F_OK) != 0) continue;
    // A container's root takes no process once it has given controllers to its groups.
    if (!put(h.mount + "/cgroup.procs", "0")) put(group_in(of_first_, h) + "/cgroup.procs", "0");
    remove_from(h, name);
  }
}

void Cgroups::remove_if_empty(const std::string& name) const {
  for (const CgroupHierarchy& h : hierarchies_) remove_from(h, name);
}

std::vector<std::string> Cgroups::names(const std::string& prefix) const {
  std::set<std::string> found;
  for (const CgroupHierarchy& h : hierarchies_) {
    const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(parent(h).c_str()), &::closedir);
    while (const dirent* e = dir ? ::readdir(dir.get()) : nullptr)
      if (e->d_type == DT_DIR && e->d_name[0] != '.' && std::string(e->d_name).rfind(prefix, 0) == 0)
        found.insert(e->d_name);
  }
  return {found.begin(), found.end()};
}

std::vector<int> Cgroups::processes(const std::string& name) const {
  std::set<int> all;
  for (const CgroupHierarchy& h : hierarchies_)
    for (const int pid : processes_in(group(h, name))) all.insert(pid);
  return {all.begin(), all.end()};
}

}  // namespace monarch
