// SPDX-License-Identifier: Apache-2.0
// monarchctl plan: how large a dataset is, what of it fits on tiers, and what the PFS would be spared. Reads
// names and sizes, no data.
#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "admin/commands.h"
#include "admin/defaults.h"
#include "admin/output.h"
#include "admin/reports.h"
#include "admin/slurm_facts.h"
#include "admin/tiers.h"
#include "admin/timeline.h"
#include "build_config.h"
#include "runtime/base/escape.h"
#include "runtime/base/os.h"
#include "runtime/base/size.h"
#include "runtime/config/config.h"
#include "runtime/config/values.h"
#include "runtime/metadata/dataset.h"
#include "simulate/accesses.h"
#include "simulate/run.h"

namespace monarch::admin {
namespace {

constexpr int kPartial = 4;
constexpr int64_t kShowEachNs = 200000000;
constexpr uint64_t kUpTo[] = {4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20, uint64_t{4} << 30, UINT64_MAX};

struct PlanOptions {
  std::vector<std::string> datasets;
  std::string capacity, rate = "5000", config, like, state_dir;
  uint32_t nodes = 1, epochs = 10;
  bool json = false;
};

struct Bucket {
  uint64_t files = 0, bytes = 0;
};

struct Found {
  uint64_t files = 0, bytes = 0, space = 0, directories = 0, others = 0, links = 0;
  uint64_t calls = 0, errors = 0;
  std::string first_error;
  Bucket sizes[std::size(kUpTo)];
  double seconds = 0;
};

std::string counts_text(const Found& found) {
  return counted(found.files, "file") + ", " + format_size(found.bytes) + ", in " +
         counted(found.directories, "directory", "directories");
}

// Lists directories one after the other, with so many calls per second to the PFS at most.
class Walk {
 public:
  explicit Walk(uint64_t rate) : rate_(rate), begin_ns_(os::clock_ns(CLOCK_MONOTONIC)) {}

  void below(const std::string& root) {
    struct stat st;
    if (!call([&] { return ::stat(root.c_str(), &st); }, root)) return;
    device_ = st.st_dev;
    std::deque<std::string> left = {root};
    for (; !left.empty(); left.pop_front()) list(left.front(), &left);
  }
  const Found& end() {
    if (shown_ns_ != 0) std::fprintf(stderr, "\r\033[K");
    found_.seconds = seconds();
    return found_;
  }

 private:
  double seconds() const { return static_cast<double>(os::clock_ns(CLOCK_MONOTONIC) - begin_ns_) / 1e9; }
  template <typename Call>
  bool call(const Call& make, const std::string& path) {
    ++found_.calls;
    const double due = rate_ == 0 ? 0 : static_cast<double>(found_.calls) / static_cast<double>(rate_);
    if (const double left = due - seconds(); left > 0) ::usleep(static_cast<useconds_t>(left * 1e6));
    show();
    if (make() == 0) return true;
    if (++found_.errors == 1) found_.first_error = errno_error(path).text;
    return false;
  }

  void list(const std::string& path, std::deque<std::string>* left) {
    std::unique_ptr<DIR, int (*)(DIR*)> dir(nullptr, &::closedir);
    if (!call([&] { return dir.reset(::opendir(path.c_str())), dir ? 0 : -1; }, path)) return;
    ++found_.directories;
    while (const dirent* e = ::readdir(dir.get())) {
      const std::string name = e->d_name;
      if (name == "." || name == "..") continue;
      struct stat st;
      if (!call([&] { return ::fstatat(::dirfd(dir.get()), name.c_str(), &st, AT_SYMLINK_NOFOLLOW); },
                path + "/" + name))
        continue;
      if (S_ISDIR(st.st_mode) && st.st_dev == device_)
        left->push_back(path + "/" + name);
      else if (S_ISREG(st.st_mode) && st.st_dev == device_)
        add(st);
      else
        ++found_.others;
    }
  }

  void add(const struct stat& st) {
    const auto bytes = static_cast<uint64_t>(st.st_size);
    ++found_.files;
    if (st.st_nlink > 1 && !linked_.emplace(st.st_ino).second) {  // its names share one copy
      ++found_.links;
      return;
    }
    found_.bytes += bytes;
    found_.space += (bytes + kSpaceBlock - 1) / kSpaceBlock * kSpaceBlock;
    size_t i = 0;
    while (bytes > kUpTo[i]) ++i;
    ++found_.sizes[i].files;
    found_.sizes[i].bytes += bytes;
  }

  void show() {
    static const bool terminal = ::isatty(STDERR_FILENO) == 1;
    const int64_t now = os::clock_ns(CLOCK_MONOTONIC);
    if (!terminal || now - shown_ns_ < kShowEachNs) return;
    shown_ns_ = now;
    std::fprintf(stderr, "\r\033[K%s", counts_text(found_).c_str());
  }

  const uint64_t rate_;
  const int64_t begin_ns_;
  int64_t shown_ns_ = 0;
  dev_t device_ = 0;
  std::set<ino_t> linked_;
  Found found_;
};

// As jobs have it: a directory that lies in another one is of that one's. Makes the paths absolute.
Result<Dataset> open_dataset(std::vector<std::string>* paths) {
  Result<std::vector<std::string>> clean = check_paths(Config(), *paths);
  if (!clean.ok()) return clean.error();
  *paths = clean.take();
  return Dataset::open(*paths);
}

struct Room {
  std::string name, path;
  uint64_t capacity = 0, filled = 0;
};

Result<Config> config_of(const PlanOptions& options) {
  Result<Config> config = options.config.empty() ? load_default_config() : load_config(options.config);
  const bool needed =
      !options.config.empty() || (options.capacity.empty() && !config.ok() && config.error().code != ENOENT);
  if (!config.ok() && !needed) return Config();
  return config;
}

Result<std::vector<Room>> rooms_of(const PlanOptions& options, const Config& config) {
  std::vector<Room> rooms;
  if (!options.capacity.empty()) {
    Result<uint64_t> capacity = parse_size(options.capacity);
    rooms.push_back({"capacity", "", *capacity, 0});
    return rooms;
  }
  const Result<std::vector<Candidate>> tiers = look_at_tiers(config.tiers);
  if (!tiers.ok()) return with_remedy(tiers.error(), "see 'monarchctl tiers', or give --capacity SIZE");
  for (const Candidate& c : *tiers) {
    if (!c.chosen) continue;
    if (const Status apart = check_apart(c.tier, options.datasets); !apart.ok())
      fail("plan", "tier " + c.tier.name + " does not count: " + apart.error().text);
    else
      rooms.push_back({c.tier.name, c.path, c.tier.quota.of(c.size), 0});
  }
  if (rooms.empty())
    return bad_input(
        "this node has no tier for the dataset; say how much a node has for the job: --capacity SIZE");
  return rooms;
}

// In units of the dataset, which each epoch reads once: a node reads another part of it in each, at random.
struct Reads {
  double without, alone, peers;
};
// Of nodes with room for `part` of the dataset, which only read, on a PFS that bounds them.
double read_by(const char* policy, double part, uint32_t nodes, uint32_t epochs) {
  const simulate::Curve fast({{1, 1e6}});
  simulate::Machine machine;
  simulate::Dataset dataset;
  machine.nodes = nodes;
  dataset.epochs = epochs;
  dataset.mean = 1;
  dataset.samples = (std::max(200000 / epochs, 1000u) / nodes + 1) * nodes;
  machine.compute = machine.preprocess = machine.pfs_link = 1e6;
  machine.pfs = simulate::Curve({{1, 1}});
  machine.network = fast;
  machine.staging = {"", 0, 1, fast, fast};
  machine.tiers = {{"", part * dataset.samples, 1, fast, fast}};
  const simulate::Accesses accesses(dataset, nodes);
  const simulate::Policy& how = *simulate::find_policy(policy);
  return simulate::run(machine, accesses, how, simulate::Compat::kNone).pfs / dataset.samples;
}

// What a job's agent has read from the PFS per second on the node of its report, while it staged.
struct Rate {
  double bytes;
  uint32_t nodes;  // that did so at once
  std::string of;  // a job's name, or a report's file
};

Result<Rate> rate_in(const std::string& file) {
  const Result<std::string> text = read_text(file);
  if (!text.ok()) return Error{text.error().code, text.error().text + kNameAReport};
  const Result<Told> told = told_by(*text, file);
  if (!told.ok()) return told.error();
  const double rate = staging_rate(told->timeline);
  if (rate < 1) return bad_input(file + ": it does not tell a rate; name a job whose files were staged");
  return Rate{rate, static_cast<uint32_t>(std::clamp<uint64_t>(told->counts.nodes, 1, UINT32_MAX)), ""};
}

Result<Rate> named_rate(const PlanOptions& options) {
  std::string file = options.like;
  if (names_job(options.like)) {
    const std::string name = by_own_number(options.like);
    const std::vector<Kept> kept = kept_reports(options.state_dir, name);
    std::set<std::string> clusters;
    for (const Kept& one : kept) clusters.insert(one.cluster);
    MONARCH_TRY(check_one(name, clusters));
    if (kept.empty())
      return bad_input("no report of job " + options.like +
                       " is kept here; name one that has ended on this node, at most report_days ago, or a "
                       "file of 'monarchctl run --report'");
    file = kept[0].path;
  }
  Result<Rate> rate = rate_in(file);
  if (rate.ok()) rate->of = options.like;
  return rate;
}

// Of the last of the caller's jobs that tells one on this host.
std::optional<Rate> last_rate(const std::string& state_dir) {
  constexpr size_t kMostLooked = 20;
  const std::vector<Kept> kept = kept_reports(state_dir, "");
  for (size_t i = 0; i < std::min(kept.size(), kMostLooked); ++i)
    if (const Result<Rate> rate = rate_in(kept[i].path); rate.ok())
      return Rate{rate->bytes, rate->nodes, kept[i].id + "@" + kept[i].cluster};
  return {};
}

// Of all nodes together: no more is known of the PFS than what as many nodes have had at once.
double rate_together(const Rate& rate, uint32_t nodes) { return rate.bytes * std::min(nodes, rate.nodes); }

// All that is told.
struct Plan {
  const PlanOptions& options;
  bool peers;  // nodes get files from each other, by the configuration
  const Found& found;
  std::vector<Room> rooms = {};
  double part = 1;  // of the dataset, what a node has room for
  std::optional<Rate> rate = {};

  Reads reads() const {
    const auto by = [&](const char* policy) { return read_by(policy, part, options.nodes, options.epochs); };
    return {static_cast<double>(options.epochs), by("monarch-alone"), by("monarch")};
  }
  // Until all that is to be placed is. Nodes read a share each and get the rest from each other; nodes that
  // do not stage what their programs open, epoch by epoch.
  std::optional<double> staging_seconds() const {
    if (!rate || (options.nodes > 1 && !peers)) return {};
    const double placed = std::min(1.0, part * options.nodes) * static_cast<double>(found.bytes);
    return placed / rate_together(*rate, options.nodes);
  }
  uint64_t bytes(double times) const {
    return static_cast<uint64_t>(times * static_cast<double>(found.bytes));
  }
};

double percent(double part, double whole) { return whole <= 0 ? 0 : 100 * part / whole; }
double percent(uint64_t part, uint64_t whole) {
  return percent(static_cast<double>(part), static_cast<double>(whole));
}

void print_json_of(const Plan& plan) {
  const PlanOptions& options = plan.options;
  const Found& found = plan.found;
  const Reads reads = plan.reads();
  Json sizes = Json::array(), tiers = Json::array();
  for (size_t i = 0; i < std::size(kUpTo); ++i)
    sizes.push_back({{"up_to", kUpTo[i] == UINT64_MAX ? Json() : Json(kUpTo[i])},
                     {"files", found.sizes[i].files},
                     {"bytes", found.sizes[i].bytes}});
  for (const Room& room : plan.rooms)
    tiers.push_back({{"name", room.name},
                     {"path", or_null(room.path)},
                     {"capacity", room.capacity},
                     {"filled", room.filled},
                     {"percent", percent(room.filled, found.space)}});
  const auto of_peers = [&](auto value) { return options.nodes > 1 ? Json(value) : Json(); };
  print_json({{"version", PACKAGE_VERSION},
              {"datasets", options.datasets},
              {"files", found.files},
              {"bytes", found.bytes},
              {"space", found.space},
              {"directories", found.directories},
              {"others", found.others},
              {"links", found.links},
              {"errors", found.errors},
              {"calls", found.calls},
              {"seconds", found.seconds},
              {"sizes", sizes},
              {"tiers", tiers},
              {"fits_percent", 100 * plan.part},
              {"nodes", options.nodes},
              {"epochs", options.epochs},
              {"pfs_bytes_per_second",
               plan.rate ? Json(static_cast<uint64_t>(std::llround(plan.rate->bytes))) : Json()},
              {"like", plan.rate ? Json(plan.rate->of) : Json()},
              {"staging_seconds", plan.staging_seconds()},
              {"pfs_without", plan.bytes(reads.without)},
              {"pfs_alone", plan.bytes(reads.alone)},
              {"pfs_peers", of_peers(plan.bytes(reads.peers))},
              {"spared_alone", percent(reads.without - reads.alone, reads.without)},
              {"spared_peers", of_peers(percent(reads.without - reads.peers, reads.without))}});
}

std::string percent_text(double value) { return fmt::format("{:.1f}%", value); }

std::string staging_text(const Plan& plan) {
  const std::optional<double> seconds = plan.staging_seconds();
  const uint32_t nodes = plan.options.nodes;
  if (!plan.rate)
    return "How long staging takes is told with --like JOBID|FILE, a job that read from this file system; no "
           "report of one is kept here";
  if (!seconds)
    return "Nodes that do not get files from each other stage what their programs open, epoch by epoch";
  return fmt::format("Staging takes about {}, if {} {}/s from the PFS, as {} of {}{} did while it staged{}",
                     time_text(static_cast<uint64_t>(std::llround(*seconds))),
                     nodes > 1 ? "all nodes together read" : "the node reads",
                     format_size(static_cast<uint64_t>(std::llround(rate_together(*plan.rate, nodes)))),
                     counted(std::min(nodes, plan.rate->nodes), "node"),
                     names_job(plan.rate->of) ? "job " : "the job of ", escaped(plan.rate->of),
                     plan.options.like.empty()
                         ? ", the last one here; if that read from another file system, name one by --like"
                         : "");
}

void print(const Plan& plan) {
  const Found& found = plan.found;
  std::string others, links;
  if (found.others > 0)
    others = "; " +
             counted(found.others, "link, device or mount point is", "links, devices and mount points are") +
             " never staged";
  if (found.links > 0)
    links = "; " + counted(found.links, "is a further name of another", "are further names of others");
  std::printf("%s%s%s\nasked in %.1f s with %s\n\n", counts_text(found).c_str(), others.c_str(),
              links.c_str(), found.seconds, counted(found.calls, "call").c_str());
  std::vector<std::vector<std::string>> rows = {{"SIZE", "FILES", "BYTES", "OF-ALL"}};
  for (size_t i = 0; i < std::size(kUpTo); ++i)
    rows.push_back({kUpTo[i] == UINT64_MAX ? "more" : "<=" + format_size(kUpTo[i]),
                    std::to_string(found.sizes[i].files), format_size(found.sizes[i].bytes),
                    percent_text(percent(found.sizes[i].bytes, found.bytes))});
  print_table(rows);
  std::puts("");
  rows = {{"TIER", "ROOM", "FILLED", "OF-ALL"}};
  for (const Room& room : plan.rooms)
    rows.push_back({word(room.name), format_size(room.capacity), format_size(room.filled),
                    percent_text(percent(room.filled, found.space))});
  print_table(rows);
  if (plan.part < 1)
    std::printf("%s does not fit on a node, whose tiers have room for %s of it\n",
                format_size(found.space - static_cast<uint64_t>(plan.part * static_cast<double>(found.space)))
                    .c_str(),
                percent_text(100 * plan.part).c_str());
  std::printf("\nRead from the PFS in %s on %s:\n", counted(plan.options.epochs, "epoch").c_str(),
              counted(plan.options.nodes, "node").c_str());
  const Reads reads = plan.reads();
  rows = {{"HOW", "BYTES", "SPARED"}, {"without Monarch", format_size(plan.bytes(reads.without)), "-"}};
  const auto row = [&](const char* how, double read) {
    const double spared = percent(reads.without - read, reads.without);
    rows.push_back({how, format_size(plan.bytes(read)), found.bytes == 0 ? "-" : percent_text(spared)});
  };
  const bool several = plan.options.nodes > 1, peers = plan.peers && several;
  row("with Monarch", peers ? reads.peers : reads.alone);
  if (peers) row("with [peer] enabled = off", reads.alone);
  if (!peers && several) row("with [peer] enabled = on", reads.peers);
  print_table(rows);
  std::puts(("\n" + staging_text(plan)).c_str());
}

int plan(PlanOptions options) {
  if (options.nodes - 1 >= 10000 || options.epochs - 1 >= 1000 || options.nodes * options.epochs > 1000000)
    return fail(
               "plan",
               "--nodes is from 1 to 10000, --epochs from 1 to 1000, their product up to 1000000; leave them "
               "out, or give less"),
           kUsage;
  if (const Result<uint64_t> capacity = parse_size(options.capacity);
      !options.capacity.empty() && (!capacity.ok() || *capacity == 0))
    return fail("plan", "--capacity: " + (capacity.ok() ? "has no room for any file; write for example 500G"
                                                        : capacity.error().text)),
           kUsage;
  const Result<uint64_t> rate = parse_number(options.rate);
  if (!rate.ok()) return fail("plan", "--rate: " + rate.error().text), kUsage;
  std::optional<Rate> pfs_rate;
  if (options.like.empty()) {
    pfs_rate = last_rate(options.state_dir);
  } else {
    const Result<Rate> named = named_rate(options);
    if (!named.ok()) return fail("plan", "--like: " + named.error().text);
    pfs_rate = *named;
  }
  const Result<Dataset> dataset = open_dataset(&options.datasets);
  if (!dataset.ok())
    return fail("plan", with_remedy_if_none(dataset.error(), remedy_for_dataset(dataset.error().code)));
  const Result<Config> config = config_of(options);
  if (!config.ok())
    return fail("plan", with_config_remedy(config.error()).text +
                            (is_of_word(config.error()) ? "" : ", or give --capacity SIZE"));
  Result<std::vector<Room>> rooms = rooms_of(options, *config);
  if (!rooms.ok()) return fail("plan", rooms.error());
  Walk walk(*rate);
  for (const DatasetRoot& root : dataset->roots) walk.below(root.path);
  const Found& found = walk.end();
  if (found.files == 0 && found.errors > 0)
    return fail("plan",
                found.first_error + (found.first_error.ends_with(std::strerror(EACCES))
                                         ? std::string("; ") + remedy_for_dataset(EACCES)
                                         : ": nothing of the dataset can be looked at; ask its owner"));
  Plan plan{options, config->peer.enabled, found, rooms.take(), 1, pfs_rate};
  uint64_t left = found.space;
  for (Room& room : plan.rooms) {
    room.filled = std::min(room.capacity / kSpaceBlock * kSpaceBlock, left);
    left -= room.filled;
  }
  if (found.space > 0) plan.part = 1 - static_cast<double>(left) / static_cast<double>(found.space);
  options.json ? print_json_of(plan) : print(plan);
  if (found.errors == 0) return 0;
  fail("plan", counted(found.errors, "file or directory", "files or directories") +
                   " cannot be looked at, and these numbers are of the rest; the first: " +
                   found.first_error + "; run it as the user of the job, if that one can look at them");
  return kPartial;
}

}  // namespace

void add_plan(CommandLine app, int* status) {
  auto options = std::make_shared<PlanOptions>();
  app.add_option("DATASET", options->datasets, "directory of the dataset; several may be given").required();
  app.add_option("--capacity", options->capacity,
                 "what a node has for the job, as 500G; default: the tiers of this node");
  app.add_option("--nodes", options->nodes, "nodes of the job; default: 1");
  app.add_option("--epochs", options->epochs, "how often the job reads the dataset; default: 10");
  app.add_option("--rate", options->rate,
                 "calls to the file system per second at most, or none; default: 5000");
  app.add_option(
         "--like", options->like,
         "a job that has ended on this node, or a file of 'run --report': how fast it was staged from the "
         "PFS tells how long staging takes; default: your last job here that tells it")
      .option_text("JOBID|FILE");
  app.add_option("--config", options->config,
                 "configuration that names the tiers; " + default_text(kDefaultConfig));
  app.add_flag("--json", options->json, "print every field as JSON; sizes in bytes");
  add_state_dir(app, &options->state_dir);
  app.footer(
      "Reads names and sizes only.\nExit status: 0, 1 on a failure, 2 for wrong usage, 4 if a part of the "
      "dataset cannot be listed.");
  app.callback([options, status] { *status = plan(*options); });
}

}  // namespace monarch::admin
