"""Which groups, and which rows of groups, do not belong? Tails, weights and probabilities by a core that those far out had no part in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import expit, ndtr

from robustly.fit.newton import maximize
from robustly.fit.objective import Effort
from robustly.fit.outcome import Stop
from robustly.glm.contaminated import Contaminated
from robustly.glm.core_scores import OddsOf
from robustly.glm.grouped.core_spread import Core, core_estimates, find_core
from robustly.glm.grouped.effects import NormalEffects
from robustly.glm.grouped.group_posteriors import GroupPosteriors
from robustly.glm.grouped.moments import AtPoints, Entered, GroupKernel, InGroups
from robustly.glm.grouped.passes import counts_and_rates
from robustly.glm.grouped.problem import GammaPoissonRegression, GroupedRegression
from robustly.glm.predictive import Fitted, GLMPredictive
from robustly.result.laws import two_sided
from robustly.result.outliers import POSTERIOR, Judgement, by_tails


class GroupJudging(GroupPosteriors):
    """How far out groups and rows lie."""

    def tail_probabilities(self) -> np.ndarray:
        return self._tails_and_core[0]

    def judge(self) -> Judgement | None:
        """Groups by a core of their effects and a wide part; None where effects have no such law."""
        tail, core = self._tails_and_core
        return None if core is None else core.judgement(tail)

    @cached_property
    def _tails_and_core(self) -> tuple[np.ndarray, Core | None]:
        """How probable effects at least as far out as a group's are, judged by a normal core that groups far out had no part in.

        Of the mode v of a group's standardised effects under normal effects and H, minus the curvature there, the mode varies
        between groups with covariance 1 − H⁻¹, so that its distance is a chi-square.
        """
        from scipy.stats import chi2

        if isinstance(self.problem, GammaPoissonRegression):
            return self._count_tails(), None
        plan = replace(self.problem.plan, effects=NormalEffects(), held={
            name: value for name, value in self.problem.plan.held.items() if not name.startswith("group ")
        })  # fmt: skip
        problem = self.problem.sibling(plan)
        if not self.problem.entries:
            return np.ones(len(self.given.grouping)), None

        def distance(kernel: GroupKernel, at: Entered, rows: InGroups, seen: AtPoints) -> dict[str, np.ndarray]:
            spread = np.eye(seen.mode.shape[1]) - seen.root @ np.swapaxes(seen.root, 1, 2)
            values, vectors = np.linalg.eigh(spread)
            turned = np.einsum("gab,ga->gb", vectors, seen.mode)
            told = values > 1e-6
            square = np.where(told, turned**2 / np.where(told, values, 1.0), 0.0)
            return {"square": square.sum(axis=1), "freedom": told.sum(axis=1)}

        vector, core = core_vector(problem, problem.joined(self.at._replace(psi=np.zeros(0))))
        found = problem.by_group(distance, vector)
        return np.where(found["freedom"] > 0, chi2.sf(found["square"], np.maximum(found["freedom"], 1)), 1.0), core

    def _count_tails(self) -> np.ndarray:
        """Of groups of counts with a gamma factor: their sums are negative binomial."""
        from scipy.stats import nbinom

        a = float(np.exp(self.at.psi[0]))
        found = self.problem.rows.gather(counts_and_rates, self.at.u)
        counted = found["counted"]
        law = nbinom(a, a / (a + found["mean"]))
        return two_sided(law.cdf(counted), law.sf(counted - 1.0))

    def row_tails(self) -> np.ndarray:
        """How probable a response at least as far out is, by row, given the other rows of its group."""
        predictor, strictly, below = self._given_others
        law = self.problem.plan.law
        if law.local == "dispersion":
            # Heavy-tailed rows are judged by a normal core that rows far out had no part in.
            away = (self.given.response - predictor) / self._fitted.shared["scale"]
            core = find_core(lambda stretch: -np.log(stretch) - 0.5 * np.square(away / stretch))
            return 2.0 * ndtr(-np.abs(away) / core.stretch)
        return law.tail_probabilities(self.given.response, predictor, self._fitted.shared, lambda: (strictly, below))

    def pit(self) -> tuple[np.ndarray, np.ndarray]:
        _, strictly, below = self._given_others
        return strictly, below

    @property
    def _given_others(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Every row's mean predictor, P(Y < y) and P(Y ≤ y) under its group's posterior without the row itself."""
        found = self.problem.by_row(GivenOthers(self._fitted), self.found.vector)
        return found["predictor"], found["strictly"], found["below"]

    def group_weights(self) -> np.ndarray:
        """How strongly a group's effects are drawn to the centre, beside normal effects: minus the law's pull over v, expected."""
        law = self.problem.plan.effects
        if not law.has_scale:
            return np.ones(len(self.given.grouping))

        def weight(kernel: GroupKernel, at: Entered, rows: InGroups, seen: AtPoints) -> dict[str, np.ndarray]:
            pull = np.einsum("gkqq->gk", law.pull(seen.v, at.psi)[1]) / seen.v.shape[-1]
            return {"weight": np.sum(seen.share * pull, axis=1)}

        return self.problem.by_group(weight, self.found.vector)["weight"]

    def row_weights(self) -> np.ndarray:
        """Of Student-t errors minus slope over residual, times the squared scale, expected; the probability that a row belongs; or 1."""
        law, shared = self.problem.plan.law, self._fitted.shared
        if law.local is None:
            return np.ones(len(self.given.design))
        if law.local != "dispersion":
            return 1.0 - self.row_doubts()
        scale, dof = shared["scale"], shared["dof"]
        return self.expected_by_row(lambda part, m: (dof + 1.0) / (dof + ((part.y[:, None] - m) / scale) ** 2))

    def expected_by_row(self, of: Callable[[InGroups, np.ndarray], np.ndarray]) -> np.ndarray:
        """The posterior mean of ``of(rows, predictors)``, a value by row and point, in the order of the data."""

        def expected(
            kernel: GroupKernel, at: Entered, part: InGroups, predictor: np.ndarray, share: np.ndarray
        ) -> dict[str, np.ndarray]:
            return {"value": np.where(share > 0, share * of(part, predictor), 0.0).sum(axis=1)}

        return self.problem.by_row(expected, self.found.vector)["value"]

    def row_doubts(self) -> np.ndarray:
        """The probability that a row does not belong, where its law has one: a wrong label, or the wide part."""
        law, shared, phi = self.problem.plan.law, self._fitted.shared, self.at.phi
        if isinstance(law, Contaminated):
            kernel = self.problem.kernel
            ask = lambda numbers, row, state: (OddsOf(kernel.rows, law, slopes=False)(numbers, row, state),)
            return self.expected_by_row(lambda part, m: expit(kernel.ask_rows(ask, m, phi, part.y, part.trials)[0]))
        unasked: Any = None
        return 1.0 - self.expected_by_row(lambda part, m: law.tail_probabilities(part.y[:, None], m, shared, unasked))

    def judge_rows(self) -> Judgement:
        """Rows by the probability that they do not belong where their law has one, else by their tails given their group."""
        law = self.problem.plan.law
        if not isinstance(law, Contaminated) and law.judged_by != POSTERIOR:
            return by_tails(self.row_tails())
        share = self._fitted.shared["share" if isinstance(law, Contaminated) else "flip"]
        return Judgement(self.row_doubts(), None, share, law.describe().symbols, {})


@dataclass(frozen=True)
class GivenOthers:
    """Of every row: the mean predictor, P(Y < y) and P(Y ≤ y) under its group's posterior without the row itself."""

    fitted: Fitted

    def __call__(
        self, kernel: GroupKernel, at: Entered, part: InGroups, predictor: np.ndarray, share: np.ndarray
    ) -> dict[str, np.ndarray]:
        density = kernel.row_curves(predictor, at.phi, part.y, part.trials)[0]
        cavity = np.log(share) - density * part.counts[:, None]
        cavity = np.exp(cavity - cavity.max(axis=1, keepdims=True))
        cavity /= cavity.sum(axis=1, keepdims=True)
        points = predictor.shape[1]
        law = GLMPredictive(self.fitted, predictor.reshape(-1), np.repeat(part.trials, points))
        averaged = lambda y: (cavity * law.cdf(np.repeat(y, points)).reshape(cavity.shape)).sum(axis=1)
        below = averaged(part.y)
        strictly = averaged(np.ceil(part.y) - 1.0) if self.fitted.family.discrete else below
        return {"predictor": (cavity * predictor).sum(axis=1), "strictly": strictly, "below": below}


def stretched(problem: GroupedRegression, vector: np.ndarray, stretch: float) -> np.ndarray:
    """A vector with all effects of the units stretched."""
    at, outer = problem.at(vector), problem.given.outer
    factor = at.factor.copy()
    factor[:outer, :outer] *= stretch
    return problem.joined(at._replace(factor=factor))


def core_vector(problem: GroupedRegression, vector: np.ndarray) -> tuple[np.ndarray, Core]:
    """Estimates of normal effects that groups far out had no part in, with a spread as if by restricted likelihood; and the core."""

    def evidence(vector: np.ndarray, stretch: float) -> np.ndarray:
        problem.look(stretched(problem, vector, stretch), Effort.ROUGH)
        return np.array(problem.by_unit["evidence"])

    def refit(vector: np.ndarray, groups: np.ndarray) -> np.ndarray:
        part = problem.on(problem.rows.some(groups))
        return maximize(part, vector, Stop(1e-7, 60)).vector

    vector, kept, core = core_estimates(vector, evidence, refit)
    lost = min(len(problem.given.freedom) / problem.given.outer, 0.5 * len(kept))
    return stretched(problem, vector, float(np.sqrt(len(kept) / (len(kept) - lost)))), core
