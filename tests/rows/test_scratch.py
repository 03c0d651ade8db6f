"""Rows that many passes read are decoded once: the same rows, the same answers, and nothing left behind."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections import namedtuple

import numpy as np
import pandas as pd
import pytest

import robustly as rb
from robustly.errors import DataError
from robustly.glm.stored import stored_design
from robustly.localized.stored import RowRecipe
from robustly.model.linear import Design
from robustly.rows import parquet as parquet_module
from robustly.rows import scratch as scratch_module
from robustly.rows import streamed
from robustly.rows.anywhere import rows_from
from robustly.rows.columns_to_rows import matrix_of_columns
from robustly.rows.scratch import Scratch
from robustly.rows.stored import Layout
from robustly.testing import check_rows

N = 1200


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(5)
    frame = pd.DataFrame({"a": rng.normal(size=N), "b": rng.normal(size=N), "often": rng.integers(1, 4, N)})
    frame["y"] = frame["a"] - 0.5 * frame["b"] + rng.standard_t(3, N)
    frame["count"] = rng.poisson(np.exp(0.3 * frame["a"] + 0.5 * rng.normal(size=N)))
    return frame


@pytest.fixture(scope="module")
def files(frame, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    frame[:500].to_parquet(folder / "1.parquet", row_group_size=90)
    frame[500:].to_parquet(folder / "2.parquet", row_group_size=90)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet_module, "BATCH", 70)
        patch.setattr(streamed, "SMALLEST_BLOCK", 1)
        patch.setattr(streamed, "THREADS", 1)
        yield folder


@pytest.fixture
def scans(monkeypatch):
    """Which columns were decoded from the first row on, scan by scan."""
    seen, decode = [], parquet_module.arrow_batches

    def counted(table, wanted, size):
        seen.append(tuple(wanted))
        return decode(table, wanted, size)

    monkeypatch.setattr(parquet_module, "arrow_batches", counted)
    return seen


def kept_rows(folder, *columns):
    asked = [rb.parquet(folder, columns=["a", "b"]), *(rb.parquet(folder, columns=one) for one in columns)]
    return rows_from(asked, Layout(RowRecipe(2), ("X", columns[0]), 64, many_passes=True))


def everything(theta, data, weight, state):
    return {"rows": float(len(weight))}, {"x": data[0], "y": data[1], "weight": weight}, None


@pytest.mark.parametrize("columns", [("count",), ("y", "often")])
def test_rows_from_scratch_are_those_of_the_files(columns, files, frame):
    rows = kept_rows(files, *columns)
    for _ in range(2):
        found = rows.map(everything, None).by_unit
        np.testing.assert_array_equal(found["x"], frame[["a", "b"]])
        np.testing.assert_array_equal(found["y"], frame[columns[0]])
        assert found["y"].dtype == frame[columns[0]].dtype
        np.testing.assert_array_equal(found["weight"], frame["often"] if len(columns) > 1 else np.ones(N))
        assert rows.scratch.full is not None
    np.testing.assert_array_equal(rows.weight, found["weight"])
    np.testing.assert_array_equal(rows.take([3, 600, N - 1]).data[0], frame[["a", "b"]].iloc[[3, 600, N - 1]])


def test_rows_in_scratch_keep_the_contract_of_a_store(files, frame):
    rows = kept_rows(files, "count")
    rows.map(everything, None)
    check_rows(rows, (frame[["a", "b"]].to_numpy(), frame["count"].to_numpy()))


@pytest.mark.parametrize("by_loop", [False, True])
@pytest.mark.parametrize("width", [2, 4, 7])
def test_columns_are_laid_side_by_side(width, by_loop):
    columns = list(np.random.default_rng(0).normal(size=(width, 50)))
    found, total = matrix_of_columns(columns, by_loop=by_loop)
    np.testing.assert_array_equal(found, np.column_stack(columns))
    assert np.isfinite(total)
    for bad in (np.nan, np.inf):
        columns[-1] = np.where(np.arange(50) == 3, bad, columns[-1])
        assert not np.isfinite(matrix_of_columns(columns, by_loop=by_loop)[1])


def test_a_missing_number_among_many_rows_is_named(frame, tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_module, "MANY_ROWS", 1)
    broken = frame.assign(c=frame["a"], d=frame["b"])
    broken.loc[801, "d"] = np.inf
    broken.to_parquet(tmp_path / "broken.parquet")
    with pytest.raises(DataError, match=r'broken.parquet: column "d" holds inf in row 801\.'):
        rb.RobustLinearRegression().fit(rb.parquet(tmp_path, columns=["a", "b", "c", "d"]), "y")


def test_a_value_that_changes_after_many_rows_is_kept_row_by_row():
    scratch = Scratch()
    pieces = [np.broadcast_to(2.0, 5), np.broadcast_to(2.0, 4), np.arange(3.0), np.broadcast_to(2.0, 2)]
    assert [kept.so_far for kept in scratch.filled((((one,), None) for one in pieces), 14)] == [5, 9, 12, 14]
    np.testing.assert_array_equal(scratch.full.at(slice(0, 14))[0][0], np.concatenate(pieces))
    np.testing.assert_array_equal(scratch.full.at(slice(7, 11))[0][0], np.concatenate(pieces)[7:11])
    same = Scratch()
    list(same.filled((((np.broadcast_to(2.0, 5),), None) for _ in range(2)), 10))
    assert same.full.at(slice(0, 10))[0][0].strides == (0,)


def test_a_scan_that_was_broken_off_keeps_nothing():
    scratch = Scratch()
    assert next(scratch.filled((((np.arange(5.0),), None) for _ in range(2)), 10)).so_far == 5
    assert scratch.full is None


def test_rows_that_cannot_be_kept_to_the_end_are_read_again_from_where_they_were_given(files, frame):
    late = set(frame["a"][630:])

    def recipe(matrix, y):
        # After some 630 rows, in the middle of a block, responses are of another kind.
        return (matrix, y.astype(np.float32) if matrix[0, 0] in late else y), None

    asked = [rb.parquet(files, columns=["a", "b"]), rb.parquet(files, columns="y")]
    rows = rows_from(asked, Layout(recipe, ("X", "y"), 64, many_passes=True))
    for _ in range(2):
        found = rows.map(everything, None).by_unit
        np.testing.assert_array_equal(found["x"], frame[["a", "b"]])
        np.testing.assert_allclose(found["y"], frame["y"], rtol=1e-6)
    assert rows.scratch.refused
    assert sum(rows.each_piece(lambda data: len(data[1]))) == N


@pytest.mark.parametrize("model", [rb.RobustLinearRegression(), rb.RobustPoissonRegression()])
def test_a_fit_decodes_its_columns_once(model, files, frame, scans):
    y = "y" if isinstance(model, rb.RobustLinearRegression) else "count"
    found = type(model)().fit(rb.parquet(files, columns=["a", "b"]), y).result_
    # The first rows are glanced at, then all are read: once, whatever the number of passes.
    assert len([one for one in scans if "a" in one]) == 2
    known = type(model)().fit(frame[["a", "b"]], frame[y]).result_
    np.testing.assert_array_equal(found.estimates, known.estimates)


def test_a_design_looks_at_its_columns_once(files, frame, monkeypatch):
    looks, look = [], Design._moments_around
    monkeypatch.setattr(Design, "_moments_around", lambda self, idea: looks.append(len(self)) or look(self, idea))
    design = stored_design(rb.parquet(files, columns=["a", "b"]), "count", {}, intercept=True, ridge=0.0)
    noted = design.noted("a note")
    assert noted.notes == ("a note",)
    np.testing.assert_allclose(noted.centre, frame[["a", "b"]].mean(), atol=1e-12)
    assert noted.size == 3
    assert looks == [N]


@pytest.mark.parametrize("why", ["no room", "full", "rule"])
def test_without_room_files_are_read_again_and_the_answer_is_the_same(why, files, frame, scans, monkeypatch):
    def full(*given):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if why == "no room":
        monkeypatch.setattr(scratch_module.os, "posix_fallocate", full, raising=False)
    elif why == "full":
        monkeypatch.setattr(scratch_module.KeptArray, "_write", full)
    else:
        usage = namedtuple("usage", "total used free")
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1, 1, 1000))
    found = rb.glm("y ~ a + b", rb.parquet(files), family="normal")
    np.testing.assert_array_equal(found.estimates, rb.glm("y ~ a + b", frame, family="normal").estimates)
    assert len(scans) > 4


def test_no_file_has_a_name(files, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rows = kept_rows(files, "y")
    rows.map(everything, None)
    assert rows.scratch.full is not None
    assert list(tmp_path.iterdir()) == []
