"""``robustly fit`` of rows that are not read into memory: Parquet folders and patterns, and Dask clusters."""

from __future__ import annotations

import contextlib
import glob
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from robustly.cli.request import degrees_of, told
from robustly.errors import DataError

if TYPE_CHECKING:
    from robustly.result.fit import Fit

# A scheduler that says nothing for so long is not there.
PATIENCE = "10s"
MOST_SHOWN = 10


@dataclass(frozen=True)
class StoredFit:
    """What is asked of rows that stay where they are."""

    data: Path
    formula: str
    family: str
    columns: dict[str, Any]
    local: str
    prior: str
    dof: str
    fdr: float
    max_iter: int
    workers: int | None = None
    scheduler: str | None = None
    checkpoint: Path | None = None
    group_law: str = "normal"

    @property
    def is_needed(self) -> bool:
        """Whether the rows are more than one file, or to be fitted elsewhere or in stages."""
        elsewhere = self.workers is not None or self.scheduler is not None or self.checkpoint is not None
        return elsewhere or self.data.is_dir() or (not self.data.exists() and glob.has_magic(str(self.data)))

    def run(self, *, save: Path | None, as_json: bool) -> None:
        """Fit, show and keep."""
        import numpy as np

        from robustly.cli import terminal

        if not 0 < self.fdr < 1:
            raise DataError(f"--fdr is a share between 0 and 1; got {self.fdr}. 0.05 is usual.")
        # All is asked while there is a cluster to answer.
        with self._rows() as rows, told(), terminal.working("fitting …"):
            fits = self._fits(rows)
            fit = next(iter(fits.values()))
            outliers = np.asarray(fit.outliers(fdr=self.fdr))
            facts = self._facts(fits, outliers) if as_json else {}
            summary = "" if as_json else str(fit.summary())
            if save is not None:
                fit.save(save)
        if as_json:
            terminal.write_json(facts)
        else:
            typer.echo(summary)
            shown = ", ".join(map(str, outliers[:MOST_SHOWN])) + (" …" if len(outliers) > MOST_SHOWN else "")
            units = f"groups of {fit.unit} do not belong" if fit.unit else "rows do not belong (rows count from 0)"
            typer.echo(f"{len(outliers)} {units}{': ' if shown else ''}{shown}")
        if not fit.outcome.converged:
            raise typer.Exit(1)

    @contextlib.contextmanager
    def _rows(self) -> Iterator[Any]:
        """Where the rows are: files, or partitions on a cluster that is there for the length of the fit."""
        from robustly.rows.parquet import parquet

        files = parquet(self.data)
        if self.workers is None and self.scheduler is None:
            yield files
            return
        try:
            import dask.dataframe as dd
            from distributed import Client, LocalCluster
        except ImportError as error:
            raise DataError('--workers and --scheduler need Dask: pip install "robustly[distributed]".') from error
        _ = len(files)  # what is wrong with a file is said before a cluster is started
        with contextlib.ExitStack() as stack:
            address: Any = self.scheduler
            if address is None:
                address = stack.enter_context(
                    LocalCluster(
                        n_workers=self.workers,
                        threads_per_worker=1,
                        dashboard_address=":0",
                        silence_logs=logging.ERROR,
                    )
                )
            try:
                stack.enter_context(Client(address, timeout=PATIENCE))
            except (OSError, TimeoutError, ValueError):
                raise DataError(
                    f"the scheduler at {self.scheduler} does not answer within {PATIENCE}. Check the address, or start one "
                    "with --workers."
                ) from None
            yield dd.read_parquet(list(files.files), split_row_groups="infer")

    def _fits(self, rows: Any) -> dict[str, Fit]:
        """The fit that was asked for first, by what it is called."""
        from robustly.glm.fit import fit_glm
        from robustly.glm.formula import read_formula

        read = read_formula(self.formula, rows, self.family, **self.columns)
        common: dict[str, Any] = {"formula": read.columns, "max_iter": self.max_iter}
        if read.groups is not None:
            from robustly.glm.grouped.fit import fit_grouped

            local: Any = None if self.local in ("auto", "none") else self.local
            degrees = None if self.dof in ("fit", "auto") else degrees_of(self.dof)
            options: dict[str, Any] = {"local": local, "group_law": self.group_law, "dof": degrees}
            return {
                "mixed": fit_grouped(
                    read.groups, read.family, effects=read.effects, checkpoint=self.checkpoint, **options, **common
                )
            }
        kept = lambda name: None if self.checkpoint is None else self.checkpoint / name
        classical = fit_glm(read.design, read.family, local=None, checkpoint=kept("classical"), **common)
        if self.local == "none":
            return {"robust": classical, "classical": classical}
        options = {"prior": self.prior, "dof": degrees_of(self.dof), "checkpoint": kept("robust")}
        robust = fit_glm(read.design, read.family, local=self.local, **options, **common)
        return {"robust": robust, "classical": classical}

    def _facts(self, fits: Mapping[str, Fit], outliers: Any) -> dict[str, Any]:
        models = {
            name: {
                "outcome": {"kind": fit.outcome.kind, "text": fit.outcome.text, "converged": fit.outcome.converged},
                "log likelihood": fit.log_likelihood,
                "shared": dict(fit.shared),
                "coefficients": {
                    term: {"estimate": fit.coefficients[term], "standard error": fit.standard_errors[term]}
                    for term in fit.terms
                },
                "notes": list(fit.notes),
            }
            for name, fit in fits.items()
        }
        fit = next(iter(fits.values()))
        rows = len(fit.weight) if fit.row_count is None else fit.row_count
        about = {"data": str(self.data), "formula": self.formula, "family": self.family, "rows": rows}
        return {**about, **models, "outliers": outliers}
