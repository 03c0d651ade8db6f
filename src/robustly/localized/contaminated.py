r"""What if the local values of some rows of a program do not belong? Its prior in two parts, whatever the prior is.

.. math:: p(\beta_i) = (1 - \pi)\, p(\beta_i \mid \alpha) + \pi\, p(\beta_i \mid \text{wide})

The wide part is the fitted prior stretched about its middle by :math:`W = \sqrt{1 + w^2}` in the free coordinate of the local value:
standard steps of a location-scale prior, logarithms of positive values. That has a density for every prior, with nothing to
normalise. Which part a row is from is a discrete latent of the row with two values, so that each part is integrated around its own
mode and the evidence of a row is the log-sum-exp of two evidences. Groups of rows (``by=``) are units like rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import biject_to
from numpyro.distributions import constraints as limit
from scipy.special import expit, logit

from robustly._runtime.precision import double_precision
from robustly.approx import Approximation, default_approximation
from robustly.errors import FitError, LocalizeError
from robustly.fit.outcome import Stop
from robustly.fit.problem import Found, RowProblem
from robustly.fit.search import search
from robustly.model.program import hyper
from robustly.model.program.read import Program
from robustly.model.row import RowModel
from robustly.result.outliers import Candidate, Judgement, judge
from robustly.result.two_part import SHARE, log_normal
from robustly.rows.store import Rows

# A normal prior on the logarithm of the width: a core with next to no spread has a wide part that is many times wider.
WIDTHS = (float(np.log(5.0)), 1.5)
START = {"width": 4.0, "share": 0.05}
# A second start leaves this share of the rows out, the most surprising ones, and hyperparameters move so far at most.
TRIMMED, FURTHEST = 0.2, 2.0
# Once two parts do better than one by so many nats, no other start is tried.
DECIDED = 3.0
PARTS = np.array([[0.0], [1.0]])
# Differences in the vector; and how sure of a row one can be by them.
STEP, CERTAIN = 1e-2, 1e-5


@dataclass(frozen=True, eq=False)
class Contamination:
    """A program's row model in two parts."""

    core: RowModel
    site: str
    model: RowModel
    """Both parts, told apart by a discrete latent."""

    def theta_of(self, core: Mapping[str, Any]) -> dict[str, Any]:
        """Natural values to climb from."""
        return {**core, **{f"{self.site}.{name}": value for name, value in START.items()}}


def contaminated(program: Program, core: RowModel) -> Contamination:
    """The two-part law of a program with one localized site."""
    if len(program.sites.local) != 1 or core.latents is not None:
        raise LocalizeError(
            "contaminated=True takes one localized site of a model without discrete latents; got "
            f"{len(program.sites.local)} localized sites{'' if core.latents is None else ' and a discrete latent'}. Localize "
            "one site, or leave contaminated= out."
        )
    core = replace(core, conjugacy=None)
    site = program.sites.local[0]
    width, share = f"{site}.width", f"{site}.share"

    def joint(u: Any, theta: Any, row: Any, z: Any) -> Any:
        assert core.prior is not None
        prior = core.prior(theta, row)
        log_stretch = 0.5 * jnp.log1p(theta[width] ** 2)
        middle = _stretched_from(prior, core)
        nearer = middle + (u - middle) * jnp.exp(-log_stretch)
        wider = _log_prior(prior, nearer, core) - _log_prior(prior, u, core) - core.dim * log_stretch
        shared = jnp.where(z[0] > 0, jnp.log(theta[share]) + wider, jnp.log1p(-theta[share]))
        return core.log_joint(u, theta, row) + shared

    def log_hyperprior(theta: Any) -> Any:
        odds = jnp.log(theta[share]) - jnp.log1p(-theta[share])
        return core.log_hyperprior(theta) + log_normal(odds, *SHARE) + log_normal(jnp.log(theta[width]), *WIDTHS)

    both = replace(
        core,
        joint=joint,
        latents=PARTS,
        log_likelihood=lambda local, theta, row, z: core.log_likelihood(local, theta, row),
        start={**core.start, width: START["width"], share: START["share"]},
        constraints={**core.constraints, width: limit.positive, share: limit.unit_interval},
        log_hyperprior=log_hyperprior,
        made_by=None,
    )
    return Contamination(core, site, both)


def _log_prior(prior: Any, u: Any, core: RowModel) -> Any:
    """The log density of a local value's free coordinate."""
    at = hyper.place(prior, u, core.local_shape)
    return jnp.sum(prior.log_prob(at.value)) + at.log_volume if at.log_density is None else at.log_density


def _stretched_from(prior: Any, core: RowModel) -> Any:
    """Where a prior is stretched from, in the free coordinate: the middle of a location-scale prior, else its mean."""
    inner = hyper.plain(prior)
    if inner is not None and type(inner) in (*hyper.LOCATION_SCALE, dist.MultivariateNormal):
        return jnp.zeros(core.dim)
    free = biject_to(prior.support)
    typical = free(jnp.zeros(free.inverse_shape(core.local_shape)))
    try:
        mean = jnp.broadcast_to(prior.mean, jnp.shape(typical))
    except NotImplementedError:
        return jnp.zeros(core.dim)
    return free.inv(jnp.where(jnp.isfinite(mean), mean, typical)).reshape(-1)


def odds_by_row(law: Contamination, found: Found) -> tuple[np.ndarray, np.ndarray]:
    r"""Each row's log odds of the wide part, and their variance from the estimates.

    The slope of a row's evidence in the log odds of the share is the row's probability of the wide part less the share, and the slope
    of that in any other number is the slope of the row's score there: rows' scores on either side tell all of it.
    """
    problem, vector = found.problem, np.asarray(found.vector)
    assert isinstance(problem, RowProblem)
    place = law.model.parameters.places[f"{law.site}.share"].start
    step = STEP * np.eye(len(vector))[place]
    with double_precision():
        ahead, behind = (
            np.asarray(
                problem.rows.map(problem.passes.scores, vector + side * step, keep=problem.slot).by_unit["score"]
            )
            for side in (1.0, -1.0)
        )
    share = float(expit(vector[place]))
    probability = np.clip(share + 0.5 * (ahead + behind)[:, place], CERTAIN, 1.0 - CERTAIN)
    slope = (ahead - behind) / (2.0 * STEP)
    slope[:, place] += share * (1.0 - share)
    slope = slope / (probability * (1.0 - probability))[:, None]
    return logit(probability), np.einsum("ni,ij,nj->n", slope, np.linalg.pinv(-found.curve), slope)


def fit_two_parts(
    law: Contamination, plain: Found, rows: Rows, approx: Approximation | None, stop: Stop
) -> tuple[Found, Callable[[], Judgement]]:
    """The better of the two laws, the plain one or that in two parts, and how they judge the rows."""
    integrate = default_approximation(law.core) if approx is None or approx.is_exact else approx
    one_part = Candidate("the fitted prior in one part", plain.value, plain.curve)
    two_parts = lambda found: Candidate("the fitted prior and a wide part", found.value, found.curve)
    best: Found | None = None
    for core in _cores(law, plain, rows):
        start = np.asarray(law.model.parameters.vector(law.theta_of(core)))
        try:
            found = search(RowProblem(law.model, rows, integrate), stop, start=start)
        except FitError:
            continue
        if np.isfinite(found.value) and (best is None or found.value > best.value + 1e-6):
            best = found
        if best is not None and two_parts(best).log_evidence > one_part.log_evidence + DECIDED:
            break
    if best is None:
        return plain, lambda: judge([one_part])
    both = two_parts(best)

    def judged() -> Judgement:
        odds, variance = odds_by_row(law, best)
        share = float(law.model.parameters.natural(jnp.asarray(best.vector))[f"{law.site}.share"])
        return judge([one_part, replace(both, log_odds=odds, log_odds_variance=variance, share=share)])

    return best if both.log_evidence > one_part.log_evidence else plain, judged


def _cores(law: Contamination, plain: Found, rows: Rows) -> list[dict[str, Any]]:
    """Natural values of the core to climb from: those of the plain fit, and those without its most surprising rows."""
    model, _ = plain.problem.parts
    here = model.parameters.natural(jnp.asarray(plain.vector))
    found = [{**law.core.start, **{name: value for name, value in here.items() if name in law.core.start}}]
    if set(law.core.start) - set(here):
        return found  # all rows share the localized value
    surprise = -plain.evidence
    kept = surprise <= np.quantile(surprise, 1.0 - TRIMMED)
    assert isinstance(plain.problem, RowProblem)
    try:
        trimmed = search(
            plain.problem.on(rows.weighed(np.where(kept, rows.weight, 0.0))), Stop(1e-6, 60), start=plain.vector
        )
    except FitError:
        return found
    parameters = model.parameters
    moved = trimmed.vector - plain.vector
    for name, place in parameters.places.items():
        if name.startswith(f"{law.site}."):
            moved[place] = np.clip(moved[place], -FURTHEST, FURTHEST)
    again = parameters.natural(jnp.asarray(plain.vector + moved))
    return [{name: again[name] for name in law.core.start}, *found]
