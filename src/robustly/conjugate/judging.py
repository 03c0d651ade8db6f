r"""Which rows of a conjugate pair do not belong? The pair's law as the core, and the same law with more widely spread locals.

Measurements with variances of their own are judged as a regression judges them, by a normal core and, where that does much
better, a heavy-tailed one: one law, one answer on all roads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from numpyro.distributions import constraints as limit

from robustly.conjugate.base import PairDefinition
from robustly.errors import ModelError
from robustly.result.outliers import HEAVY_MARGIN, Candidate, Judgement, heavy_tails_doubt, judge
from robustly.result.two_part import DOF, WIDTHS_OF_MEASUREMENTS, TwoPart, normal_parts, student_parts
from robustly.rows.distinct import Table
from robustly.rows.store import Rows

CONSISTENT = 1.4826  # A normal's standard deviation over its median absolute deviation.
WIDTHS_OF_LOCALS = (float(np.log(3.0)), 0.7)
# A weak prior on the logarithm of the locals' relative spread in the core; and how much narrower than the fit it is climbed from.
SPREAD = (float(np.log(0.5)), 1.5)
NARROWER = (1.0, 0.3)

Tails = Callable[[Mapping[str, Any] | None], np.ndarray]


def judge_pair(pair: PairDefinition, table: Table, theta: Mapping[str, Any] | None, tails: Tails) -> Judgement | None:
    """Weigh the laws of a pair's rows; `theta` is the fitted one, None at the classical limit."""
    candidates = _measurements(table, pair.fixed) if pair.measured else _widened(pair, table, theta, tails)
    if candidates is None:
        return None
    found = judge(candidates, heavy_tails_doubt(candidates) if pair.measured else "")
    by_row = (None if part is None else table.spread_out(part) for part in (found.probability, found.tail))
    return Judgement(*by_row, found.share, found.law, found.weights, found.doubt)


# ---------------------------------------------------------------------- measurements about a common place

_KEPT: dict[Any, dict[Any, Any]] = {}


def _measurements(table: Table, given: Mapping[str, Any]) -> list[Candidate]:
    from scipy import stats

    rows, x, weight = table.rows, np.asarray(table.columns["x"]), table.weight
    total = float(weight.sum())
    fixed = {name: given[name] for name in ("loc", "scale") if name in given}
    mean = float(fixed.get("loc", weight @ x / total))
    size = max(float(fixed.get("scale", np.sqrt(weight @ (x - mean) ** 2 / total))), 1e-150)
    middle = float(fixed.get("loc", np.median(x)))
    narrow = CONSISTENT * float(np.median(np.abs(x - middle))) or size
    starts = [
        {"loc": middle, "scale": float(fixed.get("scale", narrow)), "width": 5.0},
        {"loc": mean, "scale": size, "width": 5.0},
    ]
    starts = [{name: value for name, value in start.items() if name not in fixed} for start in starts]
    freedom = 0 if "loc" in fixed else 1

    def standardised(theta: Mapping[str, Any], share: float) -> np.ndarray:
        count = (1.0 - share) * total
        unbiased = 1.0 if "scale" in fixed else np.sqrt(count / (count - freedom))
        return np.abs(x - theta["loc"]) / (theta["scale"] * unbiased)

    normal = lambda theta: 2.0 * stats.norm.sf(standardised(theta, float(theta.get("share", 0.0))))
    student = lambda theta: 2.0 * stats.t(theta["dof"]).sf(standardised(theta, float(theta["share"])))
    away = lambda theta, row: row[0] - theta["loc"]
    log = lambda theta, *names: (jnp.log(theta[name]) for name in names)
    keeps = _KEPT.setdefault(tuple(fixed.items()), {})
    stated: dict[str, Any] = {
        "constraints": {"scale": limit.positive, "dof": limit.positive},
        "fixed": fixed,
        "keeps": keeps,
    }
    stated["constraints"] = {name: one for name, one in stated["constraints"].items() if name not in fixed}
    plain = {**stated, "constraints": {name: one for name, one in stated["constraints"].items() if name != "dof"}}
    core = TwoPart(
        "a core of Normal rows",
        lambda theta, row: normal_parts(away(theta, row), *log(theta, "scale", "width")),
        starts,
        believed={"width": WIDTHS_OF_MEASUREMENTS},
        tails=normal,
        **plain,
    )
    heavy = TwoPart(
        "a core with heavy tails (Student t)",
        lambda theta, row: student_parts(away(theta, row), *log(theta, "scale", "dof", "width"), log_student),
        [{**starts[0], "dof": 4.0}],
        believed={"width": WIDTHS_OF_MEASUREMENTS, "dof": DOF},
        tails=student,
        margin=HEAVY_MARGIN,
        **stated,
    )
    alone = _normal_alone(mean, size, total, fixed, rows, x, normal)
    return [alone, core.candidate(rows), heavy.candidate(rows)]


def log_student(away: Any, log_scale: Any, log_dof: Any) -> Any:
    """Student's t, up to the constant of the normal."""
    half = 0.5 * jnp.exp(log_dof)
    constant = gammaln(half + 0.5) - gammaln(half) - 0.5 * jnp.log(half) - log_scale
    return constant - (half + 0.5) * jnp.log1p((away * jnp.exp(-log_scale)) ** 2 / (2.0 * half))


def _normal_alone(
    mean: float, size: float, total: float, fixed: Mapping[str, Any], rows: Rows, x: np.ndarray, tails: Any
) -> Candidate:
    """The normal without a wide part, whose top is known."""
    curve = {"loc": -total / size**2, "scale": -2.0 * total}
    free = [name for name in curve if name not in fixed]
    value = -total * np.log(size) - 0.5 * float(rows.weight @ (x - mean) ** 2) / size**2
    score = np.abs(x - mean) / size
    # Carried over from the mean and from the logarithm of the scale.
    variance = sum(((1.0 / size if name == "loc" else score) ** 2) / -curve[name] for name in free)

    def scores() -> tuple[np.ndarray, np.ndarray]:
        from scipy.special import ndtri

        found = -ndtri(np.maximum(0.5 * tails({"loc": mean, "scale": size}), 1e-300))
        return found, np.broadcast_to(variance, found.shape)

    return Candidate("a core of Normal rows alone", float(value), np.diag([curve[name] for name in free]), score=scores)


# ---------------------------------------------------------------------- any other pair


def _widened(
    pair: PairDefinition, table: Table, theta: Mapping[str, Any] | None, tails: Tails
) -> list[Candidate] | None:
    """The pair's law and the same law wider by its first coordinate, which says how rows differ."""
    coordinates = pair.coordinates(table.columns)
    first, (constraint, shape) = next(iter(coordinates.items()))
    fixed = pair.fixed
    if first in fixed or constraint is not limit.positive or shape:
        return None
    columns, power = tuple(table.columns), pair.spread_power
    start = dict(pair.start(table) if theta is None else theta)

    def parts(theta: Mapping[str, Any], row: Any) -> tuple[Any, Any]:
        named = dict(zip(columns, row))
        core = {name: value for name, value in theta.items() if name not in ("width", "share")}
        wide = {**core, first: theta[first] * (1.0 + theta["width"] ** 2) ** (0.5 / power)}
        return pair.evidence(core, named), pair.evidence(wide, named)

    def core_tails(theta: Mapping[str, Any]) -> np.ndarray:
        return np.maximum(
            tails({name: value for name, value in theta.items() if name not in ("width", "share")}), 1e-11
        )

    try:
        core_tails({**fixed, **start})
        known: Any = core_tails
    except (ModelError, NotImplementedError):
        known = None
    free = {name: value for name, value in start.items() if name not in fixed}
    law = TwoPart(
        f"a core of {type(pair).__name__} rows",
        parts,
        [{**free, first: start[first] * narrow ** (1.0 / power), "width": 3.0} for narrow in NARROWER],
        {name: one for name, (one, _) in coordinates.items() if name not in fixed},
        {"width": WIDTHS_OF_LOCALS, **({} if power > 0 else {first: (SPREAD[0] / power, SPREAD[1] / abs(power))})},
        known,
        fixed=fixed,
        keeps=_KEPT.setdefault((pair, columns), {}),
    )
    return [law.candidate(table.rows)]
