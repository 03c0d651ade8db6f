"""Does a file hold what its kind of result needs? Lengths, types and ranges, looked at once before anything is built.

Every check is about values that an unharmed file always has, so a result that passes can be used like one that was just
fitted. Names that a check does not know are left to the function that rebuilds the result.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from robustly.result.saved_series import check_hmm, check_series_fit
from robustly.result.saved_values import (
    Arrays,
    Meta,
    array_in,
    check_components,
    check_estimates,
    check_posteriors,
    check_search,
    check_wide,
    is_finite,
    list_in,
    need,
    need_fitted_names,
    need_shares,
    number_in,
    settings_in,
    text_in,
    texts_in,
)


def check(kind: str, meta: Meta, arrays: Arrays) -> None:
    """Raise a ValueError that says what is wrong."""
    CHECKS.get(kind, lambda *_: None)(meta, arrays)


# ---------------------------------------------------------------------- by kind


def check_fit(meta: Meta, arrays: Arrays) -> None:
    check_estimates(meta, arrays)
    if "values" not in arrays:  # 0.1 had an array for each parameter
        told = 0
        for name in texts_in(meta, "parameters"):
            value = array_in(arrays, f"parameter:{name}", None)
            need(value.ndim == 0 or name not in meta["labels"], f"{name[:80]} is not one number, as its label says")
            told += value.size
        need(told == len(meta["labels"]), "the parameters and their labels differ in number")
    need(len(texts_in(meta, "scales")) == len(meta["labels"]), "the scales and the labels differ in number")
    call = meta["call"]
    need(call is None or isinstance(call, dict), "call is not a table")
    if call is not None and call.get("sites") == [] and "arguments" not in call:  # a row model given as functions
        call = None
    if call is not None:
        texts_in(call, "sites")
        need(call["rows"] is None or texts_in(call, "rows") is not None, "rows")
        need(call["plate"] is None or isinstance(call["plate"], str), "plate is not a name")
        need(
            not call["sites"] or {"arguments", "first_row"} <= set(call),
            "arguments or first_row are missing",
        )
        if "arguments" in call:
            need(
                all(isinstance(one, list) and len(one) == 4 for one in list_in(call, "arguments")),
                "arguments are not fours",
            )
            list_in(call, "first_row")
    check_posteriors(arrays)


def check_glm(meta: Meta, arrays: Arrays) -> None:
    rows = check_estimates(meta, arrays)
    labels, terms = meta["labels"], texts_in(meta, "terms")
    need(len(texts_in(meta, "parameters")) == len(labels), "the parameters and their labels differ in number")
    array_in(arrays, "values", (len(labels),), finite=False)
    array_in(arrays, "coefficients", (len(terms),))
    array_in(arrays, "phi", (None,), finite=False)
    need(
        arrays["aliased"].dtype.kind == "b" and arrays["aliased"].shape == (len(terms),),
        "aliased is not one yes or no a term",
    )
    given = arrays.get("alone", np.zeros(0, dtype=int))
    need(given.ndim == 1 and given.dtype.kind in "iu", "alone is not a list of rows")
    need(not given.size or (given.min() >= 0 and given.max() < rows), "alone names rows that are not there")
    if "loo_by_row" in arrays:
        array_in(arrays, "loo_by_row", (rows,))
    check_posteriors(arrays, (rows,))
    need(meta["family"] is None or isinstance(meta["family"], str), "family is not a name")
    text_in(meta, "law")
    text_in(meta, "approximation")
    need(isinstance(meta["intercept"], bool), "intercept is not true or false")
    need(not meta["intercept"] or terms[:1] == ["Intercept"], "the first term is not the intercept")
    asked = meta["asked"]
    need(isinstance(asked, dict) and {"local", "prior"} <= set(asked), "asked does not say what was asked")
    need(asked["local"] is None or isinstance(asked["local"], str), "local is not a name")
    need(asked["prior"] is None or isinstance(asked["prior"], str), "prior is not a name")
    need(isinstance(meta.get("by_formula", False), bool), "by_formula is not true or false")
    check_row_labels(meta.get("row_labels"), rows)
    need(meta.get("response") is None or _is_checksum(meta["response"]), "response is not a checksum")
    needs = meta.get("needs", [])
    need(
        isinstance(needs, list) and all(one in ("offset", "exposure", "trials") for one in needs), "needs are not known"
    )


def check_row_labels(kept: Meta | None, rows: int) -> None:
    if kept is None:
        return
    need(isinstance(kept, dict) and {"labels", "kept", "dropped"} <= set(kept), "row_labels are not a table")
    for name in ("labels", "dropped"):
        need(
            all(isinstance(one, str) or type(one) is int for one in list_in(kept, name)),
            f"{name} of rows are not names",
        )
    need(len(kept["labels"]) == rows, "row_labels are not as many as the rows")
    places = kept["kept"]
    need(
        places is None
        or (isinstance(places, list) and len(places) == rows and all(type(one) is int for one in places)),
        "kept are not places of rows",
    )


def check_grouped(meta: Meta, arrays: Arrays) -> None:
    groups = check_estimates(meta, arrays)
    labels, terms = meta["labels"], texts_in(meta, "terms")
    need(len(texts_in(meta, "parameters")) == len(labels), "the parameters and their labels differ in number")
    array_in(arrays, "values", (len(labels),), finite=False)
    array_in(arrays, "coefficients", (len(terms),))
    array_in(arrays, "phi", (None,), finite=False)
    array_in(arrays, "loo_by_row", (groups,))
    need(arrays["aliased"].dtype.kind == "b" and arrays["aliased"].shape == (len(terms),), "aliased is not by term")
    need(meta["family"] is None or isinstance(meta["family"], str), "family is not a name")
    text_in(meta, "law")
    text_in(meta, "approximation")
    need(isinstance(meta["intercept"], bool), "intercept is not true or false")
    need(type(meta["rows"]) is int and meta["rows"] >= groups, "rows are not as many as the groups")
    freedom = meta.get("freedom", {})
    need(isinstance(freedom, dict) and set(freedom) <= set(labels), "freedom is not about the labels")
    need(all(isinstance(one, int | float) and one > 0 for one in freedom.values()), "freedom is not above 0")
    asked, effects = meta["asked"], meta["effects"]
    need(isinstance(asked, dict) and isinstance(asked["group_law"], str), "asked does not say what was asked")
    need(asked["local"] is None or isinstance(asked["local"], str), "local is not a name")
    need(isinstance(effects, dict), "effects are not a table")
    text_in(effects, "name")
    text_in(effects, "law")
    size = len(texts_in(effects, "terms"))
    texts_in(effects, "groups")
    list_in(effects, "parts")
    need(size >= 1 and len(list_in(effects, "labels")) == groups, "the labels are not as many as the groups")
    need(all(isinstance(one, str | int | float) for one in effects["labels"]), "a label is neither a word nor a number")
    array_in(arrays, "effects:factor", (size, size))
    array_in(arrays, "effects:psi", (None,))
    known = groups
    if "inner" in effects:
        text_in(effects, "inner")
        texts_in(effects, "inner_groups")
        within = list_in(effects, "inner_labels")
        need(all(isinstance(one, str | int | float) for one in within), "a label is neither a word nor a number")
        need(type(effects["outer"]) is int and 1 <= effects["outer"] < size, "outer is not a number of effects")
        owner = array_in(arrays, "effects:owner", (len(within),), least=0.0)
        need(
            bool(np.all((owner < groups) & (owner == np.rint(owner)))), "owner does not say the groups of those within"
        )
        known += len(within)
    array_in(arrays, "effects:mean", (known, size))
    array_in(arrays, "effects:covariance", (known, size, size))
    if "effects:precisions" in arrays:
        array_in(arrays, "effects:precisions", (groups, 2), least=0.0)
    check_posteriors(arrays, (groups, known - groups))


def check_estimator(meta: Meta, arrays: Arrays) -> None:
    need(isinstance(meta["fit"], dict), "fit is not a table")
    (check_grouped if "effects" in meta["fit"] else check_glm)(meta["fit"], arrays)
    text_in(meta, "class")
    settings_in(meta, "params")
    wanted = len(meta["fit"]["terms"]) - int(meta["fit"]["intercept"])
    need(type(meta["features"]) is int and meta["features"] == wanted, "features are not as many as the terms")
    if "feature_names" in meta:
        need(len(texts_in(meta, "feature_names")) == wanted, "feature_names are not as many as the terms")
    need("classes" in meta or "Logistic" not in meta["class"], "classes are missing")
    if "classes" in meta:
        classes = list_in(meta, "classes")
        need(len(classes) == 2 and all(isinstance(one, str | int | float) for one in classes), "classes are not two")


def check_conjugate(meta: Meta, arrays: Arrays) -> None:
    size = check_search(meta, arrays)
    weight = array_in(arrays, "weight", (None,), least=0.0)
    need(size == len(arrays["curve"]) and weight.sum() > 0, "no row counts")
    columns = [name for name in arrays if name.startswith("column:")]
    need(columns, "it has no columns")
    for name in columns:
        values = arrays[name]
        need(values.ndim >= 1 and len(values) == len(weight), f"{name[:80]} has other rows than the weights")
        need(np.isfinite(values).all(), f"{name[:80]} holds values that are not finite")
    text_in(meta, "pair")
    settings_in(meta, "options")
    need(isinstance(meta["had_hyperprior"], bool), "had_hyperprior is not true or false")


def check_mixture(meta: Meta, arrays: Arrays) -> None:
    text_in(meta, "class")
    settings = settings_in(meta, "parameters")
    size = len(array_in(arrays, "weights_", (None,), least=0.0))
    need(size and abs(arrays["weights_"].sum() - 1) < 1e-6, "weights_ do not add up to one")
    dim = check_components(settings, arrays, size)
    kind = settings["covariance_type"]
    array_in(arrays, "precisions_cholesky_", arrays["covariances_"].shape)
    rows = len(array_in(arrays, "surprise_", (None,)))
    need(rows, "there are no rows")
    need_shares(arrays, "tail_probabilities_", (rows,))
    for name, length in (
        ("masses_", size),
        ("mean_precision_", size),
        ("degrees_of_freedom_", 1 if kind == "tied" else size),
    ):
        if name in arrays or meta["class"].startswith("Bayesian"):
            array_in(arrays, name, (length,), least=0.0)
    if "weight_concentration_" in arrays or meta["class"].startswith("Bayesian"):
        process = settings.get("weight_concentration_prior_type") == "dirichlet_process"
        array_in(arrays, "weight_concentration_", (2, size) if process else (size,), least=0.0)
    for name in set(arrays) - {"dofs_"}:
        need(not np.isnan(arrays[name]).any(), f"{name[:80]} holds NaN")
    values, names = meta["values"], meta["names"]
    need(isinstance(values, dict), "values is not a table")
    if "wide_" in values:
        check_wide(values)
        need_shares(arrays, "outlier_probabilities_", (rows,))
    need_fitted_names((*values, *arrays))
    need(values.get("n_features_in_") == dim, "n_features_in_ is not the number of columns")
    need(names is None or len(texts_in(meta, "names")) == dim, "names are not as many as the columns")


def check_topics(meta: Meta, arrays: Arrays) -> None:
    text_in(meta, "model")
    settings_in(meta, "parameters")
    eta = array_in(arrays, "eta", (None, None), least=0.0)
    words, topics = eta.shape
    need(words and topics, "eta has no words or no topics")
    for name, length in (("total", topics), ("alpha", topics), ("share", topics), ("floor", words)):
        array_in(arrays, name, (length,), least=0.0)
    need((arrays["alpha"] > 0).all(), "alpha is not positive")
    number_in(meta, "strength")
    for name in ("vocabulary", "names"):
        need(meta[name] is None or len(texts_in(meta, name)) == words, f"{name} has not as many words as the topics")
    for name in ("history", "validation", "start_history"):
        if name != "start_history" or name in meta:  # 0.1 had none
            need(all(is_finite(one) for one in list_in(meta, name)), f"{name} are not numbers")
    for name in ("n_iter", "documents_seen"):
        need(type(meta[name]) is int and meta[name] >= 0, f"{name} is not a count")
    check_topics_extras(meta, arrays, words, topics)


def check_topics_extras(meta: Meta, arrays: Arrays, words: int, topics: int) -> None:
    """What a model has since 0.1: how it ended, coherence, and what a stream goes on from."""
    need("fitted_tokens" not in meta or is_finite(meta["fitted_tokens"]), "fitted_tokens is not a finite number")
    shared = meta.get("diversity", 0.0)
    need(is_finite(shared) and 0 <= shared <= 1, "diversity is not a share")
    need("evidence" not in meta or isinstance(meta["evidence"], int | float), "evidence is not a number")
    need(isinstance(meta.get("outcome", ""), str), "outcome is not a text")
    need(type(meta.get("stream_seed", 0)) is int, "stream_seed is not a whole number")
    need(("coherence" in arrays) == ("diversity" in meta), "coherence and diversity are not both there")
    since = {"start_history", "evidence", "outcome", "stream_seed", "fitted_tokens"}
    need(since <= set(meta) or not since & set(meta), "what is told of the fit is not all there")
    if "coherence" in arrays:
        found = arrays["coherence"]
        need(found.dtype.kind == "f" and found.shape == (topics,), "coherence has not one number a topic")
        need(not np.isnan(found).all(), "coherence is not known of any topic")
    if "usage" in arrays:
        array_in(arrays, "usage", (words, topics), least=0.0)
    seen = [name for name in ("seen_data", "seen_indices", "seen_indptr") if name in arrays]
    if seen:
        need(len(seen) == 3, "the documents of a stream are not all there")
        data, indices, ends = (arrays[name] for name in seen)
        need(
            data.ndim == indices.ndim == ends.ndim == 1 and len(data) == len(indices),
            "the stream's documents do not fit",
        )
        need(
            indices.dtype.kind in "iu" and ends.dtype.kind in "iu" and len(ends) > 0,
            "the stream's words are not counted",
        )
        need(np.isfinite(data).all() and (data >= 0).all(), "the stream's counts are not counts")
        need(
            ends[0] == 0 and ends[-1] == len(data) and (np.diff(ends) >= 0).all(),
            "the stream's documents do not add up",
        )
        need(
            not len(indices) or (indices.min() >= 0 and indices.max() < words),
            "the stream has words that are not known",
        )
    stream = meta.get("stream")
    need(stream is None or isinstance(stream, dict), "stream is not a table")
    if stream is not None:
        known = {"alpha_terms", "evidence", "words", "documents", "drawn"}
        need(set(stream) <= known, "stream holds numbers that are not known")
        need(all(isinstance(value, bool | int | float) for value in stream.values()), "stream holds what is no number")
        for name, shape in (
            ("table_counts", (words, topics)),
            ("total_terms", (topics,)),
            ("alpha_table_counts", (topics,)),
        ):
            array_in(arrays, name, shape)


def check_categories(meta: Meta, arrays: Arrays) -> None:
    rows = check_estimates(meta, arrays)
    columns, terms, classes = texts_in(meta, "columns"), texts_in(meta, "terms"), list_in(meta, "classes")
    need(len(classes) >= 2, "there are fewer than two classes")
    need(all(isinstance(one, str | int | float) for one in classes), "classes are neither words nor numbers")
    need(len(terms) == len(columns) * (len(classes) - 1), "terms are not by class and column")
    array_in(arrays, "values", (len(meta["labels"]),), finite=False)
    array_in(arrays, "coefficients", (len(classes) - 1, len(columns)))
    aliased = arrays["aliased"]
    need(aliased.dtype.kind == "b" and aliased.shape == (len(terms),), "aliased is not one yes or no a term")
    check_posteriors(arrays, (rows,))
    need(isinstance(meta["intercept"], bool), "intercept is not true or false")
    need(meta["local"] in ("label", None), "local is not what categories have")
    need(isinstance(meta["flip"], float) and 0.0 <= meta["flip"] < 1.0, "flip is no share")
    check_row_labels(meta.get("row_labels"), rows)


def _is_checksum(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and not set(value) - set("0123456789abcdef")


CHECKS: dict[str, Callable[[Meta, Arrays], None]] = {
    "fit": check_fit,
    "glm": check_glm,
    "glm_categories": check_categories,
    "glm_grouped": check_grouped,
    "glm_estimator": check_estimator,
    "conjugate": check_conjugate,
    "mixture": check_mixture,
    "topics": check_topics,
    "series": check_series_fit,
    "hmm": check_hmm,
}
