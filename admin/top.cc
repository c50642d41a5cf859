// SPDX-License-Identifier: Apache-2.0
// monarchctl top: the jobs with Monarch on this node, again and again, on a terminal or as text.
#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "admin/commands.h"
#include "admin/defaults.h"
#include "admin/job_text.h"
#include "admin/jobs.h"
#include "admin/output.h"
#include "admin/screen.h"
#include "build_config.h"
#include "runtime/base/escape.h"
#include "runtime/base/fd.h"
#include "runtime/base/number.h"
#include "runtime/base/os.h"
#include "runtime/base/size.h"

namespace monarch::admin {
namespace {

constexpr double kLeastDelay = 0.1, kMostDelay = 86400;  // seconds
constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int kMostNameColumns = 16;  // of job and user, on a screen

struct TopOptions {
  std::string sort = "rate", state_dir;
  double delay = 2;
  uint64_t count = 0;  // 0: without an end
  bool batch = false, json = false;
};

// ---- the table

// Those from kEta on are for terminals that have room for them.
enum Column {
  kJob,
  kUser,
  kState,
  kStaged,
  kRate,
  kHit,
  kPfs,
  kTiers,
  kEta,
  kNodes,
  kPeers,
  kDataset,
  kColumns
};
constexpr const char* kHeadings[kColumns] = {"JOB", "USER",  "STATE", "STAGED", "RATE",  "HIT",
                                             "PFS", "TIERS", "ETA",   "NODES",  "PEERS", "DATASET"};
// As --sort names them.
constexpr const char* kNames[kEta] = {"job", "user", "state", "staged", "rate", "hit", "pfs", "tiers"};

// `name` is one of them.
Column column_of(const std::string& name) {
  return static_cast<Column>(std::find(std::begin(kNames), std::end(kNames), name) - std::begin(kNames));
}

double fullest_tier(const JobStatus& status) {
  double most = 0;
  for (uint32_t i = 0; i < status.tiers; ++i)
    most = std::max(most, percent(status.counters.placed_bytes[i], status.granted[i]).value_or(0));
  return most;
}

// What a column is sorted by that has numbers, the largest first; -1: not known.
double number_of(const Job& job, Column column) {
  if (!job.status) return -1;
  const JobCounters& c = job.status->counters;
  const Progress p = progress_of(job);
  const Opens opens = opens_of(c);
  switch (column) {
    case kStaged:
      return staged_percent(p).value_or(-1);
    case kRate:
      return job.bytes_per_second ? static_cast<double>(*job.bytes_per_second) : -1;
    case kHit:
      return percent(opens.tier, opens.all).value_or(-1);
    case kPfs:
      return static_cast<double>(pfs_bytes(c));
    case kTiers:
      return fullest_tier(*job.status);
    default:
      return 0;
  }
}

// As numbers, not as texts: 9 stands before 10, and both before run.9.
bool is_id_before(const std::string& a, const std::string& b) {
  const bool run_a = is_run(a), run_b = is_run(b);
  if (run_a != run_b) return run_b;
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

bool is_before(const Job& a, const Job& b, Column column) {
  switch (column) {
    case kJob:
      break;
    case kUser:
      if (const std::string x = user_text(a), y = user_text(b); x != y) return x < y;
      break;
    case kState:
      if (a.state != b.state) return a.state < b.state;
      break;
    default:
      if (const double x = number_of(a, column), y = number_of(b, column); x != y) return x > y;
  }
  return is_id_before(a.id, b.id);
}

void sort(std::vector<Job>* jobs, Column column, bool reverse) {
  std::stable_sort(jobs->begin(), jobs->end(), [&](const Job& a, const Job& b) {
    return reverse ? is_before(b, a, column) : is_before(a, b, column);
  });
}

// How full each tier is, or why there is none.
std::string tiers_text(const Job& job) {
  if (!job.reason.empty()) return escaped(job.reason);
  if (!job.status || job.status->tiers == 0) return "-";
  std::string text;
  for (uint32_t i = 0; i < job.status->tiers; ++i)
    text += (text.empty() ? "" : ", ") + word(job.status->names[i]) + " " +
            percent_text(percent(job.status->counters.placed_bytes[i], job.status->granted[i]), false);
  return text;
}

std::vector<std::string> row_of(const Job& job, const std::vector<Job>& jobs) {
  const Progress p = progress_of(job);
  return {word(name_of(job, jobs)),
          word(user_text(job)),
          looks_of(job.state).name,
          percent_text(staged_percent(p), p.estimated),
          rate_text(job),
          hit_text(job),
          job.status ? format_size(pfs_bytes(job.status->counters)) : "-",
          tiers_text(job),
          p.eta_seconds ? time_text(*p.eta_seconds) : "-",
          std::to_string(nodes_in(job)),
          nodes_in(job) > 1 && job.status ? format_size(job.status->counters[AgentCounter::peer_bytes]) : "-",
          dataset_text(job)};
}

std::string title_of(const std::vector<Job>& jobs) {
  char node[256] = "this node", clock[32] = "";
  const time_t now = os::clock_ns(CLOCK_REALTIME) / kSecondNs;
  tm local{};
  if (::localtime_r(&now, &local)) std::strftime(clock, sizeof clock, "%H:%M:%S", &local);
  (void)::gethostname(node, sizeof node - 1);
  std::string text = std::string(clock) + " " + escaped(node) + ": ";
  if (jobs.empty()) return text + no_job_text("");
  text += counted(jobs.size(), "job") + " with Monarch";
  uint64_t rate = 0;
  for (const Job& job : jobs) rate += job.bytes_per_second.value_or(0);
  return rate > 0 ? text + ", staging " + format_size(rate) + "/s" : text;
}

// ---- as text

void print(std::vector<Job> jobs, const TopOptions& options) {
  sort(&jobs, column_of(options.sort), false);
  if (options.json) {
    Json list = Json::array();
    for (const Job& job : jobs) list.push_back(job_json(job));
    const Json all = {
        {"version", PACKAGE_VERSION}, {"time", os::clock_ns(CLOCK_REALTIME) / kSecondNs}, {"jobs", list}};
    std::puts(all.dump_ascii().c_str());
    return;
  }
  std::puts(title_of(jobs).c_str());
  if (jobs.empty()) return;
  std::vector<std::vector<std::string>> rows = {{kHeadings, kHeadings + kEta}};
  for (const Job& job : jobs) {
    rows.push_back(row_of(job, jobs));
    rows.back().resize(kEta);
    rows.back()[kState] = paint(looks_of(job.state).colour, rows.back()[kState]);
  }
  print_table(rows);
}

void sleep_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

int as_text(const TopOptions& options) {
  JobWatch watch(options.state_dir);
  Result<std::vector<Job>> jobs = watch.look();
  if (jobs.ok() && may_copy(*jobs)) {  // rates are told from the first time on
    sleep_for(std::min(options.delay, 1.0));
    jobs = watch.look();
  }
  for (uint64_t n = 1;; ++n) {
    if (!jobs.ok()) return fail("top", jobs.error());
    if (n > 1 && !options.json) std::puts("");
    print(jobs.take(), options);
    if (!is_output_written()) return fail("top", errno_error("write to standard output"));
    if (n == options.count) return 0;
    sleep_for(options.delay);
    jobs = watch.look();
  }
}

// ---- on a screen

// What is shown, and how.
struct View {
  std::vector<Job> jobs;
  Column column = kRate;
  bool reverse = false;
  bool looked_once = false;  // rates are not known yet
  size_t first = 0;          // of the jobs, on the page
};

// Lines above and below the jobs: a title, one that is empty, the headings; the keys.
constexpr int kAbove = 3, kBelow = 1;
size_t room_for_jobs(const Screen& screen) {
  return static_cast<size_t>(std::max(screen.lines() - kAbove - kBelow, 1));
}

using Rows = std::vector<std::vector<std::string>>;

struct Place {
  Column column;
  int at;
};
// Of the columns for which there is room; a dataset may be cut.
std::vector<Place> places_of(const Rows& rows, int room) {
  std::vector<Place> places;
  int at = 0;
  for (size_t i = 0; i < kColumns; ++i) {
    int width = 0;
    for (const auto& row : rows) width = std::max(width, columns_of(row[i]));
    if (i >= kEta && at + (i == kDataset ? std::min(width, kMostNameColumns) : width) > room) continue;
    places.push_back({static_cast<Column>(i), at});
    at += width + 2;
  }
  return places;
}

void put_table(Screen* screen, const View& view, size_t shown) {
  Rows rows = {{std::begin(kHeadings), std::end(kHeadings)}};
  for (const Job& job : view.jobs) {
    rows.push_back(row_of(job, view.jobs));
    for (const Column name : {kJob, kUser}) rows.back()[name] = cut_to(rows.back()[name], kMostNameColumns);
  }
  const std::vector<Place> places = places_of(rows, screen->columns());
  for (size_t i = 0; i <= shown; ++i)  // of which the first is the headings
    for (const auto& [column, at] : places) {
      std::optional<Colour> colour;
      if (i == 0 && column == view.column) colour = Colour::kHeading;
      if (i > 0 && column == kState) colour = looks_of(view.jobs[view.first + i - 1].state).colour;
      screen->put(kAbove - 1 + static_cast<int>(i), at, rows[i == 0 ? 0 : view.first + i][column], colour);
    }
}

void draw(Screen* screen, View* view) {
  screen->begin();
  const size_t room = room_for_jobs(*screen), all = view->jobs.size();
  view->first = std::min(view->first, all - std::min(all, room));
  const size_t shown = std::min(room, all - view->first);
  sort(&view->jobs, view->column, view->reverse);
  const int end = screen->put(0, 0, title_of(view->jobs), Colour::kHeading);
  if (view->looked_once) screen->put(0, end, "; what they copy is known in a second");
  if (!view->jobs.empty()) put_table(screen, *view, shown);
  std::string keys = std::string("q quit  s sort: ") + kNames[view->column] + "  r reverse  space look now";
  if (shown < all)
    keys += "  up/down: " + std::to_string(view->first + 1) + "-" + std::to_string(view->first + shown) +
            " of " + std::to_string(all);
  screen->put(screen->lines() - 1, 0, keys);
  screen->show();
}

// What a person or the system wants.
enum class Wanted { kNothing, kPage, kLook, kEnd };

// Which job a key brings to the page's beginning, if draw() finds so many.
std::optional<size_t> first_after(Screen::Key key, size_t page, const View& view) {
  using Key = Screen::Key;
  switch (key) {
    case Key::kUp:
      return view.first - std::min<size_t>(view.first, 1);
    case Key::kDown:
      return view.first + 1;
    case Key::kPageUp:
      return view.first - std::min(view.first, page);
    case Key::kPageDown:
      return view.first + page;
    case Key::kHome:
      return 0;
    case Key::kEnd:
      return view.jobs.size();
    default:
      return {};
  }
}

Wanted do_key(const Screen::Pressed& pressed, size_t page, View* view) {
  if (const std::optional<size_t> first = first_after(pressed.key, page, *view)) {
    view->first = *first;
    return Wanted::kPage;
  }
  switch (pressed.character) {
    case 'q':
    case 'Q':
      return Wanted::kEnd;
    case 's':
      view->column = static_cast<Column>((view->column + 1) % kEta);
      return Wanted::kPage;
    case 'r':
      view->reverse = !view->reverse;
      return Wanted::kPage;
    case ' ':
      return Wanted::kLook;
    default:
      return Wanted::kNothing;
  }
}

// Those signals that end it, and the one of a new size, by a descriptor: no handler runs while a page is
// written.
Result<Fd> take_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH}) sigaddset(&signals, signal);
  Fd fd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd || ::sigprocmask(SIG_BLOCK, &signals, nullptr) != 0) return errno_error("signalfd");
  return fd;
}

// Until then, or something is wanted.
Wanted wait_until(int64_t until_ns, int signals, Screen* screen, View* view) {
  const int64_t left = until_ns - os::clock_ns(CLOCK_MONOTONIC);
  pollfd polled[] = {{signals, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
  const int ms = static_cast<int>(std::max<int64_t>((left + 999999) / 1000000, 0));
  const int n = ::poll(polled, 2, ms);
  if (n == 0) return Wanted::kLook;
  if (n < 0) return errno == EINTR ? Wanted::kPage : Wanted::kEnd;  // it was stopped, and goes on
  signalfd_siginfo signal;
  while (::read(signals, &signal, sizeof signal) == sizeof signal)
    if (signal.ssi_signo != SIGWINCH) return Wanted::kEnd;
  if (polled[1].revents & (POLLHUP | POLLERR | POLLNVAL)) return Wanted::kEnd;  // the terminal is gone
  Wanted wanted = polled[0].revents != 0 ? Wanted::kPage : Wanted::kNothing;
  if (polled[1].revents & POLLIN)
    for (Screen::Pressed key; (key = screen->pressed()).key != Screen::Key::kNone;)
      wanted = std::max(wanted, do_key(key, room_for_jobs(*screen), view));
  return wanted;
}

Status on_screen(const TopOptions& options) {
  Result<Fd> signals = take_signals();
  if (!signals.ok()) return signals.error();
  Result<Screen> screen = Screen::open();
  if (!screen.ok()) return screen.error();
  JobWatch watch(options.state_dir);
  View view;
  view.column = column_of(options.sort);
  uint64_t shown = 0;
  for (bool first = true;; first = false) {
    Result<std::vector<Job>> jobs = watch.look();
    if (!jobs.ok()) return jobs.error();
    view.jobs = jobs.take();
    view.looked_once = first && may_copy(view.jobs);
    if (!view.looked_once) ++shown;
    const double seconds = view.looked_once ? std::min(options.delay, 1.0) : options.delay;
    const int64_t until = os::clock_ns(CLOCK_MONOTONIC) + static_cast<int64_t>(seconds * kSecondNs);
    draw(&*screen, &view);
    for (Wanted wanted = Wanted::kNothing; wanted != Wanted::kLook;) {
      wanted = wait_until(until, signals->get(), &*screen, &view);
      if (wanted == Wanted::kEnd) return {};
      if (wanted == Wanted::kPage) draw(&*screen, &view);
    }
    if (shown > 0 && shown == options.count) return {};
  }
}

int top(const TopOptions& options) {
  if (options.batch || options.json) return as_text(options);
  const Status shown = on_screen(options);  // which has left the terminal as it was
  return shown.ok() ? 0 : fail("top", shown.error());
}

// What is wrong with the value of an option; empty: nothing. CLI11 would write 0.100000, and take "nan" and
// "-1".
std::string fault_of_delay(const std::string& text) {
  const double seconds = to_number<double>(text).value_or(0);
  const bool is_delay = seconds >= kLeastDelay && seconds <= kMostDelay;
  return is_delay ? ""
                  : fmt::format("'{}' is not a number of seconds from {:g} to {:g}", text, kLeastDelay,
                                kMostDelay);
}

std::string fault_of_count(const std::string& text) {
  const bool is_count = text.find_first_not_of("0123456789") == std::string::npos &&
                        text.find_first_not_of('0') != std::string::npos;
  return is_count ? "" : "'" + text + "' is not a number above 0";
}

}  // namespace

void add_top(CommandLine app, int* status) {
  auto options = std::make_shared<TopOptions>();
  app.add_option("--delay", options->delay, "seconds between two looks; 0.1 or more")
      .capture_default_str()
      .check(fault_of_delay);
  app.add_option("--count", options->count, "end after so many looks").check(fault_of_count);
  app.add_option("--sort", options->sort,
                 "what to sort by at first: job, user, state, staged, rate, hit, pfs or tiers")
      .capture_default_str()
      .one_of({std::begin(kNames), std::end(kNames)});
  app.add_flag("--batch", options->batch, "write lines of text, to any output; no terminal is needed");
  app.add_flag("--json", options->json,
               "write a line of JSON for each look, with the fields of status; sizes in bytes");
  add_state_dir(app, &options->state_dir);
  app.footer(
      "Root sees all jobs with Monarch on this node, others their own.\n"
      "Keys: q quit, s sort by the next column, r reverse, space look now, arrows and page keys scroll.\n"
      "Exit status: 0, also when a signal ends it on a terminal; 1 if it cannot write; 2 for wrong usage.");
  app.callback([options, status] { *status = top(*options); });
}

}  // namespace monarch::admin
