"""How do the pages of this folder become a site? What MkDocs asks on its way: pages, their list, what they print and draw.

Pages that open with ``<!-- run -->`` have their Python blocks run, in order (unless ``SITE_RUN=0``); what they print is shown,
and where ``<!-- picture: words -->`` follows a block, the Matplotlib ``figure`` it made is drawn there. New pages are found by
themselves. Every page with Python in it can be taken along as a notebook.
"""

from __future__ import annotations

import base64
import contextlib
import io
import os
import re
import sys
import tempfile
import warnings
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from notebooks import as_file, code_cells, notebook_of  # noqa: E402
from reference import commands, pages  # noqa: E402

FIRST = ("tutorial", "howto", "concepts", "gallery", "features")
OUTSIDE = {"index": HERE.parent / "README.md", "changes": HERE.parent / "CHANGELOG.md"}


def title_of(text: str) -> str:
    """The first heading of a page."""
    return next((line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")), "robustly")


def on_config(config: Any) -> Any:
    """The list of pages: the first ones, then guides by title, then what is looked up."""
    there = {path.stem: title_of(path.read_text("utf-8")) for path in HERE.glob("*.md")}
    guides = sorted((name for name in there if name not in FIRST), key=lambda name: there[name].lower())
    config.nav = [
        {"robustly": "index.md"},
        *({there[name]: f"{name}.md"} for name in FIRST if name in there),
        {"Guides": [{there[name]: f"{name}.md"} for name in guides]},
        {"Reference": [{heading: f"reference/{page}.md"} for page, (heading, _) in pages().items()]},
        {"Command line": "commands.md"},
        {"Changes": "changes.md"},
    ]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Pages that are made or stand elsewhere, and the notebooks."""
    for name, path in OUTSIDE.items():
        text = path.read_text("utf-8").replace("](docs/", "](").replace('src="docs/', 'src="')
        text = text.replace("](CHANGELOG.md)", "](changes.md)")
        files.append(File.generated(config, f"{name}.md", content=text))
    files.append(File.generated(config, "commands.md", content=commands()))
    for page, (_, text) in pages().items():
        files.append(File.generated(config, f"reference/{page}.md", content=text))
    for path in HERE.glob("*.md"):
        notebook = notebook_of(path.read_text("utf-8"))
        if code_cells(notebook):
            files.append(File.generated(config, f"{path.stem}.ipynb", content=as_file(notebook)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """What the blocks print and draw, if the page asks for that, and a link to its notebook."""
    markdown = markdown.replace("](../README.md", "](index.md").replace("](../CHANGELOG.md", "](changes.md")
    # A page may name files of the repository that are no pages of the site.
    markdown = re.sub(r"\[([^\]]+)\]\((?:\.\./[^)]*|CONTRIBUTING\.md|LICENSE)\)", r"`\1`", markdown)
    name = page.file.src_uri.removesuffix(".md")
    if files.get_file_from_path(f"{name}.ipynb") is not None:
        markdown = re.sub(
            r"^(# .*)$",
            rf"\1\n\n[as a notebook]({name}.ipynb){{ .notebook download }}",
            markdown,
            count=1,
            flags=re.MULTILINE,
        )
    return (
        performed(markdown) if markdown.startswith("<!-- run -->") and os.environ.get("SITE_RUN") != "0" else markdown
    )


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
    from robustly.report.plots import as_png

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(found[1], "example", "exec"), scope)
    shown = found[0]
    if said.getvalue():
        shown += f'\n<pre class="out">{escape(said.getvalue().rstrip())}</pre>\n'
    if found[2]:
        drawn = base64.b64encode(as_png(scope["figure"])).decode()
        shown += f'\n<img alt="{escape(found[2], quote=True)}" src="data:image/png;base64,{drawn}">\n'
    return shown
