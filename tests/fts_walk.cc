// SPDX-License-Identifier: Apache-2.0
//
// fts_walk [-v] [-o OPTIONS] [-c ORDER] [-a ACT] [-s SEEDS] [--] PATH...
//
// Walks the paths by fts(3), with each set of options, order and act unless one is given, and prints a line
// for each walk: how it ended, and a sum of all that it showed; -v: all that it showed. -s: with as many acts
// by chance. -n: so many walks at a time, interleaved. For tests/metadata.t, which compares what is
// printed natively with what is printed in a job.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

namespace {

bool verbose = false;

// ---- what a walk shows

class Shown {
 public:
  __attribute__((format(printf, 2, 3))) void add(const char* format, ...) {
    char text[16384];
    va_list words;
    va_start(words, format);
    const int bytes = vsnprintf(text, sizeof text, format, words);
    va_end(words);
    for (int i = 0; i < bytes && i < static_cast<int>(sizeof text) - 1; ++i)
      sum_ = (sum_ ^ static_cast<unsigned char>(text[i])) * kPrime;
    if (verbose) fputs(text, stdout);
  }
  unsigned long long sum() const { return sum_; }

 private:
  static constexpr uint64_t kPrime = 1099511628211U;
  uint64_t sum_ = 14695981039346656037U;
};

bool is_directory(int info) {
  return info == FTS_D || info == FTS_DC || info == FTS_DOT || info == FTS_DP || info == FTS_DNR;
}

void show_values(Shown* out, const struct stat& st) {
  const bool reads_change = S_ISDIR(st.st_mode) || S_ISLNK(st.st_mode);  // atime
  out->add(" st=%lx:%lu/%o/%lu/%u.%u/%lx/%ld/%ld/%ld a%ld.%ld m%ld.%ld c%ld.%ld", st.st_dev, st.st_ino,
           st.st_mode, static_cast<unsigned long>(st.st_nlink), st.st_uid, st.st_gid, st.st_rdev, st.st_size,
           static_cast<long>(st.st_blksize), st.st_blocks, reads_change ? 0 : st.st_atim.tv_sec,
           reads_change ? 0 : st.st_atim.tv_nsec, st.st_mtim.tv_sec, st.st_mtim.tv_nsec, st.st_ctim.tv_sec,
           st.st_ctim.tv_nsec);
}

// The descriptors that are open, with their flags.
void show_descriptors(Shown* out) {
  constexpr int kMost = 12;
  out->add(" fds=");
  for (int fd = 3; fd < kMost; ++fd)
    if (const int flags = fcntl(fd, F_GETFD); flags >= 0)
      out->add("%d:%d:%x,", fd, flags, fcntl(fd, F_GETFL));
}

void show_record(Shown* out, const FTS& fts, const FTSENT& p, bool is_current) {
  const bool begun = !fts.fts_cur || fts.fts_cur->fts_info != FTS_INIT;  // before, libc has not set the path
  out->add("%d level=%d path=%s name=%s lens=%d,%d errno=%d flags=%d instr=%d number=%ld pointer=%d",
           p.fts_info, p.fts_level, begun ? p.fts_path : "", p.fts_name, begun ? p.fts_pathlen : 0,
           p.fts_namelen, p.fts_errno, p.fts_flags, p.fts_instr, p.fts_number, p.fts_pointer == &p);
  if (p.fts_parent)
    out->add(" parent=%s,%d,%ld", p.fts_parent->fts_name, p.fts_parent->fts_level, p.fts_parent->fts_number);
  if (is_directory(p.fts_info))
    out->add(" dir=%lx:%lu,%lu", p.fts_dev, p.fts_ino, static_cast<unsigned long>(p.fts_nlink));
  if (p.fts_info == FTS_DC)
    out->add(" cycle=%s,%d,%ld", p.fts_cycle->fts_name, p.fts_cycle->fts_level, p.fts_cycle->fts_number);
  if ((fts.fts_options & FTS_NOSTAT) == 0 && p.fts_info != FTS_NSOK) show_values(out, *p.fts_statp);
  struct stat st;
  const int saved = errno;
  out->add(" accpath=%s", p.fts_accpath);
  if (is_current)
    out->add(",%lu", lstat(p.fts_accpath, &st) == 0 ? static_cast<unsigned long>(st.st_ino) : 0);
  errno = saved;
}

void show_place(Shown* out) {
  char here[8192];
  const int saved = errno;
  out->add(" cwd=%s", syscall(SYS_getcwd, here, sizeof here) > 0 ? here : "?");
  show_descriptors(out);
  errno = saved;
}

void show_list(Shown* out, const FTS& fts, const FTSENT* first, int error) {
  out->add("  children errno=%d", first ? 0 : error);
  show_place(out);
  out->add("\n");
  for (; first; first = first->fts_link) {
    out->add("    ");
    show_record(out, fts, *first, false);
    out->add("\n");
  }
}

// ---- orders

int by_name(const FTSENT** a, const FTSENT** b) { return strcmp((*a)->fts_name, (*b)->fts_name); }
int backwards(const FTSENT** a, const FTSENT** b) { return by_name(b, a); }
int by_kind(const FTSENT** a, const FTSENT** b) { return (*a)->fts_info - (*b)->fts_info; }
int all_equal(const FTSENT** /*a*/, const FTSENT** /*b*/) { return 0; }
int by_size(const FTSENT** a, const FTSENT** b) {  // only where values are asked for
  const off_t x = (*a)->fts_info == FTS_NSOK ? 0 : (*a)->fts_statp->st_size;
  const off_t y = (*b)->fts_info == FTS_NSOK ? 0 : (*b)->fts_statp->st_size;
  return x != y ? (x < y ? -1 : 1) : by_name(a, b);
}
using Order = int (*)(const FTSENT**, const FTSENT**);
struct NamedOrder {
  const char* name;
  Order order;
} const kOrders[] = {{"none", nullptr}, {"name", by_name},    {"backwards", backwards},
                     {"kind", by_kind}, {"equal", all_equal}, {"size", by_size}};

// ---- acts: what is done at a record

const char* const kActs[] = {"none", "again", "follow", "skip", "children", "names", "both", "some", "wrong"};

class Walk {
 public:
  Walk(const char* act, unsigned seed) : act_(act), random_(seed) {}

  void begin(std::vector<char*> paths, int options, Order order) {
    paths.push_back(nullptr);
    errno = 0;
    fts_ = fts_open(paths.data(), options, order);
    out_.add("open %s %d", fts_ ? "good" : "failed", fts_ ? 0 : errno);
    show_place(&out_);
    out_.add("\n");
    if (fts_ && (act_ == "children" || chance(4))) show_children(0);
    if (fts_ && act_ == "wrong") show_children(7);
  }

  // One record; false: the walk is at its end.
  bool step() {
    if (!fts_) return false;
    errno = 0;
    FTSENT* p = fts_read(fts_);
    const int error = errno;
    if (!p || records_ == most_) return stop(error);
    ++records_;
    if (p->fts_number == 0) p->fts_number = records_;
    if (p->fts_info == FTS_D) p->fts_pointer = p;
    out_.add("%d,%d,%x ", fts_->fts_pathlen, fts_->fts_nitems, fts_->fts_options);
    show_record(&out_, *fts_, *p, true);
    show_place(&out_);
    out_.add("\n");
    act(p);
    return true;
  }

  std::string result() const {
    char text[128];
    snprintf(text, sizeof text, "%d records, %d, %d, %016llx", records_, error_, closed_, out_.sum());
    return text;
  }

 private:
  bool stop(int error) {
    error_ = error;
    errno = 0;
    FTSENT* more = fts_read(fts_);
    out_.add("end %d %d %d", error, more != nullptr, errno);
    closed_ = fts_close(fts_);
    out_.add(" close %d %d", closed_, closed_ == 0 ? 0 : errno);
    show_place(&out_);
    out_.add("\n");
    fts_ = nullptr;
    return false;
  }

  FTSENT* show_children(int how) {
    errno = 99;
    FTSENT* first = fts_children(fts_, how);
    show_list(&out_, *fts_, first, errno);
    return first;
  }

  // libc would compare the device of a root with one that it has not set, or keep what fts_children gave of
  // what is no directory any more, and use it when its parent's record is free.
  bool is_undefined(const FTSENT& p, int instruction) const {
    struct stat st;
    if (instruction == FTS_FOLLOW) return p.fts_level == FTS_ROOTLEVEL && (fts_->fts_options & FTS_XDEV) != 0;
    if (instruction != FTS_AGAIN || p.fts_info != FTS_D) return false;
    return p.fts_name[0] == '.' || (lstat(p.fts_accpath, &st) == 0 && S_ISLNK(st.st_mode));
  }

  void set(FTSENT* p, int instruction) {
    if (is_undefined(*p, instruction)) return;
    errno = 0;
    const int result = fts_set(fts_, p, instruction);
    out_.add("  set %d: %d %d\n", instruction, result, result ? errno : 0);
  }

  void act(FTSENT* p) {
    if (act_ == "again") {
      if (p->fts_info != FTS_DP && again_ != p->fts_number) set(p, FTS_AGAIN);  // that would walk it again
      again_ = p->fts_number;
    } else if (act_ == "follow" && (p->fts_info == FTS_SL || p->fts_info == FTS_SLNONE) && p->fts_level < 6) {
      if (again_ != p->fts_number) set(p, FTS_FOLLOW);
      again_ = p->fts_number;
    } else if (act_ == "skip" && p->fts_number % 3 == 0) {
      set(p, FTS_SKIP);
    } else if (act_ == "children") {
      show_children(0);
    } else if (act_ == "names") {
      show_children(FTS_NAMEONLY);
    } else if (act_ == "both") {
      show_children(p->fts_number % 2 == 0 ? 0 : FTS_NAMEONLY);
      show_children(p->fts_number % 4 < 2 ? 0 : FTS_NAMEONLY);
    } else if (act_ == "some") {
      instruct_children(show_children(0));
    } else if (act_ == "wrong") {
      set(p, 5);
      set(p, -1);
      show_children(1);
    } else if (act_ == "chance") {
      by_chance(p);
    }
  }

  void instruct_children(FTSENT* first) {
    int number = 0;
    for (FTSENT* p = first; p; p = p->fts_link) {
      p->fts_number = 10000 + ++number;
      if (number % 3 == 0) set(p, FTS_SKIP);
      if (number % 3 == 1 && p->fts_level < 6) set(p, FTS_FOLLOW);
    }
  }

  void by_chance(FTSENT* p) {
    if (chance(5)) show_children(0);
    if (chance(8)) show_children(FTS_NAMEONLY);
    if (chance(9)) {
      for (FTSENT* child = show_children(0); child; child = child->fts_link)
        if (chance(3)) set(child, any_instruction(child->fts_level));
    }
    if (chance(3)) set(p, any_instruction(p->fts_level));
  }
  int any_instruction(int level) {
    constexpr int kAll[] = {FTS_AGAIN, FTS_FOLLOW, FTS_SKIP, FTS_NOINSTR, 0};
    const int one = kAll[next() % 5];
    return one == FTS_FOLLOW && level > 6 ? FTS_SKIP : one;
  }

  unsigned next() {
    random_ = random_ * 1103515245U + 12345U;
    return random_ >> 16;
  }
  bool chance(unsigned of) { return act_ == "chance" && next() % of == 0; }

  const std::string act_;
  const int most_ = act_ == "none" ? 20000 : 3000;  // some acts would go on for ever
  unsigned random_;
  FTS* fts_ = nullptr;
  Shown out_;
  int records_ = 0, error_ = 0, closed_ = 0;
  long again_ = 0;
};

struct What {
  int options = -1;
  const char *order = nullptr, *act = nullptr;
  unsigned seeds = 0, at_a_time = 1;
  std::vector<char*> paths;
};

void walk(const What& what, int options, const NamedOrder& order, const char* act, unsigned seed) {
  std::vector<Walk> walks(what.at_a_time, Walk(act, seed));
  for (Walk& one : walks) one.begin(what.paths, options, order.order);
  bool more = true;
  while (more) {
    more = false;
    for (Walk& one : walks) more = one.step() || more;
  }
  for (const Walk& one : walks)
    printf("%02x %s %s %u: %s\n", options, order.name, act, seed, one.result().c_str());
}

void walk_with(const What& what, int options) {
  for (const NamedOrder& order : kOrders) {
    if (what.order && strcmp(order.name, what.order) != 0) continue;
    if (order.order == by_size && (options & FTS_NOSTAT) != 0) continue;
    for (const char* act : kActs)
      if (what.act ? strcmp(act, what.act) == 0 : what.seeds == 0) walk(what, options, order, act, 0);
    for (unsigned seed = 1; seed <= what.seeds; ++seed)
      walk(what, options, order, "chance", seed * 7919U + static_cast<unsigned>(options));
  }
}

}  // namespace

int main(int argc, char** argv) {
  What what;
  for (int c; (c = getopt(argc, argv, "vo:c:a:s:n:")) != -1;) {
    if (c == 'v') verbose = true;
    if (c == 'o') what.options = static_cast<int>(strtol(optarg, nullptr, 16));
    if (c == 'c') what.order = optarg;
    if (c == 'a') what.act = optarg;
    if (c == 's') what.seeds = static_cast<unsigned>(atoi(optarg));
    if (c == 'n') what.at_a_time = static_cast<unsigned>(atoi(optarg));
    if (c == '?') return 2;
  }
  what.paths.assign(argv + optind, argv + argc);
  for (int options = 0; options <= FTS_OPTIONMASK; ++options)
    if (what.options < 0 || what.options == options) walk_with(what, options);
  if (what.options > FTS_OPTIONMASK) walk_with(what, what.options);
  return 0;
}
