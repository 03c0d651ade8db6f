"""Tables come as they come: by a pipe, packed, in other encodings and formats, with gaps."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pandas as pd
import pytest
from shell import robustly

from robustly import __version__
from robustly.rows.files import read_table

FORMULA = "visits ~ age"


@pytest.fixture(scope="module")
def expected(clinic, tmp_path_factory):
    path = tmp_path_factory.mktemp("plain") / "clinic.csv"
    clinic.to_csv(path, index=False)
    return read_table(path).frame


def same(found, expected):
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)


@pytest.mark.parametrize("packed", [False, True])
def test_standard_input_is_a_table(clinic, expected, packed, monkeypatch, tmp_path):
    text = clinic.to_csv(index=False).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(text) if packed else text)))
    table = read_table(Path("-"))
    same(table.frame, expected)
    assert str(table.path) == "standard input"
    assert table.line(0) == 2


def test_a_pipe_is_read_once(clinic, expected, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(clinic.to_csv(index=False).encode()))
    writer.start()
    same(read_table(pipe).frame, expected)
    writer.join()


def test_packed_tables_and_json_lines(clinic, expected, tmp_path):
    clinic.to_csv(tmp_path / "clinic.csv.gz", index=False)
    same(read_table(tmp_path / "clinic.csv.gz").frame, expected)
    clinic.to_json(tmp_path / "clinic.jsonl", orient="records", lines=True, double_precision=15)
    same(read_table(tmp_path / "clinic.jsonl").frame, expected)


def test_excel_sheets_are_tables_or_say_what_is_missing(clinic, expected, tmp_path, capfd):
    path = tmp_path / "clinic.xlsx"
    try:
        clinic.to_excel(path, index=False)
    except ImportError:
        path.write_bytes(b"PK\x03\x04 a sheet")
        done = robustly(capfd, "fit", path, FORMULA)
        assert done.code == 2
        assert "pip install openpyxl" in done.err
        return
    same(read_table(path).frame, expected)


def test_utf_16_is_read_with_its_encoding_and_named_without(clinic, expected, tmp_path, capfd):
    path = tmp_path / "clinic.csv"
    clinic.to_csv(path, index=False, encoding="utf-16")
    same(read_table(path, encoding="utf-16").frame, expected)
    done = robustly(capfd, "fit", path, FORMULA)
    assert done.code == 2
    assert "is UTF-16 text. Add --encoding utf-16" in done.err


def test_the_version_is_printed(capfd):
    done = robustly(capfd, "--version")
    assert (done.code, done.out.strip()) == (0, f"robustly {__version__}")


def test_a_missing_file_is_named_before_anything_heavy_is_imported(tmp_path):
    script = (
        "import sys; sys.argv[1:] = ['fit', sys.argv[1], 'y ~ x']; from robustly.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 2\n"
        "heavy = {'jax', 'numpyro', 'pandas', 'scipy', 'matplotlib', 'sklearn', 'numba'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    (tmp_path / "clinic.csv").write_text("y,x\n1,2\n")
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "clnic.csv"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert 'Did you mean "clinic.csv"?' in done.stderr


def test_gaps_are_dropped_when_asked_and_lines_stay_those_of_the_file(clinic, tmp_path, capfd):
    holed = clinic.copy()
    holed.loc[[2, 5], "age"] = None
    path = tmp_path / "clinic.csv"
    holed.to_csv(path, index=False)
    done = robustly(capfd, "fit", path, FORMULA)
    assert done.code == 2
    assert 'column "age" holds a missing value in row 2 (line 4)' in done.err
    out = tmp_path / "odd.csv"
    done = robustly(capfd, "outliers", path, FORMULA, "--na", "drop", "--json", "--out", out)
    assert done.code == 0, done.err
    first = json.loads(done.out)["outliers"][0]
    assert (first["row"], first["line"], first["visits"]) == (7, 9, 400)
    assert {"group", "years", "ill"} <= set(pd.read_csv(out).columns)  # all their columns, not the formula's alone


def test_degrees_of_freedom_are_fitted_in_the_shell_too(clinic, tmp_path, capfd):
    path = tmp_path / "clinic.csv"
    clinic.to_csv(path, index=False)
    found = {}
    for dof in ("auto", "fit", "4"):
        done = robustly(capfd, "fit", path, "visits ~ age", "--family", "normal", "--dof", dof, "--json")
        found[dof] = json.loads(done.out)["robust"]["shared"]["dof"]
    assert found["auto"] == found["fit"] != found["4"] == 4.0


def test_intervals_of_the_mean_are_narrower_than_of_a_row(clinic, tmp_path, capfd):
    path, model = tmp_path / "clinic.csv", tmp_path / "model.robustly"
    clinic.to_csv(path, index=False)
    assert robustly(capfd, "fit", path, FORMULA, "--save", model).code == 0
    wide, narrow = (
        pd.read_csv(io.StringIO(robustly(capfd, "predict", model, path, "--interval-of", of).out))
        for of in ("response", "mean")
    )
    assert ((narrow["low"] < narrow["mean"]) & (narrow["mean"] < narrow["high"])).all()
    assert (narrow["high"] - narrow["low"]).mean() < (wide["high"] - wide["low"]).mean()
    assert robustly(capfd, "predict", model, path, "--interval-of", "row").code == 2
