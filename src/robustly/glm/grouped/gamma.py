r"""What do groups of counts say whose rates share a gamma factor? Closed forms of their counts and rates.

With :math:`r_j \sim \mathrm{Gamma}(a, a)` and :math:`y_{ij} \sim \mathrm{Poisson}(r_j \mu_{ij})`, of a group only
:math:`Y_j = \sum_i y_{ij}` and :math:`M_j = \sum_i \mu_{ij}` meet the gamma:
:math:`\log\Gamma(a + Y_j) - \log\Gamma(a) + a \log a - (a + Y_j) \log(a + M_j)`.
"""

from __future__ import annotations

import numpy as np

from robustly.glm.grouped.moments import Entered, InGroups
from robustly.glm.grouped.sums import sums_by_group


def gamma_poisson(at: Entered, rows: InGroups) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Evidences by group (without log y!), and the sums of their slopes and curvatures in (u, log a)."""
    from scipy.special import digamma, gammaln, polygamma

    a, x = float(np.exp(at.psi[0])), rows.directions
    m = rows.offset + x @ at.u
    rate = rows.counts * np.exp(np.minimum(m, 700.0))
    added = lambda each: np.add.reduceat(each, rows.starts[:-1], axis=0)
    counted, mean = added(rows.counts * rows.y), added(rate)
    rate_x = sums_by_group(rate[:, None], x, rows.starts)[:, 0]
    top, bottom = a + counted, a + mean
    # log a + … − (a + Y) log(a + M) without cancellation for large a.
    evidence = (
        added(rows.counts * rows.y * m) + gammaln(top) - gammaln(a) - counted * np.log(bottom) - a * np.log1p(mean / a)
    )
    share = top / bottom
    size = len(at.u)
    slope, curve = np.empty(size + 1), np.zeros((size + 1, size + 1))
    slope[:size] = x.T @ (rows.counts * rows.y) - rate_x.T @ share
    first = digamma(top) - digamma(a) - np.log1p(mean / a) + 1.0 - share
    slope[size] = a * first.sum()
    by_row = np.repeat(share, np.diff(rows.starts)) * rate
    curve[:size, :size] = -(x.T @ (x * by_row[:, None])) + (rate_x * (top / bottom**2)[:, None]).T @ rate_x
    curve[:size, size] = curve[size, :size] = rate_x.T @ (a * (counted - mean) / bottom**2)
    second = polygamma(1, top) - polygamma(1, a) + 1.0 / a - 1.0 / bottom - (mean - counted) / bottom**2
    curve[size, size] = a**2 * second.sum() + slope[size]
    return evidence, slope, curve
