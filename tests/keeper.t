#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The keeper, root's one process per node: that there is one, as long as there is something to do, and no longer."""

import atexit
import contextlib
import glob
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import e2e  # pylint: disable=wrong-import-position
from e2e import BUILD, equal, ok, scratch, wait_until  # pylint: disable=wrong-import-position

ALL = os.environ.get("MONARCH_TEST_ALL") == "1"
PATIENCE = 30  # seconds; what is waited for takes one or two


class State:
    """A state directory, the helper that writes lines, and a monarchd of its own."""

    def __init__(self, name):
        self.dir = scratch(name)
        self.path, self.log, self.calls = f"{self.dir}/state", f"{self.dir}/log", f"{self.dir}/calls"
        self.monarchd, self.helper = f"{self.dir}/monarchd", f"{self.dir}/account"
        self.config = f"{self.dir}/monarch.conf"
        with open(self.config, "w", encoding="utf-8"):
            pass
        shutil.copy(f"{BUILD}/monarchd", self.monarchd)
        self.answer("exit 1")
        os.mkdir(self.path, 0o755)
        os.mkdir(f"{self.path}/spool", 0o700)
        self.groups = e2e.group_names(self.path)
        atexit.register(self.close)

    def answer(self, script):
        """What the helper does from now on."""
        with open(self.helper + ".new", "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\necho \"$$ $*\" >>{self.calls}\n{script}\n")
        os.chmod(self.helper + ".new", 0o755)
        os.rename(self.helper + ".new", self.helper)

    def called(self):
        with contextlib.suppress(FileNotFoundError), open(self.calls, encoding="utf-8") as file:
            return file.read().splitlines()
        return []

    def spool(self, job, age=0, kind="json", **more):
        """A line that was spooled `age` seconds ago."""
        since = int(time.time()) - age
        entry = {"job": job, "cluster": "c", "uid": 65534, "restart": 0, "begin": since - 10, "end": since, "line": "monarch=1", **more}
        name = f"c.{job}.0.n1.1.{since}.{kind}"
        with open(f"{self.path}/spool/{name}.new", "w", encoding="utf-8") as file:
            json.dump(entry, file)
        os.rename(file.name, file.name.removesuffix(".new"))
        return name

    def logged(self):
        with contextlib.suppress(FileNotFoundError), open(self.log, encoding="utf-8") as file:
            return file.read()
        return ""

    def spooled(self):
        return sorted(os.path.basename(path) for path in glob.glob(f"{self.path}/spool/*"))

    def words(self, *hook):
        return [self.monarchd, *hook, "--state-dir", self.path, "--log", self.log, "--config", self.config,
                "--account-program", self.helper]

    def hook(self, job=99):
        """One of root's hooks, of a job that is none of ours; its exit status."""
        return e2e.execute(self.words("--epilog", "--job", str(job), "--node", "n1", "--cluster", "c"))[0]

    def keepers(self):
        """pids of keepers and what they have started."""
        found = subprocess.run(["pgrep", "-f", rf"^[^ ]*monarchd --keep --state-dir {self.path} "],
                               stdout=subprocess.PIPE, check=False).stdout
        return list(map(int, found.split()))

    def keeper(self):
        """The one that started the others; None without."""
        pids = self.keepers()
        with contextlib.suppress(OSError):
            parents = {pid: parent(pid) for pid in pids}
            top = [pid for pid in pids if parents[pid] not in pids]
            return top[0] if len(top) == 1 else None
        return None

    def program_of_keeper(self):
        """The inode of its program; None without a keeper."""
        with contextlib.suppress(FileNotFoundError):  # it ends just now
            return os.stat(f"/proc/{self.keeper()}/exe").st_ino
        return None

    def wait_keeper(self):
        found = []
        wait_until(lambda: found.append(self.keeper()) or found[-1], PATIENCE)
        return found[-1]

    def gone(self):
        return wait_until(lambda: not self.keepers(), PATIENCE)

    def close(self):
        """At the end of all tests: some leave a keeper, and so its control group."""
        for pid in self.keepers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)  # which ends what it has started, too
        e2e.remove_groups(self.path, self.groups)


def parent(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def one_and_only():
    """However many hooks start it; and it has nothing of the hook's."""
    s = State("one")
    s.spool(1)
    together = [e2e.start(s.words("--epilog", "--job", "99", "--node", "n1", "--cluster", "c"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                for _ in range(10)]
    equal([process.wait(e2e.PATIENCE) for process in together], [0] * 10, "ten hooks at the same moment end well")
    pid = s.wait_keeper()
    ok(pid, "one keeper lives", s.keepers())
    with open(f"/proc/{pid}/auxv", "rb") as file:
        executed = file.read()
    equal(os.readlink(f"/proc/{pid}/cwd"), "/", "its directory")
    ok(os.getsid(pid) not in [process.pid for process in together], "it is in no session of a hook's")
    with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
        equal(file.read(), "monarchd\n", "its name")
    kept = {os.readlink(path) for path in glob.glob(f"/proc/{pid}/fd/*")}
    equal(kept, {"/dev/null", f"{s.path}/keeper.lock", s.log}, "its descriptors")
    os.kill(pid, signal.SIGHUP)
    for _ in range(3):
        s.hook()
    equal(s.keeper(), pid, "it stays, through more hooks and SIGHUP", s.keepers())
    time.sleep(3)  # it has looked by now whether its program is another
    with open(f"/proc/{pid}/auxv", "rb") as file:
        ok(file.read() == executed, "it is not executed anew")
    s.answer("exit 0")
    ok(s.gone(), "it ends when nothing is left", s.keepers())
    equal(s.spooled(), [], "and has written the line")
    s.answer("exit 1")
    s.spool(2)
    e2e.execute(["sh", "-c", "exec \"$@\" <&- >&- 2>&-", "sh", *s.words("--epilog", "--job", "99", "--node", "n1", "--cluster", "c")])
    pid = s.wait_keeper()
    equal([os.readlink(f"/proc/{pid}/fd/{fd}") for fd in range(3)], ["/dev/null"] * 3, "also of a hook that has none has it these three")
    s.answer("exit 0")
    ok(s.gone(), "it ends", s.keepers())
    s.hook()
    time.sleep(0.2)
    equal(s.keepers(), [], "a hook that leaves nothing starts none")


def at_its_end():
    """What a hook adds while the keeper is ending is not forgotten."""
    s = State("end")
    s.answer("exit 0")
    for job in range(1, 41):
        s.spool(job)
        s.hook()
        # The keeper ends when the line is written: sooner or later than the next hook.
        wait_until(lambda: not s.spooled(), 0.02 * (job % 8))
    ok(wait_until(lambda: not s.spooled(), PATIENCE), "no line of 40 is left lying", s.spooled())
    ok(s.gone(), "and then the keeper ends")


def killed():
    s = State("killed")
    s.answer("exec sleep 1000")
    name = s.spool(1)
    s.hook()
    pid = s.wait_keeper()
    ok(wait_until(s.called, PATIENCE), "a duty is being done")
    helper = int(s.called()[0].split()[0])
    os.kill(pid, signal.SIGTERM)
    ok(s.gone() and wait_until(lambda: not os.path.exists(f"/proc/{helper}"), PATIENCE), "SIGTERM ends it and what it has started",
       s.keepers())
    equal(s.spooled(), [name], "the line is kept")
    s.answer("exit 0")
    s.hook()
    ok(wait_until(lambda: not s.spooled(), PATIENCE), "the next hook starts another, which goes on")


def state_removed():
    s = State("removed")
    s.spool(1)
    s.hook()
    ok(s.wait_keeper(), "a keeper lives")
    os.rename(s.path, f"{s.dir}/aside")
    ok(s.gone(), "its state directory is gone: it ends", s.keepers())


def old_notes():
    """What is noted of a job without an agent goes after an hour, unless a slurmstepd of the job is there."""
    s = State("notes")
    long_ago = time.time() - 7200
    for key in ("c.77.n1", "c.78.n1", "c.79.n1"):
        os.makedirs(f"{s.path}/jobs/{key}", 0o700, exist_ok=True)
        with open(f"{s.path}/jobs/{key}/wanted", "w", encoding="utf-8"):
            pass
        if key != "c.79.n1":
            os.utime(f"{s.path}/jobs/{key}", (long_ago, long_ago))
    os.chmod(f"{s.path}/jobs", 0o700)
    stepd = e2e.start(["bash", "-c", "exec -a 'slurmstepd: [78.batch]' sleep 600"], stdin=subprocess.DEVNULL)
    wait_until(lambda: b"slurmstepd" in pathlib.Path(f"/proc/{stepd.pid}/cmdline").read_bytes())
    s.hook()
    left = lambda: sorted(os.listdir(f"{s.path}/jobs"))
    ok(wait_until(lambda: left() == ["c.78.n1", "c.79.n1"], PATIENCE), "a job that is long over: its note is gone", left())
    ok(wait_until(lambda: os.stat(f"{s.path}/jobs/c.78.n1").st_mtime > long_ago + 60, PATIENCE), "one that goes on was looked at")
    equal(left(), ["c.78.n1", "c.79.n1"], "and stays, as a new one does")
    e2e.end(stepd)
    shutil.rmtree(s.path)
    s.gone()


def upgraded():
    """A new monarchd takes the place of the old one's keeper."""
    s = State("upgraded")
    s.spool(1)
    s.hook()
    pid = s.wait_keeper()
    before = os.stat(f"/proc/{pid}/exe").st_ino
    shutil.copy(f"{BUILD}/monarchd", s.monarchd + ".new")
    os.rename(s.monarchd + ".new", s.monarchd)
    new = os.stat(s.monarchd).st_ino
    ok(before != new and wait_until(lambda: s.program_of_keeper() == new, 100), "the keeper is the new one", s.keepers())
    s.answer("exit 0")
    ok(wait_until(lambda: not s.spooled(), PATIENCE) and s.gone(), "it does its duties, and ends")


def no_pile():
    """However many jobs end while the helper hangs or fails: one keeper, one flush, one helper."""
    s = State("pile")
    s.answer("exec sleep 1000")
    most = 0
    for job in range(1, 31):
        s.spool(job)
        s.hook(job)
        most = max(most, len(s.keepers()))
    ok(wait_until(s.called, PATIENCE), "the helper is asked")
    most = max(most, len(s.keepers()))
    # The keeper, the one that flushes, and for a moment one that looks whether monarchd was replaced.
    ok(most <= 3 and len(s.called()) == 1, "30 jobs end while the helper hangs: few processes", most, *s.called())
    os.kill(s.wait_keeper(), signal.SIGTERM)
    s.gone()
    s.answer("exit 1")
    before = len(s.called())
    s.hook()
    time.sleep(8)
    calls = len(s.called()) - before
    ok(1 <= calls <= 8, "slurmdbd is away: at most one try a second for all lines, not one for each", calls)
    equal(len(s.spooled()), 30, "and none is lost")
    s.answer("exit 0")
    ok(wait_until(lambda: not s.spooled(), 100) and s.gone(), "it is back: all are written", s.spooled())


def hanging_helper():
    """One line on which the helper hangs holds up no other, be they of its age."""
    s = State("hang")
    s.answer("case $* in *'--job 1 '*) exec sleep 1000;; esac; exit 0")
    first = s.spool(1)
    s.hook()
    ok(wait_until(s.called, PATIENCE), "the helper hangs")
    helper = int(s.called()[0].split()[0])
    s.spool(2)
    s.spool(3)
    ok(wait_until(lambda: s.spooled() == [first], 100), "the other lines are written", s.spooled())
    ok(not os.path.exists(f"/proc/{helper}"), "and it was killed")
    if ALL:
        equal(e2e.execute(s.words("--flush"), 200)[0], 1, "monarchd --flush ends, too, and says that a line waits")


def bad_line():
    """One on which the helper fails is one of several that were spooled at the same moment."""
    for bad in 1, 2, 3:
        s = State(f"bad{bad}")
        s.answer(f"case $* in *'--job {bad} '*) kill -9 $$;; esac; exit 0")
        names = [s.spool(job, 2) for job in (3, 2, 1)][::-1]
        s.hook()
        ok(wait_until(lambda names=names, bad=bad: s.spooled() == [names[bad - 1]], PATIENCE), f"line {bad} fails: the keeper writes the others",
           s.spooled(), s.called())
        names += [s.spool(job, kind="kept") for job in (5, 6)]
        for _ in range(2):
            equal(e2e.execute(s.words("--flush"), 200)[0], 1, f"line {bad} fails: monarchd --flush says that one waits")
        equal(s.spooled(), [names[bad - 1]], f"line {bad} fails: the second time it writes all others")
        s.answer("exit 0")
        equal(e2e.execute(s.words("--flush"), 200)[0], 0, f"line {bad} fails no more: it is written")


def one_row_missing():
    """A line that finds no row waits, the others do not; and it is tried ever more seldom."""
    s = State("row")
    s.answer("case $* in *'--job 1 '*) exit 4;; esac; exit 0")
    first = s.spool(1)
    s.spool(2)
    s.hook()
    ok(wait_until(lambda: s.spooled() == [first], PATIENCE), "the other one is written", s.spooled())
    time.sleep(10)
    tries = sum("--job 1 " in line for line in s.called())
    ok(2 <= tries <= 5, "in some 10 s it is tried after 1, 2, 4 and 8", tries)


def limits():
    """Lines do not wait for ever, nor without number."""
    s = State("limits")
    with open(s.config, "w", encoding="utf-8") as file:
        file.write("[accounting]\nspool_days = 2\nspool_lines = 20\n")
    old = s.spool(1, 3 * 86400)
    young = s.spool(2, 86400)
    s.hook()
    ok(wait_until(lambda: s.spooled() == [young], PATIENCE), "the one that waited for more than spool_days goes", s.spooled())
    ok("1 line for sacct is given up" in s.logged() and old in s.logged(), "the log tells", s.logged())
    ok("1 line for sacct waits" in s.logged(), "and that others wait long", s.logged())
    names = [s.spool(job, 140 - job) for job in range(100, 120)]
    ok(wait_until(lambda: len(s.spooled()) <= 20, PATIENCE), "and if there are more than spool_lines, the oldest", s.spooled())
    ok(young not in s.spooled() and names[-1] in s.spooled(), "which is not the youngest", s.spooled())
    with open(f"{s.path}/spool/c.9.0.n1.1.{int(time.time())}.json", "w", encoding="utf-8") as file:
        file.write("{}")
    s.answer("exit 0")
    s.hook()
    ok(wait_until(lambda: not s.spooled(), 100) and s.gone(), "the rest is written", s.spooled())
    ok("is no line for sacct" in s.logged(), "what is no line is removed, and the log tells", s.logged())


def no_database():
    """The cluster has no slurmdbd: the helper is asked once, and nothing waits."""
    s = State("none")
    s.answer("exit 3")
    for job in range(1, 11):
        s.spool(job, auto=True)
        s.hook()
    ok(wait_until(lambda: not s.spooled(), PATIENCE) and s.gone(), "account = auto: ten lines are gone, and so is the keeper", s.spooled())
    equal(len(s.called()), 1, "the helper was asked once", *s.called())
    ok("cluster c has no slurmdbd" in s.logged(), "the log tells")
    name = s.spool(11)
    s.hook()
    ok(wait_until(lambda: len(s.called()) > 1, PATIENCE) and s.spooled() == [name], "account = sacct: the line waits", s.spooled())


def for_a_person():
    """account = spool: only monarchd --flush writes them."""
    s = State("person")
    s.answer("exit 0")
    name = s.spool(1, kind="kept")
    s.hook()
    time.sleep(2)
    equal((s.spooled(), s.called(), s.keepers()), ([name], [], []), "account = spool: nobody touches the line")
    code, _, _ = e2e.execute(s.words("--flush"))
    equal((code, s.spooled()), (0, []), "monarchd --flush writes it")


if os.geteuid() != 0:
    print("1..0 # SKIP needs root")
    sys.exit(0)
e2e.main(one_and_only, at_its_end, killed, state_removed, old_notes, upgraded, no_pile, hanging_helper, bad_line, one_row_missing, limits, no_database,
         for_a_person)
