"""Forty models and calls with something wrong in them: each is refused by a named error that says what came."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest

import robustly as rb

N = 20
RNG = np.random.default_rng(3)
X = RNG.normal(size=N)
Y = 1.0 + X + RNG.standard_t(2, size=N)
K = RNG.poisson(3.0, size=N)
G = np.arange(N) % 4


def line(x, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Normal(b * x, precision**-0.5), obs=y)


def counts(y, known=None):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Poisson(rate), obs=y)


def variant(body):
    """A line whose likelihood is something else."""

    def model(x, y=None):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
        body(b, precision, x, y)

    return model


def see(law, y, name="y"):
    return numpyro.sample(name, law, obs=y)


def with_hole(values, hole):
    found = np.array(values, dtype=float)
    found[3] = hole
    return found


def twice(b, s, x, y):
    see(dist.Normal(b, s), y)
    see(dist.Normal(x, s), y)


def branch(b, s, x, y):
    see(dist.Normal(b if b > 0 else -b, s), y)


def misfit(b, s, x, y):
    with numpyro.plate("data", 7):
        see(dist.Normal(b * x, s), y)


def loop(b, s, x, y):
    for i in range(3):
        see(dist.Normal(b, s), y[i], f"y{i}")


def outside(b, s, x, y):
    with numpyro.plate("data", len(x)):
        see(dist.Normal(b * x, s), y)
    see(dist.Normal(b, s), y[0], "anchor")


def walk(b, s, x, y):
    with numpyro.plate("data", len(x)):
        step = numpyro.sample("step", dist.Normal(0, 1))
        see(dist.Normal(jnp.cumsum(step), s), y)


def discrete(b, s, x, y):
    k = numpyro.sample("k", dist.Poisson(2.0))
    see(dist.Normal(b * x + k, s), y)


BROKEN = {
    "an unknown site": (line, "precison", (X, Y)),
    "an observed site": (line, "y", (X, Y)),
    "no observations": (line, "precision", (X,)),
    "too few arguments": (line, "precision", ()),
    "too many arguments": (line, "precision", (X, Y, Y)),
    "more observations than rows": (line, "precision", (X, np.r_[Y, Y])),
    "fewer observations than rows": (line, "precision", (X, Y[:5])),
    "a missing value": (line, "precision", (X, with_hole(Y, np.nan))),
    "an infinite predictor": (line, "precision", (with_hole(X, np.inf), Y)),
    "texts": (line, "precision", (np.array(list("abcd") * 5), Y)),
    "mixed objects": (line, "precision", (np.array([1.0, "a"] * 10, dtype=object), Y)),
    "a frame with texts": (line, "precision", (pd.DataFrame({"a": ["u", "v"] * 10}), Y)),
    "no rows": (line, "precision", (X[:0], Y[:0])),
    "one number": (line, "precision", (1.0, 2.0)),
    "a ragged list": (line, "precision", ([[1.0], [2.0, 3.0]], Y)),
    "complex numbers": (line, "precision", (X + 1j, Y)),
    "a negative count": (counts, "rate", (with_hole(K, -1.0),)),
    "half a count": (counts, "rate", (with_hole(K, 0.5),)),
    "a matrix for a column": (line, "precision", (np.ones((N, 3)), Y)),
    "one site twice": (variant(twice), "precision", (X, Y)),
    "a branch on a value": (variant(branch), "precision", (X, Y)),
    "a plate of another size": (variant(misfit), "precision", (X, Y)),
    "a loop over rows": (variant(loop), "precision", (X, Y)),
    "an observation outside": (variant(outside), "precision", (X, Y)),
    "rows that add up": (variant(walk), "precision", (X, Y)),
    "a discrete shared site": (variant(discrete), "precision", (X, Y)),
    "a discrete local site": (variant(discrete), "k", (X, Y)),
    "numpy on a value": (variant(lambda b, s, x, y: see(dist.Normal(np.exp(b), s), y)), "precision", (X, Y)),
    "one density for all": (
        variant(lambda b, s, x, y: see(dist.MultivariateNormal(b * x, jnp.eye(N)), y)),
        "b",
        (X, Y),
    ),
    "a summed factor": (variant(lambda b, s, x, y: numpyro.factor("f", -jnp.sum((y - b * x) ** 2))), "b", (X, Y)),
    "an error of its own": (variant(lambda b, s, x, y: {}["no such key"]), "precision", (X, Y)),
    "nothing observed": (variant(lambda b, s, x, y: None), "precision", (X, Y)),
    "observations by text": (variant(lambda b, s, x, y: see(dist.Normal(b, s), "y")), "precision", (X, Y)),
    "not a distribution": (variant(lambda b, s, x, y: see(b * x, y)), "precision", (X, Y)),
    "a scale that is no scale": (variant(lambda b, s, x, y: see(dist.Normal(b, "s"), y)), "precision", (X, Y)),
    "shapes that do not meet": (variant(lambda b, s, x, y: see(dist.Normal(x[:3] * x, s), y)), "precision", (X, Y)),
    "a positive density at 0": (
        lambda x, y: see(
            dist.Normal(numpyro.sample("b", dist.Normal(0, 1)) * x, numpyro.sample("s", dist.HalfNormal(1.0))), y
        ),
        "s",
        (X, Y),
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_model_ends_in_a_named_error(what):
    model, site, args = BROKEN[what]
    with pytest.raises(rb.RobustlyError) as caught:
        rb.localize(model, site).fit(*args)
    assert len(str(caught.value)) > 30


@pytest.fixture(scope="module")
def fit():
    return rb.localize(counts, "rate").fit(K)


@pytest.mark.parametrize(
    "ask",
    [
        lambda fit: fit.posterior("rat"),
        lambda fit: fit.predictive(K),
        lambda fit: fit.predictive(z=K),
        lambda fit: rb.localize(counts, "rate").fit(K, weights=-np.ones(N)),
        lambda fit: rb.localize(counts, "rate").fit(K, start={"rte": 1.0}),
        lambda fit: rb.localize(counts, "rate").fit(K, approx="laplace"),
        lambda fit: rb.localize(counts, "rate").fit(K, method="nuts"),
    ],
)
def test_a_wrong_question_ends_in_a_named_error(fit, ask):
    with pytest.raises(rb.RobustlyError) as caught:
        ask(fit)
    assert len(str(caught.value)) > 20
