"""Why did a search stop? An :class:`Outcome` is a value; estimators turn a bad one into a warning."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from robustly.errors import ConvergenceWarning

GOOD = ("converged", "boundary", "limit")
START_RTOL, START_REMAINING = 1e-3, 0.05


@dataclass(frozen=True)
class Outcome:
    """Why a run stopped.

    ``converged``; ``boundary``: the classical model is the answer; ``limit``: a parameter runs to the end of its range, and
    the estimate stands as that limit. These do not warn. All others do: with ``max_steps`` and ``stalled``, for example, the
    answer does not stand.
    """

    kind: str
    text: str
    steps: int = 0

    @property
    def converged(self) -> bool:
        """Whether the answer stands."""
        return self.kind in GOOD

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(frozen=True)
class Stop:
    """When a search ends: the gain still to be expected, relative to the size of the objective, or too many steps."""

    rtol: float = 1e-10
    max_steps: int = 200
    remaining: float = 0.0
    """Nats that a last step, taken without another look, may leave to be gained, at the pace of the steps before."""

    @property
    def of_start(self) -> Stop:
        """For the fit of a sample, which is a start: closer to its top than this is far closer than that is to the top of all rows."""
        return Stop(max(self.rtol, START_RTOL), self.max_steps, START_REMAINING)


def warn_unless_converged(outcome: Outcome) -> None:
    """One warning for a run that did not end well."""
    if not outcome.converged:
        warnings.warn(str(outcome), ConvergenceWarning, stacklevel=3)
