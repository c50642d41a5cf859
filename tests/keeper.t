#!/usr/bin/python3 -B
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
import time

import e2e
import one_node
from e2e import BUILD, equal, ok, wait_until

class State(one_node.Node):
    """A state directory, the helper that writes lines, and a monarchd of its own."""

    def __init__(self, name):
        super().__init__(name)
        self.monarchd, self.account = f"{self.dir}/monarchd", f"{self.dir}/account"
        shutil.copy(f"{BUILD}/monarchd", self.monarchd)
        self.answer("exit 1")
        os.makedirs(f"{self.state}/spool", 0o700)
        os.chmod(self.state, 0o755)
        self.groups = e2e.group_names(self.state)
        atexit.register(self.close)

    def answer(self, script):
        """What the helper does from now on."""
        e2e.write(self.account + ".new", f"#!/bin/sh\n{script}\n", 0o755)
        os.rename(self.account + ".new", self.account)

    def spool(self, job):
        """A line that waits."""
        now = int(time.time())
        line = {"job": job, "cluster": "c", "uid": 65534, "restart": 0, "begin": now - 10, "end": now, "line": "monarch=1"}
        e2e.write(f"{self.state}/spool/new", json.dumps(line))
        os.rename(f"{self.state}/spool/new", f"{self.state}/spool/c.{job}.0.n1.1.{now}.json")

    def spooled(self):
        return os.listdir(f"{self.state}/spool")

    def hook(self):
        """One of root's hooks, of a job that is none of ours."""
        return [self.monarchd, *self.words("--epilog", 99)[1:]]

    def keepers(self):
        """pids of keepers and what they have started."""
        found = subprocess.run(["pgrep", "-f", rf"^[^ ]*monarchd --keep --state-dir {self.state} "], stdout=subprocess.PIPE, check=False).stdout
        return list(map(int, found.split()))

    def keeper(self):
        """The one that started the others; None without."""
        pids = self.keepers()
        with contextlib.suppress(ValueError):  # one of them ends just now
            top = [pid for pid in pids if int(one_node.text_of(f"/proc/{pid}/stat").rpartition(")")[2].split()[1]) not in pids]
            return top[0] if len(top) == 1 else None
        return None

    def wait_keeper(self):
        found = []
        wait_until(lambda: found.append(self.keeper()) or found[-1])
        return found[-1]

    def gone(self):
        return wait_until(lambda: not self.keepers())

    def close(self):
        """At the end of all tests: some leave a keeper, and so its control group."""
        for pid in self.keepers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)  # which ends what it has started, too
        e2e.remove_groups(self.state, self.groups)


def one_and_only():
    """However many hooks start it; and it has nothing of the hook's."""
    s = State("one")
    s.spool(1)
    together = [e2e.start(s.hook(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(10)]
    equal([process.wait(e2e.PATIENCE) for process in together], [0] * 10, "ten hooks at the same moment end well")
    pid = s.wait_keeper()
    ok(pid, "one keeper lives", s.keepers())
    equal((os.readlink(f"/proc/{pid}/cwd"), os.getsid(pid) in [process.pid for process in together], {os.readlink(path) for path in glob.glob(f"/proc/{pid}/fd/*")}),
          ("/", False, {"/dev/null", f"{s.state}/keeper.lock", s.log}), "its directory, session and descriptors")
    os.kill(pid, signal.SIGHUP)
    for _ in range(3):
        e2e.execute(s.hook())
    equal(s.keeper(), pid, "it stays, through more hooks and SIGHUP", s.keepers())
    s.answer("exit 0")
    ok(s.gone(), "it ends when nothing is left", s.keepers())
    equal(s.spooled(), [], "and has written the line")
    s.answer("exit 1")
    s.spool(2)
    e2e.execute(["sh", "-c", "exec \"$@\" <&- >&- 2>&-", "sh", *s.hook()])
    pid = s.wait_keeper()
    equal([os.readlink(f"/proc/{pid}/fd/{fd}") for fd in range(3)], ["/dev/null"] * 3, "also of a hook that has none has it these three")
    s.answer("exit 0")
    ok(s.gone(), "it ends", s.keepers())


def upgraded():
    """A new monarchd takes the place of the old one's keeper."""
    s = State("upgraded")
    s.spool(1)
    e2e.execute(s.hook())
    ok(s.wait_keeper(), "a keeper lives")
    shutil.copy(f"{BUILD}/monarchd", s.monarchd + ".new")
    os.rename(s.monarchd + ".new", s.monarchd)

    def is_new():
        with contextlib.suppress(FileNotFoundError):  # it ends just now
            return os.path.samestat(os.stat(f"/proc/{s.keeper()}/exe"), os.stat(s.monarchd))
        return False
    ok(wait_until(is_new), "the keeper is the new one", s.keepers())
    s.answer("exit 0")
    ok(wait_until(lambda: not s.spooled()) and s.gone(), "it does its duties, and ends")


e2e.skip_all_if(e2e.why_not_root())
e2e.main(one_and_only, upgraded)
