"""Mixtures of t laws against scikit-learn's Gaussian ones, both for twenty steps from the same start.

Ours runs on one thread. scikit-learn's depends on how BLAS threads get along with the machine's other work: run with
OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 for a ratio that does not, which is how the recorded one was found.
"""

from benchmarks.declare import Comparison, Target

COMPARISONS = [
    Comparison(
        name="mixture_large",
        title="Twenty steps of a mixture with eight components, fitted tails against normal ones",
        problem="t_mixture",
        sizes={"n": 200_000, "d": 5, "components": 8},
        quick={"n": 20_000},
        ours="robustly_mixture",
        rivals=("sklearn_mixture",),
        targets=(Target("≤ 2 × scikit-learn's GaussianMixture", "warm", at_most=2.0, versus="sklearn_mixture"),),
        reps=3,
        warm_fits=3,
    ),
    Comparison(
        name="mixture_million",
        title="The same over a million rows",
        problem="t_mixture",
        sizes={"n": 1_000_000, "d": 5, "components": 8},
        quick={"n": 50_000},
        ours="robustly_mixture",
        rivals=("sklearn_mixture",),
        targets=(
            Target("≤ 2 × scikit-learn's GaussianMixture", "warm", at_most=2.0, versus="sklearn_mixture"),
            Target("a fit takes ≤ 150 MB beside the data", "extra_mb", at_most=150),
        ),
        reps=1,
        quick_reps=1,
        warm_fits=1,
    ),
]
