// SPDX-License-Identifier: Apache-2.0
// What is found in a catalog, what is placed and dropped, and which catalogs readers refuse.
#include "runtime/metadata/catalog.h"

#include <dirent.h>
#include <gtest/gtest.h>

#include <set>
#include <unordered_map>

#include "runtime/layout/path_hash.h"
#include "tests/catalog_fixture.h"
#include "tests/scratch.h"

namespace monarch {
namespace {

namespace fs = std::filesystem;

TEST(Catalog, FindsNothingThatIsLikeWhatWasAdded) {
  Scratch scratch;
  const auto catalog = make_catalog(scratch.path());
  const Ref ref = catalog->add(rel("train/a/1.jpg"), DT_REG);
  EXPECT_EQ(catalog->add(rel("train/a/1.jpg"), DT_UNKNOWN), ref) << "one entry per path";
  EXPECT_EQ(catalog->path_of(ref), "train/a/1.jpg");
  EXPECT_TRUE(catalog->reader().find(rel("train/a/1.jpg")));
  for (const char* other :
       {"train/a/1.jp", "train/a/1.jpg2", "train/1.jpg", "train/a", "a/1.jpg", "1.jpg", "train/b/1.jpg"})
    EXPECT_FALSE(catalog->reader().find(rel(other))) << other;
  EXPECT_FALSE(catalog->reader().find(rel("train/a/1.jpg", 1))) << "the same path below another root";
}

TEST(Catalog, PathsBelowAnEntryLeaveItAlone) {
  Scratch scratch;
  const auto catalog = make_catalog(scratch.path());
  const Ref file = catalog->add(rel("a/f"), DT_REG);
  catalog->entry(file).size = 4567;
  ASSERT_TRUE(catalog->place(file, 0, 5, source_stat(1)));
  const Ref below = catalog->add(rel("a/f/x/y"), DT_UNKNOWN);  // a task asks for what is not there
  ASSERT_NE(below, 0u);
  EXPECT_EQ(catalog->path_of(below), "a/f/x/y");
  const Entry& e = catalog->entry(file);
  EXPECT_EQ(e.state, state_word(State::kPlaced));
  EXPECT_EQ(e.size, 4567u);
  EXPECT_EQ(e.type, DT_REG);
  for (const char* above : {"", "a", "a/f/x"})
    EXPECT_FALSE(catalog->reader().find(rel(above))) << "nobody named it";
  EXPECT_EQ(catalog->header().entry_count, 2u);
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

// As when somebody removes copies: their inodes come to be others'.
TEST(Catalog, AnInodeIsTheCopyThatWasPlacedLast) {
  Scratch scratch;
  const auto catalog = make_catalog(scratch.path());
  const Ref before = catalog->add(rel("before"), DT_REG), now = catalog->add(rel("now"), DT_REG);
  ASSERT_TRUE(catalog->place(before, 0, 7, source_stat(1)));
  ASSERT_TRUE(catalog->place(now, 0, 7, source_stat(2)));
  const Identity* id = catalog->reader().find_copy(0, 7);
  ASSERT_NE(id, nullptr);
  EXPECT_EQ(id->entry, now);
  EXPECT_EQ(catalog->reader().find_copy(1, 7), nullptr) << "of another tier";
}

TEST(Catalog, OnlyRegularFilesAreStaged) {
  Scratch scratch;
  const auto catalog = make_catalog(scratch.path());
  const auto word = [&](const char* name, uint8_t type) {
    return catalog->entry(catalog->add(rel(name), type)).state.load();
  };
  EXPECT_EQ(word("reg", DT_REG), state_word(State::kKnown));
  EXPECT_EQ(word("unknown", DT_UNKNOWN), state_word(State::kKnown));
  EXPECT_EQ(word("link", DT_LNK), state_word(State::kPass, Reason::kSymlink));
  for (const uint8_t type : {DT_DIR, DT_FIFO, DT_SOCK, DT_CHR, DT_BLK})
    EXPECT_EQ(word(std::to_string(type).c_str(), type), state_word(State::kPass, Reason::kNotRegular));
}

TEST(Catalog, TheHeaderTellsRootsPrefixesAndTiers) {
  Scratch scratch;
  const auto catalog = make_catalog(scratch.path());
  CatalogReader reader;
  ASSERT_TRUE(reader.open(scratch.path().c_str()));
  const CatalogFacts& h = reader.facts();
  EXPECT_EQ(h.root_count, 2u);
  EXPECT_EQ(h.roots[1].dev, 2u);
  EXPECT_EQ(h.prefix_count, 2u);
  EXPECT_STREQ(h.prefixes[1].path, "/more");
  EXPECT_EQ(h.prefixes[1].len, 5u);
  EXPECT_EQ(h.prefixes[1].root, 1u);
  EXPECT_EQ(h.tier_count, 2u);
  EXPECT_STREQ(h.tiers[1].name, "ssd");
  EXPECT_STREQ(h.tiers[1].path, "/ssd/job");
  EXPECT_EQ(h.tiers[1].dev, 8u);
  EXPECT_EQ(h.stage_wait_max, 64u << 20);
  EXPECT_FALSE(reader.walked(0));
  catalog->set_walked(1);
  EXPECT_FALSE(reader.walked(0));
  EXPECT_TRUE(reader.walked(1));
  for (const auto& file : fs::directory_iterator(scratch.path()))
    EXPECT_EQ(file.status().permissions(), static_cast<fs::perms>(0600)) << file.path();
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
    scratch.file(std::string("run/") + file, "");
    EXPECT_FALSE(Catalog::create(scratch / "run", {}, {}, {}, {1}).ok()) << file << " cannot be made";
    fs::remove_all(scratch / "run");
  }
}

TEST(Catalog, HasNoMoreEntriesThanItMay) {
  Scratch scratch;
  ReadPolicy policy;
  policy.max_entries = 2;
  const auto catalog = Catalog::create(scratch.path(), {{1}}, {}, {}, policy);
  ASSERT_TRUE(catalog.ok());
  const auto add = [&](const std::string& path) {
    return (*catalog)->add(rel_path(0, path.data(), path.size()), DT_REG) != 0;
  };
  EXPECT_TRUE(add("a") && add("d/b"));
  EXPECT_FALSE(add("c"));
  EXPECT_TRUE(add("a") && add("d/b")) << "they are there";
}

TEST(Catalog, FilesThatAreAlikeShareTheirAttributes) {
  Scratch scratch;
  const auto catalog = make_catalog(scratch.path());
  std::set<Ref> attributes;
  for (int i = 0; i < 1000; ++i) {
    const Ref ref = catalog->add(rel("f" + std::to_string(i)), DT_REG);
    const uint32_t mode = S_IFREG | (i % 2 ? 0644 : 0600);
    ASSERT_TRUE(catalog->place(ref, 0, 1000 + static_cast<uint64_t>(i), source_stat(1, mode)));
    const Identity* id = catalog->reader().identity(catalog->entry(ref).identity);
    EXPECT_EQ(catalog->reader().attributes(id->attributes)->mode, mode);
    attributes.insert(id->attributes);
  }
  EXPECT_EQ(attributes.size(), 2u);
}

TEST(Catalog, NamesOfCopiesAreThoseOfTheLayout) {
  char name[kCopyNameBytes];
  copy_name(0xa15f, name);
  EXPECT_STREQ(name, "5f/0000a15f");
  copy_name(0xfedcba98, name);
  EXPECT_STREQ(name, "98/fedcba98");
}

TEST(CatalogReader, FindsNothingWhereFilesAreMissing) {
  Scratch scratch;
  {
    const auto catalog = make_catalog(scratch.path());
    ASSERT_NE(catalog->add(rel("a/f"), DT_REG), 0u);
    ASSERT_TRUE(catalog->place(catalog->add(rel("a/f"), DT_REG), 0, 5, source_stat(1)));
  }
  for (const char* missing : {"index.0", "entries.0", "dirs.0"}) {
    fs::rename(scratch / missing, scratch / "aside");
    CatalogReader reader;
    ASSERT_TRUE(reader.open(scratch.path().c_str()));
    EXPECT_FALSE(reader.find(rel("a/f"))) << missing;
    fs::rename(scratch / "aside", scratch / missing);
    EXPECT_TRUE(reader.find(rel("a/f"))) << "it looks again";
  }
  for (const char* missing : {"inodes.0", "idents.0"}) {
    fs::resize_file(scratch / missing, 0);
    CatalogReader reader;
    ASSERT_TRUE(reader.open(scratch.path().c_str()));
    EXPECT_EQ(reader.find_copy(0, 5), nullptr) << missing;
  }
}

}  // namespace
}  // namespace monarch
