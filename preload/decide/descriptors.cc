// SPDX-License-Identifier: Apache-2.0
#include "preload/decide/descriptors.h"

#include <signal.h>
#include <time.h>

#include "preload/next/kernel.h"
#include "preload/next/next.h"

namespace monarch::preload {

std::atomic<unsigned char> descriptor_classes[kDescriptors];
std::atomic<uint32_t> descriptor_marks[kDescriptors];
constinit thread_local int vforker = 0;

namespace {

struct LargeFile {
  std::atomic<Ref> ref;
  std::atomic<int> owner;       // the process that opened it
  std::atomic<uint32_t> turn;   // of sharing, when it was opened
  std::atomic<uint32_t> users;  // of any class: calls on it now (UsesDescriptor)
  std::atomic<int> returning;   // the process, one of whose threads asks the PFS for the file
  std::atomic<bool> stream;
  std::atomic<bool> mapped;  // it was
};
LargeFile large_files[kDescriptors];

// How often the process has given its descriptors away; kShared, as a descriptor's: it is shared here.
std::atomic<uint32_t> sharing{1};
constexpr uint32_t kShared = 0;

// The process, one of whose threads is in Returns: another's is what a fork has left.
std::atomic<int> returner{0};

constexpr timespec kSlice{0, 1000000};
constexpr int kSlices = 1000;
constexpr int kMostSlices = 10 * kSlices;  // more than Returns lasts

void sleep_a_slice() { syscall(SYS_nanosleep, &kSlice, nullptr); }

int this_process() { return static_cast<int>(syscall(SYS_getpid)); }

bool is_here(const std::atomic<int>& process) {
  const int pid = process.load();
  return __builtin_expect(pid != 0, 0) && pid == this_process();
}

// Puts `self` into *owner, unless a thread of this process has done so.
bool takes(std::atomic<int>* owner, int self) {
  int seen = owner->load();
  return seen != self && owner->compare_exchange_strong(seen, self);
}

void set_class(int fd, unsigned char c) {
  if (static_cast<unsigned>(fd) >= kDescriptors || class_of(fd) == c) return;
  if (is_tier(class_of(fd)) && !is_tier(c) && is_vfork_child())
    descriptor_marks[fd].store(kNeverLooked, std::memory_order_relaxed);
  else
    descriptor_classes[fd].store(c, std::memory_order_relaxed);
}

}  // namespace

Ref large_file(int fd) { return large_files[fd].ref.load(std::memory_order_relaxed); }

bool is_alone(int fd) {
  const LargeFile& file = large_files[fd];
  return file.turn.load(std::memory_order_relaxed) == sharing.load() && file.users.load() == 0 &&
         file.owner.load(std::memory_order_relaxed) == this_process();
}
void never_moves(int fd) {
  if (static_cast<unsigned>(fd) < kDescriptors)
    large_files[fd].turn.store(kShared, std::memory_order_relaxed);
}
void used_by_stream(int fd) {
  if (static_cast<unsigned>(fd) < kDescriptors) large_files[fd].stream.store(true, std::memory_order_relaxed);
}
bool is_used_by_stream(int fd) { return large_files[fd].stream.load(std::memory_order_relaxed); }
void seen_by_hooks(int fd) {
  if (static_cast<unsigned>(fd) < kDescriptors && is_used_by_stream(fd) && !is_vfork_child())
    large_files[fd].stream.store(false, std::memory_order_relaxed);
}
bool is_in_sight(int fd) {
  if (fd <= STDERR_FILENO || !is_tier(class_of(fd))) return false;
  std::atomic_thread_fence(std::memory_order_acquire);  // found_on_tier()
  return !is_used_by_stream(fd);
}
bool is_first_map(int fd) { return !large_files[fd].mapped.exchange(true, std::memory_order_relaxed); }

// Said first; who moves one looks for that afterwards.
void stop_moves() {
  sharing.fetch_add(2);
  const KeepErrno errno_stays;
  for (int i = 0; i < kSlices && is_here(returner); ++i) sleep_a_slice();
}

// Once its child is gone, or has another program, the thread goes on.
RARE bool is_other_than_vforker() {
  if (vforker == this_process()) vforker = 0;
  return vforker != 0;
}
// A child of a child has the first one's memory.
void will_vfork() {
  if (vforker == 0) vforker = this_process();
}
void has_forked() { vforker = 0; }

// The count comes first, then the look whether there is a return: who returns does it the other way round, so
// that one of them sees the other.
APART void UsesDescriptor::begin() {
  std::atomic<uint32_t>& users = large_files[fd_].users;
  if (is_single_threaded()) {  // nobody else counts
    users.store(users.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    return;
  }
  for (int i = 0;; ++i) {
    users.fetch_add(1);
    if (__builtin_expect(!is_here(returner) || i >= kMostSlices, 1)) return;
    end();
    const KeepErrno errno_stays;
    sleep_a_slice();
  }
}

APART void UsesDescriptor::end() {
  std::atomic<uint32_t>& users = large_files[fd_].users;
  uint32_t seen = users.load(std::memory_order_relaxed);
  if (is_single_threaded() && seen != 0) {
    users.store(seen - 1, std::memory_order_relaxed);
    return;
  }
  while (seen != 0 && !users.compare_exchange_weak(seen, seen - 1, std::memory_order_release)) {
  }
}

Threads threads() {
  constexpr unsigned kOfOne = 3;  // links of a directory with one in it
  struct statx st;
  const bool one = ask_statx(AT_FDCWD, "/proc/self/task", 0, STATX_NLINK, &st) && st.stx_nlink == kOfOne;
  return one ? Threads::kOne : Threads::kSeveral;
}

Returns::Returns(Threads threads) : threads_(threads) {
  constexpr uint64_t kAll = ~uint64_t{0};
  const int self = this_process();
  for (int i = 0;; ++i) {
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &kAll, &signals_, sizeof signals_);
    if (threads == Threads::kOne || takes(&returner, self) || i >= kMostSlices) return;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &signals_, nullptr, sizeof signals_);
    sleep_a_slice();
  }
}

Returns::~Returns() {
  if (threads_ == Threads::kSeveral) returner.store(0);
  syscall(SYS_rt_sigprocmask, SIG_SETMASK, &signals_, nullptr, sizeof signals_);
}

bool has_come_to_rest(int fd) {
  for (int i = 0; static_cast<unsigned>(fd) < kDescriptors && large_files[fd].users.load() != 0; ++i) {
    if (i == kSlices) return false;
    sleep_a_slice();
  }
  return true;
}

void forget_calls(int fd) {
  if (static_cast<unsigned>(fd) < kDescriptors) large_files[fd].users.store(0);
}

void wait_to_return(int fd) {
  const int self = this_process();
  for (int i = 0; i < kSlices && !takes(&large_files[fd].returning, self); ++i) sleep_a_slice();
}

void end_return(int fd) { large_files[fd].returning.store(0); }

void opened_on_tier(int fd, uint32_t tier, uint32_t marks) {
  if (static_cast<unsigned>(fd) >= kDescriptors) return;
  if (is_vfork_child()) marks = kNeverLooked;
  if (descriptor_marks[fd].load(std::memory_order_relaxed) != marks)
    descriptor_marks[fd].store(marks, std::memory_order_relaxed);
  set_class(fd, static_cast<unsigned char>(1 + tier));
}

namespace {
// What may be used where no hook sees it.
void opened_out_of_sight(int fd, uint32_t tier, uint32_t marks) {
  used_by_stream(fd);
  std::atomic_thread_fence(std::memory_order_release);
  opened_on_tier(fd, tier, marks);
}
}  // namespace

void opened_as_stream(int fd, uint32_t tier, uint32_t marks) {
  opened_out_of_sight(fd, kOfStream + tier, marks);
}
void found_on_tier(int fd, uint32_t tier) { opened_out_of_sight(fd, tier, kNeverLooked); }

void forget_class(int fd) { set_class(fd, kNone); }

void set_marks(int fd, uint32_t seen, uint32_t marks) {
  if (!is_vfork_child())
    (void)descriptor_marks[fd].compare_exchange_strong(seen, marks, std::memory_order_relaxed);
}

void opened_on_pfs(int fd, Ref large) {
  if (static_cast<unsigned>(fd) >= kDescriptors) return;
  if (large) {
    LargeFile& file = large_files[fd];
    file.ref.store(large, std::memory_order_relaxed);
    file.owner.store(this_process(), std::memory_order_relaxed);
    file.turn.store(sharing.load(std::memory_order_relaxed), std::memory_order_relaxed);
    seen_by_hooks(fd);
    file.mapped.store(false, std::memory_order_relaxed);
  }
  set_class(fd, large ? kLarge : kPfs);
}

// A child of vfork(2) says in our memory what it does to descriptors of its own: ours is open still. So a
// copy's hint stays, and is proved when the number is used next; what that leaves of a large file's in a
// child of fork(2) read_at() finds out.
void closes_known(int fd) {
  const unsigned char c = class_of(fd);
  if (is_tier(c)) {
    descriptor_marks[fd].store(kNeverLooked, std::memory_order_relaxed);
  } else if (c != kLarge || large_files[fd].owner.load(std::memory_order_relaxed) == this_process()) {
    set_class(fd, kNone);
  }
}

void duplicated(int from, int to) {
  const unsigned char c = class_of(from);
  const bool was_copy = is_tier(class_of(to));
  if (is_tier(c) && !was_copy) seen_by_hooks(to);
  if (c == kLarge) {
    opened_on_pfs(to, large_file(from));
    never_moves(from);
    never_moves(to);
  } else if (is_tier(c)) {
    const uint32_t marks = descriptor_marks[from].load(std::memory_order_relaxed);
    opened_on_tier(to, (c - 1u) % kOfStream, was_copy ? kNeverLooked : marks);
  } else if (was_copy && c == kNone) {
    descriptor_marks[to].store(kNeverLooked, std::memory_order_relaxed);
  } else {
    set_class(to, c);
  }
}

APART void add_read(unsigned char c, uint64_t bytes) {
  Client* k = client();
  if (!k) return;
  CounterShard& shard = my_shard(k->board);
  if (c == kPfs) {
    shard.task[static_cast<int>(TaskCounter::read_bytes_pfs)].fetch_add(bytes, std::memory_order_relaxed);
    shard.task[static_cast<int>(TaskCounter::read_calls_pfs)].fetch_add(1, std::memory_order_relaxed);
  } else if (c <= kMaxTiers) {
    shard.read_bytes_tier[c - 1].fetch_add(bytes, std::memory_order_relaxed);
    shard.read_calls_tier[c - 1].fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace monarch::preload
