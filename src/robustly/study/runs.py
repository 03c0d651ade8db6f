"""Which repetitions are still to be run, where, and what is kept of them? Everything that survives a stop.

The folder of a study holds ``settings.json`` and one CSV file an experiment. A task (one training set, all methods) is
run once: its lines are written, whole files at a time, every few seconds and at the end, and a run that was stopped goes
on with the tasks that have no lines yet. Several tasks are run at once by separate processes that are started afresh
(never forked: JAX has threads), each with one thread, so the answers depend on neither their number nor their order.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import robustly
from robustly.errors import PersistError, RobustlyError
from robustly.result.persist import atomic
from robustly.study.simulate import PAPERS, ROWS, VARIANTS, Task

REGRESSIONS = ("linear", "logistic", "poisson")
SETTINGS = "settings.json"
TEXTS = ("variant", "method", "outcome", "failure")
BETWEEN_WRITES = 5.0
ONE_THREAD = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
}


class StudyError(RobustlyError):
    """A study cannot be run or gone on with as asked."""


class Stopped(RobustlyError):
    """The user stopped a study; what is done is kept."""


@dataclass(frozen=True)
class Wanted:
    """What a run is to do: the experiments, and all that decides their numbers."""

    experiments: tuple[str, ...]
    seed: int
    reps: int
    papers_only: bool = False
    """Only the paper's own ways to corrupt training rows."""
    sources: tuple[Any, ...] = ()
    topics: tuple[int, ...] = ()
    splits: int = 0

    def tasks(self, experiment: str) -> list[Task]:
        """All tasks of an experiment, a whole repetition at a time."""
        if experiment == "topics":
            return [
                Task("topics", source.name, float(size), split)
                for split in range(self.splits)
                for source in self.sources
                for size in self.topics
            ]
        return [
            Task(experiment, variant.name, float(level), repetition)
            for repetition in range(self.reps)
            for variant in VARIANTS[experiment]
            if not self.papers_only or variant.name in PAPERS[experiment]
            for level in variant.levels
        ]

    def settings(self, experiment: str) -> dict[str, Any]:
        """What must not change between the runs that fill one folder."""
        if experiment == "topics":
            corpora = {source.name: source.digest for source in self.sources}
            return {"corpora": corpora, "numbers of topics": list(self.topics)}
        return {"training rows": ROWS}

    def repetitions(self, experiment: str) -> int:
        return self.splits if experiment == "topics" else self.reps


def open_folder(folder: Path, wanted: Wanted) -> None:
    """Make the folder or go on with it; refuse when it was begun with other settings."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PersistError(f"cannot make the folder {folder}: {error.strerror}. Choose another with --out.") from error
    known = read_settings(folder)
    if not known and any(folder.glob("*.csv")):
        raise StudyError(f"the folder {folder} holds CSV files but no {SETTINGS}. Choose an empty folder with --out.")
    common = {"seed": wanted.seed, "robustly": robustly.__version__}
    for name, value in common.items():
        _refuse_change(folder, name, known.get(name, value), value)
    parts = dict(known.get("experiments", {}))
    for experiment in wanted.experiments:
        asked = {**wanted.settings(experiment), "repetitions": wanted.repetitions(experiment)}
        before = parts.get(experiment, asked)
        for name, value in asked.items():
            if name == "repetitions" and value > before[name]:
                continue  # More of the same go on from those that are there.
            _refuse_change(folder, f"{name} of {experiment}", before.get(name), value)
        parts[experiment] = asked
    write_study_json(folder / SETTINGS, {**common, "experiments": parts})


def _refuse_change(folder: Path, name: str, before: Any, now: Any) -> None:
    if before != now:
        raise StudyError(
            f"the study in {folder} was begun with {name} = {before}, and this run asks for {now}. Choose another folder "
            "with --out, or the same settings."
        )


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings a folder was begun with; nothing for a new one."""
    path = folder / SETTINGS
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found["experiments"], dict):
            raise TypeError("experiments")
        return found
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StudyError(f"{path} cannot be read ({error}). Choose another folder with --out.") from error


def write_study_json(path: Path, value: Any) -> None:
    with atomic(path) as stream:
        stream.write((json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def read_lines(folder: Path, experiment: str) -> pd.DataFrame:
    """What is known of an experiment so far."""
    path = folder / f"{experiment}.csv"
    if not path.exists():
        return pd.DataFrame()
    try:
        return typed(pd.read_csv(path, dtype=str, keep_default_na=False))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StudyError(f"{path} cannot be read ({error}). Delete it to run {experiment} again.") from error


def typed(lines: pd.DataFrame) -> pd.DataFrame:
    """Lines with texts as texts, every number to its last digit, and nothing where nothing was written."""
    found = {}
    for name in lines:
        column = lines[name]
        if name in TEXTS:
            found[name] = column.astype(str)
        elif name == "intercept":
            found[name] = column.astype(str) == "True"
        else:
            found[name] = pd.Series([np.nan if text == "" else float(text) for text in column], dtype=float)
    whole = pd.DataFrame(found)
    return whole.astype({"repetition": int, "level": float})


def work(task: Task, seed: int, sources: tuple[Any, ...] = ()) -> list[dict[str, Any]]:
    """Run one task; called in other processes too."""
    if task.experiment == "topics":
        from robustly.study.topics import run_topics

        return run_topics(task, seed, sources)
    from robustly.study.regressions import run_regressions

    return run_regressions(task, seed)


class Ledger:
    """The lines of one experiment, in memory and on disk."""

    def __init__(self, folder: Path, experiment: str) -> None:
        self.path = folder / f"{experiment}.csv"
        self.known = read_lines(folder, experiment)
        self.fresh: list[dict[str, Any]] = []
        self.written = time.monotonic()

    def lacks(self, tasks: list[Task]) -> list[Task]:
        """Those tasks that have no lines yet."""
        if not len(self.known):
            return tasks
        done = set(zip(self.known["variant"], self.known["level"], self.known["repetition"]))
        return [task for task in tasks if (task.variant, task.level, task.repetition) not in done]

    def add(self, lines: list[dict[str, Any]]) -> None:
        self.fresh += lines
        if time.monotonic() - self.written > BETWEEN_WRITES:
            self.write()

    def write(self) -> None:
        """All lines, sorted, as one whole file."""
        self.written = time.monotonic()
        if not self.fresh:
            return
        fresh = typed(pd.DataFrame(self.fresh))
        whole = pd.concat([self.known, fresh], ignore_index=True) if len(self.known) else fresh
        whole = whole.sort_values(["variant", "level", "repetition"], kind="stable", ignore_index=True)
        with atomic(self.path) as stream:
            stream.write(whole.to_csv(index=False).encode())
        self.known, self.fresh = whole, []


def run_wanted(folder: Path, wanted: Wanted, jobs: int, advance: Callable[[str, int, int], None]) -> None:
    """Run what is missing. `advance` is told an experiment, how many of its tasks are done, and of how many."""
    open_folder(folder, wanted)
    for experiment in wanted.experiments:
        ledger = Ledger(folder, experiment)
        tasks = wanted.tasks(experiment)
        missing = ledger.lacks(tasks)
        done = len(tasks) - len(missing)
        advance(experiment, done, len(tasks))
        if not missing:
            continue
        try:
            with contextlib.closing(_results(missing, wanted, min(jobs, len(missing)))) as results:
                for lines in results:
                    ledger.add(lines)
                    done += 1
                    advance(experiment, done, len(tasks))
        except KeyboardInterrupt:
            raise Stopped(
                f"stopped at {done} of {len(tasks)} parts of {experiment}; they are kept in {folder}. Give the same "
                "command again to go on."
            ) from None
        except BrokenProcessPool as error:
            raise StudyError(
                f"a process ended without an answer, perhaps for want of memory; {done} of {len(tasks)} parts of "
                f"{experiment} are kept in {folder}. Give the same command again, with fewer --jobs."
            ) from error
        finally:
            ledger.write()


def _results(tasks: list[Task], wanted: Wanted, jobs: int) -> Generator[list[dict[str, Any]], None, None]:
    """Lines of tasks as they come."""
    if jobs == 1:
        for task in tasks:
            yield work(task, wanted.seed, wanted.sources)
        return
    import multiprocessing

    waiting = iter(tasks)
    with _one_thread_each():
        pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_follow_parent)
        try:
            # A few tasks ahead keep all busy, and few enough that a stop is quick.
            running: set[Future[list[dict[str, Any]]]] = set()
            while True:
                for task in itertools.islice(waiting, 2 * jobs - len(running)):
                    running.add(pool.submit(work, task, wanted.seed, wanted.sources))
                if not running:
                    break
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield future.result()
        except BaseException:
            for process in list((pool._processes or {}).values()):
                process.terminate()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _follow_parent() -> None:
    """Leave stopping by hand to the parent, and end with it: a parent that is killed can tell nobody."""
    import multiprocessing
    from multiprocessing.connection import wait as wait_for

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait_for([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes started inside have one thread each; the settings here are left as they were."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def sensible_jobs() -> int:
    """As many processes as there are cores to use, but no more than eight: each compiles for itself."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(cores, 8)
