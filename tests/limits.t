#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""build-aux/test-limit ends a test with all that it started: at its limit, and by a signal."""

import contextlib
import ctypes
import os
import signal
import subprocess

import e2e
from e2e import SOURCE, contains, equal, ok, wait_until

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
    out += process.communicate(timeout=10 * e2e.PATIENCE)[0]
    return process.returncode, out.decode()


def ends():
    equal(limited(100, "echo one; exit 3"), (3, "one\n"), "a test that ends: its own status and output")
    equal(limited(100, "kill -9 $$")[0], 137, "one that is killed")
    equal(limited(100, "(sleep 1 &); exit 0"), (0, ""), "one whose last process ends a little later")


def is_ended():
    hangs = f"{DAEMON}; trap 'echo cleaned up; exit' TERM; echo begun; while :; do sleep 0.1; done"
    for what, want, words, said in (
            ("leaves a daemon behind", 125, (100, f"{DAEMON}; echo cleaned up; exit 0"), "Bail out! left behind: sleep ("),
            ("hangs", 124, (2, hangs), "Bail out! ended with all that it had started: it had not ended after 2 s"),
            ("is told to end", 143, (1000, hangs, "begun"), "received signal 15")):
        code, out = limited(*words)
        equal(code, want, f"a test that {what} has failed")
        contains(out, ["cleaned up", said], "and says so")
        no_orphans(f"a test that {what}")


ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
e2e.main(ends, is_ended)
