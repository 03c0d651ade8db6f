"""A fitted pair as a :class:`~robustly.result.fit.Fit`: inside or at the boundary of no heterogeneity."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from robustly.conjugate.base import ClassicalModel
from robustly.conjugate.problem import (
    PairProblem,
    Penalty,
    classical_evidence,
    classical_passes,
    classical_rows,
)
from robustly.conjugate.source import PairSource, scale_of
from robustly.fit.objective import Optimum
from robustly.fit.outcome import Outcome
from robustly.fit.problem import Found
from robustly.result.estimates import Hyperparameters, labels_of
from robustly.result.fit import Fit

# The scales of intervals, by the words that `scale_of` has for a constraint.
SCALES = {"positive": "log", "unit": "logit", "real": "real"}

ConjugateFit = Fit
"""The name of a pair's result in 0.1."""


def interior_fit(problem: PairProblem, optimum: Optimum) -> Fit:
    """A result from where a search ended."""
    found = Found(problem, optimum)
    x, model, table = jnp.asarray(optimum.vector), problem.owner, problem.table
    source = PairSource(problem, optimum.vector)
    theta = {name: np.asarray(value) for name, value in model.theta(x).items()}
    note = model.pair.caution(table, theta)
    reported = {name: np.asarray(value)[()] for name, value in model.reported(x).items()}
    return Fit(
        parameters=reported,
        labels=labels_of(reported),
        vector=optimum.vector,
        jacobian=_jacobian(model.reported, x),
        curve=found.curve,
        objective=optimum.value,
        evidence_by_row=None,
        weight=table.row_weight,
        outcome=optimum.outcome,
        history=optimum.history,
        notes=() if note is None else (note,),
        **fields_for(source, reported),
    )


def fields_for(source: PairSource, values: Mapping[str, Any]) -> dict[str, Any]:
    """What the pair says of the numbers found, as fields of a :class:`Fit`."""
    pair, model, classical = source.pair, source.model, source.classical
    common = {
        "model": source,
        "source": source,
        "vector_labels": source.free_labels,
        "told": {"pair": type(pair).__name__},
    }
    if classical is not None:
        scales = {name: "real" if name in ("loc", "coef") else "log" for name in values}
        return {
            **common,
            "hyperparameters": Hyperparameters({pair.local: classical.limits}, by_argument=True),
            "shared": dict(values),
            "derived": {name: np.asarray(value)[()] for name, value in classical.derived.items()},
            "scales": [scales[name] for name, value in values.items() for _ in range(np.size(value))],
            "edges": tuple(classical.edge),
        }
    x = jnp.asarray(source.vector)
    derived = lambda v: pair.derived(model.theta(v))
    coordinates = pair.coordinates(source.table.columns).items()
    scales = {name: SCALES[scale_of(constraint)] for name, (constraint, _) in coordinates}
    prior = {name: value for name, value in values.items() if name not in pair.shared}
    return {
        **common,
        "hyperparameters": Hyperparameters({pair.local: prior}, by_argument=True),
        "shared": {name: value for name, value in values.items() if name in pair.shared},
        "derived": {name: np.asarray(value)[()] for name, value in derived(x).items()},
        "derived_jacobian": _jacobian(derived, x),
        "derived_scales": scales,
        "scales": [scales.get(name, "log") for name, value in values.items() for _ in range(np.size(value))],
    }


def boundary_fit(problem: PairProblem, classical: ClassicalModel, why: str, steps: int) -> Fit:
    """The classical model as a result."""
    pair, table = problem.owner.pair, problem.table
    text = why or (
        f"the rows show no heterogeneity in the {pair.local}, so the classical model is returned, with one value for "
        "all rows."
    )
    plain = {name: np.asarray(value, dtype=float)[()] for name, value in classical.values.items()}
    kept = [name not in (*classical.edge, *classical.given) and name not in pair.fixed for name in plain]
    free = np.repeat(kept, [np.size(value) for value in plain.values()])
    evidence = classical_evidence(classical, table.columns)
    value = float(table.weight @ evidence)
    entry = {"pass": steps, "value": value, "expected_gain": 0.0, "step": 0.0}
    if hasattr(pair, "boundary_shape"):
        at, jacobian, curve = pair.boundary_shape(table, classical)
    else:
        at = np.concatenate([np.reshape(value, -1) for value in plain.values()])[free]
        jacobian = np.eye(len(free))[:, free]
        rows = classical_rows(table.columns, table.weight)
        passes = classical_passes(classical, table.columns)
        curve = rows.map(passes.curve, classical.values).sums["curve"][np.ix_(free, free)]
    source = PairSource(PairProblem(problem.owner, table, Penalty(problem.owner, None)), at, classical)
    source.jacobian = jacobian
    return Fit(
        parameters=plain,
        labels=labels_of(plain),
        vector=at,
        jacobian=jacobian,
        curve=curve,
        objective=value,
        evidence_by_row=None,
        weight=table.row_weight,
        outcome=Outcome("boundary", text, steps),
        history=[entry],
        notes=(text,),
        **fields_for(source, plain),
    )


def _jacobian(function: Callable[[Array], Mapping[str, Any]], x: Array) -> np.ndarray:
    def flat(vector: Array) -> Array:
        parts = [jnp.reshape(jnp.asarray(value, dtype=float), -1) for value in function(vector).values()]
        return jnp.concatenate(parts) if parts else jnp.zeros(0)

    return np.asarray(jax.jacfwd(flat)(x)).reshape(jax.eval_shape(flat, x).shape[0], x.size)
