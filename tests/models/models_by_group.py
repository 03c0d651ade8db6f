"""Effects indexed by group, ``a[group]``, with sizes stated or taken from the data."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from corpus import Corpus, noise, spread

CORPUS = Corpus()
N, GROUPS = 32, 4
RNG = np.random.default_rng(40)
G = np.arange(N) % GROUPS
X = RNG.normal(size=N)
Y = np.array([0.0, 1.0, -1.0, 2.0])[G] + X + 0.3 * noise(41, N)
COUNTS = RNG.poisson(np.exp(0.6 + np.array([0.0, 0.5, -0.5, 1.0])[G] + spread(42, N, 0.8)))
TRIALS = np.full(N, 12)
WINS = RNG.binomial(TRIALS, 1 / (1 + np.exp(-np.array([0.0, 1.0, -1.0, 0.5])[G] - spread(43, N, 0.9))))
CITY = G // 2


@CORPUS.add("precision", G, Y, tags="groups")
def index_variable(g, y=None):
    a = numpyro.sample("a", dist.Normal(0.0, 2.0).expand([4]))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Normal(a[g], precision**-0.5), obs=y)


@CORPUS.add("precision", G, X, Y, tags="groups")
def intercepts_and_slopes(g, x, y=None):
    a = numpyro.sample("a", dist.Normal(0.0, 2.0).expand([4]))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([4]))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Normal(a[g] + b[g] * x, precision**-0.5), obs=y)


@CORPUS.add("precision", G, X, Y, tags="groups plate")
def partial_pooling(g, x, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = numpyro.sample("tau", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("groups", 4):
        a = numpyro.sample("a", dist.Normal(mu, tau))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(a[g] + b * x, precision**-0.5), obs=y)


@CORPUS.add("precision", G, X, Y, tags="groups sizes")
def pooling_sized_by_data(g, x, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = numpyro.sample("tau", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("groups", len(np.unique(g))):
        a = numpyro.sample("a", dist.Normal(mu, tau))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Normal(a[g] + b * x, precision**-0.5), obs=y)


@CORPUS.add("overdispersion", G, COUNTS, tags="groups sizes plate")
def counts_by_largest_code(g, y=None):
    with numpyro.plate("groups", int(g.max()) + 1):
        a = numpyro.sample("a", dist.Normal(0.0, 2.0))
    overdispersion = numpyro.sample("overdispersion", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", g.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(a[g] + overdispersion)), obs=y)


@CORPUS.add("chance", G, TRIALS, WINS, tags="groups sizes")
def odds_by_group(g, n, w):
    codes, place = np.unique(g, return_inverse=True)
    a = numpyro.sample("a", dist.Normal(0.0, 1.0).expand([len(codes)]))
    chance = numpyro.sample("chance", dist.Normal(0.0, 1.0))
    numpyro.sample("w", dist.Binomial(n, logits=a[place] + chance), obs=w)


@CORPUS.add("precision", G, CITY, Y, tags="groups")
def two_group_effects(g, city, y=None):
    a = numpyro.sample("a", dist.Normal(0.0, 2.0).expand([4]))
    c = numpyro.sample("c", dist.Normal(0.0, 1.0).expand([2]))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Normal(a[g] + c[city], precision**-0.5), obs=y)


@CORPUS.add("precision", G, X, Y, tags="groups sizes")
def non_centred_groups(g, x, y=None):
    size = len(set(np.asarray(g).tolist()))
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = numpyro.sample("tau", dist.LogNormal(0.0, 0.5))
    z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([size]))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Normal((mu + tau * z)[g] + x, precision**-0.5), obs=y)


@CORPUS.add("log_sd", G, X, Y, tags="groups", refused="no finite top")
def correlated_effects(g, x, y):
    chol = numpyro.sample("chol", dist.LKJCholesky(2, 2.0))
    tau = numpyro.sample("tau", dist.LogNormal(0.0, 0.5).expand([2]))
    centre = numpyro.sample("centre", dist.Normal(0.0, 1.0).expand([2]))
    with numpyro.plate("groups", 4):
        ab = numpyro.sample("ab", dist.MultivariateNormal(centre, scale_tril=tau[:, None] * chol))
    log_sd = numpyro.sample("log_sd", dist.Normal(-1.0, 1.0))
    numpyro.sample("y", dist.Normal(ab[g, 0] + ab[g, 1] * x, jnp.exp(log_sd)), obs=y)


@CORPUS.add("precision", G, X, Y, tags="groups sizes")
def counts_of_groups_weigh(g, x, y=None):
    sizes = np.bincount(g)
    a = numpyro.sample("a", dist.Normal(0.0, 2.0).expand([sizes.shape[0]]))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    centred = a - jnp.sum(a * sizes) / sizes.sum()
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(centred[g] + b * x, precision**-0.5), obs=y)
