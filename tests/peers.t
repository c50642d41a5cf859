#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""Several nodes of a job, without Slurm: each file is read once on the PFS, and no node gets other bytes, whatever
becomes of the others."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys

import e2e
from e2e import contains, equal, ok, options, scratch, wait_until
import peers_lab

# Reads all files in an order of its own and prints a checksum of each.
READ = """
import hashlib, os, random, sys
paths = [os.path.join(d, n) for d, _, names in os.walk(sys.argv[1]) for n in names]
random.Random(int(sys.argv[2])).shuffle(paths)
for path in paths:
    with open(path, "rb", buffering=0) as stream:
        digest = hashlib.md5()
        for piece in iter(lambda: stream.read(1 << 20), b""):
            digest.update(piece)
    print(digest.hexdigest(), os.path.relpath(path, sys.argv[1]))
"""


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def make_key(name):
    path = f"{scratch()}/{name}.key"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as out:
        out.write(os.urandom(32))
    return path


class Nodes:
    """Nodes that run the same dataset together: `monarchctl run --peers` for each, on a counted PFS."""

    def __init__(self, name, count, files=60, large=0, config="", lab=None):
        self.name = name
        self.data = scratch(f"{name}.data")
        self.bytes = e2e.make_tree(self.data, files)
        for i in range(large):
            e2e.write(f"{self.data}/large{i}", random.Random(i).randbytes((9 << 20) + i))
            self.bytes += (9 << 20) + i
        self.files = files + large
        self.pfs = e2e.SlowFs(self.data, scratch(f"{name}.pfs"))
        self.key = make_key(name)
        self.config = f"{scratch()}/{name}.conf"
        with open(self.config, "w", encoding="ascii") as out:
            # A watch would see what other nodes' tasks write, since all are on this machine.
            out.write(f"[agent]\nstage_wait_max = 4M\nstage_wait = 20\nwatch_directories = 0\n{config}\n")
        self.list = f"{scratch()}/{name}.nodes"
        self.lab = lab
        self.addresses = [f"{lab.addresses[i + 1]}:64000" for i in range(count)] if lab else \
            [f"127.0.0.1:{port}" for port in free_ports(count)]
        e2e.write(self.list, "".join(address + "\n" for address in self.addresses))
        self.tiers = [scratch(f"{name}.tier{i}") for i in range(count)]
        self.jobs = [None] * count
        self.want = self.native()

    def words(self, index):
        return options([self.pfs.mount], {"ssd": (self.tiers[index], "1G")}, "--config", self.config, "--peers", self.list,
                       "--peer-index", str(index), "--peer-key", self.key)

    def start_all(self):
        for index in range(len(self.jobs)):
            self.jobs[index] = e2e.Job(self.words(index), before=self.lab.at(index + 1) if self.lab else ())
        return self

    def native(self):
        return sorted(e2e.execute([sys.executable, "-c", READ, self.data, "0"])[1].splitlines())

    def read(self, *indexes):
        """All these read all files side by side; their outputs."""
        readers = [e2e.start([sys.executable, "-c", READ, self.pfs.mount, str(index + 1)], env=self.jobs[index].env,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE) for index in indexes]
        return [sorted(e2e.finish(reader)[1].splitlines()) for reader in readers]

    def expect_right(self, what, *indexes):
        for index, text in zip(indexes, self.read(*indexes)):
            equal(text, self.want, f"{what}: node {index} reads what the PFS has")

    def paths(self):
        """All files, as tasks name them."""
        return sorted(os.path.join(d, n) for d, _, names in os.walk(self.pfs.mount) for n in names)

    def log(self, index):
        return e2e.text_in(f"{self.jobs[index].run_dir}/monarchd.log")

    def end_jobs(self, *indexes):
        """Ends these, or all, node 0 last: it waits for the others; {index: report}."""
        reports = {}
        for index in reversed(indexes or range(len(self.jobs))):
            if self.jobs[index]:
                reports[index] = self.jobs[index].end()
                self.jobs[index] = None
        return reports

    def end(self):
        """Ends all; what their agents counted."""
        reports = self.end_jobs()
        reports = [index in reports and reports[index]["agent"] for index in range(len(self.jobs))]
        self.pfs.close()
        left = [name for tier in self.tiers for name in os.listdir(tier)]
        equal(left, [], f"{self.name}: nothing is left on the tiers")
        return reports


@e2e.unless(e2e.why_no_slowfs)
def once():
    for prefetch in ("off", "on"):
        nodes = Nodes(f"once-{prefetch}", 3, large=2, config=f"prefetch = {prefetch}")
        before = nodes.pfs.counters()
        nodes.start_all()
        nodes.expect_right(f"prefetch {prefetch}, first epoch", 0, 1, 2)
        nodes.expect_right(f"prefetch {prefetch}, second epoch", 0, 1, 2)
        after = nodes.pfs.counters()
        reports = nodes.end()
        read, opens = (after[name] - before[name] for name in ("read_bytes", "open"))
        ok(read <= 1.005 * nodes.bytes, f"prefetch {prefetch}: each byte is read once", read, nodes.bytes, reports)
        # A task opens a large file on the PFS, and reads it in chunks.
        ok(opens <= nodes.files + 2 * 3, f"prefetch {prefetch}: each file is opened once", opens, nodes.files, reports)
        ok(sum(report["peer_bytes"] for report in reports) >= 1.99 * nodes.bytes, f"prefetch {prefetch}: the rest comes from nodes",
           reports)


def tell(nodes, orders):
    """Each node's order of each epoch, before any prefetches."""
    agents = [job.agent() for job in nodes.jobs]
    for agent in agents:
        os.kill(agent, signal.SIGSTOP)
    for job, epochs in zip(nodes.jobs, orders):
        for epoch, order in enumerate(epochs):
            path = e2e.write(f"{scratch()}/order", "".join(f"{path}\n" for path in order))
            equal(job.run([e2e.TOOL, "hint", "--epoch", str(epoch), path])[1], f"{len(order)} accesses told\n".encode(), "an order is told")
    for agent in agents:
        os.kill(agent, signal.SIGCONT)


@e2e.unless(e2e.why_no_slowfs)
def ordered():
    """A file is read on the PFS where it is used first. Nodes with the same order read a part of it each."""
    for what, step in ("an order each", 3), ("the same order", 1):
        nodes = Nodes(f"ordered{step}", 3, files=240, config="prefetch = auto\nprefetch_burst = 0").start_all()
        paths = nodes.paths()
        random.Random(3).shuffle(paths)
        orders = [paths[index % step::step] for index in range(3)]
        want = [sum(map(os.path.getsize, order)) for order in orders]
        before = nodes.pfs.counters()["read_bytes"]
        tell(nodes, [[order] for order in orders])
        told = []

        def is_staged(nodes=nodes, want=want, told=told):
            told[:] = [json.loads(e2e.execute([e2e.TOOL, "status", "--json", f"run.{job.pid}"])[1])["jobs"][0] for job in nodes.jobs]
            return [job["bytes"]["staged"] for job in told] == want

        ok(wait_until(is_staged), f"{what}: all is staged", told, want)
        equal(nodes.pfs.counters()["read_bytes"] - before, nodes.bytes, f"{what}: each byte is read once")
        ok(step == 1 or [job["pfs_bytes"] for job in told] == want, f"{what}: where it is used first", told, want)
        nodes.end()


@e2e.unless(e2e.why_no_slowfs)
def killed():
    nodes = Nodes("killed", 3, large=1).start_all()
    nodes.expect_right("before", 0)
    nodes.jobs[2].run(["cat", *nodes.paths()[::2]])
    os.kill(nodes.jobs[2].agent(), signal.SIGKILL)
    ok(wait_until(lambda: "were compared with the PFS" in nodes.log(2)), "an agent is killed: another one goes on for it", nodes.log(2))
    before = nodes.pfs.counters()["read_bytes"]
    nodes.expect_right("its node", 2)
    equal(nodes.pfs.counters()["read_bytes"], before, "what is placed stays placed, and the rest comes from nodes")
    os.kill(nodes.jobs[2].agent(), signal.SIGKILL)
    nodes.expect_right("that one is killed", 0, 1)
    before = nodes.pfs.counters()["read_bytes"]
    nodes.expect_right("the node without an agent", 2)
    equal(nodes.pfs.counters()["read_bytes"], before, "it reads what is placed from its tier still")
    path = nodes.paths()[0]
    nodes.jobs[0].run(["sh", "-c", 'printf "new content" > "$1"', "sh", path])
    code = "import os, sys; print(os.stat(sys.argv[1]).st_size, open(sys.argv[1], 'rb').read())"
    equal(nodes.jobs[2].run([sys.executable, "-c", code, path])[1], b"11 b'new content'\n",
          "its tasks see what others change, though nobody tells them")
    turned = "import os, sys\nfor path in sys.argv[1:]:\n st = os.stat(path); content = open(path, 'rb').read()\n" \
             " open(path, 'r+b').write(content[::-1]); os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))"
    paths = [*[p for p in nodes.paths()[1:] if not p.endswith("/large0")][:2], f"{nodes.pfs.mount}/large0"]
    for writer in (0, 2):
        nodes.want = nodes.native()
        nodes.expect_right(f"before tasks of node {writer} write", 0, 1, 2)
        equal(nodes.jobs[writer].run([sys.executable, "-c", turned, *paths])[0], 0, f"tasks of node {writer} write, and put the time back")
        nodes.want = nodes.native()
        nodes.expect_right(f"what node {writer} wrote", 0, 1, 2)
    nodes.jobs[2].run(["rm", paths[0]])
    for node in (0, 1):
        gone = nodes.jobs[node].run(["sh", "-c", 'test -e "$1" && echo there; cat "$1"; ls "${1%/*}" | grep -xF "${1##*/}"', "sh", paths[0]])
        equal(gone[1], b"", f"what they remove is gone on node {node}")
    nodes.jobs[2].kill()
    nodes.jobs[2] = None
    subprocess.run(["rm", "-rf", *[f"{nodes.tiers[2]}/{name}" for name in os.listdir(nodes.tiers[2])]], check=True)
    nodes.end()


@e2e.unless(e2e.why_no_slowfs)
def shown():
    """What `monarchctl status` says of each node of a job."""
    nodes = Nodes("shown", 3, config="prefetch = on").start_all()
    nodes.expect_right("shown", 0, 1, 2)
    names = ["run." + os.path.basename(job.run_dir).split(".")[2] for job in nodes.jobs]

    def ctl(verb, index, *words):
        return e2e.execute([f"{e2e.BUILD}/monarchctl", verb, names[index], *words])[1].decode()

    def status(index):
        return json.loads(ctl("status", index, "--json"))["jobs"][0]

    def rows():
        return status(0)["by_node"] or []

    # Agents tell what they have counted every 10 s.
    ok(e2e.wait_until(lambda: [row.get("opens") for row in rows()] == [nodes.files] * 3), "the first node is told what the others have counted", status(0))
    job, own = status(0), [status(index) for index in range(3)]
    equal((job["nodes"], job["nodes_told"], [row["node"] for row in job["by_node"]]), (3, 3, nodes.addresses), "status: the nodes of the job, by their names")
    for index, row in enumerate(job["by_node"]):
        equal((row["files"], row["placed_bytes"], row["opens_tier"], row["pfs_bytes"], row["ended"]),
              (own[index]["files"]["staged"], {"ssd": own[index]["bytes"]["staged"]}, own[index]["opens_tier"], own[index]["pfs_bytes"], False),
              f"status: node {index} has what it says itself", row, own[index])
    equal(sum(row["peer_bytes"] for row in job["by_node"]), 2 * nodes.bytes, "status: what came from nodes")
    found = re.findall(r"^(\S+) +\d+ +\S+ +(\d+) +(\d+%) .* (?:\S+ ago|now|nodes=3/3)$", ctl("status", 0), flags=re.M)
    equal(found, [*((address, str(nodes.files), "100%") for address in nodes.addresses), ("all", str(3 * nodes.files), "100%")],
          "the same as text, and the sum")
    report = json.loads(ctl("report", 0, "--json"))
    equal([{**row, "told_seconds_ago": 0} for row in report["by_node"]], [{**row, "told_seconds_ago": 0} for row in job["by_node"]], "report tells the same of each node")
    equal((own[1]["nodes"], own[1]["nodes_told"], own[1]["by_node"]), (3, 1, None), "another node knows its own numbers alone")
    contains(ctl("status", 1), ["nodes=1/3", "not known here, but on the job's first node"], "and says so")
    nodes.end_jobs(2)
    ok(e2e.wait_until(lambda: rows()[2]["ended"]), "a node that has ended has told all", rows())
    agent = nodes.jobs[0].agent()
    os.kill(agent, signal.SIGSTOP)  # it would write the file anew
    with open(f"{nodes.jobs[0].run_dir}/nodes", "r+b") as file:
        file.seek(24 + 160 + 64)
        file.write(b"\xff" * 8)
        file.truncate()
    equal(status(0)["by_node"], None, "what no agent writes is not believed")
    os.kill(agent, signal.SIGCONT)
    nodes.end()


@e2e.unless(e2e.why_no_slowfs)
def squatter():
    nodes = Nodes("squatter", 2)
    with socket.create_server(("127.0.0.1", int(nodes.addresses[1].rsplit(":", 1)[1]))):
        nodes.start_all()
        nodes.expect_right("a port that is taken", 0, 1)
        ok("no peers: listen at " in nodes.log(1), "its node goes on alone, and says why", nodes.log(1))
        err = e2e.monarch_run(nodes.words(1), ["true"])[2]
        equal(err.count("this node gets no files from the job's other nodes: listen at "), 1, "and tells its user", err)
        equal([f" node {index} of 2, port " in nodes.log(index) for index in (0, 1)], [True, False], "the other one says where it listens", nodes.log(0))
        nodes.end()


@e2e.unless(e2e.why_no_slowfs)
def changed():
    nodes = Nodes("changed", 2).start_all()
    nodes.expect_right("before", 0, 1)
    path = nodes.paths()[0]
    code, _, err = nodes.jobs[0].run(["sh", "-c", 'printf "new content" > "$1"', "sh", path])
    equal((code, err), (0, ""), "a task changes a file")
    ok(wait_until(lambda: nodes.jobs[1].run(["cat", path])[1] == b"new content"), "a task on another node sees it")
    nodes.jobs[0].run(["sh", "-c", 'printf "newer" > "$1"', "sh", path])
    ok(wait_until(lambda: nodes.jobs[1].run(["cat", path])[1] == b"newer"), "and the next change")
    nodes.end()


@e2e.unless(e2e.why_no_slowfs, peers_lab.why_no_peers)
def cut():
    nodes = Nodes("cut", 3, lab=peers_lab.Peers(3)).start_all()
    nodes.expect_right("before", 2)
    nodes.lab.cut(3)
    nodes.expect_right("a node is cut off", 0, 1)
    nodes.expect_right("the node that is cut off", 2)
    path = nodes.paths()[0]
    for node in (0, 2):  # one of them on each side
        nodes.jobs[node].run(["sh", "-c", 'head -c 100 /dev/urandom > "$1"', "sh", path])
    content = e2e.bytes_in(path)
    nodes.lab.heal(3)
    for node in (0, 1, 2):
        ok(wait_until(lambda node=node: nodes.jobs[node].run(["cat", path])[1] == content),
           f"what changed while a node was cut off: node {node} sees it")
    nodes.want = nodes.native()
    nodes.expect_right("it is back", 0, 1, 2)
    nodes.end()


if __name__ == "__main__":
    e2e.main(once, ordered, shown, killed, squatter, changed, cut)
