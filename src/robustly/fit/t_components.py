r"""How are t components fitted? EM in weights, means and shapes, Newton in the degrees of freedom, in one pass a step.

With shares :math:`r` and pulls :math:`u` of the current components, a step sets

.. math::
    \pi_k = \tfrac1n \sum_i r_{ik}, \quad
    \mu_k = \frac{\sum_i r_{ik} u_{ik} x_i}{\sum_i r_{ik} u_{ik}}, \quad
    \Sigma_k = \frac{\sum_i r_{ik} u_{ik} (x_i - \mu_k)(x_i - \mu_k)^\top}{\sum_i r_{ik} u_{ik}}.

The denominator of :math:`\Sigma_k` is that of parameter-expanded EM (Liu, Rubin & Wu 1998): the same fixed points, fewer
steps. Each :math:`\nu_k` takes a Newton step on the log-likelihood itself, whose derivatives are sums of the same pass.
Both together could overshoot, so a step that does not raise the log-likelihood is taken again as plain EM (denominator
:math:`\sum_i r_{ik}`, EM's root for :math:`\nu`), which cannot lower it but for the floor on the covariances.
:math:`\nu` beyond 1000 is the normal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import digamma, polygamma

from robustly.fit.t_rows import Densities, MixtureSums, collect
from robustly.model import scale_matrices
from robustly.rows.store import Rows

LEAST_DOF, LARGEST_DOF = 0.1, 1000.0
# What scikit-learn adds to the rows of a component, so that an empty one divides by something.
EMPTY = 10 * np.finfo(float).eps


@dataclass(frozen=True)
class Components:
    """The parameters of a mixture."""

    kind: str
    weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray
    factors: np.ndarray
    dofs: np.ndarray

    @property
    def kernel(self) -> Densities:
        size, dim = self.means.shape
        white = scale_matrices.whitener(self.kind, self.factors, size, dim)
        with np.errstate(divide="ignore"):
            return Densities(np.log(self.weights), self.means, white, self.dofs)


@dataclass(frozen=True)
class Rules:
    """What stays the same over a fit."""

    kind: str
    floor: np.ndarray
    """Added to the diagonal of every covariance, (d,)."""
    fit_dof: bool
    tied_dof: bool = False
    tol: float = 1e-6
    max_iter: int = 500


@dataclass(frozen=True)
class ComponentsRun:
    """Where one start led."""

    components: Components
    log_likelihood: float
    """Of `components`, per row."""
    history: list[float]
    converged: bool

    @property
    def steps(self) -> int:
        return len(self.history)


def run_ecm(
    X: np.ndarray | Rows, start: Components, rules: Rules, report: Callable[[int, float], None] | None = None
) -> ComponentsRun:
    """Climb from `start` until the mean log-likelihood moves by less than ``rules.tol``."""
    n, held = len(X), start
    seen = collect(X, held.kernel, fit_dof=rules.fit_dof)
    history: list[float] = []
    converged = False
    for step in range(1, rules.max_iter + 1):
        ahead = update_components(held, seen, n, rules, quick=True)
        there = collect(X, ahead.kernel, fit_dof=rules.fit_dof)
        if rules.fit_dof and not there.log_likelihood >= seen.log_likelihood:
            ahead = update_components(held, seen, n, rules, quick=False)
            there = collect(X, ahead.kernel, fit_dof=rules.fit_dof)
        change = (there.log_likelihood - seen.log_likelihood) / n
        held, seen = ahead, there
        history.append(seen.log_likelihood / n)
        if report is not None:
            report(step, change)
        if abs(change) < rules.tol:
            released = _release(held, seen, rules)
            if released is None:
                converged = True
                break
            again = collect(X, released.kernel, fit_dof=True)
            if again.log_likelihood <= seen.log_likelihood:
                converged = True
                break
            held, seen = released, again
    return ComponentsRun(held, seen.log_likelihood / n, history, converged)


def update_components(held: Components, seen: MixtureSums, n: int, rules: Rules, *, quick: bool) -> Components:
    """The components after one step: the `quick` one, or plain EM's, which is sure."""
    mass, weight = seen.mass + EMPTY, seen.weight + EMPTY
    shift = seen.first / weight[:, None]
    if seen.scatter.ndim == 3:
        scatter = seen.scatter - seen.weight[:, None, None] * shift[:, :, None] * shift[:, None, :]
    else:
        scatter = seen.scatter - seen.weight[:, None] * shift**2
        # Rows that are all the same leave rounding here, which may be negative.
        scatter = np.maximum(scatter, 0.0)
    covariances = scale_matrices.pooled(rules.kind, scatter, weight if quick else mass, rules.floor)
    dofs = held.dofs
    if rules.fit_dof:
        dofs = (newton_dofs if quick else em_dofs)(held.dofs, seen, rules.tied_dof)
    weights = mass / n
    return Components(
        rules.kind,
        weights / weights.sum(),
        held.means + shift,
        covariances,
        scale_matrices.factor(rules.kind, covariances),
        dofs,
    )


def newton_dofs(dofs: np.ndarray, seen: MixtureSums, tied: bool) -> np.ndarray:
    """A Newton step in log ν on the log-likelihood, of at most a factor e; past the range, the normal, which stays."""
    slope, curve = seen.slope, seen.curve[:-1]
    if tied:
        slope, curve = np.full(len(dofs), slope.sum()), np.full(len(dofs), seen.curve[-1])
    finite = np.isfinite(dofs)
    nu = np.where(finite, dofs, 1.0)
    rise, bend = nu * slope, nu**2 * curve + nu * slope
    with np.errstate(divide="ignore", invalid="ignore"):
        step = np.where(bend < 0, -rise / bend, np.sign(rise))
    moved = nu * np.exp(np.clip(np.nan_to_num(step), -1.0, 1.0))
    moved = np.maximum(moved, LEAST_DOF)
    return np.where(finite & (moved <= LARGEST_DOF), moved, np.inf)


def em_dofs(dofs: np.ndarray, seen: MixtureSums, tied: bool) -> np.ndarray:
    r"""EM's step: the root of :math:`\log\frac\nu2 - \psi(\frac\nu2) = \log\frac{\nu'}2 - \psi(\frac{\nu'}2) - 2g`.

    Here :math:`g` is the mean slope of the log-likelihood at the current :math:`\nu'`, by Fisher's identity that of
    EM's own objective; Newton in log ν from there.
    """
    slope, mass = seen.slope, seen.mass + EMPTY
    if tied:
        slope, mass = np.full(len(dofs), slope.sum()), np.full(len(dofs), mass.sum())
    found = dofs.copy()
    for k in np.flatnonzero(np.isfinite(dofs)):
        half = 0.5 * dofs[k]
        target = np.log(half) - digamma(half) - 2.0 * slope[k] / mass[k]
        if target <= 1.0 / LARGEST_DOF:  # log x − ψ(x) is about 1/(2x)
            found[k] = LARGEST_DOF
            continue
        x = half
        for _ in range(50):
            gap = np.log(x) - digamma(x) - target
            step = -gap / (1.0 - x * polygamma(1, x))
            x *= np.exp(np.clip(step, -2.0, 2.0))
            if abs(step) < 1e-12:
                break
        found[k] = min(max(2.0 * x, LEAST_DOF), LARGEST_DOF)
    return found


def _release(held: Components, seen: MixtureSums, rules: Rules) -> Components | None:
    """Components that ended as normals although the rows would have heavier tails, with ν back in range; or None."""
    if not rules.fit_dof:
        return None
    heavy = ~np.isfinite(held.dofs)
    if rules.tied_dof:
        heavy &= seen.slope.sum() > 0
    else:
        # The slope in 1/ν has standard deviation √(d(d+2)n/2) for normal rows; below that there is nothing to gain.
        dim = held.means.shape[1]
        heavy &= seen.slope > 0.1 * np.sqrt(0.5 * dim * (dim + 2.0) * (seen.mass + 1.0))
    if not heavy.any():
        return None
    return replace(held, dofs=np.where(heavy, 0.1 * LARGEST_DOF, held.dofs))
