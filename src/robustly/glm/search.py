r"""Which coefficients, and how much spread? Newton steps on the summed evidence, one pass over the rows a step.

The classical fit comes first: its residuals say, by the score of the spread at zero, whether rows differ at all. With
many rows a sixteenth of them is fitted first (and of those a sixteenth), so that the full data see four passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from robustly.errors import FitError
from robustly.fit.newton import Optimum, newton
from robustly.fit.outcome import Outcome, Stop
from robustly.glm.evidence import Kernel, kernel, pairs, start_state, table_of
from robustly.glm.families import Bernoulli, Binomial, Normal
from robustly.glm.local import Classical, Law, LocalDispersion, LocalLabel, LocalPrecision, LocalPredictor
from robustly.precision import double_precision
from robustly.rows.frames import Design, DesignRows
from robustly.rows.reduce import over_rows

MANY_ROWS = 30_000
SHARE = 16
POINT_CHUNK = 4096
CLOSED_CHUNK = 16384
WIDEST = 30.0
"""A spread beyond which the search ends; on the log scale e³⁰ either way is no longer a regression."""
NARROWEST = 1e-4
TABLE_ROWS = 8192
PERFECT = 1e-10
LIMIT = 16.0
LOGISTIC = 1.7
"""A logistic curve is close to that of a normal with this standard deviation."""
NEARLY_NORMAL = 1e4


@dataclass(frozen=True)
class Plan:
    """What to fit, and how."""

    law: Law
    nodes: int | None = None
    """Points a row; None chooses by the spread, 0 is Laplace's approximation."""
    held: Mapping[str, float] = field(default_factory=dict)
    """Shared numbers that are not fitted, by name, on their own scale."""
    hyperprior: Any = None
    stop: Stop = Stop(1e-8, 100)  # noqa: RUF009
    tether: float = 0.0
    """A light pull of the coefficients to zero, for parts of the rows that may not span all columns."""


@dataclass(frozen=True, eq=False)
class Found:
    """Where a search ended."""

    design: Design
    plan: Plan
    u: np.ndarray
    phi: np.ndarray
    """Shared numbers, held ones included, without walls."""
    optimum: Optimum
    evidence: np.ndarray
    state: np.ndarray | None
    nodes: int
    notes: tuple[str, ...] = ()
    plain_value: float | None = None
    """The log likelihood of the classical model, where it was fitted to all rows on the way."""

    @property
    def log_likelihood(self) -> float:
        return float(self.design.rows.weight @ self.evidence)

    @property
    def outcome(self) -> Outcome:
        return self.optimum.outcome

    @property
    def value(self) -> float:
        """The objective: log likelihood, less penalties."""
        return self.optimum.value

    def ending(self, kind: str, text: str) -> Found:
        return replace(self, optimum=replace(self.optimum, outcome=Outcome(kind, text, self.outcome.steps)))


class Climb:
    """The objective of a design and a law, as Newton steps ask for it."""

    def __init__(self, design: Design, plan: Plan, nodes: int) -> None:
        self.design = design
        self.plan = plan
        self.kernel: Kernel = kernel(plan.law, nodes)
        chunk = CLOSED_CHUNK if plan.law.closed else POINT_CHUNK
        self.rows = DesignRows(design.rows.data, design.rows.weight, chunk, design.rows.labels)
        names = plan.law.names
        self.free = np.array([i for i, name in enumerate(names) if name not in plan.held], dtype=int)
        self.phi = np.array([plan.law.free(n, plan.held[n]) if n in plan.held else 0.0 for n in names])
        # With 0/1 rows a larger spread and larger coefficients say the same; what they say together is searched for.
        self.attenuated = (
            isinstance(plan.law, LocalPredictor)
            and isinstance(plan.law.family, Bernoulli | Binomial)
            and [plan.law.names[i] for i in self.free] == ["spread"]
        )
        # One 0/1 row is like another with the same predictor: many of them are read off a table.
        self.tabulated = not plan.law.closed and isinstance(plan.law.family, Bernoulli) and len(design) > TABLE_ROWS
        self.state: np.ndarray | None = None
        self.seen: tuple[np.ndarray, np.ndarray] | None = None

    def split(self, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coordinates of the coefficients, and all shared numbers."""
        phi = self.phi.copy()
        phi[self.free] = vector[self.design.size :]
        return vector[: self.design.size], phi

    def joined(self, u: np.ndarray, phi: np.ndarray) -> np.ndarray:
        return np.concatenate([u, phi[self.free]])

    @property
    def walled(self) -> np.ndarray:
        return np.arange(self.design.size + len(self.free)) >= self.design.size

    def __call__(self, vector: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        if not self.attenuated:
            return self.curves(vector)
        return attenuated_curves(self.curves, vector, self.design.size)

    def curves(self, vector: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Value, slope and curvature of the objective."""
        u, phi = self.split(vector)
        design, k = self.design, self.kernel.size
        beta = design.to_shifted @ u
        if self.state is None:
            self.state = start_state(self.plan.law, design.y, design.trials, phi)
        curves = self.kernel.curves
        if self.tabulated:
            m = design.predictor(u)
            with double_precision():
                curves = table_of(self.kernel, tuple(phi), float(np.abs(m).max(initial=1.0))) or curves

        def one_chunk(data: Any, weight: np.ndarray, state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            with np.errstate(all="ignore"):  # Places too far out are told by values that are not finite.
                return add_up(data, weight, state)

        def add_up(data: Any, weight: np.ndarray, state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            matrix = design.shifted(data[0])
            m = data[1] + design.linear(matrix, beta)
            parts = curves(m, tuple(phi), (data[2], data[3]), state)
            value, slope, curve, state = (np.asarray(part) for part in parts)
            counts = weight > 0
            slope, curve = (np.where(counts[:, None], a * weight[:, None], 0.0) for a in (slope, curve))
            sums = {
                "value": np.where(counts, weight * value, 0.0).sum(),
                "slope_w": design.crossed(matrix, slope[:, 0]),
                "curve_w": design.gram(matrix, curve[:, 0]),
                "slope": slope[:, 1:].sum(axis=0),
                "curve": curve.sum(axis=0),
                "mixed": np.stack(
                    [design.crossed(matrix, curve[:, pairs(k).index((j, 0))]) for j in range(1, k)], axis=-1
                )
                if k > 1
                else np.zeros((len(beta), 0)),
            }
            return sums, {"evidence": value, "state": state}

        with double_precision():
            sums, by_row = over_rows(one_chunk, self.rows, self.state)
        if np.all(np.isfinite(by_row["state"])):
            self.state = by_row["state"]
        self.seen = (vector.copy(), by_row["evidence"])
        return self._assemble(u, phi, sums)

    def _assemble(self, u: np.ndarray, phi: np.ndarray, sums: dict[str, Any]) -> tuple[float, np.ndarray, np.ndarray]:
        with np.errstate(all="ignore"):
            return self._add_up(u, phi, sums)

    def _add_up(self, u: np.ndarray, phi: np.ndarray, sums: dict[str, Any]) -> tuple[float, np.ndarray, np.ndarray]:
        turn, size, k = self.design.to_shifted, self.design.size, self.kernel.size
        shared = np.zeros((k - 1, k - 1))
        for total, (i, j) in zip(sums["curve"], pairs(k)):
            if j > 0:
                shared[i - 1, j - 1] = shared[j - 1, i - 1] = total
        free = self.free
        slope = np.concatenate([turn.T @ sums["slope_w"], sums["slope"][free]])
        curve = np.zeros((len(slope), len(slope)))
        curve[:size, :size] = turn.T @ sums["curve_w"] @ turn
        curve[:size, size:] = (turn.T @ sums["mixed"])[:, free]
        curve[size:, :size] = curve[:size, size:].T
        curve[size:, size:] = shared[np.ix_(free, free)]
        value = float(sums["value"])
        penalty = self.design.penalty + self.plan.tether * np.eye(size)
        value -= 0.5 * float(u @ penalty @ u)
        slope[:size] -= penalty @ u
        curve[:size, :size] -= penalty
        if self.plan.hyperprior is not None and "spread" not in self.plan.held:
            place = size + int(np.flatnonzero(free == self.plan.law.names.index("spread"))[0])
            extra = self.plan.hyperprior.derivatives(phi[self.plan.law.names.index("spread")])
            value, slope[place], curve[place, place] = (
                value + extra[0],
                slope[place] + extra[1],
                curve[place, place] + extra[2],
            )
        return value, slope, curve

    def climb(self, u: np.ndarray, phi: np.ndarray, watch: Any = None) -> Found:
        """Newton from a start."""
        start, size = self.joined(u, phi), self.design.size
        if not self.attenuated:
            optimum = newton(self, start, self.plan.stop, walled=self.walled, watch=watch)
        else:
            start[:size] /= attenuation(start[-1])[0]
            optimum = newton(self, start, self.plan.stop, walled=self.walled, watch=watch)
            vector = optimum.vector.copy()
            vector[:size] *= attenuation(vector[-1])[0]
            value, slope, curve = self.curves(vector)
            optimum = replace(optimum, vector=vector, value=value, slope=slope, curve=curve)
        if optimum.outcome.kind == "max_steps":
            text = optimum.outcome.text.replace("max_steps", "max_iter")
            optimum = replace(optimum, outcome=Outcome("max_steps", text, optimum.outcome.steps))
        return self.found(optimum)

    def found(self, optimum: Optimum) -> Found:
        if self.seen is None or not np.array_equal(self.seen[0], optimum.vector):
            self.curves(optimum.vector)
        assert self.seen is not None
        evidence = self.seen[1] + self.plan.law.family.log_base(self.design.y, self.design.trials)
        base = float(self.design.rows.weight @ (evidence - self.seen[1]))
        optimum = replace(optimum, value=optimum.value + base)
        u, phi = self.split(optimum.vector)
        state = None if self.plan.law.closed else self.state
        return Found(self.design, self.plan, u, phi, optimum, evidence, state, self.kernel.nodes)


def attenuation(log_spread: float) -> tuple[float, float, float]:
    """By how much a spread of log odds shrinks coefficients, and two derivatives in the log of the spread."""
    square = float(np.exp(2.0 * log_spread)) / LOGISTIC**2
    factor = np.sqrt(1.0 + square)
    return factor, square / factor, square * (2.0 + square) / factor**3


def attenuated_curves(curves: Any, vector: np.ndarray, size: int) -> tuple[float, np.ndarray, np.ndarray]:
    """An objective as a function of coefficients divided by their attenuation."""
    factor, first, second = attenuation(vector[size])
    v = vector[:size]
    value, slope, curve = curves(np.concatenate([factor * v, vector[size:]]))
    inner, cross = curve[:size, :size], curve[:size, size]
    new_slope, new_curve = slope.copy(), curve.copy()
    new_slope[:size] = factor * slope[:size]
    new_slope[size] = slope[size] + first * v @ slope[:size]
    new_curve[:size, :size] = factor**2 * inner
    new_curve[:size, size] = factor * cross + factor * first * (inner @ v) + first * slope[:size]
    new_curve[size, :size] = new_curve[:size, size]
    new_curve[size, size] = (
        curve[size, size] + 2.0 * first * (v @ cross) + first**2 * (v @ inner @ v) + second * (v @ slope[:size])
    )
    return value, new_slope, new_curve


def search(design: Design, plan: Plan) -> Found:
    """Fit a law to a design."""
    thorough = _BY_LAW.get(type(plan.law), _search_held)
    begin = None
    if len(design) > MANY_ROWS:
        sample = np.random.default_rng(0).choice(len(design), len(design) // SHARE, replace=False)
        part = design.some(np.sort(sample))
        if (part.rows.weight > 0).any():
            begin = search(part, replace(plan, tether=max(plan.tether, 1e-3)))
            if not begin.outcome.converged or not np.all(np.isfinite(begin.optimum.vector)):
                begin = None
    return thorough(design, plan, begin)


def classical(design: Design, plan: Plan, begin: Found | None = None) -> Found:
    """The generalized linear model with nothing local; says so when its coefficients run away."""
    family = plan.law.family
    # Passes are cheap here, and boundaries are judged by the last digits.
    stop = Stop(min(plan.stop.rtol, 1e-11), plan.stop.max_steps)
    plain = replace(plan, law=Classical(family), hyperprior=None, nodes=None, stop=stop)
    plain = replace(plain, held={name: v for name, v in plan.held.items() if name in plain.law.names})
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
    if begin is not None and isinstance(begin.plan.law, type(law)):
        starts = [(begin.u, begin.phi)]
        plain = None
    else:
        plain = classical(design, plan, begin)
        if not plain.outcome.converged:
            return plain
        score, size = spread_score(plain, law)
        # The score at zero does not decide for 0/1 rows and heavy tails, which may prefer a spread far from zero, nor
        # for a normal response, whose scale takes it up.
        unsure = isinstance(law.family, Bernoulli | Binomial | Normal) or getattr(law, "prior", "normal") == "student_t"
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
    narrow = found.outcome.kind == "watched" and spread < 1.0
    if plan.hyperprior is None and (narrow or (plain is not None and found.value < plain.value - 1e-8)):
        plain = plain if plain is not None else classical(design, plan, None)
        if plain.value >= found.value - 1e-6:
            return at_boundary(plain, law)
    if found.outcome.kind == "watched":
        held = Climb(
            design, replace(plan, held={**plan.held, "spread": WIDEST}), 81 if plan.nodes is None else plan.nodes
        )
        ended = held.climb(found.u, found.phi)
        return ended.ending(
            "bound",
            f"the likelihood keeps rising with the spread, which was stopped at {WIDEST:g}. Responses like these say "
            "little about it: give a hyperprior, or another local.",
        )
    finer = 81 if spread > 6 else 41 if spread > 2 else 21
    if plan.nodes is None and finer > nodes:
        climb = Climb(design, plan, finer)
        found = climb.climb(found.u, found.phi)
    return replace(found, plain_value=None if plain is None else plain.log_likelihood)


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


def by_row(found: Found) -> tuple[np.ndarray, np.ndarray]:
    """Every row's slopes and curvatures in its predictor and the shared numbers."""
    climb = Climb(found.design, found.plan, found.nodes)
    climb.state = (
        found.state
        if found.state is not None
        else start_state(found.plan.law, found.design.y, found.design.trials, found.phi)
    )
    beta = found.design.to_shifted @ found.u

    def one_chunk(data: Any, weight: Any, state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        m = data[1] + found.design.linear(found.design.shifted(data[0]), beta)
        _, slope, curve, _ = climb.kernel.curves(m, tuple(found.phi), (data[2], data[3]), state)
        return {}, {"slope": slope, "curve": curve}

    with np.errstate(all="ignore"), double_precision():
        _, parts = over_rows(one_chunk, climb.rows, climb.state)
    return parts["slope"], parts["curve"]


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
    if isinstance(law.family, Normal):
        scale = law.names.index("scale")
        phi[place], phi[scale] = phi[scale] - 0.7, phi[scale] - 0.7
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
    values = [climb(climb.joined(*start))[0] for start in ((plain.u, phi), (rough, wide))]
    return [(rough, wide)] if values[1] > values[0] or not np.isfinite(values[0]) else [(plain.u, phi)]


def _spread_watch(law: Law, phi: np.ndarray) -> str | None:
    spread = float(np.exp(phi[law.names.index("spread")]))
    return "the spread is running to a limit" if not NARROWEST < spread < WIDEST else None


def at_boundary(plain: Found, law: Law) -> Found:
    """The classical fit as the answer: no spread does better."""
    what = {"predictor": "predictors", "dispersion": "dispersions", "label": "labels"}[law.local or "predictor"]
    if isinstance(law, LocalPrecision):
        text = "the residuals have no heavier tails than a normal, so the normal model (dof = ∞) is returned."
    elif isinstance(law, LocalLabel):
        text = "no share of wrong labels does better than none, so the classical model is returned."
    else:
        text = (
            f"the rows show no spread of their {what} beyond chance, so the classical model is returned (spread = 0)."
        )
    return plain.ending("boundary", text)


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


@dataclass(frozen=True)
class WeakSpread:
    """Keeps the spread of 0/1 rows away from zero and infinity: Gamma(2, 1), with mode 1 (Chung et al. 2013)."""

    shape: float = 2.0
    rate: float = 1.0

    def derivatives(self, log_spread: float) -> tuple[float, float, float]:
        spread = float(np.exp(log_spread))
        log_density = (self.shape - 1.0) * log_spread - self.rate * spread
        return log_density, self.shape - 1.0 - self.rate * spread, -self.rate * spread


@dataclass(frozen=True)
class GivenSpread:
    """A NumPyro distribution of the spread as its hyperprior."""

    distribution: Any

    def derivatives(self, log_spread: float) -> tuple[float, float, float]:
        import jax
        import jax.numpy as jnp

        with double_precision():
            density = lambda t: jnp.sum(self.distribution.log_prob(jnp.exp(t)))  # noqa: E731
            at = jnp.asarray(float(log_spread))
            found = (density(at), jax.grad(density)(at), jax.grad(jax.grad(density))(at))
            return tuple(float(part) for part in found)  # type: ignore[return-value]


def as_hyperprior(given: Any) -> Any:
    """A hyperprior from what the user gave."""
    if given is None or hasattr(given, "derivatives"):
        return given
    if hasattr(given, "log_prob"):
        return GivenSpread(given)
    raise FitError(f'hyperprior is None, "auto" or a NumPyro distribution of the spread; {given!r} came.')
