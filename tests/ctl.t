#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""monarchctl's subcommands that look at a node, a configuration or a report: as text, as JSON, and their errors."""

import contextlib
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import xml.etree.ElementTree

import e2e
import one_node
import slurm_lab
from e2e import BUILD, SOURCE, TOOL, contains, equal, ok, scratch


def ctl(*words, before=(), **options):
    """(exit code, standard output, standard error)"""
    code, out, err = e2e.execute([*before, TOOL, *words], **options)
    return code, out.decode(), err


def as_json(*words, **options):
    code, out, err = ctl(*words, "--json", **options)
    try:
        return code, json.loads(out), err
    except json.JSONDecodeError:
        return code, {}, f"{out!r} {err}"


def fails(name, words, parts, want=1, remedy=None, **options):
    """One line on standard error that names the subcommand, has these parts and ends with the remedy, and nothing else."""
    code, out, err = ctl(*words, **options)
    missing = [part for part in parts if part not in err]
    told = err.endswith(f"; {remedy}\n") if remedy else re.search(r"['(]monarchctl |--\w|\b(name|see|give|write|mend|make|add|run|remove|as root)\b|[?]", err.split(": ", 1)[-1])
    ok(code == want and out == "" and err.startswith("monarchctl") and err.count("\n") == 1 and not missing and told,
       f"refused in one line, which says what to do: {name}", f"exit code {code}, wanted {want}", f"missing: {missing}", f"remedy: {remedy}", out, err)


def written(name, text, mode=0o644):
    return e2e.write(f"{scratch()}/{name}", text, mode)


# A value of each kind that is not its default; lists are in several lines.
WHOLE = """[tier.fast]
path = {tier}
quota = 1536K
min_free = 0.5%
[agent]
threads = 3
stage_wait_max = 8M
pfs_bandwidth = 1234567
run_size = none
[policy]
allow_users = a, b
allow_users = c
allow_groups =
tiers = fast
pfs_opens = none
default_dataset = /d:/e
default_options = prefetch=off wait=none
[policy.partition.GPU]
enabled = on
"""


def values_of(told):
    return {(v["section"], v["key"]): v["value"] for v in told.get("values", [])}


def config_show():
    """That each key is shown, and its default, is docs.t's."""
    file = written("whole.conf", WHOLE.format(tier=scratch("fast")))
    code, told, err = as_json("config", "show", file)
    equal((code, err, told.get("file")), (0, "", file), "config show --json")
    values, lines = values_of(told), WHOLE.splitlines()
    wrong = [v for v in told["values"] if v["source"] == "file" and not lines[v["line"] - 1].startswith(v["key"] + " =")]
    equal((wrong, sum(v["source"] == "file" for v in told["values"])), ([], 14), "each value has the line that it is from")
    wanted = {("tier.fast", "quota"): "1536K", ("tier.fast", "min_free"): "0.5%", ("agent", "stage_wait_max"): "8M",
              ("agent", "run_size"): "none", ("agent", "pfs_bandwidth"): "1234567", ("policy", "pfs_opens"): "none",
              ("policy", "allow_users"): ["a", "b", "c"], ("policy", "allow_groups"): [], ("policy", "tiers"): "fast"}
    equal({key: values.get(key) for key in wanted}, wanted, "values are exact")
    code, text, err = ctl("config", "show", file)
    equal((code, err, values_of(as_json("config", "show", written("whole.again", text))[1])), (0, "", values),
          "as text it is a file that means the same", text)
    contains(text, [f"; {file}:{1 + lines.index('threads = 3')}\n"], "a line tells where its value is from")
    code, told, err = as_json("config", "show", file, "--set", "agent.threads=9")
    equal([(v["value"], v["source"], v["line"]) for v in told.get("values", []) if v["key"] == "threads"], [("9", "--set", None)],
          "--set goes before the file", err)


def on_terminal(*words, **environment):
    """What a terminal gets, as `script` made one."""
    env = {key: value for key, value in os.environ.items() if key != "NO_COLOR"} | {"TERM": "xterm", **environment}
    run = subprocess.run(["script", "-qec", " ".join([TOOL, *words]), "/dev/null"], env=env, capture_output=True, check=False,
                         stdin=subprocess.DEVNULL, timeout=e2e.PATIENCE)
    return run.stdout.decode()


DISK = "is on the root file system; is its disk mounted?"  # of tiers in scratch directories, if these are there


def config_check():
    tier = scratch("checked")
    good = written("good.conf", f"[tier.a]\npath = {tier}\nquota = 10%\n")
    code, out, err = ctl("config", "check", good)
    equal((code, err, [line for line in out.splitlines()[1:] if DISK not in line]), (0, "", []), "config check of a valid file")
    equal([w for w in as_json("config", "check", good)[1].get("warnings", [None]) if DISK not in w], [], "--json: no warnings")
    for name, text, line, key, parts in [
            ("a bad value", "[agent]\n\nthreads = many\n", 3, ("agent", "threads"), ["'many' is not a number from 1 to 256", "mend threads in [agent]"]),
            ("an unknown section", "[agnet]\n", 1, (None, None), ["known are [accounting]", "monarch.conf(5)"]),
            ("a key mistyped", "[agent]\nthread = 2\n", 2, ("agent", "thread"), ["(did you mean threads?)"])]:
        file = written("bad.conf", text)
        fails(name, ["config", "check", file], [f"{file}:{line}: ", *parts])
        code, told, _ = as_json("config", "check", file)
        equal((code, told.get("valid"), [(e["line"], e["section"], e["key"]) for e in told.get("errors", [])]), (1, False, [(line, *key)]), f"--json tells file, line and key: {name}")
    bad = written("several.conf", "[agent]\nthreads = x\nhello\n")
    for words, count in (["config", "check", bad], 2), (["tiers", "--config", bad], 1):
        told = ctl(*words)[2]
        ok(f"{bad}:2: " in told and told.count("\n") == count, f"{words[0]}: each error is told in a line, or the first one", told)
    fails("no file", ["config", "check", f"{tier}/none"], ["No such file"], remedy="name a file that is there")
    fails("a bad word", ["config", "check", good, "--set", "agent.threads=0"], ["config check: --set: agent.threads=0: ", "mend threads"])
    on_root = next((path for path in ("/etc", "/usr", "/opt") if os.stat(path).st_dev == os.stat("/").st_dev), None)
    for path, where, more, count in [(on_root, "on the root file system", "", 1), (on_root, "with driver = tmpfs", "driver = tmpfs\n", 0)]:
        if path:
            warnings = as_json("config", "check", written("disk.conf", f"[tier.a]\npath = {path}\nquota = 1M\n{more}"))[1].get("warnings", [])
            equal([w for w in warnings if "root file system" in w], [f"tier a: {path} {DISK}"] * count, f"a tier {where}", warnings)
    for name, want, words, parts in [
            ("no verb", 2, ["config"], ["see 'monarchctl config --help'"]),
            ("a verb mistyped", 2, ["config", "chek", good], ["there is no subcommand 'chek' (did you mean check?); see 'monarchctl config --help'"]),
            ("no such option", 2, ["config", "check", "--frob"], ["there is no option --frob; see 'monarchctl config check --help'"]),
            ("an option mistyped", 125, ["run", "--dataset", "/", "--teir=x", "--", "true"], ["there is no option --teir (did you mean --tier?);"]),
            ("no --", 125, ["run", "--dataset", "/", "sh", "-c", "true"], ["there is no option -c; put -- before the command;"])]:
        fails(name, words, parts, want=want)
    os.mkdir(f"{tier}/open")
    os.chmod(f"{tier}/open", 0o777)
    doubtful = written("doubtful.conf", "".join(f"[tier.{name}]\npath = {path}\nquota = {quota}\n" for name, path, quota in [
        ("a", f"{tier}/none", "1G"), ("b", good, "1G"), ("c", f"{tier}/open", "1G"), ("d", tier, "1P")]) +
                       "share = equal\n[policy]\nallow_users = root, nosuch, 4711\n[policy.partition.gpu]\ndeny_groups = root, norsuch\n")
    if os.geteuid() == 0:
        os.chown(doubtful, 65534, 65534)
    code, told, err = as_json("config", "check", doubtful, before=e2e.NOBODY if os.geteuid() == 0 else ())
    equal(code, 0, "what a job will lack is a warning", err)
    contains("\n".join(told.get("warnings", [])), ["run chown root", "none: No such file", "not a directory; name a directory", "run chmod +t" if os.geteuid() == 0 else "who can rename",
                                                   *(["quota 1.00P; that is more than "] if os.geteuid() == 0 else []), "share = equal is as cpus",
                                                   "[policy] allow_users: this node knows no user nosuch",
                                                   "[policy.partition.gpu] deny_groups: this node knows no group norsuch"], "the warnings tell")
    equal(len([w for w in told.get("warnings", []) if DISK not in w]), 8, "and no more", told)
    words_of_plugstack()


def words_of_plugstack():
    """The words of the plugin's line go before the file that it names."""
    conf = scratch("words")
    env = e2e.native_environment(SLURM_CONF=written("words/slurm.conf", "ClusterName=c\n"))
    plugstack = written("words/plugstack.conf", f"optional spank_monarch.so config={conf}/monarch.conf log=syslog agent.threads=3 policy.enabled=off\n")
    fails("the default file is not there", ["config", "check"], [f"{conf}/monarch.conf: No such file"],
          remedy="make it (it may be empty), or name another one", env=env)
    own = written("words/monarch.conf", "[agent]\nthreads = 2\nwalk_threads = 2\n")
    equal([as_json("config", "check", *words, env=env)[1].get("words") for words in ([], [own])], [["agent.threads=3", "policy.enabled=off"], []],
          "config check with the words of the plugin's line, and without them where a file is named")
    shown = {v["key"]: (v["value"], v["source"]) for v in as_json("config", "show", env=env)[1].get("values", [])
             if v["section"] in ("agent", "policy")}
    equal([shown[key] for key in ("threads", "walk_threads", "enabled")],
          [("3", "plugstack.conf"), ("2", "file"), ("off", "plugstack.conf")],
          "config show with them", shown)
    written("words/monarch.conf", "[tier.a]\npath = /nowhere\nquota = 1G\n")
    written("words/plugstack.conf", f"optional spank_monarch.so config={own} tier.a.path={scratch('words.tier')}\n")
    for verb, row in (["tiers"], scratch("words.tier")), (["plan", conf], "\na     1.00G"):
        contains(ctl(*verb, env=env)[1], [row], f"{verb[0]} has them")
    written("words/plugstack.conf", f"optional spank_monarch.so config={own} polcy.enabled=off\n")
    for words in ["config", "check"], ["tiers"], ["plan", conf]:
        fails(f"a bad word in the plugin's line: {words[0]}", words, ["polcy.enabled=off: "], remedy=f"mend the word in {plugstack}", env=env)


# ---- status


def job_of(told, name):
    return next((job for job in told.get("jobs", []) if job["job"] == name), {})


def awaited(name, state, words=(), **options):
    """The job in `status --json`, once it has that state."""
    found = {}

    def look():
        found.update(job_of(as_json("status", *words, **options)[1], name))
        return found.get("state") == state

    ok(e2e.wait_until(look), f"{name} gets {state}", found)
    return found


def status_of_run():
    dataset, tier = scratch("status.data"), scratch("status.tier")
    size = e2e.make_tree(dataset, 40)
    script = 'find "$1" -type f -exec cat {} + >/dev/null; cat "$1/new" 2>/dev/null; echo up; read x'
    process = e2e.start([TOOL, "run", *e2e.options([dataset], {"t": (tier, "1G")}), "--", "sh", "-c", script, "sh", dataset],
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=e2e.environment())
    equal(process.stdout.readline(), b"up\n", "a run with Monarch")
    name = f"run.{process.pid}"
    job = awaited(name, "staged-in")
    equal((job["files"], job["bytes"]["staged"], job["bytes"]["all"], job["bytes"]["estimated"]),
          ({"staged": 40, "all": 40, "percent": 100}, size, size, False), "status: all is staged")
    equal((job["opens_tier"], [t["name"] for t in job["tiers"]], job["tiers"][0]["placed_bytes"], job["tiers"][0]["granted"]),
          (40, ["t"], size, 1 << 30), "status: opens and the tier")
    equal((job["pfs_rate"] > 0, job["peer_rate"]), (True, None), "status: what a copy thread gets, by source")
    # As long as the walk goes on, the agent is asked for it.
    absent = [reason for reason in ("absent", "pass") if job["fallbacks"][reason]]
    ok(job["opens"] > 40 and sum(job["fallbacks"].values()) == job["opens"] - 40 and bool(absent),
       "status: each open on the PFS has its reason", job)
    code, out, err = ctl("status", name)
    equal((code, err), (0, ""), "status JOBID")
    contains(out, ["40 of 40 (100%)", "for each thread that copies", f"on the PFS: fallback_{absent[0]}", "1.00G"], "it tells files, fallbacks and tiers")
    ok(re.search(rf"^{re.escape(name)} .* 100% .* staged-in$", ctl("status")[1], flags=re.M), "status lists the job in a line")
    if os.geteuid() == 0 and not e2e.why_not_nobody():
        equal(job_of(as_json("status", before=e2e.NOBODY)[1], name), {}, "another user does not see it")
    run_dir = e2e.run_dirs(process.pid)[0]
    e2e.wait_until(lambda: os.path.exists(f"{run_dir}/series"))
    e2e.kill_agents(process.pid)
    job = awaited(name, "agent-died")
    equal(job["files"]["staged"], 40, "after the agent's death the numbers are there")
    process.communicate(b"\n", timeout=e2e.PATIENCE)
    fails("a run that is not there", ["status", name], [f"no job {name} with Monarch on this node"])
    fails("what is no job", ["status", "4711.x"], ["see 'monarchctl status --help'", "as 4711, 4711_3 of an array"], want=2)


def status_of_slurm():
    """As root's helpers begin a job, without Slurm."""
    with contextlib.closing(one_node.Node("node")) as n:
        number, where, base = str(one_node.FIRST + 7), ["--state-dir", n.state], n.dir

        def monarchd(hook, datasets, *more):
            return e2e.execute([*n.words(hook, number), "--datasets", datasets, *more])[0]

        owner = ["--uid", str(one_node.UID), "--gid", str(one_node.UID)]
        equal(monarchd("--prolog", n.data), 0, "a prolog")
        equal(awaited(number, "pending", where)["node"], "n1.x", "the prolog's job")
        monarchd("--start", f"{base}/none", *owner)
        contains(awaited(number, "failed", where).get("reason") or "", ["/none: No such file"], "a job without an agent, and why")
        equal(monarchd("--start", n.data, *owner), 0, "a job")
        job = awaited(number, "staged-in", where)
        equal((job["user"], job["cluster"], job["node"], job["files"]["staged"], job["tiers"][0]["name"]),
              ("nobody", "c-1", "n1.x", 30, "nvme"), "root sees the user's job")
        # The plugin's line is in a file that a file named in slurm.conf names. One that plugstack.conf includes: doctor.
        slurm_conf = {"SLURM_CONF": written("node/slurm.conf", "ClusterName=c-1\n")}
        equal(job_of(as_json("status", env=slurm_conf)[1], number), {}, "no plugstack.conf: root's state directory is the default one")
        written("node/slurm.conf", 'Include slurm.conf\nInclude none.conf\nClusterName=c-1\nPlugStackConfig=/none\nINCLUDE %c.conf # all nodes\n')
        written("node/c-1.conf", f'plugstackconfig=\\\n"{base}/quoted name"\n')
        written("node/quoted name", f"optional /lib/spank_monarch.so config={n.config} state_dir={n.state}\n")
        equal(job_of(as_json("status", env=slurm_conf)[1], number).get("state"), "staged-in",
              "status: the state directory that the plugin's line names")
        equal([t["path"] for t in as_json("tiers", env=slurm_conf)[1]["tiers"] if t["chosen"]], [n.tier], "tiers: the configuration that it names")
        other = [word.replace("c-1", "c-2") for word in n.words("--start", number)]
        equal(e2e.execute([*other, "--datasets", n.data, *owner])[0], 0, "a job of another cluster with its number")
        ok(e2e.wait_until(lambda: sorted(re.findall(rf"^{number}(\S*) ", ctl("status", *where)[1], flags=re.M)) == ["@c-1", "@c-2"]),
           "status: their lines name their clusters", ctl("status", *where)[1])
        fails("report: which of them is not told", ["report", number, *where], [f"2 clusters have or had a job {number} on this node", f"{number}@c-1 or {number}@c-2"])
        equal([as_json("report", f"{number}@{cluster}", *where)[1].get("cluster") for cluster in ("c-1", "c-2")], ["c-1", "c-2"], "report JOBID@CLUSTER: that one")
        n.end(int(number), "c-2")
        os.chmod(n.state, 0o777)
        fails("status: a state directory that anybody may change", ["status", *where], [n.state])
        os.chmod(n.state, 0o755)
        equal(awaited(number, "staged-in", where, before=e2e.NOBODY)["files"]["staged"], 30, "so does its owner")
        run_dir = job["run_dir"]
        os.kill(n.record(number)["pid"], 9)
        awaited(number, "agent-died", where)
        board = f"{run_dir}/board"
        with open(board, "r+b") as file:  # numbers that no agent has
            file.seek(64)
            file.write(b"\xff" * ((1 << 16) - 64))
        for name, make in [("numbers that no agent has", None), ("a FIFO", os.mkfifo),
                           ("a link to what only root reads", lambda path: os.symlink("/etc/shadow", path))]:
            if make:
                os.remove(board)
                make(board)
            job = job_of(as_json("status", *where, seconds=20)[1], number)
            equal((job.get("state"), "files" in job), ("unknown", False), f"root believes nothing: {name}", job)
        n.end(int(number))
        ok(e2e.wait_until(lambda: not job_of(as_json("status", *where)[1], number)), "and it is gone")


def unreadable():
    """One file that cannot be read is not placed: nothing says 100 %."""
    with contextlib.closing(one_node.Node("unreadable")) as n:
        number, where = str(one_node.FIRST + 6), ["--state-dir", n.state]
        os.chmod(next(os.path.join(d, files[0]) for d, _, files in os.walk(n.data) if files), 0)
        n.begin(int(number))
        job = awaited(number, "staged-in", where)
        equal((job["files"]["staged"], job["files"]["all"], job["bytes"]["percent"]), (29, 30, 99), "unreadable: status --json", job)
        row = next((line for line in ctl("status", *where)[1].splitlines() if line.startswith(f"{number} ")), "")  # others may run beside it
        texts = [row, ctl("status", number, *where)[1]]
        ok(not any("100%" in text for text in texts) and all("99%" in text for text in texts), "unreadable: status", *texts)
        n.end(int(number))


def parts_of_array():
    """By the names that squeue has for the elements, which root's helpers know by their own numbers."""
    with contextlib.closing(one_node.Node("array")) as n:
        first, last = one_node.FIRST + 8, one_node.FIRST + 9
        for job in first, last:
            n.begin(job)
        written("array/squeue", f"#!/bin/sh\ncase $* in *{last}*) printf '{last}_1|{first}\\n{last}_2|{last}\\n';; *) echo '{first}|{first}';; esac\n", 0o755)
        where, env = ["--state-dir", n.state], e2e.native_environment(PATH=f"{n.dir}:{os.environ['PATH']}")
        found = as_json("status", f"{last}_1", *where, env=env)[1]
        equal([job["job"] for job in found.get("jobs", [])], [str(first)], "status NUMBER_INDEX: that element")
        lines = ctl("status", str(last), *where, env=env)[1].splitlines()
        equal([line.split()[0] for line in lines], ["JOB", f"{last}_1", f"{last}_2"], "status of an array: its elements", lines)
        fails("report of an array", ["report", str(last), *where], [f"job {last} has 2 parts; name one: {last}_1, {last}_2"], env=env)
        for job in first, last:
            n.end(job)
        for name, element in (f"{last}_1", first), (str(first), first), (f"{last}_2", last):
            code, out, err = ctl("status", name, *where, env=env)
            ok(code == 0 and re.match(rf"Job +{name} .*\(ended\)", out), f"status {name}, which has ended: the report of {element}", out, err)
            told, report = (as_json(verb, name, *where, env=env)[1] for verb in ("status", "report"))
            equal((told.get("jobs"), told.get("ended")), ([], [report]), f"status --json {name}: the same as report --json tells")
        lines = ctl("status", str(last), *where, env=env)[1].splitlines()
        equal([line.split()[::8] for line in lines[1:]], [[f"{last}_{i}", "ended"] for i in (1, 2)], "status of an array that has ended: its elements", lines)
        ended = as_json("status", str(last), *where, env=env)[1].get("ended", [])
        equal([(one["name"], one["source"]) for one in ended], [(f"{last}_{i}", "kept") for i in (1, 2)], "status --json of it: their reports")


# ---- doctor


SLURM = {"PrologFlags": "Alloc,Contain", "ProctrackType": "proctrack/cgroup", "TaskPlugin": "task/affinity,task/cgroup",
         "JobContainerType": "job_container/none", "AccountingStorageType": "accounting_storage/slurmdbd"}


def fake_slurm(release="", changes=None, plugstack=None, sacctmgr="exit 0", selinux="exit 127"):
    """Programs that answer as Slurm's, of the release that the plugin was built for; the environment with which they are found, and plugstack.conf."""
    base = scratch("fake")
    values = {**SLURM, **(changes or {}), "SLURM_CONF": f"{base}/conf/slurm.conf", "SLURM_VERSION": f"{release or slurm_lab.plugin_release()}.3-1", "PluginDir": BUILD}
    for name, text in [("bin/scontrol", "#!/bin/sh\n[ $2 = config ] || exec echo 'PartitionName=main AllowGroups=ALL Nodes=n[1-2]'\ncat <<'E'\nConfiguration data as of now\n" +
                        "".join(f"{key:<23} = {value}\n" for key, value in values.items()) + "E\n"),
                       ("bin/sacctmgr", f"#!/bin/sh\n{sacctmgr}\n"), ("bin/getenforce", f"#!/bin/sh\n{selinux}\n"),
                       ("conf/plugstack.conf", "# nothing else\ninclude more/*.conf\n"),
                       ("conf/more/monarch.conf", plugstack or "optional spank_monarch.so config={config} state_dir={state}\n")]:
        written(f"fake/{name}", text.format(config=f"{base}/monarch.conf", state=f"{base}/state") if "/more/" in name else text, 0o755)
    os.makedirs(f"{base}/tier", exist_ok=True)
    os.chmod(f"{base}/tier", 0o1777)
    written("fake/monarch.conf", f"[tier.t]\npath = {base}/tier\nquota = 1G\n")
    return e2e.native_environment(PATH=f"{base}/bin:{os.environ['PATH']}")


PREFIX = slurm_lab.install_prefix()


def shared(name):
    """What `make install` puts there."""
    return f"{PREFIX}/share/monarch/{name}"


def findings(told, level=None):
    """All of that level; of each warn and FAIL, there has to be a remedy."""
    bad = [c for c in told.get("checks", []) if c["level"] in ("warn", "FAIL") and not c["remedy"]]
    if bad:
        ok(False, "each warn and FAIL has a remedy", bad)
    return [(c["check"], c["level"], c["text"], c["remedy"]) for c in told.get("checks", []) if level in (None, c["level"])]


def has(found, check, level, parts, name):
    """Whether there is such a finding."""
    ok([f for f in found if f[:2] == (check, level) and all(part in f"{f[2]} -> {f[3]}" for part in parts)], f"doctor: {name}", *found)


@e2e.unless(lambda: e2e.SANITIZER and "an instrumented library cannot be loaded by itself")
def doctor():
    code, out, err = ctl("doctor", before=["/usr/bin/env", "PATH=/nowhere"])
    ok(err == "" and re.search(r"^skip plugin     there is no Slurm", out, flags=re.M), "doctor where there is no Slurm", code, out, err)
    release, base = slurm_lab.plugin_release(), scratch("fake")
    if not release:
        return e2e.skip("doctor with Slurm", "the plugin is not built")
    env = fake_slurm()
    code, told, err = as_json("doctor", env=env)
    good = findings(told)
    equal((code, told.get("failed"), err), (0, 0, ""), "doctor of a good node", *good)
    for check, part in [("agent", "monarchd, version"), ("account", "monarch_account"), ("library", "libmonarch_preload.so"), ("peers", "libmonarch_peers.so"),
                        ("plugin", f"spank_monarch.so, for Slurm {release}"), ("config", "fake/monarch.conf"),
                        ("state", "fake/state is made when"), ("tiers", "fake/tier"), ("slurmdbd", "it answers"),
                        *(("slurm", f"{key} = {value}") for key, value in SLURM.items())]:
        has(good, check, "ok", [part], f"{check} is good")
    for check in "io_uring", "kernel", "cgroups", "containers":
        ok([f for f in good if f[0] == check and f[1] in ("ok", "warn")], f"doctor: it looks for {check}")
    away = {**fake_slurm(plugstack="optional spank_monarch.so config={config} state_dir={state} logg=x\n"), "SLURM_CONF": written("fake/conf/slurm.conf", "ClusterName=c\n")}
    written("fake/bin/scontrol", "#!/bin/sh\nsleep 100\n", 0o755)
    told = as_json("doctor", env=away)[1]
    for check, level, part in [("config", "ok", "fake/monarch.conf"),
                               ("plugin", "skip", "slurmctld, which knows PluginDir, does not answer"),
                               ("plugin", "warn", "nobody reads: logg=x"), ("slurm", "skip", "slurmctld does not answer"),
                               ("slurmdbd", "skip", "does not answer")]:
        has(findings(told), check, level, [part], f"{check} while slurmctld is away")
    env = fake_slurm()
    if os.geteuid() == 0 and not e2e.why_not_nobody():
        os.chmod(f"{base}/monarch.conf", 0o600)
        os.makedirs(f"{base}/state")
        told = as_json("doctor", env=env, before=e2e.NOBODY)[1]
        for check, part in ("config", "only root can read it"), ("state", "only root can see the contents of"):
            has(findings(told), check, "skip", [part], f"for a user, {check}")
        os.chmod(f"{base}/state", 0o777)
        has(findings(as_json("doctor", env=env)[1]), "state", "FAIL", ["not only root can write it", "chmod go-w"], "a state directory that all can write")
        full = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size=32k,mode=711 none {base}/state; exec "$@"', "sh"]
        if e2e.execute(["unshare", "-m", "true"])[0] == 0:
            has(findings(as_json("doctor", env=env, before=full)[1]), "state", "FAIL", [f"{base}/state: ", " has only ", " free -> remove what fills it"], "a full state directory")
        os.rmdir(f"{base}/state")
    for mode, level, parts in [(0o755, "warn", [f"users can list {base}/logs", "mkdir -m 711 /var/log/monarch"]), (0o711, "ok", ["/logs/log"])]:
        os.makedirs(f"{base}/logs", exist_ok=True)
        os.chmod(f"{base}/logs", mode)
        told = as_json("doctor", env=fake_slurm(plugstack="optional spank_monarch.so config={config} log=" + f"{base}/logs/log\n"))[1]
        has(findings(told), "log", level, parts, f"the log's directory has mode {mode:o}")
    changes = {"PrologFlags": "(null)", "ProctrackType": "proctrack/linuxproc", "TaskPlugin": "task/none", "JobContainerType": "job_container/tmpfs",
               "AccountingStorageType": "accounting_storage/none"}
    code, told, err = as_json("doctor", env=fake_slurm("", changes))
    equal(code, 0, "a warning is no failure")
    for key, part in [("PrologFlags", "PrologFlags=Contain"), ("ProctrackType", "proctrack/cgroup"), ("TaskPlugin", "task/cgroup"),
                      ("JobContainerType", "job_container.conf"), ("AccountingStorageType", "slurmdbd")]:
        has(findings(told), "slurm", "warn", [f"{key} is not set:" if changes[key] == "(null)" else f"{key} = {changes[key]}", part], f"{key} = {changes[key]}")
    has(findings(as_json("doctor", env=fake_slurm(selinux="echo Enforcing"))[1]), "selinux", "warn", ["Enforcing: Monarch was not tried"], "SELinux")
    hooks = scratch("enroot")
    env = {**fake_slurm(), "ENROOT_SYSCONF_PATH": hooks}
    written("fake/bin/enroot", "#!/bin/sh\n", 0o755)
    has(findings(as_json("doctor", env=env)[1]), "containers", "warn", [f"{hooks}/hooks.d/50-monarch.sh: No such file", f" -> install -m 755 {shared('enroot/50-monarch.sh')} {hooks}/hooks.d/"],
        "enroot without the hook")
    os.remove(f"{base}/bin/enroot")
    has(findings(as_json("doctor", env=fake_slurm("99.11"))[1]), "plugin", "FAIL", [f"built for Slurm {release}, and this is 99.11.3", "--with-slurm"], "a plugin for another release")
    ok(re.search(r"^FAIL plugin     .*\n {16}-> ", ctl("doctor", env=fake_slurm("99.11"))[1], flags=re.M), "as text: a line, and the remedy below it")
    told = as_json("doctor", env=fake_slurm(sacctmgr="sleep 100"), seconds=60)[1]
    has(findings(told), "slurmdbd", "FAIL", ["no answer in 5 s"], "a daemon that hangs")
    for line, check, level, parts in [
            ("optional /nowhere/spank_monarch.so\n", "plugin", "FAIL", ["/nowhere/spank_monarch.so: No such file", f" -> write its path there; 'make install' puts it to {PREFIX}/lib/slurm"]),
            (f"optional {written('spank_monarch.so', 'x')}\n", "plugin", "FAIL", ["not a 64-bit ELF object"]),
            ("optional spank_monarch.so config={config} monarchd=/none\n", "agent", "FAIL", ["/none does not run: ", f" -> mend monarchd= in {base}/conf/more/monarch.conf"]),
            ("optional spank_monarch.so config={config} monarchd=/bin/true monarchd=/none\n", "agent", "FAIL", ["/none does not run: "]),
            ("optional spank_monarch.so config={config}\noptional spank_monarch.so config=/other\n", "plugin", "FAIL", ["another line for spank_monarch.so", "remove one"]),
            ("optional other.so\n", "plugin", "FAIL", ["has no line for spank_monarch.so", "add: optional"]),
            ("optional spank_monarch.so config={config} agent.threads=0\n", "config", "FAIL", ["agent.threads=0", f" -> mend the word in {base}/conf/more/monarch.conf"]),
            ("optional spank_monarch.so config={config} policy.enabled=off\n", "config", "warn",
             [f"jobs go without Monarch: [policy] enabled = off, by a word in {base}/conf/more/monarch.conf -> enabled = on there"])]:
        has(findings(as_json("doctor", env=fake_slurm(plugstack=line))[1]), check, level, parts, f"plugstack.conf: {parts[0]}")
    charged = f"[tier.t]\npath = {base}/tier\nquota = 1G\ndriver = tmpfs\ncharge = job\n"
    for text, changes, check, level, parts in [
            (charged, {"SelectTypeParameters": "CR_CORE"}, "tiers", "FAIL", ["Slurm does not track memory -> set SelectTypeParameters=CR_Core_Memory in slurm.conf, or charge = node in [tier.t]"]),
            (charged, {"TaskPlugin": "task/none"}, "tiers", "FAIL", ["does not constrain the memory of jobs (TaskPlugin = task/none) -> TaskPlugin=task/cgroup", "charge = node in [tier.t]"]),
            ("", {"NamespaceType": "namespace/linux"}, "slurm", "warn", ["NamespaceType = namespace/linux: each job has mounts of its own", "namespace.yaml"]),
            ("[policy.partition.no]\nenabled = off\n", {}, "config", "warn", ["[policy.partition.no]: Slurm has no such partition -> name one that 'sinfo' lists"]),
            ("[policy.account.no]\nenabled = off\n", {}, "slurmdbd", "warn", ["[policy.account.no]: Slurm has no such account -> name one that 'sacctmgr list account' lists"]),
            ("[policy.qos.no]\nenabled = off\n", {}, "slurmdbd", "warn", ["[policy.qos.no]: Slurm has no such QOS -> name one that 'sacctmgr list qos' lists"]),
            ("[policy]\nallow_users = no-such\n", {}, "config", "warn", ["[policy] allow_users: this node knows no user no-such -> write one that 'getent' knows"])]:
        found = findings(as_json("doctor", "--config", written("mistaken.conf", text), env=fake_slurm("", changes, sacctmgr="echo main"))[1])
        has(found, check, level, parts, f"{parts[0][:40]}")
    known = "".join(f"[policy.{of}.main]\nenabled = off\n" for of in ("partition", "account", "qos"))
    found = findings(as_json("doctor", "--config", written("mistaken.conf", known), env=fake_slurm(sacctmgr="echo main"))[1], "warn")
    ok(not any("no such" in f[2] for f in found), "doctor: policy of what Slurm has", *found)
    slurmd = shutil.copy("/bin/sleep", f"{base}/slurmd")
    with e2e.start([slurmd, "1000"]) as running:
        ok(e2e.wait_until(lambda: e2e.text_in(f"/proc/{running.pid}/comm") == "slurmd\n"), "a slurmd runs")
        plugin = shutil.copy(f"{BUILD}/spank_monarch.so", base)
        env, newer = fake_slurm(plugstack=f"optional {plugin} config={{config}}\n"), [plugin, f"{base}/conf/more/monarch.conf"]
        for file in newer:
            os.utime(file, (time.time() + 1000,) * 2)
        found = findings(as_json("doctor", env=env)[1])
        for file in newer:
            has(found, "plugin", "warn", [f"slurmd began before {file}", "restart slurmd"], f"a slurmd that is older than {file}")
        running.kill()
    none, closed = f"{base}/none", scratch("fake/closed")
    os.chmod(closed, 0o700)
    bad = written("fake/bad.conf", "[peer]\nenabled = on\n" + "".join(f"[tier.{name}]\npath = {path}\nquota = 1G\n" for name, path in (("t", none), ("c", closed))))
    told = as_json("doctor", "--config", bad, env=fake_slurm())[1]
    equal([f[2:] for f in findings(told, "FAIL") if f[0] == "tiers"],
          [(f"tier t: {none}: configured, but {none}: No such file or directory", f"install -d -m 1777 -o root {none}"),
           (f"tier c: {closed}: configured, but users cannot enter {closed}", f"chmod o+x {closed}")],
          "doctor: tiers that no job can have are a failure each")
    os.chmod(closed, 0o710)
    has(findings(as_json("doctor", "--config", bad, env=fake_slurm())[1]), "tiers", "warn", [f"users cannot enter {closed} -> chmod o+x {closed}"], "a tier that a group alone can enter")
    moved = scratch("moved")  # what is beside the program is looked at first
    for part in "monarchctl", "monarchd":
        shutil.copy2(f"{BUILD}/{part}", moved)
    for check, part, told in ("library", "libmonarch_preload.so", "cannot be loaded"), ("peers", "libmonarch_peers.so", "enabled = off in [peer]"), ("account", "monarch_account", "does not run: "):
        written(f"moved/{part}", "x" * 4096)
        found = findings(json.loads(e2e.execute([f"{moved}/monarchctl", "doctor", "--json", "--config", bad], env=fake_slurm())[1]))
        has(found, check, "FAIL", [told], f"a damaged part: {part}")
    return None


# ---- report


def a_report(opens=100, opens_tier=90, tasks=None, agent=None, read_bytes=3000, placed=1000):
    """As `run --report` writes it."""
    return {"version": "0", "opens": opens, "opens_tier": opens_tier, "hit": 0.9,
            "tiers": [{"name": "t", "opens": opens_tier, "read_calls": 300, "read_bytes": read_bytes, "placed_bytes": placed, "granted": 5000}],
            "tasks": {"opens_pfs": opens - opens_tier, "read_bytes_pfs": 0, **(tasks or {})},
            "agent": {"agent_bytes_pfs": 1000, "dataset_bytes": 1000, "staged_files": 30, "prefetch_files": 30, "agent_reads_pfs": 30,
                      "agent_opens_pfs": 30, "walk_dirs": 2, "walk_files": 30, **(agent or {})}}


# What each rule of advice holds for, and what it says.
RULES = [
    ("late", {"opens": 0, "opens_tier": 0, "agent": {"late_nodes": 1}}, ["before the agent was ready", "--monarch-wait"]),
    ("nothing-attached", {"opens": 0, "opens_tier": 0}, ["although 30 files were staged", "MONARCH_IO_LOG"]),
    ("agent-died", {"tasks": {"fallback_no_agent": 10}}, ["10 opens", "memory_max"]),
    ("tier-failed", {"tasks": {"fallback_tier_error": 1}}, ["a tier failed 1 time:"]),
    ("pfs-failed", {"agent": {"source_errors": 2}}, ["2 files could not be read"]),
    ("tier-too-small", {"agent": {"no_fit_files": 3, "dataset_bytes": 1000 + (40 << 30)}}, ["too small by 40.0G for 3 files", "ask for a larger part of the node (--exclusive, more cores), or name fewer directories. A larger part does not help if --monarch-capacity, the administrator's job_capacity or a full disk bounds"]),
    ("excluded", {"tasks": {"fallback_excluded": 10}}, ["MONARCH_IO_EXCLUDE"]),
    ("mounts", {"tasks": {"fallback_mount": 10}}, ["container-args"]),
    ("large-files", {"tasks": {"fallback_large": 10}}, ["10 opens of large files", "--monarch-wait=full"]),
    ("slow-staging", {"tasks": {"fallback_timeout": 10}}, ["--monarch-prefetch=all"]),
    ("written", {"tasks": {"fallback_invalid": 10}}, ["the job had written"]),
    ("changed", {"tasks": {"fallback_dropped": 10}}, ["changed on the PFS"]),
    ("never-opened", {"agent": {"staged_files": 500, "prefetch_files": 500}}, ["400 files were staged and not opened", "if the job reads a part of the dataset, name that part"]),
    ("read-once", {"read_bytes": 1000}, ["the job read each file about once, so the PFS is spared nothing: keep its epochs in one job"]),
    ("good", {}, []),
]


# The same, where it is another for `monarchctl run`.
RUN_RULES = [
    ("tier-too-small", {"agent": {"no_fit_files": 3, "dataset_bytes": 1000 + (40 << 30)}}, ["too small by 40.0G for 3 files: give them more by --tier NAME:PATH:SIZE"]),
    ("large-files", {"tasks": {"fallback_large": 10}}, ["10 opens of large files", "--wait full"]),
    ("slow-staging", {"tasks": {"fallback_timeout": 10}}, ["--wait full begins when all is staged"]),
]


def report_of_file():
    for ended, rule, what, parts in [(True, *of) for of in RULES] + [(False, *of) for of in RUN_RULES]:
        file = written("report.json", json.dumps({**a_report(**what), **({"ended": {"job": 1}} if ended else {})}))
        code, told, err = as_json("report", file)
        equal((code, told.get("rule"), err), (0, rule, ""), f"advice: {rule}", told.get("advice"))
        contains(told.get("advice", ""), parts, f"advice: {rule}: what to do")
    died = as_json("report", written("died.json", json.dumps({**a_report(), "ended": {"job": 1, "agent_died": True}})))[1]
    equal((died.get("rule"), "the agent had died" in died.get("advice", "")), ("agent-died", True), "of a job whose agent died while few programs noticed")
    equal(re.findall(r'^    \{"([\w-]+)",', e2e.text_in(f"{SOURCE}/admin/advice.cc"), flags=re.M), [rule for rule, _, _ in RULES],
          "each rule has its case, in this order")
    for rule, what in [(rule, what) for rule, what, _ in RULES if rule in ("nothing-attached", "never-opened", "read-once")]:
        told = as_json("report", written("part.json", json.dumps({**a_report(**what), "ended": {"job": 1, "node": "n2", "nodes": 3}})))[1]
        ok((told.get("nodes"), told.get("nodes_told")) == (3, 1) and told.get("rule") != rule, f"advice: one node of several does not tell {rule}", told)
    ok("Advice" not in ctl("report", written("good.json", json.dumps(a_report())))[1], "and it has no line of advice")
    few = written("few.json", json.dumps(a_report(tasks={"fallback_excluded": 5})))
    equal(as_json("report", few)[1].get("rule"), "good", "a twentieth of the opens is not worth a line")
    file = written("report.json", json.dumps(a_report()))
    told = as_json("report", file)[1]
    equal((told["bytes_read"], told["bytes_pfs"], told["epochs"], round(told["spared_percent"], 1), round(told["bound_percent"], 1), told["hit"]),
          (3000, 1000, 3.0, 66.7, 66.7, 0.9), "bytes, epochs and f(E-1)/E")
    contains(ctl("report", "-", stdin=open(file, "rb"))[1], ["1000 instead of 2.93K: 66.7% less", "42 instead of 100: 58.0% less", "read 3.0 times"],  # pylint: disable=consider-using-with
             "the same as text, of a report by standard input")
    whole = {**a_report(), "job": {"nodes": 4, "opens": 400, "opens_tier": 300, "read_calls_tier": 9, "read_bytes_tier": 8000,
                                   "placed_bytes": {"nvme": 1000, "ram": 5}, "tasks": {"opens_pfs": 100}, "agent": {"agent_bytes_pfs": 1000, "dataset_bytes": 4000}}}
    told = as_json("report", written("nodes.json", json.dumps(whole)))[1]
    equal((told["nodes"], told["opens"], told["bytes_read"], told["placed_bytes"], told["epochs"], told["bound_percent"], told["perfect_order_percent"]), (4, 400, 8000, 1005, None, None, None),
          "of several nodes, all of them; how often the dataset was read is not known")
    own = a_report(tasks={"waited_hits": 3, "fallback_large": 2})
    file = written("own.json", json.dumps({**own, "job": {**own, "nodes": 4, "read_calls_tier": 0, "read_bytes_tier": 0, "placed_bytes": {"nvme": own["tiers"][0]["placed_bytes"]}}}))
    contains(ctl("report", file)[1], [", this node only, of 4 nodes\n", "90 (90.0%), of which 3 waited for it\n"], "of several nodes, where the others' numbers are not known; and opens that waited")
    told = as_json("report", file)[1]
    equal((told["waited_hits"], {why: opens for why, opens in told["fallbacks"].items() if opens}, told["open_times"]), (3, {"large": 2}, None),
          "why opens went to the PFS; how long they took is not known")
    took = {"tier": {"1": 4, "2": 45, "4": 51}, "waited": {"2097152": 98, "more": 2}, "pfs": {"more": 1}}
    whole["job"]["open_times"], whole["open_times"] = took, {"tier": {}, "waited": {}, "pfs": {"0.5": 1}}
    file = written("took.json", json.dumps(whole))
    told = as_json("report", file)[1]["open_times"]
    equal([[told[kind][name] for name in ("timed", "median_below_us", "p99_below_us")] for kind in took], [[100, 4, 4], [100, 2097152, None], [1, None, None]], "how long opens took, on all nodes")
    contains(ctl("report", file)[1], ["Open times  of tiers' copies: half took less than 4us, 99% less than 4us"],
             "the same as text")
    whole["job"]["open_times"] = {**took, "pfs": {"3": 1}}
    none = "not a report of 'monarchctl run --report'"
    for name, text, part in [("open times that are none", json.dumps(whole), "open_times is none of Monarch's"),
                             ("no JSON", "hello", none),
                             ("a number beyond all", json.dumps(a_report(opens=1 << 62)), none),
                             ("no counters", '{"tiers": []}', none), ("depth", "[" * 100000, none)]:
        fails(f"report: {name}", ["report", written("bad.json", text)], [part])
    written("4711", json.dumps(a_report()))
    fails("report: a number is a job's, whatever file has that name", ["report", "4711"], ["job 4711 is not on this node"], cwd=scratch())
    equal(ctl("report", "./4711", cwd=scratch())[0], 0, "report: ./ before it makes it a file")
    odd = written("\u009b31m\u202e.json", json.dumps(a_report()))
    code, out, err = ctl("report", odd, "--json")
    equal((out.isascii(), json.loads(out)["name"]), (True, odd), "JSON has nothing that a terminal would obey", err)
    with e2e.start(["sh", "-c", f"cat {file}; exec yes"], stdout=subprocess.PIPE) as endless:
        fails("report: input without an end", ["report", "-"], [none], stdin=endless.stdout)
        endless.stdout.close()
    with open("/dev/full", "wb") as full:
        lost = subprocess.run([TOOL, "report", file, "--json"], stdout=full, stderr=subprocess.PIPE, env=e2e.environment(),
                              check=False)
    ok(lost.returncode == 1 and lost.stderr.count(b"write to standard output: ") == 1, "output that is lost is told", lost)
    for what, path, why in ("no file", "/nowhere/x", "No such file or directory"), ("a directory", scratch(), "Is a directory"):
        fails(f"report: {what}", ["report", path], [f"read {path}: {why};"], remedy="name a file that 'monarchctl run --report' has written, or a job's number")


def run_without_tier():
    """The tiers that `tiers` chooses; this user's and this dataset's are left out."""
    code, chosen, err = as_json("tiers")
    dataset = e2e.memory("data")
    if code == 1 or dataset is None:
        return e2e.skip("run without --tier", "no tier here" if code == 1 else "no /dev/shm")
    e2e.make_tree(dataset, 20)
    code, out, err = ctl("run", "--dataset", dataset, "--json", "--", "sh", "-c", 'find "$1" -type f -exec cat {} + >/dev/null', "sh", dataset, env=e2e.environment())
    used = [t["tier"] for t in chosen["tiers"] if t["chosen"]]
    names = [tier["name"] for tier in used]
    equal((code, [t["name"] for t in json.loads(out)["tiers"]]), (0, names), "run without --tier: as `tiers` chooses", err)
    with tempfile.TemporaryDirectory(dir=next(t["path"] for t in chosen["tiers"] if t["chosen"])) as inside:
        code, out, err = ctl("run", "--dataset", inside, "--", "true", env=e2e.environment())
        contains(err, [f"tier {names[0]}: not used: ", "it is there already"], "a tier that holds the dataset is not used")
        equal(code, 125 if len(names) == 1 else 0, "and the others are, if there are any", err)
    return None


def run_advises():
    """Where no tier can be chosen, the one that is advised can be used."""
    data = scratch("advise.data")
    e2e.make_tree(data, 3)
    conf = written("advise.conf", f"[tier.x]\npath = {data}\nquota = 1G\n")
    plug = written("advise.plugstack", f"optional /lib/spank_monarch.so config={conf}\n")
    env = e2e.environment(SLURM_CONF=written("advise.slurm", f"ClusterName=c\nPlugStackConfig={plug}\n"))
    code, _, err = ctl("run", "--dataset", data, "--", "true", env=env)
    advice = re.search(r"no tier can be chosen on this node, .*; give --tier NAME:PATH:SIZE(?:, for example --tier (\S+))?\n", err)
    ok(code == 125 and advice, "run without a tier that can be chosen: it is refused", code, err)
    if advice and advice[1]:
        code, _, err = ctl("run", "--dataset", data, "--tier", advice[1], "--", "true", env=env)
        equal(code, 0, "run: the tier that it has advised is good", advice[1], err)


def run_refuses():
    """What the tests of monarchctl run (run.t) do not have."""
    data, tier, plain = scratch("refuse.data"), scratch("refuse.tier"), written("refuse.plain", "")
    usual = ["--dataset", data, "--tier", f"t:{tier}:1G"]
    for name, words, parts, remedy in [
            ("a configuration that is wrong", [*usual, "--config", written("run.bad", "[agent]\nthreads = x\n")], ["run.bad:2: "], "mend it, or leave out --config"),
            ("a tier's name", ["--dataset", data, "--tier", f"a b:{tier}:1G"], ["the name may hold letters, digits, - and _, at most 31"], "name it for example ssd"),
            ("a tier of 0", ["--dataset", data, "--tier", f"t:{tier}:0%"], [f"--tier t:{tier}:0% has no room for any file"], f"write for example t:{tier}:10G"),
            ("below a file", ["--dataset", f"{plain}/x"], [f"dataset {plain}/x: Not a directory"], "name its directory")]:
        fails(f"run: {name}", ["run", *words, "--", "true"], parts, want=125, remedy=remedy)
    fails("run: two directories behind one --dataset", ["run", *usual, tier, "--", "true"],
          [f"{tier} stands before --, and is of no option; give --dataset before each"], want=125)
    e2e.make_tree(data, 3)
    code, out, err = ctl("run", "--dataset", data, "--tier", f"t:{tier}:10", "--wait", "full", "--", "sh", "-c", 'cat "$1"/*.bin >/dev/null', "sh", data, env=e2e.environment())
    equal((code, err.split("\n", 1)[1]), (0, "monarchctl run: read 4.30K, 4.30K of it from the PFS; the tiers had no room for 3 files; give them more by --tier NAME:PATH:SIZE\n"), "run: a tier without room says so")


def run_waits():
    """The command begins once so much is staged, or when no more is, with a bar on a terminal."""
    dataset, tier = scratch("wait.data"), scratch("wait.tier")
    for number in range(40):
        e2e.write(f"{dataset}/{number}", bytes([number]) * 100000)
    begins = r"monarchctl run: (\d+)% of the dataset is staged after \d+ s \((\d+) files?, [^)]*\): (.*)\nmonarchctl run: no program has used .*\n"
    slow = written("wait.slow", "[agent]\npfs_bandwidth = 400K\nprefetch_burst = 64K\n")
    off = written("wait.off", "[agent]\nprefetch = off\n")
    for size, words, percents, why in (
            ("1G", ["full"], range(100, 101), "the command begins"),
            ("1G", ["10%", "--config", slow], range(10, 100), "the command begins"),
            ("1M", ["full"], range(100), r"no more can be: \d+ files have no room, 0 cannot be staged"),
            ("1G", ["1%", "--config", off], range(1), "no more is staged ahead, as prefetch = off in the configuration"),
            ("1G", ["full", "--wait-timeout", "1", "--config", slow], range(100),
             "the time of --wait-timeout is over; staging goes on")):
        code, _, err = ctl("run", *e2e.options([dataset], {"t": (tier, size)}), "--wait", *words, "--", "true",
                           env=e2e.environment())
        found = re.fullmatch(begins, err)
        ok(code == 0 and found and int(found[1]) in percents and re.fullmatch(why, found[3]),
           f"--wait {' '.join(words)[:30]}, {size}", code, err)
    shown = on_terminal("run", *e2e.options([dataset], {"t": (tier, "1G")}), "--wait", "10%", "--config", slow, "--", "true", LD_PRELOAD=e2e.SANITIZER)
    lines = re.split(r"\r\x1b\[K", shown)
    ok(any(re.fullmatch(r"\[#* *\] +\d+%  \S+ of \S+ staged, \S+/s, about 0:00:\d\d left", line) for line in lines) and re.fullmatch(begins, lines[-1].replace("\r\n", "\n")),
       "on a terminal a bar tells how far it is, and is gone at the end", lines)
    for name, kill, want in (("the agent is killed", lambda process: os.kill(e2e.children(process.pid, "monarchd")[0],
                                                                             signal.SIGKILL), (0, b"begun\n")),
                             ("it is interrupted", lambda process: os.killpg(process.pid, signal.SIGINT), (-signal.SIGINT, b""))):
        process = e2e.start([TOOL, "run", *e2e.options([dataset], {"t": (tier, "1G")}), "--wait", "full", "--config", slow, "--", "echo", "begun"],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=e2e.environment())
        e2e.wait_until(lambda: glob.glob(f"{tier}/monarch-run.*.{process.pid}.*/*"))
        kill(process)
        code, out, err = e2e.finish(process)
        equal((code, out), want, f"{name}: the command begins, or does not", err)
        ok(e2e.wait_until(lambda: not e2e.traces(process.pid, tier)), f"{name}: nothing is left", e2e.traces(process.pid, tier))
    for word in "0%", "50":
        fails(f"--wait {word}", ["run", "--dataset", dataset, f"--wait={word}", "--", "true"], ["--wait: ", "none, full, or 1% to 100%, such as 50%"], want=125)


def version():
    told = as_json("version")[1]
    equal(ctl("version")[:2], (0, f"monarchctl {told.get('version')}\n"), "version, as text and as JSON")
    for name, file, constant in (("catalog", "layout/catalog_layout.h", "kCatalogVersion"),
                                 ("board", "layout/board_layout.h", "kBoardVersion"),
                                 ("peer_messages", "peer/messages.h", "kPeerVersion")):
        number = re.search(rf"{constant} = (\d+);", e2e.text_in(f"{SOURCE}/runtime/{file}"))[1]
        equal(told.get(name), int(number), f"the version of what parts share: {name}")


def container_args():
    for tool in "bwrap", "pyxis":
        fails(f"container-args {tool} outside of a job", ["container-args", tool], ["monarchctl container-args: this is no task of a job with Monarch"], want=1,
              remedy="call it in the script of a job that was submitted with --monarch-dataset, or in a command of monarchctl run", env=e2e.native_environment())
    fails("container-args: no such tool", ["container-args", "docker"], ["docker"], want=2, remedy="see 'monarchctl container-args --help'")


def tiers():
    path = scratch("tiers.tier")
    out = ctl("tiers", "--config", written("tiers.conf", f"[tier.a]\npath = {path}\nquota = 1G\n"))[1]
    lines = [line.split() for line in out.splitlines()]
    equal([line[0] for line in lines if len(line) > 7 and line[lines[0].index("CHOSEN")] == "yes"], [path], "tiers: a heading, and lines below it", out)
    config = written("tiers.part.conf", f"[tier.a]\npath = {path}\nquota = 1G\n[tier.b]\npath = {path}.none\nquota = 1G\n")
    code, out, err = ctl("tiers", "--config", config)
    ok(code == 4 and f"1 of the 2 tiers that {config} names cannot be used on this node" in err, "tiers: one cannot be used", out, err)


def state_directory():
    """One that --state-dir names and that is not there: after a boot there may be none."""
    none, file = f"{scratch()}/no.state", written("file.state", "")
    for words in ["status"], ["report", "4711"], ["clean", "--dry-run"], ["flush"], ["plan", scratch("tiers.tier"), "--capacity", "1G"]:
        err = ctl(*words, "--state-dir", none)[2]
        contains(err, [f"monarchctl {words[0]}: --state-dir {none}: No such file or directory: it counts as empty; check the name"], f"{words[0]}: a state directory that is not there")
        fails(f"{words[0]}: a state directory that is none", [*words, "--state-dir", file], [f"--state-dir {file}: Not a directory; name root's state directory"], want=2)


def report_of_sacct():
    bins = scratch("sacct")
    env = e2e.native_environment(PATH=f"{bins}:{os.environ['PATH']}")

    def sacct(line, end="exit 0"):
        written("sacct/sacct", f"#!/bin/sh\ncat <<'E'\n{line and '4711' + line}E\n{end}\n", 0o755)

    good = "|COMPLETED|other words monarch=1 hit=91.0% pfs=3.81M/7.63M ops=-50% meta=-50% nvme=3.81M staged=100% nodes=1/1 err=0\n"
    sacct(good, 'echo "$@" >"${0%/*}/asked"')
    code, told, err = as_json("report", "4711@one", env=env)
    equal((code, told.get("source"), told.get("state"), told.get("line", {}).get("pfs"), told.get("rule")), (0, "sacct", "COMPLETED", "3.81M/7.63M", "good"), "report of sacct's line", err)
    equal(e2e.text_in(f"{bins}/asked"), "-nPX -o JobID,State,SystemComment -j 4711 -M one\n", "report JOBID@CLUSTER: sacct is asked for that cluster's job")
    sacct(good.replace("err=0", "err=1 agent=died"))
    equal(as_json("report", "4711", env=env)[1].get("rule"), "agent-died", "advice by sacct's line: the agent died")
    for line, rule in ("", "counters-lost"), (" late=1", "late"):
        sacct(f"|COMPLETED|monarch=1 counters=lost nodes=1/1 err=1{line}\n")
        equal(as_json("report", "4711", env=env)[1].get("rule"), rule, f"advice by sacct's line: {rule}")
    for part, want in ("staged=12%", "12% of the files were"), ("staged=12% files=9/10", "12% of the dataset was"):
        sacct(good.replace("staged=100%", part))
        contains(ctl("report", "4711", env=env)[1], [f"only {want} placed"], "advice by sacct's line: what is staged; older lines tell it of the files")
    for name, row, end, parts in [
            ("an array", "_1|COMPLETED|monarch=1\n4711_2|FAILED|monarch=1\n", "exit 0", ["job 4711 has 2 parts", "name one: 4711_1"]),
            ("a job of components", "+0|COMPLETED|monarch=1\n4711+1|FAILED|\n", "exit 0", ["job 4711 has 2 parts", "name one: 4711+0"]),
            ("no line", "|RUNNING|\n", "exit 0", ["no line of Monarch's", "RUNNING"]),
            ("an unknown job", "", "exit 0", ["sacct does not know it", "monarchctl status"]),
            ("sacct hangs", "", "sleep 100", ["no answer in 10 s"])]:
        sacct(row, end)
        fails(f"report: {name}", ["report", "4711"], parts, env=env)


# ---- clean and flush


def clean_of_runs():
    dataset, tier = scratch("clean.data"), scratch("clean.tier")
    e2e.make_tree(dataset, 5)
    words = [TOOL, "run", *e2e.options([dataset], {"t": (tier, "1G")}), "--", "sh", "-c", 'cat "$1"/*.bin >/dev/null; echo; read x', "sh", dataset]
    runs = [e2e.start(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=e2e.environment()) for _ in range(2)]
    for run in runs:
        run.stdout.readline()
    agent = e2e.children(runs[0].pid, "monarchd")[0]
    os.kill(agent, signal.SIGSTOP)
    e2e.end(runs[0])
    os.kill(agent, signal.SIGKILL)
    e2e.wait_until(lambda: len(e2e.traces(runs[0].pid, tier)) <= 2)  # the agent dies in its own time
    left = sorted(e2e.traces(runs[0].pid, tier))
    equal(len(left), 2, "a run that was killed with its agent: run directory and copies are left", left)
    left = [path for path in left if path.startswith(tier)]  # others' runs on this machine sweep the place of run directories

    def ours(told):
        return sorted(f["name"] for f in told.get("found", []) if f["name"].startswith(tier))

    yield
    e2e.wait_until(lambda: ours(as_json("clean", "--dry-run", tier)[1]))  # what is younger than 10 s may be just beginning
    code, told, err = as_json("clean", "--dry-run", tier)
    equal((code, ours(told), {f["removed"] for f in told["found"]}), (0, left, {False}), "clean --dry-run names them", err)
    ok(all(os.path.isdir(path) for path in left), "and removes nothing")
    code, _, err = ctl("clean", tier)
    equal((code, e2e.traces(runs[0].pid, tier)), (0, []), "clean removes them", err)
    equal(len(e2e.traces(runs[1].pid, tier)), 3, "but nothing of a run that lives")
    runs[1].communicate(b"\n", timeout=e2e.PATIENCE)
    fails("clean: a directory that is not there", ["clean", f"{tier}/none"], ["none: No such file"])


@e2e.unless(e2e.why_not_root, e2e.why_no_fuse, e2e.why_not_nobody)
def runs_that_hang():
    """Directories that look like anybody's runs, on which a user has mounted a file system for all that hangs."""
    base, mounter, number = scratch("hanging.runs"), 65533, os.getpid()
    os.chmod(base, 0o1777)
    with contextlib.ExitStack() as at_end:
        for uid in 0, mounter, 65534:
            path = f"{base}/monarch-run.{uid}.{number}.abcdef"
            os.mkdir(path)
            os.chown(path, mounter, mounter)
            hang = e2e.hanging_mount(path, mounter, more=",allow_other")
            at_end.callback(subprocess.run, ["umount", "-l", path], check=False)
            at_end.callback(os.close, hang)
        for who, before in ("root", ()), ("another user", e2e.NOBODY):
            code, told, err = as_json("status", "--state-dir", f"{base}/none", before=before, env={"TMPDIR": base})
            equal((code, job_of(told, f"run.{number}")), (0, {}), f"status by {who} asks no file system that another one mounted", err)
            code, told, err = as_json("clean", "--dry-run", "--state-dir", f"{base}/none", before=before, env={"TMPDIR": base})
            equal((code, [f for f in told.get("found", []) if f["name"].startswith(base)]), (0, []), f"nor does clean by {who}", err)


def clean_and_flush_of_jobs():
    with contextlib.closing(one_node.Node("left")) as n:
        where, ids = ["--state-dir", n.state], [one_node.FIRST + number for number in (3, 4)]
        def answers(code):
            return written("account", f"#!/bin/sh\nexit {code}\n", 0o755)

        n.account = answers(0)
        n.configure("account = spool\n")

        def found(*words):
            code, told, err = as_json("clean", *where, *words)
            return code, [(f["kind"], f["name"]) for f in told.get("found", []) if f["kind"] != "run"], err

        for job in ids:
            n.begin(job)
        equal(found("--dry-run")[1], [], "jobs that live are not left behind")
        os.kill(n.record(ids[0])["pid"], 9)
        dead = [("job", f"c-1.{ids[0]}.n1.x")]
        ok(e2e.wait_until(lambda: found("--dry-run")[1] == dead), "clean --dry-run names the job whose agent and slurmstepds are gone")
        on_tier = lambda: sorted(name.rpartition(".")[0] for name in os.listdir(f"{n.tier}/monarch"))
        equal(on_tier(), sorted(f"c-1.{job}.0.n1.x" for job in ids), "and removes nothing")
        code, removed, err = found()
        equal((code, removed), (0, dead), "clean removes it", err)
        ok(re.fullmatch(r".*JobId=\d+ node=\S+ its agent had died.*\n", err), "and says what had become of it", err)
        equal((on_tier(), os.listdir(f"{n.state}/jobs"), os.listdir(f"{n.state}/removing")),
              ([f"c-1.{ids[1]}.0.n1.x"], [f"c-1.{ids[1]}.n1.x"], []), "and leaves the job that lives")
        n.end(ids[1])
        for answer, why in (1, "is slurmdbd there ('monarchctl doctor')?"), (4, "slurmdbd answers, and has no row of these jobs yet"):
            answers(answer)
            code, out, err = ctl("flush", *where, "--config", n.config)
            equal((code, out), (1, "2 lines for sacct waited, 2 do now\n"), f"flush: monarch_account ends with {answer}", err)
            contains(err.splitlines()[-1], ["2 lines wait for sacct still: " + why], f"flush: what that means, {answer}")
        answers(0)
        code, out, err = ctl("flush", *where, "--config", n.config)
        equal((code, out), (0, "2 lines for sacct waited, none does now\n"), "flush: those of the job that has ended and of the one that was removed", err)
        equal(as_json("flush", *where, "--config", n.config)[1].get("waited"), 0, "nothing waits any more")
        fails("flush as a user", ["flush"], ["run it as root"], before=e2e.NOBODY)


# ---- simulate

MACHINE = """[machine]
nodes = 2
compute = 100   # MB/s
preprocess = 200
network = 1000
[pfs]
rate = 1:50 2:80
[staging]
capacity = 64
threads = 2
read = 4000
[tier.ram]
capacity = {room}
read = 1:1000 2:1500
"""
DATASET = "[dataset]\nsamples = 400\nmean = 1\nepochs = 4\nbatch = 10\n"


def simulate():
    machine, dataset = written("machine.ini", MACHINE.format(room=400)), written("dataset.ini", DATASET)
    words = ["simulate", "--machine", machine, "--dataset", dataset]
    code, out, err = ctl(*words, "--policy", "monarch", "--sweep", "tier.ram.capacity=0,400", "--sweep", "machine.nodes=1,2")
    rows = [line.split() for line in out.splitlines()]
    equal((code, err, rows[0][:5]), (0, "", ["tier.ram.capacity", "machine.nodes", "POLICY", "SECONDS", "OF-BOUND"]), "simulate: a table")
    equal([row[:3] for row in rows[1:]], [[room, nodes, "monarch"] for room in ("0", "400") for nodes in ("1", "2")], "with each combination of a sweep's values")
    out = ctl(*words, "--policy", "lbann-preload", "--sweep", "tier.ram.capacity=10")[1]
    contains(out, ["10                 lbann-preload  -        -         -        -        -    -      -    -          the dataset is larger"], "simulate: a policy that cannot run")
    code, told, err = as_json(*words)
    runs = told.get("runs", [{}])
    found = {p["policy"]: p for p in runs[0].get("policies", [])}
    equal((code, err, len(runs), len(found)), (0, "", 1, 14), "simulate: all policies")
    equal([round(found["perfect"]["seconds"], 6), round(runs[0]["bound_seconds"], 6)], [8.0, 8.0], "simulate: what the computation takes", found)
    equal({name: round(p["pfs_mb"], 6) for name, p in found.items() if name in ("naive", "monarch")}, {"naive": 1600.0, "monarch": 400.0}, "simulate: what is read from the PFS")
    code, told, err = as_json(*words, "--policy", "lbann-preload", "--sweep", "tier.ram.capacity=10")
    contains(told["runs"][0]["policies"][0]["refused"] or "", ["larger than the memory"], "simulate: a policy that cannot run says why")
    chart = f"{scratch()}/chart.svg"
    equal(ctl(*words, "--svg", chart)[0], 0, "simulate: a chart")
    picture = xml.etree.ElementTree.parse(chart).getroot()
    texts = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    ok({"computing", "waiting for ram", "waiting for pfs", *found} <= set(texts), "with a bar for each policy, and the parts", texts)
    widths = [[float(box.get("width")) for box in picture.iter("{http://www.w3.org/2000/svg}rect") if box.get("fill") == colour]
              for colour in ("#9aa0a6", "#d93025")]
    equal((max(widths[0][1:]), max(widths[1][1:])), (95.0, 285.0), "as wide as they are long: naive computes for 8 s of 32, and waits for the PFS")
    code, out, err = ctl(*words, "--policy", "naive", "--sweep", "tier.ram.read=1", "--svg", "-")
    ok(code == 0 and xml.etree.ElementTree.fromstring(out).tag.endswith("svg"), "simulate: a chart on standard output", out, err)
    fails("simulate: a chart that cannot be written", [*words, "--svg", "/none/chart.svg"], ["write /none/chart.svg: No such file"], remedy="name a file that you can write")
    place = scratch("moved/share/monarch")
    os.makedirs(f"{scratch('moved')}/bin")
    shutil.copytree(f"{SOURCE}/simulate", f"{place}/simulate", ignore=shutil.ignore_patterns("*.cc", "*.h"))
    shutil.copy(TOOL, f"{scratch('moved')}/bin")
    for kind, name in [(os.path.basename(os.path.dirname(path)), os.path.basename(path)[:-4]) for path in glob.glob(f"{SOURCE}/simulate/*/*.ini")]:
        given = {"machines": machine, "datasets": dataset} | {kind: name}
        code, out, err = e2e.execute([f"{scratch('moved')}/bin/monarchctl", "simulate", "--machine", given["machines"], "--dataset", given["datasets"],
                                      "--sweep", "dataset.samples=8000", "--policy", "perfect"])
        equal((code, err), (0, ""), f"simulate: the sample {name} is found by its name", out)
    code, out, err = e2e.execute([f"{scratch('moved')}/bin/monarchctl", "simulate", "--machine", "lasen", "--dataset", dataset])
    contains(err, ["there is no 'lasen'", "name an INI file, or one of lab, lassen,"], "simulate: no such sample")
    for name, text, line, parts in [
            ("a key", MACHINE + "capacty = 1\n", 15, ["unknown key 'capacty' in [tier.ram] (did you mean capacity?)"]),
            ("a section", MACHINE + "[disk]\nread = 1\n", 16, ["unknown section [disk]; name one of [machine],"]),
            ("a line", MACHINE + "hello\n", 15, ["neither [section], key = value nor a comment; mend"]),
            ("a rate", MACHINE.replace("2:80", "1:80"), 7, ["'1:50 1:80' is not NUMBER:RATE with ascending numbers; write for example"]),
            ("a unit", MACHINE.replace("= 64", "= 64M"), 9, ["'64M' is not a number", "write it without a unit"])]:
        bad = written("bad.ini", text.format(room=400))
        fails(f"simulate: {name}", ["simulate", "--machine", bad, "--dataset", dataset], [f"{bad}:{line}: ", *parts])
    fails("simulate: no compute", ["simulate", "--machine", dataset, "--dataset", dataset], ["no file has compute of [machine]; add"])
    fails("simulate: a large batch", [*words, "--sweep", "dataset.batch=300"], ["fewer samples than a batch of all nodes; make batch"])
    fails("simulate: no file", ["simulate", "--machine", "/none.ini", "--dataset", dataset], ["/none.ini: No such file"], remedy="name an INI file that you can read")
    fails("simulate: no policy", [*words, "--policy", "x"], ["--policy: x not in {perfect,naive,"], want=2)
    fails("simulate: a sweep of a key that is not there", [*words, "--sweep", "tier.ssd.capacity=1"], ["--sweep tier.ssd.capacity: unknown section [tier.ssd]"])
    fails("simulate: a sweep without values", [*words, "--sweep", "machine.nodes"], ["is not SECTION.KEY=VALUE,...; write"], want=2)


# ---- plan


def plan():
    data, shut = scratch("plan.data"), scratch("plan.data/shut")
    sizes = [0, 1, 4096, 4097, 100000, 3 << 20, 20 << 20]
    for i, size in enumerate(sizes):
        e2e.write(f"{data}/d{i}/deep/{i}", b"")
        os.truncate(f"{data}/d{i}/deep/{i}", size)
    os.link(f"{data}/d4/deep/4", f"{data}/d4/name")
    os.symlink("/etc", f"{data}/link")
    words = [data, "--capacity", "1G"]
    code, told, err = as_json("plan", *words)
    space, total = sum((size + 4095) // 4096 * 4096 for size in sizes), sum(sizes)
    equal((code, err, *(told.get(key) for key in ("files", "bytes", "space", "links", "others", "directories"))),
          (0, "", len(sizes) + 1, total, space, 1, 1, 2 * len(sizes) + 2), "plan: what is there")
    equal([(b["files"], b["bytes"]) for b in told["sizes"]],
          [(3, 4097), (1, 4097), (1, 100000), (1, 3 << 20), (1, 20 << 20), (0, 0), (0, 0)], "plan: the sizes")
    equal(told["calls"], told["files"] + told["directories"] - 1 + told["others"] + told["directories"] + 1, "a call for each file and two for each directory")
    os.symlink(data, f"{scratch('plan.link')}/to")
    for name, datasets in ("in another one", [f"{data}/d5", data]), ("by another name",
                                                                     [f"{scratch('plan.link')}/to", f"{data}/d4/deep"]):
        again = as_json("plan", *datasets, "--capacity", "1G")[1]
        counted = ("files", "bytes", "directories", "links", "pfs_without")
        equal([again.get(key) for key in counted], [told[key] for key in counted],
              f"plan: a dataset that is given {name} counts once")

    def near(got, want, name):
        return ok(all(g == w or (g is not None and w is not None and abs(g - w) <= 0.005 * max(w, 1)) for g, w in zip(got, want)), name, got, want)

    def reads(name, nodes, epochs, capacity, *want):
        told = as_json("plan", data, "--capacity", str(capacity), "--nodes", str(nodes), "--epochs", str(epochs))[1]
        got = [told[f"pfs_{how}"] / total if told[f"pfs_{how}"] is not None else None for how in ("without", "alone", "peers")]
        near(got[3 - len(want):], want, name)
        return told

    # What PEERS and the papers have: n(1-(1-1/n)^E) without peers; f(E-1)/E of one node is spared.
    half, tiny = space // 2 // 4096 * 4096, space * 8 // 100 // 4096 * 4096
    reads("64 nodes, 90 epochs, all fits: 48.5 times without peers, once with them", 64, 90, space, 90, 64 * (1 - (63 / 64) ** 90), 1)
    reads("one node: once", 1, 10, space, 10, 1, None)
    told = reads("one node with room for a half", 1, 4, half, 4, 4 - half / space * 3, None)
    near([told["spared_alone"], told["fits_percent"], told["tiers"][0]["percent"]], [100 * half / space * 3 / 4] + [100 * half / space] * 2, "which is f(E-1)/E")
    f = tiny / space
    reads("64 nodes, each with room for what it reads ahead and in three epochs", 64, 3, tiny, 3, sum(1 - min(f, 1 - (63 / 64) ** k) for k in range(3)), 1)
    reads("4 nodes that have no room for all together: a full node asks no other", 4, 20, tiny, 4 * f + 1 - f / 2 - 4 * f / 2 + 19 * (1 - f))
    code, out, err = ctl("plan", *words, "--nodes", "2")
    contains(out, ["8 files, 23.1M, in 16 directories", "Read from the PFS in 10 epochs on 2 nodes:\n", "90.0%"], "plan as text")
    equal((code, err), (0, ""), "plan: no bar but on a terminal")
    config = written("plan.conf", f"[tier.a]\npath = {scratch('plan.a')}\nquota = 1M\n[tier.b]\npath = {scratch('plan.b')}\nquota = 2M\n")
    code, told, err = as_json("plan", data, "--config", config)
    equal([(t["name"], t["capacity"], t["filled"]) for t in told.get("tiers", [])], [("a", 1 << 20, 1 << 20), ("b", 2 << 20, 2 << 20)], "tiers are filled in their order", err)
    if os.geteuid() == 0 and not e2e.why_not_nobody():
        os.chmod(shut, 0)
        code, out, err = ctl("plan", *words, before=e2e.NOBODY)
        equal(code, 4, "plan: a part that cannot be listed", out)
        contains(err, ["1 file or directory cannot be looked at, and these numbers are of the rest; the first: ", "shut: Permission denied"], "and says which")
        fails("plan: a dataset that cannot be listed", ["plan", shut, "--capacity", "1G"], ["shut: you cannot list it: Permission denied"],
              remedy="give yourself the right to list it (chmod), or ask its owner", before=e2e.NOBODY)
        os.chmod(shut, 0o755)
    told = as_json("plan", *words, "--rate", "100")[1]
    ok(told["seconds"] * 100 >= told["calls"] * 0.98, "--rate: no more calls than that", told["calls"], told["seconds"])
    state, kept = ["--state-dir", scratch("plan.state")], f"plan.state/reports/{os.geteuid()}"
    contains(ctl("plan", *words, *state)[1], ["How long staging takes is told with --like JOBID|FILE", "no report of one is kept here"], "staging time needs a rate")

    def as_fast(first, then):
        """A report of a job that read so much per second."""
        columns = {name: [0] * 3 for name in ("tasks_pfs", "tasks_tier", "from_peers", "to_peers", "opened_pfs", "opened_tier", "waited", "waited_ns", "staged", "dataset")}
        return json.dumps({**a_report(), "series": {**columns, "milliseconds": [0, 2000, 4000], "agent_pfs": [0, 2 * first, 2 * (first + then)], "placed": [[0] * 3]}})

    like = written("like.json", as_fast(100000, 400000))
    of_two = written("like2.json", json.dumps({**json.loads(as_fast(100000, 400000)), "ended": {"job": 1, "nodes": 2}}))
    # The bytes of all over the time until the last was read; of more nodes than the job had, no more is known.
    for file, nodes, capacity, want in ((like, 1, space, total / 2.5e5), (like, 1, half, total * half / space / 2.5e5), (like, 4, space, total / 2.5e5),
                                        (of_two, 1, space, total / 2.5e5), (of_two, 2, space, total / 5e5), (of_two, 4, space, total / 5e5),
                                        (of_two, 4, half // 4, 4 * total * (half // 4 // 4096 * 4096) / space / 5e5)):
        told = as_json("plan", data, "--like", file, "--capacity", str(capacity), "--nodes", str(nodes))[1]
        near([told.get("pfs_bytes_per_second"), told.get("staging_seconds")], [250000, want], f"--like: staging on {nodes} nodes with {capacity} each")
    contains(ctl("plan", *words, "--nodes", "4", "--like", of_two)[1], ["if all nodes together read 488K/s from the PFS, as 2 nodes of the job of "], "--like: how many nodes read at once")
    for seconds, name, report in (5, "one.4711", as_fast(100000, 0)), (4, "two.4711", as_fast(200000, 0)), (3, "two.4712", as_fast(400000, 0)), (2, "two.4713", as_fast(0, 0)):
        os.utime(written(f"{kept}/{name}.0.n1.json", report), (time.time() - seconds,) * 2)
    fails("plan: --like one of two", ["plan", *words, *state, "--like", "4711"], ["4711@one or 4711@two"])
    for more, want in (["--like", "4711@two"], (200000, "4711@two")), ([], (400000, "4712@two")):
        told = as_json("plan", *words, *state, *more)[1]
        equal((told.get("pfs_bytes_per_second"), told.get("like")), want, f"the rate of a job whose report is kept; without --like, of the last one that tells it {more}")
    above = os.path.dirname(data)
    code, told, err = as_json("plan", data, "--config", written("plan.above", f"[tier.a]\npath = {scratch('plan.a')}\nquota = 1M\n[tier.up]\npath = {above}\nquota = 2M\n"))
    equal((code, [t["name"] for t in told.get("tiers", [])]), (0, ["a"]), "plan: a tier that the dataset lies in does not count", err)
    contains(err, [f"monarchctl plan: tier up does not count: dataset {data} lies inside the tier up ({above})"], "and it says so")
    for name, want, words, parts, remedy in [
            ("--capacity", 2, [data, "--capacity", "lots"], ["--capacity: "], None),
            ("no dataset", 1, [f"{data}/none"], ["No such file"], "name its directory"),
            ("a file", 1, [f"{data}/d4/name"], ["not a directory; name the directory it is in"], None),
            ("--nodes", 2, [data, "--nodes", "0"], ["from 1 to 10000"], "leave them out, or give less")]:
        fails(f"plan: {name}", ["plan", *words], parts, want=want, remedy=remedy)
    contains(ctl("plan", scratch("plan.nothing"), "--capacity", "1G")[1], ["0 files, 0", "with Monarch     0      -"], "an empty dataset spares nothing")


# ---- completion


def help_of(*words):
    """The options and the subcommands that --help tells."""
    text = ctl(*words, "--help")[1]
    below = text.split("Subcommands:")[1] if "Subcommands:" in text else ""
    return set(re.findall(r"^ +(?:-\w,)?(--[a-z-]+)", text, flags=re.M)), re.findall(r"^  ([\w-]+)  ", below, flags=re.M)


# bash-completion sources the file that has the command's name, and bash calls the function that the file gave to `complete`.
BASH = """
. "$0/monarchctl"
given=$(complete -p monarchctl)
given=${given##*-F }
COMP_WORDS=(monarchctl "$@") COMP_CWORD=$#
"${given%% *}" monarchctl "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
printf "%s\\n" "${COMPREPLY[@]}"
"""


def completed(*words):
    """What bash offers for the last word."""
    code, out, err = e2e.execute(["bash", "-c", BASH, f"{SOURCE}/etc/completions/bash", *words], cwd=scratch("empty"))
    return set(out.decode().split()) if (code, err) == (0, "") else {code, err}


def zsh_options():
    """{subcommand: the options that zsh is told}"""
    text = e2e.text_in(f"{SOURCE}/etc/completions/zsh/_monarchctl")
    variables = dict(re.findall(r"(\w+)=[\'\"](--[a-z-]+)\[", text))
    found = {}
    for name, body in re.findall(r"^ {16}([\w-]+)\)(.*?);;$", text, flags=re.M | re.S):
        found[name] = set(re.findall(r"[\'\"*](--[a-z-]+)\[", body)) | {variables[v] for v in re.findall(r"\$(\w+)", body) if v in variables}
    return found, set(re.findall(r"^ {8}\'([\w-]+):", text, flags=re.M))


def completion():
    equal(os.listdir(f"{SOURCE}/etc/completions/bash"), [os.path.basename(TOOL)],
          "bash: bash-completion finds the file by the command's name")
    options, commands = help_of()
    equal(completed(""), options | set(commands), "bash: subcommands and options")
    in_zsh, described = zsh_options()
    equal((described, set(in_zsh)), (set(commands), set(commands)), "zsh: subcommands")
    for command in commands:
        options, below = help_of(command)
        for verb in below:
            options |= help_of(command, verb)[0]
            equal(completed(command, verb, "--"), help_of(command, verb)[0], f"bash: options of {command} {verb}")
        want = {"--help"} if below else options
        equal(completed(command, "--") - {"--"}, want, f"bash: options of {command}")
        ok(not below or completed(command, "") == want | set(below), f"bash: what is below {command}")
        equal(in_zsh.get(command), options, f"zsh: options of {command}")
    tools = e2e.execute([TOOL, "container-args", "--help"])[1].decode()
    ok(all(tool in tools for tool in completed("container-args", "") - {"--help", "--json"}), "bash: the tools are those of --help", tools)
    os.makedirs(f"{scratch('empty')}/some")
    equal((completed("run", "--dataset", "so"), completed("plan", "so"), completed("run", "--tier", "")), ({"some"}, {"some"}, set()),
          "bash: directories, and what cannot be known")
    ok("md5sum" in completed("run", "--dataset", "x", "--", "md5s"), "bash: the command after --")


e2e.main(config_show, config_check, clean_of_runs, runs_that_hang, status_of_run, one_node.as_root(status_of_slurm), one_node.as_root(parts_of_array), one_node.as_root(unreadable), doctor, report_of_file, run_without_tier, run_advises, run_refuses, run_waits, version, container_args, tiers, state_directory, report_of_sacct,
         one_node.as_root(clean_and_flush_of_jobs), simulate, plan, completion)
