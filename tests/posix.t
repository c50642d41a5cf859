#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""Cases as pjdfstest has them: each call that takes a name, with each kind of object behind the name, by root and by an ordinary user, also while a
descriptor of the file is held. Each has the result, and leaves the objects, that it has and leaves natively, cold and placed."""

import json
import os
import shutil

import e2e
from e2e import NOBODY, ORDINARY, PYTHON, equal, ok, options, scratch

PROGRAM = r"""
import ctypes, errno, json, os, stat, sys, time

LIBC = ctypes.CDLL(None, use_errno=True)
RENAME_NOREPLACE, RENAME_EXCHANGE, OTHER = 1, 2, 12345
NS = 10 ** 9
NAMES = ["f", "f/", "f/x", "./f", "d/../f", "d/f", "d/f/..", "d", "d/", "d/.", "e", "e/", "l", "l/", "ld", "ld/", "ld/f", "n", "n/", "o", "o/f", "p",
         "h", "s", "r", "w", "x", "c/f", "q/f", "t/f", "t/g", "k", "absent", "absent/", "absent/x", "", ".", "..", "b" * 255, "b" * 256, "d/" * 2100 + "f"]
PAIRS = ["f", "d", "d/", "e", "l", "o", "p", "h", "g", "s", "c/f", "q/f", "t/f", "absent", "absent/"]

def make(root):
    # The objects of a case. As root: with those of others.
    def file(name, mode=0o644):
        with open(name, "w") as out:
            out.write(name * 40)
        os.chmod(name, mode)
    os.mkdir(root)
    here = os.open(".", os.O_PATH)
    os.chdir(root)
    for name in "decqt":
        os.mkdir(name)
    for name in ("f", "g", "d/f", "c/f", "q/f", "t/f", "t/g", "r"):
        file(name)
    file("s", 0)
    file("w", 0o222)
    file("x", 0o755)
    os.link("g", "h")
    for name, to in (("l", "f"), ("ld", "d"), ("n", "nothing"), ("o", "o")):
        os.symlink(to, name)
    os.mkfifo("p")
    os.mknod("k", stat.S_IFSOCK | 0o644)
    os.chmod("c", 0)
    os.chmod("t", 0o1777)
    if os.geteuid() == 0:
        for name in os.listdir("."):
            os.chown(name, 65534, 65534, follow_symlinks=False)
        for name in ("f", "d/f", "c/f", "t/f"):
            os.chown(name, 65534, 65534)
        for name in ("r", "q", "q/f", "t/g"):
            os.chown(name, 0, 0)
        os.chown(".", 65534, 65534)
    os.fchdir(here)
    os.close(here)

def call(name, *words):
    result = getattr(LIBC, name)(*words)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result

def opened(flags, mode=0o640, then=lambda fd: None):
    def run(name):
        fd = os.open(name, flags | os.O_NONBLOCK, mode)
        try:
            st = os.fstat(fd)
            return [stat.S_IFMT(st.st_mode), st.st_size, fcntl_flags(fd), then(fd)]
        finally:
            os.close(fd)
    return run

def fcntl_flags(fd):
    import fcntl
    return fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_NOFOLLOW

def attributes(st):
    return [oct(st.st_mode), st.st_nlink, st.st_uid, st.st_gid, st.st_size if not stat.S_ISDIR(st.st_mode) else 0]

def utimes(*words, **more):
    return lambda name: os.utime(name, *words, **more)

def omit(atime, mtime):
    def run(name):
        times = (ctypes.c_long * 4)(5, atime, 7, mtime)
        return call("utimensat", -100, os.fsencode(name), times, 0)
    return run

UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2
CALLS = {
    "open r": opened(os.O_RDONLY, then=lambda fd: readable(fd)),
    "open w": opened(os.O_WRONLY), "open rw": opened(os.O_RDWR), "open append": opened(os.O_WRONLY | os.O_APPEND, then=lambda fd: os.write(fd, b"more")),
    "open write": opened(os.O_RDWR, then=lambda fd: [os.pwrite(fd, b"new", 2), readable(fd)]),
    "open creat": opened(os.O_RDONLY | os.O_CREAT), "open excl": opened(os.O_WRONLY | os.O_CREAT | os.O_EXCL), "open creat 0": opened(os.O_WRONLY | os.O_CREAT, 0),
    "open trunc": opened(os.O_WRONLY | os.O_TRUNC), "open r trunc": opened(os.O_RDONLY | os.O_TRUNC), "open dir": opened(os.O_RDONLY | os.O_DIRECTORY),
    "open nofollow": opened(os.O_RDONLY | os.O_NOFOLLOW), "open path": opened(os.O_PATH), "open path nofollow": opened(os.O_PATH | os.O_NOFOLLOW),
    "open noatime": opened(os.O_RDONLY | os.O_NOATIME), "open tmpfile": opened(os.O_RDWR | os.O_TMPFILE), "open dir creat": opened(os.O_DIRECTORY | os.O_CREAT),
    "open sync": opened(os.O_RDWR | os.O_SYNC), "open acc 3": opened(3),
    "ftruncate": opened(os.O_WRONLY, then=lambda fd: os.ftruncate(fd, 5)), "ftruncate r": opened(os.O_RDONLY, then=lambda fd: os.ftruncate(fd, 5)),
    "fallocate": opened(os.O_RDWR, then=lambda fd: os.posix_fallocate(fd, 10, 500)), "fallocate r": opened(os.O_RDONLY, then=lambda fd: os.posix_fallocate(fd, 10, 500)),
    "fchmod": opened(os.O_RDONLY, then=lambda fd: os.fchmod(fd, 0o611)), "fchown": opened(os.O_RDONLY, then=lambda fd: os.fchown(fd, -1, OTHER)),
    "futimens": opened(os.O_RDONLY, then=lambda fd: os.utime(fd, ns=(3 * NS, 4 * NS + 1))), "write r": opened(os.O_RDONLY, then=lambda fd: os.write(fd, b"x")),
    "read w": opened(os.O_WRONLY, then=lambda fd: os.read(fd, 1)), "fsetxattr": opened(os.O_RDONLY, then=lambda fd: os.setxattr(fd, "user.a", b"1")),
    "stat": lambda name: attributes(os.stat(name)), "lstat": lambda name: attributes(os.lstat(name)), "readlink": os.readlink,
    "access r": lambda name: call("access", os.fsencode(name), 4), "access w": lambda name: call("access", os.fsencode(name), 2),
    "access x": lambda name: call("access", os.fsencode(name), 1), "access 0": lambda name: call("access", os.fsencode(name), 0),
    "faccessat eaccess": lambda name: call("faccessat", -100, os.fsencode(name), 6, 0x200),
    "chmod": lambda name: os.chmod(name, 0o600), "chmod 0": lambda name: os.chmod(name, 0), "chmod bits": lambda name: os.chmod(name, 0o7755),
    "chown same": lambda name: os.chown(name, -1, -1), "chown group": lambda name: os.chown(name, -1, 65534), "chown": lambda name: os.chown(name, OTHER, OTHER),
    "lchown": lambda name: os.lchown(name, -1, 65534), "lchown other": lambda name: os.lchown(name, OTHER, OTHER),
    "truncate": lambda name: os.truncate(name, 0), "truncate 7": lambda name: os.truncate(name, 7), "truncate long": lambda name: os.truncate(name, 5000),
    "truncate -1": lambda name: os.truncate(name, -1), "truncate huge": lambda name: os.truncate(name, 2 ** 62),
    "unlink": os.unlink, "rmdir": os.rmdir, "remove": lambda name: call("remove", os.fsencode(name)), "mkdir": lambda name: os.mkdir(name, 0o7751),
    "mkfifo": lambda name: os.mkfifo(name, 0o640), "mknod": lambda name: os.mknod(name, stat.S_IFREG | 0o640), "mknod dev": lambda name: os.mknod(name, stat.S_IFCHR | 0o640, 0x103),
    "symlink": lambda name: os.symlink("f", name), "symlink long": lambda name: os.symlink("y" * 5000, name), "symlink empty": lambda name: os.symlink("", name),
    "utime now": utimes(), "utime": utimes(ns=(NS, 2 * NS + 5)), "utime before 1970": utimes(ns=(-NS, -2 * NS)), "lutime": utimes(ns=(NS, 2 * NS), follow_symlinks=False),
    "utimensat omit": omit(UTIME_OMIT, 9), "utimensat omit both": omit(UTIME_OMIT, UTIME_OMIT), "utimensat now": omit(UTIME_NOW, UTIME_OMIT), "utimensat bad": omit(NS, 0),
    "setxattr": lambda name: os.setxattr(name, "user.a", b"1"), "getxattr": lambda name: os.getxattr(name, "user.b"), "listxattr": os.listxattr,
    "removexattr": lambda name: os.removexattr(name, "user.b"), "listdir": lambda name: sorted(os.listdir(name)), "statvfs": lambda name: os.statvfs(name).f_namemax,
    "chdir": lambda name: in_directory(name), "realpath": lambda name: os.path.relpath(os.path.realpath(name, strict=True)),
}
PAIR_CALLS = {
    "rename": os.rename, "link": lambda a, b: os.link(a, b, follow_symlinks=False), "link follow": lambda a, b: call("linkat", -100, os.fsencode(a), -100, os.fsencode(b), 0x400),
    "rename noreplace": lambda a, b: call("renameat2", -100, os.fsencode(a), -100, os.fsencode(b), RENAME_NOREPLACE),
    "rename exchange": lambda a, b: call("renameat2", -100, os.fsencode(a), -100, os.fsencode(b), RENAME_EXCHANGE),
}
HELD = [*((call, "f") for call in ("open trunc", "open append", "open write", "ftruncate", "fchmod", "chmod", "chmod 0", "chown group", "truncate 7", "truncate long", "unlink",
                                   "utime", "setxattr", "fallocate", "open creat")), ("unlink", "g"), ("truncate 7", "h"), ("chmod", "h"), ("truncate 7", "l"), ("chmod", "l")]

def readable(fd):
    return os.pread(fd, 300, 0).decode() if stat.S_ISREG(os.fstat(fd).st_mode) else ""

def in_directory(name):
    here = os.open(".", os.O_PATH)
    try:
        os.chdir(name)
        return sorted(os.listdir("."))
    finally:
        os.fchdir(here)
        os.close(here)

def outcome(run):
    try:
        return run()
    except OSError as error:
        return errno.errorcode[error.errno]

def held(name, run, words):
    fd = os.open(name, os.O_RDONLY)
    try:
        result, st = outcome(lambda: run(*words)), os.fstat(fd)
        return [result, oct(st.st_mode), st.st_uid, st.st_gid, st.st_size, os.pread(fd, 300, 0).decode(), os.lseek(fd, 0, os.SEEK_END)]
    finally:
        os.close(fd)

def objects(before=None):
    # By name: what can be seen of an object, and what it was before, with which of its times differ from then.
    found = {}
    for directory, names, files in os.walk("."):
        for name in [directory, *(f"{directory}/{name}" for name in sorted(files) + [n for n in names if os.path.islink(f"{directory}/{n}")])]:
            st, content = outcome(lambda: os.lstat(name)), ""
            if isinstance(st, str):
                found[name] = st
                continue
            times = [st.st_mtime_ns, st.st_ctime_ns]
            if before is None:
                found.setdefault(st.st_ino, (name, times))
                continue
            was, earlier = before.get(st.st_ino, ("new", times))
            if stat.S_ISREG(st.st_mode):
                content = outcome(lambda: readable_at(name))
            found[name] = [attributes(st), content, was, [a != b for a, b in zip(times, earlier)], st.st_mtime_ns if 0 < abs(st.st_mtime_ns) < 10 * NS else 0]
    return found

def readable_at(name):
    fd = os.open(name, os.O_RDONLY)
    try:
        return readable(fd)
    finally:
        os.close(fd)

CASES = [(call, (name,), "") for call in CALLS for name in NAMES] + [(call, (a, b), "") for call in PAIR_CALLS for a in PAIRS for b in PAIRS]
CASES += [(call, (name,), "f" if name != "g" else "g") for call, name in HELD] + [(call, pair, "f") for call in PAIR_CALLS for pair in (("f", "absent"), ("f", "g"), ("g", "f"), ("d", "absent"))]

command, top, first, step = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
os.chdir(top)
os.umask(0o022)
if command == "make":
    for number in range(first, len(CASES), step):
        make(str(number))
else:
    results = {}
    for number in range(first, len(CASES), step):
        call_name, words, holds = CASES[number]
        run = CALLS.get(call_name) or PAIR_CALLS[call_name]
        os.chdir(f"{top}/{number}")
        before = objects()
        result = held(holds, run, words) if holds else outcome(lambda: run(*words))
        results[f"{number} {call_name} {[word[:30] for word in words]} {holds}"] = [result, objects(before)]
    print(json.dumps(results))
"""
STEP = 2  # each second case by root, the others by an ordinary user: in a second round the other way around


class Cases:
    """All cases in a directory of their own; `run` runs a command."""

    def __init__(self, name, run=e2e.execute):
        self.root, self.run = scratch(name), run
        os.chmod(self.root, 0o755)
        for users in self.users():
            os.mkdir(f"{self.root}/{users}")
            for first in range(STEP):
                self.of(e2e.execute, "make", users, first, [])

    @staticmethod
    def users():
        return ["even", "odd"] if ORDINARY else ["even"]

    def of(self, run, command, users, first, before):
        code, out, err = run([*before, PYTHON, "-c", PROGRAM, command, f"{self.root}/{users}", str(first), str(STEP)], seconds=30 * e2e.PATIENCE)
        if code != 0:
            raise RuntimeError(f"{command}: {code}: {err}")
        return json.loads(out) if out else {}

    def results(self):
        """By case and user: what it gives, and what it leaves."""
        found = {}
        for users in self.users():
            for first in range(STEP):
                is_user = (first == 0) == (users == "odd")
                found |= {f"{case}, {'user' if is_user else 'root'}": got
                          for case, got in self.of(self.run, "run", users, first, NOBODY if is_user and ORDINARY else []).items()}
        return found


def compare(cases, expected, where):
    got = cases.results()
    differ = [f"{case}: {expected[case]}, {got.get(case)}" for case in expected if got.get(case) != expected[case]]
    ok(not differ and len(got) == len(expected), f"{where}: {len(got)} cases as natively", len(differ), *differ)


def run():
    native = Cases("native").results()
    ok(len(native) > 4000, "the cases run natively", len(native))
    for where, wait in (("cold", "none"), ("placed", "full")):
        cases, tier = Cases(f"{where}.data"), scratch(f"{where}.tier")
        config = e2e.config(prefetch="off") if wait == "none" else []
        job = e2e.Job(options([cases.root], {"t": (tier, "4G")}, "--wait", wait, *config))
        cases.run = job.run
        compare(cases, native, where)
        counters = job.end()
        ok(counters["opens_tier"] > 1000, f"{where}: the tier served files", counters)
        shutil.rmtree(cases.root)
        equal(e2e.traces(job.pid, tier), [], f"{where}: nothing is left")


e2e.skip_all_if(e2e.why_not_ordinary())
e2e.main(run)
