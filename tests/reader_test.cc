// SPDX-License-Identifier: Apache-2.0
// What a task believes of a catalog: each value that is not what the agent would write, one by one.
#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>

#include "runtime/base/fd.h"
#include "tests/catalog_fixture.h"

namespace monarch {
namespace {

uint64_t pages_mapped() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages;
}

class ReaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    file_ = catalog_->add(rel("dir/file"), DT_REG);
    other_ = catalog_->add(rel("dir/other"), DT_REG);
    catalog_->place(file_, 0, 77, source_stat(5));
    catalog_->add_listing(rel(""), directory_stat(5, 100), {{file_, 1}, {other_, 2}});
    ASSERT_TRUE(reader_.open(run_.c_str()));
  }
  // A file of the catalog, to be written as its owner can.
  template <typename T>
  T* written(const std::string& name) const {
    const Fd fd(::open((run_ + "/" + name).c_str(), O_RDWR | O_CLOEXEC));
    struct stat st {};
    EXPECT_EQ(::fstat(fd.get(), &st), 0) << name;
    void* base =
        ::mmap(nullptr, static_cast<size_t>(st.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    EXPECT_NE(base, MAP_FAILED) << name;
    return static_cast<T*>(base);
  }
  CatalogHeader* header() const { return written<CatalogHeader>("catalog"); }
  Entry* entry(Ref ref) const {
    return reinterpret_cast<Entry*>(written<char>("entries.0") + 8 * size_t{ref});
  }
  bool opens() const { return CatalogReader().open(run_.c_str()); }
  // Nobody opens the catalog while the value is this one.
  template <typename T>
  void refused(T* place, T value, const char* what) const {
    const T before = *place;
    *place = value;
    EXPECT_FALSE(opens()) << what;
    *place = before;
    EXPECT_TRUE(opens()) << what;
  }

  const Scratch scratch_;
  const std::string run_ = scratch_.path();
  const std::unique_ptr<Catalog> catalog_ = make_catalog(run_);
  CatalogReader reader_;
  Ref file_ = 0, other_ = 0;
};

TEST_F(ReaderTest, EachValueOfTheHeaderIsLookedAt) {
  CatalogHeader* h = header();
  refused(&h->magic[3], 'x', "magic");
  refused(&h->version, kCatalogVersion + 1, "version");
  refused(&h->bytes, h->bytes - 1, "bytes");
  refused(&h->root_count, kMaxRoots + 1, "roots");
  refused(&h->prefix_count, kMaxPrefixes + 1, "prefixes");
  refused(&h->tier_count, kMaxTiers + 1, "tiers");
  for (uint32_t i = 0; i < 2; ++i) {
    refused(&h->tiers[i].len, uint32_t{kPathBytes}, "a tier's path that does not end");
    refused(&h->tiers[i].path[2], '\0', "and one that ends early");
    refused(&h->prefixes[i].root, h->root_count, "a prefix of no root");
    refused(&h->prefixes[i].len, 0u, "without a path");
    refused(&h->prefixes[i].len, ~0u, "with one that does not end");
    refused(&h->prefixes[i].path[0], 'x', "with one that is not absolute");
    refused(&h->prefixes[i].path[2], '\0', "that ends early");
    refused(&h->prefixes[i].below_len, uint32_t{kPathBytes}, "whose place does not end");
    refused(&h->prefixes[i].below_len, 1u, "whose place ends early");
  }
  h->ready = 0;
  EXPECT_FALSE(opens());
}

TEST_F(ReaderTest, WhatIsOpenedAgainAndAgainIsMappedOnce) {
  const uint64_t before = pages_mapped();
  for (int i = 0; i < 300; ++i) EXPECT_TRUE(reader_.open(run_.c_str()));
  header()->tier_count = kMaxTiers + 1;
  for (int i = 0; i < 300; ++i) EXPECT_FALSE(opens());
  EXPECT_LT(pages_mapped(), before + 300);
}

TEST_F(ReaderTest, ADirectoryThatOthersMayEnterByNowIsForeign) {
  RunDirectory dir{run_.c_str()};
  int fd = -1;
  ASSERT_EQ(open_run_directory(&dir, &fd), RunDirectoryIs::kOwn);
  ::close(fd);
  fd = -1;
  const int before = open_descriptors();
  std::filesystem::permissions(run_, std::filesystem::perms(0755));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(open_run_directory(&dir, &fd), RunDirectoryIs::kForeign);
  EXPECT_EQ(fd, -1);
  EXPECT_EQ(open_descriptors(), before);
  std::filesystem::permissions(run_, std::filesystem::perms(0700));
  EXPECT_EQ(open_run_directory(&dir, &fd), RunDirectoryIs::kOwn);
  ::close(fd);
  RunDirectory none{"/nonexistent/run"};
  EXPECT_EQ(open_run_directory(&none, &fd), RunDirectoryIs::kUnknown);
  EXPECT_EQ(errno, ENOENT);
}

TEST_F(ReaderTest, NoReferenceLeadsOutOfItsSegment) {
  for (const Ref ref : {Ref{0}, Ref{0x7fffffff}, ~Ref{0}}) {
    EXPECT_EQ(reader_.entry(ref), nullptr) << ref;
    EXPECT_EQ(reader_.dir(ref), nullptr) << ref;
    EXPECT_EQ(reader_.identity(ref), nullptr) << ref;
    EXPECT_EQ(reader_.chunks(ref), nullptr) << ref;
    EXPECT_FALSE(reader_.has_chunk(ref, 0)) << ref;
  }
  const Ref last = static_cast<Ref>(segment_bytes(0) / 8 - 1);
  EXPECT_EQ(reader_.entry(last), nullptr) << "it would end behind it";
  EXPECT_EQ(reader_.attributes(last), nullptr);
  EXPECT_NE(reader_.dir(last), nullptr) << "this one does not";
}

TEST_F(ReaderTest, NoLengthLeadsOutOfItsSegment) {
  char text[kPathBytes];
  RelPath path;
  uint32_t len = 0;
  ASSERT_NE(reader_.named_entry(file_, &len), nullptr);
  EXPECT_EQ(len, 4u);
  for (int i = 0; i < 3000; ++i)
    catalog_->add(rel("dir/" + std::to_string(i)), DT_REG);  // more than one segment
  for (const uint32_t segment : {0, 1}) {
    SCOPED_TRACE(segment);
    const uint64_t place = segment_start(segment) + segment_bytes(segment) - sizeof(Entry);
    const Ref last = static_cast<Ref>(place / 8);
    auto* e = reinterpret_cast<Entry*>(written<char>("entries." + std::to_string(segment)) + place -
                                       segment_start(segment));
    e->name_len = 9;
    e->dir = reader_.entry(file_)->dir;
    EXPECT_EQ(reader_.named_entry(last, &len), nullptr);
    ASSERT_NE(reader_.entry(last), nullptr);
    EXPECT_FALSE(reader_.path_of(*reader_.entry(last), text, sizeof text, &path));
  }
  EXPECT_TRUE(reader_.path_of(*reader_.entry(file_), text, sizeof text, &path));
  EXPECT_EQ(std::string(path.path, path.len), "dir/file");
  EXPECT_FALSE(reader_.path_of(*reader_.entry(file_), text, 8, &path)) << "more than there is room for";
  entry(file_)->root = 2;
  EXPECT_FALSE(reader_.path_of(*reader_.entry(file_), text, sizeof text, &path)) << "of no root";
}

TEST_F(ReaderTest, AListingIsOneOnlyIfAllItsNamesCanBeRead) {
  const auto without = [&](const std::string& file) {
    CatalogReader late;
    EXPECT_TRUE(late.open(run_.c_str()));
    std::filesystem::rename(run_ + "/" + file, run_ + "/moved");
    const bool is_there = late.listing(rel("")) != nullptr;
    std::filesystem::rename(run_ + "/moved", run_ + "/" + file);
    EXPECT_NE(late.listing(rel("")), nullptr);
    return is_there;
  };
  EXPECT_FALSE(without("entries.0"));
  EXPECT_FALSE(without("lists.0"));
  ASSERT_TRUE(catalog_->add_listing(rel("", 1), directory_stat(6, 100),
                                    std::vector<NameInDirectory>(20000, {file_, 1})));
  ASSERT_TRUE(std::filesystem::exists(run_ + "/lists.1"));
  EXPECT_FALSE(without("lists.1"));
}

TEST_F(ReaderTest, AFileHasNoListing) {
  EXPECT_NE(reader_.listing(rel("")), nullptr);
  EXPECT_EQ(reader_.listing(rel("dir/file")), nullptr);
  entry(file_)->identity = header()->roots[0].listing.load();
  EXPECT_EQ(reader_.listing(rel("dir/file")), nullptr) << "whatever it refers to";
  entry(file_)->type = DT_DIR;
  EXPECT_NE(reader_.listing(rel("dir/file")), nullptr);
}

TEST_F(ReaderTest, AListingEndsWhateverItsBlocksSay) {
  const Listing* listing = reader_.listing(rel(""));
  ASSERT_NE(listing, nullptr);
  auto* block = reinterpret_cast<ListBlock*>(written<char>("lists.0") + 8 * size_t{listing->blocks});
  const auto name = [&](uint32_t number) {
    Ref from = 0;
    return reader_.listed_name(*listing, &from, number);
  };
  ASSERT_NE(name(1), nullptr);
  EXPECT_EQ(name(1)->entry, other_);
  EXPECT_EQ(name(2), nullptr);
  block->next = listing->blocks;
  EXPECT_EQ(name(2), nullptr) << "it is its own next one";
  block->count = ~0u;
  EXPECT_EQ(name(1u << 28), nullptr) << "it is not as long as it says";
  block->first = 1;
  EXPECT_EQ(name(0), nullptr) << "it begins later";
}

TEST_F(ReaderTest, WhatIsMappedNeedsNoDescriptor) {
  CatalogHeader* h = header();
  const auto without = [&](bool mapped) {
    return in_child([&] {
      CatalogReader late;
      if (!late.open(run_.c_str())) return 2;
      if (mapped && !late.map_identities()) return 3;
      const rlimit none{0, 0};
      ::setrlimit(RLIMIT_NOFILE, &none);
      h->inode_generation = 1;  // a table that is not mapped yet
      if (late.map_identities()) return 4;
      const Identity* id = late.find_copy(0, 77);
      return id && id->pfs_ino == 5 && late.attributes(id->attributes) ? 0 : 1;
    });
  };
  EXPECT_EQ(without(true), 0);
  EXPECT_EQ(without(false), 1);
}

TEST_F(ReaderTest, AHintThatLeadsNowhereDoesNoHarm) {
  entry(file_)->identity = ~Ref{0};
  reader_.expect(*reader_.entry(file_));
  header()->index_generation = ~0u;
  reader_.expect(*reader_.entry(file_));
  EXPECT_FALSE(reader_.find(rel("dir/file")));
}

}  // namespace
}  // namespace monarch
