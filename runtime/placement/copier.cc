// SPDX-License-Identifier: Apache-2.0
#include "runtime/placement/copier.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "runtime/base/os.h"
#include "runtime/metadata/board.h"
#include "runtime/placement/copying.h"

namespace monarch {
namespace {

constexpr uint64_t kBlock = 4096;  // what O_DIRECT wants offsets, sizes and buffers to be multiples of
constexpr uint64_t kWindow = 8 * (1 << 20);  // dirty pages of one file before their write-back is waited for

// As in <linux/ioprio.h>, which not every release of the kernel's headers lets a C++ program include.
constexpr int kIoPriorityOfThread = 1;
constexpr int io_priority(int io_class, int level) { return io_class << 13 | level; }
constexpr int kIoDefault = io_priority(0, 0);
constexpr int kIoBestEffort = io_priority(2, 7);  // the lowest level
constexpr int kIoIdle = io_priority(3, 0);

uint64_t whole_blocks(uint64_t bytes) { return (bytes + kBlock - 1) / kBlock * kBlock; }

}  // namespace

// A hint: where it is not allowed, all is done at the job's own priority.
void set_io_priority(AgentConfig::Io io) {
  thread_local AgentConfig::Io now = AgentConfig::Io::kNormal;
  if (now == io) return;
  int priority = kIoDefault;
  if (io == AgentConfig::Io::kLow) priority = kIoBestEffort;
  if (io == AgentConfig::Io::kIdle) priority = kIoIdle;
  if (::syscall(SYS_ioprio_set, kIoPriorityOfThread, 0, priority) == 0) now = io;
}

char* Copier::buffer(unsigned piece) {
  if (!buffers_[piece]) {
    buffers_[piece].reset(static_cast<char*>(std::aligned_alloc(kBlock, kPiece + kBlock)));
  }
  return buffers_[piece].get();
}

void Copier::rest() {
  uring_.reset();  // it has pinned them
  for (const auto& buffer : buffers_)
    if (buffer) (void)::madvise(buffer.get(), kPiece + kBlock, MADV_DONTNEED);
}

// False: the copying is to end.
bool Copier::pace(const CopyRange& range, uint64_t bytes) {
  wait(range, bytes, &rates_->pfs_bytes);
  return pace_tier(range, bytes);
}

bool Copier::pace_tier(const CopyRange& range, uint64_t bytes) {
  wait(range, bytes, &rates_->tier_bytes);
  return !*stopping_;
}

void Copier::wait(const CopyRange& range, uint64_t bytes, Throttle* rate) const {
  const auto give_up = [&] {
    if (range.waits) range.waits();
    return hurried() || *stopping_;
  };
  if (!range.paced || !rate->wait(bytes, give_up)) rate->take(bytes);
}

Status Copier::copy(const CopyRange& range) {
  if (!buffer(0)) return errno_error("allocate a buffer", ENOMEM);
  const uint64_t end = range.offset + range.bytes;
  uint64_t offset = range.offset;
  const bool last_piece_tells = range.bytes > 0 && end == range.file_bytes && range.bytes <= kPiece;
  if (!range.end_is_known && !last_piece_tells) MONARCH_TRY(look_at_end(range));
  while (offset < end) {
    // Several pieces at a time, by the window where pages get dirty; else one.
    const uint64_t window = range.writing == Writing::kBuffered ? kWindow : end - offset;
    uint64_t copied = end - offset >= kSeveralPieces && !range.sparse
                          ? copy_by_uring(range, offset, std::min(window, end - offset))
                          : 0;
    if (copied == 0) {
      copied = std::min(kPiece, end - offset);
      if (!pace(range, copied)) return Error{EINTR, "stopping"};
      const int64_t start = rates_->clock.now_ns();
      MONARCH_TRY(copy_piece(range, offset, copied));
      note_rate(copied, count_since(start, AgentCounter::pfs_ns));
      note_progress();
    }
    offset += copied;
    if (range.writing == Writing::kBuffered) MONARCH_TRY(bound_dirty(range, offset));
  }
  if (range.writing == Writing::kDirect) MONARCH_TRY(end_direct(range, end));
  // The application reads the copy from now on.
  if (!range.keep_pages)
    os::drop_pages(range.source, static_cast<off_t>(range.offset), static_cast<off_t>(range.bytes));
  return {};
}

Status Copier::write(const CopyRange& range, const std::function<Status(char*, const Put&)>& send) {
  if (!buffer(0)) return errno_error("allocate a buffer", ENOMEM);
  int64_t start = rates_->clock.now_ns();
  const Put put = [&](uint64_t offset, uint64_t bytes) -> Status {
    if (!pace_tier(range, bytes)) return Error{EINTR, "stopping"};
    MONARCH_TRY(write_piece(range, offset, bytes));
    if (range.writing == Writing::kBuffered) MONARCH_TRY(bound_dirty(range, offset + bytes));
    const int64_t took = count_since(start, AgentCounter::peer_ns);
    note_rate(bytes, took);
    note_progress();
    start += took;
    return {};
  };
  MONARCH_TRY(send(buffer(0), put));
  if (range.writing == Writing::kDirect) MONARCH_TRY(end_direct(range, range.offset + range.bytes));
  return {};
}

// Whoever waits in the queue sees that it moves.
void Copier::note_progress() { board_->header.progress.fetch_add(1, std::memory_order_relaxed); }

int64_t Copier::count_since(int64_t start, AgentCounter time) {
  const int64_t took = rates_->clock.now_ns() - start;
  add(board_, time, static_cast<uint64_t>(took));
  return took;
}

// Piece by piece, not file by file: the first opens must not give up before the first file is whole.
void Copier::note_rate(uint64_t bytes, int64_t ns) {
  constexpr uint64_t kTelling = 256 << 10;  // what is smaller tells of latency
  constexpr double kShare = 1.0 / 16;
  if (bytes < kTelling || ns <= 0) return;
  std::atomic<uint64_t>& rate = board_->header.bytes_per_second;
  const double now = static_cast<double>(bytes) * 1e9 / static_cast<double>(ns);
  const auto old = static_cast<double>(rate.load(std::memory_order_relaxed));
  rate.store(static_cast<uint64_t>(old == 0 ? now : old + (now - old) * kShare), std::memory_order_relaxed);
}

uint64_t Copier::copy_by_uring(const CopyRange& range, uint64_t offset, uint64_t bytes) {
  if (no_uring_) return 0;
  if (!uring_) {
    char* buffers[kPieces];
    for (unsigned i = 0; i < kPieces; ++i)
      if (!(buffers[i] = buffer(i))) return 0;
    uring_ = Uring::create(buffers, kPieces, kPiece);
    no_uring_ = !uring_;
    if (no_uring_) return 0;
  }
  int64_t start = rates_->clock.now_ns();
  uint64_t copied = 0;
  const uint64_t done = uring_->copy(
      {range.source, range.copy, offset, bytes, range.writing == Writing::kDirect},
      [&](uint64_t piece) {
        const int64_t before = rates_->clock.now_ns();
        const bool goes_on = pace(range, piece);
        start += rates_->clock.now_ns() - before;
        return goes_on;
      },
      [&](uint64_t at, std::string_view piece) {
        add(board_, AgentCounter::agent_reads_pfs);
        add(board_, AgentCounter::agent_bytes_pfs, piece.size());
        if (range.copied) range.copied(at, piece);
        copied += piece.size();
        note_rate(copied, rates_->clock.now_ns() - start);
        note_progress();
      });
  count_since(start, AgentCounter::pfs_ns);
  return done;
}

// There are file systems whose st_size is no more than a guess.
Status Copier::look_at_end(const CopyRange& range) {
  const ssize_t n = os::pread(range.source, buffer(0), 1, static_cast<off_t>(range.file_bytes));
  add(board_, AgentCounter::agent_reads_pfs);
  if (n < 0) return errno_error(std::string(kSource) + "read at its end");
  if (n > 0) return Error{ENODATA, std::string(kSource) + "longer than its size says"};
  return {};
}

// Of the file's last piece one byte more is asked for, which is not to be there.
Status Copier::copy_piece(const CopyRange& range, uint64_t offset, uint64_t bytes) {
  const uint64_t more = offset + bytes == range.file_bytes ? 1 : 0;
  uint64_t got = 0;
  while (got < bytes) {
    const ssize_t n =
        os::pread(range.source, buffer(0) + got, bytes + more - got, static_cast<off_t>(offset + got));
    add(board_, AgentCounter::agent_reads_pfs);
    if (n < 0) return errno_error(std::string(kSource) + "read at " + std::to_string(offset + got));
    if (n == 0) return Error{ENODATA, std::string(kSource) + "shorter than its size says"};
    add(board_, AgentCounter::agent_bytes_pfs, static_cast<uint64_t>(n));
    got += static_cast<uint64_t>(n);
    if (got > bytes) return Error{ENODATA, std::string(kSource) + "longer than its size says"};
    if (*stopping_) return Error{EINTR, "stopping"};
  }
  MONARCH_TRY(write_piece(range, offset, bytes));
  if (range.copied) range.copied(offset, {buffer(0), bytes});
  return {};
}

Status Copier::write_piece(const CopyRange& range, uint64_t offset, uint64_t bytes) {
  uint64_t end = bytes;
  if (range.writing == Writing::kDirect) {
    end = whole_blocks(bytes);
    std::memset(buffer(0) + bytes, 0, end - bytes);
  }
  if (!range.sparse) return write_all(range, buffer(0), offset, end);
  const auto zero = [&](uint64_t at) {
    const char* block = buffer(0) + at;
    return *block == 0 && std::memcmp(block, block + 1, std::min(kBlock, end - at) - 1) == 0;
  };
  for (uint64_t at = 0; at < end;) {
    while (at < end && zero(at)) at += kBlock;
    const uint64_t first = at;
    while (at < end && !zero(at)) at += kBlock;
    if (first < end)
      MONARCH_TRY(write_all(range, buffer(0) + first, offset + first, std::min(at, end) - first));
  }
  return {};
}

Status Copier::write_all(const CopyRange& range, const char* from, uint64_t offset, uint64_t bytes) {
  uint64_t put = 0;
  bool may_refuse = range.writing == Writing::kDirect;
  while (put < bytes) {
    const ssize_t n = os::pwrite(range.copy, from + put, bytes - put, static_cast<off_t>(offset + put));
    // A file system may take the flag and refuse the write. Without the flag it has another reason.
    if (n < 0 && errno == EINVAL && std::exchange(may_refuse, false)) {
      if (os::set_direct(range.copy, false) == 0) continue;
      errno = EINVAL;
    }
    if (n <= 0) return errno_error("write at " + std::to_string(offset + put), n < 0 ? errno : ENOSPC);
    put += static_cast<uint64_t>(n);
  }
  return {};
}

// The last block was written whole. Pages are dirty only if O_DIRECT was refused on the way.
Status Copier::end_direct(const CopyRange& range, uint64_t end) {
  if (end == range.file_bytes && end % kBlock != 0 &&
      os::ftruncate(range.copy, static_cast<off_t>(range.file_bytes)) != 0)
    return errno_error("cut the copy to its size");
  if (os::sync_range(range.copy, static_cast<off_t>(range.offset), static_cast<off_t>(range.bytes),
                     Sync::kFinish) != 0 &&
      is_write_back_error(errno))
    return errno_error("write-back at " + std::to_string(range.offset));
  return {};
}

// After each window, its write-back is begun and the one of the window before it is waited for.
Status Copier::bound_dirty(const CopyRange& range, uint64_t written) {
  const uint64_t done = written - range.offset;
  if (done % kWindow != 0) return {};
  const auto bytes = static_cast<off_t>(kWindow);
  os::sync_range(range.copy, static_cast<off_t>(written - kWindow), bytes, Sync::kStart);
  if (done < 2 * kWindow) return {};
  if (os::sync_range(range.copy, static_cast<off_t>(written - 2 * kWindow), bytes, Sync::kFinish) != 0 &&
      is_write_back_error(errno))
    return errno_error("write-back at " + std::to_string(written - 2 * kWindow));
  return {};
}

}  // namespace monarch
