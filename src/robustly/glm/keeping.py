"""How is a fitted regression kept? Its numbers, what its formula learned, and no code; see :mod:`robustly.result.persist`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from robustly.errors import ModelError, PersistError
from robustly.fit.outcome import Outcome
from robustly.glm import formula_saved
from robustly.glm.families import FAMILIES, Family, as_family
from robustly.glm.local import Classical, Noiseless, Shifted, law_of
from robustly.glm.predictive import Fitted
from robustly.glm.result import GLMFit


def to_saved(fit: GLMFit) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Meta data and arrays, for :mod:`robustly.result.persist`."""
    family = type(fit.fitted.family)
    known = {made: name for name, made in FAMILIES.items()}
    meta = {
        "labels": fit.labels,
        "terms": fit.terms,
        "parameters": list(fit.parameters),
        "family": known.get(family),
        "family_name": repr(fit.fitted.family),
        "law": type(fit.fitted.law).__name__,
        "asked": fit.asked,
        "intercept": fit.fitted.intercept,
        "objective": fit.objective,
        "outcome": [fit.outcome.kind, fit.outcome.text, fit.outcome.steps],
        "history": fit.history,
        "approximation": fit.approximation,
        "notes": list(fit.notes),
        "formula": None if fit.formula is None else fit.formula.to_saved(),
        "by_formula": fit.by_formula,
    }
    arrays = {
        "vector": fit.vector,
        "jacobian": fit.jacobian,
        "curve": fit.curve,
        "evidence": fit.evidence,
        "weight": fit.weight,
        "phi": fit.fitted.phi,
        "coefficients": fit.fitted.coefficients,
        "aliased": fit.aliased,
        "alone": fit.alone,
        "values": fit._values,
    }
    if fit.source is not None:
        arrays |= {"scored": fit.source.scores(), "loo_by_row": fit.loo_by_row}
        with contextlib.suppress(ModelError):  # A user's own family may have no distribution function.
            arrays["tail_probabilities"] = fit.tail_probabilities
    else:
        arrays |= {n: a for n, a in (("scored", fit.scored), *fit.saved.items()) if isinstance(a, np.ndarray)}
    return meta, arrays


def from_saved(meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray], family: Family | None = None) -> GLMFit:
    """A fit as :meth:`GLMFit.save` wrote it; a user's own family has to be given again."""
    if meta["family"] is None and family is None:
        raise PersistError(
            f"this fit was made with the family {meta['family_name']}, and no code is stored. Give it again: "
            "rb.load(path, family=...)."
        )
    chosen = as_family(meta["family"] if family is None else family)
    asked = meta["asked"]
    laws = {
        "Classical": lambda: Classical(chosen),
        "Shifted": lambda: Shifted(chosen),
        "Noiseless": lambda: Noiseless(chosen, asked["prior"]),
    }
    law = laws.get(meta["law"], lambda: law_of(chosen, asked["local"], asked["prior"]))()
    formula = formula_saved.from_saved(meta["formula"]) if meta.get("formula") else None
    if type(law).__name__ != meta["law"] or len(law.names) != len(arrays["phi"]):
        raise PersistError(f"the file holds numbers of another law than its {meta['law'][:60]!r}. Save the fit again.")
    if formula is not None and formula.side.columns != meta["terms"]:
        raise PersistError("the formula kept in the file has other columns than the fit. Save the fit again.")
    return GLMFit(
        parameters=dict(zip(meta["parameters"], arrays["values"])),
        labels=list(meta["labels"]),
        vector=arrays["vector"],
        jacobian=arrays["jacobian"],
        curve=arrays["curve"],
        objective=meta["objective"],
        evidence_by_row=arrays["evidence"],
        weight=arrays["weight"],
        outcome=Outcome(*meta["outcome"]),
        history=meta["history"],
        approximation=meta["approximation"],
        notes=tuple(meta["notes"]),
        scored=arrays.get("scored"),
        saved={name: arrays[name] for name in ("tail_probabilities", "loo_by_row") if name in arrays},
        fitted=Fitted(law, arrays["phi"], arrays["coefficients"], meta["intercept"]),
        terms=list(meta["terms"]),
        asked=asked,
        aliased=arrays["aliased"],
        alone=arrays.get("alone", np.zeros(0, dtype=int)),
        formula=formula,
        by_formula=meta.get("by_formula", formula is not None),
    )
