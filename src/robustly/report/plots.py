"""What does a regression look like? Coefficients, rows, the fitted prior and the calibration, each as one figure.

Figures are in_style narrow, with type that is still read on a phone, and text of users is never taken for markup.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from robustly.errors import ModelError
from robustly.result.figure_style import STYLE, in_style

ROBUST, CLASSICAL, QUIET, MARK = "#1d6f8a", "#b8552f", "#8a9296", "#a3195b"
COLOURS = (ROBUST, CLASSICAL, "#6b7d2a", "#6a4c93", "#555555")
WIDTH = 4.9
MOST_TERMS = 30
MOST_POINTS = 4000
BINS = 10
DEEPEST = 16.0


def label(text: Any, width: int = 26) -> str:
    """User text for a picture: one short line of characters that the font has."""
    found = "".join(one if one.isprintable() and _in_font(one) else "▯" for one in str(text)[: width + 1])
    return found if len(found) <= width else found[: width - 1] + "…"


@functools.cache
def _in_font(character: str) -> bool:
    from matplotlib.font_manager import findfont, get_font

    return get_font(findfont("DejaVu Sans")).get_char_index(ord(character)) != 0


def _figure(height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots()


def colours(fits: Mapping[str, Any]) -> dict[str, str]:
    """One colour a fit: the classical one always the same."""
    rest = iter(one for one in COLOURS if one != CLASSICAL)
    return {name: CLASSICAL if fit.asked.get("local") is None else next(rest, "#555555") for name, fit in fits.items()}


@in_style
def plot_coefficients(fits: Mapping[str, Any], level: float = 0.95) -> Any:
    """Coefficients of several fits with their intervals. Every term has a scale of its own, with zero where it is near.

    Terms are stretched so that all intervals of one term fill the same width: their sizes cannot be compared between
    terms, but what moved, and by how much of its uncertainty, can. With many terms, those that moved most are in_style.
    """
    shades = colours(fits)
    intervals = {name: fit.wald_intervals(level) for name, fit in fits.items()}
    first = next(iter(fits.values()))
    terms = [term for term in first.terms if all(term in fit.coefficients.index for fit in fits.values())]
    spans = {term: _span(term, fits, intervals) for term in terms}
    terms = [term for term in terms if spans[term] is not None]
    if not terms:
        raise ModelError("the fits have no term in common that could be in_style.")
    if len(terms) > MOST_TERMS:
        moved = {
            term: np.ptp([fit.coefficients[term] for fit in fits.values()]) / _width(spans[term]) for term in terms
        }
        chosen = set(sorted(terms, key=lambda term: -moved[term])[:MOST_TERMS])
        terms = [term for term in terms if term in chosen]
    band = 0.24 + 0.17 * len(fits)
    figure, axes = _figure(0.7 + band * len(terms))
    for place, term in enumerate(terms):
        low, high = spans[term]  # type: ignore[misc]
        at = lambda value, low=low, high=high: (value - low) / (high - low)
        if place % 2:
            axes.axhspan(place - 0.5, place + 0.5, color="#f3f5f6", lw=0, zorder=0)
        if low < 0 < high:
            axes.plot([at(0.0)] * 2, [place - 0.42, place + 0.42], color=QUIET, lw=1, ls=(0, (2, 2)), zorder=1)
        for number, (name, fit) in enumerate(fits.items()):
            y = place + (number - (len(fits) - 1) / 2) * 0.62 / len(fits)
            a, b = intervals[name][term]
            value = float(fit.coefficients[term])
            if np.isfinite(a) and np.isfinite(b):
                axes.plot([at(a), at(b)], [y, y], color=shades[name], lw=2, solid_capstyle="butt", zorder=2)
            axes.plot(at(value), y, "o", ms=5, color=shades[name], zorder=3, label=label(name) if not place else None)
            axes.text(1.04, y, f"{value:.3g}", color=shades[name], va="center", fontsize=8.5)
    axes.set(xlim=(-0.03, 1.22), ylim=(len(terms) - 0.45, -0.55), xticks=[])
    axes.set_yticks(range(len(terms)), [label(term) for term in terms])
    axes.tick_params(axis="y", length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=len(fits), frameon=False, handletextpad=0.3)
    return figure


def _span(term: str, fits: Mapping[str, Any], intervals: Mapping[str, Any]) -> tuple[float, float] | None:
    """What a term's strip shows: all intervals, and zero unless it is far away."""
    ends = [*(intervals[name][term] for name in fits), *((fit.coefficients[term],) * 2 for fit in fits.values())]
    known = np.array([value for pair in ends for value in pair if np.isfinite(value)])
    if not known.size:
        return None
    low, high = float(known.min()), float(known.max())
    width = high - low or max(abs(high), 1.0)
    if low > 0 and low < 0.6 * width:
        low = 0.0
    if high < 0 and -high < 0.6 * width:
        high = 0.0
    pad = 0.04 * (high - low or width)
    return low - pad, high + pad


def _width(span: tuple[float, float] | None) -> float:
    assert span is not None
    return span[1] - span[0]


@in_style
def plot_rows(fit: Any, chosen: np.ndarray) -> Any:
    """How improbable every row is under a fit, with the rows that do not belong marked by their labels.

    Heights are −log10 of the two-sided tail probability in the core (of the probability that the label is right, where labels
    may be wrong), cut off at 16.
    """
    with np.errstate(divide="ignore"):
        depth = np.minimum(-np.log10(fit.judgement.belonging), DEEPEST)
    rows = np.arange(len(depth))
    plain = np.setdiff1d(rows, chosen)
    if len(plain) > MOST_POINTS:
        plain = plain[:: -(-len(plain) // MOST_POINTS)]
    figure, axes = _figure(2.7)
    axes.plot(plain, depth[plain], "o", ms=2.6 if len(rows) > 300 else 4, color=QUIET, mew=0, alpha=0.7)
    shown = chosen[:MOST_POINTS]
    axes.plot(shown, depth[shown], "o", ms=4.5, color=MARK, mew=0)
    for row, called in zip(chosen[:8], fit.row_labels.of(chosen[:8])):
        axes.annotate(
            label(str(called), 12),
            (row, depth[row]),
            (0, 5),
            textcoords="offset points",
            fontsize=8.5,
            color=MARK,
            ha="center",
        )
    axes.set(xlabel="row", ylabel="−log₁₀ tail probability")
    axes.set_ylim(0, max(3.0, 1.15 * float(depth.max(initial=0.0))))
    axes.xaxis.get_major_locator().set_params(integer=True)
    return figure


@in_style
def plot_prior(fit: Any) -> Any:
    """The fitted law of the rows' own values, and where the rows were found, each shrunk as far as it says little."""
    draw = {"density": _own_values, "shifts": _shifts, "doubts": _doubts}.get(fit.fitted.law.picture)
    if draw is None:
        raise ModelError("the fitted model gives rows nothing of their own, so there is no prior to draw.")
    return draw(fit)


def _own_values(fit: Any) -> Any:
    """Rows' own values as found, under the density of their fitted law."""
    source, fitted = fit.source, fit.fitted
    own = fitted.law.own_values(source.design.y, source.predictor, fitted.phi, lambda: fit.posterior().mean)
    grid = np.linspace(own.low, own.high, 601)
    figure, axes = _figure(2.6)
    bins = min(60, max(12, int(np.sqrt(len(own.by_row)))))
    axes.hist(own.by_row, bins=bins, density=True, color="#c9d6da", label="rows, as found")
    axes.plot(grid, own.density(grid), color=ROBUST, lw=1.8, label=own.prior)
    axes.plot(own.by_row, np.zeros(len(own.by_row)), "|", ms=7, color=MARK, alpha=0.35, clip_on=False)
    if own.unbounded:
        axes.set_ylim(0, min(axes.get_ylim()[1], 2.5 * float(np.histogram(own.by_row, 12, density=True)[0].max())))
    axes.set(xlabel=own.axis, ylabel="density", yticks=[])
    figure.legend(loc="outside upper right", ncols=2, frameon=False, fontsize=8.5, handlelength=1.4, columnspacing=1)
    return figure


def _shifts(fit: Any) -> Any:
    """Sparse shifts: most rows keep the common line exactly."""
    shifts = fit.shifts
    moved = np.flatnonzero(shifts)
    figure, axes = _figure(2.6)
    axes.axhline(0.0, color=QUIET, lw=1)
    axes.vlines(moved, 0.0, shifts[moved], color=ROBUST, lw=1.4)
    axes.plot(moved, shifts[moved], "o", ms=4, color=ROBUST)
    axes.set(xlabel="row", ylabel="shift of the row's predictor", xlim=(-0.02 * len(shifts), 1.02 * len(shifts)))
    axes.set_title(f"{len(moved)} of {len(shifts)} rows are shifted")
    return figure


def _doubts(fit: Any) -> Any:
    wrong = np.sort(1.0 - fit.tail_probabilities)[::-1]
    flip = fit.fitted.shared["flip"]
    figure, axes = _figure(2.6)
    axes.fill_between(np.arange(1, len(wrong) + 1), wrong, step="mid", color="#c9d6da", lw=0)
    axes.step(
        np.arange(1, len(wrong) + 1), wrong, where="mid", color=ROBUST, lw=1.6, label="probability of a wrong label"
    )
    axes.axhline(flip, color=QUIET, ls=(0, (2, 2)), lw=1, label=f"fitted share of wrong labels, {flip:.3g}")
    axes.set(xlabel="rows, the most doubtful first", ylabel="probability", ylim=(0, 1), xlim=(0.5, len(wrong) + 0.5))
    figure.legend(loc="outside upper right", ncols=2, frameon=False, fontsize=8.5, handlelength=1.4, columnspacing=1)
    return figure


@in_style
def plot_pit(fits: Mapping[str, Any]) -> Any:
    """Histograms of the probability integral transform: flat where predictions are calibrated.

    For counts the transform is an interval and its mass is spread evenly over it (Czado, Gneiting & Held 2009). Shaded is
    where 95 % of flat histograms lie, bar by bar.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 2.3), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(fits), sharey=True))
    edges = np.linspace(0.0, 1.0, BINS + 1)
    for axes, (name, fit) in zip(panels, fits.items()):
        heights = pit_heights(fit)
        off = 1.96 * np.sqrt((BINS - 1.0) / fit.weight.sum())
        axes.axhspan(max(0.0, 1.0 - off), 1.0 + off, color="#e7ecee", lw=0)
        axes.axhline(1.0, color=QUIET, lw=1)
        axes.bar(
            edges[:-1], heights, np.diff(edges), align="edge", color=colours(fits)[name], alpha=0.75, ec="white", lw=0.7
        )
        axes.set_title(label(name))
        axes.set(xlim=(0, 1))
        axes.set_xticks([0, 0.5, 1], ["0", "½", "1"])
    panels[0].set_ylabel("relative frequency")
    figure.supxlabel("probability of a smaller value than the one seen", fontsize=9)
    return figure


def pit_heights(fit: Any, bins: int = BINS) -> np.ndarray:
    """Heights of the histogram, with mean 1: each row's mass spread evenly between P(Y < y) and P(Y ≤ y)."""
    (below, upto), weight = fit.pit, fit.weight
    edges = np.linspace(0.0, 1.0, bins + 1)
    width = upto - below
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(
            width[:, None] > 0,
            np.clip((edges - below[:, None]) / np.where(width > 0, width, 1.0)[:, None], 0.0, 1.0),
            edges >= upto[:, None],
        )
    share[:, 0], share[:, -1] = 0.0, 1.0
    return bins * np.diff(weight @ share) / weight.sum()


def as_png(figure: Any, dpi: int = 170) -> bytes:
    """The figure as a PNG file."""
    import io

    from matplotlib import rc_context

    buffer = io.BytesIO()
    with rc_context(STYLE):
        figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def listed(items: Iterable[Any]) -> str:
    """``1, 2 and 3`` for captions."""
    texts = [str(item) for item in items]
    return texts[0] if len(texts) == 1 else ", ".join(texts[:-1]) + " and " + texts[-1] if texts else "none"
