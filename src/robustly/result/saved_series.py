"""Does the file of a series or of a hidden Markov model hold what its result needs? Looked at before anything is built."""

from __future__ import annotations

import numpy as np

from robustly.result.saved_values import (
    Arrays,
    Meta,
    array_in,
    check_components,
    check_estimates,
    check_posteriors,
    check_wide,
    list_in,
    need,
    need_fitted_names,
    need_shares,
    number_in,
    settings_in,
    text_in,
    texts_in,
)

# Whose rates of acceptance a chain of marks tells.
MOVES = {"turn", "swap", "walk", "trade"}


def check_series_fit(meta: Meta, arrays: Arrays) -> None:
    steps = check_estimates(meta, arrays)
    need(len(texts_in(meta, "steps")) == steps, "steps have not a name each")
    sites = texts_in(meta, "sites")
    count = len(sites)
    need(count and len(set(sites)) == count, "sites are not names that differ")
    kinds = list_in(meta, "break_sites")
    need(len(kinds) == count and all(isinstance(one, bool) for one in kinds), "break_sites has not a yes or no a site")
    need(all(f"{site}.scale" in meta["parameters"] for site in sites), "a site has no scale")
    for name in ("held", "classical_parameters"):
        need(isinstance(meta[name], dict), f"{name} is not a table")
        need(all(_is_told(value) for value in meta[name].values()), f"{name} holds what is not a number")
    need(set(meta["held"]) <= set(sites), "held names what is not a site")
    need(all(value > 0 for value in meta["held"].values()), "held degrees of freedom are not positive")
    unfitted = {site for site in sites if f"{site}.dof" not in meta["parameters"]}
    need(unfitted == set(meta["held"]), "sites whose degrees of freedom are not told")
    need({"is_bound", "scales"} <= set(meta) and meta["scales"], "is_bound or scales are missing")
    fitted = len(meta["labels"]) - (count - len(unfitted))
    need(len(meta["classical_parameters"]) == fitted, "classical_parameters are not those of the plain model")
    number_in(meta, "classical_log_likelihood")
    need(number_in(meta, "effective_draws") >= 0, "effective_draws is below zero")
    gap = abs(number_in(meta, "bound") - float(arrays["evidence"].sum()))
    need(gap <= 1e-6 * max(1.0, abs(meta["bound"])), "the steps' evidence does not add up to the bound")
    error = meta["log_likelihood_error"]
    need(_is_told(error, or_nan=True) and not error < 0, "log_likelihood_error is not a number of 0 or more")
    need(type(meta["seed"]) is int and meta["seed"] >= 0, "seed is not a whole number of 0 or more")
    observed = arrays["observed"]
    need(observed.dtype.kind == "b" and observed.shape == (steps,), "observed has not a yes or no a step")
    series = arrays["series"]
    need(series.dtype.kind == "f" and series.ndim == 2 and len(series) == steps, "series has not a row a step")
    need(series.shape[1] and not np.isinf(series).any(), "series has no columns, or infinite values")
    need(((~np.isnan(series)).any(axis=1) == observed).all(), "observed does not say which steps have a value")
    for name in ("weights", "factors"):
        need((array_in(arrays, name, (count, steps)) > 0).all(), f"{name} are not positive")
    components = texts_in(meta, "components")
    need("signal" in components, "the component 'signal' is missing")
    for name in components:
        part = array_in(arrays, f"component:{name}", (2, steps))
        need((part[1] >= 0).all(), f"the component {name[:60]!r} has deviations below zero")
    check_posteriors(arrays)
    need(("marks:probability" in arrays) == (meta["marks"] is not None), "marks are not all there")
    if meta["marks"] is not None:
        check_marks(meta, arrays, count, steps)


def check_marks(meta: Meta, arrays: Arrays, count: int, steps: int) -> None:
    """Probabilities of outliers and breaks, and the chain they are from."""
    need_shares(arrays, "marks:probability", (count, steps))
    array_in(arrays, "marks:error", (count, steps), least=0.0)
    for name in ("core", "width"):
        array_in(arrays, f"marks:{name}", (count,), least=0.0)
    need_shares(arrays, "marks:share", (count,))
    need("marks:drawn" in arrays, "marks:drawn is missing")
    drawn = arrays["marks:drawn"]
    need(drawn.dtype.kind == "b" and drawn.ndim == 3, "marks:drawn is not a yes or no a draw, site and step")
    need(drawn.shape == (meta["mark_draws"], count, steps), "marks:drawn has other draws, sites or steps")
    need(isinstance(meta["marks"], dict) and set(meta["marks"]) == MOVES, "marks does not tell how its chain moved")
    need(all(_is_told(value) for value in meta["marks"].values()), "marks holds what is not a number")


def _is_told(value: object, or_nan: bool = False) -> bool:
    """A number, infinity included."""
    return isinstance(value, int | float) and not isinstance(value, bool) and (or_nan or value == value)


def check_hmm(meta: Meta, arrays: Arrays) -> None:
    text_in(meta, "class")
    settings = settings_in(meta, "parameters")
    values = meta["values"]
    need(isinstance(values, dict), "values is not a table")
    need_fitted_names((*values, *arrays))
    size = len(need_shares(arrays, "startprob_", (None,)))
    moves = need_shares(arrays, "transmat_", (size, size))
    for name, total in (("startprob_", arrays["startprob_"].sum()), ("transmat_", moves.sum(axis=1))):
        need(size and np.all(np.abs(total - 1) < 1e-6), f"{name} do not add up to one")
    need(settings.get("n_components") == size, "n_components is not the number of states")
    dim = check_components(settings, arrays, size)
    need(values.get("n_features_in_") == dim, "n_features_in_ is not the number of columns")
    number_in(values, "log_likelihood_")
    need(isinstance(values.get("converged_"), bool), "converged_ is not true or false")
    need(type(values.get("n_iter_")) is int and values["n_iter_"] >= 0, "n_iter_ is not a count")
    need(all(_is_told(one) for one in list_in(values, "history_")), "history_ are not numbers")
    rows = len(need_shares(arrays, "tail_probabilities_", (None,)))
    need(rows, "there are no rows")
    need_shares(arrays, "outlier_probabilities_", (rows,))
    check_wide(values)
