"""How many programs does JAX build in a block? Each jit that is traced and lowered anew counts, whoever compiles it.

A program read from the persistent cache is counted too: it was traced and lowered, which takes as long as many fits, before
the cache could be asked. Operations outside ``jit`` are small programs of their own; they count when they meet a new shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import jax

# Recorded once a program, when its jaxpr is turned into StableHLO, with the program's name.
LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"


@dataclass
class Compilations:
    """The names of the programs built so far, in order."""

    programs: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.programs)


_open: list[Compilations] = []


def _listen(event: str, seconds: float, **details: object) -> None:
    if event == LOWERED:
        for one in _open:
            one.programs.append(str(details.get("fun_name", "?")))


jax.monitoring.register_event_duration_secs_listener(_listen)


@contextmanager
def compilations() -> Iterator[Compilations]:
    """Count the programs JAX builds in the block, in any thread."""
    counted = Compilations()
    _open.append(counted)
    try:
        yield counted
    finally:
        _open.remove(counted)
