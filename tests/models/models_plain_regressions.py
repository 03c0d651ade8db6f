"""Regressions as textbooks write them: no plate around what is observed."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from corpus import Corpus, noise, spread

CORPUS = Corpus()
N = 30
RNG = np.random.default_rng(10)
X = RNG.normal(size=N)
Z = RNG.normal(size=N)
MATRIX = np.column_stack([X, Z])
LINE = 1.0 + 2.0 * X + 0.4 * noise(1, N)
PLANE = 0.5 + X - Z + 0.3 * noise(2, N)


@CORPUS.add("precision", LINE)
def heights(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Normal(mu, precision**-0.5), obs=y)


@CORPUS.add("precision", X, LINE)
def straight_line(x, y=None):
    a = numpyro.sample("a", dist.Normal(0.0, 10.0))
    b = numpyro.sample("b", dist.Normal(0.0, 10.0))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    mu = numpyro.deterministic("mu", a + b * x)
    numpyro.sample("y", dist.Normal(mu, precision**-0.5), obs=y)


@CORPUS.add("log_sd", X, LINE)
def line_with_lognormal_sd(x, y):
    a = numpyro.sample("a", dist.Normal(0.0, 10.0))
    b = numpyro.sample("b", dist.LogNormal(0.0, 1.0))
    log_sd = numpyro.sample("log_sd", dist.Normal(-1.0, 1.0))
    numpyro.sample("y", dist.Normal(a + b * x, jnp.exp(log_sd)), obs=y)


@CORPUS.add("sd", X, LINE)
def line_with_inverse_gamma_sd(x, y):
    a = numpyro.sample("a", dist.Normal(0.0, 5.0))
    b = numpyro.sample("b", dist.Normal(0.0, 5.0))
    sd = numpyro.sample("sd", dist.InverseGamma(3.0, 1.0))
    numpyro.sample("y", dist.Normal(a + b * x, sd), obs=y)


@CORPUS.add("precision", X, LINE)
def centred_line(x, y=None):
    xbar = x.mean()
    a = numpyro.sample("a", dist.Normal(0.0, 10.0))
    b = numpyro.sample("b", dist.LogNormal(0.0, 1.0))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Normal(a + b * (x - xbar), precision**-0.5), obs=y)


@CORPUS.add("precision", X, LINE)
def cubic(x, y=None):
    a = numpyro.sample("a", dist.Normal(0.0, 5.0))
    b1 = numpyro.sample("b1", dist.Normal(0.0, 2.0))
    b2 = numpyro.sample("b2", dist.Normal(0.0, 1.0))
    b3 = numpyro.sample("b3", dist.Normal(0.0, 1.0))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Normal(a + b1 * x + b2 * x**2 + b3 * x**3, precision**-0.5), obs=y)


@CORPUS.add("precision", X, Z, PLANE)
def two_predictors(x, z, y=None):
    a = numpyro.sample("a", dist.Normal(0.0, 0.5))
    bx = numpyro.sample("bx", dist.Normal(0.0, 0.5))
    bz = numpyro.sample("bz", dist.Normal(0.0, 0.5))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Normal(a + bx * x + bz * z, precision**-0.5), obs=y)


@CORPUS.add("precision", MATRIX, PLANE)
def matrix_regression(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Normal(jnp.dot(x, w), precision**-0.5), obs=y)


@CORPUS.add("slope", X, LINE)
def varying_slope(x, y):
    a = numpyro.sample("a", dist.Normal(0.0, 5.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    sd = numpyro.sample("sd", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(a + slope * x, sd), obs=y)


@CORPUS.add("weights", MATRIX, PLANE)
def varying_vector(x, y=None):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    sd = numpyro.sample("sd", dist.LogNormal(-1.0, 0.5))
    numpyro.sample("y", dist.Normal(x @ weights, sd), obs=y)


@CORPUS.add("precision", X, Z, PLANE)
def interaction(x, z, y=None):
    coefs = {name: numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in ("a", "bx", "bz", "bxz")}
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    mu = coefs["a"] + coefs["bx"] * x + (coefs["bz"] + coefs["bxz"] * x) * z
    numpyro.sample("y", dist.Normal(mu, precision**-0.5), obs=y)


@CORPUS.add("precision", X, Z, PLANE)
def mediation(x, z, y):
    a, b = numpyro.sample("ab", dist.Normal(0.0, 1.0).expand([2]))
    c = numpyro.sample("c", dist.Normal(0.0, 1.0))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    numpyro.sample("z", dist.Normal(c * x, 1.0), obs=z)
    numpyro.sample("y", dist.Normal(a * x + b * z, precision**-0.5), obs=y)


@CORPUS.add("level", X, np.round(np.exp(0.5 + 0.3 * X + spread(3, N)) * 2 + 0.1, 3))
def gamma_response(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    shape = numpyro.sample("shape", dist.Gamma(2.0, 0.5))
    numpyro.sample("y", dist.Gamma(shape, shape * jnp.exp(-level - b * x)), obs=y)


@CORPUS.add("precision", X, LINE)
def rows_as_an_event(x, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 10.0))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Normal(b * x, precision**-0.5).to_event(1), obs=y)
