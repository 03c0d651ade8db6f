"""What can be asked of groups of normal responses? The same as of others, from their closed forms."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from robustly.fit.problem import Found
from robustly.glm.grouped.core_spread import Core, find_core
from robustly.glm.grouped.group_judging import core_vector
from robustly.glm.grouped.linear import LinearGroups, group_sums
from robustly.glm.grouped.moments import read_groups
from robustly.glm.grouped.nested_linear import LinearNested, nested_sums
from robustly.glm.grouped.plan import GroupPlan
from robustly.glm.grouped.problem import GroupsOf, LinearGroupedRegression
from robustly.glm.grouped.source import GroupSource
from robustly.result.laws import LEVELS, RowPosterior
from robustly.rows.groups import GroupRows, cut_by_group
from robustly.rows.store import Data


@dataclass(frozen=True)
class StandardisedRows:
    """A pass that gives the rows' distances from what the others of their group predict; theta is what a vector comes to."""

    groups_of: GroupsOf

    def __call__(
        self, theta: Any, data: Data, weight: np.ndarray, state: Any
    ) -> tuple[dict[str, Any], dict[str, Any], None]:
        part = read_groups(data)
        one = GroupRows(data[:-1], np.ones(len(weight)), starts=part.starts)
        sums = group_sums(one) if part.inner is None else nested_sums(one)
        found = self.groups_of(sums, theta).standardised(part)
        return {}, {"standardised": cut_by_group(found, part.starts)}, None


class LinearSource(GroupSource):
    """Groups of normal responses with normal effects, or with precisions of their own."""

    problem: LinearGroupedRegression

    def __init__(self, found: Found, asked: GroupPlan) -> None:
        super().__init__(found, asked)
        self.groups: LinearGroups | LinearNested = self.problem.groups_at(found.vector)

    def describe(self) -> str:
        return "closed form"

    def scores(self) -> np.ndarray:
        return self.groups.look()[1][:, self.problem.kept]

    def posteriors(self) -> tuple[np.ndarray, np.ndarray]:
        mean, covariance = self.groups.posterior
        sizes = self.given.sizes[: self.given.outer]
        return mean / sizes, covariance / np.outer(sizes, sizes)

    def inner_posteriors(self) -> tuple[np.ndarray, np.ndarray]:
        assert isinstance(self.groups, LinearNested)
        return self._in_order(*self.groups.inner_moments())

    def widening(self) -> np.ndarray:
        return self.groups.widening()

    def precisions(self) -> np.ndarray | None:
        if not self.groups.own_precision:
            return None
        return np.stack([self.groups.dof + self.groups.counted, self.groups.weight], axis=1)

    def posterior(self, site: str | None) -> RowPosterior:
        from scipy import stats

        mean, covariance = self.posteriors()
        sd = np.sqrt(np.maximum(np.einsum("gqq->gq", covariance), 0.0))
        standard = stats.norm.ppf(LEVELS)[None]
        if self.groups.own_precision:
            freedom = self.groups.dof + self.groups.counted[:, None]
            standard = stats.t.ppf(LEVELS, freedom) * np.sqrt(np.maximum(freedom - 2.0, 1e-3) / freedom)
        quantile = mean[..., None] + sd[..., None] * standard[:, None, :]
        cut = (lambda a: a[:, 0]) if mean.shape[1] == 1 else (lambda a: a)
        return RowPosterior(cut(mean), cut(sd), LEVELS, cut(quantile))

    def integration_error(self) -> float:
        return 0.0

    def group_weights(self) -> np.ndarray:
        return self.groups.weight

    def row_weights(self) -> np.ndarray:
        return self.groups.weight[self.given.grouping.of_row]

    @cached_property
    def _tails_and_core(self) -> tuple[np.ndarray, Core | None]:
        """How far out a group is: its effects, or with a precision of its own all its rows together, by the normal core."""
        from scipy.stats import chi2

        groups = self.groups
        if groups.own_precision:
            rows, distance = groups.counted, groups.distance
            # Here whole groups are stretched, their noise included.
            core = find_core(lambda stretch: -rows * np.log(stretch) - 0.5 * distance / stretch**2)
            return chi2.sf(distance / core.stretch**2, rows), core
        if not self.problem.entries:
            return np.ones(len(groups.distance)), None
        vector, core = core_vector(self.problem, self.found.vector)
        groups = self.problem.groups_at(vector)
        # Means of effects vary between groups with covariance LLᵀ less that of the posterior.
        mean, covariance = groups.posterior
        between = groups.factor @ groups.factor.T - covariance
        values, vectors = np.linalg.eigh(between)
        told = values > 1e-9 * np.maximum(values[:, -1:], 1e-300)
        turned = np.einsum("gab,ga->gb", vectors, mean)
        square = np.where(told, turned**2 / np.where(told, values, 1.0), 0.0).sum(axis=1)
        freedom = told.sum(axis=1)
        return np.where(freedom > 0, chi2.sf(square, np.maximum(freedom, 1)), 1.0), core

    def row_tails(self) -> np.ndarray:
        from scipy.special import ndtr

        return 2.0 * ndtr(-np.abs(self._standardised()))

    def pit(self) -> tuple[np.ndarray, np.ndarray]:
        from scipy.special import ndtr

        below = ndtr(self._standardised())
        return below, below

    def _standardised(self) -> np.ndarray:
        found = self.problem.rows.gather(StandardisedRows(self.problem.groups_of), self.at)["standardised"]
        return self.given.grouping.to_rows(np.concatenate(found))

    def _moves(self) -> np.ndarray:
        _, slope, curve = self.groups.look()
        kept = self.problem.kept
        own, whole = curve[:, kept][:, :, kept], self.found.optimum.curve
        return np.linalg.solve(whole - own, slope[:, kept][..., None])[..., 0]

    def observed(self) -> dict[str, Any]:
        return {"y": self.given.response}
