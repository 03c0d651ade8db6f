"""What should a reader take away? A robust fit beside the classical one, in a few sentences computed from both."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from robustly.comparison import Comparison, compare
from robustly.errors import ModelError
from robustly.result.hypotheses import likelihood_ratio

LISTED = 8
CHANCE = 0.05
"""Differences between rows that chance gives more often than this are no finding."""


@dataclass(frozen=True, eq=False)
class Findings:
    """Two fits of the same rows and what sets them apart."""

    robust: Any
    classical: Any
    fdr: float = 0.05
    frame: pd.DataFrame | None = None
    """Columns of the data to show beside rows."""

    @cached_property
    def comparison(self) -> Comparison:
        return compare(robust=self.robust, classical=self.classical)

    @cached_property
    def outliers(self) -> np.ndarray | None:
        """Rows that do not belong, the most surprising first; None where the family has no distribution function."""
        try:
            return self.robust.outlier_places(fdr=self.fdr)
        except ModelError:
            return None

    @cached_property
    def coefficients(self) -> pd.DataFrame:
        """By term: both estimates with standard errors, and the distance in robust standard errors."""
        robust, classical = self.robust, self.classical
        moved = robust.coefficients - classical.coefficients
        with np.errstate(divide="ignore", invalid="ignore"):
            return pd.DataFrame(
                {
                    "robust": robust.coefficients,
                    "± robust": robust.standard_errors,
                    "classical": classical.coefficients,
                    "± classical": classical.standard_errors,
                    "moved (s.e.)": np.abs(moved) / robust.standard_errors,
                }
            )

    def rows(self, which: np.ndarray | None) -> pd.DataFrame:
        """Some rows: what was seen, what both models expected, how improbable the row is, and its columns."""
        source = self.robust.source
        which = np.asarray([] if which is None else which, dtype=int)
        expected = {
            name: fit.fitted.typical(fit.source.predictor[which], source.design.trials[which])
            for name, fit in self._fits.items()
        }
        found = pd.DataFrame(
            {
                "row": self.robust.row_labels.of(which),
                "response": source.design.y[which],
                "expected, robust": expected["robust"],
                "expected, classical": expected["classical"],
                "outlier probability": self._probability[which],
                "tail probability": self.robust.judgement.belonging[which],
                "surprise": self.robust.surprise[which],
                "influence on classical": self.classical.influence[which],
            }
        )
        if self.frame is None:
            return found
        whole = len(self.frame) != len(source.design.y)
        more = self.frame.iloc[self.robust.row_labels.places(which) if whole else which].reset_index(drop=True)
        return pd.concat([found, more[[name for name in more.columns if name not in found.columns]]], axis=1)

    @property
    def _probability(self) -> np.ndarray:
        found = self.robust.judgement.probability
        return np.full(len(self.robust.weight), np.nan) if found is None else found

    # ------------------------------------------------------------------ sentences

    def sentences(self) -> list[str]:
        """How it ended, whether rows differ, which model predicts better, what moved, and who does not belong."""
        bad = {name: fit.outcome for name, fit in self._fits.items() if not fit.outcome.converged}
        if len(bad) == 2 and bad["robust"].text == bad["classical"].text:
            bad = {"robust (and the classical)": bad["robust"]}
        ended = [
            f"The {name} fit did not end well, so its numbers do not stand. {shortened(bad[name], 400)}" for name in bad
        ]
        if not self.robust.outcome.converged:
            return ended
        apart = [] if self.robust is self.classical else [self._prediction(), self._moved()]
        found = [self._difference(), *apart, self._outlying()]
        return [*ended, *(one for one in found if one)]

    @property
    def _fits(self) -> dict[str, Any]:
        return {"robust": self.robust, "classical": self.classical}

    def _difference(self) -> str:
        fit = self.robust
        if fit.asked.get("local") is None:
            return "The model is the classical one: nothing is local."
        differ = fit.fitted.law.difference(fit.fitted.shared, fit.labels)
        if not differ:
            return f"Rows do not differ: {fit.outcome.text}"
        by_chance = self._by_chance
        if by_chance is None or by_chance <= CHANCE:
            return differ
        best = " and ".join(f"{name} {fit.fitted.shared[name]:.3g}" for name in self._edges)
        return (
            f"Rows do not differ beyond chance (likelihood ratio, p = {by_chance:.2g}), though the best fit has {best}."
        )

    @property
    def _edges(self) -> list[str]:
        """Fitted numbers at whose edge the model is the classical one."""
        return [name for name in self.robust.model.edges if name in self.robust.labels]

    @property
    def _by_chance(self) -> float | None:
        """How often rows that do not differ would fit the robust model better by as much; None where it was not searched for."""
        if not self._edges or self.classical is self.robust:
            return None
        more = len(self.robust.labels) - len(self.classical.labels)
        gain = self.robust.log_likelihood - self.classical.log_likelihood
        return likelihood_ratio("", gain, max(1, more), boundary=True).pvalue

    def _prediction(self) -> str:
        scores = self.comparison.scores
        gain = float(scores.loc["robust", "LOO"] - scores.loc["classical", "LOO"])
        error = float(scores["its std. error"].max())
        if not np.isfinite(gain) or not np.isfinite(error):
            return ""
        if abs(gain) < max(0.05, error):
            apart = (
                ""
                if abs(gain) < 0.05
                else f": {abs(gain):.1f} nats apart (± {error:.1f}), less than one standard error"
            )
            return f"Left out one by one, rows are predicted as well by either model{apart}."
        verb = "better" if gain > 0 else "worse"
        unsure = ", less than two standard errors: few rows carry it" if abs(gain) < 2 * error else ""
        return f"Left out one by one, rows are predicted {verb} by the robust model: {abs(gain):.1f} nats (± {error:.1f}){unsure}."

    def _moved(self) -> str:
        moved = self.coefficients["moved (s.e.)"]
        moved = moved[np.isfinite(moved)]
        if self.robust.asked.get("local") == "predictor":
            # Where rows have predictors of their own, the intercept is that of a typical row and no longer of the mean.
            moved = moved.drop("Intercept", errors="ignore")
        if not len(moved):
            return ""
        term = moved.idxmax()
        if moved.max() < 1.0:
            return (
                f"No slope moved by as much as its standard error (at most {moved.max():.2g} of it, {shortened(term)})."
            )
        line = self.coefficients.loc[term]
        return (
            f"The coefficient that moved most is {shortened(term)}: {line['classical']:.3g} classical, {line['robust']:.3g} "
            f"robust ({moved[term]:.1f} of its standard errors)."
        )

    def _outlying(self) -> str:
        rows, n = self.outliers, len(self.robust.weight)
        if rows is None:
            return ""
        if not len(rows):
            return f"No row stands out at a false discovery rate of {self.fdr:g}."
        called = self.robust.row_labels.of(rows[:LISTED])
        some = ", ".join(shortened(row) for row in called) + (
            f" and {len(rows) - LISTED} more" if len(rows) > LISTED else ""
        )
        does = "rows does" if len(rows) == 1 else "rows do"
        return f"{len(rows)} of {n} {does} not belong (at a false discovery rate of {self.fdr:g}): {some}."


def shortened(value: Any, width: int = 40) -> str:
    """User text for a line of output: one line, without control characters, not too long."""
    clean = "".join(one if one.isprintable() else "�" for one in str(value)[: width + 1])
    return clean if len(clean) <= width else clean[: width - 1] + "…"
