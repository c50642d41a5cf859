// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/slurmstepds.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>

#include "runtime/base/fd.h"

namespace monarch {
namespace {

// The first `room` bytes of a small file, with one read(2).
std::string begin_of(int at, const std::string& path, size_t room) {
  const Fd fd(::openat(at, path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text(room, '\0');
  const ssize_t n = fd ? ::read(fd.get(), text.data(), room) : -1;
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return text;
}

// The owner of /proc/PID says less: it is root of whatever a user executes with root's rights.
bool is_roots(int proc, const std::string& pid) {
  constexpr size_t kRoom = 1024;  // the line is the ninth
  const std::string status = begin_of(proc, pid + "/status", kRoom);
  return status.find("\nUid:\t0\t0\t0\t0\n") != std::string::npos;
}

// What a user executes with root's rights has the title that this user gave it.
bool is_lent(int proc, const std::string& pid) {
  struct statx st;
  return ::statx(proc, (pid + "/exe").c_str(), AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, STATX_MODE, &st) != 0 ||
         (st.stx_mode & (S_ISUID | S_ISGID)) != 0;
}

bool parse(const std::string& title, Slurmstepd* out) {
  constexpr char kBegin[] = "slurmstepd: [";
  if (!title.starts_with(kBegin)) return false;
  const char* at = title.c_str() + sizeof kBegin - 1;
  char* rest;
  const unsigned long job = std::strtoul(at, &rest, 10);
  if (rest == at || (*rest != '.' && *rest != '+')) return false;
  const char* dot = std::strchr(rest, '.');
  const std::string step = dot ? dot + 1 : "";
  out->job = static_cast<uint32_t>(job);
  out->anchor = step.starts_with("extern") || step.starts_with("batch");
  return true;
}

// Cheapest first. The title is not read of what is executed with a user's rights: that can hang, as this user
// wishes. Of what is executed with root's the owner of /proc/PID is root, and the title is at worst a user's
// text.
bool read_slurmstepd(int proc, const std::string& pid, Slurmstepd* out) {
  constexpr size_t kTitle = 64;
  struct stat st;
  if (::fstatat(proc, pid.c_str(), &st, 0) != 0 || st.st_uid != 0) return false;
  if (!parse(begin_of(proc, pid + "/cmdline", kTitle), out)) return false;
  if (!is_roots(proc, pid) || is_lent(proc, pid)) return false;
  out->pid = std::atoi(pid.c_str());
  return true;
}

void for_each_number_in(const std::string& path, const std::function<void(int)>& what) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(path.c_str()), &::closedir);
  while (const dirent* e = dir ? ::readdir(dir.get()) : nullptr)
    if (e->d_name[0] >= '0' && e->d_name[0] <= '9') what(std::atoi(e->d_name));
}

}  // namespace

std::vector<int> children(int pid) {
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  std::vector<int> found;
  for_each_number_in(tasks, [&](int task) {  // of all threads
    std::ifstream in(tasks + "/" + std::to_string(task) + "/children");
    for (int child; in >> child;) found.push_back(child);
  });
  return found;
}

Result<std::vector<Slurmstepd>> slurmstepds(const std::string& proc) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(proc.c_str()), &::closedir);
  if (!dir) return errno_error("open " + proc);
  std::vector<Slurmstepd> found;
  for (;;) {
    errno = 0;
    const dirent* e = ::readdir(dir.get());
    if (!e && errno != 0) return errno_error("read " + proc);
    if (!e) return found;
    Slurmstepd one;
    if (e->d_name[0] >= '0' && e->d_name[0] <= '9' && read_slurmstepd(::dirfd(dir.get()), e->d_name, &one))
      found.push_back(one);
  }
}

std::optional<Slurmstepd> slurmstepd_at(int pid) {
  const Fd proc(::open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  Slurmstepd one;
  if (!proc || !read_slurmstepd(proc.get(), std::to_string(pid), &one)) return {};
  return one;
}

bool has_slurmstepd(uint32_t job) {
  const Result<std::vector<Slurmstepd>> all = slurmstepds();
  return !all.ok() ||
         std::any_of(all->begin(), all->end(), [&](const Slurmstepd& s) { return s.job == job; });
}

}  // namespace monarch
