"""Document completion and coherence against sums by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA, LatentDirichletAllocation

from robustly.errors import DataError
from robustly.topics import LDA, Corpus, RobustLDA, coherence, complete_documents, document_completion, split_documents


@given(st.lists(st.lists(st.integers(0, 6), min_size=5, max_size=5), min_size=1, max_size=8), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_halves_add_up_to_the_documents(rows, seed):
    X = np.array(rows)
    halves = split_documents(X, seed)
    usable = X.sum(axis=1) >= 2
    np.testing.assert_array_equal((halves.observed + halves.held_out).toarray(), X[usable])
    assert halves.skipped == (~usable).sum()
    held = np.asarray(halves.held_out.sum(axis=1)).ravel()
    np.testing.assert_array_equal(held, X[usable].sum(axis=1) // 2)


def test_every_token_is_as_likely_in_either_half():
    # Mean of 400 hypergeometric draws of sd ~1.2: off by 0.3 less than once in a million.
    X = np.tile([8, 3, 1], (400, 1))
    observed = split_documents(X, 0).observed.toarray().mean(axis=0)
    np.testing.assert_allclose(observed, [4, 1.5, 0.5], atol=0.3)


@pytest.mark.parametrize("inference", ["collapsed", "meanfield"])
def test_one_topic_predicts_as_the_polya_urn(inference):
    random = np.random.default_rng(0)
    X = random.poisson(random.gamma(0.5, 4.0, (60, 6))) + (np.arange(6) == 0)
    model = RobustLDA(1, inference=inference, max_iter=50, tol=0).fit(X)
    halves = split_documents(X, 1)
    eta = model.components_[0]
    seen, held = halves.observed.toarray(), halves.held_out.toarray()
    p = (eta + seen) / (eta.sum() + seen.sum(axis=1, keepdims=True))
    by_hand = (held * np.log(p)).sum() / held.sum()
    found = document_completion(model, observed=halves.observed, held_out=halves.held_out)
    assert found == pytest.approx(by_hand, rel=1e-9)
    assert found == document_completion(model, X, 1)
    assert isinstance(found, float)


def test_predictive_probabilities_sum_to_one(bursty, fitted):
    _, train, _ = bursty
    observed = train[:1]
    total = 0.0
    for word in range(train.shape[1]):
        held = np.zeros_like(observed)
        held[0, word] = 1
        total += np.exp(document_completion(fitted, observed=observed, held_out=held))
    assert total == pytest.approx(1.0, abs=1e-5)


def test_scikit_learns_lda_is_scored_by_the_same_rule(bursty):
    _, train, test = bursty
    model = LatentDirichletAllocation(4, random_state=0, max_iter=5).fit(train)
    halves = split_documents(test, 0)
    topics = model.components_ / model.components_.sum(axis=1, keepdims=True)
    held = halves.held_out.toarray()
    by_hand = (held * np.log(model.transform(halves.observed) @ topics)).sum() / held.sum()
    assert document_completion(model, test, 0) == pytest.approx(by_hand)


def test_the_score_is_a_completion_and_repeats_itself(bursty, fitted):
    _, _, test = bursty
    assert fitted.score(test) == fitted.score(test) == document_completion(fitted, Corpus.from_matrix(test), 0)
    found = complete_documents(fitted, test, 0)
    assert found.per_word == pytest.approx(found.per_document.sum() / found.words)


def test_misuse_is_told(bursty, fitted):
    _, train, test = bursty
    with pytest.raises(DataError, match="either test documents, or both"):
        document_completion(fitted)
    with pytest.raises(DataError, match="either test documents, or both"):
        document_completion(fitted, observed=test)
    with pytest.raises(DataError, match="same documents and words"):
        document_completion(fitted, observed=test, held_out=test[:3])
    with pytest.raises(DataError, match="nothing to predict"):
        document_completion(fitted, np.eye(train.shape[1]))
    with pytest.raises(DataError, match="got a PCA"):
        document_completion(PCA(), test)
    with pytest.raises(ValueError, match="features"):
        document_completion(fitted, test[:, :50], 0)


def test_coherence_is_one_for_words_always_together_and_minus_one_for_words_never():
    X = np.array([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])

    class Together:
        components_ = np.array([[5.0, 4.0, 0.0, 0.0], [0.0, 0.0, 5.0, 4.0]])

    np.testing.assert_allclose(coherence(Together(), X, n=2), [1.0, -1.0])


def test_coherence_by_hand(bursty):
    _, train, _ = bursty
    model = LDA(3, random_state=0, max_iter=5, tol=0).fit(train)
    best = np.argsort(-model.components_[0])[:3]
    there = train[:, best] > 0
    values = []
    for i, j in ((0, 1), (0, 2), (1, 2)):
        joint = (there[:, i] & there[:, j]).mean()
        values.append(np.log(joint / (there[:, i].mean() * there[:, j].mean())) / -np.log(joint))
    assert coherence(model, train, n=3)[0] == pytest.approx(np.mean(values))
    with pytest.raises(DataError, match="same vocabulary"):
        coherence(model, train[:, :5])
    with pytest.raises(DataError, match="n=2 or more"):
        coherence(model, train, n=1)


def test_after_one_token_the_prediction_is_exact_and_sums_to_one(fitted):
    # One token has one place to be in, so the sum over its topic can be done by hand.
    seen = 17
    eta, alpha = fitted.components_.astype(float), fitted.alpha_
    total, words = eta.sum(axis=1), eta.shape[1]
    place = alpha * eta[:, seen] / total
    place /= place.sum()
    by_hand = np.zeros(words)
    for z, chance in enumerate(place):
        mine = np.zeros_like(eta)
        mine[z, seen] = 1.0
        own = mine.sum(axis=1)
        by_hand += chance * ((alpha + own) / (alpha.sum() + 1.0)) @ ((eta + mine) / (total + own)[:, None])
    observed = np.zeros((words, words))
    observed[:, seen] = 1
    found = np.exp(complete_documents(fitted, observed=observed, held_out=np.eye(words)).per_document)
    np.testing.assert_allclose(found, by_hand, rtol=1e-4)
    assert found.sum() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("inference", ["collapsed", "meanfield"])
def test_predictions_of_a_whole_document_sum_to_one(inference, bursty):
    _, train, test = bursty
    model = RobustLDA(4, inference=inference, random_state=0, max_iter=5, tol=0).fit(train[:200])
    words = train.shape[1]
    completed = complete_documents(model, observed=np.tile(test[0], (words, 1)), held_out=np.eye(words))
    assert np.exp(completed.per_document).sum() == pytest.approx(1.0, abs=1e-4)


def test_the_way_a_model_was_fitted_does_not_change_what_its_topics_predict(bursty):
    _, train, test = bursty
    model = RobustLDA(4, inference="meanfield", random_state=0, max_iter=5, tol=0).fit(train[:200])
    before = document_completion(model, test, 0)
    assert document_completion(model.set_params(inference="collapsed"), test, 0) == before
