"""What did a fit find? One result for every model: estimates, their uncertainty, rows, predictions, and how it ended."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

from robustly.result import persist
from robustly.result.inference import InferenceQuestions
from robustly.result.row_questions import RowQuestions
from robustly.result.views import view

if TYPE_CHECKING:
    from robustly.result.summary import Summary


@final
class Fit(InferenceQuestions, RowQuestions):
    """The fitted model.

    Estimates are in `hyperparameters` (by site and argument), `shared` (by name) and `parameters` (all, by name); a
    regression has `coefficients` by term besides. `evidence` holds log p(row) for every row, integrated over the row's
    own value. Other names of the same numbers (`dof`, `scale`, `mean` …) are in `derived` and can be read as attributes, and
    so can what a model of another kind adds, such as `forecast` of a time series (:mod:`robustly.series.result`).
    """

    def predictive(self, *args: Any, **kwargs: Any) -> Any:
        """The integrated predictive distribution of new rows.

        Call it like the model, without the observations: a localized program with its arguments; a regression with a
        matrix of columns, or a data frame for a formula, and ``offset=``, ``exposure=``, ``trials=``; a conjugate pair
        with what stands beside an observation (exposure, trials, variances, design).
        """
        found = self.model.predictive(args, kwargs)
        of_fit = getattr(found, "of_fit", None)
        return found if of_fit is None else of_fit(self)

    # ------------------------------------------------------------------ telling

    def summary(self, kind: str = "information", groups: Any = None) -> Summary:
        """A table of estimates with standard errors and intervals, and how the fit ended; prints as text or HTML.

        `kind` and `groups` are those of :meth:`covariance`.
        """
        from robustly.result.summary import summarize

        return summarize(self, kind, groups)

    def __repr__(self) -> str:
        what = " ".join(["Fit", *self.told.values()])
        return f"<{what}, {len(self.weight)} rows, log likelihood {self.log_likelihood:.4f}, {self.outcome.kind}>"

    @property
    def _kind(self) -> str:
        return "classical" if self.asked.get("local") is None else "robust"

    def plot_coefficients(self, **others: Any) -> Any:
        """Coefficients with 95 % intervals, beside those of `others` fitted to the same rows. Returns the figure."""
        self._of_regressions("plot_coefficients")
        fits = {self._kind: self, **{name: getattr(fit, "result_", fit) for name, fit in others.items()}}
        return view("plot_coefficients")(fits)

    def plot_effects(self, fdr: float = 0.05) -> Any:
        """Groups' effects in order, with 95 % posterior intervals; groups that do not belong are marked. Returns the figure."""
        return view("plot_effects")(self, fdr)

    def plot_rows(self, fdr: float = 0.05) -> Any:
        """How improbable every row is, with the rows that do not belong marked. Returns the figure."""
        self._of_regressions("plot_rows")
        return view("plot_rows")(self, self.outlier_places(fdr=fdr))

    def plot_prior(self) -> Any:
        """The fitted law of the rows' own values, and where the rows were found. Returns the figure."""
        self._of_regressions("plot_prior")
        return view("plot_prior")(self)

    def plot_pit(self) -> Any:
        """The histogram of the probability integral transform, flat where predictions are calibrated. Returns the figure."""
        self._of_regressions("plot_pit")
        return view("plot_pit")({self._kind: self})

    def report(
        self, path: str | os.PathLike[str], *, title: str = "A robust regression", data: Any = None
    ) -> os.PathLike[str] | None:
        """Write one self-contained HTML page: this fit beside the classical one, rows that do not belong, checks.

        `data` is a frame whose columns are shown beside the rows. A time series has a page of its own.
        """
        own = getattr(self.model, "page", None)
        if own is not None:
            return view(own)(self, path)  # type: ignore[no-any-return]
        self._of_regressions("a report")
        self.need_source("a report")
        if self.unit:
            view("group_report")(self, path, title=title)
            return None
        view("report")(self, path, title=title, data=data)
        return None

    def to_arviz(
        self, draws: Mapping[str, Any] | None = None, *, num_samples: int = 500, num_chains: int = 4, seed: int = 0
    ) -> Any:
        """Posterior draws for ArviZ, the integrated log likelihood of every row at each of them, and what was observed.

        An ``InferenceData``, or with ArviZ 1 and later the ``DataTree`` that took its place: ``az.loo``, ``az.summary`` and
        ``az.compare`` take it. Regressions have replicated responses besides, for ``az.plot_ppc`` (in
        ArviZ 1 ``az.plot_ppc_dist``) and ``az.plot_loo_pit``.

        Args:
            draws: what :meth:`sample_posterior` gave; None draws here.
            num_samples, num_chains, seed: draws in each chain, how many chains, and where they begin.
        """
        from robustly.result.arviz import to_inference_data

        return to_inference_data(self, draws, num_samples, num_chains, seed)

    def to_marginaleffects(self, data: Any) -> Any:
        """This regression as the package ``marginaleffects`` takes models: for its predictions, comparisons and slopes.

        Args:
            data: the frame it was fitted to.

        ``marginaleffects.avg_slopes(fit.to_marginaleffects(data))``. All estimates are passed on, the spread included, so
        that standard errors of a robust mean are whole.
        """
        self._of_regressions("to_marginaleffects")
        return self.model.for_marginaleffects(self, data)  # type: ignore[attr-defined]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all numbers of the fit to one file; read it with ``rb.load``."""
        from robustly.result.saved import to_saved

        persist.write(path, self.model.kind, *to_saved(self))
