"""The real command line in this process: the same ``main`` that the installed command calls."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest

from robustly.cli import main


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


def robustly(capfd, *args: object, columns: int | None = None) -> Done:
    """Run one command; what it printed and how it ended. Test runners may set a width of their own, which is not ours."""
    capfd.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COLUMNS", raising=False)
        if columns is not None:
            patch.setenv("COLUMNS", str(columns))
        patch.setattr(sys, "argv", ["robustly", *map(str, args)])
        with pytest.raises(SystemExit) as ended:
            main()
    code = ended.value.code
    return Done(0 if code is None else int(code), *capfd.readouterr())
