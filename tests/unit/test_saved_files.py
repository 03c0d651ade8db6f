"""Files that 0.1 saved still say what they said; ``tests/references/saved_0.1/make.py`` made them."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm, t

import robustly as rb

FOLDER = Path(__file__).parents[1] / "references" / "saved_0.1"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
FITS = ("fit", "glm", "labels", "conjugate", "boundary", "glm_estimator")


def rows(n=24):
    rng = np.random.default_rng(4)
    x = rng.normal(size=(n, 2))
    return x, rng.poisson(np.exp(1 + x @ [0.4, -0.3] + 0.8 * rng.normal(size=n)))


def read(kind, **context):
    return rb.load(FOLDER / f"{kind}.robustly", **context)


@pytest.mark.parametrize("kind", FITS)
def test_a_fit_of_the_first_version_comes_back_and_can_be_saved_again(kind, tmp_path):
    old = read(kind)
    fit = getattr(old, "result_", old)
    fit.save(tmp_path / "again.robustly")
    for found in (fit, rb.load(tmp_path / "again.robustly")):
        told = EXPECTED[kind]
        assert found.labels == told["labels"]
        assert found.outcome.kind == told["outcome"]
        np.testing.assert_allclose(found.estimates, told["estimates"], rtol=1e-12)
        np.testing.assert_allclose(np.sqrt(np.diag(found.covariance())), told["errors"], rtol=1e-9)
        np.testing.assert_allclose(np.sqrt(np.diag(found.covariance("sandwich"))), told["sandwich"], rtol=1e-9)
        np.testing.assert_allclose(found.evidence, told["evidence"], rtol=1e-10)
        np.testing.assert_allclose(found.tail_probabilities, told["tails"], rtol=1e-9)
        assert found.log_likelihood == pytest.approx(told["log_likelihood"], rel=1e-9)
        assert found.outliers(level=0.3).tolist() == told["outliers"]
        intervals = found.confint(0.9)
        assert list(intervals) == list(told["intervals"])
        for label, ends in told["intervals"].items():
            if label in found.terms and found.residual_dof is not None:  # Student's t, where 0.1 took a normal
                few = np.sqrt(24 / (24 - len(told["labels"])))  # and divided by all rows
                middle, wider = np.mean(ends), few * t.ppf(0.95, found.residual_dof) / norm.ppf(0.95)
                ends = middle + wider * (np.asarray(ends) - middle)
            if label != "flip":  # 0.1 took it on the log scale, where it can leave the half it lives in
                assert intervals[label] == pytest.approx(tuple(ends), rel=1e-9)


def test_kept_pairs_and_regressions_predict_again():
    x, _ = rows()
    frame = pd.DataFrame({"a": x[:, 0], "g": np.where(np.arange(24) % 3, "u", "v")})
    regression, model = read("glm"), read("glm_estimator")
    np.testing.assert_allclose(regression.predictive(frame.head(3)).mean, EXPECTED["glm"]["mean"], rtol=1e-10)
    assert regression.loo == pytest.approx(EXPECTED["glm"]["loo"], rel=1e-12)
    np.testing.assert_allclose(model.predict(x[:3]), EXPECTED["glm_estimator"]["mean"], rtol=1e-10)
    assert model.result_.dof == pytest.approx(EXPECTED["glm_estimator"]["dof"], rel=1e-12)
    for kind in ("conjugate", "boundary"):
        np.testing.assert_allclose(read(kind).predictive().mean, EXPECTED[kind]["mean"], rtol=1e-10)
        np.testing.assert_allclose(read(kind).posterior().mean, EXPECTED[kind]["own"], rtol=1e-10)
    np.testing.assert_allclose(read("fit").posterior().mean, EXPECTED["fit"]["own"], rtol=1e-12)


def test_kept_mixtures_and_topics_come_back():
    x, _ = rows()
    mixture = read("mixture")
    np.testing.assert_allclose(mixture.score_samples(x[:3]), EXPECTED["mixture"]["mean"], rtol=1e-10)
    assert mixture.outliers(level=0.3).tolist() == EXPECTED["mixture"]["outliers"]
    words = np.random.default_rng(0).poisson(1.0, size=(24, 12))
    np.testing.assert_allclose(read("topics").transform(words[:3]), EXPECTED["topics"]["mean"], rtol=1e-8)


def test_the_share_of_wrong_labels_has_an_interval_below_one_half():
    fit = read("labels")
    assert fit.flip == pytest.approx(EXPECTED["labels"]["flip"], rel=1e-12)
    for level in (0.5, 0.95, 0.9999):
        low, high = fit.confint(level)["flip"]
        assert 0 < low < fit.flip < high < 0.5
    for level in (95, 0.0, 1.0, -0.5):
        with pytest.raises(rb.ModelError, match=rf"a probability between 0 and 1; got {level}\."):
            fit.confint(level)
