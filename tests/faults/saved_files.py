"""One small file of every kind that can be saved, for tests of damage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
from statsmodels.tsa.statespace.structural import UnobservedComponents

import robustly as rb


def scales(y=None):
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(0.0, precision**-0.5), obs=y)


def rows(seed=5, n=24):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"x": rng.uniform(1, 2, n), "g": np.resize(["a", "b", "c"], n), "t": rng.uniform(1, 3, n)})
    frame["y"] = rng.poisson(frame["t"] * np.exp(frame["x"] + 0.7 * rng.normal(size=n)))
    return frame


def series():
    values = np.random.default_rng(6).standard_t(2, 24)
    return UnobservedComponents(values, level="llevel", use_exact_diffuse=True)


def write_all(folder: Path) -> dict[str, Path]:
    """A file of every kind, by a name that begins with the kind."""
    frame = rows()
    X, y = frame[["x", "t"]].to_numpy(), frame["y"].to_numpy()
    noise = np.random.default_rng(2).standard_t(2, 40)
    rng = np.random.default_rng(3)
    # Two bunches of rows, and documents in which a word comes often or not at all.
    bunches = np.concatenate([rng.normal(0, 1, (20, 2)), rng.normal(8, 1, (20, 2))])
    counts = rng.poisson(rng.gamma(0.3, 4.0, (20, 6)))
    counts[:, 0] += 1
    results = {
        "fit": rb.localize(scales, "precision").fit(noise),
        "conjugate": rb.conjugate.GammaPoisson().fit(np.random.default_rng(4).negative_binomial(2, 0.2, 40)),
        "glm": rb.glm("y ~ scale(x) * C(g) + bs(t, df=4) + offset(log(t))", frame, family="poisson"),
        "glm_categories": rb.glm("g ~ scale(x)", frame, family="multinomial"),
        "glm_grouped": rb.glm("log(y + 1) ~ x + (1 | g)", frame, family="normal"),
        "glm_estimator": rb.RobustPoissonRegression().fit(X, y),
        "glm_estimator_labels": rb.RobustLogisticRegression(local="label").fit(
            X, np.where(y > np.median(y), "yes", "no")
        ),
        "mixture": rb.RobustGaussianMixture(2, random_state=0).fit(bunches),
        "mixture_bayesian": rb.BayesianRobustGaussianMixture(2, random_state=0).fit(bunches),
        "series": rb.localize(series(), ["irregular", "level"]).fit("bound", rtol=1e-4),
        "hmm": rb.RobustGaussianHMM(2, random_state=0).fit(bunches),
        "topics": rb.RobustLDA(n_components=2, max_iter=3, tol=0, random_state=0).fit(counts),
    }
    for name, result in results.items():
        result.save(folder / f"{name}.rb")
    return {name: folder / f"{name}.rb" for name in results}
