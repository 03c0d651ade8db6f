"""How well does a topic model predict? One half of each document given the other, and how coherent its topics read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.utils import check_random_state

from robustly.errors import DataError
from robustly.topics import kernels
from robustly.topics.corpus import check_counts
from robustly.topics.lda import _TopicModel
from robustly.topics.passes import Documents, Workers


@dataclass(frozen=True)
class Split:
    """Documents cut in two; `skipped` counts those with fewer than two words, which are left out."""

    observed: sparse.csr_matrix
    held_out: sparse.csr_matrix
    skipped: int


def split_documents(test: Any, random_state: Any = None) -> Split:
    """Cut each document's tokens at random into two halves (the odd token is observed)."""
    random = check_random_state(random_state)
    counts = check_counts(test)
    lengths = np.asarray(counts.sum(axis=1)).ravel()
    usable = np.flatnonzero(lengths >= 2)
    counts = counts[usable]
    observed = np.empty_like(counts.data)
    for begin, end in zip(counts.indptr[:-1], counts.indptr[1:]):
        # All tokens of a document are alike, so halving it is a draw without replacement from its counts.
        mine = counts.data[begin:end].astype(np.int64)
        half = int(mine.sum() + 1) // 2
        rest, want = int(mine.sum()), half
        for j, count in enumerate(mine):
            taken = random.hypergeometric(count, rest - count, want) if want else 0
            observed[begin + j] = taken
            rest -= int(count)
            want -= int(taken)
    first = sparse.csr_matrix((observed, counts.indices.copy(), counts.indptr.copy()), shape=counts.shape)
    second = sparse.csr_matrix((counts.data - observed, counts.indices.copy(), counts.indptr.copy()), shape=counts.shape)
    first.eliminate_zeros()
    second.eliminate_zeros()
    return Split(first, second, int(len(lengths) - len(usable)))


@dataclass(frozen=True)
class Completion:
    """Document completion in full: `per_word` is the score, `per_document` its sums, `skipped` the short documents."""

    per_word: float
    per_document: np.ndarray
    words: float
    skipped: int


def document_completion(
    model: Any, test: Any = None, random_state: Any = None, *, observed: Any = None, held_out: Any = None
) -> float:
    r"""Mean predictive log-likelihood per held-out word: higher is better.

    .. math:: \sum_d \log p(w_{d2} \mid w_{d1}) \,/\, \sum_d |w_{d2}|

    Each test document is cut into two halves at random; topic proportions, and in robust LDA the document's own topics,
    are learnt from the first and predict the second. Documents of fewer than two words are skipped;
    :func:`complete_documents` says how many.

    Parameters
    ----------
    model : a fitted RobustLDA, LDA or scikit-learn LatentDirichletAllocation
    test : documents × words counts or a Corpus, cut here with `random_state`
    observed, held_out : a cut already made, in place of `test`

    >>> import numpy as np
    >>> from robustly.topics import LDA, document_completion
    >>> X = np.array([[4, 2, 0, 0], [3, 3, 0, 0], [0, 0, 2, 4], [0, 0, 5, 1]])
    >>> model = LDA(2, random_state=0).fit(X)
    >>> bool(document_completion(model, X, random_state=0) > np.log(1 / 4))
    True
    """
    return complete_documents(model, test, random_state, observed=observed, held_out=held_out).per_word


def complete_documents(
    model: Any, test: Any = None, random_state: Any = None, *, observed: Any = None, held_out: Any = None
) -> Completion:
    """:func:`document_completion` with its parts."""
    if (test is None) == (observed is None) or (observed is None) != (held_out is None):
        raise DataError("pass either test documents, or both observed= and held_out=.")
    if test is not None:
        halves = split_documents(test, random_state)
    else:
        first, second = check_counts(observed), check_counts(held_out)
        if first.shape != second.shape:
            raise DataError(f"observed has shape {first.shape} and held_out {second.shape}; both need the same documents and words.")
        empty = np.diff(second.indptr) == 0
        halves = Split(first, second, int(empty.sum()))
    words = float(halves.held_out.sum())
    if words == 0:
        raise DataError("no test document has two words or more, so there is nothing to predict. Pass longer documents.")
    if isinstance(model, _TopicModel):
        sums = _complete(model, halves)
    elif hasattr(model, "components_") and hasattr(model, "doc_topic_prior_"):
        sums = _complete_sklearn(model, halves)
    else:
        raise DataError(
            f"document completion is for fitted RobustLDA, LDA and scikit-learn LatentDirichletAllocation; "
            f"a {type(model).__name__} came (is it fitted?)."
        )
    return Completion(float(sums.sum()) / words, sums, words, halves.skipped)


def _complete(model: _TopicModel, halves: Split) -> np.ndarray:
    observed = model._read_new(halves.observed)
    topics = model._topics
    documents = Documents(observed, topics.size, topics.eta.dtype)
    held = halves.held_out
    starts, words = held.indptr.astype(np.int64), held.indices.astype(np.int32)
    sums = np.zeros(observed.shape[0])
    shared = (topics.eta, topics.alpha, topics.total, topics.bursty, starts, words, held.data.astype(float), sums)
    with Workers(model.n_jobs) as workers:
        for block, out, _ in documents.infer(topics, workers, inference=model.inference):
            cuts = block.document_cuts
            calls = [
                (a, b, block.offset, documents.starts, documents.words, documents.state, out, *shared)
                for a, b in zip(cuts[:-1], cuts[1:])
            ]
            workers.run(kernels.predict, calls)
    return sums


def _complete_sklearn(model: Any, halves: Split) -> np.ndarray:
    topics = model.components_ / model.components_.sum(axis=1, keepdims=True)
    shares = model.transform(halves.observed)
    held = halves.held_out
    sums = np.zeros(held.shape[0])
    for d, (begin, end) in enumerate(zip(held.indptr[:-1], held.indptr[1:])):
        sums[d] = held.data[begin:end] @ np.log(shares[d] @ topics[:, held.indices[begin:end]])
    return sums


def coherence(model: Any, reference: Any, n: int = 10) -> np.ndarray:
    r"""NPMI of each topic's `n` top words: the mean over pairs of :math:`\log\frac{p(a,b)}{p(a)p(b)} / -\log p(a,b)`.

    Probabilities are shares of the `reference` documents that have the word or both (Bouma 2009; Lau, Newman & Baldwin
    2014). 1 for words always together, 0 for independent ones, −1 for words never together.
    """
    if n < 2:
        raise DataError(f"coherence of the {n} top words came; pairs need n=2 or more.")
    counts = check_counts(reference)
    components = np.asarray(model.components_)
    if components.shape[1] != counts.shape[1]:
        raise DataError(f"the model has {components.shape[1]} words and the reference {counts.shape[1]}. Use the same vocabulary.")
    present = counts.tocsc()
    present.data = np.ones_like(present.data)
    result = np.empty(len(components))
    for k, row in enumerate(components):
        best = np.argsort(-row, kind="stable")[:n]
        together = (present[:, best].T @ present[:, best]).toarray() / counts.shape[0]
        a, b = np.triu_indices(len(best), 1)
        joint, alone = together[a, b], np.diag(together)
        expected = alone[a] * alone[b]
        value = np.full(len(joint), -1.0)
        some = (joint > 0) & (joint < 1)
        value[some] = np.log(joint[some] / expected[some]) / -np.log(joint[some])
        value[joint == 1] = 1.0
        result[k] = value.mean() if len(value) else np.nan
    return result
