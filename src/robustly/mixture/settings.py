"""Are a mixture's settings ones it can follow? Checked before any work, each complaint with what was expected."""

from __future__ import annotations

from typing import Any

import numpy as np

from robustly._runtime.settings import is_real_number
from robustly.errors import ModelError
from robustly.fit.t_components import Components
from robustly.fit.t_settings import check_t_settings
from robustly.fit.t_start import STARTS
from robustly.mixture.variational import Prior
from robustly.model.scale_matrices import has_matrices, public_shape
from robustly.rows.labels import as_floats


def check_mixture_settings(model: Any) -> None:
    """Raise a ModelError for a setting that cannot be followed."""
    check_t_settings(model, {"verbose_interval": 1}, "a Gaussian mixture")
    if model.init_params not in STARTS:
        raise ModelError(f"init_params is one of {', '.join(STARTS)}; got {model.init_params!r}.")


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
        array = np.array(as_floats(value, f"{name}_init"))
        if array.shape != shape or not np.isfinite(array).all():
            raise ModelError(
                f"{name}_init is an array of shape {shape} of finite numbers here; got one of shape {array.shape}."
            )
        found[name] = array
    weights = found["weights"]
    if weights is not None and (weights.min() < 0 or abs(weights.sum() - 1) > 1e-6):
        raise ModelError(f"weights_init are shares of 0 or more that add up to 1; these add up to {weights.sum():.6g}.")
    return found


def read_prior(model: Any, whole: Components) -> Prior:
    """The prior a user asked for, with what was left out taken from the body of all rows."""
    dim, kind = whole.means.shape[1], model.covariance_type
    process = model.weight_concentration_prior_type == "dirichlet_process"
    if not process and model.weight_concentration_prior_type != "dirichlet_distribution":
        raise ModelError(
            'weight_concentration_prior_type is "dirichlet_process" or "dirichlet_distribution"; '
            f"got {model.weight_concentration_prior_type!r}."
        )
    least = dim - 1.0 if has_matrices(kind) else 0.0
    numbers = {
        "weight_concentration_prior": (1.0 / model.n_components, 0.0),
        "mean_precision_prior": (1.0, 0.0),
        "degrees_of_freedom_prior": (float(dim), least),
    }
    read: dict[str, float] = {}
    for name, (usual, above) in numbers.items():
        value = getattr(model, name)
        if value is not None and (not is_real_number(value) or not above < value < np.inf):
            raise ModelError(f"{name} is a number above {above:g} here; got {value!r}.")
        read[name] = usual if value is None else float(value)
    mean = whole.means[0] if model.mean_prior is None else np.array(model.mean_prior, dtype=float)
    if mean.shape != (dim,) or not np.isfinite(mean).all():
        raise ModelError(f"mean_prior is {dim} finite numbers, one for each column; got shape {mean.shape}.")
    given = model.covariance_prior
    shape = whole.covariances if kind == "tied" else whole.covariances[0]
    if given is not None:
        wanted, shape = np.shape(shape), np.array(given, dtype=float)
        if shape.shape != wanted or not np.isfinite(shape).all() or not _is_positive_definite(shape):
            raise ModelError(
                f'covariance_prior is positive (definite) and of shape {wanted} for covariance_type="{kind}"; '
                f"got shape {shape.shape}."
            )
    return Prior(
        kind,
        process,
        read["weight_concentration_prior"],
        mean,
        read["mean_precision_prior"],
        read["degrees_of_freedom_prior"],
        np.asarray(shape),
        fit_dof=model.dof == "fit",
        tied_dof=model.tied_dof,
    )


def _is_positive_definite(shape: np.ndarray) -> bool:
    if shape.ndim < 2:
        return bool(np.all(shape > 0))
    return bool(np.allclose(shape, shape.T)) and bool(np.linalg.eigvalsh(shape)[0] > 0)
