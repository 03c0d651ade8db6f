r"""What is believed of the components after the rows? Variational Bayes in which each row's scale follows its component.

Weights have a Dirichlet prior or the stick-breaking prior of a Dirichlet process, cut at K; a component's precision matrix a
Wishart prior, :math:`\Lambda_k \sim W(a_0, S_0^{-1})`, and its mean :math:`\mu_k \sim N(m_0, (\beta_0\Lambda_k)^{-1})`.
The posterior is taken to factorise as :math:`q(\pi)\prod_k q(\mu_k, \Lambda_k) \prod_i q(z_i)\,q(u_i \mid z_i)`: unlike in
Svensén & Bishop (2005) a row's scale may depend on its component (Archambeau & Verleysen 2007), which costs nothing and
makes the bound tighter. With the rows' own scales and labels at their best, the bound is

.. math::
    \sum_i \log \sum_k e^{\mathrm E\log\pi_k + \frac12 \mathrm E\log|\Lambda_k|}\, t\text{-kernel}_{\nu_k}
    \bigl(d/\beta_k + a_k (x_i - m_k)^\top S_k^{-1} (x_i - m_k)\bigr)
    - \mathrm{KL}(q(\pi)) - \sum_k \mathrm{KL}(q(\mu_k, \Lambda_k)),

so a pass is the same as for maximum likelihood, with constants added. :math:`\nu_k` maximises the bound.

With diagonal matrices every entry has a gamma law (a Wishart of one dimension); spherical ones have a single one, and a
tied matrix is one Wishart for all components.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import betaln, digamma, gammaln, multigammaln

from robustly.fit.t_components import em_dofs, newton_dofs
from robustly.fit.t_rows import Densities, MixtureSums, collect
from robustly.model import scale_matrices
from robustly.rows.store import Rows

LOG_TWO = float(np.log(2.0))


@dataclass(frozen=True)
class Prior:
    """What is believed of components before the rows, and what stays fixed over a fit."""

    kind: str
    process: bool
    """Whether weights are sticks of a Dirichlet process."""
    concentration: float
    mean: np.ndarray
    mean_precision: float
    shape_dof: float
    shape: np.ndarray
    """:math:`S_0`: (d, d), (d,) or a number, by kind."""
    fit_dof: bool
    tied_dof: bool = False


@dataclass(frozen=True)
class ParameterBelief:
    """What is believed of the components."""

    concentration: np.ndarray
    """(1, K): Dirichlet; (2, K): both numbers of each stick's beta law."""
    means: np.ndarray
    mean_precision: np.ndarray
    shape_dof: np.ndarray
    """(K,), or (1,) if tied."""
    shape: np.ndarray
    """(K, d, d), (1, d, d), (K, d) or (K,), by kind."""
    dofs: np.ndarray


def covariances(prior: Prior, held: ParameterBelief) -> np.ndarray:
    """Inverses of the expected precisions, in the public shape."""
    found = held.shape / held.shape_dof.reshape(-1, *([1] * (held.shape.ndim - 1)))
    return found[0] if prior.kind == "tied" else found


def expected_log_weights(prior: Prior, held: ParameterBelief) -> np.ndarray:
    if not prior.process:
        alpha = held.concentration[0]
        return digamma(alpha) - digamma(alpha.sum())
    here, beyond = held.concentration
    total = digamma(here + beyond)
    stop, go = digamma(here) - total, digamma(beyond) - total
    stop[-1] = 0.0  # the last stick takes what is left
    return stop + np.concatenate([[0.0], np.cumsum(go[:-1])])


def expected_weights(prior: Prior, held: ParameterBelief) -> np.ndarray:
    if not prior.process:
        return held.concentration[0] / held.concentration[0].sum()
    share = held.concentration[0] / held.concentration.sum(axis=0)
    share[-1] = 1.0
    return share * np.concatenate([[1.0], np.cumprod(1.0 - share[:-1])])


def expected_log_det(kind: str, dof: np.ndarray, shape: np.ndarray, dim: int) -> np.ndarray:
    """E log |Λ| of each component's law, (K,) or (1,)."""
    if scale_matrices.has_matrices(kind):
        places = 0.5 * (dof[:, None] - np.arange(dim))
        return digamma(places).sum(axis=1) + dim * LOG_TWO - np.linalg.slogdet(shape)[1]
    logs = np.log(shape).sum(axis=1) if kind == "diag" else dim * np.log(shape)
    return dim * (digamma(0.5 * dof) + LOG_TWO) - logs


def _log_volume(kind: str, dof: np.ndarray, shape: np.ndarray, dim: int) -> np.ndarray:
    """Log of what a Wishart (or gamma) density is divided by."""
    if scale_matrices.has_matrices(kind):
        log_det = np.linalg.slogdet(shape)[1]
        return 0.5 * dof * dim * LOG_TWO + multigammaln_each(0.5 * dof, dim) - 0.5 * dof * log_det
    if kind == "diag":
        return dim * (0.5 * dof * LOG_TWO + gammaln(0.5 * dof)) - 0.5 * dof * np.log(shape).sum(axis=1)
    return 0.5 * dof * LOG_TWO + gammaln(0.5 * dof) - 0.5 * dof * np.log(shape)


def multigammaln_each(values: np.ndarray, dim: int) -> np.ndarray:
    return np.array([multigammaln(value, dim) for value in values])


def expected_densities(prior: Prior, held: ParameterBelief) -> Densities:
    """What a pass needs: expectations in place of the values that are not known."""
    size, dim = held.means.shape
    factors = scale_matrices.factor(prior.kind, covariances(prior, held))
    white = scale_matrices.whitener(prior.kind, factors, size, dim)
    log_det = expected_log_det(prior.kind, held.shape_dof, held.shape, dim)
    shift = 0.5 * log_det - scale_matrices.log_det_factors(white)
    return Densities(expected_log_weights(prior, held), held.means, white, held.dofs, dim / held.mean_precision, shift)


def divergence(prior: Prior, held: ParameterBelief) -> float:
    """How far the beliefs about weights and components are from the prior, in nats: what the bound pays for them."""
    size, dim = held.means.shape
    alpha0 = prior.concentration
    if prior.process:
        here, beyond = held.concentration[:, :-1]
        total = digamma(here + beyond)
        stop, go = digamma(here) - total, digamma(beyond) - total
        found = np.sum((here - 1.0) * stop + (beyond - alpha0) * go - betaln(here, beyond) + betaln(1.0, alpha0))
    else:
        alpha = held.concentration[0]
        found = gammaln(alpha.sum()) - gammaln(alpha).sum() - gammaln(size * alpha0) + size * gammaln(alpha0)
        found += ((alpha - alpha0) * (digamma(alpha) - digamma(alpha.sum()))).sum()
    ratio = prior.mean_precision / held.mean_precision
    off = held.means - prior.mean
    white = scale_matrices.whitener(prior.kind, scale_matrices.factor(prior.kind, covariances(prior, held)), size, dim)
    spun = np.einsum("kij,ki->kj", white, off) if white.ndim == 3 else off * white
    found += 0.5 * np.sum(dim * (ratio - 1.0 - np.log(ratio)) + prior.mean_precision * (spun**2).sum(axis=1))
    dof, dof0 = held.shape_dof, np.full(len(held.shape_dof), prior.shape_dof)
    shape0 = np.broadcast_to(prior.shape, held.shape.shape)
    log_det = expected_log_det(prior.kind, dof, held.shape, dim)
    if scale_matrices.has_matrices(prior.kind):
        trace = np.trace(np.linalg.solve(held.shape, shape0), axis1=1, axis2=2)
        numbers = dim
    elif prior.kind == "diag":
        trace, numbers = (shape0 / held.shape).sum(axis=1), dim
    else:
        trace, numbers, log_det = shape0 / held.shape, 1, log_det / dim
    found += np.sum(
        0.5 * (dof - dof0) * log_det
        - 0.5 * dof * (numbers - trace)
        + _log_volume(prior.kind, dof0, shape0, dim)
        - _log_volume(prior.kind, dof, held.shape, dim)
    )
    return float(found)


def update_belief(prior: Prior, held: ParameterBelief, seen: MixtureSums, dofs: np.ndarray) -> ParameterBelief:
    """The best beliefs given the rows' labels and scales."""
    dim = held.means.shape[1]
    mass, weight = seen.mass, seen.weight
    precision = prior.mean_precision + weight
    # About the current means μ: Σ r u (x − m_new)… with everything written as differences from them.
    start = prior.mean - held.means
    moved = (prior.mean_precision * start + seen.first) / precision[:, None]
    if seen.scatter.ndim == 3:
        scatter = (
            seen.scatter
            + prior.mean_precision * start[:, :, None] * start[:, None, :]
            - precision[:, None, None] * moved[:, :, None] * moved[:, None, :]
        )
    else:
        scatter = seen.scatter + prior.mean_precision * start**2 - precision[:, None] * moved**2
    if prior.kind == "tied":
        shape, dof = (prior.shape + scatter.sum(axis=0))[None], np.array([prior.shape_dof + mass.sum()])
    elif prior.kind == "spherical":
        shape, dof = prior.shape + scatter.sum(axis=1), prior.shape_dof + dim * mass
    else:
        shape, dof = prior.shape + scatter, prior.shape_dof + mass
    if prior.process:
        after = np.concatenate([np.cumsum(mass[::-1])[::-1][1:], [0.0]])
        concentration = np.stack([1.0 + mass, prior.concentration + after])
    else:
        concentration = (prior.concentration + mass)[None]
    return ParameterBelief(concentration, held.means + moved, precision, dof, shape, dofs)


@dataclass(frozen=True)
class Belief:
    """Where one start led."""

    posterior: ParameterBelief
    bound: float
    """The evidence lower bound per row."""
    history: list[float]
    mass: np.ndarray
    converged: bool


def raise_bound(
    X: np.ndarray | Rows,
    prior: Prior,
    start: MixtureSums,
    held: ParameterBelief,
    tol: float,
    max_iter: int,
    report: Callable[[int, float], None] | None = None,
) -> Belief:
    """Raise the bound from beliefs made of the sums `start` until it moves by less than `tol` per row."""
    n = len(X)
    held = update_belief(prior, held, start, held.dofs)
    seen, bound = _look(X, prior, held)
    history: list[float] = []
    converged = False
    for step in range(1, max_iter + 1):
        dofs = newton_dofs(held.dofs, seen, prior.tied_dof) if prior.fit_dof else held.dofs
        ahead = update_belief(prior, held, seen, dofs)
        there, value = _look(X, prior, ahead)
        if prior.fit_dof and not value >= bound:
            ahead = update_belief(prior, held, seen, em_dofs(held.dofs, seen, prior.tied_dof))
            there, value = _look(X, prior, ahead)
        change = (value - bound) / n
        held, seen, bound = ahead, there, value
        history.append(bound / n)
        if report is not None:
            report(step, change)
        if abs(change) < tol:
            converged = True
            break
    return Belief(held, bound / n, history, seen.mass, converged)


def _look(X: np.ndarray | Rows, prior: Prior, held: ParameterBelief) -> tuple[MixtureSums, float]:
    seen = collect(X, expected_densities(prior, held), fit_dof=prior.fit_dof)
    return seen, seen.log_likelihood - divergence(prior, held)
