"""``robustly compare``: which of the classical model's robust relatives predicts left-out rows best?"""

from __future__ import annotations

from typing import Any

import typer

from robustly.cli import options as opt
from robustly.cli.request import MOST_MOVED, about, counting, read_request, told, with_lines
from robustly.errors import DataError, RobustlyError
from robustly.rows.paths import refuse_missing_file

# What a family's classical fit is held against by `compare`: names, and how `rb.glm` is asked for them.
RIVALS: dict[str, dict[str, dict[str, Any]]] = {
    "normal": {
        "own precision (t, 4 dof)": {"local": "dispersion", "dof": 4.0},
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


OTHERS: dict[str, dict[str, Any]] = {"own predictor": {"local": "predictor"}}


@opt.with_exit_codes
def compare_command(
    data: opt.Data,
    formula: opt.Formula,
    family: opt.FamilyName = "poisson",
    as_json: opt.AsJson = False,
    weights: opt.Weights = None,
    offset: opt.Offset = None,
    exposure: opt.Exposure = None,
    trials: opt.Trials = None,
    alpha: opt.Ridge = 0.0,
    na: opt.Missing = "raise",
    delimiter: opt.Delimiter = None,
    encoding: opt.Encoding = "utf-8",
    decimal: opt.Decimal = ".",
) -> None:
    """Fit the classical model and its robust relatives to DATA, and say which predicts left-out rows best."""
    refuse_missing_file(data)
    from robustly.cli import terminal
    from robustly.comparison import compare

    columns = opt.row_options(weights, offset, exposure, trials, alpha, na)
    asked = read_request(data, formula, family, columns, delimiter, encoding, decimal)
    table = asked.table
    fits: dict[str, Any] = {}
    lost: dict[str, str] = {}
    with about(table):
        for name, model in {"classical": {"local": None}, **RIVALS.get(family, OTHERS)}.items():
            with terminal.working(f"fitting: {name} …"), told():
                try:
                    fits[name] = asked.fit(**model)
                except RobustlyError as error:
                    if not fits:
                        raise
                    lost[name] = str(error)
        with terminal.working("leaving rows out …"):
            both = compare(**fits) if len(fits) > 1 else None
    if both is None:
        raise DataError(f"{data}: only the classical model could be fitted: " + "; ".join(lost.values()))
    estimates = both.coefficients.xs("estimate", axis=1, level=1).rename_axis("term").reset_index()
    scores = both.scores.rename_axis("model").reset_index().sort_values("LOO", ascending=False)
    moved = with_lines(both.rows.head(MOST_MOVED), table)
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
            counting("rows that moved the classical fit most", table),
            first=["row", "line", "influence"],
        )
        for name, why in lost.items():
            typer.echo(f"not fitted: {name}: {why}")
    if not all(one.outcome.converged for one in fits.values()):
        raise typer.Exit(1)
