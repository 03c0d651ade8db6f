"""Rows on the workers of a Dask cluster: the answers of the same rows in memory, also when workers die or come."""

from __future__ import annotations

import os
import signal

import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest

import robustly as rb
from robustly.conjugate import GammaPoisson
from robustly.errors import DataError
from robustly.localized.stored import RowRecipe
from robustly.rows import dask as dask_module
from robustly.rows.anywhere import as_stored, rows_from
from robustly.rows.stored import Layout
from robustly.testing import check_rows

dd = pytest.importorskip("dask.dataframe", reason="clusters need the distributed extra")
distributed = pytest.importorskip("distributed", reason="clusters need the distributed extra")
pytestmark = pytest.mark.filterwarnings("ignore")  # Dask's own, of what it uses

N = 1500
COLUMNS = ["a", "b"]


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(7)
    frame = pd.DataFrame({"a": rng.normal(size=N), "b": rng.normal(50.0, 2.0, N), "kind": rng.choice(["u", "v"], N)})
    predictor = 0.4 * frame["a"] - 0.2 * (frame["b"] - 50.0)
    frame["count"] = rng.poisson(np.exp(predictor + 0.6 * rng.normal(size=N)))
    frame["size"] = predictor + rng.standard_t(3, N)
    return frame


@pytest.fixture(scope="module")
def client():
    """Two worker processes of one thread each; a worker that dies is started again."""
    options = {"processes": True, "threads_per_worker": 1, "dashboard_address": None, "memory_limit": "2GiB"}
    with distributed.LocalCluster(n_workers=2, **options) as cluster, distributed.Client(cluster) as client:
        yield client


def collection(frame, partitions):
    return dd.from_pandas(frame, npartitions=partitions)


def same(one, two):
    np.testing.assert_allclose(two.estimates, one.estimates, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(np.asarray(two.standard_errors), np.asarray(one.standard_errors), rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(np.asarray(two.evidence), one.evidence, rtol=1e-8, atol=1e-8)
    np.testing.assert_array_equal(two.outliers(), one.outliers())


def test_partitions_keep_the_contract_of_a_store(client, frame):
    some = frame[:500]
    columns = as_stored(collection(some, 3))
    rows = rows_from([columns.pick(("a", "b")), columns.pick("count")], Layout(RowRecipe(2), ("X", "count"), 64))
    check_rows(rows, (some[COLUMNS].to_numpy(), some["count"].to_numpy()))


@pytest.fixture(scope="module")
def linear(frame):
    return rb.RobustLinearRegression().fit(frame[COLUMNS], frame["size"])


@pytest.mark.parametrize("partitions", [1, 5])
def test_a_regression_of_partitions_is_that_of_rows_in_memory(partitions, client, frame, linear):
    rows = collection(frame, partitions)
    found = rb.RobustLinearRegression().fit(rows[COLUMNS], rows["size"])
    same(linear.result_, found.result_)
    assert type(found.result_.evidence).__module__.startswith("dask")
    predicted = found.predict(rows[COLUMNS])
    assert type(predicted).__module__.startswith("dask")
    np.testing.assert_allclose(np.asarray(predicted), linear.predict(frame[COLUMNS]), rtol=1e-8)


def test_formulas_pairs_mixtures_and_programs_take_partitions(client, frame):
    rows = collection(frame, 3)
    same(rb.glm("count ~ center(a) + C(kind)", frame), rb.glm("count ~ center(a) + C(kind)", rows))
    same(GammaPoisson().fit(frame["count"].to_numpy()), GammaPoisson().fit(rows["count"]))
    known = rb.RobustGaussianMixture(2, random_state=0).fit(frame[COLUMNS])
    found = rb.RobustGaussianMixture(2, random_state=0).fit(rows[COLUMNS])
    np.testing.assert_allclose(found.means_, known.means_, rtol=1e-8)
    np.testing.assert_array_equal(found.outliers(), known.outliers())

    def scaled(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 10).expand([x.shape[1]]).to_event(1))
        precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, precision**-0.5), obs=y)

    model = rb.localize(scaled, "precision")
    known = model.fit(frame[COLUMNS].to_numpy(), frame["size"].to_numpy())
    same(known, model.fit(rows[COLUMNS], rows["size"]))


def test_a_worker_that_is_killed_in_a_pass_costs_no_fit(client, frame, linear, monkeypatch):
    killed = []
    waits = dask_module.gathered

    def kill_once(cluster, futures):
        if len(killed) < 1 and isinstance(futures, list) and len(futures) == 2:  # sums and shapes: a pass is under way
            worker = next(iter(cluster.run(os.getpid).values()))
            killed.append(worker)
            os.kill(worker, signal.SIGKILL)
        return waits(cluster, futures)

    rows = collection(frame, 4)
    monkeypatch.setattr(dask_module, "gathered", kill_once)
    found = rb.RobustLinearRegression().fit(rows[COLUMNS], rows["size"])
    assert killed
    same(linear.result_, found.result_)


def test_a_worker_that_comes_during_a_fit_is_welcome(client, frame, linear, monkeypatch):
    waits, added = dask_module.gathered, []

    def add_once(cluster, futures):
        if not added:
            added.append(client.cluster.scale(3))
        return waits(cluster, futures)

    rows = collection(frame, 4)
    monkeypatch.setattr(dask_module, "gathered", add_once)
    found = rb.RobustLinearRegression().fit(rows[COLUMNS], rows["size"])
    client.cluster.scale(2)
    same(linear.result_, found.result_)


def test_bad_partitions_are_named(client, frame):
    holed = frame.copy()
    holed.loc[1200, "b"] = np.nan
    rows = collection(holed, 4)
    with pytest.raises(DataError, match=r'partition 3: column "b" holds a missing value \(NaN\) in row 75'):
        rb.RobustLinearRegression().fit(rows[COLUMNS], rows["size"])
    with pytest.raises(DataError, match=r"partition \d: columns have 500, 300 rows"):
        rb.RobustLinearRegression().fit(collection(frame[COLUMNS], 3), collection(frame["size"][:900], 3))
    with pytest.raises(DataError, match="years"):
        rb.glm("count ~ years", collection(frame, 2))
    texts = collection(frame, 2)
    with pytest.raises(DataError, match=r"partition \d: columns a, kind hold object"):
        rb.RobustLinearRegression().fit(texts[["a", "kind"]], texts["size"])
    with pytest.raises(DataError, match="no rows to fit"):
        rb.RobustLinearRegression().fit(collection(frame[:0], 1)[COLUMNS], collection(frame[:0], 1)["size"])


def test_without_a_cluster_one_line_says_so(frame, monkeypatch):
    def nobody(*args, **kwargs):
        raise ValueError("No global client found and no address provided")

    monkeypatch.setattr(distributed, "get_client", nobody)
    rows = collection(frame, 2)
    with pytest.raises(DataError, match="none is in use"):
        rb.RobustLinearRegression().fit(rows[COLUMNS], rows["size"])
