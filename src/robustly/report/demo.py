"""Robust and classical side by side, on the stack loss data and on simulated counts: what ``robustly demo`` shows."""

from __future__ import annotations

import base64
import io
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from robustly import persist

# Brownlee's (1965) stack loss data: air flow, cooling water temperature, acid concentration, and the loss. Days 1, 3, 4
# and 21 are known not to belong.
STACKLOSS = np.array(
    [
        [80, 27, 89, 42], [80, 27, 88, 37], [75, 25, 90, 37], [62, 24, 87, 28], [62, 22, 87, 18], [62, 23, 87, 18],
        [62, 24, 93, 19], [62, 24, 93, 20], [58, 23, 87, 15], [58, 18, 80, 14], [58, 18, 89, 14], [58, 17, 88, 13],
        [58, 18, 82, 11], [58, 19, 93, 12], [50, 18, 89, 8], [50, 18, 86, 7], [50, 19, 72, 8], [50, 19, 79, 8],
        [50, 20, 80, 9], [56, 20, 82, 15], [70, 20, 91, 15],
    ],
    dtype=float,
)  # fmt: skip
TERMS = ["Intercept", "air flow", "water temperature", "acid concentration"]


def linear_model(x: Any, y: Any = None) -> None:
    """Linear regression; its precision is what may differ from row to row."""
    import numpyro
    import numpyro.distributions as dist

    w = numpyro.sample("w", dist.Normal(0.0, 100.0).expand([x.shape[1]]).to_event(1))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, precision**-0.5), obs=y)


def count_model(x: Any, y: Any = None) -> None:
    """Poisson regression; its intercept is what may differ from row to row."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    w = numpyro.sample("w", dist.Normal(0.0, 10.0).expand([x.shape[1]]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(b + x @ w)), obs=y)


def run_demo(folder: Path) -> str:
    """Fit both examples, write ``report.html`` into `folder`, and give the comparison as text."""
    stack, stack_text = _stack_loss()
    counts, counts_text = _simulated_counts()
    page = _page(
        [
            ("Stack loss: 21 days of a plant, four of them odd", stack_text, stack),
            ("Simulated counts with rates that vary from row to row", counts_text, counts),
        ]
    )
    target = folder / "report.html"
    with persist.atomic(target) as stream:
        stream.write(page.encode())
    return f"{stack_text}\n\n{counts_text}\n\nWrote {target}."


def _stack_loss() -> tuple[Any, str]:
    import robustly as rb

    x = np.column_stack([np.ones(21), STACKLOSS[:, :3]])
    y = STACKLOSS[:, 3]
    robust, plain = rb.localize(linear_model, "precision").fit(x, y), rb.classical(linear_model).fit(x, y)
    table = pd.DataFrame({"classical": plain.shared["w"], "robust": robust.shared["w"]}, index=TERMS)
    days = np.argsort(-robust.surprise)[:4] + 1
    dof = 2 * robust.hyperparameters["precision"]["concentration"]
    text = (
        "Stack loss, linear regression; robust: every day has its own precision (Student-t errors).\n"
        f"{table.to_string(float_format=lambda v: f'{v:.3f}')}\n"
        f"log likelihood: classical {plain.log_likelihood:.2f}, robust {robust.log_likelihood:.2f}; degrees of freedom {dof:.2f}\n"
        f"most surprising days: {', '.join(map(str, sorted(days)))} (known not to belong: 1, 3, 4, 21)"
    )
    return _surprise_plot(robust, plain, np.arange(1, 22), "day"), text


def _simulated_counts() -> tuple[Any, str]:
    import robustly as rb

    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(1500, 3))
    truth = np.array([1.0, -0.5, 0.25])
    y = rng.poisson(np.exp(1 + x @ truth + rng.normal(size=1500)))
    robust, plain = rb.localize(count_model, "b").fit(x, y), rb.classical(count_model).fit(x, y)
    table = pd.DataFrame(
        {
            "truth": truth,
            "classical": plain.shared["w"],
            "± ": plain.standard_errors["w"],
            "robust": robust.shared["w"],
            "±": robust.standard_errors["w"],
        },
        index=["x1", "x2", "x3"],
    )
    spread = robust.hyperparameters["b"]["scale"]
    text = (
        "Simulated counts, Poisson regression; robust: every row has its own log rate.\n"
        f"{table.to_string(float_format=lambda v: f'{v:.3f}')}\n"
        f"log likelihood: classical {plain.log_likelihood:.1f}, robust {robust.log_likelihood:.1f}; "
        f"spread of the log rates {spread:.3f} (truth 1); the classical standard errors are too small"
    )
    return _surprise_plot(robust, plain, np.arange(1500), "row"), text


def _surprise_plot(robust: Any, plain: Any, index: np.ndarray, unit: str) -> str:
    """Surprise of every row under both models, as a PNG in base64."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    axes.plot(index, plain.surprise, "o", ms=3.5, color="#b0563b", label="classical")
    axes.plot(index, robust.surprise, "o", ms=3.5, color="#2f6f8f", label="robust")
    axes.set(xlabel=unit, ylabel="surprise (−log density)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return base64.b64encode(buffer.getvalue()).decode()


def _page(parts: list[tuple[str, str, str]]) -> str:
    body = "".join(
        f"<section><h2>{escape(title)}</h2><pre>{escape(text)}</pre>"
        f'<img alt="surprise of every row" src="data:image/png;base64,{image}"></section>'
        for title, text, image in parts
    )
    style = (
        "body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color:#222}"
        "pre{overflow-x:auto;white-space:pre-wrap;background:#f6f5f2;padding:.8rem;font-size:.85rem}img{width:100%;height:auto}"
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>robustly: a demonstration</title><style>{style}</style></head><body><h1>Robust and classical, side by side</h1>"
        f"{body}</body></html>"
    )
