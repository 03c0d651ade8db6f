"""Which columns of rows that live elsewhere does a fit take? What Parquet files and Dask collections have in common.

A fit is given columns in place of arrays: a list of names stands for a matrix, a single name for a vector, no names for a data
frame. :mod:`robustly.rows.anywhere` tells them from arrays and puts columns of the same rows together into a store.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from robustly.errors import DataError, did_you_mean, names
from robustly.rows.arrays import CHUNK
from robustly.rows.store import Rows
from robustly.rows.streamed import Recipe


@dataclass(frozen=True)
class Layout:
    """How a store is to make rows of what it reads."""

    recipe: Recipe
    labels: tuple[str, ...]
    chunk: int = CHUNK
    padded: bool = True
    many_passes: bool = False
    """Whether rows will be read so often that files are to be decoded once, into plain numbers."""
    as_cut: bool = False
    """Whether partitions have to be those of other stores of the same collection."""


@dataclass(frozen=True, eq=False)
class Stored(ABC):
    """Some columns of rows that live elsewhere."""

    lives_elsewhere: ClassVar[bool] = True

    columns: str | tuple[str, ...] | None = None
    """One name for a vector, several for a matrix, None for a frame."""
    framed: bool = False
    """Whether several columns make a frame and not a matrix."""

    @property
    @abstractmethod
    def there(self) -> tuple[str, ...]:
        """All columns that there are."""

    @property
    @abstractmethod
    def where(self) -> str:
        """The place, for errors."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def rows(self, asked: Sequence[Any], layout: Layout) -> Rows:
        """A store of these columns; `asked` are columns of the same rows, these among them."""

    @property
    def listed(self) -> tuple[str, ...]:
        """The names of the columns."""
        if self.columns is None:
            return self.there
        return (self.columns,) if isinstance(self.columns, str) else self.columns

    @property
    def is_frame(self) -> bool:
        return self.columns is None or self.framed

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self),) if isinstance(self.columns, str) else (len(self), len(self.listed))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def pick(self, columns: str | tuple[str, ...], *, framed: bool = False) -> Self:
        """Other columns of the same rows; they have to be there."""
        wanted = (columns,) if isinstance(columns, str) else columns
        if not wanted:
            raise DataError(f"no columns of {self.where} are left to fit; it has {some_names(self.there)}.")
        for name in wanted:
            if name not in self.there:
                raise DataError(
                    f'{self.where} has no column "{name}"; there are {some_names(self.there)}.'
                    + did_you_mean(str(name), self.there)
                )
        return replace(self, columns=columns, framed=framed)

    def matrix_beside(self, others: Sequence[Any]) -> Self:
        """As a matrix: the columns asked for, or all but those that are taken for something else."""
        taken = {name for one in others if isinstance(one, Stored) for name in one.listed}
        if self.columns is None:
            return self.pick(tuple(name for name in self.there if name not in taken))
        return replace(self, columns=self.listed, framed=False)

    def gathered(self) -> np.ndarray:
        """The columns themselves, all rows in memory."""
        return np.asarray(self.rows([self], Layout(column_as_it_is, ("column",))).column(0))


def column_as_it_is(column: Any) -> tuple[tuple[Any], None]:
    """The recipe of a single column."""
    return (np.asarray(column),), None


def some_names(listed: Sequence[str]) -> str:
    """The first names of many."""
    return names(list(listed)[:20]) + (f" and {len(listed) - 20} more" if len(listed) > 20 else "")
