"""Data that cannot be used are refused with the row, column or argument; nothing comes back as NaN."""

import warnings

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from sklearn.base import clone

import robustly as rb
from robustly.mixture import RobustGaussianMixture


def poisson(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 5).expand([x.shape[1]]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(b + x @ w)), obs=y)


ROBUST = rb.localize(poisson, "b")


@pytest.fixture
def data(rng):
    x = rng.normal(size=(60, 2))
    return x, rng.poisson(np.exp(0.3 * x[:, 0] + 0.5 * rng.normal(size=60)))


def broken(array, place, value):
    array = np.array(array, dtype=float)
    array[place] = value
    return array


def test_missing_and_infinite_values_are_named_by_row_and_column(data):
    x, y = data
    with pytest.raises(rb.DataError, match=r"x holds a missing value \(NaN\) in row 17, column 1"):
        ROBUST.fit(broken(x, (17, 1), np.nan), y)
    with pytest.raises(rb.DataError, match="x holds inf in row 3, column 0 and 1 more"):
        ROBUST.fit(broken(x, ([3, 5], 0), np.inf), y)
    with pytest.raises(rb.DataError, match="y holds a missing value"):
        ROBUST.fit(x, broken(y, 8, np.nan))


def test_impossible_observations_are_named_by_row(data):
    x, y = data
    with pytest.raises(rb.SupportError, match=r"y holds -2.* in row 17, which a Poisson cannot give"):
        ROBUST.fit(x, broken(y, 17, -2))
    with pytest.raises(rb.SupportError, match=r"y holds 1\.5 in row 4"):
        ROBUST.fit(x, broken(y, 4, 1.5))


def test_rows_must_exist_and_agree_in_number(data):
    x, y = data
    with pytest.raises(rb.DataError, match="empty"):
        ROBUST.fit(x[:0], y[:0])
    with pytest.raises(rb.RobustlyError, match="60"):
        ROBUST.fit(x, y[:50])
    with pytest.raises(rb.DataError, match="does not fit it"):
        ROBUST.fit(x, y, z=3)
    with pytest.raises(rb.DataError, match="x holds"):
        ROBUST.fit(np.array([["a", "b"]] * 60), y)


def test_weights_are_checked(data):
    x, y = data
    with pytest.raises(rb.DataError, match="one weight a row"):
        ROBUST.fit(x, y, weights=np.ones(3))
    with pytest.raises(rb.DataError, match="row 5"):
        ROBUST.fit(x, y, weights=broken(np.ones(60), 5, -1.0))
    with pytest.raises(rb.DataError, match="no row counts"):
        ROBUST.fit(x, y, weights=np.zeros(60))


def test_options_are_checked(data):
    with pytest.raises(rb.ModelError, match='"direct" or "em"'):
        ROBUST.fit(*data, method="bfgs")
    with pytest.raises(rb.ModelError, match=r"rb\.Quadrature\(21\)"):
        ROBUST.fit(*data, approx="laplace")
    with pytest.raises(rb.ModelError, match='start= names "c"'):
        ROBUST.fit(*data, start={"c": 1.0})
    with pytest.raises(rb.ModelError, match="needs a likelihood that is linear"):
        ROBUST.fit(*data, approx=rb.Exact())


def test_one_row_and_constant_columns_give_finite_answers(data):
    x, y = data
    one = ROBUST.fit(x[:1], y[:1])
    assert np.all(np.isfinite(one.evidence))
    constant = ROBUST.fit(np.column_stack([x[:, 0], np.ones(60)]), y)  # confounded with b, but for w's prior
    assert np.all(np.isfinite(constant.shared["w"]))
    assert constant.outcome.converged


def test_huge_and_zero_counts_never_overflow(data):
    x, y = data
    wild = ROBUST.fit(x, np.where(np.arange(60) == 7, 10**9, y))
    assert np.all(np.isfinite(wild.evidence))
    assert np.all(np.isfinite(wild.shared["w"]))
    assert wild.surprise.argmax() == 7
    none = ROBUST.fit(x, np.zeros(60, dtype=int))
    assert np.all(np.isfinite(none.evidence))


def test_questions_that_make_no_sense_are_refused(data):
    x, y = data
    fit = ROBUST.fit(x, y)
    with pytest.raises(rb.ModelError, match='"information", "sandwich", "cluster" or "jackknife"'):
        fit.covariance("robust")
    with pytest.raises(rb.ModelError, match="between 0 and 1"):
        fit.outliers(fdr=2)
    with pytest.raises(rb.ModelError, match="between 0 and 1"):
        fit.predictive(x).quantile(1.2)
    with pytest.raises(rb.DataError, match="Leave them out"):
        fit.predictive(x, y)
    with pytest.raises(rb.DataError, match="entries a row"):
        fit.predictive(x[:, :1])
    with pytest.raises(rb.ModelError, match="not local"):
        fit.posterior("w")


@pytest.mark.parametrize("call", ["fit", "predict"])
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    "model",
    [rb.RobustPoissonRegression(), rb.RobustLogisticRegression(), RobustGaussianMixture(2, random_state=0)],
    ids=lambda one: type(one).__name__,
)
def test_a_missing_cell_is_named_by_column_and_row_in_rows_to_fit_and_in_new_ones(model, named, call):
    X = np.random.default_rng(0).normal(size=(40, 2))
    y = (X[:, 0] > 0.3).astype(int)
    if named:
        X = pd.DataFrame(X, columns=["age", "dose"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two classes side by side are all but separable
        fitted = clone(model).fit(X, y)
    holed = X.copy()
    (holed.iloc if named else holed)[4, 1] = np.nan
    given = (holed, y) if call == "fit" else (holed,)
    with pytest.raises(
        rb.DataError, match=f'column "{"dose" if named else "x1"}" of X holds a missing value .NaN. in row 4'
    ):
        getattr(fitted, call)(*given)
