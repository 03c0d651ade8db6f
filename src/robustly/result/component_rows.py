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
from scipy.special import expit

from robustly.result.outliers import HEAVY_MARGIN, Candidate, Judgement, schwarz_curve, weights_of

SHARE_PRIOR = (1.0, 30.0)
WIDTH, WIDTH_SPREAD = 5.0, 0.6
WIDTHS = np.exp(np.linspace(np.log(1.0), np.log(1e4), 400))
MOST_ROWS = 20_000
MOST_STEPS, SMALL = 200, 1e-6
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

    def near(self, distance: np.ndarray) -> np.ndarray:
        """Squared distances in units of the core; a component of one row has next to none."""
        with np.errstate(over="ignore"):
            return np.minimum(distance / self.core, 1e300)

    def logs(self, distance: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log density of core and wide part by row and component, (n, K), but for what both share with a t law."""
        near = self.near(distance)
        size = known[:, None] * np.log(self.core)
        grown = 1.0 + self.width**2
        core = np.log1p(-self.share) - 0.5 * (near + size)
        wide = np.log(max(self.share, 1e-300)) - 0.5 * (near / grown + size + known[:, None] * np.log(grown))
        return core, wide

    @property
    def is_better(self) -> bool:
        """Whether it describes the rows better than t laws."""
        return self.weight >= 0.5

    def judge(self, distance: np.ndarray, known: np.ndarray, shares: np.ndarray, dofs: np.ndarray) -> Judgement:
        """What is believed of rows at these squared distances (n, K), averaged over their components and the two laws.

        Rows without a value always belong.
        """
        from scipy.stats import chi2, f

        core, wide = self.logs(distance, known)
        odd = self.weight * np.einsum("ik,ik->i", shares, expit(wide - core))
        tail, columns = np.zeros(len(distance)), np.maximum(known, 1)
        near = self.near(distance)
        for k, nu in enumerate(dofs):
            normal = chi2.sf(near[:, k], columns)
            heavy = f.sf(distance[:, k] / columns, columns, nu) if np.isfinite(nu) else normal
            tail += shares[:, k] * (self.weight * normal + (1.0 - self.weight) * heavy)
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
    weight = shares * known[:, None]
    mass = np.maximum(weight.sum(axis=0), 1e-300)
    # The nearer half of the rows says how wide the core is at first, whatever the others do.
    middle = np.array([_weighted_median(distance[:, k] / known, shares[:, k]) for k in range(shares.shape[1])])
    at = ComponentLaw(np.maximum(middle / _median_ratio(float(np.median(known))), 1e-300), 0.02, WIDTH, 1.0)
    for _ in range(MOST_STEPS):
        core, wide = at.logs(distance, known)
        odd = shares * expit(wide - core)
        grown = 1.0 + at.width**2
        pulled = (shares - odd + odd / grown) * distance
        fresh = np.maximum(pulled.sum(axis=0) / mass, 1e-300)
        size, square = float((odd * known[:, None]).sum()), float((odd * distance / fresh).sum())
        height = -0.5 * (size * np.log1p(WIDTHS**2) + square / (1.0 + WIDTHS**2))
        height -= 0.5 * (np.log(WIDTHS / WIDTH) / WIDTH_SPREAD) ** 2
        share = float((odd.sum() + SHARE_PRIOR[0]) / (len(known) + sum(SHARE_PRIOR)))
        before, at = at, ComponentLaw(fresh, share, float(WIDTHS[height.argmax()]), 1.0)
        if np.abs(np.log(at.core) - np.log(before.core)).max() < SMALL and abs(np.log(share / before.share)) < 1e-4:
            break
    core, wide = at.logs(distance, known)
    mean = lambda logs: float(np.einsum("ik,ik->", shares, logs))
    laws = [
        Candidate(TWO_PARTS, mean(np.logaddexp(core, wide)), schwarz_curve(len(known), 2)),
        Candidate(HEAVY, mean(tails), schwarz_curve(len(known), 1), margin=HEAVY_MARGIN),
    ]
    return ComponentLaw(at.core, at.share, at.width, float(weights_of(laws)[0]))


def _weighted_median(values: np.ndarray, weight: np.ndarray) -> float:
    order = np.argsort(values)
    total = np.cumsum(weight[order])
    return float(values[order][min(int(np.searchsorted(total, 0.5 * total[-1])), len(order) - 1)])


def _median_ratio(columns: float) -> float:
    """The median of a χ² law over its degrees of freedom."""
    from scipy.stats import chi2

    return float(chi2(max(columns, 1.0)).median() / max(columns, 1.0))
