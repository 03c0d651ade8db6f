"""How is a formula read that 0.1 kept? As text: by the rules for typed formulas, with the numbers that were kept beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from robustly.glm.formula_checked import (
    checked_level,
    checked_list,
    checked_text,
    checked_texts,
    read_given,
    read_options,
    read_state,
)
from robustly.glm.formula_nodes import Learned, walk
from robustly.glm.formula_parse import parse
from robustly.glm.formula_spec import FormulaColumns, Side, factors_of, learn
from robustly.result.saved_values import need


def formula_from_text(meta: Mapping[str, Any]) -> FormulaColumns:
    """A formula kept as text: read by the rules for typed formulas, with the levels and numbers that were kept beside it."""
    text, offset_texts = checked_text(meta["text"], "text"), checked_texts(meta["offset_texts"], "offset_texts")
    need(isinstance(meta["first"], dict) and 0 <= len(meta["first"]) <= 100_000, "the first row is not a table")
    first = pd.DataFrame(
        {checked_text(name, "a column"): [checked_level(value)] for name, value in meta["first"].items()}, index=[0]
    )
    _, parsed, _, _ = parse(text, list(first))
    forms = [parsed.rhs, *(parse(f"y ~ 0 + {one}", list(first))[1].rhs for one in offset_texts)]
    states = checked_list(meta["states"], "states")
    need(len(states) == len(forms), "states are missing")
    sides = [_learned_again(form, state, first) for form, state in zip(forms, states)]
    need(sides[0].columns == checked_texts(meta["terms"], "terms"), "the formula gives other columns than the fit had")
    for side in sides[1:]:
        need(len(side.columns) == 1, "an offset has several columns")
    classes = tuple(checked_level(one) for one in checked_list(meta["classes"], "classes"))
    return FormulaColumns(text, tuple(offset_texts), sides[0], tuple(sides[1:]), classes, read_given(meta["given"]))


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
        states[node.text] = read_state(node.name, read_options(node.name, dict(node.options)), plain)
    levels = {}
    for text, value in encoders.items():
        need(isinstance(value, list) and len(value) == 2, "an encoder is not a pair")
        inside = _pairs(value[1])
        if "categories" in inside:
            levels[checked_text(text, "a factor")] = [
                checked_level(one) for one in checked_list(inside["categories"], "levels")
            ]
    return learn(form, first, states, levels).side


def _pairs(value: Any) -> dict[Any, Any]:
    """0.1 kept tables as lists of pairs."""
    need(isinstance(value, dict) and isinstance(value.get("map"), list), "a table is not a list of pairs")
    need(all(isinstance(one, list) and len(one) == 2 for one in value["map"]), "a table is not a list of pairs")
    need(all(isinstance(one[0], str | int | float) for one in value["map"]), "a table has keys of lists")
    return {one[0]: one[1] for one in value["map"]}
