"""Robust generalized linear models against lme4, glmmTMB, statsmodels, glum and scikit-learn."""

from benchmarks.declare import Comparison, Target

# Of 48 MB of data: 2 × the data + 500 MB, less the data.
MEMORY = Target("peak memory ≤ 2 × the data + 500 MB", "beyond_data_mb", at_most=548)

COMPARISONS = [
    Comparison(
        name="glm_poisson_mixed",
        title="Robust Poisson regression against mixed-model programs",
        problem="poisson_lognormal",
        sizes={"n": 50_000, "d": 5},
        quick={"n": 5_000},
        ours="robustly_glm",
        rivals=("lme4_glmer", "glmmtmb"),
        targets=(
            Target("≥ 30 × faster than lme4 (Laplace)", "warm", at_least=30, versus="lme4_glmer"),
            Target("≥ 60 × faster than glmmTMB", "warm", at_least=60, versus="glmmtmb"),
        ),
        reps=3,
        quick_reps=1,
        warm_fits=2,
        timeout=3000.0,
    ),
    Comparison(
        name="glm_poisson_large",
        title="Robust Poisson regression against the plain one, many rows",
        problem="poisson_lognormal",
        sizes={"n": 1_000_000, "d": 5},
        quick={"n": 100_000},
        ours="robustly_glm",
        rivals=("statsmodels_glm", "glum_glm", "robustly_glm_tenth"),
        targets=(
            Target("≤ 0.2 × statsmodels' plain Poisson GLM", "warm", at_most=0.2, versus="statsmodels_glm"),
            Target("no slower than glum's plain Poisson regression", "warm", at_most=1.0, versus="glum_glm"),
            Target(
                "≤ 12 × the time for a tenth of the rows (linear cost is 8 to 12)",
                "warm",
                at_most=12.0,
                versus="robustly_glm_tenth",
            ),
            MEMORY,
        ),
        reps=3,
        warm_fits=3,
    ),
    Comparison(
        name="glm_student_t_large",
        title="Student-t regression, many rows",
        problem="student_t_regression",
        sizes={"n": 1_000_000, "d": 5},
        quick={"n": 100_000},
        ours="robustly_glm",
        rivals=("sklearn_huber", "statsmodels_glm", "numpy_lstsq"),
        targets=(
            Target("no slower than HuberRegressor", "warm", at_most=1.0, versus="sklearn_huber"),
            Target("≥ 4 × faster than statsmodels RLM", "warm", at_least=4, versus="statsmodels_glm"),
            Target("≤ 2 × NumPy's least squares", "warm", at_most=2.0, versus="numpy_lstsq"),
            MEMORY,
        ),
        reps=3,
        warm_fits=3,
    ),
    Comparison(
        name="glm_logistic_large",
        title="Robust logistic regression against the plain one, many rows",
        problem="logistic",
        sizes={"n": 1_000_000, "d": 5},
        quick={"n": 100_000},
        ours="robustly_glm",
        rivals=("statsmodels_glm", "glum_glm"),
        targets=(Target("no slower than statsmodels' Logit", "warm", at_most=1.0, versus="statsmodels_glm"), MEMORY),
        reps=3,
        warm_fits=3,
    ),
    Comparison(
        name="glm_cold",
        title="Robust Poisson regression from a cold process, compiled before",
        problem="poisson_lognormal",
        sizes={"n": 500, "d": 5},
        ours="robustly_glm",
        rivals=("statsmodels_glm",),
        targets=(Target("cold ≤ 1.3 × statsmodels GLM, cold", "cold", at_most=1.3, versus="statsmodels_glm"),),
        cache="kept",
    ),
]
