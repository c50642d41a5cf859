// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/cgroup.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "runtime/base/fd.h"
#include "runtime/base/mountinfo.h"
#include "runtime/base/patience.h"
#include "runtime/node/await.h"

namespace monarch {
namespace {

constexpr char kParent[] = "/monarch";

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

bool is_there(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

bool is_unlisted(const std::string& dir) {
  struct stat st;
  return ::stat(dir.c_str(), &st) == 0 && (st.st_mode & 0044) == 0;
}

// Who can list a directory can keep it locked in the kernel, and who makes or removes something in it waits
// for that, and cannot be killed. Returns 0 or an errno.
int make_unlisted(const std::string& dir) {
  if (::mkdir(dir.c_str(), 0711) != 0 && errno != EEXIST) return errno;
  return ::chmod(dir.c_str(), 0711) == 0 || errno == ENOENT ? 0 : errno;  // whatever the umask
}

Error cannot_make(const std::string& dir, int error) {
  errno = error;
  return errno_error("make " + dir);
}

// To a hierarchy's root. A container's takes no process once it has given controllers to its groups.
struct WayOut {
  WayOut(const CgroupHierarchy& h, const std::string& of_first)
      : root(::open((h.mount + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC)),
        first(::open((group_in(of_first, h) + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC)) {}
  void move(const std::string& process) const {
    const auto size = static_cast<ssize_t>(process.size());
    if (::write(root.get(), process.data(), process.size()) != size)
      (void)!::write(first.get(), process.data(), process.size());
  }
  Fd root, first;
};

// In a child: users can list the hierarchy's root, so this may hang. It has nothing open then but the root,
// and is the only one: others wait for its lock, and can be killed.
[[noreturn]] void make_parent(const CgroupHierarchy& h) {
  ::syscall(SYS_close_range, 0u, ~0u, 0u);
  const int root = ::open(h.mount.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (root < 0 || ::flock(root, LOCK_EX) != 0) ::_exit(errno);
  ::_exit(is_unlisted(parent(h)) ? 0 : make_unlisted(parent(h)));
}

// The errno that it ends with. One that is late is killed; one that hangs is left to init, outside of the
// groups that the caller is in.
int wait_for_parent(Clock& clock, const std::vector<WayOut>& ways_out, pid_t child, int64_t until_ms) {
  if (child < 0) return EAGAIN;
  if (const std::optional<int> status = await_child(clock, child, until_ms))
    return WIFEXITED(*status) ? WEXITSTATUS(*status) : EINTR;
  if (!kill_child(clock, child))
    for (const WayOut& way : ways_out) way.move(std::to_string(child));
  return ETIMEDOUT;
}

// By mount, why there is none.
std::map<std::string, int> make_parents(const std::vector<CgroupHierarchy>& hierarchies,
                                        const std::string& of_first, Clock& clock) {
  std::vector<std::string> missing;
  for (const CgroupHierarchy& h : hierarchies)
    if (!is_unlisted(parent(h))) missing.push_back(h.mount);
  if (missing.empty()) return {};
  std::vector<WayOut> ways_out;  // opened before: who looks for a name in what is locked may wait, too
  for (const CgroupHierarchy& h : hierarchies) ways_out.emplace_back(h, of_first);
  std::map<std::string, pid_t> children;
  for (const CgroupHierarchy& h : hierarchies) {
    if (std::find(missing.begin(), missing.end(), h.mount) == missing.end()) continue;
    const pid_t child = ::fork();
    if (child == 0) make_parent(h);
    children[h.mount] = child;
  }
  std::map<std::string, int> failed;
  const int64_t until_ms = clock.now_ms() + patience::kBriefMs;
  for (const auto& [mount, child] : children)
    if (const int error = wait_for_parent(clock, ways_out, child, until_ms); error != 0)
      failed[mount] = error;
  return failed;
}

Status make_in(const CgroupHierarchy& h, const std::string& name, uint64_t memory) {
  const std::string dir = group(h, name);
  if (h.has("cpuset")) share_cpuset(h.mount, parent(h));
  delegate(h);
  if (!is_there(dir))
    if (const int error = make_unlisted(dir); error != 0) return cannot_make(dir, error);
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

// The descriptor pins the process: what is looked at afterwards is what is killed.
void kill_member(int pid, const CgroupHierarchy& h, const std::string& dir) {
  const Fd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (group_in("/proc/" + std::to_string(pid) + "/cgroup", h) != dir) return;
  if (fd) ::syscall(SYS_pidfd_send_signal, fd.get(), SIGKILL, nullptr, 0);
}

// In version 1 they are frozen, so that they cannot fork meanwhile, and die when they thaw.
void kill_all_in(const CgroupHierarchy& h, const std::string& name) {
  const std::string dir = group(h, name);
  if (h.unified) {
    put(dir + "/cgroup.kill", "1");
    return;
  }
  const bool can_freeze = h.has("freezer");
  if (can_freeze) put(dir + "/freezer.state", "FROZEN");
  for (const int pid : processes_in(dir)) kill_member(pid, h, dir);
  if (can_freeze) put(dir + "/freezer.state", "THAWED");
}

// Its parent stays: who makes it anew may have to wait for whoever keeps the hierarchy's root locked.
bool remove_from(const CgroupHierarchy& h, const std::string& name) {
  const std::string dir = group(h, name);
  return !is_there(dir) || ::rmdir(dir.c_str()) == 0 || errno == ENOENT;
}

// "make /sys/fs/cgroup/x/monarch: Read-only file system (and in 3 more)"
Status summary(const std::vector<Error>& errors) {
  if (errors.empty()) return {};
  Error all = errors.front();
  if (errors.size() > 1) all.text += " (and in " + std::to_string(errors.size() - 1) + " more)";
  return all;
}

}  // namespace

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

bool CgroupHierarchy::has(const std::string& controller) const {
  return !unified && ("," + controllers + ",").find("," + controller + ",") != std::string::npos;
}

Cgroups::Cgroups(const std::string& mountinfo, std::string of_first, Clock& clock)
    : of_first_(std::move(of_first)), clock_(&clock) {
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

void Cgroups::prepare() const { (void)make_parents(hierarchies_, of_first_, *clock_); }

Status Cgroups::make(const std::string& name, uint64_t memory) const {
  if (hierarchies_.empty()) return Error{ENOENT, "no control groups are mounted"};
  std::vector<Error> errors;
  const std::map<std::string, int> failed = make_parents(hierarchies_, of_first_, *clock_);
  for (const CgroupHierarchy& h : hierarchies_) {
    const auto without = failed.find(h.mount);
    const Status s =
        without == failed.end() ? make_in(h, name, memory) : cannot_make(parent(h), without->second);
    if (!s.ok()) errors.push_back(s.error());
  }
  return summary(errors);
}

Status Cgroups::enter(const std::string& name, int process) const {
  cpu_set_t own;
  CPU_ZERO(&own);  // which is refused below, should it not be told
  (void)::sched_getaffinity(process, sizeof own, &own);
  std::vector<Error> errors;
  for (const CgroupHierarchy& h : hierarchies_)
    if (!put(group(h, name) + "/cgroup.procs", std::to_string(process)))
      errors.push_back(errno_error("enter " + group(h, name)));
  (void)::sched_setaffinity(process, sizeof own, &own);  // a cpuset's processors replaced it
  return summary(errors);
}

void Cgroups::kill(const std::string& name) const {
  for (const CgroupHierarchy& h : hierarchies_) kill_all_in(h, name);
}

bool Cgroups::end(const std::string& name, int patience_ms) const {
  return poll_until(*clock_, clock_->now_ms() + patience_ms, [&] {
    for (const CgroupHierarchy& h : hierarchies_)
      if (is_there(group(h, name))) kill_all_in(h, name);
    bool gone = true;
    for (const CgroupHierarchy& h : hierarchies_) gone = remove_from(h, name) && gone;
    return gone;
  });
}

void Cgroups::leave(const std::string& name) const {
  for (const CgroupHierarchy& h : hierarchies_) {
    if (::access(group(h, name).c_str(), F_OK) != 0) continue;
    WayOut(h, of_first_).move("0");
    remove_from(h, name);
  }
}

void Cgroups::remove_if_empty(const std::string& name) const {
  for (const CgroupHierarchy& h : hierarchies_) remove_from(h, name);
}

bool Cgroups::exists(const std::string& name) const {
  return std::any_of(hierarchies_.begin(), hierarchies_.end(),
                     [&](const CgroupHierarchy& h) { return is_there(group(h, name)); });
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
