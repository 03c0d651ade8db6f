r"""How many topics are there? Begin with too many, and let those go that are one topic in two or have nothing.

With ``n_components="auto"`` the α of topic k has a truncated stick-breaking prior, as in a hierarchical Dirichlet process:
:math:`\alpha = a \pi`, and :math:`\pi_k` follows the expected Chinese-restaurant table counts of the documents' topics with
:math:`\gamma` set aside for topics not seen, so that a topic that loses its documents loses its claim. Draws apart would
take long to bring two copies of one topic together, or the two halves of one. So now and then each topic is held against
those that share its words or its documents, and two are joined where that makes words and draws together more probable:
the words by the table counts :math:`t_{kw}` under the topics' prior,

.. math:: m(t) = \frac{\Gamma(s)}{\Gamma(s + \sum_w t_w)} \prod_w \frac{\Gamma(s/V + t_w)}{\Gamma(s/V)},

the documents' proportions by :math:`(\alpha_k)_{n_{dk}}`, and their bursts by :math:`H_k^{t_{dk}} / (H_k)_{n_{dk}}`, with
:math:`(x)_n = \Gamma(x + n)/\Gamma(x)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import gammaln

from robustly.topics.reading import overlaps
from robustly.topics.shared import Topics

# At most so many topics are begun with, and about so many documents for each.
MOST_TOPICS = 100
FEWEST_TOPICS = 10
DOCUMENTS_PER_TOPIC = 5
# Passes between two looks at what may be joined.
BETWEEN_LOOKS = 10
# Each topic is held against so many of its nearest by words, and by documents.
NEAREST = 4
# So many documents are enough to judge by.
MOST_DOCUMENTS = 5000
# A topic with fewer table counts than this in all documents is no topic, nor is one with so small a part of what topics have
# on average: bursts that no topic expected gather in such residues, and each pays for itself by a few of them.
LEAST_MASS = 5.0
LEAST_PART = 0.05
# Stick-breaking concentration: how much is set aside for topics not seen.
UNSEEN_TOPICS = 1.0


def most_topics(documents: int) -> int:
    """How many topics to begin with."""
    return int(np.clip(documents // DOCUMENTS_PER_TOPIC, FEWEST_TOPICS, MOST_TOPICS))


def stick_breaking(alpha: np.ndarray, table_counts: np.ndarray) -> np.ndarray:
    """α under the stick-breaking prior, given its unconstrained fit and the table counts of the documents' topics."""
    whole = table_counts.sum()
    return alpha.sum() * table_counts / (whole + UNSEEN_TOPICS) if whole > 0 else alpha


@dataclass(frozen=True)
class DrawnCounts:
    """What a pass of draws left: tokens and table counts by document and topic, table counts by word and topic."""

    tokens: np.ndarray  # (D, K)
    by_document: np.ndarray  # (D, K)
    table_counts: np.ndarray  # (V, K)
    scale: float = 1.0  # of how many documents each of these stands

    @property
    def mass(self) -> np.ndarray:
        return np.asarray(self.table_counts.sum(axis=0))


def _rising(x: Any, n: np.ndarray) -> np.ndarray:
    return np.asarray(gammaln(x + n) - gammaln(x))


def _log_words(counts: np.ndarray, strength: float) -> float:
    """log m."""
    each = strength / len(counts)
    some = counts[counts > 0]
    return float(_rising(each, some).sum() - _rising(strength, counts.sum()))


def _log_documents(alpha: float, total: float, bursty: bool, tokens: np.ndarray, table_counts: np.ndarray) -> float:
    used = tokens > 0
    tokens, table_counts = tokens[used], table_counts[used]
    value = _rising(alpha, tokens).sum()
    if bursty:
        value += (table_counts * np.log(total) - _rising(total, tokens)).sum()
    return float(value)


def _gain(topics: Topics, draws: DrawnCounts, apart: np.ndarray, i: int, j: int) -> float:
    """What log probability is gained by joining topics i and j."""
    alpha = topics.alpha.astype(float)
    total = topics.total.astype(float)
    words = _log_words(draws.table_counts[:, i] + draws.table_counts[:, j], topics.strength)
    tokens, met = draws.tokens[:, i] + draws.tokens[:, j], draws.by_document[:, i] + draws.by_document[:, j]
    # Halves of a topic that meet in a document add up their concentrations; copies that do not meet keep theirs.
    either = {float(total[i] + total[j]), float(np.sqrt(total[i] * total[j]))}
    both = max(_log_documents(alpha[i] + alpha[j], one, topics.bursty, tokens, met) for one in either)
    return words + draws.scale * both - apart[i] - apart[j]


def _candidates(topics: Topics, draws: DrawnCounts, alive: np.ndarray) -> set[tuple[int, int]]:
    """Pairs of topics that are near in their words or in their documents."""
    by_words = overlaps(topics.eta)
    lengths = np.maximum(np.sqrt((draws.tokens**2).sum(axis=0)), 1e-12)
    by_documents = (draws.tokens / lengths).T @ (draws.tokens / lengths)
    pairs = set()
    for near in (by_words, by_documents):
        np.fill_diagonal(near, -1.0)
        for i in np.flatnonzero(alive):
            for j in np.argsort(-near[i], kind="stable")[:NEAREST]:
                if alive[j]:
                    pairs.add((max(int(i), int(j)), min(int(i), int(j))))
    return pairs


def joined(topics: Topics, draws: DrawnCounts) -> np.ndarray | None:
    """For each topic the number it goes by from now on, or None where all stay."""
    size = topics.size
    alive = draws.mass >= max(LEAST_MASS, LEAST_PART * draws.mass.mean())
    if not alive.any():
        return None
    parts = zip(topics.alpha.astype(float), topics.total.astype(float), draws.tokens.T, draws.by_document.T)
    apart = np.array([draws.scale * _log_documents(a, h, topics.bursty, n, t) for a, h, n, t in parts])
    apart += [_log_words(column, topics.strength) for column in draws.table_counts.T]
    gains = [(_gain(topics, draws, apart, i, j), i, j) for i, j in sorted(_candidates(topics, draws, alive))]
    target = np.arange(size)
    # The surest first, and each topic joined once at a look: what came together is judged anew at the next.
    used: set[int] = set()
    for gain, i, j in sorted(gains, reverse=True):
        if gain > 0 and i not in used and j not in used:
            target[i] = j
            used |= {i, j}
    between = overlaps(topics.eta)
    for k in np.flatnonzero(~alive):
        target[k] = target[int(np.argmax(np.where(alive, between[k], -2.0)))]
    if (target == np.arange(size)).all():
        return None
    return np.unique(target, return_inverse=True)[1]
