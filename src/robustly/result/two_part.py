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

from robustly._runtime.compiled import one_thread
from robustly._runtime.precision import double_precision
from robustly.approx import Exact
from robustly.errors import FitError
from robustly.fit.newton import maximize
from robustly.fit.outcome import Stop
from robustly.fit.passes import ChunkPass
from robustly.fit.problem import Found, RowProblem
from robustly.model.row import RowModel
from robustly.result.outliers import Candidate, finite_curve, vectors_along
from robustly.rows.store import Rows

STOP = Stop(1e-10, 80)
# Normal priors on the scales that are searched: log odds of the share, logarithms of the others.
SHARE = (float(np.log(0.03 / 0.97)), 1.2)
WIDTHS_OF_MEASUREMENTS = (float(np.log(12.0)), 1.0)
WIDTHS_OF_PREDICTORS = (float(np.log(2.0)), 0.6)
VARIATION = (float(np.log(0.15)), 0.8)
# Log odds of the share of strayed rows above the core: about a uniform share.
SIDE = (0.0, 1.8)
DOF = (float(np.log(5.0)), 1.0)
LOG_2PI = float(np.log(2.0 * np.pi))
STEP = 1e-3
# Tops closer than this, in free coordinates, are one; a top so many nats below another has no say.
SAME_TOP, FAR_BELOW = 1e-2, 12.0


def log_normal(away: Array, centre: float, width: float) -> Array:
    """A normal log density."""
    return -0.5 * ((away - centre) / width) ** 2 - float(np.log(width)) - 0.5 * LOG_2PI


def log_prior_of_side(theta: Mapping[str, Any]) -> Array:
    """What is believed of the share of strayed rows that lie above the core."""
    return log_normal(jnp.log(theta["side"]) - jnp.log1p(-theta["side"]), *SIDE)


def shifted_parts(
    away: Array, scale: Array, variation: Array, width: Array, density: Callable[[Array, Array], Array]
) -> tuple[Array, Array]:
    r"""A core of measurements, and rows shifted by about `width` scales to either side, more or less by `variation` of that.

    Shifts are :math:`\tfrac12 N(w, c^2w^2) + \tfrac12 N(-w, c^2w^2)` in units of the scale, and the wide part of a normal core is
    their convolution. All is in logarithms; `density` gives the core's, of (away, log scale).
    """
    wider = scale + 0.5 * jnp.logaddexp(2.0 * (width + variation), 0.0)
    shift = jnp.exp(width + scale)
    either = jnp.logaddexp(density(away - shift, wider), density(away + shift, wider))
    return density(away, scale), either - float(np.log(2.0))


def log_gauss(away: Array, log_scale: Array) -> Array:
    """The normal log density, without its constant."""
    return -0.5 * (away * jnp.exp(-log_scale)) ** 2 - log_scale


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
    unbiased: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    """theta -> theta as if the parameters of the place had cost no degrees of freedom: where rows are judged."""
    wide: bool = True
    """Whether there is a wide part at all; without one, `parts` gives the core twice."""
    keeps: dict[Any, tuple[RowModel, ChunkPass]] = field(default_factory=dict)
    """Where compiled passes are kept, so that a law like one before compiles nothing."""

    def row_model(self) -> RowModel:
        from numpyro.distributions import constraints as limit

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

    def candidates(self, rows: Rows) -> list[Candidate]:
        """Fit it, and tell the odds of every row: once for each top that is not far below the highest."""
        place = "two parts", self.name, self.wide
        if place not in self.keeps:
            made = self.row_model()
            self.keeps[place] = made, self.odds_pass(made)
        model, odds_pass = self.keeps[place]
        tops: list[Found] = []
        with double_precision():
            for start in self.starts:
                problem = RowProblem(model, rows, Exact())
                vector = np.asarray(model.parameters.vector(self._start(start)))
                found = Found(problem, maximize(problem, vector, STOP))
                known = any(np.abs(found.vector - other.vector).max(initial=0.0) < SAME_TOP for other in tops)
                if np.isfinite(found.value) and not known:
                    tops.append(found)
            if not tops:
                raise FitError(
                    f"no law in two parts with {self.name} has a finite likelihood of these rows, so none can be judged by it. Look "
                    "at the data for extreme values."
                )
            highest = max(top.value for top in tops)
            return [self._candidate(model, odds_pass, rows, top) for top in tops if top.value > highest - FAR_BELOW]

    def _candidate(self, model: RowModel, odds_pass: ChunkPass, rows: Rows, top: Found) -> Candidate:
        curve = finite_curve(np.asarray(top.problem.look(top.vector).curve))
        theta_of = model.parameters.natural
        theta = {name: np.asarray(value) for name, value in theta_of(jnp.asarray(top.vector)).items()}
        vector = top.vector if self.unbiased is None else np.asarray(model.parameters.vector(self.unbiased(theta)))
        covariance = np.linalg.pinv(-curve)
        tails = self.tails
        score = None if tails is None else lambda: scores_at(tails, theta_of, vector, covariance)
        if not self.wide:
            return Candidate(f"{self.name} alone", top.value, curve, score=score, margin=self.margin)
        vectors, nodes, left = [vector], np.ones(1), covariance
        if "variation" in theta:
            vectors, nodes, left = vectors_along(vector, covariance, model.parameters.places["variation"].start)
        asked = [rows.map(odds_pass, one).by_unit for one in vectors]
        odds = np.stack([one["odds"] for one in asked])
        variance = np.stack([np.einsum("ni,ij,nj->n", one["slope"], left, one["slope"]) for one in asked])
        name, share = f"{self.name} and a wide part", float(theta["share"])
        return Candidate(name, top.value, curve, odds, variance, share, score, self.margin, nodes)


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

    def score(at: np.ndarray) -> np.ndarray:
        return -ndtri(np.maximum(0.5 * tails(named(at)), 1e-300))

    here = score(vector)
    steps = STEP * np.eye(len(vector))
    slope = np.stack([(score(vector + step) - here) / STEP for step in steps], axis=1)
    return here, np.einsum("ni,ij,nj->n", slope, covariance, slope)
