"""Hundreds of sparse columns are fitted by products with the rows: the same answers as by writing columns times columns out."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import robustly as rb
from robustly.fit.newton import ascent, upward
from robustly.glm.families import Poisson
from robustly.glm.local import LocalPredictor
from robustly.glm.regression import Plan, Regression
from robustly.model.linear import MANY_COLUMNS
from robustly.model.read_design import read_design
from robustly.model.wide_curvature import WideCurvature, conjugate_gradients

N, D = 600, MANY_COLUMNS + 4


@pytest.fixture(scope="module")
def counts():
    rng = np.random.default_rng(5)
    X = sparse.random(N, D, density=0.02, format="csr", random_state=rng, data_rvs=lambda size: rng.normal(size=size))
    y = rng.poisson(np.exp(0.7 + X @ rng.normal(size=D) * 0.5 + 0.5 * rng.normal(size=N)))
    return X, y


def regression_of(X, y):
    names = [f"x{j}" for j in range(X.shape[1])]
    return Regression(read_design(X, y, names, intercept=True, ridge=1.0), Plan(LocalPredictor(Poisson())))


def test_sparse_columns_give_the_answers_of_the_same_columns_written_out(counts):
    X, y = counts
    wide = rb.RobustPoissonRegression(alpha=1.0, tol=1e-10).fit(X, y)
    dense = rb.RobustPoissonRegression(alpha=1.0, tol=1e-10).fit(X.toarray(), y)
    assert isinstance(wide.result_.curve, WideCurvature)
    assert isinstance(dense.result_.curve, np.ndarray)
    assert wide.result_.log_likelihood == pytest.approx(dense.result_.log_likelihood, rel=1e-10)
    np.testing.assert_allclose(wide.coef_, dense.coef_, atol=1e-6)
    assert wide.spread_ == pytest.approx(dense.spread_, rel=1e-6)
    np.testing.assert_allclose(wide.result_.standard_errors, dense.result_.standard_errors, rtol=1e-5)


def test_a_curvature_by_products_is_the_one_written_out(counts):
    problem = regression_of(*counts)
    vector = np.random.default_rng(1).normal(size=problem.design.size + 1) * 0.1
    look = problem.look(vector)
    assert isinstance(look.curve, WideCurvature)
    written = np.asarray(look.curve)
    np.testing.assert_allclose(look.curve @ vector, written @ vector, rtol=1e-10, atol=1e-9)
    step, exact = (ascent(look.slope, curve, problem.constrained) for curve in (look.curve, written))
    away = step - exact
    assert -away @ written @ away < 2e-8 * -(exact @ written @ exact)
    assert look.curve.has_top(1e-3) == (upward(written, problem.constrained) is None)


def test_columns_too_alike_for_products_are_factored(counts):
    X, y = counts
    rng = np.random.default_rng(2)
    # One column again and again with a little of the others: a condition number of 1e8.
    common = sparse.csr_array(rng.normal(size=(N, 1)) * (rng.random((N, 1)) < 0.5))
    alike = sparse.csr_array(common @ np.ones((1, D)) + 1e-3 * X.toarray())
    problem = regression_of(alike, y)
    look = problem.look(np.zeros(problem.design.size + 1))
    assert isinstance(look.curve, WideCurvature)
    small = look.curve.with_diagonal(-look.curve.diagonal * (1.0 - 1e-9))
    assert small.eliminated(look.slope[:-1]) is None
    step = ascent(look.slope, small, None)
    np.testing.assert_allclose(step, ascent(look.slope, np.asarray(small), None), rtol=1e-6)


def test_rows_that_are_not_concave_are_never_left_to_conjugate_gradients(counts):
    look = regression_of(*counts).look(np.zeros(D + 2))
    bent = look.curve.bend.copy()
    bent[:5] *= -1.0
    odd = WideCurvature(look.curve.columns, bent, look.curve.mixed, look.curve.shared, look.curve.diagonal)
    assert not odd.is_concave
    assert odd.eliminated(look.slope[:-1]) is None
    np.testing.assert_allclose(ascent(look.slope, odd, None), ascent(look.slope, np.asarray(odd), None), rtol=1e-8)


def test_measurements_with_heavy_tails_take_sparse_columns_too(counts):
    X, _ = counts
    rng = np.random.default_rng(3)
    y = X @ rng.normal(size=D) + 0.5 * rng.standard_t(4, size=N)
    wide, dense = (rb.RobustLinearRegression(alpha=1.0, dof=4.0).fit(columns, y) for columns in (X, X.toarray()))
    np.testing.assert_allclose(wide.coef_, dense.coef_, atol=1e-5)


def test_fits_with_sparse_columns_come_back_from_files(counts, tmp_path):
    X, y = counts
    fit = rb.RobustPoissonRegression(alpha=1.0).fit(X, y).result_
    fit.save(tmp_path / "wide.fit")
    np.testing.assert_allclose(rb.load(tmp_path / "wide.fit").standard_errors, fit.standard_errors, rtol=1e-9)


def test_formulas_with_days_as_words_keep_their_zeros_to_themselves(monkeypatch):
    from robustly.glm import formula

    rng = np.random.default_rng(6)
    days = rng.integers(0, 60, N)
    frame = pd.DataFrame({"day": [f"day {day:02d}" for day in days], "y": rng.poisson(3.0, N), "x": rng.normal(size=N)})
    dense = rb.glm("y ~ day", frame, family="poisson", local=None)
    monkeypatch.setattr(formula, "LARGE", N)
    sparse_columns = rb.glm("y ~ day", frame, family="poisson", local=None)
    assert sparse_columns.model.design.sparse
    np.testing.assert_allclose(sparse_columns.coefficients, dense.coefficients, atol=1e-7)
    np.testing.assert_allclose(sparse_columns.standard_errors, dense.standard_errors, rtol=1e-6)
    np.testing.assert_allclose(sparse_columns.predictive(frame).mean, dense.predictive(frame).mean, rtol=1e-6)


def test_conjugate_gradients_solve_several_right_hand_sides_and_say_when_they_do_not():
    rng = np.random.default_rng(4)
    square = rng.normal(size=(40, 60))
    matrix, right = square @ square.T + 10.0 * np.eye(40), rng.normal(size=(40, 3))
    right[:, 1] = 0.0
    found = conjugate_gradients(lambda v: matrix @ v, right, matrix.diagonal(), 1e-12)
    np.testing.assert_allclose(found, np.linalg.solve(matrix, right), atol=1e-10)
    hilbert = 1.0 / (np.arange(40)[:, None] + np.arange(40) + 1.0) + 1e-14 * np.eye(40)
    assert conjugate_gradients(lambda v: hilbert @ v, right, hilbert.diagonal(), 1e-12) is None
