"""Tests, intervals and residuals: equal to statsmodels' on classical fits, and right where it has none."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from scipy import stats

import robustly as rb
from robustly.errors import DataError, ModelError
from robustly.glm.profile import critical_root

RIGHT = "x1 + x2 + C(town)"


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    n = 150
    frame = pd.DataFrame(
        {
            "x1": rng.normal(size=n),
            "x2": rng.normal(size=n),
            "town": rng.choice(list("abc"), n),
            "ward": rng.integers(0, 12, n),
            "size": rng.integers(3, 9, n),
        }
    )
    mean = 0.5 + 0.4 * frame["x1"] + 0.3 * (frame["town"] == "b")
    return frame.assign(
        normal=mean + rng.normal(size=n),
        poisson=rng.poisson(np.exp(mean)),
        gamma=np.exp(mean) * rng.gamma(2.0, 0.5, n),
        binomial=rng.binomial(frame["size"], 1 / (1 + np.exp(-mean))),
    )


THEIRS = {
    "normal": sm.families.Gaussian(),
    "poisson": sm.families.Poisson(),
    "gamma": sm.families.Gamma(sm.families.links.Log()),
    "binomial": sm.families.Binomial(),
}


@pytest.fixture(scope="module", params=list(THEIRS))
def both(request, data):
    """Our classical fit and statsmodels', of one family."""
    family = request.param
    left = "cbind(binomial, size - binomial)" if family == "binomial" else family
    ours = rb.glm(f"{left} ~ {RIGHT}", data, family=family, local=None)
    if family == "normal":
        theirs = smf.ols(f"normal ~ {RIGHT}", data).fit()
    else:
        left = "binomial + I(size - binomial)" if family == "binomial" else family
        theirs = smf.glm(f"{left} ~ {RIGHT}", data, family=THEIRS[family]).fit()
    return family, ours, theirs


def test_estimates_errors_and_intervals_are_statsmodels(both):
    family, ours, theirs = both
    order = ours.params.index
    np.testing.assert_allclose(ours.params, theirs.params[order], atol=1e-6)
    if family == "gamma":  # expected information and a shape by moments there, observed and by maximum likelihood here
        hessian = theirs.model.hessian(theirs.params, scale=1 / ours.shared["shape"], observed=True)
        known = pd.Series(np.sqrt(np.diag(np.linalg.inv(-hessian))), index=theirs.params.index)
        np.testing.assert_allclose(ours.bse, known[order], rtol=1e-5)
        return
    np.testing.assert_allclose(ours.bse, theirs.bse[order], rtol=1e-6)
    np.testing.assert_allclose(ours.tvalues, theirs.tvalues[order], rtol=1e-5)
    np.testing.assert_allclose(ours.pvalues, theirs.pvalues[order], rtol=1e-5)
    np.testing.assert_allclose(ours.conf_int(0.1), theirs.conf_int(0.1).loc[order], atol=1e-6)


@pytest.mark.parametrize(
    "hypothesis", ["x1 = x2", "x1 = 0.5, x2 = 0", "2*x1 - x2/2 = 1", "C(town)[T.b] = C(town)[T.c]"]
)
def test_wald_tests_are_statsmodels(both, hypothesis):
    family, ours, theirs = both
    if family == "gamma":
        return  # whose standard errors differ, see above
    found, known = ours.test(hypothesis), theirs.wald_test(hypothesis, use_f=family == "normal", scalar=True)
    assert found.statistic == pytest.approx(float(known.statistic), rel=1e-6)
    assert found.pvalue == pytest.approx(float(known.pvalue), rel=1e-5)


def test_term_tests_take_all_columns_of_a_term_together(both):
    family, ours, _ = both
    table = ours.test_terms()
    assert list(table["df"]) == [1, 1, 1, 2]
    joint = ours.test(["C(town)[T.b] = 0", "C(town)[T.c] = 0"])
    assert table.loc["C(town)", "p"] == pytest.approx(joint.pvalue, rel=1e-10)
    assert ("F" in table) == (family == "normal")


def test_cluster_robust_errors_are_statsmodels(data):
    ours = rb.glm(f"poisson ~ {RIGHT}", data, local=None)
    theirs = smf.glm(f"poisson ~ {RIGHT}", data, family=THEIRS["poisson"]).fit(
        cov_type="cluster", cov_kwds={"groups": data["ward"]}
    )
    found = np.sqrt(np.diag(ours.covariance("cluster", data["ward"])))
    np.testing.assert_allclose(found, theirs.bse[ours.params.index], rtol=1e-6)
    low, high = ours.confint(kind="cluster", groups=data["ward"])["x1"]
    assert (high - low) / 2 / found[ours.terms.index("x1")] == pytest.approx(stats.t.ppf(0.975, 11), rel=1e-10)
    assert "cluster" in str(ours.summary("cluster", data["ward"]))
    with pytest.raises(ModelError, match="needs groups"):
        ours.covariance("cluster")
    with pytest.raises(DataError, match="one group only"):
        ours.covariance("cluster", np.zeros(len(data)))


def test_intervals_of_the_mean_are_statsmodels(both, data):
    family, ours, theirs = both
    if family == "gamma":
        return  # whose standard errors differ, see above
    new = data.head(20)
    low, high = ours.predictive(new).mean_interval(0.9)
    known = theirs.get_prediction(new).conf_int(alpha=0.1)
    np.testing.assert_allclose(low, known[:, 0], rtol=1e-6)
    np.testing.assert_allclose(high, known[:, 1], rtol=1e-6)


def test_residuals_are_statsmodels(both, data):
    family, ours, theirs = both
    trials = data["size"].to_numpy()
    response = theirs.resid if family == "normal" else theirs.resid_response
    np.testing.assert_allclose(ours.residuals("response"), response, atol=1e-6)
    if family != "normal":
        np.testing.assert_allclose(ours.residuals("deviance"), theirs.resid_deviance, atol=1e-6)
        by = 1.0 / np.sqrt(ours.shared["shape"]) if family == "gamma" else 1.0
        np.testing.assert_allclose(by * ours.residuals("pearson"), theirs.resid_pearson, atol=1e-6)
    np.testing.assert_allclose(
        ours.fittedvalues, theirs.fittedvalues * (trials if family == "binomial" else 1.0), atol=1e-6
    )


def test_quantile_residuals_of_the_true_model_are_normal(both):
    """False alarms: one in 10 000 for each family, by the Kolmogorov–Smirnov test."""
    _, ours, _ = both
    assert stats.kstest(ours.residuals(), "norm").pvalue > 1e-4
    with pytest.raises(ModelError, match="residuals take"):
        ours.residuals("studentised")


def test_likelihood_ratios_are_statsmodels(data):
    small, large = (rb.glm(f"normal ~ {right}", data, family="normal", local=None) for right in ("x1", RIGHT))
    theirs = smf.ols(f"normal ~ {RIGHT}", data).fit().compare_lr_test(smf.ols("normal ~ x1", data).fit())
    table = rb.anova(small, large)
    np.testing.assert_allclose(table.loc["model 2", ["chi2", "p", "df"]].astype(float), theirs, rtol=1e-6)
    with pytest.raises(ModelError, match="smallest model first"):
        rb.anova(large, small)
    with pytest.raises(ModelError, match="does not have all terms"):
        rb.anova(rb.glm("normal ~ ward", data, family="normal", local=None), large)


def test_a_spread_is_tested_at_the_edge(data):
    rng = np.random.default_rng(4)
    y = rng.poisson(np.exp(0.5 + 0.4 * data["x1"] + 0.35 * rng.normal(size=len(data))))
    classical, robust = (rb.glm("y ~ x1", data.assign(y=y), local=local) for local in (None, "predictor"))
    gain = 2 * (robust.log_likelihood - classical.log_likelihood)
    found = robust.test("spread = 0")
    assert found.boundary
    assert found.pvalue == pytest.approx(0.5 * stats.chi2.sf(gain, 1), rel=1e-6)
    table = rb.anova(classical=classical, robust=robust)
    assert table.loc["robust", "p"] == pytest.approx(found.pvalue, rel=1e-6)
    assert table.loc["robust", "at an edge"]
    calm = data.assign(y=np.random.default_rng(1).binomial(6, 0.6, len(data)))
    ended = rb.glm("y ~ x1", calm)
    assert ended.outcome.kind == "boundary"
    assert ended.test("spread = 0").pvalue == 1.0


def test_profile_intervals_end_where_the_likelihood_says(data):
    fit = rb.glm("poisson ~ x1 + x2", data, local=None)
    theirs = smf.glm("poisson ~ x1 + x2", data, family=THEIRS["poisson"]).fit()
    for end in fit.profile_interval("x1", 0.9):
        held = smf.glm("poisson ~ x2", data, family=THEIRS["poisson"], offset=end * data["x1"]).fit()
        assert 2 * (theirs.llf - held.llf) == pytest.approx(stats.chi2.ppf(0.9, 1), rel=1e-3)
    with pytest.raises(ModelError, match='no estimate "x3"'):
        fit.profile_interval("x3")


def test_a_profile_interval_reaches_the_edge_where_the_data_allow_it(data):
    fit = rb.glm("normal ~ x1", data, family="normal")
    low, high = fit.profile_interval("dof")
    assert fit.test("dof = inf").pvalue > 0.05
    assert 1 < low < fit.dof
    assert high == np.inf


@pytest.mark.parametrize("apart", [0.0, 0.3, 1.0, 1.7, 2.5])
def test_a_ratio_beside_a_limit_is_refused_as_often_as_asked(apart):
    """An estimate that would lie beyond the limit is the limit; with 400 000 draws five standard errors are .0017."""
    z = np.random.default_rng(0).normal(size=400_000)
    ratio = np.where(z > -apart, z**2, -2 * apart * z - apart**2)
    assert np.mean(ratio <= critical_root(0.95, apart) ** 2) == pytest.approx(0.95, abs=0.0017)


def test_the_interval_of_a_spread_ends_at_zero_where_the_likelihood_ratio_test_says_so():
    rng = np.random.default_rng(3)
    seen = set()
    for _ in range(12):
        x = rng.normal(size=150)
        frame = pd.DataFrame({"x": x, "y": rng.poisson(np.exp(1 + 0.3 * x + 0.18 * rng.normal(size=150)))})
        fit = rb.glm("y ~ x", frame, family="poisson")
        low, high = fit.profile_interval("spread")
        holds_zero = fit.test("spread = 0").pvalue > 0.05
        assert (low == 0) == holds_zero
        assert high > fit.hyperparameters.get("spread", 0.0) if holds_zero else low > 0
        seen.add(holds_zero)
    assert seen == {True, False}


def test_small_samples_have_intervals_of_students_t(data):
    few = data.head(8)
    fit = rb.glm("normal ~ x1", few, family="normal", local=None)
    known = smf.ols("normal ~ x1", few).fit()
    assert fit.residual_dof == 6
    np.testing.assert_allclose(fit.conf_int(), known.conf_int(), rtol=1e-8)
    assert "t" in fit.summary().frame


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x1 = x3", "cannot be read"),
        ("x1 = = 2", "more than one ="),
        ("1 = 2", "names no estimate"),
        ("x1 = 2 *", "in the middle of a sum"),
        ("x1 = 1, x1 = 2", "contradicts itself"),
        ("__import__('os')", "cannot be read"),
    ],
)
def test_hypotheses_that_cannot_be_meant_are_refused(data, text, said):
    fit = rb.glm(f"poisson ~ {RIGHT}", data, local=None)
    with pytest.raises(ModelError, match=said):
        fit.test(text)


def test_intervals_of_a_robust_mean_hold_the_spread(data):
    fit = rb.glm("poisson ~ x1", data.assign(poisson=data["poisson"] * np.where(np.arange(150) % 5 == 0, 4, 1)))
    law = fit.predictive(data.head(3))
    low, high = law.mean_interval(0.95)
    assert np.all((low < law.mean) & (law.mean < high))
    # By the delta method on log mean = m + spread²/2, written out.
    x = np.column_stack([np.ones(3), data["x1"].head(3)])
    gradient = np.column_stack([x, np.full(3, fit.spread)])
    error = np.sqrt(np.einsum("ni,ij,nj->n", gradient, fit.covariance(), gradient))
    # As for measurements: rows less two coefficients and a spread in place of rows, and Student's t with rows less coefficients.
    half = stats.t.ppf(0.975, 150 - 2) * np.sqrt(150 / (150 - 3)) * error
    np.testing.assert_allclose(np.log(high / low) / 2, half, rtol=1e-5)


def test_the_jackknife_leaves_out_groups_as_refits_do():
    """One Newton step without each group, against fits without it; what the step leaves is of second order."""
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"g": np.repeat(np.arange(25), 6), "x": rng.normal(size=150)})
    frame["b"] = rng.normal(size=25)[frame["g"]]
    shared = 0.4 * rng.normal(size=25)[frame["g"]]
    frame["count"] = rng.poisson(np.exp(1 + 0.3 * frame["x"] + shared))
    frame["size"] = frame["x"] + shared + rng.normal(size=150)
    for response, family in (("count", "poisson"), ("size", "normal")):
        fit = rb.glm(f"{response} ~ x + b", frame, family=family, local=None)
        X = sm.add_constant(frame[["x", "b"]])
        law = sm.families.Poisson() if family == "poisson" else sm.families.Gaussian()
        without = [
            sm.GLM(frame[response][keep], X[keep], law).fit().params.to_numpy()
            for keep in (frame["g"] != group for group in range(25))
        ]
        away = np.array(without) - fit.params.to_numpy()
        brute = np.sqrt(24 / 25 * (away**2).sum(axis=0))
        found = np.sqrt(np.diag(fit.covariance("jackknife", frame["g"])))[:3]
        # Least squares are quadratic, so that one step is the whole way.
        np.testing.assert_allclose(found, brute, rtol=0.05 if family == "poisson" else 1e-6)
