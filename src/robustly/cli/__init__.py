"""The command line: a demonstration, regressions from a file and a formula, the paper's study, and topic models.

One module a command. Nothing heavy is imported before a command runs, so that ``robustly --help`` comes at once.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from robustly.cli.compare import compare_command
from robustly.cli.demo import demo_command
from robustly.cli.fit import fit_command
from robustly.cli.outliers import outliers_command
from robustly.cli.predict import predict_command
from robustly.cli.series import series_command
from robustly.cli.study import study_command
from robustly.cli.topics import app as topics_app
from robustly.errors import RobustlyError

app = typer.Typer(
    help="Robust Bayesian modelling: fit a model in which every row may differ, and see what does not belong.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.command("fit")(fit_command)
app.command("predict")(predict_command)
app.command("compare")(compare_command)
app.command("outliers")(outliers_command)
app.command("series")(series_command)
app.command("study")(study_command)
app.command("demo")(demo_command)
app.add_typer(topics_app, name="topics")


def _show_version(asked: bool) -> None:
    if asked:
        from robustly import __version__

        typer.echo(f"robustly {__version__}")
        raise typer.Exit


@app.callback()
def robustly(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Robust Bayesian modelling."""


def main() -> None:
    """Run the command line; a known error is one line on stderr and exit code 2."""
    try:
        app()
    except RobustlyError as error:
        said = "".join(one if one.isprintable() else " " for one in str(error))
        print(f"robustly: {said}", file=sys.stderr)
        sys.exit(2)
