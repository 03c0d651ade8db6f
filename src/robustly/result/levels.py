"""Is a level a probability? Intervals and lists of rows ask; neither takes 95 for 0.95."""

from __future__ import annotations

from robustly.errors import ModelError


def check_level(level: float) -> None:
    """Refuse what does not lie between 0 and 1."""
    if not 0 < level < 1:
        raise ModelError(f"level is a probability between 0 and 1; got {level}.")
