r"""What do the rows say of the components? One pass over blocks of rows, with sums that add up.

A component is a multivariate t: normal with a precision scale :math:`u_i \sim \mathrm{Gamma}(\nu/2, \nu/2)` of each row's
own. With :math:`u_i` integrated out and :math:`\delta` the squared distance of a row from a component,

.. math::
    \log t = c_\nu + \log|U| - \tfrac{\nu + d}{2} \log(1 + \delta/\nu), \qquad
    \mathrm E[u \mid \delta] = \frac{\nu + d}{\nu + \delta}, \qquad
    \frac{\partial \log t}{\partial \nu} = \tfrac12\bigl[\psi(\tfrac{\nu+d}2) - \psi(\tfrac\nu2) + 1
    - \log(1 + \delta/\nu) - u\bigr],

and :math:`\nu = \infty` is the normal. A block's arrays fit the cache and are used again for the next; nothing of the
size rows × components × columns is ever held. The variational posterior of :mod:`robustly.mixture.bayesian` needs the same
sums with a constant added to each distance and each log density, so it is read by the same pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from scipy.special import digamma, gammaln, polygamma

from robustly._runtime.threads import on_one_thread
from robustly.model.scale_matrices import log_det_factors
from robustly.rows.arrays import ArrayRows
from robustly.rows.store import Rows

BLOCK_NUMBERS = 1 << 18
LOG_TWO_PI = float(np.log(2.0 * np.pi))


@dataclass(frozen=True)
class Densities:
    """What a row's log density under each component is computed from."""

    log_weights: np.ndarray
    means: np.ndarray
    white: np.ndarray
    dofs: np.ndarray
    inflation: np.ndarray | float = 0.0
    """Added to every squared distance: the uncertainty of a mean that is not known."""
    shift: np.ndarray | float = 0.0
    """Added to every log density."""

    @property
    def constants(self) -> np.ndarray:
        """Log density of each component where the distance is zero, weight included."""
        dim = self.means.shape[1]
        return self.log_weights + log_det_factors(self.white) + self.shift + log_start(self.dofs, dim)


def log_start(dofs: np.ndarray, dim: int) -> np.ndarray:
    """log Γ((ν+d)/2) − log Γ(ν/2) − d/2 log(νπ); the normal's −d/2 log 2π at ν = ∞."""
    found = np.full(len(dofs), -0.5 * dim * LOG_TWO_PI)
    finite = np.isfinite(dofs)
    nu = dofs[finite]
    found[finite] = gammaln(0.5 * (nu + dim)) - gammaln(0.5 * nu) - 0.5 * dim * np.log(np.pi * nu)
    return found


def log_tails(distance: np.ndarray, known: np.ndarray, dofs: np.ndarray) -> np.ndarray:
    """Log densities at squared distances (n, K) of rows with `known` columns, without −½ log|2πΣ|, which a normal has too."""
    found = np.empty_like(distance)
    for dim in np.unique(known):
        rows = known == dim
        level = log_start(dofs, int(dim)) + 0.5 * dim * LOG_TWO_PI
        with np.errstate(invalid="ignore"):
            heavy = -0.5 * (dofs + dim) * np.log1p(distance[rows] / dofs)
        found[rows] = level + np.where(np.isfinite(dofs), heavy, -0.5 * distance[rows])
    return found


@dataclass(frozen=True)
class MixtureSums:
    """Sums over rows. Moments are about the components' current means, where nothing cancels."""

    log_likelihood: float
    mass: np.ndarray
    """Σ r, (K,): rows in each component."""
    weight: np.ndarray
    """Σ r u, (K,)."""
    first: np.ndarray
    """Σ r u (x − μ), (K, d)."""
    scatter: np.ndarray
    """Σ r u (x − μ)(x − μ)ᵀ, (K, d, d), or its diagonal (K, d)."""
    slope: np.ndarray
    """∂ log-likelihood / ∂ν, (K,); where ν = ∞, the slope in 1/ν."""
    curve: np.ndarray
    """Second derivatives in ν (K,); its last entry, K + 1 in all, is the one for a ν that all components share."""

    def __add__(self, other: MixtureSums) -> MixtureSums:
        return MixtureSums(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


class Pass:
    """A kernel laid out over blocks: distances and log densities of a block at a time."""

    def __init__(self, kernel: Densities, rows: int) -> None:
        self.kernel = kernel
        size, dim = kernel.means.shape
        self.dim = dim
        self.block = min(rows, block_size(kernel))
        self.constants = kernel.constants[:, None]
        finite = np.isfinite(kernel.dofs)
        self.finite, self.all_finite, self.none_finite = finite, bool(finite.all()), not finite.any()
        nu = np.where(finite, kernel.dofs, 1.0)[:, None]
        self.inverse = np.where(finite[:, None], 1.0 / nu, 0.0)
        self.power = np.where(finite[:, None], 0.5 * (nu + dim), 0.0)
        self.half = np.where(finite[:, None], 0.0, 0.5)
        self.inflation = np.broadcast_to(kernel.inflation, (size,))
        self.off = np.empty((size, dim, self.block))
        self.spun = np.empty((dim, self.block))
        self.distance = np.empty((size, self.block))

    def blocks(self, X: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Slices of rows with each block laid out column by column."""
        for start in range(0, len(X), self.block):
            part = slice(start, min(start + self.block, len(X)))
            yield part, np.ascontiguousarray(X[part].T)

    def look(self, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Log densities (K, B) with weights, squared distances, and log(1 + δ/ν), None if all are normal."""
        count = columns.shape[1]
        distance, spun = self.distance[:, :count], self.spun[:, :count]
        for k, (mean, white) in enumerate(zip(self.kernel.means, self.kernel.white)):
            off = self.off[k, :, :count]
            np.subtract(columns, mean[:, None], out=off)
            if white.ndim == 2:
                np.matmul(white.T, off, out=spun)
            else:
                np.multiply(off, white[:, None], out=spun)
            np.einsum("ij,ij->j", spun, spun, out=distance[k])
            if self.inflation[k]:
                distance[k] += self.inflation[k]
        if self.none_finite:
            return self.constants - 0.5 * distance, distance, None
        logs = distance * self.inverse
        np.log1p(logs, out=logs)
        density = self.constants - self.power * logs
        if not self.all_finite:
            density -= self.half * distance
        return density, distance, logs


def shares(density: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log density of each row, and the components' shares in it (in place of `density`)."""
    top = density.max(axis=0)
    density -= top
    np.exp(density, out=density)
    total = density.sum(axis=0)
    density /= total
    return top + np.log(total), density


def block_size(kernel: Densities) -> int:
    """Rows whose distances from all components fit the cache."""
    return int(max(256, BLOCK_NUMBERS // kernel.means.size))


def collect(X: np.ndarray | Rows, kernel: Densities, *, fit_dof: bool) -> MixtureSums:
    """All sums that one step of the fit needs, over rows in memory or in any store."""
    found = in_blocks(X, kernel).map(BlockPass(_block_sums), (kernel, fit_dof)).sums
    return MixtureSums(**{**found, "log_likelihood": float(found["log_likelihood"])})


class BlockPass:
    """A pass over blocks; theta is (what rows are seen by, what else is asked), and `look` gives sums and values by row.

    A block's arrays are used again for the next, by the same thread, as long as the components are the same.
    """

    def __init__(self, look: Callable[[Pass, np.ndarray, Any], tuple[dict[str, Any], dict[str, Any]]]) -> None:
        self.look = look

    def __reduce__(self) -> Any:
        return BlockPass, (self.look,)

    def __call__(self, theta: Any, data: Any, weight: Any, state: Any) -> tuple[dict[str, Any], dict[str, Any], None]:
        kernel, asked = theta
        if getattr(_own, "kernel", None) is not kernel:
            _own.kernel, _own.over = kernel, Pass(kernel, block_size(kernel))
        sums, by_row = self.look(_own.over, np.ascontiguousarray(data[0].T), asked)
        return sums, by_row, None


_own = threading.local()


def _block_sums(over: Pass, columns: np.ndarray, fit_dof: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    kernel = over.kernel
    return sum_block(over, columns, DofRates(kernel.dofs, kernel.means.shape[1]) if fit_dof else None), {}


def _block_seen(over: Pass, columns: np.ndarray, asked: None) -> tuple[dict[str, Any], dict[str, Any]]:
    density, _, _ = over.look(columns)
    label = density.argmax(axis=0)
    return {}, {"label": label, "evidence": shares(density)[0]}


def _block_densities(over: Pass, columns: np.ndarray, asked: None) -> tuple[dict[str, Any], dict[str, Any]]:
    return {}, {"density": over.look(columns)[0].T.copy()}


def in_blocks(X: np.ndarray | Rows, kernel: Densities) -> Rows:
    """A table as rows in blocks that suit the components."""
    return (X if isinstance(X, Rows) else as_rows(X)).cut_into(block_size(kernel))


def as_rows(X: np.ndarray) -> ArrayRows:
    """A table as rows that all count once."""
    return ArrayRows((X,), np.broadcast_to(1.0, len(X)), labels=("X",), padded=False)


def sum_block(
    over: Pass, columns: np.ndarray, rates: DofRates | None, share: np.ndarray | None = None
) -> dict[str, Any]:
    """The sums of one block, by name; shares of the components (K, B) that a chain of states has found may be given."""
    density, distance, logs = over.look(columns)
    evidence = np.zeros(1)
    if share is None:
        evidence, share = shares(density)
    size, dim = over.kernel.means.shape
    count = columns.shape[1]
    if logs is None:
        pull, weight = None, share
    else:
        # u = (ν + d)/(ν + δ), one where ν is infinite
        pull = (1.0 + dim * over.inverse) / (1.0 + over.inverse * distance)
        weight = share * pull
    first = np.empty((size, dim))
    scatter = np.empty((size, dim, dim) if over.kernel.white.ndim == 3 else (size, dim))
    weighed = over.spun[:, :count]
    for k in range(size):
        off = over.off[k, :, :count]
        np.multiply(off, weight[k], out=weighed)
        first[k] = weighed.sum(axis=1)
        if scatter.ndim == 3:
            np.matmul(weighed, off.T, out=scatter[k])
        else:
            np.einsum("ij,ij->i", weighed, off, out=scatter[k])
    slope, curve = np.zeros(size), np.zeros(size + 1)
    if rates is not None:
        slope, curve = rates.sums(share, distance, logs, pull)
    return {
        "log_likelihood": evidence.sum(),
        "mass": share.sum(axis=1),
        "weight": weight.sum(axis=1),
        "first": first,
        "scatter": scatter,
        "slope": slope,
        "curve": curve,
    }


class DofRates:
    r"""First and second derivatives of the rows' log-likelihood in each :math:`\nu`, all else held.

    With :math:`g = \partial\log t/\partial\nu` the second derivative of a row is :math:`r g' + r(1 - r)g^2` for a
    component's own :math:`\nu`, and :math:`\sum_k r_k(g_k' + g_k^2) - (\sum_k r_k g_k)^2` for a common one.
    """

    def __init__(self, dofs: np.ndarray, dim: int) -> None:
        self.finite = np.isfinite(dofs)[:, None]
        self.nu = nu = np.where(self.finite, dofs[:, None], 1.0)
        self.dim = dim
        self.level = 1.0 + digamma(0.5 * (nu + dim)) - digamma(0.5 * nu)
        self.bend = 0.5 * (polygamma(1, 0.5 * (nu + dim)) - polygamma(1, 0.5 * nu)) + 1.0 / nu

    def sums(
        self, share: np.ndarray, distance: np.ndarray, logs: np.ndarray | None, pull: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Slopes (K,) and curvatures (K + 1,) of a block."""
        if logs is None or pull is None or not self.finite.all():
            d = self.dim
            near = np.minimum(distance, 1e150)
            at_normal = 0.25 * near * (near - 2.0 * d) + 0.25 * d * (d - 2.0)
        if logs is None or pull is None:
            return np.einsum("kb,kb->k", share, at_normal), np.zeros(len(self.nu) + 1)
        rate = 0.5 * (self.level - logs - pull)
        if not self.finite.all():
            rate = np.where(self.finite, rate, 0.0)
        part = share * rate
        slope = part.sum(axis=1)
        bend = 0.5 * (self.bend - pull * (2.0 - pull) / (self.nu + self.dim))
        own = np.einsum("kb,kb->k", share, bend)
        squares = np.einsum("kb,kb->k", part, rate)
        curve = np.append(own + squares - np.einsum("kb,kb->k", part, part), 0.0)
        together = part.sum(axis=0)
        curve[-1] = own.sum() + squares.sum() - together @ together
        if not self.finite.all():
            slope = np.where(self.finite[:, 0], slope, np.einsum("kb,kb->k", share, at_normal))
        return slope, curve


@dataclass(frozen=True)
class RowsSeen:
    """What each row gets from fitted components."""

    evidence: np.ndarray
    """Log density, (n,)."""
    label: np.ndarray
    """The most probable component, (n,)."""


@on_one_thread
def see(X: np.ndarray | Rows, kernel: Densities) -> RowsSeen:
    """Evidence and label of every row."""
    found = in_blocks(X, kernel).map(BlockPass(_block_seen), (kernel, None)).by_unit
    return RowsSeen(found["evidence"], found["label"])


@on_one_thread
def log_densities(X: np.ndarray | Rows, kernel: Densities) -> np.ndarray:
    """Log density of every row under every component, weights included, (n, K)."""
    return in_blocks(X, kernel).map(BlockPass(_block_densities), (kernel, None)).by_unit["density"]
