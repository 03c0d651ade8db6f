"""Is there a file to read? Looked at before anything heavy is imported, so that a slip of the pen costs no seconds."""

from __future__ import annotations

import difflib
from pathlib import Path

from robustly.errors import DataError


def refuse_missing_file(path: Path) -> None:
    """A file that is not there, with the name that was perhaps meant; ``-`` is standard input."""
    if str(path) == "-":
        return
    if not path.exists():
        raise DataError(f"there is no file {path}.{_near(path)}")
    if path.is_dir():
        raise DataError(f"{path} is a folder; name a file in it: CSV, TSV, Parquet, Excel or JSON lines.")


def _near(path: Path) -> str:
    try:
        there = [one.name for one in path.parent.iterdir() if one.is_file()]
    except OSError:
        return f" The folder {path.parent} is not there either."
    near = difflib.get_close_matches(path.name, there, n=1)
    return f' Did you mean "{near[0]}"?' if near else " Check the path."
