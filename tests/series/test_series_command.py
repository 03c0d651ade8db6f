"""``robustly series``: what it prints and writes, and what it refuses."""

import sys

import numpy as np
import pandas as pd
import pytest

import robustly as rb
from robustly.cli import main


@pytest.fixture
def run(capfd, monkeypatch):
    def command(*args):
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["robustly", "series", *map(str, args)])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capfd.readouterr()

    return command


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    values = 20.0 + rng.normal(size=48) + 3.0 * np.sin(np.arange(48) * np.pi / 2)
    values[30] += 15.0
    frame = pd.DataFrame({"month": pd.date_range("2020-01-01", periods=48, freq="MS"), "y": values, "word": "a"})
    frame.loc[10, "y"] = np.nan
    path = tmp_path / "sales.csv"
    frame.to_csv(path, index=False)
    return path


def test_a_season_an_outlier_a_forecast_and_a_page(run, table, tmp_path):
    page, kept = tmp_path / "page.html", tmp_path / "fit.robustly"
    code, out, err = run(table, "--value", "y", "--time", "month", "--seasonal", 4, "--localize", "irregular", "--steps", 4,
                         "--report", page, "--save", kept)  # fmt: skip
    assert code == 0, err
    assert "outliers: 2022-07-01" in out
    assert "2024-04-01" in out
    assert f"wrote {kept}" in out
    assert "2022-07-01" in page.read_text(encoding="utf-8")
    assert rb.load(kept).sites == ["irregular"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--value", "yy"], 'has "month", "y" and "word". Did you mean "y"?'),
        (["--value", "word"], "column \"word\" of"),
        (["--value", "y", "--time", "word"], "cannot be read as dates"),
        (["--value", "y", "--localize", "slope"], 'no disturbance "slope"'),
        (["--value", "y", "--report", "/nowhere/else/page.html", "--localize", "irregular"], "there is no folder"),
    ],
)  # fmt: skip
def test_bad_requests_are_one_line(run, table, args, words):
    code, _, err = run(table, *args)
    assert code == 2
    assert words.replace("has ", "") in err or words in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (
            pd.DataFrame({"t": [f"2015-{month:02d}" for month in (1, 2, 3, 4, 6, 7, 8, 9)], "y": np.arange(8.0)}),
            "not evenly spaced: step 4 (2015-06-01 00:00:00) does not follow 2015-04-01",
        ),
        (pd.DataFrame({"t": [1, 2, 3, 5, 6, 7, 8, 9], "y": np.arange(8.0)}), "not evenly spaced: step 3 (5) does not follow 3"),
        (pd.DataFrame({"t": range(8), "y": [1.0] * 8}), "the series is constant (1 at every step)"),
        (pd.DataFrame({"t": range(2), "y": [1.0, 2.0]}), "has 2 rows; a series needs more"),
        (pd.DataFrame({"t": range(8), "y": [np.nan] * 8}), "are missing"),
        (pd.DataFrame({"t": range(8), "y": ["1", "2", "x", "4", "5", "6", "7", "8"]}), "'x' in row 2, which is not a number"),
    ],
)  # fmt: skip
def test_bad_series_are_named(run, tmp_path, frame, words):
    path = tmp_path / "bad.csv"
    frame.to_csv(path, index=False)
    code, _, err = run(path, "--value", "y", "--time", "t")
    assert code == 2
    assert words in err
