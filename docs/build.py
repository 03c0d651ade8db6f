"""Turn the Markdown pages of this folder into a small site: one page each, a list of all on the left, no network."""

from __future__ import annotations

import shutil
from html import escape
from pathlib import Path

import markdown

HERE = Path(__file__).parent
SITE = HERE / "site"
STYLE = """
body{font:16px/1.55 system-ui,sans-serif;margin:0;color:#222;display:flex;flex-wrap:wrap}
nav{padding:1.5rem;min-width:11rem;background:#f6f5f2}nav a{display:block;color:#2f6f8f;text-decoration:none;padding:.15rem 0}
main{padding:1.5rem;max-width:50rem;flex:1;min-width:18rem}pre{background:#f6f5f2;padding:.8rem;overflow-x:auto;font-size:.85rem}
table{border-collapse:collapse}td,th{border-bottom:1px solid #ddd;padding:.25rem .6rem;text-align:left;vertical-align:top}
img{max-width:100%}
"""


def title_of(text: str) -> str:
    return next((line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")), "robustly")


def main() -> None:
    pages = {"index": HERE.parent / "README.md", **{path.stem: path for path in sorted(HERE.glob("*.md"))}}
    pages["changes"] = HERE.parent / "CHANGELOG.md"
    texts = {name: path.read_text(encoding="utf-8") for name, path in pages.items()}
    links = "".join(f'<a href="{name}.html">{escape(title_of(text))}</a>' for name, text in texts.items())
    shutil.rmtree(SITE, ignore_errors=True)
    SITE.mkdir()
    for name, text in texts.items():
        body = markdown.markdown(text, extensions=["fenced_code", "tables"])
        for other in pages:
            body = body.replace(f'href="docs/{other}.md"', f'href="{other}.html"').replace(
                f'href="{other}.md"', f'href="{other}.html"'
            )
        page = (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f"<title>{escape(title_of(text))}</title><style>{STYLE}</style></head><body><nav>{links}</nav><main>{body}</main></body></html>"
        )
        (SITE / f"{name}.html").write_text(page, encoding="utf-8")
    print(f"{len(texts)} pages in {SITE.relative_to(HERE.parent)}")


if __name__ == "__main__":
    main()
