// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/job_memory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <optional>
#include <sstream>

#include "runtime/base/fd.h"
#include "runtime/node/slurmstepds.h"

namespace monarch {
namespace {

constexpr uint64_t kBlock = 4096;
constexpr uint64_t kMarginPart = 16, kLeastMargin = uint64_t{32} << 20, kMostMargin = uint64_t{8} << 30;

uint64_t less(uint64_t a, uint64_t b) { return a - std::min(a, b); }
uint64_t sum(uint64_t a, uint64_t b) { return a + std::min(b, std::numeric_limits<uint64_t>::max() - a); }

// Where memory is counted; nullptr: nowhere. A controller is in one hierarchy only.
const CgroupHierarchy* memory_hierarchy(const Cgroups& groups) {
  const CgroupHierarchy* unified = nullptr;
  for (const CgroupHierarchy& h : groups.hierarchies()) {
    if (h.has("memory")) return &h;
    if (h.unified) unified = &h;
  }
  return unified;
}

Result<std::string> read_whole(const std::string& path) {
  constexpr size_t kMostBytes = 64 << 10;
  const Fd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) return errno_error("read " + path);
  std::string text(kMostBytes, '\0');
  size_t size = 0;
  for (ssize_t n; (n = ::read(fd.get(), text.data() + size, kMostBytes - size)) != 0;) {
    if (n < 0) return errno_error("read " + path);
    size += static_cast<size_t>(n);
  }
  text.resize(size);
  return text;
}

// A number, alone but for the end of the line.
std::optional<uint64_t> number(const std::string& text) {
  uint64_t n = 0;
  const char* end = text.data() + text.size();
  const auto [rest, ec] = std::from_chars(text.data(), end, n);
  if (ec != std::errc() || (rest != end && (*rest != '\n' || rest + 1 != end))) return {};
  return n;
}

// The sum of the values of these lines, "NAME VALUE" each; nothing: one is not there, or has no number.
std::optional<uint64_t> sum_of(const std::string& stat, std::initializer_list<const char*> names) {
  uint64_t all = 0;
  for (const char* name : names) {
    const std::string wanted = std::string(name) + " ";
    std::istringstream in(stat);
    std::string line;
    while (std::getline(in, line) && line.rfind(wanted, 0) != 0) continue;
    const std::optional<uint64_t> value = in ? number(line.substr(wanted.size())) : std::nullopt;
    if (!value) return {};
    all = sum(all, *value);
  }
  return all;
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

std::string usage_file(const std::string& group) {
  const std::string old = group + "/memory.usage_in_bytes";
  return ::access(old.c_str(), F_OK) == 0 ? old : group + "/memory.current";
}

std::string lines_of(int pid) {
  const Result<std::string> lines = read_whole("/proc/" + std::to_string(pid) + "/cgroup");
  return lines.ok() ? *lines : "";
}

}  // namespace

bool memory_is_counted(const Cgroups& groups) {
  const CgroupHierarchy* h = memory_hierarchy(groups);
  if (!h || !h->unified) return h != nullptr;
  const Result<std::string> controllers = read_whole(h->mount + "/cgroup.controllers");
  std::istringstream in(controllers.ok() ? *controllers : "");
  return std::find(std::istream_iterator<std::string>(in), {}, "memory") !=
         std::istream_iterator<std::string>();
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
    if (::access(usage_file(group).c_str(), F_OK) == 0) return group;
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

Result<uint64_t> memory_used(const std::string& group) {
  const std::string file = usage_file(group);
  const Result<std::string> usage = read_whole(file), stat = read_whole(group + "/memory.stat");
  if (!usage.ok()) return usage.error();
  if (!stat.ok()) return stat.error();
  const bool unified = file.ends_with("/memory.current");
  const std::optional<uint64_t> all = number(*usage);
  const std::optional<uint64_t> files = unified ? sum_of(*stat, {"inactive_file", "active_file"})
                                                : sum_of(*stat, {"total_inactive_file", "total_active_file"});
  const std::optional<uint64_t> fresh = unified ? sum_of(*stat, {"file_dirty", "file_writeback"})
                                                : sum_of(*stat, {"total_dirty", "total_writeback"});
  if (!all || !files || !fresh)
    return Error{EPROTO, group + ": memory.stat is not as this kernel's should be"};
  return less(*all, less(*files, *fresh));
}

uint64_t memory_margin(uint64_t allocated) {
  return std::clamp(allocated / kMarginPart, kLeastMargin, kMostMargin);
}

MemoryRoom next_room(const MemoryRoom& last, uint64_t allocated, uint64_t used, uint64_t most, int64_t now) {
  const uint64_t margin = memory_margin(allocated), free = less(allocated, used);
  const uint64_t whole = std::min(less(free, margin), most) / kBlock * kBlock;
  if (last.since == 0) return {whole, now};
  const int64_t wait = std::clamp(last.wait, kLeastRoomWait, kMostRoomWait);
  if (whole < last.bytes && (last.bytes > most || sum(last.bytes, margin / 2) > free))
    return {whole, now, last.grew ? std::min(4 * wait, kMostRoomWait) : wait, false};
  // Where the tier itself allows no more, no margin is asked for beyond that.
  const bool enough = whole > last.bytes && (whole - last.bytes >= margin || whole == most / kBlock * kBlock);
  if (!enough || last.since > now - wait) return last;
  const uint64_t more = whole - last.bytes, step = more < 2 * margin ? more : more / 2 / kBlock * kBlock;
  return {last.bytes + step, now, std::max(wait / 2, kLeastRoomWait), true};
}

}  // namespace monarch
