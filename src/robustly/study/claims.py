"""Which claims of the paper hold? Verdicts by rule, from the lines of the runs and nothing else.

Methods are compared within repetitions, which they share. A comparison is *better* or *worse* when its mean over
repetitions is away from zero by more than a t-interval of 95 % allows, *even* otherwise. Losses that span magnitudes are
compared by the logarithm of their ratio. A claim that one method is better is *reproduced* when every comparison it
covers is better, *not* when none is, *in part* between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from robustly.study.regressions import FIXED, METHODS
from robustly.study.simulate import VARIANTS, variant_of

REPRODUCED, IN_PART, NOT, UNDECIDED = "reproduced", "in part", "not", "too few repetitions"
SIMILAR = 1.25
"""Two methods perform alike when their typical losses differ by less than this factor."""
Lines = dict[str, pd.DataFrame]


@dataclass(frozen=True)
class Loss:
    """A measure of which less is better: its words, its column, and how it is compared and drawn."""

    words: str
    column: str
    relative: bool
    one_minus: bool = False

    def of(self, lines: pd.DataFrame) -> pd.Series:
        """The loss of every line."""
        return 1.0 - lines[self.column] if self.one_minus else lines[self.column]


MSE = Loss("MSE of the coefficients", "mse", True)
LOSSES: dict[str, tuple[Loss, ...]] = {
    "linear": (Loss("1 − pL1", "pL1", True, True), Loss("1 − pR2", "pR2", True, True), MSE),
    "logistic": (
        Loss("classification error", "error", False),
        Loss("NLL, plug-in", "nll_plugin", False),
        Loss("NLL, integrated", "nll_integrated", False),
        MSE,
    ),
    "poisson": (
        Loss("1 − pL1", "pL1", True, True),
        Loss("NLL, plug-in", "nll_plugin", True),
        Loss("NLL, integrated", "nll_integrated", True),
        MSE,
    ),
    "topics": (Loss("NLL per word", "nll", False),),
}
R2 = Loss("1 − pR2", "pR2", False, True)
MISDIRECTION = Loss("1 − cos of the angle to the truth", "misdirection", True)


@dataclass(frozen=True)
class Contrast:
    """One method less another, repetition by repetition: differences of losses, or of their logarithms."""

    differences: np.ndarray
    relative: bool

    @property
    def mean(self) -> float:
        return float(self.differences.mean()) if len(self.differences) else np.nan

    @property
    def error(self) -> float:
        """Monte-Carlo standard error of the mean."""
        n = len(self.differences)
        return float(self.differences.std(ddof=1) / np.sqrt(n)) if n > 1 else np.inf

    @property
    def wins(self) -> int:
        return int((self.differences < 0).sum())

    @property
    def side(self) -> int:
        """−1 where the first method is better, 1 where it is worse, 0 where nothing can be said."""
        n = len(self.differences)
        if n < 2:
            return 0
        if not self.differences.std():
            return int(np.sign(self.mean))
        return int(np.sign(self.mean)) if abs(self.mean) > stats.t.ppf(0.975, n - 1) * self.error else 0

    @property
    def ratio(self) -> float:
        """The typical (geometric mean) ratio of the losses."""
        return float(np.exp(self.mean))

    def __str__(self) -> str:
        if self.relative:
            return f"{self.ratio:.3g} ± {self.ratio * self.error:.1g}"
        return f"{self.mean:+.3g} ± {self.error:.1g}"


@dataclass(frozen=True)
class Finding:
    """A claim, what was found, and the verdict."""

    where: str
    claim: str
    found: str
    verdict: str


def some(lines: pd.DataFrame, variant: str, level: float, method: str, intercept: bool | None = None) -> pd.DataFrame:
    """The lines of one method that ended in figures, by repetition."""
    keep = (lines["variant"] == variant) & (lines["level"] == level) & (lines["method"] == method)
    if intercept is not None and "intercept" in lines:
        keep &= lines["intercept"] == intercept
    return lines[keep & (lines["outcome"] != "failed")].set_index("repetition").sort_index()


def contrast(
    lines: pd.DataFrame,
    variant: str,
    level: float,
    loss: Loss,
    method: str,
    rival: str,
    intercept: bool | None = None,
) -> Contrast:
    """`method` against `rival` on one variant at one level, over the repetitions in which neither failed."""
    ours, theirs = (loss.of(some(lines, variant, level, name, intercept)) for name in (method, rival))
    both = ours.index.intersection(theirs.index)
    a, b = ours[both].to_numpy(float), theirs[both].to_numpy(float)
    with np.errstate(all="ignore"):
        differences = np.log(a) - np.log(b) if loss.relative else a - b
    # Both exact, so even; only one exact has no ratio and is left to the counts of wins.
    differences = np.where((a == b), 0.0, differences)
    return Contrast(differences[np.isfinite(differences)], loss.relative)


def judge(sides: Iterable[int]) -> str:
    """The verdict on a claim of being better."""
    known = list(sides)
    better = sum(side < 0 for side in known)
    if known and better == len(known):
        return REPRODUCED
    return IN_PART if better else NOT


def claims(lines: Lines) -> list[Finding]:
    """The paper's claims that the runs speak to, in its order."""
    found: list[Finding] = []
    for experiment, judged in _BY_EXPERIMENT.items():
        if experiment in lines and len(lines[experiment]):
            found += judged(lines[experiment])
    return found


def corrupted(lines: pd.DataFrame, variant: str) -> list[float]:
    """The levels above zero that were run."""
    levels = lines.loc[lines["variant"] == variant, "level"].unique()
    return sorted(float(level) for level in levels if level > 0)


def _better(
    lines: pd.DataFrame,
    where: str,
    claim: str,
    variant: str,
    losses: Sequence[Loss],
    method: str,
    rival: str,
    intercept: bool | None = None,
) -> Finding:
    """A finding on a claim of being better at every level above zero, in every loss."""
    levels = corrupted(lines, variant)
    all_of = {
        (loss.words, level): contrast(lines, variant, level, loss, method, rival, intercept)
        for loss in losses
        for level in levels
    }
    texts = []
    for loss in losses:
        mine = [all_of[loss.words, level] for level in levels]
        kind = "ratio" if loss.relative else "difference"
        shown = ", ".join(f"{each} at {level:g}" for each, level in zip(mine, levels))
        texts.append(f"{loss.words}, {kind}: {shown}.")
    sides = [each.side for each in all_of.values()]
    count = f"Better in {sum(s < 0 for s in sides)}, even in {sum(s == 0 for s in sides)}, worse in {sum(s > 0 for s in sides)} of {len(sides)} comparisons."
    few = any(len(each.differences) < 3 for each in all_of.values())
    return Finding(where, claim, " ".join([count, *texts]), UNDECIDED if few else judge(sides))


def _grows(
    lines: pd.DataFrame,
    where: str,
    claim: str,
    variant: str,
    gain: Loss,
    method: str,
    rival: str,
    intercept: bool | None,
) -> Finding:
    """A finding on a claim that the gain grows with the corruption: in `gain`, and as a ratio of MSEs."""
    levels = corrupted(lines, variant)
    ends = [contrast(lines, variant, level, gain, method, rival, intercept) for level in (levels[0], levels[-1])]
    ratios = [contrast(lines, variant, level, MSE, method, rival, intercept) for level in (levels[0], levels[-1])]
    sides = [_difference(*ends), _difference(*ratios)]
    found = (
        f"{gain.words}, {'ratio of the robust model to the classical one' if gain.relative else 'robust less classical'}: {ends[0]} at {levels[0]:g}, {ends[1]} at "
        f"{levels[-1]:g} ({_WORDS[sides[0]]}). Ratio of MSEs: {ratios[0]} at {levels[0]:g}, {ratios[1]} at {levels[-1]:g} "
        f"(the relative gain {_WORDS[sides[1]]})."
    )
    few = any(len(each.differences) < 3 for each in (*ends, *ratios))
    return Finding(where, claim, found, UNDECIDED if few else judge(sides))


_WORDS = {-1: "grows", 0: "no clear change", 1: "fades"}


def _difference(low: Contrast, high: Contrast) -> int:
    """−1 where the advantage is larger at the high level, by two standard errors."""
    change, error = high.mean - low.mean, float(np.hypot(low.error, high.error))
    return int(np.sign(change)) if abs(change) > 2.0 * error else 0


def _linear(lines: pd.DataFrame) -> list[Finding]:
    found = []
    for variant in _present("linear", lines):
        words = variant_of("linear", variant).words
        found.append(
            _better(
                lines,
                "5.1, linear",
                f"Robust linear regression beats least squares on corrupted training rows ({words}).",
                variant,
                LOSSES["linear"],
                "robust",
                "classical",
            )
        )
    for variant in _present("linear", lines):
        words = variant_of("linear", variant).words
        claim = f"The more noise (k), the more outliers and the larger the gain ({words})."
        found.append(_grows(lines, "5.1, summary", claim, variant, R2, "robust", "classical", None))
    return found


def _logistic(lines: pd.DataFrame) -> list[Finding]:
    if "near" not in _present("logistic", lines):
        return []
    claim = "Robust logistic regression beats the classical one when labels near the boundary are flipped"
    return [
        _better(lines, "5.1, logistic", f"{claim}.", "near", LOSSES["logistic"], "robust", "classical"),
        _better(
            lines,
            "5.1, logistic",
            f"{claim}; fitted by the paper's Algorithm 1.",
            "near",
            LOSSES["logistic"],
            "algorithm1",
            "classical",
        ),
        _grows(
            lines,
            "5.1, summary",
            "The gain of robust logistic regression in log likelihood grows with the share of flipped labels.",
            "near",
            LOSSES["logistic"][2],
            "robust",
            "classical",
            None,
        ),
    ]


def _poisson(lines: pd.DataFrame) -> list[Finding]:
    if "lognormal" not in _present("poisson", lines):
        return []
    found = []
    for rival, words in (("classical", "Poisson regression"), ("nb", "negative binomial regression")):
        for intercept in (True, False):
            claim = f"Robust Poisson regression beats {words} (both {_with(intercept)} intercept)."
            found.append(
                _better(lines, "5.1, Poisson", claim, "lognormal", LOSSES["poisson"], "robust", rival, intercept)
            )
    found.append(_nb_gap(lines))
    found.append(_fixed(lines))
    claim = "The gain of robust Poisson regression in log likelihood grows with the noise."
    found.append(_grows(lines, "5.1, summary", claim, "lognormal", LOSSES["poisson"][1], "robust", "classical", True))
    return found


def _nb_gap(lines: pd.DataFrame) -> Finding:
    levels = corrupted(lines, "lognormal")
    ends = {
        b: [contrast(lines, "lognormal", level, MSE, "robust", "nb", b) for level in (levels[0], levels[-1])]
        for b in (True, False)
    }
    sides = [_difference(*pair) for pair in ends.values()]
    found = " ".join(
        f"Ratio of MSEs {_with(b)} intercept: {low} at {levels[0]:g}, {high} at {levels[-1]:g}."
        for b, (low, high) in ends.items()
    )
    claim = "The gain over the negative binomial is largest where there is much noise."
    few = any(len(each.differences) < 3 for pair in ends.values() for each in pair)
    return Finding("5.1, Poisson", claim, found, UNDECIDED if few else judge(sides))


def _fixed(lines: pd.DataFrame) -> Finding:
    """Held spreads: alike the negative binomial, and worse than the fitted spread?"""
    levels = corrupted(lines, "lognormal")
    alike, worse, texts = [], [], []
    few = False
    for intercept in (True, False):
        for at in FIXED:
            name = f"fixed{at:g}"
            to_nb = [contrast(lines, "lognormal", level, MSE, name, "nb", intercept) for level in levels]
            to_own = [contrast(lines, "lognormal", level, MSE, name, "robust", intercept) for level in levels]
            few |= any(len(each.differences) < 3 for each in to_nb)
            alike += [1.0 / SIMILAR <= each.ratio <= SIMILAR for each in to_nb]
            worse += [each.side > 0 for each in to_own]
            texts.append(
                f"held at {at:g} {_with(intercept)} intercept: {min(e.ratio for e in to_nb):.2g} to "
                f"{max(e.ratio for e in to_nb):.2g} times the negative binomial's MSE, "
                f"{min(e.ratio for e in to_own):.2g} to {max(e.ratio for e in to_own):.2g} times the fitted spread's"
            )
    found = (
        f"Within a factor {SIMILAR:g} of the negative binomial in {sum(alike)} of {len(alike)} comparisons, worse than the "
        f"fitted spread in {sum(worse)} of {len(worse)}. {'; '.join(texts)}."
    )
    verdict = REPRODUCED if all(alike) and all(worse) else IN_PART if any(alike) and any(worse) else NOT
    claim = "With the spread held instead of fitted, robust Poisson regression does as the negative binomial does: the empirical-Bayes step explains the gain."
    return Finding("5.1, Poisson", claim, found, UNDECIDED if few else verdict)


def _topics(lines: pd.DataFrame) -> list[Finding]:
    found = []
    for corpus in sorted(lines["variant"].unique()):
        levels = corrupted(lines, corpus)
        each = [contrast(lines, corpus, level, LOSSES["topics"][0], "robust", "plain") for level in levels]
        shown = ", ".join(f"{one} with {level:g} topics" for one, level in zip(each, levels))
        claim = f"Robust LDA predicts held-out words better than LDA over a range of numbers of topics ({corpus})."
        few = any(len(one.differences) < 2 for one in each)
        text = f"NLL per word, robust less plain: {shown}."
        found.append(Finding("5.2", claim, text, UNDECIDED if few else judge(one.side for one in each)))
    return found


def _present(experiment: str, lines: pd.DataFrame) -> list[str]:
    there = set(lines["variant"])
    return [variant.name for variant in VARIANTS[experiment] if variant.name in there]


def _with(intercept: bool) -> str:
    return "with" if intercept else "without"


_BY_EXPERIMENT: dict[str, Callable[[pd.DataFrame], list[Finding]]] = {
    "linear": _linear,
    "logistic": _logistic,
    "poisson": _poisson,
    "topics": _topics,
}


def words_of(experiment: str, method: str) -> str:
    """What a method is called in words."""
    if experiment == "topics":
        from robustly.study.topics import WORDS

        return WORDS[method]
    return next(one.words for one in METHODS[experiment] if one.name == method)
