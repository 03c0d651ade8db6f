"""``robustly fit`` of a folder and a pattern of Parquet files, and what it says where nothing answers."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import robustly as rb
from robustly.cli import stored
from robustly.cli.stored import StoredFit
from robustly.errors import DataError


@pytest.fixture
def frame(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=300)})
    frame["y"] = frame["x"] + rng.standard_t(2, 300)
    (tmp_path / "rows").mkdir()
    frame[:100].to_parquet("rows/1.parquet")
    frame[100:].to_parquet("rows/2.parquet")
    return frame


def asked(path, **options):
    return StoredFit(path, "y ~ x", "normal", {"alpha": 0.0}, "auto", "normal", "fit", 0.05, 100, **options)


def test_a_pattern_is_fitted_as_its_rows_are_in_memory(frame, tmp_path, capsys):
    request = asked(tmp_path / "rows" / "*.parquet", checkpoint=tmp_path / "kept")
    assert request.is_needed
    request.run(save=None, as_json=True)
    told = json.loads(capsys.readouterr().out)
    known = rb.glm("y ~ x", frame, family="normal", dof=None)
    assert told["rows"] == 300
    assert told["robust"]["coefficients"]["x"]["estimate"] == pytest.approx(known.coefficients["x"], rel=1e-8)
    assert told["outliers"] == known.outliers().tolist()


def test_groups_of_rows_in_files_have_their_effects(frame, tmp_path, capsys):
    """The bars of a formula were left out without a word."""
    frame["g"] = np.arange(300) % 12
    frame["y"] += np.random.default_rng(1).normal(size=12)[frame["g"]]
    for place, part in enumerate((frame[:100], frame[100:]), start=1):
        part.to_parquet(f"rows/{place}.parquet")
    request = replace(asked(tmp_path / "rows", checkpoint=tmp_path / "kept"), formula="y ~ x + (1 | g)")
    request.run(save=None, as_json=True)
    told = json.loads(capsys.readouterr().out)
    known = rb.glm("y ~ x + (1 | g)", frame, family="normal")
    assert told["rows"] == 300
    assert told["mixed"]["log likelihood"] == pytest.approx(known.log_likelihood, rel=1e-10)
    assert told["mixed"]["coefficients"]["x"]["estimate"] == pytest.approx(known.coefficients["x"], rel=1e-8)
    request.run(save=None, as_json=False)
    assert "groups of g do not belong" in capsys.readouterr().out


def test_a_scheduler_that_does_not_answer_is_one_line(frame, tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "PATIENCE", "1s")
    with pytest.raises(DataError, match=r"the scheduler at tcp://127\.0\.0\.1:9 does not answer"):
        asked(tmp_path / "rows", scheduler="tcp://127.0.0.1:9").run(save=None, as_json=True)
