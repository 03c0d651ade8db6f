"""What to expect of new rows: the predictive distribution of a fitted generalized linear model, row by row."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from robustly._runtime.random_keys import generator
from robustly.approx.two_centre import two_centres
from robustly.errors import DataError
from robustly.glm.counted_cdf import count_scores, tabulated_cdf
from robustly.glm.families import Binomial, Exponential, Family, Gamma, NegativeBinomial, Normal, Poisson
from robustly.glm.listed import list_responses
from robustly.glm.local import Classical, Law, LocalDispersion, LocalLabel, LocalPredictor, Shifted
from robustly.glm.mean_interval import mean_interval
from robustly.glm.row_model import approximation, evidence_of
from robustly.model.read_design import Given
from robustly.result.laws import RowLaw, invert_cdf
from robustly.result.levels import check_level
from robustly.result.listed import Listed

LOG_LINK = (Poisson, Gamma, Exponential, NegativeBinomial)
# Laws whose rows are averaged over their own predictors or dispersions.
MIXED = (LocalPredictor, LocalDispersion)
ROWS_AT_ONCE = 4096
GRID = 512


@dataclass(frozen=True, eq=False)
class Fitted:
    """All that predictions need of a fit: the law, its shared numbers and the coefficients."""

    law: Law
    phi: np.ndarray
    coefficients: np.ndarray
    intercept: bool

    @property
    def family(self) -> Family:
        return self.law.family

    @property
    def shared(self) -> dict[str, float]:
        return {name: float(self.law.natural(name, value)) for name, value in zip(self.law.names, self.phi)}

    @property
    def integrated(self) -> Law:
        """The law that predictions are averaged over; sparse shifts predict as the Laplace law they came from."""
        return LocalPredictor(self.family, "laplace") if isinstance(self.law, Shifted) else self.law

    def predictor(self, matrix: Any, offset: np.ndarray | None = None) -> np.ndarray:
        """The typical predictor of new rows: offset and linear part."""
        if self.intercept:
            found = self.coefficients[0] + matrix @ self.coefficients[1:]
        else:
            found = matrix @ self.coefficients
        found = np.asarray(found, dtype=float)
        return found if offset is None else found + offset

    def typical(self, m: np.ndarray, trials: np.ndarray) -> np.ndarray:
        """The mean response of a row whose own value is the common one."""
        return self.family.mean(m, self.law.nuisance(self.phi), trials)


class GLMPredictive(RowLaw):
    """The integrated predictive distribution of a set of rows; every answer is an array by row."""

    def __init__(
        self, fitted: Fitted, m: np.ndarray, trials: np.ndarray | None = None, matrix: Any = None, fit: Any = None
    ) -> None:
        self.fitted = fitted
        self.matrix = matrix
        self.fit = fit
        self.m = np.asarray(m, dtype=float)
        self.trials = np.ones(len(self.m)) if trials is None else np.asarray(trials, dtype=float)
        self.law = fitted.integrated
        self.family = fitted.family
        self.shared = fitted.shared
        self.nuisance = fitted.law.nuisance(fitted.phi)
        self.errors = self.law.errors(self.shared)

    def __len__(self) -> int:
        return len(self.m)

    def of_fit(self, fit: Any) -> GLMPredictive:
        """With the fit whose estimates it was made with: their uncertainty gives intervals of the mean."""
        return GLMPredictive(self.fitted, self.m, self.trials, self.matrix, fit)

    def mean_interval(
        self, level: float = 0.95, kind: str = "information", groups: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Where the *expected value* of every row lies, as far as the estimates are sure; `interval` is of a new response.

        Args:
            level: the probability of the interval.
            kind, groups: which covariance of the estimates; see :meth:`Fit.covariance`.

        Symmetric on the scale of the predictor (the log of a mean of counts, the log odds of a chance), spread included.
        """
        check_level(level)
        return mean_interval(self, level, kind, groups)

    # ------------------------------------------------------------------ moments

    @property
    def mean(self) -> np.ndarray:
        """Expected value of every row, averaged over rows' own values."""
        return self._moments[0]

    @property
    def typical(self) -> np.ndarray:
        """Expected value of a row whose own value is the common one: ``exp(x·w)`` for counts."""
        return self.fitted.typical(self.m, self.trials)

    @property
    def sd(self) -> np.ndarray:
        """Standard deviation of every row, the spread included; infinite where the law has none."""
        return np.sqrt(self._moments[1])

    @cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        family, m, trials = self.family, self.m, self.trials
        if isinstance(self.law, Classical):
            return family.mean(m, self.nuisance, trials), family.variance(m, self.nuisance, trials)
        if self.errors is not None:
            variance = float(self.errors.var())
            return m, np.full(len(m), variance if np.isfinite(variance) else np.inf)
        if isinstance(self.law, LocalLabel):
            share = self._label_share(m)
            return share, share * (1.0 - share)
        if isinstance(self.law, LocalPredictor) and isinstance(family, LOG_LINK):
            return self._log_link_moments()
        return self._mixed_moments() if isinstance(self.law, MIXED) else (self._listed.mean(), self._listed.std() ** 2)

    @cached_property
    def _listed(self) -> Listed:
        """Responses with their probabilities, of a law that says no more of itself than its density."""
        return list_responses(self.law, tuple(self.fitted.phi), self.m, self.trials)

    def _log_link_moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Responses whose mean is exp(predictor): moments of e to the row's own value are known."""
        first, second = (self._exponential_moment(power) for power in (1.0, 2.0))
        with np.errstate(over="ignore", invalid="ignore"):
            mean = np.exp(self.m) * first
            own = np.exp(2.0 * self.m) * (second - first**2)
            square = np.exp(2.0 * self.m) * second
            if isinstance(self.family, Gamma):
                inner = square / self.family.shape_of(self.nuisance)
            elif isinstance(self.family, NegativeBinomial):
                inner = mean + square / self.nuisance[0]
            else:
                inner = mean
            return mean, np.where(np.isfinite(square), inner + own, np.inf)

    def _exponential_moment(self, power: float) -> float:
        """E exp(power · away) for a row's distance from its centre; infinite for heavy tails."""
        assert isinstance(self.law, LocalPredictor)
        spread = power * self.shared["spread"]
        if self.law.prior == "normal":
            return float(np.exp(min(0.5 * spread**2, 700.0)))
        if self.law.prior == "laplace":
            return 1.0 / (1.0 - spread**2) if spread < 1.0 else np.inf
        return np.inf

    def _mixed_moments(self) -> tuple[np.ndarray, np.ndarray]:
        def one(place: slice) -> tuple[np.ndarray, np.ndarray]:
            own, share = self._own_points(place, None)
            mean = self._by_own(self.family.mean, own, place)
            variance = self._by_own(self.family.variance, own, place)
            total = (share * mean).sum(axis=1)
            return total, (share * (variance + (mean - total[:, None]) ** 2)).sum(axis=1)

        parts = [one(place) for place in self._places()]
        return np.concatenate([a for a, _ in parts]), np.concatenate([b for _, b in parts])

    # ------------------------------------------------------------------ distribution

    def cdf(self, values: Any) -> np.ndarray:
        """P(Y ≤ value), one value a row."""
        y = np.array(np.broadcast_to(np.asarray(values, dtype=float), (len(self),)))
        if isinstance(self.law, Classical):
            return self.family.cdf(y, self.m, self.nuisance, self.trials)
        if self.errors is not None:
            return self.errors.cdf(y - self.m)
        if isinstance(self.law, LocalLabel):
            return np.where(y < 0, 0.0, np.where(y < 1, 1.0 - self._label_share(self.m), 1.0))
        if not isinstance(self.law, MIXED):
            return self._listed.cdf(y)
        if not self.family.discrete:
            return self._mixed_cdf_of_all(y)
        whole = np.floor(y)
        closed = (whole >= self.trials) if isinstance(self.family, Binomial) else np.isinf(whole)
        if closed.any():
            found, rest = np.ones(len(self)), ~closed
            found[rest] = GLMPredictive(self.fitted, self.m[rest], self.trials[rest]).cdf(whole[rest])
            return found
        found = tabulated_cdf(
            lambda m, y, trials: GLMPredictive(self.fitted, m, trials)._mixed_cdf_of_all(y),
            self.m,
            np.maximum(whole, 0.0),
            self.trials,
            lambda y, trials: self.law.width(y, trials, self.fitted.phi),
        )
        found[whole < 0] = 0.0
        return found

    def cdf_on_both_sides(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """P(Y < y) and P(Y ≤ y), equal for measurements; of counts both at once, for they are read off the same tables."""
        if not self.family.discrete:
            below = self.cdf(y)
            return below, below
        twice = GLMPredictive(self.fitted, np.tile(self.m, 2), np.tile(self.trials, 2))
        strictly, below = np.split(twice.cdf(np.concatenate([np.ceil(y) - 1.0, y])), 2)
        return strictly, below

    def count_scores(self, y: np.ndarray, deepest: float) -> np.ndarray:
        """How far out counts are, as two-sided normal deviates, for tails of at least `deepest`."""
        return count_scores(
            lambda m, y, trials: GLMPredictive(self.fitted, m, trials).cdf(y),
            self.m,
            y,
            self.trials,
            lambda y, trials: self.law.width(y, trials, self.fitted.phi),
            deepest,
        )

    def _mixed_cdf_of_all(self, y: np.ndarray) -> np.ndarray:
        return np.concatenate([self._mixed_cdf(place, y[place]) for place in self._places()])

    def _mixed_cdf(self, place: slice, y: np.ndarray) -> np.ndarray:
        own, share = self._own_points(place, y)
        wide = lambda predictor, nuisance, trials: self.family.cdf(
            np.broadcast_to(y[:, None], own.shape), predictor, nuisance, trials
        )
        return np.clip((share * self._by_own(wide, own, place)).sum(axis=1), 0.0, 1.0)

    def cdf_slopes(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """:meth:`cdf` where predictors are spread as a normal, and its slopes in the predictor and in the log spread, (n, 2).

        The prior moves and the points stay, so that both come with the cdf.
        """
        found = np.empty((len(self), 3))
        for place in self._places():
            y = values[place]
            own, share = self._own_points(place, y)
            z = (own - self.m[place][:, None]) / self.shared["spread"]
            cdf = lambda own, nuisance, trials, y=y: self.family.cdf(
                np.broadcast_to(y[:, None], own.shape), own, nuisance, trials
            )
            below = share * self._by_own(cdf, own, place)
            terms = (below, below * z / self.shared["spread"], below * (z**2 - 1.0))
            found[place] = np.stack([term.sum(axis=1) for term in terms], axis=1)
        return np.clip(found[:, 0], 0.0, 1.0), found[:, 1:]

    def _by_own(self, of: Any, own: np.ndarray, place: slice) -> np.ndarray:
        """A quantity of the family at every point of the rows' own values."""
        trials = np.broadcast_to(self.trials[place][:, None], own.shape)
        if isinstance(self.law, LocalDispersion):
            m = np.broadcast_to(self.m[place][:, None], own.shape)
            return np.stack(
                [of(m[:, [k]], (np.exp(own[0, k]),), trials[:, [k]])[:, 0] for k in range(own.shape[1])], axis=1
            )
        return of(own, self.nuisance, trials)

    def _own_points(self, place: slice, y: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Points of the rows' own values and their shares under the fitted prior, dense where the cdf at `y` turns."""
        m = self.m[place]
        if isinstance(self.law, LocalDispersion):
            t, weight = np.polynomial.hermite_e.hermegauss(41)
            own = np.log(self.nuisance[0]) + self.shared["spread"] * t
            return np.tile(own, (len(m), 1)), np.tile(weight / weight.sum(), (len(m), 1))
        assert isinstance(self.law, LocalPredictor)
        spread = self.shared["spread"]
        turn = None if y is None else self.family.turn(y, self.trials[place], self.nuisance)
        centre, width = (m, np.full(len(m), spread)) if turn is None else turn
        far = {"normal": 10.0, "laplace": 45.0}.get(self.law.prior)
        if far is None:
            far = float(np.exp(min(36.0 / self.shared["dof"], 30.0)))
        own, weight = two_centres(m, spread, centre, np.minimum(width, 30.0 * spread), far * spread, far * spread)
        prior = self._log_prior(own - m[:, None])
        share = weight * np.exp(prior - prior.max(axis=1, keepdims=True))
        total = share.sum(axis=1, keepdims=True)
        # A spread below the predictor's rounding leaves one point.
        return own, np.divide(share, total, out=np.full_like(share, 1.0 / share.shape[1]), where=total > 0)

    def _log_prior(self, away: np.ndarray) -> np.ndarray:
        spread = self.shared["spread"]
        z = np.abs(away) / spread
        assert isinstance(self.law, LocalPredictor)
        if self.law.prior == "normal":
            return -0.5 * z**2
        if self.law.prior == "laplace":
            return -z
        dof = self.shared["dof"]
        return -0.5 * (dof + 1.0) * np.log1p(z**2 / dof)

    def _label_share(self, m: np.ndarray) -> np.ndarray:
        from scipy.special import expit

        flip = self.shared["flip"]
        return flip + (1.0 - 2.0 * flip) * expit(m)

    def _places(self) -> list[slice]:
        return [slice(start, start + ROWS_AT_ONCE) for start in range(0, len(self), ROWS_AT_ONCE)]

    # ------------------------------------------------------------------ quantiles

    def _quantile_at(self, level: float) -> np.ndarray:
        if self.errors is not None:
            return self.m + self.errors.ppf(level)
        if isinstance(self.law, (*MIXED, Classical)) and len(self) > 1:
            # Rows differ by their predictor alone: it moves or stretches one law, or steps through its counts.
            if isinstance(self.family, Normal):
                return self.m + self._at_predictors(np.zeros(1))._quantile_at(level)
            if isinstance(self.family, Gamma | Exponential):
                return np.exp(np.minimum(self.m, 709.0)) * self._at_predictors(np.zeros(1))._quantile_at(level)
            if self.family.discrete and len(self) > 2 * GRID and np.all(self.trials == self.trials[0]):
                return self._counted_quantile(level)
        typical = self.typical
        if self.family.discrete:
            counted = isinstance(self.family, Binomial)
            high = self.trials if counted else np.maximum(np.ceil(typical), 1.0)
            return invert_cdf(
                self.cdf, level, np.full(len(self), -1.0), high, open_ends=(False, not counted), whole=True
            )
        if isinstance(self.family, LOG_LINK):
            to_y = lambda log_y: np.exp(np.clip(log_y, -740.0, 709.0))
            centre = np.log(typical)
            return to_y(invert_cdf(lambda log_y: self.cdf(to_y(log_y)), level, centre - 1.0, centre + 1.0))
        width = self._width()
        return np.maximum(invert_cdf(self.cdf, level, typical - width, typical + width), self.family.least)

    def _at_predictors(self, m: np.ndarray) -> GLMPredictive:
        """The same law at other predictors, with the trials of the first row."""
        return GLMPredictive(self.fitted, m, np.full(len(m), self.trials[0]))

    def _counted_quantile(self, level: float) -> np.ndarray:
        """Quantiles of counts grow with the predictor.

        Where they come to few counts, the predictors at which they step from one to the next tell those of all rows. Else the
        quantiles at a grid of predictors enclose them.
        """
        ends = np.array([self.m.min(), self.m.max()])
        least, most = self._at_predictors(ends)._quantile_at(level)
        if most - least <= GRID:
            counts = np.arange(least, most)
            falling = lambda m: 1.0 - self._at_predictors(m).cdf(counts)
            low, high = (np.full(len(counts), end) for end in ends)
            steps = invert_cdf(falling, 1.0 - level, low, high, open_ends=(False, False))
            return least + np.searchsorted(np.maximum.accumulate(steps), self.m)
        grid = np.unique(np.quantile(self.m, np.linspace(0.0, 1.0, GRID)))
        known = self._at_predictors(grid)._quantile_at(level)
        right = np.clip(np.searchsorted(grid, self.m), 1, len(grid) - 1) if len(grid) > 1 else np.zeros(len(self), int)
        low, found = known[right - 1 if len(grid) > 1 else right], known[right].copy()
        open_rows = np.flatnonzero(found > low)
        if len(open_rows):
            some = self._at_predictors(self.m[open_rows])
            # The least count that reaches the level lies above `low` − 1, and `found` reaches it.
            found[open_rows] = invert_cdf(
                some.cdf, level, low[open_rows] - 1.0, found[open_rows], open_ends=(False, False), whole=True
            )
        return found

    def _width(self) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            sd = self.sd
        return np.where(np.isfinite(sd) & (sd > 0), sd, 1.0)

    # ------------------------------------------------------------------ densities and draws

    def log_prob(self, y: Any, trials: Given = None) -> np.ndarray:  # type: ignore[override]
        """Log density of observed responses, integrated over each row's own value."""
        response = np.asarray(y, dtype=float)
        if response.shape != self.m.shape:
            raise DataError(f"y has shape {response.shape}, but there are {len(self)} rows. Give one response a row.")
        counted = self.trials if trials is None else np.broadcast_to(np.asarray(trials, dtype=float), self.m.shape)
        self.family.check_response(response, counted)
        approx = approximation(self.law, _nodes(self.shared))
        return evidence_of(self.law, approx, (self.m, *self.fitted.phi), response, counted)

    def sample(self, num_samples: int = 1000, *, key: Any) -> np.ndarray:
        """Draws of shape (num_samples, rows); `key` is a seed, a NumPy generator or a JAX key."""
        rng = generator(key)
        shape = (num_samples, len(self))
        m = np.broadcast_to(self.m, shape)
        trials = np.broadcast_to(self.trials, shape)
        if self.errors is not None:
            return m + self.errors.rvs(shape, random_state=rng)
        if isinstance(self.law, LocalLabel):
            return (rng.random(shape) < self._label_share(m)).astype(float)
        if isinstance(self.law, Classical):
            return self.family.draw(rng, m, self.nuisance, trials)
        if not isinstance(self.law, MIXED):
            return self._listed.rvs((num_samples, len(self.m)), rng)
        spread = self.shared["spread"]
        if isinstance(self.law, LocalDispersion):
            own = np.exp(np.log(self.nuisance[0]) + spread * rng.standard_normal(shape))
            return self.family.draw(rng, m, (own,), trials)  # type: ignore[arg-type]
        assert isinstance(self.law, LocalPredictor)
        away = {
            "normal": lambda: rng.standard_normal(shape),
            "laplace": lambda: rng.laplace(size=shape),
            "student_t": lambda: rng.standard_t(self.shared["dof"], shape),
        }[self.law.prior]()
        return self.family.draw(rng, m + spread * away, self.nuisance, trials)


def _nodes(shared: dict[str, float]) -> int:
    spread = shared.get("spread", 0.0)
    return 81 if spread > 6 else 41 if spread > 2 else 21


class Expecting(Protocol):
    """Rows with an expected response."""

    @property
    def mean(self) -> np.ndarray: ...
    @property
    def typical(self) -> np.ndarray: ...


def of_kind(kind: str, predictive: Expecting) -> np.ndarray:
    """The expected response by the name of its kind; ``"marginal"`` is the name of the mean in 0.1."""
    if kind in ("mean", "marginal"):
        return predictive.mean
    if kind == "typical":
        return predictive.typical
    raise DataError(f'kind takes "mean" (over all rows) or "typical" (a row in the middle); got {kind!r}.')
