// SPDX-License-Identifier: Apache-2.0
// What no copy of files shows: the source is a pipe, so that a read ends when the test wants it to.
#include "runtime/base/uring.h"

#include <fcntl.h>
#include <sys/syscall.h>

#include <memory>
#include <string_view>
#include <utility>

#include "runtime/base/fd.h"
#include "tests/faulty_os.h"
#include "tests/scratch.h"

namespace monarch {
namespace {

constexpr size_t kPiece = 4096;
constexpr unsigned kPieces = 4;

class UringTest : public testing::Test {
 protected:
  void SetUp() override {
    char* buffers[kPieces];
    for (unsigned i = 0; i < kPieces; ++i) buffers[i] = old_.data() + i * kPiece;
    ring_ = Uring::create(buffers, kPieces, kPiece);
    if (!ring_) GTEST_SKIP() << "no io_uring here";
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    from_ = Fd(ends[0]);
    into_ = Fd(ends[1]);
    copy_ = Fd(::open((scratch_ / "copy").c_str(), O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600));
  }
  static bool waits_for_ring(pid_t thread) {
    std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/syscall");
    long call = -1;
    return file >> call && call == SYS_io_uring_enter;
  }
  uint64_t copy() {
    return ring_->copy(
        {.from = from_.get(), .to = copy_.get(), .offset = 0, .bytes = kPieces * kPiece},
        [](uint64_t) { return true; }, [](uint64_t, std::string_view) {});
  }
  std::string copied() const { return contents(scratch_ / "copy"); }

  const Scratch scratch_;
  std::vector<char> old_ = std::vector<char>(kPieces * kPiece, 'o');
  std::unique_ptr<Uring> ring_;
  Fd from_, into_, copy_;
};

// As where memory lacks for the other entries: a write whose read was taken before it waits for nothing.
TEST_F(UringTest, AWriteIsNotSubmittedWithoutItsRead) {
  const std::string bytes(kPieces * kPiece, 'n');
  for (const size_t taken : {1, 2, 3}) {
    SetUp();
    if (IsSkipped()) return;
    const Intercept some(Call::kUringSubmit, [&, first = true](Arguments& a) mutable {
      if (std::exchange(first, false)) a.bytes = std::min(a.bytes, taken);
      return 0;
    });
    std::atomic<bool> ended{false};
    const pid_t copies = ::gettid();
    std::thread late([&] {
      EXPECT_TRUE(taken == 2 || eventually([&] { return ended || waits_for_ring(copies); }));
      (void)!::write(into_.get(), bytes.data(), bytes.size());
    });
    const uint64_t done = copy();
    ended = true;
    late.join();
    EXPECT_TRUE(copied() == bytes.substr(0, done)) << taken;
    EXPECT_LE(done, taken == 2 ? bytes.size() : taken / 2 * kPiece);
    EXPECT_TRUE(taken != 2 || done == bytes.size()) << "in parts";
  }
}

}  // namespace
}  // namespace monarch
