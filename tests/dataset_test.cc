// SPDX-License-Identifier: Apache-2.0
// A dataset's directories, under all their names.
#include "runtime/metadata/dataset.h"

#include "runtime/layout/catalog_layout.h"
#include "tests/private_mounts.h"
#include "tests/scratch.h"

namespace monarch {
namespace {

namespace fs = std::filesystem;

class DatasetTest : public ::testing::Test {
 protected:
  Scratch scratch_;
};

TEST_F(DatasetTest, DirectoriesInsideOthersAreMerged) {
  const std::string outer = scratch_.dir("data"), inner = scratch_.dir("data/train/a"),
                    beside = scratch_.dir("data-2");
  const Result<Dataset> dataset = Dataset::open({inner, beside, outer});
  ASSERT_TRUE(dataset.ok()) << dataset.error().text;
  ASSERT_EQ(dataset->roots.size(), 2u);
  EXPECT_EQ(dataset->roots[0].path, outer);
  EXPECT_EQ(dataset->roots[1].path, beside);
  ASSERT_EQ(dataset->prefixes.size(), 3u);
  EXPECT_EQ(dataset->prefixes[0].path, inner) << "longest first";
  EXPECT_EQ(dataset->prefixes[0].below, "train/a");
  EXPECT_EQ(dataset->prefixes[0].root, 0u);
  struct stat st;
  ASSERT_EQ(::stat(inner.c_str(), &st), 0);
  EXPECT_EQ(dataset->prefixes[0].ino, st.st_ino);
  EXPECT_EQ(dataset->prefixes[0].dev, st.st_dev);
}

TEST_F(DatasetTest, WhatIsMountedInsideIsOneOfItsOwn) {
  for (const char* name : {"data", "data/tmpfs", "data/bind", "beside", "beside/in"}) scratch_.dir(name);
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    const std::string data = scratch_ / "data";
    m->tmpfs("data/tmpfs", "test");
    m->check(::mount((scratch_ / "beside").c_str(), (data + "/bind").c_str(), "", MS_BIND, nullptr) == 0,
             "bind");
    const Result<Dataset> dataset = Dataset::open({data, data + "/tmpfs", data + "/bind", data + "/bind/in"});
    m->check(dataset.ok() && dataset->roots.size() == 3, "three roots");
    if (!dataset.ok()) return;
    const PrefixView& inner = dataset->prefixes[0];
    m->check(inner.path == data + "/bind/in" && inner.below == "in", "one of them has the inner one");
    m->check(dataset->roots[inner.root].path == data + "/bind", "the innermost");
  });
}

TEST_F(DatasetTest, IsKnownByAllItsNames) {
  const std::string data = scratch_.dir("data");
  fs::create_directory_symlink("data", scratch_ / "link");
  const Result<Dataset> dataset = Dataset::open({scratch_ / "link", scratch_ / "link", data});
  ASSERT_TRUE(dataset.ok()) << dataset.error().text;
  ASSERT_EQ(dataset->roots.size(), 1u);
  ASSERT_EQ(dataset->prefixes.size(), 2u);
  for (const PrefixView& prefix : dataset->prefixes) {
    EXPECT_TRUE(prefix.path == data || prefix.path == scratch_ / "link") << prefix.path;
    EXPECT_EQ(prefix.below, "");
  }
}

TEST_F(DatasetTest, ThatIsMissingOrOfTooManyDirectoriesIsAnError) {
  EXPECT_EQ(Dataset::open({scratch_ / "missing"}).error().code, ENOENT);
  EXPECT_EQ(Dataset::open({scratch_.file("file", "x")}).error().code, ENOTDIR);
  std::vector<std::string> paths;
  for (uint32_t i = 0; i < kMaxRoots; ++i) paths.push_back(scratch_.dir("d" + std::to_string(i)));
  EXPECT_TRUE(Dataset::open(paths).ok());
  paths.push_back(scratch_.dir("more"));
  EXPECT_EQ(Dataset::open(paths).error().code, EINVAL);
}

}  // namespace
}  // namespace monarch
