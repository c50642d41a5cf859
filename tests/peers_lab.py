# SPDX-License-Identifier: Apache-2.0
"""Several nodes on this machine, for end-to-end tests: each has a network of its own (dev/lab peers), and all else in common,
so that they see the same PFS."""

import subprocess

from e2e import PATIENCE, SOURCE, scratch

UNABLE = 77  # exit code where the machine lacks something


def why_no_peers():
    """Why there can be no such nodes here."""
    check = subprocess.run([f"{SOURCE}/dev/lab", "peers", "check"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    if check.returncode not in (0, UNABLE):
        raise RuntimeError(f"dev/lab peers check: exit code {check.returncode}: {check.stdout.decode()}")
    return check.stdout.decode().strip()


class Peers:
    """Nodes 1 to `count`, and "hub", where clients and what all nodes talk to may run; they end with the test at the latest."""

    def __init__(self, count):
        self.directory = f"{scratch()}/peers"
        lines = self._lab("up", str(count)).split("\n")
        self.addresses = {int(node) if node.isdigit() else node: address for node, address in map(str.split, filter(None, lines))}

    def at(self, node):
        """The words before a command that make it run in a node; e2e's `before`."""
        return ["nsenter", f"--net={self.directory}/net/{node}", "--"]

    def cut(self, node):
        """From now on all packets from and to a node are lost; nobody is told."""
        self._lab("cut", str(node))

    def heal(self, node):
        self._lab("heal", str(node))

    def _lab(self, command, *words):
        result = subprocess.run([f"{SOURCE}/dev/lab", "peers", command, self.directory, *words], stdin=subprocess.DEVNULL,
                                capture_output=True, timeout=2 * PATIENCE, check=False)
        if result.returncode != 0:
            raise RuntimeError(f"dev/lab peers {command}: {result.stderr.decode()}")
        return result.stdout.decode()
