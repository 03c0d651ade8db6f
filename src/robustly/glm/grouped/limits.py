"""Which simpler models lie at the edge of a mixed model? No effects, classical rows, normal tails.

Each asks its problem for a sibling: the same rows under another plan.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np

from robustly.errors import names
from robustly.fit.newton import maximize
from robustly.fit.problem import Found, Limit
from robustly.fit.search import search
from robustly.glm.edges import STATED_GAIN
from robustly.glm.grouped.effects import NormalEffects
from robustly.glm.local import Classical

if TYPE_CHECKING:
    from robustly.glm.grouped.problem import GroupedRegression

# Columns of the factor of this size, in units of the effects' columns, may be none at all.
SMALL = 0.05
# Two models as likely as this are as likely as each other.
AS_LIKELY = 1e-6


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
        problem = cast("GroupedRegression", best.problem)
        at, numbers = problem.at(best.vector), problem.plan.law.names
        if not problem.plan.effects.has_scale:
            if best.outcome.kind == "end":
                held = problem.afresh(replace(problem.plan, effects=NormalEffects(), held={})).without([0])
                self.kept = Found(held, maximize(held, at.u, problem.plan.stop))
            return best.outcome.kind == "end"
        unit = float(np.exp(at.phi[numbers.index("scale")])) if "scale" in numbers else 1.0
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
        given, left = self.problem.given, cast("GroupedRegression", self.found.problem).entries
        gone = [name for name in dict.fromkeys(given.names) if not any(given.names[a] == name for a, _ in left)]
        if gone:
            text = f"the groups {names(gone)} do not differ beyond chance: the effects' standard deviation is 0."
        else:
            text = (
                f"the effects of {names(dict.fromkeys(given.names))} vary in fewer directions than they have terms: one standard "
                "deviation is 0, or a correlation is 1 or -1. Leave a term out of the bar, or make effects uncorrelated with "
                "(x || g)."
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
        return search(self.problem.afresh(plan), plan.stop)

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
        return search(self.problem.afresh(plan), plan.stop)

    def rules_out(self) -> bool:
        return not cast("GroupedRegression", self.found.problem).entries

    def answers(self, best: Found) -> bool:
        return best.outcome.kind == "end" or self.found.value >= best.value - STATED_GAIN

    def answer(self, best: Found | None) -> Found:
        if self.rules_out():
            return self.found
        return self.found.with_outcome(
            "boundary", "the effects have no heavier tails than a normal, so normal effects (dof = ∞) are returned."
        )
