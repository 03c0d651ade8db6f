"""Which family is meant? Families by their names."""

from __future__ import annotations

from typing import Any

from robustly.errors import ModelError, did_you_mean, names
from robustly.glm.families import Bernoulli, Binomial, Exponential, Gamma, NegativeBinomial, Normal, Poisson
from robustly.glm.family import Family
from robustly.glm.zeros import (
    HurdleNegativeBinomial,
    HurdlePoisson,
    Tweedie,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedPoisson,
)

FAMILIES: dict[str, type[Family]] = {
    "normal": Normal,
    "poisson": Poisson,
    "bernoulli": Bernoulli,
    "binomial": Binomial,
    "gamma": Gamma,
    "exponential": Exponential,
    "negative_binomial": NegativeBinomial,
    "zero_inflated_poisson": ZeroInflatedPoisson,
    "zero_inflated_negative_binomial": ZeroInflatedNegativeBinomial,
    "hurdle_poisson": HurdlePoisson,
    "hurdle_negative_binomial": HurdleNegativeBinomial,
    "tweedie": Tweedie,
}


def as_family(given: Any) -> Family:
    """A family from its name, its class or itself."""
    if isinstance(given, Family):
        return given
    if isinstance(given, type) and issubclass(given, Family):
        return given()
    if isinstance(given, str):
        if given in FAMILIES:
            return FAMILIES[given]()
        raise ModelError(f'no family "{given}"; there are {names(FAMILIES)}.' + did_you_mean(given, FAMILIES))
    raise ModelError(f'a family is a name or a robustly.Family; got {given!r}. Try family="poisson".')
