"""``robustly fit``, ``predict``, ``compare`` and ``outliers``: regressions from a file and a formula, in the shell."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from robustly.errors import DataError, PersistError, RobustlyError

EXIT = (
    "Exit codes: 0, the fit ended well (converged, or a named boundary such as the classical model); 1, it did not, and what "
    "was found is shown all the same; 2, bad input, with one line on stderr and nothing written."
)
MOST_MOVED = 5

Data = Annotated[Path, typer.Argument(help="CSV, TSV or Parquet file with a header line.", show_default=False)]
Formula = Annotated[
    str, typer.Argument(help='As "y ~ x + C(group) + bs(age, df=4) + offset(log(years))".', show_default=False)
]
FamilyName = Annotated[
    str, typer.Option("--family", help="normal, poisson, bernoulli, binomial, gamma, exponential or negative_binomial.")
]
Weights = Annotated[str | None, typer.Option(help="Column that says how often each row counts.")]
Offset = Annotated[str | None, typer.Option(help="Column added to the linear predictor.")]
Exposure = Annotated[str | None, typer.Option(help="Column whose logarithm is added to the linear predictor.")]
Trials = Annotated[str | None, typer.Option(help="Column with the number of trials of each row (binomial).")]
Ridge = Annotated[float, typer.Option(help="Ridge penalty on every coefficient but the intercept.")]
Delimiter = Annotated[
    str | None, typer.Option(help="What stands between columns; by default a comma, in .tsv files a tab.")
]
Encoding = Annotated[str, typer.Option(help="Encoding of text files.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Dof = Annotated[str, typer.Option(help="Degrees of freedom of a Student t, held at this number; fit to estimate them.")]
Fdr = Annotated[float, typer.Option("--fdr", help="False discovery rate of the rows that do not belong.")]


class Local(StrEnum):
    auto = "auto"
    predictor = "predictor"
    dispersion = "dispersion"
    label = "label"
    none = "none"


class Prior(StrEnum):
    normal = "normal"
    laplace = "laplace"
    student_t = "student_t"


LocalOption = Annotated[
    Local, typer.Option(help="What every row has of its own; auto: dispersion of a normal, else predictor.")
]
PriorOption = Annotated[Prior, typer.Option(help="Law of the rows' own predictors.")]

# What a family's classical fit is held against by `compare`: names, and how `rb.glm` is asked for them.
RIVALS: dict[str, dict[str, dict[str, Any]]] = {
    "normal": {
        "own precision (t, 4 dof)": {"local": "dispersion"},
        "own precision (t, dof fitted)": {"local": "dispersion", "dof": None},
    },
    "poisson": {
        "own log rate": {"local": "predictor"},
        "own log rate (Laplace)": {"local": "predictor", "prior": "laplace"},
        "own log rate (t)": {"local": "predictor", "prior": "student_t"},
        "negative binomial": {"family": "negative_binomial", "local": None},
    },
    "bernoulli": {"own log odds": {"local": "predictor"}, "wrong labels": {"local": "label"}},
    "binomial": {
        "own log odds": {"local": "predictor"},
        "own log odds (t)": {"local": "predictor", "prior": "student_t"},
    },
    "gamma": {"own log mean": {"local": "predictor"}, "own shape": {"local": "dispersion"}},
    "exponential": {"own log mean": {"local": "predictor"}, "gamma": {"family": "gamma", "local": None}},
    "negative_binomial": {
        "own log mean": {"local": "predictor"},
        "Poisson, own log rate": {"family": "poisson", "local": "predictor"},
    },
}


def fit(
    data: Data,
    formula: Formula,
    family: FamilyName = "poisson",
    local: LocalOption = Local.auto,
    prior: PriorOption = Prior.normal,
    report: Annotated[Path | None, typer.Option(help="Write a page about the fit: one HTML file.")] = None,
    save: Annotated[Path | None, typer.Option(help="Keep the fitted model in a file for predict.")] = None,
    as_json: AsJson = False,
    weights: Weights = None,
    offset: Offset = None,
    exposure: Exposure = None,
    trials: Trials = None,
    alpha: Ridge = 0.0,
    fdr: Fdr = 0.05,
    dof: Dof = "4",
    max_iter: Annotated[int, typer.Option(min=1, help="Steps at most.")] = 100,
    delimiter: Delimiter = None,
    encoding: Encoding = "utf-8",
) -> None:
    """Fit a robust regression to DATA and show it beside the classical one, with the rows that made the difference."""
    from robustly.report import terminal

    terminal.refuse_unwritable(report, save)
    table = _read(data, formula, family, delimiter, encoding)
    shared = _shared(weights, offset, exposure, trials, alpha) | {"max_iter": max_iter}
    with _about(table), terminal.working("fitting …"):
        found = _both(table, formula, family, local, prior, fdr, dof, shared)
        facts = _facts(found, table, formula, family)
    if report is not None:
        from robustly.report.regression import regression_page, write_page

        with terminal.working("writing the page …"):
            text = regression_page(
                found, title=f"{data.name}, robust and classical", data=str(data), formula=formula, lines=table.line
            )
            write_page(report, text)
    if save is not None:
        found.robust.save(save)
    if as_json:
        terminal.write_json(facts)
    else:
        _show(found, table, formula)
        for what, path in (("report", report), ("model", save)):
            if path is not None:
                typer.echo(f"wrote the {what} to {path}")
    if not found.robust.outcome.converged:
        raise typer.Exit(1)


def predict(
    model: Annotated[Path, typer.Argument(help="File written by robustly fit --save.", show_default=False)],
    new: Annotated[
        Path, typer.Argument(help="CSV, TSV or Parquet file with the columns of the formula.", show_default=False)
    ],
    interval: Annotated[float, typer.Option(help="Probability of the interval from low to high.")] = 0.9,
    out: Annotated[Path | None, typer.Option(help="CSV file to write; standard output by default.")] = None,
    delimiter: Delimiter = None,
    encoding: Encoding = "utf-8",
) -> None:
    """Predict new rows: expected value, that of a typical row, standard deviation and an interval, as CSV.

    Exit codes: 0, or 2 for bad input, with one line on stderr and nothing written.
    """
    from robustly import persist
    from robustly.report import terminal
    from robustly.rows.tables import read_table, refuse_wrong_delimiter

    if not 0 < interval < 1:
        raise DataError(f"--interval is a probability between 0 and 1; {interval} came.")
    terminal.refuse_unwritable(out)
    kept = persist.load(model)
    fitted = getattr(kept, "result_", kept)
    if not hasattr(fitted, "fitted"):
        raise PersistError(
            f"{model} holds a {type(kept).__name__}, not a regression. Give a file of robustly fit --save."
        )
    table = read_table(new, delimiter, encoding)
    with _about(table), terminal.working("predicting …"):
        if fitted.formula is not None:
            refuse_wrong_delimiter(table, set(fitted.formula.variables))
            predictive, classes = fitted.predictive(table.frame), fitted.formula.classes
        else:
            wanted = list(getattr(kept, "feature_names_in_", []))
            missing = [name for name in wanted if name not in table.frame]
            if not wanted or missing:
                lacks = (
                    f"column {missing[0]!r} is missing" if missing else "the model does not know its columns by name"
                )
                raise DataError(f"{lacks}. Use a model of robustly fit --save.")
            predictive, classes = kept.predict_dist(table.frame[wanted]), getattr(kept, "classes_", ())
        terminal.write_csv(_predicted(predictive, interval, tuple(classes)), out)
    if out is not None:
        typer.echo(f"wrote {len(predictive)} predictions to {out}", err=True)


def compare(
    data: Data,
    formula: Formula,
    family: FamilyName = "poisson",
    as_json: AsJson = False,
    weights: Weights = None,
    offset: Offset = None,
    exposure: Exposure = None,
    trials: Trials = None,
    alpha: Ridge = 0.0,
    delimiter: Delimiter = None,
    encoding: Encoding = "utf-8",
) -> None:
    """Fit the classical model and its robust relatives to DATA, and say which predicts left-out rows best."""
    from robustly.comparison import compare as side_by_side
    from robustly.glm.formula import glm
    from robustly.report import terminal

    table = _read(data, formula, family, delimiter, encoding)
    shared = _shared(weights, offset, exposure, trials, alpha)
    fits: dict[str, Any] = {}
    lost: dict[str, str] = {}
    with _about(table):
        for name, asked in {"classical": {"local": None}, **RIVALS[family]}.items():
            with terminal.working(f"fitting: {name} …"), _told():
                try:
                    fits[name] = glm(formula, table.frame, **{"family": family, **asked, **shared})
                except RobustlyError as error:
                    if not fits:
                        raise
                    lost[name] = str(error)
        with terminal.working("leaving rows out …"):
            both = side_by_side(**fits) if len(fits) > 1 else None
    if both is None:
        raise DataError(f"{data}: only the classical model could be fitted: " + "; ".join(lost.values()))
    estimates = both.coefficients.xs("estimate", axis=1, level=1).rename_axis("term").reset_index()
    scores = both.scores.rename_axis("model").reset_index().sort_values("LOO", ascending=False)
    moved = _with_lines(both.rows.head(MOST_MOVED), table)
    if as_json:
        errors = both.coefficients.xs("std. error", axis=1, level=1).rename_axis("term").reset_index()
        terminal.write_json(
            {"data": str(data), "formula": formula, "family": family, "models": scores, "coefficients": estimates,
             "standard errors": errors, "rows that moved the classical fit": moved, "not fitted": lost}
        )  # fmt: skip
    else:
        out = terminal.console()
        out.print(
            terminal.Text(
                f"{len(table.frame)} rows of {terminal.shortened(data, 60)}, best prediction first", style="bold"
            )
        )
        terminal.show_frame(
            out, scores.drop(columns="log likelihood"), first=["model", "LOO difference", "its std. error"]
        )
        terminal.show_frame(out, estimates, "coefficients", first=["term"])
        terminal.show_frame(
            out, moved, _counting("rows that moved the classical fit most", table), first=["row", "line", "influence"]
        )
        for name, why in lost.items():
            typer.echo(f"not fitted: {name}: {why}")
    if not all(one.outcome.converged for one in fits.values()):
        raise typer.Exit(1)


def outliers(
    data: Data,
    formula: Formula,
    family: FamilyName = "poisson",
    local: LocalOption = Local.auto,
    prior: PriorOption = Prior.normal,
    fdr: Fdr = 0.05,
    dof: Dof = "4",
    out: Annotated[Path | None, typer.Option(help="CSV file for the rows, with all their columns.")] = None,
    as_json: AsJson = False,
    weights: Weights = None,
    offset: Offset = None,
    exposure: Exposure = None,
    trials: Trials = None,
    alpha: Ridge = 0.0,
    delimiter: Delimiter = None,
    encoding: Encoding = "utf-8",
) -> None:
    """List the rows of DATA that do not belong, the most surprising first."""
    from robustly.report import terminal

    terminal.refuse_unwritable(out)
    table = _read(data, formula, family, delimiter, encoding)
    shared = _shared(weights, offset, exposure, trials, alpha)
    with _about(table), terminal.working("fitting …"):
        found = _both(table, formula, family, local, prior, fdr, dof, shared)
        rows = _with_lines(found.rows(found.outliers), table)
    if out is not None:
        terminal.write_csv(rows, out)
    if as_json:
        terminal.write_json(
            {"data": str(data), "formula": formula, "fdr": fdr, "rows": len(table.frame), "outliers": rows}
        )
    else:
        console = terminal.console()
        shown = ["row", "line", "response", "expected, robust", "tail probability"]
        if len(rows):
            used = [name for name in rows.columns[:8] if name != "expected, classical"]
            title = _counting(
                f"{len(rows)} of {len(table.frame)} rows do not belong at a false discovery rate of {fdr:g}", table
            )
            terminal.show_frame(console, rows[used], title, first=shown)
        else:
            typer.echo(f"No row of {len(table.frame)} stands out at a false discovery rate of {fdr:g}.")
        if out is not None:
            typer.echo(f"wrote {len(rows)} rows to {out}")
    if not found.robust.outcome.converged:
        raise typer.Exit(1)


for _command in (fit, compare, outliers):
    _command.__doc__ = f"{_command.__doc__}\n\n{EXIT}"


# ---------------------------------------------------------------------- what the commands share


def _shared(
    weights: str | None, offset: str | None, exposure: str | None, trials: str | None, alpha: float
) -> dict[str, Any]:
    return {"weights": weights, "offset": offset, "exposure": exposure, "trials": trials, "alpha": alpha}


def _read(path: Path, formula: str, family: str, delimiter: str | None, encoding: str) -> Any:
    """The table, if it can be what the formula speaks of."""
    from robustly.glm.columns import refuse_texts
    from robustly.glm.families import as_family
    from robustly.glm.formula import variables_of
    from robustly.rows.tables import read_table, refuse_stray_texts, refuse_wrong_delimiter

    as_family(family)
    table = read_table(path, delimiter, encoding)
    with _about(table):
        asked = variables_of(formula, map(str, table.frame.columns))
        refuse_wrong_delimiter(table, asked.reads)
        refuse_stray_texts(table, asked.plain)
        for name in sorted(asked.computed & set(table.frame.columns)):
            refuse_texts(table.frame[name], name)
    return table


def _both(
    table: Any, formula: str, family: str, local: Local, prior: Prior, fdr: float, dof: str, shared: dict[str, Any]
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
    own: str | None = None if local is Local.none else local.value
    with _told():
        robust = glm(formula, table.frame, family, local=own, prior=prior.value, dof=degrees, **shared)
        classical = robust if own is None else glm(formula, table.frame, family, local=None, **shared)
    reads = variables_of(formula, map(str, table.frame.columns)).reads
    return Findings(robust, classical, fdr, table.frame[[name for name in table.frame.columns if str(name) in reads]])


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Warnings of ours as single lines on stderr, each once."""
    from robustly.errors import ConvergenceWarning, IdentifiabilityWarning

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        warnings.simplefilter("always", IdentifiabilityWarning)
        yield
    for message in dict.fromkeys(str(one.message) for one in caught):
        print(f"robustly: warning: {message}", file=sys.stderr)


@contextlib.contextmanager
def _about(table: Any) -> Iterator[None]:
    """Errors about rows name the file and the line."""
    try:
        yield
    except PersistError:
        raise
    except RobustlyError as error:
        if str(error).startswith(str(table.path)):
            raise
        raise type(error)(table.located(str(error))) from error


def _facts(found: Any, table: Any, formula: str, family: str) -> dict[str, Any]:
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
        "outliers": _with_lines(found.rows(found.outliers).iloc[:, :7], table),
        "rows that moved the classical fit": _with_lines(found.comparison.rows, table) if _two(found) else [],
    }


def _two(found: Any) -> bool:
    return found.robust is not found.classical


def _show(found: Any, table: Any, formula: str) -> None:
    from robustly.glm.summary import LOCAL
    from robustly.report import terminal

    out, robust = terminal.console(), found.robust
    asked = robust.asked
    prior = f" ({asked['prior']} prior)" if asked["local"] == "predictor" else ""
    heading = {
        "data": f"{terminal.shortened(table.path, 60)}, {len(table.frame)} rows",
        "formula": terminal.shortened(formula, 200),
        "family": f"{robust.fitted.family!r}; local: {LOCAL[asked['local']]}{prior}",
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
        moved = _with_lines(found.comparison.rows.head(MOST_MOVED), table)
        title = _counting("rows that moved the classical fit most", table)
        terminal.show_frame(out, moved, title, first=["row", "line", "influence"])
    for sentence in found.sentences():
        out.print(terminal.Text(f"• {sentence}"), soft_wrap=not out.is_terminal)
    for note in robust.notes:
        out.print(terminal.Text(f"* {terminal.shortened(note, 600)}"), soft_wrap=not out.is_terminal)


def _with_lines(rows: Any, table: Any) -> Any:
    found = rows.copy()
    if len(rows) and table.line(0) is not None:
        found.insert(1, "line", [table.line(int(row)) for row in rows["row"]])
    return found


def _counting(title: str, table: Any) -> str:
    return f"{title} (rows count from 0" + ("; row 0 is line 2 of the file)" if table.line(0) is not None else ")")


def _predicted(predictive: Any, interval: float, classes: tuple[Any, ...]) -> Any:
    """The predictions of a table: of yes-or-no rows the probability, of others mean, spread and interval."""
    import numpy as np
    import pandas as pd

    typical = predictive.fitted.typical(predictive.m, predictive.trials)
    frame = pd.DataFrame({"row": np.arange(len(predictive))})
    if type(predictive.family).__name__ == "Bernoulli" or classes:
        frame["probability"], frame["typical"] = predictive.mean, typical
        names = classes or (0, 1)
        return frame.assign(**{"class": np.where(predictive.mean > 0.5, names[1], names[0])})
    low, high = predictive.interval(interval)
    return frame.assign(mean=predictive.mean, typical=typical, sd=predictive.sd, low=low, high=high)
