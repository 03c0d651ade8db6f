r"""Which shapes may components have? Scale matrices of four kinds, from sums of squares to factors and back.

Inside, a shape is a *whitener*: a matrix :math:`U` (K, d, d) with :math:`U U^\top = \Sigma^{-1}`, or a vector (K, d) where
matrices are diagonal, so that the distance of a row is :math:`|U_k^\top(x - \mu_k)|^2` whatever the kind. The public
arrays have scikit-learn's shapes: full (K, d, d), tied (d, d), diag (K, d), spherical (K,).
"""

from __future__ import annotations

import numpy as np

from robustly.errors import FitError, ModelError

KINDS = ("full", "tied", "diag", "spherical")


def has_matrices(kind: str) -> bool:
    """Whether components of this kind may be tilted."""
    return kind in ("full", "tied")


def public_shape(kind: str, size: int, dim: int) -> tuple[int, ...]:
    """Shape of `covariances_`."""
    return {"full": (size, dim, dim), "tied": (dim, dim), "diag": (size, dim), "spherical": (size,)}[kind]


def pooled(kind: str, scatter: np.ndarray, mass: np.ndarray, floor: np.ndarray) -> np.ndarray:
    """Covariances (public shape) from sums of squares about the means, (K, d, d) or (K, d), and the masses in them."""
    if kind == "tied":
        found = scatter.sum(axis=0) / mass.sum()
        found.flat[:: len(found) + 1] += floor
        return found
    found = scatter / mass.reshape(-1, *([1] * (scatter.ndim - 1)))
    if kind == "full":
        found[:, np.arange(len(floor)), np.arange(len(floor))] += floor
        return found
    found = found + floor
    return found.mean(axis=1) if kind == "spherical" else found


def factor(kind: str, covariances: np.ndarray) -> np.ndarray:
    """scikit-learn's `precisions_cholesky_`: upper factors of the inverses, in the public shape."""
    if not has_matrices(kind):
        if not np.all(covariances > 0) or not np.isfinite(covariances).all():
            raise _collapsed(
                int(np.argmax(~(np.atleast_2d(covariances) > 0).reshape(len(covariances), -1).all(axis=1)))
            )
        return 1.0 / np.sqrt(covariances)
    stack = covariances if kind == "full" else covariances[None]
    try:
        lower = np.linalg.cholesky(stack)
    except np.linalg.LinAlgError as error:
        raise _collapsed(next(k for k, matrix in enumerate(stack) if not _has_factor(matrix))) from error
    if not np.isfinite(lower).all():
        raise _collapsed(int(np.argmax(~np.isfinite(lower).all(axis=(1, 2)))))
    found = np.swapaxes(_inverse(lower), 1, 2)
    return found if kind == "full" else found[0]


def _has_factor(matrix: np.ndarray) -> bool:
    try:
        return bool(np.isfinite(np.linalg.cholesky(matrix)).all())
    except np.linalg.LinAlgError:
        return False


def _inverse(lower: np.ndarray) -> np.ndarray:
    """Inverses of lower triangular matrices, row by row for all of them at once.

    A triangular solve of LAPACK on threads takes milliseconds for matrices of this size.
    """
    found = np.zeros_like(lower)
    for i in range(lower.shape[1]):
        found[:, i, : i + 1] = -(lower[:, i, None, :i] @ found[:, :i, : i + 1])[:, 0]
        found[:, i, i] = 1.0
        found[:, i] /= lower[:, i, i, None]
    return found


def _collapsed(k: int) -> FitError:
    return FitError(
        f"component {k} has collapsed: its rows lie in a plane or at a point, and its covariance has no inverse. Use fewer "
        "components, raise reg_covar, drop duplicated columns, or choose a simpler covariance_type."
    )


def whitener(kind: str, factors: np.ndarray, size: int, dim: int) -> np.ndarray:
    """The factors as (K, d, d) or (K, d), whatever the kind."""
    if kind == "tied":
        return np.broadcast_to(factors, (size, dim, dim))
    if kind == "spherical":
        return np.broadcast_to(factors[:, None], (size, dim))
    return factors


def log_det_factors(white: np.ndarray) -> np.ndarray:
    """log |U_k|: minus half the log determinant of each covariance."""
    diagonal = np.diagonal(white, axis1=1, axis2=2) if white.ndim == 3 else white
    return np.log(diagonal).sum(axis=1)


def precisions_of(kind: str, factors: np.ndarray) -> np.ndarray:
    """Inverses of the covariances, in the public shape."""
    return factors @ np.swapaxes(factors, -1, -2) if has_matrices(kind) else factors**2


def factor_of_precisions(kind: str, precisions: np.ndarray) -> np.ndarray:
    """Factors of inverses that a user gave; those of full and tied kinds are upper triangular."""
    if not has_matrices(kind):
        if not np.all(precisions > 0):
            raise ModelError("precisions_init holds a value that is not positive.")
        return np.sqrt(precisions)
    try:
        # U Uᵀ with U upper triangular: the Cholesky factor of the matrix read backwards, read backwards.
        lower = np.linalg.cholesky(precisions[..., ::-1, ::-1])
    except np.linalg.LinAlgError as error:
        raise ModelError("precisions_init holds a matrix that is not positive definite.") from error
    return lower[..., ::-1, ::-1]


def covariances_of(kind: str, factors: np.ndarray) -> np.ndarray:
    """Covariances from factors of their inverses, in the public shape."""
    if not has_matrices(kind):
        return factors**-2.0
    inverse = np.linalg.inv(factors)
    return np.swapaxes(inverse, -1, -2) @ inverse


def matrices(kind: str, covariances: np.ndarray, size: int, dim: int) -> np.ndarray:
    """Covariances of any kind as (K, d, d)."""
    if kind == "full":
        return covariances
    if kind == "tied":
        return np.broadcast_to(covariances, (size, dim, dim))
    diagonal = covariances if kind == "diag" else np.broadcast_to(covariances[:, None], (size, dim))
    return diagonal[:, :, None] * np.eye(dim)


def free_numbers(kind: str, size: int, dim: int) -> int:
    """How many numbers the covariances have."""
    return {
        "full": size * dim * (dim + 1) // 2,
        "tied": dim * (dim + 1) // 2,
        "diag": size * dim,
        "spherical": size,
    }[kind]
