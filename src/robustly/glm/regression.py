r"""What does a search see of a regression? Coefficients in uncorrelated coordinates, and shared numbers without walls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from robustly._runtime.precision import double_precision
from robustly.approx import Approximation
from robustly.approx.tabulated import OFF, POINTS, STEP, Tables, make_tables
from robustly.fit.newton import Watch
from robustly.fit.objective import Effort, Look, Optimum, Problem
from robustly.fit.outcome import Outcome, Stop
from robustly.fit.problem import Entering, EvidenceProblem, Found, Limit, ViewProblem, in_memory
from robustly.fit.table_pass import LoopPass, PredictorRangePass, TablePass, table_sums
from robustly.fit.view_passes import KernelPass
from robustly.glm.attenuated import Attenuated, attenuation, unattenuated
from robustly.glm.families import Bernoulli, Binomial
from robustly.glm.local import LOG_2PI, Law, LocalPredictor
from robustly.glm.row_model import approximation, row_model
from robustly.model.linear import Design
from robustly.model.linear_view import LinearView
from robustly.rows.arrays import ArrayRows
from robustly.rows.store import Data, Pass, Rows

CHUNK = 4096
TABLE_ROWS = CHUNK
# Tables pay while they have a few times fewer points than there are rows.
TABLE_SHARE = 4
# About so many points has the table of one response.
TABLE_POINTS = 32
# What tables of rows that are to give a start may be off in all, in nats.
OFF_IN_ALL = 0.02
# By this share tables may have points more than they need, where that spares a look at the rows.
WIDER = 0.5
# A light pull of the coefficients to zero, for samples that may not span all columns.
SAMPLE_RIDGE = 1e-3


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
    rough: bool = False
    """Fewer points a row, which is enough for a start."""
    extra_ridge: float = 0.0
    """A pull of the coefficients of standardised columns to zero."""
    known: Found | None = None
    """The classical fit of these rows, where it was made before: a search that starts from it need not fit it again."""


Climb = Callable[[EvidenceProblem, np.ndarray], Found]


class Edges:
    """What is particular to a law: where its search begins, and what lies at its ends. Here, nothing."""

    tops_only: ClassVar[bool] = False
    """Whether a climb that runs off to a limit is never better than one that comes to a top."""

    def starts(self, problem: Regression) -> Sequence[np.ndarray]:
        """Where to climb from, given the limits of the problem."""
        return []

    def limits(self, problem: Regression, begin: Found | None) -> Sequence[Limit]:
        """Simpler laws at the edge."""
        return ()

    def rescue(self, problem: Regression, bad: np.ndarray) -> np.ndarray | None:
        """Another place to climb from, where the first has no finite evidence."""
        return None

    def watch(self, problem: Regression) -> Watch | None:
        """What ends a climb early."""
        return None

    def at_end(self, problem: Regression, found: Found, climb: Climb) -> Found:
        """The answer of a climb that :meth:`watch` has ended."""
        return found


def log_believed(
    law: Law, free: Sequence[int] | np.ndarray, values: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """What a law believes of its shared numbers that are fitted: log density, slopes and curvatures in each."""
    value, slope, curve = 0.0, np.zeros(len(values)), np.zeros(len(values))
    for place, index in enumerate(free):
        if law.names[index] in law.believed:
            centre, width = law.believed[law.names[index]]
            away = (values[place] - centre) / width
            value += -0.5 * float(away) ** 2 - float(np.log(width)) - 0.5 * LOG_2PI
            slope[place], curve[place] = -away / width, -(width**-2.0)
    return value, slope, curve


def plan_of(found: Found) -> Plan:
    """What was fitted."""
    assert isinstance(found.problem, Regression)
    return found.problem.plan


def begun_with(begin: Found | None, law: Law) -> bool:
    """Whether a sample was fitted by the law itself, and not by a simpler one at its edge."""
    return begin is not None and isinstance(plan_of(begin).law, type(law))


class Regression(ViewProblem):
    """The summed evidence of a design's rows under a law, with penalty and hyperprior.

    Made by :func:`robustly.glm.edges.regression`, which knows what is particular to a law.
    """

    def __init__(
        self, design: Design, plan: Plan, edges: Edges | None = None, approx: Approximation | None = None
    ) -> None:
        approx = approximation(plan.law, plan.nodes) if approx is None else approx
        names = plan.law.names
        free = np.array([i for i, name in enumerate(names) if name not in plan.held], dtype=int)
        held = np.array([plan.law.free(n, plan.held[n]) if n in plan.held else 0.0 for n in names])
        model = row_model(plan.law)
        # One count is like another with the same predictor: many of them are read off tables.
        self.tabulated = (
            plan.law.integrated_by_points
            and plan.law.family.discrete
            and len(design) >= TABLE_ROWS
            and design.responses is not None
            and TABLE_SHARE * TABLE_POINTS * len(design.responses) <= len(design)
        )
        loop = None if not design.looped else table_sums if self.tabulated else plan.law.loop
        # Rows without points are so cheap that what surrounds a chunk shows.
        self.chunk = CHUNK * (4 if self.tabulated or loop is not None else 1 if approx.has_coarse_rule(model) else 2)
        rows = design.rows.cut_into(self.chunk)
        # Other numbers are held for a while, and what is compiled then serves with them and without.
        still = tuple(
            1 + i for i, name in enumerate(names) if name == "dof" and name in plan.held and not plan.law.closed
        )
        super().__init__(model, LinearView(design, held, free), rows, approx, rough=plan.rough, held=still)
        self.loop = None if loop is None else LoopPass(self.linear, loop)
        self.design, self.plan, self.edges = design, plan, Edges() if edges is None else edges
        # With 0/1 rows a larger spread and larger coefficients say the same; they are searched for together.
        self.attenuated = (
            isinstance(plan.law, LocalPredictor)
            and isinstance(plan.law.family, Bernoulli | Binomial)
            and [names[i] for i in free] == ["spread"]
        )
        if self.tabulated and design.responses is not None:
            # Tables are made with all points: they are few beside the rows that are read off them.
            self.cheaper = Effort.FULL
            self.read = TablePass(self.view, design.responses)
            self.step = STEP

    def __reduce__(self) -> Any:
        # What is compiled, and where the rows' states are, is not kept; both are found again.
        return Regression, (self.design, self.plan, self.edges, self.kernel.approx)

    @property
    def linear(self) -> LinearView:
        assert isinstance(self.view, LinearView)
        return self.view

    @property
    def constrained(self) -> np.ndarray:  # type: ignore[override]
        return np.arange(self.design.size + len(self.linear.free)) >= self.design.size

    def split(self, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coordinates of the coefficients, and all shared numbers."""
        return self.linear.split(vector)

    def joined(self, u: np.ndarray, phi: np.ndarray) -> np.ndarray:
        return self.linear.joined(u, phi)

    def on(self, rows: Rows) -> Regression:
        ridge = max(self.plan.extra_ridge, SAMPLE_RIDGE)
        plan = replace(self.plan, rough=True, extra_ridge=ridge, stop=self.plan.stop.of_start)
        return Regression(self.design.with_rows(rows), plan, self.edges)

    def held_at(self, values: Mapping[str, float], **changes: Any) -> Regression:
        """The same problem with more shared numbers held, and perhaps other changes of the plan."""
        return Regression(self.design, replace(self.plan, held={**self.plan.held, **values}, **changes), self.edges)

    def with_design(self, design: Design) -> Regression:
        """The same problem of other rows, in the same coordinates."""
        other = Regression(design, self.plan, self.edges, self.kernel.approx)
        if self.tabulated and other.tabulated:
            other.step = self.step  # how fine tables have to be is a matter of the law
        return other

    def weighed(self, weight: np.ndarray) -> Regression:
        """The same problem with other weights; the rows' states come along."""
        other = Regression(self.design.weighed(weight), self.plan, self.edges, self.kernel.approx)
        other.slot = self.slot
        return other

    # ------------------------------------------------------------------ looking

    def _pass(self, vector: np.ndarray, effort: Effort) -> tuple[Pass, Any]:
        at, responses = self.linear.at(vector), self.design.responses
        if self.loop is not None and not self.tabulated:
            return self.loop, (at, self.plan.law.loop_numbers(at[1]))
        tables = self._tables(vector) if self.tabulated else None
        if tables is None or responses is None:
            return super()._pass(vector, effort)
        return (self.read, (at, tables)) if self.loop is None else (self.loop, (at, (*tables, *responses.places)))

    def _tables(self, vector: np.ndarray, value: Callable[..., Any] | None = None) -> Tables | None:
        """Tables of all responses at the shared numbers of a vector, as wide as the rows' predictors need them.

        They are of the evidence with its slopes and curvatures, or of what ``value(numbers, row, state)`` gives.
        """
        at, responses = self.linear.at(vector), self.design.responses
        assert responses is not None
        phi = at[1]

        def curves(predictor: np.ndarray, y: np.ndarray, trials: np.ndarray) -> Any:
            numbers, row = (predictor, *phi), (y, trials)
            state = self.kernel.approx.start_at(self.kernel.model, row, numbers, len(y))
            found = np.asarray(state, dtype=np.float32)
            if value is None:
                # Blocks are small, and every pass has a few: compiled as for few rows they take three times as long.
                return self.curves(numbers, row, found, False, often=True)
            return value(numbers, row, found), np.empty((len(y), 0)), np.empty((len(y), 0))

        with double_precision(), np.errstate(all="ignore"):
            width = self.plan.law.width(responses.y, responses.trials, np.asarray(phi))
            low, high = self._predictor_range(at, self.step * width)
            off = max(OFF, OFF_IN_ALL / len(self.design)) if self.plan.rough else OFF
            made = make_tables(curves, responses, low, high, width, len(self.design) // TABLE_SHARE, self.step, off)
        tables, self.step = (None, self.step) if made is None else made
        return tables

    ranges: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    """Coefficients at which rows were asked for their predictors, and between which these lay for each response."""

    def _predictor_range(self, at: tuple[Any, Any], step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Between which predictors the rows of each response lie: after a short way, within what coefficients moved."""
        if self.ranges is not None and self.design.knows_moments:
            (_, low, high), away = self.ranges, self.design.furthest(at[0] - self.ranges[0])
            if np.sum(2.0 * away / step) <= WIDER * np.sum((high - low) / step + POINTS):
                return low - away, high + away
        assert self.design.responses is not None
        ends = self.rows.map(PredictorRangePass(self.view, self.design.responses), at).sums
        self.ranges = at[0], -ends["max under"], ends["max over"]
        return self.ranges[1:]

    def _look(self, vector: np.ndarray, sums: dict[str, Any]) -> Look:
        found = super()._look(vector, sums)
        return found._replace(value=found.value + self._base)

    @cached_property
    def _base(self) -> float:
        """What the log likelihood holds of the responses alone."""
        family = self.plan.law.family
        if family.constant_base is not None:
            return family.constant_base * self.rows.total_weight
        known = self.design.__dict__.setdefault("_bases", {})
        if family not in known:
            bare = self.design.without_columns
            rows = self.rows if bare is None else bare.cut_into(self.chunk)
            known[family] = float(rows.map(self._base_pass(by_row=False), None).sums["base"])
        return known[family]

    def _base_pass(self, *, by_row: bool = True) -> Pass:
        """A pass that gives what the log density holds of the responses alone; of equal ones it is found once."""
        family, responses = self.plan.law.family, self.design.responses if self.tabulated else None
        known = np.zeros(0) if responses is None else family.log_base(responses.y, responses.trials)

        def base(theta: Any, data: Data, weight: np.ndarray, state: Any) -> tuple[dict[str, Any], dict[str, Any], None]:
            each = family.log_base(data[2], data[3]) if responses is None else known[responses.of(data)]
            return {"base": np.where(weight > 0, weight * each, 0.0).sum()}, {"base": each} if by_row else {}, None

        return base

    def prior(self, vector: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        u, size = vector[: self.design.size], self.design.size
        slope, curve = np.zeros(len(vector)), np.zeros(len(vector))
        value = -0.5 * float(self.penalty @ u**2)
        slope[:size] = -self.penalty * u
        curve[:size] = -self.penalty
        if self.plan.hyperprior is not None and "spread" not in self.plan.held:
            place = size + int(np.flatnonzero(self.linear.free == self.plan.law.names.index("spread"))[0])
            more = self.plan.hyperprior.derivatives(vector[place])
            value, slope[place], curve[place] = value + float(more[0]), more[1], more[2]
        more, rise, bend = log_believed(self.plan.law, self.linear.free, vector[size:])
        slope[size:] += rise
        curve[size:] += bend
        return value + more, slope, curve

    @cached_property
    def penalty(self) -> np.ndarray:
        """Curvature of the pull of the coefficients to zero, along each coordinate of `u`."""
        return self.design.penalty + self.plan.extra_ridge

    def by_row(self, run: Callable[..., Any], vector: np.ndarray, *more: Any) -> Any:
        """What ``run(numbers, row, state, *more)`` of the kernel gives for every row at a vector."""
        chunk_pass = KernelPass(self.view, self.kernel, run, more)
        found = self.rows.map(chunk_pass, self.view.at(vector), keep=self.slot).by_unit
        parts = tuple(found[str(i)] for i in range(len(found)))
        return parts if len(parts) > 1 else parts[0]

    def added_by_row(
        self, run: Callable[..., dict[str, Any]], vector: np.ndarray, by: Callable[..., Any] | None = None
    ) -> dict[str, Any]:
        """Sums over rows of what ``run(data, weight, found)`` makes of them at a vector.

        Found are a row's evidence, slope, curve and state, or what ``by(numbers, row, state)`` gives.
        """
        more = (False,) if by is None else ()
        chunk_pass = KernelPass(self.view, self.kernel, self.curves if by is None else by, more, run)
        return self.rows.map(chunk_pass, self.view.at(vector), keep=self.slot).sums

    def curves_by_row(self, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Every row's slopes and curvatures in its predictor and the shared numbers."""
        tables = self._tables(vector) if self.tabulated else None
        if tables is None:
            return self.by_row(self.curves, vector, False)[1:3]
        read = replace(self.read, by_row="curves")
        found = self.rows.map(read, (self.view.at(vector), tables)).by_unit
        return found["slope"], found["curve"]

    def value_by_row(self, run: Callable[..., Any], vector: np.ndarray) -> np.ndarray:
        """The one number that ``run(numbers, row, state)`` of the kernel gives for every row, of many counts off tables."""
        tables = self._tables(vector, run) if self.tabulated else None
        if tables is None:
            return self.by_row(run, vector)
        return self.rows.map(replace(self.read, by_row="value"), (self.view.at(vector), tables)).by_unit["value"]

    def evidence_at(self, vector: np.ndarray) -> np.ndarray:
        base = self.rows.map(self._base_pass(), None).by_unit["base"]
        if self.seen_at is not None and np.array_equal(self.seen_at, vector) and "evidence" in self.by_unit:
            return self.by_unit["evidence"] + base
        tables = self._tables(vector) if self.tabulated else None
        if tables is not None:
            read = replace(self.read, by_row="value")
            return self.rows.map(read, (self.view.at(vector), tables)).by_unit["value"] + base
        with double_precision():
            return self.rows.map(self.run_values, self.view.at(vector), keep=self.slot).by_unit["evidence"] + base

    def for_draws(self) -> tuple[ArrayRows, Entering]:
        rows = in_memory(self.rows)
        turned = replace(rows, data=(self.design.directions(), *rows.data[1:]))
        free, held = tuple(int(i) for i in self.linear.free), tuple(float(value) for value in self.linear.held)

        def entering(vector: Any, data: Any) -> tuple[Any, Any, Any]:
            size = data[0].shape[1]
            phi = tuple(vector[size + free.index(i)] if i in free else value for i, value in enumerate(held))
            return (data[1] + data[0] @ vector[:size], *phi), (0, *(None for _ in held)), (data[2], data[3])

        return turned, entering

    # ------------------------------------------------------------------ what a search asks besides

    def searched(self, at: np.ndarray) -> tuple[Problem, np.ndarray]:
        if not self.attenuated:
            return self, at
        size = self.design.size
        return Attenuated(self, size), np.concatenate([at[:size] / attenuation(at[size])[0], at[size:]])

    def left(self, optimum: Optimum) -> Optimum:
        if optimum.outcome.kind == "max_steps":
            text = optimum.outcome.text.replace("max_steps", "max_iter")
            optimum = replace(optimum, outcome=Outcome("max_steps", text, optimum.outcome.steps))
        if not self.attenuated:
            return optimum
        vector, seen = (unattenuated(at, self.design.size) for at in (optimum.vector, optimum.seen))
        known = self.latest is not None and self.looked_at is not None and np.array_equal(seen, self.looked_at)
        look = self.latest if known and self.latest is not None else self.look(seen)
        assert look.curve is not None
        before = None if optimum.before is None else seen
        return replace(optimum, vector=vector, slope=look.slope, bent=look.curve, before=before)

    latest: Look | None = None
    looked_at: np.ndarray | None = None

    def look(self, vector: np.ndarray, effort: Effort = Effort.FULL) -> Look:
        found = super().look(vector, effort)
        if self.attenuated:
            self.latest, self.looked_at = (found, np.array(vector)) if effort is Effort.FULL else (None, None)
        return found

    def starts(self, begin: Found | None) -> Sequence[np.ndarray]:
        if begin is not None and begun_with(begin, self.plan.law):
            assert isinstance(begin.problem, Regression)
            return [self.joined(*begin.problem.split(begin.vector))]
        return self.edges.starts(self)

    def rescue(self, bad: np.ndarray) -> np.ndarray | None:
        return self.edges.rescue(self, bad)

    def is_better(self, tried: Found, best: Found) -> bool:
        return super().is_better(tried, best) and not (self.edges.tops_only and tried.outcome.kind == "end")

    def limits(self, begin: Found | None) -> Sequence[Limit]:
        self.known_limits = self.edges.limits(self, begin)
        return self.known_limits

    known_limits: Sequence[Limit] = ()

    @property
    def classical_value(self) -> float | None:
        """The log likelihood of the classical model, where it was fitted to these rows on the way."""
        known = [limit.__dict__["found"] for limit in self.known_limits if "found" in limit.__dict__]
        return known[0].log_likelihood if known else None

    def watch(self) -> Watch | None:
        return self.edges.watch(self)

    def at_end(self, found: Found, climb: Climb) -> Found:
        return self.edges.at_end(self, found, climb) if found.outcome.kind == "end" else found

    def refined(self, found: Found) -> tuple[EvidenceProblem, str] | None:
        law = self.plan.law
        if self.plan.nodes is not None or self.plan.rough or law.closed or "spread" not in law.names:
            return None
        spread = float(np.exp(self.split(found.vector)[1][law.names.index("spread")]))
        finer = approximation(law, 81 if spread > 6 else 41 if spread > 2 else 21)
        if getattr(finer, "nodes", 0) <= getattr(self.kernel.approx, "nodes", 0):
            return None
        problem = Regression(self.design, self.plan, self.edges, finer)
        problem.known_limits = self.known_limits
        return problem, ""
