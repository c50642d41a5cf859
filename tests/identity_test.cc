// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/identity.h"

#include "tests/scratch.h"
#include "tests/trapped_calls.h"

namespace monarch {
namespace {

constexpr uid_t kUser = 65534;

// A process that waits to be killed.
pid_t sleeper() {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::pause();
    ::_exit(0);
  }
  return pid;
}

TEST(Identity, IsToldFromALaterOneByItsStart) {
  const pid_t pid = sleeper();
  const Result<ProcessId> id = identify(pid);
  ASSERT_TRUE(id.ok()) << id.error().text;
  EXPECT_GT(id->start_time, 0u);
  EXPECT_TRUE(is_running(*id));
  EXPECT_FALSE(is_running({pid, id->start_time + 1})) << "another that had this pid";
  EXPECT_TRUE(signal_and_wait({pid, id->start_time + 1}, SIGKILL, 1000)) << "that one is gone";
  EXPECT_TRUE(is_running(*id)) << "and this one was not killed in its place";
  EXPECT_TRUE(signal_and_wait(*id, SIGKILL, 30000));
  EXPECT_FALSE(is_running(*id)) << "it has ended, though nobody has waited for it";
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  EXPECT_EQ(identify(pid).error().code, ESRCH);
}

TEST(Identity, IsEndingOnceNoThreadExecutesAnything) {
  const pid_t pid = sleeper();
  const Result<ProcessId> id = identify(pid);
  ASSERT_TRUE(id.ok()) << id.error().text;
  EXPECT_FALSE(is_ending(*id));
  EXPECT_TRUE(is_ending({pid, id->start_time + 1})) << "another that had this pid";
  EXPECT_TRUE(signal_and_wait(*id, SIGKILL, 30000));
  EXPECT_TRUE(is_ending(*id)) << "though nobody has waited for it";
  ::waitpid(pid, nullptr, 0);
  EXPECT_TRUE(is_ending(*id));
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t without_first = ::fork();
  if (without_first == 0) {
    char go;
    std::thread([] { ::pause(); }).detach();
    (void)!::read(ends[0], &go, 1);
    ::syscall(SYS_exit, 0);  // of this thread alone
  }
  const Result<ProcessId> of_two = identify(without_first);
  EXPECT_EQ(::write(ends[1], "", 1), 1);
  for (const int end : ends) ::close(end);
  ASSERT_TRUE(of_two.ok());
  EXPECT_TRUE(eventually([&] { return !is_running(*of_two); })) << "its first thread has ended";
  EXPECT_FALSE(is_ending(*of_two)) << "the other one may still do something";
  ::kill(without_first, SIGKILL);
  EXPECT_TRUE(eventually([&] { return is_ending(*of_two); }));
  ::waitpid(without_first, nullptr, 0);
}

TEST(Identity, MayBeAskedToEnd) {
  const pid_t pid = sleeper();
  const Result<ProcessId> id = identify(pid);
  ASSERT_TRUE(id.ok()) << id.error().text;
  EXPECT_TRUE(signal_and_wait({pid, id->start_time + 1}, SIGTERM, 1000)) << "that one is gone";
  EXPECT_TRUE(is_running(*id)) << "and this one was not asked in its place";
  EXPECT_TRUE(signal_and_wait(*id, SIGTERM, 30000));
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
  const auto before = ::signal(SIGTERM, SIG_IGN);
  const pid_t deaf = sleeper();
  ::signal(SIGTERM, before);
  EXPECT_FALSE(signal_and_wait(*identify(deaf), SIGTERM, 20));
  EXPECT_TRUE(signal_and_wait(*identify(deaf), SIGKILL, 30000));
  ::waitpid(deaf, nullptr, 0);
}

TEST(Identity, ANameMayHoldAnything) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_NAME, ") Z 1 (");
    ::pause();
    ::_exit(0);
  }
  ASSERT_TRUE(eventually([&] {
    std::ifstream in("/proc/" + std::to_string(pid) + "/comm");
    std::string name;
    return std::getline(in, name) && name == ") Z 1 (";
  }));
  const Result<ProcessId> id = identify(pid);
  end_child(pid);
  ASSERT_TRUE(id.ok());
  EXPECT_NEAR(static_cast<double>(id->start_time), static_cast<double>(identify(::getpid())->start_time),
              1e6);
}

TEST(Become, AUserForGood) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  const int code = in_child([] {
    if (!become({kUser, kUser, {7, 8}}).ok()) return 1;
    gid_t groups[4];
    if (::getuid() != kUser || ::getegid() != kUser || ::getgroups(4, groups) != 2) return 2;
    if (groups[0] != 7 || groups[1] != 8) return 3;
    if (::setuid(0) == 0 || ::setgid(0) == 0) return 4;
    if (::prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 1 || ::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1) return 5;
    return 0;
  });
  EXPECT_EQ(code, 0);
}

TEST(Become, LeavesNoWayBackAndIsNeverRoot) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer's own thread would have other capabilities than this one";
#endif
  EXPECT_EQ(become({0, kUser, {}}).error().code, EPERM);
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  // With this the kernel leaves a process its capabilities when it gives up root's id.
  const int code = in_child([] {
    if (::prctl(PR_SET_SECUREBITS, 1 << 2, 0, 0, 0) != 0) return 99;  // SECBIT_NO_SETUID_FIXUP
    const Status s = become({kUser, kUser, {}});
    return s.ok() ? 1 : s.error().text == "privileges were not dropped" ? 0 : 2;
  });
  EXPECT_TRUE(code == 0 || code == 99) << code;
}

}  // namespace
}  // namespace monarch
