// SPDX-License-Identifier: Apache-2.0
#include "runtime/hierarchy/job_room.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>

#include "runtime/base/fd.h"
#include "runtime/base/number.h"
#include "runtime/base/size.h"

namespace monarch {
namespace {

constexpr uint64_t kMarginPart = 16, kLeastMargin = uint64_t{32} << 20, kMostMargin = uint64_t{8} << 30;

uint64_t sum(uint64_t a, uint64_t b) { return a + std::min(b, std::numeric_limits<uint64_t>::max() - a); }

// A number, alone but for the end of the line.
std::optional<uint64_t> number(std::string_view text) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  return to_number<uint64_t>(text);
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

}  // namespace

Result<std::string> read_group_file(const std::string& path) {
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

std::string memory_usage_file(const std::string& group) {
  const std::string old = group + "/memory.usage_in_bytes";
  return ::access(old.c_str(), F_OK) == 0 ? old : group + "/memory.current";
}

Result<uint64_t> memory_used(const std::string& group) {
  const std::string file = memory_usage_file(group);
  const Result<std::string> usage = read_group_file(file), stat = read_group_file(group + "/memory.stat");
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
  return sub_sat(*all, sub_sat(*files, *fresh));
}

uint64_t memory_margin(uint64_t allocated) {
  return std::clamp(allocated / kMarginPart, kLeastMargin, kMostMargin);
}

MemoryRoom next_room(const MemoryRoom& last, uint64_t allocated, uint64_t used, uint64_t most, int64_t now) {
  const uint64_t margin = memory_margin(allocated), free = sub_sat(allocated, used);
  const uint64_t whole = std::min(sub_sat(free, margin), most) / kSpaceBlock * kSpaceBlock;
  if (last.since == 0) return {whole, now};
  const int64_t wait = std::clamp(last.wait, kLeastRoomWait, kMostRoomWait);
  if (whole < last.bytes && (last.bytes > most || sum(last.bytes, margin / 2) > free))
    return {whole, now, last.grew ? std::min(4 * wait, kMostRoomWait) : wait, false};
  // Where the tier itself allows no more, no margin is asked for beyond that.
  const bool enough =
      whole > last.bytes && (whole - last.bytes >= margin || whole == most / kSpaceBlock * kSpaceBlock);
  if (!enough || last.since > now - wait) return last;
  const uint64_t more = whole - last.bytes,
                 step = more < 2 * margin ? more : more / 2 / kSpaceBlock * kSpaceBlock;
  return {last.bytes + step, now, std::max(wait / 2, kLeastRoomWait), true};
}

}  // namespace monarch
