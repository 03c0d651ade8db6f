"""How is a page made? One file with its style, its pictures and a few lines of script inside; nothing is fetched.

All text passes through :func:`text`; a policy in the head forbids every script but ours, so that even a slip elsewhere could
not run what a column is called.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from typing import Any
from unicodedata import category

import numpy as np
import pandas as pd

STYLE = """
:root{--ink:#1d2326;--soft:#5b6468;--paper:#fff;--card:#f4f6f7;--line:#d9dfe1;--link:#1d6f8a;--good:#2c7a4b;--bad:#a3401b}
@media (prefers-color-scheme:dark){:root{--ink:#e6eaec;--soft:#a5afb3;--paper:#14181a;--card:#1e2427;--line:#394246;
--link:#7cc4dc;--good:#7fd3a0;--bad:#f0a07c}}
*{box-sizing:border-box}
html{color-scheme:light dark;-webkit-text-size-adjust:100%}
body{font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;margin:0;color:var(--ink);background:var(--paper)}
main{max-width:52rem;margin:0 auto;padding:1.5rem 1rem 3rem}
h1{font-size:1.6rem;line-height:1.25;margin:.2rem 0 .4rem;overflow-wrap:anywhere}
h2{font-size:1.2rem;margin:2.2rem 0 .6rem;padding-top:.7rem;border-top:1px solid var(--line)}
h3{font-size:1rem;margin:1.4rem 0 .4rem}
p,li,dd{overflow-wrap:anywhere}
.lead{color:var(--soft);margin:0 0 1rem}
.short{background:var(--card);border-left:4px solid var(--link);padding:.7rem 1rem;margin:1rem 0;border-radius:0 6px 6px 0}
.short ul{margin:0;padding-left:1.1rem}
.good{color:var(--good);font-weight:600}.bad{color:var(--bad);font-weight:600}
nav ul{display:flex;flex-wrap:wrap;gap:.1rem 1rem;list-style:none;padding:0;margin:.5rem 0 0;font-size:.92rem}
a{color:var(--link)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.25rem 1rem;margin:0}
dt{color:var(--soft)}dd{margin:0;min-width:0}
code{font:.88em/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}
pre{background:var(--card);padding:.8rem;border-radius:6px;overflow-x:auto;font-size:.82rem;line-height:1.4}
.clip{display:block;max-height:6.5em;overflow:auto}
figure{margin:1rem 0}
figure img{display:block;width:100%;max-width:40rem;height:auto;background:#fff;border:1px solid var(--line);border-radius:6px}
figcaption{color:var(--soft);font-size:.9rem;margin-top:.35rem;max-width:42rem}
.wide{overflow-x:auto;margin:.2rem 0 .8rem}
table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums}
.told{color:var(--soft);font-size:.9rem;margin:1rem 0 .2rem}
th,td{border-bottom:1px solid var(--line);padding:.3rem .6rem;text-align:right;vertical-align:bottom;white-space:nowrap}
th.words,td.words{text-align:left}
thead th{border-bottom:2px solid var(--line)}
tbody tr:hover{background:var(--card)}
th button{font:inherit;font-weight:600;color:inherit;background:none;border:0;padding:0;cursor:pointer;text-align:inherit}
th button:focus-visible{outline:2px solid var(--link);outline-offset:2px}
th button::after{content:"\\2195";opacity:.35;margin-left:.25em}
th[aria-sort=ascending] button::after{content:"\\2191";opacity:1}
th[aria-sort=descending] button::after{content:"\\2193";opacity:1}
.long{display:inline-block;max-width:16em;overflow:hidden;text-overflow:ellipsis;white-space:nowrap;vertical-align:bottom}
footer{margin-top:2.5rem;color:var(--soft);font-size:.88rem}
@media (max-width:30rem){main{padding:1rem .8rem 2rem}dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:.5rem}.long{max-width:9em}}
@media print{:root{--ink:#000;--soft:#444;--paper:#fff;--card:#f4f4f4;--line:#bbb;--link:#000;--good:#000;--bad:#000}
nav{display:none}main{max-width:none;padding:0}figure,tr,.short{break-inside:avoid}h2,h3{break-after:avoid}
.wide{overflow:visible}.clip{overflow:hidden}th button::after{content:none}table{font-size:.72rem}th,td{padding:.15rem .4rem}
figure img{max-width:14cm}}
"""

SCRIPT = """
document.querySelectorAll("table.sortable thead button").forEach(function (button) {
  button.addEventListener("click", function () {
    var head = button.closest("th"), row = head.parentNode, body = head.closest("table").tBodies[0];
    var column = Array.prototype.indexOf.call(row.children, head);
    var down = head.getAttribute("aria-sort") === "ascending";
    Array.prototype.forEach.call(row.children, function (one) { one.removeAttribute("aria-sort"); });
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    var key = function (line) {
      var cell = line.children[column], value = cell.getAttribute("data-value");
      return value === null ? cell.textContent : value === "" ? null : Number(value);
    };
    Array.from(body.rows).map(function (line) { return [key(line), line]; }).sort(function (a, b) {
      if (a[0] === null || b[0] === null) { return (a[0] === null) - (b[0] === null); }
      var order = typeof a[0] === "number" ? a[0] - b[0] : a[0].localeCompare(b[0], undefined, { numeric: true });
      return down ? -order : order;
    }).forEach(function (pair) { body.appendChild(pair[1]); });
  });
});
"""

TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def text(value: Any) -> str:
    """Any text as HTML; control characters, and those that turn the reading direction, become visible ones."""
    bad = lambda one: one in TURNING or (category(one) in ("Cc", "Cs") and one not in "\n\t")
    clean = "".join("�" if bad(one) else one for one in str(value))
    return escape(clean, quote=True)


def long(value: Any) -> str:
    """A name that may be of any length: cut by the page's style, not here, so that it can still be found and copied."""
    shown = text(value)
    if len(str(value)) <= 20:
        return shown
    hint = text(str(value)[:300])
    return f'<span class="long" title="{hint}">{shown}</span>'


def number(value: Any, digits: int = 4) -> str:
    """A number as people read it."""
    if value is None or not np.isfinite(value):
        return "∞" if value is not None and np.isposinf(value) else "–"
    return f"{value:.{digits}g}".replace("-", "−")


def table(frame: pd.DataFrame, *, caption: str = "", sortable: bool = True, digits: int = 4) -> str:
    """A table of numbers and words; a click on a column's name sorts by it."""
    wordy = [not pd.api.types.is_numeric_dtype(frame.iloc[:, i]) for i in range(frame.shape[1])]
    heads = "".join(
        f'<th scope="col"{" class=words" if words else ""}>'
        + (f'<button type="button">{long(name)}</button>' if sortable else long(name))
        + "</th>"
        for name, words in zip(frame.columns, wordy)
    )
    whole = [pd.api.types.is_integer_dtype(frame.iloc[:, i]) for i in range(frame.shape[1])]
    lines = []
    for values in frame.itertuples(index=False, name=None):
        cells = []
        for value, words, exact in zip(values, wordy, whole):
            if words:
                cells.append(f"<td class=words>{long('' if value is None else value)}</td>")
            else:
                known = value is not None and np.isfinite(value)
                shown = f"{value}" if exact else number(value, digits)
                cells.append(f'<td data-value="{float(value) if known else ""}">{shown}</td>')
        lines.append(f"<tr>{''.join(cells)}</tr>")
    # Not a <caption>: that would be as wide as the table and run out of a phone's screen.
    told = f'<p class="told">{text(caption)}</p>' if caption else ""
    kind = ' class="sortable"' if sortable else ""
    return (
        f'{told}<div class="wide" tabindex="0" role="region" aria-label="{text(caption or "table")}"><table{kind}>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def picture(png: bytes, alt: str, caption: str = "") -> str:
    """A picture inside the page; `alt` says in words what it shows."""
    told = f"<figcaption>{text(caption)}</figcaption>" if caption else ""
    source = base64.b64encode(png).decode()
    return f'<figure><img alt="{text(alt)}" src="data:image/png;base64,{source}">{told}</figure>'


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Names and values; the values are HTML already."""
    return "<dl>" + "".join(f"<dt>{text(name)}</dt><dd>{value}</dd>" for name, value in pairs) + "</dl>"


def items(texts: Sequence[str]) -> str:
    """A list of sentences."""
    return "<ul>" + "".join(f"<li>{text(one)}</li>" for one in texts) + "</ul>"


def paragraph(*sentences: str) -> str:
    return f"<p>{text(' '.join(sentences))}</p>"


def page(title: str, lead: str, sections: Sequence[tuple[str, str]], opening: str = "") -> str:
    """The whole file: a heading, an opening, and sections (heading, HTML) with a list of them on top."""
    links = "".join(f'<li><a href="#part-{i}">{text(name)}</a></li>' for i, (name, _) in enumerate(sections))
    body = "".join(
        f'<section id="part-{i}"><h2>{text(name)}</h2>{inner}</section>' for i, (name, inner) in enumerate(sections)
    )
    mark = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{mark}'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(str(title)[:120])}</title><style>{STYLE}</style></head><body><main><header><h1>{text(title)}</h1>"
        f'<p class="lead">{text(lead)}</p></header>{opening}<nav aria-label="Contents"><ul>{links}</ul></nav>{body}'
        f"<footer>Made by robustly {text(_version())}.</footer></main><script>{SCRIPT}</script></body></html>\n"
    )


def _version() -> str:
    from robustly import __version__

    return __version__
