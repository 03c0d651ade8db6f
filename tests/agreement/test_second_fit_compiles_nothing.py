"""A second fit of the same kind, with other numbers and another number of rows of the same bucket, builds no program.

Every public road is walked twice, stage by stage; programs built by the second walk are named in the failure.
"""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from compilations import compilations
from walks import Road, cases, kept, walk

import robustly as rb
from robustly import conjugate

# So few rows do not tell heavy tails from rows that do not belong, and a list of outliers says so.
pytestmark = pytest.mark.filterwarnings("ignore::robustly.errors.HeavyTailsWarning")

# ---------------------------------------------------------------------- programs


def line(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 10).expand([x.shape[1]]).to_event(1))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, precision**-0.5), obs=y)


def counts(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0, 10))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(b + slope * x)), obs=y)


def heavy_line(rng, n):
    x = rng.normal(size=(n, 2))
    return x, x @ [1.0, -0.5] + rng.standard_t(2.5, size=n)


def light_line(rng, n):
    """Residuals all of one size: tails that no Student t is light enough for."""
    x = rng.normal(size=(n, 2))
    return x, x @ [1.0, -0.5] + rng.choice([-1.0, 1.0], size=n)


def wild_counts(rng, n):
    x = rng.normal(size=n)
    return x, rng.poisson(np.exp(1.0 + 0.5 * x + 0.8 * rng.normal(size=n)))


def tame_counts(rng, n):
    """Counts that differ less than Poisson counts do."""
    x = rng.normal(size=n)
    return x, np.round(np.exp(1.0 + 0.5 * x)).astype(int)


EVIDENCE = {"evidence": lambda fit, data: fit.evidence}
ERRORS = {"standard errors": lambda fit, data: (fit.standard_errors, fit.covariance("sandwich"), fit.summary())}
OUTLIERS = {"outliers": lambda fit, data: fit.outliers()}
MOMENTS = {"predicted moments": lambda fit, data: [(new.mean, new.sd) for new in [fit.predictive(data[0])]]}
QUANTILES = {"predicted quantiles": lambda fit, data: fit.predictive(data[0]).quantile(0.9)}
POSTERIOR = {"posterior": lambda fit, data: fit.posterior().quantile(0.9)}
DRAWS = {"sample_posterior": lambda fit, data: fit.sample_posterior(20, key=0)}
STUDENT = rb.localize(line, "precision")
POISSON = rb.localize(counts, "b")
PLAIN = rb.classical(counts)

GAMMA_ROWS = rb.RowModel(
    prior=lambda theta, row: dist.Gamma(theta["shape"], theta["rate"]),
    log_likelihood=lambda rate, theta, row: dist.Poisson(rate).log_prob(row["count"]),
    start={"shape": 1.0, "rate": 1.0},
    constraints={"shape": dist.constraints.positive, "rate": dist.constraints.positive},
    local_support=dist.constraints.positive,
)

# ---------------------------------------------------------------------- regressions


def matrix(draw):
    def data(rng, n):
        X = rng.normal(size=(n, 2))
        return X, draw(rng, X @ [0.6, -0.3])

    return data


def poisson_rows(spread):
    return matrix(lambda rng, m: rng.poisson(np.exp(1.0 + m + spread * rng.normal(size=len(m)))))


def labels(rng, m):
    y = (rng.random(len(m)) < 1 / (1 + np.exp(-6 * m))).astype(int)
    return np.where(rng.random(len(m)) < 0.15, 1 - y, y)


def of_regression(**more):
    return {
        "evidence": lambda fit, data: fit.result_.evidence,
        "standard errors": lambda fit, data: (
            fit.result_.standard_errors,
            fit.result_.covariance("sandwich"),
            fit.result_.summary(),
        ),
        "predictive": lambda fit, data: [
            (new.mean, new.sd, new.quantile(0.9), new.interval(0.5)) for new in [fit.predict_dist(data[0])]
        ],
        "outliers": lambda fit, data: fit.outliers(),
        "leave one out": lambda fit, data: fit.result_.loo,
        **more,
    }


OWN = {"posterior": lambda fit, data: fit.result_.posterior().quantile(0.9)}


def loaded():
    """A file's estimator predicts."""
    reads = kept()["save and load"]
    return {"save, load and predict": lambda fit, data: reads(fit, data).predict_dist(data[0]).quantile(0.9)}


GLM_DRAWS = {"sample_posterior": lambda fit, data: fit.result_.sample_posterior(20, key=0)}

# ---------------------------------------------------------------------- pairs


def of_pair(*new, **more):
    return {
        "evidence": lambda fit, data: fit.evidence,
        "standard errors": lambda fit, data: (fit.standard_errors, fit.covariance("sandwich"), fit.summary()),
        "predictive": lambda fit, data: [
            (law.mean, law.sd, law.quantile(0.9), law.interval(0.5)) for law in [fit.predictive(*new)]
        ],
        "outliers": lambda fit, data: fit.outliers(),
        "posterior": lambda fit, data: fit.posterior().quantile(0.9),
        **more,
    }


def rates(rng, n):
    return rng.poisson(rng.gamma(1.5, 2.0, n))


def equal_counts(rng, n):
    return rng.choice([2, 3], n)


ROADS = {
    "localize, exact": Road(
        heavy_line,
        lambda data: STUDENT.fit(*data),
        {**EVIDENCE, **ERRORS, **MOMENTS, **OUTLIERS, **POSTERIOR, **kept(model=STUDENT)},
    ),
    "localize, exact, boundary": Road(light_line, lambda data: STUDENT.fit(*data), {**EVIDENCE, **MOMENTS}),
    "localize, quadrature": Road(
        wild_counts, lambda data: POISSON.fit(*data), {**EVIDENCE, **ERRORS, **QUANTILES, **POSTERIOR, **DRAWS}
    ),
    "localize, quadrature, boundary": Road(
        tame_counts, lambda data: POISSON.fit(*data), {**EVIDENCE, **ERRORS, **OUTLIERS}
    ),
    "localize, EM": Road(wild_counts, lambda data: POISSON.fit(*data, method="em", approx=rb.Laplace(), rtol=1e-4)),
    "classical": Road(tame_counts, lambda data: PLAIN.fit(*data), {**EVIDENCE, **ERRORS}),
    "fit_rows": Road(
        lambda rng, n: {"count": rates(rng, n)},
        lambda data: rb.fit_rows(GAMMA_ROWS, data),
        {**EVIDENCE, "posterior": lambda fit, data: fit.posterior("local").mean},
    ),
    "linear": Road(
        matrix(lambda rng, m: m + rng.standard_t(2.5, len(m))),
        lambda data: rb.RobustLinearRegression().fit(*data),
        of_regression(**GLM_DRAWS),
    ),
    "poisson": Road(
        poisson_rows(0.8), lambda data: rb.RobustPoissonRegression().fit(*data), of_regression(**OWN, **loaded())
    ),
    "poisson, boundary": Road(
        matrix(lambda rng, m: np.round(np.exp(1.0 + m))),
        lambda data: rb.RobustPoissonRegression().fit(*data),
        of_regression(),
    ),
    "poisson, student_t": Road(
        poisson_rows(0.8),
        lambda data: rb.RobustPoissonRegression(prior="student_t").fit(*data),
        of_regression(),
    ),
    "logistic": Road(matrix(labels), lambda data: rb.RobustLogisticRegression().fit(*data), of_regression(**OWN)),
    "logistic, label": Road(
        matrix(labels), lambda data: rb.RobustLogisticRegression(local="label").fit(*data), of_regression()
    ),
    "gamma": Road(
        matrix(lambda rng, m: np.exp(m + 0.8 * rng.normal(size=len(m))) * rng.gamma(4.0, 0.25, len(m))),
        lambda data: rb.RobustGLM("gamma").fit(*data),
        of_regression(**OWN),
    ),
    "gamma, classical": Road(
        matrix(lambda rng, m: np.exp(m) * rng.gamma(4.0, 0.25, len(m))),
        lambda data: rb.RobustGLM("gamma", local=None).fit(*data),
        of_regression(),
    ),
    "gamma-Poisson": Road(rates, lambda data: conjugate.GammaPoisson().fit(data), of_pair(**DRAWS, **kept())),
    "gamma-Poisson, boundary": Road(equal_counts, lambda data: conjugate.GammaPoisson().fit(data), of_pair()),
    "normal-normal": Road(
        lambda rng, n: rng.normal(size=n) + rng.normal(size=n),
        lambda data: conjugate.NormalNormal().fit(data, 1.0),
        of_pair(1.0),
    ),
    "normal-normal, boundary": Road(
        lambda rng, n: 0.5 * rng.normal(size=n),
        lambda data: conjugate.NormalNormal().fit(data, 1.0),
        of_pair(1.0),
    ),
    "normal-inverse-gamma": Road(
        lambda rng, n: rng.standard_t(3.0, n), lambda data: conjugate.NormalInverseGamma().fit(data), of_pair()
    ),
    "beta-binomial": Road(
        lambda rng, n: rng.binomial(12, rng.beta(2.0, 3.0, n)),
        lambda data: conjugate.BetaBinomial().fit(data, 12),
        of_pair(12),
    ),
    "mixture": Road(
        lambda rng, n: np.concatenate([rng.standard_t(4.0, (n // 2, 2)), 8 + rng.standard_t(4.0, (n - n // 2, 2))]),
        lambda data: rb.RobustGaussianMixture(2, random_state=0).fit(data),
        {"predictions": lambda fit, data: (fit.predict(data), fit.score_samples(data)), **kept()},
    ),
    "topics": Road(
        lambda rng, n: rng.poisson(1.5, (n, 12)),
        lambda data: rb.LDA(2, random_state=0, max_iter=5).fit(data),
        {"predictions": lambda fit, data: fit.transform(data)},
    ),
    "robust topics": Road(
        lambda rng, n: rng.poisson(1.5, (n, 12)),
        lambda data: rb.RobustLDA(2, random_state=0, max_iter=5).fit(data),
        {"predictions": lambda fit, data: fit.transform(data), **kept()},
    ),
}


@cache
def walked(name: str) -> dict[str, list[str]]:
    return walk(ROADS[name])


@pytest.mark.parametrize(("name", "stage"), cases(ROADS))
def test_a_second_walk_builds_no_program(name, stage):
    built = walked(name)[stage]
    assert not built, f"{len(built)} programs: {', '.join(dict.fromkeys(built))}"


def test_the_limit_of_a_program_is_read_and_compiled_once():
    """A localized program that ends at its classical limit again builds no pass of either model again."""
    assert not walked("localize, exact, boundary")["fit"]


def test_the_counter_sees_new_programs_and_only_these():
    add = jax.jit(lambda x: x + 1.0)
    with compilations() as first:
        add(np.zeros(3))
    with compilations() as second:
        add(np.ones(3))
    with compilations() as other:
        add(np.ones(4))
    assert (len(first), len(second), len(other)) == (1, 0, 1)


def test_other_columns_build_no_program(rng):
    """What is compiled of a regression are its rows, whatever the number of their columns."""

    def fitted(n, d):
        X = rng.normal(size=(n, d)) / d
        y = rng.poisson(np.exp(0.5 + X.sum(axis=1) + 0.7 * rng.normal(size=n)))
        return str(rb.RobustPoissonRegression().fit(X, y).summary())

    fitted(500, 5)
    with compilations() as built:
        fitted(700, 9)
    assert not len(built), built.programs
