#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""dev/bench: its tables, its JSON, and that wrong bytes make it fail."""

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import sys
from unittest import mock

sys.dont_write_bytecode = True
import e2e  # pylint: disable=wrong-import-position
from e2e import BUILD, SOURCE, equal, ok, scratch, skip

FAST = ["--workload", "small", "--scale", "0.01", "--threads", "2", "--open-us", "0", "--read-us", "0", "--meta-us",
        "0", "--bw-mib", "0"]


def load(name):
    """The benchmark as a module of its own, in a scratch directory of its own."""
    os.environ["MONARCH_BUILD"] = BUILD
    os.environ["MONARCH_BENCH_SCRATCH"] = scratch(f"bench.{len(os.listdir(scratch()))}")
    if f"{SOURCE}/bench" not in sys.path:
        sys.path.insert(0, f"{SOURCE}/bench")
    loader = importlib.machinery.SourceFileLoader(f"bench_{name}", f"{SOURCE}/bench/{name}")
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def run(module, *words):
    """Exit code, output and messages of the benchmark's main()."""
    out, err = io.StringIO(), io.StringIO()
    tier = ["--tier-dir", os.environ["MONARCH_BENCH_SCRATCH"]]
    with mock.patch.object(sys, "argv", ["bench", *words, *tier]), contextlib.redirect_stdout(out):
        with contextlib.redirect_stderr(err):
            code = module.main()
    return code, out.getvalue(), err.getvalue()


def epochs():
    code, out, err = run(load("epochs"), *FAST, "--json")
    equal(code, 0, "epochs ends well", err)
    result = json.loads(out)
    equal([(e["mode"], e["epoch"]) for e in result["medians"]],
          [(mode, epoch) for mode in ("direct", "local", "monarch") for epoch in "123"], "epochs --json has all modes")
    opens = {(e["mode"], e["epoch"]): e["pfs"]["opens"] for e in result["medians"]}
    equal(opens, {**{("direct", e): 25 for e in "123"}, **{("local", e): 0 for e in "123"},
                  ("monarch", "1"): 25, ("monarch", "2"): 0, ("monarch", "3"): 0}, "epochs counts the PFS's opens")


def wrong_bytes():
    """A local copy of which one byte differs."""
    module = load("epochs")
    copy = module.lib.local_copy

    @contextlib.contextmanager
    def spoilt(source, local):
        with copy(source, local):
            with open(f"{local}/000/000007.bin", "r+b") as file:
                byte = file.read(1)[0]
                file.seek(0)
                file.write(bytes([byte ^ 1]))
            yield

    with mock.patch.object(module.lib, "local_copy", spoilt):
        code, out, err = run(module, *FAST)
    equal(code, 1, "epochs fails when a mode reads wrong bytes", err)
    ok("FAILED: small, local, epoch 4" in err, "and says which", err)
    ok("direct" in out, "the table is printed nevertheless", out)


why = "sanitizer build: its programs need the sanitizer's library, and nothing is to be measured" if e2e.SANITIZER else e2e.why_no_slowfs()
if why:
    skip("dev/bench", why)
    e2e.main()
e2e.main(epochs, wrong_bytes)
