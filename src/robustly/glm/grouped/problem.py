"""What does a search see of a mixed model? Coefficients, shared numbers, the factor of the effects and numbers of their law."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from robustly._runtime.precision import double_precision
from robustly.approx import Approximation
from robustly.errors import ModelError
from robustly.fit.newton import Watch
from robustly.fit.objective import Effort, Look
from robustly.fit.outcome import Outcome
from robustly.fit.passes import ChunkPass
from robustly.fit.problem import FEW_ENOUGH, Entering, EvidenceProblem, Found, Limit
from robustly.glm.contaminated import Contaminated
from robustly.glm.contaminated_starts import contaminated_starts
from robustly.glm.edges import fit_law
from robustly.glm.families import Normal
from robustly.glm.grouped.effects import GammaEffects, NormalEffects, PrecisionEffects
from robustly.glm.grouped.limits import ClassicalRows, NoEffects, NormalTails
from robustly.glm.grouped.linear import GroupSums, LinearGroups
from robustly.glm.grouped.moments import Entered, GroupKernel
from robustly.glm.grouped.nested import NestedKernel
from robustly.glm.grouped.nested_linear import LinearNested, NestedSums
from robustly.glm.grouped.passes import (
    AskGroups,
    AskRows,
    BaseOfGroups,
    LookAtGroups,
    look_at_gamma_groups,
    minus_log_factorial,
)
from robustly.glm.grouped.plan import GroupDesign, GroupPlan
from robustly.glm.local import Classical
from robustly.glm.regression import Regression, log_believed
from robustly.glm.row_model import approximation, row_model
from robustly.model.row import RowModel
from robustly.rows.arrays import ArrayRows
from robustly.rows.store import Pass, Rows, Slot

# From here on a Student t is a normal.
NEARLY_NORMAL = 300.0
# Gamma factors with this shape are all one.
NEARLY_ONE = 1e6
START_DOF = 8.0
# Where shared numbers begin that rows without groups do not tell.
START_VALUES = {"dof": START_DOF, "flip": 0.02}
# Logarithms of dispersions beyond which a simpler family does as well.
FURTHEST = 12.0


class GroupedRegression(EvidenceProblem):
    """The summed evidence of groups, every one integrated over its effects."""

    cheaper = Effort.ROUGH
    has_states = True

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
        if given.inner is not None:
            self.kernel = NestedKernel(plan.law, plan.effects, self.entries, given.outer)
        law = plan.law
        self.free = [i for i, name in enumerate(law.names) if name not in plan.held]
        self.held = np.array([law.free(n, plan.held[n]) if n in plan.held else 0.0 for n in law.names])
        self.free_law = [i for i, name in enumerate(plan.effects.names) if f"group {name}" not in plan.held]
        self.held_law = np.array([np.log(plan.held.get(f"group {name}", 1.0)) for name in plan.effects.names])
        self.run = ChunkPass(self.looking)
        self.constrained = np.zeros(self.size, dtype=bool)
        self.constrained[self.design.size : self.design.size + len(self.free)] = True
        self.constrained[self.size - len(self.free_law) :] = bool(self.free_law)

    @property
    def size(self) -> int:
        return self.design.size + len(self.free) + len(self.entries) + len(self.free_law)

    @property
    def parts(self) -> tuple[RowModel, Approximation]:
        return row_model(self.plan.law), approximation(self.plan.law, None)

    @property
    def looks_are_cheap(self) -> bool:
        return len(self.design) <= FEW_ENOUGH

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

    @property
    def looking(self) -> Pass:
        """The pass of a look; its theta is what a vector comes to and whether a coarse rule will do."""
        return LookAtGroups(self.kernel)

    def _pass(self, vector: np.ndarray, effort: Effort) -> tuple[ChunkPass, Any]:
        return self.run, (self.at(vector), effort is Effort.ROUGH)

    def _look(self, vector: np.ndarray, sums: dict[str, Any]) -> Look:
        u, penalty = vector[: self.design.size], self.design.penalty
        slope, curve = sums["slope"][self.kept], sums["curve"][np.ix_(self.kept, self.kept)]
        slope[: len(u)] -= penalty * u
        curve[np.arange(len(u)), np.arange(len(u))] -= penalty
        phi = np.arange(len(u), len(u) + len(self.free))
        _, rise, bend = log_believed(self.plan.law, self.free, vector[phi])
        slope[phi] += rise
        curve[phi, phi] += bend
        return Look(float(sums["value"]) + self._base + self.log_prior_at(vector), slope, curve)

    def log_prior_at(self, vector: np.ndarray) -> float:
        size = self.design.size
        u, phi = vector[:size], vector[size : size + len(self.free)]
        return -0.5 * float(self.design.penalty @ u**2) + log_believed(self.plan.law, self.free, phi)[0]

    @property
    def log_base(self) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        """What a row's log likelihood holds of its response and trials alone."""
        return self.plan.law.family.log_base

    @cached_property
    def base_by_group(self) -> np.ndarray:
        """The same, added up within groups."""
        return self.rows.gather(BaseOfGroups(self.log_base), None)["base"]

    @cached_property
    def _base(self) -> float:
        return float(self.rows.map(BaseOfGroups(self.log_base), None).sums["base"])

    def by_group(self, function: Any, vector: np.ndarray) -> dict[str, np.ndarray]:
        """What ``function(kernel, at, rows, seen)`` gives of the groups of a chunk at a vector, lined up."""
        asked = ChunkPass(AskGroups(self.kernel, function, self.plan.finer))
        with double_precision():
            return self.rows.gather(asked, self.at(vector), keep=self.slot)

    def by_row(self, function: Any, vector: np.ndarray) -> dict[str, np.ndarray]:
        """What ``function(kernel, at, rows, predictors, shares)`` gives of the rows of a chunk at a vector, in the order of the data."""
        with double_precision():
            found = self.rows.gather(ChunkPass(AskRows(self.kernel, function)), self.at(vector))
        return {name: self.given.grouping.to_rows(np.concatenate(each)) for name, each in found.items()}

    def evidence_at(self, vector: np.ndarray) -> np.ndarray:
        if self.seen_at is not None and np.array_equal(self.seen_at, vector):
            return np.asarray(self.by_unit["evidence"]) + self.base_by_group
        found = self.by_group(lambda kernel, at, rows, seen: {"evidence": seen.evidence}, vector)
        return found["evidence"] + self.base_by_group

    # ------------------------------------------------------------------ what a search asks besides

    def sibling(
        self, plan: GroupPlan | None = None, entries: Sequence[tuple[int, int]] | None = None, rows: Any = None
    ) -> GroupedRegression:
        """The same problem with another plan, other entries of the factor, or other rows."""
        return grouped_regression(
            self.given,
            self.plan if plan is None else plan,
            self.entries if entries is None else entries,
            self.rows if rows is None else rows,
            self.fixed,
        )

    def afresh(self, plan: GroupPlan) -> GroupedRegression:
        """Another plan for the same rows, with all entries of the factor to be fitted."""
        return grouped_regression(self.given, plan, rows=self.rows)

    def on(self, rows: Rows) -> GroupedRegression:
        return self.sibling(rows=rows)

    def without(self, columns: Sequence[int]) -> GroupedRegression:
        """The same problem with columns of the factor held at zero."""
        return self.sibling(entries=[(a, b) for a, b in self.entries if b not in columns])

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
        return [self._with_effects(u, phi) for u, phi in self._without_effects()]

    def _without_effects(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Coefficients and all shared numbers of the rows without their groups, from which to begin."""
        law, size = self.plan.law, self.design.size
        if isinstance(law, Contaminated):
            return [(one[:size], one[size:]) for one in contaminated_starts(self.design, law.core)]
        plain = self.no_effects
        assert isinstance(plain.problem, Regression)
        u, shared = plain.problem.split(plain.vector)
        known = dict(zip(plain.problem.plan.law.names, shared))
        usual = {name: law.free(name, START_VALUES[name]) for name in law.names if name in START_VALUES}
        return [(u, np.array([known.get(name, usual.get(name, 0.0)) for name in law.names]))]

    def _with_effects(self, u: np.ndarray, shared: np.ndarray) -> np.ndarray:
        phi, unit, names = (
            np.where(np.isin(np.arange(len(shared)), self.free), shared, self.held),
            0.5,
            self.plan.law.names,
        )
        if self.plan.law.family.nuisance == ("scale",):
            place = names.index("scale")
            unit = 0.5 * float(np.exp(phi[place]))
            phi[place] -= 0.2
        dim = len(self.given.terms)
        return self.joined(Entered(u, tuple(phi), unit / np.sqrt(dim) * np.eye(dim), self.held_law))

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
        held = self.sibling(plan)
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


@dataclass(frozen=True)
class GroupsOf:
    """What makes closed forms of groups from their sums, at what a vector comes to."""

    entries: tuple[tuple[int, int], ...]
    own_precision: bool
    outer: int

    def __call__(self, sums: GroupSums | NestedSums, at: Entered) -> LinearGroups | LinearNested:
        if isinstance(sums, GroupSums):
            return LinearGroups(sums, at, self.entries, self.own_precision)
        return LinearNested(sums, at, self.entries, self.own_precision, self.outer)


class LinearGroupedRegression(GroupedRegression):
    """Groups of normal responses with normal effects, or with a precision of their own: nothing is integrated by points."""

    cheaper = Effort.FULL

    @cached_property
    def sums(self) -> GroupSums | NestedSums:
        return self.given.sums if self.rows is self.given.rows else self.given.sums_of(self.rows)

    def starts(self, begin: Found | None) -> Sequence[np.ndarray]:
        if begin is not None or self.plan.effects.names:
            return super().starts(begin)
        size, sums = self.design.size, self.sums
        if isinstance(sums, GroupSums):
            xx, xy, yy, rows = (part.sum(axis=0) for part in (sums.xx, sums.xy, sums.yy, sums.rows))
        else:
            whole, rows = sums.products.sum(axis=0), sums.counted.sum()
            xx, xy, yy = whole[:size, :size], whole[:size, -1], whole[-1, -1]
        u = np.linalg.solve(xx + np.diag(self.design.penalty + 1e-12), xy)
        left = max(float(yy - u @ xy), 1e-300)
        scale, dim = np.sqrt(left / rows), len(self.given.terms)
        held = {name: value for name, value in self.plan.held.items() if name == "scale"}
        phi = (float(np.log(held.get("scale", 0.8 * scale))),)
        return [self.joined(Entered(u, phi, 0.5 * scale / np.sqrt(dim) * np.eye(dim), self.held_law))]

    @property
    def groups_of(self) -> GroupsOf:
        return GroupsOf(self.entries, bool(self.plan.effects.names), self.given.outer)

    def groups_at(self, vector: np.ndarray) -> LinearGroups | LinearNested:
        """The groups' closed forms at a vector."""
        return self.groups_of(self.sums, self.at(vector))

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

    @property
    def looking(self) -> Pass:
        return look_at_gamma_groups

    @property
    def log_base(self) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        return minus_log_factorial

    def evidence_at(self, vector: np.ndarray) -> np.ndarray:
        if self.seen_at is None or not np.array_equal(self.seen_at, vector):
            self.look(vector)
        return np.asarray(self.by_unit["evidence"]) + self.base_by_group

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
