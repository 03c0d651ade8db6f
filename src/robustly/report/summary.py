"""A fit in words and numbers: one table for the terminal, a notebook or a data frame."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np
import pandas as pd


class Summary:
    """A table with a heading and notes. ``str(summary)`` is text, notebooks show HTML, ``summary.frame`` is the data."""

    def __init__(self, heading: dict[str, str], frame: pd.DataFrame, notes: list[str]) -> None:
        self.heading = heading
        self.frame = frame
        self.notes = notes

    def __str__(self) -> str:
        width = max((len(name) for name in self.heading), default=0) + 2
        lines = [f"{name + ':':<{width}}{value}" for name, value in self.heading.items()]
        if len(self.frame):
            lines += ["", self.frame.to_string(float_format=_number)]
        if self.notes:
            lines += ["", *(f"* {note}" for note in self.notes)]
        return "\n".join(lines)

    __repr__ = __str__

    def to_html(self) -> str:
        """The same as an HTML fragment, all text escaped."""
        head = "".join(f"<tr><th>{escape(n)}</th><td>{escape(v)}</td></tr>" for n, v in self.heading.items())
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        table = self.frame.to_html(float_format=_number, border=0) if len(self.frame) else ""
        return f"<table>{head}</table>{table}<ul>{notes}</ul>"

    _repr_html_ = to_html

    def to_frame(self) -> pd.DataFrame:
        return self.frame


def _number(value: float) -> str:
    return f"{value:.4g}"


def summarize(fit: Any) -> Summary:
    """Estimates, standard errors and 95 % intervals of a fit, and how it ended."""
    error = np.sqrt(np.maximum(np.diag(fit.covariance()), 0.0))
    interval = fit.confint(0.95)
    frame = pd.DataFrame(
        {
            "estimate": fit.estimates,
            "std. error": error,
            "2.5 %": [interval[label][0] for label in fit.labels],
            "97.5 %": [interval[label][1] for label in fit.labels],
        },
        index=pd.Index(fit.labels, name="parameter"),
    )
    heading = {
        "rows": f"{len(fit.weight)}",
        "log likelihood": f"{fit.log_likelihood:.4f}"
        + (" (a lower bound)" if fit.is_bound and "VI" in fit.approximation else ""),
        "AIC, BIC": f"{fit.aic:.2f}, {fit.bic:.2f}",
        "locals integrated by": fit.approximation,
        "outcome": str(fit.outcome),
    }
    return Summary(heading, frame, list(fit.notes))
