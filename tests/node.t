#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Root's helpers without Slurm: what they leave behind when they, the job or the node die, and who removes it."""

import contextlib
import ctypes
import fcntl
import glob
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
import e2e  # pylint: disable=wrong-import-position
from e2e import BUILD, contains, equal, ok, scratch, wait_until  # pylint: disable=wrong-import-position

UID, OTHER = 65534, 65533
FIRST = os.getpid() * 10  # of jobs that no other process on this machine takes for its own
GONE_SECONDS = 30  # in which all that an epilog left to the background must be gone
MANY = 5000
QUOTA = 100 << 20  # of the tier

READER = e2e.OPENED_AS + """
import os, sys, time
def where():
    fd = os.open(sys.argv[1], os.O_RDONLY)
    name = opened_as(fd)
    os.close(fd)
    return "PFS" if name == sys.argv[1] else "tier" if name.startswith(sys.argv[2] + "/") else name
print(where(), flush=True)
sys.stdin.readline()
end = time.monotonic() + 100
while where() != "tier" and time.monotonic() < end:
    time.sleep(0.05)
print(where(), flush=True)
"""

# With root's rights, by a setuid program; and what such a one executes, its title included.
SETUID = """
import os, time
os.setresuid(0, 0, 0)
print("up", flush=True)
time.sleep(600)
"""
HEIR = """
import os, sys
os.execv("/bin/sh", [sys.argv[1], "-p", "-c", "echo up; sleep 600; true"])
"""


class Node:
    """A node with one tier, on which the helpers run as the plugin runs them."""

    def __init__(self, name):
        self.dir, self.uid = scratch(name), UID
        os.chmod(self.dir, 0o755)
        self.state, self.tier, self.data = (f"{self.dir}/{part}" for part in ("state", "tier", "data"))
        self.config, self.log = f"{self.dir}/monarch.conf", f"{self.dir}/log"
        self.cores = 4  # of the node, by what stands for monarch_account
        self.keeps_lines = False
        os.mkdir(self.tier)
        os.chmod(self.tier, 0o1777)
        e2e.make_tree(self.data, 30)
        subprocess.run(["chmod", "-R", "a+rX", self.data], check=True)
        self.configure()

    def configure(self, text=None):
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(text or f"[tier.nvme]\npath = {self.tier}\nquota = 100M\nmin_free = 0\n")

    def keep_lines(self):
        """Lines for sacct stay in the spool; for lines()."""
        self.keeps_lines = True
        self.configure(f"[accounting]\naccount = spool\n[tier.nvme]\npath = {self.tier}\nquota = 100M\nmin_free = 0\n")

    def lines(self, job, restart=0):
        """Those of a run; without what a helper that was killed has half written."""
        found = []
        for path in glob.glob(f"{self.state}/spool/cluster.{job}.{restart}.n1.*.kept"):
            with open(path, encoding="utf-8") as file:
                found.append(json.load(file)["line"])
        return found

    def _words(self, hook, job, cluster="cluster", node="n1"):  # pylint: disable=redefined-outer-name
        return [f"{BUILD}/monarchd", hook, "--state-dir", self.state, "--job", str(job), "--cluster", cluster, "--node", node,
                "--log", self.log]

    def begin(self, job, datasets=None, restart=0, before=(), cores=0, uid=None, stderr=None, **of):
        """Starts `monarchd --start` for a job, by that many of the node's cores if that is known; the process, and a file of its answer."""
        words = [*self._words("--start", job, **of), "--config", self.config, "--restart", str(restart), "--uid", str(uid or self.uid),
                 "--gid", str(uid or self.uid), "--datasets", self.data if datasets is None else datasets]
        if cores:
            with open(f"{self.dir}/account", "w", encoding="utf-8") as file:
                file.write(f"#!/bin/sh\n[ $1 = --cores ] || exit 3\necho {self.cores}\n")
            os.chmod(f"{self.dir}/account", 0o755)
            words += ["--cores", str(cores), "--account-program", f"{self.dir}/account"]
        read, write = os.pipe()
        process = e2e.start([*before, *words, "--reply-fd", str(write)], pass_fds=[write], stdin=subprocess.DEVNULL, stderr=stderr,
                            env={"PATH": "/usr/bin:/bin"})
        os.close(write)
        return process, os.fdopen(read, encoding="utf-8", errors="surrogateescape")

    def start(self, *words, **more):
        """What `monarchd --start` answers."""
        process, answer = self.begin(*words, **more)
        with answer:
            line = answer.readline()
        process.wait(e2e.PATIENCE)
        return line

    def gives_all(self, job, name):
        """Once what was there before is gone, a job of another user's has all of the tier. It ends."""
        ok(wait_until(lambda: not self.reserved(), GONE_SECONDS), f"{name}: nothing stays reserved", self.reserved(), self.logged())
        contains(self.start(job, uid=OTHER), ["ready "], f"{name}: a job of another user's starts")
        equal(self.record(job)["tiers"][0]["quota"], QUOTA, f"{name}: it has the whole quota", self.logged())
        equal(self.epilog(job)[0], 0, f"{name}: it ends")

    def prolog(self, job, datasets):
        return e2e.execute([*self._words("--prolog", job), "--datasets", datasets])

    def epilog(self, job, **of):
        """Its exit code, and how long it took."""
        begin = time.monotonic()
        program = [] if self.keeps_lines else ["--account-program", ""]
        code = e2e.execute([*self._words("--epilog", job, **of), "--config", self.config, *program])[0]
        return code, time.monotonic() - begin

    def record(self, job, cluster="cluster", node="n1"):  # pylint: disable=redefined-outer-name
        with open(f"{self.state}/jobs/{cluster}.{job}.{node}/record.json", encoding="utf-8") as file:
            return json.load(file)

    def reserved(self):
        """{job: bytes} that jobs have of the tier, or occupy while they are removed. What has grown at the cost of what was given back is
        seen together with that."""
        with contextlib.suppress(FileNotFoundError), open(f"{self.state}/ledger", "rb") as ledger:
            fcntl.flock(ledger, fcntl.LOCK_SH)
            return self._recorded()
        return self._recorded()

    def _recorded(self):
        found = {}
        for path in glob.glob(f"{self.state}/*/*/record.json"):
            with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
                record = json.load(file)
                found[record["serial"]] = sum((0 if t.get("away") else t.get("occupied", t["quota"])) if "/removing/" in path else t["quota"]
                                              for t in record["tiers"])
        return found

    def pretend(self, job, **fields):
        """Changes what root noted."""
        record = {**self.record(job), **fields}
        with open(f"{self.state}/jobs/cluster.{job}.n1/record.json", "w", encoding="utf-8") as file:
            json.dump(record, file)

    def booted_later(self):
        """Words before a command, for which the machine was booted after all that is there."""
        with open("/proc/stat", encoding="utf-8") as file, open(f"{self.dir}/stat", "w", encoding="utf-8") as fake:
            fake.write(re.sub(r"^btime .*$", f"btime {int(time.time()) + 1000}", file.read(), flags=re.MULTILINE))
        return ["unshare", "-m", "sh", "-c", f'mount --bind {self.dir}/stat /proc/stat && exec "$@"', "sh"]

    def sweep(self, before=()):
        """As the unit at boot does; exit code, output and messages."""
        return e2e.execute([*before, f"{BUILD}/monarchd", "--sweep", "--state-dir", self.state, "--config", self.config, "--log", self.log])

    def job_dir(self, job, restart=0):
        return f"{self.tier}/monarch/cluster.{job}.{restart}.n1/files"

    def set_aside(self, name):
        """A directory of the user's that waits for its removal."""
        os.makedirs(f"{self.tier}/monarch/.removed.{name}/sub")
        for path in (f".removed.{name}", f".removed.{name}/sub"):
            os.chown(f"{self.tier}/monarch/{path}", UID, UID)

    def has_group(self, job):
        """Whether its agent has control groups of its own, in each hierarchy: one may not answer in time."""
        if os.path.exists(f"{self.state}/jobs/cluster.{job}.n1/shared_group"):
            return False
        name = f"*.{self.record(job)['name']}.{self.record(job)['serial']}"
        return any(glob.glob(f"/sys/fs/cgroup/{at}monarch/{name}") for at in ("", "*/"))

    def kill_agent(self, job):
        pid = self.record(job)["pid"]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not running(pid))

    def fill(self, job, files=MANY):
        """Files of the owner's in the job's directory, as many as a large dataset has."""
        os.makedirs(f"{self.job_dir(job)}/many")
        for n in range(files):
            if n % 1000 == 0:
                os.mkdir(f"{self.job_dir(job)}/many/{n // 1000}")
            os.close(os.open(f"{self.job_dir(job)}/many/{n // 1000}/{n}", os.O_CREAT | os.O_WRONLY))
        subprocess.run(["chown", "-R", f"{UID}:{UID}", f"{self.job_dir(job)}/many"], check=True)

    def hold(self, job, size, name="held"):
        """A file that nobody can remove, until release()."""
        path = f"{self.job_dir(job)}/{name}"
        with open(path, "w", encoding="utf-8") as file:
            os.posix_fallocate(file.fileno(), 0, size)
        os.chown(path, UID, UID)
        subprocess.run(["chattr", "+i", path], check=True)

    def release(self, name="held"):
        for path in glob.glob(f"{self.tier}/monarch/*/files/{name}", include_hidden=True):
            subprocess.run(["chattr", "-i", path], check=True)

    def left(self, job):
        """All that is there of a job, on the tier and in the state directory, but its line for sacct."""
        return [p for p in glob.glob(f"{self.state}/*/*", include_hidden=True) + glob.glob(f"{self.tier}/monarch/*", include_hidden=True)
                if re.search(rf"[/.]{job}\.", p.replace(self.dir, "")) and "/spool/" not in p]

    def helpers(self):
        """pids of root's helpers, removers included."""
        state = "".join(c if c.isalnum() else f"[{c}]" for c in self.state)
        found = subprocess.run(["pgrep", "-f", f"^{BUILD}/monarchd --(epilog|start|prolog|sweep) --state-dir {state} "],
                               stdout=subprocess.PIPE, check=False)
        return list(map(int, found.stdout.split()))

    def signal_helpers(self, number):
        pids = self.helpers()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return pids

    def task(self, run_dir):
        """Starts a task of the job's that opens a file; the task, whether it got the "PFS" or the "tier", after how long."""
        file = next(os.path.join(top, name) for top, _, names in os.walk(self.data) for name in names)
        begin = time.monotonic()
        libraries = ":".join([*e2e.SANITIZER.split(), f"{BUILD}/libmonarch_preload.so"])
        task = e2e.start([*e2e.NOBODY, "/usr/bin/python3", "-c", READER, file, self.tier], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         env={"PATH": "/usr/bin:/bin", "LD_PRELOAD": libraries, "MONARCH_IO_RUN_DIR": run_dir})
        return task, task.stdout.readline().decode().strip(), time.monotonic() - begin

    def task_goes_on(self, task):
        """Lets it open the file again until that is the tier's; which it is in the end."""
        out, _ = task.communicate(b"go on\n", 100 + e2e.PATIENCE)
        return out.decode().strip()

    def logged(self):
        with open(self.log, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()

    def close(self):
        self.release()
        for key in glob.glob(f"{self.state}/jobs/*"):
            cluster, job, name = os.path.basename(key).split(".")
            self.epilog(job, cluster=cluster, node=name)
        wait_until(lambda: not self.helpers() and not glob.glob(f"{self.state}/removing/*"), GONE_SECONDS)
        self.signal_helpers(signal.SIGKILL)
        e2e.remove_groups(self.state)
        shutil.rmtree(self.dir, ignore_errors=True)


def running(pid):
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="surrogateescape") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    return False


@contextlib.contextmanager
def node(name):
    made = Node(name)
    try:
        yield made
    finally:
        made.close()


def slurmstepd(job, user=0, step="batch"):
    """A process that looks like a job's slurmstepd."""
    process = e2e.start(["setpriv", f"--reuid={user}", "--clear-groups", "bash", "-c",
                         f"exec -a 'slurmstepd: [{job}.{step}]' sleep 600"], stdin=subprocess.DEVNULL)

    def titled():
        with open(f"/proc/{process.pid}/cmdline", encoding="utf-8") as file:
            return file.read().startswith("slurmstepd")
    wait_until(titled)
    return process


def by_slurmstepd(job):
    """Words before a command: it is run by what looks like the slurmstepd of a job's batch script, and goes on."""
    return ["bash", "-c", f"""exec -a 'slurmstepd: [{job}.batch]' bash -c '"$@"; sleep 600' sh "$@" """, "sh"]


def quota(n, job):
    with open(f"{n.record(job)['run_dir']}/agent.conf", encoding="utf-8") as file:
        return int(re.search(r"^quota = (\d+)$", file.read(), re.MULTILINE).group(1))


# ---- removal


def large_tree():
    """Out of the way when the epilog returns, and gone soon after."""
    with node("large") as n:
        contains(n.start(1), ["ready "], "a job starts")
        n.fill(1)
        code, took = n.epilog(1)
        equal(code, 0, "epilog of a large tree: it succeeds")
        ok(not os.path.exists(n.job_dir(1)) and not os.path.exists(f"{n.state}/jobs/cluster.1.n1"),
           "epilog of a large tree: the tree is out of the way", n.left(1))
        begin = time.monotonic()
        ok(wait_until(lambda: not n.left(1), GONE_SECONDS), f"a large tree is gone within {GONE_SECONDS} s", n.left(1))
        print(f"# {MANY} files: the epilog took {took:.2f} s, the rest {time.monotonic() - begin:.2f} s")
        equal(os.listdir(f"{n.tier}/monarch"), [], "nothing is on the tier")


def memory_tier():
    """A tmpfs for each job, mounted in its directory."""
    def mounted(job):
        with open("/proc/self/mountinfo", encoding="utf-8") as file:
            return [line for line in file if f" {n.job_dir(job)} " in line]

    with node("memory") as n:
        n.configure(f"[tier.ram]\npath = {n.tier}\ndriver = tmpfs\nquota = 8M\nmedium = ram\n")
        contains(n.start(1), ["ready "], "a job with a memory tier starts")
        equal(len(mounted(1)), 1, "its tmpfs is mounted", mounted(1))
        contains(mounted(1)[0], ["nosuid,nodev", "size=8192k", "mode=700", f"uid={UID}"], "with the job's quota, for the owner")
        equal(os.stat(n.job_dir(1)).st_uid, UID, "the owner's directory")
        total = sum(os.path.getsize(os.path.join(top, name)) for top, _, names in os.walk(n.data) for name in names)
        ok(wait_until(lambda: sum(os.path.getsize(os.path.join(top, name)) for top, _, names in os.walk(n.job_dir(1))
                                  for name in names) == total), "the dataset is staged in it")
        overfill = f"exec 3>{n.job_dir(1)}/hostile; head -c 16M /dev/zero >&3"
        code, _, err = e2e.execute(["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "sh", "-c", overfill])
        ok(code != 0 and "No space left" in err, "its owner cannot overfill it", err)
        with open(f"{n.job_dir(1)}/hostile", "rb") as kept_open:
            code, _ = n.epilog(1)
            equal(code, 0, "the epilog of a memory tier")
            equal(mounted(1), [], "nothing is mounted any more")
            ok(wait_until(lambda: os.fstat(kept_open.fileno()).st_blocks == 0), "who has a file open keeps none of its memory")
        ok(wait_until(lambda: not n.left(1)), "and nothing is left", n.left(1))
        contains(n.start(2), ["ready "], "the next job starts")
        n.kill_agent(2)
        n.pretend(2, boot="another")
        n.start(3)
        ok(wait_until(lambda: not n.left(2) and not mounted(2)), "what nobody ended gives its memory back", n.left(2),
           mounted(2))
        n.epilog(3)
        contains(n.start(4), ["ready "], "to the next job")
        n.epilog(4)


def held_memory():
    """Files of a tmpfs that somebody has open after the job: what they keep is little, and is charged until it is free."""
    with node("held") as n, contextlib.ExitStack() as at_end:
        n.configure(f"[tier.ram]\npath = {n.tier}\ndriver = tmpfs\nquota = 8M\nmedium = ram\n")
        run_dir = n.start(1).split()[1]
        ok(wait_until(lambda: staged(n, 1) == 30), "a job has its dataset in memory")
        task, seen, _ = n.task(run_dir)
        at_end.callback(e2e.end, task)
        equal(seen, "tier", "a task reads it there")
        paths = [f"{run_dir}/junk", f"{n.job_dir(1)}/named", f"{n.job_dir(1)}/unlinked"]
        for path in paths:
            equal(e2e.execute([*e2e.NOBODY, "sh", "-c", f"head -c 2M /dev/zero >{path}; chmod 0 {path}"])[0], 0, "its owner makes a file")
        junk, named, unlinked = [at_end.enter_context(open(path, "rb")) for path in paths]
        os.unlink(unlinked.name)
        equal(n.epilog(1)[0], 0, "the epilog while they are open")
        ok(wait_until(lambda: os.fstat(junk.fileno()).st_blocks == os.fstat(named.fileno()).st_blocks == 0), "those with a name take no memory")
        ok(wait_until(lambda: list(n.reserved().values()) == [2 << 20]), "one that was unlinked is charged", n.reserved())
        ok(wait_until(lambda: not glob.glob(f"{n.state}/run/*", include_hidden=True)), "the run directory is gone")
        n.start(2)
        equal(n.record(2)["tiers"][0]["quota"], 6 << 20, "the next job has the rest")
        n.epilog(2)
        task.stdin.write(b"go on\n")
        task.stdin.flush()
        time.sleep(0.5)
        equal(task.poll(), None, "the task that outlived its job lives")
        unlinked.close()
        ok(wait_until(lambda: not n.reserved(), 3 * GONE_SECONDS), "once that is closed nothing is charged", n.reserved(), n.logged())
        ok(wait_until(lambda: not n.left(1), GONE_SECONDS), "and nothing left", n.left(1))


LEASE = """
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
print("up", flush=True)
sys.stdin.readline()
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
sys.stdin.readline()
"""


def leased_memory():
    """Files of a tmpfs that cannot be cut when the job ends, for a lease or since they run: they are when they can be."""
    with node("leased") as n, contextlib.ExitStack() as at_end:
        n.configure(f"[tier.ram]\npath = {n.tier}\ndriver = tmpfs\nquota = 8M\nmedium = ram\n")
        n.start(1)
        ok(wait_until(lambda: staged(n, 1) == 30), "a job has its dataset in memory")
        leased, program = f"{n.job_dir(1)}/leased", f"{n.job_dir(1)}/program"
        equal(e2e.execute([*e2e.NOBODY, "sh", "-c", f"head -c 2M /dev/zero >{leased}; cp /bin/sleep {program}"])[0], 0, "its owner makes files")
        runs = e2e.start([*e2e.NOBODY, program, "600"], stdin=subprocess.DEVNULL)
        at_end.callback(e2e.end, runs)
        holder = e2e.start([*e2e.NOBODY, "/usr/bin/python3", "-c", LEASE, leased], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        at_end.callback(e2e.end, holder)
        equal(holder.stdout.readline(), b"up\n", "one is leased, and one runs")
        held = at_end.enter_context(open(program, "rb"))
        size = os.fstat(held.fileno()).st_blocks * 512
        equal(n.epilog(1)[0], 0, "the epilog meanwhile")
        ok(wait_until(lambda: list(n.reserved().values()) == [(2 << 20) + size]), "both are charged", n.reserved())
        contains(n.logged(), [" bytes of memory are used still: remove "], "and the log says what keeps them")
        holder.stdin.write(b"go on\n")
        holder.stdin.flush()
        ok(wait_until(lambda: list(n.reserved().values()) == [size], GONE_SECONDS), "without the lease one is cut, though it is open", n.reserved(), n.logged())
        e2e.end(runs)
        ok(wait_until(lambda: not n.reserved(), 3 * GONE_SECONDS), "and the other one once it does not run", n.reserved(), n.logged())
        ok(wait_until(lambda: not n.left(1), GONE_SECONDS), "nothing is left", n.left(1))
        equal(os.fstat(held.fileno()).st_blocks, 0, "whoever has it open keeps no memory")


def full_run_directory():
    """Its owner fills a run directory: it is a tmpfs of its own, and what is beside it stays usable."""
    def mounted(job):
        with open("/proc/self/mountinfo", encoding="utf-8") as file:
            return [line for line in file if f" {run_dir[job]} " in line]

    def as_owner(script):
        return e2e.execute([*e2e.NOBODY, "sh", "-c", script])

    def on_its_file_system(directory):
        return int(e2e.execute(["du", "-sx", "--block-size=1", directory])[1].split()[0])

    run_dir = {}
    with node("full") as n:
        n.configure(f"[agent]\nrun_size = 16M\n[tier.nvme]\npath = {n.tier}\nquota = 100M\nmin_free = 0\n")
        for job in 1, 2:
            contains(n.start(job), ["ready "], f"job {job} starts")
            run_dir[job] = n.record(job)["run_dir"]
        equal(len(mounted(1)), 1, "a run directory is a file system of its own", mounted(1))
        contains(mounted(1)[0], ["nosuid,nodev,noexec", "size=16384k", "nr_inodes=1024", "mode=700"], "bounded")
        equal([(st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode)) for st in [os.stat(run_dir[1])]], [(UID, UID, 0o700)], "the owner's")
        equal(os.stat(f"{run_dir[1]}/agent.conf").st_uid, 0, "with the agent's configuration, which is root's")
        task, _, _ = n.task(run_dir[1])
        equal(n.task_goes_on(task), "tier", "its job is served")  # what is not in the catalog by now will never be
        before = on_its_file_system(n.state)
        filled = as_owner(f"head -c 64M /dev/zero >{run_dir[1]}/fill; i=0; while : >{run_dir[1]}/i$i; do i=$((i+1)); [ $i -lt 5000 ] || exit 7; done 2>/dev/null; exit 0")
        contains(filled[2], ["No space left"], "its owner cannot overfill it")
        ok(filled[0] != 7 and len(os.listdir(run_dir[1])) <= 1024, "nor with files", filled)
        ok(on_its_file_system(n.state) - before < 32 << 20, "nothing of that is taken from where the state is", before, on_its_file_system(n.state))
        task, _, _ = n.task(run_dir[1])
        equal(n.task_goes_on(task), "tier", "its job goes on")
        equal(as_owner(f"echo >{run_dir[2]}/log")[0], 0, "the other job's has room")
        contains(n.start(3), ["ready "], "the next job starts")
        for job in 1, 2, 3:
            equal(n.epilog(job)[0], 0, f"the epilog of job {job}")
        contains(n.logged(), [f" JobId={job} node=n1 monarch=1 " for job in (1, 2, 3)], "has their numbers")
        equal([line for job in (1, 2) for line in mounted(job)], [], "nothing is mounted any more")
        ok(wait_until(lambda: not n.left(1) and not n.left(2), GONE_SECONDS), "and nothing is left", n.left(1), n.left(2))
        n.configure(f"[agent]\nrun_size = none\n[tier.nvme]\npath = {n.tier}\nquota = 100M\nmin_free = 0\n")
        contains(n.start(4), ["ready "], "a job without")
        run_dir[4] = n.record(4)["run_dir"]
        equal(mounted(4), [], "has a plain directory")
        n.epilog(4)
        n.gives_all(5, "after full run directories")


def agent_begun(helper):
    """The agent that a helper starts, stopped before it is ready; None: it was too fast."""
    while helper.poll() is None:
        with contextlib.suppress(OSError):
            with open(f"/proc/{helper.pid}/task/{helper.pid}/children", encoding="utf-8") as file:
                children = [int(word) for word in file.read().split()]
            for pid in children:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    if file.read().startswith(b"monarchd\0--config"):
                        os.kill(pid, signal.SIGSTOP)
                        return pid
    return None


def pipe_of(pid, number):
    """The process's descriptor of that number, here; -1: it is not a pipe to write into."""
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = os.pidfd_open(pid)
    fd = libc.syscall(438, pidfd, number, 0)  # pidfd_getfd
    os.close(pidfd)
    if fd >= 0 and not (stat.S_ISFIFO(os.fstat(fd).st_mode) and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY):
        os.close(fd)
        return -1
    return fd


def endless_answer():
    """Its owner writes into the pipe from which root reads what the agent says, without an end or a byte at a time."""
    for how in "flood", "drip":
        with node(how) as n:
            for job in range(1, 21):
                helper, answer = n.begin(job)
                pid = agent_begun(helper)
                fd = pipe_of(pid, 3) if pid else -1
                if fd >= 0 and helper.poll() is None:
                    break
                if fd >= 0:
                    os.close(fd)
                if pid:
                    os.kill(pid, signal.SIGCONT)
                answer.close()
                helper.wait(e2e.PATIENCE)
                n.epilog(job)
            ok(fd >= 0, f"{how}: the agent's pipe is had")
            begin, written, most = time.monotonic(), 0, 0
            os.set_blocking(fd, False)
            while helper.poll() is None and time.monotonic() - begin < e2e.PATIENCE:
                with contextlib.suppress(BlockingIOError, BrokenPipeError):
                    written += os.write(fd, b"x" * (65536 if how == "flood" else 1))
                with contextlib.suppress(OSError):
                    with open(f"/proc/{helper.pid}/status", encoding="utf-8") as file:
                        most = max([most, *map(int, re.findall(r"VmHWM:\s*(\d+)", file.read()))])
                time.sleep(0 if how == "flood" else 0.2)
            took = time.monotonic() - begin
            os.close(fd)
            answer.close()
            ok(helper.poll() is not None, f"{how}: root's helper ends", f"{took:.2f} s")
            ok(most < 64 << 10, f"{how}: and takes little memory", f"{most} KiB, {written} bytes written")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            n.epilog(job)
            n.gives_all(99, how)


def slow_removal():
    """The epilog does not wait for a removal that takes long."""
    with node("slow") as n:
        n.start(1)
        n.hold(1, 4096)
        code, _ = n.epilog(1)
        equal(code, 0, "the epilog of a removal that takes long: it succeeds")
        ok(n.left(1) and not os.path.exists(n.job_dir(1)), "the epilog of a removal that takes long: the tree is out of the way", n.left(1))
        n.release()
        ok(wait_until(lambda: not n.left(1), GONE_SECONDS), f"and gone within {GONE_SECONDS} s", n.left(1))


def remover_killed():
    """What is being removed is charged; a remover that was killed is followed by the next job's."""
    with node("killed") as n:
        n.start(1)
        n.hold(1, QUOTA)
        epilog = e2e.start([*n._words("--epilog", 1), "--account-program", ""], stdin=subprocess.DEVNULL)
        ok(wait_until(lambda: glob.glob(f"{n.state}/removing/*") and len(n.helpers()) >= 2), "the job is set aside, and a remover begins")
        stopped = n.signal_helpers(signal.SIGSTOP)
        left = n.left(1)
        ok(len(stopped) >= 2 and len(left) >= 2 and not os.path.exists(n.job_dir(1)), "its remover was stopped in the middle", stopped, left)
        contains(n.start(2), ["ready "], "the next job starts meanwhile")
        equal(quota(n, 2), 0, "what is being removed is charged")
        equal(sorted(n.left(1)), sorted(left), "a remover that lives is left alone")
        contains(n.start(1, restart=1), ["ready "], "the same job can start again")
        n.signal_helpers(signal.SIGKILL)
        epilog.wait(e2e.PATIENCE)
        ok(n.left(1), "a remover that was killed leaves something")
        n.release()
        contains(n.start(3), ["ready "], "a job after that starts")
        ok(wait_until(lambda: not glob.glob(f"{n.state}/removing/*"), GONE_SECONDS), "a later job's start removes it", n.left(1))
        equal(glob.glob(f"{n.tier}/monarch/.removed.*"), [], "nothing of it is on the tier")
        ok(os.path.isdir(n.job_dir(1, restart=1)) and running(n.record(1)["pid"]), "the job that was started again is left alone")
        n.epilog(2)
        n.epilog(1)
        wait_until(lambda: not glob.glob(f"{n.state}/removing/*"), GONE_SECONDS)
        ok(wait_until(lambda: n.record(3)["tiers"][0]["quota"] == QUOTA), "what they leave is the last one's", n.reserved())
        contains(n.start(4), ["ready "], "a job after all that starts")
        equal(quota(n, 4), 0, "and has what others leave")


def every_moment():
    """The epilog is killed at a random moment, again and again; the next job's start cleans up. Each job has its line, once."""
    with node("moments") as n:
        n.keep_lines()
        jobs = range(10, 22)
        for turn, job in enumerate(jobs):
            n.start(job)
            n.fill(job, 500)
            epilog = e2e.start([*n._words("--epilog", job), "--config", n.config], stdin=subprocess.DEVNULL)
            time.sleep(turn // 2 * 0.008)
            if turn % 2 == 0:
                epilog.kill()  # to find the others takes longer
            n.signal_helpers(signal.SIGKILL)
            epilog.wait(e2e.PATIENCE)
            if os.path.exists(f"{n.state}/jobs/cluster.{job}.n1/record.json"):
                n.kill_agent(job)
        # Who was killed inside a system call keeps his lock until he has died, and the sweep leaves him alone.
        ok(wait_until(lambda: not n.helpers(), GONE_SECONDS), "those that were killed die")
        n.start(99)
        ok(wait_until(lambda: not n.helpers(), GONE_SECONDS), "the sweep ends")
        equal([p for job in jobs for p in n.left(job)], [], "an epilog killed at any moment leaves nothing for ever")
        equal([job for job in jobs if len(n.lines(job)) != 1], [], "each job has one line", os.listdir(f"{n.state}/spool"))
        equal([job for job in jobs if "counters=lost" in "".join(n.lines(job))], [], "with its counters", n.logged())


def swept_job_is_accounted():
    """Nothing of a job runs any more, and another's hook comes before its epilog."""
    job, other = FIRST + 3, FIRST + 4
    hooks = {"prolog": lambda n: n.prolog(other, n.data),
             "start": lambda n: n.start(other),
             "monarchctl clean": lambda n: e2e.execute([f"{BUILD}/monarchctl", "clean", "--state-dir", n.state])}
    for what, hook in hooks.items():
        with node("swept") as n:
            n.keep_lines()
            contains(n.start(job), ["ready "], f"{what}: a job starts")
            has_group = n.has_group(job)
            n.kill_agent(job)
            hook(n)
            ok(wait_until(lambda n=n: not n.left(job), GONE_SECONDS), f"{what}: it is swept", n.left(job))
            equal(n.epilog(job)[0], 0, f"{what}: its epilog finds nothing")
            equal([line.split()[0] for line in n.lines(job)], ["monarch=1"], f"{what}: its line is kept", n.logged())
            ok("counters=lost" not in n.lines(job)[0], f"{what}: with its counters", n.lines(job))
            equal("agent=died" in n.lines(job)[0], has_group, f"{what}: and that its agent died", n.lines(job), n.logged())
            ok(os.path.exists(f"{n.state}/reports/{UID}/cluster.{job}.0.n1.json"), f"{what}: and its report", n.logged())
            out = e2e.execute([f"{BUILD}/monarchctl", "metrics", "--state-dir", n.state, "--config", n.config])[1]
            contains(out if isinstance(out, str) else out.decode(), ['monarch_jobs_ended_total{counters="read"} 1'], f"{what}: and its last counts")


def swept_jobs_wait():
    """Whoever has the counters of one hang, which are lost then, loses no other's, and holds up no start."""
    if not os.path.exists("/dev/fuse"):
        return e2e.skip("counters that hang while a job is swept", "no /dev/fuse")
    with node("sweptwait") as n, contextlib.ExitStack() as at_end:
        n.keep_lines()
        jobs = range(1, 5)
        for job in jobs:
            contains(n.start(job), ["ready "], f"job {job} starts")
        for job in (1, 2):
            run_dir = n.record(job)["run_dir"]
            at_end.callback(os.close, e2e.hanging_mount(run_dir, UID))
            at_end.callback(subprocess.run, ["umount", "-l", run_dir], stderr=subprocess.DEVNULL, check=False)
        for job in jobs:
            n.kill_agent(job)
        contains(n.start(5), ["ready "], "counters hang: the next job starts")
        for job in (6, 7):
            n.prolog(job, n.data)
        equal([["counters=lost" in line for line in n.lines(job)] for job in jobs], [[True], [True], [False], [False]],
              "theirs are lost, and no other's", n.logged())


def requeued_run_is_accounted():
    """A job begins anew before the epilog of its last run."""
    with node("requeued") as n:
        n.keep_lines()
        contains(n.start(1), ["ready "], "a job starts")
        contains(n.start(1, restart=1), ["ready "], "requeued: it starts again")
        equal(len(n.lines(1)), 1, "requeued: the line of its first run is kept", n.logged())
        ok(os.path.exists(f"{n.state}/reports/{UID}/cluster.1.0.n1.json"), "requeued: and its report")
        os.unlink(f"{n.state}/jobs/cluster.1.n1/serves")
        contains(n.start(1, restart=1), ["ready "], "requeued: a start that was killed is done again")
        equal(len(n.lines(1, 1)), 0, "requeued: and is no run", n.logged())
        equal(n.epilog(1)[0], 0, "requeued: the epilog ends well")
        equal([len(n.lines(1, restart)) for restart in (0, 1)], [1, 1], "requeued: each run has one line", n.logged())
        ok("counters=lost" not in "".join(n.lines(1) + n.lines(1, 1)), "requeued: with its counters", n.lines(1))


def requeued_unseen():
    """A job begins anew though the epilog of its last run did not get through. That it is another run its slurmstepds tell: Slurm says
    restart 0 of each."""
    with node("unseen") as n:
        n.keep_lines()
        job = FIRST + 1
        stepd = slurmstepd(job)
        contains(n.start(job), ["ready "], "unseen: a job starts")
        first = n.record(job)
        e2e.end(stepd)
        lock = os.open(f"{n.state}/jobs/cluster.{job}.n1", os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        equal(n.epilog(job)[0], 1, "unseen: its epilog does not get the job's lock")
        os.close(lock)
        stepd = slurmstepd(job)
        contains(n.start(job), ["ready "], "unseen: it begins anew")
        second = n.record(job)
        ok(second["serial"] != first["serial"] and not running(first["pid"]) and running(second["pid"]), "unseen: with an agent of its own", n.logged())
        equal(len(n.lines(job)), 1, "unseen: the line of its first run is kept", n.logged())
        contains(n.start(job), ["ready "], "unseen: another step starts")
        equal(n.record(job)["serial"], second["serial"], "unseen: with the same agent")
        equal(n.epilog(job)[0], 0, "unseen: the epilog ends well")
        equal(len(n.lines(job)), 2, "unseen: each run has its line", n.logged())
        e2e.end(stepd)


def late_agent_has_no_lock():
    """An agent that has got no further than its record, on a busy node, does not keep the job's end waiting."""
    with node("lateagent") as n:
        n.keep_lines()
        for job in range(FIRST + 5, FIRST + 8):
            process, answer = n.begin(job)
            pid = 0
            while not pid:
                with contextlib.suppress(OSError, ValueError):
                    pid = n.record(job)["pid"]
            os.kill(pid, signal.SIGSTOP)
            with answer:
                contains(answer.readline(), ["ready "], "late agent: its job begins")
            process.wait(e2e.PATIENCE)
            equal(n.epilog(job)[0], 0, "late agent: and ends", n.logged())
            equal(len(n.lines(job)), 1, "late agent: with its line")


def anchors_change():
    """The run goes on with the batch script, whatever happened to the slurmstepd of the step that started the agent."""
    with node("anchors") as n:
        job = FIRST + 2
        extern = slurmstepd(job, step="extern")
        contains(n.start(job), ["ready "], "anchors: the extern step starts the agent")
        batch, answer = n.begin(job, before=by_slurmstepd(job))
        with answer:
            contains(answer.readline(), ["ready "], "anchors: the batch script has it")
        e2e.end(extern)
        serial = n.record(job)["serial"]
        contains(n.start(job), ["ready "], "anchors: a step starts when the extern step's is gone")
        equal(n.record(job)["serial"], serial, "anchors: with the same agent")
        e2e.end(batch)
        equal(n.epilog(job)[0], 0, "anchors: the epilog ends well")


def agent_died():
    """Before its job's end, for whatever reason; not where root ended it, also a helper that was killed then, or where Slurm may have."""
    def kept_report(job):
        return f"{n.state}/reports/{UID}/cluster.{job}.0.n1.json"

    def kept(job):
        with open(kept_report(job), encoding="utf-8") as file:
            return json.load(file)["ended"]["agent_died"]

    with node("died") as n:
        n.keep_lines()
        for job, dies, note in (1, True, None), (2, False, None), (3, True, ("stopping", 0)), (4, True, ("stopping", 1)), (5, True, ("shared_group", 0)), (6, True, None):
            contains(n.start(job), ["ready "], f"job {job} starts")
            has_group = n.has_group(job)
            if note:
                with open(f"{n.state}/jobs/cluster.{job}.n1/{note[0]}", "w", encoding="utf-8") as file:
                    file.write(str(n.record(job)["serial"] - note[1]))
            if dies:
                n.kill_agent(job)
            if job == 6:
                contains(n.start(job, restart=1), ["ready "], "a job is requeued")
            equal(n.epilog(job)[0], 0, f"job {job} ends")
        told = [True, False, False, True, False, True] if has_group else 6 * [False]  # without one, Slurm may have ended it
        equal(["err=1 agent=died" in line for job in range(1, 7) for line in n.lines(job)], told, "the line says that an agent died", n.logged())
        equal(["agent=died" in line for line in n.lines(6, 1)], [False], "and not that of the run after it")
        ok(wait_until(lambda: all(os.path.exists(kept_report(job)) for job in range(1, 7))), "each has its report")
        equal([kept(job) for job in range(1, 6)], told[:5], "which tells it, too")
        equal([f"JobId={job} node=n1 its agent had died" in n.logged() for job in range(1, 7)], told, "and so does root's log", n.logged())
        out = e2e.execute([f"{BUILD}/monarchctl", "metrics", "--state-dir", n.state, "--config", n.config])[1]
        contains(out if isinstance(out, str) else out.decode(), [f"\nmonarch_agents_died_total {told.count(True)}\n"], "and the metrics")


def accounted_once():
    """A helper that was killed had kept the line already, which may be in the database by now."""
    with node("once") as n:
        n.keep_lines()
        for job, of_run in (1, 0), (2, 1):
            contains(n.start(job), ["ready "], f"job {job} starts")
            with open(f"{n.state}/jobs/cluster.{job}.n1/accounted", "w", encoding="utf-8") as file:
                file.write(str(n.record(job)["serial"] - of_run))
            equal(n.epilog(job)[0], 0, f"job {job} ends")
        equal([len(n.lines(job)) for job in (1, 2)], [0, 1], "no line is kept again, but another run's does not count", n.logged())
        equal([f" JobId={job} node=n1 monarch=1 " in n.logged() for job in (1, 2)], [False, True], "nor logged", n.logged())


def remover_killed_at_its_end():
    """The record was removed, or a power failure emptied it, and its directory was not."""
    with node("end") as n:
        n.start(1)
        n.epilog(1)
        wait_until(lambda: not n.left(1))
        for name, text in ("cluster.1.0.n1.1", None), ("cluster.1.0.n1.2", ""):
            os.mkdir(f"{n.state}/removing/{name}", 0o700)
            if text is not None:
                with open(f"{n.state}/removing/{name}/record.json", "w", encoding="utf-8") as file:
                    file.write(text)
            n.set_aside(name)
        contains(n.start(2), ["ready "], "a job starts where a remover was killed at its very end")
        ok(wait_until(lambda: not n.left(1)), "and what is left without a record is removed", n.left(1))


# ---- the sweep


def other_boot():
    """What another boot left goes; a live job's stays, whatever died of it."""
    with node("boot") as n:
        for job in (1, 2, 3, 4):
            contains(n.start(job), ["ready "], f"job {job} starts")
        n.prolog(5, n.data)
        bystander = e2e.start(["sleep", "600"], stdin=subprocess.DEVNULL)
        with open(f"/proc/{bystander.pid}/stat", encoding="utf-8") as file:
            started = int(file.read().rsplit(")", 1)[1].split()[19])
        n.pretend(1, boot="another", pid=bystander.pid, start_time=started)
        n.kill_agent(3)
        n.kill_agent(4)
        stepd, faked = slurmstepd(3), slurmstepd(4, UID)
        n.start(6)
        ok(wait_until(lambda: not n.left(1), GONE_SECONDS), "a job of another boot is swept", n.left(1))
        ok(running(bystander.pid), "a process of this boot that has its agent's pid is left alone")
        ok(wait_until(lambda: not n.left(4), GONE_SECONDS), "a job is swept of which nothing runs but a user's false slurmstepd", n.left(4))
        ok(os.path.isdir(n.job_dir(2)) and running(n.record(2)["pid"]), "a job with an agent is left alone")
        ok(os.path.isdir(n.job_dir(3)), "a job without an agent and with a slurmstepd is left alone")
        ok(os.path.exists(f"{n.state}/jobs/cluster.5.n1/wanted"), "a job that the prolog noted is left alone")
        e2e.end(stepd)
        e2e.end(faked)
        n.prolog(7, n.data)
        ok(wait_until(lambda: not n.left(3), GONE_SECONDS), "the next prolog sweeps it when that has ended", n.left(3))
        e2e.end(bystander)


def false_slurmstepds():
    """A job ends of which nothing runs but what its owner executes as a slurmstepd with root's rights."""
    with node("false") as n:
        setuid = f"{n.dir}/python"
        shutil.copy(os.path.realpath("/usr/bin/python3"), setuid)
        os.chmod(setuid, 0o4755)
        for job, what, program in (1, "a setuid program", SETUID), (2, "what a setuid program executed", HEIR):
            contains(n.start(job), ["ready "], f"job {job} starts")
            n.kill_agent(job)
            title = f"slurmstepd: [{job}.batch]"
            faked = e2e.start([*e2e.NOBODY, "bash", "-c", f"exec -a '{title}' \"$@\"", "bash", setuid, "-c", program, title],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
            if faked.stdout.readline() != b"up\n" or os.stat(f"/proc/{faked.pid}").st_uid != 0:
                e2e.skip(what, "the scratch directory's file system has none")
                continue
            n.prolog(99, n.data)
            ok(wait_until(lambda job=job: not n.left(job), GONE_SECONDS), f"{what}: its job is swept", n.left(job))
            e2e.end(faked)


def state_lost():
    """The state directory was in memory, the tier was not."""
    with node("lost") as n:
        os.mkdir(f"{n.dir}/new", 0o711)  # its inode's number is not that of the one which is lost
        contains(n.start(FIRST + 1, before=["env", f"LD_PRELOAD={BUILD}/tests/earlier.so"]), ["ready "], "a job starts, hours ago")
        groups = lambda: [g for at in ("", "*/") for g in glob.glob(f"/sys/fs/cgroup/{at}monarch/*.cluster.{FIRST + 1}.0.n1.*")]  # pylint: disable=unnecessary-lambda-assignment
        n.kill_agent(FIRST + 1)
        n.fill(FIRST + 1, 100)
        subprocess.run(["umount", "-l", n.record(FIRST + 1)["run_dir"]], check=True)
        subprocess.run(["pkill", "-KILL", "-f", f"^{BUILD}/monarchd --keep --state-dir {n.state} |^monarchd --keep --state-dir {n.state} "], check=False)
        shutil.rmtree(n.state)
        os.rename(f"{n.dir}/new", n.state)
        canary = [f"{n.tier}/monarch/{name}" for name in ("precious", "a.b.c.d", "cluster.0.0.n1")]
        for path in canary:
            os.mkdir(path)
        with open(f"{n.job_dir(FIRST + 1)}/big", "wb") as file:
            file.write(bytes(10 << 20))
        n.set_aside("cluster.8.0.n1.5")
        stepd = slurmstepd(FIRST + 1)
        contains(n.start(FIRST + 2), ["ready "], "the next job starts")
        ok(wait_until(lambda: not glob.glob(f"{n.tier}/monarch/.removed.*")), "what was set aside is removed")
        ok(wait_until(lambda: any(10 << 20 <= size < 20 << 20 for size in n.reserved().values()), GONE_SECONDS),
           "a directory without a record is charged by what it occupies", n.reserved())
        ok(wait_until(lambda: sum(n.reserved().values()) == QUOTA, GONE_SECONDS), "the job that runs has the rest", n.reserved())
        ok(os.path.isdir(n.job_dir(FIRST + 1)), "it stays while its job has a slurmstepd")
        contains(n.logged(), [f"cluster.{FIRST + 1}.0.n1 have no record any more: what they occupy counts until it is removed"], "the log tells")
        e2e.end(stepd)
        ok(wait_until(lambda: not n.left(FIRST + 1), 3 * GONE_SECONDS), "it is removed when its job is over", n.left(FIRST + 1))
        ok(wait_until(lambda: n.record(FIRST + 2)["tiers"][0]["quota"] == QUOTA, GONE_SECONDS), "and its room goes to the job that runs", n.reserved())
        ok(all(map(os.path.isdir, [*canary, n.job_dir(FIRST + 2)])), "what is no job's, and what has a record, stays")
        n.prolog(FIRST + 3, n.data)
        ok(wait_until(lambda: not groups()), "and the next job removes its control groups", groups())
        for path in canary:
            os.rmdir(path)


def state_emptied():
    """Somebody empties the state directory while a job runs: it begins anew beside what it left, and the next one counts that."""
    with node("emptied") as n:
        contains(n.start(FIRST + 1), ["ready "], "a job starts")
        ok(wait_until(lambda: staged(n, FIRST + 1) == 30), "it has its dataset on the tier")
        agent = n.record(FIRST + 1)["pid"]
        subprocess.run(f"rm -rf {n.state}/* 2>/dev/null", shell=True, check=False)
        stepd = slurmstepd(FIRST + 1)
        contains(n.start(FIRST + 1), ["ready "], "its next step starts an agent anew")
        ok(wait_until(lambda: staged(n, FIRST + 1) == 30), "which has its dataset on the tier")
        ok(wait_until(lambda: not running(agent)), "the first one ends")
        equal(n.epilog(FIRST + 1)[0], 0, "the job's epilog")
        e2e.end(stepd)
        ok(wait_until(lambda: not n.left(FIRST + 1) and not n.reserved(), 3 * GONE_SECONDS), "nothing is left, nor charged", n.left(FIRST + 1), n.reserved())


def state_is_shared():
    """A state directory that other nodes may share is refused: they would end each other's jobs."""
    if e2e.why_no_slowfs():
        return e2e.skip("a state directory that nodes share", e2e.why_no_slowfs())
    with node("shared") as n, contextlib.ExitStack() as at_end:
        os.mkdir(f"{n.dir}/source")
        at_end.callback(e2e.SlowFs(f"{n.dir}/source", f"{n.dir}/nfs").close)
        n.state = f"{n.dir}/nfs/state"
        with open(n.log, "w", encoding="utf-8"):  # without the state's lock it is not made
            pass
        contains(n.start(1), ["off ", "other nodes may share", "state_dir= in plugstack.conf"], "no agent, and the reason")
        equal(os.listdir(f"{n.tier}"), [], "nothing is made on the tier")
        contains(n.logged(), [f"{n.state}: the state directory is on a file system that other nodes may share"], "the log tells")
        n.epilog(1)
    return None


def spoilt_record():
    """A job's record that a disk has spoilt, when its epilog comes; and when none comes."""
    for how, text in ("emptied", ""), ("garbled", '{"job": 1.5, "name": ["'):
        with node(how) as n:
            def spoil(job):
                record = f"{n.state}/jobs/cluster.{job}.n1/record.json"
                pid = n.record(job)["pid"]
                with open(record, "w", encoding="utf-8") as file:
                    file.write(text)
                return pid

            for job in FIRST + 1, FIRST + 2:
                contains(n.start(job), ["ready "], f"{how}: job {job} starts")
            ok(wait_until(lambda: staged(n, FIRST + 1) == 30), f"{how}: a job has its dataset on the tier")
            agent = spoil(FIRST + 1)
            time.sleep(2)
            equal(n.record(FIRST + 2)["tiers"][0]["quota"], 0, f"{how}: nobody is given what it had while that is not known")
            equal(n.epilog(FIRST + 1)[0], 0, f"{how}: its epilog")
            ok(wait_until(lambda: not running(agent) and not n.left(FIRST + 1), GONE_SECONDS), f"{how}: nothing of it is left", n.left(FIRST + 1))
            contains(n.logged(), [f"JobId={FIRST + 1} node=n1: ", "record.json", ": its files are removed by its name"], f"{how}: the log tells")
            ok(wait_until(lambda: n.record(FIRST + 2)["tiers"][0]["quota"] == QUOTA, GONE_SECONDS), f"{how}: its room goes to the job that runs", n.reserved())
            agent = spoil(FIRST + 2)
            contains(n.start(FIRST + 3), ["ready "], f"{how}: the next job starts")
            ok(wait_until(lambda: not running(agent) and not n.left(FIRST + 2), 3 * GONE_SECONDS), f"{how}: what had no epilog is gone, too", n.left(FIRST + 2))
            ok(wait_until(lambda: n.record(FIRST + 3)["tiers"][0]["quota"] == QUOTA, GONE_SECONDS), f"{how}: and its room is given", n.reserved())


# ---- the ledger


class Sums:
    """Looks every 50 ms how much all jobs have reserved together, those that are being removed included."""

    def __init__(self, n):
        self.node, self.most, self.over = n, 0, threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.over.wait(0.05):
            self.most = max(self.most, sum(self.node.reserved().values()))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


def start_at_once(n, *jobs):
    """Starts jobs at the same moment; what they have reserved."""
    begun = [n.begin(job) for job in jobs]
    for process, answer in begun:
        with answer:
            contains(answer.readline(), ["ready "], "a job that starts beside others")
        process.wait(e2e.PATIENCE)
    return [n.record(job)["tiers"][0]["quota"] for job in jobs]


def other_nodes():
    """A tier that nodes or clusters share: only what has this cluster's and this node's name is swept."""
    with node("shared") as n:
        n.start(1)
        n.epilog(1)
        names = ["cluster.777.0.n2", "other.777.0.n1", "my.cluster.777.0.n1", "cluster.777.0.n1.n1", ".removed.cluster.7.0.n2.5",
                 ".removed.5", ".removed.", ".removed.x", "cluster.n1", "cluster..n1"]
        ours = ["cluster.778.0.n1", ".removed.cluster.7.0.n1.5"]
        for name in names + ours:
            os.mkdir(f"{n.tier}/monarch/{name}", 0o700)
        contains(n.start(2, before=n.booted_later()), ["ready "], "a job starts on a node that was booted later than others")
        ok(wait_until(lambda: not any(os.path.exists(f"{n.tier}/monarch/{name}") for name in ours)), "what this node left is removed")
        equal([name for name in names if not os.path.isdir(f"{n.tier}/monarch/{name}")], [], "what others have there stays")


def swept_at_boot():
    """What jobs left when the node went down goes at boot, whatever cluster and node they were of; what is younger, or no job's, stays."""
    with node("at_boot") as n:
        n.start(1)
        lives = "cluster.1.0.n1"
        dead = ["cluster.777.0.n1", "other.777.2.n2", "my.cluster.778.0.node-1.site", ".removed.cluster.7.0.n2.5"]
        others = ["cluster.n1", "777.0.n1", ".removed.5", "else", "cluster.0.0.n1", "cluster.777.x.n1"]
        for name in dead + others:
            os.makedirs(f"{n.tier}/monarch/{name}/5f", 0o700)
            with open(f"{n.tier}/monarch/{name}/5f/0000a15f", "wb") as file:
                file.write(bytes(4096))
            for path in (name, f"{name}/5f", f"{name}/5f/0000a15f"):
                os.chown(f"{n.tier}/monarch/{path}", UID, UID)
        here = lambda: set(os.listdir(f"{n.tier}/monarch"))  # pylint: disable=unnecessary-lambda-assignment
        equal(n.sweep()[0], 0, "a sweep at boot ends well")
        wait_until(lambda: not n.helpers())
        equal(here(), {lives, *dead, *others}, "what was made since the boot stays")
        equal(n.sweep(n.booted_later())[0], 0, "so does one when something was left")
        ok(wait_until(lambda: here() == {lives, *others}, GONE_SECONDS), "all that jobs left before the boot goes, and nothing else", here())
        wait_until(lambda: not n.helpers())
        ok(running(n.record(1)["pid"]), "an agent that runs is left alone")
        n.configure("[tier.nvme]\nquota = 1G\n")
        code, _, err = n.sweep()
        with open(n.log, encoding="utf-8") as log:
            equal((code, "path" in log.read().splitlines()[-1]), (1, True), "a configuration with an error is named", err)
        os.unlink(n.config)
        equal(n.sweep()[0], 0, "without a configuration there is nothing to sweep")
        n.epilog(1)


def name_is_taken():
    """What a user puts at TIER/monarch does not switch the tier off, and stays that user's."""
    def make_directory(path):
        os.mkdir(path)
        with open(f"{path}/file", "w", encoding="utf-8"):
            pass

    canary = scratch("canary")
    makers = {"a directory": make_directory, "a file": lambda path: open(path, "w", encoding="utf-8").close(),
              "a link": lambda path: os.symlink(canary, path), "a dangling link": lambda path: os.symlink(f"{canary}/none", path),
              "a FIFO": os.mkfifo}
    before = os.stat(canary)
    for number, (what, make) in enumerate(makers.items()):
        with node(f"taken{number}") as n:
            path = f"{n.tier}/monarch"
            make(path)
            os.chown(path, UID, UID, follow_symlinks=False)
            was = os.lstat(path)
            contains(n.start(1), ["ready "], f"TIER/monarch is {what} of a user's: a job starts")
            st = os.lstat(path)
            equal((st.st_uid, oct(st.st_mode)), (0, "0o40711"), f"{what}: the name is root's")
            aside = glob.glob(f"{n.tier}/monarch.of-{UID}.*")
            equal([(os.lstat(p).st_ino, os.lstat(p).st_mode, os.lstat(p).st_uid) for p in aside], [(was.st_ino, was.st_mode, UID)],
                  f"{what}: it has another name beside it, and is as it was")
            contains(n.logged(), [f"monarch was user {UID}'s"], f"{what}: the log tells")
            equal(sorted(os.listdir(n.tier)), sorted(["monarch", *map(os.path.basename, aside)]), f"{what}: nothing else is there")
    after = os.stat(canary)
    equal((after.st_ino, after.st_mtime_ns, os.listdir(canary)), (before.st_ino, before.st_mtime_ns, []), "what links lead to is not touched")
    with node("taken_by_root") as n:
        os.mkdir(f"{n.tier}/monarch")
        os.chmod(f"{n.tier}/monarch", 0o777)
        contains(n.start(1), ["off "], "what root has put there is left alone")
        contains(n.logged(), ["not a directory that root alone can write"], "the log tells")


def squashed_root():
    """A tier where root is another user, or where nothing can be given to the job's owner: the job goes without it."""
    if e2e.why_no_slowfs():
        return e2e.skip("a tier where root is another user", e2e.why_no_slowfs())
    with node("squashed") as n, contextlib.ExitStack() as at_end:
        os.mkdir(f"{n.dir}/source")
        os.chmod(f"{n.dir}/source", 0o1777)
        slow = e2e.SlowFs(f"{n.dir}/source", f"{n.dir}/slow", "--attr-ttl", "0")
        at_end.callback(slow.close)
        both = "".join(f"[tier.{name}]\npath = {path}\nquota = 100M\nmin_free = 0\n" for name, path in (("slow", slow.mount), ("nvme", n.tier)))
        for job, made in (1, "nothing"), (2, "root's directory, from before"):
            if job == 2:
                os.mkdir(f"{slow.mount}/monarch")
            slow.command(f"set squash {UID - 1}")
            before = os.listdir(slow.mount)
            n.configure(f"[tier.slow]\npath = {slow.mount}\nquota = 100M\nmin_free = 0\n")
            contains(n.start(job), ["off no tier can be used"], f"root is another user on the tier, {made} is there: no agent")
            equal(os.listdir(slow.mount), before, f"{made}: nothing is made there")
            equal([name for _, _, names in os.walk(slow.mount) for name in names], [], f"{made}: nor in what is there")
            n.configure(both)
            contains(n.start(10 + job), ["ready "], f"{made}: with another tier the job starts")
            equal([tier["name"] for tier in n.record(10 + job)["tiers"]], ["nvme"], f"{made}: and has that one")
            for begun in job, 10 + job:
                equal(n.epilog(begun)[0], 0, f"{made}: and its epilog ends well")
            ok(wait_until(lambda: not n.reserved(), GONE_SECONDS), f"{made}: nothing stays charged", n.reserved())
            slow.command("set squash 0")
        contains(n.logged(), [f"{slow.mount}/monarch: root is mapped to user {UID - 1} on this file system, which cannot be a tier",
                              f"{slow.mount}/monarch/cluster.2.0.n1: root is mapped to user {UID - 1} on this file system, which cannot be a tier"], "the log tells why")
    return None


def odd_tier():
    """Blanks and other odd characters in the paths of tier, state, configuration and log."""
    with node("a b\tc\\d\\040;e#f%s,g='h\"\u00e9$(i)") as n:
        contains(n.start(1), ["ready "], "an odd path: a job starts")
        ok(wait_until(lambda: staged(n, 1) == 30), "an odd path: its dataset is staged")
        task, seen, _ = n.task(n.record(1)["run_dir"])
        e2e.end(task)
        equal(seen, "tier", "an odd path: a task reads it there")
        if os.path.exists("/dev/fuse"):
            os.mkdir(f"{n.job_dir(1)}/x y")
            os.chown(f"{n.job_dir(1)}/x y", UID, UID)
            for path in f"{n.job_dir(1)}/x y", n.job_dir(1):
                os.close(e2e.hanging_mount(path, UID))
        equal(n.epilog(1)[0], 0, "an odd path: the epilog")
        ok(wait_until(lambda: not n.left(1), GONE_SECONDS), "an odd path: nothing is left, though the owner mounted something there", n.left(1), n.logged())
        equal(e2e.mounts_below(n.dir), [], "an odd path: nor mounted")
        if os.path.exists("/dev/fuse"):
            os.rmdir(f"{n.tier}/monarch")
            os.mkdir(f"{n.tier}/monarch")
            os.chown(f"{n.tier}/monarch", UID, UID)
            hang = e2e.hanging_mount(f"{n.tier}/monarch", UID)
        contains(n.start(2), ["ready "], "an odd path: what a user mounts at TIER/monarch is no obstacle")
        if os.path.exists("/dev/fuse"):
            os.close(hang)
        n.kill_agent(2)
        n.pretend(2, boot="another")
        contains(n.start(3), ["ready "], "an odd path: the next job starts")
        ok(wait_until(lambda: not n.left(2), GONE_SECONDS), "an odd path: what another boot left is swept", n.left(2))
        n.kill_agent(3)
        subprocess.run(["umount", "-l", n.record(3)["run_dir"]], check=True)
        shutil.rmtree(n.state)
        contains(n.start(4), ["ready "], "an odd path: a job starts without the records of others")
        ok(wait_until(lambda: not n.left(3), 3 * GONE_SECONDS), "an odd path: what has no record is removed", n.left(3), n.logged())
        n.epilog(4)
        n.configure(f"[tier.ram]\npath = {n.tier}\ndriver = tmpfs\nquota = 8M\nmedium = ram\n")
        contains(n.start(5), ["ready "], "an odd path: a job with a memory tier starts")
        ok(n.job_dir(5) in e2e.mounts_below(n.tier), "an odd path: its tmpfs is mounted", e2e.mounts_below(n.tier))
        ok(wait_until(lambda: staged(n, 5) == 30), "an odd path: its dataset is in memory")
        contains(n.start(6), ["ready "], "an odd path: another waits for memory")
        n.epilog(5)
        ok(wait_until(lambda: not n.left(5), GONE_SECONDS), "an odd path: nothing of it is left", n.left(5))
        ok(wait_until(lambda: os.statvfs(n.job_dir(6)).f_blocks * 4096 == 8 << 20, GONE_SECONDS), "an odd path: the other one's tmpfs grows")
        n.epilog(6)
        ok(wait_until(lambda: not n.left(6) and not e2e.mounts_below(n.dir), GONE_SECONDS), "an odd path: nothing is left", n.left(6), e2e.mounts_below(n.dir))
        lines = n.logged().splitlines()
        ok(all(re.match(r"\d{4}-\d\d-\d\dT[0-9:.]+ monarchd\[\d+\]: ", line) for line in lines), "an odd path: each line of the log is a whole one", lines)


def others_rename():
    """A tier where others could rename TIER/monarch is not used, and who asks is told what to do."""
    with node("others") as n:
        for mode, uid, remedy in (0o775, 0, "chmod +t"), (0o777, 0, "chmod +t"), (0o755, UID, "chown root"):
            os.chmod(n.tier, mode)
            os.chown(n.tier, uid, uid)
            contains(n.start(mode), ["off no tier can be used"], f"a tier of user {uid} with mode {mode:o} is not used")
            contains(n.logged(), [remedy], "the log tells the remedy")
            code, out, _ = e2e.execute([f"{BUILD}/monarchctl", "tiers", "--config", n.config])
            ok(code == 1 and remedy in str(out), "and so does monarchctl tiers", code, out)
            n.epilog(mode)
        equal(os.listdir(n.tier), [], "nothing was made there")


def name_is_mounted():
    """A user's FUSE file system there, which may hang, neither."""
    if not shutil.which("fusermount3") or not os.path.exists(f"{BUILD}/tests/slowfs") or not os.access("/dev/fuse", os.W_OK):
        return e2e.skip("a user's mount at TIER/monarch", "no FUSE")
    with node("mounted") as n:
        path, source = f"{n.tier}/monarch", f"{n.dir}/source"
        for made in (path, source):
            os.mkdir(made)
            os.chown(made, UID, UID)
        fuse = e2e.start([*e2e.NOBODY, f"{BUILD}/tests/slowfs", "--foreground", source, path], stdin=subprocess.DEVNULL)

        def mounted():
            with open("/proc/self/mountinfo", encoding="utf-8") as file:
                return f" {path} " in file.read()
        if not wait_until(lambda: mounted() or fuse.poll() is not None) or not mounted():
            return e2e.skip("a user's mount at TIER/monarch", "users cannot mount here")
        try:
            os.kill(fuse.pid, signal.SIGSTOP)
            contains(n.start(1), ["ready "], "a user's file system that hangs at TIER/monarch: a job starts")
            equal(os.lstat(path).st_uid, 0, "the name is root's")
            ok(not mounted(), "and nothing is mounted there")
        finally:
            os.kill(fuse.pid, signal.SIGCONT)
            subprocess.run(["umount", "-l", path], stderr=subprocess.DEVNULL, check=False)
            e2e.end(fuse)


def started_at_once():
    """Jobs that start at the same moment never get more than the quota together."""
    with node("at_once") as n, Sums(n) as sums:
        for turn in range(8):
            pair = 10 + 2 * turn, 11 + 2 * turn
            equal(sorted(start_at_once(n, *pair)), [0, QUOTA], "two jobs that start at the same moment: their quotas")
            for job in pair:
                n.epilog(job)
            wait_until(lambda: not os.listdir(f"{n.state}/removing"))
        equal(sum(start_at_once(n, *range(50, 58))), QUOTA, "eight jobs that start at the same moment: the sum of their quotas")
        for job in range(50, 58):
            n.epilog(job)
        n.gives_all(99, "after jobs that started at the same moment")
        ok(0 < sums.most <= QUOTA, "at no time more was reserved than the quota", sums.most)


def cleared_at_once():
    """Steps that begin at the same moment, after a start of their job was killed in the middle: one of them starts the agent, for all."""
    with node("cleared") as n:
        for job in range(200, 208):
            n.start(job)
            place = f"{n.state}/jobs/cluster.{job}.n1"
            os.kill(n.record(job)["pid"], signal.SIGKILL)
            os.unlink(f"{place}/serves")
            lock = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            begun = [n.begin(job) for _ in range(6)]
            time.sleep(0.3)  # all of them wait for it
            os.close(lock)
            answers = []
            for process, answer in begun:
                with answer:
                    answers.append(answer.readline().split(" ")[0])
                process.wait(e2e.PATIENCE)
            ok(set(answers) <= {"ready", "joined"}, "steps that begin at the same moment after a start that was killed: each has the agent", answers, n.logged())
            ok(wait_until(lambda job=job: n.record(job)["tiers"][0]["quota"] == QUOTA and os.path.isdir(n.job_dir(job))), "and that has its tier", n.record(job))
            n.epilog(job)
            wait_until(lambda: not os.listdir(f"{n.state}/removing"))


def ledger_is_held():
    """A helper that hangs with the ledger's lock costs others their space, not their start."""
    with node("held") as n, open(f"{n.dir}/begun", "w", encoding="utf-8"):
        n.start(1)
        n.epilog(1)
        wait_until(lambda: not n.left(1))
        with open(f"{n.state}/ledger", "r+", encoding="utf-8") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            contains(n.start(2), ["ready "], "a job that starts while the ledger is held")
        equal(n.record(2)["tiers"][0]["quota"], 0, "and begins without space")
        contains(n.logged(), ["JobId=2 begins without space on the tiers: lock "], "the log tells")


def what_is_occupied():
    """A removal counts by what it still occupies, when it has said how much that is."""
    with node("occupied") as n:
        def removal_counts():
            with open(glob.glob(f"{n.state}/removing/*/record.json")[0], encoding="utf-8") as file:
                tier = json.load(file)["tiers"][0]
            return tier.get("occupied", tier["quota"])

        n.start(1)
        n.hold(1, 3 << 20)
        n.epilog(1)
        ok(wait_until(lambda: removal_counts() != QUOTA), "a removal says how much is left")
        contains(n.start(3, node="n2"), ["ready "], "a job of another node name on the same machine")
        rest = QUOTA - n.record(3, node="n2")["tiers"][0]["quota"]
        ok(3 << 20 <= rest < 4 << 20, "gets all but what is still occupied", rest)
        n.start(4, cluster="other")
        equal(n.record(4, "other")["tiers"][0]["quota"], 0, "and one of another cluster what is left then")
        n.release()
        n.epilog(3, node="n2")


def staged(n, job, cluster="cluster"):
    return sum(len(files) for _, _, files in os.walk(f"{n.tier}/monarch/{n.record(job, cluster)['name']}"))


def freed_space():
    """What a slow removal gives back reaches the jobs that run, the earliest first, and never more than there is."""
    with node("freed") as n, Sums(n) as sums:
        n.start(1)
        n.hold(1, 60 << 20)
        n.hold(1, 40 << 20, "held.too")
        n.epilog(1)
        answers = [n.start(job) for job in (2, 3)]
        for answer in answers:
            contains(answer, ["ready "], "a job beside a slow removal starts")
        equal([n.record(job)["tiers"][0]["quota"] for job in (2, 3)], [0, 0], "without space")
        n.release("held.too")
        ok(wait_until(lambda: 39 << 20 < n.record(2)["tiers"][0]["quota"] <= 40 << 20, GONE_SECONDS),
           "what the removal does not occupy any more is given away")
        equal(n.record(3)["tiers"][0]["quota"], 0, "to the job that started first")
        ok(wait_until(lambda: staged(n, 2) == 30), "which stages its dataset then", staged(n, 2))
        equal(os.stat(f"{n.state}/grants/{n.record(2)['name']}").st_uid, 0, "root alone can grant")
        n.release()
        ok(wait_until(lambda: n.record(2)["tiers"][0]["quota"] == QUOTA, GONE_SECONDS + e2e.PATIENCE), "the whole quota when the removal is through")
        n.epilog(2)
        ok(wait_until(lambda: n.record(3)["tiers"][0]["quota"] == QUOTA), "the next job's turn comes when that job ends")
        ok(wait_until(lambda: staged(n, 3) == 30), "and it stages its dataset", staged(n, 3))
        ok(0 < sums.most <= QUOTA, "at no time more was reserved than the quota", sums.most)
        n.epilog(3)
        ok(wait_until(lambda: not n.left(2) + n.left(3)), "nothing is left", n.left(2) + n.left(3))


HOLDS = """
import os, sys
held = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in sys.argv[1:]]
print("held", flush=True)
sys.stdin.readline()
def put(directory):
    try:
        with open(os.open("late", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=directory), "wb", buffering=0) as file:
            return sum(file.write(bytes(65536)) for _ in range(16))
    except OSError as error:
        return error.strerror
print([put(directory) for directory in held])
"""


def directories_held():
    """Who has a directory of an ended job's memory open can put nothing into it: nobody would charge it."""
    with node("directories") as n:
        n.configure(f"[tier.ram]\npath = {n.tier}\ndriver = tmpfs\nquota = 8M\nmedium = ram\n")
        run_dir = n.start(1).split()[1]
        ok(wait_until(lambda: staged(n, 1) == 30), "a job has its dataset in memory")
        holder = e2e.start(["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "/usr/bin/python3", "-c", HOLDS, n.job_dir(1), run_dir],
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        equal(holder.stdout.readline(), b"held\n", "its owner has its directories open")
        n.epilog(1)
        ok(wait_until(lambda: not n.left(1)), "its end leaves nothing", n.left(1))
        out, _ = holder.communicate(b"go on\n", e2e.PATIENCE)
        equal(out.decode().strip(), str(["No space left on device"] * 2), "nothing can be put there any more")
        n.start(2)
        equal(n.record(2)["tiers"][0]["quota"], 8 << 20, "the next job has all")
        n.epilog(2)


def freed_memory():
    """The same for memory: root makes the tmpfs larger."""
    with node("freed_memory") as n:
        n.configure(f"[tier.ram]\npath = {n.tier}\ndriver = tmpfs\nquota = 8M\nmedium = ram\n")
        n.start(1)
        contains(n.start(2), ["ready "], "a job for which no memory is left starts")
        ok(os.statvfs(n.job_dir(2)).f_blocks <= 1, "with as good as none")
        n.epilog(1)
        ok(wait_until(lambda: os.statvfs(n.job_dir(2)).f_blocks * 4096 == 8 << 20), "and gets the other's when that ends")
        ok(wait_until(lambda: staged(n, 2) == 30), "and stages its dataset", staged(n, 2))


def on_tier(n, job):
    """Bytes of copies."""
    return sum(os.stat(f"{top}/{name}").st_blocks * 512 for top, _, names in os.walk(n.job_dir(job)) for name in names)


def tier_of(n, job):
    return n.record(job)["tiers"][0]


def shares():
    """Who begins gets its part of the node, though the first has all by then; who has more than his part gives back, and grows again."""
    quota_, eighth = 320 << 10, 40 << 10
    with node("shares") as n, Sums(n) as sums:
        n.cores = 8
        n.configure(f"[tier.nvme]\npath = {n.tier}\nquota = {quota_}\nmin_free = 0\n")
        n.start(1, cores=1)
        equal((tier_of(n, 1)["quota"], tier_of(n, 1)["reserved"]), (quota_, eighth), "a job that is alone has all, and its part reserved")
        ok(wait_until(lambda: on_tier(n, 1) > 6 * eighth), "and uses it", on_tier(n, 1))
        contains(n.start(2, cores=4), ["ready "], "another one begins")
        ok(wait_until(lambda: tier_of(n, 2)["quota"] == 4 * eighth), "and gets its part", n.record(2))
        equal(tier_of(n, 1)["quota"], 4 * eighth, "which the first has given back")
        ok(on_tier(n, 1) <= 4 * eighth, "and removed", on_tier(n, 1))
        ok(wait_until(lambda: staged(n, 2)), "the other one has copies on it")
        for job in 3, 4, 5:
            n.start(job, cores=1)
        ok(wait_until(lambda: [tier_of(n, job)["quota"] for job in (1, 2, 3, 4, 5)] == [eighth, 4 * eighth, eighth, eighth, eighth]),
           "more of them: each gets its part, and keeps it", n.reserved())
        ok(wait_until(lambda: all(staged(n, job) for job in (1, 2, 3, 4, 5))), "each has copies", [staged(n, job) for job in (1, 2, 3, 4, 5)])
        ok(all(on_tier(n, job) <= tier_of(n, job)["quota"] for job in (1, 2, 3, 4, 5)), "and no more than that")
        for job in 3, 4, 5:
            n.epilog(job)
        ok(wait_until(lambda: tier_of(n, 2)["quota"] == 4 * tier_of(n, 1)["quota"] == quota_ // 5 * 4, GONE_SECONDS),
           "what those had goes to the others by their parts", n.reserved())
        n.epilog(2)
        ok(wait_until(lambda: tier_of(n, 1)["quota"] == quota_, GONE_SECONDS), "and all to the last", n.reserved())
        ok(wait_until(lambda: on_tier(n, 1) > 6 * eighth), "which uses it again", on_tier(n, 1))
        ok(0 < sums.most <= quota_, "at no time more was recorded than the quota", sums.most)


def does_not_give_back():
    """An agent that is stopped, or says what is not true, holds up nobody."""
    with node("keeps") as n, Sums(n) as sums:
        n.start(1, cores=1)
        wait_until(lambda: staged(n, 1) == 30)
        agent = n.record(1)["pid"]
        os.kill(agent, signal.SIGSTOP)
        contains(n.start(2, cores=1), ["ready "], "a job begins beside one whose agent is stopped")
        ok(wait_until(lambda: " JobId=1 node=n1 does not give back what it is asked for" in n.logged(), 30), "the log tells", n.logged())
        equal((tier_of(n, 1)["quota"], tier_of(n, 2)["quota"]), (QUOTA, 0), "what was not given back is not given away")
        n.start(3, cores=1)
        os.kill(agent, signal.SIGCONT)
        ok(wait_until(lambda: [tier_of(n, job)["quota"] for job in (1, 2, 3)] == [QUOTA // 2, QUOTA // 4, QUOTA // 4], 30), "it goes on, and gives back", n.reserved())
        equal(n.logged().count("does not give back"), 1, "that was told once")
        ok(0 < sums.most <= QUOTA, "at no time more was recorded than the quota", sums.most)


def hidden_memory():
    """A user's file system that hangs on the job's tmpfs does not keep root from the ledger."""
    if not os.path.exists("/dev/fuse"):
        return e2e.skip("a user's mount on a tmpfs", "no /dev/fuse")
    with node("hidden_memory") as n:
        n.configure(f"[tier.ram]\npath = {n.tier}\ndriver = tmpfs\nquota = 8M\nmedium = ram\n")
        n.start(1)
        contains(n.start(2), ["ready "], "a job for which no memory is left starts")
        hang = e2e.hanging_mount(n.job_dir(2), UID, more=",allow_other")
        n.epilog(1)
        ok(wait_until(lambda: n.record(2)["tiers"][0]["quota"] == 8 << 20), "memory becomes free for it")
        with open(f"{n.state}/ledger", "rb") as ledger:
            fcntl.flock(ledger, fcntl.LOCK_EX)
        os.close(hang)
        subprocess.run(["umount", "-l", n.job_dir(2)], check=True)
        ok(wait_until(lambda: os.statvfs(n.job_dir(2)).f_blocks * 4096 == 8 << 20, GONE_SECONDS), "it gets the memory when that is gone")
    return None


def memory_not_tracked():
    """A tier is not charged to a job of which Slurm does not say what memory it has."""
    with node("memory_not_tracked") as n:
        ram = f"{n.dir}/ram"
        os.mkdir(ram)
        charged = f"[tier.ram]\npath = {ram}\ndriver = tmpfs\nquota = 8M\nmedium = ram\ncharge = job\n"
        n.configure(f"{charged}[tier.nvme]\npath = {n.tier}\nquota = 8M\nmin_free = 0\n")
        contains(n.start(1), ["ready "], "a job of which no memory is known starts")
        equal([t["name"] for t in n.record(1)["tiers"]], ["nvme"], "it has no tier that is charged to it")
        equal(os.listdir(f"{ram}/monarch"), [], "and has nothing there")
        text = "tier ram is charged to the job's memory, but Slurm does not track memory; set SelectTypeParameters=CR_Core_Memory"
        contains(n.logged(), [f"JobId=1 goes without it: {text}"], "the log says why, and what to do")
        n.epilog(1)
        n.configure(charged)
        contains(n.start(2), [text], "where there is no other tier the job is told")
        n.epilog(2)


def tier_comes_back():
    """A tier that is unmounted in mid-job: the job goes on, and is removed from it when it is back."""
    with node("away") as n, contextlib.ExitStack() as at_end:
        image = f"{n.dir}/image"
        with open(image, "wb") as file:
            file.truncate(64 << 20)

        def mount():
            subprocess.run(["mount", "-o", "loop", image, n.tier], check=True)
            at_end.callback(subprocess.run, ["umount", "-l", n.tier], stderr=subprocess.DEVNULL, check=False)
        if subprocess.run(["mkfs.ext4", "-q", "-F", image], check=False).returncode != 0 or e2e.execute(["losetup", "-f"])[0] != 0:
            return e2e.skip("a tier that is unmounted", "no ext4 or no loop device")
        mount()
        os.chmod(n.tier, 0o1777)
        run_dir = n.start(1).split()[1]
        ok(wait_until(lambda: staged(n, 1) == 30), "a job has its dataset on a tier")
        before, seen, _ = n.task(run_dir)
        equal(seen, "tier", "and reads it there")
        subprocess.run(["umount", "-l", n.tier], check=True)
        during, seen, took = n.task(run_dir)
        equal(seen, "PFS", "the tier is unmounted: what is opened then is the PFS's", f"{took:.2f} s")
        e2e.end(before)
        e2e.end(during)
        code, took = n.epilog(1)
        ok(code == 0, "the epilog ends well", code, f"{took:.2f} s")
        ok(wait_until(lambda: list(n.reserved().values()) == [0], GONE_SECONDS), "what is on it is not charged to what is there now", n.reserved())
        contains(n.logged(), ["not mounted there any more"], "the log tells")
        contains(n.start(2), ["ready "], "the next job starts")
        ok(os.path.isdir(n.job_dir(2)), "in the directory that is there now")
        mount()
        ok(wait_until(lambda: not n.left(1), 3 * GONE_SECONDS + e2e.PATIENCE), "it is back: what was the job's goes", n.left(1), n.logged())
        subprocess.run(["umount", "-l", n.tier], check=True)
        n.epilog(2)
        ok(wait_until(lambda: not n.reserved()), "and what was the next one's, where that was", n.reserved())
    return None


def tier_is_replaced():
    """A tier's disk is replaced without a reboot, or TIER/monarch removed by hand: the next job has all of it."""
    def clean(*words):
        return e2e.execute([f"{BUILD}/monarchctl", "clean", "--state-dir", n.state, *words])

    with node("replaced") as n, contextlib.ExitStack() as at_end:
        def mount(name):
            with open(f"{n.dir}/{name}", "wb") as file:
                file.truncate(64 << 20)
            if subprocess.run(["mkfs.ext4", "-q", "-F", f"{n.dir}/{name}"], check=False).returncode != 0 or e2e.execute(["losetup", "-f"])[0] != 0:
                return False
            subprocess.run(["mount", "-o", "loop", f"{n.dir}/{name}", n.tier], check=True)
            at_end.callback(subprocess.run, ["umount", "-l", n.tier], stderr=subprocess.DEVNULL, check=False)
            os.chmod(n.tier, 0o1777)
            return True
        if not mount("old"):
            return e2e.skip("a tier's disk that is replaced", "no ext4 or no loop device")
        contains(n.start(1), ["ready "], "a job has a tier")
        subprocess.run(["umount", "-l", n.tier], check=True)
        equal(n.epilog(1)[0], 0, "it ends when its disk has failed")
        mount("new")
        ok(wait_until(lambda: list(n.reserved().values()) == [0], GONE_SECONDS), "what is on it is not charged", n.reserved(), n.logged())
        contains(n.start(2), ["ready "], "the next job starts on the new disk")
        equal(n.record(2)["tiers"][0]["quota"], QUOTA, "and has all of it", n.logged())
        for _ in range(3):
            code, out, err = clean("--dry-run")
            equal((code, "removal cluster.1.0.n1." in err, f"not mounted at {n.tier} any more" in err), (0, True, True), "clean --dry-run tells what is left", out, err)
        equal(clean()[0], 1, "clean cannot remove it")
        equal(n.logged().count("its files are not charged"), 1, "the log tells once", n.logged())
        n.epilog(2)
        ok(wait_until(lambda: not n.left(2), GONE_SECONDS), "the next job ends, and nothing is left of it", n.left(2), n.logged())
        subprocess.run(["umount", "-l", n.tier], check=True)
        for path in glob.glob(f"{n.state}/removing/*/record.json"):
            with open(path, encoding="utf-8") as file:
                record = json.load(file)
            with open(path, "w", encoding="utf-8") as file:
                json.dump({**record, "next_try": 0, "away_since": record["away_since"] - 3600}, file)
        ok(wait_until(lambda: not n.left(1), GONE_SECONDS), "after an hour it is forgotten", n.left(1), n.logged())
        mount("newer")
        contains(n.start(3), ["ready "], "a job has a tier")
        n.kill_agent(3)
        shutil.rmtree(f"{n.tier}/monarch")
        equal(n.epilog(3)[0], 0, "TIER/monarch is removed by hand: the epilog ends well")
        ok(wait_until(lambda: not n.left(3), GONE_SECONDS), "and nothing is left, nor charged", n.left(3), n.logged())
    return None


def fuse_tier_comes_back():
    """The same of a file system that has no id, as FUSE; first with nothing of Monarch's below its mount."""
    if e2e.why_no_slowfs():
        return e2e.skip("a FUSE tier that is unmounted", e2e.why_no_slowfs())
    with node("fuse") as n, contextlib.ExitStack() as at_end:
        n.tier = f"{n.dir}/fuse"
        for path in f"{n.dir}/source", n.tier:
            os.mkdir(path)
            os.chmod(path, 0o1777)
        n.configure()
        for job, below in (1, "nothing"), (2, "another job's"):
            slow = e2e.SlowFs(f"{n.dir}/source", n.tier)
            at_end.callback(subprocess.run, ["umount", "-l", n.tier], stderr=subprocess.DEVNULL, check=False)
            contains(n.start(job), ["ready "], f"below the mount is {below}: a job starts")
            ok(wait_until(lambda: staged(n, job) == 30), f"{below}: it has its dataset on the tier", n.logged())  # pylint: disable=cell-var-from-loop
            n.kill_agent(job)
            subprocess.run(["umount", "-l", n.tier], check=True)
            slow.close()
            if below != "nothing":
                os.makedirs(f"{n.tier}/monarch", 0o711)
            equal(n.epilog(job)[0], 0, f"{below}: the tier is unmounted: the epilog ends well")
            ok(wait_until(lambda: list(n.reserved().values()) == [0], GONE_SECONDS), f"{below}: what is on it is not charged to what is there now", n.logged())
            again = e2e.SlowFs(f"{n.dir}/source", n.tier)
            ok(wait_until(lambda: not n.left(job) and not n.reserved(), 3 * GONE_SECONDS + e2e.PATIENCE),  # pylint: disable=cell-var-from-loop
               f"{below}: it is back: what was the job's goes", n.left(job), n.logged())
            subprocess.run(["umount", "-l", n.tier], check=True)
            again.close()
    return None


# ---- starting


def hanging_tier():
    """A tier whose file system hangs costs a job's start a moment, once; it goes without that tier, or without Monarch."""
    if e2e.why_no_slowfs():
        return e2e.skip("a tier that hangs", e2e.why_no_slowfs())
    with node("hanging") as n, contextlib.ExitStack() as at_end:
        os.mkdir(f"{n.dir}/source")
        slow = e2e.SlowFs(f"{n.dir}/source", f"{n.dir}/slow")
        at_end.callback(slow.close)
        at_end.callback(slow.command, "release")
        slow.command("set hang-meta 1", "set hang forever")
        hangs = f"[tier.slow]\npath = {n.dir}/slow\nquota = 1M\nmin_free = 0\n"
        for job, more, want in (1, "", "off no tier of this node answers"), (2, f"[tier.nvme]\npath = {n.tier}\nquota = 100M\nmin_free = 0\n", "ready "):
            n.configure(hangs + more)
            for step in "first", "second":
                begin = time.monotonic()
                process, answer = n.begin(job)
                process.wait(e2e.PATIENCE)
                took = time.monotonic() - begin
                with answer:
                    contains(answer.readline(), [want], f"job {job} starts while a tier hangs, in its {step} step")
                print(f"# job {job}, {step} step: {took:.2f} s")
        ok(wait_until(lambda: staged(n, 2) == 30), "a job stages its dataset in the tier that answers", staged(n, 2))
        equal(n.logged().count("does not answer within"), 2, "the log tells, once for each job", n.logged())
    return None


def hangs_in_mid_job():
    """A tier that begins to hang while a job has it: no hook waits for it, the job's other places are emptied, and this one is when it
    answers again."""
    if not os.path.exists("/dev/fuse"):
        return e2e.skip("a tier that begins to hang", "no /dev/fuse")
    with node("mid-job") as n, contextlib.ExitStack() as at_end:
        other = f"{n.dir}/other"
        os.mkdir(other)
        os.chmod(other, 0o1777)
        n.configure(f"[tier.nvme]\npath = {n.tier}\nquota = 100M\nmin_free = 0\n[tier.other]\npath = {other}\nquota = 1M\nmin_free = 0\n")
        contains([n.start(1), n.start(2)], [], "jobs start")
        hang = e2e.hanging_mount(n.tier, 0)
        at_end.callback(subprocess.run, ["umount", "-l", n.tier], stderr=subprocess.DEVNULL, check=False)

        def took(hook, *words):
            process = e2e.start([*n._words(hook, *words[:1]), *words[1:]], stdin=subprocess.DEVNULL)  # pylint: disable=protected-access
            try:
                return process.wait(2 * e2e.PATIENCE)
            except subprocess.TimeoutExpired:
                e2e.end(process)
                return "hangs"
        n.kill_agent(2)
        for what, code in (("the epilog", took("--epilog", 1, "--account-program", "")), ("the next job's prolog", took("--prolog", 3, "--datasets", n.data))):
            equal(code, 0, f"a tier hangs since a job began: {what} does not")
        contains(n.start(3), ["ready "], "and the next job starts, without it")
        ok(wait_until(lambda: not glob.glob(f"{other}/monarch/*[12].0.n1*") and not glob.glob(f"{n.state}/run/*[12].0.n1*"), GONE_SECONDS),
           "what the jobs had elsewhere goes meanwhile", os.listdir(f"{other}/monarch"), os.listdir(f"{n.state}/run"))
        equal(len(glob.glob(f"{n.state}/removing/*")), 2, "what is there is charged still")
        os.close(hang)
        subprocess.run(["umount", "-l", n.tier], check=True)
        for path in glob.glob(f"{n.state}/removing/*/record.json"):
            with open(path, encoding="utf-8") as file:
                record = json.load(file)
            with contextlib.suppress(FileNotFoundError), open(path, "w", encoding="utf-8") as file:
                json.dump({**record, "next_try": 0}, file)
        ok(wait_until(lambda: not n.left(1) and not n.left(2), 3 * GONE_SECONDS), "it answers again: all is gone", n.left(1), n.left(2), n.logged())
    return None


def failed_start_and_lock():
    """What a failed start left is removed in the background, without the job's lock."""
    with node("failed") as n, contextlib.ExitStack() as at_end:
        n.prolog(9, n.data)
        held = f"{n.state}/run/cluster.1.0.n1"
        os.mkdir(held)
        if subprocess.run(["chattr", "+i", held], stderr=subprocess.DEVNULL, check=False).returncode != 0:
            return e2e.skip("the lock of a failed start", "no chattr +i here")
        at_end.callback(subprocess.run, ["chattr", "-i", held], stderr=subprocess.DEVNULL, check=False)
        contains(n.start(1), ["off ", "File exists"], "a start fails, and leaves what cannot be removed")
        equal(n.epilog(1)[0], 0, "the epilog has the job's lock")
        equal(glob.glob(f"{n.state}/jobs/*.1.n1"), [], "and nothing of the job is left in jobs/")
        subprocess.run(["chattr", "-i", held], check=True)
        ok(wait_until(lambda: not n.left(1), 3 * GONE_SECONDS), "gone when it can be", n.left(1))
    return None


def tried_once():
    """A failure is noted: a second step does not try and log again."""
    with node("tried") as n:
        bad = f"{n.dir}/nowhere"
        first, second = n.start(1, bad), n.start(1, bad)
        contains(first, ["off ", bad, "No such file"], "a start that fails tells why")
        equal(second, first, "the second step is told the same")
        equal(n.logged().count("JobId=1 node=n1 runs without Monarch"), 1, "and the log has it once")
        equal(n.left(1), [f"{n.state}/jobs/cluster.1.n1"], "nothing but a note is left")
        os.mkdir(bad, 0o755)
        equal(n.start(1, bad), first, "it is not tried again")
        contains(n.start(1), ["ready "], "but for other datasets")
        n.epilog(1)
        equal(n.left(1), [], "the epilog removes the note, too")
        n.start(2, f"{n.dir}/gone")
        os.mkdir(f"{n.dir}/gone", 0o755)
        contains(n.start(2, f"{n.dir}/gone", restart=1), ["ready "], "a restarted job tries again")
        os.unlink(n.config)
        contains(n.start(3), ["off ", "monarch.conf", "No such file"], "without monarch.conf no job has Monarch")
        n.configure()
        tier = f"[tier.nvme]\npath = {n.tier}\nquota = 100M\nmin_free = 0\n"
        for job, rules, text in (4, "[policy]\nallow_users = root\n", "is not among those who may use it"), (5, f"[policy]\nallow_datasets = {n.dir}/others\n", "in none of the directories"):
            n.configure(tier + rules)
            contains(n.start(job), ["off ", text], f"{text}: it is refused")
            line = next(line for line in n.logged().splitlines() if f"JobId={job} node=n1 runs without" in line)
            ok(": info: " in line, f"{text}: that is no error", line)
            with open(f"{n.state}/jobs/cluster.{job}.n1/failed", encoding="utf-8") as file:
                ok(file.readline().endswith(" refused\n"), f"{text}: the note tells")


def start_killed():
    """A start is killed at any moment; the next step's start mends it, and no agent is left that nobody knows."""
    def agents():
        found = subprocess.run(["pgrep", "-f", f"^monarchd .* --run-dir {n.state}/run/"], stdout=subprocess.PIPE, check=False)
        return list(map(int, found.stdout.split()))

    with node("starts") as n:
        recorded = 0
        for turn in range(16):
            job = 10 + turn
            process, answer = n.begin(job)
            if turn < 8:
                time.sleep(turn * 0.002)
            else:  # about when it forks the agent
                wait_until(lambda record=f"{n.state}/jobs/cluster.{job}.n1/record.json": os.path.exists(record) or process.poll() is not None)
                time.sleep((turn - 8) * 0.0002)
            process.kill()  # alone: the child that it may have had goes on
            process.wait(e2e.PATIENCE)
            answer.close()
            recorded += os.path.exists(f"{n.state}/jobs/cluster.{job}.n1/record.json")
            contains(n.start(job), ["ready "], "the next step's start serves where one was killed")
            ok(running(n.record(job)["pid"]), "with an agent that runs")
        ok(recorded >= 4, "starts were killed in the middle", recorded)
        equal(sorted(agents()), sorted(n.record(10 + turn)["pid"] for turn in range(16)), "every agent is recorded")
        for turn in range(16):
            n.epilog(10 + turn)
        ok(wait_until(lambda: not [p for turn in range(16) for p in n.left(10 + turn)]), "and nothing is left of their jobs",
           *[q for turn in range(16) for p in n.left(10 + turn) for q in (p, *glob.glob(f"{p}/*"))])
        equal(agents(), [], "nor an agent")


def start_late(n, job):
    """Starts agents until it stopped one before it was ready: its job, what was answered, after how long, its pid."""
    def of(process, name):
        with contextlib.suppress(OSError), open(f"/proc/{process}/{name}", encoding="ascii", errors="replace") as file:
            return file.read()
        return ""

    for number in range(job, job + 100):
        begin = time.monotonic()
        process, answer = n.begin(number)
        child = ""
        while not child and process.poll() is None:  # without pause: it is ready in some 10 ms
            child = next((pid for pid in of(process.pid, f"task/{process.pid}/children").split()
                          if of(pid, "cmdline").startswith("monarchd\0--config")), "")
        while "Uid:\t0\t" in of(child or "none", "status"):  # a user can stop it when it is his
            pass
        if child:
            os.kill(int(child), signal.SIGSTOP)
        with answer:
            line = answer.readline()
        process.wait(e2e.PATIENCE)
        took = time.monotonic() - begin
        if child and took > 0.9:
            break
        n.epilog(number)  # it had all of the quota
        wait_until(lambda: not n.reserved(), GONE_SECONDS)
    return number, line, took, int(child)


def late_agent():
    """An agent that takes long does not hold up the job, and serves it from when it is ready."""
    with node("late") as n:
        job, line, took, pid = start_late(n, 1)
        contains(line, ["ready "], "an agent that is late: the job is told where it will be")
        print(f"# it took {took:.2f} s")
        contains(n.logged(), [f"JobId={job} the agent is not ready after 1000 ms"], "the log tells")
        task, first, took = n.task(line.split()[1])
        equal(first, "PFS", "a task reads the PFS meanwhile")
        print(f"# the task took {took:.2f} s")
        os.kill(pid, signal.SIGCONT)
        equal(n.task_goes_on(task), "tier", "and the tier's copy when the agent is ready")
        n.epilog(job)
        ok(wait_until(lambda: not n.left(job)), "nothing is left", n.left(job))
        job, line, _, pid = start_late(n, 200)
        contains(line, ["ready "], "a job whose agent never gets ready")
        code, took = n.epilog(job)
        ok(code == 0, "its epilog ends well", code, took)
        ok(not running(pid) and wait_until(lambda: not n.left(job)), "and leaves nothing", n.left(job))


def board_in_the_making():
    """A task that begins while the agent makes its board uses it when it is made."""
    with node("board") as n:
        n.start(1)
        run_dir, begun = n.record(1)["run_dir"], f"{n.dir}/run"
        os.mkdir(begun, 0o700)
        with open(f"{begun}/board", "wb") as file:
            file.truncate(os.path.getsize(f"{run_dir}/board"))
        for path in f"{begun}/board", begun:
            os.chmod(path, 0o700)
            os.chown(path, UID, UID)
        task, first, _ = n.task(begun)
        equal(first, "PFS", "a task that finds an empty board reads the PFS")
        subprocess.run(["mount", "--bind", run_dir, begun], check=True)
        equal(n.task_goes_on(task), "tier", "and the tier's copy when there is a whole one")
        subprocess.run(["umount", begun], check=True)


def waited_in_vain():
    """The log tells how many opens did, which sacct's line has no room for."""
    with node("vain") as n:
        n.configure(f"[tier.nvme]\npath = {n.tier}\nquota = 100M\nmin_free = 0\n[agent]\nprefetch = off\n")
        n.start(1)
        os.kill(n.record(1)["pid"], signal.SIGSTOP)
        task, first, _ = n.task(n.record(1)["run_dir"])
        e2e.end(task)
        equal(first, "PFS", "an open that waited in vain reads the PFS")
        n.epilog(1)
        found = re.findall(r" JobId=1 node=n1 monarch=1 .* err=0 timeouts=(\d+)$", n.logged(), re.MULTILINE)
        ok(len(found) == 1 and int(found[0]) >= 1, "the log has their number", found, n.logged())
        n.start(2)
        n.epilog(2)
        ok(re.search(r" JobId=2 node=n1 monarch=1 .* err=0$", n.logged(), re.MULTILINE), "and nothing where there were none", n.logged())


def nameless_user():
    """A user whom this node's passwd does not know."""
    with node("nameless") as n:
        n.uid = 2000054321
        equal(subprocess.run(["getent", "passwd", str(n.uid)], check=False).returncode, 2, "a user without an entry in passwd")
        contains(n.start(1), ["ready "], "has an agent")
        equal((os.stat(n.job_dir(1)).st_uid, os.stat(n.record(1)["run_dir"]).st_uid), (n.uid, n.uid), "and directories")
        ok(wait_until(lambda: sum(len(files) for _, _, files in os.walk(n.job_dir(1))) == 30), "the dataset is staged")
        equal(n.epilog(1)[0], 0, "the epilog succeeds")
        ok(wait_until(lambda: not n.left(1)), "nothing is left", n.left(1))
        contains(n.logged(), ["JobId=1 node=n1 monarch=1 hit="], "and the counters were read")


def agent_descriptors():
    """Who runs the helper by hand does not lend the agent a terminal."""
    with node("descriptors") as n:
        contains(n.start(1), ["ready "], "a job starts by hand")
        pid = n.record(1)["pid"]
        equal([os.readlink(f"/proc/{pid}/fd/{fd}") for fd in range(3)], ["/dev/null"] * 3, "0 to 2 of its agent")


def secret_datasets():
    """No command line shows what a job reads, and no other user gets at the file that does."""
    with node("secret") as n:
        secret = f"{n.dir}/secret name"
        shutil.copytree(n.data, secret)
        contains(n.start(1, f"{n.data}:{secret}"), ["ready "], "a job of two datasets starts")
        record = n.record(1)
        with open(f"/proc/{record['pid']}/cmdline", encoding="utf-8") as file:
            words = file.read().split("\0")
        equal([word for word in words if n.data in word or "secret" in word.replace(n.dir, "")], [], "its agent's command line shows no dataset")
        ok(wait_until(lambda: staged(n, 1) == 60), "both are staged", staged(n, 1))
        for name in ("agent.conf", "datasets"):
            st = os.stat(f"{record['run_dir']}/{name}")
            equal((st.st_uid, st.st_gid, oct(st.st_mode & 0o7777)), (0, UID, "0o640"), f"{name}: root's, for the job's owner to read")


def other_datasets():
    """A later step that names what the agent does not serve is told so."""
    with node("other") as n:
        other = f"{n.dir}/other"
        shutil.copytree(n.data, other)
        n.start(1)
        for name, path in (("the same", n.data), ("a directory in it", f"{n.data}/a"), ("the same with slashes", f"{n.data}//.")):
            answer = n.start(1, path)
            ok(answer.startswith("ready ") and "\t" not in answer, f"a later step that names {name} is served", answer)
        answer = n.start(1, f"{n.data}:{other}")
        contains(answer, ["ready ", f"\t{other} is not staged", f"--monarch-dataset={n.data}:{other}"], "a later step that names another is told")


def two_clusters():
    """A machine that is a node of two clusters, under one name, with jobs of one number."""
    with node("clusters") as n:
        answers = [n.start(1, cluster=name) for name in ("one", "two", "one")]
        contains(answers[0], ["ready ", "/run/one.1.0.n1/files "], "a job of one cluster")
        contains(answers[1], ["ready ", "/run/two.1.0.n1/files "], "a job of the same number of another has its own agent")
        equal(answers[2], answers[0], "a second step finds that of its cluster")
        n.epilog(1, cluster="one")
        ok(running(n.record(1, "two")["pid"]) and not os.path.exists(f"{n.state}/jobs/one.1.n1"), "an epilog ends that of its cluster")
        code, _, err = e2e.execute([*n._words("--epilog", 1, cluster="../one")])  # pylint: disable=protected-access
        equal(code, 2, "a cluster's name that cannot be part of a file's is refused", err)


def long_names():
    """Names of cluster and node that make long ones of files and control groups."""
    with node("long") as n:
        names = {"cluster": "c" * 40, "node": "n" * 90}
        for job in 1, 2:
            contains(n.start(job, **names), ["ready "], f"job {job} of a cluster and a node with long names")
        ok(running(n.record(1, **names)["pid"]), "the next job's sweep knows the first job's agent")
        equal(sum(n.reserved().values()), QUOTA, "together they have the tier's quota", n.reserved())
        equal(n.epilog(1, **names)[0], 0, "the epilog of one")
        ok(wait_until(lambda: len(n.reserved()) == 1 and len(os.listdir(f"{n.tier}/monarch")) == 1, GONE_SECONDS), "it is removed", n.reserved())
        names = {"cluster": "c" * 61, "node": "n" * 100}
        contains(n.start(3, **names), ["off ", "161 characters"], "names that have no room are refused")
        equal(n.epilog(3, **names)[0], 0, "and their job ends")


def no_log():
    """The log cannot be opened: jobs begin and end nevertheless."""
    with node("log") as n:
        log, n.log = n.log, n.dir  # a directory
        contains(n.start(1), ["ready "], "a job starts where the log cannot be opened")
        equal(n.epilog(1)[0], 0, "and its epilog succeeds")
        ok(wait_until(lambda: not n.left(1), GONE_SECONDS), "and leaves nothing", n.left(1))
        code, _, err = e2e.execute([*n._words("--epilog", 1), "--account-program", ""])  # pylint: disable=protected-access
        ok(code == 0 and ("instead" in err or os.access("/dev/log", os.W_OK)), "that is told where it can be", err)
        n.log = log
        n.start(2)
        equal(stat.S_IMODE(os.stat(log).st_mode) & 0o137, 0, "a new log is not for all to read")
        n.epilog(2)


def in_kernel(pids):
    """Those of them that hang there."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="surrogateescape") as file:
            if file.read().rpartition(")")[2].split()[0] == "D":
                found.append(pid)
    return found


def hooks_with_locked_log(n, jobs):
    """Their hooks, while somebody has the log's directory locked; all that they said."""
    said = ""
    for job in jobs:
        said += n.prolog(job, n.data)[2]
        process, answer = n.begin(job, stderr=subprocess.PIPE)
        said += process.communicate(timeout=e2e.PATIENCE)[1].decode()
        with answer:
            contains(answer.readline(), ["ready "], f"job {job} starts")
        code, _, err = e2e.execute([*n._words("--epilog", job), "--config", n.config])  # pylint: disable=protected-access
        equal(code, 0, f"job {job} ends", err)
        said += err
        ok(wait_until(lambda job=job: not n.left(job), GONE_SECONDS), "it is removed", n.left(job))
        ok(len(in_kernel(n.helpers())) <= 1, "one process at most hangs", n.helpers())
    return said


def all_logs(n):
    """The older one first."""
    text = ""
    for path in f"{n.log}.1", n.log:
        with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8", errors="surrogateescape") as file:
            text += file.read()
    return text


def log_is_locked():
    """A user keeps the directory of root's log locked in the kernel, where the log is missing, or full, or neither."""
    for name, size in ("missing", None), ("full", 4 << 20), ("small", 1):
        with node(f"locked_{name}") as n:
            n.configure(f"[accounting]\naccount = spool\n[tier.nvme]\npath = {n.tier}\nquota = 100M\nmin_free = 0\n")
            n.start(1)
            equal(n.epilog(1)[0], 0, f"{name}: a job before")
            n.log = f"{n.dir}/log.d/log"
            os.mkdir(f"{n.dir}/log.d")
            if size:
                with open(n.log, "w", encoding="utf-8") as file:
                    file.write("x" * (size - 1) + "\n")
            with e2e.locked_directory(f"{n.dir}/log.d") as why_not:
                if why_not:
                    return e2e.skip("the log's directory is locked", why_not)
                said = hooks_with_locked_log(n, (2, 3))
            ok(wait_until(lambda n=n: not in_kernel(n.helpers())), f"{name}: nothing hangs any more", n.helpers())
            equal(len(glob.glob(f"{n.state}/spool/*.kept")), 2, f"{name}: each job's line is kept", *os.listdir(f"{n.state}/spool"))
            if size:
                lines = all_logs(n)[size:]  # it is rotated at last
                equal(lines.count(" monarch=1 "), 2, f"{name}: their lines are in the log", said, lines)
                equal(lines.count("is full"), 1 if name == "full" else 0, f"{name}: that it is not rotated is told once", lines)
            else:
                ok("may keep its directory locked" in said or os.access("/dev/log", os.W_OK), "that there is no log is told", said)
                ok(said.count(" monarch=1 ") == 2 or os.access("/dev/log", os.W_OK), "and where the lines are", said)
    return None


def log_rotates_once():
    """Hooks at the same moment as the log is full: it is rotated once, and no line is lost."""
    with node("rotates") as n:
        for turn in range(5):
            with open(n.log, "w", encoding="utf-8") as file:
                file.writelines(f"before {turn} {line}\n" for line in range((4 << 20) // 12))
            jobs = range(100 * turn + 1, 100 * turn + 13)
            before = n.logged().splitlines()
            ok(os.path.getsize(n.log) >= 4 << 20, f"turn {turn}: it is full")
            begun = [e2e.start([*n._words("--start", job), "--config", n.config, "--uid", str(UID), "--gid", str(UID), "--datasets", f"{n.dir}/none"],  # pylint: disable=protected-access
                               stdin=subprocess.DEVNULL) for job in jobs]
            for process in begun:
                process.wait(e2e.PATIENCE)
            lines = all_logs(n).splitlines()
            ok(lines[:len(before)] == before, f"turn {turn}: what was there is there", len(before), len(lines))
            missing = [job for job in jobs if not any(f" JobId={job} " in line for line in lines[len(before):])]
            equal(missing, [], f"turn {turn}: each hook's line is there", *lines[len(before):])
            ok(os.path.getsize(n.log) < 4 << 20, f"turn {turn}: the log is new")


def tiers_left_out():
    """A tier that is another one's directory, that users cannot enter, or where something is in the way."""
    with node("left_out") as n:
        for name in ("closed", "taken"):
            os.mkdir(f"{n.dir}/{name}")
        os.chmod(f"{n.dir}/closed", 0o1770)
        os.chmod(f"{n.dir}/taken", 0o1777)
        with open(f"{n.dir}/taken/monarch", "w", encoding="utf-8"):
            pass
        os.symlink(n.tier, f"{n.dir}/link")
        n.configure("".join(f"[tier.{name}]\npath = {n.dir}/{name}\nquota = 10M\nmin_free = 0\n" for name in ("closed", "taken", "tier", "link")))
        contains(n.start(1), ["ready "], "a job starts with one of four tiers")
        equal([tier["name"] for tier in n.record(1)["tiers"]], ["tier"], "which is the one that can be used")
        contains(n.logged(), ["tier closed", f"cannot be entered by user {UID}", "taken/monarch: no directory; remove it",
                              "tier link", "is the directory of tier tier"], "the log tells why the others are not")
        equal(n.epilog(1)[0], 0, "and it ends")
        code, out, _ = e2e.execute([f"{BUILD}/monarchctl", "tiers", "--config", n.config])
        out = out if isinstance(out, str) else out.decode()
        contains(out, ["taken/monarch: no directory; remove it", "it is the directory of tier tier"], "so does monarchctl tiers")
        equal(code, 4, "with its exit status")
        n.configure(f"[tier.big]\npath = {n.tier}\nquota = 100000T\nmin_free = 100000T\n")
        out = e2e.execute([f"{BUILD}/monarchctl", "tiers", "--config", n.config])[1]
        out = out if isinstance(out, str) else out.decode()
        contains(out, ["which is all there is", "min_free leaves nothing"], "it tells of numbers that the file system cannot hold")
        odd = f"{n.dir}/m\u009b31m\u202eevil"
        os.mkdir(odd)
        n.configure(f"[tier.odd]\npath = {odd}\nquota = 10M\n")
        out = e2e.execute([f"{BUILD}/monarchctl", "tiers", "--config", n.config])[1]
        out = out if isinstance(out, bytes) else out.encode()
        ok(rb"\xc2\x9b31m\xe2\x80\xae" in out and b"\x9b31m" not in out, "and shows what a path holds without doing it", out)


def where_the_line_goes():
    """account = spool, log or off; `spool` is the one for which nothing has to be asked."""
    for mode, kept, logged in (("spool", 1, 1), ("log", 0, 1), ("off", 0, 0)):
        with node(f"account_{mode}") as n:
            n.configure(f"[accounting]\naccount = {mode}\n[tier.nvme]\npath = {n.tier}\nquota = 100M\nmin_free = 0\n")
            n.start(1)
            equal(e2e.execute([*n._words("--epilog", 1), "--config", n.config])[0], 0, f"account = {mode}: the epilog ends well")
            equal(len(glob.glob(f"{n.state}/spool/*.kept")), kept, f"account = {mode}: lines in the spool")
            equal(len(glob.glob(f"{n.state}/spool/*")), kept, f"account = {mode}: no more than that", *glob.glob(f"{n.state}/spool/*"))
            with open(n.log, encoding="utf-8") as file:
                equal(file.read().count(" monarch=1 "), logged, f"account = {mode}: lines in the log")


def odd_paths():
    """Names of datasets that could break a line, a list or a file."""
    with node("odd") as n:
        for number, name in enumerate((" spaces in it ", "'quotes\"", "per%cent%s%n", "comma,comma", "semi;#colon", "new\nline", "tab\tin it",
                                       "$(touch x)`x`", "\udcff\udcfe", "-dash", "é" * 100)):
            path = f"{n.dir}/{name}"
            shutil.copytree(n.data, path)
            answer = n.start(number + 1, path)
            ok(answer.startswith("ready ") and answer.count("\n") == 1, f"a dataset called {name!a}", answer)
            run_dir = n.record(number + 1)["run_dir"]
            want = len(os.listdir(path)) > 0 and 30
            staged = f"{n.job_dir(number + 1)}"
            ok(wait_until(lambda tree=staged: sum(len(files) for _, _, files in os.walk(tree)) == want), f"is staged: {name!a}", run_dir)
            contains(n.start(number + 1, f"{path}.other"), ["ready ", "is not staged"], f"another one than {name!a}")
            equal(n.epilog(number + 1)[0], 0, f"its job ends: {name!a}")
        deep = n.dir + "/" + "/".join(["d" * 200] * 22)
        contains(n.start(50, deep), ["off "], "a path longer than PATH_MAX")
        for number, (name, make) in enumerate({"file": lambda p: open(p, "w", encoding="utf-8").close(), "fifo": os.mkfifo,
                                               "link to itself": lambda p: os.symlink(p, p)}.items()):
            make(f"{n.dir}/{name}")
            contains(n.start(60 + number, f"{n.dir}/{name}"), ["off ", name], f"a dataset that is a {name}")
        for number, text in enumerate(("", ":", "::", "relative/path")):
            answer = n.start(70 + number, text)
            ok(not answer.startswith("ready"), f"datasets {text!r}", answer)


def peers():
    """The prolog's note, or what a step was told, and a program that lists the nodes, make an agent's peers."""
    key, listed = "5a" * 32, "n1 127.0.0.1\nn2 127.0.0.1\n"
    with node("peers") as n:
        n.configure(f"[tier.nvme]\npath = {n.tier}\nquota = 100M\nmin_free = 0\n[peer]\nenabled = on\n")
        program, asked = f"{n.dir}/list", f"{n.dir}/asked"
        told = f"MONARCH_JOB_KEY={key} MONARCH_JOB_NODES=n[1-2] "

        def lists(body):
            with open(program, "w", encoding="utf-8") as file:
                file.write(f'#!/bin/sh\necho "$*" >>{asked}\n{body}\n')
            os.chmod(program, 0o755)

        def by(variables="", more=""):
            return ["sh", "-c", f'{variables}exec "$@" --account-program {program} {more}', "sh"]

        def lines(job):
            with open(n.log, encoding="utf-8") as file:
                return [line.split("agent started; ")[1].rstrip() for line in file if f"JobId={job} " in line and "agent started" in line]

        lists(f"printf '{listed}'".replace("\n", "\\n"))
        equal(e2e.execute([*by(told), *n._words("--prolog", 1), "--datasets", n.data])[0], 0, "peers: the prolog")  # pylint: disable=protected-access
        contains(n.start(1, "", before=by()), ["ready "], "peers: the extern step, which is told nothing")
        record = n.record(1)
        with open(f"{record['run_dir']}/peers", encoding="utf-8") as file:
            equal(file.read(), listed, "peers: the agent has the list")
        with open(f"/proc/{record['pid']}/cmdline", encoding="utf-8") as file:
            contains(file.read(), ["\0--peer-index\x000\0--peer-identity\0cluster.1.0\0"], "peers: and knows its place")
        n.start(1, before=by(told))
        with open(asked, encoding="utf-8") as file:
            equal([line for line in file if "--nodes" in line], ["--nodes n[1-2]\n"], "peers: a later step does not ask again")
        contains(n.start(1, restart=1, before=by()), ["ready "], "peers: a second run, whose prolog did not run")
        equal(lines(1), ["node 0 of 2"] * 2, "peers: the log tells of both runs")
        n.epilog(1)
        contains(n.start(2, before=by(told)), ["ready "], "peers: a step that was told, without a prolog")
        contains(n.start(3, before=by()), ["ready "], "peers: one that was not")
        equal(lines(2) + lines(3), ["node 0 of 2", "no peers: the job has one node"], "peers: what the log says of them")
        lists('[ "$1" != --nodes ] || exec sleep 600')  # accounting is done by it, too
        contains(n.start(4, before=by(told)), ["ready "], "peers: a job whose nodes cannot be listed has its agent")
        equal(lines(4), ["no peers: the addresses of the job's nodes could not be had in 700 ms"], "peers: the log says why")
        ok(not os.path.exists(f"{n.record(4)['run_dir']}/peers"), "peers: there is no list")
        answers = [n.start(4, before=by(told, more)) for more in ("", "--tell", "--tell")]
        told_of = "\tn1 gets no files from the job's other nodes: the addresses of the job's nodes could not be had in 700 ms\n"
        equal([answer.endswith(told_of) for answer in answers], [False, True, False], "peers: the first step that can tell it does", *answers)
        answer = n.start(3, before=by("", "--tell"))
        ok("\t" not in answer, "peers: of a job of one node there is nothing to tell", answer)
        lists(f"printf '{listed}'".replace("\n", "\\n"))
        n.start(5, before=by(told))
        answer = n.start(5, before=by(told, "--tell"))
        ok("\t" not in answer, "peers: nor of one that has some", answer)
        for job in 2, 3, 4, 5:
            n.epilog(job)


def why_not():
    if os.geteuid() != 0:
        return "needs root"
    with open(f"{scratch()}/try", "w", encoding="utf-8") as file:
        for flag in "+-":
            if subprocess.run(["chattr", f"{flag}i", file.name], stderr=subprocess.DEVNULL, check=False).returncode != 0:
                return "the scratch directory's file system has no chattr +i"
    return ""


if reason := why_not():
    print(f"1..0 # SKIP {reason}")
    sys.exit(0)
e2e.main(large_tree, memory_tier, held_memory, leased_memory, directories_held, full_run_directory, endless_answer, slow_removal, remover_killed, every_moment, swept_job_is_accounted, swept_jobs_wait, requeued_run_is_accounted, requeued_unseen, late_agent_has_no_lock, anchors_change, agent_died, accounted_once, remover_killed_at_its_end, other_boot, false_slurmstepds, state_lost, state_emptied, spoilt_record, state_is_shared, other_nodes, swept_at_boot, name_is_taken, squashed_root, odd_tier,
         others_rename, name_is_mounted, started_at_once, cleared_at_once, ledger_is_held, what_is_occupied, freed_space, freed_memory, shares, does_not_give_back, hidden_memory, memory_not_tracked, tier_comes_back, tier_is_replaced, fuse_tier_comes_back, secret_datasets, hanging_tier, hangs_in_mid_job, failed_start_and_lock, tried_once, start_killed,
         late_agent, board_in_the_making, waited_in_vain, nameless_user, agent_descriptors, other_datasets, two_clusters, long_names, no_log, log_is_locked, log_rotates_once, tiers_left_out, where_the_line_goes, odd_paths, peers)
