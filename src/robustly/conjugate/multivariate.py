"""Normal vectors whose rows differ in their precision matrix: the multivariate Student-t."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import multigammaln
from numpy.typing import ArrayLike
from numpyro.distributions import constraints
from scipy import stats

from robustly.conjugate.base import ClassicalModel, Columns, SciPyLaw, Theta, positive_or_none
from robustly.conjugate.fitting import ConjugatePair
from robustly.conjugate.gammas import log_rising
from robustly.conjugate.normal import HALF_LOG_TWO_PI, INF
from robustly.conjugate.reading import read_matrix
from robustly.errors import DataError, ModelError
from robustly.model import small_cholesky
from robustly.rows.distinct import Table

LARGEST = 10
LOG_TWO = float(np.log(2.0))


@dataclass(frozen=True)
class NormalWishart(ConjugatePair):
    r"""Normal vectors with a precision matrix of their own.

    :math:`\Lambda_i \sim \mathrm{Wishart},\; x_i \sim N(m, \Lambda_i^{-1})`.

    Integrated, a multivariate t with ``fit.dof`` degrees of freedom, location ``fit.loc`` and scale matrix
    ``fit.scale``; the Wishart has ν + p − 1 degrees of freedom, ν = dof, and mean
    :math:`(\nu + p - 1)(\nu\,\mathrm{scale})^{-1}`.
    For p = 1 the same as :class:`NormalInverseGamma`. Up to ten columns. Rows of normal data give the normal back.

    Args:
        dof: fix the degrees of freedom; None fits them.
        loc: fix the centre, a tuple of p numbers; None fits it.
    """

    dof: float | None = None
    loc: tuple[float, ...] | None = None

    local: ClassVar[str] = "precision matrix"
    shared: ClassVar[tuple[str, ...]] = ("loc",)
    support: ClassVar[str] = "vector"
    _known: ClassVar[tuple[str, ...]] = ("dof", "loc")

    def __post_init__(self) -> None:
        positive_or_none("NormalWishart", dof=self.dof)

    def read(self, x: ArrayLike) -> dict[str, np.ndarray]:  # type: ignore[override]
        if x is None:
            return {}
        found = read_matrix("x", x)
        if found.shape[1] > LARGEST:
            raise DataError(f"x has {found.shape[1]} columns; NormalWishart takes up to {LARGEST}. Reduce them first.")
        if self.loc is not None and len(self.loc) != found.shape[1]:
            raise ModelError(f"loc has {len(self.loc)} numbers, but x has {found.shape[1]} columns.")
        return {"x": found}

    def coordinates(self, columns: Columns) -> dict[str, tuple[Any, tuple[int, ...]]]:
        p = np.shape(columns["x"])[1]
        return {
            "dof": (constraints.positive, ()),
            "loc": (constraints.real_vector, (p,)),
            "scale_tril": (constraints.lower_cholesky, (p, p)),
        }

    def natural(self, theta: Theta, row: Columns) -> tuple[Any, ...]:
        lower = theta["scale_tril"]
        return theta["dof"] + lower.shape[0] - 1.0, theta["dof"] * (lower @ lower.T)

    def log_normalizer(self, eta: tuple[Any, ...]) -> Array:
        df, rate = eta
        p = rate.shape[-1]
        log_det = 2.0 * small_cholesky.half_log_det(small_cholesky.cholesky(rate, p), p)
        return multigammaln(0.5 * df, p) + 0.5 * df * (p * LOG_TWO - log_det)

    def statistic(self, theta: Theta, row: Columns) -> tuple[Any, ...]:
        off = row["x"] - theta["loc"]
        return 1.0, jnp.outer(off, off)

    def log_base(self, theta: Theta, row: Columns) -> Array:
        return -row["x"].shape[0] * HALF_LOG_TWO_PI

    def evidence(self, theta: Theta, row: Columns) -> Array:
        lower, dof = theta["scale_tril"], theta["dof"]
        p = lower.shape[0]
        z = _forward(lower, row["x"] - theta["loc"], p)
        half_log_det = jnp.sum(jnp.log(jnp.diagonal(lower)))
        start = log_rising(0.5 * dof, 0.5 * p) - 0.5 * p * jnp.log(0.5 * dof) - p * HALF_LOG_TWO_PI
        return start - half_log_det - 0.5 * (dof + p) * jnp.log1p(jnp.dot(z, z) / dof)

    def arguments(self, theta: Theta) -> dict[str, Any]:
        df, rate = self.natural(theta, {})
        return {"df": df, "rate_matrix": rate}

    def derived(self, theta: Theta) -> dict[str, Any]:
        lower = theta["scale_tril"]
        return {"dof": theta["dof"], "scale": lower @ lower.T}

    def law(self, eta: tuple[Any, ...]) -> SciPyLaw:
        return WishartLaw(*eta)

    def likelihood(self, local: Any, theta: Theta, columns: Columns) -> SciPyLaw:
        return stats.multivariate_normal(np.asarray(theta["loc"]), np.linalg.inv(local))

    def predictive_law(self, theta: Theta, columns: Columns) -> SciPyLaw:
        lower = np.asarray(theta["scale_tril"])
        return VectorStudent(float(theta["dof"]), np.asarray(theta["loc"]), lower @ lower.T)

    def row_weight(self, theta: Theta, columns: Columns) -> np.ndarray:
        """(ν + p)/(ν + d²): what the row counts in the fit of the centre."""
        d2 = _distances(columns["x"], np.asarray(theta["loc"]), np.asarray(theta["scale_tril"]))
        return (float(theta["dof"]) + columns["x"].shape[1]) / (float(theta["dof"]) + d2)

    def tails(self, theta: Theta | None, columns: Columns, classical: ClassicalModel | None) -> np.ndarray:
        """How probable a row at least as far from the centre is."""
        x = columns["x"]
        p = x.shape[1]
        if theta is None:
            assert classical is not None
            scale = np.linalg.cholesky(np.asarray(classical.values["scale"]))
            return stats.chi2(p).sf(_distances(x, np.asarray(classical.values["loc"]), scale))
        return stats.f(p, float(theta["dof"])).sf(
            _distances(x, np.asarray(theta["loc"]), np.asarray(theta["scale_tril"])) / p
        )

    def start(self, table: Table) -> dict[str, Any]:
        # A few reweighted means and covariances at 4 degrees of freedom: EM for the t, which outliers do not carry off.
        x, dof = table.columns["x"], 4.0 if self.dof is None else self.dof
        p = x.shape[1]
        loc = np.median(x, axis=0) if self.loc is None else np.asarray(self.loc, dtype=float)
        scale = np.diag(np.maximum(np.median(np.abs(x - loc), axis=0) ** 2, 1e-6 * x.var(axis=0)))
        for _ in range(12):
            weight = table.weight * (dof + p) / (dof + _distances(x, loc, np.linalg.cholesky(scale)))
            loc = weight @ x / weight.sum() if self.loc is None else loc
            scale = (x - loc).T @ ((x - loc) * weight[:, None]) / table.total
        return {"dof": dof, "loc": loc, "scale_tril": np.linalg.cholesky(scale)}

    def classical(self, table: Table) -> ClassicalModel | None:
        x = table.columns["x"]
        p = x.shape[1]
        loc = table.mean(x) if self.loc is None else np.asarray(self.loc, dtype=float)
        scale = (x - loc).T @ ((x - loc) * table.weight[:, None]) / table.total
        sd = np.sqrt(np.diag(scale))
        flat = np.flatnonzero(sd <= 1e-14 * np.abs(loc) + 1e-290)
        if flat.size:
            raise DataError(f"column {flat[0]} of x holds one value only, so it has no scale. Drop that column.")
        if np.linalg.eigvalsh(scale / np.outer(sd, sd)).min() < 1e-12:
            raise DataError(
                f"the {p} columns of x are linearly dependent over these {len(x)} rows, so their covariance has no "
                "inverse. Drop a column or add rows."
            )
        d2 = _distances(x, loc, np.linalg.cholesky(scale))
        score = float(table.mean(d2**2 / 4 - p * d2 / 2 + p * (p - 2) / 4))
        return ClassicalModel(
            {"loc": loc, "scale": scale}, {"df": INF, "rate_matrix": np.full((p, p), INF)}, score, _log_vector_normal,
            lambda given, columns: VectorStudent(INF, np.asarray(given["loc"]), np.asarray(given["scale"])),
            lambda given, columns: np.linalg.inv(np.asarray(given["scale"])), {"dof": INF, "scale": scale},
        )  # fmt: skip

    def boundary_shape(self, table: Table, classical: ClassicalModel) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Centre and lower triangle of the covariance: the free numbers of a normal, and their information."""
        loc, scale = np.asarray(classical.values["loc"]), np.asarray(classical.values["scale"])
        p = len(loc)
        lower = np.tril_indices(p)
        doubled = np.zeros((p * p, len(lower[0])))
        doubled[lower[0] * p + lower[1], np.arange(len(lower[0]))] = 1.0
        doubled[lower[1] * p + lower[0], np.arange(len(lower[0]))] = 1.0
        precision = np.linalg.inv(scale)
        curve_scale = -0.5 * table.total * doubled.T @ np.kron(precision, precision) @ doubled
        if self.loc is not None:
            return scale[lower], np.vstack([np.zeros((p, len(lower[0]))), doubled]), curve_scale
        zeros = np.zeros((p, len(lower[0])))
        jacobian = np.block([[np.eye(p), zeros], [np.zeros((p * p, p)), doubled]])
        curve = np.block([[-table.total * precision, zeros], [zeros.T, curve_scale]])
        return np.concatenate([loc, scale[lower]]), jacobian, curve


def _log_vector_normal(values: Theta, row: Columns) -> Array:
    p = row["x"].shape[0]
    lower = small_cholesky.cholesky(values["scale"], p)
    off = row["x"] - values["loc"]
    quadratic = jnp.dot(off, small_cholesky.solve(lower, off, p))
    return -0.5 * quadratic - small_cholesky.half_log_det(lower, p) - p * HALF_LOG_TWO_PI


def _forward(lower: Any, vector: Array, p: int) -> Any:
    """Solve ``L z = vector``, written out so that rows fuse."""
    found: list[Any] = []
    for i in range(p):
        rest = vector[i]
        for k in range(i):
            rest = rest - lower[i, k] * found[k]
        found.append(rest / lower[i, i])
    return jnp.stack(found)


def _distances(x: np.ndarray, loc: np.ndarray, lower: np.ndarray) -> np.ndarray:
    from scipy.linalg import solve_triangular

    return np.sum(solve_triangular(lower, (np.asarray(x) - loc).T, lower=True) ** 2, axis=0)


class WishartLaw:
    """Wishart laws by row, in df and the inverse of the scale matrix: means, deviations and draws."""

    def __init__(self, df: np.ndarray, rate: np.ndarray) -> None:
        self.df, self.scale = np.asarray(df), np.linalg.inv(rate)

    def mean(self) -> np.ndarray:
        return self.df[..., None, None] * self.scale

    def std(self) -> np.ndarray:
        diagonal = np.diagonal(self.scale, axis1=-2, axis2=-1)
        return np.sqrt(self.df[..., None, None] * (self.scale**2 + diagonal[..., :, None] * diagonal[..., None, :]))

    def logpdf(self, value: np.ndarray) -> np.ndarray:
        pairs = zip(np.atleast_1d(self.df), np.reshape(self.scale, (-1, *self.scale.shape[-2:])))
        return np.array([stats.wishart(df, scale).logpdf(value) for df, scale in pairs])

    def ppf(self, level: float) -> np.ndarray:
        raise ModelError("a precision matrix has no quantiles. Use posterior().mean, .sd or .sample().")

    def rvs(self, size: tuple[int, ...], random_state: np.random.Generator) -> np.ndarray:
        lower = np.linalg.cholesky(self.scale)
        p = lower.shape[-1]
        # Bartlett's decomposition.
        draw = np.tril(random_state.normal(size=size), -1)
        for i in range(p):
            draw[..., i, i] = np.sqrt(random_state.chisquare(np.broadcast_to(self.df - i, size[:-2])))
        factor = lower @ draw
        return factor @ np.swapaxes(factor, -1, -2)


class VectorStudent:
    """A multivariate t (normal at infinite dof) as one new row; quantiles and deviations are by column."""

    def __init__(self, dof: float, loc: np.ndarray, scale: np.ndarray) -> None:
        self.dof, self.loc, self.scale = dof, loc, scale
        sd = np.sqrt(np.diag(scale))
        self.column = stats.norm(loc, sd) if np.isinf(dof) else stats.t(dof, loc, sd)

    def mean(self) -> np.ndarray:
        return self.column.mean()[None]

    def std(self) -> np.ndarray:
        return self.column.std()[None]

    def ppf(self, level: float) -> np.ndarray:
        return self.column.ppf(level)[None]

    def cdf(self, x: ArrayLike) -> np.ndarray:
        return self.column.cdf(x)

    def rvs(self, size: tuple[int, ...], random_state: np.random.Generator) -> np.ndarray:
        normal = random_state.normal(size=size) @ np.linalg.cholesky(self.scale).T
        if np.isinf(self.dof):
            return self.loc + normal
        return self.loc + normal / np.sqrt(random_state.chisquare(self.dof, size=size[:-1]) / self.dof)[..., None]
