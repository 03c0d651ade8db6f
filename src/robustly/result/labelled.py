"""Standard errors that answer by name and by label, and are a pandas Series for all else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pandas as pd


class StandardErrors(pd.Series):
    """A Series by label whose ``["w"]`` also gives all entries of ``w`` as an array, and ``["site"]`` those by argument."""

    _metadata: ClassVar[list[str]] = ["by_name"]

    @classmethod
    def of(cls, values: Any, labels: list[str], by_name: Mapping[str, Any]) -> StandardErrors:
        found = cls(values, index=labels, name="standard error")
        found.by_name = dict(by_name)
        return found

    @property
    def _constructor(self) -> type[pd.Series]:
        # What is computed from it is an ordinary Series.
        return pd.Series

    def __getitem__(self, key: Any) -> Any:
        named = getattr(self, "by_name", {})
        return named[key] if isinstance(key, str) and key in named else super().__getitem__(key)

    def __contains__(self, key: Any) -> bool:
        return super().__contains__(key) or key in getattr(self, "by_name", {})
