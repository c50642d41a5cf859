#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""Metadata: what stat, access and readdir say in a job is what they say natively, to the last field; a dataset that is
placed costs the PFS one call per directory; and what changes shows at once."""

import ctypes
import itertools
import os
import time

import e2e
from e2e import PYTHON, SlowFs, config, equal, ok, options, scratch, skip, write

QUIET = 2.2  # seconds after which a change of a directory shows in its times, for which the walk waits

WALK = """
import os, sys
for top, dirs, files in os.walk(sys.argv[1]):
    for name in files:
        st = os.lstat(os.path.join(top, name))
"""


def files_below(root):
    paths = [os.path.join(top, name) for top, _, files in os.walk(root) for name in files]
    return [path for path in paths if os.path.isfile(path) and not os.path.islink(path)]


def calm(root):
    """Reads all: later reads then leave atime alone (relatime). And writes all back, so that blocks stay as they are."""
    time.sleep(0.02)  # more than a tick of the clock that times are taken from
    for path in files_below(root):
        e2e.bytes_in(path)
    os.sync()


def fill(root):
    """A tree with all kinds of names and files; their contents are on the disk, so that st_blocks stays as it is."""
    for i in range(40):
        write(f"{root}/a/f{i}", bytes(i * 300), 0o640 if i % 3 else 0o444)
        write(f"{root}/b/deep/er/g{i}", bytes(i))
    for name in (b"\xff\xfe", b"new\nline", b"sp ace", b"-n", b"x" * 255, b"..x", b"...", b"*"):
        write(os.path.join(os.fsencode(root), b"odd", name))
    os.makedirs(f"{root}/empty")
    os.symlink("f1", f"{root}/a/link")
    os.symlink("nowhere", f"{root}/a/dangling")
    os.symlink("../a", f"{root}/b/to-a")
    os.symlink("../b", f"{root}/b/deep/loop")
    os.symlink("../../..", f"{root}/b/deep/er/out")
    os.mkfifo(f"{root}/a/fifo")
    os.link(f"{root}/a/f2", f"{root}/b/hard")
    old = 1_000_000_000_123_456_789
    for path in files_below(root):
        os.utime(path, ns=(old, -old if path.endswith("f3") else old))
    os.utime(f"{root}/a/f9", (10**10, 10**10 + 0.5))  # 64 bits of nanoseconds do not tell it
    calm(root)


class Data:
    """A dataset and a job in which all of it is placed and listed."""

    def __init__(self, name, slow=False, fs=()):
        self.source = self.root = f"{scratch()}/{name}"
        os.makedirs(self.source)
        fill(self.source)
        self.fs = None
        if slow:
            self.fs = SlowFs(self.source, f"{scratch()}/{name}.pfs", *fs)
            self.root = self.fs.mount
        time.sleep(QUIET)
        self.job = e2e.Job(options([self.root], {"t": (scratch(f"{name}.tier"), "1G")}))
        self.job.run(e2e.read_all(self.root))
        self.settle()

    def settle(self):
        """Waits until the walk has ended: then opens of what is not there do not ask the agent."""
        # Another name each time: one that was asked for before is known.
        text = "import os, sys\ntry: os.open(sys.argv[1], os.O_RDONLY)\nexcept OSError: pass"
        names = (f"{self.root}/absent{i}" for i in itertools.count())
        def absent():
            before = self.job.now()["fallbacks"]["absent"]
            self.job.run([PYTHON, "-c", text, next(names)])
            return self.job.now()["fallbacks"]["absent"] > before
        e2e.wait_until(absent)

    def served(self):
        """How many calls Monarch has answered."""
        return self.job.now()["meta_served"]

    def both(self, name, command, served):
        """The command natively and in the job; at least so many calls were `served` by Monarch."""
        native, before = e2e.execute(command), self.served()
        got = self.job.run(command)
        answered = self.served() - before
        equal(got[0], native[0], f"{name}: exit code as natively", got[2], native[2])
        lines = [(a, b) for a, b in zip(native[1].split(b"\n"), got[1].split(b"\n")) if a != b]
        ok(got[1] == native[1] and native[1], f"{name}: as natively", *lines[:5], got[2], native[2])
        ok(answered >= served, f"{name}: answered", f"{answered} answered, wanted {served}")


# ---- values

# Prints what each call says of each path, all bytes of the result.
VALUES = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def show(name, what, call, size):
    room = ctypes.create_string_buffer(b"\\xee" * size, size)
    ctypes.set_errno(0)
    rc = call(room)
    print(name, what, rc, ctypes.get_errno() if rc else 0, room.raw.hex() if rc == 0 else "")
STAT, STATX, FDCWD, NOFOLLOW, EACCESS = 144, 256, -100, 0x100, 0x200
def ask(path, name, dirfd=FDCWD):
    if dirfd == FDCWD:
        for f in ("stat", "stat64", "lstat", "lstat64"):
            show(name, f, lambda room: getattr(libc, f)(path, room), STAT)
        for f in ("__xstat", "__xstat64", "__lxstat", "__lxstat64"):
            for version in (1, 3):
                show(name, f, lambda room: getattr(libc, f)(version, path, room), STAT)
        for f in ("access", "euidaccess", "eaccess"):
            for mode in range(8):
                show(name, f, lambda room: getattr(libc, f)(path, mode), 1)
        show(name, "EFAULT", lambda room: libc.stat(path, None), 1)
    for flags in (0, NOFOLLOW, 0x800, 0x1000, 0x40000):
        for f in ("fstatat", "fstatat64"):
            show(name, f, lambda room: getattr(libc, f)(dirfd, path, room, flags), STAT)
        show(name, "__fxstatat", lambda room: libc.__fxstatat(1, dirfd, path, room, flags), STAT)
    for mode in (0, 4, 2, 1):
        for flags in (0, NOFOLLOW, EACCESS):
            show(name, "faccessat", lambda room: libc.faccessat(dirfd, path, mode, flags), 1)
    for flags in (0, NOFOLLOW, 0x2000, 0x4000, 0x1000):
        for mask in (0x7ff, 1, 0x200, 0xfff, 0x17ff):
            show(name, "statx", lambda room: libc.statx(dirfd, path, flags, mask, room), STATX)
root = os.fsencode(sys.argv[1])
os.chdir(sys.argv[1] + "/a")
names = [b"a/" + os.fsencode(f"f{i}") for i in range(0, 40, 7)]
names += [b"a", b"", b"a/link", b"a/dangling", b"b/to-a/f1", b"b/hard", b"a/fifo", b"absent", b"a/absent", b"a/f1/", b"a/f1/x",
          b"a/../a/f1", b"./a//f2", b"b/deep/er/g3", b"empty", b"a/f0", b"a/f3", b"a/f9"]
names += [b"odd/" + n for n in os.listdir(root + b"/odd")]
for n in names: ask(root + b"/" + n, n)
for n in (b"f1", b"./f2", b"../a/f1", b"../b/hard", b"link", b"absent", b"."): ask(n, b"relative " + n)
fd = os.open(root + b"/a", os.O_RDONLY)
for n in (b"f1", b"./f2", b"link", b"absent"): ask(n, b"at " + n, fd)
ask(b"f1", b"bad descriptor", 999)
"""


def each_file_system(test):
    """Decorates a test: it is called with the dataset, and with what that is on."""
    def run():
        for where, slow in ("a disk", False), ("slowfs", True):
            if slow and e2e.why_no_slowfs():
                skip(f"{test.__name__} on slowfs", e2e.why_no_slowfs())
            else:
                data = Data(f"{test.__name__}.{slow}", slow)
                test(data, where)
                data.job.end()
    run.__name__ = test.__name__
    return run


@e2e.unless(lambda: (ctypes.sizeof(ctypes.c_void_p) != 8 or os.uname().machine != "x86_64") and "struct stat is x86-64's here")
@each_file_system
def values(data, where):
    data.both(f"{where}: all that ask about a path", [PYTHON, "-c", VALUES, data.root], 500)


# ---- directories. Places in streams are model.t's.

STREAMS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Name(ctypes.Structure):
    _fields_ = [("ino", ctypes.c_uint64), ("off", ctypes.c_int64), ("reclen", ctypes.c_uint16), ("type", ctypes.c_uint8),
                ("name", ctypes.c_char * 256)]
NameP = ctypes.POINTER(Name)
for f in ("opendir", "fdopendir"): getattr(libc, f).restype = ctypes.c_void_p
for f in ("readdir", "readdir64"):
    getattr(libc, f).restype, getattr(libc, f).argtypes = NameP, [ctypes.c_void_p]
for f in ("readdir_r", "readdir64_r"): getattr(libc, f).argtypes = [ctypes.c_void_p, NameP, ctypes.POINTER(NameP)]
libc.telldir.restype, libc.telldir.argtypes = ctypes.c_long, [ctypes.c_void_p]
libc.seekdir.restype, libc.seekdir.argtypes = None, [ctypes.c_void_p, ctypes.c_long]
libc.rewinddir.restype, libc.rewinddir.argtypes = None, [ctypes.c_void_p]
libc.closedir.argtypes = libc.dirfd.argtypes = [ctypes.c_void_p]
libc.fdopendir.argtypes = [ctypes.c_int]
def shown(entry):
    return entry and (entry[0].ino, entry[0].reclen, entry[0].type, entry[0].name)
def opened(path):
    ctypes.set_errno(0)
    d = libc.opendir(path)
    if not d: print("opendir", path[-30:], ctypes.get_errno())
    return d
def name(d, f="readdir"):
    ctypes.set_errno(0)
    e = getattr(libc, f)(d)
    return shown(e) if e else (None, ctypes.get_errno())
def rest(d, f="readdir"):
    out = []
    while (n := name(d, f))[0] is not None: out.append(n)
    return out, n
root = os.fsencode(sys.argv[1])
"""

EACH = STREAMS + """
os.chdir(root + b"/a")
for path in (root, root + b"/", root + b"//.", root + b"/a", root + b"/a//", root + b"/./b/deep", root + b"/odd", root + b"/empty",
             b".", b"..", b"../b", b"", root + b"/absent", root + b"/a/f1", root + b"/a/f1/", root + b"/b/to-a", root + b"/a/dangling",
             root + b"/a/../b", os.path.dirname(root)):
    for f in ("readdir", "readdir64"):
        d = opened(path)
        if d: print(f, path[-30:], rest(d, f) if path != os.path.dirname(root) else "", name(d, f), libc.closedir(d))
d = opened(root + b"/a")
kept, result = Name(), NameP()
for f in ("readdir_r", "readdir64_r") * 30:
    print(f, getattr(libc, f)(d, kept, result), shown(result) if result else None, bool(result) and ctypes.addressof(result[0]) == ctypes.addressof(kept))
print(libc.closedir(d), libc.opendir(None), ctypes.get_errno())
"""

DESCRIPTORS = STREAMS + """
import fcntl
def state(fd):
    st = os.fstat(fd)
    return st.st_ino, oct(fcntl.fcntl(fd, fcntl.F_GETFL)), fcntl.fcntl(fd, fcntl.F_GETFD), os.readlink(f"/proc/self/fd/{fd}") == sys.argv[1] + "/a"
d = opened(root + b"/a")
print(rest(d))
fd = libc.dirfd(d)
print(state(fd), libc.dirfd(d) == fd, rest(d))
os.fchdir(fd)
print(os.fsencode(os.getcwd()) == root + b"/a", os.stat("f1", dir_fd=fd).st_ino, libc.closedir(d), os.path.exists(f"/proc/self/fd/{fd}"))
os.chdir("/")
fd = os.open(root + b"/a", os.O_RDONLY | os.O_DIRECTORY)
os.set_inheritable(fd, True)
d = libc.fdopendir(fd)
print(libc.dirfd(d) == fd, state(fd), rest(d), libc.rewinddir(d), len(rest(d)[0]), libc.closedir(d), os.path.exists(f"/proc/self/fd/{fd}"))
for flags in (os.O_PATH, os.O_RDONLY):
    fd = os.open(root + b"/a/f1", flags)
    print("not a directory", libc.fdopendir(fd), ctypes.get_errno())
fd = os.open(root + b"/a", os.O_PATH)
print("O_PATH", bool(libc.fdopendir(fd)), libc.fdopendir(-1), ctypes.get_errno())
import resource
soft = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (20, soft[1]))
held = []
while (d := opened(root + b"/a")): held.append(d)
print("all descriptors", {len(rest(d)[0]) for d in held}, {libc.closedir(d) for d in held})
"""

# By the function of libc itself, as in a library that was opened with RTLD_DEEPBIND.
PAST_US = STREAMS + """
import signal
signal.alarm(60)
own = ctypes.CDLL("libc.so.6", use_errno=True)
own.readdir.restype, own.readdir.argtypes = NameP, [ctypes.c_void_p]
d = opened(root + b"/a")
ctypes.set_errno(0)
print(bool(own.readdir(d)), ctypes.get_errno() == 9, name(d)[0] is not None, libc.closedir(d))
"""


@each_file_system
def directories(data, where):
    for name, text, served in (("names", EACH, 15), ("descriptors", DESCRIPTORS, 10)):
        if e2e.SANITIZER and name == "names":
            skip(name, "sanitizers' own opendir does not take what libc's does")
        else:
            data.both(f"{where}: {name}", [PYTHON, "-c", text, data.root], served)
    equal(data.job.run([PYTHON, "-c", PAST_US, data.root])[:2], (0, b"False True True 0\n"),
          "libc's own readdir of a stream of ours: EBADF, and no end of waiting")


# ---- what the PFS is asked for

PFS_CALLS = ("lookup", "getattr", "opendir", "readdir", "open")


@e2e.unless(e2e.why_no_slowfs)
def calls_to_pfs():
    directories, files, ttl = 30, 40, 8  # seconds in which the kernel does not ask again: one walk takes less
    source = scratch("calls")
    for d in range(directories):
        for f in range(files):
            write(f"{source}/d{d:02}/sub/f{f}", b"x" * f)
    calm(source)
    fs = SlowFs(source, f"{scratch()}/calls.pfs", "--attr-ttl", str(ttl))
    time.sleep(QUIET)
    total = 2 * directories + 1
    walks = {"python": [PYTHON, "-c", WALK, fs.mount], "find": ["find", fs.mount, "-type", "f", "-size", "+99999"],
             "ls": ["ls", "-RU", fs.mount]}
    for keys, names in (({}, list(walks)), ({"metadata": "pass"}, ["python"]), ({"consistency": "open"}, ["python"])):
        words = options([fs.mount], {"t": (scratch("calls.tier"), "1G")})
        job = e2e.Job([*words, *(config(**keys) if keys else [])])
        job.run(e2e.read_all(fs.mount))
        for name in names:
            want = e2e.execute(walks[name])[:2]
            time.sleep(ttl + 0.5)
            fs.command("reset")
            got = job.run(walks[name])
            counters = fs.counters()
            asked = sum(counters[call] for call in PFS_CALLS)
            equal(got[:2], want, f"{name}, {keys}: as natively", got[2])
            # find and ls ask for the directory's descriptor, which takes an open of it; so does ThreadSanitizer.
            bound = 2 * total if name in ("find", "ls") or "tsan" in e2e.SANITIZER else total
            if keys:
                ok(asked >= directories * files, f"{name}, {keys}: the PFS is asked for each file", counters)
            else:
                ok(asked <= bound and counters["readdir"] == 0,
                   f"{name}: {total} directories with {directories * files} files cost the PFS no more than {bound} calls",
                   counters)
        tasks = job.end()["tasks"]
        ok(tasks["meta_pfs"] > directories * files and tasks["meta_served"] == 0
           if keys else tasks["meta_served"] > 2 * directories * files,
           f"{keys}: counted", tasks)
    fs.close()


# ---- changes

# Does what the arguments say, one after the other, and shows the directory before and after, by the path and by a stream
# that is rewound.
CHANGE = STREAMS + """
root = sys.argv[1]
def show(top):
    out = []
    for e in sorted(os.scandir(top), key=lambda e: e.name):
        st = os.lstat(top + "/" + e.name)
        out.append((e.name, e.inode() == st.st_ino, e.is_symlink(), e.is_dir(), st.st_size, st.st_nlink, oct(st.st_mode)))
    return out
"""
STREAM = "\nstream = opened(os.fsencode(root) + b'/a'); print(sorted(n[3] for n in rest(stream)[0]))\n"
REWOUND = "\nlibc.rewinddir(stream); print(sorted(n[3] for n in rest(stream)[0]))\n"
STEPS = [
    "open(root + '/a/new', 'w').close()", "os.close(os.open(root + '/a/new2', os.O_CREAT | os.O_EXCL | os.O_WRONLY))",
    "os.mkdir(root + '/a/dir')", "os.symlink('f1', root + '/a/sym')", "os.mkfifo(root + '/a/pipe')",
    "os.mknod(root + '/a/node')", "os.link(root + '/a/f4', root + '/a/linked')", "os.unlink(root + '/a/f5')",
    "os.remove(root + '/a/f6')", "os.rename(root + '/a/f7', root + '/a/renamed')", "os.rename(root + '/a/f8', root + '/a/f9')",
    "os.rename(root + '/a/f10', root + '/b/moved')", "os.rmdir(root + '/a/dir')", "os.rename(root + '/b/deep', root + '/a/deeper')",
    "open(root + '/a/f11', 'w').write('other')", "os.truncate(root + '/a/f12', 5)", "os.chmod(root + '/a/f13', 0o600)",
    "os.utime(root + '/a/f14', (5, 6))", "os.replace(root + '/a/f15', root + '/a/f16')", "os.unlink(root + '/a/link')",
    "os.makedirs(root + '/c/d/e')", "os.rename(root + '/a/deeper', root + '/b/deep')",
    "os.symlink('../a', root + '/b/other-a')", "os.unlink(root + '/b/other-a/f17')", "os.rmdir(root + '/empty')",
    # A symbolic link, by other names of its path.
    "os.symlink('elsewhere', root + '/b/to-a/n'); os.rename(root + '/b/to-a/n', root + '/b/to-a/dangling')",
    "os.rename(root + '/b/../a/dangling', root + '/a/also dangling')",
]


def changes():
    """By the program itself, by others in the job, and by others that Monarch does not see."""
    show = "\nfor top in ('', '/a', '/b'): print(show(root + top))\n"
    # What the file was stays known where others changed it unseen; the directory is what counts.
    names = "\nfor top in ('', '/a', '/b'): print(sorted(os.listdir(root + top)))\n"
    for who, slow in ("itself", False), ("another", False), ("unseen", True):
        if slow and e2e.why_no_slowfs():
            skip("changes on slowfs", e2e.why_no_slowfs())
            continue
        seen = []
        for run_natively in True, False:
            data = Data(f"changes.{who}.{run_natively}", slow, fs=("--attr-ttl", "0"))
            before = data.served()
            run = e2e.execute if run_natively else data.job.run
            if who == "itself":
                got = [run([PYTHON, "-c", CHANGE + STREAM + show + "".join(f"{step}{show}" for step in STEPS) + REWOUND, data.root])[:2]]
            else:
                by, look = (run, show) if who == "another" else (e2e.execute, names)
                got = [(by([PYTHON, "-c", CHANGE + step, data.root])[0], *run([PYTHON, "-c", CHANGE + look, data.root])[:2])
                       for step in STEPS]
            seen.append(got)
            ok(run_natively or data.served() > before + 10, f"by {who}: some was answered")
            data.job.end()
            if data.fs:
                data.fs.close()
        ok(seen[0] == seen[1] and all(one[0] == 0 for one in seen[0]), f"by {who}: shows at once",
           *[pair for pair in zip(*seen) if pair[0] != pair[1]][:1])


@e2e.unless(e2e.why_not_ordinary)
def unreadable():
    """Errors are the PFS's, for a user to whom the dataset is not all open."""
    before = e2e.ORDINARY
    root, tier = scratch("unreadable"), scratch("unreadable.tier")
    fill(root)
    write(f"{root}/secret/f", b"x")
    write(f"{root}/noread/f", b"x")
    write(f"{root}/open/f", b"x")
    write(f"{root}/open/closed", b"x", 0o200)
    e2e.execute(["chown", "-R", "65534", root, tier] if before else ["true"])
    os.chmod(f"{root}/secret", 0o600)  # its names can be read, and no more
    os.chmod(f"{root}/noread", 0o100)
    time.sleep(QUIET)
    text = f"""
import os
root = {root!r}
def attempt(name, *words):
    try: print(name, words, getattr(os, name)(*words))
    except OSError as e: print(name, words, e.errno)
for top in ("secret", "noread", "open", "odd"):
    attempt("listdir", root + "/" + top)
    for name in ("f", "closed", "absent"):
        for f in ("stat", "lstat"): attempt(f, f"{{root}}/{{top}}/{{name}}")
        for mode in (os.F_OK, os.R_OK, os.W_OK, os.X_OK): attempt("access", f"{{root}}/{{top}}/{{name}}", mode)
"""
    command = [PYTHON, "-c", text]
    native = e2e.execute([*before, *command])
    job = e2e.Job(options([root], {"t": (tier, "1G")}), before=before)
    job.run([*before, "sh", "-c", f"find {root} -type f -exec cat {{}} + >/dev/null 2>&1; sleep 0.5"])
    equal(job.run([*before, *command])[:2], native[:2], "directories and files that are closed: as natively")
    ok(job.end()["tasks"]["meta_served"] > 0, "what is open was answered")


BECOMES = """
import ctypes, os, sys
libc, file, how = ctypes.CDLL(None), *sys.argv[1:]
def tell():
    try:
        st = os.stat(file)
        print(st.st_uid, st.st_gid, st.st_ino, os.access(file, os.R_OK))
    except OSError as e:
        print(e.errno)
tell()
if how == "user":
    os.seteuid(65534)
    tell()
    os.seteuid(0)
elif how == "namespace":
    print(libc.unshare(0x10000000))
tell()
"""


@e2e.unless(e2e.why_not_root, e2e.why_not_nobody)
def becomes_another():
    """A process is told what the PFS shows it also after it has become another user, or got a user namespace."""
    for how, before in ("user", []), ("namespace", e2e.NOBODY):
        name = f"becomes.{how}"
        root, tier = scratch(name), scratch(f"{name}.tier")
        write(f"{root}/d/f", b"x")
        os.chmod(f"{root}/d", 0o700 if how == "user" else 0o755)
        os.chmod(tier, 0o777)
        command = [PYTHON, "-c", BECOMES, f"{root}/d/f", how]
        native = e2e.execute([*before, *command])
        equal(native[0], 0, f"{name}: natively", native[2])
        job = e2e.Job(options([root], {"t": (tier, "1G")}), before=before)
        job.run([*before, "cat", f"{root}/d/f"])
        equal(job.run([*before, *command])[:2], native[:2], f"{name}: as natively")
        ok(job.end()["tasks"]["meta_served"] > 0, f"{name}: answered before")


e2e.main(values, directories, calls_to_pfs, changes, unreadable, becomes_another)
