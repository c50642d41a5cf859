// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/owners_files.h"

#include <time.h>
#include <unistd.h>

#include "runtime/base/os.h"
#include "runtime/node/accounting.h"
#include "runtime/node/life.h"
#include "runtime/node/removal.h"

namespace monarch {
bool read_as_owner(const StateDir& state, const JobRecord& record, int patience_ms, void* out, size_t bytes,
                   const std::function<bool(int)>& work) {
  const std::string of = "jobs/" + record.job.key();
  if (hangs(state, of)) return false;
  ChildAs child(record.user, work);
  const bool came = child.finish(os::clock_ns(CLOCK_MONOTONIC) / 1000000 + patience_ms, out, bytes);
  if (child.left_behind() > 0) note_hanging(state, of, child.left_behind());
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
