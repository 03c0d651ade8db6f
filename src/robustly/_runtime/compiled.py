"""How is a pass compiled? For one thread, and by one; over few rows, quickly rather than well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Numbers that go into a pass: up to so many, compiling takes longer than all that a fit will ever run.
FEW_NUMBERS_IN = 8192


def one_thread(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled for one thread: chunks are what threads share out, and small operations are slower in pieces.

    By one thread, too: XLA's compiler threads can wait for each other for ever over a large program with matrix factors
    in it (seen with jaxlib 0.10.2). Passes over few rows are compiled without LLVM's optimisations: that takes half the time.
    """
    import jax

    options = {"xla_cpu_multi_thread_eigen": False, "xla_cpu_parallel_codegen_split_count": 1}
    well = jax.jit(function, compiler_options=options)
    quickly = jax.jit(function, compiler_options={**options, "xla_backend_optimization_level": 0})

    def run(*given: Any) -> Any:
        size = sum(getattr(leaf, "size", 1) for leaf in jax.tree.leaves(given))
        return (quickly if size <= FEW_NUMBERS_IN else well)(*given)

    return run
