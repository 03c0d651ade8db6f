"""Both samplers draw from the density they are given, and the quick one knows when it does not suit it."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.diagnostics import effective_sample_size

import robustly as rb
from robustly._runtime import random_keys
from robustly._runtime.precision import double_precision
from robustly.approx import Approximation
from robustly.fit.draws import MIN_EFFICIENCY, accepted, independence, nuts
from robustly.model.parameters import Parameters


def skewed(w):
    """Log-gamma margins of shape 4: exponential tails, a mean below the mode. Exactly known."""
    return jnp.sum(4.0 * w - jnp.exp(w + jnp.log(4.0)))


def narrow_valley(w):
    """A curved ridge, far from any normal."""
    return -0.5 * (w[0] / 2.0) ** 2 - 0.5 * ((w[1] - w[0] ** 2) / 0.05) ** 2


@pytest.mark.parametrize(("sampler", "options"), [(independence, (2000, 2)), (nuts, (1000, 2, 200))])
def test_draws_have_the_moments_of_their_density(sampler, options):
    from scipy.special import digamma, polygamma

    with double_precision():
        if sampler is nuts:
            drawn, divergences = jax.jit(lambda key: nuts(skewed, 3, key, *options))(jax.random.key(3))
            assert int(divergences) == 0
        else:
            drawn, efficiency = independence(jax.vmap(skewed), 3, np.random.default_rng(3), *options)
            assert efficiency > MIN_EFFICIENCY
        draws = np.asarray(drawn)
        size = np.asarray(effective_sample_size(draws))
    assert draws.shape == (2, options[0], 3)
    mean, variance = digamma(4.0) - np.log(4.0), polygamma(1, 4.0)
    # Six comparisons of means at 4.5 standard errors: a false alarm in 20 000 runs.
    assert np.all(np.abs(draws.mean((0, 1)) - mean) < 4.5 * np.sqrt(variance / size))
    np.testing.assert_allclose(draws.var((0, 1)), variance, rtol=0.2)


def test_a_posterior_far_from_normal_is_left_to_nuts():
    with double_precision():
        _, efficiency = independence(jax.vmap(narrow_valley), 2, np.random.default_rng(0), 500, 1)
    assert efficiency < MIN_EFFICIENCY


@pytest.mark.parametrize("seed", [3, np.int64(3), np.random.default_rng(3)])
def test_draws_start_from_any_seed(seed, rng):
    def model(y):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Poisson(rate), obs=y)

    fit = rb.localize(model, "rate").fit(rng.negative_binomial(2, 0.3, size=60))
    assert fit.sample_posterior(20, key=seed)["rate.concentration"].shape == (20,)


def test_what_is_no_seed_is_refused():
    with pytest.raises(rb.ModelError, match="whole number"):
        random_keys.jax_key("today")
    with pytest.raises(rb.ModelError, match="whole number"):
        random_keys.generator(None)


def test_a_chain_is_the_metropolis_rule_step_by_step():
    rng = np.random.default_rng(5)
    log_weight, log_u = rng.normal(size=400), np.log(rng.random(400))
    log_weight[::7] = -np.inf
    log_weight[0] = -np.inf
    here, expected = 0, []
    for i in range(400):
        with np.errstate(invalid="ignore"):
            here = i if log_u[i] < log_weight[i] - log_weight[here] else here
        expected.append(here)
    np.testing.assert_array_equal(accepted(log_weight, log_u), expected)


def test_draws_with_fewer_points_a_row_are_those_with_all(rng):
    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Poisson(jnp.exp(b + w * x)), obs=y)

    x = rng.normal(size=80)
    fit = rb.localize(model, "b").fit(x, rng.poisson(np.exp(1.0 + 0.5 * x + 0.7 * rng.normal(size=80))))
    some = fit.sample_posterior(60, key=4)
    approx = type(fit.source.problem.parts[1])
    kept, approx.for_draws = approx.for_draws, Approximation.for_draws
    try:
        fit.source.compiled.clear()
        every = fit.sample_posterior(60, key=4)
    finally:
        approx.for_draws = kept
    np.testing.assert_allclose(some["b.scale"], every["b.scale"], rtol=1e-4)
    np.testing.assert_allclose(some["w"], every["w"], rtol=1e-4, atol=1e-5)


def test_natural_values_of_many_vectors_are_those_of_each():
    simplex, positive = dist.constraints.simplex, dist.constraints.positive
    parameters = Parameters(
        {"a": 1.0, "p": np.full(3, 1 / 3), "s": np.ones((2, 2)), "m": np.zeros(2)},
        {"p": simplex, "s": positive},
        {"k": 2.0},
    )
    vectors = np.random.default_rng(0).normal(size=(2, 5, parameters.size))
    with double_precision():
        many = parameters.natural_of_many(vectors)
        for place in np.ndindex(2, 5):
            for name, value in parameters.natural(jnp.asarray(vectors[place])).items():
                np.testing.assert_allclose(many[name][place], value, rtol=1e-14)
