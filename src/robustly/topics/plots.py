"""What do the topics look like? Their most telling words as bars, and how far each one bends."""

from __future__ import annotations

from typing import Any

import numpy as np

from robustly.errors import DataError
from robustly.topics.fitted import FittedTopics
from robustly.topics.summary import plain_text

BAR = "#4C72B0"
POINT = "#C44E52"
# More topics than this on one figure cannot be read; the most used ones are drawn and the title says so.
MOST_TOPICS = 40


def _label(word: str) -> str:
    """A word as it is: dollar signs would begin a formula, control characters are written out, long ones cut."""
    shown = plain_text(word)
    return (shown if len(shown) <= 24 else shown[:23] + "…").replace("$", r"\$")


def _drawn_topics(model: FittedTopics, topics: Any) -> tuple[list[int], str]:
    """The topics to draw, the most used first, and what to say if that is not all."""
    size = len(model.alpha_)
    if topics is None:
        order = [int(k) for k in np.argsort(-model.alpha_, kind="stable")]
        told = f"the {MOST_TOPICS} most used of {size} topics" if size > MOST_TOPICS else ""
        return order[:MOST_TOPICS], told
    chosen = [int(k) for k in topics]
    if not chosen or not all(0 <= k < size for k in chosen):
        raise DataError(f"topics={topics!r} are not among the {size} topics, which count from 0.")
    return chosen, ""


def plot_topics(model: FittedTopics, vocabulary: Any = None, n: int = 8, topics: Any = None, columns: int = 5) -> Any:
    """Horizontal bars of each topic's `n` most relevant words, the most used topics first. Returns the figure.

    Bars are word probabilities on one scale, so that topics compare. `topics` picks some of them, in that order; without
    it at most 40 are drawn.
    """
    from matplotlib.figure import Figure

    names = model.top_words(vocabulary, n)
    weights, best = model.word_shares(), model.ranked_words(n)
    shares = model.alpha_ / model.alpha_.sum()
    chosen, told = _drawn_topics(model, topics)
    columns = min(columns, len(chosen))
    rows = -(-len(chosen) // columns)
    figure = Figure(figsize=(2.6 * columns, 0.5 + (0.55 + 0.21 * n) * rows), layout="constrained")
    axes = np.atleast_1d(figure.subplots(rows, columns, sharex=True)).ravel()
    for axis, k in zip(axes, chosen):
        places = np.arange(best.shape[1])
        axis.barh(places, weights[k, best[k]], color=BAR, height=0.75)
        axis.set_yticks(places, [_label(word) for word in names[k]], fontsize=8)
        axis.invert_yaxis()
        axis.set_title(f"topic {k} · {shares[k]:.0%}", fontsize=9, loc="left")
        axis.tick_params(axis="x", labelsize=7)
        axis.locator_params(axis="x", nbins=3)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[len(chosen) :]:
        axis.set_visible(False)
    if told:
        figure.suptitle(told, fontsize=10)
    figure.supxlabel("probability of the word in the topic", fontsize=9)
    return figure


def plot_burstiness(model: FittedTopics, vocabulary: Any = None, n: int = 3, topics: Any = None) -> Any:
    """Each topic's concentration against its share of the corpus, named by its top words. Returns the figure.

    On the left, documents bend the topic strongly: a word seen once is likely to come again. Far right, hardly at all.
    `topics` picks some; without it at most 40, the most used, are drawn.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    if not np.isfinite(model.burstiness_).all():
        raise DataError("plain LDA has no burstiness to plot. Fit a RobustLDA.")
    names = model.top_words(vocabulary, n)
    chosen, told = _drawn_topics(model, topics)
    order = np.array(sorted(chosen, key=lambda k: model.burstiness_[k]))
    values = model.burstiness_[order]
    places = np.arange(len(order))
    shares = model.alpha_ / model.alpha_.sum()
    figure = Figure(figsize=(7.5, 1.4 + 0.24 * len(order)), layout="constrained")
    axis = figure.subplots()
    left = values.min() * 0.8
    axis.hlines(places, left, values, color="#D0D0D0", lw=1)
    axis.scatter(values, places, s=15 + 600 * shares[order], color=POINT, alpha=0.85, zorder=3)
    labels = [f"{', '.join(_label(word) for word in names[k])} · {k}" for k in order]
    axis.set_yticks(places, labels, fontsize=8)
    axis.set_ylim(-0.8, len(order) - 0.2)
    axis.set_xscale("log")
    axis.set_xlim(left=left)
    axis.xaxis.set_major_formatter("{x:g}")
    # Within one decade there are too few whole powers of ten to read; over several, the numbers between would collide.
    axis.xaxis.set_minor_formatter("{x:g}" if values.max() < 12 * values.min() else NullFormatter())
    axis.tick_params(axis="x", which="both", labelsize=8)
    axis.set_xlabel("Σ η of the topic (log scale): further left, it bends more; area is its share", fontsize=9)
    if told:
        axis.set_title(told, fontsize=10, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    return figure
