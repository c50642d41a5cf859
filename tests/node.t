#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Root's helpers without Slurm, where only whole programs, or a file system of its own, show what is so."""

import contextlib
import fcntl
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import e2e  # pylint: disable=wrong-import-position
import one_node  # pylint: disable=wrong-import-position
from e2e import BUILD, contains, equal, ok, scratch, skip, wait_until  # pylint: disable=wrong-import-position
from one_node import OTHER, UID  # pylint: disable=wrong-import-position

NAMELESS = 2000054321  # of no user in passwd
SUBIDS = 3000000
SOON = 90  # seconds in which all that an epilog left to the background is gone

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

# A chain of directories, each of an XFS project of its own, so that nothing in it can be moved.
CHAIN = """
import fcntl, os, struct, sys
def give(project):
    fd = os.open(".", os.O_RDONLY)
    attributes = bytearray(fcntl.ioctl(fd, 0x801c581f, bytes(28)))  # FS_IOC_FSGETXATTR
    flags, = struct.unpack_from("I", attributes)
    struct.pack_into("I", attributes, 0, flags | 0x200)  # FS_XFLAG_PROJINHERIT
    struct.pack_into("I", attributes, 12, project)
    fcntl.ioctl(fd, 0x401c5820, bytes(attributes))  # FS_IOC_FSSETXATTR
    os.close(fd)
os.chdir(sys.argv[1])
give(999)
for level in range(int(sys.argv[2])):
    os.mkdir("d")
    os.chdir("d")
    give(1000 + level)
with open("file", "w") as file:
    file.write("x")
"""

# A chain of directories that are encrypted with a key that nobody has any more, so that nothing in it can be moved.
ENCRYPTED_CHAIN = """
import fcntl, os, struct, sys
top = sys.argv[1] + "/encrypted"
os.mkdir(top)
key, above = bytearray(80) + os.urandom(64), os.open(sys.argv[1], os.O_RDONLY)
struct.pack_into("II", key, 0, 2, 0)  # FSCRYPT_KEY_SPEC_TYPE_IDENTIFIER
struct.pack_into("I", key, 40, 64)
fcntl.ioctl(above, 0xc0506617, key)  # FS_IOC_ADD_ENCRYPTION_KEY
fd = os.open(top, os.O_RDONLY)
fcntl.ioctl(fd, 0x800c6613, struct.pack("BBBBI", 2, 1, 4, 3, 0) + key[8:24])  # FS_IOC_SET_ENCRYPTION_POLICY
os.close(fd)
os.chdir(top)
for level in range(int(sys.argv[2])):
    os.mkdir("d")
    os.chdir("d")
with open("file", "w") as file:
    file.write("x")
os.chdir("/")
os.sync()
gone = bytearray(64)
struct.pack_into("II", gone, 0, 2, 0)
gone[8:24] = key[8:24]
fcntl.ioctl(above, 0xc0406618, gone)  # FS_IOC_REMOVE_ENCRYPTION_KEY
sys.exit(1 if "d" in os.listdir(top) else 0)
"""

# Holds directories, and tries to put a file into each.
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


class Node(one_node.Node):
    """One whose lines for sacct are kept."""
    account = "/bin/false"

    def configure(self, tiers=""):
        with open(self.config, "w", encoding="utf-8") as file:
            file.write("[accounting]\naccount = spool\n" + (tiers or f"[tier.nvme]\npath = {self.tier}\nquota = 100M\nmin_free = 0\n"))

    def in_memory(self):
        self.configure(f"[tier.ram]\npath = {self.tier}\ndriver = tmpfs\nquota = 8M\nmedium = ram\n")

    def lines(self, job):
        """For sacct; without what a helper that was killed has half written."""
        found = []
        for path in glob.glob(f"{self.state}/spool/c-1.{job}.0.n1.x.*.kept"):
            with open(path, encoding="utf-8") as file:
                found.append(json.load(file)["line"])
        return found

    def begin(self, job, datasets=None, uid=UID, cluster="c-1"):
        """Starts `monarchd --start` for a job; the process, and a file of its answer."""
        read, write = os.pipe()
        process = e2e.start([*self.words("--start", job, cluster), "--uid", str(uid), "--gid", str(uid), "--datasets",
                             self.data if datasets is None else datasets, "--reply-fd", str(write)], pass_fds=[write], stdin=subprocess.DEVNULL,
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

    def epilog(self, job, cluster="c-1", before=()):
        return e2e.execute([*before, *self.words("--epilog", job, cluster)])[0]

    def quota(self, job):
        return self.record(job)["tiers"][0]["quota"]

    def charged(self):
        """What is being removed counts by."""
        found = []
        for path in glob.glob(f"{self.state}/removing/*/record.json"):
            with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
                found += [tier.get("occupied", tier["quota"]) for tier in json.load(file)["tiers"]]
        return found

    def is_charged_little(self):
        return wait_until(lambda: self.charged() and sum(self.charged()) < 1 << 20, SOON)

    def job_dir(self, job):
        return f"{self.tier}/monarch/c-1.{job}.0.n1.x/files"

    def is_staged(self, job):
        return wait_until(lambda: sum(len(files) for _, _, files in os.walk(self.job_dir(job))) == 30)

    def left(self, job):
        """All that is there of a job, on the tier and in the state directory, but its line for sacct."""
        return [p for p in glob.glob(f"{self.state}/*/*", include_hidden=True) + glob.glob(f"{self.tier}/monarch/*", include_hidden=True)
                if re.search(rf"[/.]{job}\.", p.replace(self.dir, "")) and "/spool/" not in p]

    def ends(self, job, what):
        equal(self.epilog(job), 0, f"{what}: the epilog ends well")
        ok(wait_until(lambda: not self.left(job), SOON), f"{what}: nothing is left", self.left(job), self.logged())

    def try_again(self):
        """What a removal that was given up waits for."""
        for path in glob.glob(f"{self.state}/removing/*/record.json"):
            with open(path, encoding="utf-8") as file:
                record = json.load(file)
            with open(path + ".test", "w", encoding="utf-8") as file:
                json.dump({**record, "next_try": 0}, file)
            os.rename(path + ".test", path)

    def helpers(self):
        """pids of root's helpers, removers included."""
        state = "".join(c if c.isalnum() else f"[{c}]" for c in self.state)
        found = subprocess.run(["pgrep", "-f", f"^{BUILD}/monarchd --(epilog|start|prolog|sweep) --state-dir {state} "],
                               stdout=subprocess.PIPE, check=False)
        return list(map(int, found.stdout.split()))

    def kill_helpers(self):
        for pid in self.helpers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def logged(self):
        with contextlib.suppress(FileNotFoundError), open(self.log, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
        return ""

    def close(self):
        for key in glob.glob(f"{self.state}/jobs/*"):
            cluster, job = os.path.basename(key).split(".")[:2]
            self.epilog(job, cluster)
        wait_until(lambda: not self.helpers() and not glob.glob(f"{self.state}/removing/*"), 30)
        self.kill_helpers()
        for point in reversed(e2e.mounts_below(self.dir)):
            subprocess.run(["umount", "-l", point], check=False)
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


def as_owner(*words):
    code, _, err = e2e.execute([*e2e.NOBODY, *words])
    equal(code, 0, "the owner makes files", err)


# ---- killed at any moment


def every_moment():
    """The epilog is killed at a random moment, again and again; the next job's start cleans up. Each job has its line, once."""
    with node("moments") as n:
        jobs = range(10, 22)
        for turn, job in enumerate(jobs):
            n.start(job)
            as_owner("sh", "-c", f"mkdir {n.job_dir(job)}/many && cd {n.job_dir(job)}/many && seq 500 | xargs touch")
            agent = n.record(job)["pid"]
            epilog = e2e.start(n.words("--epilog", job), stdin=subprocess.DEVNULL)
            time.sleep(turn // 2 * 0.008)
            if turn % 2 == 0:
                epilog.kill()  # to find the others takes longer
            n.kill_helpers()
            epilog.wait(e2e.PATIENCE)
            with contextlib.suppress(ProcessLookupError):
                os.kill(agent, signal.SIGKILL)
        # Who was killed inside a system call keeps his lock until he has died, and the sweep leaves him alone.
        ok(wait_until(lambda: not n.helpers(), SOON), "those that were killed die")
        n.start(99)
        left = lambda: [path for job in jobs for path in n.left(job)]
        ok(wait_until(lambda: not left(), SOON), "an epilog killed at any moment leaves nothing for ever", left())
        equal([job for job in jobs if len(n.lines(job)) != 1], [], "each job has one line", os.listdir(f"{n.state}/spool"))
        ok(wait_until(lambda: n.quota(99) == 100 << 20, SOON), "the next job has the whole quota", n.logged())


def start_killed():
    """A start is killed at any moment; the next step's start mends it, and no agent is left that nobody knows."""
    def agents():
        found = subprocess.run(["pgrep", "-f", f"^monarchd .* --run-dir {n.state}/run/"], stdout=subprocess.PIPE, check=False)
        return sorted(map(int, found.stdout.split()))

    with node("starts") as n:
        recorded, jobs = 0, range(10, 26)
        for turn, job in enumerate(jobs):
            process, answer = n.begin(job)
            record = f"{n.state}/jobs/c-1.{job}.n1.x/record.json"
            if turn < 8:
                time.sleep(turn * 0.002)
            else:  # about when it forks the agent
                wait_until(lambda process=process, record=record: os.path.exists(record) or process.poll() is not None)
                time.sleep((turn - 8) * 0.0002)
            process.kill()  # alone: the child that it may have had goes on
            process.wait(e2e.PATIENCE)
            answer.close()
            recorded += os.path.exists(record)
            contains(n.start(job), ["ready "], "the next step's start serves where one was killed")
            ok(running(n.record(job)["pid"]), "with an agent that runs")
        ok(recorded >= 4, "starts were killed in the middle", recorded)
        equal(agents(), sorted(n.record(job)["pid"] for job in jobs), "every agent is recorded")
        for job in jobs:
            n.ends(job, "after a start that was killed")
        equal(agents(), [], "nor an agent")


# ---- memory


def held_memory():
    """Files and directories of a job's memory that somebody has open after the job: what they keep is charged until it is free, and is not
    made more."""
    with node("held") as n, contextlib.ExitStack() as at_end:
        n.in_memory()
        run_dir = n.start(1).split()[1]
        paths = [f"{run_dir}/junk", f"{n.job_dir(1)}/named", f"{n.job_dir(1)}/unlinked"]
        for path in paths:
            as_owner("sh", "-c", f"head -c 2M /dev/zero >{path}; chmod 0 {path}")
        ok(e2e.execute([*e2e.NOBODY, "sh", "-c", f"head -c 16M /dev/zero >{n.job_dir(1)}/much"])[0] != 0, "its owner cannot overfill it")
        junk, named, unlinked = [at_end.enter_context(open(path, "rb")) for path in paths]
        os.unlink(unlinked.name)
        holder = e2e.start([*e2e.NOBODY, "/usr/bin/python3", "-c", HOLDS, n.job_dir(1), run_dir], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        equal(holder.stdout.readline(), b"held\n", "its owner has its directories open")
        equal(n.epilog(1), 0, "the epilog while they are open")
        ok(wait_until(lambda: os.fstat(junk.fileno()).st_blocks == os.fstat(named.fileno()).st_blocks == 0), "files with a name take no memory")
        ok(wait_until(lambda: n.charged() == [2 << 20]), "one that was unlinked is charged", n.charged())
        n.start(2)
        equal(n.quota(2), 6 << 20, "the next job has the rest")
        out, _ = holder.communicate(b"go on\n", e2e.PATIENCE)
        equal(out.decode().strip(), str(["No space left on device"] * 2), "nothing can be put there any more")
        unlinked.close()
        ok(wait_until(lambda: not n.charged() and not n.left(1), SOON), "once that is closed nothing is charged, nor left", n.left(1), n.logged())


def hidden_memory():
    """A user's file system that hangs on the job's tmpfs does not keep root from the ledger."""
    if not os.path.exists("/dev/fuse"):
        return skip("a user's mount on a tmpfs", "no /dev/fuse")
    with node("hidden_memory") as n:
        n.in_memory()
        n.start(1)
        contains(n.start(2), ["ready "], "a job for which no memory is left starts")
        hang = e2e.hanging_mount(n.job_dir(2), UID, more=",allow_other")
        n.epilog(1)
        ok(wait_until(lambda: n.quota(2) == 8 << 20), "memory becomes free for it")
        with open(f"{n.state}/ledger", "rb") as ledger:
            fcntl.flock(ledger, fcntl.LOCK_EX)
        os.close(hang)
        subprocess.run(["umount", "-l", n.job_dir(2)], check=True)
        ok(wait_until(lambda: os.statvfs(n.job_dir(2)).f_blocks * 4096 == 8 << 20, SOON), "it gets the memory when that is gone")
    return None


# ---- tiers


def hangs_in_mid_job():
    """A tier that begins to hang while a job has it: no hook waits for it, and what is there goes when it answers again."""
    if not os.path.exists("/dev/fuse"):
        return skip("a tier that begins to hang", "no /dev/fuse")
    with node("mid-job") as n:
        other = f"{n.dir}/other"
        os.mkdir(other)
        os.chmod(other, 0o1777)
        n.configure("".join(f"[tier.{name}]\npath = {path}\nquota = 1M\nmin_free = 0\n" for name, path in (("nvme", n.tier), ("other", other))))
        contains(n.start(1), ["ready "], "a job starts")
        hang = e2e.hanging_mount(n.tier, 0)
        equal(n.epilog(1), 0, "its tier hangs: its epilog does not")
        contains(n.start(2), ["ready "], "and the next job starts, without it")
        ok(wait_until(lambda: not glob.glob(f"{other}/monarch/*1.0.n1*"), SOON), "what the job had elsewhere goes", os.listdir(f"{other}/monarch"))
        equal(len(n.charged()), 2, "what is there is charged still")
        os.close(hang)
        subprocess.run(["umount", "-l", n.tier], check=True)
        n.try_again()
        ok(wait_until(lambda: not n.left(1), SOON), "it answers again: all is gone", n.left(1), n.logged())
    return None


# ---- names


def odd_paths():
    """Names of directories and datasets that could break a line, a list or a file; of a user whom this node's passwd does not know."""
    with node("a b\tc\\d\\040;e#f%s,g='h\"\u00e9$(i)") as n:
        for job, name in enumerate((" spaces in it ", "'quotes\"", "comma,comma", "semi;#colon", "new\nline", "$(touch x)`x`", "\udcff\udcfe", "é" * 100), 1):
            path = f"{n.dir}/{name}"
            shutil.copytree(n.data, path)
            answer = n.start(job, path, NAMELESS)
            ok(answer.startswith("ready ") and answer.count("\n") == 1, f"a dataset called {name!a}", answer)
            ok(n.is_staged(job), f"is staged: {name!a}")
            equal(os.stat(n.job_dir(job)).st_uid, NAMELESS, f"as its owner's: {name!a}")
            contains(n.start(job, f"{path}.other", NAMELESS), ["ready ", "is not staged"], f"another one than {name!a}")
            n.ends(job, f"{name!a}")
        n.in_memory()
        contains(n.start(80), ["ready "], "a job with a memory tier starts")
        ok(n.job_dir(80) in e2e.mounts_below(n.tier) and n.is_staged(80), "its dataset is in its tmpfs", e2e.mounts_below(n.tier))
        n.ends(80, "a memory tier")
        equal(e2e.mounts_below(n.dir), [], "nor mounted")
        lines = n.logged().splitlines()
        ok(all(re.match(r"\d{4}-\d\d-\d\dT[0-9:.]+ monarchd\[\d+\]: ", line) for line in lines), "each line of the log is a whole one", lines)


def two_clusters():
    """A machine that is a node of two clusters, under one name, with jobs of one number."""
    with node("clusters") as n:
        answers = [n.start(1, cluster=name) for name in ("one", "two", "one")]
        contains(answers[0], ["ready ", "/run/one.1.0.n1.x/files "], "a job of one cluster")
        contains(answers[1], ["ready ", "/run/two.1.0.n1.x/files "], "a job of the same number of another has its own agent")
        equal(answers[2], answers[0], "a second step finds that of its cluster")
        n.epilog(1, "one")
        ok(running(n.record(1, "two")["pid"]) and not os.path.exists(f"{n.state}/jobs/one.1.n1.x"), "an epilog ends that of its cluster")
        equal(n.epilog(1, "../one"), 2, "a cluster's name that cannot be part of a file's is refused")


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
        libraries = ":".join([*e2e.SANITIZER.split(), f"{BUILD}/libmonarch_preload.so"])
        task = e2e.start([*e2e.NOBODY, "/usr/bin/python3", "-c", READER, glob.glob(f"{n.data}/*.bin")[0], n.tier],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         env={"PATH": "/usr/bin:/bin", "LD_PRELOAD": libraries, "MONARCH_IO_RUN_DIR": begun})
        equal(task.stdout.readline(), b"PFS\n", "a task that finds an empty board reads the PFS")
        subprocess.run(["mount", "--bind", run_dir, begun], check=True)
        equal(task.communicate(b"go on\n", 100 + e2e.PATIENCE)[0], b"tier\n", "and the tier's copy when there is a whole one")
        subprocess.run(["umount", begun], check=True)


# ---- removal


def make(path, uid, group=None):
    """A file of that user's, with the directories above it."""
    missing, top = [], os.path.dirname(path)
    while not os.path.exists(top):
        missing.append(top)
        top = os.path.dirname(top)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write("x")
    for made in [path, *missing]:
        os.chown(made, uid, uid if group is None else group)


def containers_files():
    """Files of the ids that /etc/subuid gives to the owner."""
    with node("subuid") as n:
        if subprocess.run(["unshare", "-mU", "true"], check=False, stderr=subprocess.DEVNULL).returncode != 0:
            return skip("files of the owner's containers", "no user namespaces")
        n.start(1)
        top = n.job_dir(1)
        make(f"{top}/container/rootfs/etc/passwd", SUBIDS + 7)
        os.chmod(f"{top}/container/rootfs/etc", 0)
        make(f"{top}/container/shared/below/file", SUBIDS + 7, OTHER)
        for path, mode in (("/below/file", 0o600), ("/below", 0o700), ("", 0o2777)):
            os.chmod(f"{top}/container/shared{path}", mode)
        make(f"{top}/foreign/dir/file", SUBIDS + 100)
        for path, group in (("container", UID), ("container/shared", OTHER), ("foreign", UID)):
            os.chown(f"{top}/{path}", UID, group)
        for kind in ("subuid", "subgid"):
            with open(f"{n.dir}/{kind}", "w", encoding="utf-8") as file:
                file.write(f"someone:1000:5\nnobody:{SUBIDS}:50\n{UID}:{SUBIDS + 50}:50\n# {UID}:{SUBIDS + 100}:1\n")
        mount = " && ".join(f"mount --bind {n.dir}/{kind} /etc/{kind}" for kind in ("subuid", "subgid"))
        n.epilog(1, before=["unshare", "-m", "--propagation=private", "sh", "-c", f'touch /etc/subuid /etc/subgid; {mount} && exec "$@"', "x"])
        left = lambda: [path for top in glob.glob(f"{n.tier}/monarch/.removed.*") for path in glob.glob(f"{top}/**", recursive=True)]
        ok(wait_until(lambda: not any("container" in path for path in left()), SOON), "files of the owner's containers are gone, of whatever group", left())
        ok(any(path.endswith("foreign/dir/file") for path in left()), "files of an id next to them are not", left())
        ok(n.is_charged_little(), "and what is left is charged", n.charged())
        return None


def mount_on_tier(name, *kinds):
    """Where the tier of node(name) is to be, a file system that one of these commands makes; whether there is one."""
    base = scratch(name)
    with open(f"{base}/image", "wb") as file:
        file.truncate(400 << 20)
    os.mkdir(f"{base}/tier")
    return any(shutil.which(mkfs[0]) and all(subprocess.run(words, stderr=subprocess.DEVNULL, check=False).returncode == 0 for words in (
        [*mkfs, f"{base}/image"], ["mount", "-o", "loop", f"{base}/image", f"{base}/tier"])) for mkfs in kinds)


PROJECTS = (["mkfs.xfs", "-q", "-f"], ["mkfs.ext4", "-q", "-F", "-O", "project,quota"])


def projects():
    """Directories whose owner has given them another project id than that above: no rename leads out of one, nor into another."""
    if not mount_on_tier("projects", *PROJECTS):
        return skip("directories with project ids", "neither XFS nor ext4 with them can be mounted here")
    with node("projects") as n:
        n.start(1)
        top, inside = n.job_dir(1), "/".join(["d"] * 30)
        as_owner("sh", "-c", f'cd "$1" && mkdir -p {inside} side && echo >{inside}/file && chattr -p 8 {inside} && chattr +P {inside} && chattr -p 9 +P side . && mkdir side/below', "x", top)
        subprocess.run(["chattr", "-p", "7", "+P", f"{n.tier}/monarch"], check=True)
        with contextlib.suppress(OSError):
            os.rename(os.path.dirname(top), f"{n.tier}/monarch/moved")
            ok(False, "projects: no rename leads out")
        n.ends(1, "projects")
        n.start(2)
        make(f"{n.job_dir(2)}/foreign/file", OTHER)
        subprocess.run(["chattr", "-p", "8", os.path.dirname(n.job_dir(2))], check=True)
        n.epilog(2)
        ok(n.is_charged_little(), "projects, foreign files: what is left is charged", n.charged())
        equal(os.listdir(n.job_dir(2)), ["foreign"], "projects: what is not the owner's stays where it is")
        shutil.rmtree(f"{n.job_dir(2)}/foreign")
        n.try_again()
        ok(wait_until(lambda: not n.left(2), SOON), "projects: it goes once it can", n.left(2), n.logged())
    return None


def chain_of_projects():
    """Thousands of directories one in another, each with a project id of its own: removed where they are, and measured."""
    if not mount_on_tier("chain", *PROJECTS):
        return skip("a chain of directories with project ids", "neither XFS nor ext4 with them can be mounted here")
    with node("chain") as n, contextlib.ExitStack() as at_end:
        n.start(1)
        as_owner("/usr/bin/python3", "-c", CHAIN, n.job_dir(1), "4300")
        at = os.open(n.job_dir(1), os.O_RDONLY)
        with contextlib.suppress(FileNotFoundError):
            while True:
                below = os.open("d", os.O_RDONLY, dir_fd=at)
                os.close(at)
                at = below
        at_end.callback(os.close, at)
        for name in "foreign", "foreign/below":
            os.mkdir(name, dir_fd=at)
            os.chown(name, OTHER, OTHER, dir_fd=at)
        n.epilog(1)
        ok(n.is_charged_little(), "chain, foreign directories below: only what is left is charged", n.charged())
        equal(os.listdir(at), ["foreign"], "chain: what is not the owner's stays")
        os.rmdir("foreign/below", dir_fd=at)
        n.try_again()
        ok(wait_until(lambda: not n.left(1), SOON), "chain: it goes once it can", n.left(1), n.logged())
    return None


def chain_without_key():
    """The same, encrypted, and without its key."""
    if not mount_on_tier("encrypted", ["mkfs.ext4", "-q", "-F", "-O", "encrypt"]):
        return skip("encrypted directories", "no ext4 with them can be mounted here")
    with node("encrypted") as n:
        n.start(1)
        code, _, err = e2e.execute([*e2e.NOBODY, "/usr/bin/python3", "-c", ENCRYPTED_CHAIN, n.job_dir(1), "300"])
        if code != 0:
            return skip("encrypted directories", f"none can be made here: {err}")
        n.ends(1, "encrypted directories")
    return None


def subvolumes():
    """Of Btrfs, which any user makes: nested, deep, read-only."""
    if not mount_on_tier("btrfs", ["mkfs.btrfs", "-q"]):
        return skip("subvolumes", "no Btrfs can be mounted here")
    with node("btrfs") as n:
        n.start(1)
        as_owner("bash", "-c", r"""set -e; cd "$1"; make() { btrfs subvolume create "$1" >/dev/null; }
            make sub; echo x >sub/file; make sub/in; mkdir sub/in/dir; make sub/in/dir/side; echo x >sub/in/dir/side/file
            make ro; echo x >ro/file; make ro/in; btrfs property set ro/in ro true; btrfs property set ro ro true
            make shut; mkdir shut/dir; chmod 0 shut/dir shut
            (for i in $(seq 40); do mkdir d && cd d && make s && cd s; done; echo x >file)""", "x", n.job_dir(1))
        n.ends(1, "subvolumes")
    return None


if os.geteuid() != 0:
    print("1..0 # SKIP needs root")
    sys.exit(0)
e2e.main(every_moment, start_killed, held_memory, hidden_memory, hangs_in_mid_job, odd_paths, two_clusters, board_in_the_making,
         containers_files, projects, chain_of_projects, chain_without_key, subvolumes)
