"""What does a search see of a mixed model? Coefficients, shared numbers, the factor of the effects and numbers of their law."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from robustly._runtime.precision import double_precision
from robustly.approx import Approximation, Exact
from robustly.errors import ModelError
from robustly.fit.newton import Watch, maximize
from robustly.fit.objective import Effort, Look
from robustly.fit.outcome import Outcome, Stop
from robustly.fit.passes import ChunkPass
from robustly.fit.problem import Entering, EvidenceProblem, Found, Limit
from robustly.fit.search import search
from robustly.glm.edges import STATED_GAIN, fit_law
from robustly.glm.families import Normal
from robustly.glm.grouped.effects import EffectLaw, GammaEffects, NormalEffects, PrecisionEffects
from robustly.glm.grouped.gamma import gamma_poisson
from robustly.glm.grouped.linear import GroupSums, LinearGroups, group_sums
from robustly.glm.grouped.moments import Entered, GroupKernel, read_groups
from robustly.glm.grouped.sums import sums_by_group
from robustly.glm.law import Law
from robustly.glm.local import Classical
from robustly.glm.regression import Plan, Regression
from robustly.glm.row_model import row_model
from robustly.model.linear import Design
from robustly.model.row import RowModel
from robustly.rows.arrays import ArrayRows
from robustly.rows.groups import Grouping, GroupRows, rows_in_groups
from robustly.rows.store import Data, Rows, Slot

# Columns of the factor of this size, in units of the effects' columns, may be none at all.
SMALL = 0.05
# Two models as likely as this are as likely as each other.
AS_LIKELY = 1e-6
# From here on a Student t is a normal.
NEARLY_NORMAL = 300.0
# Gamma factors with this shape are all one.
NEARLY_ONE = 1e6
START_DOF = 8.0
# Where shared numbers begin that rows without groups do not tell.
START_VALUES = {"dof": START_DOF, "flip": 0.02}
# Logarithms of dispersions beyond which a simpler family does as well.
FURTHEST = 12.0


@dataclass(frozen=True, eq=False)
class GroupDesign:
    """Rows of a regression that fall into groups: the design, the groups, and the columns of their effects."""

    design: Design
    grouping: Grouping
    columns: np.ndarray
    """Of the effects, by row, in the order of the data, each divided by its size."""
    sizes: np.ndarray
    """The columns' root mean squares."""
    terms: tuple[str, ...]
    entries: tuple[tuple[int, int], ...]
    """Entries of the effects' factor that are fitted: all below the diagonal where effects are correlated."""

    @cached_property
    def rows(self) -> GroupRows:
        design = self.design
        data: tuple[np.ndarray, ...] = (
            design.directions(),
            *(
                np.ascontiguousarray(np.broadcast_to(part, len(design)))
                for part in (design.offset, design.y, design.trials)
            ),
            self.columns,
            design.rows.weight,
        )
        return rows_in_groups(data, self.grouping, ("u", "offset", "y", "trials", "z", "weight"))

    @cached_property
    def sums(self) -> GroupSums:
        """Of normal responses: products of columns added up within groups."""
        return group_sums(self.rows)

    @cached_property
    def freedom(self) -> dict[str, float]:
        """Degrees of freedom of coefficients that are told by differences between groups: as many as there are groups, less one.

        A column tells of a group no more than effects do if within each group it is a combination of their columns.
        """
        rows, design, order = self.rows, self.design, self.grouping.order
        if design.sparse:
            return {}
        plain = design.matrix[order]
        columns = np.concatenate([np.ones((len(order), 1)), plain], axis=1) if design.intercept else plain
        both = np.concatenate([columns, rows.data[4]], axis=1)
        size = columns.shape[1]
        sums = np.zeros((len(self.grouping), both.shape[1], both.shape[1]))
        for place, data, _ in rows.chunks():
            first = rows.starts[place.start]
            part = both[first : first + len(data[2])]
            sums[place] = sums_by_group(part, part, data[-1])
        xz, zz = sums[:, :size, size:], sums[:, size:, size:]
        told = np.einsum("gxa,gab,gxb->gx", xz, np.linalg.pinv(zz, rcond=1e-10, hermitian=True), xz)
        whole = np.einsum("gxx->gx", sums[:, :size, :size])
        between = np.all(whole - told <= 1e-9 * np.maximum(whole, 1e-300), axis=0)
        left = max(1.0, len(self.grouping) - between.sum() / len(self.terms))
        return {term: float(left) for term, one in zip(design.terms, between) if one}


@dataclass(frozen=True)
class GroupPlan:
    """What to fit, and how."""

    law: Law
    effects: EffectLaw
    held: dict[str, float] = field(default_factory=dict)
    """Shared numbers that are not fitted, on their own scale."""
    stop: Stop = Stop(1e-10, 200)  # noqa: RUF009
    finer: int = 1

    @property
    def plain(self) -> Plan:
        """The same rows without effects."""
        held = {name: value for name, value in self.held.items() if name in self.law.names}
        return Plan(self.law, held=held, stop=self.stop)


class GroupedRegression(EvidenceProblem):
    """The summed evidence of groups, every one integrated over its effects."""

    cheaper = Effort.ROUGH

    def __init__(
        self,
        given: GroupDesign,
        plan: GroupPlan,
        entries: Sequence[tuple[int, int]] | None = None,
        rows: Any = None,
        fixed: Mapping[tuple[int, int], float] | None = None,
    ) -> None:
        super().__init__(given.rows if rows is None else rows)
        self.given, self.plan = given, plan
        self.design = given.design
        self.fixed = {} if fixed is None else dict(fixed)
        wanted = given.entries if entries is None else entries
        self.entries = tuple(entry for entry in wanted if entry not in self.fixed)
        self.kernel = GroupKernel(plan.law, plan.effects, self.entries)
        law = plan.law
        self.free = [i for i, name in enumerate(law.names) if name not in plan.held]
        self.held = np.array([law.free(n, plan.held[n]) if n in plan.held else 0.0 for n in law.names])
        self.free_law = [i for i, name in enumerate(plan.effects.names) if f"group {name}" not in plan.held]
        self.held_law = np.array([np.log(plan.held.get(f"group {name}", 1.0)) for name in plan.effects.names])
        self.run = ChunkPass(self._chunk)
        self.constrained = np.zeros(self.size, dtype=bool)
        self.constrained[self.design.size : self.design.size + len(self.free)] = True
        self.constrained[self.size - len(self.free_law) :] = bool(self.free_law)

    @property
    def size(self) -> int:
        return self.design.size + len(self.free) + len(self.entries) + len(self.free_law)

    @property
    def parts(self) -> tuple[RowModel, Approximation]:
        return row_model(self.plan.law), Exact()

    # ------------------------------------------------------------------ the vector

    def at(self, vector: np.ndarray) -> Entered:
        """A vector, taken apart."""
        place, phi, psi = self.design.size, self.held.copy(), self.held_law.copy()
        phi[self.free] = vector[place : place + len(self.free)]
        place += len(self.free)
        factor = np.zeros((len(self.given.terms), len(self.given.terms)))
        for (a, b), value in (*self.fixed.items(), *zip(self.entries, vector[place:])):
            factor[a, b] = value
        psi[self.free_law] = vector[place + len(self.entries) :]
        return Entered(vector[: self.design.size], tuple(float(one) for one in phi), factor, psi)

    def joined(self, at: Entered) -> np.ndarray:
        """The inverse of :meth:`at`."""
        phi, psi = np.asarray(at.phi), np.asarray(at.psi)
        return np.concatenate([at.u, phi[self.free], [at.factor[a, b] for a, b in self.entries], psi[self.free_law]])

    @cached_property
    def kept(self) -> np.ndarray:
        """Where the vector's entries stand among all numbers of a group's slope."""
        first = self.design.size + len(self.plan.law.names)
        last = first + len(self.entries)
        return np.concatenate([
            np.arange(self.design.size), self.design.size + np.asarray(self.free, dtype=int), np.arange(first, last),
            last + np.asarray(self.free_law, dtype=int),
        ])  # fmt: skip

    # ------------------------------------------------------------------ looking

    def _chunk(self, theta: Any, data: Data, weight: Any, state: Any) -> tuple[dict[str, Any], dict[str, Any], Any]:
        at, coarse = theta
        with np.errstate(all="ignore"):
            sums, evidence, mode = self.kernel.look(at, read_groups(data), state, coarse)
        return sums, {"evidence": evidence}, mode

    def _pass(self, vector: np.ndarray, effort: Effort) -> tuple[ChunkPass, Any]:
        return self.run, (self.at(vector), effort is Effort.ROUGH)

    def _look(self, vector: np.ndarray, sums: dict[str, Any]) -> Look:
        u, penalty = vector[: self.design.size], self.design.penalty
        slope, curve = sums["slope"][self.kept], sums["curve"][np.ix_(self.kept, self.kept)]
        slope[: len(u)] -= penalty @ u
        curve[: len(u), : len(u)] -= penalty
        return Look(float(sums["value"]) + self._base + self.log_prior_at(vector), slope, curve)

    def log_prior_at(self, vector: np.ndarray) -> float:
        u = vector[: self.design.size]
        return -0.5 * float(u @ self.design.penalty @ u)

    @cached_property
    def base_by_group(self) -> np.ndarray:
        """What the log likelihood holds of the responses alone."""
        rows = self.rows
        assert isinstance(rows, GroupRows)
        each = self.plan.law.family.log_base(rows.data[2], rows.data[3]) * rows.data[5]
        return np.add.reduceat(each, rows.starts[:-1])

    @cached_property
    def _base(self) -> float:
        return float(self.base_by_group.sum())

    def by_group(self, function: Any, vector: np.ndarray) -> dict[str, np.ndarray]:
        """What ``function(kernel, at, rows, seen)`` gives of the groups of a chunk at a vector, lined up."""

        def each(theta: Any, data: Data, weight: Any, state: Any) -> tuple[dict[str, Any], dict[str, Any], None]:
            rows = read_groups(data)
            with np.errstate(all="ignore"):
                seen = self.kernel.at_points(theta, rows, state, False, self.plan.finer)
                return {}, function(self.kernel, theta, rows, seen), None

        with double_precision():
            return dict(self.rows.map(ChunkPass(each), self.at(vector), keep=self.slot).by_unit)

    def evidence_at(self, vector: np.ndarray) -> np.ndarray:
        if self.seen_at is not None and np.array_equal(self.seen_at, vector):
            return self.by_unit["evidence"] + self.base_by_group
        found = self.by_group(lambda kernel, at, rows, seen: {"evidence": seen.evidence}, vector)
        return found["evidence"] + self.base_by_group

    # ------------------------------------------------------------------ what a search asks besides

    def on(self, rows: Rows) -> GroupedRegression:
        return grouped_regression(self.given, self.plan, self.entries, rows, self.fixed)

    def without(self, columns: Sequence[int]) -> GroupedRegression:
        """The same problem with columns of the factor held at zero."""
        kept = [(a, b) for a, b in self.entries if b not in columns]
        return grouped_regression(self.given, self.plan, kept, self.rows, self.fixed)

    @cached_property
    def no_effects(self) -> Found:
        """The rows without their groups."""
        return fit_law(self.design, self.plan.plain)

    def starts(self, begin: Found | None) -> Sequence[np.ndarray]:
        if begin is not None and isinstance(begin.problem, GroupedRegression):
            return [self.joined(begin.problem.at(begin.vector))]
        if self.plan.effects.names:
            normal = self.normal_limit.found
            assert isinstance(normal.problem, GroupedRegression)
            at = normal.problem.at(normal.vector)
            factor = np.where(at.factor == 0.0, np.eye(len(at.factor)) * 0.1, at.factor)
            return [self.joined(at._replace(psi=np.full(1, np.log(START_DOF)), factor=0.9 * factor))]
        plain = self.no_effects
        assert isinstance(plain.problem, Regression)
        u, shared = plain.problem.split(plain.vector)
        law, phi, unit = self.plan.law, self.held.copy(), 0.5
        known = dict(zip(plain.problem.plan.law.names, shared))
        for place, name in enumerate(law.names):
            if place in self.free:
                phi[place] = known.get(name, law.free(name, START_VALUES[name]) if name in START_VALUES else 0.0)
        if self.plan.law.family.nuisance == ("scale",):
            place = self.plan.law.names.index("scale")
            unit = 0.5 * float(np.exp(phi[place]))
            phi[place] -= 0.2
        dim = len(self.given.terms)
        return [self.joined(Entered(u, tuple(phi), unit / np.sqrt(dim) * np.eye(dim), self.held_law))]

    @cached_property
    def normal_limit(self) -> NormalTails:
        return NormalTails(self)

    def limits(self, begin: Found | None) -> Sequence[Limit]:
        tails = (self.normal_limit,) if self.plan.effects.names and begin is None and self.free_law else ()
        law = self.plan.law
        plain = [name for name in law.at_boundary if name not in self.plan.held]
        rows = (ClassicalRows(self),) if plain and begin is None else ()
        if not self.plan.effects.has_scale:
            return (NoEffects(self),)
        return (*rows, *tails, NoEffects(self)) if self.entries else (*rows, *tails)

    def watch(self) -> Watch | None:
        first, names = self.design.size, [self.plan.law.names[i] for i in self.free]

        def end(vector: np.ndarray, gain: float) -> Outcome | None:
            if self.free_law and vector[-1] > np.log(NEARLY_NORMAL if self.plan.effects.has_scale else NEARLY_ONE):
                return Outcome("end", "group law")
            for value, name in zip(vector[first:], names):
                if (name == "dof" and value > np.log(NEARLY_NORMAL)) or abs(value) > FURTHEST + 8.0 * (name == "scale"):
                    return Outcome("end", name)
            return None

        return end

    def at_end(self, found: Found, climb: Callable[[EvidenceProblem, np.ndarray], Found]) -> Found:
        name = found.outcome.text
        if found.outcome.kind != "end" or name not in self.plan.law.family.nuisance:
            return found
        at = self.at(found.vector)
        value = float(np.exp(at.phi[self.plan.law.names.index(name)]))
        plan = replace(self.plan, held={**self.plan.held, name: value})
        held = grouped_regression(self.given, plan, self.entries, self.rows, self.fixed)
        return climb(held, held.joined(at)).with_outcome(
            "boundary",
            f"the dispersion ran to its limit and was held there ({name} = {value:.2g}): a simpler family does as well.",
        )

    def expect(self, vector: np.ndarray) -> tuple[float, Slot]:
        raise ModelError('groups are fitted by Newton\'s method; solver="em" is for rows of their own.')

    def expected(self, vector: np.ndarray, at: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        raise ModelError('groups are fitted by Newton\'s method; solver="em" is for rows of their own.')

    def for_draws(self) -> tuple[ArrayRows, Entering]:
        raise ModelError("posterior draws of mixed models are made from their groups; see sample_posterior.")


class LinearGroupedRegression(GroupedRegression):
    """Groups of normal responses with normal effects, or with a precision of their own: nothing is integrated by points."""

    cheaper = Effort.FULL

    @property
    def sums(self) -> GroupSums:
        if self.rows is not self.given.rows:
            assert isinstance(self.rows, GroupRows)
            return self.__dict__.setdefault("_sums", group_sums(self.rows))
        return self.given.sums

    def starts(self, begin: Found | None) -> Sequence[np.ndarray]:
        if begin is not None or self.plan.effects.names:
            return super().starts(begin)
        sums = self.sums
        square = sums.xx.sum(axis=0) + self.design.penalty + 1e-12 * np.eye(self.design.size)
        u = np.linalg.solve(square, sums.xy.sum(axis=0))
        left = max(float(sums.yy.sum() - u @ sums.xy.sum(axis=0)), 1e-300)
        scale, dim = np.sqrt(left / sums.rows.sum()), len(self.given.terms)
        held = {name: value for name, value in self.plan.held.items() if name == "scale"}
        phi = (float(np.log(held.get("scale", 0.8 * scale))),)
        return [self.joined(Entered(u, phi, 0.5 * scale / np.sqrt(dim) * np.eye(dim), self.held_law))]

    def groups_at(self, vector: np.ndarray) -> LinearGroups:
        """The groups' closed forms at a vector."""
        return LinearGroups(self.sums, self.at(vector), self.entries, bool(self.plan.effects.names))

    def look(self, vector: np.ndarray, effort: Effort = Effort.FULL) -> Look:
        with np.errstate(all="ignore"):
            try:
                evidence, slope, curve = self.groups_at(vector).look()
            except np.linalg.LinAlgError:
                return Look(-np.inf, np.zeros(self.size), -np.eye(self.size))
            self.by_unit, self.seen_at = {"evidence": evidence}, np.array(vector)
            sums = {"value": evidence.sum(), "slope": slope.sum(axis=0), "curve": curve.sum(axis=0)}
            return self._look(vector, sums)

    @cached_property
    def _base(self) -> float:
        return 0.0

    def evidence_at(self, vector: np.ndarray) -> np.ndarray:
        return self.groups_at(vector).evidence


class GammaPoissonRegression(GroupedRegression):
    """Poisson counts whose rates have a gamma factor by group: closed forms of the groups' counts and rates."""

    cheaper = Effort.FULL

    def _chunk(self, theta: Any, data: Data, weight: Any, state: Any) -> tuple[dict[str, Any], dict[str, Any], Any]:
        at, _ = theta
        with np.errstate(all="ignore"):
            evidence, slope, curve = gamma_poisson(at, read_groups(data))
        return {"value": evidence.sum(), "slope": slope, "curve": curve}, {"evidence": evidence}, None

    @cached_property
    def base_by_group(self) -> np.ndarray:
        rows = self.rows
        assert isinstance(rows, GroupRows)
        from scipy.special import gammaln

        return np.add.reduceat(-gammaln(rows.data[2] + 1.0) * rows.data[5], rows.starts[:-1])

    def evidence_at(self, vector: np.ndarray) -> np.ndarray:
        if self.seen_at is None or not np.array_equal(self.seen_at, vector):
            self.look(vector)
        return self.by_unit["evidence"] + self.base_by_group

    def starts(self, begin: Found | None) -> Sequence[np.ndarray]:
        if begin is not None and isinstance(begin.problem, GammaPoissonRegression):
            return [begin.vector]
        u = self.no_effects.problem.split(self.no_effects.vector)[0]  # type: ignore[attr-defined]
        return [self.joined(Entered(u, (), np.ones((1, 1)), np.full(1, np.log(4.0))))]


def grouped_regression(
    given: GroupDesign,
    plan: GroupPlan,
    entries: Sequence[tuple[int, int]] | None = None,
    rows: Any = None,
    fixed: Mapping[tuple[int, int], float] | None = None,
) -> GroupedRegression:
    """The problem of fitting rows in groups: by closed forms where there are some, else by quadrature."""
    closed = (
        isinstance(plan.law, Classical)
        and isinstance(plan.law.family, Normal)
        and isinstance(plan.effects, NormalEffects | PrecisionEffects)
    )
    if isinstance(plan.effects, GammaEffects):
        return GammaPoissonRegression(given, plan, (), rows, {(0, 0): float(given.sizes[0])})
    return (LinearGroupedRegression if closed else GroupedRegression)(given, plan, entries, rows, fixed)


class NoEffects(Limit):
    """Effects that are not there: a standard deviation of zero, or one effect that is a multiple of others."""

    def __init__(self, problem: GroupedRegression) -> None:
        self.problem = problem
        self.kept: Found | None = None

    @property
    def found(self) -> Found:
        assert self.kept is not None
        return self.kept

    def answers(self, best: Found) -> bool:
        problem = best.problem
        assert isinstance(problem, GroupedRegression)
        at = problem.at(best.vector)
        if not problem.plan.effects.has_scale:
            if best.outcome.kind == "end":
                plan = replace(problem.plan, effects=NormalEffects(), held={})
                held = grouped_regression(problem.given, plan, (), problem.rows)
                self.kept = Found(held, maximize(held, at.u, plan.stop))
            return best.outcome.kind == "end"
        unit = float(np.exp(at.phi[problem.plan.law.names.index("scale")])) if _has_scale(problem.plan.law) else 1.0
        size = np.sqrt(np.square(at.factor).sum(axis=0))
        small = [b for b in sorted({b for _, b in problem.entries}) if size[b] < SMALL * unit]
        if not small:
            return False
        held = problem.without(small)
        climbed = Found(held, maximize(held, held.joined(at), problem.plan.stop))
        if climbed.value < best.value - AS_LIKELY:
            return False
        self.kept = climbed
        return True

    def answer(self, best: Found | None) -> Found:
        assert isinstance(self.found.problem, GroupedRegression)
        name = self.problem.given.grouping.name
        if not self.found.problem.entries:
            text = f'the groups "{name}" do not differ beyond chance: the effects\' standard deviation is 0.'
        else:
            text = (
                f'the effects of "{name}" vary in fewer directions than they have terms: one standard deviation is 0, or a '
                "correlation is 1 or -1. Leave a term out of the bar, or make effects uncorrelated with (x || g)."
            )
        return self.found.with_outcome("boundary", text)


class ClassicalRows(Limit):
    """Rows with nothing of their own, at the end of their law's numbers; groups stay as they are."""

    def __init__(self, problem: GroupedRegression) -> None:
        self.problem = problem

    @cached_property
    def found(self) -> Found:  # type: ignore[override]
        held = {name: value for name, value in self.problem.plan.held.items() if name.startswith("group ")}
        plan = replace(self.problem.plan, law=Classical(self.problem.plan.law.family), held=held)
        return search(grouped_regression(self.problem.given, plan, rows=self.problem.rows), plan.stop)

    def answers(self, best: Found) -> bool:
        return best.outcome.kind == "end" or self.found.value >= best.value - STATED_GAIN

    def answer(self, best: Found | None) -> Found:
        return self.found.with_outcome("boundary", self.problem.plan.law.boundary_text)


class NormalTails(Limit):
    """Normal effects, at the end of a Student t's degrees of freedom."""

    def __init__(self, problem: GroupedRegression) -> None:
        self.problem = problem

    @cached_property
    def found(self) -> Found:  # type: ignore[override]
        held = {name: value for name, value in self.problem.plan.held.items() if not name.startswith("group ")}
        plan = replace(self.problem.plan, effects=NormalEffects(), held=held)
        return search(grouped_regression(self.problem.given, plan, rows=self.problem.rows), plan.stop)

    def rules_out(self) -> bool:
        problem = self.found.problem
        return isinstance(problem, GroupedRegression) and not problem.entries

    def answers(self, best: Found) -> bool:
        return best.outcome.kind == "end" or self.found.value >= best.value - STATED_GAIN

    def answer(self, best: Found | None) -> Found:
        if self.rules_out():
            return self.found
        return self.found.with_outcome(
            "boundary", "the effects have no heavier tails than a normal, so normal effects (dof = ∞) are returned."
        )


def _has_scale(law: Law) -> bool:
    return "scale" in law.names
