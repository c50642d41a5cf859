# SPDX-License-Identifier: Apache-2.0
"""What a benchmark has measured as a machine file of `monarchctl simulate`, and what that makes of it."""
import json
import statistics
import subprocess

import lib

ENDLESS = 1000000  # MB/s of what takes no time


def median(measured):
    """Of several rounds' measurements, each as write() takes it."""
    one = measured[0]
    if isinstance(one, dict):
        return {key: median([each[key] for each in measured]) for key in one}
    return statistics.median(measured)


def write(file, about, nodes, threads, capacity, measured, compute=ENDLESS):
    """`measured`: "pfs", "tier", "network", MB/s by number of readers, and "open", seconds.  `capacity`: of a node's tier, in MB."""
    def curve(name):
        return " ".join(f"{n}:{rate:.1f}" for n, rate in sorted(measured[name].items()))
    network = f"network = {curve('network')}\n" if "network" in measured else ""
    with open(file, "w", encoding="ascii") as ini:
        ini.write(f"""# Measured by {about}.
# Nodes are on one machine and share its processors.  Rates are in MB/s, sizes in MB.
[machine]
nodes = {nodes}
per_host = {nodes}
compute = {compute}
preprocess = {ENDLESS}
{network}
[pfs]
rate = {curve("pfs")}
open = {measured["open"]:.6f}

[staging]
capacity = 0  # an epoch begins when all nodes have ended the last one
threads = {threads}
read = {ENDLESS}

[tier.bench]
capacity = {capacity:.0f}
threads = 8
read = {curve("tier")}
""")


def simulate(machine, workload, nodes, epochs, policy):
    """Seconds of a job whose nodes read each epoch's files together."""
    dataset = machine + ".dataset"
    with open(dataset, "w", encoding="ascii") as ini:
        ini.write(f"[dataset]\nsamples = {workload.files}\nmean = {workload.size / 1e6}\nepochs = {epochs}\nbatch = {workload.files // nodes}\n")
    words = [lib.program("monarchctl"), "simulate", "--machine", machine, "--dataset", dataset, "--policy", policy,
             "--sweep", f"machine.nodes={nodes}", "--json"]
    told = json.loads(subprocess.run(words, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE).stdout)
    return told["runs"][0]["policies"][0]["seconds"]
