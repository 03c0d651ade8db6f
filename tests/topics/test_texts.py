"""From texts to topics: files, folders, columns, tokens and bags; and what is not text is named."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from typer.testing import CliRunner

import robustly as rb
from robustly.cli.topics import app
from robustly.errors import DataError
from robustly.topics import Corpus, RobustLDA, plot_burstiness, plot_topics
from robustly.topics.page import placed, render
from robustly.topics.texts import decode, read_column, read_files

run = CliRunner()
RIVER = "The river water flows; a boat on the river, water everywhere. Fish swim in river water."
BANK = "The bank gave a loan: money, interest and more money. Loan interest at the bank rose."
HOSTILE = '<script>window.hacked=1</script> [/red] [bold] $x^$ \x1b[31mred\x1b[0m "q" & <img src=x onerror=alert(1)>'


@pytest.fixture
def folder(tmp_path):
    notes = tmp_path / "notes"
    notes.mkdir()
    for i in range(12):
        (notes / f"{i:02d}.txt").write_text(
            [RIVER, BANK][i % 2] + " canoe" * (9 if i == 4 else i == 6), encoding="utf-8"
        )
    return notes


def test_texts_are_counted_as_scikit_learn_does():
    corpus = Corpus.from_texts([RIVER, BANK] * 3, names=[f"d{i}" for i in range(6)])
    assert "the" not in corpus.vocabulary
    assert corpus.counts[0, corpus.vocabulary.index("river")] == 3
    assert corpus.names[2] == "d2"
    assert corpus.texts[1] == BANK
    pairs = Corpus.from_texts([RIVER, BANK] * 3, bigrams=True)
    assert "river water" in pairs.vocabulary
    again = Corpus.from_texts([BANK], vocabulary=pairs.vocabulary)
    assert again.counts.sum() == pairs.counts[1].sum()
    with pytest.raises(DataError, match="no words are left of 2 texts"):
        Corpus.from_texts(["the and", "of the"])
    with pytest.raises(DataError, match="document 1 is a list"):
        Corpus.from_texts(["a text", ["tokens"]])
    with pytest.raises(DataError, match="6 documents have 6 names; got 2"):
        Corpus.from_texts([RIVER, BANK] * 3, names=["a", "b"])


def test_token_lists_and_gensim_bags_are_documents():
    tokens = [text.lower().split() for text in (RIVER, BANK) * 4]
    model = RobustLDA(2, random_state=0, draws=10).fit(tokens)
    corpus = Corpus.from_tokens(tokens)
    np.testing.assert_array_equal(
        model.components_, RobustLDA(2, random_state=0, draws=10).fit(corpus.counts).components_
    )
    assert model.top_words(n=1)[0][0] in corpus.vocabulary
    # New documents are counted in the order of the fit; a word it never saw is left out.
    shares = model.transform([["river", "water", "neverseen"], ["money"]])
    np.testing.assert_allclose(
        shares, model.transform(Corpus.from_tokens([["river", "water"], ["money"]], corpus.vocabulary))
    )
    bags = [[(int(w), int(c)) for w, c in zip(row.indices, row.data)] for row in corpus.counts]
    same = RobustLDA(2, random_state=0, draws=10).fit(bags)
    np.testing.assert_array_equal(same.components_, model.components_)
    assert same.transform([[(0, 2)], []]).shape == (2, 2)
    named = Corpus.from_bags([[(1, 2)]], {"gold": 0, "mine": 1})
    assert named.vocabulary == ("gold", "mine")
    with pytest.raises(DataError, match=r"no \(word id, count\) pair"):
        Corpus.from_bags([[(0, 1)], [3]])
    with pytest.raises(DataError, match=r"Corpus\.from_texts"):
        RobustLDA(2).fit([RIVER, BANK])


def test_a_folder_becomes_a_page_in_one_command(folder, tmp_path):
    out = tmp_path / "model"
    done = run.invoke(app, ["fit", str(folder), "-k", "2", "--draws", "20", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert {"model.robustly", "page.html", "topics.png", "burstiness.png"} == {p.name for p in out.iterdir()}
    page = (out / "page.html").read_text(encoding="utf-8")
    assert "00.txt" in page
    assert "<mark>canoe</mark>" in page
    assert "river" in page
    assert rb.load(out / "model.robustly").vocabulary_ is not None
    again = tmp_path / "again.html"
    files = sorted(map(str, folder.glob("*.txt")))
    done = run.invoke(app, ["page", str(out), *files, "--out", str(again), "--title", "Rivers"])
    assert done.exit_code == 0, done.output
    assert "<h1>Rivers</h1>" in again.read_text(encoding="utf-8")


def test_a_column_of_a_table_becomes_a_page(tmp_path):
    table = tmp_path / "docs.csv"
    with table.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["id", "body"])
        writer.writerows([f"doc {i}", [RIVER, BANK][i % 2]] for i in range(10))
    out = tmp_path / "m"
    options = ["-k", "2", "--draws", "10", "--out", str(out), "--no-plots"]
    done = run.invoke(app, ["fit", str(table), "--text", "body", "--label", "id", *options])
    assert done.exit_code == 0, done.output
    assert "doc 3" in (out / "page.html").read_text(encoding="utf-8")
    done = run.invoke(app, ["fit", str(table), *options])
    assert done.exit_code == 2
    assert '"id" and "body"' in done.output
    done = run.invoke(app, ["fit", str(table), "--text", "bdy", *options])
    assert 'Did you mean "body"?' in done.output


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"caf\xe9 au lait", "is not utf-8 text: byte 3 is 0xe9.*--encoding latin-1"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is a binary file"),
        (b"text with a \0 zero", "is a binary file"),
    ],
)
def test_what_is_not_text_is_named(folder, tmp_path, raw, message):
    (folder / "bad.txt").write_bytes(raw)
    with pytest.raises(DataError, match=f"bad.txt {message}"):
        read_files([folder])
    done = run.invoke(app, ["fit", str(folder), "--out", str(tmp_path / "m")])
    assert done.exit_code == 2
    assert "bad.txt" in done.output
    assert not (tmp_path / "m").exists()


def test_encodings_marks_and_empty_files(folder, tmp_path):
    assert decode("é".encode("latin-1"), "f", "latin-1") == "é"
    assert decode("\ufeffé".encode(), "f", None) == "é"
    assert decode("é".encode("utf-16"), "f", None) == "é"
    with pytest.raises(DataError, match='"nonsense" is not known'):
        decode(b"a", "f", "nonsense")
    (folder / "empty.txt").write_text("")
    assert read_files([folder]).empty == (str(folder / "empty.txt"),)
    done = run.invoke(app, ["fit", str(folder), "-k", "2", "--draws", "5", "--out", str(tmp_path / "m"), "--no-plots"])
    assert done.exit_code == 0, done.output
    assert "1 of 13 documents have no words" in done.output
    assert "empty.txt" in done.output


def test_lines_and_single_files(tmp_path):
    one = tmp_path / "all.txt"
    one.write_text("\n".join([RIVER, "", BANK]))
    assert read_files([one], lines=True).names == (f"{one}:1", f"{one}:3")
    done = run.invoke(app, ["fit", str(one), "--out", str(tmp_path / "m")])
    assert done.exit_code == 2
    assert "--lines" in done.output
    done = run.invoke(app, ["fit", str(tmp_path / "none"), "--out", str(tmp_path / "m")])
    assert "there is no file or folder" in done.output
    (tmp_path / "sub").mkdir()
    with pytest.raises(DataError, match="has no text files"):
        read_files([tmp_path / "sub"])
    (tmp_path / "t.csv").write_text("")
    with pytest.raises(DataError, match="is not a table"):
        read_column(tmp_path / "t.csv", "x")


def hostile_corpus():
    random = np.random.default_rng(0)
    words = ("[/red]", "[bold]", "\x1b[31mred", "$x^$", "<b>", "\u202eturned", "plain", '"&')
    return Corpus.from_matrix(random.poisson(1.0, (30, len(words))), words)


def test_hostile_words_are_shown_and_not_obeyed(tmp_path):
    corpus = hostile_corpus()
    model = RobustLDA(2, random_state=0, max_iter=5, tol=0, draws=4).fit(corpus)
    model.save(tmp_path / "model.robustly")
    shown = run.invoke(app, ["show", str(tmp_path), "-n", "8"])
    assert shown.exit_code == 0, shown.output
    assert "[/red]" in shown.output
    assert "[bold]" in shown.output
    assert "\x1b[31m" not in shown.output
    assert r"\x1b[31mred" in shown.output
    assert "\x1b[31m" not in str(model.summary())
    for figure in (plot_topics(model), plot_burstiness(model)):
        figure.savefig(tmp_path / "f.png")


def test_hostile_texts_are_inert_on_the_page():
    corpus = Corpus.from_texts([f"{RIVER} {HOSTILE}", BANK] * 4, names=[HOSTILE] * 8)
    model = RobustLDA(2, random_state=0, draws=5).fit(corpus)
    page = render(model, corpus, title=HOSTILE)
    for bad in ("<script", "<img", "onerror=alert(1)>", "\x1b"):
        assert bad not in page
    assert "&lt;script&gt;" in page
    assert "default-src 'none'" in page


def test_a_page_of_other_words_is_refused(few):
    model = RobustLDA(2, random_state=0, max_iter=3, tol=0, draws=2).fit(few)
    with pytest.raises(DataError, match="the documents have 4 words and the model 9"):
        render(model, few[:, :4])
    assert "#3" in render(model, few)


@pytest.mark.parametrize("size", [1, 2, 20, 100])
def test_circles_of_the_map_stay_inside_and_hardly_overlap(size):
    random = np.random.default_rng(size)
    roots = np.sqrt(random.dirichlet(np.full(300, 0.1), size))
    places, radii = placed(roots @ roots.T, random.dirichlet(np.full(size, 0.5)))
    assert (places - radii[:, None] > 0).all()
    assert (places[:, 0] + radii < 760).all()
    assert (places[:, 1] + radii < 460).all()
    gaps = np.sqrt(((places[:, None] - places) ** 2).sum(axis=2)) - radii - radii[:, None]
    assert gaps[~np.eye(size, dtype=bool)].min(initial=0.0) > -4.0


def test_plots_of_a_hundred_topics_show_the_most_used():
    random = np.random.default_rng(1)
    model = RobustLDA(100, random_state=0, max_iter=2, tol=0, draws=0).fit(random.poisson(0.3, (60, 120)))
    figure = plot_burstiness(model, [f"word{i}" for i in range(120)])
    assert len(figure.axes[0].get_yticklabels()) == 40
    assert "40 most used of 100" in figure.axes[0].get_title(loc="left")
    assert len(plot_burstiness(model, [f"w{i}" for i in range(120)], topics=[5, 7]).axes[0].get_yticklabels()) == 2
