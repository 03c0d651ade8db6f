"""What is climbed? Something with a value, a slope and a curvature at a vector, and where a climb of it ended."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from robustly.fit.outcome import Outcome
from robustly.model.wide_curvature import Curve


class Effort(Enum):
    """How much of a look is worth its price."""

    SLOPE = "value and slope"
    ROUGH = "all of it, by a coarser rule"
    FULL = "all of it"


class Look(NamedTuple):
    """An objective at a vector."""

    value: float
    slope: np.ndarray
    curve: Curve | None
    """None after :attr:`Effort.SLOPE`."""


@dataclass(frozen=True)
class Optimum:
    """Where a climb ended."""

    vector: np.ndarray
    value: float
    slope: np.ndarray
    bent: Curve
    """The curvature there, as the climb saw it."""
    history: list[dict[str, Any]] = field(repr=False)
    outcome: Outcome
    before: np.ndarray | None = None
    """Where the objective was last looked at, if that was not here but one negligible step before."""

    @cached_property
    def curve(self) -> np.ndarray:
        """The curvature written out."""
        return np.asarray(self.bent)

    @property
    def seen(self) -> np.ndarray:
        return self.vector if self.before is None else self.before


class Problem(ABC):
    """What a search sees."""

    cheaper: Effort = Effort.FULL
    """The effort that is cheaper than a full look; FULL where none is."""
    constrained: np.ndarray
    """Which entries of the vector are on a log-like scale."""

    @abstractmethod
    def look(self, vector: np.ndarray, effort: Effort = Effort.FULL) -> Look: ...
