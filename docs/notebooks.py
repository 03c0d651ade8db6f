"""How is a page a notebook? Its prose and its Python blocks become cells, in order, nothing left out."""

from __future__ import annotations

import json
import re
from typing import Any

BLOCK = re.compile(r"^```python\n(.*?)^```\n?", flags=re.MULTILINE | re.DOTALL)


def notebook_of(text: str) -> dict[str, Any]:
    """A page's Markdown as a notebook of format 4.5, without output."""
    cells: list[dict[str, Any]] = []

    def add(kind: str, source: str) -> None:
        source = re.sub(r"^<!-- .*? -->\n?", "", source, flags=re.MULTILINE).strip("\n")
        if not source:
            return
        cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}, "source": source}
        cells.append(cell | ({"execution_count": None, "outputs": []} if kind == "code" else {}))

    at = 0
    for found in BLOCK.finditer(text):
        add("markdown", text[at : found.start()])
        add("code", found[1])
        at = found.end()
    add("markdown", text[at:])
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def code_cells(notebook: dict[str, Any]) -> list[str]:
    return [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]


def as_file(notebook: dict[str, Any]) -> str:
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
