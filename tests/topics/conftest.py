from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from simulate import concentrations, simulate

from robustly.topics import RobustLDA

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "corpora"


@pytest.fixture(scope="session")
def bursty():
    """True concentrations, training and test counts drawn from robust LDA."""
    eta = concentrations(4, 200, [15.0, 30.0, 60.0, 30.0], seed=1)
    return eta, simulate(eta, 0.3, 800, 70, seed=2), simulate(eta, 0.3, 200, 70, seed=3)


@pytest.fixture(scope="session")
def fitted(bursty):
    _, train, _ = bursty
    return RobustLDA(4, random_state=0).fit(train)


@pytest.fixture(scope="session")
def corpora():
    folder = Path(os.environ.get("ROBUSTLY_CORPORA", BESIDE))
    if not folder.is_dir():
        pytest.skip(f"the research corpora are not here ({folder}); set ROBUSTLY_CORPORA to their folder")
    return folder


@pytest.fixture
def few():
    """A few small documents."""
    return np.random.default_rng(0).poisson(0.8, (12, 9))
