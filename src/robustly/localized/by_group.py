"""What can be asked of a program whose local values belong to groups of rows? Evidences and posteriors by group."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from robustly.approx import default_approximation
from robustly.errors import LocalizeError, ModelError, did_you_mean
from robustly.fit.passes import passes
from robustly.fit.problem import Found
from robustly.localized.rows import RowSource
from robustly.localized.source import ProgramModel
from robustly.model.program.arguments import Arguments
from robustly.model.program.read import Program
from robustly.result.outliers import Judgement
from robustly.rows.groups import Grouping, group_rows
from robustly.rows.store import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def take_groups(model: Callable[..., Any], by: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Grouping:
    """The groups of a call: an argument of the model, or one beside them that the model does not take."""
    signature = inspect.signature(model)
    if by in signature.parameters:
        values = signature.bind_partial(*args, **kwargs).arguments.get(by)
    else:
        values = kwargs.pop(by, None)
    if values is None:
        raise LocalizeError(
            f'by="{by}" names the groups of the rows, and the call has none. Give them: fit(…, {by}=…), one value a row.'
            + did_you_mean(by, kwargs)
        )
    return group_rows(values, by)


class GroupedProgramSource(RowSource):
    """The groups of a program."""

    def judge(self) -> Judgement | None:
        """By a law in two parts where one was asked for, else by their tails."""
        return None if self.judged is None else self.judged()

    def __init__(self, found: Found, rows: Rows, program: Program, arguments: Arguments, grouping: Grouping) -> None:
        super().__init__(found, rows)
        self.program, self.grouping = program, grouping
        # New rows are predicted as rows of new groups: one by one they are like rows with a value of their own.
        row = program.row_model
        self.model = ProgramModel(
            program, arguments, passes(row, default_approximation(row)), found.vector[: row.parameters.size]
        )

    def has_posterior(self, site: str) -> bool:
        return site in self.program.sites.local

    def _shape_of(self, site: str | None) -> tuple[tuple[int, ...], slice]:
        if len(self.program.sites.local) > 1:
            place = 0
            for name in sorted(self.program.sites.local):
                shape = np.shape(self.program.trace[name]["value"])
                size = int(np.prod(shape, dtype=int))
                if name == site:
                    return shape, slice(place, place + size)
                place += size
            raise ModelError(f'site "{site}" is not local.')
        return np.shape(self.program.trace[self.program.sites.local[0]]["value"]), slice(None)

    def group_effects(self) -> pd.DataFrame:
        """Posterior means and standard deviations of the groups' own values."""
        columns: dict[str, Any] = {"rows": self.grouping.sizes}
        for site in self.program.sites.local:
            found = self.posterior(site)
            mean, sd = (np.reshape(part, (len(self.grouping), -1)) for part in (found.mean, found.sd))
            for i in range(mean.shape[1]):
                label = site if mean.shape[1] == 1 else f"{site}[{i}]"
                columns |= {label: mean[:, i], f"sd {label}": sd[:, i]}
        return pd.DataFrame(columns, index=pd.Index(self.grouping.labels, name=self.grouping.name))
