"""The study's data are the paper's: the designs as printed, and a trial is the same whatever else is run."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from robustly.study.simulate import COLUMNS, NOISE, PAPERS, ROWS, VARIANTS, Task, draw

EVERY = [(name, v.name, level) for name, known in VARIANTS.items() for v in known for level in v.levels]


@pytest.mark.parametrize(("experiment", "variant", "level"), EVERY)
def test_a_trial_belongs_to_its_task_and_seed_alone(experiment, variant, level):
    task = Task(experiment, variant, level, 3)
    first = draw(task, 5)
    draw(Task(experiment, variant, level, 4), 5)
    again = draw(task, 5)
    np.testing.assert_array_equal(first.X, again.X)
    np.testing.assert_array_equal(first.y, again.y)
    np.testing.assert_array_equal(first.y_test, again.y_test)
    assert first.X.shape == (ROWS, COLUMNS)
    assert np.abs(first.X).max() <= 5.0
    assert not np.array_equal(first.y, draw(task, 6).y)


def test_levels_of_a_repetition_share_the_truth_and_the_test_rows_but_not_the_training_rows():
    one, other = (draw(Task("poisson", "lognormal", level, 0), 0) for level in (0.5, 1.0))
    np.testing.assert_array_equal(one.w, other.w)
    np.testing.assert_array_equal(one.y_test, other.y_test)
    assert not np.array_equal(one.X, other.X)
    assert not np.array_equal(one.w, draw(Task("poisson", "lognormal", 0.5, 1), 0).w)


@pytest.mark.parametrize("variant", ["sd", "variance"])
def test_linear_noise_is_a_gamma_read_either_way(variant):
    # 20 repetitions pooled; each Kolmogorov–Smirnov check fails one time in a thousand on a fresh seed.
    rest = np.concatenate([(t := draw(Task("linear", variant, 1.0, r), 0)).y - t.X @ t.w - t.b for r in range(20)])
    rng = np.random.default_rng(1)
    scale = rng.gamma(1.0, 1.0, 100_000) + NOISE
    model = rng.normal(size=100_000) * (scale if variant == "sd" else np.sqrt(scale))
    assert stats.ks_2samp(rest, model).pvalue > 1e-3
    clean = np.concatenate(
        [(t := draw(Task("linear", variant, 1.0, r), 0)).y_test - t.X_test @ t.w - t.b for r in range(20)]
    )
    assert stats.kstest(clean / (NOISE if variant == "sd" else np.sqrt(NOISE)), "norm").pvalue > 1e-3


@pytest.mark.parametrize("variant", ["near", "random", "far"])
def test_as_many_labels_are_flipped_as_said_and_where_said(variant):
    clean, flipped = (draw(Task("logistic", variant, level, 2), 0) for level in (0.0, 0.2))
    # On a clean set the chance of the label seen is high far from the boundary.
    margin = np.abs(flipped.X @ flipped.w)
    wrong = (flipped.y > 0.5) != (flipped.X @ flipped.w > 0)
    order = np.argsort(margin)
    outer, inner = wrong[order[-ROWS // 5 :]], wrong[order[: ROWS // 5]]
    if variant == "far":
        assert outer.mean() > 0.95
    else:
        assert outer.mean() < 0.4
    if variant == "near":
        assert inner.mean() > 0.5
        assert wrong[order[ROWS // 5 :]].mean() < 0.1
    if variant == "random":
        assert 0.13 < wrong.mean() < 0.35
    assert np.mean((clean.y > 0.5) != (clean.X @ clean.w > 0)) < 0.2


def test_clean_labels_follow_the_logistic_curve():
    # Pearson's statistic over 40 repetitions and ten bins of probability; fails one time in a thousand on a fresh seed.
    trials = [draw(Task("logistic", "near", 0.0, r), 0) for r in range(40)]
    p = np.concatenate([expit(t.X @ t.w) for t in trials])
    y = np.concatenate([t.y for t in trials])
    which = np.minimum((10 * p).astype(int), 9)
    pearson = sum((y[which == b].sum() - p[which == b].sum()) ** 2 / (p * (1 - p))[which == b].sum() for b in range(10))
    assert pearson < stats.chi2.ppf(0.999, 10)


def test_gamma_noise_makes_the_negative_binomial_true():
    # The factor has mean one and the variance said: y/μ has variance 1/μ + level where rates are large.
    ratios = []
    for r in range(40):
        t = draw(Task("poisson", "gamma", 0.5, r), 0)
        rate = np.exp(t.X @ t.w)
        ratios.append((t.y / rate)[rate > 1e4])
    pooled = np.concatenate(ratios)
    assert stats.kstest(pooled, stats.gamma(2.0, scale=0.5).cdf).pvalue > 1e-3


def test_gross_errors_are_as_many_as_said_and_five_away():
    t = draw(Task("poisson", "gross", 0.1, 0), 0)
    away = np.log(np.maximum(t.y, 0.5)) - t.X @ t.w
    seen = np.exp(t.X @ t.w) > 1e4
    wrong = np.abs(away[seen]) > 2.5
    assert np.allclose(np.abs(away[seen][wrong]), 5.0, atol=0.5)
    assert stats.binomtest(int(wrong.sum()), int(seen.sum()), 0.1).pvalue > 1e-3


def test_the_papers_own_designs_are_among_those_run():
    for experiment, names in PAPERS.items():
        assert set(names) <= {variant.name for variant in VARIANTS[experiment]}
        assert all(variant.levels[0] == 0 for variant in VARIANTS[experiment])
