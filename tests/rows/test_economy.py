"""What passes over rows say and do so that they stay cheap: sizes that a cluster is told, threads of matrix products, loops."""

from __future__ import annotations

import subprocess
import sys
from threading import Event, Thread

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from threadpoolctl import threadpool_info

import robustly as rb
from robustly._runtime import numba_loops
from robustly._runtime.threads import products_on_one_thread
from robustly.approx.tabulated import predictor_ends
from robustly.rows.arrays import ArrayRows
from robustly.rows.ragged import RaggedRows
from robustly.rows.store import Slot


def blas_threads():
    return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}


@pytest.mark.parametrize("table", ["dense", "sparse", "frame"])
def test_rows_say_how_much_memory_they_take(table):
    # A scheduler that takes a partition for a few bytes sends it about between workers.
    dense = np.random.default_rng(0).normal(size=(1000, 20))
    given = {"dense": dense, "sparse": sparse.csr_array(dense), "frame": pd.DataFrame(dense)}[table]
    rows = ArrayRows((given, np.broadcast_to(1.0, 1000)), np.ones(1000))
    least = 8 * (dense.size + 1000)
    assert least <= sys.getsizeof(rows) < 1.7 * least


def test_documents_say_how_much_memory_they_take():
    table = sparse.random(200, 50, 0.2, format="csr", random_state=0)
    assert sys.getsizeof(RaggedRows((table,), np.ones(200))) >= table.data.nbytes + table.indices.nbytes


def test_threads_of_matrix_products_come_back_with_the_last_to_leave():
    # The first to come leaves first, and lives on: threadpoolctl 3.8 lets no other thread change the number meanwhile.
    before, seen = blas_threads(), []
    entered, inside, left, over = Event(), Event(), Event(), Event()

    def first_and_gone():
        with products_on_one_thread():
            entered.set()
            assert inside.wait(10)
        left.set()
        assert over.wait(10)

    other = Thread(target=first_and_gone)
    other.start()
    assert entered.wait(10)
    with products_on_one_thread():
        inside.set()
        assert left.wait(10)
        seen.append(blas_threads())
    seen.append(blas_threads())
    over.set()
    other.join()
    assert seen == [{1}, before]
    assert blas_threads() == before


def test_a_pass_that_nobody_finishes_holds_no_threads():
    def sums(theta, data, weight, state):
        return {"rows": weight.sum()}, {}, None

    before, rows = blas_threads(), ArrayRows((np.zeros((40_000, 2)),), np.ones(40_000), chunk=4000)
    unfinished = rows._chunk_sums(sums, None, None, False, {})
    next(unfinished)
    assert blas_threads() == before
    unfinished.close()


def test_a_pass_that_fails_gives_the_threads_back():
    def fails(theta, data, weight, state):
        raise ZeroDivisionError

    before, rows = blas_threads(), ArrayRows((np.zeros((40_000, 2)),), np.ones(40_000))
    with pytest.raises(ZeroDivisionError):
        rows.map(fails, None)
    assert blas_threads() == before


@pytest.mark.parametrize(
    ("family", "local", "intercept"),
    [
        ("normal", "dispersion", True),
        ("normal", "dispersion", False),
        ("normal", "contaminated", True),
        ("normal", None, True),
        ("poisson", "predictor", True),
    ],
    ids=["student-t", "student-t without intercept", "two parts", "columns alone", "tables"],
)
def test_loops_over_rows_add_up_what_matrix_products_do(family, local, intercept, monkeypatch):
    rng = np.random.default_rng(1)
    X = rng.normal(3.0, 1.0, (9000, 4))
    y = X @ [0.3, -0.2, 0.1, 0.0] + rng.standard_t(3, 9000)
    weight = rng.integers(0, 3, 9000)
    if family == "poisson":
        y = rng.poisson(np.exp(X @ [0.3, -0.2, 0.1, 0.0] + rng.normal(size=9000)))
    model = rb.RobustGLM(family=family, local=local, fit_intercept=intercept)
    known = model.fit(X, y, sample_weight=weight).result_
    monkeypatch.setattr(numba_loops, "MANY_ROWS", 9000)
    found = model.fit(X, y, sample_weight=weight).result_
    assert (known.source.design.looped, found.source.design.looped) == (False, True)
    np.testing.assert_allclose(found.estimates, known.estimates, rtol=1e-8)
    np.testing.assert_allclose(np.asarray(found.standard_errors), np.asarray(known.standard_errors), rtol=1e-8)
    np.testing.assert_allclose(found.evidence, known.evidence, rtol=1e-8)


class _Sizes:
    """A pass that keeps the sizes of the chunks it sees."""

    def __init__(self):
        self.seen = []

    def __call__(self, theta, data, weight, state):
        self.seen.append(len(weight))
        return (
            {"sum": (weight[:, None] * data[0]).sum(axis=0), "max first": data[0].max()},
            {"each": data[0][:, 0]},
            weight,
        )


class _AnySize(_Sizes):
    takes_any_size = True


@pytest.mark.parametrize("count", [100, 700, 2000])
def test_chunks_are_filled_up_only_for_passes_compiled_for_a_size(count):
    x = np.random.default_rng(0).normal(size=(count, 3))
    rows = ArrayRows((x,), np.ones(count), chunk=512)
    filled, bare = _Sizes(), _AnySize()
    one, other = (rows.map(each, None, into=slot) for each, slot in ((filled, Slot()), (bare, Slot())))
    assert set(filled.seen) == {min(rows.bucket, 512)}
    assert sum(bare.seen) == count
    for name, total in one.sums.items():
        np.testing.assert_allclose(other.sums[name], total, rtol=1e-12)
    np.testing.assert_array_equal(one.by_unit["each"], x[:, 0])
    np.testing.assert_array_equal(other.by_unit["each"], x[:, 0])


COUNTS = """
import sys, numpy as np, robustly as rb
rng = np.random.default_rng(0)
X = rng.normal(size=(40_000, 2))
fit = rb.RobustPoissonRegression().fit(X, rng.poisson(np.exp(1.0 + 0.3 * X[:, 0] + 0.5 * rng.normal(size=40_000)))).result_
assert fit.source.problem.tabulated
fit.standard_errors, fit.evidence
assert "numba" not in sys.modules
print(*fit.notes)
"""


def test_tables_of_some_ten_thousand_counts_compile_no_loops_and_start_from_two_looks_at_a_sample():
    run = subprocess.run([sys.executable, "-c", COUNTS], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert "started from a fit to 8192 of the rows (2 passes over them)" in run.stdout


def test_ends_of_predictors_are_told_by_response():
    rng = np.random.default_rng(0)
    which, predictor = rng.integers(0, 5, 300) * 2, rng.normal(size=300)
    under, over = predictor_ends(predictor, which, 10)
    for k in range(10):
        mine = predictor[which == k]
        ends = (-mine.min(), mine.max()) if len(mine) else (-np.inf, -np.inf)
        assert (under[k], over[k]) == ends
