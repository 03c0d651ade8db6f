"""The compiled mathematics against sums over all compositions, mpmath-free closed forms and SciPy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln, psi

from robustly.topics import kernels, special

positive = st.floats(1e-3, 1e3)


@given(positive, st.floats(1e-6, 1e4))
@settings(max_examples=200, deadline=None)
def test_psi_gap_is_the_difference_of_digammas(x, n):
    direct = psi(x + n) - psi(x)
    assert special.psi_gap(x, n) == pytest.approx(direct, rel=1e-10, abs=1e-12 * (1 + abs(psi(x))))


@given(positive, st.floats(1e-6, 1e4))
@settings(max_examples=200, deadline=None)
def test_log_rising_is_the_difference_of_log_gammas(x, n):
    direct = gammaln(x + n) - gammaln(x)
    size = abs(gammaln(x + n)) + abs(gammaln(x)) + 1
    assert special.log_rising(x, n) == pytest.approx(direct, rel=1e-9, abs=1e-13 * size)


@pytest.mark.parametrize("x", [1e-8, 0.3, 7.0, 1e4, 1e7])
def test_small_gaps_do_not_cancel(x):
    n = 1e-9 * x
    trigamma = psi(x + 1) - psi(x) if x > 1e3 else None
    if trigamma is None:
        from scipy.special import polygamma

        trigamma = float(polygamma(1, x))
        assert special.psi_gap(x, n) == pytest.approx(n * trigamma, rel=1e-6)
    assert special.log_rising(x, n) == pytest.approx(n * psi(x), rel=1e-6, abs=1e-17)


def by_hand(eta, a, count):
    """Expected counts, Minka's statistic and log g by summing over every assignment of the tokens."""
    size = len(eta)
    total, expected, table_counts = 0.0, np.zeros(size), np.zeros(size)
    for choice in product(range(size), repeat=count):
        n = np.bincount(choice, minlength=size)
        weight = np.prod(a**n) * np.exp((gammaln(eta + n) - gammaln(eta)).sum())
        total += weight
        expected += weight * n
        table_counts += weight * eta * (psi(eta + n) - psi(eta))
    return expected / total, table_counts / total, np.log(total) - gammaln(count + 1)


@given(
    st.lists(st.tuples(st.floats(1e-3, 50.0), st.floats(1e-3, 1.0)), min_size=1, max_size=4),
    st.integers(1, 5),
)
@settings(max_examples=60, deadline=None)
def test_compositions_are_summed_exactly(pairs, count):
    eta, a = (np.array(values) for values in zip(*pairs))
    expected, table_counts, log_g = by_hand(eta, a, count)
    g = np.empty((2, kernels.EXACT_COUNT + 1))
    for wanted, flag in ((expected, False), (table_counts, True)):
        out = np.empty(len(eta))
        found = kernels._compositions(eta, a.copy(), count, g, np.empty(len(eta)), out, flag)
        np.testing.assert_allclose(out, wanted, rtol=1e-9)
        assert found == pytest.approx(log_g, rel=1e-9, abs=1e-9)
    if count == 2:
        out = np.empty(len(eta))
        assert np.log(kernels._pair(eta, a.copy(), out)) == pytest.approx(log_g, rel=1e-9, abs=1e-9)
        np.testing.assert_allclose(out, expected, rtol=1e-9)


@pytest.mark.parametrize("scale", [0.01, 50.0, 1e5])
def test_long_bursts_go_over_smoothly_to_the_approximation(scale):
    random = np.random.default_rng(0)
    eta, a = scale * random.gamma(1.0, size=6), random.uniform(0.99, 1.0, 6) / (1 + scale)
    exact, approximate = np.empty(6), np.empty(6)
    count = kernels.EXACT_COUNT
    g = np.empty((2, count + 1))
    kernels._compositions(eta, a.copy(), count, g, np.empty(6), exact, False)
    kernels._long_burst(eta, a, float(count), approximate, False)
    assert exact.sum() == pytest.approx(count, rel=1e-6)
    assert approximate.sum() == pytest.approx(count, rel=1e-6)
    np.testing.assert_allclose(approximate, exact, atol=0.03 * count)


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1.0), st.floats(0.1, 1e6))
@settings(max_examples=50, deadline=None)
def test_with_one_topic_any_count_is_exact(eta, a, count):
    out = np.empty(1)
    evidence = kernels._long_burst(np.array([eta]), np.array([a]), count, out, True)
    assert out[0] == pytest.approx(eta * (psi(eta + count) - psi(eta)), rel=1e-8)
    direct = count * np.log(a) + gammaln(eta + count) - gammaln(eta) - gammaln(count + 1)
    assert evidence == pytest.approx(direct, rel=1e-8, abs=1e-7)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_million_tokens_of_one_word_stay_finite(scale):
    eta, a = scale * np.array([1e-3, 5.0, 0.2]), np.array([0.9, 1e-4, 0.5])
    out = np.empty(3)
    evidence = kernels._long_burst(eta, a, 1e6, out, False)
    assert np.isfinite(evidence)
    assert out.sum() == pytest.approx(1e6)
    assert (out >= 0).all()


def test_only_the_largest_entries_are_remembered():
    values = np.arange(20, dtype=np.float32)[::-1].copy()
    topics, amounts = np.empty(kernels.REMEMBERED, np.uint16), np.empty(kernels.REMEMBERED, np.float32)
    kernels._remember(values, topics, amounts)
    assert sorted(amounts) == list(range(20 - kernels.REMEMBERED, 20))
    np.testing.assert_array_equal(values[topics], amounts)
