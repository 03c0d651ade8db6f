"""What does a regression's page say? What was fitted and how it ended, what moved, who does not belong, and how sure it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from robustly.errors import ModelError
from robustly.glm.asked import law_asked
from robustly.glm.fit import fit_glm
from robustly.glm.formula_frames import as_pandas
from robustly.glm.result import regression_of
from robustly.report import html, plots
from robustly.report.findings import Findings, shortened
from robustly.result import persist
from robustly.result.fit import Fit

MOST_ROWS = 200
MOST_COLUMNS = 12
PAPER = (
    "Wang, C. and Blei, D. M. (2018). A general method for robust Bayesian modeling. Bayesian Analysis 13(4), 1163–1191. "
    "doi:10.1214/17-BA1090"
)


def regression_page(
    found: Findings, *, title: str, data: str = "", formula: str = "", lines: Callable[[int], int | None] | None = None
) -> str:
    """The page of a robust fit beside the classical one, as HTML.

    Args:
        found: both fits; see :class:`~robustly.report.findings.Findings`.
        title: the heading.
        data, formula: where the rows came from and what was asked for, in words.
        lines: gives the line of the file in which a row stands, or None.
    """
    return html.page(title, _lead(found, data), parts(found, data=data, formula=formula, lines=lines), opening(found))


def write_page(path: str | os.PathLike[str], text: str) -> None:
    """Write a page whole or not at all."""
    with persist.atomic(path) as stream:
        stream.write(text.encode())


def write_report(fit: Fit, path: str | os.PathLike[str], *, title: str, data: Any = None) -> None:
    """Write the page of a regression beside the classical one, which is fitted to the same rows."""
    source: Any = fit.source
    model = regression_of(fit)
    classical = fit
    if fit.asked.get("local") is not None:
        classical = fit_glm(
            source.design,
            model.fitted.family,
            local=None,
            formula=model.formula,
            needs=model.needs,
            labels=fit.row_labels,
        )
    found = Findings(fit, classical, frame=None if data is None else as_pandas(data))
    asked = (
        ""
        if model.formula is None
        else " + ".join([model.formula.text, *(f"offset({one})" for one in model.formula.offset_texts)])
    )
    write_page(path, regression_page(found, title=title, formula=asked))


def opening(found: Findings) -> str:
    return f'<div class="short">{html.items(found.sentences())}</div>'


def parts(
    found: Findings, *, data: str = "", formula: str = "", lines: Callable[[int], int | None] | None = None
) -> list[tuple[str, str]]:
    """The sections of the page: headings and HTML."""
    return [
        ("What was fitted, and how it ended", _fitted(found, data, formula)),
        ("Coefficients", _coefficients(found)),
        ("Rows that do not belong", _outliers(found, lines)),
        ("Rows that moved the classical fit", _moved_rows(found, lines)),
        ("How rows differ", _prior(found)),
        ("Are predictions calibrated?", _calibration(found)),
        ("How sure is this?", _notes(found)),
        ("How to cite", _cite()),
    ]


def _lead(found: Findings, data: str) -> str:
    where = f" of {shortened(data, 80)}" if data else ""
    return f"{len(found.robust.weight)} rows{where}, fitted robustly and classically."


def _fitted(found: Findings, data: str, formula: str) -> str:
    robust = found.robust
    pairs = []
    if data:
        pairs.append(("data", f'<code class="clip">{html.text(data)}</code>'))
    if formula:
        pairs.append(("formula", f'<code class="clip">{html.text(formula)}</code>'))
    pairs += [
        ("family", html.text(repr(robust.fitted.family))),
        ("local", html.text(law_asked(robust.fitted.family, robust.asked).describe().local)),
        ("rows", _counted_rows(robust)),
        ("robust fit", _ended(robust)),
        ("classical fit", _ended(found.classical)),
    ]
    scores = found.comparison.scores.rename_axis("model").reset_index()
    scores = scores.drop(columns=["outcome", "spread"])
    shared = {**robust.shared}
    told = ", ".join(f"{name} {html.number(value)}" for name, value in shared.items())
    if told:
        pairs.insert(-2, ("shared by all rows", html.text(told)))
    return html.facts(pairs) + html.table(
        scores, sortable=False, digits=6, caption="LOO: log predictive density of each row given all others, summed."
    )


def _counted_rows(fit: Any) -> str:
    gone = len(fit.row_labels.dropped)
    return f"{len(fit.weight)}" + (f", and {gone} dropped for missing values" if gone else "")


def _ended(fit: Any) -> str:
    kind = "good" if fit.outcome.converged else "bad"
    return f'<span class="{kind}">{html.text(fit.outcome.kind)}</span>: {html.text(fit.outcome.text)}'


def _coefficients(found: Findings) -> str:
    both = {"robust": found.robust, "classical": found.classical}
    frame = found.coefficients
    shown = frame.rename_axis("term").reset_index()
    told = "; ".join(
        f"{shortened(term, 30)} {html.number(line['robust'], 3)} robust, {html.number(line['classical'], 3)} classical"
        for term, line in frame.head(12).iterrows()
    )
    try:
        image = html.picture(
            plots.as_png(plots.plot_coefficients(both)),
            f"Estimates with 95 % intervals: {told}.",
            "Estimates with 95 % intervals. Every term has its own scale; the dashed line is zero where zero is near."
            + (f" The {plots.MOST_TERMS} terms that moved most." if len(frame) > plots.MOST_TERMS else ""),
        )
    except ModelError as error:
        image = html.paragraph(str(error))
    caption = "Estimates and standard errors; moved: distance between the two in robust standard errors."
    return image + html.table(shown, caption=caption)


def _outliers(found: Findings, lines: Callable[[int], int | None] | None) -> str:
    fit, chosen = found.robust, found.outliers
    if chosen is None:
        return html.paragraph("This family has no distribution function, so rows have no tail probabilities.")
    tails = fit.judgement.belonging
    how = fit.judgement.rule(found.fdr)
    deepest = np.argsort(tails, kind="stable")[:3]
    called = fit.row_labels.of(np.arange(len(tails)))
    alt = (
        f"Tail probability of all {len(tails)} rows; {len(chosen)} are marked. The least probable rows are "
        + plots.listed(f"{shortened(called[row])} ({tails[row]:.2g})" for row in deepest)
    )
    many = " Only some of the other rows are drawn." if len(tails) - len(chosen) > plots.MOST_POINTS else ""
    image = html.picture(
        plots.as_png(plots.plot_rows(fit, chosen)), alt + ".", "Marked: rows that do not belong." + many
    )
    if not len(chosen):
        return html.paragraph(how, "No row stands out.") + image
    more = f" The first {MOST_ROWS} of {len(chosen)}." if len(chosen) > MOST_ROWS else ""
    listing = html.table(_shown(found, chosen[:MOST_ROWS], lines), caption=_counting(lines) + more)
    return html.paragraph(how) + image + listing


def _moved_rows(found: Findings, lines: Callable[[int], int | None] | None) -> str:
    rows = found.comparison.rows
    if not len(rows):
        return html.paragraph("The classical fit keeps no rows to look at.")
    told = html.paragraph(
        "Influence is how far the classical coefficients move when the row is left out, in units of their covariance "
        "(Cook's distance); surprise is minus the log density of the row."
    )
    shown = rows.copy()
    if lines is not None and lines(0) is not None:
        shown.insert(1, "line", [lines(int(row)) for row in rows["row"]])
    return told + html.table(shown, caption=_counting(lines))


def _shown(found: Findings, which: np.ndarray, lines: Callable[[int], int | None] | None) -> pd.DataFrame:
    frame = found.rows(which)
    if lines is not None and lines(0) is not None:
        frame.insert(1, "line", [lines(int(row)) for row in frame["row"]])
    return frame.iloc[:, : 8 + MOST_COLUMNS]


def _counting(lines: Callable[[int], int | None] | None) -> str:
    if lines is not None and lines(0) is not None:
        return "Data rows count from 0; row 0 is line 2 of the file."
    return "Rows count from 0."


def _prior(found: Findings) -> str:
    fit = found.robust
    try:
        figure = plots.plot_prior(fit)
    except ModelError as error:
        if fit.outcome.kind == "boundary":
            return html.paragraph("Rows do not differ, and the classical model is the answer:", str(fit.outcome))
        return html.paragraph(str(error))
    shared = ", ".join(f"{name} {html.number(value)}" for name, value in fit.shared.items())
    told = f"The fitted law of the rows' own values: {shared}."
    return html.picture(plots.as_png(figure), told, fit.fitted.law.picture_caption)


def _calibration(found: Findings) -> str:
    both = {"robust": found.robust, "classical": found.classical}
    try:
        heights = {name: plots.pit_heights(fit) for name, fit in both.items()}
        image = plots.as_png(plots.plot_pit(both))
    except ModelError as error:
        return html.paragraph(str(error))
    told = "; ".join(f"{name}: " + ", ".join(f"{one:.2f}" for one in each) for name, each in heights.items())
    return html.picture(
        image,
        f"Histograms of the probability integral transform in {plots.BINS} bins, 1 is calibrated. {told}.",
        "Flat is good. Bars high at both ends: responses vary more than the model allows; high in the middle: less. Shaded: where "
        "95 % of bars lie if the model holds.",
    )


def _notes(found: Findings) -> str:
    pairs = []
    for name, fit in (("robust", found.robust), ("classical", found.classical)):
        error = fit.integration_error()
        told = f"{fit.approximation}; with twice the points the log likelihood changes by {error:.2g} nats"
        pairs.append(
            (f"{name}: evidence by", html.text(told if error or not fit.fitted.law.closed else fit.approximation))
        )
    notes = [
        f"{name}: {note}"
        for name, fit in (("Robust", found.robust), ("Classical", found.classical))
        for note in fit.notes
    ]
    notes += found.robust.fitted.law.caveats
    told = html.items(notes) if notes else html.paragraph("No notes: all parameters are identified by these rows.")
    return html.facts(pairs) + told


def _cite() -> str:
    from robustly import __version__

    return html.items([f"The method: {PAPER}.", f"The software: robustly, version {__version__}."])
