"""What needs rows in memory says so by name, with a way out, of rows in files and on a cluster; nothing is gathered without a word."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import robustly as rb
from robustly.errors import DataError, ModelError

pytestmark = pytest.mark.filterwarnings("ignore")  # Dask's own, of what it uses
N = 300


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"a": rng.normal(size=N), "g": rng.integers(0, 6, N)})
    frame["y"] = frame["a"] + rng.standard_t(3, N)
    frame["n"] = rng.poisson(np.exp(0.3 * frame["a"]))
    return frame


@pytest.fixture(scope="module", params=["files", "partitions"])
def elsewhere(request, frame, tmp_path_factory):
    """A frame, a matrix, and two responses of the same rows."""
    if request.param == "files":
        folder = tmp_path_factory.mktemp("rows")
        frame[:100].to_parquet(folder / "1.parquet")
        frame[100:].to_parquet(folder / "2.parquet")
        at = lambda columns=None: rb.parquet(folder, columns=columns)
        yield at(), at(["a"]), at("y"), at("n")
        return
    dd = pytest.importorskip("dask.dataframe", reason="clusters need the distributed extra")
    distributed = pytest.importorskip("distributed", reason="clusters need the distributed extra")
    options = {"processes": False, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(n_workers=2, **options) as cluster, distributed.Client(cluster):
        rows = dd.from_pandas(frame, npartitions=2)
        yield rows, rows[["a"]], rows["y"], rows["n"]


@pytest.fixture(scope="module")
def fit(elsewhere):
    return rb.glm("y ~ a", elsewhere[0], family="normal")


SLOPES = r"loo, influence, comparisons and reports go, needs rows in memory\. Fit a sample"
DRAWS = r"posterior draws need rows in memory\. Fit a sample"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (lambda fit: fit.loo(), SLOPES),
        (lambda fit: fit.influence(), SLOPES),
        (lambda fit: fit.report("page.html"), SLOPES),
        (lambda fit: rb.compare(fit, fit), SLOPES),
        (lambda fit: fit.sample_posterior(10, key=0), DRAWS),
        (lambda fit: fit.confint(kind="profile"), r"profile needs rows in memory\. Take kind="),
    ],
)
def test_what_a_fit_cannot_be_asked_says_so(asked, told, fit, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=told):
        asked(fit)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (lambda d, X, y, n: rb.glm("y ~ a", d, family="normal", solver="em"), r'solver="newton" takes rows anywhere'),
        (lambda d, X, y, n: rb.RobustPoissonRegression(solver="map").fit(X, n), r'solver="newton" takes rows anywhere'),
        (lambda d, X, y, n: rb.glm("n ~ a", d, local="contaminated"), r'solver="newton" takes rows anywhere'),
        (
            lambda d, X, y, n: rb.glm("g ~ a", d, family="multinomial"),
            r"data is in .*rows in memory are needed here\. Read",
        ),
        (lambda d, X, y, n: rb.glm("n ~ a", d, na_action="drop"), r'na_action is "raise"'),
        (lambda d, X, y, n: rb.RobustGaussianHMM(2).fit(X), r"X is in .*rows in memory are needed here\. Read"),
    ],
)
def test_what_cannot_be_fitted_elsewhere_says_so(asked, told, elsewhere):
    with pytest.raises((DataError, ModelError), match=told):
        asked(*elsewhere)


def test_what_cannot_be_predicted_elsewhere_says_so(elsewhere, frame):
    data, X, _, _ = elsewhere
    here = rb.RobustLinearRegression().fit(frame[["a"]], frame["y"])
    with pytest.raises(DataError, match=r"are means: predict\(X\) gives them"):
        here.predict_dist(X)
    with pytest.raises(DataError, match=r"data is in .*rows in memory are needed here"):
        rb.glm("y ~ a", frame, family="normal").predictive(data)
    grouped = rb.RobustPoissonRegression().fit(frame[["a"]], frame["n"], groups=frame["g"])
    with pytest.raises(ModelError, match=r'a fit with groups \("groups"\), which predicts rows in memory'):
        grouped.predict(X)
