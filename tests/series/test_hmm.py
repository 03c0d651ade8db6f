"""Hidden Markov models with t states: hmmlearn's numbers, enumeration, and what outliers do."""

import itertools
import warnings

import numpy as np
import pytest
from hmmlearn.hmm import GaussianHMM
from scipy import stats
from scipy.optimize import linear_sum_assignment
from scipy.special import logsumexp

import robustly as rb


def made(size=3, dim=2, dof=np.inf, apart=5.0):
    """A model with known parameters."""
    model = rb.RobustGaussianHMM(size, init_params="")
    model.startprob_, model.transmat_ = np.full(size, 1.0 / size), np.full((size, size), 0.06 / max(size - 1, 1))
    np.fill_diagonal(model.transmat_, 0.94 if size > 1 else 1.0)
    model.means_ = apart * np.stack([np.arange(size), np.arange(size) % 2], axis=1)[:, :dim].astype(float)
    model.covariances_ = np.stack([np.eye(dim) * (1 + 0.3 * k) + 0.2 for k in range(size)])
    model.dofs_ = np.full(size, dof)
    return model


def accuracy(truth, found, size):
    table = np.zeros((size, size))
    np.add.at(table, (truth, found), 1)
    rows, columns = linear_sum_assignment(-table)
    return table[rows, columns].sum() / len(truth)


# hmmlearn 0.3.3 sets the shape of an array, which NumPy 2.5 warns of.
@pytest.mark.filterwarnings("ignore:Setting the shape on a NumPy array:DeprecationWarning")
@pytest.mark.parametrize("kind", ["full", "diag", "tied", "spherical"])
def test_infinite_dof_is_hmmlearn_from_the_same_start(kind):
    rows, _ = made().sample(600, random_state=0)
    shape = {
        "full": np.stack([np.cov(rows.T)] * 3), "diag": np.stack([rows.var(axis=0)] * 3), "tied": np.cov(rows.T),
        "spherical": np.full(3, rows.var()),
    }[kind]  # fmt: skip
    theirs = GaussianHMM(3, covariance_type=kind, init_params="", n_iter=12, tol=-np.inf, min_covar=0.0, covars_prior=0.0,
                         covars_weight=0.0, means_prior=0.0, means_weight=0.0)  # fmt: skip
    ours = rb.RobustGaussianHMM(3, kind, dof=np.inf, init_params="", reg_covar=0.0, max_iter=12, tol=0.0)
    for model in (theirs, ours):
        model.startprob_, model.transmat_ = np.full(3, 1 / 3), np.full((3, 3), 1 / 3)
        model.means_ = rows[[5, 200, 400]].copy()
    theirs.covars_, ours.covariances_ = shape, shape.copy()
    lengths = [250, 350]
    theirs.fit(rows, lengths)
    ours.fit(rows, lengths)
    assert ours.score(rows, lengths) == pytest.approx(theirs.score(rows, lengths), abs=1e-6)
    assert ours.predict_proba(rows, lengths) == pytest.approx(theirs.predict_proba(rows, lengths), abs=1e-8)
    for algorithm in ("viterbi", "map"):
        value, path = ours.decode(rows, lengths, algorithm)
        wanted, states = theirs.decode(rows, lengths, algorithm)
        assert value == pytest.approx(wanted, abs=1e-6)
        assert (path == states).all()
    if kind != "spherical":  # hmmlearn repeats those once for each column
        assert ours.covars_ == pytest.approx(theirs.covars_, abs=1e-8)
    assert ours.get_stationary_distribution() == pytest.approx(theirs.get_stationary_distribution(), abs=1e-8)


def test_one_state_is_the_multivariate_t():
    rows, _ = made(1, dof=4.0).sample(800, random_state=1)
    chain = rb.RobustGaussianHMM(1, tol=1e-9).fit(rows)
    mixture = rb.RobustGaussianMixture(1, tol=1e-9).fit(rows)
    assert chain.dofs_ == pytest.approx(mixture.dofs_, rel=1e-3)
    law = stats.multivariate_t(chain.means_[0], chain.covariances_[0], df=chain.dofs_[0])
    assert chain.score(rows) == pytest.approx(law.logpdf(rows).sum(), abs=1e-7)


def test_missing_values_have_the_marginal_likelihood_by_enumeration():
    model = made(2, dof=3.0)
    rows, _ = model.sample(6, random_state=2)
    rows[1, 0] = rows[3, 1] = np.nan
    rows[4] = np.nan
    total, path_values = [], []
    for path in itertools.product(range(2), repeat=6):
        value = np.log(model.startprob_[path[0]]) + sum(
            np.log(model.transmat_[a, b]) for a, b in itertools.pairwise(path)
        )
        for row, k in zip(rows, path):
            there = np.flatnonzero(~np.isnan(row))
            if len(there):
                shape = model.covariances_[k][np.ix_(there, there)]
                value += stats.multivariate_t(model.means_[k, there], shape, df=3.0).logpdf(row[there])
        total.append(value)
        path_values.append(path)
    assert model.score(rows) == pytest.approx(logsumexp(total), abs=1e-9)
    share = np.exp(np.array(total) - logsumexp(total))
    wanted = np.array([[share[[p[t] == k for p in path_values]].sum() for k in range(2)] for t in range(6)])
    assert model.predict_proba(rows) == pytest.approx(wanted, abs=1e-9)
    best = int(np.argmax(total))
    value, path = model.decode(rows)
    assert value == pytest.approx(total[best], abs=1e-9)
    assert tuple(path) == path_values[best]


def test_missing_columns_do_not_lower_the_likelihood_and_parameters_are_recovered():
    truth = made(2, dof=5.0)
    rows, states = truth.sample(1500, random_state=3)
    rng = np.random.default_rng(0)
    rows[rng.random(rows.shape) < 0.15] = np.nan
    model = rb.RobustGaussianHMM(2, random_state=0).fit(rows, lengths=[700, 800])
    assert np.diff(model.history_).min() > -1e-6
    order = np.argsort(model.means_[:, 0])
    assert model.means_[order] == pytest.approx(truth.means_, abs=0.3)
    assert model.covariances_[order] == pytest.approx(truth.covariances_, abs=0.35)
    assert accuracy(states, model.predict(rows, [700, 800]), 2) > 0.95


def test_degrees_of_freedom_are_recovered():
    # The standard error of ν at 5000 rows is about 4 %; 15 % is more than three of them.
    rows, _ = made(3, dof=4.0).sample(5000, random_state=4)
    assert rb.RobustGaussianHMM(3, random_state=0).fit(rows).dofs_ == pytest.approx(np.full(3, 4.0), rel=0.15)


def test_gross_outliers_do_not_take_a_state():
    truth = made(3, apart=4.0)
    rows, states = truth.sample(1500, random_state=5)
    rng = np.random.default_rng(1)
    odd = rng.choice(1500, 75, replace=False)
    dirty = rows.copy()
    dirty[odd] += rng.choice([-1, 1], (75, 2)) * rng.uniform(20, 60, (75, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runs = [GaussianHMM(3, covariance_type="full", n_iter=100, random_state=seed).fit(dirty) for seed in range(3)]
    theirs = max(runs, key=lambda run: run.score(dirty))
    clean = accuracy(states, rb.RobustGaussianHMM(3, random_state=0).fit(rows).predict(rows), 3)
    ours = rb.RobustGaussianHMM(3, random_state=0, n_init=2).fit(dirty)
    assert accuracy(states, ours.predict(dirty), 3) >= 0.95 * clean
    assert accuracy(states, theirs.predict(dirty), 3) < 0.8 * clean
    found = ours.outliers(fdr=0.05)
    assert np.isin(odd, found).mean() > 0.95
    # Over twelve seeds the share of false rows was .034 on average, .062 at most.
    assert np.isin(found, odd).mean() > 0.9
    assert ours.outlier_probabilities_[odd].min() > 0.99
    assert set(ours.outliers(X=dirty[:200])) <= set(range(200))


def test_heavy_tailed_states_are_no_outliers_and_neither_is_a_short_visit():
    rows, _ = made(3, dof=5.0, apart=6.0).sample(1500, random_state=0)
    heavy = rb.RobustGaussianHMM(3, random_state=0).fit(rows)
    assert heavy.wide_["weight"] < 0.1
    assert len(heavy.outliers()) <= 1
    # One row of another state amid a long stay is a visit; one far from every state is an outlier.
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 2)) + 6.0 * (np.arange(400) // 25 % 2)[:, None]
    rows[60], rows[160], rows[210] = [6.0, 6.0], [0.0, 30.0], [np.nan, -20.0]
    model = rb.RobustGaussianHMM(2, random_state=0).fit(rows)
    assert sorted(model.outliers()) == [160, 210]
    assert model.outlier_probabilities_[60] < 0.5
    again = model.outliers(X=rows)
    assert sorted(again) == [160, 210]
    assert np.argsort(-model.outlier_probabilities_)[:2].tolist() in ([160, 210], [210, 160])


def test_bic_prefers_the_true_number_of_states():
    rows, _ = made(2, dof=6.0).sample(600, random_state=6)
    bics = [rb.RobustGaussianHMM(k, random_state=0).fit(rows).bic(rows) for k in (1, 2, 3)]
    assert int(np.argmin(bics)) == 1
    model = rb.RobustGaussianHMM(2, dof=6.0, random_state=0).fit(rows)
    # Two states: 1 start, 2 transitions, 4 means, 6 covariances.
    assert model.aic(rows) + 2 * model.score(rows) == pytest.approx(2 * 13)


def test_a_model_is_kept_and_read_back(tmp_path):
    rows, _ = made(2, dof=4.0).sample(200, random_state=7)
    model = rb.RobustGaussianHMM(2, random_state=0).fit(rows)
    model.save(tmp_path / "hmm.robustly")
    back = rb.load(tmp_path / "hmm.robustly")
    assert back.score(rows) == model.score(rows)
    assert back.outliers().tolist() == model.outliers().tolist()
    assert back.get_params() == model.get_params()


ROWS = np.random.default_rng(0).normal(size=(40, 2))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: rb.RobustGaussianHMM(0).fit(ROWS), rb.ModelError, "n_components is a whole number of 1 or more; got 0"),
        (lambda: rb.RobustGaussianHMM(2, "round").fit(ROWS), rb.ModelError, "covariance_type is one of"),
        (lambda: rb.RobustGaussianHMM(2, dof=-1.0).fit(ROWS), rb.ModelError, "dof is"),
        (lambda: rb.RobustGaussianHMM(2).fit(ROWS, [10, 20]), rb.DataError, "add up to the 40 rows"),
        (lambda: rb.RobustGaussianHMM(2).fit([["a"], ["b"]]), rb.DataError, "not a number"),
        (lambda: rb.RobustGaussianHMM(2).fit(ROWS[:, 0]), rb.DataError, r"reshape\(-1, 1\)"),
        (lambda: rb.RobustGaussianHMM(2).fit(np.where(np.arange(2) == 0, np.nan, ROWS)), rb.DataError, "column 0 of X has no value"),
        (lambda: rb.RobustGaussianHMM(2).fit(np.full((40, 2), 3.0)), rb.DataError, "every column of X is constant"),
        (lambda: rb.RobustGaussianHMM(2).fit(np.full((40, 2), np.nan)), rb.DataError, "column 0 of X has no value"),
        (lambda: rb.RobustGaussianHMM(3).fit(ROWS[:2]), rb.DataError, "2 rows have a value for n_components=3"),
        (lambda: rb.RobustGaussianHMM(2, init_params="mc").fit(ROWS), rb.ModelError, "leaves startprob_ to you"),
        (lambda: rb.RobustGaussianHMM(2).predict(ROWS), rb.NotFittedError, r"Call fit\(X\) first"),
        (lambda: made(2).score(ROWS[:, :1]), rb.DataError, "1 columns, and the model was fitted to 2"),
    ],
)  # fmt: skip
def test_bad_input_is_named(make, error, words):
    with pytest.raises(error, match=words):
        make()
