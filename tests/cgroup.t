#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""The control groups of the agent and of root's helpers, without Slurm: with the hierarchies that are mounted here, and
where version 2 is alone. The helpers run in groups as slurmstepd makes them for a step."""

import contextlib
import glob
import os
import re
import shutil
import signal
import subprocess
import time

import e2e
import one_node
from e2e import contains, equal, ok, running, text_in, wait_until
from one_node import UID

OWNER = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
CGROUPS = "/sys/fs/cgroup"
QUOTA = 8 << 20
KEEPER_LOOKS = 7  # seconds in which the keeper looks at the groups once

# Seizes processes: argv[1:], or all of the user's that come within two seconds; prints those that it got.
TRACER = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def seize(pid):
    if libc.ptrace(0x4206, pid, None, None) == 0:
        print(pid, flush=True)
def mine(pid):
    try:
        with open(f"/proc/{pid}/status") as file:
            return f"\\nUid:\\t{os.getuid()}\\t" in file.read()
    except OSError:
        return False
print("begin", flush=True)
if sys.argv[1:]:
    for pid in sys.argv[1:]:
        seize(int(pid))
else:
    known, end = {os.getpid()}, time.monotonic() + 2
    while time.monotonic() < end:
        for pid in {int(p) for p in os.listdir("/proc") if p.isdigit()} - known:
            if mine(pid):
                seize(pid)
        time.sleep(0.0005)
"""


def pids_in(group):
    """None of a group that goes meanwhile."""
    with contextlib.suppress(OSError):
        return text_in(f"{group}/cgroup.procs").split()
    return []


class AsMounted:
    """All hierarchies of this machine."""
    name = "as mounted"

    def __init__(self):
        mounts = [line.split() for line in text_in("/proc/self/mountinfo").splitlines()]
        self.bases = [w[4] for w in mounts if w[w.index("-") + 1] in ("cgroup", "cgroup2") and w[3] == "/"]

    def enter(self, group):
        """A prefix that puts a command there."""
        return ["sh", "-c", f'for base in {" ".join(self.bases)}; do echo 0 >$base/{group}/cgroup.procs; done; exec "$@"', "sh"]

    def close(self):
        pass


class VersionTwo:
    """A machine with version 2 alone: a group of this one's, as a namespace's root."""
    name = "version 2 alone"

    def __init__(self):
        base = [w[4] for w in (line.split() for line in text_in("/proc/self/mountinfo").splitlines())
                if w[w.index("-") + 1] == "cgroup2" and w[3] == "/"][0]
        self.top = f"{base}/monarch-test-{os.getpid()}"
        self.bases = [self.top]
        os.mkdir(self.top)
        mounts = f"mount --make-rprivate / && umount -l {CGROUPS} && mount -t cgroup2 none {CGROUPS} && mkdir {CGROUPS}/system && "\
                 f"echo 0 >{CGROUPS}/system/cgroup.procs && echo up && exec sleep 3600"
        self.holder = e2e.start(["sh", "-c", f"echo 0 >{self.top}/cgroup.procs && exec unshare -C -m sh -c '{mounts}'"],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        if self.holder.stdout.readline() != b"up\n":
            raise RuntimeError("no namespace with cgroup v2")
        for controller in "memory", "cpuset":  # where version 1 has it, there is none
            with contextlib.suppress(OSError):
                e2e.write(f"{self.top}/cgroup.subtree_control", f"+{controller}")

    def enter(self, group):
        return ["sh", "-c", f'echo 0 >{self.top}/{group}/cgroup.procs; exec nsenter -t {self.holder.pid} -C -m "$@"', "sh"]

    def close(self):
        e2e.end(self.holder)
        for group in ("system", "monarch", ""):
            wait_until(lambda path=f"{self.top}/{group}": remove(path))


def remove(path):
    """Whether a group is gone."""
    with contextlib.suppress(OSError):
        os.rmdir(path)
    return not os.path.exists(path)


class Node(one_node.Node):
    """One on which the helpers run each in a step's groups."""

    def __init__(self, machine, name):
        self.machine = machine
        super().__init__(f"{name}.{machine.name.replace(' ', '-')}")
        os.mkdir(self.state, 0o755)
        state = os.stat(self.state)
        self.key = f"{state.st_dev:x}.{state.st_ino:x}."
        self.step = f"step-{self.key}{os.getpid()}"
        for base in machine.bases:
            os.mkdir(f"{base}/{self.step}")
            if os.path.exists(f"{base}/cpuset.mems"):  # version 1; of version 2, the root has no such file
                e2e.write(f"{base}/{self.step}/cpuset.mems", text_in(f"{base}/cpuset.mems"))
            if os.path.exists(f"{base}/{self.step}/cpuset.cpus"):
                e2e.write(f"{base}/{self.step}/cpuset.cpus", "0")

    def configure(self, more=""):
        e2e.write(self.config, f"[tier.ram]\npath = {self.tier}\ndriver = tmpfs\nmedium = ram\nquota = {QUOTA}\n{more}")

    def start(self, job):
        """What `monarchd --start` answers."""
        return self.answer(job, before=self.machine.enter(self.step), more=["--groups", f"{UID},7"])

    def epilog(self, job):
        return e2e.execute([*self.machine.enter(self.step), *self.words("--epilog", job)])[0]

    def agent(self, job):
        return self.record(job)["pid"]

    def groups(self, whose=""):
        """All of this state directory's, or an agent's, by hierarchy."""
        return [path for base in self.machine.bases for path in glob.glob(f"{base}/monarch/{self.key}{whose}*")]

    def keepers(self):
        """The processes in the helpers' groups."""
        return sorted({int(pid) for path in self.groups("helpers") for pid in pids_in(path)})

    def limits(self):
        """Those of the agents' memory."""
        files = [file for path in self.groups("c-1.") for name in ("limit_in_bytes", "max") for file in glob.glob(f"{path}/memory.{name}")]
        return [int(text_in(file).replace("max", str(1 << 62))) for file in files]

    def in_step(self):
        """What keeps slurmstepd from removing its step's groups; the keeper leaves them as it begins."""
        def found():
            return [base for base in self.machine.bases if text_in(f"{base}/{self.step}/cgroup.procs").split()]
        wait_until(lambda: not found())
        return found()

    def close(self):
        for key in glob.glob(f"{self.state}/jobs/*"):
            self.epilog(os.path.basename(key).split(".")[1])
        wait_until(lambda: not glob.glob(f"{self.state}/removing/*") and not self.groups())
        for path in self.groups():
            for pid in pids_in(path):
                os.kill(int(pid), signal.SIGKILL)
            wait_until(lambda path=path: remove(path))
        for base in self.machine.bases:
            wait_until(lambda path=f"{base}/{self.step}": remove(path))
        shutil.rmtree(self.dir, ignore_errors=True)


machine = None


def both(test):
    """Runs it on both kinds of machine."""
    def run():
        global machine
        for kind in AsMounted, VersionTwo:
            machine = kind()
            try:
                test(lambda text: f"{text} ({kind.name})")
            finally:
                machine.close()
    run.__name__ = test.__name__
    return run


def intruder(n, pid):
    """A process of the owner's that the agent was made to start: in all of its groups."""
    process = e2e.start([*OWNER, "sleep", "600"], stdin=subprocess.DEVNULL)
    for base in n.machine.bases:
        for path in glob.glob(f"{base}/monarch/{n.key}*"):
            if str(pid) in pids_in(path):
                e2e.write(f"{path}/cgroup.procs", str(process.pid))
    return process


# ---- the agent


@both
def own_group(name):
    """It leaves the step's groups in each hierarchy, takes the job's processors along, and has its own limit."""
    with contextlib.closing(Node(machine, "own")) as n:
        contains(n.start(1), ["ready "], name("a job starts"))
        pid = n.agent(1)
        wanted = f"/monarch/{n.key}c-1.1.0.n1.x."
        places = [line.split(":", 2)[2] for line in text_in(f"/proc/{pid}/cgroup").splitlines()]
        equal(len([p for p in places if wanted in p]), len(n.machine.bases), name("the agent has groups of its own in each hierarchy"), places)
        equal(n.in_step(), [], name("the step's groups are empty"))
        status = dict(line.split(":\t", 1) for line in text_in(f"/proc/{pid}/status").splitlines())
        equal((status["Uid"].split(), status["Gid"].split(), status["Groups"].split(), status["NoNewPrivs"], int(status["CapEff"], 16)),
              ([str(UID)] * 4, [str(UID)] * 4, ["7", str(UID)], "1", 0), name("it is the owner's, for good"))
        if any(os.path.exists(f"{base}/{n.step}/cpuset.cpus") for base in n.machine.bases):
            equal(status["Cpus_allowed_list"], "0", name("it has the job's processors"))
        for limit in n.limits():
            equal(limit, (2 << 30) + QUOTA + QUOTA // 16, name("its memory is limited"))
        equal(n.epilog(1), 0, name("the epilog succeeds"))
        ok(wait_until(lambda: not n.groups()), name("its groups are gone"), n.groups())
        warnings = [line for line in n.logged().splitlines() if "warning" in line and not (e2e.SLOW > 1 and "is not ready after" in line)]
        equal(warnings, [], name("the log has no warning"), n.logged())
        limits = []
        for job, most in (2, "64M"), (3, "none"):
            n.configure(f"[agent]\nmemory_max = {most}\n")
            n.start(job)
            limits += n.limits()
            n.epilog(job)
        if limits:
            ok(limits[0] == 64 << 20 and limits[1] > 1 << 60, name("memory_max sets the limit, or none"), limits)


@both
def not_traced(name):
    """Its owner cannot trace it, at no moment of its life."""
    with contextlib.closing(Node(machine, "traced")) as n:
        watcher = e2e.start([*OWNER, "/usr/bin/python3", "-c", TRACER], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)
        watcher.stdout.readline()
        control = e2e.start([*OWNER, "sleep", "600"], stdin=subprocess.DEVNULL)
        agents = []
        while watcher.poll() is None and len(agents) < 20:
            n.start(len(agents) + 1)
            agents.append(n.agent(len(agents) + 1))
            n.epilog(len(agents))
        got = [int(pid) for pid in e2e.finish(watcher)[1].split()]
        ok(control.pid in got, name("the owner traces a process of hers"), got)
        equal([pid for pid in got if pid in agents], [], name("and none of the agents that start meanwhile"), len(agents))
        n.start(99)
        pid = n.agent(99)
        equal(e2e.execute([*OWNER, "/usr/bin/python3", "-c", TRACER, str(pid)])[1], b"begin\n", name("nor one that has begun"))
        readable = [f for f in ("mem", "environ", "maps", "fd/0") if e2e.execute([*OWNER, "head", "-c1", f"/proc/{pid}/{f}"])[0] == 0]
        equal(readable, [], name("nor reads what the kernel tells of it"))
        limits = text_in(f"/proc/{pid}/limits")
        ok(re.search(r"^Max core file size +0 +0 ", limits, re.MULTILINE), name("it leaves no core"), limits)


@both
def escape(name):
    """What the agent was made to start ends with the job, whatever it does; also in a frozen group."""
    with contextlib.closing(Node(machine, "escape")) as n:
        for job, frozen in ((1, False), (2, True)):
            n.start(job)
            pid = n.agent(job)
            runaway = intruder(n, pid)
            if frozen:
                for path in n.groups("c-1."):
                    for file, word in ("freezer.state", "FROZEN"), ("cgroup.freeze", "1"):
                        if os.path.exists(f"{path}/{file}"):
                            e2e.write(f"{path}/{file}", word)
            what = "in a frozen group" if frozen else "in its group"
            equal(n.epilog(job), 0, name(f"the epilog of an agent with another process {what}"))
            ok(wait_until(lambda process=runaway: process.poll() is not None), name(f"the process is killed, {what}"))
            ok(not running(pid), name(f"and the agent, {what}"))
            ok(wait_until(lambda: not n.groups()), name(f"and nothing is left, {what}"), n.groups())


@both
def record_gone(name):
    """A job whose record somebody deleted: the keeper ends its agent, though no hook comes."""
    with contextlib.closing(Node(machine, "gone")) as n:
        for job, what in ((1, ""), (3, "/record.json")):
            n.start(job)
            pid, record = n.agent(job), f"{n.state}/jobs/c-1.{job}.n1.x"
            runaway = intruder(n, pid)
            # By a rename, since the keeper may write there at that moment; a record that it writes just then is deleted, too.
            os.rename(f"{record}{what}", f"{n.dir}/gone.{job}")

            def ended(pid=pid, record=record):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{record}/record.json")
                return not running(pid)
            ok(wait_until(ended) and wait_until(lambda process=runaway: process.poll() is not None),
               name(f"the agent ends with all in its group, of a job of which {what or 'all'} is gone"))
        contains(n.start(2), ["ready "], name("a job starts beside one whose record is gone"))
        time.sleep(KEEPER_LOOKS)
        ok(running(n.agent(2)), name("it goes on"))


@both
def keeper_killed(name):
    """The group of a keeper that was killed goes with the job, or is made anew by the next job's."""
    with contextlib.closing(Node(machine, "killed")) as n:
        for job, end in ((1, lambda: n.epilog(1)), (2, lambda: n.start(3))):
            n.start(job)
            ok(wait_until(n.keepers), name("a keeper has the helpers' group"))
            numbers = {os.stat(path).st_ino for path in n.groups("helpers")}
            for pid in n.keepers():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            ok(wait_until(lambda: not n.keepers()) and n.groups("helpers"), name("it is killed: its group stays"))
            end()

            def left(numbers=numbers):
                with contextlib.suppress(FileNotFoundError):
                    return [path for path in n.groups("helpers") if os.stat(path).st_ino in numbers]
                return n.groups("helpers")
            ok(wait_until(lambda: not left()), name(f"and is removed by {'the epilog' if job == 1 else 'the start of the next job'}"))


def why_not():
    if os.geteuid() != 0:
        return "needs root"
    types = [line.split(" - ")[1].split()[0] for line in text_in("/proc/self/mountinfo").splitlines()]
    if "cgroup2" not in types:
        return "no control groups of version 2 are mounted"
    probe = AsMounted().bases[0] + f"/monarch-test-{os.getpid()}"
    try:
        os.mkdir(probe)
    except OSError as error:
        return f"control groups cannot be made: {error}"
    os.rmdir(probe)
    return ""


e2e.skip_all_if(why_not())
e2e.main(own_group, not_traced, escape, record_gone, keeper_killed)
