// SPDX-License-Identifier: Apache-2.0
#include "runtime/agent/order_watch.h"

#include <sys/inotify.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/metadata/run_file.h"

namespace monarch {
namespace {

constexpr size_t kEventBytes = 4096;

// "": the piece is whole.
const char* fault_of(const OrderHeader& header, size_t bytes_behind) {
  if (header.magic != kOrderMagic) return "its header is wrong";
  if (header.version != kOrderVersion) return "it is of another version";
  if (header.count > kMostInPiece) return "a piece is too long";
  if (header.count * sizeof(Ref) > bytes_behind) return "a piece is cut short";
  return "";
}

}  // namespace

std::vector<OrderPiece> parse_order(std::string_view bytes, std::string* fault) {
  std::vector<OrderPiece> pieces;
  fault->clear();
  while (fault->empty() && !bytes.empty()) {
    OrderHeader header;
    const bool whole = bytes.size() >= sizeof header;
    if (whole) std::memcpy(&header, bytes.data(), sizeof header);
    *fault = whole ? fault_of(header, bytes.size() - sizeof header) : "a header is cut short";
    if (!fault->empty()) break;
    OrderPiece& piece = pieces.emplace_back(OrderPiece{header.epoch, header.rank, header.first, {}});
    piece.refs.resize(header.count);
    const size_t refs = header.count * sizeof(Ref);
    if (refs > 0) std::memcpy(piece.refs.data(), bytes.data() + sizeof header, refs);
    bytes.remove_prefix(sizeof header + refs);
  }
  return pieces;
}

OrderWatch::OrderWatch(int run_dir)
    : file_(::openat(run_dir, kOrderFile, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC,
                     kRunFileMode)) {
  struct stat st;
  if (!file_ || ::fstat(file_.get(), &st) != 0 || !S_ISREG(st.st_mode)) {
    spdlog::warn("{}: no regular file: no order of accesses is taken", kOrderFile);
    file_.reset();
    return;
  }
  notify_ = Fd(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  const std::string path = "/proc/self/fd/" + std::to_string(file_.get());
  if (notify_ && ::inotify_add_watch(notify_.get(), path.c_str(), IN_CLOSE_WRITE) < 0) notify_.reset();
}

std::string OrderWatch::read_all() const {
  struct stat st;
  if (::fstat(file_.get(), &st) != 0 || st.st_size <= 0) return "";
  std::string bytes(std::min(static_cast<uint64_t>(st.st_size), kMostOrderBytes), '\0');
  size_t done = 0;
  for (ssize_t n = 1; n > 0 && done < bytes.size(); done += static_cast<size_t>(std::max<ssize_t>(n, 0)))
    n = ::pread(file_.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
  bytes.resize(done);
  return bytes;
}

std::vector<OrderPiece> OrderWatch::take() {
  char events[kEventBytes];
  while (notify_ && ::read(notify_.get(), events, sizeof events) > 0) continue;
  struct stat st;
  if (!file_ || ::fstat(file_.get(), &st) != 0 || st.st_size == 0 ||
      ::flock(file_.get(), LOCK_EX | LOCK_NB) != 0)
    return {};
  const std::string bytes = read_all();
  const bool emptied = ::ftruncate(file_.get(), 0) == 0;
  ::flock(file_.get(), LOCK_UN);
  std::string fault;
  std::vector<OrderPiece> pieces = parse_order(bytes, &fault);
  if (!fault.empty()) spdlog::warn("an order of accesses: {}; it is dropped from there on", fault);
  return emptied ? std::move(pieces) : std::vector<OrderPiece>();
}

}  // namespace monarch
