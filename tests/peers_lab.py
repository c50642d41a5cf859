# SPDX-License-Identifier: Apache-2.0
"""Several nodes on this machine, for end-to-end tests: each has a network of its own (dev/lab peers), and all else in common,
so that they see the same PFS."""

import json
import subprocess

import e2e
from e2e import PATIENCE, SOURCE, scratch

UNABLE = 77  # exit code where the machine lacks something

def why_no_peers():
    """Why there can be no such nodes here."""
    check = subprocess.run([f"{SOURCE}/dev/lab", "peers", "check"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    if check.returncode not in (0, UNABLE):
        raise RuntimeError(f"dev/lab peers check: exit code {check.returncode}: {check.stdout.decode()}")
    return check.stdout.decode().strip()


class Peers:
    """Nodes 1 to `count`, and "hub", where clients and what all nodes talk to may run; they end with the test at the latest.

    `rate`: in Mbit/s, of each node and direction; 0: no limit. `name`: of a directory below scratch(), where there are more than one.
    """

    def __init__(self, count, rate=0, name=""):
        self.directory = f"{scratch(name)}/peers"
        self._count = count
        self.nodes = range(1, count + 1)
        lines = self.set_rate(rate).split("\n")
        self.addresses = {int(node) if node.isdigit() else node: address for node, address in map(str.split, filter(None, lines))}

    def at(self, node):
        """The words before a command that make it run in a node; e2e's `before`."""
        return ["nsenter", f"--net={self.directory}/net/{node}", "--"]

    def start(self, node, command, **options):
        """As e2e.start, in a node."""
        return e2e.start([*self.at(node), *command], **options)

    def execute(self, node, command, seconds=PATIENCE, **options):
        """As e2e.execute, in a node."""
        return e2e.execute([*self.at(node), *command], seconds, **options)

    def set_rate(self, rate):
        return self._lab("up", str(self._count), "--rate", str(rate))

    def cut(self, node):
        """From now on all packets from and to a node are lost; nobody is told."""
        self._lab("cut", str(node))

    def heal(self, node):
        self._lab("heal", str(node))

    def status(self):
        return json.loads(self._lab("status", "--json"))

    def down(self):
        """Ends what runs in the nodes, and removes them."""
        self._lab("down")

    def _lab(self, command, *words):
        result = subprocess.run([f"{SOURCE}/dev/lab", "peers", command, self.directory, *words], stdin=subprocess.DEVNULL,
                                capture_output=True, timeout=2 * PATIENCE, check=False)
        if result.returncode != 0:
            raise RuntimeError(f"dev/lab peers {command}: {result.stderr.decode()}")
        return result.stdout.decode()
