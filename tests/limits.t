#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""build-aux/test-limit ends a test with all that it started: at its limit, by a signal, and in the middle of Slurm's."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import e2e  # pylint: disable=wrong-import-position
import slurm_lab  # pylint: disable=wrong-import-position
from e2e import SOURCE, contains, equal, ok, skip, wait_until

LIMIT = f"{SOURCE}/build-aux/test-limit"
# In another session, with an empty environment, orphaned, with the test's output open.
DAEMON = "(env -i /usr/bin/setsid /bin/sleep 3000 &)"
PR_SET_CHILD_SUBREAPER = 36


def orphans():
    """Names of the processes that have come to this one because their parents ended, once those that end are gone."""
    found = subprocess.run(["ps", "-o", "pid=,comm=,state=,args=", "--ppid", str(os.getpid())], stdout=subprocess.PIPE, check=False)
    rows = [line.split(None, 3) for line in found.stdout.decode().splitlines()]
    return [(int(pid), args) for pid, name, state, args in rows if name != "ps" and state != "Z"]


def no_orphans(name):
    wait_until(lambda: not orphans(), 10)
    left = orphans()
    ok(not left, f"{name}: nothing of it is left", left)
    for pid, _ in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def limited(seconds, script, signal_after=""):
    """Exit code and output of a shell script as a test; with `signal_after`, a SIGTERM comes once it has printed that."""
    process = subprocess.Popen([LIMIT, str(seconds), "sh", "-c", script], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    out = b""
    if signal_after:
        while signal_after.encode() not in out:
            out += os.read(process.stdout.fileno(), 1000)
        process.terminate()
    begin = time.monotonic()
    out += process.communicate(timeout=10 * e2e.PATIENCE)[0]
    return process.returncode, out.decode(), time.monotonic() - begin


def ends():
    equal(limited(100, "echo one; exit 3")[:2], (3, "one\n"), "a test that ends: its own status and output")
    equal(limited(100, "kill -9 $$")[0], 137, "one that is killed")
    equal(limited(100, "(sleep 1 &); exit 0")[:2], (0, ""), "one whose last process ends a little later")
    code, out, _ = limited(100, f"{DAEMON}; echo one; exit 0")
    equal(code, 125, "one that leaves a daemon behind has failed")
    contains(out, ["one\n", "Bail out! left behind: sleep ("], "and says so")
    no_orphans("a daemon that was left behind")


def reaches_its_limit():
    code, out, _ = limited(2, f"{DAEMON}; trap 'echo cleaned up; exit' TERM; while :; do sleep 0.1; done")
    equal(code, 124, "a test that hangs ends at its limit")
    contains(out, ["cleaned up", "Bail out! ended with all that it had started: it had not ended after 2 s"], "having cleaned up")
    no_orphans("a test that hung")


def is_told_to_end():
    code, out, _ = limited(1000, f"{DAEMON}; trap 'echo cleaned up; exit' TERM; echo begun; while :; do sleep 0.1; done", "begun")
    equal(code, 143, "a test that is told to end does")
    contains(out, ["cleaned up", "received signal 15"], "having cleaned up")
    no_orphans("a test that was told to end")


def in_the_middle_of_slurm():
    """As dev/check's TERM reaches it: while the daemons are there, of which some have environments of their own."""
    if why := slurm_lab.why_no_slurm():
        return skip("a Slurm test that is told to end", why)
    log = f"{e2e.scratch()}/slurm.log"
    with open(log, "wb") as out:
        process = subprocess.Popen([LIMIT, "900", f"{SOURCE}/tests/slurm_hostile.t"], stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    def names():
        tree = subprocess.run(["ps", "-e", "-o", "pid=,ppid=,comm="], stdout=subprocess.PIPE, check=True).stdout.decode()
        rows = [line.split(None, 2) for line in tree.splitlines()]
        found, wanted = set(), [str(process.pid)]
        while wanted:
            parent = wanted.pop()
            for pid, ppid, name in rows:
                if ppid == parent:
                    wanted.append(pid)
                    found.add(name)
        return found

    daemons = {"munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd"}
    seen = wait_until(lambda: daemons <= names() or process.poll() is not None, 10 * e2e.PATIENCE)
    with open(log, encoding="utf-8", errors="replace") as file:
        ok(seen and process.poll() is None, "a Slurm test has started all daemons", names(), file.read())
    process.terminate()
    equal(process.wait(10 * e2e.PATIENCE), 143, "told to end, it does")
    return no_orphans("a Slurm test")


ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
e2e.main(ends, reaches_its_limit, is_told_to_end, in_the_middle_of_slurm)
