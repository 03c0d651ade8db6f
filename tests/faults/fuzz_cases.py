"""How does a call with odd input end? With finite answers or a named error, in time; anything else is told.

A number is one input: ``case(number)`` chooses a target and what it is given. ``python fuzz_cases.py NUMBER …`` runs some
and shows what they are and how they end.
"""

from __future__ import annotations

import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import numpy as np
from fuzz_commands import COMMANDS
from fuzz_models import MODELS
from fuzz_programs import PROGRAMS
from fuzz_targets import TARGETS, Answers, Call

from robustly.errors import (
    ConvergenceWarning,
    HeavyTailsWarning,
    IdentifiabilityWarning,
    OverlapWarning,
    RobustlyError,
)

SECONDS = 120.0
# Targets are tried the more often the less a call costs: those that compile much or work long when all is well, the least.
RARE = (
    "RobustGLM gamma", "RobustPoissonRegression heavy", "glm families", "localize requested", "localize written", "robustly series",
    "robustly compare", "robustly other", "robustly predict", "pair NormalWishart", "pair BetaNegativeBinomial", "pair GammaGamma",
)  # fmt: skip
OFTEN = (
    "glm",
    "mixture",
    "HMM",
    "LDA",
    "RobustLDA",
    "pair DirichletMultinomial",
    "pair NormalNormal",
    "robustly topics",
)
ALL = {**TARGETS, **MODELS, **PROGRAMS, **COMMANDS}
OURS = (ConvergenceWarning, IdentifiabilityWarning, HeavyTailsWarning, OverlapWarning)


class TooLong(BaseException):
    """A call took longer than any may."""


@contextmanager
def in_time(seconds: float) -> Iterator[None]:
    """Of work, all threads together, so that others on the machine do not count; who waits for ever is found from outside."""

    def stop(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def case(number: int, targets: dict[str, Callable[[Random], Call]] = ALL) -> tuple[str, str, Callable[[], Answers]]:
    """The input of this number: its target, what is given in words, and the call."""
    random = Random(number)
    name = random.choices(tuple(targets), [1 if name in RARE else 80 if name in OFTEN else 10 for name in targets])[0]
    told, run = targets[name](random)
    return name, told, run


def end_of(run: Callable[[], Answers], seconds: float = SECONDS) -> str:
    """``answered`` or ``refused``; anything else is what went wrong."""
    began = time.process_time()
    try:
        with in_time(seconds), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = run()
    except RobustlyError as error:
        return "refused" if len(str(error)) > 15 else f"refused without a word: {error!r}"
    except TooLong:
        return f"took longer than {seconds:g} s"
    except Exception as error:
        if _said_by_sklearn(error):
            return "refused"
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "robustly" in f.filename]
        at = f" at {frames[-1].filename.split('robustly/')[-1]}:{frames[-1].lineno}" if frames else ""
        return f"{type(error).__name__}: {str(error)[:150]}{at}"
    if time.process_time() - began > seconds:
        return f"took longer than {seconds:g} s"
    for one in caught:
        if not issubclass(one.category, OURS) and not _is_sklearns(one):
            return f"warned: {one.category.__name__}: {str(one.message)[:120]} at {one.filename.split('/src/')[-1]}:{one.lineno}"
    for name, answer in found.items():
        if not np.all(np.isfinite(np.asarray(answer, dtype=float))):
            return f"not finite: {name}"
    return "answered"


def _said_by_sklearn(error: Exception) -> bool:
    """scikit-learn's own checks of arrays, which estimators promise, raise plain errors with sentences of their own."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return (
        isinstance(error, TypeError | ValueError)
        and any("sklearn/utils" in frame.filename for frame in traceback.extract_tb(error.__traceback__))
        and "robustly" not in last.filename
    )


def _is_sklearns(one: warnings.WarningMessage) -> bool:
    return one.category.__module__.startswith("sklearn")


def main() -> None:
    for number in map(int, sys.argv[1:]):
        name, told, run = case(number)
        print(f"{number} {name}: {told}", flush=True)
        ended = end_of(run)
        print(f"    {ended}", flush=True)
        if ended not in ("answered", "refused"):
            run = case(number)[2]
            try:
                run()
            except Exception:
                traceback.print_exc()


if __name__ == "__main__":
    main()
