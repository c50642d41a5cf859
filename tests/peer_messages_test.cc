// SPDX-License-Identifier: Apache-2.0
// What is said arrives, and what is no message is none.
#include "runtime/peer/messages.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>

namespace monarch {
namespace {

template <typename M>
M sent(const M& message, MessageHeader header = {}) {
  const std::string bytes = encode(message, header);
  const std::optional<MessageHeader> got = decode_header(bytes);
  EXPECT_TRUE(got);
  EXPECT_EQ(got->type, M::kType);
  EXPECT_EQ(got->number, header.number);
  EXPECT_EQ(got->room, header.room);
  EXPECT_EQ(got->serving, header.serving);
  EXPECT_EQ(MessageHeader::kBytes + got->body_bytes, bytes.size());
  const std::string body = bytes.substr(MessageHeader::kBytes);
  for (size_t size = 0; size < body.size(); ++size)
    EXPECT_FALSE(decode<M>(body.substr(0, size))) << "cut after " << size;
  EXPECT_FALSE(decode<M>(body + '\0')) << "something is left over";
  const std::optional<M> decoded = decode<M>(body);
  EXPECT_TRUE(decoded);
  return decoded.value_or(M());
}

const FileKey kKey = {0x0102030405060708, 0x1112131415161718};
const FileIdentity kIdentity = {1, -2, 3, 4, 5};

// The body of `message` with its byte at `at` replaced.
template <typename M>
std::optional<M> with_byte(const M& message, size_t at, uint8_t byte) {
  std::string body = encode(message).substr(MessageHeader::kBytes);
  body.at(at) = static_cast<char>(byte);
  return decode<M>(body);
}

TEST(MessagesTest, WhatIsSaidArrives) {
  const Hello hello =
      sent(Hello{kPeerVersion, Lane::kData, 7, 8, 9, 10, 11, "10.0.0.1"}, {{}, 0, 77, 1 << 20, 3});
  EXPECT_EQ(hello.lane, Lane::kData);
  EXPECT_EQ(hello.node, 7u);
  EXPECT_EQ(hello.incarnation, 8u);
  EXPECT_EQ(hello.dataset, 9u);
  EXPECT_EQ(hello.settings, 10u);
  EXPECT_EQ(hello.port, 11u);
  const View view = sent(View{{{1, 2, 3, 4, "10.0.0.1"}, {5, 6, 7, 8, "fe80::1%eth0"}}});
  ASSERT_EQ(view.members.size(), 2u);
  EXPECT_EQ(view.members[1].node, 5u);
  EXPECT_EQ(view.members[1].incarnation, 6u);
  EXPECT_EQ(view.members[1].room, 7u);
  EXPECT_EQ(view.members[1].port, 8u);
  EXPECT_EQ(view.members[1].address, "fe80::1%eth0");
  const Want want = sent(Want{kKey, Purpose::kPrefetch, Waits::kNo});
  EXPECT_EQ(want.waits, Waits::kNo);
  EXPECT_EQ(want.key, kKey);
  EXPECT_EQ(want.purpose, Purpose::kPrefetch);
  const Have have = sent(Have{{3, 1, 2}, kIdentity});
  EXPECT_EQ(have.holders, (std::vector<NodeIndex>{3, 1, 2}));
  EXPECT_EQ(have.identity, kIdentity);
  EXPECT_EQ(sent(Read{12}).lease, 12u);
  EXPECT_EQ(sent(Busy{13}).reader, 13u);
  const Progress progress = sent(Progress{kKey, 14, 15});
  EXPECT_EQ(progress.lease, 14u);
  EXPECT_EQ(progress.bytes, 15u);
  const Done done = sent(Done{kKey, 16, ReadResult::kNotHeld, kIdentity});
  EXPECT_EQ(done.lease, 16u);
  EXPECT_EQ(done.result, ReadResult::kNotHeld);
  EXPECT_EQ(done.identity, kIdentity);
  const Announce announce = sent(Announce{{{kKey, 6, kIdentity}}});
  ASSERT_EQ(announce.files.size(), 1u);
  EXPECT_EQ(announce.files[0].key, kKey);
  EXPECT_EQ(announce.files[0].holder, 6u);
  EXPECT_EQ(announce.files[0].identity, kIdentity);
  const Reading reading = sent(Reading{{{kKey, 7, 8}}});
  ASSERT_EQ(reading.files.size(), 1u);
  EXPECT_EQ(reading.files[0].key, kKey);
  EXPECT_EQ(reading.files[0].reader, 7u);
  EXPECT_EQ(reading.files[0].lease, 8u);
  const Gather gather = sent(Gather{1, 2, 3, 4});
  EXPECT_EQ(gather.share, 1u);
  EXPECT_EQ(gather.log, 2u);
  EXPECT_EQ(gather.from, 3u);
  EXPECT_EQ(gather.age_ms, 4u);
  const Gathered gathered = sent(Gathered{4, 5, 9, 6, 1, 0, {{kKey, 6, kIdentity}}, {{kKey, 7, 8}}});
  EXPECT_EQ(gathered.share, 4u);
  EXPECT_EQ(gathered.log, 5u);
  EXPECT_EQ(gathered.from, 9u);
  EXPECT_EQ(gathered.next, 6u);
  EXPECT_EQ(gathered.ended, 1);
  EXPECT_EQ(gathered.earlier, 0);
  ASSERT_EQ(gathered.files.size(), 1u);
  EXPECT_EQ(gathered.files[0].identity, kIdentity);
  ASSERT_EQ(gathered.reading.size(), 1u);
  EXPECT_EQ(gathered.reading[0].lease, 8u);
  EXPECT_EQ(sent(Missed{1}).acted, 1);
  (void)sent(Later());
  EXPECT_EQ(sent(Lost{kKey, 17}).holder, 17u);
  const Mark mark = sent(Mark{5, 1, {18, 0xffffffff}});
  EXPECT_EQ(mark.kinds, 5);
  EXPECT_EQ(mark.closed, 1);
  EXPECT_EQ(mark.marks, (std::vector<uint32_t>{18, 0xffffffff}));
  const Mark many = sent(Mark{5, 0, {}, 4096, {1, ~uint64_t{0}}});
  EXPECT_EQ(many.first_word, 4096u);
  EXPECT_EQ(many.words, (std::vector<uint64_t>{1, ~uint64_t{0}}));
  EXPECT_FALSE(many.ends_all());
  EXPECT_TRUE(sent(Mark()).ends_all());
  Count counted = {19, 20, 1, {}};
  auto* words = reinterpret_cast<uint64_t*>(&counted.counts);
  for (uint32_t i = 0; i < kNodeWords; ++i) words[i] = kMostCount - i;
  const Count count = sent(counted);
  EXPECT_EQ(count.incarnation, 19u);
  EXPECT_EQ(count.turn, 20u);
  EXPECT_EQ(count.last, 1);
  EXPECT_EQ(std::memcmp(&count.counts, &counted.counts, sizeof count.counts), 0);
  const Get get =
      sent(Get{19, 0, std::string(kMostPeerPath, 'p'), 20, 21, Follow::kYes, 22, Purpose::kPrefetch});
  EXPECT_EQ(get.inode, 22u);
  EXPECT_EQ(get.root, 19u);
  EXPECT_EQ(get.path.size(), kMostPeerPath);
  EXPECT_EQ(get.offset, 20u);
  EXPECT_EQ(get.bytes, 21u);
  EXPECT_EQ(get.follow, Follow::kYes);
  EXPECT_EQ(get.purpose, Purpose::kPrefetch);
  const Got got = sent(Got{GetResult::kBusy, kIdentity});
  EXPECT_EQ(got.result, GetResult::kBusy);
  EXPECT_EQ(got.identity, kIdentity);
  const Walk walk = sent(Walk{22, 23});
  EXPECT_EQ(walk.log, 22u);
  EXPECT_EQ(walk.from, 23u);
  const ListPart part = {1, "a/b", 2, 3, -4, 5, 6, 1, {{"f", 8, 9}, {"d", 4, 10}}};
  const List list = sent(List{24, 25, 26, WalkState::kEnded, encode_body(ListParts{{part}})});
  EXPECT_EQ(list.log, 24u);
  EXPECT_EQ(list.next, 25u);
  EXPECT_EQ(list.progress, 26u);
  EXPECT_EQ(list.state, WalkState::kEnded);
  const std::optional<ListParts> parts = decode<ListParts>(list.parts);
  ASSERT_TRUE(parts);
  ASSERT_EQ(parts->parts.size(), 1u);
  EXPECT_EQ(parts->parts[0].root, 1u);
  EXPECT_EQ(parts->parts[0].path, "a/b");
  EXPECT_EQ(parts->parts[0].listing, 2);
  EXPECT_EQ(parts->parts[0].inode, 3u);
  EXPECT_EQ(parts->parts[0].mtime_ns, -4);
  EXPECT_EQ(parts->parts[0].ctime_ns, 5);
  EXPECT_EQ(parts->parts[0].before, 6u);
  EXPECT_EQ(parts->parts[0].last, 1);
  ASSERT_EQ(parts->parts[0].names.size(), 2u);
  EXPECT_EQ(parts->parts[0].names[1].name, "d");
  EXPECT_EQ(parts->parts[0].names[1].type, 4);
  EXPECT_EQ(parts->parts[0].names[1].inode, 10u);
  const ToldFile file = {27, "a/b", 1, 28, 29, 30, 31, 32, 33, 34, 35, -36, 37, 38};
  const Told told = sent(Told{39, {file, {}}});
  EXPECT_EQ(told.turn, 39u);
  ASSERT_EQ(told.files.size(), 2u);
  EXPECT_EQ(encode_body(told.files[0]), encode_body(file));
  EXPECT_EQ(told.files[0].path, "a/b");
  EXPECT_EQ(told.files[0].atime_ns, -36);
  EXPECT_EQ(told.files[0].ctime_ns, 38);
  EXPECT_EQ(sent(Heard{40}).turn, 40u);
  (void)sent(Ping());
  (void)sent(Pong());
  (void)sent(Pass());
}

TEST(MessagesTest, TheLargestFit) {
  EXPECT_LE(encode(View{std::vector<MemberView>(View::kMost, {1, 2, 3, 4, std::string(64, 'a')})}).size(),
            MessageHeader::kBytes + kMostBody);
  EXPECT_LE(encode(Announce{std::vector<HeldFile>(Announce::kMost)}).size(),
            MessageHeader::kBytes + kMostBody);
  EXPECT_LE(encode(List{1, 2, 3, {}, std::string(List::kMostParts, 'p')}).size(),
            MessageHeader::kBytes + kMostBody);
}

TEST(MessagesTest, WhatIsOutOfItsRangeIsRefused) {
  EXPECT_TRUE(with_byte(Want{}, 16, 1));
  EXPECT_FALSE(with_byte(Want{}, 16, 2)) << "no purpose";
  EXPECT_TRUE(with_byte(Want{}, 17, 1));
  EXPECT_FALSE(with_byte(Want{}, 17, 2)) << "neither";
  EXPECT_FALSE(with_byte(Done{}, 24, 2)) << "no result";
  EXPECT_FALSE(with_byte(Got{}, 0, 4)) << "no result";
  EXPECT_FALSE(with_byte(Hello{}, 2, 2)) << "no lane";
  EXPECT_FALSE(with_byte(Get{}, 26, 2)) << "no way to follow";
  EXPECT_TRUE(with_byte(Get{}, 35, 1));
  EXPECT_FALSE(with_byte(Get{}, 35, 2)) << "no purpose";
  EXPECT_FALSE(decode<Have>(encode(Have{{1, 2, 3, 4, 5}, {}}).substr(MessageHeader::kBytes)));
  EXPECT_FALSE(with_byte(Mark{}, 0, 8)) << "no kinds of marks";
  EXPECT_FALSE(with_byte(Mark{}, 1, 2)) << "neither";
  EXPECT_FALSE(
      decode<Mark>(encode(Mark{0, 0, std::vector<uint32_t>(Mark::kMost + 1)}).substr(MessageHeader::kBytes)));
  EXPECT_FALSE(with_byte(List{}, 24, 4)) << "no state";
  EXPECT_FALSE(decode<List>(encode_body(List{1, 2, 3, {}, std::string(List::kMostParts + 1, 'p')})));
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
  EXPECT_FALSE(with_byte(Count{}, 16, 2)) << "neither";
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
  Get far;
  far.path.assign(kMostPeerPath + 1, 'p');
  EXPECT_FALSE(decode<Get>(encode(far).substr(MessageHeader::kBytes)));
  EXPECT_FALSE(
      decode<View>(encode(View{std::vector<MemberView>(View::kMost + 1)}).substr(MessageHeader::kBytes)));
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
  EXPECT_FALSE(with(6, 2)) << "more than " << kMostBody;
  EXPECT_FALSE(with(28, 0)) << "no type";
  EXPECT_FALSE(with(28, 99)) << "no type";
  EXPECT_FALSE(with(29, 1)) << "no type";
  EXPECT_FALSE(with(30, 1)) << "not of this version";
}

TEST(MessagesTest, PiecesAreBounded) {
  const std::optional<PieceHeader> whole = decode_piece(encode_piece({kPieceBytes, 5}));
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->bytes, kPieceBytes);
  EXPECT_EQ(whole->check, 5u);
  EXPECT_FALSE(decode_piece(encode_piece({kPieceBytes + 1, 5})));
  EXPECT_FALSE(decode_piece(encode_piece({1, 5}).substr(1)));
  std::string unknown = encode_piece({1, 5});
  unknown[4] = 1;
  EXPECT_FALSE(decode_piece(unknown));
}

TEST(MessagesTest, WhatIsCutShortIsNone) {
  const std::string ping = encode(Ping()), piece = encode_piece({1, 5});
  ASSERT_EQ(ping.size(), MessageHeader::kBytes);
  EXPECT_FALSE(decode_header(std::string_view(ping).substr(0, ping.size() - 1)));
  EXPECT_FALSE(decode_piece(std::string_view(piece).substr(0, piece.size() - 1)));
}

TEST(MessagesTest, AGetEndsWithAPieceOrWithTheFile) {
  constexpr uint64_t kFile = 3 * kPieceBytes + 5;
  const auto end = [](uint64_t offset, uint64_t bytes) {
    Get get;
    get.offset = offset;
    get.bytes = bytes;
    return end_of(get, kFile);
  };
  EXPECT_EQ(end(0, 0), kFile);
  EXPECT_EQ(end(kPieceBytes, kPieceBytes), 2 * kPieceBytes);
  EXPECT_EQ(end(3 * kPieceBytes, kPieceBytes), kFile);
  EXPECT_EQ(end(kPieceBytes, ~uint64_t{0} - kPieceBytes + 1), kFile) << "no sum goes over";
  EXPECT_EQ(end(1, 0), std::nullopt);
  EXPECT_EQ(end(0, 1), std::nullopt);
  EXPECT_EQ(end(4 * kPieceBytes, 0), std::nullopt);
}

}  // namespace
}  // namespace monarch
