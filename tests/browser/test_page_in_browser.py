"""The report page in a real browser: it loads, sorts, prints, fits a phone, and shows hostile texts as text."""

import csv
import re
import sys
from itertools import pairwise

import numpy as np
import pytest
from chromium import Chromium, find_browser

from robustly.cli import main
from robustly.report.demo import run_demo

SCRIPT = "<script>window.hacked=1</script>"
QUOTES = "a \"quoted\" & 'single' <b>name</b>"
EMOJI = "🙂 emoji 👩‍🔬"
LONG = "L" * 10_000
IMAGE = "<img src=x onerror=window.hacked=2>"
BREAK = "</td></tr></table><h1>out</h1>"


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
    """A page about a table whose columns and categories are as bad as can be."""
    folder = tmp_path_factory.mktemp("page")
    rng = np.random.default_rng(0)
    n = 120
    columns = {
        SCRIPT: rng.normal(size=n),
        QUOTES: rng.normal(size=n),
        EMOJI: rng.normal(size=n),
        LONG: rng.normal(size=n),
    }
    group = rng.choice([IMAGE, BREAK, "$x^{2$", "plain"], n)
    y = rng.poisson(np.exp(1 + 0.5 * columns[SCRIPT] + 0.5 * rng.normal(size=n)))
    y[[3, 50, 77]] = [400, 700, 900]
    with (folder / f"{QUOTES.replace('/', ' ')}.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["y", "group", *columns])
        writer.writerows(zip(y, group, *columns.values()))
    formula = "y ~ group + " + " + ".join(f"`{name}`" for name in columns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["robustly", "fit", stream.name, formula, "--report", str(folder / "page.html")])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 0
    return folder / "page.html"


@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_loads_without_complaint_and_without_a_network(browser, page, width):
    browser.open(page, width)
    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]


def test_every_picture_is_there_and_is_told_in_words(browser, page):
    browser.open(page)
    pictures = browser.run("[...document.images].map(i => [i.complete, i.naturalWidth, i.alt.length])")
    assert len(pictures) == 4
    assert all(done and width > 500 and words > 20 for done, width, words in pictures)


def test_a_click_on_a_heading_sorts_numbers_and_a_second_click_turns_them(browser, page):
    browser.open(page)
    column = """(() => { const t = [...document.querySelectorAll('table.sortable')].at(-1);
      const at = [...t.tHead.rows[0].cells].findIndex(c => c.textContent.startsWith('influence'));
      return [...t.tBodies[0].rows].map(r => Number(r.cells[at].dataset.value)); })()"""
    click = """[...[...document.querySelectorAll('table.sortable')].at(-1).querySelectorAll('th button')]
      .find(b => b.textContent.startsWith('influence')).click()"""
    before = browser.run(column)
    assert before == sorted(before, reverse=True)
    browser.run(click)
    assert browser.run(column) == sorted(before)
    browser.run(click)
    assert browser.run(column) == sorted(before, reverse=True)


def test_words_sort_as_words(browser, page):
    browser.open(page)
    terms = "[...document.querySelector('#part-1 table').tBodies[0].rows].map(r => r.cells[0].textContent)"
    before = browser.run(terms)
    browser.run("document.querySelector('#part-1 th button').click()")
    assert browser.run(terms) != before
    assert sorted(browser.run(terms)) == sorted(before)
    assert browser.run("document.querySelector('#part-1 th').getAttribute('aria-sort')") == "ascending"


def test_hostile_names_and_values_are_shown_as_text_and_nothing_of_them_runs(browser, page):
    browser.open(page)
    browser.run("document.querySelectorAll('th button').forEach(b => { b.click(); b.click(); })")
    text = browser.run("document.body.textContent")
    for name in (SCRIPT, QUOTES, EMOJI, LONG, IMAGE, BREAK):
        assert name in text
    assert browser.run("typeof window.hacked") == "undefined"
    assert browser.run("document.scripts.length") == 1
    assert browser.run("document.querySelectorAll('h1').length") == 1
    assert browser.run("[...document.images].every(i => i.src.startsWith('data:image/png;base64,'))")
    assert browser.run(
        "[...document.querySelectorAll('*')].every(e => [...e.attributes].every(a => !/^on/.test(a.name)))"
    )


def test_a_script_that_slipped_in_would_not_run(browser, page, tmp_path):
    broken = tmp_path / "slip.html"
    broken.write_text(page.read_text(encoding="utf-8").replace("<main>", f"<main>{SCRIPT}{IMAGE}", 1), encoding="utf-8")
    browser.open(broken)
    assert browser.run("typeof window.hacked") == "undefined"
    assert any("Content Security Policy" in one for one in browser.complaints())


@pytest.mark.parametrize("width", [390, 1200])
def test_names_of_ten_thousand_characters_do_not_widen_the_page(browser, page, width):
    browser.open(page, width)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("Math.max(...[...document.querySelectorAll('.long')].map(e => e.offsetWidth))") < 320
    assert browser.run("document.documentElement.scrollHeight") < 12_000


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_from_the_paper(browser, page, dark):
    browser.open(page, dark=dark)
    shades = browser.run(
        "['p', '.lead', 'td', 'th', 'figcaption', 'a', '.good'].map(s => "
        "[getComputedStyle(document.querySelector(s)).color, getComputedStyle(document.body).backgroundColor])"
    )
    for ink, paper in shades:
        light, heavy = sorted((luminance(ink), luminance(paper)), reverse=True)
        assert (light + 0.05) / (heavy + 0.05) >= 4.5  # WCAG 2, level AA
    assert (luminance(shades[0][1]) < 0.1) == dark


def luminance(colour: str) -> float:
    """Relative luminance of ``rgb(r, g, b)``, as WCAG 2 defines it."""
    share = [int(one) / 255 for one in re.findall(r"\d+", colour)[:3]]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in share]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_page_prints(browser, page):
    browser.open(page)
    paper = browser.pdf()
    assert paper.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", paper)) <= 12


def test_the_demonstration_is_a_page_like_any_other(browser, tmp_path):
    run_demo(tmp_path)
    for width in (390, 1200):
        browser.open(tmp_path / "report.html", width)
        assert browser.complaints() == []
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run("[...document.images].filter(i => i.naturalWidth > 500).length") == 8


def test_headings_go_down_one_step_at_a_time(browser, page):
    browser.open(page)
    levels = browser.run("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert browser.run("document.documentElement.lang") == "en"
    assert browser.run(
        "[...document.querySelectorAll('nav a')].every(a => document.querySelector(a.getAttribute('href')))"
    )
