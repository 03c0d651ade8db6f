r"""Which rows of a conjugate pair do not belong? The pair's law as the core, and the same law with locals shifted to either side.

A pair that does not say how its locals are shifted (:meth:`~robustly.conjugate.base.PairDefinition.strayed`) has more widely spread
ones instead.

Measurements with variances of their own are judged as a regression judges them, by a normal core and, where that does much
better, a heavy-tailed one: one law, one answer on all roads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints as limit

from robustly.conjugate.base import PairDefinition
from robustly.errors import ModelError
from robustly.result.measurements import Measurements, Seen
from robustly.result.outliers import Candidate, Judgement, judge
from robustly.result.two_part import VARIATION, WIDTHS_OF_PREDICTORS, TwoPart, log_prior_of_side
from robustly.rows.arrays import ArrayRows
from robustly.rows.distinct import Table
from robustly.rows.store import Data

CONSISTENT = 1.4826  # A normal's standard deviation over its median absolute deviation.
WIDTHS_OF_LOCALS = (float(np.log(3.0)), 0.7)
START_WIDTH, START_VARIATION = 3.0, 0.2
# A weak prior on the logarithm of the locals' relative spread in the core; and how much narrower than the fit it is climbed from.
SPREAD = (float(np.log(0.5)), 1.5)
NARROWER = (1.0, 0.3)
# Rows that are looked at together.
AT_ONCE = 1 << 14

Tails = Callable[[Mapping[str, Any] | None], np.ndarray]


def judge_pair(pair: PairDefinition, table: Table, theta: Mapping[str, Any] | None, tails: Tails) -> Judgement | None:
    """Weigh the laws of a pair's rows; `theta` is the fitted one, None at the classical limit."""
    if pair.measured:
        found = _measurements(table, pair.fixed)
    else:
        candidates = _widened(pair, table, theta, tails)
        if candidates is None:
            return None
        found = judge(candidates)
    whole = lambda part: None if part is None else table.spread_out(part)
    return replace(found, doubts=whole(found.probability), tail=whole(found.tail))


# ---------------------------------------------------------------------- measurements about a common place


def _measurements(table: Table, given: Mapping[str, Any]) -> Judgement:
    x, weight = np.asarray(table.columns["x"]), table.weight
    fixed = {name: given[name] for name in ("loc", "scale") if name in given}
    mean = float(fixed.get("loc", weight @ x / weight.sum()))
    size = float(np.sqrt(weight @ (x - mean) ** 2 / weight.sum())) or 1e-150
    middle = float(fixed.get("loc", np.median(x)))
    narrow = CONSISTENT * float(np.median(np.abs(x - middle))) or size
    own = lambda place: [] if "loc" in fixed else [place]

    def squares(vector: np.ndarray, data: Data, weight: np.ndarray, pull: np.ndarray) -> Seen:
        away = data[0] - (vector[0] if len(vector) else mean)
        return Seen(away**2, -2.0 * away[:, None][:, : len(vector)], 2.0 * pull.sum() * np.eye(len(vector)))

    starts = [(np.array(own(middle)), narrow), (np.array(own(mean)), size)]
    rows = ArrayRows((x,), weight, AT_ONCE, padded=False)
    return Measurements(
        squares, rows, np.zeros(len(own(mean)), dtype=bool), starts, fixed.get("scale") and float(fixed["scale"])
    ).judge()


# ---------------------------------------------------------------------- any other pair

_KEPT: dict[Any, dict[Any, Any]] = {}
"""What was compiled of a pair's law in two parts, of the last few pairs."""
MOST_KEPT = 16


def _widened(
    pair: PairDefinition, table: Table, theta: Mapping[str, Any] | None, tails: Tails
) -> list[Candidate] | None:
    """The pair's law in two parts; None where its first coordinate, which says how rows differ, is fixed or no number."""
    coordinates = pair.coordinates(table.columns)
    first, (constraint, shape) = next(iter(coordinates.items()))
    fixed = pair.fixed
    if first in fixed or constraint is not limit.positive or shape:
        return None
    columns, power = tuple(table.columns), pair.spread_power
    start = dict(pair.start(table) if theta is None else theta)
    has_sides = pair.strayed({**fixed, **start}, 0.0, 1.0) is not None
    beside = ("width", "share", *(("variation", "side") if has_sides else ()))
    core_of = lambda theta: {name: value for name, value in theta.items() if name not in beside}

    def parts(theta: Mapping[str, Any], row: Any) -> tuple[Any, Any]:
        named, core = dict(zip(columns, row)), core_of(theta)
        if not has_sides:
            wide = {**core, first: theta[first] * (1.0 + theta["width"] ** 2) ** (0.5 / power)}
            return pair.evidence(core, named), pair.evidence(wide, named)
        width, variance = theta["width"], (theta["width"] * theta["variation"]) ** 2
        up, down = (pair.evidence(pair.strayed(core, shift, variance), named) for shift in (width, -width))  # type: ignore[arg-type]
        either = jnp.logaddexp(up + jnp.log(theta["side"]), down + jnp.log1p(-theta["side"]))
        return pair.evidence(core, named), either

    def core_tails(theta: Mapping[str, Any]) -> np.ndarray:
        return np.maximum(tails(core_of(theta)), 1e-11)

    try:
        core_tails({**fixed, **start})
        known: Any = core_tails
    except (ModelError, NotImplementedError):
        known = None
    free = {name: value for name, value in start.items() if name not in fixed}
    kept = _KEPT[pair, columns] = _KEPT.pop((pair, columns), {})
    while len(_KEPT) > MOST_KEPT:
        _KEPT.pop(next(iter(_KEPT)))
    wide: dict[str, Any] = {"width": START_WIDTH, **({"variation": START_VARIATION, "side": 0.5} if has_sides else {})}
    believed = {} if power > 0 else {first: (SPREAD[0] / power, SPREAD[1] / abs(power))}
    of_wide = {"width": WIDTHS_OF_PREDICTORS, "variation": VARIATION} if has_sides else {"width": WIDTHS_OF_LOCALS}
    own = {name: one for name, (one, _) in coordinates.items() if name not in fixed}
    law = TwoPart(
        f"a core of {type(pair).__name__} rows",
        parts,
        [{**free, first: start[first] * narrow ** (1.0 / power), **wide} for narrow in NARROWER],
        {**own, **({"variation": limit.positive, "side": limit.unit_interval} if has_sides else {})},
        {**believed, **of_wide},
        known,
        fixed=fixed,
        prior=log_prior_of_side if has_sides else None,
        keeps=kept,
    )
    core = lambda theta, row: (pair.evidence(theta, dict(zip(columns, row))),) * 2
    core_law = replace(law, parts=core, starts=[free], constraints=own, believed=believed, prior=None, wide=False)
    return [*core_law.candidates(table.rows), *law.candidates(table.rows)]
