r"""Which 0/1 labels are wrong? Labels have no tails: they are judged by the probability that they are wrong.

Three laws are weighed: no label is wrong, labels are wrong at a rate common to all, and at one that grows with the margin. A few dozen
rows leave slopes and rates open, and not as a normal would: so the posterior of each law is drawn from, by importance, and both
its evidence and the rows' probabilities are averages over the draws. Of many rows Laplace's approximation does. The last two are hard
to tell apart, so that a label is as probably wrong as the more cautious of the laws says that the rows do not rule out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit, gammaln

from robustly.fit.problem import Found
from robustly.glm.contaminated_starts import MANY_ROWS, STOP, best_of_starts, on_all_rows, sample_to_judge
from robustly.glm.local import Classical, Law, LocalLabel
from robustly.glm.regression import Plan, Regression, log_believed
from robustly.model.linear import Design
from robustly.result.outliers import Candidate, Judgement, judge
from robustly.result.two_part import SHARE

# Standard deviation of a weak prior on the coefficients of standardised columns: without it a steep enough slope explains every
# row on the wrong side as a wrong label. For estimates, and for judging, where it is that of rstanarm (Goodrich et al. 2020).
STEEPEST, USUAL = 5.0, 2.5
# Normal priors on the scales that are searched: logarithms, and log odds of a rate of at most a half, about those of the share of
# strayed rows elsewhere.
MARGIN, SHARPNESS = (float(np.log(2.0)), 0.7), (float(np.log(5.0)), 0.6)
FLIPS = (SHARE[0] + float(np.log(2.0)), SHARE[1])
# Rows up to which laws are drawn from; draws, how often they are made anew about what the last showed, and their tails.
DRAWN, DRAWS, ROUNDS, DOF = 500, 400, 3, 5.0


@dataclass(frozen=True)
class RareLabel(LocalLabel):
    """Wrong labels at a rate common to all, of which something is believed."""

    @property
    def believed(self) -> Mapping[str, tuple[float, float]]:
        return {"flip": FLIPS}


@dataclass(frozen=True)
class MarginLabel(RareLabel):
    r"""Wrong labels that are commoner far from the boundary: at the rate :math:`\mathrm{flip} \cdot |m|^s / (|m|^s + \mathrm{margin}^s)`.

    A label close to the boundary is easily wrong by itself, whoever wrote it down; a rate common to all rows blames the writer.
    """

    @property
    def names(self) -> tuple[str, ...]:
        return ("flip", "margin", "sharpness")

    @property
    def believed(self) -> Mapping[str, tuple[float, float]]:
        return {"flip": FLIPS, "margin": MARGIN, "sharpness": SHARPNESS}

    def natural(self, name: str, value: Any, xp: Any = np) -> Any:
        return super().natural(name, value, xp) if name == "flip" else xp.exp(value)

    def free(self, name: str, value: float) -> float:
        return super().free(name, value) if name == "flip" else float(np.log(value))

    def slope(self, name: str, value: float) -> float:
        return super().slope(name, value) if name == "flip" else float(np.exp(value))

    def bounds(self, name: str) -> tuple[float, float]:
        return super().bounds(name) if name == "flip" else (0.0, float("inf"))

    def rate(self, m: Any, flip: Any, margin: Any, sharpness: Any, xp: Any) -> Any:
        """How often the label of a row with this predictor is wrong, from numbers on the free scale."""
        further = 0.5 * xp.log(m**2 + 1e-12) - margin
        return self.natural("flip", flip, xp) / (1.0 + xp.exp(-xp.clip(xp.exp(sharpness) * further, -500.0, 500.0)))

    def evidence(self, row: Any, m: Any, *phi: Any) -> Any:
        import jax
        import jax.numpy as jnp

        rate = self.rate(m, phi[0], phi[1], phi[2], jnp)
        return jnp.log(rate + (1.0 - 2.0 * rate) * jax.nn.sigmoid((2.0 * row[0] - 1.0) * m))


RIGHT = "a law of right labels"
WRONG = "a law of labels that may be wrong"
FAR = "a law of labels that may be wrong, far from the boundary more often"


def judge_labels(design: Design, family: Any) -> Judgement:
    """Weigh the laws of labels."""
    plan = lambda law: Plan(law, stop=STOP, extra_ridge=USUAL**-2)
    some = sample_to_judge(design)
    right = best_of_starts(some, plan(Classical(family)), [np.zeros(design.size)])
    u = right.vector
    # Far wrong labels make the coefficients of a law of right ones too flat.
    starts = [np.concatenate([steeper * u, [FLIPS[0]]]) for steeper in (1.0, 2.0)]
    wrong = best_of_starts(some, plan(RareLabel(family)), starts)
    starts = [
        np.concatenate([steeper * u, [FLIPS[0], margin, SHARPNESS[0]]]) for steeper, margin in ((1.0, 0.0), (2.0, 0.7))
    ]
    far = best_of_starts(some, plan(MarginLabel(family)), starts)
    # A common rate with a steep slope and a rate that grows with the margin describe even a thousand rows about as well.
    laws = ((RIGHT, right), (WRONG, wrong), (FAR, far))
    return judge([_label_law(name, on_all_rows(found, design)) for name, found in laws], cautious=True)


def rate_of(law: Law, m: np.ndarray, phi: np.ndarray) -> np.ndarray:
    """How often labels of rows with these predictors are wrong; phi has a number or a column for each that is shared."""
    if isinstance(law, MarginLabel):
        return law.rate(m, phi[0], phi[1], phi[2], np)
    return (0.0 if isinstance(law, Classical) else law.natural("flip", phi[0])) + 0.0 * m


def _label_law(name: str, found: Found) -> Candidate:
    problem = found.problem
    assert isinstance(problem, Regression)
    design, law = problem.design, problem.plan.law
    if design.rows.here is not None and len(design) <= DRAWN:
        return _drawn(name, problem, found)
    u, phi = problem.split(found.vector)
    m = design.predictor(u)
    if isinstance(law, Classical):
        return Candidate(name, found.value, found.optimum.curve, np.full(len(m), -np.inf))
    sign, rate = 2.0 * design.y - 1.0, rate_of(law, m, phi)
    odds = _log_odds(rate, sign * m)
    variance = None
    if design.rows.here is not None and len(design) < MANY_ROWS:
        step = 1e-3
        slopes = [(_log_odds(rate_of(law, m + step, phi), sign * (m + step)) - odds) / step * design.directions().T]
        for place in range(len(phi)):
            moved = phi + step * (np.arange(len(phi)) == place)
            slopes.append((_log_odds(rate_of(law, m, moved), sign * m) - odds)[None] / step)
        slope = np.concatenate(slopes)
        variance = np.einsum("in,ij,jn->n", slope, np.linalg.pinv(-found.optimum.curve), slope)
    return Candidate(name, found.value, found.optimum.curve, odds, variance, float(rate.mean()))


def _log_odds(rate: np.ndarray, toward: np.ndarray) -> np.ndarray:
    """Of a wrong label against a right one; `toward` is how far the predictor speaks for the label."""
    rate = np.maximum(rate, 1e-300)
    return np.log(rate) - np.log1p(-rate) - toward


def _drawn(name: str, problem: Regression, found: Found) -> Candidate:
    """A law integrated by draws: a Student t about the top, then about what the draws before showed (Oh & Berger 1992)."""
    design, law = problem.design, problem.plan.law
    rng, size, count = np.random.default_rng(0), design.size, len(found.vector)
    columns, sign, weight = design.directions(), 2.0 * design.y - 1.0, design.rows.weight
    centre, covariance = found.vector, np.linalg.pinv(-found.optimum.curve)
    for _ in range(ROUNDS):
        lower = np.linalg.cholesky(covariance + 1e-12 * np.trace(covariance) * np.eye(count))
        z = rng.normal(size=(DRAWS // 2, count))
        z = np.concatenate([z, -z]) / np.sqrt(np.tile(rng.chisquare(DOF, DRAWS // 2), 2) / DOF)[:, None]
        at = centre + z @ lower.T
        u, phi = at[:, :size], np.clip(at[:, size:].T, -60.0, 60.0)[:, :, None]
        m = design.offset + u @ columns.T
        rate = rate_of(law, m, phi)
        right = expit(sign * m)
        likelihood = np.log(np.maximum(rate + (1.0 - 2.0 * rate) * right, 1e-300)) @ weight
        prior = -0.5 * u**2 @ problem.penalty
        prior += [log_believed(law, problem.linear.free, one[size:])[0] for one in at]
        constant = gammaln(0.5 * (DOF + count)) - gammaln(0.5 * DOF) - 0.5 * count * np.log(DOF * np.pi)
        proposed = constant - np.log(np.diag(lower)).sum() - 0.5 * (DOF + count) * np.log1p((z**2).sum(axis=1) / DOF)
        height = likelihood + prior - proposed
        top = float(height.max())
        share = np.exp(height - top)
        evidence, share = top + float(np.log(share.mean())), share / share.sum()
        centre = share @ at
        covariance = np.einsum("s,si,sj->ij", share, at - centre, at - centre)
    wrong = rate * (1.0 - right) / np.maximum(rate * (1.0 - right) + (1.0 - rate) * right, 1e-300)
    probability = share @ wrong
    strayed = float(share @ rate.mean(axis=1))
    return Candidate(name, found.value, found.optimum.curve, share=strayed, averaged=(evidence, probability))
