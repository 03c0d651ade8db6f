"""What to expect of new rows: mean, standard deviation, quantiles, densities and draws of a predictive distribution."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from robustly._runtime.keys import jax_key
from robustly._runtime.precision import in_double_precision
from robustly.errors import DataError, ModelError, names

DRAWS = 4000


class Predictive:
    """The integrated predictive distribution of a set of rows; every answer is an array by row."""

    def __init__(self, predictor: Any, log_prob: Callable[..., np.ndarray]) -> None:
        self._predictor = predictor
        self._log_prob = log_prob

    def __len__(self) -> int:
        return len(self._predictor.rows)

    @cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        return in_double_precision(self._predictor.moments)()

    @property
    def mean(self) -> np.ndarray:
        """Expected value of every row, averaged over the fitted prior."""
        return self._moments[0]

    @property
    def sd(self) -> np.ndarray:
        """Standard deviation of every row, the prior's spread included."""
        return self._moments[1]

    @in_double_precision
    def quantile(self, level: Any) -> np.ndarray:
        """Quantiles by row; a sequence of levels gives a last axis. Drawn, where no distribution function is known."""
        levels = np.atleast_1d(np.asarray(level, dtype=float))
        if np.any((levels <= 0) | (levels >= 1)):
            raise ModelError(f"a quantile's level lies between 0 and 1; got {level}.")
        if self._has_cdf:
            found = np.stack([self._predictor.quantile(float(one)) for one in levels], axis=-1)
        else:
            found = np.moveaxis(np.quantile(self._drawn, levels, axis=0), 0, -1)
        return found[..., 0] if np.ndim(level) == 0 else found

    def interval(self, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """The central interval of the given probability: low and high by row."""
        both = self.quantile([0.5 - level / 2, 0.5 + level / 2])
        return both[..., 0], both[..., 1]

    @in_double_precision
    def cdf(self, values: Any) -> np.ndarray:
        """P(Y ≤ value), one value a row."""
        given = np.broadcast_to(np.asarray(values, dtype=float), (len(self),))
        if not self._has_cdf:
            raise ModelError("the observed distribution has no known distribution function. Use sample() instead.")
        return self._predictor.cdf(given)

    def log_prob(self, *observations: Any) -> np.ndarray:
        """Log density of observed values, integrated over each row's own local value."""
        missing = self._predictor.missing
        if len(observations) != len(missing):
            raise DataError(f"log_prob takes {names(missing)}; got {len(observations)}.")
        return self._log_prob(dict(zip(missing, observations)))

    @in_double_precision
    def sample(self, num_samples: int = 1000, *, key: Any) -> np.ndarray | dict[str, np.ndarray]:
        """Draws of shape (num_samples, rows, …); a dictionary by site when several are observed."""
        found = self._predictor.sample(num_samples, jax_key(key))
        return next(iter(found.values())) if len(found) == 1 else found

    @cached_property
    def _has_cdf(self) -> bool:
        return in_double_precision(self._predictor.has_cdf)()

    @cached_property
    def _drawn(self) -> np.ndarray:
        import jax

        found = self._predictor.sample(DRAWS, jax.random.key(0))
        if len(found) > 1:
            raise ModelError(
                f"this model observes {names(found)} together; use sample() and take quantiles of one of them."
            )
        return next(iter(found.values()))
