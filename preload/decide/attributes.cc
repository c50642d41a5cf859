// SPDX-License-Identifier: Apache-2.0
// A file is known by what the PFS said when it was copied, or, if it is not placed, to the first task that
// asked, which tells the agent. It holds as long as a copy would: a mark (changes.h), a closed board,
// compares() or an exclusion sends the call to the PFS, and so does a process that another user runs,
// or in other groups, or that has its own user namespace: it may see less, or other owners. What is not known
// at all (ENOENT) the PFS says.
#include "preload/decide/attributes.h"

#include <dirent.h>

#include "preload/decide/changes.h"
#include "preload/decide/waiting.h"
#include "preload/next/kernel.h"
#include "preload/next/next.h"
#include "preload/resolve/paths.h"

namespace monarch::preload {
namespace {

bool take_record(const CatalogReader& catalog, const Identity& id, Values* v) {
  constexpr uint32_t kTooMany = 0xffffffff;
  v->identity = &id;
  v->attributes = catalog.attributes(id.attributes);
  return v->attributes && id.blocks != kTooMany;
}

// What a task saw.
bool read_seen(const CatalogReader& catalog, const Entry& e, Values* v) {
  const SeenFile* seen = catalog.seen_file(e);
  if (!seen || !take_record(catalog, seen->identity, v)) return false;
  v->size = seen->size;
  v->mtime = seen->mtime;
  v->opened = false;
  return state_of(e.state.load(std::memory_order_acquire)) != State::kDropped;
}

// What the agent saw when it copied the file.
bool read_values(const CatalogReader& catalog, const Entry& e, Values* v) {
  const uint64_t word = e.state.load(std::memory_order_acquire);
  const Ref own = e.identity.load(std::memory_order_acquire);
  const bool settled = state_of(word) == State::kPlaced || state_of(word) == State::kLarge;
  const Identity* id = settled ? catalog.identity_of(e) : nullptr;
  if (!id || !take_record(catalog, *id, v)) return false;
  v->size = e.size.load(std::memory_order_acquire);
  v->mtime = e.mtime.load(std::memory_order_acquire);
  v->opened = true;
  // Staged again meanwhile? Who sees a size or time of that (stored with release) sees the state before it.
  return e.state.load(std::memory_order_relaxed) == word && e.identity.load(std::memory_order_relaxed) == own;
}

// Whether what this process sees of the file is worth telling: nobody has told yet, and it is not about to be
// placed, or other nodes are told, too.
bool is_worth_seeing(const Client& c, const Entry& e) {
  const uint8_t type = e.type.load(std::memory_order_relaxed);
  const State state = state_of(e.state.load(std::memory_order_relaxed));
  const BoardHeader& header = c.board->header;
  const bool counts = !unsettled(state) || header.full.load(std::memory_order_relaxed) != 0 ||
                      header.wakes_on_change.load(std::memory_order_relaxed) != 0;
  return (type == DT_REG || type == DT_LNK) && counts && state != State::kDropped &&
         state != State::kPlaced && e.identity.load(std::memory_order_relaxed) == 0;
}

// Sets *unknown if the file is worth seeing.
bool find_values(const Client& c, const RelPath& path, int flags, Values* values, Unknown* unknown) {
  if (!may_be_told(c, path)) return false;
  const Found found = c.catalog.find(path);
  if (!found) return false;
  // A symbolic link is known as such only; what it leads to is not.
  if (found.entry->type.load(std::memory_order_relaxed) == DT_LNK && (flags & AT_SYMLINK_NOFOLLOW) == 0)
    return false;
  const bool known =
      read_values(c.catalog, *found.entry, values) || read_seen(c.catalog, *found.entry, values);
  // After the values: they bring the inode, whose mark may be the only one.
  if (is_changed(c, path, found.entry)) return false;
  if (known) return true;
  if (is_worth_seeing(c, *found.entry)) *unknown = {found.ref, found.entry->hash};
  return false;
}

bool meets(const Client& c, unsigned needs, const Values& values) {
  if ((needs & kReadable) != 0 && !values.opened) return false;
  return (needs & kRealUser) == 0 || static_cast<uint32_t>(syscall(SYS_getuid)) == c.catalog.facts().user;
}

APART bool answer_below(Client* c, int dirfd, const char* path, int flags, unsigned needs, Values* values,
                        Unknown* unknown) {
  Room room;
  RelPath rel;
  if (!resolve(*c, dirfd, path, &room, &rel)) return false;
  const bool known = find_values(*c, rel, flags, values, unknown) && meets(*c, needs, *values);
  count(c->board, known ? TaskCounter::meta_served : TaskCounter::meta_pfs);
  return known;
}

}  // namespace

bool may_be_told(const Client& c, const RelPath& path) {
  return c.catalog.facts().serve_metadata != 0 && !compares(c) && c.program == Program::kServed &&
         !is_closed(*c.board) && same_user(c) && same_groups(c) && !(c.exclude && excludes_file(c, path)) &&
         !is_changed(c, path, nullptr) && !may_be_hidden(c, path);
}

bool known_values(int dirfd, const char* path, int flags, unsigned needs, Values* values, Unknown* unknown) {
  if (unreadable(path) || !libc_tells) return false;
  Client* c = client();
  return c && may_be_below(*c, path) && answer_below(c, dirfd, path, flags, needs, values, unknown);
}

void tell(const Unknown& unknown, const struct stat& st) {
  Client* c = client();
  SeenSlot* slot = c && !has_far_time(st) ? claim_seen(c->board) : nullptr;
  if (!slot) return;
  slot->seen = {unknown.entry,
                unknown.hash,
                {st.st_dev, st.st_ino, static_cast<uint64_t>(st.st_size), static_cast<uint64_t>(st.st_blocks),
                 ns_of(st.st_atim), ns_of(st.st_mtim), ns_of(st.st_ctim), st.st_mode, st.st_uid, st.st_gid,
                 static_cast<uint32_t>(st.st_nlink), static_cast<uint32_t>(st.st_blksize), 0}};
  const KeepErrno errno_stays;
  post_seen(c->board, slot);
}

}  // namespace monarch::preload