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

from robustly.errors import DataError, FitError, NotFittedError
from robustly.topics.corpus import Corpus
from robustly.topics.evaluate import complete_documents
from robustly.topics.passes import Documents, DocumentsElsewhere, document_rows, held, reading_pass
from robustly.topics.reading import RELEVANCE, diversity_of, npmi, ranked, telling_shares, word_shares
from robustly.topics.saved import write_topics
from robustly.topics.shared import Topics
from robustly.topics.stored import StoredCorpus, documents_from, stored_counts
from robustly.topics.stream import Stream
from robustly.topics.summary import TopicsSummary

HAVE_WORDS = (Corpus, StoredCorpus, DocumentsElsewhere)


class FittedTopics(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """The part of a topic model that uses its topics; fitting is in :mod:`robustly.topics.lda`."""

    bursty: bool
    topics_: Topics
    inference: str
    n_jobs: int | None
    allow_fractional: bool
    history_: list[float]
    validation_: list[float]
    n_iter_: int
    n_features_in_: int
    vocabulary_: tuple[str, ...] | None
    start_history_: list[float]
    outcome_: str
    stream_: Stream
    usage_: np.ndarray | None = None

    def adopt(self, topics: Topics, documents: int, evidence: float) -> None:
        """Take up topics that were fitted to so many documents with so much evidence per word."""
        if not np.isfinite(topics.eta).all():
            raise FitError(
                "the topics ended beyond floating point: counts are too large for so little smoothing. Divide the counts, or leave "
                "smoothing to be fitted."
            )
        self.topics_ = topics
        self.alpha_ = topics.alpha.astype(float)
        self.smoothing_ = topics.strength
        self.evidence_ = float(evidence)
        self.documents_seen_ = documents
        self._n_features_out = self.n_topics_ = topics.size
        if topics.bursty:
            self.components_ = topics.eta.T
            self.burstiness_ = topics.eta.sum(axis=0, dtype=float)
        else:
            self.components_ = (topics.eta / topics.share).T
            self.burstiness_ = np.full(topics.size, np.inf)

    def _describe(self, documents: Documents) -> None:
        """What some documents of the fit use of the topics, and how these read."""
        self.usage_ = documents.usage(self.topics_)
        counts = documents.rows.sample(len(documents.rows), 0).data[0]
        best = self.ranked_words(25)
        self.coherence_, self.diversity_ = npmi(best[:, :10], counts), diversity_of(best)

    def ranked_words(self, n: int, relevance: float = RELEVANCE) -> np.ndarray:
        """(K, n) ids of each topic's words as :meth:`top_words` ranks them."""
        return ranked(telling_shares(self.topics_, self.usage_), self.alpha_, relevance, n)

    def word_shares(self) -> np.ndarray:
        """(K, V) the words of each topic as the documents of the fit used them, a row summing to one.

        A row of `components_` divided by its sum is the shared topic, in which a burst counts little more than a single
        use; here each token counts. After `partial_fit` the two are the same.
        """
        self.check_fitted()
        return word_shares(self.topics_, self.usage_).T

    def transform(self, X: Any) -> np.ndarray:
        """Expected topic proportions, one row per document. A document without words gets the prior's."""
        shares = self._read_documents(X, "tokens") + self.topics_.alpha.astype(float)
        return shares / shares.sum(axis=1, keepdims=True)

    def evidence(self, X: Any) -> np.ndarray:
        """Log evidence per document: with mean field the bound; collapsed, Σ over words of log p(word | the rest).

        Not comparable between models or between the two kinds of inference: for that use
        :func:`~robustly.topics.document_completion`.
        """
        return self._read_documents(X, "evidence")

    def _read_documents(self, X: Any, what: str) -> np.ndarray:
        rows = document_rows(self.read_new(X), self.topics_.eta.dtype, self.n_jobs)
        return rows.map(reading_pass, held(self.topics_, self.inference)).by_unit[what]

    def score(self, X: Any, y: Any = None) -> float:
        """Mean predictive log-likelihood per word of one half of each document given the other; higher is better.

        The split is always the same one, so scores of models on the same documents compare.
        """
        random = np.random.RandomState(0)
        if not isinstance(X, StoredCorpus):
            return complete_documents(self, self.read_new(X), random).per_word
        each = [complete_documents(self, self.read_new(batch), random) for batch in X.batches()]
        return sum(float(one.per_document.sum()) for one in each) / sum(one.words for one in each)

    def top_words(self, vocabulary: Any = None, n: int = 10, *, relevance: float = RELEVANCE) -> list[list[str]]:
        r"""The `n` words that tell most of each topic; `vocabulary` is optional if the fit saw one.

        Words are ranked by :math:`\lambda \log p(w \mid k) + (1 - \lambda) \log\frac{p(w \mid k)}{p(w)}` with
        :math:`\lambda` the `relevance`: 1 ranks by probability alone, and then words that are common everywhere lead
        many topics; 0 by how much more likely the word is than elsewhere. :math:`p(w \mid k)` lies between what the
        documents used (:meth:`word_shares`), which counts two thirds, and the shared topic, so that the bursts of one
        document do not lead.
        """
        self.check_fitted()
        if not 0 <= relevance <= 1:
            raise DataError(f"relevance is a number from 0 to 1; got {relevance!r}.")
        known = self.named_words(vocabulary)
        return [[str(known[i]) for i in row] for row in self.ranked_words(max(0, n), relevance)]

    def summary(self, vocabulary: Any = None, n: int = 8) -> TopicsSummary:
        """A table of the topics, the most used first: share, burstiness, coherence and top words; prints as text."""
        self.check_fitted()
        return TopicsSummary.of(self, self.top_words(self.named_words(vocabulary, fallback=True), n))

    def bursts(self, document: Any, vocabulary: Any = None) -> pd.DataFrame:
        """Which words of a document are bursts: how often each is there, and how often the topics would have it.

        The expectation is that of the shared topics in the proportions of this document. Columns: `word`, `count`,
        `expected`, `ratio` and `surprise`, minus the log of a Poisson count's chance to be as large; most surprising
        first.
        """
        self.check_fitted()
        if not isinstance(document, Corpus) and not sparse.issparse(document):
            document = np.atleast_2d(np.asarray(document))
        counts = self.read_new(document)
        if counts.shape[0] != 1:
            raise DataError(f"{counts.shape[0]} documents came; bursts() looks at one. Pass a single row, as X[3:4].")
        shares = self.transform(counts)[0]
        row = counts.tocsr()
        words, found = row.indices, row.data
        eta = self.topics_.eta[words].astype(float)
        if self.bursty:
            eta = eta / self.topics_.eta.sum(axis=0, dtype=float)
        expected = found.sum() * (eta @ shares)
        known = self.named_words(vocabulary, fallback=True)
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
        self.check_fitted()
        return write_topics(self, path)

    def _read_counts(self, X: Any) -> Any:
        counts = stored_counts(X, allow_fractional=self.allow_fractional)
        if counts.shape[0] == 0:
            raise DataError(
                "0 sample(s) came (no documents), while a minimum of 1 is required. Check what was selected."
            )
        if counts.shape[1] == 0:
            raise DataError(
                f"0 feature(s) (shape={counts.shape}) while a minimum of 1 is required. The vocabulary is empty."
            )
        return counts

    def _names_of(self, X: Any) -> Any:
        return X.vocabulary if isinstance(X, HAVE_WORDS) else getattr(X, "columns", None)

    def _read(self, X: Any, *, reset: bool) -> sparse.csr_matrix:
        X = documents_from(X, None if reset else self._known_words())
        counts = self._read_counts(X)
        validate_data(self, counts if isinstance(X, HAVE_WORDS) else X, reset=reset, skip_check_array=True)
        if reset:
            self.vocabulary_ = X.vocabulary if isinstance(X, HAVE_WORDS) else None
        return counts

    def read_new(self, X: Any) -> sparse.csr_matrix:
        self.check_fitted()
        return self._read(X, reset=False)

    def _known_words(self) -> Any:
        """The vocabulary of the fit; without names, one that says how many words there are."""
        names = getattr(self, "vocabulary_", None)
        if names is None:
            names = getattr(self, "feature_names_in_", None)
        return range(self.n_features_in_) if names is None and hasattr(self, "n_features_in_") else names

    def check_fitted(self) -> None:
        if not hasattr(self, "topics_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet. Call fit() first.")

    def named_words(self, vocabulary: Any, fallback: bool = False) -> Any:
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
