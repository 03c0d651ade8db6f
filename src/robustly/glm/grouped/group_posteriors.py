"""What is known of each group behind a mixed model? Its evidence, its slopes, and the posterior of its effects."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from robustly.approx.grid import hermite
from robustly.fit.problem import Found
from robustly.glm.grouped.effects import NODES
from robustly.glm.grouped.moments import AtPoints, Entered, GroupKernel, InGroups, inner_starts
from robustly.glm.grouped.nested import NestedKernel
from robustly.glm.grouped.plan import GroupPlan
from robustly.glm.grouped.problem import GammaPoissonRegression, GroupedRegression
from robustly.glm.predictive import Fitted
from robustly.model.wide_curvature import Curve
from robustly.result.laws import LEVELS, RowPosterior
from robustly.result.source import Source
from robustly.rows.groups import cut_by_group


class GroupPosteriors(Source):
    """The rows in their groups, and what the model can say of each group's effects."""

    keeps = ("scored", "loo_by_row", "tail_probabilities", "posteriors")

    def __init__(self, found: Found, asked: GroupPlan) -> None:
        assert isinstance(found.problem, GroupedRegression)
        self.found, self.asked = found, asked
        self.problem: GroupedRegression = found.problem
        self.given = self.problem.given
        self.at = self.problem.at(found.vector)

    def describe(self) -> str:
        """How effects are integrated."""
        if isinstance(self.problem, GammaPoissonRegression):
            return "closed form"
        if not self.problem.entries:
            return "closed form (no effects)"
        effects = self.problem.plan.effects
        if effects.has_two_centres and self.given.outer > 1:
            return "quadrature over every group's precision, and over its effects given that"
        if effects.has_two_centres:
            return "quadrature around the law's peak and the rows'"
        count = lambda dim: len(hermite(NODES[dim], dim)[0])
        points, inner = f"{count(self.given.outer)}", len(self.given.terms) - self.given.outer
        if inner:
            return f"adaptive Gauss-Hermite quadrature, {points} points a group and {count(inner)} a group within it"
        return f"adaptive Gauss-Hermite quadrature, {points} points a group"

    def evidence(self) -> np.ndarray:
        return self.found.evidence

    def curve(self, seen: Curve) -> np.ndarray:
        return np.asarray(self.found.curve)

    def scores(self) -> np.ndarray:
        kept = self.problem.kept
        score = lambda kernel, at, rows, seen: {
            "score": np.einsum("gk,gkp->gp", seen.share, kernel.scores_at(rows, seen))[:, kept]
        }
        return self.problem.by_group(score, self.found.vector)["score"]

    def evidence_at(self, vectors: np.ndarray) -> np.ndarray:
        return np.stack([self.problem.evidence_at(vector) for vector in vectors])

    def posteriors(self) -> tuple[np.ndarray, np.ndarray]:
        """Means (groups, q) and covariances (groups, q, q) of the effects on their own scale."""
        sizes = self.given.sizes[: self.given.outer]

        def moments(kernel: GroupKernel, at: Entered, rows: InGroups, seen: AtPoints) -> dict[str, np.ndarray]:
            own = kernel.effects_at(at, seen) / sizes
            mean = np.einsum("gk,gkq->gq", seen.share, own)
            away = own - mean[:, None]
            return {"mean": mean, "covariance": np.einsum("gk,gka,gkb->gab", seen.share, away, away)}

        found = self.problem.by_group(moments, self.found.vector)
        return found["mean"], found["covariance"]

    def inner_posteriors(self) -> tuple[np.ndarray, np.ndarray]:
        """The same of groups within groups, in the order of their labels: the effects of their group first, then their own."""
        found = self.problem.by_group(inner_moments_by_group, self.found.vector)
        return self._in_order(np.concatenate(found["mean"]), np.concatenate(found["covariance"]))

    def _in_order(self, mean: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of inner groups in the order of their rows: in the order of their labels, on the effects' own scale."""
        inner, sizes = self.given.inner, self.given.sizes
        assert inner is not None
        order = np.argsort(inner.as_kept)
        return mean[order] / sizes, covariance[order] / np.outer(sizes, sizes)

    def known_effects(self) -> tuple[np.ndarray, np.ndarray]:
        """What is known of all effects of a row, by group, and by group within a group: of a new one there, its law."""
        mean, covariance = self.posteriors()
        outer, inner = self.given.outer, len(self.given.terms) - self.given.outer
        if not inner:
            return mean, covariance
        factor = self.at.factor[outer:, outer:] / self.given.sizes[outer:, None]
        wide = np.zeros((len(mean), outer + inner, outer + inner))
        wide[:, :outer, :outer] = covariance
        wide[:, outer:, outer:] = self.widening()[:, None, None] * (factor @ factor.T)
        means, covariances = self.inner_posteriors()
        return np.concatenate([np.pad(mean, ((0, 0), (0, inner))), means]), np.concatenate([wide, covariances])

    def widening(self) -> np.ndarray:
        """By what covariances of effects are wider in each group."""
        return np.ones(len(self.given.grouping))

    def precisions(self) -> np.ndarray | None:
        """Degrees of freedom and expected relative precision by group, where groups have precisions of their own."""
        return None

    def posterior(self, site: str | None) -> RowPosterior:
        """Of every group's effects on their own scale."""
        sizes = self.given.sizes[: self.given.outer]

        def quantiles(kernel: GroupKernel, at: Entered, rows: InGroups, seen: AtPoints) -> dict[str, np.ndarray]:
            own = kernel.effects_at(at, seen) / sizes
            mean = np.einsum("gk,gkq->gq", seen.share, own)
            sd = np.sqrt(np.einsum("gk,gkq->gq", seen.share, (own - mean[:, None]) ** 2))
            order = np.argsort(own, axis=1)
            values = np.take_along_axis(own, order, axis=1)
            share = np.take_along_axis(np.broadcast_to(seen.share[..., None], own.shape), order, axis=1)
            below = np.cumsum(share, axis=1) - 0.5 * share
            found = np.empty((*mean.shape, len(LEVELS)))
            for group in range(len(mean)):
                for term in range(mean.shape[1]):
                    found[group, term] = np.interp(LEVELS, below[group, :, term], values[group, :, term])
            return {"mean": mean, "sd": sd, "quantile": found}

        finer = self.problem.sibling(replace(self.problem.plan, finer=3))
        found = finer.by_group(quantiles, self.found.vector)
        cut = (lambda a: a[:, 0]) if len(sizes) == 1 else (lambda a: a)
        return RowPosterior(cut(found["mean"]), cut(found["sd"]), LEVELS, cut(found["quantile"]))

    def integration_error(self) -> float:
        """Change of the log likelihood with twice the points a dimension."""
        finer = self.problem.sibling(replace(self.problem.plan, finer=2))
        return abs(float(finer.evidence_at(self.found.vector).sum()) - self.found.log_likelihood)

    def observed(self) -> dict[str, np.ndarray]:
        return {"y": self.given.response}

    @property
    def _fitted(self) -> Fitted:
        design = self.problem.design
        u = self.at.u
        return Fitted(self.problem.plan.law, np.asarray(self.at.phi), design.to_coefficients @ u, design.intercept)


def inner_moments_by_group(kernel: GroupKernel, at: Entered, rows: InGroups, seen: AtPoints) -> dict[str, np.ndarray]:
    """Posterior means and covariances of groups within groups, as one entry a group."""
    assert isinstance(kernel, NestedKernel)
    mean, covariance = kernel.inner_moments(at, seen)
    cuts = np.searchsorted(inner_starts(rows)[1], np.arange(len(rows.starts)))
    return {"mean": cut_by_group(mean, cuts), "covariance": cut_by_group(covariance, cuts)}
