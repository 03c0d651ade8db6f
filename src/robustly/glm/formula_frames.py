"""Which values does a formula find in a data frame? Columns by name, and what is wrong with them by row."""

from __future__ import annotations

import decimal
import math
import numbers
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from robustly.errors import DataError, did_you_mean, names
from robustly.rows.labels import as_floats, refuse_elsewhere


def as_pandas(data: Any) -> pd.DataFrame:
    """A pandas frame from any that narwhals knows, or a dictionary of columns."""
    if isinstance(data, pd.DataFrame):
        return data
    refuse_elsewhere(data, "data")
    if isinstance(data, dict):
        try:
            return pd.DataFrame(data)
        except ValueError as error:
            raise DataError(f"the columns of data do not make a frame: {error}. Give columns of one length.") from None
    try:
        import narwhals as nw

        frame = nw.from_native(data, eager_only=True)
    except (TypeError, ImportError):
        raise DataError(
            f"data is a pandas or polars frame, or a dictionary of columns; got {type(data).__name__}."
        ) from None
    return pd.DataFrame({name: frame[name].to_numpy() for name in frame.columns})


def refuse_missing(frame: pd.DataFrame, wanted: Iterable[str], rows: bool = True) -> None:
    """Columns that are not there or there twice, and, of `rows`, those without a value."""
    for name in sorted(str(one) for one in wanted):
        if name not in frame.columns:
            there = [str(one) for one in frame.columns]
            listed = names(there[:20]) + (f" and {len(there) - 20} more" if len(there) > 20 else "")
            raise DataError(
                f'the formula speaks of "{name}", which is not in the data; there are {listed}.'
                + did_you_mean(name, there)
            )
        column = frame[name]
        if isinstance(column, pd.DataFrame):
            raise DataError(f'the data have {column.shape[1]} columns called "{name}". Rename or drop all but one.')
        gone = np.flatnonzero(column.isna().to_numpy()) if rows else np.zeros(0, dtype=int)
        if gone.size:
            more = f" and {gone.size - 1} more" if gone.size > 1 else ""
            raise DataError(
                f'column "{name}" holds a missing value in row {gone[0]}{more}. Drop or fill these rows; na_action="drop" '
                "leaves them out."
            )


def _reads_as_number(value: Any) -> bool:
    try:
        return not math.isnan(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


def refuse_texts(column: pd.Series, name: str, what: str = "numbers are needed") -> None:
    """The first value of a column that is no number."""
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_complex_dtype(column):
        return
    if pd.api.types.is_string_dtype(column) or column.dtype == object:
        bad = np.flatnonzero([not _reads_as_number(one) for one in column] & ~column.isna().to_numpy())
    else:
        bad = np.zeros(0, dtype=int)
    place = f'"{str(column.iloc[bad[0]])[:60]}" in row {bad[0]}' if bad.size else f"values of type {column.dtype}"
    more = f" (and in {bad.size - 1} more rows)" if bad.size > 1 else ""
    raise DataError(f'column "{name}" holds {place}{more}, but {what}. Correct or drop these rows.')


def values_of(frame: pd.DataFrame, name: str) -> pd.Series:
    """A column as a formula takes it when it stands alone: numbers, or words that become categories."""
    column = frame[name]
    if column.dtype == object:
        if len(column) and all(_is_number(value) for value in column):
            return pd.Series(as_floats(column.to_numpy(), f'column "{name}"'), index=column.index, name=name)
    elif isinstance(column.dtype, pd.StringDtype):
        return column.astype(object)
    elif not isinstance(column.dtype, pd.CategoricalDtype):
        if not pd.api.types.is_numeric_dtype(column) or pd.api.types.is_complex_dtype(column):
            raise DataError(
                f'column "{name}" holds values of type {column.dtype}, which are neither numbers nor words. Make numbers '
                f"of them (of dates, the days since one), or write C({name}) for one coefficient a value."
            )
        if pd.api.types.is_extension_array_dtype(column.dtype):
            return column.astype(float)
    return column


def numbers_of(frame: pd.DataFrame, name: str) -> np.ndarray:
    """A column that is put into a function of numbers."""
    column = values_of(frame, name)
    refuse_texts(column, name)
    return column.to_numpy(dtype=float)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real | decimal.Decimal) and not isinstance(value, bool | np.bool_)
