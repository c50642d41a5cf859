# SPDX-License-Identifier: Apache-2.0
"""Hints from torch's DataLoader: the order in which it will read a dataset's files.

What DataLoader pulls from its sampler is told as it is pulled, which is num_workers x prefetch_factor batches
ahead of use; without workers, nothing is. Torch's own samplers lay a whole epoch out in a list when it
begins: of that list's iterator a copy is told. Nothing is pulled or drawn that the program does not pull and
draw itself. A thread does the telling, of all that waits at a time. Whatever fails here ends a loader's hints,
never the program.
"""

import array
import atexit
import bisect
import contextlib
import copy
import functools
import itertools
import operator
import os
import pathlib
import queue
import sys
import threading
import time
import types
import weakref

import monarch_io
from monarch_io import torch_learned

PIECE = 4096  # files that are told at once
LOOKS = 16  # files that are looked for again each time
MOST_WAITING, MOST_EPOCHS = 8192, 16  # batches that are still to be told; and epochs, each of which keeps its list
TOGETHER_S = 0.05  # the pause in which batches are gathered, so that the program is not stopped for each
LISTING_S, LOOK_S = 600, 0.5  # how long a walk of the dataset may take, and how often it is looked at
BEHIND_S, AGAIN_S = 60, 0.05  # the same of an agent that takes nothing
EXIT_S = 10  # how long an exit waits for torch
AHEAD = 2  # epochs of a sampler that counts them

_attached = weakref.WeakSet()  # loaders
_files = weakref.WeakKeyDictionary()  # of loaders: the _Files that they read
_by_epoch = weakref.WeakKeyDictionary()  # samplers whose set_epoch() is called, and the last epoch that is told of each
_epochs = itertools.count()  # of loaders whose sampler does not count them
_call = threading.local()  # .begun: the (sampler, iterator) pairs of the call of _next_index() that runs, if any
_state = {"everywhere": False, "hooked": False, "said": False}


def attach(loader):
    """monarch_io.attach()."""
    _attached.add(loader)
    _guarded(_hook)
    return loader


def install():
    """Hints for all loaders. Torch calls this as it is loaded, or sitecustomize once torch.utils.data is."""
    if os.environ.get("MONARCH_IO_HINTS") == "torch":
        _state["everywhere"] = True
        _guarded(_hook)


def _guarded(call, *words, of=None):
    """What the call returns. A failure ends the hints `of` these files; the first one is said."""
    try:
        return call(*words)
    except Exception as error:  # pylint: disable=broad-except
        if of:
            of.failed = True
        said, _state["said"] = _state["said"], True
        with contextlib.suppress(Exception):  # such as that standard error is closed
            if not said and "MONARCH_IO_QUIET" not in os.environ:
                print(f"monarch: no hints from a DataLoader: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return None


# ---- what of torch is hooked


def _hook():
    if _state["hooked"]:
        return
    from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler, Subset, _utils, dataloader
    _state["hooked"] = True
    for sampler in (SequentialSampler, RandomSampler, DistributedSampler):
        _hook_order(sampler)
    _hook_epochs(DistributedSampler)
    _hook_iterator(dataloader._BaseDataLoaderIter)
    torch_learned.hook(_utils.fetch._MapDatasetFetcher, Subset, _guarded)


def _hook_order(sampler_class):
    """Notes each iterator over such a sampler, not of a class derived from it, that a loader begins."""
    begin = sampler_class.__iter__

    @functools.wraps(begin)
    def begin_noted(self):
        iterator = begin(self)
        if type(self) is sampler_class and getattr(_call, "begun", None) is not None:
            _call.begun.append((self, iterator))
        return iterator

    sampler_class.__iter__ = begin_noted


def _hook_epochs(sampler_class):
    set_epoch = sampler_class.set_epoch

    @functools.wraps(set_epoch)
    def set_epoch_noted(self, epoch):
        _guarded(_by_epoch.setdefault, self, -1)
        return set_epoch(self, epoch)

    sampler_class.set_epoch = set_epoch_noted


def _hook_iterator(iterator_class):
    init, reset, next_index = iterator_class.__init__, iterator_class._reset, iterator_class._next_index

    @functools.wraps(init)
    def init_followed(self, loader):
        init(self, loader)
        self._monarch = _guarded(_follower_of, loader)

    @functools.wraps(reset)
    def reset_followed(self, *words, **named):
        reset(self, *words, **named)
        if self._monarch is not None:
            self._monarch.in_epoch = False

    @functools.wraps(next_index)
    def next_index_told(self):
        follower = self._monarch
        if follower is None or follower.files.failed:
            return next_index(self)
        index, begun = (next_index(self), ()) if follower.in_epoch else _noted(next_index, self)
        _guarded(follower.pulled, self, index, begun, of=follower.files)
        return index

    iterator_class._monarch = None  # of one that has begun already
    iterator_class.__init__, iterator_class._reset, iterator_class._next_index = init_followed, reset_followed, next_index_told


def _noted(next_index, loader_iterator):
    """The index, and the (sampler, iterator) pairs that were begun for it."""
    _call.begun = begun = []
    try:
        return next_index(loader_iterator), begun
    finally:
        _call.begun = None


# ---- what is told


def _follower_of(loader):
    """None: nothing is to be told, or can be."""
    from torch.utils.data.dataloader import _DatasetKind
    wanted = _state["everywhere"] or loader in _attached
    if not wanted or loader._dataset_kind != _DatasetKind.Map:
        return None
    paths_of = _paths_of(loader.dataset)
    if not monarch_io.stats():
        return None
    learned = None if paths_of else torch_learned.begin(loader.dataset)
    if not paths_of and learned is None:
        return None
    files = _files.setdefault(loader, _Files())
    files.paths_of, files.learned = paths_of, learned
    return None if files.failed else _Follower(files)


def _paths_of(dataset):
    """The function from a list of indices to the paths of the files that dataset[index] reads. None: it is not known."""
    from torch.utils.data import ConcatDataset, Subset
    if type(dataset) is Subset:
        paths_of, numbers = _paths_of(dataset.dataset), dataset.indices
        return paths_of and (lambda indices: paths_of([numbers[i] for i in indices]))
    if type(dataset) is ConcatDataset:
        parts = [_paths_of(part) for part in dataset.datasets]
        return (lambda indices: _paths_in_parts(parts, dataset.cumulative_sizes, indices)) if all(parts) else None
    fields = getattr(dataset, "__dict__", {})  # not a property, which may do anything
    return _paths_in(fields.get("samples")) or _paths_in(fields.get("imgs"))


def _paths_in(samples):
    """Of a list of paths, or of tuples with a path first; not of other os.PathLike, which may fetch the file when asked."""
    first = samples[0] if isinstance(samples, (list, tuple)) and samples else None
    if isinstance(first, (str, pathlib.PurePath)):
        return lambda indices: [samples[i] for i in indices]
    if isinstance(first, (list, tuple)) and first and isinstance(first[0], (str, pathlib.PurePath)):
        return lambda indices: [samples[i][0] for i in indices]
    return None


def _paths_in_parts(parts, ends, indices):
    paths = []
    for i in indices:
        part = bisect.bisect_right(ends, i)
        paths += parts[part]([i - ends[part - 1] if part else i])
    return paths


class _Epoch:
    """Of a rank that reads those files."""

    def __init__(self, files, number, rank):
        self.files, self.number, self.rank = files, number, rank


class _Follower:
    """What an iterator of a loader has pulled, and how much of its epoch has been told."""

    def __init__(self, files):
        self.files = files
        self.in_epoch = False

    def _begin(self, loader_iterator, begun):
        """An epoch, for which these iterators were begun; a loader with persistent workers has several in one iterator."""
        from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler
        index_sampler, self.in_epoch = loader_iterator._index_sampler, True
        in_batches = type(index_sampler) is BatchSampler
        sampler = index_sampler.sampler if in_batches else index_sampler
        is_known = type(index_sampler) in (SequentialSampler, RandomSampler, DistributedSampler)
        # The iterator that has the order. None of the program's is kept: code of it runs as it ends.
        self._ordered = loader_iterator._sampler_iter if is_known else None
        self._ordered = next((it for begun_by, it in begun if begun_by is sampler), self._ordered)
        self._dropped = index_sampler.batch_size if in_batches and index_sampler.drop_last else 1
        self._pulled = self._told = 0
        is_distributed = type(sampler) is DistributedSampler
        number, rank = (sampler.epoch, sampler.rank) if is_distributed else (next(_epochs), None)
        self._epoch = _Epoch(self.files, number, rank)
        self._later = _epochs_ahead(sampler) if is_distributed and sampler in _by_epoch and not self.files.are_new() else []

    def pulled(self, loader_iterator, index, begun):
        """The loader has pulled that, and has begun those iterators for it."""
        if not self.in_epoch:
            self._begin(loader_iterator, begun)
        batch = list(index) if isinstance(index, (list, tuple)) else [index]
        before, self._pulled = self._pulled, self._pulled + len(batch)
        if self.files.learned:
            self.files.learned.asked += len(batch)
        if self._ordered is not None:
            if self._pulled > self._told:
                self._tell_known(batch)
        elif loader_iterator._num_workers > 0:  # else the program reads it now
            _tell(self._epoch, before, batch)

    def _tell_known(self, batch):
        """What of the batch is not told, and what is known to come after it."""
        known = _copied(self._ordered)
        new = batch[self._told - self._pulled:]
        first, self._told = self._told, _whole(self._pulled + operator.length_hint(known), self._dropped)
        coming = itertools.islice(itertools.chain(new, known), self._told - first)
        is_ahead = first == 0 or self._told - first > PIECE
        _tell(self._epoch, first, coming if is_ahead else list(coming), is_ahead)
        later, self._later = self._later, []
        for sampler in later:
            _tell(_Epoch(self.files, sampler.epoch, sampler.rank), 0, _first_of(sampler, self._dropped), is_ahead=True)


def _epochs_ahead(sampler):
    """Samplers of those that have not been told."""
    told = max(_by_epoch[sampler], sampler.epoch)
    _by_epoch[sampler] = max(told, sampler.epoch + AHEAD)
    later = []
    for epoch in range(told + 1, sampler.epoch + AHEAD + 1):
        later.append(copy.copy(sampler))
        later[-1].epoch = epoch
    return later


_OF_LISTS = (type(iter([])), type(iter(range(0))))


def _copied(iterator):
    """An iterator over what `iterator`, which stays as it is, will give of the list that it goes through."""
    if isinstance(iterator, types.GeneratorType):
        iterator = iterator.gi_yieldfrom
    return copy.copy(iterator) if type(iterator) in _OF_LISTS else iter(())


def _whole(count, batch):
    return count - count % batch


def _first_of(sampler, batch):
    """Its whole batches. Begins the sampler at the first use only."""
    yield from itertools.islice(sampler, _whole(len(sampler), batch))


# ---- the thread that tells it


def _tell(epoch, first, indices, is_ahead=False):
    """Not where too much waits. `first`: the number of its first access; `indices`: the thread's, a list but for what is_ahead."""
    tasks = _state["teller"] or _teller()
    if _state["epochs"].acquire(blocking=False) if is_ahead else tasks.qsize() < MOST_WAITING:
        tasks.put((epoch, first, indices, is_ahead))


def _teller():
    """Its queue; the first one who asks starts it."""
    with _state["starting"]:
        if _state["teller"] is None:
            tasks = queue.SimpleQueue()
            threading.Thread(target=_tell_all, args=(tasks,), name="monarch", daemon=True).start()
            _state["teller"] = tasks
        return _state["teller"]


def _forget_thread():
    """After a fork the child has a thread of its own, once it has something to tell."""
    _state.update(teller=None, starting=threading.Lock(), in_torch=threading.Lock(), epochs=threading.Semaphore(MOST_EPOCHS))


_forget_thread()
os.register_at_fork(after_in_child=_forget_thread)


@atexit.register
def _leave_torch():
    """Keeps the thread out of torch from now on: Python ends threads as it exits, and one in torch ends the program by SIGABRT."""
    _state["in_torch"].acquire(timeout=EXIT_S)


def _tell_all(tasks):
    while True:
        for piece in _together(tasks):
            _guarded(_tell_one, *piece, of=piece[0].files)
            if piece[-1]:
                _state["epochs"].release()
        time.sleep(TOGETHER_S)


def _together(tasks):
    """All that waits, or else comes next. An epoch's batches that follow each other are one."""
    pieces, last = [], {}
    while not pieces or not tasks.empty():
        epoch, first, indices, is_ahead = piece = tasks.get()
        begin, batches = last.get(epoch, (0, ()))
        if first == begin + len(batches) > 0 and not is_ahead:
            batches += indices
            continue
        pieces.append(piece)
        last[epoch] = (0, ()) if is_ahead else (first, indices)
    return pieces


def _tell_one(epoch, first, indices, is_ahead):
    """Nothing once all is staged. Files that the walk of the dataset has not found yet are told again when it has."""
    counts = monarch_io.stats()
    if not counts or epoch.files.failed or (counts["listed"] and counts["staged_files"] == counts["files"]) or epoch.files.are_new():
        return
    with _state["in_torch"]:
        indices = list(map(operator.index, indices))
    _tell_pieces(epoch, first, indices)
    if is_ahead and not counts["listed"] and not epoch.files.learned and _within(LISTING_S, LOOK_S, _is_listed):
        _tell_pieces(epoch, first, indices)


def _is_listed():
    return monarch_io.stats().get("listed")


def _within(seconds, pause, condition):
    """Whether the condition became true within that time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True


class _Files:
    """The numbers by which a dataset's files are told; each file is looked for once, or until it is known."""

    failed = False

    def __init__(self):
        self.paths_of = self.learned = None  # one of them is set
        self._numbers = array.array("I")  # by index; 0: not known

    def are_new(self):
        """Whether nothing is learned yet."""
        why = self.learned and self.learned.why_ended()
        self.failed = self.failed or why is not None
        if why:
            raise RuntimeError(why)
        return self.learned is not None and not self.learned.width()

    def numbers_of(self, indices):
        if self.learned:
            return array.array("I", self.learned.numbers_of(indices))
        if not indices or min(indices) < 0:
            return self._find(indices)
        end = max(indices) + 1
        some = [end - 1, *indices[:LOOKS - 1]]  # fails before the list takes memory for what is none
        if any(self._number(i) not in (0, found) for i, found in zip(some, self._find(some))):
            self._numbers = array.array("I")  # the program has changed its list
        known = len(self._numbers)
        if end <= 4 * len(indices):  # all of a dataset takes less time in its own order
            for piece in _pieces(range(known, end)):
                self._numbers += self._find(piece)
            order = range(known)
        else:
            self._numbers.frombytes(bytes(self._numbers.itemsize * max(end - known, 0)))
            order = indices
        for piece in _pieces([i for i in order if not self._numbers[i]]):
            for i, number in zip(piece, self._find(piece)):
                self._numbers[i] = number
        return array.array("I", map(self._numbers.__getitem__, indices))

    def _find(self, indices):
        with _state["in_torch"]:  # which a list of indices may be of
            paths = self.paths_of(indices)
        return monarch_io._find(paths)

    def _number(self, index):
        return self._numbers[index] if index < len(self._numbers) else 0


def _pieces(sequence):
    return (sequence[at:at + PIECE] for at in range(0, len(sequence), PIECE))


def _tell_pieces(epoch, first, indices):
    first *= torch_learned.MOST_FILES if epoch.files.learned else 1
    for piece in _pieces(epoch.files.numbers_of(indices)):
        if any(piece) and not _within(BEHIND_S, AGAIN_S, functools.partial(_take, piece, epoch, first)):
            return
        first += len(piece)


def _take(piece, epoch, first):
    """Whether the agent has taken it, which it does with all or with none."""
    return monarch_io._hint(piece, epoch.number, epoch.rank, first) == len(piece)
