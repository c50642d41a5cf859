// SPDX-License-Identifier: Apache-2.0
// Where an open goes, by each thing that this depends on.
#include "preload/decide/opens.h"

#include <dirent.h>

#include <limits>

#include "preload/resolve/roots.h"
#include "runtime/metadata/board.h"
#include "tests/catalog_fixture.h"

namespace monarch::preload {
namespace {

constexpr TaskCounter kTier = TaskCounter::kCount;          // the copy is opened
constexpr TaskCounter kUncounted = TaskCounter::opens_pfs;  // it is no file
constexpr int64_t kForEver = std::numeric_limits<int64_t>::max();

// A job whose dataset has the file d/f, of which the catalog knows nothing but the name, and l, which leads
// to it. There is no agent.
struct Job {
  const Scratch scratch;
  const std::string root = scratch.dir("root"), run_dir = scratch.dir("run"),
                    file = scratch.file("root/d/f", "bytes");
  const std::unique_ptr<Catalog> catalog = make();
  BoardFile board = BoardFile::create(run_dir).take();
  Client client;
  const Ref ref = catalog->add(rel("d/f"), DT_REG);

  Job() {
    EXPECT_EQ(::symlink("d/f", (root + "/l").c_str()), 0);
    catalog->add(rel("l"), DT_LNK);
    forget_directories();
    client.board = board.get();
    EXPECT_TRUE(client.catalog.open(run_dir.c_str()));
  }
  std::unique_ptr<Catalog> make() const {
    struct stat st {};
    EXPECT_EQ(::stat(root.c_str(), &st), 0);
    return Catalog::create(run_dir, {{st.st_dev}}, {{0, root, "", st.st_dev, st.st_ino}}, kTwoTiers,
                           {64 << 20})
        .take();
  }
  BoardHeader& header() { return board->header; }
  void state(State state, Reason reason = Reason::kNone, uint32_t tier = 0) {
    catalog->entry(ref).state = state_word(state, reason, tier);
  }
  void place(uint32_t change = 0) {
    struct stat st {};
    ASSERT_EQ(::stat(file.c_str(), &st), 0);
    catalog->entry(ref).size = static_cast<uint64_t>(st.st_size);
    catalog->entry(ref).mtime = ns_of(st.st_mtim);
    ASSERT_TRUE(catalog->place(ref, 1, 77, st, change));
  }
  void mark(const char* path, Changed kind = kChangedFiles) {
    set_invalid(board.get(), rel(path).hash, kind);
  }
  // An agent was killed, and another one may come.
  void wait() { header().resumes_until_ns = kForEver; }
};

struct Case {
  const char* what;
  TaskCounter goes;
  void (*arrange)(Job&);
  const char* path = "d/f";
  Opening opening = {};
};

const Case kCases[] = {
    // of a placed file
    {"placed", kTier, [](Job& j) { j.place(); }},
    {"placed, by a link", kTier, [](Job& j) { j.place(); }, "l"},
    {"a link, not followed", TaskCounter::fallback_pass, [](Job& j) { j.place(); }, "l", {.follows = false}},
    {"only the PFS's can be opened so",
     TaskCounter::fallback_pass,
     [](Job& j) { j.place(); },
     "d/f",
     {.native = true}},
    {"restricted", TaskCounter::fallback_pass,
     [](Job& j) { j.place(), j.client.program = Program::kRestricted; }},
    {"program excluded", TaskCounter::fallback_excluded,
     [](Job& j) { j.place(), j.client.program = Program::kExcluded; }},
    {"file excluded", TaskCounter::fallback_excluded, [](Job& j) { j.place(), j.client.exclude = "d/*"; }},
    {"another excluded", kTier, [](Job& j) { j.place(), j.client.exclude = "e/*"; }},
    {"closed", TaskCounter::fallback_no_agent, [](Job& j) { j.place(), j.header().closed = 1; }},
    {"tier failed", TaskCounter::fallback_tier_error,
     [](Job& j) { j.place(), j.catalog->set_tier_failed(1, true); }},
    {"another tier failed", kTier, [](Job& j) { j.place(), j.catalog->set_tier_failed(0, true); }},
    {"no such tier", TaskCounter::fallback_tier_error,
     [](Job& j) { j.state(State::kPlaced, Reason::kNone, 2); }},
    {"compared, the same", kTier, [](Job& j) { j.place(), j.header().unheard = 1; }},
    {"compared, another", TaskCounter::fallback_dropped,
     [](Job& j) { j.place(), j.header().unheard = 1, j.scratch.file("root/d/f", "more bytes"); }},
    // marks
    {"marked", TaskCounter::fallback_invalid, [](Job& j) { j.place(), j.mark("d/f"); }},
    {"directory marked", TaskCounter::fallback_invalid,
     [](Job& j) { j.place(), j.mark("d", kChangedDirectories); }},
    {"another marked", kTier, [](Job& j) { j.place(), j.mark("e"); }},
    {"staged again", kTier, [](Job& j) { j.mark("d/f"), j.place(1); }},
    {"staged again, for a stream",
     TaskCounter::fallback_invalid,
     [](Job& j) { j.mark("d/f"), j.place(1); },
     "d/f",
     {.stream = true}},
    {"staged again, marked again", TaskCounter::fallback_invalid,
     [](Job& j) { j.mark("d/f"), j.place(1), j.mark("d/f"); }},
    // of others
    {"no room", TaskCounter::fallback_no_fit, [](Job& j) { j.state(State::kNoFit); }},
    {"large", TaskCounter::fallback_large, [](Job& j) { j.state(State::kLarge); }},
    {"dropped", TaskCounter::fallback_dropped, [](Job& j) { j.state(State::kDropped, Reason::kChanged); }},
    {"unreadable", TaskCounter::fallback_pass, [](Job& j) { j.state(State::kPass, Reason::kUnreadable); }},
    {"no file", kUncounted, [](Job& j) { j.state(State::kPass, Reason::kNotRegular); }},
    // of those that nobody has looked at
    {"no agent", TaskCounter::fallback_no_agent, [](Job&) {}},
    {"agent stalled", TaskCounter::fallback_timeout,
     [](Job& j) { j.wait(), j.header().stalled_until_ns = kForEver; }},
    {"too many ask", TaskCounter::fallback_ring_full,
     [](Job& j) {
       j.wait();
       while (post_request(j.board.get(), rel("e")).slot) {
       }
     }},
    {"tiers full", TaskCounter::fallback_no_fit, [](Job& j) { j.wait(), j.header().full = 1; }},
    {"not walked", TaskCounter::fallback_no_agent, [](Job&) {}, "d/g"},
    {"walked", TaskCounter::fallback_absent, [](Job& j) { j.catalog->set_walked(0); }, "d/g"},
    {"looked for first", TaskCounter::fallback_absent,
     [](Job& j) { j.wait(), j.header().stat_before_asking = 1; }, "d/g"},
    {"below a mount point", TaskCounter::fallback_pass,
     [](Job& j) { j.state(State::kPass, Reason::kOtherDevice), j.catalog->set_walked(0); }, "d/f/g"},
};

TEST(Opens, EachReasonSendsAnOpenWhereItBelongs) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.what);
    Job job;
    c.arrange(job);
    const Reading reading(&job.client, AT_FDCWD, (job.root + "/" + c.path).c_str(), c.opening);
    EXPECT_TRUE(reading.is_of_dataset());
    EXPECT_EQ(reading.copy() != nullptr, c.goes == kTier);
    EXPECT_EQ(reading.decision().large != 0, c.goes == TaskCounter::fallback_large);
    const bool counted = c.goes != kTier && c.goes != kUncounted;
    EXPECT_EQ(total(*job.board.get(), TaskCounter::opens_pfs), counted);
    EXPECT_TRUE(!counted || total(*job.board.get(), c.goes) == 1);
  }
}

}  // namespace
}  // namespace monarch::preload
