// SPDX-License-Identifier: Apache-2.0
// counters RUN-DIR        prints the counters that tasks keep, as they are now, a line for each: NAME VALUE
//
// For end-to-end tests, in the middle of a job.
#include <cstdio>

#include "runtime/layout/board_layout.h"
#include "runtime/layout/shared_map.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  monarch::RunDirectory dir{argv[1]};
  const auto* board =
      static_cast<const monarch::Board*>(monarch::map_shared(&dir, "board", sizeof(monarch::Board), false));
  if (!board) return 1;
  constexpr const char* kNames[] = {
#define X(name, doc) #name,
      MONARCH_TASK_COUNTERS(X)
#undef X
  };
  for (unsigned i = 0; i < monarch::kTaskCounters; ++i) {
    unsigned long long sum = 0;
    for (const monarch::CounterShard& shard : board->shards) sum += shard.task[i].load();
    std::printf("%s %llu\n", kNames[i], sum);
  }
  return 0;
}
