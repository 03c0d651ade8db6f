"""Turn the Markdown pages of this folder into a small site: one page each, a list of all on the left, no network.

Pages that open with ``<!-- run -->`` have their Python blocks run, in order; what they print is shown, and where
``<!-- picture: words -->`` follows a block, the Matplotlib ``figure`` it made is drawn there. New pages are found by themselves.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
import warnings
from html import escape
from pathlib import Path
from typing import Any

import markdown

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from reference import commands, reference  # noqa: E402

from robustly.report import html  # noqa: E402
from robustly.report.plots import as_png  # noqa: E402

SITE = HERE / "site"
FIRST = ("tutorial", "howto", "concepts", "gallery")
GROUPS = {"Start": ("index", *FIRST), "Guides": (), "Look up": ("reference", "commands", "changes")}
STYLE = """
body{display:grid;grid-template-columns:15rem minmax(0,1fr)}
.side{padding:1.4rem 1.2rem;background:var(--card);min-height:100vh}
.side a{display:block;text-decoration:none;padding:.15rem 0;overflow-wrap:anywhere}
.side b{display:block;margin:1rem 0 .2rem;font-size:.85rem;color:var(--soft)}
.side a[aria-current]{font-weight:700}
main{margin:0;max-width:54rem;padding:1.4rem 2rem 3rem}
main h2{border:0;padding:0}
main table{display:block;overflow-x:auto}
main td,main th{text-align:left;white-space:normal;vertical-align:top}
pre code{font-size:1em}
pre.out{background:none;border-left:3px solid var(--line);border-radius:0;margin-top:-.6rem}
.api{border-top:1px solid var(--line);padding-top:.4rem;margin-top:1.2rem}.api h3{font-size:1rem}.api h4{margin:.6rem 0 .2rem;font-size:.9rem}
.api dl{display:block;padding-left:1rem}.api dt{margin-top:.5rem;color:inherit}.api dd{padding-left:1rem}.api p{margin:.3rem 0}
@media (max-width:48rem){body{display:block}.side{min-height:0}main{padding:1rem}}
@media print{.side{display:none}body{display:block}}
"""


def title_of(text: str) -> str:
    """The first heading of a page."""
    return next((line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")), "robustly")


def sources() -> dict[str, Path]:
    """Pages by name, in the order in which they are listed: the first ones, then guides by title."""
    there = {path.stem: path for path in HERE.glob("*.md")}
    first = [name for name in FIRST if name in there]
    rest = sorted(
        (name for name in there if name not in FIRST), key=lambda name: title_of(there[name].read_text("utf-8")).lower()
    )
    return {
        "index": HERE.parent / "README.md",
        **{name: there[name] for name in (*first, *rest)},
        "changes": HERE.parent / "CHANGELOG.md",
    }


def body_of(text: str, run: bool = True) -> str:
    """A page's Markdown as HTML, with what its blocks print and draw if it asks for that."""
    if run and text.startswith("<!-- run -->"):
        text = performed(text)
    return markdown.markdown(text, extensions=["fenced_code", "tables", "md_in_html"])


def performed(text: str) -> str:
    """The same Markdown with the output of every block behind it."""
    scope: dict[str, Any] = {}
    back = os.getcwd()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        os.chdir(folder)
        try:
            return re.sub(
                r"^```python\n(.*?)^```\n(?:<!-- picture: (.*?) -->\n)?",
                lambda found: _performed(found, scope),
                text,
                flags=re.MULTILINE | re.DOTALL,
            )
        finally:
            os.chdir(back)


def _performed(found: re.Match[str], scope: dict[str, Any]) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(found[1], "example", "exec"), scope)
    shown = found[0]
    if said.getvalue():
        shown += f'\n<pre class="out">{escape(said.getvalue().rstrip())}</pre>\n'
    if found[2]:
        shown += "\n" + html.picture(as_png(scope["figure"]), found[2]) + "\n"
    return shown


def linked(body: str, names: set[str], page: str) -> str:
    """Links between pages, as they stand in the repository, as links of the site; a page that is not there is an error."""

    def turn(found: re.Match[str]) -> str:
        name, anchor = Path(found[1]).stem, found[2] or ""
        known = {"README": "index", "CHANGELOG": "changes"}.get(name, name)
        if known not in names:
            if found[1] in ("CONTRIBUTING.md", "LICENSE"):
                return found[0]
            raise SystemExit(f"{page}: the link to {found[1]} leads nowhere")
        return f'href="{known}.html{anchor}"'

    return re.sub(r'href="(?!https?:|#)([^"#]+\.md)(#[^"]*)?"', turn, body)


def main(site: Path = SITE, run: bool = True) -> None:
    """Write the site."""
    texts = {name: path.read_text(encoding="utf-8") for name, path in sources().items()}
    bodies = {name: body_of(text, run) for name, text in texts.items()}
    titles = {name: title_of(text) for name, text in texts.items()} | {
        "reference": "Reference",
        "commands": "Command line",
    }
    bodies |= {"reference": reference(), "commands": commands()}
    guides = tuple(name for name in texts if name not in {*GROUPS["Start"], *GROUPS["Look up"]})
    shutil.rmtree(site, ignore_errors=True)
    site.mkdir(parents=True)
    for name, body in bodies.items():
        links = ""
        for group, listed in GROUPS.items():
            links += f"<b>{group}</b>" + "".join(
                f'<a href="{one}.html"{" aria-current=page" if one == name else ""}>{escape(titles[one])}</a>'
                for one in (listed or guides)
                if one in bodies
            )
        page = (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(titles[name])}</title><style>{html.STYLE}{STYLE}</style></head><body>"
            f'<nav class="side" aria-label="Pages">{links}</nav><main>{linked(body, set(bodies), name)}</main></body></html>\n'
        )
        (site / f"{name}.html").write_text(page, encoding="utf-8")
    print(f"{len(bodies)} pages in {os.path.relpath(site)}")


if __name__ == "__main__":
    main()
