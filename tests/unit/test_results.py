"""One result for every model: the same names and types, one inversion, one interval, and refusals that say who knows."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.special import logit

import robustly as rb
from robustly.result.estimates import interval
from robustly.result.laws import RowPosterior, invert_cdf
from robustly.result.outliers import stand_out

FOLDER = Path(__file__).parents[1] / "references" / "saved_0.1"
KINDS = ("fit", "glm", "labels", "conjugate", "boundary", "glm_estimator")


@pytest.fixture(scope="module")
def fits():
    found = {kind: rb.load(FOLDER / f"{kind}.robustly") for kind in KINDS}
    return {kind: getattr(fit, "result_", fit) for kind, fit in found.items()}


# ---------------------------------------------------------------------- laws by row


CONTINUOUS = {
    "normal": stats.norm([0.0, 1e6, -3.0], [1.0, 1e-3, 1e5]),
    "far tails": stats.t(0.5, [0.0, 10.0, 0.0], [1.0, 2.0, 1e-8]),
    "skew": stats.lognorm([0.1, 1.0, 3.0]),
    "a jump in density": stats.laplace([0.0, 1.0, 2.0]),
}


@pytest.mark.parametrize("level", [1e-6, 0.025, 0.5, 0.9, 0.999999])
@pytest.mark.parametrize("name", CONTINUOUS)
def test_inversion_finds_the_quantile(name, level):
    law = CONTINUOUS[name]
    found = invert_cdf(law.cdf, level, np.full(3, -1.0), np.full(3, 1.0))
    low, high = law.ppf(level * (1 - 1e-13)), law.ppf(level + (1 - level) * 1e-13)
    room = 1e-14 * np.maximum(1.0, np.abs(law.ppf(level)))
    assert np.all((found >= low - room) & (found <= high + room))


@pytest.mark.parametrize("level", [1e-9, 0.3, 0.5, 0.99])
def test_inversion_finds_the_least_count_that_reaches_a_level(level):
    counts = stats.nbinom([0.3, 2.0, 5000.0], [0.5, 1e-6, 0.9])
    found = invert_cdf(counts.cdf, level, np.full(3, -1.0), np.ones(3), open_ends=(False, True), whole=True)
    np.testing.assert_array_equal(found, counts.ppf(level))
    shares = stats.binom([1, 10, 1000], [0.5, 0.999, 0.1])
    ends = np.full(3, -1.0), np.array([1.0, 10.0, 1000.0])
    np.testing.assert_array_equal(
        invert_cdf(shares.cdf, level, *ends, open_ends=(False, False), whole=True), shares.ppf(level)
    )


def test_a_smooth_law_is_inverted_in_far_fewer_looks_than_halving_takes():
    calls = []
    cdf = lambda values: calls.append(1) or stats.gamma(3.0).cdf(values)
    np.testing.assert_allclose(
        invert_cdf(cdf, 0.7, np.zeros(4), np.full(4, 9.0)), stats.gamma(3.0).ppf(0.7), rtol=1e-14
    )
    assert len(calls) < 25  # 53 halvings


def test_posteriors_and_predictives_of_all_models_answer_the_same_questions(fits):
    frame = pd.DataFrame({"a": [0.0, 1.0], "g": ["u", "v"]})
    laws = {
        "kept": fits["fit"].posterior(),
        "pair": fits["conjugate"].posterior(),
        "mixed": fits["conjugate"].integrated_posterior(),
        "new pair": fits["conjugate"].predictive(),
        "point": fits["boundary"].posterior(),
        "regression": fits["glm"].predictive(frame),
        "t": fits["glm_estimator"].predictive(np.zeros((2, 2))),
    }
    for name, law in laws.items():
        n = len(law.mean)
        assert law.sd.shape == (n,), name
        low, high = law.interval(0.8)
        np.testing.assert_array_equal(law.quantile([0.5 - 0.8 / 2, 0.5 + 0.8 / 2]), np.column_stack([low, high]))
        assert np.all(low <= high)
        for bad in (0.0, 1.0, 95):
            with pytest.raises(rb.ModelError, match=rf"between 0 and 1; got {bad}"):
                law.interval(bad)
            with pytest.raises(rb.ModelError, match=rf"between 0 and 1; got {bad}"):
                law.quantile(bad)
        if name == "kept":
            for ask in (lambda law=law: law.cdf(0.0), lambda law=law: law.sample(3, key=0)):
                with pytest.raises(rb.ModelError, match="this law"):
                    ask()
        else:
            np.testing.assert_allclose(law.cdf(low) + law.sf(low), 1.0, rtol=1e-12)
            if name in ("pair", "mixed", "t"):
                np.testing.assert_allclose(law.cdf(high), 0.9, rtol=1e-9)
            else:
                assert np.all(law.cdf(high) >= 0.9)


def test_kept_quantiles_are_interpolated_as_a_normal_has_them():
    levels = np.array([0.025, 0.5, 0.975])
    law = RowPosterior(np.zeros(2), np.ones(2), levels, np.tile(stats.norm.ppf(levels), (2, 1)))
    np.testing.assert_allclose(law.quantile([0.1, 0.8]), np.tile(stats.norm.ppf([0.1, 0.8]), (2, 1)), rtol=1e-12)
    with pytest.raises(rb.ModelError, match=r"kept from 0\.025 to 0\.975; got 0\.99"):
        law.quantile(0.99)


# ---------------------------------------------------------------------- estimates


def test_hyperparameters_answer_by_site_and_argument_and_by_argument_alone(fits):
    program, regression, pair = (fits[kind].hyperparameters for kind in ("fit", "glm", "conjugate"))
    assert list(program) == ["b"]
    assert set(program["b"]) == {"loc", "scale"}
    assert program["scale"] == program["b"]["scale"] == fits["fit"].parameters["b.scale"]
    assert regression["predictor"]["spread"] == regression["spread"] == fits["glm"].spread
    # GammaPoisson's local is a rate and so is one of its prior's arguments: the argument is meant, as in 0.1.
    assert dict(pair) == {name: fits["conjugate"].parameters[name] for name in ("concentration", "rate")}
    assert pair.by_site == {fits["conjugate"].pair.local: dict(pair)}
    assert fits["boundary"].hyperparameters["concentration"] == np.inf
    assert len({type(fit.hyperparameters) for fit in fits.values()}) == 1
    assert "scales" not in program
    with pytest.raises(KeyError):
        program["scales"]


def test_standard_errors_are_one_type_that_is_a_series_and_answers_by_name(fits):
    assert len({type(fit.standard_errors) for fit in fits.values()}) == 1
    for fit in fits.values():
        errors = np.sqrt(np.diag(fit.covariance()))
        size = len(fit.terms) or len(fit.labels)
        np.testing.assert_array_equal(fit.standard_errors, errors[:size])
        assert list(fit.standard_errors.index) == fit.labels[:size]
        for label, error in zip(fit.labels, errors):
            assert label.endswith("]") or fit.standard_errors[label] == error
        assert type(fit.standard_errors * 2) is pd.Series
    program = fits["fit"].standard_errors
    assert program["w"].shape == (2,)
    assert program["w"][1] == program["w[1]"]
    assert program["b"]["scale"] == program["b.scale"]
    assert "w" in program
    assert "b.loc" in program
    assert "spread" in fits["glm"].standard_errors
    frame = pd.DataFrame({"estimate": fits["glm"].coefficients, "error": fits["glm"].standard_errors})
    assert not frame.isna().any(axis=None)


def test_an_interval_is_symmetric_on_its_own_scale():
    """By the delta method the half width on scale g is that of the number times g'."""
    for scale, to, slope in (
        ("real", lambda v: v, lambda v: 1.0),
        ("log", np.log, lambda v: 1 / v),
        ("logit", logit, lambda v: 1 / (v * (1 - v))),
        ("half_logit", lambda v: logit(2 * v), lambda v: 0.5 / (v * (0.5 - v))),
    ):
        for value in (0.01, 0.2, 0.49):
            low, high = interval(value, 0.03, scale)
            assert to(high) - to(value) == pytest.approx(0.03 * slope(value), rel=1e-9)
            assert to(value) - to(low) == pytest.approx(0.03 * slope(value), rel=1e-9)
    assert interval(0.2, 1e6, "half_logit")[1] <= 0.5
    assert interval(0.0, 0.0, "log") == (0.0, 0.0)
    assert interval(np.inf, 1.0, "log") == (np.inf, np.inf)
    assert np.isnan(interval(1.0, np.nan, "log")).all()


def test_numbers_at_the_edge_are_what_the_law_says():
    X = np.arange(40.0)[:, None] / 40
    counts = rb.RobustPoissonRegression().fit(X, np.tile([3, 4], 20)).result_
    assert counts.outcome.kind == "boundary"
    assert (counts.spread, counts.dof, counts.flip) == (0.0, None, None)
    line = rb.RobustLinearRegression().fit(X, X[:, 0] + np.tile([1.0, -1.0], 20)).result_
    assert line.outcome.kind == "boundary"
    assert line.dof == np.inf
    assert line.scale == pytest.approx(1.0, rel=0.01)
    assert line.spread is None


# ---------------------------------------------------------------------- rows, and what other models have


def test_labels_are_judged_by_their_own_posterior_and_tails_against_each_other(fits):
    tail, surprise = np.array([0.04, 0.2, 0.01, 0.01]), np.array([1.0, 1.0, 3.0, 4.0])
    assert stand_out(tail, surprise, 0.05, None, "posterior").tolist() == [3, 2, 0]
    assert stand_out(tail, surprise, 0.05, None, "tails").tolist() == [3, 2]
    assert stand_out(tail, surprise, None, 0.03).tolist() == [3, 2]
    assert {kind: fit.outlier_rule for kind, fit in fits.items() if fit.outlier_rule != "tails"} == {
        "labels": "posterior"
    }


@pytest.mark.parametrize(
    "name", ["loo", "influence", "pit", "shifts", "coefficients", "flip", "attenuated_coefficients"]
)
def test_what_only_regressions_have_is_refused_by_name(name, fits):
    with pytest.raises(rb.ModelError, match=rf"(loo|coefficients|{name}) is known of regressions"):
        getattr(fits["conjugate"], name)


def test_what_only_regressions_show_is_refused_by_name(fits, tmp_path):
    for ask in (
        lambda fit: fit.plot_coefficients(),
        lambda fit: fit.plot_prior(),
        lambda fit: fit.plot_pit(),
        lambda fit: fit.profile_spread(),
        lambda fit: fit.report(tmp_path / "page.html"),
    ):
        with pytest.raises(rb.ModelError, match="is known of regressions"):
            ask(fits["conjugate"])


def test_names_that_are_nowhere_are_no_attributes(fits):
    for fit in fits.values():
        assert not hasattr(fit, "tolerence")
    assert fits["conjugate"].mean == fits["conjugate"].derived["mean"]


def test_a_summary_has_one_form_for_all_models(fits):
    for kind, fit in fits.items():
        summary = fit.summary()
        assert list(summary.frame.index) == fit.labels
        score = "t" if np.isfinite(fit.reference_dof()).any() else "z"
        wanted = ["estimate", "std. error", *([score, "p"] if fit.terms else []), "2.5 %", "97.5 %"]
        assert list(summary.frame.columns) == wanted
        for line in ("rows", "log likelihood", "AIC, BIC", "evidence by", "standard errors by", "outcome"):
            assert line in summary.heading, kind
        assert fit.summary("sandwich").heading["standard errors by"] == "sandwich"
