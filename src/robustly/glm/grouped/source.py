"""What can still be asked of the groups and rows behind a mixed model? Effects, tails, weights, leaving groups out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit, ndtr

from robustly._runtime.precision import double_precision
from robustly.approx.grid import hermite
from robustly.errors import ModelError
from robustly.fit.draws import Draws
from robustly.fit.newton import maximize
from robustly.fit.objective import Effort
from robustly.fit.outcome import Stop
from robustly.fit.problem import Found
from robustly.glm.contaminated import Contaminated
from robustly.glm.grouped.components import variance_components
from robustly.glm.grouped.core_spread import Core, core_estimates, find_core
from robustly.glm.grouped.effects import NODES, NormalEffects
from robustly.glm.grouped.moments import AtPoints, Entered, GroupKernel, InGroups, inner_starts, read_groups
from robustly.glm.grouped.nested import NestedKernel
from robustly.glm.grouped.plan import GroupPlan
from robustly.glm.grouped.problem import GammaPoissonRegression, GroupedRegression
from robustly.glm.judging import OddsOf
from robustly.glm.predictive import Fitted, GLMPredictive
from robustly.result.laws import LEVELS, RowPosterior, two_sided
from robustly.result.outliers import POSTERIOR, Judgement, by_tails
from robustly.result.source import Source
from robustly.rows.groups import GroupRows

# Groups that are left out one by one; of more, one Newton step and a parabola tell enough.
LEFT_OUT = 400
# Groups that lose more than so many nats by being left out are fitted without; one Newton step is too short for them.
HEAVY, REFITS = 0.3, 30


class GroupSource(Source):
    """The rows in their groups, and what the model can say of them."""

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

    # ------------------------------------------------------------------ every model

    def evidence(self) -> np.ndarray:
        return self.found.evidence

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
        kernel, rows, found = self.problem.kernel, self.problem.rows, []
        assert isinstance(rows, GroupRows)
        assert isinstance(kernel, NestedKernel)
        for _, data, _ in rows.chunks():
            with np.errstate(all="ignore"), double_precision():
                found.append(kernel.inner_moments(self.at, kernel.at_points(self.at, read_groups(data), None, False)))
        return self._in_order(*(np.concatenate(parts) for parts in zip(*found)))

    def _in_order(self, mean: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of inner groups in the order of their rows: in the order of their labels, on the effects' own scale."""
        part, sizes = read_groups((*self.given.rows.data, self.given.rows.starts)), self.given.sizes
        assert part.inner is not None
        order = np.argsort(part.inner[inner_starts(part)[0][:-1]])
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
        return {"y": np.asarray(self.given.design.y)}

    # ------------------------------------------------------------------ groups and rows that do not belong

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

        rows, a = self.problem.rows, float(np.exp(self.at.psi[0]))
        assert isinstance(rows, GroupRows)
        part = read_groups((*rows.data, rows.starts))
        mean = np.add.reduceat(part.counts * np.exp(part.offset + part.directions @ self.at.u), rows.starts[:-1])
        counted = np.add.reduceat(part.counts * part.y, rows.starts[:-1])
        law = nbinom(a, a / (a + mean))
        return two_sided(law.cdf(counted), law.sf(counted - 1.0))

    def row_tails(self) -> np.ndarray:
        """How probable a response at least as far out is, by row, given the other rows of its group."""
        predictor, strictly, below = self._given_others
        law = self.problem.plan.law
        if law.local == "dispersion":
            # Heavy-tailed rows are judged by a normal core that rows far out had no part in.
            away = (self.given.design.y - predictor) / self._fitted.shared["scale"]
            core = find_core(lambda stretch: -np.log(stretch) - 0.5 * np.square(away / stretch))
            return 2.0 * ndtr(-np.abs(away) / core.stretch)
        return law.tail_probabilities(self.given.design.y, predictor, self._fitted.shared, lambda: (strictly, below))

    def pit(self) -> tuple[np.ndarray, np.ndarray]:
        _, strictly, below = self._given_others
        return strictly, below

    @property
    def _fitted(self) -> Fitted:
        design = self.problem.design
        u = self.at.u
        return Fitted(self.problem.plan.law, np.asarray(self.at.phi), design.to_coefficients @ u, design.intercept)

    @property
    def _given_others(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Every row's mean predictor, P(Y < y) and P(Y ≤ y) under its group's posterior without the row itself."""
        fitted = self._fitted
        discrete = fitted.family.discrete
        rows, order = self.problem.rows, self.given.grouping
        found = np.empty((3, len(self.given.design)))
        for place, data, _ in rows.chunks():  # type: ignore[attr-defined]
            part = read_groups(data)
            with np.errstate(all="ignore"):
                predictor, share = self.problem.kernel.row_points(self.at, part)
                density = self.problem.kernel.row_curves(predictor, self.at.phi, part.y, part.trials)[0]
            with np.errstate(divide="ignore"):
                cavity = np.log(share) - density * part.counts[:, None]
            cavity = np.exp(cavity - cavity.max(axis=1, keepdims=True))
            cavity /= cavity.sum(axis=1, keepdims=True)
            points = predictor.shape[1]
            law = GLMPredictive(fitted, predictor.reshape(-1), np.repeat(part.trials, points))
            averaged = lambda y, law=law, cavity=cavity, points=points: (
                cavity * law.cdf(np.repeat(y, points)).reshape(cavity.shape)
            ).sum(axis=1)
            below = averaged(part.y)
            strictly = averaged(np.ceil(part.y) - 1.0) if discrete else below
            first = rows.starts[place.start]  # type: ignore[attr-defined]
            found[:, first : first + len(part.y)] = (cavity * predictor).sum(axis=1), strictly, below
        return tuple(order.to_rows(one) for one in found)  # type: ignore[return-value]

    def group_effects(self) -> pd.DataFrame:
        """Posterior means and standard deviations by group and term, rows, weights, tails."""
        mean, covariance = self.posteriors()
        sd = np.sqrt(np.maximum(np.einsum("gqq->gq", covariance), 0.0))
        terms = self.given.terms[: self.given.outer]
        columns: dict[str, Any] = {"rows": self.given.grouping.sizes}
        for i, term in enumerate(terms):
            columns |= {term: mean[:, i], f"sd {term}": sd[:, i]}
        columns |= {"weight": self.group_weights(), "tail": self.tail_probabilities()}
        return pd.DataFrame(columns, index=pd.Index(self.given.grouping.labels, name=self.given.grouping.name))

    def inner_group_effects(self) -> pd.DataFrame:
        """The same of groups within groups: posterior means and standard deviations of their own effects."""
        inner, outer = self.given.inner, self.given.outer
        if inner is None:
            raise ModelError('this model has no groups within groups, such as "y ~ x + (1 | a/b)" has.')
        mean, covariance = self.inner_posteriors()
        sd = np.sqrt(np.maximum(np.einsum("gqq->gq", covariance), 0.0))
        columns: dict[str, Any] = {"rows": np.bincount(inner.of_row)}
        for i, term in enumerate(self.given.terms[outer:], start=outer):
            columns |= {term: mean[:, i], f"sd {term}": sd[:, i]}
        return pd.DataFrame(columns, index=pd.Index(inner.labels, name=inner.name))

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
        rows, found = self.problem.rows, np.empty(len(self.given.design))
        assert isinstance(rows, GroupRows)
        for place, data, _ in rows.chunks():
            part = read_groups(data)
            with np.errstate(all="ignore"):
                predictor, share = self.problem.kernel.row_points(self.at, part)
                value = of(part, predictor)
            first = rows.starts[place.start]
            found[first : first + len(part.y)] = np.where(share > 0, share * value, 0.0).sum(axis=1)
        return self.given.grouping.to_rows(found)

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

    # ------------------------------------------------------------------ leaving groups out

    def _moves(self) -> np.ndarray:
        """How far the vector moves when a group is left out: one Newton step, with the group's own curvature where few."""
        score, curve = self.scores(), self.found.optimum.curve
        if len(score) > LEFT_OUT:
            return np.linalg.solve(curve, score.T).T
        own = self._curves()
        return np.stack([np.linalg.solve(curve - one, s) for one, s in zip(own, score)])

    def _curves(self) -> list[np.ndarray]:
        found, penalty = [], np.zeros_like(self.found.optimum.curve)
        size = self.problem.design.size
        penalty[:size, :size] = self.problem.design.penalty
        for group in range(len(self.given.grouping)):
            one = self.problem.on(self.problem.rows.take(slice(group, group + 1)))  # type: ignore[attr-defined]
            curve = one.look(self.found.vector).curve
            assert curve is not None
            found.append(curve + penalty)
        return found

    def loo(self) -> np.ndarray:
        """Log density of every group given all others."""
        moves, evidence = self._moves(), self.found.evidence
        if len(moves) > LEFT_OUT:
            score = self.scores()
            return evidence + np.einsum("gp,gp->g", score, moves) - 0.5 * np.einsum("gp,gp->g", score, moves) ** 2
        found = np.empty(len(moves))
        for group, move in enumerate(moves):
            found[group] = self._evidence_of(group, self.found.vector + np.clip(move, -5.0, 5.0))
        lost = evidence - found
        heavy = np.argsort(-lost, kind="stable")[:REFITS]
        for group in heavy[lost[heavy] > HEAVY]:
            found[group] = self._without(int(group), self.found.vector + np.clip(moves[group], -1.0, 1.0))
        return found

    def _without(self, group: int, start: np.ndarray) -> float:
        """The evidence of a group under the fit to all others."""
        rows = self.problem.rows
        others = self.problem.on(rows.take(np.delete(np.arange(len(rows)), group)))  # type: ignore[attr-defined]
        return self._evidence_of(group, maximize(others, start, self.problem.plan.stop).vector)

    def _evidence_of(self, group: int, vector: np.ndarray) -> float:
        """The evidence of one group at a vector."""
        rows = self.problem.rows.take(slice(group, group + 1))  # type: ignore[attr-defined]
        return float(self.problem.on(rows).evidence_at(vector)[0])

    def influence(self) -> np.ndarray:
        """Cook's distance of every group."""
        moves, size = self._moves(), self.problem.design.size
        inside = np.linalg.inv(np.linalg.inv(-self.found.optimum.curve)[:size, :size])
        return np.einsum("gi,ij,gj->g", moves[:, :size], inside, moves[:, :size]) / size

    # ------------------------------------------------------------------ numbers of the groups

    def components_and_slopes(self, vector: np.ndarray) -> tuple[dict[str, float], np.ndarray]:
        """Scales and correlations of the effects and numbers of their law, by label, with their slopes in the vector."""
        problem, sizes, terms = self.problem, self.given.sizes, self.given.terms
        groups, law = self.given.names, problem.plan.effects
        at = problem.at(vector)
        factor = at.factor / sizes[:, None]
        square = factor @ factor.T
        scale = np.sqrt(np.diag(square))
        first = problem.design.size + len(problem.free)
        word = "sd" if law.name == "normal" else "scale"
        values: dict[str, float] = {}
        slopes: list[np.ndarray] = []
        changes = []
        for a, b in problem.entries:
            bump = np.zeros_like(factor)
            bump[a, b] = 1.0 / sizes[a]
            changes.append(bump @ factor.T + factor @ bump.T)
        alive = [i for i in range(len(terms)) if scale[i] > 0 and law.has_scale]

        def slope_of(each: Any) -> np.ndarray:
            line = np.zeros(len(vector))
            line[first : first + len(changes)] = [each(change) for change in changes]
            return line

        for i in alive:
            values[f"{word if i < self.given.outer else 'sd'}({terms[i]} | {groups[i]})"] = float(scale[i])
            slopes.append(slope_of(lambda change, i=i: change[i, i] / (2.0 * scale[i])))
        pairs_there = {
            (max(a, c), min(a, c)) for a, b in problem.entries for c, d in problem.entries if b == d and a != c
        }
        for i, j in sorted(pairs_there):
            if scale[i] > 0 and scale[j] > 0:
                both = scale[i] * scale[j]
                corr = square[i, j] / both
                values[f"corr({terms[j]}, {terms[i]} | {groups[i]})"] = float(corr)
                slopes.append(slope_of(lambda change, i=i, j=j, both=both, corr=corr: (
                    change[i, j] / both - 0.5 * corr * (change[i, i] / square[i, i] + change[j, j] / square[j, j])
                )))  # fmt: skip
        for place, index in enumerate(problem.free_law):
            value = float(np.exp(at.psi[index]))
            values[f"{law.names[index]}({groups[0]})"] = value
            line = np.zeros(len(vector))
            line[len(vector) - len(problem.free_law) + place] = value
            slopes.append(line)
        return values, np.array(slopes).reshape(len(values), len(vector))

    def natural_by_name(self, vectors: np.ndarray) -> dict[str, np.ndarray]:
        size, law, problem = self.problem.design.size, self.problem.plan.law, self.problem
        coefficients = vectors[..., :size] @ problem.design.to_coefficients.T
        found = {term: coefficients[..., i] for i, term in enumerate(problem.design.terms)}
        for place, index in enumerate(problem.free):
            found[law.names[index]] = law.natural(law.names[index], vectors[..., size + place])
        flat = vectors.reshape(-1, vectors.shape[-1])
        each = [self.components_and_slopes(vector)[0] for vector in flat]
        for name in each[0]:
            found[name] = np.array([one.get(name, 0.0) for one in each]).reshape(vectors.shape[:-1])
        return found

    def sample_posterior(self, num_samples: int, key: Any, num_warmup: int, num_chains: int) -> Draws:
        """Draws by a Metropolis chain whose proposals are a multivariate t around the estimate."""
        from robustly._runtime.keys import generator
        from robustly.fit.draws import regular_covariance

        rng = generator(key)
        centre, dof = self.found.vector, 5.0
        lower = np.linalg.cholesky(regular_covariance(self.found.optimum.curve))
        size = len(centre)
        height = lambda z: -0.5 * (dof + size) * np.log1p(z @ z / dof)
        chains = []
        for _ in range(num_chains):
            problem = self.problem.fresh()
            here, level, drawn = centre, self.found.value, []
            worth = level - height(np.zeros(size))
            for step in range(num_warmup // 10 + num_samples):
                z = rng.standard_normal(size) / np.sqrt(rng.chisquare(dof) / dof)
                tried = centre + lower @ z
                value = float(problem.evidence_at(tried).sum()) + problem.log_prior_at(tried) - height(z)
                if np.log(rng.random()) < value - worth:
                    here, worth = tried, value
                if step >= num_warmup // 10:
                    drawn.append(here)
            chains.append(drawn)
        vectors = np.array(chains)
        return Draws(self.natural_by_name(vectors), vectors, 0)

    def variance_components(self, level: float, restricted: bool = True) -> pd.DataFrame:
        return variance_components(self.found, level, restricted)

    def profile(self, values: Sequence[float]) -> pd.DataFrame:
        raise ModelError("a mixed model has its standard deviations profiled in fit.variance_components.")


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
        part = problem.on(problem.rows.take(groups))  # type: ignore[attr-defined]
        return maximize(part, vector, Stop(1e-7, 60)).vector

    vector, kept, core = core_estimates(vector, evidence, refit)
    lost = min(len(problem.given.freedom) / problem.given.outer, 0.5 * len(kept))
    return stretched(problem, vector, float(np.sqrt(len(kept) / (len(kept) - lost)))), core
