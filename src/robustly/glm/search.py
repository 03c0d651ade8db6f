r"""Which coefficients, and how much spread? Newton steps on the summed evidence, one pass over the rows a step.

The classical fit comes first: its residuals say, by the score of the spread at zero, whether rows differ at all. With
many rows a sixteenth of them is fitted first (and of those a sixteenth), so that the full data see three passes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from robustly._runtime.memory import give_back
from robustly.fit.outcome import Stop
from robustly.glm.climb import Climb, Found, Plan, by_row
from robustly.glm.evidence import pairs
from robustly.glm.families import Bernoulli, Binomial, Normal
from robustly.glm.local import Classical, Law, LocalDispersion, LocalLabel, LocalPrecision, LocalPredictor
from robustly.glm.noiseless import noiseless
from robustly.rows.frames import Design

MANY_ROWS = 30_000
SHARE, FEWEST = 16, 4096
# A sample's fit is a start: closer than this (in nats) to its top is far closer than it is to that of all rows.
ROUGH = 1e-3
# Beyond these spreads the search ends: e³⁰ either way is no longer a regression, and 1e-4 is none.
NARROWEST, WIDEST = 1e-4, 30.0
# A spread close to the narrowest is none, unless it is worth as much as this.
NARROW_GAIN = 0.01
# Of a normal response: shares of spread or scale in the other below which it is negligible, at first and at last.
NEGLIGIBLE = (0.03, 1e-4)
# A scale below this share of the responses' is rounding.
PERFECT = 1e-10
# Logarithms of dispersions beyond which a simpler family does as well, and degrees of freedom as good as normal.
LIMIT, NEARLY_NORMAL = 16.0, 1e4


def search(design: Design, plan: Plan) -> Found:
    """Fit a law to a design."""
    thorough = _BY_LAW.get(type(plan.law), _search_held)
    begin = None
    if len(design) > MANY_ROWS:
        size = max(len(design) // SHARE, FEWEST)
        sample = np.random.default_rng(0).choice(len(design), size, replace=False)
        part = design.some(np.sort(sample))
        if (part.rows.weight > 0).any():
            rough = replace(plan.stop, rtol=max(plan.stop.rtol, ROUGH))
            begin = search(part, replace(plan, tether=max(plan.tether, 1e-3), stop=rough, rough=True))
            if not begin.outcome.converged or not np.all(np.isfinite(begin.optimum.vector)):
                begin = None
        give_back()
    return thorough(design, plan, begin)


def classical(design: Design, plan: Plan, begin: Found | None = None) -> Found:
    """The generalized linear model with nothing local; says so when its coefficients run away."""
    family = plan.law.family
    # Passes are cheap here, and boundaries are judged by the last digits.
    stop = Stop(min(plan.stop.rtol, 1e-11), plan.stop.max_steps)
    plain = replace(plan, law=Classical(family), hyperprior=None, nodes=None, stop=stop)
    plain = replace(plain, held={name: v for name, v in plan.held.items() if name in plain.law.names}, known=None)
    if plan.known is not None and _is_known(plan.known, design, plain):
        return plan.known
    climb = Climb(design, plain, 0)
    if begin is not None and isinstance(begin.plan.law, Classical):
        found = climb.climb(begin.u, begin.phi)
    else:
        target = family.start(design.y, design.trials) - design.offset
        u = design.project(target)
        rest = target - (design.predictor(u) - design.offset)
        held = [plan.law.free(n, plain.held[n]) if n in plain.held else None for n in plain.law.names]
        guess = family.nuisance_start(design.y, design.trials, rest)
        phi = np.array([np.log(g) if h is None else h for g, h in zip(guess, held)])
        if isinstance(family, Normal):
            size = float(np.abs(design.y[design.rows.weight > 0]).max())
            scale = np.sqrt(np.average(rest**2, weights=design.rows.weight))
            if scale <= PERFECT * size and "scale" not in plain.held:
                fixed = Climb(design, replace(plain, held={"scale": max(PERFECT * size, 1e-150)}), 0)
                return fixed.climb(u, fixed.phi).ending("perfect_fit", _PERFECT_TEXT)
        if not np.isfinite(climb(climb.joined(u, phi))[0]):
            u = np.zeros_like(u)
        climb.state = None
        found = climb.climb(u, phi, watch=lambda vector: _nuisance_watch(climb.split(vector)[1][climb.free]))
        if found.outcome.kind == "watched":
            limit = {name: float(np.exp(value)) for name, value in zip(plain.law.names, found.phi)}
            found = Climb(design, replace(plain, held=limit), 0).climb(found.u, found.phi)
            shown = ", ".join(f"{name} = {value:.2g}" for name, value in limit.items())
            found = found.ending(
                "boundary",
                f"the dispersion ran to its limit and was held there ({shown}): a simpler family does as well.",
            )
    return _judge_separation(found)


def _is_known(known: Found, design: Design, plain: Plan) -> bool:
    """Whether an earlier fit is the one that `plain` asks for."""
    same = known.plan.law == plain.law and known.plan.stop == plain.stop and known.plan.tether == plain.tether
    return known.design is design and same and not plain.held


_PERFECT_TEXT = (
    "the columns reproduce the responses to rounding, so there is no noise to fit; standard errors mean nothing."
)


def _nuisance_watch(phi: np.ndarray) -> str | None:
    """Dispersions that run away: counts no more dispersed than a Poisson's, measurements without noise."""
    return "a dispersion is running to its limit" if np.any(np.abs(phi) > LIMIT) and len(phi) else None


def _judge_separation(found: Found) -> Found:
    design = found.design
    if not found.plan.law.family.discrete or design.ridge > 0 or found.plan.tether > 0 or not found.outcome.converged:
        return found
    seen = -found.optimum.curve[: design.size, : design.size] / design.rows.total_weight
    values, vectors = np.linalg.eigh(seen)
    if values[0] > 1e-6:
        return found
    run = np.abs(design.to_coefficients @ vectors[:, 0])
    which = [term for term, size in zip(design.terms, run) if size > 1e-3 * run.max()]
    return found.ending(
        "separation",
        f"the columns {', '.join(which[:4])} tell some responses apart perfectly: the best coefficients are infinite, "
        "and the search stopped where going on gains nothing. Set alpha (a ridge penalty, 1 is mild) or drop a column.",
    )


# ---------------------------------------------------------------------- by what is local


def _search_classical(design: Design, plan: Plan, begin: Found | None) -> Found:
    return classical(design, plan, begin)


def _search_held(design: Design, plan: Plan, begin: Found | None) -> Found:
    """A concave law with all shared numbers held, or nearly so: straight from the classical fit."""
    climb = Climb(design, plan, plan.nodes or 0)
    if begin is not None:
        return climb.climb(begin.u, begin.phi)
    plain = classical(design, plan)
    phi = climb.phi.copy()
    for name, value in zip(plain.plan.law.names, plain.phi):
        phi[plan.law.names.index(name)] = value
    return climb.climb(plain.u, phi)


def _search_spread(design: Design, plan: Plan, begin: Found | None) -> Found:
    """Rows with predictors or dispersions of their own."""
    law = plan.law
    if isinstance(law.family, Normal):
        return _search_noise(design, plan, begin)
    if begin is not None and isinstance(begin.plan.law, type(law)):
        starts = [(begin.u, begin.phi)]
        plain = None
    else:
        plain = classical(design, plan, begin)
        if not plain.outcome.converged:
            return plain
        score, size = spread_score(plain, law)
        # The score at zero does not decide for 0/1 rows and heavy tails, which may prefer a spread far from zero.
        unsure = isinstance(law.family, Bernoulli | Binomial) or getattr(law, "prior", "normal") == "student_t"
        if score <= 1e-9 * size and plan.hyperprior is None and "spread" not in plan.held and not unsure:
            return at_boundary(plain, law)
        starts = _spread_starts(design, plan, plain, score, size)
    nodes = 21 if plan.nodes is None else plan.nodes
    found: Found | None = None
    for u, phi in starts:
        climb = Climb(design, plan, nodes)
        tried = climb.climb(u, phi, watch=lambda vector, climb=climb: _spread_watch(law, climb.split(vector)[1]))
        if found is None or (tried.value > found.value + 1e-9 and tried.outcome.kind != "watched"):
            found = tried
    assert found is not None
    spread = float(np.exp(found.phi[law.names.index("spread")]))
    narrow = spread < (1.0 if found.outcome.kind == "watched" else 10.0 * NARROWEST)
    fitted = plan.hyperprior is None and "spread" not in plan.held
    if fitted and (narrow or plain is not None):
        plain = plain if plain is not None else classical(design, plan, None)
        if plain.value >= found.value - (NARROW_GAIN if narrow else 1e-6):
            return at_boundary(plain, law)
    if found.outcome.kind == "watched":
        limit, way = (NARROWEST, "as the spread falls") if narrow else (WIDEST, "with the spread")
        held = Climb(
            design, replace(plan, held={**plan.held, "spread": limit}), 81 if plan.nodes is None else plan.nodes
        )
        ended = held.climb(found.u, found.phi)
        return ended.ending(
            "bound",
            f"the likelihood keeps rising {way}, which was stopped at {limit:g}. Responses like these say "
            "little about it: give a hyperprior, or another local.",
        )
    finer = 81 if spread > 6 else 41 if spread > 2 else 21
    if plan.nodes is None and finer > nodes:
        climb = Climb(design, plan, finer)
        found = climb.climb(found.u, found.phi)
    return replace(found, plain_value=None if plain is None else plain.log_likelihood)


def _search_noise(design: Design, plan: Plan, begin: Found | None) -> Found:
    """A normal response with predictors of its rows' own: between no spread and no noise, either of which may be best."""
    law = plan.law
    plain = classical(design, plan)
    if not plain.outcome.converged:
        return plain
    spread, scale = law.names.index("spread"), law.names.index("scale")
    phi = np.full(len(law.names), np.log(4.0))
    phi[[spread, scale]] = plain.phi[0] - 0.7
    for name, value in plan.held.items():
        phi[law.names.index(name)] = law.free(name, value)
    u, fitted = plain.u, plan.hyperprior is None and "spread" not in plan.held
    if begin is not None and isinstance(begin.plan.law, type(law)):
        u, phi = begin.u, begin.phi
    ends = [end for end in [noiseless(design, plan, plain.u, plain.phi[0] - 0.7)] if end.outcome.converged]
    ends += [at_boundary(plain, law)] if fitted else []
    best = max((end.value for end in ends), default=-np.inf)
    found: Found | None = None
    for small in NEGLIGIBLE:
        climb = Climb(design, plan, 21 if plan.nodes is None else plan.nodes)
        limits = small * len(design) ** (-1.0 / 3.0), 1.0 / small

        def watch(vector: np.ndarray, climb: Climb = climb, limits: tuple[float, float] = limits) -> str | None:
            at = climb.split(vector)[1]
            ratio = float(np.exp(at[scale] - at[spread]))
            return "spread or scale runs to zero" if not limits[0] < ratio < limits[1] else None

        found = climb.climb(u, phi, watch=watch)
        if found.outcome.kind != "watched" or best >= found.value - 1e-6:
            break
        u, phi = found.u, found.phi
    assert found is not None
    if found.outcome.kind in ("watched", "bad_start") or best >= found.value - 1e-8:
        found = max(ends, key=lambda end: end.value, default=found)
    return replace(found, plain_value=plain.log_likelihood)


def spread_score(plain: Found, law: Law) -> tuple[float, float]:
    """Twice the slope of the log likelihood in the squared spread, at zero, and the size of what it is made of."""
    design, family = plain.design, law.family
    if isinstance(law, LocalDispersion):
        place = 1 + plain.plan.law.names.index(family.nuisance[0])
    else:
        place = 0
    slope, curve = by_row(plain)
    k = slope.shape[1]
    each = slope[:, place] ** 2 + curve[:, pairs(k).index((place, place))]
    weight = design.rows.weight
    return float(weight @ each), float(weight @ curve[:, pairs(k).index((place, place))] ** 2)


def _spread_starts(
    design: Design, plan: Plan, plain: Found, score: float, size: float
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The classical fit with a spread by moments, or the rows' own rough predictors, whichever has more evidence."""
    law = plan.law
    phi = np.zeros(len(law.names))
    for name, value in zip(plain.plan.law.names, plain.phi):
        phi[law.names.index(name)] = value
    for name, value in plan.held.items():
        phi[law.names.index(name)] = law.free(name, value)
    if "dof" in law.names and "dof" not in plan.held:
        phi[law.names.index("dof")] = np.log(4.0)
    place = law.names.index("spread")
    moments = np.sqrt(np.clip(score / max(size, 1e-300), 0.01, 4.0))
    if "spread" not in plan.held:
        phi[place] = np.log(moments)
    if isinstance(law, LocalDispersion):
        return [(plain.u, phi)]
    if isinstance(law.family, Bernoulli | Binomial):
        wide = phi.copy()
        if "spread" not in plan.held:
            phi[place], wide[place] = np.log(1.0), np.log(4.0)
        several = plan.hyperprior is None and "spread" not in plan.held
        return [(plain.u, phi), (2.5 * plain.u, wide)] if several else [(plain.u, phi)]
    target = law.family.start(design.y, design.trials) - design.offset
    rough = design.project(target)
    rest = target - (design.predictor(rough) - design.offset)
    wide = phi.copy()
    if "spread" not in plan.held:
        wide[place] = np.log(np.clip(np.sqrt(np.average(rest**2, weights=design.rows.weight)), 0.1, 5.0))
    climb = Climb(design, plan, 21 if plan.nodes is None else plan.nodes)
    values = [climb(climb.joined(*start), rough=True)[0] for start in ((plain.u, phi), (rough, wide))]
    return [(rough, wide)] if values[1] > values[0] or not np.isfinite(values[0]) else [(plain.u, phi)]


def _spread_watch(law: Law, phi: np.ndarray) -> str | None:
    spread = float(np.exp(phi[law.names.index("spread")]))
    return "the spread is running to a limit" if not NARROWEST < spread < WIDEST else None


def at_boundary(plain: Found, law: Law) -> Found:
    """The classical fit as the answer: no spread does better."""
    return plain.ending("boundary", law.boundary_text)


def _search_student_t(design: Design, plan: Plan, begin: Found | None) -> Found:
    law = plan.law
    plain: Found | None = None
    if begin is not None and isinstance(begin.plan.law, LocalPrecision):
        starts = [(begin.u, begin.phi)]
        common = float(np.exp(begin.phi[0]))
    else:
        plain = classical(design, replace(plan, held={}), None)
        if not plain.outcome.converged:
            return plain
        starts = _student_t_starts(design, plain)
        common = float(np.exp(plain.phi[0]))
    # Below this many degrees of freedom a fit through as many rows as coefficients has an infinite likelihood.
    floor = max(0.1, 1.5 * design.size / max(design.rows.total_weight - design.size, 1.0))
    best: Found | None = None
    for u, phi in starts:
        found = _climb_student_t(design, plan, u, phi, floor, common)
        if found.outcome.kind == "perfect_fit":
            return found
        if found.outcome.kind != "bad_start" and (best is None or found.value > best.value + 1e-9):
            best = found
    worse = best is None or (plain is not None and best.value < plain.value - 1e-7)
    if best is None or best.outcome.kind == "watched" or (worse and "dof" not in plan.held):
        return at_boundary(plain if plain is not None else classical(design, replace(plan, held={}), None), law)
    return best


def _climb_student_t(design: Design, plan: Plan, u: np.ndarray, phi: np.ndarray, floor: float, common: float) -> Found:
    """Newton from one start, ended where scale or degrees of freedom run to a limit."""
    climb = Climb(design, plan, 0)
    free = "dof" not in plan.held
    start = np.array([phi[0], np.log(max(np.exp(phi[1]), 1.2 * floor)) if free else climb.phi[1]])

    def watch(vector: np.ndarray) -> str | None:
        scale, dof = np.exp(climb.split(vector)[1])
        if scale < PERFECT * common:
            return "scale"
        return "dof" if free and not floor < dof < NEARLY_NORMAL else None

    found = climb.climb(u, start, watch=watch)
    if found.outcome.kind != "watched":
        return found
    scale, dof = np.exp(found.phi)
    if scale < PERFECT * common:
        text = "so many rows lie on one line to rounding that the scale runs to zero; look at those rows, or fix dof."
        return found.ending("perfect_fit", text)
    if dof >= NEARLY_NORMAL:
        return found
    held = Climb(design, replace(plan, held={**plan.held, "dof": floor}), 0)
    return held.climb(found.u, np.array([found.phi[0], np.log(floor)])).ending(
        "bound",
        f"the degrees of freedom stopped at {floor:.3g}: below, a fit through {design.size} rows has infinite "
        "likelihood. Use fewer columns, or fix dof.",
    )


def _student_t_starts(design: Design, plain: Found) -> list[tuple[np.ndarray, np.ndarray]]:
    """From the classical fit, and from a few reweighted fits with the tails of a t with one degree of freedom."""
    weight = design.rows.weight
    scale = float(np.exp(plain.phi[0]))
    starts = [(plain.u, np.log([0.8 * scale, 8.0]))]
    u = plain.u
    for _ in range(15):
        rest = design.y - design.predictor(u)
        middle = np.median(np.abs(rest[weight > 0]))
        scale = max(1.48 * float(middle), 1e-6 * scale)
        believed = 2.0 / (1.0 + (rest / scale) ** 2)
        u = design.weighed(weight * believed).project(design.y - design.offset)
    starts.append((u, np.log([scale, 1.5])))
    return starts


def _search_label(design: Design, plan: Plan, begin: Found | None) -> Found:
    if begin is not None and isinstance(begin.plan.law, LocalLabel):
        starts, plain = [(begin.u, begin.phi)], None
    else:
        plain = classical(design, plan, None)
        if not plain.outcome.converged:
            return plain
        starts = [(s * plain.u, np.array([plan.law.free("flip", e)])) for e in (0.02, 0.2) for s in (1.0, 3.0)]
    best: Found | None = None
    for u, phi in starts:
        climb = Climb(design, plan, 0)
        found = climb.climb(
            u, phi, watch=lambda vector, climb=climb: "no flips" if climb.split(vector)[1][0] < -14.0 else None
        )
        if best is None or found.value > best.value + 1e-9:
            best = found
    assert best is not None
    if best.outcome.kind == "watched" or (plain is not None and best.value <= plain.value + 1e-9):
        return at_boundary(plain if plain is not None else classical(design, plan, None), plan.law)
    return best


_BY_LAW: dict[type[Law], Any] = {
    Classical: _search_classical,
    LocalPredictor: _search_spread,
    LocalDispersion: _search_spread,
    LocalPrecision: _search_student_t,
    LocalLabel: _search_label,
}
