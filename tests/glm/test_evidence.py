"""A row's evidence and its derivatives, against closed forms and brute force."""

from __future__ import annotations

from decimal import Decimal, localcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import logsumexp

from robustly._runtime.precision import double_precision
from robustly.approx.tabulated import make_tables, read_tables
from robustly.errors import ModelError
from robustly.fit.view_passes import pairs, row_kernel
from robustly.glm.asked import law_of
from robustly.glm.families import (
    Bernoulli,
    Binomial,
    Exponential,
    Gamma,
    NegativeBinomial,
    Normal,
    Poisson,
    beyond_line,
)
from robustly.glm.local import Classical, LocalDispersion, LocalLabel, LocalPrecision, LocalPredictor, Shifted
from robustly.glm.named import as_family
from robustly.glm.row_model import approximation, row_model
from robustly.model import column_sums as loops
from robustly.model.responses import different_responses
from robustly.rows.arrays import ArrayRows


def curves(law, m, phi, y, trials=1.0, nodes=21):
    y, trials = np.array([y], dtype=float), np.array([trials], dtype=float)
    numbers = (np.array([m], dtype=float), *map(float, phi))
    with double_precision():
        found = by_number(law, nodes, numbers, (y, trials))
        value, slope, curve, _ = (np.asarray(part) for part in found)
    return float(value[0] + law.family.log_base(y, trials)[0]), slope[0], curve[0]


def by_number(law, nodes, numbers, row):
    """Values, slopes and curvatures of rows in their numbers."""
    kernel = row_kernel(row_model(law), approximation(law, nodes))
    state = np.asarray(kernel.approx.start_at(kernel.model, row, numbers, len(row[0])), dtype=np.float32)
    return kernel.curves(numbers, row, state, False)


def brute_force(law, m, phi, y, trials=1.0):
    """A very fine trapezoid rule that reaches e³⁰ scales out."""
    x = np.linspace(-30, 30, 60_001)
    scale = np.exp(phi[0])
    own = m + scale * np.sinh(x)
    with double_precision():
        heights = np.asarray(jax.vmap(lambda o: law.joint(o, (y, trials), m, *phi))(own))
    heights = np.where(np.isfinite(heights), heights, -np.inf)
    base = law.family.log_base(np.array([float(y)]), np.array([float(trials)]))[0]
    return float(logsumexp(heights + np.log(scale * np.cosh(x) * (x[1] - x[0])))) + base


@pytest.mark.parametrize(
    ("family", "law", "y", "trials", "nuisance"),
    [
        (Normal(), lambda m, s: stats.norm(m, s), 1.3, 1, (0.7,)),
        (Poisson(), lambda m: stats.poisson(np.exp(m)), 3, 1, ()),
        (Poisson(), lambda m: stats.poisson(np.exp(m)), 0, 1, ()),
        (Bernoulli(), lambda m: stats.bernoulli(1 / (1 + np.exp(-m))), 1, 1, ()),
        (Binomial(), lambda m: stats.binom(12, 1 / (1 + np.exp(-m))), 5, 12, ()),
        (Gamma(), lambda m, k: stats.gamma(k, scale=np.exp(m) / k), 0.8, 1, (2.5,)),
        (Exponential(), lambda m: stats.expon(scale=np.exp(m)), 0.8, 1, ()),
        (NegativeBinomial(), lambda m, r: stats.nbinom(r, r / (r + np.exp(m))), 4, 1, (1.7,)),
    ],
)
def test_families_have_the_densities_and_moments_of_their_names(family, law, y, trials, nuisance):
    m = 0.4
    expected = law(m, *nuisance)
    log_density = expected.logpdf(y) if hasattr(expected.dist, "logpdf") else expected.logpmf(y)
    value, _, _ = curves(Classical(family), m, np.log(nuisance), y, trials)
    at = (np.array([m]), nuisance, np.array([float(trials)]))
    assert value == pytest.approx(float(log_density), rel=1e-12)
    assert family.mean(*at)[0] == pytest.approx(expected.mean(), rel=1e-12)
    assert family.variance(*at)[0] == pytest.approx(expected.var(), rel=1e-12)
    assert family.cdf(np.array([float(y)]), *at)[0] == pytest.approx(expected.cdf(y), rel=1e-10)


@pytest.mark.parametrize("prior", ["normal", "laplace", "student_t"])
@pytest.mark.parametrize("spread", [0.1, 0.7, 4.0])
@pytest.mark.parametrize(("family", "y", "trials"), [(Poisson(), 0, 1), (Poisson(), 500, 1), (Bernoulli(), 1, 1)])
def test_quadrature_is_right_to_seven_digits(family, y, trials, prior, spread):
    law = LocalPredictor(family, prior)
    phi = [np.log(spread), *([np.log(1.0)] if prior == "student_t" else [])]
    for m in (-6.0, 0.5, 5.0):
        found, _, _ = curves(law, m, phi, y, trials, nodes=41 if spread > 2 else 21)
        assert found == pytest.approx(brute_force(law, m, phi, y, trials), abs=4e-7)


@pytest.mark.parametrize(
    ("law", "phi", "y", "trials"),
    [
        (LocalPredictor(Poisson()), [-0.3], 4, 1),
        (LocalPredictor(Poisson(), "laplace"), [-0.3], 4, 1),
        (LocalPredictor(Poisson(), "student_t"), [-0.3, 1.0], 4, 1),
        (LocalPredictor(Bernoulli()), [0.5], 1, 1),
        (LocalPredictor(Gamma()), [-0.3, 0.8], 1.7, 1),
        (LocalPredictor(Normal(), "laplace"), [-0.3, 0.2], 1.7, 1),
        (LocalDispersion(Gamma()), [-0.3, 0.8], 1.7, 1),
        (LocalDispersion(NegativeBinomial()), [-0.3, 0.8], 5, 1),
        (LocalPrecision(Normal()), [0.1, 0.9], 2.0, 1),
        (LocalLabel(Bernoulli()), [-2.0], 0, 1),
        (Classical(NegativeBinomial()), [0.3], 5, 1),
    ],
)
@pytest.mark.parametrize("nodes", [61, 0])
def test_derivatives_are_those_of_the_value(law, phi, y, trials, nodes):
    if nodes == 0 and (not isinstance(law, LocalPredictor) or law.prior != "normal"):
        pytest.skip("Laplace's approximation is for smooth integrated predictors")
    at = np.array([0.4, *phi])
    value = lambda p: curves(law, p[0], p[1:], y, trials, nodes)[0]
    slope = lambda p: curves(law, p[0], p[1:], y, trials, nodes)[1]
    _, found, bend = curves(law, at[0], at[1:], y, trials, nodes)
    step = 1e-4
    unit = np.eye(len(at)) * step
    np.testing.assert_allclose(found, [(value(at + u) - value(at - u)) / (2 * step) for u in unit], atol=3e-6)
    numeric = np.array([(slope(at + u) - slope(at - u)) / (2 * step) for u in unit])
    np.testing.assert_allclose(bend, [numeric[i, j] for i, j in pairs(len(at))], atol=3e-6)


def test_local_precision_is_student_t():
    value, _, _ = curves(LocalPrecision(Normal()), 0.3, np.log([0.8, 3.5]), 2.9)
    assert value == pytest.approx(stats.t(3.5, 0.3, 0.8).logpdf(2.9), rel=1e-13)


def test_student_t_with_many_degrees_of_freedom_is_normal():
    value, _, _ = curves(LocalPrecision(Normal()), 0.3, np.log([0.8, 1e9]), 2.9)
    assert value == pytest.approx(stats.norm(0.3, 0.8).logpdf(2.9), abs=1e-7)


def test_a_vanishing_spread_gives_the_classical_evidence():
    local, _, _ = curves(LocalPredictor(Poisson()), 0.7, [np.log(1e-5)], 3)
    plain, _, _ = curves(Classical(Poisson()), 0.7, [], 3)
    assert local == pytest.approx(plain, abs=1e-8)


def test_rates_of_e_to_the_40_lose_no_digits():
    y, spread = np.floor(np.exp(40.0)), 0.5
    value, slope, curve = curves(LocalPredictor(Poisson()), 39.0, [np.log(spread)], y)
    # So many counts pin the log rate: the evidence is the prior's density there, with the change of variable.
    assert value == pytest.approx(stats.norm(39.0, spread).logpdf(np.log(y)) - np.log(y), abs=1e-6)
    assert np.all(np.isfinite(slope))
    assert np.all(np.isfinite(curve))


def test_sparse_shifts_of_a_normal_are_hubers_loss():
    law = Shifted(Normal())
    price, scale = 0.8, 0.6
    for y in (-3.0, -0.2, 0.1, 0.9, 4.0):
        value, slope, _ = curves(law, 0.0, np.log([price, scale]), y)
        bend = scale**2 / price
        loss = 0.5 * (y / scale) ** 2 if abs(y) <= bend else abs(y) / price - 0.5 * (scale / price) ** 2
        assert value == pytest.approx(-loss - np.log(scale) - 0.5 * np.log(2 * np.pi), abs=1e-9)
        assert slope[0] == pytest.approx(np.clip(y / scale**2, -1 / price, 1 / price), abs=1e-7)


@pytest.mark.parametrize(
    ("law", "phi", "most"),
    [
        (LocalPredictor(Bernoulli()), (0.3,), 1),
        (LocalPredictor(Binomial()), (-0.5,), 12),
        (LocalPredictor(Poisson()), (-0.4,), 400),
        (LocalPredictor(Poisson(), "student_t"), (-1.0, 1.2), 60),
        (LocalPredictor(Poisson(), "laplace"), (-1.0,), 60),
    ],
    ids=lambda given: repr(given) if isinstance(given, LocalPredictor) else "",
)
def test_tables_of_responses_agree_with_the_rows(law, phi, most):
    rng = np.random.default_rng(0)
    n = 4096
    trials = np.full(n, 1.0) if not isinstance(law.family, Binomial) or most == 1 else rng.integers(1, most, n) + 0.0
    m = rng.normal(1.0 if most > 1 else 0.0, 1.5, n)
    y = np.minimum(rng.poisson(np.exp(m)), trials if isinstance(law.family, Binomial) else most).astype(float)
    responses = different_responses(ArrayRows((m[:, None], m, y, trials), np.ones(n)))
    place = responses.of((None, None, y, trials))
    np.testing.assert_array_equal(responses.y[place], y)
    np.testing.assert_array_equal(responses.trials[place], trials)
    low, high = (np.array([end(m[place == k]) for k in range(len(responses))]) for end in (np.min, np.max))
    with double_precision():
        curves = lambda *row: by_number(law, 21, (row[0], *phi), row[1:])
        width = law.width(responses.y, responses.trials, np.array(phi))
        tables, _ = make_tables(curves, responses, low, high, width, 100_000)
        direct = [np.asarray(part) for part in curves(m, y, trials)[:3]]
    value, *derivatives = read_tables(tables, m, place, 1 + len(phi))
    np.testing.assert_allclose(value, direct[0], rtol=2e-7, atol=2e-7)
    assert np.mean(np.abs(value - direct[0])) < 2e-9
    for read, true in zip(derivatives, direct[1:]):
        np.testing.assert_allclose(read, true, rtol=2e-5, atol=2e-5)
        assert np.mean(np.abs(read - true)) < 2e-7
    beyond = read_tables(tables, np.array([1e3]), np.zeros(1, dtype=np.int32), 1 + len(phi))
    assert all(np.isnan(part).all() for part in beyond)


@pytest.mark.parametrize("dof", [0.3, 4.0, 119.0, 121.0, 1e6])
def test_student_rows_in_closed_form_are_those_of_autodiff(dof):
    rng = np.random.default_rng(2)
    X, weight = rng.normal(size=(700, 3)), rng.integers(0, 3, 700) + 0.0
    y, offset, beta = 1e3 * rng.normal(size=700) ** 5, rng.normal(size=700), rng.normal(size=4)
    y[0], weight[0] = 1e200, 0.0
    law, phi = LocalPrecision(Normal()), (0.4, float(np.log(dof)))
    numbers = (loops.predictors(X, np.ones(3), beta, offset), *phi)
    with double_precision():
        parts = by_number(law, None, numbers, (y, np.ones(700)))
    value, slope, curve = (np.asarray(part) for part in parts[:3])
    known = loops.column_sums(X, np.ones(3), slope, curve, weight)
    given = (offset, weight, y, np.ones(700))
    found = loops.summed_by(law.loop, X, np.ones(3), beta, given, law.loop_numbers(phi), 3)
    assert found.value[0] == pytest.approx(weight[1:] @ value[1:], rel=1e-11)
    for one, other in zip(found[:4], known[:4]):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-6 if dof > 1e4 else 1e-9)


def test_refusals_say_what_to_do():
    with pytest.raises(ModelError, match="cannot be told apart"):
        law_of(Normal(), "predictor", "normal")
    with pytest.raises(ModelError, match="no dispersion of its own"):
        law_of(Poisson(), "dispersion")
    with pytest.raises(ModelError, match='Did you mean "poisson"'):
        as_family("poison")
    with pytest.raises(ModelError, match="0/1 responses"):
        law_of(Poisson(), "label")


@jax.jit
@jax.vmap
def beyond_and_slopes(x):
    function = lambda v: beyond_line(v, jnp.exp(v))
    return function(x), jax.grad(function)(x), jax.grad(jax.grad(function))(x)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.lists(st.floats(-40.0, 40.0).filter(lambda x: abs(x) > 1e-20), min_size=20, max_size=20))
def test_what_an_exponential_has_beyond_its_tangent_keeps_its_digits_and_derivatives(x):
    with double_precision():
        found = beyond_and_slopes(np.array(x))
    with localcontext(prec=100):
        exact = [float(Decimal(v).exp() - 1 - Decimal(v)) for v in x]
    np.testing.assert_allclose(found, [exact, np.expm1(x), np.exp(x)], rtol=1e-13, atol=1e-300)
