"""What laws say of themselves is true: their scales, their boundaries, their tails, their pictures."""

import numpy as np
import pytest
from scipy import integrate

from robustly._runtime.precision import double_precision
from robustly.glm.asked import law_asked
from robustly.glm.families import Bernoulli, Gamma, Normal, Poisson
from robustly.glm.local import (
    Classical,
    LocalDispersion,
    LocalLabel,
    LocalPrecision,
    LocalPredictor,
    Noiseless,
    Shifted,
)
from robustly.result.outliers import stand_out

LAWS = [
    Classical(Gamma()),
    LocalPredictor(Poisson()),
    LocalPredictor(Poisson(), "laplace"),
    LocalPredictor(Poisson(), "student_t"),
    Noiseless(Normal()),
    Noiseless(Normal(), "student_t"),
    LocalDispersion(Gamma()),
    LocalPrecision(Normal()),
    LocalLabel(Bernoulli()),
    Shifted(Poisson()),
]
OWN = [law for law in LAWS if law.picture == "density"]


def told(law):
    return f"{type(law).__name__}-{getattr(law, 'prior', '')}"


@pytest.mark.parametrize("law", LAWS, ids=told)
def test_scales_go_there_and_back_within_their_bounds(law):
    for name in law.names:
        low, high = law.bounds(name)
        for free in (-6.0, -0.3, 0.0, 2.5):
            value = float(law.natural(name, free))
            assert low < value < high
            assert law.free(name, value) == pytest.approx(free, abs=1e-12)
            step = 1e-6
            slope = (law.natural(name, free + step) - law.natural(name, free - step)) / (2 * step)
            assert law.slope(name, free) == pytest.approx(slope, rel=1e-7)
        assert law.meaning(name)


@pytest.mark.parametrize("law", LAWS, ids=told)
def test_a_law_describes_what_is_local_and_every_number_it_has(law):
    words = law.describe()
    assert words.name
    assert words.local
    shared = dict.fromkeys(law.names, 0.25)
    assert bool(law.difference(shared, law.names)) == (law.local is not None)
    assert set(law.at_boundary) <= set(law.names)
    assert bool(law.at_boundary) == (law.local is not None)
    for name, value in law.at_boundary.items():
        # The classical model lies at an end of the number's range.
        assert value in law.bounds(name)


def test_the_law_asked_for_is_found_again_from_what_was_asked():
    for law in (LocalPredictor(Poisson(), "laplace"), LocalDispersion(Gamma()), LocalLabel(Bernoulli())):
        asked = {"local": law.local, "prior": getattr(law, "prior", "normal")}
        assert law_asked(law.family, asked) == law
    assert law_asked(Gamma(), {"local": None, "prior": "normal"}) == Classical(Gamma())


@pytest.mark.parametrize(
    ("law", "y"), [(LocalPrecision(Normal()), 1.7), (LocalLabel(Bernoulli()), 1.0)], ids=["t", "label"]
)
def test_at_its_boundary_a_closed_law_is_the_classical_one(law, y):
    values = {"scale": 0.8, "dof": 1e9, "flip": 1e-12}
    phi = [law.free(name, values[name]) for name in law.names]
    plain = Classical(law.family)
    with double_precision():
        row = (np.array(y), np.array(1.0))
        robust = float(law.evidence(row, np.array(0.4), *phi))
        classical = float(plain.evidence(row, np.array(0.4), *(np.log(values[name]) for name in plain.names)))
    assert robust == pytest.approx(classical, abs=1e-8)


@pytest.mark.parametrize("law", OWN, ids=told)
def test_the_density_drawn_is_that_of_the_law(law):
    rng = np.random.default_rng(3)
    y, m = rng.normal(size=50), rng.normal(size=50)
    phi = np.log([{"spread": 0.7, "dof": 5.0, "scale": 0.9, "shape": 2.0}[name] for name in law.names])
    own = law.own_values(y, m, phi, lambda: rng.normal(size=50))
    assert own.by_row.shape == (50,)
    assert own.low < own.by_row.min()
    assert own.by_row.max() < own.high
    whole = integrate.quad(own.density, 0.0, np.inf)[0] + (
        integrate.quad(own.density, -np.inf, 0.0)[0] if own.low < 0 else 0
    )
    assert whole == pytest.approx(1.0, abs=1e-7)


def test_precisions_are_drawn_where_em_puts_them():
    # Lange, Little & Taylor (1989): E[τ s² | y] = (ν + 1) / (ν + z²).
    law, y, m = LocalPrecision(Normal()), np.array([0.0, 3.0]), np.zeros(2)
    own = law.own_values(y, m, np.log([1.5, 4.0]), lambda: y)
    np.testing.assert_allclose(own.by_row, [5 / 4, 5 / 8])


def test_tails_are_those_of_the_rule_each_law_states():
    y, m = np.array([0.0, 2.5]), np.zeros(2)
    never = lambda: pytest.fail("this law has a rule of its own")
    labels = np.array([0.0, 1.0])
    right = LocalLabel(Bernoulli()).tail_probabilities(labels, np.array([3.0, 3.0]), {"flip": 0.1}, never)
    p = 1 / (1 + np.exp(-3.0))
    np.testing.assert_allclose(right, [0.9 * (1 - p) / (0.9 * (1 - p) + 0.1 * p), 0.9 * p / (0.9 * p + 0.1 * (1 - p))])
    counts = LocalPredictor(Poisson()).tail_probabilities(
        y, m, {"spread": 1.0}, lambda: (np.array([0.0, 0.98]), np.array([0.4, 0.99]))
    )
    np.testing.assert_allclose(counts, [0.8, 0.04])


def test_labels_are_listed_by_probability_and_other_rows_by_false_discovery_rate():
    tail = np.array([0.04, 0.5, 0.001, 0.9])
    listed = lambda law: sorted(stand_out(tail, np.zeros(4), 0.05, None, law.judged_by))
    assert listed(LocalLabel(Bernoulli())) == [0, 2]
    assert listed(LocalPredictor(Poisson())) == [2]
