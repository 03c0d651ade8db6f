"""Tests compile with XLA's expensive passes left out (conftest.py); users do not. Both give the same numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

SCRIPT = """
import json, warnings
import numpy as np, numpyro, numpyro.distributions as dist
import robustly as rb

warnings.simplefilter("ignore")

def assay(dose, n, dead=None):
    slope = numpyro.sample("slope", dist.LogNormal(0.0, 1.0))
    tolerance = numpyro.sample("tolerance", dist.Normal(0.0, 1.0))
    with numpyro.plate("batch", dose.shape[0]):
        numpyro.sample("dead", dist.Binomial(n, logits=slope * (dose - tolerance)), obs=dead)

def answers():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(60, 2))
    counts = rng.poisson(np.exp(X @ [0.4, -0.3] + 0.7 * rng.normal(size=60)))
    fits = [
        rb.RobustPoissonRegression().fit(X, counts).result_,
        rb.RobustGLM("poisson", prior="student_t").fit(X, counts).result_,
        rb.RobustLinearRegression().fit(X, X @ [1.0, 2.0] + rng.standard_t(3, size=60)).result_,
        rb.conjugate.GammaPoisson().fit(counts),
        rb.localize(assay, "tolerance").fit(X[:, 0], np.full(60, 20), rng.binomial(20, 1 / (1 + np.exp(-2 * X[:, 0] + X[:, 1])))),
    ]
    return [[fit.log_likelihood, *map(float, fit.estimates), *map(float, np.asarray(fit.standard_errors))] for fit in fits]
"""


@pytest.fixture(scope="module")
def here():
    names: dict = {}
    exec(compile(SCRIPT, "answers", "exec"), names)
    return names["answers"]()


def test_numbers_do_not_depend_on_how_much_the_compiler_tries(here):
    plain = {name: value for name, value in os.environ.items() if name != "JAX_DISABLE_MOST_OPTIMIZATIONS"}
    script = SCRIPT + "\nprint(json.dumps(answers()))\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=plain, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    for ours, users in zip(here, json.loads(done.stdout), strict=True):
        np.testing.assert_allclose(ours, users, rtol=1e-7, atol=1e-9)
