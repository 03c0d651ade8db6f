"""Are the settings of t components ones a fit can follow? Checked before any work, each complaint with what was expected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from robustly._runtime.settings import check_whole, is_real_number
from robustly.errors import ModelError
from robustly.fit.t_start import column_spread
from robustly.model.scale_matrices import KINDS
from robustly.rows.store import Rows

RELATIVE_FLOOR = 1e-6
# Squares of larger numbers overflow when they are added up.
LARGEST_VALUE = 1e140
# Distances divided by variances below this overflow when they are summed.
LEAST_FLOOR = 1e-200


def check_t_settings(model: Any, counts: Mapping[str, int], normal: str) -> None:
    """Raise a ModelError for a setting that cannot be followed; `counts` has further whole numbers and their least values."""
    for name, least in {"n_components": 1, "max_iter": 0, "n_init": 1, **counts}.items():
        check_whole(name, getattr(model, name), least)
    if not isinstance(model.covariance_type, str) or model.covariance_type not in KINDS:
        raise ModelError(f"covariance_type is one of {', '.join(KINDS)}; got {model.covariance_type!r}.")
    if not is_real_number(model.tol) or not 0 <= model.tol < np.inf:
        raise ModelError(f"tol is a number of 0 or more; got {model.tol!r}.")
    floor = model.reg_covar
    if floor is not None and not (is_real_number(floor) and (floor == 0 or LEAST_FLOOR <= floor < np.inf)):
        raise ModelError(f"reg_covar is None, 0 or a number from {LEAST_FLOOR:g} up; got {floor!r}.")
    fitted = isinstance(model.dof, str) and model.dof == "fit"
    if not fitted and (not is_real_number(model.dof) or not model.dof > 0):
        raise ModelError(f'dof is "fit", a positive number, or numpy.inf for {normal}; got {model.dof!r}.')


def floor_of(X: np.ndarray | Rows, dim: int, kind: str, reg_covar: float | None) -> np.ndarray:
    """What is added to the variances of each of `dim` columns."""
    if reg_covar is not None:
        return np.full(dim, float(reg_covar))
    variance = column_spread(X) ** 2
    if kind == "spherical":
        variance = np.full(dim, np.median(variance))
    return RELATIVE_FLOOR * variance
