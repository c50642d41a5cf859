// SPDX-License-Identifier: Apache-2.0
// The process's part in a job: the catalog and the board of its agent, mapped.
#pragma once

#include <atomic>
#include <initializer_list>
#include <string_view>

#include "runtime/layout/board_client.h"
#include "runtime/layout/catalog_reader.h"

namespace monarch::preload {

// Whether the program is served. Else every open goes to the PFS; what it changes is marked nevertheless.
enum class Program : int {
  kServed,
  kExcluded,
  // It restricts itself (Landlock, seccomp): a copy may be open to it whose file is not, and calls that it
  // does not make natively may be refused, or end it.
  kRestricted,
};

struct Client {
  CatalogReader catalog;
  Board* board = nullptr;
  // What the environment said; nullptr: nothing.
  std::atomic<const char*> exclude{nullptr};  // globs
  std::atomic<const char*> log{nullptr};      // "stderr" or a file
  std::atomic<Program> program{Program::kServed};
};

enum class Phase : int { kNew, kOff, kOn };
extern std::atomic<Phase> phase;
extern Client the_client;

// When a run directory that was not ready is looked at again: by who changes a file at once, since what is
// not marked may be read wrong by others.
enum class Retry { kInAWhile, kAtOnce };
Client* start_client(Retry retry);

// The process's client; nullptr if this process is not to be redirected (no job, switched off, a stale
// run directory, another version).
// The first call maps the two files. Threads that make it at the same time each do so, and the first of them
// to have mapped one wins: nobody waits for another, who may be the code that a signal interrupted, or a
// thread that a child of fork(2) does not have.
inline Client* client(Retry retry = Retry::kInAWhile) {
  const Phase now = phase.load(std::memory_order_acquire);
  if (__builtin_expect(now == Phase::kOn, 1)) return &the_client;
  return now == Phase::kOff ? nullptr : start_client(retry);
}

// Whether an open of a copy compares the file on the PFS with what was copied: by consistency = open, or
// since changes on another node may not be told: that node cannot be reached, or this one's agent is gone.
inline bool compares(const Client& c) {
  const BoardHeader& board = c.board->header;
  return c.catalog.facts().check_at_open != 0 || board.unheard.load(std::memory_order_acquire) != 0 ||
         (board.wakes_on_change.load(std::memory_order_relaxed) != 0 && !agent_lives(*c.board));
}

// From now on it is kRestricted, as the log's last line says.
void restrict_program();

// MONARCH_IO_EXCLUDE, globs of programs and files that stay on the PFS: whether one names the program that
// this process runs; whether one of client.exclude, which is set, names the file (client/exclude.cc).
bool excludes_program(const char* globs);
bool excludes_file(const Client& client, const RelPath& path);

// For MONARCH_IO_LOG: a line of these words, whatever is in them, with the process's id. `log`: "stderr" or a
// file, which is opened for appending and closed for each line: no lock, no buffer, no descriptor kept. errno
// stays as it is.
void write_line(const char* log, std::initializer_list<std::string_view> words);

// Whether the process belongs to a job (or may yet come to: the agent is starting).
bool is_attached();

}  // namespace monarch::preload
