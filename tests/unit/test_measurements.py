"""Laws of errors carry their derivatives along by arithmetic: compared with differences of their values."""

import numpy as np
import pytest

from robustly.result import jets
from robustly.result.measurements import Measurements, Seen
from robustly.rows.arrays import ArrayRows

RNG = np.random.default_rng(4)
X = np.column_stack([np.ones(12), RNG.normal(size=12)])
Y = X @ np.array([1.0, -0.5]) + RNG.standard_t(3, size=12)


def prior(vector):
    return -0.5 * float(vector @ vector), -vector, -np.eye(2)


def squares(vector, data, weight, pull):
    # The second coefficient enters by its exponential, so that squared errors are no quadratic.
    columns, response = data
    away = response - columns @ np.array([vector[0], np.exp(vector[1])])
    inner = -columns * np.array([1.0, np.exp(vector[1])])
    bend = np.zeros((2, 2))
    bend[1, 1] = -np.sum(2.0 * pull * away * columns[:, 1]) * np.exp(vector[1])
    return Seen(away**2, 2.0 * away[:, None] * inner, 2.0 * (inner * pull[:, None]).T @ inner + bend)


@pytest.mark.parametrize("scale", [None, 0.7])
def test_derivatives_of_every_law_are_those_of_its_value(scale):
    kept = ArrayRows((X, Y), np.linspace(0.5, 2.0, 12))
    rows = Measurements(squares, kept, np.zeros(2, dtype=bool), [(np.zeros(2), 1.0)], scale, prior)
    for law in rows.laws():
        at = law.start(np.array([0.8, -0.3]), 0.9) + 0.05
        _, slope, curve = law.look(at)
        steps = 1e-5 * np.eye(len(at))
        up, down = ([law.look(at + sign * step) for step in steps] for sign in (1.0, -1.0))
        np.testing.assert_allclose(slope, [(a[0] - b[0]) / 2e-5 for a, b in zip(up, down)], rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(curve, [(a[1] - b[1]) / 2e-5 for a, b in zip(up, down)], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("value", [1e200, 1e-200])
def test_logarithms_of_numbers_at_the_ends_of_floating_point_do_not_warn(value):
    # Rows of 1e200 beside others gave a RuntimeWarning of NumPy's (inputs of the fuzzer, number 612).
    found = jets.log(jets.numbers(1, value)[0])
    np.testing.assert_allclose([found.value[0], found.slope[0, 0]], [np.log(value), 1.0 / value])
    assert found.curve[0, 0, 0] == -((1.0 / value) ** 2 if value > 1 else np.inf)
