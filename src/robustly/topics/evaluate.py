"""How well does a topic model predict? One half of each document given the other, and how coherent its topics read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import minimize_scalar
from sklearn.utils import check_random_state

from robustly.errors import DataError
from robustly.rows.store import ByUnit, Data, Slot, Sums
from robustly.topics.corpus import check_counts
from robustly.topics.passes import Asked, held, read_chunk, store_documents
from robustly.topics.reading import diversity_of, npmi, ranked
from robustly.topics.shared import Topics
from robustly.topics.special import compiled

# Longer documents are cut word by word of the vocabulary, not token by token: they would not fit into memory.
LONGEST_UNROLLED = 100_000
MOST_TOKENS = 10**9  # what hypergeometric draws take


@dataclass(frozen=True)
class Split:
    """Documents cut in two; `skipped` counts those with fewer than two words, which are left out."""

    observed: sparse.csr_matrix
    held_out: sparse.csr_matrix
    skipped: int


def split_documents(test: Any, random_state: Any = None, *, allow_fractional: bool = False) -> Split:
    """Cut each document's tokens at random into two halves (the odd token is observed).

    Counts that are not whole cannot be cut into tokens; where they are allowed, each word goes to either half.
    """
    random = check_random_state(random_state)
    counts = check_counts(test, allow_fractional=allow_fractional)
    whole = bool((counts.data == np.floor(counts.data)).all())
    sizes = counts.data.astype(np.int64) if whole else np.ones(counts.nnz, np.int64)
    documents = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    lengths = np.bincount(documents, weights=sizes, minlength=counts.shape[0]).astype(np.int64)
    unrolled = np.where(lengths[documents] > LONGEST_UNROLLED, 0, sizes)
    pairs = np.repeat(np.arange(counts.nnz), unrolled)
    rows = np.repeat(documents, unrolled)
    drawn = np.bincount(rows, minlength=counts.shape[0])
    order = np.lexsort((random.random_sample(len(pairs)), rows))
    rank = np.arange(len(pairs)) - np.repeat(np.cumsum(drawn) - drawn, drawn)
    taken = rank < np.repeat((drawn + 1) // 2, drawn)
    observed = np.bincount(pairs[order], weights=taken, minlength=counts.nnz)
    for document in np.flatnonzero(lengths > LONGEST_UNROLLED):
        place = slice(counts.indptr[document], counts.indptr[document + 1])
        observed[place] = _half_of(sizes[place], random)
    observed = observed * (1.0 if whole else counts.data)
    first, second = counts.copy(), counts.copy()
    first.data, second.data = observed, counts.data - observed
    usable = np.flatnonzero(lengths >= 2)
    first, second = first[usable], second[usable]
    first.eliminate_zeros()
    second.eliminate_zeros()
    return Split(first, second, int(counts.shape[0] - len(usable)))


def _half_of(sizes: np.ndarray, random: np.random.RandomState) -> np.ndarray:
    """How many tokens of each word are in a random half of a long document."""
    rest = int(sizes.sum())
    if rest > MOST_TOKENS:
        raise DataError(f"a document has {rest} words, and at most {MOST_TOKENS} can be cut in two. Check its counts.")
    wanted, found = (rest + 1) // 2, np.zeros(len(sizes))
    for place, size in enumerate(map(int, sizes)):
        rest -= size
        found[place] = random.hypergeometric(size, rest, wanted) if wanted and size else 0
        wanted -= int(found[place])
    return found


@dataclass(frozen=True)
class Completion:
    """Document completion in full: `per_word` is the score, `per_document` its sums, `skipped` the short documents.

    `cache` is the weight of the model's own prediction, in words, where a cache was added.
    """

    per_word: float
    per_document: np.ndarray
    words: float
    skipped: int
    cache: float | None = None


def document_completion(
    model: Any,
    test: Any = None,
    random_state: Any = None,
    *,
    observed: Any = None,
    held_out: Any = None,
    cache: bool = False,
) -> float:
    r"""Mean predictive log-likelihood per held-out word: higher is better.

    .. math:: \sum_d \log p(w_{d2} \mid w_{d1}) \,/\, \sum_d |w_{d2}|

    Each test document is cut into two halves at random; topic proportions, and in robust LDA the document's own topics,
    are learnt from the first, by collapsed inference however the model was fitted, and predict the second. Documents of
    fewer than two words are skipped; :func:`complete_documents` says how many.

    Parameters
    ----------
    model : a fitted RobustLDA, LDA or scikit-learn LatentDirichletAllocation
    test : documents × words counts or a Corpus, cut here with `random_state`
    observed, held_out : a cut already made, in place of `test`
    cache : predict by :math:`(\mu\,p(w) + c_w)/(\mu + N)`, the model's own prediction with the observed half's counts
        :math:`c_w` beside it. One number :math:`\mu`, fitted by cutting the observed halves again, says how far. For
        plain LDA this is the simplest rival of bending topics: it, too, expects words to come again

    >>> import numpy as np
    >>> from robustly.topics import LDA, document_completion
    >>> X = np.array([[4, 2, 0, 0], [3, 3, 0, 0], [0, 0, 2, 4], [0, 0, 5, 1]])
    >>> model = LDA(2, random_state=0).fit(X)
    >>> bool(document_completion(model, X, random_state=0) > np.log(1 / 4))
    True
    """
    return complete_documents(model, test, random_state, observed=observed, held_out=held_out, cache=cache).per_word


def complete_documents(
    model: Any,
    test: Any = None,
    random_state: Any = None,
    *,
    observed: Any = None,
    held_out: Any = None,
    cache: bool = False,
) -> Completion:
    """:func:`document_completion` with its parts."""
    if (test is None) == (observed is None) or (observed is None) != (held_out is None):
        raise DataError("pass either test documents, or both observed= and held_out=.")
    fractional = getattr(model, "allow_fractional", False)
    if test is not None:
        halves = split_documents(test, random_state, allow_fractional=fractional)
    else:
        first, second = (check_counts(half, allow_fractional=fractional) for half in (observed, held_out))
        if first.shape != second.shape:
            raise DataError(
                f"observed has shape {first.shape} and held_out {second.shape}; both need the same documents and words."
            )
        empty = np.diff(second.indptr) == 0
        halves = Split(first, second, int(empty.sum()))
    words = float(halves.held_out.sum())
    if words == 0:
        raise DataError(
            "no test document has two words or more, so there is nothing to predict. Pass longer documents."
        )
    chances = _chances_of(model)
    found = chances(halves)
    weight = _fit_cache(chances, halves, fractional) if cache else None
    if weight is not None:
        found = _with_cache(found, halves, weight)
    lost = np.flatnonzero(~(found > 0))
    if lost.size:
        document = int(np.searchsorted(halves.held_out.indptr, lost[0], side="right")) - 1
        raise DataError(
            f"document {document} holds a word to which the topics give no probability that rounding leaves. Fit with smoothing, or divide "
            "counts that are very large."
        )
    sums = _by_document(np.log(found) * halves.held_out.data, halves.held_out)
    return Completion(float(sums.sum()) / words, sums, words, halves.skipped, weight)


def _chances_of(model: Any) -> Callable[[Split], np.ndarray]:
    """What gives the chance of each held-out (document, word) pair."""
    if hasattr(model, "read_new"):
        model.check_fitted()

        def ours(halves: Split) -> np.ndarray:
            if halves.observed.shape[1] != model.n_features_in_:
                raise DataError(
                    f"the documents have {halves.observed.shape[1]} features (words), and the model {model.n_features_in_}. Count "
                    "the words of its vocabulary."
                )
            return chances(model.topics_, halves, model.n_jobs)

        return ours
    if hasattr(model, "components_") and hasattr(model, "doc_topic_prior_"):
        return lambda halves: _sklearn_chances(model, halves)
    raise DataError(
        f"document completion is for fitted RobustLDA, LDA and scikit-learn LatentDirichletAllocation; "
        f"got a {type(model).__name__} (is it fitted?)."
    )


def _by_document(values: np.ndarray, table: sparse.csr_matrix) -> np.ndarray:
    rows = np.repeat(np.arange(table.shape[0]), np.diff(table.indptr))
    return np.bincount(rows, weights=values, minlength=table.shape[0])


def _fit_cache(chances: Callable[[Split], np.ndarray], halves: Split, fractional: bool) -> float:
    """The weight of the model's prediction that is best for the observed halves, cut again; nothing else is looked at."""
    again = split_documents(halves.observed, 0, allow_fractional=fractional)
    if not again.held_out.nnz:
        return 1e9
    found = chances(again)

    def loss(log_weight: float) -> float:
        mixed = _with_cache(found, again, float(np.exp(log_weight)))
        return -float(np.log(mixed) @ again.held_out.data)

    return float(np.exp(minimize_scalar(loss, bounds=(-3.0, 15.0), method="bounded").x))


def _with_cache(found: np.ndarray, halves: Split, weight: float) -> np.ndarray:
    seen, held = halves.observed, halves.held_out
    lengths = np.asarray(seen.sum(axis=1), dtype=float).ravel()
    rows = np.repeat(np.arange(held.shape[0]), np.diff(held.indptr))
    counts = np.asarray(seen[rows, held.indices], dtype=float).ravel()
    return (weight * found + counts) / (weight + lengths[rows])


def complete_halves(topics: Topics, halves: Split, n_jobs: int | None) -> np.ndarray:
    """Σ log p of each document's held-out half given its observed one."""
    return _by_document(np.log(chances(topics, halves, n_jobs)) * halves.held_out.data, halves.held_out)


def chances(topics: Topics, halves: Split, n_jobs: int | None) -> np.ndarray:
    """The chance of each held-out (document, word) pair given the document's observed half."""
    rows = store_documents(halves.observed, topics.eta.dtype, n_jobs)
    rows = replace(rows, data=(*rows.data, halves.held_out))
    # What α and η predict does not depend on how they were fitted. Mean field blurs a half document's topics, the more
    # the more topics there are; these counts come nearest to the predictions averaged over draws.
    slot = Slot()
    rows.map(predict_pass, held(topics), into=slot)
    return np.concatenate(rows.states(slot) or [np.zeros(0)])


def predict_pass(asked: Asked, data: Data, weight: np.ndarray, state: None) -> tuple[Sums, ByUnit, np.ndarray]:
    """Of a chunk of observed halves with the held-out ones beside them, the latter's chances, kept pair by pair."""
    out = np.empty((data[0].nnz, asked.topics.size), asked.topics.eta.dtype)
    tokens, _, arrays = read_chunk(asked, data, out=out)
    found = np.zeros(data[2].nnz)
    _predict(*arrays, tokens, out, data[2].indptr.astype(np.int64), data[2].indices.astype(np.int32), found)
    return {}, {}, found


@compiled()
def _predict(starts, words, counts, eta, alpha, total, bursty, state, out, held_starts, held_words, found):
    r"""The chance of documents' held-out words given their observed ones, into `found`; `out` is written over.

    p(w) ∝ Σ_k E[(α_k + n_k)(η_kw + n_kw)/(H_k + n_k)]. A word that is in topic k is there with all its c tokens, so the
    part of n_kw has n_k − E[n_kw] + c in place of n_k: with many topics and few words that matters. What is left of
    α_k + E[n_k] is then H_k E[(α_k + n_k)/(H_k + n_k)], and p sums to one. Plain LDA has the shared topic's probability.
    Words are sorted within documents.
    """
    size = eta.shape[1]
    shares = np.empty(size)
    for d in range(starts.size - 1):
        whole = 0.0
        for k in range(size):
            shares[k] = alpha[k] + state[d, k]
            whole += shares[k]
        if bursty:
            for i in range(starts[d], starts[d + 1]):
                mine = out[i]
                for k in range(size):
                    there = state[d, k] - mine[k] + counts[i]
                    mine[k] *= (alpha[k] + there) / (total[k] + there)
                    shares[k] -= mine[k]
            for k in range(size):
                shares[k] /= total[k]
        seen = starts[d]
        for i in range(held_starts[d], held_starts[d + 1]):
            word = held_words[i]
            while seen < starts[d + 1] and words[seen] < word:
                seen += 1
            p = 0.0
            row = eta[word]
            for k in range(size):
                p += shares[k] * row[k]
            if bursty and seen < starts[d + 1] and words[seen] == word:
                for k in range(size):
                    p += out[seen, k]
            found[i] = p / whole


def _sklearn_chances(model: Any, halves: Split) -> np.ndarray:
    topics = model.components_ / model.components_.sum(axis=1, keepdims=True)
    shares = model.transform(halves.observed)
    held = halves.held_out
    found = np.zeros(held.nnz)
    for d, (begin, end) in enumerate(zip(held.indptr[:-1], held.indptr[1:])):
        found[begin:end] = shares[d] @ topics[:, held.indices[begin:end]]
    return found


def coherence(model: Any, reference: Any, n: int = 10, *, relevance: float | None = None) -> np.ndarray:
    r"""NPMI of each topic's `n` top words: the mean over pairs of :math:`\log\frac{p(a,b)}{p(a)p(b)} / -\log p(a,b)`.

    Probabilities are shares of the `reference` documents that have the word or both (Bouma 2009; Lau, Newman & Baldwin
    2014). 1 for words always together, 0 for independent ones, −1 for words never together. Top words are those largest in
    `components_`, as other packages have them; with a `relevance` they are ranked as :meth:`RobustLDA.top_words` does, for
    any model, the sums of its `components_` taken for the topics' shares.
    """
    if n < 2:
        raise DataError(f"coherence needs pairs of top words, n=2 or more; got n={n}.")
    counts = check_counts(reference)
    words = np.asarray(model.components_).shape[1]
    if words != counts.shape[1]:
        raise DataError(f"the model has {words} words and the reference {counts.shape[1]}. Use the same vocabulary.")
    return npmi(_top_ids(model, n, relevance), counts)


def diversity(model: Any, n: int = 25, *, relevance: float | None = None) -> float:
    """Share of different words among the topics' `n` top words: 1 where no two topics share one."""
    return diversity_of(_top_ids(model, n, relevance))


def _top_ids(model: Any, n: int, relevance: float | None) -> np.ndarray:
    weights = np.asarray(model.components_, dtype=float).T
    if relevance is None:
        return np.argsort(-weights.T, axis=1, kind="stable")[:, :n]
    if hasattr(model, "ranked_words"):
        return np.asarray(model.ranked_words(n, relevance))
    sizes = weights.sum(axis=0)
    return ranked(np.maximum(weights / sizes, 1e-300), sizes, relevance, n)
