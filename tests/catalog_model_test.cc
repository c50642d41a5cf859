// SPDX-License-Identifier: Apache-2.0
// The catalog against a model of it, in a crowd of threads, while it grows, and when there is no more room.
#include "runtime/metadata/catalog.h"

#include <dirent.h>

#include <atomic>
#include <cstdio>
#include <deque>
#include <map>
#include <random>
#include <set>

#include "tests/catalog_fixture.h"

namespace monarch {
namespace {

namespace fs = std::filesystem;

// Random paths: few directories and names, so that they meet; odd ones among them.
class Paths {
 public:
  explicit Paths(uint32_t seed) : random_(seed) {
    for (int i = 0; i < 40; ++i)
      if (std::string dir = next(); dir.size() <= 1300) dirs_.push_back(std::move(dir));
  }
  std::string next() {
    const std::string& dir = dirs_[pick(dirs_.size())];
    return (dir.empty() ? "" : dir + "/") + name();
  }
  size_t pick(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }

 private:
  // Any byte but NUL and '/', up to NAME_MAX bytes; not "." or "..".
  std::string name() {
    const size_t longest = pick(10) == 0 ? 255 : 3;
    std::string out(1 + pick(longest), '\0');
    for (char& c : out) {
      do c = static_cast<char>(pick(8) == 0 ? pick(256) : 'a' + pick(4));
      while (c == '\0' || c == '/');
    }
    return out == "." || out == ".." ? "x" : out;
  }
  std::mt19937 random_;
  std::vector<std::string> dirs_{""};
};

// Several threads add, stage, place, drop and stage again, as the agent's do, while readers look: whatever a
// reader finds must have been true at some time, and what was true for good must stay so.
class Crowd {
 public:
  static constexpr uint32_t kFiles = 600, kWriters = 3, kReaders = 3, kSteps = 60000, kTiers = 2;

  Crowd(uint32_t seed, const std::string& run_dir) : catalog_(make_catalog(run_dir)), run_dir_(run_dir) {
    Paths paths(seed);
    std::set<std::string> distinct;
    while (distinct.size() < kFiles) distinct.insert(paths.next());
    for (const std::string& path : distinct) files_.emplace_back().path = path;
  }

  void write(uint32_t writer, uint32_t seed) {
    std::mt19937 random(seed * 100 + writer);
    std::vector<uint64_t> inodes;  // free ones; few, so that each is used again and again
    for (uint64_t i = 1; i <= kFiles / 4; ++i) inodes.push_back(writer * 1000 + i);
    for (uint32_t step = 0; step < kSteps && !failed_; ++step) {
      const uint32_t n = random() % kFiles;
      File& f = files_[n];
      const Ref ref = catalog_->add(rel(f.path, n % 2), DT_REG);
      const Ref before = f.ref.exchange(ref);
      check(ref != 0 && (before == 0 || before == ref), "one entry per path");
      hot_.store(n, std::memory_order_relaxed);
      if (n % kWriters == writer && kind(n) != kLeftAlone) advance(n, ref, &inodes, &random);
    }
  }

  void read(uint32_t seed) {
    std::mt19937 random(seed);
    CatalogReader reader;
    check(reader.open(run_dir_.c_str()), "open");
    std::vector<Seen> seen(kFiles);
    while (!done_ && !failed_) {
      for (int i = 0; i < 100; ++i) {
        // Now and then any file, else what a writer is at.
        const uint32_t n = i % 8 == 0 ? random() % kFiles : hot_.load(std::memory_order_relaxed);
        look(reader, n, &seen[n]);
        look_for_copy(reader, random() % kTiers, random() % kWriters * 1000 + 1 + random() % (kFiles / 4));
        ++looked_;
      }
    }
  }

  // All writers have ended: the catalog is what the model says.
  void compare() {
    CatalogReader reader;
    ASSERT_TRUE(reader.open(run_dir_.c_str()));
    for (uint32_t n = 0; n < kFiles; ++n) {
      const File& f = files_[n];
      SCOPED_TRACE(n);
      const Found found = reader.find(rel(f.path, n % 2));
      ASSERT_EQ(found.ref, f.ref);
      EXPECT_FALSE(reader.find(rel(f.path, 1 - n % 2))) << "the other root";
      if (!f.ref) continue;
      EXPECT_EQ(found.entry->state, f.word);
      if (f.inode == 0) continue;
      const Identity* id = reader.find_copy(tier_of_file(n), f.inode);
      ASSERT_NE(id, nullptr);
      EXPECT_EQ(id->entry, f.ref);
      EXPECT_EQ(id->pfs_ino, pfs_inode(n, f.generation));
    }
    // A walk visits each entry once, in the order in which they were added, over any number of pauses.
    std::vector<Ref> visited;
    uint64_t cursor = 0, before = 1;
    while (cursor != before) {
      before = cursor;
      size_t taken = 0;
      cursor = catalog_->walk(cursor, [&](Ref ref) {
        if (taken++ == 100) return false;
        visited.push_back(ref);
        return true;
      });
    }
    EXPECT_EQ(std::adjacent_find(visited.begin(), visited.end(), std::greater_equal<>()), visited.end());
    EXPECT_EQ(visited.size(), catalog_->header().entry_count);
    for (const File& f : files_)
      EXPECT_TRUE(!f.ref || std::binary_search(visited.begin(), visited.end(), f.ref));
  }

  void finish() { done_ = true; }
  bool failed() const { return failed_; }
  uint64_t looked() const { return looked_; }
  uint64_t placed() const { return placed_; }

 private:
  enum Kind { kLeftAlone, kSmall, kLarge, kDroppedAtLast };
  struct File {
    std::string path;
    std::atomic<Ref> ref{0};
    // Its writer's:
    uint64_t word = state_word(State::kKnown);
    uint32_t generation = 0;
    uint64_t inode = 0;  // of its copy
    Ref chunks = 0;
  };
  // What a reader has seen of a file.
  struct Seen {
    bool known = false, dropped = false;
    uint64_t generation = 0, bits = 0;
    Ref chunks = 0;
  };
  static Kind kind(uint32_t n) { return static_cast<Kind>(n / kWriters % 4); }
  static uint32_t tier_of_file(uint32_t n) { return n / 7 % kTiers; }
  static uint64_t size_of(uint32_t n) { return kind(n) == kLarge ? (2 + n % 60) * kChunkBytes - 5 : 100 + n; }
  static uint64_t pfs_inode(uint32_t n, uint64_t generation) { return uint64_t{n} << 32 | generation; }

  void check(bool good, const char* what) {
    if (!good && !failed_.exchange(true)) ADD_FAILURE() << what;
  }

  // One step of the file's life.
  void advance(uint32_t n, Ref ref, std::vector<uint64_t>* inodes, std::mt19937* random) {
    File& f = files_[n];
    const auto to = [&](uint64_t word) {
      check(catalog_->move(ref, f.word, word), "another thread has moved it");
      f.word = word;
    };
    switch (state_of(f.word)) {
      case State::kKnown:
        return to(state_word(State::kQueued));
      case State::kQueued:
        return to(state_word(State::kStaging));
      case State::kStaging:
        catalog_->entry(ref).size.store(size_of(n), std::memory_order_release);
        return kind(n) == kLarge ? to(large_word(0)) : place(n, ref, inodes);
      case State::kLarge:
        return add_chunk(n, ref, inodes, random);
      case State::kPlaced:
        if ((*random)() % 3 == 0) drop(n, ref, inodes);
        return;
      case State::kNoFit:
        return to(state_word(State::kKnown));
      default:
        return;
    }
  }

  struct stat source(uint32_t n) {
    struct stat st = source_stat(pfs_inode(n, ++files_[n].generation));
    st.st_size = static_cast<off_t>(size_of(n));
    return st;
  }

  void place(uint32_t n, Ref ref, std::vector<uint64_t>* inodes) {
    File& f = files_[n];
    if (inodes->empty()) return;
    // A large file has the identity of its chunks.
    const struct stat st = f.chunks ? source_stat(pfs_inode(n, f.generation)) : source(n);
    check(catalog_->place(ref, tier_of_file(n), inodes->back(), st), "place");
    f.inode = inodes->back();
    inodes->pop_back();
    f.chunks = 0;
    f.word = state_word(State::kPlaced, Reason::kNone, tier_of_file(n));
    ++placed_;
  }

  void add_chunk(uint32_t n, Ref ref, std::vector<uint64_t>* inodes, std::mt19937* random) {
    File& f = files_[n];
    if (!f.chunks) {
      f.chunks = catalog_->start_chunks(ref, tier_of_file(n), source(n));
      check(f.chunks != 0, "start_chunks");
      f.word = large_word(f.chunks);
    } else if ((*random)() % 8 == 0) {
      place(n, ref, inodes);
    } else {
      catalog_->set_chunk(f.chunks, (*random)() % chunk_count(size_of(n)));
    }
  }

  void drop(uint32_t n, Ref ref, std::vector<uint64_t>* inodes) {
    File& f = files_[n];
    const bool last = kind(n) == kDroppedAtLast && f.generation > 3;
    f.word =
        last ? state_word(State::kDropped, Reason::kChanged) : state_word(State::kNoFit, Reason::kTierError);
    catalog_->drop(ref, state_of(f.word), reason_of(f.word));
    inodes->insert(inodes->begin(), f.inode);
    f.inode = 0;
  }

  void look(const CatalogReader& reader, uint32_t n, Seen* seen) {
    const Ref added = files_[n].ref.load(std::memory_order_acquire);
    const Found found = reader.find(rel(files_[n].path, n % 2));
    check(found || (added == 0 && !seen->known), "what was added is found");
    if (!found) return;
    seen->known = true;
    check(added == 0 || found.ref == added, "the entry of a path does not change");
    check(path_of(reader, *found.entry) == files_[n].path, "it has the path that was asked for");
    const uint64_t word = found.entry->state.load(std::memory_order_acquire);
    const State state = state_of(word);
    check(kind(n) != kLeftAlone || word == state_word(State::kKnown), "nobody has moved it");
    check(!seen->dropped || state == State::kDropped, "dropped is for good");
    check(state != State::kDropped || kind(n) == kDroppedAtLast, "nobody has dropped it");
    check(state != State::kLarge || kind(n) == kLarge, "it is not large");
    seen->dropped = state == State::kDropped;
    if (state == State::kPlaced) {
      check(word == state_word(State::kPlaced, Reason::kNone, tier_of_file(n)), "it is on its tier");
      check(found.entry->size.load(std::memory_order_acquire) == size_of(n), "its size is known before");
    }
    if (state == State::kPlaced || chunks_of(word) != 0) look_at_identity(reader, n, found, seen);
    if (state == State::kLarge && chunks_of(word) != 0)
      look_at_chunks(reader, n, found.ref, chunks_of(word), seen);
  }

  void look_at_identity(const CatalogReader& reader, uint32_t n, const Found& found, Seen* seen) {
    const Identity* id = reader.identity(found.entry->identity.load(std::memory_order_acquire));
    if (!id) return check(false, "its identity is known before");
    const uint64_t generation = id->pfs_ino & 0xffffffff;
    check(id->entry == found.ref && id->pfs_ino >> 32 == n, "the identity is its own");
    check(generation >= seen->generation, "identities do not grow older");
    check(reader.attributes(id->attributes) != nullptr, "attributes");
    seen->generation = generation;
  }

  void look_at_chunks(const CatalogReader& reader, uint32_t n, Ref entry, Ref ref, Seen* seen) {
    const Chunks* chunks = reader.chunks(ref);
    if (!chunks) return check(false, "chunks");
    check(
        chunks->entry == entry && chunks->tier == tier_of_file(n) && chunks->count == chunk_count(size_of(n)),
        "the chunks are its own");
    const uint64_t bits = chunks->bits[0].load(std::memory_order_acquire);
    check(bits >> chunks->count == 0, "no chunks beyond its end");
    check(seen->chunks != ref || (seen->bits & ~bits) == 0, "a chunk that was there stays");
    seen->chunks = ref;
    seen->bits = bits;
  }

  void look_for_copy(const CatalogReader& reader, uint32_t tier, uint64_t inode) {
    const Identity* id = reader.find_copy(tier, inode);
    if (!id) return;
    const auto n = static_cast<uint32_t>(id->pfs_ino >> 32);
    check(n < kFiles && id->tier_ino == inode && tier_of_file(n) == tier && inode / 1000 == n % kWriters,
          "a copy's identity is that of a file with a copy there");
    check(n < kFiles && path_of(reader, *reader.entry(id->entry)) == files_[n].path,
          "the entry of that file");
  }

  const std::unique_ptr<Catalog> catalog_;
  const std::string run_dir_;
  std::deque<File> files_;
  std::atomic<bool> done_{false}, failed_{false};
  std::atomic<uint32_t> hot_{0};
  std::atomic<uint64_t> looked_{0}, placed_{0};
};

TEST(CatalogModel, ReadersSeeOnlyWhatWasTrue) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Scratch scratch;
    Crowd crowd(seed, scratch.path());
    Threads readers(Crowd::kReaders, [&](uint32_t r) { crowd.read(seed * 10 + r); });
    Threads(Crowd::kWriters, [&](uint32_t w) { crowd.write(w, seed); }).join();
    crowd.finish();
    readers.join();
    ASSERT_FALSE(crowd.failed());
    EXPECT_GT(crowd.looked(), 1000u);
    EXPECT_GT(crowd.placed(), Crowd::kFiles);
    crowd.compare();
  }
}

TEST_F(CatalogTest, LongNamesAndPaths) {
  std::string deep;
  while (deep.size() + 256 < kPathBytes) deep += std::string(deep.empty() ? "" : "/") + std::string(255, 'd');
  std::map<std::string, Ref> refs;
  for (int copy = 0; copy < 30; ++copy)  // 30 times 4 KiB is more than a first segment
    for (const std::string& path : {std::string(255, 'n'), deep, std::string(kPathBytes - 1, 'x'),
                                    deep.substr(0, 2047) + "/" + std::string(2000, 'y')})
      refs[path + std::to_string(copy)] = catalog_->add(rel(path + std::to_string(copy)), DT_REG);
  for (const auto& [path, ref] : refs) {
    ASSERT_NE(ref, 0u);
    EXPECT_EQ(reader_.find(rel(path)).ref, ref);
    EXPECT_EQ(catalog_->path_of(ref), path);
  }
  EXPECT_EQ(catalog_->add(rel(std::string(65536, 'n')), DT_REG), 0u) << "its length does not fit the field";
}

// ImageNet's names: train/n01440764/n01440764_10026.JPEG, 1300 in each of 1000 directories.
constexpr uint32_t kImagesInDirectory = 1300;

std::string image_name(uint32_t i) {
  char name[64];
  const uint32_t synset = 1440764 + i / kImagesInDirectory * 7;
  std::snprintf(name, sizeof name, "train/n%08u/n%08u_%u.JPEG", synset, synset,
                10000 + i % kImagesInDirectory * 37);
  return name;
}

TEST_F(CatalogTest, ReadersFindAllThatWasAddedWhileItGrows) {
  constexpr uint32_t kFiles = 300000, kReaders = 3;
  std::vector<Ref> refs(kFiles);
  std::atomic<uint32_t> added{0};
  std::atomic<uint64_t> looked{0};
  std::atomic<bool> failed{false};
  Threads readers(kReaders, [&](uint32_t r) {
    CatalogReader reader;
    std::mt19937 random(r);
    if (!reader.open(scratch_.path().c_str())) failed = true;
    for (uint32_t n = 0; n < kFiles && !failed; n = added.load(std::memory_order_acquire)) {
      for (uint32_t i = 0; i < 100 && n > 0; ++i, ++looked) {
        // A reader that is ahead of `added` finds a whole entry or none.
        const uint32_t wanted =
            std::min(i < 10 ? n - 1 - i % n : static_cast<uint32_t>(random() % (n + 50)), kFiles - 1);
        const std::string path = image_name(wanted);
        const Found found = reader.find(rel(path));
        if (found ? path_of(reader, *found.entry) != path : wanted < n) failed = true;
        if (wanted < n && found.ref != refs[wanted]) failed = true;
      }
    }
  });
  for (uint32_t i = 0; i < kFiles && !failed; ++i) {
    refs[i] = catalog_->add(rel(image_name(i)), DT_REG);
    if (!refs[i]) failed = true;
    added.store(i + 1, std::memory_order_release);
  }
  added = kFiles;
  readers.join();
  EXPECT_FALSE(failed);
  EXPECT_GT(looked, 100u);
  EXPECT_GE(catalog_->header().index_generation, 7u);
  EXPECT_TRUE(fs::exists(scratch_ / "entries.8"));
}

// What the catalog takes for each file of ImageNet as the agent fills it: by walk, copies and listings.
TEST_F(CatalogTest, AreFewForEachFile) {
  constexpr uint32_t kImages = 130000;  // as many as show what each takes
  constexpr double kLookup = 100, kIdentity = 60, kListing = 13;
  // On the file system: all segments of a space, all generations of an index.
  const auto occupied = [&] {
    std::map<std::string, double> found;
    for (const auto& file : fs::directory_iterator(scratch_.path())) {
      struct stat st = {};
      EXPECT_EQ(::stat(file.path().c_str(), &st), 0);
      constexpr double kBlock = 512;
      found[file.path().stem()] += static_cast<double>(st.st_blocks) * kBlock / kImages;
    }
    return found;
  };
  std::vector<Ref> refs;
  for (uint32_t i = 0; i < kImages; ++i) {
    refs.push_back(catalog_->add(rel(image_name(i)), DT_REG));
    ASSERT_NE(refs.back(), 0u) << i;
  }
  std::map<std::string, double> bytes = occupied();
  EXPECT_LE(bytes["entries"] + bytes["dirs"] + bytes["index"], kLookup) << "names included";
  for (uint32_t i = 0; i < kImages; ++i)
    ASSERT_TRUE(catalog_->place(refs[i], 0, 1000 + i, source_stat(i))) << i;
  for (uint32_t i = 0; i < kImages; i += kImagesInDirectory) {
    const std::string dir = fs::path(image_name(i)).parent_path();
    ASSERT_NE(catalog_->add(rel(dir), DT_DIR), 0u);
    std::vector<NameInDirectory> names{{kDot, 1}, {kDotDot, 2}};
    for (uint32_t k = i; k < i + kImagesInDirectory; ++k) names.push_back({refs[k], k});
    ASSERT_TRUE(catalog_->add_listing(rel(dir), directory_stat(1, 1), names));
  }
  bytes = occupied();
  EXPECT_LE(bytes["idents"] + bytes["inodes"], kIdentity);
  EXPECT_LE(bytes["lists"], kListing);
  EXPECT_GT(bytes["lists"], sizeof(ListedName)) << "each name is in one";
}

// ---- a full run directory

// How much room there is decides which file is the first that cannot be made.
class CatalogFull : public ::testing::TestWithParam<size_t> {};

// What is not allocated may fault when it is read.
void expect_allocated(const fs::path& run_dir, const CatalogHeader& header) {
  constexpr uint64_t kBlock = 512;
  std::map<std::string, uint64_t> in_use;  // bytes by file; all of it if it is no segment
  for (uint32_t s = 0; s < kSpaces; ++s)
    for (uint32_t k = 0; k < kMaxSegments; ++k) {
      const uint64_t used = header.used_bytes[s];
      in_use[std::string(kSpaceNames[s]) + "." + std::to_string(k)] =
          std::min(segment_bytes(k), used - std::min(used, segment_start(k)));
    }
  for (const auto& file : fs::directory_iterator(run_dir)) {
    struct stat st;
    ASSERT_EQ(::stat(file.path().c_str(), &st), 0);
    const auto segment = in_use.find(file.path().filename());
    const auto needed = segment == in_use.end() ? static_cast<uint64_t>(st.st_size) : segment->second;
    EXPECT_GE(static_cast<uint64_t>(st.st_blocks) * kBlock, needed) << file.path();
  }
}

TEST_P(CatalogFull, AddsFailAndReadersStayRight) {
  Scratch scratch;
  const bool mounted = with_tmpfs(scratch.path(), GetParam(), [&] {
    const auto catalog = make_catalog(scratch.path());
    ASSERT_NE(catalog, nullptr);
    std::vector<Ref> refs;
    for (uint32_t i = 0; i < 100000; ++i) {
      const Ref ref = catalog->add(rel(image_name(i)), DT_REG);
      if (!ref) break;
      refs.push_back(ref);
    }
    ASSERT_GT(refs.size(), 1000u);
    ASSERT_LT(refs.size(), 100000u);
    for (uint32_t i = 0; i < 100; ++i) {
      EXPECT_EQ(catalog->add(rel("other/" + image_name(i)), DT_REG), 0u);
      EXPECT_EQ(catalog->add(rel(image_name(200000 + i)), DT_UNKNOWN), 0u);
    }
    CatalogReader reader;
    ASSERT_TRUE(reader.open(scratch.path().c_str()));
    for (uint32_t i = 0; i < refs.size(); ++i) ASSERT_EQ(reader.find(rel(image_name(i))).ref, refs[i]);
    size_t visited = 0;
    catalog->walk(0, [&](Ref ref) {
      ++visited;
      return ref != 0;
    });
    EXPECT_EQ(visited, refs.size()) << "the walk visits what can be found, once";

    // Identities: places fail when there is no room, and publish nothing.
    size_t placed = 0;
    while (placed < refs.size() && catalog->place(refs[placed], 0, 1000 + placed, source_stat(placed)))
      ++placed;
    ASSERT_LT(placed, refs.size());
    EXPECT_EQ(state_of(reader.find(rel(image_name(static_cast<uint32_t>(placed)))).entry->state),
              State::kKnown);
    EXPECT_EQ(reader.find_copy(0, 1000 + placed), nullptr);
    for (size_t i = 0; i < placed; ++i) ASSERT_EQ(reader.find_copy(0, 1000 + i)->entry, refs[i]);
    expect_allocated(scratch.path(), catalog->header());
  });
  if (!mounted) GTEST_SKIP() << "mounting needs root";
}

INSTANTIATE_TEST_SUITE_P(Bytes, CatalogFull,
                         ::testing::Values(700 << 10, 900 << 10, 1200 << 10, 1600 << 10, 3000 << 10));

TEST(CatalogTooFull, ADirectoryTooSmallForTheHeaderIsAnError) {
  Scratch scratch;
  const auto create = [&] {
    EXPECT_EQ(Catalog::create(scratch.path(), {}, {}, {}, {1}).error().code, ENOSPC);
    EXPECT_TRUE(fs::is_empty(scratch.path()));
  };
  if (!with_tmpfs(scratch.path(), 64 << 10, create)) GTEST_SKIP() << "mounting needs root";
}

}  // namespace
}  // namespace monarch
