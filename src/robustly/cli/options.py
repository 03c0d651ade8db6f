"""Which arguments and options do several commands share? Their types, defaults and help, each stated once."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

EXIT = (
    "Exit codes: 0, the fit ended well (converged, or a named boundary such as the classical model); 1, it did not, and what "
    "was found is shown all the same; 2, bad input, with one line on stderr and nothing written."
)

Data = Annotated[
    Path, typer.Argument(help="CSV, TSV, Excel, JSON lines or Parquet file; - is standard input.", show_default=False)
]
Formula = Annotated[
    str, typer.Argument(help='As "y ~ x + C(group) + bs(age, df=4) + offset(log(years))".', show_default=False)
]
FamilyName = Annotated[
    str,
    typer.Option(
        "--family",
        help="normal, poisson, bernoulli, binomial, gamma, exponential, negative_binomial, zero_inflated_poisson, hurdle_poisson, tweedie …",
    ),
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
Dof = Annotated[
    str,
    typer.Option(
        help="Degrees of freedom of a Student t: a number holds them, fit estimates them; auto fits those of errors."
    ),
]
Missing = Annotated[
    str, typer.Option("--na", help="Rows with missing values: raise refuses them by name, drop leaves them out.")
]
Fdr = Annotated[float, typer.Option("--fdr", help="False discovery rate of the rows that do not belong.")]


class LocalName(StrEnum):
    auto = "auto"
    predictor = "predictor"
    dispersion = "dispersion"
    label = "label"
    contaminated = "contaminated"
    none = "none"


class PriorName(StrEnum):
    normal = "normal"
    laplace = "laplace"
    student_t = "student_t"


class GroupLawName(StrEnum):
    normal = "normal"
    student_t = "student_t"
    laplace = "laplace"
    gamma = "gamma"
    precision = "precision"


GroupLawOption = Annotated[
    GroupLawName, typer.Option(help="Law of groups' effects, where the formula has a bar: (1 | group).")
]
LocalOption = Annotated[
    LocalName, typer.Option(help="What every row has of its own; auto: dispersion of a normal, else predictor.")
]
PriorOption = Annotated[PriorName, typer.Option(help="Law of the rows' own predictors.")]


def with_exit_codes(command: Callable[..., None]) -> Callable[..., None]:
    """The command, its help ending with what its exit codes mean."""
    command.__doc__ = f"{command.__doc__}\n\n{EXIT}"
    return command


def row_options(
    weights: str | None, offset: str | None, exposure: str | None, trials: str | None, alpha: float, na: str
) -> dict[str, Any]:
    """What all fits of a command are asked with."""
    return {
        "weights": weights,
        "offset": offset,
        "exposure": exposure,
        "trials": trials,
        "alpha": alpha,
        "na_action": na,
    }
