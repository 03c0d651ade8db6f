"""``robustly fit``: a robust regression from a file and a formula, beside the classical one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robustly.cli import options as opt
from robustly.cli.request import MOST_MOVED, RegressionRequest, about, counting, read_request, with_lines
from robustly.errors import DataError
from robustly.rows.paths import refuse_missing_file

if TYPE_CHECKING:
    from robustly.report.findings import Findings


@opt.with_exit_codes
def fit_command(
    data: opt.Data,
    formula: opt.Formula,
    family: opt.FamilyName = "poisson",
    local: opt.LocalOption = opt.LocalName.auto,
    prior: opt.PriorOption = opt.PriorName.normal,
    group_law: opt.GroupLawOption = opt.GroupLawName.normal,
    report: Annotated[Path | None, typer.Option(help="Write a page about the fit: one HTML file.")] = None,
    save: Annotated[Path | None, typer.Option(help="Keep the fitted model in a file for predict.")] = None,
    as_json: opt.AsJson = False,
    weights: opt.Weights = None,
    offset: opt.Offset = None,
    exposure: opt.Exposure = None,
    trials: opt.Trials = None,
    alpha: opt.Ridge = 0.0,
    na: opt.Missing = "raise",
    fdr: opt.Fdr = 0.05,
    dof: opt.Dof = "auto",
    max_iter: Annotated[int, typer.Option(min=1, help="Steps at most.")] = 100,
    delimiter: opt.Delimiter = None,
    encoding: opt.Encoding = "utf-8",
    decimal: opt.Decimal = ".",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Fit on a local Dask cluster of so many processes.")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="Fit on the Dask cluster with this scheduler's address.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="A folder from which the same command goes on after it was killed.")
    ] = None,
) -> None:
    """Fit a robust regression to DATA and show it beside the classical one, with the rows that made the difference.

    A formula with a bar, such as "visits ~ age + (1 | clinic)", is a mixed model: groups have effects of their own.
    A folder of Parquet files or a pattern such as 'data/*.parquet' is read piece by piece, whatever its size.
    """
    from robustly.cli.stored import StoredFit

    columns = opt.row_options(weights, offset, exposure, trials, alpha, na)
    stored = StoredFit(
        data,
        formula,
        family,
        columns,
        local.value,
        prior.value,
        dof,
        fdr,
        max_iter,
        workers,
        scheduler,
        checkpoint,
        group_law.value,
    )
    if not stored.is_needed:
        refuse_missing_file(data)
    from robustly.cli import terminal

    terminal.refuse_unwritable(report, save, reads=(data,))
    if stored.is_needed:
        if report is not None:
            raise DataError("--report needs the rows in memory: name a single file, without --workers or --checkpoint.")
        stored.run(save=save, as_json=as_json)
        return
    asked = read_request(data, formula, family, columns, delimiter, encoding, decimal, max_iter)
    if asked.has_groups:
        from robustly.cli.groups import fit_groups

        fit_groups(asked, local.value, group_law.value, dof, fdr, report, save, as_json)
        return
    with about(asked.table), terminal.working("fitting …"):
        found = asked.fit_both(local.value, prior.value, fdr, dof)
        facts = facts_of(found, asked)
    if report is not None:
        from robustly.report.regression import regression_page, write_page

        with terminal.working("writing the page …"):
            text = regression_page(
                found,
                title=f"{data.name}, robust and classical",
                data=str(data),
                formula=formula,
                lines=asked.table.line,
            )
            write_page(report, text)
    if save is not None:
        found.robust.save(save)
    if as_json:
        terminal.write_json(facts)
    else:
        show_findings(found, asked)
        for what, path in (("report", report), ("model", save)):
            if path is not None:
                typer.echo(f"wrote the {what} to {path}")
    if not found.robust.outcome.converged:
        raise typer.Exit(1)


def facts_of(found: Findings, asked: RegressionRequest) -> dict[str, Any]:
    """All that is shown, as plain values."""
    from robustly import __version__

    table = asked.table
    models = {}
    for name, one in (("robust", found.robust), ("classical", found.classical)):
        ends = one.wald_intervals(0.95)
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
        "formula": asked.formula,
        "family": asked.family,
        "local": found.robust.asked["local"],
        "prior": found.robust.asked["prior"],
        "rows": len(table.frame),
        **models,
        "findings": found.sentences(),
        "outliers": with_lines(found.rows(found.outliers).iloc[:, :7], table),
        "rows that moved the classical fit": with_lines(found.comparison.rows, table) if _two(found) else [],
    }


def _two(found: Findings) -> bool:
    return found.robust is not found.classical


def show_findings(found: Findings, asked: RegressionRequest) -> None:
    """Both fits as tables, and the findings as sentences."""
    from robustly.cli import terminal
    from robustly.glm.asked import law_asked

    out, robust, table = terminal.console(), found.robust, asked.table
    law = law_asked(robust.fitted.family, robust.asked)
    heading = {
        "data": f"{terminal.shortened(table.path, 60)}, {len(table.frame)} rows",
        "formula": terminal.shortened(asked.formula, 200),
        "family": f"{robust.fitted.family!r}; local: {law.describe().local}",
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
