"""Bad files and bad wishes: one clear line on stderr, exit code 2, nothing written."""

import os
import subprocess
import sys

import numpy as np
import pytest
from shell import robustly

GOOD = "y,x,g\n" + "".join(f"{i % 5},{i / 7:.3f},{'ab'[i % 2]}\n" for i in range(30))


def refused(done, *says):
    assert done.code == 2
    assert done.out == ""
    lines = done.err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("robustly: ")
    for text in says:
        assert text in lines[0]


@pytest.fixture
def good(tmp_path):
    (tmp_path / "good.csv").write_text(GOOD)
    return tmp_path / "good.csv"


FILES = {
    "empty.csv": (b"", ["is empty"]),
    "header.csv": (b"y,x\n", ["has a header but no rows"]),
    "blank.csv": (b"\n\n\n", ["no columns"]),
    "picture.csv": (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(range(256)), ["binary file"]),
    "not.parquet": (b"PAR1 but not really", ["cannot be read as Parquet"]),
    "half.csv.gz": (b"\x1f\x8b\x08\x00broken", ["cannot be read as a table"]),
    "semicolons.csv": (GOOD.replace(",", ";").encode(), ["seems to use semicolons", "--delimiter ';'"]),
    "tabs.csv": (GOOD.replace(",", "\t").encode(), ["seems to use tabs", "--delimiter '\\t'"]),
    "commas.tsv": (GOOD.encode(), ["seems to use commas", "--delimiter ','"]),
    "twice.csv": (b"y,x,x\n1,2,3\n2,3,4\n", ['columns "x" more than once']),
    "nameless.csv": (b"y,,\n1,2,3\n2,3,4\n", ["2 columns without a name"]),
    "ragged.csv": (b"y,x\n1,2\n2,3,4\n3,4\n", ["line 3 has 3 fields, but the header has 2"]),
    "longer.csv": (b"y,x\n1,2,3\n2,3,4\n3,4,5\n", ["longer.csv", "header"]),
    "latin.csv": ("y,x,café\n1,2,3\n".encode("latin-1"), ["not utf-8", "0xe9", "--encoding latin-1"]),
    "word.csv": (b"y,x\n1,2\n2,abc\n3,4\n4,5\n", ['column "x" holds "abc" in row 1 (line 3)', "C(x)"]),
    "unique.csv": (
        ("y,x\n" + "".join(f"{i % 3},code{i}\n" for i in range(40))).encode(),
        ['holds "code0" in row 0 (line 2)', "40 different words"],
    ),
    "commas.csv": (
        ("y;x\n" + "".join(f'"{i % 3}";"{i},5"\n' for i in range(40))).replace(";", ",").encode(),
        ["--decimal ','"],
    ),
    "missing.csv": (b"y,x\n1,2\n2,\n3,4\n", ['column "x" holds a missing value in row 1 (line 3)']),
    "negative.csv": (b"y,x\n1,2\n-2,3\n3,4\n", ["holds -2.0 in row 1 (line 3)"]),
    "infinite.csv": (b"y,x\n1,2\n2,inf\n3,4\n", ['"x"', "in row 1 (line 3)"]),
    "answer.csv": (
        b"y,x\n1,2\nmany,3\n3,4\n",
        ['column "y" holds "many" in row 1 (line 3)', "Poisson() needs numbers"],
    ),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("command", ["fit", "outliers"])
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path, capfd, name, command):
    content, says = FILES[name]
    (tmp_path / name).write_bytes(content)
    before = sorted(tmp_path.iterdir())
    out = ["--report", tmp_path / "page.html"] if command == "fit" else ["--out", tmp_path / "rows.csv"]
    refused(robustly(capfd, command, tmp_path / name, "y ~ x", *out), name, *says)
    assert sorted(tmp_path.iterdir()) == before


def test_the_file_is_read_once_it_is_told_how(tmp_path, capfd):
    (tmp_path / "semicolons.csv").write_text(GOOD.replace(",", ";"))
    assert robustly(capfd, "fit", tmp_path / "semicolons.csv", "y ~ x", "--delimiter", ";", "--json").code == 0
    (tmp_path / "decimal.csv").write_text(GOOD.replace(",", ";").replace(".", ","))
    asked = ("fit", tmp_path / "decimal.csv", "y ~ x", "--delimiter", ";", "--json")
    refused(robustly(capfd, *asked), "--decimal ','")
    assert robustly(capfd, *asked, "--decimal", ",").code == 0
    (tmp_path / "latin.csv").write_bytes(GOOD.replace("g\n", "café\n", 1).encode("latin-1"))
    assert robustly(capfd, "fit", tmp_path / "latin.csv", "y ~ x + café", "--encoding", "latin-1", "--json").code == 0


@pytest.mark.parametrize(
    ("formula", "says"),
    [
        ("y ~ xx", ['"xx"', 'Did you mean "x"?']),
        ("yy ~ x", ['"yy"', 'Did you mean "y"?']),
        ("y ~ log(gg)", ['"gg"', 'Did you mean "g"?']),
        ("y ~ x + (", ["cannot be read"]),
        ("y ~ x +* g", ["cannot be read"]),
        ("y", ["no response"]),
        ("y ~ log(g)", ['column "g" holds "a" in row 0 (line 2)', "numbers are needed"]),
        ("y ~ offset(g)", ['column "g" holds "a" in row 0 (line 2)']),
        ("y ~ offset(x", ["closing bracket"]),
    ],
)
def test_a_slip_in_the_formula_names_what_was_meant(good, capfd, formula, says):
    refused(robustly(capfd, "fit", good, formula), *says)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--family", "poison"], ['no family "poison"', 'Did you mean "poisson"?']),
        (["--weights", "w"], ['weights names a column "w"']),
        (["--weights", "g"], ['column "g" holds "a" in row 0 (line 2)', "weights are numbers"]),
        (["--exposure", "x"], ["exposure holds 0.0 in row 0 (line 2)"]),
        (["--local", "label"], ["0/1 responses"]),
        (["--fdr", "2"], ["between 0 and 1"]),
        (["--prior", "student_t", "--dof", "many"], ["--dof is a number above 0"]),
        (["--alpha", "-1"], ["ridge penalty"]),
        (["--delimiter", "ab"], ["one character"]),
        (["--decimal", ","], ["other than the delimiter"]),
        (["--encoding", "nonsense"], ["no encoding 'nonsense'"]),
    ],
)
def test_a_wish_that_cannot_be_met_says_so(good, capfd, options, says):
    refused(robustly(capfd, "fit", good, "y ~ x", *options), *says)


def test_a_response_of_many_words_is_no_yes_or_no(tmp_path, capfd):
    (tmp_path / "three.csv").write_text("y,x\n" + "".join(f"{'abc'[i % 3]},{i}\n" for i in range(12)))
    refused(
        robustly(capfd, "fit", tmp_path / "three.csv", "y ~ x", "--family", "bernoulli"),
        "3 classes",
        '"a", "b" and "c"',
    )


def test_a_missing_file_has_a_neighbour_of_nearly_that_name(good, capfd):
    refused(robustly(capfd, "fit", good.with_name("god.csv"), "y ~ x"), "there is no file", 'Did you mean "good.csv"?')
    refused(robustly(capfd, "fit", good.parent, "y ~ x"), "is a folder")


@pytest.mark.parametrize("option", ["--report", "--save"])
def test_an_output_that_cannot_be_written_is_told_before_the_fit(good, capfd, option):
    refused(robustly(capfd, "fit", good, "y ~ x", option, good.parent / "no" / "file"), "there is no folder")
    refused(robustly(capfd, "fit", good, "y ~ x", option, good.parent), "it is a folder")
    refused(robustly(capfd, "fit", good, "y ~ x", option, good / "file"), "there is no folder")
    assert [path.name for path in good.parent.iterdir()] == ["good.csv"]


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs Linux's /proc, where not even root can make files")
def test_a_folder_that_is_not_writable_is_told(good, capfd):
    for command, option in (("fit", "--report"), ("fit", "--save"), ("outliers", "--out")):
        refused(robustly(capfd, command, good, "y ~ x", option, "/proc/self/file"), "cannot write /proc/self/file")


def test_data_are_never_written_over(good, model, capfd):
    for args in (
        ("fit", good, "y ~ x", "--report", good),
        ("fit", good, "y ~ x", "--save", good.parent / "." / "good.csv"),
        ("outliers", good, "y ~ x", "--out", good),
        ("predict", model, good, "--out", good),
        ("predict", model, good, "--out", model),
    ):
        refused(robustly(capfd, *args), "it is the file that is read")
    assert good.read_text() == GOOD


def test_an_old_file_survives_a_run_that_fails(good, tmp_path, capfd):
    page = tmp_path / "page.html"
    page.write_text("old")
    refused(robustly(capfd, "fit", good, "y ~ xx", "--report", page))
    assert page.read_text() == "old"


@pytest.fixture
def model(good, capfd):
    path = good.with_name("model")
    assert robustly(capfd, "fit", good, "y ~ x + g", "--save", path, "--json").code == 0
    return path


def test_new_rows_that_do_not_fit_the_model_are_named(model, tmp_path, capfd):
    new = tmp_path / "new.csv"
    for text, says in (
        ("x,g\n1,a\n2,z\n", ['column "g" holds "z" in row 1 (line 3)', "not there when the model was fitted"]),
        ("x\n1\n", ['"g", which is not in the data']),
        ("x,g\n1,a\nwhat,b\n", ['column "x" holds "what" in row 1 (line 3)']),
        ("x,g\n1,a\n,b\n", ['column "x" holds a missing value in row 1 (line 3)']),
        ("x;g\n1;a\n", ["seems to use semicolons"]),
    ):
        new.write_text(text)
        out = tmp_path / "pred.csv"
        refused(robustly(capfd, "predict", model, new, "--out", out), "new.csv", *says)
        assert not out.exists()
    refused(robustly(capfd, "predict", model, new, "--interval", 1.5), "between 0 and 1")
    refused(robustly(capfd, "predict", model, new, "--out", tmp_path / "no" / "p.csv"), "there is no folder")


def test_a_model_that_is_none_is_told(good, tmp_path, capfd):
    refused(robustly(capfd, "predict", good, good), "was not written by robustly")
    refused(robustly(capfd, "predict", tmp_path / "none", good), "there is no file")
    from robustly import conjugate

    conjugate.GammaPoisson().fit(np.array([0, 3, 1, 9, 2, 0, 4])).save(tmp_path / "pair")
    refused(robustly(capfd, "predict", tmp_path / "pair", good), "not a regression")


def test_the_installed_command_ends_the_same_way(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "robustly.cli", "fit", str(tmp_path / "none.csv"), "y ~ x"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("robustly: there is no file")
    assert len(done.stderr.splitlines()) == 1
