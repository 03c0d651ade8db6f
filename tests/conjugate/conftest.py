"""Fits that several claims are made about, made once for each process."""

import functools

import pytest
from conjugate_rows import PAIRS, draw


@functools.cache
def _fit(name, method):
    data = draw(name)
    return PAIRS[name].fit(*data, method=method), data


@pytest.fixture(scope="session")
def fitted():
    """fitted(name, method="direct") -> (fit, data) on 1000 rows."""
    return lambda name, method="direct": _fit(name, method)
