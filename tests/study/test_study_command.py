"""``robustly study`` from the shell: pictures, page, corpora, a stop by hand, and bad options told in one line."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser

import numpy as np
import pytest
from typer.testing import CliRunner

from robustly.cli import app
from robustly.study import topics
from robustly.study.experiments import run_study
from robustly.study.runs import read_lines
from robustly.topics import Corpus

HOSTILE = "<script>alert(1)<_script> & 'quotes' $x"


def study(*options):
    return CliRunner().invoke(app, ["study", *map(str, options)])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Forty short documents about two things, with words that come in bursts, in a file with a hostile name."""
    rng = np.random.default_rng(0)
    topic = rng.dirichlet(np.full(30, 0.1), 2)
    bent = [rng.dirichlet(20 * topic[d % 2] + 1e-6) for d in range(40)]
    path = tmp_path_factory.mktemp("corpora") / f"{HOSTILE}.ldac"
    return Corpus.from_matrix(np.array([rng.multinomial(60, p) for p in bent])).write(path)


@pytest.fixture(scope="module")
def small(tmp_path_factory, corpus):
    """A study of two experiments with few repetitions, in one folder."""
    out = tmp_path_factory.mktemp("study")
    first = study("linear", "--reps", 3, "--jobs", 1, "--out", out)
    second = study("topics", "--reps", 3, "--jobs", 1, "--out", out, "--corpus", corpus, "--topics", "2,4")
    return out, first, second


def test_figures_page_and_lines_are_written(small):
    out, first, second = small
    assert first.exit_code == 0, first.output
    assert second.exit_code == 0, second.output
    assert "5.1, linear" in second.output
    assert "5.2" in second.output
    for name in ("linear", "topics"):
        assert (out / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert b"<svg" in (out / "figures" / f"{name}.svg").read_bytes()
        assert (out / f"{name}.csv").is_file()
    assert not list(out.rglob("*.part"))


class Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.texts, self.sources = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.sources += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        self.texts.append(data)


def test_the_page_stands_alone_and_shows_hostile_names_as_text(small):
    page = Reader()
    page.feed((small[0] / "study.html").read_text(encoding="utf-8"))
    assert "script" not in page.tags
    assert page.tags.count("img") == 2
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    text = " ".join(page.texts)
    assert HOSTILE in text
    for word in ("reproduced", "seed", "JAX", "Errata", "How the fits ended", "Monte-Carlo"):
        assert word in text


def test_verdicts_on_the_page_are_those_of_the_lines(small):
    from robustly.study.claims import claims

    out = small[0]
    found = claims({name: read_lines(out, name) for name in ("linear", "topics")})
    page = (out / "study.html").read_text(encoding="utf-8")
    shown = re.findall(r'<td class="verdict [a-z]+">([^<]+)</td>', page)
    assert shown == [one.verdict for one in found]


def test_figures_are_the_same_bytes_when_drawn_again(small):
    out = small[0]
    before = {path.name: path.read_bytes() for path in (out / "figures").iterdir()}
    assert study("linear", "--reps", 3, "--jobs", 1, "--out", out).exit_code == 0
    assert {path.name: path.read_bytes() for path in (out / "figures").iterdir()} == before


def test_both_topic_models_are_scored_on_the_same_words(small):
    found = read_lines(small[0], "topics")
    assert sorted(found["method"].unique()) == ["cache", "plain", "robust"]
    assert (found.groupby(["level", "repetition"])["words"].nunique() == 1).all()
    assert (found["nll"] > 0).all()
    assert found["nll"].max() < np.log(30) + 0.5


def test_the_summary_runs_the_papers_own_designs_and_draws_the_improvement(tmp_path, monkeypatch):
    from robustly.study import regressions, simulate

    few = {
        name: tuple(simulate.Variant(v.name, v.words, v.axis, v.levels[:: len(v.levels) - 1]) for v in known)
        for name, known in simulate.VARIANTS.items()
    }
    for name, known in few.items():
        monkeypatch.setitem(simulate.VARIANTS, name, known)
    # The claims do without the slowest to compile.
    quick = tuple(m for m in regressions.METHODS["logistic"] if m.name not in ("laplace", "t4", "cauchy"))
    monkeypatch.setitem(regressions.METHODS, "logistic", quick)
    told = list(run_study("summary", tmp_path, reps=1, jobs=1))
    assert (tmp_path / "figures" / "improvement.png").is_file()
    assert set(read_lines(tmp_path, "logistic")["variant"]) == {"near"}
    assert set(read_lines(tmp_path, "poisson")["variant"]) == {"lognormal"}
    assert any("too few repetitions" in line for line in told)


def test_without_the_lda_package_topics_are_skipped_with_a_word(tmp_path, monkeypatch):
    monkeypatch.setattr(topics, "default_sources", lambda: ())
    done = study("topics", "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert 'pip install "robustly[study]"' in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("poison",), 'there is no experiment "poison"; there are "linear", "logistic", "poisson"'),
        (("poison",), 'Did you mean "poisson"?'),
        (("linear", "--reps", 0), "--reps is a whole number from 1 up; got 0"),
        (("linear", "--jobs", 0), "--jobs is a whole number from 1 up; got 0"),
        (("linear", "--seed", -1), "--seed is a whole number from 0 up; got -1"),
        (("linear", "--corpus", "words.ldac"), "--corpus and --topics are for the topics experiment"),
        (("topics", "--topics", "10,x"), 'got "10,x"'),
        (("topics", "--topics", "0"), 'got "0"'),
        (("topics", "--corpus", "nowhere.ldac"), "cannot read the corpus nowhere.ldac: No such file"),
    ],
)
def test_bad_options_are_one_line_and_exit_code_2(tmp_path, options, words):
    done = study(*options, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("robustly: ")
    assert words in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    done = study("linear", "--out", tmp_path / "file" / "x")
    assert done.exit_code == 2
    assert done.stderr.startswith("robustly: cannot make the folder")
    assert len(done.stderr.splitlines()) == 1


def test_a_corpus_too_small_to_hold_out_from_is_refused(tmp_path):
    path = Corpus.from_matrix(np.array([[1, 2], [2, 1]])).write(tmp_path / "two.ldac")
    done = study("topics", "--corpus", path, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "has 2 documents" in done.stderr


def test_stopped_by_ctrl_c_it_keeps_what_is_done_and_says_how_to_go_on(tmp_path):
    # A shell that starts tests in the background has them, and what they start, ignore the signal.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    script = f"{heard}; from robustly.cli import main; main()"
    command = [sys.executable, "-c", script, "study", "linear", "--reps", "200", "--jobs", "2"]
    running = subprocess.Popen(
        [*command, "--out", str(tmp_path)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 90
    while not (tmp_path / "linear.csv").exists() and time.monotonic() < deadline and running.poll() is None:
        time.sleep(0.2)
    # As a terminal does: to the program and to the processes it started.
    os.killpg(running.pid, signal.SIGINT)
    _, told = running.communicate(timeout=60)
    assert running.returncode == 130, told
    assert re.search(r"stopped at \d+ of 2800 parts of linear; .* Give the same command again to go on", told)
    assert "Traceback" not in told
    assert len(read_lines(tmp_path, "linear")) > 0
