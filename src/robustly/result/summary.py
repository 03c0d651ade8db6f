"""A fit in words and numbers: one table for the terminal, a notebook or a data frame."""

from __future__ import annotations

from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from robustly.result.estimates import deviations

if TYPE_CHECKING:
    import pandas as pd

    from robustly.result.fit import Fit

CHANCE = 0.05
MOST_TESTED = 20_000


class Summary:
    """A table with a heading and notes. ``str(summary)`` is text, notebooks show HTML, ``summary.frame`` is the data."""

    def __init__(
        self,
        heading: dict[str, str],
        columns: dict[str, np.ndarray],
        lines: tuple[str, ...],
        title: str,
        notes: list[str],
    ) -> None:
        self.heading = heading
        self.columns, self.lines, self.title = columns, lines, title
        self.notes = notes

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The numbers, a line for each estimate."""
        import pandas as pd

        return pd.DataFrame(self.columns, index=pd.Index(self.lines, name=self.title))

    def __str__(self) -> str:
        width = max((len(name) for name in self.heading), default=0) + 2
        lines = [f"{name + ':':<{width}}{value}" for name, value in self.heading.items()]
        if self.lines:
            lines += ["", *self._table()]
        if self.notes:
            lines += ["", *(f"* {note}" for note in self.notes)]
        return "\n".join(lines)

    __repr__ = __str__

    def _table(self) -> list[str]:
        """The frame as pandas would print it, whose import takes as long as a fit."""
        first = ["", self.title, *self.lines]
        told = [[line.ljust(max(map(len, first))) for line in first]]
        for name, numbers in self.columns.items():
            cells = [f" {name}", "", *("–" if np.isnan(one) else _four_digits(one) for one in numbers)]
            told.append([cell.rjust(max(map(len, cells))) for cell in cells])
        return [" ".join(line) for line in zip(*told)]

    def to_html(self) -> str:
        """The same as an HTML fragment, all text escaped."""
        head = "".join(f"<tr><th>{escape(n)}</th><td>{escape(v)}</td></tr>" for n, v in self.heading.items())
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        table = self.frame.to_html(float_format=_four_digits, na_rep="–", border=0) if self.lines else ""
        return f"<table>{head}</table>{table}<ul>{notes}</ul>"

    _repr_html_ = to_html

    def to_frame(self) -> pd.DataFrame:
        return self.frame


def _four_digits(value: float) -> str:
    return f"{value:.4g}"


def summarize(fit: Fit, kind: str = "information", groups: Any = None) -> Summary:
    """Estimates, standard errors, 95 % intervals, z (or t) and p of a regression's coefficients, and how the fit ended."""
    error = deviations(fit.covariance(kind, groups))
    intervals = fit.wald_intervals(0.95, kind, groups)
    columns = {"estimate": fit.estimates, "std. error": error}
    if fit.terms:
        from scipy.special import stdtr

        dof = fit.reference_dof(kind, groups)
        with np.errstate(divide="ignore", invalid="ignore"):
            z = np.where(np.arange(len(error)) < len(fit.terms), fit.estimates / error, np.nan)
        if np.isfinite(dof).any() and np.unique(dof[: len(fit.terms)]).size > 1:
            columns["dof"] = dof
        z = z / [fit.widening(label, kind) for label in fit.labels]
        columns |= {"t" if np.isfinite(dof).any() else "z": z, "p": 2.0 * stdtr(dof, -np.abs(z))}
    for place, name in enumerate(("2.5 %", "97.5 %")):
        columns[name] = np.array([intervals[label][place] for label in fit.labels])
    gone = fit.row_labels.dropped
    bound = " (a lower bound)" if fit.is_bound and "VI" in fit.approximation else ""
    heading = {
        **fit.told,
        "rows": f"{len(fit.weight) if fit.row_count is None else fit.row_count}"
        + (f", {len(gone)} dropped for missing values" if gone else ""),
        "log likelihood": f"{fit.log_likelihood:.4f}{bound}",
        "AIC, BIC": f"{fit.aic:.2f}, {fit.bic:.2f}",
        "evidence by": fit.approximation,
        "standard errors by": f"{fit.information} information" if kind == "information" else kind,
        "outcome": str(fit.outcome),
    }
    heading |= _whether_rows_differ(fit)
    for name, value in fit.derived.items():
        if name not in fit.labels and value is not None and np.ndim(value) == 0:
            heading[name] = _four_digits(float(value))
    return Summary(heading, columns, tuple(fit.labels), "term" if fit.terms else "parameter", list(fit.notes))


def _whether_rows_differ(fit: Fit) -> dict[str, str]:
    """Whether what rows have of their own could be chance: maximum likelihood finds a little of it in every other set of rows."""
    edges, told = getattr(fit.model, "edges", {}), []
    for name, chance in edge_chances(fit).items():
        if name in edges:  # a file may say anything of its labels
            verdict = "not distinguishable from" if chance > CHANCE else "other than"
            told.append(f"{name} {fit.parameters[name]:.3g}, {verdict} {edges[name]:g} (p = {chance:.2g})")
    return {"rows differ": "; ".join(told)} if told else {}


def edge_chances(fit: Fit) -> dict[str, float]:
    """p-values of the simpler law at the edge of each number that lets rows differ, by its name.

    By likelihood ratio, which takes a classical fit; of very many rows it is not asked unless a user does.
    """
    if "edge_chances" not in fit.saved:
        edges = getattr(fit.model, "edges", {})
        here = fit.source is not None and fit.outcome.converged and not fit.unit and len(fit.weight) <= MOST_TESTED
        asked = [name for name in edges if name in fit.labels] if here else []
        fit.saved["edge_chances"] = {name: float(fit.test(f"{name} = {edges[name]:g}").pvalue) for name in asked}
    return fit.saved["edge_chances"]
