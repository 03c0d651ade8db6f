"""What can still be asked of the rows behind a fitted regression: scores, leaving one out, tails, posteriors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from robustly._runtime.threads import on_one_thread
from robustly.approx import Quadrature
from robustly.errors import ModelError
from robustly.fit.draws import Draws
from robustly.fit.newton import maximize
from robustly.fit.problem import Found
from robustly.fit.view_passes import pairs
from robustly.glm.classical import fit_classical
from robustly.glm.contaminated_starts import MANY_ROWS
from robustly.glm.core_scores import Judge, asked_of_rows
from robustly.glm.families import Normal
from robustly.glm.judging import judge_regression
from robustly.glm.label_judging import judge_labels
from robustly.glm.local import Classical, Law, Noiseless, Shifted
from robustly.glm.noiseless import noiseless
from robustly.glm.posterior import draw_posterior
from robustly.glm.predictive import Fitted, GLMPredictive
from robustly.glm.profile import profile_interval, profile_spread
from robustly.glm.regression import Plan, Regression, plan_of
from robustly.glm.residuals import residuals_of
from robustly.glm.row_model import evidence_of
from robustly.model.linear import Design
from robustly.model.wide_curvature import Curve
from robustly.result.estimates import inverse_or_pseudo
from robustly.result.hypotheses import TestResult, likelihood_ratio
from robustly.result.laws import LEVELS, RowPosterior
from robustly.result.outliers import JUDGED, Judgement
from robustly.result.source import Source
from robustly.rows.store import Data

if TYPE_CHECKING:
    import pandas as pd

# Rows that lose more than so many nats by being left out are fitted without; one Newton step is too short for them.
HEAVY = 0.1
REFITS = 30
KINKED_REFITS = 100
# Passes by which a fit to all rows but one is climbed to, and the nats that may be left: to gain by it, and of that row's density.
SLOPE_STEPS = 15
LEFT_TO_GAIN, LEFT_TO_MOVE = 1e-9, 1e-5
# A residual below this share of the spread is none.
ON_THE_FIT = 1e-6


class GLMSource(Source):
    """What can still be asked of the rows behind a fit."""

    def __init__(self, found: Found, asked: Plan) -> None:
        assert isinstance(found.problem, Regression)
        self.found = found
        self.asked = asked
        self.problem: Regression = found.problem
        self.design = self.problem.design
        self.law = self.problem.plan.law
        self.u, self.phi = self.problem.split(found.vector)
        # Files keep by row what can be asked of rows in memory; others stay where they are.
        self.keeps = ("scored", "loo_by_row", "tail_probabilities", "judgement") if self._in_memory else ()

    @property
    def _in_memory(self) -> bool:
        return self.design.rows.here is not None

    def _need_memory(self, what: str) -> None:
        if not self._in_memory:
            raise ModelError(
                f"{what} needs rows in memory. Fit a sample of the rows, or choose rows by fit.outliers()."
            )

    @cached_property
    def predictor(self) -> np.ndarray:
        return self.design.predictor(self.u)

    @property
    def _kinked(self) -> bool:
        return self.law.kinked

    @cached_property
    def _curves(self) -> tuple[np.ndarray, np.ndarray]:
        self._need_memory("the slope of every row, by which loo, influence, comparisons and reports go,")
        slope, curve = self.problem.curves_by_row(self.found.vector)
        if self._kinked:
            # Rows on the fit sit on the kink of their density: of all slopes there, those that balance all other rows.
            on = np.abs(self.design.y - self.predictor) < ON_THE_FIT * np.exp(self.phi[0])
            weighed = self.design.directions()[on] * self.design.rows.weight[on, None]
            slope = slope.copy()
            slope[on, 0] = np.linalg.lstsq(weighed.T, -self.found.optimum.slope[: self.design.size], rcond=None)[0]
        return slope, curve

    def curve(self, seen: Curve) -> np.ndarray:
        return self.found.curve

    def evidence(self) -> np.ndarray:
        """log p(row) for every row."""
        return self.found.evidence

    @property
    def takes_rows(self) -> bool:
        return self._in_memory and len(self.design) > MANY_ROWS

    def evidence_of(self, places: np.ndarray) -> np.ndarray:
        some = self.design.with_rows(self.design.rows.take(places))
        return self.problem.with_design(some).evidence_at(self.found.vector)

    def scores(self) -> np.ndarray:
        """Slope of every row's evidence in the vector."""
        slope = self._curves[0]
        return np.concatenate([self.design.directions() * slope[:, :1], slope[:, 1 + self.problem.linear.free]], axis=1)

    def meat(self, weight: np.ndarray) -> np.ndarray:
        if self._in_memory:
            return super().meat(weight)
        return self.problem.added_by_row(ScoreSquares(self.design, self.problem.linear.free), self.found.vector)["meat"]

    @property
    def _used(self) -> np.ndarray:
        """Which of a row's numbers are searched: its predictor, and shared numbers that are not held."""
        return np.concatenate([[0], 1 + self.problem.linear.free])

    def _bends(self, used: np.ndarray) -> np.ndarray:
        """The second derivative of every row's evidence in its own numbers."""
        slope, curve = self._curves
        found = np.zeros((len(slope), len(used), len(used)))
        for column, (i, j) in zip(curve.T, pairs(slope.shape[1])):
            if i in used and j in used:
                a, b = int(np.flatnonzero(used == i)[0]), int(np.flatnonzero(used == j)[0])
                found[:, a, b] = found[:, b, a] = column
        return found

    def moves_without(self, groups: np.ndarray) -> np.ndarray:
        """How far the vector moves when a group of rows is left out, by group: one Newton step from the estimate."""
        z, weight, scores = self.design.directions(), self.design.rows.weight, self.scores()
        bend = self._bends(self._used) * weight[:, None, None]
        size, count = self.design.size, int(groups.max()) + 1
        # Where errors are symmetric, a scale says nothing of where they lie; what a group seems to say of both is chance.
        symmetric = isinstance(self.law.family, Normal)
        order = np.argsort(groups, kind="stable")
        found = np.zeros((count, scores.shape[1]))
        for group, rows in enumerate(np.split(order, np.cumsum(np.bincount(groups, minlength=count))[:-1])):
            left = self.found.curve.copy()
            left[:size, :size] -= z[rows].T @ (bend[rows, 0, 0, None] * z[rows])
            if not symmetric:
                left[:size, size:] -= z[rows].T @ bend[rows, 0, 1:]
                left[size:, :size] = left[:size, size:].T
            left[size:, size:] -= bend[rows, 1:, 1:].sum(axis=0)
            found[group] = np.linalg.pinv(left) @ (weight[rows] @ scores[rows])
        return found

    def _removed(self) -> tuple[np.ndarray, np.ndarray]:
        """How far each row's predictor and shared numbers move when the row is left out, and their variances."""
        slope, used = self._curves[0], self._used
        k, size, weight = len(used), self.design.size, self.design.rows.weight
        covariance = inverse_or_pseudo(-self.found.curve)
        z = self.design.directions()
        spread = np.zeros((len(z), k, k))
        spread[:, 0, 0] = np.einsum("ni,ij,nj->n", z, covariance[:size, :size], z)
        spread[:, 0, 1:] = z @ covariance[:size, size:]
        spread[:, 1:, 0] = spread[:, 0, 1:]
        spread[:, 1:, 1:] = covariance[size:, size:]
        bend = self._bends(used)
        matrix = np.eye(k) + weight[:, None, None] * (bend @ spread)
        # A row that holds a coefficient alone leaves nothing to solve; a nudge makes its step long instead of undefined.
        singular = np.abs(np.linalg.det(matrix)) < 1e-12
        matrix[singular] += 1e-9 * np.eye(k)
        pull = np.linalg.solve(matrix, slope[:, used, None] * weight[:, None, None])
        return -(spread @ pull)[..., 0], spread

    @on_one_thread
    def loo(self) -> np.ndarray:
        move, _ = self._removed()
        free = self.problem.linear.free
        phi = np.tile(self.phi, (len(move), 1))
        # A step as long as this is no step that one row's leaving asks for.
        phi[:, free] += np.clip(move[:, 1:], -5.0, 5.0)
        m = self.predictor + np.clip(move[:, 0], -1e3, 1e3)
        found = self._evidence(m, phi)
        # What nothing else predicts has no prediction: the density in the fit stands for it, and `leverage_one` says so.
        leverage_one = leverage_one_in(self.found)
        found[leverage_one] = self.found.evidence[leverage_one]
        lost = self.found.evidence - found
        heavy = np.argsort(-lost, kind="stable")[:REFITS]
        heavy = heavy[lost[heavy] > HEAVY]
        if self._kinked and len(lost) <= KINKED_REFITS:
            # Among few rows a kinked likelihood moves by leaps, from row to row.
            heavy = np.arange(len(lost))
        heavy = np.setdiff1d(heavy[self.design.rows.weight[heavy] > 0], leverage_one)
        for row in heavy if self._kinked or isinstance(self.law, Noiseless) else ():
            found[row] = self._without(int(row))
        if not (self._kinked or isinstance(self.law, Noiseless)) and len(heavy):
            phi, m = np.tile(self.phi, (len(found), 1)), self.predictor.copy()
            for row in heavy:
                u, phi[row] = self.problem.split(self._climbed_without(int(row)))
                m[row] = self.design.with_rows(self.design.rows.take([row])).predictor(u)[0]
            found[heavy] = self._evidence(m, phi)[heavy]
        return found

    @cached_property
    def _directions(self) -> np.ndarray:
        return self.design.directions()

    def _climbed_without(self, row: int) -> np.ndarray:
        """The fit to all other rows, from that to all: slopes by passes, the curvature once, with the row's share taken off."""
        weight = self.design.rows.weight.copy()
        curve = self.found.optimum.curve - weight[row] * self._curve_of(row)
        weight[row] = 0.0
        vector, last, free = self.found.vector, np.inf, 1 + self.problem.linear.free
        slopes = self._curves[0]
        try:
            inverse = np.linalg.inv(np.linalg.cholesky(-curve))
        except np.linalg.LinAlgError:
            return self._searched_without(self.problem.weighed(weight))
        for _ in range(SLOPE_STEPS):
            with np.errstate(invalid="ignore"):  # far off, a row that is left out may have no slope
                by_row = slopes * weight[:, None]
            if not np.isfinite(by_row).all():
                break
            slope = np.concatenate([self._directions.T @ by_row[:, 0], by_row[:, free].sum(axis=0)])
            slope = slope + self.problem.prior(vector)[1]
            step = inverse.T @ (inverse @ slope)
            gain = 0.5 * float(slope @ step)
            if not gain < last:
                break
            vector = vector + step
            # Each step gains about as little of the last one as that did of the one before. A row far off moves by more than the fit gains.
            rate = gain / last if np.isfinite(last) else 1.0
            moved = slopes[row, 0] * (self._directions[row] @ step[: self.design.size])
            moved += slopes[row, free] @ step[self.design.size :]
            if gain * rate < LEFT_TO_GAIN and abs(moved) * np.sqrt(rate) < LEFT_TO_MOVE:
                return vector
            last, slopes = gain, self.problem.curves_by_row(vector)[0]
        return self._searched_without(self.problem.weighed(weight))

    def _searched_without(self, problem: Regression) -> np.ndarray:
        objective, start = problem.searched(self.found.vector)
        return problem.left(maximize(objective, start, self.problem.plan.stop)).vector

    def _curve_of(self, row: int) -> np.ndarray:
        """One row's curvature in the vector."""
        curve = self._curves[1][row]
        used = np.concatenate([[0], 1 + self.problem.linear.free])
        turn = np.zeros((len(used), len(self.found.vector)))
        turn[0, : self.design.size] = self._directions[row]
        turn[1:, self.design.size :] = np.eye(len(used) - 1)
        bend = np.zeros((len(used), len(used)))
        for value, (i, j) in zip(curve, pairs(self._curves[0].shape[1])):
            if i in used and j in used:
                a, b = int(np.flatnonzero(used == i)[0]), int(np.flatnonzero(used == j)[0])
                bend[a, b] = bend[b, a] = value
        return turn.T @ bend @ turn

    def _without(self, row: int) -> float:
        """The evidence of a row under the fit to all others, climbed from the fit to all."""
        weight = self.design.rows.weight.copy()
        weight[row] = 0.0
        if isinstance(self.law, Noiseless):
            others = noiseless(self.design.weighed(weight), self.problem.plan, self.u, float(self.phi[0]))
            return float(others.evidence[row])
        problem = self.problem.weighed(weight)
        objective, start = problem.searched(self.found.vector)
        others = Found(problem, problem.left(maximize(objective, start, self.problem.plan.stop)))
        return float(others.evidence[row])

    def _evidence(self, m: np.ndarray, phi: np.ndarray) -> np.ndarray:
        return evidence_of(self.law, self.problem.kernel.approx, (m, *phi.T), self.design.y, self.design.trials)

    def influence(self) -> np.ndarray:
        move, spread = self._removed()
        slope = self._curves[0][:, 0] * self.design.rows.weight
        shrunk = np.where(np.abs(slope) > 0, move[:, 0] / np.where(spread[:, 0, 0] > 0, spread[:, 0, 0], 1.0), 0.0)
        return shrunk**2 * spread[:, 0, 0] / self.design.size

    def tail_probabilities(self) -> np.ndarray:
        """How improbable each row is, by the rule of its law."""
        return self._judged(_tails)

    def judge(self) -> Judgement | None:
        """By a core and a wide part; rows without noise have no core."""
        if self.found.outcome.kind == "perfect_fit" or isinstance(self.law, Noiseless):
            return None
        if not self._in_memory and len(self.design) <= JUDGED:
            here = self.design.with_rows(self.design.rows.sample(len(self.design), 0))
            return GLMSource(replace(self.found, problem=self.problem.with_design(here)), self.asked).judge()
        if self.law.family.yes_or_no and bool(np.all(self.design.trials == 1)):
            return judge_labels(self.design, self.law.family)
        return judge_regression(self.design, self.asked, self.found)

    @cached_property
    def cumulative(self) -> tuple[np.ndarray, np.ndarray]:
        """P(Y < y) and P(Y ≤ y) of every row under its integrated predictive distribution; equal for measurements."""
        return self._judged(_cumulative)

    def _judged(self, judge: Judge) -> Any:
        """What the fitted law says of every row."""
        fitted = fitted_of(self.found)
        if self._in_memory:
            return judge(fitted, self.design.y, self.predictor, self.design.trials)
        return asked_of_rows(self.design, self.u, fitted, judge)

    def pit(self) -> tuple[np.ndarray, np.ndarray]:
        return self.cumulative

    @property
    def _predictive(self) -> GLMPredictive:
        return GLMPredictive(fitted_of(self.found), self.predictor, self.design.trials)

    def fitted_mean(self) -> np.ndarray:
        return self._predictive.mean

    def residuals(self, kind: str, seed: int) -> np.ndarray:
        below, upto = self.cumulative if kind == "quantile" else (np.zeros(0), np.zeros(0))
        return residuals_of(self._predictive, np.asarray(self.design.y), kind, seed, below, upto)

    def profile_interval(self, name: str, level: float) -> tuple[float, float]:
        return profile_interval(self.found, self.asked, name, level)

    def edge_test(self, hypothesis: str) -> TestResult:
        plain = fit_classical(self.design, Plan(Classical(self.law.family), stop=self.asked.stop))
        free = [name for name in self.asked.law.names if name not in self.asked.held]
        more = max(1, len(free) - len(self.law.family.nuisance))
        return likelihood_ratio(hypothesis, self.found.log_likelihood - plain.log_likelihood, more, True)

    def observed(self) -> dict[str, np.ndarray]:
        return {"y": np.asarray(self.design.y)}

    def replicates(self, vectors: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        found = []
        for vector in vectors:
            u, phi = self.problem.split(vector)
            fitted = Fitted(self.law, phi, self.design.coefficients_of(u), self.design.intercept)
            law = GLMPredictive(fitted, self.design.predictor(u), self.design.trials)
            found.append(law.sample(1, key=rng)[0])
        return {"y": np.stack(found)}

    def posterior(self, site: str | None) -> RowPosterior:
        if isinstance(self.law, Noiseless):
            y = np.asarray(self.design.y)
            return RowPosterior(y, np.zeros(len(y)), LEVELS, np.repeat(y[:, None], len(LEVELS), axis=1))
        if self.law.closed:
            raise ModelError("this fit has no own value by row that was integrated by points; see shared and surprise.")
        mean, sd, quantile = self.problem.by_row(self.problem.kernel.posterior, self.found.vector, LEVELS)
        return RowPosterior(mean, sd, LEVELS, quantile)

    def shifts(self) -> np.ndarray:
        if not isinstance(self.law, Shifted):
            raise ModelError('shifts exist only after solver="map" with prior="laplace".')
        return self.problem.by_row(self._shifts, self.found.vector)

    def _shifts(self, numbers: Any, row: Any, state: Any) -> Any:
        return self.problem.kernel.by_row(_shift_of(self.law), numbers)(numbers, row, state)

    def profile(self, values: Sequence[float]) -> pd.DataFrame:
        return profile_spread(self.design, self.asked, values)

    def integration_error(self) -> float:
        """Change of the log likelihood with twice the points a row."""
        if self.law.closed:
            return 0.0
        approx = self.problem.kernel.approx
        finer = approx.finer() if approx.finer() != approx else Quadrature(81)
        there = Regression(self.design, self.problem.plan, approx=finer)
        return abs(there.look(self.found.vector).value - self.found.value)

    def evidence_at(self, vectors: np.ndarray) -> np.ndarray:
        """Evidence of every row at other vectors: (vector, row)."""
        return np.stack([self.problem.evidence_at(vector) for vector in vectors])

    def natural_by_name(self, vectors: np.ndarray) -> dict[str, np.ndarray]:
        """Coefficients and shared numbers at many vectors (chain, draw, entry)."""
        size, law = self.design.size, self.law
        coefficients = vectors[..., :size] @ self.design.to_coefficients.T
        found = {term: coefficients[..., i] for i, term in enumerate(self.design.terms)}
        for place, index in enumerate(self.problem.linear.free):
            name = law.names[index]
            found[name] = law.natural(name, vectors[..., size + place])
        if self.found.outcome.kind == "boundary":
            # What was asked for is known to be at its edge: draws have the same names wherever the fit ended.
            edge = self.asked.law.at_boundary
            found |= {name: np.full(vectors.shape[:-1], value) for name, value in edge.items() if name not in found}
        return found

    def sample_posterior(self, num_samples: int, key: Any, num_warmup: int, num_chains: int) -> Draws:
        vectors, divergences = draw_posterior(self.found, num_samples, num_warmup, num_chains, key)
        return Draws(self.natural_by_name(vectors), vectors, divergences)

    def has_posterior(self, site: str) -> bool:
        return not self.law.closed


def _tails(fitted: Fitted, y: np.ndarray, predictor: np.ndarray, trials: np.ndarray) -> np.ndarray:
    both = lambda: _cumulative(fitted, y, predictor, trials)
    return fitted.law.tail_probabilities(y, predictor, fitted.shared, both)


def _cumulative(
    fitted: Fitted, y: np.ndarray, predictor: np.ndarray, trials: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    return GLMPredictive(fitted, predictor, trials).cdf_on_both_sides(y)


@dataclass(frozen=True, eq=False)
class ScoreSquares:
    """The rows' scores times themselves, from their slopes."""

    design: Design
    free: np.ndarray

    def __call__(self, data: Data, weight: np.ndarray, found: tuple[Any, ...]) -> dict[str, Any]:
        slope = found[1]
        scores = np.concatenate([self.design.turned(data[0]) * slope[:, :1], slope[:, 1 + self.free]], axis=1)
        return {"meat": (scores * weight[:, None]).T @ scores}


@cache
def _shift_of(law: Law) -> Any:
    """A row's own shift, as the kernel compiles it."""
    return lambda kernel, numbers, row, state: law.shift(row, *numbers)  # type: ignore[attr-defined]


def leverage_one_in(found: Found) -> np.ndarray:
    """Rows of leverage one, with no prior on the coefficients."""
    problem = found.problem
    assert isinstance(problem, Regression)
    return problem.design.leverage_one if problem.plan.extra_ridge == 0 else np.zeros(0, dtype=int)


def fitted_of(found: Found) -> Fitted:
    """What predictions need."""
    problem = found.problem
    assert isinstance(problem, Regression)
    u, phi = problem.split(found.vector)
    return Fitted(plan_of(found).law, phi, problem.design.coefficients_of(u), problem.design.intercept)
