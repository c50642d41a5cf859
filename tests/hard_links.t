#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Files with several names in a dataset: one copy for all of them, and each name shows what it shows natively, whatever becomes of the
others."""

import os
import sys

sys.dont_write_bytecode = True
import e2e  # pylint: disable=wrong-import-position
from e2e import equal, ok, options, scratch

PYTHON = "/usr/bin/python3"
BEGIN = """
import ctypes, fcntl, mmap, os, shutil, subprocess, sys
root = sys.argv[1]
a, b, c = (root + '/' + name for name in ('a', 'sub/b', 'sub/c'))
def sh(text): return subprocess.run(['sh', '-c', text, 'sh', root], stdout=subprocess.PIPE).stdout
def show(*what):
    for w in what:
        try:
            fd = w if isinstance(w, int) else os.open(w, 0)
            s = os.fstat(fd)
            print(os.pread(fd, 20, 0), s.st_size, s.st_nlink, oct(s.st_mode), [os.path.exists(n) and os.path.samestat(s, os.stat(n)) for n in (a, b, c)])
            if fd != w: os.close(fd)
        except OSError as e: print(e.errno)
"""
CASES = {
    "read": "show(a, b, c, a)",
    "held by one name, changed by another": "f, g = os.open(a, 0), os.open(b, 0); sh('printf NEW 1<>\"$1/sub/c\"'); show(f, g, a, b, c)",
    "held by two names, the first is removed, then changed": "f, g = os.open(a, 0), os.open(b, 0); os.unlink(a); sh('printf NEW 1<>\"$1/sub/c\"'); show(g, b, c, a)",
    "another file gets the first name, then changed": "f, g = os.open(a, 0), os.open(b, 0); sh('echo other >\"$1/n\"; mv \"$1/n\" \"$1/a\"; printf NEW 1<>\"$1/sub/b\"');"
                                                      "show(g, a, b, c)",
    "the first name is another one": "g = os.open(b, 0); os.rename(a, root + '/elsewhere'); show(g, b, c, a, root + '/elsewhere'); sh('echo x >>\"$1/elsewhere\"'); show(g, b, c)",
    "one more name": "f = os.open(a, 0); os.link(b, root + '/more'); show(f, a, b, root + '/more'); sh('echo x >>\"$1/more\"'); show(f, a, b, c)",
    "cut by one name": "f = os.open(c, 0); os.truncate(a, 7); show(f, a, b, c)",
    "mode by one name": "f = os.open(c, 0); os.chmod(a, 0o604); show(f, a, b, c)",
    "locked": "f, g = os.open(a, 0), os.open(b, 0); fcntl.flock(f, fcntl.LOCK_EX)\n"
              "try: fcntl.flock(g, fcntl.LOCK_EX | fcntl.LOCK_NB); print('both')\nexcept OSError as e: print(e.errno)",
    "mapped": "m = mmap.mmap(os.open(b, 0), 0, prot=1); print(m[:20]); m = mmap.mmap(os.open(c, 0), 0, prot=1); print(m[-20:])",
    "found by programs": "print(sh('cd \"$1\" && find . -samefile a | sort; find . -links +1 -type f | sort; stat -c %h a sub/b; diff a sub/b && cmp a sub/c && echo same'))",
}
CONTENT = b"".join(b"line %d\n" % i for i in range(3000))


def make(root):
    os.makedirs(f"{root}/sub")
    with open(f"{root}/a", "wb") as out:
        out.write(CONTENT)
    os.utime(f"{root}/a", (1.5e9, 1.5e9))
    for name in "sub/b", "sub/c":
        os.link(f"{root}/a", f"{root}/{name}")


def as_natively():
    """Where the kernel has other names for the copies than the job. That all names share one read is hard_links_test.cc's."""
    os.symlink(scratch("tier"), f"{scratch()}/link")
    roots = {how: f"{scratch()}/{how}/data" for how in ("native", "job")}
    for root in roots.values():
        for number in range(len(CASES)):
            make(f"{root}/{number}")
    tier = f"{scratch()}/link/to"
    os.mkdir(tier)
    job = e2e.Job(options([roots["job"]], {"t": (tier, "1G")}))
    job.run(e2e.read_all(roots["job"]))
    used = int(e2e.execute(["du", "-s", "--block-size=1", "--exclude=part", scratch("tier")])[1].split()[0])
    ok(used < 2 * len(CONTENT) * len(CASES), "the copies take the space of one for each file", used)
    log = f"{scratch()}/log"
    for number, (name, text) in enumerate(CASES.items()):
        command = [PYTHON, "-c", BEGIN + text]
        native = e2e.execute([*command, f"{roots['native']}/{number}"])
        got = e2e.execute([*command, f"{roots['job']}/{number}"], env={**job.env, b"MONARCH_IO_LOG": log.encode()})
        equal(got, native, f"{name}: as natively")
        ok(native[0] == 0, f"{name}: the case holds", native)
    with open(log, encoding="utf-8") as stream:
        lines = stream.read()
    for name in "/a: tier t", "/sub/b: tier t", "/sub/c: tier t":
        ok(name in lines, f"served: {name}")
    job.end()


e2e.main(as_natively)
