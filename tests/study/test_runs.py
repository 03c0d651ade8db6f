"""Runs that stop go on; what is kept does not depend on how it was run; changed settings are refused."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from robustly.study import regressions, runs
from robustly.study.runs import Stopped, StudyError, Wanted


def silent(experiment, done, total):
    pass


def lines(folder, experiment="linear"):
    """All that is kept but the time it took."""
    return runs.read_lines(folder, experiment).drop(columns="seconds")


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Two repetitions, run through in one process."""
    folder = tmp_path_factory.mktemp("straight")
    runs.run_wanted(folder, Wanted(("linear",), 0, 2), 1, silent)
    return folder


def test_every_repetition_level_and_method_has_one_line(straight):
    found = lines(straight)
    assert len(found) == 2 * 14 * 2
    assert not found.duplicated(["variant", "level", "repetition", "method"]).any()
    assert tuple(runs.read_lines(straight, "linear")) == regressions.COLUMNS["linear"]


def test_two_processes_give_the_lines_of_one(straight, tmp_path):
    runs.run_wanted(tmp_path, Wanted(("linear",), 0, 2), 2, silent)
    pd.testing.assert_frame_equal(lines(tmp_path), lines(straight), rtol=1e-9)


def test_a_run_stopped_by_hand_goes_on_with_what_is_missing(straight, tmp_path, monkeypatch):
    def stop(experiment, done, total):
        if done == 9:
            raise KeyboardInterrupt

    wanted = Wanted(("linear",), 0, 2)
    with pytest.raises(Stopped, match=r"stopped at 9 of 28 parts of linear; .* same command again"):
        runs.run_wanted(tmp_path, wanted, 1, stop)
    assert lines(tmp_path).groupby(["variant", "level", "repetition"]).ngroups == 9
    ran = []
    work = runs.work
    monkeypatch.setattr(runs, "work", lambda task, *rest: ran.append(task) or work(task, *rest))
    runs.run_wanted(tmp_path, wanted, 1, silent)
    assert len(ran) == 28 - 9
    pd.testing.assert_frame_equal(lines(tmp_path), lines(straight))


def test_nothing_is_run_twice(straight, monkeypatch):
    monkeypatch.setattr(runs, "work", lambda *_: pytest.fail("a finished task was run again"))
    before = (straight / "linear.csv").read_bytes()
    runs.run_wanted(straight, Wanted(("linear",), 0, 2), 1, silent)
    assert (straight / "linear.csv").read_bytes() == before


def test_more_repetitions_go_on_from_those_that_are_there(straight, tmp_path):
    runs.run_wanted(tmp_path, Wanted(("linear",), 0, 1), 1, silent)
    runs.run_wanted(tmp_path, Wanted(("linear",), 0, 2), 1, silent)
    pd.testing.assert_frame_equal(lines(tmp_path), lines(straight))


def test_the_papers_own_designs_can_be_run_first_and_the_others_added(straight, tmp_path):
    runs.run_wanted(tmp_path, Wanted(("linear",), 0, 2, papers_only=True), 1, silent)
    runs.run_wanted(tmp_path, Wanted(("linear",), 0, 2), 1, silent)
    pd.testing.assert_frame_equal(lines(tmp_path), lines(straight))


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (Wanted(("linear",), 1, 2), r"begun with seed = 0, and this run asks for 1"),
        (Wanted(("linear",), 0, 1), r"repetitions of linear = 2, and this run asks for 1"),
    ],
)
def test_other_settings_in_the_same_folder_are_refused(straight, wanted, words):
    with pytest.raises(StudyError, match=words):
        runs.run_wanted(straight, wanted, 1, silent)


def test_another_version_of_the_package_is_refused(straight, tmp_path):
    settings = json.loads((straight / runs.SETTINGS).read_text()) | {"robustly": "0.0.1"}
    (tmp_path / runs.SETTINGS).write_text(json.dumps(settings))
    with pytest.raises(StudyError, match=r"robustly = 0\.0\.1"):
        runs.run_wanted(tmp_path, Wanted(("linear",), 0, 2), 1, silent)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("settings.json", "{", "settings.json cannot be read"),
        ("settings.json", "[]", "settings.json cannot be read"),
        ("linear.csv", "variant,level\nsd,one\n", "linear.csv cannot be read .* Delete it"),
        ("linear.csv", "", "linear.csv cannot be read .* Delete it"),
    ],
)
def test_damaged_files_are_named(tmp_path, name, text, words):
    runs.open_folder(tmp_path, Wanted(("linear",), 0, 1))
    (tmp_path / name).write_text(text)
    with pytest.raises(StudyError, match=words):
        runs.run_wanted(tmp_path, Wanted(("linear",), 0, 1), 1, silent)


def test_csv_files_of_someone_else_are_left_alone(tmp_path):
    (tmp_path / "linear.csv").write_text("mine\n1\n")
    with pytest.raises(StudyError, match=r"holds CSV files but no settings\.json"):
        runs.run_wanted(tmp_path, Wanted(("linear",), 0, 1), 1, silent)
    assert (tmp_path / "linear.csv").read_text() == "mine\n1\n"


def test_a_method_that_fails_is_kept_as_failed(tmp_path, monkeypatch):
    class Broken:
        def fit(self, X, y):
            raise ValueError("no\nluck")

    methods = (*regressions.METHODS["linear"], regressions.Method("broken", "broken", lambda b: Broken()))
    monkeypatch.setitem(regressions.METHODS, "linear", methods)
    runs.run_wanted(tmp_path, Wanted(("linear",), 0, 1), 1, silent)
    found = runs.read_lines(tmp_path, "linear")
    broken = found[found["method"] == "broken"]
    assert set(broken["outcome"]) == {"failed"}
    assert set(broken["failure"]) == {"ValueError: no luck"}
    assert broken["mse"].isna().all()
    assert found[found["method"] != "broken"]["mse"].notna().all()


def test_figures_that_are_not_finite_make_a_failed_line(monkeypatch):
    from robustly.study import metrics
    from robustly.study.simulate import Task

    monkeypatch.setattr(metrics, "predictive_l1", lambda *_: float("inf"))
    lines = regressions.run_regressions(Task("linear", "sd", 1.0, 0), 0)
    assert {line["outcome"] for line in lines} == {"failed"}
    assert {line["failure"] for line in lines} == {"RobustlyError: not finite: pL1"}
