"""Least squares by NumPy: what any linear regression costs at the least, outliers and all."""

SOLVES = ("student_t_regression",)
PACKAGES = ("numpy.linalg",)


def fit(problem):
    import numpy as np

    return {"w": np.linalg.lstsq(problem.data["x"], problem.data["y"], rcond=None)[0]}
