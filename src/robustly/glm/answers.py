"""What do the commands read, and what do they answer? The steps that ``robustly fit`` and its relatives share."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from robustly.errors import DataError, PersistError, RobustlyError

MOST_MOVED = 5


def read_for(path: Path, formula: str, family: str, delimiter: str | None, encoding: str, decimal: str) -> Any:
    """The table, if it can be what the formula speaks of."""
    from robustly.glm.columns import refuse_texts
    from robustly.glm.families import as_family
    from robustly.glm.formula import variables_of
    from robustly.rows.files import read_table, refuse_stray_texts, refuse_wrong_delimiter

    as_family(family)
    table = read_table(path, delimiter, encoding, decimal)
    with about(table):
        asked = variables_of(formula, map(str, table.frame.columns))
        refuse_wrong_delimiter(table, asked.reads)
        refuse_stray_texts(table, asked.plain)
        for name in sorted(asked.computed & set(table.frame.columns)):
            refuse_texts(table.frame[name], name)
    return table


def fit_both(
    table: Any, formula: str, family: str, local: str, prior: str, fdr: float, dof: str, shared: dict[str, Any]
) -> Any:
    """The robust and the classical fit."""
    from robustly.glm.formula import glm, variables_of
    from robustly.report.findings import Findings

    if not 0 < fdr < 1:
        raise DataError(f"--fdr is a share between 0 and 1; {fdr} came. 0.05 is usual.")
    try:
        degrees = None if dof == "fit" else float(dof)
    except ValueError:
        raise DataError(f'--dof is a number above 0, or "fit" to estimate it; {dof!r} came.') from None
    own = None if local == "none" else local
    with told():
        robust = glm(formula, table.frame, family, local=own, prior=prior, dof=degrees, **shared)
        classical = robust if own is None else glm(formula, table.frame, family, local=None, **shared)
    reads = variables_of(formula, map(str, table.frame.columns)).reads
    return Findings(robust, classical, fdr, table.frame[[name for name in table.frame.columns if str(name) in reads]])


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Warnings of ours as single lines on stderr, each once."""
    from robustly.errors import ConvergenceWarning, IdentifiabilityWarning

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        warnings.simplefilter("always", IdentifiabilityWarning)
        yield
    for message in dict.fromkeys(str(one.message) for one in caught):
        print(f"robustly: warning: {message}", file=sys.stderr)


@contextlib.contextmanager
def about(table: Any) -> Iterator[None]:
    """Errors about rows name the file and the line."""
    try:
        yield
    except PersistError:
        raise
    except RobustlyError as error:
        if str(error).startswith(str(table.path)):
            raise
        raise type(error)(table.located(str(error))) from error


def facts_of(found: Any, table: Any, formula: str, family: str) -> dict[str, Any]:
    """All that is shown, as plain values."""
    from robustly import __version__

    models = {}
    for name, one in (("robust", found.robust), ("classical", found.classical)):
        ends = one.confint(0.95)
        models[name] = {
            "outcome": {"kind": one.outcome.kind, "text": one.outcome.text, "converged": one.outcome.converged},
            "log likelihood": one.log_likelihood,
            "aic": one.aic,
            "loo": one.loo,
            "shared": dict(one.shared),
            "coefficients": {
                term: {
                    "estimate": one.coefficients[term],
                    "standard error": one.standard_errors[term],
                    "low": ends[term][0],
                    "high": ends[term][1],
                }
                for term in one.terms
            },
            "evidence by": one.approximation,
            "notes": list(one.notes),
        }
    return {
        "robustly": __version__,
        "data": str(table.path),
        "formula": formula,
        "family": family,
        "local": found.robust.asked["local"],
        "prior": found.robust.asked["prior"],
        "rows": len(table.frame),
        **models,
        "findings": found.sentences(),
        "outliers": with_lines(found.rows(found.outliers).iloc[:, :7], table),
        "rows that moved the classical fit": with_lines(found.comparison.rows, table) if _two(found) else [],
    }


def _two(found: Any) -> bool:
    return found.robust is not found.classical


def show(found: Any, table: Any, formula: str) -> None:
    from robustly.report import terminal

    out, robust = terminal.console(), found.robust
    heading = {
        "data": f"{terminal.shortened(table.path, 60)}, {len(table.frame)} rows",
        "formula": terminal.shortened(formula, 200),
        "family": f"{robust.fitted.family!r}; local: {robust.told['local']}",
        "outcome": terminal.shortened(robust.outcome, 400),
        "shared": ", ".join(f"{name} {terminal.shown(value)}" for name, value in robust.shared.items()),
    }
    for name, value in heading.items():
        if value:
            out.print(terminal.Text.assemble((f"{name + ':':<9}", "bold"), value))
    out.print()
    frame = found.coefficients.rename_axis("term").reset_index()
    terminal.show_frame(out, frame, "coefficients", first=["term", "robust", "classical"])
    if _two(found):
        scores = found.comparison.scores.rename_axis("model").reset_index()
        terminal.show_frame(out, scores.drop(columns=["spread"]), "fit", first=["model", "AIC", "LOO"])
        moved = with_lines(found.comparison.rows.head(MOST_MOVED), table)
        title = counting("rows that moved the classical fit most", table)
        terminal.show_frame(out, moved, title, first=["row", "line", "influence"])
    for sentence in found.sentences():
        out.print(terminal.Text(f"• {sentence}"), soft_wrap=not out.is_terminal)
    for note in robust.notes:
        out.print(terminal.Text(f"* {terminal.shortened(note, 600)}"), soft_wrap=not out.is_terminal)


def with_lines(rows: Any, table: Any) -> Any:
    found = rows.copy()
    if len(rows) and table.line(0) is not None:
        found.insert(1, "line", [table.line(int(row)) for row in rows["row"]])
    return found


def counting(title: str, table: Any) -> str:
    return f"{title} (rows count from 0" + ("; row 0 is line 2 of the file)" if table.line(0) is not None else ")")


def predictions(predictive: Any, interval: float, classes: tuple[Any, ...]) -> Any:
    """The predictions of a table: of yes-or-no rows the probability, of others mean, spread and interval."""
    import numpy as np
    import pandas as pd

    frame = pd.DataFrame({"row": np.arange(len(predictive))})
    if type(predictive.family).__name__ == "Bernoulli" or classes:
        frame["probability"], frame["typical"] = predictive.mean, predictive.typical
        names = classes or (0, 1)
        return frame.assign(**{"class": np.where(predictive.mean > 0.5, names[1], names[0])})
    low, high = predictive.interval(interval)
    return frame.assign(mean=predictive.mean, typical=predictive.typical, sd=predictive.sd, low=low, high=high)
