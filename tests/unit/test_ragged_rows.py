"""A store of rows of unlike length keeps the contract of every store, however it is cut and on however many threads."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

import robustly as rb
from robustly.errors import DataError
from robustly.rows.arrays import ArrayRows
from robustly.rows.ragged import RaggedRows
from robustly.rows.store import Slot, in_order


def table():
    """Rows of 0 to 40 entries, one of them longer than a chunk, some equal."""
    random = np.random.default_rng(0)
    filled = sparse.random_array((200, 40), density=0.15, format="csr", rng=random)
    rows = [filled, sparse.csr_matrix((5, 40)), sparse.csr_matrix(np.ones((1, 40))), filled[:20]]
    return sparse.vstack(rows, format="csr")


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("entries", [25, 300, 10**6])
def test_ragged_rows_keep_the_contract(entries, threads):
    X = table()
    number, weight = np.arange(X.shape[0]), 1.0 + np.arange(X.shape[0]) % 2
    store = RaggedRows((X, number), weight, entries, threads=threads)
    rb.testing.check_rows(store, ArrayRows((X, number), weight))


def test_chunks_have_like_numbers_of_entries_and_whole_rows():
    X = table()
    store = RaggedRows((X,), np.ones(X.shape[0]), 100)
    sizes = [X[place].nnz for place in store.places]
    assert sum(sizes) == X.nnz
    assert max(sizes) <= 100 + 40  # a piece, and the row it is cut within


def test_states_are_kept_as_they_are_and_can_be_taken_up_by_the_same_rows():
    X = table()
    one, other = (RaggedRows((X,), np.ones(X.shape[0]), 100) for _ in range(2))
    slot, again = Slot(), Slot()
    keep = lambda theta, data, weight, state: ({}, {}, {"entries": data[0].data.copy()})
    one.map(keep, None, into=slot)
    assert one.states(again) is None
    other.put_states(again, one.states(slot))
    seen = lambda theta, data, weight, state: ({"same": np.array_equal(state["entries"], data[0].data)}, {}, None)
    assert other.map(seen, None, keep=again).sums["same"] == len(one.places)
    with pytest.raises(DataError, match="chunks; got states of 1"):
        other.put_states(again, [{}])


def test_answers_come_in_the_order_of_what_was_asked():
    assert list(in_order(lambda i: i * i, range(50), 3)) == [i * i for i in range(50)]
