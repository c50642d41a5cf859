# SPDX-License-Identifier: Apache-2.0
"""A private Slurm (dev/lab slurm) of one node for benchmarks, with Monarch's plugin and one tier.  Needs root."""
import glob
import json
import os
import subprocess
import sys
import time

import lib

USER = "monarchlab"
PATIENCE = 120


class Cluster:
    """The lab's; `line` is the plugin's, to take out and put back."""

    def __init__(self, tier, agent=(), quota="1G"):
        """`tier`: a directory, which is made.  `agent`: KEY = VALUE lines for the configuration's [agent]."""
        if os.geteuid() != 0:
            lib.die("a private Slurm needs root")
        subprocess.run([os.path.join(lib.TOP, "dev/deps"), "slurm"], check=True, stdout=sys.stderr)
        for directory in (lib.scratch(), os.path.dirname(os.path.realpath(tier))):
            os.chmod(directory, 0o755)
        self.directory, self.tier, self.state = os.path.join(lib.scratch(), "slurm"), tier, os.path.join(lib.scratch(), "state")
        os.makedirs(self.tier)
        config = os.path.join(lib.scratch(), "monarch.conf")
        with open(config, "w", encoding="utf-8") as file:
            file.write("\n".join(["[agent]", *agent, "[tier.bench]", f"path = {self.tier}", f"quota = {quota}", "min_free = 0", ""]))
        prefix = lib.program("install")
        self.line = (f"optional {prefix}/lib/slurm/spank_monarch.so config={config} monarchd={prefix}/sbin/monarchd "
                     f"state_dir={self.state} log={lib.scratch()}/monarchd.log")
        self._lab("up", "--nodes", "1", "--prolog-flags", "Contain", "--plugstack-line", self.line)
        status = json.loads(self._lab("status", "--json"))
        self.conf = status["slurm_conf"]
        self.environment = {"PATH": "/usr/bin:/bin", "SLURM_CONF": self.conf, "LC_ALL": "C.UTF-8"}
        self.plugstack = os.path.join(os.path.dirname(self.conf), "plugstack.conf")

    def _lab(self, command, *options):
        return subprocess.run([os.path.join(lib.TOP, "dev/lab"), "slurm", command, "--dir", self.directory, *options],
                              check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True).stdout

    def with_plugin(self, wanted):
        with open(self.plugstack + ".new", "w", encoding="utf-8") as file:
            file.write(f"{self.line}\n" if wanted else "# none\n")
        os.rename(self.plugstack + ".new", self.plugstack)

    def states(self):
        return subprocess.run(["sinfo", "-h", "-o", "%T"], env={**os.environ, "SLURM_CONF": self.conf}, check=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True).stdout.split()

    def command(self, *words):
        """What runs `words` of srun's as the lab's user, in `environment`."""
        return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups", "srun", "--quiet", "--exclusive", *words]

    def wait_idle(self):
        end = time.monotonic() + PATIENCE
        while self.states() != ["idle"]:
            if time.monotonic() > end:
                lib.die(f"the node is {self.states()} {PATIENCE} s after the job's end")

    def nothing_left(self):
        """Waits until what the last job had is gone, so that its removal is not the next one's burden."""
        end = time.monotonic() + PATIENCE
        while any(os.listdir(path) for path in (f"{self.state}/removing", f"{self.tier}/monarch") if os.path.isdir(path)):
            if time.monotonic() > end:
                lib.die(f"something is left in {self.tier}")
            time.sleep(0.05)

    def report(self):
        """The last job's, once it is gone."""
        with open(max(glob.glob(f"{self.state}/reports/*/*.json"), key=os.path.getmtime), encoding="utf-8") as file:
            return json.load(file)

    def close(self):
        self._lab("down")
