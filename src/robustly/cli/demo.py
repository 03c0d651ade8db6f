"""``robustly demo``: robust and classical fits side by side, where the truth is known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robustly.errors import RobustlyError


def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for report.html; made if it is not there.")] = Path("demo"),
) -> None:
    """Fit a robust and a classical model to data with known outliers, and to simulated data, side by side."""
    from robustly.report.demo import run_demo

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RobustlyError(f"cannot make the folder {out}: {error.strerror}. Choose another with --out.") from error
    typer.echo(run_demo(out))
