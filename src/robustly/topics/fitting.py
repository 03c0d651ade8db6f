r"""How are topics found? Passes with expected counts sort the words, passes with draws sharpen and average the topics.

A :class:`TopicsRun` is one fit on its way: ``step()`` makes one pass, ``done`` says whether any is left, ``result()`` gives the
topics of best evidence. Its whole state is arrays and numbers, so it can be kept between two passes and taken up again
to the same answer.

Expected counts come first because they find their way from a random start in a dozen passes; on a large corpus they see
a sample of the documents. They blur, though: every topic has a little of every word that it could have had. Draws do
not, and the average of the topics over the second half of them predicts better than any single state.

The evidence of the two kinds of pass is not on one scale. With expected counts it is the log probability of all tokens
of a word given the other words of their document, with draws that of each token given all other tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import DTypeLike

from robustly.errors import FitError
from robustly.rows.store import Slot
from robustly.topics import merging
from robustly.topics.passes import Documents, Overview
from robustly.topics.shared import LONGER_STEP, DrawnSums, Statistics, Topics, make_topics, update

START_CONCENTRATION = 100.0
START_SMOOTHING = 100.0
# The first passes sort words into topics; α fitted before that settles on topics that do not exist yet.
PASSES_BEFORE_ALPHA = 2
PASSES_BEFORE_MEANFIELD = 15
# So many passes with expected counts sort the words. Before that, evidence may stand still or dip for some passes, which is
# no reason to stop. Where draws follow, fewer do for few topics: 12 for 20 of them.
SORTING_PASSES = 20
FEWEST_PASSES = 10
TOPICS_PER_PASS = 10
# Evidence that stays below its best for so many passes will not come back.
PATIENCE = 3
# Expected counts look at no more tokens than this; the draws that follow see them all.
SAMPLE_TOKENS = 500_000
# The averaged topics are judged by this many passes in which they are held.
JUDGING_PASSES = 3
# Draws by default: as many for very long documents and few topics, or many; more the shorter documents are, since their
# tokens say less of each other.
FEWEST_DRAWS = (60, 100)
MOST_DRAWS = 300
SHORT_DOCUMENT = 60.0
# Visits of a document in a pass with expected counts, and where draws follow.
SWEEPS = 3
SWEEPS_BEFORE_DRAWS = 2
# Many documents need fewer passes, and cannot afford more: beyond 100, at most so many tokens are drawn in all.
MOST_TOKENS_DRAWN = 1e9
# What a seed word weighs in its topic, in expected Chinese-restaurant table counts.
SEED_WEIGHT = 20.0
SEED_RISE = 10.0


@dataclass(frozen=True)
class TopicsPlan:
    """What a fit was asked to do."""

    size: int
    bursty: bool
    inference: str
    alpha: float
    fit_alpha: bool
    smoothing: float | None
    max_iter: int
    tol: float
    sweeps: int
    draws: int
    dtype: DTypeLike
    seed: int
    validated: bool = False
    joins: bool = False


def default_draws(seen: Overview, size: int) -> int:
    """60 to 100 passes for 20 to 100 topics, up to 300 the shorter the documents are, unless there are very many tokens."""
    fewest = float(np.clip(FEWEST_DRAWS[0] - 10 + size / 2, *FEWEST_DRAWS))
    used, tokens = max(seen.used, 1), max(seen.tokens, 1.0)
    wanted = fewest + (MOST_DRAWS - fewest) * min(1.0, SHORT_DOCUMENT * used / tokens)
    return round(min(wanted, max(fewest, MOST_TOKENS_DRAWN / tokens)))


def shaken_start(seen: Overview, plan: TopicsPlan, random: np.random.RandomState) -> Topics:
    """Topics that are the corpus with each word's weight shaken at random."""
    uses = np.maximum(seen.uses, 0.1)
    words, size = len(uses), plan.size
    shaken = uses[:, None] * (random.standard_gamma(1.0, (words, size)) if size > 1 else np.ones((words, 1)))
    strength = START_SMOOTHING if plan.smoothing is None else plan.smoothing
    total, alpha = np.full(size, START_CONCENTRATION), np.full(size, plan.alpha)
    base = np.full(words, 1.0 / words)
    return make_topics(shaken / shaken.sum() * uses.sum(), base, strength, total, alpha, plan.bursty, plan.dtype)


def continued_start(was: Topics, seen: Overview, plan: TopicsPlan) -> Topics:
    """The topics of another fit."""
    if was.eta.shape != (len(seen.uses), plan.size):
        raise FitError(
            f"warm_start goes on from {was.size} topics over {was.eta.shape[0]} words, and this fit has {plan.size} "
            f"over {len(seen.uses)}. Use the same words and n_components, or warm_start=False."
        )
    return was.astype(plan.dtype)


@dataclass
class TopicsRun:
    """One fit between two passes; `validate`, if given, looks at held-out documents every fifth pass."""

    plan: TopicsPlan
    whole: Documents
    seen: Overview
    topics: Topics
    seeds: np.ndarray | None = None
    validate: Callable[[Topics], float] | None = None
    stage: str = "expected"
    made: int = 0
    outcome: str = ""
    history: list[float] = field(default_factory=list)
    drawn_history: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    best: Topics | None = None
    best_value: float = -np.inf
    since_best: int = 0
    sums: DrawnSums | None = None

    def __post_init__(self) -> None:
        self.base: np.ndarray | None = None
        self.smoothing = self.plan.smoothing
        if self.seeds is not None and not self.made:
            self.topics = self._seeded()
        self.documents = self.sample() if self.will_draw else self.whole
        if self.plan.inference == "meanfield" and not self.made:
            self._start_meanfield()

    @property
    def done(self) -> bool:
        return self.stage == "done"

    @property
    def will_draw(self) -> bool:
        return self.plan.draws > 0 and self.plan.size > 1 and self.plan.inference == "collapsed"

    @property
    def sorting_passes(self) -> int:
        """Passes in which words are sorted and nothing is judged."""
        fewer = FEWEST_PASSES + self.plan.size // TOPICS_PER_PASS
        return min(fewer, SORTING_PASSES) if self.will_draw else SORTING_PASSES

    @property
    def total_passes(self) -> int:
        """How many passes there are at most."""
        return self._most_expected() + (self.plan.draws if self.will_draw else 0)

    def step(self) -> None:
        """Make one pass over the documents."""
        if self.stage == "expected":
            self._expected_pass()
        elif self.stage == "drawn":
            self._drawn_pass()

    def result(self) -> tuple[Topics, float]:
        """The topics of best evidence, and that evidence per word."""
        return (self.topics, self.history[-1]) if self.best is None else (self.best, self.best_value)

    def draw_seed(self, number: int) -> np.uint64:
        return np.random.SeedSequence((self.plan.seed, number)).generate_state(1, np.uint64)[0]

    def _seeded(self) -> Topics:
        """The start with seed words raised in their topics and lowered in the others, far enough to sort others by."""
        assert self.seeds is not None
        eta = self.topics.eta.astype(float)
        seeded = self.seeds > 0
        some = seeded.any(axis=1)
        eta[some] *= np.where(seeded, SEED_RISE, 1.0 / SEED_RISE)[some]
        eta *= self.topics.eta.sum(axis=0, dtype=float) / eta.sum(axis=0)
        return replace(self.topics, eta=eta.astype(self.topics.eta.dtype))

    def sample(self) -> Documents:
        """Some of the documents where there are very many tokens, else all of them."""
        if self.seen.tokens <= SAMPLE_TOKENS:
            return self.whole
        number = max(1, int(len(self.whole.rows) * SAMPLE_TOKENS / self.seen.tokens))
        return self.whole.some(number, self.plan.seed)

    def _most_expected(self) -> int:
        short = self.will_draw and self.plan.tol > 0 and not self.plan.validated
        return min(self.plan.max_iter, self.sorting_passes) if short else self.plan.max_iter

    def _expected_pass(self) -> None:
        plan = self.plan
        if plan.inference == "meanfield":
            found = self.documents.collect_meanfield(self.topics, 20, 1e-4)
        else:
            found = self.documents.collect(self.topics, plan.sweeps, 0.0)
        value = (found.evidence + self._log_prior()) / max(found.words, 1.0)  # a few documents may have none
        self.history.append(value)
        self._keep_best(value)
        step = 1.0 if plan.inference == "meanfield" else LONGER_STEP
        # Of topics that are not sorted yet the prior's strength comes out too large, and then half of many topics die.
        hold = plan.size > 1 and plan.inference == "collapsed" and self.made < self.sorting_passes
        held = START_SMOOTHING if hold and plan.smoothing is None else self.smoothing
        fit_alpha = plan.fit_alpha and self.made >= PASSES_BEFORE_ALPHA
        self.topics = self._update(found, fit_alpha, held, step)
        self.made += 1
        if self.validate is not None and self.made % 5 == 0:
            self.validation.append(self.validate(self.topics))
        if self.made >= min(self.sorting_passes, plan.max_iter) and self._settled():
            self.outcome = "converged"
        elif plan.tol > 0 and not plan.validated and self.made > self.sorting_passes and self.since_best >= PATIENCE:
            self.outcome = "the evidence fell"
        elif self.made >= self._most_expected():
            self.outcome = "max_iter" if self.made >= plan.max_iter else "sorted"
        if self.outcome:
            self._end_expected()

    def _update(self, found: Statistics, fit_alpha: bool, smoothing: float | None, step: float = 1.0) -> Topics:
        if self.seeds is not None:
            found = replace(found, table_counts=found.table_counts + self.seeds)
        return update(self.topics, found, smoothing, fit_alpha, self.base, step, self.documents.threads)

    def _keep_best(self, value: float) -> None:
        # A single topic, and mean field, climb their own objective; this evidence is a look at it from the side.
        if self.plan.size == 1 or self.plan.inference == "meanfield":
            return
        if value >= self.best_value:
            self.best, self.best_value, self.since_best = self.topics, value, 0
        else:
            self.since_best += 1

    def _settled(self) -> bool:
        """Two passes running that moved the evidence by less than `tol`, or two looks at held-out documents."""
        if self.plan.tol <= 0:
            return False
        if self.plan.validated:
            recent = np.array(self.validation[-3:])
            return len(recent) == 3 and self.made % 5 == 0 and recent[1:].max() < recent[0] + self.plan.tol
        recent = np.array(self.history[-3:])
        return len(recent) == 3 and bool((np.abs(np.diff(recent)) < self.plan.tol).all())

    def _end_expected(self) -> None:
        if not self.will_draw:
            self.stage = "done"
            return
        # The last topics, not the best: on the way from the start evidence may dip while words are being sorted.
        self.best, self.best_value = None, -np.inf
        self.begin_draws()

    def begin_draws(self) -> None:
        """From now on all documents are seen."""
        self.stage, self.documents = "drawn", self.whole
        self.sums = self._no_sums(self.plan.size)

    def _no_sums(self, size: int) -> DrawnSums:
        return DrawnSums(np.zeros((len(self.seen.uses), size)), np.zeros(size), np.zeros(size))

    def _drawn_pass(self) -> None:
        assert self.sums is not None
        number = len(self.drawn_history)
        kept = self.plan.draws - self.plan.draws // 2
        single = number % 2 == 0
        found = self.documents.collect_drawn(self.topics, self.draw_seed(number), not single)
        value = found.evidence / found.words
        # Tokens that move together have no evidence one by one, and the first draws know nothing of each other.
        self.drawn_history.append(value if single and number else np.nan)
        if single and number and value >= self.best_value:
            self.best, self.best_value = self.topics, value
        self.topics = self._update(found, self.plan.fit_alpha, self.smoothing)
        if self.plan.joins:
            fitted = self.topics.alpha.astype(float)
            alpha = merging.stick_breaking(fitted, found.alpha_table_counts)
            self.topics = replace(self.topics, alpha=np.maximum(alpha, 1e-5).astype(self.topics.alpha.dtype))
            if number < self.plan.draws - kept and number % merging.BETWEEN_LOOKS == merging.BETWEEN_LOOKS - 1:
                self._join(found)
        if number >= self.plan.draws - kept:
            self.sums.add(found, self.topics)
        if len(self.drawn_history) >= self.plan.draws:
            self._judge_average()

    def _join(self, found: Statistics) -> None:
        """Let topics that are one go by one number from now on."""
        topics = self.topics
        tokens, by_document, scale = self.documents.drawn_by_document(merging.MOST_DOCUMENTS, topics.size)
        new = merging.joined(topics, merging.DrawnCounts(tokens, by_document, found.table_counts, scale))
        if new is None:
            return
        size = int(new.max()) + 1
        member = np.zeros((len(new), size))
        member[np.arange(len(new)), new] = 1.0
        mass = found.table_counts.sum(axis=0) + 1e-9
        log_total = (np.log(topics.total.astype(float)) * mass) @ member / (mass @ member)
        base = np.full(len(topics.eta), 1.0 / len(topics.eta))
        alpha = topics.alpha.astype(float) @ member
        table_counts = found.table_counts @ member
        total = np.exp(log_total)
        self.topics = make_topics(table_counts, base, topics.strength, total, alpha, topics.bursty, topics.eta.dtype)
        self.documents.rename_topics(new)
        # States of another number of topics are no rivals of those to come.
        self.best, self.best_value = None, -np.inf
        self.drawn_history = [np.nan] * len(self.drawn_history)
        self.sums = self._no_sums(size)

    def _judge_average(self) -> None:
        """Take the average over the draws, unless a single state on the way had better evidence."""
        assert self.sums is not None
        average = self.sums.average(self.topics)
        seen = []
        for number in range(JUDGING_PASSES):
            found = self.documents.collect_drawn(average, self.draw_seed(self.plan.draws + number))
            seen.append(found.evidence / found.words)
        value = float(np.mean(seen[1:]))
        if value >= self.best_value:
            self.best, self.best_value = average, value
        self.stage = "done"

    def _start_meanfield(self) -> None:
        """Mean field commits to whatever its first topics say, so it is given topics that say something."""
        documents = Documents(self.whole.rows, Slot())
        self.topics = replace(self.topics, strength=START_SMOOTHING)
        for step in range(PASSES_BEFORE_MEANFIELD):
            found = documents.collect(self.topics, self.plan.sweeps, 0.0)
            fit_alpha = self.plan.fit_alpha and step >= PASSES_BEFORE_ALPHA
            self.topics = update(self.topics, found, None, fit_alpha, threads=documents.threads)
        # Held where the start left it, the prior cannot make bound plus log prior fall.
        self.base = self.topics.floor / self.topics.floor.sum()
        self.smoothing = self.topics.strength if self.smoothing is None else self.smoothing

    def _log_prior(self) -> float:
        if self.base is None or not self.smoothing:
            return 0.0
        direction = self.topics.eta / self.topics.eta.sum(axis=0)
        return self.smoothing * float(self.base @ np.log(direction).sum(axis=1))
