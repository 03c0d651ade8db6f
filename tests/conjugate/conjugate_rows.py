"""A pair, rows drawn from it, and the compound law as scipy has it; shared by the tests of this folder."""

from __future__ import annotations

import numpy as np
from scipy import stats

from robustly import conjugate as c


def draw(name, n=1000, seed=0):
    """Arguments of `fit` for the pair called `name`."""
    rng = np.random.default_rng(seed)
    normal = rng.normal(size=n)
    if name == "GammaPoisson":
        exposure = rng.uniform(0.5, 3.0, n)
        return rng.poisson(exposure * rng.gamma(1.5, 1 / 0.3, n)), exposure
    if name == "BetaBinomial":
        trials = rng.integers(1, 21, n)
        return rng.binomial(trials, rng.beta(2, 5, n)), trials
    if name == "BetaNegativeBinomial":
        return rng.negative_binomial(3, rng.beta(6, 5, n)), 3
    if name == "BetaGeometric":
        return (rng.geometric(rng.beta(4, 5, n)) - 1,)
    if name == "NormalNormal":
        variances = rng.uniform(0.5, 3, n)
        return rng.normal(2, 1.5, n) + np.sqrt(variances) * normal, variances
    if name == "NormalInverseGamma":
        return (1.0 + 2.0 * rng.standard_t(4, n),)
    if name == "GammaExponential":
        return (rng.exponential(1 / rng.gamma(3, 1 / 2, n)),)
    if name in ("GammaGamma", "GammaGammaFitted"):
        return (rng.gamma(2.5, 1 / rng.gamma(3, 1 / 2, n)),)
    if name == "NormalLogNormal":
        return np.exp(rng.normal(1, 0.8, n) + np.sqrt(0.5) * normal), 0.5
    if name == "InverseGammaLogNormal":
        return (np.exp(0.5 + rng.standard_t(4, n)),)
    if name == "NormalWishart":
        mixed = rng.normal(size=(n, 2)) @ np.array([[1.0, 0.5], [0.0, 1.5]])
        return (mixed / np.sqrt(rng.chisquare(5, n) / 5)[:, None] + [1.0, -2.0],)
    if name == "DirichletMultinomial":
        return (rng.multinomial(rng.integers(5, 40, n), rng.dirichlet([0.5, 1, 2, 4], n)),)
    raise KeyError(name)


PAIRS = {
    "GammaPoisson": c.GammaPoisson(),
    "BetaBinomial": c.BetaBinomial(),
    "BetaNegativeBinomial": c.BetaNegativeBinomial(),
    "BetaGeometric": c.BetaGeometric(),
    "NormalNormal": c.NormalNormal(),
    "NormalInverseGamma": c.NormalInverseGamma(),
    "GammaExponential": c.GammaExponential(),
    "GammaGamma": c.GammaGamma(shape=2.5),
    "GammaGammaFitted": c.GammaGamma(shape=None),
    "NormalLogNormal": c.NormalLogNormal(),
    "InverseGammaLogNormal": c.InverseGammaLogNormal(),
    "NormalWishart": c.NormalWishart(),
    "DirichletMultinomial": c.DirichletMultinomial(),
}


def compound(name, fit, data):
    """The log density of the rows under the fitted compound law, by scipy."""
    h = {key: np.asarray(value) for key, value in {**fit.hyperparameters, **fit.shared, **fit.derived}.items()}
    x = data[0]
    if name == "GammaPoisson":
        return stats.nbinom(h["concentration"], h["rate"] / (h["rate"] + data[1])).logpmf(x)
    if name == "BetaBinomial":
        return stats.betabinom(data[1], h["concentration1"], h["concentration0"]).logpmf(x)
    if name in ("BetaNegativeBinomial", "BetaGeometric"):
        return stats.betanbinom(data[1] if len(data) > 1 else 1, h["concentration1"], h["concentration0"]).logpmf(x)
    if name == "NormalNormal":
        return stats.norm(h["loc"], np.sqrt(h["scale"] ** 2 + data[1])).logpdf(x)
    if name == "NormalInverseGamma":
        return stats.t(2 * h["concentration"], h["loc"], np.sqrt(h["rate"] / h["concentration"])).logpdf(x)
    if name == "GammaExponential":
        return stats.lomax(h["concentration"], scale=h["rate"]).logpdf(x)
    if name.startswith("GammaGamma"):
        return stats.betaprime(h.get("shape", 2.5), h["concentration"], scale=h["rate"]).logpdf(x)
    if name == "NormalLogNormal":
        return stats.lognorm(np.sqrt(h["scale"] ** 2 + data[1]), scale=np.exp(h["loc"])).logpdf(x)
    if name == "InverseGammaLogNormal":
        return stats.t(h["dof"], h["loc"], h["scale"]).logpdf(np.log(x)) - np.log(x)
    if name == "NormalWishart":
        return stats.multivariate_t(h["loc"], h["scale"], float(h["dof"])).logpdf(x)
    return stats.dirichlet_multinomial(h["concentration"], x.sum(axis=1)).logpmf(x)
