#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""8 processes with 8 threads read files of 0 B to 40 MiB in all ways, over tiers smaller than the dataset, while the PFS
fails or the agent is killed. Every byte is checked.

Takes 30 s, with MONARCH_TEST_ALL=1 600 s. `stress.t SEED` repeats a run, as far as its processes allow.
"""

import contextlib
import itertools
import json
import os
import random
import sys
import threading
import time

sys.dont_write_bytecode = True
import e2e  # pylint: disable=wrong-import-position
from e2e import BUILD, equal, memory, ok, options, scratch, skip, wait_until

SEED = int((sys.argv[1:] + [os.environ.get("MONARCH_TEST_SEED") or random.SystemRandom().getrandbits(32)])[0])
SECONDS = 600 if os.environ.get("MONARCH_TEST_ALL") == "1" else 30
FILES = 300
STRESS = f"{BUILD}/tests/stress"
ROUND = 4
KILLED = "the agent killed"
FAULTS = ("eio-every", "eio-open-every", "estale-every", "estale-open-every")
CALM = [f"set {name} 0" for name in (*FAULTS, "open-us", "read-us", "meta-us", "hang", "bw-mib")]


def faults(numbers):
    """Settings for the PFS until the next ones: one fault or delay, or none."""
    every = numbers.randrange(20, 300)
    choices = [[f"set {name} {every}"] for name in FAULTS] * 2
    choices += [["set open-us 20000"], ["set read-us 5000"], ["set meta-us 3000"], ["set bw-mib 30"], [],
                ["set hang-every 200", "set hang 1"]]
    return CALM + numbers.choice(choices)


def shake(pfs, numbers, until):
    pfs.command(*CALM, f"set {numbers.choice(FAULTS)} 20")
    while not until.wait(numbers.uniform(0.1, 1)):
        pfs.command(*faults(numbers))
    pfs.command(*CALM)


def read(job, directory, seconds, seed):
    """The program's own counts."""
    code, out, err = job.run([STRESS, "run", directory, str(FILES), str(seconds), str(seed)],
                             seconds=seconds + 2 * e2e.PATIENCE)
    counts = json.loads(out) if out else {}
    ok(code == 0 and counts.get("wrong") == 0 and counts["files"] > 0 and counts["bytes"] > 0,
       f"{counts.get('files')} files, {counts.get('bytes', 0) >> 20} MiB: each byte and size is right", code, err, counts)
    return counts


def errors(counts):
    return counts.get("eio", 0) + counts.get("estale", 0) + counts.get("page_faults", 0)


def kill(job):
    with contextlib.suppress(ProcessLookupError):
        os.kill(job.agent(), 9)


@contextlib.contextmanager
def beside(work, *arguments):
    """A thread that does `work` meanwhile, and is told by an event when to end."""
    until = threading.Event()
    thread = threading.Thread(target=work, args=(*arguments, until))
    thread.start()
    try:
        yield
    finally:
        until.set()
        thread.join()


def tier_serves(job):
    return "waited_hits 0\n" not in e2e.execute([f"{BUILD}/tests/counters", job.run_dir])[1].decode()


def kill_later(job, pfs, numbers, until):
    """Once a tier serves, and long before all is placed: the PFS is fast only when the agent is gone."""
    while not tier_serves(job) and not until.wait(0.05):
        pass
    until.wait(numbers.uniform(0, 0.8))
    kill(job)
    pfs.command("set bw-mib 40")


def one_round(kind, seconds, pfs, tiers, numbers):
    """A job that begins with empty tiers. The report and what the program counted."""
    words = [f"stage_wait_max = {numbers.choice(['1M', '4M', '64M'])}", f"prefetch = {numbers.choice(['on', 'off'])}",
             f"consistency = {numbers.choice(['job', 'open'])}"]
    config = f"{scratch()}/stress.conf"
    with open(config, "w", encoding="utf-8") as out:
        out.write("\n".join(["[agent]", *words, ""]))
    pfs.command(*CALM, "set open-us 500", f"set bw-mib {8 if kind == KILLED else 300}", "reset")
    job = e2e.Job([*options([pfs.mount], tiers), "--config", config], **e2e.sanitizer_log())
    seed = numbers.getrandbits(32)
    if kind == "faults":
        with beside(shake, pfs, numbers):
            counts = read(job, pfs.mount, seconds, seed)
        seen = pfs.counters()
        ok(0 < seen["faults"] >= errors(counts), f"{words}: no error but the PFS's own reached the programs", counts, seen)
    else:
        with beside(kill_later, job, pfs, numbers) if kind == KILLED else contextlib.nullcontext():
            counts = read(job, pfs.mount, seconds, seed)
        equal(errors(counts), 0, f"{words}, {kind}: no errors", counts)
    report = job.end()
    ok(all(level["placed_bytes"] <= quota for level, (_, quota) in zip(report["tiers"], tiers.values())),
       f"{kind}: within the quotas", report["tiers"])
    ok(report["opens_tier"] > 0 and report["tasks"]["opens_pfs"] > 0, f"{kind}: tiers and the PFS were in use", report)
    if kind == KILLED:
        ok(report["tasks"]["fallback_no_agent"] > 0, f"{kind}: opens did without it", report)
    ok(wait_until(lambda: not e2e.traces(job.pid, *[path for path, _ in tiers.values()]), 5), f"{kind}: nothing is left",
       e2e.traces(job.pid))
    equal(e2e.sanitizer_found(), "", f"{kind}: sanitizers found nothing")


def stress():
    if why := e2e.why_no_slowfs():
        return skip("stress", why)
    numbers = random.Random(SEED)
    source = scratch("data")
    equal(e2e.execute([STRESS, "make", source, str(FILES)], seconds=10 * e2e.PATIENCE)[0], 0, "the files are made")
    size = sum(os.path.getsize(f"{d}/{name}") for d, _, names in os.walk(source) for name in names)
    tiers = {"disk": (scratch("tier"), size // 3)}
    if fast := memory("tier"):
        tiers = {"ram": (fast, size // 5), **tiers}
    pfs = e2e.SlowFs(source, f"{source}.pfs")
    # Room for all, and a PFS too slow to fill it by then: what is not placed is not for lack of room.
    roomy = {name: (path, 2 * size) for name, (path, _) in tiers.items()}
    end = time.monotonic() + SECONDS
    kinds = ["no faults", "faults", KILLED, "faults", "faults", KILLED]
    for kind in itertools.cycle(kinds):
        left = end - time.monotonic()
        if left < 2:
            break
        one_round(kind, int(min(max(SECONDS // 10, ROUND), left)), pfs, roomy if kind == KILLED else tiers, numbers)
    return pfs.close()


print(f"# seed {SEED}", flush=True)
sys.argv[1:] = []
e2e.main(stress)
