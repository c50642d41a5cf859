// SPDX-License-Identifier: Apache-2.0
// A process that has the preload library is served by its hooks. Any other opens copies by itself, by the
// same decisions (preload/decide/opens.h). It has no hook that sees what it changes, so each of its opens
// compares the file with the PFS.
#include "api/libmonarch.h"

#include <link.h>
#include <stdlib.h>

#include "preload/client/environment.h"
#include "preload/decide/opens.h"
#include "preload/next/kernel.h"
#include "preload/resolve/names.h"
#include "preload/resolve/paths.h"
#include "preload/resolve/roots.h"
#include "runtime/layout/order_layout.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace monarch::preload {
namespace {

constexpr int kPfs = -1, kNoDataset = -2;
constexpr size_t kRefsAtOnce = 4096;
constexpr int64_t kLookNs = 100 * 1000000ll;

struct Opened {
  int fd = -1;
  int from = kNoDataset;  // a tier's number, or one of the above
};

int refuse(int error) {
  errno = error;
  return -1;
}

int is_preload(dl_phdr_info* object, size_t, void*) {
  constexpr char kName[] = "/libmonarch_preload.so";
  const size_t len = object->dlpi_name ? strlen(object->dlpi_name) : 0;
  return len >= sizeof kName - 1 && strcmp(object->dlpi_name + len - (sizeof kName - 1), kName) == 0;
}

bool is_served_by_hooks() {
  static std::atomic<int> hooked{-1};
  int is = hooked.load(std::memory_order_relaxed);
  if (is < 0) hooked.store(is = dl_iterate_phdr(&is_preload, nullptr), std::memory_order_relaxed);
  return is != 0;
}

int open_natively(const char* path) { return open(path, O_RDONLY | O_CLOEXEC); }

Opened open_path(const char* path) {
  Client* c = is_served_by_hooks() || unreadable(path) ? nullptr : client();
  if (c) will_change_capabilities();  // they may have changed: no hook tells
  if (!c || !may_read_below(*c, path)) return {open_natively(path), kNoDataset};
  Reading file(c, AT_FDCWD, path, {});
  if (file.copy()) {
    const KeepErrno errno_stays;
    const int fd = open_own(AT_FDCWD, file.copy(), O_RDONLY);
    if (file.has_copy(fd)) return {fd, static_cast<int>(file.decision().tier)};
    (void)not_opened(fd);
  }
  const Opened opened = {open_natively(path), file.is_of_dataset() ? kPfs : kNoDataset};
  file.ends();
  if (opened.fd >= 0 && file.decision().large != 0) (void)post_request(c->board, file.path(), kReadNatively);
  return opened;
}

void count_read(int from, uint64_t bytes) {
  if (from == kNoDataset) return;
  CounterShard& shard = my_shard(the_client.board);
  if (from == kPfs) {
    count(the_client.board, TaskCounter::read_bytes_pfs, bytes);
    count(the_client.board, TaskCounter::read_calls_pfs);
  } else {
    shard.read_bytes_tier[from].fetch_add(bytes, std::memory_order_relaxed);
    shard.read_calls_tier[from].fetch_add(1, std::memory_order_relaxed);
  }
}

// As pread(2), to the end of the file or of `n` bytes.
ssize_t read_all(int fd, char* buf, size_t n, int64_t offset) {
  size_t done = 0;
  while (done < n) {
    const ssize_t got = pread(fd, buf + done, n - done, offset + static_cast<int64_t>(done));
    if (got == 0) break;
    if (got > 0)
      done += static_cast<size_t>(got);
    else if (errno != EINTR)
      return -1;
  }
  return static_cast<ssize_t>(done);
}

// Of the paths that `next_path` gives. The processor fetches where they are in the index while it compares
// those before them.
template <typename NextPath>
int find_all(size_t count, Ref* refs, NextPath next_path) {
  constexpr size_t kAhead = 8;
  struct {
    Room room;
    RelPath file;
    bool is_below;
  } places[kAhead];
  const Client* c = client();
  if (!c) return refuse(ENOTCONN);
  for (size_t i = 0; i < count + kAhead; ++i) {
    auto& place = places[i % kAhead];
    if (i >= kAhead) refs[i - kAhead] = place.is_below ? c->catalog.find(place.file).ref : 0;
    if (i >= count) continue;
    const char* path = next_path();
    place.is_below = !unreadable(path) && resolve(*c, AT_FDCWD, path, &place.room, &place.file);
    if (place.is_below) c->catalog.expect(place.file.hash);
  }
  return 0;
}

uint32_t own_rank() {
  const char* rank = saved_variable("SLURM_PROCID");
  return rank ? static_cast<uint32_t>(strtoul(rank, nullptr, 10)) : 0;
}

int open_run_dir() {
  RunDirectory run{saved_variable("MONARCH_IO_RUN_DIR")};
  int fd = -1;
  return run.path && open_run_directory(&run, &fd) == RunDirectoryIs::kOwn ? fd : -1;
}

// What the agent tells in the file `state` (monarch(7)), lines KEY=VALUE.
class Told {
 public:
  Told() {
    const Own run(open_run_dir());
    const Own file(run.fd < 0 ? -1 : open_own(run.fd, "state", O_RDONLY | O_NOFOLLOW | O_NONBLOCK));
    const ssize_t n = file.fd < 0 ? 0 : pread(file.fd, text_, sizeof text_ - 1, 0);
    text_[n > 0 ? n : 0] = '\0';
  }
  const char* text(const char* key) const {
    const size_t len = strlen(key);
    for (const char* line = text_; line; line = strchr(line, '\n')) {
      line += *line == '\n';
      if (strncmp(line, key, len) == 0 && line[len] == '=') return line + len + 1;
    }
    return "";
  }
  uint64_t number(const char* key) const { return strtoull(text(key), nullptr, 10); }
  bool is_at_an_end() const {
    const char* state = text("state");
    return begins(state, "staged-in\n") || begins(state, "teardown\n") || begins(state, "allocated\n");
  }

 private:
  char text_[1024];
};

void add_counters(const Client& c, struct monarch_counts* sum) {
  for (const CounterShard& shard : c.board->shards) {
    const auto of = [&shard](TaskCounter n) { return shard.task[static_cast<uint32_t>(n)].load(); };
    sum->opens_pfs += of(TaskCounter::opens_pfs);
    sum->read_bytes_pfs += of(TaskCounter::read_bytes_pfs);
    sum->waits += of(TaskCounter::waits);
    sum->wait_ns += of(TaskCounter::wait_ns);
    for (uint32_t tier = 0; tier < kMaxTiers; ++tier) {
      sum->opens_tier += shard.opens_tier[tier].load();
      sum->read_bytes_tier += shard.read_bytes_tier[tier].load();
    }
  }
}

}  // namespace

EXPORT int monarch_open(const char* path) { return open_path(path).fd; }

EXPORT ssize_t monarch_read(const char* path, void* buf, size_t n, int64_t offset) {
  const Opened opened = open_path(path);
  if (opened.fd < 0) return -1;
  const ssize_t got = read_all(opened.fd, static_cast<char*>(buf), n, offset);
  const KeepErrno errno_stays;
  close(opened.fd);
  if (got > 0) count_read(opened.from, static_cast<uint64_t>(got));
  return got;
}

EXPORT int monarch_find(const char* paths, size_t count, uint32_t* numbers) {
  return find_all(count, numbers, [next = paths]() mutable {
    const char* path = next;
    next += strlen(path) + 1;
    return path;
  });
}

EXPORT ssize_t monarch_hint_found(const uint32_t* numbers, size_t count, const struct monarch_order* order) {
  const Own run(client() ? open_run_dir() : -1);
  if (run.fd < 0) return refuse(ENOTCONN);
  OrderHeader header;
  header.rank = order ? order->rank : own_rank();
  header.epoch = order ? order->epoch : 0;
  size_t taken = 0;
  while (taken < count) {
    const size_t n = count - taken < kRefsAtOnce ? count - taken : kRefsAtOnce;
    header.count = static_cast<uint32_t>(n);
    header.first = (order ? order->first : 0) + taken;
    const int error = post_order(run.fd, header, numbers + taken);
    if (error != 0 && error != EAGAIN && taken == 0) return refuse(error);
    if (error != 0) break;
    taken += n;
  }
  return static_cast<ssize_t>(taken);
}

EXPORT ssize_t monarch_hint(const char* const* paths, size_t count, const struct monarch_order* order) {
  const struct monarch_order begin = order ? *order : monarch_order{0, own_rank(), 0};
  size_t taken = 0;
  do {
    Ref refs[kRefsAtOnce];
    const size_t n = count - taken < kRefsAtOnce ? count - taken : kRefsAtOnce;
    const struct monarch_order from = {begin.epoch, begin.rank, begin.first + taken};
    const int found = find_all(n, refs, [&, next = paths + taken]() mutable { return *next++; });
    const ssize_t more = found == 0 ? monarch_hint_found(refs, n, &from) : -1;
    if (more < 0 && taken == 0) return -1;
    if (more <= 0) break;
    taken += static_cast<size_t>(more);
  } while (taken < count);
  return static_cast<ssize_t>(taken);
}

EXPORT int monarch_wait(double fraction, int timeout_ms) {
  if (!(fraction >= 0 && fraction <= 1)) return refuse(EINVAL);
  const int64_t until = monotonic_ns() + timeout_ms * int64_t{1000000};
  for (;;) {
    if (!is_attached()) return refuse(ENOTCONN);
    const Client* c = client();
    const bool lives = c && agent_lives(*c->board);  // before its last word is read
    const Told told;
    if (c && static_cast<double>(told.number("percent")) >= 100 * fraction) return 0;
    if (c && (!lives || told.is_at_an_end())) return refuse(ENODATA);
    if (timeout_ms >= 0 && monotonic_ns() >= until) return refuse(ETIMEDOUT);
    const timespec rest{0, kLookNs};
    nanosleep(&rest, nullptr);
  }
}

EXPORT int monarch_stats(struct monarch_counts* stats, size_t bytes) {
  const Client* c = client();
  if (!c) return refuse(ENOTCONN);
  const Told told;
  struct monarch_counts sum = {};
  sum.files = told.number("files");
  sum.bytes = told.number("bytes");
  sum.staged_files = told.number("staged_files");
  sum.staged_bytes = told.number("staged_bytes");
  sum.listed = told.number("all_bytes") != 0;
  add_counters(*c, &sum);
  memset(stats, 0, bytes);
  memcpy(stats, &sum, bytes < sizeof sum ? bytes : sizeof sum);
  return 0;
}

}  // namespace monarch::preload
