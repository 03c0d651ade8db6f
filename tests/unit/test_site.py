"""The documentation site: every page is found, links lead somewhere, nothing is fetched, and all that is public is there."""

import importlib.util
import logging
import re
from pathlib import Path

import pytest

import robustly as rb

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
needs_mkdocs = pytest.mark.skipif(
    importlib.util.find_spec("material") is None or importlib.util.find_spec("mkdocstrings") is None,
    reason="the site needs mkdocs-material and mkdocstrings: pip install robustly[docs]",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The whole site, strictly: a link that leads nowhere stops the build. Pages are run by other tests."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("docs") / "site"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SITE_RUN", "0")
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        patch.chdir(ROOT)
        said = []
        listening = logging.Handler(logging.WARNING)
        listening.emit = lambda record: said.append(record.getMessage())
        logging.getLogger("mkdocs").addHandler(listening)
        try:
            build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder)))
        finally:
            logging.getLogger("mkdocs").removeHandler(listening)
    assert said == []
    return folder


@needs_mkdocs
@pytest.mark.filterwarnings("ignore")
def test_every_page_of_the_folder_is_in_the_site_and_in_its_list(site):
    wanted = {path.stem for path in DOCS.glob("*.md")} | {"index", "commands", "changes"}
    assert wanted == {path.stem for path in site.glob("*.html")} - {"404"}
    index = (site / "index.html").read_text(encoding="utf-8")
    assert all(f'href="{name}.html"' in index for name in wanted)
    assert "pip install robustly" in re.sub(r"<[^>]+>", "", index.split("<article")[1])[:600]
    assert "<img" in index.split("<article")[1]
    notebooks = {path.stem for path in site.glob("*.ipynb")}
    assert {"tutorial", "glm", "localize", "conjugate", "topics"} <= notebooks
    assert all(f'href="{name}.ipynb"' in (site / f"{name}.html").read_text(encoding="utf-8") for name in notebooks)


@needs_mkdocs
def test_nothing_is_fetched_and_pages_can_be_searched(site):
    for path in site.glob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(
            r'(?:src|srcset)="https?:|<link[^>]*rel="(?:stylesheet|preconnect)"[^>]*href="https?:', text
        )
        assert 'data-md-component="search"' in text
    assert (site / "search" / "search_index.json").stat().st_size > 100_000


@needs_mkdocs
def test_the_reference_names_all_that_is_public(site):
    text = "".join(path.read_text(encoding="utf-8") for path in (site / "reference").glob("*.html"))
    for name in rb._HOMES:
        assert re.search(rf'id="robustly[\w.]*\.{name}"', text), name
    assert "object at 0x" not in text
    assert not re.search(r":(?:class|func|meth|math):", re.sub(r"<[^>]+>", "", text))


@needs_mkdocs
def test_the_commands_page_has_their_help(site):
    text = (site / "commands.html").read_text(encoding="utf-8")
    for name in ("fit", "predict", "compare", "outliers", "demo", "topics fit"):
        assert f"<code>robustly {name}</code>" in text
    assert "Usage: robustly fit" in text
    assert "Exit codes" in text


@needs_mkdocs
def test_pages_that_ask_for_it_show_what_they_print_and_draw():
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    page = (
        "<!-- run -->\n# T\n```python\nprint(1 + 1, '<b>')\nfrom matplotlib.figure import Figure\nfigure = Figure()\n```\n"
        "<!-- picture: nothing -->\n"
    )
    body = hooks.performed(page)
    assert '<pre class="out">2 &lt;b&gt;</pre>' in body
    assert '<img alt="nothing" src="data:image/png;base64,' in body
