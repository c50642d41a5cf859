// SPDX-License-Identifier: Apache-2.0
#include "runtime/peer/directory.h"

#include <algorithm>

namespace monarch {

Directory::Answer Directory::want(const FileKey& key, NodeIndex asks, int64_t now_ns) {
  const auto at = entries_.find(key);
  if (at == entries_.end()) {
    if (entries_.size() >= most_) return Read{0};
    return grant(&entries_[key], asks, now_ns);
  }
  Entry& entry = at->second;
  if (entry.state == State::kNotShared) return Pass{};
  if (entry.state == State::kRead) {
    // It asks again: its agent is a new one, or the answer was late.
    if (entry.reader == asks) return grant(&entry, asks, now_ns);
    if (now_ns < entry.until_ns) return Busy{entry.reader};
    ++read_again_;
    return grant(&entry, asks, now_ns);
  }
  // Who asks does not hold it, whatever it said before.
  if (!remove_holder(&entry, asks)) return grant(&entry, asks, now_ns);
  return Have{{entry.holder.begin(), entry.holder.begin() + entry.holders}, entry.identity};
}

Directory::Answer Directory::grant(Entry* entry, NodeIndex reader, int64_t now_ns) {
  *entry = Entry();
  entry->reader = reader;
  entry->lease = ++leases_;
  entry->until_ns = now_ns + kLeaseNs;
  return Read{entry->lease};
}

Directory::Known Directory::known(const FileKey& key, int64_t now_ns, NodeIndex* reader,
                                  int64_t* until_ns) const {
  const auto at = entries_.find(key);
  if (at == entries_.end()) return Known::kNo;
  const Entry& entry = at->second;
  if (entry.state != State::kRead || now_ns < entry.until_ns) return Known::kYes;
  *reader = entry.reader;
  *until_ns = entry.until_ns;
  return Known::kSilent;
}

void Directory::progress(const FileKey& key, NodeIndex reader, int64_t now_ns) {
  const auto at = entries_.find(key);
  if (at == entries_.end()) return;
  Entry& entry = at->second;
  if (entry.state == State::kRead && entry.reader == reader) entry.until_ns = now_ns + kLeaseNs;
}

void Directory::done(const Done& done, NodeIndex reader) {
  if (done.result == ReadResult::kHeld) return announce({done.key, reader, done.identity});
  const auto at = entries_.find(done.key);
  if (at == entries_.end()) return;
  const Entry& entry = at->second;
  if (entry.state == State::kRead && entry.reader == reader && entry.lease == done.lease) entries_.erase(at);
}

void Directory::announce(const HeldFile& file) {
  const auto at = entries_.find(file.key);
  if (at != entries_.end()) return hold(&at->second, file.holder, file.identity);
  if (entries_.size() < most_) hold(&entries_[file.key], file.holder, file.identity);
}

void Directory::reading(const FileInReading& file, int64_t now_ns) {
  if (entries_.count(file.key) != 0 || entries_.size() >= most_) return;
  Entry& entry = entries_[file.key];
  entry.reader = file.reader;
  entry.lease = file.lease;
  entry.until_ns = now_ns + kLeaseNs;
}

void Directory::hold(Entry* entry, NodeIndex holder, const FileIdentity& identity) {
  if (entry->state == State::kNotShared) return;
  if (entry->state == State::kRead) {
    *entry = Entry();
    entry->state = State::kHeld;
    entry->identity = identity;
  } else if (entry->identity != identity) {
    *entry = Entry();
    entry->state = State::kNotShared;
    return;
  }
  const auto known = entry->holder.begin() + entry->holders;
  if (std::find(entry->holder.begin(), known, holder) != known) return;
  if (entry->ever < UINT16_MAX) ++entry->ever;
  if (entry->holders < entry->holder.size()) {
    entry->holder[entry->holders++] = holder;
  } else if (const auto place = random_() % entry->ever; place < entry->holder.size()) {
    entry->holder[place] = holder;  // each of all holders is as likely to be here
  }
}

bool Directory::remove_holder(Entry* entry, NodeIndex holder) {
  const auto end = entry->holder.begin() + entry->holders;
  entry->holders =
      static_cast<uint8_t>(std::remove(entry->holder.begin(), end, holder) - entry->holder.begin());
  return entry->holders > 0;
}

void Directory::lost(const FileKey& key, NodeIndex holder) {
  const auto at = entries_.find(key);
  if (at != entries_.end() && at->second.state == State::kHeld && !remove_holder(&at->second, holder))
    entries_.erase(at);
}

void Directory::silent(NodeIndex reader, int64_t now_ns) {
  for (auto& [key, entry] : entries_)
    if (entry.state == State::kRead && entry.reader == reader)
      entry.until_ns = std::min(entry.until_ns, now_ns);
}

void Directory::gone(NodeIndex node) {
  for (auto at = entries_.begin(); at != entries_.end();) {
    Entry& entry = at->second;
    const bool read = entry.state == State::kRead && entry.reader == node;
    const bool held = entry.state == State::kHeld && !remove_holder(&entry, node);
    at = read || held ? entries_.erase(at) : std::next(at);
  }
}

}  // namespace monarch
