"""Rows on the workers of a Dask cluster: the answers of the same rows in memory, also when workers die or come."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from typer.testing import CliRunner

import robustly as rb
from robustly.cli import app
from robustly.conjugate import GammaPoisson
from robustly.errors import DataError
from robustly.localized.stored import RowRecipe
from robustly.result.outliers import Judgement
from robustly.rows import dask as dask_module
from robustly.rows.anywhere import as_stored, rows_from
from robustly.rows.stored import Layout
from robustly.testing import check_rows
from robustly.topics import Corpus, RobustLDA

db = pytest.importorskip("dask.bag", reason="clusters need the distributed extra")
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
    frame["yes"] = (rng.random(N) < 1.0 / (1.0 + np.exp(-2.0 * predictor))) ^ (rng.random(N) < 0.03)
    frame["yes"] = frame["yes"].astype(int)
    return frame


def collection(frame, partitions):
    return dd.from_pandas(frame, npartitions=partitions)


def is_dask(value):
    return type(value).__module__.startswith("dask")


def same(one, two, **asked):
    np.testing.assert_allclose(two.estimates, one.estimates, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(np.asarray(two.standard_errors), np.asarray(one.standard_errors), rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(np.asarray(two.evidence), one.evidence, rtol=1e-8, atol=1e-8)
    np.testing.assert_array_equal(np.asarray(two.outliers(**asked)), np.sort(one.outliers(**asked)))


def test_partitions_keep_the_contract_of_a_store(client, frame):
    some = frame[:500]
    columns = as_stored(collection(some, 3))
    rows = rows_from([columns.pick(("a", "b")), columns.pick("count")], Layout(RowRecipe(2), ("X", "count"), 64))
    check_rows(rows, (some[COLUMNS].to_numpy(), some["count"].to_numpy()))


@pytest.fixture(scope="module")
def linear(frame):
    return rb.RobustLinearRegression().fit(frame[COLUMNS], frame["size"])


@pytest.mark.parametrize("place", ["client", "near"])
def test_a_regression_of_partitions_is_that_of_rows_in_memory(place, request, frame, linear):
    request.getfixturevalue(place)
    rows = collection(frame, 5 if place == "client" else 1)
    found = rb.RobustLinearRegression().fit(rows[COLUMNS], rows["size"])
    same(linear.result_, found.result_)
    predicted = found.predict(rows[COLUMNS])
    assert is_dask(found.result_.evidence)
    assert is_dask(found.result_.outliers())
    assert is_dask(predicted)
    np.testing.assert_allclose(np.asarray(predicted), linear.predict(frame[COLUMNS]), rtol=1e-8)


def test_partitions_of_unknown_length_are_counted(near, frame, linear):
    rows = collection(frame, 3)
    X, y = rows[COLUMNS].to_dask_array(), rows["size"].to_dask_array()
    assert np.isnan(X.shape[0])
    found = rb.RobustLinearRegression().fit(X, y)
    same(linear.result_, found.result_)
    np.testing.assert_allclose(np.asarray(found.predict(X)), linear.predict(frame[COLUMNS]), rtol=1e-8)
    few = collection(frame[:900], 3)["size"].to_dask_array()
    with pytest.raises(DataError, match=r"partition \d: columns have 500, 300 rows"):
        rb.RobustLinearRegression().fit(X, few)


@pytest.mark.parametrize("local", ["logit", "label"])
def test_yes_or_no_in_partitions(local, near, frame):
    rows = collection(frame, 3)
    known = rb.RobustLogisticRegression(local=local).fit(frame[COLUMNS], frame["yes"])
    found = rb.RobustLogisticRegression(local=local).fit(rows[COLUMNS], rows["yes"])
    same(known.result_, found.result_, level=1e-3)


def test_a_formula_and_a_pair_take_partitions(near, frame):
    rows = collection(frame, 3)
    same(rb.glm("count ~ center(a) + C(kind)", frame), rb.glm("count ~ center(a) + C(kind)", rows), level=1e-3)
    known, found = GammaPoisson().fit(frame["count"].to_numpy()), GammaPoisson().fit(rows["count"])
    np.testing.assert_allclose(found.estimates, known.estimates, rtol=1e-8)
    np.testing.assert_allclose(np.asarray(found.standard_errors), np.asarray(known.standard_errors), rtol=1e-8)
    np.testing.assert_allclose(np.asarray(found.evidence), known.evidence, rtol=1e-8, atol=1e-8)
    np.testing.assert_array_equal(np.sort(np.asarray(found.outliers())), np.sort(known.outliers()))


def test_a_mixture_takes_partitions(near, frame):
    rows = collection(frame, 3)
    known = rb.RobustGaussianMixture(2, random_state=0).fit(frame[COLUMNS])
    found = rb.RobustGaussianMixture(2, random_state=0).fit(rows[COLUMNS])
    np.testing.assert_allclose(found.means_, known.means_, rtol=1e-8)
    np.testing.assert_allclose(found.covariances_, known.covariances_, rtol=1e-8)
    np.testing.assert_allclose(np.asarray(found.surprise_), known.surprise_, rtol=1e-8)
    np.testing.assert_array_equal(found.outliers(), known.outliers())


def test_a_program_takes_partitions(near, frame):
    def scaled(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 10).expand([x.shape[1]]).to_event(1))
        precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, precision**-0.5), obs=y)

    model, rows = rb.localize(scaled, "precision"), collection(frame, 3)
    known = model.fit(frame[COLUMNS].to_numpy(), frame["size"].to_numpy())
    same(known, model.fit(rows[COLUMNS], rows["size"]))


def test_documents_of_a_bag_give_the_topics_of_documents_in_memory(client):
    rng = np.random.default_rng(1)
    topics = rng.dirichlet(np.full(60, 0.1), 3)
    documents = [[f"w{word}" for word in rng.choice(60, 30, p=topics[i % 3])] for i in range(90)]
    bag, corpus = db.from_sequence(documents, npartitions=4), Corpus.from_tokens(documents)
    asked = {"random_state": 0, "draws": 8, "max_iter": 8, "tol": 0.0}
    known, found = RobustLDA(3, **asked).fit(corpus), RobustLDA(3, **asked).fit(bag)
    assert found.vocabulary_ == known.vocabulary_
    assert found.score(corpus) == pytest.approx(known.score(corpus), abs=1e-6)
    shares = found.transform(bag)
    assert is_dask(shares)
    np.testing.assert_allclose(np.asarray(shares), found.transform(corpus), atol=1e-6)
    with pytest.raises(DataError, match=r"partition \d: document \d+ is 'gold mine', which is no list of words"):
        RobustLDA(2).fit(db.from_sequence(["gold mine"] * 4, npartitions=2))


@pytest.mark.parametrize("rule", ["tail", "probability"])
def test_a_list_found_by_counts_is_the_list_found_by_sorting(rule, near):
    import dask.array as da

    rng = np.random.default_rng(2)
    value = np.where(rng.random(4000) < 0.02, 1e-4 * rng.random(4000), rng.random(4000))
    parts = {"tail": (None, value), "probability": (1.0 - value, None)}[rule]
    cut = tuple(None if one is None else da.from_array(one, chunks=1500) for one in parts)
    for asked in ({"fdr": 0.05}, {"fdr": 0.3}, {"level": 1e-3}):
        known = Judgement(*parts, 0.0, "", {}).listed(-value, **asked)
        found = Judgement(*cut, 0.0, "", {}).listed(None, **asked)
        assert is_dask(found)
        assert len(found.chunks[0]) == 3
        assert len(known) > 0
        np.testing.assert_array_equal(np.asarray(found), np.sort(known))


# ---------------------------------------------------------------------- faults


def test_workers_that_die_and_come_during_a_fit_change_nothing(client, frame, linear, monkeypatch):
    waits, passes = dask_module.gathered, []

    def disturbed(cluster, futures):
        if isinstance(futures, list) and len(futures) == 2:  # sums and shapes: a pass is under way
            passes.append(len(passes))
            if len(passes) == 2:
                worker = next(iter(cluster.run(os.getpid).values()))
                assert worker != os.getpid()
                os.kill(worker, signal.SIGKILL)
            if len(passes) == 4:
                client.cluster.scale(3)
        return waits(cluster, futures)

    rows = collection(frame, 4)
    monkeypatch.setattr(dask_module, "gathered", disturbed)
    found = rb.RobustLinearRegression().fit(rows[COLUMNS], rows["size"])
    client.cluster.scale(2)
    assert len(passes) >= 4
    same(linear.result_, found.result_)


KILLED = """
import os, signal, sys
import dask.dataframe as dd
from distributed import Client
import robustly as rb
from robustly.fit import checkpoint
add, count = checkpoint.PassLog.add, 0
def die(self, key, sums):
    global count
    count += 1
    if count == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    add(self, key, sums)
checkpoint.PassLog.add = die
with Client(sys.argv[1]):
    rows = dd.read_parquet(sys.argv[2])
    rb.RobustLinearRegression().fit(rows[["a", "b"]], rows["size"], checkpoint=sys.argv[3])
"""


@pytest.fixture(scope="module")
def files(frame, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    frame[:700].to_parquet(folder / "1.parquet")
    frame[700:].to_parquet(folder / "2.parquet")
    return folder


def test_a_client_that_is_killed_is_resumed_to_the_same_answer(client, files, linear, tmp_path):
    words = [client.scheduler.address, files, tmp_path / "kept"]
    killed = subprocess.run([sys.executable, "-c", KILLED, *words], env=os.environ, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list((tmp_path / "kept").glob("pass-*.npz"))) == 2
    rows = dd.read_parquet(files)
    found = rb.RobustLinearRegression().fit(rows[COLUMNS], rows["size"], checkpoint=tmp_path / "kept")
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


def test_a_partition_with_another_type_or_column_is_named(client, frame):
    import dask

    def of(second):
        parts = [dask.delayed(frame[:700]), dask.delayed(second)]
        return dd.from_delayed(parts, meta=frame[:0], verify_meta=False)

    words = of(frame[700:].astype({"b": str}))
    with pytest.raises(DataError, match=r"partition 1: columns a, b hold object"):
        rb.RobustLinearRegression().fit(words[COLUMNS], words["size"])
    without = of(frame[700:].rename(columns={"b": "c"}))
    with pytest.raises(DataError, match=r"partition 1 cannot be made: KeyError: .*'b'"):
        rb.RobustLinearRegression().fit(without[COLUMNS], without["size"])


# ---------------------------------------------------------------------- from a shell


def asked_from_a_shell(files, *where):
    words = ["fit", f"{files}/*.parquet", "size ~ a + b", "--family", "normal", "--json", *where]
    done = CliRunner().invoke(app, words)
    return done.exit_code, done.output


def test_a_shell_uses_a_running_scheduler(client, files, linear):
    code, out = asked_from_a_shell(files, "--scheduler", client.scheduler.address)
    assert code == 0, out
    told = json.loads(out)
    found = [told["robust"]["coefficients"][name]["estimate"] for name in ("a", "b")]
    np.testing.assert_allclose(found, linear.coef_, rtol=1e-8)
    assert sorted(told["outliers"]) == sorted(linear.result_.outliers().tolist())


def test_a_shell_starts_a_cluster_of_its_own(files, linear):
    code, out = asked_from_a_shell(files, "--workers", "1", "--local", "none")
    assert code == 0, out
    assert json.loads(out)["rows"] == N


def test_without_a_cluster_one_line_says_so(frame, monkeypatch):
    def nobody(*args, **kwargs):
        raise ValueError("No global client found and no address provided")

    monkeypatch.setattr(distributed, "get_client", nobody)
    rows = collection(frame, 2)
    with pytest.raises(DataError, match="none is in use"):
        rb.RobustLinearRegression().fit(rows[COLUMNS], rows["size"])
