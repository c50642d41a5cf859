// SPDX-License-Identifier: Apache-2.0
// Bytes of a peer: messages one after the other, as a connection carries them.
#include "runtime/peer/messages.h"

#include "tests/fuzz/targets.h"

namespace monarch::fuzz {
namespace {

// What is taken for a message is exactly what its sender meant.
template <typename M>
std::optional<M> looked(std::string_view body) {
  std::optional<M> message = decode<M>(body);
  if (message) FUZZ_CHECK(encode_body(*message) == body);
  return message;
}

template <typename M>
bool look(std::string_view body) {
  return looked<M>(body).has_value();
}

bool look_at_list(std::string_view body) {
  const std::optional<List> list = looked<List>(body);
  return list && look<ListParts>(list->parts);
}

// Whether it is one.
bool look_as(MessageType type, std::string_view body) {
  switch (type) {
    case MessageType::kHello:
      return look<Hello>(body);
    case MessageType::kPing:
      return look<Ping>(body);
    case MessageType::kPong:
      return look<Pong>(body);
    case MessageType::kWant:
      return look<Want>(body);
    case MessageType::kHave:
      return look<Have>(body);
    case MessageType::kRead:
      return look<Read>(body);
    case MessageType::kBusy:
      return look<Busy>(body);
    case MessageType::kPass:
      return look<Pass>(body);
    case MessageType::kLater:
      return look<Later>(body);
    case MessageType::kProgress:
      return look<ReadProgress>(body);
    case MessageType::kDone:
      return look<Done>(body);
    case MessageType::kAnnounce:
      return look<Announce>(body);
    case MessageType::kLost:
      return look<Lost>(body);
    case MessageType::kMark:
      return look<Mark>(body);
    case MessageType::kList:
      return look_at_list(body);
    case MessageType::kWalk:
      return look<Walk>(body);
    case MessageType::kReading:
      return look<Reading>(body);
    case MessageType::kMissed:
      return look<Missed>(body);
    case MessageType::kGather:
      return look<Gather>(body);
    case MessageType::kGathered:
      return look<Gathered>(body);
    case MessageType::kCount:
      return look<Count>(body);
    case MessageType::kTold:
      return look<Told>(body);
    case MessageType::kHeard:
      return look<Heard>(body);
    case MessageType::kGet:
      return look<Get>(body);
    case MessageType::kGot:
      return look<Got>(body);
  }
  FUZZ_CHECK(!"a header has a type that is none");
  return false;
}

}  // namespace

void messages(const uint8_t* data, size_t size) { (void)types_of_messages(data, size); }

std::set<uint16_t> types_of_messages(const uint8_t* data, size_t size) {
  std::set<uint16_t> types;
  const std::string bytes = text_of(data, size);
  std::string_view left(bytes);
  while (const std::optional<MessageHeader> header = decode_header(left)) {
    FUZZ_CHECK(header->body_bytes <= kMostBody);
    left.remove_prefix(MessageHeader::kBytes);
    const std::string_view body = left.substr(0, header->body_bytes);
    if (look_as(header->type, body)) types.insert(static_cast<uint16_t>(header->type));
    left.remove_prefix(body.size());
  }
  if (const std::optional<PieceHeader> piece = decode_piece(left)) FUZZ_CHECK(piece->bytes <= kPieceBytes);
  return types;
}

}  // namespace monarch::fuzz
