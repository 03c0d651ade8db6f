r"""What if zeros are another matter? Counts with extra zeros, counts behind a hurdle, and sums that may be zero.

A zero-inflated count is zero whatever its rate with odds `zero_odds`; behind a hurdle, *every* zero comes from these odds and
what lies beyond is a count above zero. A Tweedie response is a sum of a Poisson number of gamma amounts: exactly zero, or
positive (claims, rainfall). The predictor is the log of the rate or mean of what is counted. Lambert (1992), Mullahy (1986),
Dunn & Smyth (2005).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from robustly.errors import ModelError
from robustly.glm.families import NegativeBinomial, Poisson
from robustly.glm.family import Array, Family, refuse_rows

if TYPE_CHECKING:
    import jax
    from numpyro.distributions import Distribution

NODES = 40


class ZeroInflatedPoisson(Family):
    """Counts, some of which are zero whatever their rate, with odds `zero_odds`; the predictor is the log rate of the others."""

    nuisance: ClassVar[tuple[str, ...]] = ("zero_odds",)
    discrete = True
    counts: ClassVar[Family] = Poisson()
    hurdle: ClassVar[bool] = False

    def distribution(self, predictor: jax.Array, *nuisance: jax.Array) -> Distribution:
        from numpyro.distributions import ZeroInflatedDistribution

        share = nuisance[0] / (1.0 + nuisance[0])
        return ZeroInflatedDistribution(self.counts.distribution(predictor, *nuisance[1:]), gate=share)

    def log_prob(self, y: jax.Array, trials: jax.Array, predictor: jax.Array, *nuisance: jax.Array) -> jax.Array:
        import jax.numpy as jnp

        odds, rest = nuisance[0], nuisance[1:]
        counted = self.counts.log_prob(y, trials, predictor, *rest)
        none = self.counts.log_prob(jnp.zeros_like(y), trials, predictor, *rest)
        if self.hurdle:
            # log(1 − p) without cancellation where a count of zero is nearly certain.
            beyond = counted - jnp.log(-jnp.expm1(jnp.minimum(none, -1e-300)))
            return jnp.where(y > 0, beyond, jnp.log(odds)) - jnp.log1p(odds)
        return jnp.where(y > 0, counted, jnp.logaddexp(jnp.log(odds), none)) - jnp.log1p(odds)

    def log_base(self, y: Array, trials: Array) -> Array:
        return self.counts.log_base(y, trials)

    def _none(self, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        """The probability of a zero among what is counted."""
        return self.counts.cdf(np.zeros(np.shape(predictor)), predictor, nuisance[1:], trials)

    def mean(self, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        mean = self.counts.mean(predictor, nuisance[1:], trials) / (1.0 + nuisance[0])
        return mean / self._some(predictor, nuisance, trials) if self.hurdle else mean

    def variance(self, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        counted = self.counts.mean(predictor, nuisance[1:], trials)
        some = self._some(predictor, nuisance, trials) if self.hurdle else np.ones(np.shape(predictor))
        share = 1.0 / ((1.0 + nuisance[0]) * some)
        with np.errstate(over="ignore"):  # infinite where the mean's square is
            return share * self.counts.variance(predictor, nuisance[1:], trials) + counted * (
                counted * share * (1.0 - share)
            )

    def _some(self, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        return np.maximum(1.0 - self._none(predictor, nuisance, trials), 1e-300)

    def cdf(self, y: Array, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        below, odds = self.counts.cdf(y, predictor, nuisance[1:], trials), nuisance[0]
        if self.hurdle:
            none = self._none(predictor, nuisance, trials)
            below = np.maximum(below - none, 0.0) / self._some(predictor, nuisance, trials)
        return np.where(np.asarray(y) < 0, 0.0, (odds + below) / (1.0 + odds))

    def draw(self, rng: np.random.Generator, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        zero = rng.random(np.shape(predictor)) < nuisance[0] / (1.0 + nuisance[0])
        drawn = self.counts.draw(rng, predictor, nuisance[1:], trials)
        if self.hurdle:
            again = drawn == 0
            while again.any():  # a count above zero is a count drawn until it is
                drawn = np.where(again, self.counts.draw(rng, predictor, nuisance[1:], trials), drawn)
                rare = np.broadcast_to(self._none(predictor, nuisance, trials) > 0.999, drawn.shape)
                drawn = np.where(rare & (drawn == 0), 1.0, drawn)
                again = drawn == 0
        return np.where(zero, 0.0, drawn)

    def check_response(self, y: Array, trials: Array) -> tuple[str, ...]:
        return self.counts.check_response(y, trials)

    def check_whole(self, y: Array) -> None:
        if not np.any(y == 0):
            raise ModelError(f"no response is 0, so {self} has no zeros to explain. Choose family={self.counts!r}.")

    def start(self, y: Array, trials: Array) -> Array:
        # A zero says little of the rate of what is counted; the mean of the others does.
        some = y > 0
        return np.log(np.where(some, y, y[some].mean() if some.any() else 1.0) + 0.1)

    def nuisance_start(self, y: Array, trials: Array, residual: Array) -> tuple[float, ...]:
        share = float(np.mean(y == 0))
        rest = self.counts.nuisance_start(y, trials, residual)
        return (max(share / max(1.0 - share, 0.02) * (1.0 if self.hurdle else 0.5), 0.02), *rest)


class ZeroInflatedNegativeBinomial(ZeroInflatedPoisson):
    """Overdispersed counts, some of which are zero whatever their rate."""

    nuisance = ("zero_odds", "size")
    counts = NegativeBinomial()


class HurdlePoisson(ZeroInflatedPoisson):
    """Zero or not, with odds `zero_odds` of a zero; what is not is a Poisson count above zero."""

    hurdle = True

    def distribution(self, predictor: jax.Array, *nuisance: jax.Array) -> Distribution:
        raise ModelError("counts behind a hurdle are no NumPyro distribution; their density is that of the family.")


class HurdleNegativeBinomial(HurdlePoisson):
    """Zero or not; what is not is an overdispersed count above zero."""

    nuisance = ("zero_odds", "size")
    counts = NegativeBinomial()


class Tweedie(Family):
    """Sums of a Poisson number of gamma amounts: zero or positive, variance `dispersion` · μ^power, 1 < power < 2."""

    nuisance: ClassVar[tuple[str, ...]] = ("dispersion",)
    discrete = False
    least: ClassVar[float] = 0.0

    def __init__(self, power: float = 1.5) -> None:
        if not 1.0 < power < 2.0:
            raise ModelError(
                f"a Tweedie family's power lies between 1 and 2; got {power}. 1 is Poisson(), 2 is Gamma()."
            )
        self.power = float(power)

    def distribution(self, predictor: jax.Array, *nuisance: jax.Array) -> Distribution:
        raise ModelError("a Tweedie law is no NumPyro distribution; its density is that of the family.")

    def log_prob(self, y: jax.Array, trials: jax.Array, predictor: jax.Array, *nuisance: jax.Array) -> jax.Array:
        import jax
        import jax.numpy as jnp
        from jax.scipy.special import gammaln, logsumexp

        p, phi = self.power, nuisance[0]
        a = (2.0 - p) / (p - 1.0)
        positive = y > 0
        z = jnp.where(positive, y, 1.0)
        own = (z * jnp.exp((1.0 - p) * predictor) / (1.0 - p) - jnp.exp((2.0 - p) * predictor) / (2.0 - p)) / phi
        # The density sums over the number of amounts, whose terms are bell-shaped around `middle`; where the bell is wide,
        # a coarser lattice has the same sum.
        middle = jax.lax.stop_gradient(z ** (2.0 - p) / ((2.0 - p) * phi))
        stride = jnp.maximum(1.0, jnp.ceil(9.0 * jnp.sqrt(middle / (1.0 + a)) / NODES))
        number = jnp.maximum(jnp.round(middle), 1.0) + stride * jnp.arange(-NODES, NODES + 1)
        there = number >= 1.0
        number = jnp.where(there, number, 1.0)
        log_z = a * jnp.log(z) - a * jnp.log(p - 1.0) - (1.0 + a) * jnp.log(phi) - jnp.log(2.0 - p)
        terms = number * log_z - gammaln(1.0 + number) - gammaln(a * number)
        series = logsumexp(jnp.where(there, terms, -jnp.inf)) + jnp.log(stride) - jnp.log(z)
        return jnp.where(positive, series + own, -jnp.exp((2.0 - p) * predictor) / ((2.0 - p) * phi))

    def mean(self, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        return np.exp(np.minimum(predictor, 709.0))

    def variance(self, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        return nuisance[0] * np.exp(np.minimum(self.power * np.asarray(predictor), 709.0))

    def _amounts(self, predictor: Array, nuisance: Sequence[float]) -> tuple[Array, float, Array]:
        """The mean number of amounts, and their shape and scale."""
        p, phi = self.power, nuisance[0]
        mean = np.exp(np.clip(predictor, -700.0, 700.0))
        return mean ** (2.0 - p) / (phi * (2.0 - p)), (2.0 - p) / (p - 1.0), phi * (p - 1.0) * mean ** (p - 1.0)

    def cdf(self, y: Array, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        from scipy.special import gammainc, gammaln

        number, shape, scale = self._amounts(np.asarray(predictor, dtype=float), nuisance)
        y = np.broadcast_to(np.asarray(y, dtype=float), number.shape)
        found = np.exp(-number)
        most = int(np.ceil(np.max(number + 9.0 * np.sqrt(number) + 20.0, initial=1.0)))
        for count in range(1, most + 1):
            chance = np.exp(count * np.log(number) - number - gammaln(count + 1.0))
            found = found + chance * gammainc(count * shape, np.maximum(y, 0.0) / scale)
        return np.where(y < 0, 0.0, np.minimum(found, 1.0))

    def draw(self, rng: np.random.Generator, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        number, shape, scale = self._amounts(np.asarray(predictor, dtype=float), nuisance)
        count = rng.poisson(number)
        return np.where(count > 0, rng.gamma(np.maximum(count, 1) * shape, scale), 0.0)

    def check_response(self, y: Array, trials: Array) -> tuple[str, ...]:
        refuse_rows(y < 0, y, "but a Tweedie response is 0 or positive. Recode that row or choose family=Normal().")
        return ()

    def start(self, y: Array, trials: Array) -> Array:
        return np.log(y + 0.1 * max(float(np.mean(y)), 1e-300))

    def nuisance_start(self, y: Array, trials: Array, residual: Array) -> tuple[float, ...]:
        mean = max(float(np.mean(y)), 1e-300)
        return (max(float(np.var(y)) / mean**self.power, 1e-8),)
