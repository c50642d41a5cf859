#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Files that a job wrote: once they are left alone they are staged again, and each later change is seen at once. When: again_test.cc."""

import sys

sys.dont_write_bytecode = True
import e2e  # pylint: disable=wrong-import-position
from e2e import equal, ok, options, scratch, skip, wait_until

PYTHON = "/usr/bin/python3"
READ = """
import hashlib, os, sys
for path in sys.argv[1:]:
    fd = os.open(path, os.O_RDONLY)
    content = b"".join(iter(lambda: os.read(fd, 1 << 20), b""))
    st = os.fstat(fd)
    print(os.path.basename(path), hashlib.sha1(content).hexdigest(), st.st_size, st.st_mtime_ns, st.st_nlink,
          os.path.samestat(st, os.stat(path)))
"""
# Holds the file in each way while another program of the job changes it.
HOLD = """
import mmap, os, subprocess, sys
path = sys.argv[1]
fd = os.open(path, os.O_RDONLY)
other = os.dup(fd)
print(os.read(fd, 4))
mapped = mmap.mmap(os.open(path, os.O_RDONLY), 0, prot=mmap.PROT_READ)
stream = open(path, "rb", 10)
print(stream.read(3))
subprocess.run(["sh", "-c", 'printf CHANGED | dd of="$1" conv=notrunc status=none', "sh", path], check=True)
print(os.pread(fd, 10, 0), os.read(other, 4), mapped[:10], stream.read(4))
"""

# Children that share the position of a descriptor of such a file, with and without the library.
SHARE = """
import os, subprocess, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
dd = ["dd", "bs=5", "count=1", "status=none"]
print(os.read(fd, 4))
for env in os.environ, {"PATH": os.environ["PATH"], "MONARCH_IO_DISABLE": "1"}:
    print(subprocess.run(dd, stdin=fd, stdout=subprocess.PIPE, env=env).stdout, os.read(fd, 4), os.lseek(fd, 0, os.SEEK_CUR))
if os.fork() == 0:
    print(os.read(fd, 4), flush=True)
    os._exit(0)
os.wait()
print(os.read(fd, 4), subprocess.run(["sh", "-c", 'exec 3<"$1"; dd bs=7 count=1 status=none <&3; head -c 20 <&3', "sh", sys.argv[1]],
                                     stdout=subprocess.PIPE).stdout)
"""


def served(job, path):
    """Whether what the job reads, which is what there is, came from the tier."""
    log = f"{scratch()}/log"
    with open(log, "wb"):
        pass
    got = e2e.execute([PYTHON, "-c", READ, path], env={**job.env, b"MONARCH_IO_LOG": log.encode()})
    want = e2e.execute([PYTHON, "-c", READ, path])
    if got != want:
        return equal(got, want, f"{path}: as natively") and False
    with open(log, encoding="utf-8") as lines:
        return f"{path}: tier t\n" in lines.read()


def held():
    root, config = scratch("data"), f"{scratch()}/conf"
    with open(config, "w", encoding="ascii") as out:
        out.write("[agent]\nstage_again = 1\n")
    e2e.make_tree(root, 8)
    ours, native = f"{root}/job", f"{root}/native"
    job = e2e.Job([*options([root], {"t": (scratch("tier"), "64M")}), "--config", config])
    job.run(e2e.read_all(root))
    for path in ours, native:
        job.run(["sh", "-c", 'yes 012345678 | head -n 1000 >"$1"', "sh", path])
    ok(not served(job, ours), "what the job wrote is the PFS's at first")
    ok(wait_until(lambda: served(job, ours)), "left alone, it is the tier's; each read on the way gives the right bytes")
    equal(job.run([PYTHON, "-c", HOLD, ours]), e2e.execute([PYTHON, "-c", HOLD, native]), "who holds it while it changes sees what there is")
    ok(wait_until(lambda: served(job, ours)), "and once more")
    equal(job.run([PYTHON, "-c", SHARE, ours]), e2e.execute([PYTHON, "-c", SHARE, native]), "children share its position")
    if e2e.execute(["busybox", "true"])[0] != 0:
        return skip("programs without the library", "no busybox")
    e2e.execute(["busybox", "sh", "-c", 'echo by another >"$1"', "sh", ours])
    return ok(wait_until(lambda: job.run(["cat", ours])[1] == b"by another\n"), "what a program without the library changes is seen soon")


e2e.main(held)
