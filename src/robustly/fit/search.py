"""Which parameters make the rows most probable? One search for every model.

With many rows a sample of them is fitted first, roughly, so that all rows see few passes. Simpler models at the edge are
asked before (a score test may settle the matter) and after (the best inside must do better). A climb that runs to an end
of a parameter's range is answered by the problem, and an approximation that proves too coarse is refined.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from robustly._runtime.freed_memory import give_back
from robustly._runtime.threads import products_on_one_thread
from robustly.errors import FitError
from robustly.fit.newton import Hopeless, maximize
from robustly.fit.outcome import Stop
from robustly.fit.problem import FEW, EvidenceProblem, Found

# Above this many rows the search first runs on a sample; the full rows then need only a few passes.
MANY_ROWS = 30_000
SHARE, FEWEST, MOST = 8, 8192, 1 << 17
Report = Callable[[dict[str, Any]], None]


def search(
    problem: EvidenceProblem,
    stop: Stop,
    *,
    start: np.ndarray | None = None,
    report: Report | None = None,
    hopeless: Hopeless | None = None,
) -> Found:
    """The best parameters of a problem. Where they lie at the edge, the outcome says which simpler model it is.

    Of a problem that matters only if its top is high enough, `hopeless` ends climbs on the way.
    """
    # Of few rows no pass takes more than one thread, and to say so once takes a tenth of saying it every time.
    with products_on_one_thread() if len(problem.rows) <= FEW else nullcontext():
        return _searched(problem, stop, start, report, hopeless)


def _searched(
    problem: EvidenceProblem,
    stop: Stop,
    start: np.ndarray | None,
    report: Report | None,
    hopeless: Hopeless | None,
) -> Found:
    begin = _fit_of_sample(problem, stop) if start is None and len(problem.rows) > MANY_ROWS else None
    limits = problem.limits(begin) if start is None else ()
    for limit in limits:
        if limit.rules_out():
            return limit.answer(None)

    def climb(one: EvidenceProblem, at: np.ndarray) -> Found:
        objective, start_there = one.searched(at)
        return Found(
            one, one.left(maximize(objective, start_there, stop, watch=one.watch(), report=report, hopeless=hopeless))
        )

    best: Found | None = None
    for at in problem.starts(begin) if start is None else [start]:
        tried = climb(problem.fresh(), at)
        if tried.outcome.kind == "bad_start":
            other = problem.rescue(at)
            tried = tried if other is None else climb(problem.fresh(), other)
        if tried.outcome.kind != "bad_start" and (best is None or problem.is_better(tried, best)):
            best = tried
    if best is None:
        raise FitError(tried.problem.without_evidence("at the start of the search"))
    if not best.outcome.converged:
        best = best.problem.at_end(best, climb)
    for limit in limits:
        if limit.answers(best):
            return limit.answer(best)
    while best.outcome.converged and (finer := best.problem.refined(best)) is not None:
        notes = (*best.notes, finer[1]) if finer[1] else best.notes
        best = replace(climb(finer[0], best.vector), notes=notes)
    if begin is not None:
        note = f"started from a fit to {len(begin.problem.rows)} of the rows ({len(begin.optimum.history)} passes over them)."
        best = replace(best, notes=(note, *best.notes))
    return best


def _fit_of_sample(problem: EvidenceProblem, stop: Stop) -> Found | None:
    """A rough fit to some of the rows, whose own start may be the fit to some of those."""
    sample = problem.rows.sample(min(max(len(problem.rows) // SHARE, FEWEST), MOST), 0)
    if not np.any(sample.weight > 0):
        return None
    found = search(problem.on(sample), stop.of_start)
    give_back()
    return found if found.outcome.converged and np.all(np.isfinite(found.vector)) else None
