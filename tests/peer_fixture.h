// SPDX-License-Identifier: Apache-2.0
// What tests of a job's agents share: its key, its nodes on this machine, connections, and files to send.
#pragma once

#include <fcntl.h>
#include <signal.h>

#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "runtime/hierarchy/hierarchy.h"
#include "runtime/metadata/board.h"
#include "runtime/metadata/catalog.h"
#include "runtime/metadata/dataset.h"
#include "runtime/peer/control.h"
#include "runtime/peer/fetch.h"
#include "runtime/peer/peers.h"
#include "runtime/peer/serve.h"
#include "tests/loopback.h"
#include "tests/tiers.h"

namespace monarch {

inline constexpr int kPatienceMs = 20000;

// Ignores SIGPIPE, as an agent does.
class PeerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { ::signal(SIGPIPE, SIG_IGN); }
};

inline PeerTls make_tls(const std::string& job = "c.1.0", const JobKey& key = {}) {
  Result<PeerTls> made = PeerTls::create(job, key);
  EXPECT_TRUE(made.ok()) << made.error().text;
  return made.take();
}

// So many nodes on this machine, each with so many free ports.
inline std::vector<PeerAddress> nodes_here(uint32_t count, int ports = 1) {
  std::vector<PeerAddress> nodes(count, {kLoopback, {}});
  for (PeerAddress& node : nodes)
    for (int i = 0; i < ports; ++i) node.ports.push_back(free_port());
  return nodes;
}

// What a node was told, in its order.
class Sayings {
 public:
  void add(const MessageHeader& header, std::string_view body) {
    const std::lock_guard hold(lock_);
    said_.push_back({header, std::string(body)});
  }
  void forget() {
    const std::lock_guard hold(lock_);
    said_.clear();
  }
  // All of a kind, each with its number.
  template <typename M>
  std::vector<std::pair<uint64_t, M>> numbered() {
    const std::lock_guard hold(lock_);
    std::vector<std::pair<uint64_t, M>> all;
    for (const Reply& one : said_)
      if (const auto message = one.header.type == M::kType ? decode<M>(one.body) : std::nullopt)
        all.emplace_back(one.header.number, *message);
    return all;
  }
  template <typename M>
  std::vector<M> all() {
    std::vector<M> all;
    for (const auto& [number, message] : numbered<M>()) all.push_back(message);
    return all;
  }
  template <typename M>
  size_t count() {
    return all<M>().size();
  }

 private:
  std::mutex lock_;
  std::vector<Reply> said_;
};

// The connection of somebody with the key who has dialled and said `hello`.
inline Fd meet_as(const Hello& hello, uint16_t port, const PeerTls& tls) {
  Handshake dials(tls, dial(port), Handshake::Side::kDials, hello, Handshake::After::kClear);
  const Status met = dials.wait(kPatienceMs);
  EXPECT_TRUE(met.ok()) << met.error().text;
  return dials.take_socket();
}

struct SocketPair {
  explicit SocketPair(int flags = 0) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0, ends), 0);
    here = Fd(ends[0]);
    there = Fd(ends[1]);
  }
  Fd here, there;
};

inline void write_to(const Fd& fd, std::string_view bytes) {
  EXPECT_EQ(::write(fd.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
}

// A part of a file is another one then.
inline void overwrite(const std::string& path, std::string_view bytes, uint64_t at) {
  const Fd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  EXPECT_EQ(::pwrite(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(at)),
            static_cast<ssize_t>(bytes.size()));
}

// Whether a byte comes, which is taken, or the end; false if neither ever does.
inline bool is_told(const Fd& fd) {
  char byte;
  return eventually([&] { return ::recv(fd.get(), &byte, 1, MSG_DONTWAIT) == 1; });
}
inline bool is_hung_up(const Fd& fd) {
  char byte;
  return eventually([&] {
    const ssize_t n = ::recv(fd.get(), &byte, 1, MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno == ECONNRESET);
  });
}

// Of each piece of a file with that content.
inline std::vector<uint64_t> checks_of(const std::string& content) {
  std::vector<uint64_t> checks;
  for (size_t at = 0; at < content.size(); at += kPieceBytes)
    checks.push_back(check_of_piece(content.data() + at, std::min<size_t>(kPieceBytes, content.size() - at)));
  return checks;
}

// A copy, as another node gets it: of each piece `check` says whether it is there.
class SentFile : public ServedFile {
 public:
  using Check = std::function<std::optional<uint64_t>(uint64_t piece)>;
  SentFile(const std::string& path, const FileIdentity& identity, Check check)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), identity_(identity), check_(std::move(check)) {}
  int copy() const override { return fd_.get(); }
  FileIdentity identity() const override { return identity_; }
  std::optional<uint64_t> check(uint64_t piece, int) override { return check_(piece); }

 private:
  const Fd fd_;
  const FileIdentity identity_;
  const Check check_;
};

// What an agent has before it begins: a dataset, a tier if it has a quota, a board and a catalog.
struct AgentParts {
  AgentParts(const Scratch& scratch, const std::string& pfs, uint64_t quota, const ReadPolicy& policy) {
    const std::string run_dir = scratch.dir("run");
    Result<Dataset> opened = Dataset::open({pfs});
    Result<BoardFile> made = BoardFile::create(run_dir);
    EXPECT_TRUE(opened.ok() && made.ok());
    dataset.emplace(opened.take());
    board_file.emplace(made.take());
    std::vector<TierView> views;
    if (quota > 0) {
      Result<Hierarchy> tiers = Hierarchy::open({tier_config(scratch, "ssd", quota)}, "monarch-run.test");
      EXPECT_TRUE(tiers.ok());
      hierarchy.emplace(tiers.take());
      views.push_back({tier().name(), tier().copies_path(), tier().device()});
    }
    Result<std::unique_ptr<Catalog>> entries =
        Catalog::create(run_dir, dataset->root_views(), dataset->prefixes, views, policy);
    EXPECT_TRUE(entries.ok());
    catalog = entries.take();
  }
  Tier& tier() { return hierarchy->tiers()[0]; }
  Board* board() const { return board_file->get(); }
  uint64_t counter(AgentCounter c) const { return total(*board(), c); }

  std::optional<Dataset> dataset;
  std::optional<Hierarchy> hierarchy;
  std::optional<BoardFile> board_file;
  std::unique_ptr<Catalog> catalog;
};

}  // namespace monarch
