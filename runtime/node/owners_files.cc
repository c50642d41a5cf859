// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/owners_files.h"

#include <unistd.h>

#include "runtime/node/accounting.h"
#include "runtime/node/life.h"

namespace monarch {
void note_hanging_reader(const StateDir& state, JobRecord* record, pid_t process) {
  note_hanging(record, process);
  if (std::optional<LockedJob> job = state.lock_run(*record)) {
    note_hanging(&job->record, process);
    (void)state.write_record(job->record).ok();
  }
}

bool read_as_owner(const StateDir* state, JobRecord* record, int patience_ms, void* out, size_t bytes,
                   const std::function<bool(int)>& work) {
  if (hangs(*record)) return false;
  Clock& clock = state ? state->clock() : system_clock();
  Child child(record->user, work);
  const bool came = child.fill(clock.now_ms() + patience_ms, out, bytes, clock);
  if (state && child.left_behind() > 0) {
    note_hanging_reader(*state, record, child.left_behind());
    leave_behind(*state, child.left_behind());  // it is none of the step's that asks
  }
  return came;
}

bool read_account_as(const StateDir* state, JobRecord* record, int patience_ms, JobAccount* account) {
  const auto work = [&](int fd) {
    const Result<JobAccount> read = read_account(record->run_dir);
    return read.ok() && ::write(fd, &*read, sizeof *read) == sizeof *read;
  };
  const bool came = read_as_owner(state, record, patience_ms, account, sizeof *account, work);
  drop_implausible(&account->series);
  return came && plausible(account->counters);
}

std::unique_ptr<NodesTold> read_nodes_told_as(const StateDir* state, JobRecord* record, int patience_ms) {
  auto told = std::make_unique<NodesTold>();
  const auto work = [&](int fd) {
    const Result<std::unique_ptr<NodesTold>> read = read_nodes_told(record->run_dir);
    return read.ok() && ::write(fd, read->get(), sizeof **read) == sizeof **read;
  };
  const bool came = read_as_owner(state, record, patience_ms, told.get(), sizeof *told, work);
  return came && plausible(*told) ? std::move(told) : nullptr;
}

}  // namespace monarch
