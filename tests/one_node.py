# SPDX-License-Identifier: Apache-2.0
"""A node on which jobs begin and end by root's helpers, as the plugin runs them, for tests of what root keeps of jobs."""

import contextlib
import glob
import json
import os
import shutil
import subprocess
import time

import e2e
from e2e import BUILD, equal, ok, scratch, wait_until

UID, OTHER = 65534, 65533
FIRST = os.getpid() * 10  # of jobs that no other process on this machine takes for its own


class Node:
    """A node with one tier; jobs stage all of their dataset ahead."""
    account = ""  # the program that writes lines for sacct

    def __init__(self, name):
        self.dir = scratch(name)
        os.chmod(self.dir, 0o755)
        self.state, self.tier, self.data, self.config, self.log = (f"{self.dir}/{part}" for part in ("state", "tier", "data", "conf", "log"))
        os.makedirs(self.tier, exist_ok=True)
        os.chmod(self.tier, 0o1777)
        e2e.make_tree(self.data, 30)
        subprocess.run(["chmod", "-R", "a+rX", self.data], check=True)
        self.configure()

    def configure(self, accounting="", tier=""):
        e2e.write(self.config, f"[tier.nvme]\npath = {self.tier}\nquota = 100M\nmin_free = 0\n{tier}[agent]\nprefetch = on\n[accounting]\n{accounting}")

    def words(self, hook, job, cluster="c-1"):
        return [f"{BUILD}/monarchd", hook, "--state-dir", self.state, "--job", str(job), "--cluster", cluster, "--node", "n1.x", "--log", self.log,
                "--config", self.config, "--account-program", self.account]

    def record(self, job, cluster="c-1"):
        return json.loads(e2e.text_in(f"{self.state}/jobs/{cluster}.{job}.n1.x/record.json"))

    def begin(self, job, cluster="c-1"):
        """Begins a job; its run directory."""
        code, _, err = e2e.execute([*self.words("--start", job, cluster), "--uid", str(UID), "--gid", str(UID), "--datasets", self.data])
        equal(code, 0, f"job {job - FIRST} begins", err, e2e.text_in(self.log))
        return self.record(job, cluster)["run_dir"]

    def start(self, job, cluster="c-1"):
        """Begins a job, of which all is staged; its run directory."""
        run_dir = self.begin(job, cluster)

        def is_staged():
            with contextlib.suppress(OSError), open(f"{run_dir}/state", encoding="utf-8") as file:
                return "state=staged-in" in file.read() and os.path.exists(f"{run_dir}/series")
            return False
        ok(wait_until(is_staged), f"job {job - FIRST} is staged", *[text_of(f"{run_dir}/{name}") for name in ("state", "monarchd.log")], os.listdir(run_dir))
        return run_dir

    def starting(self, job, datasets=None, uid=UID, cluster="c-1", before=(), more=()):
        """Runs `monarchd --start` for a job; the process, and a file of its answer."""
        read, write = os.pipe()
        process = e2e.start([*before, *self.words("--start", job, cluster), "--uid", str(uid), "--gid", str(uid), *more, "--datasets",
                             self.data if datasets is None else datasets, "--reply-fd", str(write)], pass_fds=[write], stdin=subprocess.DEVNULL,
                            env={"PATH": "/usr/bin:/bin"})
        os.close(write)
        return process, os.fdopen(read, encoding="utf-8", errors="surrogateescape")

    def answer(self, *words, **more):
        """What `monarchd --start` answers."""
        process, answer = self.starting(*words, **more)
        with answer:
            line = answer.readline()
        process.wait(e2e.PATIENCE)
        return line

    def logged(self):
        return text_of(self.log)

    def read(self, run_dir):
        """As a task of the job."""
        files = [os.path.join(top, name) for top, _, names in os.walk(self.data) for name in names]
        libraries = ":".join([*e2e.SANITIZER.split(), f"{BUILD}/libmonarch_preload.so"])
        e2e.execute([*e2e.NOBODY, "cat", *files], env={"PATH": "/usr/bin:/bin", "LD_PRELOAD": libraries, "MONARCH_IO_RUN_DIR": run_dir})

    def end(self, job, cluster="c-1"):
        begin = time.monotonic()
        code, _, err = e2e.execute(self.words("--epilog", job, cluster))
        took = time.monotonic() - begin
        ok(code == 0, f"the epilog of job {job - FIRST} ends well", code, took, err)

    def end_at_once(self, *jobs):
        helpers = [e2e.start(self.words("--epilog", job), stdin=subprocess.DEVNULL) for job in jobs]
        equal([helper.wait(e2e.PATIENCE) for helper in helpers], [0] * len(jobs), "epilogs at once")

    def close(self):
        for path in glob.glob(f"{self.state}/jobs/*"):
            cluster, job = os.path.basename(path).split(".")[:2]
            e2e.execute(self.words("--epilog", int(job), cluster))
        wait_until(lambda: not glob.glob(f"{self.state}/removing/*"), 30)
        e2e.remove_groups(self.state)
        shutil.rmtree(self.dir, ignore_errors=True)


def text_of(path):
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
    return f"no {path}"


def as_user(uid):
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]


as_root = e2e.unless(e2e.why_not_root, e2e.why_not_nobody)
