r"""Which laws give every row a predictor of its own? One integrated out, one without noise, and sparse shifts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from robustly.glm.law import Array, Description, Law, OwnValues
from robustly.glm.priors import LOG_2PI, NO_SPREAD, PRIOR_SYMBOLS, log_prior, spread_values

if TYPE_CHECKING:
    import jax

OWN_PREDICTORS = "Rows differ: their own predictors are spread around the common ones with scale {:.3g}."


@dataclass(frozen=True)
class OwnPredictor(Law):
    """What laws have in common whose rows have predictors of their own, by the law of these around the common ones."""

    prior: str = "normal"

    local: ClassVar[str | None] = "predictor"
    picture: ClassVar[str | None] = "density"
    limits: ClassVar[Mapping[str, float]] = {"spread": 0.0, "dof": np.inf}
    response_symbols: ClassVar[str] = "y_i ~ p(· | η_i)"

    def describe(self) -> Description:
        local = f"every row has its own predictor ({self.prior} prior)"
        return Description("own predictor", local, f"η_i ~ {PRIOR_SYMBOLS[self.prior]}, {self.response_symbols}")

    def difference(self, shared: Mapping[str, float], fitted: Collection[str]) -> str:
        return OWN_PREDICTORS.format(shared["spread"])

    @property
    def boundary_text(self) -> str:
        return NO_SPREAD.format("predictors")

    def own_values(
        self, y: Array, predictor: Array, phi: Sequence[float], posterior_mean: Callable[[], Array]
    ) -> OwnValues:
        numbers = {name: float(np.exp(value)) for name, value in zip(self.names, phi)}
        return spread_values(self.prior, np.reshape(posterior_mean(), -1) - predictor, "predictor", **numbers)


@dataclass(frozen=True)
class LocalPredictor(OwnPredictor):
    r"""Every row has its own predictor, :math:`\eta_i \sim p(\cdot \mid m_i, \mathrm{spread})`."""

    closed: ClassVar[bool] = False

    @property
    def names(self) -> tuple[str, ...]:
        return ("spread", *(("dof",) if self.prior == "student_t" else ()), *self.family.nuisance)

    def width(self, y: Array, trials: Array, phi: Array) -> Array:
        told = super().width(y, trials, phi)
        # What is spread out is smoothed, but for the peak that a Laplace prior keeps.
        return told if self.prior == "laplace" else np.hypot(told, np.minimum(1.0, np.exp(phi[0])))

    def joint(self, own: jax.Array, row: tuple[jax.Array, jax.Array], m: jax.Array, *phi: jax.Array) -> jax.Array:
        return self.family.log_prob(*row, own, *self.traced_nuisance(phi)) + log_prior(self.prior, own - m, *phi[:2])


@dataclass(frozen=True)
class Noiseless(OwnPredictor):
    r"""Every row is its own predictor, :math:`y_i = \eta_i`: what a normal response becomes when its scale is zero."""

    prior: str = "laplace"

    closed: ClassVar[bool] = True
    implied: ClassVar[Mapping[str, float]] = {"scale": 0.0}
    response_symbols: ClassVar[str] = "y_i = η_i"

    @property
    def names(self) -> tuple[str, ...]:
        return ("spread", *(("dof",) if self.prior == "student_t" else ()))

    @property
    def kinked(self) -> bool:
        return self.prior == "laplace"

    def evidence(self, row: tuple[jax.Array, jax.Array], m: jax.Array, *phi: jax.Array) -> jax.Array:
        return log_prior(self.prior, row[0] - m, *phi) + 0.5 * LOG_2PI

    def errors(self, shared: Mapping[str, float]) -> Any:
        from scipy import stats

        scale = shared["spread"]
        return stats.laplace(scale=scale) if self.prior == "laplace" else stats.t(shared["dof"], scale=scale)

    def own_values(
        self, y: Array, predictor: Array, phi: Sequence[float], posterior_mean: Callable[[], Array]
    ) -> OwnValues:
        return super().own_values(y, predictor, phi, lambda: y)


@dataclass(frozen=True)
class Shifted(OwnPredictor):
    r"""Every row may be shifted, at a price: :math:`\max_\gamma \log p(y_i \mid m_i + \gamma) - |\gamma|/s`.

    Most shifts are exactly zero. For the normal this is Huber's loss; for others the L1 shift models of She & Owen
    (2011) and Tibshirani & Manning (2013).
    """

    prior: str = "laplace"

    closed: ClassVar[bool] = True
    picture: ClassVar[str | None] = "shifts"

    @property
    def names(self) -> tuple[str, ...]:
        return ("spread", *self.family.nuisance)

    def shift(self, row: tuple[jax.Array, jax.Array], m: jax.Array, *phi: jax.Array) -> jax.Array:
        """The row's own shift."""
        import jax
        import jax.numpy as jnp
        from jax import lax

        from robustly.approx.climb import climb, look

        nuisance = self.traced_nuisance(phi)
        density = lambda eta: self.family.log_prob(*row, eta[0], *nuisance)
        price = jnp.exp(-phi[0])
        slope = jax.grad(density)(m[None])[0]
        side = jnp.sign(slope)
        dear = jnp.abs(slope) <= price
        # A row that stays where it is climbs a parabola instead, so that no loop waits for it.
        tilted = lambda eta: jnp.where(dear, -0.5 * (eta[0] - m) ** 2, density(eta) - side * price * (eta[0] - m))
        top = climb(tilted, m[None], 1)
        _, rest, curve = look(tilted, top)
        moved = top + rest / jnp.maximum(-lax.stop_gradient(curve[0]), 1e-300)
        return jnp.where(dear, 0.0, moved[0] - m)

    def evidence(self, row: tuple[jax.Array, jax.Array], m: jax.Array, *phi: jax.Array) -> jax.Array:
        import jax.numpy as jnp
        from jax import lax

        # Held fixed, the shift is right for value and slope (it is at its best); the curvature of a shifted row is 0.
        shift = lax.stop_gradient(self.shift(row, lax.stop_gradient(m), *(lax.stop_gradient(p) for p in phi)))
        price = jnp.exp(-phi[0])
        slope = jnp.sign(shift) * price
        here = self.family.log_prob(
            *row, jnp.where(shift == 0, m, lax.stop_gradient(m) + shift), *self.traced_nuisance(phi)
        )
        return here - jnp.abs(shift) * price + jnp.where(shift == 0, 0.0, slope * (m - lax.stop_gradient(m)))

    def describe(self) -> Description:
        return Description(
            "sparse shifts",
            "every row has its own predictor (laplace prior)",
            "max over γ_i of log p(y_i | m_i + γ_i) − |γ_i| / spread",
        )
