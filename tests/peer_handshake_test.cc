// SPDX-License-Identifier: Apache-2.0
// Two agents of a job meet; others do not.
#include "runtime/peer/handshake.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <functional>
#include <future>

#include "runtime/peer/messages.h"
#include "tests/manual_clock.h"
#include "tests/peer_fixture.h"

namespace monarch {
namespace {

constexpr char kJob[] = "cluster.17.0";

JobKey key(unsigned char seed) {
  JobKey k;
  for (size_t i = 0; i < k.size(); ++i) k[i] = static_cast<unsigned char>(seed + i);
  return k;
}

class HandshakeTest : public PeerTest {
 protected:
  static Hello hello(NodeIndex node) {
    Hello h;
    h.node = node;
    h.dataset = 42;
    return h;
  }
  // Nodes 3 and 4 of the job, connected.
  struct Ends {
    Ends(const PeerTls& dialing, const PeerTls& listening, Handshake::After after = Handshake::After::kClear,
         const Hello& says = hello(3), SocketPair pair = SocketPair())
        : dials(dialing, std::move(pair.here), Handshake::Side::kDials, says, after),
          listens(listening, std::move(pair.there), Handshake::Side::kListens, hello(4), after) {}
    Handshake dials, listens;
  };
  // One of a pair alone.
  Handshake end_of(Fd socket, Handshake::Side side, Handshake::After after = Handshake::After::kClear) const {
    return {ours, std::move(socket), side, hello(4), after};
  }
  // Both ends at once; what each says at its end.
  struct Met {
    Status dials, listens;
  };
  static Met meet(Ends* both) {
    auto other = std::async(std::launch::async, [&] { return both->listens.wait(kPatienceMs); });
    Met met;
    met.dials = both->dials.wait(kPatienceMs);
    if (!met.dials.ok()) ::shutdown(both->dials.socket(), SHUT_RDWR);
    met.listens = other.get();
    return met;
  }
  // Both go on by turns, and `between` them something else does.
  static void expect_done(Handshake* dials, Handshake* listens,
                          const std::function<void(Handshake::Step dials)>& between) {
    using Step = Handshake::Step;
    Step one = Step::kWantsRead, other = one;
    for (int i = 0; i < 20000 && (one != Step::kDone || other != Step::kDone); ++i) {
      one = dials->step();
      between(one);
      other = listens->step();
      ASSERT_TRUE(one != Step::kFailed && other != Step::kFailed)
          << dials->error().text << listens->error().text;
    }
    EXPECT_TRUE(one == Step::kDone && other == Step::kDone);
  }
  static std::string read_some(const Fd& fd, size_t bytes) {
    std::string got;
    while (got.size() < bytes) {
      pollfd at = {fd.get(), POLLIN, 0};
      char buffer[4096];
      if (::poll(&at, 1, kPatienceMs) != 1) break;
      const ssize_t n = ::read(fd.get(), buffer, std::min(sizeof buffer, bytes - got.size()));
      if (n <= 0) break;
      got.append(buffer, static_cast<size_t>(n));
    }
    return got;
  }
  // What the listening end makes of these bytes.
  Status listen_to(const std::string& bytes, int patience_ms = kPatienceMs) {
    SocketPair pair;
    Handshake listens = end_of(std::move(pair.there), Handshake::Side::kListens);
    write_to(pair.here, bytes);
    return listens.wait(patience_ms);
  }
  const PeerTls ours = make_tls(kJob, key(1));
};

TEST_F(HandshakeTest, TwoOfAJobMeetAndGoOnInClear) {
  const PeerTls theirs = make_tls(kJob, key(1));
  Ends both(ours, theirs);
  Handshake &dials = both.dials, &listens = both.listens;
  const Met met = meet(&both);
  ASSERT_TRUE(met.dials.ok()) << met.dials.error().text;
  ASSERT_TRUE(met.listens.ok()) << met.listens.error().text;
  EXPECT_EQ(dials.theirs().node, 4u);
  EXPECT_EQ(listens.theirs().node, 3u);
  EXPECT_EQ(listens.theirs().dataset, 42u);
  EXPECT_FALSE(dials.take_tls());
  const Fd a = dials.take_socket(), b = listens.take_socket();
  ASSERT_EQ(::write(a.get(), "clear", 5), 5);
  EXPECT_EQ(read_some(b, 5), "clear");
  ASSERT_EQ(::write(b.get(), "words", 5), 5);
  EXPECT_EQ(read_some(a, 5), "words");
}

// The one end is done, and has said more, before the other one reads on.
TEST_F(HandshakeTest, WhatIsSaidRightAfterItIsNotLost) {
  Ends both(ours, ours);
  Handshake &dials = both.dials, &listens = both.listens;
  const std::string more = noise(100000, 5);
  bool said = false;
  expect_done(&dials, &listens, [&](Handshake::Step one) {
    if (one != Handshake::Step::kDone || said) return;
    said = true;
    EXPECT_EQ(::write(dials.socket(), more.data(), more.size()), static_cast<ssize_t>(more.size()));
  });
  EXPECT_EQ(read_some(listens.take_socket(), more.size()), more);
}

TEST_F(HandshakeTest, EncryptedItStaysInTls) {
  Ends both(ours, ours, Handshake::After::kEncrypted);
  Handshake &dials = both.dials, &listens = both.listens;
  const Met met = meet(&both);
  ASSERT_TRUE(met.dials.ok() && met.listens.ok());
  const Tls a = dials.take_tls(), b = listens.take_tls();
  ASSERT_TRUE(a && b);
  EXPECT_EQ(::SSL_write(a.get(), "secret", 6), 6);
  char wire[256] = {};
  const ssize_t n = ::recv(listens.socket(), wire, sizeof wire, MSG_PEEK);
  ASSERT_GT(n, 6);
  EXPECT_EQ(std::string(wire, static_cast<size_t>(n)).find("secret"), std::string::npos);
  char got[6];
  EXPECT_EQ(::SSL_read(b.get(), got, sizeof got), 6);
  EXPECT_EQ(std::string(got, 6), "secret");
}

TEST_F(HandshakeTest, WhoIsNotTheOneThatWasDialledIsRefused) {
  constexpr uint16_t kPort = 64000;
  for (const auto& [node, port] :
       {std::pair<NodeIndex, uint16_t>(4, kPort), {3, kPort}, {5, kPort}, {4, 64001}}) {
    SocketPair pair;
    Hello says = hello(4);
    says.port = kPort;
    Handshake dials(ours, std::move(pair.here), Handshake::Side::kDials, hello(3), Handshake::After::kClear,
                    Handshake::Dialled{node, port});
    Handshake listens(ours, std::move(pair.there), Handshake::Side::kListens, says, Handshake::After::kClear);
    auto other = std::async(std::launch::async, [&] { return listens.wait(kPatienceMs); });
    const Status dialled = dials.wait(kPatienceMs);
    EXPECT_EQ(dialled.ok() ? 0 : dialled.error().code, node == 4 && port == kPort ? 0 : ECONNREFUSED)
        << node << " " << port;
    ::shutdown(dials.socket(), SHUT_RDWR);
    (void)other.get();
  }
}

// Another key, job or run.
TEST_F(HandshakeTest, AnotherKeyIsRefusedByBoth) {
  for (const auto& [job, seed] :
       {std::pair(kJob, 2), {"cluster.18.0", 1}, {"cluster.17.1", 1}, {"cluster.17.00", 1}, {"x", 1}}) {
    const PeerTls theirs = make_tls(job, key(static_cast<unsigned char>(seed)));
    Ends both(theirs, ours);
    const Met met = meet(&both);
    EXPECT_FALSE(met.dials.ok()) << job;
    ASSERT_FALSE(met.listens.ok()) << job;
    EXPECT_EQ(met.listens.error().code, EACCES) << met.listens.error().text;
    EXPECT_EQ(both.dials.theirs().dataset, 0u) << "nothing was said";
    EXPECT_EQ(both.listens.theirs().dataset, 0u);
  }
}

// A client without the key, which would take any certificate.
TEST_F(HandshakeTest, AStrangersTlsIsRefused) {
  for (const int newest : {0, TLS1_2_VERSION}) {  // 0: as new as there is
    SocketPair pair;
    Handshake listens = end_of(std::move(pair.there), Handshake::Side::kListens);
    auto other = std::async(std::launch::async, [&] { return listens.wait(kPatienceMs); });
    SSL_CTX* context = ::SSL_CTX_new(::TLS_method());
    ASSERT_EQ(::SSL_CTX_set_max_proto_version(context, newest), 1);
    SSL* client = ::SSL_new(context);
    ::SSL_set_fd(client, pair.here.get());
    EXPECT_LE(::SSL_connect(client), 0);
    const Status refused = other.get();
    EXPECT_EQ(refused.error().code, EACCES) << refused.error().text;
    ::SSL_free(client);
    ::SSL_CTX_free(context);
  }
}

// Something else that listens there, with a certificate of its own.
TEST_F(HandshakeTest, AStrangersServerIsRefused) {
  EVP_PKEY* own = ::EVP_EC_gen("P-256");
  X509* certificate = ::X509_new();
  ::X509_set_version(certificate, 2);
  ::X509_gmtime_adj(::X509_getm_notBefore(certificate), 0);
  ::X509_gmtime_adj(::X509_getm_notAfter(certificate), 3600);
  ::X509_set_pubkey(certificate, own);
  ASSERT_GT(::X509_sign(certificate, own, ::EVP_sha256()), 0);
  SSL_CTX* context = ::SSL_CTX_new(::TLS_method());
  ASSERT_EQ(::SSL_CTX_use_certificate(context, certificate), 1);
  ASSERT_EQ(::SSL_CTX_use_PrivateKey(context, own), 1);
  SocketPair pair;
  auto squats = std::async(std::launch::async, [&] {
    SSL* server = ::SSL_new(context);
    ::SSL_set_fd(server, pair.there.get());
    const int accepted = ::SSL_accept(server);
    ::SSL_free(server);
    return accepted;
  });
  Handshake dials = end_of(std::move(pair.here), Handshake::Side::kDials);
  const Status refused = dials.wait(kPatienceMs);
  EXPECT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, EACCES) << refused.error().text;
  EXPECT_LE(squats.get(), 0);
  ::SSL_CTX_free(context);
  ::X509_free(certificate);
  ::EVP_PKEY_free(own);
}

TEST_F(HandshakeTest, NoiseIsRefused) {
  const Status refused = listen_to("GET / HTTP/1.0\r\n\r\n");
  EXPECT_TRUE(refused.error().text.starts_with("error:")) << "OpenSSL's reason: " << refused.error().text;
  for (uint64_t seed = 0; seed < 50; ++seed) EXPECT_FALSE(listen_to(noise(3000, seed), 0).ok()) << seed;
  EXPECT_FALSE(listen_to(std::string("\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", 10), 0).ok());
}

TEST_F(HandshakeTest, WhoSaysNothingIsWaitedForNoLongerThanAskedAndWhoHangsUpNotAtAll) {
  for (const Handshake::Side side : {Handshake::Side::kListens, Handshake::Side::kDials}) {
    SocketPair pair;
    Handshake waits = end_of(std::move(pair.there), side);
    ManualClock clock;
    auto waited = std::async(std::launch::async, [&] { return waits.wait(200, clock); });
    EXPECT_TRUE(clock.await_waiting(1));
    EXPECT_EQ(clock.next_ns() - clock.now_ns(), 200'000'000);
    clock.advance_ms(200);
    EXPECT_EQ(waited.get().error().code, ETIMEDOUT);
    EXPECT_EQ(waits.step(), Handshake::Step::kFailed) << "for good";
    SocketPair other;
    Handshake left = end_of(std::move(other.there), side);
    other.here.reset();
    const Status gone = left.wait(kPatienceMs);
    EXPECT_TRUE(!gone.ok() && gone.error().code != ETIMEDOUT) << gone.error().text;
  }
}

// One that has the key, and speaks another language inside.
TEST_F(HandshakeTest, AnotherVersionIsRefused) {
  Hello other = hello(3);
  other.version = kPeerVersion + 1;
  Ends both(ours, ours, Handshake::After::kClear, other);
  EXPECT_EQ(meet(&both).listens.error().text, "the peer does not speak this version");
}

// ---- peer messages

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
  arrives(Announce{{kKey, 6, kIdentity}}, 60);
  arrives(Reading{{kKey, 7, 8}}, 28);
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
  for (const std::string& message : {encode(Gathered{1, 2, 3, 4, 0, 0, std::vector<HeldFile>(Gathered::kMost),
                                                     std::vector<FileInReading>(Gathered::kMost)}),
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
  EXPECT_TRUE(with(5, 1)) << "a body";
  // Not ours; more than kMostBody; no type; not of this version.
  for (const auto& [at, byte] : {std::pair(0, 'X'), {6, '\2'}, {16, '\0'}, {16, 'c'}, {17, '\1'}, {18, '\1'}})
    EXPECT_FALSE(with(static_cast<size_t>(at), byte)) << at;
}

}  // namespace
}  // namespace monarch
