// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/memory.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string_view>

#include "runtime/base/mutex.h"
#include "runtime/base/os.h"
#include "runtime/base/patience.h"

namespace monarch {
namespace {

constexpr uint64_t kReserveShare = 20;  // a twentieth of all memory is not for us
constexpr double kStalledPercent = 10;  // from here on the node is short of memory

std::optional<uint64_t> number_in(const std::string& path) {
  std::ifstream in(path);
  uint64_t n = 0;
  if (!(in >> n)) return {};  // "max", or not there
  return n;
}

// The number in the line "NAME N ..." of a file.
std::optional<uint64_t> field(const std::string& path, std::string_view name) {
  std::ifstream in(path);
  std::string word;
  uint64_t n = 0;
  while (in >> word) {
    if (word == name && in >> n) return n;
    in.clear();
    in.ignore(4096, '\n');
  }
  return {};
}

// "some avg10=0.12 avg60=..."
double stalled_percent(const std::string& path) {
  std::ifstream in(path);
  std::string kind, recent;
  double percent = 0;
  if (in >> kind >> recent && kind == "some" && recent.rfind("avg10=", 0) == 0)
    percent = std::strtod(recent.c_str() + 6, nullptr);
  return percent;
}

uint64_t less_reserve(uint64_t free, uint64_t all) {
  const uint64_t reserve = all / kReserveShare;
  return free > reserve ? free - reserve : 0;
}

// What a control group may still take. Pages of files count as used there, but make way.
uint64_t unused(const std::string& dir, uint64_t limit, bool v2) {
  const std::string prefix = v2 ? "" : "total_";
  const uint64_t used = number_in(dir + (v2 ? "memory.current" : "memory.usage_in_bytes")).value_or(0);
  const uint64_t cache = field(dir + "memory.stat", prefix + "inactive_file").value_or(0) +
                         field(dir + "memory.stat", prefix + "active_file").value_or(0);
  const uint64_t bound = used > cache ? used - cache : 0;
  return limit > bound ? limit - bound : 0;
}

// The limit of the group (cgroup v2: "0::/path"; v1: "N:memory:/path") and of each above it.
uint64_t spare_in_cgroup(const std::string& proc, const std::string& cgroups) {
  std::ifstream in(proc + "/self/cgroup");
  std::string line;
  uint64_t spare = UINT64_MAX;
  while (std::getline(in, line)) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string group = line.substr(second + 1);
    const bool v2 = controllers.empty();
    if (!v2 && controllers != "memory") continue;
    const std::string base = cgroups + (v2 ? "" : "/memory");
    while (!group.empty()) {
      const std::string dir = base + group + "/";
      const auto limit = number_in(dir + (v2 ? "memory.max" : "memory.limit_in_bytes"));
      if (limit) spare = std::min(spare, less_reserve(unused(dir, *limit, v2), *limit));
      group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
    }
  }
  return spare;
}

MemoryState fresh_state() {
  static Mutex lock;
  static MemoryState state GUARDED_BY(lock);
  static int64_t read_at GUARDED_BY(lock) = 0;
  const MutexLock hold(lock);
  const int64_t now = os::clock_ns(CLOCK_MONOTONIC);
  if (read_at == 0 || std::abs(now - read_at) > patience::kMemoryFreshNs) {
    state = read_memory();
    read_at = now;
  }
  return state;
}

}  // namespace

MemoryState read_memory(const std::string& proc, const std::string& cgroups) {
  MemoryState state;
  state.stalled = stalled_percent(proc + "/pressure/memory");
  state.spare = spare_in_cgroup(proc, cgroups);
  const auto available = field(proc + "/meminfo", "MemAvailable:");  // in KiB
  const auto all = field(proc + "/meminfo", "MemTotal:");
  if (available && all) state.spare = std::min(state.spare, less_reserve(*available << 10, *all << 10));
  return state;
}

uint64_t total_memory() { return field("/proc/meminfo", "MemTotal:").value_or(0) << 10; }

uint64_t spare_memory() { return fresh_state().spare; }

bool memory_is_short() {
  const MemoryState state = fresh_state();
  return state.stalled >= kStalledPercent || state.spare == 0;
}

}  // namespace monarch
