"""Which different responses do rows have? Of a million counts there are a few hundred, and equal ones are told apart by their predictors alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from robustly.rows.store import Data, Rows

LARGEST = 2**20
MOST = 20_000
MOST_PLACES = 2**22


@dataclass(frozen=True, eq=False)
class Responses:
    """The different responses, each with its trials, and how a row finds its own among them."""

    y: np.ndarray
    trials: np.ndarray
    begin: np.ndarray
    """By number of trials, where its responses begin in `place`."""
    place: np.ndarray
    """By response, its place in `y` and `trials`."""

    def __len__(self) -> int:
        return len(self.y)

    @property
    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """What a row finds its own by: the place of its response is ``place[begin[trials] + y]``."""
        return self.begin, self.place

    def of(self, data: Data) -> np.ndarray:
        """The place of every row's response; `data` are a regression's."""
        trials = data[3][:1] if data[3].strides == (0,) else data[3]  # one number for all rows is looked up once
        return self.place[self.begin[trials.astype(np.int64)] + data[2].astype(np.int64)]


def different_responses(rows: Rows) -> Responses | None:
    """The different responses of a regression's rows, or None where they are not whole numbers or too many."""
    return _put_in_order(rows.each_piece(_whole_pairs))


def responses_among(y: np.ndarray, trials: np.ndarray) -> Responses | None:
    """The same of rows at hand."""
    return _put_in_order([_whole_pairs((None, None, y, trials))])


def _put_in_order(found: Sequence[np.ndarray | None]) -> Responses | None:
    pairs = [one for one in found if one is not None]
    if len(pairs) < len(found):
        return None
    trials, y = np.unique(np.concatenate(pairs), axis=0).T
    if len(y) > MOST:
        return None
    counted, first = np.unique(trials, return_index=True)
    largest = y[np.append(first[1:], len(y)) - 1]
    if (largest + 1).sum() > MOST_PLACES:
        return None
    begin = np.zeros(int(counted[-1]) + 1, dtype=np.int64)
    begin[counted] = np.cumsum(largest + 1) - (largest + 1)
    place = np.full(int((largest + 1).sum()), -1, dtype=np.int32)
    place[begin[trials] + y] = np.arange(len(y))
    return Responses(y.astype(float), trials.astype(float), begin, place)


def _whole_pairs(data: Data) -> np.ndarray | None:
    """The different pairs of trials and response, in order."""
    y, trials = np.asarray(data[2]), np.asarray(data[3])
    if len(y) == 0:
        return np.zeros((0, 2), dtype=np.int64)
    if not (y.min() >= 0 and y.max() <= LARGEST and trials.min() >= 1 and trials.max() <= LARGEST):
        return None
    whole = y.astype(np.int64)
    if not np.array_equal(whole, y):
        return None
    if trials.min() == trials.max():
        counted = int(trials.flat[0])
        seen = np.flatnonzero(np.bincount(whole))
        return np.stack([np.full(len(seen), counted), seen], axis=1) if counted == trials.flat[0] else None
    times = trials.astype(np.int64)
    if not np.array_equal(times, trials):
        return None
    wide = int(whole.max()) + 1
    both = np.unique(times * wide + whole)
    return np.stack([both // wide, both % wide], axis=1)
