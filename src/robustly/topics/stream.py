r"""How are topics learnt from batches that are seen once? By sums that forget, and hyperparameters that follow.

While a stream is short, what was seen so far is fitted as a corpus now and then. Of every other batch the topics of all tokens are drawn some times, starting
from expected counts. Table counts enter the running sums with a rate that falls from batch to batch. The concentrations
α and H cannot be read off such sums, because what was added long ago belonged to other values of them: they are brought
to rest on the batch alone and then moved towards that by the same rate, H on the log scale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from robustly.topics.passes import Documents
from robustly.topics.shared import Statistics, Topics, fit_prior, make_topics, update

# A stream of no more tokens than this is kept, and fitted anew from where it is whenever it has grown so much: together
# that costs a few fits, and what the first batches could not tell apart is not held against later ones.
SHORT_STREAM = 500_000
REFIT_GROWTH = 1.25
# Draws of a batch, and how many of the last are kept.
DRAWS = 30
KEPT = 15
# Steps of the prior's strength after each batch; it costs nothing beside the draws.
STRENGTH_STEPS = 5


@dataclass
class Stream:
    """What a model remembers from one batch to the next."""

    seed: int
    fitted_tokens: float = 0.0
    statistics: Statistics | None = None
    seen: sparse.csr_matrix | None = None  # all documents, while they are few

    def add(self, counts: sparse.csr_matrix) -> None:
        """Keep the documents while the stream is short."""
        if self.seen is not None:
            self.seen = sparse.vstack([self.seen, counts], format="csr")
            if self.seen.sum() > SHORT_STREAM:
                self.seen = None


def seed_of(*numbers: int) -> np.uint64:
    """A seed that follows from some numbers."""
    return np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]


@dataclass(frozen=True)
class Batch:
    """What a batch says: statistics averaged over draws, and where α and H rest on it."""

    statistics: Statistics
    alpha: np.ndarray
    total: np.ndarray
    evidence: float


def read_batch(
    documents: Documents, topics: Topics, seed: Callable[[int], np.uint64], sweeps: int, draws: bool
) -> Batch:
    """Read the documents with the topics' directions held."""
    # Nothing is remembered of a first visit, so a few sweeps more than in a fit.
    found = documents.collect(topics, max(sweeps, 10), 1e-3)
    evidence = found.evidence / found.words
    if not draws:
        local = concentrated(topics, found)
        return Batch(found, local.alpha.astype(float), local.total.astype(float), evidence)
    kept, alphas, totals = [], [], []
    local = topics
    for number in range(DRAWS):
        found = documents.collect_drawn(local, seed(number), number % 2 == 1, leave_out=False)
        local = concentrated(local, found)
        if number >= DRAWS - KEPT:
            kept.append(found)
            alphas.append(local.alpha.astype(float))
            totals.append(np.log(local.total.astype(float)))
    return Batch(Statistics.mean(kept), np.mean(alphas, axis=0), np.exp(np.mean(totals, axis=0)), evidence)


def concentrated(topics: Topics, found: Statistics) -> Topics:
    """The same directions with α and H one step nearer to where these documents have them."""
    alpha, total = topics.alpha.astype(float), topics.total.astype(float)
    if found.alpha_terms > 0:
        alpha = np.clip(found.alpha_table_counts / found.alpha_terms, 1e-5, 1e3)
    if topics.bursty:
        mass, used = found.table_counts.sum(axis=0), found.total_terms > 1e-10
        total[used] = np.clip(mass[used] / found.total_terms[used], 1e-3, 1e7)
    ratio = total / topics.total if topics.bursty else np.ones_like(total)
    dtype = topics.eta.dtype
    return replace(
        topics,
        eta=(topics.eta * ratio).astype(dtype),
        share=(topics.share * ratio).astype(dtype),
        total=total.astype(dtype),
        alpha=alpha.astype(dtype),
    )


def follow(
    topics: Topics,
    sums: Statistics,
    batch: Batch,
    rate: float,
    smoothing: float | None,
    fit_alpha: bool,
    threads: int,
) -> Topics:
    """The topics after a batch whose statistics are in `sums` already."""
    new = update(topics, replace(sums, drawn=False), smoothing, False, threads=threads)
    strength = new.strength
    if smoothing is None:
        for _ in range(STRENGTH_STEPS):
            _, strength = fit_prior(new, sums.table_counts, strength, threads=threads)
    alpha, total = topics.alpha.astype(float), topics.total.astype(float)
    if fit_alpha:
        alpha = (1.0 - rate) * alpha + rate * batch.alpha
    total = np.exp((1.0 - rate) * np.log(total) + rate * np.log(batch.total))
    base = np.full(len(new.eta), 1.0 / len(new.eta)) if topics.size > 1 else new.floor / new.floor.sum()
    return make_topics(sums.table_counts, base, strength, total, alpha, topics.bursty, topics.eta.dtype)


def sums_of(topics: Topics, new: Statistics, documents: float, seen: int) -> Statistics:
    """The sums that topics fitted to `seen` documents stand for, as if of so many."""
    share = topics.share.astype(float)
    table_counts = np.maximum(topics.eta / share - topics.floor[:, None].astype(float), 0.0) * documents / max(seen, 1)
    terms = table_counts.sum(axis=0) / np.maximum(topics.total.astype(float), 1e-30)
    alpha_terms = new.alpha_terms * documents / max(new.documents, 1)
    return Statistics(table_counts, terms, topics.alpha * alpha_terms, alpha_terms, 0.0, 0.0, 0, new.drawn)
