"""``robustly fit`` with a bar in its formula: a mixed model, its groups, and those that do not belong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from robustly.cli.request import RegressionRequest, about, told
from robustly.errors import DataError


def fit_groups(
    asked: RegressionRequest,
    local: str,
    group_law: str,
    dof: str,
    fdr: float,
    report: Path | None,
    save: Path | None,
    as_json: bool,
) -> None:
    """Fit, show, write."""
    from robustly.cli import terminal
    from robustly.glm.formula import read_formula
    from robustly.glm.grouped.fit import fit_grouped
    from robustly.report.groups import group_sentences, groups_that_do_not_belong, write_group_page

    if not 0 < fdr < 1:
        raise DataError(f"--fdr is a share between 0 and 1; got {fdr}. 0.05 is usual.")
    try:
        degrees = None if dof in ("fit", "auto") else float(dof)
    except ValueError:
        raise DataError(f'--dof is a number above 0, or "fit" to estimate it; got {dof!r}.') from None
    with about(asked.table), terminal.working("fitting …"), told():
        rows = read_formula(asked.formula, asked.table.frame, asked.family, **asked.columns)
        assert rows.groups is not None
        fit = fit_grouped(
            rows.groups, rows.family, local=None if local in ("auto", "none") else local, group_law=group_law, dof=degrees,
            max_iter=asked.max_iter, formula=rows.columns, effects=rows.effects, labels=rows.labels,
        )  # fmt: skip
        components = fit.variance_components
    if report is not None:
        with terminal.working("writing the page …"):
            write_group_page(
                fit,
                report,
                title=f"{asked.table.path.name}, groups",
                data=str(asked.table.path),
                formula=asked.formula,
                fdr=fdr,
            )
    if save is not None:
        fit.save(save)
    odd = groups_that_do_not_belong(fit, fdr)
    if as_json:
        terminal.write_json(group_facts(fit, asked, components, odd, fdr))
    else:
        out = terminal.console()
        summary = fit.summary()
        for name, value in {"data": f"{asked.table.path}, {fit.row_count} rows", **summary.heading}.items():
            out.print(terminal.Text.assemble((f"{name + ':':<20}", "bold"), terminal.shortened(value, 300)))
        out.print()
        terminal.show_frame(out, components.reset_index(), "how groups differ", first=["group", "term", "sd"])
        terminal.show_frame(
            out, summary.to_frame().reset_index(), "estimates", first=["term", "estimate", "std. error"]
        )
        if len(odd):
            terminal.show_frame(out, odd, f"groups of {fit.unit} that do not belong", first=["group", "rows", "tail"])
        for sentence in group_sentences(fit, fdr):
            out.print(terminal.Text(f"• {sentence}"), soft_wrap=not out.is_terminal)
        for note in fit.notes:
            out.print(terminal.Text(f"* {terminal.shortened(note, 600)}"), soft_wrap=not out.is_terminal)
        for what, path in (("report", report), ("model", save)):
            if path is not None:
                typer.echo(f"wrote the {what} to {path}")
    if not fit.outcome.converged:
        raise typer.Exit(1)


def group_facts(fit: Any, asked: RegressionRequest, components: Any, odd: Any, fdr: float) -> dict[str, Any]:
    """All that is shown, as plain values."""
    from robustly import __version__
    from robustly.report.groups import group_sentences

    ends = fit.wald_intervals(0.95)
    return {
        "robustly": __version__,
        "data": str(asked.table.path),
        "formula": asked.formula,
        "family": asked.family,
        "group law": fit.asked["group_law"],
        "rows": fit.row_count,
        "groups": len(fit.weight),
        "outcome": {"kind": fit.outcome.kind, "text": fit.outcome.text, "converged": fit.outcome.converged},
        "log likelihood": fit.log_likelihood,
        "aic": fit.aic,
        "loo": fit.loo,
        "estimates": {
            name: {"estimate": float(value), "low": ends[name][0], "high": ends[name][1]}
            for name, value in zip(fit.labels, fit.estimates)
        },
        "variance components": components.reset_index(),
        "findings": group_sentences(fit, fdr),
        "groups that do not belong": odd,
        "notes": list(fit.notes),
    }
