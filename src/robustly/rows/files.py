"""From a file to a table: CSV, TSV, JSON lines, Excel and Parquet, with errors that name the file, the line and the column.

Data rows count from 0, as everywhere in the package. In a text file without blank lines or line breaks inside quotes, row 0
is line 2, after the header; :meth:`FileTable.line` knows when that holds.
"""

from __future__ import annotations

import csv
import gzip
import importlib.util
import io
import re
import sys
import warnings
from collections.abc import Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from robustly.errors import DataError, names
from robustly.rows.paths import refuse_missing_file

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
PARQUET = (".parquet", ".pq")
TABBED = (".tsv", ".tab")
EXCEL = (".xlsx", ".xlsm")
JSON_LINES = (".jsonl", ".ndjson")
KNOWN = "a CSV, TSV, Parquet, Excel or JSON lines file"


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
    """Read a table; the ending of its name says what it is, and text that nothing else is known of is taken for CSV.

    ``-`` is standard input. What can be read only once (a pipe) is held in memory.
    """
    refuse_missing_file(path)
    source, content = _opened(path)
    try:
        head = content[:65536] if content is not None else _head(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}.") from error
    if not head:
        raise DataError(f"{source} is empty; a header line and rows of data are needed.")
    suffixes = [one.lower() for one in path.suffixes]
    kind = next((one for one in reversed(suffixes) if one not in PACKED), "")
    if kind in PARQUET or head[:4] == b"PAR1":
        return FileTable(source, _read_other(source, content, "Parquet", "pyarrow", pd.read_parquet))
    if kind in EXCEL:
        return FileTable(source, _read_other(source, content, "an Excel sheet", "openpyxl", pd.read_excel))
    if kind in JSON_LINES or (not kind and head.lstrip()[:1] == b"{"):
        return FileTable(source, _read_other(source, content, "JSON lines", "", _json_lines, encoding=encoding))
    return _read_text(source, content, head, delimiter, encoding, decimal)


PACKED = (".gz", ".bz2", ".xz", ".zip", ".zst")


def _head(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(65536)


def _opened(path: Path) -> tuple[Path, bytes | None]:
    """What to call the file, and its content where it can be read only once."""
    if str(path) != "-" and path.is_file():
        return path, None
    try:
        content = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    except (OSError, EOFError) as error:
        raise DataError(f"cannot read {path}: {_one_line(error)}.") from error
    return (Path("standard input") if str(path) == "-" else path), content


def _json_lines(source: Any, encoding: str) -> pd.DataFrame:
    return pd.read_json(source, lines=True, encoding=encoding)


def _read_other(path: Path, content: bytes | None, what: str, needs: str, read: Any, **options: Any) -> pd.DataFrame:
    """A table by one of pandas' other readers."""
    if needs and importlib.util.find_spec(needs) is None:
        raise DataError(f"{path} is {what}, and reading it needs {needs}: pip install {needs}.")
    try:
        frame = read(path if content is None else io.BytesIO(content), **options)
    except Exception as error:  # the readers' errors have no common class
        raise DataError(f"{path} cannot be read as {what}: {_one_line(error)}") from error
    frame.columns = [str(name) for name in frame.columns]
    _refuse_columns(path, list(frame.columns))
    return _checked_columns(path, frame.reset_index(drop=True))


def _read_text(
    path: Path, content: bytes | None, head: bytes, delimiter: str | None, encoding: str, decimal: str
) -> FileTable:
    packed = content is None and path.suffix.lower() in PACKED
    wide = encoding.lower().replace("_", "-").startswith(("utf-16", "utf-32", "utf16", "utf32"))
    if not packed and not wide and head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{path} is UTF-16 text. Add --encoding utf-16, or save it as UTF-8.")
    if not packed and not wide and b"\0" in head:
        raise DataError(f"{path} is a binary file, not a table. Give {KNOWN}.")
    again = lambda: path if content is None else io.BytesIO(content)
    kind = Path(path.stem).suffix.lower() if packed else path.suffix.lower()
    separator = delimiter or ("\t" if kind in TABBED else ",")
    if separator == "\\t":
        separator = "\t"
    if len(separator) != 1 or separator in '\r\n"\0':
        raise DataError(f"a delimiter is one character other than a quote or the end of a line; got {separator!r}.")
    if decimal not in (".", ",") or decimal == separator:
        raise DataError(f"--decimal is a point or a comma, other than the delimiter; got {decimal!r}.")
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            header = pd.read_csv(
                again(), sep=separator, header=None, nrows=1, dtype=str, encoding=encoding, index_col=False
            )
            columns = ["" if pd.isna(one) else str(one) for one in header.iloc[0]]
            _refuse_columns(path, columns)
            frame = pd.read_csv(
                again(), sep=separator, encoding=encoding, decimal=decimal, index_col=False, low_memory=False
            )
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path} is not {encoding} text: byte {error.object[error.start]:#04x} cannot be read. Save it as UTF-8, "
                "or name its encoding, e.g. --encoding latin-1."
            ) from None
        except UnicodeError as error:
            raise DataError(
                f"{path} is not {encoding} text: {error}. Name its encoding, e.g. --encoding latin-1."
            ) from None
        except LookupError:
            raise DataError(f"there is no encoding {encoding!r}. Try utf-8 or latin-1.") from None
        except pd.errors.EmptyDataError:
            raise DataError(f"{path} has no columns; a header line and rows of data are needed.") from None
        except (pd.errors.ParserError, pd.errors.ParserWarning, OSError, EOFError, csv.Error) as error:
            raise DataError(f"{path} cannot be read as a table: {_said(error)}") from None
    frame.columns = columns
    single = not packed and not wide and _lines(path, content) == len(frame) + 1
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


def _lines(path: Path, content: bytes | None) -> int:
    count, last = 0, b"\n"
    with path.open("rb") if content is None else io.BytesIO(content) as stream:
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
