r"""Is a row conjugate? Looked at, not declared.

A likelihood is conjugate to an exponential-family prior exactly when, as a function of the local value, its logarithm is
linear in the prior's sufficient statistics: :math:`\log p(x \mid \beta) = c + s^\top T(\beta)`. So evaluate a row at as
many values as there are unknowns, solve for :math:`(c, s)`, and verify at others. One entry for each prior family is
needed and none for a likelihood: exposures, affine means and several observed sites a row come for free.

A local of several parts, each conjugate given the others, is linear in the statistics of each, so

.. math:: \log p(x, \beta) = \textstyle\sum_{ij\dots} C_{ij\dots}\, (1, T_1(\beta_1))_i\, (1, T_2(\beta_2))_j \cdots
          + \sum_b \log h_b(\beta_b),

and values on a grid give the coefficients, one part after the other. A single part is the case of one index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from robustly._runtime.compiled import one_thread
from robustly.errors import ModelError
from robustly.model.exponential import PriorFamily, candidates
from robustly.model.parameters import Theta
from robustly.model.program.hyper import core, plain
from robustly.model.row import Row, RowModel
from robustly.rows.store import Rows

TOLERANCE = 1e-8
EXAMPLES = 10_000
WHOLE = "local"
"""How the only part of a local value is called; parts of a dictionary go by their keys."""


@dataclass(frozen=True, eq=False)
class ConjugateBlock:
    """A part of the local value: its prior's family, and the values at which a row is looked at."""

    name: str
    family: PriorFamily
    points: np.ndarray
    """(1 + statistics, …)"""
    solver: np.ndarray
    """From a function's values at the points to its coefficients in (1, T)."""

    def natural(self, priors: Mapping[str, Any]) -> Array:
        return self.family.natural(core(priors[self.name])[0])

    def unit(self, priors: Mapping[str, Any]) -> Array:
        # Coefficients do not depend on where a row is looked at, but their digits do, and so would their derivatives'.
        return jax.lax.stop_gradient(self.family.unit(core(priors[self.name])[0]))

    def coefficients(self, seen: Array, unit: Array) -> Array:
        """What a function with the values `seen` at ``points * unit`` comes to in (1, T)."""
        return self.family.rescaled(jnp.asarray(self.solver) @ seen, unit)


@dataclass(frozen=True, eq=False)
class Conjugacy:
    """A detected structure: the families of the parts of a local value, and a row's coefficients in their statistics."""

    model: RowModel
    blocks: tuple[ConjugateBlock, ...]
    tied: bool = False
    """Whether the prior of a part follows another part."""

    def priors(self, theta: Theta, row: Row) -> list[Any]:
        """Natural parameter of each part's prior, at typical values of the other parts."""
        each = _priors(self.model, theta, row)
        return [block.natural(each) for block in self.blocks]

    def origin(self, theta: Theta, row: Row) -> Any:
        """Of a local with a single part: from where its values are counted, held fixed; None for zero.

        A squared distance of 1e6 from zero, in units of .01, has no digits left for what a row differs from the next.
        """
        [block] = self.blocks
        return jax.lax.stop_gradient(block.family.centre(core(_priors(self.model, theta, row)[block.name])[0]))

    def level_and_natural(
        self, theta: Theta, row: Row, z: Array | None = None, origin: Array | None = None
    ) -> tuple[Any, Any]:
        """Of a local with a single part: log p(row, local) is ``level + natural · T(local − origin)`` and its base measure."""
        found = self.tensor(theta, row, z, origin)
        return found[0], found[1:]

    def log_normalizer(self, natural: Array) -> Array:
        """Of a local with a single part."""
        return self.blocks[0].family.log_normalizer(natural)

    def tensor(self, theta: Theta, row: Row, z: Array | None = None, origin: Array | None = None) -> Any:
        """C, with one axis of length 1 + statistics for each part; its first entry is −∞ where z is impossible.

        The values of a single part may be counted from an `origin`.
        """
        names = [block.name for block in self.blocks]
        weigh = _weight_of(self.model, self.tied)
        priors = _priors(self.model, theta, row)
        if origin is not None:
            [block] = self.blocks
            priors = {block.name: block.family.moved(core(priors[block.name])[0], origin)}
        units = [block.unit(priors) for block in self.blocks]

        def grid(values: tuple[Any, ...]) -> Array:
            if len(values) == len(names):
                placed = values if origin is None else (values[0] + origin,)
                return weigh(dict(zip(names, placed)), theta, row, z)
            places = jnp.asarray(self.blocks[len(values)].points) * units[len(values)]
            return jax.vmap(lambda value: grid((*values, value)))(places)

        found = grid(())
        if len(self.blocks) == 1:
            # Where a row's density is 1e17 nats down, rounding leaves nothing of its other coefficients: it is looked at nearer by.
            block, [unit] = self.blocks[0], units
            near = block.family.unit_near(unit, block.coefficients(found, unit))
            if near is not unit:
                units = [jax.lax.stop_gradient(near)]
                found = grid(())
        for axis, (block, unit) in enumerate(zip(self.blocks, units)):
            found = jnp.apply_along_axis(block.coefficients, axis, found, unit)
        possible = jnp.all(jnp.isfinite(found))
        found = jnp.where(possible, found, 0.0)
        for axis, block in enumerate(self.blocks):
            eta = block.natural(priors)
            level = jnp.where(possible, -block.family.log_normalizer(eta), -jnp.inf)
            line = jnp.concatenate([level[None], eta])
            shape = [len(line) if other == axis else 1 for other in range(found.ndim)]
            found = found + jnp.pad(line.reshape(shape), [(0, whole - own) for whole, own in zip(found.shape, shape)])
        return found


def detect(model: RowModel, rows: Rows) -> tuple[RowModel, str]:
    """The model with its conjugacy if it has one, and a sentence on what was found."""
    if model.dim == 0 or model.prior is None:
        return model, "the prior is not a distribution that could be looked at"
    some = rows.sample(EXAMPLES, 0)
    index = np.unique(np.linspace(0, len(some) - 1, 24).astype(int))
    model = replace(model, examples=tuple(np.asarray(a[index]) for a in some.data))
    if len(_parts(model)) > 1:
        return model, "the local value has several parts"
    block, reason = _find(model, WHOLE, False)
    return (model if block is None else replace(model, conjugacy=Conjugacy(model, (block,)))), reason


def conditional(model: RowModel) -> Conjugacy:
    """The structure of a model whose parts are each conjugate given the others; a ModelError names one that is not."""
    if model.conjugacy is not None:
        return model.conjugacy
    known = model.compiled.get(Conjugacy)
    return known or model.compiled.setdefault(Conjugacy, _conditional(model))


def _conditional(model: RowModel) -> Conjugacy:
    if model.dim == 0:
        raise ModelError("MeanField() takes the latents of a row apart, and nothing is local here. Use Exact().")
    if model.examples is None:
        raise ModelError("MeanField() looks at the priors of the local's parts. Give the RowModel prior(theta, row).")
    tied, blocks = _is_tied(model), []
    for name in _parts(model):
        block, reason = _find(model, name, tied)
        if block is None:
            who = "the local value" if name == WHOLE else f'site "{name}"'
            given = "" if name == WHOLE else " given the row's other latents"
            raise ModelError(
                f"MeanField() updates each part of a row in closed form, and {who} is not conjugate{given}: {reason}. "
                "Use Quadrature(21) (up to three dimensions) or QMC(256), or leave the approximation to the fit; if data "
                "or values are far from 1 in size, rescale them."
            )
        blocks.append(block)
    return Conjugacy(model, tuple(blocks), tied)


def _priors(model: RowModel, theta: Theta, row: Row) -> Mapping[str, Any]:
    """The prior of every part."""
    assert model.prior is not None
    found = model.prior(theta, row)
    return found if isinstance(found, Mapping) else {WHOLE: found}


def _at_start(model: RowModel) -> tuple[Any, Any]:
    assert model.examples is not None
    return model.parameters.natural(jnp.asarray(model.parameters.start)), tuple(a[0] for a in model.examples)


def _parts(model: RowModel) -> dict[str, tuple[int, ...]]:
    """The parts of a local value and their shapes."""
    theta, row = _at_start(model)
    value = model.local(jnp.zeros(model.dim), theta, row)[0]
    named = value if isinstance(value, Mapping) else {WHOLE: value}
    return {name: jnp.shape(named[name]) for name in _priors(model, theta, row)}


def _prior_gap(model: RowModel, values: Mapping[str, Any], theta: Theta, row: Row) -> Array:
    """What the parts' joint log prior has beyond the sum of their own at typical values of the others."""
    if model.log_prior is None or len(values) == 1:
        return jnp.zeros(())
    own = sum(jnp.sum(prior.log_prob(values[name])) for name, prior in _priors(model, theta, row).items())
    return model.log_prior(dict(values), theta, row) - own


def _weight_of(model: RowModel, tied: bool) -> Callable[[Mapping[str, Any], Any, Any, Any], Any]:
    """The row's log likelihood as a function of the parts; what ties their priors together counts as likelihood."""

    def weigh(values: Mapping[str, Any], theta: Theta, row: Row, z: Array | None) -> Array:
        local = values[WHOLE] if WHOLE in values else dict(values)
        found = (
            model.log_likelihood(local, theta, row)
            if model.latents is None
            else model.log_likelihood(local, theta, row, z)
        )
        return found + _prior_gap(model, values, theta, row) if tied else found

    return weigh


def _probes(model: RowModel, count: int, seed: int) -> dict[str, np.ndarray]:
    """Values of every part at which something is tried."""
    theta, row = _at_start(model)
    rng = np.random.default_rng(seed)
    found = {}
    for name, shape in _parts(model).items():
        inner = plain(_priors(model, theta, row)[name])
        families = candidates(inner, shape)
        found[name] = (
            families[0].probes(rng, count) * np.asarray(families[0].unit(inner))
            if families
            else np.exp(rng.uniform(-1.5, -0.1, size=(count, *shape)))
        )
    return found


def _is_tied(model: RowModel) -> bool:
    theta, _ = _at_start(model)
    probes = {name: jnp.asarray(values) for name, values in _probes(model, 4, 2).items()}
    each = jax.vmap(lambda values: jax.vmap(lambda row: _prior_gap(model, values, theta, row))(model.examples))
    return bool(jnp.max(jnp.abs(jax.jit(each)(probes))) > TOLERANCE)


def _find(model: RowModel, name: str, tied: bool) -> tuple[ConjugateBlock | None, str]:
    """The block of one part if it is conjugate given the others, and a sentence on what was found."""
    theta, row = _at_start(model)
    inner = plain(_priors(model, theta, row)[name])
    if inner is None:
        return None, "the prior is truncated or transformed"
    kind = type(inner).__name__
    reason = f"no conjugate family is known for a {kind} prior"
    for family in candidates(inner, _parts(model)[name]):
        block = _block(name, family)
        gap = _worst_gap(model, block, tied)
        if gap <= TOLERANCE:
            return block, f"conjugate: {kind} prior (residual {gap:.0e})"
        reason = f"the log likelihood is not linear in the statistics of a {kind} (residual {gap:.0e})"
    return None, reason


def _block(name: str, family: PriorFamily) -> ConjugateBlock:
    """Probe values at which the linear system is best conditioned, out of a few random designs."""
    rng = np.random.default_rng(0)
    unknowns = 1 + jax.eval_shape(family.statistics, family.probes(rng, 1)[0]).shape[0]
    statistics = one_thread(jax.vmap(jax.vmap(family.statistics)))
    designs = [family.probes(rng, unknowns) for _ in range(20)]
    tables = np.asarray(statistics(np.stack(designs)))
    matrices = [np.column_stack([np.ones(unknowns), table]) for table in tables]
    best = int(np.argmin([np.linalg.cond(matrix) for matrix in matrices]))
    return ConjugateBlock(name, family, designs[best], np.linalg.inv(matrices[best]))


def _worst_gap(model: RowModel, block: ConjugateBlock, tied: bool) -> float:
    """How far held-out values of the rows' log likelihoods are from linear; infinite when a posterior is improper."""
    family, weigh = block.family, _weight_of(model, tied)
    rng = np.random.default_rng(1)
    probes = family.probes(rng, 5)
    starts = model.parameters.start + 0.3 * rng.normal(size=(2, model.parameters.size))
    latents = np.zeros(1) if model.latents is None else np.asarray(model.latents)
    others = {name: values for name, values in _probes(model, 3, 3).items() if name != block.name}

    def gap(vector: Array, row: Row, z: Array | None, rest: Mapping[str, Any], held_out: Array) -> Array:
        theta = model.parameters.natural(vector)
        priors = _priors(model, theta, row)
        unit, eta = block.unit(priors), block.natural(priors)
        at = jax.vmap(lambda value: weigh({**rest, block.name: value}, theta, row, z))
        solved, seen = block.coefficients(at(jnp.asarray(block.points) * unit), unit), at(held_out * unit)
        table = jax.vmap(family.statistics)(held_out * unit)
        off = jnp.max(jnp.abs(seen - solved[0] - table @ solved[1:])) / (1.0 + jnp.max(jnp.abs(seen)))
        # An impossible value of z for this row (log likelihood −∞ everywhere) says nothing against conjugacy.
        off = jnp.where(jnp.all(seen == -jnp.inf), 0.0, off)
        return jnp.where(family.is_proper(eta + solved[1:]) | ~jnp.isfinite(solved[1]), off, jnp.inf)

    def worst(vectors: Array, rows: Any, latents: Array, others: Mapping[str, Any], held_out: Array) -> Array:
        each = lambda v, row, z: _over(lambda rest: gap(v, row, z, rest, held_out), others)
        each_z = lambda v, row: jnp.max(jax.vmap(lambda z: each(v, row, z))(latents))
        return jnp.max(jax.vmap(lambda v: jax.vmap(lambda row: each_z(v, row))(rows))(vectors))

    found = float(one_thread(worst)(starts, model.examples, latents, others, probes))
    return found if np.isfinite(found) else np.inf


def _over(function: Callable[[Mapping[str, Any]], Any], others: Mapping[str, Any]) -> Any:
    """The largest value over settings of the other parts, or the only one where there are no others."""
    return jnp.max(jax.vmap(function)(others)) if others else function({})
