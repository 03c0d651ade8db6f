"""What do the runs look like? The paper's figures and their companions, with Monte-Carlo error bars, as PNG and SVG.

A point is the mean over repetitions and its bar one standard error; losses that span magnitudes are averaged as
logarithms (a geometric mean) and drawn on a logarithmic scale. Colours are Okabe and Ito's, told apart by people who see
fewer, and markers differ too.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from robustly.result.persist import atomic
from robustly.study.comparisons import LOSSES, MISDIRECTION, Lines, Loss, contrast, method_in_words, some
from robustly.study.regressions import Method, methods_of
from robustly.study.simulate import VARIANTS, Variant

Style = dict[str, Any]
# variant, with intercept or not (None: as it comes), methods, words
Row = tuple[Variant, bool | None, list[Method], str]
STYLES: dict[str, Style] = {
    "classical": {"color": "#D55E00", "marker": "o"},
    "plain": {"color": "#D55E00", "marker": "o"},
    "cache": {"color": "#E69F00", "marker": "^", "linestyle": "--"},
    "robust": {"color": "#0072B2", "marker": "s"},
    "algorithm1": {"color": "#56B4E9", "marker": "D", "linestyle": "--"},
    "nb": {"color": "#E69F00", "marker": "^"},
    "laplace": {"color": "#8c8c8c", "marker": "v"},
    "t4": {"color": "#CC79A7", "marker": "P"},
    "cauchy": {"color": "#000000", "marker": "X"},
    "label": {"color": "#009E73", "marker": "*"},
    "fixed0.1": {"color": "#8c8c8c", "marker": "v", "linestyle": ":"},
    "fixed0.5": {"color": "#009E73", "marker": "<", "linestyle": "--"},
    "fixed1": {"color": "#000000", "marker": ">", "linestyle": "-."},
}
PANEL = (3.1, 2.7)
ACROSS = 4
"""Panels side by side at most; one row of more is broken in two."""


@dataclass(frozen=True)
class Picture:
    """A figure that was written: its name, its caption, and its PNG."""

    name: str
    caption: str
    png: bytes


@dataclass(frozen=True)
class Curve:
    """One line of a panel."""

    words: str
    style: Style
    x: Sequence[float]
    middle: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def draw_all(folder: Path, lines: Lines) -> list[Picture]:
    """Draw every figure the lines allow, and write it as PNG and SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    made: list[Picture] = []
    for experiment in ("linear", "logistic", "poisson"):
        frame = lines.get(experiment)
        if frame is not None and len(frame):
            made += _regression_figures(folder, experiment, frame)
    if all(len(lines.get(name, ())) for name in ("linear", "logistic", "poisson")):
        made.append(_improvement(folder, lines))
    if len(lines.get("topics", ())):
        made.append(_draw_topics(folder, lines["topics"]))
    return made


def _regression_figures(folder: Path, experiment: str, lines: pd.DataFrame) -> list[Picture]:
    made: list[Picture] = []
    rows: list[Row]
    present = [v for v in VARIANTS[experiment] if (lines["variant"] == v.name).any()]
    losses = LOSSES[experiment]
    if experiment == "linear":
        rows = [(v, None, list(methods_of("linear", v.name)), f"{v.words}") for v in present]
        caption = "Linear regression: training noise of two kinds, clean test rows."
        return [_grid(folder, "linear", caption, lines, experiment, rows, losses)]
    for variant in present:
        methods = [one for one in methods_of(experiment, variant.name) if not one.name.startswith("fixed")]
        if experiment == "logistic":
            rows = [(variant, False, methods, "")]
            caption = f"Logistic regression: {variant.words} in the training rows."
            made.append(
                _grid(folder, f"logistic_{variant.name}", caption, lines, experiment, rows, (*losses, MISDIRECTION))
            )
            continue
        rows = [(variant, b, [m for m in methods if b in m.intercepts], _intercept(b)) for b in (True, False)]
        caption = f"Poisson regression: {variant.words} in the training rows."
        made.append(_grid(folder, f"poisson_{variant.name}", caption, lines, experiment, rows, losses))
        if variant.name == "lognormal":
            held = [
                m
                for m in methods_of(experiment, variant.name)
                if m.name in ("nb", "robust") or m.name.startswith("fixed")
            ]
            rows = [(variant, b, held, _intercept(b)) for b in (True, False)]
            caption = "The paper's separate study: the spread held at a value instead of fitted."
            made.append(_grid(folder, "poisson_held", caption, lines, experiment, rows, losses))
    return made


def _intercept(given: bool) -> str:
    return "with intercept" if given else "without intercept"


def _grid(
    folder: Path,
    name: str,
    caption: str,
    lines: pd.DataFrame,
    experiment: str,
    rows: Sequence[Row],
    losses: Sequence[Loss],
) -> Picture:
    """Variants or intercepts down, losses across."""
    across = len(losses) if len(losses) <= ACROSS else -(-len(losses) // 2)
    figure, axes = _panels(-(-len(rows) * len(losses) // across), across)
    panels = iter(axes.ravel())
    for variant, intercept, methods, words in rows:
        run = lines.loc[lines["variant"] == variant.name, "level"].unique()
        levels = [level for level in variant.levels if level in run]
        for place, (loss, axis) in enumerate(zip(losses, panels)):
            curves = []
            for method in methods:
                known = (some(lines, variant.name, level, method.name, intercept) for level in levels)
                three = [_summary(loss.of(each), loss.relative) for each in known]
                curves.append(Curve(method.words, STYLES[method.name], range(len(levels)), *zip(*three)))
            _panel(axis, curves, [f"{level:g}" for level in levels], variant.axis, loss.relative)
            # The plug-in NLL of a classical fit is its integrated one, and hides the others by magnitudes.
            above = loss.column == "nll_integrated" and loss.relative and _crop(axis, curves[1:])
            first = f"{loss.words} (classical above)" if above else loss.words
            axis.set_title(f"{first}\n{_sigma(words)}".rstrip(), fontsize=9)
            if place % across == 0:
                axis.set_ylabel("lower is better", fontsize=9)
    return _finish(folder, name, caption, figure, axes.ravel()[: len(rows) * len(losses)], list(panels))


def _sigma(words: str) -> str:
    """The letter that fonts have no good subscript for, set as mathematics."""
    return words.replace("σᵢ", r"$\sigma_i$")


def _crop(axis: Any, curves: Sequence[Curve]) -> bool:
    """End the scale a little above these curves, where the first one leaves it far below its top."""
    top = 1.15 * max(max(curve.high) for curve in curves)
    if not np.isfinite(top) or axis.get_ylim()[1] < 10.0 * top:
        return False
    bottom = 0.9 * min(min(curve.low) for curve in curves)
    axis.set_yscale("linear")
    axis.set_ylim(bottom, top)
    return True


def _summary(values: pd.Series, relative: bool) -> tuple[float, float, float]:
    """Mean, and one standard error below and above."""
    known = values.to_numpy(float)
    known = known[np.isfinite(known) & ((known > 0) | (not relative))]
    if not len(known):
        return np.nan, np.nan, np.nan
    seen = np.log(known) if relative else known
    error = seen.std(ddof=1) / np.sqrt(len(seen)) if len(seen) > 1 else 0.0
    three = np.array([seen.mean(), seen.mean() - error, seen.mean() + error])
    middle, low, high = np.exp(three) if relative else three
    return float(middle), float(low), float(high)


def _median(values: np.ndarray) -> tuple[float, float, float]:
    """The median, and the order statistics between which it lies two times in three."""
    ordered = np.sort(values)
    half = 0.5 * np.sqrt(len(ordered))
    low, high = int(np.floor(len(ordered) / 2 - half)), int(np.ceil(len(ordered) / 2 + half)) - 1
    return float(np.median(ordered)), float(ordered[max(low, 0)]), float(ordered[min(high, len(ordered) - 1)])


def _improvement(folder: Path, lines: Lines) -> Picture:
    """The paper's summary: what the robust model gains over the classical one."""
    figure, axes = _panels(1, 3)
    r2 = Loss("", "pR2", False, True)
    columns: list[tuple[str, str, list[tuple[str, str, Loss, bool | None, Style]]]] = [
        ("linear", "linear: gain in pR2", [
            ("sd", r"$\sigma_i$ a standard deviation", r2, None, {"color": "#0072B2", "marker": "s"}),
            ("variance", r"$\sigma_i$ a variance", r2, None, {"color": "#56B4E9", "marker": "D", "linestyle": "--"}),
        ]),
        ("logistic", "logistic: gain in log likelihood a row", [
            ("near", "plug-in", Loss("", "nll_plugin", False), None, {"color": "#E69F00", "marker": "^", "linestyle": "--"}),
            ("near", "integrated", Loss("", "nll_integrated", False), None, {"color": "#0072B2", "marker": "s"}),
        ]),
        ("poisson", "Poisson: gain in log likelihood a row", [
            ("lognormal", "plug-in", Loss("", "nll_plugin", False), True, {"color": "#E69F00", "marker": "^", "linestyle": "--"}),
            ("lognormal", "integrated", Loss("", "nll_integrated", False), True, {"color": "#0072B2", "marker": "s"}),
        ]),
    ]  # fmt: skip
    for axis, (experiment, title, wanted) in zip(axes[0], columns):
        frame = lines[experiment]
        curves, ticks, name = [], [], ""
        for variant, words, loss, intercept, style in wanted:
            found = next(v for v in VARIANTS[experiment] if v.name == variant)
            levels = [v for v in found.levels if ((frame["variant"] == variant) & (frame["level"] == v)).any()]
            gains = [-contrast(frame, variant, v, loss, "robust", "classical", intercept).differences for v in levels]
            three = [_median(each) for each in gains]
            curves.append(Curve(words, style, range(len(levels)), *zip(*three)))
            ticks, name = [f"{level:g}" for level in levels], found.axis
        _panel(axis, curves, ticks, name, False)
        if experiment == "poisson":
            axis.set_yscale("symlog", linthresh=1.0)
            axis.set_ylim(bottom=min(-0.5, *(1.5 * min(curve.low) for curve in curves)))
        axis.axhline(0.0, color="#444444", linewidth=0.8, zorder=1)
        axis.set_title(title, fontsize=9)
        axis.set_ylabel("higher is better", fontsize=9)
        axis.legend(frameon=False, fontsize=8)
    caption = "Improvement of the robust over the classical model: medians over repetitions, bars 68 % intervals."
    return _finish(folder, "improvement", caption, figure, ())


def _draw_topics(folder: Path, lines: pd.DataFrame) -> Picture:
    corpora = list(dict.fromkeys(lines["variant"]))
    across = min(len(corpora), 3)
    figure, axes = _panels(-(-len(corpora) // across), across)
    loss = LOSSES["topics"][0]
    for axis, corpus in zip(axes.ravel(), corpora):
        levels = sorted(lines.loc[lines["variant"] == corpus, "level"].unique())
        curves = []
        for method in [one for one in ("plain", "cache", "robust") if (lines["method"] == one).any()]:
            three = [_summary(loss.of(some(lines, corpus, level, method)), False) for level in levels]
            curves.append(Curve(method_in_words("topics", method), STYLES[method], range(len(levels)), *zip(*three)))
        _panel(axis, curves, [f"{level:g}" for level in levels], "number of topics", False)
        axis.set_title(corpus[:40], fontsize=9, parse_math=False)
        axis.set_ylabel("NLL per held-out word", fontsize=9)
    caption = "Topic models: document completion on held-out documents."
    return _finish(folder, "topics", caption, figure, axes.ravel()[: len(corpora)], list(axes.ravel()[len(corpora) :]))


def _panels(down: int, across: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(PANEL[0] * max(across, 1.6), PANEL[1] * down + 0.7), layout="constrained")
    return figure, figure.subplots(down, across, squeeze=False)


def _panel(axis: Any, curves: Sequence[Curve], ticks: Sequence[str], name: str, logarithmic: bool) -> None:
    middle = (len(curves) - 1) / 2
    for place, curve in enumerate(curves):
        # A little to the side each, so that bars at one level do not cover each other.
        x = np.asarray(curve.x, dtype=float) + 0.06 * (place - middle)
        y, low, high = (np.asarray(part, dtype=float) for part in (curve.middle, curve.low, curve.high))
        style = {"markersize": 4.5, "linewidth": 1.4, "elinewidth": 1.0, "capsize": 2.0} | curve.style
        _, caps, bars = axis.errorbar(x, y, yerr=np.maximum([y - low, high - y], 0.0), label=curve.words, **style)
        for part in (*caps, *bars):
            part.set_alpha(0.6)
    axis.set_xticks(range(len(ticks)), ticks)
    axis.set_xlabel(name, fontsize=9)
    axis.set_xlim(-0.5, len(ticks) - 0.5)
    if logarithmic:
        from matplotlib.ticker import NullFormatter, StrMethodFormatter

        axis.set_yscale("log")
        low, high = axis.get_ylim()
        narrow = high < 8.0 * low
        axis.yaxis.set_minor_formatter(StrMethodFormatter("{x:g}") if narrow else NullFormatter())
        if narrow:
            axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.grid(axis="y", color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(which="both", labelsize=8)


def _finish(
    folder: Path, name: str, caption: str, figure: Any, legend_of: Iterable[Any], spare: Sequence[Any] = ()
) -> Picture:
    """Write a figure; one legend for the panels in `legend_of`, in a spare panel if there is one."""
    import matplotlib

    entries: dict[str, Any] = {}
    for axis in legend_of:
        handles, words = axis.get_legend_handles_labels()
        entries |= {word: handle for handle, word in zip(handles, words) if word not in entries}
    for axis in spare:
        axis.set_axis_off()
    shown = {"handles": entries.values(), "labels": entries.keys(), "frameon": False, "fontsize": 9}
    if entries and spare:
        spare[0].legend(loc="center left", **shown)
    elif entries:
        columns = min(len(entries), 4 if figure.get_figwidth() > 10.0 else 2)
        figure.legend(loc="outside lower center", ncols=columns, **shown)
    shots = {}
    with matplotlib.rc_context({"svg.hashsalt": "robustly"}):
        for kind in ("png", "svg"):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=140, metadata={"Date": None} if kind == "svg" else None)
            shots[kind] = buffer.getvalue()
            with atomic(folder / f"{name}.{kind}") as stream:
                stream.write(shots[kind])
    return Picture(name, caption, shots["png"])
