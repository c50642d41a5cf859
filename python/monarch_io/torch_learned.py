# SPDX-License-Identifier: Apache-2.0
"""Which files an index of a dataset reads, learned from what it opens, for torch_hints.

An audit hook of Python's sees opens, and on the stack the fetcher of torch that asks the dataset for an index. So nothing
stands between the two, and exceptions and warnings of the dataset's show the same callers. C code's own opens are not seen.
What is learned is in memory that a process shares with its workers. Those that it does not fork find it in /proc, as does
another process of its parent's: a rank learns what the other ranks of its node have read, too.
"""

import contextlib
import functools
import mmap
import multiprocessing
import operator
import os
import sys
import weakref

import monarch_io

MOST_FILES, MOST_INDICES = 4, 1 << 24  # that are learned: of an index, and of a dataset
MOST_RANKS = 64  # processes of one parent's that are looked at
MOST_VAIN = 500  # opens, or indices asked for, before the first file of the job's dataset
NOT_READ = os.O_WRONLY | os.O_RDWR | os.O_DIRECTORY
WIDTH, ENDED, TABLE = 0, 1, 64  # where what is in the memory, in words; bytes 8 on: the error
BYTES, NAME = 4 * (TABLE + MOST_FILES * MOST_INDICES), "monarch-learned-"

_learned = {}  # by the id of a dataset: a weak reference to it, and its Learned
_recorded = set()  # those of them that this process adds to
_torch = {}


class Learned:
    """The numbers of the files of a dataset's indices. Only pages with indices that were seen take memory."""

    def __init__(self, file):
        self.owner, self.asked, self._index, self._numbers, self._vain = os.getpid(), 0, -1, [], 0
        self.others = {}  # of other ranks, by their pid
        self._memory = mmap.mmap(file, BYTES)  # has a descriptor of its own
        self._words = memoryview(self._memory).cast("I")

    def width(self):
        """The most files that an index has."""
        return max(learned._words[WIDTH] for learned in (self, *self.others.values()))

    def why_ended(self):
        """None: it goes on; "": there is nothing to be learned."""
        return self._memory[8:4 * TABLE].rstrip(b"\0").decode(errors="replace") if self._words[ENDED] else None

    def end(self, why):
        text = why.encode(errors="replace")[:4 * TABLE - 8]
        self._memory[8:8 + len(text)], self._words[ENDED] = text, 1
        _recorded.discard(self)

    def end_if_vain(self):
        if not self.width() and monarch_io.stats().get("listed", 1):
            self.end("")

    def numbers_of(self, indices):
        """`width` of each index; 0: none, or not known."""
        width = self.width()
        numbers = self._own_numbers_of(indices, width)
        for learned in self.others.values():
            unknown = [at for at in range(len(indices)) if width and not numbers[at * width]]
            theirs = learned._own_numbers_of([indices[at] for at in unknown], width)
            for which, at in enumerate(unknown):
                numbers[at * width:(at + 1) * width] = theirs[which * width:(which + 1) * width]
        return numbers

    def _own_numbers_of(self, indices, width):
        words, begins = self._words, range(TABLE, TABLE + width * MOST_INDICES, MOST_INDICES)
        return [words[begin + i] if 0 <= i < MOST_INDICES else 0 for i in indices for begin in begins]

    def turn_to(self, index):
        """From the index that was asked for before, which may have fewer files than it had then."""
        for which in range(len(self._numbers), self.width() if self._numbers else 0):
            self._words[TABLE + which * MOST_INDICES + self._index] = 0
        self._index, self._numbers = index, []

    def opened(self, index, path):
        try:
            index = operator.index(index)
        except TypeError:  # nothing is learned of a text, for one
            index = -1
        number = monarch_io._number_of(path) if 0 <= index < MOST_INDICES else 0
        if not number:
            self._vain += 1
            if self._vain % MOST_VAIN == 0:
                self.end_if_vain()
            return
        if index != self._index:
            self.turn_to(index)
        which = len(self._numbers)
        if number not in self._numbers and which < MOST_FILES:
            self._numbers.append(number)
            self._words[TABLE + which * MOST_INDICES + index] = number
            self._words[WIDTH] = max(self.width(), which + 1)


def learned_of(dataset):
    """Of this process, or of the one that forked it. None: nothing is learned."""
    known, learned = _learned.get(id(dataset), (lambda: None, None))
    return learned if known() is dataset and learned.owner in (os.getpid(), os.getppid()) else None


def begin(dataset):
    """What is learned of it, or will be. None: nothing."""
    learned = learned_of(dataset)
    if learned is not None and learned.asked >= MOST_VAIN:
        learned.end_if_vain()
    if (learned is None or learned.owner != os.getpid()) and hasattr(sys, "addaudithook"):
        learned = _keep(dataset, lambda: os.memfd_create(_name(dataset)))
    if learned is None or learned.why_ended() == "":
        return None
    for rank in _ranks():
        if rank not in learned.others:
            with contextlib.suppress(OSError):
                # The thread that tells may be going through them.
                learned.others = {**learned.others, rank: _in_file(_file_of(rank, dataset))}
    return learned


def _keep(dataset, make_file):
    """What is in that file, for as long as there is the dataset."""
    key = id(dataset)
    try:
        _learned[key] = weakref.ref(dataset, functools.partial(_forget, key)), _in_file(make_file())
    except (TypeError, OSError):  # a list has no reference; a limit of memory
        return None
    return _learned[key][1]


def _name(dataset):
    length = 0
    with contextlib.suppress(Exception):  # not all have one
        length = len(dataset)
    return f"{NAME}{length}-{type(dataset).__qualname__}"[:200]


def _ranks():
    """Other processes of this one's parent, such as torchrun or slurmstepd."""
    folder, ranks = f"/proc/{os.getppid()}/task", []
    with contextlib.suppress(OSError):
        for thread in os.listdir(folder):
            with open(f"{folder}/{thread}/children", encoding="ascii") as file:
                ranks += map(int, file.read(MOST_RANKS * 8).split())
    return [rank for rank in ranks[:MOST_RANKS] if rank != os.getpid()]


def _file_of(process, dataset):
    """Of what that process learns of a dataset like this one. OSError: nothing, or of several, or it is another user's."""
    folder, links = f"/proc/{process}/fd", {}
    for file in os.listdir(folder):
        with contextlib.suppress(OSError):  # it was closed
            links[f"{folder}/{file}"] = os.readlink(f"{folder}/{file}")
    files = [file for file, link in links.items() if NAME in link and link == f"/memfd:{_name(dataset)} (deleted)"]
    if len(files) != 1:
        raise OSError
    return os.open(files[0], os.O_RDWR | os.O_CLOEXEC)


def _in_file(file):
    try:
        os.truncate(file, BYTES)
        return Learned(file)
    finally:
        os.close(file)


def _forget(key, _, learned=_learned, recorded=_recorded):  # also while Python ends, which takes the module's names
    recorded.discard(learned.pop(key, (None, None))[1])


def hook(fetcher_class, subset_class, guarded):
    """Learns in fetchers that begin from now on, if begin() was called for their dataset."""
    init, fetch = fetcher_class.__init__, fetcher_class.fetch.__code__
    _torch.update(fetch=fetch, files={fetch.co_filename, subset_class.__getitem__.__code__.co_filename})

    @functools.wraps(init)
    def init_recorded(self, dataset, *words, **named):
        init(self, dataset, *words, **named)
        self._monarch = guarded(_record, dataset)

    fetcher_class.__init__, fetcher_class._monarch = init_recorded, None


def _record(dataset):
    learned = learned_of(dataset)
    if learned is None and hasattr(sys, "addaudithook") and multiprocessing.parent_process():
        learned = _keep(dataset, lambda: _file_of(multiprocessing.parent_process().pid, dataset))
    if learned is not None and learned.why_ended() is None:
        if not _torch.get("hears"):
            sys.addaudithook(_hear)
            _torch["hears"] = True  # as in processes that are forked, which have the hook
        _recorded.add(learned)
        learned.turn_to(-1)
    return learned


def _hear(event, words):
    """The audit hook."""
    if event == "open" and _recorded:
        try:
            _opened(sys._getframe(1), *words)
        except Exception as error:  # pylint: disable=broad-except
            for learned in list(_recorded):
                learned.end(f"{type(error).__name__}: {error}")


def _opened(frame, path, _, flags):
    inner = inmost = None
    while frame is not None and frame.f_code is not _torch["fetch"]:
        frame, inner, inmost = frame.f_back, frame, inner
    known = frame.f_locals if frame is not None else {"data": None}
    # With "data" all is fetched, and collate_fn has it.
    if "data" not in known and isinstance(path, (str, bytes)) and not flags & NOT_READ and known["self"]._monarch in _recorded:
        known["self"]._monarch.opened(_asked(known, frame, inner, inmost), path)


def _asked(known, fetch, inner, inmost):
    """The index that is asked for by fetch(), or by what it has called. None: it is not known."""
    if not known["self"].auto_collation:
        return known["possibly_batched_index"]
    # A list comprehension has a frame before Python 3.12, and is in Subset.__getitems__() from torch 2.0 on.
    is_next = inmost is not None and inmost.f_code.co_name == "<listcomp>"
    for step in filter(None, (fetch, inner, inmost if is_next else None)):
        if step.f_code.co_filename in _torch["files"] and "idx" in step.f_locals:
            return step.f_locals["idx"]
    return None
