#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""Root's helpers without Slurm, where only whole programs, or a file system of its own, show what is so."""

import contextlib
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import time

import e2e
import one_node
from e2e import BUILD, contains, equal, ok, running, wait_until

NAMELESS = 2000054321  # of no user in passwd
SOON = 90  # seconds in which all that an epilog left to the background is gone

class Node(one_node.Node):
    """One whose lines for sacct are kept."""
    account = "/bin/false"

    def configure(self, tiers=""):
        e2e.write(self.config, "[accounting]\naccount = spool\n" + (tiers or f"[tier.nvme]\npath = {self.tier}\nquota = 100M\nmin_free = 0\n"))

    def in_memory(self):
        self.configure(f"[tier.ram]\npath = {self.tier}\ndriver = tmpfs\nquota = 8M\nmedium = ram\n")

    def lines(self, job):
        """For sacct; without what a helper that was killed has half written."""
        found = []
        for path in glob.glob(f"{self.state}/spool/c-1.{job}.0.n1.x.*.kept"):
            found.append(json.loads(e2e.text_in(path))["line"])
        return found

    def epilog(self, job, cluster="c-1", before=()):
        return e2e.execute([*before, *self.words("--epilog", job, cluster)])[0]

    def quota(self, job):
        return self.record(job)["tiers"][0]["quota"]

    def charged(self):
        """What is being removed counts by."""
        found = []
        for path in glob.glob(f"{self.state}/removing/*/record.json"):
            with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
                found += [tier.get("occupied", tier["quota"]) for tier in json.load(file)["tiers"]]
        return found

    def job_dir(self, job):
        """On the tier; the last run's."""
        return max(glob.glob(f"{glob.escape(self.tier)}/monarch/c-1.{job}.0.n1.x.*"), default=f"{self.tier}/none")

    def copies(self, job):
        return [f"{path}/{name}" for path, _, files in os.walk(self.job_dir(job)) for name in files]

    def is_staged(self, job):
        return wait_until(lambda: len(self.copies(job)) == 30)

    def left(self, job):
        """All that is there of a job, on the tier and in the state directory, but its line for sacct."""
        return [p for p in glob.glob(f"{self.state}/*/*", include_hidden=True) + glob.glob(f"{self.tier}/monarch/*", include_hidden=True)
                if re.search(rf"[/.]{job}\.", p.replace(self.dir, "")) and "/spool/" not in p]

    def ends(self, job, what):
        equal(self.epilog(job), 0, f"{what}: the epilog ends well")
        ok(wait_until(lambda: not self.left(job), SOON), f"{what}: nothing is left", self.left(job), self.logged())

    def try_again(self):
        """What a removal that was given up waits for."""
        for path in glob.glob(f"{self.state}/removing/*/record.json"):
            record = json.loads(e2e.text_in(path))
            e2e.write(path + ".test", json.dumps({**record, "next_try": 0}))
            os.rename(path + ".test", path)

    def helpers(self):
        """pids of root's helpers, removers included."""
        state = "".join(c if c.isalnum() else f"[{c}]" for c in self.state)
        found = subprocess.run(["pgrep", "-f", f"^{BUILD}/monarchd --(epilog|start|prolog|sweep) --state-dir {state} "],
                               stdout=subprocess.PIPE, check=False)
        return list(map(int, found.stdout.split()))

    def kill_helpers(self):
        for pid in self.helpers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self):
        for key in glob.glob(f"{self.state}/jobs/*"):
            cluster, job = os.path.basename(key).split(".")[:2]
            self.epilog(job, cluster)
        wait_until(lambda: not self.helpers() and not glob.glob(f"{self.state}/removing/*"), 30)
        self.kill_helpers()
        for point in reversed(e2e.mounts_below(self.dir)):
            subprocess.run(["umount", "-l", point], check=False)
        e2e.remove_groups(self.state)
        shutil.rmtree(self.dir, ignore_errors=True)


# ---- killed at any moment


def every_moment():
    """The epilog is killed at a random moment, again and again; the next job's start cleans up. Each job has its line, once."""
    with contextlib.closing(Node("moments")) as n:
        jobs = range(10, 22)
        for turn, job in enumerate(jobs):
            contains(n.answer(job), ["ready "], "a job starts")
            agent = n.record(job)["pid"]
            epilog = e2e.start(n.words("--epilog", job), stdin=subprocess.DEVNULL)
            time.sleep(turn // 2 * 0.008)
            if turn % 2 == 0:
                epilog.kill()  # to find the others takes longer
            n.kill_helpers()
            epilog.wait(e2e.PATIENCE)
            with contextlib.suppress(ProcessLookupError):
                os.kill(agent, signal.SIGKILL)
        # Who was killed inside a system call keeps his lock until he has died, and the sweep leaves him alone.
        ok(wait_until(lambda: not n.helpers(), SOON), "those that were killed die")
        n.answer(99)
        left = lambda: [path for job in jobs for path in n.left(job)]
        # A sweep has no time for all that are dead, and leaves those that die still: each prolog has another.
        ok(wait_until(lambda: e2e.execute(n.words("--prolog", 99)) and not left(), SOON), "an epilog killed at any moment leaves nothing for ever", left())
        equal([job for job in jobs if len(n.lines(job)) != 1], [], "each job has one line", os.listdir(f"{n.state}/spool"))
        ok(wait_until(lambda: n.quota(99) == 100 << 20, SOON), "the next job has the whole quota", n.logged())


def start_killed():
    """A start is killed at any moment; the next step's start mends it, and no agent is left that nobody knows."""
    def agents():
        found = subprocess.run(["pgrep", "-f", f"^monarchd .* --run-dir {n.state}/run/"], stdout=subprocess.PIPE, check=False)
        return sorted(map(int, found.stdout.split()))

    with contextlib.closing(Node("starts")) as n:
        recorded, jobs = 0, range(10, 26)
        for turn, job in enumerate(jobs):
            process, answer = n.starting(job)
            record = f"{n.state}/jobs/c-1.{job}.n1.x/record.json"
            if turn < 8:
                time.sleep(turn * 0.002)
            else:  # about when it forks the agent
                wait_until(lambda process=process, record=record: os.path.exists(record) or process.poll() is not None)
                time.sleep((turn - 8) * 0.0002)
            process.kill()  # alone: the child that it may have had goes on
            process.wait(e2e.PATIENCE)
            answer.close()
            recorded += os.path.exists(record)
            contains(n.answer(job), ["ready "], "the next step's start serves where one was killed")
            ok(running(n.record(job)["pid"]), "with an agent that runs")
        ok(recorded >= 4, "starts were killed in the middle", recorded)
        equal(agents(), sorted(n.record(job)["pid"] for job in jobs), "every agent is recorded")
        for job in jobs:
            n.ends(job, "after a start that was killed")
        equal(agents(), [], "nor an agent")


# ---- tiers


@e2e.unless(e2e.why_no_fuse)
def hangs_in_mid_job():
    """A tier that begins to hang while a job has it: no hook waits for it, and what is there goes when it answers again."""
    with contextlib.closing(Node("mid-job")) as n:
        other = f"{n.dir}/other"
        os.mkdir(other)
        os.chmod(other, 0o1777)
        n.configure("".join(f"[tier.{name}]\npath = {path}\nquota = 1M\nmin_free = 0\n" for name, path in (("nvme", n.tier), ("other", other))))
        contains(n.answer(1), ["ready "], "a job starts")
        hang = e2e.hanging_mount(n.tier, 0)
        equal(n.epilog(1), 0, "its tier hangs: its epilog does not")
        contains(n.answer(2), ["ready "], "and the next job starts, without it")
        ok(wait_until(lambda: not glob.glob(f"{other}/monarch/*1.0.n1*"), SOON), "what the job had elsewhere goes", os.listdir(f"{other}/monarch"))
        equal(len(n.charged()), 2, "what is there is charged still")
        os.close(hang)
        subprocess.run(["umount", "-l", n.tier], check=True)
        n.try_again()
        ok(wait_until(lambda: not n.left(1), SOON), "it answers again: all is gone", n.left(1), n.logged())


# ---- names


def odd_paths():
    """Names of directories and datasets that could break a line, a list or a file; of a user whom this node's passwd does not know."""
    with contextlib.closing(Node("a b\tc\\d\\040;e#f%s,g='h\"\u00e9$(i)")) as n:
        for job, name in enumerate((" spaces in it ", "'quotes\"", "comma,comma", "semi;#colon", "new\nline", "$(touch x)`x`", "\udcff\udcfe", "é" * 100), 1):
            path = f"{n.dir}/{name}"
            shutil.copytree(n.data, path)
            answer = n.answer(job, path, NAMELESS)
            ok(answer.startswith("ready ") and answer.count("\n") == 1, f"a dataset called {name!a}", answer)
            ok(n.is_staged(job), f"is staged: {name!a}")
            equal(e2e.execute(["setpriv", f"--reuid={NAMELESS}", "--clear-groups", "cmp", n.copies(job)[0], n.copies(job)[0]])[0], 0,
                  f"for its owner to read: {name!a}")
            contains(n.answer(job, f"{path}.other", NAMELESS), ["ready ", "is not staged"], f"another one than {name!a}")
            n.ends(job, f"{name!a}")
        n.in_memory()
        contains(n.answer(80), ["ready "], "a job with a memory tier starts")
        ok(n.job_dir(80) in e2e.mounts_below(n.tier) and n.is_staged(80), "its dataset is in its tmpfs", e2e.mounts_below(n.tier))
        n.ends(80, "a memory tier")
        equal(e2e.mounts_below(n.dir), [], "nor mounted")
        lines = n.logged().splitlines()
        ok(all(re.match(r"\d{4}-\d\d-\d\dT[0-9:.]+ monarchd\[\d+\]: ", line) for line in lines), "each line of the log is a whole one", lines)


e2e.skip_all_if(e2e.why_not_root())
e2e.main(every_moment, start_killed, hangs_in_mid_job, odd_paths)
