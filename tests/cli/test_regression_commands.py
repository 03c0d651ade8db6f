"""fit, predict, compare and outliers: what they print, write and return."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from shell import robustly

import robustly as rb

FORMULA = "visits ~ age + group"


def test_fit_shows_both_models_and_the_row_that_moved_the_classical_one(table, clinic, capfd):
    done = robustly(capfd, "fit", table, FORMULA, "--exposure", "years")
    assert done.code == 0
    assert done.err == ""
    fit = rb.glm(FORMULA, clinic, family="poisson", exposure="years")
    line = next(line.split() for line in done.out.splitlines() if line.startswith("age"))
    plain = rb.glm(FORMULA, clinic, family="poisson", exposure="years", local=None)
    assert [float(one) for one in line[1:5]] == pytest.approx(
        [fit.coefficients["age"], fit.standard_errors["age"], plain.coefficients["age"], plain.standard_errors["age"]],
        rel=1e-3,
    )
    moved = done.out.splitlines()[
        done.out.splitlines().index(next(x for x in done.out.splitlines() if "rows that moved" in x)) + 2
    ]
    assert moved.split()[:2] == ["7", "9"]  # row 7 is line 9
    assert "rows count from 0; row 0 is line 2" in done.out
    assert "1 of 300 rows does not belong" in done.out


def test_json_is_one_object_of_finite_numbers_and_nothing_else(table, capfd):
    done = robustly(capfd, "fit", table, "ill ~ age", "--family", "bernoulli", "--local", "label", "--json")
    refuse = lambda text: pytest.fail(f"{text} is no JSON number")
    found = json.loads(done.out, parse_constant=refuse)
    assert done.out.count("\n") == 1
    assert found["rows"] == 300
    assert found["robust"]["outcome"]["converged"] is True
    assert set(found["robust"]["coefficients"]["age"]) == {"estimate", "standard error", "low", "high"}
    assert '"yes" counts as 1 and "no" as 0.' in found["robust"]["notes"]


def test_numbers_that_are_not_finite_become_null():
    from robustly.cli.terminal import finite

    assert finite(
        {"a": np.inf, "b": [np.nan, np.float64(2)], "c": np.int64(3), "d": pd.DataFrame({"x": [-np.inf]})}
    ) == {
        "a": None,
        "b": [None, 2.0],
        "c": 3,
        "d": [{"x": None}],
    }


def test_a_fit_that_does_not_end_well_is_shown_with_exit_code_1(tmp_path, capfd):
    (tmp_path / "split.csv").write_text("y,x\n0,2\n0,3\n0,4\n1,5\n1,6\n1,7\n")
    done = robustly(capfd, "fit", tmp_path / "split.csv", "y ~ x", "--family", "bernoulli", "--json")
    assert done.code == 1
    assert json.loads(done.out)["robust"]["outcome"]["kind"] == "separation"
    assert done.err.startswith("robustly: warning: separation")
    again = robustly(
        capfd, "fit", tmp_path / "split.csv", "y ~ x", "--family", "bernoulli", "--local", "none", "--alpha", 1
    )
    assert again.code == 0


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet", "csv.gz"])
def test_predictions_of_a_saved_model_are_those_of_the_fit(table, clinic, tmp_path, capfd, ending):
    model, new = tmp_path / "model.robustly", tmp_path / f"new.{ending}"
    formula = "visits ~ bs(age, df=4) + group + offset(log(years))"
    assert robustly(capfd, "fit", table, formula, "--save", model, "--json").code == 0
    some = clinic.drop(columns="visits").head(20)
    if ending == "parquet":
        some.to_parquet(new)
    else:
        some.to_csv(new, index=False, sep="\t" if ending == "tsv" else ",")
    out = tmp_path / "pred.csv"
    done = robustly(capfd, "predict", model, new, "--interval", 0.8, "--out", out)
    assert (done.code, done.out) == (0, "")
    assert "20 predictions" in done.err
    found = pd.read_csv(out)
    expected = rb.glm(formula, clinic, family="poisson").predictive(some)
    low, high = expected.interval(0.8)
    for name, values in (("mean", expected.mean), ("sd", expected.sd), ("low", low), ("high", high)):
        np.testing.assert_allclose(found[name], values, rtol=1e-9)
    if ending == "csv":
        assert robustly(capfd, "predict", model, new, "--interval", 0.8).out == out.read_text()


def test_yes_or_no_is_predicted_in_the_words_of_the_data(table, clinic, tmp_path, capfd):
    model = tmp_path / "model"
    robustly(capfd, "fit", table, "ill ~ age", "--family", "bernoulli", "--local", "label", "--save", model)
    done = robustly(capfd, "predict", model, table)
    assert done.code == 0
    found = pd.read_csv(table.parent / "clinic.csv").assign(
        given=[line.split(",")[-1] for line in done.out.splitlines()[1:]],
        probability=[float(line.split(",")[1]) for line in done.out.splitlines()[1:]],
    )
    assert set(found.given) == {"yes", "no"}
    assert ((found.probability > 0.5) == (found.given == "yes")).all()
    assert (found.given == found.ill).mean() > 0.7
    assert np.corrcoef(found.age, found.probability)[0, 1] > 0.9


def test_an_estimator_saved_from_python_predicts_too(table, clinic, tmp_path, capfd):
    model = rb.RobustPoissonRegression().fit(clinic[["age", "years"]], clinic["visits"])
    model.save(tmp_path / "model")
    done = robustly(capfd, "predict", tmp_path / "model", table)
    typical = [float(line.split(",")[2]) for line in done.out.splitlines()[1:]]
    np.testing.assert_allclose(typical, model.predict(clinic[["age", "years"]], kind="typical"), rtol=1e-12)


def test_compare_puts_the_best_prediction_first(table, capfd):
    done = robustly(capfd, "compare", table, "visits ~ age", "--exposure", "years", "--json")
    assert done.code == 0
    found = json.loads(done.out)
    loo = [model["LOO"] for model in found["models"]]
    assert loo == sorted(loo, reverse=True)
    names = [model["model"] for model in found["models"]]
    assert names[-1] == "classical"
    assert {"own log rate", "negative binomial"} < set(names)
    assert found["rows that moved the classical fit"][0]["row"] == 7
    assert robustly(capfd, "compare", table, "visits ~ age").out.splitlines()[0].endswith("best prediction first")


def test_outliers_are_listed_and_written_with_all_their_columns(table, clinic, tmp_path, capfd):
    out = tmp_path / "odd.csv"
    done = robustly(capfd, "outliers", table, FORMULA, "--exposure", "years", "--fdr", 0.05, "--out", out)
    assert done.code == 0
    found = pd.read_csv(out)
    assert list(found["row"]) == list(rb.glm(FORMULA, clinic, family="poisson", exposure="years").outliers(fdr=0.05))
    assert list(found["line"]) == [9]
    assert found.loc[0, "group"] == clinic.loc[7, "group"]
    assert "expected, robust" in found


def test_no_outliers_is_an_answer(tmp_path, capfd):
    rng = np.random.default_rng(1)
    pd.DataFrame({"y": rng.poisson(5, 50), "x": rng.normal(size=50)}).to_csv(tmp_path / "calm.csv", index=False)
    done = robustly(capfd, "outliers", tmp_path / "calm.csv", "y ~ x", "--fdr", 0.01)
    assert done.code == 0
    assert done.out == "No row of 50 stands out at a false discovery rate of 0.01.\n"


@pytest.mark.parametrize("width", [30, 60, 200])
def test_tables_fit_the_terminal(table, capfd, width):
    done = robustly(capfd, "fit", table, "visits ~ age", columns=width)
    block = done.out.split("coefficients\n")[1].split("•")[0]
    assert max(map(len, block.splitlines())) <= width
    assert ("moved (s.e.)" in block.splitlines()[0]) == (width > 60)


def test_hostile_names_reach_the_terminal_without_their_control_characters(tmp_path, capfd):
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"y": rng.poisson(5, 40), "[red]x[/red]\x1b[31m": rng.normal(size=40)})
    frame.to_csv(tmp_path / "odd.csv", index=False)
    done = robustly(capfd, "fit", tmp_path / "odd.csv", "y ~ `[red]x[/red]\x1b[31m`")
    assert done.code == 0
    assert "\x1b" not in done.out
    assert "[red]x[/red]�[31m" in done.out


def test_no_color_and_a_terminal_show_a_status_line_and_no_colours(table, tmp_path):
    script = f"import sys; sys.argv = ['robustly', 'fit', {str(table)!r}, 'visits ~ age']; from robustly.cli import main; main()"
    reads, writes = os.openpty()
    done = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=writes, timeout=120, check=False,
        env={**os.environ, "NO_COLOR": "1", "TERM": "xterm"},
    )  # fmt: skip
    os.close(writes)
    said = b""
    while True:
        try:
            block = os.read(reads, 65536)
        except OSError:  # Linux says so at the end of a terminal.
            break
        if not block:
            break
        said += block
    os.close(reads)
    assert done.returncode == 0
    assert "fitting …" in said.decode()
    assert re.search(r"pass \d+: [\d,]+ of [\d,]+ rows", said.decode())
    assert b"\x1b[3" not in said
    assert b"\x1b" not in done.stdout


def test_exit_codes_are_told(capfd):
    for command in ("fit", "predict", "compare", "outliers"):
        assert "Exit codes: 0" in robustly(capfd, command, "--help").out


def test_the_readme_shows_what_the_command_prints(tmp_path, capfd, monkeypatch):
    root = Path(__file__).parents[2]
    monkeypatch.chdir(tmp_path)
    block = re.search(
        r"^```python\n(.*?)^```", (root / "docs" / "tutorial.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    exec(block[1], {})  # the tutorial's first lines make clinic.csv
    told = re.search(r"^```\n\$ robustly (.*?)^```", (root / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)[
        1
    ]
    command, *lines = told.splitlines()
    done = robustly(capfd, *shlex.split(command))
    assert done.code == 0
    printed = [line.rstrip() for line in done.out.splitlines()]
    for line in lines:
        assert line in printed or line == "…"


@pytest.mark.parametrize("command", ["fit", "outliers", "compare"])
def test_the_formula_is_parsed_and_the_classical_model_fitted_once_a_command(
    command, table, capfd, monkeypatch, tmp_path
):
    import formulaic

    from robustly.glm.local import Classical
    from robustly.glm.regression import Regression

    parsed, fitted, parse, climb = [], [], formulaic.Formula, Regression.searched

    def counted_parse(text, *args, **kwargs):
        parsed.append(text)
        return parse(text, *args, **kwargs)

    def counted_climb(self, *args, **kwargs):
        # Fits without one of the rows are those of LOO.
        if self.plan.law == Classical(self.plan.law.family) and self.design.rows.weight.all():
            fitted.append(repr(self.plan.law.family))
        return climb(self, *args, **kwargs)

    monkeypatch.setattr(formulaic, "Formula", counted_parse)
    monkeypatch.setattr(Regression, "searched", counted_climb)
    # A text of its own: parsed formulas are kept from command to command within a process.
    formula = f"visits ~ {' ' * len(command)}age"
    more = ("--report", tmp_path / "page.html") if command == "fit" else ()
    done = robustly(capfd, command, table, formula, *more)
    assert done.code in (0, 1), done.err
    assert parsed == [formula]
    # The negative binomial among the rivals of `compare` is a classical model of its own.
    assert sorted(fitted) == (["NegativeBinomial()", "Poisson()"] if command == "compare" else ["Poisson()"])
