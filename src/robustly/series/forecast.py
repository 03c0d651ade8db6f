"""What comes next? A mixture of normals for every step ahead, one for each draw of past and future precisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr, logsumexp, ndtr

from robustly._runtime.random_keys import generator
from robustly.errors import ModelError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class NormalMixture:
    """Equal parts of normals, by step: means and standard deviations (N, H)."""

    means: np.ndarray
    sds: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        return self.means.mean(axis=0)

    @property
    def sd(self) -> np.ndarray:
        """Of the draws; with two degrees of freedom or fewer that of the law is infinite, and quantiles say more."""
        return np.sqrt((self.sds**2 + (self.means - self.mean) ** 2).mean(axis=0))

    def cdf(self, value: ArrayLike) -> np.ndarray:
        return ndtr((np.asarray(value, dtype=float) - self.means) / self.sds).mean(axis=0)

    def sf(self, value: ArrayLike) -> np.ndarray:
        return ndtr((self.means - np.asarray(value, dtype=float)) / self.sds).mean(axis=0)

    def log_cdf(self, value: ArrayLike) -> np.ndarray:
        return logsumexp(log_ndtr((np.asarray(value, dtype=float) - self.means) / self.sds), axis=0) - np.log(
            len(self.means)
        )

    def log_prob(self, value: ArrayLike) -> np.ndarray:
        off = (np.asarray(value, dtype=float) - self.means) / self.sds
        return logsumexp(-0.5 * off**2 - np.log(self.sds), axis=0) - np.log(len(self.means)) - 0.5 * np.log(2 * np.pi)

    def quantile(self, level: ArrayLike) -> np.ndarray:
        """Quantiles by step, by bisection: (H,) for one level, (levels, H) for several."""
        wanted = np.atleast_1d(np.asarray(level, dtype=float))
        if np.any((wanted <= 0) | (wanted >= 1)):
            raise ModelError(f"quantile takes levels between 0 and 1; got {level!r}.")
        found = []
        for one in wanted:
            low = (self.means - 40 * self.sds).min(axis=0)
            high = (self.means + 40 * self.sds).max(axis=0)
            for _ in range(90):
                middle = 0.5 * (low + high)
                below = self.cdf(middle) < one
                low, high = np.where(below, middle, low), np.where(below, high, middle)
            found.append(0.5 * (low + high))
        return found[0] if np.ndim(level) == 0 else np.stack(found)

    def interval(self, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """The central interval of the given probability, by step."""
        if not 0 < level < 1:
            raise ModelError(f"interval takes a level between 0 and 1; got {level}.")
        return self.quantile(0.5 - level / 2), self.quantile(0.5 + level / 2)

    def sample(self, num_samples: int = 1000, seed: int = 0, *, key: Any = None) -> np.ndarray:
        """Draws (num_samples, H); a row is one path of the future as far as means and precisions go. `key` is a seed or a generator."""
        random = np.random.default_rng(seed) if key is None else generator(key)
        chosen = random.integers(len(self.means), size=num_samples)
        return self.means[chosen] + self.sds[chosen] * random.standard_normal((num_samples, self.means.shape[1]))


@dataclass(frozen=True, eq=False)
class Forecast:
    """The law of the next values; all of :class:`NormalMixture` by step, and a table."""

    law: NormalMixture
    steps: list[str]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "law":
            raise AttributeError(name)
        return getattr(self.law, name)

    def to_frame(self, level: float = 0.9) -> pd.DataFrame:
        """Median and interval by step."""
        import pandas as pd

        low, high = self.law.interval(level)
        columns = {"median": self.law.quantile(0.5), "low": low, "high": high}
        return pd.DataFrame(columns, index=pd.Index(self.steps, name="step"))

    def __repr__(self) -> str:
        return f"<Forecast of {len(self.steps)} steps>"
