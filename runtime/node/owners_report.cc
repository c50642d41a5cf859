// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/owners_report.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "runtime/base/escape.h"
#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/base/patience.h"
#include "runtime/base/replace_file.h"
#include "runtime/node/life.h"

namespace monarch {
namespace {

// As the owner; an errno. By another file that takes its name: what the name leads to is not opened.
int write_file(const std::string& file, const std::string& text) {
  const size_t name = file.rfind('/') + 1;
  const Fd dir(::open(file.substr(0, name).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!dir) return errno;
  const Status s = replace_file(dir.get(), file.substr(name), text.data(), text.size(), 0600);
  return s.ok() ? 0 : s.error().code;
}

}  // namespace

std::string owners_report(std::string file, const JobOnNode& job) {
  const std::string number = std::to_string(job.job);
  for (size_t at = 0; (at = file.find("%j", at)) != std::string::npos; at += number.size())
    file.replace(at, 2, number);
  return file;
}

void write_owners_report(const StateDir& state, const JobRecord& record,
                         const std::optional<std::string>& text) {
  const std::string& file = record.report_file;
  if (file.empty() || !record.first_node) return;
  if (!text)
    return spdlog::warn("JobId={} its report is not in {}: its counters are lost", record.job.job,
                        escaped(file));
  in_background(state, HelperCgroup::Enters::kNow, {}, [&] {
    int error = ETIMEDOUT;
    const auto write = [&](int tell) {
      const int code = write_file(file, *text);
      return ::write(tell, &code, sizeof code) == sizeof code;
    };
    const int64_t until_ms = state.clock().now_ms() + patience::kMeasureMs;
    (void)Child(record.user, write).fill(until_ms, &error, sizeof error, state.clock());
    if (error != 0)
      spdlog::warn("JobId={} its report is not in {}: {}", record.job.job, escaped(file),
                   std::strerror(error));
    return true;
  });
}

}  // namespace monarch
