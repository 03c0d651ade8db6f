"""Positive rows that differ: waiting times with rates of their own (Lomax), log-normals with means or variances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import gammaln
from numpy.typing import ArrayLike
from numpyro.distributions import constraints
from scipy import stats

from robustly.conjugate.base import ClassicalModel, Columns, SciPyLaw, Theta, positive_or_none
from robustly.conjugate.fitting import ConjugatePair
from robustly.conjugate.gammas import gamma_evidence, log_rising, log_rising_plain
from robustly.conjugate.normal import INF, NormalInverseGamma, NormalNormal
from robustly.conjugate.reading import read_positive
from robustly.errors import DataError, ModelError
from robustly.result.fit import Fit
from robustly.rows.distinct import Table


@dataclass(frozen=True)
class GammaGamma(ConjugatePair):
    r"""Positive values with a rate of their own.

    :math:`\beta_i \sim \mathrm{Gamma}(a, b),\; x_i \sim \mathrm{Gamma}(k, \beta_i)`.

    Integrated, a beta-prime law with a power-law tail (customer spend, claim sizes). The shape k is common to all rows:
    known, or fitted along with the prior. If rows do not differ, `fit` returns the gamma with one rate and says so.

    Args:
        shape: k; a number if it is known, None to fit it.
        concentration, mean: fix the prior's concentration a or its mean a/b; None fits them.
    """

    shape: float | None = 1.0
    concentration: float | None = None
    mean: float | None = None

    local: ClassVar[str] = "rate"
    shared: ClassVar[tuple[str, ...]] = ("shape",)
    support: ClassVar[str] = "positive"
    _known: ClassVar[tuple[str, ...]] = ("shape", "concentration", "mean")

    def __post_init__(self) -> None:
        positive_or_none(type(self).__name__, shape=self.shape, concentration=self.concentration, mean=self.mean)

    def read(self, x: ArrayLike) -> dict[str, np.ndarray]:  # type: ignore[override]
        return {} if x is None else {"x": read_positive("x", x, what="values")}

    def coordinates(self, columns: Columns) -> dict[str, tuple[Any, tuple[int, ...]]]:
        return dict.fromkeys(("concentration", "mean", "shape"), (constraints.positive, ()))

    def natural(self, theta: Theta, row: Columns) -> tuple[Any, ...]:
        return theta["concentration"], theta["concentration"] / theta["mean"]

    def strayed(self, theta: Theta, shift: Any, variance: Any) -> Theta:
        return {**theta, "concentration": 1.0 / variance, "mean": theta["mean"] * jnp.exp(shift)}

    def log_normalizer(self, eta: tuple[Any, ...]) -> Array:
        return gammaln(eta[0]) - eta[0] * jnp.log(eta[1])

    def statistic(self, theta: Theta, row: Columns) -> tuple[Any, ...]:
        return theta["shape"], row["x"]

    def log_base(self, theta: Theta, row: Columns) -> Array:
        return (theta["shape"] - 1.0) * jnp.log(row["x"]) - gammaln(theta["shape"])

    def evidence(self, theta: Theta, row: Columns) -> Array:
        a, b = self.natural(theta, row)
        rising = log_rising_plain if self.shape is None else log_rising
        power, slope = self.statistic(theta, row)
        return gamma_evidence(a, b, power, slope, rising) + self.log_base(theta, row)

    def arguments(self, theta: Theta) -> dict[str, Any]:
        a, b = self.natural(theta, {})
        return {"concentration": a, "rate": b}

    def derived(self, theta: Theta) -> dict[str, Any]:
        return {"mean": theta["mean"]}

    def law(self, eta: tuple[Any, ...]) -> SciPyLaw:
        return stats.gamma(eta[0], scale=1.0 / eta[1])

    def likelihood(self, local: Any, theta: Theta, columns: Columns) -> SciPyLaw:
        return stats.gamma(float(theta["shape"]), scale=1.0 / local)

    def predictive_law(self, theta: Theta, columns: Columns) -> SciPyLaw:
        a, b = self.natural(theta, {})
        return stats.betaprime(float(theta["shape"]), float(a), scale=float(b))

    def raw(self, theta: Theta, columns: Columns) -> np.ndarray:
        return float(theta["shape"]) / columns["x"]

    def start(self, table: Table) -> dict[str, Any]:
        x = table.columns["x"]
        centre = float(table.mean(np.log(x)))
        spread = float(table.mean((np.log(x) - centre) ** 2))
        # The variance of log x is ψ'(k) + ψ'(a); ψ'(z) is nearly 1/z + 1/(2z²).
        k = self.shape if self.shape is not None else _inverse_trigamma(0.5 * spread)
        a = self.concentration or _inverse_trigamma(max(spread - _trigamma(k), 0.1 * spread))
        log_mean_rate = _digamma(k) - centre - _digamma(a) + np.log(a)
        return {"concentration": a, "mean": float(np.exp(log_mean_rate)), "shape": k}

    def classical(self, table: Table) -> ClassicalModel | None:
        x = table.columns["x"]
        mean = float(table.mean(x))
        shape = self.shape if self.shape is not None else _gamma_shape(mean, float(table.mean(np.log(x))))
        if shape is None:
            raise DataError(
                f"all rows hold {mean!r}, so no shape can be fitted. Give it: GammaGamma(shape=2.0), for instance."
            )
        rate = shape / mean if self.mean is None else self.mean
        # With a fitted shape this is the score at its estimate: it compares the variance with the mean squared over k.
        score = float(table.mean((x - shape / rate) ** 2 - shape / rate**2)) * rate**2 / shape
        values = {"rate": rate} if self.shape is not None else {"rate": rate, "shape": shape}

        def log_prob(given: Theta, row: Columns) -> Array:
            k = given.get("shape", shape)
            return k * jnp.log(given["rate"]) + (k - 1.0) * jnp.log(row["x"]) - given["rate"] * row["x"] - gammaln(k)

        return ClassicalModel(
            values, {"concentration": INF, "rate": INF}, score, log_prob,
            lambda given, columns: stats.gamma(float(given.get("shape", shape)), scale=1.0 / float(given["rate"])),
            lambda given, columns: np.asarray(given["rate"]), {"mean": rate},
            given=() if self.mean is None else ("rate",),
        )  # fmt: skip


@dataclass(frozen=True)
class GammaExponential(GammaGamma):
    r"""Waiting times with a rate of their own.

    :math:`\beta_i \sim \mathrm{Gamma}(a, b),\; x_i \sim \mathrm{Exponential}(\beta_i)`.

    Integrated, a Lomax (Pareto II) law. Its evidence grows towards the exponential when the times' coefficient of
    variation is below 1; `fit` then returns the exponential and says so.
    """

    shape: float = 1.0
    shared: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shape != 1.0:
            raise ModelError("GammaExponential has shape 1. Use GammaGamma(shape=...) for another.")

    def likelihood(self, local: Any, theta: Theta, columns: Columns) -> SciPyLaw:
        return stats.expon(scale=1.0 / local)

    def predictive_law(self, theta: Theta, columns: Columns) -> SciPyLaw:
        a, b = self.natural(theta, {})
        return stats.lomax(float(a), scale=float(b))


def _digamma(z: float) -> float:
    from scipy.special import digamma

    return float(digamma(z))


def _trigamma(z: float) -> float:
    from scipy.special import polygamma

    return float(polygamma(1, z))


def _inverse_trigamma(value: float) -> float:
    """z with ψ'(z) near `value`: Newton on 1/ψ', which is almost straight; kept between 0.05 and 1e4."""
    z = 0.5 + 1.0 / max(value, 1e-6)
    from scipy.special import polygamma

    for _ in range(20):
        now = float(polygamma(1, z))
        z = max(z + now * (1.0 - now / max(value, 1e-6)) / float(polygamma(2, z)), 0.05)
    return float(np.clip(z, 0.05, 1e4))


def _gamma_shape(mean: float, mean_log: float) -> float | None:
    """Maximum likelihood of a gamma's shape; None when all values are equal."""
    gap = float(np.log(mean)) - mean_log
    if not gap > 1e-14:
        return None
    shape = (3 - gap + np.sqrt((gap - 3) ** 2 + 24 * gap)) / (12 * gap)
    for _ in range(30):
        slope = 1.0 / shape - _trigamma(shape)
        shape = 1.0 / (1.0 / shape + (np.log(shape) - _digamma(shape) - gap) / (shape**2 * slope))
    return float(shape)


@dataclass(frozen=True)
class NormalLogNormal(NormalNormal):
    r"""Positive estimates whose logs have known variances, each of a log mean of its own.

    :math:`\mu_i \sim N(m, \tau^2),\; \log x_i \sim N(\mu_i, v_i)`.

    The log-normal with its log mean local: ratios, odds, relative risks. The same shrinkage as :class:`NormalNormal`,
    on the log scale, with densities of x itself. For log variances of their own use :class:`InverseGammaLogNormal`.
    """

    local: ClassVar[str] = "log mean"
    support: ClassVar[str] = "positive"

    def fit(  # type: ignore[override]
        self,
        x: ArrayLike,
        variances: ArrayLike,
        *,
        design: ArrayLike | None = None,
        method: str = "direct",
        weights: ArrayLike | None = None,
        hyperprior: Mapping[str, Any] | None = None,
    ) -> Fit:
        """Fit the prior of the log means; `variances` are those of log x. Options as in :meth:`NormalNormal.fit`."""
        return super().fit(x, variances, design=design, method=method, weights=weights, hyperprior=hyperprior)

    def read(self, x: ArrayLike, variances: ArrayLike, design: ArrayLike | None = None) -> dict[str, np.ndarray]:
        logs = None if x is None else np.log(read_positive("x", x, what="values"))
        return super().read(logs, variances, design)

    def observed(self, columns: Columns) -> np.ndarray:
        return np.exp(columns["means"])

    def log_base(self, theta: Theta, row: Columns) -> Array:
        return super().log_base(theta, row) - row["means"]

    def evidence(self, theta: Theta, row: Columns) -> Array:
        return super().evidence(theta, row) - row["means"]

    def likelihood(self, local: Any, theta: Theta, columns: Columns) -> SciPyLaw:
        return stats.lognorm(np.sqrt(columns["variances"]), scale=np.exp(local))

    def predictive_law(self, theta: Theta, columns: Columns) -> SciPyLaw:
        plain = super().predictive_law(theta, columns)
        return stats.lognorm(plain.std(), scale=np.exp(plain.mean()))

    def classical(self, table: Table) -> ClassicalModel | None:
        found = super().classical(table)
        assert found is not None
        plain, law = found.log_prob, found.law
        return replace(
            found,
            log_prob=lambda values, row: plain(values, row) - row["means"],
            law=lambda values, columns: stats.lognorm(
                np.sqrt(columns["variances"]), scale=np.exp(law(values, columns).mean())
            ),
        )  # fmt: skip


@dataclass(frozen=True)
class InverseGammaLogNormal(NormalInverseGamma):
    r"""Positive values whose logs have variances of their own: log-Student-t, the log-normal with its variance local.

    ``fit.loc``, ``fit.scale`` and ``fit.dof`` are those of log x. The mean of x is infinite, so predictive means and
    standard deviations are reported as infinite; use quantiles.
    """

    local: ClassVar[str] = "log variance"
    support: ClassVar[str] = "positive"

    def read(self, x: ArrayLike) -> dict[str, np.ndarray]:
        return {} if x is None else {"x": np.log(read_positive("x", x, what="values"))}

    def observed(self, columns: Columns) -> np.ndarray:
        return np.exp(columns["x"])

    def log_base(self, theta: Theta, row: Columns) -> Array:
        return super().log_base(theta, row) - row["x"]

    def evidence(self, theta: Theta, row: Columns) -> Array:
        return super().evidence(theta, row) - row["x"]

    def likelihood(self, local: Any, theta: Theta, columns: Columns) -> SciPyLaw:
        return stats.lognorm(np.sqrt(local), scale=float(np.exp(theta["loc"])))

    def predictive_law(self, theta: Theta, columns: Columns) -> SciPyLaw:
        return LogStudent(super().predictive_law(theta, columns))

    def classical(self, table: Table) -> ClassicalModel | None:
        found = super().classical(table)
        assert found is not None
        plain = found.log_prob
        return replace(
            found,
            log_prob=lambda values, row: plain(values, row) - row["x"],
            law=lambda values, columns: stats.lognorm(float(values["scale"]), scale=float(np.exp(values["loc"]))),
        )


class LogStudent:
    """The law of exp(t)."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def mean(self) -> float:
        return INF

    def std(self) -> float:
        return INF

    def ppf(self, level: Any) -> np.ndarray:
        with np.errstate(over="ignore"):
            return np.exp(self.inner.ppf(level))

    def cdf(self, x: ArrayLike) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return self.inner.cdf(np.log(np.maximum(x, 0.0)))

    def sf(self, x: ArrayLike) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return self.inner.sf(np.log(np.maximum(x, 0.0)))

    def rvs(self, size: Any, random_state: Any) -> np.ndarray:
        with np.errstate(over="ignore"):
            return np.exp(self.inner.rvs(size=size, random_state=random_state))
