r"""What do the documents share, and how does it follow from their sums? Topics, their statistics, and the M-step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from robustly.rows.store import THREADS, in_order
from robustly.topics import special
from robustly.topics.special import compiled, psi_gap

# Pieces in which the words are gone through; the answer does not depend on how many threads there are.
PARTS = 16
# A word that was never seen weighs as much in the base of the topics as this part of a word seen once.
UNSEEN = 0.1
# Past this many pseudo-words a topic is the same in every document to single precision.
MOST_CONCENTRATED = 1e7
LEAST_CONCENTRATED = 1e-3
# Minka's step for Σ_w η is short; lengthened this much (on the log scale, below 2) it still settles, in fewer passes.
LONGER_STEP = 1.8
# What makes a Topics, and a Statistics, whole.
TOPIC_ARRAYS = ("eta", "total", "alpha", "share", "floor")
ADDED = ("table_counts", "total_terms", "alpha_table_counts", "alpha_terms")


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

    def astype(self, dtype: DTypeLike) -> Topics:
        """The same topics in another precision."""
        arrays: dict[str, Any] = {name: array.astype(dtype) for name, array in self.arrays().items()}
        return replace(self, **arrays)

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it but two numbers, to be kept in a file."""
        return {name: getattr(self, name) for name in TOPIC_ARRAYS}


@dataclass(frozen=True)
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

    def _scaled(self, factor: float) -> dict[str, Any]:
        return {name: factor * getattr(self, name) for name in ADDED}

    def blend(self, new: Statistics, rate: float, scale: float) -> Statistics:
        """Move towards `scale` times the statistics of a new batch."""
        kept, taken = self._scaled(1.0 - rate), new._scaled(rate * scale)
        moved = {name: kept[name] + taken[name] for name in ADDED}
        return replace(new, documents=self.documents + new.documents, **moved)

    @staticmethod
    def mean(of: Sequence[Statistics]) -> Statistics:
        """The average over passes of the same documents."""
        total = {name: sum(getattr(one, name) for one in of) for name in ADDED}
        return replace(replace(of[0], **total), **replace(of[0], **total)._scaled(1.0 / len(of)))


def make_topics(
    table_counts: np.ndarray,
    base: np.ndarray,
    strength: float,
    total: np.ndarray,
    alpha: np.ndarray,
    bursty: bool,
    dtype: DTypeLike,
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


@compiled()
def smoothing_terms(first, last, table_counts, prior, drawn, out):
    """Words' parts of Minka's update of the topics' prior, from draws or from expected counts.

    Of the latter many are a small chance of one. ``out[w]``, for words ``first:last``, is how many of the word's
    expected table counts in the topics are due to the prior.
    """
    for w in range(first, last):
        total = 0.0
        for k in range(table_counts.shape[1]):
            count = table_counts[w, k]
            if count > 1e-10:
                present = 1.0 if drawn else -math.expm1(-count)
                total += present * prior[w] * psi_gap(prior[w], count / present)
        out[w] = total


def fit_prior(
    topics: Topics, table_counts: np.ndarray, strength: float, drawn: bool = False, threads: int = THREADS
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
    terms = lambda piece: smoothing_terms(*piece, table_counts, strength * base, drawn, due)
    for _ in in_order(terms, pairwise(cuts), threads):
        pass
    fitted = due.sum() / special.length_terms(strength, table_counts.sum(axis=0))
    return base, float(np.clip(fitted, 1e-3, 1e9))


def update(
    topics: Topics,
    found: Statistics,
    smoothing: float | None,
    fit_alpha: bool,
    base: np.ndarray | None = None,
    step: float = 1.0,
    threads: int = THREADS,
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
        base, fitted = fit_prior(topics, table_counts, strength, found.drawn, threads)
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


@dataclass
class DrawnSums:
    """Running sums of the topics over the draws that are kept."""

    table_counts: np.ndarray
    alpha: np.ndarray
    log_total: np.ndarray
    log_strength: float = 0.0
    number: int = 0

    def add(self, found: Statistics, topics: Topics) -> None:
        self.table_counts += found.table_counts
        self.alpha += topics.alpha
        self.log_total += np.log(topics.total.astype(float))
        self.log_strength += np.log(max(topics.strength, 1e-30))
        self.number += 1

    def average(self, topics: Topics) -> Topics:
        n = self.number
        strength = float(np.exp(self.log_strength / n)) if topics.strength > 0 else 0.0
        total, alpha = np.exp(self.log_total / n), self.alpha / n
        base = topics.floor.astype(float)
        base = base / base.sum() if base.sum() > 0 else np.full(len(base), 1 / len(base))
        return make_topics(self.table_counts / n, base, strength, total, alpha, topics.bursty, topics.eta.dtype)
