"""What did a fitted pair find? The prior, each row's posterior beside its raw estimate, predictions, and how sure."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from numpyro.distributions import constraints

from robustly import persist
from robustly.conjugate.base import Classical, ConjugatePair
from robustly.conjugate.laws import LocalPosterior, MixedPosterior, PairPredictive, PointMass, Tabulated
from robustly.conjugate.search import Engine, Penalty, classical_evidence, engine_of, evidence_of
from robustly.conjugate.table import Table, make_table
from robustly.errors import FitError, ModelError, PersistError
from robustly.fit.newton import Optimum
from robustly.fit.outcome import Outcome
from robustly.fit.result import Fit
from robustly.fit.uncertainty import Draws, nuts
from robustly.precision import in_double_precision
from robustly.rows.reduce import over_rows


@dataclass(eq=False)
class ConjugateFit(Fit):
    """A fitted pair.

    ``hyperparameters`` holds the prior's arguments flat by name (``fit.hyperparameters["concentration"]``), ``shared``
    what all rows have in common; other names of the same things (``fit.dof``, ``fit.scale``, ``fit.mean``) are in
    ``derived`` and can be read as attributes. At the boundary of no heterogeneity ``hyperparameters`` are limits
    (infinite or 0), and ``shared`` holds the classical model's estimates.
    """

    pair: ConjugatePair = None  # type: ignore[assignment]
    bounds: dict[str, Any] = field(default_factory=dict)
    """At the boundary: what the prior's arguments tend to."""
    derived: dict[str, Any] = field(default_factory=dict)
    scales: dict[str, str] = field(default_factory=dict, repr=False)
    derived_jacobian: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)), repr=False)

    @cached_property
    def hyperparameters(self) -> dict[str, Any]:  # type: ignore[override]
        """The fitted prior's arguments by name; limits when the rows do not differ."""
        if self.bounds:
            return dict(self.bounds)
        return {name: value for name, value in self.parameters.items() if name not in self.pair.shared}

    @cached_property
    def shared(self) -> dict[str, Any]:
        """What all rows have in common: at the boundary, all of the classical model."""
        if self.bounds:
            return dict(self.parameters)
        return {name: value for name, value in self.parameters.items() if name in self.pair.shared}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            derived = self.__dict__.get("derived", {})
            if name in derived:
                return derived[name]
        raise AttributeError(f"'{type(self).__name__}' has no attribute '{name}'")

    # ------------------------------------------------------------------ uncertainty

    def confint(self, level: float = 0.95, kind: str = "information") -> dict[str, tuple[Any, Any]]:
        """Intervals for every fitted number and its other names, by label.

        Positive values get theirs on the log scale and shares on the logit scale, so they stay inside. An estimate on
        the edge of what is possible (a rate of 0) gets the values whose likelihood is at least 1 − level of the best.
        """
        from scipy.stats import norm

        reach = norm.ppf(0.5 + level / 2)
        free = self._free_covariance(kind)
        found: dict[str, tuple[Any, Any]] = {}
        parts = [(self.parameters, self.jacobian)]
        if not self.bounds:
            more = {name: value for name, value in self.derived.items() if name not in self.parameters}
            kept = [label.split("[")[0] in more for label in labels_of(self.derived)]
            parts.append((more, self.derived_jacobian[kept]))
        for values, jacobian in parts:
            flat = _flat(values)
            error = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", jacobian, free, jacobian), 0.0))
            for label, value, half in zip(labels_of(values), flat, reach * error):
                found[label] = _interval(float(value), float(half), self.scales.get(label.split("[")[0], "positive"))
        source = self.source
        if isinstance(source, PairSource) and source.classical is not None:
            for name in source.classical.edge:
                found[name] = source.edge_interval(name, level)
        return found

    @property
    def _free_labels(self) -> list[str]:
        return list(self._pair_source("labels").free_labels) if self.source is not None else self.labels

    # ------------------------------------------------------------------ rows

    def posterior(self, *data: Any, **companions: Any) -> Any:
        """Each row's posterior with the fitted prior plugged in: ``mean``, ``sd``, ``quantile``, ``interval``, draws.

        Without arguments for the fitted rows, else for the rows given, in the order `fit` takes them. Its intervals
        treat the prior as known and are too short when there are few rows; see :meth:`integrated_posterior`.
        """
        return self._pair_source("posterior").posterior_of(data, companions)

    def integrated_posterior(self, *data: Any, **companions: Any) -> MixedPosterior:
        """Each row's posterior averaged over what the data leave open about the prior.

        A hyperprior that is flat in the variance of the locals is integrated on a grid, and the other hyperparameters by
        Laplace's method, so that it also works where the best spread is 0. Its intervals are the honest ones.
        """
        return self._pair_source("integrated_posterior").integrated(data, companions)

    def row_intervals(self, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Empirical-Bayes intervals for the rows' own values that account for the uncertainty of the prior."""
        return self.integrated_posterior().interval(level)

    @cached_property
    def shrinkage(self) -> pd.DataFrame:
        """Every row's raw estimate, and its posterior mean and standard deviation."""
        source = self._pair_source("shrinkage")
        posterior = self.posterior()
        raw = source.raw()
        if raw is None or np.ndim(posterior.mean) != 1:
            raise ModelError(
                f"{type(self.pair).__name__} has no single number a row to shrink. Use posterior().mean instead."
            )
        frame = {"raw": raw, "mean": posterior.mean, "sd": posterior.sd}
        if source.weights_of is not None:
            frame["weight"] = source.weights_of()
        return pd.DataFrame(frame)

    def predictive(self, *companions: Any, **named: Any) -> PairPredictive:
        """The distribution of new rows: ``mean``, ``sd``, ``quantile``, ``interval``, ``cdf``, ``log_prob``, draws.

        Takes what stands beside an observation (exposure, trials, variances, design), one entry a new row.
        """
        return self._pair_source("predictive").predictive_of(companions, named)

    def _pair_source(self, what: str) -> PairSource:
        source = self._need(what)
        assert isinstance(source, PairSource)
        return source

    # ------------------------------------------------------------------ telling

    def summary(self) -> Any:
        """A table of estimates with standard errors and intervals, and how the fit ended; prints as text or HTML."""
        found = super().summary()
        for name, value in self.derived.items():
            if np.ndim(value) == 0:
                found.heading[name] = f"{float(value):.4g}"
        return found

    def __repr__(self) -> str:
        inner = ", ".join(f"{n} {float(v):.4g}" for n, v in self.hyperparameters.items() if np.ndim(v) == 0)
        return (
            f"<{type(self.pair).__name__} fit of {len(self.evidence)} rows: {inner}; log likelihood "
            f"{self.log_likelihood:.4f}, {self.outcome.kind}>"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fit and its rows to one file; read it with ``rb.load``."""
        source = self._pair_source("save")
        options = {f.name: getattr(self.pair, f.name) for f in dataclasses.fields(self.pair)}  # type: ignore[arg-type]
        meta = {
            "pair": type(self.pair).__name__,
            "options": options,
            "objective": self.objective,
            "outcome": [self.outcome.kind, self.outcome.text, self.outcome.steps],
            "history": self.history,
            "notes": list(self.notes),
            "had_hyperprior": bool(source.penalty.given) or source.lost_hyperprior,
        }
        arrays = {f"column:{name}": source.table.spread_out(np.asarray(c)) for name, c in source.table.columns.items()}
        arrays |= {"vector": self.vector, "curve": self.curve, "weight": self.weight}
        persist.write(path, "conjugate", meta, arrays)


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
        return Tabulated(self.pair, self.theta, columns) if law is None else law

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
        passes: Any = SimpleNamespace(
            model=SimpleNamespace(parameters=parameters, log_hyperprior=lambda theta: jnp.zeros(())),
            _settle=lambda vector, data, state: state,
            _evidences=lambda vector, data, state: (self.engine._each(vector, data), None),
        )
        given = self.penalty.given

        def log_prior(theta: Any) -> Any:
            known = {**self.pair.fixed, **theta}
            known = {**known, **self.pair.arguments(known), **self.pair.derived(known)}
            return log_flat(self, theta) + sum(jnp.sum(p.log_prob(known[name])) for name, p in given.items())

        curve = -_curve(self)
        values, vectors = np.linalg.eigh(curve)
        covariance = (vectors / np.maximum(np.abs(values), 1e-8 * np.abs(values).max())) @ vectors.T
        rows = self.table.rows
        drawn = nuts(
            passes, rows, np.zeros((len(rows), 0)), self.vector, covariance, log_prior, num_samples, num_warmup,
            num_chains, key, self.compiled,
        )  # fmt: skip
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

        def drop(value: float) -> float:
            values = {**self.classical.values, name: jnp.asarray(value)}  # type: ignore[union-attr]
            return float(weight @ jax.vmap(lambda row: log_prob(values, row))(data))

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


# ---------------------------------------------------------------------------------------------------- making


def interior_fit(engine: Engine, table: Table, penalty: Penalty, optimum: Optimum) -> ConjugateFit:
    """A result from where a search ended."""
    x = jnp.asarray(optimum.vector)
    source = PairSource(engine, table, penalty, optimum.vector)
    theta = engine.theta(x)
    derived = lambda v: engine.pair.derived(engine.theta(v))  # noqa: E731
    note = engine.pair.settle(table, {name: np.asarray(value) for name, value in theta.items()})
    reported = engine.reported(x)
    coordinates = engine.pair.coordinates(table.columns)
    return ConjugateFit(
        parameters={name: np.asarray(value)[()] for name, value in reported.items()},
        labels=labels_of(reported),
        vector=optimum.vector,
        jacobian=_jacobian(engine.reported, x),
        curve=optimum.curve,
        objective=optimum.value,
        evidence=table.spread_out(evidence_of(engine, table.rows, x)[1]),
        weight=table.row_weight,
        outcome=optimum.outcome,
        history=optimum.history,
        notes=() if note is None else (note,),
        elementwise=False,
        source=source,
        pair=engine.pair,
        derived={name: np.asarray(value)[()] for name, value in derived(x).items()},
        derived_jacobian=_jacobian(derived, x),
        scales={name: _scale(constraint) for name, (constraint, _) in coordinates.items()},
    )


def boundary_fit(engine: Engine, table: Table, classical: Classical, why: str, steps: int) -> ConjugateFit:
    """The classical model as a result."""
    pair = engine.pair
    text = why or (
        f"the rows show no heterogeneity in the {pair.local}, so the classical model is returned, with one value for "
        "all rows."
    )
    values = {name: jnp.asarray(value, dtype=float) for name, value in classical.values.items()}
    data = {name: jnp.asarray(column) for name, column in table.columns.items()}
    weight = jnp.asarray(table.weight)
    free = [name for name in values if name not in (*classical.edge, *classical.given) and name not in pair.fixed]

    def flat(chosen: Mapping[str, Any]) -> Any:
        return jnp.concatenate([jnp.reshape(chosen[name], -1) for name in free]) if free else jnp.zeros(0)

    def unflat(vector: Any) -> dict[str, Any]:
        found, place = dict(values), 0
        for name in free:
            size = values[name].size
            found[name] = vector[place : place + size].reshape(values[name].shape)
            place += size
        return found

    def total(vector: Any) -> Any:
        there = unflat(vector)
        return jnp.dot(weight, jax.vmap(lambda row: classical.log_prob(there, row))(data))

    x = flat(values)
    everything = lambda v: unflat(v)  # noqa: E731
    evidence = classical_evidence(classical, table.columns)
    value = float(table.weight @ evidence)
    entry = {"pass": steps, "value": value, "expected_gain": 0.0, "step": 0.0}
    if hasattr(pair, "boundary_shape"):
        at, jacobian, curve = pair.boundary_shape(table, classical)
    else:
        at, jacobian = np.asarray(x), _jacobian(everything, x)
        curve = np.asarray(jax.hessian(total)(x)) if free else np.zeros((0, 0))
    source = PairSource(engine, table, Penalty(engine, None), at, classical)
    source.jacobian = jacobian
    return ConjugateFit(
        parameters={name: np.asarray(v)[()] for name, v in values.items()},
        labels=labels_of(values),
        vector=at,
        jacobian=jacobian,
        curve=curve,
        objective=value,
        evidence=table.spread_out(evidence),
        weight=table.row_weight,
        outcome=Outcome("boundary", text, steps),
        history=[entry],
        notes=(text,),
        elementwise=False,
        source=source,
        pair=pair,
        bounds=classical.limits,
        derived={name: np.asarray(v)[()] for name, v in classical.derived.items()},
        derived_jacobian=np.zeros((len(_flat(classical.derived)), len(at))),
        scales={name: "real" if name in ("loc", "coef") else "positive" for name in values},
    )


def from_saved(meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray], model: Any = None) -> ConjugateFit:
    """A fitted pair as :meth:`ConjugateFit.save` wrote it; a pair of your own is given as ``model=``."""
    import robustly.conjugate as home

    if model is None:
        kind = getattr(home, meta["pair"], None) if meta["pair"] in home.__all__ else None
        if not (isinstance(kind, type) and issubclass(kind, ConjugatePair)):
            raise PersistError(
                f'this is a fit of the pair "{meta["pair"]}", which is not part of robustly. Read it with '
                "rb.load(path, model=YourPair())."
            )
        options = {name: tuple(v) if isinstance(v, list) else v for name, v in meta["options"].items()}
        model = kind(**options)
    columns = {name.removeprefix("column:"): array for name, array in arrays.items() if name.startswith("column:")}
    return _rebuilt(model, columns, meta, arrays)


@in_double_precision
def _rebuilt(
    pair: ConjugatePair, columns: dict[str, np.ndarray], meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> ConjugateFit:
    table = make_table(columns, arrays["weight"])
    engine = engine_of(pair, table.columns)
    outcome = Outcome(*meta["outcome"])
    if outcome.kind == "boundary":
        classical = pair.classical(table)
        if classical is None:
            raise PersistError(f"{type(pair).__name__} has no classical model, but the saved fit is one.")
        return boundary_fit(engine, table, classical, outcome.text, outcome.steps)
    vector = arrays["vector"]
    optimum = Optimum(vector, meta["objective"], np.zeros_like(vector), arrays["curve"], meta["history"], outcome)
    fit = interior_fit(engine, table, Penalty(engine, None), optimum)
    assert isinstance(fit.source, PairSource)
    fit.source.lost_hyperprior = meta["had_hyperprior"]
    return fit


# ---------------------------------------------------------------------------------------------------- small things


def labels_of(values: Mapping[str, Any]) -> list[str]:
    """``"rate"``, ``"coef[0]"``, ``"coef[1]"`` …: a name for every number."""
    found = []
    for name, value in values.items():
        shape = np.shape(value)
        found += [name] if shape == () else [f"{name}[{','.join(map(str, i))}]" for i in np.ndindex(*shape)]
    return found


def _flat(values: Mapping[str, Any]) -> np.ndarray:
    return np.concatenate([np.reshape(value, -1) for value in values.values()]) if values else np.zeros(0)


def _jacobian(function: Any, x: Any) -> np.ndarray:
    def flat(vector: Any) -> Any:
        parts = [jnp.reshape(jnp.asarray(value, dtype=float), -1) for value in function(vector).values()]
        return jnp.concatenate(parts) if parts else jnp.zeros(0)

    return np.asarray(jax.jacfwd(flat)(x)).reshape(jax.eval_shape(flat, x).shape[0], x.size)


def _scale(constraint: Any) -> str:
    if constraint is constraints.positive:
        return "positive"
    return "unit" if constraint is constraints.unit_interval else "real"


def _interval(value: float, half: float, scale: str) -> tuple[float, float]:
    if not np.isfinite(value) or half == 0.0 or np.isnan(half):
        return (value, value) if not np.isnan(half) else (np.nan, np.nan)
    if scale == "positive" and value > 0:
        factor = np.exp(min(half / value, 700.0))
        return value / factor, value * factor
    if scale == "unit" and 0 < value < 1:
        odds, width = np.log(value / (1 - value)), half / (value * (1 - value))
        return float(1 / (1 + np.exp(min(width - odds, 700.0)))), float(1 / (1 + np.exp(-odds - width)))
    return value - half, value + half


def _full(eta: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(jnp.asarray(part, dtype=float) for part in eta)


def _curve(source: PairSource) -> np.ndarray:
    sums, _ = over_rows(source.engine.curves, source.table.rows, None, jnp.asarray(source.vector))
    return source.penalty.add_to((sums["value"], sums["slope"], sums["curve"]), jnp.asarray(source.vector))[2]


def _statistics_law(pair: ConjugatePair, eta: Any) -> Any:
    """For a pair that does not name its prior's law: means and deviations of T, by the derivatives of A."""
    from robustly.conjugate.laws import StatisticsLaw

    mean = jax.vmap(jax.grad(pair.log_normalizer))(eta)
    curve = jax.vmap(jax.hessian(pair.log_normalizer))(eta)
    sd = [np.sqrt(np.asarray(curve[i][i])) for i in range(len(mean)) if np.ndim(mean[i]) == 1]
    return StatisticsLaw(np.stack([np.asarray(m) for m in mean if np.ndim(m) == 1], -1), np.stack(sd, -1))
