"""Files that are broken and processes that are killed: the same answer, or one line that names the file."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import robustly as rb
from robustly.errors import DataError, PersistError
from robustly.fit import checkpoint as checkpoint_module

N = 600


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"a": rng.normal(size=N), "b": rng.normal(size=N)})
    frame["y"] = frame["a"] - 0.5 * frame["b"] + rng.standard_t(2, N)
    return frame


@pytest.fixture
def folder(frame, tmp_path):
    there = tmp_path / "rows"
    there.mkdir()
    frame[:200].to_parquet(there / "1.parquet")
    frame[200:].to_parquet(there / "2.parquet")
    return there


def fit(folder, **options):
    return rb.glm("y ~ a + b", rb.parquet(folder), family="normal", **options)


def test_a_folder_without_files_or_a_pattern_without_matches(tmp_path):
    with pytest.raises(DataError, match=r"holds no .parquet files"):
        rb.parquet(tmp_path)
    with pytest.raises(DataError, match="no file matches"):
        rb.parquet(tmp_path / "*.parquet")
    with pytest.raises(DataError, match="there is no file or folder"):
        rb.parquet(tmp_path / "rows.parquet")


def test_a_column_that_is_not_there(folder):
    with pytest.raises(DataError, match='no column "ab"; there are "a", "b" and "y"'):
        rb.parquet(folder, columns=["ab"])
    with pytest.raises(DataError, match='no column "z"'):
        rb.glm("y ~ z", rb.parquet(folder))
    with pytest.raises(DataError, match='no column "count"'):
        rb.RobustPoissonRegression().fit(rb.parquet(folder, columns=["a"]), "count")


def test_a_file_cut_short_is_named(folder):
    whole = (folder / "2.parquet").read_bytes()
    (folder / "2.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"2\.parquet cannot be read as Parquet.*Is it whole"):
        fit(folder)


def test_a_file_with_damaged_pages_is_named(folder):
    whole = bytearray((folder / "2.parquet").read_bytes())
    whole[4:400] = bytes(396)
    (folder / "2.parquet").write_bytes(whole)
    with pytest.raises(DataError, match=r"2\.parquet"):
        fit(folder)


def test_a_file_with_another_schema_is_named(folder, frame):
    frame[200:].rename(columns={"b": "c"}).to_parquet(folder / "2.parquet")
    with pytest.raises(DataError, match=r'2\.parquet has no column "b", which .*1\.parquet has'):
        fit(folder)
    frame[200:].astype({"b": str}).to_parquet(folder / "2.parquet")
    with pytest.raises(DataError, match=r'column "b" is text in .*2\.parquet, but float in .*1\.parquet'):
        fit(folder)


def test_whole_numbers_in_one_file_are_numbers(folder, frame):
    frame[200:].round().astype({"b": int}).to_parquet(folder / "2.parquet")
    both = pd.concat([frame[:200], frame[200:].round()])
    known = rb.glm("y ~ a + b", both, family="normal")
    np.testing.assert_allclose(fit(folder).coefficients, known.coefficients, rtol=1e-9)


def test_missing_values_are_named_by_file_and_row(folder, frame):
    holed = frame[200:].reset_index(drop=True)
    holed.loc[17, "b"] = None
    holed.to_parquet(folder / "2.parquet")
    with pytest.raises(DataError, match=r'2\.parquet: column "b" holds a missing value.* in row 17'):
        fit(folder)
    with pytest.raises(DataError, match=r'2\.parquet: column "b" holds a missing value.* in row 17'):
        rb.RobustLinearRegression().fit(rb.parquet(folder, columns=["a", "b"]), "y")


def test_a_response_without_probability_is_named_by_file_and_row(folder):
    with pytest.raises(DataError, match=r"1\.parquet: y holds -.* in row \d+"):
        rb.glm("y ~ a", rb.parquet(folder), family="poisson")


# ---------------------------------------------------------------------- checkpoints


def test_a_second_call_reads_the_passes_of_the_first(folder, tmp_path):
    first = fit(folder, checkpoint=tmp_path / "kept")
    passes = sorted((tmp_path / "kept").glob("pass-*.npz"))
    before = [(path.name, path.stat().st_mtime_ns) for path in passes]
    second = fit(folder, checkpoint=tmp_path / "kept")
    assert [(path.name, path.stat().st_mtime_ns) for path in passes] == before
    assert len(passes) > 3
    np.testing.assert_array_equal(first.vector, second.vector)
    np.testing.assert_allclose(first.evidence, second.evidence, rtol=1e-9)


def test_a_checkpoint_of_something_else_is_refused_by_name(folder, frame, tmp_path):
    kept = tmp_path / "kept"
    fit(folder, checkpoint=kept)
    with pytest.raises(PersistError, match="is of another model"):
        rb.glm("y ~ a", rb.parquet(folder), family="normal", checkpoint=kept)
    other = frame.copy()
    other.loc[5, "a"] += 1.0
    other.to_parquet(folder / "1.parquet")
    (folder / "2.parquet").unlink()
    with pytest.raises(PersistError, match="is of other data"):
        fit(folder, checkpoint=kept)
    head = json.loads((kept / "checkpoint.json").read_text())
    (kept / "checkpoint.json").write_text(json.dumps(head | {"version": "0.0.1"}))
    with pytest.raises(PersistError, match=r"made by robustly 0\.0\.1"):
        fit(folder, checkpoint=kept)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_bytes(b"")
    with pytest.raises(PersistError, match=r"no checkpoint folder: it holds cat\.png"):
        fit(folder, checkpoint=tmp_path / "photos")


def test_two_fits_do_not_share_a_folder(folder, tmp_path):
    kept, rows = tmp_path / "kept", fit(folder).source.design.rows
    with checkpoint_module.checkpointed(rows, kept, "a model"), pytest.raises(PersistError, match="in use by another"):
        fit(folder, checkpoint=kept)


def test_a_full_disk_stops_the_fit_and_loses_nothing(folder, tmp_path, monkeypatch):
    known = fit(folder)
    add, written = checkpoint_module.PassLog.add, []
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def disk_is_full_after_three(self, key, sums):
        if len(written) == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
        try:
            add(self, key, sums)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        written.append(self.path(self.next - 1).name)

    monkeypatch.setattr(checkpoint_module.PassLog, "add", disk_is_full_after_three)
    with pytest.raises(PersistError, match=r"cannot write .*pass-000003\.npz"):
        fit(folder, checkpoint=tmp_path / "kept")
    monkeypatch.undo()
    left = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert left == ["checkpoint.json", "in-use.lock", "pass-000000.npz", "pass-000001.npz", "pass-000002.npz"]
    np.testing.assert_allclose(fit(folder, checkpoint=tmp_path / "kept").estimates, known.estimates, rtol=1e-9)


def test_a_small_disk_that_is_full_stops_the_fit_and_loses_nothing(folder, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    # Four pages: the folder's head and three passes.
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", small]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("file systems may not be mounted here")
    try:
        with pytest.raises(PersistError, match=r"cannot write .*pass-00000\d\.npz: No space left"):
            fit(folder, checkpoint=small)
        left = sorted(small.glob("pass-*"))
        assert left
        for path in left:  # all that is there is whole
            with np.load(path, allow_pickle=False) as held:
                assert "key" in held.files
        subprocess.run(["mount", "-o", "remount,size=1m", small], check=True)
        found = fit(folder, checkpoint=small)
    finally:
        subprocess.run(["umount", small], check=True)
    np.testing.assert_allclose(found.estimates, fit(folder).estimates, rtol=1e-9)


KILLED = """
import os, signal, sys
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
rb.glm("y ~ a + b", rb.parquet(sys.argv[1]), family="normal", checkpoint=sys.argv[2])
"""


def test_a_killed_process_is_resumed_to_the_same_answer(folder, tmp_path):
    known = fit(folder)
    for done in (2, 4):
        killed = subprocess.run([sys.executable, "-c", KILLED, folder, tmp_path / "kept"], env=os.environ, check=False)
        assert killed.returncode == -signal.SIGKILL
        assert len(list((tmp_path / "kept").glob("pass-*.npz"))) == done
    found = fit(folder, checkpoint=tmp_path / "kept")
    np.testing.assert_allclose(found.estimates, known.estimates, rtol=1e-9)
    np.testing.assert_allclose(found.evidence, known.evidence, rtol=1e-9)
