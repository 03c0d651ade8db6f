"""Effects of groups whose rows stand anywhere in Parquet files or Dask partitions: the answers of the same rows in memory."""

from __future__ import annotations

import errno
import os
import signal
from functools import cache

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest

import robustly as rb
from robustly.errors import DataError, ModelError, PersistError, SupportError
from robustly.fit.checkpoint import PassLog
from robustly.rows import dask as dask_module
from robustly.rows import scratch, streamed
from robustly.testing import check_rows

N = 900


@cache
def make_frame():
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
def frame():
    return make_frame()


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


@cache
def in_memory(number):
    formula, asked = FORMULAS[number]
    return rb.glm(formula, make_frame(), **asked)


FORMULAS = [
    ("size ~ center(age) + sex + (1 | name)", {"family": "normal"}),
    ("size ~ age + (1 + age | clinic)", {"family": "normal", "weights": "times"}),
    ("size ~ age + (1 | clinic/ward)", {"family": "normal"}),
    ("visits ~ center(age) + sex + (1 | clinic)", {"family": "poisson", "exposure": "age"}),
    ("ill ~ center(age) + (1 | clinic)", {"family": "bernoulli", "group_law": "student_t", "group_dof": 4.0}),
    ("visits ~ center(age) + (1 | clinic)", {"family": "poisson", "group_law": "gamma"}),
    ("size ~ age + (1 | clinic)", {"family": "normal", "local": "dispersion"}),
]
SORTED = {"files": "sorted by it once, into temporary files", "partitions": "these were shuffled by it once"}


@pytest.fixture(params=["files", "partitions"])
def place(request):
    return request.param


@pytest.fixture
def rows(place, request, frame):
    """The same rows elsewhere."""
    if place == "files":
        return rb.parquet(request.getfixturevalue("files"))
    request.getfixturevalue("near")
    return dask_frame(frame, 3)


@pytest.mark.filterwarnings("ignore")  # Dask's own, of what it uses
@pytest.mark.parametrize("number", range(len(FORMULAS)))
def test_a_formula_with_groups_from_elsewhere_is_that_from_memory(number, place, rows, frame):
    (formula, asked), known = FORMULAS[number], in_memory(number)
    found = rb.glm(formula, rows, **asked)
    same(known, found)
    assert any(SORTED[place] in note for note in found.notes)
    np.testing.assert_allclose(found.predictive(frame[:20]).mean, known.predictive(frame[:20]).mean, rtol=1e-8)
    if "ward" in formula:
        pd.testing.assert_frame_equal(found.inner_group_effects, known.inner_group_effects, rtol=1e-7, atol=1e-8)


@pytest.mark.filterwarnings("ignore")
def test_rows_are_judged_in_the_order_of_the_data(rows):
    formula, asked = FORMULAS[-1]
    known, found = in_memory(len(FORMULAS) - 1), rb.glm(formula, rows, **asked)
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


@pytest.mark.filterwarnings("ignore")
def test_an_estimator_takes_groups_of_partitions(near, frame):
    known = rb.RobustPoissonRegression().fit(frame[["age"]], frame["visits"], groups=frame["name"])
    rows = dask_frame(frame, 4)
    found = rb.RobustPoissonRegression().fit(rows[["age"]], rows["visits"], groups=rows["name"])
    same(known.result_, found.result_)
    with pytest.raises(
        DataError, match=r'the groups "groups" are in partitions of 450, 450 rows, the rows in partitions of 225'
    ):
        rb.RobustPoissonRegression().fit(rows[["age"]], rows["visits"], groups=dask_frame(frame, 2)["name"])


def dask_frame(frame, partitions):
    return pytest.importorskip("dask.dataframe").from_pandas(frame, npartitions=partitions, sort=False)


@pytest.mark.filterwarnings("ignore")
def test_partitions_of_whole_groups_stay_as_they_are(near, frame):
    together = frame.sort_values("clinic", kind="stable", ignore_index=True)
    cut = int(np.searchsorted(together["clinic"], 17))
    dd = pytest.importorskip("dask.dataframe")
    whole = dd.concat([dd.from_pandas(part, npartitions=1) for part in (together[:cut], together[cut:])])
    formula, asked = FORMULAS[5]
    known, found = rb.glm(formula, together, **asked), rb.glm(formula, whole, **asked)
    same(known, found)
    assert found.notes == known.notes
    given = found.source.given
    assert given.kept.row_counts == (cut, N - cut)
    # The rows and the groups are stores like others.
    check_rows(given.design.rows, tuple(np.asarray(given.design.rows.column(j)) for j in range(4)))
    np.testing.assert_array_equal(given.design.y, together["visits"])
    np.testing.assert_array_equal(
        given.kept.take([3, 20]).data[2], together["visits"][together["clinic"].isin([3, 20])]
    )
    # Of rows that are sorted, but cut inside of a group, only that group's move.
    one_apart = rb.glm(formula, dask_frame(together, 3), **asked)
    same(known, one_apart)
    assert any("rows of 2 of 30 groups" in note for note in one_apart.notes)


def test_what_is_left_out_or_drawn_stays_on_the_workers(near, frame):
    formula, asked = FORMULAS[5]
    known, found = in_memory(5), rb.glm(formula, dask_frame(frame, 3), **asked)
    np.testing.assert_allclose(found.source.loo(), known.source.loo(), rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(found.source.influence(), known.source.influence(), rtol=1e-6, atol=1e-9)


# ---------------------------------------------------------------------- programs


def visits_by_clinic(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0.0, 10.0))
    level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(level + slope * (x - 50.0) / 8.0)), obs=y)


def sizes_by_clinic(x, y=None):
    level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(level + 0.1 * (x - 50.0), scale), obs=y)


def same_program(known, found):
    np.testing.assert_allclose(found.estimates, known.estimates, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(np.asarray(found.standard_errors), np.asarray(known.standard_errors), rtol=1e-8)
    np.testing.assert_allclose(np.asarray(found.evidence), known.evidence, rtol=1e-8, atol=1e-8)
    pd.testing.assert_frame_equal(found.group_effects, known.group_effects, rtol=1e-7, atol=1e-8)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("model", "y"), [(visits_by_clinic, "visits"), (sizes_by_clinic, "size")])
def test_a_program_localized_by_group_takes_rows_from_elsewhere(model, y, near, files, frame, tmp_path):
    robust = rb.localize(model, "level", by="clinic")
    known = robust.fit(frame["age"].to_numpy(), frame[y].to_numpy(), clinic=frame["clinic"].to_numpy())
    column = lambda name: rb.parquet(files, columns=name)
    found = robust.fit(column("age"), column(y), clinic=column("clinic"))
    same_program(known, found)
    np.testing.assert_array_equal(found.vector, known.vector)
    assert any("sorted by it once" in note for note in found.notes)
    rows = dask_frame(frame, 3)
    found = robust.fit(rows["age"], rows[y], clinic=rows["clinic"], checkpoint=tmp_path / "kept")
    same_program(known, found)
    assert any("shuffled by it once" in note for note in found.notes)
    assert type(found.evidence).__module__.startswith("dask")


@pytest.mark.filterwarnings("ignore")
def test_groups_as_units_keep_the_contract_of_a_store(client, files, frame):
    """The workers are processes here, to which the model of a group is sent."""
    robust, rows = rb.localize(sizes_by_clinic, "level", by="clinic"), dask_frame(frame, 3)
    here = {"x": frame["age"].to_numpy(), "y": frame["size"].to_numpy(), "clinic": frame["clinic"].to_numpy()}
    known = robust.fit(**here)
    same_program(known, robust.fit(rows["age"], rows["size"], clinic=rows["clinic"]))
    there = {"x": rb.parquet(files, columns="age"), "y": rb.parquet(files, columns="size"), "clinic": "clinic"}
    check_rows(robust.fit(**there).source.rows, known.source.rows.data)
    weighed = robust.fit(**here, weights=frame["times"].to_numpy())
    np.testing.assert_array_equal(robust.fit(**there, weights="times").vector, weighed.vector)


def test_what_programs_by_group_cannot_do_elsewhere_says_so(files, frame):
    column = lambda name: rb.parquet(files, columns=name)
    robust = rb.localize(sizes_by_clinic, "level", by="clinic")
    with pytest.raises(DataError, match="clinic is in memory, but the rows are in"):
        robust.fit(column("age"), column("size"), clinic=frame["clinic"])
    with pytest.raises(DataError, match=r"integrate\(\) needs rows in memory.*localize\(model, site, by="):
        rb.integrate(sizes_by_clinic, "level").fit(column("age"), column("size"))


# ---------------------------------------------------------------------- checkpoints


class Stopped(Exception):
    pass


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", ["memory", "files", "partitions"])
def test_a_grouped_fit_that_was_stopped_goes_on_to_the_same_answer(place, request, frame, tmp_path, monkeypatch):
    rows = frame if place == "memory" else request.getfixturevalue("rows")
    (formula, asked), known = FORMULAS[3], in_memory(3)
    add, run = PassLog.add, []

    def stopping(self, key, sums):
        if len(run) == 5:
            raise Stopped
        run.append(key)
        add(self, key, sums)

    monkeypatch.setattr(PassLog, "add", stopping)
    with pytest.raises(Stopped):
        rb.glm(formula, rows, **asked, checkpoint=tmp_path / "kept")
    assert len(list((tmp_path / "kept").glob("pass-*.npz"))) == 5
    again = []
    monkeypatch.setattr(PassLog, "add", lambda self, key, sums: (again.append(key), add(self, key, sums))[1])
    same(known, rb.glm(formula, rows, **asked, checkpoint=tmp_path / "kept"))
    passes = len(again)
    assert passes > 0
    assert len(list((tmp_path / "kept").glob("pass-*.npz"))) == 5 + passes
    # A third call finds all passes; other groups and other effects are refused.
    same(known, rb.glm(formula, rows, **asked, checkpoint=tmp_path / "kept"))
    assert len(again) == passes
    for other in ("(1 | ward)", "(1 + age | clinic)"):
        with pytest.raises(PersistError, match="is of another model"):
            rb.glm(formula.replace("(1 | clinic)", other), rows, **asked, checkpoint=tmp_path / "kept")


def test_an_estimator_keeps_passes_over_groups(frame, tmp_path):
    fit = lambda **more: rb.RobustPoissonRegression().fit(frame[["age"]], frame["visits"], groups=frame["name"], **more)
    known, kept = fit(), fit(checkpoint=tmp_path / "kept")
    assert list((tmp_path / "kept").glob("pass-*.npz"))
    np.testing.assert_array_equal(kept.coef_, known.coef_)


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


def test_what_groups_in_files_cannot_do_says_so(files, frame):
    rows = rb.parquet(files)
    with pytest.raises(DataError, match=r'has no column "clinics".*Did you mean "clinic"'):
        rb.glm("size ~ age + (1 | clinics)", rows, family="normal")
    with pytest.raises(ModelError, match="cross"):
        rb.glm("size ~ age + (1 | clinic) + (1 | sex)", rows, family="normal")
    with pytest.raises(DataError, match="groups is in memory, but the rows are in"):
        rb.RobustPoissonRegression().fit(rb.parquet(files, columns=["age"]), "visits", groups=frame["clinic"])


def test_a_disk_without_room_for_sorted_rows_is_one_line(files, monkeypatch):
    def full(*given):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(scratch.os, "posix_fallocate", full, raising=False)
    with pytest.raises(PersistError, match=r"cannot write .* MB to .*: No space left on device.*TMPDIR"):
        rb.glm("size ~ age + (1 | clinic)", rb.parquet(files), family="normal")


@pytest.mark.filterwarnings("ignore")
def test_a_bad_row_of_a_group_is_named_by_its_partition(near, frame):
    holed = frame.astype({"name": object})
    holed.loc[400, "name"] = None
    with pytest.raises(DataError, match=r'partition 1: the groups "name" have a missing value in row 100\.'):
        rb.glm("size ~ age + (1 | name)", dask_frame(holed, 3), family="normal")
    wrong = frame.copy()
    wrong.loc[500, "visits"] = -1
    with pytest.raises(SupportError, match=r"partition 1: y holds -1.* in row 200"):
        rb.glm("visits ~ age + (1 | clinic)", dask_frame(wrong, 3), family="poisson")
    with pytest.raises(ModelError, match="cross"):
        rb.glm("size ~ age + (1 | clinic) + (1 | sex)", dask_frame(frame, 3), family="normal")
    with pytest.raises(ModelError, match=r'local="contaminated" needs rows in memory or in files'):
        rb.glm("visits ~ age + (1 | clinic)", dask_frame(frame, 3), family="poisson", local="contaminated")


@pytest.mark.filterwarnings("ignore")
def test_a_worker_that_dies_after_the_shuffle_changes_nothing(client, frame, monkeypatch):
    waits, passes = dask_module.gathered, []

    def disturbed(cluster, futures):
        if isinstance(futures, list) and len(futures) == 2:  # sums and shapes: a pass is under way
            passes.append(len(passes))
            if len(passes) == 6:
                os.kill(next(iter(cluster.run(os.getpid).values())), signal.SIGKILL)
        return waits(cluster, futures)

    monkeypatch.setattr(dask_module, "gathered", disturbed)
    formula, asked = FORMULAS[5]
    found = rb.glm(formula, dask_frame(frame, 4), **asked)
    assert len(passes) >= 6
    same(in_memory(5), found)
