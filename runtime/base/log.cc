// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/log.h"

#include <fcntl.h>
#include <signal.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/rotating_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/sinks/syslog_sink.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <string_view>
#include <utility>

#include "runtime/base/escape.h"
#include "runtime/base/fd.h"

namespace monarch {
namespace {

std::atomic<const char*> program_is{"monarch"}, end_is{"the process ends"};
::spdlog::sink_ptr plain;  // what the log is written by: it needs no memory for a line
bool is_off = false;

// Passes messages on to another sink, escaped, at most kLines in kWindow, and says how many it left out.
class GuardedSink final : public ::spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit GuardedSink(::spdlog::sink_ptr next) : next_(std::move(next)) {}

 protected:
  void sink_it_(const ::spdlog::details::log_msg& message) override {
    const auto now = std::chrono::steady_clock::now();
    if (now - window_start_ > kWindow) {
      if (left_out_ > 0) {
        const std::string text = fmt::format("{} log lines were left out", left_out_);
        next_->log(::spdlog::details::log_msg(message.logger_name, ::spdlog::level::warn, text));
      }
      window_start_ = now;
      lines_ = left_out_ = 0;
    }
    if (++lines_ <= kLines) {
      const std::string text =
          escaped(std::string_view(message.payload.data(), message.payload.size()), kMostEscaped);
      ::spdlog::details::log_msg safe = message;
      safe.payload = text;
      next_->log(safe);
    } else {
      ++left_out_;
    }
  }
  void flush_() override { next_->flush(); }
  void set_pattern_(const std::string& pattern) override { next_->set_pattern(pattern); }
  void set_formatter_(std::unique_ptr<::spdlog::formatter> f) override { next_->set_formatter(std::move(f)); }

 private:
  static constexpr int kLines = 200;
  static constexpr std::chrono::seconds kWindow{10};
  ::spdlog::sink_ptr next_;
  std::chrono::steady_clock::time_point window_start_ = std::chrono::steady_clock::now();
  int lines_ = 0;
  int left_out_ = 0;
};

// A line by one call, so that none of several processes comes into the middle of another's.
class AppendingSink final : public ::spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit AppendingSink(Fd file) : file_(std::move(file)) {}

 protected:
  void sink_it_(const ::spdlog::details::log_msg& message) override {
    ::spdlog::memory_buf_t line;
    formatter_->format(message, line);
    if (::write(file_.get(), line.data(), line.size()) < 0) ::spdlog::throw_spdlog_ex("write the log", errno);
  }
  void flush_() override {}

 private:
  const Fd file_;
};

void log_into(::spdlog::sink_ptr sink, const std::string& level) {
  plain = sink;
  is_off = level == "off";
  auto logger =
      std::make_shared<::spdlog::logger>("monarchd", std::make_shared<GuardedSink>(std::move(sink)));
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e monarchd[%P]: %l: %v");
  logger->set_level(::spdlog::level::from_str(level));
  logger->flush_on(::spdlog::level::info);
  ::spdlog::set_default_logger(std::move(logger));
}

// A log names datasets, which are not for all to see; an admin's choice for a file that is there stays.
void make_private(const std::string& file) {
  const Fd made(::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0640));
}

}  // namespace

Status check_log_level(const std::string& level) {
  if (::spdlog::level::from_str(level) != ::spdlog::level::off || level == "off") return {};
  return bad_input("log_level '" + level + "' is none of trace, debug, info, warning, error, off");
}

Status open_log(const std::string& file, const std::string& level) {
  MONARCH_TRY(check_log_level(level));
  try {
    ::spdlog::sink_ptr sink;
    if (file.empty() || file == "stderr") {
      sink = std::make_shared<::spdlog::sinks::stderr_sink_mt>();
    } else if (file == "syslog") {
      sink = std::make_shared<::spdlog::sinks::syslog_sink_mt>("monarchd", LOG_PID, LOG_DAEMON, false);
    } else {
      ::spdlog::file_event_handlers handlers;
      handlers.before_open = &make_private;
      // In a directory of root's a full one is begun anew.
      const std::string above = file.substr(0, file.rfind('/') + 1);
      const size_t older = ::access(above.empty() ? "." : above.c_str(), W_OK) == 0 ? 1 : 0;
      sink = std::make_shared<::spdlog::sinks::rotating_file_sink_mt>(file, kFullLog, older, false, handlers);
    }
    log_into(std::move(sink), level);
  } catch (const ::spdlog::spdlog_ex& e) {
    return Error{EIO, "log " + file + ": " + e.what()};
  }
  return {};
}

Status open_log(Fd file, const std::string& level) {
  MONARCH_TRY(check_log_level(level));
  log_into(std::make_shared<AppendingSink>(std::move(file)), level);
  return {};
}

void no_memory_is_left() {
  constexpr unsigned kLastWordSeconds = 10;
  static std::atomic_flag ends = ATOMIC_FLAG_INIT;
  while (ends.test_and_set()) ::pause();  // another thread; or this one, in the sink: the alarm ends it
  ::signal(SIGALRM, SIG_DFL);
  ::alarm(kLastWordSeconds);
  char text[200];
  std::snprintf(text, sizeof text, "no memory is left: %s", end_is.load());
  if (!plain) std::fprintf(stderr, "%s: %s\n", program_is.load(), text);
  if (plain && !is_off) {
    plain->log(::spdlog::details::log_msg("", ::spdlog::level::err, text));
    plain->flush();
  }
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);  // a core would take long, and has files of the dataset
  std::abort();
}

void end_without_memory(const char* program, const char* end) {
  program_is = program;
  end_is = end;
  std::set_new_handler(&no_memory_is_left);
}

std::string older_log(const std::string& file) {
  return ::spdlog::sinks::rotating_file_sink_mt::calc_filename(file, 1);
}

namespace spdlog {
namespace {

::spdlog::level::level_enum level_of(Level level) {
  switch (level) {
    case Level::kDebug:
      return ::spdlog::level::debug;
    case Level::kInfo:
      return ::spdlog::level::info;
    case Level::kWarn:
      return ::spdlog::level::warn;
    case Level::kError:
      break;
  }
  return ::spdlog::level::err;
}

}  // namespace

void vlog(Level level, fmt::string_view format, fmt::format_args args) noexcept {
  ::spdlog::logger* logger = ::spdlog::default_logger_raw();
  if (logger->should_log(level_of(level))) logger->log(level_of(level), fmt::vformat(format, args));
}

}  // namespace spdlog

}  // namespace monarch
