"""How is a pass compiled? For one thread, and by one; over few rows, quickly rather than well."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from robustly._runtime.lasting import lasting_program

# Numbers that go into a pass: up to so many, compiling takes longer than all that a fit will ever run.
FEW_NUMBERS_IN = 12_288
OPTIONS = {"xla_cpu_multi_thread_eigen": False, "xla_cpu_parallel_codegen_split_count": 1}


def one_thread(
    function: Callable[..., Any], name: str | None = None, *, often: bool = False, older: bool | None = None
) -> Callable[..., Any]:
    """Compiled for one thread: chunks are what threads share out, and small operations are slower in pieces.

    By one thread, too: XLA's compiler threads can wait for each other for ever over a large program with matrix factors
    in it (seen with jaxlib 0.10.2). Passes over few rows are compiled without LLVM's optimisations, and by XLA's older emitter
    where there is one: each takes half the time.

    Args:
        name: what tells the function from all others in any process (see :mod:`robustly._runtime.lasting`). The traced
            program is then kept for the processes to come.
        often: whether a program is where the time goes even over few rows, as where each is integrated at many points, or for
            every draw of a sampler. To compile it then takes a second longer, and the program a third of the time.
        older: whether few rows go by XLA's older emitter; if not told, those that are not asked for `often`. Of sums over points, one
            after the other, the newer one makes hardly faster programs, and takes three times as long.
    """
    import jax

    options = lambda is_small: quick_options(often, not often if older is None else older) if is_small else OPTIONS
    compiled = cache(lambda is_small: jax.jit(function, compiler_options=options(is_small)))
    known: dict[Any, Callable[..., Any]] = {}

    def run(*given: Any) -> Any:
        leaves, tree = jax.tree.flatten(given)
        is_small = sum(getattr(leaf, "size", 1) for leaf in leaves) <= FEW_NUMBERS_IN
        direct = compiled(is_small)
        if name is None or any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return direct(*given)
        like = (tree, tuple((getattr(leaf, "shape", ()), getattr(leaf, "dtype", type(leaf))) for leaf in leaves))
        if like not in known:
            kept = lasting_program(function, name, given)
            known[like] = direct if kept is None else jax.jit(kept, compiler_options=options(is_small))
        return known[like](*given)

    return run


@cache
def quick_options(often: bool, older: bool) -> dict[str, Any]:
    """How programs over few rows are compiled. XLA refuses options that a release does not know."""
    import jax

    well = often and not jax.config.read("jax_disable_most_optimizations")
    options = {**OPTIONS, "xla_backend_optimization_level": 1 if well else 0}
    if well and not older:
        return options
    emitter = {"xla_cpu_use_fusion_emitters": False}
    try:
        jax.jit(lambda: 0, compiler_options=emitter)()
    except jax.errors.JaxRuntimeError:
        return options
    return options | emitter
