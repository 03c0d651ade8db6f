"""What can still be asked of the rows behind a fitted pair? Posteriors, predictions, scores, draws."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array
from numpyro.distributions import constraints

from robustly._runtime.precision import in_double_precision
from robustly.conjugate.base import ClassicalModel, PairDefinition, Theta
from robustly.conjugate.judging import judge_pair
from robustly.conjugate.laws import LocalPosterior, MixedPosterior, PairPredictive, PointMass, StatisticsLaw, tabulated
from robustly.conjugate.problem import (
    PairProblem,
    classical_evidence,
    classical_passes,
    classical_rows,
    posterior_pass,
)
from robustly.conjugate.uncertain import components, log_flat
from robustly.errors import FitError, ModelError, names
from robustly.fit.draws import Draws, Posterior, regular_covariance
from robustly.result.estimates import labels_of
from robustly.result.laws import invert_cdf, two_sided
from robustly.result.outliers import Judgement
from robustly.result.source import Source
from robustly.rows.distinct import make_table


class PairSource(Source):
    """A fitted pair and its rows: both the model that predicts and what can still be asked of the rows."""

    kind = "conjugate"
    keeps = ()
    lost_hyperprior = False

    def __init__(self, problem: PairProblem, vector: np.ndarray, classical: ClassicalModel | None = None) -> None:
        self.problem, self.vector, self.classical = problem, vector, classical
        self.model, self.table, self.penalty = problem.owner, problem.table, problem.penalty
        self.pair = self.model.pair
        self.jacobian = np.zeros((0, 0))
        """At the boundary: d estimates / d vector."""

    @cached_property
    @in_double_precision
    def theta(self) -> dict[str, Any]:
        assert self.classical is None
        return self.model.theta(jnp.asarray(self.vector))

    @property
    def free_labels(self) -> list[str]:
        return labels_of(self.classical.values) if self.classical is not None else list(self.model.parameters.names)

    @property
    def shown(self) -> dict[str, Any]:
        """What can be read off the fit itself."""
        return {"pair": self.pair}

    def to_saved(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The pair by name, and the rows."""
        options = {f.name: getattr(self.pair, f.name) for f in dataclasses.fields(self.pair)}  # type: ignore[arg-type]
        about = {
            "pair": type(self.pair).__name__,
            "options": options,
            "had_hyperprior": bool(self.penalty.given) or self.lost_hyperprior,
        }
        columns = self.table.columns.items()
        return about, {f"column:{name}": self.table.spread_out(np.asarray(column)) for name, column in columns}

    # ------------------------------------------------------------------ rows

    def _read(self, data: Sequence[Any], named: Mapping[str, Any]) -> dict[str, np.ndarray]:
        try:
            columns = self.pair.read(*data, **named)
        except TypeError as error:
            raise ModelError(f"{type(self.pair).__name__}: {str(error).replace('read()', 'this call')}.") from error
        return {name: np.asarray(column, dtype=float) for name, column in columns.items()}

    def _columns(self, data: Sequence[Any], named: Mapping[str, Any]) -> tuple[dict[str, Any], np.ndarray | None]:
        if data or named:
            return self._read(data, named), None
        return {name: np.asarray(column) for name, column in self.table.columns.items()}, self.table.place

    @in_double_precision
    def posterior_of(self, data: Sequence[Any], named: Mapping[str, Any]) -> LocalPosterior:
        columns, place = self._columns(data, named)
        if self.classical is not None:
            n = len(next(iter(columns.values())))
            common = np.asarray(self.classical.common(self.classical.values, columns))
            shape = (n, *common.shape) if common.ndim != 1 or len(common) != n else common.shape
            return LocalPosterior(PointMass(np.broadcast_to(common, shape)), place)
        return self.posterior_at(self.theta, columns, place)

    def posterior_at(self, theta: Theta, columns: Mapping[str, Any], place: np.ndarray | None) -> LocalPosterior:
        found = classical_rows(columns).map(posterior_pass(self.pair, tuple(columns)), theta).by_unit
        plain = tuple(found[str(i)] for i in range(len(found)))
        law = self.pair.law(plain)
        if law is None:
            law = _statistics_law(self.pair, tuple(jnp.asarray(part) for part in plain))
        return LocalPosterior(law, place)

    @in_double_precision
    def integrated(self, data: Sequence[Any], named: Mapping[str, Any]) -> MixedPosterior:
        if self.lost_hyperprior:
            raise FitError("this fit was made with a hyperprior, which files do not keep. Fit the rows again.")
        columns, place = self._columns(data, named)
        count = float(self.table.weight.sum())
        if count < 3.0:
            raise FitError(
                f"posteriors averaged over what the data leave open of the prior need 3 rows or more; got {count:g}. Give more "
                "rows, or ask posterior()."
            )
        found = components(self)
        laws = [self.posterior_at(self.model.theta(jnp.asarray(v)), columns, None).law for v, _ in found]
        # Priors at the ends of the grid may be too narrow or wide for numbers to tell.
        known = [number for number, law in enumerate(laws) if not np.isnan(law.mean()).any()]
        if not known:
            raise FitError(
                "no prior near the fitted one has a posterior that numbers can hold. Ask posterior() instead."
            )
        return MixedPosterior([laws[one] for one in known], np.array([found[one][1] for one in known]), place)

    @in_double_precision
    def shrinkage(self) -> pd.DataFrame:
        """Every row's raw estimate beside its posterior; for scale mixtures also how much the row counts in the fit."""
        theta = self.classical.values if self.classical is not None else self.theta
        plain = {name: np.asarray(value) for name, value in {**self.pair.fixed, **theta}.items()}
        columns = {name: np.asarray(column) for name, column in self.table.columns.items()}
        raw, posterior = self.pair.raw(plain, columns), self.posterior(None)
        if raw is None or np.ndim(posterior.mean) != 1:
            raise ModelError(
                f"{type(self.pair).__name__} has no single number a row to shrink. Use posterior().mean instead."
            )
        frame = {"raw": self.table.spread_out(np.asarray(raw)), "mean": posterior.mean, "sd": posterior.sd}
        if self.classical is None and hasattr(self.pair, "row_weight"):
            # 1 on average for clean rows.
            frame["weight"] = self.table.spread_out(self.pair.row_weight(plain, columns))
        return pd.DataFrame(frame)

    @in_double_precision
    def predictive(self, data: Sequence[Any], named: Mapping[str, Any]) -> PairPredictive:
        columns = self._read((None, *data), named)
        return PairPredictive(
            self._law(columns, None if self.classical is not None else self.theta),
            lambda x: self._log_prob((x, *data), named),
        )

    def _law(self, columns: Mapping[str, Any], theta: Mapping[str, Any] | None) -> Any:
        if theta is None:
            assert self.classical is not None
            return self.classical.law(self.classical.values, columns)
        plain = {name: np.asarray(value) for name, value in theta.items()}
        law = self.pair.predictive_law(plain, columns)
        return tabulated(self.pair, theta, columns, self._observation) if law is None else law

    @property
    def _observation(self) -> str:
        """The column in which rows hold their observations."""
        columns = self.table.columns
        seen = self.pair.observed(columns)
        for name, column in columns.items():
            if seen is column or np.array_equal(seen, column):
                return name
        raise ModelError(
            f"{type(self.pair).__name__} reads its observations into none of the columns {names(columns)} as they are, so "
            "its predictive cannot be tabulated. Give the pair a predictive_law."
        )

    @in_double_precision
    def _log_prob(self, data: Sequence[Any], named: Mapping[str, Any]) -> np.ndarray:
        columns = self._read(data, named)
        if self.classical is not None:
            return classical_evidence(self.classical, columns)
        return make_table(columns, None).rows.map(self.problem.passes.values, self.vector).by_unit["evidence"]

    # ------------------------------------------------------------------ what the common Fit asks

    @in_double_precision
    def evidence(self) -> np.ndarray:
        if self.classical is not None:
            return self.table.spread_out(classical_evidence(self.classical, self.table.columns))
        return self.table.spread_out(self.problem.evidence_at(self.vector))

    def observed(self) -> dict[str, np.ndarray]:
        columns = {name: np.asarray(column) for name, column in self.table.columns.items()}
        return {"x": self.table.spread_out(self.pair.observed(columns))}

    @in_double_precision
    def scores(self) -> np.ndarray:
        if self.classical is not None:
            passes = classical_passes(self.classical, self.table.columns)
            score = classical_rows(self.table.columns).map(passes.scores, self.classical.values).by_unit["score"]
            return self.table.spread_out(score @ self.jacobian)
        return self.table.spread_out(self.table.rows.map(self.problem.passes.scores, self.vector).by_unit["score"])

    def _refuse_classical(self) -> None:
        if self.classical is not None:
            raise ModelError("the rows show no heterogeneity, so there is no prior to draw. See fit.confint().")

    @in_double_precision
    def evidence_at(self, vectors: np.ndarray) -> np.ndarray:
        return np.stack([self.table.spread_out(self.problem.evidence_at(v)) for v in vectors])

    @in_double_precision
    def natural_by_name(self, vectors: np.ndarray) -> dict[str, np.ndarray]:
        self._refuse_classical()
        found = jax.vmap(jax.vmap(self.model.reported))(jnp.asarray(vectors))
        return {name: np.asarray(value) for name, value in found.items()}

    def tail_probabilities(self) -> np.ndarray:
        """Two-sided: twice the smaller of P(X ≤ x) and P(X ≥ x), by row."""
        return self.table.spread_out(self.tails_at(None if self.classical is not None else self.theta))

    @in_double_precision
    def tails_at(self, theta: Mapping[str, Any] | None) -> np.ndarray:
        """Tail probabilities of the distinct rows; None for the classical model."""
        columns = {name: np.asarray(column) for name, column in self.table.columns.items()}
        special = getattr(self.pair, "tails", None)
        if special is not None:
            return special(theta, columns, self.classical if theta is None else None)
        law, x = self._law(columns, theta), self.pair.observed(columns)
        below = law.cdf(x)
        above = law.sf(x - 1.0) if self.pair.support == "count" else law.sf(x)
        return two_sided(below, above)

    @in_double_precision
    def judge(self) -> Judgement | None:
        """By the pair's law as the core, and the same law wider; None where the pair has no one number to widen."""
        return judge_pair(self.pair, self.table, None if self.classical is not None else self.theta, self.tails_at)

    @in_double_precision
    def sample_posterior(self, num_samples: int, key: Any, num_warmup: int, num_chains: int) -> Draws:
        self._refuse_classical()

        parameters, given = self.model.parameters, self.penalty.given

        first = next(iter(self.pair.coordinates(self.table.columns)))
        scales = {name: scale_of(limit) for name, (limit, _) in self.pair.coordinates(self.table.columns).items()}
        pair = self.pair

        def log_prior(vector: Array, beside: Any) -> Array:
            theta = {name: value for name, value in parameters.natural(vector).items() if name in parameters.names}
            known = {**pair.fixed, **theta}
            known = {**known, **pair.arguments(known), **pair.derived(known)}
            believed = sum(jnp.sum(p.log_prob(known[name])) for name, p in given.items())
            return log_flat(pair, first, scales, theta) + believed + parameters.log_volume(vector)

        curve = np.asarray(self.problem.look(self.vector).curve)
        # Priors are told apart by identity, so they are kept along.
        alike = tuple((name, id(prior)) for name, prior in given.items())
        compiled = self.model.samplers.setdefault(alike, {None: given})
        posterior = Posterior(self.problem, log_prior, self.vector, regular_covariance(curve), compiled)
        vectors, divergences = posterior.draw(num_samples, num_warmup, num_chains, key)
        return Draws(self.natural_by_name(vectors), vectors, divergences)

    def posterior(self, site: str | None) -> LocalPosterior:
        return self.posterior_of((), {})

    @in_double_precision
    def edge_interval(self, name: str, level: float) -> tuple[float, float]:
        """Values of an estimate on its edge whose likelihood is at least 1 − level of the best."""
        assert self.classical is not None
        edge, target = float(self.classical.values[name]), np.log1p(-level)
        data = {key: jnp.asarray(column) for key, column in self.table.columns.items()}
        weight = jnp.asarray(self.table.weight)
        log_prob = self.classical.log_prob

        @jax.jit
        def total(value: Any) -> Array:
            values = {**self.classical.values, name: value}  # type: ignore[union-attr]
            return weight @ jax.vmap(lambda row: log_prob(values, row))(data)

        inside = -1.0 if edge == 1.0 else 1.0
        best = float(total(jnp.asarray(edge)))
        drop = lambda away: np.array([best - float(total(jnp.asarray(edge + inside * one))) for one in away])
        first = np.zeros(1), np.array([1.0 if edge == 1.0 else 1e-6])
        other = edge + inside * float(invert_cdf(drop, -target, *first, open_ends=(False, edge == 0.0))[0])
        return (min(edge, other), max(edge, other))


def scale_of(constraint: Any) -> str:
    if constraint is constraints.positive:
        return "positive"
    return "unit" if constraint is constraints.unit_interval else "real"


def _statistics_law(pair: PairDefinition, eta: Array) -> Any:
    """For a pair that does not name its prior's law: means and deviations of T, by the derivatives of A."""
    mean = jax.vmap(jax.grad(pair.log_normalizer))(eta)
    curve = jax.vmap(jax.hessian(pair.log_normalizer))(eta)
    sd = [np.sqrt(np.asarray(curve[i][i])) for i in range(len(mean)) if np.ndim(mean[i]) == 1]
    return StatisticsLaw(np.stack([np.asarray(m) for m in mean if np.ndim(m) == 1], -1), np.stack(sd, -1))
