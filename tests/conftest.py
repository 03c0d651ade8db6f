"""What all tests share: nothing but a seed-by-name generator and quiet ArviZ."""

from __future__ import annotations

import zlib

import numpy as np
import pytest


@pytest.fixture
def rng(request):
    """Random numbers that differ from test to test but not from run to run."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))
