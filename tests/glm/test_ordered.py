"""Ordered categories: proportional odds as statsmodels fits them, and a share of categories that are wrong."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from statsmodels.miscmodels.ordinal_model import OrderedModel

import robustly as rb
from robustly.errors import ModelError, SupportError
from robustly.glm import Ordinal


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(400, 2))
    latent = x @ [3.0, -2.0] + rng.logistic(size=400)
    return x, np.digitize(latent, [-1.0, 0.5, 2.0]).astype(float)


@pytest.fixture(scope="module")
def fits(rows):
    x, y = rows
    rng = np.random.default_rng(5)
    wrong = np.where(rng.random(len(y)) < 0.2, rng.integers(0, 4, len(y)), y)
    return (
        rb.RobustGLM(Ordinal(4), local=None).fit(x, y).result_,
        rb.RobustGLM(Ordinal(4), local=None).fit(x, wrong).result_,
        rb.RobustGLM(Ordinal(4)).fit(x, wrong).result_,
    )


def test_proportional_odds_are_statsmodels(rows, fits):
    x, y = rows
    theirs = OrderedModel(y, x, distr="logit").fit(method="newton", disp=False, tol=1e-10, maxiter=200)
    ours = fits[0]
    assert ours.log_likelihood == pytest.approx(theirs.llf, abs=1e-6)
    np.testing.assert_allclose(ours.coefficients.to_numpy()[1:], theirs.params[:2], rtol=1e-5)
    np.testing.assert_allclose(ours.standard_errors.to_numpy()[1:], theirs.bse[:2], rtol=1e-3)
    # Thresholds: the first is minus our intercept, the others are gaps, logs of which they search too.
    assert -ours.coefficients.iloc[0] == pytest.approx(theirs.params[2], rel=1e-5)
    np.testing.assert_allclose([ours.shared["gap_1"], ours.shared["gap_2"]], np.exp(theirs.params[3:]), rtol=1e-5)


def test_wrong_categories_do_not_turn_the_odds(fits):
    clean, dragged, robust = (fit.coefficients.to_numpy()[1:] for fit in fits)
    assert np.abs(robust - clean).max() < 0.5 * np.abs(dragged - clean).max()
    low, high = fits[2].confint()["flip"]
    assert 0.02 < low < 0.2 < high < 0.6
    assert fits[2].test("flip = 0").pvalue < 0.01


def test_categories_have_one_law_in_all_answers(rows, fits):
    x = rows[0][:5]
    for fit in fits[1:]:
        law = fit.predictive(x)
        density = np.exp([law.log_prob(np.full(5, float(k))) for k in range(4)])
        np.testing.assert_allclose(density.sum(axis=0), 1.0, rtol=1e-8)
        np.testing.assert_allclose(law.mean, np.arange(4) @ density, rtol=1e-6)
        np.testing.assert_allclose(law.cdf(np.full(5, 1.0)), density[:2].sum(axis=0), rtol=1e-6)


def test_codes_that_are_no_categories_are_refused():
    x, frame = np.arange(8.0)[:, None], pd.DataFrame({"x": np.arange(8.0), "y": [0, 1, 2, 3] * 2})
    with pytest.raises(SupportError, match=r"y holds 3\.0 in row 3, but the 3 categories are numbered from 0"):
        rb.glm("y ~ x", frame, family=Ordinal(3))
    with pytest.raises(ModelError, match="no row is in category 1"):
        rb.RobustGLM(Ordinal(3)).fit(x, np.array([0, 2] * 4))
    with pytest.raises(ModelError, match="3 categories or more"):
        Ordinal(2)
