"""How far is a fit? A bar on a terminal or in a notebook, lines of text elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robustly.topics.fitting import TopicsRun

# Without a terminal, a line at most this often (seconds), and always one for the first pass and the last.
BETWEEN_LINES = 2.0


def in_notebook() -> bool:
    """Whether the standard output is a notebook's cell."""
    shell = sys.modules.get("IPython")
    ours = shell.get_ipython() if shell is not None else None
    return ours is not None and "IPKernelApp" in getattr(ours, "config", {})


class Progress:
    """Shows a :class:`~robustly.topics.fitting.TopicsRun`; `verbose` as in the estimators."""

    def __init__(self, name: str, verbose: int | None) -> None:
        self._name = name
        terminal = sys.stderr.isatty()
        self._bar: Any = None
        self._lines = False
        if verbose != 0 and (terminal or (verbose and in_notebook())):
            self._bar = _rich_bar()
        elif verbose:
            self._lines = True
        self._task: Any = None
        self._last = -BETWEEN_LINES

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, run: TopicsRun) -> None:
        drawn = len(run.drawn_history)
        history = [*run.history, *(value for value in run.drawn_history if value == value)]
        note = f"{history[-1]:.4f} per word"
        if self._bar is not None:
            if self._task is None:
                self._task = self._bar.add_task(self._name, total=run.total_passes, note=note)
            self._bar.update(self._task, completed=len(run.history) + drawn, total=run.total_passes, note=note)
        elif self._lines:
            now = time.monotonic()
            if run.done or now - self._last >= BETWEEN_LINES:
                self._last = now
                kind = f"draw {drawn} of {run.plan.draws}" if drawn else f"pass {len(run.history)}"
                print(f"{self._name}: {kind}, evidence {note}", file=sys.stderr, flush=True)


def _rich_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"), TimeRemainingColumn())
    return RichProgress(*columns, console=Console(stderr=not in_notebook()), transient=True)
