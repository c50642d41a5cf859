// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/identity.h"

#include <dirent.h>
#include <grp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>

#include "runtime/node/await.h"

namespace monarch {

Status become(const User& user) {
  if (user.uid == 0) return Error{EPERM, "a job of root's is not staged: its files would be read as root"};
  if (::setgroups(user.groups.size(), user.groups.data()) != 0) return errno_error("setgroups");
  if (::setresgid(user.gid, user.gid, user.gid) != 0) return errno_error("setresgid");
  if (::setresuid(user.uid, user.uid, user.uid) != 0) return errno_error("setresuid");
  uid_t r, e, s;
  gid_t gr, ge, gs;
  if (::getresuid(&r, &e, &s) != 0 || ::getresgid(&gr, &ge, &gs) != 0 || r != user.uid || e != user.uid ||
      s != user.uid || gr != user.gid || ge != user.gid || gs != user.gid || ::setuid(0) == 0)
    return Error{EPERM, "privileges were not dropped"};
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  // It is off by now, unless fs.suid_dumpable says otherwise.
  if (::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0 || ::prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 1)
    return Error{EPERM, "the user could trace this process"};
  return {};
}

namespace {

// The fields 3 to `last` of a stat file of /proc; none: there is no such process or thread.
std::vector<std::string> fields_of(const std::string& file, size_t last) {
  std::ifstream in(file);
  std::string line, field;
  std::getline(in, line);
  const size_t name_end = line.rfind(')');  // the name may hold anything
  std::istringstream text(name_end == std::string::npos ? "" : line.substr(name_end + 2));
  std::vector<std::string> fields;
  while (fields.size() + 3 <= last && text >> field) fields.push_back(field);
  return fields;
}

}  // namespace

char state_of(pid_t pid) {
  const std::vector<std::string> fields = fields_of("/proc/" + std::to_string(pid) + "/stat", 3);
  return fields.empty() ? 'X' : fields.front().front();
}

Result<ProcessId> identify(pid_t pid) {
  const std::vector<std::string> fields = fields_of("/proc/" + std::to_string(pid) + "/stat", 22);
  if (fields.empty()) return Error{ESRCH, "no process " + std::to_string(pid)};
  if (fields.front() == "Z" || fields.front() == "X")
    return Error{ESRCH, "process " + std::to_string(pid) + " has ended"};
  return ProcessId{pid, std::strtoull(fields.back().c_str(), nullptr, 10)};
}

bool is_running(const ProcessId& process) {
  const Result<ProcessId> now = identify(process.pid);
  return now.ok() && now->start_time == process.start_time;
}

bool is_ending(const ProcessId& process) {
  constexpr unsigned long kExiting = 4;
  const std::string whole = "/proc/" + std::to_string(process.pid), tasks = whole + "/task/";
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(tasks.c_str()), &::closedir);
  while (const dirent* e = dir ? ::readdir(dir.get()) : nullptr) {
    if (e->d_name[0] == '.') continue;
    const std::vector<std::string> fields = fields_of(tasks + e->d_name + "/stat", 9);
    if (fields.empty() || (std::strtoul(fields.back().c_str(), nullptr, 10) & kExiting) != 0) continue;
    const std::vector<std::string> now = fields_of(whole + "/stat", 22);
    return now.empty() ||
           std::strtoull(now.back().c_str(), nullptr, 10) != process.start_time;  // another one
  }
  return true;
}

bool signal_and_wait(const ProcessId& process, int signal, int patience_ms, Clock& clock) {
  const int64_t until_ms = clock.now_ms() + patience_ms;
  // The descriptor pins the process: what is identified afterwards is what is signalled.
  const Fd fd(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  if (!is_running(process)) return true;
  if (fd && ::syscall(SYS_pidfd_send_signal, fd.get(), signal, nullptr, 0) == 0)
    readable_until(clock, until_ms, fd.get());
  return !is_running(process);
}

std::string boot_id() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(in, id);
  return id;
}

}  // namespace monarch
