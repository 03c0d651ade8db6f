"""What does a checked expression give for these rows? Arithmetic by NumPy, splines and contrasts by formulaic's functions.

Functions are looked up in fixed lists by their names; no text is evaluated. What is learned from the rows of a fit (centres,
knots, norms) is put into the node's `state` the first time and used ever after.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from robustly.errors import DataError, ManyLevelsWarning, ModelError
from robustly.glm.formula_frames import numbers_of, values_of
from robustly.glm.formula_language import FUNCTIONS
from robustly.glm.formula_nodes import Call, Category, Column, Expression, Learned, Number, Operation, Text

MOST_DEGREES = 50
MOST_KNOTS = 1000
# With more words than this a column was hardly meant to have a coefficient for each.
MANY_LEVELS = 300
SIGNS: dict[str, Callable[..., Any]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "**": np.power, "//": np.floor_divide, "%": np.mod,
    "negative": np.negative, "positive": np.positive, "<": np.less, "<=": np.less_equal, ">": np.greater,
    ">=": np.greater_equal, "==": np.equal, "!=": np.not_equal,
}  # fmt: skip
LOGICAL: dict[str, Callable[..., Any]] = {
    "&": np.logical_and, "|": np.logical_or, "^": np.logical_xor, "~": np.logical_not
}  # fmt: skip


def rows_of(node: Expression, frame: pd.DataFrame) -> np.ndarray:
    """The numbers, or yes and no, of a function of one column or several, by row."""
    with np.errstate(all="ignore"):
        value = _value(node, frame)
    return np.broadcast_to(value, (len(frame),))


def _value(node: Expression, frame: pd.DataFrame) -> Any:
    if isinstance(node, Column):
        return numbers_of(frame, node.name)
    if isinstance(node, Number):
        return np.float64(node.value)
    if isinstance(node, Operation):
        if any(isinstance(one, Text) for one in node.of):
            same = np.equal(*(_words(one, frame) for one in node.of)).astype(bool)
            return same if node.sign == "==" else ~same
        if node.sign in LOGICAL:
            return LOGICAL[node.sign](*(_truth(_value(one, frame), node.sign) for one in node.of))
        return SIGNS[node.sign](*(np.asarray(_value(one, frame), dtype=float) for one in node.of))
    if isinstance(node, Call):
        return FUNCTIONS[node.name][0](*(np.asarray(_value(one, frame), dtype=float) for one in node.of))
    if isinstance(node, Learned):
        found = columns_learned(node, frame)
        return next(iter(found.values()))
    raise ModelError(f"a formula cannot compute with the word {node.value!r}.")


def _words(node: Expression, frame: pd.DataFrame) -> Any:
    if isinstance(node, Text):
        return np.array(node.value, dtype=object)
    if isinstance(node, Column):
        return frame[node.name].to_numpy(dtype=object)
    raise ModelError("a formula compares words with a column and nothing else.")


def _truth(value: Any, sign: str) -> Any:
    if not np.isin(value, (0.0, 1.0)).all():
        raise ModelError(
            f"a formula joins yes-or-no values by {sign}, such as (a > 1) {sign} (b < 2); these are other numbers."
        )
    return np.asarray(value, dtype=bool)


# ---------------------------------------------------------------------- what learns from rows


def columns_learned(node: Learned, frame: pd.DataFrame) -> dict[Any, np.ndarray]:
    """The columns of a spline, a polynomial, a centred or scaled column, by their fields."""
    x = np.array(rows_of(node.of, frame), dtype=float)
    values = raw_columns(node, x)
    if isinstance(values, dict):
        return {name: np.asarray(column, dtype=float) for name, column in values.items()}
    found = np.asarray(values, dtype=float)
    return {0: found} if found.ndim == 1 else {place + 1: found[:, place] for place in range(found.shape[1])}


def raw_columns(node: Learned, x: np.ndarray) -> Any:
    """As formulaic gives them, with what it says of their names."""
    from formulaic import transforms
    from formulaic.transforms.patsy_compat import standardize

    made: dict[str, Callable[..., Any]] = {
        "center": transforms.center,
        "scale": transforms.scale,
        "standardize": standardize,
        "poly": transforms.poly,
        "bs": transforms.basis_spline,
        "cr": transforms.natural_cubic_spline,
        "cs": transforms.natural_cubic_spline,
        "cc": transforms.cyclic_cubic_spline,
    }
    refuse_large(node.options, node.text or node.name)
    _refuse_beyond(node, x)
    options = dict(node.options)
    if isinstance(options.get("constraints"), list):
        options["constraints"] = np.array(options["constraints"], dtype=float)
    try:
        with np.errstate(all="ignore"):
            return made[node.name](x, _state=node.state, **options)
    except (ValueError, TypeError, IndexError, KeyError, ZeroDivisionError, np.linalg.LinAlgError) as error:
        raise ModelError(f"the formula's {node.text or node.name} cannot be computed: {error}") from None


def refuse_large(options: Mapping[str, Any], text: str) -> None:
    """Numbers of columns that nobody wants, and options of the wrong kind."""
    for name, most in (("df", MOST_KNOTS), ("degree", MOST_DEGREES)):
        value = options.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most):
            raise ModelError(f"the formula's {text} has {name}={value!r}; it is a whole number from 0 to {most}.")
    knots = options.get("knots")
    if knots is not None and not (
        isinstance(knots, list)
        and len(knots) <= MOST_KNOTS
        and all(isinstance(one, int | float) and math.isfinite(one) for one in knots)
    ):
        raise ModelError(f"the formula's {text} has knots that are not a list of up to {MOST_KNOTS} numbers.")


def _refuse_beyond(node: Learned, x: np.ndarray) -> None:
    """A spline that does not reach a new row, by row."""
    fallback = "raise" if node.name == "bs" else "extend"
    if node.options.get("extrapolation", fallback) != "raise" or "lower_bound" not in node.state:
        return
    low, high = float(node.state["lower_bound"]), float(node.state["upper_bound"])
    beyond = np.flatnonzero((x < low) | (x > high))
    if beyond.size:
        raise DataError(
            f"the spline {node.text or node.name} was fitted from {low:g} to {high:g}, and row {beyond[0]} has {x[beyond[0]]:g}. "
            'Drop the row, or fit with extrapolation="clip" or "extend" in the spline.'
        )


# ---------------------------------------------------------------------- categories


def words_of(factor: Category, frame: pd.DataFrame) -> Any:
    """The values that become levels."""
    if isinstance(factor.of, Column):
        column = frame[factor.of.name]
        if isinstance(column.dtype, pd.StringDtype):
            column = column.astype(object)
        return column if factor.buckets is None else hashed(column, factor.buckets)
    found = pd.Series(rows_of(factor.of, frame), index=frame.index)
    return found if factor.buckets is None else hashed(found, factor.buckets)


def hashed(values: pd.Series, buckets: int) -> np.ndarray:
    """Words counted into so many levels by their MD5 sums, as formulaic does."""
    distinct, place = np.unique(values.to_numpy(dtype=object).astype(str), return_inverse=True)
    sums = [int(hashlib.md5(str(one).encode(), usedforsecurity=False).hexdigest(), 16) % buckets for one in distinct]
    return np.array(sums, dtype=int)[place]


def plain_rows(node: Expression, frame: pd.DataFrame) -> Any:
    """A factor that is one column or a function of numbers: words stay words."""
    return column_values(frame, node.name) if isinstance(node, Column) else rows_of(node, frame)


def column_values(frame: pd.DataFrame, name: str) -> Any:
    """A column as it stands in a formula; more words than anybody can mean to have coefficients for are told of."""
    values = values_of(frame, name)
    if not pd.api.types.is_numeric_dtype(values) and (count := int(pd.Series(values).nunique())) > MANY_LEVELS:
        warnings.warn(
            f'the column "{name}" has {count} different words, and each of them gets a coefficient. If they are dates or numbers, '
            "convert them first (pandas.to_datetime, astype(float)); if they are groups, give them effects of their own: "
            f"(1 | {name}). Write C({name}) if they are meant to be categories.",
            ManyLevelsWarning,
            stacklevel=2,
        )
    return values
