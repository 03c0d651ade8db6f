r"""What if some rows do not belong at all? A law in two parts: a core, and a wide part for the rows that strayed.

.. math:: p(y_i) = (1 - \pi)\, p(y_i \mid m_i, \text{core}) + \pi\, p(y_i \mid m_i, \text{wide})

A heavy-tailed law has no line between rows that belong and rows that do not; this one has, and the probability of the wide
part given a row is the probability that the row does not belong. A strayed row is off by something, not by next to nothing, so
that the wide part does not take the edge of the core for its own. Measurements are shifted by about `width` scales to either side,
more or less by `variation` of that: many rows tell whether all strayed by as much, or each by its own. For other responses the
predictor is shifted by :math:`u \sim (u/w)^2 N(0, w^2)`, a normal times its square (the moment prior of Johnson & Rossell 2010),
which is integrated. Weak priors on `share`, `width` and `variation` keep the fit regular where no row strayed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from robustly.approx import Approximation, Exact
from robustly.approx.moments import Finish, Moments
from robustly.glm.families import Normal
from robustly.glm.family import Family
from robustly.glm.law import Description, Law
from robustly.glm.local import Classical, LocalLabel, LocalPrecision, LocalPredictor, log_prior, log_student_t
from robustly.model.row import RowModel
from robustly.result.two_part import DOF, SHARE, VARIATION, WIDTHS_OF_MEASUREMENTS, log_gauss, shifted_parts

if TYPE_CHECKING:
    from jax import Array

    Row = tuple[Array, Array]
    Numbers = tuple[Array, ...]

# Points on each side of a row's peak, how far down they go in nats, most steps to find the peak and these ends, and how closely.
NODES, DEPTH, CLIMB, WIDEN, NEAR = 12, 20.0, 14, 10, 1e-3
# Normal priors, on the scales that are searched: log odds of the share, logarithms of the others.
WIDTHS_OF_PREDICTORS = (float(np.log(2.0)), 0.6)
SPREAD = (float(np.log(0.5)), 1.0)
MARGIN = (float(np.log(2.0)), 0.7)
WIDE = ("variation", "width")


@dataclass(frozen=True)
class Contaminated(Law):
    """A core law and a wide part, whose `share`, `width` and, of measurements, `variation` are fitted along."""

    core: Law

    closed: ClassVar[bool] = True
    local: ClassVar[str | None] = "contamination"
    limits: ClassVar[Mapping[str, float]] = {"share": 0.0}

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.core.names, *(("variation",) if isinstance(self.family, Normal) else ()), "width", "share")

    @property
    def believed(self) -> Mapping[str, tuple[float, float]]:
        core = {**believed_of_core(self.core), "share": SHARE}
        if isinstance(self.family, Normal):
            return {**core, "width": WIDTHS_OF_MEASUREMENTS, "variation": VARIATION}
        return {**core, "width": WIDTHS_OF_PREDICTORS}

    def natural(self, name: str, value: Any, xp: Any = np) -> Any:
        if name == "share":
            return 1.0 / (1.0 + xp.exp(-value))
        return xp.exp(value) if name in WIDE else self.core.natural(name, value, xp)

    def free(self, name: str, value: float) -> float:
        if name == "share":
            return float(np.log(value) - np.log1p(-value))
        return float(np.log(value)) if name in WIDE else self.core.free(name, value)

    def slope(self, name: str, value: float) -> float:
        found = float(self.natural(name, value))
        if name == "share":
            return found * (1.0 - found)
        return found if name in WIDE else self.core.slope(name, value)

    def bounds(self, name: str) -> tuple[float, float]:
        return (0.0, 1.0) if name == "share" else super().bounds(name)

    def scale_of(self, name: str) -> str:
        return "unit" if name == "share" else super().scale_of(name)

    @property
    def rule(self) -> Approximation | None:
        return PartsRule(self)

    def evidence(self, row: Any, m: Any, *phi: Any) -> Any:
        import jax.numpy as jnp

        state = self.places(row, (m, *phi), jnp.full(self.size, m))
        return jnp.logaddexp(*self.parts(row, (m, *phi), state))

    @property
    def size(self) -> int:
        """How many numbers say where a row is looked at: a peak and two ends for each part that is integrated."""
        if isinstance(self.family, Normal):
            return 0
        return 6 if isinstance(self.core, LocalPredictor) else 3

    def _integrals(self, numbers: Numbers) -> list[Numbers]:
        """The numbers of the parts in which rows have predictors of their own: predictor, log of their spread, dispersions."""
        import jax.numpy as jnp

        m, *phi, width, _ = numbers
        if isinstance(self.core, LocalPredictor):
            spread, *nuisance = phi
            return [(m, spread, *nuisance), (m, 0.5 * jnp.logaddexp(2.0 * width, 2.0 * spread), *nuisance)]
        return [(m, width, *phi)]

    def _joint(self, row: Row) -> Callable[..., Array]:
        import jax.numpy as jnp

        def joint(own: Any, m: Any, spread: Any, *nuisance: Any) -> Array:
            likelihood = self.family.log_prob(*row, own, *(jnp.exp(one) for one in nuisance))
            return likelihood + log_prior("normal", own - m, spread)

        return joint

    def places(self, row: Row, numbers: Numbers, state: Array) -> Array:
        """Where a row is looked at, searched for from `state`."""
        import jax
        import jax.numpy as jnp

        if not self.size:
            return state
        still = jax.lax.stop_gradient(tuple(numbers))
        found = [find_ends(self._joint(row), one, state[3 * place]) for place, one in enumerate(self._integrals(still))]
        return jax.lax.stop_gradient(jnp.concatenate(found))

    def parts(self, row: Row, numbers: Numbers, state: Array) -> tuple[Array, Array]:
        """Log densities of one row in the core and in the wide part, each times its share."""
        import jax
        import jax.numpy as jnp

        share = numbers[-1]
        core, wide = (
            self._measured(row, numbers) if isinstance(self.family, Normal) else self._spread(row, numbers, state)
        )
        # A row that one part makes impossible must not stop the search.
        return jnp.maximum(core + jax.nn.log_sigmoid(-share), -1e300), jnp.maximum(
            wide + jax.nn.log_sigmoid(share), -1e300
        )

    def _measured(self, row: Row, numbers: Numbers) -> tuple[Array, Array]:
        m, scale, *dof, variation, width, _ = numbers
        density = (lambda off, scale: log_student_t(off, scale, dof[0])) if dof else log_gauss
        return shifted_parts(row[0] - m, scale, variation, width, density)

    def _spread(self, row: Row, numbers: Numbers, state: Array) -> tuple[Array, Array]:
        *core, wide = [
            log_integral(self._joint(row), one, state[3 * place : 3 * place + 3])
            for place, one in enumerate(self._integrals(numbers))
        ]
        return core[0][0] if core else self.core.evidence(row, *numbers[:-2]), wide[1]

    def describe(self) -> Description:
        return Description(
            f"{self.core.describe().name}, contaminated",
            "some rows may not belong",
            f"(1 − share) · core + share · wide, core: {self.core.describe().symbols}",
        )

    def difference(self, shared: Mapping[str, float], fitted: Collection[str]) -> str:
        return f"About {shared['share']:.1%} of the rows do not belong."

    @property
    def boundary_text(self) -> str:
        return "no share of rows that do not belong does better than none, so the classical model is returned."


@dataclass(frozen=True)
class MarginLabel(LocalLabel):
    r"""Wrong labels that are commoner far from the boundary: at the rate :math:`\mathrm{flip} \cdot m^4 / (m^4 + \mathrm{margin}^4)`.

    A label close to the boundary is easily wrong by itself, whoever wrote it down; a rate common to all rows blames the writer.
    """

    @property
    def names(self) -> tuple[str, ...]:
        return ("flip", "margin")

    @property
    def believed(self) -> Mapping[str, tuple[float, float]]:
        return {"margin": MARGIN}

    def natural(self, name: str, value: Any, xp: Any = np) -> Any:
        return xp.exp(value) if name == "margin" else super().natural(name, value, xp)

    def free(self, name: str, value: float) -> float:
        return float(np.log(value)) if name == "margin" else super().free(name, value)

    def slope(self, name: str, value: float) -> float:
        return float(np.exp(value)) if name == "margin" else super().slope(name, value)

    def bounds(self, name: str) -> tuple[float, float]:
        return (0.0, float("inf")) if name == "margin" else super().bounds(name)

    def rate(self, m: Any, flip: Any, margin: Any, xp: Any) -> Array:
        """How often the label of a row with this predictor is wrong, from numbers on the free scale."""
        ratio = xp.exp(4.0 * margin)
        return self.natural("flip", flip, xp) * m**4 / (m**4 + ratio)

    def evidence(self, row: Any, m: Any, *phi: Any) -> Any:
        import jax
        import jax.numpy as jnp

        rate = self.rate(m, phi[0], phi[1], jnp)
        return jnp.log(rate + (1.0 - 2.0 * rate) * jax.nn.sigmoid((2.0 * row[0] - 1.0) * m))


@dataclass(frozen=True)
class PartsRule(Exact):
    """How a row of two parts is looked at: each part at points that are found once a pass."""

    law: Contaminated

    def check(self, model: RowModel) -> None:
        pass

    def describe(self) -> str:
        return "closed form" if not self.law.size else f"quadrature with {2 * NODES} points a row and part"

    def start(self, model: RowModel) -> np.ndarray:
        return np.zeros(self.law.size)

    def start_at(self, model: RowModel, rows: Any, numbers: Any, count: int) -> np.ndarray:
        start = np.broadcast_to(np.asarray(numbers[0], dtype=float), count)
        return np.repeat(start[:, None], self.law.size, axis=1)

    def find_mode(self, model: RowModel, vector: Any, row: Any, state: Any) -> Any:
        return self.law.places(row, vector, state)

    def evidence(self, model: RowModel, vector: Any, row: Any, state: Any) -> Any:
        import jax.numpy as jnp

        return jnp.logaddexp(*self.law.parts(row, vector, state))

    def moments(
        self, model: RowModel, finish: Finish, numbers: Any, row: Any, z: Any, state: Any, rough: Any
    ) -> Moments:
        import jax
        import jax.numpy as jnp

        given = jnp.stack([jnp.asarray(number, dtype=float) for number in numbers])
        evidence = lambda stacked: self.evidence(model, tuple(stacked), row, state)
        value, slope = jax.value_and_grad(evidence)(given)
        return Moments(value, value, slope, jax.hessian(evidence)(given))


def find_ends(joint: Callable[..., Array], numbers: Numbers, start: Array) -> Array:
    """The peak of a density with one peak, and how far to the left and to the right of it the density falls by `DEPTH` nats."""
    import jax
    import jax.numpy as jnp

    density = lambda u: joint(u, *numbers)
    slope = jax.grad(density)
    bend = jax.grad(slope)

    def climb(seen: Any) -> Any:
        # Left of its peak a count has almost no curvature, and a full step would land where exp overflows.
        u, _, turn = seen
        step = jnp.clip(-slope(u) / jnp.minimum(bend(u), -1e-12), -1.0, 1.0)
        return u + step, jnp.abs(step), turn + 1

    # From where the row was before, a step or two do.
    mode, _, _ = jax.lax.while_loop(
        lambda seen: (seen[1] > NEAR) & (seen[2] < CLIMB), climb, (start, jnp.ones_like(start), 0)
    )
    top, width = density(mode), jnp.minimum(1.0 / jnp.sqrt(jnp.maximum(-bend(mode), 1e-12)), jnp.exp(numbers[1]))
    sides = jnp.array([-1.0, 1.0])

    def widen(seen: Any) -> Any:
        length, _, turn = seen
        fall = top - density(mode + sides * length)
        return (
            length * jnp.clip(jnp.sqrt(DEPTH / jnp.maximum(fall, 1e-6)), 0.2, 3.0),
            jnp.max(jnp.abs(fall - DEPTH)),
            turn + 1,
        )

    ends, _, _ = jax.lax.while_loop(
        lambda seen: (seen[1] > 0.1 * DEPTH) & (seen[2] < WIDEN),
        widen,
        (np.sqrt(2.0 * DEPTH) * width * jnp.ones(2), jnp.asarray(jnp.inf, dtype=width.dtype), 0),
    )
    return jnp.concatenate([mode[None], ends])


def log_integral(joint: Callable[..., Array], numbers: Numbers, place: Array) -> tuple[Array, Array]:
    """log ∫ exp joint(u, numbers) du, and log ∫ ((u − m)/spread)² exp joint du, at points that stay where they are.

    Gauss–Legendre rules to both sides of the peak. Where exactly the points sit matters only to the integration error, of
    which there is next to none.
    """
    import jax
    import jax.numpy as jnp

    node, weight = np.polynomial.legendre.leggauss(NODES)
    mode, low, high = place
    points = jnp.concatenate([mode - 0.5 * low * (node + 1.0), mode + 0.5 * high * (node + 1.0)])
    logs = jnp.concatenate([jnp.log(0.5 * low) + np.log(weight), jnp.log(0.5 * high) + np.log(weight)])
    height = joint(points, *numbers) + logs
    square = ((points - numbers[0]) * jnp.exp(-numbers[1])) ** 2
    return jax.scipy.special.logsumexp(height), jax.scipy.special.logsumexp(height, b=square)


def believed_of_core(core: Law) -> dict[str, tuple[float, float]]:
    """Weak priors of what a core has beside its coefficients and dispersions, as mean and deviation on the free scale."""
    if isinstance(core, LocalPredictor):
        return {"spread": SPREAD}
    return {"dof": DOF} if isinstance(core, LocalPrecision) else {}


def cores_of(law: Law) -> list[Law]:
    """The laws that rows that belong may have, the plainest first."""
    family = law.family
    if isinstance(family, Normal):
        return [Classical(family), LocalPrecision(family)]
    dispersed = bool(family.nuisance)
    return [Classical(family)] if dispersed else [Classical(family), LocalPredictor(family)]


def contaminated_with(family: Family, size: int) -> Contaminated:
    """The law with so many shared numbers: its cores differ in them."""
    laws = [Contaminated(family, core) for core in cores_of(Classical(family))]
    return next((law for law in laws if len(law.names) == size), laws[0])
