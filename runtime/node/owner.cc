// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/owner.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/number.h"
#include "runtime/base/patience.h"
#include "runtime/node/await.h"

namespace monarch {
namespace {

constexpr size_t kMostRanges = 64;  // the kernel takes 340, and no more than a page of text
constexpr int kWorkFd = 3, kTellFd = 4;

enum class Names { kUserNamespace, kPlain };

struct Range {
  uint64_t first = 0, end = 0;
};

// NAME:FIRST:COUNT
bool parse_range(const std::string& line, const std::string& user, uint32_t uid, Range* range) {
  const size_t a = line.find(':'), b = a == std::string::npos ? a : line.find(':', a + 1);
  if (b == std::string::npos) return false;
  const std::string who = line.substr(0, a);
  if ((who != user || user.empty()) && who != std::to_string(uid)) return false;
  const auto first = to_number<uint64_t>(line.substr(a + 1, b - a - 1));
  const auto count = to_number<uint64_t>(line.substr(b + 1));
  if (!first || !count) return false;
  constexpr uint64_t kEnd = 0xffffffff;  // that id is none
  range->first = std::clamp<uint64_t>(*first, 1, kEnd);
  range->end = std::min(kEnd, range->first + std::min(*count, kEnd));
  return true;
}

std::string name_of(uid_t uid) {
  std::vector<char> room(1 << 16);
  passwd entry{}, *found = nullptr;
  return ::getpwuid_r(uid, &entry, room.data(), room.size(), &found) == 0 && found ? found->pw_name : "";
}

// A line of /proc/PID/gid_map for each range: every group that there is here. Whoever may become a file's
// owner has all rights on it, whatever group it got from a directory above.
std::string all_groups() {
  std::ifstream here("/proc/self/gid_map");
  std::string map;
  for (uint64_t first, outside, count; here >> first >> outside >> count;)
    map += std::to_string(first) + " " + std::to_string(first) + " " + std::to_string(count) + "\n";
  return map;
}

bool write_map(pid_t pid, const char* file, const std::string& map) {
  const Fd fd(::open(("/proc/" + std::to_string(pid) + "/" + file).c_str(), O_WRONLY | O_CLOEXEC));
  return fd && ::write(fd.get(), map.data(), map.size()) == static_cast<ssize_t>(map.size());
}

// What is received within that time; "" at the end of it, or of the child.
std::string receive(Clock& clock, int socket, int patience_ms) {
  if (!readable_until(clock, clock.now_ms() + patience_ms, socket)) return "";
  std::string text(16384, '\0');
  const ssize_t n = ::recv(socket, text.data(), text.size(), 0);
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return text;
}

bool send_all(int socket, const std::string& text) {
  return ::send(socket, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

bool keep_capabilities(uint64_t wanted) {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2] = {};
  for (int i = 0; i < 2; ++i)
    sets[i].effective = sets[i].permitted = static_cast<uint32_t>(wanted >> (32 * i));
  return ::syscall(SYS_capset, &header, sets) == 0;
}

constexpr uint64_t bit(int capability) { return uint64_t{1} << capability; }

// In the child. Root's ids remain but for files: of a process with them no user can take hold. In the
// namespace root's user id has no number, so nothing leads back to it.
bool take_rights(const User& owner, FileRights rights, Names names, Clock& clock) {
  if (owner.uid == 0 || ::setgroups(0, nullptr) != 0) return false;
  const std::string name = names == Names::kUserNamespace ? name_of(owner.uid) : "";
  if (names == Names::kUserNamespace) {
    if (::unshare(CLONE_NEWUSER) != 0) return false;
    const std::string map = id_map(owner.uid, "/etc/subuid", name, owner.uid);
    if (!send_all(kTellFd, map) || receive(clock, kTellFd, patience::kNamesMs) != "go") return false;
  }
  ::setfsgid(owner.gid);
  ::setfsuid(owner.uid);
  constexpr auto kNone = static_cast<uid_t>(-1);
  if (static_cast<uid_t>(::setfsuid(kNone)) != owner.uid ||
      static_cast<gid_t>(::setfsgid(kNone)) != owner.gid)
    return false;
  const uint64_t kept = names == Names::kUserNamespace ? bit(CAP_DAC_OVERRIDE) | bit(CAP_FOWNER)
                        : rights == FileRights::kLook  ? bit(CAP_DAC_READ_SEARCH)
                                                       : 0;
  return keep_capabilities(kept) && ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0;
}

[[noreturn]] void child(const User& owner, FileRights rights, Names names, int fd, int tell, pid_t parent,
                        const std::function<std::string(int)>& work, Clock& clock) {
  fd = ::fcntl(fd, F_DUPFD, kTellFd + 1);  // out of the way of what follows
  tell = ::fcntl(tell, F_DUPFD, kTellFd + 1);
  if (::dup2(fd, kWorkFd) < 0 || ::dup2(tell, kTellFd) < 0) ::_exit(1);
  ::syscall(SYS_close_range, kTellFd + 1u, ~0u, 0u);  // root's log and locks
  if (!take_rights(owner, rights, names, clock)) ::_exit(1);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  send_all(kTellFd, "begun");
  std::string report = work(kWorkFd);
  report.resize(std::min(report.size(), kMostReport - 1));
  ::_exit(send_all(kTellFd, "=" + report) ? 0 : 1);
}

// Whether the child has taken its rights.
bool begin(pid_t pid, int socket, Names names, Clock& clock) {
  std::string said = receive(clock, socket, patience::kNamesMs);
  if (names == Names::kUserNamespace) {
    if (said.empty() || !write_map(pid, "uid_map", said) || !write_map(pid, "gid_map", all_groups()) ||
        !send_all(socket, "go"))
      return false;
    said = receive(clock, socket, patience::kNamesMs);
  }
  return said == "begun";
}

Result<std::string> run_child(const User& owner, FileRights rights, Names names, int fd, int patience_ms,
                              const std::function<std::string(int)>& work, bool* begun, pid_t* left_behind,
                              Clock& clock) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return errno_error("socketpair");
  const Fd mine(ends[0]);
  Fd its(ends[1]);
  const pid_t self = ::getpid(), pid = ::fork();
  if (pid < 0) return errno_error("fork");
  if (pid == 0) child(owner, rights, names, fd, its.get(), self, work, clock);
  its.reset();
  *begun = begin(pid, mine.get(), names, clock);
  const int64_t until_ms = clock.now_ms() + patience_ms;
  const std::string report = *begun ? receive(clock, mine.get(), patience_ms) : "";
  const bool late = *begun && report.empty() && clock.now_ms() >= until_ms;
  if (report.empty()) ::kill(pid, SIGKILL);
  if (!await_child(clock, pid, clock.now_ms() + patience::kHookWaitMs) && left_behind) *left_behind = pid;
  if (late) return Error{ETIMEDOUT, "not through after " + std::to_string(patience_ms) + " ms"};
  if (report.empty()) return Error{ECHILD, "a process with the owner's rights ended early"};
  return report.substr(1);
}

}  // namespace

std::string id_map(uint32_t own, const std::string& file, const std::string& user, uint32_t uid) {
  std::vector<Range> ranges = {{own, uint64_t{own} + 1}};
  std::ifstream in(file);
  Range range;
  for (std::string line; std::getline(in, line);)
    if (parse_range(line, user, uid, &range) && range.first < range.end) ranges.push_back(range);
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
  std::vector<Range> apart;
  for (const Range& r : ranges) {
    if (apart.empty() || r.first > apart.back().end)
      apart.push_back(r);
    else
      apart.back().end = std::max(apart.back().end, r.end);
  }
  std::string map;
  size_t lines = 0;
  for (const Range& r : apart) {
    const bool is_own = r.first <= own && own < r.end;
    if (++lines > kMostRanges && !is_own) continue;
    map += std::to_string(r.first) + " " + std::to_string(r.first) + " " + std::to_string(r.end - r.first) +
           "\n";
  }
  return map;
}

Result<std::string> run_for_owner(const User& owner, FileRights rights, int fd, int patience_ms,
                                  const std::function<std::string(int)>& work, pid_t* left_behind,
                                  Clock& clock) {
  bool begun = false;
  if (rights == FileRights::kOwner) {
    Result<std::string> done =
        run_child(owner, rights, Names::kUserNamespace, fd, patience_ms, work, &begun, left_behind, clock);
    if (begun) return done;
  }
  return run_child(owner, rights, Names::kPlain, fd, patience_ms, work, &begun, left_behind, clock);
}

}  // namespace monarch
