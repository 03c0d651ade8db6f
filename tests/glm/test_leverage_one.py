"""A row without which a coefficient is not determined cannot be predicted by the others, and is not said to be."""

import numpy as np
import pandas as pd
import pytest

import robustly as rb


def counts():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=40), np.arange(40) == 7])
    y = rng.poisson(np.exp(1 + 0.3 * X[:, 0]))
    y[7] = 60
    return pd.DataFrame(X, columns=["age", "only"]), y


@pytest.mark.parametrize("local", [None, "predictor"])
def test_a_row_with_a_column_of_its_own_is_named(local, tmp_path):
    X, y = counts()
    fit = rb.RobustGLM("poisson", local=local).fit(X, y).result_
    assert fit.leverage_one.tolist() == [7]
    assert fit.alone is fit.leverage_one  # as 0.1 called it
    assert any("7 (only)" in note for note in fit.notes)
    assert fit.loo_by_row[7] == fit.evidence[7]
    fit.save(tmp_path / "kept")
    assert rb.load(tmp_path / "kept").leverage_one.tolist() == [7]


def test_with_a_ridge_it_can_be_predicted():
    X, y = counts()
    fit = rb.RobustGLM("poisson", local=None, alpha=1.0).fit(X, y).result_
    assert len(fit.leverage_one) == 0
    assert not fit.notes
    rest = np.arange(40) != 7
    without = rb.RobustGLM("poisson", local=None, alpha=1.0).fit(X[rest], y[rest])
    assert fit.loo_by_row[7] == pytest.approx(-without.surprise(X[~rest], y[~rest])[0], rel=1e-6)


def test_compare_scores_only_rows_that_all_models_predict():
    X, y = counts()
    dummy = rb.RobustGLM("poisson", local=None).fit(X, y)
    plain = rb.RobustGLM("poisson", local=None).fit(X[["age"]], y)
    scores = rb.compare(dummy=dummy, plain=plain).scores
    rest = np.arange(40) != 7
    assert scores.loc["dummy", "LOO"] == pytest.approx(dummy.result_.loo_by_row[rest].sum())
    assert scores.loc["plain", "LOO"] == pytest.approx(plain.result_.loo_by_row[rest].sum())


def test_as_many_columns_as_rows_cannot_be_compared_by_leaving_rows_out():
    y = np.array([3.0, 1.0, 4.0])
    X = np.eye(3)[:, 1:]
    fits = [rb.RobustGLM("poisson", local=None, tol=tol).fit(X, y) for tol in (1e-8, 1e-9)]
    with pytest.raises(rb.errors.DataError, match="every row has leverage one"):
        rb.compare(*fits)
