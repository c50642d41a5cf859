// SPDX-License-Identifier: Apache-2.0
// A job with a mount namespace of its own sees the run directory's file system, as the plugin shows it.
#include <sys/syscall.h>

#include "tests/private_mounts.h"
#include "tests/spank_fixture.h"

namespace monarch {
namespace {

class SpankMounts : public SpankPlugin {
 protected:
  void SetUp() override {
    const long tree = ::syscall(SYS_open_tree, AT_FDCWD, "/", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (tree < 0) GTEST_SKIP() << "cannot clone mounts";
    ::close(static_cast<int>(tree));
  }
  // In slurmd's namespace, with the run directory mounted: up to where a step's agent has been started.
  void step_on(PrivateMounts* m, const std::string& noted = "", unsigned long propagation = MS_PRIVATE) {
    namespace_type(slurm_conf) = type_.data();
    load();
    fake_.context = S_CTX_SLURMD;
    hook("init");
    if (!noted.empty()) ::setenv("MONARCH_MOUNT_NAMESPACE", noted.c_str(), 1);
    if (is_mounted_ && mounted() == 0) m->tmpfs("run", "monarch");
    if (is_mounted_)
      m->check(::mount(nullptr, (scratch_ / "run").c_str(), nullptr, propagation, nullptr) == 0, "mark");
    init(S_CTX_REMOTE);
    option("monarch-dataset", "/data", 1);
    const int before = open_descriptors();
    function("init_post_opt")(nullptr, 0, nullptr);
    kept_ = open_descriptors() - before;
  }
  // As Slurm's, made before the run directory was mounted.
  void enter_jobs_namespace(PrivateMounts* m) {
    m->check(::unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0,
             "enter");
    if (is_mounted_) m->check(::umount2((scratch_ / "run").c_str(), MNT_DETACH) == 0, "leave the mount");
    m->check(mounted() == 0, "it is not there");
  }
  // A task keeps the run directory that it sees, and nothing else.
  void begin_task(PrivateMounts* m, int kept = 1) {
    const int before = open_descriptors();
    function("task_init_privileged")(nullptr, 0, nullptr);
    m->check(open_descriptors() == before + kept, "what is left open");
  }
  int mounted(const std::string& name = "run") const {
    std::ifstream in("/proc/self/mountinfo");
    int count = 0;
    for (std::string line; std::getline(in, line);) count += has(line, " " + (scratch_ / name) + " ");
    return count;
  }

  bool is_mounted_ = true;
  std::string type_ = "job_container/tmpfs";
  int kept_ = 0;  // descriptors of slurmstepd's
};

TEST_F(SpankMounts, EachTaskSeesTheRunDirectorysFileSystemOnce) {
  for (const bool in_memory : {false, true})  // as /run is
    in_private_mounts(scratch_, [&](PrivateMounts* m) {
      if (in_memory) {
        m->tmpfs("", "memory");
        scratch_.dir("run");
        scratch_.file("libmonarch_preload.so", "");
        helper("echo \"ready $here/run $here/libmonarch_preload.so\" >&3");
      }
      step_on(m);
      m->check(!has(arguments(), "--own-mounts"), "it is mounted: " + arguments());
      m->check(kept_ == 1, "slurmstepd keeps it, and nothing else");
      scratch_.file("run/here", "");
      begin_task(m);
      m->check(mounted() == 1, "nothing is mounted where it is seen");
      const int nodes = ::open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
      enter_jobs_namespace(m);
      begin_task(m);
      m->check(mounted() == 1 && ::access((scratch_ / "run/here").c_str(), F_OK) == 0, "it is seen");
      begin_task(m);
      m->check(mounted() == 1, "the next task finds it");
      const int jobs = ::open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
      m->check(::setns(nodes, CLONE_NEWNS) == 0, "back to the node's");
      step_on(m);
      m->check(kept_ == 1, "the next step's slurmstepd has a mount of its own");
      m->check(::setns(jobs, CLONE_NEWNS) == 0, "and into the job's");
      begin_task(m);
      m->check(mounted() == 1, "it is mounted once");
    });
}

TEST_F(SpankMounts, OfAllMountsItIsTheRunDirectorys) {
  scratch_.dir("later");
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    m->tmpfs("run", "monarch");
    m->tmpfs("later", "another");
    step_on(m);
    m->check(kept_ == 1, "whatever is mounted after it");
  });
  is_mounted_ = false;
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    m->tmpfs("later", "monarch");  // another job's
    step_on(m);
    m->check(kept_ == 0, "a plain directory is not handed on");
  });
}

TEST_F(SpankMounts, OnAnotherDirectoryOfThatNameNothingIsMounted) {
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    step_on(m);
    enter_jobs_namespace(m);
    const std::string other = scratch_.dir("other");
    scratch_.dir("other/run");
    m->check(::mount(other.c_str(), scratch_.path().c_str(), nullptr, MS_BIND, nullptr) == 0,
             "mount over it");
    begin_task(m);
    m->check(mounted() == 0, "another one of its file system");
    m->check(::umount2(scratch_.path().c_str(), MNT_DETACH) == 0, "unmount that");
    m->tmpfs("", "own");  // over the directory above, as Dirs= of job_container.conf may say
    scratch_.dir("run");
    begin_task(m);
    m->check(mounted() == 0, "one of another file system");
    std::filesystem::remove(scratch_ / "run");
    std::filesystem::create_symlink("/", scratch_ / "run");
    begin_task(m, 0);
    m->check(mounted() == 0, "a link");
  });
}

TEST_F(SpankMounts, NothingIsMountedWhereThereIsNothingToShow) {
  struct Case {
    const char* what;
    bool is_mounted, is_entered;
    int kept, mounted;
    std::function<void(PrivateMounts*)> before_the_task;
  };
  const auto nothing = [](PrivateMounts*) {};
  const Case cases[] = {
      {"over another file system", true, true, 1, 1, [](PrivateMounts* m) { m->tmpfs("run", "own"); }},
      {"of a plain directory", false, true, 0, 0, nothing},
      {"by a task that is late, in the node's own namespace", true, false, 1, 0, [&](PrivateMounts* m) {
         m->check(::umount2((scratch_ / "run").c_str(), MNT_DETACH) == 0, "the job's end");
       }}};
  for (const Case& c : cases) {
    is_mounted_ = c.is_mounted;
    in_private_mounts(scratch_, [&](PrivateMounts* m) {
      step_on(m);
      m->check(kept_ == c.kept, c.what);
      if (c.is_entered) enter_jobs_namespace(m);
      c.before_the_task(m);
      begin_task(m);
      m->check(mounted() == c.mounted, c.what);
    });
  }
}

// Under systemd all mounts of a node are shared ones.
TEST_F(SpankMounts, WhatTheJobMountsThereStaysInItsNamespace) {
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    step_on(m, "", MS_SHARED);
    scratch_.dir("run/x");
    const int code = in_child([&] {
      enter_jobs_namespace(m);
      begin_task(m);
      m->tmpfs("run/x", "own");
      return m->result() || mounted() != 1 || mounted("run/x") != 1;
    });
    m->check(code == 0, "it is seen");
    m->check(mounted("run/x") == 0, "what the job has mounted is the node's");
  });
}

TEST_F(SpankMounts, TheExternStepHasNoTasksToMountItForAndAnotherNamespaceHasAPlainDirectory) {
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    step_on(m, "mnt:[1]");
    m->check(has(arguments(), " --own-mounts ") && kept_ == 0, "it is told: " + arguments());
  });
  fake_.items[S_JOB_STEPID] = kExternStep;
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    step_on(m);
    m->check(has(arguments(), "--start ") && !has(arguments(), "--own-mounts") && kept_ == 0, arguments());
  });
}

}  // namespace
}  // namespace monarch
