"""What can be asked of fitted topics? Proportions, predictions, words, bursts, and a file to keep them in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse, stats
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import validate_data

from robustly.errors import DataError, NotFittedError
from robustly.result import persist
from robustly.topics.corpus import Corpus, check_counts
from robustly.topics.passes import Documents, Topics, Workers


class FittedTopics(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """The part of a topic model that uses its topics; fitting is in :mod:`robustly.topics.lda`."""

    _bursty: bool
    _topics: Topics
    inference: str
    n_jobs: int | None
    allow_fractional: bool
    history_: list[float]
    validation_: list[float]
    n_iter_: int
    n_features_in_: int
    vocabulary_: tuple[str, ...] | None

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

        return document_completion(self, self._read_new(X), random_state=0)

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

    def _read(self, X: Any, *, reset: bool) -> sparse.csr_matrix:
        if reset:
            self.vocabulary_ = X.vocabulary if isinstance(X, Corpus) else None
        counts = check_counts(X, allow_fractional=self.allow_fractional)
        if counts.shape[0] == 0:
            raise DataError(
                "0 sample(s) came (no documents), while a minimum of 1 is required. Check what was selected."
            )
        if counts.shape[1] == 0:
            raise DataError(
                f"0 feature(s) (shape={counts.shape}) while a minimum of 1 is required. The vocabulary is empty."
            )
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
            raise DataError(
                f"{len(vocabulary)} words came for a model of {self.n_features_in_}. Pass the vocabulary of the fit."
            )
        return vocabulary

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.transformer_tags.preserves_dtype = []
        return tags
