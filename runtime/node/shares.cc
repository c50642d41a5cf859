// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/shares.h"

#include <algorithm>

namespace monarch {
namespace {

constexpr uint64_t kBlock = 4096;  // in which space is counted
// Less, and less than such a part of the quota, is not worth an agent's looking, but for the last.
constexpr uint64_t kLeastGrant = 1 << 20, kLeastPart = 64;

uint64_t less(uint64_t a, uint64_t b) { return a - std::min(a, b); }

// The part of `whole` that `part` is of `all`; 0 of nothing.
uint64_t proportion(uint64_t whole, uint64_t part, uint64_t all) {
  return all == 0 ? 0 : static_cast<uint64_t>(static_cast<__uint128_t>(whole) * part / all);
}

template <class Of>
uint64_t sum(const std::vector<Claim>& claims, const Of& of) {
  uint64_t all = 0;
  for (const Claim& c : claims) all += of(c);
  return all;
}

uint64_t reserved(const Claim& c) { return c.reserved; }

void reserve_shares(uint64_t limit, std::vector<Claim>* claims) {
  for (Claim& c : *claims) {
    c.share = std::min(c.share, c.most);
    c.reserved = c.lives ? std::min(c.reserved, c.share) : c.quota;
    c.told = std::min(c.told, c.quota);
  }
  // What others have not reserved is that of those that have the same.
  const uint64_t count = sum(*claims, [](const Claim& c) { return uint64_t{c.lives && c.equal}; });
  const uint64_t others = sum(*claims, [](const Claim& c) { return c.lives && c.equal ? 0 : c.reserved; });
  for (Claim& c : *claims) {
    if (c.lives && c.equal)
      c.reserved = std::min(c.share, less(limit, others) / count / kBlock * kBlock);
    else if (c.lives && count == 0)
      c.reserved += std::min(less(c.share, c.reserved), less(limit, sum(*claims, reserved)));
  }
}

struct Rise {
  Claim* claim;
  uint64_t cap, weight;
  uint64_t missing() const { return less(cap, claim->quota); }
  double level() const { return static_cast<double>(claim->quota) / static_cast<double>(weight); }
  // What it has once all have that much for each unit of their weight.
  uint64_t at(double level) const {
    const double wanted = level * static_cast<double>(weight);
    if (wanted >= static_cast<double>(cap)) return std::max(claim->quota, cap);
    return std::max(claim->quota, static_cast<uint64_t>(wanted) / kBlock * kBlock);
  }
  void by(uint64_t more, uint64_t least, uint64_t* free) const {
    more = std::min(more, *free);
    if (more == 0 || more < std::min(least, missing())) return;
    claim->quota += more;
    claim->told += more;
    *free -= more;
  }
};

// Who has least for his weight comes first, up to his cap.
void raise(std::vector<Rise> rises, uint64_t least, uint64_t* free) {
  std::erase_if(rises, [](const Rise& r) { return !r.claim->lives || r.missing() == 0; });
  double low = 0, high = 0;
  for (Rise& r : rises) {
    r.weight = std::max<uint64_t>(r.weight, 1);
    high = std::max(high, static_cast<double>(r.cap) / static_cast<double>(r.weight));
  }
  const auto needed = [&](double level) {
    uint64_t bytes = 0;
    for (const Rise& r : rises) bytes += r.at(level) - r.claim->quota;
    return bytes;
  };
  for (int i = 0; i < 64; ++i) {
    const double middle = (low + high) / 2;
    (needed(middle) <= *free ? low : high) = middle;
  }
  for (const Rise& r : rises) r.by(r.at(low) - r.claim->quota, least, free);
  // What is too little for each of them is enough for some.
  std::stable_sort(rises.begin(), rises.end(),
                   [](const Rise& a, const Rise& b) { return a.level() < b.level(); });
  for (const Rise& r : rises) r.by(r.missing(), least, free);
}

// Little is not worth that others remove files.
uint64_t missing(const Claim& c, uint64_t least) {
  const uint64_t bytes = less(c.reserved, c.quota);
  return bytes >= std::min(least, c.reserved) ? bytes : 0;
}

// Sets what agents are told, so that what is needed comes, and no more than that is given back; but whatever
// is more than somebody's most.
void ask_back(uint64_t needed, uint64_t coming, uint64_t least, std::vector<Claim>* claims) {
  const auto allowed = [](const Claim& c) { return c.lives ? std::min(c.quota, c.most) : c.quota; };
  for (Claim& c : *claims)
    c.told = std::min(allowed(c), std::max(c.told, needed == 0 ? c.quota : std::min(c.reserved, c.quota)));
  const auto asked = [](const Claim& c) { return c.late ? 0 : c.quota - c.told; };
  const auto above = [](const Claim& c) { return c.lives && !c.late ? less(c.told, c.reserved) : 0; };
  coming += sum(*claims, asked);
  if (needed > coming) {
    const uint64_t all = sum(*claims, above), more = std::min(needed - coming, all);
    for (Claim& c : *claims) {
      const uint64_t part = proportion(more, above(c), all) + kBlock - 1;
      c.told -= std::min(above(c), part / kBlock * kBlock);
    }
  } else if (coming - needed >= least) {
    const auto more = [&](const Claim& c) { return c.late ? 0 : less(allowed(c), c.told); };
    const uint64_t all = sum(*claims, more), back = std::min(coming - needed, all);
    for (Claim& c : *claims) c.told += proportion(back, more(c), all);
  }
}

}  // namespace

void divide(uint64_t limit, const Leftovers& left, std::vector<Claim>* claims) {
  const uint64_t least = std::min(kLeastGrant, limit / kLeastPart);
  reserve_shares(limit, claims);
  uint64_t free =
      less(limit, sum(*claims, [](const Claim& c) { return c.quota; }) + left.coming + left.stuck);
  std::vector<Rise> all;
  for (Claim& c : *claims) all.push_back({&c, std::min(c.reserved, limit), c.reserved});
  raise(all, least, &free);
  const uint64_t needed = sum(*claims, [least](const Claim& c) { return missing(c, least); });
  ask_back(needed, left.coming, least, claims);
  for (Rise& r : all) r.cap = std::min(limit, r.claim->most);
  raise(all, least, &free);
}

}  // namespace monarch
