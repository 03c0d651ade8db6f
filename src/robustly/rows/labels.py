"""Which row of the user's data is this? Labels of rows, and the rows that were left out for missing values."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from robustly.errors import DataError, ModelError, NotANumberError, names

ACTIONS = ("raise", "drop")
LISTED = 10


@dataclass(frozen=True, eq=False)
class RowLabels:
    """What the rows of a fit are called where they came from: the index of a frame, or their places in it."""

    labels: np.ndarray | None = None
    """Labels of the rows that were used; None where they are counted from 0."""
    kept: np.ndarray | None = None
    """Places of the rows that were used among those that came, where some were dropped."""
    dropped: tuple[Any, ...] = ()
    """Labels of rows that were dropped."""
    lacking: tuple[str, ...] = ()
    """The columns in which they had no value."""

    def of(self, rows: np.ndarray) -> np.ndarray:
        """The labels of some rows."""
        return rows if self.labels is None else self.labels[np.asarray(rows, dtype=int)]

    def places(self, rows: np.ndarray) -> np.ndarray:
        """Where some rows stand among those that came."""
        rows = np.asarray(rows, dtype=int)
        return rows if self.kept is None else self.kept[rows]

    def only(self, used: np.ndarray, lacking: Iterable[str]) -> RowLabels:
        """With some rows dropped."""
        if used.all():
            return self
        kept = np.flatnonzero(used)
        every = np.arange(len(used)) if self.labels is None else self.labels
        return RowLabels(every[kept], kept, tuple(every[~used].tolist()), tuple(sorted(lacking)))

    def note(self) -> tuple[str, ...]:
        """What a summary says of the rows that were dropped."""
        if not self.dropped:
            return ()
        count = len(self.dropped)
        listed = ", ".join(str(label) for label in self.dropped[:LISTED])
        more = f" and {count - LISTED} more" if count > LISTED else ""
        what = f"row {listed} was" if count == 1 else f"{count} rows were"
        rest = "" if count == 1 else f": {listed}{more}"
        return (f"{what} dropped for missing values in {names(self.lacking)}{rest}.",)


def labels_of_rows(data: Any) -> RowLabels:
    """Those of a pandas frame, where its index says more than the count from 0 and tells all rows apart."""
    index = getattr(data, "index", None)
    if index is None or callable(index) or not hasattr(index, "is_unique") or not index.is_unique:
        return RowLabels()
    if (getattr(index, "start", None), getattr(index, "step", None)) == (0, 1):
        return RowLabels()
    labels = index.to_numpy()
    if labels.dtype.kind in "iu" and np.array_equal(labels, np.arange(len(labels))):
        return RowLabels()
    return RowLabels(labels)


def check_na_action(action: Any) -> None:
    """Refuse what is not one of the two."""
    if action not in ACTIONS:
        raise ModelError(f'na_action takes "raise", or "drop" to leave out rows with missing values; got {action!r}.')


def missing_by_row(parts: Mapping[str, Any], n: int) -> dict[str, np.ndarray]:
    """Which rows of some arrays lack a value, by the name of the array; what is not by row is left alone."""
    found = {}
    for name, part in parts.items():
        if part is None or np.ndim(part) == 0 or np.shape(part)[0] != n:
            continue
        if hasattr(part, "tocsr"):
            gone: np.ndarray = np.zeros(n, dtype=bool)
            gone[part.tocsr().tocoo().row[np.isnan(part.tocsr().data)]] = True
        else:
            import pandas as pd

            gone = np.any(np.asarray(pd.isna(np.asarray(part))).reshape(n, -1), axis=1)
        if gone.any():
            found[name] = gone
    return found


def taken(part: Any, used: np.ndarray) -> Any:
    """Some rows of what came with the rows; numbers for all rows stay as they are. One of another length would stand beside other rows."""
    if part is None or isinstance(part, str) or np.ndim(part) == 0:
        return part
    if np.shape(part)[0] != len(used):
        raise DataError(
            f"an argument has {np.shape(part)[0]} values, but the data have {len(used)} rows before those with missing values are dropped. "
            "Give one value a row, in the order of the data."
        )
    if hasattr(part, "iloc"):
        return part.iloc[np.flatnonzero(used)]
    return (part if hasattr(part, "tocsr") else np.asarray(part))[used]


def used_rows(gone: Mapping[str, np.ndarray], n: int) -> np.ndarray:
    """Rows that lack nothing; an error if none is left."""
    used = ~np.any([np.zeros(n, dtype=bool), *gone.values()], axis=0)
    if not used.any():
        raise DataError(
            f"every row lacks a value in {names(gone)}, so no row is left. Leave out a column, or fill its values."
        )
    return used


def refuse_other_length(rows: int, label: str, given: Any) -> None:
    """What goes along with rows has one value for all or as many as there are rows; it is never cut or repeated."""
    if given is not None and np.ndim(given) > 0 and np.shape(given)[0] != rows:
        raise DataError(
            f"{label} has {np.shape(given)[0]} values, but the data have {rows} rows. Give one value a row, in the order of "
            "the data."
        )


def refuse_elsewhere(given: Any, label: str) -> None:
    """Columns that live elsewhere, where a model would bring them into memory without a word."""
    if isinstance(given, np.ndarray | list | tuple) or given is None:
        return
    in_dask = hasattr(given, "__dask_graph__") and hasattr(given, "to_delayed")
    if in_dask or getattr(type(given), "lives_elsewhere", False):
        raise DataError(
            f"{label} is in {'Dask partitions' if in_dask else given.where}, and rows in memory are needed here. Read them, or some of them: pandas.read_parquet(path), "
            "collection.compute()."
        )


def as_numbers(given: Any, label: str) -> Any:
    """An array that came as numbers, if nothing of it would be lost: no imaginary parts, no masks."""
    refuse_elsewhere(given, label)
    if isinstance(given, np.ma.MaskedArray):
        hidden = np.ma.getmaskarray(given)
        if hidden.any():
            row = int(np.argwhere(hidden)[0][0])
            more = f" and {int(hidden.sum()) - 1} more" if hidden.sum() > 1 else ""
            raise DataError(
                f"{label} is masked in row {row}{more}, and masks would be forgotten. Drop these rows, or fill them with "
                'NaN (array.filled(np.nan)) and give na_action="drop".'
            )
        given = np.asarray(given)
    if isinstance(given, list | tuple):
        try:
            given = np.asarray(given)
        except ValueError:
            raise DataError(
                f"{label} is a list whose rows are of unlike length. Give every row as many numbers."
            ) from None
    if isinstance(given, np.ndarray) and given.dtype == object:
        for place, value in np.ndenumerate(given):
            if isinstance(value, int) and abs(value) > sys.float_info.max:
                raise DataError(
                    f"{label} holds a whole number of {len(str(value))} digits in row {place[0]}, beyond floating point."
                )
    if getattr(getattr(given, "dtype", None), "kind", "") == "c" or isinstance(given, complex):
        raise DataError(f"{label} holds complex numbers. Complex data not supported: give real numbers.")
    return given


def as_floats(given: Any, label: str) -> np.ndarray:
    """What stands beside the rows as numbers, or the first entry that is none."""
    given = as_numbers(given, label)
    try:
        return np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        for row, value in enumerate(np.ravel(np.asarray(given, dtype=object))):
            try:
                float(value)
            except TypeError:
                raise NotANumberError(
                    f"{label}: row {row} holds {value!r}, but every argument must be a number, or a string that is a "
                    "number. Correct that row."
                ) from None
            except (ValueError, OverflowError):
                raise DataError(
                    f"{label}: row {row} holds {value!r}, which is not a number. Give one number a row."
                ) from None
        raise DataError(f"{label} holds something that is not one number a row. Give one number a row.") from None
