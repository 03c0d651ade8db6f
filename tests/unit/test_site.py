"""The documentation site: every page is found, links lead somewhere, and nothing is fetched."""

import importlib.util
import re
from pathlib import Path

import pytest

import robustly as rb

DOCS = Path(__file__).parents[2] / "docs"


def load():
    spec = importlib.util.spec_from_file_location("site_build", DOCS / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs") / "site"
    load().main(folder, run=False)
    return folder


def test_every_page_of_the_folder_is_in_the_site_and_in_its_list(site):
    wanted = {path.stem for path in DOCS.glob("*.md")} | {"index", "reference", "commands", "changes"}
    assert {path.stem for path in site.glob("*.html")} == wanted
    listed = re.findall(r'<a href="(\w+)\.html"', (site / "index.html").read_text(encoding="utf-8").split("</nav>")[0])
    assert sorted(listed) == sorted(wanted)
    assert listed[:5] == ["index", "tutorial", "howto", "concepts", "gallery"]
    assert listed[-3:] == ["reference", "commands", "changes"]


def test_links_between_pages_lead_somewhere_and_nothing_is_fetched(site):
    for path in site.glob("*.html"):
        text = path.read_text(encoding="utf-8")
        for target, anchor in re.findall(r'href="([\w.-]+\.html)?(?:#([^"]*))?"', text):
            other = text if not target else (site / target).read_text(encoding="utf-8")
            if anchor:
                assert f'id="{anchor}"' in other, (path.name, target, anchor)
        assert not re.search(r'(src|srcset)="(?!data:)|<link|@import|url\(', text)


def test_a_link_that_leads_nowhere_stops_the_build():
    build = load()
    with pytest.raises(SystemExit, match="leads nowhere"):
        build.linked('<a href="nowhere.md">x</a>', {"index"}, "index")
    assert build.linked('<a href="docs/glm.md#a">x</a>', {"glm"}, "index") == '<a href="glm.html#a">x</a>'


def test_pages_that_ask_for_it_show_what_they_print_and_draw():
    page = (
        "<!-- run -->\n# T\n```python\nprint(1 + 1, '<b>')\nfrom matplotlib.figure import Figure\nfigure = Figure()\n```\n"
        "<!-- picture: nothing -->\n"
    )
    body = load().body_of(page)
    assert '<pre class="out">2 &lt;b&gt;</pre>' in body
    assert '<img alt="nothing" src="data:image/png;base64,' in body


def test_the_reference_names_all_that_is_public(site):
    text = (site / "reference.html").read_text(encoding="utf-8")
    for name in rb._HOMES:
        assert re.search(rf'id="robustly[\w.]*\.{name}"', text), name
    assert "object at 0x" not in text
    assert "localize(model, sites" in text


def test_the_commands_page_has_their_help(site):
    text = (site / "commands.html").read_text(encoding="utf-8")
    for name in ("fit", "predict", "compare", "outliers", "demo", "topics fit"):
        assert f"<h2><code>robustly {name}</code></h2>" in text
    assert "Exit codes" in text
