"""Odd inputs to everything public end with finite answers or a named error. ``benchmarks/fuzz.py`` runs many more of them."""

import pytest
from fuzz_cases import case, end_of
from fuzz_commands import COMMANDS
from fuzz_models import MODELS
from fuzz_programs import PROGRAMS
from fuzz_targets import CHEAP
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

# How many inputs a target gets: more where a call costs a millisecond, fewer where it compiles.
COUNTS = {
    **dict.fromkeys(CHEAP, 40),
    "RobustLinearRegression": 20,
    "RobustPoissonRegression": 20,
    "RobustLogisticRegression": 50,
    "glm": 160,
    "pair DirichletMultinomial": 100,
    "pair NormalNormal": 120,
    "mixture": 150,
    "Bayesian mixture": 50,
    "HMM": 250,
    "LDA": 300,
    "RobustLDA": 300,
    "glm groups": 60,
    "categories": 100,
    "extra zeros": 20,
    "series": 30,
    "robustly fit": 60,
    "robustly outliers": 40,
    "robustly topics": 120,
    "robustly other": 40,
}
# Those that compile for seconds are left to the long run.
for rare in (
    "pair NormalWishart",
    "pair BetaNegativeBinomial",
    "pair GammaGamma",
):
    del COUNTS[rare]
SOME = {**CHEAP, **MODELS, **PROGRAMS, **COMMANDS}


def test_there_are_two_thousand_inputs():
    assert sum(COUNTS.values()) >= 2000


@pytest.mark.filterwarnings("ignore")  # Looked at by `end_of`.
@pytest.mark.parametrize("target", COUNTS)
def test_odd_inputs_are_answered_or_refused_by_name(target):
    @settings(
        max_examples=COUNTS[target],
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, 2**32 - 1))
    def every(number):
        _, told, run = case(number, {target: SOME[target]})
        assert end_of(run) in ("answered", "refused"), told

    every()


# Everything that ever ended otherwise, by number; `python fuzz_cases.py NUMBER` shows it.
SEEN: tuple[tuple[str, int], ...] = (
    ("RobustPoissonRegression", 1481),
    ("mixture", 54),
    ("mixture", 163),
    ("Bayesian mixture", 9961),
    ("RobustLogisticRegression", 10425),
    ("mixture", 12446),
    ("mixture", 19564),
    ("HMM", 18217),
    ("pair DirichletMultinomial", 15372),
    ("mixture", 1817),
    ("mixture", 6853),
    ("RobustLDA", 6809),
    ("RobustPoissonRegression", 7345),
    ("pair NormalInverseGamma", 17),
    ("pair NormalNormal", 2061),
    ("RobustLDA", 2601),
    ("RobustLDA", 1371587),
    ("localize by group", 231),
    ("glm groups", 117),
    ("glm groups", 252),
    ("glm groups", 320),
    ("glm groups", 702),
    ("glm groups", 821),
    ("glm groups", 1071),
    ("glm groups", 1275),
    ("categories", 276),
    ("categories", 505),
    ("categories", 1048),
    ("extra zeros", 17),
    ("extra zeros", 102),
    ("series", 3),
    ("series", 16),
    ("series", 50),
    ("series", 71),
    ("series", 310),
    ("series", 393),
    ("localize requested", 10),
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("target", "number"), SEEN)
def test_what_was_seen_once_does_not_come_again(target, number):
    _, told, run = case(number, {target: SOME[target]})
    assert end_of(run) in ("answered", "refused"), told
