"""Localized conjugate exponential families: evidence in closed form, exact posteriors, shrinkage.

One class for each pair of prior and likelihood; ``Pair().fit(data)`` fits the prior over rows.
"""

from robustly.conjugate.base import ClassicalModel
from robustly.conjugate.categories import DirichletMultinomial
from robustly.conjugate.counts import BetaGeometric, BetaNegativeBinomial, GammaPoisson
from robustly.conjugate.fitting import ConjugatePair
from robustly.conjugate.multivariate import NormalWishart
from robustly.conjugate.normal import NormalInverseGamma, NormalNormal
from robustly.conjugate.positive import GammaExponential, GammaGamma, InverseGammaLogNormal, NormalLogNormal
from robustly.conjugate.proportions import BetaBernoulli, BetaBinomial
from robustly.conjugate.result import ConjugateFit

__all__ = [
    "BetaBernoulli",
    "BetaBinomial",
    "BetaGeometric",
    "BetaNegativeBinomial",
    "ClassicalModel",
    "ConjugateFit",
    "ConjugatePair",
    "DirichletMultinomial",
    "GammaExponential",
    "GammaGamma",
    "GammaPoisson",
    "InverseGammaLogNormal",
    "NormalInverseGamma",
    "NormalLogNormal",
    "NormalNormal",
    "NormalWishart",
]
