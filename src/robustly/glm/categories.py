r"""What if responses are categories without an order? Multinomial logit, and categories that are wrong whatever the columns say.

With the first class as the base, a row is of class k with odds :math:`e^{x_i w_k}` to it. One category a row says nothing of a
spread of rows' own predictors, so what is local is whether the category is right: with probability `flip` it is any of the K,

.. math:: p(y_i = k) = \mathrm{flip}/K + (1 - \mathrm{flip})\, e^{x_i w_k} / (1 + \sum_l e^{x_i w_l}).

Integrated, the row's share :math:`r_i` of being right weights what it says, so rows far on the wrong side say nothing. Slopes and
curvatures are written out, as all is closed; there is one predictor for each class but the first, which the regressions with one
predictor a row have no place for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import expit, log_expit, log_softmax

from robustly.fit.newton import Function, maximize
from robustly.fit.objective import Optimum
from robustly.fit.outcome import Outcome, Stop
from robustly.model.linear import Design

Array = np.ndarray

# As for wrong labels of two classes: without it a steep enough slope explains every row on the wrong side as wrong.
STEEPEST = 5.0
FIRST_FLIP = 0.02
# A gain (in nats) below which a share of wrong categories does no better than none.
NEGLIGIBLE = 1e-6
SEPARATED = 1e-6


@dataclass(frozen=True, eq=False)
class CategoryEvidence:
    """The evidence of all rows as a function of the vector: coefficients class by class, then the log odds of `flip`."""

    turned: Array
    """The columns in the coordinates that are searched."""
    codes: Array
    weight: Array
    classes: int
    penalty: Array
    """Curvature of the pull of one class's coefficients to zero, one a coordinate."""
    flips: bool
    """Whether categories may be wrong."""

    @property
    def size(self) -> int:
        """How many coordinates one class has."""
        return self.turned.shape[1]

    @cached_property
    def _is(self) -> Array:
        return self.codes[:, None] == np.arange(1, self.classes)

    def split(self, vector: Array) -> tuple[Array, float]:
        """Coordinates by class, and the share of wrong categories."""
        inner = vector[: self.size * (self.classes - 1)]
        return inner.reshape(self.classes - 1, self.size), float(expit(vector[-1])) if self.flips else 0.0

    def _by_row(self, vector: Array) -> tuple[Array, Array, Array, float]:
        """Log evidence, probabilities of all classes but the first, and the share of being right."""
        by_class, flip = self.split(vector)
        log_all = log_softmax(np.column_stack([np.zeros(len(self.codes)), self.turned @ by_class.T]), axis=1)
        log_right = log_all[np.arange(len(self.codes)), self.codes]
        if not self.flips:
            return log_right, np.exp(log_all[:, 1:]), np.ones(len(self.codes)), flip
        log_right = log_expit(-vector[-1]) + log_right
        evidence = np.logaddexp(log_right, log_expit(vector[-1]) - np.log(self.classes))
        return evidence, np.exp(log_all[:, 1:]), np.exp(log_right - evidence), flip

    def evidence(self, vector: Array) -> Array:
        """log p(category) of every row."""
        return self._by_row(vector)[0]

    def right(self, vector: Array) -> Array:
        """The probability that each row's category has to do with its columns."""
        return self._by_row(vector)[2]

    def scores(self, vector: Array) -> Array:
        """Every row's slope in the vector."""
        _, chance, right, flip = self._by_row(vector)
        slope = right[:, None] * (self._is - chance)
        parts = [(slope[:, :, None] * self.turned[:, None, :]).reshape(len(self.codes), -1)]
        return np.concatenate([*parts, (1.0 - right - flip)[:, None]], axis=1) if self.flips else parts[0]

    def log_prior(self, vector: Array) -> float:
        by_class, _ = self.split(vector)
        return float(-0.5 * np.sum(by_class**2 @ self.penalty))

    def __call__(self, vector: Array) -> tuple[float, Array, Array]:
        """Value, slope and curvature of the objective."""
        evidence, chance, right, flip = self._by_row(vector)
        by_class, _ = self.split(vector)
        off, both = self._is - chance, self.weight * right * (1.0 - right)
        once, size, others = self.weight * right, self.size, self.classes - 1
        slope = np.concatenate([(self.turned.T @ (once[:, None] * off)).T.ravel() - (by_class * self.penalty).ravel()])
        curve = np.zeros((len(vector), len(vector)))
        for k in range(others):
            for l in range(k, others):
                each = both * off[:, k] * off[:, l] + once * chance[:, k] * (chance[:, l] - (k == l))
                block = self.turned.T @ (each[:, None] * self.turned) - (np.diag(self.penalty) if k == l else 0.0)
                curve[k * size : (k + 1) * size, l * size : (l + 1) * size] = block
                curve[l * size : (l + 1) * size, k * size : (k + 1) * size] = block.T
        if self.flips:
            slope = np.append(slope, self.weight @ (1.0 - right - flip))
            curve[-1, :-1] = curve[:-1, -1] = -(self.turned.T @ (both[:, None] * off)).T.ravel()
            curve[-1, -1] = both.sum() - self.weight.sum() * flip * (1.0 - flip)
        return float(self.weight @ evidence) + self.log_prior(vector), slope, curve


def find_categories(
    design: Design, classes: int, local: str | None, stop: Stop
) -> tuple[CategoryEvidence, Optimum, tuple[str, ...]]:
    """The coefficients, and the share of wrong categories where `local` is ``"label"``; with notes."""
    penalty, notes = design.penalty, tuple[str, ...]()
    if local == "label" and design.ridge == 0:
        penalty = penalty + STEEPEST**-2
        notes = (f"coefficients of standardised columns have a weak prior N(0, {STEEPEST:g}²); alpha > 0 is another.",)
    plain = CategoryEvidence(
        design.directions(), design.y.astype(int), np.asarray(design.rows.weight), classes, penalty, flips=False
    )
    start = np.zeros((classes - 1) * design.size)
    classical = maximize(Function(plain), start, stop)
    if local is None:
        return plain, _judge_separated_categories(plain, classical, design), notes
    robust = replace(plain, flips=True)
    first = np.append(classical.vector, np.log(FIRST_FLIP / (1.0 - FIRST_FLIP)))
    found = maximize(Function(robust), first, stop)
    if found.value > classical.value + NEGLIGIBLE:
        return robust, found, notes
    text = "no share of wrong categories does better than none, so the classical model is returned."
    return plain, replace(classical, outcome=Outcome("boundary", text, classical.outcome.steps)), notes


def _judge_separated_categories(evidence: CategoryEvidence, found: Optimum, design: Design) -> Optimum:
    if design.ridge > 0 or not found.outcome.converged:
        return found
    values = np.linalg.eigvalsh(-found.curve / evidence.weight.sum())
    if not len(values) or values[0] > SEPARATED:
        return found
    text = (
        "the columns tell some classes apart perfectly: the best coefficients are infinite, and the search stopped where "
        "going on gains nothing. Set alpha (a ridge penalty, 1 is mild) or drop a column."
    )
    return replace(found, outcome=Outcome("separation", text, found.outcome.steps))


@dataclass(frozen=True, eq=False)
class FittedCategories:
    """The model with its estimates: coefficients (class but the first, term), and the share of wrong categories."""

    coefficients: Array
    flip: float
    classes: tuple[Any, ...]
    columns: tuple[str, ...]
    """Names of the terms, the intercept first where there is one."""
    intercept: bool
    local: str | None
    formula: Any = None

    def probabilities(self, matrix: Any, kind: str = "mean") -> Array:
        """Of every class, by row: as recorded (``"mean"``) or of the truth (``"typical"``)."""
        first = int(self.intercept)
        predictor = matrix @ self.coefficients[:, first:].T + (self.coefficients[:, 0] if first else 0.0)
        true = np.exp(log_softmax(np.column_stack([np.zeros(predictor.shape[0]), np.asarray(predictor)]), axis=1))
        return true if kind == "typical" else self.flip / len(self.classes) + (1.0 - self.flip) * true
