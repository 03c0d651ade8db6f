"""Which law is meant? What rows have of their own, by name or by a law of the user's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from robustly.errors import ModelError
from robustly.glm.contaminated import Contaminated
from robustly.glm.families import Bernoulli, Binomial, Family, Normal
from robustly.glm.law import Law
from robustly.glm.local import Classical, LocalDispersion, LocalLabel, LocalPrecision, LocalPredictor
from robustly.glm.ordered import LocalCategory, Ordinal
from robustly.glm.priors import PRIORS

LocalChoice = str | Callable[[Family], Law] | None
"""What is asked to be local: a name, nothing, or a law of the user's own, made from the family."""


def law_of(family: Family, local: LocalChoice, prior: str = "normal", solver: str = "newton") -> Law:
    """The law asked for, or an explanation why there is none."""
    if callable(local):
        law = local(family)
        if not isinstance(law, Law):
            raise ModelError(f"local takes a name or a subclass of robustly.glm.Law; got {local!r}.")
        return law
    if prior not in PRIORS:
        raise ModelError(f'prior takes "normal", "laplace" or "student_t"; got {prior!r}.')
    if local is None:
        return Classical(family)
    if local == "predictor":
        if isinstance(family, Normal) and prior == "normal":
            raise ModelError(
                "a normal response with a normal predictor of its own is a normal response with a larger variance: the "
                'two variances cannot be told apart. Localize the dispersion (local="dispersion", Student-t), or '
                'choose prior="laplace" or "student_t".'
            )
        return LocalPredictor(family, prior)
    if local == "dispersion":
        if isinstance(family, Normal):
            return LocalPrecision(family)
        if len(family.nuisance) == 1:
            return LocalDispersion(family)
        raise ModelError(
            f'{family} has no dispersion of its own to localize. Use local="predictor", or a family with one '
            "(Normal, Gamma, NegativeBinomial)."
        )
    if local == "label":
        if isinstance(family, Ordinal):
            return LocalCategory(family)
        if not isinstance(family, Bernoulli | Binomial):
            raise ModelError(
                f'local="label" is for 0/1 responses and ordered categories; the family is {family}. Choose family="bernoulli".'
            )
        return LocalLabel(family)
    if local == "contaminated":
        return Contaminated(family, Classical(family))
    raise ModelError(
        f'local takes "predictor", "dispersion", "label", "contaminated", None or a Law of your own; got {local!r}.'
    )


def law_asked(family: Family, asked: Mapping[str, Any]) -> Law:
    """The law that a fit was asked for; at a boundary the fitted one is the classical one instead."""
    return law_of(family, asked.get("local"), asked.get("prior", "normal"))
