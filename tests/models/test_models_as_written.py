"""Sites as people write them: priors that follow a localized site, weights of networks in dictionaries, items and persons."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import robustly as rb
from robustly.localized.truncated import truncated_cdf, truncated_moments

RNG = np.random.default_rng(8)
X = RNG.normal(size=20)
Y = np.tanh(X) + 0.2 * RNG.standard_t(2, size=20)


def scaled_slope(x, y):
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    b = numpyro.sample("b", dist.Normal(0.0, precision**-0.5))
    numpyro.sample("y", dist.Normal(b * x, precision**-0.5), obs=y)


def test_a_site_whose_prior_follows_a_localized_one_is_localized_by_one_word():
    with pytest.raises(rb.LocalizeError, match='also="auto"'):
        rb.localize(scaled_slope, "precision").row_model(X, Y)
    robust = rb.localize(scaled_slope, "precision", also="auto")
    assert robust.row_model(X, Y).dim == 2
    assert set(robust.programs_read[-1][0].sites.local) == {"precision", "b"}


def module(name):
    """What ``numpyro.contrib.module.flax_module`` does: all weights are one parameter, a dictionary of dictionaries."""
    weights = numpyro.param(f"{name}$params")
    if weights is None:
        weights = {"hidden": {"kernel": jnp.array([[0.3, -0.2]])}, "out": {"kernel": jnp.array([[0.5], [0.4]])}}
        numpyro.param(f"{name}$params", weights)
    return lambda x: (jnp.tanh(x[:, None] @ weights["hidden"]["kernel"]) @ weights["out"]["kernel"])[:, 0]


def network(x, y=None):
    net = module("net")
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(net(x), precision**-0.5), obs=y)


def test_weights_of_a_network_are_shared_parameters():
    model = rb.localize(network, "precision").row_model(X, Y)
    names = ["net$params['hidden']['kernel']", "net$params['out']['kernel']"]
    assert [name for name in model.start if name.startswith("net")] == names
    with jax.enable_x64(True):
        hidden, out = jnp.array([[1.0, 2.0]]), jnp.array([[0.5], [-1.0]])
        theta = {**model.parameters.natural(jnp.asarray(model.parameters.start)), names[0]: hidden, names[1]: out}
        found = model.log_likelihood(jnp.asarray(2.0), theta, (jnp.asarray(X[3]), jnp.asarray(Y[3])))
        mean = 0.5 * np.tanh(X[3]) - np.tanh(2.0 * X[3])
        assert float(found) == pytest.approx(0.5 * np.log(2.0 / (2.0 * np.pi)) - (Y[3] - mean) ** 2, rel=1e-12)


PERSONS, ITEMS = 25, 4
PERSON, ITEM = np.divmod(np.arange(PERSONS * ITEMS), ITEMS)
ANSWERS = RNG.binomial(1, 1.0 / (1.0 + np.exp(-1.5 * RNG.normal(size=PERSONS)[PERSON] + np.linspace(-1, 1, 4)[ITEM])))


def item_response(person, item, y=None):
    difficulty = numpyro.sample("difficulty", dist.Normal(0.0, 2.0).expand([ITEMS]))
    sharpness = numpyro.sample("sharpness", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("persons", PERSONS):
        ability = numpyro.sample("ability", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Bernoulli(logits=sharpness * (ability[person] - difficulty[item])), obs=y)


def test_abilities_are_integrated_out_of_an_item_response_model():
    fit = rb.integrate(item_response, "ability").fit(PERSON, ITEM, ANSWERS)
    assert fit.outcome.converged
    at = np.linspace(-12.0, 12.0, 2401)
    eta = float(fit.shared["sharpness"]) * (at[:, None] - fit.shared["difficulty"][None, :])
    sign = np.where(ANSWERS.reshape(PERSONS, ITEMS) == 1, -1.0, 1.0)
    log_each = -np.logaddexp(0.0, sign[:, None, :] * eta[None]).sum(axis=2) - 0.5 * at**2
    expected = np.log(np.exp(log_each).sum(axis=1) * 0.01 / np.sqrt(2.0 * np.pi))
    np.testing.assert_allclose(fit.evidence, expected, atol=1e-7)


@pytest.mark.parametrize(
    ("loc", "scale", "low", "high"), [(0, 1, -0.5, 9), (-1, 0.01, 0, 9), (2, 0.01, -9, 1), (30, 1, 0, 1)]
)
def test_truncated_laws_are_known_where_next_to_nothing_is_left_of_their_base(loc, scale, low, high):
    with jax.enable_x64(True):
        law = dist.TruncatedNormal(float(loc), scale, low=float(low), high=float(high))
        # What is left: some scales from the end, or the point between, that is nearest the middle.
        near = np.clip(loc, low, high)
        width = scale / max(1.0, abs(near - loc) / scale)
        at = np.linspace(max(low, near - 40 * width), min(high, near + 40 * width), 200_001)
        density = np.exp(-0.5 * ((at - loc) / scale) ** 2 + 0.5 * ((near - loc) / scale) ** 2)
        below = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]))])
        some = slice(0, None, 20_000)
        np.testing.assert_allclose(truncated_cdf(law, at[some]), below[some] / below[-1], atol=1e-6)
        mean, variance = truncated_moments(law)
        share = density / density.sum()
        assert float(mean) == pytest.approx(share @ at, abs=1e-3 * width)
        assert float(variance) == pytest.approx(share @ (at - share @ at) ** 2, rel=1e-2)


def scaled_line(x, y=None):
    b, scale = numpyro.param("b", 0.1), numpyro.param("scale", 1.0, constraint=dist.constraints.positive)
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(b * x, scale * precision**-0.5), obs=y)


@pytest.mark.filterwarnings("ignore::robustly.errors.HeavyTailsWarning")
def test_a_scale_that_precisions_take_in_does_not_disturb_the_judging_of_rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=60)
    y = 1.5 * x + rng.normal(size=60)
    y[[3, 40]] += [9.0, -9.0]
    fit = rb.localize(scaled_line, "precision").fit(x, y)
    assert sorted(fit.outliers()) == [3, 40]
    # A regression through the origin has the scale of its errors once.
    plain = rb.RobustLinearRegression(fit_intercept=False).fit(x[:, None], y).result_
    np.testing.assert_allclose(fit.outlier_probability, plain.outlier_probability, atol=1e-3)
