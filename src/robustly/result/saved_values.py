"""What is every value of an unharmed file like? Numbers, texts and tables of the shapes that are expected, or a ValueError."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from robustly.model.scale_matrices import KINDS, has_matrices, public_shape

Arrays = Mapping[str, np.ndarray]
Meta = Mapping[str, Any]


def need(fine: Any, what: str) -> None:
    if not fine:
        raise ValueError(what)


def check_search(meta: Meta, arrays: Arrays) -> int:
    """How a search ended; gives the number of its parameters."""
    size = len(array_in(arrays, "vector", (None,)))
    need_symmetric(array_in(arrays, "curve", (size, size)), "curve")
    number_in(meta, "objective")
    outcome = list_in(meta, "outcome")
    need(len(outcome) == 3 and isinstance(outcome[0], str) and isinstance(outcome[1], str), "the outcome is not told")
    need(type(outcome[2]) is int, "the outcome has no steps")
    for entry in list_in(meta, "history"):
        need(isinstance(entry, dict), "the history is not made of tables")
        need(
            all(isinstance(one, str | bool | int | float | None) for one in entry.values()), "the history is not plain"
        )
    texts_in(meta, "notes")
    return size


def check_estimates(meta: Meta, arrays: Arrays) -> int:
    """Estimates with their curvature and the evidence by row; gives the number of rows."""
    size = check_search(meta, arrays)
    labels = texts_in(meta, "labels")
    array_in(arrays, "jacobian", (len(labels), size))
    if "values" in arrays:
        check_values(meta, arrays)
    check_telling(meta)
    rows = len(array_in(arrays, "evidence", (None,)))
    need(rows, "there are no rows")
    weight = array_in(arrays, "weight", (rows,), least=0.0)
    need(weight.sum() > 0, "no row counts")
    if "scored" in arrays:
        array_in(arrays, "scored", (rows, size))
    if "tail_probabilities" in arrays:
        tails = array_in(arrays, "tail_probabilities", (rows,), least=0.0)
        need((tails <= 1 + 1e-9).all(), "tail_probabilities are above one")
    if "judgement" in meta:
        check_judgement(meta["judgement"], arrays, rows)
    return rows


def check_judgement(told: Any, arrays: Arrays, rows: int) -> None:
    """Which law judged the rows, and what it says of each."""
    need(isinstance(told, dict), "judgement is not a table")
    text_in(told, "law")
    text_in(told, "doubt")
    need(isinstance(told.get("advice", ""), str), "the advice is not a text")
    share, weights = told.get("share"), told.get("weights")
    need(isinstance(share, int | float) and 0 <= share < 1, "the share of strayed rows is not between 0 and 1")
    need(
        isinstance(weights, dict) and all(isinstance(value, int | float) for value in weights.values()),
        "the weights of the laws are not numbers",
    )
    judged = [name for name in ("judged_probability", "judged_tail") if name in arrays]
    need(judged, "neither probabilities nor tails by row are there")
    for name in judged:
        part = array_in(arrays, name, (rows,), least=0.0)
        need((part <= 1 + 1e-9).all(), f"{name} is above one")


def check_telling(meta: Meta) -> None:
    """What is told of a fit beside its numbers; files of 0.1 have less of it."""
    need("terms" not in meta or texts_in(meta, "terms") is not None, "terms are not texts")
    need(isinstance(meta.get("is_bound", False), bool), "is_bound is not true or false")
    text_in(meta, "approximation")
    if meta.get("scales"):
        need(len(texts_in(meta, "scales")) == len(meta["labels"]), "the scales and the labels differ in number")
    chances = meta.get("edge_chances", {})
    need(isinstance(chances, dict) and set(chances) <= set(meta["labels"]), "edge_chances is not about the labels")
    need(all(isinstance(one, int | float) and 0 <= one <= 1 for one in chances.values()), "edge_chances are no chances")
    limits = meta.get("limits", {})
    need(isinstance(limits, dict), "limits is not a table")
    for site, given in limits.items():
        need(isinstance(given, dict), f"the limits of {site[:60]!r} are not a table")
        for value in given.values():
            need(np.asarray(value).dtype.kind in "biuf", f"the limits of {site[:60]!r} are not numbers")


def check_values(meta: Meta, arrays: Arrays) -> None:
    """Estimates end to end, and the shapes in which they have names."""
    array_in(arrays, "values", (len(meta["labels"]),), finite=False)
    parameters = texts_in(meta, "parameters")
    shapes = list_in(meta, "shapes") if "shapes" in meta else [[] for _ in parameters]
    need(len(shapes) == len(parameters), "the parameters and their shapes differ in number")
    for shape in shapes:
        need(isinstance(shape, list) and all(type(one) is int and one >= 0 for one in shape), "a shape is not sizes")
    told = sum(math.prod(shape) for shape in shapes)
    need(told == len(meta["labels"]), "the parameters and their labels differ in number")


def array_in(
    arrays: Arrays, name: str, shape: tuple[int | None, ...] | None, *, finite: bool = True, least: float | None = None
) -> np.ndarray:
    """An array of real numbers; None in its shape stands for any length. NaN is never fine."""
    need(name in arrays, f"{name[:80]} is missing")
    found = arrays[name]
    need(found.dtype.kind == "f", f"{name[:80]} holds {found.dtype} instead of real numbers")
    if shape is not None:
        same = len(shape) == found.ndim and all(want is None or want == got for want, got in zip(shape, found.shape))
        expected = ", ".join("any" if one is None else str(one) for one in shape)
        need(same, f"{name[:80]} has the shape {found.shape} instead of ({expected})")
        need(
            np.isfinite(found).all() if finite else not np.isnan(found).any(),
            f"{name[:80]} holds values that are not finite",
        )
    else:
        need(not np.isnan(found).any(), f"{name[:80]} holds NaN")
    need(least is None or (found >= least).all(), f"{name[:80]} holds values below {least}")
    return found


def need_symmetric(matrix: np.ndarray, name: str) -> None:
    largest = float(np.abs(matrix).max()) if matrix.size else 0.0
    need(np.abs(matrix - np.swapaxes(matrix, -1, -2)).max(initial=0.0) <= 1e-6 * largest, f"{name} is not symmetric")


def list_in(meta: Meta, name: str) -> list[Any]:
    need(isinstance(meta[name], list), f"{name} is not a list")
    return meta[name]  # type: ignore[no-any-return]


def text_in(meta: Meta, name: str) -> str:
    need(isinstance(meta[name], str), f"{name} is not a text")
    return meta[name]  # type: ignore[no-any-return]


def texts_in(meta: Meta, name: str) -> list[str]:
    need(all(isinstance(one, str) for one in list_in(meta, name)), f"{name} are not texts")
    return meta[name]  # type: ignore[no-any-return]


def number_in(meta: Meta, name: str) -> float:
    need(is_finite(meta[name]), f"{name} is not a finite number")
    return meta[name]  # type: ignore[no-any-return]


def settings_in(meta: Meta, name: str) -> dict[str, Any]:
    """Names and plain values: numbers, texts, and lists of them."""
    found = meta[name]
    need(isinstance(found, dict), f"{name} is not a table")
    for value in found.values():
        plain = isinstance(value, str | bool | int | float | None)
        need(plain or (isinstance(value, list) and np.asarray(value).dtype.kind in "biufU"), f"{name} holds odd values")
    return found  # type: ignore[no-any-return]


def is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def need_shares(arrays: Arrays, name: str, shape: tuple[int | None, ...]) -> np.ndarray:
    """An array of probabilities."""
    found = array_in(arrays, name, shape, least=0.0)
    need((found <= 1 + 1e-9).all(), f"{name} are above one")
    return found


def need_fitted_names(found: Iterable[str]) -> None:
    for name in found:
        fine = name.isidentifier() and name.endswith("_") and not name.startswith("_")
        need(fine, f"{name[:80]!r} is no fitted value")


def check_components(settings: Meta, arrays: Arrays, size: int) -> int:
    """Means, covariances, degrees of freedom and cores of t components; gives the number of columns."""
    dim = array_in(arrays, "means_", (size, None)).shape[1]
    need(dim >= 1, "means_ have no columns")
    dofs = array_in(arrays, "dofs_", (size,), finite=False)
    need((dofs > 0).all(), "dofs_ are not positive")
    kind = settings.get("covariance_type")
    need(kind in KINDS, "covariance_type is not known")
    covariances = array_in(arrays, "covariances_", public_shape(str(kind), size, dim))
    if has_matrices(str(kind)):
        need_symmetric(covariances, "covariances_")
        need((np.linalg.eigvalsh(covariances) > 0).all(), "covariances_ are not positive definite")
    else:
        need((covariances > 0).all(), "covariances_ are not positive")
    array_in(arrays, "core_spread_", (size,), least=0.0)
    return dim


def check_wide(values: Meta) -> None:
    """The law by which rows of components are judged."""
    need(isinstance(values.get("wide_"), dict), "wide_ is not a table")
    need(set(values["wide_"]) == {"share", "width", "weight"}, "wide_ does not tell the law of outliers")
    for name in ("share", "width", "weight"):
        need(number_in(values["wide_"], name) >= 0, f"wide_ has a {name} below zero")
    need(values["wide_"]["share"] <= 1 and values["wide_"]["weight"] <= 1, "wide_ has a share above one")


def check_posteriors(arrays: Arrays, units: Collection[int] = ()) -> None:
    """What is believed of the units' own values, of every site that is kept; `units` says how many there may be, where that is known."""
    for start in {name.rpartition(":")[0] for name in arrays if name.startswith("posterior:")}:
        check_posterior(start, arrays)
        need(not units or len(arrays[f"{start}:mean"]) in units, f"{start} has other rows than the fit")


def check_posterior(start: str, arrays: Arrays) -> None:
    mean = array_in(arrays, f"{start}:mean", None)
    need(mean.ndim >= 1, f"{start} has no rows")
    array_in(arrays, f"{start}:sd", mean.shape, least=0.0)
    levels = array_in(arrays, f"{start}:levels", (None,))
    need((np.diff(levels) > 0).all() and levels.min() > 0 and levels.max() < 1, f"{start} has levels out of order")
    array_in(arrays, f"{start}:quantiles", (*mean.shape, len(levels)))
    others = {name.rpartition(":")[2] for name in arrays if name.rpartition(":")[0] == start}
    need(others == {"mean", "sd", "levels", "quantiles"}, f"{start} has parts that are not known")
