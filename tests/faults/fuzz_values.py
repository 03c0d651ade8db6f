"""What may come instead of numbers? Values, and tables and columns that hold them or are not what they should be.

Everything is chosen by a :class:`random.Random`, so that one number gives one input, and hypothesis can choose as well.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

LARGEST = 1.7e308
NUMBERS = (
    np.inf, -np.inf, np.nan, 1e200, -1e200, LARGEST, -LARGEST, 1e154, 1e100, 1e18, 1e16, 1e9, 1e7, 1e5, 1.5, 1e-3,
    5e-324, 1e-310, -5e-324, 1e-200, -1.0, -0.0, 0.0, 2.0**53 + 2, 2.0**63,
)  # fmt: skip
OBJECTS = (
    None, "a", "", "1", "nan", "[/red]", "\x1b[31m", True, 1 + 2j, 10**400, -(10**30), Decimal("1.1"), Fraction(1, 3), b"1",
    pd.NA, pd.NaT, np.datetime64("2020-01-01"), np.timedelta64(3, "D"), datetime.date(2020, 1, 1), [1, 2], {"a": 1}, object(), np.float32(1),
)  # fmt: skip
NAMES = (
    "",
    " ",
    "x",
    "y",
    "Intercept",
    "ünïcode",
    "日本",
    "a b",
    "contr",
    "1",
    "np",
    "x" * 300,
    "[/red]",
    "\n",
    "`",
    "a'b",
    "C(x)",
    "$x^$",
)


def value(random: Random) -> Any:
    """A number that is odd, or something that is no number."""
    return random.choice(NUMBERS if random.random() < 0.7 else OBJECTS)


def _rows_of(array: np.ndarray, count: int) -> np.ndarray:
    return np.resize(array, (count, *array.shape[1:])) if count else array[:0]


def _put(array: np.ndarray, random: Random) -> np.ndarray:
    """One entry, one row, one column or everything is another value."""
    new = value(random)
    found = array.astype(float if isinstance(new, float) and array.dtype != object else object)
    places = list(np.ndindex(found.shape))
    if not places:
        return found
    first, where = random.choice(places), random.choice(("entry", "entry", "row", "column", "all"))
    for place in places:
        same = {"entry": place == first, "row": place[:1] == first[:1], "column": place[1:] == first[1:], "all": True}
        if same[where]:
            found[place] = new
    return found


def _masked(array: np.ndarray, random: Random) -> Any:
    mask = np.zeros(array.shape, dtype=bool)
    if mask.size and random.random() < 0.7:
        mask.flat[random.randrange(mask.size)] = True
    return np.ma.array(array, mask=mask)


def _read_only(array: np.ndarray, random: Random) -> Any:
    found = np.array(array, order=random.choice("CF"))
    found.flags.writeable = False
    return found


def _framed(array: np.ndarray, random: Random) -> Any:
    table = array[:, None] if array.ndim == 1 else array
    frame = pd.DataFrame(table, columns=[random.choice(NAMES) for _ in range(table.shape[1])])
    if random.random() < 0.4:
        frame.index = [random.choice(("a", 7, None, "é")) for _ in range(len(frame))]
    return frame if array.ndim == 2 else frame.iloc[:, 0]


def _categories(array: np.ndarray, random: Random) -> Any:
    labels = [random.choice(("a", "b", "", "日本", None)) for _ in range(len(array))]
    column = pd.Series(pd.Categorical(labels, categories=["a", "b", "c", "", "日本"]))
    return column if array.ndim == 1 else pd.DataFrame({"x": column, "z": np.arange(len(array))})


def _ragged(array: np.ndarray, random: Random) -> Any:
    return [[1.0] * random.randrange(3) for _ in range(len(array))]


def _retyped(array: np.ndarray, random: Random) -> Any:
    kind = random.choice(("f4", "f2", ">f8", "i1", "u8", "?", "c16", "O", "U8", "S8", "M8[D]", "m8[s]"))
    with np.errstate(all="ignore"):
        if kind in ("M8[D]", "m8[s]"):
            return np.round(array).astype(np.int64).astype(kind)
        return array.astype(kind)


def _polars(array: np.ndarray, random: Random) -> Any:
    import polars as pl

    if array.ndim == 1:
        return pl.Series("y", array)
    return pl.DataFrame({f"x{place}": array[:, place] for place in range(array.shape[1])})


CHANGES: dict[str, Callable[[np.ndarray, Random], Any]] = {
    "value": _put,
    "two values": lambda a, r: _put(_put(a, r), r),
    "rows": lambda a, r: _rows_of(a, r.choice((0, 1, 2, 3))),
    "other length": lambda a, r: _rows_of(a, len(a) + r.choice((-1, 1, 5))),
    "constant": lambda a, r: np.full_like(a, r.choice((0.0, 1.0, -3.0, 1e8))),
    "equal columns": lambda a, r: np.repeat(a[:, :1], max(a.shape[1], 2), axis=1) if a.ndim == 2 and a.shape[1] else a,
    "scaled": lambda a, r: a * r.choice((1e-300, 1e-20, 1e20, 1e100, 1e150, 1e290)),
    "shifted": lambda a, r: a + r.choice((1e5, 1e10, 1e16, -1e12)),
    "no columns": lambda a, r: a[:, :0] if a.ndim == 2 else a,
    "many columns": lambda a, r: np.tile(a, (1, 8)) * (1 + np.arange(8 * a.shape[1]) % 7) if a.ndim == 2 else a,
    "0-d": lambda a, r: np.array(r.choice((1.0, np.nan))),
    "1-d": lambda a, r: a.ravel(),
    "3-d": lambda a, r: a[..., None] if a.ndim == 2 else a[:, None, None],
    "two columns": lambda a, r: np.column_stack([a, a]),
    "transposed": lambda a, r: a.T,
    "list": lambda a, r: a.tolist(),
    "ragged": _ragged,
    "masked": _masked,
    "sparse": lambda a, r: getattr(sparse, r.choice(("csr_matrix", "coo_matrix", "csc_array")))(np.atleast_2d(a)) if a.ndim < 3 else a,

    "read-only": _read_only,
    "retyped": _retyped,
    "frame": _framed,
    "polars": _polars,
    "categories": _categories,
    "no array": lambda a, r: r.choice((None, "x", object(), {}, [], (), 3, iter([1.0]), set(), [[]], [None], "y ~ x")),
    "strided": lambda a, r: np.repeat(a, 2, axis=0)[::2],
}  # fmt: skip
NAMED = tuple(CHANGES)


def changed(array: np.ndarray, random: Random) -> tuple[str, Any]:
    """What was done to an array of numbers, and what came of it."""
    name = random.choice(NAMED) if random.random() < 0.5 else "value"
    with np.errstate(all="ignore"):
        return name, CHANGES[name](np.array(array, dtype=float), random)


def option(random: Random, usual: tuple[Any, ...]) -> Any:
    """Most often one of the usual values, at times anything."""
    return random.choice(usual) if random.random() < 0.85 else value(random)


def small_counts(size: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).poisson(2.0, size).astype(float)


def small_matrix(rows: int, columns: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, columns))
