// SPDX-License-Identifier: Apache-2.0
// Root's stores of tiers, as threads of the test.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/config/config.h"
#include "runtime/store/client.h"
#include "runtime/store/server.h"

namespace monarch {

// Both ends of what connects an agent with a store.
struct StorePipes {
  StorePipes() {
    int pipe[2], sockets[2];
    if (::pipe2(pipe, O_CLOEXEC) != 0 ||
        ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0)
      ADD_FAILURE() << "pipe: " << strerror(errno);
    requests = Fd(pipe[0]), asks = Fd(pipe[1]);
    answers = Fd(sockets[0]), told = Fd(sockets[1]);
  }
  Fd requests, answers;  // the store's
  Fd asks, told;         // the agent's
};

// The store of a job's directory, which is made. It ends with the agent's ends.
class StoreThread {
 public:
  StoreThread(const TierConfig& tier, const std::string& job_dir, uint64_t granted) : granted_(granted) {
    ::signal(SIGIO, SIG_IGN);
    std::filesystem::remove_all(tier.path + "/" + job_dir);
    std::filesystem::create_directories(tier.path + "/" + job_dir);
    StorePipes pipes;
    ends_ = {tier.name, pipes.asks.release(), pipes.told.release()};
    Fd directory(::open((tier.path + "/" + job_dir).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    thread_ = std::thread([this, name = tier.name, requests = std::move(pipes.requests),
                           answers = std::move(pipes.answers), dir = std::move(directory)]() mutable {
      StoreServer(std::move(dir), name, [this] {
        return granted_.load();
      }).serve(requests.get(), answers.get());
    });
  }
  ~StoreThread() { thread_.join(); }
  const StoreEnds& ends() const { return ends_; }
  void grant(uint64_t bytes) { granted_ = bytes; }

 private:
  std::atomic<uint64_t> granted_;
  StoreEnds ends_;
  std::thread thread_;
};

// The tests of tiers and placement, run with MONARCH_TEST_STORE=1 (tests/store.t), have root's stores.
inline bool is_by_store() { return std::getenv("MONARCH_TEST_STORE") != nullptr; }

// Those of tiers, if so. Ends after who uses them.
class Stores {
 public:
  std::vector<StoreEnds> start(const std::vector<TierConfig>& tiers, const std::string& job_dir) {
    std::vector<StoreEnds> ends;
    if (!is_by_store()) return ends;
    for (const TierConfig& tier : tiers) {
      struct statvfs fs = {};
      ::statvfs(tier.path.c_str(), &fs);
      ends.push_back(
          threads_.emplace_back(tier, job_dir, tier.quota.of(uint64_t{fs.f_blocks} * fs.f_frsize)).ends());
    }
    return ends;
  }
  // As much as anybody asks for.
  void grant_all() {
    for (StoreThread& thread : threads_) thread.grant(uint64_t{1} << 60);
  }
  // Once the agent's ends are closed.
  void end() { threads_.clear(); }

 private:
  std::list<StoreThread> threads_;
};

}  // namespace monarch
