"""One model, one answer: every road that can fit a model gives the same evidence, estimates, errors and predictions.

Closed forms agree to 1e-8, integrals to 1e-6. Priors of shared sites are so wide that they move nothing.
"""

from __future__ import annotations

from functools import cache

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from answers import Answers, answers
from numpyro.distributions import constraints
from scipy.special import gammaln

import robustly as rb
from robustly import conjugate

ROWS = 48  # one bucket for all models
FEW = 6  # rows that are predicted
WIDE = dist.Normal(0.0, 1e5)
TIGHT = rb.fit.outcome.Stop(1e-13, 200)


def rng_of(seed):
    return np.random.default_rng(seed)


def positive(*names):
    return dict.fromkeys(names, constraints.positive)


# ---------------------------------------------------------------------- Student-t regression


def student_regression():
    rng = rng_of(1)
    x = rng.normal(size=ROWS)
    y = 0.5 + x + rng.standard_t(3.0, ROWS)
    frame = pd.DataFrame({"x": x, "y": y})

    def model(x, y=None):
        b = numpyro.sample("b", WIDE)
        w = numpyro.sample("w", WIDE)
        precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(b + w * x, precision**-0.5), obs=y)

    rows = rb.RowModel(
        prior=lambda theta, row: dist.Gamma(theta["a"], theta["rate"]),
        log_likelihood=lambda own, theta, row: dist.Normal(theta["b"] + theta["w"] * row["x"], own**-0.5).log_prob(
            row["y"]
        ),
        start={"b": 0.0, "w": 0.0, "a": 2.0, "rate": 1.0},
        constraints=positive("a", "rate"),
        local_support=constraints.positive,
    )
    from_gamma = lambda b, w, a, rate: [b, w, jnp.sqrt(rate / a), 2 * a]
    of_glm = lambda p: list(p.values())
    local = rb.localize(model, "precision").fit(x, y, rtol=1e-13)
    linear = rb.RobustLinearRegression(tol=1e-13).fit(x[:, None], y)
    formula = rb.glm("y ~ x", frame, family="normal", dof=None, tol=1e-13)
    general = rb.RobustGLM("normal", tol=1e-13).fit(x[:, None], y)
    direct = rb.fit_rows(rows, {"x": x, "y": y}, stop=TIGHT)
    return {
        "linear": answers(linear.result_, of_glm, linear.predict_dist(x[:FEW, None]), y[:FEW], strayed=True),
        "formula": answers(formula, of_glm, formula.predictive(frame[:FEW]), y[:FEW], strayed=True),
        "glm": answers(general.result_, of_glm, general.predict_dist(x[:FEW, None]), y[:FEW]),
        "localize": answers(
            local,
            lambda p: from_gamma(p["b"], p["w"], p["precision.concentration"], p["precision.rate"]),
            local.predictive(x[:FEW]),
            y[:FEW],
            strayed=True,
        ),
        "rows": answers(direct, lambda p: from_gamma(p["b"], p["w"], p["a"], p["rate"])),
    }


# ---------------------------------------------------------------------- Student-t sample


def student_sample():
    y = 2.0 + rng_of(2).standard_t(3.0, ROWS)

    def model(like, y=None):
        loc = numpyro.sample("loc", WIDE)
        precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
        with numpyro.plate("data", like.shape[0]):
            numpyro.sample("y", dist.Normal(loc, precision**-0.5), obs=y)

    pair = conjugate.NormalInverseGamma().fit(y)
    formula = rb.glm("y ~ 1", pd.DataFrame({"y": y}), family="normal", dof=None, tol=1e-13)
    local = rb.localize(model, "precision", rows=["like", "y"]).fit(np.zeros(ROWS), y, rtol=1e-13)
    mixture = rb.RobustGaussianMixture(1, reg_covar=0.0, tol=0, max_iter=3000).fit(y[:, None])
    common = lambda a, rate, loc: [loc, jnp.sqrt(rate / a), 2 * a]
    return {
        "pair": answers(
            pair,
            lambda p: common(p["concentration"], p["rate"], p["loc"]),
            Repeated(pair.predictive(), FEW),
            y[:FEW],
            strayed=True,
        ),
        "formula": answers(
            formula,
            lambda p: list(p.values()),
            formula.predictive(pd.DataFrame(index=range(FEW))),
            y[:FEW],
            strayed=True,
        ),
        "localize": answers(
            local,
            lambda p: common(p["precision.concentration"], p["precision.rate"], p["loc"]),
            local.predictive(np.zeros(FEW)),
            y[:FEW],
        ),
        "mixture": Answers(
            mixture.score_samples(y[:, None]),
            np.r_[mixture.means_[0, 0], np.sqrt(mixture.covariances_[0, 0, 0]), mixture.dofs_[0]],
        ),
    }


class Repeated:
    """A predictive law without companions is the same for every row."""

    def __init__(self, law, count):
        self.law, self.count = law, count

    def quantile(self, level):
        return np.repeat(self.law.quantile(level), self.count)

    def cdf(self, values):
        return np.concatenate([self.law.cdf(value) for value in values])


# ---------------------------------------------------------------------- Poisson-normal and binomial-normal regression


def own_predictor(family, log_likelihood, make, data, trials, seed):
    """Rows with a normal predictor of their own, by regression, formula, program and row model."""
    rng = rng_of(seed)
    x = rng.normal(size=ROWS)
    y = data(rng, 0.3 + 0.5 * x + 0.8 * rng.normal(size=ROWS))
    frame = pd.DataFrame({"x": x, "y": y})

    def model(x, y=None):
        w = numpyro.sample("w", WIDE)
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", make(b + w * x), obs=y)

    rows = rb.RowModel(
        prior=lambda theta, row: dist.Normal(theta["b"], theta["spread"]),
        log_likelihood=lambda own, theta, row: log_likelihood(own + theta["w"] * row["x"], row["y"]),
        start={"b": 0.0, "w": 0.0, "spread": 1.0},
        constraints=positive("spread"),
        center=lambda theta, row: (theta["b"], theta["spread"]),
    )
    named = {} if trials is None else {"trials": np.full(ROWS, trials)}
    some = {} if trials is None else {"trials": np.full(FEW, trials)}
    estimator = rb.RobustGLM(family, tol=1e-13).fit(x[:, None], y, **named)
    formula = rb.glm("y ~ x", frame, family=family, tol=1e-13, **named)
    local = rb.localize(model, "b").fit(x, y, rtol=1e-13)
    direct = rb.fit_rows(rows, {"x": x, "y": y}, stop=TIGHT)
    of_glm = lambda p: list(p.values())
    return {
        "glm": answers(estimator.result_, of_glm, estimator.predict_dist(x[:FEW, None], **some), y[:FEW]),
        "formula": answers(formula, of_glm, formula.predictive(frame[:FEW], **some), y[:FEW]),
        "localize": answers(local, lambda p: [p["b.loc"], p["w"], p["b.scale"]], local.predictive(x[:FEW]), y[:FEW]),
        "rows": answers(direct, lambda p: [p["b"], p["w"], p["spread"]]),
    }


def poisson_normal():
    return own_predictor(
        "poisson",
        lambda m, y: dist.Poisson(jnp.exp(m)).log_prob(y),
        lambda m: dist.Poisson(jnp.exp(m)),
        lambda rng, m: rng.poisson(np.exp(m)),
        None,
        3,
    )


def binomial_counts():
    return own_predictor(
        "binomial",
        lambda m, y: dist.Binomial(10, logits=m).log_prob(y),
        lambda m: dist.Binomial(10, logits=m),
        lambda rng, m: rng.binomial(10, 1 / (1 + np.exp(-m))),
        10,
        4,
    )


# ---------------------------------------------------------------------- conjugate pairs, programs, row models


def by_pair(pair, prior, likelihood, names, common, data, companion=None, support=constraints.positive, seed=5):
    """A conjugate pair beside the program and the row model that say the same: closed form by three roads.

    `prior(*arguments)` and `likelihood(own, companion)` are NumPyro's; `names` are the arguments of the prior with start
    values, `common` turns them into those of the pair.
    """
    rng = rng_of(seed)
    beside = np.ones(ROWS) if companion is None else companion(rng)
    y = data(rng, beside)
    given = () if companion is None else (beside,)
    start = dict(names)

    def model(beside, y=None):
        own = numpyro.sample("own", prior(*start.values()))
        with numpyro.plate("data", beside.shape[0]):
            numpyro.sample("y", likelihood(own, beside), obs=y)

    rows = rb.RowModel(
        prior=lambda theta, row: prior(*(theta[name] for name in start)),
        log_likelihood=lambda own, theta, row: likelihood(own, row["beside"]).log_prob(row["y"]),
        start=start,
        constraints={name: constraints.real if name == "loc" else constraints.positive for name in start},
        local_support=support,
    )
    fit = pair.fit(y, *given)
    local = rb.localize(model, "own").fit(beside, y, rtol=1e-13)
    direct = rb.fit_rows(rows, {"beside": beside, "y": y}, stop=TIGHT)
    law = fit.predictive(*(a[:FEW] for a in given))
    one_by_one = lambda p, prefix: common(*(p[f"{prefix}{name}"] for name in start))
    return {
        "pair": answers(fit, lambda p: one_by_one(p, ""), law if given else Repeated(law, FEW), y[:FEW]),
        "localize": answers(
            local,
            lambda p: one_by_one(p, "own."),
            local.predictive(beside[:FEW]),
            y[:FEW],
        ),
        "rows": answers(direct, lambda p: one_by_one(p, "")),
    }


def negative_binomial():
    found = by_pair(
        conjugate.GammaPoisson(),
        dist.Gamma,
        lambda own, exposure: dist.Poisson(own * exposure),
        {"concentration": 1.0, "rate": 1.0},
        lambda a, b: [jnp.log(a / b), a],
        lambda rng, exposure: rng.poisson(exposure * rng.gamma(2.0, 1.5, ROWS)),
        lambda rng: rng.uniform(0.5, 2.0, ROWS),
    )
    rng = rng_of(5)
    exposure = rng.uniform(0.5, 2.0, ROWS)
    frame = pd.DataFrame({"y": rng.poisson(exposure * rng.gamma(2.0, 1.5, ROWS)), "exposure": exposure})
    plain = rb.glm("y ~ 1", frame, family="negative_binomial", local=None, exposure="exposure", tol=1e-13)
    law = plain.predictive(frame[:FEW])
    return {**found, "formula": answers(plain, lambda p: list(p.values()), law, frame["y"].to_numpy()[:FEW])}


def beta_binomial():
    return by_pair(
        conjugate.BetaBinomial(),
        dist.Beta,
        lambda own, trials: dist.Binomial(trials, probs=own),
        {"concentration1": 1.0, "concentration0": 1.0},
        lambda a, b: [a, b],
        lambda rng, trials: rng.binomial(trials, rng.beta(2.0, 3.0, ROWS)),
        lambda rng: rng.integers(5, 20, ROWS),
        support=constraints.unit_interval,
    )


def normal_means():
    return by_pair(
        conjugate.NormalNormal(),
        dist.Normal,
        lambda own, variance: dist.Normal(own, jnp.sqrt(variance)),
        {"loc": 0.0, "scale": 1.0},
        lambda loc, scale: [loc, scale],
        lambda rng, variance: rng.normal(1.0, np.sqrt(1.5 + variance)),
        lambda rng: rng.uniform(0.5, 2.0, ROWS),
        support=constraints.real,
    )


def exponential_gamma():
    return by_pair(
        conjugate.GammaExponential(),
        dist.Gamma,
        lambda own, _: dist.Exponential(own),
        {"concentration": 1.0, "rate": 1.0},
        lambda a, b: [a, b],
        lambda rng, _: rng.exponential(size=ROWS) / rng.gamma(1.2, 1.0, ROWS),
    )


# ---------------------------------------------------------------------- vectors, mixtures, topics


def multivariate_t():
    rng = rng_of(7)
    X = rng.normal(size=(ROWS, 2)) @ [[1.0, 0.4], [0.0, 0.8]] / np.sqrt(rng.chisquare(4.0, ROWS) / 4)[:, None]
    pair = conjugate.NormalWishart().fit(X)
    mixture = rb.RobustGaussianMixture(1, reg_covar=0.0, tol=0, max_iter=3000).fit(X)
    return {
        "pair": Answers(pair.evidence, np.r_[pair.shared["loc"], np.ravel(pair.scale), pair.dof]),
        "mixture": Answers(
            mixture.score_samples(X),
            np.r_[mixture.means_[0], np.ravel(mixture.covariances_[0]), mixture.dofs_[0]],
        ),
    }


def two_components():
    rng = rng_of(8)
    y = np.concatenate([rng.standard_t(4.0, ROWS // 2), 9.0 + rng.standard_t(4.0, ROWS // 2)])

    def model(like, y=None):
        share = numpyro.sample("share", dist.Beta(1.0, 1.0))
        means = numpyro.sample("means", WIDE.expand([2]).to_event(1))
        precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
        with numpyro.plate("data", like.shape[0]):
            z = numpyro.sample("z", dist.Bernoulli(share), infer={"enumerate": "parallel"})
            numpyro.sample("y", dist.Normal(jnp.where(z == 1, means[1], means[0]), precision**-0.5), obs=y)

    local = rb.localize(model, "precision", rows=["like", "y"]).fit(
        np.zeros(ROWS), y, start={"means": np.array([0.0, 9.0])}, rtol=1e-13
    )
    mixture = rb.RobustGaussianMixture(
        2,
        covariance_type="tied",
        tied_dof=True,
        reg_covar=0.0,
        tol=0,
        max_iter=3000,
        means_init=[[0.0], [9.0]],
    ).fit(y[:, None])
    a, b = local.hyperparameters["precision"]["concentration"], local.hyperparameters["precision"]["rate"]
    return {
        "mixture": Answers(
            mixture.score_samples(y[:, None]),
            np.r_[mixture.weights_[1], mixture.means_[:, 0], np.sqrt(mixture.covariances_[0, 0]), mixture.dofs_[0]],
        ),
        "localize": Answers(local.evidence, np.r_[local.shared["share"], local.shared["means"], np.sqrt(b / a), 2 * a]),
    }


def one_topic():
    rng = rng_of(9)
    counts = np.stack([rng.multinomial(30, p) for p in rng.dirichlet([2.0, 1.0, 0.5, 1.5], ROWS)])
    pair = conjugate.DirichletMultinomial().fit(counts)
    topics = {
        inference: rb.RobustLDA(1, inference=inference, smoothing=0, max_iter=600, tol=0).fit(counts)
        for inference in ("collapsed", "meanfield")
    }
    # Topics see words in their order, the pair sees counts, for which there are as many orders.
    orders = gammaln(counts.sum(axis=1) + 1.0) - gammaln(counts + 1.0).sum(axis=1)
    return {
        "pair": Answers(pair.evidence - orders, np.ravel(pair.hyperparameters["concentration"])),
        # With one topic the mean field's bound is the evidence; collapsed inference gives a score, not an evidence.
        "mean field": Answers(topics["meanfield"].evidence(counts), np.ravel(topics["meanfield"].components_)),
        "collapsed": Answers(None, np.ravel(topics["collapsed"].components_)),
    }


# ---------------------------------------------------------------------- the claims

CLOSED, INTEGRAL = 1e-8, 1e-6
CENTRE = ("evidence", "estimates")
EVERYTHING = (*CENTRE, "errors", "quantiles", "tails", "judged")
MODELS = {
    student_regression: (CLOSED, (*EVERYTHING, "strayed")),
    student_sample: (CLOSED, (*EVERYTHING, "strayed")),
    poisson_normal: (INTEGRAL, EVERYTHING),
    binomial_counts: (INTEGRAL, EVERYTHING),
    negative_binomial: (CLOSED, EVERYTHING),
    beta_binomial: (CLOSED, EVERYTHING),
    normal_means: (CLOSED, EVERYTHING),
    exponential_gamma: (CLOSED, EVERYTHING),
    multivariate_t: (CLOSED, CENTRE),
    two_components: (CLOSED, CENTRE),
    one_topic: (CLOSED, CENTRE),
}


@cache
def roads(model):
    return model()


def compare(model, asked, tolerance):
    found = {name: getattr(one, asked) for name, one in roads(model).items() if getattr(one, asked) is not None}
    (first, expected), *others = found.items()
    assert others
    for other, value in others:
        np.testing.assert_allclose(value, expected, rtol=tolerance, atol=tolerance, err_msg=f"{other} and {first}")


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        pytest.param(model, asked, id=f"{model.__name__}-{asked}")
        for model, (_, all_asked) in MODELS.items()
        for asked in all_asked
    ],
)
def test_every_road_gives_the_same_answer(model, asked):
    # Whether rows belong is asked of laws that are fitted for the question, each road from where it stands.
    compare(model, asked, INTEGRAL if asked == "strayed" else MODELS[model][0])
