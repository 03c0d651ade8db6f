r"""What if responses are ordered categories? Proportional odds, and categories that are wrong whatever the columns say.

A response is one of 0, 1, …, K − 1. With thresholds :math:`0 = c_0 < c_1 < \dots < c_{K-2}` it is at most k with
probability :math:`\mathrm{expit}(c_k - m)` (McCullagh 1980); the first threshold is 0 since the intercept moves them all, and the
gaps between thresholds are fitted. One category a row says little of a spread of rows' predictors, so what is local is whether
the category is right: with probability `flip` it is any of the K, whatever the predictor.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from robustly.errors import ModelError
from robustly.glm.family import Array, Family, refuse_rows
from robustly.glm.law import Description, Law

if TYPE_CHECKING:
    import jax
    from numpyro.distributions import Distribution


class Ordinal(Family):
    """Ordered categories, numbered from 0; the predictor is the log odds of being above the first.

    Args:
        levels: how many categories there are, 3 or more. Two are `Bernoulli`.

    Example:
        >>> Ordinal(3).probabilities(np.zeros(1), (1.0,)).round(3)
        array([[0.5  , 0.231, 0.269]])
    """

    discrete = True
    least: ClassVar[float] = 0.0

    def __init__(self, levels: int) -> None:
        if int(levels) != levels or levels < 3:
            raise ModelError(f"an Ordinal family has 3 categories or more; got {levels!r}. Two are family='bernoulli'.")
        self.levels = int(levels)

    @property
    def nuisance(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(f"gap_{k}" for k in range(1, self.levels - 1))

    def distribution(self, predictor: jax.Array, *nuisance: jax.Array) -> Distribution:
        import jax.numpy as jnp
        from numpyro.distributions import OrderedLogistic

        above = jnp.cumsum(jnp.stack([jnp.zeros(()), *(jnp.asarray(gap, dtype=float) for gap in nuisance)]))
        return OrderedLogistic(predictor, above)

    def log_prob(self, y: jax.Array, trials: jax.Array, predictor: jax.Array, *nuisance: jax.Array) -> jax.Array:
        import jax.numpy as jnp
        from jax.nn import log_sigmoid, softplus

        # expit(b) − expit(a) = expit(b) expit(−a) (1 − exp(a − b)), where nothing cancels.
        found = log_sigmoid(-predictor)
        at = jnp.zeros_like(predictor)
        for k, gap in enumerate(nuisance, start=1):
            inner = log_sigmoid(at + gap - predictor) + log_sigmoid(predictor - at) + jnp.log(-jnp.expm1(-gap))
            found = jnp.where(y == k, inner, found)
            at = at + gap
        found = jnp.where(y == self.levels - 1, -softplus(at - predictor), found)
        return jnp.where((y >= 0) & (y < self.levels), found, -jnp.inf)

    def probabilities(self, predictor: Array, nuisance: Sequence[float]) -> Array:
        """Of every category, by row."""
        from scipy.special import expit

        below = expit(np.concatenate([[0.0], np.cumsum(nuisance)]) - np.asarray(predictor, dtype=float)[..., None])
        return np.diff(below, prepend=0.0, append=1.0, axis=-1)

    def mean(self, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        return self.probabilities(predictor, nuisance) @ np.arange(self.levels)

    def variance(self, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        square = self.probabilities(predictor, nuisance) @ np.arange(self.levels) ** 2
        return square - self.mean(predictor, nuisance, trials) ** 2

    def cdf(self, y: Array, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        below = np.cumsum(self.probabilities(predictor, nuisance), axis=-1)
        place = np.clip(np.floor(np.asarray(y, dtype=float)), -1, self.levels - 1).astype(int)
        place = np.broadcast_to(place, below.shape[:-1])
        found = np.take_along_axis(below, np.maximum(place, 0)[..., None], axis=-1)[..., 0]
        return np.where(place < 0, 0.0, np.where(place >= self.levels - 1, 1.0, found))

    def draw(self, rng: np.random.Generator, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        below = np.cumsum(self.probabilities(predictor, nuisance), axis=-1)[..., :-1]
        return (rng.random(np.shape(predictor))[..., None] > below).sum(axis=-1).astype(float)

    def check_response(self, y: Array, trials: Array) -> tuple[str, ...]:
        wrong = (y != np.floor(y)) | (y < 0) | (y >= self.levels)
        refuse_rows(
            wrong,
            y,
            f"but the {self.levels} categories are numbered from 0. Give their codes (of an ordered category, .cat.codes).",
        )
        return ()

    def check_whole(self, y: Array) -> None:
        empty = np.setdiff1d(np.arange(self.levels), y)
        if empty.size:
            raise ModelError(
                f"no row is in category {int(empty[0])} of the {self.levels} of {self}. Number the categories that there are."
            )

    def start(self, y: Array, trials: Array) -> Array:
        return y - float(np.mean(y)) + float(np.log((np.mean(y > 0) + 0.01) / (np.mean(y == 0) + 0.01)))

    def nuisance_start(self, y: Array, trials: Array, residual: Array) -> tuple[float, ...]:
        below = np.array([np.mean(y <= k) for k in range(self.levels - 1)])
        odds = np.log(below / (1.0 - below))
        return tuple(float(gap) for gap in np.maximum(np.diff(odds), 0.05))


@dataclass(frozen=True)
class LocalCategory(Law):
    """Every row's category may be any, whatever its predictor, with a probability `flip` common to all."""

    closed: ClassVar[bool] = True
    local: ClassVar[str | None] = "label"
    limits: ClassVar[Mapping[str, float]] = {"flip": 0.0}

    @property
    def names(self) -> tuple[str, ...]:
        return ("flip", *self.family.nuisance)

    def natural(self, name: str, value: Any, xp: Any = np) -> Any:
        return 1.0 / (1.0 + xp.exp(-value)) if name == "flip" else super().natural(name, value, xp)

    def free(self, name: str, value: float) -> float:
        return float(np.log(value / (1.0 - value))) if name == "flip" else super().free(name, value)

    def slope(self, name: str, value: float) -> float:
        share = self.natural(name, value)
        return float(share * (1.0 - share)) if name == "flip" else super().slope(name, value)

    def bounds(self, name: str) -> tuple[float, float]:
        return (0.0, 1.0) if name == "flip" else super().bounds(name)

    def scale_of(self, name: str) -> str:
        return "logit" if name == "flip" else super().scale_of(name)

    def evidence(self, row: Any, m: Any, *phi: Any) -> Any:
        import jax.numpy as jnp
        from jax.nn import log_sigmoid

        right = log_sigmoid(-phi[0]) + self.family.log_prob(*row, m, *self.traced_nuisance(phi))  # type: ignore[arg-type]
        levels = self.family.levels  # type: ignore[attr-defined]
        found = jnp.logaddexp(right, log_sigmoid(phi[0]) - float(np.log(levels)))
        return jnp.where((row[0] >= 0) & (row[0] < levels), found, -jnp.inf)  # tables go beyond the last category

    def describe(self) -> Description:
        symbols = "P(y_i = k) = flip/K + (1 − flip) · p(k | m_i)"
        return Description("wrong categories", "categories may be wrong", symbols)

    def difference(self, shared: Mapping[str, float], fitted: Collection[str]) -> str:
        return f"About {shared['flip']:.1%} of the categories have nothing to do with their columns."

    @property
    def boundary_text(self) -> str:
        return "no share of wrong categories does better than none, so the classical model is returned."
