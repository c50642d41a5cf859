// SPDX-License-Identifier: Apache-2.0
// monarchctl hint: tells a job's agent in which order one of the job's processes will use files.
#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "admin/commands.h"
#include "admin/defaults.h"
#include "admin/jobs.h"
#include "admin/output.h"
#include "runtime/agent/progress.h"
#include "runtime/base/number.h"
#include "runtime/base/os.h"
#include "runtime/base/patience.h"
#include "runtime/layout/catalog_reader.h"
#include "runtime/layout/order_layout.h"

namespace monarch::admin {
namespace {

struct HintOptions {
  std::string file, list, job, state_dir;
  uint32_t epoch = 0, rank = 0;
  int timeout = 60;
};

constexpr char kNoFile[] = "name a file that you can read, or - for standard input";

// What lines name, and the catalog's reference of each; 0: none, so far.
struct Names {
  std::vector<std::string> lines;
  std::vector<Ref> refs;
};

// Slurm's number of the task.
uint32_t own_rank() {
  const char* text = std::getenv("SLURM_PROCID");
  return text ? to_number<uint32_t>(text).value_or(0) : 0;
}

Result<std::vector<std::string>> lines_of(const std::string& file) {
  std::ifstream opened;
  if (file != "-") opened.open(file);
  std::istream& in = file == "-" ? std::cin : opened;
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  if (!in.eof() || in.bad()) return with_remedy(errno_error("read " + file), kNoFile);
  return lines;
}

Result<std::string> run_dir_of(const HintOptions& options) {
  if (options.job.empty()) {
    const char* here = std::getenv("MONARCH_IO_RUN_DIR");
    if (here && *here) return std::string(here);
    return bad_input("this is no task of a job with Monarch; call it in one, or give --job");
  }
  const Result<std::vector<Job>> jobs = JobWatch(options.state_dir).look();
  if (!jobs.ok()) return jobs.error();
  for (const Job& job : *jobs)
    if (is_named(job, options.job) && job.uid == ::geteuid() && !job.run_dir.empty()) return job.run_dir;
  return bad_input("job " + options.job + ": you have none on this node; see 'monarchctl status'");
}

Ref file_at(const CatalogReader& catalog, uint32_t root, const std::string& path) {
  const Found found = catalog.find(rel_path(root, path.data(), path.size()));
  const uint8_t type = found ? found.entry->type.load(std::memory_order_relaxed) : uint8_t{DT_UNKNOWN};
  return type == DT_REG || type == DT_UNKNOWN ? found.ref : 0;
}

// By its path below a name of a dataset; of one that is relative, below any of the datasets.
Ref find_file(const CatalogReader& catalog, const std::string& line) {
  const std::string path = std::filesystem::path(line).lexically_normal();
  const CatalogFacts& facts = catalog.facts();
  Ref ref = 0;
  if (!path.starts_with('/')) {
    for (uint32_t root = 0; ref == 0 && root < facts.root_count; ++root) ref = file_at(catalog, root, path);
    return ref;
  }
  for (uint32_t i = 0; ref == 0 && i < facts.prefix_count; ++i) {
    const Prefix& prefix = facts.prefixes[i];
    if (!path.starts_with(std::string(prefix.path) + "/")) continue;
    const std::string below = prefix.below_len == 0 ? "" : std::string(prefix.below) + "/";
    ref = file_at(catalog, prefix.root, below + path.substr(prefix.len + 1));
  }
  return ref;
}

bool all_found(const CatalogReader& catalog, Names* names) {
  bool all = true;
  for (size_t i = 0; i < names->lines.size(); ++i) {
    if (names->refs[i] == 0) names->refs[i] = find_file(catalog, names->lines[i]);
    all &= names->refs[i] != 0;
  }
  return all;
}

bool is_walked(const CatalogReader& catalog) {
  bool walked = true;
  for (uint32_t root = 0; root < catalog.facts().root_count; ++root) walked &= catalog.walked(root);
  return walked;
}

// As long as the walk goes on it may find more.
void find_all(const CatalogReader& catalog, int64_t until_ms, Names* names) {
  names->refs.resize(names->lines.size());
  for (bool last = false; !all_found(catalog, names) && !last;) {
    last = is_walked(catalog) || os::monotonic_ms() >= until_ms;
    if (!last) ::usleep(patience::kShortLookNs / 1000);
  }
}

// Of lines that are numbers of names, from 0 on. A line that is none has the reference 0.
std::vector<Ref> refs_by_number(const std::vector<std::string>& lines, const Names& names) {
  std::vector<Ref> refs;
  for (const std::string& line : lines) {
    const std::optional<size_t> number = to_number<size_t>(line);
    refs.push_back(number && *number < names.refs.size() ? names.refs[*number] : 0);
  }
  return refs;
}

// A full letter box is waited for until then.
Status tell(const std::string& run_dir, const HintOptions& options, const std::vector<Ref>& refs,
            int64_t until_ms) {
  const Fd dir(::open(run_dir.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  for (size_t first = 0; first < refs.size();) {
    OrderHeader header;
    header.count = static_cast<uint32_t>(std::min<size_t>(refs.size() - first, kMostInPiece));
    header.rank = options.rank;
    header.epoch = options.epoch;
    header.first = first;
    const int error = post_order(dir.get(), header, refs.data() + first);
    if (error == 0) {
      first += header.count;
    } else if (error == EAGAIN && os::monotonic_ms() < until_ms) {
      ::usleep(patience::kFirstLookNs / 1000);
    } else if (error == EAGAIN) {
      return bad_input("the job's agent takes nothing; is it running? See 'monarchctl status'");
    } else {
      return with_remedy(errno_error(run_dir + "/" + kOrderFile, error),
                         "is the job's agent of this version, and its run_size large enough?");
    }
  }
  return {};
}

bool is_prefetch_off(const std::string& run_dir) {
  std::ifstream file(run_dir + "/" + kStateFile);
  std::string state;
  return std::getline(file, state) && state == "state=allocated";
}

// Tells how much was of use. The exit status.
int tell_outcome(const std::vector<std::string>& lines, const std::vector<Ref>& refs) {
  const auto bad = static_cast<size_t>(std::count(refs.begin(), refs.end(), Ref{0}));
  const auto first = static_cast<size_t>(std::find(refs.begin(), refs.end(), Ref{0}) - refs.begin());
  if (bad > 0)
    fail("hint", counted(bad, "line names", "lines name") + " no file of the dataset, the first is line " +
                     std::to_string(first + 1) + ": " + lines[first]);
  if (bad == refs.size()) return refs.empty() ? fail("hint", "there is no line") : kFailure;
  std::printf("%s told\n", counted(refs.size() - bad, "access", "accesses").c_str());
  return 0;
}

int hint(const HintOptions& options) {
  const Result<std::string> run_dir = run_dir_of(options);
  if (!run_dir.ok()) return fail("hint", run_dir.error());
  CatalogReader catalog;
  if (!catalog.open(run_dir->c_str()))
    return fail("hint", *run_dir + ": no catalog of yours of this version; is the job's agent running?");
  if (is_prefetch_off(*run_dir))
    return fail("hint", "prefetch = off in the job's configuration: nothing is staged ahead");
  Result<std::vector<std::string>> lines = lines_of(options.file);
  if (!lines.ok()) return fail("hint", lines.error());
  const bool by_number = !options.list.empty();
  Result<std::vector<std::string>> named = by_number ? lines_of(options.list) : *lines;
  if (!named.ok()) return fail("hint", named.error());
  Names names{named.take(), {}};
  const int64_t until_ms = os::monotonic_ms() + options.timeout * int64_t{1000};
  find_all(catalog, until_ms, &names);
  const std::vector<Ref> refs = by_number ? refs_by_number(*lines, names) : names.refs;
  std::vector<Ref> good = refs;
  std::erase(good, Ref{0});
  if (const Status told = tell(*run_dir, options, good, until_ms); !told.ok())
    return fail("hint", told.error());
  return tell_outcome(*lines, refs);
}

}  // namespace

void add_hint(CommandLine app, int* status) {
  auto options = std::make_shared<HintOptions>();
  options->rank = own_rank();
  app.add_option("FILE", options->file,
                 "a line for each file that is used, in this order: its path, absolute or relative to the "
                 "dataset; -: standard input")
      .required();
  app.add_option("--list", options->list, "lines of FILE are numbers of lines of this file, from 0 on")
      .option_text("FILE");
  app.add_option("--epoch", options->epoch, "the epoch; default: 0").option_text("NUMBER");
  app.add_option("--rank", options->rank, "the process; default: $SLURM_PROCID, else 0")
      .option_text("NUMBER");
  app.add_option("--timeout", options->timeout,
                 "wait so many seconds at most until the walk has found the files; default: 60")
      .option_text("SECONDS")
      .range(0, 86400);
  app.add_option("--job", options->job, "Slurm's number or run.PID; default: the job that this is called in")
      .option_text("JOBID");
  add_state_dir(app, &options->state_dir);
  app.footer(
      "Files are staged in this order, before others; of several processes, by the number of the access.\n"
      "Exit status: 0 if a line names a file of the dataset, 1 if none does or on a failure, 2 for wrong "
      "usage.");
  app.callback([options, status] { *status = hint(*options); });
}

}  // namespace monarch::admin
