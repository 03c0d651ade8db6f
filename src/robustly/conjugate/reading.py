"""What may a row hold? Columns are read and checked against their support."""

from __future__ import annotations

from typing import Any

import numpy as np

from robustly.errors import DataError, SupportError
from robustly.rows.anywhere import in_memory_if_stored
from robustly.rows.arrays import make_rows
from robustly.rows.labels import as_numbers

# Squares of larger numbers, and of what is divided by smaller ones, are beyond floating point when they are added up.
LARGEST_NUMBER = 1e100
OUT_OF_RANGE = f"numbers lie between {1 / LARGEST_NUMBER:g} and {LARGEST_NUMBER:g} in size"
RESCALE = "Divide the column by a common scale, or drop that row."


def read_numbers(name: str, values: Any, *, rows: int | None = None) -> np.ndarray:
    """One number a row, finite; a single number stands for all rows when their count is known."""
    values = as_numbers(in_memory_if_stored(values), name)
    if rows is not None and np.ndim(values) == 0:
        values = np.full(rows, values)
    (array,) = make_rows([values], [name]).data
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(f"{name} has shape {array.shape}, but one number a row is needed. Pass one column.")
    if rows is not None and len(array) != rows:
        raise DataError(f"{name} has {len(array)} rows, but the data have {rows}. Give one number a row.")
    if array.dtype.kind == "f":
        refuse_where(name, array, np.abs(array) > LARGEST_NUMBER, OUT_OF_RANGE, RESCALE)
    return array.astype(np.int64) if array.dtype.kind == "b" else array


def read_matrix(name: str, values: Any, *, rows: int | None = None) -> np.ndarray:
    """A row of numbers a row, finite."""
    (array,) = make_rows([in_memory_if_stored(values)], [name]).data
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise DataError(f"{name} has shape {array.shape}, but a table of rows and columns is needed.")
    if rows is not None and len(array) != rows:
        raise DataError(f"{name} has {len(array)} rows, but the data have {rows}.")
    if not array.shape[1]:
        raise DataError(f"{name} has no columns; one or more are needed.")
    array = array.astype(float)
    refuse_where(name, array, (np.abs(array) > LARGEST_NUMBER).any(axis=1), OUT_OF_RANGE, RESCALE)
    return array


def read_counts(name: str, values: Any, *, rows: int | None = None, least: int = 0, what: str = "counts") -> np.ndarray:
    """Whole numbers from `least` on."""
    array = read_numbers(name, values, rows=rows)
    refuse_where(name, array, array < least, f"{what} start at {least}")
    if array.dtype.kind == "f":
        refuse_where(name, array, array != np.floor(array), f"{what} are whole numbers")
    refuse_where(name, array, array > 2**53, "whole numbers are exact only up to 2**53")
    return array.astype(np.int64)


def read_positive(name: str, values: Any, *, rows: int | None = None, what: str) -> np.ndarray:
    """Numbers above 0."""
    array = read_numbers(name, values, rows=rows)
    refuse_where(name, array, array <= 0, f"{what} are above 0")
    refuse_where(name, array, array < 1 / LARGEST_NUMBER, OUT_OF_RANGE, RESCALE)
    return array.astype(float)


def refuse_where(
    name: str, array: np.ndarray, bad: np.ndarray, rule: str, advice: str = "Correct or drop that row."
) -> None:
    """Raise a SupportError that names the first bad row."""
    found = np.flatnonzero(bad)
    if found.size:
        more = f" (and {found.size - 1} more rows)" if found.size > 1 else ""
        raise SupportError(f"{name} holds {array[found[0]]} in row {found[0]}{more}, but {rule}. {advice}")


def read_covariates(values: Any, rows: int | None) -> np.ndarray:
    """Covariates, one line a row."""
    return read_matrix("design", values, rows=rows)


def refuse_collinear(design: np.ndarray) -> None:
    """Columns must not repeat each other, or coefficients mean nothing."""
    rank = int(np.linalg.matrix_rank(design))
    if rank < design.shape[1]:
        raise DataError(
            f"design has {design.shape[1]} columns but rank {rank}: some column is a sum of others, so coefficients "
            "are not defined. Drop it (often one level of a categorical variable, next to a constant column)."
        )
