"""What do the commands about regressions ask for? A file and a formula, each read once; fits of them; rows with their lines."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robustly.errors import DataError, PersistError, RobustlyError
from robustly.rows.paths import refuse_missing_file

if TYPE_CHECKING:
    import pandas as pd

    from robustly.glm.formula import FormulaRows
    from robustly.glm.result import GLMFit
    from robustly.report.findings import Findings
    from robustly.rows.files import FileTable

MOST_MOVED = 5


@dataclass
class RegressionRequest:
    """A table and a formula about it. The rows are made from the two once, and the classical model is fitted once."""

    table: FileTable
    formula: str
    family: str
    columns: dict[str, Any]
    """Weights, offset, exposure and trials by the names of their columns, and the ridge penalty."""
    reads: frozenset[str]
    """The columns that the formula reads."""
    max_iter: int = 100
    _rows: dict[str, FormulaRows] = field(default_factory=dict)
    _classical: dict[str, GLMFit] = field(default_factory=dict)

    @property
    def has_groups(self) -> bool:
        """Whether the formula has bars."""
        from robustly.glm.formula_bars import take_bars

        return bool(take_bars(self.formula)[1])

    def fit(self, local: str | None, family: str | None = None, **options: Any) -> GLMFit:
        """One fit; what several of them share is made by the first."""
        from robustly.glm.fit import fit_glm
        from robustly.glm.formula import read_formula

        name = family or self.family
        if name not in self._rows:
            self._rows[name] = read_formula(self.formula, self.table.frame, name, **self.columns)
        rows, known = self._rows[name], self._classical.get(name)
        if local is None and known is not None:
            return known
        found = fit_glm(
            rows.design,
            rows.family,
            local=local,
            classical=known,
            max_iter=self.max_iter,
            **rows.told,
            **options,
        )
        if local is None:
            self._classical[name] = found
        return found

    def fit_both(self, local: str, prior: str, fdr: float, dof: str) -> Findings:
        """The robust and the classical fit, and what sets them apart."""
        from robustly.report.findings import Findings

        if not 0 < fdr < 1:
            raise DataError(f"--fdr is a share between 0 and 1; got {fdr}. 0.05 is usual.")
        degrees = degrees_of(dof)
        own = None if local == "none" else local
        with told():
            classical = self.fit(None)
            robust = classical if own is None else self.fit(own, prior=prior, dof=degrees)
        frame = self.table.frame
        first = [name for name in frame.columns if str(name) in self.reads]
        return Findings(robust, classical, fdr, frame[[*first, *(name for name in frame.columns if name not in first)]])


def read_request(
    path: Path,
    formula: str,
    family: str,
    columns: dict[str, Any],
    delimiter: str | None,
    encoding: str,
    decimal: str,
    max_iter: int = 100,
) -> RegressionRequest:
    """The table and the formula, if the one can be what the other speaks of."""
    refuse_missing_file(path)
    from robustly.glm.formula import variables_of
    from robustly.glm.formula_frames import refuse_texts
    from robustly.glm.named import as_family
    from robustly.rows.files import read_table, refuse_stray_texts, refuse_wrong_delimiter

    as_family(family)
    table = read_table(path, delimiter, encoding, decimal)
    with about(table):
        asked = variables_of(formula, map(str, table.frame.columns))
        refuse_wrong_delimiter(table, asked.reads)
        refuse_stray_texts(table, asked.plain)
        for name in sorted(asked.computed & set(table.frame.columns)):
            refuse_texts(table.frame[name], name)
    return RegressionRequest(table, formula, family, columns, asked.reads, max_iter)


def degrees_of(dof: str) -> float | str | None:
    """Degrees of freedom as they were typed; None to fit them."""
    try:
        return None if dof == "fit" else dof if dof == "auto" else float(dof)
    except ValueError:
        raise DataError(f'--dof is a number above 0, or "fit" to estimate it, or "auto"; got {dof!r}.') from None


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Warnings of ours as single lines on stderr, each once."""
    from robustly.errors import ConvergenceWarning, HeavyTailsWarning, IdentifiabilityWarning, ManyLevelsWarning

    with warnings.catch_warnings(record=True) as caught:
        for ours in (ConvergenceWarning, HeavyTailsWarning, IdentifiabilityWarning, ManyLevelsWarning):
            warnings.simplefilter("always", ours)
        yield
    for message in dict.fromkeys(str(one.message) for one in caught):
        print(f"robustly: warning: {message}", file=sys.stderr)


@contextlib.contextmanager
def about(table: FileTable) -> Iterator[None]:
    """Errors about rows name the file and the line."""
    try:
        yield
    except PersistError:
        raise
    except RobustlyError as error:
        if str(error).startswith(str(table.path)):
            raise
        raise type(error)(table.located(str(error))) from error


def with_lines(rows: pd.DataFrame, table: FileTable) -> pd.DataFrame:
    """Rows of a table, with the lines of the file in which they stand."""
    found = rows.copy()
    if len(rows) and table.line(0) is not None:
        found.insert(1, "line", [table.line(int(row)) for row in rows["row"]])
    return found


def counting(title: str, table: FileTable) -> str:
    """A title that says how rows are counted."""
    return f"{title} (rows count from 0" + ("; row 0 is line 2 of the file)" if table.line(0) is not None else ")")
