#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""Jobs beside each other on a node of a real Slurm: each is served, by its part of the node, and at no time they have more of a
tier together than its quota, with somebody beside them who fills and frees the rest of its file system."""

import contextlib
import fcntl
import glob
import json
import os
import re
import subprocess
import threading
import time

import e2e
import slurm_lab
from e2e import equal, ok, scratch, wait_until
from slurm_lab import Cluster

MIB = 1 << 20
QUOTA, RIVAL, CPUS = 8 * MIB, 3 * MIB, 8
FILES, FILE = 48, 256 << 10  # of the dataset: more than the quota
# Reads all files until a copy of one is on the tier, once more, and until it may end.
READ = "for f in {data}/*; do md5sum <$f; done | sort -u | wc -l"
SCRIPT = "n=0; while [ ! -e served.$SLURM_JOB_ID ] && [ $n -lt 200 ]; do {read} >/dev/null; n=$((n + 1)); sleep 0.1; done; " \
         "{read}; while [ ! -e go ]; do sleep 0.1; done"

cluster = tier = data = None


def begin():
    global cluster, tier, data
    cluster = Cluster()
    cluster.configure(f"[tier.nvme]\npath = {cluster.tier}\nquota = {QUOTA}\nmin_free = 0\n")
    cluster.up("--nodes", "1", "--cpus", str(CPUS), "--prolog-flags", "Contain")
    tier = f"{cluster.tier}/{cluster.node_names[0]}"
    # A file system of the tier's own, so that what is used is the sum of what all have written there.
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={QUOTA + RIVAL + MIB},mode=1777", "tmpfs", tier], check=True)
    data = scratch("data")
    for number in range(FILES):
        e2e.write(f"{data}/{number:02}", number.to_bytes(4, "little") * (FILE // 4))
    subprocess.run(["chmod", "-R", "a+rX", data], check=True)


def end():
    return wait_until(lambda: not os.path.ismount(tier) or subprocess.run(["umount", tier], stderr=subprocess.DEVNULL, check=False).returncode == 0, 10)


class Watch:
    """Every 50 ms: what records say that jobs have together, what is on the tier; and which jobs have a copy there, for their scripts.
    Beside it somebody writes and removes files on the tier."""

    def __init__(self):
        self.recorded = self.used = self.copies = self.looks = 0
        self.rival_failed = ""
        self.over = threading.Event()
        self.threads = [threading.Thread(target=work) for work in (self.watch, self.rival)]

    def watch(self):
        while not self.over.wait(0.05):
            self.looks += 1
            for name in os.listdir(f"{tier}/monarch") if os.path.isdir(f"{tier}/monarch") else []:
                if name.startswith("lab.") and any(files for _, _, files in os.walk(f"{tier}/monarch/{name}")):
                    e2e.write(f"{cluster.out}/served.{name.split('.')[1]}", b"")
            self.recorded = max(self.recorded, self.sum_of_records())
            self.copies = max(self.copies, sum(os.lstat(f"{d}/{f}").st_blocks * 512 if os.path.exists(f"{d}/{f}") else 0
                                               for d, _, files in os.walk(f"{tier}/monarch") for f in files))
            fs = os.statvfs(tier)
            self.used = max(self.used, (fs.f_blocks - fs.f_bfree) * fs.f_frsize)

    def sum_of_records(self):
        """What has grown at the cost of what a removal freed is seen together with that; what goes to removing/ meanwhile counts once."""
        with contextlib.suppress(FileNotFoundError), open(f"{cluster.state}/ledger", "rb") as ledger:
            fcntl.flock(ledger, fcntl.LOCK_EX)
            return self.sum_now()
        return 0

    def sum_now(self):
        found = {}
        for path in glob.glob(f"{cluster.state}/jobs/*/record.json") + glob.glob(f"{cluster.state}/removing/*/record.json"):
            with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
                record = json.load(file)
                for t in record.get("tiers", []):
                    found[record["serial"]] = t.get("occupied", t["quota"]) if "/removing/" in path else t["quota"]
        return sum(found.values())

    def rival(self):
        path = f"{tier}/rival"
        try:
            while not self.over.is_set():
                for size in (1, 2, 3):
                    e2e.write(path, bytes(size * RIVAL // 3))
                    time.sleep(0.01)
                os.unlink(path)
        except OSError as error:
            self.rival_failed = str(error)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{tier}/rival")

    def check(self, name):
        ok(self.looks > 10 and 0 < self.recorded <= QUOTA, f"{name}: at no time more was recorded than the quota", self.recorded, self.looks)
        ok(0 < self.copies <= QUOTA, f"{name}: nor were there more copies", self.copies)
        ok(self.used <= QUOTA + RIVAL, f"{name}: nor was more of the file system used", self.used)
        equal(self.rival_failed, "", f"{name}: others had their room all the time")


def submit(*options):
    script = SCRIPT.format(read=READ.format(data=data))
    code, out, err = cluster.execute(["sbatch", "--parsable", "--mem=10", "--output=%A_%a", f"--monarch-dataset={data}", *options, f"--wrap={script}"])
    if code != 0:
        raise RuntimeError(f"sbatch: exit code {code}: {err}")
    return int(out)


def beside(name, parts):
    """Jobs with these numbers of processors: each has its part of the node from its start to its end, also while it is alone."""
    jobs = []
    with Watch() as watch:
        for cpus in parts:
            jobs.append(submit(f"-c{cpus}"))
            if len(parts) == 2:
                ok(wait_until(lambda: is_served(jobs[-1])), f"{name}: it has copies", cluster.log_of(jobs[-1]))
        ok(wait_until(lambda: all(map(is_served, jobs)), 60), f"{name}: each has copies")
        equal([cluster.record(job)["tiers"][0]["quota"] for job in jobs], [QUOTA * cpus // CPUS for cpus in parts],
              f"{name}: each has its part of the node")
        e2e.write(f"{cluster.out}/go", b"")
        equal({cluster.wait(job) for job in jobs}, {"COMPLETED"}, f"{name}: how Slurm says that they ended")
    for job in jobs:
        log = cluster.log_of(job)
        hit = re.search(r" monarch=1 hit=([\d.]+)%.* err=(\d+)", log)
        ok(hit and float(hit.group(1)) > 0 and hit.group(2) == "0", f"{name}, {job}: it is served", log)
        with open(f"{cluster.out}/{job}_4294967294", encoding="utf-8") as file:
            equal(file.readline().strip(), str(FILES), f"{name}, {job}: what it read is right")
    watch.check(name)
    os.unlink(f"{cluster.out}/go")


def is_served(job):
    """Its agent, which may have copies before, is in the record too."""
    return os.path.exists(f"{cluster.out}/served.{job}") and cluster.record(job) is not None


def two():
    beside("two jobs", (2, 4))


def eight():
    beside("eight jobs", [1] * 8)


def leaves_nothing():
    ok(end(), "the tier is free")
    cluster.nothing_left("all jobs")
    cluster.down()


e2e.skip_all_if(slurm_lab.why_no_slurm())
begin()
try:
    e2e.main(two, eight, leaves_nothing)
finally:
    end()
