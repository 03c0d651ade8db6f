"""Does a climb find the top, whatever it is shown of it on the way?"""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from robustly.fit.newton import Function, maximize, upward
from robustly.fit.objective import Effort, Look
from robustly.fit.outcome import Stop
from robustly.result.outliers import BEHIND, Candidate, behind


class TwoRules(Function):
    """A function that is also seen by a coarser rule."""

    cheaper = Effort.ROUGH

    def __init__(self, fine, rough):
        super().__init__(fine)
        self.rough = rough

    def look(self, vector, effort=Effort.FULL):
        return Look(*(self.rough if effort is Effort.ROUGH else self.function)(vector))


def hill(top, slant, looks, error=0.0):
    """A smooth concave function with its top at `top`; `error` bends what is seen of it."""

    def look(x):
        looks.append(np.array(x))
        z = x - top
        value = -float(np.sum(np.cosh(z))) - 0.5 * slant * float(z.sum() ** 2) + error * float(np.sin(3.0 * z).sum())
        slope = -np.sinh(z) - slant * z.sum() + 3.0 * error * np.cos(3.0 * z)
        curve = -np.diag(np.cosh(z) + 9.0 * error * np.sin(3.0 * z)) - slant
        return value, slope, curve

    return look


tops = st.lists(st.floats(-6.0, 6.0), min_size=1, max_size=5).map(np.array)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(top=tops, slant=st.floats(0.0, 3.0))
def test_a_final_step_accepted_without_a_look_ends_where_one_that_is_looked_at_does(top, slant):
    looks = []
    found = maximize(Function(hill(top, slant, looks)), np.zeros(len(top)))
    assert found.outcome.kind == "converged"
    np.testing.assert_allclose(found.vector, top, atol=1e-9)
    np.testing.assert_allclose(found.value, -len(top), atol=1e-12)
    np.testing.assert_array_equal(found.seen, looks[-1])
    if found.before is not None:
        np.testing.assert_allclose(found.before, found.vector, atol=1e-3)


@settings(max_examples=60, deadline=None, derandomize=True)
# An error so small that a whole climb gains less by its end than the stop asks for is none: 1e-10 nats are 1e-5 of the way.
@given(top=tops, slant=st.floats(0.0, 3.0), error=st.floats(1e-4, 0.02), sign=st.sampled_from([-1.0, 0.0, 1.0]))
def test_rough_looks_show_the_way_and_never_the_end(top, slant, error, sign):
    rough, well = [], []
    both = TwoRules(hill(top, slant, well), hill(top, slant, rough, sign * error))
    found = maximize(both, np.zeros(len(top)), Stop(1e-10, 100))
    assert found.outcome.kind == "converged"
    np.testing.assert_allclose(found.vector, top, atol=1e-8)
    assert rough
    assert well


def test_where_rough_looks_lead_nowhere_the_climb_goes_on_with_better_ones():
    top = np.array([4.0, -3.0])
    fine = hill(top, 0.5, [])

    def broken(x):
        value, slope, curve = fine(x)
        return (value, slope, curve) if not np.any(x) else (np.nan, slope, curve)

    found = maximize(TwoRules(fine, broken), np.zeros(2))
    assert found.outcome.kind == "converged"
    np.testing.assert_allclose(found.vector, top, atol=1e-9)


def test_a_climb_that_is_ended_from_outside_is_seen_well_where_it_ends():
    from robustly.fit.outcome import Outcome

    top, well = np.array([5.0]), []
    found = maximize(
        TwoRules(hill(top, 0.0, well), hill(top, 0.0, [], 0.02)),
        np.zeros(1),
        watch=lambda x, gain: Outcome("watched", "enough") if x[0] > 0.5 else None,
    )
    assert found.outcome.kind == "watched"
    np.testing.assert_array_equal(well[-1], found.vector)
    assert found.value == hill(top, 0.0, [])(found.vector)[0]


def test_a_place_without_slope_that_curves_upwards_is_left():
    def saddle(x):
        return (
            float(x[0] ** 2 - 0.25 * x[0] ** 4 - x[1] ** 2),
            np.array([2.0 * x[0] - x[0] ** 3, -2.0 * x[1]]),
            np.diag([2.0 - 3.0 * x[0] ** 2, -2.0]),
        )

    found = maximize(Function(saddle), np.zeros(2))
    np.testing.assert_allclose(np.abs(found.vector), [np.sqrt(2.0), 0.0], atol=1e-7)
    assert upward(np.diag([-1.0, -2.0]), None) is None


def test_a_small_gain_that_rounding_hides_is_not_missed_but_a_fall_is():
    def climb(value):
        return maximize(Function(lambda x: (value(x[0]), np.array([3e-3]), -np.eye(1))), np.zeros(1)).outcome.kind

    assert climb(lambda x: -1e-6 * abs(np.sin(1e9 * x))) == "converged"
    assert climb(lambda x: -x) == "stalled"


@given(st.lists(st.floats(-1.5, 1.5), min_size=1, max_size=4), st.floats(0.0, 2.0), st.floats(1e-4, 0.1))
@settings(max_examples=30, deadline=None)
def test_a_climb_that_may_leave_some_ends_earlier_and_leaves_no_more(top, slant, remaining):
    top, looks, all_looks = np.array(top), [], []
    found = maximize(Function(hill(top, slant, looks)), np.zeros(len(top)), Stop(1e-3, 100, remaining))
    to_the_top = maximize(Function(hill(top, slant, all_looks)), np.zeros(len(top)), Stop(1e-10, 100))
    assert len(looks) <= len(all_looks)
    best = hill(top, slant, [])(to_the_top.vector)[0]
    # At the pace of the steps before; a hill of cosh is a little slower than that far from its top.
    assert best - hill(top, slant, [])(found.vector)[0] <= 10.0 * remaining


def test_the_fit_of_a_sample_stops_where_it_is_a_start():
    asked = Stop(1e-8, 70)
    assert asked.of_start.rtol > asked.rtol
    assert asked.of_start.max_steps == 70
    assert asked.remaining == 0.0 < asked.of_start.remaining
    assert asked.of_start.of_start == asked.of_start


@settings(max_examples=25, deadline=None)
@given(top=st.lists(st.floats(-3.0, 3.0), min_size=1, max_size=3).map(np.array), ahead=st.floats(-4.0, 4.0))
def test_a_climb_is_given_up_only_where_its_top_has_less_evidence(top, ahead):
    """Of a concave function: against another law that is ahead by more or less, the climb ends at the top unless that has lost."""
    start = np.zeros(len(top))
    whole = maximize(Function(hill(top, 0.0, [])), start, Stop(1e-12))
    here = Candidate("", whole.value, whole.curve)
    other = Candidate("", whole.value + ahead, whole.curve)
    found = maximize(Function(hill(top, 0.0, [])), start, Stop(1e-12), hopeless=behind(other))
    if found.outcome.kind == BEHIND:
        assert here.log_evidence < other.log_evidence
        assert here.value < other.value
    else:
        np.testing.assert_allclose(found.vector, whole.vector, atol=1e-5)


def test_a_climb_that_is_never_called_hopeless_takes_the_same_way():
    seen, again = [], []
    top = np.array([2.0, -1.0])
    maximize(Function(hill(top, 0.3, seen)), np.zeros(2), Stop(1e-12))
    maximize(Function(hill(top, 0.3, again)), np.zeros(2), Stop(1e-12), hopeless=lambda value, curve, gain: None)
    np.testing.assert_array_equal(seen, again)


def test_where_a_direction_curves_upwards_nothing_is_given_up():
    """A saddle far below another law: there is more to come than a quadratic picture says."""
    assert behind(Candidate("", 100.0, -np.eye(2)))(0.0, np.diag([-1.0, 1.0]), 1e-3) is None
    assert behind(Candidate("", 100.0, -np.eye(2)))(0.0, -np.eye(2), 1e-3) is not None
