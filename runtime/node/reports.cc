// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/reports.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "runtime/base/log.h"
#include "runtime/base/os.h"
#include "runtime/base/patience.h"
#include "runtime/node/acl.h"

namespace monarch {
namespace {

// A user can read the own directory, and so lock it in the kernel. Who is to change it has a flock of it
// first: so one hangs there, and others leave it alone. It stays when it is empty: its removal would hang
// with the directory above.
void give_up(const StateDir& state, const ReportsConfig& config) {
  const int64_t now = os::realtime_s();
  std::vector<KeptReport> kept, old;
  for (const std::string& user : state.names("reports")) {
    const std::string dir = "reports/" + user;
    const Fd lock = lock_if_free(state.path() + "/" + dir);
    for (const std::string& name : lock ? state.names(dir) : std::vector<std::string>()) {
      const std::string below = dir + "/" + name;
      struct stat st;
      if (::lstat((state.path() + "/" + below).c_str(), &st) != 0) continue;
      const KeptReport report = {below, st.st_mtim.tv_sec, static_cast<uint64_t>(st.st_blocks) * 512};
      if (name.ends_with(".json"))
        kept.push_back(report);
      else if (report.at + patience::kRetrySeconds < now)
        old.push_back(report);
    }
  }
  std::ranges::move(excess(std::move(kept), config, now), std::back_inserter(old));
  for (const KeptReport& report : old) {
    const std::string path = state.path() + "/" + report.below;
    const Fd lock = lock_if_free(path.substr(0, path.rfind('/')));
    if (!lock) continue;
    (void)!::truncate(path.c_str(), 0);  // who has it open keeps none of its space
    ::unlink(path.c_str());
  }
}

Status put_report(const StateDir& state, const JobRecord& record, const std::string& text) {
  const std::string dir = "reports/" + std::to_string(record.user.uid), path = state.path() + "/" + dir;
  MONARCH_TRY(ensure_root_directory(path, 0700));
  const Result<Fd> lock = state.lock_in_time(
      Fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)), path, patience::kBriefMs);
  if (!lock.ok()) return lock.error();
  if (!let_in(path, record.user.uid, LetIn::kList))
    spdlog::warn("{}: {}: its user reads no report there; mount its file system with ACLs (acl(5))", path,
                 std::strerror(errno));
  return state.write(dir + "/" + record.name + ".json", text, 0644);
}

}  // namespace

Status keep_report(const StateDir& state, const JobRecord& record, const std::string& text,
                   const ReportsConfig& config) {
  const Status kept = config.report_size > 0 ? put_report(state, record, text) : Status();
  give_up(state, config);
  return kept;
}

std::vector<KeptReport> excess(std::vector<KeptReport> kept, const ReportsConfig& config, int64_t now) {
  std::sort(kept.begin(), kept.end(), [](const KeptReport& a, const KeptReport& b) { return a.at < b.at; });
  const int64_t oldest = now - int64_t{config.report_days} * 86400;
  uint64_t bytes = 0;
  for (const KeptReport& report : kept) bytes += report.bytes;
  size_t out = 0;
  for (; out < kept.size() && (kept[out].at < oldest || bytes > config.report_size); ++out)
    bytes -= kept[out].bytes;
  kept.resize(out);
  return kept;
}

}  // namespace monarch
