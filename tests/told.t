#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""A hundred jobs of every kind, one after the other: what each is said to have read of the PFS, in its output, by sacct, by
`monarchctl report` and `status`, and by the metrics, is what the PFS counted, or is said to be a part of it."""

import json
import os
import random
import re
import signal

import e2e
import slurm_lab
from e2e import equal, ok, scratch, wait_until
from slurm_lab import HELD, Cluster, Dataset, fields, quoted, size_text

JOBS = 100
SEED = int(os.environ.get("MONARCH_TEST_SEED", "7"))
cluster = data = pfs = None
# How a job begins: options, and its script by that of one task.
LAUNCHES = {
    "sbatch": ([], "{}"),
    "a step": ([], "srun sh -c {quoted}"),
    "two nodes": (["-N2"], "srun -Q -N2 -n2 sh -c {quoted}"),
}
OPTIONS = {
    "": [], "waits": ["--monarch-wait=full"], "prefetches nothing": ["--monarch-prefetch=off"], "prefetches": ["--monarch-prefetch=all"],
    "compares": ["--monarch-consistency=open"], "has little room": ["--monarch-capacity=1K:200K"], "excludes": ["--monarch-exclude=*:*4.bin"],
}
ENDS = ["is done", "is done", "is done", "fails", "is cancelled", "loses its agent"]


def begin():
    global cluster, data, pfs
    cluster = Cluster()
    cluster.up("--nodes", "2", "--prolog-flags", "Contain")
    data = Dataset(scratch())
    pfs = e2e.SlowFs(data.path, f"{data.path}.pfs")


def ctl(*words):
    code, out, err = cluster.execute([f"{cluster.prefix}/bin/monarchctl", *words, "--state-dir", cluster.state], root=True)
    return out.decode() if code == 0 else f"exit code {code}: {err}"


def object_of(*words):
    text = ctl(*words, "--json")
    return json.loads(text) if text.startswith("{") else {"said": text}


def metrics():
    """Bytes that the PFS gave, and those that jobs read, of all jobs so far."""
    found = {"read": 0, "pfs": 0, "part": 0}
    text = ctl("metrics")
    for name, labels, value in re.findall(r"^monarch_(read|staging)_bytes_total\{(.*)\} (\d+)$", text, flags=re.M):
        from_pfs = 'source="pfs"' in labels
        found["pfs"] += int(value) if from_pfs else 0
        found["read"] += int(value) if name == "read" else 0
    found["part"] = sum(map(int, re.findall(r"^monarch_(?:late_agents|agents_died)_total (\d+)$", text, flags=re.M)))
    return found


def told(job, before):
    """{who: (bytes of the PFS, bytes read, whether it says that it is not all)}"""
    line = cluster.comment(job)
    sacct = fields(line)
    of, _, all_nodes = sacct.get("nodes", "0/0").partition("/")
    output = "".join(cluster.closing(job))
    said = re.search(r"read (\S+), (\S+) of it from the PFS", output)
    report, page = object_of("report", str(job)), ctl("report", str(job), "--html", "-")
    ended = object_of("status", str(job)).get("ended") or [{}]
    text = ctl("report", str(job))
    row = re.search(r"^ *PFS bytes +(\S+?)(?:; nothing was read| instead of (\S+):)", text, flags=re.M)
    card = re.search(r"Read from the PFS.*?([\d.]+[KMGT]?)<.*?instead of ([\d.]+[KMGT]?)", page, flags=re.S)
    now = metrics()
    part = report["nodes_told"] < report["nodes"] or "ended early" in output or "before their agent was ready" in text
    return {
        "the output": (*(reversed(said.groups()) if said else (output, "")), re.search("ended early|one of|not counted|not known", output) is not None),
        "sacct": (*sacct.get("pfs", "?/?").split("/"), of != all_nodes or re.search("agent=died|counters=lost|late=", line) is not None),
        "report --json": (size_text(report["bytes_pfs"]), size_text(report["bytes_read"]), part),
        "report": (*(row.groups("0") if row else ("?", "?")), part),
        "report --html": (*(card.groups() if card else ("?", "?")), part),
        "status --json": (size_text(ended[0].get("bytes_pfs", -1)), size_text(ended[0].get("bytes_read", -1)), part),
        "metrics": (size_text(now["pfs"] - before["pfs"]), size_text(now["read"] - before["read"]), now["part"] > before["part"]),
    }


def one(number, numbers):
    launch, option, end, times = numbers.choice([*LAUNCHES]), numbers.choice([*OPTIONS]), numbers.choice(ENDS), numbers.randrange(4)
    name = f"{number}: {launch}, reads {times} times{', ' if option else ''}{option}, {end}"
    words, script = LAUNCHES[launch]
    task = f"for n in {' '.join(map(str, range(times)))}; do find {pfs.mount} -type f -print0 | xargs -0 cat; done >/dev/null"
    before, counted = metrics(), pfs.counters()["read_bytes"]
    text = script.format(task, quoted=quoted(task))
    more = {"fails": "; exit 3", "is cancelled": f"; {HELD}", "loses its agent": f"; {HELD}; {text}"}.get(end, "")
    job = cluster.submit([f"--monarch-dataset={pfs.mount}", *words, *OPTIONS[option]], text + more)
    if more.startswith(f"; {HELD}"):
        cluster.held(job)
        if end == "loses its agent":
            os.kill(cluster.record(job)["pid"], signal.SIGKILL)
            cluster.go(job)
        else:
            cluster.execute(["scancel", str(job)])
    state = cluster.wait(job)
    equal(state, {"fails": "FAILED", "is cancelled": "CANCELLED"}.get(end, "COMPLETED"), f"{name}: how Slurm says that it ended")
    cluster.comment(job)
    wait_until(lambda: metrics() != before or times == 0, 10)
    counted = size_text(pfs.counters()["read_bytes"] - counted)
    nodes = 2 if launch == "two nodes" else 1
    read = size_text(data.bytes * times * nodes * (2 if end == "loses its agent" else 1))
    if times == 0:
        ok(re.search("no program has used the dataset|not counted|not known", "".join(cluster.closing(job))), f"{name}: the output says so", cluster.closing(job))
    for who, (from_pfs, all_read, part) in told(job, before).items():
        if times == 0 and who == "the output":
            continue
        ok((from_pfs, all_read) == (counted, read) or part, f"{name}: {who}", (from_pfs, all_read, part), (counted, read), cluster.closing(job), cluster.comment(job))


def hundred():
    numbers = random.Random(SEED)
    print(f"# seed {SEED}")
    for number in range(1, JOBS + 1):
        one(number, numbers)
    cluster.nothing_left("a hundred jobs")


e2e.skip_all_if(slurm_lab.why_no_slurm())
begin()
e2e.main(hundred)
