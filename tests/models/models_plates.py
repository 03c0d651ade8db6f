"""Models with a plate around what is observed, nested plates and subsampling included."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from corpus import Corpus, noise, spread

CORPUS = Corpus()
N = 26
RNG = np.random.default_rng(30)
X = RNG.normal(size=N)
LINE = 0.5 + 1.5 * X + 0.4 * noise(31, N)
COUNTS = RNG.poisson(np.exp(0.8 + 0.3 * X + spread(32, N, 0.9)))
PANEL = spread(33, N, 1.5)[:, None] + 0.5 * RNG.normal(size=(N, 3))
EFFECT, ERROR = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
MASK = np.arange(N) % 5 != 0


@CORPUS.add("precision", X, LINE, tags="plate")
def line_in_a_plate(x, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 10.0))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(b * x, precision**-0.5), obs=y)


@CORPUS.add("a", X, COUNTS, tags="plate")
def counts_sized_by_their_length(x, y):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Poisson(jnp.exp(a + b * x)), obs=y)


@CORPUS.add("theta", 8, ERROR, EFFECT, tags="plate", new=(3, ERROR[:3]))
def eight_schools(J, sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.LogNormal(1.0, 1.0))
    with numpyro.plate("J", J):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("obs", dist.Normal(theta, sigma), obs=y)


@CORPUS.add("precision", PANEL, tags="plate", new=())
def panel_of_three(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    with numpyro.plate("units", y.shape[0], dim=-2), numpyro.plate("times", y.shape[1], dim=-1):
        numpyro.sample("y", dist.Normal(mu, precision**-0.5), obs=y)


@CORPUS.add("level", PANEL, tags="plate", new=())
def level_of_a_panel(y):
    level = numpyro.sample("level", dist.Normal(0.0, 2.0))
    sd = numpyro.sample("sd", dist.HalfNormal(1.0))
    with numpyro.plate("units", y.shape[0], dim=-2), numpyro.plate("times", y.shape[1], dim=-1):
        numpyro.sample("y", dist.Normal(level, sd), obs=y)


@CORPUS.add("precision", X, LINE, tags="plate", new=())
def subsampled(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 10.0))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", x.shape[0], subsample_size=10) as index:
        numpyro.sample("y", dist.Normal(b * x[index], precision**-0.5), obs=y[index])


@CORPUS.add("rate", COUNTS, MASK, tags="plate", new=())
def masked_rows(y, seen):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", y.shape[0]), numpyro.handlers.mask(mask=seen):
        numpyro.sample("y", dist.Poisson(rate), obs=y)


@CORPUS.add("precision", X, LINE, MASK, tags="plate", new=())
def partly_observed(x, y, seen):
    b = numpyro.sample("b", dist.Normal(0.0, 10.0))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(b * x, precision**-0.5), obs=y, obs_mask=seen)


@CORPUS.add("rate", COUNTS, tags="plate")
def two_kinds_of_rows(y):
    share = numpyro.sample("share", dist.Beta(2.0, 2.0))
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", len(y)):
        kind = numpyro.sample("kind", dist.Bernoulli(share))
        numpyro.sample("y", dist.Poisson(rate * (1.0 + 3.0 * kind)), obs=y)


@CORPUS.add("precision", {"x": X, "y": LINE}, tags="plate", new=())
def data_in_a_dictionary(data):
    b = numpyro.sample("b", dist.Normal(0.0, 10.0))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", len(data["y"])):
        numpyro.sample("y", dist.Normal(b * data["x"], precision**-0.5), obs=data["y"])


@CORPUS.add("precision", X, LINE, tags="plate")
def learnt_parameter(x, y=None):
    b = numpyro.param("b", 0.1)
    scale = numpyro.param("scale", 1.0, constraint=dist.constraints.positive)
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(b * x, scale * precision**-0.5), obs=y)


def pooled(x, y=None):
    tau = numpyro.sample("tau", dist.LogNormal(0.0, 0.5))
    mu = numpyro.sample("mu", dist.Normal(0.0, tau))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(mu + 1.5 * x, 0.3), obs=y)


reparameterised = numpyro.handlers.reparam(pooled, config={"mu": numpyro.infer.reparam.LocScaleReparam(0.0)})
CORPUS.add("mu", X, LINE, tags="plate")(reparameterised)
