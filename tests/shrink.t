#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Root takes a part of a tier back from a running job, and gives it again: the agent removes copies and stages them again, and programs
read right bytes all the while."""

import glob
import json
import os
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import e2e  # pylint: disable=wrong-import-position
from e2e import BUILD, equal, ok, scratch, wait_until  # pylint: disable=wrong-import-position

PYTHON = "/usr/bin/python3"
MIB = 1 << 20
HELD = 30  # files that a reader has open or mapped, at most

# Reads until a file says that it is enough, each time a file by another way: opened anew, by a stream, kept open, kept mapped. What it
# finds must be what the list of files says, which was made natively. Says what it has read, and what was wrong.
READER = """
import hashlib, json, mmap, os, random, sys, time
files = json.load(open(sys.argv[1]))
end, numbers = sys.argv[2], random.Random(int(sys.argv[3]))
names, kept, maps, wrong, reads = sorted(files), {}, {}, [], 0

def digest(data): return hashlib.blake2b(data).hexdigest()
def check(name, what, got, place):
    if got != files[name][place]: wrong.append((what, name, got, files[name][place]))
def look(name, fd, what):
    st = os.fstat(fd)
    check(name, 'fstat of ' + what, [st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns, st.st_nlink], 0)
def whole(name, fd, what):
    parts, at, size = [], 0, files[name][0][2]
    while at < size:
        part = os.pread(fd, 300000, at)
        if not part: break
        parts.append(part)
        at += len(part)
    check(name, what, digest(b''.join(parts)), 1)
def anew(name):
    fd = os.open(name, os.O_RDONLY)
    look(name, fd, 'a new one')
    data = []
    while part := os.read(fd, 300000): data.append(part)
    check(name, 'read', digest(b''.join(data)), 1)
    look(name, fd, 'one that was read')
    os.close(fd)
def stream(name):
    with open(name, 'rb') as file: check(name, 'a stream', digest(file.read()), 1)
def keep(name):
    if len(kept) > 20: os.close(kept.pop(numbers.choice(sorted(kept))))
    if name not in kept: kept[name] = os.open(name, os.O_RDONLY)
    whole(name, kept[name], 'one that is kept')
    look(name, kept[name], 'one that is kept')
def kept_map(name):
    if len(maps) > 5: maps.pop(numbers.choice(sorted(maps))).close()
    if name not in maps:
        fd = os.open(name, os.O_RDONLY)
        maps[name] = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        os.close(fd)
    check(name, 'a map', digest(maps[name]), 1)

while not os.path.exists(end):
    try:
        numbers.choice([anew, anew, stream, keep, kept_map])(numbers.choice(names))
        reads += 1
    except Exception as error: wrong.append(('error', repr(error)))
print(json.dumps([reads, wrong[:5], len(wrong)]))
"""


def native(path):
    """What a reader must find: values and a checksum."""
    st = os.stat(path)
    with open(path, "rb") as file:
        sum_of = subprocess.run(["b2sum"], stdin=file, stdout=subprocess.PIPE, check=True).stdout.split()[0].decode()
    return [[st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns, st.st_nlink], sum_of]


class Agent:
    """monarchd with a file of quotas, as root starts it for a job."""

    def __init__(self, name, data, quota, *words, conf=""):
        self.dir = scratch(name)
        self.tier, self.run_dir, self.grants = (f"{self.dir}/{part}" for part in ("tier", "run", "grants"))
        os.mkdir(self.tier)
        os.mkdir(self.run_dir, 0o700)
        with open(f"{self.dir}/conf", "w", encoding="utf-8") as file:
            file.write(f"[agent]\n{conf}[tier.ssd]\npath = {self.tier}\nquota = {quota}\nmin_free = 0\n")
        (lifeline, self._held), (read, write) = os.pipe(), os.pipe()
        self._process = e2e.start(
            [f"{BUILD}/monarchd", "--config", f"{self.dir}/conf", "--dataset", data, "--run-dir", self.run_dir, "--job-dir", "job", "--grants",
             self.grants, "--ready-fd", str(write), "--lifeline-fd", str(lifeline), *words],
            pass_fds=[write, lifeline], env=e2e.native_environment(**e2e.sanitizer_log()))
        os.close(lifeline)
        os.close(write)
        with os.fdopen(read, encoding="utf-8") as said:
            answer = said.readline()
        if answer != "ready\n":
            raise RuntimeError(f"monarchd: {answer}")
        library = ":".join(filter(None, (e2e.SANITIZER, f"{BUILD}/libmonarch_preload.so")))
        self.env = e2e.native_environment(LD_PRELOAD=library, MONARCH_IO_RUN_DIR=self.run_dir, **e2e.sanitizer_log())

    def tell(self, quota):
        with open(f"{self.grants}.new", "w", encoding="utf-8") as file:
            file.write(f"ssd {quota}\n")
        os.rename(f"{self.grants}.new", self.grants)

    def copies(self):
        return [path for path in glob.glob(f"{self.tier}/job/**", recursive=True) if os.path.isfile(path)]

    def used(self):
        """Bytes that its copies occupy by name."""
        blocks = {}
        for path in self.copies():
            try:
                st = os.stat(path)
                blocks[st.st_ino] = st.st_blocks * 512
            except FileNotFoundError:
                pass
        return sum(blocks.values())

    def log(self):
        with open(f"{self.run_dir}/monarchd.log", encoding="utf-8") as file:
            return file.read()

    def end(self):
        os.close(self._held)
        code = self._process.wait(e2e.PATIENCE)
        return code, os.path.exists(self.run_dir), os.listdir(self.tier)


def readers_meanwhile():
    """Small files, large ones, hard links, and descriptors and maps that are held, while quotas go down and up."""
    data = scratch("data")
    e2e.make_tree(data, 300)
    for i in range(3):
        with open(f"{data}/large{i}", "wb") as file:
            file.write(os.urandom(5 * MIB + i))
    for name in ("one", "two"):
        os.link(f"{data}/large0", f"{data}/large.{name}")
        os.link(glob.glob(f"{data}/**/0007.bin", recursive=True)[0], f"{data}/{name}")
    old = time.time() - 1000
    paths = [path for path in sorted(glob.glob(f"{data}/**", recursive=True)) if os.path.isfile(path)]
    for path in paths:
        os.utime(path, (old, old))
    files = {path: native(path) for path in paths}
    with open(f"{scratch()}/files.json", "w", encoding="utf-8") as file:
        json.dump(files, file)
    quota = 64 * MIB
    agent = Agent("agent", data, quota, conf="stage_wait_max = 1M\n")
    distinct = len({files[path][0][1] for path in paths if "large" not in path}) + 5  # each name of a large file has a copy
    end = f"{scratch()}/enough"
    readers = [e2e.start([PYTHON, "-c", READER, f"{scratch()}/files.json", end, str(i)], env=agent.env, stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE) for i in range(3)]
    ok(wait_until(lambda: len({os.stat(path).st_ino for path in agent.copies() if os.path.exists(path)}) >= distinct), "all is staged",
       len(agent.copies()), distinct)
    everything = agent.used()
    ok(everything > 15 * MIB, "with its bytes", everything)
    kept = []
    for turn in range(6):
        small = [2 * MIB, 0, 7 * MIB, 64 * 1024, 12 * MIB, MIB][turn]
        agent.tell(small)
        ok(wait_until(lambda: agent.used() <= small), f"no more than {small} bytes have a name", agent.used())  # pylint: disable=cell-var-from-loop
        kept.append(len(agent.copies()))
        agent.tell(quota)
        ok(wait_until(lambda: len(agent.copies()) >= distinct - HELD * len(readers)), "and all comes again that nobody holds",
           len(agent.copies()), distinct)
    ok(any(0 < n < distinct for n in kept), "a part of it stayed at times", kept)
    with open(end, "w", encoding="utf-8"):
        pass
    for reader in readers:
        code, out, err = e2e.finish(reader)
        reads, wrong, _ = json.loads(out) if code == 0 else (0, [err], 1)
        equal((code, wrong), (0, []), "a reader found nothing wrong", err)
        ok(reads > 50, "and has read much", reads)
    ok(wait_until(lambda: agent.used() >= everything), "what was held is staged again once it is closed", agent.used(), everything)
    log = agent.log()
    ok("closed to new copies" not in log and "error" not in log.lower(), "the tier counts as whole", log[-3000:])
    equal(agent.end(), (0, False, []), "nothing is left")
    equal(e2e.sanitizer_found(), "", "no sanitizer found anything")


def held():
    """A copy that a program keeps is given back when it ends, and what it shows does not change."""
    data = scratch("held_data")
    e2e.make_tree(data, 5)
    paths = sorted(path for path in glob.glob(f"{data}/**", recursive=True) if os.path.isfile(path))
    agent = Agent("held", data, MIB)
    ok(wait_until(lambda: len(agent.copies()) == len(paths)), "all is staged")
    program = e2e.start([PYTHON, "-c", e2e.OPENED_AS + """
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
print(opened_as(fd), flush=True)
for line in sys.stdin:
    print(os.pread(fd, 1 << 20, 0) == open(sys.argv[1], 'rb').read(), os.fstat(fd).st_ino == int(line),
          opened_as(os.open(sys.argv[1], os.O_RDONLY)) == sys.argv[1], flush=True)
""", paths[0]], env=agent.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    ok(program.stdout.readline().startswith(agent.tier), "a program has a copy open")
    agent.tell(0)
    ok(wait_until(lambda: not agent.copies()), "all names go, its one after some seconds", agent.copies())

    def shows():
        program.stdin.write(f"{os.stat(paths[0]).st_ino}\n")
        program.stdin.flush()
        return program.stdout.readline()

    equal(shows(), "True True True\n", "it reads on, its fstat is the PFS's, and a new open is the PFS's")
    ok("copies were removed" not in agent.log(), "it counts", agent.log())
    agent.tell(MIB)
    ok(wait_until(lambda: len(agent.copies()) == len(paths) - 1), "all others come again", agent.copies())
    time.sleep(0.3)
    equal(len(agent.copies()), len(paths) - 1, "but not what is still open")
    equal(shows(), "True True True\n", "and it reads on")
    program.stdin.close()
    program.wait(e2e.PATIENCE)
    ok(wait_until(lambda: len(agent.copies()) == len(paths)), "it comes when it is closed", agent.copies(), agent.log())
    equal(agent.end(), (0, False, []), "nothing is left")


e2e.main(readers_meanwhile, held)
