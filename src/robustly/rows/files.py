"""From a file to a table: CSV, TSV and Parquet, with errors that name the file, the line and the column.

Data rows count from 0, as everywhere in the package. In a text file without blank lines or line breaks inside quotes, row 0
is line 2, after the header; :meth:`FileTable.line` knows when that holds.
"""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Set
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from robustly.errors import DataError, names

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
PARQUET = (".parquet", ".pq")
TABBED = (".tsv", ".tab")


@dataclass(frozen=True, eq=False)
class FileTable:
    """What a file holds: `frame`, and where its rows stand in the file."""

    path: Path
    frame: pd.DataFrame = field(repr=False)
    delimiter: str | None = None
    one_line_a_row: bool = False

    def line(self, row: int) -> int | None:
        """The line of the file in which a data row stands, the header being line 1."""
        return int(row) + 2 if self.one_line_a_row else None

    def located(self, message: str) -> str:
        """An error of the library about these rows, with the file and the line of the row it names."""
        found = re.search(r"\brow (\d+)", message)
        line = None if found is None else self.line(int(found[1]))
        if found is not None and line is not None:
            message = f"{message[: found.end()]} (line {line}){message[found.end() :]}"
        return f"{self.path}: {message}"


def read_table(path: Path, delimiter: str | None = None, encoding: str = "utf-8", decimal: str = ".") -> FileTable:
    """Read a table; the ending of its name says what it is, and text that is neither Parquet nor TSV is taken for CSV."""
    if not path.exists():
        near = _near(path)
        raise DataError(f"there is no file {path}.{near}")
    if path.is_dir():
        raise DataError(f"{path} is a folder; name a CSV, TSV or Parquet file in it.")
    try:
        with path.open("rb") as stream:
            head = stream.read(65536)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}.") from error
    if not head:
        raise DataError(f"{path} is empty; a header line and rows of data are needed.")
    if path.suffix.lower() in PARQUET or head[:4] == b"PAR1":
        return FileTable(path, _read_parquet(path))
    return _read_text(path, head, delimiter, encoding, decimal)


def _near(path: Path) -> str:
    import difflib

    try:
        there = [one.name for one in path.parent.iterdir() if one.is_file()]
    except OSError:
        return f" The folder {path.parent} is not there either."
    near = difflib.get_close_matches(path.name, there, n=1)
    return f' Did you mean "{near[0]}"?' if near else " Check the path."


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        frame = pd.read_parquet(path)
    except ImportError as error:
        raise DataError(f"{path} is a Parquet file, and reading it needs pyarrow: pip install pyarrow.") from error
    except Exception as error:  # pyarrow's errors have no common class of their own.
        raise DataError(f"{path} cannot be read as Parquet: {_one_line(error)}") from error
    return _checked_columns(path, frame.reset_index(drop=True))


def _read_text(path: Path, head: bytes, delimiter: str | None, encoding: str, decimal: str) -> FileTable:
    packed = path.suffix.lower() in (".gz", ".bz2", ".xz", ".zip", ".zst")
    if not packed and b"\0" in head:
        raise DataError(f"{path} is a binary file, not a table. Give a CSV, TSV or Parquet file.")
    kind = Path(path.stem).suffix.lower() if packed else path.suffix.lower()
    separator = delimiter or ("\t" if kind in TABBED else ",")
    if separator == "\\t":
        separator = "\t"
    if len(separator) != 1:
        raise DataError(f"a delimiter is one character; got {separator!r}.")
    if decimal not in (".", ",") or decimal == separator:
        raise DataError(f"--decimal is a point or a comma, other than the delimiter; got {decimal!r}.")
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            header = pd.read_csv(
                path, sep=separator, header=None, nrows=1, dtype=str, encoding=encoding, index_col=False
            )
            columns = ["" if pd.isna(one) else str(one) for one in header.iloc[0]]
            _refuse_columns(path, columns)
            frame = pd.read_csv(
                path, sep=separator, encoding=encoding, decimal=decimal, index_col=False, low_memory=False
            )
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path} is not {encoding} text: byte {error.object[error.start]:#04x} cannot be read. Save it as UTF-8, "
                "or name its encoding, e.g. --encoding latin-1."
            ) from None
        except LookupError:
            raise DataError(f"there is no encoding {encoding!r}. Try utf-8 or latin-1.") from None
        except pd.errors.EmptyDataError:
            raise DataError(f"{path} has no columns; a header line and rows of data are needed.") from None
        except (pd.errors.ParserError, pd.errors.ParserWarning, OSError, EOFError, csv.Error) as error:
            raise DataError(f"{path} cannot be read as a table: {_said(error)}") from None
    frame.columns = columns
    single = not packed and _lines(path) == len(frame) + 1
    return FileTable(path, _checked_columns(path, frame), separator, single)


def _said(error: BaseException) -> str:
    """pandas' complaint about a line, in our words."""
    found = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error))
    if found:
        return f"line {found[2]} has {found[3]} fields, but the header has {found[1]}. Quote values that hold the delimiter."
    if isinstance(error, pd.errors.ParserWarning):
        return "its rows have more fields than its header. Name every column in the first line."
    return _one_line(error)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def _lines(path: Path) -> int:
    count, last = 0, b"\n"
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")


def _refuse_columns(path: Path, columns: list[str]) -> None:
    twice = sorted({_short(one) for one in columns if columns.count(one) > 1})
    if twice:
        raise DataError(
            f"{path} has the columns {names(twice)} more than once. Give every column a name of its own."
            if twice != [""]
            else f"{path} has {columns.count('')} columns without a name. Name every column in the first line."
        )


def _checked_columns(path: Path, frame: pd.DataFrame) -> pd.DataFrame:
    if not len(frame.columns):
        raise DataError(f"{path} has no columns; a header line and rows of data are needed.")
    if not len(frame):
        raise DataError(f"{path} has a header but no rows.")
    return frame


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "…"


def refuse_wrong_delimiter(table: FileTable, wanted: Set[str]) -> None:
    """A table of one column whose header holds the names that were asked for, joined by another delimiter."""
    if len(table.frame.columns) != 1 or table.delimiter is None:
        return
    (header,) = table.frame.columns
    for other, called in DELIMITERS.items():
        parts = {part.strip().strip('"') for part in str(header).split(other)}
        if other != table.delimiter and len(parts) > 1 and parts & wanted:
            shown = "\\t" if other == "\t" else other
            raise DataError(
                f"{table.path} was read with {DELIMITERS.get(table.delimiter, repr(table.delimiter))}s between columns, which "
                f"gives one column only; it seems to use {called}s. Add --delimiter '{shown}'."
            )


def refuse_stray_texts(table: FileTable, plain: Set[str]) -> None:
    """Columns used as they are that can hardly be categories: numbers with a slip in some rows, or nearly as many words as rows."""
    for name in sorted(plain & {str(one) for one in table.frame.columns}):
        column = table.frame[name]
        if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
            continue
        good = pd.to_numeric(column, errors="coerce").notna().to_numpy()
        bad = np.flatnonzero(~good & ~column.isna().to_numpy())
        many = column.nunique() > max(20, 0.5 * len(column))
        if not bad.size or not (many or good.sum() >= bad.size):
            continue
        value = str(column.iloc[bad[0]])
        what = f"{column.nunique()} different words in {len(column)} rows" if many else "numbers in most others"
        advice = "Correct these rows"
        if re.fullmatch(r"\s*[-+]?\d+,\d+\s*", value):
            advice = "If that is a decimal comma, add --decimal ','"
        raise DataError(
            f'column "{_short(name)}" holds "{_short(value)}" in row {bad[0]}, and {what}. {advice}, or write '
            f"C({_short(name)}) if it is a category."
        )
