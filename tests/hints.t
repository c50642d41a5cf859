#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""monarch_io and --monarch-hints=torch: programs with torch's DataLoader compute the same with hints as without, and what is told is what they
then read."""

import glob
import json
import os
import re
import shutil
import signal
import struct

import e2e
from e2e import BUILD, PYTHON, SOURCE, equal, ok, options, scratch

PACKAGE = f"{SOURCE}/python"
HINTS = {"PYTHONPATH": PACKAGE, "MONARCH_IO_HINTS": "torch", "LD_LIBRARY_PATH": BUILD, "PYTHONDONTWRITEBYTECODE": "1"}
FILES = 60
MARK = 1000  # epochs from there on tell where a loader ends

# Reads by the loaders named, and prints of each epoch the numbers of the files and a digest of losses and random state.
PROGRAM = r"""
import glob, hashlib, json, random, sys, threading, traceback
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, DistributedSampler, IterableDataset, RandomSampler, Subset, TensorDataset
try:
    from PIL.Image import open as open_image
except ImportError:
    open_image = lambda path: open(path, "rb")

class Files(Dataset):
    def __init__(self, paths, field="samples", change=list):
        self.files = [(path, number) for number, path in enumerate(paths)]
        setattr(self, field, change(self.files))
    def __len__(self):
        return len(self.files)
    def __getitem__(self, i):
        path, number = self.files[i]
        with open(path, "rb") as file:
            return number, torch.tensor(list(file.read(8).ljust(8))) + torch.rand(8)

def same(i, _):
    return [i]

class Own(Files):
    epoch = 0
    def __init__(self, paths, opens=same):
        super().__init__(paths, "own")
        self.opens = opens
    def __getitem__(self, i):
        opened = self.opens(int(i), self.epoch)
        return torch.tensor(opened), sum(super(Own, self).__getitem__(number)[1] for number in opened)

class Images(Own):
    def __getitem__(self, i):
        with open_image(self.files[i][0]) as image:
            return i, torch.rand(8) + image.tell()

class Together(Own):
    def __getitems__(self, batch):
        return [self[i] for i in batch]

class Newer(Subset):  # as torch's from 2.0 on
    exec(compile("def __getitems__(self, indices): return [self.dataset[self.indices[idx]] for idx in indices]", Subset.__getitem__.__code__.co_filename, "exec"))

class Stream(IterableDataset):
    samples = None
    def __iter__(self):
        return iter([(i, torch.rand(8)) for i in range(20)])

class Backwards(RandomSampler):
    def __iter__(self):
        return (len(self) - 1 - i for i in super().__iter__())

class Drawn:
    def __init__(self):
        self.random = random.Random(1)
    def __iter__(self):
        return iter(self.random.sample(range(60), 60))
    def __len__(self):
        return int(60 + 0 * self.random.random())

class Fetched:
    def __fspath__(self):
        return str(torch.rand(1))

class GoingOn:
    at = 0
    def __iter__(self):
        at = self.at
        try:
            for at in range(self.at, 60):
                yield at
        finally:
            self.at = at

def seeded(seed):
    return torch.Generator().manual_seed(seed)

def read(loader, epochs=1, batches=-1):
    model = torch.nn.Linear(8, 1)
    steps = torch.optim.SGD(model.parameters(), 1e-6)
    for epoch in range(epochs):
        getattr(loader.sampler, "set_epoch", id)(epoch)
        Own.epoch = epoch
        numbers, digest = [], hashlib.sha256()
        try:
            for number, pixels in loader:
                loss = model(pixels).square().mean()
                steps.zero_grad()
                loss.backward()
                steps.step()
                numbers += torch.as_tensor(number).reshape(-1).tolist()
                digest.update(f"{pixels.tolist()} {loss.item().hex()}".encode())
                batches -= 1
                if batches == 0:
                    break
        except LookupError as error:  # with workers the frames here depend on which of them is faster
            digest.update(f"{error if loader.num_workers else traceback.format_exc()}".encode())
        digest.update(torch.get_rng_state().numpy().tobytes())
        yield numbers, digest.hexdigest()

class Last:
    failed, learned = False, None
    def are_new(self):
        return False
    def __init__(self):
        self.told = threading.Event()
    def numbers_of(self, indices):
        self.told.set()
        return indices

def await_thread(hints):
    last = Last()
    hints._tell(hints._Epoch(last, 0, 0), 0, [])
    last.told.wait()

def main():
    torch.set_num_threads(1)
    paths = sorted(glob.glob(sys.argv[1] + "/**/*.bin", recursive=True))
    files, own = Files(paths), Own(paths)
    loaders = {LOADERS}
    for name in sys.argv[3:] or loaders:
        dataset, words, *more = loaders[name]
        torch.manual_seed(len(name))
        loader = DataLoader(dataset, **{"batch_size": 8, **words})
        if sys.argv[2] == "attach":
            import monarch_io
            assert monarch_io.attach(loader) is loader
        print(json.dumps([name, *read(loader, *more)]))
        if "monarch_io.torch_hints" in sys.modules:
            from monarch_io import hint, torch_hints
            await_thread(torch_hints)
            hint(paths, epoch=MARK)

if __name__ == "__main__":
    main()
"""
# A dataset, words for DataLoader, and how many epochs and batches of it are read.
LOADERS = {
    "in order": "files, dict()",
    "the last batch is dropped": "files, dict(num_workers=2, drop_last=True)",
    "shuffled, 0 workers": "files, dict(shuffle=True), 2",
    "shuffled, 2 workers, fork": "files, dict(shuffle=True, num_workers=2, multiprocessing_context='fork'), 2",
    "shuffled by a generator, 4 workers": "files, dict(shuffle=True, num_workers=4, generator=seeded(3)), 2",
    "shuffled, 2 workers, spawn": "files, dict(shuffle=True, num_workers=2, multiprocessing_context='spawn')",
    "persistent workers": "files, dict(shuffle=True, num_workers=2, persistent_workers=True), 2",
    "rank 0 of 2, the last batch is dropped": "files, dict(sampler=DistributedSampler(files, 2, 0), num_workers=2, drop_last=True), 2",
    "rank 1 of 2, set_epoch": "files, dict(sampler=DistributedSampler(files, 2, 1, seed=7), num_workers=2), 2",
    "an epoch that is left": "files, dict(shuffle=True, num_workers=2), 1, 2",
    "an epoch that is left by a sampler that goes on there": "files, dict(sampler=GoingOn(), num_workers=2, persistent_workers=True), 2, 2",
    "the rest of an epoch": "Subset(files, range(30, 59)), dict(shuffle=True)",
    "with replacement": "files, dict(sampler=RandomSampler(files, replacement=True, num_samples=100), num_workers=2, drop_last=True)",
    "parts": "ConcatDataset([Subset(files, range(0, 60, 2)), Files(paths, 'imgs'), Files(paths[:9], change=lambda f: [p for p, _ in f])]), dict(shuffle=True)",
    "no batches": "files, dict(batch_size=None, sampler=RandomSampler(files, generator=seeded(5)))",
    "a sampler of the program's": "files, dict(sampler=Backwards(files), num_workers=2)",
    "a sampler whose length is drawn": "files, dict(sampler=Drawn(), drop_last=True, num_workers=1), 2",
    "a sampler of the program's, 0 workers": "files, dict(sampler=Backwards(files))",
    "batches of the program's": "files, dict(batch_sampler=[[3, 1], [2], [0, 59]], batch_size=1, num_workers=1)",
    "a stream": "Stream(), dict(num_workers=2)",
    "learned, not from what fetches files when it is named": "Files(paths, change=lambda files: [Fetched() for _ in files]), dict(shuffle=True), 2",
    "files that are in memory": "TensorDataset(torch.arange(60), torch.ones(60, 8)), dict(shuffle=True), 2",
    "files of texts": "Own(paths), dict(sampler=[*map(str, range(60))], num_workers=1), 2",
    "files of whole batches": "Together(paths), dict(shuffle=True), 2",
    "learned": "own, dict(shuffle=True, num_workers=2), 2",
    "learned before, by another loader": "own, dict(shuffle=True, batch_size=4)",
    "learned, two of each index, persistent workers": "Own(paths, lambda i, _: [i, 59 - i]), dict(sampler=Backwards(own), num_workers=2, persistent_workers=True), 2",
    "learned, spawn": "Own(paths[:31]), dict(shuffle=True, num_workers=2, multiprocessing_context='spawn', persistent_workers=True), 2",
    "learned, forkserver": "Own(paths[:9]), dict(shuffle=True, num_workers=1, multiprocessing_context='forkserver'), 2",
    "learned, others in each epoch": "Own(paths, lambda i, epoch: [(i + 10 * epoch) % 60]), dict(shuffle=True, num_workers=2), 3",
    "learned from PIL": "Images(paths[:9]), dict(shuffle=True), 2",
    "learned in parts": "ConcatDataset([Subset(Own(paths), range(30, 60)), Own(paths[:9])]), dict(shuffle=True), 2",
    "learned in a newer Subset": "Newer(Own(paths), range(20, 50)), dict(shuffle=True), 2",
    "learned, set_epoch": "Own(paths), dict(sampler=DistributedSampler(own, 1, 0)), 2",
    "learned, no batches": "Own(paths), dict(batch_size=None, sampler=RandomSampler(own)), 2",
    "learned, with replacement": "Own(paths), dict(sampler=RandomSampler(own, replacement=True, num_samples=300))",
    "an index that fails": "Own(paths, lambda i, epoch: [i, 60] if i == 30 else [i]), dict(shuffle=True), 2",
    "an index that fails, 2 workers": "Own(paths, lambda i, epoch: [i, 60] if i == 30 else [i]), dict(shuffle=True, num_workers=2)",
    "what fails": "Files(paths, change=lambda files: files[:1]), dict(shuffle=True, num_workers=2), 2",
    "what comes after that": "files, dict(shuffle=True)",
}
UNTOLD = ("a stream", "a sampler of the program's, 0 workers", "files that are in memory", "files of texts", "files of whole batches", "what fails")


def program():
    lines = ", ".join(f"{name!r}: ({words},)" for name, words in LOADERS.items())
    return e2e.write(f"{scratch('program')}/loaders.py", PROGRAM.replace("LOADERS", lines).replace("MARK", str(MARK)))


def pieces(data):
    """(epoch, rank, first, references) of each piece in the file (runtime/layout/order_layout.h)."""
    while data:
        _, _, count, rank, epoch, first = struct.unpack_from("<QIIIIQ", data)
        yield epoch, rank, first, struct.unpack_from(f"<{count}I", data, 32)
        data = data[32 + 4 * count:]


def told(run_dir):
    """For each loader: {(rank, epoch): {number of the access: number of the file}}."""
    found, loaders = list(pieces(e2e.bytes_in(f"{run_dir}/order"))), [{}]
    numbers = {ref: number for number, ref in enumerate(next(refs for epoch, _, _, refs in found if epoch == MARK))}
    for epoch, rank, first, refs in found:
        if epoch == MARK:
            loaders.append({})
        else:
            loaders[-1].setdefault((rank, epoch), {}).update((first + i, numbers.get(ref)) for i, ref in enumerate(refs))
    return loaders


def check_order(name, epochs, orders):
    if name in UNTOLD:
        return equal(orders, {}, f"{name}: nothing is told")
    read = [numbers for numbers, _ in epochs]
    if name.startswith("learned"):
        return check_learned(name, read, orders)
    if "index that fails" in name:
        return None
    got = [[order.get(i) for i in range(len(order))] for _, order in sorted(orders.items())]
    if "that is left" in name:
        good = [order[:len(numbers)] for order, numbers in zip(got, read)] == read and (len(got[0]) == FILES) == ("goes on" not in name)
        return ok(good, f"{name}: what torch knows of it was told", got, read)
    if name.startswith("rank"):
        equal([*sorted(orders)], [(int(name[5]), epoch) for epoch in range(4)], f"{name}: its rank and its epochs, and the next two")
        later = [sorted(got.pop()), sorted(got.pop()), sorted(read[0])]
        ok(later[0] != later[1] != later[2] and {*map(len, later)} == {len(later[2])}, f"{name}: which are others", later)
    return equal(got, read, f"{name}: what is told is what is read")


def check_learned(name, read, orders):
    """What is known as an epoch begins is told; of the first one, what was learned until the thread came to tell it."""
    last = max(orders, default=None)
    if "set_epoch" in name:
        equal([*sorted(orders)][-3:], [(0, 1), (0, 2), (0, 3)], f"{name}: as are the next two")
        last = (0, 1)
    got = [number for _, number in sorted(orders.get(last, {}).items())]
    if "replacement" in name:
        return ok(any(got) and all(number in (None, then) for number, then in zip(got, read[-1])), f"{name}: what was read before is told", got, read)
    if "others" in name:
        return ok(all(number in (then, (then - 10) % FILES) for number, then in zip(got, read[-1])), f"{name}: those of the epoch before, or of this one", got, read)
    return equal(got, read[-1], f"{name}: what is told is what is read")


class Stopped(e2e.Job):
    """A job whose agent takes no orders, with all of a dataset staged but a file without room."""

    def __init__(self, name):
        self.root = scratch(f"{name}.pfs")
        e2e.make_tree(self.root, FILES)
        for path in sorted(glob.glob(f"{self.root}/**/*.bin", recursive=True))[:9]:
            e2e.write(path, b"P6 1 1 255\n123")
        e2e.write(f"{self.root}/large", bytes(8 << 20))
        super().__init__(options([self.root], {"t": (scratch(f"{name}.tier"), "4M")}, "--wait=full"))
        self.stopped = self.agent()
        os.kill(self.stopped, signal.SIGSTOP)

    def python(self, *words, **env):
        return e2e.execute([PYTHON, "-W", "ignore", *words], env={**self.env, **env})

    def loaders(self, *words, **env):
        code, out, err = self.python(program(), self.root, *words, **env)
        return code, [json.loads(line) for line in out.splitlines()], err

    def end(self):
        os.kill(self.stopped, signal.SIGCONT)
        return super().end()


def no_torch():
    return e2e.execute([PYTHON, "-c", "import torch"])[0] != 0 and "no torch (Debian: python3-torch)"


@e2e.unless(no_torch)
@e2e.unless(lambda: "ThreadSanitizer bears no threads of a forked process" if "tsan" in e2e.SANITIZER else "")
def loaders():
    """Batches, losses and random state are the same with hints, and the hints are what is read; a failure ends a loader's hints only."""
    job = Stopped("loaders")
    plain = job.loaders("off")
    equal((plain[0], [name for name, *_ in plain[1]], plain[2]), (0, list(LOADERS), ""), "all loaders run")
    hinted = job.loaders("hints", **HINTS)
    for (name, *epochs), (_, *same), orders in zip(plain[1], hinted[1], told(job.run_dir)):
        equal(same, epochs, f"{name}: the same batches, losses and random state")
        check_order(name, epochs, orders)
    equal((len(hinted[1]), hinted[2]), (len(LOADERS), "monarch: no hints from a DataLoader: IndexError: list index out of range\n"), "the failure is told once")
    job.end()


@e2e.unless(no_torch)
def attached():
    """A loader that is attached gives hints without the option; others do not."""
    job, name = Stopped("attached"), "shuffled, 2 workers, fork"
    code, [(_, *epochs)], err = job.loaders("attach", name, **{**HINTS, "MONARCH_IO_HINTS": ""})
    equal((code, err), (0, ""), "attach: the program runs")
    check_order(name, epochs, told(job.run_dir)[0])
    job.loaders("off", name, **{**HINTS, "MONARCH_IO_HINTS": ""})
    equal(len(told(job.run_dir)), 2, "attach: nothing is told without it")
    job.end()


# Ends while the thread that tells is in torch.
ENDS = """
import sys, threading, torch
from torch.utils.data import DataLoader, DistributedSampler
drawing = threading.Event()
class Files:
    def __init__(self):
        self.samples = sys.argv[1:]
    def __len__(self):
        if threading.current_thread().name == "monarch":
            drawing.set()
            for _ in range(100):
                torch.randperm(1 << 18)
        return len(self.samples)
    def __getitem__(self, i):
        return i
sampler = DistributedSampler(Files(), 1, 0)
sampler.set_epoch(0)
for _ in DataLoader(Files(), sampler=sampler):
    break
assert drawing.wait(60)
"""


@e2e.unless(no_torch)
def ends():
    """A program ends as it does without hints, whatever the thread does that tells them."""
    job = Stopped("ends")
    equal(job.python("-c", ENDS, *glob.glob(f"{job.root}/**/*.bin", recursive=True), **HINTS), (0, b"", ""), "the thread is in torch")
    job.end()


def calls():
    """stats(), wait() and hint() within a job and without."""
    job = Stopped("calls")
    call = ["-c", "import monarch_io as m; print([*m.stats().values()][:5:2], m.wait(1), m.wait(0.5, 0.1), m.hint([]), m.hint(['/x', b'y']))"]
    equal(job.python(*call, **HINTS, SLURM_PROCID=""), (0, f"[{FILES + 1}, {FILES}, 1] False False 0 2\n".encode(), ""), "in a job")
    equal(e2e.execute([PYTHON, *call], env=e2e.environment(**HINTS)), (0, b"[] False False 0 0\n", ""), "without a job")
    alarm = ["-c", "import signal, monarch_io; signal.signal(signal.SIGALRM, signal.default_int_handler); signal.alarm(1); monarch_io.wait(1)"]
    starting = f"{scratch('starting')}/run"
    os.mkdir(starting, 0o700)
    code, _, err = e2e.execute([PYTHON, *alarm], env=e2e.native_environment(**HINTS, MONARCH_IO_RUN_DIR=starting))
    ok(code == -signal.SIGINT and err.endswith("KeyboardInterrupt\n"), "a signal interrupts the wait", code, err)
    code, _, err = job.python("-c", "import monarch_io; monarch_io.wait(2)", **HINTS)
    ok(code == 1 and err.endswith("OSError: [Errno 22] Invalid argument\n"), "a fraction that is none is refused", err)
    job.end()


def by_run():
    """monarchctl run puts the package first in PYTHONPATH where it is asked to."""
    tiers = {"t": (scratch("run.tier"), "1M")}
    show = [PYTHON, "-c", "import os; print(os.environ.get('PYTHONPATH'), os.environ.get('MONARCH_IO_HINTS'))"]
    ours = r"/\S+/python"
    cases = (([], {}, "None None"), (["--hints=off"], {"PYTHONPATH": "/own"}, "/own None"), (["--hints=torch"], {}, f"{ours} torch"),
             (["--hints=torch"], {"PYTHONPATH": ""}, f"{ours} torch"), (["--hints=torch"], {"PYTHONPATH": ":/own"}, f"{ours}::/own torch"))
    for words, own, want in cases:
        code, out, err = e2e.monarch_run(options([scratch("run.pfs")], tiers, *words), show, env=e2e.environment(**own))
        ok(code == 0 and re.fullmatch(want + "\n", out.decode()), f"{words}, {own}", code, out, err)
    code, _, err = e2e.monarch_run(options([scratch("run.pfs")], tiers, "--hints=on"), show)
    ok(code != 0 and "'on' is not torch or off" in err, "what is neither is refused", err)


# Tells two files to an agent that says, one after the other, what of the dataset it has listed, and how many files it takes.
AGENT = """
import array, sys, monarch_io
from monarch_io import torch_hints
listed, taken, told = iter(map(int, sys.argv[1])), iter(map(int, sys.argv[2])), []
monarch_io.stats = lambda: {"files": 2, "staged_files": int(sys.argv[3]), "listed": next(listed)}
monarch_io._find = lambda paths: asked.extend(paths) or array.array("I", map(int, paths))
monarch_io._hint = lambda numbers, *order: told.append(([*numbers], *order)) or next(taken)
torch_hints.LOOK_S = torch_hints.AGAIN_S = torch_hints.TOGETHER_S = 0
asked, files = [], torch_hints._Files()
files.paths_of = lambda indices: [f"{10 + i}" for i in indices]
torch_hints._tell_one(torch_hints._Epoch(files, 5, 2), 3, iter([1, 0]), True)
print(told)
"""
# After that: how many of 30 files are looked for, the second time, once they are others, and by the end of the list.
LIST = AGENT + """
torch_hints.LOOKS = 2
for first, indices in (10, [*range(30)]), (10, [*range(30)]), (50, [29, 3]), (50, [-1]), (50, [40, 41]), (50, [29, 3]):
    asked.clear()
    files.paths_of = lambda indices: [f"{first + i}" for i in indices]
    print(files.numbers_of(indices).tolist() == [first + i for i in indices], len(asked))
files.paths_of = lambda indices: [str(range(99)[i]) for i in indices]
try:
    files.numbers_of([40, 41, 1 << 60])
except IndexError:
    print(len(files._numbers))
"""


# What waits for an agent that takes nothing; and what of it is told as one: an epoch's batches that follow each other.
WAITING = """
import queue
from monarch_io import torch_hints
torch_hints._state["teller"] = tasks = queue.SimpleQueue()
for is_ahead, times in (True, 2000), (False, 10000):
    for number in range(times):
        torch_hints._tell(torch_hints._Epoch(None, number, 0), 0, [], is_ahead)
    print(tasks.qsize())
torch_hints._together(tasks)
torch_hints._state["epochs"].release()
one, other = torch_hints._Epoch(None, 0, 0), torch_hints._Epoch(None, 1, 0)
for piece in (one, 0, []), (one, 0, [5]), (one, 1, [6, 7]), (other, 0, [8]), (one, 3, [9]), (one, 5, [4]), (one, 6, iter([3]), True), (one, 7, [2]), (one, 8, [1]):
    torch_hints._tell(*piece)
print([(epoch.number, first, [*indices]) for epoch, first, indices, _ in torch_hints._together(tasks)])
"""

# How many threads tell where two begin at the same moment.
BEGINNING = """
import contextlib, threading
from monarch_io import torch_hints
class Queue(torch_hints.queue.SimpleQueue):
    both, made = threading.Barrier(2), []
    def __init__(self):
        self.made.append(self)
        with contextlib.suppress(threading.BrokenBarrierError):
            self.both.wait(1)
torch_hints.queue.SimpleQueue = Queue
threads = [threading.Thread(target=torch_hints._teller) for _ in range(2)]
for call in threading.Thread.start, threading.Thread.join:
    [*map(call, threads)]
print(len(Queue.made))
"""


def again():
    """What the agent has no room for is told again, as is all once the dataset is listed; nothing is told once all is staged."""
    once = ([11, 10], 5, 2, 3)
    for listed, taken, staged, want in ("1", "2", 1, [once]), ("1", "002", 1, [once] * 3), ("0001", "22", 2, [once] * 2), ("1", "", 2, []):
        got = e2e.execute([PYTHON, "-c", AGENT, listed, taken, str(staged)], env=e2e.native_environment(**HINTS))
        equal(got, (0, f"{want}\n".encode(), ""), f"listed {listed}, taken {taken}, staged {staged}")
    got = e2e.execute([PYTHON, "-c", LIST, "1", "2", "1"], env=e2e.native_environment(**HINTS))
    equal(got[1].decode().split("\n")[1:], ["True 30", "True 2", "True 4", "True 1", "True 4", "True 2", "42", ""],
          "a file is looked for once, unless the list has changed; an index that is none takes no memory", got[2])
    equal(e2e.execute([PYTHON, "-c", WAITING], env=e2e.native_environment(**HINTS)),
          (0, b"16\n8192\n[(0, 0, []), (0, 0, [5, 6, 7, 9]), (1, 0, [8]), (0, 5, [4]), (0, 6, [3]), (0, 7, [2, 1])]\n", ""),
          "few epochs wait, and some batches, which are told together")
    equal(e2e.execute([PYTHON, "-c", BEGINNING], env=e2e.native_environment(**HINTS)), (0, b"1\n", ""), "one thread tells")


# What is learned where the dataset has the files whose names are numbers; and what ends it.
LEARN = """
import os, signal, sys, monarch_io
from monarch_io import torch_hints, torch_learned
os.chdir(sys.argv[1])
monarch_io._number_of = lambda path: int(path) if path.isdigit() else 0
monarch_io.stats = lambda: {"listed": listed}
class Fetcher:
    def __init__(self, dataset):
        self.dataset = dataset
    def fetch(self, possibly_batched_index):
        self.auto_collation = isinstance(possibly_batched_index, list)
        data = [self.dataset[idx] for idx in possibly_batched_index] if self.auto_collation else self.dataset[possibly_batched_index]
        return [open("9").close()]
class Dataset:
    def __init__(self, **opens):
        self.opens = opens
    def __getitem__(self, index):
        for path in self.opens[f"i{index}"]:
            open(path, "a" if path == "8" else "r").close()
    __hash__ = None
torch_learned.hook(Fetcher, Dataset, torch_hints._guarded)
def state(dataset, *batches):
    files = torch_hints._Files()
    files.learned = torch_learned.begin(dataset)
    fetcher = Fetcher(dataset)
    for batch in batches:
        fetcher.fetch(batch)
    print(torch_hints._guarded(files.are_new, of=files), files.failed, files.learned.numbers_of([0, 1, -1, 1 << 24]), flush=True)
listed, one, two = 0, Dataset(i0="12132456", i1="8", itext="2"), Dataset(i0=["none"] * 500, i1="1")
state(one, [0, 1])
state(two, [0])
listed, one.opens = 1, {"i0": "7", "i1": "5", "itext": ["none"] * 500}
state(one, [0], [0, "text"], 1)
state(two, [0, 1])
three = Dataset()
for times in 499, 1:
    torch_learned.begin(three).asked += times
    print(len(torch_learned._recorded), [torch_learned.begin(dataset) is None for dataset in ([], two, three)])
class Rank(Dataset):
    def __len__(self):
        return 2
def rank(*words, **opens):
    pid = os.fork()
    if pid == 0:
        state(dataset := Rank(**opens), *words)
        os.write(begun, b".")
        signal.pause()
    os.read(ready, 1)
    return pid
ready, begun = os.pipe()
for pid in [rank([0], i0="1"), rank([1], i1="3")]:
    os.kill(pid, signal.SIGKILL)
    os.wait()
monarch_io._number_of = lambda path: 1 // 0
state(one, [0], [0])
del one, two, three
print(len(torch_learned._recorded), len(torch_learned._learned))
"""


def learns():
    """The first four files that an index reads are known, until it reads others. What fails, and what finds nothing, ends it."""
    names = scratch("names")
    for name in *"123456789", "none":
        e2e.write(f"{names}/{name}")
    code, out, err = e2e.execute([PYTHON, "-c", LEARN, names], env=e2e.native_environment(**HINTS))
    want = [(False, False, [1, 2, 3, 4] + 12 * [0]), (True, False, []), (False, False, [7, 0, 0, 0, 5] + 11 * [0]), (True, True, []), (1, [True, True, False]), (1, [True] * 3),
            (False, False, [1, 0, 0, 0]), (False, False, [1, 3, 0, 0]), (None, True, [7, 0, 0, 0, 5] + 11 * [0]), (0, 0)]
    equal((code, out.decode().splitlines()), (0, [" ".join(map(str, words)) for words in want]), "what an index opens, and what ends it", err)
    equal(err, "monarch: no hints from a DataLoader: RuntimeError: ZeroDivisionError: integer division or modulo by zero\n", "a failure is told")


# Prints the module that stands for sitecustomize, and whether there is torch already.
SHOW = """
import sys
try:
    import sitecustomize
    print(sitecustomize.__file__)
except Exception as error:
    print(repr(error), getattr(error, "name", ""))
print("torch" in sys.modules)
"""


def starts():
    """The directory in PYTHONPATH changes nothing that a program sees of its sitecustomize."""
    own, fails, second = (scratch(name) for name in ("own", "fails", "second"))
    e2e.write(f"{own}/sitecustomize.py", "print('own', __name__)")
    e2e.write(f"{fails}/sitecustomize.py", "raise ValueError('own')")
    shutil.copytree(PACKAGE, second, dirs_exist_ok=True)
    venv = scratch("venv")
    code, _, err = e2e.execute([PYTHON, "-m", "venv", "--without-pip", venv])
    ok(code == 0, "a virtual environment is made", err)
    e2e.write(f"{glob.glob(f'{venv}/lib/*/site-packages')[0]}/sitecustomize.py", "print('venv')")
    cases = [([PYTHON, *words], path) for words in ([], ["-S"], ["-E"], ["-I"], ["-s"]) for path in ("", own)]
    for command, path in [*cases, ([PYTHON], fails), ([f"{venv}/bin/python"], ""), ([f"{venv}/bin/python"], own)]:
        for ours in (PACKAGE, f"{PACKAGE}:{second}:{PACKAGE}/"):
            got, want = (e2e.execute([*command, "-c", SHOW], env=e2e.native_environment(**{**HINTS, "PYTHONPATH": ":".join(filter(None, paths))}))
                         for paths in ((ours, path), (path,)))
            equal(got, want, f"{' '.join(command)} with {os.path.basename(path) or 'nothing'} in PYTHONPATH behind {ours.count(':') + 1}")
    none = f"import sys; sys.path[:] = ['{PACKAGE}']; sys.modules.pop('sitecustomize', 0); {SHOW}"
    equal(e2e.execute([PYTHON, "-c", none], env=e2e.native_environment(**HINTS))[1],
          b"ModuleNotFoundError(\"No module named 'sitecustomize'\") sitecustomize\nFalse\n", "where there is no other, there is none")
    for path in "torch/__init__.py", "torch/utils/__init__.py", "torch/utils/data.py":
        e2e.write(f"{own}/{path}", "")
    others = "import sys; sys.meta_path = [type('Other', (), {'find_spec': f.find_spec}) for f in sys.meta_path]; import torch.utils.data as d; print(d.__name__)"
    equal(e2e.execute([PYTHON, "-c", others], env=e2e.native_environment(**{**HINTS, "PYTHONPATH": f"{PACKAGE}:{own}", "MONARCH_IO_QUIET": "1"})),
          (0, b"own sitecustomize\ntorch.utils.data\n", ""), "a program that puts others in the place of Python's finders imports torch")
    entry = "from importlib.metadata import entry_points as e; [p] = e(group='torch.backends'); print(p.name, p.load()())"
    equal(e2e.execute([PYTHON, "-c", entry], env=e2e.native_environment(**{**HINTS, "MONARCH_IO_HINTS": ""})), (0, b"monarch None\n", ""), "torch finds it as a backend")


e2e.main(calls, again, learns, starts, by_run, ends, attached, loaders)
