// SPDX-License-Identifier: Apache-2.0
// What is found in a catalog and what is placed, listings of directories, and what tasks saw.
#include "runtime/metadata/catalog.h"

#include <dirent.h>

#include <atomic>
#include <random>
#include <unordered_map>

#include "runtime/layout/path_hash.h"
#include "tests/catalog_fixture.h"

namespace monarch {
namespace {

namespace fs = std::filesystem;

TEST_F(CatalogTest, PathsBelowAnEntryLeaveItAlone) {
  const Ref file = catalog_->add(rel("a/f"), DT_REG);
  catalog_->entry(file).size = 4567;
  ASSERT_TRUE(catalog_->place(file, 0, 5, source_stat(1)));
  const Ref below = catalog_->add(rel("a/f/x/y"), DT_UNKNOWN);  // a task asks for what is not there
  ASSERT_NE(below, 0u);
  EXPECT_EQ(catalog_->path_of(below), "a/f/x/y");
  const Entry& e = catalog_->entry(file);
  EXPECT_EQ(e.state, state_word(State::kPlaced));
  EXPECT_EQ(e.size, 4567u);
  EXPECT_EQ(e.type, DT_REG);
  for (const char* above : {"", "a", "a/f/x"}) EXPECT_FALSE(reader_.find(rel(above))) << "nobody named it";
  EXPECT_EQ(catalog_->header().entry_count, 2u);
}

// As it is when its agent is killed between two stores: the newest entry is in the index alone.
TEST(Catalog, AnotherAgentGoesOnWithIt) {
  constexpr int kMany = 5000;  // so that all that grows has grown
  const Scratch scratch;
  std::unique_ptr<Catalog> before = make_catalog(scratch.path());
  const auto add = [&](const std::string& name) { return before->add(rel(name), DT_REG); };
  const Ref placed = add("a/placed"), large = add("a/large"), changed = add("changed");
  const auto settle = [&](Ref ref, uint64_t word) { before->entry(ref).state = word; };
  ASSERT_TRUE(before->place(placed, 1, 77, source_stat(5)));
  before->entry(placed).size = 123;
  ASSERT_NE(before->start_chunks(large, 0, source_stat(6)), 0u);
  ASSERT_TRUE(before->place(changed, 0, 78, source_stat(7)));
  const Ref again = before->add_again(changed);
  ASSERT_TRUE(before->place(again, 0, 79, source_stat(7), 3));
  settle(changed, again_word(again));
  for (int i = 0; i < kMany; ++i) add("d" + std::to_string(i % 70) + "/" + std::to_string(i));
  before->set_walked(0);
  auto& used = const_cast<CatalogHeader&>(before->header()).used_bytes[0];
  const uint64_t whole = used;
  const Ref newest = add("newest of all");
  used = whole;
  CatalogReader task;
  ASSERT_TRUE(task.open(scratch.path().c_str()));
  before.reset();

  EXPECT_EQ(Catalog::resume(scratch.path(), {{1}, {3}}, kTwoTiers, {}).error().code, EINVAL) << "other roots";
  EXPECT_EQ(Catalog::resume(scratch.path(), {{1}, {2}}, {kTwoTiers[0]}, {}).error().code, EINVAL);
  Result<std::unique_ptr<Catalog>> resumed = Catalog::resume(scratch.path(), {{1}, {2}}, kTwoTiers, {});
  ASSERT_TRUE(resumed.ok()) << resumed.error().text;
  Catalog& after = **resumed;
  EXPECT_EQ(task.find(rel("a/placed")).entry->state, placed_word(1, 0));
  EXPECT_EQ(after.entry(placed).size, 123u);
  EXPECT_EQ(task.find_copy(1, 77)->pfs_ino, 5u);
  EXPECT_EQ(task.newest(task.find(rel("changed")), rel("changed")).ref, again);
  EXPECT_EQ(after.entry(again).state, placed_word(0, 3));
  EXPECT_TRUE(task.walked(0));
  EXPECT_EQ(after.path_of(newest), "newest of all");
  int entries = 0;
  after.walk(0, [&](Ref) { return ++entries > 0; });
  EXPECT_EQ(entries, 5 + kMany);

  const std::string fresh = "d3/of the one that goes on";
  const uint64_t dirs = after.header().used_bytes[1];
  const Ref ref = after.add(rel(fresh), DT_REG);
  EXPECT_EQ(after.header().used_bytes[1], dirs) << "its directory is known";
  EXPECT_EQ(task.find(rel(fresh)).ref, ref);
  EXPECT_EQ(path_of(task, *task.find(rel("newest of all")).entry), "newest of all");
  EXPECT_EQ(after.entry(ref).size, 0u);
  for (int i = 0; i < 3 * kMany; ++i) ASSERT_NE(after.add(rel("e" + std::to_string(i)), DT_REG), 0u);
  ASSERT_TRUE(after.place(ref, 1, 80, source_stat(8)));
  EXPECT_EQ(task.find_copy(1, 80)->entry, ref);
  EXPECT_EQ(after.add_again(changed), 0u) << "it was staged again";
  EXPECT_NE(after.add_again(again), 0u);
}

// Two names that the index keeps under one hash.
std::pair<std::string, std::string> names_of_one_hash(bool of_one_length) {
  std::unordered_map<uint32_t, std::string> seen;
  for (int i = 0;; ++i) {
    std::string name = "d" + std::to_string(i);
    if (of_one_length) name.insert(1, 8 - name.size(), '0');
    const auto [at, is_new] = seen.emplace(path_hash(0, name.data(), name.size()), name);
    if (!is_new) return {at->second, std::move(name)};
  }
}

TEST(Catalog, NamesOfOneHashAreNotTakenForEachOther) {
  for (const bool of_one_length : {false, true}) {
    Scratch scratch;
    const auto catalog = make_catalog(scratch.path());
    const auto [one, other] = names_of_one_hash(of_one_length);
    const Ref below_one = catalog->add(rel(one + "/f"), DT_REG),
              below_other = catalog->add(rel(other + "/f"), DT_REG);
    EXPECT_EQ(catalog->path_of(below_one), one + "/f");
    EXPECT_EQ(catalog->path_of(below_other), other + "/f");
    const CatalogReader& reader = catalog->reader();
    ASSERT_NE(catalog->add(rel(one), DT_REG), 0u);
    EXPECT_FALSE(reader.find(rel(other)));
    const Ref ref = catalog->add(rel(other), DT_REG);
    EXPECT_EQ(reader.find(rel(other)).ref, ref);
    EXPECT_NE(reader.find(rel(one)).ref, ref);
  }
}

TEST_F(CatalogTest, OnlyRegularFilesAreStaged) {
  const auto word = [&](const char* name, uint8_t type) {
    return catalog_->entry(catalog_->add(rel(name), type)).state.load();
  };
  EXPECT_EQ(word("reg", DT_REG), state_word(State::kKnown));
  EXPECT_EQ(word("unknown", DT_UNKNOWN), state_word(State::kKnown));
  EXPECT_EQ(word("link", DT_LNK), state_word(State::kPass, Reason::kSymlink));
  for (const uint8_t type : {DT_DIR, DT_FIFO, DT_SOCK, DT_CHR, DT_BLK})
    EXPECT_EQ(word(std::to_string(type).c_str(), type), state_word(State::kPass, Reason::kNotRegular));
}

TEST(Catalog, RefusesWhatDoesNotFitItsHeader) {
  Scratch scratch;
  const auto error = [&](const std::vector<RootView>& roots, const std::vector<PrefixView>& prefixes,
                         const std::vector<TierView>& tiers) {
    const auto catalog = Catalog::create(scratch.dir("run"), roots, prefixes, tiers, {1});
    fs::remove_all(scratch / "run");
    return catalog.ok() ? 0 : catalog.error().code;
  };
  const std::string longest = "/" + std::string(kPathBytes - 2, 'p'), too_long(kPathBytes, 'p');
  EXPECT_EQ(error(std::vector<RootView>(kMaxRoots), {}, {}), 0);
  EXPECT_EQ(error(std::vector<RootView>(kMaxRoots + 1), {}, {}), EINVAL);
  EXPECT_EQ(error({}, std::vector<PrefixView>(kMaxPrefixes + 1), {}), EINVAL);
  EXPECT_EQ(error({}, {}, std::vector<TierView>(kMaxTiers + 1)), EINVAL);
  EXPECT_EQ(error({{1}}, {{0, longest, longest, 0, 0}}, {{"t", longest, 0}}), 0);
  EXPECT_EQ(error({}, {{0, too_long, "", 0, 0}}, {}), ENAMETOOLONG);
  EXPECT_EQ(error({}, {{0, "/p", too_long, 0, 0}}, {}), ENAMETOOLONG);
  EXPECT_EQ(error({}, {}, {{"t", too_long, 0}}), ENAMETOOLONG);
  EXPECT_EQ(Catalog::create(scratch / "missing", {}, {}, {}, {1}).error().code, ENOENT);
  make_catalog(scratch.dir("twice"));
  EXPECT_EQ(Catalog::create(scratch / "twice", {}, {}, {}, {1}).error().code, EEXIST);
  for (const char* file : {"catalog", "index.0", "inodes.0"}) {
    scratch.dir("run");
    scratch.file(std::string("run/") + file, "x");
    EXPECT_FALSE(Catalog::create(scratch / "run", {}, {}, {}, {1}).ok()) << file << " cannot be made";
    fs::remove_all(scratch / "run");
  }
}

TEST(Catalog, HasNoMoreEntriesThanItMay) {
  Scratch scratch;
  ReadPolicy policy;
  policy.max_entries = 2;
  const Result<std::unique_ptr<Catalog>> made = Catalog::create(scratch.path(), {{1}}, {}, {}, policy);
  ASSERT_TRUE(made.ok());
  Catalog& catalog = **made;
  EXPECT_TRUE(catalog.add(rel("a"), DT_REG) && catalog.add(rel("d/b"), DT_REG));
  EXPECT_FALSE(catalog.add(rel("c"), DT_REG));
  EXPECT_TRUE(catalog.add(rel("a"), DT_REG) && catalog.add(rel("d/b"), DT_REG)) << "they are there";
}

TEST_F(CatalogTest, ReadersFindNothingWhereFilesAreMissing) {
  ASSERT_TRUE(catalog_->place(catalog_->add(rel("a/f"), DT_REG), 0, 5, source_stat(1)));
  for (const char* missing : {"index.0", "entries.0", "dirs.0", "inodes.0", "idents.0"}) {
    fs::rename(scratch_ / missing, scratch_ / "aside");
    CatalogReader reader;
    ASSERT_TRUE(reader.open(scratch_.path().c_str()));
    EXPECT_FALSE(reader.find(rel("a/f")) && reader.find_copy(0, 5)) << missing;
    fs::rename(scratch_ / "aside", scratch_ / missing);
    EXPECT_TRUE(reader.find(rel("a/f"))) << "it looks again";
  }
}

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

TEST_F(CatalogTest, HoldsNamesInTheirOrder) {
  CatalogReader reader;
  ASSERT_TRUE(reader.open(scratch_.path().c_str()));
  EXPECT_EQ(reader.listing(rel("")), nullptr);
  EXPECT_EQ(reader.listing(rel("d")), nullptr);
  for (const uint32_t files : {0u, 1u, kNamesInBlock - 2, kNamesInBlock, 5 * kNamesInBlock}) {
    const std::string path = files ? "d" + std::to_string(files) : "";
    ASSERT_TRUE(add_directory(catalog_.get(), path, files, 1000));
    const Listing* listing = reader.listing(rel(path));
    ASSERT_NE(listing, nullptr) << path;
    EXPECT_EQ(std::tuple(listing->dev, listing->ino, listing->mtime, listing->ctime),
              std::tuple(42u, path.size() + 5, 1000000000001, 1000000000002));
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

TEST_F(CatalogTest, AFileIsNoDirectoryAndADirectoryNoFile) {
  const Ref file = catalog_->add(rel("f"), DT_REG);
  ASSERT_TRUE(catalog_->place(file, 0, 5, source_stat(1)));
  EXPECT_FALSE(catalog_->add_listing(rel("f"), directory_stat(1, 1), {}));
  EXPECT_FALSE(catalog_->add_listing(rel("absent"), directory_stat(1, 1), {}));
  EXPECT_NE(reader_.identity_of(*reader_.find(rel("f")).entry), nullptr);
  ASSERT_TRUE(add_directory(catalog_.get(), "d", 3, 1));
  const Ref directory = reader_.find(rel("d")).ref;
  EXPECT_EQ(reader_.identity_of(catalog_->entry(directory)), nullptr);
  EXPECT_FALSE(catalog_->place(directory, 0, 6, source_stat(2)));
  EXPECT_EQ(catalog_->start_chunks(directory, 0, source_stat(2)), 0u);
  EXPECT_NE(reader_.listing(rel("d")), nullptr);
}

TEST_F(CatalogTest, TheWalkTellsTheTypeOfWhatWasAskedForBefore) {
  const auto type_after = [&](const char* name, uint8_t type) {
    const Ref ref = catalog_->add(rel(name), DT_UNKNOWN);
    EXPECT_EQ(catalog_->add(rel(name), type), ref);
    return catalog_->entry(ref).type.load();
  };
  EXPECT_EQ(type_after("file", DT_REG), DT_REG);
  EXPECT_EQ(type_after("directory", DT_DIR), DT_DIR);
  EXPECT_EQ(type_after("link", DT_LNK), DT_LNK);
  EXPECT_EQ(type_after("fifo", DT_FIFO), DT_UNKNOWN) << "whoever stages it looks at it before it opens it";
  const Ref placed = catalog_->add(rel("placed"), DT_UNKNOWN);
  ASSERT_TRUE(catalog_->place(placed, 0, 5, source_stat(1)));
  catalog_->add(rel("placed"), DT_DIR);
  EXPECT_EQ(catalog_->entry(placed).type, DT_UNKNOWN) << "it was a file when it was copied";
}

Seen seen_file(Ref entry, uint32_t hash, uint32_t mode) {
  return {entry, hash, {1, 77, 1234, 9, -5, 6, 7000000001, mode, 0, 0, 0, 0, 0}};
}

TEST_F(CatalogTest, ATaskTellsOfAFileUntilItIsPlaced) {
  const Ref ref = catalog_->add(rel("a/f"), DT_REG), link = catalog_->add(rel("a/l"), DT_LNK);
  const Entry& e = catalog_->entry(ref);
  EXPECT_TRUE(catalog_->add_seen(seen_file(ref, e.hash, S_IFREG | 0644)));
  EXPECT_TRUE(catalog_->add_seen(seen_file(link, catalog_->entry(link).hash, S_IFLNK | 0777)));
  const SeenFile* seen = reader_.seen_file(e);
  ASSERT_NE(seen, nullptr);
  const Identity& id = seen->identity;
  EXPECT_EQ(std::tuple(id.pfs_ino, +seen->size, id.blocks, id.atime, +seen->mtime, id.ctime),
            std::tuple(77u, 1234u, 9u, -5, 6, 7000000001));
  EXPECT_EQ(reader_.attributes(seen->identity.attributes)->mode, uint32_t{S_IFREG | 0644});
  EXPECT_EQ(reader_.identity_of(e), nullptr) << "no copy may be compared with it";
  EXPECT_EQ(e.size, 0u);
  EXPECT_FALSE(catalog_->add_seen(seen_file(ref, e.hash, S_IFREG | 0644))) << "once";
  catalog_->drop(ref, State::kNoFit, Reason::kTierError);
  EXPECT_NE(reader_.seen_file(e), nullptr);

  ASSERT_TRUE(catalog_->place(ref, 0, 5, source_stat(78)));
  EXPECT_EQ(reader_.seen_file(e), nullptr);
  EXPECT_EQ(reader_.identity_of(e)->pfs_ino, 78u);
  EXPECT_EQ(seen->identity.pfs_ino, 77u) << "who still reads it finds it whole";
  EXPECT_FALSE(catalog_->add_seen(seen_file(ref, e.hash, S_IFREG | 0644))) << "the agent knows better";
}

TEST_F(CatalogTest, ALargeFileGetsItsOwnIdentity) {
  for (const bool chunks : {false, true}) {
    const Ref ref = catalog_->add(rel(chunks ? "a" : "b"), DT_REG);
    catalog_->entry(ref).state = large_word(0);
    ASSERT_TRUE(catalog_->add_seen(seen_file(ref, catalog_->entry(ref).hash, S_IFREG | 0644)));
    struct stat st = source_stat(78);
    st.st_size = 5 * kChunkBytes;
    if (chunks) {
      ASSERT_NE(catalog_->start_chunks(ref, 0, st), 0u);
      EXPECT_EQ(reader_.identity_of(catalog_->entry(ref))->pfs_ino, 78u);
    }
    ASSERT_TRUE(catalog_->place(ref, 0, 5u + chunks, st));
    EXPECT_EQ(reader_.identity_of(catalog_->entry(ref))->pfs_ino, 78u);
    EXPECT_EQ(reader_.find_copy(0, 5u + chunks)->entry, ref);
  }
}

TEST_F(CatalogTest, WhatIsTrueOfNoEntryIsRefused) {
  const Ref ref = catalog_->add(rel("a/f"), DT_REG), directory = catalog_->add(rel("a/d"), DT_DIR);
  const Ref fifo = catalog_->add(rel("a/p"), DT_FIFO), dropped = catalog_->add(rel("a/x"), DT_REG);
  catalog_->entry(dropped).state = state_word(State::kDropped, Reason::kChanged);
  const auto hash = [&](Ref r) { return catalog_->entry(r).hash; };
  constexpr uint32_t kFile = S_IFREG | 0644;
  EXPECT_FALSE(catalog_->add_seen(seen_file(ref, hash(ref), S_IFLNK | 0777))) << "another type";
  EXPECT_FALSE(catalog_->add_seen(seen_file(directory, hash(directory), S_IFDIR | 0755)));
  EXPECT_FALSE(catalog_->add_seen(seen_file(fifo, hash(fifo), S_IFIFO | 0644)));
  EXPECT_FALSE(catalog_->add_seen(seen_file(dropped, hash(dropped), kFile)));
  Seen elsewhere = seen_file(ref, hash(ref), kFile);
  elsewhere.values.dev = 2;
  EXPECT_FALSE(catalog_->add_seen(elsewhere)) << "another device";
  EXPECT_FALSE(catalog_->add_seen(seen_file(ref, hash(ref) + 1, kFile))) << "another name's";
  std::mt19937 random(1);
  for (uint32_t i = 0; i < 100000; ++i) {  // whatever a task writes there
    const Ref other = i < 1000 ? i : static_cast<Ref>(random());
    if (other == ref) continue;
    EXPECT_FALSE(catalog_->add_seen(seen_file(other, hash(ref), kFile))) << other;
    EXPECT_FALSE(catalog_->add_seen(seen_file(other, static_cast<uint32_t>(random()), kFile))) << other;
  }
  EXPECT_TRUE(catalog_->add_seen(seen_file(ref, hash(ref), kFile)));
}

TEST_F(CatalogTest, ReadersSeeWholeListingsWhileTheyAreMade) {
  constexpr uint32_t kDirectories = 300, kReaders = 3;
  const auto size_of = [](uint32_t d) { return d * 37 % 3000; };
  std::atomic<uint32_t> made{0};
  std::atomic<bool> failed{false};
  std::atomic<uint64_t> looked{0};
  Threads readers(kReaders, [&](uint32_t r) {
    CatalogReader reader;
    std::mt19937 random(r);
    if (!reader.open(scratch_.path().c_str())) failed = true;
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
    if (!add_directory(catalog_.get(), "d" + std::to_string(d), size_of(d), d)) failed = true;
    made.store(d + 1, std::memory_order_release);
  }
  readers.join();
  EXPECT_FALSE(failed);
  EXPECT_GT(looked, 10u);
}

TEST(Catalog, TimesThatNanosecondsDoNotTellAreFar) {
  struct stat st {};
  EXPECT_FALSE(has_far_time(st));
  for (timespec* t : {&st.st_atim, &st.st_mtim, &st.st_ctim})
    for (const time_t seconds :
         {time_t{9223372037}, time_t{15031526400}, time_t{-9223372037}, time_t{INT64_MAX}}) {
      *t = {seconds, 0};
      EXPECT_TRUE(has_far_time(st)) << seconds;
      EXPECT_EQ(ns_of(*t), seconds < 0 ? INT64_MIN : INT64_MAX);
      *t = {seconds < 0 ? -9223372036 : 9223372036, 5};
      EXPECT_FALSE(has_far_time(st)) << seconds;
    }
}

}  // namespace
}  // namespace monarch
