"""A program that is run on all rows at once says of every row what the same program says when it is called with one row.

Pairs of programs that state one model: one can be called with a row, the other reads sizes or data from all of them. Densities
of every row are compared at values and parameters drawn at random; equality is up to rounding.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from compilations import compilations

import robustly as rb

N = 24
RNG = np.random.default_rng(7)
X = RNG.normal(size=(N, 2))
G = np.arange(N) % 3
Y = X @ np.array([1.0, -1.0]) + RNG.standard_t(2, size=N)
K = RNG.poisson(2.0, size=N)


def linear(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 10).expand([2]).to_event(1))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, precision**-0.5), obs=y)


def centred(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 10).expand([2]).to_event(1))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Normal((x - x.mean(0)) @ w, precision**-0.5), obs=y)


def closed_over():
    w = numpyro.sample("w", dist.Normal(0, 10).expand([2]).to_event(1))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", N):
        numpyro.sample("y", dist.Normal(X @ w, precision**-0.5), obs=Y)


def subsampled(x, y):
    w = numpyro.sample("w", dist.Normal(0, 10).expand([2]).to_event(1))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", N, subsample_size=10) as index:
        numpyro.sample("y", dist.Normal(x[index] @ w, precision**-0.5), obs=y[index])


def grouped(g, y=None, size=3):
    effect = numpyro.sample("effect", dist.Normal(0, 1).expand([size]))
    level = numpyro.sample("level", dist.Normal(0, 1))
    numpyro.sample("y", dist.Poisson(jnp.exp(effect[g] + level)), obs=y)


def grouped_by_data(g, y=None):
    grouped(g, y, size=len(jnp.unique(g)))


def own_levels(g, y):
    tau = numpyro.sample("tau", dist.LogNormal(0, 1))
    with numpyro.plate("data", len(g)):
        level = numpyro.sample("level", dist.Normal(0.1 * g, tau))
        numpyro.sample("y", dist.Poisson(jnp.exp(level)), obs=y)


def own_levels_from_outside(y):
    tau = numpyro.sample("tau", dist.LogNormal(0, 1))
    with numpyro.plate("data", N):
        level = numpyro.sample("level", dist.Normal(0.1 * G, tau))
        numpyro.sample("y", dist.Poisson(jnp.exp(level)), obs=y)


def kinds(y):
    share = numpyro.sample("share", dist.Beta(2.0, 2.0))
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", len(y)):
        kind = numpyro.sample("kind", dist.Bernoulli(share))
        numpyro.sample("y", dist.Poisson(rate * (1.0 + 3.0 * kind)), obs=y)


def kinds_from_outside():
    share = numpyro.sample("share", dist.Beta(2.0, 2.0))
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", N):
        kind = numpyro.sample("kind", dist.Bernoulli(share))
        numpyro.sample("y", dist.Poisson(rate * (1.0 + 3.0 * kind)), obs=K)


PAIRS = {
    "centring": (linear, (X - X.mean(0), Y), centred, (X, Y), "precision"),
    "data read from outside": (linear, (X, Y), closed_over, (), "precision"),
    "subsampling takes all rows": (linear, (X, Y), subsampled, (X, Y), "precision"),
    "sizes from data": (grouped, (G, K), grouped_by_data, (G, K), "level"),
    "a value a row already": (own_levels, (G, K), own_levels_from_outside, (K,), "level"),
    "latents summed over": (kinds, (K,), kinds_from_outside, (), "rate"),
}


def densities(model, site, args, seed):
    """Every row's joint log density, and its prior's, at random values."""
    with jax.enable_x64(True):
        localized = rb.localize(model, site)
        rows = localized.row_model(*args)
        program = localized.programs_read[-1][0]
        rng = np.random.default_rng(seed)
        theta = rows.parameters.natural(jnp.asarray(rows.parameters.start + rng.normal(size=rows.parameters.size)))
        data = (jnp.arange(N),) if program.is_whole else tuple(jnp.asarray(a) for a in args)
        u = jnp.asarray(rng.normal(size=(N, 1)))
        z = None if rows.latents is None else jnp.asarray(rows.latents[-1])
        joint = lambda u, row: rows.log_joint(u, theta, row, z)
        read = lambda u, row: (
            rows.log_density(rows.local(u, theta, row)[0], theta, row, z) + rows.local(u, theta, row)[1]
        )
        both = jax.jit(jax.vmap(lambda u, row: (joint(u, row), read(u, row), jax.grad(joint)(u, row))))(u, data)
        return program.is_whole, [np.asarray(a) for a in both]


@pytest.mark.parametrize("pair", PAIRS)
def test_rows_of_a_program_run_whole_are_those_of_one_called_by_row(pair):
    by_row, row_args, whole, whole_args, site = PAIRS[pair]
    (is_whole, expected), (other, found) = densities(by_row, site, row_args, 1), densities(whole, site, whole_args, 1)
    assert not is_whole
    assert other or whole is subsampled
    for a, b in zip(expected, found):
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-10)


def test_a_model_whose_outside_data_change_is_another_model():
    global Y
    localized = rb.localize(closed_over, "precision")
    first = localized.row_model()
    kept = Y
    try:
        Y = Y + 1.0
        assert localized.row_model() is not first
    finally:
        Y = kept
    assert localized.row_model() is first


def test_a_model_defined_again_is_the_same_model():
    def cell(scale):
        def model(y):
            rate = numpyro.sample("rate", dist.Gamma(2.0, scale))
            numpyro.sample("y", dist.Poisson(rate), obs=y)

        return model

    first = rb.localize(cell(1.0), "rate").row_model(K)
    assert rb.localize(cell(1.0), "rate").row_model(K) is first
    assert rb.localize(cell(2.0), "rate").row_model(K) is not first


@pytest.mark.parametrize(("model", "args"), [(centred, (X, Y)), (grouped_by_data, (G, K))])
def test_other_data_of_a_program_run_whole_build_nothing(model, args):
    localized = rb.localize(model, "precision" if model is centred else "level")
    order = np.random.default_rng(1).permutation(N)
    others = args[0][order] * (2.0 if model is centred else 1), args[1][order[::-1]]
    first = localized.fit(*args)
    with compilations() as built:
        localized.fit(*others)
    assert len(localized.programs_read) == 1
    assert not built.programs
    with jax.enable_x64(True):
        program, _, _ = localized.programs_read[0]
        alone = type(program)(program.request, replace(program.arguments, leaves=others))
        theta = alone.row_model.parameters.natural(jnp.asarray(alone.row_model.parameters.start + 0.1))
        rows = (jnp.arange(N), *map(jnp.asarray, alone.row_data(alone.arguments)[0][1:]))
        u = jnp.full((N, 1), 0.3)
        joint = lambda program: np.asarray(jax.vmap(lambda u, row: program.row_model.log_joint(u, theta, row))(u, rows))
        np.testing.assert_allclose(joint(program), joint(alone), rtol=1e-12)
    np.testing.assert_array_equal(localized.fit(*args).vector, first.vector)


def test_a_prior_that_follows_the_data_makes_another_program():
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(y.mean(), 1.0))
        precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
        numpyro.sample("y", dist.Normal(mu, precision**-0.5), obs=y)

    localized = rb.localize(model, "precision")
    first = localized.row_model(Y)
    assert localized.row_model(Y.copy()) is first
    assert localized.row_model(Y + 1.0) is not first
