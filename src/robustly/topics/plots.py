"""What do the topics look like? Their heaviest words as bars, and how far each one bends."""

from __future__ import annotations

from typing import Any

import numpy as np

from robustly.errors import DataError
from robustly.topics.fitted import FittedTopics

BAR = "#4C72B0"
POINT = "#C44E52"


def plot_topics(model: FittedTopics, vocabulary: Any = None, n: int = 8, topics: Any = None, columns: int = 5) -> Any:
    """Horizontal bars of each topic's `n` heaviest words, the most used topics first. Returns the figure.

    Bars are word probabilities on one scale, so that topics compare. `topics` picks some of them, in that order.
    """
    from matplotlib.figure import Figure

    names = model.top_words(vocabulary, n)
    weights = np.asarray(model.components_, dtype=float)
    weights = weights / weights.sum(axis=1, keepdims=True)
    shares = model.alpha_ / model.alpha_.sum()
    chosen = list(np.argsort(-shares, kind="stable")) if topics is None else [int(k) for k in topics]
    if not chosen or not all(0 <= k < len(weights) for k in chosen):
        raise DataError(f"topics={topics!r} are not among the {len(weights)} topics, which count from 0.")
    columns = min(columns, len(chosen))
    rows = -(-len(chosen) // columns)
    figure = Figure(figsize=(2.6 * columns, 0.5 + (0.55 + 0.21 * n) * rows), layout="constrained")
    axes = np.atleast_1d(figure.subplots(rows, columns, sharex=True)).ravel()
    for axis, k in zip(axes, chosen):
        best = np.argsort(-weights[k], kind="stable")[:n]
        places = np.arange(len(best))
        axis.barh(places, weights[k, best], color=BAR, height=0.75)
        axis.set_yticks(places, names[k], fontsize=8)
        axis.invert_yaxis()
        axis.set_title(f"topic {k} · {shares[k]:.0%}", fontsize=9, loc="left")
        axis.tick_params(axis="x", labelsize=7)
        axis.locator_params(axis="x", nbins=3)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[len(chosen) :]:
        axis.set_visible(False)
    figure.supxlabel("probability of the word in the topic", fontsize=9)
    return figure


def plot_burstiness(model: FittedTopics, vocabulary: Any = None, n: int = 3) -> Any:
    """Each topic's concentration against its share of the corpus, named by its top words. Returns the figure.

    On the left, documents bend the topic strongly: a word seen once is likely to come again. Far right, hardly at all.
    """
    from matplotlib.figure import Figure

    if not np.isfinite(model.burstiness_).all():
        raise DataError("plain LDA has no burstiness to plot. Fit a RobustLDA.")
    names = model.top_words(vocabulary, n)
    order = np.argsort(model.burstiness_, kind="stable")
    places = np.arange(len(order))
    shares = model.alpha_ / model.alpha_.sum()
    figure = Figure(figsize=(7.5, 1.2 + 0.24 * len(order)), layout="constrained")
    axis = figure.subplots()
    axis.hlines(places, model.burstiness_.min() * 0.8, model.burstiness_[order], color="#D0D0D0", lw=1)
    axis.scatter(model.burstiness_[order], places, s=15 + 600 * shares[order], color=POINT, alpha=0.85, zorder=3)
    axis.set_yticks(places, [f"{', '.join(names[k])} · {k}" for k in order], fontsize=8)
    axis.set_xscale("log")
    axis.set_xlim(left=model.burstiness_.min() * 0.8)
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter("{x:g}")
    axis.tick_params(axis="x", which="both", labelsize=8)
    axis.set_xlabel("Σ η of the topic (log scale): further left, it bends more; area is its share", fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    return figure
