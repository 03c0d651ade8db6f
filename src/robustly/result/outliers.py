r"""Which rows do not belong? One rule for every model: a probability for each row, and a list with few false ones.

Rows that belong follow a *core* law; some others may not, and come from a wide part. A model fits both, the core alone and the
core with a wide part (:class:`Candidate`), for one or more kinds of cores, and :func:`judge` weighs them by their evidence
(Laplace's approximation). From there on the rule is the same for all:

- the probability that a row does not belong is that of the wide part given the row, averaged over the laws and over what the
  rows leave open about their numbers (by tangents, except along the number in which odds bend, or by draws);
- the list for a rate `fdr` takes rows in order while their mean local false discovery rate stays below it. That mean is bounded
  by tail areas, :math:`n\, p_{(k)} / k` with :math:`p_{(k)}` the k-th smallest tail probability in the core, averaged over the laws:
  it needs the core alone, not the form of the wide part (Efron 2008), and is the rule of Benjamini & Hochberg (1995) on a core that
  outliers had no part in. Where rows have no tails (a 0/1 label), the mean is taken over the probabilities
  themselves.

"False" means: a row of the core.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np

from robustly.errors import FitError, ModelError
from robustly.fit.newton import Hopeless
from robustly.fit.outcome import Outcome
from robustly.model.wide_curvature import Curve
from robustly.result.levels import check_level

# How a model's `tail_probabilities` are read: as tails of a distribution, or as the probability that the row does belong.
TAILS, POSTERIOR = "tails", "posterior"
# Nodes of the normal average over what is left open about a row's log odds; and over the one number along which these bend.
NODES, ALONG = 31, 3
# Rows of which that average is taken together.
AT_ONCE = 1 << 16
# The least share of a score's variance that is left where the row itself decides the fit.
LEAST = 1e-6
# A heavy-tailed core must do better than a normal one with a wide part by so many nats: few rows cannot tell them apart.
HEAVY_MARGIN = 5.0
CENTRAL = 0.05
# Halvings of the interval that the last row on a list is in, where rows are elsewhere.
HALVINGS = 40
# Rows elsewhere are brought into memory to be judged if they are no more than these; more are judged where they are.
JUDGED = 1 << 18
# Of more than twice as many rows, laws are fitted to a sample of these: they tell a core's deviation to .3 %, which is a tenth of a tail
# probability of 1e-8.
ENOUGH_ROWS = 1 << 16
# The share of false rows on a list, unless told.
USUAL = 0.05
# A climb is near its top when it expects so little (in nats), may come to so many times as much, and has lost if that leaves it so far
# behind.
NEAR_TOP, MORE_THAN_EXPECTED, CLEARLY = 0.1, 3.0, 1.5
BEHIND = "behind"
# A law with less than this probability is ruled out.
RULED_OUT = 0.05
# One with less has no say in tails.
NO_SAY = 1e-3
# One with less moves no probability by more than this.
NEGLIGIBLE = 1e-7

ByPlace = Callable[[np.ndarray], np.ndarray]
"""Gives a number of each of some rows, which are named by their places."""


def finite_curve(curve: np.ndarray | None) -> np.ndarray:
    """The curvature at a law's estimates, by which rows are judged."""
    if curve is None or not np.isfinite(curve).all():
        raise FitError(
            "the curvature of a law that rows may follow is beyond floating point, so none can be judged by it. Look at the data for "
            "extreme values."
        )
    return curve


@dataclass(frozen=True, eq=False)
class Candidate:
    """One law that the rows may follow, fitted: what :func:`judge` needs of it."""

    name: str
    """The law in words."""
    value: float
    """Log posterior density at its top."""
    curve: np.ndarray
    """Curvature there."""
    log_odds: np.ndarray | Callable[[], np.ndarray] | None = None
    """Of the wide part against the core, by row, or what finds them when they are asked for; None for a core alone."""
    log_odds_variance: np.ndarray | None = None
    share: float = 0.0
    """Of rows in the wide part."""
    score: Callable[[], tuple[np.ndarray, np.ndarray]] | None = None
    """By row, how far out it lies in the core (a two-sided normal score), and the variance of that from the estimates; None
    where rows have no tails."""
    margin: float = 0.0
    """By how many nats it must do better than others."""
    nodes: np.ndarray | None = None
    """Shares of several vectors, of which log odds and variances have one line each (:func:`vectors_along`)."""

    averaged: tuple[float, np.ndarray] | None = None
    """The log evidence and the probabilities by row, where they were averaged over draws of the posterior."""

    @property
    def log_evidence(self) -> float:
        """Laplace's approximation unless drawn, less the margin."""
        if self.averaged is not None:
            return self.averaged[0] - self.margin
        sign, log_det = np.linalg.slogdet(-self.curve)
        if sign <= 0:  # No top: nothing is known of its neighbourhood.
            return -np.inf
        return self.value + 0.5 * len(self.curve) * float(np.log(2.0 * np.pi)) - 0.5 * log_det - self.margin

    @cached_property
    def probability(self) -> np.ndarray | None:
        """That of the wide part by row, averaged over what is left open about its log odds."""
        if self.averaged is not None:
            return self.averaged[1]
        if self.log_odds is None:
            return None
        from scipy.special import expit

        log_odds = self.log_odds() if callable(self.log_odds) else self.log_odds
        if self.log_odds_variance is None:
            return expit(log_odds)
        node, weight = np.polynomial.hermite_e.hermegauss(NODES)
        odds, deviation = np.atleast_2d(log_odds), np.sqrt(np.maximum(np.atleast_2d(self.log_odds_variance), 0.0))
        shares = np.ones(1) if self.nodes is None else self.nodes
        found = np.empty(odds.shape[1])
        for start in range(0, len(found), AT_ONCE):
            some = slice(start, start + AT_ONCE)
            points = odds[:, some, None] + deviation[:, some, None] * node
            found[some] = shares @ (expit(points) @ (weight / weight.sum()))
        return found

    @cached_property
    def tail(self) -> np.ndarray | None:
        """How probable a row at least as far out is in the core, the estimates' own uncertainty counted; None without tails."""
        if self.score is None:
            return None
        from scipy.special import ndtr

        score, variance = self.score()
        if np.ndim(variance) == 0 and variance == 0:
            return 2.0 * ndtr(-score)
        # Next to the centre a score has a corner, and what it says does not depend on the estimates.
        variance = np.where(score < CENTRAL, 0.0, variance)
        # A row that took part in the estimates pulled them to itself; one that did not is as far as it looks, and more.
        inside = 1.0 if self.probability is None else 1.0 - self.probability
        return 2.0 * ndtr(-score / np.sqrt(np.maximum(1.0 + (1.0 - 2.0 * inside) * variance, LEAST)))


def behind(other: Candidate) -> Hopeless:
    """Ends a climb to a top that another law outdoes, in height and in evidence, with more to spare than the climb has before it."""
    reason = Outcome(BEHIND, "another law has more evidence.")

    def hopeless(value: float, curve: Curve, gain: float) -> Outcome | None:
        here = Candidate("", value + MORE_THAN_EXPECTED * gain, np.asarray(curve))
        # Where some direction curves upwards there is more to come than a quadratic picture expects.
        if gain > NEAR_TOP or here.value > other.value or not np.isfinite(here.log_evidence):
            return None
        return reason if here.log_evidence < other.log_evidence - CLEARLY else None

    return hopeless


def vectors_along(
    vector: np.ndarray, covariance: np.ndarray, place: int
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Vectors that stand for what is left open about one number, their shares, and the covariance of the others given it.

    Log odds between core and wide part go as minus the square of one over `variation`, and a few strayed rows say next to nothing of
    it: a tangent there would make rows of the core look doubtful.
    """
    node, weight = np.polynomial.hermite_e.hermegauss(ALONG)
    direction = covariance[:, place] / np.sqrt(max(float(covariance[place, place]), 1e-300))
    return (
        [vector + step * direction for step in node],
        weight / weight.sum(),
        covariance - np.outer(direction, direction),
    )


@dataclass(frozen=True, eq=False)
class Judgement:
    """What is believed of the rows: which of them do not belong."""

    doubts: np.ndarray | Callable[[], np.ndarray] | None
    """The :attr:`probability` of each row, or what finds them when they are asked for: a list by tails needs none."""
    tail: np.ndarray | None
    """How probable a row at least as far out is in the core, the estimates' own uncertainty counted; None without tails."""
    share: float
    """Of rows that do not belong, under the law that judged."""
    law: str
    """The law that the evidence prefers, in words."""
    weights: dict[str, float]
    """Of every law that was weighed, its probability."""
    doubt: str = ""
    """Why the list is to be read with care; empty where there is no reason."""
    advice: str = ""
    """What else to fit where many rows do not belong; empty where few do."""

    @cached_property
    def probability(self) -> np.ndarray | None:
        """That each row does not belong; None where the model has no law for rows that do not."""
        return self.doubts() if callable(self.doubts) else self.doubts

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "doubts": self.probability}

    def listed(
        self, surprise: np.ndarray | ByPlace, fdr: float | None = None, level: float | None = None
    ) -> np.ndarray:
        """Rows that do not belong, the surest first, among equals the more surprising.

        With `level` each row is judged alone, by its tail in the core or else its probability of belonging.
        """
        if fdr is not None and level is not None:
            raise ModelError("outliers takes fdr= or level=, not both.")
        if not isinstance(self.belonging, np.ndarray):
            return _listed_elsewhere(self, check_fdr(fdr), level)

        def in_order(rows: np.ndarray) -> np.ndarray:
            rows = rows[np.argsort(self.belonging[rows], kind="stable")]
            belonging = self.belonging[rows]
            alike = np.concatenate([[False], belonging[1:] == belonging[:-1], [False]])
            tied = np.flatnonzero(alike[1:] | alike[:-1])
            if len(tied):
                some = rows[tied]
                among = surprise(some) if callable(surprise) else np.asarray(surprise)[some]
                rows[tied] = some[np.lexsort((-among, belonging[tied]))]
            return rows

        if level is not None:
            check_level(level)
            return in_order(np.flatnonzero(self.belonging < level))
        rate = check_fdr(fdr)
        if self.tail is not None:
            return in_order(np.sort(benjamini_hochberg(self.tail, rate)))
        order = in_order(np.arange(len(self.belonging)))
        mean = np.cumsum(self.belonging[order]) / np.arange(1, len(order) + 1)
        return order[: int((mean <= rate).sum())]

    @property
    def belonging(self) -> np.ndarray:
        """By what rows are put in order: their tail in the core, or where there is none the probability of belonging."""
        if self.tail is not None:
            return self.tail
        assert self.probability is not None
        return 1.0 - self.probability

    def rule(self, fdr: float) -> str:
        """How rows were judged, in a sentence or two."""
        how = (
            f"Rows are judged by {self.law}. Listed are those, the surest first, whose mean probability of belonging to the "
            f"core stays below {fdr:g}; a false row is one of the core."
        )
        return " ".join(part for part in (how, self.doubt, self.advice) if part)


def weights_of(candidates: Sequence[Candidate]) -> np.ndarray:
    """The laws' probabilities, by their evidence."""
    evidence = np.array([one.log_evidence for one in candidates])
    if not np.isfinite(evidence).any():  # no law curves down at its estimates: their likelihoods are left
        evidence = np.array([one.value for one in candidates])
    evidence = np.where(np.isfinite(evidence), evidence, -np.inf)
    weight = np.exp(evidence - evidence.max())
    return weight / weight.sum()


def schwarz_curve(rows: int, numbers: int) -> np.ndarray:
    """The curvature that makes Laplace's approximation the criterion of Schwarz (1978), for laws fitted without one."""
    return -2.0 * np.pi * rows * np.eye(numbers)


def judge(candidates: Sequence[Candidate], doubt: str = "", *, cautious: bool = False) -> Judgement:
    """Weigh laws by their evidence: tails in their cores and probabilities are averages over them.

    Where laws are hard to tell apart and much depends on it, the `cautious` answer is the least of the probabilities under those
    that the rows do not rule out.
    """
    weight = weights_of(candidates)
    best = candidates[int(weight.argmax())]
    tail: np.ndarray | None = None
    counted = 0.0
    for one, share in zip(candidates, weight):
        if share > NO_SAY and one.tail is not None:
            tail = share * one.tail + (0.0 if tail is None else tail)
            counted += share
    tail = None if tail is None else tail / counted
    rows = None if tail is None else np.shape(tail)

    def probability() -> np.ndarray:
        if cautious:
            believed: list[Any] = [one.probability for one, share in zip(candidates, weight) if share > RULED_OUT]
            total = reduce(lambda least, one: np.minimum(least, one), believed)
        else:
            # Where there are no tails, it is the laws' probabilities that tell how many rows there are.
            some = [
                (one.probability, share) for one, share in zip(candidates, weight) if rows is None or share > NEGLIGIBLE
            ]
            total = sum((share * given for given, share in some if given is not None), np.zeros(()))
        return np.broadcast_to(total, np.shape(total) if rows is None else rows).astype(float)

    weights: dict[str, float] = {}
    for one, share in zip(candidates, weight):  # a law may have several tops
        weights[one.name] = weights.get(one.name, 0.0) + float(share)
    return Judgement(probability, tail, best.share, best.name, weights, doubt)


def heavy_tails_doubt(candidates: Sequence[Candidate]) -> str:
    """What to say where the last law, a heavy-tailed core, does better than the others, not by its margin, and lists fewer rows."""
    evidence = [one.log_evidence for one in candidates]
    best, heavy = candidates[int(np.argmax(evidence))], candidates[-1]
    if best is heavy or evidence[-1] + heavy.margin <= max(evidence) or best.tail is None or heavy.tail is None:
        return ""
    listed, fewer = (len(benjamini_hochberg(tail, USUAL)) for tail in (best.tail, heavy.tail))
    if fewer >= listed:
        return ""
    return (
        f"A core with heavy tails describes these rows about as well. At fdr={USUAL} it lists {fewer} rows, the core that judged "
        f"{listed}: so few rows do not tell heavy tails from rows that do not belong."
    )


def by_tails(tail: np.ndarray, rule: str = TAILS) -> Judgement:
    """Rows judged by a fitted law itself, for models that have no law for rows that do not belong."""
    if rule == POSTERIOR:
        return Judgement(1.0 - tail, None, 0.0, "the probability that their label is wrong", {})
    return Judgement(None, tail, 0.0, "tail probabilities under the fitted law itself (Benjamini and Hochberg)", {})


def stand_out(
    tail: np.ndarray, surprise: np.ndarray, fdr: float | None, level: float | None, rule: str = TAILS
) -> np.ndarray:
    """Rows that do not belong by their tails, or by their probabilities of belonging (``rule="posterior"``)."""
    return by_tails(tail, rule).listed(surprise, fdr, level)


def _listed_elsewhere(judged: Judgement, rate: float, level: float | None) -> Any:
    """As :meth:`Judgement.listed`, of rows in Dask partitions: in their order, and only those on the list are ever brought here.

    The largest value that is still on the list is found from counts and sums over the partitions.
    """
    elsewhere: Any = judged.belonging
    value = elsewhere.persist()
    if level is not None:
        check_level(level)
        return _listed_rows(value, value < level)
    if judged.tail is not None:
        most, count = rate, -1
        # From above: rows within the bound that they themselves allow.
        while (found := int((value <= most).sum())) != count:
            most, count = rate * found / len(value), found
        return _listed_rows(value, value <= most)
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        most = 0.5 * (low + high)
        inside = value <= most
        fits = float((value * inside).sum()) <= rate * int(inside.sum())
        low, high = (most, high) if fits else (low, most)
    return _listed_rows(value, value <= low)


def _listed_rows(value: Any, inside: Any) -> Any:
    """The places of some rows, partition by partition."""
    import dask.array as da

    found = da.arange(len(value), chunks=value.chunks)[inside].persist()
    return found.compute_chunk_sizes()


def by_partition(places: np.ndarray, like: Any) -> Any:
    """Places of rows in the order and the partitions of a Dask array with a value a row."""
    import dask.array as da

    ordered = np.sort(places)
    ends = np.searchsorted(ordered, np.cumsum(like.chunks[0]))
    return da.from_array(ordered, chunks=(tuple(int(size) for size in np.diff(ends, prepend=0)),))


def check_fdr(fdr: float | None) -> float:
    """A rate of false discoveries, 0.05 unless told."""
    if fdr is None:
        return USUAL
    if not 0 < fdr < 1:
        raise ModelError(f"fdr is a share between 0 and 1; got {fdr}. 0.05 is usual.")
    return float(fdr)


def benjamini_hochberg(tail: np.ndarray, fdr: float, n: int | None = None) -> np.ndarray:
    """Indices of the rows whose tail probabilities stand out, with an expected share `fdr` of false ones.

    The step-up rule of Benjamini & Hochberg (1995); rows are taken as independent, and discrete tail probabilities,
    which are conservative, keep the promise. Of `n` rows in all, those left out have tail probabilities above `fdr`.
    """
    n = len(tail) if n is None else n
    # None lies above the bound that all those below `fdr` allow together; of many rows, few are left to be put in order.
    some = np.flatnonzero(tail <= fdr)
    some = some[tail[some] <= fdr * len(some) / n]
    order = some[np.argsort(tail[some])]
    below = np.flatnonzero(tail[order] <= fdr * np.arange(1, len(order) + 1) / n)
    return order[: below[-1] + 1] if len(below) else order[:0]
