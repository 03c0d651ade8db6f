"""Values that a model has by group are integrated out: closed forms of normal groups, and who may not be integrated."""

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import robustly as rb

N, J = 40, 6
RNG = np.random.default_rng(5)
G = RNG.integers(0, J, size=N)
Y = 1.0 + 1.5 * RNG.normal(size=J)[G] + 0.5 * RNG.normal(size=N)


def pooled(g, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
    tau = numpyro.sample("tau", dist.LogNormal(0.0, 1.0))
    sd = numpyro.sample("sd", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("groups", J):
        a = numpyro.sample("a", dist.Normal(mu, tau))
    with numpyro.plate("data", len(g)):
        numpyro.sample("y", dist.Normal(a[g], sd), obs=y)


def sized_by_data(g, y=None):
    """The same model, non-centred, without a plate around its rows, sized by its data."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
    tau = numpyro.sample("tau", dist.LogNormal(0.0, 1.0))
    sd = numpyro.sample("sd", dist.LogNormal(0.0, 1.0))
    z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([len(np.unique(g))]))
    numpyro.sample("y", dist.Normal(mu + tau * z[g], sd), obs=y)


def marginal(fit):
    """Summed evidence of normal groups with a normal value each, as one multivariate normal a group."""
    mu, tau, sd = (float(fit.shared[name]) for name in ("mu", "tau", "sd"))
    logs = []
    for j in dict.fromkeys(G):
        mine = Y[j == G]
        cover = sd**2 * np.eye(len(mine)) + tau**2
        logs.append(stats.multivariate_normal(np.full(len(mine), mu), cover).logpdf(mine))
    return np.array(logs)


@pytest.fixture(scope="module")
def fit():
    return rb.integrate(pooled, "a").fit(G, Y)


def test_the_evidence_of_a_group_is_its_multivariate_normal(fit):
    np.testing.assert_allclose(fit.evidence, marginal(fit), atol=1e-9)
    assert fit.outcome.converged
    assert fit.unit == "group"


def test_a_group_has_its_shrunken_mean(fit):
    mu, tau, sd = (float(fit.shared[name]) for name in ("mu", "tau", "sd"))
    labels = list(dict.fromkeys(G))
    count = np.array([np.sum(j == G) for j in labels])
    mean = np.array([Y[j == G].mean() for j in labels])
    precision = tau**-2 + count * sd**-2
    np.testing.assert_allclose(fit.posterior("a").mean, (mu * tau**-2 + count * mean * sd**-2) / precision, rtol=1e-9)
    np.testing.assert_allclose(fit.posterior("a").sd, precision**-0.5, rtol=1e-9)
    new = fit.predictive(np.array([0, 1]))
    np.testing.assert_allclose(new.mean, mu, rtol=1e-6)
    np.testing.assert_allclose(new.sd, np.hypot(tau, sd), rtol=1e-6)


def test_another_way_to_write_it_has_the_same_evidence(fit):
    other = rb.integrate(sized_by_data, "z").fit(G, Y)
    assert other.objective == pytest.approx(fit.objective, abs=1e-6)
    np.testing.assert_allclose(other.evidence, marginal(other), atol=1e-9)


def test_named_groups_are_those_of_the_model(fit):
    other = rb.localize(pooled, "a", by="g").fit(G, Y)
    assert other.unit == "g"
    assert other.objective == pytest.approx(fit.objective, abs=1e-8)


def chained(g, y):
    with numpyro.plate("groups", J):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(a[g] + a[(g + 1) % J], 1.0), obs=y)


def crossed(g, y):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0).expand([J]))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([J]))
    numpyro.sample("y", dist.Normal(a[g] + b[(g + np.arange(N)) % J], 1.0), obs=y)


def own_priors(g, y):
    a = numpyro.sample("a", dist.Normal(np.arange(J), 1.0))
    numpyro.sample("y", dist.Normal(a[g], 1.0), obs=y)


@pytest.mark.parametrize(
    ("model", "sites", "words"),
    [
        (chained, "a", "sees 2 values"),
        (crossed, ["a", "b"], "different groups"),
        (own_priors, "a", "no prior in common"),
        (pooled, "mu", "a single number"),
        (pooled, "b", 'no latent site "b"'),
    ],
)
def test_what_is_not_by_group_is_refused(model, sites, words):
    with pytest.raises(rb.LocalizeError, match=words):
        rb.integrate(model, sites).fit(G, Y)
