// SPDX-License-Identifier: Apache-2.0
// The catalog's listings of directories, and what tasks saw of files that have no copy.
#include "runtime/metadata/catalog.h"

#include <dirent.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>

#include "tests/catalog_fixture.h"
#include "tests/scratch.h"

namespace monarch {
namespace {

using Names = std::vector<std::pair<std::string, uint64_t>>;  // name, d_ino

// Enters a directory with so many files, "." and "..".
bool add_directory(Catalog* catalog, const std::string& path, uint32_t files, int64_t seconds) {
  if (!path.empty() && !catalog->add(rel(path), DT_DIR)) return false;
  std::vector<NameInDirectory> names;
  for (uint32_t i = 0; i < files; ++i) {
    const std::string name = (path.empty() ? "f" : path + "/f") + std::to_string(i);
    names.push_back({catalog->add(rel(name), DT_REG), (uint64_t{7} << 32) + i});
    if (!names.back().entry) return false;
    if (i == files / 2) names.push_back({kDot, 5});
  }
  names.push_back({kDotDot, 6});
  return catalog->add_listing(rel(path), directory_stat(path.size() + 5, seconds), names);
}

Names names_of(const CatalogReader& reader, const Listing& listing) {
  Names names;
  Ref block = 0;
  for (uint32_t i = 0; i < listing.count; ++i) {
    const ListedName* n = reader.listed_name(listing, &block, i);
    if (!n) return {};
    const Entry* e = n->entry == kDot || n->entry == kDotDot ? nullptr : reader.entry(n->entry);
    names.emplace_back(e                  ? std::string(e->name, e->name_len)
                       : n->entry == kDot ? "."
                                          : "..",
                       uint64_t{n->ino[1]} << 32 | n->ino[0]);
  }
  Ref none = 0;
  EXPECT_EQ(reader.listed_name(listing, &none, listing.count), nullptr);
  return names;
}

TEST(CatalogListing, HoldsNamesInTheirOrder) {
  Scratch scratch;
  const auto catalog = make_catalog(scratch.path());
  CatalogReader reader;
  ASSERT_TRUE(reader.open(scratch.path().c_str()));
  EXPECT_EQ(reader.listing(rel("")), nullptr);
  EXPECT_EQ(reader.listing(rel("d")), nullptr);
  for (const uint32_t files : {0u, 1u, kNamesInBlock - 2, kNamesInBlock, 5 * kNamesInBlock}) {
    const std::string path = files ? "d" + std::to_string(files) : "";
    ASSERT_TRUE(add_directory(catalog.get(), path, files, 1000));
    const Listing* listing = reader.listing(rel(path));
    ASSERT_NE(listing, nullptr) << path;
    EXPECT_EQ(listing->dev, 42u);
    EXPECT_EQ(listing->ino, path.size() + 5);
    EXPECT_EQ(listing->mtime, 1000000000001);
    EXPECT_EQ(listing->ctime, 1000000000002);
    const Names names = names_of(reader, *listing);
    ASSERT_EQ(names.size(), files + (files ? 2 : 1));
    for (uint32_t i = 0, at = 0; i < files; ++i, ++at) {
      EXPECT_EQ(names[at], Names::value_type("f" + std::to_string(i), (uint64_t{7} << 32) + i));
      if (i == files / 2) {
        EXPECT_EQ(names[++at], Names::value_type(".", 5));
      }
    }
    EXPECT_EQ(names.back(), Names::value_type("..", 6));
  }
  EXPECT_EQ(reader.listing(rel("", 1)), nullptr) << "another root";
  EXPECT_EQ(reader.listing(rel("d1/f0")), nullptr) << "a file";
}

TEST(CatalogListing, AFileIsNoDirectoryAndADirectoryNoFile) {
  Scratch scratch;
  const auto catalog = make_catalog(scratch.path());
  const CatalogReader& reader = catalog->reader();
  const Ref file = catalog->add(rel("f"), DT_REG);
  ASSERT_TRUE(catalog->place(file, 0, 5, source_stat(1)));
  EXPECT_FALSE(catalog->add_listing(rel("f"), directory_stat(1, 1), {}));
  EXPECT_FALSE(catalog->add_listing(rel("absent"), directory_stat(1, 1), {}));
  EXPECT_NE(reader.identity_of(*reader.find(rel("f")).entry), nullptr);
  ASSERT_TRUE(add_directory(catalog.get(), "d", 3, 1));
  const Ref directory = reader.find(rel("d")).ref;
  EXPECT_EQ(reader.identity_of(catalog->entry(directory)), nullptr);
  EXPECT_FALSE(catalog->place(directory, 0, 6, source_stat(2)));
  EXPECT_EQ(catalog->start_chunks(directory, 0, source_stat(2)), 0u);
  EXPECT_NE(reader.listing(rel("d")), nullptr);
}

TEST(CatalogListing, TheWalkTellsTheTypeOfWhatWasAskedForBefore) {
  Scratch scratch;
  const auto catalog = make_catalog(scratch.path());
  const auto type_after = [&](const char* name, uint8_t type) {
    const Ref ref = catalog->add(rel(name), DT_UNKNOWN);
    EXPECT_EQ(catalog->add(rel(name), type), ref);
    return catalog->entry(ref).type.load();
  };
  EXPECT_EQ(type_after("file", DT_REG), DT_REG);
  EXPECT_EQ(type_after("directory", DT_DIR), DT_DIR);
  EXPECT_EQ(type_after("link", DT_LNK), DT_LNK);
  EXPECT_EQ(type_after("fifo", DT_FIFO), DT_UNKNOWN) << "whoever stages it looks at it before it opens it";
  const Ref placed = catalog->add(rel("placed"), DT_UNKNOWN);
  ASSERT_TRUE(catalog->place(placed, 0, 5, source_stat(1)));
  catalog->add(rel("placed"), DT_DIR);
  EXPECT_EQ(catalog->entry(placed).type, DT_UNKNOWN) << "it was a file when it was copied";
}

Seen seen_file(Ref entry, uint32_t hash, uint32_t mode) {
  Seen seen{};
  seen.entry = entry;
  seen.hash = hash;
  seen.values.mode = mode;
  seen.values.dev = 1;
  seen.values.ino = 77;
  seen.values.size = 1234;
  seen.values.blocks = 9;
  seen.values.atime = -5;
  seen.values.mtime = 6;
  seen.values.ctime = 7000000001;
  seen.values.uid = 1000;
  seen.values.gid = 100;
  seen.values.nlink = 1;
  seen.values.blksize = 4096;
  return seen;
}

TEST(CatalogSeen, ATaskTellsOfAFileUntilItIsPlaced) {
  Scratch scratch;
  const auto catalog = make_catalog(scratch.path());
  const CatalogReader& reader = catalog->reader();
  const Ref ref = catalog->add(rel("a/f"), DT_REG), link = catalog->add(rel("a/l"), DT_LNK);
  const Entry& e = catalog->entry(ref);
  EXPECT_TRUE(catalog->add_seen(seen_file(ref, e.hash, S_IFREG | 0644)));
  EXPECT_TRUE(catalog->add_seen(seen_file(link, catalog->entry(link).hash, S_IFLNK | 0777)));
  const SeenFile* seen = reader.seen_file(e);
  ASSERT_NE(seen, nullptr);
  EXPECT_EQ(seen->size, 1234u);
  EXPECT_EQ(seen->mtime, 6);
  EXPECT_EQ(seen->identity.atime, -5);
  EXPECT_EQ(seen->identity.ctime, 7000000001);
  EXPECT_EQ(seen->identity.pfs_ino, 77u);
  EXPECT_EQ(seen->identity.blocks, 9u);
  EXPECT_EQ(reader.attributes(seen->identity.attributes)->mode, uint32_t{S_IFREG | 0644});
  EXPECT_EQ(reader.identity_of(e), nullptr) << "no copy may be compared with it";
  EXPECT_EQ(e.size, 0u);
  EXPECT_FALSE(catalog->add_seen(seen_file(ref, e.hash, S_IFREG | 0644))) << "once";
  catalog->drop(ref, State::kNoFit, Reason::kTierError);
  EXPECT_NE(reader.seen_file(e), nullptr);

  ASSERT_TRUE(catalog->place(ref, 0, 5, source_stat(78)));
  EXPECT_EQ(reader.seen_file(e), nullptr);
  EXPECT_EQ(reader.identity_of(e)->pfs_ino, 78u);
  EXPECT_EQ(seen->identity.pfs_ino, 77u) << "who still reads it finds it whole";
  EXPECT_FALSE(catalog->add_seen(seen_file(ref, e.hash, S_IFREG | 0644))) << "the agent knows better";
}

TEST(CatalogSeen, ALargeFileGetsItsOwnIdentity) {
  Scratch scratch;
  const auto catalog = make_catalog(scratch.path());
  for (const bool chunks : {false, true}) {
    const Ref ref = catalog->add(rel(chunks ? "a" : "b"), DT_REG);
    catalog->entry(ref).state = large_word(0);
    ASSERT_TRUE(catalog->add_seen(seen_file(ref, catalog->entry(ref).hash, S_IFREG | 0644)));
    struct stat st = source_stat(78);
    st.st_size = 5 * kChunkBytes;
    if (chunks) {
      ASSERT_NE(catalog->start_chunks(ref, 0, st), 0u);
      EXPECT_EQ(catalog->reader().identity_of(catalog->entry(ref))->pfs_ino, 78u);
    }
    ASSERT_TRUE(catalog->place(ref, 0, 5u + chunks, st));
    EXPECT_EQ(catalog->reader().identity_of(catalog->entry(ref))->pfs_ino, 78u);
    EXPECT_EQ(catalog->reader().find_copy(0, 5u + chunks)->entry, ref);
  }
}

TEST(CatalogSeen, WhatIsTrueOfNoEntryIsRefused) {
  Scratch scratch;
  const auto catalog = make_catalog(scratch.path());
  const Ref ref = catalog->add(rel("a/f"), DT_REG), directory = catalog->add(rel("a/d"), DT_DIR);
  const Ref fifo = catalog->add(rel("a/p"), DT_FIFO), dropped = catalog->add(rel("a/x"), DT_REG);
  catalog->entry(dropped).state = state_word(State::kDropped, Reason::kChanged);
  const auto hash = [&](Ref r) { return catalog->entry(r).hash; };
  constexpr uint32_t kFile = S_IFREG | 0644;
  EXPECT_FALSE(catalog->add_seen(seen_file(ref, hash(ref), S_IFLNK | 0777))) << "another type";
  EXPECT_FALSE(catalog->add_seen(seen_file(directory, hash(directory), S_IFDIR | 0755)));
  EXPECT_FALSE(catalog->add_seen(seen_file(fifo, hash(fifo), S_IFIFO | 0644)));
  EXPECT_FALSE(catalog->add_seen(seen_file(dropped, hash(dropped), kFile)));
  Seen elsewhere = seen_file(ref, hash(ref), kFile);
  elsewhere.values.dev = 2;
  EXPECT_FALSE(catalog->add_seen(elsewhere)) << "another device";
  EXPECT_FALSE(catalog->add_seen(seen_file(ref, hash(ref) + 1, kFile))) << "another name's";
  std::mt19937 random(1);
  for (uint32_t i = 0; i < 100000; ++i) {  // whatever a task writes there
    const Ref other = i < 1000 ? i : static_cast<Ref>(random());
    if (other == ref) continue;
    EXPECT_FALSE(catalog->add_seen(seen_file(other, hash(ref), kFile))) << other;
    EXPECT_FALSE(catalog->add_seen(seen_file(other, static_cast<uint32_t>(random()), kFile))) << other;
  }
  EXPECT_TRUE(catalog->add_seen(seen_file(ref, hash(ref), kFile)));
}

TEST(CatalogListing, ReadersSeeWholeListingsWhileTheyAreMade) {
  constexpr uint32_t kDirectories = 300, kReaders = 3;
  Scratch scratch;
  const auto catalog = make_catalog(scratch.path());
  const auto size_of = [](uint32_t d) { return d * 37 % 3000; };
  std::atomic<uint32_t> made{0};
  std::atomic<bool> failed{false};
  std::atomic<uint64_t> looked{0};
  Threads readers(kReaders, [&](uint32_t r) {
    CatalogReader reader;
    std::mt19937 random(r);
    if (!reader.open(scratch.path().c_str())) failed = true;
    for (bool last = false; !failed && !last;) {
      last = made.load(std::memory_order_acquire) == kDirectories;
      const uint32_t known = made.load(std::memory_order_acquire);
      const uint32_t d = random() % 2 ? std::min(known, kDirectories - 1) : random() % kDirectories;
      const Listing* listing = reader.listing(rel("d" + std::to_string(d)));
      if (!listing && d < known) failed = true;
      if (listing && names_of(reader, *listing).size() != size_of(d) + (size_of(d) ? 2 : 1)) failed = true;
      looked += listing != nullptr;
    }
  });
  for (uint32_t d = 0; d < kDirectories && !failed; ++d) {
    if (!add_directory(catalog.get(), "d" + std::to_string(d), size_of(d), d)) failed = true;
    made.store(d + 1, std::memory_order_release);
  }
  readers.join();
  EXPECT_FALSE(failed);
  EXPECT_GT(looked, 10u);
}

}  // namespace
}  // namespace monarch
