"""How is a fitted regression kept? Its numbers, what its formula learned, and no code; see :mod:`robustly.result.persist`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from robustly.errors import PersistError
from robustly.glm.asked import LocalChoice, law_of
from robustly.glm.contaminated import contaminated_with
from robustly.glm.families import Family
from robustly.glm.formula_saved import formula_from_json
from robustly.glm.local import Classical, Noiseless, Shifted
from robustly.glm.named import as_family
from robustly.glm.predictive import Fitted
from robustly.glm.result import FittedRegression
from robustly.result.fit import Fit
from robustly.result.saved import fields_of

NAMED = ("predictor", "dispersion", "label", "contaminated", None)


def from_saved(
    meta: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    family: Family | None = None,
    local: LocalChoice = None,
) -> Fit:
    """A fit as :meth:`Fit.save` wrote it; a user's own family or law has to be given again."""
    if meta["family"] is None and family is None:
        raise PersistError(
            f"this fit was made with the family {meta['family_name']}, and no code is stored. Give it again: "
            "rb.load(path, family=...)."
        )
    chosen = as_family(meta["family"] if family is None else family)
    asked = {**meta["asked"], "local": _given_again(meta["asked"]["local"], chosen, local)}
    laws = {
        "Classical": lambda: Classical(chosen),
        "Shifted": lambda: Shifted(chosen),
        "Noiseless": lambda: Noiseless(chosen, asked["prior"]),
        "Contaminated": lambda: contaminated_with(chosen, len(arrays["phi"])),
    }
    law = laws.get(meta["law"], lambda: law_of(chosen, asked["local"], asked["prior"]))()
    formula = formula_from_json(meta["formula"]) if meta.get("formula") else None
    if type(law).__name__ != meta["law"] or len(law.names) != len(arrays["phi"]):
        raise PersistError(f"the file holds numbers of another law than its {meta['law'][:60]!r}. Save the fit again.")
    if formula is not None and formula.side.columns != meta["terms"]:
        raise PersistError("the formula kept in the file has other columns than the fit. Save the fit again.")
    model = FittedRegression(
        Fitted(law, arrays["phi"], arrays["coefficients"], meta["intercept"]),
        list(meta["terms"]),
        asked,
        formula,
        meta.get("by_formula", formula is not None),
        tuple(meta.get("needs", ())),
        meta.get("response"),
    )
    fields = fields_of(meta, arrays)
    if fields["leverage_one"] is None:
        fields["leverage_one"] = np.zeros(0, dtype=int)
    return Fit(**{**fields, **model.fields(fields["outcome"].kind, fields["labels"])})


def _given_again(name: str | None, family: Family, local: LocalChoice) -> LocalChoice:
    """What was asked to be local: a name, or the law of the user's own that the file names."""
    if name in NAMED:
        if local is not None:
            raise PersistError(f"this fit was made with local={name!r}; got local={local!r}. Leave local out.")
        return name
    if local is None:
        raise PersistError(
            f"this fit was made with the law {name}, and no code is stored. Give it again: rb.load(path, local={name})."
        )
    if type(law_of(family, local)).__name__ != name:
        raise PersistError(
            f"this fit was made with the law {name}; got local={local!r}. Give the law it was made with."
        )
    return local
