"""How is a pass made over the documents? Chunk by chunk, by functions that any store of rows can map.

A store of documents gives each pass a CSR table of word counts and the documents' numbers in the corpus, from which random
numbers follow. What is remembered of a chunk from one pass to the next is a dictionary of arrays that the store keeps
beside it; it is written over in place.
"""

from __future__ import annotations

import tempfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike
from scipy import sparse

from robustly.rows.arrays import ArrayRows
from robustly.rows.dask import DaskRows
from robustly.rows.ragged import RaggedRows
from robustly.rows.ragged_files import TableFiles
from robustly.rows.store import THREADS, ByUnit, Data, Pass, Rows, Slot, Sums
from robustly.topics import draws, kernels, meanfield, special
from robustly.topics.shared import Statistics, Topics

# Pairs of document and word in a chunk: so many, or for each word of the vocabulary, whose sums each chunk has of its own.
PAIRS = 1 << 13
PAIRS_PER_WORD = 8
# Mean field's expected counts of a chunk are kept in a temporary file if they are larger than this.
KEPT_IN_MEMORY = 1 << 25

State = dict[str, np.ndarray] | None
Passed = tuple[Sums, ByUnit, State]


def threads_of(n_jobs: int | None) -> int:
    """How many threads scikit-learn's `n_jobs` asks for."""
    if n_jobs is None:
        return THREADS
    return n_jobs if n_jobs > 0 else max(1, THREADS + 1 + n_jobs)


def store_documents(counts: Any, dtype: DTypeLike = np.float32, n_jobs: int | None = None) -> RaggedRows:
    """Word counts in memory or on disk as rows: the counts, and the documents' numbers."""
    if isinstance(counts, TableFiles):
        return _in_chunks((counts.astype(dtype), np.arange(counts.shape[0])), threads_of(n_jobs))
    table = sparse.csr_matrix((counts.data.astype(dtype), counts.indices, counts.indptr), shape=counts.shape)
    return _in_chunks((table, np.arange(counts.shape[0])), threads_of(n_jobs))


class DocumentsElsewhere(ABC):
    """Documents that are not here; what a fit asks of them."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]: ...

    @property
    @abstractmethod
    def nnz(self) -> int:
        """Above zero where any document has a word."""

    @property
    @abstractmethod
    def vocabulary(self) -> tuple[str, ...]: ...

    @abstractmethod
    def rows(self, dtype: DTypeLike) -> Rows:
        """Their counts and numbers as rows."""


def document_rows(counts: Any, dtype: DTypeLike, n_jobs: int | None) -> Rows:
    """Word counts as rows, wherever they are."""
    return counts.rows(dtype) if isinstance(counts, DocumentsElsewhere) else store_documents(counts, dtype, n_jobs)


def _in_chunks(data: Data, threads: int) -> RaggedRows:
    pairs = max(PAIRS, PAIRS_PER_WORD * data[0].shape[1])
    return RaggedRows(data, np.broadcast_to(1.0, len(data[1])), pairs, ("counts", "number"), threads)


class Overview(NamedTuple):
    """What is asked of the documents before a fit."""

    uses: np.ndarray  # (V,) tokens of each word
    used: int  # documents with words
    prints: int  # a number that other documents would not have

    @property
    def tokens(self) -> float:
        return float(self.uses.sum())


def look_over(rows: Rows) -> Overview:
    found = rows.map(overview_pass, None).sums
    return Overview(found["uses"], int(found["used"]), int(found["prints"]))


def overview_pass(theta: None, data: Data, weight: np.ndarray, state: State) -> Passed:
    counts = data[0]
    uses = np.bincount(counts.indices, weights=counts.data, minlength=counts.shape[1])
    parts = (counts.indptr, counts.indices, counts.data.astype(float), data[1])
    prints = sum((i + 1) * zlib.crc32(np.ascontiguousarray(part).tobytes()) for i, part in enumerate(parts))
    return {"uses": uses, "used": int((np.diff(counts.indptr) > 0).sum()), "prints": prints}, {}, None


class Asked(NamedTuple):
    """What is the same for all documents of a pass with expected counts."""

    topics: Topics
    sweeps: int
    tol: float
    leave_out: bool = False
    inference: str = "collapsed"


class AskedDraws(NamedTuple):
    """What is the same for all documents of a pass with draws."""

    topics: Topics
    seed: np.uint64
    together: bool
    leave_out: bool


def _arrays(data: Data, topics: Topics) -> tuple[Any, ...]:
    """A chunk and the topics as all kernels take them."""
    counts = data[0]
    documents = (counts.indptr.astype(np.int64), counts.indices.astype(np.int32, copy=False))
    shared = (topics.eta, topics.alpha, topics.total, topics.bursty)
    return *documents, counts.data.astype(topics.eta.dtype, copy=False), *shared


def _chunk_sums(data: Data, topics: Topics, table: np.ndarray, terms: np.ndarray, evidence: np.ndarray) -> Sums:
    counts = data[0]
    lengths = np.diff(np.concatenate([[0.0], np.cumsum(counts.data, dtype=float)])[counts.indptr])
    return {
        "table_counts": table,
        "alpha_table_counts": terms[0],
        "total_terms": terms[1],
        "alpha_terms": special.length_terms(float(topics.alpha.sum(dtype=float)), lengths),
        "evidence": evidence.sum(),
        "words": lengths.sum(),
        "documents": len(lengths),
    }


def expected_pass(asked: Asked, data: Data, weight: np.ndarray, state: State) -> Passed:
    """One collapsed E-step, started where the last one ended."""
    topics, counts = asked.topics, data[0]
    warm = state is not None
    if state is None:
        state = {
            "tokens": np.zeros((counts.shape[0], topics.size), topics.eta.dtype),
            "own_topics": np.zeros((counts.nnz, kernels.REMEMBERED), np.uint16),
            "own_amounts": np.zeros((counts.nnz, kernels.REMEMBERED), topics.eta.dtype),
        }
    table, terms, evidence = np.zeros(topics.eta.shape), np.zeros((2, topics.size)), np.zeros(counts.shape[0])
    own = (topics.share, topics.floor, asked.leave_out and warm, state["own_topics"], state["own_amounts"])
    run = (state["tokens"], warm, asked.sweeps, asked.tol, True, table, _nothing(topics), evidence, *terms)
    kernels.collapsed(*_arrays(data, topics), *own, *run)
    return _chunk_sums(data, topics, table, terms, evidence), {}, state


def _nothing(topics: Topics) -> np.ndarray:
    return np.empty((0, topics.size), topics.eta.dtype)


def meanfield_pass(asked: Asked, data: Data, weight: np.ndarray, state: State) -> Passed:
    """One mean-field E-step; the evidence is the bound at the topics given."""
    topics, counts = asked.topics, data[0]
    warm = state is not None
    if state is None:
        state = {
            "tokens": np.zeros((counts.shape[0], topics.size), topics.eta.dtype),
            "expected": _kept((counts.nnz, topics.size), topics.eta.dtype),
        }
    table, terms, bound = np.zeros(topics.eta.shape), np.zeros((2, topics.size)), np.zeros(counts.shape[0])
    run = (state["tokens"], warm, asked.sweeps, asked.tol, True, table, state["expected"], bound, *terms)
    meanfield.mean_field(*_arrays(data, topics), *run)
    return _chunk_sums(data, topics, table, terms, bound), {}, state


def _kept(shape: tuple[int, int], dtype: np.dtype) -> np.ndarray:
    """Room for numbers that wait for the next pass: in memory, or in a file that is gone with them."""
    if shape[0] * shape[1] * dtype.itemsize <= KEPT_IN_MEMORY:
        return np.empty(shape, dtype)
    with tempfile.TemporaryFile(prefix="robustly-") as file:
        file.truncate(shape[0] * shape[1] * dtype.itemsize)
        return np.asarray(np.memmap(file, dtype, "r+", shape=shape))


def drawn_pass(asked: AskedDraws, data: Data, weight: np.ndarray, state: State) -> Passed:
    """A pass in which every token's topic is drawn, from those of the last one or else from the expected counts."""
    topics, counts = asked.topics, data[0]
    fresh = state is None or "slots" not in state
    if state is None or fresh:
        slots = np.concatenate([[0], np.cumsum(np.minimum(np.ceil(counts.data), draws.BUNDLES).astype(np.int64))])
        zeros = np.zeros((counts.shape[0], topics.size), topics.eta.dtype)
        state = {
            "tokens": zeros if state is None else state["tokens"],
            "slots": slots,
            "places": np.zeros(slots[-1], np.uint16),
            "given": np.zeros(slots[-1], topics.eta.dtype),
        }
    if not asked.leave_out:
        state["given"][:] = 0
    table, terms, evidence = np.zeros(topics.eta.shape), np.zeros((2, topics.size)), np.zeros(counts.shape[0])
    held = (topics.share, topics.floor, state["tokens"], fresh, asked.together and not fresh, asked.seed)
    own = (state["slots"], state["places"], state["given"], table, evidence, *terms)
    draws.drawn(data[1], *_arrays(data, topics), *held, *own)
    state["tokens"] = _nothing(topics)  # only the first draws come from expected counts
    return _chunk_sums(data, topics, table, terms, evidence), {}, state


def rename_pass(new: np.ndarray, data: Data, weight: np.ndarray, state: State) -> Passed:
    """After draws: topic k goes by the number ``new[k]``."""
    assert state is not None
    return {}, {}, state | {"places": new[state["places"]]}


def by_document_pass(asked: tuple[np.ndarray, int], data: Data, weight: np.ndarray, state: State) -> Passed:
    """Tokens and table counts of the last draws, (documents chosen, K) each."""
    chosen, size = asked
    counts = data[0]
    assert state is not None
    tokens, table_counts = np.zeros((2, len(chosen), size))
    slots, starts = state["slots"], counts.indptr
    for at in np.flatnonzero((chosen >= data[1][0]) & (chosen <= data[1][-1])) if len(data[1]) else ():
        d = int(np.searchsorted(data[1], chosen[at]))
        first, last = slots[starts[d]], slots[starts[d + 1]]
        each = np.diff(slots[starts[d] : starts[d + 1] + 1])
        weights = np.repeat(counts.data[starts[d] : starts[d + 1]] / np.maximum(each, 1), each)
        tokens[at] = np.bincount(state["places"][first:last], weights=weights, minlength=size)
        table_counts[at] = np.bincount(state["places"][first:last], weights=state["given"][first:last], minlength=size)
    return {"tokens": tokens, "table_counts": table_counts}, {}, state


def reading_pass(asked: Asked, data: Data, weight: np.ndarray, state: State) -> Passed:
    """Documents' expected tokens by topic and their evidence, topics held as they are."""
    tokens, evidence, _ = read_chunk(asked, data)
    return {}, {"tokens": tokens, "evidence": evidence}, None


def usage_pass(asked: Asked, data: Data, weight: np.ndarray, state: State) -> Passed:
    """(V, K) expected tokens of each word in each topic, topics held as they are."""
    table = np.zeros(asked.topics.eta.shape)
    read_chunk(asked, data, table)
    return {"usage": table}, {}, None


def read_chunk(
    asked: Asked, data: Data, table: np.ndarray | None = None, out: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, tuple[Any, ...]]:
    """Expected tokens (D, K) and evidence of documents that the topics are not learnt from, and the kernels' arrays.

    Expected counts are added to `table` by word and written to `out` by pair where these are given.
    """
    topics, counts = asked.topics, data[0]
    arrays = _arrays(data, topics)
    tokens, evidence = np.zeros((counts.shape[0], topics.size), topics.eta.dtype), np.zeros(counts.shape[0])
    sums = np.zeros((0, topics.size)) if table is None else table
    unused = np.zeros((2, topics.size))
    if asked.inference == "meanfield":
        expected = np.empty((counts.nnz, topics.size), topics.eta.dtype) if out is None else out
        run = (tokens, False, asked.sweeps, asked.tol, False, sums, expected, evidence, *unused)
        meanfield.mean_field(*arrays, *run)
    else:
        none = (np.zeros((1, kernels.REMEMBERED), np.uint16), np.zeros((1, kernels.REMEMBERED), topics.eta.dtype))
        run = (tokens, False, asked.sweeps, asked.tol, False, sums, _nothing(topics) if out is None else out, evidence)
        kernels.collapsed(*arrays, topics.share, topics.floor, False, *none, *run, *unused)
    return tokens, evidence, arrays


def held(topics: Topics, inference: str = "collapsed", sweeps: int = 100, tol: float = 1e-4) -> Asked:
    """What is asked of documents that are only read."""
    return Asked(topics, sweeps, tol, inference=inference)


@dataclass
class Documents:
    """Documents in a store, and the slot in which what is remembered of one pass waits for the next."""

    rows: Rows
    slot: Slot

    @classmethod
    def of(cls, counts: Any, dtype: DTypeLike = np.float32, n_jobs: int | None = None) -> Documents:
        """A table in memory, on disk or elsewhere."""
        return cls(document_rows(counts, dtype, n_jobs), Slot())

    @property
    def threads(self) -> int:
        return getattr(self.rows, "threads", THREADS)

    def some(self, number: int, seed: int) -> Documents:
        """So many of the documents, in memory."""
        chosen: ArrayRows = self.rows.sample(number, seed)
        return Documents(_in_chunks(chosen.data, self.threads), Slot())

    def collect(self, topics: Topics, sweeps: int, tol: float, leave_out: bool = True) -> Statistics:
        """One pass with expected counts."""
        return self._pass(expected_pass, Asked(topics, sweeps, tol, leave_out))

    def collect_meanfield(self, topics: Topics, sweeps: int, tol: float) -> Statistics:
        """One pass of mean field."""
        return self._pass(meanfield_pass, Asked(topics, sweeps, tol))

    def collect_drawn(
        self, topics: Topics, seed: np.uint64, together: bool = False, leave_out: bool = True
    ) -> Statistics:
        """One pass with draws.

        `together` moves bursts as one. What the documents gave to the topics is left out of them unless `leave_out` is
        False, as it is for documents that the topics never saw.
        """
        return self._pass(drawn_pass, AskedDraws(topics, seed, together, leave_out), drawn=True)

    def _pass(self, chunk_pass: Pass, asked: Asked | AskedDraws, drawn: bool = False) -> Statistics:
        sums = self.rows.map(chunk_pass, asked, keep=self.slot, into=self.slot).sums
        numbers = {name: float(sums[name]) for name in ("alpha_terms", "evidence", "words")}
        return Statistics(**{**sums, **numbers, "documents": int(sums["documents"])}, drawn=drawn)

    def rename_topics(self, new: np.ndarray) -> None:
        """After draws: topic k goes by the number ``new[k]``."""
        self.rows.map(rename_pass, new.astype(np.uint16), keep=self.slot, into=self.slot)

    def drawn_by_document(self, most: int, size: int) -> tuple[np.ndarray, np.ndarray, float]:
        """Tokens and table counts of the last draws by document and topic, of at most so many documents spread over the
        corpus, and how many documents each of them stands for."""
        number = len(self.rows)
        chosen = np.unique(np.linspace(0, number - 1, min(number, most)).astype(int))
        found = self.rows.map(by_document_pass, (chosen, size), keep=self.slot).sums
        return found["tokens"], found["table_counts"], number / max(len(chosen), 1)

    def usage(self, topics: Topics) -> np.ndarray:
        """(V, K) expected tokens of each word in each topic, topics held as they are."""
        return np.asarray(self.rows.map(usage_pass, held(topics, sweeps=5, tol=1e-2)).sums["usage"], np.float32)

    def remembered(self) -> dict[str, np.ndarray]:
        """All that the next pass depends on besides the topics."""
        assert isinstance(self.rows, RaggedRows | DaskRows)
        found: dict[str, np.ndarray] = {}
        for i, held in enumerate(self.rows.states(self.slot) or ()):
            # Of a partition, the states of its chunks.
            for j, state in enumerate(held if isinstance(held, list) else [held]):
                number = f"{i}-{j}" if isinstance(held, list) else f"{i}"
                found |= {f"{name} {number}": array for name, array in state.items()}
        return found

    def recall(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take up what :meth:`remembered` gave."""
        states: dict[int, dict[int, dict[str, np.ndarray]]] = {}
        for key, array in arrays.items():
            name, _, number = key.rpartition(" ")
            i, _, j = number.partition("-")
            if i.isdigit():
                states.setdefault(int(i), {}).setdefault(int(j or 0), {})[name] = array
        if not states:
            return
        assert isinstance(self.rows, RaggedRows | DaskRows)
        each = [[states[i][j] for j in range(len(states[i]))] for i in range(len(states))]
        self.rows.put_states(self.slot, each if isinstance(self.rows, DaskRows) else [held[0] for held in each])
