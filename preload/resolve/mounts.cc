// SPDX-License-Identifier: Apache-2.0
#include "preload/next/kernel.h"
#include "preload/resolve/paths.h"
#include "preload/resolve/roots.h"
#include "preload/resolve/words.h"
#include "runtime/layout/space.h"

namespace monarch::preload {

std::atomic<Space> mount_space{Space::kUnseen};

namespace {

constexpr int64_t kLookNs = 1000000000;  // how soon a mount that another process makes is noticed

std::atomic<int64_t> next_look{0};  // monotonic

// Roots, as bits, below which something is mounted. They only become more, so that nobody waits for who adds
// to them.
std::atomic<uint32_t> hidden{0};
static_assert(kMaxRoots <= 32);

// The words of a line of mountinfo.
constexpr int kDevice = 2, kPoint = 4;

// mountinfo writes white space and backslashes as three octal digits.
void unescape(char* text) {
  char* out = text;
  for (const char* p = text; *p; ++p, ++out) {
    *out = *p;
    if (p[0] != '\\' || !p[1] || !p[2] || !p[3]) continue;
    *out = static_cast<char>((p[1] - '0') << 6 | (p[2] - '0') << 3 | (p[3] - '0'));
    p += 3;
  }
  *out = '\0';
}

// Hides the root if something is mounted below the prefix. False: that cannot be told.
bool look_below(const Prefix& prefix) {
  Room path;
  const size_t all = true_path(AT_FDCWD, prefix.path, 0, &path);
  const size_t len = all == 1 ? 0 : all;  // "/"
  return all > 0 && each_word("/proc/self/mountinfo", [&](int number, char* point) {
           if (number != kPoint) return;
           unescape(point);
           if (strncmp(point, path.text(), len) == 0 && point[len] == '/' && point[len + 1])
             hidden.fetch_or(1u << prefix.root, std::memory_order_release);
         });
}

// *gone: roots, as bits, of which a path was known that leads elsewhere now. Who asks may have just taken it.
bool look_at_mounts(const CatalogFacts& facts, uint32_t* gone) {
  static_assert(kMaxPrefixes <= 32);
  uint32_t known = 0;
  for (uint32_t i = 0; i < facts.prefix_count; ++i) known |= uint32_t{is_same_directory(facts, i)} << i;
  forget_directories();
  for (uint32_t i = 0; i < facts.prefix_count; ++i) {
    const bool here = is_same_directory(facts, i);
    if (here && !look_below(facts.prefixes[i])) return false;
    if (!here && (known >> i & 1) != 0) *gone |= 1u << facts.prefixes[i].root;
  }
  return true;
}

// A directory that the agent saw, and its path there.
struct Seen {
  uint64_t dev, ino;
  const char* path;
};

bool is_at(const Seen& directory, const char* path) {
  struct statx st;
  return ask_statx(AT_FDCWD, path, AT_STATX_DONT_SYNC, STATX_INO, &st) && device_of(st) == directory.dev &&
         st.stx_ino == directory.ino;
}

// Its path here, in `room`, if that is `point` or below it as its path there ends; nullptr: it is not.
const char* path_at(const char* point, const Seen& directory, Room* room) {
  const size_t len = strcmp(point, "/") == 0 ? 0 : strlen(point);
  char* const text = room->take(kPathBytes);
  for (const char* end = directory.path; text; ++end) {
    const size_t more = strlen(end);
    if ((*end == '/' || !*end) && len + more > 0 && len + more < kPathBytes) {
      memcpy(text, point, len + 1);
      memcpy(text + len, end, more + 1);
      if (is_at(directory, text)) return text;
    }
    if (!*end) break;
  }
  return nullptr;
}

// Another name of what the prefix names.
void add_name(CatalogFacts* facts, const Prefix& prefix, const char* name) {
  for (uint32_t i = 0; i < facts->prefix_count; ++i)
    if (strcmp(facts->prefixes[i].path, name) == 0) return;
  if (facts->prefix_count == kMaxPrefixes) return;
  Prefix& own = facts->prefixes[facts->prefix_count++];
  memcpy(&own, &prefix, sizeof own);
  own.len = static_cast<uint32_t>(strlen(name));
  memcpy(own.path, name, own.len + 1);
}

// The names that lead elsewhere here, of roots that have been found, go.
void drop_names(CatalogFacts* facts, uint32_t known, uint32_t elsewhere) {
  uint32_t found = 0;  // roots, as bits
  for (uint32_t i = known; i < facts->prefix_count; ++i) found |= 1u << facts->prefixes[i].root;
  for (uint32_t i = known; i-- > 0;)
    if ((elsewhere >> i & 1) != 0 && (found >> facts->prefixes[i].root & 1) != 0)
      memmove(&facts->prefixes[i], &facts->prefixes[--facts->prefix_count], sizeof(Prefix));
}

}  // namespace

void see_from_here(CatalogFacts* facts) {
  const KeepErrno errno_stays;
  const uint64_t own = own_space();
  if (own == 0 || own == facts->space) return;
  const auto prefix_seen = [facts](uint32_t i) {
    return Seen{facts->prefixes[i].dev, facts->prefixes[i].ino, facts->prefixes[i].path};
  };
  const auto tier_seen = [facts](uint32_t i) {
    return Seen{facts->tiers[i].dev, facts->tiers[i].ino, facts->tiers[i].path};
  };
  const uint32_t known = facts->prefix_count;
  uint32_t elsewhere = 0, tiers_elsewhere = 0;
  for (uint32_t i = 0; i < known; ++i)
    elsewhere |= uint32_t{!is_at(prefix_seen(i), facts->prefixes[i].path)} << i;
  for (uint32_t i = 0; i < facts->tier_count; ++i)
    tiers_elsewhere |= uint32_t{!is_at(tier_seen(i), facts->tiers[i].path)} << i;
  uint64_t device = 0;
  (void)each_word("/proc/self/mountinfo", [&](int number, char* word) {
    const char* const colon = strchr(word, ':');
    if (number == kDevice && colon)
      device = gnu_dev_makedev(static_cast<unsigned>(number_in(word)),
                               static_cast<unsigned>(number_in(colon + 1)));
    if (number != kPoint) return;
    unescape(word);
    Room room;
    for (uint32_t i = 0; i < known; ++i)
      if (facts->prefixes[i].dev == device)
        if (const char* name = path_at(word, prefix_seen(i), &room))
          add_name(facts, facts->prefixes[i], name);
    for (uint32_t i = 0; i < facts->tier_count; ++i) {
      auto& tier = facts->tiers[i];
      if (tier.dev != device || (tiers_elsewhere >> i & 1) == 0) continue;
      const char* const name = path_at(word, tier_seen(i), &room);
      if (!name) continue;
      tier.len = static_cast<uint32_t>(strlen(name));
      memcpy(tier.path, name, tier.len + 1);
      tiers_elsewhere &= ~(1u << i);
    }
  });
  drop_names(facts, known, elsewhere);
}

RARE bool is_hidden(const CatalogFacts& facts, const RelPath& path) {
  const KeepErrno errno_stays;
  Space seen = mount_space.load(std::memory_order_acquire);
  const uint64_t own = seen == Space::kUnseen ? own_space() : 0;
  const int64_t now = monotonic_ns();
  uint32_t gone = 0;
  if (own != 0 && own == facts.space) {
    mount_space.store(seen = Space::kOfAgent, std::memory_order_release);
  } else if (seen == Space::kUnseen || now >= next_look.load(std::memory_order_relaxed)) {
    const bool told = look_at_mounts(facts, &gone);
    next_look.store(now + kLookNs, std::memory_order_relaxed);
    mount_space.store(seen = told ? Space::kOfOther : Space::kUnseen, std::memory_order_release);
  }
  return seen == Space::kUnseen ||
         (seen == Space::kOfOther && ((hidden.load(std::memory_order_acquire) | gone) >> path.root & 1) != 0);
}

bool is_tier_there(const CatalogFacts& facts, uint32_t tier) {
  const auto& seen = facts.tiers[tier];
  return is_at({seen.dev, seen.ino, seen.path}, seen.path);
}

void forget_mounts() { mount_space.store(Space::kUnseen, std::memory_order_release); }

}  // namespace monarch::preload
