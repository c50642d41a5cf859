#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""dev/lab vm: in its machines, which have systemd and, most of them, control groups of version 2 with all controllers, the
tests that concern these."""

import glob
import json
import os
import re
import subprocess
import time

import e2e
import slurm_lab
from e2e import BUILD, SOURCE, equal, ok, skip, wait_until

ALL = os.environ.get("MONARCH_TEST_ALL") == "1"
INSIDE = "MONARCH_VM_BOOT" in os.environ
SECONDS = 3600  # for the longest of the tests, in a machine whose processors are emulated
# Version, test, its functions.
PARTS = (("v2", "cgroup.t", ()), ("v2", "slurm_versions.t", ("systemd",)), ("v2", "slurm_versions.t", ("system",)), ("v2", "metrics.t", ("by_systemd",)), ("hybrid", "cgroup.t", ()))


def vm(*words, seconds=SECONDS + 120, **more):
    return e2e.execute([f"{SOURCE}/dev/lab", "vm", *words], seconds, **more)


def command():
    """Output and exit code; and a reboot, after which Monarch clears away what the one before left."""
    code, out, err = vm("run", "--seconds", "900", "--", "sh", "-c", "echo one; pwd; echo two >&2; cat; exit 7")
    equal((code, out.decode()), (7, f"one\n{os.getcwd()}\ntwo\n"), "the command's output and exit code are the machine's", err)
    results("after a reboot", *vm("run", "--seconds", "900", "--reboots", "2", "--", *environment(), f"{SOURCE}/tests/vm.t", "rebooted"))


def environment():
    return ["env", f"MONARCH_BUILDDIR={BUILD}", f"MONARCH_SRCDIR={SOURCE}", "MONARCH_TEST_INSTALLED=1", "MONARCH_TEST_ALL=1",
            f"MONARCH_TEST_SLOW={1 if glob.glob('/sys/module/kvm_[ai][mn][dt]*') else 10}",
            f"MONARCH_TEST_SLURM={os.environ.get('MONARCH_TEST_SLURM', '')}"]


def results(name, code, out, err):
    """Tells the results of a test that ran in a machine as one's own."""
    lines = out.decode(errors="replace").splitlines()
    count = 0
    for number, line in enumerate(lines):
        found = re.match(r"(not )?ok \d+ - (.*?)(?: # SKIP (.*))?$", line)
        if not found:
            continue
        count += 1
        if found.group(3):
            skip(f"{name}: {found.group(2)}", found.group(3))
        else:
            more = []
            for detail in lines[number + 1:]:
                if not detail.startswith("#  "):
                    break
                more.append(detail[4:])
            ok(not found.group(1), f"{name}: {found.group(2)}", *more)
    equal((code, f"1..{count}" in lines), (0, True), f"{name}: the test ran to its end in the machine", err, "\n".join(lines[-30:]))


def groups():
    """The tests of control groups, in machines."""
    slurm_lab.install()
    if os.environ.get("MONARCH_TEST_SLURM"):
        slurm_lab.install(os.environ["MONARCH_TEST_SLURM"])
    parts = PARTS + ((("v2", "slurm_versions.t", ("newer",)),) if os.environ.get("MONARCH_TEST_SLURM") else ())
    for version, test, functions in parts:
        name = " ".join([f"{test}, control groups {version}", *functions])
        results(name, *vm("run", "--cgroup", version, "--memory", "4G", "--seconds", str(SECONDS), "--", *environment(), f"{SOURCE}/build-aux/test-limit",
                          str(SECONDS - 300), f"{SOURCE}/tests/{test}", *functions))


def crash():
    os.sync()
    e2e.write("/proc/sysrq-trigger", "b")
    time.sleep(600)


def rebooted():
    """In a machine: it crashes in mid-job; the next job's start removes what was the last one's. It crashes once more, and the unit
    for that removes it at boot."""
    base = "/srv/monarch"
    state, tier, data, conf = (f"{base}/{name}" for name in ("state", "tier", "data", "conf"))
    def start(job):
        ends = os.pipe()
        subprocess.run([f"{BUILD}/monarchd", "--start", "--state-dir", state, "--job", str(job), "--node", "n1", "--log", f"{base}/log", "--config", conf,
                        "--uid", "65534", "--gid", "65534", "--groups", "65534", "--datasets", data, "--reply-fd", str(ends[1])],
                       stdin=subprocess.DEVNULL, pass_fds=[ends[1]], check=True)
        os.close(ends[1])
        with os.fdopen(ends[0], encoding="utf-8") as answer:
            return answer.readline()
    def left(job):
        return [path for path in glob.glob(f"{state}/*/cluster.{job}.*") + glob.glob(f"{tier}/monarch/*.{job}.*") + glob.glob(f"/sys/fs/cgroup/monarch/*.{job}.*")]
    boot = int(os.environ["MONARCH_VM_BOOT"])
    if boot == 1:
        os.makedirs(state, 0o755)
        os.makedirs(tier)
        os.chmod(tier, 0o1777)
        e2e.make_tree(data, 30)
        subprocess.run(["chmod", "-R", "a+rX", base], check=True)
        e2e.write(conf, f"[tier.nvme]\npath = {tier}\nquota = 64M\nmedium = nvme\n")
        start(1)
        e2e.write(f"{base}/left", json.dumps(left(1)))
        crash()
    if boot == 2:
        before = json.loads(e2e.text_in(f"{base}/left"))
        told = [len(before) >= 3, sorted(left(1)) == sorted(path for path in before if not path.startswith("/sys/")), start(2).startswith("ready "),
                wait_until(lambda: not left(1)), len(left(2)) >= 3]
        unit = re.sub(r"(ConditionPathExists=).*", rf"\g<1>{conf}", e2e.text_in(f"{BUILD}/etc/monarch-sweep.service"))
        unit = re.sub(r"(ExecStart=).*", rf"\g<1>{BUILD}/monarchd --sweep --config {conf} --state-dir {state} --log {base}/log", unit)
        unit = re.sub(r"(WantedBy=).*", r"\1monarch-vm.target", unit)  # the machine has no multi-user.target
        e2e.write("/etc/systemd/system/monarch-sweep.service", unit)
        enabled = subprocess.run(["systemctl", "enable", "monarch-sweep.service"], check=False).returncode
        e2e.write(f"{base}/left", json.dumps([*told, enabled == 0, len(left(2))]))
        crash()
    *told, count = json.loads(e2e.text_in(f"{base}/left"))
    for done, name in zip(told, ("a job had a record, a directory on the tier and a control group before", "the first two are there after the crash", "a job starts",
                                 "what was the last boot's is gone", "and the new one's is there", "the unit for the boot is enabled")):
        ok(done, name)
    ok(count >= 3 and wait_until(lambda: not left(2)), "after a second crash the unit has removed what was the last boot's", count, left(2))
    def properties():
        show = ["systemctl", "show", "--property", "ActiveState,Result,ConditionResult", "monarch-sweep.service"]
        return sorted(subprocess.run(show, stdout=subprocess.PIPE, check=False).stdout.decode().split())
    wait_until(lambda: "ActiveState=active" in properties())
    equal(properties(), ["ActiveState=active", "ConditionResult=yes", "Result=success"], "the unit succeeded")


if INSIDE:
    e2e.main(rebooted)
_, why, _ = vm("check", seconds=e2e.PATIENCE)
why = why.decode().strip()
if not why and e2e.SANITIZER:
    why = "instrumented programs are too slow in it"
e2e.skip_all_if(why or ("" if ALL else "it takes minutes: MONARCH_TEST_ALL=1"))
e2e.main(command, groups)
