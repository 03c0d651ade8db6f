"""How is a pass made over the documents? In blocks, on threads, with sums always taken in the same order.

A block is as many documents as keep the work array (pairs of document and word, times topics) small. Threads share out
the documents of a block for the E-step and then its words for the sums, so no two of them ever add to the same number:
memory does not grow with the threads, and neither the blocks nor the order of any sum depends on how many there are.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import IO, Any

import numpy as np
from scipy import sparse
from scipy.special import gammaln

from robustly.topics import draws, kernels, meanfield, special

BLOCK_BYTES = 1 << 25
PARTS = 16
# A word that was never seen weighs as much in the base of the topics as this part of a word seen once.
UNSEEN = 0.1
# Past this many pseudo-words a topic is the same in every document to single precision.
MOST_CONCENTRATED = 1e7
LEAST_CONCENTRATED = 1e-3
# Minka's step for Σ_w η is short; lengthened this much (on the log scale, below 2) it still settles, in fewer passes.
LONGER_STEP = 1.8


@dataclass(frozen=True)
class Topics:
    """What the documents share. For plain LDA `eta` holds probabilities and `total` is not used."""

    eta: np.ndarray  # (V, K)
    total: np.ndarray  # (K,) Σ_w η
    alpha: np.ndarray  # (K,)
    bursty: bool
    share: np.ndarray  # (K,) what one unit of statistic is worth in η
    floor: np.ndarray  # (V,) the smoothing, in units of statistic
    strength: float  # of the smoothing

    @property
    def size(self) -> int:
        return self.eta.shape[1]

    def astype(self, dtype: Any) -> Topics:
        """The same topics in another precision."""
        arrays = {name: getattr(self, name).astype(dtype) for name in ("eta", "total", "alpha", "share", "floor")}
        return replace(self, **arrays)


@dataclass
class Statistics:
    """Sums over documents: all that an update of the topics needs."""

    table_counts: np.ndarray  # (V, K) expected Chinese-restaurant table counts; for plain LDA, expected tokens
    total_terms: np.ndarray  # (K,)
    alpha_table_counts: np.ndarray  # (K,)
    alpha_terms: float
    evidence: float
    words: float
    documents: int
    drawn: bool = False  # of drawn topics, so that there are no small chances among the counts

    def blend(self, new: Statistics, rate: float, scale: float) -> Statistics:
        """Move towards `scale` times the statistics of a new batch."""
        keep, take = 1.0 - rate, rate * scale
        return Statistics(
            keep * self.table_counts + take * new.table_counts,
            keep * self.total_terms + take * new.total_terms,
            keep * self.alpha_table_counts + take * new.alpha_table_counts,
            keep * self.alpha_terms + take * new.alpha_terms,
            new.evidence,
            new.words,
            self.documents + new.documents,
            new.drawn,
        )

    @staticmethod
    def mean(of: Sequence[Statistics]) -> Statistics:
        """The average over passes of the same documents."""
        total = of[0]
        for one in of[1:]:
            total = replace(
                total,
                table_counts=total.table_counts + one.table_counts,
                total_terms=total.total_terms + one.total_terms,
                alpha_table_counts=total.alpha_table_counts + one.alpha_table_counts,
                alpha_terms=total.alpha_terms + one.alpha_terms,
            )
        n = len(of)
        return replace(
            total,
            table_counts=total.table_counts / n,
            total_terms=total.total_terms / n,
            alpha_table_counts=total.alpha_table_counts / n,
            alpha_terms=total.alpha_terms / n,
        )


@dataclass(frozen=True)
class Block:
    """Documents ``first:last`` and the way their (document, word) pairs are gathered word by word."""

    first: int
    last: int
    offset: int
    document_cuts: np.ndarray
    words: np.ndarray
    word_starts: np.ndarray
    order: np.ndarray
    word_cuts: np.ndarray


class Workers:
    """A few threads, or none: ``run(function, calls)`` calls the function with each tuple of arguments."""

    def __init__(self, n_jobs: int | None = None) -> None:
        available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
        if n_jobs is None:
            n_jobs = available
        elif n_jobs < 0:
            n_jobs = max(1, available + 1 + n_jobs)
        self._pool = ThreadPoolExecutor(n_jobs) if n_jobs > 1 else None

    def run(self, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        if self._pool is None:
            return [function(*call) for call in calls]
        return list(self._pool.map(lambda call: function(*call), calls))

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()


class Spool:
    """Blocks of numbers kept from one pass for the next: a single block in memory, more in a temporary file."""

    def __init__(self) -> None:
        self._only: np.ndarray | None = None
        self._file: IO[bytes] | None = None
        self._places: dict[int, int] = {}

    def put(self, number: int, block: np.ndarray, only: bool) -> None:
        if only:
            self._only = block
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="robustly-")  # noqa: SIM115  lives as long as the spool
            weakref.finalize(self, self._file.close)
        place = self._places.setdefault(number, self._file.seek(0, os.SEEK_END))
        self._file.seek(place)
        self._file.write(memoryview(np.ascontiguousarray(block)).cast("B"))

    def get(self, number: int, shape: tuple[int, int], dtype: np.dtype) -> np.ndarray:
        if self._only is not None:
            return self._only
        assert self._file is not None
        self._file.seek(self._places[number])
        block = np.empty(shape, dtype)
        self._file.readinto(memoryview(block).cast("B"))  # type: ignore[attr-defined]
        return block


def cut(starts: np.ndarray, first: int, last: int, parts: int) -> np.ndarray:
    """Cut ``first:last`` into at most `parts` pieces of like weight."""
    goals = np.linspace(starts[first], starts[last], parts + 1)
    cuts = np.searchsorted(starts[first : last + 1], goals) + first
    cuts[0], cuts[-1] = first, last
    return np.unique(cuts)


class Documents:
    """A corpus laid out for passes with `size` topics, and what is remembered of one pass for the next."""

    def __init__(self, counts: sparse.csr_matrix, size: int, dtype: Any = np.float32) -> None:
        self.starts = counts.indptr.astype(np.int64)
        self.words = counts.indices.astype(np.int32, copy=False)
        self.counts = counts.data.astype(dtype)
        self.shape = counts.shape
        self.size = size
        self.dtype = np.dtype(dtype)
        self.lengths = np.asarray(counts.sum(axis=1), dtype=float).ravel()
        rows = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
        self.log_orders = np.bincount(rows, weights=gammaln(counts.data + 1.0), minlength=counts.shape[0])
        self.state = np.zeros((counts.shape[0], size), dtype)
        self.warm = False
        self._spool: Spool | None = None
        self._slots: np.ndarray | None = None
        self._topics = np.zeros((0, kernels.REMEMBERED), np.uint16)
        self._amounts = np.zeros((0, kernels.REMEMBERED), dtype)
        self.blocks = list(self._lay_out(max(1, BLOCK_BYTES // (size * self.dtype.itemsize))))

    def _lay_out(self, pairs: int) -> Iterator[Block]:
        first, documents = 0, self.shape[0]
        while first < documents:
            last = int(np.searchsorted(self.starts, self.starts[first] + pairs, side="right")) - 1
            last = min(max(last, first + 1), documents)
            begin, end = self.starts[first], self.starts[last]
            order = np.argsort(self.words[begin:end], kind="stable")
            words, counts = np.unique(self.words[begin:end], return_counts=True)
            word_starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
            yield Block(
                first,
                last,
                int(begin),
                cut(self.starts, first, last, PARTS),
                words,
                word_starts,
                order.astype(np.int32 if order.size < 2**31 else np.int64),
                cut(word_starts, 0, len(words), PARTS),
            )
            first = last

    def _remembered(self) -> tuple[np.ndarray, np.ndarray]:
        if len(self._topics) != len(self.words):
            self._topics = np.zeros((len(self.words), kernels.REMEMBERED), np.uint16)
            self._amounts = np.zeros((len(self.words), kernels.REMEMBERED), self.dtype)
        return self._topics, self._amounts

    def remembered(self) -> dict[str, np.ndarray]:
        """All that the next pass depends on besides the topics."""
        arrays = {"state": self.state, "own_topics": self._topics, "own_amounts": self._amounts}
        if self._slots is not None:
            arrays |= {"slots": self._slots, "places": self._places, "given": self._given}
        if self._spool is not None:
            arrays |= {f"spool_{i}": self._spool.get(i, *self._block_shape(i)) for i in range(len(self.blocks))}
        return arrays

    def recall(self, arrays: Mapping[str, np.ndarray], warm: bool) -> None:
        """Take up what :meth:`remembered` gave."""
        self.state, self.warm = arrays["state"], warm
        self.size = self.state.shape[1]
        self._topics, self._amounts = arrays["own_topics"], arrays["own_amounts"]
        if "slots" in arrays:
            self._slots, self._places, self._given = (arrays[name] for name in ("slots", "places", "given"))
        if "spool_0" in arrays:
            self._spool = Spool()
            for i in range(len(self.blocks)):
                self._spool.put(i, arrays[f"spool_{i}"], only=len(self.blocks) == 1)

    def rename_topics(self, new: np.ndarray, size: int) -> None:
        """After draws: topic k goes by the number ``new[k]`` of `size`."""
        self._places = new.astype(np.uint16)[self._places]
        self.state, self.size = np.zeros((self.shape[0], size), self.dtype), size

    def drawn_by_document(self, most: int) -> tuple[np.ndarray, np.ndarray, float]:
        """Tokens and statistic of the last draws by document and topic, of at most so many documents spread over the
        corpus, and how many documents each of them stands for."""
        assert self._slots is not None
        number = self.shape[0]
        chosen = np.unique(np.linspace(0, number - 1, min(number, most)).astype(int))
        tokens = np.zeros((len(chosen), self.size))
        given = np.zeros((len(chosen), self.size))
        for row, d in enumerate(chosen):
            first, last = self._slots[self.starts[d]], self._slots[self.starts[d + 1]]
            counts = np.diff(self._slots[self.starts[d] : self.starts[d + 1] + 1])
            weights = np.repeat(self.counts[self.starts[d] : self.starts[d + 1]] / np.maximum(counts, 1), counts)
            tokens[row] = np.bincount(self._places[first:last], weights=weights, minlength=self.size)
            given[row] = np.bincount(self._places[first:last], weights=self._given[first:last], minlength=self.size)
        return tokens, given, number / max(len(chosen), 1)

    def _block_shape(self, number: int) -> tuple[tuple[int, int], np.dtype]:
        block = self.blocks[number]
        return (int(self.starts[block.last]) - block.offset, self.size), self.dtype

    def forget(self) -> None:
        """Give back what only expected counts need: where each document's own part of the topics is."""
        self._topics, self._amounts = self._topics[:0].copy(), self._amounts[:0].copy()

    def work_array(self) -> np.ndarray:
        largest = max((int(self.starts[b.last]) - b.offset for b in self.blocks), default=0)
        return np.empty((largest, self.size), self.dtype)

    def collect(self, topics: Topics, workers: Workers, sweeps: int, tol: float, leave_out: bool = True) -> Statistics:
        """One pass of the collapsed E-step, started where the last one ended."""
        remembered, amounts = self._remembered()
        table_counts = np.zeros((self.shape[1], self.size))
        evidence = np.zeros(self.shape[0])
        terms = []
        out = self.work_array()
        for block in self.blocks:
            sums = np.zeros((len(block.document_cuts) - 1, 2, self.size))
            shared = (self.starts, self.words, self.counts, topics.eta, topics.alpha, topics.total, topics.bursty)
            held = (topics.share, topics.floor, leave_out and self.warm, remembered, amounts, self.state, self.warm)
            run = (sweeps, tol, True, out, evidence)
            calls = [
                (a, b, block.offset, *shared, *held, *run, sums[i, 0], sums[i, 1])
                for i, (a, b) in enumerate(pairwise(block.document_cuts))
            ]
            workers.run(kernels.collapsed, calls)
            terms.append(sums.sum(axis=0))
            self._gather(block, out, table_counts, workers)
        self.warm = True
        alpha_table_counts, total_terms = np.sum(terms, axis=0) if terms else np.zeros((2, self.size))
        evidence = self._per_token(evidence, topics, 0, self.shape[0])
        return self._statistics(topics, table_counts, total_terms, alpha_table_counts, float(evidence.sum()))

    def collect_drawn(
        self, topics: Topics, workers: Workers, seed: np.uint64, together: bool = False, leave_out: bool = True
    ) -> Statistics:
        """One pass in which every token's topic is drawn, from those of the last one or else from the expected counts.

        `together` moves bursts as one. What the documents gave to the topics is left out of them unless `leave_out` is
        False, as it is for documents that the topics never saw.
        """
        fresh = self._slots is None
        if self._slots is None:
            tokens = np.minimum(np.ceil(self.counts), draws.BUNDLES).astype(np.int64)
            self._slots = np.concatenate([[0], np.cumsum(tokens)])
            self._places = np.zeros(self._slots[-1], np.uint16)
            self._given = np.zeros(self._slots[-1], self.dtype)
        if not leave_out:
            self._given[:] = 0
        table_counts = np.zeros((self.shape[1], self.size))
        evidence = np.zeros(self.shape[0])
        terms = np.zeros((2, self.size))
        slots, places, given = self._slots, self._places, self._given
        for block in self.blocks:
            sums = np.zeros((len(block.document_cuts) - 1, 2, self.size))
            shared = (self.starts, self.words, self.counts, topics.eta, topics.alpha, topics.total, topics.bursty)
            held = (
                topics.share,
                topics.floor,
                self.state,
                fresh,
                together and not fresh,
                seed,
                slots,
                places,
                given,
                evidence,
            )
            calls = [(a, b, *shared, *held, *sums[i]) for i, (a, b) in enumerate(pairwise(block.document_cuts))]
            workers.run(draws.drawn, calls)
            terms += sums.sum(axis=0)
            where = (block.words, block.word_starts, block.order, block.offset, slots, places, given, table_counts)
            workers.run(draws.gather, [(a, b, *where) for a, b in pairwise(block.word_cuts)])
        logs = self.lengths * np.log(topics.alpha.sum(dtype=float) + np.maximum(self.lengths - 1.0, 0.0))
        return replace(
            self._statistics(topics, table_counts, terms[1], terms[0], float((evidence - logs).sum())), drawn=True
        )

    def _per_token(self, evidence: np.ndarray, topics: Topics, first: int, last: int) -> np.ndarray:
        """From the kernel's weights to log probabilities of the tokens in their order, for documents ``first:last``."""
        lengths = self.lengths[first:last]
        logs = lengths * np.log(topics.alpha.sum(dtype=float) + np.maximum(lengths - 1.0, 0.0))
        if topics.bursty:
            return evidence - logs + self.log_orders[first:last]
        return evidence - logs

    def collect_meanfield(self, topics: Topics, workers: Workers, sweeps: int, tol: float) -> Statistics:
        """One pass of the mean-field E-step; `evidence` is the bound at the topics given, before their update."""
        table_counts = np.zeros((self.shape[1], self.size))
        terms = []
        bound = np.zeros(self.shape[0])
        if self._spool is None:
            self._spool = Spool()
        statistic = self.work_array()
        for number, block in enumerate(self.blocks):
            shape = (int(self.starts[block.last]) - block.offset, self.size)
            out = self._spool.get(number, shape, self.dtype) if self.warm else np.empty(shape, self.dtype)
            sums = np.zeros((len(block.document_cuts) - 1, 2, self.size))
            shared = (self.starts, self.words, self.counts, topics.eta, topics.alpha, topics.total, topics.bursty)
            run = (self.state, self.warm, sweeps, tol, True, out, statistic, bound)
            calls = [
                (a, b, block.offset, *shared, *run, sums[i, 0], sums[i, 1])
                for i, (a, b) in enumerate(pairwise(block.document_cuts))
            ]
            workers.run(meanfield.mean_field, calls)
            terms.append(sums.sum(axis=0))
            self._gather(block, statistic, table_counts, workers)
            self._spool.put(number, out, only=len(self.blocks) == 1)
        self.warm = True
        alpha_table_counts, total_terms = np.sum(terms, axis=0) if terms else np.zeros((2, self.size))
        return self._statistics(topics, table_counts, total_terms, alpha_table_counts, float(bound.sum()))

    def infer(
        self, topics: Topics, workers: Workers, sweeps: int = 100, tol: float = 1e-4, inference: str = "collapsed"
    ) -> Iterator[tuple[Block, np.ndarray, np.ndarray]]:
        """Each block with its expected counts (pairs, K) and its documents' evidence, topics held as they are."""
        out = self.work_array()
        evidence = np.zeros(self.shape[0])
        none = (np.zeros((1, kernels.REMEMBERED), np.uint16), np.zeros((1, kernels.REMEMBERED), self.dtype))
        unused = np.zeros((2, self.size))
        for block in self.blocks:
            shared = (self.starts, self.words, self.counts, topics.eta, topics.alpha, topics.total, topics.bursty)
            run: tuple[Any, ...]
            pieces = list(pairwise(block.document_cuts))
            if inference == "meanfield":
                run = (self.state, False, sweeps, tol, False, out, out, evidence, unused[0], unused[1])
                workers.run(meanfield.mean_field, [(a, b, block.offset, *shared, *run) for a, b in pieces])
            else:
                held = (topics.share, topics.floor, False, *none, self.state, False)
                run = (sweeps, tol, False, out, evidence, unused[0], unused[1])
                workers.run(kernels.collapsed, [(a, b, block.offset, *shared, *held, *run) for a, b in pieces])
                whole = self._per_token(evidence[block.first : block.last], topics, block.first, block.last)
                evidence[block.first : block.last] = whole
            yield block, out, evidence[block.first : block.last]

    def usage(self, topics: Topics, workers: Workers) -> np.ndarray:
        """(V, K) expected tokens of each word in each topic, topics held as they are."""
        tokens = np.zeros((self.shape[1], self.size))
        for block, out, _ in self.infer(topics, workers, sweeps=5, tol=1e-2):
            self._gather(block, out, tokens, workers)
        return tokens.astype(np.float32)

    def _gather(self, block: Block, out: np.ndarray, table_counts: np.ndarray, workers: Workers) -> None:
        cuts = block.word_cuts
        calls = [(a, b, block.words, block.word_starts, block.order, out, table_counts) for a, b in pairwise(cuts)]
        workers.run(kernels.gather, calls)

    def _statistics(
        self,
        topics: Topics,
        table_counts: np.ndarray,
        total_terms: np.ndarray,
        alpha_table_counts: np.ndarray,
        evidence: float,
    ) -> Statistics:
        alpha_terms = special.length_terms(float(topics.alpha.sum(dtype=float)), self.lengths)
        return Statistics(
            table_counts,
            total_terms,
            alpha_table_counts,
            alpha_terms,
            evidence,
            float(self.lengths.sum()),
            self.shape[0],
        )


def make_topics(
    table_counts: np.ndarray,
    base: np.ndarray,
    strength: float,
    total: np.ndarray,
    alpha: np.ndarray,
    bursty: bool,
    dtype: Any,
) -> Topics:
    """Topics whose directions are `table_counts` smoothed towards `base`, with concentrations `total`."""
    # Without smoothing a topic that lost its last word has no direction, and keeps the least η of every word.
    mass = np.maximum(table_counts.sum(axis=0) + strength, 1e-10)
    share = (total if bursty else np.ones_like(total)) / mass
    eta = np.empty(table_counts.shape, dtype)
    np.multiply(table_counts, share, out=eta, casting="same_kind")
    eta += (strength * base)[:, None] * share
    np.maximum(eta, special.LEAST_ETA, out=eta)
    as_kernel = [np.ascontiguousarray(value, dtype) for value in (total, alpha, share, strength * base)]
    return Topics(eta, as_kernel[0], as_kernel[1], bursty, as_kernel[2], as_kernel[3], float(strength))


def fit_prior(
    topics: Topics, table_counts: np.ndarray, strength: float, workers: Workers, drawn: bool = False
) -> tuple[np.ndarray, float]:
    r"""Minka's step for the prior of the topics' directions, Dirichlet(strength · base): the base and the new strength.

    Every word is alike in the base. A base fitted word by word puts the common words into all topics, which makes the
    topics more alike, which makes the fitted strength larger: on few long documents that ends in copies of one topic
    (Wallach, Mimno & McCallum 2009 found the same for plain LDA). A single topic has nothing to be smoothed towards but
    itself, and is maximum likelihood.
    """
    words, size = table_counts.shape
    if size == 1 and topics.bursty:
        base = np.maximum(table_counts.sum(axis=1), UNSEEN)
        base /= base.sum()
    else:
        base = np.full(words, 1.0 / words)
    if strength == 0 or not table_counts.any():
        return base, strength
    due = np.zeros(words)
    cuts = np.unique(np.linspace(0, words, PARTS + 1).astype(int))
    calls = [(a, b, table_counts, strength * base, drawn, due) for a, b in pairwise(cuts)]
    workers.run(kernels.smoothing_terms, calls)
    fitted = due.sum() / special.length_terms(strength, table_counts.sum(axis=0))
    return base, float(np.clip(fitted, 1e-3, 1e9))


def update(
    topics: Topics,
    found: Statistics,
    workers: Workers,
    smoothing: float | None,
    fit_alpha: bool,
    base: np.ndarray | None = None,
    step: float = 1.0,
) -> Topics:
    r"""The M-step on the collapsed terms: Minka's fixed point for α, each :math:`\sum_w \eta_{kw}` and the directions.

    What the update needs of the documents are expected Chinese-restaurant table counts: of a word's tokens in a topic,
    how many are due to the shared topic rather than repeat an earlier one. Directions have a symmetric Dirichlet prior
    whose strength (in the same counts) is fitted too, see `fit_prior`; `smoothing` holds the strength. A given `base`
    (summing to one) holds both, and with a `step` of one makes the update an ascent of bound plus log prior.
    """
    table_counts = found.table_counts
    strength = topics.strength if smoothing is None else smoothing
    if base is None:
        base, fitted = fit_prior(topics, table_counts, strength, workers, found.drawn)
        strength = fitted if smoothing is None else smoothing
    total = topics.total.astype(float)
    if topics.bursty:
        mass = table_counts.sum(axis=0)
        used = found.total_terms > 1e-10
        total[used] *= (mass[used] / found.total_terms[used] / total[used]) ** step
        total = np.clip(total, LEAST_CONCENTRATED, MOST_CONCENTRATED)
    alpha = topics.alpha.astype(float)
    if fit_alpha and found.alpha_terms > 0:
        alpha = np.clip(found.alpha_table_counts / found.alpha_terms, 1e-5, 1e3)
    return make_topics(table_counts, base, strength, total, alpha, topics.bursty, topics.eta.dtype)
