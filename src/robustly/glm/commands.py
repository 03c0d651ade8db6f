"""``robustly fit``, ``predict``, ``compare`` and ``outliers``: regressions from a file and a formula, in the shell."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from robustly.errors import DataError, PersistError, RobustlyError
from robustly.glm import answers

EXIT = (
    "Exit codes: 0, the fit ended well (converged, or a named boundary such as the classical model); 1, it did not, and what "
    "was found is shown all the same; 2, bad input, with one line on stderr and nothing written."
)

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
Decimal = Annotated[str, typer.Option(help="What stands before decimals, a point or a comma.")]
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
    decimal: Decimal = ".",
) -> None:
    """Fit a robust regression to DATA and show it beside the classical one, with the rows that made the difference."""
    from robustly.report import terminal

    terminal.refuse_unwritable(report, save, reads=(data,))
    table = answers.read_for(data, formula, family, delimiter, encoding, decimal)
    shared = _shared(weights, offset, exposure, trials, alpha) | {"max_iter": max_iter}
    with answers.about(table), terminal.working("fitting …"):
        found = answers.fit_both(table, formula, family, local.value, prior.value, fdr, dof, shared)
        facts = answers.facts_of(found, table, formula, family)
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
        answers.show(found, table, formula)
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
    decimal: Decimal = ".",
) -> None:
    """Predict new rows: expected value, that of a typical row, standard deviation and an interval, as CSV.

    Exit codes: 0, or 2 for bad input, with one line on stderr and nothing written.
    """
    from robustly.report import terminal
    from robustly.result import persist
    from robustly.rows.files import read_table, refuse_wrong_delimiter

    if not 0 < interval < 1:
        raise DataError(f"--interval is a probability between 0 and 1; {interval} came.")
    terminal.refuse_unwritable(out, reads=(model, new))
    kept = persist.load(model)
    fitted = getattr(kept, "result_", kept)
    if not hasattr(fitted, "fitted"):
        raise PersistError(
            f"{model} holds a {type(kept).__name__}, not a regression. Give a file of robustly fit --save."
        )
    table = read_table(new, delimiter, encoding, decimal)
    with answers.about(table), terminal.working("predicting …"):
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
        terminal.write_csv(answers.predictions(predictive, interval, tuple(classes)), out)
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
    decimal: Decimal = ".",
) -> None:
    """Fit the classical model and its robust relatives to DATA, and say which predicts left-out rows best."""
    from robustly.comparison import compare as side_by_side
    from robustly.glm.formula import glm
    from robustly.report import terminal

    table = answers.read_for(data, formula, family, delimiter, encoding, decimal)
    shared = _shared(weights, offset, exposure, trials, alpha)
    fits: dict[str, Any] = {}
    lost: dict[str, str] = {}
    with answers.about(table):
        for name, asked in {"classical": {"local": None}, **RIVALS[family]}.items():
            with terminal.working(f"fitting: {name} …"), answers.told():
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
    moved = answers.with_lines(both.rows.head(answers.MOST_MOVED), table)
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
            out,
            moved,
            answers.counting("rows that moved the classical fit most", table),
            first=["row", "line", "influence"],
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
    decimal: Decimal = ".",
) -> None:
    """List the rows of DATA that do not belong, the most surprising first."""
    from robustly.report import terminal

    terminal.refuse_unwritable(out, reads=(data,))
    table = answers.read_for(data, formula, family, delimiter, encoding, decimal)
    shared = _shared(weights, offset, exposure, trials, alpha)
    with answers.about(table), terminal.working("fitting …"):
        found = answers.fit_both(table, formula, family, local.value, prior.value, fdr, dof, shared)
        rows = answers.with_lines(found.rows(found.outliers), table)
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
            title = answers.counting(
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


def _shared(
    weights: str | None, offset: str | None, exposure: str | None, trials: str | None, alpha: float
) -> dict[str, Any]:
    return {"weights": weights, "offset": offset, "exposure": exposure, "trials": trials, "alpha": alpha}
