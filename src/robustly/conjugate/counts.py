"""Counts whose rows differ: rates of their own (negative binomial), chances of their own (beta-negative-binomial)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import gammaln, xlog1py, xlogy
from numpy.typing import ArrayLike
from numpyro.distributions import constraints
from scipy import stats
from scipy.special import betaln

from robustly.conjugate.base import ClassicalModel, Columns, SciPyLaw, Theta, positive_or_none
from robustly.conjugate.chances import INF, BetaPair
from robustly.conjugate.fitting import ConjugatePair
from robustly.conjugate.gammas import gamma_evidence, log_rising
from robustly.conjugate.reading import read_counts, read_covariates, read_positive, refuse_collinear, refuse_where
from robustly.errors import DataError, ModelError
from robustly.result.fit import Fit
from robustly.rows.distinct import Table

FEW_SUCCESSES = 100


@dataclass(frozen=True)
class GammaPoisson(ConjugatePair):
    r"""Counts with a rate of their own.

    :math:`\beta_i \sim \mathrm{Gamma}(a, b),\; x_i \sim \mathrm{Poisson}(e_i\beta_i)` with exposure :math:`e_i`.

    Integrated, a negative binomial with mean :math:`e_i a/b`. Heavier than a Poisson whenever rates differ; if they do
    not, b runs to infinity and `fit` returns the Poisson and says so. With ``design`` the prior mean of a row's rate is
    :math:`\exp(d_i \cdot \mathrm{coef})` and its concentration is common (negative binomial regression, NB2).
    For rates that are log-normal rather than gamma, or for gross outliers, ``RobustPoissonRegression`` fits better.

    Args:
        concentration, mean: fix the prior's concentration a or its mean a/b; None fits them.

    Example:
        >>> from robustly.conjugate import GammaPoisson
        >>> fit = GammaPoisson().fit([0, 3, 1, 9, 0, 2, 14, 1, 0, 5])
        >>> round(float(fit.mean), 3)
        3.5
    """

    concentration: float | None = None
    mean: float | None = None

    local: ClassVar[str] = "rate"
    shared: ClassVar[tuple[str, ...]] = ("coef",)
    support: ClassVar[str] = "count"
    _known: ClassVar[tuple[str, ...]] = ("concentration", "mean")

    def __post_init__(self) -> None:
        positive_or_none("GammaPoisson", concentration=self.concentration, mean=self.mean)

    def fit(  # type: ignore[override]
        self,
        counts: ArrayLike,
        exposure: ArrayLike | None = None,
        *,
        design: ArrayLike | None = None,
        method: str = "direct",
        weights: ArrayLike | None = None,
        hyperprior: Mapping[str, Any] | None = None,
    ) -> Fit:
        """Fit the prior of the rates.

        Args:
            counts: one whole number a row, shape (n,).
            exposure: what the count was taken over (time, area, population), above 0; 1 unless told.
            design: covariates of the log mean rate, shape (n, p); add a column of ones for an intercept.
            method, weights, hyperprior: ``"direct"`` or ``"em"``; how often each row counts; NumPyro distributions by
                name of a hyperparameter.
        """
        if design is None:
            return self._fit_to((counts, exposure), method, weights, hyperprior)
        columns = self.read(counts, exposure, design)
        refuse_collinear(columns["design"])
        return self._fit(columns, method, weights, hyperprior)

    def read(
        self, counts: ArrayLike, exposure: ArrayLike | None = None, design: ArrayLike | None = None
    ) -> dict[str, np.ndarray]:
        columns: dict[str, np.ndarray] = {}
        rows = None
        if counts is not None:
            columns["counts"] = read_counts("counts", counts)
            rows = len(columns["counts"])
        if design is not None:
            if self.mean is not None:
                raise ModelError(
                    "GammaPoisson(mean=...) fixes the mean that design= would model. Leave one of them out."
                )
            found = read_covariates(design, rows)
            rows = len(found)
        if exposure is None:
            columns["exposure"] = np.ones(rows or 1)
        else:
            columns["exposure"] = read_positive(
                "exposure", np.atleast_1d(exposure) if rows is None else exposure, rows=rows, what="exposures"
            )
        if design is not None:
            columns["design"] = found
        return columns

    def coordinates(self, columns: Columns) -> dict[str, tuple[Any, tuple[int, ...]]]:
        if "design" in columns:
            size = np.shape(columns["design"])[1]
            return {"concentration": (constraints.positive, ()), "coef": (constraints.real, (size,))}
        return {"concentration": (constraints.positive, ()), "mean": (constraints.positive, ())}

    @staticmethod
    def _centre(theta: Theta, row: Columns) -> Array:
        if "coef" in theta:
            return jnp.exp(jnp.dot(row["design"], theta["coef"]) + theta.get("shift", 0.0))
        return theta["mean"]

    def natural(self, theta: Theta, row: Columns) -> tuple[Any, ...]:
        return theta["concentration"], theta["concentration"] / self._centre(theta, row)

    def strayed(self, theta: Theta, shift: Any, variance: Any) -> Theta:
        place = {"shift": shift} if "coef" in theta else {"mean": theta["mean"] * jnp.exp(shift)}
        return {**theta, "concentration": 1.0 / variance, **place}

    def log_normalizer(self, eta: tuple[Any, ...]) -> Array:
        return gammaln(eta[0]) - eta[0] * jnp.log(eta[1])

    def statistic(self, theta: Theta, row: Columns) -> tuple[Any, ...]:
        return row["counts"], row["exposure"]

    def log_base(self, theta: Theta, row: Columns) -> Array:
        return xlogy(row["counts"], row["exposure"]) - gammaln(row["counts"] + 1.0)

    def evidence(self, theta: Theta, row: Columns) -> Array:
        a, b = self.natural(theta, row)
        return gamma_evidence(a, b, row["counts"], row["exposure"]) + self.log_base(theta, row)

    def arguments(self, theta: Theta) -> dict[str, Any]:
        if "coef" in theta:
            return {"concentration": theta["concentration"]}
        return {"concentration": theta["concentration"], "rate": theta["concentration"] / theta["mean"]}

    def derived(self, theta: Theta) -> dict[str, Any]:
        return {} if "coef" in theta else {"mean": theta["mean"]}

    def law(self, eta: tuple[Any, ...]) -> SciPyLaw:
        return stats.gamma(eta[0], scale=1.0 / eta[1])

    def likelihood(self, local: Any, theta: Theta, columns: Columns) -> SciPyLaw:
        return stats.poisson(columns["exposure"] * local)

    def predictive_law(self, theta: Theta, columns: Columns) -> SciPyLaw:
        mean = columns["exposure"] * _numpy_centre(theta, columns)
        a = theta["concentration"]
        return stats.nbinom(np.broadcast_to(a, np.shape(mean)), a / (a + mean))

    def raw(self, theta: Theta, columns: Columns) -> np.ndarray:
        return columns["counts"] / columns["exposure"]

    def start(self, table: Table) -> dict[str, Any]:
        found = self._classical_values(table)
        mu = table.columns["exposure"] * _numpy_centre(found, table.columns)
        x = table.columns["counts"]
        above = float(table.weight @ ((x - mu) ** 2 - x))
        concentration = float(table.weight @ mu**2) / above if above > 0 else 10.0
        return {"concentration": float(np.clip(concentration, 1e-3, 1e6)), **found}

    def _classical_values(self, table: Table) -> dict[str, Any]:
        columns = table.columns
        total = float(table.weight @ columns["counts"])
        mean = max(total, 1e-8) / float(table.weight @ columns["exposure"])
        if "design" not in columns:
            return {"mean": mean if self.mean is None else self.mean}
        return {"coef": poisson_regression(columns["design"], columns["counts"], columns["exposure"], table.weight)}

    def classical(self, table: Table) -> ClassicalModel | None:
        columns = table.columns
        x, exposure = columns["counts"], columns["exposure"]
        if float(table.weight @ x) == 0.0:
            if "design" in columns:
                raise DataError("all counts are 0, so no coefficient can be fitted. Leave design out, or add data.")
            values = {"rate": 0.0 if self.mean is None else self.mean}
            edge = ("rate",) if self.mean is None else ()
            return ClassicalModel(
                values, {"concentration": INF, "rate": INF}, 0.0, _log_poisson, _poisson_law, _poisson_rate,
                {"mean": values["rate"]}, "all counts are 0: no heterogeneity can be seen, and the Poisson with rate 0 "
                "is returned.", edge,
            )  # fmt: skip
        found = self._classical_values(table)
        mu = exposure * _numpy_centre(found, columns)
        score = float(table.weight @ ((x - mu) ** 2 - x)) / float(table.weight @ (mu**2 + mu))
        if "design" in columns:
            return ClassicalModel(found, {"concentration": INF}, score, _log_poisson, _poisson_law, _poisson_rate)
        values = {"rate": found["mean"]}
        limits = {"concentration": INF, "rate": INF}
        given = () if self.mean is None else ("rate",)
        return ClassicalModel(
            values, limits, score, _log_poisson, _poisson_law, _poisson_rate, {"mean": found["mean"]}, given=given
        )


def _numpy_centre(theta: Theta, columns: Columns) -> np.ndarray:
    if "coef" in theta:
        return np.exp(np.asarray(columns["design"]) @ np.asarray(theta["coef"]))
    return np.broadcast_to(theta["mean"], np.shape(columns["exposure"]))


def _poisson_rate(values: Theta, columns: Columns) -> np.ndarray:
    if "coef" in values:
        return np.exp(np.asarray(columns["design"]) @ np.asarray(values["coef"]))
    return np.broadcast_to(np.asarray(values["rate"]), np.shape(columns["exposure"]))


def _log_poisson(values: Theta, row: Columns) -> Array:
    rate = jnp.exp(jnp.dot(row["design"], values["coef"])) if "coef" in values else values["rate"]
    mu = row["exposure"] * rate
    return xlogy(row["counts"], mu) - mu - gammaln(row["counts"] + 1.0)


def _poisson_law(values: Theta, columns: Columns) -> SciPyLaw:
    return stats.poisson(columns["exposure"] * _poisson_rate(values, columns))


def poisson_regression(design: np.ndarray, x: np.ndarray, exposure: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Maximum likelihood of a log-linear Poisson mean, by the common Newton climb."""
    from robustly.errors import FitError
    from robustly.fit.newton import Function, maximize

    offset = np.log(exposure)

    def objective(coef: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        eta = design @ coef + offset
        with np.errstate(over="ignore"):
            mu = np.exp(eta)
            value = float(weight @ (x * eta - mu))
        if not np.isfinite(value):
            return -np.inf, np.zeros_like(coef), np.zeros((len(coef), len(coef)))
        return value, design.T @ (weight * (x - mu)), -(design.T * (weight * mu)) @ design

    # A least-squares line through the logs of what was seen is near enough for Newton never to overshoot.
    sure = np.sqrt(weight * (x + 0.5))
    begin = np.linalg.lstsq(design * sure[:, None], sure * (np.log(x + 0.5) - offset), rcond=None)[0]
    found = maximize(Function(objective), begin)
    if not found.outcome.converged:
        raise FitError(f"the Poisson regression on design did not converge: {found.outcome.text}")
    return found.vector


@dataclass(frozen=True)
class BetaNegativeBinomial(BetaPair):
    r"""Failures before `size` successes, each row with a chance of its own: :math:`p_i \sim \mathrm{Beta}(c_1, c_0)`.

    :math:`x_i \sim \mathrm{NegativeBinomial}(r_i, p_i)` counts failures; integrated, a beta-negative-binomial with a
    power-law tail. If rows do not differ, `fit` returns the negative binomial with one chance and says so.

    Args:
        concentration, mean: fix :math:`c_1 + c_0` or the prior mean of the chance; None fits them.
    """

    def fit(  # type: ignore[override]
        self,
        failures: ArrayLike,
        size: Any = 1,
        *,
        method: str = "direct",
        weights: ArrayLike | None = None,
        hyperprior: Mapping[str, Any] | None = None,
    ) -> Fit:
        """Fit the prior of the chances.

        Args:
            failures: whole numbers from 0, shape (n,).
            size: successes that were waited for, above 0 (it need not be whole); one number or one a row.
            method, weights, hyperprior: as in :meth:`GammaPoisson.fit`.
        """
        return self._fit_to((failures, size), method, weights, hyperprior)

    def read(self, failures: ArrayLike, size: Any = 1) -> dict[str, np.ndarray]:
        columns: dict[str, np.ndarray] = {}
        rows = None
        if failures is not None:
            columns["failures"] = read_counts("failures", failures)
            rows = len(columns["failures"])
        given = np.atleast_1d(size) if rows is None else size
        columns["size"] = read_positive("size", given, rows=rows, what="numbers of successes waited for")
        refuse_where("size", columns["size"], columns["size"] > 2.0**53, "whole numbers are exact only up to 2**53")
        if np.all(columns["size"] == np.floor(columns["size"])):
            columns["size"] = columns["size"].astype(np.int64)
        return columns

    def statistic(self, theta: Theta, row: Columns) -> tuple[Any, ...]:
        return row["size"], row["failures"]

    def log_base(self, theta: Theta, row: Columns) -> Array:
        return log_rising(row["size"], row["failures"]) - gammaln(row["failures"] + 1.0)

    def likelihood(self, local: Any, theta: Theta, columns: Columns) -> SciPyLaw:
        return stats.nbinom(columns["size"], local)

    def predictive_law(self, theta: Theta, columns: Columns) -> SciPyLaw:
        first, second = self.natural(theta, {})
        size = np.asarray(columns["size"])
        few = np.all(size == np.floor(size)) and np.max(size, initial=1) <= FEW_SUCCESSES
        law = waiting if few else stats.betanbinom
        return law(columns["size"], float(first), float(second))

    def raw(self, theta: Theta, columns: Columns) -> np.ndarray:
        return columns["size"] / (columns["size"] + columns["failures"])

    def start(self, table: Table) -> dict[str, Any]:
        # Match the mean and mean square of chances estimated without bias: (r−1)/(r+x−1) needs r > 1, so use a wide
        # prior about the pooled chance where rows wait for one success only.
        r, x = table.columns["size"], table.columns["failures"]
        p = float(table.weight @ r) / float(table.weight @ (r + x))
        mu = r * (1 - p) / p
        plain = r * (1 - p) / p**2
        excess = float(table.weight @ ((x - mu) ** 2)) / max(float(table.weight @ plain), 1e-300) - 1.0
        return {"concentration": float(np.clip(4.0 / max(excess, 0.1), 1.0, 1e4)), "mean": min(max(p, 1e-6), 1 - 1e-6)}

    def classical(self, table: Table) -> ClassicalModel | None:
        r, x, w = table.columns["size"], table.columns["failures"], table.weight
        p = float(w @ r) / float(w @ (r + x)) if self.mean is None else self.mean
        why, score, q = "", 0.0, 1.0 - p
        if q == 0.0:
            why = "no row has a failure: no heterogeneity can be seen, and a chance of 1 is returned."
        else:
            score = float(w @ ((r / p - x / q) ** 2 - r / p**2 - x / q**2)) / float(w @ (r / p**2 + x / q**2))
        law = lambda values, columns: stats.nbinom(columns["size"], float(values["chance"]))
        return self.with_one_chance(p, score, _log_negative_binomial, law, why, at_edge=q == 0.0)


class _Waiting(stats.rv_discrete):
    """Failures before few successes: SciPy sums over all counts below, which is a sum over successes."""

    def _get_support(self, n: Any, a: Any, b: Any) -> tuple[int, float]:
        return 0, np.inf

    def _logpmf(self, x: Any, n: Any, a: Any, b: Any) -> Any:
        return stats.betanbinom.logpmf(x, n, a, b)

    def _pmf(self, x: Any, n: Any, a: Any, b: Any) -> Any:
        return np.exp(self._logpmf(x, n, a, b))

    def _sf(self, x: Any, n: Any, a: Any, b: Any) -> Any:
        # More than x failures before the n-th success: fewer than n successes in n + x trials.
        trials = n + np.floor(x)
        found = np.zeros(np.shape(trials))
        for k in range(int(np.max(n))):
            log = betaln(a + k, b + trials - k) - betaln(a, b) - betaln(k + 1.0, trials - k + 1.0) - np.log1p(trials)
            found = found + np.where(k < n, np.exp(log), 0.0)
        return np.minimum(found, 1.0)

    def _cdf(self, x: Any, n: Any, a: Any, b: Any) -> Any:
        return 1.0 - self._sf(x, n, a, b)

    def _stats(self, n: Any, a: Any, b: Any) -> Any:
        return stats.betanbinom.stats(n, a, b, moments="mvsk")

    def _rvs(self, n: Any, a: Any, b: Any, size: Any = None, random_state: Any = None) -> Any:
        return stats.betanbinom.rvs(n, a, b, size=size, random_state=random_state)


waiting = _Waiting(name="waiting", shapes="n, a, b")


def _log_negative_binomial(values: Theta, row: Columns) -> Array:
    p, r, x = values["chance"], row["size"], row["failures"]
    return log_rising(r, x) - gammaln(x + 1.0) + xlogy(r, p) + xlog1py(x, -p)


@dataclass(frozen=True)
class BetaGeometric(BetaNegativeBinomial):
    r"""Failures before the first success, each row with a chance of its own: a beta-geometric (Waring) law.

    The same as :class:`BetaNegativeBinomial` with ``size=1``; used for times to conception and customer churn.
    """

    def fit(  # type: ignore[override]
        self,
        failures: ArrayLike,
        *,
        method: str = "direct",
        weights: ArrayLike | None = None,
        hyperprior: Mapping[str, Any] | None = None,
    ) -> Fit:
        """Fit the prior of the chances to whole numbers from 0; options as in :meth:`GammaPoisson.fit`."""
        return self._fit_to((failures,), method, weights, hyperprior)

    def read(self, failures: ArrayLike) -> dict[str, np.ndarray]:  # type: ignore[override]
        return super().read(failures, 1)
