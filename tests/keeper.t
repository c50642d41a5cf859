#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The keeper, root's one process per node: that there is one, as long as there is something to do, and no longer."""

import atexit
import contextlib
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import e2e  # pylint: disable=wrong-import-position
from e2e import BUILD, equal, ok, scratch, wait_until  # pylint: disable=wrong-import-position

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


if os.geteuid() != 0:
    print("1..0 # SKIP needs root")
    sys.exit(0)
e2e.main(one_and_only, killed, upgraded)
