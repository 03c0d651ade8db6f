"""Claims about the models: closed forms and invariances first, then recovery of what was simulated."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.optimize import minimize, minimize_scalar
from scipy.special import gammaln, psi
from simulate import concentrations, match, simulate
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from robustly.conjugate import DirichletMultinomial
from robustly.errors import ConvergenceWarning
from robustly.topics import LDA, RobustLDA, document_completion
from robustly.topics.passes import Documents, held, reading_pass
from robustly.topics.shared import fit_prior, make_topics, update


def dirichlet_multinomial(counts):
    """Maximum likelihood by brute force, in logs, with the exact gradient."""

    def objective(log_eta):
        eta = np.exp(log_eta)
        total, lengths = eta.sum(), counts.sum(axis=1)
        value = (gammaln(total) - gammaln(total + lengths)).sum() + (gammaln(eta + counts) - gammaln(eta)).sum()
        slope = (psi(total) - psi(total + lengths)).sum() + (psi(eta + counts) - psi(eta)).sum(axis=0)
        return -value, -slope * eta

    found = minimize(objective, np.zeros(counts.shape[1]), jac=True, method="BFGS", options={"gtol": 1e-9})
    return np.exp(found.x)


@pytest.mark.parametrize("inference", ["collapsed", "meanfield"])
def test_one_topic_is_the_dirichlet_multinomial(inference):
    random = np.random.default_rng(4)
    counts = np.stack([random.multinomial(25, random.dirichlet([0.5, 1.0, 2.0, 0.8, 0.3])) for _ in range(150)])
    model = RobustLDA(1, inference=inference, smoothing=0, max_iter=600, tol=0).fit(counts)
    np.testing.assert_allclose(model.components_[0], dirichlet_multinomial(counts), rtol=1e-6)
    pair = DirichletMultinomial().fit(counts)
    np.testing.assert_allclose(model.components_[0], pair.hyperparameters["concentration"], rtol=1e-6)


def test_one_topic_needs_no_smoothing_switched_off():
    random = np.random.default_rng(5)
    counts = np.stack([random.multinomial(20, random.dirichlet([0.5, 1.0, 2.0])) for _ in range(100)])
    model = RobustLDA(1, max_iter=600, tol=0).fit(counts)
    np.testing.assert_allclose(model.components_[0], dirichlet_multinomial(counts), rtol=1e-6)


def test_a_topic_that_cannot_bend_gives_back_plain_updates(bursty):
    # With Σ η held huge the collapsed E-step of the robust model is that of the plain one.
    _, train, _ = bursty
    counts = sparse.csr_matrix(train[:50].astype(float))
    table_counts = np.random.default_rng(0).gamma(1.0, size=(train.shape[1], 3)) + 0.1
    base = np.full(train.shape[1], 1 / train.shape[1])
    found = []
    for flag in (True, False):
        topics = make_topics(table_counts, base, 1.0, np.full(3, 1e12), np.full(3, 0.2), flag, np.float64)
        rows = Documents.of(counts, np.float64).rows
        found.append(rows.map(reading_pass, held(topics, sweeps=1000, tol=1e-9)).by_unit["tokens"])
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)


@pytest.mark.parametrize("kind", [RobustLDA, LDA])
def test_the_number_of_threads_changes_nothing(kind, bursty):
    _, train, _ = bursty
    fits = [kind(5, random_state=3, n_jobs=jobs, max_iter=6, tol=0).fit(train) for jobs in (1, 2, 5)]
    for other in fits[1:]:
        np.testing.assert_array_equal(other.components_, fits[0].components_)
        np.testing.assert_array_equal(other.alpha_, fits[0].alpha_)
        np.testing.assert_array_equal(other.transform(train), fits[0].transform(train))


def test_blocks_change_nothing_but_rounding(bursty, monkeypatch):
    _, train, _ = bursty
    whole = RobustLDA(3, random_state=0, max_iter=5, tol=0, draws=0).fit(train)
    monkeypatch.setattr("robustly.topics.passes.PAIRS", 300)
    monkeypatch.setattr("robustly.topics.passes.PAIRS_PER_WORD", 0)
    monkeypatch.setattr("robustly.topics.passes.KEPT_IN_MEMORY", 1000)
    blocks = RobustLDA(3, random_state=0, max_iter=5, tol=0, draws=0).fit(train)
    np.testing.assert_allclose(blocks.components_, whole.components_, rtol=1e-5)
    spooled = RobustLDA(3, inference="meanfield", random_state=0, max_iter=4, tol=0).fit(train[:200])
    monkeypatch.undo()
    kept = RobustLDA(3, inference="meanfield", random_state=0, max_iter=4, tol=0).fit(train[:200])
    np.testing.assert_allclose(spooled.components_, kept.components_, rtol=1e-6)


@pytest.mark.parametrize("kind", [RobustLDA, LDA])
def test_the_order_of_documents_changes_nothing_but_rounding(kind, bursty):
    _, train, _ = bursty
    order = np.random.default_rng(0).permutation(len(train))
    one = kind(3, random_state=0, max_iter=8, tol=0, draws=0).fit(train)
    other = kind(3, random_state=0, max_iter=8, tol=0, draws=0).fit(train[order])
    np.testing.assert_allclose(other.components_, one.components_, rtol=2e-3, atol=1e-4 * one.components_.max())
    np.testing.assert_allclose(other.transform(train), one.transform(train), atol=1e-3)


def test_doubling_every_document_leaves_one_topic_where_it_was():
    random = np.random.default_rng(6)
    counts = np.stack([random.multinomial(20, random.dirichlet([0.4, 1.0, 2.0, 0.6])) for _ in range(80)])
    once, twice = (RobustLDA(1, max_iter=300, tol=0).fit(x) for x in (counts, np.vstack([counts, counts])))
    np.testing.assert_allclose(twice.components_, once.components_, rtol=1e-6)


def test_doubling_every_document_leaves_mean_field_where_it_was(bursty):
    _, train, _ = bursty
    train = train[:200]
    options = {
        "inference": "meanfield",
        "smoothing": 0.0,
        "random_state": 0,
        "max_iter": 5,
        "tol": 0,
        "fit_alpha": True,
    }
    once = RobustLDA(3, **options).fit(train)
    topics = []
    for counts in (train, np.vstack([train, train])):
        table = sparse.csr_matrix(counts.astype(float))
        documents = Documents.of(table, np.float64)
        state = once.topics_
        base = np.full(train.shape[1], 1 / train.shape[1])
        for _ in range(4):
            state = update(state, documents.collect_meanfield(state, 20, 1e-6), 0.0, True, base)
        topics.append(state)
    np.testing.assert_allclose(topics[1].eta, topics[0].eta, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(topics[1].alpha, topics[0].alpha, rtol=1e-8)


def test_the_topics_prior_rests_at_the_maximum_likelihood_symmetric_dirichlet():
    # Of the topics' words, given table counts so large that none is in doubt.
    random = np.random.default_rng(3)
    words = random.dirichlet(np.full(6, 1.7), 60)
    table_counts = np.stack([random.multinomial(10**6, row) for row in words], axis=1).astype(float)

    def minus_likelihood(log_strength):
        strength, lengths = np.exp(log_strength), table_counts.sum(axis=0)
        each = strength / len(table_counts)
        rising = (gammaln(each + table_counts) - gammaln(each)).sum()
        return -(rising + (gammaln(strength) - gammaln(strength + lengths)).sum())

    best = float(np.exp(minimize_scalar(minus_likelihood, bounds=(0, 5), method="bounded", options={"xatol": 1e-10}).x))
    topics = make_topics(table_counts, np.full(6, 1 / 6), 1.0, np.full(60, 30.0), np.full(60, 0.1), True, np.float64)
    base, rested = fit_prior(topics, table_counts, best)
    _, nearer = fit_prior(topics, table_counts, 2 * best)
    np.testing.assert_allclose(base, 1 / 6)
    assert rested == pytest.approx(best, rel=1e-6)
    assert best < nearer < 2 * best


def test_topics_and_burstiness_are_recovered(bursty, fitted):
    # Four other seeds (1500 documents, Σ η from 20 to 80) gave cosines above .99 and ratios within 1.3.
    eta, _, _ = bursty
    pairing, cosines = match(fitted.components_, eta)
    assert cosines.min() >= 0.95
    ratio = fitted.burstiness_[pairing] / eta.sum(axis=1)
    assert max(ratio.max(), 1 / ratio.min()) <= 1.5


def test_evidence_is_the_log_probability_of_each_word_given_the_others():
    # With one topic and words seen at most once nothing is approximate: η_w / (H + N − 1), and α cancels.
    X = np.array([[1, 1, 0, 1], [0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]])
    model = RobustLDA(1, random_state=0, max_iter=3, tol=0, smoothing=0).fit(X)
    eta = model.components_[0]
    lengths = X.sum(axis=1)
    by_hand = (X * np.log(eta)).sum(axis=1) - lengths * np.log(eta.sum() + np.maximum(lengths - 1, 0))
    np.testing.assert_allclose(model.evidence(X), by_hand, rtol=1e-10)
    plain = LDA(1, max_iter=3, tol=0).fit(X)
    topic = plain.components_[0] / plain.components_[0].sum()
    np.testing.assert_allclose(plain.evidence(X), X @ np.log(topic), rtol=1e-10)


def test_bursty_documents_are_predicted_better_by_bending_topics(bursty, fitted):
    _, train, test = bursty
    plain = LDA(4, random_state=0).fit(train)
    assert document_completion(fitted, test, 0) > document_completion(plain, test, 0) + 0.1


def test_on_plain_documents_the_robust_model_says_so():
    eta = concentrations(4, 200, 1.0, seed=7)
    train, test = (simulate(eta, 0.3, size, 70, seed=seed, bursty=False) for size, seed in ((1000, 8), (300, 9)))
    robust, plain = (kind(4, random_state=0, max_iter=200).fit(train) for kind in (RobustLDA, LDA))
    assert document_completion(robust, test, 0) == pytest.approx(document_completion(plain, test, 0), abs=0.01)
    assert robust.burstiness_.min() > 150  # against some 20 words a document gives a topic
    assert match(robust.components_, eta)[1].min() > 0.95


@pytest.mark.parametrize("kind", [RobustLDA, LDA])
@given(seed=st.integers(0, 1000), smoothing=st.sampled_from([None, 0.0, 5.0]))
@settings(max_examples=6, deadline=None)
def test_the_mean_field_bound_never_falls(kind, seed, smoothing):
    random = np.random.default_rng(seed)
    counts = random.poisson(random.gamma(0.3, 3.0, (40, 25)))
    counts[0, 0] += 1
    model = kind(3, inference="meanfield", smoothing=smoothing, random_state=seed, max_iter=40, tol=0).fit(counts)
    assert np.isfinite(model.history_).all()
    assert np.diff(model.history_).min() > -1e-9


def test_both_kinds_of_inference_order_the_models_alike(bursty):
    _, train, test = bursty
    train = train[:400]
    scores = {}
    for inference in ("collapsed", "meanfield"):
        models = [RobustLDA(4), RobustLDA(1), LDA(4), LDA(1)]
        models = [clone(m).set_params(inference=inference, random_state=0, max_iter=25, tol=0) for m in models]
        scores[inference] = [document_completion(m.fit(train), test, 0) for m in models]
    assert list(np.argsort(scores["collapsed"])) == list(np.argsort(scores["meanfield"]))


def test_a_fit_goes_on_online_without_being_overrun(bursty, fitted):
    _, train, test = bursty
    before = document_completion(fitted, test, 0)
    model = clone(fitted).fit(train)
    model.partial_fit(train[:20])
    assert document_completion(model, test, 0) > before - 0.02


def test_held_out_documents_can_end_the_fit(bursty):
    _, train, _ = bursty
    model = RobustLDA(4, random_state=0, validation_fraction=0.2, tol=1e-3, max_iter=200).fit(train)
    assert model.n_iter_ < 200
    assert len(model.validation_) == model.n_iter_ // 5


def test_too_few_passes_are_told(bursty):
    _, train, _ = bursty
    with pytest.warns(ConvergenceWarning, match="Raise max_iter"):
        RobustLDA(4, random_state=0, max_iter=3).fit(train)


@pytest.mark.parametrize("kind", [RobustLDA, LDA])
def test_scikit_learns_own_checks_pass(kind):
    # Their data are not counts, so fractions are allowed here; array-api input needs a setting of SciPy's.
    results = check_estimator(kind(2, allow_fractional=True, max_iter=5, tol=0, draws=4), on_fail=None, on_skip=None)
    failed = {r["check_name"]: str(r["exception"]) for r in results if r["status"] not in ("passed", "skipped")}
    assert failed == {}


def test_two_clones_agree(few):
    model = RobustLDA(3, random_state=0, max_iter=10, tol=0)
    one, other = model.fit(few), clone(model).fit(sparse.csr_matrix(few))
    np.testing.assert_array_equal(one.components_, other.components_)
    assert one.components_.shape == (3, 9)
    assert one.get_feature_names_out().tolist() == ["robustlda0", "robustlda1", "robustlda2"]


def test_a_burst_is_found(bursty, fitted):
    _, train, _ = bursty
    document = train[5].copy()
    rare = int(np.argmin(np.where(document > 0, train.sum(axis=0), train.sum())))
    document[rare] += 12
    table = fitted.bursts(document, [f"w{i}" for i in range(train.shape[1])])
    assert table.loc[0, "word"] == f"w{rare}"
    assert table.loc[0, "ratio"] > 5
    assert table["count"].sum() == document.sum()
    assert (np.diff(table["surprise"]) <= 0).all()
