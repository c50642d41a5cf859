#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The system's programs on a real parallel file system: each has to print, write and return the same natively, while
the dataset is being staged, and from the tier, when the PFS's servers must not notice it at all.  Others, and those
that Monarch does not see, are in matrix.t."""

import hashlib
import os
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True
import e2e  # pylint: disable=wrong-import-position
from e2e import SOURCE, equal, ok, options, read_all, scratch, skip

PYTHON = "/usr/bin/python3"  # not another one in PATH, which may lack the packages

# ---- the dataset


def make_dataset(path):
    """About 150 files, of all that names and inodes can be; how many paths lead to regular files."""
    e2e.make_tree(path, 120)
    odd = os.fsencode(path) + b"/odd names"
    os.mkdir(odd)
    names = (b"with space", b"new\nline", b"caf\xc3\xa9", b"latin1-\xe9\xff", b"-n", b"'\"$(x)`", b"x" * 255)
    for i, name in enumerate(names):
        with open(odd + b"/" + name, "wb") as out:
            out.write(b"%d " % i + name)
    with open(f"{path}/empty", "wb"):
        pass
    with open(f"{path}/large.bin", "wb") as out:
        out.write(b"".join(hashlib.sha256(b"%d" % i).digest() for i in range(5 << 15)))
    os.mkdir(f"{path}/text")
    for i in range(16):
        with open(f"{path}/text/{i}.txt", "w", encoding="utf-8") as out:
            out.writelines(f"line {i * n % 97}\n" for n in range(200))
    modes = (0o644, 0o600, 0o444, 0o755, 0o640, 0o4711)
    for i, name in enumerate(sorted(os.listdir(f"{path}/text"))):
        os.chown(f"{path}/text/{name}", 71000 + i, 72000 + i)  # no user's: tests make some
        os.chmod(f"{path}/text/{name}", modes[i % len(modes)])
        os.utime(f"{path}/text/{name}", ns=(10**18 + i, 10**18 - i * 10**16 - 123456789))
    os.link(f"{path}/text/1.txt", f"{path}/text/hard link")
    os.link(f"{path}/text/2.txt", f"{path}/a/hard link")
    os.symlink("text/3.txt", f"{path}/to-file")
    os.symlink("text", f"{path}/to-directory")
    os.symlink("nowhere", f"{path}/dangling")
    files = 0
    for directory, _, names in os.walk(os.fsencode(path)):
        os.utime(directory, (10**9, 10**9))  # the same on all servers
        files += len([name for name in names if not os.path.islink(directory + b"/" + name)])
    return files


# ---- the programs

PRELUDE = """
import hashlib, mmap, os, socket, subprocess, sys
root, out = sys.argv[1:3]
files = sorted(os.path.join(d, n) for d, _, names in os.walk(os.fsencode(root)) for n in names
               if not os.path.islink(os.path.join(d, n)))
texts = [f for f in files if f.endswith(b".txt")]
def show(name, data): print(name, hashlib.sha256(data).hexdigest())
"""

PYTHON_PROGRAMS = {
    "python open().read()": "for f in files: show(f, open(f, 'rb').read())",
    "python mmap": """
for f in files:
    with open(f, "rb") as stream:
        if os.fstat(stream.fileno()).st_size:
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as m: show(f, m[:])
""",
    "python sendfile": """
for f in texts:
    a, b = socket.socketpair()
    with open(f, "rb") as stream:
        n = os.sendfile(a.fileno(), stream.fileno(), 5, 1 << 16)
    a.close()
    show(f, b.makefile("rb").read())
""",
    "python subprocess": """
for f in texts[:4]:
    show(f, subprocess.run(["cat", f], stdout=subprocess.PIPE, check=True).stdout)
    with open(f, "rb") as stream:
        stream.seek(100)
        show(f, subprocess.run(["cat"], stdin=stream, stdout=subprocess.PIPE, check=True).stdout)
    show(f, subprocess.run(b"wc < '" + f + b"'", shell=True, stdout=subprocess.PIPE, check=True).stdout)
""",
}

def shell(script):
    return lambda root, out: ["sh", "-c", script, "sh", root, out]


def each_file(command):
    return shell(f'find "$1" -type f -print0 | LC_ALL=C sort -z | xargs -0 {command}')


def programs():
    """Name -> command for a dataset and for a place to write to; the name of what is missing in place of it."""
    found = {
        "cat": each_file("cat"),
        "cp -a": lambda root, out: ["cp", "-a", root, out],
        "tar c": lambda root, out: ["tar", "-C", os.path.dirname(root), "-c", os.path.basename(root)],
        "md5sum": lambda root, out: read_all(root),
        "grep -r": lambda root, out: ["grep", "-rc", "line 1", root],
        "find -exec +": lambda root, out: ["find", root, "-type", "f", "-exec", "sha1sum", "{}", "+"],
        "find -exec ;": lambda root, out: ["find", root, "-name", "1*.txt", "-exec", "head", "-n", "3", "{}", ";"],
        "dd": shell("""
            dd if="$1/large.bin" bs=65537 skip=3 count=50 status=none
            dd if="$1/text/1.txt" bs=1 count=99 status=none"""),
        "head -c": each_file("head -c 100"),
        "rsync -a": lambda root, out: ["rsync", "-aH", f"{root}/", out],
        "bash redirection": lambda root, out: ["bash", "-c", """
            for f in "$1"/text/*.txt; do read -r a b < "$f"; mapfile -t all < "$f"; echo "$a $b ${#all[@]}"; done
            exec 5< "$1/large.bin"; md5sum <&5""", "bash", root],
        "tail, wc, sort, diff, sed, awk": shell("""
            tail -c 50 "$1"/text/*.txt; wc "$1"/text/*.txt; sort "$1"/text/1*.txt | uniq -c
            sed -n 5,9p "$1/text/3.txt"; awk 'NR % 20 == 0' "$1"/text/*.txt; diff "$1/text/1.txt" "$1/text/2.txt" """),
    }
    for name, text in PYTHON_PROGRAMS.items():
        script = f"{scratch('scripts')}/{len(found)}.py"
        with open(script, "w", encoding="utf-8") as out:
            out.write(PRELUDE + text)
        found[name] = lambda root, out, script=script: [PYTHON, script, root, out]
    if not shutil.which("rsync"):
        found["rsync -a"] = "rsync is not installed"
    if e2e.SANITIZER:
        found["dd"] = "sanitizers end it for how it allocates"
    if "tsan" in e2e.SANITIZER:
        found["rsync -a"] = "ThreadSanitizer ends it for its signal handlers"
    return found


# ---- the passes


def times(path):
    """Modification times below a path."""
    names = [os.path.join(d, name) for d, dirs, files in os.walk(path) for name in dirs + files]
    return sorted((name, os.lstat(name).st_mtime_ns) for name in names)


class Outcome:
    """What one run of a program did."""

    def __init__(self, name, command, root, run):
        self._out = f"{scratch('out')}/out"
        code, out, err = run(command(root, self._out))
        self.printed = (code, len(out), hashlib.sha256(out).hexdigest(), err)
        self.written = e2e.written(self._out)
        self.times = times(self._out) if name in ("cp -a", "rsync -a") else []
        self.detail = self.written + self.times  # what to show of a difference
        if name == "tar c":
            self.detail = subprocess.run(["tar", "-tv", "--full-time", "--numeric-owner"], input=out, check=False,
                                         stdout=subprocess.PIPE).stdout.splitlines()
        self.tail = "" if b"\0" in out[-500:] else out[-500:]
        e2e.execute(["rm", "-rf", self._out])

    def check(self, native, name):
        same = (self.printed, self.written, self.times) == (native.printed, native.written, native.times)
        different = [(a, b) for a, b in zip(self.detail, native.detail) if a != b]
        return ok(same, name, f"got:  {self.printed} {self.tail}", f"want: {native.printed} {native.tail}",
                  *different[:5])


def moved(before, after):
    """What the servers counted in between."""
    return {name: after[name] - before[name] for name in ("open", "read", "read_bytes")}


# Opens that fail, of symlinks with O_NOFOLLOW; they count as opens on the PFS.
FAILED_OPENS = {"grep -r": 3}
NOTHING = {"open": 0, "read": 0, "read_bytes": 0}


def all_programs():
    if why := e2e.why_no_glusterfs():
        return skip("programs on GlusterFS", why)
    pfs = e2e.GlusterFs()
    root = f"{pfs.mount}/the dataset"
    os.mkdir(root)
    files = make_dataset(root)
    tier = scratch("tier")
    words = options([root], {"t": (tier, "1G")})
    found = programs()
    for name in [name for name, command in found.items() if isinstance(command, str)]:
        skip(name, found.pop(name))

    natives, opens = {}, {}
    for name, command in found.items():
        before = pfs.counters()
        natives[name] = Outcome(name, command, root, e2e.execute)
        opens[name] = moved(before, pfs.counters())["open"]
        ok(opens[name] > 0 and natives[name].printed[0] in (0, 1), f"{name}: natively the servers see it",
           natives[name].printed, natives[name].tail)

    for name, command in found.items():
        job = e2e.Job(words)
        Outcome(name, command, root, job.run).check(natives[name], f"{name}: cold as natively")
        report = job.end()
        tasks, agent = report["tasks"], report["agent"]
        equal((report["opens_tier"], tasks["opens_pfs"]), (opens[name], FAILED_OPENS.get(name, 0)),
              f"{name}: cold: as many opens as natively, all from the tier", report)
        ok(agent["agent_opens_pfs"] <= files, f"{name}: cold: no file is staged twice", report)

    job = e2e.Job(words)
    job.run(read_all(root))
    for name, command in found.items():
        before = pfs.counters()
        Outcome(name, command, root, job.run).check(natives[name], f"{name}: placed as natively")
        equal(moved(before, pfs.counters()), NOTHING, f"{name}: placed: the servers see no open and no read")
    report = job.end()
    failed = sum(FAILED_OPENS[name] for name in found if name in FAILED_OPENS)
    equal((report["agent"]["staged_files"], report["agent"]["agent_opens_pfs"], report["tasks"]["opens_pfs"]),
          (files, files, failed), "each file was staged once and nothing else opened", report)
    equal(report["opens_tier"], files + sum(opens.values()), "opens of the tier are what they were on the PFS")
    equal(os.listdir(tier), [], "the tier is empty afterwards")
    return None


def data_loader():
    """PyTorch's DataLoader with workers."""
    why = e2e.why_no_glusterfs() or ("" if shutil.which("python3") and e2e.execute([PYTHON, "-c", "import torch, PIL"], 300)[0] == 0 else "no PyTorch")
    if why:
        return skip("PyTorch's DataLoader on GlusterFS", why)
    sys.path.insert(0, f"{SOURCE}/tests/matrix")
    import datasets  # pylint: disable=import-outside-toplevel
    pfs = e2e.GlusterFs()
    root = f"{pfs.mount}/images"
    os.mkdir(root)
    datasets.images(root)
    files = [os.path.join(root, name) for name in sorted(os.listdir(root))]
    command = [PYTHON, f"{SOURCE}/tests/matrix/loader.py", "fork", "2", root]
    code, batches, err = e2e.execute(command)
    ok(code == 0 and batches, "DataLoader: it runs natively", err)

    begin = pfs.counters()
    job = e2e.Job(options([root], {"t": (scratch("tier"), "1G")}))
    equal(job.run(command)[:2], (0, batches), "DataLoader: cold as natively")
    equal(job.run([PYTHON, f"{SOURCE}/tests/matrix/place.py", str(e2e.PATIENCE), *files], seconds=2 * e2e.PATIENCE)[::2], (0, ""), "DataLoader: all is placed")
    before = pfs.counters()
    equal(job.run(command)[:2], (0, batches), "DataLoader: placed as natively")
    equal(moved(before, pfs.counters()), NOTHING, "DataLoader: placed: the servers see no open and no read")
    report = job.end()
    equal(report["agent"]["agent_opens_pfs"], len(files), "DataLoader: each image was staged once", report)
    # An open that waits in vain reads the PFS, and place.py opens what is not placed.
    equal(moved(begin, before)["open"], len(files) + report["tasks"]["opens_pfs"], "DataLoader: the servers saw these opens and no others", report)
    return None


if sys.argv[1:] == ["--table"]:  # the rows of doc/coverage.md
    print("\n".join(f"| {name} | staged | tier | programs.t |" for name in programs()))
    sys.exit()
e2e.main(all_programs, data_loader)
