"""Which experiments are run, how often, and what comes of them? The paper's, into one folder, with figures and a page."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from robustly.errors import PersistError, did_you_mean, names

EXPERIMENTS = ("linear", "logistic", "poisson", "summary", "topics", "all")
FULL, QUICK = 50, 6
SPLITS, QUICK_SPLITS = 5, 2
TOPICS, QUICK_TOPICS = (5, 10, 20, 50), (5, 20)


def run_study(
    experiment: str,
    out: Path,
    reps: int | None = None,
    seed: int = 0,
    quick: bool = False,
    jobs: int | None = None,
    corpus: list[Path] | None = None,
    topics: str | None = None,
) -> Iterator[str]:
    """Run experiments into a folder, draw the figures, write the page; yields what to tell the user."""
    from robustly.study import runs
    from robustly.study.topics import default_sources, sources_of

    chosen = _chosen(experiment)
    reps = _at_least_one("--reps", reps, QUICK if quick else FULL)
    jobs = _at_least_one("--jobs", jobs, runs.sensible_jobs())
    if seed < 0:
        raise runs.StudyError(f"--seed is a whole number from 0 up; got {seed}.")
    sizes = _topic_numbers(topics) if topics is not None else (QUICK_TOPICS if quick else TOPICS)
    notes: list[str] = []
    sources: tuple[Any, ...] = ()
    if "topics" in chosen:
        sources = sources_of(corpus or []) if corpus else default_sources()
        if not sources:
            chosen = tuple(name for name in chosen if name != "topics")
            note = (
                "Topics were not run: give a corpus with --corpus, or install the lda package for its Reuters set "
                '(pip install "robustly[study]").'
            )
            if not chosen:
                raise runs.StudyError(note)
            notes.append(note)
            yield note
    elif corpus or topics:
        raise runs.StudyError(f"--corpus and --topics are for the topics experiment; got {experiment}.")
    splits = min(reps, QUICK_SPLITS if quick else SPLITS)
    wanted = runs.Wanted(chosen, seed, reps, experiment == "summary", sources, sizes, splits)
    with _bars() as advance:
        runs.run_wanted(out, wanted, jobs, advance)
    yield from finish(out, notes)


def finish(out: Path, notes: list[str]) -> Iterator[str]:
    """Figures and page from the lines that a folder holds."""
    from robustly.study import runs
    from robustly.study.claims import claims
    from robustly.study.figures import draw_all
    from robustly.study.page import write_study_page

    settings = runs.read_settings(out)
    lines = {name: runs.read_lines(out, name) for name in settings["experiments"]}
    lines = {name: frame for name, frame in lines.items() if len(frame)}
    try:
        pictures = draw_all(out / "figures", lines)
    except OSError as error:
        raise PersistError(f"cannot write figures into {out}: {error.strerror}. Choose another --out.") from error
    page = write_study_page(out, lines, pictures, settings, notes)
    for one in claims(lines):
        yield f"{one.verdict:>19}  {one.where}: {one.claim}"
    yield f"wrote {page}, {len(pictures)} figures in {out / 'figures'}, and the lines of every repetition as CSV"


def _chosen(experiment: str) -> tuple[str, ...]:
    if experiment not in EXPERIMENTS:
        from robustly.study.runs import StudyError

        raise StudyError(
            f'there is no experiment "{experiment}"; there are {names(EXPERIMENTS)}.'
            + did_you_mean(experiment, EXPERIMENTS)
        )
    if experiment == "all":
        return ("linear", "logistic", "poisson", "topics")
    return ("linear", "logistic", "poisson") if experiment == "summary" else (experiment,)


def _at_least_one(name: str, given: int | None, default: int) -> int:
    if given is not None and given < 1:
        from robustly.study.runs import StudyError

        raise StudyError(f"{name} is a whole number from 1 up; got {given}.")
    return default if given is None else given


def _topic_numbers(text: str) -> tuple[int, ...]:
    from robustly.study.runs import StudyError

    try:
        sizes = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        sizes = ()
    if not sizes or sizes[0] < 1:
        raise StudyError(
            f'--topics takes whole numbers from 1 up, with commas between them, as in 10,20,50; got "{text}".'
        )
    return sizes


@contextlib.contextmanager
def _bars() -> Iterator[Callable[[str, int, int], None]]:
    """A bar an experiment on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda experiment, done, total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description:>9}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        known: dict[str, Any] = {}

        def advance(experiment: str, done: int, total: int) -> None:
            if experiment not in known:
                known[experiment] = bars.add_task(experiment, total=total)
            bars.update(known[experiment], completed=done)

        yield advance
