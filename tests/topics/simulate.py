"""Documents drawn from the two models, for tests."""

from __future__ import annotations

import numpy as np


def simulate(eta, alpha, documents, length, seed, bursty=True):
    """Counts (documents, words) from robust LDA with concentrations `eta` (K, V), or plain LDA with its directions."""
    random = np.random.default_rng(seed)
    size, words = eta.shape
    shared = eta / eta.sum(axis=1, keepdims=True)
    counts = np.zeros((documents, words), dtype=np.int64)
    for d in range(documents):
        shares = random.dirichlet(np.full(size, alpha))
        tokens = random.multinomial(random.poisson(length) + 2, shares)
        for k, number in enumerate(tokens):
            if number:
                topic = shared[k]
                if bursty:
                    draw = random.standard_gamma(eta[k])
                    topic = draw / draw.sum() if draw.sum() > 0 else shared[k]
                counts[d] += random.multinomial(number, topic)
    return counts


def concentrations(size, words, total, seed):
    """`size` topics over `words` words, each mostly on its own tenth, summing to `total`."""
    random = np.random.default_rng(seed)
    eta = random.dirichlet(np.full(words, 0.1), size) + 0.02 / words
    return eta / eta.sum(axis=1, keepdims=True) * np.broadcast_to(np.asarray(total, float).reshape(-1, 1), (size, 1))


def match(found, truth):
    """Best pairing of topics by cosine: for each true topic, the found one, and the cosines."""
    from scipy.optimize import linear_sum_assignment

    a = found / np.linalg.norm(found, axis=1, keepdims=True)
    b = truth / np.linalg.norm(truth, axis=1, keepdims=True)
    cosine = b @ a.T
    rows, columns = linear_sum_assignment(-cosine)
    return columns, cosine[rows, columns]
