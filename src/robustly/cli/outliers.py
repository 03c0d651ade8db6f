"""``robustly outliers``: the rows of a file that do not belong, the most surprising first."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robustly.cli import options as opt
from robustly.cli.request import about, counting, read_request, with_lines
from robustly.rows.paths import refuse_missing_file


@opt.with_exit_codes
def outliers_command(
    data: opt.Data,
    formula: opt.Formula,
    family: opt.FamilyName = "poisson",
    local: opt.LocalOption = opt.LocalName.auto,
    prior: opt.PriorOption = opt.PriorName.normal,
    fdr: opt.Fdr = 0.05,
    dof: opt.Dof = "auto",
    out: Annotated[Path | None, typer.Option(help="CSV file for the rows, with all their columns.")] = None,
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
    """List the rows of DATA that do not belong, the most surprising first."""
    refuse_missing_file(data)
    from robustly.cli import terminal

    terminal.refuse_unwritable(out, reads=(data,))
    columns = opt.row_options(weights, offset, exposure, trials, alpha, na)
    asked = read_request(data, formula, family, columns, delimiter, encoding, decimal)
    table = asked.table
    with about(table), terminal.working("fitting …"):
        found = asked.fit_both(local.value, prior.value, fdr, dof)
        rows = with_lines(found.rows(found.outliers), table)
    if out is not None:
        terminal.write_csv(rows, out)
    if as_json:
        terminal.write_json(
            {"data": str(data), "formula": formula, "fdr": fdr, "rows": len(table.frame), "outliers": rows}
        )
    else:
        console = terminal.console()
        shown = ["row", "line", "response", "expected, robust", "outlier probability"]
        if len(rows):
            used = [name for name in rows.columns[:8] if name != "expected, classical"]
            title = counting(
                f"{len(rows)} of {len(table.frame)} rows do not belong at a false discovery rate of {fdr:g}", table
            )
            terminal.show_frame(console, rows[used], title, first=shown)
            if advice := found.robust.judgement.advice:
                typer.echo(advice)
        else:
            typer.echo(f"No row of {len(table.frame)} stands out at a false discovery rate of {fdr:g}.")
        if out is not None:
            typer.echo(f"wrote {len(rows)} rows to {out}")
    if not found.robust.outcome.converged:
        raise typer.Exit(1)
