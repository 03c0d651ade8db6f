r"""How is one row's response distributed, given its predictor? The families of generalized linear models.

The ready families are written out, so that a log rate of 40 or a count of :math:`e^{40}` loses no digits. Every family
speaks of its *predictor* :math:`\eta`: the log of the mean for counts and positive responses, the log odds for binary
ones, the mean itself for the normal.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import factorial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from robustly.errors import SupportError
from robustly.glm.family import Array, Family, refuse_rows

if TYPE_CHECKING:
    import jax
    from numpyro.distributions import Distribution

LOG_2PI = float(np.log(2.0 * np.pi))


class Normal(Family):
    """Measurements: normal around the predictor, with a common `scale`."""

    nuisance = ("scale",)
    discrete = False

    def distribution(self, predictor: jax.Array, *nuisance: jax.Array) -> Distribution:
        from numpyro.distributions import Normal as normal

        return normal(predictor, nuisance[0])

    def log_prob(self, y: jax.Array, trials: jax.Array, predictor: jax.Array, *nuisance: jax.Array) -> jax.Array:
        import jax.numpy as jnp

        return -0.5 * ((y - predictor) / nuisance[0]) ** 2 - jnp.log(nuisance[0])

    def log_base(self, y: Array, trials: Array) -> Array:
        return np.full(len(y), -0.5 * LOG_2PI)

    @property
    def constant_base(self) -> float | None:
        return -0.5 * LOG_2PI if type(self).log_base is Normal.log_base else None

    def mean(self, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        return np.asarray(predictor, dtype=float)

    def variance(self, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        return np.full(np.shape(predictor), nuisance[0] ** 2)

    def cdf(self, y: Array, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        from scipy.special import ndtr

        return ndtr((y - predictor) / nuisance[0])

    def draw(self, rng: np.random.Generator, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        return rng.normal(predictor, nuisance[0])

    def turn(self, y: Array, trials: Array, nuisance: Sequence[float]) -> tuple[Array, Array]:
        return y, np.full(np.shape(y), nuisance[0])

    def check_response(self, y: Array, trials: Array) -> tuple[str, ...]:
        return ()

    def start(self, y: Array, trials: Array) -> Array:
        return y

    def nuisance_start(self, y: Array, trials: Array, residual: Array) -> tuple[float, ...]:
        return (max(float(np.sqrt(np.mean(residual**2))), 1e-12 * max(float(np.abs(y).max()), 1e-290)),)


class Poisson(Family):
    """Counts; the predictor is the log rate."""

    discrete = True

    def distribution(self, predictor: jax.Array, *nuisance: jax.Array) -> Distribution:
        import jax.numpy as jnp
        from numpyro.distributions import Poisson as poisson

        return poisson(jnp.exp(predictor))

    def log_prob(self, y: jax.Array, trials: jax.Array, predictor: jax.Array, *nuisance: jax.Array) -> jax.Array:
        import jax.numpy as jnp

        # Relative to the saturated model: y·η − e^η loses all digits when both are e²⁰.
        seen = y > 0
        excess = jnp.where(seen, predictor - jnp.log(jnp.where(seen, y, 1.0)), 0.0)
        power = jnp.exp(jnp.where(seen, excess, predictor))
        return jnp.where(seen, -y * beyond_line(excess, power), -power)

    def log_base(self, y: Array, trials: Array) -> Array:
        seen = np.where(y > 0, y, 1.0)
        return np.where(y > 0, -0.5 * (LOG_2PI + np.log(seen)) - stirling_rest(seen), 0.0)

    def mean(self, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        return np.exp(np.minimum(predictor, 709.0))

    def variance(self, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        return self.mean(predictor, nuisance, trials)

    def cdf(self, y: Array, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        from scipy.special import gammaincc

        whole = np.floor(y)
        return np.where(whole < 0, 0.0, gammaincc(np.maximum(whole, 0.0) + 1.0, np.exp(np.minimum(predictor, 709.0))))

    def draw(self, rng: np.random.Generator, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        return draw_poisson(rng, np.asarray(predictor, dtype=float))

    def turn(self, y: Array, trials: Array, nuisance: Sequence[float]) -> tuple[Array, Array]:
        near = np.maximum(y, 0.0) + 0.7
        return np.log(near), 1.0 / np.sqrt(near)

    def check_response(self, y: Array, trials: Array) -> tuple[str, ...]:
        refuse_rows(y < 0, y, "but Poisson counts start at 0. Recode that row or choose family=Normal().")
        return _broken_counts(y, "Poisson")

    def start(self, y: Array, trials: Array) -> Array:
        return np.log(y + 0.5)


class Binomial(Family):
    """Successes out of known trials; the predictor is the log odds of success."""

    discrete = True

    def distribution(self, predictor: jax.Array, *nuisance: jax.Array) -> Distribution:
        from numpyro.distributions import BernoulliLogits

        return BernoulliLogits(predictor)

    def log_prob(self, y: jax.Array, trials: jax.Array, predictor: jax.Array, *nuisance: jax.Array) -> jax.Array:
        import jax.numpy as jnp

        # y·η − n·log(1 + e^η) would be a difference of large numbers far out in a heavy tail, at a row without failures.
        above = jnp.logaddexp(predictor, 0.0)
        return y * (predictor - above) - (trials - y) * above

    def log_base(self, y: Array, trials: Array) -> Array:
        from scipy.special import gammaln

        return gammaln(trials + 1.0) - gammaln(y + 1.0) - gammaln(trials - y + 1.0)

    def mean(self, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        from scipy.special import expit

        return trials * expit(predictor)

    def variance(self, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        from scipy.special import expit

        return trials * expit(predictor) * expit(-predictor)

    def cdf(self, y: Array, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        from scipy.special import betainc, expit

        whole = np.floor(y)
        inside = (whole >= 0) & (whole < trials)
        a, b = np.where(inside, trials - whole, 1.0), np.where(inside, whole + 1.0, 1.0)
        return np.where(inside, betainc(a, b, expit(-predictor)), np.where(whole < 0, 0.0, 1.0))

    def draw(self, rng: np.random.Generator, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        from scipy.special import expit

        return rng.binomial(np.asarray(trials).astype(np.int64), expit(predictor)).astype(float)

    def turn(self, y: Array, trials: Array, nuisance: Sequence[float]) -> tuple[Array, Array]:
        up, down = np.clip(y, 0.0, trials) + 0.7, np.clip(trials - y, 0.0, trials) + 0.7
        return np.log(up / down), np.sqrt(1.0 / up + 1.0 / down)

    def check_response(self, y: Array, trials: Array) -> tuple[str, ...]:
        if np.all(trials == 1):
            refuse_rows(
                (y < 0) | (y > 1), y, "but a response of one trial is 0 or 1. Give trials= for counts of successes."
            )
        else:
            bad = (y < 0) | (y > trials)
            if bad.any():
                row = int(np.flatnonzero(bad)[0])
                raise SupportError(
                    f"y holds {y[row]} successes in row {row}, out of {trials[row]} trials. Recode that row."
                )
        return _broken_counts(y, "binomial")

    def start(self, y: Array, trials: Array) -> Array:
        return np.log((y + 0.5) / (trials - y + 0.5))


class Bernoulli(Binomial):
    """Yes or no, coded 1 and 0; the predictor is the log odds of a yes."""

    yes_or_no: ClassVar[bool] = True

    def check_response(self, y: Array, trials: Array) -> tuple[str, ...]:
        refuse_rows(
            (y != 0) & (y != 1), y, "but Bernoulli responses are 0 or 1. For counts of successes choose Binomial()."
        )
        if np.any(trials != 1):
            raise SupportError(
                "trials other than 1 came, but Bernoulli rows are single trials. Choose family=Binomial()."
            )
        return ()


class Gamma(Family):
    """Positive measurements; the predictor is the log of the mean, and all rows share a `shape`."""

    nuisance: ClassVar[tuple[str, ...]] = ("shape",)
    discrete = False

    def distribution(self, predictor: jax.Array, *nuisance: jax.Array) -> Distribution:
        import jax.numpy as jnp
        from numpyro.distributions import Gamma as gamma

        return gamma(nuisance[0], nuisance[0] * jnp.exp(-predictor))

    def log_prob(self, y: jax.Array, trials: jax.Array, predictor: jax.Array, *nuisance: jax.Array) -> jax.Array:
        import jax.numpy as jnp
        from jax.scipy.special import gammaln

        shape = nuisance[0]
        excess = jnp.log(y) - predictor
        constant = shape * jnp.log(shape) - shape - gammaln(shape)
        return constant - shape * beyond_line(excess, jnp.exp(excess))

    def log_base(self, y: Array, trials: Array) -> Array:
        return -np.log(y)

    def mean(self, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        return np.exp(np.minimum(predictor, 709.0))

    def variance(self, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        return np.exp(np.minimum(2.0 * np.asarray(predictor), 709.0)) / self.shape_of(nuisance)

    def cdf(self, y: Array, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        from scipy.special import gammainc

        shape = self.shape_of(nuisance)
        return gammainc(shape, shape * np.maximum(y, 0.0) * np.exp(np.minimum(-np.asarray(predictor), 700.0)))

    def draw(self, rng: np.random.Generator, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        shape = self.shape_of(nuisance)
        return rng.gamma(shape, self.mean(predictor, nuisance, trials) / shape)

    def turn(self, y: Array, trials: Array, nuisance: Sequence[float]) -> tuple[Array, Array]:
        return np.log(np.maximum(y, 1e-300)), np.full(np.shape(y), 1.0 / np.sqrt(self.shape_of(nuisance)))

    def check_response(self, y: Array, trials: Array) -> tuple[str, ...]:
        refuse_rows(y <= 0, y, f"but {self} takes numbers above 0. Recode that row or choose family=Normal().")
        return ()

    def start(self, y: Array, trials: Array) -> Array:
        return np.log(y)

    def nuisance_start(self, y: Array, trials: Array, residual: Array) -> tuple[float, ...]:
        return (1.0 / max(float(np.var(residual)), 1e-8),)

    def shape_of(self, nuisance: Sequence[float]) -> float:
        return nuisance[0]


class Exponential(Gamma):
    """Waiting times: a gamma of shape one; the predictor is the log of the mean."""

    nuisance = ()

    def distribution(self, predictor: jax.Array, *nuisance: jax.Array) -> Distribution:
        return super().distribution(predictor, 1.0)

    def log_prob(self, y: jax.Array, trials: jax.Array, predictor: jax.Array, *nuisance: jax.Array) -> jax.Array:
        return super().log_prob(y, trials, predictor, 1.0)

    def nuisance_start(self, y: Array, trials: Array, residual: Array) -> tuple[float, ...]:
        return ()

    def shape_of(self, nuisance: Sequence[float]) -> float:
        return 1.0


class NegativeBinomial(Family):
    """Overdispersed counts, variance μ + μ²/`size`; the predictor is the log of the mean."""

    nuisance = ("size",)
    discrete = True

    def distribution(self, predictor: jax.Array, *nuisance: jax.Array) -> Distribution:
        import jax.numpy as jnp
        from numpyro.distributions import NegativeBinomialLogits

        return NegativeBinomialLogits(nuisance[0], predictor - jnp.log(nuisance[0]))

    def log_prob(self, y: jax.Array, trials: jax.Array, predictor: jax.Array, *nuisance: jax.Array) -> jax.Array:
        import jax.numpy as jnp
        from jax.scipy.special import gammaln

        size = nuisance[0]
        relative = predictor - jnp.log(size)
        above = jnp.logaddexp(relative, 0.0)
        return gammaln(y + size) - gammaln(size) - size * above + y * (relative - above)

    def log_prob_strayed(
        self, y: jax.Array, trials: jax.Array, predictor: jax.Array, *nuisance: jax.Array
    ) -> jax.Array:
        import jax.numpy as jnp

        # A Poisson count: `size` says how rates of the core are spread.
        return y * predictor - jnp.exp(predictor)

    def log_base(self, y: Array, trials: Array) -> Array:
        from scipy.special import gammaln

        return -gammaln(y + 1.0)

    def mean(self, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        return np.exp(np.minimum(predictor, 709.0))

    def variance(self, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        mean = np.exp(np.minimum(predictor, 350.0))
        return mean + mean**2 / nuisance[0]

    def cdf(self, y: Array, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        from scipy.special import betainc, expit

        whole = np.floor(y)
        success = expit(np.log(nuisance[0]) - np.asarray(predictor))
        return np.where(whole < 0, 0.0, betainc(nuisance[0], np.maximum(whole, 0.0) + 1.0, success))

    def draw(self, rng: np.random.Generator, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        size = nuisance[0]
        return draw_poisson(rng, np.asarray(predictor) + np.log(rng.gamma(size, 1.0 / size, np.shape(predictor))))

    def turn(self, y: Array, trials: Array, nuisance: Sequence[float]) -> tuple[Array, Array]:
        near = np.maximum(y, 0.0) + 0.7
        return np.log(near), np.sqrt(1.0 / near + 1.0 / nuisance[0])

    def check_response(self, y: Array, trials: Array) -> tuple[str, ...]:
        refuse_rows(y < 0, y, "but counts start at 0. Recode that row or choose family=Normal().")
        return _broken_counts(y, "negative binomial")

    def start(self, y: Array, trials: Array) -> Array:
        return np.log(y + 0.5)


def beyond_line(x: jax.Array, power: jax.Array) -> jax.Array:
    r""":math:`e^x - 1 - x`, given :math:`e^x`: by its series near zero, where the difference would lose its digits."""
    import jax.numpy as jnp

    near = jnp.abs(x) < 0.25
    small = jnp.where(near, x, 0.0)
    series = jnp.zeros_like(small)
    for order in range(13, 1, -1):
        series = series * small + 1.0 / factorial(order)
    return jnp.where(near, small**2 * series, power - 1.0 - x)


def stirling_rest(y: Array) -> Array:
    """log y! less Stirling's formula, for y > 0, without cancellation for large y."""
    from scipy.special import gammaln

    large = np.maximum(y, 15.0)
    part = 1.0 / large
    series = part / 12 - part**3 / 360 + part**5 / 1260 - part**7 / 1680
    small = np.minimum(y, 15.0)
    direct = gammaln(small + 1.0) - (small + 0.5) * np.log(small) + small - 0.5 * LOG_2PI
    return np.where(y > 15.0, series, direct)


def draw_poisson(rng: np.random.Generator, log_rate: Array) -> Array:
    """Poisson draws; beyond what integers hold, normal ones of the same mean and variance."""
    rate = np.exp(np.minimum(log_rate, 700.0))
    large = rate > 1e15
    drawn = rng.poisson(np.where(large, 1.0, rate)).astype(float)
    return np.where(large, np.rint(rate + np.sqrt(rate) * rng.standard_normal(rate.shape)), drawn)


def _broken_counts(y: Array, kind: str) -> tuple[str, ...]:
    if np.all(y == np.floor(y)):
        return ()
    return (f"y holds numbers that are not whole; the {kind} log density is continued to them.",)
