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

# Rows in arrays need no language for formulas or models, no frames, no scikit-learn, no pictures and no cluster.
PLAIN = """
import sys, numpy as np, robustly as rb
y = np.random.default_rng(0).poisson(2.0, 40)
model = rb.RobustPoissonRegression().fit(np.linspace(-1.0, 1.0, 40)[:, None], y)
text = str(model.summary())
heavy = ("numpyro", "pandas", "sklearn", "scipy.stats", "scipy.optimize", "scipy.sparse", "formulaic", "matplotlib", "numba", "dask", "rich")
loaded = {name for name in (*heavy, "robustly.glm.stored") if name in sys.modules}
assert not loaded, loaded
assert model.summary().frame.to_string(float_format=lambda one: f"{one:.4g}", na_rep="–") in text
"""

# scikit-learn may come later: by name, or because an estimator was asked for what only it has.
LATER = """
import pickle, sys, numpy as np, robustly as rb
class Mine(rb.RobustPoissonRegression):
    def fit(self, X, y, sample_weight=None):
        return super().fit(X, y, sample_weight)
model, kept = rb.RobustPoissonRegression(tol=1e-6), pickle.dumps(rb.RobustGLM())
assert not hasattr(model, "coef_") and "sklearn" not in sys.modules
if ASKED:
    assert repr(model) == "RobustPoissonRegression(tol=1e-06)" and "sklearn" in sys.modules
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone, is_regressor
from sklearn.exceptions import NotFittedError
assert isinstance(model, BaseEstimator) and isinstance(model, RegressorMixin) and is_regressor(model)
assert issubclass(rb.RobustLogisticRegression, ClassifierMixin) and not isinstance(model, ClassifierMixin)
assert clone(model).get_params() == model.get_params() and model.set_params(tol=1e-8).tol == 1e-8
assert repr(model) == "RobustPoissonRegression()" and isinstance(pickle.loads(kept), BaseEstimator)
for one in (rb.RobustPoissonRegression, Mine):
    assert "sample_weight" in str(__import__("inspect").signature(one.set_fit_request)), one
try:
    model.summary()
except NotFittedError as error:
    assert "not fitted yet" in str(error)
else:
    raise AssertionError
assert not [one for one in sys.meta_path if type(one).__module__.startswith("robustly")]
try:
    model.no_such
except AttributeError as error:
    assert "no_such" in str(error)
"""

LOCALIZE = """
import sys, robustly as rb
rb.localize
loaded = {name for name in ("pandas", "scipy.stats", "sklearn", "matplotlib", "numba", "dask", "formulaic") if name in sys.modules}
assert not loaded, loaded
"""


@pytest.mark.parametrize(
    "script",
    [QUIET, AFTER_A_FIT, PLAIN, LOCALIZE, f"ASKED = False\n{LATER}", f"ASKED = True\n{LATER}"],
    ids=["import", "fit", "regression", "localize", "scikit-learn later", "scikit-learn asked for"],
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
