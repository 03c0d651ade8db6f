"""One small file of every kind that robustly 0.1 saved, and the numbers it gave; made once, with the code of 0.1."""

import json
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd

import robustly as rb


def counts(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 10).expand([x.shape[1]]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(b + x @ w)), obs=y)


def rows(n=24):
    rng = np.random.default_rng(4)
    x = rng.normal(size=(n, 2))
    return x, rng.poisson(np.exp(1 + x @ [0.4, -0.3] + 0.8 * rng.normal(size=n)))


def told(fit):
    tails = fit.tail_probabilities
    return {
        "labels": fit.labels,
        "estimates": [float(v) for value in fit.parameters.values() for v in np.ravel(value)],
        "errors": np.sqrt(np.diag(fit.covariance())).tolist(),
        "sandwich": np.sqrt(np.diag(fit.covariance("sandwich"))).tolist(),
        "intervals": {label: [float(end) for end in ends] for label, ends in fit.confint(0.9).items()},
        "log_likelihood": fit.log_likelihood,
        "evidence": fit.evidence.tolist(),
        "tails": tails.tolist(),
        "outliers": fit.outliers(level=0.3).tolist(),
        "outcome": fit.outcome.kind,
    }


def main(folder):
    expected = {}
    x, y = rows()
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y, "g": np.where(np.arange(24) % 3, "u", "v")})

    fit = rb.localize(counts, "b").fit(x, y)
    fit.save(folder / "fit.robustly")
    expected["fit"] = {
        **told(fit),
        "mean": fit.predictive(x[:3]).mean.tolist(),
        "own": fit.posterior("b").mean.tolist(),
    }

    fit = rb.glm("y ~ a + C(g)", frame, family="poisson")
    fit.save(folder / "glm.robustly")
    expected["glm"] = {**told(fit), "mean": fit.predictive(frame.head(3)).mean.tolist(), "loo": fit.loo}

    labels = (y > 2).astype(float)
    fit = rb.glm("z ~ a", frame.assign(z=labels), family="bernoulli", local="label")
    fit.save(folder / "labels.robustly")
    expected["labels"] = {**told(fit), "flip": fit.flip}

    for name, pair, data in (
        ("conjugate", rb.conjugate.GammaPoisson(), (y,)),
        ("boundary", rb.conjugate.GammaPoisson(), (np.full(24, 4),)),
    ):
        fit = pair.fit(*data)
        fit.save(folder / f"{name}.robustly")
        expected[name] = {**told(fit), "mean": fit.predictive().mean.tolist(), "own": fit.posterior().mean.tolist()}

    model = rb.RobustLinearRegression().fit(x, np.log1p(y))
    model.save(folder / "glm_estimator.robustly")
    expected["glm_estimator"] = {**told(model.result_), "mean": model.predict(x[:3]).tolist(), "dof": model.result_.dof}

    mixture = rb.RobustGaussianMixture(n_components=2, random_state=0).fit(x)
    mixture.save(folder / "mixture.robustly")
    expected["mixture"] = {
        "mean": mixture.score_samples(x[:3]).tolist(),
        "outliers": mixture.outliers(level=0.3).tolist(),
    }

    words = np.random.default_rng(0).poisson(1.0, size=(24, 12))
    topics = rb.RobustLDA(n_components=2, random_state=0, max_iter=5).fit(words)
    topics.save(folder / "topics.robustly")
    expected["topics"] = {"mean": topics.transform(words[:3]).tolist()}

    (folder / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
