"""Can these settings and rows be followed, and where does the chain start? Checked before any work."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from robustly.errors import DataError, ModelError
from robustly.fit.t_components import Components, Rules
from robustly.fit.t_settings import LARGEST_VALUE, check_t_settings, floor_of
from robustly.fit.t_start import make_start
from robustly.model import scale_matrices
from robustly.rows.labels import as_numbers, refuse_elsewhere
from robustly.series.baumwelch import Chain, HMMRules

START_DOF = 5.0
# States last for some steps before they change, to begin with.
STAY = 0.8


def check_hmm_settings(model: Any) -> None:
    """Raise a ModelError for a setting that cannot be followed."""
    check_t_settings(model, {}, "normal states")
    for name in ("init_params", "params"):
        value = getattr(model, name)
        if not isinstance(value, str) or set(value) - set("stmc"):
            raise ModelError(f'{name} has letters of "stmc" (start, transitions, means, covariances); got {value!r}.')


def read_rows(X: ArrayLike, lengths: ArrayLike | None, dim: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Rows (T, d) as numbers, NaN for missing, and where each sequence ends."""
    refuse_elsewhere(X, "X")
    try:
        rows = np.array(as_numbers(X, "X"), dtype=np.float64, order="C")
    except (TypeError, ValueError) as error:
        raise DataError(f"X holds something that is not a number: {error}. Encode or drop that column.") from error
    if rows.ndim != 2 or 0 in rows.shape:
        raise DataError(f"X has rows and columns; got shape {rows.shape}. One column is X.reshape(-1, 1).")
    if dim is not None and rows.shape[1] != dim:
        raise DataError(f"X has {rows.shape[1]} columns, and the model was fitted to {dim}.")
    wrong = np.argwhere(np.abs(np.where(np.isnan(rows), 0.0, rows)) > LARGEST_VALUE)
    if len(wrong):
        row, column = wrong[0]
        raise DataError(
            f"X holds {rows[row, column]:.3g} in row {row}, column {column}, which is out of range. Mark it as NaN."
        )
    if lengths is None:
        return rows, np.array([len(rows)])
    sizes = np.atleast_1d(np.asarray(lengths))
    if not np.issubdtype(sizes.dtype, np.integer) or (sizes < 1).any() or sizes.sum() != len(rows):
        raise DataError(f"lengths are whole numbers of 1 or more that add up to the {len(rows)} rows; got {lengths!r}.")
    return rows, np.cumsum(sizes)


def start_chain(model: Any, rows: np.ndarray, random: np.random.RandomState) -> tuple[Chain, HMMRules]:
    """Where EM begins: states from a robust mixture start, and what the user has set."""
    size, dim, kind = model.n_components, rows.shape[1], model.covariance_type
    filled = filled_rows(rows, size)
    rules = Rules(
        kind,
        floor_of(filled, filled.shape[1], kind, model.reg_covar),
        fit_dof=model.dof == "fit",
        tied_dof=model.tied_dof,
    )
    dof = START_DOF if model.dof == "fit" else float(model.dof)
    init = set(model.init_params)
    start, transition = np.full(size, 1.0 / size), np.full((size, size), (1.0 - STAY) / max(size - 1, 1))
    np.fill_diagonal(transition, STAY if size > 1 else 1.0)
    if "s" not in init:
        start = _start_shares(_given(model, "startprob_", (size,)), "startprob_")
    if "t" not in init:
        transition = _start_shares(_given(model, "transmat_", (size, size)), "transmat_")
    given: dict[str, Any] = {}
    if "m" not in init:
        given["means"] = _given(model, "means_", (size, dim))
    states = make_start(filled, size, "robust", rules, random, given, dof)
    if "c" not in init:
        shape = _given(model, "covariances_", scale_matrices.public_shape(kind, size, dim))
        states = Components(kind, states.weights, states.means, shape, scale_matrices.factor(kind, shape), states.dofs)
    return Chain(start, transition, states), HMMRules(rules, model.params, model.tol, model.max_iter)


def filled_rows(rows: np.ndarray, size: int) -> np.ndarray:
    """Rows for the start: complete ones if there are enough, else with medians in the gaps."""
    gaps = np.isnan(rows)
    if gaps.all(axis=0).any():
        column = int(np.argmax(gaps.all(axis=0)))
        raise DataError(f"column {column} of X has no value at all. Drop it.")
    known = rows[~gaps.all(axis=1)]
    if len(known) < max(2 * size, 3):
        raise DataError(
            f"{len(known)} rows have a value for n_components={size}; {max(2 * size, 3)} are needed, two a state and three in all. Lower "
            "n_components or take more rows."
        )
    if (np.nanmax(known, axis=0) == np.nanmin(known, axis=0)).all():
        raise DataError(
            "every column of X is constant: nothing varies that could be fitted. Check which columns were read."
        )
    complete = rows[~gaps.any(axis=1)]
    if len(complete) >= max(10 * size * rows.shape[1], len(known) // 2):
        return complete
    return np.where(np.isnan(known), np.nanmedian(rows, axis=0), known)


def _given(model: Any, name: str, shape: tuple[int, ...]) -> np.ndarray:
    value = getattr(model, name, None)
    if value is None:
        raise ModelError(f'init_params="{model.init_params}" leaves {name} to you: set model.{name} before fit.')
    array = np.array(value, dtype=float)
    if array.shape != shape or not np.isfinite(array).all():
        raise ModelError(f"{name} has shape {shape} and finite numbers here; got shape {array.shape}.")
    return array


def _start_shares(array: np.ndarray, name: str) -> np.ndarray:
    if (array < 0).any() or np.abs(array.sum(axis=-1) - 1.0).max() > 1e-6:
        raise ModelError(f"{name} has shares of 0 or more that add up to 1; these add up to {array.sum(axis=-1)}.")
    return array
