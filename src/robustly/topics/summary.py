"""What did a fit find, on one screen? Topics by share, with their burstiness, coherence and words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class TopicsSummary:
    """`topics` has a row for each topic, the most used first; `head` says how the fit went. ``str()`` is the text."""

    head: str
    topics: pd.DataFrame

    @classmethod
    def of(cls, model: Any, words: list[list[str]]) -> TopicsSummary:
        """Of a fitted model, with each topic's words."""
        shares = model.alpha_ / model.alpha_.sum()
        order = np.argsort(-shares, kind="stable")
        columns: dict[str, Any] = {"topic": order, "share": shares[order]}
        if model.bursty:
            columns["burstiness"] = model.burstiness_[order]
        if hasattr(model, "coherence_"):
            columns["coherence"] = model.coherence_[order]
        columns["words"] = [words[k] for k in order]
        head = (
            f"{type(model).__name__}: {len(order)} topics, {model.documents_seen_} documents, {model.n_features_in_} words, "
            f"evidence {model.evidence_:.4f} per word"
        )
        if hasattr(model, "coherence_"):
            head += f", coherence {np.nanmean(model.coherence_):.3f}, diversity {model.diversity_:.2f}"
        return cls(head, pd.DataFrame(columns))

    def __str__(self) -> str:
        shown = self.topics.copy()
        shown["share"] = [f"{value:.1%}" for value in shown["share"]]
        for name, style in (("burstiness", ".4g"), ("coherence", ".3f")):
            if name in shown:
                shown[name] = [format(value, style) for value in shown[name]]
        shown["words"] = [" ".join(words) for words in shown["words"]]
        widths = {name: max(len(name), *(len(str(value)) for value in shown[name])) for name in shown.columns[:-1]}
        lines = ["  ".join([*(name.rjust(widths[name]) for name in widths), "words"])]
        for row in shown.itertuples(index=False):
            cells = [str(value).rjust(width) for value, width in zip(row, widths.values())]
            lines.append("  ".join([*cells, plain_text(row[-1])]))
        return "\n".join([self.head, "", *lines])


def plain_text(text: str) -> str:
    """A text with control characters written out, so that a terminal shows it and does not obey it."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
