"""``robustly study``: the paper's experiments in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robustly.errors import RobustlyError
from robustly.study.experiments import EXPERIMENTS, FULL, QUICK, run_study


def study_command(
    experiment: Annotated[
        str,
        typer.Argument(help=f"One of {', '.join(EXPERIMENTS)}. The summary is the paper's own designs of the three regressions."),
    ] = "all",
    out: Annotated[Path, typer.Option(help="Folder for CSV files, figures and study.html; a stopped run goes on there.")] = Path("study"),
    reps: Annotated[int | None, typer.Option(help=f"Repetitions; {FULL} by default, {QUICK} with --quick.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of all that is random.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Few repetitions: a look in minutes, not a study.")] = False,
    jobs: Annotated[int | None, typer.Option(help="Processes at once; by default one a core, eight at most.")] = None,
    corpus: Annotated[list[Path] | None, typer.Option(help="Word counts (lda-c, UCI docword, Matrix Market); may come several times.")] = None,
    topics: Annotated[str | None, typer.Option(help="Numbers of topics, as in 10,20,50.")] = None,
) -> None:  # fmt: skip
    """Run the experiments of Wang & Blei's paper and judge its claims."""
    try:
        for line in run_study(experiment, out, reps, seed, quick, jobs, corpus or [], topics):
            typer.echo(line)
    except RobustlyError as error:
        from robustly.study.runs import Stopped

        typer.echo(f"robustly: {error}", err=True)
        raise typer.Exit(130 if isinstance(error, Stopped) else 2) from None
