"""What users add: the checks let good extensions pass and name what is wrong with others; a new local is one class."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import sparse, stats

import robustly as rb
from robustly.errors import ModelError, PersistError
from robustly.glm import Bernoulli, Description, Gamma, Law, Normal, Poisson
from robustly.glm.listed import list_responses
from robustly.glm.local import LocalDispersion, LocalLabel, LocalPrecision
from robustly.rows.arrays import ArrayRows, make_rows
from robustly.rows.distinct import make_table
from robustly.rows.store import Mapped
from robustly.testing import check_approximation, check_law, check_rows

RNG = np.random.default_rng(5)
N = 300
X = RNG.normal(size=(N, 2))
COUNT = RNG.poisson(3, N)

# ---------------------------------------------------------------------- row stores


@pytest.mark.parametrize("chunk", [64, 256, 2048])
def test_rows_in_memory_are_a_store(chunk):
    check_rows(make_rows([X, COUNT], ["x", "count"], chunk=chunk), (X, COUNT))


def test_weighted_sparse_and_distinct_rows_are_stores():
    check_rows(make_rows([X], ["x"], weights=RNG.random(N)))
    columns = sparse.csr_array(X * (X > 0))
    check_rows(ArrayRows((columns,), np.ones(N), 64), (columns.toarray(),))
    check_rows(make_table({"count": COUNT}, None).rows)


class Turned(ArrayRows):
    def map(self, chunk_pass, theta, keep=None, into=None):
        found = super().map(chunk_pass, theta, keep, into)
        return Mapped(found.sums, {name: value[::-1] for name, value in found.by_unit.items()})


class Twice(ArrayRows):
    def chunk_at(self, place):
        data, weight = super().chunk_at(place)
        return data, np.where(weight == 0, 1.0, weight)


class Backwards(ArrayRows):
    def map(self, chunk_pass, theta, keep=None, into=None):
        found = super().map(chunk_pass, theta, keep, into)
        if "part" not in found.by_unit:
            return found
        starts = np.flatnonzero(found.by_unit["place"] == 0)[::-1]
        return Mapped({**found.sums, "sine": sum(found.by_unit["part"][i] for i in starts)}, found.by_unit)


class Writing(ArrayRows):
    def map(self, chunk_pass, theta, keep=None, into=None):
        return super().map(chunk_pass, theta, keep, keep if into is None else into)


class Holding(ArrayRows):
    held = []

    def map(self, chunk_pass, theta, keep=None, into=None):
        self.held.append(into)
        return super().map(chunk_pass, theta, keep, into)


class Restless(ArrayRows):
    def sample(self, n, seed=0):
        return super().sample(n, int(np.random.default_rng().integers(1 << 40)))


class Inventing(ArrayRows):
    def sample(self, n, seed=0):
        found = super().sample(n, seed)
        return ArrayRows(tuple(a + 1e-9 for a in found.data), found.weight)


class Deaf(ArrayRows):
    def weighed(self, weight):
        return self


@pytest.mark.parametrize(
    ("store", "named"),
    [
        (Turned, "by unit.*row 0"),
        (Twice, "by unit|sums"),
        (Backwards, "order of sums"),
        (Writing, "states.*without into|states.*empty slot"),
        (Holding, "keeps a slot"),
        (Restless, "the second time"),
        (Inventing, "no row of the store"),
        (Deaf, "total weight"),
    ],
)
def test_a_store_that_breaks_the_contract_is_told_how(store, named):
    with pytest.raises(ModelError, match=named):
        check_rows(store((X,), np.ones(N), 64), (X,))


# ---------------------------------------------------------------------- approximations

COUNTS = rb.RowModel(
    prior=lambda theta, row: dist.Normal(theta["loc"], 0.8),
    log_likelihood=lambda log_rate, theta, row: dist.Poisson(jnp.exp(log_rate)).log_prob(row),
    start={"loc": 0.3},
)


def test_laplace_keeps_a_promise_of_a_tenth_and_not_of_a_millionth():
    assert 1e-4 < check_approximation(rb.Laplace(), COUNTS, [0, 2, 7], tolerance=0.1)["evidence"] < 0.1
    with pytest.raises(ModelError, match=r"Laplace\(\) fails the check “evidence” in row \d"):
        check_approximation(rb.Laplace(), COUNTS, [0, 2, 7])


@dataclass(frozen=True)
class Proud(rb.Laplace):
    is_bound = True


@dataclass(frozen=True)
class Stiff(rb.Laplace):
    def evidence(self, model, vector, row, state):
        return super().evidence(model, jax.lax.stop_gradient(vector), row, state)


@pytest.mark.parametrize(("approx", "named"), [(Proud(), "above the true one"), (Stiff(), "“slope”")])
def test_what_is_no_bound_and_what_has_no_slope_is_named(approx, named):
    with pytest.raises(ModelError, match=named):
        check_approximation(approx, COUNTS, [0, 2, 7], tolerance=0.1)


# ---------------------------------------------------------------------- laws


class Zeros(Law):
    """A count may be zero whatever its rate."""

    local = "zero"
    names = ("share",)
    limits = {"share": 0.0}

    def natural(self, name, value, xp=np):
        return 1.0 / (1.0 + xp.exp(-value))

    def free(self, name, value):
        return float(np.log(value / (1.0 - value)))

    def slope(self, name, value):
        return self.natural(name, value) * self.natural(name, -value)

    def bounds(self, name):
        return 0.0, 1.0

    def evidence(self, row, m, logit):
        counted = jax.nn.log_sigmoid(-logit) + self.family.log_prob(*row, m)
        return jnp.where(row[0] == 0, jnp.logaddexp(jax.nn.log_sigmoid(logit), counted), counted)

    def describe(self):
        return Description("zeros", "a count may be zero", "P(0) = share + (1 − share) p(0 | m_i)")


class TooMuch(Zeros):
    def evidence(self, row, m, logit):
        return super().evidence(row, m, logit) + 0.01


class Askew(Zeros):
    def free(self, name, value):
        return float(np.log(value))


class Elsewhere(Zeros):
    limits = {"share": 0.5}


class Boundless(Zeros):
    limits = {}


class Silent(Zeros):
    def describe(self):
        return Description("zeros", "", "P(0)")


@pytest.mark.parametrize("law", [Zeros(Poisson()), LocalLabel(Bernoulli()), LocalPrecision(Normal())], ids=repr)
def test_good_laws_pass(law):
    assert check_law(law)["adds up to one"] < 1e-6


@pytest.mark.parametrize(
    ("law", "named"),
    [
        (TooMuch, "adds up to one.*by 0.01"),
        (Askew, "shared numbers"),
        (Elsewhere, "limit"),
        (Boundless, "does not say where it is the classical model"),
        (Silent, "leaves local empty"),
    ],
)
def test_what_is_wrong_with_a_law_is_named(law, named):
    with pytest.raises(ModelError, match=named):
        check_law(law(Poisson()))


@pytest.fixture(scope="module")
def zeros():
    y = RNG.poisson(np.exp(1.0 + 0.5 * X[:, 0])) * (RNG.random(N) > 0.3)
    return y, rb.RobustGLM("poisson", local=Zeros).fit(X, y)


def test_a_users_law_is_fitted_and_predicts(zeros):
    y, model = zeros
    fit = model.result_
    share, rate = fit.shared["share"], fit.predictive(X).typical
    exact = stats.poisson(rate)
    density = share * (y == 0) + (1 - share) * exact.pmf(y)
    np.testing.assert_allclose(fit.log_likelihood, np.log(density).sum(), rtol=1e-10)
    low, high = fit.confint()["share"]
    assert low < share < high
    # The score is zero at the top.
    np.testing.assert_allclose(((y == 0) - exact.pmf(y)) @ (1 / density), 0.0, atol=1e-2)
    law = fit.predictive(X)
    np.testing.assert_allclose(law.mean, (1 - share) * rate, rtol=1e-6)
    np.testing.assert_allclose(law.cdf(y), share + (1 - share) * exact.cdf(y), rtol=1e-7)
    drawn = law.sample(2000, key=3)
    # Six standard errors of a share of 600 000 draws: false alarms are rarer than one in a million.
    assert abs((drawn == 0).mean() - np.mean(share + (1 - share) * exact.pmf(0))) < 6 * 0.5 / np.sqrt(drawn.size)


def test_the_classical_model_is_the_answer_at_the_limit_of_a_users_law():
    y = 1 + RNG.poisson(np.exp(1.0 + 0.5 * X[:, 0]))
    fit = rb.RobustGLM("poisson", local=Zeros).fit(X, y).result_
    plain = rb.RobustGLM("poisson", local=None).fit(X, y).result_
    assert fit.outcome.kind == "boundary"
    np.testing.assert_allclose(fit.log_likelihood, plain.log_likelihood, rtol=1e-10)


def test_a_users_law_is_given_again_when_its_fit_is_read(zeros, tmp_path):
    _, model = zeros
    path = tmp_path / "fit.robustly"
    model.result_.save(path)
    again = rb.load(path, local=Zeros)
    np.testing.assert_array_equal(again.predictive(X).mean, model.result_.predictive(X).mean)
    with pytest.raises(PersistError, match=r"no code is stored.*rb\.load\(path, local=Zeros\)"):
        rb.load(path)
    with pytest.raises(PersistError, match="made with the law Zeros; got local="):
        rb.load(path, local=TooMuch)
    with pytest.raises(PersistError, match=r"Keep model\.result_\.save\(path\) instead"):
        model.save(path)


def test_what_is_no_law_is_refused():
    with pytest.raises(ModelError, match=r"a subclass of robustly\.glm\.Law; got"):
        rb.RobustGLM("poisson", local=str).fit(X, COUNT)


def test_new_rows_with_dispersions_of_their_own_have_densities():
    law = LocalDispersion(Gamma())
    found = list_responses(law, (np.log(0.3), np.log(2.0)), np.array([0.2, 1.0]), np.ones(2))
    np.testing.assert_allclose(found.total, 1.0, atol=1e-6)
    np.testing.assert_allclose(found.mean(), np.exp([0.2, 1.0]), rtol=1e-5)
