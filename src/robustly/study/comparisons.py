"""How do two methods compare? Repetition by repetition, with a Monte-Carlo error, and a side taken only when it is clear.

Methods are compared within repetitions, which they share. A comparison is *better* or *worse* when its mean over
repetitions is away from zero by more than a t-interval of 95 % allows, *even* otherwise. Losses that span magnitudes are
compared by the logarithm of their ratio.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from robustly.study.regressions import METHODS
from robustly.study.simulate import VARIANTS

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
        if len(self.differences) < 2:
            return "unknown"
        if self.relative:
            return f"{self.ratio:.3g} ± {self.ratio * self.error:.1g}"
        # A mean of nothing but rounding is zero.
        return f"{round(self.mean, 12) + 0.0:+.3g} ± {self.error:.1g}"


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
    # Lines hold finite losses only, so nothing but a loss of exactly zero has no logarithm; two of them are even.
    differences = np.where(a == b, 0.0, differences)
    return Contrast(differences[np.isfinite(differences)], loss.relative)


def corrupted(lines: pd.DataFrame, variant: str) -> list[float]:
    """The levels above zero that were run."""
    levels = lines.loc[lines["variant"] == variant, "level"].unique()
    return sorted(float(level) for level in levels if level > 0)


def trend(
    lines: pd.DataFrame, variant: str, loss: Loss, method: str, rival: str, intercept: bool | None = None
) -> Contrast:
    """Does the advantage of `method` grow with the level? Rank correlations, one a repetition; negative where it does.

    Ranks, because differences of losses at high levels dwarf all others.
    """
    levels = corrupted(lines, variant)
    losses = {
        name: pd.DataFrame({v: loss.of(some(lines, variant, v, name, intercept)) for v in levels})
        for name in (method, rival)
    }
    with np.errstate(all="ignore"):
        ours, theirs = (np.log(each) if loss.relative else each for each in losses.values())
        differences = (ours - theirs).dropna().to_numpy(float)
    if len(levels) < 3 or not len(differences):
        return Contrast(np.zeros(0), False)
    found = [stats.spearmanr(levels, row).statistic if np.ptp(row) > 0 else 0.0 for row in differences]
    return Contrast(np.array(found), False)


def variant_axis(variant: str) -> str:
    """What the levels of a variant are called."""
    return next((v.axis for known in VARIANTS.values() for v in known if v.name == variant), "level")


def method_in_words(experiment: str, method: str) -> str:
    """What a method is called in words."""
    if experiment == "topics":
        from robustly.study.topics import WORDS

        return WORDS[method]
    return next(one.words for one in METHODS[experiment] if one.name == method)
