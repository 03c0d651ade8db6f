"""Importing the package does nothing but make names available; examples in docstrings run."""

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

import robustly as rb

QUIET = """
import jax
before = {name: getattr(jax.config, name) for name in dir(jax.config) if name.startswith("jax_")}
compiled = []
jax.monitoring.register_event_duration_secs_listener(lambda event, duration, **kw: compiled.append(event))
import robustly
for name in robustly.__all__:
    getattr(robustly, name)
after = {name: getattr(jax.config, name) for name in before}
assert before == after, {name: (before[name], after[name]) for name in before if before[name] != after[name]}
assert not [event for event in compiled if "compile" in event], compiled
"""

AFTER_A_FIT = """
import jax, numpy as np, numpyro, numpyro.distributions as dist, robustly as rb
before = {name: getattr(jax.config, name) for name in dir(jax.config) if name.startswith("jax_")}
def counts(y):
    rate = numpyro.sample("rate", dist.Gamma(1.0, 1.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Poisson(rate), obs=y)
rb.localize(counts, "rate").fit(np.array([0, 3, 1, 9, 2, 0, 4]))
assert before == {name: getattr(jax.config, name) for name in before}
assert jax.numpy.ones(1).dtype == "float32"
"""

# Rows in arrays need no language for formulas or models, no frames beside scikit-learn's own, no pictures and no cluster.
PLAIN = """
import sys, numpy as np, robustly as rb
y = np.random.default_rng(0).poisson(2.0, 40)
rb.RobustPoissonRegression().fit(np.linspace(-1.0, 1.0, 40)[:, None], y).result_.summary()
loaded = {name for name in ("numpyro", "formulaic", "matplotlib", "numba", "dask", "rich", "robustly.glm.stored") if name in sys.modules}
assert not loaded, loaded
"""

LOCALIZE = """
import sys, robustly as rb
rb.localize
loaded = {name for name in ("pandas", "scipy.stats", "sklearn", "matplotlib", "numba", "dask", "formulaic") if name in sys.modules}
assert not loaded, loaded
"""


@pytest.mark.parametrize(
    "script", [QUIET, AFTER_A_FIT, PLAIN, LOCALIZE], ids=["import", "fit", "regression", "localize"]
)
def test_jax_is_left_as_it_was_and_nothing_is_loaded_before_it_is_needed(script):
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Robust'"):
        _ = rb.Robust
    assert "localize" in dir(rb)


MODULES = sorted(m.name for m in pkgutil.walk_packages(rb.__path__, "robustly."))


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert failed == 0
