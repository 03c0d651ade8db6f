"""One pass over the rows: evidences, and their sums, slopes and curvatures, for any row model and approximation."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from robustly.approx.base import Approximation
from robustly.model.row import RowModel
from robustly.precision import double_precision
from robustly.rows.arrays import Rows
from robustly.rows.reduce import over_rows


class Passes:
    """The compiled passes of one model under one approximation. Get it from :func:`passes`, which keeps them."""

    def __init__(self, model: RowModel, approx: Approximation) -> None:
        approx.check(model)
        self.model = model
        self.approx = approx
        _ = model.parameters  # read now: inside a compiled pass its start values would be abstract
        self.curves = jax.jit(self._curves)
        self.values = jax.jit(self._values)
        self.scores = jax.jit(self._scores)
        self.posteriors = jax.jit(self._posteriors)
        self.expected_curves = jax.jit(self._expected_curves)
        self.log_hyperprior = jax.jit(self._log_hyperprior)

    def begin(self, rows: Rows) -> np.ndarray:
        """The state of every row before the first pass."""
        one = self.approx.start(self.model)
        return np.broadcast_to(one, (len(rows), *one.shape))

    def _settle(self, vector: Any, data: Any, state: Any) -> Any:
        settle = lambda row, s: self.approx.settle(self.model, vector, row, s)
        return jax.lax.stop_gradient(jax.vmap(settle)(data, state))

    def _evidences(self, vector: Any, data: Any, state: Any) -> tuple[Any, Any]:
        return jax.vmap(lambda row, s: self.approx.evidence(self.model, vector, row, s))(data, state)

    def _values(self, vector: Any, data: Any, weight: Any, state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        state = self._settle(vector, data, state)
        evidence, _ = self._evidences(vector, data, state)
        return {"value": _weigh(weight, evidence)}, {"evidence": evidence, "state": state}

    def _curves(
        self, vector: Any, curved: Any, data: Any, weight: Any, state: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Evidence, slope and, where `curved`, curvature: one compiled pass for both, as compiling takes longer than running."""
        state = self._settle(vector, data, state)

        def total(v: Any) -> tuple[Any, Any]:
            evidence, basis = self._evidences(v, data, state)
            return _weigh(weight, evidence), (evidence, basis)

        def twice(v: Any) -> Any:
            each = lambda row, s, b: self.approx.evidence_twice(self.model, v, row, s, b)
            return _weigh(weight, jax.vmap(each)(data, state, basis))

        (value, (evidence, basis)), slope = jax.value_and_grad(total, has_aux=True)(vector)

        def columns(v: Any) -> Any:
            # One column after the other: side by side they would not fit the cache, and are no faster.
            _, along = jax.linearize(jax.grad(twice), v)
            return jax.lax.map(along, jnp.eye(v.shape[0]))

        curve = jax.lax.cond(curved, columns, lambda v: jnp.zeros((v.shape[0], v.shape[0])), vector)
        strain = jax.vmap(self.approx.strain)(basis) if jax.tree.leaves(basis) else jnp.zeros_like(evidence)
        return {"value": value, "slope": slope, "curve": curve}, {
            "evidence": evidence,
            "state": state,
            "strain": strain,
        }

    def _scores(self, vector: Any, data: Any, weight: Any, state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        state = self._settle(vector, data, state)
        each = jax.vmap(jax.grad(lambda v, row, s: self.approx.evidence(self.model, v, row, s)[0]), (None, 0, 0))
        score = each(vector, data, state)
        return {"outer": jnp.einsum("n,ni,nj->ij", weight, score, score)}, {"score": score}

    def _posteriors(
        self, vector: Any, levels: Any, data: Any, weight: Any, state: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Mean, standard deviation and quantiles of every number of a row's local value."""
        state = self._settle(vector, data, state)
        theta = self.model.parameters.natural(vector)

        def one(row: Any, s: Any) -> tuple[Any, Any, Any]:
            u, log_share = self.approx.points(self.model, vector, row, s)
            share = jnp.exp(log_share)
            local = jax.vmap(lambda point: ravel_pytree(self.model.local(point, theta, row)[0])[0])(u)
            mean = share @ local
            sd = jnp.sqrt(jnp.maximum(share @ (local - mean) ** 2, 0.0))
            return mean, sd, jax.vmap(lambda values: weighted_quantiles(values, share, levels), 1)(local)

        mean, sd, quantile = jax.vmap(one)(data, state)
        return {}, {"mean": mean, "sd": sd, "quantile": quantile}

    def _expected_curves(
        self, vector: Any, at: Any, data: Any, weight: Any, state: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        def total(v: Any) -> Any:
            return _weigh(weight, jax.vmap(lambda row, s: self.approx.expected(self.model, v, at, row, s))(data, state))

        value, slope = jax.value_and_grad(total)(vector)
        return {"value": value, "slope": slope, "curve": jax.jacfwd(jax.grad(total))(vector)}, {}

    def _log_hyperprior(self, vector: Any) -> tuple[Any, Any, Any]:
        prior = lambda v: jnp.asarray(self.model.log_hyperprior(self.model.parameters.natural(v)), dtype=float)
        value, slope = jax.value_and_grad(prior)(vector)
        return value, slope, jax.jacfwd(jax.grad(prior))(vector)

    def objective(
        self, vector: np.ndarray, rows: Rows, state: np.ndarray, *, curved: bool = True
    ) -> tuple[Any, dict[str, np.ndarray]]:
        """Value, slope and curvature of the summed evidence plus the hyperprior, and what each row gave."""
        with double_precision():
            x = jnp.asarray(vector)
            prior = [np.asarray(part) for part in self.log_hyperprior(x)]
            sums, by_row = over_rows(self.curves, rows, state, x, curved)
        together = (float(sums["value"] + prior[0]), sums["slope"] + prior[1], sums["curve"] + prior[2])
        return together, by_row


def weighted_quantiles(values: Any, share: Any, levels: Any) -> Any:
    """Quantiles of weighted points, interpolated between the middles of their steps."""
    order = jnp.argsort(values)
    share = share[order]
    return jnp.interp(levels, jnp.cumsum(share) - 0.5 * share, values[order])


def _weigh(weight: Any, each: Any) -> Any:
    """A weighted sum in which rows of weight zero do not count, whatever they hold."""
    return jnp.sum(jnp.where(weight > 0, weight * jnp.where(weight > 0, each, 0.0), 0.0))


@lru_cache(maxsize=64)
def passes(model: RowModel, approx: Approximation) -> Passes:
    """The compiled passes of this model and approximation, made once."""
    return Passes(model, approx)
