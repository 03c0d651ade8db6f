"""Drawn topics: their chances against sums over every assignment, and what drawing is for."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import sparse
from scipy.special import gammaln
from simulate import concentrations, match, simulate

from robustly.topics import LDA, RobustLDA, document_completion
from robustly.topics.passes import Documents
from robustly.topics.shared import make_topics

ALPHA = np.array([0.4, 0.1, 0.8])


def three_topics(bursty):
    table_counts = np.array([[3.0, 0.5, 1.0], [0.2, 4.0, 1.0], [1.0, 1.0, 0.1], [2.0, 0.3, 3.0]])
    return make_topics(table_counts, np.full(4, 0.25), 2.0, np.array([3.0, 8.0, 20.0]), ALPHA, bursty, np.float64)


def by_hand(topics, document):
    """Expected tokens of each topic, by weighing every assignment of the document's tokens."""
    words = np.repeat(np.arange(len(document)), document)
    # Plain LDA counts the document's other tokens into the topics, each worth `share`.
    start = topics.eta if topics.bursty else topics.eta / topics.share
    total, expected = 0.0, np.zeros(3)
    for choice in product(range(3), repeat=len(words)):
        n = np.bincount(choice, minlength=3)
        own = np.zeros((len(document), 3))
        np.add.at(own, (words, list(choice)), 1)
        log_weight = (gammaln(ALPHA + n) - gammaln(ALPHA)).sum() + (gammaln(start + own) - gammaln(start)).sum()
        if topics.bursty:
            log_weight -= (gammaln(topics.total + n) - gammaln(topics.total)).sum()
        else:
            log_weight += n @ np.log(topics.share)
        total += np.exp(log_weight)
        expected += np.exp(log_weight) * n
    return expected / total


@pytest.mark.parametrize("bursty", [True, False])
def test_draws_have_the_chances_of_the_exact_posterior(bursty):
    # 5000 documents alike; the bound is 4.5 standard errors of a topic's mean, so one false alarm in 10⁵ runs.
    topics, document, copies = three_topics(bursty), np.array([3, 1, 0, 1]), 5000
    documents = Documents.of(sparse.csr_matrix(np.tile(document, (copies, 1)).astype(float)), np.float64)
    for seed in range(40):
        documents.collect_drawn(topics, np.uint64(seed), leave_out=False)  # they do not come from the documents
    places = np.concatenate([state["places"] for state in documents.rows.states(documents.slot)])
    n = np.apply_along_axis(np.bincount, 1, places.reshape(copies, -1), minlength=3)
    error = n.std(axis=0) / np.sqrt(copies)
    assert (np.abs(n.mean(axis=0) - by_hand(topics, document)) < 4.5 * error).all()


def test_a_documents_own_part_is_left_out_of_the_topics():
    # Once its own part is out, a topic that only this document fed has no more of the word than the prior gives.
    counts = sparse.csr_matrix(np.array([[1.0, 0.0], [0.0, 1.0]]))
    documents = Documents.of(counts, np.float64)
    own = np.array([[1.0, 0.0], [0.0, 1.0]])
    topics = make_topics(own, np.full(2, 0.5), 1e-3, np.full(2, 50.0), np.full(2, 0.3), True, np.float64)
    moved = 0
    documents.collect_drawn(topics, np.uint64(0))
    (state,) = documents.rows.states(documents.slot)
    for seed in range(1, 201):
        state["places"][:], state["given"][:] = [0, 1], 1.0
        documents.collect_drawn(topics, np.uint64(seed))
        moved += int((state["places"] != [0, 1]).sum())
    assert 150 < moved < 250  # 400 fair coins: 5 standard deviations


@pytest.mark.parametrize("bursty", [True, False])
def test_huge_and_broken_counts_move_in_bundles(bursty):
    counts = np.array([[1e6, 0.0, 2.5, 1.0], [0.3, 700.0, 0.0, 4.0]])
    documents = Documents.of(sparse.csr_matrix(counts), np.float64)
    topics = three_topics(bursty)
    for seed in range(5):
        found = documents.collect_drawn(topics, np.uint64(seed))
    assert np.isfinite(found.table_counts).all()
    assert np.isfinite(found.alpha_table_counts).all()
    if not bursty:
        np.testing.assert_allclose(found.table_counts.sum(axis=1), counts.sum(axis=0))


@pytest.mark.parametrize("smoothing", [None, 0.0])
@pytest.mark.parametrize("kind", [RobustLDA, LDA])
def test_draws_stay_finite_with_words_of_one_document(kind, smoothing):
    X = np.kron(np.eye(6, dtype=int), np.array([[3, 1, 1]]))
    model = kind(4, smoothing=smoothing, random_state=0, max_iter=5, tol=0, draws=30).fit(X)
    assert np.isfinite(model.components_).all()
    assert np.isfinite(model.score(X))


def test_many_topics_of_short_documents_are_told_apart_by_drawing():
    eta = concentrations(30, 600, 30.0, seed=0)
    train, test = (simulate(eta, 0.05, size, 50, seed=seed) for size, seed in ((900, 100), (300, 200)))
    expected, drawn = (RobustLDA(30, random_state=0, draws=draws).fit(train) for draws in (0, 100))
    # Expected counts take documents to be about more topics than they are (α sums to 1.5).
    assert 1.0 < drawn.alpha_.sum() < 2.0 < expected.alpha_.sum()
    assert np.median(match(drawn.components_, eta)[1]) > np.median(match(expected.components_, eta)[1])
    assert document_completion(drawn, test, 0) > document_completion(expected, test, 0)
