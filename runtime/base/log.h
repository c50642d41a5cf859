// SPDX-License-Identifier: Apache-2.0
// The log: spdlog into a file, limited in size and in lines per second.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>

#include "runtime/base/fd.h"
#include "runtime/base/result.h"

namespace monarch {

// Makes spdlog's default logger write to `file` ("" or "stderr": standard error; "syslog"), at most 4 MiB and
// one older file of the same size, new ones with mode 0640 at most, at most 200 lines in 10 s (what is left
// out is counted in a line). Each message is escaped(): none makes another line, whatever is in it. `level`
// is one of trace, debug, info, warning, error, off.
Status open_log(const std::string& file, const std::string& level);
// The same into what is open for appending, of whatever size: root's log, which has several processes that
// write (runtime/node/root_log.h).
Status open_log(Fd file, const std::string& level);
constexpr int64_t kFullLog = 4 << 20;
// The name of the one older file: log.1, or x.1.log of x.log.
std::string older_log(const std::string& file);
// From now on the process ends at once where operator new finds no memory: its death is harmless, and it has
// nothing to take back first. One line says that no memory is left, and `end`, what ends and what goes on
// without it: in the log, or, if none was opened, on standard error with the program's name. Both texts stay
// where they are; the last call counts. Children of fork(2) do the same.
void end_without_memory(const char* program, const char* end);
// Ends the process so, whatever memory there is: for memory that is not operator new's.
[[noreturn]] void no_memory_is_left();
// Whether `level` is one.
Status check_log_level(const std::string& level);

// spdlog's functions of these names, with the same arguments. The compiler checks each line's format, but
// what puts the line together is compiled once: spdlog's own header takes seconds of every file that includes
// it.
namespace spdlog {

enum class Level { kDebug, kInfo, kWarn, kError };

// Any thread may call it at any time.
void vlog(Level level, fmt::string_view format, fmt::format_args args) noexcept;

template <typename... T>
void log(Level level, fmt::format_string<const T&...> format, const T&... args) {
  vlog(level, format, fmt::make_format_args(args...));
}
template <typename... T>
void debug(fmt::format_string<const T&...> format, const T&... args) {
  vlog(Level::kDebug, format, fmt::make_format_args(args...));
}
template <typename... T>
void info(fmt::format_string<const T&...> format, const T&... args) {
  vlog(Level::kInfo, format, fmt::make_format_args(args...));
}
template <typename... T>
void warn(fmt::format_string<const T&...> format, const T&... args) {
  vlog(Level::kWarn, format, fmt::make_format_args(args...));
}
template <typename... T>
void error(fmt::format_string<const T&...> format, const T&... args) {
  vlog(Level::kError, format, fmt::make_format_args(args...));
}

}  // namespace spdlog

}  // namespace monarch
