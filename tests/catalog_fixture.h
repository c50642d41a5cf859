// SPDX-License-Identifier: Apache-2.0
// A catalog for one test, and what is entered in it.
#pragma once

#include <memory>

#include "runtime/metadata/catalog.h"
#include "tests/scratch.h"

namespace monarch {

inline RelPath rel(const std::string& path, uint32_t root = 0) {
  return rel_path(root, path.data(), path.size());
}

inline const std::vector<TierView> kTwoTiers = {{"ram", "/ram/job", 7}, {"ssd", "/ssd/job", 8}};

// A catalog of two roots and two tiers in `run_dir`; nullptr, and a failure of the test, if there is none.
inline std::unique_ptr<Catalog> make_catalog(const std::string& run_dir) {
  Result<std::unique_ptr<Catalog>> catalog = Catalog::create(
      run_dir, {{1}, {2}}, {{0, "/data", "", 1, 2}, {1, "/more", "", 2, 2}}, kTwoTiers, {64 << 20});
  EXPECT_TRUE(catalog.ok()) << catalog.error().text;
  return catalog.ok() ? catalog.take() : nullptr;
}

class CatalogTest : public ::testing::Test {
 protected:
  const Scratch scratch_;
  const std::unique_ptr<Catalog> catalog_ = make_catalog(scratch_.path());
  const CatalogReader& reader_ = catalog_->reader();
};

// The path of an entry as a reader sees it.
inline std::string path_of(const CatalogReader& reader, const Entry& e) {
  const DirPath* d = reader.dir(e.dir);
  if (!d) return "?";
  std::string path(d->path, d->len);
  if (!path.empty()) path += '/';
  return path.append(e.name, e.name_len);
}

// What the PFS says of a file, or of a directory that was changed at that time.
inline struct stat source_stat(uint64_t ino, uint32_t mode = S_IFREG | 0644) {
  struct stat st {};
  st.st_dev = 42;
  st.st_ino = ino;
  st.st_mode = mode;
  st.st_nlink = 1;
  st.st_uid = 1000;
  st.st_gid = 100;
  st.st_blksize = 4096;
  st.st_blocks = 9;
  st.st_atim = {100, 1};
  st.st_ctim = {200, 2};
  return st;
}

inline struct stat directory_stat(uint64_t ino, int64_t seconds) {
  struct stat st = source_stat(ino, S_IFDIR | 0755);
  st.st_mtim = {seconds, 1};
  st.st_ctim = {seconds, 2};
  return st;
}

}  // namespace monarch
