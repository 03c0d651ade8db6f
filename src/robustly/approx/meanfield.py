r"""What if a row's local value and its discrete latent are taken as independent? The paper's mean field.

Under a conjugate prior with natural parameter :math:`\eta`, and :math:`\log p(x_i, z \mid \beta) = c_z + s_z^\top T(\beta)`,
the best product :math:`q(\beta)\,q(z)` is found by turns, each in closed form:

.. math::
    q(\beta) = \text{the prior's family at } \eta + \textstyle\sum_z q(z)\, s_z, \qquad
    q(z) \propto \exp\{c_z + s_z^\top \mathrm E_q T(\beta)\}.

With :math:`q(\beta)` at its best the bound is a function of :math:`q(z)` alone,
:math:`\sum_z q(z)\{c_z - \log q(z)\} + A(\eta + \sum_z q(z) s_z) - A(\eta)`, and no turn lowers it. It is below the
evidence unless z is certain or says nothing of β, and fits that maximise it are biased: :class:`Exact` sums over z
and costs no more as long as z can be enumerated. This is Algorithm 2 of Wang & Blei, for comparison with the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from robustly.approx.base import Approximation
from robustly.approx.climb import climb
from robustly.approx.exact import Exact
from robustly.approx.grid import line_points, qmc_points
from robustly.errors import ModelError
from robustly.model.conjugacy import PriorFamily
from robustly.model.row import RowModel

MAX_SWEEPS = 500
TOLERANCE = 1e-13
# Log likelihood of a value of z that a row rules out: finite, so that it may be multiplied by a share of zero.
IMPOSSIBLE = -1e8


@dataclass(frozen=True)
class Terms:
    """One row: constants (Z,) and slopes (Z, k) of its log likelihood for each z, and the prior's natural parameter."""

    family: PriorFamily
    constants: Any
    slopes: Any
    eta: Any

    def first(self) -> Any:
        """log q(z) to begin with: the exact posterior of z."""
        each = jax.vmap(lambda slope: self.family.log_normalizer(self.eta + slope))(self.slopes)
        return jax.nn.log_softmax(self.constants + each)

    def statistics(self, log_share: Any) -> Any:
        """Expected statistics of the local under the best q(β)."""
        return jax.grad(self.family.log_normalizer)(self.eta + jnp.exp(log_share) @ self.slopes)

    def sweep(self, log_share: Any) -> Any:
        """q(β), then q(z), each at its best given the other."""
        return jax.nn.log_softmax(self.constants + self.slopes @ self.statistics(log_share))

    def bound(self, log_share: Any) -> Any:
        """The lower bound of the evidence at q(z) and the best q(β)."""
        share = jnp.exp(log_share)
        gained = self.family.log_normalizer(self.eta + share @ self.slopes) - self.family.log_normalizer(self.eta)
        return share @ (self.constants - log_share) + gained

    def settled(self) -> Any:
        """log q(z) at rest; no derivative passes through it."""
        held = lax.stop_gradient(self._arrays)
        still = Terms(self.family, *held)

        def unfinished(state: Any) -> Any:
            return (state[1] > TOLERANCE) & (state[2] < MAX_SWEEPS)

        def advance(state: Any) -> Any:
            ahead = still.sweep(state[0])
            return ahead, jnp.max(jnp.abs(jnp.exp(ahead) - jnp.exp(state[0]))), state[2] + 1

        start = still.first()
        return lax.stop_gradient(lax.while_loop(unfinished, advance, (start, jnp.full_like(start[0], jnp.inf), 0))[0])

    def following(self, log_share: Any) -> Any:
        """The resting log q(z) as a function of what the terms depend on: one Newton step with its matrix held fixed."""
        still = Terms(self.family, *lax.stop_gradient(self._arrays))
        pull = jax.jacfwd(still.sweep)(log_share)
        gap = self.sweep(log_share) - log_share
        return jax.nn.log_softmax(log_share + jnp.linalg.solve(jnp.eye(len(log_share)) - pull, gap))

    @property
    def _arrays(self) -> tuple[Any, Any, Any]:
        return self.constants, self.slopes, self.eta


@dataclass(frozen=True)
class MeanField(Approximation):
    """Local and discrete latent of a row as independent: the paper's mode for models with both."""

    is_bound: ClassVar[bool] = True

    def check(self, model: RowModel) -> None:
        if model.latents is None:
            raise ModelError(
                "MeanField() takes a row's local value and its discrete latent apart, and these rows have no discrete latent. "
                "Use Exact() if the prior is conjugate, else Quadrature(21)."
            )
        if model.conjugacy is None:
            raise ModelError(
                "MeanField() needs a likelihood that is linear in the prior's sufficient statistics for every value of the "
                "discrete latent, and this one is not. Use Quadrature(21), or leave the approximation to the fit."
            )

    def start(self, model: RowModel) -> np.ndarray:
        return np.zeros(0)

    def settle(self, model: RowModel, vector: Any, row: Any, state: Any) -> Any:
        return state

    def terms(self, model: RowModel, vector: Any, row: Any) -> Terms:
        """Everything about one row that the bound depends on."""
        assert model.conjugacy is not None
        conjugacy, theta = model.conjugacy, model.parameters.natural(vector)
        constant, slope, eta = jax.vmap(lambda z: conjugacy.terms(theta, row, z))(jnp.asarray(model.latents))
        possible = jnp.isfinite(constant) & jnp.all(jnp.isfinite(slope), axis=1)
        return Terms(
            conjugacy.family,
            jnp.where(possible, constant, IMPOSSIBLE),
            jnp.where(possible[:, None], slope, 0.0),
            eta[0],
        )

    def evidence(self, model: RowModel, vector: Any, row: Any, state: Any) -> Any:
        # At rest the bound is flat in q(z), so q(z)'s first derivative is all that a second derivative needs.
        terms = self.terms(model, vector, row)
        return terms.bound(terms.following(terms.settled()))

    def anchor(self, model: RowModel, centre: Any, row: Any, state: Any) -> Any:
        return state

    def evidence_around(self, model: RowModel, vector: Any, row: Any, anchor: Any) -> Any:
        return self.evidence(model, vector, row, anchor)

    def expected(self, model: RowModel, vector: Any, at: Any, row: Any, state: Any) -> Any:
        then = self.terms(model, at, row)
        log_share = then.settled()
        statistics = lax.stop_gradient(then.statistics(log_share))
        now, share = self.terms(model, vector, row), jnp.exp(log_share)
        energy = share @ now.constants + jnp.dot(now.eta + share @ now.slopes, statistics)
        return energy - now.family.log_normalizer(now.eta)

    def points(self, model: RowModel, vector: Any, row: Any, state: Any) -> tuple[Any, Any]:
        theta, terms = model.parameters.natural(vector), self.terms(model, vector, row)
        slope = jnp.exp(terms.settled()) @ terms.slopes

        def log_posterior(u: Any) -> Any:
            assert model.prior is not None
            local, volume = model.local(u, theta, row)
            prior = jnp.sum(model.prior(theta, row).log_prob(local))
            return prior + volume + jnp.dot(slope, terms.family.statistics(local))

        mode = climb(log_posterior, jnp.zeros(model.dim), model.dim)
        rule = (
            line_points(log_posterior, mode, 401)
            if model.dim == 1
            else qmc_points(log_posterior, mode, model.dim, 2048)
        )
        return rule[0], rule[1] - jax.scipy.special.logsumexp(rule[1])

    # With z known there is nothing to take apart, and each of these is exact.

    def _settle(self, model: RowModel, theta: Any, row: Any, z: Any, state: Any) -> Any:
        return Exact()._settle(model, theta, row, z, state)

    def _evidence(self, model: RowModel, vector: Any, row: Any, z: Any, state: Any) -> Any:
        return Exact()._evidence(model, vector, row, z, state)

    def _expected(self, model: RowModel, vector: Any, at: Any, row: Any, z: Any, state: Any) -> Any:
        return Exact()._expected(model, vector, at, row, z, state)
