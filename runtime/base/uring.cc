// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/uring.h"

#include "build_config.h"

#ifdef HAVE_LIBURING
#include <liburing.h>
#endif

namespace monarch {

#ifdef HAVE_LIBURING
namespace {

class Ring : public Uring {
 public:
  Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() override {
    if (made_) ::io_uring_queue_exit(&ring_);
  }

  bool make(unsigned pieces) {
    made_ = ::io_uring_queue_init(2 * pieces, &ring_, 0) == 0;
    return made_;
  }

  void copy(int from, int to, UringPiece* pieces, unsigned count,
            const std::function<void()>& done) override {
    if (!made_) return;
    for (unsigned i = 0; i < count; ++i) {
      UringPiece& p = pieces[i];
      io_uring_sqe* read = ::io_uring_get_sqe(&ring_);
      ::io_uring_prep_read(read, from, p.buffer, static_cast<unsigned>(p.read_bytes),
                           static_cast<uint64_t>(p.offset));
      // A short read breaks the link: the write is cancelled then.
      read->flags |= IOSQE_IO_LINK;
      read->user_data = 2 * i;
      io_uring_sqe* write = ::io_uring_get_sqe(&ring_);
      ::io_uring_prep_write(write, to, p.buffer, static_cast<unsigned>(p.write_bytes),
                            static_cast<uint64_t>(p.offset));
      write->user_data = 2 * i + 1;
    }
    unsigned submitted = 0;
    while (submitted < 2 * count) {
      const int n = ::io_uring_submit(&ring_);
      if (n <= 0 && n != -EINTR && n != -EAGAIN && n != -EBUSY) break;
      if (n > 0) submitted += static_cast<unsigned>(n);
    }
    collect(pieces, submitted, done);
    if (submitted < 2 * count) drop_unsubmitted();
  }

 private:
  // The buffers belong to the kernel until each completion is there, so there is no giving up.
  void collect(UringPiece* pieces, unsigned expected, const std::function<void()>& done) {
    while (expected > 0) {
      io_uring_cqe* cqe = nullptr;
      if (::io_uring_wait_cqe(&ring_, &cqe) != 0) continue;
      const uint64_t which = cqe->user_data;
      UringPiece& p = pieces[which / 2];
      if (which % 2 == 1) p.done = cqe->res >= 0 && static_cast<size_t>(cqe->res) == p.write_bytes;
      ::io_uring_cqe_seen(&ring_, cqe);
      if (which % 2 == 1 && p.done) done();
      --expected;
    }
  }
  void drop_unsubmitted() {
    const unsigned entries = ring_.sq.ring_entries;
    ::io_uring_queue_exit(&ring_);
    made_ = ::io_uring_queue_init(entries, &ring_, 0) == 0;
  }

  io_uring ring_{};
  bool made_ = false;
};

}  // namespace

std::unique_ptr<Uring> Uring::create(unsigned pieces) {
  auto ring = std::make_unique<Ring>();
  if (!ring->make(pieces)) return nullptr;
  return ring;
}
#else
std::unique_ptr<Uring> Uring::create(unsigned) { return nullptr; }
#endif

}  // namespace monarch
