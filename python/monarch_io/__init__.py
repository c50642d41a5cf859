# SPDX-License-Identifier: Apache-2.0
"""Monarch for Python programs: which files they will read next, and how much of the dataset is staged.

Calls libmonarch, see monarch(3). Without a job of Monarch's nothing is told, and nothing is staged.
"""

import array
import ctypes
import errno
import functools
import glob
import os
import time

__all__ = ["attach", "hint", "stats", "wait"]


class _Order(ctypes.Structure):
    """struct monarch_order."""

    _fields_ = [("epoch", ctypes.c_uint32), ("rank", ctypes.c_uint32), ("first", ctypes.c_uint64)]


class _Counts(ctypes.Structure):
    """struct monarch_counts."""

    _fields_ = [(name, ctypes.c_uint64) for name in (
        "files", "bytes", "staged_files", "staged_bytes", "listed", "opens_tier", "opens_pfs",
        "read_bytes_tier", "read_bytes_pfs", "waits", "wait_ns")]


@functools.lru_cache(maxsize=None)
def _library():
    """libmonarch of this installation, PREFIX/share/monarch/python/monarch_io, else as the linker finds it."""
    prefix = os.path.abspath(__file__ + "/../../../../..")
    found = glob.glob(glob.escape(prefix) + "/lib*/libmonarch.so.1")
    library = ctypes.CDLL(found[0] if found else "libmonarch.so.1", use_errno=True)
    library.monarch_find.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_uint32)]
    library.monarch_hint_found.argtypes = [ctypes.POINTER(ctypes.c_uint32), ctypes.c_size_t, ctypes.POINTER(_Order)]
    library.monarch_hint_found.restype = ctypes.c_ssize_t
    library.monarch_wait.argtypes = [ctypes.c_double, ctypes.c_int]
    library.monarch_stats.argtypes = [ctypes.POINTER(_Counts), ctypes.c_size_t]
    return library


def _failed(*expected):
    """Raises what the last call has failed by, unless it is one of these."""
    error = ctypes.get_errno()
    if error not in expected:
        raise OSError(error, os.strerror(error))


def hint(paths, epoch=0, rank=None, first=0):
    """Tells that this process will read these files in this order, as monarch_hint(3).

    `first`: how many accesses of this rank in this epoch come before them; `rank`: by default $SLURM_PROCID,
    else 0. Returns how many of the paths, from the first on, were taken: fewer than all while the agent is
    behind, and 0 without a job. Never waits. Raises OSError where libmonarch is missing.
    """
    return _hint(_find(paths), epoch, rank, first)


def _find(paths):
    """The numbers of these files by monarch_find()."""
    names = list(paths)
    try:
        joined = "\0".join(names).encode("ascii")
    except (TypeError, UnicodeEncodeError):  # takes longer
        joined = b"\0".join(map(os.fsencode, names))
    numbers = array.array("I", bytes(4 * len(names)))
    if _library().monarch_find(joined, len(names), _pointer(numbers)) != 0:
        _failed(errno.ENOTCONN)
    return numbers


def _number_of(path):
    """_find() of one file, in a third of the time."""
    number = ctypes.c_uint32()
    if _library().monarch_find(os.fsencode(path), 1, ctypes.byref(number)) != 0:
        _failed(errno.ENOTCONN)
    return number.value


def _pointer(numbers):
    return (ctypes.c_uint32 * len(numbers)).from_buffer(numbers)


def _hint(numbers, epoch, rank, first):
    """hint() of what _find() has found."""
    own = int(os.environ.get("SLURM_PROCID") or 0) if rank is None else rank
    order = _Order(epoch, own, first)
    taken = _library().monarch_hint_found(_pointer(numbers), len(numbers), ctypes.byref(order))
    if taken < 0:
        _failed(errno.ENOTCONN)
    return max(taken, 0)


def wait(fraction, timeout=None):
    """Waits until the fraction (0 to 1) of the dataset's bytes is staged on this node, or `timeout` seconds.

    Returns whether it is staged: False if the time is over, no more will be staged, or there is no job. Raises
    OSError where there is no such fraction, or libmonarch is missing.
    """
    end = float("inf") if timeout is None else time.monotonic() + timeout
    while True:  # signals are handled between the calls
        rest = min(max(end - time.monotonic(), 0), 0.5)
        if _library().monarch_wait(fraction, int(rest * 1000)) == 0:
            return True
        _failed(errno.ETIMEDOUT, errno.ENODATA, errno.ENOTCONN)
        if ctypes.get_errno() != errno.ETIMEDOUT or rest == 0:
            return False


def stats():
    """The counts of monarch_stats(3) by name, of this node and the job so far; {} without a job."""
    counts = _Counts()
    if _library().monarch_stats(ctypes.byref(counts), ctypes.sizeof(counts)) != 0:
        _failed(errno.ENOTCONN)
        return {}
    return {name: getattr(counts, name) for name, _ in counts._fields_}


def attach(loader):
    """Gives hints for a DataLoader of torch whose iterators begin from now on, as --monarch-hints=torch does
    for all (monarch(7)). Returns the loader. Not needed with that option.
    """
    from monarch_io import torch_hints  # pylint: disable=import-outside-toplevel
    return torch_hints.attach(loader)
