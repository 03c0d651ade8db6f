r"""What if the parts of a row's local value are taken as independent? The paper's mean field.

The parts are localized sites, latents of the row's own, and a discrete latent z, whose statistics are one-hot. If each
is conjugate given the others, the row's log density is linear in the statistics of each
(:mod:`robustly.model.conjugacy`), :math:`\sum C_{ij\dots} (1, T_1)_i (1, T_2)_j \cdots`, and the best product
:math:`q_1 q_2 \cdots` is found by turns, each in closed form: :math:`q_b` is in the family of part b, its natural
parameter the coefficients of :math:`T_b` once the other statistics are replaced by their means,

.. math:: \lambda_b = \textstyle\sum_{j\dots} C_{bj\dots}\, (1, \mathrm E\, T_2)_j \cdots, \qquad
          \mathrm E\, T_b = \nabla A_b(\lambda_b) .

No turn lowers the bound :math:`\sum C\,(1, \mathrm E T_1)(1, \mathrm E T_2)\cdots - \sum_b \{\lambda_b^\top \mathrm E T_b -
A_b(\lambda_b)\}`. It is below the evidence unless the parts are independent given the row, and fits that maximise it are
biased: for a z that can be enumerated beside one conjugate local, :class:`Exact` costs no more. This is the E-step of
Algorithm 2 of Wang & Blei.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.special import logsumexp

from robustly.approx.base import Approximation
from robustly.approx.climb import climb
from robustly.approx.grid import fine_points
from robustly.errors import ModelError
from robustly.model.row import Row, RowModel

if TYPE_CHECKING:
    from robustly.model.conjugacy import Conjugacy

MAX_SWEEPS = 500
# A sweep that moves no mean by more than this share of it is the last; one Newton step then squares what is left.
TOLERANCE = 1e-11


class FactorFamily(Protocol):
    """All that mean field needs of an exponential family."""

    def log_normalizer(self, eta: Array) -> Array: ...

    def is_proper(self, eta: Array) -> Array: ...


class Choice:
    """The law of a discrete latent: one-hot statistics, unnormalised log probabilities as natural parameter."""

    def log_normalizer(self, eta: Array) -> Array:
        return logsumexp(eta)

    def is_proper(self, eta: Array) -> Array:
        return jnp.all(jnp.isfinite(eta))


@dataclass(frozen=True)
class Factors:
    """One row: its coefficients C, the families of its parts, and natural parameters at which to begin.

    The part with most statistics leads: it is always at its best given the others, whose natural parameters, put end to
    end, are the *state*.
    """

    families: tuple[FactorFamily, ...]
    tensor: Any
    begin: tuple[Any, ...]
    """The priors of the parts, for all but a discrete latent, which comes last and begins at its own best."""

    @cached_property
    def lead(self) -> int:
        # Of those that have a prior: a discrete latent of many values would leave little to be solved for, but its
        # shares are what one wants to begin from.
        return int(np.argmax([len(eta) for eta in self.begin]))

    @cached_property
    def others(self) -> list[int]:
        return [part for part in range(len(self.families)) if part != self.lead]

    def _split(self, state: Array) -> dict[int, Any]:
        sizes = [self.tensor.shape[part] - 1 for part in self.others]
        ends = np.cumsum([0, *sizes])
        return {part: state[ends[i] : ends[i + 1]] for i, part in enumerate(self.others)}

    def _mean(self, part: int, natural: Array) -> Array:
        """(1, E T) of a part."""
        return jnp.concatenate([jnp.ones(1), jax.grad(self.families[part].log_normalizer)(natural)])

    def _contract(self, means: dict[int, Any], kept: Sequence[int] = ()) -> Array:
        """C with the statistics of all parts but the `kept` replaced by their means."""
        found = self.tensor
        for part in reversed(range(len(self.families))):
            if part not in kept:
                found = jnp.tensordot(found, means[part], axes=(part, 0))
        return found

    def _natural(self, part: int, means: dict[int, Any]) -> Array:
        return self._contract(means, (part,))[1:]

    def laws(self, state: Array) -> dict[int, Any]:
        """Natural parameters of all parts, that of the leading one at its best."""
        laws = self._split(state)
        means = {part: self._mean(part, law) for part, law in laws.items()}
        return {**laws, self.lead: self._natural(self.lead, means)}

    def means(self, state: Array) -> dict[int, Any]:
        """(1, E T) of all parts."""
        return {part: self._mean(part, law) for part, law in self.laws(state).items()}

    def first(self) -> Any:
        """A state to begin with: the priors, and a discrete latent with the leading part integrated out."""
        means = {part: self._mean(part, law) for part, law in enumerate(self.begin)}
        laws = dict(enumerate(self.begin))
        last = len(self.families) - 1
        if last not in laws:
            table = self._contract(means, (self.lead, last))[:, 1:]
            laws[last] = table[0] + jax.vmap(self.families[self.lead].log_normalizer, 1)(table[1:])
        return self._joined(laws)

    def _joined(self, laws: dict[int, Any]) -> Any:
        return jnp.concatenate([laws[part] for part in self.others])

    def sweep(self, state: Array) -> Any:
        """The leading part, then the others, each at its best given the rest."""
        means, laws = self.means(state), {}
        for part in self.others:
            laws[part] = self._natural(part, means)
            means[part] = self._mean(part, laws[part])
        return self._joined(laws)

    def energy(self, means: dict[int, Any]) -> Array:
        """E log p(row, parts), the base measures of the families left out."""
        return self._contract(means)

    def bound(self, state: Array) -> Array:
        """The lower bound of the evidence, the leading part at its best."""
        laws = self.laws(state)
        means = {part: self._mean(part, law) for part, law in laws.items()}
        spent = sum(
            jnp.dot(law, means[part][1:]) - self.families[part].log_normalizer(law) for part, law in laws.items()
        )
        return self.energy(means) - spent

    def is_proper(self, state: Array) -> Array:
        return jnp.all(jnp.stack([self.families[part].is_proper(law) for part, law in self._split(state).items()]))

    def at_rest(self, state: Array) -> Any:
        """The state at rest, searched for from `state` if that is one; no derivative passes through it."""
        still = self._held()

        def flat(state: Any) -> Any:
            return jnp.concatenate([still._mean(part, law) for part, law in still._split(state).items()])

        def unfinished(at: Any) -> Any:
            return (at[2] > TOLERANCE) & (at[3] < MAX_SWEEPS)

        def advance(at: Any) -> Any:
            ahead = still.sweep(at[0])
            mean = flat(ahead)
            return ahead, mean, jnp.max(jnp.abs(mean - at[1]) / (1.0 + jnp.abs(mean))), at[3] + 1

        start = jnp.where(still.is_proper(state), state, still.first())
        at = (start, flat(start), jnp.full_like(start[0], jnp.inf), 0)
        return lax.stop_gradient(lax.while_loop(unfinished, advance, at)[0])

    def following(self, state: Array) -> Any:
        """The resting state as a function of what the row depends on: one Newton step with its matrix held fixed."""
        matrix = jnp.eye(len(state)) - jax.jacfwd(self._held().sweep)(state)
        swept = self.sweep(state)
        ahead = state + jnp.linalg.solve(matrix, swept - state)
        # Not yet at rest, a Newton step may leave the laws there are; a sweep cannot.
        return jnp.where(self.is_proper(ahead), ahead, swept)

    def _held(self) -> Factors:
        return Factors(self.families, *lax.stop_gradient((self.tensor, self.begin)))


def _structure(model: RowModel) -> Conjugacy:
    from robustly.model.conjugacy import conditional  # brings NumPyro along, which a regression does without

    return conditional(model)


@dataclass(frozen=True)
class MeanField(Approximation):
    """The parts of a row's local value and its discrete latent as independent: the paper's mode for models with several."""

    is_bound: ClassVar[bool] = True

    def check(self, model: RowModel) -> None:
        if len(_structure(model).blocks) == 1 and model.latents is None:
            raise ModelError(
                "MeanField() takes the latents of a row apart, and these rows have one each, conjugate and with a closed "
                "form. Use Exact()."
            )

    def start(self, model: RowModel) -> np.ndarray:
        sizes = [len(block.solver) - 1 for block in _structure(model).blocks]
        choices = 0 if model.latents is None else len(model.latents)
        # No law has such a parameter, so the first pass begins at the priors.
        return np.full(sum(sizes) - max(sizes) + choices, np.nan)

    def factors(self, model: RowModel, vector: Array, row: Row) -> Factors:
        """Everything about one row that the bound depends on."""
        structure, theta = _structure(model), model.parameters.natural(vector)
        families: tuple[FactorFamily, ...] = tuple(block.family for block in structure.blocks)
        begin = tuple(structure.priors(theta, row))
        if model.latents is None:
            return Factors(families, structure.tensor(theta, row), begin)
        each = jax.vmap(lambda z: structure.tensor(theta, row, z), out_axes=-1)(jnp.asarray(model.latents))
        # A value of z that the row rules out is finitely far below the others, so that a share of zero may multiply it.
        below = -1e8 - 1e3 * lax.stop_gradient(jnp.max(jnp.where(jnp.isfinite(each), jnp.abs(each), 0.0)))
        each = jnp.where(jnp.isfinite(each), each, below)
        padded = jnp.pad(each, [(0, 0)] * (each.ndim - 1) + [(1, 0)])
        return Factors((*families, Choice()), padded, begin)

    def find_mode(self, model: RowModel, vector: Array, row: Row, state: Array) -> Array:
        return self.factors(model, vector, row).at_rest(state)

    def evidence(self, model: RowModel, vector: Array, row: Row, state: Array) -> Array:
        # At rest the bound is flat in the state, so the state's first derivative is all that a second derivative needs.
        factors = self.factors(model, vector, row)
        return factors.bound(factors.following(state))

    def anchor(self, model: RowModel, centre: Any, row: Any, state: Any) -> Any:
        return state

    def evidence_around(self, model: RowModel, vector: Array, row: Row, anchor: Any) -> Array:
        factors = self.factors(model, vector, row)
        return factors.bound(factors.following(factors.at_rest(anchor)))

    def expected(self, model: RowModel, vector: Array, at: Array, row: Row, state: Array) -> Array:
        means = lax.stop_gradient(self.factors(model, at, row).means(state))
        return self.factors(model, vector, row).energy(means)

    def points(self, model: RowModel, vector: Array, row: Row, state: Array) -> tuple[Any, Any]:
        structure, theta = _structure(model), model.parameters.natural(vector)
        laws = self.factors(model, vector, row).laws(state)
        priors = structure.priors(theta, row)

        def log_posterior(u: Array) -> Array:
            assert model.prior is not None
            local, volume = model.local(u, theta, row)
            given, values = model.prior(theta, row), local
            if len(structure.blocks) == 1:
                name = structure.blocks[0].name
                given, values = {name: given}, {name: local}
            for part, block in enumerate(structure.blocks):
                value = values[block.name]
                moved = jnp.dot(laws[part] - priors[part], block.family.statistics(value))
                volume = volume + jnp.sum(given[block.name].log_prob(value)) + moved
            return volume

        mode = climb(log_posterior, jnp.zeros(model.dim), model.dim)
        u, weight = fine_points(log_posterior, mode, model.dim)
        return u, weight - logsumexp(weight)
