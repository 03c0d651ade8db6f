"""Does a topic model whose topics bend predict documents better? Robust against plain LDA, over numbers of topics.

As in the paper (section 5.2): a fifth of the documents is held out, each held-out document is cut in two, and the second
half is predicted from the first. The halves of a split are the same for both models and all numbers of topics.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robustly.errors import DataError
from robustly.study.simulate import Task, random_of
from robustly.topics import LDA, Corpus, RobustLDA, complete_documents, split_documents

HELD_OUT = 0.2
REUTERS = "Reuters"
MODELS = {"plain": LDA, "robust": RobustLDA}
CACHE = "cache"
WORDS = {
    "plain": "plain LDA",
    CACHE: "plain LDA with a fitted cache of the document's words",
    "robust": "robust LDA (topics bend)",
}
COLUMNS = (
    "variant", "level", "repetition", "method", "outcome", "failure", "seconds", "nll", "error_of_documents", "words",
    "passes",
)  # fmt: skip


@dataclass(frozen=True)
class CorpusSource:
    """Where a corpus comes from: a file, or None for the Reuters headlines of the ``lda`` package."""

    name: str
    path: str | None
    digest: str


def default_sources() -> tuple[CorpusSource, ...]:
    """The Reuters set when the ``lda`` package is there."""
    if importlib.util.find_spec("lda") is None:
        return ()
    from importlib.metadata import version

    return (CorpusSource(REUTERS, None, f"lda {version('lda')}"),)


def sources_of(paths: list[Path]) -> tuple[CorpusSource, ...]:
    """Corpora by file, named for the file, or for its folder where file names say nothing or come twice."""
    found: list[CorpusSource] = []
    for path in paths:
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise DataError(
                f"cannot read the corpus {path}: {error.strerror}. Check the path given to --corpus."
            ) from error
        name = path.name.split(".")[0] or path.name
        if name.lower() in ("docword", "counts", "corpus", "mult") and path.resolve().parent.name:
            name = path.resolve().parent.name
        while name in [one.name for one in found]:
            name += "+"
        source = CorpusSource(name, str(path.resolve()), digest)
        counts = counts_of(source)
        if round(HELD_OUT * counts.shape[0]) < 1:
            raise DataError(f"the corpus {path} has {counts.shape[0]} documents; a fifth is held out, so 5 are needed.")
        found.append(source)
    return tuple(found)


@functools.lru_cache(maxsize=4)
def counts_of(source: CorpusSource) -> Any:
    """Documents × words."""
    if source.path is not None:
        return Corpus.read(source.path).counts
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from lda.datasets import load_reuters

        return Corpus.from_matrix(load_reuters()).counts


def run_topics(task: Task, seed: int, sources: tuple[CorpusSource, ...]) -> list[dict[str, Any]]:
    """Fit both models with ``task.level`` topics to one split of one corpus."""
    source = next(one for one in sources if one.name == task.variant)
    counts = counts_of(source)
    rng = random_of(seed, "topics", task.variant, task.repetition)
    order = rng.permutation(counts.shape[0])
    held = round(HELD_OUT * counts.shape[0])
    halves = split_documents(counts[np.sort(order[:held])], int(rng.integers(2**31)))
    train, start = counts[np.sort(order[held:])], int(rng.integers(2**31))
    lines = []
    for name, kind in MODELS.items():
        line = _empty_line(task, name)
        began = time.process_time()
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                model = kind(int(task.level), random_state=start, n_jobs=1, verbose=0).fit(train)
            line["seconds"] = round(time.process_time() - began, 3)
            line |= {"outcome": "max_steps" if caught else "converged", "passes": model.n_iter_}
            if kind is LDA:  # the same fit, with one number more: how far a document's own words predict its others
                lines.append(line | _completion_score(model, halves, cache=True) | {"method": CACHE})
            line |= _completion_score(model, halves)
        except (ValueError, ArithmeticError) as error:
            line["failure"] = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        lines.append(line)
    return lines


def _empty_line(task: Task, method: str) -> dict[str, Any]:
    line: dict[str, Any] = dict.fromkeys(COLUMNS, np.nan)
    line |= {"variant": task.variant, "level": task.level, "repetition": task.repetition, "method": method}
    return line | {"outcome": "failed", "failure": ""}


def _completion_score(model: Any, halves: Any, cache: bool = False) -> dict[str, Any]:
    found = complete_documents(model, observed=halves.observed, held_out=halves.held_out, cache=cache)
    error = _error(found.per_document, halves.held_out)
    return {"nll": -found.per_word, "words": found.words, "error_of_documents": error}


def _error(sums: np.ndarray, held_out: Any) -> float:
    """Standard error of a ratio of sums over documents."""
    words = np.asarray(held_out.sum(axis=1), dtype=float).ravel()
    rest = sums - sums.sum() / words.sum() * words
    return float(np.sqrt((rest**2).sum()) / words.sum())
