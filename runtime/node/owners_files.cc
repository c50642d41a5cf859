// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/owners_files.h"

#include <spdlog/spdlog.h>
#include <time.h>
#include <unistd.h>

#include <sstream>

#include "runtime/base/os.h"
#include "runtime/node/accounting.h"
#include "runtime/node/identity.h"
#include "runtime/node/removal.h"

namespace monarch {
namespace {

std::string hanging_file(const std::string& key) { return "jobs/" + key + "/hanging_reader"; }

}  // namespace

bool has_hanging_reader(const StateDir& state, const std::string& key) {
  const Result<std::string> noted = state.read(hanging_file(key));
  if (!noted.ok()) return false;
  std::istringstream words(*noted);
  ProcessId reader;
  words >> reader.pid >> reader.start_time;
  return words && is_running(reader);
}

void note_hanging_reader(const StateDir& state, const std::string& key, pid_t process) {
  const Result<ProcessId> reader = identify(process);
  if (!reader.ok()) return;  // it has ended by now
  const Status noted =
      state.write(hanging_file(key), fmt::format("{} {}\n", reader->pid, reader->start_time));
  if (!noted.ok()) spdlog::warn("a process that hangs is not noted: {}", noted.error().text);
}

bool read_as_owner(const StateDir& state, const JobRecord& record, int patience_ms, void* out, size_t bytes,
                   const std::function<bool(int)>& work) {
  const std::string key = record.job.key();
  if (has_hanging_reader(state, key)) return false;
  ChildAs child(record.user, work);
  const bool came = child.finish(os::clock_ns(CLOCK_MONOTONIC) / 1000000 + patience_ms, out, bytes);
  if (child.left_behind() > 0) note_hanging_reader(state, key, child.left_behind());
  return came;
}

bool read_account_as(const User& owner, int patience_ms, const std::string& run_dir, JobAccount* account) {
  const bool came = run_as(owner, patience_ms, account, sizeof *account, [&](int fd) {
    const Result<JobAccount> read = read_account(run_dir);
    return read.ok() && ::write(fd, &*read, sizeof *read) == sizeof *read;
  });
  drop_implausible(&account->series);
  return came && plausible(account->counters);
}

std::unique_ptr<NodesTold> read_nodes_told_as(const User& owner, int patience_ms,
                                              const std::string& run_dir) {
  auto told = std::make_unique<NodesTold>();
  const bool came = run_as(owner, patience_ms, told.get(), sizeof *told, [&](int fd) {
    const Result<std::unique_ptr<NodesTold>> read = read_nodes_told(run_dir);
    return read.ok() && ::write(fd, read->get(), sizeof **read) == sizeof **read;
  });
  return came && plausible(*told) ? std::move(told) : nullptr;
}

}  // namespace monarch
