"""What do the data say against a hypothesis? Wald tests of linear restrictions, and likelihood ratios at a boundary.

Hypotheses are written as they are said, ``"x1 = x2"`` or ``"2*x1 - x2 = 1"``, with the names of the estimates; nothing of the
text is evaluated as code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from robustly.errors import ModelError, did_you_mean, names

NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


@dataclass(frozen=True)
class TestResult:
    """A test: its `statistic`, degrees of freedom `df` (and `df_residual` of an F test), and `pvalue`."""

    __test__ = False  # no test of pytest's

    hypothesis: str
    kind: str
    """``"Wald"`` or ``"likelihood ratio"``."""
    statistic: float
    df: int
    pvalue: float
    df_residual: float | None = None
    """Of an F test, for linear models; otherwise the statistic is compared with a chi-squared law."""
    boundary: bool = False
    """Whether the hypothesis lies on the edge, so that the law is an even mixture of df − 1 and df degrees of freedom."""
    estimate: np.ndarray = field(default_factory=lambda: np.zeros(0), compare=False)
    """What the left minus the right sides are estimated to be."""
    standard_error: np.ndarray = field(default_factory=lambda: np.zeros(0), compare=False)

    def __str__(self) -> str:
        if self.df_residual is not None:
            law = f"F({self.df}, {self.df_residual:g}) = {self.statistic:.4g}"
        elif self.boundary:
            law = f"χ² = {self.statistic:.4g} on {self.df - 1} or {self.df} df, evenly mixed"
        else:
            law = f"χ²({self.df}) = {self.statistic:.4g}"
        return f"{self.kind} test of {self.hypothesis}: {law}, p = {self.pvalue:.4g}"

    __repr__ = __str__


def wald(
    hypothesis: str, difference: np.ndarray, covariance: np.ndarray, df_residual: float | None = None
) -> TestResult:
    """The test that differences, estimated with this covariance, are zero."""
    from scipy.special import chdtrc, fdtrc

    if not np.isfinite(covariance).all():
        raise ModelError(f"{hypothesis} speaks of estimates without standard errors, so there is no Wald test of it.")
    values, vectors = np.linalg.eigh(covariance)
    kept = values > 1e-12 * max(values.max(initial=0.0), 1e-300)
    df = int(kept.sum())
    if not df:
        raise ModelError(f"{hypothesis} restricts nothing that is estimated. Name an estimate that varies.")
    turned = vectors.T @ difference
    if np.any(np.abs(turned[~kept]) > 1e-8 * (1.0 + np.abs(difference).max())):
        raise ModelError(f"{hypothesis} contradicts itself: two of its lines say different things of one estimate.")
    square = float(np.sum(turned[kept] ** 2 / values[kept]))
    errors = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    if df_residual is not None:
        p = float(fdtrc(df, df_residual, square / df))
        return TestResult(hypothesis, "Wald", square / df, df, p, df_residual, False, difference, errors)
    return TestResult(hypothesis, "Wald", square, df, float(chdtrc(df, square)), None, False, difference, errors)


def likelihood_ratio(hypothesis: str, gain: float, df: int, boundary: bool) -> TestResult:
    """The test by twice the `gain` in log likelihood; at a boundary against an even mixture (Self & Liang 1987)."""
    from scipy.special import chdtrc

    statistic = max(2.0 * gain, 0.0)
    tail = lambda k: float(chdtrc(k, statistic)) if k else float(statistic <= 0.0)
    p = 0.5 * (tail(df - 1) + tail(df)) if boundary else tail(df)
    return TestResult(hypothesis, "likelihood ratio", statistic, df, p, None, boundary)


def read_hypotheses(asked: Any, labels: Sequence[str]) -> tuple[np.ndarray, np.ndarray, str]:
    """Restrictions R·estimates = r, from texts, or from R (and r) themselves; and how to show them."""
    if isinstance(asked, str):
        asked = [part for part in asked.split(",") if part.strip()] if "," in asked and asked not in labels else [asked]
    if isinstance(asked, list | tuple) and asked and all(isinstance(one, str) for one in asked):
        lines = [_read_line(one, labels) for one in asked]
        return np.array([line for line, _ in lines]), np.array([value for _, value in lines]), ", ".join(asked)
    given = asked if isinstance(asked, tuple) and len(asked) == 2 else (asked, 0.0)
    try:
        matrix = np.atleast_2d(np.asarray(given[0], dtype=float))
        right = np.broadcast_to(np.asarray(given[1], dtype=float), (len(matrix),))
    except (TypeError, ValueError):
        raise ModelError(
            f'a hypothesis is a text such as "x1 = x2", a list of them, or a matrix with a column an estimate; got {asked!r}.'
        ) from None
    if matrix.shape[1] != len(labels):
        raise ModelError(
            f"the matrix has {matrix.shape[1]} columns, but there are {len(labels)} estimates: {names(labels)}."
        )
    return matrix, np.array(right), f"{len(matrix)} linear restrictions"


def _read_line(text: str, labels: Sequence[str]) -> tuple[np.ndarray, float]:
    sides = re.split(r"==?", text) if text not in labels else [text]
    if any(label in text and "=" in label for label in labels):
        sides = [text]
    if len(sides) > 2:
        raise ModelError(f"the hypothesis {text!r} has more than one =. Separate hypotheses by commas.")
    line, constant = _sum_of(sides[0], text, labels)
    if len(sides) == 2:
        other, more = _sum_of(sides[1], text, labels)
        line, constant = line - other, constant - more
    if not line.any():
        raise ModelError(f"the hypothesis {text!r} names no estimate; there are {names(labels[:20])}.")
    return line, -constant


def _sum_of(side: str, text: str, labels: Sequence[str]) -> tuple[np.ndarray, float]:
    """A sum of numbers, names, and numbers times names."""
    line, constant = np.zeros(len(labels)), 0.0
    factor, name, fresh, divide = 1.0, None, True, False
    at, sign = 0, 1.0

    def close() -> None:
        nonlocal constant
        if fresh:
            raise ModelError(f"the hypothesis {text!r} ends in the middle of a sum. Write it as 2*x1 - x2 = 1.")
        if name is None:
            constant += sign * factor
        else:
            line[name] += sign * factor

    while at < len(side):
        one = side[at]
        if one.isspace():
            at += 1
            continue
        if one in "+-" and fresh and factor == 1.0 and name is None:
            sign, at = (-sign if one == "-" else sign), at + 1
            continue
        if one in "+-" and not fresh:
            close()
            factor, name, fresh, divide, sign, at = 1.0, None, True, False, -1.0 if one == "-" else 1.0, at + 1
            continue
        if one in "*/" and not fresh:
            fresh, divide, at = True, one == "/", at + 1
            continue
        place, end = _name_at(side, at, labels)
        number = NUMBER.match(side, at) if place is None else None
        if not fresh or (place is None and number is None) or (place is not None and (name is not None or divide)):
            word = re.match(r"[\w.()\[\]]+", side[at:])
            raise ModelError(
                f"the hypothesis {text!r} cannot be read at {side[at:].strip()!r}; it is made of numbers, +, -, *, = and "
                f"{names(labels[:20])}." + did_you_mean(word[0] if word else "", labels)
            )
        if place is not None:
            name, at = place, end
        else:
            assert number is not None
            value = float(number[0])
            if divide and value == 0.0:
                raise ModelError(f"the hypothesis {text!r} divides by zero.")
            factor, at = (factor / value if divide else factor * value), number.end()
        fresh, divide = False, False
    close()
    return line, constant


def _name_at(text: str, at: int, labels: Sequence[str]) -> tuple[int | None, int]:
    """The longest label that stands here, and where it ends; in backticks too."""
    start = at + 1 if text[at] == "`" else at
    for place in sorted(range(len(labels)), key=lambda i: -len(labels[i])):
        end = start + len(labels[place])
        if text[start:end] != labels[place]:
            continue
        if start > at:
            if text[end : end + 1] == "`":
                return place, end + 1
        elif not (labels[place][-1].isidentifier() and re.match(r"\w", text[end : end + 1] or " ")):
            return place, end
    return None, at
