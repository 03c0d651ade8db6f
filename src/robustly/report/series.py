"""What does a series' page say? How it was fitted, what stands out, how its components go, and what comes next."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from robustly.report import html, plots
from robustly.result import persist
from robustly.series import plots as pictures

MOST_STEPS = 50


def sentences(fit: Any, fdr: float = 0.05) -> list[str]:
    """The findings in a few sentences."""
    said = []
    for site, law in fit.hyperparameters.items():
        digits = 2 if law["dof"] < 10 else 0
        heavy = f"{law['dof']:.{digits}f} degrees of freedom" if np.isfinite(law["dof"]) else "normal tails"
        said.append(f"The disturbance “{site}” has {heavy} and scale {law['scale']:.3g}.")
    gain = fit.log_likelihood - fit.classical_log_likelihood
    error = f" (± {fit.log_likelihood_error:.2f})" if fit.log_likelihood_error > 0 else ""
    word = "bound of the log likelihood" if fit.is_bound else "log likelihood"
    said.append(
        f"The {word} is {fit.log_likelihood:.3f}{error}, that of the plain model {fit.classical_log_likelihood:.3f}: "
        f"{'a gain' if gain >= 0 else 'a loss'} of {abs(gain):.2f} nats."
    )
    if not all(fit.break_sites):
        said.append(_counted(fit, "outlier", fit.outliers(fdr), fit.outlier_probability, fdr))
    if any(fit.break_sites):
        said.append(_counted(fit, "break", fit.breaks(fdr, within=pictures.NEAR), fit.break_probability, fdr))
    return [*said, *(note[0].upper() + note[1:] for note in fit.notes)]


def _counted(fit: Any, word: str, found: np.ndarray, probability: np.ndarray, fdr: float) -> str:
    if len(found):
        listed = plots.listed(f"{fit.steps[i]}" for i in found[:5])
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        return (
            f"{len(found)} {word}{'s' if len(found) > 1 else ''} at a false discovery rate of {fdr:g}: {listed}{more}."
        )
    top = int(np.argmax(probability))
    return f"No {word} at a false discovery rate of {fdr:g}; the most probable is {fit.steps[top]} ({probability[top]:.2f})."


def marked_steps(fit: Any, most: int = MOST_STEPS) -> pd.DataFrame:
    """Steps by the larger of their probabilities of being an outlier or a break."""
    columns: dict[str, Any] = {"step": fit.steps, "row": np.arange(len(fit.steps))}
    if np.ndim(fit.values) == 1:
        columns["value"] = fit.values
    largest = np.zeros(len(fit.steps))
    if not all(fit.break_sites):
        columns["P(outlier)"] = fit.outlier_probability
        largest = np.maximum(largest, fit.outlier_probability)
    if any(fit.break_sites):
        columns["P(break)"] = fit.break_probability
        columns["P(break within 2 steps)"] = fit.break_probability_within(pictures.NEAR)
        largest = np.maximum(largest, fit.break_probability)
    frame = pd.DataFrame(columns)
    chosen = np.argsort(-largest, kind="stable")
    return frame.iloc[chosen[: max(5, min(most, int((largest > 0.1).sum())))]]


def series_page(
    fit: Any, *, title: str = "A robust time series", data: str = "", ahead: Any = None, fdr: float = 0.05
) -> str:
    """The page as HTML; `ahead` is a forecast to draw and list."""
    single = np.ndim(fit.values) == 1
    shown = []
    if single:
        alt = "The series with its smoothed level, marked outliers and breaks" + (
            " and the forecast." if ahead else "."
        )
        shown.append(html.picture(plots.as_png(pictures.plot_series(fit, ahead, fdr)), alt))
    sections = [("The series", "".join(shown))] if shown else []
    sections.append(("Steps that stand out", html.table(marked_steps(fit), caption="Most probable outliers and breaks")
                     + html.paragraph("Probabilities are those of the wide part of a two-part law of each disturbance, a normal "
                                      "core and rare wide ones. A break is listed at the first value after it; where it is not sure at which "
                                      "step it happened, look at the probability that it lies within two.")))  # fmt: skip
    sections.append(
        ("Components", html.picture(plots.as_png(pictures.plot_components(fit)), "Smoothed components with bands."))
    )
    sections.append(
        ("Precision by step", html.picture(plots.as_png(pictures.plot_precision(fit)), "Expected precision by step."))
    )
    if ahead is not None:
        table = ahead.to_frame(0.9).reset_index()
        sections.append(("What comes next", html.table(table, caption="Median and 90 % interval", sortable=False)))
    told = fit.summary()
    estimates = told.to_frame().reset_index()
    facts = html.facts([(name, html.text(value)) for name, value in told.heading.items()])
    sections.append(
        ("Estimates, and how the fit ended", facts + html.table(estimates, caption="Estimates", sortable=False))
    )
    lead = f"{len(fit.steps)} steps, {int(fit.observed.sum())} with a value" + (f", from {data}." if data else ".")
    opening = f'<div class="short">{html.items(sentences(fit, fdr))}</div>'
    return html.page(title, lead, sections, opening)


def write_series_page(fit: Any, path: str | os.PathLike[str], **options: Any) -> Path:
    """Write the page whole or not at all."""
    with persist.atomic(path) as stream:
        stream.write(series_page(fit, **options).encode())
    return Path(path)
