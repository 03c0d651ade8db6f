"""Fits that are stopped: nothing is half done, and what was kept goes on to the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

import robustly as rb
from robustly.errors import FitError, NotFittedError, PersistError
from robustly.topics import LDA, RobustLDA, checkpoints, document_completion, fitting


class Stop(KeyboardInterrupt):
    pass


def stopped_after(passes, monkeypatch):
    """Ctrl-C in the middle of a pass."""
    real = fitting.TopicsRun.step
    made = []

    def step(run):
        made.append(1)
        if len(made) > passes:
            raise Stop
        real(run)

    monkeypatch.setattr(fitting.TopicsRun, "step", step)


def test_an_interrupted_first_fit_leaves_no_model(bursty, monkeypatch, tmp_path):
    _, train, _ = bursty
    model = RobustLDA(3, random_state=0, draws=10)
    stopped_after(5, monkeypatch)
    with pytest.raises(Stop):
        model.fit(train[:100])
    with pytest.raises(NotFittedError):
        model.transform(train[:2])
    with pytest.raises(NotFittedError):
        model.save(tmp_path / "m")


def test_an_interrupted_second_fit_leaves_the_first(bursty, monkeypatch, tmp_path):
    _, train, _ = bursty
    model = RobustLDA(3, random_state=0, draws=10).fit(train[:100])
    before = model.components_.copy()
    stopped_after(5, monkeypatch)
    with pytest.raises(Stop):
        model.fit(train[:, :150])
    np.testing.assert_array_equal(model.components_, before)
    assert model.n_features_in_ == 200
    np.testing.assert_array_equal(rb.load(model.save(tmp_path / "m")).components_, before)


@pytest.mark.parametrize(
    ("stop", "options"), [(7, {}), (30, {}), (40, {"n_components": "auto"}), (48, {"smoothing": 5.0})]
)
def test_a_checkpoint_goes_on_to_the_same_topics(bursty, monkeypatch, tmp_path, stop, options):
    _, train, _ = bursty
    settings = {"n_components": 4, "random_state": 0, "draws": 40} | options
    whole = RobustLDA(**settings).fit(train[:200])
    monkeypatch.setattr(checkpoints, "BETWEEN", 0.0)
    path = tmp_path / "kept"
    model = RobustLDA(**settings, checkpoint=path)
    with monkeypatch.context() as patch:
        stopped_after(stop, patch)
        with pytest.raises(Stop):
            model.fit(train[:200])
    assert path.exists()
    passes = []
    real = fitting.TopicsRun.step
    monkeypatch.setattr(fitting.TopicsRun, "step", lambda run: (passes.append(run.sorting_passes), real(run))[1])
    again = RobustLDA(**settings, checkpoint=path).fit(train[:200])
    assert len(passes) == passes[0] + 40 - stop
    np.testing.assert_array_equal(again.components_, whole.components_)
    np.testing.assert_array_equal(again.alpha_, whole.alpha_)
    assert again.history_ == whole.history_
    assert not path.exists()


def test_mean_field_goes_on_from_a_checkpoint(bursty, monkeypatch, tmp_path):
    _, train, _ = bursty
    settings = {"n_components": 3, "inference": "meanfield", "random_state": 0, "max_iter": 8, "tol": 0}
    whole = RobustLDA(**settings).fit(train[:60])
    monkeypatch.setattr(checkpoints, "BETWEEN", 0.0)
    with monkeypatch.context() as patch:
        stopped_after(4, patch)
        with pytest.raises(Stop):
            RobustLDA(**settings, checkpoint=tmp_path / "kept").fit(train[:60])
    again = RobustLDA(**settings, checkpoint=tmp_path / "kept").fit(train[:60])
    np.testing.assert_array_equal(again.components_, whole.components_)


def test_a_checkpoint_of_something_else_is_refused(bursty, few, monkeypatch, tmp_path):
    _, train, _ = bursty
    monkeypatch.setattr(checkpoints, "BETWEEN", 0.0)
    path = tmp_path / "kept"
    with monkeypatch.context() as patch:
        stopped_after(3, patch)
        with pytest.raises(Stop):
            RobustLDA(3, random_state=0, checkpoint=path).fit(train[:50])
    with pytest.raises(PersistError, match="other documents, settings or seeds"):
        RobustLDA(3, random_state=0, checkpoint=path).fit(train[1:51])
    with pytest.raises(PersistError, match="other documents, settings or seeds"):
        RobustLDA(4, random_state=0, checkpoint=path).fit(train[:50])
    other = RobustLDA(2, random_state=0, max_iter=3, tol=0, draws=2).fit(few).save(tmp_path / "model")
    with pytest.raises(PersistError, match="not a checkpoint of topics"):
        RobustLDA(2, checkpoint=other).fit(few)


def test_a_warm_start_goes_on_from_the_topics(bursty):
    _, train, _ = bursty
    model = LDA(4, random_state=0, max_iter=30, tol=0, draws=0, warm_start=True).fit(train)
    first = model.evidence_
    model.set_params(max_iter=3).fit(train)
    assert model.history_[1] > first - 0.05  # a cold start needs a dozen passes to come so far
    with pytest.raises(FitError, match="warm_start goes on from 4 topics"):
        model.set_params(n_components=5).fit(train)


@pytest.mark.parametrize("kind", [RobustLDA, LDA])
def test_a_stream_saved_midway_goes_on_to_the_same_numbers(kind, bursty, tmp_path):
    _, train, _ = bursty
    batches = [train[first : first + 80] for first in range(0, 400, 80)]
    whole = kind(4, random_state=0, draws=20)
    for batch in batches:
        whole.partial_fit(batch)
    half = kind(4, random_state=0, draws=20)
    for batch in batches[:3]:
        half.partial_fit(sparse.csr_matrix(batch))
    back = rb.load(half.save(tmp_path / "half"))
    for batch in batches[3:]:
        back.partial_fit(batch)
    np.testing.assert_array_equal(back.components_, whole.components_)
    np.testing.assert_array_equal(back.alpha_, whole.alpha_)
    assert back.documents_seen_ == whole.documents_seen_ == 400
    assert back.history_ == whole.history_


def test_a_stream_ends_near_the_fit_of_all_documents(bursty, fitted):
    _, train, test = bursty
    online = RobustLDA(4, random_state=0, total_samples=len(train))
    for first in range(0, len(train), 100):
        online.partial_fit(train[first : first + 100])
    assert online.documents_seen_ == len(train)
    assert document_completion(online, test, 0) > document_completion(fitted, test, 0) - 0.01


def test_lines_are_written_where_there_is_no_terminal(bursty, capsys):
    _, train, _ = bursty
    RobustLDA(3, random_state=0, draws=6, verbose=1).fit(train[:50])
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("RobustLDA: pass 1, evidence -")
    assert lines[-1].startswith("RobustLDA: draw 6 of 6, evidence -")
    RobustLDA(3, random_state=0, draws=6).fit(train[:50])
    assert capsys.readouterr().err == ""
