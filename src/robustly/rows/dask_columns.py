"""Which columns of a Dask collection are the rows? Its partitions, read and checked once, as rows that stay on the workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from robustly.errors import DataError, RobustlyError
from robustly.rows.arrays import ArrayRows
from robustly.rows.dask import DaskRows, dask_client, rows_of_parts
from robustly.rows.dask_tasks import as_it_is
from robustly.rows.stored import Layout, Stored
from robustly.rows.streamed import Piece, Recipe, located, made


@dataclass(frozen=True, eq=False)
class DaskColumns(Stored):
    """Columns of a Dask data frame, or a Dask array."""

    collection: Any = None

    @staticmethod
    def of(collection: Any) -> DaskColumns:
        """An array is a vector or a matrix; a series is a vector, a frame a frame."""
        if _is_table(collection):
            return DaskColumns(collection=collection)
        if not hasattr(collection, "chunks"):
            name = getattr(collection, "name", None)
            return DaskColumns(columns="0" if name is None else str(name), collection=collection)
        if collection.ndim not in (1, 2):
            raise DataError(f"a Dask array of rows has one or two axes; got {collection.ndim}.")
        if collection.ndim == 1:
            return DaskColumns(columns="0", collection=collection)
        if len(collection.chunks[1]) > 1:
            collection = collection.rechunk({1: -1})
        return DaskColumns(columns=tuple(f"x{j}" for j in range(collection.shape[1])), collection=collection)

    @property
    def there(self) -> tuple[str, ...]:
        if self.named:
            return tuple(str(name) for name in self.collection.columns)
        return self.listed if self.columns is not None else ()

    @property
    def where(self) -> str:
        return "Dask partitions"

    @cached_property
    def _lengths(self) -> tuple[int, ...]:
        return tuple(dask_client().gather(dask_client().compute([_delayed_len(one) for one in self.blocks()])))

    def __len__(self) -> int:
        return sum(self._lengths)

    @property
    def named(self) -> bool:
        """Whether columns are picked by their names."""
        return _is_table(self.collection)

    def blocks(self, *, as_cut: bool = False) -> list[Any]:
        """The partitions of what was asked for, as delayed objects.

        Dask reads few columns of many small files in fewer partitions than the collection says; not so if `as_cut`.
        """
        collection = self.collection
        if self.named and self.columns is not None:
            collection = collection[self.columns if isinstance(self.columns, str) else list(self.columns)]
        return list(np.ravel(collection.to_delayed(optimize_graph=not as_cut)))

    def rows(self, asked: Sequence[Any], layout: Layout) -> DaskRows:
        for one in asked:
            if not isinstance(one, DaskColumns):
                raise DataError(
                    "columns of one fit live in one place, but beside Dask collections something else came."
                )
        blocks = [one.blocks(as_cut=layout.as_cut) for one in asked]
        if len({len(found) for found in blocks}) > 1:
            blocks = [one.blocks(as_cut=True) for one in asked]
        for one, found in zip(asked, blocks):
            if len(found) != len(blocks[0]):
                raise DataError(
                    f"collections of one fit are cut alike, but they have {len(blocks[0])} and {len(found)} partitions. "
                    f"Rechunk them, or put {one.columns} beside the others in one data frame."
                )
        kinds = tuple("frame" if one.is_frame else "vector" if one.ndim_asked == 1 else "matrix" for one in asked)
        names = tuple(one.listed for one in asked)
        return make_dask_rows(blocks, kinds, names, layout)

    @property
    def ndim_asked(self) -> int:
        return 1 if isinstance(self.columns, str) else 2


def _is_table(collection: Any) -> bool:
    return hasattr(collection, "columns") and getattr(collection, "ndim", 2) == 2 and not hasattr(collection, "chunks")


def _delayed_len(block: Any) -> Any:
    import dask

    return dask.delayed(len)(block)


def read_part(kind: str, listed: tuple[str, ...], block: Any) -> Any:
    """A partition as a frame, a matrix or a vector of numbers, checked."""
    if kind == "frame":
        return block.reset_index(drop=True)
    array = block.to_numpy() if hasattr(block, "to_numpy") else np.asarray(block)
    if array.dtype == object or array.dtype.kind in "USMm":
        if kind == "vector" and array.dtype.kind in "OU":
            return array  # words of a response
        raise DataError(
            f"columns {', '.join(listed[:4])} hold {array.dtype}, but numbers are needed. Encode them first."
        )
    if array.dtype.kind in "iu":
        return array.astype(np.float64 if kind == "matrix" else np.int64)
    if array.dtype.kind == "f":
        array = array.astype(np.float64, copy=False)
        with np.errstate(over="ignore", invalid="ignore"):
            whole = np.isfinite(array.sum())
        bad = np.zeros((0, array.ndim), dtype=int) if whole else np.argwhere(~np.isfinite(array))
        if len(bad):
            name = listed[bad[0][1]] if array.ndim == 2 else listed[0]
            what = "a missing value (NaN)" if np.isnan(array[tuple(bad[0])]) else f"{array[tuple(bad[0])]}"
            raise DataError(f'column "{name}" holds {what} in row {bad[0][0]}. Drop or fill these rows.')
    return array.astype(float, copy=False) if kind == "matrix" else array


def make_part(
    recipe: Recipe, kinds: tuple[str, ...], names: tuple[tuple[str, ...], ...], place: int, *blocks: Any
) -> ArrayRows:
    """The rows of a partition, as passes see them."""
    where = f"partition {place}"
    try:
        parts = tuple(read_part(kind, listed, block) for kind, listed, block in zip(kinds, names, blocks))
    except RobustlyError as error:
        raise located(error, where, 0) from None
    counts = {len(part) for part in parts}
    if len(counts) > 1:
        raise DataError(
            f"{where}: columns have {', '.join(str(len(part)) for part in parts)} rows. Collections of one fit are cut alike: "
            "rechunk them."
        )
    data, weight = made(Piece(parts, len(parts[0]), where), recipe) if len(parts[0]) else ((), None)
    weights = np.ones(len(parts[0])) if weight is None else np.asarray(weight, dtype=float)
    return ArrayRows(data, weights)


def make_dask_rows(
    blocks: Sequence[Sequence[Any]], kinds: tuple[str, ...], names: tuple[tuple[str, ...], ...], layout: Layout
) -> DaskRows:
    """A store of partitions, which stay on the workers from here on."""
    import dask

    make = dask.delayed(make_part, pure=False)
    recipe = dask_client().submit(as_it_is, layout.recipe, pure=False)
    delayed = [make(recipe, kinds, names, place, *some) for place, some in enumerate(zip(*blocks))]
    return rows_of_parts(delayed, layout.labels, layout.chunk, layout.padded)
