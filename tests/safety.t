#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The preload library where little is allowed: before and after main, on small stacks, in signal handlers, without
descriptors, under seccomp filters, with cancellation; and it neither allocates, nor locks, nor keeps a descriptor."""

import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True
import e2e  # pylint: disable=wrong-import-position
from e2e import BUILD, equal, ok, options, scratch, skip

SAFETY = f"{BUILD}/tests/safety"
STRICT = f"{BUILD}/tests/strict.so"
PRELOAD = f"{BUILD}/libmonarch_preload.so"
FILES = 8


def dataset(name):
    root = scratch(f"{name.replace(' ', '-')}.data")
    e2e.make_tree(root, FILES, 20000)
    return root, sorted(os.path.join(d, n) for d, _, names in os.walk(root) for n in names)


def reset(files):
    for file in files:
        os.chmod(file, 0o644)


def lines_of(log):
    if not os.path.exists(log):
        return []
    with open(log, encoding="utf-8") as stream:
        return stream.read().splitlines()


def same(case, served, **more):
    """A case natively, and in a job that has read nothing yet, then all; `served`: it opens copies then."""
    root, files = dataset(case)
    command = [SAFETY, case, *files]
    native = e2e.execute(command, **more)
    reset(files)
    ok(native[0] == 0 and native[1], f"{case}: natively", native)
    for state in "cold", "placed":
        job = e2e.Job(options([root], {"t": (scratch(f"{case}.{state}"), "1G")}))
        log = f"{scratch()}/log"
        if os.path.exists(log):
            os.unlink(log)
        if state == "placed":
            job.run(["cat", *files])
        got = e2e.execute(command, env={**job.env, b"MONARCH_IO_LOG": os.fsencode(log)}, **more)
        equal(got[:2], native[:2], f"{case}: {state} as natively", got[2], native[2])
        if state == "placed" and served:
            ok(any(line.endswith(": tier t") for line in lines_of(log)), f"{case}: from the tier", lines_of(log)[:5])
        reset(files)
        counters = job.end()
        equal(counters["tasks"]["fallback_timeout"], 0, f"{case}: {state}: no wait in vain", counters["tasks"])


def early():
    same("early", True)


def small_stacks():
    same("small stack", True)
    same("tiny stack", False)


OUTSIDE, INSIDE = 2048, 6144  # bytes that a call may take more than natively


def least_stacks():
    same("least stack", False)
    return same("handler stack", False)


def depths():
    """How much stack calls take, cold and placed."""
    if e2e.SANITIZER:
        return skip("depths", "sanitizers' frames are larger")

    def measured(env):
        # The linker's own work at a function's first call takes more than all else, natively too.
        out = e2e.execute(["env", "LD_BIND_NOW=1", SAFETY, "depths", *files], env=env)[1].decode()
        return {what: int(bytes) for what, bytes in (line.rsplit(" ", 1) for line in out.splitlines())}

    root, files = dataset("depths")
    native = measured(e2e.native_environment())
    job = e2e.Job(options([root], {"t": (scratch("depths.tier"), "1G")}))
    for state in "cold", "placed":
        got = measured(job.env)
        equal(got.keys(), native.keys(), f"depths, {state}: all are measured")
        taken = {what: got[what] - native[what] for what in native}
        for where, bound in ("outside", OUTSIDE), ("inside", INSIDE):
            some = {what: n for what, n in taken.items() if what.startswith(where)}
            ok(some and max(some.values()) <= bound, f"{state}, {where}: no call takes more than {bound} bytes of stack", some)
            print("#", state, some)
        job.run(["cat", *files])
    job.end()
    return None


def first_calls():
    """While another thread makes the process's first call, which takes long."""
    if e2e.SANITIZER:
        return skip("first calls", "the sanitizer makes calls of its own")
    for case in "fork at start", "write at start":
        root, files = dataset(case)
        native_root, native_files = dataset(f"{case} natively")
        job = e2e.Job(options([root], {"t": (scratch(f"{case}.tier"), "1G")}))
        job.run(["cat", *files])
        log = f"{scratch()}/log.{case.split()[0]}"
        got = e2e.execute([SAFETY, case, *files], env={**job.env, b"MONARCH_IO_LOG": os.fsencode(log)})
        want = e2e.execute([SAFETY, case, *native_files])
        equal(got[0], want[0], f"{case}: it ends", got[2])
        served = {line.split("]")[0] for line in lines_of(log) if line.endswith(": tier t")}
        if case == "fork at start":
            equal(len(served), 2, f"{case}: parent and child are served", lines_of(log))
        else:
            equal(sorted(got[1].splitlines())[1:], sorted(want[1].splitlines())[1:], f"{case}: the bytes", got[1])
            equal(job.run(["cat", files[1]])[1], b"new", f"{case}: what was written is read by others")
        job.end()
    return None


def failing_calls():
    """One statx that fails does not decide for the life of the process."""
    if e2e.SANITIZER:
        return skip("failing calls", "the sanitizer makes calls of its own")
    root, files = dataset("failing")
    job = e2e.Job(options([root], {"t": (scratch("failing.tier"), "1G")}))
    job.run(["cat", *files])
    want = e2e.execute([SAFETY, "failing once", *files])
    for number in range(1, 9):
        log = f"{scratch()}/log.{number}"
        got = e2e.execute([SAFETY, "failing once", *files],
                          env={**job.env, b"MONARCH_IO_LOG": os.fsencode(log), b"FAILING": b"%d" % number})
        equal(got[:2], want[:2], f"statx number {number} fails: as natively", got[2])
        served = sum(line.endswith(": tier t") for line in lines_of(log))
        ok(served >= FILES, f"statx number {number} fails: later opens are served", lines_of(log))
    job.end()
    return None


def other_ways():
    same("jumps", False)
    root = scratch("vfork.data")
    with open(f"{root}/large", "wb") as out:
        out.write(os.urandom(3 << 20))
    config = f"{scratch()}/vfork.conf"
    with open(config, "w", encoding="ascii") as out:
        out.write("[agent]\nprefetch = off\nstage_wait_max = 16K\n")
    os.chmod(config, 0o644)
    command = [SAFETY, "vfork closes", f"{root}/large", "x"]
    job = e2e.Job([*options([root], {"t": (scratch("vfork.tier"), "1G")}), "--config", config])
    equal(job.run(command)[:2], e2e.execute(command)[:2], "a child of vfork closes a large file: the parent's bytes")
    report = job.end()
    equal(report["tiers"][0]["read_bytes"], 3 * 4096, "and they come from chunks", report["tasks"])
    copied_and_changed()
    others_in_their_places()


def copied_and_changed():
    root = scratch("vfork.copied")
    for name in "native", "job":
        with open(f"{root}/{name}", "wb") as out:
            out.write(b"0123456789" * 1000)
        os.utime(f"{root}/{name}", (1.5e9, 1.5e9))
    native = e2e.execute([SAFETY, "vfork closes a copy", f"{root}/native", "x"])[:2]
    job = e2e.Job(options([root], {"t": (scratch("vfork.copies"), "1G")}))
    job.run(e2e.read_all(root))
    equal(job.run([SAFETY, "vfork closes a copy", f"{root}/job", "x"])[:2], native, "a child of vfork closes a copy: what is written later is seen")
    tasks = job.end()["tasks"]
    ok(tasks["returned"] == 2, "because both descriptors went back to the PFS", tasks)


def others_in_their_places():
    roots = {name: scratch(f"vfork.{name}") for name in ("natively", "others")}
    for root in roots.values():
        for name in "changed", "other", "written":
            with open(f"{root}/{name}", "wb") as out:
                out.write(b"0123456789" * 1000)
            os.utime(f"{root}/{name}", (1.5e9, 1.5e9))
    command = {name: [SAFETY, "vfork puts others", *(f"{root}/{file}" for file in ("changed", "other", "written"))]
               for name, root in roots.items()}
    native = e2e.execute(command["natively"])[:2]
    job = e2e.Job(options([roots["others"]], {"t": (scratch("vfork.tier2"), "1G")}))
    job.run(e2e.read_all(roots["others"]))
    equal(job.run(command["others"])[:2], native, "a child of vfork puts others in the places of copies: the parent's bytes")
    tasks = job.end()["tasks"]
    ok(tasks["returned"] == 6, "because all descriptors went back to the PFS, and the child's own", tasks)


def signal_handlers():
    same("signals", True)


def descriptors():
    same("no descriptors", True)
    same("few descriptors", True)
    same("mappings", True)


def filters():
    if e2e.SANITIZER:
        return skip("seccomp", "the sanitizer needs what is forbidden")
    same("forbidden", False)
    return same("killing", True)


def errno_and_cancellation():
    same("errors", True)
    same("cancellation", True)


def invalid_arguments():
    """What no address is, and vectors that the kernel refuses: also where a large file is read from its chunks."""
    same("bad paths", False)
    same("bad vectors", True)
    root = scratch("vectors.data")
    with open(f"{root}/large", "wb") as out:
        out.write(os.urandom(20000))
    config = f"{scratch()}/vectors.conf"
    with open(config, "w", encoding="ascii") as out:
        out.write("[agent]\nprefetch = off\nstage_wait_max = 16K\n")
    os.chmod(config, 0o644)
    command = [SAFETY, "bad vectors", f"{root}/large", "x"]
    job = e2e.Job([*options([root], {"t": (scratch("vectors.tier"), "1G")}), "--config", config])
    equal(job.run(command)[:2], e2e.execute(command)[:2], "bad vectors: of chunks as natively")
    report = job.end()
    return ok(report["tiers"][0]["read_bytes"] > 0, "and chunks served some", report)


def counts_of(command, env):
    result = subprocess.run(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=e2e.PATIENCE,
                            check=False)
    text = result.stderr.decode()
    found = re.findall(r"strict: (\d+)", text)
    return result.returncode, [int(n) for n in found], text


def allocations():
    """As many allocations and locks as natively, whoever makes them on our behalf."""
    if e2e.SANITIZER:
        return skip("allocations", "the sanitizer allocates")
    root, files = dataset("strict")
    job = e2e.Job(options([root], {"t": (scratch("strict.tier"), "1G")}))
    strict = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    ours = {os.fsdecode(k): os.fsdecode(v) for k, v in job.env.items()}
    for name, command in {
        "a program": [SAFETY, "calls", *files],
        "early": [SAFETY, "early", *files],
        "cat": ["cat", *files],
        "head, which uses no stdio": ["head", "-c", "100", *files],
        "env -i": ["env", "-i", f"LD_PRELOAD={STRICT}", "cat", *files],
    }.items():
        native = counts_of(command, {**strict, "LD_PRELOAD": STRICT})
        for state in "cold", "placed":
            got = counts_of(command, {**ours, "LD_PRELOAD": f"{STRICT}:{PRELOAD}"})
            equal(got[:2], native[:2], f"{name}: as many allocations and locks as natively, {state}", got[2], native[2])
        ok(native[1] and native[1][0] >= 0, f"{name}: they are counted", native)
    equal(counts_of(["cat", *files], {**ours, "LD_PRELOAD": f"{STRICT}:{PRELOAD}"})[0], 0, "none by the library itself")
    return ok(job.end()["opens_tier"] > 10, "and it served files")


def imports():
    """What the library could call at all."""
    if e2e.SANITIZER:
        return skip("imports", "sanitizer build")
    out = subprocess.run(["nm", "-D", "--undefined-only", PRELOAD], stdout=subprocess.PIPE, check=True).stdout.decode()
    names = {line.split()[-1].split("@")[0] for line in out.splitlines() if " U " in line}
    allowed = set("""
        __errno_location __environ __progname syscall sched_getcpu clock_gettime dlsym dladdr environ fileno_unlocked program_invocation_short_name
        memchr memcmp memcpy memmove memset strchr strcmp strcspn strlen strncmp strnlen strrchr strstr
        ftrylockfile funlockfile
        statfs statfs64 statvfs statvfs64 fchown futimens futimes close_range __stack_chk_fail""".split())
    equal(sorted(names - allowed), [], "it imports nothing that could allocate, lock or wait")
    return ok("syscall" in names and "dlsym" in names, "which nm can tell", out)


e2e.main(early, small_stacks, least_stacks, depths, first_calls, failing_calls, other_ways, signal_handlers, descriptors, filters, errno_and_cancellation, invalid_arguments, allocations, imports)
