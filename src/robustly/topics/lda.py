r"""Topic models as estimators: robust LDA, whose topics bend from document to document, and plain LDA beside it."""

from __future__ import annotations

import sys
import warnings
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from scipy import sparse
from sklearn.utils import check_random_state

from robustly.errors import ConvergenceWarning, DataError, FitError
from robustly.topics.fitted import FittedTopics
from robustly.topics.passes import LONGER_STEP, UNSEEN, Documents, Statistics, Topics, Workers, make_topics, update
from robustly.topics.settings import check_settings

START_CONCENTRATION = 100.0
START_SMOOTHING = 100.0
# The first passes sort words into topics; α fitted before that settles on topics that do not exist yet.
PASSES_BEFORE_ALPHA = 2
PASSES_BEFORE_MEANFIELD = 15


class _TopicModel(FittedTopics):
    """What the two models have in common: everything but the flag that lets topics bend."""

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
        draws: int = 100,
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
        self.draws = draws
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.validation_fraction = validation_fraction
        self.learning_decay = learning_decay
        self.learning_offset = learning_offset
        self.total_samples = total_samples
        self.allow_fractional = allow_fractional
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> Any:
        """Fit the topics to documents × words counts: a sparse matrix, an array, a frame or a :class:`Corpus`."""
        check_settings(self)
        counts = self._read(X, reset=True)
        if counts.nnz == 0:
            raise DataError(f"no document of the {counts.shape[0]} has a word in it. Check the vectoriser or the file.")
        random = check_random_state(self.random_state)
        held = None
        if self.validation_fraction is not None:
            counts, held = self._hold_out(counts, random)
        documents = Documents(counts, self.n_components, self._dtype())
        self._topics = self._start(counts, random)
        base: np.ndarray | None = None
        smoothing, length = self._smoothing(), LONGER_STEP
        self.history_: list[float] = []
        self.validation_: list[float] = []
        converged = False
        with Workers(self.n_jobs) as workers, self._progress() as bar:
            if self.inference == "meanfield":
                # Held where the start left it, the prior cannot make bound plus log prior fall.
                self._topics = self._collapsed_start(counts, workers)
                base = self._topics.floor / self._topics.floor.sum()
                smoothing, length = self._topics.strength if smoothing is None else smoothing, 1.0
            task = bar.add_task(type(self).__name__, total=self.max_iter, note="") if bar else None
            for step in range(self.max_iter):
                found = self._collect(documents, workers)
                self.history_.append((found.evidence + self._log_prior(base, smoothing)) / found.words)
                fit_alpha = self.fit_alpha and step >= PASSES_BEFORE_ALPHA
                self._topics = update(self._topics, found, workers, smoothing, fit_alpha, base, length)
                if bar and task is not None:
                    bar.update(task, advance=1, note=f"{self.history_[-1]:.4f} per word")
                if held is not None and step % 5 == 4:
                    self.validation_.append(self._validate(held))
                if self._settled():
                    converged = True
                    break
            if self.draws and self.n_components > 1 and self.inference == "collapsed":
                self._topics = self._average_draws(documents, workers, random, bar)
        self.n_iter_ = len(self.history_)
        self._statistics: Statistics | None = None
        self._finish(int(counts.shape[0]))
        if not converged and self.tol > 0:
            last = abs(self.history_[-1] - self.history_[-2]) if self.n_iter_ > 1 else np.inf
            warnings.warn(
                f"max_iter: {self.max_iter} passes were not enough; the evidence per word still moved by {last:.1e} in "
                f"the last one (tol is {self.tol:g}). Raise max_iter or tol; tol=0 asks for max_iter passes.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Any:
        """Learn from one more batch of documents, each batch counting a little less than the one before.

        The statistics of batch t enter with the rate ``(learning_offset + t) ** -learning_decay``, scaled to
        `total_samples` documents (those seen so far if None). After `fit`, it goes on from the fitted topics.
        """
        check_settings(self)
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
                self._topics = update(
                    self._topics, blended, workers, self._smoothing(), self.fit_alpha and self.n_iter_ > 0
                )
            self._statistics = blended
            self.history_.append(new.evidence / new.words)
        self.n_iter_ += 1
        self._finish(self.documents_seen_)
        return self

    def _restored_statistics(self, new: Statistics) -> Statistics:
        """The sums that the present topics stand for; before the first batch, nothing, and the first batch decides."""
        if self.n_iter_ == 0:
            zero = np.zeros_like(new.table_counts)
            size = self._topics.size
            return Statistics(zero, np.zeros(size), np.zeros(size), 0.0, 0.0, 0.0, 0)
        topics = self._topics
        share = topics.share.astype(float)
        table_counts = np.maximum(topics.eta / share - topics.floor[:, None].astype(float), 0.0)
        terms = table_counts.sum(axis=0) / np.maximum(topics.total.astype(float), 1e-30)
        alpha_terms = new.alpha_terms * self.documents_seen_ / max(new.documents, 1)
        return Statistics(table_counts, terms, topics.alpha * alpha_terms, alpha_terms, 0.0, 0.0, 0)

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

    def _collapsed_start(self, counts: sparse.csr_matrix, workers: Workers) -> Topics:
        """Mean field commits to whatever its first topics say, so it is given topics that say something."""
        documents = Documents(counts, self.n_components, self._dtype())
        topics = replace(self._topics, strength=START_SMOOTHING)
        for step in range(PASSES_BEFORE_MEANFIELD):
            found = documents.collect(topics, workers, self.sweeps, 0.0)
            topics = update(topics, found, workers, None, self.fit_alpha and step >= PASSES_BEFORE_ALPHA)
        return topics

    def _average_draws(self, documents: Documents, workers: Workers, random: np.random.RandomState, bar: Any) -> Topics:
        """Topics averaged over the second half of `draws` passes, which start at the topics that were fitted."""
        task = bar.add_task("draws", total=self.draws, note="") if bar else None
        topics = self._topics
        kept = self.draws - self.draws // 2
        table_counts, floor = np.zeros(topics.eta.shape), np.zeros(len(topics.eta))
        alpha, log_total = np.zeros(topics.size), np.zeros(topics.size)
        for step in range(self.draws):
            found = documents.collect_drawn(topics, workers, random.randint(2**63, dtype=np.uint64))
            topics = update(topics, found, workers, self._smoothing(), self.fit_alpha)
            if step >= self.draws - kept:
                table_counts += found.table_counts / kept
                floor += topics.floor / kept
                alpha += topics.alpha / kept
                log_total += np.log(topics.total) / kept
            if bar and task is not None:
                bar.update(task, advance=1)
        strength = float(floor.sum())
        base = floor / strength if strength > 0 else np.full_like(floor, 1 / len(floor))
        return make_topics(table_counts, base, strength, np.exp(log_total), alpha, topics.bursty, topics.eta.dtype)

    def _smoothing(self) -> float | None:
        return None if self.smoothing is None else float(self.smoothing)

    def _log_prior(self, base: np.ndarray | None, strength: float | None) -> float:
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
                f"validation_fraction={self.validation_fraction} of {counts.shape[0]} documents leaves none to fit."
            )
        order = random.permutation(counts.shape[0])
        return counts[np.sort(order[number:])], split_documents(counts[np.sort(order[:number])], random)

    def _validate(self, held: Any) -> float:
        from robustly.topics.evaluate import document_completion

        return document_completion(self, observed=held.observed, held_out=held.held_out)

    def _dtype(self) -> Any:
        # One topic is maximum likelihood, and a bound has to climb to the last digit; both get double precision.
        return np.float64 if self.n_components == 1 or self.inference == "meanfield" else np.float32

    def _progress(self) -> Any:
        if self.verbose == 0 or not sys.stderr.isatty():
            return nullcontext()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
        )
        return Progress(*columns, console=Console(stderr=True), transient=True)


class RobustLDA(_TopicModel):
    r"""Latent Dirichlet allocation whose topics bend from document to document.

    .. math::
        \theta_d \sim \mathrm{Dir}(\alpha), \quad \beta_{dk} \sim \mathrm{Dir}(\eta_k), \quad
        z_{dn} \sim \theta_d, \quad w_{dn} \sim \beta_{d z_{dn}},

    with :math:`\alpha` and all :math:`\eta_k` fitted. A word used once is then likely to come again, as words in real
    documents do. When every document is a short list of distinct words there are no bursts to learn from, and plain
    :class:`LDA` is the simpler choice; to label topics by hand or grow them over time, see the packages built for that.

    Parameters
    ----------
    n_components : number of topics, K
    inference : "collapsed" (default) integrates topics and proportions out and follows expected counts; "meanfield" is
        Wang & Blei's Algorithm 2, slower, with a bound that never falls
    alpha : where the proportions' concentrations start (0.1); fitted, one per topic, unless ``fit_alpha=False``
    smoothing : strength of the topics' prior, in words; None fits it (mean field: in its collapsed start, then held)
    max_iter, tol : passes, and the change of evidence per word below which two in a row end the fit; ``tol=0`` makes
        `max_iter` passes
    sweeps : visits of a document in each pass
    draws : passes after these in which each token's topic is drawn rather than expected; the topics are the average over
        their second half. 0 leaves them out, as mean field does: faster, and with many topics predicts less well
    n_jobs : threads; None or -1 takes all cores. The answer does not depend on it
    random_state : seed of the start
    validation_fraction : hold out this share of documents and stop when their completion no longer improves by `tol`
    learning_decay, learning_offset, total_samples : for `partial_fit`
    allow_fractional : take counts that are not whole, with approximate updates
    verbose : None shows a progress bar on a terminal; 0 never

    Attributes
    ----------
    components_ : (K, V) the concentrations :math:`\eta_{kw}`
    burstiness_ : (K,) :math:`\sum_w \eta_{kw}`: the smaller, the more documents bend the topic; in the thousands, it is
        the same everywhere and the model is plain LDA
    alpha_, smoothing_ : the fitted concentrations of the proportions and strength of the topics' prior
    evidence_, history_ : per word, last and by pass, before the draws. Collapsed: mean log p(word | the other words of
        its document), the document's own part left out of the topics. Mean field: the bound plus the topics' log prior
    n_iter_ : passes made, without the draws

    Example
    -------
    >>> import numpy as np
    >>> from robustly.topics import RobustLDA
    >>> X = np.array([[9, 0, 1, 0], [0, 7, 2, 0], [1, 0, 0, 8], [0, 1, 9, 0]] * 5)
    >>> model = RobustLDA(2, random_state=0, tol=0, max_iter=20).fit(X)
    >>> model.transform(X).shape, bool((model.burstiness_ < 50).all())
    ((20, 2), True)

    References
    ----------
    Wang & Blei 2018, A general method for robust Bayesian modeling. Doyle & Elkan 2009, Accounting for burstiness in
    topic models. Asuncion et al. 2009, On smoothing and inference for topic models. Minka 2000, Estimating a Dirichlet
    distribution.
    """

    _bursty = True


class LDA(_TopicModel):
    r"""Plain latent Dirichlet allocation: the topics are the same in every document.

    The same code, updates and fitted :math:`\alpha` as :class:`RobustLDA` with the bending taken out, so a comparison
    of the two is like with like. The topics' prior is symmetric and its strength is fitted.

    Parameters
    ----------
    n_components : number of topics, K
    inference : "collapsed" (default) integrates topics and proportions out and follows expected counts; "meanfield" is
        Wang & Blei's Algorithm 2, slower, with a bound that never falls
    alpha : where the proportions' concentrations start (0.1); fitted, one per topic, unless ``fit_alpha=False``
    smoothing : strength of the topics' prior, in words; None fits it (mean field: in its collapsed start, then held)
    max_iter, tol : passes, and the change of evidence per word below which two in a row end the fit; ``tol=0`` makes
        `max_iter` passes
    sweeps : visits of a document in each pass
    draws : passes after these in which each token's topic is drawn rather than expected; the topics are the average over
        their second half. 0 leaves them out, as mean field does: faster, and with many topics predicts less well
    n_jobs : threads; None or -1 takes all cores. The answer does not depend on it
    random_state : seed of the start
    validation_fraction : hold out this share of documents and stop when their completion no longer improves by `tol`
    learning_decay, learning_offset, total_samples : for `partial_fit`
    allow_fractional : take counts that are not whole, with approximate updates
    verbose : None shows a progress bar on a terminal; 0 never

    Attributes
    ----------
    components_ : (K, V) expected words of each topic, smoothing included; a row divided by its sum is the topic
    burstiness_ : (K,) infinite
    alpha_, smoothing_, evidence_, history_, n_iter_ : as in :class:`RobustLDA`

    Example
    -------
    >>> import numpy as np
    >>> from robustly.topics import LDA
    >>> X = np.array([[4, 2, 0, 0], [3, 3, 0, 0], [0, 0, 2, 4], [0, 0, 5, 1]])
    >>> LDA(2, random_state=0).fit(X).top_words(["oil", "gas", "goal", "match"], n=1)  # doctest: +SKIP
    [['oil'], ['goal']]

    References
    ----------
    Blei, Ng & Jordan 2003, Latent Dirichlet allocation. Asuncion et al. 2009, On smoothing and inference for topic
    models.
    """

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
