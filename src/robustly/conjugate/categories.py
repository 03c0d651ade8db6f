"""Counts over categories, each row with shares of its own: the Dirichlet-multinomial (Pólya) law."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import gammaln, xlogy
from numpy.typing import ArrayLike
from numpyro.distributions import constraints
from scipy import sparse, stats

from robustly._runtime.precision import in_double_precision
from robustly.conjugate.base import ClassicalModel, Columns, SciPyLaw, Theta
from robustly.conjugate.fitting import ConjugatePair, fit_pair
from robustly.conjugate.gammas import log_rising
from robustly.conjugate.normal import INF
from robustly.conjugate.polya import Polya, SparseColumn
from robustly.conjugate.problem import PairProblem, Penalty, classical_value, model_of, noise
from robustly.conjugate.reading import read_counts, read_matrix
from robustly.conjugate.result import boundary_fit, interior_fit
from robustly.conjugate.shares import DirichletLaw, PolyaLaw, PureRows
from robustly.errors import DataError, ModelError, SupportError
from robustly.fit.outcome import warn_unless_converged
from robustly.result.fit import Fit
from robustly.rows.arrays import read_weights
from robustly.rows.distinct import Table


@dataclass(frozen=True)
class DirichletMultinomial(ConjugatePair):
    r"""Counts over categories with shares of their own.

    :math:`p_i \sim \mathrm{Dirichlet}(\alpha),\; x_i \sim \mathrm{Multinomial}(n_i, p_i)`.

    Words in documents, alleles in populations, species in samples: counts that come in bursts. If rows do not differ,
    the concentrations run to infinity and `fit` returns the multinomial and says so. A category that no row shows has
    no best concentration above 0: it is held at `floor`, and a note says which.

    Args:
        floor: the concentration of a category that never occurs.
    """

    floor: float = 1e-6

    local: ClassVar[str] = "shares"
    support: ClassVar[str] = "vector"

    def __post_init__(self) -> None:
        if not 0 < self.floor < 1:
            raise ModelError(f"DirichletMultinomial(floor={self.floor}): floor lies between 0 and 1.")

    def fit(  # type: ignore[override]
        self,
        counts: ArrayLike,
        *,
        method: str = "direct",
        weights: ArrayLike | None = None,
        hyperprior: Mapping[str, Any] | None = None,
    ) -> Fit:
        """Fit the concentrations.

        Args:
            counts: whole numbers from 0, shape (rows, categories); a NumPy array, a frame, or a scipy sparse matrix.
            method, weights, hyperprior: as in :meth:`BetaBinomial.fit`; ``hyperprior={"concentration": ...}`` or
                ``method="em"`` use the general search, which suits up to a few hundred categories.
        """
        if counts is None:
            raise DataError("DirichletMultinomial has nothing to fit: counts are None. Give one row of counts a row.")
        column = self.read(counts)["counts"]
        return self._search(column, method, weights, hyperprior)

    @in_double_precision
    def _search(self, column: Any, method: str, weights: ArrayLike | None, hyperprior: Any) -> Fit:
        weight = read_weights(weights, len(column))
        table = Table({"counts": column}, weight, None, weight)
        if method != "direct" or hyperprior:
            return fit_pair(self, table, method, hyperprior)
        model = model_of(self, table.columns)
        problem = PairProblem(model, table, Penalty(model, None))
        classical = self.classical(table)
        polya = Polya(column, weight, self.floor)
        if classical.why:
            return boundary_fit(problem, classical, classical.why, 1)
        optimum = polya.climb(self.start(table)["concentration"], short=classical.score <= 0)
        below = classical_value(classical, table)
        if optimum.value <= below + noise(below):
            return boundary_fit(problem, classical, "", len(optimum.history))
        if classical.score <= 0:
            optimum = polya.climb(np.exp(optimum.vector), short=False)
        fit = interior_fit(problem, optimum)
        warn_unless_converged(fit.outcome)
        return fit

    def read(self, counts: ArrayLike, trials: ArrayLike | None = None) -> dict[str, Any]:
        if counts is None:
            given = [1] if trials is None else np.atleast_1d(trials)
            return {"trials": read_counts("trials", given, what="trials")}
        column: Any
        if sparse.issparse(counts):
            column = SparseColumn(counts)
            values, width = column.matrix.data, column.shape[1]
            bad = ~np.isfinite(values) | (values < 0) | (values != np.floor(values)) | (values > 2.0**53)
            if bad.any():
                row = int(np.searchsorted(column.matrix.indptr, np.flatnonzero(bad)[0], side="right")) - 1
                raise SupportError(f"counts hold {values[bad][0]} in row {row}, but counts are whole numbers from 0.")
            column.matrix.eliminate_zeros()
            total = values.sum()
        else:
            column = read_matrix("counts", counts)
            width = column.shape[1]
            bad = np.argwhere((column < 0) | (column != np.floor(column)) | (column > 2.0**53))
            if len(bad):
                row, place = bad[0]
                raise SupportError(
                    f"counts hold {column[row, place]} in row {row}, column {place}, but counts are whole numbers "
                    "from 0 to 2**53. Correct or drop that row."
                )
            total = column.sum()
        if len(column) == 0:
            raise DataError("there are no rows to fit: the data are empty.")
        if width < 2:
            raise DataError("counts have one column, but shares need at least two categories.")
        if total == 0:
            raise DataError("all counts are 0, so they say nothing about shares. Check the table.")
        return {"counts": column}

    def coordinates(self, columns: Columns) -> dict[str, tuple[Any, tuple[int, ...]]]:
        return {"concentration": (constraints.positive, (columns["counts"].shape[1],))}

    def natural(self, theta: Theta, row: Columns) -> tuple[Any, ...]:
        return (theta["concentration"],)

    def log_normalizer(self, eta: tuple[Any, ...]) -> Array:
        return jnp.sum(gammaln(eta[0])) - gammaln(jnp.sum(eta[0]))

    def statistic(self, theta: Theta, row: Columns) -> tuple[Any, ...]:
        return (row["counts"],)

    def log_base(self, theta: Theta, row: Columns) -> Array:
        return gammaln(jnp.sum(row["counts"]) + 1.0) - jnp.sum(gammaln(row["counts"] + 1.0))

    def evidence(self, theta: Theta, row: Columns) -> Array:
        alpha, x = theta["concentration"], row["counts"]
        return jnp.sum(log_rising(alpha, x)) - log_rising(jnp.sum(alpha), jnp.sum(x)) + self.log_base(theta, row)

    def derived(self, theta: Theta) -> dict[str, Any]:
        total = jnp.sum(theta["concentration"])
        return {"total": total, "mean": theta["concentration"] / total}

    def law(self, eta: tuple[Any, ...]) -> SciPyLaw:
        return DirichletLaw(eta[0])

    def likelihood(self, local: Any, theta: Theta, columns: Columns) -> SciPyLaw:
        return stats.multinomial(np.sum(columns["counts"], axis=-1), local)

    def predictive_law(self, theta: Theta, columns: Columns) -> SciPyLaw:
        return PolyaLaw(columns["trials"], np.asarray(theta["concentration"]))

    def raw(self, theta: Theta, columns: Columns) -> np.ndarray:
        total = columns["counts"].sum(axis=1, keepdims=True)
        return columns["counts"] / np.maximum(total, 1.0)

    def tails(self, theta: Theta | None, columns: Columns, classical: ClassicalModel | None) -> np.ndarray:
        raise ModelError("counts over categories have no single tail. Look at fit.surprise, or test one column.")

    def start(self, table: Table) -> dict[str, Any]:
        mean, _, over, room = _moments(table)
        rho = over / room if room > 0 else 0.0
        size = 1.0 / rho - 1.0 if 1e-7 < rho < 0.98 else 0.02 if rho >= 0.98 else 100.0
        return {"concentration": np.maximum(np.clip(size, 1e-3, 1e7) * mean, self.floor)}

    def classical(self, table: Table) -> ClassicalModel:
        mean, _, over, room = _moments(table)
        why = ""
        if room == 0:
            why = (
                "no row counts more than one thing, which carries no information on heterogeneity: the multinomial is "
                "returned."
            )
        elif np.sum(mean > 0) == 1:
            why = f"only category {int(np.argmax(mean))} occurs: no heterogeneity can be seen, and its share is 1."
        elif _one_category(table):
            return self._pure_rows(table)
        return ClassicalModel(
            {"mean": mean}, {"concentration": np.where(mean > 0, INF, 0.0)}, over / room if room > 0 else 0.0,
            lambda values, row: jnp.sum(xlogy(row["counts"], values["mean"])) + self.log_base({}, row),
            lambda values, columns: PolyaLaw(columns["trials"], np.asarray(values["mean"]), limit=True),
            lambda values, columns: np.asarray(values["mean"]), {"total": INF, "mean": mean}, why,
        )  # fmt: skip

    def _pure_rows(self, table: Table) -> ClassicalModel:
        """The other end: concentrations of 0, where every row shows a single category."""
        column = table.columns["counts"]
        shown = column.matrix > 0 if isinstance(column, SparseColumn) else column > 0
        rows = np.asarray(table.weight @ shown, dtype=float)
        mean = rows / rows.sum()
        return ClassicalModel(
            {"mean": mean}, {"concentration": np.zeros(len(mean))}, 0.0,
            lambda values, row: jnp.sum(xlogy(jnp.minimum(row["counts"], 1.0), values["mean"])),
            lambda values, columns: PureRows(columns["trials"], np.asarray(values["mean"])),
            lambda values, columns: self.raw({}, columns), {"total": 0.0, "mean": mean},
            "every row shows a single category: the heterogeneity is as large as it can be, and rows of one category, "
            "drawn with fixed shares, are returned.",
        )  # fmt: skip

    def boundary_shape(self, table: Table, classical: ClassicalModel) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Free logits of the shares that occur: the shares themselves add up to one and are not free."""
        mean = np.asarray(classical.values["mean"])
        seen = np.flatnonzero(mean > 0)
        free = mean[seen[:-1]]
        jacobian = np.zeros((len(mean), len(free)))
        jacobian[seen] = np.vstack([np.diag(free), np.zeros(len(free))]) - np.outer(mean[seen], free)
        # Shares are estimated from all things counted, or, when rows show one category each, from rows.
        total = (
            _moments(table)[1] if classical.derived["total"] > 0 else float(table.weight @ _sizes(table).astype(bool))
        )
        curve = -total * (np.diag(free) - np.outer(free, free))
        return np.log(free / mean[seen[-1]]), jacobian, curve

    def caution(self, table: Table, theta: dict[str, Any]) -> str | None:
        never = np.flatnonzero(_moments(table)[0] == 0)
        if not never.size:
            return None
        listed = ", ".join(map(str, never[:10])) + (" …" if never.size > 10 else "")
        return (
            f"{never.size} of {len(theta['concentration'])} categories never occur (column {listed}); their best "
            f"concentration is 0, and they are held at the floor of {self.floor:g}."
        )


def _sizes(table: Table) -> np.ndarray:
    column = table.columns["counts"]
    return np.asarray((column.matrix if isinstance(column, SparseColumn) else column).sum(axis=1)).ravel()


def _one_category(table: Table) -> bool:
    column = table.columns["counts"]
    if isinstance(column, SparseColumn):
        return bool(np.all(np.diff(column.matrix.indptr) <= 1))
    return bool(np.all(np.sum(column > 0, axis=1) <= 1))


def _moments(table: Table) -> tuple[np.ndarray, float, float, float]:
    """Pooled shares, the grand total, and how much more alike the things of a row are than by chance."""
    column, w = table.columns["counts"], table.weight
    plain: Any = column.matrix if isinstance(column, SparseColumn) else column
    sums = np.asarray(w @ plain)
    total = float(sums.sum())
    mean = sums / total
    inverse = np.divide(1.0, mean, out=np.zeros_like(mean), where=mean > 0)
    n = np.asarray(plain.sum(axis=1)).ravel()
    pairs = np.asarray(w @ (plain * (plain - 1.0) if not sparse.issparse(plain) else plain.multiply(plain) - plain))
    room = float(w @ (n * (n - 1.0))) * max(int(np.sum(mean > 0)) - 1, 1)
    return mean, total, float(pairs @ inverse) - float(w @ (n * (n - 1.0))), room
