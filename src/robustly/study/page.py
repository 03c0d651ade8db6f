"""What does a reader get? One self-contained page: verdicts, figures, what went wrong, and how it was made."""

from __future__ import annotations

import base64
import platform
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from robustly.result.persist import atomic
from robustly.study.beyond import ERRATA, beyond, endings
from robustly.study.claims import IN_PART, NOT, REPRODUCED, Finding, Table, claims
from robustly.study.comparisons import Lines
from robustly.study.figures import Picture

STYLE = """
:root{color-scheme:light}body{font:16px/1.5 system-ui,sans-serif;max-width:66rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;width:100%;font-size:.86rem}td,th{border-bottom:1px solid #ddd;padding:.4rem .6rem;text-align:left;
vertical-align:top}.wide{overflow-x:auto}th{background:#f6f5f2}img{width:100%;height:auto}figure{margin:1.5rem 0}
figcaption{font-size:.9rem;color:#555}.verdict{font-weight:600;white-space:nowrap}.yes{color:#00684a}.part{color:#8a5a00}
.no{color:#a33a00}.numbers{font-size:.78rem;margin-top:.3rem}.numbers td+td{white-space:nowrap}summary{cursor:pointer;color:#2f6f8f}
h2{margin-top:2.2rem}.few{color:#555}
@media(max-width:40rem){.findings>thead{display:none}.findings>tbody>tr>td{display:block;border:0;
padding:.15rem 0}.findings>tbody>tr{display:block;border-bottom:1px solid #ddd;padding:.5rem 0}}
@media print{details::details-content{content-visibility:visible;block-size:auto}body{margin:0;max-width:none}figure,tr{break-inside:avoid}}
"""
CLASSES = {REPRODUCED: "yes", IN_PART: "part", NOT: "no"}


def write_study_page(
    folder: Path, lines: Lines, pictures: list[Picture], settings: dict[str, Any], notes: list[str]
) -> Path:
    """``study.html`` from the lines of all experiments in the folder."""
    parts = [
        _opening(claims_found := claims(lines)),
        _findings("The paper's claims", "claim", claims_found, verdicts=True),
        _findings("Beyond the paper", "question", beyond(lines), verdicts=False),
        _figures(pictures),
        _errata(),
        _endings(endings(lines)),
        _made(settings, lines, notes),
    ]
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>What robustness buys: the study</title><style>{STYLE}</style></head><body>"
        f"<h1>What robustness buys</h1>{''.join(parts)}</body></html>"
    )
    path = folder / "study.html"
    with atomic(path) as stream:
        stream.write(page.encode())
    return path


def _opening(found: list[Finding]) -> str:
    counts = {verdict: sum(one.verdict == verdict for one in found) for verdict in (REPRODUCED, IN_PART, NOT)}
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    rest = len(found) - sum(counts.values())
    more = f", {rest} with too few repetitions to say" if rest else ""
    return (
        "<p>The empirical study of Wang &amp; Blei, <i>A General Method for Robust Bayesian Modeling</i> (Bayesian Analysis "
        "2018), run again with this package. Training rows are corrupted, test rows are clean. "
        f"Of {len(found)} claims the runs speak to: {escape(told)}{escape(more)}. Verdicts are computed from the runs by one "
        "rule: a comparison counts as better or worse when its mean over repetitions is further from zero than a 95 % "
        "t-interval; a claim is reproduced when all comparisons it covers are better, not when none is. Numbers after ± are "
        "Monte-Carlo standard errors; ratios are geometric means over repetitions.</p>"
    )


def _findings(title: str, head: str, found: list[Finding], *, verdicts: bool) -> str:
    if not found:
        return ""
    rows = "".join(
        f"<tr><td>{escape(one.where)}</td><td>{escape(one.claim)}</td>"
        f'<td class="{"verdict " + CLASSES.get(one.verdict, "few") if verdicts else "conclusion"}">{escape(one.verdict)}</td>'
        f"<td>{escape(one.found)}{_numbers(one.table)}</td></tr>"
        for one in found
    )
    return (
        f'<h2>{escape(title)}</h2><div class="wide"><table class="findings"><thead><tr><th>section</th><th>{escape(head)}</th>'
        f"<th>{'verdict' if verdicts else 'conclusion'}</th><th>what was found</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )


def _numbers(table: Table) -> str:
    if not table:
        return ""
    head, *rows = ("".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) for tag, row in _tagged(table))
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<details><summary>the numbers</summary><div class="wide"><table class="numbers"><tr>{head}</tr>{body}</table></div>'
        "</details>"
    )


def _tagged(table: Table) -> list[tuple[str, tuple[str, ...]]]:
    return [("th" if place == 0 else "td", row) for place, row in enumerate(table)]


def _figures(pictures: list[Picture]) -> str:
    if not pictures:
        return ""
    shown = "".join(
        f'<figure><img alt="{escape(one.caption, quote=True)}" src="data:image/png;base64,{base64.b64encode(one.png).decode()}">'
        f"<figcaption>{escape(one.caption)} (figures/{escape(one.name)}.svg)</figcaption></figure>"
        for one in pictures
    )
    note = "Points are means over repetitions (geometric on logarithmic scales), bars one Monte-Carlo standard error."
    return f"<h2>Figures</h2><p>{escape(note)}</p>{shown}"


def _errata() -> str:
    rows = "".join(f"<tr><td>{escape(text)}</td><td>{escape(right)}</td></tr>" for text, right in ERRATA)
    return f"<h2>Errata and gaps of the text</h2><table><thead><tr><th>the text</th><th>right, or assumed here</th></tr></thead><tbody>{rows}</tbody></table>"


def _endings(table: pd.DataFrame) -> str:
    if not len(table):
        return ""
    head = "".join(f"<th>{escape(str(name))}</th>" for name in table.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(str(value))}</td>" for value in row) + "</tr>"
        for row in table.itertuples(index=False)
    )
    note = (
        "Failed fits have no figures and are left out of comparisons, on both sides. Fits that had not come to rest are used "
        "as they ended: it is what a user would have."
    )
    return f'<h2>How the fits ended</h2><p>{escape(note)}</p><div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _made(settings: dict[str, Any], lines: Lines, notes: list[str]) -> str:
    import jax
    import numpy as np
    import scipy

    facts = [("seed", settings.get("seed"))]
    for experiment, own in settings.get("experiments", {}).items():
        facts += [(f"{experiment}: {name}", value) for name, value in own.items()]
        if len(lines.get(experiment, ())):
            facts.append((f"{experiment}: processor seconds in fits", f"{lines[experiment]['seconds'].sum():.0f}"))
    facts += [("robustly", settings.get("robustly")), ("Python", platform.python_version()), ("JAX", jax.__version__)]
    facts += [("NumPy, SciPy", f"{np.__version__}, {scipy.__version__}"), ("machine", platform.machine())]
    rows = "".join(f"<tr><th>{escape(str(name))}</th><td>{escape(_text(value))}</td></tr>" for name, value in facts)
    said = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return f"<h2>How this was made</h2>{said}<table>{rows}</table>"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name} ({str(of)[:16]})" for name, of in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
