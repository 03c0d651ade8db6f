"""What do docstrings say to mkdocstrings? Examples under the heading it knows, and roles as plain code."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension


class Docstrings(Extension):
    def on_object(self, *, obj: Any, **kwargs: Any) -> None:
        """Called for every name that is read."""
        if obj.docstring is None:
            return
        told = re.sub(r"^(\s*)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)
        told = re.sub(r":math:`(.*?)`", r"`\1`", told, flags=re.DOTALL)
        obj.docstring.value = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", told)
