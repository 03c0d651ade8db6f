"""Every Python block of the README and of the pages runs, in order, page by page: as the cells of the page's notebook."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def notebooks():
    spec = importlib.util.spec_from_file_location("page_notebooks", ROOT / "docs" / "notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = notebooks()
    scope = {}
    for number, cell in enumerate(made.code_cells(made.notebook_of(page.read_text(encoding="utf-8")))):
        exec(compile(cell, f"{page.name}, example {number + 1}", "exec"), scope)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_notebook_has_all_of_its_page(page):
    made = notebooks()
    text = page.read_text(encoding="utf-8")
    notebook = made.notebook_of(text)
    assert len(made.code_cells(notebook)) == text.count("\n```python\n")
    for cell in notebook["cells"]:
        assert cell["source"] in text or "<!--" in text
    assert notebook["cells"][0]["cell_type"] == "markdown"
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
