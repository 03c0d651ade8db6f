"""How is a formula kept in a file? As the tree it was read into and the numbers it learned; its text is only shown.

Reading builds the tree again from a fixed list of kinds, signs and functions, and checks every number, so nothing in a file
is evaluated. Files of version 0.1 hold the text instead: it is read by the same rules as a formula that a user types, and
refused if it says anything else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from robustly.errors import PersistError, RobustlyError
from robustly.glm.formula_checked import (
    checked_level,
    checked_list,
    checked_number,
    checked_numbers,
    checked_place,
    checked_text,
    checked_texts,
    column_count,
    is_single,
    read_given,
    read_options,
    read_state,
)
from robustly.glm.formula_evaluate import LOGICAL, SIGNS
from robustly.glm.formula_language import DEEPEST, FUNCTIONS, LEARNED
from robustly.glm.formula_nodes import Call, Column, Expression, Learned, Number, Operation, Text
from robustly.glm.formula_spec import FormulaColumns, KeptFactor, Part, Side
from robustly.glm.formula_text import formula_from_text
from robustly.result.saved_values import need

ARGUMENTS = dict.fromkeys((*SIGNS, *LOGICAL), 2) | {"negative": 1, "positive": 1, "~": 1}
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
            return formula_from_text(meta)
        return FormulaColumns(
            checked_text(meta["text"], "text"),
            tuple(checked_texts(meta["offset_texts"], "offset_texts")),
            _read_side(meta["side"]),
            tuple(_read_offset(one) for one in checked_list(meta["offsets"], "offsets")),
            tuple(checked_level(one) for one in checked_list(meta["classes"], "classes")),
            read_given(meta["given"]),
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


def _read_offset(meta: Any) -> Side:
    side = _read_side(meta)
    need(len(side.columns) == 1, "an offset has several columns")
    return side


def _read_side(meta: Any) -> Side:
    factors = [_read_factor(one) for one in checked_list(meta["factors"], "factors")]
    parts = [_read_part(one, factors) for one in checked_list(meta["parts"], "parts")]
    terms, columns = [], checked_texts(meta["columns"], "columns")
    need(len(columns) <= MOST_COLUMNS and len(set(columns)) == len(columns), "columns are too many or doubled")
    at = 0
    for one in checked_list(meta["terms"], "terms"):
        need(isinstance(one, list) and len(one) == 2, "a term is not a scale and its parts")
        scale, inside = (
            checked_number(one[0], "a scale"),
            [checked_place(place, len(parts), "a part") for place in checked_list(one[1], "parts")],
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
        levels = [checked_level(one) for one in checked_list(levels, "levels")]
        need(len(set(levels)) == len(levels), "levels are doubled")
        need(not isinstance(of, Learned), "levels are made of several columns")
    if buckets is not None:
        need(type(buckets) is int and levels == list(range(buckets)), "hashed levels are not counted from 0")
    return KeptFactor(checked_text(meta["text"], "a factor's text"), of, levels, buckets)


def _read_part(meta: Any, factors: Sequence[KeptFactor]) -> Part:
    need(isinstance(meta, dict), "a part is not a table")
    place = checked_place(meta["factor"], len(factors), "a factor")
    factor, called = factors[place], checked_texts(meta["names"], "names")
    width = column_count(factor.of) if factor.levels is None else len(factor.levels)
    if meta["coding"] is not None:
        need(factor.levels is not None and meta["picked"] is None, "numbers have contrasts")
        coding = np.array(
            [checked_numbers(row, "a contrast") for row in checked_list(meta["coding"], "contrasts")], dtype=float
        )
        need(coding.shape == (width, len(called)), "contrasts have another size than the levels")
        return Part(place, called, None, coding)
    picked = [checked_place(one, width, "a column") for one in checked_list(meta["picked"], "picked columns")]
    need(len(picked) == len(called), "columns and names differ in number")
    return Part(place, called, picked)


def _read_node(meta: Any, depth: int) -> Expression:
    need(isinstance(meta, list) and len(meta) >= 2 and depth <= DEEPEST, "an expression is not made of known pieces")
    kind, rest = meta[0], meta[1:]
    if kind == "column" and len(rest) == 1:
        return Column(checked_text(rest[0], "a column"))
    if kind == "number" and len(rest) == 1:
        return Number(checked_number(rest[0], "a number"))
    if kind == "text" and len(rest) == 1:
        return Text(checked_text(rest[0], "a word"))
    if kind in ("sign", "call") and len(rest) == 2:
        name = checked_text(rest[0], "a function")
        known = ARGUMENTS if kind == "sign" else {one: count for one, (_, count) in FUNCTIONS.items()}
        need(name in known, f"{name[:60]!r} is no function that formulas know")
        given = tuple(_read_node(one, depth + 1) for one in checked_list(rest[1], "arguments"))
        need(len(given) == known[name], f"{name} has {len(given)} arguments")
        worded = any(isinstance(one, Text) for one in given)
        fine = name in ("==", "!=") and all(isinstance(one, Text | Column) for one in given)
        need(not worded or (fine and not all(isinstance(one, Text) for one in given)), "it computes with words")
        return Operation(name, given) if kind == "sign" else Call(name, given)
    need(kind == "learned" and len(rest) == 5, "an expression is not made of known pieces")
    name, of, text = (
        checked_text(rest[0], "a function"),
        _read_node(rest[1], depth + 1),
        checked_text(rest[4], "a text"),
    )
    need(name in LEARNED and not isinstance(of, Text), f"{name[:60]!r} is no function that formulas know")
    need(all(is_single(one) for one in _learned_in(of)), "several columns are put into a function of one")
    return Learned(name, of, read_options(name, rest[2]), read_state(name, rest[2], rest[3]), text)


def _learned_in(node: Expression) -> list[Learned]:
    if isinstance(node, Learned):
        return [node, *_learned_in(node.of)]
    return [one for inner in getattr(node, "of", ()) for one in _learned_in(inner)]
