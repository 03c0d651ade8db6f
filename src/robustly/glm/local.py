r"""What does a row have of its own? Nothing, its predictor, its dispersion, or a wrong label.

Each answer is a :class:`Law`: the log density of one row as a function of its predictor :math:`m` and a few numbers
:math:`\varphi` that all rows share, on scales without walls. A *closed* law gives the evidence itself; the others give
the joint density of the response and the row's own value, which :mod:`robustly.glm.evidence` integrates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from robustly.errors import ModelError
from robustly.glm.families import Bernoulli, Binomial, Family, Normal

PRIORS = ("normal", "laplace", "student_t")
LOG_2PI = float(np.log(2.0 * np.pi))
# What shared numbers are where rows turn out not to differ.
EDGES = {"spread": 0.0, "dof": np.inf, "flip": 0.0}


@dataclass(frozen=True)
class Law(ABC):
    """How one row is distributed, given its predictor and the shared numbers called `names`."""

    family: Family

    closed: ClassVar[bool] = True
    local: ClassVar[str | None] = None
    implied: ClassVar[Mapping[str, float]] = {}
    """Numbers that are what they are by the law itself."""
    outlier_rule: ClassVar[str] = "tails"
    """How tail probabilities are read: see :func:`robustly.result.outliers.stand_out`."""

    @property
    def kinked(self) -> bool:
        """Whether a row's density has a corner in its predictor, so that it has no curvature to observe."""
        return False

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """What the shared numbers are called."""

    def natural(self, name: str, value: Any, xp: Any = np) -> Any:
        """A shared number on its own scale: half a logistic curve for the share of flipped labels, exp for the rest."""
        return 0.5 / (1.0 + xp.exp(-value)) if name == "flip" else xp.exp(value)

    def free(self, name: str, value: float) -> float:
        """The inverse of :meth:`natural`."""
        return float(np.log(2.0 * value / (1.0 - 2.0 * value)) if name == "flip" else np.log(value))

    def slope(self, name: str, value: float) -> float:
        """d natural / d free."""
        found = float(self.natural(name, value))
        return found * (1.0 - 2.0 * found) if name == "flip" else found

    def scale_of(self, name: str) -> str:
        """The scale on which intervals of a shared number are symmetric."""
        return "half_logit" if name == "flip" else "log"

    def edges(self, outcome: str) -> dict[str, float]:
        """Shared numbers of the law that was asked for, where the search ended at a simpler one."""
        reached = {"boundary": tuple(EDGES), "perfect_fit": ("dof",)}.get(outcome, ())
        return {name: EDGES[name] for name in self.names if name in reached}

    def evidence(self, row: Any, m: Any, *phi: Any) -> Any:
        """Log density of one row; closed laws only."""
        raise NotImplementedError

    def joint(self, own: Any, row: Any, m: Any, *phi: Any) -> Any:
        """Log density of one row and its own value; the others."""
        raise NotImplementedError

    def errors(self, shared: Mapping[str, float]) -> Any:
        """Where a response is its predictor and an error of one law, that law as SciPy has it; None elsewhere."""
        return None

    @cached_property
    def nuisance_places(self) -> tuple[int, ...]:
        """Where in `names` the family's nuisance parameters stand."""
        return tuple(self.names.index(name) for name in self.family.nuisance if name in self.names)

    def nuisance(self, phi: Any) -> tuple[float, ...]:
        """The family's nuisance parameters, as numbers."""
        return tuple(float(np.exp(phi[place])) for place in self.nuisance_places)

    def _nuisance(self, phi: Any) -> tuple[Any, ...]:
        import jax.numpy as jnp

        return tuple(jnp.exp(phi[place]) for place in self.nuisance_places)


@dataclass(frozen=True)
class Classical(Law):
    """Nothing is local: the generalized linear model as it always was."""

    @property
    def names(self) -> tuple[str, ...]:
        return self.family.nuisance

    def evidence(self, row: Any, m: Any, *phi: Any) -> Any:
        return self.family.log_prob(*row, m, *self._nuisance(phi))


@dataclass(frozen=True)
class LocalPredictor(Law):
    r"""Every row has its own predictor, :math:`\eta_i \sim p(\cdot \mid m_i, \mathrm{spread})`."""

    prior: str = "normal"

    closed: ClassVar[bool] = False
    local: ClassVar[str | None] = "predictor"

    @property
    def names(self) -> tuple[str, ...]:
        return ("spread", *(("dof",) if self.prior == "student_t" else ()), *self.family.nuisance)

    def joint(self, own: Any, row: Any, m: Any, *phi: Any) -> Any:
        return self.family.log_prob(*row, own, *self._nuisance(phi)) + log_prior(self.prior, own - m, *phi[:2])


@dataclass(frozen=True)
class Noiseless(Law):
    r"""Every row is its own predictor, :math:`y_i = \eta_i`: what a normal response becomes when its scale is zero."""

    prior: str = "laplace"

    closed: ClassVar[bool] = True
    local: ClassVar[str | None] = "predictor"
    implied: ClassVar[Mapping[str, float]] = {"scale": 0.0}

    @property
    def names(self) -> tuple[str, ...]:
        return ("spread", *(("dof",) if self.prior == "student_t" else ()))

    @property
    def kinked(self) -> bool:
        return self.prior == "laplace"

    def evidence(self, row: Any, m: Any, *phi: Any) -> Any:
        return log_prior(self.prior, row[0] - m, *phi) + 0.5 * LOG_2PI

    def errors(self, shared: Mapping[str, float]) -> Any:
        from scipy import stats

        scale = shared["spread"]
        return stats.laplace(scale=scale) if self.prior == "laplace" else stats.t(shared["dof"], scale=scale)


@dataclass(frozen=True)
class LocalDispersion(Law):
    """Every row has its own value of the family's nuisance parameter, log-normal around the common one."""

    closed: ClassVar[bool] = False
    local: ClassVar[str | None] = "dispersion"

    @property
    def names(self) -> tuple[str, ...]:
        return ("spread", *self.family.nuisance)

    def joint(self, own: Any, row: Any, m: Any, *phi: Any) -> Any:
        import jax.numpy as jnp

        return self.family.log_prob(*row, m, jnp.exp(own)) + log_prior("normal", own - phi[1], phi[0])


@dataclass(frozen=True)
class LocalPrecision(Law):
    r"""Every normal row has its own precision, a gamma: Student's t around the predictor.

    With :math:`\tau_i \sim \mathrm{Gamma}(\nu/2, \nu s^2/2)` and :math:`y_i \sim N(m_i, 1/\tau_i)` the evidence is that
    of :math:`t_\nu(m_i, s)`.
    """

    closed: ClassVar[bool] = True
    local: ClassVar[str | None] = "dispersion"

    @property
    def names(self) -> tuple[str, ...]:
        return ("scale", "dof")

    def evidence(self, row: Any, m: Any, *phi: Any) -> Any:
        return log_student_t((row[0] - m), *phi)

    def errors(self, shared: Mapping[str, float]) -> Any:
        from scipy import stats

        return stats.t(shared["dof"], scale=shared["scale"])


@dataclass(frozen=True)
class LocalLabel(Law):
    """Every 0/1 row may carry the wrong label, with a probability common to all."""

    closed: ClassVar[bool] = True
    local: ClassVar[str | None] = "label"
    outlier_rule: ClassVar[str] = "posterior"

    @property
    def names(self) -> tuple[str, ...]:
        return ("flip",)

    def evidence(self, row: Any, m: Any, *phi: Any) -> Any:
        import jax
        import jax.numpy as jnp

        flip = self.natural("flip", phi[0], jnp)
        return jnp.log(flip + (1.0 - 2.0 * flip) * jax.nn.sigmoid((2.0 * row[0] - 1.0) * m))


@dataclass(frozen=True)
class Shifted(Law):
    r"""Every row may be shifted, at a price: :math:`\max_\gamma \log p(y_i \mid m_i + \gamma) - |\gamma|/s`.

    Most shifts are exactly zero. For the normal this is Huber's loss; for others the L1 shift models of She & Owen
    (2011) and Tibshirani & Manning (2013).
    """

    closed: ClassVar[bool] = True
    local: ClassVar[str | None] = "predictor"

    @property
    def names(self) -> tuple[str, ...]:
        return ("spread", *self.family.nuisance)

    def shift(self, row: Any, m: Any, *phi: Any) -> Any:
        """The row's own shift."""
        import jax
        import jax.numpy as jnp
        from jax import lax

        from robustly.approx.climb import climb, look

        nuisance = self._nuisance(phi)
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

    def evidence(self, row: Any, m: Any, *phi: Any) -> Any:
        import jax.numpy as jnp
        from jax import lax

        # Held fixed, the shift is right for value and slope (it is at its best); the curvature of a shifted row is 0.
        shift = lax.stop_gradient(self.shift(row, lax.stop_gradient(m), *(lax.stop_gradient(p) for p in phi)))
        price = jnp.exp(-phi[0])
        slope = jnp.sign(shift) * price
        here = self.family.log_prob(*row, jnp.where(shift == 0, m, lax.stop_gradient(m) + shift), *self._nuisance(phi))
        return here - jnp.abs(shift) * price + jnp.where(shift == 0, 0.0, slope * (m - lax.stop_gradient(m)))


def log_prior(kind: str, away: Any, log_scale: Any, log_dof: Any = None) -> Any:
    """Log density of a row's own value at a distance from its centre."""
    import jax.numpy as jnp

    if kind == "normal":
        return -0.5 * (away * jnp.exp(-log_scale)) ** 2 - log_scale - 0.5 * LOG_2PI
    if kind == "laplace":
        return -jnp.abs(away) * jnp.exp(-log_scale) - log_scale - float(np.log(2.0))
    return log_student_t(away, log_scale, log_dof) - 0.5 * LOG_2PI


def log_student_t(away: Any, log_scale: Any, log_dof: Any) -> Any:
    """Student's t, up to the constant of the normal."""
    import jax.numpy as jnp
    from jax.scipy.special import gammaln

    half = 0.5 * jnp.exp(log_dof)
    # The two gamma functions cancel almost entirely when the law is nearly normal.
    some = jnp.minimum(half, 1e4)
    exact = gammaln(some + 0.5) - gammaln(some) - 0.5 * jnp.log(some)
    constant = jnp.where(half < 1e4, exact, -0.125 / half) - log_scale
    return constant - (half + 0.5) * jnp.log1p((away * jnp.exp(-log_scale)) ** 2 / (2.0 * half))


def law_of(family: Family, local: str | None, prior: str = "normal", solver: str = "newton") -> Law:
    """The law asked for, or an explanation why there is none."""
    if prior not in PRIORS:
        raise ModelError(f'prior takes "normal", "laplace" or "student_t"; {prior!r} came.')
    if local is None:
        return Classical(family)
    if local == "predictor":
        if isinstance(family, Normal) and prior == "normal":
            raise ModelError(
                "a normal response with a normal predictor of its own is a normal response with a larger variance: the "
                'two variances cannot be told apart. Localize the dispersion (local="dispersion", Student-t), or '
                'choose prior="laplace" or "student_t".'
            )
        return LocalPredictor(family, prior)
    if local == "dispersion":
        if isinstance(family, Normal):
            return LocalPrecision(family)
        if len(family.nuisance) == 1:
            return LocalDispersion(family)
        raise ModelError(
            f'{family} has no dispersion of its own to localize. Use local="predictor", or a family with one '
            "(Normal, Gamma, NegativeBinomial)."
        )
    if local == "label":
        if not isinstance(family, Bernoulli | Binomial):
            raise ModelError(f'local="label" is for 0/1 responses; the family is {family}. Choose family="bernoulli".')
        return LocalLabel(family)
    raise ModelError(f'local takes "predictor", "dispersion", "label" or None; {local!r} came.')
