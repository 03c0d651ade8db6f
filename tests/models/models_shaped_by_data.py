"""Programs that read their data from outside, look at all rows, fill in values, or mix rows (and are refused)."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from corpus import Corpus, noise, spread
from numpyro.contrib.control_flow import scan

CORPUS = Corpus()
N = 26
RNG = np.random.default_rng(60)
X = RNG.normal(size=N)
Y = 1.0 + X + 0.4 * noise(61, N)
COUNTS = RNG.poisson(np.exp(0.8 + 0.3 * X + spread(62, N, 0.9)))
GAPS = np.where(np.arange(N) % 7 == 3, np.nan, X)
MISSING = np.flatnonzero(np.isnan(GAPS))
DISTANCE = np.abs(X[:, None] - X[None, :])


@CORPUS.add("precision", new=())
def reads_from_outside():
    b = numpyro.sample("b", dist.Normal(0.0, 10.0))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Normal(1.0 + b * X, precision**-0.5), obs=Y)


@CORPUS.add("a", COUNTS)
def reads_a_predictor_from_outside(y=None):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", N):
        numpyro.sample("y", dist.Poisson(jnp.exp(a + b * X)), obs=y)


@CORPUS.add("precision", X, Y)
def standardised_inside(x, y=None):
    z = (x - x.mean()) / x.std()
    a = numpyro.sample("a", dist.Normal(0.0, 2.0))
    b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Normal(a + b * z, precision**-0.5), obs=y)


@CORPUS.add("precision", X, Y)
def spline_of_knots(x, y=None):
    knots = np.quantile(x, [0.25, 0.5, 0.75])
    basis = np.maximum(x[:, None] - knots[None, :], 0.0)
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([basis.shape[1]]))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Normal(1.0 + basis @ w, precision**-0.5), obs=y)


@CORPUS.add("precision", GAPS, Y, new=())
def imputed_predictor(x, y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    filled = numpyro.sample("filled", dist.Normal(mu, 1.0).expand([len(MISSING)]).mask(False))
    merged = jnp.asarray(np.nan_to_num(x)).at[MISSING].set(filled)
    numpyro.sample("x", dist.Normal(mu, 1.0), obs=merged)
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Normal(1.0 + b * merged, precision**-0.5), obs=y)


@CORPUS.add("precision", Y, new=())
def one_step_ahead(y):
    rho = numpyro.sample("rho", dist.Normal(0.0, 0.5))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    numpyro.sample("next", dist.Normal(1.0 + rho * y[:-1], precision**-0.5), obs=y[1:])


@CORPUS.add("error", COUNTS)
def own_errors(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    error = numpyro.sample("error", dist.Normal(0.0, 1.0).expand([len(y)]))
    numpyro.sample("y", dist.Poisson(jnp.exp(mu + error)), obs=y)


@CORPUS.add("level", X, COUNTS, tags="plate", new=())
def own_levels_from_outside(x, y):
    tau = numpyro.sample("tau", dist.LogNormal(-0.5, 0.5))
    with numpyro.plate("data", N):
        level = numpyro.sample("level", dist.Normal(0.3 * X, tau))
        numpyro.sample("y", dist.Poisson(jnp.exp(level)), obs=y)


@CORPUS.add("log_sd", X, Y)
def small_network(x, y=None):
    hidden = numpyro.sample("hidden", dist.Normal(0.0, 1.0).expand([1, 3]).to_event(2))
    out = numpyro.sample("out", dist.Normal(0.0, 1.0).expand([3, 1]).to_event(2))
    log_sd = numpyro.sample("log_sd", dist.Normal(-0.5, 0.7))
    numpyro.sample("y", dist.Normal((jnp.tanh(x[:, None] @ hidden) @ out)[:, 0], jnp.exp(log_sd)), obs=y)


@CORPUS.add("step", Y, tags="plate", refused="not independent")
def random_walk(y):
    with numpyro.plate("data", len(y)):
        step = numpyro.sample("step", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(jnp.cumsum(step), 0.5), obs=y)


@CORPUS.add("noise", X, Y, refused="not independent")
def gaussian_process(x, y):
    width = numpyro.sample("width", dist.LogNormal(0.0, 1.0))
    noise = numpyro.sample("noise", dist.LogNormal(-1.0, 1.0))
    kernel = jnp.exp(-((DISTANCE / width) ** 2)) + (noise + 1e-6) * jnp.eye(N)
    numpyro.sample("y", dist.MultivariateNormal(jnp.ones(N), covariance_matrix=kernel), obs=y)


@CORPUS.add("sd", Y, refused="series")
def chain_by_scan(y):
    sd = numpyro.sample("sd", dist.LogNormal(0.0, 1.0))

    def step(level, seen):
        level = numpyro.sample("level", dist.Normal(level, sd))
        numpyro.sample("y", dist.Normal(level, 0.5), obs=seen)
        return level, None

    scan(step, 0.0, y)


@CORPUS.add("height", X, Y, refused='no latent site "height"')
def site_by_another_name(x, y):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(a + x, jax.nn.softplus(a)), obs=y)
