"""Are a mixture's settings ones it can follow? Checked before any work, each complaint with what was expected."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np

from robustly.errors import ModelError
from robustly.mixture.covariance import KINDS, public_shape
from robustly.mixture.start import STARTS, column_spread

RELATIVE_FLOOR = 1e-6


def check_settings(model: Any) -> None:
    """Raise a ModelError for a setting that cannot be followed."""
    for name, least in (("n_components", 1), ("max_iter", 0), ("n_init", 1), ("verbose_interval", 1)):
        value = getattr(model, name)
        if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
            raise ModelError(f"{name} is a whole number of {least} or more; {value!r} came.")
    if model.covariance_type not in KINDS:
        raise ModelError(f"covariance_type is one of {', '.join(KINDS)}; {model.covariance_type!r} came.")
    if model.init_params not in STARTS:
        raise ModelError(f"init_params is one of {', '.join(STARTS)}; {model.init_params!r} came.")
    if not _number(model.tol) or not 0 <= model.tol < np.inf:
        raise ModelError(f"tol is a number of 0 or more; {model.tol!r} came.")
    if model.reg_covar is not None and (not _number(model.reg_covar) or not 0 <= model.reg_covar < np.inf):
        raise ModelError(f"reg_covar is None or a number of 0 or more; {model.reg_covar!r} came.")
    if model.dof != "fit" and (not _number(model.dof) or not model.dof > 0):
        raise ModelError(f'dof is "fit", a positive number, or numpy.inf for a Gaussian mixture; {model.dof!r} came.')


def _number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and not np.isnan(float(value))


def floor_of(X: np.ndarray, kind: str, reg_covar: float | None) -> np.ndarray:
    """What is added to the variances of each column."""
    if reg_covar is not None:
        return np.full(X.shape[1], float(reg_covar))
    variance = column_spread(X) ** 2
    if kind == "spherical":
        variance = np.full(X.shape[1], np.median(variance))
    return RELATIVE_FLOOR * variance


def check_given(model: Any, dim: int) -> dict[str, np.ndarray | None]:
    """The user's start values as arrays, in their shapes."""
    size = model.n_components
    shapes = {
        "weights": (size,),
        "means": (size, dim),
        "precisions": public_shape(model.covariance_type, size, dim),
    }
    found: dict[str, np.ndarray | None] = {}
    for name, shape in shapes.items():
        value = getattr(model, f"{name}_init")
        if value is None:
            found[name] = None
            continue
        array = np.array(value, dtype=float)
        if array.shape != shape or not np.isfinite(array).all():
            raise ModelError(
                f"{name}_init is an array of shape {shape} of finite numbers here; one of shape {array.shape} came."
            )
        found[name] = array
    weights = found["weights"]
    if weights is not None and (weights.min() < 0 or abs(weights.sum() - 1) > 1e-6):
        raise ModelError(f"weights_init are shares of 0 or more that add up to 1; these add up to {weights.sum():.6g}.")
    return found
