"""How is a page made? One file with its style, its pictures and a few lines of script inside; nothing is fetched.

Markup, style and script are the files of `templates/`. All text passes through :func:`text`; a policy in the head forbids every
script but ours, so that even a slip elsewhere could not run what a column is called.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any
from unicodedata import category

import numpy as np
import pandas as pd

TEMPLATES = Path(__file__).parent / "templates"
TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def text(value: Any) -> str:
    """Any text as HTML; control characters, and those that turn the reading direction, become visible ones."""
    bad = lambda one: one in TURNING or (category(one) in ("Cc", "Cs") and one not in "\n\t")
    clean = "".join("�" if bad(one) else one for one in str(value))
    return escape(clean, quote=True)


def number(value: Any, digits: int = 4) -> str:
    """A number as people read it."""
    if value is None or not np.isfinite(value):
        return "∞" if value is not None and np.isposinf(value) else "–"
    return f"{value:.{digits}g}".replace("-", "−")


def table(frame: pd.DataFrame, *, caption: str = "", sortable: bool = True, digits: int = 4) -> str:
    """A table of numbers and words; a click on a column's name sorts by it."""
    columns = [frame.iloc[:, i] for i in range(frame.shape[1])]
    wordy = [not pd.api.types.is_numeric_dtype(column) for column in columns]
    whole = [pd.api.types.is_integer_dtype(column) for column in columns]
    heads = [{"name": name, "words": words} for name, words in zip(frame.columns, wordy)]
    lines = [
        [_cell(value, words, counted, digits) for value, words, counted in zip(values, wordy, whole)]
        for values in frame.itertuples(index=False, name=None)
    ]
    return _rendered("table.html", heads=heads, lines=lines, caption=caption, sortable=sortable)


def _cell(value: Any, words: bool, whole: bool, digits: int) -> dict[str, Any]:
    if words:
        return {"words": True, "shown": "" if value is None else value}
    known = value is not None and np.isfinite(value)
    shown = f"{value}" if whole else number(value, digits)
    return {"words": False, "shown": shown, "value": float(value) if known else ""}


def picture(png: bytes, alt: str, caption: str = "") -> str:
    """A picture inside the page; `alt` says in words what it shows."""
    return str(_pieces().picture(base64.b64encode(png).decode(), alt, caption))


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Names and values; the values are HTML already."""
    return str(_pieces().facts(pairs))


def items(texts: Sequence[str]) -> str:
    """A list of sentences."""
    return str(_pieces().items(texts))


def paragraph(*sentences: str) -> str:
    return f"<p>{text(' '.join(sentences))}</p>"


def page(title: str, lead: str, sections: Sequence[tuple[str, str]], opening: str = "") -> str:
    """The whole file: a heading, an opening, and sections (heading, HTML) with a list of them on top."""
    from markupsafe import Markup

    from robustly import __version__

    style, script = ((TEMPLATES / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return _rendered(
        "page.html",
        title=title,
        lead=lead,
        opening=Markup(opening),
        sections=[(name, Markup(inner)) for name, inner in sections],
        style=Markup(style),
        script=Markup(script),
        script_mark=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        version=__version__,
    )


@cache
def _environment() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    made = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    made.filters["clean"] = lambda value: Markup(text(value))
    return made


def _rendered(template: str, **given: Any) -> str:
    return _environment().get_template(template).render(**given)


def _pieces() -> Any:
    return _environment().get_template("pieces.html").module
