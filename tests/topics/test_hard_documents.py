"""Documents and parameters that break things: each works, or says what is wrong and what to do."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from robustly.errors import DataError, FitError, NotFittedError, SupportError
from robustly.topics import LDA, RobustLDA, complete_documents, document_completion

KINDS = [RobustLDA(3, random_state=0, max_iter=8, tol=0), LDA(3, random_state=0, max_iter=8, tol=0)]
KINDS += [RobustLDA(3, inference="meanfield", random_state=0, max_iter=8, tol=0)]


def hard(words=30):
    """Empty, one word once, one word 10⁶ times, every word once, and two ordinary documents."""
    X = np.zeros((6, words))
    X[1, 4] = 1
    X[2, 7] = 1e6
    X[3] = 1
    X[4, :10] = 3
    X[5, 10:25] = [1, 2, 5] * 5
    return X


@pytest.mark.parametrize("model", KINDS)
def test_hard_documents_give_finite_answers(model):
    X = hard()
    model.fit(X)
    assert np.isfinite(model.components_).all()
    assert np.isfinite(model.history_).all()
    assert (model.components_ > 0).all()
    shares = model.transform(X)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    np.testing.assert_allclose(shares[0], model.alpha_ / model.alpha_.sum())
    assert np.isfinite(model.evidence(X)).all()
    assert np.isfinite(document_completion(model, X, 0))
    assert np.isfinite(model.bursts(X[2])["expected"]).all()


@pytest.mark.parametrize("model", KINDS)
@pytest.mark.parametrize("row", [1, 2, 3])
def test_one_hard_document_alone(model, row):
    model.fit(hard()[row : row + 1])
    assert np.isfinite(model.components_).all()


@pytest.mark.parametrize("kind", [RobustLDA, LDA])
def test_more_topics_than_documents(kind):
    model = kind(20, random_state=0, max_iter=10, tol=0).fit(hard()[3:6])
    assert model.transform(hard()).shape == (6, 20)
    assert np.isfinite(model.components_).all()


def test_short_documents_are_counted_and_skipped():
    model = LDA(2, random_state=0, max_iter=3, tol=0).fit(hard())
    assert complete_documents(model, hard(), 0).skipped == 2


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (-1.0, SupportError, "document 4, word 2 holds -1: a count below 0"),
        (0.5, SupportError, "document 4, word 2 holds 0.5: a count that is not whole.*tf-idf"),
        (np.nan, DataError, "document 4, word 2 holds nan"),
        (np.inf, DataError, "document 4, word 2 holds inf"),
    ],
)
@pytest.mark.parametrize("wrap", [np.asarray, sparse.csr_matrix, sparse.coo_array])
def test_a_bad_count_is_named(spoil, error, message, wrap):
    X = hard()
    X[4, 2] = spoil
    with pytest.raises(error, match=message):
        RobustLDA(2).fit(wrap(X))


def test_ids_out_of_range_are_named():
    X = sparse.csr_matrix(hard())
    X.indices = X.indices.copy()
    X.indices[-1] = 99
    with pytest.raises(DataError, match="document 5 has word id 99, but the table has 30 words"):
        RobustLDA(2).fit(X)


def test_fractions_pass_when_they_are_asked_for():
    X = hard() / 3
    model = RobustLDA(2, allow_fractional=True, random_state=0, max_iter=5, tol=0).fit(X)
    assert np.isfinite(model.components_).all()
    assert np.isfinite(model.score(X))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_components": 0}, "n_components is 0"),
        ({"n_components": 2.5}, "whole number"),
        ({"n_components": 70000}, "65535"),
        ({"inference": "gibbs"}, '"collapsed" or "meanfield"'),
        ({"draws": -1}, "draws is -1"),
        ({"alpha": -1.0}, "alpha is -1.0"),
        ({"alpha": 0}, "alpha is 0"),
        ({"tol": -1e-3}, "tol is"),
        ({"n_jobs": 0}, "n_jobs is 0"),
        ({"learning_decay": 0.2}, "learning_decay"),
        ({"learning_offset": 0.0}, "learning_offset"),
        ({"validation_fraction": 1.5}, "validation_fraction"),
    ],
)
def test_unusable_parameters_are_named(options, message):
    with pytest.raises(FitError, match=message):
        RobustLDA(**options).fit(hard())


def test_questions_to_an_unfitted_model():
    with pytest.raises(NotFittedError, match=r"Call fit\(\) first"):
        RobustLDA().transform(hard())
    with pytest.raises(NotFittedError):
        RobustLDA().top_words()


def test_nothing_to_fit_is_said():
    with pytest.raises(DataError, match="no document of the 3 has a word"):
        RobustLDA(2).fit(np.zeros((3, 4)))
    with pytest.raises(DataError, match="3 dimensions"):
        RobustLDA(2).fit(np.zeros((3, 4, 2)))


def test_only_collapsed_models_learn_in_batches():
    with pytest.raises(FitError, match="collapsed"):
        RobustLDA(2, inference="meanfield").partial_fit(hard())


def test_an_empty_batch_is_harmless():
    model = RobustLDA(2, random_state=0).partial_fit(hard())
    before = model.components_.copy()
    model.partial_fit(np.zeros((2, 30)))
    np.testing.assert_array_equal(model.components_, before)
