"""How sure are the estimates? Covariances from information or sandwich, intervals on the scale of each number."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from robustly._runtime.threads import on_one_thread, products_on_one_thread
from robustly.errors import IdentifiabilityWarning, ModelError, names

KINDS = ("information", "sandwich", "cluster", "jackknife")
BY_GROUP = ("cluster", "jackknife")
# exp overflows beyond this.
FARTHEST = 700.0
# One over the condition number down to which an inverse by Cholesky is as good as any.
SURE = 1e-10


class Hyperparameters(Mapping[str, Any]):
    """The fitted arguments of every localized site's prior: ``["site"]["argument"]``.

    Where a single value is local, its arguments also answer by their own names: ``["argument"]``. A pair's, whose site is
    understood, are listed by argument; others by site.
    """

    def __init__(self, by_site: Mapping[str, Mapping[str, Any]], by_argument: bool = False) -> None:
        self.by_site = {site: dict(arguments) for site, arguments in by_site.items()}
        only: Mapping[str, Any] = next(iter(self.by_site.values())) if len(self.by_site) == 1 else {}
        self._listed: Mapping[str, Any] = only if by_argument else self.by_site
        self._also: Mapping[str, Any] = self.by_site if by_argument else only

    def __getitem__(self, name: str) -> Any:
        return self._listed[name] if name in self._listed else self._also[name]

    def __contains__(self, name: object) -> bool:
        return name in self._listed or name in self._also

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed)

    def __len__(self) -> int:
        return len(self._listed)

    def __repr__(self) -> str:
        return repr(dict(self._listed))


def nested(flat: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """``{"b.scale": 1}`` as ``{"b": {"scale": 1}}``."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in flat.items():
        if "." in name:
            site, _, argument = name.rpartition(".")
            found.setdefault(site, {})[argument] = value
    return found


def flat(values: Mapping[str, Any]) -> np.ndarray:
    """All numbers end to end."""
    return np.concatenate([np.reshape(v, -1) for v in values.values()]) if values else np.zeros(0)


def by_name(numbers: np.ndarray, like: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of :func:`flat`: numbers in the shapes of `like`."""
    found, place = {}, 0
    for name, value in like.items():
        size = int(np.size(value))
        found[name] = numbers[place : place + size].reshape(np.shape(value))[()]
        place += size
    return found


def labels_of(values: Mapping[str, Any]) -> list[str]:
    """``"rate"``, ``"coef[0]"``, ``"coef[1]"`` …: a name for every number."""
    found = []
    for name, value in values.items():
        shape = np.shape(value)
        found += [name] if shape == () else [f"{name}[{','.join(map(str, i))}]" for i in np.ndindex(*shape)]
    return found


def inverse_information(curve: np.ndarray, labels: Sequence[str]) -> np.ndarray:
    """The covariance of the vector, from the second derivative of the objective; NaN where it is not defined."""
    if not curve.size:
        return np.zeros((0, 0))
    with np.errstate(all="ignore"):
        unit = 1.0 / np.sqrt(np.maximum(np.abs(np.diag(curve)), 1e-300))
        scaled = -curve * unit[:, None] * unit
    if not np.isfinite(scaled).all():
        return _beyond(curve)
    inverse = inverse_if_sure(scaled)
    if inverse is not None:
        inverse *= unit[:, None]
        inverse *= unit
        return inverse
    with products_on_one_thread():
        values, vectors = np.linalg.eigh(scaled)
    if values.min() <= 1e-11 * max(values.max(), 1e-300):
        loose = np.abs(vectors[:, 0]) > 0.3
        which = names(np.asarray(labels)[loose]) if len(labels) == len(loose) else "some parameters"
        warnings.warn(
            f"the data do not tell {which} apart, so their standard errors are not defined (NaN). "
            "Fix one of them or give it a hyperprior.",
            IdentifiabilityWarning,
            stacklevel=5,
        )
        return np.full_like(curve, np.nan)
    with np.errstate(all="ignore"):
        found = (unit[:, None] * vectors / values) @ (vectors.T * unit)
    return found if np.isfinite(found).all() else _beyond(curve)


def _beyond(curve: np.ndarray) -> np.ndarray:
    warnings.warn(
        "the log likelihood's curvature is beyond floating point, so standard errors are not defined (NaN). Divide the data by "
        "a common scale.",
        IdentifiabilityWarning,
        stacklevel=6,
    )
    return np.full_like(curve, np.nan)


@on_one_thread
def inverse_if_sure(matrix: np.ndarray) -> np.ndarray | None:
    """The inverse of a positive definite matrix by its Cholesky factor; None where it has none, or loses digits."""
    from scipy.linalg import lapack

    factor, failed = lapack.dpotrf(matrix)
    if failed or not lapack.dpocon(factor, np.abs(matrix).sum(axis=0).max())[0] > SURE:
        return None
    found = lapack.dpotri(factor, overwrite_c=True)[0]
    return np.triu(found) + np.triu(found, 1).T


def inverse_or_pseudo(matrix: np.ndarray) -> np.ndarray:
    """The inverse of a matrix that is positive definite for most, else its pseudo-inverse."""
    found = inverse_if_sure(matrix) if matrix.size else matrix
    return np.linalg.pinv(matrix) if found is None else found


def written_out(matrix: Any) -> np.ndarray:
    """An array, of one or of a sparse matrix."""
    return matrix.toarray() if hasattr(matrix, "toarray") else np.asarray(matrix)


def sandwich(bread: np.ndarray, scores: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The covariance that stays right when the model is not: information, scores, information."""
    return bread @ ((scores * weight[:, None]).T @ scores) @ bread


def by_clusters(bread: np.ndarray, scores: np.ndarray, weight: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The sandwich of rows that depend on each other within groups, numbered from 0 (Liang & Zeger 1986).

    Corrected for few groups by G/(G − 1) · (n − 1)/(n − p), as is usual.
    """
    count, n, size = int(groups.max()) + 1, float(weight.sum()), scores.shape[1]
    summed = np.zeros((count, size))
    np.add.at(summed, groups, scores * weight[:, None])
    few = count / (count - 1.0) * (n - 1.0) / max(n - size, 1.0)
    return few * bread @ (summed.T @ summed) @ bread


def jackknife(moves: np.ndarray) -> np.ndarray:
    """The covariance by leaving out one group after the other (CR3 of MacKinnon, Nielsen & Webb 2023)."""
    return (len(moves) - 1.0) / len(moves) * moves.T @ moves


def check_kind(kind: str, groups: Any = None) -> None:
    if kind not in KINDS:
        raise ModelError(f'covariance takes "information", "sandwich", "cluster" or "jackknife"; got "{kind}".')
    if (kind in BY_GROUP) != (groups is not None):
        raise ModelError(
            f'the covariance "{kind}" needs groups=..., the group of each row.'
            if groups is None
            else f'groups go with the covariances "cluster" and "jackknife"; got "{kind}".'
        )


def deviations(covariance: np.ndarray) -> np.ndarray:
    """Standard errors."""
    return np.sqrt(np.maximum(np.diag(covariance), 0.0))


def interval(value: float, half: float, scale: str) -> tuple[float, float]:
    """Estimate ± `half` on its own scale, brought back: ends stay where the number can be.

    `scale` is ``real``, ``log`` (positive), ``variance`` (positive, and may be zero), ``logit`` (a share), ``half_logit`` (a share
    below one half) or ``correlation``.
    """
    if np.isnan(half):
        return np.nan, np.nan
    if not np.isfinite(value) or half == 0.0:
        return value, value
    if scale == "variance" and half > 6.0 * value:
        # What may be zero has no logarithm to be symmetric in; its interval begins at zero.
        return 0.0, float(value + half)
    if scale in ("log", "variance") and value > 0:
        stretch = float(np.exp(min(half / value, FARTHEST)))
        return value / stretch, value * stretch
    if scale == "correlation" and -1 < value < 1:
        centre, width = np.arctanh(value), half / (1.0 - value**2)
        return float(np.tanh(centre - width)), float(np.tanh(centre + width))
    top = {"logit": 1.0, "half_logit": 0.5}.get(scale)
    if top is not None and 0 < value < top:
        odds, width = np.log(value / (top - value)), half * top / (value * (top - value))
        low, high = (top / (1.0 + np.exp(np.clip(-end, -FARTHEST, FARTHEST))) for end in (odds - width, odds + width))
        return float(low), float(high)
    return float(value - half), float(value + half)
