"""Where do rows wait that were read and checked once? In files without a name, as plain numbers that are mapped into memory.

To decode a row, check it and lay its columns side by side takes longer than a pass does. The first scan of rows that many
passes will read therefore writes what passes see of them to the system's folder for temporary files, and passes, the first one
too, map it block by block. Nothing is left behind: a file without a name is gone with whoever holds it open, however that ends.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any
from weakref import finalize

import numpy as np

from robustly.rows.store import Data

ZEROS = bytes(1 << 20)
# Files may take this share of the room that is free: others write too, and the folder may itself be kept in memory.
MOST_OF_FREE = 0.5
# Bytes that are written at a time. For 2 MB and more Linux takes huge pages, which are seldom at hand: five times as long.
AT_ONCE = 1 << 20


def nameless_file(size: int) -> IO[bytes]:
    """An open file with room for so many bytes, which no folder lists. All room is taken now."""
    stream = tempfile.TemporaryFile()  # noqa: SIM115  (whoever asked for it closes it)
    try:
        # A disk that is full while a mapped array is written ends the process without a word.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(stream.fileno(), 0, max(1, size))
        else:
            for start in range(0, size, len(ZEROS)):
                stream.write(ZEROS[: size - start])
            stream.seek(0)
    except BaseException:
        stream.close()
        raise
    return stream


class CannotKeep(Exception):
    """Rows that are read again for every pass, as there is no room for them or they are no plain numbers."""


@dataclass(eq=False)
class KeptArray:
    """One of the arrays that passes see: the one value that all rows have, or a file."""

    count: int
    """Rows there will be."""
    dtype: np.dtype[Any]
    inner: tuple[int, ...]
    """The shape of a row."""
    constant: np.ndarray | None = None
    file: IO[bytes] | None = field(default=None, repr=False)

    @classmethod
    def like(cls, array: Any, count: int) -> KeptArray:
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
            raise CannotKeep
        kept = cls(count, array.dtype, array.shape[1:])
        if is_constant(array):
            kept.constant = array[:1].copy()
        return kept

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.inner))

    def add(self, array: Any, start: int) -> None:
        """The next rows, of which `start` came before."""
        if not isinstance(array, np.ndarray) or array.dtype != self.dtype or array.shape[1:] != self.inner:
            raise CannotKeep
        if self.constant is not None:
            if is_constant(array) and np.array_equal(array[:1], self.constant):
                return
            before, self.constant = np.broadcast_to(self.constant, (start, *self.inner)), None
            self._write(before)
        self._write(array)

    def _write(self, array: np.ndarray) -> None:
        if self.file is None:
            size = self.count * self.row_bytes
            if size > MOST_OF_FREE * shutil.disk_usage(tempfile.gettempdir()).free:
                raise CannotKeep
            self.file = nameless_file(size)
            finalize(self, self.file.close)
        whole = memoryview(np.ascontiguousarray(array)).cast("B")
        for start in range(0, len(whole), AT_ONCE):
            self.file.write(whole[start : start + AT_ONCE])
        self.file.flush()

    def at(self, place: slice) -> np.ndarray:
        """Some rows; those of a file are mapped, and in memory as long as the array is used."""
        shape = (place.stop - place.start, *self.inner)
        if self.constant is not None:
            return np.broadcast_to(self.constant, shape)
        first, size = place.start * self.row_bytes, shape[0] * self.row_bytes
        if self.file is None or not size:
            return np.empty(shape, self.dtype)
        before = first % mmap.ALLOCATIONGRANULARITY
        mapped = _part_of_file(self.file.fileno(), first - before, before + size)
        return np.frombuffer(mapped, self.dtype, size // self.dtype.itemsize, before).reshape(shape)


def _part_of_file(number: int, offset: int, length: int) -> mmap.mmap:
    """Pages are entered by whoever reads them, many at a time. To enter all when mapping takes longer, and marks them as written."""
    mapped = mmap.mmap(number, length, access=mmap.ACCESS_WRITE, offset=offset)
    if hasattr(mmap, "MADV_WILLNEED") and not _is_cached(number, offset):
        mapped.madvise(mmap.MADV_WILLNEED)  # it is read from disk while another block is used
    return mapped


def _is_cached(number: int, offset: int) -> bool:
    """Whether a page of a file is in memory, where the system tells; to ask for those that are takes as long as to map them."""
    try:
        return os.preadv(number, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except (AttributeError, OSError):
        return False


def is_constant(array: np.ndarray) -> bool:
    """Whether all rows of an array are one in memory."""
    return array.strides[0] == 0 and array.size > 0


class KeptRows:
    """Rows as plain numbers, as far as they have come."""

    def __init__(self, count: int) -> None:
        self.count, self.so_far = count, 0
        """Rows there will be, and those that are there."""
        self._arrays: list[KeptArray] = []
        self._weighed = False

    def add(self, data: Data, weight: Any) -> None:
        """The next rows."""
        parts = data if weight is None else (*data, np.asarray(weight, dtype=float))
        if not self._arrays:
            self._arrays, self._weighed = [KeptArray.like(part, self.count) for part in parts], weight is not None
        if self._weighed != (weight is not None) or self.so_far + len(data[0]) > self.count:
            raise CannotKeep
        for array, part in zip(self._arrays, parts, strict=True):
            array.add(part, self.so_far)
        self.so_far += len(data[0])

    def at(self, place: slice) -> tuple[Data, Any]:
        """Some rows, and their weights where they have any."""
        found = tuple(array.at(place) for array in self._arrays)
        return (found[:-1], found[-1]) if self._weighed else (found, None)

    def weight(self) -> np.ndarray | None:
        """The weights of all rows, in memory; None where rows count once each."""
        return np.array(self._arrays[-1].at(slice(0, self.count))) if self._weighed else None


class Scratch:
    """Where all rows of a store are kept, once a scan has been through them. Stores of the same rows share it."""

    def __init__(self) -> None:
        self.full: KeptRows | None = None
        self.refused = False
        """Whether rows could not be kept: they are read again each time, which takes longer and gives the same."""

    def filled(self, pieces: Iterator[tuple[Data, Any]], count: int) -> Iterator[KeptRows]:
        """The rows kept so far, after each of the pieces of `count` rows in all; it ends early where they cannot be kept."""
        kept = KeptRows(count)
        for data, weight in pieces:
            try:
                kept.add(data, weight)
            except (CannotKeep, OSError):
                self.refused = True
                return
            if kept.so_far == count:
                self.full = kept
            yield kept
