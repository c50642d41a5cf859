// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/state.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>

#include "runtime/base/json.h"
#include "runtime/base/os.h"
#include "runtime/base/patience.h"
#include "runtime/base/remove_tree.h"
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
// In jobs/, before the key of a job that is being removed, and in removing/ before the name of one that is
// being made: list() leaves both out. And behind the name of a file that is being written.
constexpr char kGone[] = ".gone.", kFresh[] = ".new.", kHalf[] = ".new";
// In a job's directory, what is noted of the job, not of its run, or names the run that it is of.
constexpr const char* kOfJob[] = {"wanted", "options", "peers", "by_default", "no_default", "failed", "told"};

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
constexpr char kOfType[] = "type ";
}

std::string file_system_at(const std::string& path) {
  const Fd dir(os::openat(AT_FDCWD, path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  return dir ? file_system_of(dir.get()) : "";
}

std::string file_system_of(int directory) {
  struct statfs fs;
  if (os::fstatfs(directory, &fs) != 0 || fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC) return "";
  uint64_t id = 0;
  static_assert(sizeof fs.f_fsid == sizeof id);
  std::memcpy(&id, &fs.f_fsid, sizeof id);
  if (id != 0) return fmt::format("{:016x}", id);
  return fmt::format("{}{:x}", kOfType, static_cast<unsigned long>(fs.f_type));  // FUSE has none
}

bool is_file_system_id(const std::string& name) { return !name.empty() && !name.starts_with(kOfType); }

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
  Fd fd;
  const auto try_once = [&]() -> Status {  // EAGAIN: it may be had later
    if (make && ::mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST) return errno_error("make " + dir);
    fd = Fd(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!fd && (!make || errno != ENOENT)) return errno_error("open " + dir);
    if (!fd) return Error{EAGAIN, dir};
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0)
      return errno == EWOULDBLOCK || errno == EINTR ? Error{EAGAIN, dir} : errno_error("lock " + dir);
    if (is_there(fd, dir)) return {};
    return make ? Error{EAGAIN, dir} : Error{ENOENT, dir + ": removed"};
  };
  Status locked;
  const bool in_time = poll_until(clock(), clock().now_ms() + patience_ms, [&] {
    locked = try_once();
    return locked.ok() || locked.error().code != EAGAIN;
  });
  if (!in_time) return Error{ETIMEDOUT, "lock " + dir + ": another helper holds it"};
  if (!locked.ok()) return locked.error();
  return fd;
}

Status StateDir::remove_job(const std::string& key) const {
  const std::string jobs = path_ + "/jobs/", gone = jobs + kGone + key;
  (void)remove_tree(AT_FDCWD, gone).ok();  // of one that was killed
  if (::rename((jobs + key).c_str(), gone.c_str()) != 0)
    return errno == ENOENT ? Status() : Status(errno_error("rename " + jobs + key));
  (void)remove_tree(AT_FDCWD, gone).ok();
  return {};
}

Status StateDir::forget_run(const std::string& key) const {
  const std::string below = "jobs/" + key;
  Result<std::vector<std::string>> names = list(below);
  if (!names.ok()) return names.error();
  std::erase_if(*names, [](const std::string& name) {
    return std::find(std::begin(kOfJob), std::end(kOfJob), name) != std::end(kOfJob);
  });
  // A mark of a run goes after the record: who finds that does not account for the run again.
  const auto turn = [](const std::string& name) { return name == kAccounted ? 2 : name == kRecord ? 1 : 0; };
  std::sort(names->begin(), names->end(),
            [&](const std::string& a, const std::string& b) { return turn(a) < turn(b); });
  for (const std::string& name : *names)
    if (const std::string path = path_ + "/" + below + "/" + name;
        ::unlink(path.c_str()) != 0 && errno != ENOENT)
      return errno_error("remove " + path);
  return {};
}

namespace {

// All names in the directory `dir` that begin, and end, so.
std::vector<std::string> names_like(const std::string& dir, const std::string& begin,
                                    const std::string& end) {
  std::vector<std::string> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir(dir.c_str()), &::closedir);
  while (const dirent* e = open ? ::readdir(open.get()) : nullptr)
    if (const std::string name = e->d_name; name.starts_with(begin) && name.ends_with(end))
      found.push_back(name);
  return found;
}

// Older than any helper that makes it.
bool is_rest(const std::string& path) {
  struct stat st;
  return ::lstat(path.c_str(), &st) == 0 && st.st_mtim.tv_sec + patience::kRetrySeconds < ::time(nullptr);
}

}  // namespace

void StateDir::forget_rests() const {
  const std::string jobs = path_ + "/jobs/", removing = path_ + "/removing/", grants = path_ + "/grants/",
                    spool = path_ + "/spool/";
  for (const std::string& name : names_like(jobs, kGone, "")) (void)remove_tree(AT_FDCWD, jobs + name).ok();
  for (const std::string& name : names_like(removing, kFresh, ""))
    if (is_rest(removing + name) && lock_if_free(removing + name))
      (void)remove_tree(AT_FDCWD, removing + name).ok();
  for (const std::string& name : names_like(spool, "", kHalf))
    if (is_rest(spool + name)) ::unlink((spool + name).c_str());
  const std::vector<std::string> half = names_like(grants, "", kHalf);
  if (half.empty()) return;
  std::set<std::string> known;  // names of jobs may end so, too
  for (const std::string& key : this->jobs())
    if (const Result<JobRecord> record = read_record(key); record.ok()) known.insert(record->on_tier());
  for (const std::string& name : half)
    if (known.count(name) == 0 && is_rest(grants + name)) ::unlink((grants + name).c_str());
}

void StateDir::forget_half_told(const std::string& name) const {
  const std::string grants = path_ + "/grants/";
  for (const std::string& half : names_like(grants, name + ".", kHalf)) {
    const size_t digits = half.find_first_not_of("0123456789", name.size() + 1);
    if (half.size() - digits == sizeof kHalf - 1) ::unlink((grants + half).c_str());
  }
}

Result<Fd> StateDir::lock_ledger(int patience_ms) const { return lock_file("ledger", patience_ms); }

Result<Fd> StateDir::lock_file(const std::string& name, int patience_ms) const {
  const std::string path = path_ + "/" + name;
  Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
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
  m->may("file_system", &t->file_system);
  m->may("away", &t->away);
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
  m->may("memory", &r->memory);
  m->may("unrecorded", &r->unrecorded);
  m->may("given_up", &r->given_up);
  m->may("next_try", &r->next_try);
  m->may("away_since", &r->away_since);
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

std::string read_job(const Json& json, JobRecord* record) {
  JsonReader members(json);
  list_members(record, &members);
  std::string fault = members.fault();
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

namespace {
std::vector<std::string> names(Result<std::vector<std::string>> found) {
  return found.ok() ? found.take() : std::vector<std::string>();
}
}  // namespace

std::vector<std::string> StateDir::jobs() const { return names(list("jobs")); }
std::vector<std::string> StateDir::removals() const { return names(list("removing")); }
std::vector<std::string> StateDir::spooled() const {
  std::vector<std::string> lines = names(list("spool"));
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

namespace {
std::string failed_file(const std::string& key) { return "jobs/" + key + "/failed"; }
constexpr char kRefusedMark[] = " refused";  // behind the run; older releases wrote none
}  // namespace

Status StateDir::write_failure(const std::string& key, const NotedFailure& f) const {
  return write(failed_file(key), f.run + (f.refused ? kRefusedMark : "") + "\n" + f.reason + "\n" + f.tried);
}

std::optional<NotedFailure> StateDir::read_failure(const std::string& key) const {
  const Result<std::string> text = read(failed_file(key));
  if (!text.ok()) return {};
  const size_t reason = text->find('\n') + 1, end = text->find('\n', reason);
  NotedFailure f = {text->substr(0, std::max<size_t>(reason, 1) - 1), false,
                    text->substr(reason, end - reason),
                    end == std::string::npos ? "" : text->substr(end + 1)};
  f.refused = f.run.ends_with(kRefusedMark);
  if (f.refused) f.run.resize(f.run.size() - std::strlen(kRefusedMark));
  return f;
}

Status StateDir::mark(const JobRecord& record, const char* name) const {
  return write("jobs/" + record.job.key() + "/" + name, std::to_string(record.serial));
}

bool StateDir::is_marked(const JobRecord& record, const char* name) const {
  const Result<std::string> serial = read("jobs/" + record.job.key() + "/" + name);
  return serial.ok() && *serial == std::to_string(record.serial);
}

Status StateDir::write_record(const JobRecord& record) const {
  return write_record_at("jobs/" + record.job.key(), record);
}

Status StateDir::write_removal(const JobRecord& record) const {
  return write_record_at("removing/" + record.removal(), record);
}

Result<Fd> StateDir::make_removal(const JobRecord& record) const {
  // Under a name that removals() leaves out: until it is locked, whoever found it would take it for a rest.
  const std::string fresh = std::string("removing/") + kFresh + record.removal(), dir = path_ + "/" + fresh;
  MONARCH_TRY(remove_tree(AT_FDCWD, dir));  // of one that was killed
  if (::mkdir(dir.c_str(), 0700) != 0) return errno_error("make " + dir);
  Fd lock(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  Status made = lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0 ? write_record_at(fresh, record)
                                                                    : Status(errno_error("lock " + dir));
  const std::string to = path_ + "/removing/" + record.removal();
  if (made.ok() && ::rename(dir.c_str(), to.c_str()) != 0) made = errno_error("rename " + dir);
  if (made.ok()) return lock;
  (void)remove_tree(AT_FDCWD, dir).ok();
  return made.error();
}

Status StateDir::write_record_at(const std::string& dir, const JobRecord& record) const {
  JobRecord r = record;
  JsonWriter members;
  list_members(&r, &members);
  Json& tiers = members.object()["tiers"] = Json::array();
  for (TierRecord& t : r.tiers) {
    JsonWriter of_tier;
    list_members(&t, &of_tier);
    tiers.push_back(of_tier.object());
  }
  const std::optional<std::string> text = members.object().dump_if_utf8(1);
  if (!text) return Error{EINVAL, "record of the job: a path or name is not UTF-8"};
  return write(dir + "/" + kRecord, *text + "\n");
}

Result<JobRecord> StateDir::read_record(const std::string& key) const {
  return record_at("jobs/" + key + "/" + kRecord);
}

Result<JobRecord> StateDir::read_removal(const std::string& removal) const {
  return record_at("removing/" + removal + "/" + kRecord);
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
  const std::string fault = json ? read_job(*json, &r) : "it is no JSON";
  if (!fault.empty()) return Error{EINVAL, path_ + "/" + below + ": not valid: " + fault};
  // Root joins the names to paths of its own, and ends the process: a file that a disk has spoilt does
  // neither.
  const bool names = is_file_name(r.name) && is_file_name(r.job.key()) && r.run_dir.rfind('/', 0) == 0 &&
                     r.run_dir.find('\0') == std::string::npos;
  if (!names || r.agent.pid < 0) return Error{EINVAL, path_ + "/" + below + ": not valid"};
  return r;
}

}  // namespace monarch
