#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""A job's owner in a container, in which he may mount what he likes, is shown other files than those that the agent has seen, at
any path of Monarch's and of the dataset's: each program reads what it would read without Monarch. MONARCH_TEST_CASES="A;B": only
these."""

import glob
import os
import subprocess
import sys

import e2e
from e2e import NOBODY, equal, ok, scratch, skip

FILES = 40
UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]
# `hostile.py CASE`, in a container's namespaces: what a process reads before, another one behind, and the first one behind.
PROGRAM = r'''
import ctypes, hashlib, os, subprocess, sys, time
data, other, tier, run, library, room = (os.environ[f"HOSTILE_{name}"] for name in ("DATA", "OTHER", "TIER", "RUN", "LIBRARY", "ROOM"))
libc = ctypes.CDLL(None, use_errno=True)
NATIVE = {**os.environ, "LD_PRELOAD": ""}


def look(what):
    for top, directories, names in os.walk(data):
        directories.sort()
        for name in sorted(names):
            path = os.path.join(top, name)
            st = os.stat(path)
            with open(path, "rb", buffering=0) as file:
                middle = os.pread(file.fileno(), 1000, st.st_size // 2)
                own = os.fstat(file.fileno())
                content = file.read()
            print(what, os.path.relpath(path, data), st.st_size, st.st_mtime_ns, (own.st_dev, own.st_ino) == (st.st_dev, st.st_ino),
                  hashlib.md5(content).hexdigest(), hashlib.md5(middle).hexdigest(), flush=True)


def call(*command, **more):
    subprocess.run(command, check=True, **more)


def bind(source, point):
    call("mount", "--bind", source, point)


def read_only(point):
    """By a mount(8) that maps nothing which is there for writing."""
    bind(point, point)
    call("mount", "-o", "remount,bind,ro,nosuid,nodev", point, env=NATIVE)


def filled(name):
    """A file system to make a directory in; the directory."""
    top = f"{room}/{name}"
    os.makedirs(top, exist_ok=True)
    call("mount", "-t", "tmpfs", "-o", "mode=755", "none", top)
    return top


def copy(source, name):
    """As cp -a makes one of a directory."""
    top = f"{filled(name)}/copy"
    call("cp", "-a", "--no-preserve=ownership", source, top, env=NATIVE)
    return top


def spoil(top):
    """Other bytes, with the same names, sizes and times, in all files that are there."""
    for directory, _, names in os.walk(top):
        for name in names:
            path = os.path.join(directory, name)
            st = os.stat(path)
            os.chmod(path, 0o600)
            with open(path, "r+b") as file:
                file.write(bytes(st.st_size))
            os.chmod(path, st.st_mode)
            os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))
    return top


def in_place_of(point, target):
    """A symbolic link there, all else beside it as it was."""
    above, name = os.path.split(point)
    top = filled("above." + name)
    kept = f"{room}/kept.{name}"
    os.makedirs(kept, exist_ok=True)
    call("mount", "--rbind", above, kept)
    for entry in os.listdir(kept):
        os.symlink(f"{kept}/{entry}" if entry != name else target, f"{top}/{entry}")
    call("mount", "--rbind", top, above)


def by_move_mount(source, point):
    tree = libc.syscall(428, -100, source.encode(), 1 | 0o2000000)
    if tree < 0 or libc.move_mount(tree, b"", -100, point.encode(), 4) != 0:
        raise OSError(ctypes.get_errno(), "move_mount")


parts = sorted(entry.path for entry in os.scandir(data) if entry.is_dir()) if sys.argv[1] != "look" else []
files = sorted(entry.path for entry in os.scandir(data) if entry.is_file()) if parts else []
CASES = {
    "a part of the dataset is over another": lambda: bind(parts[0], parts[1]),
    "a part of another dataset is in its place": lambda: bind(f"{other}/{os.path.basename(parts[1])}", parts[0]),
    "a file is over another": lambda: bind(files[0], files[1]),
    "another dataset is there": lambda: bind(other, data),
    "an overlay is there": lambda: call("mount", "-t", "overlay", "-o", f"userxattr,lowerdir={other}:{data}", "none", data),
    "a copy of the dataset is there, spoilt": lambda: bind(spoil(copy(data, "copy")), data),
    "a link to another dataset is there": lambda: in_place_of(data, other),
    "a mount by another call": lambda: by_move_mount(other, data),
    "copies are others": lambda: bind(spoil(copy(tier, "tier")), tier),
    "copies are behind a link": lambda: in_place_of(tier, spoil(copy(tier, "tier"))),
    "no run directory": lambda: call("mount", "-t", "tmpfs", "none", run),
    "a copy of the run directory": lambda: bind(copy(run, "run"), run),
    "the run directory is a link": lambda: in_place_of(run, copy(run, "run")),
    "all is read-only": lambda: [read_only(point) for point in (run, tier, data)],
    "no library": lambda: bind("/dev/null", library),
    "another library is there": lambda: bind(next(line.split()[-1] for line in open("/proc/self/maps", encoding="utf-8") if "/libc.so.6" in line), library),
    "no /proc": lambda: call("mount", "-t", "tmpfs", "none", "/proc"),
    "a /proc without what tells of mounts": lambda: (call("mount", "-t", "tmpfs", "none", "/proc"), os.makedirs("/proc/self/ns"),
                                                     open("/proc/self/ns/mnt", "w").close(), open("/proc/self/ns/user", "w").close()),
}
OWN = "a mount by another call"  # by this process itself
if sys.argv[1] == "look":
    look("alone")
else:
    look("before")
    CASES[sys.argv[1]]()
    mounted = time.monotonic()
    if sys.argv[1] == OWN:
        look("at once")
    call(sys.executable, __file__, "look")
    time.sleep(max(0, mounted + 1.5 - time.monotonic()))  # the library looks for mounts of other processes each second
    look("behind")
'''
CASES = [line.split('"')[1] for line in PROGRAM.partition("CASES = {")[2].partition("\n}\n")[0].splitlines() if line.startswith('    "')]


@e2e.unless(lambda: e2e.SANITIZER and "the sanitizer's runtime comes first in LD_PRELOAD", e2e.why_not_nobody)
def in_containers():
    code, _, err = e2e.execute([*NOBODY, *UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"])
    if code != 0:
        return skip("hostile containers", f"user nobody cannot mount in a namespace of his own here: {err.strip()}")
    top = scratch("all")
    for seed, name in enumerate(("data", "other")):
        e2e.make_tree(f"{top}/{name}", FILES, seed=seed + 1)
    subprocess.run(["chmod", "-R", "a+rX", top], check=True)
    room, program = scratch("room"), f"{scratch()}/hostile.py"
    for place in f"{top}/tier", room:
        os.makedirs(place, exist_ok=True)
        os.chmod(place, 0o1777)
    e2e.write(program, PROGRAM)
    e2e.write(f"{top}/conf", f"[tier.t]\npath = {top}/tier\nquota = 64M\nmin_free = 0\n[agent]\nstage_wait_max = 16K\n")
    os.chown(f"{top}/conf", 65534, 65534)
    job = e2e.Job(["--config", f"{top}/conf", "--dataset", f"{top}/data"], before=NOBODY)
    places = {"DATA": f"{top}/data", "OTHER": f"{top}/other", "TIER": glob.glob(f"{top}/tier/monarch-run.*.{job.pid}.*")[0], "RUN": job.run_dir,
              "LIBRARY": job.env[b"LD_PRELOAD"].decode(), "ROOM": room}
    env = {**job.env, **{f"HOSTILE_{name}".encode(): path.encode() for name, path in places.items()}}
    cases = os.environ["MONARCH_TEST_CASES"].split(";") if "MONARCH_TEST_CASES" in os.environ else CASES
    for case in cases:
        command = [*NOBODY, *UNSHARE, sys.executable, program, case]
        native = e2e.execute(command, env={**env, b"LD_PRELOAD": b"", b"MONARCH_IO_DISABLE": b"1"})
        ok(native[0] == 0 and native[1].count(b"\n") > 2 * FILES, f"{case}: natively", native)
        for number in "1st", "2nd":
            result = e2e.execute(command, env=env)
            wrong = set(result[1].splitlines()) ^ set(native[1].splitlines())
            equal((result[0], sorted(wrong)[:6]), (0, []), f"{case}: the {number} time as natively", result[2][-1500:])
    report = job.end()
    ok(report["opens_tier"] > FILES * len(cases), "the others were served", report["opens_tier"], report["tasks"])
    return None


e2e.main(in_containers)
