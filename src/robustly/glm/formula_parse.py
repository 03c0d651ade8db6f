"""What are the terms and offsets of a formula? Its text is split by us and by formulaic's parser; nothing is evaluated."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from robustly.errors import ModelError
from robustly.glm.formula_language import quoted

LONGEST_FORMULA = 20_000
DEEPEST_FORMULA = 50
MOST_TERMS = 100_000


def parse(formula: str, columns: Iterable[str]) -> tuple[str, Any, list[str], list[Any]]:
    """The formula without its offsets, as text and as terms, and its offsets the same way; ``.`` is all other columns."""
    return _parsed(formula, tuple(columns))


@lru_cache(maxsize=8)
def _parsed(formula: str, columns: tuple[str, ...]) -> tuple[str, Any, list[str], list[Any]]:
    """The last few formulas are kept: several models of the same rows are fitted one after the other."""
    from formulaic import Formula
    from formulaic.errors import FormulaicError

    refuse_too_many_terms(formula)
    core, added = take_offsets(formula)
    core = take_counts(core)
    for text in added:
        refuse_too_many_terms(text)
    try:
        parsed = Formula(core, _context={"__formulaic_variables_available__": list(columns)})
        offset_forms = [Formula(f"0 + {text}") for text in added]
    except (FormulaicError, SyntaxError, ValueError, TypeError, RecursionError, IndexError, AttributeError) as error:
        # formulaic colours the place it stumbled over.
        said = " ".join(re.sub(r"\x1b\[[0-9;]*m|[⧛⧚]", "", str(error)).split())
        raise ModelError(f"the formula {quoted(formula, 200)} cannot be read: {said}") from error
    if not hasattr(parsed, "lhs") or not hasattr(parsed, "rhs"):
        raise ModelError(f'the formula {quoted(formula, 200)} has no response. Write it as "y ~ x".')
    if core.rstrip().endswith("~"):
        raise ModelError(f'the formula {quoted(formula, 200)} ends with its ~. Write "y ~ 1" for an intercept alone.')
    return core, parsed, added, offset_forms


def take_counts(core: str) -> str:
    """``cbind(s, f) ~ …`` as two columns of counts, which a sum of terms is to formulaic."""
    left, sign, right = core.partition("~")
    inside = re.fullmatch(r"\s*cbind\s*\((.*)\)\s*", left, re.DOTALL)
    if inside is None or not sign:
        return core
    depth, cuts = 0, []
    for at, one in enumerate(inside[1]):
        depth += {"(": 1, ")": -1}.get(one, 0)
        if one == "," and depth == 0:
            cuts.append(at)
    if len(cuts) != 1:
        raise ModelError(
            f"{quoted(left.strip())} has {len(cuts) + 1} columns. Write cbind(successes, failures), such as cbind(s, n - s)."
        )
    successes, failures = inside[1][: cuts[0]].strip(), inside[1][cuts[0] + 1 :].strip()
    return f"I({successes}) + I({failures}) ~{right}"


def refuse_too_many_terms(formula: str) -> None:
    """A few signs can ask for millions of terms: ``(a + b + …) ** 20``. The bound is that of fully crossed sums."""
    if len(formula) > LONGEST_FORMULA:
        raise ModelError(f"the formula has {len(formula)} characters; up to {LONGEST_FORMULA} are read.")
    depth = deepest = 0
    for sign in formula:
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(sign, 0)
        deepest = max(deepest, depth)
    if deepest > DEEPEST_FORMULA:
        raise ModelError(f"the formula has {deepest} brackets within each other; up to {DEEPEST_FORMULA} are read.")
    # Calls are one name each, whatever is in them.
    flat = re.sub(r"`[^`]*`", "name", formula)
    for _ in range(deepest + 1):
        flat = re.sub(r"(?<![\w.])[\w.]++\([^()]*\)", "name", flat)
    terms = 0.0
    for piece in _top_level_pieces(flat):
        count = len(re.findall(r"[^\W\d][\w.]*", piece)) + 1
        powers = [int(one[:6]) for one in re.findall(r"(?:\*\*|\^)\s*(\d+)", piece)]
        crossed = len(re.findall(r"(?<!\*)\*(?!\*)|[:/]|%in%", piece))
        terms += float(count) ** min(crossed + 1 + sum(powers), 60)
    if terms > MOST_TERMS:
        raise ModelError(
            f"the formula {quoted(formula, 200)} may have some {terms:.0e} terms; up to {MOST_TERMS:.0e} are read. Cross fewer columns."
        )


def _top_level_pieces(text: str) -> list[str]:
    """Split at + and - outside of brackets."""
    pieces, depth, start = [], 0, 0
    for at, sign in enumerate(text):
        depth += {"(": 1, ")": -1}.get(sign, 0)
        if sign in "+-~" and depth <= 0:
            pieces.append(text[start:at])
            start = at + 1
    return [*pieces, text[start:]]


def take_offsets(formula: str) -> tuple[str, list[str]]:
    """Split ``offset(...)`` terms off a formula."""
    core, found = formula, []
    while (at := _find_offset(core)) >= 0:
        depth, end = 0, at
        for end in range(core.index("(", at), len(core)):
            depth += {"(": 1, ")": -1}.get(core[end], 0)
            if depth == 0:
                break
        if depth:
            raise ModelError(f"the formula {formula!r} has an offset( without its closing bracket.")
        found.append(core[core.index("(", at) + 1 : end])
        before, after = core[:at].rstrip(), core[end + 1 :]
        if before.endswith("+"):
            before = before[:-1]
        elif after.lstrip().startswith("+"):
            after = after.lstrip()[1:]
        core = before + after
        if core.rstrip().endswith("~"):
            core += " 1"
    return core, found


def _find_offset(text: str) -> int:
    match = re.search(r"(?<![\w.])offset\s*\(", text)
    return match.start() if match else -1
