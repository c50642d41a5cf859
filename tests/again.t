#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Files that a job wrote: once they are left alone they are staged again, and each later change is seen at once."""

import os
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


class Again:
    def __init__(self, name):
        self.root = scratch(f"{name}.data")
        e2e.make_tree(self.root, 8)
        config = f"{scratch()}/{name}.conf"
        with open(config, "w", encoding="ascii") as out:
            out.write("[agent]\nstage_again = 1\n")
        os.chmod(config, 0o644)
        self.job = e2e.Job([*options([self.root], {"t": (scratch(f"{name}.tier"), "64M")}), "--config", config])
        self.log = f"{scratch()}/{name}.log"
        self.job.run(e2e.read_all(self.root))

    def path(self, name):
        return f"{self.root}/{name}"

    def write(self, name, content):
        with open(f"{scratch()}/content", "wb") as out:
            out.write(content)
        self.job.run(["cp", f"{scratch()}/content", self.path(name)])

    def read(self, *names):
        """What the job reads, which is what there is; whether all of it came from the tier."""
        paths = [self.path(name) for name in names]
        with open(self.log, "wb"):
            pass
        got = e2e.execute([PYTHON, "-c", READ, *paths], env={**self.job.env, b"MONARCH_IO_LOG": self.log.encode()})
        want = e2e.execute([PYTHON, "-c", READ, *paths])
        if got != want:
            return equal(got, want, f"{', '.join(names)}: as natively") and False
        with open(self.log, encoding="utf-8") as log:
            lines = [line for line in log if any(f"/{name}: " in line for name in names)]
        return len(lines) >= len(names) and all(": tier " in line for line in lines)

    def comes(self, *names):
        """Whether the tier serves them after a while; each read on the way gives the right bytes."""
        return wait_until(lambda: self.read(*names))


def again():
    job = Again("again")
    name = "0000.bin"
    job.write("new", os.urandom(100000))
    job.write(name, os.urandom(5000))
    ok(not job.read("new", name), "what the job wrote is the PFS's at first")
    ok(job.comes("new", name), "left alone, it is the tier's")
    for content in (b"", b"x", os.urandom(200000)):
        job.write("new", content)
        ok(not job.read("new"), f"{len(content)} bytes: a change is seen at once")
        ok(job.read(name), "and another file stays the tier's")
        ok(job.comes("new"), "and it is staged again")
    report = job.job.end()
    ok(report["agent"]["staged_again"] == 4, "counted, but the first time of one that was not staged before", report["agent"])


def held():
    job = Again("held")
    for name in "job", "native":
        job.write(name, b"0123456789" * 1000)
    ok(job.comes("job"), "a file that the job wrote is the tier's again")
    want = e2e.execute([PYTHON, "-c", HOLD, job.path("native")])
    equal(job.job.run([PYTHON, "-c", HOLD, job.path("job")]), want, "who holds it while it changes sees what there is")
    ok(job.comes("job"), "and once more")
    equal(job.job.run([PYTHON, "-c", SHARE, job.path("job")]), e2e.execute([PYTHON, "-c", SHARE, job.path("native")]),
          "children share its position")
    if e2e.execute(["busybox", "true"])[0] != 0:
        return skip("programs without the library", "no busybox")
    tier = job.job.run([PYTHON, "-c", "import os, sys; print(os.read(os.open(sys.argv[1], 0), 7))", job.path("job")])
    equal(tier[1], b"b'CHANGED'\n", "and one that has it the bytes")
    e2e.execute(["busybox", "sh", "-c", 'echo by another >"$1"', "sh", job.path("job")])
    return ok(wait_until(lambda: job.job.run(["cat", job.path("job")])[1] == b"by another\n"),
              "what a program without the library changes is seen soon")


if __name__ == "__main__":
    e2e.main(again, held)
