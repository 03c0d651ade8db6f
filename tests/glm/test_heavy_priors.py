"""Heavy-tailed predictors of rows' own: integrated as exactly for tiny and huge spreads, so that searches come to rest."""

import itertools
import math

import jax
import numpy as np
import pytest
from scipy import integrate, stats
from scipy.special import gammaln, log_expit, logsumexp

import robustly as rb
from robustly._runtime.precision import double_precision
from robustly.fit.view_passes import row_kernel
from robustly.glm.families import Bernoulli, Binomial, NegativeBinomial, Poisson
from robustly.glm.local import LocalPredictor
from robustly.glm.row_model import approximation, evidence_of, row_model

COUNT, YES = (Poisson(), 50.0), (Bernoulli(), 1.0)


def curves(family, y, m, spread, dof, nodes=21):
    law = LocalPredictor(family, "student_t")
    phi, row = (np.log(spread), np.log(dof)), (np.array([y]), np.ones(1))
    with double_precision():
        kernel, numbers = row_kernel(row_model(law), approximation(law, nodes)), (np.array([m]), *phi)
        state = kernel.approx.start_at(kernel.model, row, numbers, 1)
        value, slope, _, _ = (np.asarray(part) for part in kernel.curves(numbers, row, state, False))
    return float(value[0] + family.log_base(*row)[0]), slope[0]


def by_scipy(family, y, m, spread, dof):
    constant = gammaln((dof + 1) / 2) - gammaln(dof / 2) - 0.5 * math.log(dof * math.pi) - math.log(spread)

    def density(eta):
        row = y * eta - math.exp(min(eta, 700.0)) - gammaln(y + 1) if isinstance(family, Poisson) else log_expit(eta)
        return math.exp(row + constant - (dof + 1) / 2 * math.log1p(((eta - m) / spread) ** 2 / dof))

    near = np.concatenate([m + spread * np.array([-1e3, -30, -5, -1, 0, 1, 5, 30, 1e3]), np.arange(-8.0, 9.0)])
    ends = [-700.0, *np.unique(near[np.abs(near) < 700.0]), 700.0]
    pieces = [integrate.quad(density, a, b, epsabs=0, epsrel=1e-11, limit=200)[0] for a, b in itertools.pairwise(ends)]
    # Beyond, a 1 is certain and a count of 50 impossible.
    return np.log(sum(pieces) + (stats.t.sf((700.0 - m) / spread, dof) if isinstance(family, Bernoulli) else 0.0))


@pytest.mark.parametrize("dof", [1.0, 4.0])
@pytest.mark.parametrize("m", [-3.0, 1.0])
@pytest.mark.parametrize(("family", "y", "spread"), [(*COUNT, 0.005), (*COUNT, 1.0), (*YES, 0.005), (*YES, 30.0)])
def test_a_row_far_from_its_centre_is_integrated_whatever_the_spread(family, y, spread, m, dof):
    value, _ = curves(family, y, m, spread, dof)
    assert value == pytest.approx(by_scipy(family, y, m, spread, dof), abs=3e-6)


def test_held_degrees_of_freedom_change_nothing_but_their_own_slopes():
    law = LocalPredictor(Poisson(), "student_t")
    numbers, row = (np.array([0.3]), np.log(0.7), np.log(4.0)), (np.array([50.0]), np.ones(1))
    with double_precision():
        kernel = row_kernel(row_model(law), approximation(law, 21))
        state = kernel.approx.start_at(kernel.model, row, numbers, 1)
        (value, slope, curve), (same, held_slope, held_curve) = (
            [np.asarray(part) for part in kernel.curves(numbers, row, state, False, held)[:3]] for held in ((), (2,))
        )
    assert (slope != 0.0).all()
    assert (curve != 0.0).all()
    np.testing.assert_allclose(same, value, rtol=1e-14)
    np.testing.assert_allclose(held_slope, slope * [1.0, 1.0, 0.0], rtol=1e-12)
    np.testing.assert_allclose(held_curve, curve * [1.0, 1.0, 1.0, 0.0, 0.0, 0.0], rtol=1e-11)


@pytest.mark.parametrize("dof", [2.0, 4.0])
@pytest.mark.parametrize(("family", "y"), [COUNT, YES])
def test_slope_and_value_agree_where_the_spread_says_next_to_nothing(family, y, dof):
    spread, m, step = 0.002, 0.3, 1e-4
    _, slope = curves(family, y, m, spread, dof)
    up, down = (curves(family, y, m, spread * np.exp(way * step), dof)[0] for way in (1, -1))
    assert slope[1] == pytest.approx((up - down) / (2 * step), abs=2e-9 + 1e-6 * abs(slope[1]))


# Each with where its likelihood peaks, the likelihood itself, and rows (response, trials), certain ones among them.
SIZE = 0.5
SWEPT = {
    Binomial: (
        lambda y, n: np.log((y + 0.5) / (n - y + 0.5)),
        lambda y, n, eta: (
            y * log_expit(eta) + (n - y) * log_expit(-eta) + gammaln(n + 1) - gammaln(y + 1) - gammaln(n - y + 1)
        ),
        [(0.0, 1.0), (1.0, 1.0), (1.0, 3.0), (3.0, 3.0), (0.0, 400.0), (399.0, 400.0)],
    ),
    Poisson: (
        lambda y, n: np.log(y + 0.5),
        lambda y, n, eta: y * eta - np.exp(np.minimum(eta, 700.0)) - gammaln(y + 1),
        [(0.0, 1.0), (1.0, 1.0), (7.0, 1.0), (4000.0, 1.0)],
    ),
    NegativeBinomial: (
        lambda y, n: np.log(y + 0.5),
        lambda y, n, eta: (
            gammaln(y + SIZE)
            - gammaln(SIZE)
            - gammaln(y + 1)
            + SIZE * log_expit(math.log(SIZE) - eta)
            + y * log_expit(eta - math.log(SIZE))
        ),
        [(0.0, 1.0), (3.0, 1.0), (4000.0, 1.0)],
    ),
}
PLACES, SPREADS, DOFS = (-6.0, -0.5, 1.2, 6.0), np.exp([-5.0, -0.7, 1.0]), np.exp([-1.2, -0.6, 0.0, 1.4, 5.0])
NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)


def by_panels(family, prior, row, m, spread, dof):
    """The evidence of one row by sixteen points on each of many panels, which grow geometrically away from both centres."""
    peak, likelihood, _ = SWEPT[family]
    x = np.arange(0.0, 40.0 / min(dof, 1.0) if prior == "student_t" else 12.0, 0.2)
    pieces = [c + side * w * np.sinh(x) for c, w in ((m, spread), (peak(*row), 0.05)) for side in (-1.0, 1.0)]
    ends = np.unique(np.concatenate(pieces))
    half = 0.5 * np.diff(ends)[:, None]
    eta = ends[:-1, None] + half * (1.0 + NODES)
    away = (eta - m) / spread
    if prior == "student_t":
        constant = gammaln((dof + 1) / 2) - gammaln(dof / 2) - 0.5 * math.log(dof * math.pi)
        law = constant - (dof + 1) / 2 * np.log1p(away**2 / dof)
    else:
        law = -np.abs(away) - math.log(2.0)
    return logsumexp(likelihood(*row, eta) + law - math.log(spread) + np.log(half * WEIGHTS))


@pytest.mark.parametrize("prior", ["student_t", "laplace"])
@pytest.mark.parametrize("family", SWEPT)
def test_rows_are_integrated_whatever_they_say_and_wherever_their_centre_is(family, prior):
    """Responses without failures far out in a heavy tail; narrow priors that draw a row far from both centres."""
    dofs = DOFS if prior == "student_t" else DOFS[:1]
    cases = list(itertools.product(SWEPT[family][2], PLACES, SPREADS, dofs))
    y, trials = np.array([case[0] for case in cases]).T
    m, spread, dof = np.array([case[1:] for case in cases]).T
    law = LocalPredictor(family(), prior)
    given = {"spread": np.log(spread), "dof": np.log(dof), "size": math.log(SIZE)}
    found = evidence_of(law, approximation(law, None), (m, *(given[name] for name in law.names)), y, trials)
    expected = np.array([by_panels(family, prior, *case) for case in cases])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "y", "trials", "side"),
    [
        (Binomial(), 3.0, 3.0, 1),
        (Binomial(), 0.0, 3.0, -1),
        (Poisson(), 0.0, 1.0, -1),
        (NegativeBinomial(), 0.0, 1.0, -1),
    ],
)
def test_a_certain_response_is_certain_however_far_out_and_however_it_is_compiled(family, y, trials, side):
    """A heavy tail is followed to predictors of 1e19. Users' compilers fuse a product and a sum, tests' do not."""
    as_users = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
    nuisance = (SIZE,) * len(family.nuisance)
    with double_precision():
        density = jax.jit(jax.vmap(lambda eta: family.log_prob(y, trials, eta, *nuisance)), compiler_options=as_users)
        found = np.asarray(density(side * np.exp(np.linspace(30.0, 44.0, 64))))
    np.testing.assert_allclose(found + family.log_base(np.array([y]), np.array([trials])), 0.0, atol=1e-9)


def test_no_spread_of_counts_is_not_taken_for_the_widest():
    rng = np.random.default_rng(22)
    n = int(rng.choice([30, 100, 300]))
    X = rng.normal(size=(n, 2))
    eta = 0.5 + X @ [0.5, -0.5] + rng.choice([0, 0.3]) * rng.standard_t(3, size=n)
    y = rng.binomial(20, 1 / (1 + np.exp(-eta)))
    model = rb.RobustGLM("binomial", local="predictor", prior="student_t", dof=1.0)
    fit = model.fit(X, y, trials=np.full(n, 20)).result_
    assert fit.outcome.kind == "boundary"
    assert fit.spread == 0.0


@pytest.mark.filterwarnings("ignore::robustly.errors.IdentifiabilityWarning")
@pytest.mark.parametrize("seed", [0, 2])
def test_heavy_log_odds_of_yes_or_no_rows_come_to_rest(seed):
    rng = np.random.default_rng(seed)
    n = 100 if seed == 0 else 300
    X = rng.normal(size=(n, 2))
    y = (rng.random(n) < 1 / (1 + np.exp(-X @ [1, -1]))).astype(int)
    fit = rb.RobustLogisticRegression(prior="student_t", hyperprior=None).fit(X, y).result_
    assert fit.outcome.converged
