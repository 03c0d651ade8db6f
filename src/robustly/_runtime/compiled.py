"""How is a pass compiled? For one thread, and by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def one_thread(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled for one thread: chunks are what threads share out, and small operations are slower in pieces.

    By one thread, too: XLA's compiler threads can wait for each other for ever over a large program with matrix factors
    in it (seen with jaxlib 0.10.2).
    """
    import jax

    return jax.jit(
        function, compiler_options={"xla_cpu_multi_thread_eigen": False, "xla_cpu_parallel_codegen_split_count": 1}
    )
