"""What does a search see of a model and its rows? The summed evidence, and what is known of its ends.

One pass over the rows gives value, slope and curvature at a vector. A problem also says where to begin, which ends its
parameters may run to, and which simpler models lie at its edge. That is all :func:`robustly.fit.search.search` knows, whatever the model and wherever the rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from robustly._runtime.precision import double_precision
from robustly.approx import Approximation, Exact, Quadrature, default_approximation
from robustly.errors import FitError, ModelError
from robustly.fit.newton import Function, maximize
from robustly.fit.objective import Effort, Look, Optimum, Problem
from robustly.fit.outcome import Outcome, Stop
from robustly.fit.passes import Passes, passes, with_prior
from robustly.fit.view_passes import RowKernel, row_kernel, view_pass, view_values
from robustly.model.row import RowModel, View
from robustly.model.wide_curvature import Curve, WideCurvature
from robustly.rows.arrays import ArrayRows
from robustly.rows.store import ByUnit, Mapped, Pass, Rows, Slot, Sums

# An estimated integration error above this share of the log likelihood makes a fit use more points.
TOLERATED = 1e-7
FINEST = 161

# Two tops that differ by less than this (in nats) are as high as each other.
HIGHER = 1e-9

FEW = 2048
# So many rows with closed forms are looked at once more for the sake of the last digits.
FEW_ENOUGH = 30_000
RANDOM_STARTS = 24
CLIMBED = 4

# (vector, data) -> what rows see of the vector, along which axes it differs by row, what else they see
Entering = Callable[[Any, Any], tuple[Any, Any, Any]]


def in_memory(anywhere: Rows) -> ArrayRows:
    """Rows that posteriors can be drawn from."""
    rows = anywhere.here
    if rows is None:
        raise ModelError("posterior draws need rows in memory. Fit a sample of the rows and draw from that fit.")
    if any(not isinstance(a[:1], np.ndarray) for a in rows.data):
        raise ModelError("posterior draws need a dense matrix of columns; give X.toarray() if it fits into memory.")
    return rows


@dataclass(frozen=True, eq=False)
class Found:
    """An optimum with what is needed to ask more of it."""

    problem: EvidenceProblem
    optimum: Optimum
    notes: tuple[str, ...] = ()

    @property
    def vector(self) -> np.ndarray:
        return self.optimum.vector

    @property
    def value(self) -> float:
        """The objective: the log likelihood with what is believed of the parameters."""
        return self.optimum.value

    @property
    def outcome(self) -> Outcome:
        return self.optimum.outcome

    @cached_property
    def curve(self) -> np.ndarray:
        """Second derivative of the objective at the vector; where a look is dear, that of one negligible step before."""
        if self.optimum.before is None or not self.problem.looks_are_cheap:
            return self.optimum.curve
        return np.asarray(self.problem.look(self.vector).curve)

    @cached_property
    def evidence(self) -> np.ndarray:
        """Each row's, at the optimum."""
        return self.problem.evidence_at(self.vector)

    @cached_property
    def log_likelihood(self) -> float:
        return self.value - self.problem.log_prior_at(self.vector)

    def with_outcome(self, kind: str, text: str, steps: int | None = None) -> Found:
        """The same find, which ended for another reason."""
        outcome = Outcome(kind, text, self.outcome.steps if steps is None else steps)
        return replace(self, optimum=replace(self.optimum, outcome=outcome))


class Limit(ABC):
    """A simpler model at the edge of a problem, which may be the answer: no spread, infinite degrees of freedom."""

    @property
    @abstractmethod
    def found(self) -> Found:
        """The simpler model, fitted when it is first asked for."""

    def rules_out(self) -> bool:
        """Whether a score test at the limit says, before any search, that nothing inside does better."""
        return False

    @abstractmethod
    def answers(self, best: Found) -> bool:
        """Whether the simpler model does as well as the best that was found inside."""

    @abstractmethod
    def answer(self, best: Found | None) -> Found:
        """The simpler model as the answer, saying so."""


class EvidenceProblem(Problem):
    """The summed evidence of rows under a row model, with what is believed of its parameters."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.slot = Slot()
        self.seen_sums: Sums = {}
        self.by_unit: ByUnit = {}
        self.seen_at: np.ndarray | None = None

    # ------------------------------------------------------------------ looking

    @property
    def looks_are_cheap(self) -> bool:
        """Whether one look more is hardly noticed: few rows, nothing to integrate."""
        return len(self.rows) <= FEW_ENOUGH and isinstance(self.parts[1], Exact)

    @cached_property
    def has_states(self) -> bool:
        """Whether a pass leaves anything by unit for the next; what has a closed form does not."""
        model, approx = self.parts
        return approx.start(model).size > 0

    @property
    @abstractmethod
    def parts(self) -> tuple[RowModel, Approximation]:
        """The model of one row, and how its local is integrated out."""

    @abstractmethod
    def _pass(self, vector: np.ndarray, effort: Effort) -> tuple[Pass, Any]: ...

    @abstractmethod
    def _look(self, vector: np.ndarray, sums: dict[str, Any]) -> Look: ...

    @abstractmethod
    def log_prior_at(self, vector: np.ndarray) -> float:
        """What the objective holds beside the rows' evidences."""

    @abstractmethod
    def evidence_at(self, vector: np.ndarray) -> np.ndarray:
        """Each row's evidence at a vector."""

    def look(self, vector: np.ndarray, effort: Effort = Effort.FULL) -> Look:
        """One pass over the rows; their states are carried from pass to pass while values stay finite."""
        ahead = Slot()
        with double_precision():
            chunk_pass, theta = self._pass(vector, effort)
            mapped = self.rows.map(chunk_pass, theta, keep=self.slot, into=ahead if self.has_states else None)
            found = self._look(vector, self._seen(mapped))
        if np.isfinite(found.value) or self.seen_at is None:
            self.seen_sums, self.by_unit, self.seen_at = mapped.sums, mapped.by_unit, np.array(vector)
        if np.isfinite(found.value):
            self.slot = ahead
        return found if effort is not Effort.SLOPE else found._replace(curve=None)

    def _seen(self, mapped: Mapped) -> Sums:
        """What of a pass makes a look."""
        return mapped.sums

    @abstractmethod
    def for_draws(self) -> tuple[ArrayRows, Entering]:
        """Rows in memory from which posteriors are drawn, and how parameters enter them: traceable, and without data."""

    @abstractmethod
    def expect(self, vector: np.ndarray) -> tuple[float, Slot]:
        """EM's first half: the objective at a vector, and where the rows' posteriors there are."""

    @abstractmethod
    def expected(self, vector: np.ndarray, at: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """What EM's second half maximises: the expected log density under posteriors found at `at`, with derivatives."""

    def maximize_expected(self, at: np.ndarray) -> np.ndarray:
        """EM's second half: Newton steps, unless a model knows better."""
        expected = Function(lambda vector: self.expected(vector, at), self.constrained)
        return maximize(expected, at, Stop(1e-12, 30)).vector

    # ------------------------------------------------------------------ what a search asks besides

    @abstractmethod
    def on(self, rows: Rows) -> EvidenceProblem:
        """The same problem with other rows; of a sample a rough answer is enough."""

    def fresh(self) -> EvidenceProblem:
        """The same problem, with nothing seen of its rows yet."""
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        EvidenceProblem.__init__(other, self.rows)
        return other

    def searched(self, at: np.ndarray) -> tuple[Problem, np.ndarray]:
        """The problem and a start in the coordinates that are searched, where these are others."""
        return self, at

    def left(self, optimum: Optimum) -> Optimum:
        """An optimum of what :meth:`searched` gave, in the problem's own coordinates."""
        return optimum

    def starts(self, begin: Found | None) -> Sequence[np.ndarray]:
        """Where to climb from, given the fit to a sample where there is one."""
        return [] if begin is None else [begin.vector]

    def rescue(self, bad: np.ndarray) -> np.ndarray | None:
        """Another place to begin, where the first has no finite evidence."""
        return None

    def without_evidence(self, where: str) -> str:
        """What to tell the user when rows had no finite evidence at the last look."""
        assert self.seen_at is not None
        evidence = np.asarray(
            self.by_unit["evidence"] if "evidence" in self.by_unit else self.evidence_at(self.seen_at)
        )
        bad = np.flatnonzero(~np.isfinite(evidence) & (np.asarray(self.rows.weight) > 0))
        if bad.size == 0:
            return f"the hyperpriors have no finite density {where}. Widen them, or give start=."
        more = f" and {bad.size - 1} more" if bad.size > 1 else ""
        return (
            f"row {bad[0]}{more} has no finite evidence ({evidence[bad[0]]}) {where}. Look for extreme or impossible values "
            "there, or give start= values at which the data are possible."
        )

    def is_better(self, tried: Found, best: Found) -> bool:
        """Whether a climb from another start is to be taken instead; of two tops of one height, the first stays."""
        return tried.value > best.value + HIGHER

    def limits(self, begin: Found | None) -> Sequence[Limit]:
        """Simpler models at the edge of this one."""
        return ()

    def watch(self) -> Callable[[np.ndarray, float], Outcome | None] | None:
        """Called after every step with the vector and the gain still expected; an outcome ends the climb."""
        return None

    def at_end(self, found: Found, climb: Callable[[EvidenceProblem, np.ndarray], Found]) -> Found:
        """The answer where a climb did not come to a top; the outcome of one that :meth:`watch` has ended is ``end``."""
        return found

    def refined(self, found: Found) -> tuple[EvidenceProblem, str] | None:
        """The same problem with a finer approximation, and a note, where the one used proves too coarse."""
        return None


class RowProblem(EvidenceProblem):
    """A row model whose functions take its parameters as they are: NumPyro programs, conjugate pairs."""

    def __init__(self, model: RowModel, rows: Rows, approx: Approximation | None = None) -> None:
        super().__init__(rows)
        self.chosen = approx is not None
        self.passes: Passes = passes(model, default_approximation(model) if approx is None else approx)

    @property
    def parts(self) -> tuple[RowModel, Approximation]:
        return self.passes.model, self.passes.approx

    @property
    def model(self) -> RowModel:
        return self.passes.model

    @property
    def constrained(self) -> np.ndarray:  # type: ignore[override]
        return self.model.parameters.constrained

    @cached_property
    def cheaper(self) -> Effort:  # type: ignore[override]
        return Effort.ROUGH if self.passes.curves(self.rows)[1] else Effort.SLOPE

    def _pass(self, vector: np.ndarray, effort: Effort) -> tuple[Pass, Any]:
        curves, by_moments = self.passes.curves(self.rows)
        return curves, (vector, effort is Effort.ROUGH if by_moments else effort is not Effort.SLOPE)

    def _look(self, vector: np.ndarray, sums: dict[str, Any]) -> Look:
        return Look(*with_prior(sums))

    def log_prior_at(self, vector: np.ndarray) -> float:
        with double_precision():
            return float(self.passes.log_hyperprior(vector))

    def evidence_at(self, vector: np.ndarray) -> np.ndarray:
        if self.seen_at is not None and np.array_equal(self.seen_at, vector):
            return self.by_unit["evidence"]
        with double_precision():
            # Of few rows, a pass that is compiled already is quicker than compiling one for the evidence alone.
            run, theta = self._pass(vector, Effort.FULL) if len(self.rows) <= FEW else (self.passes.values, vector)
            return self.rows.map(run, theta, keep=self.slot).by_unit["evidence"]

    def for_draws(self) -> tuple[ArrayRows, Entering]:
        return in_memory(self.rows), lambda vector, data: (vector, None, data)

    def expect(self, vector: np.ndarray) -> tuple[float, Slot]:
        ahead = Slot()
        with double_precision():
            mapped = self.rows.map(self.passes.values, vector, keep=self.slot, into=ahead)
        return float(mapped.sums["value"]) + self.log_prior_at(vector), ahead

    def expected(self, vector: np.ndarray, at: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        with double_precision():
            return with_prior(self.rows.map(self.passes.expected_curves, (vector, at), keep=self.slot).sums)

    def on(self, rows: Rows) -> RowProblem:
        return type(self)(self.model, rows, self.passes.approx)

    def starts(self, begin: Found | None) -> Sequence[np.ndarray]:
        if begin is not None:
            return [begin.vector]
        if self.model.latents is None:
            return [self.model.parameters.start]
        # With a discrete latent the default start is often a saddle (all components alike), so climb from several places.
        return self._better_starts(self.model.parameters.start)

    def rescue(self, bad: np.ndarray) -> np.ndarray | None:
        return self._better_starts(bad)[0]

    def _better_starts(self, default: np.ndarray) -> list[np.ndarray]:
        """The best places of several around the default, as a handful of rows see them."""
        few = self.on(self.rows.sample(FEW, 0))
        candidates = [default, *around(default, few.rows)]
        values = np.array([few.fresh().look(at, few.cheaper).value for at in candidates])
        values[~np.isfinite(values)] = -np.inf
        if not np.any(np.isfinite(values)):
            all_rows = self.fresh()
            all_rows.look(default)
            raise FitError(all_rows.without_evidence("wherever the search looked"))
        best = [candidates[i] for i in np.argsort(-values)[:CLIMBED] if np.isfinite(values[i])]
        if self.model.latents is None:
            return best[:1]
        climbed = [maximize(few.fresh(), at, Stop(1e-6, 60)) for at in best]
        return [max(climbed, key=lambda optimum: optimum.value).vector]

    def refined(self, found: Found) -> tuple[EvidenceProblem, str] | None:
        approx = self.passes.approx
        if self.chosen or not isinstance(approx, Quadrature) or approx.nodes >= FINEST:
            return None
        off = float(self.seen_sums["integration_error"])
        if off <= TOLERATED * max(1.0, abs(found.value)):
            return None
        finer = type(self)(self.model, self.rows, Quadrature(2 * approx.nodes - 1))
        finer.chosen = False
        return (
            finer,
            f"integrated with {2 * approx.nodes - 1} points a row, as fewer were off by {off:.1e} nats in all.",
        )


def around(default: np.ndarray, rows: Any) -> list[np.ndarray]:
    """Random places around the default, on the scale of one and on the scale of the observed numbers."""
    rng = np.random.default_rng(0)
    columns = [a.reshape(len(a), -1).astype(float) for a in rows.data if a.dtype.kind in "fiu"]
    with np.errstate(over="ignore", invalid="ignore"):  # of rows beyond floating point there is no scale
        unit = float(np.nan_to_num(max([np.std(c) for c in columns], default=1.0), nan=1.0, posinf=1.0))
    middle = float(np.median(columns[-1])) if columns else 0.0
    found = []
    for _ in range(RANDOM_STARTS // 2):
        found.append(default + rng.normal(size=default.shape))
        found.append(default + middle + max(unit, 1e-3) * rng.normal(size=default.shape))
    return found


class ViewProblem(EvidenceProblem):
    """A row model that states its view: parameters enter rows by a few numbers that plain linear algebra gives."""

    def __init__(
        self,
        model: RowModel,
        view: View,
        rows: Rows,
        approx: Approximation,
        *,
        rough: bool = False,
        held: tuple[int, ...] = (),
    ) -> None:
        super().__init__(rows)
        self.view, self.rough = view, rough
        self.kernel: RowKernel = row_kernel(model, approx)
        self.cheaper = Effort.ROUGH if approx.has_coarse_rule(model) else Effort.FULL
        self.curves = partial(self.kernel.curves, held=held)
        self.run = view_pass(view, self.curves, self.kernel)
        self.run_expected = view_pass(view, self.kernel.expected, self.kernel)
        self.run_values = view_values(view, self.kernel)

    @property
    def parts(self) -> tuple[RowModel, Approximation]:
        return self.kernel.model, self.kernel.approx

    def _pass(self, vector: np.ndarray, effort: Effort) -> tuple[Pass, Any]:
        return self.run, (self.view.at(vector), self.rough or effort is Effort.ROUGH)

    def _look(self, vector: np.ndarray, sums: dict[str, Any]) -> Look:
        with np.errstate(all="ignore"):
            return Look(*self.gathered(vector, sums))

    def _seen(self, mapped: Mapped) -> Sums:
        return mapped.sums | {name: mapped.by_unit[name] for name in self.view.by_row}

    def gathered(self, vector: np.ndarray, sums: Mapping[str, Any]) -> tuple[float, np.ndarray, Curve]:
        """Value, slope and curvature of the objective from what rows send back."""
        slope, curve = self.view.gather(sums)
        value, more, bend = self.prior(vector)
        if isinstance(curve, WideCurvature):
            curve = curve.with_diagonal(bend)
        else:
            curve[np.diag_indices_from(curve)] += bend
        return float(sums["value"]) + value, slope + more, curve

    def prior(self, vector: np.ndarray) -> tuple[float, Any, Any]:
        """Log density of what is believed of the vector's entries, each by itself, with its slope and second derivatives."""
        return 0.0, 0.0, 0.0

    def log_prior_at(self, vector: np.ndarray) -> float:
        return float(self.prior(vector)[0])

    def expect(self, vector: np.ndarray) -> tuple[float, Slot]:
        ahead = Slot()
        with double_precision():
            mapped = self.rows.map(self.run_values, self.view.at(vector), keep=self.slot, into=ahead)
        return float(mapped.sums["value"]) + self.log_prior_at(vector), ahead

    def expected(self, vector: np.ndarray, at: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        with double_precision():
            mapped = self.rows.map(self.run_expected, (self.view.at(vector), self.view.at(at)), keep=self.slot)
        look = self._look(vector, self._seen(mapped))
        return look.value, look.slope, np.asarray(look.curve)
