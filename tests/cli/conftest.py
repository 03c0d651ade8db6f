"""Tables that the commands are tried on."""

import numpy as np
import pandas as pd
import pytest


@pytest.fixture(scope="session")
def clinic():
    """300 rows of counts whose rates differ, one of them wild; a group in words, and an answer in words."""
    rng = np.random.default_rng(0)
    n = 300
    frame = pd.DataFrame(
        {"age": rng.uniform(20, 80, n), "years": rng.uniform(1, 5, n), "group": rng.choice(["a", "b", "c"], n)}
    )
    frame["visits"] = rng.poisson(frame.years * np.exp(0.02 * frame.age - 1 + 0.7 * rng.normal(size=n)))
    frame.loc[7, "visits"] = 400
    frame["ill"] = np.where(rng.random(n) < 1 / (1 + np.exp(-0.1 * (frame.age - 50))), "yes", "no")
    return frame


@pytest.fixture
def table(clinic, tmp_path):
    path = tmp_path / "clinic.csv"
    clinic.to_csv(path, index=False)
    return path
