"""What is claimed: a comparison is a problem, our entry, its rivals and targets. Areas list them in `comparisons/`."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Target:
    """A number that must not pass a limit.

    `measure` is one that a run yields (see `benchmarks.measure`): cold, first, warm, warm_per_effective, peak_mb,
    beyond_data_mb, extra_mb, passes, or any other number the entry reports. Without `versus` the number is our own
    median. With `versus`, `at_most` limits ours as a multiple of the rival's and `at_least` asks how many times
    smaller ours is (faster, when it is a time), pair by pair.
    """

    text: str
    measure: str
    at_most: float | None = None
    at_least: float | None = None
    versus: str | None = None

    def __post_init__(self) -> None:
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError(f"target {self.text!r} needs either at_most or at_least")


@dataclass(frozen=True)
class Comparison:
    """`ours` and `rivals` name modules of `benchmarks.rivals`; `quick` overrides `sizes` under --quick.

    `cache` says what a process finds of earlier compilations: "empty" nothing, "kept" what an unmeasured run left.
    """

    name: str
    title: str
    problem: str | None
    ours: str
    rivals: tuple[str, ...] = ()
    targets: tuple[Target, ...] = ()
    sizes: dict[str, Any] = field(default_factory=dict)
    quick: dict[str, Any] = field(default_factory=dict)
    reps: int = 5
    quick_reps: int = 2
    warm_fits: int = 5
    cache: str = "empty"
    timeout: float = 1200.0

    @property
    def entries(self) -> tuple[str, ...]:
        return (self.ours, *self.rivals)


def discover(package: str = "benchmarks.comparisons") -> dict[str, Comparison]:
    """Every comparison that a module of `package` lists in COMPARISONS, by name."""
    found: dict[str, Comparison] = {}
    folder = importlib.import_module(package)
    for module in sorted(pkgutil.iter_modules(folder.__path__), key=lambda module: module.name):
        for comparison in importlib.import_module(f"{package}.{module.name}").COMPARISONS:
            if comparison.name in found:
                raise ValueError(f"two comparisons are called {comparison.name!r}; rename the one in {module.name}.py")
            found[comparison.name] = comparison
    return found
