"""What did a fitted pair find? The prior, each row's posterior beside its raw estimate, predictions, and how sure."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from robustly._runtime.precision import in_double_precision
from robustly.conjugate.base import Classical, ConjugatePair
from robustly.conjugate.laws import MixedPosterior, PairPredictive
from robustly.conjugate.problem import PairProblem, Penalty, classical_evidence, model_of
from robustly.conjugate.source import PairSource, labels_of, scale_of
from robustly.errors import ModelError, PersistError
from robustly.fit.objective import Optimum
from robustly.fit.outcome import Outcome
from robustly.result import persist
from robustly.result.fit import Fit
from robustly.rows.distinct import make_table


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
    ranges: dict[str, str] = field(default_factory=dict, repr=False)
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
                found[label] = _interval(float(value), float(half), self.ranges.get(label.split("[")[0], "positive"))
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

        A hyperprior that is flat in the variance of the locals is integrated on a grid, and the other hyperparameters
        by Laplace's method, so that it also works where the best spread is 0. Its intervals are the honest ones.
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
            f"<{type(self.pair).__name__} fit of {len(self.weight)} rows: {inner}; log likelihood "
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


# ---------------------------------------------------------------------------------------------------- making


def interior_fit(problem: PairProblem, optimum: Optimum) -> ConjugateFit:
    """A result from where a search ended."""
    x, model, table = jnp.asarray(optimum.vector), problem.owner, problem.table
    source = PairSource(problem, optimum.vector)
    theta = model.theta(x)
    derived = lambda v: model.pair.derived(model.theta(v))
    note = model.pair.caution(table, {name: np.asarray(value) for name, value in theta.items()})
    reported = model.reported(x)
    coordinates = model.pair.coordinates(table.columns)
    return ConjugateFit(
        parameters={name: np.asarray(value)[()] for name, value in reported.items()},
        labels=labels_of(reported),
        vector=optimum.vector,
        jacobian=_jacobian(model.reported, x),
        curve=optimum.curve,
        objective=optimum.value,
        evidence_by_row=table.spread_out(problem.evidence_at(optimum.vector)),
        weight=table.row_weight,
        outcome=optimum.outcome,
        history=optimum.history,
        notes=() if note is None else (note,),
        source=source,
        pair=model.pair,
        derived={name: np.asarray(value)[()] for name, value in derived(x).items()},
        derived_jacobian=_jacobian(derived, x),
        ranges={name: scale_of(constraint) for name, (constraint, _) in coordinates.items()},
    )


def boundary_fit(problem: PairProblem, classical: Classical, why: str, steps: int) -> ConjugateFit:
    """The classical model as a result."""
    pair, table = problem.owner.pair, problem.table
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
    everything = lambda v: unflat(v)
    evidence = classical_evidence(classical, table.columns)
    value = float(table.weight @ evidence)
    entry = {"pass": steps, "value": value, "expected_gain": 0.0, "step": 0.0}
    if hasattr(pair, "boundary_shape"):
        at, jacobian, curve = pair.boundary_shape(table, classical)
    else:
        at, jacobian = np.asarray(x), _jacobian(everything, x)
        curve = np.asarray(jax.hessian(total)(x)) if free else np.zeros((0, 0))
    source = PairSource(PairProblem(problem.owner, table, Penalty(problem.owner, None)), at, classical)
    source.jacobian = jacobian
    return ConjugateFit(
        parameters={name: np.asarray(v)[()] for name, v in values.items()},
        labels=labels_of(values),
        vector=at,
        jacobian=jacobian,
        curve=curve,
        objective=value,
        evidence_by_row=table.spread_out(evidence),
        weight=table.row_weight,
        outcome=Outcome("boundary", text, steps),
        history=[entry],
        notes=(text,),
        source=source,
        pair=pair,
        bounds=classical.limits,
        derived={name: np.asarray(v)[()] for name, v in classical.derived.items()},
        derived_jacobian=np.zeros((len(_flat(classical.derived)), len(at))),
        ranges={name: "real" if name in ("loc", "coef") else "positive" for name in values},
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
    fit = _rebuilt(model, columns, meta, arrays)
    if not np.isfinite(fit.evidence).all():
        row = int(np.flatnonzero(~np.isfinite(fit.evidence))[0])
        raise PersistError(f"row {row} of the file cannot come from a {meta['pair']}. Save the fit again.")
    return fit


@in_double_precision
def _rebuilt(
    pair: ConjugatePair, columns: dict[str, np.ndarray], meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> ConjugateFit:
    table = make_table(columns, arrays["weight"])
    model = model_of(pair, table.columns)
    problem = PairProblem(model, table, Penalty(model, None))
    outcome = Outcome(*meta["outcome"])
    if outcome.kind == "boundary":
        classical = pair.classical(table)
        if classical is None:
            raise PersistError(f"{type(pair).__name__} has no classical model, but the saved fit is one.")
        return boundary_fit(problem, classical, outcome.text, outcome.steps)
    vector = arrays["vector"]
    if len(vector) != model.parameters.size:
        raise PersistError(
            f"the file has {len(vector)} numbers for the {model.parameters.size} parameters of its pair."
        )
    optimum = Optimum(vector, meta["objective"], np.zeros_like(vector), arrays["curve"], meta["history"], outcome)
    fit = interior_fit(problem, optimum)
    assert isinstance(fit.source, PairSource)
    fit.source.lost_hyperprior = meta["had_hyperprior"]
    return fit


# ---------------------------------------------------------------------------------------------------- small things


def _flat(values: Mapping[str, Any]) -> np.ndarray:
    return np.concatenate([np.reshape(value, -1) for value in values.values()]) if values else np.zeros(0)


def _jacobian(function: Any, x: Any) -> np.ndarray:
    def flat(vector: Any) -> Any:
        parts = [jnp.reshape(jnp.asarray(value, dtype=float), -1) for value in function(vector).values()]
        return jnp.concatenate(parts) if parts else jnp.zeros(0)

    return np.asarray(jax.jacfwd(flat)(x)).reshape(jax.eval_shape(flat, x).shape[0], x.size)


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
