r"""What is believed of each step's precision? Structured mean field: :math:`q(\text{states})\,\prod q(\lambda_{st})`.

The disturbance of site s at step t is :math:`N(0, \sigma_s^2/\lambda_{st})` with
:math:`\lambda_{st} \sim \mathrm{Gamma}(\nu_s/2, \nu_s/2)`. Given the states, each precision has a gamma law; given the mean
precisions, the states have the smoother's law. The two alternate, and with
:math:`q(\lambda_{st}) = \mathrm{Gamma}(a_s, b_{st})`, :math:`\bar\lambda = a/b`,

.. math::
    \log p(y) \ge \log p(y \mid \bar\lambda) + \sum_{st} \tfrac{m_s}2\bigl(\psi(a_s) - \log a_s\bigr)
    - \mathrm{KL}\bigl(q(\lambda_{st}) \,\|\, p(\lambda_{st})\bigr),

the first term being the Gaussian model's log likelihood with variances :math:`\sigma_s^2/\bar\lambda_{st}`: one filtering
pass. It is a lower bound, and no round lowers it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import digamma, gammaln

from robustly.series.disturbances import Disturbances, Smoothed, free_steps

MAX_ROUNDS = 200
# Beyond this many degrees of freedom the law is the normal.
LARGEST_DOF = 1000.0
LEAST_DOF = 0.5


@dataclass(frozen=True)
class Locals:
    """Gamma laws of the precisions, Gamma(shape, rate), (S, 1) and (S, T); inactive steps have λ = 1."""

    shape: np.ndarray
    rate: np.ndarray
    active: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        return np.where(self.active, self.shape / self.rate, 1.0)


@dataclass(frozen=True)
class MeanFieldState:
    """Where the rounds ended."""

    locals: Locals
    bound: float
    smoothed: Smoothed
    rounds: int
    history: list[float]
    converged: bool


def start_locals(model: Disturbances, dofs: np.ndarray, mean: np.ndarray | None = None) -> Locals:
    """Precisions of one, or those given, as laws with the shape that every round gives them."""
    shape = _shapes(model, dofs)
    at = model.ones() if mean is None else mean
    return Locals(shape, shape / at, free_steps(model, dofs))


def _shapes(model: Disturbances, dofs: np.ndarray) -> np.ndarray:
    sizes = np.array([site.size for site in model.sites], dtype=float)
    return 0.5 * (np.minimum(dofs, LARGEST_DOF) + sizes)[:, None]


def update_precisions(model: Disturbances, dofs: np.ndarray, smoothed: Smoothed) -> Locals:
    """The precisions' laws given the states'."""
    nu = np.minimum(dofs, LARGEST_DOF)[:, None]
    variance = np.maximum(model.variances, np.finfo(float).tiny)[:, None]
    return Locals(_shapes(model, dofs), 0.5 * (nu + smoothed.square / variance), free_steps(model, dofs))


def penalty(model: Disturbances, dofs: np.ndarray, held: Locals) -> np.ndarray:
    """What each step's precision costs the bound, (S, T): the gap of Jensen's inequality and the KL divergence."""
    a, b = held.shape, held.rate
    half = 0.5 * np.minimum(dofs, LARGEST_DOF)[:, None]
    sizes = np.array([site.size for site in model.sites], dtype=float)[:, None]
    gap = 0.5 * sizes * (digamma(a) - np.log(a))
    divergence = (
        (a - half) * digamma(a) - gammaln(a) + gammaln(half) + half * (np.log(b) - np.log(half)) + a * (half - b) / b
    )
    return np.where(held.active, gap - divergence, 0.0)


def bound_at(model: Disturbances, params: np.ndarray, dofs: np.ndarray, held: Locals) -> float:
    """The bound with the states at their best for these precisions."""
    return model.log_likelihood(params, 1.0 / held.mean) + float(penalty(model, dofs, held).sum())


def find_locals(
    model: Disturbances,
    params: np.ndarray,
    dofs: np.ndarray,
    start: Locals | None = None,
    tol: float = 1e-9,
    max_rounds: int = MAX_ROUNDS,
) -> MeanFieldState:
    """Alternate states and precisions until a round gains less than `tol` of the bound's size (at least 1)."""
    held = start_locals(model, dofs) if start is None else replace_shape(model, dofs, start)
    history: list[float] = []
    converged = False
    while True:
        smoothed = model.smooth(params, 1.0 / held.mean)
        bound = smoothed.log_likelihood + float(penalty(model, dofs, held).sum())
        history.append(bound)
        if len(history) > 1 and bound - history[-2] <= tol * max(1.0, abs(bound)):
            converged = True
        if converged or len(history) > max_rounds:
            return MeanFieldState(held, bound, smoothed, len(history), history, converged)
        held = update_precisions(model, dofs, smoothed)


def replace_shape(model: Disturbances, dofs: np.ndarray, held: Locals) -> Locals:
    """The same mean precisions under the shape that belongs to `dofs`."""
    return start_locals(model, dofs, held.mean)
