"""Plain `scipy.optimize` on the integrated likelihood: what one writes without this package, per kind of data."""

import numpy as np

SOLVES = ("poisson_lognormal", "student_t_regression", "normal_t", "counts", "beta_binomial")
PACKAGES = ("scipy",)
NODES = 21


def fit(problem):
    return {
        "poisson_lognormal": _poisson_lognormal,
        "student_t_regression": _student_t_regression,
        "normal_t": _normal_t,
        "counts": _counts,
        "beta_binomial": _beta_binomial,
    }[problem.kind](**problem.data)


def _minimize(loss, start, jac=None):
    from scipy.optimize import minimize

    found = minimize(loss, start, jac=jac, method="BFGS", options={"gtol": 1e-6 * np.sqrt(start.size)})
    # BFGS may report lost precision at the optimum itself; only a result that is no number is a failure.
    if not np.all(np.isfinite(found.x)):
        raise RuntimeError(f"scipy.optimize ended at {found.x}: {found.message}")
    return found.x


def _poisson_lognormal(x, y):
    """Adaptive Gauss–Hermite: nodes about each row's mode, the gradient by posterior moments (Fisher's identity)."""
    from scipy.special import gammaln, logsumexp

    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    log_weights = np.log(weights) + nodes**2 / 2
    design, counts = np.column_stack([np.ones(len(y)), x]), y[:, None]
    constant = (gammaln(y + 1) + 0.5 * np.log(2 * np.pi))[:, None]
    mode = np.zeros_like(counts)  # of the row's standardized intercept, kept from one evaluation to the next

    def loss(theta):
        nonlocal mode
        centre, scale = (design @ theta[:-1])[:, None], np.exp(theta[-1])
        for _ in range(100):
            rate = np.exp(np.minimum(centre + scale * mode, 50.0))
            step = (scale * (counts - rate) - mode) / (scale**2 * rate + 1)
            mode = mode + np.clip(step, -1.0, 1.0)
            if np.abs(step).max() < 1e-9:
                break
        width = (scale**2 * np.exp(centre + scale * mode) + 1) ** -0.5
        z = mode + width * nodes
        log_rate = centre + scale * z
        rate = np.exp(log_rate)
        log_terms = counts * log_rate - rate - z**2 / 2 - constant + np.log(width) + log_weights
        evidence = logsumexp(log_terms, axis=1)
        slope = np.exp(log_terms - evidence[:, None]) * (counts - rate)
        gradient = np.append(design.T @ slope.sum(1), scale * (slope * z).sum())
        return -evidence.mean(), -gradient / len(y)

    start = np.zeros(x.shape[1] + 2)
    start[0], start[-1] = np.log(y.mean() + 0.1), np.log(0.5)
    theta = _minimize(loss, start, jac=True)
    return {"w": theta[1:-1], "loc": theta[0], "scale": np.exp(theta[-1])}


def _student_t_regression(x, y):
    from scipy.stats import t

    def loss(theta):
        log_dof, log_scale = theta[-2:]
        return -t.logpdf(y - x @ theta[:-2], np.exp(log_dof), scale=np.exp(log_scale)).mean()

    start = np.append(np.linalg.lstsq(x, y, rcond=None)[0], [np.log(5.0), np.log(y.std())])
    theta = _minimize(loss, start)
    return {"w": theta[:-2], "dof": np.exp(theta[-2]), "scale": np.exp(theta[-1])}


def _normal_t(y):
    estimates = _student_t_regression(np.ones((len(y), 1)), y)
    return {"loc": estimates["w"][0], "dof": estimates["dof"], "scale": estimates["scale"]}


def _counts(y):
    from scipy.stats import nbinom

    def loss(theta):
        concentration, rate = np.exp(theta)
        return -nbinom.logpmf(y, concentration, rate / (1 + rate)).mean()

    concentration, rate = np.exp(_minimize(loss, np.array([0.0, -np.log(y.mean() + 0.1)])))
    return {"concentration": concentration, "rate": rate}


def _beta_binomial(y, trials):
    from scipy.stats import betabinom

    def loss(theta):
        return -betabinom.logpmf(y, trials, *np.exp(theta)).mean()

    concentration1, concentration0 = np.exp(_minimize(loss, np.zeros(2)))
    return {"concentration1": concentration1, "concentration0": concentration0}
