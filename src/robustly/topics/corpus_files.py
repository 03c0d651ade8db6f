"""How are word counts read from files? Line by line, in the three formats corpora come in; a wrong line is named."""

from __future__ import annotations

import gzip
import math
import os
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from scipy import sparse

from robustly.errors import DataError, SupportError
from robustly.rows.ragged_files import TableFiles, TableWriter

Source = str | os.PathLike[str]
# Ids beyond this are taken for damage: a table with so many words would not fit any memory.
LARGEST_ID = 2**31 - 2


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


def read_word_counts(path: Source, n_words: int | None) -> sparse.csr_matrix:
    """Counts of an lda-c, UCI docword or Matrix Market file; the format is found from its first lines."""
    with open_text(path) as stream:
        lines = Lines(path, stream)
        sizes = _announced(lines, n_words)
        documents: list[int] = []
        words: list[int] = []
        counts: list[float] = []
        number = 0
        if sizes is not None:
            for document, word, count in _triples(lines, sizes):
                documents.append(document)
                words.append(word)
                counts.append(count)
            return build_counts(documents, words, counts, sizes[:2])
        for found in _ldac(lines, n_words):
            for word, count in found:
                documents.append(number)
                words.append(word)
                counts.append(count)
            number += 1
        return build_counts(documents, words, counts, (number, n_words or max(words, default=-1) + 1))


def write_word_counts(path: Source, n_words: int | None, folder: Source | None = None) -> TableFiles:
    """The same counts, document by document into files: never more than some documents are in memory."""
    table = TableWriter(folder)
    with open_text(path) as stream:
        lines = Lines(path, stream)
        sizes = _announced(lines, n_words)
        if sizes is None:
            for found in _ldac(lines, n_words):
                table.add([word for word, _ in found], [count for _, count in found])
            return table.finish(n_words)
        words: list[int] = []
        counts: list[float] = []
        for document, word, count in _triples(lines, sizes):
            if document < len(table.sizes):
                raise lines.error(
                    f"document {document + 1} comes again after document {len(table.sizes) + 1}. Read piece by piece, a file has "
                    "its documents one after the other: sort it by its first column."
                )
            while document > len(table.sizes):
                table.add(words, counts)
                words, counts = [], []
            words.append(word)
            counts.append(count)
        while len(table.sizes) < sizes[0]:
            table.add(words, counts)
            words, counts = [], []
        return table.finish(sizes[1])


def build_counts(documents: Any, words: Any, counts: Any, shape: tuple[int, int]) -> sparse.csr_matrix:
    table = sparse.coo_matrix((np.asarray(counts, float), (documents, words)), shape=shape).tocsr()
    table.eliminate_zeros()
    table.sort_indices()
    return table


def _announced(lines: Lines, n_words: int | None) -> tuple[int, int, int] | None:
    """Documents, words and entries of a file of triples, as its head says; None of an lda-c file."""
    head = lines.peek(3)
    if head and head[0].startswith("%%MatrixMarket"):
        sizes = _matrix_market_sizes(lines)
    elif len(head) == 3 and all(len(line.split()) == 1 and line.strip().isdigit() for line in head):
        rows, columns, entries = (int(line) for _, line in zip(range(3), lines))
        sizes = rows, columns, entries
    else:
        return None
    if n_words is not None and n_words != sizes[1]:
        raise lines.error(f"the file has {sizes[1]} words, and {n_words} were expected. Check the vocabulary.")
    if max(sizes[:2]) > LARGEST_ID:
        raise lines.error(f"{sizes[0]} documents and {sizes[1]} words are announced, more than can be meant.")
    return sizes


def _ldac(lines: Lines, n_words: int | None) -> Iterator[list[tuple[int, float]]]:
    """The (word, count) pairs of each document."""
    empty = True
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
        found: dict[int, float] = {}
        for field in fields[1:]:
            word, colon, count = field.partition(":")
            if not colon:
                raise lines.error(f'"{field[:40]}" is not an id:count pair.')
            i = lines.id(word, 0, n_words)
            if i in found:
                raise lines.error(f"the word id {i} comes twice. Add its counts together.")
            found[i] = lines.count(count)
        empty = False
        yield list(found.items())
    if empty:
        raise DataError(f"{lines.path} is empty. Expected one line per document.")


def _triples(lines: Lines, sizes: tuple[int, int, int]) -> Iterator[tuple[int, int, float]]:
    """Document, word and count of each entry."""
    rows, columns, expected = sizes
    number = 0
    for line in lines:
        fields = line.split()
        if not fields:
            continue
        if len(fields) != 3:
            raise lines.error(f"{len(fields)} fields; expected a document, a word and a count.")
        document, word = lines.id(fields[0], 1, rows, "document id"), lines.id(fields[1], 1, columns)
        number += 1
        yield document, word, lines.count(fields[2])
    if number != expected:
        raise lines.error(f"the file announces {expected} entries and has {number}. It may be cut short.")


def _matrix_market_sizes(lines: Lines) -> tuple[int, int, int]:
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
    return rows, columns, entries
