// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/uring.h"

#include "build_config.h"
#include "runtime/base/os.h"

#ifdef HAVE_LIBURING
#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>
#endif

namespace monarch {

#ifdef HAVE_LIBURING
namespace {

constexpr uint64_t kBlock = 4096;

class Ring : public Uring {
 public:
  Ring(char* const* buffers, unsigned count, size_t piece) : piece_(piece) {
    for (unsigned i = 0; i < count; ++i) slots_.push_back({buffers[i], 0, 0, 0, 0});
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() override { close(); }

  bool open() {
    open_ = ::io_uring_queue_init(2 * static_cast<unsigned>(slots_.size()), &ring_, 0) == 0;
    return open_;
  }

  uint64_t copy(const UringRange& range, const std::function<bool(uint64_t)>& before,
                const Copied& after) override {
    if (!open_) return 0;
    const uint64_t end = range.offset + range.bytes;
    uint64_t next = range.offset;
    gap_ = UINT64_MAX;
    for (bool more = true;;) {
      for (size_t i = 0; more && i < slots_.size() && next < end; ++i) {
        if (slots_[i].pending != 0) continue;
        const uint64_t bytes = std::min<uint64_t>(piece_, end - next);
        more = before(bytes);
        if (!more) break;
        start(range, i, next, bytes);
        next += bytes;
      }
      if (!submit()) break;
      if (in_flight_ == 0) break;
      collect(after);
      more = more && gap_ == UINT64_MAX;
    }
    while (in_flight_ > 0) collect(after);  // the buffers are the kernel's until then
    return std::min(gap_, next) - range.offset;
  }

 private:
  struct Slot {
    char* buffer;
    uint64_t offset, bytes, written;
    unsigned pending;  // completions to come
  };

  void start(const UringRange& range, size_t i, uint64_t offset, uint64_t bytes) {
    Slot& slot = slots_[i];
    const uint64_t write = range.whole_blocks ? (bytes + kBlock - 1) / kBlock * kBlock : bytes;
    slot = {slot.buffer, offset, bytes, write, 2};
    std::memset(slot.buffer + bytes, 0, write - bytes);
    io_uring_sqe* read_it = ::io_uring_get_sqe(&ring_);
    ::io_uring_prep_read(read_it, range.from, slot.buffer, static_cast<unsigned>(bytes), offset);
    read_it->flags |= IOSQE_IO_LINK;  // a short read breaks the link: the write is cancelled then
    read_it->user_data = 2 * i;
    io_uring_sqe* write_it = ::io_uring_get_sqe(&ring_);
    ::io_uring_prep_write(write_it, range.to, slot.buffer, static_cast<unsigned>(write), offset);
    write_it->user_data = 2 * i + 1;
    unsubmitted_ += 2;
  }

  // False: the kernel takes no more, and the ring is of no use any longer. Nor is it where the kernel took a
  // read alone, as it may where memory lacks: a link holds within one submission only, so that the write
  // would not wait for it.
  bool submit() {
    while (unsubmitted_ > 0) {
      const int n = os::uring_submit(&ring_);
      if (n == -EINTR) continue;
      if ((n == -EAGAIN || n == -EBUSY) && in_flight_ > 0) return true;  // once one of those has ended
      if (n > 0) {
        unsubmitted_ -= static_cast<unsigned>(n);
        in_flight_ += static_cast<unsigned>(n);
        if (n % 2 == 0) continue;
      }
      abandon();
      return false;
    }
    return true;
  }

  void collect(const Copied& after) {
    io_uring_cqe* done = nullptr;
    if (::io_uring_wait_cqe(&ring_, &done) != 0) return;
    const uint64_t which = done->user_data;
    const int64_t result = which % 2 == 0 ? done->res : os::uring_result(done->res);
    ::io_uring_cqe_seen(&ring_, done);
    --in_flight_;
    Slot& slot = slots_[which / 2];
    --slot.pending;
    if (which % 2 == 0) return;  // the write tells how the read went, too
    if (result >= 0 && static_cast<uint64_t>(result) == slot.written) {
      after(slot.offset, {slot.buffer, slot.bytes});
    } else {
      gap_ = std::min(gap_, slot.offset);
    }
  }

  void abandon() {
    while (in_flight_ > 0) collect([](uint64_t, std::string_view) {});
    for (Slot& slot : slots_) {
      if (slot.pending != 0) gap_ = std::min(gap_, slot.offset);
      slot.pending = 0;
    }
    unsubmitted_ = 0;
    close();
  }

  void close() {
    if (open_) ::io_uring_queue_exit(&ring_);
    open_ = false;
  }

  const size_t piece_;
  std::vector<Slot> slots_;
  io_uring ring_{};
  bool open_ = false;
  unsigned unsubmitted_ = 0, in_flight_ = 0;
  uint64_t gap_ = 0;  // where the first piece was that failed
};

}  // namespace

std::unique_ptr<Uring> Uring::create(char* const* buffers, unsigned count, size_t piece) {
  auto ring = std::make_unique<Ring>(buffers, count, piece);
  if (!ring->open()) return nullptr;
  return ring;
}
#else
std::unique_ptr<Uring> Uring::create(char* const*, unsigned, size_t) { return nullptr; }
#endif

}  // namespace monarch
