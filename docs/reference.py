"""What is public, and what does it say of itself? The reference pages, made from docstrings and from the commands' own help."""

from __future__ import annotations

import importlib
import inspect
import re
from html import escape
from typing import Any

# Heading -> where its names live: a module and, where it does not say so itself, the names.
PARTS: dict[str, tuple[str, tuple[str, ...] | None]] = {
    "Models of your own": ("robustly", ("localize", "classical", "fit_rows", "Localized", "RowModel")),
    "Results": ("robustly", ("Fit", "Outcome", "load", "compare")),
    "Ways to integrate": ("robustly.approx", None),
    "Regressions": ("robustly.glm", None),
    "Conjugate pairs": ("robustly.conjugate", None),
    "Mixtures": ("robustly.mixture", None),
    "Time series": ("robustly.series", None),
    "Topics": ("robustly.topics", None),
    "Checks for your own parts": ("robustly.testing", None),
    "Errors": (
        "robustly.errors",
        (
            "RobustlyError",
            "DataError",
            "SupportError",
            "LocalizeError",
            "ModelError",
            "FitError",
            "NotFittedError",
            "PersistError",
            "ConvergenceWarning",
            "IdentifiabilityWarning",
        ),
    ),
}


def reference() -> str:
    """The body of the reference page; public names that no part lists come last."""
    import robustly

    parts = dict(PARTS)
    shown = {name for home, listed in PARTS.values() for name in _names(home, listed)}
    more = tuple(name for name in robustly._HOMES if name not in shown)
    if more:
        parts["More"] = ("robustly", more)
    found, toc = [], []
    for heading, (home, listed) in parts.items():
        names = _names(home, listed)
        if not names:
            continue
        module = importlib.import_module(home)
        anchor = heading.lower().replace(" ", "-")
        links = ", ".join(f'<a href="#{home}.{name}"><code>{name}</code></a>' for name in names)
        toc.append(f'<li><a href="#{anchor}">{heading}</a>: {links}</li>')
        found.append(f'<h2 id="{anchor}">{heading}</h2>')
        if home == "robustly.glm":
            formula = importlib.import_module("robustly.glm.formula").glm
            found.append(describe(formula, "glm", "robustly.glm.formula"))
        found += [describe(getattr(module, name), name, f"{home}.{name}") for name in names]
    return f"<h1>Reference</h1><ul>{''.join(toc)}</ul>{''.join(found)}"


def _names(home: str, listed: tuple[str, ...] | None) -> tuple[str, ...]:
    try:
        module = importlib.import_module(home)
    except ModuleNotFoundError:
        return ()
    all_of = listed or getattr(module, "__all__", _own(module))
    return tuple(name for name in all_of if not inspect.ismodule(getattr(module, name)))


def _own(module: Any) -> list[str]:
    return [
        n for n, v in vars(module).items() if not n.startswith("_") and getattr(v, "__module__", "") == module.__name__
    ]


def describe(thing: Any, name: str, anchor: str) -> str:
    """One class or function: its call, what it says, and its public methods."""
    call = escape(f"{name}{_signature(thing)}")
    body = (
        f'<section class="api"><h3 id="{escape(anchor)}"><code>{call}</code></h3>{prose(inspect.getdoc(thing) or "")}'
    )
    if inspect.isclass(thing) and not issubclass(thing, BaseException):
        lines = []
        for method, raw in inspect.getmembers_static(thing):
            if method.startswith("_") or not (
                inspect.isfunction(raw) or isinstance(raw, property) or hasattr(raw, "func")
            ):
                continue
            home = getattr(getattr(raw, "fget", None) or getattr(raw, "func", None) or raw, "__module__", "") or ""
            told = inspect.getdoc(getattr(raw, "fget", None) or getattr(raw, "func", None) or raw)
            if not told or not home.startswith("robustly"):
                continue
            shown = method + (_signature(raw) if inspect.isfunction(raw) else "")
            lines.append(f"<dt><code>{escape(shown)}</code></dt><dd>{prose(told)}</dd>")
        body += f"<dl>{''.join(lines)}</dl>" if lines else ""
    return body + "</section>"


def _signature(thing: Any) -> str:
    try:
        given = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    plain = [
        one.replace(annotation=inspect.Parameter.empty)
        for key, one in given.parameters.items()
        if key not in ("self", "cls")
    ]
    text = str(given.replace(parameters=plain, return_annotation=inspect.Signature.empty))
    return re.sub(r"<(?:function|class) '?([\w.]+)'?(?: at 0x[0-9a-f]+)?>", r"\1", text)


def prose(doc: str) -> str:
    """A docstring as HTML: paragraphs, lists of arguments, examples."""
    parts = []
    for block in re.split(r"\n\s*\n", doc):
        head, _, rest = block.partition("\n")
        if head.strip() in ("Args:", "Returns:", "Raises:", "Example:", "Examples:") and rest:
            parts.append(f"<h4>{head.strip()[:-1]}</h4>")
            block = inspect.cleandoc("\n" + rest)
            if head.strip() == "Args:":
                items = re.split(r"\n(?=\S)", block)
                cut = [one.partition(":") for one in items]
                parts.append("<dl>" + "".join(f"<dt>{inline(a)}</dt><dd>{inline(b)}</dd>" for a, _, b in cut) + "</dl>")
                continue
        if block.lstrip().startswith(">>>") or block.startswith("    "):
            parts.append(f"<pre>{escape(inspect.cleandoc(block))}</pre>")
        else:
            parts.append(f"<p>{inline(block)}</p>")
    return "".join(parts)


def inline(text: str) -> str:
    """Roles and literals of a docstring's line as HTML."""
    found = escape(" ".join(text.split()), quote=False)
    found = re.sub(r":math:`([^`]*)`", r"<code>\1</code>", found)
    found = re.sub(r":\w+:`~?([\w.]*?)(\w+)`", r"<code>\2</code>", found)
    return re.sub(r"``?([^`]+)``?", r"<code>\1</code>", found)


def commands() -> str:
    """The body of the page about the command line: the help that the commands print."""
    import typer
    from typer.testing import CliRunner

    from robustly.cli import app

    found = ["<h1>Command line</h1>"]
    tree = typer.main.get_command(app)
    runner = CliRunner()

    def walk(command: Any, path: list[str]) -> None:
        inner = getattr(command, "commands", {})
        if not inner:
            said = runner.invoke(app, [*path, "--help"], env={"COLUMNS": "96", "NO_COLOR": "1", "TERM": "dumb"}).output
            lines = [line.rstrip() for line in said.strip("\n").splitlines()]
            found.append(f"<h2><code>robustly {' '.join(path)}</code></h2><pre>{escape(chr(10).join(lines))}</pre>")
        for name, one in inner.items():
            walk(one, [*path, name])

    walk(tree, [])
    return "".join(found)
