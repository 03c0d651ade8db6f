"""Counts from 0 to e³⁵ in one table: the first Newton step is wrong by many magnitudes, and the search must come back."""

from __future__ import annotations

import numpy as np
import pytest

import robustly.glm as glm
from robustly.glm.families import draw_poisson
from robustly.study.simulate import Task, draw


@pytest.mark.parametrize(("variant", "level"), [("lognormal", 1.5), ("gamma", 1.0), ("gross", 0.1)])
def test_counts_over_fifteen_magnitudes_are_fitted(variant, level):
    # Repetition 6 of seed 0 has the largest coefficients of the first ten; counts reach 3e15.
    trial = draw(Task("poisson", variant, level, 6), 0)
    assert trial.y.max() > 1e14
    plain = glm.RobustGLM("poisson", local=None, fit_intercept=False).fit(trial.X, trial.y)
    assert plain.result_.outcome.kind == "converged"
    slope = trial.X.T @ (trial.y - np.exp(trial.X @ plain.coef_))
    assert np.abs(slope).max() < 1e-7 * trial.y.max()
    robust = glm.RobustPoissonRegression(fit_intercept=False).fit(trial.X, trial.y)
    assert robust.result_.outcome.kind == "converged"
    assert robust.spread_ > 0.5


def test_a_clean_table_of_such_counts_gives_the_truth_back(rng):
    X = rng.uniform(-5, 5, (500, 5))
    w = np.array([2.0, -1.5, 1.5, 1.0, -1.0])
    model = glm.RobustPoissonRegression(fit_intercept=False).fit(X, draw_poisson(rng, X @ w))
    assert np.abs(model.coef_ - w).max() < 1e-4
