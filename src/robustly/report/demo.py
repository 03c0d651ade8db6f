"""Robust and classical side by side, on the stack loss data and on simulated counts: what ``robustly demo`` shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from robustly.report import html
from robustly.report.findings import Findings
from robustly.report.regression import opening, parts, write_page

# Brownlee's (1965) stack loss data: air flow, cooling water temperature, acid concentration, and the loss. Days 1, 3, 4
# and 21 are known not to belong.
STACKLOSS = pd.DataFrame(
    [
        [80, 27, 89, 42], [80, 27, 88, 37], [75, 25, 90, 37], [62, 24, 87, 28], [62, 22, 87, 18], [62, 23, 87, 18],
        [62, 24, 93, 19], [62, 24, 93, 20], [58, 23, 87, 15], [58, 18, 80, 14], [58, 18, 89, 14], [58, 17, 88, 13],
        [58, 18, 82, 11], [58, 19, 93, 12], [50, 18, 89, 8], [50, 18, 86, 7], [50, 19, 72, 8], [50, 19, 79, 8],
        [50, 20, 80, 9], [56, 20, 82, 15], [70, 20, 91, 15],
    ],
    columns=["air flow", "water temperature", "acid concentration", "loss"],
)  # fmt: skip
TRUTH = {"Intercept": 1.0, "x1": 1.0, "x2": -0.5, "x3": 0.25}


def run_demo(folder: Path) -> str:
    """Fit both examples, write ``report.html`` into `folder`, and give the comparison as text."""
    stack, stack_formula = _stack_loss()
    counts, counts_formula = _simulated_counts()
    stack_text, counts_text = _tell_stack(stack), _tell_counts(counts)
    told = [
        ("Stack loss: 21 days of a plant, four of them odd", stack, stack_text, stack_formula),
        ("Simulated counts with rates that vary from row to row", counts, counts_text, counts_formula),
    ]
    page = html.page(
        "Robust and classical, side by side",
        "A real data set with known outliers and a simulated one with known coefficients, each fitted twice.",
        [(title, _section(found, text, formula)) for title, found, text, formula in told],
    )
    target = folder / "report.html"
    write_page(target, page)
    return f"{stack_text}\n\n{counts_text}\n\nWrote {target}."


def _section(found: Findings, text: str, formula: str) -> str:
    inner = "".join(f"<h3>{html.text(name)}</h3>{body}" for name, body in parts(found, formula=formula))
    return f"<pre>{html.text(text)}</pre>{opening(found)}{inner}"


def _stack_loss() -> tuple[Findings, str]:
    from robustly.glm.formula import glm

    formula = "loss ~ `air flow` + `water temperature` + `acid concentration`"
    robust = glm(formula, STACKLOSS, family="normal", dof=None)
    days = STACKLOSS.assign(day=np.arange(1, 22))[["day", *STACKLOSS.columns]]
    return Findings(robust, glm(formula, STACKLOSS, family="normal", local=None), frame=days), formula


def _tell_stack(found: Findings) -> str:
    robust, plain = found.robust, found.classical
    table = found.coefficients[["classical", "robust"]]
    days = np.argsort(-robust.surprise)[:4] + 1
    return (
        "Stack loss, linear regression; robust: every day has its own precision (Student-t errors).\n"
        f"{table.to_string(float_format=lambda v: f'{v:.3f}')}\n"
        f"log likelihood: classical {plain.log_likelihood:.2f}, robust {robust.log_likelihood:.2f}; "
        f"degrees of freedom {robust.dof:.2f}\n"
        f"most surprising days: {', '.join(map(str, sorted(days)))} (known not to belong: 1, 3, 4, 21)"
    )


def _simulated_counts() -> tuple[Findings, str]:
    from robustly.glm.formula import glm

    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(1500, 3))
    rate = np.exp(TRUTH["Intercept"] + x @ list(TRUTH.values())[1:] + rng.normal(size=1500))
    data = pd.DataFrame(x, columns=["x1", "x2", "x3"]).assign(y=rng.poisson(rate))
    formula = "y ~ x1 + x2 + x3"
    robust = glm(formula, data, family="poisson")
    return Findings(robust, glm(formula, data, family="poisson", local=None), frame=data), formula


def _tell_counts(found: Findings) -> str:
    robust, plain = found.robust, found.classical
    table = found.coefficients[["classical", "± classical", "robust", "± robust"]]
    table.insert(0, "truth", pd.Series(TRUTH))
    return (
        "Simulated counts, Poisson regression; robust: every row has its own log rate.\n"
        f"{table.to_string(float_format=lambda v: f'{v:.3f}')}\n"
        f"log likelihood: classical {plain.log_likelihood:.1f}, robust {robust.log_likelihood:.1f}; "
        f"spread of the log rates {robust.spread:.3f} (truth 1)\n"
        "the classical intercept is the log of the mean rate, not of the typical one, and its standard errors are too small"
    )
