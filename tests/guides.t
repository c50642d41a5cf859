#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""The code in README.md and in the guides, and the samples in etc/, as they stand there: only names of directories differ, and the
programs that they run are small. tests/docs.t sees to it that each block of code names its function here."""

import contextlib
import glob
import hashlib
import os
import re
import shutil
import subprocess

import e2e
import slurm_lab
from e2e import BUILD, SOURCE, contains, equal, ok, scratch, skip, wait_until
from slurm_lab import Cluster, fields

FILES = 30
# Reads all files twice, and says what they hold; started as a rank of torch.distributed, by its sampler and with a model on all ranks.
TRAIN = """
import hashlib, os, sys
root, ranks = sys.argv[1], int(os.environ.get("WORLD_SIZE", "1"))
files = sorted(os.path.join(d, name) for d, _, names in os.walk(root) for name in names)
def read(at):
    with open(files[at], "rb") as file: return file.read()
if ranks > 1:
    import torch
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    sampler = torch.utils.data.DistributedSampler(files, shuffle=True)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    for epoch in range(2):
        sampler.set_epoch(epoch)
        total = torch.zeros(1, dtype=torch.int64)
        for at in sampler:
            total += len(read(at))
            model(torch.ones(1)).sum().backward()
        torch.distributed.all_reduce(total)
        if os.environ["RANK"] == "0": print("epoch", epoch, int(total))
else:
    for epoch in range(2): print(hashlib.sha256(b"".join(map(read, range(len(files))))).hexdigest())
"""
SHELL = '#!/bin/sh\nset -- "${1:-DATA}"\nfor epoch in 0 1; do find "$1" -type f | LC_ALL=C sort | while read -r file; do cat "$file"; done | sha256sum | cut -d " " -f 1; done\n'
PREPARE = "sleep 0.1\n"

cluster = data = expected = None


def text_of(path):
    return e2e.text_in(f"{SOURCE}/{path}")


def blocks(path, name, mark="run"):
    """The code in that document that names the function; mark: what is said to be done with it."""
    found = re.findall(rf"<!-- {mark} by tests/guides\.t: {name} -->\n\n((?:    [^\n]*\n+)+)", text_of(path))
    if not found:
        raise RuntimeError(f"{path} has no code for {name}")
    return [re.sub(r"^    ", "", block, flags=re.M).rstrip("\n") + "\n" for block in found]


def shell(script, **more):
    """As e2e.execute, with the built programs before all others in PATH."""
    env = e2e.environment(**{**more, "PATH": f"{BUILD}:{os.environ['PATH']}"})
    return e2e.execute(["bash", "-euc", script], env=env, cwd=scratch())


def make_data():
    global data, expected
    if data is None:
        data = scratch("imagenet")
        e2e.make_tree(data, FILES)
        subprocess.run(["chmod", "-R", "a+rX", data], check=True)
        names = sorted(os.path.join(d, name) for d, _, names in os.walk(data) for name in names)
        whole = b"".join(open(name, "rb").read() for name in names)  # pylint: disable=consider-using-with
        expected = 2 * f"{hashlib.sha256(whole).hexdigest()}\n"
    return data


# ---- without Slurm


def first_use():
    """README's session at a terminal: what is printed there is what is printed; "..." stands for more lines."""
    (session,) = blocks("README.md", "first_use")
    for old, new in (("/tmp/pets", scratch("pets")), ("/tmp/tier", scratch("first-tier")), ("/tmp/report.json", f"{scratch()}/first.json"),
                     ("build/install/bin/", f"{BUILD}/"), ("./dev/build", "true")):
        session = session.replace(old, new)
    steps = re.findall(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$).*\n)*)", session, flags=re.M)
    said = []
    for command, _ in steps:
        code, out, err = shell(command)
        equal(code, 0, f"README, a first use: {command.split()[0]} ...", err)
        said.append(out.decode())
    *first, report = said
    equal(first, [want for _, want in steps[:-1]], "README, a first use: what it prints")
    more, sentence = steps[-1][1].split("\n", 1)
    equal(more, "...", "README, a first use: the report's sentence is a part of it")
    contains(report, ["\n" + sentence, "400, of a tier's copy 400 (100.0%)", "3.81M placed of 3.81M", "fully staged"], "its report")
    equal(os.listdir(scratch("first-tier")), [], "README, a first use: nothing is left on the tier")


def plan():
    (command,) = blocks("doc/user-guide.md", "plan")
    code, out, err = shell(command.replace("/lustre/imagenet", make_data()))
    equal(code, 0, "user-guide, plan", err)
    contains(out.decode(), [f"{FILES} files", "in 90 epochs on 4 nodes"], "it tells of the dataset")


def without_slurm():
    (commands,) = blocks("doc/user-guide.md", "without_slurm")
    for old, new in ("/lustre/imagenet", make_data()), ("/scratch:", f"{scratch('own-tier')}:"):
        commands = commands.replace(old, new)
    e2e.write(f"{scratch()}/train.sh", f"find {data} -type f -exec cat {{}} + >/dev/null\n")
    code, out, err = shell(commands)
    equal((code, err.count(": the command begins\n")), (0, 1), "user-guide, without Slurm", err)
    contains(out.decode(), [f"of a tier's copy {FILES} (100.0%)", "% less"], "its report tells the gain")


def config_with(name, text):
    path = f"{scratch()}/{name}.conf"
    e2e.write(path, text)
    return path


def valid(name, text):
    code, out, err = shell(f"monarchctl config check {config_with('valid', text)}")
    equal(code, 0, f"{name}: it is valid", out.decode(), err)


@e2e.unless(e2e.why_not_root)
def tier_directory():
    (command,) = blocks("doc/admin-guide.md", "tier_directory")
    path = f"{scratch()}/made-tier"
    code, _, err = shell(command.replace("/scratch", path))
    equal(code, 0, "admin-guide, the directory of a tier", err)
    config = config_with("made", f"[tier.nvme]\npath = {path}\nquota = 80%\n")
    code, out, err = shell(f"monarchctl tiers --config {config}")
    equal(code, 0, "it can be a tier", out.decode(), err)
    return contains(out.decode(), ["configured, quota"], "and is one")


def look():
    (commands,) = blocks("doc/admin-guide.md", "look")
    config = config_with("look", f"[tier.ssd]\npath = {scratch('look')}\nquota = 1G\n")
    os.chmod(scratch("look"), 0o1777)
    for command in commands.splitlines():
        words = f"{command} {config}" if command.endswith("check") else f"{command} --config {config} "
        code, out, err = shell(words)
        good = code == 0 or (command.endswith("doctor") and b"FAIL" in out) or (os.geteuid() != 0 and command.endswith("tiers"))
        ok(good and out, f"admin-guide, {command}", code, out.decode(), err)


def policies():
    tier = f"[tier.nvme]\npath = {scratch('policy')}\nquota = 1G\n"
    for text in blocks("doc/admin-guide.md", "policies"):
        valid(f"admin-guide, {' '.join(text.split())}", tier + text)
    rows = re.findall(r"^\| .* \| (`\[.*`.*) \|$", text_of("doc/admin-guide.md").split("## Policy recipes")[1].split("\n## ")[0], flags=re.M)
    more = f"[tier.ram]\npath = {scratch('policy-ram')}\nquota = 1G\ndriver = tmpfs\n"
    for row in rows:
        words = [word for word in re.findall(r"`([^`]+)`", row)]
        whole = {"[tier.nvme]": tier, "[tier.ram]": more}
        for word in words:
            if word.startswith("["):
                section = word
                whole.setdefault(section, f"{section}\n")
            else:
                key = word.split(" = ")[0]
                whole[section] = re.sub(rf"^{key} = .*\n", "", whole[section], flags=re.M) + word + "\n"
        valid(f"admin-guide, recipe {', '.join(words)}", "".join(whole.values()))
    ok(len(rows) >= 9, "admin-guide has recipes", rows)


def sites():
    """monarch.conf of each sample, as the nodes would read it."""
    for path in *sorted(glob.glob("etc/sites/*/monarch.conf", root_dir=SOURCE)), "etc/monarch.conf.sample":
        valid(path, text_of(path))


def for_admins():
    (text,) = blocks("doc/admin-guide.md", "for_admins")
    valid("admin-guide, the least monarch.conf", text)


# ---- with Slurm


def lab():
    """The cluster, in which each job counts its memory."""
    global cluster
    if cluster is None:
        made = Cluster()
        e2e.write(f"{scratch()}/extra.conf", "TaskPlugin=task/cgroup\n")
        made.up("--nodes", "2", "--cpus", "4", "--prolog-flags", "Contain", "--cgroup-line", "ConstrainRAMSpace=yes",
                "--slurm-conf", f"{scratch()}/extra.conf")
        for name, text in ("train.py", TRAIN), ("train.sh", SHELL.replace("DATA", make_data())), ("prepare.sh", PREPARE):
            e2e.write(f"{made.out}/{name}", text)
        cluster = made
    return cluster


def adapted(script, *more):
    for old, new in ("/lustre/imagenet", make_data()), *more:
        if old not in script:
            raise RuntimeError(f"the script has no {old}")
        script = script.replace(old, new)
    return script


def run(command, **env):
    """A command of the job's user, who has monarchctl in PATH."""
    return lab().execute(["bash", "-euc", f"PATH={lab().prefix}/bin:$PATH; {command}"], env={"HOME": lab().out, **env})


def submitted(name, script, *options, **env):
    """The id of a job of that script."""
    path = f"{lab().out}/{name}.sh"
    e2e.write(path, script)
    code, out, err = run(f"sbatch --parsable --output=%x.%j.out --job-name={name} {' '.join(options)} {path}", **env)
    equal(code, 0, f"{name}: it is submitted", err)
    return int(out)


def output(name, job):
    return slurm_lab.CLOSING.sub(b"", e2e.bytes_in(f"{lab().out}/{name}.{job}.out")).decode()


def served(name, job, want, medium="nvme"):
    """The job printed that, and its line in the log says that it was served; that line."""
    equal(lab().wait(job), "COMPLETED", f"{name}: how it ends", output(name, job))
    equal(output(name, job), want, f"{name}: its output")
    log = lab().log_of(job)
    line = "".join(re.findall(r" (monarch=1 .*)", log)[:1])
    got = fields(line)
    ok("hit" in got and got.get("err") == "0" and medium in got, f"{name}: it was served", line, log)
    return got


def for_users():
    (commands,) = blocks("README.md", "for_users")
    submit, sacct = adapted(commands).splitlines()
    code, out, err = run(submit.replace("sbatch ", "sbatch --parsable --output=%x.%j.out "))
    equal(code, 0, "README, for users: the job is submitted", err)
    job = int(out)
    yield  # sacct has its line later
    equal((lab().wait(job), output("train.sh", job)), ("COMPLETED", expected), "README, for users: how it ends")
    contains(lab().comment(job), ["monarch=1 hit="], "README, for users: it has a line in sacct")
    code, out, err = run(sacct.replace("4711", str(job)))
    equal(code, 0, "README, for users: sacct", err)
    contains(out.decode(), ["SystemComment", "monarch=1 hit="], "README, for users: sacct shows it")
    table = re.findall(r"`((?:srun -w NODE )?monarchctl (?:plan [^`]*imagenet|report [^`]*4711))`", e2e.text_in(f"{SOURCE}/README.md"))
    equal([command.split("monarchctl ")[1].split()[0] for command in table], ["plan", "report", "report"], "README, for users: what it asks", table)
    node = run(f"sacct -X -n -P -j {job} --format=NodeList")[1].decode().strip()
    page = f"{lab().out}/readme.html"
    for command, want in zip(table, ("Read from the PFS", "opens", "")):
        for old, new in ("/lustre/imagenet", data), ("4711", str(job)), ("NODE", node), ("page.html", page):
            command = command.replace(old, new)
        code, out, err = run(command)
        equal(code, 0, f"README, for users: {command}", err)
        contains(out.decode(), [want], f"README, for users: what that says: {command}")
    ok(os.path.getsize(page) > 1000, "README, for users: a page")
    save, read = re.findall(r"`((?:srun -w n1,n2 )?monarchctl report [^`]*pages[^`]*)`", e2e.text_in(f"{SOURCE}/doc/admin-guide.md"))
    os.mkdir(f"{lab().out}/pages")
    os.chmod(f"{lab().out}/pages", 0o777)
    for command in save.replace("n1,n2", node), read:
        code, out, err = run(command.replace("JOBID", str(job)).replace("page.html", f"{page}.nodes"))
        equal(code, 0, f"admin-guide, a page of several nodes: {command}", err, out)
    ok(os.path.getsize(f"{page}.nodes") > 1000, "admin-guide, a page of several nodes")


def first_job():
    (script,) = blocks("doc/user-guide.md", "first_job")
    got = served("first_job", submitted("first_job", adapted(script), "--exclusive"), expected)
    equal(got.get("staged"), "100%", "first_job: all is staged", got)


def status():
    (command,) = blocks("doc/user-guide.md", "status")
    job = submitted("status", f"#!/bin/bash\n#SBATCH --monarch-dataset={make_data()}\ncat $(find {data} -type f) >/dev/null\ntouch status.begun\n"
                    "while [ ! -e status.end ]; do sleep 0.1; done\n")
    lab().wait_running(job, "status.begun")
    code, out, err = run(command.replace("4711", str(job)))
    equal(code, 0, "user-guide, status", err)
    contains(out.decode(), [str(job), "staged-in"], "it tells of the job")
    e2e.write(f"{lab().out}/status.end", b"")
    equal(lab().wait(job), "COMPLETED", "user-guide, status: how the job ends")


def by_default():
    (command,) = blocks("doc/admin-guide.md", "by_default")
    script = f"#!/bin/bash\npython3 train.py {make_data()}\n"
    (name, value), = re.findall(r"^export (\w+)=(.*)$", adapted(command), flags=re.M)
    served("by_default", submitted("by_default", script, **{name: value}), expected)
    job = submitted("without", script, "--no-monarch", **{name: value})
    equal((lab().wait(job), output("without", job)), ("COMPLETED", expected), "--no-monarch: how it ends")
    equal(lab().log_of(job), "", "--no-monarch: it has no Monarch")


def week():
    (command,) = blocks("doc/admin-guide.md", "week")
    job = submitted("week", f"#!/bin/bash\n#SBATCH --monarch-dataset={make_data()}\npython3 train.py {data}\n")
    served("week", job, expected)
    yield
    wait_until(lambda: "monarch=1" in lab().comment(job))
    code, out, err = lab().execute(["sh", "-c", command], root=True)
    equal(code, 0, "admin-guide, the jobs of a week", err)
    ok(all("|monarch=1 " in line for line in out.decode().splitlines()), "it lists the lines", out.decode())


def smoke():
    """The first job after an installation, and the line that the guide shows of it."""
    (commands,) = blocks("doc/admin-guide.md", "smoke")
    *before, last = commands.replace("/lustre/trial", f"{lab().out}/trial").replace("\\\n", " ").splitlines()
    code, out, err = run("\n".join(before))
    equal(code, 0, "admin-guide, a first job", err)
    sums = re.findall(r"^[0-9a-f]{32}\b", out.decode(), flags=re.M)
    ok(len(sums) == 2 and sums[0] == sums[1] and re.findall("^monarch: .{5}", out.decode(), flags=re.M) == ["monarch: read "], "it prints the same sum twice", out.decode())
    job = int(re.search(r"Submitted batch job (\d+)", out.decode())[1])
    yield
    line = lab().comment(job)
    shown = blocks("doc/admin-guide.md", "smoke", "checked")[0].strip()
    equal(list(fields(line)), list(fields(shown)), "its line has the fields that the guide shows", line)
    equal([fields(line)[name] for name in ("nvme", "staged", "err")], [fields(shown)[name] for name in ("nvme", "staged", "err")],
          "and these values", line)
    (pfs, read), (once, twice) = (fields(each)["pfs"].split("/") for each in (line, shown))
    equal(read, twice, "all is read twice", line)
    missed = 1 - float(fields(line)["hit"].rstrip("%")) / 100  # on a busy machine files are opened before they are staged
    ok(float(once[:-1]) <= float(pfs[:-1]) <= float(once[:-1]) + missed * float(twice[:-1]) + 0.1, "and once from the PFS, or as hit= says",
       line)


@e2e.unless(lambda: not shutil.which("bwrap") and "no bwrap", lambda: not os.path.islink("/bin") and "/bin is no link here")
def container():
    """The guide's command, with bubblewrap."""
    (command,) = blocks("doc/user-guide.md", "container")
    script = adapted(command)
    job = submitted("container", f"#!/bin/bash\n#SBATCH --monarch-dataset={data}\n{script}")
    return served("container", job, expected)


# ---- the samples


def sample(name, *more):
    return adapted(text_of(f"etc/sbatch/{name}.sh"), *more)


def wait():
    """The script begins its training when half is staged, or more; without Monarch at once."""
    got = served("wait", submitted("wait", sample("wait"), "--exclusive"), expected)
    equal(got.get("staged"), "100%", "wait: all is staged", got)
    job = submitted("wait", sample("wait"), "--no-monarch")
    equal((lab().wait(job), output("wait", job)), ("COMPLETED", expected), "wait, without Monarch: it does not wait")


def salloc():
    path = f"{lab().out}/salloc.sh"
    e2e.write(path, sample("salloc"))
    code, out, err = run(f"bash {path} srun python3 train.py {data}")
    equal((code, out.decode()), (0, expected), "salloc: its step", err)
    job = int(re.search(r"Granted job allocation (\d+)", err)[1])
    wait_until(lambda: " monarch=1 hit=" in lab().log_of(job))
    ok(" monarch=1 hit=" in lab().log_of(job), "salloc: it was served", lab().log_of(job))


def pytorch_ddp():
    """All nodes of the lab are this machine, and have no names in DNS."""
    if e2e.execute(["/usr/bin/python3", "-c", "import importlib.util as u; assert u.find_spec('torch')"])[0] != 0:
        skip("pytorch-ddp", "no torch (Debian: python3-torch)")
        return
    script = sample("pytorch-ddp", ('$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)', "127.0.0.1"))
    job = submitted("pytorch-ddp", script, GLOO_SOCKET_IFNAME="lo")
    yield
    size = sum(os.path.getsize(os.path.join(d, name)) for d, _, names in os.walk(data) for name in names)
    served("pytorch-ddp", job, f"epoch 0 {size}\nepoch 1 {size}\n")
    line = lab().comment(job)
    equal(fields(line).get("nodes"), "2/2", "pytorch-ddp: sacct has sums of both nodes", line)


def adapted_plugstack(name, text):
    """A file for plugstack.conf.d, with the test's places in the place of its own, and what the lab needs besides; and the log that it names."""
    (line,) = [line for line in text.splitlines() if line.startswith("optional ")]
    words = line.split()
    ok(os.path.exists(words[1]), f"{name}: the plugin is where its line says", line)
    here = {"config": lab().config, "state_dir": lab().state, "log": lab().log, "monarchd": lab().monarchd}
    named = dict(word.split("=", 1) for word in words[2:])
    equal(set(named) - set(here), set(), f"{name}: it has only words that the plugin knows")
    if "log" in named:
        here["log"] = scratch(os.path.dirname(named["log"]).lstrip("/")) + "/" + os.path.basename(named["log"])
    return text.replace(line, " ".join([*words[:2], *(f"{key}={here[key]}" for key in {**named, **here})])), here["log"]


@contextlib.contextmanager
def switched_on(name, text):
    """plugstack.conf includes, by the guide's line, a directory with that file alone."""
    (include,) = blocks("doc/admin-guide.md", "plugstack")
    directory = scratch("plugstack.conf.d")
    lines, log = adapted_plugstack(name, text)
    e2e.write(f"{directory}/spank_monarch.conf", lines)
    path, own_log = f"{os.path.dirname(lab().conf)}/plugstack.conf", lab().log
    before = e2e.text_in(path)
    e2e.write(path, include.replace("/etc/slurm/plugstack.conf.d", directory))
    lab().log = log
    try:
        yield
    finally:
        lab().log = own_log
        e2e.write(path, before)


def installed(path):
    return e2e.text_in(f"{lab().prefix}/share/monarch/{path}")


def plugstack():
    """The line that is installed for plugstack.conf, which the guide shows."""
    text = installed("plugstack.conf.d/spank_monarch.conf")
    (shown,) = blocks("doc/admin-guide.md", "plugstack", "checked")
    here = shown.replace("/usr/lib/", f"{lab().prefix}/lib/").replace("/etc/", f"{lab().prefix}/etc/")
    equal([line for line in text.splitlines(keepends=True) if not line.startswith("#")], [here], "the guide shows the line of plugstack.conf that is installed")
    with switched_on("plugstack.conf.d", text):
        served("plugstack", submitted("plugstack", f"#!/bin/bash\n#SBATCH --monarch-dataset={make_data()}\npython3 train.py {data}\n"), expected)


def site(name, medium, path, *options):
    """A job of a cluster with a sample's two files: what differs are the places."""
    config = text_of(f"etc/sites/{name}/monarch.conf")
    lab().configure(adapted(config.replace("path = " + path, f"path = {lab().tier}") + "# /lustre/imagenet\n"))
    try:
        with switched_on(name, installed(f"sites/{name}/plugstack.conf")):
            job = submitted(name, f"#!/bin/bash\n#SBATCH --monarch-dataset={data}\npython3 train.py {data}\n", *options)
            served(name, job, expected, medium)
    finally:
        lab().configure()


def site_nvme():
    site("exclusive-nvme", "nvme", "/scratch", "--exclusive")


def site_ssd():
    site("shared-ssd", "ssd", "/local")


@e2e.unless(lambda: not os.path.isdir("/sys/fs/cgroup/memory") and not os.path.exists("/sys/fs/cgroup/memory.max") and "no control groups count memory here")
def site_ram():
    return site("diskless-ram", "ram", "/var/lib/monarch", "--mem=400M")


def leaves_nothing():
    lab().nothing_left("all jobs of the guides")


e2e.skip_all_if("shells do not bear the sanitizer's runtime" if "tsan" in e2e.SANITIZER else "")
# A job of a moment is served only where no other has reserved the tier: smoke is the first.
WITH_SLURM = (smoke, for_users, pytorch_ddp, first_job, status, by_default, week, container, wait, salloc, plugstack, site_nvme, site_ssd, site_ram, leaves_nothing)
if why := slurm_lab.why_no_slurm():
    for test in WITH_SLURM:
        skip(test.__name__, why)
    WITH_SLURM = ()
e2e.main(first_use, plan, tier_directory, look, policies, sites, for_admins, without_slurm, *WITH_SLURM)
