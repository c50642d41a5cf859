#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""monarchctl top: as text and JSON, and on a terminal, which is one of tmux's: what is on the page, keys, sizes, and that the
terminal is as before at the end."""

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import time

import e2e
from e2e import TOOL, equal, ok, scratch

HEADINGS = ["JOB", "USER", "STATE", "STAGED", "RATE", "HIT", "PFS", "TIERS"]
MEMORY = "/dev/shm"  # root's test has one of its own, see alone()


def alone():
    """Root would see the runs of other tests."""
    CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() != 0 or libc.unshare(CLONE_NEWNS) != 0:
        return
    for source, target, kind, flags in [(b"none", b"/", None, MS_REC | MS_PRIVATE), (b"tmpfs", MEMORY.encode(), b"tmpfs", 0)]:
        if libc.mount(source, target, kind, flags, None) != 0:
            raise OSError(ctypes.get_errno(), f"mount {target.decode()}")
    os.chmod(MEMORY, 0o1777)


def top(*words, **options):
    code, out, err = e2e.execute([*options.pop("before", ()), TOOL, "top", *words], **options)
    return code, out.decode(), err


class Run:
    """A `monarchctl run` that has read its dataset, or stages it, and waits."""

    def __init__(self, name, *words, files=20, before=()):
        data, tier = scratch(f"{name}.data"), scratch(f"{name}.tier")
        self.data, self.size = data, e2e.make_tree(data, files)
        for path in data, tier:
            subprocess.run(["chmod", "-R", "a+rwX", path], check=True)
        script = 'echo up; read x; find "$1" -type f -exec cat {} + >/dev/null; echo read; read x'
        self.process = e2e.start([*before, TOOL, "run", *words, *e2e.options([data], {"t": (tier, "1G")}), "--", "sh", "-c", script, "sh", data],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=e2e.environment())
        self.name = f"run.{self.process.pid}"
        equal(self.process.stdout.readline(), b"up\n", f"a run: {name}")

    def read(self):
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        self.process.stdout.readline()

    def end(self):
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.wait(e2e.PATIENCE)


def slow_run(name, before=()):
    """One that stages for as long as the test takes."""
    return Run(name, *e2e.config(pfs_bandwidth="20K"), files=600, before=before)


def row(text, name):
    """The line of that job, in fields."""
    found = re.search(rf"^{re.escape(name)} .*$", text, flags=re.M)
    return found[0].split(maxsplit=len(HEADINGS) - 1) if found else []


# ---- as text


def batch():
    run, slow = Run("batch"), slow_run("slow")
    run.read()
    code, out, err = top("--batch", "--count", "2", "--delay", "4")  # a large file is paid for in advance: for two seconds none follows
    blocks = out.split("\n\n")
    equal((code, err, len(blocks)), (0, "", 2), "two looks", out)
    for block in blocks:
        lines = block.splitlines()
        ok(re.fullmatch(r"\d\d:\d\d:\d\d \S+: \d+ jobs with Monarch, staging \S+/s", lines[0]), "a line with time, node and rate", block)
        equal(lines[1].split(), HEADINGS, "the columns")
        fields = row(block, run.name)
        equal([fields[i] for i in (2, 3, 4, 7)] if len(fields) == 8 else fields, ["staged-in", "100%", "0/s", "t 0%"], "a job that is staged", block)
        ok(re.fullmatch(r"\d+%", (fields + [""] * 8)[5]), "it has hits", block)
        fields = row(block, slow.name)
        ok(len(fields) == 8 and fields[2] == "staging-in" and re.fullmatch(r"[1-9].*/s", fields[4]), "a job that is being staged has a rate", block)
    ok("\033" not in out, "no colours and no pages but on a terminal")
    for words, order in ([], [slow, run]), (["--sort", "staged"], [run, slow]):
        first = [line.split()[0] for line in (top("--batch", "--count", "1", *words)[1] if words else blocks[0]).splitlines()[2:]]
        ok(first.index(order[0].name) < first.index(order[1].name), f"the fastest one is the first, but as --sort says {words}", first)
    code, out, err = top("--json", "--count", "2", "--delay", "0.2")
    looks = [json.loads(line) for line in out.splitlines()]
    equal((code, err, len(looks)), (0, "", 2), "--json: a line for each look", out)
    told = json.loads(e2e.execute([TOOL, "status", run.name, "--json"])[1])["jobs"][0]
    for look in looks:
        equal(next((job for job in look["jobs"] if job["job"] == run.name), {}), told, "--json: the fields of status")
    ok(looks[0]["time"] <= looks[1]["time"] <= time.time() + 1 and looks[0]["version"], "--json: version and time", looks[0])
    slow.end()
    ok(e2e.wait_until(lambda: not row(top("--batch", "--count", "1")[1], slow.name)),
       "a job that has ended is not shown any more")
    run.end()


# ---- on a terminal


class Screen:
    """A tmux of 80 columns and 24 lines, in which a shell runs `monarchctl top`."""

    def __init__(self, *words, stops=False):
        self.dir = scratch(f"screen.{time.monotonic_ns()}")
        os.chmod(self.dir, 0o777)
        self.socket = f"{self.dir}/s"
        self.server = e2e.start(["tmux", "-D", "-u", "-S", self.socket, "-f", "/dev/null"], stdin=subprocess.DEVNULL, env=e2e.native_environment(TERM="xterm"))
        e2e.wait_until(lambda: os.path.exists(self.socket))
        command = " ".join([TOOL, "top", *words])
        if stops:  # with job control the shell goes on when it stops
            command = f"set -m; {command}; read x; fg"
        self.tmux("new-session", "-d", "-x", "80", "-y", "24", "-s", "s",
                  f'stty -a >{self.dir}/before; echo typed before; {command}; code=$?; stty -a >{self.dir}/after; echo "ended with $code"; exec sleep 1000')

    def __enter__(self):
        return self

    def __exit__(self, *_):
        e2e.execute(["tmux", "-S", self.socket, "kill-server"])
        e2e.end(self.server)

    def tmux(self, *words):
        code, out, err = e2e.execute(["tmux", "-S", self.socket, *words])
        if code != 0:
            raise RuntimeError(f"tmux {words}: {err}")
        return out.decode()

    def page(self):
        return self.tmux("capture-pane", "-p", "-t", "s").split("\n")[:-1]

    def shows(self, condition, name):
        """Waits until the page is such."""
        seen = []

        def look():
            seen[:] = self.page()
            return condition(seen)

        return ok(e2e.wait_until(look), name, *seen)

    def keys(self, *names):
        self.tmux("send-keys", "-t", "s", *names)

    def size(self, columns, lines):
        self.tmux("resize-window", "-t", "s", "-x", str(columns), "-y", str(lines))

    def pid(self):
        shell = int(self.tmux("display-message", "-p", "-t", "s", "#{pane_pid}"))
        return next(iter(e2e.children(shell, "monarchctl")), 0)

    def ended(self, name):
        """It has ended well, and left the terminal as it was."""
        self.shows(lambda page: "ended with 0" in page, f"{name}: it ends, and the page of before is back")
        ok("typed before" in self.page(), f"{name}: with what stood there")
        equal(self.tmux("display-message", "-p", "-t", "s", "#{alternate_on} #{cursor_flag}"), "0 1\n", f"{name}: the cursor is there")
        told = []
        for when in "before", "after":
            told.append(re.sub(r"rows \d+; columns \d+", "", e2e.text_in(f"{self.dir}/{when}")))
        equal(told[1], told[0], f"{name}: the terminal's modes are those of before")


def keys_of(page):
    return page[-1]


def screen():
    run, slow = Run("shown"), slow_run("shown.slow")
    run.read()
    with Screen("--delay", "0.5") as s:
        s.shows(lambda page: row("\n".join(page), run.name)[2:4] == ["staged-in", "100%"] and row("\n".join(page), slow.name)[2:3] == ["staging-in"],
                "the jobs are on the page")
        page = s.page()
        ok(re.match(r"\d\d:\d\d:\d\d \S+: \d+ jobs with Monarch", page[0]) and page[2].split()[:8] == HEADINGS and page[1] == "", "title and columns", *page)
        equal((len(page), max(len(line) for line in page) <= 80, keys_of(page)[:30]), (24, True, "q quit  s sort: rate  r revers"), "24 lines of 80 columns, with the keys in the last one")
        for columns, lines in (100, 30), (40, 10), (20, 3), (80, 24):
            s.size(columns, lines)
            s.shows(lambda page, lines=lines: len(page) == lines and keys_of(page).startswith("q quit"),
                    f"it follows a terminal of {columns} by {lines}")
            ok(max(len(line) for line in s.page()) <= columns, "where lines are cut, not folded", *s.page())
        s.shows(lambda page: any(line.startswith(run.name) for line in page), "and shows all again")
        for columns, more in (60, []), (250, ["ETA", "NODES", "PEERS", "DATASET"]):
            s.size(columns, 24)
            s.shows(lambda page, more=more: page[2].split() == HEADINGS + more, f"{columns} columns have room for {more}")
        fields = {job.name: row("\n".join(s.page()), job.name) for job in (run, slow)}
        equal(fields[run.name][7].split()[2:], ["-", "1", "-", run.data], "which a job of one node has that is staged")
        s.size(80, 24)
        before = [line.split()[0] for line in s.page()[3:5]]
        s.keys("r")
        s.shows(lambda page: [line.split()[:1] for line in page[3:5]] == [[before[1]], [before[0]]], "r turns the order round")
        s.keys("s")
        s.shows(lambda page: "s sort: hit " in keys_of(page), "s sorts by the next column")
        slow.end()
        s.shows(lambda page: not row("\n".join(page), slow.name), "a job that has ended disappears")
        s.keys("q")
        s.ended("q")
    run.end()


def ends():
    for name in "TERM", "HUP", "C-c", "Q", "count":
        with Screen("--delay", "0.5", *(["--count", "2"] if name == "count" else [])) as s:
            s.shows(lambda page: keys_of(page).startswith("q quit"), f"a page before {name}")
            if name in ("C-c", "Q"):
                s.keys(name)
            elif name != "count":
                os.kill(s.pid(), getattr(signal, f"SIG{name}"))
            s.ended(name)
    with Screen(stops=True) as s:
        s.shows(lambda page: keys_of(page).startswith("q quit"), "a page before it is stopped")
        s.keys("C-z")
        ok(e2e.wait_until(lambda: s.tmux("display-message", "-p", "-t", "s", "#{alternate_on}") == "0\n"), "it can be stopped, and gives the terminal back meanwhile")
        s.keys("Enter")
        s.shows(lambda page: keys_of(page).startswith("q quit"), "its page is there when it goes on")
        s.keys("q")
        s.ended("stopped once")


alone()
e2e.main(batch, *([screen, ends] if shutil.which("tmux") else [lambda: e2e.skip("on a terminal", "no tmux (dev/deps test)")]))
