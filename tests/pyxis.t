#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""Jobs of a real Slurm in containers of the real pyxis and enroot. By our hook they are served like others, wherever the
dataset is mounted and whichever plugin comes first; without it they read the PFS.

MONARCH_TEST_CONTAINERS is the directory in which both are installed: bin/enroot, lib/spank_pyxis.so.
"""

import os
import shlex
import shutil
import subprocess

import e2e
import images
import slurm_lab
from e2e import contains, equal, scratch, skip

PREFIX = os.environ.get("MONARCH_TEST_CONTAINERS", "")
READ = "cd {} && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum"
cluster = data = pfs = None


def why_not():
    if not PREFIX:
        return "MONARCH_TEST_CONTAINERS names no directory with enroot and pyxis"
    for file in "bin/enroot", "lib/spank_pyxis.so":
        if not os.access(f"{PREFIX}/{file}", os.R_OK):
            return f"there is no {PREFIX}/{file}"
    if not shutil.which("mksquashfs"):
        return "no mksquashfs (squashfs-tools)"
    return slurm_lab.why_no_slurm() or e2e.why_no_slowfs()


def squashed(image):
    """The image as a file for --container-image."""
    if not os.path.lexists(f"{image}/var/run"):
        os.makedirs(f"{image}/var", exist_ok=True)
        os.symlink("../run", f"{image}/var/run")
    subprocess.run(["chmod", "-R", "a+rX", image], check=True)
    subprocess.run(["mksquashfs", image, f"{image}.sqsh", "-noappend", "-quiet", "-no-progress", "-comp", "zstd"],
                   stdout=subprocess.DEVNULL, check=True)
    return f"{image}.sqsh"


def start(*order):
    """The cluster, with pyxis before or behind Monarch, and users' directories for enroot."""
    pyxis = f"required {PREFIX}/lib/spank_pyxis.so runtime_path={scratch('pyxis')}"
    cluster.before, cluster.after = ([pyxis], []) if order[0] == "pyxis" else ([], [pyxis])
    cluster.path = f"{PREFIX}/bin"
    cluster.up("--nodes", "1", "--prolog-flags", "Contain")
    for name in "run", "config/enroot/hooks.d":
        os.makedirs(f"{cluster.out}/{name}", exist_ok=True)
    subprocess.run(["chown", "-R", f"{cluster.user.pw_uid}:{cluster.user.pw_gid}", f"{cluster.out}/run", f"{cluster.out}/config"], check=True)


def hook(installed):
    """As in enroot's own hooks.d, but for this user only."""
    place = f"{cluster.out}/config/enroot/hooks.d/50-monarch.sh"
    if os.path.lexists(place):
        os.unlink(place)
    if installed:
        os.symlink(f"{cluster.prefix}/share/monarch/enroot/50-monarch.sh", place)


def submit(steps, *options, before=""):
    """A job of such steps; its id, once it has ended."""
    script = "\n".join(["set -e", before, *(f"srun -Q {step}" for step in steps)])
    job = cluster.submit(options, script, env={"XDG_RUNTIME_DIR": f"{cluster.out}/run", "XDG_CONFIG_HOME": f"{cluster.out}/config"})
    return job, cluster.wait(job)


def step(mounts, where, *words, image=None):
    binds = ",".join(":".join(words) for words in mounts)
    return shlex.join([*([f"--container-image={image}"] if image else []), "--no-container-mount-home", *words,
                       *([f"--container-mounts={binds}"] if binds else []), "sh", "-c", READ.format(where)])


def want():
    return data.sums.replace(f"{data.path}/".encode(), b"./")


def served(name, steps, opens=None, before=""):
    """A job of such steps, each of which reads all."""
    pfs.command("reset")
    job, state = submit(steps, f"--monarch-dataset={pfs.mount}", before=before)
    equal((state, cluster.output(job)), ("COMPLETED", want() * len(steps)), f"{name}: right bytes", cluster.log_of(job))
    equal(pfs.counters()["open"], data.FILES if opens is None else opens, f"{name}: each file was opened once on the PFS")
    line = slurm_lab.fields(cluster.comment(job))
    equal((line.get("hit"), line.get("err")), ("100.0%", "0"), f"{name}: all is served, as sacct tells", line, cluster.log_of(job))
    cluster.nothing_left(name)
    return job


def all_mounts(image):
    root, above = pfs.mount, os.path.dirname(pfs.mount)
    below = f"/mnt/{os.path.basename(root)}"
    return [step([(root, root)], root, image=image), step([(root, root, "ro")], root, image=image),
            step([(root, "/data")], "/data", image=image), step([(root, "/data", "ro")], "/data", image=image),
            step([(root, "/data")], "/data", "--container-remap-root", image=image), step([(root, "/data")], "/data", "--container-readonly", image=image),
            # at two paths
            step([(above, above), (root, "/data")], "/data", image=image), step([(above, above)], root, image=image), step([(above, "/mnt", "ro")], below, image=image),
            # made by the first, begun again by the next
            step([(root, root)], root, "--container-name=kept", image=image), step([(root, "/data")], "/data", "--container-name=kept")]


def either_order():
    image = squashed(images.glibc_image("glibc"))
    for order in ("pyxis", "monarch"), ("monarch", "pyxis"):
        name = f"{order[0]} first"
        start(*order)
        hook(True)
        served(name, all_mounts(image))
        whole_script(name, image)
        root_file_system(name, image)
        another_container(name, image)
        another_libc(name)
        no_hook(name, image, order)
        refused(name, image)
        parts(name, image)
        ends_while_written(name, image)
    by_enroot(image)
    debian()


def whole_script(name, image):
    """sbatch --container-image: the script itself is in the container."""
    job = cluster.submit([f"--monarch-dataset={pfs.mount}", f"--container-image={image}", "--no-container-mount-home",
                          f"--container-mounts={pfs.mount}:/data"], f"for i in 1 2; do ({READ.format('/data')}); done",
                         env={"XDG_RUNTIME_DIR": f"{cluster.out}/run", "XDG_CONFIG_HOME": f"{cluster.out}/config"})
    equal((cluster.wait(job), cluster.output(job)), ("COMPLETED", 2 * want()), f"{name}: a script in a container: right bytes", cluster.log_of(job))
    line = slurm_lab.fields(cluster.comment(job))
    equal((line.get("hit"), line.get("err")), ("100.0%", "0"), f"{name}: a script in a container: all is served", line)


def another_container(name, image):
    """A step that joins the container of one that runs: it is served, too."""
    mounts = f"--container-image={image} --no-container-mount-home --container-name=shared --container-mounts={pfs.mount}:/data"
    env = {"XDG_RUNTIME_DIR": f"{cluster.out}/run", "XDG_CONFIG_HOME": f"{cluster.out}/config"}
    command, wait = shlex.quote(READ.format("/data")), " ".join(map(str, range(300)))
    script = f"srun -Q --overlap {mounts} sh -c '>{{0}}.began; for n in {wait}; do test -e {{0}}.go || sleep 0.1; done' & " \
             f"for n in {wait}; do test -e {{0}}.began || sleep 0.1; done; " \
             f"srun -Q --overlap --container-name=shared sh -c {command}; >{{0}}.go; wait"
    file = f"{cluster.out}/{name.replace(' ', '-')}"
    job = cluster.submit([f"--monarch-dataset={pfs.mount}"],
                         script.format(file).replace(f"{pfs.mount}:/data", f"{pfs.mount}:/data,{cluster.out}:{cluster.out}"), env=env)
    equal((cluster.wait(job), cluster.output(job)), ("COMPLETED", want()), f"{name}: a step that joins a container: right bytes", cluster.log_of(job))
    equal(slurm_lab.fields(cluster.comment(job)).get("hit"), "100.0%", f"{name}: a step that joins a container: all is served", cluster.log_of(job))
    subprocess.run(["sh", "-c", f"rm -rf {cluster.out}/.local/share/enroot/*_shared"], check=True)


def tree(name):
    """Of a container's root file system what is there."""
    top = f"{cluster.out}/.local/share/enroot/{name}"
    found = subprocess.run(["find", top, "-printf", "%P %y %s %M %U %l\n"], stdout=subprocess.PIPE, check=True).stdout.decode()
    return sorted(line for line in found.splitlines() if " d " not in line), sorted(line.split()[0] for line in found.splitlines() if " d " in line)


def root_file_system(name, image):
    """With Monarch nothing is in it that would not be without."""
    found = []
    for options in [], [f"--monarch-dataset={pfs.mount}"]:
        job, state = submit([step([(pfs.mount, "/data")], "/data", "--container-name=root", image=image)], *options)
        equal((state, cluster.output(job)), ("COMPLETED", want()), f"{name}: a root file system to look at")
        [own] = [entry for entry in os.listdir(f"{cluster.out}/.local/share/enroot") if entry.endswith("_root")]
        found.append(tree(own))
        subprocess.run(["rm", "-rf", f"{cluster.out}/.local/share/enroot/{own}"], check=True)
    equal(found[1], found[0], f"{name}: nothing is written to it")


@e2e.unless(images.why_no_musl)
def another_libc(name):
    image = squashed(images.with_shell(images.musl_image(f"musl-{cluster.before != []}")))
    files = sorted(os.path.join(d, file) for d, _, names in os.walk(pfs.mount) for file in names if not file.startswith(".slowfs"))
    script = f"--container-image={image} --no-container-mount-home --container-mounts={pfs.mount}:{pfs.mount} /bin/cat {shlex.join(files)}"
    job, state = submit([script], f"--monarch-dataset={pfs.mount}")
    native = b""
    for file in files:
        native += e2e.bytes_in(file)
    lines = cluster.output(job)
    own = b"".join(line for line in lines.splitlines(True) if line.startswith(b"monarch: "))
    equal((state, lines.replace(own, b"") == native), ("COMPLETED", True), f"{name}: an image with musl: right bytes", lines[:500])
    return cluster.nothing_left(f"{name}: an image with musl")


def no_hook(name, image, order):
    """Right bytes, and the user is told, where the plugin can know."""
    hook(False)
    job, state = submit([step([(pfs.mount, pfs.mount)], pfs.mount, image=image)] * 2, f"--monarch-dataset={pfs.mount}")
    hook(True)
    lines = cluster.output(job).splitlines(True)
    equal((state, b"".join(line for line in lines if not line.startswith((b"monarch: ", b"ERROR: ld.so: ")))), ("COMPLETED", 2 * want()),
          f"{name}: without the hook: right bytes", lines)
    if order[0] == "pyxis":
        told = [line for line in lines if line.startswith(b"monarch: ")]
        equal(len(told), 1, f"{name}: without the hook: told once", lines)
        contains(told[0].decode(), ["container"], f"{name}: without the hook: why")
        equal([line for line in lines if b"ld.so" in line], [], f"{name}: without the hook: the linker looks for nothing")


def refused(name, image):
    """A step that is to go without."""
    script = "--no-monarch " + step([(pfs.mount, pfs.mount)], pfs.mount, image=image)
    job, state = submit([script], f"--monarch-dataset={pfs.mount}")
    equal((state, cluster.output(job)), ("COMPLETED", want()), f"{name}: --no-monarch in a step: right bytes")
    job, state = submit([f"--no-monarch --container-image={image} --no-container-mount-home env"], f"--monarch-dataset={pfs.mount}")
    found = [line for line in cluster.output(job).decode().splitlines() if line.startswith("MONARCH_IO_RUN_DIR=") or "libmonarch" in line]
    equal((state, found), ("COMPLETED", []), f"{name}: --no-monarch in a step: it has nothing of Monarch")


def parts(name, image):
    """Parts of the dataset, alone or in each other's places: what the container shows is what is read."""
    root = pfs.mount
    steps = [step(mounts, where, image=image) for mounts, where in (
        ([(f"{root}/a", f"{root}/a")], f"{root}/a"), ([(f"{root}/a", "/data/a")], "/data"), ([(f"{root}/b", f"{root}/a")], f"{root}/a"),
        ([(root, root), (f"{root}/b", f"{root}/a")], root), ([(root, "/data"), (f"{root}/0000.bin", "/data/0004.bin")], "/data"))]
    native, _ = submit([f"--no-monarch {words}" for words in steps], f"--monarch-dataset={root}")
    job, state = submit([words for words in steps for _ in range(2)], f"--monarch-dataset={root}")
    def of_steps(number):
        """What each printed: a step's first line is of its first file."""
        return sorted(cluster.output(number).splitlines())
    equal((state, of_steps(job)), ("COMPLETED", sorted(2 * of_steps(native))), f"{name}: parts of the dataset: right bytes", cluster.output(native))
    cluster.nothing_left(f"{name}: parts of the dataset")


def ends_while_written(name, image):
    """What runs in a container writes where it may of Monarch's, while its step or its job ends."""
    loop = "n=0; while :; do n=$((n+1)); for d in $MONARCH_IO_RUN_DIR /var/run/monarch.*/*; do { mkdir $d/$n; >$d/$n.file; } 2>/dev/null; done; done"
    for how, rest in ("its step ends", "sleep 1"), ("it is cancelled", "sleep 600"):
        begun = f"{cluster.out}/begun.{how.split()[-1]}"
        words = shlex.join([f"--container-image={image}", "--no-container-mount-home", f"--container-mounts={pfs.mount}:/data,{cluster.out}:{cluster.out}",
                            "sh", "-c", f"(( {loop} ) </dev/null >/dev/null 2>&1 & ); {READ.format('/data')}; >{begun}; {rest}"])
        job = cluster.submit([f"--monarch-dataset={pfs.mount}"], f"srun -Q {words}",
                             env={"XDG_RUNTIME_DIR": f"{cluster.out}/run", "XDG_CONFIG_HOME": f"{cluster.out}/config"})
        cluster.wait_running(job, os.path.basename(begun))
        if how == "it is cancelled":
            cluster.execute(["scancel", str(job)])
        cluster.wait(job)
        lines = [line for line in cluster.output(job).splitlines(True) if b"  ./" in line]
        equal(b"".join(lines), want(), f"{name}: written while {how}: right bytes", cluster.log_of(job))
        cluster.nothing_left(f"{name}: written while {how}")
        os.unlink(begun)


def by_enroot(image):
    """enroot itself, in a job's script."""
    pfs.command("reset")
    script = (f"set -e; export PATH=$PATH:{PREFIX}/bin; enroot create --name own {image} >/dev/null 2>&1; "
              f"for i in 1 2; do enroot start --mount {pfs.mount}:/data own sh -c {shlex.quote(READ.format('/data'))}; done; enroot remove -f own")
    job = cluster.submit([f"--monarch-dataset={pfs.mount}"], script, env={
        "XDG_RUNTIME_DIR": f"{cluster.out}/run", "XDG_CONFIG_HOME": f"{cluster.out}/config"})
    equal((cluster.wait(job), cluster.output(job)), ("COMPLETED", 2 * want()), "enroot in a script: right bytes", cluster.log_of(job))
    equal(pfs.counters()["open"], data.FILES, "enroot in a script: each file was opened once on the PFS")
    line = slurm_lab.fields(cluster.comment(job))
    equal((line.get("hit"), line.get("err")), ("100.0%", "0"), "enroot in a script: all is served", line)
    cluster.nothing_left("enroot in a script")


def debian():
    """The image that comes with them, if it is there."""
    image = f"{PREFIX}/debian.sqsh"
    if not os.path.exists(image):
        return skip("a whole Debian", f"there is no {image}")
    return served("a whole Debian", [step([(pfs.mount, "/data")], "/data", image=image)] * 2)


def containers():
    global cluster, data, pfs
    cluster = slurm_lab.Cluster()
    data = slurm_lab.Dataset(scratch("shared"))
    pfs = e2e.SlowFs(data.path, f"{scratch('shared')}/pfs")
    try:
        either_order()
    finally:
        pfs.close()


e2e.skip_all_if(why_not())
e2e.main(containers)
