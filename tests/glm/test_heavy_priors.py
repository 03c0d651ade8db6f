"""Heavy-tailed predictors of rows' own: integrated as exactly for tiny and huge spreads, so that searches come to rest."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, stats
from scipy.special import gammaln, log_expit

import robustly as rb
from robustly._runtime.precision import double_precision
from robustly.glm.evidence import kernel, start_state
from robustly.glm.families import Bernoulli, Poisson
from robustly.glm.local import LocalPredictor

COUNT, YES = (Poisson(), 50.0), (Bernoulli(), 1.0)


def curves(family, y, m, spread, dof, nodes=21):
    law = LocalPredictor(family, "student_t")
    phi, row = (np.log(spread), np.log(dof)), (np.array([y]), np.ones(1))
    with double_precision():
        state = start_state(law, *row, np.array(phi))
        value, slope, _, _ = (np.asarray(part) for part in kernel(law, nodes).curves(np.array([m]), phi, row, state))
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


@pytest.mark.parametrize("dof", [2.0, 4.0])
@pytest.mark.parametrize(("family", "y"), [COUNT, YES])
def test_slope_and_value_agree_where_the_spread_says_next_to_nothing(family, y, dof):
    spread, m, step = 0.002, 0.3, 1e-4
    _, slope = curves(family, y, m, spread, dof)
    up, down = (curves(family, y, m, spread * np.exp(way * step), dof)[0] for way in (1, -1))
    assert slope[1] == pytest.approx((up - down) / (2 * step), abs=2e-9 + 1e-6 * abs(slope[1]))


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
