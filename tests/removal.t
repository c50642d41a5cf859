#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Root's removal of what a hostile owner left: nothing that is not the owner's is touched, it is bounded, and the next
job of another user has the whole quota."""

import contextlib
import ctypes
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
from e2e import BUILD, contains, equal, mounts_below, ok, scratch, skip, wait_until  # pylint: disable=wrong-import-position

OWNER, OTHER = 65534, 65533
QUOTA = 100 << 20
NEARLY = QUOTA - (1 << 20)  # what other jobs have when a few small files of others are left
SOON = 90  # seconds; a margin of ten over what it takes
LIBC = ctypes.CDLL(None, use_errno=True)
SUBIDS = 3000000

SPIN = """
import os, sys, time
fd, n = os.open(sys.argv[1], os.O_RDONLY), 0
end = time.monotonic() + 600
while time.monotonic() < end:
    n += 1
    try:
        os.close(os.open(f"{sys.argv[2]}{n % 100}", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    except OSError:
        time.sleep(0.001)
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


def as_user(uid, *words, **options):
    return e2e.execute(["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *words], **options)


class Node:
    """A node with one tier, on which the helpers run as the plugin runs them."""

    def __init__(self, name):
        self.dir = scratch(name)
        os.chmod(self.dir, 0o755)
        self.state, self.tier, self.data = (f"{self.dir}/{part}" for part in ("state", "tier", "data"))
        self.config, self.log = f"{self.dir}/monarch.conf", f"{self.dir}/log"
        os.makedirs(self.tier, exist_ok=True)
        os.chmod(self.tier, 0o1777)
        e2e.make_tree(self.data, 5)
        subprocess.run(["chmod", "-R", "a+rX", self.data], check=True)
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(f"[tier.nvme]\npath = {self.tier}\nquota = {QUOTA}\nmedium = nvme\nmin_free = 0\n")

    def words(self, hook, job):
        return [f"{BUILD}/monarchd", hook, "--state-dir", self.state, "--job", str(job), "--node", "n1", "--cluster", "c",
                "--log", self.log, "--account-program", ""]

    def start(self, job, uid=OWNER):
        code, out, err = e2e.execute([*self.words("--start", job), "--config", self.config, "--uid", str(uid), "--gid", str(uid),
                                      "--datasets", self.data, "--reply-fd", "1"])
        return out.decode() if code == 0 else f"{code}: {out} {err} {self.logged()}"

    def epilog(self, job, before=()):
        begin = time.monotonic()
        code = e2e.execute([*before, *self.words("--epilog", job)])[0]
        return code, time.monotonic() - begin

    def job_dir(self, job):
        return f"{self.tier}/monarch/c.{job}.0.n1/files"

    def set_aside(self):
        return glob.glob(f"{self.tier}/monarch/.removed.*")

    def removals(self):
        found = []
        for path in glob.glob(f"{self.state}/removing/*/record.json"):
            with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8") as file:
                found.append(json.load(file))
        return found

    def quota(self, job, uid=OTHER):
        """That of another user's job, which ends."""
        self.start(job, uid)
        try:
            with open(f"{self.state}/jobs/c.{job}.n1/record.json", encoding="utf-8") as file:
                return json.load(file)["tiers"][0]["quota"]
        finally:
            self.epilog(job)

    def charged(self):
        return sum(tier.get("occupied", tier["quota"]) for record in self.removals() for tier in record["tiers"])

    def is_charged_little(self):
        return wait_until(lambda: self.charged() <= QUOTA - NEARLY, SOON)

    def gone(self):
        return wait_until(lambda: not self.set_aside() and not self.removals(), SOON)

    def try_again(self):
        """What a removal that was given up waits for."""
        for path in glob.glob(f"{self.state}/removing/*/record.json"):
            with open(path, encoding="utf-8") as file:
                record = json.load(file)
            record["next_try"] = 0
            with open(path + ".test", "w", encoding="utf-8") as file:
                json.dump(record, file)
            os.rename(path + ".test", path)

    def logged(self):
        with contextlib.suppress(FileNotFoundError), open(self.log, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
        return ""

    def helpers(self):
        """pids of root's helpers, removers and keepers included."""
        found = subprocess.run(["pgrep", "-f", f"monarchd --[a-z]+ --state-dir {self.state} "], stdout=subprocess.PIPE, check=False)
        return list(map(int, found.stdout.split()))

    def close(self):
        for key in glob.glob(f"{self.state}/jobs/*.n1"):
            self.epilog(os.path.basename(key).split(".")[1])
        for pid in self.helpers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.helpers())
        for point in reversed(mounts_below(self.dir)):
            LIBC.umount2(os.fsencode(point), 2)
        e2e.remove_groups(self.state)
        shutil.rmtree(self.dir, ignore_errors=True)


@contextlib.contextmanager
def node(name, job=1):
    made = Node(name)
    try:
        contains(made.start(job), ["ready "], f"{name}: a job starts")
        yield made
    finally:
        made.close()


def make(path, uid, text="x"):
    """A file of that user's, with the directories above it."""
    missing = []
    top = os.path.dirname(path)
    while not os.path.exists(top):
        missing.append(top)
        top = os.path.dirname(top)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    for made in [path, *missing]:
        os.chown(made, uid, uid)


def others_quota(n, name, whole=False):
    ok(n.is_charged_little(), f"{name}: soon only what is left is charged", n.removals())
    equal(n.quota(50) >= (QUOTA if whole else NEARLY), True, f"{name}: another user's job has the quota", n.removals())


# ---- what is not the owner's


def foreign_files():
    """A directory with other users' files that the owner moved into the job's."""
    with node("foreign") as n:
        make(f"{n.tier}/project/own/file", OWNER)
        make(f"{n.tier}/project/bob/results/thesis", OTHER, "precious")
        make(f"{n.tier}/project/root/file", 0, "root's")
        os.chmod(f"{n.tier}/project/root", 0o700)
        os.chown(f"{n.tier}/project", OWNER, OWNER)
        equal(as_user(OWNER, "mv", f"{n.tier}/project", f"{n.job_dir(1)}/x\ny")[0], 0, "foreign files: moved into the job's directory")
        make(f"{n.job_dir(1)}/staged", OWNER)
        code, took = n.epilog(1)
        ok(code == 0, "foreign files: the epilog ends well", code, took)
        ok(not os.path.exists(n.job_dir(1)), "foreign files: the job's directory is out of the way")
        others_quota(n, "foreign files")
        left = f"{glob.glob(f'{n.tier}/monarch/.removed.c.1.*')[0]}/files/x\ny"  # another job's may be there too
        for path, text in ((f"{left}/bob/results/thesis", "precious"), (f"{left}/root/file", "root's")):
            with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
                equal(file.read(), text, f"foreign files: {os.path.basename(path)} is what it was")
                continue
            ok(False, f"foreign files: {os.path.basename(path)} is there", path)
        ok(not os.path.exists(f"{left}/own") and not os.path.exists(f"{left}/../staged"), "foreign files: the owner's are gone")
        equal([os.stat(left + path).st_mode & 0o777 for path in ("/root", "/bob")], [0o700, 0o755], "foreign files: modes are what they were")
        lines = n.logged().splitlines()
        ok(all(re.match(r"\d{4}-\d\d-\d\dT[0-9:.]+ monarchd\[\d+\]: ", line) for line in lines), "foreign files: each line of the log is root's", lines)
        equal(sum(f"clean up: {n.tier}/monarch: .removed." in line and "x\\ny" in line for line in lines), 1, "foreign files: what is left is named once", lines)
        shutil.rmtree(left)
        n.try_again()
        ok(n.gone(), "foreign files: when others have removed them the rest goes", n.set_aside())


def containers_files():
    """Files of the ids that /etc/subuid gives to the owner."""
    with node("subuid") as n:
        if subprocess.run(["unshare", "-mU", "true"], check=False, stderr=subprocess.DEVNULL).returncode != 0:
            return skip("files of the owner's containers", "no user namespaces")
        make(f"{n.job_dir(1)}/container/rootfs/etc/passwd", SUBIDS + 7)
        os.chmod(f"{n.job_dir(1)}/container/rootfs/etc", 0)
        os.chown(f"{n.job_dir(1)}/container", OWNER, OWNER)
        make(f"{n.job_dir(1)}/container/shared/below/file", SUBIDS + 7)
        os.chown(f"{n.job_dir(1)}/container/shared", OWNER, OTHER)
        os.chmod(f"{n.job_dir(1)}/container/shared", 0o2777)
        for path, mode in (("below/file", 0o600), ("below", 0o700)):
            os.chown(f"{n.job_dir(1)}/container/shared/{path}", SUBIDS + 7, OTHER)
            os.chmod(f"{n.job_dir(1)}/container/shared/{path}", mode)
        make(f"{n.job_dir(1)}/foreign/dir/file", SUBIDS + 100)
        os.chown(f"{n.job_dir(1)}/foreign", OWNER, OWNER)
        for kind in ("subuid", "subgid"):
            with open(f"{n.dir}/{kind}", "w", encoding="utf-8") as file:
                file.write(f"someone:1000:5\nnobody:{SUBIDS}:50\n{OWNER}:{SUBIDS + 50}:50\n# {OWNER}:{SUBIDS + 100}:1\n")
        mount = " && ".join(f"mount --bind {n.dir}/{kind} /etc/{kind}" for kind in ("subuid", "subgid"))
        n.epilog(1, ["unshare", "-m", "--propagation=private", "sh", "-c", f'touch /etc/subuid /etc/subgid; {mount} && exec "$@"', "x"])
        left = lambda: [path for top in n.set_aside() for path in glob.glob(f"{top}/**", recursive=True)]
        ok(wait_until(lambda: not any("container" in path for path in left()), SOON), "files of the owner's containers are gone, of whatever group", left())
        ok(any(path.endswith("foreign/dir/file") for path in left()), "files of an id next to them are not", left())
        others_quota(n, "containers")
        return None


def not_removable():
    """What only root could remove stays, and is charged by what it is; what the owner can remove goes, whatever its mode and name."""
    with node("modes") as n:
        top = n.job_dir(1)
        script = r"""cd "$1" && mkdir -p shut/in/side 'a b' "$(printf 'n\nl\377')" && : >shut/in/side/f && : >'a b/-rf' && ln -s / link && ln -s "$2" to
            mkfifo fifo && chmod 0 shut/in && chmod 0 shut
            python3 -c 'import os
for i in range(300):
    os.mkdir("d" * 200); os.chdir("d" * 200)'; chmod 0 "$1" """
        equal(as_user(OWNER, "sh", "-c", script, "x", top, n.data)[0], 0, "modes: the owner makes odd directories")
        n.epilog(1)
        ok(n.gone(), "modes: all is gone", n.set_aside(), n.logged())
        ok(len(os.listdir(n.data)) > 0 and os.path.isdir("/etc"), "modes: what links lead to is there")
        n.start(2)
        held = f"{n.job_dir(2)}/held"
        make(held, OWNER, "x" * 300000)
        if subprocess.run(["chattr", "+i", held], stderr=subprocess.DEVNULL, check=False).returncode != 0:
            return skip("immutable files", "no chattr +i here")
        n.epilog(2)
        others_quota(n, "immutable")
        charged = n.charged()
        ok(300000 <= charged <= 400000, "immutable: what it occupies is charged", charged)
        subprocess.run(["chattr", "-i", *glob.glob(f"{n.tier}/monarch/.removed.*/files/held")], check=True)
        n.try_again()
        ok(n.gone(), "immutable: gone when it can be", n.set_aside())
        return None


def remover_and_owner():
    """The owner can neither end, stop, trace nor slow the process that removes; if it dies all the same another does."""
    with node("remover") as n:
        many = f"{n.job_dir(1)}/many"
        for part in range(20):
            os.makedirs(f"{many}/{part}")
            for name in range(1000):
                os.mknod(f"{many}/{part}/{name}")
        subprocess.run(["chown", "-R", f"{OWNER}:{OWNER}", many], check=True)

        def workers():
            found = []
            for pid in n.helpers():
                with contextlib.suppress(OSError), open(f"/proc/{pid}/status", encoding="utf-8") as file:
                    status = file.read()
                    if re.search(rf"^Uid:\t\d+\t\d+\t\d+\t{OWNER}$", status, re.MULTILINE):
                        found.append((pid, status))
            return found

        epilog = e2e.start(n.words("--epilog", 1), stdin=subprocess.DEVNULL)
        ok(wait_until(workers), "remover: it removes with the owner's rights")
        pid, status = (workers() or [(0, "")])[0]
        if pid and os.path.exists(f"/proc/{pid}"):
            os.kill(pid, signal.SIGSTOP)
            capabilities = int(re.search(r"^CapPrm:\t(\w+)", status, re.MULTILINE)[1], 16)
            equal(capabilities & ~0b1010, 0, "remover: no capabilities but those for its files", status)
            for command in (f"kill -KILL {pid}", f"renice 19 {pid}", f"prlimit --pid {pid} --cpu=1", f"cat /proc/{pid}/environ"):
                code, out, err = as_user(OWNER, "sh", "-c", command)
                ok(code != 0, f"remover: the owner cannot {command.replace(str(pid), 'PID')}", out, err)
            os.kill(pid, signal.SIGKILL)
        ok(n.gone(), "remover: what was killed in the middle is followed by another", n.set_aside(), n.logged())
        epilog.wait(e2e.PATIENCE)


# ---- what never ends


def fuse_mounts():
    """Mounts of the owner's, dead and hanging, in and on the job's directory; and one of the administrator's."""
    if not os.path.exists("/dev/fuse"):
        return skip("FUSE mounts in a job's directory", "no /dev/fuse")
    with node("fuse") as n, contextlib.ExitStack() as servers:
        for name in ("dead", "a b/hanging"):
            os.makedirs(f"{n.job_dir(1)}/{name}")
        subprocess.run(["chown", "-R", f"{OWNER}:{OWNER}", n.job_dir(1)], check=True)
        os.close(e2e.hanging_mount(f"{n.job_dir(1)}/dead", OWNER))
        servers.callback(os.close, e2e.hanging_mount(f"{n.job_dir(1)}/a b/hanging", OWNER))
        servers.callback(os.close, e2e.hanging_mount(n.job_dir(1), OWNER, 20))
        code, took = n.epilog(1)
        ok(code == 0, "FUSE: the epilog ends well", code, took)
        ok(n.gone(), "FUSE: nothing is left", n.set_aside(), n.logged())
        equal(mounts_below(n.tier), [], "FUSE: nothing is mounted any more")
        others_quota(n, "FUSE", whole=True)

        n.start(2)
        run = glob.glob(f"{n.state}/run/*/files")[0]
        for path in n.job_dir(2), run:
            os.close(e2e.hanging_mount(path, OTHER))
        n.epilog(2)
        ok(n.gone(), "another user's, dead, on the job's own directories: nothing is left", n.set_aside(), n.logged())
        equal(mounts_below(n.dir), [], "another user's: nothing is mounted any more")

        n.start(3)
        os.makedirs(f"{n.tier}/moved/admins")
        os.chown(f"{n.tier}/moved", OWNER, OWNER)
        subprocess.run(["mount", "-t", "tmpfs", "test", f"{n.tier}/moved/admins"], check=True)
        make(f"{n.tier}/moved/admins/file", OWNER)
        os.mkdir(f"{n.tier}/moved/bobs")
        os.chown(f"{n.tier}/moved/bobs", OTHER, OTHER)
        servers.callback(os.close, e2e.hanging_mount(f"{n.tier}/moved/bobs", OTHER))
        as_user(OWNER, "mv", f"{n.tier}/moved", n.job_dir(3))
        n.epilog(3)
        others_quota(n, "others' mounts")
        left = mounts_below(n.tier)
        equal(sorted({os.path.basename(point) for point in left}), ["admins", "bobs"], "others' mounts stay", left)
        ok(any(os.path.exists(f"{point}/file") for point in left if point.endswith("admins")), "others' mounts: what is in them stays")
    return None


def mount_with_projects(name):
    """Where the tier of node(name) is to be, a file system on which each user gives directories project ids."""
    base = scratch(name)
    with open(f"{base}/image", "wb") as file:
        file.truncate(400 << 20)
    os.mkdir(f"{base}/tier")

    def mounted(*mkfs):
        return all(subprocess.run(words, stderr=subprocess.DEVNULL, check=False).returncode == 0
                   for words in ([*mkfs, f"{base}/image"], ["mount", "-o", "loop", f"{base}/image", f"{base}/tier"]))

    return bool(shutil.which("mkfs.xfs") and mounted("mkfs.xfs", "-q", "-f")) or mounted("mkfs.ext4", "-q", "-F", "-O", "project,quota")


def projects():
    """Directories whose owner has given them another project id than that above: no rename leads out of one, nor into another."""
    if not mount_with_projects("projects"):
        return skip("directories with project ids", "neither XFS nor ext4 with them can be mounted here")
    with node("projects") as n:
        top, inside = n.job_dir(1), "/".join(["d"] * 30)
        script = f'cd "$1" && mkdir -p {inside} side && echo >{inside}/file && chattr -p 8 {inside} && chattr +P {inside} && chattr -p 9 +P side . && mkdir side/below'
        code, _, err = as_user(OWNER, "sh", "-c", script, "x", top)
        equal(code, 0, "projects: the owner gives directories ids", err)
        subprocess.run(["chattr", "-p", "7", "+P", f"{n.tier}/monarch"], check=True)
        with contextlib.suppress(OSError):
            os.rename(os.path.dirname(top), f"{n.tier}/monarch/moved")
            ok(False, "projects: no rename leads out")
        code, took = n.epilog(1)
        ok(code == 0, "projects: the epilog ends well", code, took)
        ok(wait_until(lambda: not os.path.exists(top), SOON) and n.gone(), "projects: what cannot be moved aside is removed where it is", n.logged())
        others_quota(n, "projects", whole=True)
        n.start(2)
        make(f"{n.job_dir(2)}/foreign/file", OTHER)
        subprocess.run(["chattr", "-p", "8", os.path.dirname(n.job_dir(2))], check=True)
        n.epilog(2)
        others_quota(n, "projects, foreign files")
        equal(os.listdir(n.job_dir(2)), ["foreign"], "projects: what is not the owner's stays where it is")
        contains(n.logged(), [f"clean up: {n.tier}/monarch: c.2.0.n1/files: remove foreign/file: "], "projects: the log says where")
        shutil.rmtree(f"{n.job_dir(2)}/foreign")
        n.try_again()
        ok(wait_until(lambda: not os.path.exists(n.job_dir(2)), SOON) and n.gone(), "projects: it goes once it can", n.logged())
    return None


def chain_of_projects():
    """Thousands of directories one in another, each with a project id of its own: removed where they are, and measured."""
    if not mount_with_projects("chain"):
        return skip("a chain of directories with project ids", "neither XFS nor ext4 with them can be mounted here")
    with node("chain") as n, contextlib.ExitStack() as at_end:
        def make_chain(job, levels):
            code, _, err = as_user(OWNER, "/usr/bin/python3", "-c", CHAIN, n.job_dir(job), str(levels))
            equal(code, 0, "chain: the owner makes directories of a project each", err)

        make_chain(1, 4300)
        code, took = n.epilog(1)
        ok(code == 0, "chain: the epilog ends well", code, took)
        ok(wait_until(lambda: not os.path.exists(n.job_dir(1)), SOON) and n.gone(), "chain: all is gone", n.logged())
        others_quota(n, "chain", whole=True)

        n.start(2)
        make_chain(2, 4300)
        at = os.open(n.job_dir(2), os.O_RDONLY)
        with contextlib.suppress(FileNotFoundError):
            while True:
                below = os.open("d", os.O_RDONLY, dir_fd=at)
                os.close(at)
                at = below
        at_end.callback(os.close, at)
        for name, uid in (("foreign", OTHER), ("foreign/below", OTHER)):
            os.mkdir(name, dir_fd=at)
            os.chown(name, uid, uid, dir_fd=at)
        n.epilog(2)
        ok(n.is_charged_little(), "chain, foreign directories below: only what is left is charged", n.removals())
        equal(os.listdir(at), ["foreign"], "chain: what is not the owner's stays")
        contains(n.logged(), [": remove d/d/d/d/d/d/d/d/d/.../foreign/below: "], "chain: the log says where, briefly")
        os.rmdir("foreign/below", dir_fd=at)
        n.try_again()
        ok(wait_until(lambda: not os.path.exists(n.job_dir(2)), SOON) and n.gone(), "chain: it goes once it can", n.logged())
    return None


def chain_without_key():
    """The same, encrypted, and without its key."""
    base = scratch("encrypted")
    with open(f"{base}/image", "wb") as file:
        file.truncate(100 << 20)
    os.mkdir(f"{base}/tier")
    for words in (["mkfs.ext4", "-q", "-F", "-O", "encrypt", f"{base}/image"], ["mount", "-o", "loop", f"{base}/image", f"{base}/tier"]):
        if subprocess.run(words, stderr=subprocess.DEVNULL, check=False).returncode != 0:
            return skip("encrypted directories", "no ext4 with them can be mounted here")
    with node("encrypted") as n:
        code, _, err = as_user(OWNER, "/usr/bin/python3", "-c", ENCRYPTED_CHAIN, n.job_dir(1), "300")
        if code != 0:
            return skip("encrypted directories", f"none can be made here: {err}")
        n.epilog(1)
        ok(n.gone(), "encrypted directories are gone, at any depth", n.logged())
    return None


def btrfs():
    """Subvolumes, which any user makes: nested, deep, read-only."""
    missing = [tool for tool in ("mkfs.btrfs", "btrfs", "losetup") if not shutil.which(tool)]
    if missing:
        return skip("subvolumes of btrfs", f"no {missing[0]}")
    base = scratch("btrfs")
    with open(f"{base}/image", "w", encoding="utf-8") as file:
        file.truncate(300 << 20)
    os.mkdir(f"{base}/tier")
    subprocess.run(["mkfs.btrfs", "-q", f"{base}/image"], check=True)
    if subprocess.run(["mount", "-o", "loop", f"{base}/image", f"{base}/tier"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
        return skip("subvolumes of btrfs", "btrfs cannot be mounted here")
    with node("btrfs") as n:
        script = r"""set -e; cd "$1"; make() { btrfs subvolume create "$1" >/dev/null; }
            make sub; echo x >sub/file; make sub/in; mkdir sub/in/dir; make sub/in/dir/side; echo x >sub/in/dir/side/file
            make ro; echo x >ro/file; make ro/in; btrfs property set ro/in ro true; btrfs property set ro ro true
            make shut; mkdir shut/dir; chmod 0 shut/dir shut
            (for i in $(seq 40); do mkdir d && cd d && make s && cd s; done; echo x >file)"""
        code, _, err = as_user(OWNER, "bash", "-c", script, "x", n.job_dir(1))
        equal(code, 0, "btrfs: the owner makes subvolumes", err)
        n.epilog(1)
        ok(n.gone(), "btrfs: all of them are gone", n.set_aside(), n.logged())
        others_quota(n, "btrfs", whole=True)
    return None


def spinners():
    """Processes of the owner's that fill directories which they hold, while root removes."""
    with node("spin") as n:
        held = f"{n.job_dir(1)}/held"
        as_user(OWNER, "mkdir", held)
        processes = [e2e.start(["setpriv", f"--reuid={OWNER}", f"--regid={OWNER}", "--clear-groups", "/usr/bin/python3", "-c", SPIN, held, name],
                               stdin=subprocess.DEVNULL) for name in "ab"]
        time.sleep(0.5)
        code, took = n.epilog(1)
        ok(code == 0, "filled while it is removed: the epilog ends well", code, took)
        others_quota(n, "filled while it is removed")
        for process in processes:
            e2e.end(process)
        n.try_again()
        ok(n.gone(), "filled while it is removed: gone when nobody fills it any more", n.set_aside(), n.logged())


if os.geteuid() != 0:
    print("1..0 # SKIP needs root")
    sys.exit(0)
e2e.main(foreign_files, containers_files, not_removable, remover_and_owner, fuse_mounts, projects, chain_of_projects, chain_without_key, btrfs, spinners)
