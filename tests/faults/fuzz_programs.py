"""Programs with odd data, odd groups and odd requests, and programs that are odd themselves. Few programs, so that few are compiled."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from fuzz_targets import ROWS, Answers, Call, answers_of, one_changed, regression_data, short
from fuzz_values import option, value

import robustly as rb


def line_program(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 10).expand([2]).to_event(1))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, precision**-0.5), obs=y)


def count_program(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 5).expand([2]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(b + x @ w)), obs=y)


def chance_program(trials, y=None):
    chance = numpyro.sample("chance", dist.Beta(2.0, 2.0))
    numpyro.sample("y", dist.Binomial(trials, chance), obs=y)


def standardised_program(x, y=None):
    """Looks at all rows, so that it is run with all of them."""
    b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Normal(b * (x[:, 0] - x[:, 0].mean()), precision**-0.5), obs=y)


def program_data(model: Any, random: Random) -> dict[str, np.ndarray]:
    given = regression_data(random, "normal" if model in (line_program, standardised_program) else "poisson")
    return {"X": np.full(ROWS, 9.0), "y": np.minimum(given["y"], 9.0)} if model is chance_program else given


def further_questions(robust: Any, fit: Any, new: Any, seen: Random) -> Answers:
    more = seen.random()
    if more < 0.15:
        mean = np.asarray(fit.posterior(robust.request.sites[0]).mean)
        return {"posterior": np.where(np.isposinf(mean), 0.0, mean)}  # Heavy tails have no mean.
    if more < 0.3:
        return {"predictive": fit.predictive(new).quantile(0.5)}
    return {}


def program(model: Any, site: str, by: bool = False) -> Callable[[Random], Call]:
    """A program with odd rows, weights and options of ``fit``; `by` asks for groups, which may be odd too."""

    def target(random: Random) -> Call:
        given = program_data(model, random)
        if random.random() < 0.15:
            given["weights"] = np.ones(ROWS)
        if by:
            given["g"] = np.resize(np.arange(6.0), ROWS)
        told, data = one_changed(random, given)
        asked = {}
        for name, usual in (
            ("method", ("direct", "em", "x")),
            ("max_steps", (3, 0, -1)),
            ("rtol", (1e-8, 0.0, -1.0)),
            ("chunk", (8, 0)),
            ("start", (None, {"w": [0.0, 1e200]}, {"w": "a"}, {"nope": 1.0}, {f"{site}.loc": np.nan}, [])),
        ):
            if random.random() < 0.05:
                asked[name] = option(random, usual)
        named = site if random.random() < 0.95 else option(random, ("nope", "y", "", []))
        seen = Random(random.randrange(2**32))

        def run() -> Answers:
            along = {name: data[name] for name in ("weights", "g") if name in data}
            robust = rb.localize(model, named, by="g" if by else None)
            fit = robust.fit(data["X"], data["y"], **along, **asked)
            found = answers_of(fit, seen)
            return found if by else found | further_questions(robust, fit, data["X"], seen)

        return f"{named} {told} {asked}", run

    return target


# What may be asked of `localize` itself, each with things that are wrong.
REQUESTS: dict[str, tuple[Any, ...]] = {
    "sites": ("precision", ["precision"], ("precision", "precision"), ["precision", 3], "w", ["w", "precision"], (), "y", 7, None),
    "rows": ("x", ["x", "y"], "nope", ["x", "x"], "y", [], 3, [None]),
    "fixed": (
        {"concentration": 2.0}, {"rate": 1.0}, {"rate": -1.0}, {"rate": np.nan}, {"rate": "a"}, {"nope": 1.0}, {"rate": [1.0, 2.0]}, {"rate": None},
        {"precision": {"rate": 0.0}}, {"w": {"loc": 0.0}}, {"precision.rate": 1e300}, {"concentration": 1e-300}, [], 3, {3: 1.0},
    ),
    "hyperprior": (
        {"rate": dist.Gamma(2.0, 0.1)}, {"rate": dist.Normal(0.0, 1.0)}, {"rate": 1.0}, {"rate": None}, {"nope": dist.Gamma(1.0, 1.0)},
        {"rate": dist.Gamma(-1.0, 1.0, validate_args=False)}, {"rate": dist.Poisson(2.0)}, {"rate": "Gamma"}, {"rate": dist.Gamma(2.0, 1.0).expand([3])}, 3,
    ),
    "by": ("g", "nope", "", 3, "x", ["g"]),
    "plate": ("data", "nope", "", 3),
    "approx": ("quadrature", 3, None, rb.Laplace(), rb.Quadrature(3), rb.Quadrature),
    "also": ("auto", "w", "nope", (), 3, ["precision"]),
    "contaminated": (True, False, "yes", None, 2),
}  # fmt: skip


def requested(random: Random) -> Call:
    """Data as they should be and a request that is not."""
    given = program_data(line_program, random)
    names = random.sample(tuple(REQUESTS), random.choice((1, 1, 1, 2)))
    asked = {name: random.choice(REQUESTS[name]) if random.random() < 0.85 else value(random) for name in names}
    seen = Random(random.randrange(2**32))

    def run() -> Answers:
        sites = asked.get("sites", "precision")
        along = {"g": np.resize(np.arange(6), ROWS)} if asked.get("by") == "g" else {}
        more = {name: one for name, one in asked.items() if name != "sites"}
        return answers_of(rb.localize(line_program, sites, **more).fit(given["X"], given["y"], **along), seen)

    return f"{ ({name: short(one) for name, one in asked.items()}) }", run


# ---------------------------------------------------------------------- programs that are odd themselves


def observe(law: Any, y: Any, name: str = "y") -> Any:
    return numpyro.sample(name, law, obs=y)


def one_then_other(b, s, x, y):
    observe(dist.Normal(b, s), y, "first")
    observe(dist.Normal(b, s), y, "first")


def in_subsample(b, s, x, y):
    with numpyro.plate("data", ROWS, subsample_size=5) as place:
        observe(dist.Normal(b, s), y[place])


def recursive(b, s, x, y):
    return recursive(b, s, x, y)


def interrupting(b, s, x, y):
    raise StopIteration("from the model")


BODIES: dict[str, Callable[..., Any]] = {
    "as it should be": lambda b, s, x, y: observe(dist.Normal(b * x[:, 0], s), y),
    "no observation": lambda b, s, x, y: None,
    "no randomness": lambda b, s, x, y: numpyro.deterministic("y", b * x),
    "one name twice": one_then_other,
    "the local's name again": lambda b, s, x, y: observe(dist.Normal(b, s), y, "s"),
    "a branch": lambda b, s, x, y: observe(dist.Normal(b if s > 1 else -b, s), y),
    "float of a value": lambda b, s, x, y: observe(dist.Normal(float(b), s), y),
    "numpy of a value": lambda b, s, x, y: observe(dist.Normal(np.sin(b), s), y),
    "a negative scale": lambda b, s, x, y: observe(dist.Normal(b, -s), y),
    "NaN": lambda b, s, x, y: observe(dist.Normal(b * jnp.nan, s), y),
    "infinite": lambda b, s, x, y: observe(dist.Normal(b + jnp.inf, s), y),
    "zero scale": lambda b, s, x, y: observe(dist.Normal(b, 0.0 * s), y),
    "rows mixed": lambda b, s, x, y: observe(dist.Normal(jnp.cumsum(b * x[:, 0]), s), y),
    "one number observed": lambda b, s, x, y: observe(dist.Normal(b, s), y.sum()),
    "a column observed": lambda b, s, x, y: observe(dist.Normal(b * x, s), y[:, None]),
    "another length": lambda b, s, x, y: observe(dist.Normal(b, s), y[:-1]),
    "a wrong plate": lambda b, s, x, y: numpyro.plate("data", 3).__enter__() and None,
    "a plate left open": lambda b, s, x, y: (numpyro.plate("data", ROWS).__enter__(), observe(dist.Normal(b, s), y)),
    "a subsample": in_subsample,
    "texts observed": lambda b, s, x, y: observe(dist.Normal(b, s), ["a"] * ROWS),
    "no law": lambda b, s, x, y: observe(3.0, y),
    "another support": lambda b, s, x, y: observe(dist.Beta(s, 1.0), y),
    "counts of fractions": lambda b, s, x, y: observe(dist.Poisson(s), y + 0.5),
    "a factor": lambda b, s, x, y: numpyro.factor("y", -s * (y - b) ** 2),
    "a factor that is NaN": lambda b, s, x, y: numpyro.factor("y", jnp.log(-s * jnp.ones(ROWS))),
    "a parameter": lambda b, s, x, y: observe(dist.Normal(b + numpyro.param("p", 0.5), s), y),
    "an error": lambda b, s, x, y: 1 / 0,
    "an odd error": interrupting,
    "without end": recursive,
    "a key of its own": lambda b, s, x, y: observe(dist.Normal(b + jax.random.normal(jax.random.key(0)), s), y),
    "numpyro's key": lambda b, s, x, y: observe(dist.Normal(b + jax.random.normal(numpyro.prng_key()), s), y),
    "not used": lambda b, s, x, y: observe(dist.Normal(b, 1.0), y),
    "a discrete value": lambda b, s, x, y: observe(dist.Normal(numpyro.sample("k", dist.Bernoulli(0.3)) + b, s), y),
    "a wide local": lambda b, s, x, y: observe(dist.Normal(numpyro.sample("v", dist.Normal(0, 1).expand([40])).sum(), s), y),
    "masked": lambda b, s, x, y: observe(dist.Normal(b, s).mask(y > 1), y),
    "improper": lambda b, s, x, y: observe(dist.Normal(numpyro.sample("u", dist.ImproperUniform(dist.constraints.real, (), ())), s), y),
    "a delta": lambda b, s, x, y: observe(dist.Delta(b), y),
    "a unit": lambda b, s, x, y: observe(dist.Unit(b), y),
    "scaled": lambda b, s, x, y: numpyro.handlers.scale(lambda: observe(dist.Normal(b, s), y), -1.0)(),
}  # fmt: skip
NAMED = tuple(BODIES)
SITES = ("s", "s", "s", "b", "v", "u", "k", ["b", "s"])


def written(random: Random) -> Call:
    """A program whose likelihood is written oddly, with data as they should be."""
    given = program_data(line_program, random)
    what, site = random.choice(NAMED), random.choice(SITES)
    shape = random.choice(((24,), (24,), (24, 2), (1,), (3,)))
    body = BODIES[what]

    def model(x, y=None):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        s = numpyro.sample("s", dist.LogNormal(0.0, 1.0))
        body(b, s, x, y)

    y = given["y"] if shape == (24,) else np.resize(given["y"], shape)
    seen = Random(random.randrange(2**32))
    return f"{what}, {site}, y of {shape}", lambda: answers_of(rb.localize(model, site).fit(given["X"], y), seen)


PROGRAMS: dict[str, Callable[[Random], Call]] = {
    "localize precision": program(line_program, "precision"),
    "localize predictor": program(count_program, "b"),
    "localize chance": program(chance_program, "chance"),
    "localize by group": program(line_program, "precision", by=True),
    "localize all rows": program(standardised_program, "precision"),
    "localize requested": requested,
    "localize written": written,
}
