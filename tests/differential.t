#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""Random calls on a dataset give natively and in a job the same results, call by call: returns, errors, bytes, stat
fields.  The same seeds each time; with MONARCH_TEST_ALL=1 new ones for ten minutes.  `tests/differential.t SEED...` runs single
seeds; those that failed once are in tests/fixtures/differential.seeds and are run first."""

import os
import random
import sys
import time

import e2e
from e2e import BUILD, SOURCE, ok, options, scratch

DIFFERENTIAL = f"{BUILD}/tests/differential"
# Beside a wrapper that tells other times and owners; where statx(2) is refused.
OTHER_VALUES = ["sh", "-c", 'LD_PRELOAD="$LD_PRELOAD:$0" exec "$@"', f"{BUILD}/tests/other_values.so"]
NO_STATX = [f"{BUILD}/tests/safety", "without statx"]
CALLS = 400
SECONDS = 600

# What the job may keep, and how: (quota, configuration, whether all is read before, by what the program is started).
KINDS = {
    "placed": ("1G", {}, True, []),
    "cold": ("1G", {"prefetch": "off"}, False, []),
    "large": ("1G", {"stage_wait_max": "16K", "prefetch": "off"}, False, []),
    "full": ("300K", {}, False, []),
    **({} if e2e.SANITIZER else {"beside": ("1G", {}, True, OTHER_VALUES), "filtered": ("1G", {}, True, NO_STATX)}),
}
QUIET = 2.2  # seconds after which Monarch's walk keeps the names in a directory


def fresh(seed, number):
    root = f"{scratch()}/tree{number:02}"
    e2e.execute(["rm", "-rf", root])
    os.mkdir(root)
    code, _, err = e2e.execute([DIFFERENTIAL, "make", str(seed), root])
    if code != 0:
        raise RuntimeError(err)
    return root


def compare_all(cases):
    """For each (seed, kind): the first calls that differ, with some before them (none: []), and the counters."""
    trees = [(fresh(seed, 2 * i), fresh(seed, 2 * i + 1)) for i, (seed, _) in enumerate(cases)]
    time.sleep(QUIET)
    return [compare(*case, *roots) for case, roots in zip(cases, trees)]


def compare(seed, kind, native_root, root):
    quota, config, read, wrapper = KINDS[kind]
    command = [*wrapper, DIFFERENTIAL, "run", str(seed), str(CALLS)]
    native = e2e.execute([*command, native_root])
    job = e2e.Job(options([root], {"t": (scratch("tier"), quota)}, *e2e.config(**config)))
    if read:
        job.run(e2e.read_all(root))
    got = job.run([*command, root])
    counters = job.end()
    if got[:2] == native[:2]:
        return [], counters
    lines = [out.decode(errors="replace").splitlines() for out in (native[1], got[1])]
    at = next((i for i, (a, b) in enumerate(zip(*lines)) if a != b), min(map(len, lines)))
    return [f"seed {seed}, {kind}: exit codes {native[0]} {got[0]} {got[2]}", *lines[0][max(0, at - 5):at],
            f"native:  {lines[0][at:at + 1]}", f"Monarch: {lines[1][at:at + 1]}"], counters


def known():
    with open(f"{SOURCE}/tests/fixtures/differential.seeds", encoding="ascii") as stream:
        return [line.split() for line in stream if line.strip() and not line.startswith("#")]


def explore(first, seconds, rounds):
    """Three seeds of each kind at a time: until that time, or so many times."""
    end, runs, served, failed = time.monotonic() + seconds, dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0), 0
    seed, answered = first, 0
    while rounds > 0 or time.monotonic() < end and failed < 5:
        rounds -= 1
        cases = [(seed + i, kind) for i in range(3) for kind in KINDS]
        for (seed, kind), (different, counters) in zip(cases, compare_all(cases)):
            runs[kind] += 1
            answered += counters["tasks"]["meta_served"]
            served[kind] += counters["opens_tier"] + counters["tiers"][0]["read_bytes"]
            if different:
                failed += 1
                ok(False, f"seed {seed}, {kind}", *different)
        seed += 1
    for kind, number in runs.items():
        ok(number > 0 and served[kind] > 0, f"{kind}: {number} runs of {CALLS} calls, and the tier served some", served)
    ok(answered > sum(runs.values()), "calls about paths were answered", answered)
    ok(failed == 0, "natively and in the job the same")


def run():
    given = [(int(word), kind) for word in SEEDS for kind in KINDS]
    fixed = given or [(int(seed), kind) for seed, kind in known()]
    for (seed, kind), (different, _) in zip(fixed, compare_all(fixed)):
        ok(not different, f"seed {seed}, {kind}", *different)
    if given:
        return
    explore(1, 0, 1)
    if os.environ.get("MONARCH_TEST_ALL"):
        first = random.SystemRandom().randrange(1 << 32)
        print(f"# seeds from {first} on", flush=True)
        explore(first, SECONDS, 0)


SEEDS, sys.argv[1:] = sys.argv[1:], []  # e2e.main takes words for names of tests
e2e.main(run)
