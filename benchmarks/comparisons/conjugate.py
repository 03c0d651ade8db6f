"""Conjugate pairs against plain scipy fits of the compound law."""

from benchmarks.declare import Comparison, Target

COMPARISONS = [
    Comparison(
        name="conjugate_counts",
        title="Counts with rates of their own (negative binomial)",
        problem="counts",
        sizes={"n": 1_000_000},
        quick={"n": 100_000},
        ours="robustly_conjugate",
        rivals=("scipy_direct",),
        targets=(Target("≤ 0.5 × a plain scipy fit, compiled", "warm", at_most=0.5, versus="scipy_direct"),),
        reps=3,
        quick_reps=1,
        warm_fits=3,
    ),
    Comparison(
        name="conjugate_student_t",
        title="Normal rows with variances of their own (Student-t)",
        problem="normal_t",
        sizes={"n": 1_000_000},
        quick={"n": 100_000},
        ours="robustly_conjugate",
        rivals=("scipy_direct", "scipy_t_fit"),
        targets=(
            Target("≤ 0.5 × a plain scipy fit, compiled", "warm", at_most=0.5, versus="scipy_direct"),
            Target("≤ 0.5 × scipy.stats.t.fit, compiled", "warm", at_most=0.5, versus="scipy_t_fit"),
        ),
        reps=3,
        quick_reps=1,
        warm_fits=1,
    ),
    Comparison(
        name="conjugate_beta_binomial",
        title="Successes with chances of their own (beta-binomial)",
        problem="beta_binomial",
        sizes={"n": 100_000},
        quick={"n": 20_000},
        ours="robustly_conjugate",
        rivals=("scipy_direct",),
        targets=(Target("≤ 0.5 × a plain scipy fit, compiled", "warm", at_most=0.5, versus="scipy_direct"),),
        reps=3,
        quick_reps=1,
        warm_fits=1,
    ),
]
