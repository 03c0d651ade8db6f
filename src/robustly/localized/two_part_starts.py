r"""Where is a program's prior in two parts climbed from? From what the plain fit has seen of the rows' own values.

Around its mode a row's posterior under the plain prior looks normal, and so does the likelihood that the prior was multiplied with:
with precision :math:`1/s_i^2` at :math:`u_i`, in steps of the prior, the row has seen :math:`\hat u_i = u_i / (1 - s_i^2)` with variance
:math:`1/(s_i^{-2} - 1)`. To rows told by two numbers each a law in two parts is fitted in no time, and of this fit all rows need few looks.
Where rows have no such numbers (closed forms, several dimensions, other priors), the core is climbed to without the rows far out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from scipy.special import expit

from robustly._runtime.threads import on_one_thread
from robustly.approx import Quadrature
from robustly.approx.grid import ENDS
from robustly.errors import FitError
from robustly.fit.newton import Function, maximize
from robustly.fit.outcome import Stop
from robustly.fit.problem import Found, RowProblem
from robustly.fit.search import search
from robustly.model.program import hyper
from robustly.result.two_part import SHARE, SIDE, VARIATION, WIDTHS_OF_MEASUREMENTS
from robustly.rows.store import Rows

if TYPE_CHECKING:
    from robustly.localized.contaminated import Contamination

# Normal priors of the numbers of the wide part on the scales that are searched: widths are told in deviations, as of measurements.
BELIEVED = {"width": WIDTHS_OF_MEASUREMENTS, "share": SHARE, "variation": VARIATION, "side": SIDE}
START = {"width": 6.0, "share": 0.05, "variation": 0.2, "side": 0.5}
# Rows are left out that are more surprising than most by so many quartile ranges, but no more than this share of them.
FENCE, TRIMMED = 3.0, 0.2
# How closely the rest is climbed to, and how far hyperparameters move at most.
ROUGHLY, FURTHEST = Stop(1e-3, 4), 2.0
# Shares and widths to climb from.
SHARES, WIDTHS = (0.02, 0.15), (3.0, 30.0)
# Rows from whose numbers a start is made; least information of a row, in that of the prior; how far out rows count as strayed.
SEEN_ROWS, LEAST_SEEN, FAR_OUT = 4000, 0.02, 4.0
CONSISTENT = 1.4826  # A normal's standard deviation over its median absolute deviation.
CLOSE = Stop(1e-3, 40)


def starts_of_two_parts(law: Contamination, plain: Found, rows: Rows) -> Iterator[dict[str, Any]]:
    """Where two parts are climbed from, the best guess first; those behind it are worked out where no way leads up from it."""
    model, _ = plain.problem.parts
    here = model.parameters.natural(jnp.asarray(plain.vector))
    core = {**law.core.start, **{name: value for name, value in here.items() if name in law.core.start}}
    if set(law.core.start) - set(here):  # all rows share the localized value
        yield law.theta_of(core, share=_share(_far(plain)))
        return
    seen = _seen(law, plain, rows, core)
    if seen is not None:
        yield law.theta_of(**_by_seen_rows(law, core, *seen))
    yield from _by_trimmed_rows(law, plain, rows, core)


def _seen(law: Contamination, plain: Found, rows: Rows, core: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """What rows have seen of their own values, by part, in steps of the prior: place, variance and level; weights and the step."""
    if rows.here is None or law.core.dim != 1 or law.core.prior is None:
        return None
    states = rows.here.states(plain.problem.slot)
    if states is None or not isinstance(plain.problem.parts[1], Quadrature):
        return None
    prior = hyper.plain(law.core.prior(core, tuple(column[0] for column in rows.here.data)))
    if type(prior) not in hyper.LOCATION_SCALE:
        return None
    chosen = np.linspace(0, len(states) - 1, min(len(states), SEEN_ROWS)).astype(int)
    mode, left, right = np.asarray(states[chosen], dtype=float).T
    both = _likelihood_at(mode, 0.5 * (left + right))
    _, _, far = _middle_and_far(*both[:2])
    # Of rows far out each side is looked at by itself: towards the core, and further out to where strayed rows lie.
    sides = [np.where(mode > 0, left, right), right, left]
    by_side = [np.where(far, _likelihood_at(mode, side), both) for side in sides]
    place, variance, level = np.stack(by_side, axis=1)
    return place, variance, level, np.asarray(rows.weight)[chosen], prior.scale


def _likelihood_at(mode: np.ndarray, log_half_width: np.ndarray) -> np.ndarray:
    """Place, variance and level of a normal likelihood that made a standard normal prior fall off so far from the mode."""
    precision = np.exp(-2.0 * (log_half_width - np.log(ENDS)))
    information = np.maximum(precision - 1.0, LEAST_SEEN)
    return np.stack(
        [mode + mode / information, 1.0 / information, 0.5 * mode**2 / information - 0.5 * np.log(information)]
    )


def _middle_and_far(place: np.ndarray, variance: np.ndarray) -> tuple[float, float, np.ndarray]:
    """The middle of most rows and how they are spread there, and which rows lie far out."""
    middle = float(np.median(place))
    away = np.abs(place - middle)
    scale = float(np.sqrt(max((CONSISTENT * float(np.median(away))) ** 2 - float(np.median(variance)), 0.05)))
    return middle, scale, away > FAR_OUT * np.sqrt(scale**2 + variance)


@on_one_thread  # asked for once, not for each of the small systems that are solved on the way
def _by_seen_rows(
    law: Contamination,
    core: dict[str, Any],
    place: np.ndarray,
    variance: np.ndarray,
    level: np.ndarray,
    weight: np.ndarray,
    step: Any,
) -> dict[str, Any]:
    """Natural values of a law in two parts, fitted to what rows have seen."""
    middle, scale, far = _middle_and_far(place[0], variance[0])
    width = float(np.clip(np.median(np.abs(place[0, far] - middle)) / scale, *WIDTHS)) if far.any() else START["width"]
    share = _share(far)
    start = [middle, np.log(scale), np.log(width), np.log(share / (1.0 - share)), np.log(START["variation"]), 0.0]
    believed = np.array(list(BELIEVED.values()))

    def objective(vector: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        value, scores = _normal_parts(vector, place, variance, level)
        off = np.concatenate([[0.0, 0.0], (vector[2:] - believed[:, 0]) / believed[:, 1]])
        held = np.concatenate([[0.0, 0.0], 1.0 / believed[:, 1]])
        slope = weight @ scores - off * held
        return (
            float(weight @ value - 0.5 * off @ off),
            slope,
            -(scores * weight[:, None]).T @ scores - np.diag(held**2),
        )

    on_log_scale = np.array([False, *(True for _ in start[1:])])
    found = maximize(Function(objective, on_log_scale), np.array(start), CLOSE).vector
    moved = dict(core)
    if f"{law.site}.loc" in core:
        moved[f"{law.site}.loc"] = core[f"{law.site}.loc"] + found[0] * step
    if f"{law.site}.scale" in core:
        moved[f"{law.site}.scale"] = core[f"{law.site}.scale"] * np.exp(found[1])
    width, share, variation, side = np.exp(found[2]), expit(found[3]), np.exp(found[4]), expit(found[5])
    return {"core": moved, "width": width, "share": share, "variation": variation, "side": side}


def _normal_parts(
    vector: np.ndarray, place: np.ndarray, variance: np.ndarray, level: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Log densities of rows seen with normal errors under a normal core and shifted normals, and their scores."""
    middle, scale, width = vector[0], np.exp(vector[1]), np.exp(vector[1] + vector[2])
    share, side, own = expit(vector[3]), expit(vector[5]), np.exp(vector[4]) * width
    sides = np.array([0.0, 1.0, -1.0])[:, None]
    spread = np.array([scale, own, own])[:, None] ** 2
    total = spread + variance
    off = place - middle - sides * width
    chance = np.log([1.0 - share, share * side, share * (1.0 - side)])[:, None]
    each = level + chance - 0.5 * off**2 / total - 0.5 * np.log(total)
    top = each.max(axis=0)
    value = top + np.log(np.exp(each - top).sum(axis=0))
    part = np.exp(each - value)
    pull, widen = part * off / total, part * (off**2 / total - 1.0) / total * spread
    strayed, shift = part[1:].sum(axis=0), width * (sides * pull).sum(axis=0)
    wider = widen[1:].sum(axis=0)
    scores = [
        pull.sum(axis=0),
        shift + widen.sum(axis=0),
        shift + wider,
        strayed - share,
        wider,
        part[1] - strayed * side,
    ]
    return value, np.stack(scores, axis=1)


def _far(plain: Found) -> np.ndarray:
    """Which rows are far more surprising than most under the plain fit."""
    surprise = -plain.evidence
    low, high, most = np.quantile(surprise, [0.25, 0.75, 1.0 - TRIMMED])
    return surprise > max(high + FENCE * (high - low), most)


def _share(far: np.ndarray) -> float:
    return float(np.clip(far.mean(), *SHARES))


def _by_trimmed_rows(law: Contamination, plain: Found, rows: Rows, core: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A core without the rows far out, and where no way leads up from there, that of the plain fit."""
    far = _far(plain)
    as_it_is = law.theta_of(core, share=_share(far))
    if not far.any():
        yield as_it_is
        return
    assert isinstance(plain.problem, RowProblem)
    try:
        trimmed = search(plain.problem.on(rows.weighed(np.where(far, 0.0, rows.weight))), ROUGHLY, start=plain.vector)
    except FitError:
        yield as_it_is
        return
    parameters = plain.problem.model.parameters
    moved = trimmed.vector - plain.vector
    for name, place in parameters.places.items():
        if name.startswith(f"{law.site}."):
            moved[place] = np.clip(moved[place], -FURTHEST, FURTHEST)
    again = parameters.natural(jnp.asarray(plain.vector + moved))
    # A normal row so many deviations out is more surprising by half of their square.
    above = float(np.median(-trimmed.evidence[far]) + np.median(trimmed.evidence[~far]))
    width = float(np.clip(np.sqrt(2.0 * max(above, 0.0)), *WIDTHS))
    yield law.theta_of({name: again[name] for name in law.core.start}, share=_share(far), width=width)
    yield as_it_is
