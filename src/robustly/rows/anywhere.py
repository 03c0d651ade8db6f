"""Is what a fit was given in memory or elsewhere? Columns of Parquet files and Dask collections are told from arrays here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from robustly.errors import DataError
from robustly.rows.dask import DaskRows
from robustly.rows.groups import Grouping, GroupRows, SideBySide
from robustly.rows.sorted_files import read_grouping, sorted_by_group, streamed_units
from robustly.rows.store import Rows
from robustly.rows.stored import Layout, Stored
from robustly.rows.streamed import StreamedRows

if TYPE_CHECKING:
    from robustly.rows.dask_groups import DaskGroupRows


def as_stored(value: Any) -> Stored | None:
    """Columns of rows that live elsewhere, or None for anything else."""
    if isinstance(value, Stored):
        return value
    if not (hasattr(value, "__dask_graph__") and hasattr(value, "to_delayed")):
        return None
    from robustly.rows.dask_columns import DaskColumns

    return DaskColumns.of(value)


def rows_from(asked: Sequence[Stored], layout: Layout) -> Rows:
    """A store of columns of the same rows; the recipe gets them in this order."""
    return asked[0].rows(asked, layout)


def along(rows: Stored, given: Any, label: str) -> Stored:
    """What goes along with rows: one of their columns by its name, or columns of the same rows."""
    if isinstance(given, str):
        return rows.pick(given)
    found = as_stored(given)
    if found is None:
        raise DataError(
            f"{label} is in memory, but the rows are in {rows.where}. Give the name of a column, or columns of the same "
            "rows."
        )
    return found


def grouping_from(labels: Rows, name: str) -> Grouping:
    """The groups of rows that have nothing but the label of their group, in the order of their first rows."""
    if isinstance(labels, StreamedRows):
        return read_grouping(labels, name)
    from robustly.rows.dask_groups import dask_grouping

    assert isinstance(labels, DaskRows)
    return dask_grouping(labels, name)


def sorted_from(
    rows: Rows, grouping: Grouping, inner: Grouping | None = None
) -> tuple[GroupRows | DaskGroupRows, Grouping, tuple[str, ...]]:
    """The same rows in groups, the grouping of rows so kept, and a note where they had stood apart.

    After the arrays of the rows come their weights, and the numbers of the groups within the groups where there are such.
    """
    if isinstance(rows, StreamedRows):
        return sorted_by_group(rows, grouping, inner)
    from robustly.rows.dask_groups import shuffled_by_group

    assert isinstance(rows, DaskRows)
    return shuffled_by_group(rows, grouping, inner)


def units_from(rows: Rows, grouping: Grouping, chunk: int) -> tuple[Rows, Grouping, tuple[str, ...]]:
    """Groups of rows as units of one shape, the grouping of rows as they are kept, and a note where they had stood apart."""
    make = SideBySide.of(grouping, chunk)
    kept, grouping, notes = sorted_from(rows, grouping)
    units = streamed_units(kept, make) if isinstance(kept, GroupRows) else kept.units(make)
    return units, grouping, notes


def in_memory_if_stored(value: Any) -> Any:
    """Columns that live elsewhere as an array; everything else as it came."""
    stored = as_stored(value)
    return value if stored is None else stored.gathered()
