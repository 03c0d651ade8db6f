"""What can still be asked of the rows behind a fitted regression: scores, leaving one out, tails, posteriors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from robustly._runtime.precision import double_precision
from robustly.errors import ModelError
from robustly.fit.draws import Draws
from robustly.glm.climb import Climb, Found, Plan, by_row
from robustly.glm.evidence import kernel, pairs, start_state
from robustly.glm.local import LocalLabel, LocalPrecision, Noiseless, Shifted
from robustly.glm.noiseless import noiseless
from robustly.glm.posterior import draw_posterior
from robustly.glm.predictive import Fitted, GLMPredictive
from robustly.glm.profile import profile_spread
from robustly.result.laws import LEVELS, RowPosterior, two_sided
from robustly.result.source import Source
from robustly.rows.arrays import pad
from robustly.rows.frames import DesignRows

# Rows that lose more than so many nats by being left out are fitted without; one Newton step is too short for them.
HEAVY = 0.3
REFITS = 30
KINKED_REFITS = 100
# A residual below this share of the spread is none.
ON_THE_FIT = 1e-6


class GLMSource(Source):
    """What can still be asked of the rows behind a fit."""

    keeps = ("scored", "loo_by_row", "tail_probabilities")

    def __init__(self, found: Found, asked: Plan) -> None:
        self.found = found
        self.asked = asked
        self.design = found.design
        self.climb = Climb(found.design, found.plan, found.nodes)
        # Compiled samplers, so that a second call starts at once.
        self.compiled: dict[Any, Any] = {}

    @cached_property
    def predictor(self) -> np.ndarray:
        return self.design.predictor(self.found.u)

    @property
    def _kinked(self) -> bool:
        law = self.found.plan.law
        return law.kinked

    @cached_property
    def _curves(self) -> tuple[np.ndarray, np.ndarray]:
        slope, curve = by_row(self.found)
        if self._kinked:
            # Rows on the fit sit on the kink of their density: of all slopes there, those that balance all other rows.
            on = np.abs(self.design.y - self.predictor) < ON_THE_FIT * np.exp(self.found.phi[0])
            weighed = self.design.directions()[on] * self.design.rows.weight[on, None]
            slope = slope.copy()
            slope[on, 0] = np.linalg.lstsq(weighed.T, -self.found.optimum.slope[: self.design.size], rcond=None)[0]
        return slope, curve

    def evidence(self) -> np.ndarray:
        """log p(row) for every row."""
        return self.found.evidence

    def scores(self) -> np.ndarray:
        """Slope of every row's evidence in the vector."""
        slope = self._curves[0]
        return np.concatenate([self.design.directions() * slope[:, :1], slope[:, 1 + self.climb.free]], axis=1)

    def _removed(self) -> tuple[np.ndarray, np.ndarray]:
        """How far each row's predictor and shared numbers move when the row is left out, and their variances."""
        slope, curve = self._curves
        used = np.concatenate([[0], 1 + self.climb.free])
        k, size, weight = len(used), self.design.size, self.design.rows.weight
        covariance = np.linalg.pinv(-self.found.optimum.curve)
        z = self.design.directions()
        spread = np.zeros((len(z), k, k))
        spread[:, 0, 0] = np.einsum("ni,ij,nj->n", z, covariance[:size, :size], z)
        spread[:, 0, 1:] = z @ covariance[:size, size:]
        spread[:, 1:, 0] = spread[:, 0, 1:]
        spread[:, 1:, 1:] = covariance[size:, size:]
        bend = np.zeros((len(z), k, k))
        for column, (i, j) in zip(curve.T, pairs(slope.shape[1])):
            if i in used and j in used:
                a, b = int(np.flatnonzero(used == i)[0]), int(np.flatnonzero(used == j)[0])
                bend[:, a, b] = bend[:, b, a] = column
        matrix = np.eye(k) + weight[:, None, None] * (bend @ spread)
        # A row that holds a coefficient alone leaves nothing to solve; a nudge makes its step long instead of undefined.
        alone = np.abs(np.linalg.det(matrix)) < 1e-12
        matrix[alone] += 1e-9 * np.eye(k)
        pull = np.linalg.solve(matrix, slope[:, used, None] * weight[:, None, None])
        return -(spread @ pull)[..., 0], spread

    def loo(self) -> np.ndarray:
        move, _ = self._removed()
        law, free = self.found.plan.law, self.climb.free
        phi = np.tile(self.found.phi, (len(move), 1))
        # A step as long as this is no step that one row's leaving asks for.
        phi[:, free] += np.clip(move[:, 1:], -5.0, 5.0)
        m = self.predictor + np.clip(move[:, 0], -1e3, 1e3)
        found = self._evidence(m, phi) + law.family.log_base(self.design.y, self.design.trials)
        # What nothing else predicts has no prediction: the density in the fit stands for it, and `alone` says so.
        alone = alone_in(self.found)
        found[alone] = self.found.evidence[alone]
        lost = self.found.evidence - found
        heavy = np.argsort(-lost, kind="stable")[:REFITS]
        heavy = heavy[lost[heavy] > HEAVY]
        if self._kinked and len(lost) <= KINKED_REFITS:
            # Among few rows a kinked likelihood moves by leaps, from row to row.
            heavy = np.arange(len(lost))
        for row in np.setdiff1d(heavy[self.design.rows.weight[heavy] > 0], alone):
            found[row] = self._without(int(row))
        return found

    def _without(self, row: int) -> float:
        """The evidence of a row under the fit to all others, climbed from the fit to all."""
        weight = self.design.rows.weight.copy()
        weight[row] = 0.0
        if isinstance(self.found.plan.law, Noiseless):
            less = noiseless(self.design.weighed(weight), self.found.plan, self.found.u, float(self.found.phi[0]))
            return float(less.evidence[row])
        climb = Climb(self.design.weighed(weight), self.found.plan, self.found.nodes)
        climb.state = None if self.found.state is None else self.found.state.copy()
        return float(climb.climb(self.found.u, self.found.phi).evidence[row])

    def _evidence(self, m: np.ndarray, phi: np.ndarray) -> np.ndarray:
        law = self.found.plan.law
        passes = kernel(law, self.found.nodes)
        state = self.found.state
        state = start_state(law, self.design.y, self.design.trials, self.found.phi) if state is None else state
        rows = DesignRows((m, self.design.y, self.design.trials, phi), self.design.rows.weight)
        parts = []
        for place, (m_, y, trials, phi_), weight in rows.chunks():
            with double_precision(), np.errstate(all="ignore"):
                here = pad(state[place], len(weight))
                parts.append(
                    np.asarray(passes.values(m_, tuple(phi_.T), (y, trials), here))[: place.stop - place.start]
                )
        return np.concatenate(parts)

    def influence(self) -> np.ndarray:
        move, spread = self._removed()
        slope = self._curves[0][:, 0] * self.design.rows.weight
        shrunk = np.where(np.abs(slope) > 0, move[:, 0] / np.where(spread[:, 0, 0] > 0, spread[:, 0, 0], 1.0), 0.0)
        return shrunk**2 * spread[:, 0, 0] / self.design.size

    def tail_probabilities(self) -> np.ndarray:
        """Two-sided: twice the smaller of P(Y ≤ y) and P(Y ≥ y), by row."""
        design, found = self.design, self.found
        law, y = found.plan.law, design.y
        if isinstance(law, LocalPrecision):
            from scipy.special import ndtr

            return 2.0 * ndtr(-np.abs(y - self.predictor) / np.exp(found.phi[0]))
        fitted = fitted_of(found)
        if isinstance(law, LocalLabel):
            from scipy.special import expit

            flip, right = fitted.shared["flip"], expit((2.0 * y - 1.0) * self.predictor)
            return (1.0 - flip) * right / ((1.0 - flip) * right + flip * (1.0 - right))
        strictly, below = self.cumulative
        return two_sided(below, 1.0 - strictly)

    @cached_property
    def cumulative(self) -> tuple[np.ndarray, np.ndarray]:
        """P(Y < y) and P(Y ≤ y) of every row under its integrated predictive distribution; equal for measurements."""
        y = self.design.y
        predictive = GLMPredictive(fitted_of(self.found), self.predictor, self.design.trials)
        below = predictive.cdf(y)
        return (predictive.cdf(np.ceil(y) - 1.0) if self.found.plan.law.family.discrete else below), below

    def pit(self) -> tuple[np.ndarray, np.ndarray]:
        return self.cumulative

    def observed(self) -> dict[str, np.ndarray]:
        return {"y": np.asarray(self.design.y)}

    def posterior(self, site: str | None) -> RowPosterior:
        law = self.found.plan.law
        if isinstance(law, Noiseless):
            y = np.asarray(self.design.y)
            return RowPosterior(y, np.zeros(len(y)), LEVELS, np.repeat(y[:, None], len(LEVELS), axis=1))
        if law.closed:
            raise ModelError("this fit has no own value by row that was integrated by points; see shared and surprise.")
        passes = kernel(self.found.plan.law, self.found.nodes)
        assert self.found.state is not None
        rows = DesignRows((self.predictor, self.design.y, self.design.trials), self.design.rows.weight)
        parts = []
        for place, (m, y, trials), weight in rows.chunks():
            with double_precision():
                state = pad(self.found.state[place], len(weight))
                each = passes.posterior(m, tuple(self.found.phi), (y, trials), state, LEVELS)
                parts.append([np.asarray(a)[: place.stop - place.start] for a in each])
        mean, sd, quantile = (np.concatenate(each) for each in zip(*parts))
        return RowPosterior(mean, sd, LEVELS, quantile)

    def shifts(self) -> np.ndarray:
        if not isinstance(self.found.plan.law, Shifted):
            raise ModelError('shifts exist only after solver="map" with prior="laplace".')
        passes = kernel(self.found.plan.law, self.found.nodes)
        with double_precision():
            found = passes.shifts(self.predictor, tuple(self.found.phi), (self.design.y, self.design.trials))
            return np.asarray(found)

    def profile(self, values: Sequence[float]) -> pd.DataFrame:
        return profile_spread(self.design, self.asked, values)

    def integration_error(self) -> float:
        """Change of the log likelihood with twice the points a row."""
        if self.found.plan.law.closed:
            return 0.0
        finer = Climb(self.design, self.found.plan, 2 * self.found.nodes if self.found.nodes else 81)
        optimum = replace(self.found.optimum, before=None)
        return abs(finer.found(optimum).log_likelihood - self.found.log_likelihood)

    def evidence_at(self, vectors: np.ndarray) -> np.ndarray:
        """Evidence of every row at other vectors: (vector, row)."""
        found = []
        for vector in vectors:
            self.climb.curves(vector)
            assert self.climb.seen is not None
            found.append(self.climb.seen[1] + self.found.plan.law.family.log_base(self.design.y, self.design.trials))
        return np.stack(found)

    def natural_by_name(self, vectors: np.ndarray) -> dict[str, np.ndarray]:
        """Coefficients and shared numbers at many vectors (chain, draw, entry)."""
        size, law = self.design.size, self.found.plan.law
        coefficients = vectors[..., :size] @ self.design.to_coefficients.T
        found = {term: coefficients[..., i] for i, term in enumerate(self.design.terms)}
        for place, index in enumerate(self.climb.free):
            name = law.names[index]
            found[name] = law.natural(name, vectors[..., size + place])
        return found

    def sample_posterior(self, num_samples: int, key: Any, num_warmup: int, num_chains: int) -> Draws:
        drawn = draw_posterior(self.found, num_samples, num_warmup, num_chains, key, self.compiled)
        return Draws(self.natural_by_name(drawn.vectors), drawn.vectors, drawn.divergences)

    def has_posterior(self, site: str) -> bool:
        return not self.found.plan.law.closed


def alone_in(found: Found) -> np.ndarray:
    """Rows that hold a coefficient alone, with no prior on it."""
    return found.design.alone if found.plan.tether == 0 else np.zeros(0, dtype=int)


def fitted_of(found: Found) -> Fitted:
    """What predictions need."""
    return Fitted(found.plan.law, found.phi, found.design.to_coefficients @ found.u, found.design.intercept)
