"""Which ends of a search warn."""

import re
import warnings
from pathlib import Path

import pytest

from robustly.errors import ConvergenceWarning
from robustly.fit.outcome import Outcome, warn_unless_converged

DOCS = Path(__file__).parents[2] / "docs"


def warns(kind):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warn_unless_converged(Outcome(kind, "text"))
    return [one.category for one in seen] == [ConvergenceWarning]


@pytest.mark.parametrize("kind", ["converged", "boundary", "limit"])
def test_answers_that_stand_do_not_warn(kind):
    assert not warns(kind)


def test_the_documents_say_which_outcomes_warn():
    page = (DOCS / "howto.md").read_text()
    table = page.split("| outcome |")[1].split("\n\n")[0]
    kinds = [re.findall(r"`(\w+)`", line.split("|")[1]) for line in table.splitlines()[2:]]
    assert "The first three stand and do not warn" in page
    assert all(not warns(kind) for line in kinds[:3] for kind in line)
    assert all(warns(kind) for line in kinds[3:] for kind in line)
    assert {"converged", "boundary", "limit", "max_steps", "stalled"} <= {kind for line in kinds for kind in line}
