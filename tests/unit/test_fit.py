"""What a fit tells: uncertainty, outliers with error control, predictions, draws, and what survives a file."""

import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS
from scipy import stats

import robustly as rb
from robustly.rows.arrays import ArrayRows


def poisson(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 10).expand([x.shape[1]]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(b + x @ w)), obs=y)


ROBUST = rb.localize(poisson, "b")


def simulate(rng, n=150, spread=0.6):
    x = rng.normal(size=(n, 2))
    return x, rng.poisson(np.exp(1 + x @ [0.4, -0.3] + spread * rng.normal(size=n)))


@pytest.fixture(scope="module")
def data():
    return simulate(np.random.default_rng(11))


@pytest.fixture(scope="module")
def fit(data):
    return ROBUST.fit(*data)


def test_information_is_the_curvature_of_the_log_likelihood(data, fit):
    h = 1e-4
    profile = []
    for shift in (-h, 0.0, h):
        held = rb.localize(poisson, "b", fixed={"loc": fit.hyperparameters["b"]["loc"] + shift})
        profile.append(held.fit(*data).objective)
    curvature = -(profile[0] - 2 * profile[1] + profile[2]) / h**2
    assert fit.standard_errors["b"]["loc"] == pytest.approx(curvature**-0.5, rel=1e-3)


def test_the_sandwich_agrees_with_the_information_when_the_model_holds(rng):
    fit = ROBUST.fit(*simulate(rng, n=1500))
    ratio = np.sqrt(np.diag(fit.covariance("sandwich")) / np.diag(fit.covariance()))
    assert np.all((ratio > 0.85) & (ratio < 1.18))


def test_intervals_keep_to_their_range_and_their_level(fit):
    interval = fit.confint(0.95)
    low, high = interval["b.scale"]
    assert 0 < low < fit.hyperparameters["b"]["scale"] < high
    wide = fit.confint(0.99)
    assert all(wide[k][0] < interval[k][0] and interval[k][1] < wide[k][1] for k in interval)
    centre = fit.shared["w"][0]
    assert interval["w[0]"][1] - centre == pytest.approx(1.959964 * fit.standard_errors["w"][0], rel=1e-6)


def test_intervals_cover_in_repeated_samples():
    # 120 sets at 95 %: fewer than 105 or more than 120 hits has probability below 1e-3.
    rng = np.random.default_rng(8)
    hits = 0
    for _ in range(120):
        low, high = ROBUST.fit(*simulate(rng, n=128)).confint(0.95)["w[0]"]
        hits += low < 0.4 < high
    assert 105 <= hits <= 120


def test_criteria_count_rows_and_parameters(fit):
    assert fit.aic == pytest.approx(-2 * fit.log_likelihood + 2 * 4)
    assert fit.bic == pytest.approx(-2 * fit.log_likelihood + np.log(150) * 4)
    assert fit.log_likelihood == pytest.approx(fit.evidence.sum())


def test_tail_probabilities_are_uniform_where_the_model_holds(rng):
    def normal(y):
        precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(0.0, precision**-0.5), obs=y)

    def normal_or_none(n, y=None):
        precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
        with numpyro.plate("rows", n.shape[0]):
            numpyro.sample("y", dist.Normal(0.0 * n, precision**-0.5), obs=y)

    y = rng.standard_t(5, size=600)
    fit = rb.localize(normal_or_none, "precision").fit(np.ones(600), y)
    assert stats.kstest(fit.tail_probabilities, "uniform").pvalue > 1e-3
    # A model without a default for what is observed says the same.
    same = rb.localize(normal, "precision").fit(y)
    np.testing.assert_allclose(same.tail_probabilities, fit.tail_probabilities, rtol=1e-6)


def test_planted_rows_are_found_and_false_alarms_are_rare(rng):
    x, y = simulate(rng, n=400, spread=0.3)
    planted = np.arange(0, 400, 80)
    y[planted] = 400
    found = ROBUST.fit(x, y).outliers(fdr=0.05)
    assert set(planted) <= set(found)
    clean = [len(ROBUST.fit(*simulate(rng, n=400, spread=0.3)).outliers(fdr=0.05)) for _ in range(8)]
    assert np.mean(np.array(clean) > 0) <= 0.4  # at most 5 % each if exact; 8 sets show 4 or more with probability 4e-4


def test_predictions_are_the_integrated_ones(data, fit):
    x = data[0][:5]
    h, w = fit.hyperparameters["b"], fit.shared["w"]
    new = fit.predictive(x)
    centre = h["loc"] + x @ w
    mean = np.exp(centre + h["scale"] ** 2 / 2)
    variance = mean + np.expm1(h["scale"] ** 2) * mean**2
    np.testing.assert_allclose(new.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(new.sd, np.sqrt(variance), rtol=1e-5)
    u, weight = np.polynomial.hermite_e.hermegauss(81)
    rates = np.exp(centre[:, None] + h["scale"] * u)
    cdf = lambda k: stats.poisson(rates).cdf(k) @ (weight / weight.sum())
    q = new.quantile(0.9)
    for i in range(5):
        assert cdf(q[i])[i] >= 0.9 > cdf(q[i] - 1)[i]
    np.testing.assert_allclose(new.cdf(3.0), cdf(3.0), atol=1e-7)
    low, high = new.interval(0.8)
    assert np.all(low <= high)
    draws = new.sample(4000, key=jax.random.key(0))
    assert draws.shape == (4000, 5)
    np.testing.assert_allclose(draws.mean(0), mean, rtol=0.15)
    np.testing.assert_allclose(new.log_prob(data[1][:5]), fit.evidence[:5], atol=1e-8)


def test_draws_of_the_integrated_model_agree_with_nuts_on_the_program():
    rng = np.random.default_rng(2)
    x, y = simulate(rng, n=60)
    fit = ROBUST.fit(x, y)
    draws = fit.sample_posterior(2000, key=jax.random.key(0))
    assert draws.divergences == 0
    with jax.enable_x64(True):
        sampler = MCMC(NUTS(ROBUST.program), num_warmup=500, num_samples=2000, progress_bar=False)
        sampler.run(jax.random.key(1), x, y)
        long = {name: np.asarray(value) for name, value in sampler.get_samples().items()}
        from numpyro.diagnostics import effective_sample_size

        size = {name: np.asarray(effective_sample_size(value[None])) for name, value in long.items() if name != "b"}
    assert long["b"].shape == (2000, 60)
    for name in ("w", "b.loc", "b.scale"):
        error = np.sqrt(long[name].var(0) * (1 / size[name] + 1 / 1000))
        gap = np.abs(long[name].mean(0) - draws[name].mean(0))
        assert np.all(gap < 4.5 * error), (name, gap, error)
        np.testing.assert_allclose(draws[name].std(0), long[name].std(0), rtol=0.25)


def test_arviz_reads_draws_and_integrated_log_likelihoods(fit):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz as az
    data = fit.to_arviz(num_samples=200)
    assert next(iter(data.log_likelihood.data_vars.values())).shape == (4, 200, 150)
    assert data.posterior["w"].shape == (4, 200, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loo = az.loo(data)
    elpd = loo.elpd if hasattr(loo, "elpd") else loo.elpd_loo  # ArviZ 1, and before it
    assert elpd == pytest.approx(fit.log_likelihood - 4, abs=3)


def test_a_hyperprior_makes_the_fit_a_map(data, fit):
    pulled = rb.localize(poisson, "b", hyperprior={"scale": dist.LogNormal(jnp.log(2.0), 0.05)}).fit(*data)
    assert fit.hyperparameters["b"]["scale"] < pulled.hyperparameters["b"]["scale"] < 2.0
    assert pulled.log_likelihood < fit.log_likelihood


def test_a_fixed_argument_stays_where_it_was_put(data):
    held = rb.localize(poisson, "b", fixed={"scale": 0.25}).fit(*data)
    assert set(held.hyperparameters["b"]) == {"loc"}
    assert len(held.labels) == 3


def test_a_saved_fit_comes_back_number_by_number(tmp_path, data, fit):
    path = tmp_path / "fit.robustly"
    fit.save(path)
    back = rb.load(path)
    assert back.hyperparameters == fit.hyperparameters
    assert str(back.summary()) == str(fit.summary())
    np.testing.assert_array_equal(back.outliers(level=0.05), fit.outliers(level=0.05))
    np.testing.assert_array_equal(back.posterior("b").quantile(0.9), fit.posterior("b").quantile(0.9))
    np.testing.assert_allclose(back.covariance("sandwich"), fit.covariance("sandwich"))
    with pytest.raises(rb.FitError, match="model="):
        back.predictive(data[0])
    with_model = rb.load(path, model=poisson)
    np.testing.assert_allclose(with_model.predictive(data[0][:3]).mean, fit.predictive(data[0][:3]).mean)
    again = tmp_path / "again.robustly"
    back.save(again)
    assert rb.load(again).objective == fit.objective


def test_damaged_and_foreign_files_are_refused(tmp_path, fit):
    path = tmp_path / "fit.robustly"
    with pytest.raises(rb.PersistError, match="no file"):
        rb.load(path)
    fit.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(rb.PersistError, match="damaged"):
        rb.load(path)
    damaged = bytearray(whole)
    damaged[len(whole) // 3] ^= 0xFF
    path.write_bytes(bytes(damaged))
    with pytest.raises(rb.PersistError):
        rb.load(path)
    path.write_text("y,x\n1,2\n")
    with pytest.raises(rb.PersistError, match="not written by robustly"):
        rb.load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("meta.json", "{}")
    with pytest.raises(rb.PersistError, match="not one that robustly wrote"):
        rb.load(path)
    with pytest.raises(rb.PersistError, match="cannot write"):
        fit.save(tmp_path / "missing" / "fit.robustly")


def test_a_failed_write_leaves_the_old_file(tmp_path, fit, monkeypatch):
    path = tmp_path / "fit.robustly"
    fit.save(path)
    before = path.read_bytes()
    monkeypatch.setattr(zipfile.ZipFile, "writestr", lambda *a, **k: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(rb.PersistError, match="disk full"):
        fit.save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["fit.robustly"]


def test_the_summary_is_text_html_and_data(fit):
    text = str(fit.summary())
    assert "b.scale" in text
    assert "converged" in text
    assert "<table" in fit.summary().to_html()
    assert list(fit.summary().frame.columns) == ["estimate", "std. error", "2.5 %", "97.5 %"]


def test_parameters_that_the_data_cannot_tell_apart_are_named(rng):
    def doubled(y):
        a = numpyro.sample("a", dist.ImproperUniform(dist.constraints.real, (), event_shape=()))
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Poisson(jnp.exp(a + b)), obs=y)

    y = rng.poisson(np.exp(1 + 0.6 * rng.normal(size=80)))
    fit = rb.localize(doubled, "b").fit(y)
    with pytest.warns(rb.IdentifiabilityWarning, match=r'"a" and "b\.loc"'):
        assert np.isnan(fit.standard_errors["a"])


def test_row_models_given_directly_are_fitted(rng):
    counts = rb.RowModel(
        prior=lambda theta, row: dist.Gamma(theta["shape"], theta["rate"]),
        log_likelihood=lambda rate, theta, row: dist.Poisson(rate).log_prob(row["y"]),
        start={"shape": 1.0, "rate": 1.0},
        constraints={"shape": dist.constraints.positive, "rate": dist.constraints.positive},
        local_support=dist.constraints.positive,
    )
    y = rng.negative_binomial(3, 0.4, size=300)
    fit = rb.fit_rows(counts, {"y": y})
    a, b = fit.parameters["shape"], fit.parameters["rate"]
    assert fit.approximation == "Exact()"
    np.testing.assert_allclose(fit.evidence, stats.nbinom(a, b / (1 + b)).logpmf(y), rtol=1e-10)
    with pytest.raises(rb.ModelError, match=r"one each, conjugate .* Use Exact"):
        rb.fit_rows(counts, {"y": y}, approx=rb.MeanField())
    weights = np.arange(300) % 3.0
    store = ArrayRows((y,), np.ones(300), labels=("y",))
    stored, given = (rb.fit_rows(counts, rows, weights=weights) for rows in (store, {"y": y}))
    np.testing.assert_allclose(stored.estimates, given.estimates, rtol=1e-10)
    np.testing.assert_allclose(stored.evidence, given.evidence, rtol=1e-10)
    with pytest.raises(rb.ModelError, match="cuts its rows itself"):
        rb.fit_rows(counts, store, chunk=64)


def test_row_models_with_several_parts_are_fitted_by_mean_field(rng):
    """Two parts that do not meet: the bound is the evidence."""
    parts = rb.RowModel(
        prior=lambda theta, row: {"m": dist.Normal(theta["loc"], 1.0), "t": dist.Gamma(theta["shape"], theta["shape"])},
        log_likelihood=lambda local, theta, row: (
            dist.Normal(local["m"], 0.5).log_prob(row["x"]) + dist.Poisson(local["t"]).log_prob(row["y"])
        ),
        start={"loc": 0.0, "shape": 1.0},
        constraints={"shape": dist.constraints.positive},
        transform=lambda u, theta, row: ({"m": u[0], "t": jnp.exp(u[1])}, u[1]),
        size=2,
    )
    x, y = rng.normal(1.0, 1.2, size=200), rng.negative_binomial(2, 2 / 3, size=200)
    fit = rb.fit_rows(parts, {"x": x, "y": y}, approx=rb.MeanField())
    loc, shape = fit.parameters["loc"], fit.parameters["shape"]
    exact = stats.norm(loc, np.hypot(1.0, 0.5)).logpdf(x) + stats.nbinom(shape, shape / (1 + shape)).logpmf(y)
    np.testing.assert_allclose(fit.evidence, exact, rtol=1e-8)


def test_the_program_runs_in_a_users_own_precision_and_under_jit(data):
    program = rb.localize(poisson, "b").program  # not fitted before: read with stand-ins for the traced data

    @jax.jit
    def log_density(x, y):
        values = {"w": jnp.zeros(2), "b.loc": 0.0, "b.scale": 1.0, "b": jnp.zeros(150)}
        return numpyro.infer.util.log_density(program, (x, y), {}, values)[0]

    found = log_density(*data)
    assert found.dtype == jnp.float32
    prior = stats.norm(0, 10).logpdf(0) * 2 + stats.norm(0, 10).logpdf(0) + stats.lognorm(2.0).logpdf(1.0)
    rows = stats.norm.logpdf(0) + stats.poisson(1.0).logpmf(data[1])
    assert float(found) == pytest.approx(prior + rows.sum(), rel=1e-5)


def test_row_models_can_be_checked(rng):
    def normal(loc, scale):
        return lambda b, theta, row: -0.5 * ((b - loc) / scale) ** 2 - jnp.log(scale) - 0.5 * jnp.log(2 * jnp.pi)

    likelihood = lambda b, theta, row: theta["size"] * dist.Poisson(jnp.exp(b)).log_prob(row["y"])
    rb.testing.check_row_model(rb.RowModel(likelihood, {"size": 1.0}, normal(0.0, 2.0)), {"y": np.array([3, 1])})
    halved = lambda b, theta, row: normal(0.0, 2.0)(b, theta, row) - jnp.log(2.0)
    with pytest.raises(rb.ModelError, match=r"adds up to 0\.5"):
        rb.testing.check_row_model(rb.RowModel(likelihood, {"size": 1.0}, halved), {"y": np.array([3, 1])})
    with pytest.raises(rb.ModelError, match="one finite number"):
        rb.testing.check_row_model(
            rb.RowModel(lambda b, theta, row: jnp.log(-theta["size"]), {"size": 1.0}, normal(0.0, 2.0)),
            {"y": np.array([3])},
        )


def test_a_search_that_starts_on_a_saddle_leaves_it():
    """Slopes are zero where all loadings are, whatever the data; that is no top."""

    def one_factor(x):
        w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([3]).to_event(1))
        with numpyro.plate("rows", x.shape[0]):
            z = numpyro.sample("z", dist.Normal(0.0, 1.0))
            numpyro.sample("x", dist.Normal(z[:, None] * w, 1.0).to_event(1), obs=x)

    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 1)) * np.array([1.0, -2.0, 0.5]) + rng.normal(size=(400, 3))
    w = rb.classical(one_factor).fit(x).shared["w"]
    np.testing.assert_allclose(w * np.sign(w[0]), [1.0, -2.0, 0.5], atol=0.25)


def test_evidences_by_row_are_those_at_the_estimate_though_it_was_not_looked_at(rng):
    y = rng.poisson(np.exp(1.0 + 0.6 * rng.normal(size=200)))

    def counts(y):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Poisson(jnp.exp(b)), obs=y)

    fit = rb.localize(counts, "b").fit(y)
    assert fit.source.found.optimum.before is not None
    assert fit.log_likelihood == pytest.approx(fit.evidence.sum(), abs=1e-9)
    np.testing.assert_allclose(fit.evidence, fit.source.evidence_at(fit.vector[None])[0], atol=1e-10)


def test_rows_that_cannot_be_are_refused_in_later_calls_too(rng):
    def counts(x, y):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Poisson(jnp.exp(b + w * x)), obs=y)

    x, y = rng.normal(size=50), rng.poisson(2.0, 50).astype(float)
    robust = rb.localize(counts, "b")
    robust.fit(x, y)
    for bad in (-1.0, 2.5):
        wrong = y.copy()
        wrong[17] = bad
        with pytest.raises(rb.SupportError, match=f"y holds {bad} in row 17"):
            robust.fit(x, wrong)
