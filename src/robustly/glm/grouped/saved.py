"""How is a fitted mixed model kept? Its numbers, what its formulas learned and the labels of its groups; no code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from robustly.errors import PersistError
from robustly.glm.asked import law_of
from robustly.glm.families import Family
from robustly.glm.formula_saved import formula_from_json
from robustly.glm.grouped.design import EffectColumns
from robustly.glm.grouped.effects import effect_law
from robustly.glm.grouped.predictive import GroupEffects
from robustly.glm.grouped.result import FittedMixed
from robustly.glm.local import Classical
from robustly.glm.named import as_family
from robustly.glm.predictive import Fitted
from robustly.result.fit import Fit
from robustly.result.saved import fields_of
from robustly.result.saved_checks import need


def from_saved(meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray], family: Family | None = None) -> Fit:
    """A fit as :meth:`Fit.save` wrote it; a user's own family has to be given again."""
    if meta["family"] is None and family is None:
        raise PersistError(
            f"this fit was made with the family {meta['family_name']}, and no code is stored. Give it again: "
            "rb.load(path, family=...)."
        )
    chosen = as_family(meta["family"] if family is None else family)
    asked = dict(meta["asked"])
    law = Classical(chosen) if meta["law"] == "Classical" else law_of(chosen, asked["local"], "normal")
    need(type(law).__name__ == meta["law"] and len(law.names) == len(arrays["phi"]), "it holds numbers of another law")
    told = meta["effects"]
    formula = formula_from_json(meta["formula"]) if meta["formula"] else None
    parts = tuple(formula_from_json(part) for part in told["parts"])
    need(formula is None or formula.side.columns == meta["terms"], "its formula has other columns than the fit")
    terms = [name for part in parts for name in part.side.columns]
    need(not parts or terms == told["terms"], "its effects have other columns than the fit")
    effects = GroupEffects(
        told["name"],
        tuple(told["terms"]),
        arrays["effects:factor"],
        effect_law(told["law"]),
        arrays["effects:psi"],
        list(told["labels"]),
        lambda: (arrays["effects:mean"], arrays["effects:covariance"]),
        arrays.get("effects:precisions"),
        *(
            (told["inner"], list(told["inner_labels"]), told["outer"], arrays["effects:owner"].astype(int))
            if "inner" in told
            else ()
        ),
    )
    columns = EffectColumns(tuple(told["groups"]), parts, tuple(told.get("inner_groups", ()))) if parts else None
    model = FittedMixed(
        Fitted(law, arrays["phi"], arrays["coefficients"], meta["intercept"]),
        list(meta["terms"]),
        effects,
        asked,
        formula,
        columns,
    )
    fields = fields_of(meta, arrays)
    return Fit(**{**fields, **model.fields(fields["outcome"].kind, fields["labels"]), "row_count": meta["rows"]})
