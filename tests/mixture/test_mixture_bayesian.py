"""Variational mixtures: a bound that is exact where it can be, never falls, and components that vanish."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixture_rows import clusters, student, with_noise
from scipy.special import gammaln, multigammaln
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import BayesianGaussianMixture
from sklearn.utils.estimator_checks import check_estimator

import robustly as rb
from robustly.fit.t_components import Rules
from robustly.fit.t_rows import collect
from robustly.fit.t_start import body, from_shares
from robustly.mixture.variational import ParameterBelief, Prior, raise_bound

KINDS = ("full", "tied", "diag", "spherical")


@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_checks_pass():
    check_estimator(rb.BayesianRobustGaussianMixture(2))


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_of_one_normal_component_is_the_exact_evidence(kind, rng):
    n, d, dof0, count0 = 40, 3, 5.0, 2.0
    X = rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + 1.0
    mean0 = np.array([0.5, 0.0, -0.5])
    root = rng.normal(size=(d, d))
    shape0 = {"diag": np.array([1.0, 2.0, 3.0]), "spherical": 2.0}.get(kind, root @ root.T + np.eye(d))
    model = rb.BayesianRobustGaussianMixture(
        1, covariance_type=kind, dof=np.inf, mean_prior=mean0, mean_precision_prior=count0,
        degrees_of_freedom_prior=dof0, covariance_prior=shape0, tol=1e-14,
    ).fit(X)  # fmt: skip
    middle = X.mean(axis=0)
    off = middle - mean0
    sums = (X - middle).T @ (X - middle) + count0 * n / (count0 + n) * np.outer(off, off)
    start = -0.5 * n * d * np.log(np.pi) + 0.5 * d * np.log(count0 / (count0 + n))
    if kind in ("full", "tied"):
        half = lambda dof, shape: multigammaln(dof / 2, d) - 0.5 * dof * np.linalg.slogdet(shape)[1]
        evidence = start + half(dof0 + n, shape0 + sums) - half(dof0, shape0)
    elif kind == "diag":
        half = lambda dof, shape: np.sum(gammaln(dof / 2) - 0.5 * dof * np.log(shape))
        evidence = start + half(dof0 + n, shape0 + np.diag(sums)) - half(dof0, shape0)
    else:
        half = lambda dof, shape: gammaln(dof / 2) - 0.5 * dof * np.log(shape)
        evidence = start + half(dof0 + n * d, shape0 + np.trace(sums)) - half(dof0, shape0)
    assert n * model.lower_bound_ == pytest.approx(evidence, rel=1e-10)


def test_with_infinite_dof_it_is_scikit_learns_bayesian_mixture(rng):
    X, _ = clusters(rng, apart=4.0)
    common = {
        "n_components": 5, "weight_concentration_prior_type": "dirichlet_distribution", "mean_prior": X.mean(axis=0),
        "weight_concentration_prior": 0.1, "mean_precision_prior": 1.0, "degrees_of_freedom_prior": 2.0,
        "covariance_prior": np.cov(X.T), "random_state": 0, "init_params": "kmeans", "max_iter": 20_000,
    }  # fmt: skip
    theirs = BayesianGaussianMixture(reg_covar=0.0, tol=1e-10, **common).fit(X)
    ours = rb.BayesianRobustGaussianMixture(dof=np.inf, tol=1e-13, **common).fit(X)
    np.testing.assert_allclose(ours.weights_, theirs.weights_, atol=1e-5)
    np.testing.assert_allclose(ours.means_, theirs.means_, atol=1e-4)
    np.testing.assert_allclose(ours.covariances_, theirs.covariances_, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(ours.mean_precision_, theirs.mean_precision_, atol=1e-3)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    kind=st.sampled_from(KINDS),
    size=st.integers(1, 5),
    process=st.booleans(),
    dof=st.sampled_from(["fit", "tied", 3.0, np.inf]),
)
def test_no_step_lowers_the_bound(seed, kind, size, process, dof):
    rng = np.random.default_rng(seed)
    X = student(rng, 90, 2.0, np.zeros(2), np.eye(2)) + rng.choice([-3.0, 0.0, 4.0], size=(90, 1))
    rules = Rules(kind, np.full(2, 1e-6), fit_dof=False)
    whole = body(X, rules)
    shape = whole.covariances if kind == "tied" else whole.covariances[0]
    prior = Prior(
        kind,
        process,
        0.3,
        whole.means[0],
        0.5,
        2.5,
        np.asarray(shape),
        fit_dof=isinstance(dof, str),
        tied_dof=dof == "tied",
    )
    start = from_shares(X, rng.dirichlet(np.ones(size), size=90), rules, 5.0 if isinstance(dof, str) else dof)
    held = ParameterBelief(
        np.ones((1 + process, size)), start.means, np.ones(size), np.ones(1), prior.shape, start.dofs
    )
    found = raise_bound(X, prior, collect(X, start.kernel, fit_dof=False), held, 0.0, 25)
    assert np.diff(found.history).min() > -1e-11


@pytest.mark.parametrize("process", ["dirichlet_process", "dirichlet_distribution"])
@pytest.mark.parametrize("noisy", [False, True])
def test_components_that_are_not_needed_vanish(process, noisy):
    rng = np.random.default_rng(0)
    X, labels = clusters(rng)
    rows = with_noise(X, rng) if noisy else X
    model = rb.BayesianRobustGaussianMixture(10, weight_concentration_prior_type=process, random_state=0).fit(rows)
    assert (model.weights_ > 0.02).sum() == 3
    assert model.weights_[model.weights_ > 0.02].sum() > 0.95
    assert adjusted_rand_score(labels, model.predict(X)) > 0.97
    if process == "dirichlet_distribution":
        assert model.n_active_ == 3


def test_the_bound_prefers_tails_for_heavy_tailed_clusters():
    rng = np.random.default_rng(0)
    X = np.concatenate(
        [student(rng, 150, 2.0, np.zeros(2), np.eye(2)), student(rng, 150, 2.0, np.array([15.0, 0.0]), np.eye(2))]
    )
    robust = rb.BayesianRobustGaussianMixture(6, random_state=0).fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = rb.BayesianRobustGaussianMixture(6, dof=np.inf, random_state=0).fit(X)
    assert (robust.weights_ > 0.02).sum() == 2
    assert (plain.weights_ > 0.02).sum() > 2
    assert robust.lower_bound_ > plain.lower_bound_


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_posterior_comes_back(kind, tmp_path, rng):
    X, _ = clusters(rng)
    model = rb.BayesianRobustGaussianMixture(4, covariance_type=kind, random_state=0).fit(X)
    model.save(tmp_path / "belief.robustly")
    back = rb.load(tmp_path / "belief.robustly")
    assert np.array_equal(back.predict_proba(X), model.predict_proba(X))
    assert back.n_active_ == model.n_active_
    assert np.array_equal(back.weight_concentration_, model.weight_concentration_)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weight_concentration_prior_type": "sticks"}, "dirichlet_process"),
        ({"mean_precision_prior": 0.0}, "mean_precision_prior is a number above 0 here"),
        ({"degrees_of_freedom_prior": 0.5}, "degrees_of_freedom_prior is a number above 1 here"),
        ({"mean_prior": [0.0]}, "mean_prior is 2 finite numbers"),
        ({"covariance_prior": [[1.0, 2.0], [2.0, 1.0]]}, "covariance_prior is positive"),
        ({"covariance_type": "diag", "covariance_prior": [[1.0]]}, r"of shape \(2,\)"),
    ],
)  # fmt: skip
def test_priors_that_cannot_be_are_named(settings, message, rng):
    with pytest.raises(rb.ModelError, match=message):
        rb.BayesianRobustGaussianMixture(**settings).fit(rng.normal(size=(20, 2)))


def test_too_few_rows_and_too_few_steps_are_said(rng):
    with pytest.raises(rb.DataError, match="2 rows came for n_components=5"):
        rb.BayesianRobustGaussianMixture(5).fit(rng.normal(size=(2, 2)))
    with pytest.warns(rb.ConvergenceWarning, match="2 steps were not enough"):
        rb.BayesianRobustGaussianMixture(3, max_iter=2, tol=1e-12, random_state=0).fit(clusters(rng, apart=1.0)[0])
