"""Topics keep apart, evidence is never lower at the end than on the way, and copies are told."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulate import concentrations, match, simulate

from robustly.errors import DataError, FitError, OverlapWarning
from robustly.topics import LDA, Corpus, RobustLDA, coherence, diversity, document_completion, merging
from robustly.topics.reading import copies, overlaps
from robustly.topics.shared import make_topics


@pytest.mark.parametrize("kind", [RobustLDA, LDA])
@given(seed=st.integers(0, 10**6), draws=st.sampled_from([0, 24]))
@settings(max_examples=8, deadline=None)
def test_evidence_is_never_lower_at_the_end_than_on_the_way(kind, seed, draws):
    eta = concentrations(5, 80, 25.0, seed=seed)
    counts = simulate(eta, 0.2, 60, 40, seed=seed + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = kind(5, draws=draws, random_state=seed % 1000, max_iter=40).fit(counts)
    assert model.evidence_ >= max(model.history_)
    assert np.isfinite(model.history_).all()


def test_few_long_documents_do_not_collapse_into_copies():
    # Long documents that share their common words, as papers do; the true topics overlap by .68. With a prior whose base is
    # fitted word by word, those found overlapped by .997 on average and had .14 different words among their top 25s.
    random = np.random.default_rng(5)
    own = random.dirichlet(np.full(1500, 0.05), 10)
    common = random.dirichlet(np.full(1500, 0.2))
    eta = 60.0 * (0.5 * own + 0.5 * common) + 1e-4
    counts = simulate(eta, 0.3, 120, 800, seed=6)
    model = RobustLDA(10, random_state=0).fit(counts)
    between = overlaps(model.components_.T)
    assert between[np.triu_indices(10, 1)].mean() < 0.7
    assert model.diversity_ > 0.7


def test_copies_are_counted_once_each():
    one, other = np.eye(40)[0] * 9 + 1, np.eye(40)[7] * 400 + 1
    weights = np.stack([one, other, one * 2, other, one], axis=1)
    assert copies(weights).tolist() == [2, 3, 4]
    np.testing.assert_allclose(np.diag(overlaps(weights)), 1.0)


def test_copies_are_told():
    # One topic in truth, so that ten are copies of it or empty.
    counts = simulate(concentrations(1, 300, 2000.0, seed=0), 1.0, 60, 60, seed=1)
    with pytest.warns(OverlapWarning, match=r"of 10 topics are near copies.*Fit fewer topics"):
        RobustLDA(10, random_state=0, smoothing=1e5, draws=10).fit(counts)


def test_the_cache_is_a_mixture_whose_weight_is_fitted_without_the_held_out_half(bursty):
    from robustly.topics import complete_documents, split_documents

    _, train, test = bursty
    plain = LDA(4, random_state=0, draws=20).fit(train)
    halves = split_documents(test, 0)
    found = complete_documents(plain, observed=halves.observed, held_out=halves.held_out, cache=True)
    alone = complete_documents(plain, observed=halves.observed, held_out=halves.held_out)
    assert found.per_word > alone.per_word + 0.1  # these documents are bursty
    row = halves.held_out[3]
    each = [
        np.exp(complete_documents(plain, observed=halves.observed[3], held_out=np.eye(200)[[w]]).per_word)
        for w in row.indices
    ]
    seen = halves.observed[3].toarray().ravel()
    mixed = (found.cache * np.array(each) + seen[row.indices]) / (found.cache + seen.sum())
    assert found.per_document[3] == pytest.approx(row.data @ np.log(mixed), rel=1e-6)
    # Other held-out halves of the same observed ones leave the weight where it was.
    other = complete_documents(plain, observed=halves.observed, held_out=halves.observed, cache=True)
    assert other.cache == found.cache


@pytest.mark.parametrize(("size", "seed"), [(5, 1), (10, 0)])
def test_the_number_of_topics_is_found(size, seed):
    # Five other simulations with 4 to 20 topics found as many, or one more.
    eta = concentrations(size, 60 * size, 30.0, seed=seed)
    counts = simulate(eta, 1.0 / size, 90 * size, 70, seed=seed + 10)
    model = RobustLDA("auto", random_state=0).fit(counts)
    assert abs(model.n_topics_ - size) <= 0.2 * size
    assert model.components_.shape == (model.n_topics_, eta.shape[1])
    assert model.transform(counts[:3]).shape == (3, model.n_topics_)
    if model.n_topics_ >= size:
        assert match(model.components_, eta)[1].min() >= 0.95
    assert model.evidence_ >= max(model.history_)


@pytest.mark.parametrize(
    "options", [{"draws": 0}, {"inference": "meanfield"}, {"warm_start": True}, {"seeds": [["a"]]}]
)
def test_auto_says_what_it_needs(options):
    with pytest.raises(FitError, match='n_components="auto"'):
        RobustLDA("auto", **options).fit(np.eye(5))
    with pytest.raises(FitError, match='or "auto" was expected'):
        RobustLDA("many").fit(np.eye(5))


def test_seeds_begin_their_topics(bursty):
    eta, train, _ = bursty
    words = [f"w{i}" for i in range(train.shape[1])]
    best = [np.argsort(-eta[k])[:5] for k in (2, 0)]
    corpus = Corpus.from_matrix(train, words)
    for seeds in ([[words[i] for i in row] for row in best], {0: list(map(int, best[0])), 1: list(map(int, best[1]))}):
        model = RobustLDA(4, random_state=3, seeds=seeds, draws=30).fit(corpus)
        pairing, _ = match(model.components_, eta)
        assert pairing[2] == 0
        assert pairing[0] == 1


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ([["w1", "wx"]], '"wx" of topic 0 is not in the vocabulary'),
        ({9: ["w1"]}, "name topic 9"),
        (["w1"], "one text"),
        ([[10**6]], "is no word id"),
    ],
)
def test_bad_seeds_are_named(seeds, message, few):
    corpus = Corpus.from_matrix(few, [f"w{i}" for i in range(few.shape[1])])
    with pytest.raises(DataError, match=message):
        RobustLDA(2, seeds=seeds).fit(corpus)


def test_relevance_ranks_by_probability_at_one_and_by_lift_at_zero(bursty, fitted):
    _, train, _ = bursty
    names = [f"w{i}" for i in range(train.shape[1])]
    shares = fitted.word_shares()
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    # Half way between what documents used and the shared topic.
    shared = fitted.components_ / fitted.components_.sum(axis=1, keepdims=True)
    shares = np.sqrt(shares * shared)
    shares /= shares.sum(axis=1, keepdims=True)
    top = fitted.top_words(names, 5, relevance=1.0)
    assert top[0] == [names[i] for i in np.argsort(-shares[0])[:5]]
    lift = shares / (fitted.alpha_ / fitted.alpha_.sum() @ shares)
    assert fitted.top_words(names, 5, relevance=0.0)[1] == [names[i] for i in np.argsort(-lift[1], kind="stable")[:5]]
    assert coherence(fitted, train, relevance=0.6).shape == (4,)
    assert 0 < diversity(fitted) <= 1
    with pytest.raises(DataError, match="from 0 to 1"):
        fitted.top_words(names, relevance=2)


def test_the_summary_has_a_line_for_each_topic(fitted):
    text = str(fitted.summary([f"w{i}" for i in range(200)]))
    assert "4 topics, 800 documents" in text
    assert "coherence" in text
    assert "diversity" in text
    assert len(text.splitlines()) == 7


def test_documents_from_plain_lda_are_predicted_as_plain_lda_does():
    eta = concentrations(6, 300, 1.0, seed=17)
    train, test = (simulate(eta, 0.2, size, 70, seed=seed, bursty=False) for size, seed in ((800, 18), (300, 19)))
    robust, plain = (kind(6, random_state=0).fit(train) for kind in (RobustLDA, LDA))
    assert document_completion(robust, test, 0) == pytest.approx(document_completion(plain, test, 0), abs=0.01)


def test_a_residue_of_bursts_is_no_topic_however_well_it_pays_for_itself():
    # Two topics of 50 words in 40 documents each, and a third that has one word of its own in three documents of the first.
    table_counts = np.zeros((110, 3))
    table_counts[:50, 0], table_counts[50:100, 1], table_counts[100, 2] = 20.0, 20.0, 12.0
    tokens = np.zeros((80, 3))
    tokens[:40, 0], tokens[40:, 1], tokens[:3, 2] = 40.0, 40.0, 8.0
    by_document = tokens * table_counts.sum(axis=0) / tokens.sum(axis=0)
    topics = make_topics(table_counts, np.full(110, 1 / 110), 10.0, np.full(3, 30.0), np.full(3, 0.2), True, np.float64)
    assert merging.joined(topics, merging.DrawnCounts(tokens, by_document, table_counts)).max() == 1
    larger = table_counts * [1.0, 1.0, 5.0]
    assert merging.joined(topics, merging.DrawnCounts(tokens * [1, 1, 5], by_document * [1, 1, 5], larger)) is None
