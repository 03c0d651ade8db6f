"""The core: a NumPyro program through `localize`, against NUTS and others on the same localized model."""

from benchmarks.declare import Comparison, Target

COMPARISONS = [
    Comparison(
        name="core_poisson_small",
        title="Robust Poisson regression, few rows",
        problem="poisson_lognormal",
        sizes={"n": 1000, "d": 5},
        ours="robustly_localize",
        rivals=(
            "numpyro_nuts",
            "numpyro_autolaplace",
            "scipy_direct",
            "statsmodels_glm",
            "lme4_glmer",
            "glmmtmb",
        ),
        targets=(
            Target("cold ≤ 1.5 × NUTS 500 + 500, cold", "cold", at_most=1.5, versus="numpyro_nuts"),
            Target("≥ 100 × faster than NUTS 500 + 500, both compiled", "warm", at_least=100, versus="numpyro_nuts"),
        ),
    ),
    Comparison(
        name="core_poisson_large",
        title="Robust Poisson regression, many rows",
        problem="poisson_lognormal",
        sizes={"n": 1_000_000, "d": 5},
        quick={"n": 100_000},
        ours="robustly_localize",
        rivals=("statsmodels_glm",),
        targets=(
            Target("≤ 12 passes over the rows", "passes", at_most=12),
            Target("peak memory ≤ data + 600 MB", "beyond_data_mb", at_most=600),
        ),
        reps=3,
        quick_reps=1,
        warm_fits=1,
    ),
    Comparison(
        name="core_posterior",
        title="Posterior of the hyperparameters, few rows",
        problem="poisson_lognormal",
        sizes={"n": 100, "d": 2},
        ours="robustly_posterior",
        rivals=("numpyro_nuts_program",),
        targets=(
            Target(
                "≥ 25 × faster per effective sample of the spread than NUTS on `robust.program`, both compiled",
                "warm_per_effective",
                at_least=25,
                versus="numpyro_nuts_program",
            ),
        ),
        warm_fits=3,
    ),
    Comparison(
        name="core_quine",
        title="Days absent from school (MASS quine), real counts",
        problem="quine",
        ours="robustly_localize",
        rivals=("scipy_direct", "lme4_glmer", "glmmtmb"),
        reps=3,
        quick_reps=1,
    ),
    Comparison(
        name="core_import",
        title="Import",
        problem=None,
        ours="import_robustly",
        rivals=("import_jax_numpyro",),
        targets=(Target("≤ 1.5 × importing jax and numpyro", "first", at_most=1.5, versus="import_jax_numpyro"),),
        reps=9,
        quick_reps=3,
        warm_fits=0,
    ),
]
