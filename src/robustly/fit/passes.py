"""One pass over the rows: evidences, and their sums, slopes and curvatures, for any row model and approximation."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.special import logsumexp

from robustly._runtime.precision import double_precision
from robustly.approx.base import Approximation
from robustly.approx.moments import Moments
from robustly.model.parameter_cut import Narrow, narrow
from robustly.model.row import RowModel
from robustly.rows.arrays import Rows
from robustly.rows.store import over_rows

# Moments of more numbers than these take longer to compile than the pass that differentiates the whole.
FEW_NUMBERS = 12


class Passes:
    """The compiled passes of one model under one approximation. Get it from :func:`passes`, which keeps them."""

    def __init__(self, model: RowModel, approx: Approximation) -> None:
        approx.check(model)
        self.model = model
        self.approx = approx
        _ = model.parameters  # read now: inside a compiled pass its start values would be abstract
        self._chosen: tuple[Any, bool] | None = None
        self._compiled: set[int] = set()  # sizes of chunks that it has been through
        self.values = one_thread(self._values)
        self.scores = one_thread(self._scores)
        self.posteriors = one_thread(self._posteriors)
        self.expected_curves = one_thread(partial(self._beside_prior, self._expected_curves))
        self.log_hyperprior = jax.jit(self._log_hyperprior)

    def is_fine(self, rows: Rows) -> bool:
        """Whether slopes and curvatures come from posterior moments, which takes few numbers and a fine approximation."""
        return self._curves_of(rows)[1]

    def _curves_of(self, rows: Rows) -> tuple[Any, bool]:
        """The compiled pass for slopes and curvatures, chosen when the first row is seen, and whether it is by moments."""
        if self._chosen is None:
            fine = self.approx.is_fine(self.model)
            if fine and self.model.parameters.size > FEW_NUMBERS:
                with double_precision():
                    first = tuple(jnp.asarray(a[0]) for a in rows.data)
                    fine = self._view(jnp.asarray(self.model.parameters.start), first).size <= FEW_NUMBERS
            self._chosen = one_thread(partial(self._beside_prior, self._fine_curves if fine else self._curves)), fine
        return self._chosen

    def _view(self, vector: Any, first: Any) -> Narrow:
        """The few numbers by which parameters enter a row like this one."""
        model = self.model
        z = jnp.zeros(()) if model.latents is None else jnp.asarray(model.latents)[0]
        label = lambda z: None if model.latents is None else z
        joint = lambda u, v, row: model.log_joint(u, model.parameters.natural(v), row[0], label(row[1]))
        return narrow(joint, jnp.zeros(model.dim), vector, (first, z))

    def begin(self, rows: Rows) -> np.ndarray:
        """The state of every row before the first pass."""
        one = self.approx.start(self.model)
        return np.broadcast_to(one, (len(rows), *one.shape))

    def _settle(self, vector: Any, data: Any, state: Any) -> Any:
        settle = lambda row, s: self.approx.settle(self.model, vector, row, s)
        return jax.lax.stop_gradient(jax.vmap(settle)(data, state))

    def _evidences(self, vector: Any, data: Any, state: Any) -> Any:
        return jax.vmap(lambda row, s: self.approx.evidence(self.model, vector, row, s))(data, state)

    def _values(self, vector: Any, data: Any, weight: Any, state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        state = self._settle(vector, data, state)
        evidence = self._evidences(vector, data, state)
        return {"value": _weigh(weight, evidence)}, {"evidence": evidence, "state": state}

    def _curves(
        self, vector: Any, curved: Any, data: Any, weight: Any, state: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Evidence, slope and, where `curved`, curvature: one compiled pass for both, as compiling takes longer than running."""
        state = self._settle(vector, data, state)

        def total(v: Any) -> tuple[Any, Any]:
            evidence = self._evidences(v, data, state)
            return _weigh(weight, evidence), evidence

        (value, evidence), slope = jax.value_and_grad(total, has_aux=True)(vector)

        def columns(v: Any) -> Any:
            # One column after the other: side by side they would not fit the cache, and are no faster.
            _, along = jax.linearize(jax.grad(lambda x: total(x)[0]), v)
            return jax.lax.map(along, jnp.eye(v.shape[0]))

        curve = jax.lax.cond(curved, columns, lambda v: jnp.zeros((v.shape[0], v.shape[0])), vector)
        by_row = {"evidence": evidence, "state": state, "strain": jnp.zeros_like(evidence)}
        return {"value": value, "slope": slope, "curve": curve}, by_row

    def _fine_curves(
        self, vector: Any, rough: Any, data: Any, weight: Any, state: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Evidence, slope and curvature from posterior moments, in the few numbers by which parameters enter a row."""
        model = self.model
        label = lambda z: None if model.latents is None else z
        view = self._view(vector, jax.tree.map(lambda a: a[0], data))
        state = self._settle(vector, data, state)
        theta = model.parameters.natural(vector)
        # By row and by value of its discrete latent; rows without one have a single value, and no axis for it where points
        # are summed: axes of one entry keep XLA from taking several rows at a time.
        if model.latents is None:
            each = lambda function: jax.vmap(lambda *a: jax.tree.map(lambda b: b[None], function(0.0, *a)))
        else:
            values = jnp.asarray(model.latents)
            each = lambda function: jax.vmap(lambda row, *a: jax.vmap(lambda z, *b: function(z, row, *b))(values, *a))
        seen = lambda v, row, z: jnp.stack(view.numbers(v, (row, z))) if view.size else jnp.zeros(0)
        scalars = each(lambda z, row: seen(vector, row, z))(data)
        bends = each(lambda z, row: jax.jacrev(lambda v: seen(v, row, z))(vector))(data)

        def moments(z: Any, row: Any, numbers: Any, s: Any) -> Moments:
            return self.approx.moments(model, view, theta, [*numbers], row, label(z), s, rough)

        found = each(moments)(data, scalars if model.latents is not None else scalars[:, 0], state)
        evidence = logsumexp(found.evidence, axis=1)
        strain = (evidence - logsumexp(found.coarse, axis=1)) ** 2
        counts = weight > 0
        share = jnp.exp(found.evidence - evidence[:, None])
        score = jnp.where(counts[:, None], jnp.einsum("nz,nzk,nzkp->np", share, found.score, bends), 0.0)
        share = jnp.where(counts[:, None], weight[:, None] * share, 0.0)
        pull = jnp.where(counts[:, None, None], share[:, :, None] * found.score, 0.0)
        square = found.curve + found.score[..., :, None] * found.score[..., None, :]
        square = jnp.where(counts[:, None, None, None], share[:, :, None, None] * square, 0.0)
        bent = jax.jacfwd(jax.grad(lambda v: jnp.sum(pull * each(lambda z, row: seen(v, row, z))(data))))(vector)
        curve = jnp.einsum("nzkp,nzkq->pq", bends, jnp.einsum("nzkl,nzlq->nzkq", square, bends))
        curve = curve + bent - (weight[:, None] * score).T @ score
        return {"value": _weigh(weight, evidence), "slope": weight @ score, "curve": curve}, {
            "evidence": evidence,
            "state": state,
            "strain": strain,
        }

    def _scores(self, vector: Any, data: Any, weight: Any, state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        state = self._settle(vector, data, state)
        each = jax.vmap(jax.grad(lambda v, row, s: self.approx.evidence(self.model, v, row, s)), (None, 0, 0))
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

    def _log_hyperprior(self, vector: Any) -> Any:
        return jnp.asarray(self.model.log_hyperprior(self.model.parameters.natural(vector)), dtype=float)

    def _beside_prior(self, curves: Any, vector: Any, *rest: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """A pass that also gives the hyperprior and its derivatives, the same with every chunk."""
        sums, by_row = curves(vector, *rest)
        value, slope = jax.value_and_grad(self._log_hyperprior)(vector)
        curve = jax.jacfwd(jax.grad(self._log_hyperprior))(vector)
        return {**sums, "prior value": value, "prior slope": slope, "prior curve": curve}, by_row

    def objective(
        self, vector: np.ndarray, rows: Rows, state: np.ndarray, *, less: bool = False
    ) -> tuple[Any, dict[str, np.ndarray]]:
        """Value, slope and curvature of the summed evidence plus the hyperprior, and what each row gave.

        Asked for `less`, a fine approximation takes fewer points, and another leaves out the curvature.
        """
        with double_precision():
            curves, fine = self._curves_of(rows)
            ready = rows.bucket in self._compiled
            sums, by_row = over_rows(curves, rows, state, vector, less if fine else not less, ready=ready)
            self._compiled.add(rows.bucket)
        return with_prior(sums, rows), by_row


def with_prior(sums: dict[str, Any], rows: Rows) -> tuple[float, np.ndarray, np.ndarray]:
    """Value, slope and curvature of the rows and the hyperprior together, from a pass that gave both."""
    chunks = len(range(0, len(rows), rows.bucket))
    value, slope, curve = (sums[name] + sums[f"prior {name}"] / chunks for name in ("value", "slope", "curve"))
    return float(value), slope, curve


def one_thread(function: Any) -> Any:
    """Compiled for one thread: chunks are what threads share out, and small operations are slower in pieces.

    By one thread, too: XLA's compiler threads can wait for each other for ever over a large program with matrix factors
    in it (seen with jaxlib 0.10.2).
    """
    return jax.jit(
        function, compiler_options={"xla_cpu_multi_thread_eigen": False, "xla_cpu_parallel_codegen_split_count": 1}
    )


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
