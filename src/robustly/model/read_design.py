"""What may the columns and responses of a regression be? They are read into a design; what cannot be used is named by row and column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from robustly._runtime.settings import is_real_number
from robustly.errors import DataError, names
from robustly.model.column_sums import MANY_ROWS
from robustly.model.linear import Design
from robustly.rows.arrays import ArrayRows, read_weights
from robustly.rows.labels import as_floats, as_numbers
from robustly.rows.store import Rows

# What comes beside the columns: one number for all rows, one a row, or nothing.
Given: TypeAlias = ArrayLike | None
# Columns whose mean square is larger leave no room for the sums that are made of them.
MOST_SQUARE = 1e280
DATA = ("X", "offset", "y", "trials")


def read_design(
    matrix: Any,
    y: Any,
    terms: Sequence[str],
    *,
    intercept: bool = True,
    weight: Given = None,
    offset: Given = None,
    exposure: Given = None,
    trials: Given = None,
    ridge: float = 0.0,
) -> Design:
    """Read columns and a response; say which row and column cannot be used."""
    y = as_numbers(y, "y")
    weight, offset, exposure, trials = (
        None if given is None else as_floats(given, label)
        for label, given in (("weights", weight), ("offset", offset), ("exposure", exposure), ("trials", trials))
    )
    if hasattr(matrix, "tocsr"):
        from scipy import sparse

        matrix = sparse.csr_array(matrix).astype(np.float64, copy=False)
        refuse_missing_columns(matrix.data[:, None], matrix, terms)
    else:
        matrix = np.asarray(matrix, dtype=np.float64)
        refuse_missing_columns(matrix, matrix, terms)
    n = matrix.shape[0]
    response, counted = read_response(y, n, trials)
    data = (matrix, read_offset(offset, exposure, n), response, counted)
    if weight is not None and not np.any(weight):
        raise DataError("all weights are zero, so no row counts. Give at least one row a positive weight.")
    # Of many rows, no memory for a constant.
    counts = np.broadcast_to(1.0, n) if weight is None and n >= MANY_ROWS else read_weights(weight, n)
    return design_of(ArrayRows(data, counts, labels=DATA), terms, intercept=intercept, ridge=ridge)


def design_of(
    rows: Rows, terms: Sequence[str], *, intercept: bool, ridge: float, without_columns: Rows | None = None
) -> Design:
    """A design of rows that are there, with a note on columns that determine each other."""
    if not (is_real_number(ridge) and 0 <= ridge < np.inf):
        raise DataError(f"alpha, the ridge penalty, is a number of at least 0; got {ridge!r}.")
    named = _unique([*(["Intercept"] if intercept else []), *terms])
    design = Design(rows, named, intercept, float(ridge), without_columns=without_columns)
    if not design.terms:
        raise DataError("there are no columns and no intercept, so there is nothing to fit.")
    _refuse_beyond_squares(design)
    if not design.aliased.any():
        return design
    which = names(np.asarray(design.terms)[design.aliased])
    note = (
        f"the columns {which} determine each other, so their coefficients are not unique: the least are given, "
        "without standard errors. Drop a column, or set alpha."
    )
    return design.noted(note)


def _refuse_beyond_squares(design: Design) -> None:
    """Columns whose squares are beyond floating point, by name."""
    with np.errstate(over="ignore", invalid="ignore"):
        square = design.squares_of_columns
    lost = np.flatnonzero(~np.isfinite(square) | (square > MOST_SQUARE))
    if lost.size:
        listed = names([design.terms[place] for place in lost])
        raise DataError(
            f"the squares of {listed} are beyond what a computer's numbers can hold. Divide such a column by its largest value."
        )


def _refuse_huge_cells(values: np.ndarray, label: str) -> None:
    """A number beside the rows whose square is beyond floating point, by row."""
    most = MOST_SQUARE**0.5
    if max(values.max(initial=0.0), -values.min(initial=0.0)) > most:
        row = int(np.argmax(np.abs(values) > most))
        raise DataError(
            f"{label} holds {values[row]} in row {row}, whose square is beyond what a computer's numbers can hold. Drop that row, or "
            "divide by a common scale."
        )


def _unique(terms: Sequence[str]) -> list[str]:
    """Columns of the same name get a number."""
    found: list[str] = []
    seen: dict[str, int] = {}
    for term in terms:
        seen[term] = seen.get(term, 0) + 1
        found.append(f"{term} ({seen[term]})" if seen[term] > 1 else term)
    return found


def read_response(y: Any, n: int, trials: Given = None) -> tuple[np.ndarray, np.ndarray]:
    """The response and its trials; two columns are successes and failures."""
    response = np.asarray(y)
    if response.dtype.kind not in "fiub":
        raise DataError(f"y holds {response.dtype}, but numbers are needed. Encode texts and dates as numbers first.")
    response = response.astype(np.float64, copy=False)
    if response.ndim == 2 and response.shape[1] == 2 and trials is None:
        trials, response = response.sum(axis=1), response[:, 0]
    if response.shape != (n,):
        raise DataError(f"y has shape {response.shape}, but X has {n} rows. Give one response a row.")
    _refuse_missing_cells(response, "y")
    _refuse_huge_cells(response, "y")
    if trials is None:
        return np.ascontiguousarray(response), np.broadcast_to(1.0, n)  # no memory for a constant
    counted = np.array(np.broadcast_to(np.asarray(trials, dtype=np.float64), (n,)))
    _refuse_missing_cells(counted, "trials")
    if np.any(counted <= 0):
        row = int(np.flatnonzero(counted <= 0)[0])
        raise DataError(f"trials hold {counted[row]} in row {row}; a row needs at least one trial. Drop that row.")
    return np.ascontiguousarray(response), counted


def read_offset(offset: Given, exposure: Given, n: int) -> np.ndarray:
    """What is added to the linear predictor: the offset, plus the log of the exposure."""
    total = np.broadcast_to(0.0, n)
    for label, given in (("offset", offset), ("exposure", exposure)):
        if given is None:
            continue
        try:
            value = np.broadcast_to(np.asarray(given, dtype=np.float64), (n,))
        except ValueError:
            raise DataError(
                f"{label} has shape {np.shape(given)}, but there are {n} rows. Give one value a row."
            ) from None
        _refuse_missing_cells(value, label)
        _refuse_huge_cells(value, label)
        if label == "exposure":
            if np.any(value <= 0):
                row = int(np.flatnonzero(value <= 0)[0])
                raise DataError(f"exposure holds {value[row]} in row {row}; it must be above 0. Drop that row.")
            value = np.log(value)
        total = total + value
    return total


def _refuse_missing_cells(array: np.ndarray, label: str) -> None:
    bad = np.flatnonzero(~np.isfinite(array))
    if bad.size:
        raise DataError(f"{label} holds {_kind(array[bad[0]])} in row {bad[0]}. Drop or fill these rows.")


def refuse_missing_columns(values: np.ndarray, matrix: Any, terms: Sequence[str]) -> None:
    """A matrix, dense or sparse with these values, whose cells are not all finite is refused by column and row."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum()):
            return
    for column in range(matrix.shape[1]):
        one = matrix[:, column]
        one = one if isinstance(one, np.ndarray) else np.asarray(matrix[:, [column]].toarray()).ravel()
        bad = np.flatnonzero(~np.isfinite(one))
        if bad.size:
            more = f" and {bad.size - 1} more" if bad.size > 1 else ""
            raise DataError(
                f'column "{terms[column]}" of X holds {_kind(one[bad[0]])} in row {bad[0]}{more}. Drop or fill them.'
            )


def _kind(value: float) -> str:
    return "a missing value (NaN)" if np.isnan(value) else f"an infinite value ({value})"
