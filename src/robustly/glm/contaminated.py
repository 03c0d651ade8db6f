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
from robustly.approx.moments import Finish, Moments, second_order
from robustly.glm.families import Normal
from robustly.glm.family import Family
from robustly.glm.law import Description, Law
from robustly.glm.local import Classical, LocalPrecision, LocalPredictor, log_prior, log_student_t
from robustly.glm.measured_loop import measured_numbers, measured_sums
from robustly.glm.measured_parts import measured_moments
from robustly.glm.part_moments import PartDensity, RowPart, log_shares, moments_of_parts
from robustly.glm.predictor_integrals import (
    CENTRE,
    DISPERSIONS,
    LOG_SPREAD,
    NODES,
    find_ends,
    integral_density,
    log_integral,
)
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

    def moments(self, row: Row, numbers: Numbers, state: Array) -> tuple[Array, Array, Array]:
        """A row's evidence with its slope and curvature in its numbers."""
        import jax
        import jax.numpy as jnp

        names, given = ("m", *self.names), tuple(jnp.asarray(number, dtype=float) for number in numbers)
        side, _, width, share = given[-4:]
        own, nuisance = self._integrals(given)
        likelihood = lambda u, *nuisance: self._likelihood(row, u, nuisance)
        density = lambda own, place: integral_density(likelihood, own[0], own[1], nuisance, place)
        found = jax.vmap(density)(own, state.reshape(self.integrated, 3))
        *core, up, down = (jax.tree.map(lambda whole, k=k: whole[k], found) for k in range(self.integrated))
        dispersions = {name: {DISPERSIONS + i: 1.0} for i, name in enumerate(self.family.nuisance)}
        (log_strayed, strayed), (log_core, belongs) = log_shares(share)
        if core:
            moves = {"m": {CENTRE: 1.0}, "spread": {LOG_SPREAD: 1.0}, **dispersions}
        else:
            value, slope, curve = second_order(lambda *some: self.core.evidence(row, *some), given[:-4])
            bends = {(i, j): curve[i, j] for i in range(len(slope)) for j in range(i, len(slope))}
            core, moves = [PartDensity(value, slope, bends)], {name: {i: 1.0} for i, name in enumerate(names[:-4])}
        parts = [RowPart(core[0], log_core, {"share": belongs}, moves, {})]
        for strays, sign, (log_side, tilt) in zip((up, down), (1.0, -1.0), log_shares(side)):
            shift, tilts = sign * jnp.exp(width), {"share": strayed, "side": tilt}
            wide = {"variation": {LOG_SPREAD: 1.0}, "width": {CENTRE: shift, LOG_SPREAD: 1.0}}
            moves = {"m": {CENTRE: 1.0}, **wide, **dispersions}
            parts.append(RowPart(strays, log_strayed + log_side, tilts, moves, {("width", "width"): {CENTRE: shift}}))
        return moments_of_parts(names, parts)

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

    @property
    def repays_compiling(self) -> bool:
        return self.law.integrated_by_points

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
        if not self.law.integrated:
            evidence, slope, curve = measured_moments(row[0], numbers)
            return Moments(evidence, evidence, slope, curve)
        value, slope, curve = self.law.moments(row, numbers, state)
        return Moments(value, value, slope, curve)


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
