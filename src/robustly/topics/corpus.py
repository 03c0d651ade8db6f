"""Where do the counts come from? Texts, tokens, files and matrices in, one checked table of documents × words out.

Every reader names the file and line, or the document and word, of the first thing that is wrong.
"""

from __future__ import annotations

import gzip
import operator
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from scipy import sparse

from robustly.errors import DataError, SupportError
from robustly.result.persist import atomic
from robustly.rows.labels import as_floats, as_numbers
from robustly.topics.corpus_files import LARGEST_ID, Source, build_counts, read_vocabulary, read_word_counts

# A book has some 1e5 words; beyond this, counts are something else.
MOST_OF_A_WORD = 1e9


@dataclass(frozen=True)
class Corpus:
    """Word counts of documents, with the vocabulary if it is known.

    ``counts`` is a SciPy CSR matrix (documents × words) with sorted ids and no stored zeros; ``names`` and ``texts``, where
    they are known, belong to its rows. Make one with :meth:`from_texts`, :meth:`read`, :meth:`from_tokens`,
    :meth:`from_bags` or :meth:`from_matrix`; any estimator here takes it in place of a matrix.

    >>> corpus = Corpus.from_tokens([["gold", "gold", "mine"], ["mine", "field"]])
    >>> corpus
    Corpus(2 documents, 3 words, 5 tokens)
    >>> corpus.vocabulary
    ('gold', 'mine', 'field')
    """

    counts: sparse.csr_matrix
    vocabulary: tuple[str, ...] | None = None
    names: tuple[str, ...] | None = None
    texts: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", check_counts(self.counts))
        for what in ("names", "texts"):
            given = getattr(self, what)
            if given is not None and len(given) != self.counts.shape[0]:
                raise DataError(
                    f"{self.counts.shape[0]} documents have {self.counts.shape[0]} {what}; got {len(given)}."
                )
        if self.vocabulary is not None and len(self.vocabulary) != self.counts.shape[1]:
            raise DataError(
                f"the vocabulary has {len(self.vocabulary)} words and the counts have {self.counts.shape[1]} columns. "
                "Give one word per column, in the order of the columns."
            )

    def __repr__(self) -> str:
        documents, words = self.counts.shape
        return f"Corpus({documents} documents, {words} words, {self.counts.sum():.0f} tokens)"

    def __len__(self) -> int:
        return int(self.counts.shape[0])

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str],
        names: Sequence[str] | None = None,
        *,
        stop_words: str | Sequence[str] | None = "english",
        min_df: float = 2,
        max_df: float = 0.5,
        bigrams: bool = False,
        vocabulary: Sequence[str] | None = None,
    ) -> Corpus:
        """From texts, by scikit-learn's ``CountVectorizer``: lower case, words of two letters or more.

        Parameters
        ----------
        texts : one string per document
        names : what the documents are called, for pages
        stop_words : words to leave out: "english", a list, or None
        min_df, max_df : leave out words in fewer or more documents than this, a number (int) or a share (float)
        bigrams : count pairs of neighbouring words as well
        vocabulary : count these words only, in this order, in however many documents they are

        >>> corpus = Corpus.from_texts(["Gold in the river.", "A gold field", "gold rivers"], max_df=1.0)
        >>> corpus.vocabulary
        ('field', 'gold', 'river', 'rivers')
        """
        from sklearn.feature_extraction.text import CountVectorizer

        kept = tuple(texts)
        for number, text in enumerate(kept):
            if not isinstance(text, str):
                raise DataError(
                    f"document {number} is a {type(text).__name__}; got {str(text)[:40]!r} where a text was expected. "
                    "Token lists go to Corpus.from_tokens."
                )
        stops = list(stop_words) if stop_words is not None and not isinstance(stop_words, str) else stop_words
        if vocabulary is not None:
            length = max((len(word.split(" ")) for word in vocabulary), default=1)
            places = {word: i for i, word in enumerate(vocabulary)}
            counter = CountVectorizer(vocabulary=places, ngram_range=(1, length), stop_words=stops)
            return cls(counter.transform(kept), tuple(vocabulary), _as_names(names), kept)
        few = len(kept) < 4  # of two or three texts every word is in half of them
        counter = CountVectorizer(
            stop_words=stops,
            min_df=1 if few and min_df == 2 else min_df,
            max_df=1.0 if few and max_df == 0.5 else max_df,
            ngram_range=(1, 2 if bigrams else 1),
        )
        try:
            counts = counter.fit_transform(kept)
        except ValueError as error:
            raise DataError(
                f"no words are left of {len(kept)} texts: {error}. Lower min_df, raise max_df or keep the stop words."
            ) from error
        return cls(counts, tuple(map(str, counter.get_feature_names_out())), _as_names(names), kept)

    @classmethod
    def from_bags(cls, bags: Iterable[Any], vocabulary: Any = None) -> Corpus:
        """From gensim's bags of words, lists of ``(id, count)`` pairs; its ``Dictionary`` serves as `vocabulary`.

        >>> Corpus.from_bags([[(0, 2), (1, 1)], [(1, 3)]], {0: "gold", 1: "mine"})
        Corpus(2 documents, 2 words, 6 tokens)
        """
        rows: list[int] = []
        ids: list[int] = []
        counts: list[float] = []
        number = -1
        for number, bag in enumerate(bags):
            for pair in bag:
                try:
                    word, count = pair
                    word = operator.index(word)
                except (TypeError, ValueError):
                    raise DataError(
                        f"document {number} holds {str(pair)[:40]!r}, which is no (word id, count) pair. Make bags with "
                        "Dictionary.doc2bow."
                    ) from None
                if not 0 <= word <= LARGEST_ID:
                    raise DataError(f"document {number} has the word id {word}; ids go from 0 up.")
                rows.append(number)
                ids.append(word)
                counts.append(float(count))
        words = None
        if vocabulary is not None:
            known = dict(vocabulary.items()) if hasattr(vocabulary, "items") else dict(enumerate(vocabulary))
            if known and isinstance(next(iter(known)), str):
                known = {i: word for word, i in known.items()}
            size = max((*known, *ids), default=-1) + 1
            words = tuple(str(known.get(i, f"#{i}")) for i in range(size))
        return cls(
            build_counts(rows, ids, counts, (number + 1, len(words) if words else max(ids, default=-1) + 1)), words
        )

    @classmethod
    def from_matrix(cls, counts: Any, vocabulary: Sequence[str] | None = None) -> Corpus:
        """From a SciPy sparse matrix (a scikit-learn vectoriser's output) or an array of counts."""
        return cls(counts, None if vocabulary is None else tuple(map(str, vocabulary)))

    @classmethod
    def from_tokens(cls, documents: Iterable[Sequence[str]], vocabulary: Sequence[str] | None = None) -> Corpus:
        """From lists of tokens. Those outside a given `vocabulary` are left out; else it is made in reading order."""
        known = {word: i for i, word in enumerate(vocabulary)} if vocabulary is not None else {}
        ids: list[int] = []
        starts = [0]
        for number, document in enumerate(documents):
            if isinstance(document, str | bytes):
                raise DataError(
                    f"document {number} is one string; a list of tokens was expected. Split it into words first, "
                    "or use Corpus.from_texts (scikit-learn's CountVectorizer inside)."
                )
            for token in document:
                if vocabulary is None:
                    ids.append(known.setdefault(token, len(known)))
                elif token in known:
                    ids.append(known[token])
            starts.append(len(ids))
        shape = (len(starts) - 1, len(known))
        counts = sparse.csr_matrix((np.ones(len(ids)), np.array(ids, np.int32), np.array(starts)), shape=shape)
        return cls.from_matrix(counts, [str(word) for word in known])

    @classmethod
    def read(cls, path: Source, vocabulary: Source | None = None, n_words: int | None = None) -> Corpus:
        """Read an lda-c, UCI docword or Matrix Market file, gzipped or not; the format is found from its first lines.

        Parameters
        ----------
        path : the file
        vocabulary : a text file with one word per line, in the order of the ids
        n_words : the number of words, if ids may not go up to it; ids beyond it are refused
        """
        words = read_vocabulary(vocabulary) if vocabulary is not None else None
        if words is not None and n_words is not None and n_words != len(words):
            raise DataError(
                f"n_words is {n_words}, but {os.fspath(vocabulary or '')} has {len(words)} words. Give one of the two."
            )
        if words is not None:
            n_words = len(words)
        return cls(read_word_counts(path, n_words), words)

    def write(self, path: Source) -> Path:
        """Write lda-c lines, ``pairs id:count …``, gzipped if the name ends in .gz."""
        counts = self.counts
        with atomic(path) as raw:
            packed = gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) if os.fspath(path).endswith(".gz") else None
            stream: IO[bytes] = packed or raw  # type: ignore[assignment]
            for begin, end in zip(counts.indptr[:-1], counts.indptr[1:]):
                pairs = " ".join(f"{w}:{c:.15g}" for w, c in zip(counts.indices[begin:end], counts.data[begin:end]))
                stream.write(f"{end - begin}{' ' if pairs else ''}{pairs}\n".encode())
            if packed is not None:
                packed.close()
        return Path(path)


def _as_names(names: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(map(str, names))


def as_corpus(X: Any, vocabulary: Sequence[str] | None = None) -> Any:
    """Lists of tokens or of gensim's pairs as a Corpus, in the order of a known `vocabulary`; anything else as it is."""
    if not isinstance(X, list | tuple) or not len(X):
        return X
    if isinstance(X[0], str | bytes):
        raise DataError(
            "the documents are texts; got a list of strings. Count their words first: Corpus.from_texts(documents)."
        )
    first = next((one[0] for one in X if isinstance(one, list | tuple) and len(one)), None)
    if isinstance(first, str):
        return Corpus.from_tokens(X, vocabulary)
    if isinstance(first, tuple) and len(first) == 2:
        found = Corpus.from_bags(X)
        if vocabulary is None:
            return found
        missing = len(vocabulary) - found.counts.shape[1]
        if missing < 0:
            raise DataError(f"word id {found.counts.shape[1] - 1} came, and the model has {len(vocabulary)} words.")
        counts = found.counts.copy()
        counts.resize((counts.shape[0], len(vocabulary)))
        return Corpus(counts, tuple(vocabulary))
    return X


def check_counts(X: Any, *, allow_fractional: bool = False) -> sparse.csr_matrix:
    """A clean CSR table of counts from a Corpus, sparse matrix, frame or array, or an error that names the culprit."""
    if isinstance(X, Corpus):
        return X.counts
    if sparse.issparse(X):
        table = X.tocsr().astype(float)
    else:
        array = np.asarray(as_numbers(X, "the table of counts"))
        if array.ndim != 2:
            raise DataError(
                f"counts with {array.ndim} dimensions came; expected documents × words. Reshape your data, "
                "or use Corpus.from_tokens for lists of tokens."
            )
        if array.dtype.kind not in "biuf":
            array = as_floats(array, "the table of counts")
        table = sparse.csr_matrix(array.astype(float))
    table = sparse.csr_matrix(table)
    table.sum_duplicates()
    if table.nnz and (table.indices.min() < 0 or table.indices.max() >= table.shape[1]):
        at = int(np.flatnonzero((table.indices < 0) | (table.indices >= table.shape[1]))[0])
        row = int(np.searchsorted(table.indptr, at, side="right")) - 1
        raise DataError(f"document {row} has word id {table.indices[at]}, but the table has {table.shape[1]} words.")
    _refuse(table, ~np.isfinite(table.data), "NaN or inf (not a number)", "Remove or correct it.", DataError)
    _refuse(table, table.data < 0, "a count below 0", "Counts start at 0. (Negative values in data.)", SupportError)
    _refuse(
        table, table.data > MOST_OF_A_WORD, f"more than {MOST_OF_A_WORD:g}", "No document is so long.", SupportError
    )
    if not allow_fractional:
        _refuse(
            table,
            table.data != np.floor(table.data),
            "a count that is not whole",
            "Pass raw counts rather than tf-idf weights, or set allow_fractional=True.",
            SupportError,
        )
    table.eliminate_zeros()
    return table


def _refuse(table: sparse.csr_matrix, bad: np.ndarray, what: str, remedy: str, kind: type[DataError]) -> None:
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        row = int(np.searchsorted(table.indptr, at, side="right")) - 1
        raise kind(f"document {row}, word {table.indices[at]} holds {table.data[at]:g}: {what}. {remedy}")
