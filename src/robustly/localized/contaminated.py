r"""What if the local values of some rows of a program do not belong? Its prior in two parts, whatever the prior is.

.. math:: p(\beta_i) = (1 - \pi)\, p(\beta_i \mid \alpha) + \pi\, p(\beta_i \mid \text{wide})

The value of a strayed row lies off the middle of the fitted prior, by about `width` of its deviations to either side, more or less by
`variation` of that: :math:`u \sim \rho N(m + ws, c^2w^2s^2) + (1 - \rho) N(m - ws, c^2w^2s^2)` in the free coordinate of the local
value, which is standard steps of a location-scale prior and the logarithm of positive values. That has a density for every prior,
with nothing to normalise. Which part a row is from is a discrete latent of the row, so that each part is integrated around its own
mode, in a coordinate of its own, and the evidence of a row is the log-sum-exp of three evidences. Values with several dimensions have
no sides: those of strayed rows lie about the middle, as far as `width` deviations. Groups of rows (``by=``) are units like rows.
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
from robustly.localized.two_part_starts import BELIEVED, START, starts_of_two_parts
from robustly.model.program import hyper
from robustly.model.program.read import Program
from robustly.model.row import RowModel
from robustly.result.outliers import BEHIND, Candidate, Judgement, behind, judge
from robustly.result.two_part import log_normal
from robustly.rows.store import Rows

# The core, rows that strayed upwards, and rows that strayed downwards; without sides, the core and the wide part.
SIDES, NO_SIDES = np.array([[0.0], [1.0], [-1.0]]), np.array([[0.0], [1.0]])
# Differences in the vector; and how sure of a row one can be by them.
STEP, CERTAIN = 1e-2, 1e-5


@dataclass(frozen=True, eq=False)
class Contamination:
    """A program's row model in two parts."""

    core: RowModel
    site: str
    model: RowModel
    """Both parts, told apart by a discrete latent."""

    def theta_of(self, core: Mapping[str, Any], **beside: float) -> dict[str, Any]:
        """Natural values to climb from."""
        usual = {name: value for name, value in self.model.start.items() if name not in self.core.start}
        return {**core, **usual, **{f"{self.site}.{name}": value for name, value in beside.items()}}


def contaminated(program: Program, core: RowModel) -> Contamination:
    """The two-part law of a program with one localized site."""
    if len(program.sites.local) != 1 or core.latents is not None:
        raise LocalizeError(
            "contaminated=True takes one localized site of a model without discrete latents; got "
            f"{len(program.sites.local)} localized sites{'' if core.latents is None else ' and a discrete latent'}. Localize "
            "one site, or leave contaminated= out."
        )
    core = replace(core, conjugacy=None)
    site, has_sides = program.sites.local[0], core.dim == 1
    fitted = {name: f"{site}.{name}" for name in BELIEVED if has_sides or name in ("width", "share")}

    def core_of(theta: Any) -> dict[str, Any]:
        return {name: value for name, value in theta.items() if name not in fitted.values()}

    def coordinate(prior: Any, theta: Any, z: Any) -> tuple[Any, Any]:
        """Where the free coordinate of a part is counted from, and in what steps."""
        middle, deviation = _middle_of_prior(prior, core)
        width = theta[fitted["width"]] * deviation
        begin, step = (middle + z[0] * width, width * theta[fitted["variation"]]) if has_sides else (middle, width)
        return jnp.where(z[0] == 0, 0.0, begin), jnp.where(z[0] == 0, 1.0, step)

    def moved(u: Any, theta: Any, row: Any, z: Any) -> Any:
        assert core.prior is not None
        begin, step = coordinate(core.prior(core_of(theta), row), theta, z)
        return begin + step * u

    def joint(u: Any, theta: Any, row: Any, z: Any) -> Any:
        assert core.prior is not None
        prior = core.prior(core_of(theta), row)
        local = _value_at(prior, core, *coordinate(prior, theta, z), u)
        here = jnp.where(z[0] == 0, _log_prior(prior, u, core), jnp.sum(dist.Normal().log_prob(u)))
        return core.log_likelihood(local, core_of(theta), row) + here + log_share(theta, z)

    def log_share(theta: Any, z: Any) -> Any:
        share = theta[fitted["share"]]
        strayed = jnp.log(share)
        if has_sides:
            side = theta[fitted["side"]]
            strayed = strayed + jnp.where(z[0] > 0, jnp.log(side), jnp.log1p(-side))
        return jnp.where(z[0] == 0, jnp.log1p(-share), strayed)

    def log_hyperprior(theta: Any) -> Any:
        total = core.log_hyperprior(core_of(theta))
        for name, place in fitted.items():
            is_share = name in ("share", "side")
            free = jnp.log(theta[place]) - (jnp.log1p(-theta[place]) if is_share else 0.0)
            total = total + log_normal(free, *BELIEVED[name])
        return total

    limits = {"width": limit.positive, "variation": limit.positive}
    both = replace(
        core,
        joint=joint,
        moved=moved,
        latents=SIDES if has_sides else NO_SIDES,
        log_likelihood=lambda local, theta, row, z: core.log_likelihood(local, core_of(theta), row),
        transform=lambda u, theta, row: core.local(u, core_of(theta), row),
        log_prior=None,
        start={**core.start, **{place: START[name] for name, place in fitted.items()}},
        constraints={
            **core.constraints,
            **{place: limits.get(name, limit.unit_interval) for name, place in fitted.items()},
        },
        log_hyperprior=log_hyperprior,
        made_by=None,
    )
    return Contamination(core, site, both)


def _value_at(prior: Any, core: RowModel, begin: Any, step: Any, u: Any) -> Any:
    """The local value so many steps on from the beginning of a coordinate; of a location-scale prior by two numbers."""
    inner = hyper.plain(prior)
    if inner is not None and type(inner) in hyper.LOCATION_SCALE:
        whole = lambda one: one.reshape(core.local_shape)
        return (inner.loc + inner.scale * whole(begin)) + (inner.scale * whole(step)) * whole(u)
    return hyper.place(prior, begin + step * u, core.local_shape).value


def _log_prior(prior: Any, u: Any, core: RowModel) -> Any:
    """The log density of a local value's free coordinate."""
    at = hyper.place(prior, u, core.local_shape)
    return jnp.sum(prior.log_prob(at.value)) + at.log_volume if at.log_density is None else at.log_density


def _middle_of_prior(prior: Any, core: RowModel) -> tuple[Any, Any]:
    """The middle of a prior in the free coordinate, and how far values deviate from it there, to first order."""
    nowhere = jnp.zeros(core.dim), jnp.ones(core.dim)
    inner = hyper.plain(prior)
    if inner is not None and type(inner) in (*hyper.LOCATION_SCALE, dist.MultivariateNormal):
        return nowhere
    free = biject_to(prior.support)
    typical = free(jnp.zeros(free.inverse_shape(core.local_shape)))
    try:
        mean, variance = (jnp.broadcast_to(one, jnp.shape(typical)) for one in (prior.mean, prior.variance))
    except NotImplementedError:
        return nowhere
    middle = free.inv(jnp.where(jnp.isfinite(mean), mean, typical))
    if jnp.shape(middle) != jnp.shape(typical):
        return middle.reshape(-1), jnp.ones(core.dim)
    slope = jnp.exp(jnp.broadcast_to(free.log_abs_det_jacobian(middle, free(middle)), jnp.shape(typical)))
    deviation = jnp.where(jnp.isfinite(variance), jnp.sqrt(jnp.where(variance > 0, variance, 1.0)) / slope, 1.0)
    return middle.reshape(-1), deviation.reshape(-1)


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
    climb = lambda start, hopeless=None: search(
        RowProblem(law.model, rows, integrate), stop, start=start, hopeless=hopeless
    )
    hopeless = behind(one_part) if plain.outcome.converged else None
    best: Found | None = None
    for theta in starts_of_two_parts(law, plain, rows):
        try:
            found = climb(np.asarray(law.model.parameters.vector(theta)), hopeless)
        except FitError:
            continue
        if np.isfinite(found.value) and (best is None or found.value > best.value):
            best = found
        if best is not None and (best.outcome.converged or best.outcome.kind == BEHIND):
            break
    if best is None:
        return plain, lambda: judge([one_part])
    of = lambda found: Candidate("the fitted prior and a wide part", found.value, found.curve)

    def judged() -> Judgement:
        # Rows are judged by both laws, also where one was not climbed to its end because the other is the answer.
        top = climb(best.vector) if best.outcome.kind == BEHIND else best
        odds, variance = odds_by_row(law, top)
        share = float(law.model.parameters.natural(jnp.asarray(top.vector))[f"{law.site}.share"])
        return judge([one_part, replace(of(top), log_odds=odds, log_odds_variance=variance, share=share)])

    return best if best.outcome.kind != BEHIND and of(best).log_evidence > one_part.log_evidence else plain, judged
