"""Which words is a topic to begin with? Seeds by name or number, as counts that weigh in the topics' prior."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

import numpy as np

from robustly.errors import DataError, did_you_mean
from robustly.topics.fitting import SEED_WEIGHT


def seed_counts(seeds: Any, names: Any, n_words: int, size: int) -> np.ndarray | None:
    """(V, K) extra table counts of the seed words, or None without any."""
    if seeds is None:
        return None
    lists = seeds if isinstance(seeds, Mapping) else dict(enumerate(seeds))
    places = {} if names is None else {str(name): i for i, name in enumerate(names)}
    counts = np.zeros((n_words, size))
    for topic, words in lists.items():
        if not isinstance(topic, Integral) or not 0 <= int(topic) < size:
            raise DataError(f"seeds name topic {topic!r}; with {size} topics they count from 0 to {size - 1}.")
        if isinstance(words, str):
            raise DataError(f"the seeds of topic {topic} are one text; got {words!r}. Give a list of words.")
        for word in words:
            counts[_place(word, topic, places, n_words), int(topic)] = SEED_WEIGHT
    return counts


def _place(word: Any, topic: Any, places: dict[str, int], n_words: int) -> int:
    if isinstance(word, Integral):
        if not 0 <= int(word) < n_words:
            raise DataError(f"the seed {word} of topic {topic} is no word id; they go from 0 to {n_words - 1}.")
        return int(word)
    if not places:
        raise DataError(
            f'the seed "{word}" of topic {topic} is a word, and the words of these counts have no names. Fit a Corpus '
            "with a vocabulary or a frame with named columns, or give word ids."
        )
    if str(word) not in places:
        raise DataError(
            f'the seed "{word}" of topic {topic} is not in the vocabulary of {n_words} words.'
            + did_you_mean(str(word), places)
        )
    return places[str(word)]
