"""Which terms of a formula are effects of groups? ``(1 | g)``, ``(1 + x | g)``, ``(x || g)``, ``(1 | a/b)``, as in lme4.

The bars are taken off before the rest is read as any other formula; what stands left of a bar is a formula of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from robustly.errors import ModelError
from robustly.glm.formula_language import quoted

PAIRS = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}


@dataclass(frozen=True)
class Bar:
    """Effects of groups: a formula of the terms that vary, and the columns that tell the groups apart."""

    effects: str
    groups: tuple[str, ...]
    """One column, or several that name a group together: the rows of one ``b`` within one ``a``."""
    correlated: bool = True

    @property
    def name(self) -> str:
        return ":".join(self.groups)


def take_bars(formula: str) -> tuple[str, list[Bar]]:
    """Split the terms with bars off a formula."""
    core, found = formula, []
    while (place := _find_bar(core)) is not None:
        start, end = place
        found += _read_bar(core[start + 1 : end], formula)
        before, after = core[:start].rstrip(), core[end + 1 :]
        if before.endswith("+"):
            before = before[:-1].rstrip()
        elif before.endswith(("*", ":", "-", "/")) or re.match(r"\s*[*:/]", after):
            raise ModelError(
                f"the formula {quoted(formula, 200)} multiplies or subtracts a term with a bar. Effects of groups are added: "
                '"y ~ x + (1 | g)".'
            )
        elif after.lstrip().startswith("+"):
            after = after.lstrip()[1:]
        core = before + after
        if core.rstrip().endswith("~"):
            core += " 1"
    return core, found


def _find_bar(text: str) -> tuple[int, int] | None:
    """The brackets of the first term with a bar that is not inside of a call."""
    opened: list[int] = []
    bars: set[int] = set()
    inside_name = False
    for at, sign in enumerate(text):
        if sign == "`":
            inside_name = not inside_name
        if inside_name:
            continue
        if sign in "([{":
            opened.append(at)
        elif sign in ")]}" and opened:
            start = opened.pop()
            called = start > 0 and (text[start - 1].isalnum() or text[start - 1] in "_.`")
            if start in bars and sign == ")" and not called:
                return start, at
        elif sign == "|" and opened:
            bars.add(opened[-1])
    return None


def _read_bar(inside: str, formula: str) -> list[Bar]:
    left, bar, right = _at_bar(inside)
    name = r"(?:`[^`]+`|[^\W\d][\w.]*)"
    if not left.strip() or not re.fullmatch(rf"\s*{name}(?:\s*[/:]\s*{name})*\s*", right):
        raise ModelError(
            f"the term ({inside[:80]}) of the formula {quoted(formula, 200)} is not read. Write (effects | groups): terms such "
            "as 1 + x left of the bar, and right of it the column that tells groups apart, or a/b for groups b within a."
        )
    if "/" in right and ":" in right:
        raise ModelError(f"the groups {right.strip()!r} mix / and :. Write one bar for each.")
    columns = [one.strip().strip("`") for one in re.split(r"[/:]", right)]
    nested = [columns[: i + 1] for i in range(len(columns))] if "/" in right else [columns]
    return [Bar(left.strip(), tuple(one), bar == "|") for one in nested]


def _at_bar(text: str) -> tuple[str, str, str]:
    depth = 0
    for at, sign in enumerate(text):
        depth += PAIRS.get(sign, 0)
        if sign == "|" and depth == 0:
            bar = "||" if text[at + 1 : at + 2] == "|" else "|"
            return text[:at], bar, text[at + len(bar) :]
    raise AssertionError(text)
