"""What may a formula hold that is read from a file? Single values, and what its functions learned: all of it checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from robustly.glm.formula_evaluate import MOST_KNOTS, refuse_large
from robustly.glm.formula_language import LEARNED
from robustly.glm.formula_nodes import Expression, Learned
from robustly.result.saved_values import need

EXTRAPOLATIONS = ("raise", "clip", "na", "zero", "extend")


def checked_list(value: Any, what: str) -> list[Any]:
    need(isinstance(value, list), f"{what} are not a list")
    return value  # type: ignore[no-any-return]


def checked_text(value: Any, what: str) -> str:
    need(isinstance(value, str), f"{what} is not a text")
    return value  # type: ignore[no-any-return]


def checked_texts(value: Any, what: str) -> list[str]:
    return [checked_text(one, what) for one in checked_list(value, what)]


def checked_number(value: Any, what: str) -> float:
    fine = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e308
    need(fine, f"{what} is not a finite number")
    return float(value)


def checked_numbers(value: Any, what: str) -> list[float]:
    return [checked_number(one, what) for one in checked_list(value, what)]


def checked_place(value: Any, below: int, what: str) -> int:
    need(type(value) is int and 0 <= value < below, f"{what} is counted that is not there")
    return value  # type: ignore[no-any-return]


def checked_level(value: Any) -> Any:
    fine = isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))
    need(fine, "a level is neither a word nor a number")
    return value


def read_given(meta: Any) -> dict[str, str]:
    need(isinstance(meta, dict) and set(meta) <= {"offset", "exposure", "trials"}, "given is not a table of columns")
    return {label: checked_text(name, label) for label, name in meta.items()}


def is_single(node: Learned) -> bool:
    return node.name in ("center", "scale", "standardize")


def read_options(name: str, meta: Any) -> dict[str, Any]:
    need(isinstance(meta, dict) and set(meta) <= set(LEARNED[name]), f"{name} has options it does not take")
    refuse_large(meta, name)
    for option, value in meta.items():
        if option in ("include_intercept", "raw", "cyclic", "rescale"):
            need(isinstance(value, bool), f"{option} is not true or false")
        elif option == "extrapolation":
            need(value in EXTRAPOLATIONS, "extrapolation is unknown")
        elif option in ("center", "scale"):
            need(isinstance(value, bool) or checked_number(value, option) is not None, option)
        elif option in ("lower_bound", "upper_bound", "ddof"):
            need(value is None or checked_number(value, option) is not None, option)
        elif option == "constraints":
            need(value in (None, "center") or isinstance(value, list), "constraints are unknown")
    return dict(meta)


def read_state(name: str, options: Mapping[str, Any], meta: Any) -> dict[Any, Any]:
    """What a function learned: complete, so that nothing is learned from new rows, and all of it finite."""
    need(isinstance(meta, dict), "what a function learned is not a table")
    if name in ("center", "scale", "standardize"):
        need(set(meta) == {"ddof", "center", "scale"}, f"{name} has not kept its centre and scale")
        found = {key: None if value is None else checked_number(value, key) for key, value in meta.items()}
        need(found["scale"] != 0, "a scale is zero")
        return found
    if name == "poly":
        return _poly_state(options, meta)
    need({"lower_bound", "upper_bound", "knots"} <= set(meta), f"{name} has not kept its knots")
    low, high = checked_number(meta["lower_bound"], "lower_bound"), checked_number(meta["upper_bound"], "upper_bound")
    knots = checked_numbers(meta["knots"], "knots")
    need(2 <= len(knots) <= 2 * MOST_KNOTS and knots == sorted(knots) and low <= high, "knots are not in order")
    if name == "bs":
        degree = options.get("degree", 3)
        need(set(meta) == {"lower_bound", "upper_bound", "knots"}, "a spline has kept too much")
        need(len(knots) >= 2 * degree + 2, "a spline has too few knots")
        return {"lower_bound": low, "upper_bound": high, "knots": knots}
    need(set(meta) == {"lower_bound", "upper_bound", "knots", "constraints", "cyclic"}, "a spline has kept too much")
    cyclic, constraints = meta["cyclic"], meta["constraints"]
    need(isinstance(cyclic, bool) and len(set(knots)) == len(knots), "knots of a cubic spline are doubled")
    need(len(knots) >= 3 or not cyclic, "a cyclic spline has too few knots")
    if constraints is not None:
        constraints = np.array(
            [checked_numbers(row, "a constraint") for row in checked_list(constraints, "constraints")], dtype=float
        )
        free = len(knots) - cyclic
        need(constraints.ndim == 2 and constraints.shape[1] == free > constraints.shape[0], "constraints do not fit")
    return {"lower_bound": low, "upper_bound": high, "knots": knots, "constraints": constraints, "cyclic": cyclic}


def _poly_state(options: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[Any, Any]:
    degree = options.get("degree", 1)
    need(degree >= 1, "a polynomial has no degree")
    if options.get("raw"):
        need(not meta, "a raw polynomial has learned something")
        return {}
    need(set(meta) == {"alpha", "norms2"}, "a polynomial has not kept its norms")
    kept = {}
    for key, count in (("alpha", degree), ("norms2", degree + 1)):
        need(
            isinstance(meta[key], dict) and set(meta[key]) == {str(k) for k in range(count)},
            f"{key} has another length",
        )
        kept[key] = {k: checked_number(meta[key][str(k)], key) for k in range(count)}
    need(all(value > 0 for value in kept["norms2"].values()), "norms are not positive")
    return kept


def column_count(node: Expression) -> int:
    """How many columns a factor of numbers has."""
    if not isinstance(node, Learned) or is_single(node):
        return 1
    if node.name == "poly":
        return int(node.options.get("degree", 1))
    knots = len(node.state["knots"])
    if node.name == "bs":
        return knots - int(node.options.get("degree", 3)) - 1 - (not node.options.get("include_intercept", False))
    constraints = node.state["constraints"]
    return knots - node.state["cyclic"] - (0 if constraints is None else constraints.shape[0])
