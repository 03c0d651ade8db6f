r"""How is any row model judged? Its rows' law as the core, and beside it the same law wider, or one the model states.

A :class:`TwoPart` gives the log densities of one row in the core and in the wide part as functions of named parameters; here it
becomes a row model of its own, is fitted from several starts, and tells each row's odds. Regressions, whose rows see a linear
predictor, do the same by their own passes (:mod:`robustly.glm.judging`), and so do measurements
(:mod:`robustly.result.measurements`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions import constraints as limit

from robustly._runtime.compiled import one_thread
from robustly._runtime.precision import double_precision
from robustly.approx import Exact
from robustly.fit.newton import maximize
from robustly.fit.outcome import Stop
from robustly.fit.passes import ChunkPass
from robustly.fit.problem import Found, RowProblem
from robustly.model.row import RowModel
from robustly.result.outliers import Candidate
from robustly.rows.store import Rows

STOP = Stop(1e-10, 80)
# Normal priors on the scales that are searched: log odds of the share, logarithms of the others.
SHARE = (float(np.log(0.03 / 0.97)), 1.2)
WIDTHS_OF_MEASUREMENTS = (float(np.log(10.0)), 1.0)
DOF = (float(np.log(5.0)), 1.0)
LOG_2PI = float(np.log(2.0 * np.pi))
STEP = 1e-3


def log_normal(away: Array, centre: float, width: float) -> Array:
    """A normal log density."""
    return -0.5 * ((away - centre) / width) ** 2 - float(np.log(width)) - 0.5 * LOG_2PI


def student_parts(
    away: Array, scale: Array, dof: Array, width: Array, density: Callable[..., Array]
) -> tuple[Array, Array]:
    """A heavy-tailed core of measurements and the same, wider; `density` is Student's t of (away, log scale, log dof)."""
    wider = scale + 0.5 * jnp.logaddexp(2.0 * width, 0.0)
    return density(away, scale, dof), density(away, wider, dof)


def normal_parts(away: Array, scale: Array, width: Array | float) -> tuple[Array, Array]:
    r"""A normal core of measurements, and rows shifted by :math:`u \sim (u/w)^2 N(0, w^2)` in units of the scale.

    The shift is integrated: :math:`N(r; 0, 1 + w^2)\,[1/(1 + w^2) + r^2 w^2/(1 + w^2)^2]`. Logarithms come in and go out, without
    the constant of the normal density.
    """
    wider = scale + 0.5 * jnp.logaddexp(2.0 * width, 0.0)
    density = lambda log_scale: -0.5 * (away * jnp.exp(-log_scale)) ** 2 - log_scale
    kept = jax.nn.log_sigmoid(2.0 * width)
    square = 2.0 * jnp.log(jnp.maximum(jnp.abs(away), 1e-300)) - 2.0 * wider
    return density(scale), density(wider) + jnp.logaddexp(kept - 2.0 * width, kept + square)


@dataclass(frozen=True, eq=False)
class TwoPart:
    """The law of one row in two parts, stated: parameters by name, on their own scales."""

    name: str
    """The core in words."""
    parts: Callable[[Mapping[str, Any], Any], tuple[Any, Any]]
    """(theta, row) -> log densities in the core and in the wide part, without their shares."""
    starts: Sequence[Mapping[str, Any]]
    """Of all parameters but `share`; `width` among them."""
    constraints: Mapping[str, Any]
    believed: Mapping[str, tuple[float, float]]
    """Normal priors of positive parameters on the log scale."""
    tails: Callable[[Mapping[str, Any]], np.ndarray] | None
    """theta -> two-sided tail probabilities in the core, by row; None without tails."""
    margin: float = 0.0
    fixed: Mapping[str, Any] = field(default_factory=dict)
    prior: Callable[[Mapping[str, Any]], Any] | None = None
    """What else is believed of the parameters."""
    wide: bool = True
    """Whether there is a wide part at all; without one, `parts` gives the core twice."""
    keeps: dict[Any, tuple[RowModel, ChunkPass]] = field(default_factory=dict)
    """Where compiled passes are kept, so that a law like one before compiles nothing."""

    def row_model(self) -> RowModel:
        def log_hyperprior(theta: Any) -> Any:
            total = jnp.zeros(()) if self.prior is None else self.prior(theta)
            if self.wide:
                total = total + log_normal(jnp.log(theta["share"]) - jnp.log1p(-theta["share"]), *SHARE)
            return total + sum(log_normal(jnp.log(theta[name]), *given) for name, given in self.believed.items())

        def evidence(theta: Any, row: Any) -> Any:
            core, wide = self.parts(theta, row)
            if not self.wide:
                return core
            share = theta["share"]
            return jnp.logaddexp(
                jnp.maximum(core + jnp.log1p(-share), -1e300), jnp.maximum(wide + jnp.log(share), -1e300)
            )

        return RowModel(
            log_likelihood=lambda local, theta, row: evidence(theta, row),
            closed=evidence,
            start=self._start(self.starts[0]),
            constraints={
                **self.constraints,
                **({"width": limit.positive, "share": limit.unit_interval} if self.wide else {}),
            },
            fixed=self.fixed,
            log_hyperprior=log_hyperprior,
            size=0,
        )

    def _start(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {**given, "share": 0.05} if self.wide else dict(given)

    def odds_pass(self, model: RowModel) -> ChunkPass:
        """A pass for each row's log odds of the wide part, and their slopes in the parameter vector."""

        def odds(vector: Any, row: Any) -> Any:
            theta = model.parameters.natural(vector)
            core, wide = self.parts(theta, row)
            if not self.wide:
                return jnp.zeros(())
            return wide - core + jnp.log(theta["share"]) - jnp.log1p(-theta["share"])

        def each(vector: Any, data: Any, weight: Any, state: Any) -> tuple[dict[str, Any], dict[str, Any], None]:
            value, slope = jax.vmap(jax.value_and_grad(odds), (None, 0))(vector, data)
            return {}, {"odds": value, "slope": slope}, None

        _ = model.parameters  # read now: inside a compiled pass its start values would be abstract
        return ChunkPass(one_thread(each))

    def candidate(self, rows: Rows) -> Candidate:
        """Fit it, and tell the odds of every row."""
        place = "two parts", self.name, self.wide
        if place not in self.keeps:
            made = self.row_model()
            self.keeps[place] = made, self.odds_pass(made)
        model, odds_pass = self.keeps[place]
        best: Found | None = None
        with double_precision():
            for start in self.starts:
                problem = RowProblem(model, rows, Exact())
                vector = np.asarray(model.parameters.vector(self._start(start)))
                found = Found(problem, maximize(problem, vector, STOP))
                if np.isfinite(found.value) and (best is None or found.value > best.value + 1e-8):
                    best = found
            assert best is not None
            curve = best.problem.look(best.vector).curve
            assert curve is not None
            theta_of = model.parameters.natural
            by_row = rows.map(odds_pass, best.vector).by_unit
            log_odds, slope = by_row["odds"], by_row["slope"]
            covariance = np.linalg.pinv(-curve)
            theta = {name: np.asarray(value) for name, value in theta_of(jnp.asarray(best.vector)).items()}
        tails, vector = self.tails, best.vector
        score = None if tails is None else lambda: scores_at(tails, theta_of, vector, covariance)
        if not self.wide:
            return Candidate(f"{self.name} alone", best.value, curve, score=score, margin=self.margin)
        variance = np.einsum("ni,ij,nj->n", slope, covariance, slope)
        name, share = f"{self.name} and a wide part", float(theta["share"])
        return Candidate(name, best.value, curve, log_odds, variance, share, score, self.margin)


def scores_at(
    tails: Callable[[Mapping[str, Any]], np.ndarray],
    theta_of: Callable[[Any], Mapping[str, Any]],
    vector: np.ndarray,
    covariance: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Two-sided normal scores of rows in the core, and their variance from the estimates, by differences in the vector."""
    from scipy.special import ndtri

    def named(at: np.ndarray) -> dict[str, np.ndarray]:
        with double_precision():
            return {name: np.asarray(value) for name, value in theta_of(jnp.asarray(at)).items()}

    # The share has a part in the core only as a count of its rows, which is taken as known.
    counted = {name: value for name, value in named(vector).items() if name == "share"}

    def score(at: np.ndarray) -> np.ndarray:
        return -ndtri(np.maximum(0.5 * tails({**named(at), **counted}), 1e-300))

    here = score(vector)
    steps = STEP * np.eye(len(vector))
    slope = np.stack([(score(vector + step) - here) / STEP for step in steps], axis=1)
    return here, np.einsum("ni,ij,nj->n", slope, covariance, slope)
