"""Normal rows that differ: in their means (shrinkage, James–Stein) or in their variances (Student-t)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import gammaln
from numpy.typing import ArrayLike
from numpyro.distributions import constraints
from scipy import stats

from robustly._runtime.precision import in_double_precision
from robustly.conjugate.base import ClassicalModel, Columns, SciPyLaw, Theta, positive_or_none
from robustly.conjugate.fitting import ConjugatePair
from robustly.conjugate.gammas import gamma_evidence
from robustly.conjugate.problem import PairProblem, Penalty, model_of
from robustly.conjugate.reading import read_covariates, read_numbers, read_positive, refuse_collinear
from robustly.conjugate.result import boundary_fit, interior_fit
from robustly.errors import DataError, FitError, ModelError
from robustly.fit.objective import Optimum
from robustly.fit.outcome import Outcome
from robustly.result.fit import Fit
from robustly.rows.distinct import Table, make_table

INF = float("inf")
HALF_LOG_TWO_PI = 0.5 * float(np.log(2 * np.pi))


@dataclass(frozen=True)
class NormalNormal(ConjugatePair):
    r"""Estimates with known variances, each of a mean of its own.

    :math:`\mu_i \sim N(m, \tau^2),\; x_i \sim N(\mu_i, v_i)`.

    The normal-means problem: meta-analysis, small-area estimates, James–Stein. Every row's posterior mean is its raw
    estimate pulled towards the centre. If the rows differ by no more than their variances explain, τ is 0 and `fit`
    says so. The variances must be known: a normal row with an unknown variance cannot tell τ from it.

    Args:
        loc: the centre m; None fits it, ``0.0`` shrinks towards zero.
        scale: τ; None fits it.

    Example:
        >>> from robustly.conjugate import NormalNormal
        >>> fit = NormalNormal().fit([28.0, 8, -3, 7, -1, 1, 18, 12], [225.0, 100, 256, 121, 81, 121, 100, 324])
        >>> fit.outcome.kind
        'boundary'
    """

    loc: float | None = None
    scale: float | None = None

    local: ClassVar[str] = "mean"
    shared: ClassVar[tuple[str, ...]] = ("coef",)
    support: ClassVar[str] = "real"
    spread_power: ClassVar[float] = 1.0
    _known: ClassVar[tuple[str, ...]] = ("loc", "scale")

    def __post_init__(self) -> None:
        positive_or_none(type(self).__name__, scale=self.scale)
        _finite_or_none(type(self).__name__, loc=self.loc)

    def fit(  # type: ignore[override]
        self,
        means: ArrayLike,
        variances: ArrayLike,
        *,
        design: ArrayLike | None = None,
        method: str = "direct",
        weights: ArrayLike | None = None,
        hyperprior: Mapping[str, Any] | None = None,
    ) -> Fit:
        """Fit the prior of the means.

        Args:
            means: the rows' raw estimates, shape (n,).
            variances: their known variances, above 0; one number or one a row.
            design: covariates of the prior mean, shape (n, p); add a column of ones for an intercept.
            method: ``"direct"`` or ``"em"`` for maximum likelihood; ``"james_stein"`` takes the estimate of the
                shrinkage factor that James & Stein's is, (n − 3) v / S with a fitted centre and (n − 2) v / S with a
                given one; it needs equal variances.
            weights, hyperprior: how often each row counts; NumPyro distributions by name of a hyperparameter.
        """
        if means is None:
            raise DataError(f"{type(self).__name__} has nothing to fit: the data are None. Give one value a row.")
        columns = self.read(means, variances, design)
        if design is not None:
            refuse_collinear(columns["design"])
        if method == "james_stein":
            return self._james_stein(columns, weights, hyperprior)
        return self._fit(columns, method, weights, hyperprior)

    @in_double_precision
    def _james_stein(self, columns: dict[str, np.ndarray], weights: ArrayLike | None, hyperprior: Any) -> Fit:
        x, v = columns["means"], columns["variances"]
        lost = 2 if self.loc is not None else 3
        if weights is not None or hyperprior or "design" in columns or self.scale is not None:
            raise ModelError('method="james_stein" takes no weights, hyperprior, design or fixed scale. Use "direct".')
        if np.ptp(v) > 1e-12 * v.max():
            raise DataError('method="james_stein" needs equal variances. Use method="direct", which takes any.')
        if len(x) <= lost:
            raise DataError(f'method="james_stein" needs more than {lost} rows; got {len(x)}.')
        table = make_table(columns, None)
        centre = float(x.mean()) if self.loc is None else float(self.loc)
        kept = (len(x) - lost) * v[0] / max(float(np.sum((x - centre) ** 2)), 1e-300)
        model = model_of(self, table.columns)
        problem = PairProblem(model, table, Penalty(model, None))
        if kept >= 1.0:
            found = self.classical(table)
            assert found is not None
            text = "James & Stein's shrinkage factor is 1: the rows show no heterogeneity in the mean."
            return boundary_fit(problem, found, text, 1)
        scale = float(np.sqrt(v[0] * (1.0 / kept - 1.0)))
        vector = model.parameters.vector({"scale": scale, "loc": centre})
        value, slope, curve = problem.look(vector)
        assert curve is not None
        text = f"James & Stein's estimate: rows keep {1 - kept:.4f} of their distance from the centre."
        history = [{"pass": 1, "value": value, "expected_gain": 0.0, "step": 0.0}]
        optimum = Optimum(vector, value, slope, curve, history, Outcome("converged", text, 1))
        return interior_fit(problem, optimum)

    def read(self, means: ArrayLike, variances: ArrayLike, design: ArrayLike | None = None) -> dict[str, np.ndarray]:
        columns: dict[str, np.ndarray] = {}
        rows = None
        if means is not None:
            columns["means"] = read_numbers("means", means).astype(float)
            rows = len(columns["means"])
        if design is not None:
            if self.loc is not None:
                raise ModelError("loc= fixes the centre that design= would model. Leave one of them out.")
            matrix = read_covariates(design, rows)
            rows = len(matrix)
        given = np.atleast_1d(variances) if rows is None else variances
        columns["variances"] = read_positive("variances", given, rows=rows, what="known variances")
        if design is not None:
            columns["design"] = matrix
        return columns

    def coordinates(self, columns: Columns) -> dict[str, tuple[Any, tuple[int, ...]]]:
        if "design" in columns:
            size = np.shape(columns["design"])[1]
            return {"scale": (constraints.positive, ()), "coef": (constraints.real, (size,))}
        return {"scale": (constraints.positive, ()), "loc": (constraints.real, ())}

    @staticmethod
    def _centre(theta: Theta, row: Columns) -> Array:
        return jnp.dot(row["design"], theta["coef"]) if "coef" in theta else theta["loc"]

    def natural(self, theta: Theta, row: Columns) -> tuple[Any, ...]:
        precision = theta["scale"] ** -2.0
        return self._centre(theta, row) * precision, precision

    def log_normalizer(self, eta: tuple[Any, ...]) -> Array:
        return 0.5 * eta[0] ** 2 / eta[1] - 0.5 * jnp.log(eta[1])

    def statistic(self, theta: Theta, row: Columns) -> tuple[Any, ...]:
        return row["means"] / row["variances"], 1.0 / row["variances"]

    def log_base(self, theta: Theta, row: Columns) -> Array:
        return -0.5 * row["means"] ** 2 / row["variances"] - 0.5 * jnp.log(row["variances"]) - HALF_LOG_TWO_PI

    def evidence(self, theta: Theta, row: Columns) -> Array:
        total = row["variances"] + theta["scale"] ** 2
        return -0.5 * (row["means"] - self._centre(theta, row)) ** 2 / total - 0.5 * jnp.log(total) - HALF_LOG_TWO_PI

    def law(self, eta: tuple[Any, ...]) -> SciPyLaw:
        return stats.norm(eta[0] / eta[1], eta[1] ** -0.5)

    def likelihood(self, local: Any, theta: Theta, columns: Columns) -> SciPyLaw:
        return stats.norm(local, np.sqrt(columns["variances"]))

    def predictive_law(self, theta: Theta, columns: Columns) -> SciPyLaw:
        return stats.norm(_centres(theta, columns), np.sqrt(columns["variances"] + theta["scale"] ** 2))

    def raw(self, theta: Theta, columns: Columns) -> np.ndarray:
        return columns["means"]

    def start(self, table: Table) -> dict[str, Any]:
        centre = self._classical_values(table)
        x, v, w = table.columns["means"], table.columns["variances"], table.weight / table.columns["variances"]
        # DerSimonian & Laird's moment estimate of the variance between rows.
        off = float(w @ (x - _centres(centre, table.columns)) ** 2)
        between = (off - table.total) / (float(w.sum()) - float(w @ w) / float(w.sum()) + 1e-300)
        least = 0.01 * float(table.mean(v))
        return {"scale": float(np.sqrt(max(between, least))), **centre}

    def _classical_values(self, table: Table) -> dict[str, Any]:
        columns = table.columns
        precision = table.weight / columns["variances"]
        if "design" in columns:
            root = np.sqrt(precision)
            return {"coef": np.linalg.lstsq(columns["design"] * root[:, None], columns["means"] * root, rcond=None)[0]}
        return {"loc": float(precision @ columns["means"] / precision.sum()) if self.loc is None else self.loc}

    def classical(self, table: Table) -> ClassicalModel | None:
        values = self._classical_values(table)
        columns, w = table.columns, table.weight
        v = columns["variances"]
        off = (columns["means"] - _centres(values, columns)) / v
        score = float(w @ (off**2 - 1.0 / v)) / float(w @ (1.0 / v))
        limits = {"scale": 0.0} if "coef" in values else {"scale": 0.0, "loc": values["loc"]}
        return ClassicalModel(
            values, limits, score, _log_normal,
            lambda given, cols: stats.norm(_centres(given, cols), np.sqrt(cols["variances"])), _centres,
        )  # fmt: skip


def _centres(theta: Theta, columns: Columns) -> np.ndarray:
    if "coef" in theta:
        return np.asarray(columns["design"]) @ np.asarray(theta["coef"])
    return np.broadcast_to(np.asarray(theta["loc"], dtype=float), np.shape(columns["variances"]))


def _log_normal(values: Theta, row: Columns) -> Array:
    centre = jnp.dot(row["design"], values["coef"]) if "coef" in values else values["loc"]
    v = row["variances"]
    return -0.5 * (row["means"] - centre) ** 2 / v - 0.5 * jnp.log(v) - HALF_LOG_TWO_PI


@dataclass(frozen=True)
class NormalInverseGamma(ConjugatePair):
    r"""Normal rows with a variance of their own.

    :math:`\sigma_i^2 \sim \mathrm{InverseGamma}(a, b),\; x_i \sim N(m, \sigma_i^2)`.

    Integrated, Student's t with ``fit.dof`` = 2a degrees of freedom, ``fit.scale`` = √(b/a) and ``fit.loc`` = m:
    outliers are explained by a large variance of their own and hardly move m. If the tails are no heavier than a
    normal's, dof runs to infinity and `fit` returns the normal and says so.

    Args:
        loc: the common mean; None fits it.
        dof, scale: fix the degrees of freedom or the scale; None fits them.

    Example:
        >>> from robustly.conjugate import NormalInverseGamma
        >>> fit = NormalInverseGamma(dof=3.0).fit([1.1, 0.9, 1.0, 1.2, 0.8, 9.0])
        >>> bool(fit.loc < 1.3)
        True
    """

    loc: float | None = None
    dof: float | None = None
    scale: float | None = None

    local: ClassVar[str] = "variance"
    shared: ClassVar[tuple[str, ...]] = ("loc",)
    support: ClassVar[str] = "real"
    measured: ClassVar[bool] = True
    _known: ClassVar[tuple[str, ...]] = ("loc", "dof", "scale")

    def __post_init__(self) -> None:
        positive_or_none(type(self).__name__, dof=self.dof, scale=self.scale)
        _finite_or_none(type(self).__name__, loc=self.loc)

    def read(self, x: ArrayLike) -> dict[str, np.ndarray]:  # type: ignore[override]
        return {} if x is None else {"x": read_numbers("x", x).astype(float)}

    def coordinates(self, columns: Columns) -> dict[str, tuple[Any, tuple[int, ...]]]:
        return {"dof": (constraints.positive, ()), "loc": (constraints.real, ()), "scale": (constraints.positive, ())}

    def natural(self, theta: Theta, row: Columns) -> tuple[Any, ...]:
        return 0.5 * theta["dof"], 0.5 * theta["dof"] * theta["scale"] ** 2

    def log_normalizer(self, eta: tuple[Any, ...]) -> Array:
        return gammaln(eta[0]) - eta[0] * jnp.log(eta[1])

    def statistic(self, theta: Theta, row: Columns) -> tuple[Any, ...]:
        return 0.5, 0.5 * (row["x"] - theta["loc"]) ** 2

    def log_base(self, theta: Theta, row: Columns) -> Array:
        return -HALF_LOG_TWO_PI

    def evidence(self, theta: Theta, row: Columns) -> Array:
        a, b = self.natural(theta, row)
        return gamma_evidence(a, b, *self.statistic(theta, row)) - HALF_LOG_TWO_PI

    def arguments(self, theta: Theta) -> dict[str, Any]:
        a, b = self.natural(theta, {})
        return {"concentration": a, "rate": b}

    def derived(self, theta: Theta) -> dict[str, Any]:
        return {"dof": theta["dof"], "scale": theta["scale"], "loc": theta["loc"]}

    def law(self, eta: tuple[Any, ...]) -> SciPyLaw:
        return stats.invgamma(eta[0], scale=eta[1])

    def likelihood(self, local: Any, theta: Theta, columns: Columns) -> SciPyLaw:
        return stats.norm(float(theta["loc"]), np.sqrt(local))

    def predictive_law(self, theta: Theta, columns: Columns) -> SciPyLaw:
        return stats.t(float(theta["dof"]), float(theta["loc"]), float(theta["scale"]))

    def raw(self, theta: Theta, columns: Columns) -> np.ndarray:
        return (columns["x"] - float(theta["loc"])) ** 2

    def row_weight(self, theta: Theta, columns: Columns) -> np.ndarray:
        """(ν + 1)/(ν + z²): what the row counts in the fit of the mean."""
        z = (columns["x"] - float(theta["loc"])) / float(theta["scale"])
        return (float(theta["dof"]) + 1.0) / (float(theta["dof"]) + z**2)

    def start(self, table: Table) -> dict[str, Any]:
        x, w = table.columns["x"], table.weight
        centre, width = _median_and_width(x, w)
        centre = centre if self.loc is None else self.loc
        if not width > 0:
            width = float(np.sqrt(table.mean((x - centre) ** 2)))
        return {"dof": 4.0, "loc": centre, "scale": width / 0.741}

    def classical(self, table: Table) -> ClassicalModel | None:
        x = table.columns["x"]
        loc = float(table.mean(x)) if self.loc is None else float(self.loc)
        off = (x - loc) ** 2
        variance = float(table.mean(off)) if self.scale is None else self.scale**2
        if not variance > (1e-15 * max(abs(loc), 1e-290)) ** 2:
            raise DataError(
                f"all rows hold {float(x[0])!r}, so no scale can be fitted. Fix it (scale=...), or look at where the "
                "data come from."
            )
        z = off / variance
        score = float(table.mean(z**2 / 4 - z / 2 - 0.25))
        scale = float(np.sqrt(variance))
        return ClassicalModel(
            {"loc": loc, "scale": scale}, {"concentration": INF, "rate": INF}, score,
            lambda given, row: -0.5 * ((row["x"] - given["loc"]) / given["scale"]) ** 2
            - jnp.log(given["scale"]) - HALF_LOG_TWO_PI,
            lambda given, columns: stats.norm(float(given["loc"]), float(given["scale"])),
            lambda given, columns: np.asarray(given["scale"]) ** 2,
            {"dof": INF, "scale": scale, "loc": loc},
        )  # fmt: skip

    def caution(self, table: Table, theta: dict[str, Any]) -> str | None:
        x = table.columns["x"]
        # Beside the middle of the rows, which one wild row does not widen; when most rows are equal, beside them all.
        width = _median_and_width(x, table.weight)[1] or float(np.ptp(x))
        if self.scale is None and float(theta["scale"]) < 1e-9 * width:
            values, times = np.unique(x, return_counts=True)
            raise FitError(
                f"the t's scale runs to 0 around {float(theta['loc']):.6g}, where {times.max()} of {len(x)} rows hold "
                f"exactly {float(values[times.argmax()])!r}: the likelihood of a t grows without bound when its centre "
                "sits on rows. Fix dof (such as dof=4.0) or scale, or spread values that were rounded."
            )
        return None


def _median_and_width(x: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """Weighted median and median absolute deviation."""
    if np.all(weight == weight[0]):
        centre = float(np.median(x))
        return centre, float(np.median(np.abs(x - centre)))

    def median(values: np.ndarray) -> float:
        order = np.argsort(values)
        total = np.cumsum(weight[order])
        return float(values[order][np.searchsorted(total, 0.5 * total[-1])])

    centre = median(x)
    return centre, median(np.abs(x - centre))


def _finite_or_none(owner: str, **given: float | None) -> None:
    for name, value in given.items():
        if value is not None and not np.isfinite(value):
            raise ModelError(f"{owner}({name}={value}): {name} is a finite number, or None to fit it.")
