"""Every program that cannot be localized is refused with the site's name and a remedy; each model is a realistic slip."""

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import robustly as rb

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2))
Y = X @ np.array([1.0, -1.0]) + RNG.normal(size=40)


def linear(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 10).expand([x.shape[1]]).to_event(1))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, precision**-0.5), obs=y)


def no_plate(x, y=None):
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    numpyro.sample("first", dist.Normal(0.0, precision**-0.5), obs=x[:7, 0])
    numpyro.sample("y", dist.Normal(x.sum(-1), precision**-0.5), obs=y)


def outside(x, y=None):
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    numpyro.sample("anchor", dist.Normal(0.0, precision**-0.5), obs=1.0)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x.sum(-1), precision**-0.5), obs=y)


def branching(x, y=None):
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    scale = precision**-0.5 if precision > 0.1 else 1.0
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x.sum(-1), scale), obs=y)


def numpy_inside(x, y=None):
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x.sum(-1), np.exp(-0.5 * np.log(precision))), obs=y)


def uniform_prior(x, y=None):
    scale = numpyro.sample("scale", dist.Uniform(0.0, 10.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x.sum(-1), scale), obs=y)


def discrete_global(x, y=None):
    k = numpyro.sample("k", dist.Poisson(3.0))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x.sum(-1) + k, precision**-0.5), obs=y)


def wide_local(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([12]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x.sum(-1) + w.sum(), 1.0), obs=y)


def tangled(x, y=None):
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    mu = numpyro.sample("mu", dist.Normal(0.0, tau))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def moving_support(x, y=None):
    top = numpyro.sample("top", dist.HalfNormal(1.0))
    level = numpyro.sample("level", dist.Uniform(0.0, top))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(level, precision**-0.5), obs=y)


def unbounded_latent(y):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", y.shape[0]):
        k = numpyro.sample("k", dist.Poisson(3.0))
        numpyro.sample("y", dist.Normal(k, rate), obs=y)


SLIPS = {
    "unknown site": (linear, "precison", (X, Y), ['"precison"', '"w" and "precision"', 'Did you mean "precision"?']),
    "observed site": (linear, "y", (X, Y), ['"y" is observed', '"precision"']),
    "no plate": (no_plate, "precision", (X, Y), ["in no plate", '"first" has 7', "numpyro.plate"]),
    "observed outside": (outside, "precision", (X, Y), ['"anchor"', "outside plate", "Move"]),
    "branching": (branching, "precision", (X, Y), ["if precision > 0.1", "jnp.where"]),
    "numpy inside": (numpy_inside, "precision", (X, Y), ["np.log(precision)", "jnp instead of np"]),
    "support moves": (
        uniform_prior,
        "scale",
        (X, Y),
        ['"scale" (Uniform)', "support depends on it", "Normal or Gamma"],
    ),
    "discrete site": (discrete_global, "k", (X, Y), ['"k" is discrete', "inside the plate"]),
    "discrete shared": (discrete_global, "precision", (X, Y), ['"k" is discrete and shared', 'plate "data"']),
    "too wide": (wide_local, "w", (X, Y), ["12 dimensions", "up to 10", "smaller site"]),
    "tangled": (tangled, "tau", (X, Y), ['"mu"', 'Localize "mu" too']),
    "shared support moves": (moving_support, "precision", (X, Y), ['"level"', "fixed support"]),
    "endless latent": (unbounded_latent, "rate", (Y,), ['"k"', "finite support"]),
    "no observations": (linear, "precision", (X,), ["no observed site", "fit(x, y)"]),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_refused_by_name_with_a_remedy(slip):
    model, site, args, words = SLIPS[slip]
    with pytest.raises(rb.LocalizeError) as caught:
        rb.localize(model, site).fit(*args)
    for word in words:
        assert word in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fixed": {"shape": 1.0}}, ['"shape"', '"concentration" and "rate"']),
        ({"hyperprior": {"rat": dist.Gamma(2, 1)}}, ['Did you mean "rate"?']),
        ({"fixed": {"b": {"rate": 1.0}}}, ['site "b"', '"precision"']),
        ({"fixed": {"rate": 1.0, "concentration": 2.0}}, ["no argument left to fit", "fixed"]),
        ({"rows": ("x", "z")}, ['rows= names "z"', '"x" and "y"']),
        ({"plate": "rows"}, ['no plate "rows"', '"data"']),
    ],
)
def test_options_that_do_not_fit_are_refused_by_name(options, words):
    with pytest.raises(rb.LocalizeError) as caught:
        rb.localize(linear, "precision", **options).fit(X, Y)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_a_site_must_be_named():
    with pytest.raises(rb.LocalizeError, match="at least one site"):
        rb.localize(linear, [])


def test_with_several_sites_options_are_given_by_site():
    with pytest.raises(rb.LocalizeError, match='"w" and "precision" are localized; write fixed='):
        rb.localize(linear, ["w", "precision"], fixed={"rate": 1.0})
