"""Readers give back what was written and name the line that is wrong."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import scipy.io
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer

from robustly.errors import DataError, PersistError, SupportError
from robustly.topics import Corpus, RobustLDA

TOKENS = [["gold", "gold", "mine"], [], ["mine", "field"]]


@given(st.lists(st.lists(st.integers(0, 9), min_size=7, max_size=7), min_size=1, max_size=6), st.booleans())
@settings(max_examples=30, deadline=None)
def test_what_is_written_is_read_back(tmp_path_factory, rows, packed):
    corpus = Corpus.from_matrix(np.array(rows))
    path = corpus.write(tmp_path_factory.mktemp("corpus") / ("x.ldac.gz" if packed else "x.ldac"))
    back = Corpus.read(path, n_words=7)
    np.testing.assert_array_equal(back.counts.toarray(), rows)


def test_formats_agree(tmp_path):
    corpus = Corpus.from_tokens(TOKENS)
    table = corpus.counts.tocoo()
    (tmp_path / "vocab.txt").write_text("gold\nmine\nfield\n")
    corpus.write(tmp_path / "a.ldac")
    triples = "".join(f"{d + 1} {w + 1} {int(c)}\n" for d, w, c in zip(table.row, table.col, table.data))
    with gzip.open(tmp_path / "docword.txt.gz", "wt") as stream:
        stream.write(f"3\n3\n{table.nnz}\n{triples}")
    scipy.io.mmwrite(tmp_path / "a.mtx", corpus.counts.astype(int))
    for name in ("a.ldac", "docword.txt.gz", "a.mtx"):
        back = Corpus.read(tmp_path / name, tmp_path / "vocab.txt")
        np.testing.assert_array_equal(back.counts.toarray(), [[2, 1, 0], [0, 0, 0], [0, 1, 1]])
        assert back.vocabulary == ("gold", "mine", "field")


def test_a_vectoriser_and_its_words_go_straight_in():
    words = CountVectorizer()
    table = words.fit_transform([" ".join(tokens) for tokens in TOKENS if tokens])
    corpus = Corpus.from_matrix(table, words.get_feature_names_out())
    assert corpus.vocabulary == ("field", "gold", "mine")
    assert RobustLDA(2, random_state=0, max_iter=3, tol=0).fit(corpus).top_words(n=1)[0][0] in corpus.vocabulary


def test_tokens_outside_a_given_vocabulary_are_left_out():
    corpus = Corpus.from_tokens(TOKENS, ["mine", "shaft"])
    np.testing.assert_array_equal(corpus.counts.toarray(), [[1, 0], [0, 0], [1, 0]])


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("2 0:1 1:2\n2 0:1\n", DataError, "line 2: the line announces 2 pairs and has 1"),
        ("1 0:1\nx 0:1\n", DataError, 'line 2: "x" is not a number of pairs'),
        ("1 0:1\n1 0\n", DataError, 'line 2: "0" is not an id:count pair'),
        ("1 0:1\n1 a:1\n", DataError, 'line 2: the word id "a"'),
        ("1 0:1\n1 -3:1\n", DataError, "line 2: the word id -3 is out of range"),
        ("1 0:1\n1 12:1\n", DataError, "line 2: the word id 12 is out of range; ids here go from 0 up to 4"),
        ("1 0:1\n1 99999999999:1\n", DataError, "line 2: the word id 99999999999 is out of range"),
        ("1 0:1\n1 0:-2\n", SupportError, "line 2: the count -2"),
        ("1 0:1\n1 0:1.5\n", SupportError, "line 2: the count 1.5"),
        ("1 0:1\n1 0:nan\n", SupportError, "line 2: the count nan"),
        ("1 0:1\n1 0:inf\n", SupportError, "line 2: the count inf"),
        ("1 0:1\n1 0:many\n", DataError, 'line 2: the count "many"'),
        ("1 0:1\n2 3:1 3:2\n", DataError, "line 2: the word id 3 comes twice"),
        ("1 0:1\n\n1 0:1\n", DataError, "line 2: an empty line"),
        ("", DataError, "is empty"),
        ("2\n5\n2\n1 1 1\n", DataError, "announces 2 entries and has 1"),
        ("2\n5\n1\n3 1 1\n", DataError, "line 4: the document id 3 is out of range; ids here go from 1 up to 2"),
        ("2\n5\n1\n1 0 1\n", DataError, "line 4: the word id 0 is out of range"),
        ("2\n5\n1\n1 1\n", DataError, "line 4: 2 fields"),
        ("99999999999\n5\n1\n1 1 1\n", DataError, "more than can be meant"),
        ("2\n6\n1\n1 1 1\n", DataError, "the file has 6 words, and 5 were expected"),
        ("%%MatrixMarket matrix array real general\n2 2\n", DataError, "line 1: only general coordinate"),
        ("%%MatrixMarket matrix coordinate integer general\n% no sizes\n", DataError, "sizes is missing"),
        ("%%MatrixMarket matrix coordinate integer general\n2 5\n", DataError, "line 2: expected three sizes"),
        ("%%MatrixMarket matrix coordinate integer general\n2 5 1\n1 1 -4\n", SupportError, "line 3: the count -4"),
    ],
)
def test_the_bad_line_is_named(tmp_path, text, kind, message):
    path = tmp_path / "corpus.txt"
    path.write_text(text)
    with pytest.raises(kind, match=message) as told:
        Corpus.read(path, n_words=5)
    assert "corpus.txt" in str(told.value)


def test_damaged_files_are_named(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*nowhere"):
        Corpus.read(tmp_path / "nowhere")
    good = gzip.compress(b"1 0:1\n" * 1000)
    (tmp_path / "cut.gz").write_bytes(good[: len(good) // 2])
    with pytest.raises(DataError, match=r"cut.gz: damaged after line"):
        Corpus.read(tmp_path / "cut.gz")
    (tmp_path / "binary").write_bytes(bytes(range(128, 256)))
    with pytest.raises(DataError, match="binary"):
        Corpus.read(tmp_path / "binary")
    with pytest.raises(PersistError, match="cannot write"):
        Corpus.from_tokens(TOKENS).write(tmp_path / "no" / "where.ldac")


def test_a_vocabulary_of_another_length_is_refused():
    with pytest.raises(DataError, match="the vocabulary has 2 words and the counts have 3 columns"):
        Corpus.from_matrix(sparse.csr_matrix(np.eye(3)), ["a", "b"])


def test_strings_for_documents_are_refused():
    with pytest.raises(DataError, match="document 1 is one string"):
        Corpus.from_tokens([["a"], "not tokens"])


def test_zeros_and_duplicates_in_a_matrix_are_cleaned():
    table = sparse.csr_matrix(([1.0, 0.0, 2.0, 3.0], [2, 1, 0, 0], [0, 2, 4]), shape=(2, 3))
    corpus = Corpus.from_matrix(table)
    np.testing.assert_array_equal(corpus.counts.toarray(), [[0, 0, 1], [5, 0, 0]])
    assert corpus.counts.nnz == 2
    assert repr(corpus) == "Corpus(2 documents, 3 words, 6 tokens)"
