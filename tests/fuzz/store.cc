// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <map>

#include "runtime/store/server.h"
#include "tests/fuzz/targets.h"

namespace monarch::fuzz {
namespace {

constexpr uint64_t kBlock = 4096, kGranted = 64 * kBlock;

// A request in few bytes, so that many make sense; before it the agent writes into its file of the slot.
struct Step {
  uint8_t kind, slot, ref, other, bytes, written;
};
constexpr uint64_t kUnit = 1000;

// What an agent has, and what it was told of copies.
class StoreAgent {
 public:
  explicit StoreAgent(StoreServer* store) : store_(store) {}
  void take(const Step& step) {
    StoreAsk ask;
    ask.kind = step.kind % (kLastAskKind + 1);
    ask.slot = step.slot % 4;
    ask.ref = step.ref % 8;
    ask.other = step.other % 8;
    ask.bytes = step.bytes * kUnit;
    ask.mtime = {step.bytes, 1};
    if (const auto file = files_.find(ask.slot); file != files_.end() && step.written > 0)
      FUZZ_CHECK(::ftruncate(file->second.get(), static_cast<off_t>(step.written * kUnit)) == 0);
    send(ask);
  }
  void send(const StoreAsk& ask) {
    const StoreServer::Answer answer = store_->answer(ask);
    FUZZ_CHECK(answer.told.slot == ask.slot && answer.told.used <= answer.told.granted &&
               answer.told.granted == kGranted);
    used_ = answer.told.used;
    if (answer.told.error != 0) FUZZ_CHECK(answer.fd < 0);
    if (answer.told.error != 0) return;
    const auto kind = static_cast<AskKind>(ask.kind);
    if (kind <= AskKind::kPart) files_.erase(ask.slot);  // it has a name, or is gone
    if (answer.fd >= 0 && kind <= AskKind::kPart)
      files_[ask.slot] = Fd(::fcntl(answer.fd, F_DUPFD_CLOEXEC, 0));
    if (kind == AskKind::kPublish || kind == AskKind::kFinish) copies_[ask.ref] = ask.bytes;
    if (kind == AskKind::kLink) copies_[ask.other] = copies_.at(ask.ref);
  }
  // A copy's name means a whole file; what has a name counts a block at least.
  void check(const std::string& job) const {
    uint64_t names = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(job)) {
      if (entry.is_directory()) continue;
      FUZZ_CHECK(entry.is_regular_file() && !entry.is_symlink());
      const std::string name = entry.path().string().substr(job.size() + 1);
      if (!name.starts_with("new/")) ++names;
      const Ref ref = name.size() + 1 == kCopyNameBytes ? entry_of_copy(name.c_str()) : 0;
      FUZZ_CHECK(ref != 0 || name.starts_with("part/") || name.starts_with("new/"));
      if (ref != 0) FUZZ_CHECK(copies_.count(ref) == 1 && copies_.at(ref) == entry.file_size());
    }
    FUZZ_CHECK(names * kBlock <= used_);
  }

 private:
  StoreServer* const store_;
  std::map<uint32_t, Fd> files_;  // by slot
  std::map<Ref, uint64_t> copies_;
  uint64_t used_ = 0;
};

template <typename Each, typename Do>
void each(const uint8_t* data, size_t size, Do what) {
  for (Each one; size >= sizeof one; data += sizeof one, size -= sizeof one) {
    std::memcpy(&one, data, sizeof one);
    what(one);
  }
}

}  // namespace

// The first byte: whether what follows are whole requests, of whatever kind.
void store(const uint8_t* data, size_t size) {
  static const Directory at;
  const std::string job = at.path() + "/job";
  if (size == 0) return;
  std::filesystem::create_directory(job);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(job))
    if (!entry.is_directory())
      std::filesystem::remove(entry.path());  // its directories stay, which takes less time
  StoreServer server(Fd(::open(job.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)), "t",
                     [] { return kGranted; });
  StoreAgent agent(&server);
  if ((data[0] & 1) != 0)
    each<StoreAsk>(data + 1, size - 1, [&](const StoreAsk& ask) { agent.send(ask); });
  else
    each<Step>(data + 1, size - 1, [&](const Step& step) { agent.take(step); });
  agent.check(job);
}

}  // namespace monarch::fuzz
