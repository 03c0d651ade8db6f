"""How far out do rows lie in a core, and how much likelier is its wide part? Asked row by row, wherever the rows are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from robustly.glm.contaminated import Contaminated
from robustly.glm.counted_cdf import MANY_ROWS
from robustly.glm.families import Normal
from robustly.glm.local import Classical, Law, LocalPredictor
from robustly.glm.predictive import Fitted, GLMPredictive
from robustly.model.linear import Design
from robustly.rows.store import Data

DEEPEST = 1e-11
STEP = 1e-3


@dataclass(frozen=True, eq=False)
class OddsOf:
    """What the kernel says of rows: the log odds of the wide part, and their slopes in a row's numbers unless told."""

    kernel: Any
    law: Contaminated
    slopes: bool = True

    def __call__(self, numbers: Any, row: Any, state: Any) -> Any:
        run = self.kernel.by_row(_odds_of(self.law, self.slopes), numbers, often=not self.slopes)
        return run(numbers, row, state)


@cache
def _odds_of(law: Contaminated, slopes: bool) -> Any:
    """Log odds of the wide part, and perhaps their slopes in a row's numbers, as the kernel compiles them."""
    import jax
    import jax.numpy as jnp

    def odds(kernel: Any, numbers: Any, row: Any, state: Any) -> Any:
        place = law.places(row, numbers, state.astype(float))

        def one(given: Any) -> Any:
            core, wide = law.parts(row, tuple(given), place)
            return wide - core

        given = jnp.stack([jnp.asarray(number, dtype=float) for number in numbers])
        return jax.value_and_grad(one)(given) if slopes else one(given)

    return odds


Judge = Callable[[Fitted, np.ndarray, np.ndarray, np.ndarray], Any]


def scores_in_core(fitted: Fitted, y: np.ndarray, predictor: np.ndarray, trials: np.ndarray) -> np.ndarray:
    return normal_scores(fitted.law, predictor, fitted.phi, y, trials)


@dataclass(frozen=True, eq=False)
class JudgePass:
    """A pass that asks a fitted law about rows; theta is what the columns are multiplied with."""

    design: Design
    fitted: Fitted
    judge: Judge

    def __call__(
        self, theta: Any, data: Data, weight: np.ndarray, state: Any
    ) -> tuple[dict[str, Any], dict[str, Any], None]:
        m = data[1] + self.design.linear(self.design.shifted(data[0]), theta)
        found = self.judge(self.fitted, data[2], m, data[3])
        return {}, {str(i): part for i, part in enumerate(found if isinstance(found, tuple) else (found,))}, None


def asked_of_rows(design: Design, u: np.ndarray, fitted: Fitted, judge: Judge) -> Any:
    """What a fitted law says of every row, chunk by chunk where the rows are."""
    found = design.rows.map(JudgePass(design, fitted, judge), design.shifted_of(u)).by_unit
    return found["0"] if len(found) == 1 else tuple(found[str(i)] for i in range(len(found)))


def normal_scores(core: Law, m: np.ndarray, phi: np.ndarray, y: np.ndarray, trials: np.ndarray) -> np.ndarray:
    """The normal deviate, above 0, that is as far out as each row is in the core."""
    from scipy.special import ndtri

    if isinstance(core, Classical) and isinstance(core.family, Normal):
        return np.abs(y - m) * np.exp(-phi[0])
    predictive = GLMPredictive(Fitted(core, phi, np.zeros(0), False), m, trials)
    if predictive.errors is not None:
        tail = 2.0 * predictive.errors.sf(np.abs(y - m))
    elif core.family.discrete and len(m) > MANY_ROWS:
        return predictive.count_scores(y, DEEPEST)
    else:
        strictly, below = predictive.cdf_on_both_sides(y)
        tail = np.clip(2.0 * np.minimum(below, 1.0 - strictly), 0.0, 1.0)
        # One less a probability has no digits left further out.
        tail = np.maximum(tail, DEEPEST)
    return -ndtri(np.maximum(0.5 * tail, 1e-300))


def score_slopes(
    core: Law, m: np.ndarray, phi: np.ndarray, y: np.ndarray, trials: np.ndarray, unit: float
) -> tuple[np.ndarray, np.ndarray]:
    """:func:`normal_scores` and their slopes in a row's predictor and in the core's numbers; steps in the former are in units."""
    if isinstance(core, LocalPredictor) and core.prior == "normal" and not core.family.nuisance:
        return _spread_slopes(core, m, phi, y, trials)
    here = normal_scores(core, m, phi, y, trials)
    found = [(normal_scores(core, m + STEP * unit, phi, y, trials) - here) / (STEP * unit)]
    for step in STEP * np.eye(len(phi)):
        found.append((normal_scores(core, m, phi + step, y, trials) - here) / STEP)
    return here, np.stack(found, axis=1)


def _spread_slopes(
    core: Law, m: np.ndarray, phi: np.ndarray, y: np.ndarray, trials: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The same where the core's predictors are spread: cdfs are integrals, and their slopes come with them."""
    from scipy.special import ndtri

    predictive = GLMPredictive(Fitted(core, phi, np.zeros(0), False), m, trials)
    below, falling = predictive.cdf_slopes(y)
    strictly, also = predictive.cdf_slopes(np.ceil(y) - 1.0) if core.family.discrete else (below, falling)
    is_low = below <= 1.0 - strictly
    side, slope = np.where(is_low, below, 1.0 - strictly), np.where(is_low[:, None], falling, -also)
    score = -ndtri(np.clip(side, 0.5 * DEEPEST, 0.5))
    inside = (side > 0.5 * DEEPEST) & (side < 0.5)
    density = np.exp(-0.5 * score**2) / np.sqrt(2.0 * np.pi)
    return score, np.where(inside[:, None], -slope / density[:, None], 0.0)
