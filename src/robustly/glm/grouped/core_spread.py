r"""How far are effects spread in groups that belong? A core and a wide part, so that groups far out have no say in it.

With :math:`\ell_j(s)` a group's evidence when all effects are stretched by :math:`s`, groups are a mixture,
:math:`\log[(1 - \pi) e^{\ell_j(s)} + \pi e^{\ell_j(k s)}]`, with weak priors of the share :math:`\pi` and the width :math:`k`. The rule of
:mod:`robustly.result.outliers` weighs this law and the core alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from robustly.result.outliers import Candidate, Judgement, schwarz_curve, weights_of

Array = np.ndarray

# Stretches at which groups are looked at; between them evidences are interpolated.
STRETCHES = np.geomspace(1.0 / 64.0, 128.0, 29)
# The wide part is some 10 times as wide, and at least 5 times, so that it takes little from the middle; some 5 % are of it.
LOG_WIDTH, WIDTH_SD, NARROWEST = float(np.log(10.0)), 0.8, float(np.log(5.0))
SHARE_PRIOR = (1.0, 12.0)
ALONE, WIDE = "a core of groups alone", "a core of groups and a wide part"
ROUNDS, SURE = 4, 0.95


class Core(NamedTuple):
    """What judges groups: the stretch of the effects in those that belong, and the probability that each does not."""

    stretch: float
    share: float
    probability: Array
    weight: float
    """How probable it is that there is a wide part at all."""

    def judgement(self, tail: Array) -> Judgement:
        """What is believed of groups with these tails in the core."""
        law = WIDE if self.share > 0 else ALONE
        return Judgement(self.probability, tail, self.share, law, {ALONE: 1.0 - self.weight, WIDE: self.weight})


def core_estimates(
    vector: Array,
    evidence_at: Callable[[Array, float], Array],
    refit: Callable[[Array, Array], Array],
) -> tuple[Array, Array, Core]:
    """Estimates that groups far out had no part in, the groups that had one, and the core.

    Groups that surely do not belong are left out and the others fitted again, until the list stays.
    ``evidence_at(vector, stretch)`` gives the groups' evidences, ``refit(vector, groups)`` the best vector of some groups.
    """
    kept: Array | None = None
    for _ in range(ROUNDS):
        core = find_core(partial(evidence_at, vector))
        belongs = np.flatnonzero(core.probability < SURE)
        if kept is not None and np.array_equal(kept, belongs):
            break
        kept = belongs
        vector = refit(vector, belongs)
    assert kept is not None
    return vector, kept, core


def find_core(evidence: Callable[[float], Array]) -> Core:
    """The core of the groups whose evidences at stretches of their effects are given."""
    from scipy.interpolate import CubicSpline
    from scipy.optimize import minimize
    from scipy.special import betaln, expit

    at = np.log(STRETCHES)
    curve = CubicSpline(at, np.stack([evidence(float(stretch)) for stretch in STRETCHES]))
    low, high = at[0], at[-1]
    without = [curve(x).sum() for x in np.linspace(low, high, 200)]
    best_without, centre = max(without), float(np.linspace(low, high, 200)[int(np.argmax(without))])

    def parts(given: Array) -> tuple[Array, Array]:
        core = np.clip(given[0], low, high)
        wide = np.clip(core + NARROWEST + np.logaddexp(0.0, given[2]), low, high)
        share = expit(given[1])
        return curve(core) + np.log1p(-share), curve(wide) + np.log(share)

    def loss(given: Array) -> float:
        share, width = expit(given[1]), NARROWEST + np.logaddexp(0.0, given[2])
        a, b = SHARE_PRIOR
        prior = (a - 1.0) * np.log(share) + (b - 1.0) * np.log1p(-share) - betaln(a, b)
        prior -= 0.5 * ((width - LOG_WIDTH) / WIDTH_SD) ** 2
        outside = max(given[0] - high, low - given[0], 0.0)
        return -float(np.logaddexp(*parts(given)).sum() + prior) + 100.0 * outside**2

    starts = [(centre, -3.0), (centre - 0.7, -2.2), (centre - 1.5, -2.0)]
    tried = [minimize(loss, (x, odds, 1.0), method="Nelder-Mead", options={"maxiter": 600}) for x, odds in starts]
    found = min(tried, key=lambda one: float(one.fun))
    core, wide = parts(found.x)
    laws = [
        Candidate(ALONE, best_without, schwarz_curve(len(core), 1)),
        Candidate(WIDE, -float(found.fun), schwarz_curve(len(core), 3)),
    ]
    weight = float(weights_of(laws)[1])
    probability = weight * expit(wide - core)
    if weight < 0.5:
        return Core(float(np.exp(centre)), 0.0, probability, weight)
    return Core(float(np.exp(np.clip(found.x[0], low, high))), float(expit(found.x[1])), probability, weight)
