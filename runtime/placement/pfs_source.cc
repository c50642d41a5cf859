// SPDX-License-Identifier: Apache-2.0
#include "runtime/placement/pfs_source.h"

#include <fcntl.h>

#include <atomic>
#include <utility>

#include "runtime/base/os.h"

namespace monarch {
namespace {

class PfsFile : public SourceFile {
 public:
  explicit PfsFile(Fd fd) : fd_(std::move(fd)) {}
  int fd() const override { return fd_.get(); }
  Status copy(CopyRange range, Copier* copier) override {
    range.source = fd_.get();
    range.end_is_known = end_is_known_;
    MONARCH_TRY(copier->copy(range));
    end_is_known_ = true;
    return {};
  }

 private:
  const Fd fd_;
  std::atomic<bool> end_is_known_{false};
};

}  // namespace

Fd PfsSource::open_for_reading(Ref ref, const std::string& path, Need need, const Copier& copier,
                               const std::function<void()>& waits) const {
  const auto give_up = [&] {
    if (waits) waits();
    return copier.hurried() || copier.is_stopping();
  };
  if (need == Need::kNow || !rates_->pfs_opens.wait(1, give_up)) rates_->pfs_opens.take(1);
  add(board_, AgentCounter::agent_opens_pfs);
  const int64_t start = rates_->clock.now_ns();
  Fd fd(os::open_beneath(dataset_->roots[catalog_->root_of(ref)].fd.get(), path.c_str(),
                         O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  add(board_, AgentCounter::pfs_ns, static_cast<uint64_t>(rates_->clock.now_ns() - start));
  return fd;
}

std::unique_ptr<SourceFile> PfsSource::open(Ref ref, const std::string& path, Need need,
                                            const Copier& copier) {
  Fd fd = open_for_reading(ref, path, need, copier);
  if (!fd) return nullptr;
  return std::make_unique<PfsFile>(std::move(fd));
}

}  // namespace monarch
