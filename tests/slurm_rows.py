# SPDX-License-Identifier: Apache-2.0
"""Which rows of Slurm's accounting database jobs' lines go to: parts of tests of more than one Slurm."""

import contextlib
import glob
import json
import re
import time

from e2e import equal, ok, scratch, wait_until, write
from slurm_lab import Dataset, fields, size_text


def spool_is_empty(cluster):
    return wait_until(lambda: not glob.glob(f"{cluster.state}/spool/*"), 120)


def lines(cluster):
    """What waits for slurmdbd."""
    found = []
    for path in sorted(glob.glob(f"{cluster.state}/spool/*")):
        with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8") as file:
            found.append(file.read())
    return found


def knows_times(cluster, job):
    """Whether root knows when the job's run was submitted and began."""
    return any("submit" in (cluster.record(job, node) or {}) for node in cluster.node_names)


def rows_of_runs(cluster, name=""):
    """slurmdbd is away: each line goes to the row of its own run, that of a requeued job and of an id that comes again.

    Job ids begin anew: other tests come first.
    """
    data, more = Dataset(scratch()), Dataset(scratch())
    daemon = cluster.kill("slurmdbd")
    script = (f'if [ "$SLURM_RESTART_COUNT" ]; then {data.read(2)}; touch second.$SLURM_JOB_ID; '
              'while [ ! -e go.$SLURM_JOB_ID ]; do sleep 0.05; done; '
              f'else {data.read(1)}; touch first.$SLURM_JOB_ID; sleep 600; fi')
    job = cluster.submit(["--requeue", "--open-mode=append", f"--monarch-dataset={data.path}"], script)
    cluster.wait_running(job, f"first.{job}")
    ok(wait_until(lambda: knows_times(cluster, job)), f"{name}root knows when the run began")
    cluster.requeue(job)
    cluster.wait_running(job, f"second.{job}")
    ok(wait_until(lambda: knows_times(cluster, job)), f"{name}and when the next one did, of which Slurm tells plugins no number")
    write(f"{cluster.out}/go.{job}", b"")
    equal(cluster.wait(job), "COMPLETED", f"{name}requeued while slurmdbd is away: how Slurm says that it ended")
    waiting = lines(cluster)
    equal(len(waiting), 2, f"{name}requeued while slurmdbd is away: two lines wait", *waiting, cluster.log_of(job))
    cluster.restart(daemon)
    ok(spool_is_empty(cluster), f"{name}requeued while slurmdbd is away: both are written", glob.glob(f"{cluster.state}/spool/*"))
    got = [fields(row).get("pfs") for row in cluster.rows(job)]
    want = [f"{size_text(data.bytes)}/{size_text(times * data.bytes)}" for times in (1, 2)]
    equal(got, want, f"{name}requeued while slurmdbd is away: each run has its own line", *cluster.rows(job), *waiting, cluster.log_of(job))
    cluster.forget_jobs()
    old = cluster.rows(1)
    daemon = cluster.kill("slurmdbd")
    ids = []
    while 1 not in ids and len(ids) < 3:
        ids.append(cluster.submit([f"--monarch-dataset={more.path}"], more.read(3)))
        equal(cluster.wait(ids[-1]), "COMPLETED", f"{name}an id comes again: how Slurm says that the job ended")
    equal(ids, [1], f"{name}an id comes again")
    time.sleep(3)
    cluster.restart(daemon)
    ok(spool_is_empty(cluster), f"{name}an id comes again: the line is written", glob.glob(f"{cluster.state}/spool/*"))
    now = cluster.rows(1)
    equal(now[:-1], old, f"{name}an id comes again: the rows of older jobs are as they were", *now)
    equal(fields(now[-1]).get("pfs"), f"{size_text(more.bytes)}/{size_text(3 * more.bytes)}", f"{name}an id comes again: the new row has the line")
    cluster.nothing_left(f"{name}rows of runs")


def array_rows(cluster, name=""):
    """The tasks of an array, of which the last has the id of the whole: each row has its own line."""
    data = Dataset(scratch())
    job = cluster.submit(["--array=1-3", f"--monarch-dataset={data.path}"],
                         f'for n in $(seq $SLURM_ARRAY_TASK_ID); do {data.read()}; done')
    equal(cluster.wait(job), "COMPLETED", f"{name}array: how Slurm says that they ended")
    ok(spool_is_empty(cluster), f"{name}array: all lines are written")
    records = {int(record["ArrayTaskId"]): int(record["JobId"]) for record in cluster.jobs(job)}
    got = {task: [fields(row).get("pfs") for row in cluster.rows(member)] for task, member in records.items()}
    equal(got, {task: [f"{size_text(data.bytes)}/{size_text(task * data.bytes)}"] for task in (1, 2, 3)},
          f"{name}array: each task's row has its own line")

    def report(of):
        return cluster.execute([f"{cluster.prefix}/bin/monarchctl", "report", of, "--json", "--state-dir", cluster.state], root=True)
    reads = [json.loads(report(f"{job}_{task}")[1] or "{}").get("bytes_read") for task in (1, 2, 3)]
    equal(reads, [task * data.bytes for task in (1, 2, 3)], f"{name}array: report NUMBER_INDEX has each task's")
    code, _, err = report(str(job))
    ok(code == 1 and re.search(rf"job {job} has 3 parts; name one: ({job}_[123](, |\n)){{3}}", err), f"{name}array: its number alone lists them", err)
