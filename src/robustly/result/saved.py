"""What of a fit goes into its file? The same numbers for every model, and beside them whatever its model adds.

Readers stand with the models (:data:`robustly.result.persist.KINDS`); each makes its model and has the rest from
:func:`fields_of`, which also reads the files of 0.1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from robustly.errors import ModelError
from robustly.fit.outcome import Outcome
from robustly.result.estimates import by_name, written_out
from robustly.result.laws import RowPosterior
from robustly.result.outliers import Judgement
from robustly.result.summary import edge_chances
from robustly.rows.labels import RowLabels

if TYPE_CHECKING:
    from robustly.result.fit import Fit


MOST_LABELS = 200_000


def to_saved(fit: Fit) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Meta data and arrays, for :func:`robustly.result.persist.write`."""
    about, arrays = fit.model.to_saved()
    meta = {
        "labels": fit.labels,
        "terms": fit.terms,
        "parameters": list(fit.parameters),
        "shapes": [list(np.shape(value)) for value in fit.parameters.values()],
        "objective": fit.objective,
        "outcome": [fit.outcome.kind, fit.outcome.text, fit.outcome.steps],
        "history": fit.history,
        "approximation": fit.approximation,
        "is_bound": fit.is_bound,
        "notes": list(fit.notes),
        "limits": {s: {a: np.asarray(v).tolist() for a, v in given.items()} for s, given in fit.limits.items()},
        "scales": fit.scales,
        **({} if fit.row_count is None else {"rows": fit.row_count}),
        **_labels_kept(fit),
        **({"freedom": fit.freedom} if fit.freedom else {}),
        **about,
    }
    if chances := edge_chances(fit):
        meta["edge_chances"] = chances
    judged = _judgement(fit)
    if judged is not None:
        meta["judgement"] = {name: getattr(judged, name) for name in ("share", "law", "weights", "doubt", "advice")}
        parts = (("judged_probability", judged.probability), ("judged_tail", judged.tail))
        arrays = {**arrays, **{name: part for name, part in parts if part is not None}}
    arrays = {
        **arrays,
        "values": fit.estimates,
        "vector": fit.vector,
        "jacobian": written_out(fit.jacobian),
        "curve": fit.curve_at_estimate,
        "evidence": fit.evidence,
        "weight": fit.weight,
        **{name: given for name, given in (("aliased", fit.aliased), ("alone", fit.leverage_one)) if given is not None},
        **_by_row(fit),
    }
    return meta, arrays


def _labels_kept(fit: Fit) -> dict[str, Any]:
    """What rows are called, as far as JSON keeps it; a file of millions of names counts its rows from 0 instead."""
    known = fit.row_labels
    if known.labels is None or len(known.labels) > MOST_LABELS:
        return {}
    kept = [one if isinstance(one, str | int) else str(one) for one in known.labels.tolist()]
    gone = [one if isinstance(one, str | int) else str(one) for one in known.dropped]
    places = None if known.kept is None else known.kept.tolist()
    return {"row_labels": {"labels": kept, "kept": places, "dropped": gone}}


def _row_labels(meta: Mapping[str, Any]) -> RowLabels:
    kept = meta.get("row_labels")
    if not kept:
        return RowLabels()
    whole = all(type(one) is int for one in kept["labels"])
    labels = np.array(kept["labels"], dtype=int if whole else object)
    places = None if kept["kept"] is None else np.array(kept["kept"], dtype=int)
    return RowLabels(labels, places, tuple(kept["dropped"]))


def _judgement(fit: Fit) -> Judgement | None:
    """Which rows belong, where a file keeps it."""
    if fit.source is None:
        return fit.saved.get("judgement")
    if "judgement" not in fit.source.keeps and "judgement" not in vars(fit):
        return None
    with contextlib.suppress(ModelError):
        return fit.judgement
    return None


def _by_row(fit: Fit) -> dict[str, np.ndarray]:
    """What the rows would be asked for, as far as they are not kept themselves."""
    posteriors, arrays = fit.saved.get("posteriors", {}), {}
    if fit.source is None:
        arrays = {name: array for name, array in fit.saved.items() if isinstance(array, np.ndarray)}
    else:
        keeps = fit.source.keeps
        if "scored" in keeps:
            arrays["scored"] = fit.saved["scored"] if "scored" in fit.saved else fit.source.scores()
        if "loo_by_row" in keeps:
            arrays["loo_by_row"] = fit.loo_by_row
        # Simulated tail probabilities take long: they are kept if they were asked for. Some laws have none.
        if "tail_probabilities" in keeps and ("tail_probabilities" in vars(fit) or fit.source.has_closed_tails()):
            with contextlib.suppress(ModelError):
                arrays["tail_probabilities"] = fit.tail_probabilities
        if "posteriors" in keeps:
            sites = [s for s in fit.hyperparameters.by_site if s not in fit.limits and fit.source.has_posterior(s)]
            posteriors = {site: fit.posterior(site) for site in sites}
    for site, posterior in posteriors.items():
        arrays |= {f"posterior:{site}:{part}": array for part, array in posterior.arrays().items()}
    return arrays


def fields_of(meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The fields of a :class:`~robustly.result.fit.Fit` that are kept for every model."""
    posteriors: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        if name.startswith("posterior:"):
            site, _, part = name.removeprefix("posterior:").rpartition(":")
            posteriors.setdefault(site, {})[part] = array
    saved: dict[str, Any] = {"posteriors": {site: RowPosterior(**parts) for site, parts in posteriors.items()}}
    saved |= {name: arrays[name] for name in ("scored", "tail_probabilities", "loo_by_row") if name in arrays}
    saved["edge_chances"] = {name: float(chance) for name, chance in meta.get("edge_chances", {}).items()}
    if "judgement" in meta:
        told = meta["judgement"]
        parts = arrays.get("judged_probability"), arrays.get("judged_tail")
        words = told["doubt"], told.get("advice", "")
        saved["judgement"] = Judgement(*parts, told["share"], told["law"], dict(told["weights"]), *words)
    return {
        "parameters": _parameters(meta, arrays),
        "labels": list(meta["labels"]),
        "vector": arrays["vector"],
        "jacobian": arrays["jacobian"],
        "curve": arrays["curve"],
        "objective": meta["objective"],
        "evidence_by_row": arrays["evidence"],
        "weight": arrays["weight"],
        "outcome": Outcome(*meta["outcome"]),
        "history": meta["history"],
        "approximation": meta["approximation"],
        "is_bound": meta.get("is_bound", False),
        "notes": tuple(meta["notes"]),
        "limits": _limits(meta),
        "scales": list(meta.get("scales", ())),
        "terms": list(meta.get("terms", ())),
        "freedom": dict(meta.get("freedom", {})),
        "aliased": arrays.get("aliased"),
        "leverage_one": arrays.get("alone"),
        "row_labels": _row_labels(meta),
        "saved": saved,
    }


def _limits(meta: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {s: {a: np.asarray(v)[()] for a, v in given.items()} for s, given in meta.get("limits", {}).items()}


def _parameters(meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    if "values" not in arrays:  # localize in 0.1
        return {name: arrays[f"parameter:{name}"][()] for name in meta["parameters"]}
    shapes = meta.get("shapes") or [[]] * len(meta["parameters"])
    return by_name(arrays["values"], {name: np.empty(shape) for name, shape in zip(meta["parameters"], shapes)})
