"""What can still be asked of the rows behind a fitted pair? Posteriors, predictions, scores, draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints

from robustly._runtime.precision import in_double_precision
from robustly.conjugate.base import Classical, ConjugatePair
from robustly.conjugate.laws import LocalPosterior, MixedPosterior, PairPredictive, PointMass, StatisticsLaw, Tabulated
from robustly.conjugate.search import Engine, Penalty, classical_evidence, evidence_of
from robustly.conjugate.table import Table, make_table
from robustly.errors import FitError, ModelError, names
from robustly.fit.draws import Draws, Posterior
from robustly.rows.store import over_rows


class PairSource:
    """What can still be asked of the rows behind a fitted pair."""

    lost_hyperprior = False

    def __init__(
        self, engine: Engine, table: Table, penalty: Penalty, vector: np.ndarray, classical: Classical | None = None
    ) -> None:
        self.engine, self.table, self.penalty, self.vector, self.classical = engine, table, penalty, vector, classical
        self.pair = engine.pair
        self.jacobian = np.zeros((0, 0))
        """At the boundary: d estimates / d vector."""
        self.compiled: dict[Any, Any] = {}

    @cached_property
    @in_double_precision
    def theta(self) -> dict[str, Any]:
        assert self.classical is None
        return self.engine.theta(jnp.asarray(self.vector))

    @property
    def free_labels(self) -> list[str]:
        return labels_of(self.classical.values) if self.classical is not None else list(self.engine.parameters.names)

    @property
    def weights_of(self) -> Any:
        """For scale mixtures: how much each row counts in the fit of what is shared, 1 on average for clean rows."""
        if self.classical is not None or not hasattr(self.pair, "row_weight"):
            return None
        theta = {name: np.asarray(value) for name, value in self.theta.items()}
        return lambda: self.table.spread_out(self.pair.row_weight(theta, self.table.columns))  # type: ignore[attr-defined]

    # ------------------------------------------------------------------ rows

    def _read(self, data: Sequence[Any], named: Mapping[str, Any]) -> dict[str, np.ndarray]:
        try:
            columns = self.pair.read(*data, **named)
        except TypeError as error:
            raise ModelError(f"{type(self.pair).__name__}: {str(error).replace('read()', 'this call')}.") from error
        return {name: np.asarray(column, dtype=float) for name, column in columns.items()}

    def _columns(self, data: Sequence[Any], named: Mapping[str, Any]) -> tuple[dict[str, Any], np.ndarray | None]:
        if data or named:
            return self._read(data, named), None
        return {name: np.asarray(column) for name, column in self.table.columns.items()}, self.table.place

    @in_double_precision
    def posterior_of(self, data: Sequence[Any], named: Mapping[str, Any]) -> LocalPosterior:
        columns, place = self._columns(data, named)
        if self.classical is not None:
            n = len(next(iter(columns.values())))
            common = np.asarray(self.classical.common(self.classical.values, columns))
            shape = (n, *common.shape) if common.ndim != 1 or len(common) != n else common.shape
            return LocalPosterior(PointMass(np.broadcast_to(common, shape)), place)
        return self.posterior_at(self.theta, columns, place)

    def posterior_at(self, theta: Any, columns: Mapping[str, Any], place: np.ndarray | None) -> LocalPosterior:
        data = {name: jnp.asarray(column) for name, column in columns.items()}
        eta = jax.vmap(lambda row: _full(self.pair.posterior_natural(theta, row)))(data)
        plain = tuple(np.asarray(part) for part in eta)
        law = self.pair.law(plain)
        if law is None:
            law = _statistics_law(self.pair, eta)
        return LocalPosterior(law, place)

    @in_double_precision
    def integrated(self, data: Sequence[Any], named: Mapping[str, Any]) -> MixedPosterior:
        from robustly.conjugate.uncertain import components

        if self.lost_hyperprior:
            raise FitError("this fit was made with a hyperprior, which files do not keep. Fit the rows again.")
        columns, place = self._columns(data, named)
        found = components(self)
        laws = [self.posterior_at(self.engine.theta(jnp.asarray(v)), columns, None).law for v, _ in found]
        return MixedPosterior(laws, np.array([w for _, w in found]), place)

    def raw(self) -> np.ndarray | None:
        theta = self.classical.values if self.classical is not None else self.theta
        plain = {name: np.asarray(value) for name, value in {**self.pair.fixed, **theta}.items()}
        found = self.pair.raw(plain, {name: np.asarray(c) for name, c in self.table.columns.items()})
        return None if found is None else self.table.spread_out(np.asarray(found))

    @in_double_precision
    def predictive_of(self, data: Sequence[Any], named: Mapping[str, Any]) -> PairPredictive:
        columns = self._read((None, *data), named)
        return PairPredictive(self._law(columns), lambda x: self._log_prob((x, *data), named))

    def _law(self, columns: Mapping[str, Any]) -> Any:
        if self.classical is not None:
            return self.classical.law(self.classical.values, columns)
        plain = {name: np.asarray(value) for name, value in self.theta.items()}
        law = self.pair.predictive_law(plain, columns)
        return Tabulated(self.pair, self.theta, columns, self._observation) if law is None else law

    @property
    def _observation(self) -> str:
        """The column in which rows hold their observations."""
        columns = self.table.columns
        seen = self.pair.observed(columns)
        for name, column in columns.items():
            if seen is column or np.array_equal(seen, column):
                return name
        raise ModelError(
            f"{type(self.pair).__name__} reads its observations into none of the columns {names(columns)} as they are, so "
            "its predictive cannot be tabulated. Give the pair a predictive_law."
        )

    @in_double_precision
    def _log_prob(self, data: Sequence[Any], named: Mapping[str, Any]) -> np.ndarray:
        columns = self._read(data, named)
        if self.classical is not None:
            return classical_evidence(self.classical, columns)
        table = make_table(columns, None)
        return evidence_of(self.engine, table.rows, self.vector)[1]

    # ------------------------------------------------------------------ what the common Fit asks

    @in_double_precision
    def scores(self) -> np.ndarray:
        if self.classical is not None:
            values = {name: jnp.asarray(value, dtype=float) for name, value in self.classical.values.items()}
            data = {name: jnp.asarray(column) for name, column in self.table.columns.items()}
            each = jax.vmap(jax.grad(self.classical.log_prob), (None, 0))(values, data)
            flat = [np.asarray(each[name]).reshape(len(self.table.weight), -1) for name in values]
            return self.table.spread_out(np.concatenate(flat, axis=1) @ self.jacobian)
        _, by_row = over_rows(self.engine.scores, self.table.rows, None, jnp.asarray(self.vector))
        return self.table.spread_out(by_row["score"])

    @in_double_precision
    def evidence_at(self, vectors: np.ndarray) -> np.ndarray:
        return np.stack([self.table.spread_out(evidence_of(self.engine, self.table.rows, v)[1]) for v in vectors])

    @in_double_precision
    def natural_by_name(self, vectors: np.ndarray) -> dict[str, np.ndarray]:
        found = jax.vmap(jax.vmap(self.engine.reported))(jnp.asarray(vectors))
        return {name: np.asarray(value) for name, value in found.items()}

    def integration_error(self) -> float:
        return 0.0

    @in_double_precision
    def tail_probabilities(self) -> np.ndarray:
        """Two-sided: twice the smaller of P(X ≤ x) and P(X ≥ x), by row."""
        columns = {name: np.asarray(column) for name, column in self.table.columns.items()}
        special = getattr(self.pair, "tails", None)
        if special is not None:
            theta = self.theta if self.classical is None else None
            return self.table.spread_out(special(theta, columns, self.classical))
        law, x = self._law(columns), self.pair.observed(columns)
        below = law.cdf(x)
        above = law.sf(x - 1.0) if self.pair.support == "count" else law.sf(x)
        return self.table.spread_out(np.minimum(1.0, 2.0 * np.minimum(below, above)))

    @in_double_precision
    def sample_posterior(self, num_samples: int, key: Any, num_warmup: int, num_chains: int) -> Draws:
        if self.classical is not None:
            raise ModelError("the rows show no heterogeneity, so there is no prior to draw. See fit.confint().")
        from robustly.conjugate.uncertain import log_flat

        parameters = self.engine.parameters
        given = self.penalty.given

        def log_prior(theta: Any) -> Any:
            known = {**self.pair.fixed, **theta}
            known = {**known, **self.pair.arguments(known), **self.pair.derived(known)}
            return log_flat(self, theta) + sum(jnp.sum(p.log_prob(known[name])) for name, p in given.items())

        curve = -_curve(self)
        values, vectors = np.linalg.eigh(curve)
        covariance = (vectors / np.maximum(np.abs(values), 1e-8 * np.abs(values).max())) @ vectors.T
        rows = self.table.rows

        def density(centre: Any, chunks: Any, effort: int) -> Any:
            data, weight, _ = chunks

            def log_density(vector: Any) -> Any:
                each = jax.vmap(lambda part: self.engine._each(vector, part))(data)
                total = jnp.sum(jnp.where(weight > 0, weight * jnp.where(weight > 0, each, 0.0), 0.0))
                return total + log_prior(parameters.natural(vector)) + parameters.log_volume(vector)

            return log_density

        state = np.zeros((len(rows), 0))
        posterior = Posterior(density, parameters.natural, rows, state, self.vector, covariance, self.compiled)
        drawn = posterior.draw(num_samples, num_warmup, num_chains, key)
        return Draws(self.natural_by_name(drawn.vectors), drawn.vectors, drawn.divergences)

    def posterior(self, site: str) -> Any:
        return self.posterior_of((), {})

    def predictive(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self.predictive_of(args, kwargs)

    @in_double_precision
    def edge_interval(self, name: str, level: float) -> tuple[float, float]:
        """Values of an estimate on its edge whose likelihood is at least 1 − level of the best."""
        assert self.classical is not None
        edge, target = float(self.classical.values[name]), np.log1p(-level)
        data = {key: jnp.asarray(column) for key, column in self.table.columns.items()}
        weight = jnp.asarray(self.table.weight)
        log_prob = self.classical.log_prob

        @jax.jit
        def total(value: Any) -> Any:
            values = {**self.classical.values, name: value}  # type: ignore[union-attr]
            return weight @ jax.vmap(lambda row: log_prob(values, row))(data)

        def drop(value: float) -> float:
            return float(total(jnp.asarray(value)))

        best, inside = drop(edge), -1.0 if edge == 1.0 else 1.0
        near, far = 0.0, 1.0 if edge == 1.0 else 1e-6
        while edge == 0.0 and far < 1e12 and drop(edge + far) - best > target:
            far *= 4.0
        for _ in range(80):
            middle = 0.5 * (near + far)
            value = drop(edge + inside * middle) - best
            near, far = (middle, far) if value > target else (near, middle)
        other = edge + inside * far
        return (min(edge, other), max(edge, other))


def labels_of(values: Mapping[str, Any]) -> list[str]:
    """``"rate"``, ``"coef[0]"``, ``"coef[1]"`` …: a name for every number."""
    found = []
    for name, value in values.items():
        shape = np.shape(value)
        found += [name] if shape == () else [f"{name}[{','.join(map(str, i))}]" for i in np.ndindex(*shape)]
    return found


def scale_of(constraint: Any) -> str:
    if constraint is constraints.positive:
        return "positive"
    return "unit" if constraint is constraints.unit_interval else "real"


def _full(eta: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(jnp.asarray(part, dtype=float) for part in eta)


def _curve(source: PairSource) -> np.ndarray:
    sums, _ = over_rows(source.engine.curves, source.table.rows, None, jnp.asarray(source.vector))
    return source.penalty.add_to((sums["value"], sums["slope"], sums["curve"]), jnp.asarray(source.vector))[2]


def _statistics_law(pair: ConjugatePair, eta: Any) -> Any:
    """For a pair that does not name its prior's law: means and deviations of T, by the derivatives of A."""
    mean = jax.vmap(jax.grad(pair.log_normalizer))(eta)
    curve = jax.vmap(jax.hessian(pair.log_normalizer))(eta)
    sd = [np.sqrt(np.asarray(curve[i][i])) for i in range(len(mean)) if np.ndim(mean[i]) == 1]
    return StatisticsLaw(np.stack([np.asarray(m) for m in mean if np.ndim(m) == 1], -1), np.stack(sd, -1))
