// SPDX-License-Identifier: Apache-2.0
// What is said arrives, and what is no message is none.
#include "runtime/peer/messages.h"

#include <gtest/gtest.h>

#include <functional>

namespace monarch {
namespace {

// That `message` arrives as it is, and has a body of so many bytes: those of all its fields.
template <typename M>
void arrives(const M& message, size_t body_bytes, MessageHeader header = {}) {
  SCOPED_TRACE(static_cast<int>(M::kType));
  const std::string bytes = encode(message, header);
  const std::optional<MessageHeader> got = decode_header(bytes);
  EXPECT_TRUE(got);
  EXPECT_EQ(got->type, M::kType);
  EXPECT_EQ(got->number, header.number);
  EXPECT_EQ(MessageHeader::kBytes + got->body_bytes, bytes.size());
  const std::string body = bytes.substr(MessageHeader::kBytes);
  for (size_t size = 0; size < body.size(); ++size)
    EXPECT_FALSE(decode<M>(body.substr(0, size))) << "cut after " << size;
  EXPECT_FALSE(decode<M>(body + '\0')) << "something is left over";
  EXPECT_EQ(body.size(), body_bytes);
  const std::optional<M> decoded = decode<M>(body);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(encode(*decoded, header), bytes);
}

const FileKey kKey = {0x0102030405060708, 0x1112131415161718};
const FileIdentity kIdentity = {1, -2, 3, 4, 5};

template <typename M>
bool arrives_at_all(const M& message) {
  return decode<M>(encode_body(message)).has_value();
}

// The body of `message` with its byte at `at` replaced.
template <typename M>
std::optional<M> with_byte(const M& message, size_t at, uint8_t byte) {
  std::string body = encode(message).substr(MessageHeader::kBytes);
  body.at(at) = static_cast<char>(byte);
  return decode<M>(body);
}

TEST(MessagesTest, WhatIsSaidArrives) {
  arrives(Hello{kPeerVersion, Lane::kData, 7, 8, 9, 10, 11, "10.0.0.1"}, 43, {{}, 0, 77});
  arrives(Want{kKey, Waits::kNo}, 17);
  arrives(Have{{3, 1, 2}, kIdentity}, 54);
  arrives(Read{12}, 8);
  arrives(Busy{13}, 4);
  arrives(ReadProgress{kKey}, 16);
  arrives(Done{kKey, 16, ReadResult::kNotHeld, kIdentity}, 65);
  arrives(Announce{{{kKey, 6, kIdentity}}}, 62);
  arrives(Reading{{{kKey, 7, 8}}}, 30);
  arrives(Gather{1, 2, 3, 4}, 28);
  arrives(Gathered{4, 5, 9, 6, 1, 0, {{kKey, 6, kIdentity}}, {{kKey, 7, 8}}}, 122);
  arrives(Missed{1}, 1);
  arrives(Lost{kKey, 17}, 20);
  arrives(Mark{5, 1, {18, 0xffffffff}}, 18);
  arrives(Mark{5, 0, {}, 4096, {1, ~uint64_t{0}}}, 26);
  arrives(Get{19, std::string(kMostPeerPath, 'p'), 20, 21, Follow::kYes, 22, Purpose::kPrefetch}, 4128);
  arrives(Got{GetResult::kBusy, kIdentity}, 41);
  arrives(Walk{22, 23}, 16);
  const ListPart part = {1, "a/b", 2, 3, -4, 5, 6, 1, {{"f", 8, 9}, {"d", 4, 10}}};
  const std::string parts = encode_body(ListParts{{part}});
  arrives(List{24, 25, 26, WalkState::kEnded, parts}, 27 + parts.size());
  EXPECT_EQ(parts.size(), 71u);
  const std::optional<ListParts> listed = decode<ListParts>(parts);
  ASSERT_TRUE(listed);
  EXPECT_EQ(encode_body(*listed), parts);
  arrives(Told{39, {{27, "a/b", 1, 28, 29, 30, 31, 32, 33, 34, 35, -36, 37, 38}, {}}}, 163);
  arrives(Heard{40}, 8);
  Count counted = {19, 20, 1, {}};
  auto* words = reinterpret_cast<uint64_t*>(&counted.counts);
  for (uint32_t i = 0; i < kNodeWords; ++i) words[i] = kMostCount - i;
  arrives(counted, 17 + sizeof counted.counts);
  arrives(Ping(), 0);
  arrives(Pong(), 0);
  arrives(Pass(), 0);
  arrives(Later(), 0);
  EXPECT_TRUE(Mark().ends_all());
  EXPECT_FALSE((Mark{5, 0, {}, 4096, {1}}).ends_all());
}

TEST(MessagesTest, TheLargestFit) {
  for (const std::string& message : {encode(Announce{std::vector<HeldFile>(Announce::kMost)}),
                                     encode(List{1, 2, 3, {}, std::string(List::kMostParts, 'p')})})
    EXPECT_LE(message.size(), MessageHeader::kBytes + kMostBody);
}

TEST(MessagesTest, WhatIsOutOfItsRangeIsRefused) {
  EXPECT_TRUE(with_byte(Want{}, 16, 1) && with_byte(Get{}, 31, 1));
  EXPECT_FALSE(with_byte(Want{}, 16, 2)) << "neither";
  EXPECT_FALSE(with_byte(Done{}, 24, 2)) << "no result";
  EXPECT_FALSE(with_byte(Got{}, 0, 4)) << "no result";
  EXPECT_FALSE(with_byte(Hello{}, 2, 2)) << "no lane";
  EXPECT_FALSE(with_byte(Get{}, 22, 2)) << "no way to follow";
  EXPECT_FALSE(with_byte(Get{}, 31, 2)) << "no purpose";
  EXPECT_FALSE(with_byte(Mark{}, 0, 8)) << "no kinds of marks";
  EXPECT_FALSE(with_byte(Mark{}, 1, 2)) << "neither";
  EXPECT_FALSE(with_byte(List{}, 24, 4)) << "no state";
  EXPECT_FALSE(with_byte(Count{}, 16, 2)) << "neither";
  EXPECT_FALSE(arrives_at_all(Have{{1, 2, 3, 4, 5}, {}}));
  EXPECT_FALSE(arrives_at_all(Mark{0, 0, std::vector<uint32_t>(Mark::kMost + 1)}));
  EXPECT_FALSE(arrives_at_all(List{1, 2, 3, {}, std::string(List::kMostParts + 1, 'p')}));
  EXPECT_FALSE(arrives_at_all(Get{0, std::string(kMostPeerPath + 1, 'p'), 0, 0, Follow::kNo, 0, {}}));
  const auto is_part = [](const std::function<void(ListPart*)>& change) {
    ListParts parts{{{1, "a", 2, 3, 4, 5, 6, 1, {{"f", 14, 9}}}}};
    change(&parts.parts[0]);
    return decode<ListParts>(encode_body(parts)).has_value();
  };
  EXPECT_TRUE(is_part([](ListPart*) {}));
  EXPECT_FALSE(is_part([](ListPart* part) { part->listing = 3; }));
  EXPECT_FALSE(is_part([](ListPart* part) { part->last = 2; }));
  EXPECT_FALSE(is_part([](ListPart* part) { part->path.assign(kMostPeerPath + 1, 'p'); }));
  EXPECT_FALSE(is_part([](ListPart* part) { part->names[0].type = 15; }));
  EXPECT_FALSE(is_part([](ListPart* part) { part->names[0].name.assign(256, 'n'); }));
  EXPECT_FALSE(is_part([](ListPart* part) { part->names.resize(ListPart::kMost + 1); }));
  EXPECT_FALSE(decode<ListParts>(encode_body(ListParts{std::vector<ListPart>(ListParts::kMost + 1)})));
  const auto is_told = [](const std::function<void(ToldFile*)>& change) {
    Told told{1, {{}}};
    change(&told.files[0]);
    return decode<Told>(encode_body(told)).has_value();
  };
  EXPECT_TRUE(is_told([](ToldFile* file) { file->bytes = ToldFile::kMostBytes; }));
  EXPECT_FALSE(is_told([](ToldFile* file) { file->bytes = ToldFile::kMostBytes + 1; }));
  EXPECT_FALSE(is_told([](ToldFile* file) { file->blocks = ToldFile::kMostBytes + 1; }));
  EXPECT_FALSE(is_told([](ToldFile* file) { file->read = 2; }));
  EXPECT_FALSE(is_told([](ToldFile* file) { file->path.assign(kMostPeerPath + 1, 'p'); }));
  EXPECT_FALSE(decode<Told>(encode_body(Told{1, std::vector<ToldFile>(Told::kMost + 1)})));
  for (size_t at = 17 + 7; at < 17 + 8 * size_t{kNodeWords}; at += 8) {
    EXPECT_TRUE(with_byte(Count{}, at, 0x0f));
    EXPECT_FALSE(with_byte(Count{}, at, 0x10)) << "no job counts so much, at " << at;
  }
}

TEST(MessagesTest, HeadersThatAreNoneAreRefused) {
  const std::string good = encode(Ping());
  ASSERT_TRUE(decode_header(good));
  const auto with = [&](size_t at, char byte) {
    std::string bytes = good;
    bytes.at(at) = byte;
    return decode_header(bytes).has_value();
  };
  EXPECT_FALSE(decode_header(good.substr(1)));
  EXPECT_FALSE(with(0, 'X')) << "not ours";
  EXPECT_TRUE(with(5, 1)) << "a body";
  // Not ours; more than kMostBody; no type; not of this version.
  for (const auto& [at, byte] : {std::pair(0, 'X'), {6, '\2'}, {16, '\0'}, {16, 'c'}, {17, '\1'}, {18, '\1'}})
    EXPECT_FALSE(with(static_cast<size_t>(at), byte)) << at;
}

}  // namespace
}  // namespace monarch
