"""Where are documents that do not fit into memory? In flat files made once from a corpus, or on the workers of a cluster.

A pass over them is the pass over documents in memory: from disk chunk by chunk with the same cuts, so that the same topics come
out, and on a cluster partition by partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from robustly.errors import DataError
from robustly.rows.dask import DaskRows, dask_client, gathered, rows_of_parts
from robustly.rows.dask_tasks import as_it_is
from robustly.rows.parquet import ParquetColumns, arrow_batches, whole_column
from robustly.rows.ragged import RaggedRows
from robustly.rows.ragged_files import TableFiles, TableWriter
from robustly.topics.corpus import Corpus, as_corpus, check_counts
from robustly.topics.corpus_files import LARGEST_ID, Source, read_vocabulary, write_word_counts
from robustly.topics.passes import DocumentsElsewhere, store_documents

# Documents of a Parquet file that are read at once, and of a corpus on disk that are learnt from at once by partial_fit.
AT_ONCE = 1024


@dataclass(frozen=True)
class StoredCorpus:
    """Word counts of documents in files of their own, which are deleted with it; made by :func:`on_disk`."""

    counts: TableFiles
    vocabulary: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.counts)

    def __repr__(self) -> str:
        return f"StoredCorpus({len(self)} documents, {self.counts.shape[1]} words, {self.counts.nnz} pairs on disk)"

    def batches(self, documents: int = AT_ONCE) -> Iterator[Corpus]:
        """The documents in their order, so many at a time and in memory, for `partial_fit`."""
        for start in range(0, len(self), documents):
            yield Corpus(self.counts.cut(slice(start, min(start + documents, len(self)))), self.vocabulary)

    def take(self, index: Any) -> Corpus:
        """Some documents by their numbers, in memory."""
        return Corpus(self.counts[np.asarray(index)], self.vocabulary)


def on_disk(
    source: Source | ParquetColumns,
    vocabulary: Source | Sequence[str] | None = None,
    *,
    n_words: int | None = None,
    folder: Source | None = None,
) -> StoredCorpus:
    """A corpus that stays on disk, for `fit`, `partial_fit` and `transform` in place of counts in memory.

    It is read once, document by document, and kept as flat files of eight bytes for each pair of document and word.

    Parameters
    ----------
    source : an lda-c, UCI docword or Matrix Market file, gzipped or not, the latter two sorted by document; or
        ``rb.parquet(path, columns="tokens")``, a column that has a list of words (or of word ids) for every document
    vocabulary : a text file with one word per line, in the order of the ids, or the words. Of lists of words those outside are
        left out; without it, it is made in reading order
    n_words : the number of words, if ids may not go up to it
    folder : where the files are made; the system's folder for temporary files unless told. It needs room for what a fit
        remembers, too: some 10 bytes a token

    >>> from pathlib import Path
    >>> _ = Path("docs.lda-c").write_text("2 0:3 1:1\\n1 2:4\\n")
    >>> on_disk("docs.lda-c")
    StoredCorpus(2 documents, 3 words, 3 pairs on disk)
    """
    words = tuple(map(str, vocabulary)) if isinstance(vocabulary, list | tuple) else None
    if vocabulary is not None and words is None:
        words = read_vocabulary(vocabulary)  # type: ignore[arg-type]
    if words is not None and n_words is not None and n_words != len(words):
        raise DataError(f"n_words is {n_words}, but the vocabulary has {len(words)} words. Give one of the two.")
    wanted = len(words) if words is not None else n_words
    if isinstance(source, ParquetColumns):
        return _from_parquet(source, words, wanted, folder)
    return StoredCorpus(write_word_counts(source, wanted, folder), words)


def _from_parquet(
    table: ParquetColumns, words: tuple[str, ...] | None, n_words: int | None, folder: Source | None
) -> StoredCorpus:
    name = table.columns
    if not isinstance(name, str):
        raise DataError(
            f'documents are one column of {table.where}: a list of words a row. Name it: rb.parquet(path, columns="tokens").'
        )
    if not table.kinds[name].startswith(("list<", "large_list<")):
        raise DataError(f'column "{name}" of {table.where} holds {table.kinds[name]}; a list of words a row is needed.')
    known = {} if words is None else {word: i for i, word in enumerate(words)}
    named = ": string" in table.kinds[name] or ": large_string" in table.kinds[name]
    writer = TableWriter(folder)
    for path, first, batch in arrow_batches(table, [name], AT_ONCE):
        column = whole_column(path, first, batch, name)
        flat, starts = column.flatten(), np.asarray(column.offsets)
        starts = starts - starts[0]
        if flat.null_count:
            row = first + int(np.searchsorted(starts, np.flatnonzero(np.asarray(flat.is_null()))[0], side="right")) - 1
            raise DataError(f'{path}: column "{name}" has a missing word in row {row}. Drop or fill it.')
        if named:
            coded = flat.dictionary_encode()
            listed = coded.dictionary.to_pylist()
            if words is None:
                ids = np.array([known.setdefault(word, len(known)) for word in listed], dtype=np.int64)
            else:
                ids = np.array([known.get(word, -1) for word in listed], dtype=np.int64)
            tokens = ids[np.asarray(coded.indices)] if len(listed) else np.zeros(0, np.int64)
        else:
            tokens = flat.to_numpy(zero_copy_only=False)
            last = LARGEST_ID if n_words is None else n_words - 1
            bad = np.flatnonzero((tokens < 0) | (tokens > last) | (tokens != np.floor(tokens)))
            if bad.size:
                row = first + int(np.searchsorted(starts, bad[0], side="right")) - 1
                raise DataError(
                    f'{path}: column "{name}" has the word id {tokens[bad[0]]} in row {row}; ids go from 0 up to {last}.'
                )
        for begin, end in pairwise(starts):
            mine = tokens[begin:end]
            mine = mine[mine >= 0]
            writer.add(mine, np.ones(len(mine)))
    if named:
        words = tuple(known)
        n_words = len(words)
    return StoredCorpus(writer.finish(n_words), words)


def documents_from(X: Any, vocabulary: Sequence[str] | None = None) -> Any:
    """Documents wherever they are: lists of words as a Corpus, a Parquet column on disk, a Dask bag on its workers; counts as they are."""
    if isinstance(X, ParquetColumns):
        return on_disk(X, None if vocabulary is None or isinstance(vocabulary, range) else list(vocabulary))
    if hasattr(X, "__dask_graph__") and hasattr(X, "to_delayed") and hasattr(X, "foldby"):
        return BagOfDocuments(X, None if isinstance(vocabulary, range) else vocabulary)
    return as_corpus(X, vocabulary)


def stored_counts(X: Any, *, allow_fractional: bool = False) -> Any:
    """The checked table of documents, or what stands for it where it is not in memory."""
    if isinstance(X, StoredCorpus):
        return X.counts
    return X if isinstance(X, DocumentsElsewhere) else check_counts(X, allow_fractional=allow_fractional)


# ---------------------------------------------------------------------- on a cluster


@dataclass(frozen=True, eq=False)
class BagOfDocuments(DocumentsElsewhere):
    """A Dask bag whose items are documents: lists of words."""

    bag: Any
    known: Sequence[str] | None = None
    """The vocabulary of a fit before."""

    @cached_property
    def _seen(self) -> list[tuple[int, list[str]]]:
        import dask

        look = dask.delayed(words_of_part, pure=False)
        delayed = [look(place, part) for place, part in enumerate(self.bag.to_delayed())]
        client = dask_client()
        return gathered(client, client.compute(delayed))

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """All words in reading order."""
        if self.known is not None:
            return tuple(self.known)
        return tuple(dict.fromkeys(word for _, words in self._seen for word in words))

    @property
    def shape(self) -> tuple[int, int]:
        return sum(number for number, _ in self._seen), len(self.vocabulary)

    @property
    def nnz(self) -> int:
        return sum(len(words) for _, words in self._seen)

    def rows(self, dtype: Any) -> DaskRows:
        """The documents as rows on the workers."""
        import dask

        words = dask_client().submit(as_it_is, self.vocabulary, pure=False)
        make, first, delayed = dask.delayed(documents_of_part, pure=False), 0, []
        for (number, _), part in zip(self._seen, self.bag.to_delayed()):
            delayed.append(make(part, words, np.dtype(dtype).str, first))
            first += number
        return rows_of_parts(delayed, ("counts", "number"), 0, False)


def words_of_part(place: int, part: Any) -> tuple[int, list[str]]:
    """How many documents a partition has, and its words in reading order."""
    found: dict[str, None] = {}
    number = 0
    for number, document in enumerate(part, 1):
        if not isinstance(document, list | tuple) or not all(isinstance(word, str) for word in document):
            raise DataError(
                f"partition {place}: document {number - 1} is {str(document)[:40]!r}, which is no list of words. Split texts into "
                "words first: bag.map(str.split)."
            )
        found.update(dict.fromkeys(document))
    return number, list(found)


def documents_of_part(part: Any, words: Sequence[str], dtype: str, first: int) -> RaggedRows:
    """The rows of a partition whose first document has this number among all."""
    rows = store_documents(Corpus.from_tokens(list(part), words).counts, np.dtype(dtype), 1)
    return replace(rows, data=(rows.data[0], rows.data[1] + first))
