"""Where do texts come from? Files, folders and columns of a table, each read whole or refused by name.

A text file is one document, or one a line. Bytes that are not text in the encoding asked for, or not text at all, are
told with their file and place.
"""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustly.errors import DataError, did_you_mean, names
from robustly.topics.corpus_files import Source

TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
TEXTS = (".txt", ".md", ".text", ".rst", ".html", ".htm", ".eml", ".log")
COUNTS = re.compile(r"%%MatrixMarket|\d+(\s+\d+:\d+)*\s*$")
# What counts as a word; scikit-learn's vectorisers have the same pattern.
WORD = re.compile(r"(?u)\b\w\w+\b")
MARKS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))


@dataclass(frozen=True)
class Texts:
    """Documents as texts, with a name for each; `empty` are the names of those without a single word."""

    texts: tuple[str, ...]
    names: tuple[str, ...]

    @property
    def empty(self) -> tuple[str, ...]:
        return tuple(name for name, text in zip(self.names, self.texts) if WORD.search(text) is None)


def decode(raw: bytes, path: Source, encoding: str | None) -> str:
    """The text that bytes stand for; UTF-8, or what a byte-order mark says, unless told otherwise."""
    found = encoding or next((name for mark, name in MARKS if raw.startswith(mark)), "utf-8")
    try:
        text = raw.decode(found)
    except LookupError:
        raise DataError(f'the encoding "{encoding}" is not known. Expected a name such as utf-8 or latin-1.') from None
    except UnicodeDecodeError as error:
        if b"\0" in raw[:4096]:
            raise DataError(f"{os.fspath(path)} is a binary file, not text. Leave it out.") from error
        raise DataError(
            f"{os.fspath(path)} is not {found} text: byte {error.start} is 0x{raw[error.start]:02x}. Give its encoding, "
            "as in --encoding latin-1, or convert the file."
        ) from error
    if "\0" in text:
        raise DataError(f"{os.fspath(path)} is a binary file, not text (a zero at {text.index(chr(0))}). Leave it out.")
    return text


def read_bytes(path: Source) -> bytes:
    try:
        raw = Path(path).read_bytes()
        return gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"cannot read {os.fspath(path)}: {reason}. Check the path.") from error


def read_files(paths: Sequence[Any], encoding: str | None = None, lines: bool = False) -> Texts:
    """A document from each file, or from each line of them that is not blank; folders give their text files."""
    texts: list[str] = []
    labels: list[str] = []
    for path in _files(paths):
        text = decode(read_bytes(path), path, encoding)
        if lines:
            rows = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
            texts += [line for _, line in rows]
            labels += [f"{path}:{number}" for number, _ in rows]
        else:
            texts.append(text)
            labels.append(str(path))
    return Texts(tuple(texts), tuple(labels))


def _files(paths: Sequence[Any]) -> list[Path]:
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(one for one in path.rglob("*") if one.is_file() and one.suffix.lower() in TEXTS)
            if not inside:
                raise DataError(f"the folder {path} has no text files ({', '.join(TEXTS)}). Name the files themselves.")
            found += inside
        else:
            found.append(path)
    return found


def read_column(path: Source, column: str | None, encoding: str | None = None, label: str | None = None) -> Texts:
    """A document from each row of a CSV or TSV file; `column` has the text, `label` names the rows."""
    import io

    import pandas as pd

    separator = "\t" if ".tsv" in Path(path).name.lower() else ","
    text = decode(read_bytes(path), path, encoding)
    try:
        table = pd.read_csv(io.StringIO(text), sep=separator, dtype=str, keep_default_na=False)
    except (ValueError, pd.errors.ParserError) as error:
        raise DataError(f"{os.fspath(path)} is not a table: {' '.join(str(error).split())}. Check the file.") from error
    columns = [str(name) for name in table.columns]
    if column is None:
        raise DataError(
            f"{os.fspath(path)} has the columns {names(columns)}. Say which one has the text: --text COLUMN."
        )
    for wanted in (column, label):
        if wanted is not None and wanted not in columns:
            raise DataError(
                f'{os.fspath(path)} has no column "{wanted}"; it has {names(columns)}.{did_you_mean(wanted, columns)}'
            )
    rows = [f"row {i}" for i in range(1, len(table) + 1)] if label is None else [str(value) for value in table[label]]
    return Texts(tuple(str(value) for value in table[column]), tuple(rows))


def holds_counts(path: Source) -> bool:
    """Whether a file looks like word counts (lda-c, UCI docword or Matrix Market) rather than a text."""
    try:
        with open(path, "rb") as stream:
            packed = stream.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else open(path, "rb") as stream:
            head = stream.readline(65536).decode("utf-8", "replace")
    except (OSError, EOFError):
        return not str(path).lower().endswith(TEXTS)
    return COUNTS.match(head) is not None or not str(path).lower().endswith(TEXTS)
