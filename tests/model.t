#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""Three programs of a job, one call at a time, against an exact model of a file system: which bytes, sizes, types, times, names and errors
each call gives, by whatever path or descriptor, whoever changed the file since.  A seed makes a world: a directory with a few files, and the
calls on it.  The same seeds each time; with MONARCH_TEST_ALL=1 30,000 calls by new ones.  `tests/model.t SEED...` runs single worlds.

Left out is what doc/coverage.md has of copies' descriptors: one whose file changed, but has no name any more in the directory where it was
opened, or that was moved, or was changed by a program without the library, is closed (World.in_doubt); the inside of a stream is not read
after a change."""

import collections
import contextlib
import ctypes
import errno
import fcntl
import itertools
import marshal
import mmap
import os
import random
import stat
import struct
import subprocess
import sys
import time

import e2e
from e2e import BUILD, PYTHON, equal, ok, options, scratch

UNSEEN = {"watch_directories": 0}  # nothing tells the agent what the hooks miss
# What the job may keep, and how: (quota, configuration, whether all is read before, by what the programs are started).
KINDS = {
    "natively": None,
    "cold": ("1G", {**UNSEEN, "prefetch": "off"}, False, []),
    "placed": ("1G", {**UNSEEN, "stage_again": 1}, True, []),
    "in chunks": ("1G", {**UNSEEN, "stage_wait_max": "16K", "stage_wait": 0, "prefetch": "off"}, False, []),
    "full": ("300K", UNSEEN, False, []),
    "with an outsider": ("1G", {"consistency": "open"}, True, []),
    # Beside a wrapper that tells other times and owners; where statx(2) is refused.
    **({} if e2e.SANITIZER else {
        "beside": ("1G", UNSEEN, True, ["sh", "-c", 'LD_PRELOAD="$LD_PRELOAD:$0" exec "$@"', f"{BUILD}/tests/other_values.so"]),
        "filtered": ("1G", UNSEEN, True, [f"{BUILD}/tests/safety", "without statx"])}),
}
WORLDS, STEPS, TURNS, ALL_STEPS = 16, 60, 2, 30000
MEMBERS, OUTSIDER = 3, 3  # the job's programs; the number of one without the library
SLOTS, OWN = 4, -1  # descriptors that a program holds in a world; one that ends with a call
QUIET = 2.2  # seconds after which Monarch's walk keeps the names in a directory
PLAIN, PARTS, SENT, STREAM, CHILD = range(5)  # how a call is made
ANY = object()  # a value that the model does not know
READS, WRITES = os.O_RDONLY, os.O_WRONLY
LARGE = fcntl.fcntl(os.open("/", READS), fcntl.F_GETFL)  # the kernel's O_LARGEFILE
LIBC = ctypes.CDLL(None, use_errno=True)
for function in ("fopen", "opendir", "readdir"):
    getattr(LIBC, function).restype = ctypes.c_void_p
LIBC.telldir.restype = ctypes.c_long

# ---- the calls, by programs


class Dirent(ctypes.Structure):
    _fields_ = [("ino", ctypes.c_uint64), ("off", ctypes.c_int64), ("length", ctypes.c_uint16), ("type", ctypes.c_uint8), ("name", ctypes.c_char * 256)]


def checked(result):
    if result in (None, -1):
        raise OSError(ctypes.get_errno(), "")
    return result


def values(st):
    return (st.st_mode, st.st_size, st.st_nlink, st.st_mtime_ns, st.st_ino, st.st_dev, st.st_uid, st.st_gid, st.st_ctime_ns, st.st_blksize)


class Calls:
    """Those that are made of others, by programs and by the model."""

    def read_file(self, path, how):
        self.open(OWN, path, READS, how == STREAM)
        try:
            return self.map(OWN) if how == PARTS else self.read(OWN, 1 << 22, None, how)
        finally:
            self.close(OWN)

    def write_file(self, path, flags, data, at):
        self.open(OWN, path, flags, False)
        try:
            return self.write(OWN, data, at)
        finally:
            self.close(OWN)


class Program(Calls):
    """Makes calls of libc. Descriptors have numbers of the caller's, their slots; a call may take one or a path."""

    def __init__(self, altered=False):
        self.fds, self.streams, self.altered = {}, {}, altered
        self.filtered = LIBC.statx(-100, b"/", 0, 0x7ff, ctypes.create_string_buffer(256)) != 0

    def call(self, name, *words):
        """An error is its name. What has no method is a function of os."""
        try:
            return getattr(self, name)(*words) if hasattr(self, name) else getattr(os, name)(self.where(words[0]), *words[1:])
        except OSError as error:
            return errno.errorcode[error.errno]

    def where(self, slot):
        return self.fds[slot] if isinstance(slot, int) else slot

    def open(self, slot, path, flags, stream):
        if not stream:
            self.fds[slot] = os.open(path, flags, 0o666)
            return fcntl.fcntl(self.fds[slot], fcntl.F_GETFL)
        self.streams[slot] = ctypes.c_void_p(checked(LIBC.fopen(os.fsencode(path), b"re")))
        self.fds[slot] = LIBC.fileno(self.streams[slot])
        return LIBC.setvbuf(self.streams[slot], None, 2, 0) if slot != OWN else 0

    def close(self, slot):
        fd = self.fds.pop(slot)
        return checked(LIBC.fclose(self.streams.pop(slot))) if slot in self.streams else os.close(fd)

    def dup(self, slot, to, onto):
        self.fds[to] = os.dup2(self.fds[slot], self.fds[to]) if onto else os.dup(self.fds[slot])

    def read(self, slot, size, at, how):
        fd = self.fds[slot]
        if how == SENT:
            with open(os.memfd_create("out"), "rb") as out:
                return os.pread(out.fileno(), os.sendfile(out.fileno(), fd, at, size), 0)
        if how == CHILD:
            return subprocess.run(["head", "-c", str(size)], stdin=fd, stdout=subprocess.PIPE, check=True).stdout
        if how == STREAM:
            LIBC.clearerr(self.streams[slot])
            data = ctypes.create_string_buffer(size)
            return memoryview(data)[:LIBC.fread(data, 1, size, self.streams[slot])].tobytes()
        if how == PLAIN:
            return os.read(fd, size) if at is None else os.pread(fd, size, at)
        parts = [bytearray(size // 3), bytearray(size - size // 3)]
        got = os.readv(fd, parts) if at is None else os.preadv(fd, parts, at)
        return b"".join(parts)[:got]

    def map(self, slot):
        size = os.fstat(self.fds[slot]).st_size
        if not size:
            return b""
        with mmap.mmap(self.fds[slot], size, mmap.MAP_PRIVATE, mmap.PROT_READ) as m:
            return m[:]

    def store(self, slot, at, data):
        with mmap.mmap(self.fds[slot], at + len(data), mmap.MAP_SHARED) as m:
            m[at:] = data

    def write(self, slot, data, at):
        return os.write(self.fds[slot], data) if at is None else os.pwrite(self.fds[slot], data, at)

    def utime(self, where, mtime, follow):
        os.utime(self.where(where), ns=(0, mtime), **{} if follow else {"follow_symlinks": False})

    def stat(self, where, follow, how):
        data, is_slot = ctypes.create_string_buffer(256), isinstance(where, int)
        if how == PLAIN or self.filtered:
            got = values(os.stat(self.where(where), **{} if follow else {"follow_symlinks": False}))
        else:
            flags = 0x1000 if is_slot else 0 if follow else 0x100
            checked(LIBC.statx(self.fds[where] if is_slot else -100, b"" if is_slot else os.fsencode(where), flags, 0x7ff, data))
            st = struct.unpack("=IIQIIIHxxQQQQ" + "qIi" * 4 + "IIII", data.raw[:144])
            got = (st[6], st[8], st[3], st[20] * 10**9 + st[21], st[7], os.makedev(*st[25:27]), st[4], st[5], st[17] * 10**9 + st[18], st[1])
        return (*got[:3], got[3] - 1000 * 10**9, *got[4:6], got[6] ^ 1, *got[7:]) if self.altered else got

    def link_of(self, slot):
        return os.readlink(f"/proc/self/fd/{self.fds[slot]}")

    def list(self, path, first):
        """The names by a stream that goes to and fro."""
        def entries(most=1 << 20):
            found = (Dirent.from_address(p) for p in iter(lambda: LIBC.readdir(stream), None))
            return [(e.name.decode(), e.type == 4, e.type == 10, e.ino) for e in itertools.islice(found, most)]
        stream = ctypes.c_void_p(checked(LIBC.opendir(os.fsencode(path))))
        before, place, rest = entries(first), LIBC.telldir(stream), entries()
        LIBC.seekdir(stream, ctypes.c_long(place))
        again = entries()
        LIBC.rewinddir(stream)
        good = again == rest and entries() == before + rest
        checked(LIBC.closedir(stream))
        return sorted(e for e in before + rest if e[0] not in (".", "..")) if good else "other names by seekdir or rewinddir"

    def forked(self, *call):
        """A child does it."""
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            with open(write, "wb") as out:
                marshal.dump(self.call(*call), out)
            os._exit(0)
        os.close(write)
        with open(read, "rb") as results:
            got = marshal.load(results)
        return got if os.waitpid(pid, 0)[1] == 0 else "the child failed"

    def exchange(self, path, other):
        checked(LIBC.renameat2(-100, os.fsencode(path), -100, os.fsencode(other), 2))

    def link(self, path, other):
        os.link(path, other, follow_symlinks=False)

    def serve(self):
        with contextlib.suppress(EOFError):
            while True:
                marshal.dump(self.call(*marshal.load(sys.stdin.buffer)), sys.stdout.buffer)
                sys.stdout.buffer.flush()
        with contextlib.suppress(ChildProcessError):
            sys.exit(f"a child that nobody made: {os.waitpid(-1, os.WNOHANG)}")


class Elsewhere:
    """A Program in a process of its own."""

    def __init__(self, directory, wrapper, env):
        command = [*wrapper, PYTHON, "-B", os.path.abspath(__file__), "--program", *["altered"] * any("other_values" in word for word in wrapper)]
        self.process = e2e.start(command, env=env, cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def call(self, *call):
        marshal.dump(call, self.process.stdin)
        self.process.stdin.flush()
        return marshal.load(self.process.stdout)

    def end(self):
        self.process.stdin.close()
        code = self.process.wait(e2e.PATIENCE)
        e2e.end(self.process)
        return code


# ---- the model


class Path(str):
    """One below a world's directory."""


class Node:
    """`data`: a file's bytes, a directory's nodes by name, or where a link leads."""

    def __init__(self, data, mode):
        self.data, self.mode, self.links, self.mtime = data, mode, 1, None
        self.is_file, self.is_directory, self.is_link = (isinstance(data, kind) for kind in (bytearray, dict, str))
        self.changes = self.moves = self.outside = 0  # of bytes and attributes; of names; those of either by a program without the library
        self.freed = False  # a call was about to take its last name


class Open:
    def __init__(self, node, place, chain, flags, stream):
        self.node, self.place, self.chain, self.flags, self.stream, self.at, self.followed = node, place, chain, flags, stream, 0, False
        self.moves, self.outside, self.changes = node.moves, node.outside, node.changes
        self.reads, self.writes = flags & os.O_ACCMODE != WRITES, flags & os.O_ACCMODE != READS


def refuse_if(condition, error):
    if condition:
        raise OSError(error, "")


class Model(Calls):
    """What each of Program's calls gives. `base`: the directory, of which only the kernel knows inode numbers and the time now. `births`:
    whether times of birth are told; `lists`: whether the walk keeps lists of directories, by which a renamed one is found."""

    def __init__(self, base, births, lists):
        self.base, self.births, self.lists, self.root, self.slots = base, births, lists, Node({}, 0o755), collections.defaultdict(dict)
        self.touched, self.who = [], None  # by the last call: nodes; which program's it was

    def call(self, who, name, *words):
        self.touched, self.who = [], who
        try:
            return getattr(self, name)(*words)
        except OSError as error:
            if name in ("rename", "unlink"):
                self.is_freed(words[-1])
            return errno.errorcode[error.errno]

    def is_freed(self, path):
        with contextlib.suppress(OSError):
            self.existing(path, False).freed = True

    def paths(self, node=None, before=""):
        for name, below in (node or self.root).data.items():
            yield Path(before + name), below
            if below.is_directory:
                yield from self.paths(below, f"{before}{name}/")

    def path_of(self, node):
        return next((path for path, found in self.paths() if found is node), None if node is not self.root else "")

    def find(self, path, follow=True):
        """The directory, the name and what it leads to, if anything."""
        above, parts, links = [self.root], path.split("/"), 0
        while True:
            name = parts.pop(0)
            refuse_if(not above[-1].is_directory, errno.ENOTDIR)
            node = above[-1].data.get(name)
            if name == "..":
                above.pop()
            elif node and node.is_link and (follow or parts):
                links += 1
                refuse_if(links > 40, errno.ELOOP)
                parts = node.data.split("/") + parts
            elif not parts:
                self.touched += [node] if node else []
                return above[-1], name, node
            else:
                refuse_if(not node, errno.ENOENT)
                above.append(node)

    def chain(self, path):
        """The directories that lead there, of a path without links."""
        nodes = [self.root]
        for name in filter(None, path.split("/")):
            nodes.append(nodes[-1].data[name])
        return nodes

    def found(self, path, follow=False):
        directory, name, node = self.find(path, follow)
        refuse_if(not node, errno.ENOENT)
        return directory, name, node

    def existing(self, where, follow=True):
        return self.used(where).node if isinstance(where, int) else self.found(where, follow)[2]

    def changed(self, node, mtime=None):
        node.mtime = mtime
        node.changes += 1
        node.outside += self.who == OUTSIDER

    def moved(self, node):
        node.moves += 1
        node.outside += self.who == OUTSIDER
        for below in node.data.values() if node.is_directory else ():
            self.moved(below)

    def put(self, directory, name, node):
        directory.data[name], directory.mtime = node, None
        self.touched.append(node)

    def put_new(self, path, node):
        directory, name, there = self.find(path, False)
        refuse_if(there, errno.EEXIST)
        self.put(directory, name, node)

    def take(self, directory, name, node):
        del directory.data[name]
        directory.mtime = None
        node.links -= 1
        self.moved(node)

    # -- descriptors

    def slot(self, number):
        found = self.slots[self.who][number]
        self.touched.append(found.node)
        return found

    def used(self, slot):
        """Of a call by which a copy's descriptor follows a change."""
        o = self.slot(slot)
        o.followed |= o.changes != o.node.changes and self.is_reached(o)
        return o

    def is_reached(self, o):
        """Whether its file can be found: in a directory that is in the same ones as then."""
        paths = [os.path.split(path) for path, node in self.paths() if node is o.node]
        as_then = o.place in paths and (self.births or not o.node.freed)
        places = [(directory, self.chain(directory)) for directory, _ in paths]
        return as_then or not o.node.freed and any(chain == o.chain and (self.lists or directory == o.place[0]) for directory, chain in places)

    def open(self, slot, path, flags, stream):
        directory, name, node = self.find(path, not flags & (os.O_NOFOLLOW | os.O_EXCL))
        if not node:
            refuse_if(not flags & os.O_CREAT, errno.ENOENT)
            node = Node(bytearray(), 0o666)
            self.put(directory, name, node)
        above = self.path_of(directory)
        o = Open(node, (above, name), self.chain(above), flags, stream)
        refuse_if(node.is_link, errno.ELOOP)
        refuse_if(node.is_directory and (o.writes or flags & os.O_CREAT), errno.EISDIR)
        refuse_if(not node.is_directory and flags & os.O_DIRECTORY, errno.ENOTDIR)
        if flags & os.O_TRUNC:
            node.data.clear()
            self.changed(node)
        self.slots[self.who][slot] = o
        return 0 if stream else flags & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC) | LARGE

    def close(self, slot):
        return 0 if self.slots[self.who].pop(slot).stream else None

    def dup(self, slot, to, _):
        self.slots[self.who][to] = self.slot(slot)

    def read(self, slot, size, at, how):
        o = self.used(slot)
        if how == STREAM and o.node.is_directory:
            return b""
        refuse_if(not o.reads, errno.EBADF)
        refuse_if(o.node.is_directory, errno.EISDIR)
        start = o.at if at is None else at
        data = bytes(o.node.data[start:start + size])
        o.at += len(data) if at is None else 0
        return data

    def map(self, slot):
        o = self.used(slot)
        refuse_if(o.node.is_directory, errno.ENODEV)
        return bytes(o.node.data)

    def lseek(self, slot, by, whence):
        o = self.used(slot)
        at = by + (0, o.at, len(o.node.data))[whence]
        refuse_if(at < 0, errno.EINVAL)
        o.at = at
        return at

    def put_bytes(self, node, data, at):
        node.data.extend(bytes(max(0, at - len(node.data))))
        node.data[at:at + len(data)] = data
        self.changed(node)

    def store(self, slot, at, data):
        self.put_bytes(self.slot(slot).node, data, at)

    def write(self, slot, data, at):
        o = self.slot(slot)
        refuse_if(not o.writes, errno.EBADF)
        start = len(o.node.data) if o.flags & os.O_APPEND else o.at if at is None else at
        self.put_bytes(o.node, data, start)
        o.at = start + len(data) if at is None else o.at
        return len(data)

    def link_of(self, slot):
        return f"{self.base}/{self.path_of(self.slot(slot).node)}"

    # -- paths, or descriptors

    def stat(self, where, follow, _):
        node = self.existing(where, follow)
        path = self.path_of(node)
        kind = stat.S_IFREG if node.is_file else stat.S_IFDIR if node.is_directory else stat.S_IFLNK
        if path is None or isinstance(where, int) and not (self.slot(where).followed or self.is_reached(self.slot(where))):
            kernels = [ANY] * 10
        else:
            kernels = values(os.lstat(f"{self.base}/{path}"))
        size, links = kernels[1:3] if node.is_directory else (len(node.data), ANY if kernels[2] is ANY else node.links)
        return (kind | node.mode, size, links, kernels[3] if node.mtime is None else node.mtime, *kernels[4:])

    def access(self, path, mode):
        with contextlib.suppress(OSError):
            node = self.existing(path)
            return mode != os.X_OK or not node.is_file or node.mode & 0o111 != 0
        return False

    def readlink(self, path):
        node = self.existing(path, False)
        refuse_if(not node.is_link, errno.EINVAL)
        return node.data

    def list(self, path, _):
        node = self.existing(path)
        refuse_if(not node.is_directory, errno.ENOTDIR)
        with os.scandir(f"{self.base}/{self.path_of(node)}") as entries:
            inodes = {e.name: e.inode() for e in entries}
        return sorted((name, n.is_directory, n.is_link, inodes.get(name)) for name, n in node.data.items())

    def forked(self, name, *words):
        return getattr(self, name)(*words)

    def truncate(self, where, size):
        refuse_if(isinstance(where, int) and not self.slot(where).writes, errno.EINVAL)
        node = self.existing(where)
        refuse_if(node.is_directory, errno.EISDIR)
        del node.data[size:]
        self.put_bytes(node, b"", size)

    def chmod(self, where, mode):
        node = self.existing(where)
        node.mode = mode
        self.changed(node, node.mtime)

    def utime(self, where, mtime, follow):
        self.changed(self.existing(where, follow), mtime)

    # -- names

    def is_below(self, above, node):
        return node is above or above.is_directory and any(self.is_below(child, node) for child in above.data.values())

    def rename(self, path, other):
        self.two_names(path, other, False)

    def exchange(self, path, other):
        self.two_names(path, other, True)

    def two_names(self, path, other, exchange):
        old, new = self.find(path, False), self.find(other, False)
        node, target = old[2], new[2]
        refuse_if(not node or exchange and not target, errno.ENOENT)
        refuse_if(node.is_directory and self.is_below(node, new[0]), errno.EINVAL)
        refuse_if(target and target.is_directory and self.is_below(target, old[0]), errno.EINVAL if exchange else errno.ENOTEMPTY)
        if node is target:
            return self.is_freed(other)
        if target and not exchange:
            refuse_if(node.is_directory and not target.is_directory, errno.ENOTDIR)
            refuse_if(target.is_directory and not node.is_directory, errno.EISDIR)
            refuse_if(target.is_directory and target.data, errno.ENOTEMPTY)
        if target:
            self.take(*new)
        self.take(*old)
        node.links += 1
        self.put(*new[:2], node)
        if exchange:
            target.links += 1
            self.put(*old[:2], target)

    def link(self, path, other):
        node = self.existing(path, False)
        refuse_if(self.find(other, False)[2], errno.EEXIST)
        refuse_if(node.is_directory, errno.EPERM)
        self.put_new(other, node)
        node.links += 1
        node.outside += self.who == OUTSIDER

    def unlink(self, path):
        found = self.found(path)
        refuse_if(found[2].is_directory, errno.EISDIR)
        self.take(*found)

    def rmdir(self, path):
        found = self.found(path)
        refuse_if(not found[2].is_directory, errno.ENOTDIR)
        refuse_if(found[2].data, errno.ENOTEMPTY)
        self.take(*found)

    def symlink(self, target, path):
        self.put_new(path, Node(target, 0o777))

    def mkdir(self, path, mode):
        self.put_new(path, Node({}, mode))


# ---- what is done


def same(got, want):
    if isinstance(want, tuple) and isinstance(got, tuple):
        return len(got) == len(want) and all(map(same, got, want))
    return want is ANY or got == want


def shown(value):
    if isinstance(value, bytes) and len(value) > 4:
        return f"<{len(value)} bytes, {value[:4].hex()}...>"
    return f"({', '.join(map(shown, value))})" if isinstance(value, (tuple, list)) else "any" if value is ANY else repr(value)


def different(got, want):
    if not isinstance(want, bytes) or not isinstance(got, bytes):
        return f"got:  {shown(got)}", f"want: {shown(want)}"
    at = next((i for i, pair in enumerate(zip(got, want)) if pair[0] != pair[1]), min(len(got), len(want)))
    return f"got {len(got)} bytes, want {len(want)}; from {at} on: {got[at:at + 8].hex()}, want {want[at:at + 8].hex()}",


class World:
    """A directory of its own, and what a seed does there."""

    def __init__(self, kind, dataset, seed, number):
        self.dataset, self.seed, self.numbers, self.slots = dataset, seed, random.Random(seed), range(number * SLOTS, (number + 1) * SLOTS)
        lists = not KINDS[kind] or not {"prefetch", "consistency"} & set(KINDS[kind][1])
        self.model, self.outsider, self.log, self.failed = Model(f"{dataset}/w{seed}", kind != "filtered", lists), kind == "with an outsider", [], []
        self.changed = []  # paths of the calls that change some
        os.mkdir(self.model.base, 0o755)
        program = Program()
        for call in self.first_calls():
            if not same(program.call(*self.spelled(call)), self.model.call(0, *call)):
                raise RuntimeError(f"{call} does not make what the model has")

    def first_calls(self):
        for path in ("d0", "d0/d1"):
            yield "mkdir", Path(path), 0o755
        for i in range(7):
            path = Path(("", "d0/", "d0/d1/")[i % 3] + f"f{i // 2}")
            size = 2200000 if i == 5 else self.below(60000)
            yield "write_file", path, WRITES | os.O_CREAT, self.numbers.randbytes(size + 1), 0
            if i == 6:
                yield "truncate", path, 0
            yield "utime", path, 10**18 + i * 10**9 + 7, True
        for target, path in (("f0", "l0"), ("d0", "l1"), ("nowhere", "l2"), ("d1/../f0", "d0/l0")):
            yield "symlink", target, Path(path)
        yield "link", Path("f1"), Path("d0/f3")

    # -- choices

    def below(self, n):
        return self.numbers.randrange(n)

    def path(self, wanted=lambda node: True):
        """One that exists and is so, or that a change just had, or a new one."""
        paths = dict(self.model.paths())
        found = [path for path, node in paths.items() if wanted(node)]
        which = self.below(10)
        if which and found + self.changed:
            return self.numbers.choice(self.changed[-4:] if self.changed and (which > 5 or not found) else found)
        return self.new()

    def new(self):
        directories = [f"{path}/" for path, node in self.model.paths() if node.is_directory]
        return Path(self.numbers.choice(["", "f0/", "x/", "l1/", *directories]) + self.numbers.choice("fffdl") + str(self.below(4)))

    def file(self):
        """Or a link, perhaps to one."""
        return self.path(lambda node: not node.is_directory)

    def directory(self):
        return self.path(lambda node: node.is_directory)

    def spelled(self, call):
        """As a program is told: paths in one of the ways to write them."""
        def spell(word):
            world = f"w{self.seed}/"
            before = (f"{self.dataset}/", f"{self.dataset}//", f"{self.dataset}/./", f"{self.dataset}/{world}../", "")[self.log and self.below(5) or 0]
            return f"{before}{world}{word}" if isinstance(word, Path) else word
        return [spell(word) for word in call]

    def size(self):
        return 1 + self.below(5000 if self.below(3) else 1 << 17)

    def place(self):
        return self.below(70000 if self.below(4) else 2300000)

    def data(self):
        return self.numbers.randbytes(1 + self.below(3000))

    def mtime(self):
        return 10**18 + self.below(10**9) * 10**6

    def one_of(self, *calls):
        """Of (weight, function) pairs."""
        return self.numbers.choices([call for _, call in calls], [weight for weight, _ in calls])[0]()

    def open_call(self, slot):
        flags = self.numbers.choice([READS] * 20 + [os.O_NONBLOCK, os.O_RDWR, WRITES | os.O_APPEND, os.O_RDWR | os.O_CREAT,
                                                    WRITES | os.O_CREAT | os.O_TRUNC, os.O_NOFOLLOW, os.O_DIRECTORY])
        path = self.path() if flags & (os.O_NOFOLLOW | os.O_DIRECTORY) or self.below(20) == 0 else self.file()
        return self.one_of((3, lambda: ("open", slot, path, flags, False)), (1, lambda: ("open", slot, path, READS, True)))

    def slot_call(self, who):
        """By one of a program's descriptors, which is opened where it is closed."""
        held = self.model.slots[who]
        touched = set().union(*(nodes for _, nodes, _ in self.log[-4:]))
        recent = [slot for slot in self.slots if slot in held and id(held[slot].node) in touched]
        slot = self.numbers.choice(recent if recent and self.below(2) else self.slots)
        o = held.get(slot)
        if not o:
            return self.open_call(slot)
        if self.in_doubt(o) or self.below(9) == 0:
            return "close", slot
        if o.node.is_directory:
            return self.numbers.choice((("stat", slot, True, PLAIN), ("stat", slot, True, PARTS), ("read", slot, 10, None, PLAIN), ("chmod", slot, 0o755)))
        has_name, has_data = o.moves == o.node.moves and not o.node.freed, len(o.node.data) > 3
        may_change = self.model.is_reached(o) or o.followed or o.writes
        return self.one_of(
            (5, lambda: ("read", slot, self.size(), self.numbers.choice((None, self.place())), self.below(3))),
            (3, lambda: ("stat", slot, True, self.below(2))), (1, lambda: ("lseek", slot, self.below(80000) - 20000, self.below(3))),
            (1, lambda: self.dup_call(who, slot)), (1, lambda: ("forked", "read", slot, self.size(), None, PLAIN)),
            (1, lambda: ("forked", "stat", slot, True, PLAIN)), (1, lambda: ("truncate", slot, self.below(40000))),
            (may_change, lambda: ("chmod", slot, self.numbers.choice((0o600, 0o644)))), (may_change, lambda: ("utime", slot, self.mtime(), True)),
            (2 * (o.stream and (o.followed or o.changes == o.node.changes)), lambda: ("read", slot, self.size(), None, STREAM)),
            (0.3 * o.reads, lambda: ("read", slot, self.size(), None, CHILD)), (2 * (o.reads and has_data), lambda: ("map", slot)),
            (has_name and o.node.links == 1, lambda: ("link_of", slot)),
            (9 * o.writes, lambda: ("write", slot, self.data(), self.numbers.choice((None, self.place())))),
            (2 * (o.reads and o.writes and has_data), lambda: ("store", slot, self.below(len(o.node.data) - 2), b"st")))

    def dup_call(self, who, slot):
        to = self.numbers.choice(self.slots)
        onto = self.model.slots[who].get(to)
        streams = self.model.slots[who][slot].stream or onto and onto.stream
        return ("stat", slot, True, PLAIN) if to == slot or streams else ("dup", slot, to, onto is not None)

    def in_doubt(self, o):
        """Of a descriptor of a copy whose file was changed, and can't be followed."""
        if o.writes or o.followed or o.node.is_directory:
            return False
        return o.outside != o.node.outside or (o.changes != o.node.changes and not self.model.is_reached(o))

    def path_call(self):
        return self.one_of(
            (4, lambda: ("read_file", self.file(), self.numbers.choice((PLAIN, PARTS, STREAM)))), (1, lambda: ("forked", "read_file", self.path(), PLAIN)),
            (3, lambda: ("stat", self.path(), self.below(3) > 0, self.below(2))), (2, lambda: ("list", self.directory(), self.below(6))),
            (1, lambda: ("access", self.path(), self.numbers.choice((0, 1, 4, 6)))), (1, lambda: ("readlink", self.path(lambda node: node.is_link))))

    def change_call(self):
        flags = WRITES | self.numbers.choice((0, os.O_APPEND, os.O_CREAT, os.O_CREAT | os.O_TRUNC))
        call = self.one_of(
            (6, lambda: ("write_file", self.file(), flags, self.data(), self.numbers.choice((None, self.place())))),
            (3, lambda: ("rename", self.file(), self.new())), (1, lambda: ("rename", self.path(), self.path())),
            (2, lambda: ("rename", self.directory(), self.new())), (1, lambda: ("exchange", self.path(), self.path())),
            (1, lambda: ("link", self.file(), self.new())), (1, lambda: ("unlink", self.path())), (2, lambda: ("truncate", self.file(), self.below(40000))),
            (1, lambda: ("symlink", self.numbers.choice(("f1", "d0", "d0/f1", "d0/../f2", "nowhere")), self.new())),
            (2, lambda: ("chmod", self.path(), self.numbers.choice((0o700, 0o755, 0o777)))),
            (2, lambda: ("utime", self.path(), self.mtime(), self.below(2) == 0)), (1, lambda: ("mkdir", self.new(), 0o755)),
            (1, lambda: ("rmdir", self.directory())))
        self.changed += [word for word in call if isinstance(word, Path)]
        return call

    def step(self, programs):
        if self.failed:
            return
        who, which = self.below(MEMBERS), self.below(100)
        if self.outsider and which > 91:
            who = OUTSIDER
        call = self.slot_call(who) if which < 50 else self.path_call() if which < 84 else self.change_call()
        want = self.model.call(who, *call)
        got = programs[who].call(*self.spelled(call))
        error = f" = {want}" if isinstance(want, str) else ""
        touched = set(map(id, self.model.touched))
        self.log.append((call, touched, f"{len(self.log) + 1}: {'ABC*'[who]} {shown(call)}{error}"))
        if not same(got, want):
            about = [line for _, others, line in self.log if touched & others or not touched]
            self.failed = [*about[-14:], *different(got, want)]


def play(kind, worlds):
    """All of a kind's worlds in one job, each in several turns, so that what was left alone is staged again."""
    dataset, job, wrapper = worlds[0].dataset, None, []
    if KINDS[kind]:
        quota, config, read, wrapper = KINDS[kind]
        job = e2e.Job(options([dataset], {"t": (scratch("tier"), quota)}, *e2e.config(**config)))
        if read:
            job.run(e2e.read_all(dataset))
    natively = e2e.native_environment()
    programs = [Elsewhere(dataset, wrapper, job.env if job else natively) for _ in range(MEMBERS)] + [Elsewhere(dataset, [], natively)]
    for _, world in itertools.product(range(TURNS), worlds):
        for _ in range(STEPS // TURNS):
            world.step(programs)
    equal([program.end() for program in programs], [0] * len(programs), f"{kind}: no program has children that it did not make")
    for world in worlds:
        if world.failed:
            ok(False, f"{kind}: seed {world.seed}", *world.failed)
    ok(not any(world.failed for world in worlds), f"{kind}: {sum(len(world.log) for world in worlds)} calls as in the model")
    return job.end() if job else None


def run():
    seeds = [int(word) for word in SEEDS] or range(1, 1 + WORLDS)
    if not SEEDS and os.environ.get("MONARCH_TEST_ALL"):
        first = random.SystemRandom().randrange(1 << 32)
        print(f"# seeds from {first} on", flush=True)
        seeds = range(first, first + ALL_STEPS // STEPS // (len(KINDS) - 1) + 1)
    made = {kind: [World(kind, scratch(f"{kind.replace(' ', '-')}.data"), seed, i) for i, seed in enumerate(seeds)] for kind in KINDS}
    newest = max(os.stat(directory).st_ctime for directory, _, _ in os.walk(scratch()))
    ok(e2e.wait_until(lambda: time.time() > newest + QUIET), "no directory was changed lately")
    counted = collections.Counter()
    for kind, worlds in made.items():
        if counters := play(kind, worlds):
            ok(counters["opens_tier"] + counters["tiers"][0]["read_bytes"] > 0, f"{kind}: the tier served some", counters)
            counted.update(counters["tasks"])
    for name in () if SEEDS else ("returned", "meta_served", "fallback_large", "fallback_no_fit", "waited_hits"):
        ok(counted[name] > 0, f"the calls met {name}", counted)


os.umask(0)
if sys.argv[1:2] == ["--program"]:
    Program(altered=len(sys.argv) > 2).serve()
else:
    SEEDS, sys.argv[1:] = sys.argv[1:], []  # e2e.main takes words for names of tests
    e2e.main(run)
