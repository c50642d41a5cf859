#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What monarchd answers to who calls it: its exit status, its one line of reply, and what it logs."""

import glob
import json
import os
import subprocess
import sys
import time

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


def datasets_file():
    """The agent's datasets, which root hands on in a file."""
    r = Root("datasets")

    def run(text, *more):
        os.mkdir(f"{r.dir}/run", 0o700)
        with open(f"{r.dir}/list", "w", encoding="utf-8") as file:
            file.write(text)
        (lifeline, held), (read, write) = os.pipe(), os.pipe()
        process = e2e.start([f"{BUILD}/monarchd", "--datasets-file", f"{r.dir}/list", "--run-dir", f"{r.dir}/run", "--job-dir", "job",
                             "--tier", f"one:{r.tier}:1M", "--ready-fd", str(write), "--lifeline-fd", str(lifeline), *more],
                            pass_fds=[write, lifeline], stderr=subprocess.DEVNULL)
        os.close(lifeline)
        os.close(write)
        with os.fdopen(read, encoding="utf-8") as said:
            answer = said.readline()
        os.close(held)
        code = process.wait(e2e.PATIENCE)
        subprocess.run(["rm", "-rf", f"{r.dir}/run"], check=True)
        return code, answer

    equal(run(f"::{r.data}:"), (0, "ready\n"), "empty names are none")
    with open(f"{r.dir}/patterns", "w", encoding="utf-8") as file:
        file.write("*.log")
    equal(run(r.data, "--exclude-file", f"{r.dir}/patterns"), (0, "ready\n"), "with patterns of what is not staged, too")
    for text in ("", ":"):
        code, answer = run(text)
        equal(code, 1, f"{text!r}: no dataset")
        contains(answer, ["no dataset in it"], "and that is said")


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
    real, r.state = r.state, f"{r.dir}/plain"
    with open(r.state, "w", encoding="utf-8"):
        pass
    for number, hook in enumerate((["--epilog"], ["--prolog", "--datasets", r.data], ["--flush"], ["--sweep"]), 1):
        equal(r.call(*hook)[0], 1, f"{hook[0]} without a state directory")
        equal(r.logged("plain: not a directory that root alone can write"), number, "is logged")
    r.state = real
    with open(r.log, "w", encoding="utf-8"):
        pass
    equal((r.call("--sweep")[0], os.path.getsize(r.log)), (0, 0), "a sweep that has nothing to do says nothing")


def starts():
    """What --start answers and logs, whether there is an agent or not."""
    r = Root("starts")
    equal(r.call("--start"), (0, "off read " + f"{r.state}/jobs/cluster.1.n1/wanted: No such file or directory\n"), "nothing is wanted: no failure")
    equal(r.logged("runs without"), 0, "nor one in the log")
    equal(r.call("--start", "--datasets", r.data)[0], 0, "an agent starts")
    code, reply = r.call("--start", "--datasets", r.data)
    equal((code, reply.split()[0]), (0, "ready"), "the job's next step has it, too", reply)
    equal(r.logged("agent started"), 1, "one was started")
    equal(r.logged("is not ready"), 0, "and waited for")
    r.end(1)


def whose_rights():
    """The agent has the job owner's groups, and reads no more than that user can."""
    r = Root("rights")
    subprocess.run(["chgrp", "-R", "5000", r.data], check=True)
    os.chmod(r.data, 0o750)
    code, reply = r.call("--start", "--datasets", r.data)
    equal((code, reply.split()[0]), (1, "off"), "a dataset that its owner cannot read is not served", reply)
    equal(r.call("--epilog")[0], 0, "the epilog ends well")
    code, reply = r.call("--start", "--datasets", r.data, "--groups", "4000,5000", job=2)
    equal((code, reply.split()[0]), (0, "ready"), "one that a group of its owner can is", reply)
    r.end(1, 2)


def failures():
    """A job without an agent runs; its user is told once if a step can, and the log says so once."""
    r = Root("failures")
    missing = f"{r.dir}/missing.conf"
    code, reply = r.call("--start", "--datasets", r.data, config=missing)
    equal((code, reply.split()[0]), (1, "off"), "no configuration, and nobody to be told", reply)
    equal(r.logged("runs without Monarch"), 1, "it is logged")
    equal(r.logged("agent started"), 0, "and nothing else")
    code, reply = r.call("--start", "--tell", "--datasets", r.data, config=missing)
    equal((code, reply.split()[0]), (1, "tell"), "the first step that can tell the user does", reply)
    code, reply = r.call("--start", "--tell", "--datasets", r.data, config=missing)
    equal((code, reply.split()[0]), (1, "off"), "and no other", reply)
    equal(r.logged("runs without Monarch"), 1, "in the log it stands once")
    equal(r.call("--prolog", "--datasets", r.data, job=2)[0], 0, "a prolog notes what is wanted")
    equal(r.call("--start", job=2, config=missing)[0], 1, "what it noted fails as well")
    equal(r.logged("runs without Monarch"), 2, "and is logged")
    ok(wait_until(lambda: len(r.keepers()) == 1), "a keeper watches over the jobs' notes")
    with open(f"/proc/{int(r.keepers()[0])}/cmdline", encoding="utf-8") as words:
        contains(words.read().split("\0"), ["--config", missing, "--log", r.log], "as the hook was told")
    r.end(1, 2)


def required():
    """Only a step with tasks fails for want of an agent, and only if the job's user wants that."""
    r = Root("required")
    start = ["--start", "--datasets", r.data]
    job = 0
    for words, kind in (([], "off"), (["--tasks"], "off"), (["--options", "capacity=1M,require"], "off"), (["--tasks", "--options", "capacity=1M,require"], "fail")):
        job += 1
        code, reply = r.call(*start, *words, job=job, config=f"{r.dir}/missing.conf")
        equal((code, reply.split()[0]), (1, kind), f"with {words}", reply)
    r.end(*range(1, job + 1))


def remarks():
    """What a job does not get of what it asks for is told to who can tell its user, and once."""
    r = Root("remarks")
    start = ["--start", "--datasets", r.data, "--options", "tiers=nvme,other"]
    code, reply = r.call(*start)
    equal((code, reply.split()[0], "\t" in reply), (0, "ready", False), "a step that cannot tell is not told", reply)
    code, reply = r.call(*start, "--tell")
    equal((code, reply.split("\t")[1:]), (0, ["n1 has no tier other; it has nvme\n"]), "the next one is", reply)
    code, reply = r.call(*start, "--tell")
    equal((code, reply.split()[0], "\t" in reply), (0, "ready", False), "and no other", reply)
    r.end(1)


def keepers():
    """A keeper is started by a hook that leaves something to do."""
    r = Root("keepers")
    equal(r.call("--epilog")[0], 0, "an epilog of a job without Monarch")
    ok(not os.path.exists(f"{r.state}/keeper.lock"), "nothing is left: no keeper", os.listdir(r.state))
    with open(f"{r.state}/spool/c.1.0.n1.1.1.json", "w", encoding="utf-8") as file:
        file.write("{}")
    r.call("--flush", job=None)
    ok(not os.path.exists(f"{r.state}/keeper.lock"), "--flush does what there is itself", os.listdir(r.state))
    equal(os.listdir(f"{r.state}/jobs"), [], "and notes no job")


def lines():
    """Lines for sacct that wait: which helper writes them, and that no hook waits for it."""
    r = Root("lines")
    own, other = f"{r.dir}/own", f"{r.dir}/other"
    os.makedirs(f"{r.state}/spool", 0o755)
    os.chmod(f"{r.state}/spool", 0o700)

    def answer(helper, status):
        with open(f"{helper}.new", "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\necho >>{helper}.calls\nexit {status}\n")
        os.chmod(f"{helper}.new", 0o755)
        os.rename(f"{helper}.new", helper)

    def spool(kind="kept"):
        now = int(time.time())
        entry = {"job": 1, "cluster": "c", "uid": UID, "begin": now, "end": now, "line": "monarch=1", "account_program": own}
        with open(f"{r.state}/spool/c.1.0.n1.1.{now}.{kind}", "w", encoding="utf-8") as file:
            json.dump(entry, file)

    def calls(helper):
        return os.path.getsize(f"{helper}.calls") if os.path.exists(f"{helper}.calls") else 0

    answer(own, 0)
    answer(other, 0)
    flush = [f"{BUILD}/monarchd", "--flush", "--state-dir", r.state, "--log", r.log]
    spool()
    equal(e2e.execute([*flush, "--account-program", other])[0], 0, "a person has them written")
    equal((calls(own), calls(other)), (0, 1), "by the helper that is named")
    spool()
    equal(e2e.execute(flush)[0], 0, "or names none")
    equal((calls(own), calls(other)), (1, 1), "and it is the one of the hook that kept the line")
    with open(r.log, encoding="utf-8") as file:
        equal(file.read(), "", "nothing is logged")
    answer(own, 1)
    spool("json")
    equal(r.call("--epilog")[0], 0, "an epilog does not wait for lines of others")
    ok(wait_until(lambda: calls(own) > 1), "but leaves a keeper that writes them")
    answer(own, 0)
    r.end()
    equal(r.call("--prolog", "--datasets", r.data, job=2)[0], 0, "a prolog notes what is wanted")
    ok(wait_until(lambda: len(r.keepers()) == 1), "and leaves a keeper as well", r.keepers())
    r.end(2)


def long_names():
    """A job whose names are too long for Monarch's files runs without it, and ends as others do."""
    r = Root("names")
    node = "n" * 161
    code, reply = r.call("--start", "--datasets", r.data, node=node)
    equal((code, reply.startswith("off the names of cluster and node have ")), (1, True), "no agent, and it is said", reply)
    equal(r.call("--prolog", "--datasets", r.data, node=node)[0], 1, "nothing is noted")
    equal(r.logged("the names of cluster and node"), 2, "which is logged")
    equal(r.call("--epilog", node=node)[0], 0, "its epilog has nothing to do")
    equal(r.logged("the names of cluster and node"), 2, "and says nothing")


if os.geteuid() != 0:
    print("1..0 # SKIP needs root")
    sys.exit(0)
e2e.main(usage, datasets_file, bad_agents, troubles, starts, whose_rights, failures, required, remarks, keepers, lines, long_names)
