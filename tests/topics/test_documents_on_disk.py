"""Documents that stay on disk: the topics of the same documents in memory, bit for bit, and errors that name file and line."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import robustly as rb
from robustly.errors import DataError, PersistError
from robustly.rows import ragged_files
from robustly.rows.store import Slot
from robustly.topics import LDA, Corpus, RobustLDA, on_disk
from robustly.topics.fitting import TopicsRun
from robustly.topics.passes import store_documents

ASKED = {"random_state": 0, "draws": 6, "max_iter": 6, "tol": 0.0}


@pytest.fixture(scope="module")
def documents():
    rng = np.random.default_rng(5)
    topics = rng.dirichlet(np.full(80, 0.1), 3)
    return [[f"w{word:02d}" for word in rng.choice(80, rng.poisson(25), p=topics[i % 3])] for i in range(120)] + [[]]


@pytest.fixture(scope="module")
def corpus(documents):
    return Corpus.from_tokens(documents)


def written(kind, corpus, documents, folder):
    """The corpus in a file of some kind, ready to be read piece by piece."""
    if kind == "lda-c":
        return on_disk(corpus.write(folder / "docs.lda-c.gz"), list(corpus.vocabulary))
    if kind == "tokens":
        half = len(documents) // 2
        pd.DataFrame({"tokens": documents[:half]}).to_parquet(folder / "1.parquet")
        pd.DataFrame({"tokens": documents[half:]}).to_parquet(folder / "2.parquet")
        return rb.parquet(folder, columns="tokens")
    if kind == "ids":
        ids = {word: i for i, word in enumerate(corpus.vocabulary)}
        pd.DataFrame({"ids": [[ids[word] for word in one] for one in documents]}).to_parquet(folder / "ids.parquet")
        return on_disk(rb.parquet(folder / "ids.parquet", columns="ids"), n_words=len(ids))
    table = corpus.counts.tocoo()
    rows = "\n".join(f"{d + 1} {w + 1} {int(c)}" for d, w, c in sorted(zip(table.row, table.col, table.data)))
    (folder / "docword.txt").write_text(f"{table.shape[0]}\n{table.shape[1]}\n{table.nnz}\n{rows}\n")
    return on_disk(folder / "docword.txt")


@pytest.mark.parametrize("kind", ["lda-c", "docword", "tokens", "ids"])
def test_every_format_gives_the_topics_of_memory(kind, corpus, documents, tmp_path):
    stored = written(kind, corpus, documents, tmp_path)
    known, found = RobustLDA(3, **ASKED).fit(corpus), RobustLDA(3, **ASKED).fit(stored)
    np.testing.assert_array_equal(found.components_, known.components_)
    assert found.score(corpus.counts) == known.score(corpus.counts)
    if kind in ("lda-c", "tokens"):
        assert found.vocabulary_ == corpus.vocabulary


@pytest.mark.parametrize("model", [LDA, RobustLDA])
def test_what_is_asked_of_a_fit_takes_documents_on_disk(model, corpus, documents, tmp_path):
    stored = written("lda-c", corpus, documents, tmp_path)
    known = model(3, inference="meanfield", random_state=0, max_iter=3, tol=0.0).fit(corpus)
    found = model(3, inference="meanfield", random_state=0, max_iter=3, tol=0.0).fit(stored)
    np.testing.assert_array_equal(found.components_, known.components_)
    np.testing.assert_array_equal(found.transform(stored), known.transform(corpus))
    assert found.score(stored) == pytest.approx(known.score(corpus), rel=1e-12)


def test_batches_are_learnt_from_as_from_memory(corpus, documents, tmp_path):
    stored = written("lda-c", corpus, documents, tmp_path)
    known, found = RobustLDA(3, **ASKED), RobustLDA(3, **ASKED)
    for start, batch in zip(range(0, len(stored), 50), stored.batches(50)):
        known.partial_fit(Corpus(corpus.counts[start : start + 50], corpus.vocabulary))
        found.partial_fit(batch)
    np.testing.assert_array_equal(found.components_, known.components_)
    once = RobustLDA(3, **ASKED).partial_fit(stored)
    assert once.documents_seen_ == len(stored)


def test_a_fit_that_is_stopped_goes_on_to_the_same_topics(corpus, documents, tmp_path, monkeypatch):
    stored, place = written("lda-c", corpus, documents, tmp_path), tmp_path / "kept"
    known = RobustLDA(3, **ASKED).fit(stored)
    step = TopicsRun.step

    def stopped(self):
        if len(self.drawn_history) == 3:
            raise KeyboardInterrupt
        step(self)

    monkeypatch.setattr("robustly.topics.checkpoints.BETWEEN", 0.0)
    monkeypatch.setattr(TopicsRun, "step", stopped)
    with pytest.raises(KeyboardInterrupt):
        RobustLDA(3, checkpoint=place, **ASKED).fit(stored)
    monkeypatch.setattr(TopicsRun, "step", step)
    found = RobustLDA(3, checkpoint=place, **ASKED).fit(stored)
    np.testing.assert_array_equal(found.components_, known.components_)


def test_what_is_remembered_waits_on_disk_and_goes_with_the_corpus(corpus, documents, tmp_path):
    stored = on_disk(corpus.write(tmp_path / "docs.lda-c"), folder=tmp_path)
    folder, slot = Path(stored.counts.folder.name), Slot()
    rows = store_documents(stored.counts)

    def remembering(theta, data, weight, state):
        before = 0 if state is None else state["seen"]
        return {"before": before}, {}, {"seen": np.asarray(before + 1)}

    assert [rows.map(remembering, None, keep=slot, into=slot).sums["before"] for _ in range(3)] == [0, 1, 2]
    assert len(list(folder.glob("state-*.npz"))) == len(rows.places)
    del slot
    gc.collect()
    assert not list(folder.glob("state-*.npz"))
    del rows, stored
    gc.collect()
    assert not folder.exists()


def test_what_cannot_be_read_is_named(corpus, documents, tmp_path, monkeypatch):
    (tmp_path / "docword.txt").write_text("3\n2\n3\n1 1 4\n3 1 2\n2 2 1\n")
    with pytest.raises(DataError, match=r"docword\.txt, line 6: document 2 comes again after document 3.*sort it"):
        on_disk(tmp_path / "docword.txt")
    (tmp_path / "cut.lda-c").write_text("2 0:1 1:1\n3 0:1 1:1\n")
    with pytest.raises(DataError, match=r"cut\.lda-c, line 2: the line announces 3 pairs"):
        on_disk(tmp_path / "cut.lda-c")
    pd.DataFrame({"tokens": [["a"], None, ["b"]], "n": [1, 2, 3]}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r't\.parquet: column "tokens" holds a missing value in row 1'):
        RobustLDA(2).fit(rb.parquet(tmp_path / "t.parquet", columns="tokens"))
    with pytest.raises(DataError, match=r'column "n" of .*t\.parquet holds int; a list of words'):
        RobustLDA(2).fit(rb.parquet(tmp_path / "t.parquet", columns="n"))
    with pytest.raises(DataError, match="documents are one column"):
        RobustLDA(2).fit(rb.parquet(tmp_path / "t.parquet"))
    stored = on_disk(corpus.write(tmp_path / "docs.lda-c"))
    with pytest.raises(DataError, match="validation_fraction needs documents in memory"):
        RobustLDA(2, validation_fraction=0.2).fit(stored)
    with pytest.raises(PersistError, match="cannot make a folder in"):
        on_disk(tmp_path / "docs.lda-c", folder=tmp_path / "nowhere")
    monkeypatch.setattr(ragged_files, "LARGEST_COUNT", 3)
    (tmp_path / "many.lda-c").write_text("1 0:4\n")
    with pytest.raises(DataError, match="document 0 holds the count 4; at most 3"):
        on_disk(tmp_path / "many.lda-c")
