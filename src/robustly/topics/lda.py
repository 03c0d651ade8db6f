r"""Topic models as estimators: robust LDA, whose topics bend from document to document, and plain LDA beside it."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.utils import check_random_state

from robustly.errors import ConvergenceWarning, DataError, FitError
from robustly.topics import checkpoints, fitting, stream
from robustly.topics.evaluate import Split, complete_halves, split_documents
from robustly.topics.fitted import FittedTopics
from robustly.topics.merging import most_topics
from robustly.topics.passes import Documents, Overview, look_over
from robustly.topics.progress import Progress
from robustly.topics.reading import warn_of_copies
from robustly.topics.saved import restore_topics
from robustly.topics.seeds import seed_counts
from robustly.topics.settings import check_settings
from robustly.topics.shared import Topics
from robustly.topics.stored import StoredCorpus, documents_from


class _TopicModel(FittedTopics):
    """What the two models have in common: everything but the flag that lets topics bend."""

    def __init__(
        self,
        n_components: int | str = 10,
        *,
        inference: str = "collapsed",
        alpha: float | None = None,
        fit_alpha: bool = True,
        smoothing: float | None = None,
        seeds: Any = None,
        max_iter: int = 100,
        tol: float = 5e-4,
        sweeps: int | None = None,
        draws: int | None = None,
        n_jobs: int | None = None,
        random_state: Any = None,
        warm_start: bool = False,
        checkpoint: Any = None,
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
        self.seeds = seeds
        self.max_iter = max_iter
        self.tol = tol
        self.sweeps = sweeps
        self.draws = draws
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.warm_start = warm_start
        self.checkpoint = checkpoint
        self.validation_fraction = validation_fraction
        self.learning_decay = learning_decay
        self.learning_offset = learning_offset
        self.total_samples = total_samples
        self.allow_fractional = allow_fractional
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> Any:
        """Fit the topics to documents × words counts: a sparse matrix, an array, a frame or a :class:`Corpus`.

        Documents that do not fit into memory are a corpus :func:`on_disk`, ``rb.parquet(path, columns="tokens")`` with a list of
        words a row, or a Dask bag of lists of words, whose partitions stay on the workers. The topics are the same.

        Interrupted (Ctrl-C), the model is what it was before. With `checkpoint` the passes made so far are kept in that
        file, and the next `fit` of the same documents goes on from there to the same topics.
        """
        check_settings(self)
        X = documents_from(X)
        was = self.topics_ if self.warm_start and hasattr(self, "topics_") else None
        counts, names = self._read_counts(X), self._names_of(X)
        if counts.nnz == 0:
            raise DataError(f"no document of the {counts.shape[0]} has a word in it. Check the vectoriser or the file.")
        random = check_random_state(self.random_state)
        number, validate = int(counts.shape[0]), None
        if self.validation_fraction is not None:
            counts, halves = self._hold_out(counts, random)
            validate = lambda topics: float(complete_halves(topics, halves, self.n_jobs).sum() / halves.held_out.sum())
        documents = Documents.of(counts, self._dtype(), self.n_jobs)
        seen = look_over(documents.rows)
        plan = self._plan(number, seen, random)
        start = fitting.shaken_start(seen, plan, random) if was is None else fitting.continued_start(was, seen, plan)
        seeds = seed_counts(self.seeds, names, counts.shape[1], plan.size)
        run = fitting.TopicsRun(plan, documents, seen, start, seeds, validate)
        with Progress(type(self).__name__, self.verbose) as progress:
            checkpoints.restore(self.checkpoint, run)
            while not run.done:
                run.step()
                progress.show(run)
                checkpoints.keep(self.checkpoint, run)
        self._read(X, reset=True)
        self._take_up(run, number)
        checkpoints.remove(self.checkpoint)
        self._tell(run)
        return self

    def _take_up(self, run: fitting.TopicsRun, documents: int) -> None:
        topics, evidence = run.result()
        drawn = [value for value in run.drawn_history if np.isfinite(value)]
        self.history_ = [*drawn, evidence] if drawn else run.history
        self.start_history_ = run.history if drawn else []
        self.validation_ = run.validation
        self.outcome_ = run.outcome
        self.n_iter_ = len(run.history)
        self.stream_ = stream.Stream(run.plan.seed, run.seen.tokens)
        self.adopt(topics, documents, evidence)
        self._describe(run.sample())

    def _tell(self, run: fitting.TopicsRun) -> None:
        if run.outcome == "max_iter" and self.tol > 0:
            last = abs(run.history[-1] - run.history[-2]) if len(run.history) > 1 else np.inf
            warnings.warn(
                f"max_iter: {self.max_iter} passes were not enough; the evidence per word still moved by {last:.1e} in "
                f"the last one (tol is {self.tol:g}). Raise max_iter or tol; tol=0 asks for max_iter passes.",
                ConvergenceWarning,
                stacklevel=3,
            )
        warn_of_copies(self.topics_, stacklevel=3)

    def _plan(self, documents: int, seen: Overview, random: np.random.RandomState) -> fitting.TopicsPlan:
        size = most_topics(documents) if self.n_components == "auto" else int(self.n_components)
        draws = fitting.default_draws(seen, size) if self.draws is None else int(self.draws)
        visits = fitting.SWEEPS_BEFORE_DRAWS if draws and size > 1 else fitting.SWEEPS
        return fitting.TopicsPlan(
            size=size,
            bursty=self.bursty,
            inference=self.inference,
            alpha=0.1 if self.alpha is None else float(self.alpha),
            fit_alpha=self.fit_alpha,
            smoothing=self._smoothing(),
            max_iter=self.max_iter,
            tol=float(self.tol),
            sweeps=self.sweeps or visits,
            draws=draws,
            dtype=self._dtype(),
            seed=int(random.randint(2**31)),
            validated=self.validation_fraction is not None,
            joins=self.n_components == "auto",
        )

    def partial_fit(self, X: Any, y: Any = None) -> Any:
        """Learn from one more batch of documents, each batch counting a little less than the one before.

        The statistics of batch t enter with the rate ``(learning_offset + t) ** -learning_decay``, scaled to
        `total_samples` documents (those seen so far if None). After `fit`, it goes on from the fitted topics. A stream
        that is still short (half a million tokens) is kept and fitted anew whenever it has grown by a quarter. A model
        saved between two batches and loaded again goes on to the same topics. A corpus on disk is taken 1024 documents at
        a time; :meth:`StoredCorpus.batches` gives others.
        """
        check_settings(self)
        if self.inference != "collapsed":
            raise FitError('partial_fit needs inference="collapsed"; mean-field fits need all documents at once.')
        fresh = not hasattr(self, "topics_")
        X = documents_from(X, None if fresh else self._known_words())
        if isinstance(X, StoredCorpus):
            for batch in X.batches():
                self.partial_fit(batch)
            return self
        counts = self._read(X, reset=fresh)
        if not sparse.issparse(counts):
            raise DataError("partial_fit takes batches in memory, or a corpus on disk; got a Dask bag. Give it to fit.")
        if fresh and not counts.nnz:
            raise DataError(
                f"no document of the first batch of {counts.shape[0]} has a word in it. Begin with a batch that has."
            )
        number = int(counts.shape[0]) + (0 if fresh else self.documents_seen_)
        if fresh:
            topics = self._fit_stream(counts, None)
        elif counts.nnz:
            self.stream_.add(counts)
            kept = self.stream_.seen
            if kept is not None and kept.sum() >= stream.REFIT_GROWTH * self.stream_.fitted_tokens:
                topics = self._fit_stream(kept, self.topics_)
            else:
                topics = self._follow_stream(counts, number)
        else:
            topics = self.topics_
        self.n_iter_ = 1 if fresh else self.n_iter_ + 1
        self.adopt(topics, number, self.history_[-1])
        return self

    def _fit_stream(self, counts: sparse.csr_matrix, was: Topics | None) -> Topics:
        """Fit what was seen so far as a corpus of its own: the first batch, and all of a stream that is still short."""
        documents = Documents.of(counts, self._dtype(), self.n_jobs)
        seen, number = look_over(documents.rows), int(counts.shape[0])
        if was is None:
            random = check_random_state(self.random_state)
            plan = self._plan(number, seen, random)
            start = fitting.shaken_start(seen, plan, random)
            self.history_, self.validation_, self.start_history_, self.outcome_ = [], [], [], "stream"
            self.stream_ = stream.Stream(plan.seed, seen=counts)
        else:
            random = np.random.RandomState(int(stream.seed_of(self.stream_.seed, self.n_iter_)) % 2**32)
            plan = replace(self._plan(number, seen, random), size=was.size, joins=False)
            start = was
        run = fitting.TopicsRun(plan, documents, seen, start)
        while not run.done:
            run.step()
        topics, evidence = run.result()
        self.history_.append(evidence)
        self.stream_.statistics, self.usage_, self.stream_.fitted_tokens = None, None, seen.tokens
        return topics

    def _follow_stream(self, counts: sparse.csr_matrix, number: int) -> Topics:
        topics = self.topics_
        documents = Documents.of(counts, topics.eta.dtype, self.n_jobs)
        # The rate falls with batches of its own, so that a fit continued online is not overrun by its first batch.
        rate = min(1.0, (self.learning_offset + self.n_iter_) ** -self.learning_decay)
        expected = max(self.total_samples or 0, number)
        seed = lambda draw: stream.seed_of(self.stream_.seed, self.n_iter_, draw)
        drawn = self.draws != 0 and topics.size > 1
        batch = stream.read_batch(documents, topics, seed, self.sweeps or 0, drawn)
        old = self.stream_.statistics or stream.sums_of(topics, batch.statistics, expected, self.documents_seen_)
        blended = old.blend(batch.statistics, rate, expected / counts.shape[0])
        self.stream_.statistics, self.usage_ = blended, None
        self.history_.append(batch.evidence)
        fit_alpha = self.fit_alpha and self.n_iter_ > 0
        return stream.follow(topics, blended, batch, rate, self._smoothing(), fit_alpha, documents.threads)

    def _smoothing(self) -> float | None:
        return None if self.smoothing is None else float(self.smoothing)

    def _hold_out(self, counts: sparse.csr_matrix, random: np.random.RandomState) -> tuple[sparse.csr_matrix, Split]:
        if not sparse.issparse(counts):
            raise DataError(
                "validation_fraction needs documents in memory, and these are elsewhere. Leave it out, and score documents of your "
                "own choice."
            )
        number = max(1, round(float(self.validation_fraction or 0) * counts.shape[0]))
        if number >= counts.shape[0]:
            raise DataError(
                f"validation_fraction={self.validation_fraction} of {counts.shape[0]} documents leaves none to fit."
            )
        order = random.permutation(counts.shape[0])
        return counts[np.sort(order[number:])], split_documents(counts[np.sort(order[:number])], random)

    def _dtype(self) -> Any:
        # One topic is maximum likelihood, and a bound has to climb to the last digit; both get double precision.
        return np.float64 if self.n_components == 1 or self.inference == "meanfield" else np.float32


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
    n_components : number of topics, K; "auto" begins with up to 100 and joins those that are one topic in two, or have
        nothing; `n_topics_` is what is left (see :mod:`robustly.topics.merging`)
    inference : "collapsed" (default) integrates topics and proportions out and follows expected counts; "meanfield" is
        Wang & Blei's Algorithm 2, slower, with a bound that never falls
    alpha : where the proportions' concentrations start (0.1); fitted, one per topic, unless ``fit_alpha=False``
    smoothing : strength of the topics' prior, in words; None fits it (mean field: in its collapsed start, then held)
    seeds : words to begin topics with: a list of lists of words (or word ids), one list for each of the first topics, or
        a dict from topic to words. They weigh in their topic's prior; the documents may still outweigh them
    max_iter, tol : passes with expected counts, and the change of evidence per word below which two in a row end them.
        Before draws 10 to 20 are made; ``tol=0`` makes `max_iter` passes. They end, too, when the evidence falls
    sweeps : visits of a document in each of these passes; None makes 2 where draws follow, else 3
    draws : passes after these in which each token's topic is drawn rather than expected; the topics are the average over
        their second half. None makes 60, up to 300 the shorter the documents are. 0 leaves them out, as mean field
        does: the topics are then those of best evidence on the way
    n_jobs : threads; None or -1 takes all cores. The answer does not depend on it
    random_state : seed of the start and the draws
    warm_start : begin `fit` at the topics of the last one
    checkpoint : a file in which passes are kept while the fit goes on; see :meth:`fit`
    validation_fraction : hold out this share of documents and stop when their completion no longer improves by `tol`
    learning_decay, learning_offset, total_samples : for `partial_fit`
    allow_fractional : take counts that are not whole, with approximate updates
    verbose : None shows a progress bar on a terminal; 1 does so in notebooks too, and writes lines elsewhere; 0 nothing

    Attributes
    ----------
    components_ : (K, V) the concentrations :math:`\eta_{kw}`
    burstiness_ : (K,) :math:`\sum_w \eta_{kw}`: the smaller, the more documents bend the topic; in the thousands, it is
        the same everywhere and the model is plain LDA
    alpha_, smoothing_ : the fitted concentrations of the proportions and strength of the topics' prior
    evidence_, history_ : mean log p(token | all other tokens and their topics), of the topics in the end and by pass of
        draws; the end is never below the way there. ``start_history_`` has the passes before the draws and ``draws=0``
        these alone, with log p(word | the other words of its document). Mean field: the bound plus the topics' log prior
    n_topics_ : the number of topics fitted
    coherence_, diversity_ : NPMI of each topic's ten top words, as `top_words` ranks them, in the documents of the fit;
        share of different words among the topics' 25 top words
    n_iter_, outcome_ : passes made, without the draws, and why they ended

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

    bursty = True


class LDA(_TopicModel):
    r"""Plain latent Dirichlet allocation: the topics are the same in every document.

    The same code, updates and fitted :math:`\alpha` as :class:`RobustLDA` with the bending taken out, so a comparison
    of the two is like with like. The topics' prior is symmetric and its strength is fitted.

    Parameters
    ----------
    Those of :class:`RobustLDA`.

    Attributes
    ----------
    components_ : (K, V) expected words of each topic, smoothing included; a row divided by its sum is the topic
    burstiness_ : (K,) infinite
    alpha_, smoothing_, evidence_, history_, coherence_, diversity_, n_iter_, outcome_ : as in :class:`RobustLDA`

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

    bursty = False


def from_saved(meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> _TopicModel:
    """Rebuild a saved model."""
    model = {"RobustLDA": RobustLDA, "LDA": LDA}[meta["model"]](**meta["parameters"])
    check_settings(model)
    restore_topics(model, meta, arrays)
    return model
