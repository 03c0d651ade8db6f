"""The command line: a demonstration, regressions from a file and a formula, and a group of commands for topic models."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from robustly.errors import RobustlyError
from robustly.glm.commands import compare, fit, outliers, predict
from robustly.series.commands import series
from robustly.study.commands import study
from robustly.topics.commands import app as topics_app

app = typer.Typer(
    help="Robust Bayesian modelling: fit a model in which every row may differ, and see what does not belong.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

for command in (fit, predict, compare, outliers, series, study):
    app.command()(command)
app.add_typer(topics_app, name="topics")


@app.callback()
def robustly() -> None:
    """Robust Bayesian modelling."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for report.html; made if it is not there.")] = Path("demo"),
) -> None:
    """Fit a robust and a classical model to data with known outliers, and to simulated data, side by side."""
    from robustly.report.demo import run_demo

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RobustlyError(f"cannot make the folder {out}: {error.strerror}. Choose another with --out.") from error
    typer.echo(run_demo(out))


def main() -> None:
    """Run the command line; a known error is one line on stderr and exit code 2."""
    try:
        app()
    except RobustlyError as error:
        said = "".join(one if one.isprintable() else " " for one in str(error))
        print(f"robustly: {said}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
