"""Fits reach the maximum likelihood of the compound law: scipy's, R's, and a brute-force optimiser's."""

import json
from pathlib import Path

import numpy as np
import numpyro.distributions as dist
import pytest
from conjugate_rows import PAIRS
from scipy import optimize, sparse, stats

from robustly.conjugate import BetaBinomial, DirichletMultinomial, GammaPoisson, NormalInverseGamma, NormalNormal

REFERENCES = json.loads((Path(__file__).parents[1] / "references" / "conjugate.json").read_text())


@pytest.mark.parametrize("name", PAIRS)
def test_direct_needs_at_most_fifteen_evaluations_on_a_thousand_rows(name, fitted):
    fit, _ = fitted(name)
    assert fit.outcome.kind == "converged"
    assert len(fit.history) <= 15


@pytest.mark.parametrize("name", PAIRS)
def test_em_and_direct_agree(name, fitted):
    (direct, _), (em, _) = fitted(name), fitted(name, "em")
    for key, value in direct.parameters.items():
        np.testing.assert_allclose(em.parameters[key], value, rtol=1e-6, atol=1e-6)
    values = [entry["value"] for entry in em.history]
    assert np.min(np.diff(values)) >= -1e-10 * abs(values[-1])


@pytest.mark.parametrize("dof", [1.5, 3.0, 10.0])
def test_student_t_reaches_scipys_maximum_likelihood(dof):
    x = stats.t(dof, 2.0, 0.7).rvs(2000, random_state=7)
    fit = NormalInverseGamma().fit(x)

    def loss(theta):
        return -stats.t(np.exp(theta[0]), theta[1], np.exp(theta[2])).logpdf(x).sum()

    best = np.inf
    start = np.array([np.log(dof), 2.0, np.log(0.7)])
    for _ in range(6):
        found = optimize.minimize(
            loss, start, method="Nelder-Mead", options={"xatol": 1e-11, "fatol": 1e-12, "maxiter": 4000}
        )
        best, start = min(best, found.fun), found.x
    assert fit.log_likelihood == pytest.approx(-best, abs=1e-8)
    assert fit.log_likelihood == pytest.approx(stats.t(fit.dof, fit.loc, fit.scale).logpdf(x).sum(), abs=1e-8)
    assert (fit.dof, fit.loc, fit.scale) == pytest.approx((np.exp(start[0]), start[1], np.exp(start[2])), rel=1e-4)


def test_counts_match_glm_nb_with_an_intercept():
    given = REFERENCES["quine_intercept"]
    fit = GammaPoisson().fit(given["counts"])
    assert fit.log_likelihood == pytest.approx(given["log_likelihood"], abs=1e-8)
    assert fit.hyperparameters["concentration"] == pytest.approx(given["theta"], rel=1e-6)
    assert np.log(fit.mean) == pytest.approx(given["coef"], rel=1e-8)
    h = fit.hyperparameters
    scipys = stats.nbinom(h["concentration"], h["rate"] / (1 + h["rate"])).logpmf(given["counts"])
    assert fit.log_likelihood == pytest.approx(scipys.sum(), abs=1e-8)


def test_counts_with_exposure_match_glm_nb_with_an_offset():
    given = REFERENCES["ships"]
    fit = GammaPoisson().fit(given["counts"], given["exposure"])
    assert fit.log_likelihood == pytest.approx(given["log_likelihood"], abs=1e-8)
    assert fit.hyperparameters["concentration"] == pytest.approx(given["theta"], rel=1e-5)


def test_counts_with_covariates_match_glm_nb():
    given = REFERENCES["quine_covariates"]
    fit = GammaPoisson().fit(REFERENCES["quine_intercept"]["counts"], design=given["design"])
    assert fit.log_likelihood == pytest.approx(given["log_likelihood"], abs=1e-8)
    np.testing.assert_allclose(fit.shared["coef"], given["coef"], rtol=1e-5)
    # glm.nb's standard error of theta takes coefficients as known; with NB2 the two are orthogonal.
    assert fit.standard_errors["concentration"] == pytest.approx(given["se_theta"], rel=2e-2)


@pytest.mark.parametrize("litters", ["low_iron_litters", "lactation_litters"])
def test_litters_match_vgam(litters):
    given = REFERENCES[litters]
    fit = BetaBinomial().fit(given["successes"], given["trials"])
    assert fit.log_likelihood == pytest.approx(given["log_likelihood"], abs=1e-7)
    assert fit.mean == pytest.approx(given["mean"], rel=1e-4)
    assert fit.rho == pytest.approx(given["rho"], rel=1e-4)


def test_categories_match_a_brute_force_optimiser(fitted):
    fit, (counts,) = fitted("DirichletMultinomial")
    sizes = counts.sum(axis=1)

    def loss(logs):
        return -stats.dirichlet_multinomial(np.exp(logs), sizes).logpmf(counts).sum()

    found = optimize.minimize(loss, np.zeros(4), method="BFGS", options={"gtol": 1e-4})
    assert fit.log_likelihood == pytest.approx(-found.fun, abs=1e-6)
    assert fit.log_likelihood >= -found.fun - 1e-9
    np.testing.assert_allclose(fit.hyperparameters["concentration"], np.exp(found.x), rtol=1e-4)


@pytest.mark.parametrize("total", [1e-3, 1.0, 1e3, 1e7])
def test_categories_are_stable_from_tiny_to_huge_concentrations(total):
    """The evidence at the optimum beats its neighbours, and the truth lies in a wide interval."""
    rng = np.random.default_rng(0)
    share = np.array([0.5, 0.3, 0.15, 0.05])
    alpha = total * share
    logs = np.log(rng.gamma(alpha + 1, size=(400, 4))) + np.log(rng.random((400, 4))) / alpha
    drawn = np.exp(logs - logs.max(axis=1, keepdims=True))
    counts = rng.multinomial(30_000_000 if total > 1e5 else 200, drawn / drawn.sum(axis=1, keepdims=True))
    fit = DirichletMultinomial().fit(counts)
    assert fit.outcome.kind in ("converged", "boundary")
    if fit.outcome.kind == "converged":
        low, high = fit.confint(0.9999)["total"]
        assert low < total < high
        assert np.all(np.isfinite(fit.evidence))


def test_sparse_and_dense_counts_give_the_same_fit():
    rng = np.random.default_rng(1)
    counts = rng.poisson(rng.gamma(0.3, 2.0, (200, 30)))
    counts[:, 7] = 0
    dense, thin = DirichletMultinomial().fit(counts), DirichletMultinomial().fit(sparse.csr_matrix(counts))
    np.testing.assert_allclose(
        dense.hyperparameters["concentration"], thin.hyperparameters["concentration"], rtol=1e-12
    )
    np.testing.assert_allclose(dense.evidence, thin.evidence, rtol=1e-12)
    assert dense.hyperparameters["concentration"][7] == pytest.approx(1e-6, rel=1e-12)
    assert "1 of 30 categories never occur (column 7)" in dense.notes[0]
    assert len(dense.history) <= 15


@pytest.mark.parametrize("name", ["GammaPoisson", "BetaBinomial", "NormalInverseGamma"])
def test_weight_two_is_the_row_twice_and_order_does_not_matter(name, fitted):
    _, data = fitted(name)
    few = tuple(np.asarray(part)[:200] for part in data)
    twice = tuple(np.concatenate([part, part[:50]])[::-1] for part in few)
    weighted = PAIRS[name].fit(*few, weights=np.where(np.arange(200) < 50, 2.0, 1.0))
    repeated = PAIRS[name].fit(*twice)
    assert weighted.log_likelihood == pytest.approx(repeated.log_likelihood, abs=1e-9)
    for key, value in weighted.parameters.items():
        assert repeated.parameters[key] == pytest.approx(value, rel=1e-6)


def test_doubling_every_row_leaves_the_prior_and_halves_the_variance(fitted):
    fit, (x, trials) = fitted("BetaBinomial")
    doubled = BetaBinomial().fit(np.tile(x, 2), np.tile(trials, 2))
    assert doubled.hyperparameters == pytest.approx(fit.hyperparameters, rel=1e-8)
    np.testing.assert_allclose(doubled.covariance(), fit.covariance() / 2, rtol=1e-6)


def test_student_t_moves_with_location_and_scale(fitted):
    fit, (x,) = fitted("NormalInverseGamma")
    moved = NormalInverseGamma().fit(1e6 + 1e-3 * x)
    assert moved.dof == pytest.approx(fit.dof, rel=1e-6)
    assert moved.scale == pytest.approx(1e-3 * fit.scale, rel=1e-6)
    assert moved.loc == pytest.approx(1e6 + 1e-3 * fit.loc, abs=1e-8)


def test_exposure_in_other_units_only_rescales_the_rate(fitted):
    fit, (x, exposure) = fitted("GammaPoisson")
    other = GammaPoisson().fit(x, 365.25 * exposure)
    assert other.hyperparameters["concentration"] == pytest.approx(fit.hyperparameters["concentration"], rel=1e-7)
    assert other.hyperparameters["rate"] == pytest.approx(365.25 * fit.hyperparameters["rate"], rel=1e-7)


def test_a_million_equal_rows_cost_as_little_as_their_distinct_values(fitted):
    rng = np.random.default_rng(0)
    x = rng.poisson(rng.gamma(1.5, 3.0, 100_000))
    fit = GammaPoisson().fit(x)
    assert len(fit.source.table.weight) < 100
    values, times = np.unique(x, return_counts=True)
    assert fit.log_likelihood == pytest.approx(GammaPoisson().fit(values, weights=times).log_likelihood, abs=1e-7)


def test_normal_means_by_covariates_are_the_marginal_likelihood():
    rng = np.random.default_rng(2)
    n = 300
    design = np.column_stack([np.ones(n), rng.normal(size=n)])
    variances = rng.uniform(0.2, 1.0, n)
    x = design @ [1.0, -2.0] + 0.8 * rng.normal(size=n) + np.sqrt(variances) * rng.normal(size=n)
    fit = NormalNormal().fit(x, variances, design=design)
    total = variances + fit.hyperparameters["scale"] ** 2
    weighted = np.linalg.solve((design.T / total) @ design, (design.T / total) @ x)
    np.testing.assert_allclose(fit.shared["coef"], weighted, rtol=1e-6)
    low, high = fit.confint(0.999)["scale"]
    assert low < 0.8 < high


def test_a_fixed_value_stays_and_is_not_counted():
    x = stats.t(3.0).rvs(300, random_state=0)
    fit = NormalInverseGamma(dof=4.0, loc=0.0).fit(x)
    assert (fit.dof, fit.loc, len(fit.vector)) == (4.0, 0.0, 1)
    assert fit.confint()["loc"] == (0.0, 0.0)
    none = NormalInverseGamma(dof=4.0, loc=0.0, scale=1.0).fit(x)
    assert none.log_likelihood == pytest.approx(stats.t(4.0).logpdf(x).sum(), abs=1e-9)


def test_a_hyperprior_pulls_the_fit_and_em_agrees():
    x, trials = [1, 4, 2, 6, 3], 10
    strong = {"concentration": dist.Gamma(1000.0, 100.0)}
    fit, em = (BetaBinomial().fit(x, trials, hyperprior=strong, method=m) for m in ("direct", "em"))
    assert fit.concentration == pytest.approx(10.0, rel=0.05)
    assert em.concentration == pytest.approx(fit.concentration, rel=1e-6)


def test_standard_errors_are_those_of_the_observed_information(fitted):
    fit, (x,) = fitted("GammaExponential")

    def loss(v):
        return -stats.lomax(v[0], scale=v[1]).logpdf(x).sum()

    at = np.array([fit.hyperparameters["concentration"], fit.hyperparameters["rate"]])
    step = 1e-3 * at
    curve = np.zeros((2, 2))
    for i in range(2):
        for j in range(2):
            e, f = np.eye(2)[i] * step, np.eye(2)[j] * step
            curve[i, j] = (loss(at + e + f) - loss(at + e - f) - loss(at - e + f) + loss(at - e - f)) / (
                4 * step[i] * step[j]
            )
    np.testing.assert_allclose(fit.covariance(), np.linalg.inv(curve), rtol=1e-3)
    low, high = fit.confint()["concentration"]
    assert low < 3.0 < high
    assert fit.covariance("sandwich").shape == (2, 2)
