"""Does a traced program outlast its process, and only where nothing else could be meant by its name?"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from robustly._runtime.compiled import one_thread
from robustly._runtime.lasting import lasting_name
from robustly._runtime.precision import double_precision
from robustly.approx import Quadrature
from robustly.fit.view_passes import RowCurves
from robustly.glm.families import Poisson
from robustly.glm.local import LocalPredictor
from robustly.glm.row_model import row_model

X = np.linspace(0.0, 1.0, 7)


def square(numbers, row):
    return numbers[0] * row**2, jnp.sum(row)


def untraceable(numbers, row):
    raise AssertionError("traced again")


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ROBUSTLY_CACHE", str(tmp_path))


def run(function, name="square", row=X):
    with double_precision():
        return [np.asarray(part) for part in one_thread(function, name)((2.0,), row)]


def test_what_one_process_traced_the_next_only_reads(tmp_path):
    first = run(square)
    np.testing.assert_array_equal(first[0], 2.0 * X**2)
    again = run(untraceable)
    np.testing.assert_array_equal(again[0], first[0])
    assert [path.name[:7] for path in tmp_path.glob("traced-*")] == ["traced-"]
    with pytest.raises(AssertionError, match="traced again"):
        run(untraceable, row=X[:5])
    with pytest.raises(AssertionError, match="traced again"):
        run(untraceable, name=None)


def test_a_damaged_file_is_traced_and_written_again(tmp_path):
    run(square)
    (kept,) = tmp_path.glob("traced-*")
    for damage in (b"", kept.read_bytes()[:40], b"\xff" * 300):
        kept.write_bytes(damage)
        np.testing.assert_array_equal(run(square)[0], 2.0 * X**2)
        run(untraceable)


def test_without_a_folder_to_write_all_goes_on(monkeypatch):
    monkeypatch.setenv("ROBUSTLY_CACHE", "")
    np.testing.assert_array_equal(run(square)[0], 2.0 * X**2)


class OwnFamily(Poisson):
    """A user's."""


def test_names_tell_everything_apart_that_traces_apart():
    law = LocalPredictor(Poisson(), "normal")
    others = [law, LocalPredictor(Poisson(), "laplace"), LocalPredictor(OwnFamily(), "normal")]
    found = [lasting_name(row_model(one).made_by, Quadrature(n), RowCurves(())) for one in others for n in (9, 21)]
    assert found[4:] == [None, None]
    assert len(set(found[:4])) == 4
    assert None not in found[:4]
    assert lasting_name(lambda x: x) is None
    assert lasting_name(law) == lasting_name(LocalPredictor(Poisson(), "normal"))
