"""Does the benchmark harness report what happened? No claim about time is made here."""

import importlib
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import problems, run, speed, table  # noqa: E402
from benchmarks.declare import Comparison, Target, discover  # noqa: E402
from benchmarks.judge import describe, errors, judge, ratios, regressions  # noqa: E402
from benchmarks.measure import measure, run_entry, without_paths  # noqa: E402


def ok(**values):
    estimates = values.pop("estimates", {})
    return {"status": "ok", "estimates": estimates, **values}


FAILED = {"status": "failed", "why": "ValueError: no"}
COMPARISON = Comparison("pair", "A pair", "counts", "ours", ("theirs",))


@pytest.fixture
def rivals(tmp_path, monkeypatch):
    """A package of rivals written for one test; returns a function that adds one."""
    package = f"rivals_of_{tmp_path.name}"
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))

    def add(name, text):
        (tmp_path / package / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return package

    return add


def run_one(package, name, tmp_path, timeout=60):
    problem = problems.make("counts", n=50)
    np.savez(tmp_path / "data.npz", **problem.data)
    return run_entry(name, problem, tmp_path / "data.npz", 2, timeout, tmp_path, package=package)


def test_a_rival_that_answers_is_measured_cold_and_warm_with_its_estimates(rivals, tmp_path):
    package = rivals("mean", "SOLVES = ('counts',)\ndef fit(problem): return {'rate': problem.data['y'].mean()}")
    found = run_one(package, "mean", tmp_path)
    assert found["status"] == "ok"
    assert found["estimates"]["rate"] == problems.make("counts", n=50).data["y"].mean()
    assert {"cold", "first", "warm", "peak_mb", "extra_mb", "beyond_data_mb"} <= found.keys()


def test_a_rival_that_raises_is_reported_as_failed_with_its_message(rivals, tmp_path):
    package = rivals("broken", "SOLVES = ('counts',)\ndef fit(problem): raise ValueError('singular')")
    assert run_one(package, "broken", tmp_path) == {"status": "failed", "why": "ValueError: singular"}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("import os; os._exit(3)", "process ended with 3"),
        ("import time; time.sleep(60)", "no answer after 2 s"),
    ],
)
def test_a_rival_whose_process_dies_or_hangs_is_reported_as_failed(rivals, tmp_path, body, reason):
    package = rivals("gone", f"SOLVES = ('counts',)\ndef fit(problem):\n    {body}")
    found = run_one(package, "gone", tmp_path, timeout=2)
    assert found["status"] == "failed"
    assert reason in found["why"]


def test_a_rival_that_cannot_be_imported_is_reported_as_failed(rivals, tmp_path):
    package = rivals("unreadable", "raise OSError('damaged')")
    assert run_one(package, "unreadable", tmp_path) == {"status": "failed", "why": "OSError: damaged"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SOLVES = ('counts',)\nPACKAGES = ('no_such_package',)", "no_such_package is not installed"),
        ("SOLVES = ('logistic',)", "does not solve counts"),
    ],
)
def test_a_rival_that_cannot_run_here_is_absent_with_the_reason(rivals, tmp_path, text, reason):
    found = run_one(rivals("elsewhere", text), "elsewhere", tmp_path)
    assert found["status"] == "absent"
    assert reason in found["why"]


def test_without_r_its_rivals_are_absent(monkeypatch):
    from benchmarks import measure as module
    from benchmarks.rivals import lme4_glmer

    module._absent_in_r.cache_clear()
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    assert module.absent(lme4_glmer) == "Rscript is not on the path"
    module._absent_in_r.cache_clear()


def test_the_clock_of_the_rival_replaces_ours_when_it_has_one(rivals, tmp_path):
    package = rivals("own_clock", "SOLVES = ('counts',)\ndef fit(problem): return {'seconds': 123.0}")
    importlib.import_module(package)
    spec = {"module": f"{package}.own_clock", "warm_fits": 1, "started": 0.0}
    assert measure(spec)["warm"] == 123.0


def test_ratios_are_taken_pair_by_pair_and_skip_pairs_with_a_missing_half():
    theirs = [ok(warm=10.0), ok(warm=30.0), FAILED]
    ours = [ok(warm=1.0), ok(warm=2.0), ok(warm=1.0)]
    assert ratios(theirs, ours, "warm") == [10.0, 15.0]


@pytest.mark.parametrize(
    ("target", "median", "met"),
    [
        (Target("faster", "warm", at_least=10, versus="theirs"), 12.5, True),
        (Target("faster", "warm", at_least=13, versus="theirs"), 12.5, False),
        (Target("not slower", "cold", at_most=1.5, versus="theirs"), 0.75, True),
        (Target("passes", "passes", at_most=7), 8.0, False),
    ],
)
def test_a_target_is_judged_by_the_median(target, median, met):
    runs = {
        "ours": [ok(warm=1.0, cold=1.0, estimates={"passes": 8}), ok(warm=2.0, cold=2.0, estimates={"passes": 8})],
        "theirs": [ok(warm=10.0, cold=2.0), ok(warm=30.0, cold=2.0)],
    }
    verdict = judge(target, COMPARISON, runs)
    assert verdict["found"]["median"] == median
    assert verdict["met"] is met


def test_a_target_against_a_failed_rival_is_not_computed_and_says_why():
    target = Target("faster", "warm", at_least=10, versus="theirs")
    verdict = judge(target, COMPARISON, {"ours": [ok(warm=1.0)], "theirs": [FAILED]})
    assert verdict["met"] is None
    assert verdict["why"] == "theirs failed: ValueError: no"


def test_a_target_has_one_limit():
    with pytest.raises(ValueError, match="either at_most or at_least"):
        Target("unlimited", "warm")


def test_errors_are_the_largest_difference_and_a_wrong_shape_shows():
    found = errors(
        {"w": [1.0, 2.5], "loc": 1.0, "scale": [1.0, 2.0]}, {"w": np.array([1.0, 2.0]), "loc": 1.5, "scale": 1}
    )
    assert found["w"] == found["loc"] == 0.5
    assert math.isnan(found["scale"])


def test_the_page_shows_target_and_found_side_by_side_and_every_failure(tmp_path):
    runs = {"ours": [ok(cold=2.0, warm=1.0, estimates={"rate": 0.4})] * 2, "theirs": [FAILED]}
    target = Target("cold ≤ 3 s", "cold", at_most=3)
    result = {
        "name": "pair",
        "title": "A pair",
        "problem": "counts",
        "sizes": {"n": 50},
        "ours": "ours",
        "targets": [judge(target, COMPARISON, runs), judge(Target("r", "x", at_most=1), COMPARISON, runs)],
        "entries": describe(COMPARISON, runs, {"rate": 0.3}, {}),
        "cores": 2,
        "versions": {"python": "3.12"},
    }
    run.write(tmp_path, [result], ["pair", "not yet run"])
    assert json.loads((tmp_path / "pair.json").read_text(encoding="utf-8"))["entries"]["theirs"] == FAILED
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert page == table.page([result])
    assert "| pair | n = 50 | cold ≤ 3 s | 2 (2–2) | met |" in page
    assert "| no entry reported x | not computed |" in page
    assert "| theirs | failed: ValueError: no |" in page
    assert "rate 1.0e-01" in page


def test_entries_take_turns_and_one_that_failed_is_not_asked_again(monkeypatch):
    asked = []

    def record(entry, *rest):
        asked.append(entry)
        return FAILED if entry == "theirs" else ok(cold=1.0)

    monkeypatch.setattr(run, "run_entry", record)
    comparison = Comparison("pair", "A pair", "counts", "ours", ("theirs", "others"))
    runs, _ = run.interleave(comparison, {"n": 10}, 2)
    assert asked == ["ours", "theirs", "others", "ours", "others"]
    assert [len(runs[entry]) for entry in comparison.entries] == [2, 1, 2]


def test_a_kept_cache_is_filled_by_a_run_that_does_not_count(monkeypatch):
    folders = []

    def record(entry, problem, data_file, warm_fits, timeout, compiled):
        folders.append(compiled)
        return ok(cold=float(len(folders)))

    monkeypatch.setattr(run, "run_entry", record)
    runs, _ = run.interleave(Comparison("one", "One", None, "ours", cache="kept"), {}, 2)
    assert len(set(folders)) == 1
    assert [record["cold"] for record in runs["ours"]] == [2.0, 3.0]


def test_published_messages_hold_no_folders():
    assert without_paths("OSError: /home/someone/.venv/lib/x.py is gone; see https://a.org/b/c") == (
        "OSError: …/x.py is gone; see https://a.org/b/c"
    )


@pytest.mark.parametrize("name", sorted(set(problems.PROBLEMS) - {"quine"}))
def test_a_simulated_problem_is_the_same_for_the_same_seed_only(name):
    first, again, other = (problems.make(name, n=40, seed=seed).data["y"] for seed in (3, 3, 4))
    assert len(first) == 40
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    "name", sorted(set(problems.PROBLEMS) - {"logistic", "t_mixture", "wide_dense", "wide_sparse"})
)
def test_scipy_comes_near_what_is_known_of_every_problem_it_solves(name):
    from benchmarks.rivals import scipy_direct

    problem = problems.make(name) if name == "quine" else problems.make(name, n=2000)
    estimates = scipy_direct.fit(problem)
    # Fixed seeds, so no false alarms: the worst of these is a dof, off by some 10 %.
    for value, error in ((problem.truth[key], error) for key, error in errors(estimates, problem.truth).items()):
        assert error < 0.2 * max(1.0, float(np.max(np.abs(value))))
    assert all(error < 1e-4 for error in errors(estimates, problem.reference).values())


def test_an_unknown_problem_is_refused_with_the_names_there_are():
    with pytest.raises(KeyError, match="poisson_lognormal"):
        problems.make("poison")


def test_every_declared_comparison_names_entries_problems_and_rivals_that_exist():
    found = discover()
    assert {"core_poisson_small", "core_poisson_large", "core_posterior", "core_import"} <= found.keys()
    for comparison in found.values():
        assert comparison.problem is None or comparison.problem in problems.PROBLEMS
        for entry in comparison.entries:
            assert callable(importlib.import_module(f"benchmarks.rivals.{entry}").fit)
        for target in comparison.targets:
            assert target.versus is None or target.versus in comparison.rivals


def test_two_comparisons_of_one_name_are_refused(tmp_path, monkeypatch):
    package = tmp_path / "twice_declared"
    package.mkdir()
    (package / "__init__.py").write_text("")
    text = "from benchmarks.declare import Comparison\nCOMPARISONS = [Comparison('same', 'Same', None, 'ours')]\n"
    (package / "one.py").write_text(text)
    (package / "two.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match="two comparisons are called 'same'; rename the one in two"):
        discover("twice_declared")


def test_a_ratio_to_a_rival_that_grew_by_a_third_is_a_regression():
    def results(cold, warm):
        entries = {"ours": {}, "rival": {"cold_over_ours": {"median": cold}, "warm_over_ours": {"median": warm}}}
        return [{"name": "counts", "entries": entries}]

    assert regressions(results(2.0, 4.0), results(1.9, 3.3)) == []
    assert regressions([], results(1.0, 1.0)) == []
    assert regressions(results(2.0, 4.0), results(2.0, 2.0)) == ["counts: warm 0.5 × rival, and 0.25 × before"]


def test_the_speed_page_says_where_another_program_is_faster():
    entries = {
        "robustly_glm": {"status": "ok"},
        "slow_one": {"status": "ok", "cold_over_ours": {"median": 2.0}, "warm_over_ours": {"median": 4.0}},
        "fast_one": {"status": "ok", "cold_over_ours": {"median": 0.5}, "warm_over_ours": {"median": 0.25}},
        "gone": {"status": "absent", "why": "not installed"},
    }
    page = speed.page([{"title": "Counts", "sizes": {"n": 1000}, "ours": "robustly_glm", "entries": entries}])
    assert "| Counts | n = 1,000 | slow one | 0.5 | 0.25 |" in page
    assert "Counts (n = 1,000): fast one takes 0.25 of our time." in page
    assert "gone" not in page
