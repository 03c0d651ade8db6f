"""Rows of unlike length on disk: a sparse table of whole numbers in flat files, written once in order and read some rows at a time.

Ids and counts take eight bytes an entry on disk; where rows begin takes eight bytes a row in memory. What passes keep of such
rows is larger than the rows themselves, so it waits on disk as well.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from robustly.errors import DataError, PersistError

if TYPE_CHECKING:
    from scipy import sparse

ID, COUNT = np.dtype(np.int32), np.dtype(np.uint32)
LARGEST_COUNT = np.iinfo(COUNT).max
# Entries that are collected before they are written.
WRITTEN_AT_ONCE = 1 << 18


class ScratchFolder:
    """A folder that is gone with what holds it; `inside` says where, the system's folder for such files unless told."""

    def __init__(self, inside: str | os.PathLike[str] | None = None) -> None:
        try:
            self.name = tempfile.mkdtemp(prefix="robustly-", dir=inside)
        except OSError as error:
            raise PersistError(
                f"cannot make a folder in {inside}: {error.strerror}. Name one that you may write."
            ) from error
        weakref.finalize(self, shutil.rmtree, self.name, ignore_errors=True)


@dataclass(frozen=True, eq=False)
class TableFiles:
    """A table of rows × columns whose entries are in two files; `indptr` says where each row begins."""

    folder: ScratchFolder
    indptr: np.ndarray
    columns: int
    dtype: DTypeLike = np.float64
    """Of counts, as passes get them."""

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.indptr) - 1, self.columns

    @property
    def nnz(self) -> int:
        return int(self.indptr[-1])

    def __len__(self) -> int:
        return self.shape[0]

    def astype(self, dtype: DTypeLike) -> TableFiles:
        """The same files with counts of another type."""
        return replace(self, dtype=dtype)

    def _read(self, name: str, kind: np.dtype, begin: int, end: int) -> np.ndarray:
        path = Path(self.folder.name, name)
        try:
            found = np.fromfile(path, kind, int(end - begin), offset=int(begin) * kind.itemsize)
        except OSError as error:
            raise DataError(f"cannot read {path} any more: {error.strerror}. Fit again.") from error
        if len(found) != end - begin:
            raise DataError(f"{path} is shorter than it was written. Leave it as it is during a fit, and fit again.")
        return found

    def cut(self, place: slice) -> sparse.csr_matrix:
        """Rows that follow each other, in memory."""
        from scipy import sparse

        begin, end = self.indptr[place.start], self.indptr[place.stop]
        counts = self._read("counts", COUNT, begin, end).astype(self.dtype)
        starts = (self.indptr[place.start : place.stop + 1] - begin).astype(np.int32)
        parts = counts, self._read("ids", ID, begin, end), starts
        return sparse.csr_matrix(parts, shape=(place.stop - place.start, self.columns))

    def __getitem__(self, index: np.ndarray) -> sparse.csr_matrix:
        """Rows by their numbers, in memory."""
        from scipy import sparse

        each = [self.cut(slice(int(row), int(row) + 1)) for row in np.asarray(index)]
        return sparse.vstack(each, format="csr") if each else sparse.csr_matrix((0, self.columns), dtype=self.dtype)


class TableWriter:
    """Writes a :class:`TableFiles` row by row."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = ScratchFolder(folder)
        self.sizes: list[int] = []
        self.largest = -1
        self._ids: list[np.ndarray] = []
        self._counts: list[np.ndarray] = []
        self._waiting = 0

    def add(self, ids: Any, counts: Any) -> None:
        """One more row; ids may come in any order, and those that come twice are added up."""
        words, back = np.unique(np.asarray(ids, dtype=np.int64), return_inverse=True)
        numbers = np.bincount(back, weights=np.asarray(counts, dtype=float), minlength=len(words))
        words, numbers = words[numbers > 0], numbers[numbers > 0]
        if len(numbers) and numbers.max() > LARGEST_COUNT:
            raise DataError(
                f"document {len(self.sizes)} holds the count {numbers.max():g}; at most {LARGEST_COUNT} is kept."
            )
        self.sizes.append(len(words))
        if len(words):
            self.largest = max(self.largest, int(words[-1]))
        self._ids.append(words.astype(ID))
        self._counts.append(numbers.astype(COUNT))
        self._waiting += len(words)
        if self._waiting >= WRITTEN_AT_ONCE:
            self._write()

    def _write(self) -> None:
        for name, parts in (("ids", self._ids), ("counts", self._counts)):
            path = Path(self.folder.name, name)
            try:
                with path.open("ab") as stream:
                    stream.write(np.concatenate(parts).tobytes() if parts else b"")
            except OSError as error:
                raise PersistError(
                    f"cannot write {path}: {error.strerror}. Name a folder with more room (folder=…)."
                ) from error
        self._ids, self._counts, self._waiting = [], [], 0

    def finish(self, columns: int | None = None) -> TableFiles:
        """The table, once all rows are there; without `columns` as many as the largest id needs."""
        self._write()
        starts = np.concatenate([[0], np.cumsum(self.sizes, dtype=np.int64)]).astype(np.int64)
        return TableFiles(self.folder, starts, self.largest + 1 if columns is None else columns)


class StateFile:
    """The state of one chunk, a few arrays by name, in a file that is gone with it."""

    def __init__(self, folder: ScratchFolder, state: dict[str, np.ndarray]) -> None:
        try:
            number, path = tempfile.mkstemp(".npz", "state-", folder.name)
            with os.fdopen(number, "wb") as stream:
                arrays: dict[str, Any] = {**state}
                np.savez(stream, **arrays)
        except OSError as error:
            raise PersistError(
                f"cannot write to {folder.name}: {error.strerror}. Name a folder with more room (folder=…)."
            ) from error
        self.path, self._folder = path, folder
        weakref.finalize(self, Path(path).unlink, missing_ok=True)

    def load(self) -> dict[str, np.ndarray]:
        with np.load(self.path, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
