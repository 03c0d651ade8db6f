"""The tests of mixtures share the simulations in `mixture_rows.py`, which stands beside them."""

import sys
from pathlib import Path

import pytest
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def one_thread():
    """scikit-learn's small solves are many times slower on threads, above all when tests run side by side."""
    with threadpool_limits(1):
        yield
