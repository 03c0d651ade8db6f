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
from robustly.topics.plots import plot_burstiness, plot_topics

__all__ = [
    "LDA",
    "Completion",
    "Corpus",
    "RobustLDA",
    "Split",
    "coherence",
    "complete_documents",
    "document_completion",
    "plot_burstiness",
    "plot_topics",
    "split_documents",
]
