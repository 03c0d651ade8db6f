r"""What makes a conjugate pair? A log-normaliser of the prior, a row's statistic in it, and a base measure.

A prior in exponential-family form, :math:`p(\beta \mid \eta) = h_0(\beta) \exp\{\eta \cdot T(\beta) - A(\eta)\}`, is
conjugate to a likelihood :math:`p(x \mid \beta) = h(x) \exp\{s(x) \cdot T(\beta)\}`. Then the posterior is the same
family at :math:`\eta + s(x)`, a row's evidence is :math:`A(\eta + s) - A(\eta) + \log h` (Wang & Blei, section on
conjugate exponential families, with the :math:`h` the text leaves out), and the E-step is the gradient of :math:`A`.
All of it follows here from the three functions, by autodiff.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import jax
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from robustly.conjugate.reading import read_numbers
from robustly.errors import ModelError
from robustly.model.parameters import Theta
from robustly.rows.distinct import Table

Columns = Mapping[str, Any]


class SciPyLaw(Protocol):
    """A distribution as SciPy has it when its arguments are given, or anything that answers as much: arrays by row."""

    def mean(self) -> Any: ...

    def std(self) -> Any: ...

    def ppf(self, level: Any, /) -> Any: ...

    def rvs(self, size: Any, random_state: Any) -> Any: ...


@dataclass(frozen=True)
class ClassicalModel:
    """The model in which all rows share one value of the local: the limit of no heterogeneity."""

    values: dict[str, Any]
    """Its maximum likelihood estimates."""
    limits: dict[str, Any]
    """What the prior's arguments tend to."""
    score: float
    """Slope of the log likelihood in the variance of the locals, at none; not above 0 means no heterogeneity."""
    log_prob: Callable[[Theta, Columns], Array]
    """Log density of one row."""
    law: Callable[[Theta, Columns], SciPyLaw]
    """The distribution of many rows, as scipy has it."""
    common: Callable[[Theta, Columns], np.ndarray]
    """The value all rows share; with covariates, the value at theirs."""
    derived: dict[str, Any] = field(default_factory=dict)
    why: str = ""
    """A reason to take this model whatever the score."""
    edge: tuple[str, ...] = ()
    """Estimates that lie on the edge of what is possible, such as a rate of 0."""
    given: tuple[str, ...] = ()
    """Values that were not estimated."""


class PairDefinition(ABC):
    """The mathematics of a conjugate pair, and what follows from it; :class:`~robustly.conjugate.fitting.ConjugatePair` fits it."""

    local: ClassVar[str] = "local"
    """What the rows' own value is called."""
    shared: ClassVar[tuple[str, ...]] = ()
    """Coordinates that belong to the likelihood and not to the prior."""
    support: ClassVar[str] = "real"
    """Where observations lie: ``count``, ``real``, ``positive`` or ``vector``."""
    measured: ClassVar[bool] = False
    """Whether rows are measurements about a common ``loc`` with a ``scale``, heavy-tailed by ``dof``."""
    spread_power: ClassVar[float] = -0.5
    """The locals' relative spread is the first coordinate to this power."""

    # ------------------------------------------------------------------ what defines a pair

    @abstractmethod
    def coordinates(self, columns: Columns) -> dict[str, tuple[Any, tuple[int, ...]]]:
        """What is fitted: for every name a NumPyro constraint and a shape; first the one that says how rows differ."""

    @abstractmethod
    def natural(self, theta: Theta, row: Columns) -> tuple[Any, ...]:
        """The prior's natural parameter η."""

    @abstractmethod
    def log_normalizer(self, eta: tuple[Any, ...]) -> Array:
        """A(η)."""

    @abstractmethod
    def statistic(self, theta: Theta, row: Columns) -> tuple[Any, ...]:
        """What a row adds to η."""

    @abstractmethod
    def log_base(self, theta: Theta, row: Columns) -> Array:
        """log h of a row."""

    # ------------------------------------------------------------------ what follows, and may be said better

    def evidence(self, theta: Theta, row: Columns) -> Array:
        """Log density of one row with its local integrated out; override it where the difference of A cancels."""
        eta = self.natural(theta, row)
        return (
            self.log_normalizer(add(eta, self.statistic(theta, row)))
            - self.log_normalizer(eta)
            + self.log_base(theta, row)
        )

    def posterior_natural(self, theta: Theta, row: Columns) -> tuple[Any, ...]:
        """η of the row's posterior."""
        return add(self.natural(theta, row), self.statistic(theta, row))

    def expectations(self, theta: Theta, row: Columns) -> tuple[Any, ...]:
        """The exact E-step: posterior means of T, the gradient of A."""
        return jax.grad(self.log_normalizer)(self.posterior_natural(theta, row))

    def arguments(self, theta: Theta) -> dict[str, Any]:
        """The prior's arguments as they are reported."""
        return {name: value for name, value in theta.items() if name not in self.shared}

    def strayed(self, theta: Theta, shift: Any, variance: Any) -> Theta | None:
        """The coordinates of strayed locals: shifted on the scale of their logarithm (chances: log odds), with a variance there.

        The variance is theirs alone. One that held the core's as well would make strayed rows that are alike speak for a core
        without a spread, from which others then seem to have strayed.

        None if the pair does not say; rows that do not belong then have more widely spread locals.
        """
        return None

    def derived(self, theta: Theta) -> dict[str, Any]:
        """Other names for what was fitted, such as a Student-t's degrees of freedom."""
        return {}

    def law(self, eta: tuple[Any, ...]) -> SciPyLaw | None:
        """The distribution of the local at η, as a scipy distribution; None if the pair does not say."""
        return None

    def likelihood(self, local: Any, theta: Theta, columns: Columns) -> SciPyLaw | None:
        """The distribution of an observation given its local, as a scipy distribution; for :func:`check_pair`."""
        return None

    def predictive_law(self, theta: Theta, columns: Columns) -> SciPyLaw | None:
        """The distribution of a new observation, as a scipy distribution; None for a numerical one."""
        return None

    def raw(self, theta: Theta, columns: Columns) -> np.ndarray | None:
        """What a row alone says of its local; None if the pair does not say."""
        return None

    def observed(self, columns: Columns) -> np.ndarray:
        """The observation in its own units, from the columns it was read into."""
        return next(iter(columns.values()))

    def start(self, table: Table) -> dict[str, Any]:
        """Where the search begins: 1 for what is positive, 0 for what is real, unless the pair knows better."""
        from numpyro.distributions import biject_to

        found = {}
        for name, (constraint, shape) in self.coordinates(table.columns).items():
            transform = biject_to(constraint)
            found[name] = transform(np.zeros(transform.inverse_shape(shape)))
        return found

    def classical(self, table: Table) -> ClassicalModel | None:
        """The limit of no heterogeneity, with its score test; None if the pair has none."""
        return None

    def caution(self, table: Table, theta: dict[str, Any]) -> str | None:
        """A word of caution on the estimates found, or None; a pair may raise a FitError here."""
        return None

    def read(self, x: ArrayLike, *more: Any) -> dict[str, np.ndarray]:
        """Columns from what the user passes, checked; without an observation (None) only what predictions need."""
        return {} if x is None else {"x": read_numbers("x", x)}

    # ------------------------------------------------------------------ for everyone

    @property
    def fixed(self) -> dict[str, Any]:
        """Coordinates that were given a value and are not fitted."""
        if not dataclasses.is_dataclass(self):
            return {}
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {name: value for name, value in given.items() if value is not None and name in self._known}

    _known: ClassVar[tuple[str, ...]] = ()
    """Fields that are coordinates."""


def add(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(a + b for a, b in zip(one, other, strict=True))


def positive_or_none(owner: str, **given: float | None) -> None:
    """Refuse fixed values that cannot be."""
    for name, value in given.items():
        if value is not None and not (np.isfinite(value) and value > 0):
            raise ModelError(f"{owner}({name}={value}): {name} is a finite number above 0, or None to fit it.")
