#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Several nodes of a job, without Slurm: each file is read once on the PFS, and no node gets other bytes, whatever
becomes of the others."""

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import e2e  # pylint: disable=wrong-import-position
from e2e import contains, equal, ok, options, scratch, skip, wait_until
import peers_lab  # pylint: disable=wrong-import-position

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
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Nodes:
    """Nodes that run the same dataset together: `monarchctl run --peers` for each, on a counted PFS."""

    def __init__(self, name, count, files=60, large=0, config="", lab=None):
        self.name = name
        self.data = scratch(f"{name}.data")
        self.bytes = e2e.make_tree(self.data, files)
        for i in range(large):
            with open(f"{self.data}/large{i}", "wb") as out:
                out.write(random.Random(i).randbytes((9 << 20) + i))
            self.bytes += (9 << 20) + i
        self.files = files + large
        self.pfs = e2e.SlowFs(self.data, scratch(f"{name}.pfs"))
        self.key = f"{scratch()}/{name}.key"
        with open(os.open(self.key, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as out:
            out.write(os.urandom(32))
        self.config = f"{scratch()}/{name}.conf"
        with open(self.config, "w", encoding="ascii") as out:
            # A watch would see what other nodes' tasks write, since all are on this machine.
            out.write(f"[agent]\nstage_wait_max = 4M\nstage_wait = 20\nwatch_directories = 0\n{config}\n")
        self.list = f"{scratch()}/{name}.nodes"
        self.lab = lab
        addresses = [f"{lab.addresses[i + 1]}:64000" for i in range(count)] if lab else \
            [f"127.0.0.1:{port}" for port in free_ports(count)]
        with open(self.list, "w", encoding="ascii") as out:
            out.write("".join(address + "\n" for address in addresses))
        self.tiers = [scratch(f"{name}.tier{i}") for i in range(count)]
        self.jobs = [None] * count
        self.want = self.native()

    def words(self, index, size="1G", key=None):
        return options([self.pfs.mount], {"ssd": (self.tiers[index], size)}, "--config", self.config, "--peers", self.list,
                       "--peer-index", str(index), "--peer-key", key or self.key)

    def start(self, index, size="1G", key=None, job=e2e.Job):
        self.jobs[index] = job(self.words(index, size, key), before=self.lab.at(index + 1) if self.lab else ())
        return self.jobs[index]

    def start_all(self):
        for index in range(len(self.jobs)):
            self.start(index)
        return self

    def native(self):
        return sorted(e2e.execute([sys.executable, "-c", READ, self.data, "0"])[1].splitlines())

    def read(self, *indexes, during=lambda: None):
        """All these read all files side by side; their outputs, and how long it took."""
        begin = time.monotonic()
        readers = [e2e.start([sys.executable, "-c", READ, self.pfs.mount, str(index + 1)], env=self.jobs[index].env,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE) for index in indexes]
        during()
        texts = [sorted(e2e.finish(reader)[1].splitlines()) for reader in readers]
        return texts, time.monotonic() - begin

    def expect_right(self, what, *indexes, during=lambda: None):
        texts, seconds = self.read(*indexes, during=during)
        for index, text in zip(indexes, texts):
            equal(text, self.want, f"{what}: node {index} reads what the PFS has")
        return seconds

    def pfs_reads(self):
        return self.pfs.counters()

    def log(self, index):
        with open(f"{self.jobs[index].run_dir}/monarchd.log", encoding="utf-8") as stream:
            return stream.read()

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


def without_slowfs():
    why = e2e.why_no_slowfs()
    if why:
        skip("peers on a counted PFS", why)
    return bool(why)


def once():
    if without_slowfs():
        return
    for prefetch in ("off", "on"):
        nodes = Nodes(f"once-{prefetch}", 3, large=2, config=f"prefetch = {prefetch}")
        before = nodes.pfs_reads()
        nodes.start_all()
        nodes.expect_right(f"prefetch {prefetch}, first epoch", 0, 1, 2)
        nodes.expect_right(f"prefetch {prefetch}, second epoch", 0, 1, 2)
        after = nodes.pfs_reads()
        reports = nodes.end()
        read, opens = (after[name] - before[name] for name in ("read_bytes", "open"))
        ok(read <= 1.005 * nodes.bytes, f"prefetch {prefetch}: each byte is read once", read, nodes.bytes, reports)
        # A task opens a large file on the PFS, and reads it in chunks.
        ok(opens <= nodes.files + 2 * 3, f"prefetch {prefetch}: each file is opened once", opens, nodes.files, reports)
        ok(sum(report["peer_bytes"] for report in reports) >= 1.99 * nodes.bytes, f"prefetch {prefetch}: the rest comes from nodes",
           reports)


def linked():
    """The names of one file, each opened on another node first."""
    if without_slowfs():
        return
    nodes = Nodes("linked", 3, files=1, config="prefetch = off")
    with open(f"{nodes.data}/name0", "wb") as out:
        out.write(random.Random(0).randbytes(3 << 20))
    for i in (1, 2):
        os.link(f"{nodes.data}/name0", f"{nodes.data}/name{i}")
    nodes.want = nodes.native()
    nodes.start_all()
    before = nodes.pfs_reads()["read_bytes"]
    for index in (0, 1, 2):
        nodes.jobs[index].run(["cat", f"{nodes.pfs.mount}/name{index}"])
    equal(nodes.pfs_reads()["read_bytes"] - before, 3 << 20, "the names of one file are read once on the PFS")
    nodes.expect_right("names of one file", 0, 1, 2)
    ok(nodes.pfs_reads()["read_bytes"] - before <= (3 << 20) + nodes.bytes, "by all their names", nodes.pfs_reads(), nodes.bytes)
    nodes.end()


def killed():
    if without_slowfs():
        return
    nodes = Nodes("killed", 3, large=1).start_all()
    nodes.expect_right("before", 2)
    os.kill(nodes.jobs[2].agent(), signal.SIGKILL)
    nodes.expect_right("an agent is killed", 0, 1)
    nodes.expect_right("the node whose agent was killed", 2)
    path = next(os.path.join(d, n) for d, _, names in os.walk(nodes.pfs.mount) for n in names)
    nodes.jobs[0].run(["sh", "-c", 'printf "new content" > "$1"', "sh", path])
    code = "import os, sys; print(os.stat(sys.argv[1]).st_size, open(sys.argv[1], 'rb').read())"
    equal(nodes.jobs[2].run([sys.executable, "-c", code, path])[1], b"11 b'new content'\n",
          "its tasks see what others change, though nobody tells them")
    turned = "import os, sys\nfor path in sys.argv[1:]:\n st = os.stat(path); content = open(path, 'rb').read()\n" \
             " open(path, 'r+b').write(content[::-1]); os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))"
    every = sorted(os.path.join(d, n) for d, _, names in os.walk(nodes.pfs.mount) for n in names if os.path.join(d, n) != path)
    paths = [*[p for p in every if not p.endswith("/large0")][:2], f"{nodes.pfs.mount}/large0"]
    nodes.want = nodes.native()
    nodes.expect_right("before its tasks write", 0, 1)
    equal(nodes.jobs[2].run([sys.executable, "-c", turned, *paths])[0], 0, "its tasks write, too, and put the time back")
    nodes.want = nodes.native()
    nodes.expect_right("what they wrote", 0, 1)
    nodes.jobs[2].run(["rm", paths[0]])
    for node in (0, 1):
        gone = nodes.jobs[node].run(["sh", "-c", 'test -e "$1" && echo there; cat "$1"; ls "${1%/*}" | grep -xF "${1##*/}"', "sh", paths[0]])
        equal(gone[1], b"", f"what they remove is gone on node {node}")
    nodes.jobs[2].kill()
    nodes.jobs[2] = None
    for tier in [nodes.tiers[2]]:
        subprocess.run(["rm", "-rf", *[f"{tier}/{name}" for name in os.listdir(tier)]], check=True)
    nodes.end()


def stopped():
    if without_slowfs():
        return
    nodes = Nodes("stopped", 3).start_all()
    nodes.expect_right("before", 2)
    agent = nodes.jobs[2].agent()
    os.kill(agent, signal.SIGSTOP)
    nodes.expect_right("an agent hangs", 0, 1)
    os.kill(agent, signal.SIGCONT)
    nodes.expect_right("it goes on", 0, 1, 2)
    nodes.end()


def expect_sums(what, job, told, pfs):
    """Node 0's report has what the PFS counted, of so many nodes."""
    equal((job["nodes"], job["nodes_told"]), (3, told), f"{what}: how many nodes are in the report")
    equal((job["agent"]["agent_bytes_pfs"] + job["tasks"]["read_bytes_pfs"], job["agent"]["agent_opens_pfs"] + job["tasks"]["opens_pfs"]),
          (pfs["read_bytes"], pfs["open"]), f"{what}: the report has the bytes and opens that the PFS counted", job, pfs)


def accounted():
    if without_slowfs():
        return
    for prefetch in ("off", "on"):
        what = f"accounts, prefetch {prefetch}"
        nodes = Nodes(f"accounted-{prefetch}", 3, config=f"prefetch = {prefetch}")
        before = nodes.pfs_reads()
        nodes.start_all()
        nodes.expect_right(what, 0, 1, 2)
        reports = nodes.end_jobs()
        after = nodes.pfs_reads()
        job = reports[0]["job"]
        expect_sums(what, job, 3, {name: after[name] - before[name] for name in after})
        equal([(job["agent"][name], job["opens"], job["placed_bytes"]["ssd"]) for name in ("staged_bytes",)],
              [tuple(sum(value(report) for report in reports.values()) for value in (
                  lambda r: r["agent"]["staged_bytes"], lambda r: r["opens"], lambda r: r["tiers"][0]["placed_bytes"]))],
              f"{what}: they are the sums of what each node reports", reports)
        timed = [{kind: sum(buckets.values()) for kind, buckets in times.items()} for times in (job["open_times"], *(r["open_times"] for r in reports.values()))]
        equal(timed[0], {kind: sum(node[kind] for node in timed[1:]) for kind in ("tier", "waited", "pfs")}, f"{what}: so is how long opens took", reports)
        equal(timed[0]["waited"], job["tasks"]["waits"], f"{what}: of each open that waited")
        equal(job["agent"]["peer_bytes"], 2 * nodes.bytes, f"{what}: what came from nodes")
        equal([job["agent"][name] for name in ("served_bytes", "dup_files", "peer_errors", "peer_timeouts", "peer_bad")],
              [2 * nodes.bytes, 0, 0, 0, 0], f"{what}: what was sent, and that nothing failed")
        equal([index for index in reports if "job" in reports[index]], [0], f"{what}: node 0 alone reports of the job")
        equal(len(job["by_node"]), 3, f"{what}: and of each of its nodes", job["by_node"])
        nodes.end()


def accounted_in_the_middle():
    """What is under way when a job ends is counted, unless it takes long."""
    if without_slowfs():
        return

    def once_more(turn):
        nodes = Nodes(f"accounted-middle{turn}", 3, files=1000, config="prefetch = on")
        nodes.pfs.command("set open-us 20000", "set read-us 20000")
        before = nodes.pfs_reads()
        nodes.start_all()
        wait_until(lambda: nodes.pfs_reads()["read"] - before["read"] > 30)
        job = nodes.end_jobs()[0]["job"]
        after = nodes.pfs_reads()
        nodes.end()
        read, opens = (after[name] - before[name] for name in ("read_bytes", "open"))
        print(f"# {opens} of {nodes.files} files were opened")
        return (opens < nodes.files and job["nodes_told"] == 3 and job["agent"]["agent_bytes_pfs"] == read and
                job["agent"]["agent_opens_pfs"] == opens)

    ok(any(once_more(turn) for turn in range(4)), "a job that ends while files are copied: the report has what the PFS counted")


def shown():
    """What `monarchctl status` says of each node of a job."""
    if without_slowfs():
        return
    nodes = Nodes("shown", 3, config="prefetch = on").start_all()
    nodes.expect_right("shown", 0, 1, 2)
    names = ["run." + os.path.basename(job.run_dir).split(".")[2] for job in nodes.jobs]
    with open(nodes.list, encoding="ascii") as stream:
        addresses = stream.read().split()

    def status(index):
        return json.loads(e2e.execute([f"{e2e.BUILD}/monarchctl", "status", names[index], "--json"])[1])["jobs"][0]

    def rows():
        return status(0)["by_node"] or []

    # Agents tell what they have counted every 10 s.
    ok(e2e.wait_until(lambda: [row.get("opens") for row in rows()] == [nodes.files] * 3), "the first node is told what the others have counted", status(0))
    job = status(0)
    equal((job["nodes"], job["nodes_told"], [row["node"] for row in job["by_node"]]), (3, 3, addresses), "status: the nodes of the job, by their names")
    own = [status(index) for index in range(3)]
    for index, row in enumerate(job["by_node"]):
        equal((row["files"], row["placed_bytes"], row["opens_tier"], row["pfs_bytes"], row["ended"]),
              (own[index]["files"]["staged"], {"ssd": own[index]["bytes"]["staged"]}, own[index]["opens_tier"], own[index]["pfs_bytes"], False),
              f"status: node {index} has what it says itself", row, own[index])
    equal(sum(row["peer_bytes"] for row in job["by_node"]), 2 * nodes.bytes, "status: what came from nodes")
    text = e2e.execute([f"{e2e.BUILD}/monarchctl", "status", names[0]])[1].decode()
    found = re.findall(r"^(\S+) +(\d+) +(\S+) +(\d+) +(\d+%) .* (\S+ ago|now|nodes=3/3)$", text, flags=re.M)
    equal([(row[0], row[3], row[4]) for row in found], [*((address, str(nodes.files), "100%") for address in addresses), ("all", str(3 * nodes.files), "100%")],
          "the same as text, and the sum", text)
    report = json.loads(e2e.execute([f"{e2e.BUILD}/monarchctl", "report", names[0], "--json"])[1])
    equal([{**row, "told_seconds_ago": 0} for row in report["by_node"]], [{**row, "told_seconds_ago": 0} for row in job["by_node"]], "report tells the same of each node")
    found = re.findall(r"^(\S+) +\d+ .* (?:ago|now|nodes=3/3)$", e2e.execute([f"{e2e.BUILD}/monarchctl", "report", names[0]])[1].decode(), flags=re.M)
    equal(found, [*addresses, "all"], "also as text")
    equal((own[1]["nodes"], own[1]["nodes_told"], own[1]["by_node"]), (3, 1, None), "another node knows its own numbers alone")
    contains(e2e.execute([f"{e2e.BUILD}/monarchctl", "status", names[1]])[1].decode(), ["nodes=1/3", "not known here, but on the job's first node"], "and says so")
    nodes.end_jobs(2)
    ok(e2e.wait_until(lambda: rows()[2]["ended"]), "a node that has ended has told all", rows())
    with open(f"{nodes.jobs[0].run_dir}/nodes", "r+b") as file:
        file.seek(24 + 160 + 64)
        file.write(b"\xff" * 8)
        file.truncate()
    equal(status(0)["by_node"], None, "what no agent writes is not believed")
    nodes.end()


def accounted_with_faults():
    if without_slowfs():
        return
    nodes = Nodes("accounted-killed", 3)
    before = nodes.pfs_reads()
    nodes.start_all()
    nodes.expect_right("accounts, an agent is killed", 0, 1, 2)
    time.sleep(12)  # each tells every 10 s
    os.kill(nodes.jobs[2].agent(), signal.SIGKILL)
    job = nodes.end_jobs(0, 1)[0]["job"]
    after = nodes.pfs_reads()
    expect_sums("an agent is killed", job, 2, {name: after[name] - before[name] for name in after})
    nodes.end()

    nodes = Nodes("accounted-stopped", 3).start_all()
    nodes.expect_right("accounts, an agent hangs", 0, 1, 2)
    agent = nodes.jobs[2].agent()
    os.kill(agent, signal.SIGSTOP)
    job = nodes.end_jobs(0, 1)[0]["job"]
    os.kill(agent, signal.SIGCONT)
    equal((job["nodes"], job["nodes_told"]), (3, 2), "an agent hangs: it is not in the report")
    nodes.end()

    nodes = Nodes("accounted-alone", 2)
    nodes.start(0)
    job = nodes.end_jobs(0)[0]["job"]
    equal((job["nodes"], job["nodes_told"]), (2, 1), "the other node never came: it is not in the report")
    nodes.start(0)
    nodes.start(1)
    nodes.expect_right("accounts, the first node hangs", 1)
    agent = nodes.jobs[0].agent()
    os.kill(agent, signal.SIGSTOP)
    nodes.end_jobs(1)
    os.kill(agent, signal.SIGCONT)
    nodes.end()


def strangers():
    if without_slowfs():
        return
    nodes = Nodes("strangers", 2)
    other = f"{scratch()}/strangers.other"
    with open(os.open(other, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as out:
        out.write(os.urandom(32))
    nodes.start(0)
    nodes.start(1, key=other)
    nodes.expect_right("another key", 0, 1)
    reports = nodes.end()
    equal([report["peer_bytes"] for report in reports], [0, 0], "a node with another key gets nothing, and gives nothing")


def squatter():
    if without_slowfs():
        return
    nodes = Nodes("squatter", 2)
    with open(nodes.list, encoding="ascii") as lines:
        port = int(lines.read().split("\n")[1].rsplit(":", 1)[1])
    with socket.create_server(("127.0.0.1", port)):
        nodes.start_all()
        nodes.expect_right("a port that is taken", 0, 1)
        ok("no peers: listen at " in nodes.log(1), "its node goes on alone, and says why", nodes.log(1))
        err = e2e.monarch_run(nodes.words(1), ["true"])[2]
        equal(err.count("this node gets no files from the job's other nodes: listen at "), 1, "and tells its user", err)
        equal([f" node {index} of 2, port " in nodes.log(index) for index in (0, 1)], [True, False], "the other one says where it listens", nodes.log(0))
        nodes.end()


def nameless():
    """Without a name that the job's agents know its key by there is no agent, and who waits for it is told."""
    directory = scratch("nameless")
    for part in ("data", "tier", "run"):
        os.mkdir(f"{directory}/{part}", 0o700)
    with open(f"{directory}/nodes", "w", encoding="ascii") as out:
        out.write("".join(f"127.0.0.1:{port}\n" for port in free_ports(2)))
    (key, key_end), (ready, ready_end) = os.pipe(), os.pipe()
    os.write(key_end, os.urandom(32))
    os.close(key_end)
    words = options([f"{directory}/data"], {"one": (f"{directory}/tier", "1M")}, "--run-dir", f"{directory}/run", "--job-dir", "job",
                    "--peers", f"{directory}/nodes", "--peer-index", "0", "--peer-identity", 129 * "x", "--peer-key-fd", str(key),
                    "--ready-fd", str(ready_end))
    code = e2e.execute([f"{e2e.BUILD}/monarchd", *words], pass_fds=[key, ready_end])[0]
    os.close(ready_end)
    os.close(key)
    with os.fdopen(ready, encoding="utf-8") as answer:
        contains(answer.read(), ["the job's name for its peers is empty or too long"], "a job's name that is too long: that is said")
    equal(code, 1, "and no agent starts")
    equal(os.listdir(f"{directory}/tier"), [], "nothing is left")


def other_version():
    if without_slowfs():
        return
    directory = scratch("other-version")
    for name in ("monarchctl", "monarchd", "libmonarch_preload.so", "libmonarch_peers.so"):
        shutil.copy(f"{e2e.BUILD}/{name}", directory)
    with open(f"{e2e.BUILD}/build_config.h", encoding="utf-8") as text:
        version = re.search('^#define PACKAGE_VERSION "(.*)"', text.read(), re.M)[1].encode()
    with open(f"{directory}/monarchd", "r+b") as program:  # what it says that it is; the library compares that
        code = program.read()
        equal(code.count(b"\0" + version + b"\0"), 1, "the agent says once of which version it is")
        program.seek(code.index(b"\0" + version + b"\0") + len(version))
        program.write(b"?")
    nodes = Nodes("version", 2)
    nodes.start(0)
    nodes.start(1, job=type("JobOfThere", (e2e.Job,), {"program": f"{directory}/monarchctl"}))
    nodes.expect_right("a library of another version", 0, 1)
    why = f"{directory}/libmonarch_peers.so is of another version than {version.decode()}; install both anew"
    ok(f"no peers: {why}" in nodes.log(1), "its agent goes on alone, and says why", nodes.log(1))
    reports = {1: nodes.end_jobs(1)[1]}
    err = e2e.execute([f"{directory}/monarchctl", "run", *nodes.words(1), "--", "true"])[2]
    equal(err.count(f"this node gets no files from the job's other nodes: {why}"), 1, "and tells its user", err)
    reports |= nodes.end_jobs(0)
    nodes.end()
    equal([reports[index]["agent"]["peer_bytes"] for index in (0, 1)], [0, 0], "and it gets nothing, and gives nothing")


def changed():
    if without_slowfs():
        return
    nodes = Nodes("changed", 2).start_all()
    nodes.expect_right("before", 0, 1)
    path = next(os.path.join(d, n) for d, _, names in os.walk(nodes.pfs.mount) for n in names)
    code, _, err = nodes.jobs[0].run(["sh", "-c", 'printf "new content" > "$1"', "sh", path])
    equal((code, err), (0, ""), "a task changes a file")
    ok(wait_until(lambda: nodes.jobs[1].run(["cat", path])[1] == b"new content", 10), "a task on another node sees it")
    nodes.jobs[0].run(["sh", "-c", 'printf "newer" > "$1"', "sh", path])
    ok(wait_until(lambda: nodes.jobs[1].run(["cat", path])[1] == b"newer", 10), "and the next change")
    nodes.end()


def marked_twice():
    """A mark that gets another kind, and one of an inode, after the agent has told of the path: the others hear of both."""
    if without_slowfs():
        return
    nodes = Nodes("twice", 2)
    os.mkdir(f"{nodes.data}/dir")
    for name, also in ("dir/f", "dir/g"), ("one", "two"):
        with open(f"{nodes.data}/{name}", "w", encoding="ascii") as out:
            out.write("old content")
        os.link(f"{nodes.data}/{name}", f"{nodes.data}/{also}")
    nodes.want = nodes.native()
    nodes.start_all()
    nodes.expect_right("before", 0, 1)
    mount, look = nodes.pfs.mount, "print(opened_as(__import__('os').open(__import__('sys').argv[1], 0)))"

    def node_1_opens(name):
        return nodes.jobs[1].run([sys.executable, "-c", e2e.OPENED_AS + look, f"{mount}/{name}"])[1].decode().strip()

    ok(node_1_opens("dir/f").startswith(nodes.tiers[1]), "a file is on the tier", node_1_opens("dir/f"))
    nodes.pfs.command("set meta-us 100000")  # the agent tells of the path before it is known what is there
    nodes.jobs[0].run([sys.executable, "-c", f"import os; os.chmod('{mount}/dir', 0o750)"])
    nodes.pfs.command("set meta-us 0")
    ok(wait_until(lambda: node_1_opens("dir/f") == f"{mount}/dir/f", 8), "a directory's mode: the other node asks the PFS for what is in it",
       node_1_opens("dir/f"))
    nodes.pfs.command("set meta-us 150000")
    nodes.jobs[0].run([sys.executable, "-c", f"import os; os.truncate('{mount}/one', 3)"])
    nodes.pfs.command("set meta-us 0")
    ok(wait_until(lambda: node_1_opens("two") == f"{mount}/two", 2), "a file's other name: the other node asks the PFS soon",
       node_1_opens("two"))
    nodes.end()


# Prints what the PFS says of each file, or what is in it. Which there are the directory behind it says.
LOOK = """
import hashlib, os, random, sys
mount, behind, what, seed = sys.argv[1:]
paths = [os.path.relpath(os.path.join(d, n), behind) for d, _, names in os.walk(behind) for n in names]
random.Random(int(seed)).shuffle(paths)
for path in paths:
    if what == "read":
        with open(f"{mount}/{path}", "rb") as stream:
            print(path, hashlib.md5(stream.read()).hexdigest())
    else:
        print(path, *os.stat(f"{mount}/{path}")[:7], *(getattr(os.stat(f"{mount}/{path}"), f"st_{name}") for name in (
            "mtime_ns", "ctime_ns", "blocks", "blksize")))
"""


class ToldNodes(Nodes):
    """Nodes on a PFS whose answers the kernel does not remember: one would know by what another one has asked."""

    def __init__(self, name, prefetch):
        super().__init__(name, 3, files=90, config=f"prefetch = {prefetch}")
        for i in range(3):
            with open(f"{self.data}/empty{i}", "wb"):
                pass
        self.files += 3
        self.pfs.close()
        self.pfs = e2e.SlowFs(self.data, self.pfs.mount, "--attr-ttl", "0")
        self.want = {what: sorted(e2e.execute(self.look(what))[1].splitlines()) for what in ("stat", "read")}
        self.before = self.pfs_reads()["open"]

    def opened(self):
        return self.pfs_reads()["open"] - self.before

    def look(self, what, index=0):
        return [sys.executable, "-c", LOOK, self.pfs.mount, self.data, what, str(index)]

    def expect_known(self, what, name, most, *indexes):
        """These nodes see the same, one after the other, and ask the PFS so often at most."""
        before = self.pfs_reads()
        for index in indexes:
            equal(sorted(self.jobs[index].run(self.look(what, index))[1].splitlines()), self.want[what], f"{name}, {what}: node {index}")
        after = self.pfs_reads()
        asked = sum(after[call] - before[call] for call in ("lookup", "getattr"))
        ok(asked <= most, f"{name}, {what}: how often the PFS is asked for values", asked, most)


def told():
    if without_slowfs():
        return
    few = 30  # for directories, of which nobody tells
    for first, prefetch in (("prefetch", "on"), ("read", "off"), ("stat", "on\npfs_opens = 1")):
        name = f"after {first}"
        nodes = ToldNodes(f"told-{first}", prefetch).start_all()
        if prefetch != "off":
            ok(wait_until(lambda nodes=nodes: all("has told what is in" in nodes.log(index) for index in (1, 2))), f"{name}: it is walked")
        if first == "prefetch":
            ok(wait_until(lambda nodes=nodes: nodes.opened() >= nodes.files), f"{name}: each file is read", nodes.pfs_reads())
        else:
            nodes.expect_known(first, f"{name} by node 0", 100 * nodes.files, 0)
        time.sleep(1)
        nodes.expect_known("stat", name, few, 1, 2)
        if first != "stat":
            nodes.expect_known("read", name, few, 1, 2)
            equal(nodes.opened(), nodes.files, f"{name}: each file is opened once, empty ones, too")
        path = f"{nodes.pfs.mount}/empty0"
        nodes.jobs[2].run(["sh", "-c", 'printf content > "$1"', "sh", path])
        for index in (0, 1, 2):
            ok(wait_until(lambda index=index, nodes=nodes, path=path: nodes.jobs[index].run(["stat", "-c", "%s", path])[1] == b"7\n", 5),
               f"{name}: node {index} sees what the job has changed since")
        nodes.end()


def changed_in_turn():
    if without_slowfs():
        return
    nodes = Nodes("in-turn", 2, config="stage_again = 1").start_all()
    nodes.expect_right("before", 0, 1)
    path = next(os.path.join(d, n) for d, _, names in os.walk(nodes.pfs.mount) for n in names)
    for turn, node in enumerate((0, 1)):
        content = f"{turn} by node {node}".encode()
        nodes.jobs[node].run(["sh", "-c", 'printf "%s" "$2" > "$1"', "sh", path, content.decode()])
        for other in (0, 1):
            ok(wait_until(lambda other=other, content=content: nodes.jobs[other].run(["cat", path])[1] == content, 5),
               f"change {turn}: node {other} sees it")
        time.sleep(1.5)  # a job of one node would stage it again
        for other in (0, 1):
            nodes.jobs[other].run(["cat", path])
        time.sleep(0.3)
    equal([report["staged_again"] for report in nodes.end()], [0, 0], "no file that another node may write is staged again")


def home_gone():
    """What an agent that was killed was the home of, its deputies find at the nodes that hold it."""
    if without_slowfs():
        return
    nodes = Nodes("home_gone", 4).start_all()
    nodes.expect_right("all are there", 0)
    before = nodes.pfs_reads()["read_bytes"]
    os.kill(nodes.jobs[3].agent(), signal.SIGKILL)
    nodes.expect_right("a home is gone", 1, 2)
    equal(nodes.pfs_reads()["read_bytes"] - before, 0, "what another node holds is not read again", nodes.log(1))
    nodes.jobs[3].kill()
    nodes.jobs[3] = None
    subprocess.run(["rm", "-rf", *[f"{nodes.tiers[3]}/{name}" for name in os.listdir(nodes.tiers[3])]], check=True)
    nodes.end()


def late():
    if without_slowfs():
        return
    nodes = Nodes("late", 3)
    nodes.start(0)
    nodes.start(1)
    nodes.expect_right("a node is late", 0, 1)
    before = nodes.pfs_reads()["read_bytes"]
    nodes.start(2)
    time.sleep(1.2)  # it is tried again by then
    nodes.expect_right("it has come", 2)
    read = nodes.pfs_reads()["read_bytes"] - before
    ok(read <= 0.02 * nodes.bytes, "one that comes late reads nothing again", read, nodes.bytes)
    nodes.end()


def cut():
    why = peers_lab.why_no_peers() or e2e.why_no_slowfs()
    if why:
        skip("a node that is cut off", why)
        return
    nodes = Nodes("cut", 3, lab=peers_lab.Peers(3)).start_all()
    nodes.expect_right("before", 2)
    nodes.lab.cut(3)
    nodes.expect_right("a node is cut off", 0, 1)
    nodes.expect_right("the node that is cut off", 2)
    path = next(os.path.join(d, n) for d, _, names in os.walk(nodes.pfs.mount) for n in names)
    for node in (0, 2):  # one of them on each side
        nodes.jobs[node].run(["sh", "-c", 'head -c 100 /dev/urandom > "$1"', "sh", path])
    with open(path, "rb") as stream:
        content = stream.read()
    nodes.lab.heal(3)
    for node in (0, 1, 2):
        ok(wait_until(lambda node=node: nodes.jobs[node].run(["cat", path])[1] == content, 60),
           f"what changed while a node was cut off: node {node} sees it")
    nodes.want = nodes.native()
    nodes.expect_right("it is back", 0, 1, 2)
    nodes.end()


# Prints what is in each directory, in the order of readdir(3).
WALK = """
import os, sys
os.chdir(sys.argv[1])
todo = ["."]
while todo:
    path = todo.pop()
    with os.scandir(path) as found:
        entries = [(e.name, e.inode(), e.is_dir(follow_symlinks=False), e.is_symlink()) for e in found]
    print(path, entries)
    todo += [f"{path}/{name}" for name, _, is_dir, _ in entries if is_dir]
"""


class Walks(Nodes):
    """Nodes of which one reads the directories; these were made just now, so each is read twice."""

    def __init__(self, name, count, config=""):
        super().__init__(name, count, config=config)
        for i in range(300):
            path = f"dirs/{i % 20}/{i}"
            os.makedirs(f"{self.data}/{path}")
            for j in range(i % 5):
                with open(f"{self.data}/{path}/{j}", "wb"):
                    pass
        self.directories = [d for d, _, _ in os.walk(self.data)]
        self.before = self.opened()

    def opened(self):
        return self.pfs_reads()["opendir"]

    def told(self, index, by):
        return wait_until(lambda: f"walk: node {by} has told" in self.log(index), 60)

    def expect_listed(self, what, *indexes, asked=0):
        """Tasks of each node see all directories as they are, and the PFS is not asked for their names.  `asked`: how often."""
        native = e2e.execute([sys.executable, "-c", WALK, self.pfs.mount])[1]
        before = self.opened()
        for index in indexes:
            equal(self.jobs[index].run([sys.executable, "-c", WALK, self.pfs.mount])[1], native,
                  f"{what}: node {index} sees what the directories hold")
        equal(self.opened() - before, asked, f"{what}: directories that the PFS was asked for")


def walked():
    if without_slowfs():
        return
    nodes = Walks("walked", 3)
    nodes.start(0)
    nodes.start(1)
    ok(nodes.told(1, 0), "the second node is told what the first one reads", nodes.log(1))
    equal(nodes.opened() - nodes.before, 2 * len(nodes.directories), "one node reads each directory")
    before = nodes.opened()
    nodes.start(2)
    ok(nodes.told(2, 0), "a node that comes late is told, too", nodes.log(2))
    equal(nodes.opened() - before, 0, "nothing is read for it")
    nodes.expect_listed("walked", 0, 1, 2)
    with open(f"{nodes.pfs.mount}/dirs/new", "wb"):
        pass
    for index in (0, 1, 2):
        ok(b"'new'" in nodes.jobs[index].run([sys.executable, "-c", WALK, nodes.pfs.mount])[1],
           f"node {index} sees what has changed since")
    nodes.end()


def walked_unused():
    """Prefetch rests while nobody uses the dataset; the walk, which other nodes wait for, goes on."""
    if without_slowfs():
        return
    nodes = Walks("walked-unused", 2, config="prefetch = on\nprefetch_patience = 1\npfs_stats = 60").start_all()
    ok(wait_until(lambda: "prefetch stops until one does" in nodes.log(0), 30), "nobody uses the dataset", nodes.log(0))
    at = nodes.opened() - nodes.before
    ok(at < 1.5 * len(nodes.directories), "in the middle of the walk", at)
    ok(nodes.told(1, 0), "the other node is told all", nodes.log(1))
    equal(nodes.opened() - nodes.before, 2 * len(nodes.directories), "each directory was read by one of them")
    nodes.end()


def bursts():
    """Before anything is read all nodes together prefetch as much as one alone would."""
    if without_slowfs():
        return
    nodes = Nodes("bursts", 2, files=2400, config="prefetch = auto").start_all()
    cost, burst = (lambda: nodes.pfs_reads()["open"] * (64 << 10) + nodes.pfs_reads()["read_bytes"]), 64 << 20
    ok(wait_until(lambda: cost() > 0.9 * burst, 60), "they prefetch", cost(), burst)
    time.sleep(2)
    ok(cost() <= 1.1 * burst, "no more than the burst of a job", cost(), burst)
    nodes.end()


def walker_ends():
    if without_slowfs():
        return
    for how in (signal.SIGKILL, signal.SIGSTOP):
        nodes = Walks(f"walker-{how.name}", 3, config="pfs_stats = 100").start_all()
        ok(wait_until(lambda nodes=nodes: nodes.opened() - nodes.before > 100, 30), f"{how.name}: it walks")
        agent = nodes.jobs[0].agent()
        os.kill(agent, how)
        at = nodes.opened() - nodes.before
        ok(at < 1.5 * len(nodes.directories), f"{how.name}: in the middle of the walk", at)
        ok(nodes.told(2, 1), f"{how.name}: the next node goes on, and tells", nodes.log(1), nodes.log(2))
        opened = nodes.opened() - nodes.before
        ok(opened <= 2.1 * len(nodes.directories), f"{how.name}: it reads what was not told", opened, len(nodes.directories))
        # What the tasks of a node whose agent is gone change is not told: the PFS is asked.
        asked = 2 * len(nodes.directories) if how == signal.SIGKILL else 0
        nodes.expect_listed(how.name, 1, 2, asked=asked)
        if how == signal.SIGSTOP:
            os.kill(agent, signal.SIGCONT)
        else:
            nodes.jobs[0].kill()
            nodes.jobs[0] = None
            subprocess.run(["rm", "-rf", *[f"{nodes.tiers[0]}/{name}" for name in os.listdir(nodes.tiers[0])]], check=True)
        nodes.end()


def full():
    if without_slowfs():
        return
    nodes = Nodes("full", 2)
    nodes.start(0)
    nodes.start(1, size="200K")
    nodes.expect_right("a tier is full", 0, 1)
    nodes.expect_right("a tier is full, again", 1, 0)
    nodes.end()


def quiet():
    strace = e2e.execute(["sh", "-c", "command -v strace"])[1].strip()
    if not strace or without_slowfs():
        if not strace:
            skip("an idle agent with peers", "no strace")
        return
    nodes = Nodes("quiet", 8).start_all()
    nodes.expect_right("before", 0, 1)
    time.sleep(3)  # what was read last has been told, and taken down
    trace = f"{scratch()}/quiet.strace"
    watcher = e2e.start([strace, "-f", "-e", "trace=!futex,poll,restart_syscall", "-o", trace, "-p", str(nodes.jobs[0].agent())])
    time.sleep(4)
    e2e.end(watcher)
    with open(trace, encoding="ascii", errors="replace") as stream:
        # What threads were in already when they were attached to, and the look for the run directory.
        calls = [line for line in stream if " = " in line and "newfstatat(" not in line]
    equal(calls, [], "an idle agent makes no calls for its seven peers")
    nodes.end()


if __name__ == "__main__":
    e2e.main(once, linked, accounted, accounted_with_faults, accounted_in_the_middle, shown, killed, stopped, strangers, squatter, nameless,
             other_version, changed, marked_twice, changed_in_turn, told, home_gone, late, walked, walked_unused, bursts, walker_ends, cut, full, quiet)
