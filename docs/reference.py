"""What is public, and what does it say of itself? The reference pages, from docstrings and from the commands' own help."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

# Page -> (its heading, the module whose names it shows, and the names, where the module does not say so itself).
PARTS: dict[str, tuple[str, str, tuple[str, ...] | None]] = {
    "localize": (
        "Models of your own",
        "robustly",
        ("localize", "integrate", "classical", "fit_rows", "Localized", "RowModel"),
    ),
    "results": ("Results", "robustly", ("Fit", "Outcome", "load", "compare", "anova")),
    "approx": ("Ways to integrate", "robustly.approx", None),
    "glm": ("Regressions", "robustly.glm", None),
    "conjugate": ("Conjugate pairs", "robustly.conjugate", None),
    "mixture": ("Mixtures", "robustly.mixture", None),
    "series": ("Time series", "robustly.series", None),
    "topics": ("Topics", "robustly.topics", None),
    "testing": ("Checks for your own parts", "robustly.testing", None),
    "errors": ("Errors", "robustly.errors", None),
    "more": ("More", "robustly", None),
}


def pages() -> dict[str, tuple[str, str]]:
    """By page: its heading, and Markdown in which mkdocstrings finds what to show. The last page has what no other lists."""
    import robustly

    found: dict[str, tuple[str, str]] = {}
    shown: set[str] = set()
    for page, (heading, home, listed) in PARTS.items():
        names = tuple(name for name in robustly._HOMES if name not in shown) if page == "more" else _names(home, listed)
        shown |= set(names)
        module = importlib.import_module(home)
        paths = ["robustly.glm.formula.glm"] if page == "glm" else []
        paths += [_path(getattr(module, name), home, name) for name in names]
        if paths:
            found[page] = heading, f"# {heading}\n\n" + "".join(_shown(path) for path in dict.fromkeys(paths))
    return found


def _shown(path: str) -> str:
    """The line that has mkdocstrings show a name. A `Fit` is written in parts, and is shown with all of them."""
    parts = "    options:\n      inherited_members: true\n" if path.endswith(".Fit") else ""
    return f"::: {path}\n{parts}\n"


def _names(home: str, listed: tuple[str, ...] | None) -> tuple[str, ...]:
    module = importlib.import_module(home)
    own = [n for n, v in vars(module).items() if not n.startswith("_") and getattr(v, "__module__", "") == home]
    return tuple(
        name for name in listed or getattr(module, "__all__", own) if not inspect.ismodule(getattr(module, name))
    )


def _path(thing: Any, home: str, name: str) -> str:
    """Where a name is defined, which is where its documentation is read."""
    module = getattr(thing, "__module__", None)
    here = isinstance(module, str) and module.startswith("robustly") and hasattr(thing, "__qualname__")
    return f"{module}.{thing.__qualname__}" if here else f"{home}.{name}"


def commands() -> str:
    """The page about the command line: the help that the commands print."""
    import typer
    from typer.testing import CliRunner

    from robustly.cli import app

    found = ["# Command line\n"]
    runner = CliRunner()

    def walk(command: Any, path: list[str]) -> None:
        inner = getattr(command, "commands", {})
        if not inner:
            said = runner.invoke(
                app,
                [*path, "--help"],
                prog_name="robustly",
                env={"COLUMNS": "96", "NO_COLOR": "1", "TERM": "dumb"},
            ).output
            lines = [line.rstrip() for line in said.strip("\n").splitlines()]
            found.append(f"## `robustly {' '.join(path)}`\n\n```text\n{chr(10).join(lines)}\n```\n")
        for name, one in inner.items():
            walk(one, [*path, name])

    walk(typer.main.get_command(app), [])
    return "\n".join(found)
