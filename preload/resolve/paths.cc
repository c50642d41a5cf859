// SPDX-License-Identifier: Apache-2.0
#include "preload/resolve/paths.h"

#include "preload/next/kernel.h"
#include "preload/resolve/roots.h"
#include "runtime/layout/space.h"

namespace monarch::preload {

static std::atomic<bool> own_tables{false};

const char* fd_links() {
  return own_tables.load(std::memory_order_relaxed) ? "/proc/thread-self/fd" : "/proc/self/fd";
}
void threads_have_tables() { own_tables.store(true, std::memory_order_relaxed); }

void fd_link(int fd, char* out) {
  const char* links = fd_links();
  const size_t len = strlen(links);
  memcpy(out, links, len);
  out[len] = '/';
  put_number(out + len + 1, fd);
}

int number_of_descriptor(const char* digits) {
  if (digits[0] == '0' && digits[1] != '\0') return -1;  // the kernel knows no "03"
  int fd = 0;
  for (const char* p = digits; *p; ++p) {
    if (*p < '0' || *p > '9' || fd > 1 << 24) return -1;
    fd = fd * 10 + (*p - '0');
  }
  return *digits ? fd : -1;
}

namespace {

// Past slashes and "." components. `p` is at a '/'; the result is at the first byte of a component, or at
// the end of the path.
const char* next_component(const char* p) {
  for (;;) {
    while (*p == '/') ++p;
    if (p[0] != '.' || (p[1] != '/' && p[1] != '\0')) return p;
    ++p;
  }
}

// How many bytes `path` and the prefix's path begin with alike. By words, none of which leads from a page of
// `path` to the next, which may not be there; sanitizers see a read behind the text.
__attribute__((no_sanitize("address", "thread"))) inline size_t bytes_in_common(const char* path,
                                                                                const Prefix& prefix) {
  using Word __attribute__((may_alias, aligned(1))) = uint64_t;
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
  constexpr size_t kLeastPage = 4096;
  const size_t in_page = kLeastPage - reinterpret_cast<uintptr_t>(path) % kLeastPage, len = prefix.len;
  size_t n = 0;
  for (size_t words = (in_page < len ? in_page : len) / sizeof(Word); words > 0; --words, n += sizeof(Word)) {
    const uint64_t differs =
        *reinterpret_cast<const Word*>(path + n) ^ *reinterpret_cast<const Word*>(prefix.path + n);
    if (differs != 0) return n + static_cast<size_t>(__builtin_ctzll(differs)) / 8;
  }
  while (n < len && path[n] == prefix.path[n]) ++n;
  return n;
}

// Where the path goes on that is like the prefix's until there, and *prefix does.
const char* common_end(const char* path, const char** prefix) {
  for (; **prefix && *path == **prefix; ++*prefix) path = *path == '/' ? next_component(path) : path + 1;
  return path;
}

// If `path` (absolute) is `prefix` or leads below it, its rest, at the first byte of a component; else
// nullptr.
const char* rest_below(const char* path, const Prefix& prefix) {
  // Most paths say by their first byte that differs that they lead elsewhere. What differs by a slash or a
  // "." may lead below nevertheless.
  const size_t same = bytes_in_common(path, prefix);
  const char* p = path + same;
  if (same == prefix.len) return *p == '/' ? next_component(p) : *p == '\0' ? p : nullptr;
  if (*p != '/' && *p != '.') return nullptr;
  const char* q = prefix.path;
  p = common_end(path, &q);
  return *q ? nullptr : *p == '/' ? next_component(p) : *p == '\0' ? p : nullptr;
}

// Whether `path` (absolute), which is not below the prefix, leads to a directory above it.
bool leads_to(const char* path, const Prefix& prefix) {
  const char* q = prefix.path;
  return *common_end(path, &q) == '\0' && (*q == '/' || q[-1] == '/');
}

// The rest of a path, read as text.
struct Rest {
  bool unclear = false;  // it has a ".."
  bool tidy = true;      // single slashes, no "."
  bool slash = false;    // a slash or "." at its end
  size_t bytes = 0;      // without that
};

Rest read(const char* text) {
  Rest rest;
  for (const char* p = text;;) {
    const char* end = p;
    while (*end && *end != '/') ++end;
    if (end - p == 2 && p[0] == '.' && p[1] == '.') rest.unclear = true;
    rest.bytes = static_cast<size_t>(end - text);
    if (*end == '\0' || rest.unclear) return rest;
    p = next_component(end);
    rest.slash = *p == '\0';
    if (rest.slash) return rest;
    if (p != end + 1) rest.tidy = false;
  }
}

// Appends the components of `text` to `out`, with single slashes; the number of bytes.
size_t append_tidy(const char* text, char* out) {
  size_t bytes = 0;
  for (const char* p = text; *p; p = next_component(p)) {
    if (bytes > 0) out[bytes++] = '/';
    while (*p && *p != '/') out[bytes++] = *p++;
  }
  return bytes;
}

// The longest prefix that `path` (absolute) is below, and the rest of the path; -1 if there is none.
int find_prefix(const CatalogFacts& facts, const char* path, const char** rest) {
  int found = -1;
  *rest = nullptr;
  for (uint32_t i = 0, longest = 0; i < facts.prefix_count; ++i) {
    const Prefix& prefix = facts.prefixes[i];
    const char* below = prefix.len > longest ? rest_below(path, prefix) : nullptr;
    if (below) *rest = below, longest = prefix.len, found = static_cast<int>(i);
  }
  return found;
}

__attribute__((noinline)) bool is_below(const CatalogFacts& facts, const char* path) {
  const char* rest;
  return find_prefix(facts, path, &rest) >= 0;
}

// The result's text is `path`'s own or in `room`.
Relation locate_absolute(const CatalogFacts& facts, const char* path, Room* room, RelPath* result) {
  const char* text;
  const int i = find_prefix(facts, path, &text);
  if (i < 0) {
    for (uint32_t k = 0; k < facts.prefix_count; ++k)
      if (leads_to(path, facts.prefixes[k]))
        return is_same_directory(facts, k) ? Relation::kAbove : Relation::kOutside;
    return Relation::kOutside;
  }
  const Prefix& prefix = facts.prefixes[i];
  if (!is_same_directory(facts, static_cast<uint32_t>(i))) return Relation::kOutside;
  const size_t below = prefix.below_len;
  if (*text == '\0') {
    *result = rel_path(prefix.root, prefix.below, below);
    return Relation::kRoot;
  }
  const Rest rest = read(text);
  if (rest.unclear || below + 1 + rest.bytes + 1 >= kPathBytes) return Relation::kOutside;
  if (rest.tidy && below == 0) {
    *result = rel_path(prefix.root, text, rest.bytes);
  } else {
    char* out = room->take(below + 1 + rest.bytes);
    if (!out) return Relation::kOutside;
    memcpy(out, prefix.below, below);
    size_t bytes = below;
    if (below > 0) out[bytes++] = '/';
    bytes += append_tidy(text, out + bytes);
    *result = rel_path(prefix.root, out, bytes);
  }
  return rest.slash ? Relation::kBelowSlash : Relation::kBelow;
}

// An absolute path in `room`, with `more` bytes behind it, the NUL's among them; its length, 0 if there is
// none, as outside the root ("(unreachable)..."). `ask` fills a buffer and gives the length: 0 if there is
// more, or -1.
template <typename Ask>
size_t take_path(size_t more, Room* room, Ask ask) {
  for (size_t bytes = Room::kNearBytes;; bytes = kPathBytes + more) {
    char* out = room->take(bytes);
    const long n = !out ? -1 : bytes > more ? ask(out, bytes - more) : 0;
    if (n < 0 || (n > 0 && out[0] != '/') || (n == 0 && bytes > kPathBytes)) return 0;
    if (n == 0) continue;
    out[n] = '\0';
    return static_cast<size_t>(n);
  }
}

size_t working_directory(size_t more, Room* room) {
  return take_path(more, room, [](char* out, size_t bytes) {
    const long n = syscall(SYS_getcwd, out, bytes);
    return n > 0 ? n - 1 : errno == ERANGE ? 0 : -1;  // it counts the NUL
  });
}

// Where the directories are that files were opened by lately, as the kernel said. A directory is known by its
// mount, device, inode and time of change, which its own renaming and removal change, too; those of a
// directory above it are marked, and hints are then not used any more. None is used for longer than a second,
// as long as what others do on this node stays unseen, or once a path may lead elsewhere. Torn, or in use by
// a writer that a signal or a fork stopped: not known.
struct Hint {
  static constexpr size_t kKeys = 5, kWords = kKeys + 1 + 26;  // the key, the length, the text
  static constexpr size_t kTextBytes = (kWords - kKeys - 1) * sizeof(uint64_t);
  std::atomic<uint32_t> turn;  // odd: being written
  std::atomic<uint64_t> words[kWords];
};
using Key = uint64_t[Hint::kKeys];
constexpr size_t kHints = 16;
Hint hints[kHints];

Hint& hint_of(const Key& key) { return hints[(key[2] ^ key[2] >> 4) % kHints]; }

// Release and acquire, for want of fences that sanitizers know: who reads one new word sees the odd turn.
size_t recall(const Key& key, size_t more, Room* room) {
  const Hint& hint = hint_of(key);
  const uint32_t turn = hint.turn.load(std::memory_order_acquire);
  for (size_t i = 0; i < Hint::kKeys; ++i)
    if (hint.words[i].load(std::memory_order_acquire) != key[i]) return 0;
  const size_t len = hint.words[Hint::kKeys].load(std::memory_order_acquire);
  char* out = len < Hint::kTextBytes ? room->take(len + sizeof(uint64_t) + more) : nullptr;
  for (size_t at = 0; out && at < len; at += sizeof(uint64_t)) {
    const uint64_t word = hint.words[Hint::kKeys + 1 + at / sizeof word].load(std::memory_order_acquire);
    memcpy(out + at, &word, sizeof word);
  }
  return out && turn % 2 == 0 && hint.turn.load(std::memory_order_relaxed) == turn ? len : 0;
}

void keep(const Key& key, const char* text, size_t len) {
  Hint& hint = hint_of(key);
  uint32_t turn = hint.turn.load(std::memory_order_relaxed);
  if (len >= Hint::kTextBytes || turn % 2 != 0 || !hint.turn.compare_exchange_strong(turn, turn + 1)) return;
  for (size_t i = 0; i < Hint::kKeys; ++i) hint.words[i].store(key[i], std::memory_order_release);
  hint.words[Hint::kKeys].store(len, std::memory_order_release);
  for (size_t at = 0; at < len; at += sizeof(uint64_t)) {
    uint64_t word = 0;
    memcpy(&word, text + at, len - at < sizeof word ? len - at : sizeof word);
    hint.words[Hint::kKeys + 1 + at / sizeof word].store(word, std::memory_order_release);
  }
  hint.turn.store(turn + 2, std::memory_order_release);
}

// The key of a directory for now; false: its path is to be asked for each time.
bool make_key(const Client& client, const struct statx& st, Key& key) {
  const uint32_t changed = client.board->header.changed.load(std::memory_order_acquire);
  if ((st.stx_mask & kMountId) == 0 || (changed & kChangedDirectories) != 0 || compares(client)) return false;
  key[0] = mount_id(st);
  key[1] = uint64_t{st.stx_dev_major} << 32 | st.stx_dev_minor;
  key[2] = st.stx_ino;
  key[3] = static_cast<uint64_t>(ns_of(st.stx_ctime));
  key[4] = static_cast<uint64_t>(coarse_ns()) >> 30 ^ static_cast<uint64_t>(times_forgotten()) << 32;
  return true;
}

// The absolute path of the directory `dirfd`, as this mount namespace names it, with `more` bytes behind it;
// 0 if it has none or cannot hold dataset files.
size_t directory_path(const Client& client, int dirfd, size_t more, Room* room) {
  if (dirfd == AT_FDCWD) return working_directory(more, room);
  struct statx st;
  if (!look_at(dirfd, STATX_TYPE | STATX_INO | STATX_CTIME | kMountId, &st) ||
      !may_be_below_root(client.catalog.facts(), st))
    return 0;
  Key key;
  const bool known = make_key(client, st, key);
  if (const size_t len = known ? recall(key, more, room) : 0) return len;
  const size_t len = path_of_descriptor(dirfd, room, more);
  if (known && len > 0) keep(key, room->text(), len);
  return len;
}

// A relative path, joined to its directory's.
APART Relation locate_relative(const Client& client, int dirfd, const char* path, Room* room,
                               RelPath* result) {
  const size_t bytes = strnlen(path, kPathBytes);
  if (bytes == 0 || bytes == kPathBytes) return Relation::kOutside;
  const KeepErrno errno_stays;
  size_t len = directory_path(client, dirfd, bytes + 2, room);
  if (len == 0) return Relation::kOutside;
  char* full = room->text();
  if (len > 1) full[len++] = '/';
  memcpy(full + len, path, bytes + 1);
  Room tidy;
  const Relation where = locate_absolute(client.catalog.facts(), full, &tidy, result);
  return where == Relation::kOutside || where == Relation::kAbove || keep_text(&tidy, room, result)
             ? where
             : Relation::kOutside;
}

}  // namespace

bool keep_text(Room* from, Room* room, RelPath* path) {
  if (path->path != from->text()) return true;
  char* kept = room->take(path->len);
  if (kept) path->path = static_cast<const char*>(memcpy(kept, path->path, path->len));
  return kept != nullptr;
}

// Short, for the sake of all opens outside: most paths say by the first byte that differs that they lead
// elsewhere.
__attribute__((hot)) bool may_be_below(const Client& client, const char* path) {
  if (path[0] != '/') return client.program != Program::kRestricted;  // the kernel would be asked
  const CatalogFacts& facts = client.catalog.facts();
  for (const Prefix *prefix = facts.prefixes, *end = prefix + facts.prefix_count; prefix < end; ++prefix) {
    const size_t same = bytes_in_common(path, *prefix);
    const char next = path[same];
    if (next == '/' || next == '.' || next == '\0')
      return (same == prefix->len && next != '.') || is_below(facts, path);
  }
  return false;
}

Relation locate(const Client& client, int dirfd, const char* path, Room* room, RelPath* result) {
  const CatalogFacts& facts = client.catalog.facts();
  if (path[0] != '/') return locate_relative(client, dirfd, path, room, result);
  // Too long for the kernel (ENAMETOOLONG), however short it would be without its doubled slashes.
  if (strnlen(path, kPathBytes) == kPathBytes) return Relation::kOutside;
  return locate_absolute(facts, path, room, result);
}

const char* pfs_path(const Client& c, const RelPath& path, Room* room) {
  const char* root = root_path(c, path.root);
  return root ? path_below(root, strlen(root), path, room) : nullptr;
}

size_t path_of_descriptor(int fd, Room* room, size_t more) {
  constexpr char kDeleted[] = " (deleted)";
  constexpr size_t kDeletedLen = sizeof kDeleted - 1;
  char link[kFdLinkBytes];
  fd_link(fd, link);
  const size_t len = take_path(more, room, [&](char* out, size_t bytes) {
    const long n = syscall(SYS_readlinkat, AT_FDCWD, link, out, bytes);
    return n < static_cast<long>(bytes) ? n : 0;
  });
  const bool deleted =
      len >= kDeletedLen && memcmp(room->text() + len - kDeletedLen, kDeleted, kDeletedLen) == 0;
  return deleted ? 0 : len;
}

size_t true_path(int dirfd, const char* path, int flags, Room* room) {
  if (*path == '\0') return path_of_descriptor(dirfd, room);
  const int nofollow = (flags & AT_SYMLINK_NOFOLLOW) != 0 ? O_NOFOLLOW : 0;
  const Own file(open_own(dirfd, path, O_PATH | nofollow));
  return file.fd >= 0 ? path_of_descriptor(file.fd, room) : 0;
}

}  // namespace monarch::preload
