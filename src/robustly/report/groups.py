"""What does a mixed model's page show? Estimates in lme4's order, effects with their posteriors, and who does not belong."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pandas as pd

from robustly.report import html
from robustly.report.plots import MARK, QUIET, ROBUST, WIDTH, as_png, in_style, label, listed
from robustly.result import persist
from robustly.result.fit import Fit

MOST_GROUPS = 60
LISTED = 8


@in_style
def plot_effects(fit: Fit, fdr: float = 0.05, most: int = MOST_GROUPS) -> Any:
    """Groups' effects in order, with 95 % posterior intervals: a caterpillar. Groups that do not belong are marked.

    Of more groups than `most`, the ends and evenly many between are drawn.
    """
    from matplotlib.figure import Figure

    frame = fit.group_effects
    terms = [name for name in frame.columns if f"sd {name}" in frame.columns]
    marked = np.isin(np.arange(len(frame)), fit.outlier_places(fdr))
    shown = min(len(frame), most)
    figure = Figure(figsize=(WIDTH, 0.9 + 0.15 * shown), layout="constrained")
    for axes, term in zip(np.atleast_1d(figure.subplots(1, len(terms), squeeze=False)[0]), terms):
        order = np.argsort(frame[term].to_numpy(), kind="stable")
        if len(order) > shown:
            order = order[np.unique(np.linspace(0, len(order) - 1, shown).round().astype(int))]
        mean, half = frame[term].to_numpy()[order], 1.96 * frame[f"sd {term}"].to_numpy()[order]
        for place, (value, away, odd) in enumerate(zip(mean, half, marked[order])):
            shade = MARK if odd else ROBUST
            axes.plot([value - away, value + away], [place, place], color=shade, lw=1.2, solid_capstyle="round")
            axes.plot([value], [place], "o", color=shade, ms=3)
        axes.axvline(0.0, color=QUIET, lw=1, ls=(0, (2, 2)), zorder=0)
        axes.set_title(label(term))
        axes.set_ylim(-0.8, len(order) - 0.2)
        axes.set_yticks(range(len(order)), [label(one, 14) for one in frame.index[order]], fontsize=6)
        axes.set_xlabel(f"effect of {label(fit.unit)}")
    return figure


def group_sentences(fit: Fit, fdr: float = 0.05) -> list[str]:
    """What a reader should take away."""
    found = fit.outlier_places(fdr)
    labels = [str(one) for one in fit.group_effects.index[found]]
    told = [fit.told["local"][0].upper() + fit.told["local"][1:] + "."]
    if fit.outcome.kind == "boundary":
        told.append(fit.outcome.text[0].upper() + fit.outcome.text[1:])
    if labels:
        more = f" and {len(labels) - LISTED} more" if len(labels) > LISTED else ""
        told.append(
            f"{len(labels)} of {len(fit.weight)} groups do not belong at a false discovery rate of {fdr:g}: "
            f"{listed(labels[:LISTED])}{more}."
        )
    else:
        told.append(f"No group stands out at a false discovery rate of {fdr:g}.")
    light = fit.group_effects["weight"]
    if float(light.min()) < 0.5:
        told.append(
            f'The group with the least weight is "{light.idxmin()}" ({light.min():.2f} of a group in the middle).'
        )
    return told


def group_page(fit: Fit, *, title: str, data: str = "", formula: str = "", fdr: float = 0.05) -> str:
    """The page as HTML."""
    told = fit.summary()
    facts = [(name, html.text(value)) for name, value in told.heading.items()]
    facts = [
        *([("data", html.text(data))] if data else []),
        *([("formula", html.text(formula))] if formula else []),
        *facts,
    ]
    components = fit.variance_components.reset_index()
    effects = fit.group_effects.rename_axis("group").reset_index().sort_values("tail", kind="stable").head(MOST_GROUPS)
    picture = html.picture(
        as_png(plot_effects(fit, fdr)), f"Effects of {fit.unit} in order, with 95 % posterior intervals.",
        "Posterior means and 95 % intervals in order; groups that do not belong are marked.",
    )  # fmt: skip
    sections = [
        ("What was fitted, and how it ended", html.facts(facts)),
        (
            "How groups differ",
            html.table(components, sortable=False, caption="Intervals by profile likelihood; p: without it."),
        ),
        ("Coefficients", html.table(told.to_frame().reset_index(), sortable=False, caption="Estimates")),
        ("Effects of the groups", picture),
        ("Groups, the least probable first", html.table(effects.assign(group=effects["group"].astype(str)))),
    ]
    if told.notes:
        sections.append(("Notes", html.items(told.notes)))
    lead = f"{fit.row_count} rows in {len(fit.weight)} groups" + (f" of {data}." if data else ".")
    return html.page(title, lead, sections, f'<div class="short">{html.items(group_sentences(fit, fdr))}</div>')


def write_group_page(fit: Fit, path: str | os.PathLike[str], **options: Any) -> None:
    """Write the page whole or not at all."""
    with persist.atomic(path) as stream:
        stream.write(group_page(fit, **options).encode())


def groups_that_do_not_belong(fit: Fit, fdr: float) -> pd.DataFrame:
    """Effects, weights and tails of the groups listed at a false discovery rate."""
    return fit.group_effects.iloc[fit.outlier_places(fdr)].rename_axis("group").reset_index()
