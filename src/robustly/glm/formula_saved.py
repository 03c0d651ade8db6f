"""How is a formula kept in a file? As the tree it was read into and the numbers it learned; its text is only shown.

Reading builds the tree again from a fixed list of kinds, signs and functions, and checks every number, so nothing in a file
is evaluated. Files of version 0.1 hold the text instead: it is read by the same rules as a formula that a user types, and
refused if it says anything else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from robustly.errors import PersistError, RobustlyError
from robustly.glm.formula_evaluate import LOGICAL, MOST_KNOTS, SIGNS, refuse_large
from robustly.glm.formula_language import (
    DEEPEST,
    FUNCTIONS,
    LEARNED,
    Call,
    Column,
    Expression,
    Learned,
    Number,
    Operation,
    Text,
    walk,
)
from robustly.glm.formula_parse import parse
from robustly.glm.formula_spec import FormulaColumns, KeptFactor, Part, Side, factors_of, learn
from robustly.result.saved_values import need

ARGUMENTS = dict.fromkeys((*SIGNS, *LOGICAL), 2) | {"negative": 1, "positive": 1, "~": 1}
EXTRAPOLATIONS = ("raise", "clip", "na", "zero", "extend")
MOST_COLUMNS = 1_000_000


# ---------------------------------------------------------------------- to JSON


def formula_to_json(formula: FormulaColumns) -> dict[str, Any]:
    """Everything as JSON values, or a :class:`~robustly.errors.PersistError` that names what cannot be kept."""
    return {
        "kept": "tree",
        "text": formula.text,
        "offset_texts": list(formula.offset_texts),
        "side": _side_to_json(formula.side),
        "offsets": [_side_to_json(side) for side in formula.offsets],
        "classes": [_level_to_json(one, "the response") for one in formula.classes],
        "given": dict(formula.given),
    }


def _side_to_json(side: Side) -> dict[str, Any]:
    return {
        "factors": [
            {
                "text": factor.text,
                "of": _node_to_json(factor.of, factor.text),
                "levels": None
                if factor.levels is None
                else [_level_to_json(one, f"the term {factor.text}") for one in factor.levels],
                "buckets": factor.buckets,
            }
            for factor in side.factors
        ],
        "parts": [
            {
                "factor": part.factor,
                "names": part.names,
                "picked": part.picked,
                "coding": None if part.coding is None else part.coding.tolist(),
            }
            for part in side.parts
        ],
        "terms": [[scale, inside] for scale, inside in side.terms],
        "columns": side.columns,
    }


def _level_to_json(level: Any, where: str) -> Any:
    plain = level.item() if isinstance(level, np.generic) else level
    if isinstance(plain, bool | str | int) or (isinstance(plain, float) and math.isfinite(plain)):
        return plain
    raise PersistError(
        f"{where} has levels of the type {type(level).__name__} ({str(level)[:60]}), which cannot be kept in a file. Make words "
        "of that column before fitting: data[column] = data[column].astype(str)."
    )


def _node_to_json(node: Expression, text: str) -> list[Any]:
    if isinstance(node, Column):
        return ["column", node.name]
    if isinstance(node, Number):
        if not math.isfinite(node.value):
            raise PersistError(f"the term {text} holds a number that is not finite. Write a finite one, and fit again.")
        return ["number", node.value]
    if isinstance(node, Text):
        return ["text", node.value]
    if isinstance(node, Operation):
        return ["sign", node.sign, [_node_to_json(one, text) for one in node.of]]
    if isinstance(node, Call):
        return ["call", node.name, [_node_to_json(one, text) for one in node.of]]
    if node.name not in LEARNED:
        raise PersistError(
            f"the term {text} calls {node.name}, which cannot be kept in a file. Compute it into a column of the data first."
        )
    state = {str(name): _state_to_json(value) for name, value in node.state.items()}
    return ["learned", node.name, _node_to_json(node.of, text), dict(node.options), state, node.text]


def _state_to_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): float(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        return value.astype(float).tolist()
    return value.item() if isinstance(value, np.generic) else value


# ---------------------------------------------------------------------- from JSON


def formula_from_json(meta: Any) -> FormulaColumns:
    """What :func:`formula_to_json` gave, with every kind, name and number of it checked."""
    try:
        need(isinstance(meta, dict), "it is not a table")
        if meta.get("kept") != "tree":
            return _from_text(meta)
        return FormulaColumns(
            _checked_text(meta["text"], "text"),
            tuple(_checked_texts(meta["offset_texts"], "offset_texts")),
            _read_side(meta["side"]),
            tuple(_read_offset(one) for one in _checked_list(meta["offsets"], "offsets")),
            tuple(_checked_level(one) for one in _checked_list(meta["classes"], "classes")),
            _read_given(meta["given"]),
        )
    except PersistError:
        raise
    except (
        KeyError,
        TypeError,
        ValueError,
        IndexError,
        OverflowError,
        RecursionError,
        RobustlyError,
    ) as error:
        said = f"{error} is not there" if isinstance(error, KeyError) else str(error).rstrip(".")
        raise PersistError(f"the formula kept in this file is damaged: {said}. Save the fit again.") from error


def _read_given(meta: Any) -> dict[str, str]:
    need(isinstance(meta, dict) and set(meta) <= {"offset", "exposure", "trials"}, "given is not a table of columns")
    return {label: _checked_text(name, label) for label, name in meta.items()}


def _read_offset(meta: Any) -> Side:
    side = _read_side(meta)
    need(len(side.columns) == 1, "an offset has several columns")
    return side


def _read_side(meta: Any) -> Side:
    factors = [_read_factor(one) for one in _checked_list(meta["factors"], "factors")]
    parts = [_read_part(one, factors) for one in _checked_list(meta["parts"], "parts")]
    terms, columns = [], _checked_texts(meta["columns"], "columns")
    need(len(columns) <= MOST_COLUMNS and len(set(columns)) == len(columns), "columns are too many or doubled")
    at = 0
    for one in _checked_list(meta["terms"], "terms"):
        need(isinstance(one, list) and len(one) == 2, "a term is not a scale and its parts")
        scale, inside = (
            _checked_number(one[0], "a scale"),
            [_checked_place(place, len(parts), "a part") for place in _checked_list(one[1], "parts")],
        )
        need(len(inside) <= DEEPEST, "a term has too many parts")
        called = [""]
        for place in inside:
            need(len(called) * len(parts[place].names) <= len(columns), "terms have other columns than the file names")
            called = [f"{old}:{new}" if old else new for new in parts[place].names for old in called]
        called = called if inside else ["Intercept"]
        need(columns[at : at + len(called)] == called, "terms have other columns than the file names")
        at += len(called)
        terms.append((scale, inside))
    need(at == len(columns), "terms have other columns than the file names")
    return Side(factors, parts, terms, columns)


def _read_factor(meta: Any) -> KeptFactor:
    need(isinstance(meta, dict), "a factor is not a table")
    of, levels, buckets = _read_node(meta["of"], 0), meta["levels"], meta["buckets"]
    need(not isinstance(of, Text), "a factor is a word")
    if levels is not None:
        levels = [_checked_level(one) for one in _checked_list(levels, "levels")]
        need(len(set(levels)) == len(levels), "levels are doubled")
        need(not isinstance(of, Learned), "levels are made of several columns")
    if buckets is not None:
        need(type(buckets) is int and levels == list(range(buckets)), "hashed levels are not counted from 0")
    return KeptFactor(_checked_text(meta["text"], "a factor's text"), of, levels, buckets)


def _read_part(meta: Any, factors: Sequence[KeptFactor]) -> Part:
    need(isinstance(meta, dict), "a part is not a table")
    place = _checked_place(meta["factor"], len(factors), "a factor")
    factor, called = factors[place], _checked_texts(meta["names"], "names")
    width = _column_count(factor.of) if factor.levels is None else len(factor.levels)
    if meta["coding"] is not None:
        need(factor.levels is not None and meta["picked"] is None, "numbers have contrasts")
        coding = np.array(
            [_checked_numbers(row, "a contrast") for row in _checked_list(meta["coding"], "contrasts")], dtype=float
        )
        need(coding.shape == (width, len(called)), "contrasts have another size than the levels")
        return Part(place, called, None, coding)
    picked = [_checked_place(one, width, "a column") for one in _checked_list(meta["picked"], "picked columns")]
    need(len(picked) == len(called), "columns and names differ in number")
    return Part(place, called, picked)


def _read_node(meta: Any, depth: int) -> Expression:
    need(isinstance(meta, list) and len(meta) >= 2 and depth <= DEEPEST, "an expression is not made of known pieces")
    kind, rest = meta[0], meta[1:]
    if kind == "column" and len(rest) == 1:
        return Column(_checked_text(rest[0], "a column"))
    if kind == "number" and len(rest) == 1:
        return Number(_checked_number(rest[0], "a number"))
    if kind == "text" and len(rest) == 1:
        return Text(_checked_text(rest[0], "a word"))
    if kind in ("sign", "call") and len(rest) == 2:
        name = _checked_text(rest[0], "a function")
        known = ARGUMENTS if kind == "sign" else {one: count for one, (_, count) in FUNCTIONS.items()}
        need(name in known, f"{name[:60]!r} is no function that formulas know")
        given = tuple(_read_node(one, depth + 1) for one in _checked_list(rest[1], "arguments"))
        need(len(given) == known[name], f"{name} has {len(given)} arguments")
        worded = any(isinstance(one, Text) for one in given)
        fine = name in ("==", "!=") and all(isinstance(one, Text | Column) for one in given)
        need(not worded or (fine and not all(isinstance(one, Text) for one in given)), "it computes with words")
        return Operation(name, given) if kind == "sign" else Call(name, given)
    need(kind == "learned" and len(rest) == 5, "an expression is not made of known pieces")
    name, of, text = (
        _checked_text(rest[0], "a function"),
        _read_node(rest[1], depth + 1),
        _checked_text(rest[4], "a text"),
    )
    need(name in LEARNED and not isinstance(of, Text), f"{name[:60]!r} is no function that formulas know")
    need(all(_single(one) for one in _learned_in(of)), "several columns are put into a function of one")
    return Learned(name, of, _read_options(name, rest[2]), _read_state(name, rest[2], rest[3]), text)


def _learned_in(node: Expression) -> list[Learned]:
    if isinstance(node, Learned):
        return [node, *_learned_in(node.of)]
    return [one for inner in getattr(node, "of", ()) for one in _learned_in(inner)]


def _single(node: Learned) -> bool:
    return node.name in ("center", "scale", "standardize")


def _read_options(name: str, meta: Any) -> dict[str, Any]:
    need(isinstance(meta, dict) and set(meta) <= set(LEARNED[name]), f"{name} has options it does not take")
    refuse_large(meta, name)
    for option, value in meta.items():
        if option in ("include_intercept", "raw", "cyclic", "rescale"):
            need(isinstance(value, bool), f"{option} is not true or false")
        elif option == "extrapolation":
            need(value in EXTRAPOLATIONS, "extrapolation is unknown")
        elif option in ("center", "scale"):
            need(isinstance(value, bool) or _checked_number(value, option) is not None, option)
        elif option in ("lower_bound", "upper_bound", "ddof"):
            need(value is None or _checked_number(value, option) is not None, option)
        elif option == "constraints":
            need(value in (None, "center") or isinstance(value, list), "constraints are unknown")
    return dict(meta)


def _read_state(name: str, options: Mapping[str, Any], meta: Any) -> dict[Any, Any]:
    """What a function learned: complete, so that nothing is learned from new rows, and all of it finite."""
    need(isinstance(meta, dict), "what a function learned is not a table")
    if name in ("center", "scale", "standardize"):
        need(set(meta) == {"ddof", "center", "scale"}, f"{name} has not kept its centre and scale")
        found = {key: None if value is None else _checked_number(value, key) for key, value in meta.items()}
        need(found["scale"] != 0, "a scale is zero")
        return found
    if name == "poly":
        return _poly_state(options, meta)
    need({"lower_bound", "upper_bound", "knots"} <= set(meta), f"{name} has not kept its knots")
    low, high = _checked_number(meta["lower_bound"], "lower_bound"), _checked_number(meta["upper_bound"], "upper_bound")
    knots = _checked_numbers(meta["knots"], "knots")
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
            [_checked_numbers(row, "a constraint") for row in _checked_list(constraints, "constraints")], dtype=float
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
        kept[key] = {k: _checked_number(meta[key][str(k)], key) for k in range(count)}
    need(all(value > 0 for value in kept["norms2"].values()), "norms are not positive")
    return kept


def _column_count(node: Expression) -> int:
    """How many columns a factor of numbers has."""
    if not isinstance(node, Learned) or _single(node):
        return 1
    if node.name == "poly":
        return int(node.options.get("degree", 1))
    knots = len(node.state["knots"])
    if node.name == "bs":
        return knots - int(node.options.get("degree", 3)) - 1 - (not node.options.get("include_intercept", False))
    constraints = node.state["constraints"]
    return knots - node.state["cyclic"] - (0 if constraints is None else constraints.shape[0])


# ---------------------------------------------------------------------- single values


def _checked_list(value: Any, what: str) -> list[Any]:
    need(isinstance(value, list), f"{what} are not a list")
    return value  # type: ignore[no-any-return]


def _checked_text(value: Any, what: str) -> str:
    need(isinstance(value, str), f"{what} is not a text")
    return value  # type: ignore[no-any-return]


def _checked_texts(value: Any, what: str) -> list[str]:
    return [_checked_text(one, what) for one in _checked_list(value, what)]


def _checked_number(value: Any, what: str) -> float:
    fine = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e308
    need(fine, f"{what} is not a finite number")
    return float(value)


def _checked_numbers(value: Any, what: str) -> list[float]:
    return [_checked_number(one, what) for one in _checked_list(value, what)]


def _checked_place(value: Any, below: int, what: str) -> int:
    need(type(value) is int and 0 <= value < below, f"{what} is counted that is not there")
    return value  # type: ignore[no-any-return]


def _checked_level(value: Any) -> Any:
    fine = isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))
    need(fine, "a level is neither a word nor a number")
    return value


# ---------------------------------------------------------------------- files of 0.1


def _from_text(meta: Mapping[str, Any]) -> FormulaColumns:
    """A formula kept as text: read by the rules for typed formulas, with the levels and numbers that were kept beside it."""
    text, offset_texts = _checked_text(meta["text"], "text"), _checked_texts(meta["offset_texts"], "offset_texts")
    need(isinstance(meta["first"], dict) and 0 <= len(meta["first"]) <= 100_000, "the first row is not a table")
    first = pd.DataFrame(
        {_checked_text(name, "a column"): [_checked_level(value)] for name, value in meta["first"].items()}, index=[0]
    )
    _, parsed, _, _ = parse(text, list(first))
    forms = [parsed.rhs, *(parse(f"y ~ 0 + {one}", list(first))[1].rhs for one in offset_texts)]
    states = _checked_list(meta["states"], "states")
    need(len(states) == len(forms), "states are missing")
    sides = [_learned_again(form, state, first) for form, state in zip(forms, states)]
    need(sides[0].columns == _checked_texts(meta["terms"], "terms"), "the formula gives other columns than the fit had")
    for side in sides[1:]:
        need(len(side.columns) == 1, "an offset has several columns")
    classes = tuple(_checked_level(one) for one in _checked_list(meta["classes"], "classes"))
    return FormulaColumns(text, tuple(offset_texts), sides[0], tuple(sides[1:]), classes, _read_given(meta["given"]))


def _learned_again(form: Any, state: Any, first: pd.DataFrame) -> Side:
    need(isinstance(state, dict), "states are not tables")
    kept, encoders = _pairs(state["transforms"]), _pairs(state["encoders"])
    calls = [
        node for factor in factors_of(form, list(first)).values() for node in walk(factor) if isinstance(node, Learned)
    ]
    states = {}
    for node in calls:
        need(node.text in kept, f"nothing is kept of {node.text[:60]}")
        learned = _pairs(kept[node.text])
        plain: dict[str, Any] = {}
        for key, value in learned.items():
            if isinstance(value, dict):
                value = value["array"] if "array" in value else {str(k): v for k, v in _pairs(value).items()}
            plain[str(key)] = value
        states[node.text] = _read_state(node.name, _read_options(node.name, dict(node.options)), plain)
    levels = {}
    for text, value in encoders.items():
        need(isinstance(value, list) and len(value) == 2, "an encoder is not a pair")
        inside = _pairs(value[1])
        if "categories" in inside:
            levels[_checked_text(text, "a factor")] = [
                _checked_level(one) for one in _checked_list(inside["categories"], "levels")
            ]
    return learn(form, first, states, levels).side


def _pairs(value: Any) -> dict[Any, Any]:
    """0.1 kept tables as lists of pairs."""
    need(isinstance(value, dict) and isinstance(value.get("map"), list), "a table is not a list of pairs")
    need(all(isinstance(one, list) and len(one) == 2 for one in value["map"]), "a table is not a list of pairs")
    need(all(isinstance(one[0], str | int | float) for one in value["map"]), "a table has keys of lists")
    return {one[0]: one[1] for one in value["map"]}
