// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/state.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>

#include "runtime/base/json.h"
#include "runtime/base/os.h"
#include "runtime/base/patience.h"
#include "runtime/base/remove_tree.h"
#include "runtime/base/size.h"
#include "runtime/node/await.h"

namespace monarch {

bool is_plain_name(const std::string& text) {
  return !text.empty() && text.size() <= NAME_MAX && text[0] != '.' &&
         text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
             std::string::npos;
}

Status check_names(const JobOnNode& job) {
  // The longest that they are part of is a control group: <device>.<inode>.NAME.SERIAL; or in the spool.
  constexpr size_t kMost = 160;
  if (job.cluster.size() + job.node.size() <= kMost) return {};
  return Error{ENAMETOOLONG, fmt::format("the names of cluster and node have {} characters; Monarch's "
                                         "directories have room for {} of both together",
                                         job.cluster.size() + job.node.size(), kMost)};
}

namespace {

constexpr char kRecord[] = "record.json";  // in a directory of jobs/ or removing/
constexpr char kHalf[] = ".new";           // behind the name of a file that is being written

// Whether the directory that was locked is the one of that name still: it may have been removed, and made
// anew, by who held the lock before.
bool is_there(const Fd& locked, const std::string& dir) {
  struct stat held {};
  struct stat now {};
  (void)::fstat(locked.get(), &held);
  return ::stat(dir.c_str(), &now) == 0 && held.st_ino == now.st_ino;
}

}  // namespace

Fd lock_if_free(const std::string& dir) {
  Fd fd(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 || !is_there(fd, dir)) return Fd();
  return fd;
}

// What is there is not made: mkdir(2) waits for whoever has the directory above locked in the kernel, as
// anybody can who can list it.
Status ensure_root_directory(const std::string& path, mode_t mode) {
  struct stat st;
  if (::lstat(path.c_str(), &st) != 0) {
    if (::mkdir(path.c_str(), mode) == 0) {
      if (::chmod(path.c_str(), mode) != 0) return errno_error("chmod " + path);  // whatever the umask
    } else if (errno != EEXIST) {
      return errno_error("make " + path);
    }
    if (::lstat(path.c_str(), &st) != 0) return errno_error(path);
  }
  if (!S_ISDIR(st.st_mode) || st.st_uid != 0 || (st.st_mode & (S_IWGRP | S_IWOTH)))
    return Error{EPERM, path + ": not a directory that root alone can write; remove it"};
  return {};
}

Result<Fd> open_tier_jobs(const std::string& tier_path) {
  const std::string path = tier_path + "/monarch";
  const Fd base(os::openat(AT_FDCWD, tier_path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  Fd all(base ? os::open_beneath(base.get(), "monarch", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1);
  struct stat st;
  if (base && !all && (errno == EXDEV || errno == ELOOP || errno == ENOTDIR))
    return Error{errno, path + ": " +
                            (errno == EXDEV ? "a mount point; unmount it" : "no directory; remove it") +
                            ", Monarch makes a directory of its own there"};
  if (!all || os::fstat(all.get(), &st) != 0) return errno_error(path);
  if (st.st_uid != 0 || (st.st_mode & (S_IWGRP | S_IWOTH)))
    return Error{EPERM, path + ": not a directory that root alone can write; remove it"};
  return all;
}

Status check_tier_jobs(const std::string& tier_path) {
  const Result<Fd> all = open_tier_jobs(tier_path);
  if (all.ok() || all.error().code == ENOENT || all.error().code == EACCES) return {};
  if (all.error().code == EXDEV) return all.error();  // what is mounted there may hang
  struct stat st;
  const bool users = os::fstatat(AT_FDCWD, (tier_path + "/monarch").c_str(), &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                     st.st_uid != 0;
  return users ? Status() : Status(all.error());
}

Status check_keeps_copies(const TierConfig& tier) {
  const bool memory = tier.kind == TierConfig::Kind::kTmpfs;  // one of its own
  if (!memory && ::getxattr(tier.path.c_str(), "system.posix_acl_access", nullptr, 0) < 0 &&
      errno == EOPNOTSUPP)
    return Error{EOPNOTSUPP,
                 tier.path +
                     ": its file system has no access control lists, which keep copies from other "
                     "users; mount it with ACLs (acl(5)), or name another directory"};
  std::string protects;
  std::ifstream("/proc/sys/fs/protected_hardlinks") >> protects;
  if (protects == "0")
    return Error{EPERM,
                 "this node lets users make hard links to others' files, such as copies; run "
                 "sysctl fs.protected_hardlinks=1"};
  return {};
}

namespace {

// Nodes that share it would end each other's jobs: locks, boots and processes are a node's own.
Status check_is_of_node(const std::string& path) {
  constexpr unsigned long kNetwork[] = {0x6969,     0xff534d42, 0xfe534d42, 0x517b,
                                        0x5346414f, 0x6b414653, 0x00c36400, 0x0bd00bd0,  // Lustre
                                        0x47504653, 0x7461636f, 0x01161970, 0x19830326,
                                        0xaad7aaea, 0x7e92d8a6, 0x65735546};  // FUSE
  struct statfs fs;
  if (::statfs(path.c_str(), &fs) != 0) return errno_error(path);
  const auto type = static_cast<unsigned long>(fs.f_type) & 0xffffffff;
  if (std::find(std::begin(kNetwork), std::end(kNetwork), type) == std::end(kNetwork)) return {};
  return Error{EREMOTE,
               path +
                   ": the state directory is on a file system that other nodes may share; name one of "
                   "this node's own by state_dir= in plugstack.conf, such as /run/monarch"};
}

}  // namespace

Status check_state_room(const std::string& path) {
  constexpr uint64_t kBytes = 64 << 10, kFiles = 32;
  struct statvfs fs;
  for (std::filesystem::path at = path; ::statvfs(at.c_str(), &fs) != 0; at = at.parent_path())
    if (errno != ENOENT || at.empty()) return errno_error(path);
  const uint64_t free = fs.f_bfree * fs.f_frsize;
  const bool read_only = fs.f_flag & ST_RDONLY, full = fs.f_blocks > 0 && free < kBytes;
  if (!read_only && !full && (fs.f_files == 0 || fs.f_ffree >= kFiles)) return {};
  return Error{
      read_only ? EROFS : ENOSPC,
      fmt::format("{}: the state directory is on a file system that {}; {}, or name another directory "
                  "by state_dir= in plugstack.conf",
                  path,
                  read_only ? "is mounted read-only"
                  : full    ? "has only " + format_size(free) + " free"
                            : fmt::format("has only {} inodes free", fs.f_ffree),
                  read_only ? "mount it read-write" : "remove what fills it")};
}

Result<StateDir> StateDir::open(const std::string& path, Clock& clock) {
  StateDir state;
  state.path_ = path;
  state.clock_ = &clock;
  for (size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1))
    if (const std::string above = path.substr(0, at); ::access(above.c_str(), F_OK) != 0)
      MONARCH_TRY(ensure_root_directory(above, 0755));
  MONARCH_TRY(ensure_root_directory(path, 0711));
  MONARCH_TRY(check_is_of_node(path));
  struct stat st;
  if (::stat(path.c_str(), &st) != 0) return errno_error(path);
  // As releases before 0.2.0 made it. Who can list it can keep it locked, and nothing is made in it
  // meanwhile. What has nothing of ours in it yet may be somebody's mistake.
  if ((st.st_mode & 0044) != 0 && ::access((path + "/removing").c_str(), F_OK) == 0)
    ::chmod(path.c_str(), 0711);
  MONARCH_TRY(ensure_root_directory(path + "/jobs", 0700));
  MONARCH_TRY(ensure_root_directory(path + "/removing", 0700));
  MONARCH_TRY(ensure_root_directory(path + "/grants", 0711));
  MONARCH_TRY(ensure_root_directory(path + "/run", 0711));
  MONARCH_TRY(ensure_root_directory(path + "/spool", 0700));
  MONARCH_TRY(ensure_root_directory(path + "/reports", 0711));
  state.cgroup_prefix_ = fmt::format("{:x}.{:x}.", st.st_dev, st.st_ino);
  return state;
}

Result<Fd> StateDir::lock_job(const JobOnNode& job, bool make, int patience_ms) const {
  const std::string dir = path_ + "/jobs/" + job.key();
  const int64_t until_ms = clock().now_ms() + patience_ms;
  do {
    if (make && ::mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST) return errno_error("make " + dir);
    Fd opened(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!opened && make && errno == ENOENT) continue;
    Result<Fd> lock = lock_in_time(std::move(opened), dir, static_cast<int>(until_ms - clock().now_ms()));
    if (!lock.ok() || is_there(*lock, dir)) return lock;
    if (!make) return Error{ENOENT, dir + ": removed"};
  } while (clock().now_ms() < until_ms);
  return Error{ETIMEDOUT, "lock " + dir + ": another helper holds it"};
}

Status StateDir::remove_job(const std::string& key) const {
  return remove_tree(AT_FDCWD, path_ + "/jobs/" + key);
}

Status StateDir::forget_run(const JobRecord& record) const {
  JobRecord rest;
  rest.job = record.job;
  rest.notes = record.notes;
  return write_record(rest);
}

bool is_rest(const std::string& path) {
  struct stat st;
  return ::lstat(path.c_str(), &st) == 0 && st.st_mtim.tv_sec + patience::kRetrySeconds < ::time(nullptr);
}

void StateDir::forget_rests() const {
  for (const std::string& name : names("spool"))
    if (const std::string path = path_ + "/spool/" + name; name.ends_with(kHalf) && is_rest(path))
      ::unlink(path.c_str());
}

void StateDir::forget_grants(const JobRecord& record) const {
  const std::string path = path_ + "/" + record.grants();
  for (const std::string& file : {path, path + kHalf}) ::unlink(file.c_str());
}

Result<Fd> StateDir::lock_ledger(int patience_ms) const { return lock_file("ledger", patience_ms); }

Result<Fd> StateDir::lock_file(const std::string& name, int patience_ms) const {
  const std::string path = path_ + "/" + name;
  return lock_in_time(Fd(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600)), path,
                      patience_ms);
}

Result<Fd> StateDir::lock_in_time(Fd fd, const std::string& path, int patience_ms) const {
  if (!fd) return errno_error("open " + path);
  Status locked;
  const bool in_time = poll_until(clock(), clock().now_ms() + patience_ms, [&] {
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return true;
    if (errno == EWOULDBLOCK || errno == EINTR) return false;
    locked = errno_error("lock " + path);
    return true;
  });
  if (!in_time) return Error{ETIMEDOUT, "lock " + path + ": another helper holds it"};
  if (!locked.ok()) return locked.error();
  return fd;
}

namespace {

// What need not be UTF-8, as users choose it: each byte as the character of its number; a control character,
// for which JSON has six, as the one 256 behind it.
std::string characters_of(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) {
    const auto c = static_cast<unsigned char>(byte);
    const bool plain = c >= ' ' && c < 0x80;
    if (!plain) text += static_cast<char>(c < ' ' ? 0xc4 : 0xc0 | c >> 6);
    text += static_cast<char>(plain ? c : 0x80 | (c & 0x3f));
  }
  return text;
}

std::string bytes_of(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool leads = c >= 0x80 && i + 1 < text.size();
    bytes += leads ? static_cast<char>(c << 6 | (text[++i] & 0x3f)) : text[i];
  }
  return bytes;
}

// Each of these reads `value`, or writes it.
template <typename Members>
void may_bytes(Members* m, const char* name, std::string* value) {
  std::string text = characters_of(*value);
  m->may(name, &text);
  *value = bytes_of(text);
}

std::istream& operator>>(std::istream& in, ProcessId& p) { return in >> p.pid >> p.start_time; }
std::ostream& operator<<(std::ostream& out, const ProcessId& p) {
  return out << p.pid << ' ' << p.start_time;
}

template <typename Members, typename T>
void may_list(Members* m, const char* name, std::vector<T>* values) {
  std::ostringstream words;
  for (const T& value : *values) words << value << ' ';
  std::string text = words.str();
  m->may(name, &text);
  values->clear();
  std::istringstream in(text);
  for (T value; in >> value;) values->push_back(value);
}

template <typename Members>
void list_members(JobNotes* n, Members* m) {
  may_bytes(m, "wanted", &n->datasets);  // these three are looked for by the plugin, too
  m->may("no_default", &n->no_default);
  may_bytes(m, "options", &n->options);
  may_bytes(m, "peer_key", &n->peers.key);
  may_bytes(m, "peer_nodes", &n->peers.nodes);
  m->may("by_default", &n->by_default);
  may_bytes(m, "facts", &n->facts);
  may_bytes(m, "failed", &n->failure.run);
  m->may("refused", &n->failure.refused);
  may_bytes(m, "reason", &n->failure.reason);
  may_bytes(m, "tried", &n->failure.tried);
  may_bytes(m, "told", &n->told);
}

template <typename Members>
void list_members(TierRecord* t, Members* m) {
  m->need("name", &t->name);
  m->need("medium", &t->medium);
  m->need("path", &t->path);
  std::string driver = name_of(t->kind), charge = t->to_job ? name_of(TierConfig::Charge::kJob) : "";
  m->may("driver", &driver);
  t->kind =
      driver == name_of(TierConfig::Kind::kTmpfs) ? TierConfig::Kind::kTmpfs : TierConfig::Kind::kDirectory;
  m->need("quota", &t->quota);
  m->need("limit", &t->limit);
  m->need("share", &t->share);
  m->may("charge", &charge);
  t->to_job = charge == name_of(TierConfig::Charge::kJob);
  m->may("occupied", &t->occupied);
}

template <typename Members>
void list_members(JobRecord* r, Members* m) {
  m->need("job", &r->job.job);
  m->need("node", &r->job.node);
  m->need("restart", &r->restart);
  m->need("cluster", &r->job.cluster);
  m->need("name", &r->name);
  m->need("uid", &r->user.uid);
  m->need("gid", &r->user.gid);
  m->need("pid", &r->agent.pid);
  m->need("start_time", &r->agent.start_time);
  m->need("boot", &r->boot);
  m->need("run_dir", &r->run_dir);
  m->need("serial", &r->serial);
  m->need("nodes", &r->nodes);
  m->need("first_node", &r->first_node);
  m->may("slurm_conf", &r->of_cluster.slurm_conf);
  m->may("config", &r->of_cluster.config);
  m->may("account_program", &r->of_cluster.account_program);
  m->may("layout", &r->layout);
  m->may("peers", &r->peers);
  m->may("peer_index", &r->peer_index);
  m->may("agent_memory", &r->agent_memory);
  m->may("resumed", &r->resumed);
  m->may("memory", &r->memory);
  m->may("given_up", &r->given_up);
  m->may("next_try", &r->next_try);
  may_bytes(m, "serves", &r->serves);
  may_bytes(m, "no_peers", &r->no_peers);
  may_bytes(m, "remark", &r->remark);
  m->may("wait_percent", &r->wait_percent);
  m->may("wait_until_ms", &r->wait_until_ms);
  m->may("late", &r->late);
  m->may("closing_line", &r->closing_line);
  m->may("hints", &r->hints);
  may_bytes(m, "report_file", &r->report_file);
  may_list(m, "groups", &r->user.groups);
  may_list(m, "anchors", &r->anchors);
  may_list(m, "stepd", &r->stepd);
  may_list(m, "hanging", &r->hanging);
  m->may("alone_since", &r->alone_since);
  m->may("suspended", &r->suspended);
  may_bytes(m, "memory_group", &r->memory_group);
  m->may("memory_looked", &r->memory_looked);
  m->may("memory_told", &r->memory_told);
  m->may("submit", &r->submit);
  m->may("start", &r->start);
  m->may("next_ask", &r->next_ask);
  m->may("shared_group", &r->shared_group);
  m->may("stopping", &r->stopping);
  m->may("accounted", &r->accounted);
}

// The first member that is missing or wrong; "": there is none. `json` is completed as an older release meant
// it.
std::string read_tier(Json json, TierRecord* tier) {
  if (!json.find("limit")) json["limit"] = json["quota"];
  if (!json.find("share") || json.find("room")) json["share"] = json["quota"];
  JsonReader members(json);
  list_members(tier, &members);
  return members.fault();
}

std::string parse_record(const Json& json, JobRecord* record) {
  JsonReader members(json);
  list_members(&record->notes, &members);
  if (json.is_object() && !json.find("job")) return members.fault();  // it has no run
  list_members(record, &members);
  std::string fault = !members.fault().empty() ? members.fault() : record->has_run() ? "" : "name";
  if (!json["tiers"].is_array()) fault = "tiers";
  for (const Json& tier : json["tiers"].elements())
    if (fault.empty()) fault = tier.is_object() ? read_tier(tier, &record->tiers.emplace_back()) : "tiers";
  return fault;
}

}  // namespace

Result<std::vector<std::string>> StateDir::list(const std::string& below) const {
  const std::string path = path_ + "/" + below;
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(path.c_str()), &::closedir);
  if (!dir) return errno_error("open " + path);
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* e = ::readdir(dir.get());
    if (!e && errno != 0) return errno_error("read " + path);
    if (!e) return names;
    if (is_plain_name(e->d_name)) names.push_back(e->d_name);
  }
}

std::vector<std::string> StateDir::names(const std::string& below) const {
  Result<std::vector<std::string>> found = list(below);
  return found.ok() ? found.take() : std::vector<std::string>();
}

std::vector<std::string> StateDir::jobs() const { return names("jobs"); }
std::vector<std::string> StateDir::removals() const { return names("removing"); }
std::vector<std::string> StateDir::spooled() const {
  std::vector<std::string> lines = names("spool");
  std::erase_if(lines, [](const std::string& name) { return name.ends_with(kHalf); });
  return lines;
}

Status StateDir::write(const std::string& below, const std::string& text, mode_t mode) const {
  const std::string path = path_ + "/" + below, fresh = path + kHalf;
  Fd fd(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd) return errno_error("make " + fresh);
  Status done;
  if (os::fchmod(fd.get(), mode) != 0) done = errno_error("make " + fresh);
  errno = ENOSPC;  // of a write that is short
  if (done.ok() && ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    done = errno_error("write " + fresh);
  fd.reset();
  if (done.ok() && ::rename(fresh.c_str(), path.c_str()) != 0) done = errno_error("rename " + fresh);
  if (!done.ok()) ::unlink(fresh.c_str());
  return done;
}

Result<std::string> StateDir::read(const std::string& below) const {
  const std::string path = path_ + "/" + below;
  const Fd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) return errno_error("read " + path);
  std::string text;
  char buffer[4096];
  ssize_t n;
  while ((n = ::read(fd.get(), buffer, sizeof buffer)) > 0) text.append(buffer, static_cast<size_t>(n));
  if (n < 0) return errno_error("read " + path);
  return text;
}

Status StateDir::write_record(const JobRecord& record) const {
  return write_record_at("jobs/" + record.job.key(), record);
}

Status StateDir::write_removal(const JobRecord& record) const {
  return write_record_at("removing/" + record.removal(), record);
}

Result<Fd> StateDir::make_removal(const JobRecord& record) const {
  const std::string dir = path_ + "/removing/" + record.removal();
  if (::mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST) return errno_error("make " + dir);
  Result<Fd> lock = lock_in_time(Fd(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)),
                                 dir, patience::kBriefMs);
  if (!lock.ok()) return lock;
  const Status written = write_removal(record);
  if (written.ok()) return lock;
  (void)remove_tree(AT_FDCWD, dir).ok();
  return written.error();
}

Status StateDir::write_record_at(const std::string& dir, const JobRecord& record) const {
  JobRecord r = record;
  JsonWriter members;
  if (dir.starts_with("jobs/"))
    list_members(&r.notes, &members);
  else
    r.serves = r.remark = "";  // long, of no use any more, and there may be many removals that wait
  if (r.has_run()) {
    list_members(&r, &members);
    members.object()["tiers"] = Json::array();
  }
  for (TierRecord& t : r.tiers) {
    JsonWriter of_tier;
    list_members(&t, &of_tier);
    members.object()["tiers"].push_back(of_tier.object());
  }
  const std::optional<std::string> text = members.object().dump_if_utf8(1);
  if (!text) return Error{EINVAL, "record of the job: a path or name is not UTF-8"};
  return write(dir + "/" + kRecord, *text + "\n");
}

Result<JobRecord> StateDir::read_any(const std::string& key) const {
  const std::string dir = "jobs/" + key + "/";
  Result<JobRecord> record = record_at(dir + kRecord);
  if (!record.ok() && record.error().code == ENOENT) return JobRecord();
  if (!record.ok() || !record->has_run() || record->has_roots_tiers()) return record;
  const Result<std::string> serves = read(dir + "serves");  // as 0.1.0 noted it
  if (serves.ok()) record->serves = *serves;
  return record;
}

Result<JobRecord> StateDir::read_record(const std::string& key) const {
  Result<JobRecord> record = read_any(key);
  if (record.ok() && !record->has_run()) return Error{ENOENT, key + ": has no run"};
  return record;
}

JobNotes StateDir::read_notes(const std::string& key) const {
  const Result<JobRecord> record = read_any(key);
  return record.ok() ? record->notes : JobNotes();
}

Result<JobRecord> StateDir::read_job(const JobOnNode& job) const {
  Result<JobRecord> record = read_any(job.key());
  if (!record.ok() && record.error().code == EINVAL) record = JobRecord();
  if (record.ok()) record->job = job;
  return record;
}

std::optional<LockedJob> StateDir::lock_run(const JobRecord& seen) const {
  Result<Fd> lock = lock_job(seen.job, false, 0);
  if (!lock.ok()) return {};
  Result<JobRecord> now = read_record(seen.job.key());
  if (!now.ok() || now->serial != seen.serial) return {};
  return LockedJob{lock.take(), now.take()};
}

Result<JobRecord> StateDir::read_removal(const std::string& removal) const {
  Result<JobRecord> record = record_at("removing/" + removal + "/" + kRecord);
  if (record.ok() && !record->has_run()) return Error{EINVAL, removal + ": not valid"};
  return record;
}

namespace {

// As is_plain_name, but of several joined, and of whatever characters a cluster's name has.
bool is_file_name(const std::string& text) {
  return !text.empty() && text[0] != '.' && text.find_first_of(std::string("/\0", 2)) == std::string::npos;
}

}  // namespace

Result<JobRecord> StateDir::record_at(const std::string& below) const {
  Result<std::string> text = read(below);
  if (!text.ok()) return text.error();
  const std::optional<Json> json = Json::parse(*text);
  JobRecord r;
  const std::string fault = json ? parse_record(*json, &r) : "it is no JSON";
  if (!fault.empty()) return Error{EINVAL, path_ + "/" + below + ": not valid: " + fault};
  if (!r.has_run()) return r;
  // Root joins the names to paths of its own, and ends the process: a file that a disk has spoilt does
  // neither.
  const bool names = is_file_name(r.name) && is_file_name(r.job.key()) && r.run_dir.rfind('/', 0) == 0 &&
                     r.run_dir.find('\0') == std::string::npos;
  if (!names || r.agent.pid < 0) return Error{EINVAL, path_ + "/" + below + ": not valid"};
  return r;
}

}  // namespace monarch
