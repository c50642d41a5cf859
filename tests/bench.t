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


def metadata():
    code, out, err = run(load("metadata"), *FAST[6:], "--files", "300", "--directories", "6", "--runs", "1", "--json")
    equal(code, 0, "metadata ends well", err)
    entries = json.loads(out)["figures"]
    asked = {e["condition"]: e["median"] for e in entries if e["figure"] == "calls to the PFS for each directory"}
    ok(asked and all(calls <= 3 for calls in asked.values()), "metadata counts the PFS's calls", asked)
    seconds = [e["condition"] for e in entries if e["figure"] == "walk and stat, Python"]
    equal(seconds, ["native", "pass", "serve", "local"], "metadata times all modes")


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


def tuning():
    code, out, err = run(load("tuning"), "--runs", "1", "--scale", "0.01", "--threads", "1,2", "--sizes", "1,2", "--volume", "4",
                         "--json")
    equal(code, 0, "tuning ends well", err)
    found = {(f["figure"], f["condition"]) for f in json.loads(out)["figures"]}
    equal(found, {*[("epoch 1 / direct", f"{readers} readers, threads = {n}") for readers in (4, 16) for n in (1, 2)],
                  *[("epoch 1 / direct", f"files of {size} MiB, {kind}") for size in (1, 2)
                    for kind in ("waited for", "not waited for")],
                  *[("an open takes", f"files of {size} MiB") for size in (1, 2)]}, "tuning has all its figures")


def reads():
    code, out, err = run(load("reads"), *FAST[6:], "--mib", "1", "--threads", "2", "--prefetch", "on", "--epochs", "3", "--json")
    equal(code, 0, "reads ends well", err)
    told = json.loads(out)
    found = {(f["figure"], f["condition"]): f["median"] for f in told["figures"]}
    equal(len(found), 5 * 6 * 2, "reads has a figure for each way", found)
    local, monarch = ([e["seconds"] for e in r["epochs"]] for r in told["runs"][1:3])
    equal([found[name, told["runs"][0]["workload"]] for name in ("epoch 2 / local's first", "later epochs / local")],
          [monarch[1] / local[0], monarch[2] / (local[1] + local[2]) * 2], "copies are compared with others that were read as often")
    equal({value for (figure, condition), value in found.items() if figure.startswith("later epochs: PFS") and "opened" in condition},
          {0}, "and counts the PFS's bytes", found)
    code, out, err = run(load("reads"), *FAST[6:], "--page-cache", "--ways", "mmap", "--held", "opened", "--mib", "1", "--threads", "2",
                         "--prefetch", "off", "--epochs", "2", "--json")
    found = {f["figure"]: f["median"] for f in json.loads(out)["figures"]}
    ok(code == 0 and found["epoch 1: PFS bytes / dataset"] == 1, "with a page cache no mode reads what another has left in it", found, err)


why = "sanitizer build: its programs need the sanitizer's library, and nothing is to be measured" if e2e.SANITIZER else e2e.why_no_slowfs()
if why:
    skip("dev/bench", why)
    e2e.main()
e2e.main(epochs, metadata, wrong_bytes, tuning, reads)
