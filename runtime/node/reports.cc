// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/reports.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>

#include "runtime/base/log.h"
#include "runtime/base/os.h"
#include "runtime/base/patience.h"
#include "runtime/node/acl.h"

namespace monarch {
namespace {

void give_up(const StateDir& state, const ReportsConfig& config) {
  const int64_t now = os::realtime_s();
  std::vector<KeptReport> kept;
  for (const std::string& user : state.names("reports"))
    for (const std::string& name : state.names("reports/" + user)) {
      const std::string below = "reports/" + user + "/" + name, path = state.path() + "/" + below;
      struct stat st;
      if (::lstat(path.c_str(), &st) != 0) continue;
      if (name.ends_with(".json"))
        kept.push_back({below, st.st_mtim.tv_sec, static_cast<uint64_t>(st.st_blocks) * 512});
      else if (st.st_mtim.tv_sec + patience::kRetrySeconds < now)
        ::unlink(path.c_str());
    }
  const std::vector<KeptReport> old = excess(std::move(kept), config, now);
  for (const KeptReport& report : old) {
    const std::string path = state.path() + "/" + report.below;
    (void)!::truncate(path.c_str(), 0);  // who has it open keeps none of its space
    ::unlink(path.c_str());
  }
  for (const std::string& user : state.names("reports"))
    ::rmdir((state.path() + "/reports/" + user).c_str());  // unless there is something in it
}

}  // namespace

Status keep_report(const StateDir& state, const JobRecord& record, const std::string& text,
                   const ReportsConfig& config) {
  const std::string all = state.path() + "/reports";
  const Result<Fd> locked = state.lock_in_time(
      Fd(::open(all.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)), all, patience::kBriefMs);
  Status kept;
  if (config.report_size > 0) {
    const std::string dir = "reports/" + std::to_string(record.user.uid), path = state.path() + "/" + dir;
    MONARCH_TRY(ensure_root_directory(path, 0700));
    if (!let_in(path, record.user.uid, LetIn::kList))
      spdlog::warn("{}: {}: its user reads no report there; mount its file system with ACLs (acl(5))", path,
                   std::strerror(errno));
    kept = state.write(dir + "/" + record.name + ".json", text, 0644);
  }
  if (locked.ok()) give_up(state, config);
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
