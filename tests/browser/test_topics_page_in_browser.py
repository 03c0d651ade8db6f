"""The page of topics in a real browser: it fits a desk and a phone, its map leads to topics, hostile text stays text."""

import numpy as np
import pytest
from chromium import Chromium, find_browser

from robustly.topics import Corpus, RobustLDA, write_page

RIVER = "The river water flows; a boat on the river, water everywhere. Fish swim in river water."
BANK = "The bank gave a loan: money, interest and more money. Loan interest at the bank rose."
HOSTILE = "<script>window.hacked=1</script> </p></main><h1>out</h1> <img src=x onerror=window.hacked=2>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium on the path; install one (Debian: apt-get install chromium) or set CHROME")
    found = Chromium(program, tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    texts = [f"{RIVER} {HOSTILE}" if i % 2 else f"{BANK} {'L' * 3000}" for i in range(12)]
    texts[4] += " mortgage" * 9
    texts[6] += " mortgage"
    corpus = Corpus.from_texts(texts, names=[f"{HOSTILE} {i}" for i in range(12)])
    model = RobustLDA(3, random_state=0, draws=10).fit(corpus)
    return write_page(model, corpus, tmp_path_factory.mktemp("topics") / "page.html", title=HOSTILE)


@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_fits_and_fetches_nothing(browser, page, width):
    browser.open(page, width)
    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]
    assert browser.run("document.documentElement.scrollWidth") <= width


def test_hostile_texts_are_text(browser, page):
    browser.open(page)
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert "<script>window.hacked=1</script>" in browser.run("document.body.textContent")
    assert browser.run("typeof window.hacked") == "undefined"
    assert browser.run("document.scripts.length + document.images.length") == 0
    assert browser.run("document.querySelectorAll('h1').length") == 1
    assert browser.run("document.querySelectorAll('mark').length") > 0


def test_each_circle_leads_to_its_topic(browser, page):
    browser.open(page)
    links = browser.run("[...document.querySelectorAll('svg a')].map(a => a.getAttribute('href'))")
    assert sorted(links) == ["#topic-0", "#topic-1", "#topic-2"]
    assert browser.run(
        "[...document.querySelectorAll('svg a')].every(a => document.querySelector(a.getAttribute('href')))"
    )
    sizes = browser.run("[...document.querySelectorAll('svg circle')].map(c => Number(c.getAttribute('r')))")
    assert np.all(np.diff(sizes) <= 0)  # the largest is drawn first, so that small ones are never hidden
