"""Saved models come back whole; plots draw; the commands work from end to end."""

from __future__ import annotations

import subprocess
import sys

import numba
import numpy as np
import pytest
from typer.testing import CliRunner

import robustly as rb
from robustly._runtime import numba_loops
from robustly.cli.topics import app
from robustly.errors import DataError, PersistError
from robustly.topics import LDA, Corpus, RobustLDA, plot_burstiness, plot_topics

run = CliRunner()


@pytest.mark.parametrize("inference", ["collapsed", "meanfield"])
@pytest.mark.parametrize("kind", [RobustLDA, LDA])
def test_a_saved_model_answers_as_before(kind, inference, few, tmp_path):
    words = [f"w{i}" for i in range(few.shape[1])]
    model = kind(3, inference=inference, random_state=0, max_iter=6, tol=0).fit(Corpus.from_matrix(few, words))
    back = rb.load(model.save(tmp_path / "m.robustly"))
    assert type(back) is kind
    assert back.get_params() == model.get_params()
    np.testing.assert_array_equal(back.transform(few), model.transform(few))
    np.testing.assert_array_equal(back.components_, model.components_)
    assert back.top_words(n=3) == model.top_words(n=3)
    assert back.score(few) == model.score(few)
    assert back.history_ == model.history_
    if inference == "collapsed":
        np.testing.assert_array_equal(
            back.partial_fit(few).components_, rb.load(tmp_path / "m.robustly").partial_fit(few).components_
        )


def test_a_generator_for_a_seed_does_not_stop_a_save(few, tmp_path):
    model = RobustLDA(2, random_state=np.random.RandomState(0), max_iter=3, tol=0).fit(few)
    assert rb.load(model.save(tmp_path / "m")).random_state is None


def test_columns_of_a_frame_name_the_words(few, tmp_path):
    import pandas as pd

    frame = pd.DataFrame(few, columns=[f"w{i}" for i in range(few.shape[1])])
    model = RobustLDA(2, random_state=0, max_iter=3, tol=0).fit(frame)
    back = rb.load(model.save(tmp_path / "m"))
    assert back.top_words(n=2) == model.top_words(n=2)
    assert back.top_words(n=1)[0][0].startswith("w")


def test_topics_without_names_ask_for_them(few):
    model = RobustLDA(2, random_state=0, max_iter=3, tol=0).fit(few)
    with pytest.raises(DataError, match="Pass the vocabulary"):
        model.top_words()
    with pytest.raises(DataError, match="2 words came for a model of 9"):
        model.top_words(["a", "b"])
    with pytest.raises(DataError, match="looks at one"):
        model.bursts(few)


def test_plots_draw(few, tmp_path):
    words = [f"w{i}" for i in range(few.shape[1])]
    model = RobustLDA(3, random_state=0, max_iter=5, tol=0).fit(few)
    figure = plot_topics(model, words, n=4)
    figure.savefig(tmp_path / "topics.png")
    assert sorted(axis.get_title(loc="left")[:7] for axis in figure.axes) == ["topic 0", "topic 1", "topic 2"]
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] in model.top_words(words, 4)
    plot_burstiness(model, words).savefig(tmp_path / "burstiness.png")
    with pytest.raises(DataError, match="not among the 3 topics"):
        plot_topics(model, words, topics=[7])
    with pytest.raises(DataError, match="plain LDA has no burstiness"):
        plot_burstiness(LDA(2, random_state=0, max_iter=3, tol=0).fit(few), words)


def test_fit_show_and_score_from_the_shell(few, tmp_path):
    corpus = Corpus.from_matrix(few).write(tmp_path / "docs.ldac.gz")
    (tmp_path / "vocab.txt").write_text("\n".join(f"w{i}" for i in range(few.shape[1])) + "\n")
    out = tmp_path / "model"
    options = ["-k", "3", "--out", str(out), "--max-iter", "30", "--tol", "0", "--vocab", str(tmp_path / "vocab.txt")]
    done = run.invoke(app, ["fit", str(corpus), *options])
    assert done.exit_code == 0, done.output
    assert "3 topics in 30 passes" in done.output
    assert {p.name for p in out.iterdir()} == {"model.robustly", "topics.png", "burstiness.png", "page.html"}
    shown = run.invoke(app, ["show", str(out), "-n", "2"])
    assert shown.exit_code == 0, shown.output
    assert "Σ η" in shown.output
    assert shown.output.count("w") >= 6
    scored = run.invoke(app, ["score", str(out), str(corpus)])
    assert scored.exit_code == 0, scored.output
    assert float(scored.output.split()[0]) == pytest.approx(rb.load(out / "model.robustly").score(few), abs=1e-6)


def test_plain_models_without_words_from_the_shell(few, tmp_path):
    corpus = Corpus.from_matrix(few).write(tmp_path / "docs.ldac")
    done = run.invoke(app, ["fit", str(corpus), "-k", "2", "--out", str(tmp_path / "m"), "--kind", "plain"])
    assert done.exit_code == 0, done.output
    shown = run.invoke(app, ["show", str(tmp_path / "m")])
    assert "#" in shown.output
    assert "Σ η" not in shown.output


def test_the_shell_is_told_in_one_line(few, tmp_path):
    (tmp_path / "bad.ldac").write_text("1 0:1\n2 0:1\n")
    done = run.invoke(app, ["fit", str(tmp_path / "bad.ldac"), "--out", str(tmp_path / "m")])
    assert done.exit_code == 2
    assert "line 2" in done.output
    assert "Traceback" not in done.output
    assert not (tmp_path / "m").exists()
    done = run.invoke(app, ["show", str(tmp_path / "nothing")])
    assert done.exit_code == 2
    assert "there is no file" in done.output
    (tmp_path / "file").write_text("")
    corpus = Corpus.from_matrix(few).write(tmp_path / "docs.ldac")
    done = run.invoke(app, ["fit", str(corpus), "--out", str(tmp_path / "file" / "m")])
    assert done.exit_code == 2
    assert "cannot make the folder" in done.output


def test_a_damaged_model_is_refused(few, tmp_path):
    path = RobustLDA(2, random_state=0, max_iter=3, tol=0).fit(few).save(tmp_path / "m")
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(PersistError, match="damaged"):
        rb.load(path)


def test_the_command_line_loads_no_compiler_to_print_its_help():
    code = "import sys, robustly.cli.topics; print(sorted({'numba', 'sklearn', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_kernels_work_where_compiled_code_cannot_be_kept(monkeypatch):
    real = numba.njit

    def nowhere(*args, cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return real(*args, **options)

    monkeypatch.setattr(numba, "njit", nowhere)
    assert numba_loops.compiled()(lambda x: x + 1)(2) == 3
