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


# A system maps 65 530 pieces of memory for a process at most, and compiled programs are thousands of them.
MOST_MAPPED = 20_000


def mapped() -> float:
    """How many pieces of memory this process maps; beyond any number where the system does not say."""
    try:
        with open("/proc/self/maps", "rb") as lines:
            return sum(1 for _ in lines)
    except OSError:
        return float("inf")


@pytest.fixture(autouse=True, scope="module")
def _forget_programs():
    """Compiled programs of a file serve the next, until they are more than the system should map."""
    yield
    if "jax" in sys.modules and mapped() > MOST_MAPPED:
        sys.modules["jax"].clear_caches()


@pytest.fixture
def rng(request):
    """Random numbers that differ from test to test but not from run to run."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))
