r"""How probable is it that a row does not belong to its component? A normal core and a rare wide part, fitted to distances.

A heavy-tailed law has no line between what belongs and what does not. For probabilities a row in component k, at the squared
distance :math:`\delta` in d columns, is therefore given a two-part law,

.. math:: (1 - \pi)\, N(\mu_k, s_k\Sigma_k) + \pi\, N\bigl(\mu_k, (1 + w^2)\, s_k\Sigma_k\bigr),

with priors like those of marked steps (:mod:`robustly.series.marks`): :math:`\pi \sim \mathrm{Beta}(1, 30)`, and :math:`\log w`
normal about :math:`\log 5`. Means, matrices and the shares of the components stay those of the fit; :math:`\pi`, :math:`w` and the
:math:`s_k` are found by EM. Rows can also be far out because the components themselves have heavy tails. The two explanations are
weighed by their likelihoods, with :math:`\tfrac12\log n` for the one number that the two-part law has more: where Student's t
describes the rows better, hardly any row stands out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from robustly.result.outliers import check_fdr, stand_out

SHARE_PRIOR = (1.0, 30.0)
WIDTH, WIDTH_SPREAD = 5.0, 0.6
WIDTHS = np.exp(np.linspace(np.log(1.0), np.log(1e4), 400))
MOST_ROWS = 20_000
MOST_STEPS, SMALL = 200, 1e-6


@dataclass(frozen=True)
class StrayedRows:
    """The fitted law."""

    core: np.ndarray
    """s, (K,)."""
    share: float
    """π."""
    width: float
    """w."""
    weight: float
    """How probable the two-part law is beside the t laws of the fit."""

    def logs(self, distance: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log density of core and wide part by row and component, (n, K), but for what both share with a t law."""
        near = distance / self.core
        size = known[:, None] * np.log(self.core)
        grown = 1.0 + self.width**2
        core = np.log1p(-self.share) - 0.5 * (near + size)
        wide = np.log(self.share) - 0.5 * (near / grown + size + known[:, None] * np.log(grown))
        return core, wide

    def probability(self, distance: np.ndarray, known: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """That each row does not belong, (n,); rows without a value always do."""
        core, wide = self.logs(distance, known)
        found = self.weight * np.einsum("ik,ik->i", shares, expit(wide - core))
        return np.where(known > 0, np.clip(found, 0.0, 1.0), 0.0)

    @property
    def is_better(self) -> bool:
        """Whether it describes the rows better than t laws."""
        return self.weight >= 0.5

    def tails(self, distance: np.ndarray, known: np.ndarray, shares: np.ndarray, dofs: np.ndarray) -> np.ndarray:
        """How probable a row at least as far out is, averaged over the components it may be from.

        In the components' cores, or in their t laws if these describe the rows better.
        """
        from scipy.stats import chi2, f

        found, columns = np.zeros(len(distance)), np.maximum(known, 1)
        for k, (core, nu) in enumerate(zip(self.core, dofs)):
            if np.isfinite(nu) and not self.is_better:
                found += shares[:, k] * f.sf(distance[:, k] / columns, columns, nu)
            else:
                found += shares[:, k] * chi2.sf(distance[:, k] / core, columns)
        return np.where(known > 0, np.minimum(found, 1.0), 1.0)

    def listed(self, tail: np.ndarray, probability: np.ndarray, fdr: float | None, level: float | None) -> np.ndarray:
        """Rows that do not belong, surest first, with an expected share `fdr` of rows of the core among them.

        How many rows of the core lie as far out is known from the core alone, whatever form the wide part has (Efron 2008):
        a share 1 − π of all rows, times the tail probability.
        """
        rate = check_fdr(fdr)
        return stand_out(tail, probability, min(rate / (1.0 - self.weight * self.share), 0.999), level)


def fit_strayed_rows(distance: np.ndarray, known: np.ndarray, shares: np.ndarray, tails: np.ndarray) -> StrayedRows:
    """Fit it to squared distances (n, K) of rows with `known` values, in components by their `shares` (n, K).

    `tails` are the log densities of the t laws, without the constants :math:`-\\tfrac12\\log|2\\pi\\Sigma|`, (n, K).
    """
    chosen = np.flatnonzero(known > 0)
    chosen = chosen[:: max(1, -(-len(chosen) // MOST_ROWS))]
    if not len(chosen):
        return StrayedRows(np.ones(distance.shape[1]), 0.0, WIDTH, 0.0)
    distance, known, shares, tails = distance[chosen], known[chosen].astype(float), shares[chosen], tails[chosen]
    weight = shares * known[:, None]
    mass = np.maximum(weight.sum(axis=0), 1e-300)
    # The nearer half of the rows says how wide the core is at first, whatever the others do.
    middle = np.array([_weighted_median(distance[:, k] / known, shares[:, k]) for k in range(shares.shape[1])])
    at = StrayedRows(np.maximum(middle / _median_ratio(float(np.median(known))), 1e-300), 0.02, WIDTH, 1.0)
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
        before, at = at, StrayedRows(fresh, share, float(WIDTHS[height.argmax()]), 1.0)
        if np.abs(np.log(at.core / before.core)).max() < SMALL and abs(np.log(share / before.share)) < 1e-4:
            break
    core, wide = at.logs(distance, known)
    mean = lambda logs: float(np.einsum("ik,ik->", shares, logs))
    gain = mean(np.logaddexp(core, wide)) - mean(tails) - 0.5 * np.log(len(known))
    return StrayedRows(at.core, at.share, at.width, float(expit(gain)))


def _weighted_median(values: np.ndarray, weight: np.ndarray) -> float:
    order = np.argsort(values)
    total = np.cumsum(weight[order])
    return float(values[order][min(int(np.searchsorted(total, 0.5 * total[-1])), len(order) - 1)])


def _median_ratio(columns: float) -> float:
    """The median of a χ² law over its degrees of freedom."""
    from scipy.stats import chi2

    return float(chi2(max(columns, 1.0)).median() / max(columns, 1.0))
