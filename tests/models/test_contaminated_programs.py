"""Claims on priors with a wide part: the evidence is that of two parts, and rows and groups that do not belong are found."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import robustly as rb

ROWS = 60


def places(x, y=None):
    place = numpyro.sample("place", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(place + x, 0.5), obs=y)


def drawn(seed, bad):
    rng = np.random.default_rng(seed)
    own = rng.normal(size=ROWS)
    own[:bad] += 12.0
    x = rng.normal(size=ROWS)
    return x, x + own + 0.5 * rng.normal(size=ROWS)


@pytest.fixture(scope="module")
def strayed():
    return rb.localize(places, "place", contaminated=True).fit(*drawn(0, 4))


def test_the_evidence_is_that_of_two_normals(strayed):
    """Normal places seen with normal noise: both parts are normals in closed form."""
    told, (x, y) = strayed.parameters, drawn(0, 4)
    law = lambda stretch: stats.norm(told["place.loc"], np.hypot(0.5, stretch * told["place.scale"]))
    core, wide = law(1.0).logpdf(y - x), law(np.sqrt(1.0 + told["place.width"] ** 2)).logpdf(y - x)
    share = told["place.share"]
    both = np.logaddexp(np.log1p(-share) + core, np.log(share) + wide)
    np.testing.assert_allclose(strayed.evidence, both, atol=1e-6)
    odds = np.log(share) - np.log1p(-share) + wide - core
    # The probabilities are averaged over what rows leave open of these odds, so they lie nearer to a half.
    found = strayed.outlier_probability
    assert np.all((found - 0.5) * odds > -1e-3)
    assert set(np.argsort(-found)[:4]) == set(range(4))
    assert sorted(strayed.outliers()) == [0, 1, 2, 3]


def test_strayed_rows_do_not_widen_the_core(strayed):
    plain = rb.localize(places, "place").fit(*drawn(0, 4))
    assert strayed.parameters["place.scale"] < 0.6 * plain.parameters["place.scale"]
    assert strayed.hyperparameters["place"]["share"] == pytest.approx(4 / ROWS, abs=0.04)
    # New rows are rows of the core.
    assert strayed.predictive(np.zeros(3)).quantile(0.99).max() < 6.0


def test_without_strayed_rows_the_prior_keeps_one_part():
    fit = rb.localize(places, "place", contaminated=True).fit(*drawn(1, 0))
    plain = rb.localize(places, "place").fit(*drawn(1, 0))
    assert fit.parameters == plain.parameters
    assert any("one part" in note for note in fit.notes)
    assert len(fit.outliers()) == 0
    assert fit.outlier_probability.mean() < 0.05


def test_what_has_no_two_parts_is_refused():
    def two(y=None):
        place = numpyro.sample("place", dist.Normal(0.0, 1.0))
        scale = numpyro.sample("scale", dist.Gamma(2.0, 1.0))
        with numpyro.plate("rows", jnp.shape(y)[0]):
            numpyro.sample("y", dist.Normal(place, scale), obs=y)

    with pytest.raises(rb.LocalizeError, match="one localized site"):
        rb.localize(two, ["place", "scale"], contaminated=True).fit(drawn(0, 0)[1])
    with pytest.raises(rb.ModelError, match="direct"):
        rb.localize(places, "place", contaminated=True).fit(*drawn(0, 0), method="em")


GROUPS = 12


def own_places(g, y=None):
    with numpyro.plate("groups", GROUPS):
        place = numpyro.sample("place", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(place[g], 0.5), obs=y)


def test_groups_that_a_model_has_itself_are_judged_too():
    rng = np.random.default_rng(2)
    g = np.repeat(np.arange(GROUPS), 4)
    own = 0.5 * rng.normal(size=GROUPS)
    own[5] += 12.0
    y = own[g] + 0.5 * rng.normal(size=len(g))
    fit = rb.localize(own_places, "place", by="g", contaminated=True).fit(g, y)
    assert fit.unit == "g"
    assert fit.outliers().tolist() == [5]
    assert fit.outlier_probability[5] > 0.99
    told, mean = fit.parameters, y.reshape(GROUPS, 4).mean(axis=1)
    law = lambda stretch: stats.norm(told["place.loc"], np.hypot(0.25, stretch * told["place.scale"]))
    within = stats.norm(0.0, 0.5).logpdf(y - mean[g]).reshape(GROUPS, 4).sum(axis=1) - stats.norm(0.0, 0.25).logpdf(0.0)
    core, wide = law(1.0).logpdf(mean), law(np.sqrt(1.0 + told["place.width"] ** 2)).logpdf(mean)
    share = told["place.share"]
    both = np.logaddexp(np.log1p(-share) + core, np.log(share) + wide)
    np.testing.assert_allclose(fit.evidence, within + both, atol=1e-6)
