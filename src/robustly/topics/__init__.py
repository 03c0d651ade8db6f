"""Topic models in which every document bends the topics its own way, with plain LDA beside them."""

from robustly.topics.corpus import Corpus
from robustly.topics.evaluate import (
    Completion,
    Split,
    coherence,
    complete_documents,
    document_completion,
    split_documents,
)
from robustly.topics.lda import LDA, RobustLDA

__all__ = [
    "LDA",
    "Completion",
    "Corpus",
    "RobustLDA",
    "Split",
    "coherence",
    "complete_documents",
    "document_completion",
    "split_documents",
]
