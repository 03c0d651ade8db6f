"""How are results shown in a terminal, wide or narrow, and handed to scripts? Tables for people, JSON and CSV for programs."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from robustly.errors import PersistError
from robustly.report.findings import shortened
from robustly.result import persist

GAP = 2
PIPED = 110


def console() -> Console:
    """Standard output. A pipe has no width of its own; colours follow the terminal and NO_COLOR."""
    found = Console(highlight=False, markup=False, emoji=False)
    if not found.is_terminal and "COLUMNS" not in os.environ:
        found = Console(highlight=False, markup=False, emoji=False, width=PIPED)
    return found


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """A line on stderr while something takes its time, with passes and rows; nothing where stderr is no terminal."""
    errors = Console(stderr=True, highlight=False, markup=False)
    if not errors.is_terminal:
        yield
        return
    from robustly.rows.store import watching

    with errors.status(what) as line:
        passes = 1

        def seen(so_far: int, rows: int) -> None:
            nonlocal passes
            line.update(f"{what} pass {passes}: {so_far:,} of {rows:,} rows")
            passes += so_far == rows

        with watching(seen):
            yield


def show_frame(out: Console, frame: pd.DataFrame, heading: str = "", first: Sequence[str] = ()) -> None:
    """A table of words and numbers. Where not all columns fit, those of `first` are kept before others."""
    if heading:
        out.print(Text(heading, style="bold"))
    widest = max(12, min(36, out.width // 3))
    names = {name: shortened(name, widest) for name in frame.columns}
    cells = {name: [shown(value, widest) for value in frame[name]] for name in frame.columns}
    width = {name: GAP + max(cell_len(one) for one in (names[name], *cells[name])) for name in frame.columns}
    kept: list[Any] = []
    for name in sorted(frame.columns, key=lambda name: name not in first):
        if not kept or sum(width[one] for one in (*kept, name)) <= out.width + GAP:
            kept.append(name)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="underline")
    for name in (one for one in frame.columns if one in kept):
        words = not pd.api.types.is_numeric_dtype(frame[name])
        table.add_column(Text(names[name]), justify="left" if words else "right", no_wrap=True, overflow="ellipsis")
    for place in range(len(frame)):
        table.add_row(*(Text(cells[name][place]) for name in frame.columns if name in kept))
    out.print(table)
    left = [names[name] for name in frame.columns if name not in kept]
    if left:
        out.print(Text(f"no room for: {', '.join(left)}", style="dim"))
    out.print()


def shown(value: Any, width: int = 36) -> str:
    """One cell."""
    if isinstance(value, float | np.floating):
        return "–" if np.isnan(value) else f"{value:.4g}"
    return "" if value is None else shortened(value, width)


def write_json(value: Any) -> None:
    """One JSON object on standard output; numbers that JSON does not know are null."""
    sys.stdout.write(json.dumps(finite(value), ensure_ascii=False, allow_nan=False) + "\n")


def finite(value: Any) -> Any:
    """The same with plain numbers, and None for what is not finite."""
    if isinstance(value, dict):
        return {str(key): finite(inner) for key, inner in value.items()}
    if isinstance(value, pd.DataFrame):
        return [
            dict(zip(map(str, value.columns), map(finite, line))) for line in value.itertuples(index=False, name=None)
        ]
    if isinstance(value, list | tuple | np.ndarray):
        return [finite(inner) for inner in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if value is None or isinstance(value, str | int | bool):
        return value
    return str(value)


def write_csv(frame: pd.DataFrame, path: Path | None) -> None:
    """CSV to a file, whole or not at all, or to standard output."""
    if path is None:
        sys.stdout.write(frame.to_csv(index=False))
        return
    with persist.atomic(path) as stream:
        stream.write(frame.to_csv(index=False).encode())


def refuse_unwritable(*paths: Path | None, reads: Sequence[Path] = ()) -> None:
    """Say before a long fit, not after it, that a file cannot be written, or would be written over what is read."""
    import tempfile

    for path in paths:
        if path is None:
            continue
        folder = path.parent
        if path.exists() and any(one.exists() and path.samefile(one) for one in reads):
            raise PersistError(f"cannot write {path}: it is the file that is read. Choose another name.")
        if path.is_dir():
            raise PersistError(f"cannot write {path}: it is a folder. Name a file in it.")
        if not folder.is_dir():
            raise PersistError(f"cannot write {path}: there is no folder {folder}. Make it first, or choose another.")
        try:
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise PersistError(f"cannot write {path}: {error.strerror}. Choose a folder that is yours.") from error
