"""scipy's own `scipy.stats.t.fit`: maximum likelihood of a Student-t."""

SOLVES = ("normal_t",)
PACKAGES = ("scipy",)


def fit(problem):
    from scipy.stats import t

    dof, loc, scale = t.fit(problem.data["y"])
    return {"loc": loc, "scale": scale, "dof": dof}
