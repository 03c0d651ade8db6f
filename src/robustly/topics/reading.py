r"""Do the topics read well? How coherent each is, how different they are, and whether some are copies of others.

Two topics with word probabilities p and q overlap by :math:`\sum_w \sqrt{p_w q_w}`: one for copies, zero where they
share no word.
"""

from __future__ import annotations

import warnings

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from robustly.errors import OverlapWarning
from robustly.topics.shared import Topics

# How much a topic's words are ranked by their probability there, the rest by how much larger it is than elsewhere.
# Sievert & Shirley (2014) found .6 to serve readers best; on papers of NIPS the ten first words cohere more, and topics
# share fewer of them, at .5.
RELEVANCE = 0.5
# How much words count by what documents used of a topic, the rest by its direction.
BY_USE = 2 / 3
# Above this overlap with another topic a topic says little of its own. Fits that read well stay below .8 for nearly
# every topic; in the collapse that this is to catch the average over all pairs was .88 to .97.
COPY = 0.9
# Copies are told of when more than this share of the topics could be left out for being one.
SHARE_OF_COPIES = 0.2
# With fewer words than this per topic, topics overlap because there is not enough to tell them apart by.
WORDS_PER_TOPIC = 20


def word_shares(topics: Topics, usage: np.ndarray | None) -> np.ndarray:
    """(V, K) each topic's words: what the documents of the fit used of it where that is known, else its direction.

    The two differ for words that come in bursts: a direction counts a burst little more than a single use.
    """
    direction = topics.eta / topics.eta.sum(axis=0, dtype=float)
    if usage is None:
        return np.asarray(direction, dtype=float)
    used = usage + direction  # one word's worth of the direction, so that no word has nothing
    return np.asarray(used / used.sum(axis=0, dtype=float), dtype=float)


def telling_shares(topics: Topics, usage: np.ndarray | None) -> np.ndarray:
    """(V, K) what words are ranked by: in logs, two thirds what documents used of a topic and one its direction.

    By use alone a word that a single document repeats leads its topic; by the direction alone words that are topical and bursty
    hide behind common ones.
    """
    between = word_shares(topics, usage) ** BY_USE * word_shares(topics, None) ** (1.0 - BY_USE)
    return np.asarray(between / between.sum(axis=0), dtype=float)


def ranked(shares: np.ndarray, sizes: np.ndarray, relevance: float, n: int) -> np.ndarray:
    """(K, n) ids of each topic's words, the most relevant first; `sizes` are the topics' shares of the corpus."""
    logs = np.log(shares)
    if relevance < 1:
        logs -= (1.0 - relevance) * np.log(shares @ (sizes / sizes.sum()))[:, None]
    return np.argsort(-logs.T, axis=1, kind="stable")[:, :n]


def overlaps(weights: np.ndarray) -> np.ndarray:
    """(K, K) overlaps of topics, from their words' weights (V, K)."""
    roots = np.sqrt(weights / weights.sum(axis=0, dtype=float))
    return np.asarray(roots.T @ roots, dtype=float)


def copies(weights: np.ndarray) -> np.ndarray:
    """Numbers of the topics that are near copies of one before them, directly or through others."""
    between = overlaps(weights) > COPY
    _, groups = connected_components(between, directed=False)
    first = np.unique(groups, return_index=True)[1]
    return np.setdiff1d(np.arange(len(between)), first)


def diversity_of(best: np.ndarray) -> float:
    """Share of different words among the topics' top words (K, n)."""
    return len(np.unique(best)) / best.size if best.size else np.nan


def npmi(best: np.ndarray, counts: sparse.csr_matrix) -> np.ndarray:
    """Coherence of each row of word ids in the documents `counts`."""
    used, places = np.unique(best, return_inverse=True)
    present = counts.tocsc()[:, used].astype(bool).astype(np.float64)
    together = np.asarray((present.T @ present).todense()) / max(counts.shape[0], 1)
    result = np.full(len(best), np.nan)
    a, b = np.triu_indices(best.shape[1], 1)
    for k, row in enumerate(places.reshape(best.shape)):
        joint, expected = together[row[a], row[b]], together[row[a], row[a]] * together[row[b], row[b]]
        value = np.full(len(joint), -1.0)
        some = (joint > 0) & (joint < 1)
        value[some] = np.log(joint[some] / expected[some]) / -np.log(joint[some])
        value[joint == 1] = 1.0
        if len(value):
            result[k] = value.mean()
    return result


def warn_of_copies(topics: Topics, stacklevel: int) -> None:
    words, size = topics.eta.shape
    if size < 2 or words < WORDS_PER_TOPIC * size:
        return
    twins = copies(topics.eta)
    if len(twins) > SHARE_OF_COPIES * size:
        shown = ", ".join(map(str, twins[:10])) + (", …" if len(twins) > 10 else "")
        warnings.warn(
            f"{len(twins)} of {size} topics are near copies of another one (topics {shown}): the documents do not tell so "
            "many apart. Fit fewer topics or more documents, or hold smoothing= at a smaller number than "
            f"{topics.strength:.3g}.",
            OverlapWarning,
            stacklevel=stacklevel + 1,
        )
