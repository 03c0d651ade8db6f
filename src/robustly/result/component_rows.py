r"""Which rows do not belong to their component, of a mixture or a chain of states? Normal cores and a rare wide part.

A heavy-tailed law has no line between what belongs and what does not. For probabilities a row in component k, at the squared
distance :math:`\delta` in d columns, is therefore given a two-part law,

.. math:: (1 - \pi)\, N(\mu_k, s_k\Sigma_k) + \pi\, N\bigl(\mu_k, (1 + w^2)\, s_k\Sigma_k\bigr),

with priors like those of marked steps (:mod:`robustly.series.marks`): :math:`\pi \sim \mathrm{Beta}(1, 30)`, and :math:`\log w`
normal about :math:`\log 5`. Means, matrices and the shares of the components stay those of the fit; :math:`\pi`, :math:`w` and the
:math:`s_k` are found by EM, for rows that need no compiler. Rows can also be far out because the components themselves have heavy
tails, so the rule of :mod:`robustly.result.outliers` weighs this law and Student's t, each less :math:`\tfrac12\log n` a number of
its own and t less the margin of a heavy-tailed core: where t describes the rows much better, hardly any row stands out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import chdtrc, chdtri, expit, fdtrc

from robustly.result.outliers import HEAVY_MARGIN, Candidate, Judgement, schwarz_curve, weights_of

SHARE_PRIOR = (1.0, 30.0)
WIDTH, WIDTH_SPREAD = 5.0, 0.6
WIDTHS = np.exp(np.linspace(np.log(1.0), np.log(1e4), 400))
MOST_ROWS = 20_000
MOST_STEPS, SMALL = 200, 1e-6
# Most rows are in one component: pairs of row and component with a smaller share than this say nothing of either.
LEAST_SHARE = 1e-12
TWO_PARTS, HEAVY = "components of Normal rows and a wide part", "components with heavy tails (Student t)"


@dataclass(frozen=True)
class ComponentLaw:
    """The fitted law."""

    core: np.ndarray
    """s, (K,)."""
    share: float
    """π."""
    width: float
    """w."""
    weight: float
    """How probable the two-part law is beside the t laws of the fit."""

    def near(self, distance: np.ndarray, part: np.ndarray | slice) -> np.ndarray:
        """Squared distances of rows from these components in units of the core; a component of one row has next to none."""
        with np.errstate(over="ignore"):
            return np.minimum(distance / self.core[part], 1e300)

    def log_odds(self, near: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """log density of the wide part less that of the core, at squared distances in units of the core."""
        grown = 1.0 + self.width**2
        level = np.log(max(self.share, 1e-300)) - np.log1p(-self.share)
        return level + 0.5 * near * (1.0 - 1.0 / grown) - 0.5 * columns * np.log(grown)

    def log_density(
        self, distance: np.ndarray, columns: np.ndarray, part: np.ndarray | slice = slice(None)
    ) -> np.ndarray:
        """log density of both parts together, but for what they have in common with a t law."""
        near = self.near(distance, part)
        core = np.log1p(-self.share) - 0.5 * (near + columns * np.log(self.core[part]))
        return core + np.logaddexp(0.0, self.log_odds(near, columns))

    @property
    def is_better(self) -> bool:
        """Whether it describes the rows better than t laws."""
        return self.weight >= 0.5

    def judge(self, distance: np.ndarray, known: np.ndarray, shares: np.ndarray, dofs: np.ndarray) -> Judgement:
        """What is believed of rows at these squared distances (n, K), averaged over their components and the two laws.

        Rows without a value always belong.
        """
        row, part = np.nonzero(shares > LEAST_SHARE)
        here, share, columns = distance[row, part], shares[row, part], np.maximum(known, 1)[row]
        near = self.near(here, part)
        odd = self.weight * np.bincount(row, share * expit(self.log_odds(near, columns)), len(known))
        nu, tails = dofs[part], np.zeros(len(row))
        normal = np.where(np.isfinite(nu), self.weight, 1.0)
        # Tails cost more than all the rest: those of a law are asked for where it has a say.
        at = normal > LEAST_SHARE
        tails[at] = normal[at] * chdtrc(columns[at], near[at])
        at = normal < 1.0 - LEAST_SHARE
        tails[at] += (1.0 - normal[at]) * fdtrc(columns[at], nu[at], here[at] / columns[at])
        tail = np.bincount(row, share * tails, len(known))
        return Judgement(
            np.where(known > 0, np.clip(odd, 0.0, 1.0), 0.0),
            np.where(known > 0, np.minimum(tail, 1.0), 1.0),
            self.weight * self.share,
            TWO_PARTS if self.is_better else HEAVY,
            {TWO_PARTS: self.weight, HEAVY: 1.0 - self.weight},
        )


def fit_component_law(distance: np.ndarray, known: np.ndarray, shares: np.ndarray, tails: np.ndarray) -> ComponentLaw:
    """Fit it to squared distances (n, K) of rows with `known` values, in components by their `shares` (n, K).

    `tails` are the log densities of the t laws, without the constants :math:`-\\tfrac12\\log|2\\pi\\Sigma|`, (n, K).
    """
    chosen = np.flatnonzero(known > 0)
    chosen = chosen[:: max(1, -(-len(chosen) // MOST_ROWS))]
    if not len(chosen):
        return ComponentLaw(np.ones(distance.shape[1]), 0.0, WIDTH, 0.0)
    distance, known, shares, tails = distance[chosen], known[chosen].astype(float), shares[chosen], tails[chosen]
    # The nearer half of the rows says how wide the core is at first, whatever the others do.
    middle = np.array([_weighted_median(distance[:, k] / known, shares[:, k]) for k in range(shares.shape[1])])
    at = ComponentLaw(np.maximum(middle / _median_ratio(float(np.median(known))), 1e-300), 0.02, WIDTH, 1.0)
    row, part = np.nonzero(shares > LEAST_SHARE)
    here, share, columns = distance[row, part], shares[row, part], known[row]
    by_part = lambda values: np.bincount(part, values, len(at.core))
    mass = np.maximum(by_part(share * columns), 1e-300)
    for _ in range(MOST_STEPS):
        odd = share * expit(at.log_odds(at.near(here, part), columns))
        fresh = np.maximum(by_part((share - odd * (1.0 - 1.0 / (1.0 + at.width**2))) * here) / mass, 1e-300)
        size, square = float(odd @ columns), float((by_part(odd * here) / fresh).sum())
        height = -0.5 * (size * np.log1p(WIDTHS**2) + square / (1.0 + WIDTHS**2))
        height -= 0.5 * (np.log(WIDTHS / WIDTH) / WIDTH_SPREAD) ** 2
        wide = float((odd.sum() + SHARE_PRIOR[0]) / (len(known) + sum(SHARE_PRIOR)))
        before, at = at, ComponentLaw(fresh, wide, float(WIDTHS[height.argmax()]), 1.0)
        if np.abs(np.log(at.core) - np.log(before.core)).max() < SMALL and abs(np.log(wide / before.share)) < 1e-4:
            break
    laws = [
        Candidate(TWO_PARTS, float(share @ at.log_density(here, columns, part)), schwarz_curve(len(known), 2)),
        Candidate(HEAVY, float(share @ tails[row, part]), schwarz_curve(len(known), 1), margin=HEAVY_MARGIN),
    ]
    return ComponentLaw(at.core, at.share, at.width, float(weights_of(laws)[0]))


def _weighted_median(values: np.ndarray, weight: np.ndarray) -> float:
    order = np.argsort(values)
    total = np.cumsum(weight[order])
    return float(values[order][min(int(np.searchsorted(total, 0.5 * total[-1])), len(order) - 1)])


def _median_ratio(columns: float) -> float:
    """The median of a χ² law over its degrees of freedom."""
    return float(chdtri(max(columns, 1.0), 0.5) / max(columns, 1.0))
