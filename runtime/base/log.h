// SPDX-License-Identifier: Apache-2.0
// The agent's log: spdlog into a file of its own, limited in size and in lines per second.
#pragma once

#include <spdlog/spdlog.h>

#include <string>

#include "runtime/base/result.h"

namespace monarch {

// Makes spdlog's default logger write to `file` ("" or "stderr": standard error; "syslog"), at most 4 MiB and
// one older file of the same size, new ones with mode 0640 at most, at most 200 lines in 10 s (what is left
// out is counted in a line). Each message is escaped(): none makes another line, whatever is in it. `level`
// is one of trace, debug, info, warning, error, off.
Status open_log(const std::string& file, const std::string& level);
// Whether `level` is one.
Status check_log_level(const std::string& level);

}  // namespace monarch
