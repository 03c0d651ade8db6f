"""Which parameters make the rows most probable? Direct maximisation of the summed evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from robustly._runtime.memory import give_back
from robustly._runtime.precision import double_precision
from robustly.approx import Approximation, Quadrature, default_approximation
from robustly.errors import FitError
from robustly.fit.newton import Optimum, Watch
from robustly.fit.outcome import Outcome, Stop
from robustly.fit.passes import Passes, passes
from robustly.fit.start import climb_rows, few_rows, find_start, first_start
from robustly.model.row import RowModel
from robustly.rows.arrays import Rows

# Above this many rows the search first runs on a subset; the full rows then need only a few passes.
LARGE = 30_000
SUBSET = 8_192

# An estimated integration error above this share of the log likelihood makes a fit use more points.
TOLERATED = 1e-6
FINEST = 161


@dataclass(frozen=True, eq=False)
class Found:
    """An optimum with what is needed to ask more of it."""

    optimum: Optimum
    passes: Passes
    rows: Rows
    seen: Mapping[str, np.ndarray]
    """What each row gave where the search last looked: its evidence, the state of its integration, and its strain."""
    notes: tuple[str, ...] = ()

    @property
    def state(self) -> np.ndarray:
        return self.seen["state"]

    @property
    def strain(self) -> np.ndarray:
        """An estimate of each row's integration error."""
        return self.seen["strain"]

    @cached_property
    def evidence(self) -> np.ndarray:
        """Each row's, at the optimum."""
        if self.optimum.before is None:
            return self.seen["evidence"]
        return self.passes.objective(self.optimum.vector, self.rows, self.state)[1]["evidence"]

    @property
    def log_likelihood(self) -> float:
        if self.optimum.before is None:
            return float(self.rows.weight @ self.seen["evidence"])
        with double_precision():
            return self.optimum.value - float(self.passes.log_hyperprior(self.optimum.vector))


def maximize(
    model: RowModel,
    rows: Rows,
    approx: Approximation | None = None,
    *,
    stop: Stop = Stop(),  # noqa: B008
    start: np.ndarray | None = None,
    watch: Watch | None = None,
    report: Callable[[dict[str, Any]], None] | None = None,
) -> Found:
    """The parameters of highest evidence (plus hyperprior). Needs an active :func:`double_precision` block.

    Args:
        approx: how locals are integrated; by default the best that fits the model, changed when it proves too coarse.
        watch: may end the search early with a reason, see :func:`~robustly.fit.newton.newton`.
    """
    chosen = default_approximation(model) if approx is None else approx
    found = _climb(model, rows, chosen, stop, start, watch, report)
    while approx is None and isinstance(chosen, Quadrature) and chosen.nodes < FINEST:
        off = float(rows.weight @ found.strain)
        if off <= TOLERATED * max(1.0, abs(found.optimum.value)):
            break
        chosen = Quadrature(2 * chosen.nodes - 1)
        note = f"integrated with {chosen.nodes} points a row, as fewer were off by {off:.1e} nats in all."
        found = _climb(model, rows, chosen, stop, found.optimum.vector, watch, report)
        found = replace(found, notes=(*found.notes, note))
    return found


def _climb(
    model: RowModel,
    rows: Rows,
    approx: Approximation,
    stop: Stop,
    start: np.ndarray | None,
    watch: Watch | None,
    report: Callable[[dict[str, Any]], None] | None,
) -> Found:
    compiled = passes(model, approx)
    vector = first_start(compiled, rows, start)
    notes: tuple[str, ...] = ()
    if len(rows) > LARGE:
        first, _ = climb_rows(compiled, few_rows(rows, SUBSET), vector, Stop(1e-4, stop.max_steps))
        if first.outcome.converged:
            vector = first.vector
            notes = (f"started from a fit to {SUBSET} of the rows ({len(first.history)} passes over them).",)
        give_back()
    optimum, summed = climb_rows(compiled, rows, vector, stop, watch=watch, report=report)
    if optimum.outcome.kind == "bad_start":
        vector = find_start(compiled, rows, start)
        optimum, summed = climb_rows(compiled, rows, vector, stop, watch=watch, report=report)
    if optimum.outcome.kind == "bad_start":
        bad = np.flatnonzero(~np.isfinite(summed.by_row["evidence"]) & (rows.weight > 0))
        where = f"row {bad[0]}" if bad.size else "the hyperprior"
        raise FitError(
            f"{where} has no finite evidence at the start of the search. Look for extreme or impossible values there, "
            "or give start= values at which the data are possible."
        )
    return Found(optimum, compiled, rows, summed.by_row, notes)


def settled(found: Found, outcome: Outcome) -> Found:
    """The same find with another outcome."""
    return replace(found, optimum=replace(found.optimum, outcome=outcome))
