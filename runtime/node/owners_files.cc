// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/owners_files.h"

#include <unistd.h>

#include "runtime/node/accounting.h"
#include "runtime/node/removal.h"

namespace monarch {

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
