"""Counts and choices without a plate."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from corpus import Corpus, spread

CORPUS = Corpus()
N = 28
RNG = np.random.default_rng(20)
X = RNG.normal(size=N)
COUNTS = RNG.poisson(np.exp(0.8 + 0.3 * X + spread(21, N, 0.9)))
TRIALS = RNG.integers(8, 20, size=N)
WINS = RNG.binomial(TRIALS, 1 / (1 + np.exp(-0.4 * X - spread(22, N, 1.2))))
EXPOSURE = RNG.uniform(0.5, 3.0, size=N)
SHARES = RNG.beta(2.0, 3.0, size=N)
TIMES = RNG.exponential(np.exp(spread(23, N, 0.8)))


@CORPUS.add("rate", COUNTS)
def one_rate(y):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Poisson(rate), obs=y)


@CORPUS.add("a", X, COUNTS)
def log_linear_counts(x, y=None):
    a = numpyro.sample("a", dist.Normal(3.0, 0.5))
    b = numpyro.sample("b", dist.Normal(0.0, 0.2))
    numpyro.sample("y", dist.Poisson(jnp.exp(a + b * x)), obs=y)


@CORPUS.add("log_rate", EXPOSURE, COUNTS)
def counts_with_exposure(exposure, y):
    log_rate = numpyro.sample("log_rate", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Poisson(exposure * jnp.exp(log_rate)), obs=y)


@CORPUS.add("chance", TRIALS, WINS)
def globe_tosses(n, w):
    chance = numpyro.sample("chance", dist.Beta(2.0, 2.0))
    numpyro.sample("w", dist.Binomial(total_count=n, probs=chance), obs=w)


@CORPUS.add("a", X, TRIALS, WINS)
def binomial_regression(x, n, w=None):
    a = numpyro.sample("a", dist.Normal(0.0, 1.5))
    b = numpyro.sample("b", dist.Normal(0.0, 0.5))
    numpyro.sample("w", dist.Binomial(n, logits=a + b * x), obs=w)


@CORPUS.add("a", X, TRIALS, WINS)
def binomial_with_probit(x, n, w=None):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    b = numpyro.sample("b", dist.Normal(0.0, 0.5))
    numpyro.sample("w", dist.Binomial(n, probs=dist.Normal(0, 1).cdf(a + b * x)), obs=w)


@CORPUS.add("flip_logit", X, (WINS * 2 > TRIALS).astype(int))
def bernoulli_regression(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    flip_logit = numpyro.sample("flip_logit", dist.Normal(0.0, 1.5))
    numpyro.sample("y", dist.Bernoulli(logits=flip_logit + b * x), obs=y)


@CORPUS.add("rate", X, COUNTS)
def gamma_rates_times_predictor(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 0.5))
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Poisson(rate * jnp.exp(b * x)), obs=y)


@CORPUS.add("a", X, COUNTS)
def negative_binomial(x, y=None):
    a = numpyro.sample("a", dist.Normal(1.0, 1.0))
    b = numpyro.sample("b", dist.Normal(0.0, 0.5))
    concentration = numpyro.sample("concentration", dist.Exponential(0.2))
    numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(a + b * x), concentration), obs=y)


@CORPUS.add("log_rate", TIMES)
def waiting_times(y):
    log_rate = numpyro.sample("log_rate", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Exponential(jnp.exp(log_rate)), obs=y)


@CORPUS.add("rate", TIMES)
def conjugate_waiting_times(y):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Exponential(rate), obs=y)


@CORPUS.add("a", X, SHARES)
def beta_shares(x, y):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    size = numpyro.sample("size", dist.Gamma(3.0, 0.3))
    mean = 1.0 / (1.0 + jnp.exp(-a - b * x))
    numpyro.sample("y", dist.Beta(mean * size, (1.0 - mean) * size), obs=y)


@CORPUS.add("lam", TIMES + 0.05)
def weibull_times(y):
    lam = numpyro.sample("lam", dist.LogNormal(0.0, 1.0))
    shape = numpyro.sample("shape", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Weibull(lam, shape), obs=y)
