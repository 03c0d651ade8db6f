"""What can be asked of a program whose local values belong to groups of rows? Evidences and posteriors by group."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np

from robustly.approx import default_approximation
from robustly.errors import DataError, LocalizeError, ModelError, RobustlyError, did_you_mean
from robustly.fit.passes import passes
from robustly.fit.problem import Found
from robustly.localized.rows import RowSource
from robustly.localized.source import ProgramModel
from robustly.localized.stored import any_stored
from robustly.model.program.arguments import Arguments, read_arguments
from robustly.model.program.one_copy import groups_of_rows
from robustly.model.program.read import Program
from robustly.model.program.request import Request
from robustly.result.outliers import Judgement
from robustly.rows.groups import Grouping, group_rows
from robustly.rows.store import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd


def take_labels(model: Callable[..., Any], by: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What says the groups of a call: an argument of the model, or one beside them that the model does not take."""
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
    return values


def groups_in_model(request: Request, by: str | None, args: Sequence[Any], kwargs: dict[str, Any]) -> Grouping | None:
    """The groups by which a model has values of its own sites, ``a[group]``; None where the groups that `by` names are not these."""
    if any_stored(args, kwargs):
        if by is None:
            raise DataError(
                "integrate() needs rows in memory: the group of each is found by running the model on all of them. Write the model "
                'with one value and name the groups, localize(model, site, by="group"), which takes rows anywhere.'
            )
        return None
    stated = None if by is None else group_rows(take_labels(request.model, by, args, kwargs), by)
    arguments = read_arguments(request.model, args, kwargs)
    try:
        own = groups_of_rows(request.model, request.sites, arguments, request.plate)
    except Exception as error:
        if stated is not None:  # a site that no group has yet
            return None
        if isinstance(error, RobustlyError):
            raise
        raise LocalizeError(
            f"the model could not be run with these arguments: {type(error).__name__}: {str(error).splitlines()[0]}. Try "
            "handlers.seed(model, 0)(…) with the same arguments."
        ) from error
    groups = group_rows(own, by or "group")
    if stated is None:
        return groups
    return stated if stated.row_count == len(own) and np.array_equal(groups.of_row, stated.of_row) else None


class GroupedProgramSource(RowSource):
    """The groups of a program."""

    def judge(self) -> Judgement | None:
        """By a law in two parts where one was asked for, else by their tails."""
        return None if self.judged is None else self.judged()

    def tail_probabilities(self) -> np.ndarray:
        raise ModelError(
            "the units of this fit are groups, which have no tail probabilities. Localize with contaminated=True to have a probability "
            "for each group, or rank groups by fit.surprise."
        )

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
        import pandas as pd

        columns: dict[str, Any] = {"rows": self.grouping.sizes}
        for site in self.program.sites.local:
            found = self.posterior(site)
            mean, sd = (np.asarray(part).reshape(len(self.grouping), -1) for part in (found.mean, found.sd))
            for i in range(mean.shape[1]):
                label = site if mean.shape[1] == 1 else f"{site}[{i}]"
                columns |= {label: mean[:, i], f"sd {label}": sd[:, i]}
        return pd.DataFrame(columns, index=pd.Index(self.grouping.labels, name=self.grouping.name))
