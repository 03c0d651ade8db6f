"""What does a robust series look like? The series with its marked steps, its components, the precisions, the forecast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from robustly.errors import ModelError
from robustly.result.figure_style import in_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from robustly.series.forecast import Forecast
    from robustly.series.result import FittedSeries

LINE, QUIET, OUTLIER, BREAK, BAND = "#1d6f8a", "#8a9296", "#a3195b", "#b8552f", "#c9dde3"
WIDTH = 6.4
MOST_NAMED = 6
# A break is shown where the series is sure of one within so many steps.
NEAR = 2
MOST_TICKS = 7


def _new_figure(rows: int, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, np.atleast_1d(figure.subplots(rows, 1, sharex=True))


def _name_steps(axes: Any, steps: np.ndarray) -> None:
    """A few of the steps' names below the axis."""
    length = len(steps)
    places = np.unique(np.linspace(0, length - 1, min(MOST_TICKS, length)).astype(int))
    axes.set_xticks(places, [_shortened(steps[i]) for i in places])
    axes.set_xlim(-0.01 * length, 1.01 * length)


def _shortened(text: Any) -> str:
    shown = "".join(one if one.isprintable() else "▯" for one in str(text))
    return shown.removesuffix(" 00:00:00")[:12]


def _only_series(fit: FittedSeries) -> np.ndarray:
    if np.ndim(fit.values) != 1:
        raise ModelError(f"this plot is for one series; the model has {fit.values.shape[1]}. Use plot('precision').")
    return fit.values


@in_style
def plot_series(fit: FittedSeries, ahead: Forecast | None = None, fdr: float = 0.05) -> Figure:
    """The series, its level with a 90 % band, outliers and breaks; and the forecast `ahead`, if one is given."""
    values, steps = _only_series(fit), fit.steps
    name = "level" if "level" in fit.smoothed else "signal"
    mean, sd = fit.smoothed[name]
    at = np.arange(len(values))
    figure, panels = _new_figure(1, 3.1)
    axes = panels[0]
    axes.fill_between(at, mean - 1.645 * sd, mean + 1.645 * sd, color=BAND, lw=0)
    axes.plot(at, values, color=QUIET, lw=0.9, marker=".", ms=3, label="values")
    axes.plot(at, mean, color=LINE, lw=1.5, label=f"{name} and 90 % band")
    odd = fit.outliers(fdr) if not all(fit.break_sites) else np.zeros(0, dtype=int)
    jumps = fit.breaks(fdr, within=NEAR) if any(fit.break_sites) else np.zeros(0, dtype=int)
    if len(odd):
        axes.plot(odd, values[odd], "o", ms=6.5, mfc="none", mec=OUTLIER, mew=1.4, label="outliers")
        for i in odd[:MOST_NAMED]:
            above = values[i] >= mean[i]
            axes.annotate(_shortened(steps[i]), (i, values[i]), (0, 7 if above else -14), textcoords="offset points",
                          ha="center", fontsize=7.5, color=OUTLIER)  # fmt: skip
    for number, i in enumerate(jumps):
        axes.axvline(i - 0.5, color=BREAK, lw=1.1, ls=(0, (4, 2)), label="breaks" if number == 0 else None)
        if number < MOST_NAMED:
            axes.annotate(_shortened(steps[i]), (i - 0.5, 1.0), (3, -9), xycoords=("data", "axes fraction"),
                          textcoords="offset points", fontsize=7.5, color=BREAK)  # fmt: skip
    named = steps
    if ahead is not None:
        low, high = ahead.interval(0.9)
        later = len(values) + np.arange(len(low))
        axes.fill_between(later, low, high, color="#e7d3c8", lw=0)
        axes.plot(later, ahead.quantile(0.5), color=BREAK, lw=1.4, label="forecast, 90 %")
        named = np.concatenate([steps, np.array(ahead.steps)])
    _name_steps(axes, named)
    figure.legend(loc="outside upper right", ncols=5, frameon=False, fontsize=8.5, handlelength=1.5, columnspacing=1.2)
    return figure


@in_style
def plot_components(fit: FittedSeries) -> Figure:
    """Every smoothed component with its 90 % band, one below the other."""
    names = [name for name in fit.smoothed if name != "signal"][:6] or ["signal"]
    figure, panels = _new_figure(len(names), 0.5 + 1.25 * len(names))
    for axes, name in zip(panels, names):
        mean, sd = fit.smoothed[name]
        at = np.arange(len(mean))
        axes.fill_between(at, mean - 1.645 * sd, mean + 1.645 * sd, color=BAND, lw=0)
        axes.plot(at, mean, color=LINE, lw=1.2)
        axes.set_title(name)
    _name_steps(panels[-1], fit.steps)
    return figure


@in_style
def plot_precision(fit: FittedSeries) -> Figure:
    """E[λ] of every localized disturbance by step: near zero where it is out of the ordinary."""
    figure, panels = _new_figure(len(fit.sites), 0.5 + 1.4 * len(fit.sites))
    for axes, name, weight, is_break in zip(panels, fit.sites, fit.weights, fit.break_sites):
        colour = BREAK if is_break else OUTLIER
        # The disturbance of step t moves the state of step t + 1.
        at = np.arange(len(weight)) + is_break
        axes.vlines(at, weight, 1.0, color=colour, lw=max(0.6, min(2.0, 250 / len(weight))))
        axes.axhline(1.0, color=QUIET, lw=0.8)
        axes.set_title(f"precision of {name}, 1 is usual")
        axes.set_ylim(0, max(1.05, 1.05 * float(weight.max())))
    _name_steps(panels[-1], fit.steps)
    return figure
