r"""What does a row have of its own? Nothing, its predictor, its dispersion, or a wrong label.

Each answer is a :class:`~robustly.glm.law.Law`. A *closed* law gives the evidence itself; the others give the joint density
of the response and the row's own value, which :mod:`robustly.approx` integrates.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from robustly.glm.law import Array, Description, Law, OwnValues
from robustly.glm.local_predictor import LocalPredictor, Noiseless, Shifted
from robustly.glm.priors import LOG_2PI, NO_SPREAD, log_prior, log_student_t, spread_values
from robustly.glm.student_loop import student_numbers, student_sums
from robustly.result.outliers import POSTERIOR

__all__ = [
    "LOG_2PI",
    "Classical",
    "Law",
    "LocalDispersion",
    "LocalLabel",
    "LocalPrecision",
    "LocalPredictor",
    "Noiseless",
    "Shifted",
    "log_prior",
    "log_student_t",
]


@dataclass(frozen=True)
class Classical(Law):
    """Nothing is local: the generalized linear model as it always was."""

    @property
    def names(self) -> tuple[str, ...]:
        return self.family.nuisance

    def evidence(self, row: Any, m: Any, *phi: Any) -> Any:
        return self.family.log_prob(*row, m, *self.traced_nuisance(phi))

    def describe(self) -> Description:
        return Description("classical", "nothing (classical model)", "y_i ~ p(· | m_i)")


@dataclass(frozen=True)
class LocalDispersion(Law):
    """Every row has its own value of the family's nuisance parameter, log-normal around the common one."""

    closed: ClassVar[bool] = False
    local: ClassVar[str | None] = "dispersion"
    picture: ClassVar[str | None] = "density"
    limits: ClassVar[Mapping[str, float]] = {"spread": 0.0}

    @property
    def names(self) -> tuple[str, ...]:
        return ("spread", *self.family.nuisance)

    def joint(self, own: Any, row: Any, m: Any, *phi: Any) -> Any:
        import jax.numpy as jnp

        return self.family.log_prob(*row, m, jnp.exp(own)) + log_prior("normal", own - phi[1], phi[0])

    def describe(self) -> Description:
        return Description(
            "own dispersion",
            "every row has its own dispersion",
            f"log φ_i ~ N(log {self.family.nuisance[0]}, spread²), y_i ~ p(· | m_i, φ_i)",
        )

    def difference(self, shared: Mapping[str, float], fitted: Collection[str]) -> str:
        return f"Rows differ in dispersion: its logarithm is spread with scale {shared['spread']:.3g}."

    @property
    def boundary_text(self) -> str:
        return NO_SPREAD.format("dispersions")

    def own_values(
        self, y: Array, predictor: Array, phi: Sequence[float], posterior_mean: Callable[[], Array]
    ) -> OwnValues:
        away = np.reshape(posterior_mean(), -1) - np.log(self.nuisance(phi)[0])
        return spread_values("normal", away, "log dispersion", float(np.exp(phi[0])))


@dataclass(frozen=True)
class LocalPrecision(Law):
    r"""Every normal row has its own precision, a gamma: Student's t around the predictor.

    With :math:`\tau_i \sim \mathrm{Gamma}(\nu/2, \nu s^2/2)` and :math:`y_i \sim N(m_i, 1/\tau_i)` the evidence is that
    of :math:`t_\nu(m_i, s)`.
    """

    closed: ClassVar[bool] = True
    local: ClassVar[str | None] = "dispersion"
    picture: ClassVar[str | None] = "density"
    limits: ClassVar[Mapping[str, float]] = {"dof": np.inf}
    caveats: ClassVar[tuple[str, ...]] = (
        "A law that works row by row on the response does not resist rows with outlying columns (leverage): look at the "
        "influence of rows, and use an MM-estimator when columns may be wild.",
    )

    @property
    def names(self) -> tuple[str, ...]:
        return ("scale", "dof")

    def evidence(self, row: Any, m: Any, *phi: Any) -> Any:
        return log_student_t((row[0] - m), *phi)

    @property
    def loop(self) -> Callable[..., None]:
        return student_sums

    def loop_numbers(self, phi: Sequence[float]) -> tuple[float, ...]:
        return student_numbers(*phi)

    def errors(self, shared: Mapping[str, float]) -> Any:
        from scipy import stats

        return stats.t(shared["dof"], scale=shared["scale"])

    def describe(self) -> Description:
        symbols = "τ_i ~ Gamma(dof/2, dof·scale²/2), y_i ~ N(m_i, 1/τ_i)"
        return Description("own precision", "every row has its own dispersion", symbols)

    def difference(self, shared: Mapping[str, float], fitted: Collection[str]) -> str:
        held = "" if "dof" in fitted else " (held there)"
        return f"Rows differ in precision: errors are Student t with {shared['dof']:.3g} degrees of freedom{held}."

    @property
    def boundary_text(self) -> str:
        return "the residuals have no heavier tails than a normal, so the normal model (dof = ∞) is returned."

    def own_values(
        self, y: Array, predictor: Array, phi: Sequence[float], posterior_mean: Callable[[], Array]
    ) -> OwnValues:
        r"""Relative precisions: :math:`\tau_i s^2 \sim \mathrm{Gamma}(\nu/2, \nu/2)`, found at :math:`(\nu+1)/(\nu+z_i^2)`."""
        from scipy import stats

        scale, dof = np.exp(phi)
        found = (dof + 1.0) / (dof + ((y - predictor) / scale) ** 2)
        return OwnValues(
            found,
            stats.gamma(0.5 * dof, scale=2.0 / dof).pdf,
            low=0.005,
            high=max(3.0, 1.1 * float(found.max(initial=1.0))),
            axis="a row's own precision, relative to the common one",
            prior=f"fitted prior, {dof:.3g} degrees of freedom",
            unbounded=True,
        )


@dataclass(frozen=True)
class LocalLabel(Law):
    """Every 0/1 row may carry the wrong label, with a probability common to all."""

    closed: ClassVar[bool] = True
    local: ClassVar[str | None] = "label"
    picture: ClassVar[str | None] = "doubts"
    limits: ClassVar[Mapping[str, float]] = {"flip": 0.0}
    judged_by: ClassVar[str] = POSTERIOR

    @property
    def names(self) -> tuple[str, ...]:
        return ("flip",)

    def natural(self, name: str, value: Any, xp: Any = np) -> Any:
        """Half a logistic curve: more than half of the labels wrong would be the same law with the classes exchanged."""
        return 0.5 / (1.0 + xp.exp(-value))

    def free(self, name: str, value: float) -> float:
        return float(np.log(2.0 * value / max(1.0 - 2.0 * value, 1e-16)))

    def slope(self, name: str, value: float) -> float:
        found = float(self.natural(name, value))
        return found * (1.0 - 2.0 * found)

    def bounds(self, name: str) -> tuple[float, float]:
        return 0.0, 0.5

    def evidence(self, row: Any, m: Any, *phi: Any) -> Any:
        import jax
        import jax.numpy as jnp

        flip = self.natural("flip", phi[0], jnp)
        return jnp.log(flip + (1.0 - 2.0 * flip) * jax.nn.sigmoid((2.0 * row[0] - 1.0) * m))

    def describe(self) -> Description:
        symbols = "P(y_i = 1) = flip + (1 − 2 flip) · expit(m_i)"
        return Description("wrong labels", "labels may be wrong", symbols)

    def difference(self, shared: Mapping[str, float], fitted: Collection[str]) -> str:
        return f"About {shared['flip']:.1%} of the labels look wrong."

    @property
    def boundary_text(self) -> str:
        return "no share of wrong labels does better than none, so the classical model is returned."

    def tail_probabilities(
        self, y: Array, predictor: Array, shared: Mapping[str, float], cumulative: Callable[[], tuple[Array, Array]]
    ) -> Array:
        """The probability that the label is right."""
        from scipy.special import expit

        flip, right = shared["flip"], expit((2.0 * y - 1.0) * predictor)
        return (1.0 - flip) * right / ((1.0 - flip) * right + flip * (1.0 - right))

    @property
    def picture_caption(self) -> str:
        return "The fitted share of wrong labels, and how doubtful each row is."
