// SPDX-License-Identifier: Apache-2.0
// monarchctl metrics: what jobs do on this node, for Prometheus.
#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "admin/commands.h"
#include "admin/defaults.h"
#include "admin/output.h"
#include "build_config.h"
#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/base/replace_file.h"
#include "runtime/config/config.h"
#include "runtime/node/metrics.h"
#include "runtime/node/state.h"

namespace monarch::admin {
namespace {

constexpr char kTextfile[] = "monarch.prom";
constexpr int kTextfilePatienceMs = 10000;
constexpr int kIdlePatienceS = 5, kHttpPatienceS = 20;
constexpr size_t kMostRequest = 8192;

struct MetricsOptions {
  std::string config, state_dir, textfile;
  bool http = false, json = false;
};

// No job ever began here without.
bool has_state(const MetricsOptions& options) {
  return ::access((options.state_dir + "/jobs").c_str(), F_OK) == 0;
}

Result<std::vector<Metric>> look(const MetricsOptions& options) {
  if (::geteuid() != 0)
    return Error{EPERM, "only root can read the counters of this node's jobs: run it as root"};
  const Result<Config> config = load_named_config(options.config);
  if (!config.ok()) return config.error();
  std::vector<std::string> tiers;
  for (const TierConfig& tier : config->tiers) tiers.push_back(tier.name);
  if (!has_state(options)) return node_metrics(nullptr, tiers);
  const Result<StateDir> state = StateDir::open(options.state_dir);
  if (!state.ok()) return with_remedy_if_none(state.error(), "see 'monarchctl doctor'");
  return node_metrics(&*state, tiers);
}

// ---- the text format of Prometheus

std::string escaped_label(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '\\' || c == '"') safe += '\\';
    safe += c == '\n' ? "\\n" : std::string(1, c);
  }
  return safe;
}

const char* type_name(Metric::Type type) { return type == Metric::Type::kCounter ? "counter" : "gauge"; }

std::string value_text(const Metric& metric, uint64_t value) {
  if (metric.unit == Metric::Unit::kOne) return std::to_string(value);
  return fmt::format("{}.{:09}", value / 1000000000, value % 1000000000);
}

std::string text_of(const std::vector<Metric>& metrics) {
  std::string text;
  for (const Metric& metric : metrics) {
    text += fmt::format("# HELP {} {}\n# TYPE {} {}\n", metric.name, metric.help, metric.name,
                        type_name(metric.type));
    for (const MetricSample& sample : metric.samples) {
      std::string labels;
      for (const auto& [name, value] : sample.labels)
        labels += fmt::format("{}{}=\"{}\"", labels.empty() ? "" : ",", name, escaped_label(value));
      text += fmt::format("{}{} {}\n", metric.name, labels.empty() ? "" : "{" + labels + "}",
                          value_text(metric, sample.value));
    }
  }
  return text;
}

Json to_json(const std::vector<Metric>& metrics) {
  Json list = Json::array();
  for (const Metric& metric : metrics) {
    Json samples = Json::array();
    for (const MetricSample& sample : metric.samples) {
      Json labels = Json::object();
      for (const auto& [name, value] : sample.labels) labels[name] = value;
      const bool whole = metric.unit == Metric::Unit::kOne;
      samples.push_back(
          {{"labels", labels},
           {"value", whole ? Json(sample.value) : Json(static_cast<double>(sample.value) / 1e9)}});
    }
    list.push_back({{"name", metric.name},
                    {"type", type_name(metric.type)},
                    {"help", metric.help},
                    {"samples", samples}});
  }
  return {{"version", PACKAGE_VERSION}, {"metrics", list}};
}

// ---- for node_exporter

// Whole or not at all; no link in that directory is followed.
Status replace(const std::string& dir, const std::string& text) {
  const Fd at(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!at) return with_remedy(errno_error("open " + dir), "name the directory that node_exporter reads");
  ::umask(022);  // node_exporter is another user
  const Status written = replace_file(at.get(), kTextfile, text.data(), text.size(), 0644);
  if (written.ok()) return {};
  return with_remedy(
      Error{written.error().code, "write " + dir + "/" + written.error().text},
      written.error().code == ENOSPC ? "make room there" : "name a directory that root can write");
}

// One at a time: what was looked at first is written first, so that no counter goes back in the file.
Status write_textfile(const MetricsOptions& options) {
  Fd locked;
  if (::geteuid() == 0 && has_state(options)) {
    const Result<StateDir> state = StateDir::open(options.state_dir);
    if (!state.ok()) return state.error();
    Result<Fd> lock = state->lock_file("textfile.lock", kTextfilePatienceMs);
    if (!lock.ok()) return lock.error();
    locked = lock.take();
  }
  const Result<std::vector<Metric>> metrics = look(options);
  return metrics.ok() ? replace(options.textfile, text_of(*metrics)) : Status(metrics.error());
}

// ---- for who asks by HTTP, on the connection that systemd or inetd accepted

// The request's head, or what came of it.
std::string read_request() {
  std::string request;
  char buffer[1024];
  for (ssize_t n; request.find("\r\n\r\n") == std::string::npos &&
                  request.find("\n\n") == std::string::npos && request.size() < kMostRequest &&
                  (n = ::read(STDIN_FILENO, buffer, sizeof buffer)) > 0;)
    request.append(buffer, static_cast<size_t>(n));
  return request;
}

struct Answer {
  const char* status;
  std::string body;
};

Answer answer_to(const std::string& method, const std::string& path, const MetricsOptions& options) {
  if (method != "GET" && method != "HEAD") return {"405 Method Not Allowed", "ask by GET\n"};
  if (path != "/metrics" && path.rfind("/metrics?", 0) != 0) return {"404 Not Found", "see /metrics\n"};
  const Result<std::vector<Metric>> metrics = look(options);
  if (metrics.ok()) return {"200 OK", text_of(*metrics)};
  fail("metrics", metrics.error());
  return {"500 Internal Server Error", metrics.error().text + "\n"};
}

bool send(const std::string& text) {
  size_t done = 0;
  for (ssize_t n;
       done < text.size() && (n = ::write(STDOUT_FILENO, text.data() + done, text.size() - done)) > 0;)
    done += static_cast<size_t>(n);
  return done == text.size();
}

int serve_one(const MetricsOptions& options) {
  ::signal(SIGPIPE, SIG_IGN);
  const timeval idle = {kIdlePatienceS, 0};
  (void)::setsockopt(STDIN_FILENO, SOL_SOCKET, SO_RCVTIMEO, &idle, sizeof idle);
  (void)::setsockopt(STDOUT_FILENO, SOL_SOCKET, SO_SNDTIMEO, &idle, sizeof idle);
  ::alarm(kHttpPatienceS);  // of one that sends or takes a byte now and then
  const std::string request = read_request();
  const std::string line = request.substr(0, request.find_first_of("\r\n"));
  const size_t method = line.find(' '), path = line.find(' ', method + 1);
  const bool is_http = method != std::string::npos && path != std::string::npos &&
                       line.compare(path, 6, " HTTP/") == 0 && request.size() > line.size();
  const Answer answer =
      is_http ? answer_to(line.substr(0, method), line.substr(method + 1, path - method - 1), options)
              : Answer{"400 Bad Request", "this is no request of HTTP\n"};
  const std::string head = fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n"
      "Connection: close\r\n\r\n",
      answer.status, answer.body.size());
  const bool sent = send(line.rfind("HEAD ", 0) == 0 ? head : head + answer.body);
  return sent && std::strncmp(answer.status, "200", 3) == 0 ? 0 : kFailure;
}

int metrics_verb(const MetricsOptions& options) {
  (void)open_log("stderr", "warn").ok();
  if (options.http) return serve_one(options);
  if (!options.textfile.empty()) {
    const Status written = write_textfile(options);
    return written.ok() ? 0 : fail("metrics", written.error());
  }
  const Result<std::vector<Metric>> metrics = look(options);
  if (!metrics.ok()) return fail("metrics", metrics.error());
  if (options.json)
    print_json(to_json(*metrics));
  else
    std::fputs(text_of(*metrics).c_str(), stdout);
  return 0;
}

}  // namespace

void add_metrics(CommandLine app, int* status) {
  auto options = std::make_shared<MetricsOptions>();
  auto textfile = app.add_option(
      "--textfile", options->textfile,
      "write DIR/monarch.prom, whole or not at all, for the textfile collector of node_exporter");
  textfile.option_text("DIR");
  auto http = app.add_flag(
      "--http", options->http,
      "answer one request by HTTP on standard input and output, as monarch-metrics.socket has it");
  auto json = app.add_flag("--json", options->json, "print as JSON");
  textfile.excludes(http).excludes(json);
  http.excludes(json);
  add_config_and_state_dir(app, "configuration, which names the tiers", &options->config, &options->state_dir,
                           Missing::kSilent);
  app.footer("For root. Exit status: 0 if the metrics were told, 1 if not, 2 for wrong usage.");
  app.callback([options, status] { *status = metrics_verb(*options); });
}

}  // namespace monarch::admin
