"""Ordinal, categorical, zero-inflated, truncated and censored outcomes, mixtures and factors."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from corpus import Corpus, noise, spread

CORPUS = Corpus()
N = 30
RNG = np.random.default_rng(50)
X = RNG.normal(size=N)
GRADES = np.clip(np.round(2.0 + 0.8 * X + spread(51, N, 1.2)), 0, 4).astype(int)
CHOICES = RNG.integers(0, 3, size=N)
COUNTS = RNG.poisson(np.exp(0.9 + 0.3 * X + spread(52, N, 0.8))) * (RNG.uniform(size=N) > 0.3)
LINE = 1.0 + X + 0.5 * noise(53, N)
FLOOR = np.maximum(LINE, 0.0)
CENSORED = LINE <= 0.0
TIMES = RNG.exponential(np.exp(0.4 * X + spread(54, N, 0.6))) + 0.01
ENDED = RNG.uniform(size=N) > 0.25


@CORPUS.add("eta", X, GRADES, tags="outcome")
def ordered_logistic(x, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    eta = numpyro.sample("eta", dist.Normal(0.0, 1.0))
    steps = numpyro.sample("steps", dist.HalfNormal(1.5).expand([3]))
    first = numpyro.sample("first", dist.Normal(-1.5, 1.0))
    cuts = first + jnp.concatenate([jnp.zeros(1), jnp.cumsum(steps)])
    numpyro.sample("y", dist.OrderedLogistic(b * x + eta, cuts), obs=y)


@CORPUS.add("phi", X, GRADES, tags="outcome", fixed={"loc": 0.0})
def ordered_cutpoints(x, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    phi = numpyro.sample("phi", dist.Normal(0.0, 1.0))
    base = dist.Normal(0.0, 1.5).expand([4]).to_event(1)
    cuts = numpyro.sample("cuts", dist.TransformedDistribution(base, dist.transforms.OrderedTransform()))
    numpyro.sample("y", dist.OrderedLogistic(b * x + phi, cuts), obs=y)


@CORPUS.add("taste", X, CHOICES, tags="outcome")
def career_choice(x, y):
    taste = numpyro.sample("taste", dist.Normal(0.0, 1.0))
    b = numpyro.sample("b", dist.HalfNormal(0.5))
    s1, s2 = b * x, 2 * b * x + taste
    numpyro.sample("y", dist.Categorical(logits=jnp.stack([s1, s2, jnp.zeros_like(x)], axis=-1)), obs=y)


@CORPUS.add("a", X, COUNTS, tags="outcome")
def zero_inflated_counts(x, y=None):
    gate = numpyro.sample("gate", dist.Beta(2.0, 6.0))
    a = numpyro.sample("a", dist.Normal(1.0, 0.5))
    b = numpyro.sample("b", dist.Normal(0.0, 0.5))
    numpyro.sample("y", dist.ZeroInflatedPoisson(gate, jnp.exp(a + b * x)), obs=y)


@CORPUS.add("log_sd", X, FLOOR + 0.01, tags="outcome")
def truncated_below(x, y):
    a = numpyro.sample("a", dist.Normal(0.0, 2.0))
    b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    log_sd = numpyro.sample("log_sd", dist.Normal(0.0, 0.5))
    numpyro.sample("y", dist.TruncatedNormal(a + b * x, jnp.exp(log_sd), low=0.0), obs=y)


@CORPUS.add("log_sd", X, FLOOR, CENSORED, tags="outcome", new=())
def censored_by_factor(x, y, censored):
    b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    log_sd = numpyro.sample("log_sd", dist.Normal(-0.5, 0.7))
    law = dist.Normal(1.0 + b * x, jnp.exp(log_sd))
    numpyro.factor("likelihood", jnp.where(censored, jnp.log(law.cdf(y)), law.log_prob(y)))


@CORPUS.add("log_rate", X, TIMES, ENDED, tags="outcome", new=())
def survival(x, time, ended):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    log_rate = numpyro.sample("log_rate", dist.Normal(0.0, 1.0))
    rate = jnp.exp(log_rate + b * x)
    with numpyro.handlers.mask(mask=ended):
        numpyro.sample("time", dist.Exponential(rate), obs=time)
    with numpyro.handlers.mask(mask=~ended):
        numpyro.sample("later", dist.Bernoulli(jnp.exp(-rate * time)), obs=jnp.ones(time.shape[0], dtype=int))


@CORPUS.add("a", X, np.full(N, 10), np.minimum(COUNTS, 10), tags="outcome")
def beta_binomial(x, n, y):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    size = numpyro.sample("size", dist.Gamma(4.0, 0.5))
    mean = jax.nn.sigmoid(a + 0.2 * x)
    numpyro.sample("y", dist.BetaBinomial(mean * size, (1 - mean) * size, n), obs=y)


@CORPUS.add("log_sd", X, LINE, tags="outcome")
def mixture_of_two(x, y=None):
    share = numpyro.sample("share", dist.Beta(2.0, 2.0))
    log_sd = numpyro.sample("log_sd", dist.Normal(-0.5, 0.7))
    parts = [dist.Normal(x, jnp.exp(log_sd)), dist.Normal(1.0 + x, jnp.exp(log_sd))]
    mixing = dist.Categorical(jnp.stack([share, 1 - share]))
    numpyro.sample("y", dist.MixtureGeneral(mixing, parts), obs=y)


@CORPUS.add("scale", X, LINE)
def student_t(x, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    scale = numpyro.sample("scale", dist.LogNormal(-0.5, 0.7))
    numpyro.sample("y", dist.StudentT(4.0, 1.0 + b * x, scale), obs=y)


@CORPUS.add("precision", X, LINE)
def bounded_and_flat_priors(x, y):
    a = numpyro.sample("a", dist.ImproperUniform(dist.constraints.real, (), ()))
    b = numpyro.sample("b", dist.Uniform(-5.0, 5.0))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Normal(a + b * x, precision**-0.5), obs=y)


@CORPUS.add("precision", X, LINE)
def with_a_penalty(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 10.0))
    numpyro.factor("penalty", -0.5 * (b - 1.0) ** 2)
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Normal(1.0 + b * x, precision**-0.5), obs=y)


@CORPUS.add("z", np.column_stack([LINE, LINE + 0.3 * noise(55, N)]), tags="outcome", new=())
def two_outcomes(y):
    z = numpyro.sample("z", dist.Normal(0.0, 1.5))
    sd = numpyro.sample("sd", dist.LogNormal(-0.5, 0.5))
    chol = jnp.array([[1.0, 0.0], [0.3, 1.0]])
    numpyro.sample("y", dist.MultivariateNormal(z * jnp.ones(2), scale_tril=sd * chol), obs=y)
