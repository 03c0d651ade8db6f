"""Does a store of rows keep what every pass relies on? Numerical checks of what it adds up, lines up and remembers."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from typing import Any

import numpy as np

from robustly.errors import ModelError
from robustly.rows.arrays import ArrayRows
from robustly.rows.store import Data, Rows, Slot

CHUNKS = (5, 64, 2048)
ROUNDING = 1e-12


def check_rows(store: Rows, expected: Any = None) -> None:
    """Raise a :class:`~robustly.errors.ModelError` that says what is wrong with a store of rows, or return in silence.

    Checked by small passes: sums are those of the same rows in memory, however they are cut, and are added in the order of
    the rows (or by a tree that is always the same, where the store says so); values by unit line up with the rows; states stay with their rows from pass to pass, are None at first, change
    only by ``into`` and are forgotten with their slot; ``sample`` gives rows of the store, the same every time; ``weighed``
    changes weights and nothing else.

    Args:
        store: the store to check, with a few hundred rows in several chunks.
        expected: the same rows in memory: a tuple of arrays, or an ``ArrayRows`` if they have weights. Without it the rows
            are read from the store itself, which then is compared with what it said first.

    Example:
        >>> import numpy as np
        >>> from robustly.rows.arrays import make_rows
        >>> x = np.arange(150.0)
        >>> check_rows(make_rows([x], ["x"], chunk=64), (x,))
    """
    if not isinstance(store, Rows):
        raise ModelError(f"check_rows takes a subclass of robustly.rows.store.Rows; got {store!r}.")
    if len(store) < 2:
        raise ModelError(f"check_rows needs a few rows, best in several chunks; got {len(store)}.")
    known = _in_memory(store, expected)
    _check_counts(store, known)
    _check_lines(store, known)
    _check_sums(store, known)
    _check_states(store, known)
    _check_sample(store, known)
    _check_weighed(store, known)


# ---------------------------------------------------------------------- passes; at the top, so that they can be sent away


def _dense(column: Any) -> np.ndarray:
    return np.asarray(column.toarray() if hasattr(column, "toarray") else column)


def _columns(data: Data) -> np.ndarray:
    """All numbers of the rows, side by side."""
    return np.concatenate([_dense(column).reshape(column.shape[0], -1).astype(float) for column in data], axis=1)


def read_pass(theta: Any, data: Data, weight: np.ndarray, state: Any) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """The rows themselves, by unit."""
    weight = np.asarray(weight)
    columns = {f"column {j}": _dense(column) for j, column in enumerate(data)}
    return {}, {**columns, "weight": weight, "place": np.arange(len(weight))}, None


def sum_pass(theta: Any, data: Data, weight: np.ndarray, state: Any) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Weighted sums of a function of the rows and of what is common to all, and the largest value."""
    x, weight = theta * _columns(data), np.asarray(weight)
    part = weight @ np.sin(x)
    counted = np.where(weight[:, None] > 0, x, -np.inf)
    by_unit = {"part": np.broadcast_to(part, x.shape), "place": np.arange(len(weight))}
    return {"weight": weight.sum(), "sine": part, "max value": counted.max(axis=0)}, by_unit, None


def state_pass(theta: Any, data: Data, weight: np.ndarray, state: Any) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """The state that was kept, by unit, and a new one made of the rows."""
    x = _columns(data)[:, :1]
    before = np.full((len(x), 2), np.nan) if state is None else np.asarray(state)
    now = theta * np.concatenate([x, x**2], axis=1)
    known = np.full(len(x), state is not None)
    return {"known": known.sum()}, {"before": before, "known": known}, now


# ---------------------------------------------------------------------- checks


def _in_memory(store: Rows, expected: Any) -> ArrayRows:
    if isinstance(expected, ArrayRows):
        return expected
    weight = np.asarray(store.weight, dtype=float)
    if expected is None:
        read = store.map(read_pass, None).by_unit
        data = tuple(np.asarray(read[name]) for name in read if name.startswith("column "))
    else:
        data = tuple(np.asarray(column) for column in expected)
    return ArrayRows(data, weight)


def _fail(check: str, what: str, remedy: str) -> None:
    raise ModelError(f"the store fails the check “{check}”: {what}. {remedy}")


def _check_counts(store: Rows, known: ArrayRows) -> None:
    if len(store) != len(known):
        _fail("length", f"len(store) is {len(store)}, but {len(known)} rows are expected", "Count rows, not chunks.")
    total = float(np.sum(np.asarray(known.weight)))
    if not np.isclose(store.total_weight, total, rtol=ROUNDING, atol=0):
        _fail(
            "total weight", f"total_weight is {store.total_weight}, but the weights add up to {total}", "Add them up."
        )


def _check_lines(store: Rows, known: ArrayRows) -> None:
    read = store.map(read_pass, None).by_unit
    wanted = {f"column {j}": _dense(column) for j, column in enumerate(known.data)} | {"weight": known.weight}
    for name, column in wanted.items():
        found = np.asarray(read[name])
        if found.shape != column.shape:
            _fail(
                "by unit",
                f"{name} has shape {found.shape}, but {column.shape} is expected",
                "Cut off what fills chunks up.",
            )
        other = np.flatnonzero(np.any((found != column).reshape(len(column), -1), axis=1))
        if other.size:
            row = int(other[0])
            _fail(
                "by unit",
                f"{name} holds {found[row]} in row {row}, but {column[row]} is expected",
                "Values by unit have to come back in the order of the rows.",
            )


def _check_sums(store: Rows, known: ArrayRows) -> None:
    theta = 0.7
    x, weight = theta * _columns(known.data), np.asarray(known.weight)
    size = weight @ np.abs(np.sin(x))
    found = store.map(sum_pass, theta)
    exact = {"weight": weight.sum(), "sine": weight @ np.sin(x), "max value": x[weight > 0].max(axis=0)}
    cut = [ArrayRows(known.data, weight, chunk, padded=False).map(sum_pass, theta).sums for chunk in CHUNKS]
    for other in (exact, *cut):
        for name, value in other.items():
            off = np.max(np.abs(np.asarray(found.sums[name]) - value))
            if not off <= ROUNDING * max(1.0, float(size.max()), float(np.max(np.abs(value)))):
                _fail(
                    "sums",
                    f'"{name}" is off by {off:.3g} from the same rows in memory',
                    "Run the pass once over every row, with weight 0 for what fills chunks up; of “max …” keep the largest.",
                )
    starts = np.flatnonzero(np.asarray(found.by_unit["place"]) == 0)
    ordered = sum(np.asarray(found.by_unit["part"])[i] for i in starts)
    again = store.map(sum_pass, theta).sums["sine"]
    # Added one after the other, or by a fixed tree where a store says so: never in the order in which chunks happen to end.
    apart = 0.0 if store.adds_in_order else len(starts) * np.finfo(float).eps * max(1.0, float(size.max()))
    far = np.max(np.abs(found.sums["sine"] - ordered)) > apart
    if far or not np.array_equal(found.sums["sine"], again):
        _fail(
            "order of sums",
            "sums of chunks were not added in the order of the rows",
            "Collect the sums of all chunks and give them to rows.store.added_up in the order of the rows.",
        )


def _check_states(store: Rows, known: ArrayRows) -> None:
    x = _columns(known.data)[:, :1]
    made = np.concatenate([x, x**2], axis=1)
    keep, ahead = Slot(), Slot()

    def wanted(slot: Slot | None, factor: float | None, when: str) -> None:
        found = store.map(state_pass, 0.0, keep=slot).by_unit
        seen = bool(np.any(found["known"]))
        if factor is None:
            if seen:
                _fail("states", f"a pass {when} saw a state", "It has to see None.")
            return
        if not np.all(found["known"]):
            _fail("states", f"a pass {when} saw None", "What went into a slot is there for every row of the next pass.")
        # States may be kept as floats of single precision.
        off = np.abs(np.asarray(found["before"]) - factor * made) > 1e-6 * (1.0 + np.abs(factor * made))
        if off.any():
            row = int(np.flatnonzero(off.any(axis=1))[0])
            text = f"a pass {when} saw the state {found['before'][row]} in row {row}, but {factor * made[row]} was kept"
            _fail("states", text, "States stay with their rows and change only by into.")

    wanted(None, None, "without a slot")
    wanted(keep, None, "with an empty slot")
    store.map(state_pass, 1.0, keep=keep, into=keep)
    wanted(keep, 1.0, "after one with into")
    wanted(keep, 1.0, "after one without into")
    store.map(state_pass, 2.0, keep=keep, into=ahead)
    wanted(keep, 1.0, "after one with another slot for into")
    wanted(ahead, 2.0, "with the slot of the last into")
    store.map(state_pass, 3.0, keep=keep, into=keep)
    wanted(keep, 3.0, "after one that replaced the states it saw")
    wanted(Slot(), None, "with a new slot")
    held = weakref.ref(keep)
    del keep
    gc.collect()
    if held() is not None:
        _fail(
            "states", "the store keeps a slot that nobody uses", "Hold states in a weakref.WeakKeyDictionary by slot."
        )


def _prints(data: Data, weight: Any) -> list[bytes]:
    """Every row as bytes."""
    all_columns = np.concatenate([_columns(data), np.asarray(weight, dtype=float)[:, None]], axis=1)
    return [row.tobytes() for row in all_columns]


def _check_sample(store: Rows, known: ArrayRows) -> None:
    rows = Counter(_prints(known.data, known.weight))
    for count in (min(7, len(store) - 1), len(store)):
        some, again = store.sample(count, 3), store.sample(count, 3)
        if not isinstance(some, ArrayRows) or len(some) != count:
            _fail("sample", f"sample({count}, 3) gave {some!r:.60}", f"It gives {count} rows as an ArrayRows.")
        listed = _prints(some.data, some.weight)
        if listed != _prints(again.data, again.weight):
            _fail("sample", f"sample({count}, 3) gave other rows the second time", "Draw rows by the seed alone.")
        strange = Counter(listed) - rows
        if strange:
            _fail(
                "sample",
                f"row {listed.index(next(iter(strange)))} of sample({count}, 3) is no row of the store, or is drawn twice",
                "Draw rows without replacement, with their weights.",
            )


def _check_weighed(store: Rows, known: ArrayRows) -> None:
    weight = 1.0 + np.arange(len(store)) % 3
    other = store.weighed(weight)
    _check_counts(other, ArrayRows(known.data, weight))
    _check_lines(other, ArrayRows(known.data, weight))
    _check_sums(other, ArrayRows(known.data, weight))
    _check_counts(store, known)
    _check_lines(store, known)
