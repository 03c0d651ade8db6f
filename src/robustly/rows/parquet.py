"""Which columns of which Parquet files are the rows? Read batch by batch, never whole, with errors that name the file."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from robustly._runtime.numba_loops import MANY_ROWS
from robustly.errors import DataError
from robustly.rows.columns_to_rows import matrix_of_columns
from robustly.rows.scratch import Scratch
from robustly.rows.stored import Layout, Stored, some_names
from robustly.rows.streamed import Piece, Pieces, StreamedRows

ENDINGS = (".parquet", ".pq")
# Rows that are read at a time, of so many columns or more: they are laid side by side, which is done faster in the cache. Of
# fewer columns more rows are read, as what surrounds a batch shows.
BATCH, BATCH_COLUMNS = 1 << 14, 16


def parquet(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], columns: str | Sequence[str] | None = None
) -> ParquetColumns:
    """Rows of Parquet files, to be given to a fit in place of arrays or a data frame.

    They are read in batches, so that a set of files may be larger than memory; a fit decodes them once, into temporary files
    without a name, if there is room for them. Where a list of columns is given it stands for a matrix, a single name for a
    vector, and no columns for a data frame with all of them.

    Args:
        path: a file, a folder (all ``.parquet`` files in it, in the order of their names), a pattern such as
            ``"data/2024-*.parquet"``, or a list of files.
        columns: names of columns.

    Example:
        >>> import numpy as np, pandas as pd, robustly as rb
        >>> rng = np.random.default_rng(0)
        >>> frame = pd.DataFrame({"x": rng.normal(size=300), "count": rng.poisson(3.0, 300)})
        >>> frame.to_parquet("visits.parquet")
        >>> fit = rb.glm("count ~ x", rb.parquet("visits.parquet"))
        >>> model = rb.RobustPoissonRegression().fit(rb.parquet("visits.parquet", columns=["x"]), "count")
        >>> bool(np.allclose(fit.coefficients["x"], model.coef_[0], atol=1e-8))
        True
    """
    found = tuple(_named_files(path))
    table = ParquetColumns(files=found)
    if columns is None:
        return table
    return table.pick(columns if isinstance(columns, str) else tuple(columns))


@dataclass(frozen=True, eq=False)
class ParquetColumns(Stored):
    """Some columns of some Parquet files; made by :func:`parquet`."""

    files: tuple[str, ...] = ()
    _known: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def _facts(self) -> dict[str, Any]:
        """What the files say of themselves: kinds of columns, the same in all files, and rows by file."""
        if not self._known:
            self._known.update(_facts_of(self.files))
        return self._known

    @property
    def counts(self) -> tuple[int, ...]:
        """Rows in each file."""
        return self._facts["counts"]

    @property
    def kinds(self) -> dict[str, str]:
        """What each column of the files holds: ``"float"``, ``"int"``, ``"bool"``, ``"text"`` or another type."""
        return self._facts["kinds"]

    @property
    def there(self) -> tuple[str, ...]:
        return tuple(self.kinds)

    @property
    def where(self) -> str:
        return self.files[0]

    def __len__(self) -> int:
        return sum(self.counts)

    def rows(self, asked: Sequence[Any], layout: Layout) -> StreamedRows:
        pieces = ParquetPieces(tuple(asked))
        scratch = Scratch() if layout.many_passes else None
        return StreamedRows(pieces, layout.recipe, layout.labels, layout.chunk, layout.padded, scratch=scratch)


def _named_files(path: Any) -> list[str]:
    if isinstance(path, list | tuple):
        found = [one for each in path for one in _named_files(each)]
        if not found:
            raise DataError("no Parquet files were named; got an empty list.")
        return found
    text = os.fspath(path)
    if os.path.isdir(text):
        inside = sorted(
            str(one)
            for one in Path(text).rglob("*")
            if one.suffix.lower() in ENDINGS and not one.name.startswith((".", "_"))
        )
        if not inside:
            raise DataError(
                f"{text} is a folder that holds no .parquet files. Name a file, or a folder or pattern that has some."
            )
        return inside
    if os.path.exists(text):
        return [text]
    if glob.has_magic(text):
        found = sorted(one for one in glob.glob(text, recursive=True) if os.path.isfile(one))
        if not found:
            raise DataError(f"no file matches {text}. Check the pattern.")
        return found
    raise DataError(f"there is no file or folder {text}. Check the path.")


def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(
            'reading Parquet files piece by piece needs pyarrow: pip install "robustly[distributed]".'
        ) from error
    return pyarrow


def _kind_of_arrow(arrow: Any, kind: Any) -> str:
    types = arrow.types
    if types.is_dictionary(kind):
        return _kind_of_arrow(arrow, kind.value_type)
    if types.is_floating(kind) or types.is_decimal(kind):
        return "float"
    if types.is_integer(kind):
        return "int"
    if types.is_boolean(kind):
        return "bool"
    if types.is_string(kind) or types.is_large_string(kind):
        return "text"
    return str(kind)


def _facts_of(files: Sequence[str]) -> dict[str, Any]:
    arrow = _arrow()
    kinds: dict[str, str] = {}
    counts = []
    for path in files:
        file = _opened_file(arrow, path)
        with file:
            here = {one.name: _kind_of_arrow(arrow, one.type) for one in file.schema_arrow}
            counts.append(file.metadata.num_rows)
        if not kinds:
            kinds = here
            continue
        for name, kind in kinds.items():
            if name not in here:
                raise DataError(
                    f'{path} has no column "{name}", which {files[0]} has; it has {some_names(list(here))}. Files that are read '
                    "together have the same columns."
                )
            if here[name] != kind and {here[name], kind} != {"int", "float"}:
                raise DataError(
                    f'column "{name}" is {here[name]} in {path}, but {kind} in {files[0]}. Write one of them again with '
                    "the other's type."
                )
            if here[name] != kind:
                kinds[name] = "float"
    if not sum(counts):
        raise DataError(f"{files[0]}{' and the others' if len(files) > 1 else ''}: there are no rows to fit.")
    return {"kinds": kinds, "counts": tuple(counts)}


def _opened_file(arrow: Any, path: str) -> Any:
    try:
        # Buffered beforehand, all row groups of a file would be in memory at once.
        return arrow.parquet.ParquetFile(path, pre_buffer=False)
    except (arrow.ArrowException, OSError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: str, error: BaseException) -> DataError:
    text = " ".join(str(error).split())[:300]
    return DataError(f"{path} cannot be read as Parquet: {text} Is it whole? Write it again, or leave it out.")


def arrow_batches(table: ParquetColumns, wanted: Sequence[str], size: int) -> Iterator[tuple[str, int, Any]]:
    """Some columns of the files batch by batch: the file, the number of the first row in it, and an Arrow batch."""
    arrow = _arrow()
    for path, expected in zip(table.files, table.counts):
        at = 0
        with _opened_file(arrow, path) as file:
            batches = file.iter_batches(batch_size=size, columns=list(wanted), use_threads=False)
            while True:
                try:
                    batch = next(batches, None)
                except (arrow.ArrowException, OSError) as error:
                    raise _unreadable(path, error) from None
                if batch is None:
                    break
                if batch.num_rows:
                    yield path, at, batch
                at += batch.num_rows
        if at != expected:
            raise DataError(f"{path} had {expected} rows and now has {at}. Leave files as they are during a fit.")


@dataclass(frozen=True, eq=False)
class ParquetPieces(Pieces):
    """Batches of rows; the parts of a piece are matrices, vectors or frames, as their columns were asked for."""

    asked: tuple[ParquetColumns, ...]

    def __post_init__(self) -> None:
        first = self.asked[0]
        for other in self.asked[1:]:
            if not isinstance(other, ParquetColumns):
                raise DataError(
                    f"columns of one fit come from the same files, but beside {first.files[0]} something else was given. "
                    "Give the names of columns, or rb.parquet(path, columns=…) with the same path."
                )
            if other.files != first.files:
                raise DataError(
                    f"columns of one fit come from the same files, but {first.files[0]} and {other.files[0]} were named. Put "
                    "them into one file or folder."
                )

    def __len__(self) -> int:
        return len(self.asked[0])

    def __iter__(self) -> Iterator[Piece]:
        wanted = list(dict.fromkeys(name for one in self.asked for name in one.listed))
        size = BATCH * max(1, BATCH_COLUMNS // len(wanted))
        for path, at, batch in arrow_batches(self.asked[0], wanted, size):
            yield Piece(tuple(self._part(path, at, batch, one) for one in self.asked), batch.num_rows, path, at)

    def _part(self, path: str, first: int, batch: Any, one: ParquetColumns) -> Any:
        if one.is_frame:
            return batch.select(list(one.listed)).to_pandas()
        if isinstance(one.columns, str):
            return _vector(path, first, batch, one.columns, one.kinds[one.columns])
        kinds = one.kinds
        for name in one.listed:
            if kinds[name] not in ("float", "int", "bool"):
                raise DataError(
                    f'{path}: column "{name}" holds {kinds[name]}, but numbers are needed. Encode it, or write a formula: '
                    f'rb.glm("y ~ {name}", rb.parquet(…)).'
                )
        columns = [_values(whole_column(path, first, batch, name), "float") for name in one.listed]
        found, total = matrix_of_columns(columns, by_loop=len(one) >= MANY_ROWS)
        if not np.isfinite(total):
            for name, column in zip(one.listed, columns):
                _refuse_missing_numbers(path, first, column, name)
        return found


def whole_column(path: str, first: int, batch: Any, name: str) -> Any:
    """A column of a batch, in which no value is missing."""
    column = batch.column(name)
    if column.null_count:
        row = first + int(np.flatnonzero(np.asarray(column.is_null()))[0])
        more = f" and {column.null_count - 1} more of the batch" if column.null_count > 1 else ""
        raise DataError(f'{path}: column "{name}" holds a missing value in row {row}{more}. Drop or fill these rows.')
    return column


def _vector(path: str, first: int, batch: Any, name: str, kind: str) -> np.ndarray:
    found = _values(whole_column(path, first, batch, name), kind)
    if kind == "float":
        _refuse_missing_numbers(path, first, found, name)
    return found


def _values(column: Any, kind: str) -> np.ndarray:
    """A column as an array; numbers with 64 bits."""
    if hasattr(column, "dictionary_decode"):
        column = column.dictionary_decode()
    found = column.to_numpy(zero_copy_only=False)
    return found.astype({"float": np.float64, "int": np.int64}.get(kind, found.dtype), copy=False)


def _refuse_missing_numbers(path: str, first: int, found: np.ndarray, name: str) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(found.sum()):
            return
    bad = np.flatnonzero(~np.isfinite(found))
    if bad.size:
        what = "a missing value (NaN)" if np.isnan(found[bad[0]]) else f"{found[bad[0]]}"
        more = f" and {bad.size - 1} more of the batch" if bad.size > 1 else ""
        raise DataError(
            f'{path}: column "{name}" holds {what} in row {first + int(bad[0])}{more}. Drop or fill these rows.'
        )
