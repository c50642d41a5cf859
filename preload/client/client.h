// SPDX-License-Identifier: Apache-2.0
// The process's part in a job: the catalog and the board of its agent, mapped.
#pragma once

#include <atomic>

#include "runtime/layout/board_client.h"
#include "runtime/layout/catalog_reader.h"

namespace monarch::preload {

struct Client {
  CatalogReader catalog;
  Board* board = nullptr;
  // What the environment said; nullptr: nothing.
  const char* exclude = nullptr;  // globs
  const char* log = nullptr;      // "stderr" or a file
  bool program_excluded = false;  // every open goes to the PFS; what it changes is marked nevertheless
};

enum class Phase : int { kNew, kStarting, kOff, kOn };
extern std::atomic<Phase> phase;
extern Client the_client;
Client* start_client();

// The process's client; nullptr if this process is not to be redirected (no job, switched off, a stale
// run directory, another version). The first call maps the two files.
inline Client* client() {
  const Phase now = phase.load(std::memory_order_acquire);
  if (__builtin_expect(now == Phase::kOn, 1)) return &the_client;
  return now == Phase::kOff ? nullptr : start_client();
}

// Whether the process belongs to a job (or may yet come to: the agent is starting).
bool is_attached();

}  // namespace monarch::preload
