r"""Topic models as estimators: robust LDA, whose topics bend from document to document, and plain LDA beside it."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import nullcontext
from dataclasses import replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from scipy import sparse, stats
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from robustly import persist
from robustly.errors import ConvergenceWarning, DataError, FitError, NotFittedError
from robustly.topics.corpus import Corpus, check_counts
from robustly.topics.passes import UNSEEN, Documents, Statistics, Topics, Workers, make_topics, update

START_CONCENTRATION = 100.0
START_SMOOTHING = 100.0
# The first passes sort words into topics; α fitted before that settles on topics that do not exist yet.
PASSES_BEFORE_ALPHA = 2


class _TopicModel(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """What the two models have in common: everything but the flag that lets topics bend."""

    _bursty: bool

    def __init__(
        self,
        n_components: int = 10,
        *,
        inference: str = "collapsed",
        alpha: float | None = None,
        fit_alpha: bool = True,
        smoothing: float | None = None,
        max_iter: int = 100,
        tol: float = 5e-4,
        sweeps: int = 3,
        n_jobs: int | None = None,
        random_state: Any = None,
        validation_fraction: float | None = None,
        learning_decay: float = 0.7,
        learning_offset: float = 1.0,
        total_samples: float | None = None,
        allow_fractional: bool = False,
        verbose: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.inference = inference
        self.alpha = alpha
        self.fit_alpha = fit_alpha
        self.smoothing = smoothing
        self.max_iter = max_iter
        self.tol = tol
        self.sweeps = sweeps
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.validation_fraction = validation_fraction
        self.learning_decay = learning_decay
        self.learning_offset = learning_offset
        self.total_samples = total_samples
        self.allow_fractional = allow_fractional
        self.verbose = verbose

    # -- fitting -----------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None) -> Any:
        """Fit the topics to documents × words counts: a sparse matrix, an array, a frame or a :class:`Corpus`."""
        self._check_parameters()
        counts = self._read(X, reset=True)
        if counts.nnz == 0:
            raise DataError(f"no document of the {counts.shape[0]} has a word in it. Check the vectoriser or the file.")
        random = check_random_state(self.random_state)
        held = None
        if self.validation_fraction is not None:
            counts, held = self._hold_out(counts, random)
        documents = Documents(counts, self.n_components, self._dtype())
        self._topics = self._start(counts, random)
        base = self._fixed_base(counts)
        self.history_: list[float] = []
        self.validation_: list[float] = []
        converged = False
        with Workers(self.n_jobs) as workers, self._progress() as bar:
            task = bar.add_task(type(self).__name__, total=self.max_iter, note="") if bar else None
            for step in range(self.max_iter):
                found = self._collect(documents, workers)
                self.history_.append((found.evidence + self._log_prior(base)) / found.words)
                fit_alpha = self.fit_alpha and step >= PASSES_BEFORE_ALPHA
                self._topics = update(self._topics, found, workers, self._smoothing(), fit_alpha, base)
                if bar and task is not None:
                    bar.update(task, advance=1, note=f"{self.history_[-1]:.4f} per word")
                if held is not None and step % 5 == 4:
                    self.validation_.append(self._validate(held))
                if self._settled():
                    converged = True
                    break
        self.n_iter_ = len(self.history_)
        self._statistics: Statistics | None = None
        self._finish(int(counts.shape[0]))
        if not converged and self.tol > 0:
            last = abs(self.history_[-1] - self.history_[-2]) if self.n_iter_ > 1 else np.inf
            warnings.warn(
                f"max_iter: {self.max_iter} passes were not enough; the evidence per word still moved by {last:.1e} in the "
                f"last one (tol is {self.tol:g}). Raise max_iter or tol, or set tol=0 to ask for a fixed number of passes.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Any:
        """Learn from one more batch of documents, each batch counting a little less than the one before.

        The statistics of batch t enter with the rate ``(learning_offset + t) ** -learning_decay``, scaled to
        `total_samples` documents (those seen so far if None). After `fit`, it goes on from the fitted topics.
        """
        self._check_parameters()
        if self.inference != "collapsed":
            raise FitError('partial_fit needs inference="collapsed"; mean-field fits need all documents at once.')
        fresh = not hasattr(self, "_topics")
        counts = self._read(X, reset=fresh)
        if fresh:
            self._topics = self._start(counts, check_random_state(self.random_state))
            self.history_, self.validation_ = [], []
            self.n_iter_, self.documents_seen_, self._statistics = 0, 0, None
        self.documents_seen_ += int(counts.shape[0])
        if counts.nnz:
            documents = Documents(counts, self._topics.size, self._topics.eta.dtype)
            # The rate falls with batches of its own, so that a fit continued online is not overrun by its first batch.
            rate = min(1.0, (self.learning_offset + self.n_iter_) ** -self.learning_decay)
            scale = max(self.total_samples or 0, self.documents_seen_) / counts.shape[0]
            with Workers(self.n_jobs) as workers:
                # Nothing is remembered of a first visit, so a few sweeps more than in a fit.
                new = documents.collect(self._topics, workers, max(self.sweeps, 10), 1e-3)
                old = self._statistics or self._restored_statistics(new)
                blended = old.blend(new, rate, scale)
                self._topics = update(self._topics, blended, workers, self._smoothing(), self.fit_alpha and self.n_iter_ > 0)
            self._statistics = blended
            self.history_.append(new.evidence / new.words)
        self.n_iter_ += 1
        self._finish(self.documents_seen_)
        return self

    def _restored_statistics(self, new: Statistics) -> Statistics:
        """The sums that the present topics stand for; before the first batch, nothing, and the first batch decides."""
        if self.n_iter_ == 0:
            zero = np.zeros_like(new.tables)
            size = self._topics.size
            return Statistics(zero, np.zeros(size), np.zeros(size), 0.0, 0.0, 0.0, 0)
        topics = self._topics
        share = topics.share.astype(float)
        tables = np.maximum(topics.eta / share - topics.floor[:, None].astype(float), 0.0)
        terms = tables.sum(axis=0) / np.maximum(topics.total.astype(float), 1e-30)
        alpha_terms = new.alpha_terms * self.documents_seen_ / max(new.documents, 1)
        return Statistics(tables, terms, topics.alpha * alpha_terms, alpha_terms, 0.0, 0.0, 0)

    def _collect(self, documents: Documents, workers: Workers) -> Statistics:
        if self.inference == "meanfield":
            return documents.collect_meanfield(self._topics, workers, 20, 1e-4)
        return documents.collect(self._topics, workers, self.sweeps, 0.0)

    def _start(self, counts: sparse.csr_matrix, random: np.random.RandomState) -> Topics:
        """Topics that are the corpus with each word's weight shaken at random."""
        words, size = counts.shape[1], self.n_components
        base = np.maximum(np.asarray(counts.sum(axis=0), dtype=float).ravel(), UNSEEN)
        shaken = base[:, None] * (random.standard_gamma(1.0, (words, size)) if size > 1 else np.ones((words, 1)))
        alpha = np.full(size, 0.1 if self.alpha is None else float(self.alpha))
        total = np.full(size, START_CONCENTRATION)
        fixed = self._smoothing()
        strength = START_SMOOTHING if fixed is None else fixed
        topics = make_topics(shaken, base / base.sum(), 1.0, total, alpha, self._bursty, self._dtype())
        return replace(topics, strength=strength)

    def _smoothing(self) -> float | None:
        if self.smoothing is None and self.inference == "meanfield":
            return 1.0 if self._bursty else 0.01 * self.n_features_in_
        return None if self.smoothing is None else float(self.smoothing)

    def _fixed_base(self, counts: sparse.csr_matrix) -> np.ndarray | None:
        """Mean field keeps the base of its smoothing where it is, so that bound plus log prior cannot fall."""
        if self.inference != "meanfield":
            return None
        base = np.maximum(np.asarray(counts.sum(axis=0), dtype=float).ravel(), UNSEEN)
        if not self._bursty:
            base = np.ones_like(base)
        return base / base.sum()

    def _log_prior(self, base: np.ndarray | None) -> float:
        strength = self._smoothing()
        if base is None or not strength:
            return 0.0
        direction = self._topics.eta / self._topics.eta.sum(axis=0)
        return strength * float(base @ np.log(direction).sum(axis=1))

    def _settled(self) -> bool:
        """Two passes running that moved the evidence by less than `tol`, or two looks at held-out documents."""
        if self.tol <= 0:
            return False
        if self.validation_fraction is not None:
            recent = np.array(self.validation_[-3:])
            return len(recent) == 3 and len(self.history_) % 5 == 0 and recent[1:].max() < recent[0] + self.tol
        recent = np.array(self.history_[-3:])
        return len(recent) == 3 and bool((np.abs(np.diff(recent)) < self.tol).all())

    def _hold_out(self, counts: sparse.csr_matrix, random: np.random.RandomState) -> tuple[Any, Any]:
        from robustly.topics.evaluate import split_documents

        number = max(1, round(float(self.validation_fraction or 0) * counts.shape[0]))
        if number >= counts.shape[0]:
            raise DataError(
                f"validation_fraction={self.validation_fraction} of {counts.shape[0]} documents leaves none to fit. Lower it."
            )
        order = random.permutation(counts.shape[0])
        return counts[np.sort(order[number:])], split_documents(counts[np.sort(order[:number])], random)

    def _validate(self, held: Any) -> float:
        from robustly.topics.evaluate import document_completion

        return document_completion(self, observed=held.observed, held_out=held.held_out)

    def _finish(self, documents: int) -> None:
        topics = self._topics
        self.alpha_ = topics.alpha.astype(float)
        self.smoothing_ = topics.strength
        self.evidence_ = self.history_[-1] if self.history_ else np.nan
        self.documents_seen_ = documents
        self._n_features_out = topics.size
        if topics.bursty:
            self.components_ = topics.eta.T
            self.burstiness_ = topics.eta.sum(axis=0, dtype=float)
        else:
            self.components_ = (topics.eta / topics.share).T
            self.burstiness_ = np.full(topics.size, np.inf)

    # -- using -------------------------------------------------------------------------------------------------------

    def transform(self, X: Any) -> np.ndarray:
        """Expected topic proportions, one row per document. A document without words gets the prior's."""
        counts = self._read_new(X)
        documents = Documents(counts, self._topics.size, self._topics.eta.dtype)
        with Workers(self.n_jobs) as workers:
            for _ in documents.infer(self._topics, workers, inference=self.inference):
                pass
        shares = documents.state + self._topics.alpha.astype(float)
        return shares / shares.sum(axis=1, keepdims=True)

    def evidence(self, X: Any) -> np.ndarray:
        """Log evidence per document: with mean field the bound; collapsed, Σ over words of log p(word | the rest).

        Not comparable between models or between the two kinds of inference: for that use
        :func:`~robustly.topics.document_completion`.
        """
        counts = self._read_new(X)
        documents = Documents(counts, self._topics.size, self._topics.eta.dtype)
        with Workers(self.n_jobs) as workers:
            parts = [part.copy() for *_, part in documents.infer(self._topics, workers, inference=self.inference)]
        return np.concatenate(parts)

    def score(self, X: Any, y: Any = None) -> float:
        """Mean predictive log-likelihood per word of one half of each document given the other; higher is better.

        The split is always the same one, so scores of models on the same documents compare.
        """
        from robustly.topics.evaluate import document_completion

        return document_completion(self, X, random_state=0)

    def top_words(self, vocabulary: Any = None, n: int = 10) -> list[list[str]]:
        """The `n` heaviest words of each topic; `vocabulary` is optional if the fit saw one."""
        self._check_fitted()
        known = self._vocabulary(vocabulary)
        best = np.argsort(-self.components_, axis=1, kind="stable")[:, : max(0, n)]
        return [[str(known[i]) for i in row] for row in best]

    def bursts(self, document: Any, vocabulary: Any = None) -> pd.DataFrame:
        """Which words of a document are bursts: how often each is there, and how often the topics would have it.

        The expectation is that of the shared topics in the proportions of this document. Columns: `word`, `count`,
        `expected`, `ratio` and `surprise`, minus the log of a Poisson count's chance to be as large; most surprising
        first.
        """
        self._check_fitted()
        if not isinstance(document, Corpus) and not sparse.issparse(document):
            document = np.atleast_2d(np.asarray(document))
        counts = self._read_new(document)
        if counts.shape[0] != 1:
            raise DataError(f"{counts.shape[0]} documents came; bursts() looks at one. Pass a single row, as X[3:4].")
        shares = self.transform(counts)[0]
        row = counts.tocsr()
        words, found = row.indices, row.data
        eta = self._topics.eta[words].astype(float)
        if self._bursty:
            eta = eta / self._topics.eta.sum(axis=0, dtype=float)
        expected = found.sum() * (eta @ shares)
        known = self._vocabulary(vocabulary, fallback=True)
        table = pd.DataFrame(
            {
                "word": [known[i] for i in words],
                "count": found,
                "expected": expected,
                "ratio": found / expected,
                "surprise": -stats.poisson.logsf(found - 1, expected),
            }
        )
        return table.sort_values("surprise", ascending=False, kind="stable", ignore_index=True)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Keep the fitted model in one file without code in it; ``rb.load(path)`` gives it back."""
        self._check_fitted()
        topics = self._topics
        parameters = self.get_params()
        if not isinstance(parameters["random_state"], int | None):
            parameters["random_state"] = None  # a generator's state is not part of the result
        plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in parameters.items()}
        meta = {
            "model": type(self).__name__,
            "parameters": plain,
            "history": [float(value) for value in self.history_],
            "validation": [float(value) for value in self.validation_],
            "n_iter": self.n_iter_,
            "documents_seen": self.documents_seen_,
            "strength": topics.strength,
            "vocabulary": list(self.vocabulary_) if self.vocabulary_ is not None else None,
            "names": list(self.feature_names_in_) if hasattr(self, "feature_names_in_") else None,
        }
        arrays = {name: getattr(topics, name) for name in ("eta", "total", "alpha", "share", "floor")}
        return persist.write(path, "topics", meta, arrays)

    # -- reading and checking ----------------------------------------------------------------------------------------

    def _read(self, X: Any, *, reset: bool) -> sparse.csr_matrix:
        if reset:
            self.vocabulary_ = X.vocabulary if isinstance(X, Corpus) else None
        counts = check_counts(X, allow_fractional=self.allow_fractional)
        if counts.shape[0] == 0:
            raise DataError("0 sample(s) came (no documents), while a minimum of 1 is required. Check what was selected.")
        if counts.shape[1] == 0:
            raise DataError(f"0 feature(s) (shape={counts.shape}) while a minimum of 1 is required. The vocabulary is empty.")
        validate_data(self, counts if isinstance(X, Corpus) else X, reset=reset, skip_check_array=True)
        return counts

    def _read_new(self, X: Any) -> sparse.csr_matrix:
        self._check_fitted()
        return self._read(X, reset=False)

    def _check_fitted(self) -> None:
        if not hasattr(self, "_topics"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet. Call fit() first.")

    def _vocabulary(self, vocabulary: Any, fallback: bool = False) -> Any:
        if vocabulary is None:
            vocabulary = self.vocabulary_
        if vocabulary is None and hasattr(self, "feature_names_in_"):
            vocabulary = self.feature_names_in_
        if vocabulary is None:
            if fallback:
                return np.arange(self.n_features_in_)
            raise DataError(
                "the words have no names. Pass the vocabulary, as top_words(vectorizer.get_feature_names_out()), "
                "or fit a Corpus that has one."
            )
        if len(vocabulary) != self.n_features_in_:
            raise DataError(f"{len(vocabulary)} words came for a model of {self.n_features_in_}. Pass the vocabulary of the fit.")
        return vocabulary

    def _dtype(self) -> Any:
        # One topic is maximum likelihood, and a bound has to climb to the last digit; both get double precision.
        return np.float64 if self.n_components == 1 or self.inference == "meanfield" else np.float32

    def _progress(self) -> Any:
        if self.verbose == 0 or not sys.stderr.isatty():
            return nullcontext()
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"), TimeRemainingColumn())
        return Progress(*columns, console=Console(stderr=True), transient=True)

    def _check_parameters(self) -> None:
        if self.inference not in ("collapsed", "meanfield"):
            raise FitError(f'inference="{self.inference}" is not known. Choose "collapsed" or "meanfield".')
        for name, low in (("n_components", 1), ("max_iter", 1), ("sweeps", 1)):
            value = getattr(self, name)
            if not isinstance(value, Integral) or isinstance(value, bool) or value < low:
                raise FitError(f"{name} is {value!r}; a whole number from {low} up was expected.")
        if self.n_components > 65535:
            raise FitError(f"n_components is {self.n_components}; at most 65535 topics can be told apart here.")
        if self.n_jobs is not None and (not isinstance(self.n_jobs, Integral) or self.n_jobs == 0):
            raise FitError(f"n_jobs is {self.n_jobs!r}; a number of threads, -1 or None (all) was expected.")
        for name in ("alpha", "smoothing", "total_samples"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, Real) and np.isfinite(value) and value >= 0):
                raise FitError(f"{name} is {value!r}; a number from 0 up, or None, was expected.")
        if self.alpha is not None and self.alpha == 0:
            raise FitError("alpha is 0, which lets no document use any topic. Give a number above 0, or None.")
        if not isinstance(self.tol, Real) or not self.tol >= 0:
            raise FitError(f"tol is {self.tol!r}; a number from 0 up was expected.")
        if not 0.5 <= self.learning_decay <= 1.0:
            raise FitError(f"learning_decay is {self.learning_decay!r}; between 0.5 and 1 online learning settles.")
        if not self.learning_offset >= 1.0:
            raise FitError(f"learning_offset is {self.learning_offset!r}; a number from 1 up was expected.")
        if self.validation_fraction is not None and not 0 < self.validation_fraction < 1:
            raise FitError(f"validation_fraction is {self.validation_fraction!r}; between 0 and 1 was expected.")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.transformer_tags.preserves_dtype = []
        return tags


class RobustLDA(_TopicModel):
    _bursty = True


class LDA(_TopicModel):
    _bursty = False


_MODELS = {"RobustLDA": RobustLDA, "LDA": LDA}


def from_saved(meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> _TopicModel:
    """Rebuild a saved model."""
    model = _MODELS[meta["model"]](**meta["parameters"])
    model._topics = Topics(bursty=model._bursty, strength=meta["strength"], **arrays)
    model.n_features_in_ = len(arrays["eta"])
    model.vocabulary_ = tuple(meta["vocabulary"]) if meta["vocabulary"] is not None else None
    if meta["names"] is not None:
        model.feature_names_in_ = np.array(meta["names"], dtype=object)
    model.history_, model.validation_ = meta["history"], meta["validation"]
    model.n_iter_, model._statistics = meta["n_iter"], None
    model._finish(meta["documents_seen"])
    return model
