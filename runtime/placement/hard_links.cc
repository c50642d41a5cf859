// SPDX-License-Identifier: Apache-2.0
#include "runtime/placement/hard_links.h"

#include <algorithm>

#include "runtime/placement/copying.h"

namespace monarch {
namespace {

// Whether nothing has changed since, not even the number of names.
bool is_same(const struct stat& a, const struct stat& b) {
  return a.st_size == b.st_size && same_time(a.st_mtim, b.st_mtim) && same_time(a.st_ctim, b.st_ctim);
}

}  // namespace

HardLinks::Turn HardLinks::begin(Ref name, const struct stat& st, const Link& link) {
  const MutexLock hold(lock_);
  if (names_ >= kMostNames) return Turn::kCopy;
  const Key key{st.st_dev, st.st_ino};
  const auto found = files_.find(key);
  if (found == files_.end()) {
    makers_.emplace(name, key);
    File& file = files_[key];
    file.st = st;
    file.copy.maker = name;
    ++names_;
    return Turn::kCopy;
  }
  File& file = found->second;
  if (!is_same(file.st, st) || file.copy.maker == name) return Turn::kCopy;
  Names& names = file.names;
  if (!file.there) {
    shared_.emplace(name, file.copy.maker);
    names.waiting.push_back(name);
    ++names_;
    return Turn::kWaits;
  }
  if (!link(name, file.copy)) return Turn::kCopy;
  shared_.emplace(name, file.copy.maker);
  names.linked.push_back(name);
  ++names_;
  return Turn::kLinked;
}

std::vector<Ref> HardLinks::published(const Copy& copy, const Link& link) {
  const MutexLock hold(lock_);
  const auto maker = makers_.find(copy.maker);
  if (maker == makers_.end()) return {};
  File& file = files_[maker->second];
  file.copy = copy;
  file.there = true;
  std::vector<Ref>& linked = file.names.linked;
  std::vector<Ref> refused;
  linked.swap(file.names.waiting);
  const auto has_none = [&](Ref name) {
    if (link(name, copy)) return false;
    refused.push_back(name);
    return true;
  };
  linked.erase(std::remove_if(linked.begin(), linked.end(), has_none), linked.end());
  for (const Ref name : refused) shared_.erase(name);
  names_ -= refused.size();
  return refused;
}

HardLinks::Names HardLinks::ended(Ref maker, const Take& take) {
  const MutexLock hold(lock_);
  const auto at = makers_.find(maker);
  if (at == makers_.end()) return {};
  const auto file = files_.find(at->second);
  makers_.erase(at);
  Names names = std::move(file->second.names);
  names.tier = file->second.copy.tier;
  for (const Ref name : names.waiting) shared_.erase(name);
  for (const Ref name : names.linked) {
    take(name);
    shared_.erase(name);
  }
  names_ -= 1 + names.waiting.size() + names.linked.size();
  files_.erase(file);
  return names;
}

Ref HardLinks::awaited_by(Ref name) const {
  const MutexLock hold(lock_);
  const auto at = shared_.find(name);
  if (at == shared_.end()) return 0;
  const auto maker = makers_.find(at->second);
  const auto file = maker == makers_.end() ? files_.end() : files_.find(maker->second);
  return file != files_.end() && file->second.there ? 0 : at->second;
}

Ref HardLinks::maker_of(Ref name) const {
  const MutexLock hold(lock_);
  const auto at = shared_.find(name);
  return at == shared_.end() ? name : at->second;
}

}  // namespace monarch
