"""Where does a search begin? The best of a few sensible places, found on a handful of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from robustly.errors import FitError
from robustly.fit.newton import Optimum, newton
from robustly.fit.outcome import Stop
from robustly.fit.passes import Passes
from robustly.rows.arrays import Rows

FEW = 2048
RANDOM_STARTS = 24
CLIMBED = 4


class Summed:
    """The summed evidence of some rows, for :func:`newton`; carries each row's state from pass to pass."""

    def __init__(self, passes: Passes, rows: Rows) -> None:
        self.passes, self.rows = passes, rows
        self.state = passes.begin(rows)
        self.by_row: dict[str, np.ndarray] = {}

    def __call__(self, vector: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        return self._look(vector)

    def rough(self, vector: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """All of it, with fewer points a row; of an approximation that is fine."""
        return self._look(vector, less=True)

    def slopes(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        """Value and slope alone, at a third of the price; of one that is not."""
        return self._look(vector, less=True)[:2]

    def _look(self, vector: np.ndarray, less: bool = False) -> tuple[float, np.ndarray, np.ndarray]:
        sums, by_row = self.passes.objective(vector, self.rows, self.state, less=less)
        if np.isfinite(sums[0]):
            self.state = by_row["state"]
            self.by_row = by_row
        elif not self.by_row:
            self.by_row = by_row
        return sums


def climb_rows(passes: Passes, rows: Rows, start: np.ndarray, stop: Stop, **more: Any) -> tuple[Optimum, Summed]:
    """Newton on the summed evidence of some rows."""
    summed = Summed(passes, rows)
    cheaper: dict[str, Any] = {"rough": summed.rough} if passes.is_fine(rows) else {"slopes": summed.slopes}
    return newton(summed, start, stop, walled=passes.model.parameters.walled, **cheaper, **more), summed


def few_rows(rows: Rows, count: int) -> Rows:
    """A fixed random subset, so that the same data always start from the same place."""
    if len(rows) <= count:
        return rows
    index = np.sort(np.random.default_rng(0).choice(len(rows), count, replace=False))
    return rows.take(index)


def first_start(passes: Passes, rows: Rows, given: np.ndarray | None) -> np.ndarray:
    """Where to begin: the given or default place, but the best of several for models with discrete latents."""
    if given is not None:
        return given
    return passes.model.parameters.start if passes.model.latents is None else find_start(passes, rows, None)


def find_start(passes: Passes, rows: Rows, given: np.ndarray | None) -> np.ndarray:
    """A place to climb from, for models with discrete latents or whose default start has no finite evidence."""
    default = passes.model.parameters.start if given is None else given
    few = few_rows(rows, FEW)
    if passes.model.latents is None:
        candidates = _around(default, few)
        values = np.array([_value(passes, few, c) for c in candidates])
        if not np.any(np.isfinite(values)):
            raise FitError(_no_start(passes, rows, default))
        return candidates[int(np.nanargmax(np.where(np.isfinite(values), values, -np.inf)))]
    if given is not None:
        return given
    # With a discrete latent the default start is often a saddle (all components alike), so climb from several places.
    candidates = [default, *_around(default, few)]
    values = np.array([_value(passes, few, c) for c in candidates])
    values[~np.isfinite(values)] = -np.inf
    if not np.any(np.isfinite(values)):
        raise FitError(_no_start(passes, rows, default))
    best = [candidates[i] for i in np.argsort(-values)[:CLIMBED] if np.isfinite(values[i])]
    climbed = [climb_rows(passes, few, c, Stop(1e-6, 60))[0] for c in best]
    return max(climbed, key=lambda optimum: optimum.value).vector


def _value(passes: Passes, rows: Rows, vector: np.ndarray) -> float:
    return Summed(passes, rows)._look(vector, less=True)[0]


def _around(default: np.ndarray, rows: Rows) -> list[np.ndarray]:
    """Random places around the default, on the scale of one and on the scale of the observed numbers."""
    rng = np.random.default_rng(0)
    columns = [a.reshape(len(a), -1).astype(float) for a in rows.data if a.dtype.kind in "fiu"]
    unit = max([float(np.std(c)) for c in columns], default=1.0)
    middle = float(np.median(columns[-1])) if columns else 0.0
    found = []
    for _ in range(RANDOM_STARTS // 2):
        found.append(default + rng.normal(size=default.shape))
        found.append(default + middle + max(unit, 1e-3) * rng.normal(size=default.shape))
    return found


def _no_start(passes: Passes, rows: Rows, vector: np.ndarray) -> str:
    check = Summed(passes, rows)
    check(vector)
    evidence = check.by_row.get("evidence", np.zeros(0))
    bad = np.flatnonzero(~np.isfinite(evidence) & (rows.weight > 0))
    if bad.size == 0:
        return "the priors of the shared sites have no finite density anywhere the search looked. Widen them, or give start=."
    more = f" and {bad.size - 1} more" if bad.size > 1 else ""
    return (
        f"row {bad[0]}{more} has no finite evidence ({evidence[bad[0]]}) wherever the search looked. Look for extreme or "
        "impossible values there, or give start= values at which the data are possible."
    )
