// SPDX-License-Identifier: Apache-2.0
// What the catalog knows of a path without asking the PFS: a file's values, a directory's listing.
//
// A file is known by what the PFS said when it was copied. So it holds as long as its copy does: a mark of
// changes.cc, a closed board, consistency = open or an exclusion sends the call to the PFS, and so does a
// process that another user runs, or that has its own user namespace: it may see less, or other owners. What
// is not known at all (ENOENT) the PFS says.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#include "preload/preload.h"

namespace monarch::preload {
namespace {

// Whether the record of a file in this state holds beside its size and mtime.
bool is_settled(State state) { return state == State::kPlaced || state == State::kLarge; }

bool read_values(const CatalogReader& catalog, const Entry& e, Values* v) {
  constexpr uint32_t kTooMany = 0xffffffff;
  const uint64_t word = e.state.load(std::memory_order_acquire);
  const Ref own = e.identity.load(std::memory_order_acquire);
  const Identity* id = is_settled(state_of(word)) ? catalog.identity_of(e) : nullptr;
  const Attributes* a = id ? catalog.attributes(id->attributes) : nullptr;
  if (!a || id->blocks == kTooMany) return false;
  *v = {a->dev,     id->pfs_ino, e.size.load(std::memory_order_relaxed),
        id->blocks, id->atime,   e.mtime.load(std::memory_order_relaxed),
        id->ctime,  a->mode,     a->uid,
        a->gid,     a->nlink,    a->blksize,
        e.root,     true};
  std::atomic_thread_fence(std::memory_order_acquire);  // staged again meanwhile?
  return e.state.load(std::memory_order_relaxed) == word && e.identity.load(std::memory_order_relaxed) == own;
}

// Whether this process may be told what the agent saw.
bool serves(const Client& c) {
  const CatalogHeader& header = c.catalog.header();
  return header.serve_metadata != 0 && !c.program_excluded &&
         c.board->header.closed.load(std::memory_order_relaxed) == 0 && same_user(c);
}

bool is_excluded(const Client& c, const RelPath& path) {
  return __builtin_expect(c.exclude != nullptr, 0) && excludes_file(c, path);
}

bool find_values(const Client& c, const RelPath& path, Values* values) {
  if (!serves(c) || is_excluded(c, path) || is_changed(c, path, nullptr)) return false;
  const Found found = c.catalog.find(path);
  return found && !is_changed(c, path, found.entry) && read_values(c.catalog, *found.entry, values);
}

// Apart, for the buffer on the stack.
__attribute__((noinline)) bool answer_below(Client* c, int dirfd, const char* path, Values* values) {
  char below[kRelPathBytes];
  RelPath rel;
  if (!resolve(*c, dirfd, path, below, &rel)) return false;
  const bool known = find_values(*c, rel, values);
  count(c->board, known ? TaskCounter::meta_served : TaskCounter::meta_pfs);
  return known;
}

}  // namespace

bool known_values(int dirfd, const char* path, Values* values) {
  if (unreadable(path)) return false;
  Client* c = client();
  return c && may_be_below(*c, path) && answer_below(c, dirfd, path, values);
}

bool known_access(int dirfd, const char* path, int mode, Values* values) {
  return known_values(dirfd, path, values) && (mode == F_OK || values->opened) &&
         static_cast<uint32_t>(syscall(SYS_getuid)) == client()->catalog.header().user;
}

const Listing* known_listing(Client* c, const RelPath& path) {
  if (!serves(*c) || is_excluded(*c, path) || is_changed(*c, path, nullptr) || has_changed_names(*c, path))
    return nullptr;
  return c->catalog.listing(path);
}

bool is_as_listed(const Listing& listing, const struct statx& st) {
  const auto ns = [](const struct statx_timestamp& t) { return t.tv_sec * 1000000000 + t.tv_nsec; };
  return st.stx_ino == listing.ino && gnu_dev_makedev(st.stx_dev_major, st.stx_dev_minor) == listing.dev &&
         ns(st.stx_mtime) == listing.mtime && ns(st.stx_ctime) == listing.ctime;
}

}  // namespace monarch::preload
