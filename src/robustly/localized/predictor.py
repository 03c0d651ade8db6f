r"""What will a new row look like? The integrated predictive distribution by row: :math:`p(x^* \mid \hat\alpha)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax import Array

from robustly._runtime.precision import in_double_precision
from robustly._runtime.random_keys import jax_key
from robustly.errors import DataError, ModelError, names
from robustly.localized.new_rows import NewRows, fitted_rows, new_rows
from robustly.model.program.arguments import Arguments
from robustly.model.program.read import Program
from robustly.result.laws import RowLaw, invert_cdf
from robustly.rows.arrays import ArrayRows, bucket_of

DRAWS = 4000
# An incomplete gamma function takes as many terms as the root of the count.
MOST_COUNT = 1e12


class Predictive(RowLaw):
    """The integrated predictive distribution of rows whose observations are not given; every answer is an array by row."""

    def __init__(
        self, new: NewRows, vector: np.ndarray, log_prob: Callable[[Predictive, Mapping[str, Any]], np.ndarray]
    ) -> None:
        self._log_prob = log_prob
        self.vector = np.asarray(vector)
        self.new, self.calls = new, new.calls
        self.rows: ArrayRows = new.rows
        self.missing = new.missing

    @classmethod
    @in_double_precision
    def of_new(
        cls, program: Program, vector: Array, args: Sequence[Any], kwargs: Mapping[str, Any], log_prob: Any
    ) -> Predictive:
        """Of rows given by a call without their observations."""
        return cls(new_rows(program, args, kwargs), vector, log_prob)

    @classmethod
    @in_double_precision
    def of_fitted(cls, program: Program, vector: Array, arguments: Arguments, log_prob: Any) -> Predictive:
        """Of the rows of a fit, as if they had not been observed."""
        return cls(fitted_rows(program, arguments), vector, log_prob)

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    @in_double_precision
    def _moments(self) -> Mapping[str, np.ndarray]:
        return self.rows.map(self.calls.moments, self.vector).by_unit

    @property
    def mean(self) -> np.ndarray:
        """Expected value of every row, averaged over the fitted prior; of categories, the expected number."""
        return self._moments["mean"] if self.has_moments else self._drawn.mean(axis=0)

    @property
    def sd(self) -> np.ndarray:
        """Standard deviation of every row, the prior's spread included."""
        return self._moments["sd"] if self.has_moments else self._drawn.std(axis=0)

    @cached_property
    @in_double_precision
    def probabilities(self) -> np.ndarray:
        """Of an outcome in categories, each one's probability: (rows, …, categories)."""
        if not self.calls.is_categorical:
            raise ModelError(
                f"site {names(self.sites)} is not over categories, so it has no probabilities. Use cdf() or quantile()."
            )
        return self.rows.map(self.calls.probabilities, self.vector).by_unit["probability"]

    @property
    def has_moments(self) -> bool:
        """Whether mean and variance are stated; if not, they are those of draws."""
        return in_double_precision(lambda: self.calls.has_moments)()

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that were observed in the fit and are predicted now."""
        return in_double_precision(lambda: self.calls.sites)()

    @property
    def site(self) -> str:
        """The only one."""
        return in_double_precision(lambda: self.calls.site)()

    @property
    def has_cdf(self) -> bool:
        """Whether the observed distribution is one number with a known distribution function."""
        return in_double_precision(lambda: self.calls.has_cdf)()

    def cdf(self, values: Any) -> np.ndarray:
        """P(Y ≤ value), one value a row."""
        if not self.has_cdf:
            raise ModelError("the observed distribution has no known distribution function. Use sample() instead.")
        given = np.broadcast_to(np.asarray(values, dtype=float), (len(self),))
        if self.calls.support[2] and np.any(np.abs(given) > MOST_COUNT):
            raise DataError(
                f"row {int(np.argmax(np.abs(given)))} holds a count of {np.abs(given).max():g}, and distribution functions of counts above "
                f"{MOST_COUNT:g} take hours to add up. Drop such rows, or divide the counts."
            )
        rows = ArrayRows((*self.rows.data, given), self.rows.weight, self.rows.chunk)
        return rows.map(self.calls.cdf, self.vector).by_unit["cdf"]

    @in_double_precision
    def _quantile_at(self, level: float) -> np.ndarray:
        if not self.has_cdf:
            return np.quantile(self._drawn, level, axis=0)
        low, high, whole = self.calls.support
        open_ends = (not np.isfinite(low), not np.isfinite(high))
        start = (-1.0 if open_ends[1] else high - 2.0) if open_ends[0] else low - float(whole)
        bracket = (np.full(len(self), end) for end in (start, start + 2.0 if open_ends[1] else high))
        return invert_cdf(self.cdf, level, *bracket, open_ends=open_ends, whole=whole)

    @cached_property
    def _drawn(self) -> np.ndarray:
        found = self.sample(DRAWS, key=0)
        if isinstance(found, dict):
            raise ModelError(
                f"this model observes {names(found)} together; use sample() and take quantiles of one of them."
            )
        return found

    def log_prob(self, *observations: Any) -> np.ndarray:
        """Log density of observed values, integrated over each row's own local value."""
        if len(observations) != len(self.missing):
            raise DataError(f"log_prob takes {names(self.missing)}; got {len(observations)} arrays.")
        return self._log_prob(self, dict(zip(self.missing, observations)))

    def sample(self, num_samples: int = 1000, *, key: Any) -> np.ndarray | dict[str, np.ndarray]:
        """Draws of shape (num_samples, rows, …); a dictionary by site when several are observed."""
        found = self.draws(num_samples, jax_key(key))
        return next(iter(found.values())) if len(found) == 1 else found

    @in_double_precision
    def draws(self, count: int, key: Any) -> dict[str, np.ndarray]:
        """Draws of new rows, each with a local value of its own: by site, (count, rows, …)."""
        size = bucket_of(len(self), max(len(self), self.rows.chunk))
        keys = np.asarray(jax.random.key_data(jax.random.split(key, size)))[: len(self)]
        rows = ArrayRows((*self.rows.data, keys), self.rows.weight, self.rows.chunk)
        found = rows.map(self.calls.draws(count), self.vector).by_unit
        return {name: np.moveaxis(values, 1, 0) for name, values in found.items()}
