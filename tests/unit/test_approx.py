"""Every way of integrating a local out, against integrals that are known."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import integrate, stats
from scipy.special import gammaln

import robustly as rb
from robustly._runtime.precision import double_precision
from robustly.approx.grid import line_points, sobol
from robustly.fit.passes import passes
from robustly.model import small_cholesky
from robustly.rows.arrays import make_rows
from robustly.rows.store import over_rows

POSITIVE = dist.constraints.positive


@pytest.fixture(autouse=True)
def strict():
    """The engine's own arithmetic never mixes types by accident."""
    with double_precision(), jax.numpy_dtype_promotion("strict"):
        yield


def poisson_log_pmf(count, log_rate):
    return count * log_rate - jnp.exp(log_rate) - jax.scipy.special.gammaln(count + 1.0)


NORMAL_POISSON = rb.RowModel(
    log_likelihood=lambda b, theta, row: poisson_log_pmf(row[0], b),
    log_prior=lambda b, theta, row: (
        -0.5 * ((b - theta["loc"]) / theta["scale"]) ** 2 - jnp.log(theta["scale"]) - 0.5 * jnp.log(2.0 * jnp.pi)
    ),
    center=lambda theta, row: (theta["loc"], theta["scale"]),
    start={"loc": 0.5, "scale": 1.5},
    constraints={"scale": POSITIVE},
)

Y = np.array([0.0, 1.0, 3.0, 20.0, 400.0])


def evidences(model, approx, data=(Y,), vector=None):
    rows = make_rows(list(data), [f"x{i}" for i in range(len(data))])
    compiled = passes(model, approx)
    x = jnp.asarray(model.parameters.start if vector is None else vector)
    return over_rows(compiled.values, rows, compiled.begin(rows), x)[1]["evidence"]


def exact_poisson_lognormal(loc=0.5, scale=1.5):
    def one(y):
        def density(u):
            b = loc + scale * u
            return np.exp(y * b - np.exp(b) - gammaln(y + 1) - 0.5 * u * u) / np.sqrt(2 * np.pi)

        mode = (np.log(max(y, 0.5)) - loc) / scale
        return np.log(
            integrate.quad(density, -12, 12, points=[mode - 1, mode, mode + 1], epsabs=0, epsrel=1e-13, limit=500)[0]
        )

    return np.array([one(y) for y in Y])


def test_quadrature_has_ten_digits_for_poisson_rows():
    np.testing.assert_allclose(evidences(NORMAL_POISSON, rb.Quadrature(21)), exact_poisson_lognormal(), atol=1e-9)


@pytest.mark.parametrize(
    ("approx", "accuracy"),
    [(rb.Quadrature(11), 2e-4), (rb.QMC(1024), 2e-3), (rb.Laplace(), 0.15), (rb.GaussianVI(), 0.1)],
)
def test_other_answers_are_as_good_as_they_claim(approx, accuracy):
    off = evidences(NORMAL_POISSON, approx) - exact_poisson_lognormal()
    assert np.abs(off).max() < accuracy
    if approx.is_bound:
        assert off.max() < 1e-10


@pytest.mark.parametrize("scale", [0.5, 3.0, 10.0])
@pytest.mark.parametrize("nodes", [21, 81])
def test_single_binary_outcomes_under_a_wide_prior(scale, nodes):
    model = rb.RowModel(
        log_likelihood=lambda b, theta, row: -jnp.logaddexp(0.0, -row[0] * b),
        log_prior=NORMAL_POISSON.log_prior,
        center=NORMAL_POISSON.center,
        start={"loc": 1.0, "scale": scale},
        constraints={"scale": POSITIVE},
    )
    signs = np.array([1.0, -1.0])
    exact = [
        np.log(
            integrate.quad(lambda u, s=s: stats.norm.pdf(u) / (1 + np.exp(-s * (1 + scale * u))), -10, 10, limit=500)[0]
        )
        for s in signs
    ]
    accuracy = {(21, 0.5): 1e-9, (21, 3.0): 1e-6, (21, 10.0): 1e-3}.get((nodes, scale), 1e-7)
    np.testing.assert_allclose(evidences(model, rb.Quadrature(nodes), (signs,)), exact, atol=accuracy)


@pytest.mark.parametrize(
    ("law", "log_density"),
    [
        (stats.loggamma(0.6), lambda u: 0.6 * u - jnp.exp(u)),
        (stats.loggamma(30), lambda u: 30.0 * u - jnp.exp(u)),
        (stats.t(4), lambda u: -2.5 * jnp.log1p(u**2 / 4.0)),
        (stats.logistic(), lambda u: -u - 2.0 * jnp.log1p(jnp.exp(-u))),
        (stats.norm(1e4, 1e-3), lambda u: -0.5 * ((u - 1e4) / 1e-3) ** 2),
    ],
)
def test_points_on_a_line_carry_the_quantiles_of_skewed_and_heavy_laws(law, log_density):
    joint = lambda u: log_density(u[0])
    mode = jnp.asarray([law.mean() if law.dist.name == "norm" else 0.0])
    from robustly.approx.climb import climb

    top = climb(joint, mode, 1)
    u, weight = line_points(joint, top, 401)
    share = np.exp(np.asarray(weight) - np.logaddexp.reduce(np.asarray(weight)))
    middle = np.cumsum(share) - 0.5 * share
    np.testing.assert_allclose(
        np.interp([0.05, 0.5, 0.95], middle, np.asarray(u)[:, 0]),
        law.ppf([0.05, 0.5, 0.95]),
        rtol=1e-3,
        atol=1e-3 * law.std(),
    )


@pytest.mark.parametrize("approx", [rb.Quadrature(21), rb.Laplace(), rb.GaussianVI(), rb.QMC(64)])
def test_slopes_are_those_of_the_reported_evidence_and_curvatures_close(approx):
    rows = make_rows([Y], ["y"])
    compiled = passes(NORMAL_POISSON, approx)
    x = np.array([0.3, 0.2])
    (_, slope, curve), by_row = compiled.objective(x, rows, compiled.begin(rows))
    value = lambda v: compiled.objective(v, rows, by_row["state"])[0][0]
    step = 1e-5
    numeric = [(value(x + step * e) - value(x - step * e)) / (2 * step) for e in np.eye(2)]
    np.testing.assert_allclose(slope, numeric, rtol=1e-6, atol=1e-6)
    slopes = lambda v: compiled.objective(v, rows, by_row["state"])[0][1]
    numeric_curve = np.column_stack([(slopes(x + step * e) - slopes(x - step * e)) / (2 * step) for e in np.eye(2)])
    loose = 1e-4
    np.testing.assert_allclose(curve, numeric_curve, rtol=loose, atol=loose)


def test_two_dimensional_locals_by_product_rules():
    model = rb.RowModel(
        log_likelihood=lambda b, theta, row: -0.5 * (row[0] - jnp.sum(b)) ** 2 - 0.5 * jnp.log(2.0 * jnp.pi),
        log_prior=lambda b, theta, row: jnp.sum(
            -0.5 * (b / theta["scale"]) ** 2 - jnp.log(theta["scale"]) - 0.5 * jnp.log(2.0 * jnp.pi)
        ),
        center=lambda theta, row: (jnp.zeros(2), theta["scale"]),
        local_shape=(2,),
        start={"scale": jnp.asarray([1.0, 2.0])},
        constraints={"scale": POSITIVE},
    )
    expected = stats.norm(0, np.sqrt(1 + 1 + 4)).logpdf(Y[:4])
    for approx in (rb.Quadrature(5), rb.Laplace(), rb.GaussianVI()):
        np.testing.assert_allclose(evidences(model, approx, (Y[:4],)), expected, atol=1e-9)
    np.testing.assert_allclose(evidences(model, rb.QMC(1024), (Y[:4],)), expected, atol=5e-3)


def test_discrete_latents_are_summed_outside_the_integral():
    model = rb.RowModel(
        log_likelihood=lambda b, theta, row, z: jnp.log(0.5) + poisson_log_pmf(row[0], b + z[0]),
        log_prior=NORMAL_POISSON.log_prior,
        center=NORMAL_POISSON.center,
        start={"loc": 0.5, "scale": 1.5},
        constraints={"scale": POSITIVE},
        latents=np.array([[0.0], [2.0]]),
    )
    each = [exact_poisson_lognormal(), exact_poisson_lognormal(loc=2.5)]
    np.testing.assert_allclose(evidences(model, rb.Quadrature(21)), np.logaddexp(*each) + np.log(0.5), atol=1e-8)


def test_answers_say_what_they_cannot_do():
    with pytest.raises(rb.ModelError, match="power of two"):
        rb.QMC(100)
    with pytest.raises(rb.ModelError, match="1 to 1000"):
        rb.Quadrature(0)
    model = rb.RowModel(
        log_likelihood=lambda b, theta, row: jnp.sum(b) * row[0],
        log_prior=lambda b, theta, row: -jnp.sum(b**2),
        local_shape=(5,),
        start={"a": 0.0},
    )
    with pytest.raises(rb.ModelError, match="5 dimensions"):
        passes(model, rb.Quadrature(5))
    with pytest.raises(rb.ModelError, match="log_likelihood takes 2 arguments"):
        rb.RowModel(log_likelihood=lambda b, row: 0.0, log_prior=lambda b, t, r: 0.0, start={"a": 0.0})
    with pytest.raises(rb.ModelError, match=r"log_prior\(local, theta, row\)"):
        rb.RowModel(log_likelihood=lambda b, t, r: 0.0, start={"a": 0.0})
    with pytest.raises(rb.ModelError, match='"scale"'):
        _ = rb.RowModel(
            log_likelihood=lambda b, t, r: 0.0,
            log_prior=lambda b, t, r: 0.0,
            start={"scale": -1.0},
            constraints={"scale": POSITIVE},
        ).parameters


def test_quasi_random_points_are_standard_normal():
    points, log_weight = sobol(1024, 3)
    assert np.allclose(points.mean(0), 0, atol=5e-3)
    assert np.allclose(np.cov(points.T), np.eye(3), atol=2e-2)
    assert np.exp(log_weight).sum() == pytest.approx(1.0)


def test_unrolled_cholesky_is_cholesky(rng):
    a = rng.normal(size=(6, 6))
    matrix = a @ a.T + np.eye(6)
    lower = small_cholesky.cholesky(jnp.asarray(matrix), 6)
    vector = rng.normal(size=6)
    np.testing.assert_allclose(
        small_cholesky.solve(lower, jnp.asarray(vector), 6), np.linalg.solve(matrix, vector), rtol=1e-10
    )
    np.testing.assert_allclose(small_cholesky.inverse(lower, 6), np.linalg.inv(matrix), rtol=1e-9)
    assert float(small_cholesky.half_log_det(lower, 6)) == pytest.approx(0.5 * np.linalg.slogdet(matrix)[1])
