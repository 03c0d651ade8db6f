r"""What must a law of one row say? Its density, and of itself: what is local, its numbers, its boundary, its outliers.

A :class:`Law` is the log density of one row as a function of its predictor :math:`m` and a few numbers :math:`\varphi` that
all rows share, on scales without walls. Everything that pages, summaries and searches say about a particular law is asked of
it here, so that a new law is one class and nothing elsewhere has to know its type.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from robustly.approx import Approximation
from robustly.glm.family import Family
from robustly.result.laws import two_sided
from robustly.result.outliers import TAILS

if TYPE_CHECKING:
    import jax

Array = np.ndarray


@dataclass(frozen=True)
class Description:
    """A law in words: its `name`, what is `local`, and the model in `symbols`."""

    name: str
    local: str
    symbols: str


@dataclass(frozen=True)
class OwnValues:
    """What rows have of their own and the fitted law of it, ready to be drawn."""

    by_row: Array
    density: Callable[[Array], Array]
    low: float
    high: float
    axis: str
    prior: str
    """The fitted law, for a legend."""
    unbounded: bool = False
    """Whether the density may be infinite at an end of its range."""


@dataclass(frozen=True)
class Law(ABC):
    """How one row is distributed, given its predictor and the shared numbers called `names`."""

    family: Family

    closed: ClassVar[bool] = True
    local: ClassVar[str | None] = None
    picture: ClassVar[str | None] = None
    """How rows' own values are drawn: as a ``"density"``, as ``"shifts"``, as ``"doubts"`` about labels; None, not at all."""
    limits: ClassVar[Mapping[str, float]] = {}
    """Values of shared numbers at which the law is the classical one."""
    implied: ClassVar[Mapping[str, float]] = {}
    """Numbers that are not among `names` because the law fixes them."""
    judged_by: ClassVar[str] = TAILS
    """How tail probabilities are read: see :func:`robustly.result.outliers.stand_out`."""
    caveats: ClassVar[tuple[str, ...]] = ()
    """What a reader of any fit of this law should know."""
    meanings: ClassVar[Mapping[str, str]] = {
        "spread": "scale of the rows' own values",
        "dof": "degrees of freedom",
        "scale": "scale of the noise",
        "shape": "shape of the gamma responses",
        "size": "size of the negative binomial counts",
        "flip": "share of wrong labels",
    }

    @property
    def kinked(self) -> bool:
        """Whether a row's density has a corner in its predictor, so that it has no curvature to observe."""
        return False

    # ------------------------------------------------------------------ the numbers all rows share

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """What the shared numbers are called."""

    def natural(self, name: str, value: Any, xp: Any = np) -> Any:
        """A shared number on its own scale: above zero, unless the law says otherwise."""
        return xp.exp(value)

    def free(self, name: str, value: float) -> float:
        """The inverse of :meth:`natural`."""
        return float(np.log(value))

    def slope(self, name: str, value: float) -> float:
        """d natural / d free."""
        return float(self.natural(name, value))

    def bounds(self, name: str) -> tuple[float, float]:
        """Between which values a shared number lies."""
        return 0.0, float("inf")

    def scale_of(self, name: str) -> str:
        """The scale on which intervals of a shared number are symmetric."""
        return "half_logit" if self.bounds(name)[1] == 0.5 else "log"

    def meaning(self, name: str) -> str:
        """A shared number in words."""
        return self.meanings.get(name, name)

    @cached_property
    def nuisance_places(self) -> tuple[int, ...]:
        """Where in `names` the family's nuisance parameters stand."""
        return tuple(self.names.index(name) for name in self.family.nuisance if name in self.names)

    def nuisance(self, phi: Any) -> tuple[float, ...]:
        """The family's nuisance parameters, as numbers."""
        return tuple(float(np.exp(phi[place])) for place in self.nuisance_places)

    def traced_nuisance(self, phi: jax.Array) -> tuple[Any, ...]:
        import jax.numpy as jnp

        return tuple(jnp.exp(phi[place]) for place in self.nuisance_places)

    @property
    def believed(self) -> Mapping[str, tuple[float, float]]:
        """Normal priors of shared numbers, as mean and standard deviation on the scale without walls; most have none."""
        return {}

    # ------------------------------------------------------------------ densities

    @property
    def rule(self) -> Approximation | None:
        """How rows of a closed law are looked at; None, by its evidence alone."""
        return None

    @property
    def loop(self) -> Callable[..., None] | None:
        """A compiled loop that adds up many rows' slopes and curvatures in closed form (see
        :func:`~robustly.model.column_sums.summed_by`); None, they are differentiated one by one."""
        return None

    def loop_numbers(self, phi: Sequence[float]) -> tuple[float, ...]:
        """What :attr:`loop` takes besides the rows."""
        return ()

    def evidence(self, row: tuple[jax.Array, jax.Array], m: jax.Array, *phi: jax.Array) -> jax.Array:
        """Log density of one row; closed laws only."""
        raise NotImplementedError

    def joint(self, own: jax.Array, row: tuple[jax.Array, jax.Array], m: jax.Array, *phi: jax.Array) -> jax.Array:
        """Log density of one row and its own value; the others."""
        raise NotImplementedError

    @property
    def integrated_by_points(self) -> bool:
        """Whether a row takes an integral, so that of many equal ones a table pays."""
        return not self.closed

    def width(self, y: Array, trials: Array, phi: Array) -> Array:
        """Over what distance of the predictor the evidence of a response changes its shape, as a guess."""
        known = self.family.turn(y, trials, self.nuisance(phi))
        return np.minimum(1.0, 2.0 / np.sqrt(3.0 + trials) if known is None else known[1])

    def errors(self, shared: Mapping[str, float]) -> Any:
        """Where a response is its predictor and an error of one law, that law as SciPy has it; None elsewhere."""
        return None

    # ------------------------------------------------------------------ in words

    @abstractmethod
    def describe(self) -> Description:
        """The law in words and symbols."""

    def difference(self, shared: Mapping[str, float], fitted: Collection[str]) -> str:
        """How rows differ, as one sentence; `fitted` names the shared numbers that were not held. Empty: they do not."""
        return ""

    @property
    def boundary_text(self) -> str:
        """Why the classical model is the answer where this law was asked for."""
        return "the rows do not differ beyond chance, so the classical model is returned."

    @property
    def at_boundary(self) -> dict[str, float]:
        """The shared numbers of this law where it is the classical one."""
        return {name: self.limits[name] for name in self.names if name in self.limits}

    # ------------------------------------------------------------------ rows that do not belong

    def tail_probabilities(
        self, y: Array, predictor: Array, shared: Mapping[str, float], cumulative: Callable[[], tuple[Array, Array]]
    ) -> Array:
        """Two-sided: twice the smaller of P(Y ≤ y) and P(Y ≥ y), by row; `cumulative` gives P(Y < y) and P(Y ≤ y)."""
        strictly, below = cumulative()
        return two_sided(below, 1.0 - strictly)

    # ------------------------------------------------------------------ rows' own values, drawn

    def own_values(
        self, y: Array, predictor: Array, phi: Sequence[float], posterior_mean: Callable[[], Array]
    ) -> OwnValues:
        """What rows have of their own, for laws whose `picture` is a ``"density"``."""
        raise NotImplementedError

    @property
    def picture_caption(self) -> str:
        """What the picture of rows' own values shows."""
        return (
            "The fitted law of the rows' own values, and the posterior mean of each row. Rows that say little are drawn to the "
            "centre, so their histogram is narrower than the law."
        )
