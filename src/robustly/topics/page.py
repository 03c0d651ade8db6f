"""How are topics read without a program? On one page: a map, the words of each topic, and documents with their bursts.

The page is a single file; nothing is fetched and nothing runs: a policy in its head forbids every script, and all text of
words and documents is escaped, with control characters written out.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from robustly.errors import DataError
from robustly.result.persist import atomic
from robustly.topics.corpus import Corpus, check_counts
from robustly.topics.fitted import FittedTopics
from robustly.topics.reading import overlaps
from robustly.topics.summary import plain_text
from robustly.topics.texts import WORD

# A word is marked as a burst where a Poisson count would be as large with less than this chance, and it comes again.
BURST_SURPRISE = float(-np.log(1e-3))
EXCERPT = 900
MAP_WIDTH, MAP_HEIGHT = 760.0, 460.0


@dataclass(frozen=True)
class Example:
    """A document shown for a topic: its share of the topic, its words' bursts, its text if known."""

    name: str
    share: float
    bursts: tuple[tuple[str, int, float], ...]
    text: str | None


def write_page(
    model: FittedTopics,
    documents: Any,
    path: str | os.PathLike[str],
    *,
    title: str = "Topics",
    words: int = 12,
    examples: int = 3,
    vocabulary: Sequence[str] | None = None,
) -> Path:
    """Write the page of a fitted model and the documents to show; a :class:`Corpus` made from texts shows these."""
    text = render(model, documents, title=title, words=words, examples=examples, vocabulary=vocabulary)
    with atomic(path) as stream:
        stream.write(text.encode("utf-8"))
    return Path(path)


def render(
    model: FittedTopics,
    documents: Any,
    *,
    title: str = "Topics",
    words: int = 12,
    examples: int = 3,
    vocabulary: Sequence[str] | None = None,
) -> str:
    """The page as HTML."""
    model.check_fitted()
    counts = check_counts(documents, allow_fractional=model.allow_fractional)
    if counts.shape[1] != model.n_features_in_:
        raise DataError(
            f"the documents have {counts.shape[1]} words and the model {model.n_features_in_}. Count the words of the fit: "
            "Corpus.from_texts(texts, vocabulary=model.vocabulary_)."
        )
    known = model.named_words(vocabulary, fallback=True)
    if vocabulary is None and model.vocabulary_ is None and not hasattr(model, "feature_names_in_"):
        known = [f"#{i}" for i in range(model.n_features_in_)]
    shares = model.transform(counts)
    lengths = np.asarray(counts.sum(axis=1), dtype=float).ravel()
    sizes = shares.T @ lengths / max(lengths.sum(), 1.0)
    best, weights = model.ranked_words(words), model.word_shares()
    order = np.argsort(-sizes, kind="stable")
    heads = [[str(known[i]) for i in row[:3]] for row in best]
    sections = []
    for rank, k in enumerate(order):
        shown = _examples(model, documents, counts, shares[:, k], lengths, examples, known)
        listed = [(str(known[i]), float(weights[k, i])) for i in best[k]]
        sections.append(_topic_section(model, int(k), sizes[k], listed, shown, weights[:, best].max(), opened=rank < 3))
    facts = [
        f"{counts.shape[0]} documents", f"{counts.shape[1]} words", f"{lengths.sum():.0f} tokens", f"{len(order)} topics"
    ]  # fmt: skip
    if hasattr(model, "coherence_"):
        facts += [f"coherence {np.nanmean(model.coherence_):.3f}", f"diversity {model.diversity_:.2f}"]
    style = files("robustly.topics").joinpath("page.css").read_text(encoding="utf-8")
    body = [
        f"<h1>{_safe_text(title)}</h1>",
        f'<p class="lead">{_safe_text(" · ".join(facts))}</p>',
        _map(model, sizes, heads),
        "<h2>Topics, the most used first</h2>",
        *sections,
        f"<footer>Made with robustly ({_safe_text(type(model).__name__)}). Words are ranked by relevance, so that words common in "
        "all topics do not lead them. Marked words are bursts: they come more often than their topics would have it."
        "</footer>",
    ]
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{_safe_text(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{style}</style></head><body><main>{chr(10).join(body)}</main></body></html>\n"
    )


def _safe_text(value: str) -> str:
    """Text that no browser takes for markup, nor turns around or hides."""
    return escape(plain_text(value), quote=True)


def _topic_section(
    model: FittedTopics,
    k: int,
    size: float,
    words: list[tuple[str, float]],
    shown: list[Example],
    scale: float,
    opened: bool,
) -> str:
    bars = "".join(
        f'<li><span class="word">{_safe_text(word)}</span><span class="bar" style="width:{100 * weight / scale:.1f}%"></span></li>'
        for word, weight in words
    )
    facts = [f"{size:.1%} of the tokens"]
    if model.bursty:
        facts.append(f"Σ η = {model.burstiness_[k]:.3g}")
    if hasattr(model, "coherence_") and np.isfinite(model.coherence_[k]):
        facts.append(f"coherence {model.coherence_[k]:.2f}")
    head = ", ".join(word for word, _ in words[:3])
    open_ = " open" if opened else ""
    return (
        f'<section id="topic-{k}"><h3><span class="number">{k}</span> {_safe_text(head)}</h3>'
        f'<p class="facts">{" · ".join(facts)}</p><div class="topic"><ol class="words">{bars}</ol>'
        f"<details{open_}><summary>Documents</summary>{''.join(map(_example, shown))}</details></div></section>"
    )


def _example(one: Example) -> str:
    bursts = {word for word, _, _ in one.bursts}
    listed = ", ".join(f"{_safe_text(word)} × {count}" for word, count, _ in one.bursts[:6])
    body = f'<p class="text">{_marked(one.text, bursts)}</p>' if one.text is not None else ""
    told = f'<p class="bursts">bursts: {listed}</p>' if listed else ""
    return f"<article><h4>{_safe_text(one.name)} <small>{one.share:.0%}</small></h4>{told}{body}</article>"


def _marked(text: str, bursts: set[str]) -> str:
    """An excerpt around the first burst, with all of them marked."""
    hits = []
    previous: Any = None
    for found in WORD.finditer(text):
        word = found.group().lower()
        if word in bursts:
            hits.append(found.span())
        if previous is not None and f"{previous.group().lower()} {word}" in bursts:
            hits.append((previous.start(), found.end()))
        previous = found
    begin = max(0, (min(hits)[0] if hits else 0) - 120)
    end = min(len(text), begin + EXCERPT)
    cut = text.rfind(" ", begin, end) if end < len(text) else -1
    end = cut if cut > begin else end
    parts, at = ["… " if begin else ""], begin
    for first, last in sorted(hits):
        if first < at or last > end:
            continue
        parts += [_safe_text(_spaced(text[at:first])), f"<mark>{_safe_text(text[first:last])}</mark>"]
        at = last
    return "".join([*parts, _safe_text(_spaced(text[at:end])), " …" if end < len(text) else ""])


def _spaced(text: str) -> str:
    return "".join(" " if one in "\n\r\t\f\v" else one for one in text)


def _examples(
    model: FittedTopics, documents: Any, counts: Any, shares: np.ndarray, lengths: np.ndarray, number: int, known: Any
) -> list[Example]:
    """Documents with the largest share of a topic; very short ones say little and come last."""
    order = np.argsort(-(shares * (lengths / (lengths + 20.0))), kind="stable")[:number]
    names = documents.names if isinstance(documents, Corpus) else None
    texts = documents.texts if isinstance(documents, Corpus) else None
    found = []
    for d in map(int, order):
        if lengths[d] == 0:
            continue
        table = model.bursts(counts[d], list(known))
        rows = table[(table["count"] >= 2) & (table["surprise"] > BURST_SURPRISE)]
        bursts = tuple((str(r.word), int(r.count), float(r.surprise)) for r in rows.itertuples(index=False, name="Row"))
        name = names[d] if names is not None else f"document {d}"
        found.append(Example(name, float(shares[d]), bursts, texts[d] if texts is not None else None))
    return found


def _map(model: FittedTopics, sizes: np.ndarray, heads: list[list[str]]) -> str:
    """Circles by size, near each other where topics share words; each leads to its section."""
    places, radii = placed(overlaps(model.topics_.eta), sizes)
    drawn = []
    for k in np.argsort(-radii, kind="stable"):
        (x, y), r = places[k], radii[k]
        label = heads[k][0] if heads[k] else ""
        label = label if len(label) <= 14 else label[:13] + "…"
        font = min(19.0, 2.1 * r / max(len(label), 2) * 1.25)
        inside = f'<text y="4" font-size="{max(font, 8):.1f}">{_safe_text(label) if font >= 8 else k}</text>'
        drawn.append(
            f'<a href="#topic-{k}" aria-label="topic {k}: {_safe_text(", ".join(heads[k]))}">'
            f'<g transform="translate({x:.1f} {y:.1f})"><title>{k}: {_safe_text(", ".join(heads[k]))} ({sizes[k]:.1%})</title>'
            f'<circle r="{r:.1f}"/>{inside}</g></a>'
        )
    return (
        f'<figure><svg class="map" viewBox="0 0 {MAP_WIDTH:.0f} {MAP_HEIGHT:.0f}" role="img" aria-label="Map of topics">'
        f"{''.join(drawn)}</svg><figcaption>Area is a topic's share of the tokens; topics that share words stand near each "
        "other. Choose one to read it.</figcaption></figure>"
    )


def placed(overlap: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Centres and radii of circles: classical scaling of the Hellinger distances, then pushed apart until none overlap."""
    size = len(overlap)
    radii = np.sqrt(np.maximum(sizes, 0.002))
    radii *= np.sqrt(0.38 * MAP_WIDTH * MAP_HEIGHT / np.pi / (radii**2).sum())
    radii = np.clip(radii, 7.0, 95.0)
    squared = np.maximum(1.0 - overlap, 0.0)
    centred = squared - squared.mean(axis=0) - squared.mean(axis=1)[:, None] + squared.mean()
    values, vectors = np.linalg.eigh(-0.5 * centred)
    places = np.zeros((size, 2))
    for axis in range(min(2, size)):
        places[:, axis] = vectors[:, -1 - axis] * np.sqrt(max(values[-1 - axis], 0.0))
    spread = np.maximum(np.abs(places).max(axis=0), 1e-12)
    room = np.array([MAP_WIDTH, MAP_HEIGHT]) / 2
    places = places / spread * (room * 0.8)
    # A small turn for each, so that topics in one place have directions to part in.
    places += 0.5 * np.stack([np.cos(2.4 * np.arange(size)), np.sin(2.4 * np.arange(size))], axis=1)
    least_gap = radii[:, None] + radii + 3.0
    for _ in range(400):
        gap = places[:, None] - places
        distance = np.maximum(np.sqrt((gap**2).sum(axis=2)), 1e-9)
        push = np.maximum(least_gap - distance, 0.0)
        np.fill_diagonal(push, 0.0)
        places = places + 0.3 * (gap / distance[:, :, None] * push[:, :, None]).sum(axis=1)
        places = np.clip(places, radii[:, None] - room + 4, room - radii[:, None] - 4)
    return places + room, radii
