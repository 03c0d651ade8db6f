"""Where do the counts come from? Files and matrices in, one checked table of documents × words out.

Every reader names the file and line, or the document and word, of the first thing that is wrong.
"""

from __future__ import annotations

import gzip
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from scipy import sparse

from robustly.errors import DataError, SupportError
from robustly.result.persist import atomic

Source = str | os.PathLike[str]
# Ids beyond this are taken for damage: a table with so many words would not fit any memory.
LARGEST_ID = 2**31 - 2


@dataclass(frozen=True)
class Corpus:
    """Word counts of documents, with the vocabulary if it is known.

    ``counts`` is a SciPy CSR matrix (documents × words) with sorted ids and no stored zeros. Make one with
    :meth:`read`, :meth:`from_tokens` or :meth:`from_matrix`; any estimator here takes it in place of a matrix.

    >>> corpus = Corpus.from_tokens([["gold", "gold", "mine"], ["mine", "field"]])
    >>> corpus
    Corpus(2 documents, 3 words, 5 tokens)
    >>> corpus.vocabulary
    ('gold', 'mine', 'field')
    """

    counts: sparse.csr_matrix
    vocabulary: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", check_counts(self.counts))
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
                    "or use scikit-learn's CountVectorizer on the texts."
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
        with open_text(path) as stream:
            lines = Lines(path, stream)
            head = lines.peek(3)
            if head and head[0].startswith("%%MatrixMarket"):
                counts = _read_matrix_market(lines, n_words)
            elif len(head) == 3 and all(len(line.split()) == 1 and line.strip().isdigit() for line in head):
                counts = _read_uci(lines, n_words)
            else:
                counts = _read_ldac(lines, n_words)
        return cls(counts, words)

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


class Lines:
    """Lines of a file that know their number."""

    def __init__(self, path: Source, stream: IO[str]) -> None:
        self.path = os.fspath(path)
        self.number = 0
        self._stream = stream
        self._ahead: list[str] = []

    def peek(self, count: int) -> list[str]:
        while len(self._ahead) < count:
            line = self._read()
            if not line:
                break
            self._ahead.append(line)
        return self._ahead[:count]

    def _read(self) -> str:
        try:
            return self._stream.readline()
        except (OSError, EOFError, UnicodeDecodeError) as error:
            raise DataError(
                f"{self.path}: damaged after line {self.number}: {error}. Fetch or make the file again."
            ) from error

    def __iter__(self) -> Iterator[str]:
        while line := (self._ahead.pop(0) if self._ahead else self._read()):
            self.number += 1
            yield line

    def error(self, text: str, kind: type[DataError] = DataError) -> DataError:
        return kind(f"{self.path}, line {self.number}: {text}")

    def count(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise self.error(f'the count "{text}" is not a number. Expected a whole number.') from None
        if not 0 <= value < math.inf or value != math.floor(value):
            raise self.error(f"the count {text} is not a whole number from 0 up. Correct that line.", SupportError)
        return value

    def id(self, text: str, first: int, n_words: int | None, what: str = "word id") -> int:
        try:
            value = int(text)
        except ValueError:
            raise self.error(f'the {what} "{text}" is not a whole number.') from None
        last = (LARGEST_ID if n_words is None else n_words - 1) + first
        if not first <= value <= last:
            limit = f"up to {last}" if n_words is not None else f"up to {LARGEST_ID}"
            raise self.error(
                f"the {what} {value} is out of range; ids here go from {first} {limit}. Check the vocabulary."
            )
        return value - first


def open_text(path: Source) -> IO[str]:
    try:
        with open(path, "rb") as probe:
            packed = probe.read(2) == b"\x1f\x8b"
        return gzip.open(path, "rt", encoding="utf-8") if packed else open(path, encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot read {os.fspath(path)}: {error.strerror}. Check the path.") from error


def read_vocabulary(path: Source) -> tuple[str, ...]:
    """One word per line."""
    with open_text(path) as stream:
        return tuple(line.strip() for line in Lines(path, stream))


def _build(documents: Any, words: Any, counts: Any, shape: tuple[int, int]) -> sparse.csr_matrix:
    table = sparse.coo_matrix((np.asarray(counts, float), (documents, words)), shape=shape).tocsr()
    table.eliminate_zeros()
    table.sort_indices()
    return table


def _read_ldac(lines: Lines, n_words: int | None) -> sparse.csr_matrix:
    documents: list[int] = []
    words: list[int] = []
    counts: list[float] = []
    number = 0
    for line in lines:
        fields = line.split()
        if not fields:
            raise lines.error("an empty line; a document without words is written as 0.")
        try:
            pairs = int(fields[0])
        except ValueError:
            raise lines.error(
                f'"{fields[0][:40]}" is not a number of pairs. Expected lda-c: pairs id:count id:count …'
            ) from None
        if pairs != len(fields) - 1:
            raise lines.error(f"the line announces {pairs} pairs and has {len(fields) - 1}. It may be cut short.")
        seen = set()
        for field in fields[1:]:
            word, colon, count = field.partition(":")
            if not colon:
                raise lines.error(f'"{field[:40]}" is not an id:count pair.')
            i = lines.id(word, 0, n_words)
            if i in seen:
                raise lines.error(f"the word id {i} comes twice. Add its counts together.")
            seen.add(i)
            documents.append(number)
            words.append(i)
            counts.append(lines.count(count))
        number += 1
    if number == 0:
        raise DataError(f"{lines.path} is empty. Expected one line per document.")
    return _build(documents, words, counts, (number, n_words or max(words, default=-1) + 1))


def _triples(lines: Lines, rows: int, columns: int, expected: int) -> sparse.csr_matrix:
    if max(rows, columns) > LARGEST_ID:
        raise lines.error(f"{rows} documents and {columns} words are announced, more than can be meant.")
    documents: list[int] = []
    words: list[int] = []
    counts: list[float] = []
    for line in lines:
        fields = line.split()
        if not fields:
            continue
        if len(fields) != 3:
            raise lines.error(f"{len(fields)} fields; expected a document, a word and a count.")
        documents.append(lines.id(fields[0], 1, rows, "document id"))
        words.append(lines.id(fields[1], 1, columns))
        counts.append(lines.count(fields[2]))
    if len(counts) != expected:
        raise lines.error(f"the file announces {expected} entries and has {len(counts)}. It may be cut short.")
    return _build(documents, words, counts, (rows, columns))


def _read_uci(lines: Lines, n_words: int | None) -> sparse.csr_matrix:
    rows, columns, entries = (int(line) for _, line in zip(range(3), lines))
    if n_words is not None and n_words != columns:
        raise lines.error(f"the file has {columns} words, and {n_words} were expected. Check the vocabulary.")
    return _triples(lines, rows, columns, entries)


def _read_matrix_market(lines: Lines, n_words: int | None) -> sparse.csr_matrix:
    iterator = iter(lines)
    banner = next(iterator).split()
    if [word.lower() for word in banner[1:3]] != ["matrix", "coordinate"] or banner[-1].lower() != "general":
        raise lines.error("only general coordinate matrices hold a corpus. Write it with scipy.io.mmwrite.")
    for line in iterator:
        if not line.startswith("%"):
            break
    else:
        raise lines.error("the line with the sizes is missing. The file may be cut short.")
    fields = line.split()
    if len(fields) != 3 or not all(field.isdigit() for field in fields):
        raise lines.error("expected three sizes: documents, words, entries.")
    rows, columns, entries = map(int, fields)
    if n_words is not None and n_words != columns:
        raise lines.error(f"the file has {columns} words, and {n_words} were expected. Check the vocabulary.")
    return _triples(lines, rows, columns, entries)


def check_counts(X: Any, *, allow_fractional: bool = False) -> sparse.csr_matrix:
    """A clean CSR table of counts from a Corpus, sparse matrix, frame or array, or an error that names the culprit."""
    if isinstance(X, Corpus):
        return X.counts
    if sparse.issparse(X):
        table = X.tocsr().astype(float)
    else:
        array = np.asarray(X)
        if array.ndim != 2:
            raise DataError(
                f"counts with {array.ndim} dimensions came; expected documents × words. Reshape your data, "
                "or use Corpus.from_tokens for lists of tokens."
            )
        if array.dtype.kind not in "biuf":
            if array.dtype.kind == "c":
                raise DataError("Complex data not supported: counts are whole numbers from 0 up.")
            array = array.astype(float)
        table = sparse.csr_matrix(array.astype(float))
    table = sparse.csr_matrix(table)
    table.sum_duplicates()
    if table.nnz and (table.indices.min() < 0 or table.indices.max() >= table.shape[1]):
        at = int(np.flatnonzero((table.indices < 0) | (table.indices >= table.shape[1]))[0])
        row = int(np.searchsorted(table.indptr, at, side="right")) - 1
        raise DataError(f"document {row} has word id {table.indices[at]}, but the table has {table.shape[1]} words.")
    _refuse(table, ~np.isfinite(table.data), "NaN or inf (not a number)", "Remove or correct it.", DataError)
    _refuse(table, table.data < 0, "a count below 0", "Counts start at 0. (Negative values in data.)", SupportError)
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
