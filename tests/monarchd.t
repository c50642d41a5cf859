#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What monarchd answers to who calls it: its exit status, its one line of reply, and what it logs."""

import glob
import os
import subprocess
import sys

sys.dont_write_bytecode = True
import e2e  # pylint: disable=wrong-import-position
from e2e import BUILD, contains, equal, ok, scratch, wait_until  # pylint: disable=wrong-import-position

UID = 65534
USAGE = 2


class Root:
    """A state directory with a configuration, and monarchd as root's hooks call it."""

    def __init__(self, name):
        self.dir = scratch(name)
        os.chmod(self.dir, 0o755)
        self.state, self.data, self.tier, self.log = (f"{self.dir}/{part}" for part in ("state", "data", "tier", "log"))
        self.config = f"{self.dir}/monarch.conf"
        e2e.make_tree(self.data, 3)
        subprocess.run(["chmod", "-R", "a+rX", self.data], check=True)
        os.mkdir(self.tier)
        os.chmod(self.tier, 0o1777)
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(f"[tier.nvme]\npath = {self.tier}\nquota = 10M\nmin_free = 0\n")

    def call(self, *words, job=1, node="n1", config=None):
        """(exit status, its reply)"""
        read, write = os.pipe()
        words = [f"{BUILD}/monarchd", *words, "--state-dir", self.state, "--log", self.log, "--config", config or self.config,
                 "--account-program", "", "--uid", str(UID), "--gid", str(UID), "--reply-fd", str(write)]
        if job is not None:
            words += ["--job", str(job), "--node", node]
        code = e2e.execute(words, pass_fds=[write])[0]
        os.close(write)
        with os.fdopen(read, encoding="utf-8") as reply:
            return code, reply.readline()

    def logged(self, text):
        with open(self.log, encoding="utf-8") as file:
            return file.read().count(text)

    def end(self, *jobs):
        equal([self.call("--epilog", job=job)[0] for job in jobs], [0] * len(jobs), "the epilog ends well")
        ok(wait_until(lambda: not self.left() and not self.keepers()), "nothing is left", self.left(), self.keepers())

    def left(self):
        """But the reports, which are to stay."""
        return [p for p in glob.glob(f"{self.state}/*/*") if "/reports/" not in p] + glob.glob(f"{self.tier}/monarch/*", include_hidden=True)

    def keepers(self):
        found = subprocess.run(["pgrep", "-f", rf"monarchd --keep --state-dir {self.state} "], stdout=subprocess.PIPE, check=False)
        return found.stdout.split()


def usage():
    """What is missing or bad is told at once, and nothing is begun."""
    r = Root("usage")
    agent = {"--dataset": r.data, "--run-dir": f"{r.dir}/run", "--job-dir": "job"}
    os.mkdir(agent["--run-dir"], 0o700)
    for missing in agent:
        words = [word for name, value in agent.items() if name != missing for word in (name, value)]
        equal(e2e.execute([f"{BUILD}/monarchd", *words])[0], USAGE, f"an agent without {missing}")
    words = [word for pair in agent.items() for word in pair]
    for groups in ("1x", ",1", "1,,2", "x"):
        equal(e2e.execute([f"{BUILD}/monarchd", *words, "--groups", groups])[0], USAGE, f"--groups {groups}")
    equal(os.listdir(agent["--run-dir"]), [], "nothing was made")
    for of in ({"job": 0}, {"job": None}, {"node": "a/b"}, {"node": ""}):
        equal(r.call("--epilog", **of)[0], USAGE, f"a hook for {of}")
    equal(r.call("--epilog", "--cluster", "../x")[0], USAGE, "a hook for a cluster with such a name")
    ok(not os.path.exists(r.state), "no state was made")


def bad_agents():
    """An agent that cannot be as it is told to says why to who waits for it, and ends."""
    r = Root("agents")
    os.chmod(r.dir, 0o777)
    for words, said in ((["--config", f"{r.dir}/missing"], "missing"), (["--tier", "one"], "one"),
                        (["--tier", f"one:{r.tier}:1M", "--tier", f"one:{r.tier}:1M"], "one"),
                        (["--dataset", f"{r.dir}/none"], "none: no such file"),
                        (["--exclude-file", "/dev/null"], "/dev/null: no pattern in it"),
                        (["--peers", f"{r.dir}/nodes"], "key"),
                        (["--tier", f"one:{r.tier}:1M", "--uid", "1", "--gid", "1"], "not permitted")):
        read, write = os.pipe()
        code, _, err = e2e.execute(["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", f"{BUILD}/monarchd", "--dataset", r.data,
                                    "--run-dir", f"{r.dir}/run", "--job-dir", "job", "--ready-fd", str(write), *words], pass_fds=[write])
        os.close(write)
        with os.fdopen(read, encoding="utf-8") as answer:
            told = answer.read()
        equal(code, 1, f"{words[-1]}: it ends")
        ok(said in told.lower() and told in err, f"{words[-1]}: and says why", told, err)
        ok(not os.path.exists(f"{r.dir}/run"), f"{words[-1]}: nothing is made")


def troubles():
    """Root's helpers without a log, a state directory, somebody who listens, or root's rights."""
    r = Root("troubles")
    words = [f"{BUILD}/monarchd", "--flush", "--state-dir", r.state]
    code, _, err = e2e.execute(["setpriv", f"--reuid={UID}", "--clear-groups", *words])
    equal(code, 1, "another user can flush nothing")
    contains(err, ["are for root"], "and is told")
    code, _, err = e2e.execute([*words, "--log", f"{r.config}/log"])
    equal(code, 0, "without a log all is done")
    if not os.access("/dev/log", os.W_OK):
        contains(err, [f"{r.config}/log", "to stderr instead"], "and told elsewhere")
    code, _, err = e2e.execute([f"{BUILD}/monarchd", "--start", "--job", "1", "--node", "n1", "--state-dir", r.state, "--log", r.log, "--config",
                                r.config, "--uid", str(UID), "--gid", str(UID), "--datasets", r.data, "--account-program", "", "--reply-fd", "99"])
    equal(code, 1, "an answer that nobody can read is a failure")
    r.end(1)
    r.state = f"{r.dir}/plain"
    with open(r.state, "w", encoding="utf-8"):
        pass
    for number, hook in enumerate((["--epilog"], ["--prolog", "--datasets", r.data], ["--flush"], ["--sweep"]), 1):
        equal(r.call(*hook)[0], 1, f"{hook[0]} without a state directory")
        equal(r.logged("plain: not a directory that root alone can write"), number, "is logged")


if os.geteuid() != 0:
    print("1..0 # SKIP needs root")
    sys.exit(0)
e2e.main(usage, bad_agents, troubles)
