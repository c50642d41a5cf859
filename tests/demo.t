#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""dev/demo, small: it compares what it measures with what it claims by itself, and leaves nothing behind."""

import importlib.util
import json
import os
import re
import shutil
import subprocess

import e2e
import slurm_lab
from e2e import BUILD, SOURCE, equal, ok

FILES, EPOCHS = 120, 2
PATIENCE = 300


def why_not():
    """Why the demo's programs are not here."""
    for module in ("torch", "sklearn", "PIL"):
        if not importlib.util.find_spec(module):
            return f"python3 has no {module} (dev/deps demo)"
    return slurm_lab.why_no_slurm() or e2e.why_no_glusterfs()


def run(name, *words):
    """The demo with these options and small; what it prints."""
    done = subprocess.run([f"{SOURCE}/dev/demo", "--no-build", "--json", "--files", str(FILES), "--epochs", str(EPOCHS),
                           "--latency-us", "200", *words], env={**os.environ, "MONARCH_BUILD": BUILD}, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=PATIENCE, check=False)
    equal(done.returncode, 0, f"{name}: the demo's claims hold", done.stderr)
    result = json.loads(done.stdout)
    opens = {mode: [epoch["pfs_opens"] for epoch in found["epochs"]] for mode, found in result["modes"].items()}
    equal(opens, {"native": [FILES] * EPOCHS, "monarch": [FILES] + [0] * (EPOCHS - 1)}, f"{name}: what the servers opened")
    own = re.search(r"/\S+/monarch-demo\.\w+", done.stderr)
    ok(own, f"{name}: it tells where it works", done.stderr)
    with open("/proc/mounts", encoding="utf-8", errors="surrogateescape") as mounts:
        equal([line for line in mounts if own.group() in line], [], f"{name}: no mount is left")
    ok(not os.path.exists(own.group()), f"{name}: nor its directory")
    return result


def demo():
    slurm_lab.install()
    result = run("in Slurm")
    alone, peers = (result["two_nodes"][mode]["pfs_bytes"] for mode in ("two-alone", "two-peers"))
    ok(peers < 0.6 * alone, "two nodes that are peers ask the servers for half", peers, alone)
    ok("monarch=1" in json.dumps(result), "sacct's line is shown", result)


@e2e.unless(lambda: not shutil.which("bwrap") and "no bwrap (dev/deps containers)")
def container():
    slurm_lab.install()
    return run("in a container", "--container")


e2e.skip_all_if(why_not())
e2e.main(demo, container)
