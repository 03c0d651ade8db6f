"""Effects of groups whose rows stand anywhere in Parquet files: the answers of the same rows in memory, in the same order."""

from __future__ import annotations

import errno
import os

import numpy as np
import pandas as pd
import pytest

import robustly as rb
from robustly.errors import DataError, ModelError, PersistError, SupportError
from robustly.rows import scratch, streamed

N = 900


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(11)
    clinic = rng.integers(0, 30, N)
    frame = pd.DataFrame({"age": rng.normal(50.0, 8.0, N), "sex": rng.choice(["f", "m"], N), "clinic": clinic})
    frame["name"] = [f"clinic {one}" for one in clinic]
    frame["ward"] = clinic * 10 + rng.integers(0, 4, N)
    frame["times"] = rng.integers(0, 3, N)
    own = rng.normal(0.0, 0.6, 30)[clinic] + 0.02 * rng.normal(0.0, 1.0, 30)[clinic] * (frame["age"] - 50.0)
    predictor = 0.03 * (frame["age"] - 50.0) + 0.4 * (frame["sex"] == "m") + own
    frame["size"] = predictor + rng.normal(0.0, 0.5, 400)[frame["ward"]] + 0.7 * rng.standard_t(4, N)
    frame["visits"] = rng.poisson(np.exp(predictor))
    frame["ill"] = (rng.random(N) < 1.0 / (1.0 + np.exp(-predictor))).astype(int)
    return frame


@pytest.fixture(scope="module")
def files(frame, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    for place, (first, last) in enumerate([(0, 250), (250, 251), (251, N)]):
        frame[first:last].to_parquet(folder / f"{place}.parquet", row_group_size=100)
    return folder


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(streamed, "SMALLEST_BLOCK", 128)
    monkeypatch.setattr("robustly.rows.parquet.BATCH", 90)


def same(known, found):
    np.testing.assert_allclose(found.estimates, known.estimates, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(
        np.asarray(found.standard_errors), np.asarray(known.standard_errors), rtol=1e-8, atol=1e-8
    )
    assert found.log_likelihood == pytest.approx(known.log_likelihood, rel=1e-10)
    np.testing.assert_allclose(found.evidence, known.evidence, rtol=1e-8, atol=1e-8)
    pd.testing.assert_frame_equal(found.group_effects, known.group_effects, rtol=1e-7, atol=1e-8)
    np.testing.assert_array_equal(found.outliers(), known.outliers())


@pytest.mark.parametrize(
    ("formula", "asked"),
    [
        ("size ~ center(age) + sex + (1 | name)", {"family": "normal"}),
        ("size ~ age + (1 + age | clinic)", {"family": "normal", "weights": "times"}),
        ("size ~ age + (1 | clinic/ward)", {"family": "normal"}),
        ("visits ~ center(age) + sex + (1 | clinic)", {"family": "poisson", "exposure": "age"}),
        ("ill ~ center(age) + (1 | clinic)", {"family": "bernoulli", "group_law": "student_t", "group_dof": 4.0}),
        ("visits ~ center(age) + (1 | clinic)", {"family": "poisson", "group_law": "gamma"}),
    ],
)
def test_a_formula_with_groups_from_files_is_that_from_memory(formula, asked, files, frame):
    known, found = rb.glm(formula, frame, **asked), rb.glm(formula, rb.parquet(files), **asked)
    same(known, found)
    assert any("sorted by it once, into temporary files" in note for note in found.notes)
    np.testing.assert_allclose(found.predictive(frame[:20]).mean, known.predictive(frame[:20]).mean, rtol=1e-8)


def test_rows_are_judged_in_the_order_of_the_data(files, frame):
    asked = {"family": "normal", "local": "dispersion"}
    known = rb.glm("size ~ age + (1 | clinic)", frame, **asked)
    found = rb.glm("size ~ age + (1 | clinic)", rb.parquet(files), **asked)
    same(known, found)
    for question in ("row_tails", "row_weights", "pit", "observed"):
        one, two = getattr(known.source, question)(), getattr(found.source, question)()
        one, two = (one["y"], two["y"]) if isinstance(one, dict) else (one, two)
        np.testing.assert_allclose(two, one, rtol=1e-6, atol=1e-8)


def test_rows_that_stand_together_are_not_called_sorted(frame, tmp_path):
    together = frame.sort_values("clinic", kind="stable")
    together.to_parquet(tmp_path / "rows.parquet")
    known = rb.glm("size ~ age + (1 | clinic)", together, family="normal")
    found = rb.glm("size ~ age + (1 | clinic)", rb.parquet(tmp_path / "rows.parquet"), family="normal")
    same(known, found)
    assert found.notes == known.notes


@pytest.mark.parametrize("groups", ["name", "clinic"])
def test_an_estimator_takes_the_name_of_a_column_as_groups(groups, files, frame):
    known = rb.RobustPoissonRegression().fit(frame[["age"]], frame["visits"], groups=frame[groups])
    rows = rb.parquet(files, columns=["age"])
    found = rb.RobustPoissonRegression().fit(rows, "visits", groups=groups)
    same(known.result_, found.result_)
    assert list(found.feature_names_in_) == ["age"]
    again = rb.RobustPoissonRegression().fit(rows, "visits", groups=rb.parquet(files, columns=groups))
    np.testing.assert_array_equal(again.coef_, found.coef_)


# ---------------------------------------------------------------------- faults


def test_a_row_without_a_group_is_named_by_its_file(frame, tmp_path):
    holed = frame.astype({"name": object})
    holed.loc[400, "name"] = None
    holed[:300].to_parquet(tmp_path / "1.parquet")
    holed[300:].to_parquet(tmp_path / "2.parquet")
    with pytest.raises(DataError, match=r'2\.parquet: the groups "name" have a missing value in row 100\.'):
        rb.glm("size ~ age + (1 | name)", rb.parquet(tmp_path), family="normal")


def test_a_response_that_the_family_cannot_have_is_named_by_its_file(frame, tmp_path):
    wrong = frame.copy()
    wrong.loc[500, "visits"] = -1
    wrong[:300].to_parquet(tmp_path / "1.parquet")
    wrong[300:].to_parquet(tmp_path / "2.parquet")
    with pytest.raises(SupportError, match=r"2\.parquet: y holds -1.* in row 200"):
        rb.glm("visits ~ age + (1 | clinic)", rb.parquet(tmp_path), family="poisson")


def test_what_groups_in_files_cannot_do_says_so(files, frame, tmp_path):
    rows = rb.parquet(files)
    with pytest.raises(DataError, match=r'has no column "clinics".*Did you mean "clinic"'):
        rb.glm("size ~ age + (1 | clinics)", rows, family="normal")
    with pytest.raises(ModelError, match="cross"):
        rb.glm("size ~ age + (1 | clinic) + (1 | sex)", rows, family="normal")
    with pytest.raises(ModelError, match="keeps no checkpoint"):
        rb.glm("size ~ age + (1 | clinic)", rows, family="normal", checkpoint=tmp_path / "kept")
    with pytest.raises(DataError, match="keeps no checkpoint"):
        rb.RobustPoissonRegression().fit(rows, "visits", groups="clinic", checkpoint=tmp_path / "kept")
    with pytest.raises(DataError, match="groups is in memory, but the rows are in"):
        rb.RobustPoissonRegression().fit(rb.parquet(files, columns=["age"]), "visits", groups=frame["clinic"])
    assert not (tmp_path / "kept").exists()


def test_groups_on_a_cluster_are_refused_with_a_way_out(frame):
    dd = pytest.importorskip("dask.dataframe", reason="clusters need the distributed extra")
    rows = dd.from_pandas(frame, npartitions=2)
    with pytest.raises(DataError, match=r"effects of groups need rows in memory or in Parquet files.*to_parquet"):
        rb.glm("size ~ age + (1 | clinic)", rows, family="normal")
    with pytest.raises(DataError, match=r"effects of groups need rows in memory or in Parquet files.*to_parquet"):
        rb.RobustPoissonRegression().fit(rows[["age"]], rows["visits"], groups=rows["clinic"])


def test_a_disk_without_room_for_sorted_rows_is_one_line(files, monkeypatch):
    def full(*given):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(scratch.os, "posix_fallocate", full, raising=False)
    with pytest.raises(PersistError, match=r"cannot write .* MB to .*: No space left on device.*TMPDIR"):
        rb.glm("size ~ age + (1 | clinic)", rb.parquet(files), family="normal")
