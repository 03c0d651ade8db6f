"""What all tests share: a seed-by-name generator, programs compiled in a hurry, and the order of files."""

from __future__ import annotations

import os
import sys
import zlib

import numpy as np
import pytest

# Most of the tests' time goes into compiling programs that then run on a few rows. XLA takes two thirds of the time with
# its expensive passes left out, and computes the same numbers to rounding. Commands that tests start do so too.
# JAX_DISABLE_MOST_OPTIMIZATIONS=0 in the environment compiles as users do.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")


# Files of many tests that take little each. They come last, so that two workers end together (`make test` keeps this order).
QUICK = (
    "test_contract",
    "test_formula_kept",
    "test_hostile_files",
    "test_import",
    "test_outcome",
    "test_refusals",
    "test_verdicts",
)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.stem in QUICK)


@pytest.fixture(autouse=True, scope="module")
def _forget_programs():
    """Compiled programs of a file are not kept for the next: thousands of them are more than the system maps at a time."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


@pytest.fixture
def rng(request):
    """Random numbers that differ from test to test but not from run to run."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))
