"""Distributions by row: posteriors of locals, mixtures of them over hyperparameters, and predictives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from robustly._runtime.precision import in_double_precision
from robustly._runtime.random_keys import generator
from robustly.conjugate.base import Columns, PairDefinition, Theta
from robustly.errors import ModelError
from robustly.result.laws import RowLaw, invert_cdf
from robustly.result.listed import Listed, joined_lists, list_counts, list_line


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


ROWS_AT_ONCE = 8
# How far from one the mass may be.
COUNTS_OFF, LINE_OFF = 1e-3, 1e-4


@in_double_precision
def tabulated(pair: PairDefinition, theta: Theta, columns: Mapping[str, Any], observation: str) -> Listed:
    """A distribution by row from a pair's evidence alone, for pairs without a closed form.

    `observation` is the column the pair's rows hold their observations in; beside it stand what a row was observed with.
    """
    beside = {name: np.asarray(column) for name, column in columns.items() if name != observation}
    n = len(next(iter(columns.values()))) if columns else 1
    if not beside:
        one = _tabulated_some(pair, theta, beside, observation, 1)
        return Listed(np.repeat(one.values, n, axis=0), np.repeat(one.mass, n, axis=0), one.whole)
    cuts = [slice(start, min(start + ROWS_AT_ONCE, n)) for start in range(0, n, ROWS_AT_ONCE)]
    some = lambda cut: {name: column[cut] for name, column in beside.items()}
    return joined_lists([_tabulated_some(pair, theta, some(cut), observation, cut.stop - cut.start) for cut in cuts])


def _tabulated_some(pair: PairDefinition, theta: Theta, beside: Columns, observation: str, rows: int) -> Listed:
    each = jax.vmap(lambda row, values: jax.vmap(lambda x: pair.evidence(theta, {**row, observation: x}))(values))
    log_density = lambda values: np.asarray(each(beside, jnp.asarray(values)))
    if pair.support == "count":
        listed = list_counts(log_density, rows, first=256, most=1 << 20)
    else:
        place = (lambda t: (np.exp(t),) * 2) if pair.support == "positive" else lambda t: (np.sinh(t), np.cosh(t))
        listed = list_line(log_density, place, rows, (-60.0, 60.0), points=8001)
    off = ~(np.abs(listed.total - 1.0) < (COUNTS_OFF if listed.whole else LINE_OFF))
    if off.any():
        raise ModelError(
            f"the predictive density adds up to {listed.total[off][0]:.6g} instead of 1. Check the pair with "
            "rb.testing.check_pair, or give it a predictive_law."
        )
    return listed
