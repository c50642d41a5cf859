#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""The preload library where little is allowed: before and after main, on small stacks, in signal handlers, without
descriptors, under seccomp filters, with cancellation; and it can neither allocate nor lock, and keeps no descriptor."""

import os
import subprocess

import e2e
from e2e import BUILD, equal, ok, options, scratch

SAFETY = f"{BUILD}/tests/safety"
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
    return e2e.text_in(log).splitlines()


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


@e2e.unless(lambda: e2e.SANITIZER and "the sanitizer makes calls of its own")
def first_calls():
    """While another thread makes the process's first call, which takes long."""
    root, files = dataset("first calls")
    job = e2e.Job(options([root], {"t": (scratch("first calls.tier"), "1G")}))
    job.run(["cat", *files])
    log = f"{scratch()}/log.first"
    code, _, err = e2e.execute([SAFETY, "fork at start", *files], env={**job.env, b"MONARCH_IO_LOG": os.fsencode(log)})
    equal(code, 0, "fork at start: it ends", err)
    served = {line.split("]")[0] for line in lines_of(log) if line.endswith(": tier t")}
    equal(len(served), 2, "fork at start: parent and child are served", lines_of(log))
    return job.end()


def jumps():
    same("jumps", False)


def signal_handlers():
    same("signals", True)


def descriptors():
    same("no descriptors", True)
    same("few descriptors", True)


@e2e.unless(lambda: e2e.SANITIZER and "the sanitizer needs what is forbidden")
def filters():
    same("forbidden", False)
    same("held without statx", True)
    return same("killing", True)


def errno_and_cancellation():
    same("errors", True)
    same("cancellation", True)


@e2e.unless(lambda: e2e.SANITIZER and "sanitizer build")
def imports():
    """What the library could call at all."""
    out = subprocess.run(["nm", "-D", "--undefined-only", PRELOAD], stdout=subprocess.PIPE, check=True).stdout.decode()
    names = {line.split()[-1].split("@")[0] for line in out.splitlines() if " U " in line}
    allowed = set("""
        __errno_location __environ __progname syscall sched_getcpu clock_gettime dlsym dladdr dl_iterate_phdr environ fileno_unlocked program_invocation_short_name
        memchr memcmp memcpy memmove memset strchr strcmp strcspn strlen strncmp strnlen strrchr strstr
        ftrylockfile funlockfile
        statfs statfs64 statvfs statvfs64 fchown futimens futimes close_range __stack_chk_fail""".split())
    equal(sorted(names - allowed), [], "it imports nothing that could allocate, lock or wait")
    return ok("syscall" in names and "dlsym" in names, "which nm can tell", out)


e2e.main(early, small_stacks, first_calls, jumps, signal_handlers, descriptors, filters, errno_and_cancellation, imports)
