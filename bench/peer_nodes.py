# SPDX-License-Identifier: Apache-2.0
"""Several nodes that share a job, on this machine: an agent for each by `monarchctl run --peers`, in a network of its
own where there is a lab (dev/lab peers), all on the same PFS."""
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys

import lib


class Lab:
    """`count` nodes with a network each; `rate` in Mbit/s for each of them and each direction, 0: no limit."""

    def __init__(self, count, rate):
        self.directory = os.path.join(lib.scratch(), "peers")
        lines = self._do("up", str(count), "--rate", str(rate))
        self._addresses = dict(line.split() for line in lines.splitlines())

    def address(self, index):
        return self._addresses[str(index + 1)]

    def at(self, index):
        """The words before a command that make it run on a node."""
        return ["nsenter", f"--net={self.directory}/net/{index + 1}", "--"]

    def close(self):
        self._do("down")

    def _do(self, command, *words):
        return subprocess.run([os.path.join(lib.TOP, "dev/lab"), "peers", command, self.directory, *words], check=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True).stdout


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Nodes:
    """Nodes 0 to `count` - 1 of a job.  None runs before it is started; the tiers go with close()."""

    def __init__(self, dataset, tiers, tier_bytes, count, lab=None, agent=()):
        """`tiers`: a directory for them.  `agent`: KEY = VALUE lines for the configuration's [agent]."""
        self.dataset, self.tiers, self.tier_bytes, self.lab = dataset, tiers, tier_bytes, lab
        self.count, self.processes, self.envs = count, [None] * count, [None] * count
        os.makedirs(tiers)
        self._write("peers.key", os.urandom(32))
        self._write("peers.conf", "\n".join(["[agent]", *agent, ""]).encode())
        places = [(lab.address(i), 64000) for i in range(count)] if lab else \
            [("127.0.0.1", port) for port in free_ports(count)]
        self._write("peers.list", "".join(f"{host}:{port}\n" for host, port in places).encode())

    def _path(self, name):
        return os.path.join(lib.scratch(), name)

    def _write(self, name, content):
        with open(os.open(self._path(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)

    def _report(self, index):
        return self._path(f"peers.report.{index}.json")

    def report(self, index):
        """All of it, of a node that has ended."""
        with open(self._report(index), encoding="utf-8") as file:
            return json.load(file)

    def command(self, index, alone=False):
        """The words before a program that make it a task of the node's."""
        tier = os.path.join(self.tiers, str(index))
        os.makedirs(tier, exist_ok=True)
        words = [lib.program("monarchctl"), "run", "--config", self._path("peers.conf"), "--dataset", self.dataset,
                 "--tier", f"bench:{tier}:{self.tier_bytes}", "--report", self._report(index)]
        if not alone:
            words += ["--peers", self._path("peers.list"), "--peer-index", str(index), "--peer-key", self._path("peers.key")]
        return [*(self.lab.at(index) if self.lab else ()), *words, "--"]

    def start(self, index, alone=False):
        """Starts the node's agent; run() starts tasks on it."""
        tell = 'env -0; printf "\\0"; read -r _; exit 0'
        process = lib.start([*self.command(index, alone), "/bin/sh", "-c", tell], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE)
        text = b""
        while not text.endswith(b"\0\0"):
            more = os.read(process.stdout.fileno(), 1 << 16)
            if not more:
                lib.die(f"node {index} does not start: exit code {process.wait()}")
            text += more
        self.processes[index] = process
        self.envs[index] = dict(word.split(b"=", 1) for word in text[:-2].split(b"\0"))

    def start_all(self):
        for index in range(self.count):
            self.start(index)
        return self

    def run(self, index, command):
        """A task on a node, as a lib.Stepped."""
        return lib.Stepped(command, env=self.envs[index])

    def opener(self, index):
        return self.run(index, [sys.executable, os.path.join(lib.TOP, "bench", "opener.py")])

    def agent(self, index):
        return lib.agent_of(self.processes[index])

    def kill(self, index):
        """The node is gone from one moment to the other: its agent is stopped first, so that nobody is told."""
        agent = self.agent(index)
        os.kill(agent, signal.SIGSTOP)
        self.processes[index].kill()
        self.processes[index].wait()
        os.kill(agent, signal.SIGKILL)
        run_dir = self.envs[index][b"MONARCH_IO_RUN_DIR"].decode()
        shutil.rmtree(run_dir, ignore_errors=True)
        self.processes[index] = None

    def end(self):
        """Ends all that run; their reports, None for the others."""
        reports = []
        for index, process in enumerate(self.processes):
            if process is None:
                reports.append(None)
                continue
            process.communicate(b"\n")
            if process.returncode != 0:
                lib.die(f"node {index}: exit code {process.returncode}")
            reports.append(self.report(index)["agent"])
        self.processes = [None] * self.count
        return reports

    def close(self):
        for process in filter(None, self.processes):
            process.terminate()
            process.wait()
        shutil.rmtree(self.tiers)
