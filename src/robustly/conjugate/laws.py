"""Distributions by row: posteriors of locals, mixtures of them over hyperparameters, and predictives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from robustly._runtime.keys import generator
from robustly._runtime.precision import in_double_precision
from robustly.errors import ModelError
from robustly.model.parameters import Theta
from robustly.result.laws import RowLaw, invert_cdf


class LocalPosterior(RowLaw):
    """What is believed of each row's own value, with the prior taken as known."""

    def __init__(self, law: Any, place: np.ndarray | None) -> None:
        self.law, self.place = law, place

    def _spread(self, values: Any) -> np.ndarray:
        values = np.asarray(values)
        return values if self.place is None else values[self.place]

    def __len__(self) -> int:
        return len(self.mean)

    @cached_property
    def mean(self) -> np.ndarray:
        """Posterior mean by row."""
        return self._spread(self.law.mean())

    @cached_property
    def sd(self) -> np.ndarray:
        """Posterior standard deviation by row."""
        return self._spread(self.law.std())

    def _quantile_at(self, level: float) -> np.ndarray:
        return self._spread(self.law.ppf(level))

    def cdf(self, values: Any) -> np.ndarray:
        """P(local ≤ value), one value a row."""
        law = self.law if self.place is None else _at(self.law, self.place)
        return np.asarray(law.cdf(np.asarray(values, dtype=float)))

    def sample(self, num_samples: int = 1000, *, key: Any) -> np.ndarray:
        """Draws of shape (num_samples, rows, …)."""
        shape = np.shape(self.law.mean())
        drawn = self.law.rvs(size=(num_samples, *shape), random_state=generator(key))
        if self.place is None:
            return drawn
        # Rows that were put together still have values of their own: draw each anew.
        return _at(self.law, self.place).rvs(size=(num_samples, len(self.place)), random_state=generator(key))


def _at(law: Any, place: np.ndarray) -> Any:
    """A scipy distribution with its arguments taken at `place`."""
    take = lambda a: np.asarray(a)[place] if np.ndim(a) else a
    if isinstance(law, PointMass):
        return PointMass(law.value[place])
    return law.dist(*(take(a) for a in law.args), **{name: take(a) for name, a in law.kwds.items()})


class MixedPosterior(RowLaw):
    """What is believed of each row's own value, averaged over priors that fit the rows about as well."""

    def __init__(self, laws: Sequence[Any], share: np.ndarray, place: np.ndarray | None) -> None:
        self.laws, self.share, self.place = laws, share / share.sum(), place

    def _spread(self, values: np.ndarray) -> np.ndarray:
        return values if self.place is None else values[self.place]

    @cached_property
    def mean(self) -> np.ndarray:
        """Posterior mean by row."""
        return self._spread(self._mean)

    @cached_property
    def _mean(self) -> np.ndarray:
        return np.tensordot(self.share, np.stack([law.mean() for law in self.laws]), 1)

    @cached_property
    def sd(self) -> np.ndarray:
        """Posterior standard deviation by row: within a prior and between priors."""
        second = sum(
            w * (np.asarray(law.std()) ** 2 + (law.mean() - self._mean) ** 2) for w, law in zip(self.share, self.laws)
        )
        return self._spread(np.sqrt(second))

    def cdf(self, values: Any) -> np.ndarray:
        """P(local ≤ value), one value a row."""
        given = np.asarray(values, dtype=float)
        if self.place is None:
            return self._distinct_cdf(given)
        at = [_at(law, self.place) for law in self.laws]
        return sum(w * np.asarray(law.cdf(given)) for w, law in zip(self.share, at))

    def _distinct_cdf(self, values: np.ndarray) -> np.ndarray:
        return sum(w * np.asarray(law.cdf(values)) for w, law in zip(self.share, self.laws))

    def _quantile_at(self, level: float) -> np.ndarray:
        # A mixture's quantile lies between the least and the greatest of its parts' quantiles.
        each = np.stack([np.asarray(law.ppf(level)) for law in self.laws])
        ends = each.min(axis=0), each.max(axis=0)
        return self._spread(invert_cdf(self._distinct_cdf, level, *ends, open_ends=(False, False)))


class PointMass:
    """All belief on one value: the posterior when rows do not differ."""

    def __init__(self, value: Any) -> None:
        self.value = np.asarray(value, dtype=float)

    def mean(self) -> np.ndarray:
        return self.value

    def std(self) -> np.ndarray:
        return np.zeros_like(self.value)

    def ppf(self, level: float) -> np.ndarray:
        return self.value

    def cdf(self, values: np.ndarray) -> np.ndarray:
        return (values >= self.value).astype(float)

    def rvs(self, size: Any, random_state: Any) -> np.ndarray:
        return np.broadcast_to(self.value, size).copy()


class StatisticsLaw:
    """Means and deviations of the prior's statistics T, for a pair that does not say how its local is distributed."""

    def __init__(self, mean: np.ndarray, sd: np.ndarray) -> None:
        self._mean, self._sd = mean, sd

    def mean(self) -> np.ndarray:
        return self._mean

    def std(self) -> np.ndarray:
        return self._sd

    def ppf(self, level: float) -> np.ndarray:
        raise ModelError("this pair gives means and deviations of T only. Define its law(eta) to have quantiles.")

    def cdf(self, values: np.ndarray) -> np.ndarray:
        raise ModelError("this pair gives means and deviations of T only. Define its law(eta) to have probabilities.")

    def rvs(self, size: Any, random_state: Any) -> np.ndarray:
        raise ModelError("this pair gives means and deviations of T only. Define its law(eta) to have draws.")


class PairPredictive(RowLaw):
    """The distribution of new rows with their locals integrated out; every answer is an array by row."""

    def __init__(self, law: Any, log_prob: Callable[[Any], np.ndarray]) -> None:
        self.law, self._log_prob = law, log_prob

    def __len__(self) -> int:
        return len(self.mean)

    @cached_property
    def mean(self) -> np.ndarray:
        """Expected value of every row; infinite where the law has none."""
        return np.atleast_1d(self.law.mean())

    @cached_property
    def sd(self) -> np.ndarray:
        """Standard deviation of every row; infinite where the law has none."""
        return np.atleast_1d(self.law.std())

    def _quantile_at(self, level: float) -> np.ndarray:
        return np.atleast_1d(self.law.ppf(level))

    def cdf(self, values: Any) -> np.ndarray:
        """P(X ≤ value), one value a row."""
        return np.atleast_1d(self.law.cdf(np.asarray(values, dtype=float)))

    def sf(self, values: Any) -> np.ndarray:
        """P(X > value), one value a row."""
        return np.atleast_1d(self.law.sf(np.asarray(values, dtype=float)))

    def log_prob(self, x: ArrayLike) -> np.ndarray:  # type: ignore[override]
        """Log density of observations: the evidence they would have as rows."""
        return self._log_prob(x)

    def sample(self, num_samples: int = 1000, *, key: Any) -> np.ndarray:
        """Draws of shape (num_samples, rows, …)."""
        return self.law.rvs(size=(num_samples, *np.shape(self.mean)), random_state=generator(key))


class Tabulated:
    """A distribution by row from a pair's evidence alone, added up on a table of values.

    Serves pairs without a closed form. Counts are listed until their probabilities add up to one; continuous values
    are laid out evenly on a log or sinh scale, then again where the mass is. `observation` is the column the pair's
    rows hold their observations in; beside it stand what a row was observed with.
    """

    POINTS = 4001

    def __init__(self, pair: Any, theta: Theta, columns: Mapping[str, Any], observation: str) -> None:
        self.pair, self.theta, self.observation = pair, theta, observation
        n = len(next(iter(columns.values()))) if columns else 1
        self.columns = {name: np.asarray(column) for name, column in columns.items() if name != observation}
        if self.columns:
            tables = [self._one({name: column[i] for name, column in self.columns.items()}) for i in range(n)]
        else:
            tables = [self._one({})] * n
        self.x = [x for x, _ in tables]
        self.mass = [mass for _, mass in tables]

    @in_double_precision
    def _log_prob(self, row: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
        each = jax.vmap(lambda value: self.pair.evidence(self.theta, {**row, self.observation: value}))
        return np.asarray(each(jnp.asarray(x)))

    def _one(self, row: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        if self.pair.support == "count":
            size = 256
            while True:
                x = np.arange(size, dtype=float)
                mass = np.exp(self._log_prob(row, x))
                if mass.sum() > 1 - 1e-9 or size >= 1 << 20:
                    return x, _checked(mass, 1e-3)
                size *= 4
        to_x = np.exp if self.pair.support == "positive" else np.sinh
        low, high = -60.0, 60.0
        for _ in range(3):
            u = np.linspace(low, high, self.POINTS)
            x = to_x(u)
            slope = x if self.pair.support == "positive" else np.cosh(u)
            mass = np.exp(self._log_prob(row, x)) * slope * (u[1] - u[0])
            kept = np.flatnonzero(mass > 1e-14 * mass.max())
            low, high = u[max(kept[0] - 1, 0)], u[min(kept[-1] + 1, len(u) - 1)]
        return x, _checked(mass, 1e-4)

    def mean(self) -> np.ndarray:
        return np.array([x @ mass for x, mass in zip(self.x, self.mass)])

    def std(self) -> np.ndarray:
        return np.array([np.sqrt((x - x @ mass) ** 2 @ mass) for x, mass in zip(self.x, self.mass)])

    def ppf(self, level: Any) -> np.ndarray:
        return np.array([self._inverse(i, np.asarray(level))[()] for i in range(len(self.x))])

    def _inverse(self, i: int, level: np.ndarray) -> np.ndarray:
        total = np.cumsum(self.mass[i])
        if self.pair.support == "count":
            return self.x[i][np.minimum(np.searchsorted(total, level), len(total) - 1)]
        return np.interp(level, total - 0.5 * self.mass[i], self.x[i])

    def cdf(self, values: Any) -> np.ndarray:
        values = np.broadcast_to(np.asarray(values, dtype=float), (len(self.x),))
        found = []
        for x, mass, value in zip(self.x, self.mass, values):
            total = np.cumsum(mass)
            if self.pair.support == "count":
                found.append(total[min(int(value), len(total) - 1)] if value >= 0 else 0.0)
            else:
                found.append(np.interp(value, x, total - 0.5 * mass))
        return np.minimum(np.array(found), 1.0)

    def sf(self, values: Any) -> np.ndarray:
        return 1.0 - self.cdf(values)

    def rvs(self, size: tuple[int, ...], random_state: np.random.Generator) -> np.ndarray:
        level = random_state.random(size)
        return np.stack([self._inverse(i, level[..., i]) for i in range(len(self.x))], axis=-1)


def _checked(mass: np.ndarray, tolerance: float) -> np.ndarray:
    total = mass.sum()
    if not abs(total - 1) < tolerance:
        raise ModelError(
            f"the predictive density adds up to {total:.6g} instead of 1. Check the pair with rb.testing.check_pair, "
            "or give it a predictive_law."
        )
    return mass / total
