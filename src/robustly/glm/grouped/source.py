"""What can still be asked of the groups and rows behind a mixed model? Tables of effects, leaving groups out, draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from robustly.errors import ModelError
from robustly.fit.draws import Draws
from robustly.fit.newton import maximize
from robustly.glm.grouped.components import variance_components
from robustly.glm.grouped.group_judging import GroupJudging

# Groups that are left out one by one; of more, one Newton step and a parabola tell enough.
LEFT_OUT = 400
# Groups that lose more than so many nats by being left out are fitted without; one Newton step is too short for them.
HEAVY, REFITS = 0.3, 30


def _step_without(curve: np.ndarray, score: np.ndarray) -> np.ndarray:
    """A Newton step, and none in directions of which the rows that are left say nothing."""
    try:
        return np.linalg.solve(curve, score)
    except np.linalg.LinAlgError:
        found: np.ndarray = np.linalg.lstsq(curve, score)[0]
        return found


class GroupSource(GroupJudging):
    """The rows in their groups, and what the model can say of them."""

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
        columns: dict[str, Any] = {"rows": inner.sizes}
        for i, term in enumerate(self.given.terms[outer:], start=outer):
            columns |= {term: mean[:, i], f"sd {term}": sd[:, i]}
        return pd.DataFrame(columns, index=pd.Index(inner.labels, name=inner.name))

    # ------------------------------------------------------------------ leaving groups out

    def _moves(self) -> np.ndarray:
        """How far the vector moves when a group is left out: one Newton step, with the group's own curvature where few."""
        score, curve = self.scores(), self.found.optimum.curve
        if len(score) > LEFT_OUT:
            return np.linalg.solve(curve, score.T).T
        own = self._curves()
        return np.stack([_step_without(curve - one, s) for one, s in zip(own, score)])

    def _curves(self) -> list[np.ndarray]:
        found, penalty = [], np.zeros_like(self.found.optimum.curve)
        size = self.problem.design.size
        penalty[:size, :size] = np.diag(self.problem.design.penalty)
        for group in range(len(self.given.grouping)):
            one = self.problem.on(self.problem.rows.take([group]))
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
        others = self.problem.on(rows.some(np.delete(np.arange(len(rows)), group)))
        return self._evidence_of(group, maximize(others, start, self.problem.plan.stop).vector)

    def _evidence_of(self, group: int, vector: np.ndarray) -> float:
        """The evidence of one group at a vector."""
        rows = self.problem.rows.take([group])
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
        from robustly._runtime.random_keys import generator
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
