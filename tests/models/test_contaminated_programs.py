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


def core_and_wide(told, y, noise):
    """Normal places seen with normal noise: both parts are normals in closed form, the wide one shifted to either side."""
    loc, scale, width, variation, side, share = (
        told[f"place.{name}"] for name in ("loc", "scale", "width", "variation", "side", "share")
    )
    shifted = lambda way: stats.norm(loc + way * width * scale, np.hypot(noise, width * variation * scale)).logpdf(y)
    wide = np.logaddexp(np.log(side) + shifted(1.0), np.log1p(-side) + shifted(-1.0))
    return np.log1p(-share) + stats.norm(loc, np.hypot(noise, scale)).logpdf(y), np.log(share) + wide


@pytest.fixture(scope="module")
def strayed():
    return rb.localize(places, "place", contaminated=True).fit(*drawn(0, 4))


def test_the_evidence_is_that_of_normals(strayed):
    x, y = drawn(0, 4)
    core, wide = core_and_wide(strayed.parameters, y - x, 0.5)
    np.testing.assert_allclose(strayed.evidence, np.logaddexp(core, wide), atol=1e-6)
    odds = wide - core
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


def test_places_of_strayed_rows_are_told_where_they_are(strayed):
    """A row's own place is a mixture of the parts' normal posteriors, whose coordinates differ."""
    (x, y), told = drawn(0, 4), strayed.parameters
    core, wide = core_and_wide(told, y - x, 0.5)
    mean = lambda loc, scale: (loc / scale**2 + (y - x) / 0.25) / (1.0 / scale**2 + 4.0)
    loc, scale, width = (told[f"place.{name}"] for name in ("loc", "scale", "width"))
    strayed_up = mean(loc + width * scale, width * told["place.variation"] * scale)
    share = np.exp(wide - np.logaddexp(core, wide))
    found = strayed.posterior("place").mean
    sure = (share > 1 - 1e-6) | (share < 1e-6)
    assert sure.sum() > 40
    np.testing.assert_allclose(found[sure], np.where(share > 0.5, strayed_up, mean(loc, scale))[sure], atol=1e-4)


def test_without_strayed_rows_the_prior_keeps_one_part():
    fit = rb.localize(places, "place", contaminated=True).fit(*drawn(1, 0))
    plain = rb.localize(places, "place").fit(*drawn(1, 0))
    assert fit.parameters == plain.parameters
    assert any("one part" in note for note in fit.notes)
    assert len(fit.outliers()) == 0
    assert fit.outlier_probability.mean() < 0.05


def test_rows_of_which_none_strayed_are_judged_as_by_a_climb_to_its_end(monkeypatch):
    """The fit gives the second part up on the way; who asks for probabilities has it climbed on."""
    quick = rb.localize(places, "place", contaminated=True).fit(*drawn(1, 0))
    monkeypatch.setattr("robustly.localized.contaminated.behind", lambda other: None)
    whole = rb.localize(places, "place", contaminated=True).fit(*drawn(1, 0))
    assert quick.evidence.sum() == pytest.approx(whole.evidence.sum(), abs=1e-9)
    np.testing.assert_allclose(quick.outlier_probability, whole.outlier_probability, atol=1e-5)
    assert quick.judgement.weights == pytest.approx(whole.judgement.weights, abs=1e-5)


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


def test_programs_that_run_on_all_rows_at_once_have_two_parts(strayed):
    """The same law as one row at a time gives: the same estimates and probabilities."""

    def all_at_once(x, y=None):
        place = numpyro.sample("place", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", ROWS):
            numpyro.sample("y", dist.Normal(place + x - x.mean() + x.mean(), 0.5), obs=y)

    fit = rb.localize(all_at_once, "place", contaminated=True).fit(*drawn(0, 4))
    assert any("all rows at once" in note for note in fit.notes)
    np.testing.assert_allclose(fit.outlier_probability, strayed.outlier_probability, atol=1e-5)


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
    mean = y.reshape(GROUPS, 4).mean(axis=1)
    within = stats.norm(0.0, 0.5).logpdf(y - mean[g]).reshape(GROUPS, 4).sum(axis=1) - stats.norm(0.0, 0.25).logpdf(0.0)
    np.testing.assert_allclose(
        fit.evidence, within + np.logaddexp(*core_and_wide(fit.parameters, mean, 0.25)), atol=1e-6
    )
