"""Where random numbers come from: a whole number, a JAX key, or (where NumPy draws) a generator. All do everywhere."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from robustly.errors import ModelError


def generator(key: Any) -> np.random.Generator:
    """NumPy's side."""
    if isinstance(key, np.random.Generator):
        return key
    if isinstance(key, int | np.integer):
        return np.random.default_rng(int(key))
    return np.random.default_rng(np.asarray(_data(key)).ravel().tolist())


def jax_key(key: Any) -> Any:
    """JAX's side."""
    if isinstance(key, np.random.Generator):
        return jax.random.key(int(key.integers(2**31)))
    if isinstance(key, int | np.integer):
        return jax.random.key(int(key))
    _data(key)
    return key


def _data(key: Any) -> Any:
    try:
        return jax.random.key_data(key)
    except TypeError:
        raise ModelError(
            f"key is {key!r}, but random draws start from a whole number such as 0, or from jax.random.key(0)."
        ) from None
