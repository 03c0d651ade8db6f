"""Topic models in which every document bends the topics its own way, with plain LDA beside them.

Names are imported when they are first used, so that the command line can offer its help without loading a compiler.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Completion": "evaluate",
    "Corpus": "corpus",
    "LDA": "lda",
    "RobustLDA": "lda",
    "Split": "evaluate",
    "StoredCorpus": "stored",
    "coherence": "evaluate",
    "diversity": "evaluate",
    "complete_documents": "evaluate",
    "document_completion": "evaluate",
    "on_disk": "stored",
    "write_page": "page",
    "plot_burstiness": "plots",
    "plot_topics": "plots",
    "split_documents": "evaluate",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"robustly.topics.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'robustly.topics' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
