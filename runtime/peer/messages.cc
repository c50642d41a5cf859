// SPDX-License-Identifier: Apache-2.0
#include "runtime/peer/messages.h"

#include <bit>
#include <cstring>

namespace monarch {
namespace {

static_assert(std::endian::native == std::endian::little, "messages are copied from and to memory");

constexpr uint32_t kMagic = 0x4843'4e4du;  // "MNCH"

bool is_known(MessageType type) {
  switch (type) {
    case MessageType::kHello:
    case MessageType::kPing:
    case MessageType::kPong:
    case MessageType::kWant:
    case MessageType::kHave:
    case MessageType::kRead:
    case MessageType::kBusy:
    case MessageType::kPass:
    case MessageType::kLater:
    case MessageType::kProgress:
    case MessageType::kDone:
    case MessageType::kAnnounce:
    case MessageType::kLost:
    case MessageType::kMark:
    case MessageType::kList:
    case MessageType::kWalk:
    case MessageType::kReading:
    case MessageType::kMissed:
    case MessageType::kGather:
    case MessageType::kGathered:
    case MessageType::kCount:
    case MessageType::kTold:
    case MessageType::kHeard:
    case MessageType::kGet:
    case MessageType::kGot:
      return true;
  }
  return false;
}

struct HeaderFields {
  uint32_t magic = kMagic;
  uint32_t body_bytes = 0;
  uint64_t number = 0, type = 0;
};
static_assert(sizeof(HeaderFields) == MessageHeader::kBytes);

struct PieceFields {
  uint32_t bytes = 0, unused = 0;
  uint64_t check = 0;
};
static_assert(sizeof(PieceFields) == PieceHeader::kBytes);

template <typename Fields>
std::string bytes_of(const Fields& fields) {
  return std::string(reinterpret_cast<const char*>(&fields), sizeof fields);
}

}  // namespace

std::string encode_message(MessageHeader header, std::string_view body) {
  HeaderFields f;
  f.body_bytes = static_cast<uint32_t>(body.size());
  f.number = header.number;
  f.type = static_cast<uint64_t>(header.type);
  return bytes_of(f).append(body);
}

std::optional<MessageHeader> decode_header(std::string_view bytes) {
  HeaderFields f;
  if (bytes.size() < sizeof f) return {};
  std::memcpy(&f, bytes.data(), sizeof f);
  const auto type = static_cast<MessageType>(f.type);
  if (f.magic != kMagic || f.type > UINT16_MAX || f.body_bytes > kMostBody || !is_known(type)) return {};
  return MessageHeader{type, f.body_bytes, f.number};
}

std::optional<uint64_t> end_of(const Get& get, uint64_t file_bytes) {
  if (get.offset % kPieceBytes != 0 || get.bytes % kPieceBytes != 0 || get.offset > file_bytes) return {};
  const uint64_t left = file_bytes - get.offset;
  return get.bytes == 0 || get.bytes > left ? file_bytes : get.offset + get.bytes;
}

std::string encode_piece(const PieceHeader& header) {
  return bytes_of(PieceFields{header.bytes, 0, header.check});
}

std::optional<PieceHeader> decode_piece(std::string_view bytes) {
  PieceFields f;
  if (bytes.size() < sizeof f) return {};
  std::memcpy(&f, bytes.data(), sizeof f);
  if (f.bytes > kPieceBytes || f.unused != 0) return {};
  return PieceHeader{f.bytes, f.check};
}

void BodyReader::get(void* to, size_t n) {
  ok_ &= n <= left_.size();
  if (!ok_) return;
  if (n > 0) std::memcpy(to, left_.data(), n);
  left_.remove_prefix(n);
}

// Each element has a byte at least: no count makes the reader take more memory than the body's own.
size_t BodyReader::count(size_t most) {
  uint16_t n = 0;
  (*this)(n);
  ok_ &= n <= most && n <= left_.size();
  return ok_ ? n : 0;
}

}  // namespace monarch
