"""Import what the package stands on."""

SOLVES = ()


def fit(problem):
    import jax  # noqa: F401
    import numpyro  # noqa: F401

    return {}
