r"""What if some rows do not belong at all? A law in two parts: a core, and a wide part for the rows that strayed.

.. math:: p(y_i) = (1 - \pi)\, p(y_i \mid m_i, \text{core}) + \pi\, p(y_i \mid m_i, \text{wide})

A heavy-tailed law has no line between rows that belong and rows that do not; this one has, and the probability of the wide
part given a row is the probability that the row does not belong. A strayed row is off by something, not by next to nothing, so
that the wide part does not take the edge of the core for its own: it is shifted by about `width` to either side, more or less by
`variation` of that. Many rows tell whether all strayed by as much, or each by its own. Measurements are shifted by so many
scales; for other responses the predictor is shifted, by :math:`u \sim \rho N(w, c^2w^2) + (1 - \rho) N(-w, c^2w^2)`, which is
integrated, with the share :math:`\rho` of strayed rows above (`side`) fitted: low counts overlap with a core that high ones do not.
Their spread is their own: one that held the core's as well would make strayed rows that are alike speak for a core without a spread.
Weak priors on `share`, `side`, `width` and `variation` keep the fit regular where no row strayed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from robustly.approx import Approximation, Exact
from robustly.approx.moments import Finish, Moments
from robustly.glm.families import Normal
from robustly.glm.family import Family
from robustly.glm.law import Description, Law
from robustly.glm.local import Classical, LocalPrecision, LocalPredictor, log_prior, log_student_t
from robustly.glm.measured_loop import measured_numbers, measured_sums
from robustly.glm.measured_parts import measured_moments
from robustly.model.row import RowModel
from robustly.result.two_part import (
    DOF,
    SHARE,
    SIDE,
    VARIATION,
    WIDTHS_OF_MEASUREMENTS,
    WIDTHS_OF_PREDICTORS,
    log_gauss,
    shifted_parts,
)

if TYPE_CHECKING:
    from jax import Array

    Row = tuple[Array, Array]
    Numbers = tuple[Array, ...]

# Points of an integral, how far down they go in nats, most steps to find the peak and these ends, and how closely.
NODES, DEPTH, CLIMB, WIDEN, NEAR = 16, 17.0, 14, 10, 1e-3
# Normal priors, on the scales that are searched: log odds of the share, logarithms of the others.
SPREAD = (float(np.log(0.5)), 1.0)
WIDE = ("variation", "width")
SHARES = ("side", "share")


@dataclass(frozen=True)
class Contaminated(Law):
    """A core law and a wide part, whose `share`, `width`, `variation` and, but for measurements, `side` are fitted along."""

    core: Law

    closed: ClassVar[bool] = True
    local: ClassVar[str | None] = "contamination"
    limits: ClassVar[Mapping[str, float]] = {"share": 0.0}

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.core.names, *(() if isinstance(self.family, Normal) else ("side",)), *WIDE, "share")

    @property
    def believed(self) -> Mapping[str, tuple[float, float]]:
        width = WIDTHS_OF_MEASUREMENTS if isinstance(self.family, Normal) else WIDTHS_OF_PREDICTORS
        found = {**believed_of_core(self.core), "share": SHARE, "width": width, "variation": VARIATION}
        return found if isinstance(self.family, Normal) else {**found, "side": SIDE}

    def natural(self, name: str, value: Any, xp: Any = np) -> Any:
        if name in SHARES:
            return 1.0 / (1.0 + xp.exp(-value))
        return xp.exp(value) if name in WIDE else self.core.natural(name, value, xp)

    def free(self, name: str, value: float) -> float:
        if name in SHARES:
            return float(np.log(value) - np.log1p(-value))
        return float(np.log(value)) if name in WIDE else self.core.free(name, value)

    def slope(self, name: str, value: float) -> float:
        found = float(self.natural(name, value))
        if name in SHARES:
            return found * (1.0 - found)
        return found if name in WIDE else self.core.slope(name, value)

    def bounds(self, name: str) -> tuple[float, float]:
        return (0.0, 1.0) if name in SHARES else super().bounds(name)

    def scale_of(self, name: str) -> str:
        return "unit" if name in SHARES else super().scale_of(name)

    @property
    def rule(self) -> Approximation | None:
        return PartsRule(self)

    def evidence(self, row: Any, m: Any, *phi: Any) -> Any:
        import jax.numpy as jnp

        state = self.places(row, (m, *phi), jnp.asarray(self.unseen(m, jnp)))
        return jnp.logaddexp(*self.parts(row, (m, *phi), state))

    @property
    def integrated(self) -> int:
        """How many integrals a row needs: one for each side that it may have strayed to, and one for a core with a spread."""
        if isinstance(self.family, Normal):
            return 0
        return 3 if isinstance(self.core, LocalPredictor) else 2

    @property
    def integrated_by_points(self) -> bool:
        return self.integrated > 0

    def width(self, y: np.ndarray, trials: np.ndarray, phi: np.ndarray) -> np.ndarray:
        return self.core.width(y, trials, phi)

    @property
    def loop(self) -> Callable[..., None] | None:
        return measured_sums if isinstance(self.family, Normal) else None

    def loop_numbers(self, phi: Sequence[float]) -> tuple[float, ...]:
        return measured_numbers(phi)

    def unseen(self, m: Any, xp: Any) -> Any:
        """What :meth:`places` begins with, of rows with the predictors `m`: their peaks, and ends that are not known yet."""
        place = xp.stack([m, 0.0 * m, 0.0 * m], axis=-1)
        return xp.concatenate([place] * self.integrated, axis=-1) if self.integrated else place[..., :0]

    def _integrals(self, numbers: Numbers) -> tuple[Array, Numbers]:
        """Centre and log spread of a row's own predictor, by integral, and dispersions: the core's, if it has one, first."""
        import jax.numpy as jnp

        m, *phi, _, variation, width, _ = numbers
        shift, log_spread = jnp.exp(width), width + variation
        strayed = [[m + shift, log_spread], [m - shift, log_spread]]
        if isinstance(self.core, LocalPredictor):
            spread, *phi = phi
            strayed = [[m, spread], *strayed]
        return jnp.array(strayed), tuple(phi)

    def _likelihood(self, row: Row, own: Any, nuisance: Iterable[Any]) -> Array:
        """Of a row whose predictor is its own."""
        import jax.numpy as jnp

        return self.family.log_prob_strayed(*row, own, *(jnp.exp(one) for one in nuisance))

    def _joint(self, row: Row) -> Callable[..., Array]:
        def joint(own: Any, m: Any, spread: Any, *nuisance: Any) -> Array:
            return self._likelihood(row, own, nuisance) + log_prior("normal", own - m, spread)

        return joint

    def places(self, row: Row, numbers: Numbers, state: Array) -> Array:
        """Where a row is looked at, searched for from `state`."""
        import jax

        if not self.integrated:
            return state
        still = jax.lax.stop_gradient(tuple(numbers))
        own, nuisance = self._integrals(still)
        one = lambda own, begin: find_ends(self._joint(row), (*own, *nuisance), begin)
        return jax.lax.stop_gradient(jax.vmap(one)(own, state.reshape(self.integrated, 3)).reshape(-1))

    def parts(self, row: Row, numbers: Numbers, state: Array) -> tuple[Array, Array]:
        """Log densities of one row in the core and in the wide part, each times its share."""
        both = self._measured(row, numbers) if isinstance(self.family, Normal) else self._shifted(row, numbers, state)
        return self._shares(numbers[-1], *both)

    @staticmethod
    def _shares(share: Array, core: Array, wide: Array) -> tuple[Array, Array]:
        import jax
        import jax.numpy as jnp

        # A row that one part makes impossible must not stop the search.
        return (
            jnp.maximum(core + jax.nn.log_sigmoid(-share), -1e300),
            jnp.maximum(wide + jax.nn.log_sigmoid(share), -1e300),
        )

    def _measured(self, row: Row, numbers: Numbers) -> tuple[Array, Array]:
        m, scale, *dof, variation, width, _ = numbers
        density = (lambda off, scale: log_student_t(off, scale, dof[0])) if dof else log_gauss
        return shifted_parts(row[0] - m, scale, variation, width, density)

    def _shifted(self, row: Row, numbers: Numbers, state: Array) -> tuple[Array, Array]:
        import jax

        own, nuisance = self._integrals(numbers)
        one = lambda own, place: log_integral(self._joint(row), (*own, *nuisance), place)
        return self._both(row, numbers, jax.vmap(one)(own, state.reshape(self.integrated, 3)))

    def _both(self, row: Row, numbers: Numbers, integrals: Array) -> tuple[Array, Array]:
        """Log densities in the core and in the wide part from the integrals there are."""
        import jax
        import jax.numpy as jnp

        *core, up, down = integrals
        side = numbers[-4]
        either = jnp.logaddexp(up + jax.nn.log_sigmoid(side), down + jax.nn.log_sigmoid(-side))
        return core[0] if core else self.core.evidence(row, *numbers[:-4]), either

    def near(self, row: Row, numbers: Numbers, state: Array) -> Callable[[Array], Array]:
        """A row's evidence as a function of its numbers, right to second order there: integrals enter by their derivatives.

        Differentiating points would cost many times as much as looking at them.
        """
        import jax
        import jax.numpy as jnp

        whole = lambda numbers: (lambda own, nuisance: jnp.stack([jnp.stack([*one, *nuisance]) for one in own]))(
            *self._integrals(numbers)
        )
        at = whole(jax.lax.stop_gradient(numbers))
        likelihood = lambda own, nuisance: self._likelihood(row, own, nuisance)
        known = jax.vmap(lambda at, place: integral_moments(likelihood, at, place))(
            at, state.reshape(self.integrated, 3)
        )
        value, slope, curve = jax.lax.stop_gradient(known)

        def evidence(given: Array) -> Array:
            moved = whole(tuple(given)) - at
            bent = jnp.einsum("ki,kij,kj->k", moved, curve, moved)
            integrals = value + jnp.einsum("ki,ki->k", slope, moved) + 0.5 * bent
            return jnp.logaddexp(*self._shares(given[-1], *self._both(row, tuple(given), integrals)))

        return evidence

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
class PartsRule(Exact):
    """How a row of two parts is looked at: each part at points that are found once a pass."""

    law: Contaminated

    def check(self, model: RowModel) -> None:
        pass

    def describe(self) -> str:
        return "closed form" if not self.law.integrated else f"quadrature with {NODES} points a row and part"

    def start(self, model: RowModel) -> np.ndarray:
        return np.zeros(3 * self.law.integrated)

    def start_at(self, model: RowModel, rows: Any, numbers: Any, count: int) -> np.ndarray:
        return self.law.unseen(np.broadcast_to(np.asarray(numbers[0], dtype=float), count), np)

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

        if not self.law.integrated:
            evidence, slope, curve = measured_moments(row[0], numbers)
            return Moments(evidence, evidence, slope, curve)
        given = jnp.stack([jnp.asarray(number, dtype=float) for number in numbers])
        near = self.law.near(row, tuple(given), state)
        value, slope = jax.value_and_grad(near)(given)
        return Moments(value, value, slope, jax.hessian(near)(given))


def find_ends(joint: Callable[..., Array], numbers: Numbers, begin: Array) -> Array:
    """The peak of a density with one peak, and how far to the left and to the right of it the density falls by `DEPTH` nats.

    Searched for from where they were before; from there a step or two do.
    """
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

    mode, _, _ = jax.lax.while_loop(
        lambda seen: (seen[1] > NEAR) & (seen[2] < CLIMB), climb, (begin[0], jnp.ones_like(begin[0]), 0)
    )
    top, width = density(mode), jnp.minimum(1.0 / jnp.sqrt(jnp.maximum(-bend(mode), 1e-12)), jnp.exp(numbers[1]))
    sides = jnp.array([-1.0, 1.0])
    fall = lambda length: top - density(mode + sides * length)
    ends = jnp.where(begin[1:] > 0, begin[1:], np.sqrt(2.0 * DEPTH) * width)

    def widen(seen: Any) -> Any:
        length, there, turn = seen
        length = length * jnp.clip(jnp.sqrt(DEPTH / jnp.maximum(there, 1e-6)), 0.2, 3.0)
        return length, fall(length), turn + 1

    ends, _, _ = jax.lax.while_loop(
        lambda seen: (jnp.max(jnp.abs(seen[1] - DEPTH)) > 0.1 * DEPTH) & (seen[2] < WIDEN), widen, (ends, fall(ends), 0)
    )
    return jnp.concatenate([mode[None], ends])


def points_of(place: Array) -> tuple[Array, Array]:
    """Points of a trapezoid rule from end to end, and the logarithm of their step: few do for a smooth peak.

    Where exactly they sit matters only to the integration error, of which there is next to none.
    """
    import jax.numpy as jnp

    mode, low, high = place
    step = (low + high) / (NODES - 1)
    return mode - low + step * jnp.arange(NODES), jnp.log(step)


def log_integral(joint: Callable[..., Array], numbers: Numbers, place: Array) -> Array:
    """log ∫ exp joint(u, numbers) du, at points that stay where they are."""
    import jax

    points, logs = points_of(place)
    return jax.scipy.special.logsumexp(joint(points, *numbers) + logs)


def integral_moments(
    likelihood: Callable[[Array, Array], Array], numbers: Array, place: Array
) -> tuple[Array, Array, Array]:
    r"""As :func:`log_integral` of a likelihood times N(u; centre, spread²), with slope and curvature in the numbers.

    Numbers are the centre, the log spread and what else the likelihood sees. With g and h the slope and the curvature of the
    integrand's logarithm at a point, the slope is :math:`E g` and the curvature :math:`E h + \mathrm{Cov}\, g`, in shares of the integral.
    """
    import jax
    import jax.numpy as jnp

    points, logs = points_of(place)
    centre, log_spread, nuisance = numbers[0], numbers[1], numbers[2:]
    inverse = jnp.exp(-log_spread)
    z = (points - centre) * inverse
    seen = lambda nuisance: likelihood(points, nuisance)
    height = seen(nuisance) + log_prior("normal", points - centre, log_spread) + logs
    top = jnp.max(height)
    share = jnp.exp(height - top)
    total = jnp.sum(share)
    share = share / total
    slopes = [z * inverse, z**2 - 1.0]
    own = {(0, 0): -(inverse**2), (0, 1): -2.0 * inverse * (share @ z), (1, 1): -2.0 * (share @ z**2)}
    if len(nuisance):
        slopes += list(jax.jacfwd(seen)(nuisance).T)
        bent = jnp.einsum("p,pij->ij", share, jax.jacfwd(jax.jacfwd(seen))(nuisance))
        own |= {(2 + i, 2 + j): bent[i, j] for i in range(len(nuisance)) for j in range(len(nuisance)) if i <= j}
    means = [share @ one for one in slopes]
    size = len(slopes)
    curve = [[jnp.zeros(())] * size for _ in range(size)]
    for i in range(size):
        for j in range(i, size):
            covariance = share @ ((slopes[i] - means[i]) * (slopes[j] - means[j]))
            curve[i][j] = curve[j][i] = covariance + own.get((i, j), 0.0)
    return top + jnp.log(total), jnp.stack(means), jnp.array(curve)


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
