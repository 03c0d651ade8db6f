"""One pass over the rows: evidences, and their sums, slopes and curvatures, for any row model and approximation.

A whole chunk is compiled as one function of the parameter vector; the few numbers by which parameters enter a row are found by
a cut through the program. Models that state how parameters enter their rows have passes of their own:
:mod:`robustly.fit.view_passes`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.scipy.special import logsumexp

from robustly._runtime.compiled import one_thread
from robustly._runtime.lasting import lasting_name
from robustly._runtime.precision import double_precision
from robustly.approx.base import Approximation
from robustly.approx.moments import Moments
from robustly.model.parameter_cut import Cut, cut_parameters
from robustly.model.row import Row, RowModel
from robustly.rows.store import ByUnit, Data, Rows, Sums

# Moments of more numbers than these take longer to compile than the pass that differentiates the whole.
FEW_NUMBERS = 12

Chunk = tuple[Sums, ByUnit, Any]


class ChunkPass:
    """A pass in double precision, by whatever thread, that gives rows a state to begin with where they have none yet."""

    def __init__(
        self,
        run: Callable[..., Chunk],
        begin: Callable[[Any, Data, int], Any] | None = None,
        made_by: tuple[Callable[..., Any], tuple[Any, ...]] | None = None,
    ) -> None:
        self.run, self.begin, self.made_by = run, begin, made_by

    def __reduce__(self) -> Any:
        # What is compiled stays here; another process compiles its own.
        return (ChunkPass, (self.run, self.begin)) if self.made_by is None else self.made_by

    def __call__(self, theta: Any, data: Data, weight: Array, state: Array) -> Chunk:
        with double_precision():
            if state is None and self.begin is not None:
                state = self.begin(theta, data, len(weight))
            return self.run(theta, data, weight, state)


class Passes:
    """The compiled passes of one model under one approximation. Get it from :func:`passes`, which keeps them."""

    def __init__(self, model: RowModel, approx: Approximation) -> None:
        approx.check(model)
        self.model = model
        self.approx = approx
        _ = model.parameters  # read now: inside a compiled pass its start values would be abstract
        self._chosen: tuple[ChunkPass, bool] | None = None
        self._variance_scores: dict[tuple[int, ...], ChunkPass] = {}
        self.values = self._compiled(self._values, getattr, "values")
        self.scores = self._compiled(self._scores, getattr, "scores")
        closed = approx.is_exact and model.conjugacy is not None and model.latents is None
        self.posteriors = (
            self._closed_posteriors() if closed else self._compiled(self._posteriors, getattr, "posteriors")
        )
        beside = partial(self._beside_prior, self._expected_curves)
        self.expected_curves = self._compiled(beside, getattr, "expected_curves")
        self.log_hyperprior = one_thread(self._log_hyperprior)

    def __reduce__(self) -> Any:
        return passes, (self.model, self.approx)

    def _compiled(
        self, function: Callable[..., Chunk], again: Callable[..., Any], what: Any, often: bool = False
    ) -> ChunkPass:
        """Compiled for one thread; ``again(passes, what)`` gives the same in another process."""
        begin = lambda theta, data, count: self.begin(count)
        name = (
            lasting_name("chunk", self.model.made_by, self.approx, again.__qualname__, what)
            if self.model.made_by
            else None
        )
        return ChunkPass(one_thread(function, name, often=often), begin, (again, (self, what)))

    def begin(self, count: int) -> np.ndarray:
        """The states of so many rows before the first pass."""
        one = self.approx.start(self.model)
        return np.broadcast_to(one, (count, *one.shape))

    # ------------------------------------------------------------------ value, slope and curvature

    def curves(self, rows: Rows) -> tuple[ChunkPass, bool]:
        """The pass for slopes and curvatures, and whether they come from posterior moments.

        That takes few numbers and an approximation that has moments, and is decided when the first row is seen. Passes by
        moments can take a coarser rule, the others can leave out the curvature: their theta is (vector, flag) for it.
        """
        if self._chosen is None:
            by_moments = self.approx.has_moments(self.model)
            if by_moments and self.model.parameters.size > FEW_NUMBERS:
                with double_precision():
                    first = tuple(jnp.asarray(a[0]) for a in rows.sample(1, 0).data)
                    by_moments = self._has_few_numbers(jnp.asarray(self.model.parameters.start), first)
            self._choose(by_moments)
        assert self._chosen is not None
        return self._chosen

    def _choose(self, by_moments: bool) -> ChunkPass:
        if self._chosen is None:
            chosen = self._curves_by_moments if by_moments else self._curves
            beside = partial(self._beside_prior, chosen)
            compiled = self._compiled(beside, Passes._choose, by_moments, often=not self.approx.is_exact)
            self._chosen = compiled, by_moments
        return self._chosen[0]

    def _has_few_numbers(self, vector: Array, first: Any) -> bool:
        """Whether slopes come from posterior moments, in the few numbers by which parameters enter a row."""
        if not self.approx.has_moments(self.model):
            return False
        return self.model.parameters.size <= FEW_NUMBERS or self._cut(vector, first).size <= FEW_NUMBERS

    def _cut(self, vector: Array, first: Any) -> Cut:
        """The few numbers by which parameters enter a row like this one."""
        model = self.model
        z = jnp.zeros(()) if model.latents is None else jnp.asarray(model.latents)[0]
        label = lambda z: None if model.latents is None else z
        joint = lambda u, v, row: model.log_joint(u, model.parameters.natural(v), row[0], label(row[1]))
        return cut_parameters(joint, jnp.zeros(model.dim), vector, (first, z))

    def find_modes(self, vector: Array, data: Data, state: Array) -> Array:
        """The rows' states at a vector."""
        find = lambda row, s: self.approx.find_mode(self.model, vector, row, s)
        return jax.lax.stop_gradient(jax.vmap(find)(data, state))

    def evidences(self, vector: Array, data: Data, state: Array) -> Array:
        """The rows' evidences, given their states."""
        return jax.vmap(lambda row, s: self.approx.evidence(self.model, vector, row, s))(data, state)

    def _values(self, vector: Array, data: Data, weight: Array, state: Array) -> Chunk:
        state = self.find_modes(vector, data, state)
        evidence = self.evidences(vector, data, state)
        return {"value": weighed(weight, evidence)}, {"evidence": evidence}, state

    def _curves(self, theta: Any, data: Data, weight: Array, state: Array) -> Chunk:
        """Evidence, slope and, where asked for, curvature: one compiled pass for both, as compiling takes longer."""
        vector, curved = theta
        state = self.find_modes(vector, data, state)

        def total(v: Array) -> tuple[Any, Any]:
            evidence = self.evidences(v, data, state)
            return weighed(weight, evidence), evidence

        (value, evidence), slope = jax.value_and_grad(total, has_aux=True)(vector)

        def columns(v: Array) -> Array:
            # One column after the other: side by side they would not fit the cache, and are no faster.
            _, along = jax.linearize(jax.grad(lambda x: total(x)[0]), v)
            return jax.lax.map(along, jnp.eye(v.shape[0]))

        curve = jax.lax.cond(curved, columns, lambda v: jnp.zeros((v.shape[0], v.shape[0])), vector)
        sums = {"value": value, "slope": slope, "curve": curve, "integration_error": jnp.zeros(())}
        return sums, {"evidence": evidence}, state

    def _curves_by_moments(self, theta: Any, data: Data, weight: Array, state: Array) -> Chunk:
        """Evidence, slope and curvature from posterior moments, in the few numbers by which parameters enter a row."""
        vector, rough = theta
        found, bends, numbers, state = self._moments(vector, data, state, rough)
        evidence = logsumexp(found.evidence, axis=1)
        # Halving the step of a trapezoid rule squares its error, so the difference between the two is the root of it.
        integration_error = (evidence - logsumexp(found.coarse, axis=1)) ** 2
        counts = weight > 0
        score, share = self._scores_of(found, bends, evidence, counts)
        share = jnp.where(counts[:, None], weight[:, None] * share, 0.0)
        pull = jnp.where(counts[:, None, None], share[:, :, None] * found.score, 0.0)
        square = found.curve + found.score[..., :, None] * found.score[..., None, :]
        square = jnp.where(counts[:, None, None, None], share[:, :, None, None] * square, 0.0)
        bent = jax.jacfwd(jax.grad(lambda v: jnp.sum(pull * numbers(v))))(vector)
        curve = jnp.einsum("nzkp,nzkq->pq", bends, jnp.einsum("nzkl,nzlq->nzkq", square, bends))
        curve = curve + bent - (weight[:, None] * score).T @ score
        sums = {"value": weighed(weight, evidence), "slope": weight @ score, "curve": curve}
        return {**sums, "integration_error": weighed(weight, integration_error)}, {"evidence": evidence}, state

    def _moments(
        self, vector: Array, data: Data, state: Array, rough: Any
    ) -> tuple[Moments, Array, Callable[[Any], Any], Array]:
        """Posterior moments by row and value of its discrete latent, how the numbers bend with the vector, the numbers, and states."""
        model = self.model
        label = lambda z: None if model.latents is None else z
        view = self._cut(vector, jax.tree.map(lambda a: a[0], data))
        state = self.find_modes(vector, data, state)
        # By row and by value of its discrete latent; rows without one have a single value, and no axis for it where points
        # are summed: axes of one entry keep XLA from taking several rows at a time.
        if model.latents is None:
            each = lambda function: jax.vmap(lambda *a: jax.tree.map(lambda b: b[None], function(0.0, *a)))
        else:
            values = jnp.asarray(model.latents)
            each = lambda function: (
                lambda data, *a: jax.vmap(
                    lambda z, *b: jax.vmap(lambda *c: function(z, *c))(data, *b), (0, *(1 for _ in a)), 1
                )(values, *a)
            )
        seen = lambda v, row, z: jnp.stack(view.numbers(v, (row, z))) if view.size else jnp.zeros(0)
        numbers = lambda v: each(lambda z, row: seen(v, row, z))(data)
        scalars = numbers(vector)
        bends = each(lambda z, row: jax.jacrev(lambda v: seen(v, row, z))(vector))(data)

        def moments(z: Array | None, row: Row, numbers: tuple[Array, ...], s: Array) -> Moments:
            inside = [*numbers][: len(numbers) - view.added]
            finish = lambda u, some: view.finish(u, [*some, 0.0] if view.added else some, (row, z))
            found = self.approx.moments(model, finish, inside, row, label(z), s, rough)
            return found.plus(numbers[-1]) if view.added else found

        found = each(moments)(data, scalars if model.latents is not None else scalars[:, 0], state)
        return found, bends, numbers, state

    @staticmethod
    def _scores_of(found: Moments, bends: Array, evidence: Array, counts: Array) -> tuple[Array, Array]:
        """The slope of each row's evidence, and the posterior shares of its discrete latent's values."""
        share = jnp.exp(found.evidence - evidence[:, None])
        return jnp.where(counts[:, None], jnp.einsum("nz,nzk,nzkp->np", share, found.score, bends), 0.0), share

    # ------------------------------------------------------------------ other questions

    def _scores(self, vector: Array, data: Data, weight: Array, state: Array) -> Chunk:
        if self._has_few_numbers(vector, jax.tree.map(lambda a: a[0], data)):
            # Slopes through the points of a rule take third derivatives of the density, which can take minutes to compile.
            found, bends, _, state = self._moments(vector, data, state, False)
            score, _ = self._scores_of(found, bends, logsumexp(found.evidence, axis=1), jnp.ones(len(weight), bool))
        else:
            state = self.find_modes(vector, data, state)
            each = jax.vmap(jax.grad(lambda v, row, s: self.approx.evidence(self.model, v, row, s)), (None, 0, 0))
            score = each(vector, data, state)
        counted = jnp.where(weight[:, None] > 0, score, 0.0)
        return {"meat": (counted * weight[:, None]).T @ counted}, {"score": score}, state

    def variance_scores(self, place: tuple[int, ...]) -> ChunkPass:
        """The pass of the score test for a variance of common values, which stand at these places of the vector."""
        if place in self._variance_scores:
            return self._variance_scores[place]
        where = jnp.asarray(place)

        def chunk(vector: Array, data: Data, weight: Array, state: Array) -> Chunk:
            state = self.find_modes(vector, data, state)

            def one(row: Row, s: Array) -> Array:
                at = lambda common: self.approx.evidence(self.model, vector.at[where].set(common), row, s)
                slope = jax.grad(at)(vector[where])
                return 0.5 * (jnp.outer(slope, slope) + jax.hessian(at)(vector[where]))

            each = jax.vmap(one)(data, state)
            counted = lambda values: jnp.einsum("n,nij->ij", weight, values)
            return {"score": counted(each), "size": counted(jnp.abs(each))}, {}, state

        self._variance_scores[place] = self._compiled(chunk, Passes.variance_scores, place)
        return self._variance_scores[place]

    def _closed_posteriors(self) -> ChunkPass:
        """As :meth:`_posteriors`, of rows whose posteriors have a name: only their parameters are compiled."""
        conjugacy = self.model.conjugacy
        assert conjugacy is not None
        place = self.model.parameters

        def one(vector: Array, row: Row) -> tuple[Any, Any]:
            """A row's natural parameters, and from where its values are counted."""
            theta = place.natural(vector)
            origin = conjugacy.origin(theta, row)
            _, natural = conjugacy.level_and_natural(theta, row, None, origin)
            return natural, jnp.zeros(1) if origin is None else jnp.ravel(origin)

        found = one_thread(lambda vector, data: jax.vmap(lambda row: one(vector, row))(data))

        def run(theta: Any, data: Data, weight: Array, state: Array) -> Chunk:
            vector, levels = theta
            natural, origin = (np.asarray(part) for part in found(vector, data))
            law = conjugacy.blocks[0].family.marginals(natural)
            quantile = np.stack([law.ppf(level) for level in np.asarray(levels)], axis=-1)
            placed = {"mean": law.mean() + origin, "sd": law.std(), "quantile": quantile + origin[..., None]}
            return {}, placed, state

        return ChunkPass(run, lambda theta, data, count: self.begin(count), (getattr, (self, "posteriors")))

    def _posteriors(self, theta: Any, data: Data, weight: Array, state: Array) -> Chunk:
        """Mean, standard deviation and quantiles of every number of a row's local value."""
        vector, levels = theta
        state = self.find_modes(vector, data, state)
        natural = self.model.parameters.natural(vector)

        def one(row: Row, s: Array) -> tuple[Any, Any, Any]:
            u, log_share = self.approx.points(self.model, vector, row, s)
            share = jnp.exp(log_share)
            local = jax.vmap(lambda point: ravel_pytree(self.model.local(point, natural, row)[0])[0])(u)
            mean = share @ local
            sd = jnp.sqrt(jnp.maximum(share @ (local - mean) ** 2, 0.0))
            return mean, sd, jax.vmap(lambda values: weighted_quantiles(values, share, levels), 1)(local)

        mean, sd, quantile = jax.vmap(one)(data, state)
        return {}, {"mean": mean, "sd": sd, "quantile": quantile}, state

    def _expected_curves(self, theta: Any, data: Data, weight: Array, state: Array) -> Chunk:
        vector, at = theta

        def total(v: Array) -> Array:
            expected = jax.vmap(lambda row, s: self.approx.expected(self.model, v, at, row, s))(data, state)
            return weighed(weight, expected)

        value, slope = jax.value_and_grad(total)(vector)
        return {"value": value, "slope": slope, "curve": jax.jacfwd(jax.grad(total))(vector)}, {}, state

    def _log_hyperprior(self, vector: Array) -> Array:
        return jnp.asarray(self.model.log_hyperprior(self.model.parameters.natural(vector)), dtype=float)

    def _beside_prior(self, curves: Any, theta: Any, data: Data, weight: Array, state: Array) -> Chunk:
        """A pass that also gives the hyperprior and its derivatives: the same with every chunk, and so counted."""
        sums, by_row, state = curves(theta, data, weight, state)
        vector = theta[0]
        value, slope = jax.value_and_grad(self._log_hyperprior)(vector)
        curve = jax.jacfwd(jax.grad(self._log_hyperprior))(vector)
        prior = {"prior value": value, "prior slope": slope, "prior curve": curve, "chunks": jnp.ones(())}
        return {**sums, **prior}, by_row, state


def with_prior(sums: Sums) -> tuple[float, np.ndarray, np.ndarray]:
    """Value, slope and curvature of the rows and the hyperprior together, from a pass that gave both."""
    value, slope, curve = (sums[name] + sums[f"prior {name}"] / sums["chunks"] for name in ("value", "slope", "curve"))
    return float(value), slope, curve


def weighted_quantiles(values: Array, share: Array, levels: Array) -> Array:
    """Quantiles of weighted points, interpolated between the middles of their steps."""
    order = jnp.argsort(values)
    share = share[order]
    return jnp.interp(levels, jnp.cumsum(share) - 0.5 * share, values[order])


def weighed(weight: Array, each: Array) -> Array:
    """A weighted sum in which rows of weight zero do not count, whatever they hold."""
    return jnp.sum(jnp.where(weight > 0, weight * jnp.where(weight > 0, each, 0.0), 0.0))


def passes(model: RowModel, approx: Approximation) -> Passes:
    """The compiled passes of this model and approximation, made once and kept as long as the model."""
    known = model.compiled.get((Passes, approx))
    return known or model.compiled.setdefault((Passes, approx), Passes(model, approx))
