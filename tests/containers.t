#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""Jobs whose programs run in containers: with the arguments that `monarchctl container-args` prints they are served like others, whatever
is mounted where, and the image stays as it is."""

import functools
import glob
import json
import os
import re
import resource
import shlex
import shutil
import subprocess

import e2e
import images
import slurm_lab
from e2e import BUILD, equal, ok, options, scratch, skip

FILES = 30
# In the container: what of the dataset is where.
READ = "find {} -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum | md5sum"
# Podman's crun refuses control groups of both versions beside each other, and limits that are higher than who starts it has.
ONE_VERSION = ["unshare", "--mount", "--cgroup", "sh", "-c",
               'umount -l /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && exec "$@"', "sh"]
LIMITS = [f"--ulimit={name}={limit}:{limit}" for name, kind, most in (("nofile", resource.RLIMIT_NOFILE, 20000), ("nproc", resource.RLIMIT_NPROC, 1000))
          for limit in [min([own for own in resource.getrlimit(kind)[1:] if own != resource.RLIM_INFINITY] + [most])]]
# dev/apptainer installs one where Debian has none.
APPTAINER = os.environ.get("MONARCH_TEST_APPTAINER") or "apptainer"
# Each makes a command of the image's directory, arguments and a command in it.
TOOLS = {
    # Not with all capabilities: a machine may lack some.
    "apptainer": lambda image, more, command: [APPTAINER, "--quiet", "exec", "--no-privs", *more, image, *command],
    "bwrap": lambda image, more, command: ["bwrap", "--bind", image, "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/run", *more, *command],
    "charliecloud": lambda image, more, command: ["ch-run", "--write", *more, image, "--", *command],
    "podman": lambda image, more, command: [*(ONE_VERSION if os.path.isdir("/sys/fs/cgroup/unified") else []), "podman", "run", "--rm",
                                            "--network=none", "--cgroups=disabled", *LIMITS, "--rootfs", *more, image, *command],
}


def mounted(tool, source, point):
    """Arguments that mount a directory in the container."""
    if tool == "bwrap":
        return ["--ro-bind", source, point]
    return [("--volume=" if tool == "podman" else "--bind=") + f"{source}:{point}"]


@functools.cache
def data():
    """A dataset, in a directory of its own."""
    root = scratch("shared/data")
    e2e.make_tree(root, FILES)
    subprocess.run(["chmod", "-R", "a+rX", scratch("shared")], check=True)
    return root


def environment():
    return e2e.environment(USER="root", HOME="/root")


@functools.cache
def why_not(tool):
    """Why this machine runs no container of the tool's, if so."""
    if e2e.SANITIZER:
        return "the image has no runtime of sanitizers"
    command = TOOLS[tool](images.glibc_image(f"probe-{tool}"), [], ["true"])
    program = {"charliecloud": "ch-run", "apptainer": APPTAINER}.get(tool, tool)
    if not shutil.which(program):
        return f"no {program}"
    code, _, err = e2e.execute(command, env={**environment(), "LD_PRELOAD": ""})
    return "" if code == 0 else f"it runs no container here: {(err.strip().splitlines() or [code])[-1]}"


def arguments(job, tool):
    code, out, err = job.run([f"{BUILD}/monarchctl", "container-args", tool])
    if code != 0:
        raise RuntimeError(f"container-args {tool}: {err}")
    words = out.decode().split()
    equal(json.loads(job.run([f"{BUILD}/monarchctl", "container-args", "--json", tool])[1]), words, f"{tool}: the same as JSON")
    return words


def in_container(tool, image, mounts, where):
    """Reads the dataset in the container, twice; the last output, the report, and that of a native container."""
    command = ["sh", "-c", READ.format(where)]
    words = [word for source, point in mounts for word in mounted(tool, source, point)]
    native = e2e.execute(TOOLS[tool](image, words, command), env={**environment(), "LD_PRELOAD": ""})
    before = listing(image)
    job = e2e.Job(options([data()], {"t": (scratch("tier"), "1G")}), USER="root", HOME="/root")
    shown = arguments(job, tool)
    for _ in range(2):
        result = job.run(TOOLS[tool](image, [*words, *shown], command))
    return result, job.end(), native, (before, listing(image))


def listing(image):
    """Files of an image; a tool makes directories and empty files in it to mount on."""
    return sorted((os.path.relpath(f"{d}/{name}", image), os.lstat(f"{d}/{name}").st_size)
                  for d, _, names in os.walk(image) for name in names if os.lstat(f"{d}/{name}").st_size)


def check_served(name, found):
    result, report, native, (before, after) = found
    equal(result, native, f"{name}: as natively", result[2])
    equal((report["opens_tier"], report["tasks"]["opens_pfs"]), (2 * FILES, 0), f"{name}: all is served", report["tasks"])
    equal(report["agent"]["agent_opens_pfs"], FILES, f"{name}: the PFS saw each file opened once")
    equal(after, before, f"{name}: nothing is written to the image")


def tool_test(tool):
    def test():
        if reason := why_not(tool):
            return skip(f"{tool}: containers", reason)
        image, root, above = images.glibc_image(tool), data(), os.path.dirname(data())
        for what, source, point, where in (("at its path", root, root, root), ("at another path", root, "/data", "/data"),
                                           ("at another path below a larger mount", above, "/mnt",
                                            f"/mnt/{os.path.basename(root)}")):
            check_served(f"{tool}, {what}", in_container(tool, image, [(source, point)], where))
        return apptainer_by_environment() if tool == "apptainer" else None
    test.__name__ = tool
    return test


bubblewrap, charliecloud, podman, apptainer = map(tool_test, ("bwrap", "charliecloud", "podman", "apptainer"))


def apptainer_by_environment():
    """The same by variables, as doc/slurm.md has it, with --cleanenv."""
    image, root = images.glibc_image("apptainer-env"), data()
    command = ["sh", "-c", READ.format("/data")]
    plain = TOOLS["apptainer"](image, [], command)
    native = e2e.execute(plain, env={**environment(), "LD_PRELOAD": "", "APPTAINER_BIND": f"{root}:/data"})
    job = e2e.Job(options([root], {"t": (scratch("tier"), "1G")}), USER="root", HOME="/root")
    bind = arguments(job, "apptainer")[0].removeprefix("--bind=")
    shown = {"APPTAINER_BIND": f"{bind},{root}:/data", "APPTAINERENV_LD_PRELOAD": job.env[b"LD_PRELOAD"].decode()}
    shown["APPTAINERENV_MONARCH_IO_RUN_DIR"] = job.run_dir
    variables = {key.encode(): value.encode() for key, value in shown.items()}
    got = e2e.execute(TOOLS["apptainer"](image, ["--cleanenv"], command), env={**job.env, **variables})
    equal(got, native, "apptainer by its environment: as natively")
    report = job.end()
    equal((report["opens_tier"], report["tasks"]["opens_pfs"]), (FILES, 0), "apptainer by its environment: all is served")


IMAGES = sorted(glob.glob(f"{os.environ.get('MONARCH_TEST_IMAGES') or '/none'}/*/"))


@e2e.unless(lambda: not IMAGES and "no MONARCH_TEST_IMAGES names a directory with root file systems", lambda: why_not("bwrap"))
def other_glibcs():
    """Root file systems with a glibc older, or newer, than this machine's."""
    root = data()
    for image in IMAGES:
        libc, = glob.glob(f"{image}/lib/*-linux-gnu/libc.so.6") or glob.glob(f"{image}/lib*/libc.so.6")
        release = re.search(rb"stable release version ([0-9.]+)[.]", e2e.bytes_in(libc))[1].decode()
        check_served(f"an image with glibc {release}", in_container("bwrap", image, [(root, "/mnt")], "/mnt"))


def for_tools_that_are_not_here():
    """Only what is printed is looked at."""
    job = e2e.Job(options([data()], {"t": (scratch("tier"), "1G")}))
    tier, = glob.glob(f"{scratch('tier')}/monarch-run.*.{job.pid}.*")
    library = re.search(r"[^: ]+/libmonarch_preload.so", job.env[b"LD_PRELOAD"].decode())[0]
    binds = f"{job.run_dir}:{job.run_dir},{library}:{library}:ro,{tier}:{tier}:ro"
    equal(arguments(job, "pyxis"), [f"--container-mounts={binds}"], "pyxis: its argument")
    equal(arguments(job, "apptainer"), [f"--bind={binds}", "--env=LD_PRELOAD=" + job.env[b"LD_PRELOAD"].decode()], "apptainer: its arguments")
    equal(arguments(job, "enroot"), [*("--mount=" + bind for bind in binds.split(",")), "--env=LD_PRELOAD", "--env=MONARCH_IO_RUN_DIR"],
          "enroot: its arguments")
    job.end()


@e2e.unless(slurm_lab.why_no_slurm, lambda: why_not("bwrap"))
def in_slurm():
    """A job of Slurm's, whose script starts containers."""
    cluster = slurm_lab.Cluster()
    cluster.up("--nodes", "1", "--prolog-flags", "Contain")
    image, root = images.glibc_image("slurm-image"), data()
    subprocess.run(["chmod", "-R", "a+rX", image], check=True)
    program = f"{cluster.prefix}/bin/monarchctl"
    places = " ".join(f"--tmpfs /{name}" for name in ("var", "home", "root"))
    lib = " ".join(f"--ro-bind {image}/{name} /{name}" for name in sorted(os.listdir(image)) if name.startswith("lib"))
    command = f"bwrap --tmpfs / --ro-bind {image}/usr /usr --symlink usr/bin /bin {lib} --proc /proc --dev /dev {places}"
    script = f"set -e; for i in 1 2; do {command} --ro-bind {root} {root} $({program} container-args bwrap) sh -c '{READ.format(root)}'; done"
    job = cluster.submit([f"--monarch-dataset={root}"], script)
    equal(cluster.wait(job), "COMPLETED", "in Slurm: how the job ends", cluster.output(job))
    native = e2e.execute(["sh", "-c", READ.format(root)])[1]
    equal(cluster.output(job), 2 * native, "in Slurm: as natively")
    ok(cluster.is_served(job), "in Slurm: all is served, as sacct shows it", cluster.why(job))
    return cluster.nothing_left("in Slurm")


def bounded_run_directory(cluster, root):
    """Slurm made the job's namespace before the run directory was mounted: its tasks, in each step, see that file system all the same, and
    fill it alone."""
    cluster.configure(f"[agent]\nrun_size = 16M\n[tier.own]\npath = {cluster.tier}\nquota = 64M\nmedium = ram\n")
    look = "; ".join(("echo $(stat -f -c %T $MONARCH_IO_RUN_DIR) $(df --output=size -k $MONARCH_IO_RUN_DIR | tail -n 1) $(stat -c %U $MONARCH_IO_RUN_DIR)",
                      'grep -c " $MONARCH_IO_RUN_DIR " /proc/self/mountinfo', READ.format(root),
                      'head -c 64M /dev/zero 2>&1 >$MONARCH_IO_RUN_DIR/told | grep -c "No space left"', ": >$MONARCH_IO_RUN_DIR/told"))
    job = cluster.submit([f"--monarch-dataset={root}"], f"{look}; srun -Q sh -c {shlex.quote(look)}")
    native = e2e.execute(["sh", "-c", READ.format(root)])[1].decode()
    equal(cluster.wait(job), "COMPLETED", "job_container/tmpfs, run_size: how the job ends", cluster.output(job))
    equal(cluster.output(job).decode(), 2 * f"tmpfs 16384 root\n1\n{native}1\n", "job_container/tmpfs: the run directory is a file system of run_size")
    ok(cluster.is_served(job), "job_container/tmpfs, run_size: all is served, and counted", cluster.why(job))


def shown_elsewhere(directory):
    """Whether its file system is mounted at another place, too, as for a chroot of another test's: a job finds a tier there."""
    st = os.stat(directory)
    device = f"{os.major(st.st_dev)}:{os.minor(st.st_dev)}"
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        return sum(line.split()[2] == device for line in file) > 1


def own_mounts():
    """Slurm gives each job its own /tmp and /dev/shm: what its programs do not see of datasets and tiers the job is told, once."""
    reason = slurm_lab.why_no_slurm()
    memory = e2e.memory("tier")
    if reason or not memory:
        return skip("job_container/tmpfs", reason or "no /dev/shm")
    cluster, root = slurm_lab.Cluster(name="own"), data()
    if cluster.prefix.startswith("/tmp/"):
        return skip("job_container/tmpfs", "Monarch is installed in /tmp, which jobs do not see then")
    os.chmod(memory, 0o1777)
    cluster.up("--nodes", "1", "--prolog-flags", "Contain", "--job-container", "tmpfs")
    bounded_run_directory(cluster, root)
    script = f"srun -Q sh -c '{READ.format(root)}'; {READ.format(root)}"
    native = e2e.execute(["sh", "-c", READ.format(root)])[1]
    for tier, told in (cluster.tier, 0), (memory, 1):
        cluster.configure(f"[tier.own]\npath = {tier}\nquota = 64M\nmedium = ram\n")
        job = cluster.submit([f"--monarch-dataset={root}"], script)
        name = f"job_container/tmpfs, {'a tier that is hidden' if told else 'all is seen'}"
        equal(cluster.wait(job), "COMPLETED", f"{name}: how the job ends", cluster.output(job))
        lines = cluster.output(job).splitlines(True)
        said = [line.decode() for line in lines if line.startswith(b"monarch: ")]
        equal(b"".join(line for line in lines if not line.startswith(b"monarch: ")), 2 * native, f"{name}: right bytes")
        equal([line.split("do not see ")[1].startswith(f"{tier}/") for line in said], [True] * told, f"{name}: told once", said)
        log = cluster.log_of(job)
        if not told or not shown_elsewhere(memory):
            ok("monarch=1 hit=0.0% " in log if told else cluster.is_served(job), f"{name}: what is served", cluster.why(job))
    return cluster.nothing_left("job_container/tmpfs", memory)


@e2e.unless(slurm_lab.why_no_slurm)
def mounts_that_stay():
    """A process that outlives its job has mounted something over all of the job's directories, and holds that."""
    cluster, root = slurm_lab.Cluster(name="stay"), data()
    cluster.up("--nodes", "1", "--prolog-flags", "Contain")
    mounts = ('for d in "$(tail -n 1 $MONARCH_IO_RUN_DIR/directories)" "$MONARCH_IO_RUN_DIR"; do mount -t tmpfs none $d; done; set -- $(grep -c /lab[.] /proc/self/mountinfo); echo $$ $1 >held; exec sleep 600')
    script = (f"{READ.format(root)}; (setsid env MONARCH_IO_DISABLE=1 unshare --user --map-root-user --mount sh -ec '{mounts}' </dev/null >/dev/null 2>&1 &); "
              f"for n in $(seq 300); do [ -s held ] && break; sleep 0.1; done; {READ.format(root)}")
    job = cluster.submit([f"--monarch-dataset={root}"], script)
    equal(cluster.wait(job), "COMPLETED", "mounts that outlive a job: how it ends", cluster.output(job))
    equal(cluster.output(job), 2 * e2e.execute(["sh", "-c", READ.format(root)])[1], "mounts that outlive a job: right bytes")
    cluster.nothing_left("mounts that outlive a job")
    holder, mounted = map(int, e2e.text_in(f"{cluster.out}/held").split())
    ok(mounted >= 2 and os.path.exists(f"/proc/{holder}"), "mounts that outlive a job: there were some, and who held them lives", mounted)
    os.kill(holder, 9)


e2e.skip_all_if(e2e.why_not_root())
e2e.main(bubblewrap, charliecloud, podman, apptainer, other_glibcs, for_tools_that_are_not_here, in_slurm, own_mounts,
         mounts_that_stay)
