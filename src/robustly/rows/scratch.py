"""Where do rows wait that were read and checked once? In files without a name, as plain numbers that are mapped into memory.

To decode a row, check it and lay its columns side by side takes longer than a pass does. The first scan of rows that many
passes will read therefore writes what passes see of them to the system's folder for temporary files, and later passes map it
block by block. Nothing is left behind: a file without a name is gone with whoever holds it open, however that ends.
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
        self.file.write(memoryview(np.ascontiguousarray(array)).cast("B"))

    def close(self) -> None:
        """Nothing more is written."""
        if self.file is not None:
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
    if not hasattr(mmap, "MAP_SHARED"):
        return mmap.mmap(number, length, access=mmap.ACCESS_WRITE, offset=offset)
    # Filled by whoever maps it, which is the thread that reads ahead, and not page by page by those that compute.
    flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
    return mmap.mmap(number, length, flags, mmap.PROT_READ | mmap.PROT_WRITE, offset=offset)


def is_constant(array: np.ndarray) -> bool:
    """Whether all rows of an array are one in memory."""
    return array.strides[0] == 0 and array.size > 0


class Scratch:
    """Rows of a store as plain numbers: none, or all of them. Stores of the same rows share it."""

    def __init__(self) -> None:
        self._arrays: tuple[KeptArray, ...] | None = None
        self._weighed = False
        self._refused = False

    @property
    def is_full(self) -> bool:
        return self._arrays is not None

    def kept(self, pieces: Iterator[tuple[Data, Any]], count: int) -> Iterator[tuple[Data, Any]]:
        """The same pieces of `count` rows in all, which are here once the last has been taken."""
        arrays: list[KeptArray] = []
        start, weighed, keeps = 0, False, not self._refused
        for data, weight in pieces:
            if keeps:
                parts = data if weight is None else (*data, np.asarray(weight, dtype=float))
                try:
                    if not arrays:
                        arrays, weighed = [KeptArray.like(part, count) for part in parts], weight is not None
                    if weighed != (weight is not None):
                        raise CannotKeep
                    for array, part in zip(arrays, parts, strict=True):
                        array.add(part, start)
                except (CannotKeep, OSError):
                    # They are read again each time, which takes longer and gives the same.
                    arrays, keeps, self._refused = [], False, True
            start += len(data[0])
            yield data, weight
        if keeps and start == count and arrays:
            for array in arrays:
                array.close()
            self._arrays, self._weighed = tuple(arrays), weighed

    def at(self, place: slice) -> tuple[Data, Any]:
        """Some rows, and their weights where they have any."""
        assert self._arrays is not None
        found = tuple(array.at(place) for array in self._arrays)
        return (found[:-1], found[-1]) if self._weighed else (found, None)

    def weight(self) -> np.ndarray | None:
        """The weights of all rows, in memory; None where rows count once each."""
        assert self._arrays is not None
        return np.array(self._arrays[-1].at(slice(0, self._arrays[-1].count))) if self._weighed else None
