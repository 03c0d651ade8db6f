"""The measures are those printed in the paper, checked against their definitions and other programs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

import robustly as rb
from robustly.glm.families import Bernoulli, Poisson
from robustly.study import metrics

vectors = hnp.arrays(float, 5, elements=st.floats(-10, 10).filter(lambda v: abs(v) > 1e-3))


@given(vectors, vectors, st.floats(0.1, 10))
@settings(max_examples=50, deadline=None)
def test_l1_and_r2_do_not_depend_on_units_and_are_zero_for_predicting_zero(y, predicted, unit):
    for measure in (metrics.predictive_l1, metrics.predictive_r2):
        assert measure(y, y) == 1.0
        assert measure(y, 0 * y) == pytest.approx(0.0, abs=1e-12)
        assert measure(unit * y, unit * predicted) == pytest.approx(measure(y, predicted), rel=1e-9, abs=1e-9)


def test_l1_and_r2_by_hand():
    y, predicted = np.array([1.0, -2.0, 3.0]), np.array([1.0, -1.0, 5.0])
    assert metrics.predictive_l1(y, predicted) == pytest.approx(1 - 3 / 6)
    assert metrics.predictive_r2(y, predicted) == pytest.approx(1 - 5 / 14)
    assert metrics.mean_squared_error(predicted, y) == pytest.approx(5 / 3)


@given(vectors, vectors, st.floats(0.1, 10))
@settings(max_examples=50, deadline=None)
def test_misdirection_is_one_minus_the_cosine_and_ignores_size(found, truth, size):
    cosine = found @ truth / np.linalg.norm(found) / np.linalg.norm(truth)
    assert metrics.misdirection(found, truth) == pytest.approx(1 - cosine, abs=1e-12)
    assert metrics.misdirection(size * found, truth) == pytest.approx(metrics.misdirection(found, truth), abs=1e-12)


def test_plug_in_likelihoods_are_scipys(rng):
    linear = rng.normal(size=50)
    counts = rng.poisson(np.exp(linear)).astype(float)
    assert metrics.plug_in_nll(Poisson(), counts, linear) == pytest.approx(
        -stats.poisson.logpmf(counts, np.exp(linear)).mean()
    )
    labels = (rng.uniform(size=50) < 0.5).astype(float)
    direct = -stats.bernoulli.logpmf(labels, 1 / (1 + np.exp(-linear))).mean()
    assert metrics.plug_in_nll(Bernoulli(), labels, linear) == pytest.approx(direct)
    assert metrics.class_error(labels, linear) == np.mean(labels != (linear > 0))


def test_integrated_and_plug_in_agree_for_a_classical_fit(rng):
    X = rng.normal(size=(100, 2))
    y = rng.poisson(np.exp(X @ [0.5, -0.5])).astype(float)
    model = rb.RobustGLM("poisson", local=None).fit(X, y)
    linear = X @ model.coef_ + model.intercept_
    assert metrics.integrated_nll(model.predict_dist(X), y) == pytest.approx(metrics.plug_in_nll(Poisson(), y, linear))
