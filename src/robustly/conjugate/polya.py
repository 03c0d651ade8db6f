r"""Which concentrations make a table of counts most probable? Minka's (2000) search for the Pólya law.

Newton steps on log concentrations, whose curvature is a diagonal plus one rank and is solved in linear time; where a
Newton step cannot be trusted, his fixed point, which never goes down, takes its place. Only distinct (category, count)
pairs and row totals enter, so sparse tables cost what their non-zeros cost.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse

from robustly.conjugate.gammas import digamma_rising, log_rising, trigamma_rising
from robustly.fit.objective import Optimum
from robustly.fit.outcome import Outcome
from robustly.rows.arrays import pad

HELD = -1e30
"""Curvature of a concentration that is held at its floor: it has no uncertainty of its own."""
STEPS = 500


class SparseColumn:
    """Rows of a sparse table that become dense only a chunk at a time."""

    ndim = 2

    def __init__(self, matrix: Any) -> None:
        self.matrix = sparse.csr_array(matrix)
        self.shape = self.matrix.shape
        self.dtype = np.dtype(float)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, place: Any) -> np.ndarray:
        return self.matrix[place].toarray().astype(float)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.matrix.toarray().astype(dtype or float)


class Polya:
    """The evidence of a table as a function of concentrations, from distinct (category, count) pairs and totals."""

    def __init__(self, column: Any, weight: np.ndarray, floor: float) -> None:
        table = sparse.coo_array(column.matrix if isinstance(column, SparseColumn) else column)
        table.eliminate_zeros() if hasattr(table, "eliminate_zeros") else None
        rows, categories = table.coords
        counts = table.data.astype(np.int64)
        self.width, self.floor = column.shape[1], floor
        key = categories.astype(np.int64) * (int(counts.max(initial=0)) + 1) + counts
        distinct, place = np.unique(key, return_inverse=True)
        times = np.bincount(place, weights=weight[rows], minlength=len(distinct))
        totals = np.bincount(rows, weights=counts, minlength=len(weight))
        sizes, where = np.unique(totals, return_inverse=True)
        size_times = np.bincount(where, weights=weight)
        base = int(counts.max(initial=0)) + 1
        size = 1 << max(int(len(distinct) - 1).bit_length(), 5)
        self.category = pad(distinct // base, size)
        self.count = pad((distinct % base).astype(float), size)
        self.times = pad(times, size, 0.0)
        wide = 1 << max(int(len(sizes) - 1).bit_length(), 5)
        self.size, self.size_times = pad(sizes.astype(float), wide), pad(size_times, wide, 0.0)
        self.seen = np.bincount(self.category, weights=self.times, minlength=self.width) > 0
        from scipy.special import gammaln as log_gamma

        self.constant = float(size_times @ log_gamma(sizes + 1.0) - times @ log_gamma((distinct % base) + 1.0))

    def terms(self, alpha: np.ndarray) -> tuple[float, np.ndarray, np.ndarray, float, float]:
        """Value; first and second derivatives by category; first and second derivative in the total."""
        given = (alpha, alpha.sum(), self.category, self.count, self.times, self.size, self.size_times)
        found = [np.asarray(part) for part in _polya_terms(*map(jnp.asarray, given), width=self.width)]
        return float(found[0]) + self.constant, found[1], found[2], float(found[3]), float(found[4])

    def climb(self, alpha: np.ndarray, *, short: bool) -> Optimum:
        """Newton in log concentrations, with Minka's fixed point where Newton does not help."""
        alpha = np.where(self.seen, np.maximum(alpha, self.floor), self.floor)
        history: list[dict[str, Any]] = []

        def evaluate(at: np.ndarray, size: float) -> Any:
            found = self.terms(at)
            history.append({"pass": len(history) + 1, "value": found[0], "expected_gain": np.nan, "step": size})
            return found

        now = evaluate(alpha, 0.0)
        outcome = Outcome("max_steps", f"{STEPS} steps were not enough. Look at the data for extreme rows.", STEPS)
        for _ in range(12 if short else STEPS):
            value, first, second, whole, bend = now
            slope = np.where(self.seen, alpha * (first - whole), 0.0)
            step = _newton_step(alpha, slope, second, bend, self.seen)
            gain = 0.5 * float(slope @ step) if step is not None else float("inf")
            history[-1]["expected_gain"] = gain
            tiny = 1e-11 * max(1.0, 1e-3 * abs(value))
            tried = None
            if step is not None and gain >= 0:
                longest = float(np.max(np.abs(step)))
                step = step * min(1.0, 3.0 / max(longest, 1e-300))
                for _ in range(4):
                    ahead = np.where(self.seen, alpha * np.exp(step), self.floor)
                    tried = evaluate(ahead, float(np.max(np.abs(step))))
                    if tried[0] >= value - 1e-13 * max(1.0, abs(value)):
                        break
                    tried, step = None, 0.25 * step
                    if gain <= tiny:
                        break
            if tried is None and gain > tiny:
                ahead = np.where(self.seen, np.maximum(alpha * first / whole, 1e-300), self.floor)
                tried = evaluate(ahead, float(np.max(np.abs(np.log(ahead / alpha)))))
            if tried is not None and tried[0] >= value - 1e-13 * max(1.0, abs(value)):
                alpha, now = ahead, tried
            if gain <= tiny:
                outcome = Outcome("converged", f"the evidence is at its top after {len(history)} passes.", len(history))
                break
        return Optimum(np.log(alpha), now[0], np.zeros_like(alpha), self.curve(alpha, now), history, outcome)

    def curve(self, alpha: np.ndarray, terms: Any) -> np.ndarray:
        """Second derivatives in log concentrations."""
        _, first, second, whole, bend = terms
        diagonal = np.where(self.seen, alpha**2 * second + alpha * (first - whole), HELD)
        loading = np.where(self.seen, alpha, 0.0)
        return np.diag(diagonal) - bend * np.outer(loading, loading)


@partial(jax.jit, static_argnames="width")
def _polya_terms(alpha, total, category, count, times, size, size_times, *, width):  # type: ignore[no-untyped-def]
    each = alpha[category]
    wide = jnp.broadcast_to(total, size.shape)
    by_category = lambda values: jax.ops.segment_sum(times * values, category, width)
    value = jnp.dot(times, log_rising(each, count)) - jnp.dot(size_times, log_rising(wide, size))
    return (
        value,
        by_category(digamma_rising(each, count)),
        by_category(trigamma_rising(each, count)),
        jnp.dot(size_times, digamma_rising(wide, size)),
        jnp.dot(size_times, trigamma_rising(wide, size)),
    )


def _newton_step(
    alpha: np.ndarray, slope: np.ndarray, second: np.ndarray, bend: float, seen: np.ndarray
) -> np.ndarray | None:
    """−H⁻¹g for H = diag(d) − bend·ααᵀ by Sherman & Morrison; None where H is not negative definite."""
    down = np.where(seen, -(alpha**2 * second + slope), 1.0)
    loading = np.where(seen, alpha, 0.0)
    if not np.all(down > 0):
        return None
    left = 1.0 + bend * float(np.sum(loading**2 / down))
    if not left > 1e-12:
        return None
    plain = slope / down
    return plain - (loading / down) * (bend * float(loading @ plain) / left)
