#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""What monarchd answers to who calls it: its exit status, its one line of reply, and what it logs."""

import contextlib
import os

import e2e
import one_node
from e2e import BUILD, contains, equal
from one_node import FIRST, UID, as_root, as_user

USAGE = 2


def usage():
    """What is missing or bad is told at once, and nothing is begun."""
    with contextlib.closing(one_node.Node("usage")) as n:
        agent = {"--dataset": n.data, "--run-dir": f"{n.dir}/run", "--job-dir": "job"}
        words = [word for pair in agent.items() for word in pair]
        hook = ["--epilog", "--state-dir", n.state, "--log", n.log]
        for what in (*([word for name, value in agent.items() if name != missing for word in (name, value)] for missing in agent),
                     *([*words, "--groups", groups] for groups in ("1x", ",1", "1,,2")),
                     [*hook, "--node", "n1"], [*hook, "--job", "0", "--node", "n1"], [*hook, "--job", "1", "--node", "a/b"],
                     [*hook, "--job", "1", "--node", "n1", "--cluster", "../x"]):
            equal(e2e.execute([f"{BUILD}/monarchd", *what])[0], USAGE, f"refused: {' '.join(what).replace(n.dir, '')}")
        equal([os.path.exists(path) for path in (n.state, agent["--run-dir"])], [False, False], "nothing was made")


def troubles():
    """Root's helpers without a log, a state directory, somebody who listens, or root's rights; an agent that cannot be its owner's."""
    with contextlib.closing(one_node.Node("troubles")) as n:
        words = [f"{BUILD}/monarchd", "--flush", "--state-dir", n.state]
        code, _, err = e2e.execute([*as_user(UID), *words])
        equal(code, 1, "another user can flush nothing")
        contains(err, ["are for root"], "and is told")
        equal(e2e.execute([*words, "--log", f"{n.config}/log"])[0], 0, "without a log all is done")
        code, _, _ = e2e.execute([*n.words("--start", FIRST + 1), "--uid", str(UID), "--gid", str(UID), "--datasets", n.data, "--reply-fd", "99"])
        equal(code, 1, "an answer that nobody can read is a failure")
        agent = ["--dataset", n.data, "--run-dir", f"{n.dir}/run", "--job-dir", "job", "--tier", f"one:{n.tier}:1M"]
        code, _, err = e2e.execute([*as_user(UID), f"{BUILD}/monarchd", *agent, "--uid", "1", "--gid", "1"])
        equal((code, "not permitted" in err.lower(), os.path.exists(f"{n.dir}/run")), (1, True, False), "an agent that cannot be its owner's ends", err)
        n.end(FIRST + 1)
        n.state = f"{n.dir}/plain"
        e2e.write(n.state, b"")
        for number, hook in enumerate((["--epilog"], ["--prolog", "--datasets", n.data], ["--flush"], ["--sweep"]), 1):
            equal(e2e.execute([*n.words(hook[0], FIRST + 2), *hook[1:]])[0], 1, f"{hook[0]} without a state directory")
            equal(one_node.text_of(n.log).count("plain: not a directory that root alone can write"), number, "is logged")


e2e.main(as_root(usage), as_root(troubles))
