"""The paper's mean field of a row's local value and its discrete latent: a bound, at rest, and biased."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import robustly as rb
from robustly._runtime.precision import double_precision, in_double_precision
from robustly.approx.meanfield import Choice, Factors
from robustly.fit.passes import passes
from robustly.fit.problem import RowProblem
from robustly.model.exponential import DirichletFamily, GammaFamily, NormalFamily
from robustly.rows.arrays import make_rows


def t_mixture(y):
    """Two t components with one precision a row; the centres stay apart."""
    half = numpyro.sample("half", dist.LogNormal(1.0, 1.0))
    share = numpyro.sample("share", dist.Beta(2.0, 2.0))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 2.0))
    with numpyro.plate("rows", y.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(share), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal((2 * z - 1) * half, precision**-0.5), obs=y)


def one_value(y):
    """The same with a latent that has one value only."""
    precision = numpyro.sample("precision", dist.Gamma(2.0, 2.0))
    with numpyro.plate("rows", y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(jnp.ones(1)), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(1.0 + z, precision**-0.5), obs=y)


def rows_of(dof, gap, n=300, seed=0):
    rng = np.random.default_rng(seed)
    side = np.where(rng.random(n) < 0.4, 0.5, -0.5) * gap
    return side + rng.normal(size=n) / np.sqrt(rng.chisquare(dof, n) / dof)


@pytest.fixture(scope="module")
def fits():
    y = rows_of(3.0, 4.0)
    robust = rb.localize(t_mixture, "precision")
    return {
        "exact": robust.fit(y),
        "direct": robust.fit(y, approx=rb.approx.MeanField()),
        "em": robust.fit(y, approx=rb.approx.MeanField(), method="em"),
        "y": y,
        "robust": robust,
    }


@in_double_precision
def evidences(fits, approx, vector):
    problem = RowProblem(fits["robust"].row_model(fits["y"]), make_rows([fits["y"]], ["y"]), approx)
    return problem.look(vector), problem.by_unit


@pytest.mark.parametrize("seed", range(3))
def test_the_bound_is_below_the_exact_evidence_of_every_row(fits, seed):
    vector = fits["exact"].vector + 0.5 * np.random.default_rng(seed).normal(size=len(fits["exact"].vector))
    bound = evidences(fits, rb.MeanField(), vector)[1]["evidence"]
    exact = evidences(fits, rb.Exact(), vector)[1]["evidence"]
    assert (bound <= exact + 1e-10).all()
    assert bound.sum() < exact.sum() - 1.0


def test_with_one_value_of_z_the_bound_is_the_evidence():
    y = 1.0 + rows_of(3.0, 0.0, n=60)
    robust = rb.localize(one_value, "precision")
    exact, bound = robust.fit(y), robust.fit(y, approx=rb.MeanField())
    np.testing.assert_allclose(bound.evidence, exact.evidence, rtol=1e-9)
    np.testing.assert_allclose(bound.vector, exact.vector, rtol=1e-5)


FAMILIES = {
    "gamma": (GammaFamily(()), lambda rng, z: np.stack([rng.uniform(0, 2, z), -rng.uniform(0, 3, z)], axis=1), [1.0, -1.0]),
    "normal": (NormalFamily(()), lambda rng, z: np.stack([rng.normal(size=z), -rng.uniform(0, 2, z)], axis=1), [0.3, -0.5]),
    "dirichlet": (DirichletFamily((3,)), lambda rng, z: rng.integers(0, 4, (z, 3)).astype(float), [0.2, 0.5, 1.0]),
}  # fmt: skip


def row_factors(family, constants, slopes, eta):
    """A row with log p(x, z | β) = constants_z + slopes_z · T(β)."""
    eta = jnp.asarray(eta)
    table = jnp.concatenate([(constants - family.log_normalizer(eta))[None], eta[:, None] + slopes.T])
    return Factors((family, Choice()), jnp.pad(table, [(0, 0), (1, 0)]), (eta,))


def climb_by_sweeps(name, constants, slopes, log_share):
    """Bounds over twelve sweeps, and the exact evidence."""
    family, _, eta = FAMILIES[name]
    factors, eta = row_factors(family, constants, slopes, eta), jnp.asarray(eta)
    _, bounds = jax.lax.scan(lambda q, _: (factors.sweep(q), factors.bound(q)), log_share, length=12)
    exact = jax.vmap(lambda slope: family.log_normalizer(eta + slope) - family.log_normalizer(eta))(slopes)
    return bounds, jax.scipy.special.logsumexp(constants + exact)


COMPILED = jax.jit(climb_by_sweeps, static_argnums=0)


@settings(max_examples=100, deadline=None)
@given(name=st.sampled_from(sorted(FAMILIES)), seed=st.integers(0, 10_000))
def test_no_sweep_lowers_the_bound_from_any_start(name, seed):
    rng = np.random.default_rng(seed)
    slopes = FAMILIES[name][1](rng, 4)
    with double_precision():
        bounds, evidence = COMPILED(name, rng.normal(size=4), slopes, np.log(rng.dirichlet(np.ones(4))))
    bounds = np.asarray(bounds)
    assert np.diff(bounds).min() > -1e-12
    assert bounds[-1] <= float(evidence) + 1e-12


@in_double_precision
def test_a_value_of_z_that_a_row_rules_out_gets_no_share():
    def one_sided(y):
        precision = numpyro.sample("precision", dist.Gamma(2.0, 2.0))
        with numpyro.plate("rows", y.shape[0]):
            z = numpyro.sample("z", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
            numpyro.sample("y", dist.Normal(jnp.where(z == 1, jnp.inf, 0.0), precision**-0.5), obs=y)

    y = rows_of(3.0, 0.0, n=20)
    model = rb.localize(one_sided, "precision").row_model(y)
    rows, vector = make_rows([y], ["y"]), model.parameters.start
    bound, exact = (
        rows.map(compiled.values, jnp.asarray(vector)).by_unit["evidence"]
        for compiled in (passes(model, rb.MeanField()), passes(model, rb.Exact()))
    )
    np.testing.assert_allclose(bound, np.log(0.5) + stats.t(4.0).logpdf(y), rtol=1e-10)
    np.testing.assert_allclose(exact, bound, rtol=1e-10)


def test_slope_and_curvature_are_those_of_the_bound(fits):
    vector = fits["direct"].vector + 0.1
    (_, slope, curve), _ = evidences(fits, rb.MeanField(), vector)
    h = 1e-4
    for k, e in enumerate(np.eye(len(vector))):
        up, down = (evidences(fits, rb.MeanField(), vector + s * h * e)[0] for s in (1, -1))
        assert slope[k] == pytest.approx((up[0] - down[0]) / (2 * h), rel=1e-5, abs=1e-4)
        np.testing.assert_allclose(curve[k], (up[1] - down[1]) / (2 * h), rtol=1e-4, atol=1e-3)


def test_em_and_newton_end_at_the_same_bound_and_em_never_falls(fits):
    assert fits["em"].log_likelihood == pytest.approx(fits["direct"].log_likelihood, abs=1e-6)
    values = [entry["value"] for entry in fits["em"].history]
    assert np.diff(values).min() > -1e-8
    assert fits["direct"].is_bound
    assert fits["em"].is_bound


def test_mean_field_thinks_the_tails_lighter_than_they_are(fits):
    dof = {name: 2 * fits[name].hyperparameters["precision"]["concentration"] for name in ("exact", "direct")}
    assert dof["direct"] > 1.15 * dof["exact"]
    assert fits["direct"].log_likelihood < fits["exact"].log_likelihood


def test_rows_own_precisions_are_those_of_the_closed_form(fits):
    fit = fits["direct"]
    prior = {name: float(value) for name, value in fit.hyperparameters["precision"].items()}
    half, share = float(fit.shared["half"]), float(fit.shared["share"])
    y = fits["y"][:5]
    mean = fit.posterior("precision").mean[:5]
    for value, found in zip(y, mean):
        chance, precision = share, 1.0
        for _ in range(500):
            off = (1 - chance) * (value + half) ** 2 + chance * (value - half) ** 2
            precision = (prior["concentration"] + 0.5) / (prior["rate"] + 0.5 * off)
            odds = np.log(share / (1 - share)) + 0.5 * precision * ((value + half) ** 2 - (value - half) ** 2)
            chance = 1 / (1 + np.exp(-odds))
        assert found == pytest.approx(precision, rel=1e-4)


def test_rows_without_a_latent_or_without_conjugacy_are_refused():
    def plain(y):
        precision = numpyro.sample("precision", dist.Gamma(2.0, 2.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(0.0, precision**-0.5), obs=y)

    def bent(y):
        precision = numpyro.sample("precision", dist.LogNormal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            z = numpyro.sample("z", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
            numpyro.sample("y", dist.Normal(3.0 * z, precision**-0.5), obs=y)

    y = rows_of(3.0, 1.0, n=20)
    with pytest.raises(rb.ModelError, match=r"closed form\. Use Exact"):
        rb.localize(plain, "precision").fit(y, approx=rb.MeanField())
    with pytest.raises(
        rb.ModelError, match="local value is not conjugate: no conjugate family is known for a LogNormal"
    ):
        rb.localize(bent, "precision").fit(y, approx=rb.MeanField())
