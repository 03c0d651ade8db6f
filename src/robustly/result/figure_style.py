"""How do figures look? One style for all of them, which leaves matplotlib's settings as they were."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

STYLE = {
    "text.parse_math": False,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.edgecolor": "#777777",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "axes.labelcolor": "#222222",
}


def in_style(make: Callable[..., Any]) -> Callable[..., Any]:
    """Draw with our style and leave matplotlib's settings as they were."""

    @functools.wraps(make)
    def styled(*args: Any, **kwargs: Any) -> Any:
        from matplotlib import rc_context

        with rc_context(STYLE):
            return make(*args, **kwargs)

    return styled
