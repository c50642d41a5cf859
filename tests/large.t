#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""Large files, however they are read: the same bytes and positions as natively, each byte from the PFS once, and
nothing that was opened stays there for good."""
import os

import e2e
from e2e import equal, ok, options, scratch, skip

MIB = 1 << 20
SIZES = [5 * MIB + 3, 3 * MIB, 9 * MIB + 700000]
PREFETCH = ["on", "off"]

# A program's argument is the dataset; what it prints is compared.  `done` goes on until the end of each file.
COMMON = """
import hashlib, mmap, os, random, sys, threading
def sha(data): return hashlib.sha256(data).hexdigest()[:16]
def files(): return [f"{sys.argv[1]}/{i}" for i in range(len(os.listdir(sys.argv[1])))]
"""
WAYS = {
    "read": """
for n, path in zip((MIB, 100000, 8192), files()):
    fd, sum = os.open(path, os.O_RDONLY), hashlib.sha256()
    while data := os.read(fd, n): sum.update(data)
    print(sum.hexdigest(), os.lseek(fd, 0, os.SEEK_CUR), os.read(fd, 5))
""",
    "threads that share a descriptor": """
for path in files():
    fd, got = os.open(path, os.O_RDONLY), []
    def run():
        while data := os.read(fd, 65536): got.append(sha(data))
    threads = [threading.Thread(target=run) for _ in range(4)]
    for t in threads: t.start()
    for t in threads: t.join()
    print(sha("".join(sorted(got)).encode()), os.lseek(fd, 0, os.SEEK_CUR))
""",
    "processes that share a descriptor": """
for path in files():
    fd, (ours, theirs) = os.open(path, os.O_RDONLY), os.pipe()
    for _ in range(3):
        if os.fork() == 0:
            while data := os.read(fd, 65536): os.write(theirs, sha(data).encode() + b"\\n")
            os._exit(0)
    os.close(theirs)
    lines = open(ours).read().split()
    print(sha("".join(sorted(lines)).encode()), os.lseek(fd, 0, os.SEEK_CUR))
""",
    "sent": """
for n, path in zip((MIB, 1 << 30, 5000000), files()):
    fd, out = os.open(path, os.O_RDONLY), os.memfd_create("out")
    print(sha(os.read(fd, 1000)))
    while os.sendfile(out, fd, None, n): pass
    print(sha(os.pread(out, os.stat(out).st_size, 0)), os.lseek(fd, 0, os.SEEK_CUR))
    print([os.sendfile(out, fd, at, 7) for at in (0, 1000000, os.stat(fd).st_size - 3)], os.lseek(fd, 0, os.SEEK_CUR))
    print(sha(os.pread(out, os.stat(out).st_size, 0)))
""",
    "invalid arguments": """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.read.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
libc.sendfile.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
libc.readv.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
libc.preadv.argtypes = [*libc.readv.argtypes, ctypes.c_long]
room = ctypes.create_string_buffer(100)
for path in files():
    fd, out = os.open(path, os.O_RDONLY), os.memfd_create("out")
    for call in (lambda: libc.sendfile(out, fd, 8, 10), lambda: libc.sendfile(999, fd, None, 10),
                 lambda: libc.read(fd, None, 10), lambda: libc.read(fd, 8, 10), lambda: libc.read(fd, room, 0),
                 lambda: libc.readv(fd, room, -1), lambda: libc.readv(fd, room, 5000), lambda: libc.preadv(fd, room, -1, 0),
                 lambda: libc.read(fd, room, 100)):
        ctypes.set_errno(0)
        print(call(), ctypes.get_errno(), os.lseek(fd, 0, os.SEEK_CUR), sha(room.raw))
""",
}
NATIVE_WAYS = {
    "a stream": """
import ctypes
libc = ctypes.CDLL(None)
libc.fopen.restype, libc.fread.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
room = ctypes.create_string_buffer(16 * MIB)
for path in files():
    stream = libc.fopen(path.encode(), b"r")
    print(sha(room.raw[:libc.fread(room, 1, len(room), stream)]))
""",
    "mapped": """
for path in files():
    with open(path, "rb") as file: print(sha(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)))
""",
}


def program(way):
    return ["/usr/bin/python3", "-c", COMMON + f"MIB = {MIB}\n" + way]


def dataset(name):
    root = scratch(name)
    for i, size in enumerate(SIZES):
        e2e.write(f"{root}/{i}", os.urandom(size))
    return root


@e2e.unless(e2e.why_no_slowfs)
def each_way(kind, ways, times, test):
    """Each way of reading, `times` times in a job: as natively; then test(name, bytes read from the PFS, report)."""
    root = dataset(kind)
    fs = e2e.SlowFs(root, f"{root}.pfs")
    for prefetch in PREFETCH:
        for way, text in ways.items():
            name = f"{way}, prefetch {prefetch}"
            native = e2e.execute([*program(text), root])
            ok(native[0] == 0 and native[1], f"{name}: natively", native[2])
            before = fs.counters()["read_bytes"]
            job = e2e.Job(options([fs.mount], {"t": (scratch(f"tier.{kind}"), "1G")},
                                  *e2e.config(stage_wait_max="64K", prefetch=prefetch)))
            for _ in range(times):
                got = job.run([*program(text), fs.mount])
                equal(got[:2], native[:2], f"{name}: as natively", got[2])
            test(name, fs.counters()["read_bytes"] - before, job.end())
    fs.close()


def own_position():
    """Reads from the descriptor's own position, by whoever shares it."""
    def test(name, read, report):
        late = report["tasks"]["chunk_fallbacks"]  # a busy machine: a task did not wait to the end
        # What the kernel reads ahead for one chunk may be dropped before another thread copies the next.
        ok(read < 1.5 * sum(SIZES) + late * 2 * MIB, f"{name}: from the PFS once", read, report)
        if name.startswith(("read,", "sent,")) and not late:
            equal((read, report["tasks"]["read_bytes_pfs"]), (sum(SIZES), 0), f"{name}: each byte once", report)
    each_way("position", WAYS, 1, test)


@e2e.unless(e2e.why_no_slowfs)
def across_chunks():
    """Reads of two chunks, the second of which comes later. The end is read first: what is not there yet is a hole then."""
    command = [*program(f"""
fd = os.open(files()[0], os.O_RDONLY)
end = os.stat(fd).st_size
print([sha(os.pread(fd, 20, at - 10)) for at in (end, *range({MIB}, end, {MIB}))])
""")]
    root = scratch("across")
    e2e.write(f"{root}/0", os.urandom(SIZES[2]))
    fs = e2e.SlowFs(root, f"{root}.pfs")
    fs.command("set bw-mib 20")
    job = e2e.Job(options([fs.mount], {"t": (scratch("tier.across"), "1G")}, *e2e.config(stage_wait_max="64K", prefetch="off")))
    equal(job.run([*command, fs.mount]), e2e.execute([*command, root]), "reads of two chunks: as natively")
    ok(job.end()["tasks"]["chunk_waits"] > 0, "reads of two chunks: they were waited for")
    return fs.close()


def direct():
    """A file that is kept in part, read with O_DIRECT: its end, which is not there, is not aligned."""
    root = scratch("direct")
    e2e.write(f"{root}/f", os.urandom(9 * MIB + 123))
    command = ["bash", "-c", 'set -o pipefail; dd if="$0" iflag=direct bs=1M status=none | sha256sum', f"{root}/f"]
    native = e2e.execute(command)
    if native[0] != 0:
        return skip("O_DIRECT", f"not here: {native[2]}")
    job = e2e.Job(options([root], {"t": (scratch("tier.direct"), "6M")}, *e2e.config(stage_wait_max="64K", prefetch="off")))
    for i in range(2):
        equal(job.run(command)[:2], native[:2], f"O_DIRECT of a part, reading {i + 1}: as natively")
    job.end()
    return None


# `moved` tells by the kernel's name of a descriptor.
MOVED = e2e.OPENED_AS + """
import ctypes, fcntl, time
libc = ctypes.CDLL(None)
path, fresh = sys.argv[1] + "/2", sys.argv[1] + "/1"
whole = open(sys.argv[2] + "/2", "rb").read()
def moved(fd): return not opened_as(fd).startswith(sys.argv[1])
def right(fd, n=20):
    for _ in range(n):
        at, size = random.randrange(len(whole)), random.choice([1, 100, 4096, 1 << 20])
        assert os.pread(fd, size, at) == whole[at:at + size]
def until(what, seconds=60):
    end = time.monotonic() + seconds
    while not (done := what()) and time.monotonic() < end: time.sleep(0.01)
    return done
def whole_now():
    fd = os.open(path, os.O_RDONLY)
    right(fd, 1)
    was = moved(fd)
    os.close(fd)
    return was
def stage(): assert until(whole_now)
"""
MOVERS = {
    "read with an offset": """
fd = os.open(path, os.O_RDONLY)
at = os.lseek(fd, 12345, os.SEEK_SET)
assert until(lambda: right(fd, 1) or moved(fd))
assert os.lseek(fd, 0, os.SEEK_CUR) == at and os.read(fd, 1000) == whole[at:at + 1000]
assert fcntl.fcntl(fd, fcntl.F_GETFD) == fcntl.FD_CLOEXEC and os.path.sameopenfile(fd, os.open(path, os.O_RDONLY))
right(fd)
with open(path, "ab") as file: file.write(b"new")
assert os.pread(fd, 100, len(whole) - 5) == whole[-5:] + b"new" and not moved(fd)
os.truncate(path, len(whole))
""",
    "read on": """
fd, got = os.open(path, os.O_RDONLY), b""
while not moved(fd) and len(got) < len(whole): got += os.read(fd, 4096); stage()
while data := os.read(fd, 100000): got += data
assert moved(fd) and got == whole
""",
    "threads that read on": """
fd, got, sizes = os.open(path, os.O_RDONLY), [], [1, 7, 100, 4096]
def run(seed):
    rng = random.Random(seed)
    while data := os.read(fd, rng.choice(sizes)): got.append(len(data))
def others():
    while sum(got) < len(whole): right(fd, 1)
threads = [threading.Thread(target=run, args=(i,)) for i in range(4)] + [threading.Thread(target=others) for _ in range(2)]
for t in threads: t.start()
for t in threads: t.join()
assert sum(got) == len(whole) and moved(fd), (sum(got), len(whole))
""",
    "duplicates": """
fd = os.open(path, os.O_RDONLY)
other = os.dup(fd)
stage(); right(fd); right(other)
assert os.read(fd, 10) + os.read(other, 10) == whole[:20] and not moved(fd) and not moved(other)
with open(path, "ab") as file: file.write(b"new")
assert os.pread(fd, 100, len(whole) - 5) == whole[-5:] + b"new"
os.truncate(path, len(whole))
os.dup2(os.open("/etc/passwd", os.O_RDONLY), fd)
assert os.pread(fd, 50, 0) == open("/etc/passwd", "rb").read(50)
""",
    "a stream": """
libc.fopen.restype = ctypes.c_void_p
room = ctypes.create_string_buffer(len(whole))
def read(file, n):
    got = libc.fread(room, 1, n, file)
    return room.raw[:got]
file = ctypes.c_void_p(libc.fopen(path.encode(), b"r"))
fd = libc.fileno(file)
assert not moved(fd) and read(file, 1000) == whole[:1000]
stage(); right(fd)
assert not moved(fd) and read(file, 100000) == whole[1000:101000]
libc.fseek(file, 5000, 1)
assert moved(fd) and read(file, 1000) == whole[106000:107000]
libc.rewind(file)
assert read(file, len(whole)) == whole
libc.fclose(file)
""",
}


def moved():
    """What was opened before it was whole becomes the copy's descriptor where nobody can tell."""
    for name, text in MOVERS.items():
        root = dataset("moved")
        e2e.execute(["cp", "-r", root, scratch("moved.natively")])
        job = e2e.Job(options([root], {"t": (scratch("tier.moved"), "1G")},
                              *e2e.config(stage_wait_max="64K", prefetch="off", stage_wait=0)))
        got = job.run([*program(MOVED + text), root, f"{scratch('moved.natively')}/moved"])
        ok(got[0] == 0, f"moved, {name}", got)
        report = job.end()
        equal(report["tasks"]["moved"] > 0, name != "duplicates", f"moved, {name}: counted", report)
        e2e.execute(["rm", "-rf", root, scratch("moved.natively")])


def whole_soon():
    """Who maps a large file, or opens a stream, waits for it if it comes soon: no byte of it is read twice."""
    def test(name, read, report):
        late = report["tasks"]["read_bytes_pfs"] > 0  # a busy machine
        ok(read == sum(SIZES) or late, f"{name}: each byte once", (read, report))
    each_way("soon", NATIVE_WAYS, 2, test)


e2e.main(own_position, across_chunks, direct, moved, whole_soon)
